//! Connected mode: packets to one peer over a reliable connection, up to 64 KiB each. RFC 4755, protocols 6.9.
//!
//! Each direction has a connection of its own: who has something to send opens one, and receives on those that others
//! open. A connection to a peer is opened when a packet first goes to an address that says that it takes connections, and
//! forgotten when nobody uses it, when it fails, or when the peer ends it; the next packet opens another. Multicast, ARP, and
//! packets to all others stay with the datagram QP, as does what is short enough for it while a connection is being opened.
//!
//! What a peer sends lands in one shared receive queue, whatever connection it comes by. Nothing here blocks but
//! [`Connected::open`], [`Connected::close`] and [`ConnWish::carry_out`].

mod control;
mod manage;
mod parts;
mod slot;

pub use control::{ConnDone, ConnWish, Made};

use super::buffers::Buffers;
use super::event::FrameId;
use crate::profile::ConnectedProfile;
use crate::room::Room;
use crate::stats::{ConnectedStatistics, count};
use core_ib::platform::Platform;
use core_ib::verbs::{
    AhAttr, CompletionQueue, CqHandle, NotifyKind, PdHandle, QueuePair, RecvWr, SendFlags, SendOp,
    SendWr, SharedReceiveQueue, Verbs, VerbsError, WcStatus, WorkCompletion,
};
use core_ib::wire::ipoib::{Encapsulation, LinkAddress};
use core_ib::{Gid, Instant, Lid, Mtu, Qpn};
use slot::{Phase, Role, Slot};

/// Completions polled at a time.
const BATCH: usize = 8;

/// What becomes of a packet for a peer that takes connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Carried {
    /// It went, or waits for its connection.
    Taken,
    /// There is no connection yet (any more): as a datagram, if it is short enough.
    NotYet,
    /// The peer takes no message as long as that: the longest datagram that it takes.
    TooLong(usize),
}

/// Where this end stands, for a connection that is to be opened.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Here {
    pub(super) port: u8,
    pub(super) pkey_index: u16,
    pub(super) p_key: core_ib::PKey,
    pub(super) lid: Lid,
    pub(super) gid: Gid,
    pub(super) qpn: Qpn,
    pub(super) mtu: Option<Mtu>,
    pub(super) up: bool,
}

/// All connections of one interface. See the module.
pub(super) struct Connected<'a, V: Verbs, P: Platform> {
    device: &'a V,
    profile: ConnectedProfile,
    pd: PdHandle,
    srq: V::Srq<'a>,
    send_cq: V::Cq<'a>,
    recv_cq: V::Cq<'a>,
    send: Buffers<'a, P>,
    recv: Buffers<'a, P>,
    slots: <&'a P as Room>::Of<Slot<V::Qp<'a>>>,
    /// Of each frame that is posted to be sent: by which connection.
    sent_by: <&'a P as Room>::Of<u16>,
    here: Here,
    psn: u32,
    /// Completions of receives, polled and not yet looked at.
    polled: [WorkCompletion; BATCH],
    next: usize,
    count: usize,
    stats: ConnectedStatistics,
}

impl<'a, V: Verbs, P: Platform> Connected<'a, V, P> {
    pub(super) const fn statistics(&self) -> ConnectedStatistics {
        self.stats
    }

    /// Bytes of the longest datagram.
    pub(super) const fn mtu(&self) -> u16 {
        self.profile.mtu
    }

    /// Completion queues: sends, receives.
    pub(super) fn cqs(&self) -> [CqHandle; 2] {
        [self.send_cq.handle(), self.recv_cq.handle()]
    }

    pub(super) fn arm(&self) -> Result<(), VerbsError> {
        self.recv_cq.req_notify(NotifyKind::Any)
    }

    /// Somebody waits for a frame.
    pub(super) fn arm_sends(&self) -> Result<(), VerbsError> {
        self.send_cq.req_notify(NotifyKind::Any)
    }

    /// Frames that are posted to be sent, or have been and were not looked at.
    pub(super) const fn sending(&self) -> u16 {
        self.send.posted()
    }

    /// A frame to write into.
    pub(super) fn take(&mut self) -> Option<FrameId> {
        let frame = self.send.take();
        if frame.is_none() {
            count(&mut self.stats.no_frame);
        }
        frame
    }

    pub(super) fn bytes(&mut self, frame: FrameId) -> Option<&mut [u8]> {
        self.send.bytes(frame)
    }

    pub(super) fn release(&mut self, frame: FrameId) {
        self.send.release(frame);
    }

    fn find(&self, role: Role, to: &LinkAddress) -> Option<usize> {
        let same = |slot: &Slot<V::Qp<'a>>| {
            slot.phase != Phase::Free
                && slot.role == role
                && (slot.peer.gid, slot.peer.qpn) == (to.gid, to.qpn)
        };
        self.slots.iter().position(same)
    }

    /// May a packet to `to` go by a connection at once? If there is none, one is begun, along `attr`.
    pub(super) fn is_up(&mut self, to: &LinkAddress, attr: &AhAttr, now: Instant) -> bool {
        match self.find(Role::Send, to) {
            Some(at) => {
                let slot = self.slots.get_mut(at);
                slot.is_some_and(|slot| slot.touch(attr, now))
            }
            None => {
                self.begin(to, attr, now);
                false
            }
        }
    }

    /// A place for a connection to a peer; the one that has rested longest goes if there is none.
    fn begin(&mut self, to: &LinkAddress, attr: &AhAttr, now: Instant) {
        let free = |phase| self.slots.iter().position(|slot| slot.phase == phase);
        let Some(at) = free(Phase::Free).or_else(|| free(Phase::Resting)) else {
            return count(&mut self.stats.connections_full);
        };
        if let Some(slot) = self.slots.get_mut(at) {
            *slot = Slot::new(Role::Send, *to, now);
            slot.path = *attr;
        }
    }

    /// Sends the first `len` bytes of a frame of this table to `to`, or has it wait. A frame that is not
    /// [taken](Carried::Taken) is the caller's.
    pub(super) fn carry(
        &mut self,
        to: &LinkAddress,
        attr: &AhAttr,
        frame: FrameId,
        len: usize,
        now: Instant,
    ) -> Carried {
        self.reap(now);
        let up = self.is_up(to, attr, now);
        let at = self.find(Role::Send, to);
        let slot = at.and_then(|at| Some((at, self.slots.get_mut(at)?)));
        let Some((at, slot)) = slot else {
            count(&mut self.stats.no_connection);
            return Carried::NotYet;
        };
        if !up {
            if slot.phase.is_on_its_way() && slot.parked.push((frame, len)).is_ok() {
                return Carried::Taken;
            }
            count(&mut self.stats.no_connection);
            return Carried::NotYet;
        }
        if len > slot.peer_mtu as usize {
            count(&mut self.stats.too_long);
            return Carried::TooLong((slot.peer_mtu as usize).saturating_sub(Encapsulation::LEN));
        }
        self.post(at, frame, len);
        Carried::Taken
    }

    /// A packet too long for a datagram goes to a peer that takes nothing else.
    pub(super) fn refuse(&mut self, mtu: usize) -> Carried {
        count(&mut self.stats.too_long);
        Carried::TooLong(mtu)
    }

    fn post(&mut self, at: usize, frame: FrameId, len: usize) {
        let Some(sge) = self.send.post(frame, len) else {
            return count(&mut self.stats.refused_posts); // not ours to send
        };
        let wr = SendWr {
            wr_id: frame.0.into(),
            op: SendOp::Send { imm: None },
            sges: &[sge],
            inline: &[],
            flags: SendFlags::SIGNALED,
        };
        let qp = self.slots.get(at).and_then(|slot| slot.qp.as_ref());
        let posted = qp.is_some_and(|qp| qp.post_send(&[wr]).is_ok());
        if !posted {
            count(&mut self.stats.refused_posts);
            self.send.take_back(frame);
            return self.send.release(frame);
        }
        if let Some(by) = self.sent_by.get_mut(usize::from(frame.0)) {
            *by = at as u16;
        }
    }

    /// Looks at the completions of sends.
    pub(super) fn reap(&mut self, now: Instant) {
        let mut polled = [WorkCompletion::EMPTY; BATCH];
        while self.send.posted() > 0 {
            let Ok(found) = self.send_cq.poll(&mut polled) else {
                return;
            };
            for completion in polled.iter().take(found) {
                let frame = FrameId(completion.wr_id as u16);
                if completion.wr_id > u64::from(u16::MAX) || !self.send.take_back(frame) {
                    count(&mut self.stats.stray_completions);
                    continue;
                }
                self.send.release(frame);
                if completion.status == WcStatus::Success {
                    count(&mut self.stats.sent);
                    continue;
                }
                count(&mut self.stats.send_errors);
                let by = self.sent_by.get(usize::from(frame.0)).copied();
                let slot = by.and_then(|at| self.slots.get_mut(usize::from(at)));
                if let Some(slot) = slot.filter(|slot| slot.qpn == completion.qpn) {
                    slot.fail(now);
                }
            }
            if found < BATCH {
                return;
            }
        }
    }

    /// Posts every free receive.
    fn refill(&mut self) {
        while let Some(frame) = self.recv.take() {
            let len = self.recv.frame_len();
            let Some(sge) = self.recv.post(frame, len) else {
                return;
            };
            let wr = RecvWr {
                wr_id: frame.0.into(),
                sges: &[sge],
            };
            if self.srq.post_recv(&[wr]).is_err() {
                self.recv.take_back(frame);
                self.recv.release(frame);
                return;
            }
        }
    }

    /// The next message that came, whose frame is then ours: it, its length, and the QP number of the peer's datagram QP.
    pub(super) fn receive(&mut self, now: Instant) -> Option<(FrameId, usize, Qpn)> {
        loop {
            if self.next == self.count {
                (self.next, self.count) = (0, 0);
                self.count = self.recv_cq.poll(&mut self.polled).ok()?;
            }
            let completion = self
                .polled
                .get(self.next)
                .filter(|_| self.next < self.count)?;
            let completion = *completion;
            self.next = self.next.saturating_add(1);
            let frame = FrameId(completion.wr_id as u16);
            if completion.wr_id > u64::from(u16::MAX) || !self.recv.take_back(frame) {
                count(&mut self.stats.stray_completions);
                continue;
            }
            let mut slots = self.slots.iter_mut();
            let slot = slots.find(|slot| slot.qpn == completion.qpn && slot.phase != Phase::Free);
            let len = completion.byte_len as usize;
            match slot {
                Some(slot)
                    if completion.status == WcStatus::Success
                        && len >= Encapsulation::LEN
                        && len <= self.recv.frame_len() =>
                {
                    slot.last_used = now;
                    count(&mut self.stats.received);
                    return Some((frame, len, slot.peer.qpn));
                }
                _ => {
                    count(&mut self.stats.receive_errors);
                    self.recycle(frame);
                }
            }
        }
    }

    /// The bytes of a message that came.
    pub(super) fn received(&mut self, frame: FrameId, len: usize) -> &[u8] {
        let bytes = self.recv.bytes(frame);
        bytes.and_then(|bytes| bytes.get(..len)).unwrap_or(&[])
    }

    /// Receives into a frame again.
    pub(super) fn recycle(&mut self, frame: FrameId) {
        self.recv.release(frame);
        self.refill();
    }
}
