//! The send queue: from work requests to WQEs and one doorbell. verbs 4, infinihost 5.
//!
//! Checks come first, in the order of verbs 4.1; then the segments are written, then the WQE is linked to the one
//! before, then it counts. A request that is refused has written nothing that the HCA looks at.

use super::place::{Half, Shape};
use crate::inner::Inner;
use core_ib::platform::{DmaBuf, Platform};
use core_ib::verbs::{
    AhHandle, Imm, PostCause, PostError, QpType, RemoteAddr, SendFlags, SendOp, SendWr, Sge,
};
use core_ib::{QKey, Qpn};
use hca_abi::infinihost::doorbell::SendDoorbell;
use hca_abi::infinihost::wqe::{
    AtomicSegment, DataSegment, INLINE, NextSegment, RemoteAddressSegment, UNIT, UdSegment,
    WqeOpcode, next,
};

/// Bytes of a segment that counts as one.
pub(super) const SEGMENT: u32 = UNIT as u32;
/// Longest message of a connected QP; of a piece, one byte less than a length that would be read as 0.
const MAX_MESSAGE: u64 = 1 << 31;

/// A send queue. Under the lock of its place.
pub(crate) struct SendQueue<'p, P: Platform> {
    pub(super) memory: Option<DmaBuf<'p, P>>,
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
            port: 0,
            qkey: QKey(0),
            psn: 0,
        }
    }
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
    /// What was posted is forgotten: the QP was reset.
    pub(super) fn forget(&mut self) {
        self.posted = 0;
        self.open = false;
        self.reads = false;
    }

    /// Posts `wrs` in order; the error names the first that was not. One doorbell for all. Thread or soft interrupt;
    /// never blocks, allocates or panics. Caller holds this queue's lock.
    pub(super) fn post(
        &mut self,
        core: &Inner<'p, P>,
        half: &Half,
        wrs: &[SendWr<'_>],
    ) -> Result<(), PostError> {
        let mut first = None;
        let mut result = Ok(());
        for (index, wr) in wrs.iter().enumerate() {
            match self.enqueue(core, half, wr, first.is_none()) {
                Ok(doorbell) => first = first.or(Some(doorbell)),
                Err(cause) => {
                    result = Err(PostError { index, cause });
                    break;
                }
            }
        }
        if let Some(doorbell) = first {
            core.machine.dma_wmb();
            core.uar.ring_send(doorbell);
        }
        result
    }

    /// Writes one WQE and links it to the one before, in the order of infinihost 2.11; an error leaves the queue as it
    /// was.
    #[inline]
    fn enqueue(
        &mut self,
        core: &Inner<'p, P>,
        half: &Half,
        wr: &SendWr<'_>,
        first: bool,
    ) -> Result<SendDoorbell, PostCause> {
        if !core.cmd.health().is_alive() {
            return Err(PostCause::DeviceFailed);
        }
        if !self.open {
            return Err(PostCause::InvalidState);
        }
        let posted = self.posted;
        if posted.wrapping_sub(half.retired()) >= self.shape.mask {
            return Err(PostCause::QueueFull); // one WQE is never used: infinihost 5.1
        }
        if wr.sges.len() > self.shape.max_sge as usize {
            return Err(PostCause::TooManySge);
        }
        let memory = self.memory.as_ref().ok_or(PostCause::InvalidState)?;
        let at = self.shape.offset(posted);
        let mut wqe = Wqe {
            at,
            end: at.wrapping_add(SEGMENT),
            opcode: WqeOpcode::SEND,
            flags: flags_of(wr.flags),
            immediate: 0,
        };
        match (self.service, wr.op) {
            (
                QpType::Ud,
                SendOp::Datagram {
                    ah,
                    remote_qpn,
                    remote_qkey,
                    imm,
                    ..
                },
            ) => {
                let to = (remote_qpn, remote_qkey);
                self.datagram(core, memory, &mut wqe, wr, ah, to, imm)?;
            }
            (QpType::Smi | QpType::Gsi, SendOp::Datagram { .. }) => {
                self.special(core, memory, &mut wqe, wr)?;
                self.psn = self.psn.wrapping_add(1);
            }
            (QpType::Rc | QpType::Uc, _) => self.connected(memory, &mut wqe, wr)?,
            _ => return Err(PostCause::InvalidOpcode),
        }
        self.link(core, half, wr, wqe, first)
    }

    /// Finishes a WQE whose segments are written: its own first segment, then the link to it.
    #[inline]
    fn link(
        &mut self,
        core: &Inner<'p, P>,
        half: &Half,
        wr: &SendWr<'_>,
        wqe: Wqe,
        first: bool,
    ) -> Result<SendDoorbell, PostCause> {
        let memory = self.memory.as_ref().ok_or(PostCause::InvalidState)?;
        let mut control = NextSegment::ZERO;
        control.set_flags(wqe.flags).set_immediate(wqe.immediate);
        memory.write(wqe.at as usize, &control)?;
        let fence = self.service == QpType::Rc && wr.flags.contains(SendFlags::FENCE);
        let doorbell = SendDoorbell {
            nda: self.shape.base.wrapping_add(wqe.at),
            fence,
            opcode: wqe.opcode.0,
            qpn: self.number,
            nds: (wqe.end.wrapping_sub(wqe.at) / SEGMENT) as u8,
        };
        let before = self.shape.offset(self.posted.wrapping_sub(1)) as usize;
        let nda = doorbell.nda | u32::from(doorbell.opcode);
        let nds = u32::from(doorbell.nds)
            | if fence { next::FENCE } else { 0 }
            | if first { next::DBD } else { 0 };
        half.remember(self.posted, wr.wr_id, first, &core.records);
        let linked = memory.write_be32(before + next::NDA, nda);
        core.machine.dma_wmb();
        let linked = linked.and_then(|()| memory.write_be32(before + next::NDS, nds));
        if let Err(error) = linked {
            half.take_back(self.posted);
            return Err(error.into());
        }
        self.posted = self.posted.wrapping_add(1);
        Ok(doorbell)
    }

    #[inline]
    #[expect(clippy::too_many_arguments, reason = "the fields of one request")]
    fn datagram(
        &self,
        core: &Inner<'p, P>,
        memory: &DmaBuf<'p, P>,
        wqe: &mut Wqe,
        wr: &SendWr<'_>,
        ah: AhHandle,
        (remote_qpn, remote_qkey): (Qpn, QKey),
        imm: Option<Imm>,
    ) -> Result<(), PostCause> {
        if wr.flags.contains(SendFlags::INLINE) {
            self.check_inline(wr)?;
        }
        let vector = core.ahs.get(ah).map_err(|_| PostCause::InvalidHandle)?;
        if vector.pd != self.pd {
            return Err(PostCause::InvalidHandle);
        }
        let mut segment = UdSegment::ZERO;
        segment
            .set_lkey(vector.lkey)
            .set_av_address(vector.address)
            .set_dest_qpn(remote_qpn.get())
            .set_q_key(remote_qkey.0);
        drop(vector);
        memory.write(wqe.end as usize, &segment)?;
        wqe.end = wqe.end.wrapping_add(size_of::<UdSegment>() as u32);
        self.put_immediate(wqe, imm, WqeOpcode::SEND, WqeOpcode::SEND_IMM);
        self.put_data(memory, wqe, wr)
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
        memory.write(wqe.end as usize, &segment)?;
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
            return put_inline(memory, wqe, wr.inline);
        }
        put_sges(memory, &mut wqe.end, wr.sges)
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

/// Writes the entries that are not empty, from offset `end` on.
#[inline]
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
        memory.write(*end as usize, &segment)?;
        *end = end.wrapping_add(SEGMENT);
    }
    Ok(())
}

/// Writes one inline segment, padded to whole units. No data is no segment.
fn put_inline<P: Platform>(
    memory: &DmaBuf<'_, P>,
    wqe: &mut Wqe,
    data: &[u8],
) -> Result<(), PostCause> {
    if data.is_empty() {
        return Ok(());
    }
    memory.write_be32(wqe.end as usize, INLINE | data.len() as u32)?;
    memory.copy_in(wqe.end as usize + 4, data)?;
    let taken = (data.len() as u32 + 4).next_multiple_of(SEGMENT);
    wqe.end = wqe.end.wrapping_add(taken);
    Ok(())
}
