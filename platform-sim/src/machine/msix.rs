//! MSI-X of a PCI function: capability, table of messages, masks and pending bits.
//!
//! Owned by the function, which keeps the table in one of its BARs and calls [`Msix::raise`]; a masked message waits
//! in its pending bit and goes out when the last mask falls.

use super::{Bus, ConfigSpace, Message};

/// Capability ID.
const ID: u8 = 0x11;
/// Bytes of a table entry.
const ENTRY: u64 = 16;
/// Message control: MSI-X is in use (and the pin is not).
const ENABLE: u16 = 1 << 15;
/// Message control: every message is masked.
const FUNCTION_MASK: u16 = 1 << 14;

#[derive(Clone, Copy, Debug)]
struct Entry {
    address: u64,
    data: u32,
    control: u32,
    pending: bool,
}

impl Entry {
    const AT_RESET: Self = Self {
        address: 0,
        data: 0,
        control: 1,
        pending: false,
    };

    const fn masked(&self) -> bool {
        self.control & 1 != 0
    }
}

/// The table and its state.
#[derive(Clone, Debug)]
pub struct Msix {
    capability: u16,
    bar: u8,
    table: u64,
    pending: u64,
    entries: Vec<Entry>,
}

impl Msix {
    /// Adds the capability to `config` at `at`, for `count` messages whose table lies in BAR `bar` at `table`, and
    /// the pending bits at `pending` (multiples of 8). For makers of models.
    ///
    /// # Panics
    ///
    /// If there are no messages or more than 2048, or the capability does not fit.
    pub fn new(
        config: &mut ConfigSpace,
        at: u8,
        count: u16,
        bar: u8,
        table: u32,
        pending: u32,
    ) -> Self {
        assert!(
            (1..=2048).contains(&count),
            "MSI-X has 1 to 2048 messages, not {count}"
        );
        let mut body = [0; 10];
        let mut writable = [0; 10];
        body[0..2].copy_from_slice(&(count - 1).to_le_bytes());
        body[2..6].copy_from_slice(&(table | u32::from(bar)).to_le_bytes());
        body[6..10].copy_from_slice(&(pending | u32::from(bar)).to_le_bytes());
        writable[0..2].copy_from_slice(&(ENABLE | FUNCTION_MASK).to_le_bytes());
        config.add_capability(at, ID, &body, &writable);
        Self {
            capability: u16::from(at),
            bar,
            table: u64::from(table),
            pending: u64::from(pending),
            entries: vec![Entry::AT_RESET; usize::from(count)],
        }
    }

    /// How many messages there are.
    pub fn count(&self) -> u16 {
        self.entries.len() as u16
    }

    /// Software uses messages, and not the pin.
    pub fn enabled(&self, config: &ConfigSpace) -> bool {
        config.u16(self.capability + 2) & ENABLE != 0
    }

    /// Is this place of a BAR ours?
    pub fn covers(&self, bar: u8, offset: u64) -> bool {
        let bits = (self.entries.len() as u64).div_ceil(64) * 8;
        let table = self.table..self.table + self.entries.len() as u64 * ENTRY;
        let pending = self.pending..self.pending + bits;
        bar == self.bar && (table.contains(&offset) || pending.contains(&offset))
    }

    fn word(&self, offset: u64) -> Option<u32> {
        if let Some(inside) = offset.checked_sub(self.table)
            && let Some(entry) = self.entries.get((inside / ENTRY) as usize)
        {
            return match inside % ENTRY {
                0 => Some(entry.address as u32),
                4 => Some((entry.address >> 32) as u32),
                8 => Some(entry.data),
                12 => Some(entry.control),
                _ => None,
            };
        }
        let inside = offset.checked_sub(self.pending)?;
        if !inside.is_multiple_of(4) {
            return None;
        }
        let first = (inside * 8) as usize;
        let entries = self.entries.iter().skip(first).take(32).enumerate();
        Some(entries.fold(0, |bits, (index, entry)| {
            bits | u32::from(entry.pending) << index
        }))
    }

    /// Loads 4 or 8 bytes (little-endian, as all of PCI) at `offset` of the BAR; other widths read as all ones.
    pub fn mmio_read(&self, offset: u64, data: &mut [u8]) {
        let (words, rest) = data.as_chunks_mut::<4>();
        for (at, word) in (offset..).step_by(4).zip(words) {
            *word = self.word(at).unwrap_or(!0).to_le_bytes();
        }
        rest.fill(0xff);
    }

    /// Stores 4 or 8 bytes; other widths, and stores to the pending bits, are lost. Clearing a mask sends what was
    /// pending.
    pub fn mmio_write(
        &mut self,
        config: &ConfigSpace,
        bus: &mut dyn Bus,
        offset: u64,
        data: &[u8],
    ) {
        let (words, _) = data.as_chunks::<4>();
        for (at, word) in (offset..).step_by(4).zip(words) {
            let word = u32::from_le_bytes(*word);
            let Some(inside) = at.checked_sub(self.table) else {
                continue;
            };
            let Some(entry) = self.entries.get_mut((inside / ENTRY) as usize) else {
                continue;
            };
            match inside % ENTRY {
                0 => entry.address = entry.address & !0xffff_ffff | u64::from(word & !3),
                4 => entry.address = entry.address & 0xffff_ffff | u64::from(word) << 32,
                8 => entry.data = word,
                12 => entry.control = word & 1,
                _ => {}
            }
        }
        self.send_pending(config, bus);
    }

    /// To be called after every store to configuration space: a fallen function mask, or a function that is bus
    /// master again, sends what was pending.
    pub fn config_written(&mut self, config: &ConfigSpace, bus: &mut dyn Bus) {
        self.send_pending(config, bus);
    }

    /// Message `vector` is to go out: now if nothing masks it, else when nothing does. False if there is no such
    /// message, or MSI-X is not in use.
    pub fn raise(&mut self, config: &ConfigSpace, bus: &mut dyn Bus, vector: u16) -> bool {
        let open = self.open(config);
        let enabled = self.enabled(config);
        let Some(entry) = self.entries.get_mut(usize::from(vector)) else {
            return false;
        };
        if open && !entry.masked() {
            bus.message(Message {
                address: entry.address,
                data: entry.data,
            });
        } else if enabled {
            entry.pending = true;
        }
        enabled
    }

    /// Nothing but an entry's own mask holds messages back.
    fn open(&self, config: &ConfigSpace) -> bool {
        let control = config.u16(self.capability + 2);
        control & ENABLE != 0 && control & FUNCTION_MASK == 0 && config.bus_master()
    }

    fn send_pending(&mut self, config: &ConfigSpace, bus: &mut dyn Bus) {
        if !self.open(config) {
            return;
        }
        for entry in &mut self.entries {
            if entry.pending && !entry.masked() {
                entry.pending = false;
                bus.message(Message {
                    address: entry.address,
                    data: entry.data,
                });
            }
        }
    }

    /// All masked, nothing pending. The capability is reset with the configuration space.
    pub fn reset(&mut self) {
        self.entries.fill(Entry::AT_RESET);
    }
}
