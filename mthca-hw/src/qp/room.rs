//! Where requests that go straight are written: the entries of a work queue that are free, for the length of a call.

use super::place::Half;
use crate::inner::Inner;
use crate::records::RecordRing;
use core_ib::platform::{DmaRing, Platform, RingEntry, RingView};

/// See the module. WQEs have `N` words at least.
#[derive(Clone, Copy)]
pub(super) struct Room<'q, const N: usize> {
    pub ring: RingView<'q, N>,
    pub records: RecordRing<'q>,
    /// Count of the next request.
    pub posted: u32,
    /// Count of the first that there is no entry for.
    full: u32,
    /// The WQE before the next.
    pub before: RingEntry<'q, N>,
}

impl<'q, const N: usize> Room<'q, N> {
    /// Behind the first `posted` requests of a queue that may go `straight`; `None` if it may not, or there is no entry, or
    /// the HCA has ended.
    #[inline(always)]
    pub fn open<'p, P: Platform>(
        core: &'q Inner<'p, P>,
        half: &Half,
        memory: &'q Option<DmaRing<'p, P>>,
        straight: bool,
        posted: u32,
    ) -> Option<Self> {
        let ring = memory.as_ref()?.view::<N>()?;
        if !straight || !core.cmd.health().is_alive() {
            return None;
        }
        // One WQE is never used: infinihost 5.1.
        let full = half.retired().wrapping_add(ring.mask());
        (posted != full).then_some(Self {
            ring,
            records: half.ring(ring.mask(), &core.records)?,
            posted,
            full,
            before: ring.at(posted.wrapping_sub(1)),
        })
    }

    /// Is there none left?
    #[inline(always)]
    pub const fn is_full(&self) -> bool {
        self.posted == self.full
    }

    /// The next WQE.
    #[inline(always)]
    pub fn wqe(&self) -> RingEntry<'q, N> {
        self.ring.at(self.posted)
    }

    /// The next one is written: this is it.
    #[inline(always)]
    pub const fn advance(&mut self, wqe: RingEntry<'q, N>) {
        self.before = wqe;
        self.posted = self.posted.wrapping_add(1);
    }
}
