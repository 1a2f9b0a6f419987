//! SW2HW_SRQ, HW2SW_SRQ, QUERY_SRQ, ARM_SRQ. infinihost 3.12, 4.8.

use super::super::hcr::Command;
use super::super::{InfiniHost, Params};
use super::Done;
use super::system::RESERVED;
use crate::machine::Bus;
use hca_abi::infinihost::cmd::CmdStatus;
use hca_abi::infinihost::srq::{SrqContext, SrqState};

impl InfiniHost {
    fn srqn(&self, command: &Command) -> Result<u32, CmdStatus> {
        let srqs = self.params().map_or(0, Params::srqs);
        Self::object(command.input_modifier, srqs, RESERVED)
    }

    pub(super) fn sw2hw_srq(&mut self, bus: &mut dyn Bus, command: &Command) -> Done {
        let srqn = self.srqn(command)?;
        let context: SrqContext = self.input(bus, command)?;
        if self.srqs.contains(srqn) {
            return Err(CmdStatus::BAD_RES_STATE);
        }
        let pages = self.params().map_or(0, Params::uar_pages);
        if context.wqe_size() == 0 || context.uar_page() >= pages {
            return Err(CmdStatus::BAD_PARAM);
        }
        self.srqs.create(srqn, context);
        Ok(None)
    }

    /// One that software owns already is as good as taken back.
    pub(super) fn hw2sw_srq(&mut self, bus: &mut dyn Bus, command: &Command) -> Done {
        let srqn = self.srqn(command)?;
        if let Some(qpn) = self.qps.user_of_srq(srqn) {
            bus.report(format_args!(
                "SRQ {srqn:#x} is taken back, and QP {qpn:#x} still has it"
            ));
        }
        let mut none = SrqContext::ZERO;
        none.set_state(SrqState::SOFTWARE);
        let context = self.srqs.destroy(srqn).unwrap_or(none);
        self.output(bus, command, &context)
    }

    pub(super) fn query_srq(&mut self, bus: &mut dyn Bus, command: &Command) -> Done {
        let srqn = self.srqn(command)?;
        let srq = self.srqs.get(srqn).ok_or(CmdStatus::BAD_RES_STATE)?;
        let context = srq.context();
        self.output(bus, command, &context)
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
