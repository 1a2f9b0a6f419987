//! The receive queue. verbs 4, infinihost 5.4.
//!
//! The ring is linked once, when it begins: each WQE names the next. Posting writes the entries; in T-mode it says in the
//! WQE before how long they are, every link waits for a doorbell, and a doorbell tells of 256 at most. In M-mode a list
//! shorter than its WQE has an end, and a record says how many WQEs there are: there is no doorbell.

use super::place::{Half, Shape};
use super::send::{SEGMENT, put_entry, put_sges};
use crate::bells::Bell;
use crate::inner::Inner;
use core::sync::atomic::Ordering;
use core_ib::platform::{DmaRing, OutOfBounds, Platform, Words};
use core_ib::verbs::{PostCause, PostError, RecvWr};
use hca_abi::infinihost::doorbell::ReceiveDoorbell;
use hca_abi::infinihost::wqe::{END_OF_LIST_LKEY, UNIT, next};

/// Words of a WQE with a single entry and the end of the list: the shortest has a unit more.
const STRAIGHT_WORDS: usize = 3 * UNIT / 4;
/// Its length as the HCA counts.
const STRAIGHT_UNITS: u8 = 2;

/// Ends a list at word `at`. infinihost 5.5.
#[inline(always)]
fn put_end<const N: usize>(wqe: Words<'_, N>, at: usize) {
    wqe.set(at, 0);
    wqe.set(at + 1, END_OF_LIST_LKEY);
    wqe.set(at + 2, 0);
    wqe.set(at + 3, 0);
}

/// A receive queue. Under the lock of its place.
pub(crate) struct RecvQueue<'p, P: Platform> {
    /// None of a QP that receives through an SRQ, or does not receive.
    pub(super) memory: Option<DmaRing<'p, P>>,
    pub(super) shape: Shape,
    pub(super) posted: u32,
    /// The state allows posting.
    pub(super) open: bool,
    /// Receives come from an SRQ.
    pub(super) shared: bool,
    /// Number in the HCA.
    pub(super) number: u32,
    /// M: its doorbell record.
    pub(super) bell: Bell,
}

impl<P: Platform> Default for RecvQueue<'_, P> {
    fn default() -> Self {
        Self {
            memory: None,
            shape: Shape::default(),
            posted: 0,
            open: false,
            shared: false,
            number: 0,
            bell: Bell::default(),
        }
    }
}

impl<'p, P: Platform> RecvQueue<'p, P> {
    /// Links the ring. Bit 0 of a link says that it is one; in M-mode a link says how long a WQE can be. infinihost 5.4.
    pub(super) fn link_all(&self, mem_free: bool) -> Result<(), OutOfBounds> {
        let Some(memory) = &self.memory else {
            return Ok(());
        };
        for counter in 0..=self.shape.mask {
            let at = self.shape.offset(counter) as usize;
            let following = self.shape.offset(counter.wrapping_add(1));
            let nda = self.shape.base.wrapping_add(following);
            let (mark, nds) = if mem_free {
                (0, self.shape.max_sge.wrapping_add(1))
            } else {
                (1, next::DBD)
            };
            memory.write_be32(at + next::NDA, nda | mark)?;
            memory.write_be32(at + next::NDS, nds)?;
        }
        Ok(())
    }

    /// What was posted is forgotten: the QP was reset.
    pub(super) fn forget(&mut self) {
        self.posted = 0;
        self.open = false;
    }

    /// Posts `wrs` in order; the error names the first that was not. Thread or soft interrupt; never blocks, allocates
    /// or panics. Caller holds this queue's lock.
    #[inline(never)]
    pub(super) fn post(
        &mut self,
        core: &Inner<'p, P>,
        half: &Half,
        wrs: &[RecvWr<'_>],
    ) -> Result<(), PostError> {
        if !self.open || self.shared || !core.cmd.health().is_alive() {
            return self.refuse(core, wrs);
        }
        if core.chip.is_mem_free() {
            return self.post_some::<true>(core, half, wrs);
        }
        if wrs.len() > usize::from(ReceiveDoorbell::MAX_COUNT) {
            return self.post_many(core, half, wrs);
        }
        self.post_some::<false>(core, half, wrs)
    }

    /// In the order of verbs 4.1.
    #[cold]
    #[inline(never)]
    fn refuse(&self, core: &Inner<'p, P>, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        let cause = if core.cmd.health().is_alive() {
            PostCause::InvalidState
        } else {
            PostCause::DeviceFailed
        };
        match wrs {
            [] => Ok(()),
            _ => Err(PostError { index: 0, cause }),
        }
    }

    /// T: more than a doorbell tells of.
    #[cold]
    #[inline(never)]
    fn post_many(
        &mut self,
        core: &Inner<'p, P>,
        half: &Half,
        wrs: &[RecvWr<'_>],
    ) -> Result<(), PostError> {
        let mut before = 0_usize;
        for some in wrs.chunks(usize::from(ReceiveDoorbell::MAX_COUNT)) {
            self.post_some::<false>(core, half, some)
                .map_err(|error| PostError {
                    index: before.saturating_add(error.index),
                    ..error
                })?;
            before = before.saturating_add(some.len());
        }
        Ok(())
    }

    /// As many as a doorbell tells of. Requests of one entry go straight into their WQEs; from the first on that has
    /// more or less, or that there is something against, all go by [`enqueue`](Self::enqueue). `M`: the mode.
    #[inline(always)]
    fn post_some<const M: bool>(
        &mut self,
        core: &Inner<'p, P>,
        half: &Half,
        wrs: &[RecvWr<'_>],
    ) -> Result<(), PostError> {
        let begin = self.posted;
        let straight = self.straight::<M>(core, half, wrs);
        self.posted = begin.wrapping_add(straight);
        if straight as usize != wrs.len() {
            return self.post_rest(core, half, wrs, straight as usize);
        }
        if straight != 0 {
            let nda = self.shape.base.wrapping_add(self.shape.offset(begin));
            self.start(core, half, (nda, STRAIGHT_UNITS), straight);
        }
        Ok(())
    }

    /// Posts all but the first `done` of `wrs`, which were straight, and rings for them all.
    #[cold]
    #[inline(never)]
    fn post_rest(
        &mut self,
        core: &Inner<'p, P>,
        half: &Half,
        wrs: &[RecvWr<'_>],
        done: usize,
    ) -> Result<(), PostError> {
        let begin = self.posted.wrapping_sub(done as u32);
        let nda = self.shape.base.wrapping_add(self.shape.offset(begin));
        let mut first = (done != 0).then_some((nda, STRAIGHT_UNITS));
        let mut result = Ok(());
        for (index, wr) in wrs.iter().enumerate().skip(done) {
            match self.enqueue(core, half, wr) {
                Ok(wqe) => first = first.or(Some(wqe)),
                Err(cause) => {
                    result = Err(PostError { index, cause });
                    break;
                }
            }
        }
        if let Some(first) = first {
            self.start(core, half, first, self.posted.wrapping_sub(begin));
        }
        result
    }

    /// Counts what was written, and rings for it: `count` WQEs, of which the first is at `nda` and has `nds` units.
    #[inline(always)]
    fn start(&self, core: &Inner<'p, P>, half: &Half, (nda, nds): (u32, u8), count: u32) {
        half.count(self.posted);
        core.machine.dma_wmb();
        match &core.bells {
            None => core.uar.ring_receive(ReceiveDoorbell {
                nda,
                nds,
                number: self.number,
                count: count as u16,
            }),
            Some(bells) => bells.count(self.bell, self.posted & 0xffff),
        }
    }

    /// Writes and links the WQEs of `wrs` up to the first that has not one entry, or that there is something against;
    /// how many. Every link waits for a doorbell, so they are to be counted before that and not earlier.
    #[inline(always)]
    fn straight<const M: bool>(&self, core: &Inner<'p, P>, half: &Half, wrs: &[RecvWr<'_>]) -> u32 {
        let ring = self
            .memory
            .as_ref()
            .and_then(DmaRing::view::<STRAIGHT_WORDS>);
        let Some(ring) = ring.filter(|_| self.shape.max_sge > 0) else {
            return 0;
        };
        let begin = self.posted;
        let room = self
            .shape
            .mask
            .saturating_sub(begin.wrapping_sub(half.retired()));
        let mut posted = begin;
        for wr in wrs.iter().take(room as usize) {
            let &[sge] = wr.sges else { break };
            if sge.length.wrapping_sub(1) >= i32::MAX as u32 {
                break;
            }
            let Some(record) = half.record(posted, &core.records) else {
                break;
            };
            let wqe = ring.at(posted);
            put_entry(wqe, UNIT / 4, &sge);
            record.wr_id.store(wr.wr_id, Ordering::Relaxed);
            if M {
                put_end(wqe, 2 * UNIT / 4);
            } else {
                wqe.set(next::NDS / 4, next::DBD);
                let before = ring.at(posted.wrapping_sub(1));
                before.set(next::NDS / 4, next::DBD | u32::from(STRAIGHT_UNITS));
            }
            posted = posted.wrapping_add(1);
        }
        posted.wrapping_sub(begin)
    }

    /// Writes one WQE and its length in the one before; where it is, and how long.
    #[cold]
    #[inline(never)]
    fn enqueue(
        &mut self,
        core: &Inner<'p, P>,
        half: &Half,
        wr: &RecvWr<'_>,
    ) -> Result<(u32, u8), PostCause> {
        let posted = self.posted;
        if posted.wrapping_sub(half.retired()) >= self.shape.mask {
            return Err(PostCause::QueueFull);
        }
        if wr.sges.len() > self.shape.max_sge as usize {
            return Err(PostCause::TooManySge);
        }
        let memory = self.memory.as_ref().ok_or(PostCause::QueueFull)?;
        let at = self.shape.offset(posted);
        let mut end = at.wrapping_add(SEGMENT);
        put_sges(memory, &mut end, wr.sges)?;
        let nds = (end.wrapping_sub(at) / SEGMENT) as u8;
        if core.chip.is_mem_free() {
            if end.wrapping_sub(at) >> self.shape.shift == 0 {
                put_end(memory.words::<4>(end as usize)?, 0);
            }
            half.remember(posted, wr.wr_id, true, &core.records);
        } else {
            let before = self.shape.offset(posted.wrapping_sub(1));
            let before = memory.words::<2>(before as usize)?;
            memory
                .words::<2>(at as usize)?
                .set(next::NDS / 4, next::DBD);
            half.remember(posted, wr.wr_id, true, &core.records);
            before.set(next::NDS / 4, next::DBD | u32::from(nds));
        }
        self.posted = posted.wrapping_add(1);
        Ok((self.shape.base.wrapping_add(at), nds))
    }
}
