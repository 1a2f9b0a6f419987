//! Any request of a send queue, checked in the order of verbs 4.1 and written word by word: what is unusual, what is
//! refused, and all of SMI and GSI QPs.

use super::place::Half;
use super::send::{Link, SendQueue};
use super::wqe::{
    CHECKSUMS, DATAGRAM_WORDS, SEGMENT, Wqe, flags_of, put_inline, put_sges, segment,
};
use crate::inner::Inner;
use core::sync::atomic::Ordering;
use core_ib::platform::{DmaBuf, Platform};
use core_ib::verbs::{Imm, PostCause, QpType, RemoteAddr, SendFlags, SendOp, SendWr, Sge};
use hca_abi::infinihost::wqe::{
    AtomicSegment, DataSegment, RemoteAddressSegment, WqeOpcode, next, ud,
};

/// Longest message of a connected QP; of a piece, one byte less than a length that would be read as 0.
const MAX_MESSAGE: u64 = 1 << 31;

impl<'p, P: Platform> SendQueue<'p, P> {
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
    pub(super) fn datagram(
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
    pub(super) fn other(
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

fn check_length(sges: &[Sge]) -> Result<(), PostCause> {
    let total: u64 = sges.iter().map(|sge| u64::from(sge.length)).sum();
    if total > MAX_MESSAGE {
        return Err(PostCause::InvalidAttr);
    }
    Ok(())
}
