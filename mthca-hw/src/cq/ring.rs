//! The ring of a CQ, and what the consumer knows of it. infinihost 4.5.3, 4.5.5.
//!
//! Entries belong to the HCA while their owner bit is set. Indices run free and are masked only to become an offset.

use super::entry::{OWNED_BY_HW, OWNER_WORD, WORDS};
use crate::bells::Bell;
use crate::inner::Inner;
use crate::let_go::Released;
use core_ib::platform::{
    DmaBuf, DmaRing, OutOfBounds, Platform, PlatformError, RingEntry, RingView,
};
use hca_abi::infinihost::cqe::Cqe;
use hca_abi::infinihost::doorbell::{CqCommand, CqDoorbell};

/// Bytes of an entry.
const ENTRY: usize = size_of::<Cqe>();
/// Offset of the owner bit's word.
const OWNER_DWORD: usize = OWNER_WORD * 4;

/// Memory for entries.
pub(crate) struct Entries<'p, P: Platform> {
    ring: DmaRing<'p, P>,
    mask: u32,
}

impl<'p, P: Platform> Entries<'p, P> {
    /// `1 << log_size` entries, all the HCA's. Control context.
    pub fn new(machine: &'p P, log_size: u8) -> Result<Self, PlatformError> {
        let mask = (1_u32 << log_size).wrapping_sub(1);
        let memory = DmaBuf::new(machine, ENTRY << log_size, ENTRY)?;
        let len = memory.len();
        let ring = DmaRing::over(memory, mask, ENTRY.trailing_zeros() as u8);
        // It has the size that was asked for.
        let ring = ring.map_err(|_| PlatformError::NoDmaMemory { len })?;
        let entries = Self { ring, mask };
        for index in 0..=entries.mask {
            // Within the memory by construction; entries that are not there never fill.
            let _ = entries.give(index);
        }
        Ok(entries)
    }

    /// The memory.
    pub fn memory(&self) -> &DmaBuf<'p, P> {
        &self.ring
    }

    /// The entries, for the length of a call.
    #[inline]
    pub fn view(&self) -> Option<RingView<'_, WORDS>> {
        self.ring.view()
    }

    /// Bytes.
    pub const fn bytes(&self) -> u64 {
        (self.mask as u64 + 1) * ENTRY as u64
    }

    /// Entries that may be outstanding.
    pub const fn capacity(&self) -> u32 {
        self.mask
    }

    /// Gives the memory back.
    pub fn free(self, released: &Released) {
        released.free(self.ring.into_memory());
    }

    #[inline]
    fn offset(&self, index: u32) -> usize {
        (index & self.mask) as usize * ENTRY
    }

    /// Does the entry belong to software?
    fn is_ours(&self, index: u32) -> bool {
        let owner = self.ring.read_be32(self.offset(index) + OWNER_DWORD);
        owner.is_ok_and(|dword| dword & OWNED_BY_HW == 0)
    }

    /// Gives an entry to the HCA.
    #[inline]
    pub fn give_words(words: RingEntry<'_, WORDS>) {
        words.set(OWNER_WORD, OWNED_BY_HW);
    }

    fn read(&self, index: u32) -> Result<Cqe, OutOfBounds> {
        self.ring.read(self.offset(index))
    }

    fn write(&self, index: u32, cqe: &Cqe) -> Result<(), OutOfBounds> {
        self.ring.write(self.offset(index), cqe)
    }

    /// Gives the entry to the HCA.
    fn give(&self, index: u32) -> Result<(), OutOfBounds> {
        self.ring
            .write_be32(self.offset(index) + OWNER_DWORD, OWNED_BY_HW)
    }

    /// Entries of software from `consumer` on.
    fn waiting(&self, consumer: u32) -> u32 {
        let mine = |&count: &u32| self.is_ours(consumer.wrapping_add(count));
        (0..=self.mask).take_while(mine).count() as u32
    }
}

/// What an error completion stands for in T-mode: the requests behind the one that it names. infinihost 5.8.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chain {
    /// Place of the QP.
    pub qp: u32,
    /// Its send queue, or its receive queue.
    pub send: bool,
    /// The last request reported.
    pub last: u32,
    /// Doorbells that may still be crossed.
    pub doorbells: u32,
    /// The vendor's code, for all.
    pub vendor_error: u8,
}

/// What there is to look at besides the ring.
#[derive(Debug)]
pub(crate) struct Odd {
    /// [`Self::CHAIN`], [`Self::RESIZE`], [`Self::SOFTWARE`].
    bits: u8,
    /// If there is one.
    chain: Chain,
}

impl Odd {
    /// Completions are due before the next entry.
    const CHAIN: u8 = 1;
    /// There are two rings.
    const RESIZE: u8 = 2;
    /// The HCA has ended and its entries are drained: what is outstanding completes by software.
    const SOFTWARE: u8 = 4;

    const fn nothing() -> Self {
        Self {
            bits: 0,
            chain: Chain {
                qp: 0,
                send: false,
                last: 0,
                doorbells: 0,
                vendor_error: 0,
            },
        }
    }

    /// Is there anything?
    #[inline]
    pub const fn is_any(&self) -> bool {
        self.bits != 0
    }

    const fn set(&mut self, bit: u8, on: bool) {
        self.bits = if on {
            self.bits | bit
        } else {
            self.bits & !bit
        };
    }

    /// Completions that are due before the next entry.
    pub fn chain(&self) -> Option<Chain> {
        (self.bits & Self::CHAIN != 0).then_some(self.chain)
    }

    /// They are due from here on.
    #[inline]
    pub const fn begin_chain(&mut self, chain: Chain) {
        self.bits |= Self::CHAIN;
        self.chain = chain;
    }

    /// There are no more.
    pub const fn end_chain(&mut self) {
        self.set(Self::CHAIN, false);
    }

    /// Does software complete what is outstanding?
    pub const fn is_by_software(&self) -> bool {
        self.bits & Self::SOFTWARE != 0
    }

    /// It does, from here on.
    pub const fn go_by_software(&mut self) {
        self.set(Self::SOFTWARE, true);
    }
}

/// A CQ as its consumer sees it. Under the lock of its place.
pub(crate) struct CqQueue<'p, P: Platform> {
    pub(super) entries: Option<Entries<'p, P>>,
    /// While a resize is under way: the ring to change to; once changed, the one to give back.
    other: Option<Entries<'p, P>>,
    switched: bool,
    pub(super) consumer: u32,
    /// M: the HCA's indices run free as ours do. T: it keeps them modulo the size of the ring.
    runs_free: bool,
    /// Place of the CQ.
    pub index: u32,
    /// M: its doorbell record.
    bell: Bell,
    pub(super) odd: Odd,
}

impl<P: Platform> Default for CqQueue<'_, P> {
    fn default() -> Self {
        Self {
            entries: None,
            other: None,
            switched: false,
            consumer: 0,
            runs_free: false,
            index: 0,
            bell: Bell::default(),
            odd: Odd::nothing(),
        }
    }
}

impl<'p, P: Platform> CqQueue<'p, P> {
    /// A new life, with this ring, in place `index`.
    pub fn begin(&mut self, index: u32, bell: Bell, entries: Entries<'p, P>, runs_free: bool) {
        *self = Self {
            entries: Some(entries),
            runs_free,
            index,
            bell,
            ..Self::default()
        };
    }

    /// The end of it.
    pub fn end(&mut self) -> Option<Entries<'p, P>> {
        core::mem::take(self).entries
    }

    /// How many entries may be outstanding.
    #[inline]
    pub fn capacity(&self) -> u32 {
        self.entries.as_ref().map_or(0, Entries::capacity)
    }

    /// How many entries may be outstanding, and how many are.
    pub fn fill(&self) -> (u32, u32) {
        let entries = self.entries.as_ref();
        entries.map_or((0, 0), |entries| {
            (entries.capacity(), entries.waiting(self.consumer))
        })
    }

    /// Does the next entry belong to software?
    pub fn is_ready(&mut self) -> bool {
        let Some(entries) = &self.entries else {
            return false;
        };
        entries.is_ours(self.consumer) || self.is_ready_in_other()
    }

    /// The old ring is empty: if there is a new one and the HCA writes there already, so do we read.
    #[cold]
    fn is_ready_in_other(&mut self) -> bool {
        let (Some(old), Some(new)) = (&self.entries, &self.other) else {
            return false;
        };
        if self.switched || !new.is_ours(self.goes_on(old, self.consumer)) {
            return false;
        }
        self.change_over();
        self.is_ready()
    }

    /// Where the HCA goes on in a new ring, once its index in the `old` one was `producer`. infinihost 4.5.5.
    const fn goes_on(&self, old: &Entries<'p, P>, producer: u32) -> u32 {
        if self.runs_free {
            producer
        } else {
            producer & old.mask
        }
    }

    /// Tells the HCA that `count` entries more are consumed, not 0.
    #[inline(always)]
    pub fn tell(&self, core: &Inner<'p, P>, number: u32, count: u32) {
        core.machine.dma_wmb();
        match &core.bells {
            None => {
                let doorbell = CqDoorbell {
                    command: CqCommand::INCREMENT,
                    cqn: number,
                    parameter: count.wrapping_sub(1),
                };
                core.uar.ring_cq(doorbell.encode());
            }
            Some(bells) => bells.count(self.bell, self.consumer),
        }
    }

    /// A resize begins.
    pub fn prepare(&mut self, new: Entries<'p, P>) {
        self.other = Some(new);
        self.odd.set(Odd::RESIZE, true);
        self.switched = false;
    }

    /// The HCA uses the new ring; the old one is given back.
    pub fn switch(&mut self) -> Option<Entries<'p, P>> {
        if !self.switched {
            self.change_over();
        }
        self.switched = false;
        self.odd.set(Odd::RESIZE, false);
        self.other.take()
    }

    /// The HCA refused. The ring that is not in use, and whether that is the old one.
    pub fn give_up(&mut self) -> (Option<Entries<'p, P>>, bool) {
        self.odd.set(Odd::RESIZE, false);
        (self.other.take(), core::mem::take(&mut self.switched))
    }

    /// Changes to the other ring. What is not consumed comes to lie just behind where the HCA goes on.
    fn change_over(&mut self) {
        let (Some(old), Some(new)) = (&self.entries, &self.other) else {
            return;
        };
        let waiting = old.waiting(self.consumer);
        let producer = self.goes_on(old, self.consumer.wrapping_add(waiting));
        let consumer = producer.wrapping_sub(waiting);
        old.memory().machine().dma_rmb();
        for step in 0..waiting.min(new.mask) {
            if let Ok(cqe) = old.read(self.consumer.wrapping_add(step)) {
                // Within the ring: the offset is masked.
                let _ = new.write(consumer.wrapping_add(step), &cqe);
            }
        }
        self.consumer = consumer;
        core::mem::swap(&mut self.entries, &mut self.other);
        self.switched = true;
    }

    /// Takes out all completions of QP `qpn` (its number in the HCA), which writes no more of them.
    pub fn purge(&mut self, core: &Inner<'p, P>, number: u32, qpn: u32) {
        let of_qp = |chain: Chain| {
            let place = core.qp_places.get(chain.qp as usize);
            place.is_none_or(|place| place.number() == qpn)
        };
        if self.odd.chain().is_some_and(of_qp) {
            self.odd.end_chain();
        }
        // In the middle of a resize some may be in the new ring; if the HCA writes there, the old one is complete.
        if !self.switched
            && let (Some(old), Some(new)) = (&self.entries, &self.other)
        {
            let producer = self.consumer.wrapping_add(old.waiting(self.consumer));
            if new.is_ours(self.goes_on(old, producer)) {
                self.change_over();
            }
        }
        self.purge_entries(core, number, qpn);
    }

    fn purge_entries(&mut self, core: &Inner<'p, P>, number: u32, qpn: u32) {
        let Some(entries) = &self.entries else { return };
        let waiting = entries.waiting(self.consumer);
        entries.memory().machine().dma_rmb();
        let mut gone = 0_u32;
        for step in (0..waiting).rev() {
            let index = self.consumer.wrapping_add(step);
            let Ok(cqe) = entries.read(index) else { return };
            if cqe.qpn() & 0xff_ffff == qpn {
                gone = gone.wrapping_add(1);
                core.discard(qpn, &cqe);
            } else if gone > 0 {
                let _ = entries.write(index.wrapping_add(gone), &cqe);
            }
        }
        for step in 0..gone {
            let _ = entries.give(self.consumer.wrapping_add(step));
        }
        if gone != 0 {
            self.consumer = self.consumer.wrapping_add(gone);
            self.tell(core, number, gone);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Machine;

    /// Gives the memory of a test back.
    fn end(memory: DmaBuf<'_, Machine>) {
        Released::never_told().free(memory);
    }

    #[test]
    fn a_counter_that_runs_free_finds_the_entries_of_a_ring_in_turn() {
        let machine = Machine::idle();
        let memory = DmaBuf::new(&machine, 4096, 4096).unwrap();
        let ring = DmaRing::over(memory, 7, 6).unwrap();
        let view = ring.view::<16>().unwrap();
        for counter in [u32::MAX - 1, u32::MAX, 0, 1, 8, 15] {
            view.at(counter).set(15, counter);
            let offset = (counter % 8) * 64;
            assert_eq!(view.offset(counter), offset);
            assert_eq!(ring.read_be32(offset as usize + 60), Ok(counter));
        }
        assert!(ring.view::<17>().is_none(), "an entry has 16 words");
        end(ring.into_memory());
    }

    #[test]
    fn what_is_no_ring_or_does_not_fit_is_refused_and_keeps_its_memory() {
        let machine = Machine::idle();
        let mut memory = DmaBuf::new(&machine, 4096, 4096).unwrap();
        for (mask, shift) in [
            (6, 6),
            (63, 7),
            (0, 13),
            (u32::MAX, 2),
            (7, 1),
            (7, 32),
            (0, 64),
        ] {
            memory = DmaRing::over(memory, mask, shift).unwrap_err();
        }
        let ring = DmaRing::over(memory, 63, 6).unwrap();
        end(ring.into_memory());
        assert_eq!(machine.pieces_out(), 0);
    }
}
