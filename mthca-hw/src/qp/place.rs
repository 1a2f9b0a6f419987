//! Where a QP is known: what the data path, pollers and event handlers need of it, each without asking the others.
//!
//! A place is there as long as the HCA is open. Posting takes the lock of one queue; polling takes that of the CQ and
//! reads the [`Half`] of the queue that a completion names, which is atomic and, but for two counters, constant for the
//! life of the QP. The number is stored last when a QP begins and taken back first when it ends.

use super::control::QpControl;
use super::recv::RecvQueue;
use super::send::SendQueue;
use crate::event::Pending;
use crate::extents::Extent;
use crate::inner::NOBODY;
use crate::records::{Record, RecordRing, Records};
use crate::sync::AtomicU32;
use core::sync::atomic::Ordering;
use core_ib::Qpn;
use core_ib::platform::{Gate, Lock, Platform};

/// How completions of receives are to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Queue(u32);

impl Queue {
    /// RC, UC.
    pub const CONNECTED: Self = Self(0);
    /// UD.
    pub const DATAGRAM: Self = Self(1);
    /// SMI, GSI.
    pub const SPECIAL: Self = Self(2);
    /// UD of an HCA that verifies checksums.
    pub const VERIFIED: Self = Self(3);
}

/// One work queue, as pollers know it.
#[derive(Debug)]
pub(crate) struct Half {
    /// Requests posted, free-running. Written under the queue's lock.
    posted: AtomicU32,
    /// Requests retired, free-running. Written under the lock of the CQ.
    retired: AtomicU32,
    /// First place among the records.
    records: AtomicU32,
    /// Entries of the ring less one.
    mask: AtomicU32,
    /// Address of entry 0.
    base: AtomicU32,
    /// Logarithm of the distance of two entries.
    shift: AtomicU32,
    /// Place of the CQ.
    cq: AtomicU32,
}

/// The shape of a work queue.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Shape {
    /// Entries less one: a power of two less one. One entry is never used.
    pub mask: u32,
    /// Address of entry 0 in the region of the QP.
    pub base: u32,
    /// Logarithm of the distance of two entries.
    pub shift: u8,
    /// Scatter/gather entries of a request.
    pub max_sge: u32,
    /// Bytes of inline data of a request.
    pub max_inline: u32,
}

impl Shape {
    /// Bytes of all entries.
    pub const fn bytes(&self) -> usize {
        (self.mask as usize + 1) << self.shift
    }

    /// Offset of entry `counter` (free-running) in the queue's memory.
    #[inline]
    pub const fn offset(&self, counter: u32) -> u32 {
        (counter & self.mask) << self.shift
    }
}

impl Half {
    fn new() -> Self {
        Self {
            posted: AtomicU32::new(0),
            retired: AtomicU32::new(0),
            records: AtomicU32::new(0),
            mask: AtomicU32::new(0),
            base: AtomicU32::new(0),
            shift: AtomicU32::new(0),
            cq: AtomicU32::new(NOBODY),
        }
    }

    /// A QP begins.
    pub fn begin(&self, shape: &Shape, records: Option<Extent>, cq: u32) {
        self.forget();
        let first = records.map_or(NOBODY, |records| records.first);
        self.records.store(first, Ordering::Relaxed);
        self.mask.store(shape.mask, Ordering::Relaxed);
        self.base.store(shape.base, Ordering::Relaxed);
        self.shift.store(u32::from(shape.shift), Ordering::Relaxed);
        self.cq.store(cq, Ordering::Relaxed);
    }

    /// It ends.
    pub fn end(&self) {
        self.forget();
        self.cq.store(NOBODY, Ordering::Relaxed);
    }

    /// What is outstanding is forgotten: the QP was reset.
    pub fn forget(&self) {
        self.posted.store(0, Ordering::Relaxed);
        self.retired.store(0, Ordering::Relaxed);
    }

    /// Place of the CQ.
    #[inline]
    pub fn cq(&self) -> u32 {
        self.cq.load(Ordering::Relaxed)
    }

    /// Requests retired.
    #[inline]
    pub fn retired(&self) -> u32 {
        self.retired.load(Ordering::Acquire)
    }

    /// The record of request `counter`. Of a queue that has none, nobody's.
    #[inline]
    pub fn record<'r, P: Platform>(
        &self,
        counter: u32,
        records: &'r Records<'_, P>,
    ) -> Option<&'r Record> {
        let first = self.records.load(Ordering::Relaxed);
        let index = counter & self.mask.load(Ordering::Relaxed);
        records.get(first.wrapping_add(index))
    }

    /// The records of all its requests: `mask` is that of its ring. `None` of a queue that has none.
    #[inline(always)]
    pub fn ring<'r, P: Platform>(
        &self,
        mask: u32,
        records: &'r Records<'_, P>,
    ) -> Option<RecordRing<'r>> {
        records.ring(self.records.load(Ordering::Relaxed), mask)
    }

    /// Counts what was posted: all before `posted`, which were remembered. Under the queue's lock, before their doorbell.
    #[inline]
    pub fn count(&self, posted: u32) {
        // What was remembered is visible to whoever sees the count.
        self.posted.store(posted, Ordering::Release);
    }

    /// Remembers a request about to be posted. Under the queue's lock.
    #[inline]
    pub fn remember<P: Platform>(
        &self,
        counter: u32,
        wr_id: u64,
        by_doorbell: bool,
        records: &Records<'_, P>,
    ) {
        if let Some(record) = self.record(counter, records) {
            record.wr_id.store(wr_id, Ordering::Relaxed);
            record.link.store(u32::from(by_doorbell), Ordering::Relaxed);
        }
        // What was remembered is visible to whoever sees the count.
        self.posted
            .store(counter.wrapping_add(1), Ordering::Release);
    }

    /// Is request `counter` posted and not retired?
    #[inline]
    pub fn is_outstanding(&self, counter: u32) -> bool {
        let posted = self.posted.load(Ordering::Acquire);
        let retired = self.retired.load(Ordering::Relaxed);
        counter.wrapping_sub(retired) < posted.wrapping_sub(retired)
    }

    /// The oldest request outstanding.
    pub fn oldest(&self) -> Option<u32> {
        let retired = self.retired.load(Ordering::Relaxed);
        self.is_outstanding(retired).then_some(retired)
    }

    /// What of it is constant for the life of the QP, for the length of a call. `None` of a queue that has no requests.
    #[inline(always)]
    pub fn view<'c, P: Platform>(&'c self, records: &'c Records<'_, P>) -> Option<HalfView<'c>> {
        let mask = self.mask.load(Ordering::Relaxed);
        Some(HalfView {
            half: self,
            base: self.base.load(Ordering::Relaxed),
            shift: self.shift.load(Ordering::Relaxed),
            records: self.ring(mask, records)?,
        })
    }

    /// Did the link to request `counter` wait for a doorbell?
    pub fn waits_for_doorbell<P: Platform>(&self, counter: u32, records: &Records<'_, P>) -> bool {
        let record = self.record(counter, records);
        record.is_none_or(|record| record.link.load(Ordering::Relaxed) != 0)
    }

    /// Retires request `counter` and all before it; what its poster called it. Under the lock of the CQ.
    #[inline]
    pub fn retire<P: Platform>(&self, counter: u32, records: &Records<'_, P>) -> u64 {
        let record = self.record(counter, records);
        let wr_id = record.map_or(0, |record| record.wr_id.load(Ordering::Relaxed));
        // What was remembered is read before the place may be used anew.
        self.retired
            .store(counter.wrapping_add(1), Ordering::Release);
        wr_id
    }
}

/// A [`Half`] as a poller has it.
#[derive(Clone, Copy)]
pub(crate) struct HalfView<'c> {
    half: &'c Half,
    base: u32,
    shift: u32,
    records: RecordRing<'c>,
}

impl HalfView<'_> {
    /// Is request `counter` posted and not retired?
    #[inline]
    pub fn is_outstanding(&self, counter: u32) -> bool {
        self.half.is_outstanding(counter)
    }

    /// Retires the request outstanding whose WQE is at `address`, and all before it; its count, and what its poster called
    /// it. The HCA says so; it may be wrong. Under the lock of the CQ.
    #[inline(always)]
    pub fn take(&self, address: u32) -> Option<(u32, u64)> {
        // What lies between two entries becomes a number above all of them: together they have no more than 2^32 bytes.
        let index = address.wrapping_sub(self.base).rotate_right(self.shift);
        let record = self.records.get(index)?;
        let retired = self.half.retired.load(Ordering::Relaxed);
        let posted = self.half.posted.load(Ordering::Acquire);
        let ahead = index.wrapping_sub(retired) & self.records.mask();
        if ahead >= posted.wrapping_sub(retired) {
            return None;
        }
        let wr_id = record.wr_id.load(Ordering::Relaxed);
        let counter = retired.wrapping_add(ahead);
        // What was remembered is read before the place may be used anew.
        self.half
            .retired
            .store(counter.wrapping_add(1), Ordering::Release);
        Some((counter, wr_id))
    }
}

/// See the module.
pub(crate) struct QpPlace<'p, P: Platform> {
    pub gate: Gate<QpControl<'p, P>, P::RawGate>,
    pub sq: Lock<SendQueue<'p, P>, P::RawLock>,
    pub rq: Lock<RecvQueue<'p, P>, P::RawLock>,
    pub send: Half,
    pub recv: Half,
    /// Its number in the HCA; 0 without a QP.
    number: AtomicU32,
    /// Its number on the wire, and above it the kind of queue.
    wire: AtomicU32,
    /// Place of its SRQ.
    srq: AtomicU32,
    /// What happened and nobody has taken.
    pub events: Pending,
}

impl<'p, P: Platform> QpPlace<'p, P> {
    /// An empty place. Set-up only.
    pub fn new(machine: &'p P) -> Self {
        Self {
            gate: machine.gate("QP", QpControl::default()),
            sq: machine.lock("send queue", false, SendQueue::default()),
            rq: machine.lock("receive queue", false, RecvQueue::default()),
            send: Half::new(),
            recv: Half::new(),
            number: AtomicU32::new(0),
            wire: AtomicU32::new(0),
            srq: AtomicU32::new(NOBODY),
            events: Pending::closed(),
        }
    }

    /// From here on completions and events find the QP.
    pub fn publish(&self, number: u32, wire: Qpn, kind: Queue, srq: Option<u32>) {
        let Queue(kind) = kind;
        let wire = wire.get() | kind << 24;
        self.wire.store(wire, Ordering::Relaxed);
        self.srq.store(srq.unwrap_or(NOBODY), Ordering::Relaxed);
        self.events.open(number);
        self.number.store(number, Ordering::Release);
    }

    /// From here on they do not.
    pub fn withdraw(&self) {
        self.number.store(0, Ordering::Release);
        self.events.close();
    }

    /// Its number in the HCA; 0 without a QP. Any context.
    #[inline]
    pub fn number(&self) -> u32 {
        self.number.load(Ordering::Acquire)
    }

    /// Its number on the wire.
    #[inline]
    pub fn wire_qpn(&self) -> Qpn {
        Qpn::new(self.wire.load(Ordering::Relaxed))
    }

    /// How its receives complete.
    #[inline]
    pub fn queue(&self) -> Queue {
        Queue(self.wire.load(Ordering::Relaxed) >> 24)
    }

    /// Place of its SRQ.
    #[inline]
    pub fn srq(&self) -> u32 {
        self.srq.load(Ordering::Relaxed)
    }

    /// One of its queues.
    #[inline]
    pub const fn half(&self, send: bool) -> &Half {
        if send { &self.send } else { &self.recv }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::fake::Machine;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        #[test]
        fn a_completion_retires_what_was_posted_and_nothing_else(
            start: u32, steps in proptest::collection::vec((any::<bool>(), any::<u32>(), 0..3_u8), 1..60),
        ) {
            let machine = Machine::idle();
            let records = Records::new(&machine, 8).unwrap();
            let (half, shape) = (Half::new(), Shape { mask: 7, base: 0x1000, shift: 6, ..Shape::default() });
            half.begin(&shape, Some(records.take(8).unwrap()), 0);
            half.posted.store(start, Ordering::Relaxed);
            half.retired.store(start, Ordering::Relaxed);
            let mut outstanding: VecDeque<u32> = VecDeque::new();
            let mut next = start;
            for (post, number, sort) in steps {
                if post && outstanding.len() < 7 {
                    half.remember(next, u64::from(next), true, &records);
                    outstanding.push_back(next);
                    next = next.wrapping_add(1);
                    continue;
                }
                let address = match sort {
                    0 => number,                                   // anything
                    1 => 0x1000 + (number % 8) * 64,               // an entry, perhaps not outstanding
                    _ => outstanding.get(number as usize % outstanding.len().max(1))
                        .map_or(1, |&counter| 0x1000 + shape.offset(counter)),
                };
                let found = half.view(&records).and_then(|view| view.take(address));
                let expected = outstanding.iter().copied().find(|&c| 0x1000 + shape.offset(c) == address);
                prop_assert_eq!(found, expected.map(|counter| (counter, u64::from(counter))));
                if let Some((counter, _)) = found {
                    while outstanding.pop_front().is_some_and(|c| c != counter) {}
                    prop_assert_eq!(half.oldest(), outstanding.front().copied());
                }
            }
        }
    }
}
