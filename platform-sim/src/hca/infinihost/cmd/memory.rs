//! Protection and translation entries: SW2HW_MPT, HW2SW_MPT, QUERY_MPT, READ_MTT, WRITE_MTT. infinihost 3.12, 4.9.

use super::super::hcr::Command;
use super::super::{InfiniHost, Params};
use super::Done;
use super::system::RESERVED_MPTS;
use crate::machine::Bus;
use hca_abi::infinihost::cmd::{CmdStatus, Hw2SwMpt};
use hca_abi::infinihost::mpt::{Mpt, MptStatus};
use hca_abi::infinihost::mtt::{Mtt, WriteMttHeader};
use zerocopy::IntoBytes;

/// Entries that fit an input mailbox of 4096 bytes behind the header.
const MAX_WRITE: usize = (4096 - 16) / 8;
/// Entries that fit the 512 bytes of an output mailbox.
const MAX_READ: usize = 512 / 8;

impl InfiniHost {
    fn mpt_index(&self, command: &Command) -> Result<u32, CmdStatus> {
        let mpts = self.params().map_or(0, Params::mpts);
        Self::object(command.input_modifier, mpts, RESERVED_MPTS)
    }

    pub(super) fn sw2hw_mpt(&mut self, bus: &mut dyn Bus, command: &Command) -> Done {
        let index = self.mpt_index(command)?;
        let mut entry: Mpt = self.input(bus, command)?;
        let (keys, memory) = (&self.chip.keys, &self.chip.memory);
        if keys.is_handed_over(index) {
            // One that software took back by a store, as it does with fast regions, may be handed over anew.
            let old = keys.entry(memory, bus, index);
            let old = old.map_err(|_| CmdStatus::INTERNAL_ERR)?;
            if old.status() == MptStatus::HARDWARE {
                return Err(CmdStatus::BAD_RES_STATE);
            }
        }
        let mpts = self.params().map_or(0, Params::mpts);
        if entry.key() & mpts.wrapping_sub(1) != index {
            return Err(CmdStatus::BAD_PARAM);
        }
        if entry.region() {
            entry.set_window_count(0);
        } else {
            // A window is bound by a bind request and in no other way.
            entry.set_lkey(0).set_start(0).set_length(0);
        }
        let stored = self
            .chip
            .keys
            .hand_over(&mut self.chip.memory, bus, index, entry);
        stored.map_err(|_| CmdStatus::INTERNAL_ERR)?;
        Ok(None)
    }

    /// One that software owns already is as good as taken back; a region with windows is kept.
    pub(super) fn hw2sw_mpt(&mut self, bus: &mut dyn Bus, command: &Command) -> Done {
        let index = self.mpt_index(command)?;
        let (keys, memory) = (&self.chip.keys, &self.chip.memory);
        if keys.is_handed_over(index) {
            let entry = keys.entry(memory, bus, index);
            let entry = entry.map_err(|_| CmdStatus::INTERNAL_ERR)?;
            if entry.region() && entry.window_count() != 0 {
                return Err(CmdStatus::REG_BOUND);
            }
            if !entry.region() {
                let unbound = self.chip.unbind(bus, &entry);
                unbound.map_err(|_| CmdStatus::INTERNAL_ERR)?;
            }
        }
        let taken = self.chip.keys.take_back(&mut self.chip.memory, bus, index);
        let entry = taken.map_err(|_| CmdStatus::INTERNAL_ERR)?;
        if command.opcode_modifier == Hw2SwMpt::WithEntry as u8 {
            return self.output(bus, command, &entry);
        }
        Ok(None)
    }

    pub(super) fn query_mpt(&mut self, bus: &mut dyn Bus, command: &Command) -> Done {
        let index = self.mpt_index(command)?;
        let entry = self.chip.keys.entry(&self.chip.memory, bus, index);
        let entry = entry.map_err(|_| CmdStatus::INTERNAL_ERR)?;
        self.output(bus, command, &entry)
    }

    /// Translations lie between the base of their table (and what is reserved there) and the end of where tables may be.
    fn check_mtts(&self, address: u64, count: usize) -> Result<(), CmdStatus> {
        let params = self.params().ok_or(CmdStatus::BAD_SYS_STATE)?;
        let base = params.raw.mtt_base();
        let first = base.saturating_add(params.reserved_mtts());
        let end = address
            .checked_add(count as u64 * 8)
            .ok_or(CmdStatus::BAD_PARAM)?;
        if !address.is_multiple_of(8) || address < first || end > params.space.end {
            return Err(CmdStatus::BAD_PARAM);
        }
        Ok(())
    }

    pub(super) fn write_mtt(&mut self, bus: &mut dyn Bus, command: &Command) -> Done {
        let header: WriteMttHeader = self.input(bus, command)?;
        let count = command.input_modifier as usize;
        if count > MAX_WRITE {
            return Err(CmdStatus::EXCEED_LIM);
        }
        self.check_mtts(header.address(), count)?;
        let mut entries = [Mtt::ZERO; MAX_WRITE];
        let entries = entries.get_mut(..count).unwrap_or_default();
        let from = command
            .in_param
            .wrapping_add(size_of::<WriteMttHeader>() as u64);
        let read = self.chip.memory.read(bus, from, entries.as_mut_bytes());
        read.map_err(|_| CmdStatus::BAD_PARAM)?;
        let written = self
            .chip
            .memory
            .table_write(bus, header.address(), entries.as_bytes());
        written.map_err(|_| CmdStatus::BAD_PARAM)?;
        Ok(None)
    }

    pub(super) fn read_mtt(&mut self, bus: &mut dyn Bus, command: &Command) -> Done {
        let count = command.input_modifier as usize;
        if count > MAX_READ {
            return Err(CmdStatus::EXCEED_LIM);
        }
        self.check_mtts(command.in_param, count)?;
        let mut entries = [Mtt::ZERO; MAX_READ];
        let entries = entries.get_mut(..count).unwrap_or_default();
        let read = self
            .chip
            .memory
            .table_read(bus, command.in_param, entries.as_mut_bytes());
        read.map_err(|_| CmdStatus::BAD_PARAM)?;
        self.output(bus, command, &*entries)
    }
}
