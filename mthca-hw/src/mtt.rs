//! The translation table: which pages a region has. infinihost 4.10.
//!
//! Entries are stored directly where attached memory can be reached, one 64-bit store each, ahead of the command that
//! makes the region valid; else by WRITE_MTT.

use crate::cmd::table::WriteMtt;
use crate::cmd::{Channel, CmdError};
use crate::extents::{Extent, Extents};
use crate::plan::{Plan, SEGMENT, SEGMENT_PAGES};
use core_ib::platform::{Caching, Platform, PlatformError, Registers};
use core_ib::verbs::VerbsError;
use hca_abi::infinihost::mtt::Mtt;
use hca_abi::infinihost::pci::BAR_DDR;

/// The table.
pub struct MttTable<'p, P: Platform> {
    /// Segments.
    segments: Extents<'p, P>,
    window: Option<P::Registers>,
    base: u64,
}

impl<'p, P: Platform> MttTable<'p, P> {
    /// The table that `plan` lays out. `ddr` is the address of attached memory, if BAR 4 shows it. Set-up only.
    pub fn new(machine: &'p P, plan: &Plan, ddr: Option<u64>) -> Result<Self, PlatformError> {
        let bytes = u64::from(plan.segments).saturating_mul(SEGMENT);
        let base = plan.tables.mtt;
        let window = match ddr {
            Some(start) => {
                let at = base.wrapping_sub(start);
                Some(machine.map(BAR_DDR, at, bytes as usize, Caching::Uncached)?)
            }
            None => None,
        };
        let segments = Extents::new(machine, plan.first_segment, plan.segments, "mtt_pages")?;
        Ok(Self {
            segments,
            window,
            base,
        })
    }

    /// Room for `pages` entries. Control context.
    pub fn take(&self, pages: u64) -> Result<Extent, VerbsError> {
        let segments = pages.div_ceil(u64::from(SEGMENT_PAGES));
        // What is too much for 32 bits is too much for any table.
        self.segments
            .take(u32::try_from(segments).unwrap_or(u32::MAX >> 1))
    }

    /// Gives room back, of a region that the HCA knows no more. Control context.
    pub fn give(&self, room: Extent) {
        self.segments.give(room);
    }

    /// Address of the first entry of `room`.
    pub const fn address(&self, room: Extent) -> u64 {
        self.base.wrapping_add(room.first as u64 * SEGMENT)
    }

    /// Stores `pages` from the first entry of `room` on, where attached memory can be reached; else nothing. Any
    /// context; never blocks.
    pub fn store(&self, room: Extent, pages: impl Iterator<Item = u64>) {
        let at = self.address(room).wrapping_sub(self.base) as usize;
        let limit = room.len() as usize * SEGMENT_PAGES as usize;
        if let Some(window) = &self.window {
            for (index, page) in (0..limit).zip(pages) {
                window.write_be64(at + index * size_of::<Mtt>(), Mtt::page(page).to_bits());
            }
        }
    }

    /// Stores `pages` from the first entry of `room` on. Control context; may block.
    pub fn write(
        &self,
        cmd: &Channel<'p, P>,
        look: &dyn Fn(),
        room: Extent,
        mut pages: impl Iterator<Item = u64>,
    ) -> Result<(), CmdError> {
        let first = self.address(room);
        let limit = u64::from(room.len()) * u64::from(SEGMENT_PAGES);
        if self.window.is_some() {
            self.store(room, pages);
            return Ok(());
        }
        let mut at = 0;
        loop {
            let mut command = WriteMtt::at(first.wrapping_add(at * size_of::<Mtt>() as u64));
            while at < limit && command.has_room() {
                let Some(page) = pages.next() else { break };
                command.push(Mtt::page(page));
                at += 1;
            }
            if command.is_empty() {
                return Ok(());
            }
            cmd.execute(&command, look)?;
        }
    }
}
