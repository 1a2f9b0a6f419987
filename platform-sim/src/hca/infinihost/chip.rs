//! What every object of the HCA stands on: its PCI side, its memory, its keys, and where it writes down what is wrong.

use super::catas::Catas;
use super::memory::Memory;
use super::mpt::{AccessError, Key, KeyTable};
use super::record::Records;
use crate::machine::{Bus, Ledger, PciCore};

/// Owned by the model, lent to its objects for each call.
pub struct Chip {
    /// Configuration space, pin, messages.
    pub pci: PciCore,
    /// Host memory and attached memory.
    pub memory: Memory,
    /// Memory keys.
    pub keys: KeyTable,
    /// Doorbell records (M-mode).
    pub records: Records,
    /// Catastrophic error buffer.
    pub catas: Catas,
    /// What a driver used and nothing here acts on.
    pub ledger: Ledger,
}

impl Chip {
    /// Reads virtual memory with the rights of a local access.
    pub fn read(
        &self,
        bus: &mut dyn Bus,
        key: Key,
        at: u64,
        data: &mut [u8],
    ) -> Result<(), AccessError> {
        self.keys.read(&self.memory, bus, key, at, data)
    }

    /// Writes virtual memory with the rights of a local access.
    pub fn write(
        &mut self,
        bus: &mut dyn Bus,
        key: Key,
        at: u64,
        data: &[u8],
    ) -> Result<(), AccessError> {
        self.keys.write(&mut self.memory, bus, key, at, data)
    }

    /// Writes a queue entry of 32 bytes so that its owner byte is seen last. Without a key `at` is a bus address.
    pub fn write_entry(
        &mut self,
        bus: &mut dyn Bus,
        key: Option<Key>,
        at: u64,
        entry: &[u8; 32],
    ) -> Result<(), AccessError> {
        let Some((body, owner)) = entry.split_last_chunk::<4>() else {
            return Ok(());
        };
        for (at, piece) in [
            (at, body),
            (at.wrapping_add(body.len() as u64), owner.as_slice()),
        ] {
            match key {
                Some(key) => self.write(bus, key, at, piece)?,
                None => self.memory.write(bus, at, piece)?,
            }
        }
        Ok(())
    }

    /// Does a ring of `len` entries of 32 bytes touch any of `bytes` bytes at bus address `at`?
    pub fn ring_touches(
        &self,
        bus: &mut dyn Bus,
        key: Option<Key>,
        (start, len): (u64, u32),
        at: u64,
        bytes: u64,
    ) -> bool {
        let ring = (start, u64::from(len) * 32);
        match key {
            Some(key) => self
                .keys
                .ring_touches(&self.memory, bus, key, ring, at, bytes),
            None => start < at.saturating_add(bytes) && at < start.saturating_add(ring.1),
        }
    }
}
