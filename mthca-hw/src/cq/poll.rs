//! Polling: the data path of a CQ. verbs 5.2, 5.3, infinihost 4.5.
//!
//! An entry names a QP and a WQE by number. Both are looked up: what names no request outstanding is counted and
//! skipped. In T-mode an error entry stands for a chain of requests; the chain is expanded from what the driver knows
//! of the queue, not from what the HCA could have written over.

use super::CqRef;
use super::entry::{
    CqWords, IS_SEND, OWNED_BY_HW, OWNER_WORD, QP_WORD, WORDS, completed, error_of, failed,
    flushed, is_error, is_error_of_send, wqe_address,
};
use super::ring::{Chain, CqQueue, Entries, Odd};
use crate::event::Strays;
use crate::inner::{Inner, NOBODY};
use crate::qp::{HalfView, Queue};
use crate::srq::SrqPlace;
use core_ib::Qpn;
use core_ib::platform::{Platform, RingView};
use core_ib::verbs::WorkCompletion;

/// Where requests complete.
enum Requests<'c, 'p, P: Platform> {
    /// In a queue of the QP's own.
    Own(HalfView<'c>),
    /// In an SRQ.
    Shared(&'c SrqPlace<'p, P>),
}

/// A work queue that an entry names: found once for all of a call that name it in a row.
struct Side<'c, 'p, P: Platform> {
    /// As entries name the QP.
    number: u32,
    /// Place of the QP.
    index: u32,
    qpn: Qpn,
    queue: Queue,
    requests: Requests<'c, 'p, P>,
}

impl<'c, 'p, P: Platform> Side<'c, 'p, P> {
    /// The queue of a QP's number in the HCA, if its completions belong to the CQ in place `cq`.
    #[inline(always)]
    fn find(core: &'c Inner<'p, P>, cq: u32, number: u32, send: bool) -> Option<Self> {
        let (index, place) = core.qp_by_number(number)?;
        let half = place.half(send);
        if half.cq() != cq {
            return None;
        }
        let srq = if send { NOBODY } else { place.srq() };
        let requests = if srq == NOBODY {
            Requests::Own(half.view(&core.records)?)
        } else {
            Requests::Shared(core.srq_places.get(srq as usize)?)
        };
        Some(Self {
            number,
            index,
            qpn: place.wire_qpn(),
            queue: place.queue(),
            requests,
        })
    }

    /// Retires the request whose WQE is at `address`. What its poster called it, and its count in its queue, unless that
    /// is an SRQ.
    #[inline(always)]
    fn retire(&self, core: &Inner<'p, P>, address: u32) -> Option<(u64, Option<u32>)> {
        match &self.requests {
            Requests::Own(view) => {
                let (counter, wr_id) = view.take(address)?;
                Some((wr_id, Some(counter)))
            }
            Requests::Shared(srq) => Some((srq.give_back(address, &core.records)?, None)),
        }
    }

    /// Is request `counter` outstanding?
    #[inline(always)]
    fn is_outstanding(&self, counter: u32) -> bool {
        match &self.requests {
            Requests::Own(view) => view.is_outstanding(counter),
            Requests::Shared(_) => false,
        }
    }
}

/// Makes a completion of an entry, whose last word this is; false if it is about nothing outstanding.
#[inline(always)]
fn one<'p, P: Platform>(
    core: &Inner<'p, P>,
    cq: u32,
    words: CqWords<'_>,
    last: u32,
    wc: &mut WorkCompletion,
    odd: &mut Odd,
) -> bool {
    let (number, send) = if is_error(last) {
        (words.get(QP_WORD) & 0xff_ffff, is_error_of_send(last))
    } else {
        (words.get(QP_WORD), last & IS_SEND != 0)
    };
    let Some(side) = Side::find(core, cq, number, send) else {
        return false;
    };
    let Some((wr_id, counter)) = side.retire(core, wqe_address(words)) else {
        return false;
    };
    if !is_error(last) {
        completed::<false>(words, last, wr_id, side.qpn, side.queue, wc);
        return true;
    }
    let error = error_of(words);
    *wc = failed(&error, wr_id, side.qpn);
    // In M-mode each request has an entry of its own. infinihost 5.8.
    if !core.chip.is_mem_free()
        && let Some(last) = counter
        && side.is_outstanding(last.wrapping_add(1))
    {
        odd.begin_chain(Chain {
            qp: side.index,
            send,
            last,
            doorbells: u32::from(error.doorbell_count()),
            vendor_error: error.vendor_error(),
        });
    }
    true
}

/// Where a run of entries stopped.
#[derive(PartialEq, Eq)]
enum Stop {
    /// There is no more room, or no more entry.
    End,
    /// Ahead of an entry of another work queue.
    Other,
    /// Ahead of one that is not a good one of a request outstanding.
    Odd,
}

/// Makes completions of the entries from `consumer` on, as long as they are good ones of requests outstanding, and gives
/// them back. How many, and where it stopped.
#[inline(always)]
fn run<'p, P: Platform>(
    core: &Inner<'p, P>,
    cq: u32,
    ring: RingView<'_, WORDS>,
    consumer: u32,
    into: &mut [WorkCompletion],
) -> (u32, Stop) {
    let mut done = 0_u32;
    loop {
        let words = ring.at(consumer.wrapping_add(done));
        let last = words.get(OWNER_WORD);
        if last & OWNED_BY_HW != 0 {
            return (done, Stop::End);
        }
        core.machine.dma_rmb();
        if is_error(last) {
            return (done, Stop::Odd);
        }
        let send = last & IS_SEND != 0;
        let Some(side) = Side::find(core, cq, words.get(QP_WORD), send) else {
            return (done, Stop::Odd);
        };
        let Some(room) = into.get_mut(done as usize..) else {
            return (done, Stop::End);
        };
        let at = consumer.wrapping_add(done);
        let (more, stop) = match &side.requests {
            Requests::Own(view) => {
                let take = |address| view.take(address).map(|(_, wr_id)| wr_id);
                if send {
                    run_of::<true, P>(core, &side, take, ring, at, room)
                } else {
                    run_of::<false, P>(core, &side, take, ring, at, room)
                }
            }
            Requests::Shared(srq) => {
                let take = |address| srq.give_back(address, &core.records);
                run_of::<false, P>(core, &side, take, ring, at, room)
            }
        };
        done = done.wrapping_add(more);
        if stop != Stop::Other {
            return (done, stop);
        }
        if more == 0 {
            return (done, Stop::Odd); // the HCA changed it in between
        }
    }
}

/// The same as long as they are of one work queue, whose requests `take` retires: what their poster called them.
#[inline(never)]
fn run_of<'p, const SENDS: bool, P: Platform>(
    core: &Inner<'p, P>,
    side: &Side<'_, 'p, P>,
    take: impl Fn(u32) -> Option<u64>,
    ring: RingView<'_, WORDS>,
    begin: u32,
    into: &mut [WorkCompletion],
) -> (u32, Stop) {
    let number = side.number.to_be(); // as it lies
    let mut consumer = begin;
    let mut stop = Stop::End;
    for wc in into {
        let words = ring.at(consumer);
        let last = words.get(OWNER_WORD);
        let kind = if SENDS { IS_SEND } else { 0 };
        if last & (OWNED_BY_HW | IS_SEND) != kind {
            if last & OWNED_BY_HW == 0 {
                stop = Stop::Other;
            }
            break;
        }
        core.machine.dma_rmb();
        if is_error(last) || words.get(QP_WORD).to_be() != number {
            stop = Stop::Other;
            break;
        }
        let Some(wr_id) = take(wqe_address(words)) else {
            stop = Stop::Odd;
            break;
        };
        completed::<SENDS>(words, last, wr_id, side.qpn, side.queue, wc);
        Entries::<P>::give_words(words);
        consumer = consumer.wrapping_add(1);
    }
    (consumer.wrapping_sub(begin), stop)
}

impl<P: Platform> CqRef<'_, '_, P> {
    /// Fills `into` from the start; how many. Never blocks, allocates or panics.
    #[inline(never)]
    pub(super) fn poll_several(&self, into: &mut [WorkCompletion]) -> usize {
        let (core, number) = (self.core, self.held.number);
        self.place.queue.with(|queue| {
            let ring = queue.entries.as_ref().and_then(Entries::view);
            let consumer = queue.consumer;
            let mut odd = queue.odd.is_any();
            let mut good = 0;
            if let Some(ring) = ring.filter(|_| !odd) {
                let (count, stop) = run(core, queue.index, ring, consumer, into);
                (good, odd) = (count, stop == Stop::Odd);
            }
            if good != 0 {
                queue.consumer = consumer.wrapping_add(good);
                queue.tell(core, number, good);
            }
            let good = good as usize;
            if good == into.len() || (!odd && core.cmd.health().is_alive()) {
                return good;
            }
            let rest = into.get_mut(good..).unwrap_or_default();
            good + queue.poll_rest(core, number, rest)
        })
    }

    /// One completion: without all that several need.
    #[inline(never)]
    pub(super) fn poll_one(&self, wc: &mut WorkCompletion) -> usize {
        let core = self.core;
        self.place.queue.with(|queue| {
            let ring = queue.entries.as_ref().and_then(Entries::view);
            if let Some(ring) = ring.filter(|_| !queue.odd.is_any()) {
                let words = ring.at(queue.consumer);
                let last = words.get(OWNER_WORD);
                if last & OWNED_BY_HW != 0 {
                    if core.cmd.health().is_alive() {
                        return 0;
                    }
                } else {
                    core.machine.dma_rmb();
                    if one(core, queue.index, words, last, wc, &mut queue.odd) {
                        Entries::<P>::give_words(words);
                        queue.consumer = queue.consumer.wrapping_add(1);
                        queue.tell(core, self.held.number, 1);
                        return 1;
                    }
                }
            }
            queue.poll_rest(core, self.held.number, core::slice::from_mut(wc))
        })
    }
}

impl<'p, P: Platform> CqQueue<'p, P> {
    /// Everything else: errors and what they stand for, entries that name nothing, the middle of a resize, the end.
    #[cold]
    #[inline(never)]
    fn poll_rest(
        &mut self,
        core: &Inner<'p, P>,
        number: u32,
        into: &mut [WorkCompletion],
    ) -> usize {
        let mut filled = 0;
        let mut taken = 0_u32;
        // An HCA that writes nonsense without end is not followed without end.
        let limit = self.capacity().saturating_add(into.len() as u32);
        'fill: for wc in into.iter_mut() {
            if self.follow(core, wc) {
                filled += 1;
                continue;
            }
            loop {
                if self.odd.is_by_software() || taken > limit || !self.is_ready() {
                    break 'fill;
                }
                taken = taken.wrapping_add(1);
                if self.take(core, wc) {
                    break;
                }
                Strays::count(&core.strays.cqe);
            }
            filled += 1;
        }
        if taken != 0 {
            self.tell(core, number, taken);
        }
        if filled < into.len() && !core.cmd.health().is_alive() {
            self.odd.go_by_software();
            let rest = into.get_mut(filled..).unwrap_or_default();
            filled += core.flush(self.index, rest);
        }
        filled
    }

    /// Takes the next entry, which is ready, and makes a completion of it; false if it is about nothing outstanding.
    fn take(&mut self, core: &Inner<'p, P>, wc: &mut WorkCompletion) -> bool {
        let Some(ring) = self.entries.as_ref().and_then(Entries::view) else {
            return false;
        };
        core.machine.dma_rmb();
        let words = ring.at(self.consumer);
        let last = words.get(OWNER_WORD);
        let done = one(core, self.index, words, last, wc, &mut self.odd);
        Entries::<P>::give_words(words);
        self.consumer = self.consumer.wrapping_add(1);
        done
    }

    /// Makes a completion of the next request of a chain; false if the chain has ended. infinihost 5.8.
    #[cold]
    fn follow(&mut self, core: &Inner<'p, P>, wc: &mut WorkCompletion) -> bool {
        let Some(mut chain) = self.odd.chain() else {
            return false;
        };
        self.odd.end_chain();
        let Some(place) = core.qp_places.get(chain.qp as usize) else {
            return false;
        };
        let half = place.half(chain.send);
        let next = chain.last.wrapping_add(1);
        if !half.is_outstanding(next) {
            return false;
        }
        // Every receive waits for its doorbell; of the sends, the first of each call.
        let by_doorbell = !chain.send || half.waits_for_doorbell(next, &core.records);
        if by_doorbell {
            let Some(left) = chain.doorbells.checked_sub(1) else {
                return false;
            };
            chain.doorbells = left;
        }
        *wc = flushed(place, half.retire(next, &core.records));
        wc.vendor_error = chain.vendor_error;
        chain.last = next;
        self.odd.begin_chain(chain);
        true
    }
}

impl<P: Platform> Inner<'_, P> {
    /// Completes by software what is outstanding on the queues of CQ `cq`, since the HCA has ended. verbs 13.2. Nothing
    /// comes after it: who posts is either done before it looks, or sees the end.
    #[cold]
    fn flush(&self, cq: u32, into: &mut [WorkCompletion]) -> usize {
        let mut filled = 0;
        let places = self.qp_places.iter().filter(|place| place.number() != 0);
        for (place, send) in places.flat_map(|place| [(place, true), (place, false)]) {
            let half = place.half(send);
            if half.cq() != cq {
                continue;
            }
            // Posting looks for the end, and counts, under this lock: so what it took is counted now, and whoever gets
            // the lock from here on takes nothing.
            if send {
                place.sq.with(|_| ());
            } else {
                place.rq.with(|_| ());
            }
            while let Some(next) = half.oldest() {
                let Some(wc) = into.get_mut(filled) else {
                    return filled;
                };
                *wc = flushed(place, half.retire(next, &self.records));
                filled += 1;
            }
        }
        filled
    }
}
