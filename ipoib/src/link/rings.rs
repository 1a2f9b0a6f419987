//! The data path: a UD QP, a ring of frames to send and one to receive into.
//!
//! Frames lie in memory that the HCA reads and writes; what is received is shown there, and what is sent is written
//! there by whoever makes the packet. Nothing here blocks but [`Rings::open`] and [`Rings::close`].

use super::buffers::Buffers;
use super::event::{FrameId, Route};
use super::handles::Handles;
use super::link::Arrival;
use crate::profile::Profile;
use crate::stats::{RingStatistics, count};
use core_ib::platform::{Placed, Platform, Room};
use core_ib::verbs::{
    Access, AhHandle, CompletionQueue, CqHandle, CqInit, Device, DeviceCaps, NotifyKind, Owner,
    PdHandle, QpCaps, QpHandle, QpInit, QpType, QueuePair, RecvWr, SendFlags, SendOp, SendWr, Sge,
    Signaling, Verbs, VerbsError, WcFlags, WcStatus, WorkCompletion,
};
use core_ib::wire::Grh;
use core_ib::{Lid, QKey, Qpn};

/// Completions polled, and requests posted, at a time.
const BATCH: usize = 8;
/// Bytes before a received frame. protocols 2.8.2.
const GRH: usize = Grh::LEN;
/// To make room for a batch.
const NO_WR: SendWr<'static> = SendWr {
    wr_id: 0,
    op: SendOp::Send { imm: None },
    sges: &[],
    inline: &[],
    flags: SendFlags::empty(),
};
/// A frame that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Received {
    pub(super) frame: FrameId,
    /// Bytes of the frame, without the GRH.
    pub(super) len: usize,
    pub(super) slid: Lid,
    pub(super) src_qp: Qpn,
    /// The HCA found the checksums of what it carries right.
    pub(super) verified: bool,
    pub(super) grh: Option<Grh>,
}

/// A send that is made up and not yet posted.
#[derive(Clone, Copy)]
struct Pending {
    frame: FrameId,
    slot: u16,
    ah: AhHandle,
    qpn: Qpn,
    q_key: QKey,
    sge: Sge,
    flags: SendFlags,
}

const fn request(epoch: u32, pending: &Pending) -> SendWr<'_> {
    SendWr {
        wr_id: wr_id(epoch, pending.frame),
        op: SendOp::Datagram {
            ah: pending.ah,
            remote_qpn: pending.qpn,
            remote_qkey: pending.q_key,
            imm: None,
            pkey_index: 0,
        },
        sges: core::slice::from_ref(&pending.sge),
        inline: &[],
        flags: pending.flags,
    }
}

/// What has been made so far, to be undone backwards.
struct Parts<'a, P: Platform> {
    pd: Option<PdHandle>,
    send_cq: Option<CqHandle>,
    recv_cq: Option<CqHandle>,
    send: Option<Buffers<'a, P>>,
    recv: Option<Buffers<'a, P>>,
    qp: Option<QpHandle>,
}

impl<P: Platform> Parts<'_, P> {
    /// Undoes everything, going on after errors; the first one is returned. The QP goes first, since it uses the rest.
    fn undo<D: Device + ?Sized>(
        self,
        device: &D,
        after_qp: impl FnOnce(),
    ) -> Result<(), VerbsError> {
        let qp = self.qp.map_or(Ok(()), |qp| device.destroy_qp(qp));
        after_qp();
        let recv = self.recv.map_or(Ok(()), |buffers| buffers.free(device));
        let send = self.send.map_or(Ok(()), |buffers| buffers.free(device));
        let recv_cq = self.recv_cq.map_or(Ok(()), |cq| device.destroy_cq(cq));
        let send_cq = self.send_cq.map_or(Ok(()), |cq| device.destroy_cq(cq));
        let pd = self.pd.map_or(Ok(()), |pd| device.dealloc_pd(pd));
        qp.and(recv).and(send).and(recv_cq).and(send_cq).and(pd)
    }
}

/// The references of the data path (QP, CQ of sends, CQ of receives), and the address handles.
type Made<'a, V, P> = (
    <V as Verbs>::Qp<'a>,
    <V as Verbs>::Cq<'a>,
    <V as Verbs>::Cq<'a>,
    Handles<&'a P>,
);

/// See the module.
pub(super) struct Rings<'a, V: Verbs, P: Platform> {
    device: &'a V,
    pd: PdHandle,
    qp: V::Qp<'a>,
    send_cq: V::Cq<'a>,
    recv_cq: V::Cq<'a>,
    send: Buffers<'a, P>,
    recv: Buffers<'a, P>,
    handles: Handles<&'a P>,
    pending: heapless::Vec<Pending, BATCH>,
    /// Completions of receives, polled and not yet looked at.
    polled: [WorkCompletion; BATCH],
    next: usize,
    count: usize,
    /// Sends posted and completed since the QP was made.
    posted: u64,
    done: u64,
    /// Goes up when the QP is reset: a completion of the time before is none of ours.
    epoch: u32,
    /// Nothing may be posted: the QP is being started or mended.
    suspended: bool,
    /// What a frame asks for whose checksums the HCA is to put in: nothing if it cannot.
    checksums: SendFlags,
    stats: RingStatistics,
}

impl<'a, V: Verbs, P: Platform> Rings<'a, V, P> {
    /// Makes QP, CQs and rings for frames of at most `frame_len` bytes, and address handles for `routes` routes. The QP
    /// is in RESET. Control context; blocks. On error nothing is left behind.
    #[inline(never)]
    pub(super) fn open(
        device: &'a V,
        machine: &'a P,
        frame_len: usize,
        routes: usize,
        profile: &Profile,
    ) -> Result<Placed<'a, Self, P>, VerbsError> {
        let place = Room::new(machine)?;
        let mut parts = Parts {
            pd: None,
            send_cq: None,
            recv_cq: None,
            send: None,
            recv: None,
            qp: None,
        };
        let made = Self::make(device, machine, frame_len, routes, profile, &mut parts);
        match (made, parts) {
            (
                Ok(made),
                Parts {
                    pd: Some(pd),
                    send: Some(send),
                    recv: Some(recv),
                    ..
                },
            ) => Ok(Self::put(place, device, pd, made, [send, recv])),
            (made, parts) => {
                let error = made.err(); // no reference is out any more
                let undone = parts.undo(device, || {});
                Err(error.or(undone.err()).unwrap_or(VerbsError::DeviceFailed))
            }
        }
    }

    /// Puts together what was made. In a function of its own, so that its frame is not below those that make it.
    #[inline(never)]
    fn put(
        place: Room<'a, Self, P>,
        device: &'a V,
        pd: PdHandle,
        (qp, send_cq, recv_cq, handles): Made<'a, V, P>,
        [send, recv]: [Buffers<'a, P>; 2],
    ) -> Placed<'a, Self, P> {
        place.put(Self {
            device,
            pd,
            qp,
            send_cq,
            recv_cq,
            send,
            recv,
            handles,
            pending: heapless::Vec::new(),
            polled: [WorkCompletion::EMPTY; BATCH],
            next: 0,
            count: 0,
            posted: 0,
            done: 0,
            epoch: 0,
            suspended: true,
            checksums: if device.query_device().caps.contains(DeviceCaps::IP_CHECKSUM) {
                SendFlags::IP_CHECKSUM.union(SendFlags::L4_CHECKSUM)
            } else {
                SendFlags::empty()
            },
            stats: RingStatistics::default(),
        })
    }

    #[inline(never)]
    fn make(
        device: &'a V,
        machine: &'a P,
        frame_len: usize,
        routes: usize,
        profile: &Profile,
        parts: &mut Parts<'a, P>,
    ) -> Result<Made<'a, V, P>, VerbsError> {
        let pd = *parts.pd.insert(device.alloc_pd()?);
        let cq = |frames: u16| CqInit {
            cqe: frames.max(1).into(),
            vector: profile.vector,
            owner: Owner::Kernel,
        };
        let send_cq = device.create_cq(&cq(profile.send_frames))?.handle;
        parts.send_cq = Some(send_cq);
        let recv_cq = device.create_cq(&cq(profile.recv_frames))?.handle;
        parts.recv_cq = Some(recv_cq);
        let count = profile.send_frames.max(1);
        let rights = Access::empty();
        parts.send = Some(Buffers::new(machine, device, pd, count, frame_len, rights)?);
        let count = profile.recv_frames.max(1);
        let len = frame_len.saturating_add(GRH);
        let rights = Access::LOCAL_WRITE;
        parts.recv = Some(Buffers::new(machine, device, pd, count, len, rights)?);
        let init = QpInit {
            qp_type: QpType::Ud,
            port: 0,
            send_cq,
            recv_cq,
            srq: None,
            caps: QpCaps {
                max_send_wr: profile.send_frames.max(1).into(),
                max_recv_wr: profile.recv_frames.max(1).into(),
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline: 0,
            },
            signaling: Signaling::All,
            owner: Owner::Kernel,
        };
        let qp = device.create_qp(pd, &init)?.handle;
        parts.qp = Some(qp);
        let handles = Handles::new(&machine, routes, profile.send_frames.max(1))?;
        Ok((
            device.qp(qp)?,
            device.cq(send_cq)?,
            device.cq(recv_cq)?,
            handles,
        ))
    }

    /// Ends everything. No group is attached any more. Control context; blocks. On error the rest is ended all the
    /// same; memory that the HCA may still reach is not given back.
    pub(super) fn close(self) -> Result<(), VerbsError> {
        let parts = Parts {
            pd: Some(self.pd),
            send_cq: Some(self.send_cq.handle()),
            recv_cq: Some(self.recv_cq.handle()),
            send: Some(self.send),
            recv: Some(self.recv),
            qp: Some(self.qp.handle()),
        };
        drop((self.qp, self.send_cq, self.recv_cq));
        let mut handles = self.handles;
        parts.undo(self.device, || handles.destroy_all(self.device))
    }

    pub(super) const fn device(&self) -> &'a V {
        self.device
    }

    pub(super) fn qp(&self) -> QpHandle {
        self.qp.handle()
    }

    pub(super) fn qpn(&self) -> Qpn {
        self.qp.qpn()
    }

    /// Completion queues: sends, receives.
    pub(super) fn cqs(&self) -> [CqHandle; 2] {
        [self.send_cq.handle(), self.recv_cq.handle()]
    }

    /// The HCA puts in the checksums of what is sent, where asked to.
    pub(super) const fn has_checksums(&self) -> bool {
        !self.checksums.is_empty()
    }

    pub(super) const fn statistics(&self) -> RingStatistics {
        self.stats
    }

    /// Arms the queue of receives. What completed before may or may not be announced: poll once more.
    pub(super) fn arm(&self) -> Result<(), VerbsError> {
        self.recv_cq.req_notify(NotifyKind::Any)
    }

    /// Arms the queue of sends, likewise: somebody waits for a frame.
    pub(super) fn arm_sends(&self) -> Result<(), VerbsError> {
        self.send_cq.req_notify(NotifyKind::Any)
    }

    /// Frames that are posted to be sent, or have been and were not looked at.
    pub(super) const fn sending(&self) -> u16 {
        self.send.posted()
    }

    /// The QP is about to be started or mended: nothing is posted until `restart` or `resume`.
    pub(super) fn suspend(&mut self) {
        self.flush();
        self.suspended = true;
    }

    /// The QP went through RESET.
    pub(super) fn restart(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
        self.pending.clear();
        (self.next, self.count) = (0, 0);
        let lost = self.send.free_posted();
        self.stats.lost_in_reset = self.stats.lost_in_reset.saturating_add(lost.into());
        self.done = self.posted;
        self.recv.free_posted();
        self.resume();
    }

    /// The QP is well, and what was posted still is.
    pub(super) fn resume(&mut self) {
        self.suspended = false;
        self.refill();
    }

    /// A frame to write into.
    pub(super) fn take(&mut self) -> Option<FrameId> {
        let frame = self.send.take();
        if frame.is_none() {
            count(&mut self.stats.no_frame);
        }
        frame
    }

    /// The bytes of a frame that was taken.
    pub(super) fn bytes(&mut self, frame: FrameId) -> Option<&mut [u8]> {
        self.send.bytes(frame)
    }

    /// A frame that will not be sent.
    pub(super) fn release(&mut self, frame: FrameId) {
        self.send.release(frame);
    }

    /// Sends the first `len` bytes of a frame, at the next [`Rings::flush`] at the latest; `unsummed` if the HCA is to put
    /// in its checksums. If that is not possible it is counted, and the frame freed.
    pub(super) fn post(&mut self, frame: FrameId, len: usize, unsummed: bool, route: &Route) {
        if self.suspended {
            count(&mut self.stats.refused_posts);
            return self.send.release(frame);
        }
        let ah = match self.handles.current(route.slot, &route.attr) {
            Some(ah) => Ok(ah),
            None => {
                self.flush(); // the old handle may be that of a pending send
                let (device, pd) = (self.device, self.pd);
                self.handles
                    .renew(device, pd, route.slot, &route.attr, self.done)
            }
        };
        let Ok(ah) = ah else {
            count(&mut self.stats.no_address_handle);
            return self.send.release(frame);
        };
        let Some(sge) = self.send.post(frame, len) else {
            return count(&mut self.stats.refused_posts); // not ours to send
        };
        let pending = Pending {
            frame,
            slot: route.slot,
            ah,
            qpn: route.qpn,
            q_key: route.q_key,
            sge,
            flags: if unsummed {
                SendFlags::SIGNALED | self.checksums
            } else {
                SendFlags::SIGNALED
            },
        };
        if self.pending.is_full() {
            self.flush();
        }
        if self.pending.push(pending).is_err() {
            self.refuse(frame); // not after a flush
        }
    }

    fn refuse(&mut self, frame: FrameId) {
        count(&mut self.stats.refused_posts);
        self.send.take_back(frame);
        self.send.release(frame);
    }

    /// Posts what is made up, with one doorbell.
    pub(super) fn flush(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        let posted = match &self.pending[..] {
            // Most often there is one, and no room for a batch is made.
            [pending] => self.qp.post_send(&[request(self.epoch, pending)]),
            several => {
                let mut wrs = [NO_WR; BATCH];
                for (wr, pending) in wrs.iter_mut().zip(several) {
                    *wr = request(self.epoch, pending);
                }
                self.qp.post_send(wrs.get(..several.len()).unwrap_or(&[]))
            }
        };
        let posted = match posted {
            Ok(()) => self.pending.len(),
            Err(error) => error.index,
        };
        let pending = core::mem::take(&mut self.pending);
        for (index, pending) in pending.iter().enumerate() {
            if index < posted {
                self.posted = self.posted.saturating_add(1);
                let bytes = &mut self.stats.sent_bytes;
                *bytes = bytes.saturating_add(pending.sge.length.into());
                self.handles.used(pending.slot, self.posted);
            } else {
                self.refuse(pending.frame);
            }
        }
    }

    /// Looks at the completions of sends. Says whether the QP may have stopped.
    #[must_use]
    pub(super) fn reap(&mut self) -> bool {
        let mut trouble = false;
        let mut polled = [WorkCompletion::EMPTY; BATCH];
        // Each completion frees one frame, so there cannot be more rounds than that.
        while self.send.posted() > 0 {
            let Ok(found) = self.send_cq.poll(&mut polled) else {
                return true;
            };
            for completion in polled.iter().take(found) {
                trouble |= self.sent(completion);
            }
            if found < BATCH {
                break;
            }
        }
        trouble
    }

    fn sent(&mut self, completion: &WorkCompletion) -> bool {
        let frame = self.ours(completion);
        let Some(frame) = frame.filter(|frame| self.send.take_back(*frame)) else {
            count(&mut self.stats.stray_completions);
            return false;
        };
        self.done = self.done.saturating_add(1);
        self.send.release(frame);
        if completion.status != WcStatus::Success {
            count(&mut self.stats.send_errors);
            return true;
        }
        count(&mut self.stats.sent);
        false
    }

    /// The frame of a completion, if it was posted since the last reset.
    const fn ours(&self, completion: &WorkCompletion) -> Option<FrameId> {
        if (completion.wr_id >> 32) as u32 != self.epoch {
            return None;
        }
        Some(FrameId(completion.wr_id as u16))
    }

    /// The next frame that came; it is to be [recycled](Rings::recycle). Sets `trouble` if the QP may have stopped.
    pub(super) fn receive(&mut self, trouble: &mut bool) -> Option<Received> {
        // As many as there are buffers, so that a device that completes without end does not keep us here.
        for _ in 0..=self.recv.posted() {
            if self.next >= self.count {
                self.refill();
                self.next = 0;
                self.count = 0;
                match self.recv_cq.poll(&mut self.polled) {
                    Ok(count) => self.count = count.min(BATCH),
                    Err(_) => *trouble = true,
                }
            }
            let completion = self.polled.get(..self.count)?.get(self.next)?;
            let completion = *completion;
            self.next += 1;
            let frame = self.ours(&completion);
            let Some(frame) = frame.filter(|frame| self.recv.take_back(*frame)) else {
                count(&mut self.stats.stray_completions);
                continue;
            };
            match self.arrived(&completion, frame) {
                Some(received) => return Some(received),
                None => {
                    *trouble |= completion.status != WcStatus::Success;
                    self.recv.release(frame);
                }
            }
        }
        None
    }

    fn arrived(&mut self, completion: &WorkCompletion, frame: FrameId) -> Option<Received> {
        if completion.status != WcStatus::Success {
            if completion.status != WcStatus::Flushed {
                count(&mut self.stats.receive_errors);
            }
            return None;
        }
        let len = (completion.byte_len as usize).checked_sub(GRH);
        let len = len.filter(|len| *len <= self.recv.frame_len().saturating_sub(GRH));
        let bytes = self.recv.bytes(frame)?;
        let has_grh = completion.flags.contains(WcFlags::GRH);
        let grh = has_grh.then(|| Grh::read(bytes));
        let (Some(len), Ok(grh)) = (len, grh.transpose()) else {
            count(&mut self.stats.malformed);
            return None;
        };
        Some(Received {
            frame,
            len,
            slid: completion.slid,
            src_qp: completion.src_qp,
            verified: completion.flags.contains(WcFlags::CHECKSUM_OK),
            grh: grh.map(|(grh, _)| grh),
        })
    }

    /// The bytes of a frame that came, without the GRH.
    pub(super) fn received(&mut self, received: &Received) -> &[u8] {
        let bytes = self.recv.bytes(received.frame);
        let frame = bytes.and_then(|bytes| bytes.get(GRH..)?.get(..received.len));
        frame.unwrap_or(&[])
    }

    /// The buffer of a frame that came may be used again.
    pub(super) fn recycle(&mut self, received: &Received) {
        self.recv.release(received.frame);
    }

    /// Counts a frame that came.
    pub(super) fn count_received(&mut self, received: &Received, arrival: Arrival, header: bool) {
        if !header {
            return count(&mut self.stats.malformed);
        }
        if arrival == Arrival::Own {
            return count(&mut self.stats.own_copies);
        }
        count(&mut self.stats.received);
        let bytes = &mut self.stats.received_bytes;
        *bytes = bytes.saturating_add(received.len as u64);
        if arrival != Arrival::Host {
            count(&mut self.stats.received_multicast);
        }
    }

    /// Posts all receive buffers that are free.
    fn refill(&mut self) {
        if self.suspended {
            return;
        }
        let len = self.recv.frame_len();
        loop {
            let mut frames = heapless::Vec::<(FrameId, Sge), BATCH>::new();
            while !frames.is_full()
                && let Some(frame) = self.recv.take()
            {
                if let Some(sge) = self.recv.post(frame, len) {
                    let _ = frames.push((frame, sge)); // not full, as just seen
                }
            }
            if frames.is_empty() {
                return;
            }
            let mut wrs = [RecvWr {
                wr_id: 0,
                sges: &[],
            }; BATCH];
            for (wr, (frame, sge)) in wrs.iter_mut().zip(&frames) {
                wr.wr_id = wr_id(self.epoch, *frame);
                wr.sges = core::slice::from_ref(sge);
            }
            let wrs = wrs.get(..frames.len()).unwrap_or(&[]);
            let Err(error) = self.qp.post_recv(wrs) else {
                continue;
            };
            for (frame, _) in frames.iter().skip(error.index) {
                count(&mut self.stats.refused_posts);
                self.recv.take_back(*frame);
                self.recv.release(*frame);
            }
            return;
        }
    }
}

/// Names a frame, and the time since the last reset in which it was posted.
const fn wr_id(epoch: u32, frame: FrameId) -> u64 {
    (epoch as u64) << 32 | frame.0 as u64
}
