//! The memory that an M-mode HCA is lent: MAP_FA, RUN_FW, ENABLE_LAM, SET_ICM_SIZE, MAP_ICM, MAP_ICM_AUX, and what undoes
//! them. infinihost 3.10.

use super::super::hcr::Command;
use super::super::icm::{AUX_PAGES, FIRMWARE_PAGES, Icm, MAX};
use super::super::{InfiniHost, System};
use super::Done;
use crate::machine::Bus;
use hca_abi::infinihost::cmd::CmdStatus;
use hca_abi::infinihost::vpm::VpmEntry;
use zerocopy::IntoBytes;

/// Entries that fit a mailbox.
const MAX_ENTRIES: usize = 4096 / size_of::<VpmEntry>();

impl InfiniHost {
    /// There is a map in M-mode, and the commands of this file are known there alone.
    fn icm(&mut self) -> Result<&mut Icm, CmdStatus> {
        let icm = self.chip.memory.icm_mut();
        icm.ok_or(CmdStatus::BAD_SYS_STATE)
    }

    /// The blocks that a mailbox lists. No more of it is read than they take.
    fn blocks(&self, bus: &mut dyn Bus, command: &Command) -> Result<Vec<VpmEntry>, CmdStatus> {
        let count = command.input_modifier as usize;
        if count > MAX_ENTRIES {
            return Err(CmdStatus::EXCEED_LIM);
        }
        let mut entries = vec![VpmEntry::ZERO; count];
        let bytes = entries.as_mut_slice().as_mut_bytes();
        let read = self.chip.memory.read(bus, command.in_param, bytes);
        match read {
            Ok(()) => Ok(entries),
            Err(fault) => {
                bus.report(format_args!("{:?}: input mailbox: {fault}", command.opcode));
                Err(CmdStatus::BAD_PARAM)
            }
        }
    }

    pub(super) fn map_fa(&mut self, bus: &mut dyn Bus, command: &Command) -> Done {
        let blocks = self.blocks(bus, command)?;
        self.icm()?.firmware.map(&blocks)?;
        Ok(None)
    }

    /// Firmware without all its pages does not start.
    pub(super) fn run_fw(&mut self, _bus: &mut dyn Bus, _command: &Command) -> Done {
        if self.icm()?.firmware.pages() < u64::from(FIRMWARE_PAGES) {
            return Err(CmdStatus::BAD_SYS_STATE);
        }
        self.system = System::Enabled;
        Ok(None)
    }

    /// Back to power-on. What is still mapped then is forgotten, and told.
    pub(super) fn unmap_fa(&mut self, bus: &mut dyn Bus, _command: &Command) -> Done {
        self.stop(bus);
        let icm = self.icm()?;
        let left = icm.mapped_pages() + icm.aux.pages();
        *icm = Icm::default();
        self.system = System::PowerOn;
        if left != 0 {
            bus.report(format_args!(
                "UNMAP_FA: {left} pages of ICM and auxiliary memory are still mapped"
            ));
        }
        Ok(None)
    }

    /// No card of this mode here has memory of its own.
    pub(super) fn enable_lam(&mut self, _bus: &mut dyn Bus, _command: &Command) -> Done {
        Err(CmdStatus::LAM_NOT_PRE)
    }

    /// Linux sends SYS_DIS for it. infinihost 3.5.
    pub(super) fn disable_lam(&mut self, _bus: &mut dyn Bus, _command: &Command) -> Done {
        Ok(None)
    }

    pub(super) fn set_icm_size(&mut self, _bus: &mut dyn Bus, command: &Command) -> Done {
        if command.in_param > MAX {
            return Err(CmdStatus::EXCEED_LIM);
        }
        Ok(Some(AUX_PAGES))
    }

    pub(super) fn map_icm_aux(&mut self, bus: &mut dyn Bus, command: &Command) -> Done {
        let blocks = self.blocks(bus, command)?;
        self.icm()?.aux.map(&blocks)?;
        Ok(None)
    }

    pub(super) fn unmap_icm_aux(&mut self, _bus: &mut dyn Bus, _command: &Command) -> Done {
        self.icm()?.aux = Default::default();
        Ok(None)
    }

    /// Anywhere within the space, also beyond what SET_ICM_SIZE was told.
    pub(super) fn map_icm(&mut self, bus: &mut dyn Bus, command: &Command) -> Done {
        let blocks = self.blocks(bus, command)?;
        self.icm()?.map(&blocks)?;
        Ok(None)
    }

    pub(super) fn unmap_icm(&mut self, _bus: &mut dyn Bus, command: &Command) -> Done {
        let pages = u64::from(command.input_modifier);
        self.icm()?.unmap(command.in_param, pages);
        Ok(None)
    }
}
