//! SW2HW_SRQ, HW2SW_SRQ, QUERY_SRQ, ARM_SRQ. infinihost 3.12, 4.8.

use super::super::hcr::Command;
use super::super::srq::Context;
use super::super::variant::Mode;
use super::super::{InfiniHost, Params};
use super::Done;
use super::system::RESERVED;
use crate::machine::Bus;
use hca_abi::infinihost::cmd::CmdStatus;
use hca_abi::infinihost::srq::{MSrqContext, SrqContext, SrqState};

impl InfiniHost {
    fn srqn(&self, command: &Command) -> Result<u32, CmdStatus> {
        let srqs = self.params().map_or(0, Params::srqs);
        Self::object(command.input_modifier, srqs, RESERVED)
    }

    pub(super) fn sw2hw_srq(&mut self, bus: &mut dyn Bus, command: &Command) -> Done {
        let srqn = self.srqn(command)?;
        let context = match self.mode() {
            Mode::T => Context::T(self.input(bus, command)?),
            Mode::M => Context::M(self.input(bus, command)?),
        };
        if self.srqs.contains(srqn) {
            return Err(CmdStatus::BAD_RES_STATE);
        }
        let has_record = match &context {
            Context::T(_) => true,
            Context::M(context) => self.chip.records.has(context.record()),
        };
        let params = self.params().ok_or(CmdStatus::BAD_SYS_STATE)?;
        let has_page = context.uar_page() < params.uar_pages();
        if context.units() == 0 || !has_page || !has_record {
            return Err(CmdStatus::BAD_PARAM);
        }
        self.backed(bus, params.raw.srqc_base(), srqn, 32)?;
        self.srqs.create(srqn, context);
        Ok(None)
    }

    fn output_srq(&mut self, bus: &mut dyn Bus, command: &Command, context: &Context) -> Done {
        match context {
            Context::T(context) => self.output(bus, command, context),
            Context::M(context) => self.output(bus, command, context),
        }
    }

    /// One that software owns already is as good as taken back.
    pub(super) fn hw2sw_srq(&mut self, bus: &mut dyn Bus, command: &Command) -> Done {
        let srqn = self.srqn(command)?;
        if let Some(qpn) = self.qps.user_of_srq(srqn) {
            bus.report(format_args!(
                "SRQ {srqn:#x} is taken back, and QP {qpn:#x} still has it"
            ));
        }
        let context = self.srqs.destroy(&self.chip, bus, srqn);
        let software = SrqState::SOFTWARE;
        let context = context.unwrap_or_else(|| match self.mode() {
            Mode::T => Context::T(*SrqContext::default().set_state(software)),
            Mode::M => Context::M(*MSrqContext::default().set_state(software)),
        });
        self.output_srq(bus, command, &context)
    }

    pub(super) fn query_srq(&mut self, bus: &mut dyn Bus, command: &Command) -> Done {
        let srqn = self.srqn(command)?;
        let srq = self.srqs.get(srqn).ok_or(CmdStatus::BAD_RES_STATE)?;
        let context = srq.context(&self.chip, bus);
        self.output_srq(bus, command, &context)
    }

    /// A limit that is reached already is told at once.
    pub(super) fn arm_srq(&mut self, bus: &mut dyn Bus, command: &Command) -> Done {
        let srqn = self.srqn(command)?;
        let limit = u16::try_from(command.in_param).map_err(|_| CmdStatus::BAD_PARAM)?;
        let srq = self.srqs.get(srqn).ok_or(CmdStatus::BAD_RES_STATE)?;
        srq.arm(limit);
        self.check_limit(bus, srqn);
        Ok(None)
    }
}
