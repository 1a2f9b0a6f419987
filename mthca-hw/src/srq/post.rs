//! Posting to an SRQ. verbs 8, infinihost 4.8, 5.4.
//!
//! Requests of one entry go straight, as those of a QP do: written and linked up to the first that is not so, then counted
//! and rung for at once. All else, and what is refused, goes through [`SrqQueue::enqueue`].

use super::{IN_USE, NIL, SEGMENT, SrqPlace, SrqRef};
use crate::bells::Bell;
use crate::inner::Inner;
use crate::qp::wqe::{RECEIVE, fits, put_end, put_entry, put_sges};
use crate::records::{Record, RecordRing};
use crate::sync::AtomicU32;
use core::sync::atomic::Ordering;
use core_ib::platform::{DmaRing, Platform, RingView};
use core_ib::verbs::{PostCause, PostError, RecvWr, SharedReceiveQueue, SrqHandle};
use hca_abi::infinihost::doorbell::ReceiveDoorbell;
use hca_abi::infinihost::wqe::{DataSegment, UNIT, next};

/// T: WQEs of one doorbell.
const MAX_BATCH: u32 = ReceiveDoorbell::MAX_COUNT as u32;

/// The poster's side. Under the lock of its place.
pub(super) struct SrqQueue<'p, P: Platform> {
    pub memory: Option<DmaRing<'p, P>>,
    /// First of the poster's free WQEs. M: the one that the WQE posted last calls the next.
    pub free: u32,
    /// T: the last one posted; at first the one that is never used.
    pub last: u32,
    /// M: how many were posted.
    pub posted: u32,
    /// M: the doorbell record.
    pub bell: Bell,
    pub max_sge: u32,
    pub number: u32,
}

impl<P: Platform> Default for SrqQueue<'_, P> {
    fn default() -> Self {
        Self {
            memory: None,
            free: NIL,
            last: NIL,
            posted: 0,
            bell: Bell::default(),
            max_sge: 0,
            number: 0,
        }
    }
}

impl<P: Platform> SharedReceiveQueue for SrqRef<'_, '_, P> {
    #[inline]
    fn post_recv(&self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        let (core, place) = (self.core, self.place);
        match (core.chip.is_mem_free(), wrs) {
            (false, [wr]) => SrqQueue::post_one::<false>(core, place, wr),
            (true, [wr]) => SrqQueue::post_one::<true>(core, place, wr),
            (false, _) => SrqQueue::post::<false>(core, place, wrs),
            (true, _) => SrqQueue::post::<true>(core, place, wrs),
        }
    }

    fn handle(&self) -> SrqHandle {
        self.handle
    }
}

/// Where a call that goes straight writes.
#[derive(Clone, Copy)]
struct Places<'q> {
    ring: RingView<'q, RECEIVE>,
    records: RecordRing<'q>,
    freed: &'q AtomicU32,
}

impl Places<'_> {
    /// Writes `wr` as WQE `index`, a free one, and links it; `last` is the one before in T-mode. The free one behind it.
    /// `None` if it has not one entry, or there is something against it.
    #[inline(always)]
    fn put<const M: bool>(self, index: u32, last: u32, wr: &RecvWr<'_>) -> Option<u32> {
        let [sge] = wr.sges else { return None };
        if !fits(sge) {
            return None;
        }
        let record = self.records.at(index);
        let mut following = record.link.load(Ordering::Relaxed);
        if M && following == NIL {
            following = self.freed.swap(NIL, Ordering::Acquire);
            if following == NIL {
                return None;
            }
        }
        record.wr_id.store(wr.wr_id, Ordering::Relaxed);
        record.link.store(IN_USE, Ordering::Release);
        let wqe = self.ring.at(index);
        put_entry(wqe, UNIT / 4, sge);
        put_end(wqe, 2 * UNIT / 4);
        if M {
            wqe.set_pair(next::NDA / 4, self.ring.offset(following) | 1, 0);
        } else {
            wqe.set_long(next::NDA / 4, 0);
            // One that completed meanwhile, and is posted anew, is not linked to itself.
            if last != index {
                let nda = self.ring.offset(index) | 1;
                let before = self.ring.at(last);
                before.set_pair(next::NDA / 4, nda, next::DBD);
            }
        }
        Some(following)
    }
}

/// What went straight.
#[derive(Clone, Copy, Default)]
struct Straight {
    count: u32,
    /// Offset of the first.
    at: u32,
}

impl<'p, P: Platform> SrqQueue<'p, P> {
    /// Posts `wrs` in order; the error names the first that was not. Thread or soft interrupt; never blocks, allocates
    /// or panics. `M`: the mode.
    #[inline(never)]
    fn post<const M: bool>(
        core: &Inner<'p, P>,
        place: &SrqPlace<'p, P>,
        wrs: &[RecvWr<'_>],
    ) -> Result<(), PostError> {
        place.queue.with(|queue| {
            let straight = queue.straight::<M>(core, place, wrs);
            if straight.count as usize != wrs.len() || straight.count == 0 {
                return queue.post_rest(core, place, wrs, straight);
            }
            queue.start::<M>(core, straight);
            Ok(())
        })
    }

    /// One request: without all that lists need.
    #[inline(never)]
    fn post_one<const M: bool>(
        core: &Inner<'p, P>,
        place: &SrqPlace<'p, P>,
        wr: &RecvWr<'_>,
    ) -> Result<(), PostError> {
        place.queue.with(|queue| {
            queue.refill(place);
            let (index, last) = (queue.free, queue.last);
            if let Some(places) = queue.places(core, place)
                && let Some(following) = places.put::<M>(index, last, wr)
            {
                let at = places.ring.offset(index);
                queue.free = following;
                if !M {
                    queue.last = index;
                }
                queue.start::<M>(core, Straight { count: 1, at });
                return Ok(());
            }
            let wrs = core::slice::from_ref(wr);
            queue.post_rest(core, place, wrs, Straight::default())
        })
    }

    /// If the poster has no free WQE left, those are its that pollers gave back.
    #[inline(always)]
    fn refill(&mut self, place: &SrqPlace<'p, P>) {
        if self.free == NIL {
            self.free = place.freed.swap(NIL, Ordering::Acquire);
        }
    }

    /// Where posting may go straight, if it may and there is a free WQE.
    #[inline(always)]
    fn places<'q>(
        &'q self,
        core: &'q Inner<'p, P>,
        place: &'q SrqPlace<'p, P>,
    ) -> Option<Places<'q>> {
        let ring = self.memory.as_ref()?.view()?;
        if self.free == NIL || !core.cmd.health().is_alive() {
            return None;
        }
        let first = place.records.load(Ordering::Relaxed);
        Some(Places {
            ring,
            records: core.records.ring(first, ring.mask())?,
            freed: &place.freed,
        })
    }

    /// Writes and links the WQEs of `wrs` up to the first that does not go straight.
    #[inline(always)]
    fn straight<const M: bool>(
        &mut self,
        core: &Inner<'p, P>,
        place: &SrqPlace<'p, P>,
        wrs: &[RecvWr<'_>],
    ) -> Straight {
        self.refill(place);
        let (first, mut last) = (self.free, self.last);
        let places = self.places(core, place);
        let Some(places) = places.filter(|_| M || wrs.len() <= MAX_BATCH as usize) else {
            return Straight::default();
        };
        let mut free = first;
        let mut count = 0_u32;
        for wr in wrs {
            if free == NIL {
                free = place.freed.swap(NIL, Ordering::Acquire);
                if free == NIL {
                    break;
                }
            }
            let Some(following) = places.put::<M>(free, last, wr) else {
                break;
            };
            if !M {
                last = free;
            }
            free = following;
            count = count.wrapping_add(1);
        }
        let at = places.ring.offset(first);
        self.free = free;
        if !M {
            self.last = last;
        }
        Straight { count, at }
    }

    /// Posts all of `wrs` but those that went straight, and rings for them all.
    #[cold]
    #[inline(never)]
    fn post_rest(
        &mut self,
        core: &Inner<'p, P>,
        place: &SrqPlace<'p, P>,
        wrs: &[RecvWr<'_>],
        straight: Straight,
    ) -> Result<(), PostError> {
        let mem_free = core.chip.is_mem_free();
        let mut due = straight;
        let mut result = Ok(());
        for (index, wr) in wrs.iter().enumerate().skip(straight.count as usize) {
            if due.count >= MAX_BATCH && !mem_free {
                self.start_any(core, core::mem::take(&mut due));
            }
            match self.enqueue(core, place, wr) {
                Ok(at) if due.count == 0 => due = Straight { count: 1, at },
                Ok(_) => due.count = due.count.wrapping_add(1),
                Err(cause) => {
                    result = Err(PostError { index, cause });
                    break;
                }
            }
        }
        self.start_any(core, due);
        result
    }

    /// [`start`](Self::start) in either mode, if there is anything to start.
    fn start_any(&mut self, core: &Inner<'p, P>, due: Straight) {
        match (due.count, core.chip.is_mem_free()) {
            (0, _) => {}
            (_, true) => self.start::<true>(core, due),
            (_, false) => self.start::<false>(core, due),
        }
    }

    /// Counts and rings. T: 256 at most. M: one store of the record for all.
    #[inline(always)]
    fn start<const M: bool>(&mut self, core: &Inner<'p, P>, due: Straight) {
        core.machine.dma_wmb();
        if !M {
            core.uar.ring_receive(ReceiveDoorbell {
                nda: due.at,
                nds: 0, // which tells it from one of a QP: infinihost 2.8
                number: self.number,
                count: due.count as u16,
            });
        } else if let Some(bells) = &core.bells {
            self.posted = self.posted.wrapping_add(due.count);
            bells.count(self.bell, self.posted & 0xffff);
        }
    }

    /// M: the WQE to be posted behind the free one with this record. There must be one.
    fn successor(place: &SrqPlace<'p, P>, record: &Record) -> Result<u32, PostCause> {
        let next = record.link.load(Ordering::Relaxed);
        if next != NIL {
            return Ok(next);
        }
        let freed = place.freed.swap(NIL, Ordering::Acquire);
        if freed == NIL {
            return Err(PostCause::QueueFull);
        }
        record.link.store(freed, Ordering::Relaxed);
        Ok(freed)
    }

    /// Writes one WQE and links it; where it is.
    #[cold]
    #[inline(never)]
    fn enqueue(
        &mut self,
        core: &Inner<'p, P>,
        place: &SrqPlace<'p, P>,
        wr: &RecvWr<'_>,
    ) -> Result<u32, PostCause> {
        if !core.cmd.health().is_alive() {
            return Err(PostCause::DeviceFailed);
        }
        if self.free == NIL {
            self.free = place.freed.swap(NIL, Ordering::Acquire);
        }
        let index = self.free;
        let first = place.records.load(Ordering::Relaxed);
        let record = core.records.get(first.wrapping_add(index));
        let record = record
            .filter(|_| index != NIL)
            .ok_or(PostCause::QueueFull)?;
        let mem_free = core.chip.is_mem_free();
        let next = if mem_free {
            Self::successor(place, record)?
        } else {
            record.link.load(Ordering::Relaxed)
        };
        if wr.sges.len() > self.max_sge as usize {
            return Err(PostCause::TooManySge);
        }
        let memory = self.memory.as_ref().ok_or(PostCause::QueueFull)?;
        let shift = place.shift.load(Ordering::Relaxed) & 31;
        let at = index << shift;
        let mut end = at.wrapping_add(SEGMENT);
        put_sges(memory, &mut end, wr.sges)?;
        if end.wrapping_sub(at) / SEGMENT <= self.max_sge {
            memory.write(end as usize, &DataSegment::END_OF_LIST)?;
        }
        memory.write(at as usize, &[0_u8; UNIT])?;
        if mem_free {
            memory.write_be32(at as usize + next::NDA, next << shift | 1)?;
        } else if self.last != index {
            let before = (self.last << shift) as usize;
            memory.write_be32(before + next::NDA, at | 1)?;
            memory.write_be32(before + next::NDS, next::DBD)?;
        }
        self.free = next;
        self.last = index;
        record.wr_id.store(wr.wr_id, Ordering::Relaxed);
        record.link.store(IN_USE, Ordering::Release);
        Ok(at)
    }
}
