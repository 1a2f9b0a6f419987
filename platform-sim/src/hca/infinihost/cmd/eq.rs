//! SW2HW_EQ, HW2SW_EQ, QUERY_EQ, MAP_EQ. infinihost 3.12, 4.1, 4.2.

use super::super::eq::MAX_LOG_SIZE;
use super::super::hcr::Command;
use super::super::variant::Mode;
use super::super::{InfiniHost, Params};
use super::Done;
use crate::machine::Bus;
use hca_abi::infinihost::cmd::{CmdStatus, MapEqModifier};
use hca_abi::infinihost::eq::{EqContext, QueueStatus};

impl InfiniHost {
    fn eqn(&self, command: &Command) -> Result<u8, CmdStatus> {
        let eqs = self.params().map_or(0, Params::eqs);
        Ok(Self::object(command.input_modifier, eqs, 0)? as u8)
    }

    pub(super) fn sw2hw_eq(&mut self, bus: &mut dyn Bus, command: &Command) -> Done {
        let eqn = self.eqn(command)?;
        let mut context: EqContext = self.input(bus, command)?;
        if self.events.contains(eqn) {
            return Err(CmdStatus::BAD_RES_STATE);
        }
        if context.log_size() > MAX_LOG_SIZE {
            return Err(CmdStatus::EXCEED_LIM);
        }
        let pages = self.params().map_or(0, Params::uar_pages);
        let interrupt = matches!(context.intr(), 0..64 | 0x80..0xc0);
        if context.log_size() == 0 || !interrupt || context.uar_page() >= pages {
            return Err(CmdStatus::BAD_PARAM);
        }
        let params = self.params().ok_or(CmdStatus::BAD_SYS_STATE)?;
        self.backed(bus, params.raw.eqc_base(), eqn.into(), 64)?;
        context.set_status(QueueStatus::OK);
        if self.mode() == Mode::T {
            context.set_m_pd(0); // counts lost events there
        }
        self.events.create(self.mode(), eqn, context);
        Ok(None)
    }

    /// One that software owns already is as good as taken back.
    pub(super) fn hw2sw_eq(&mut self, bus: &mut dyn Bus, command: &Command) -> Done {
        let eqn = self.eqn(command)?;
        let context = self.events.destroy(eqn).unwrap_or_default();
        self.output(bus, command, &context)
    }

    pub(super) fn query_eq(&mut self, bus: &mut dyn Bus, command: &Command) -> Done {
        let eqn = self.eqn(command)?;
        let context = self.events.query(eqn).ok_or(CmdStatus::BAD_RES_STATE)?;
        self.output(bus, command, &context)
    }

    pub(super) fn map_eq(&mut self, _bus: &mut dyn Bus, command: &Command) -> Done {
        let MapEqModifier { eqn, unmap } = MapEqModifier::decode(command.input_modifier);
        if u32::from(eqn) >= self.params().map_or(0, Params::eqs) {
            return Err(CmdStatus::BAD_INDEX);
        }
        if !unmap && !self.events.contains(eqn) {
            return Err(CmdStatus::BAD_RES_STATE);
        }
        self.events.map(command.in_param, eqn, unmap);
        Ok(None)
    }
}
