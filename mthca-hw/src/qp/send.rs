//! The send queue: from work requests to WQEs and one doorbell. verbs 4, infinihost 5.
//!
//! Checks come first, in the order of verbs 4.1; then the segments are written, then the WQE is linked to the one
//! before, then it counts. A request that is refused has written nothing that the HCA looks at.
//!
//! The modes differ in three places: in M-mode a datagram carries its address vector, every link waits for a doorbell,
//! and a doorbell says how many WQEs it is for, 255 at most, and comes behind a record that says how many there were.

use super::place::{Half, QpPlace, Shape};
use crate::av::Vector;
use crate::bells::Bell;
use crate::inner::Inner;
use crate::records::RecordRing;
use core::ops::Range;
use core::sync::atomic::Ordering;
use core_ib::QKey;
use core_ib::platform::{DmaBuf, DmaRing, OutOfBounds, Platform, RingEntry, RingView};
use core_ib::verbs::{
    Imm, PostCause, PostError, QpType, RemoteAddr, SendFlags, SendOp, SendWr, Sge,
};
use hca_abi::infinihost::doorbell::SendDoorbell;
use hca_abi::infinihost::wqe::{
    AtomicSegment, DataSegment, INLINE, RemoteAddressSegment, UNIT, UdSegment, WqeOpcode, next, ud,
};

/// Bytes of a segment that counts as one.
pub(super) const SEGMENT: u32 = UNIT as u32;
/// Longest message of a connected QP; of a piece, one byte less than a length that would be read as 0.
const MAX_MESSAGE: u64 = 1 << 31;

/// M: WQEs of one doorbell.
const MAX_BATCH: u32 = 255;

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
struct Link {
    /// Its address, and its opcode.
    nda: u32,
    /// Its length in units, and [`next::FENCE`].
    nds: u32,
    /// What its own second half says.
    immediate: [u8; 4],
}

impl Link {
    /// The doorbell for it, as T-mode has it; [`m_doorbell`] makes the other of it.
    #[inline]
    const fn doorbell(self, qpn: u32) -> u64 {
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
struct Straight {
    /// Count of the first, and the count behind the last.
    begin: u32,
    end: u32,
    /// Of the first.
    doorbell: u64,
}

impl Straight {
    const NONE: Self = Self {
        begin: 0,
        end: 0,
        doorbell: 0,
    };
}

/// WQEs of a call that goes straight, each of at least `N` words.
struct Chain<'q, const N: usize, const M: bool> {
    ring: RingView<'q, N>,
    records: RecordRing<'q>,
    /// Count of the next.
    posted: u32,
    /// Count of the first that there is no room for.
    full: u32,
    /// The WQE before it.
    before: RingEntry<'q, N>,
    /// Not 0 if the next waits for the doorbell: in T-mode the first.
    waits: u32,
}

impl<'q, const N: usize, const M: bool> Chain<'q, N, M> {
    /// The next.
    #[inline(always)]
    fn wqe(&self) -> RingEntry<'q, N> {
        self.ring.at(self.posted)
    }

    /// What was appended from count `begin` on, the chain's beginning. The doorbell says of the first what the WQE before it
    /// does: if an HCA has changed that in between, it tells itself so.
    #[inline(always)]
    fn since(&self, begin: u32, qpn: u32) -> Straight {
        let before = self.ring.at(begin.wrapping_sub(1));
        let first = Link {
            nda: before.get(next::NDA / 4),
            nds: before.get(next::NDS / 4),
            immediate: [0; 4],
        };
        Straight {
            begin,
            end: self.posted,
            doorbell: first.doorbell(qpn),
        }
    }

    /// Ends it, and links it to the one before in the order of infinihost 2.11.
    #[inline(always)]
    fn add<P: Platform>(&mut self, machine: &P, wr: &SendWr<'_>, link: Link) {
        let wqe = self.wqe();
        if !M {
            wqe.set_long(next::NDA / 4, 0);
        }
        let offered = if M && N == DATAGRAM {
            CHECKSUMS
        } else {
            SendFlags::empty()
        };
        let [a, b, c, d] = flags_of(wr.flags, offered).to_be_bytes();
        let [e, f, g, h] = link.immediate;
        wqe.set_bytes(next::FLAGS / 4, [a, b, c, d, e, f, g, h]);
        let record = self.records.at(self.posted);
        record.wr_id.store(wr.wr_id, Ordering::Relaxed);
        if !M {
            record.link.store(self.waits, Ordering::Relaxed);
        }
        self.before.set(next::NDA / 4, link.nda);
        machine.dma_wmb();
        self.before.set(next::NDS / 4, link.nds | self.waits);
        if !M {
            self.waits = 0;
        }
        self.before = wqe;
        self.posted = self.posted.wrapping_add(1);
    }
}

/// Words of a datagram's WQE before its data.
const DATAGRAM_WORDS: usize = (UNIT + size_of::<UdSegment>()) / 4;

/// Words of one with a single entry.
const DATAGRAM: usize = DATAGRAM_WORDS + UNIT / 4;

/// Words that every WQE of a connected QP has room for: an atomic, or a bind.
const CONNECTED: usize = 4 * UNIT / 4;

/// From the flag of a request to the bit of a link.
const FENCE_OF_FLAG: u32 = next::FENCE / SendFlags::FENCE.bits() as u32;

/// The word of a WQE at `offset` bytes of its second segment.
const fn segment(offset: usize) -> usize {
    (UNIT + offset) / 4
}

/// Where writing has come to, and what the doorbell will say.
#[derive(Clone, Copy)]
pub(crate) struct Wqe {
    /// Offset of the WQE in the queue's memory.
    pub at: u32,
    /// Offset behind its last segment.
    pub end: u32,
    pub opcode: WqeOpcode,
    /// The dword of flags.
    pub flags: u32,
    /// The dword behind it.
    pub immediate: u32,
}

/// Appends `wrs` up to the first that `write` does not write. They are to be counted before the doorbell: nothing of a call
/// is executed earlier.
#[inline(always)]
fn append_all<'q, const N: usize, const M: bool>(
    chain: &mut Chain<'q, N, M>,
    machine: &impl Platform,
    wrs: &[SendWr<'_>],
    write: impl Fn(&Chain<'q, N, M>, &SendWr<'_>) -> Option<Link>,
) {
    for wr in wrs {
        if chain.posted == chain.full {
            return;
        }
        let Some(link) = write(chain, wr) else { return };
        chain.add(machine, wr, link);
    }
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
                let begin = chain.posted;
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
                let begin = chain.posted;
                queue.append_connected(core, &mut chain, wrs);
                chain.since(begin, queue.number)
            });
            queue.finish::<M>(core, &place.send, wrs, straight)
        })
    }

    /// Appends datagrams up to the first that does not go straight. A function of its own, so that its loop has the
    /// registers.
    #[inline(never)]
    fn append_datagrams<'q, const M: bool>(
        &'q self,
        core: &'q Inner<'p, P>,
        chain: &mut Chain<'q, DATAGRAM, M>,
        wrs: &[SendWr<'_>],
    ) {
        append_all(chain, core.machine, wrs, |chain, wr| {
            self.write_datagram::<M>(core, chain, wr)
        });
    }

    /// The same for connected QPs.
    #[inline(always)]
    fn append_connected<'q, const M: bool>(
        &'q self,
        core: &'q Inner<'p, P>,
        chain: &mut Chain<'q, CONNECTED, M>,
        wrs: &[SendWr<'_>],
    ) {
        append_all(chain, core.machine, wrs, |chain, wr| {
            self.write_connected::<M>(chain, wr)
        });
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
        let begin = chain.posted;
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

    /// The chain that requests are appended to, if posting may go straight and there is room.
    #[inline(always)]
    fn open_chain<'q, const N: usize, const M: bool>(
        &'q self,
        core: &'q Inner<'p, P>,
        half: &Half,
    ) -> Option<Chain<'q, N, M>> {
        let ring = self.memory.as_ref()?.view::<N>()?;
        if !self.straight || !core.cmd.health().is_alive() {
            return None;
        }
        let posted = self.posted;
        // One WQE is never used: infinihost 5.1.
        let full = half.retired().wrapping_add(ring.mask());
        (posted != full).then_some(Chain {
            ring,
            records: half.ring(ring.mask(), &core.records)?,
            posted,
            full,
            before: ring.at(posted.wrapping_sub(1)),
            waits: next::DBD,
        })
    }

    /// Writes the segments of a datagram of one entry; `None` if it is another, or there is something against it.
    #[inline(always)]
    fn write_datagram<const M: bool>(
        &self,
        core: &Inner<'p, P>,
        chain: &Chain<'_, DATAGRAM, M>,
        wr: &SendWr<'_>,
    ) -> Option<Link> {
        let [sge] = wr.sges else { return None };
        let SendOp::Datagram {
            ah,
            remote_qpn,
            remote_qkey,
            imm,
            ..
        } = &wr.op
        else {
            return None;
        };
        if !fits(sge)
            || wr.flags.contains(SendFlags::INLINE)
            || ah.device() != core.device
            || !core.av.is_in(*ah, self.pd)
        {
            return None;
        }
        let wqe = chain.wqe();
        if M {
            let vector = core.av.own_vector(ah.index())?;
            put_vector(wqe, vector);
        } else {
            wqe.set_long(segment(ud::AV_ADDRESS_HIGH), core.av.address(ah.index()));
        }
        let (opcode, immediate) = match imm {
            Some(Imm(bytes)) => (WqeOpcode::SEND_IMM, *bytes),
            None => (WqeOpcode::SEND, [0; 4]),
        };
        wqe.set_pair(segment(ud::DEST_QPN), remote_qpn.get(), remote_qkey.0);
        put_entry(wqe, DATAGRAM_WORDS, sge);
        let nda = self
            .shape
            .base
            .wrapping_add(chain.ring.offset(chain.posted));
        Some(Link {
            nda: nda | u32::from(opcode.0),
            nds: (DATAGRAM * 4 / UNIT) as u32,
            immediate,
        })
    }

    /// Writes the segments of a request of a connected QP, of one entry or inline; `None` if it is another, or there is
    /// something against it.
    #[inline(always)]
    fn write_connected<const M: bool>(
        &self,
        chain: &Chain<'_, CONNECTED, M>,
        wr: &SendWr<'_>,
    ) -> Option<Link> {
        let wqe = chain.wqe();
        let (plain, immediate, data, ahead) = match &wr.op {
            SendOp::Send { imm } => (WqeOpcode::SEND, imm, wqe.part::<4, 4>(), 1),
            SendOp::RdmaWrite { remote, imm } => {
                put_remote(wqe, remote);
                (WqeOpcode::RDMA_WRITE, imm, wqe.part::<8, 4>(), 2)
            }
            SendOp::RdmaRead { remote } if self.may_read(wr) => {
                put_remote(wqe, remote);
                (WqeOpcode::RDMA_READ, &None, wqe.part::<8, 4>(), 2)
            }
            SendOp::CompareSwap {
                remote,
                compare,
                swap,
            } if self.may_atomic(wr, remote) => {
                put_remote(wqe, remote);
                wqe.set_long(8, *swap);
                wqe.set_long(10, *compare);
                (WqeOpcode::ATOMIC_CS, &None, wqe.part::<12, 4>(), 3)
            }
            SendOp::FetchAdd { remote, add } if self.may_atomic(wr, remote) => {
                put_remote(wqe, remote);
                wqe.set_long(8, *add);
                wqe.set_long(10, 0);
                (WqeOpcode::ATOMIC_FA, &None, wqe.part::<12, 4>(), 3)
            }
            _ => return None,
        };
        let units = if wr.flags.contains(SendFlags::INLINE) {
            let length = wr.inline.len();
            let at = ahead as usize * UNIT;
            let head = INLINE | length as u32;
            if length.wrapping_sub(1) >= self.shape.max_inline as usize
                || !chain.ring.put_inline(chain.posted, at, head, wr.inline)
            {
                return None;
            }
            ((at + 4 + length).div_ceil(UNIT)) as u32
        } else {
            let [sge] = wr.sges else { return None };
            if !fits(sge) {
                return None;
            }
            // The answer of an atomic has 8 bytes, whatever room there is.
            let length = if ahead == 3 { 8 } else { sge.length };
            put_entry(data, 0, &Sge { length, ..*sge });
            ahead + 1
        };
        let immediate = immediate.as_ref();
        // "With immediate" is the next number.
        let opcode = u32::from(plain.0) + u32::from(immediate.is_some());
        let fence = u32::from((wr.flags & SendFlags::FENCE).bits()) * FENCE_OF_FLAG;
        Some(Link {
            nda: self
                .shape
                .base
                .wrapping_add(chain.ring.offset(chain.posted))
                | opcode,
            nds: units | fence & self.fence,
            immediate: immediate.map_or([0; 4], |&Imm(bytes)| bytes),
        })
    }

    /// A request whose data comes from the peer may be posted.
    #[inline(always)]
    fn may_read(&self, wr: &SendWr<'_>) -> bool {
        self.reads && !wr.flags.contains(SendFlags::INLINE)
    }

    /// So may an atomic.
    #[inline(always)]
    fn may_atomic(&self, wr: &SendWr<'_>, remote: &RemoteAddr) -> bool {
        let [sge] = wr.sges else { return false };
        self.may_read(wr) && self.atomics && sge.length >= 8 && remote.addr & 7 == 0
    }

    /// Room for one more? Checks in the order of verbs 4.1.
    #[inline]
    fn check_room(&self, half: &Half, wr: &SendWr<'_>) -> Result<(), PostCause> {
        if self.posted.wrapping_sub(half.retired()) >= self.shape.mask {
            return Err(PostCause::QueueFull); // one WQE is never used: infinihost 5.1
        }
        if wr.sges.len() > self.shape.max_sge as usize {
            return Err(PostCause::TooManySge);
        }
        Ok(())
    }

    /// Writes the WQE of any datagram, dword by dword: what is zero in all of them was so from the start.
    #[cold]
    #[inline(never)]
    fn datagram(
        &mut self,
        core: &Inner<'p, P>,
        half: &Half,
        wr: &SendWr<'_>,
        first: bool,
    ) -> Result<u64, PostCause> {
        self.check_room(half, wr)?;
        let SendOp::Datagram {
            ah,
            remote_qpn,
            remote_qkey,
            imm,
            ..
        } = wr.op
        else {
            return Err(PostCause::InvalidOpcode);
        };
        let inline = wr.flags.contains(SendFlags::INLINE);
        if inline {
            self.check_inline(wr)?;
        }
        if ah.device() != core.device || !core.av.is_in(ah, self.pd) {
            return Err(PostCause::InvalidHandle);
        }
        let memory = self.memory.as_ref().ok_or(PostCause::InvalidState)?;
        let at = self.shape.offset(self.posted);
        let words = memory.words::<DATAGRAM_WORDS>(at as usize)?;
        let mut end = at.wrapping_add(4 * DATAGRAM_WORDS as u32);
        if inline {
            put_inline(memory, &mut end, wr.inline)?;
        } else {
            put_sges(memory, &mut end, wr.sges)?;
        }
        let (opcode, immediate) = match imm {
            Some(Imm(bytes)) => (WqeOpcode::SEND_IMM, u32::from_be_bytes(bytes)),
            None => (WqeOpcode::SEND, 0),
        };
        if let Some(vector) = core.av.own_vector(ah.index()) {
            for (at, pair) in (segment(0)..).step_by(2).zip(vector) {
                let pair = u64::from_be(pair.load(Ordering::Relaxed));
                words.set(at, (pair >> 32) as u32);
                words.set(at + 1, pair as u32);
            }
        } else {
            let vector = core.av.address(ah.index());
            words.set(segment(ud::AV_ADDRESS_HIGH), (vector >> 32) as u32);
            words.set(segment(ud::AV_ADDRESS_LOW), vector as u32);
            words.set(next::NDA / 4, 0);
            words.set(next::NDS / 4, 0);
        }
        words.set(segment(ud::DEST_QPN), remote_qpn.get());
        words.set(segment(ud::Q_KEY), remote_qkey.0);
        let offered = if core.chip.is_mem_free() {
            CHECKSUMS
        } else {
            SendFlags::empty()
        };
        words.set(next::FLAGS / 4, flags_of(wr.flags, offered));
        words.set(next::IMMEDIATE / 4, immediate);
        let link = Link {
            nda: self.shape.base.wrapping_add(at) | u32::from(opcode.0),
            nds: end.wrapping_sub(at) / SEGMENT,
            immediate: [0; 4],
        };
        self.link(core, half, wr.wr_id, link, first)
    }

    /// Writes the WQE of any other request.
    fn other(
        &mut self,
        core: &Inner<'p, P>,
        half: &Half,
        wr: &SendWr<'_>,
        first: bool,
    ) -> Result<u64, PostCause> {
        self.check_room(half, wr)?;
        let memory = self.memory.as_ref().ok_or(PostCause::InvalidState)?;
        let at = self.shape.offset(self.posted);
        let mut wqe = Wqe {
            at,
            end: at.wrapping_add(SEGMENT),
            opcode: WqeOpcode::SEND,
            flags: flags_of(wr.flags, SendFlags::empty()),
            immediate: 0,
        };
        match self.service {
            QpType::Rc | QpType::Uc => match wr.op {
                SendOp::BindMw { .. } => self.bind(core, memory, &mut wqe, wr)?,
                _ => self.connected(memory, &mut wqe, wr)?,
            },
            _ => {
                self.special(core, memory, &mut wqe, wr)?;
                self.psn = self.psn.wrapping_add(1);
            }
        }
        let memory = self.memory.as_ref().ok_or(PostCause::InvalidState)?;
        let control = memory.words::<4>(at as usize)?;
        if !core.chip.is_mem_free() {
            control.set(next::NDA / 4, 0);
            control.set(next::NDS / 4, 0);
        }
        control.set(next::FLAGS / 4, wqe.flags);
        control.set(next::IMMEDIATE / 4, wqe.immediate);
        let fenced = wr.flags.contains(SendFlags::FENCE);
        let fence = if fenced { self.fence } else { 0 };
        let link = Link {
            nda: self.shape.base.wrapping_add(at) | u32::from(wqe.opcode.0),
            nds: (wqe.end.wrapping_sub(at) / SEGMENT) | fence,
            immediate: [0; 4],
        };
        self.link(core, half, wr.wr_id, link, first)
    }

    /// Links a WQE that is written to the one before, in the order of infinihost 2.11, and counts it. The doorbell that
    /// starts it.
    #[inline(always)]
    fn link(
        &mut self,
        core: &Inner<'p, P>,
        half: &Half,
        wr_id: u64,
        link: Link,
        first: bool,
    ) -> Result<u64, PostCause> {
        let memory = self.memory.as_ref().ok_or(PostCause::InvalidState)?;
        let before = self.shape.offset(self.posted.wrapping_sub(1));
        let before = memory.words::<2>(before as usize)?;
        let mem_free = core.chip.is_mem_free();
        let waits = if first || mem_free { next::DBD } else { 0 };
        half.remember(self.posted, wr_id, first, &core.records);
        before.set(next::NDA / 4, link.nda);
        core.machine.dma_wmb();
        before.set(next::NDS / 4, link.nds | waits);
        self.posted = self.posted.wrapping_add(1);
        Ok(link.doorbell(self.number))
    }

    fn connected(
        &self,
        memory: &DmaBuf<'p, P>,
        wqe: &mut Wqe,
        wr: &SendWr<'_>,
    ) -> Result<(), PostCause> {
        let rc = self.service == QpType::Rc;
        match wr.op {
            SendOp::Send { imm } => {
                self.check_data(wr)?;
                self.put_immediate(wqe, imm, WqeOpcode::SEND, WqeOpcode::SEND_IMM);
            }
            SendOp::RdmaWrite { remote, imm } => {
                self.check_data(wr)?;
                self.put_remote(memory, wqe, remote)?;
                let plain = WqeOpcode::RDMA_WRITE;
                self.put_immediate(wqe, imm, plain, WqeOpcode::RDMA_WRITE_IMM);
            }
            SendOp::RdmaRead { remote } if rc => {
                self.check_response(wr)?;
                self.put_remote(memory, wqe, remote)?;
                wqe.opcode = WqeOpcode::RDMA_READ;
            }
            SendOp::CompareSwap {
                remote,
                compare,
                swap,
            } if rc && self.atomics => {
                wqe.opcode = WqeOpcode::ATOMIC_CS;
                return self.put_atomic(memory, wqe, wr, remote, swap, compare);
            }
            SendOp::FetchAdd { remote, add } if rc && self.atomics => {
                wqe.opcode = WqeOpcode::ATOMIC_FA;
                return self.put_atomic(memory, wqe, wr, remote, add, 0);
            }
            _ => return Err(PostCause::InvalidOpcode),
        }
        self.put_data(memory, wqe, wr)
    }

    fn check_inline(&self, wr: &SendWr<'_>) -> Result<(), PostCause> {
        if wr.inline.len() > self.shape.max_inline as usize {
            return Err(PostCause::InlineTooLong);
        }
        Ok(())
    }

    /// A request whose data goes to the peer.
    fn check_data(&self, wr: &SendWr<'_>) -> Result<(), PostCause> {
        if wr.flags.contains(SendFlags::INLINE) {
            return self.check_inline(wr);
        }
        check_length(wr.sges)
    }

    /// A request whose data comes from the peer.
    fn check_response(&self, wr: &SendWr<'_>) -> Result<(), PostCause> {
        if wr.flags.contains(SendFlags::INLINE) {
            return Err(PostCause::InlineTooLong);
        }
        if !self.reads {
            return Err(PostCause::InvalidState);
        }
        check_length(wr.sges)
    }

    #[inline]
    fn put_immediate(&self, wqe: &mut Wqe, imm: Option<Imm>, plain: WqeOpcode, with: WqeOpcode) {
        match imm {
            Some(Imm(bytes)) => {
                wqe.opcode = with;
                wqe.immediate = u32::from_be_bytes(bytes);
            }
            None => wqe.opcode = plain,
        }
    }

    fn put_remote(
        &self,
        memory: &DmaBuf<'p, P>,
        wqe: &mut Wqe,
        remote: RemoteAddr,
    ) -> Result<(), PostCause> {
        let mut segment = RemoteAddressSegment::ZERO;
        segment.set_address(remote.addr).set_rkey(remote.rkey.0);
        memory.words::<4>(wqe.end as usize)?.write(&segment);
        wqe.end = wqe.end.wrapping_add(SEGMENT);
        Ok(())
    }

    /// The whole of an atomic behind its first segment. The old value comes to the 8 bytes of one entry.
    fn put_atomic(
        &self,
        memory: &DmaBuf<'p, P>,
        wqe: &mut Wqe,
        wr: &SendWr<'_>,
        remote: RemoteAddr,
        swap_add: u64,
        compare: u64,
    ) -> Result<(), PostCause> {
        self.check_response(wr)?;
        let &[
            Sge {
                addr, length, lkey, ..
            },
        ] = wr.sges
        else {
            return Err(PostCause::InvalidAttr);
        };
        if length < 8 || !remote.addr.is_multiple_of(8) {
            return Err(PostCause::InvalidAttr);
        }
        self.put_remote(memory, wqe, remote)?;
        let mut segment = AtomicSegment::ZERO;
        segment.set_swap_add(swap_add).set_compare(compare);
        memory.write(wqe.end as usize, &segment)?;
        wqe.end = wqe.end.wrapping_add(SEGMENT);
        memory.write(wqe.end as usize, &DataSegment::new(8, lkey.0, addr))?;
        wqe.end = wqe.end.wrapping_add(SEGMENT);
        Ok(())
    }

    /// The data itself, or where it is.
    #[inline]
    fn put_data(
        &self,
        memory: &DmaBuf<'p, P>,
        wqe: &mut Wqe,
        wr: &SendWr<'_>,
    ) -> Result<(), PostCause> {
        if wr.flags.contains(SendFlags::INLINE) {
            return put_inline(memory, &mut wqe.end, wr.inline);
        }
        put_sges(memory, &mut wqe.end, wr.sges)
    }
}

/// The doorbell of the M-mode for `count` WQEs (1 to 255), of which the first has this one in T-mode, and is number
/// `counter`. Opcode, fence, QP and size of the first stand in the same places of both. infinihost 2.8, 2.9.
#[inline(always)]
const fn m_doorbell(first: u64, count: u32, counter: u32) -> u64 {
    let about = (count & 0xff) << 24 | (counter & 0xffff) << 8;
    (about as u64) << 32 | first & 0x3f_ffff_ffff
}

/// Copies an address vector into the segment of a datagram.
#[inline(always)]
fn put_vector<const N: usize>(wqe: RingEntry<'_, N>, vector: &Vector) {
    for (at, pair) in (segment(0)..).step_by(2).zip(vector) {
        wqe.set_bytes(at, pair.load(Ordering::Relaxed).to_ne_bytes());
    }
}

/// Writes the segment of the peer's memory.
#[inline(always)]
fn put_remote<const N: usize>(wqe: RingEntry<'_, N>, remote: &RemoteAddr) {
    wqe.set_long(4, remote.addr);
    wqe.set_pair(6, remote.rkey.0, 0);
}

/// M: flags that datagrams alone may have.
const CHECKSUMS: SendFlags = SendFlags::IP_CHECKSUM.union(SendFlags::L4_CHECKSUM);

/// The dword of flags: `L4_CHECKSUM` is bit 5, `IP_CHECKSUM` bit 4, if they are `offered`; `SIGNALED` is bit 3, `SOLICITED`
/// bit 1, bit 0 is set. infinihost 5.4.
#[inline(always)]
fn flags_of(flags: SendFlags, offered: SendFlags) -> u32 {
    let flags = flags & (SendFlags::SIGNALED | SendFlags::SOLICITED | offered);
    let bit = |flag: SendFlags, dword: u32| {
        let scale = dword / u32::from(flag.bits());
        u32::from((flags & flag).bits()) * scale
    };
    next::ALWAYS_ONE
        | bit(SendFlags::SIGNALED, next::SIGNALED)
        | bit(SendFlags::SOLICITED, next::SOLICITED)
        | bit(SendFlags::IP_CHECKSUM, next::IP_CHECKSUM)
        | bit(SendFlags::L4_CHECKSUM, next::L4_CHECKSUM)
}

/// Neither empty (0 is 2^31 there) nor longer than there is.
#[inline(always)]
pub(crate) fn fits(sge: &Sge) -> bool {
    sge.length.wrapping_sub(1) < i32::MAX as u32
}

fn check_length(sges: &[Sge]) -> Result<(), PostCause> {
    let total: u64 = sges.iter().map(|sge| u64::from(sge.length)).sum();
    if total > MAX_MESSAGE {
        return Err(PostCause::InvalidAttr);
    }
    Ok(())
}

/// Writes one entry, which [`fits`], at word `at` (even).
#[inline(always)]
pub(crate) fn put_entry<const N: usize>(wqe: RingEntry<'_, N>, at: usize, sge: &Sge) {
    wqe.set_pair(at, sge.length, sge.lkey.0);
    wqe.set_long(at + 2, sge.addr);
}

/// Writes the entries that are not empty, from offset `end` on.
#[inline(always)]
pub(crate) fn put_sges<P: Platform>(
    memory: &DmaBuf<'_, P>,
    end: &mut u32,
    sges: &[Sge],
) -> Result<(), PostCause> {
    for sge in sges {
        if sge.length == 0 {
            continue; // length 0 is 2^31 there
        }
        if sge.length > i32::MAX as u32 {
            return Err(PostCause::InvalidAttr);
        }
        let segment = DataSegment::new(sge.length, sge.lkey.0, sge.addr);
        memory.words::<4>(*end as usize)?.write(&segment);
        *end = end.wrapping_add(SEGMENT);
    }
    Ok(())
}

/// Writes one inline segment from offset `end` on, padded to whole units. No data is no segment.
#[inline(never)]
fn put_inline<P: Platform>(
    memory: &DmaBuf<'_, P>,
    end: &mut u32,
    data: &[u8],
) -> Result<(), PostCause> {
    if data.is_empty() {
        return Ok(());
    }
    memory.write_be32(*end as usize, INLINE | data.len() as u32)?;
    memory.copy_in(*end as usize + 4, data)?;
    let taken = (data.len() as u32 + 4).next_multiple_of(SEGMENT);
    *end = end.wrapping_add(taken);
    Ok(())
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
