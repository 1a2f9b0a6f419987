//! The translation table: which pages a region has. infinihost 4.10.
//!
//! Entries are stored directly, ahead of the command that makes the region valid: to host memory in M-mode, to attached
//! memory where that can be reached, one 64-bit store each; else by WRITE_MTT.

use crate::cmd::table::WriteMtt;
use crate::cmd::{Channel, CmdError};
use crate::extents::{Extent, Extents};
use crate::icm::{Icm, Kind};
use crate::inner::Inner;
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

    /// Entries that no region has.
    pub fn room(&self) -> u32 {
        self.segments.room().saturating_mul(SEGMENT_PAGES)
    }

    /// Gives room back, of a region that the HCA knows no more. Control context.
    pub fn give(&self, room: Extent) {
        self.segments.give(room);
    }

    /// Address of the first entry of `room`.
    pub const fn address(&self, room: Extent) -> u64 {
        self.base.wrapping_add(room.first as u64 * SEGMENT)
    }

    /// Stores `pages` from the first entry of `room` on, where the table can be reached; else nothing. Any context;
    /// never blocks.
    pub fn store(&self, lent: Option<&Icm<'p, P>>, room: Extent, pages: impl Iterator<Item = u64>) {
        let first = u64::from(room.first) * u64::from(SEGMENT_PAGES);
        let limit = u64::from(room.len()) * u64::from(SEGMENT_PAGES);
        if let Some(icm) = lent {
            for (index, page) in (first..first + limit).zip(pages) {
                // There is memory behind what was taken, and the place is within it.
                if let Some((memory, at)) = icm.translation(index) {
                    let _ = memory.write(at, &Mtt::page(page));
                }
            }
        } else if let Some(window) = &self.window {
            let at = room.first as usize * SEGMENT as usize;
            for (index, page) in (0..limit as usize).zip(pages) {
                window.write_be64(at + index * size_of::<Mtt>(), Mtt::page(page).to_bits());
            }
        }
    }

    /// Stores `pages` from the first entry of `room` on. Control context; may block.
    pub fn write(
        &self,
        lent: Option<&Icm<'p, P>>,
        cmd: &Channel<'p, P>,
        look: &dyn Fn(),
        room: Extent,
        mut pages: impl Iterator<Item = u64>,
    ) -> Result<(), CmdError> {
        let first = self.address(room);
        let limit = u64::from(room.len()) * u64::from(SEGMENT_PAGES);
        if lent.is_some() || self.window.is_some() {
            self.store(lent, room, pages);
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

impl<P: Platform> Inner<'_, P> {
    /// Room for `pages` entries, with pages behind it. Control context; may block.
    pub fn take_mtts(&self, pages: u64) -> Result<Extent, VerbsError> {
        let room = self.mtt.take(pages)?;
        let backed = self.back(Kind::Mtt, room.first, room.len());
        backed.map(|()| room).inspect_err(|_| self.mtt.give(room))
    }

    /// Stores `pages` from the first entry of `room` on. Control context; may block.
    pub fn write_mtts(
        &self,
        room: Extent,
        pages: impl Iterator<Item = u64>,
    ) -> Result<(), CmdError> {
        let (lent, look) = (self.icm.as_ref(), || self.look());
        self.mtt.write(lent, &self.cmd, &look, room, pages)
    }
}
