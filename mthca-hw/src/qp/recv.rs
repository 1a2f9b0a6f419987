//! The receive queue. verbs 4, infinihost 5.4.
//!
//! The ring is linked once, when it begins: each WQE names the next. Posting writes the entries; in T-mode it says in the
//! WQE before how long they are, every link waits for a doorbell, and a doorbell tells of 256 at most. In M-mode a list
//! shorter than its WQE has an end, and a record says how many WQEs there are: there is no doorbell.

use super::place::{Half, QpPlace, Shape};
use super::room::Room;
use super::wqe::{RECEIVE, SEGMENT, fits, put_end, put_entry, put_sges};
use crate::bells::Bell;
use crate::inner::Inner;
use core::sync::atomic::Ordering;
use core_ib::platform::{DmaRing, OutOfBounds, Platform};
use core_ib::verbs::{PostCause, PostError, RecvWr};
use hca_abi::infinihost::doorbell::ReceiveDoorbell;
use hca_abi::infinihost::wqe::{DataSegment, UNIT, next};

/// Length of a WQE with a single entry as the HCA counts.
const STRAIGHT_UNITS: u8 = 2;

/// T: WQEs of one doorbell.
const MAX_BATCH: u32 = ReceiveDoorbell::MAX_COUNT as u32;

/// A receive queue. Under the lock of its place.
pub(crate) struct RecvQueue<'p, P: Platform> {
    /// None of a QP that receives through an SRQ, or does not receive.
    pub(super) memory: Option<DmaRing<'p, P>>,
    pub(super) shape: Shape,
    pub(super) posted: u32,
    /// The state allows posting.
    pub(super) open: bool,
    /// It does, to a ring of its own whose requests have an entry.
    pub(super) straight: bool,
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
            straight: false,
            shared: false,
            number: 0,
            bell: Bell::default(),
        }
    }
}

/// Writes `wr` as the next WQE of those that go straight; false if it has not one entry, or there is something against it.
#[inline(always)]
fn append<const M: bool>(room: &mut Room<'_, RECEIVE>, wr: &RecvWr<'_>) -> bool {
    let [sge] = wr.sges else { return false };
    if !fits(sge) {
        return false;
    }
    let wqe = room.wqe();
    put_entry(wqe, UNIT / 4, sge);
    let record = room.records.at(room.posted);
    record.wr_id.store(wr.wr_id, Ordering::Relaxed);
    if M {
        put_end(wqe, 2 * UNIT / 4);
    } else {
        wqe.set(next::NDS / 4, next::DBD);
        let linked = next::DBD | u32::from(STRAIGHT_UNITS);
        room.before.set(next::NDS / 4, linked);
    }
    room.advance(wqe);
    true
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
        self.set_open(false);
    }

    /// From here on the state allows posting, or does not.
    pub(super) fn set_open(&mut self, open: bool) {
        self.open = open;
        self.straight = open && !self.shared && self.shape.max_sge > 0;
    }

    /// Posts `wrs` in order; the error names the first that was not. Thread or soft interrupt; never blocks, allocates
    /// or panics. `M`: the mode.
    #[inline(never)]
    pub(super) fn post<const M: bool>(
        core: &Inner<'p, P>,
        place: &QpPlace<'p, P>,
        wrs: &[RecvWr<'_>],
    ) -> Result<(), PostError> {
        place.rq.with(|queue| {
            let begin = queue.posted;
            let straight = queue.straight::<M>(core, &place.recv, wrs);
            if straight as usize != wrs.len() || straight == 0 {
                return queue.post_rest(core, &place.recv, wrs, straight);
            }
            queue.posted = begin.wrapping_add(straight);
            queue.start_straight::<M>(core, &place.recv, begin, straight);
            Ok(())
        })
    }

    /// One request: without all that lists need.
    #[inline(never)]
    pub(super) fn post_one<const M: bool>(
        core: &Inner<'p, P>,
        place: &QpPlace<'p, P>,
        wr: &RecvWr<'_>,
    ) -> Result<(), PostError> {
        place.rq.with(|queue| {
            if let Some(mut room) = queue.room(core, &place.recv)
                && append::<M>(&mut room, wr)
            {
                let end = room.posted;
                let begin = end.wrapping_sub(1);
                queue.start_straight::<M>(core, &place.recv, begin, 1);
                queue.posted = end;
                return Ok(());
            }
            queue.post_rest(core, &place.recv, core::slice::from_ref(wr), 0)
        })
    }

    /// Counts what went straight from count `begin` on, and rings for it.
    #[inline(always)]
    fn start_straight<const M: bool>(
        &self,
        core: &Inner<'p, P>,
        half: &Half,
        begin: u32,
        count: u32,
    ) {
        let nda = self.shape.base.wrapping_add(self.shape.offset(begin));
        let posted = begin.wrapping_add(count);
        self.start::<M>(core, half, (nda, STRAIGHT_UNITS), posted, count);
    }

    /// In the order of verbs 4.1.
    fn check_open(&self, core: &Inner<'p, P>) -> Result<(), PostCause> {
        if !core.cmd.health().is_alive() {
            return Err(PostCause::DeviceFailed);
        }
        if !self.open || self.shared {
            return Err(PostCause::InvalidState);
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
        done: u32,
    ) -> Result<(), PostError> {
        let mut begin = self.posted;
        self.posted = begin.wrapping_add(done);
        let nda = self.shape.base.wrapping_add(self.shape.offset(begin));
        let mut first = (done != 0).then_some((nda, STRAIGHT_UNITS));
        let mut result = Ok(());
        for (index, wr) in wrs.iter().enumerate().skip(done as usize) {
            if self.posted.wrapping_sub(begin) >= MAX_BATCH {
                self.start_any(core, half, first.take(), begin);
                begin = self.posted;
            }
            let posted = self.check_open(core);
            match posted.and_then(|()| self.enqueue(core, half, wr)) {
                Ok(wqe) => first = first.or(Some(wqe)),
                Err(cause) => {
                    result = Err(PostError { index, cause });
                    break;
                }
            }
        }
        self.start_any(core, half, first, begin);
        result
    }

    /// [`start`](Self::start) in either mode, if there is anything to start.
    fn start_any(&self, core: &Inner<'p, P>, half: &Half, first: Option<(u32, u8)>, begin: u32) {
        let count = self.posted.wrapping_sub(begin);
        match first {
            None => {}
            Some(first) if core.chip.is_mem_free() => {
                self.start::<true>(core, half, first, self.posted, count)
            }
            Some(first) => self.start::<false>(core, half, first, self.posted, count),
        }
    }

    /// Counts all before `posted`, and rings for the last `count` WQEs, of which the first is at `nda` and has `nds` units.
    #[inline(always)]
    fn start<const M: bool>(
        &self,
        core: &Inner<'p, P>,
        half: &Half,
        (nda, nds): (u32, u8),
        posted: u32,
        count: u32,
    ) {
        half.count(posted);
        core.machine.dma_wmb();
        if !M {
            core.uar.ring_receive(ReceiveDoorbell {
                nda,
                nds,
                number: self.number,
                count: count as u16,
            });
        } else if let Some(bells) = &core.bells {
            bells.count(self.bell, posted & 0xffff);
        }
    }

    /// Where requests are written, if they may go straight.
    #[inline(always)]
    fn room<'q>(&'q self, core: &'q Inner<'p, P>, half: &Half) -> Option<Room<'q, RECEIVE>> {
        Room::open(core, half, &self.memory, self.straight, self.posted)
    }

    /// Writes and links the WQEs of `wrs` up to the first that has not one entry, or that there is something against;
    /// how many. Every link waits for a doorbell, so they are to be counted before that and not earlier.
    #[inline(always)]
    fn straight<const M: bool>(&self, core: &Inner<'p, P>, half: &Half, wrs: &[RecvWr<'_>]) -> u32 {
        let room = self.room(core, half);
        let Some(mut room) = room.filter(|_| M || wrs.len() <= MAX_BATCH as usize) else {
            return 0;
        };
        let begin = room.posted;
        for wr in wrs {
            if room.is_full() || !append::<M>(&mut room, wr) {
                break;
            }
        }
        room.posted.wrapping_sub(begin)
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
                memory.write(end as usize, &DataSegment::END_OF_LIST)?;
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
