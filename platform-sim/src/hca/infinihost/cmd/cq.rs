//! SW2HW_CQ, HW2SW_CQ, QUERY_CQ, RESIZE_CQ. infinihost 3.12, 4.4, 4.5.5.

use super::super::cq::MAX_LOG_SIZE;
use super::super::hcr::Command;
use super::super::variant::Mode;
use super::super::{InfiniHost, Params};
use super::Done;
use super::system::RESERVED;
use crate::machine::Bus;
use hca_abi::infinihost::cmd::{CmdStatus, ResizeCqKind};
use hca_abi::infinihost::cq::CqContext;
use hca_abi::infinihost::resize_cq::ResizeCq;

impl InfiniHost {
    /// The full number; its low bits say which context, the others which generation.
    fn cqn(&self, command: &Command) -> Result<u32, CmdStatus> {
        let cqn = command.input_modifier & 0xff_ffff;
        let cqs = self.params().map_or(0, Params::cqs);
        Self::object(self.cqs.index(cqn), cqs, RESERVED)?;
        Ok(cqn)
    }

    pub(super) fn sw2hw_cq(&mut self, bus: &mut dyn Bus, command: &Command) -> Done {
        let cqn = self.cqn(command)?;
        let context: CqContext = self.input(bus, command)?;
        if self.cqs.is_taken(cqn) {
            return Err(CmdStatus::BAD_RES_STATE);
        }
        if context.log_size() > MAX_LOG_SIZE {
            return Err(CmdStatus::EXCEED_LIM);
        }
        let params = self.params().ok_or(CmdStatus::BAD_SYS_STATE)?;
        let eqs = params.eqs();
        let eqn = |eqn: u8| u32::from(eqn) < eqs;
        let own = match self.mode() {
            Mode::T => eqn(context.error_eqn()),
            Mode::M => [context.set_ci_record(), context.arm_record()]
                .into_iter()
                .all(|index| self.chip.records.has(index)),
        };
        if !eqn(context.completion_eqn()) || !own || context.uar_page() >= params.uar_pages() {
            return Err(CmdStatus::BAD_PARAM);
        }
        self.backed(bus, params.raw.cqc_base(), self.cqs.index(cqn), 64)?;
        self.cqs.create(self.mode(), cqn, context);
        Ok(None)
    }

    /// One that software owns already is as good as taken back.
    pub(super) fn hw2sw_cq(&mut self, bus: &mut dyn Bus, command: &Command) -> Done {
        let cqn = self.cqn(command)?;
        if let Some(qpn) = self.qps.user_of(cqn) {
            bus.report(format_args!(
                "CQ {cqn:#x} is taken back, and QP {qpn:#x} still has it"
            ));
        }
        let context = self.cqs.destroy(cqn).unwrap_or_default();
        self.output(bus, command, &context)
    }

    pub(super) fn query_cq(&mut self, bus: &mut dyn Bus, command: &Command) -> Done {
        let cqn = self.cqn(command)?;
        let context = self
            .cqs
            .query(&self.chip, bus, cqn)
            .ok_or(CmdStatus::BAD_RES_STATE)?;
        self.output(bus, command, &context)
    }

    pub(super) fn resize_cq(&mut self, bus: &mut dyn Bus, command: &Command) -> Done {
        let cqn = self.cqn(command)?;
        let new: ResizeCq = self.input(bus, command)?;
        if command.opcode_modifier != ResizeCqKind::Corrected as u8 {
            self.chip.ledger.count("RESIZE_CQ: legacy variant");
        }
        self.cqs.resize(&self.chip, bus, cqn, &new)?;
        Ok(None)
    }
}
