//! What all connections of an interface share: made step by step, and taken back in the opposite order.

use super::slot::Slot;
use super::{BATCH, Connected, Here};
use crate::link::buffers::Buffers;
use crate::profile::ConnectedProfile;
use crate::room::Room as Tables;
use crate::stats::ConnectedStatistics;
use core_ib::platform::{Placed, Platform, Room};
use core_ib::verbs::{
    Access, CompletionQueue, CqHandle, CqInit, DeviceCaps, Owner, PdHandle, SharedReceiveQueue,
    SrqHandle, SrqInit, Verbs, VerbsError, WorkCompletion,
};
use core_ib::wire::ipoib::Encapsulation;

struct Parts<'a, P: Platform> {
    pd: Option<PdHandle>,
    send_cq: Option<CqHandle>,
    recv_cq: Option<CqHandle>,
    srq: Option<SrqHandle>,
    send: Option<Buffers<'a, P>>,
    recv: Option<Buffers<'a, P>>,
}

impl<P: Platform> Parts<'_, P> {
    /// Undoes everything, going on after errors; the first one is returned. No QP is left.
    fn undo<V: Verbs>(self, device: &V) -> Result<(), VerbsError> {
        let srq = self.srq.map_or(Ok(()), |srq| device.destroy_srq(srq));
        let recv = self.recv.map_or(Ok(()), |buffers| buffers.free(device));
        let send = self.send.map_or(Ok(()), |buffers| buffers.free(device));
        let recv_cq = self.recv_cq.map_or(Ok(()), |cq| device.destroy_cq(cq));
        let send_cq = self.send_cq.map_or(Ok(()), |cq| device.destroy_cq(cq));
        let pd = self.pd.map_or(Ok(()), |pd| device.dealloc_pd(pd));
        srq.and(recv).and(send).and(recv_cq).and(send_cq).and(pd)
    }
}

type Made<'a, V> = (
    <V as Verbs>::Srq<'a>,
    <V as Verbs>::Cq<'a>,
    <V as Verbs>::Cq<'a>,
);

impl<'a, V: Verbs, P: Platform> Connected<'a, V, P> {
    /// Makes the queues and buffers; no connection yet. Control context; blocks. On error nothing is left behind.
    #[inline(never)]
    pub(in super::super) fn open(
        device: &'a V,
        machine: &'a P,
        vector: u16,
        profile: &ConnectedProfile,
    ) -> Result<Placed<'a, Self, P>, VerbsError> {
        if !device.query_device().caps.contains(DeviceCaps::SRQ) {
            let feature = "connected mode on an HCA without SRQs";
            return Err(VerbsError::Unsupported { feature });
        }
        let place = Room::new(machine)?;
        let slots = machine.table(usize::from(profile.connections), |_| Slot::free())?;
        let sent_by = machine.table(usize::from(profile.send_frames), |_| u16::MAX)?;
        let mut parts = Parts {
            pd: None,
            send_cq: None,
            recv_cq: None,
            srq: None,
            send: None,
            recv: None,
        };
        let made = Self::make_parts(device, machine, vector, profile, &mut parts);
        let (made, parts) = match (made, parts) {
            (
                Ok(made),
                Parts {
                    pd: Some(pd),
                    send: Some(send),
                    recv: Some(recv),
                    ..
                },
            ) => (made, (pd, send, recv)),
            (made, parts) => {
                let error = made.err(); // no reference is out any more
                let undone = parts.undo(device);
                return Err(error.or(undone.err()).unwrap_or(VerbsError::DeviceFailed));
            }
        };
        let ((srq, send_cq, recv_cq), (pd, send, recv)) = (made, parts);
        let mut connected = place.put(Self {
            device,
            profile: *profile,
            pd,
            srq,
            send_cq,
            recv_cq,
            send,
            recv,
            slots,
            sent_by,
            here: Here::default(),
            psn: 0x2f6e_2b1d,
            polled: [WorkCompletion::EMPTY; BATCH],
            next: 0,
            count: 0,
            stats: ConnectedStatistics::default(),
        });
        connected.refill();
        Ok(connected)
    }

    #[inline(never)]
    fn make_parts(
        device: &'a V,
        machine: &'a P,
        vector: u16,
        profile: &ConnectedProfile,
        parts: &mut Parts<'a, P>,
    ) -> Result<Made<'a, V>, VerbsError> {
        let pd = *parts.pd.insert(device.alloc_pd()?);
        let cq = |cqe: u16| CqInit {
            cqe: cqe.max(1).into(),
            vector,
            owner: Owner::Kernel,
        };
        let send_cq = device.create_cq(&cq(profile.send_frames))?.handle;
        parts.send_cq = Some(send_cq);
        // Beside each receive, a QP that ends may have a word.
        let recvs = profile.recv_frames.saturating_add(profile.connections);
        let recv_cq = device.create_cq(&cq(recvs))?.handle;
        parts.recv_cq = Some(recv_cq);
        let srq = device.create_srq(&SrqInit {
            pd,
            max_wr: profile.recv_frames.max(1).into(),
            max_sge: 1,
            owner: Owner::Kernel,
        })?;
        let srq = *parts.srq.insert(srq.handle);
        let len = usize::from(profile.mtu).saturating_add(Encapsulation::LEN);
        let count = profile.send_frames.max(1);
        let rights = Access::empty();
        parts.send = Some(Buffers::new(machine, device, pd, count, len, rights)?);
        let count = profile.recv_frames.max(1);
        let rights = Access::LOCAL_WRITE;
        parts.recv = Some(Buffers::new(machine, device, pd, count, len, rights)?);
        Ok((device.srq(srq)?, device.cq(send_cq)?, device.cq(recv_cq)?))
    }

    /// Ends all connections without a word, and all that they shared. Control context; blocks. On error the rest is ended
    /// all the same; memory that the HCA may still reach is not given back.
    pub(in super::super) fn close(mut self) -> Result<(), VerbsError> {
        let mut result = Ok(());
        for slot in self.slots.iter_mut() {
            slot.qp = None;
            if let Some(qp) = slot.handle.take() {
                result = result.and(self.device.destroy_qp(qp));
            }
        }
        let parts = Parts {
            pd: Some(self.pd),
            send_cq: Some(self.send_cq.handle()),
            recv_cq: Some(self.recv_cq.handle()),
            srq: Some(self.srq.handle()),
            send: Some(self.send),
            recv: Some(self.recv),
        };
        drop((self.srq, self.send_cq, self.recv_cq));
        result.and(parts.undo(self.device))
    }
}
