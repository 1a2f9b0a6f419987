//! The send queue: from work requests to WQEs and one doorbell. verbs 4, infinihost 5.
//!
//! Checks come first, in the order of verbs 4.1; then the segments are written, then the WQE is linked to the one
//! before, then it counts. A request that is refused has written nothing that the HCA looks at.
//!
//! Most requests go straight (`straight`), all others word by word (`general`).
//!
//! The modes differ in three places: in M-mode a datagram carries its address vector, every link waits for a doorbell,
//! and a doorbell says how many WQEs it is for, 255 at most, and comes behind a record that says how many there were.

use super::place::{Half, QpPlace, Shape};
use super::straight::{CONNECTED, Chain, DATAGRAM};
use super::wqe::segment;
use crate::bells::Bell;
use crate::inner::Inner;
use core::ops::Range;
use core_ib::QKey;
use core_ib::platform::{DmaRing, OutOfBounds, Platform};
use core_ib::verbs::{PostCause, PostError, QpType, SendWr};
use hca_abi::infinihost::doorbell::SendDoorbell;
use hca_abi::infinihost::wqe::{next, ud};

/// M: WQEs of one doorbell.
pub(super) const MAX_BATCH: u32 = 255;

/// A send queue. Under the lock of its place.
pub(crate) struct SendQueue<'p, P: Platform> {
    pub(super) memory: Option<DmaRing<'p, P>>,
    pub(crate) shape: Shape,
    pub(super) posted: u32,
    /// The state allows posting.
    pub(super) open: bool,
    /// It does, and requests have an entry.
    pub(super) straight: bool,
    /// Reads and atomics may be posted.
    pub(super) reads: bool,
    /// The HCA has atomics.
    pub(super) atomics: bool,
    /// [`next::FENCE`] where requests may have it: RC.
    pub(super) fence: u32,
    pub(crate) service: QpType,
    /// Number in the HCA.
    pub(super) number: u32,
    /// Place of the PD.
    pub(crate) pd: u32,
    /// Key of the queue's own region.
    pub(crate) lkey: u32,
    /// T: key of the region of address vectors.
    pub(super) vectors: u32,
    /// M: its doorbell record.
    pub(super) bell: Bell,
    /// SMI, GSI: the port.
    pub(crate) port: u8,
    /// SMI, GSI: the QP's Q_Key.
    pub(crate) qkey: QKey,
    /// SMI, GSI: PSN of the next packet.
    pub(crate) psn: u32,
}

impl<P: Platform> Default for SendQueue<'_, P> {
    fn default() -> Self {
        Self {
            memory: None,
            shape: Shape::default(),
            posted: 0,
            open: false,
            straight: false,
            reads: false,
            atomics: false,
            fence: 0,
            service: QpType::Ud,
            number: 0,
            pd: 0,
            lkey: 0,
            vectors: 0,
            bell: Bell::default(),
            port: 0,
            qkey: QKey(0),
            psn: 0,
        }
    }
}

/// What the WQE before says of one, and the doorbell.
#[derive(Clone, Copy)]
pub(super) struct Link {
    /// Its address, and its opcode.
    pub nda: u32,
    /// Its length in units, and [`next::FENCE`].
    pub nds: u32,
    /// What its own second half says.
    pub immediate: [u8; 4],
}

impl Link {
    /// The doorbell for it, as T-mode has it; [`m_doorbell`] makes the other of it.
    #[inline]
    pub const fn doorbell(self, qpn: u32) -> u64 {
        SendDoorbell {
            nda: self.nda & !0x3f,
            fence: self.nds & next::FENCE != 0,
            opcode: (self.nda & 0x1f) as u8,
            qpn,
            nds: (self.nds & 0x3f) as u8,
        }
        .encode()
    }
}

/// Requests that are written and linked, but neither counted nor rung for.
#[derive(Clone, Copy)]
pub(super) struct Straight {
    /// Count of the first, and the count behind the last.
    pub begin: u32,
    pub end: u32,
    /// Of the first.
    pub doorbell: u64,
}

impl Straight {
    pub const NONE: Self = Self {
        begin: 0,
        end: 0,
        doorbell: 0,
    };
}

impl<'p, P: Platform> SendQueue<'p, P> {
    /// Writes what is the same in all WQEs for as long as the queue lives. M: which is the next, as a ring. T: the key of the
    /// address vectors of datagrams.
    pub(super) fn prepare(&self, mem_free: bool) -> Result<(), OutOfBounds> {
        let Some(memory) = &self.memory else {
            return Ok(());
        };
        for counter in 0..=self.shape.mask {
            let at = self.shape.offset(counter) as usize;
            let following = self.shape.offset(counter.wrapping_add(1));
            if mem_free {
                let nda = self.shape.base.wrapping_add(following);
                memory.write_be32(at + next::NDA, nda)?;
            } else if self.service == QpType::Ud {
                memory.write_be32(at + 4 * segment(ud::LKEY), self.vectors)?;
            }
        }
        Ok(())
    }

    /// What was posted is forgotten: the QP was reset.
    pub(super) fn forget(&mut self) {
        self.posted = 0;
        self.set_open(false);
        self.reads = false;
    }

    /// From here on the state allows posting, or does not.
    pub(super) fn set_open(&mut self, open: bool) {
        self.open = open;
        self.straight = open && self.shape.max_sge > 0;
    }

    /// Posts `wrs` on a UD QP, in order; the error names the first that was not. One doorbell for all (M: for 255). Thread
    /// or soft interrupt; never blocks, allocates or panics. `M`: the mode.
    #[inline(never)]
    pub(super) fn post_datagrams<const M: bool>(
        core: &Inner<'p, P>,
        place: &QpPlace<'p, P>,
        wrs: &[SendWr<'_>],
    ) -> Result<(), PostError> {
        place.sq.with(|queue| {
            let chain = queue.open_chain::<DATAGRAM, M>(core, &place.send);
            let chain = chain.filter(|_| !M || wrs.len() <= MAX_BATCH as usize);
            let straight = chain.map_or(Straight::NONE, |mut chain| {
                let begin = chain.room.posted;
                queue.append_datagrams(core, &mut chain, wrs);
                chain.since(begin, queue.number)
            });
            queue.finish::<M>(core, &place.send, wrs, straight)
        })
    }

    /// The same on an RC or UC QP.
    #[inline(never)]
    pub(super) fn post_connected<const M: bool>(
        core: &Inner<'p, P>,
        place: &QpPlace<'p, P>,
        wrs: &[SendWr<'_>],
    ) -> Result<(), PostError> {
        place.sq.with(|queue| {
            let chain = queue.open_chain::<CONNECTED, M>(core, &place.send);
            let chain = chain.filter(|_| !M || wrs.len() <= MAX_BATCH as usize);
            let straight = chain.map_or(Straight::NONE, |mut chain| {
                let begin = chain.room.posted;
                queue.append_connected(core, &mut chain, wrs);
                chain.since(begin, queue.number)
            });
            queue.finish::<M>(core, &place.send, wrs, straight)
        })
    }

    /// One datagram: without all that lists need.
    #[inline(never)]
    pub(super) fn post_datagram<const M: bool>(
        core: &Inner<'p, P>,
        place: &QpPlace<'p, P>,
        wr: &SendWr<'_>,
    ) -> Result<(), PostError> {
        place.sq.with(|queue| {
            let chain = queue.open_chain::<DATAGRAM, M>(core, &place.send);
            if let Some(chain) = chain
                && let Some(link) = queue.write_datagram::<M>(core, &chain, wr)
            {
                queue.posted = queue.finish_one(core, &place.send, chain, wr, link);
                return Ok(());
            }
            queue.post_rest(core, &place.send, core::slice::from_ref(wr), 0, 0)
        })
    }

    /// One request of a connected QP.
    #[inline(never)]
    pub(super) fn post_one<const M: bool>(
        core: &Inner<'p, P>,
        place: &QpPlace<'p, P>,
        wr: &SendWr<'_>,
    ) -> Result<(), PostError> {
        place.sq.with(|queue| {
            let chain = queue.open_chain::<CONNECTED, M>(core, &place.send);
            if let Some(chain) = chain
                && let Some(link) = queue.write_connected::<M>(&chain, wr)
            {
                queue.posted = queue.finish_one(core, &place.send, chain, wr, link);
                return Ok(());
            }
            queue.post_rest(core, &place.send, core::slice::from_ref(wr), 0, 0)
        })
    }

    /// Links, counts and rings for one that is written; the count behind it.
    #[inline(always)]
    fn finish_one<const N: usize, const M: bool>(
        &self,
        core: &Inner<'p, P>,
        half: &Half,
        chain: Chain<'_, N, M>,
        wr: &SendWr<'_>,
        link: Link,
    ) -> u32 {
        let begin = chain.room.posted;
        let end = begin.wrapping_add(1);
        let mut chain = chain;
        chain.add(core.machine, wr, link);
        self.start::<M>(core, half, link.doorbell(self.number), begin..end);
        end
    }

    /// The same on an SMI or GSI QP.
    #[inline(never)]
    pub(super) fn post_special(
        core: &Inner<'p, P>,
        place: &QpPlace<'p, P>,
        wrs: &[SendWr<'_>],
    ) -> Result<(), PostError> {
        place
            .sq
            .with(|queue| queue.post_rest(core, &place.send, wrs, 0, 0))
    }

    /// Counts and rings for what went straight, if that is all.
    #[inline(always)]
    fn finish<const M: bool>(
        &mut self,
        core: &Inner<'p, P>,
        half: &Half,
        wrs: &[SendWr<'_>],
        straight: Straight,
    ) -> Result<(), PostError> {
        let Straight {
            begin,
            end,
            doorbell,
        } = straight;
        let count = end.wrapping_sub(begin);
        if count as usize != wrs.len() || count == 0 {
            return self.post_rest(core, half, wrs, count, doorbell);
        }
        self.posted = end;
        self.start::<M>(core, half, doorbell, begin..end);
        Ok(())
    }

    /// In the order of verbs 4.1.
    fn check_open(&self, core: &Inner<'p, P>) -> Result<(), PostCause> {
        if !core.cmd.health().is_alive() {
            return Err(PostCause::DeviceFailed);
        }
        if !self.open {
            return Err(PostCause::InvalidState);
        }
        Ok(())
    }

    /// Posts all of `wrs` but the first `done`, which went straight, and rings for them all; `doorbell` is that of the first
    /// if any did.
    #[cold]
    #[inline(never)]
    fn post_rest(
        &mut self,
        core: &Inner<'p, P>,
        half: &Half,
        wrs: &[SendWr<'_>],
        done: u32,
        doorbell: u64,
    ) -> Result<(), PostError> {
        let mut begin = self.posted;
        self.posted = begin.wrapping_add(done);
        let mut first = (done != 0).then_some(doorbell);
        let mut result = Ok(());
        for (index, wr) in wrs.iter().enumerate().skip(done as usize) {
            if self.posted.wrapping_sub(begin) >= MAX_BATCH && core.chip.is_mem_free() {
                self.start_any(core, half, first.take(), begin);
                begin = self.posted;
            }
            let posted = self.check_open(core).and_then(|()| match self.service {
                QpType::Ud => self.datagram(core, half, wr, first.is_none()),
                _ => self.other(core, half, wr, first.is_none()),
            });
            match posted {
                Ok(doorbell) => first = first.or(Some(doorbell)),
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
    fn start_any(&self, core: &Inner<'p, P>, half: &Half, doorbell: Option<u64>, begin: u32) {
        let posted = begin..self.posted;
        match doorbell {
            None => {}
            Some(doorbell) if core.chip.is_mem_free() => {
                self.start::<true>(core, half, doorbell, posted);
            }
            Some(doorbell) => self.start::<false>(core, half, doorbell, posted),
        }
    }

    /// Counts what was written, and rings for it; `doorbell` is that of the first.
    #[inline(always)]
    fn start<const M: bool>(
        &self,
        core: &Inner<'p, P>,
        half: &Half,
        doorbell: u64,
        posted: Range<u32>,
    ) {
        let Range { start, end } = posted;
        half.count(end);
        core.machine.dma_wmb();
        if !M {
            core.uar.ring_send(doorbell);
            return;
        }
        if let Some(bells) = &core.bells {
            bells.count(self.bell, end & 0xffff);
            core.machine.dma_wmb();
            let count = end.wrapping_sub(start);
            core.uar.ring_send(m_doorbell(doorbell, count, start));
        }
    }
}

/// The doorbell of the M-mode for `count` WQEs (1 to 255), of which the first has this one in T-mode, and is number
/// `counter`. Opcode, fence, QP and size of the first stand in the same places of both. infinihost 2.8, 2.9.
#[inline(always)]
const fn m_doorbell(first: u64, count: u32, counter: u32) -> u64 {
    let about = (count & 0xff) << 24 | (counter & 0xffff) << 8;
    (about as u64) << 32 | first & 0x3f_ffff_ffff
}
#[cfg(test)]
mod tests {
    use super::*;
    use hca_abi::infinihost::doorbell::MSendDoorbell;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_doorbell_of_one_mode_becomes_that_of_the_other(
            nda: u32, fence: bool, opcode in 0..32_u8, qpn in 0..1_u32 << 24, nds in 0..64_u8, count in 1..=255_u8, counter: u32,
        ) {
            let first = SendDoorbell { nda: nda & !0x3f, fence, opcode, qpn, nds };
            let m = MSendDoorbell { count, counter: counter as u16, fence, opcode, qpn, nds };
            prop_assert_eq!(m_doorbell(first.encode(), count.into(), counter), m.encode());
        }
    }
}
