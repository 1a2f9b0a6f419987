//! Places for work requests: what the driver remembers of each WQE outstanding.
//!
//! One table for all queues of the HCA, shared out in extents. It is in the driver's own memory and not beside the
//! WQEs, so that the HCA cannot change what a completion reports. Entries are atomic: the poster writes them under its
//! queue's lock, the poller of a CQ reads them under that of the CQ.

use crate::extents::{Extent, Extents};
use crate::sync::{AtomicU32, AtomicU64};
use core::marker::PhantomData;
use core::sync::atomic::Ordering::Relaxed;
use core_ib::platform::{Platform, PlatformError, Table};
use core_ib::verbs::VerbsError;

/// What is remembered of one WQE.
#[derive(Debug, Default)]
pub struct Record {
    /// As given when posting.
    pub wr_id: AtomicU64,
    /// Send queue: the link to this WQE waits for a doorbell (1) or not (0). SRQ: the next free WQE, or that it is in
    /// use.
    pub link: AtomicU32,
}

/// All places.
pub struct Records<'p, P: Platform> {
    table: Table<'p, Record, P>,
    space: Extents<'p, P>,
}

impl<'p, P: Platform> Records<'p, P> {
    /// `count` places, the profile's `work_requests`. Set-up only.
    pub fn new(machine: &'p P, count: u32) -> Result<Self, PlatformError> {
        Ok(Self {
            table: Table::new(machine, count as usize, |_| Record::default())?,
            space: Extents::new(machine, 0, count, "work_requests")?,
        })
    }

    /// Places for a queue of `count`. Control context.
    pub fn take(&self, count: u32) -> Result<Extent, VerbsError> {
        self.space.take(count)
    }

    /// Places that no queue has.
    pub fn room(&self) -> u32 {
        self.space.room()
    }

    /// Gives them back. Control context.
    pub fn give(&self, places: Extent) {
        for index in places.first..places.first.saturating_add(places.len()) {
            if let Some(record) = self.table.get(index as usize) {
                record.wr_id.store(0, Relaxed);
                record.link.store(0, Relaxed);
            }
        }
        self.space.give(places);
    }

    /// The `mask + 1` places of a queue (a power of two), from `first` on. `None` if there are not so many.
    #[inline(always)]
    pub fn ring(&self, first: u32, mask: u32) -> Option<RecordRing<'_>> {
        let places: &[Record] = &self.table;
        let last = u64::from(first) + u64::from(mask);
        (last < places.len() as u64).then_some(RecordRing {
            first: places.as_ptr().wrapping_add(first as usize),
            mask,
            table: PhantomData,
        })
    }

    /// Place `index`.
    #[inline]
    pub fn get(&self, index: u32) -> Option<&Record> {
        self.table.get(index as usize)
    }
}

/// The places of one queue, for the length of a call. That they are in the table was checked when this was made: a masked
/// counter cannot leave them.
#[derive(Clone, Copy)]
pub struct RecordRing<'r> {
    first: *const Record,
    mask: u32,
    table: PhantomData<&'r Record>,
}

impl<'r> RecordRing<'r> {
    /// Place `index`, if there are as many.
    #[inline(always)]
    pub fn get(self, index: u32) -> Option<&'r Record> {
        if index > self.mask {
            return None;
        }
        // SAFETY: one of the `mask + 1` places behind `first`, as for `at`.
        Some(unsafe { &*self.first.add(index as usize) })
    }

    /// Places less one: a power of two less one.
    #[inline(always)]
    pub const fn mask(self) -> u32 {
        self.mask
    }

    /// That of request `counter`, which runs free.
    #[inline(always)]
    pub fn at(self, counter: u32) -> &'r Record {
        // SAFETY: `first` has `mask + 1` places behind it in the table (checked by `Records::ring`), which is borrowed for
        // as long as this lives, and which is shared: places are atomic.
        unsafe { &*self.first.add((counter & self.mask) as usize) }
    }
}
