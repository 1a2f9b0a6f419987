//! READ_MGM, WRITE_MGM, MGID_HASH. infinihost 3.14.

use super::super::InfiniHost;
use super::super::hcr::Command;
use super::super::mcg::{MAX_ENTRY, bucket};
use super::Done;
use crate::machine::Bus;
use hca_abi::infinihost::cmd::CmdStatus;
use zerocopy::IntoBytes;

impl InfiniHost {
    pub(super) fn read_mgm(&mut self, bus: &mut dyn Bus, command: &Command) -> Done {
        let place = self.group_entry(command.input_modifier);
        let (at, len) = place.ok_or(CmdStatus::BAD_INDEX)?;
        let mut entry = [0; MAX_ENTRY];
        let entry = entry.get_mut(..len).unwrap_or_default();
        let read = self.chip.memory.table_read(bus, at, entry);
        read.map_err(|_| CmdStatus::INTERNAL_ERR)?;
        self.output(bus, command, &*entry)
    }

    pub(super) fn write_mgm(&mut self, bus: &mut dyn Bus, command: &Command) -> Done {
        let place = self.group_entry(command.input_modifier);
        let (at, len) = place.ok_or(CmdStatus::BAD_INDEX)?;
        let mut entry = [0; MAX_ENTRY];
        let entry = entry.get_mut(..len).unwrap_or_default();
        let read = self
            .chip
            .memory
            .read(bus, command.in_param, entry.as_mut_bytes());
        read.map_err(|_| CmdStatus::BAD_PARAM)?;
        let written = self.chip.memory.table_write(bus, at, entry);
        written.map_err(|_| CmdStatus::INTERNAL_ERR)?;
        Ok(None)
    }

    pub(super) fn mgid_hash(&mut self, bus: &mut dyn Bus, command: &Command) -> Done {
        let mgid: [u8; 16] = self.input(bus, command)?;
        let params = self.params().ok_or(CmdStatus::BAD_SYS_STATE)?;
        Ok(Some(u64::from(bucket(mgid, params.mc_buckets))))
    }
}
