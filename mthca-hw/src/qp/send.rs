//! The send queue: from work requests to WQEs and one doorbell. verbs 4, infinihost 5.
//!
//! Checks come first, in the order of verbs 4.1; then the segments are written, then the WQE is linked to the one
//! before, then it counts. A request that is refused has written nothing that the HCA looks at.
//!
//! The modes differ in three places: in M-mode a datagram carries its address vector, every link waits for a doorbell,
//! and a doorbell says how many WQEs it is for, 255 at most, and comes behind a record that says how many there were.

use super::place::{Half, Shape};
use crate::av::VECTOR_WORDS;
use crate::bells::Bell;
use crate::inner::Inner;
use core::sync::atomic::{AtomicU32, Ordering};
use core_ib::QKey;
use core_ib::platform::{DmaBuf, DmaRing, OutOfBounds, Platform, Words};
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
const MAX_BATCH: usize = 255;

/// A send queue. Under the lock of its place.
pub(crate) struct SendQueue<'p, P: Platform> {
    pub(super) memory: Option<DmaRing<'p, P>>,
    pub(crate) shape: Shape,
    pub(super) posted: u32,
    /// The state allows posting.
    pub(super) open: bool,
    /// Reads and atomics may be posted.
    pub(super) reads: bool,
    /// The HCA has atomics.
    pub(super) atomics: bool,
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
            reads: false,
            atomics: false,
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
    /// Offset in the queue's memory.
    at: u32,
    /// Its length.
    units: u32,
    opcode: WqeOpcode,
    fence: bool,
}

/// Words of a datagram's WQE before its data.
const DATAGRAM_WORDS: usize = (UNIT + size_of::<UdSegment>()) / 4;

/// Words of one with a single entry.
const STRAIGHT_WORDS: usize = DATAGRAM_WORDS + UNIT / 4;

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

impl<'p, P: Platform> SendQueue<'p, P> {
    /// M: names to each WQE the next, as a ring.
    pub(super) fn link_all(&self) -> Result<(), OutOfBounds> {
        let Some(memory) = &self.memory else {
            return Ok(());
        };
        for counter in 0..=self.shape.mask {
            let at = self.shape.offset(counter) as usize;
            let following = self.shape.offset(counter.wrapping_add(1));
            let nda = self.shape.base.wrapping_add(following);
            memory.write_be32(at + next::NDA, nda)?;
        }
        Ok(())
    }

    /// What was posted is forgotten: the QP was reset.
    pub(super) fn forget(&mut self) {
        self.posted = 0;
        self.open = false;
        self.reads = false;
    }

    /// Posts `wrs` in order; the error names the first that was not. One doorbell for all. Thread or soft interrupt;
    /// never blocks, allocates or panics. Caller holds this queue's lock.
    #[inline(never)]
    pub(super) fn post(
        &mut self,
        core: &Inner<'p, P>,
        half: &Half,
        wrs: &[SendWr<'_>],
    ) -> Result<(), PostError> {
        if !self.open || !core.cmd.health().is_alive() {
            return self.refuse(core, wrs);
        }
        if !core.chip.is_mem_free() {
            return self.post_some::<false>(core, half, wrs);
        }
        if wrs.len() > MAX_BATCH {
            return self.post_many(core, half, wrs);
        }
        self.post_some::<true>(core, half, wrs)
    }

    /// As many as a doorbell tells of. `M`: the mode.
    #[inline(always)]
    fn post_some<const M: bool>(
        &mut self,
        core: &Inner<'p, P>,
        half: &Half,
        wrs: &[SendWr<'_>],
    ) -> Result<(), PostError> {
        if self.service == QpType::Ud {
            self.post_datagrams::<M>(core, half, wrs)
        } else {
            self.post_others(core, half, wrs)
        }
    }

    /// M: more than a doorbell tells of.
    #[cold]
    #[inline(never)]
    fn post_many(
        &mut self,
        core: &Inner<'p, P>,
        half: &Half,
        wrs: &[SendWr<'_>],
    ) -> Result<(), PostError> {
        let mut before = 0_usize;
        for some in wrs.chunks(MAX_BATCH) {
            self.post_some::<true>(core, half, some)
                .map_err(|error| PostError {
                    index: before.saturating_add(error.index),
                    ..error
                })?;
            before = before.saturating_add(some.len());
        }
        Ok(())
    }

    /// In the order of verbs 4.1.
    #[cold]
    #[inline(never)]
    fn refuse(&self, core: &Inner<'p, P>, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
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

    /// Datagrams of one entry, which is what they mostly are, go straight into their WQEs; from the first on that is
    /// another, or that there is something against, all go by [`datagram`](Self::datagram).
    #[inline(always)]
    fn post_datagrams<const M: bool>(
        &mut self,
        core: &Inner<'p, P>,
        half: &Half,
        wrs: &[SendWr<'_>],
    ) -> Result<(), PostError> {
        let begin = self.posted;
        let (straight, doorbell) = self.straight::<M>(core, half, wrs);
        self.posted = begin.wrapping_add(straight);
        if straight as usize != wrs.len() {
            return self.post_rest(core, half, wrs, straight as usize, doorbell);
        }
        if straight != 0 {
            self.start(core, half, doorbell, begin);
        }
        Ok(())
    }

    /// Posts all but the first `done` of `wrs`, and rings for them all; `doorbell` is that of the first, if any.
    #[cold]
    #[inline(never)]
    fn post_rest(
        &mut self,
        core: &Inner<'p, P>,
        half: &Half,
        wrs: &[SendWr<'_>],
        done: usize,
        doorbell: u64,
    ) -> Result<(), PostError> {
        let begin = self.posted.wrapping_sub(done as u32);
        let mut first = (done != 0).then_some(doorbell);
        let mut result = Ok(());
        for (index, wr) in wrs.iter().enumerate().skip(done) {
            match self.datagram(core, half, wr, first.is_none()) {
                Ok(doorbell) => first = first.or(Some(doorbell)),
                Err(cause) => {
                    result = Err(PostError { index, cause });
                    break;
                }
            }
        }
        if let Some(doorbell) = first {
            self.start(core, half, doorbell, begin);
        }
        result
    }

    /// Counts what was written from count `begin` on, and rings for it; `doorbell` is that of the first.
    #[inline(always)]
    fn start(&self, core: &Inner<'p, P>, half: &Half, doorbell: u64, begin: u32) {
        half.count(self.posted);
        core.machine.dma_wmb();
        match &core.bells {
            None => core.uar.ring_send(doorbell),
            Some(bells) => {
                bells.count(self.bell, self.posted & 0xffff);
                core.machine.dma_wmb();
                let count = self.posted.wrapping_sub(begin);
                core.uar.ring_send(m_doorbell(doorbell, count, begin));
            }
        }
    }

    /// Writes and links the WQEs of `wrs` up to the first that is no datagram of one entry, or that there is something
    /// against; how many, and the doorbell of the first. They are to be counted before that is rung: nothing of a call
    /// is executed earlier.
    #[inline(always)]
    fn straight<const M: bool>(
        &self,
        core: &Inner<'p, P>,
        half: &Half,
        wrs: &[SendWr<'_>],
    ) -> (u32, u64) {
        let ring = self
            .memory
            .as_ref()
            .and_then(DmaRing::view::<STRAIGHT_WORDS>);
        let Some(ring) = ring.filter(|_| self.shape.max_sge > 0) else {
            return (0, 0);
        };
        let begin = self.posted;
        let room = self
            .shape
            .mask
            .saturating_sub(begin.wrapping_sub(half.retired()));
        let units = (STRAIGHT_WORDS * 4 / UNIT) as u32;
        let mut waits = next::DBD;
        let mut is_first = true;
        let mut first_nda = 0;
        let mut posted = begin;
        for wr in wrs.iter().take(room as usize) {
            let &[sge] = wr.sges else { break };
            let SendOp::Datagram {
                ah,
                remote_qpn,
                remote_qkey,
                imm,
                ..
            } = wr.op
            else {
                break;
            };
            if sge.length.wrapping_sub(1) >= i32::MAX as u32
                || wr.flags.contains(SendFlags::INLINE)
                || ah.device() != core.device
                || !core.av.is_in(ah, self.pd)
            {
                break;
            }
            let Some(record) = half.record(posted, &core.records) else {
                break;
            };
            let wqe = ring.at(posted);
            if M {
                let Some(vector) = core.av.words(ah.index()) else {
                    break;
                };
                put_vector(wqe, vector);
            } else {
                let vector = core.av.address(ah.index());
                wqe.set(next::NDA / 4, 0);
                wqe.set(next::NDS / 4, 0);
                wqe.set(segment(ud::LKEY), self.vectors);
                wqe.set(segment(ud::AV_ADDRESS_HIGH), (vector >> 32) as u32);
                wqe.set(segment(ud::AV_ADDRESS_LOW), vector as u32);
            }
            let (opcode, immediate) = match imm {
                Some(Imm(bytes)) => (WqeOpcode::SEND_IMM, u32::from_be_bytes(bytes)),
                None => (WqeOpcode::SEND, 0),
            };
            wqe.set(next::FLAGS / 4, flags_of(wr.flags));
            wqe.set(next::IMMEDIATE / 4, immediate);
            wqe.set(segment(ud::DEST_QPN), remote_qpn.get());
            wqe.set(segment(ud::Q_KEY), remote_qkey.0);
            put_entry(wqe, DATAGRAM_WORDS, &sge);
            record.wr_id.store(wr.wr_id, Ordering::Relaxed);
            // Not 0 for the first of a call: its link waits for the doorbell.
            record.link.store(waits, Ordering::Relaxed);
            let nda = self.shape.base.wrapping_add(ring.offset(posted)) | u32::from(opcode.0);
            let before = ring.at(posted.wrapping_sub(1));
            before.set(next::NDA / 4, nda);
            core.machine.dma_wmb();
            before.set(next::NDS / 4, units | waits);
            if is_first {
                first_nda = nda;
                is_first = false;
                if !M {
                    waits = 0;
                }
            }
            posted = posted.wrapping_add(1);
        }
        (posted.wrapping_sub(begin), self.doorbell(first_nda, units))
    }

    /// The doorbell for a WQE, as T-mode has it; [`m_doorbell`] makes the other of it.
    #[inline]
    const fn doorbell(&self, nda: u32, units: u32) -> u64 {
        SendDoorbell {
            nda: nda & !0x3f,
            fence: false,
            opcode: (nda & 0x1f) as u8,
            qpn: self.number,
            nds: units as u8,
        }
        .encode()
    }

    #[inline(never)]
    fn post_others(
        &mut self,
        core: &Inner<'p, P>,
        half: &Half,
        wrs: &[SendWr<'_>],
    ) -> Result<(), PostError> {
        let begin = self.posted;
        let mut first = None;
        let mut result = Ok(());
        for (index, wr) in wrs.iter().enumerate() {
            match self.other(core, half, wr, first.is_none()) {
                Ok(doorbell) => first = first.or(Some(doorbell)),
                Err(cause) => {
                    result = Err(PostError { index, cause });
                    break;
                }
            }
        }
        if let Some(doorbell) = first {
            self.start(core, half, doorbell, begin);
        }
        result
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
        if let Some(vector) = core.av.words(ah.index()) {
            put_vector(words, vector);
        } else {
            let vector = core.av.address(ah.index());
            words.set(segment(ud::LKEY), self.vectors);
            words.set(segment(ud::AV_ADDRESS_HIGH), (vector >> 32) as u32);
            words.set(segment(ud::AV_ADDRESS_LOW), vector as u32);
            words.set(next::NDA / 4, 0);
            words.set(next::NDS / 4, 0);
        }
        words.set(segment(ud::DEST_QPN), remote_qpn.get());
        words.set(segment(ud::Q_KEY), remote_qkey.0);
        words.set(next::FLAGS / 4, flags_of(wr.flags));
        words.set(next::IMMEDIATE / 4, immediate);
        let link = Link {
            at,
            units: end.wrapping_sub(at) / SEGMENT,
            opcode,
            fence: false,
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
            flags: flags_of(wr.flags),
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
        let link = Link {
            at,
            units: wqe.end.wrapping_sub(at) / SEGMENT,
            opcode: wqe.opcode,
            fence: self.service == QpType::Rc && wr.flags.contains(SendFlags::FENCE),
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
        let nda = self.shape.base.wrapping_add(link.at) | u32::from(link.opcode.0);
        let fence = if link.fence { next::FENCE } else { 0 };
        let waits = first || core.chip.is_mem_free();
        let doorbell = if waits { next::DBD } else { 0 };
        half.remember(self.posted, wr_id, first, &core.records);
        before.set(next::NDA / 4, nda);
        core.machine.dma_wmb();
        before.set(next::NDS / 4, link.units | fence | doorbell);
        self.posted = self.posted.wrapping_add(1);
        Ok(SendDoorbell {
            nda,
            fence: link.fence,
            opcode: link.opcode.0,
            qpn: self.number,
            nds: link.units as u8,
        }
        .encode())
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
fn put_vector<const N: usize>(wqe: Words<'_, N>, vector: &[AtomicU32; VECTOR_WORDS]) {
    for (at, word) in (segment(0)..).zip(vector) {
        wqe.set(at, word.load(Ordering::Relaxed));
    }
}

/// The dword of flags. infinihost 5.4.
#[inline]
fn flags_of(flags: SendFlags) -> u32 {
    let mut dword = next::ALWAYS_ONE;
    if flags.contains(SendFlags::SIGNALED) {
        dword |= next::SIGNALED;
    }
    if flags.contains(SendFlags::SOLICITED) {
        dword |= next::SOLICITED;
    }
    dword
}

fn check_length(sges: &[Sge]) -> Result<(), PostCause> {
    let total: u64 = sges.iter().map(|sge| u64::from(sge.length)).sum();
    if total > MAX_MESSAGE {
        return Err(PostCause::InvalidAttr);
    }
    Ok(())
}

/// Writes one entry, neither empty nor longer than there is, at word `at`.
#[inline(always)]
pub(super) fn put_entry<const N: usize>(wqe: Words<'_, N>, at: usize, sge: &Sge) {
    wqe.set(at, sge.length);
    wqe.set(at + 1, sge.lkey.0);
    wqe.set(at + 2, (sge.addr >> 32) as u32);
    wqe.set(at + 3, sge.addr as u32);
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
