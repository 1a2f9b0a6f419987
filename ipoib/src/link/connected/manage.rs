//! The life of connections: what the communication manager is told, and what it tells. protocols 6.9.

use super::control::{ConnDone, ConnWish, Made};
use super::slot::{Phase, Role, Slot};
use super::{Connected, Here};
use crate::stats::count;
use core_ib::platform::Platform;
use core_ib::verbs::{
    CompletionQueue, Owner, QpCaps, QpInit, QpType, SharedReceiveQueue, Signaling, Verbs,
};
use core_ib::wire::FlowLabel;
use core_ib::wire::ipoib::{Encapsulation, LinkAddress};
use core_ib::wire::mad::{CmReq, RejReason, ServiceId, TimeCode};
use core_ib::{Instant, Mtu, Psn, Qpn};
use ib_cm::{Accept, Cm, ConnId, Connect, Event, Listen, Local, Path, Store};

/// What a path's packets live for: the SA's own figure is not kept with a path. protocols A.1: 67 ms.
const LIFE_TIME: TimeCode = TimeCode(14);
/// Bytes of private data. protocols 6.9.
const PRIVATE: usize = 8;

/// The QPN of our datagram QP, and the longest message that we take.
pub(super) fn private(qpn: Qpn, mtu: u32) -> [u8; PRIVATE] {
    let [a, b, c] = qpn.to_wire();
    let [d, e, f, g] = mtu.to_be_bytes();
    [0, a, b, c, d, e, f, g]
}

/// The same of a peer.
pub(super) fn of_private(data: &[u8]) -> Option<(Qpn, u32)> {
    let [_, a, b, c, d, e, f, g] = *data.first_chunk::<PRIVATE>()?;
    Some((Qpn::from_wire([a, b, c]), u32::from_be_bytes([d, e, f, g])))
}

impl<'a, V: Verbs, P: Platform> Connected<'a, V, P> {
    /// The longest message that we take.
    fn message(&self) -> u32 {
        u32::from(self.profile.mtu) + Encapsulation::LEN as u32
    }

    fn fresh_psn(&mut self) -> Psn {
        self.psn = self.psn.wrapping_mul(0x0019_660d).wrapping_add(0x3c6e_f35f);
        Psn::new(self.psn >> 8)
    }

    /// Where this end stands now. If it stood elsewhere, its connections are no good any more.
    pub(in super::super) fn stands(&mut self, here: Here, now: Instant) {
        let moved = (here.up, here.lid, here.gid, here.pkey_index)
            != (
                self.here.up,
                self.here.lid,
                self.here.gid,
                self.here.pkey_index,
            );
        self.here = here;
        if moved {
            self.slots.iter_mut().for_each(|slot| slot.fail(now));
        }
    }

    /// Listens by both forms of the service ID.
    pub(in super::super) fn listen<S: Store>(
        &self,
        cm: &mut Cm<S>,
        cookie: u64,
    ) -> Result<(), ib_cm::CmError> {
        let qpn = self.here.qpn;
        for service_id in [ServiceId::ipoib_linux(qpn), ServiceId::ipoib_rfc(qpn)] {
            cm.listen(&Listen::to(service_id, cookie))?;
        }
        Ok(())
    }

    /// Does what is due. Gives the next wish, or when to be called again.
    pub(in super::super) fn drive<S: Store>(
        &mut self,
        cm: &mut Cm<S>,
        cookie: u64,
        now: Instant,
    ) -> Result<ConnWish, Instant> {
        self.reap(now);
        let mut wake = Instant::NEVER;
        for at in 0..self.slots.len() {
            let Some(slot) = self.slots.get_mut(at) else {
                break;
            };
            match slot.phase {
                Phase::Wanted if self.here.up => {
                    slot.phase = Phase::Making;
                    return Ok(self.make(at));
                }
                Phase::Made => self.tell(at, cm, cookie, now),
                Phase::Up => {
                    let idle = slot.last_used.after(self.profile.idle);
                    if now >= idle {
                        slot.phase = Phase::Failed;
                        slot.rest = now;
                    } else {
                        wake = wake.min(idle);
                    }
                }
                _ => {}
            }
            if self
                .slots
                .get(at)
                .is_some_and(|slot| slot.phase == Phase::Failed)
            {
                self.give_up(at, cm, now);
            }
            let Some(slot) = self.slots.get_mut(at) else {
                break;
            };
            match (slot.phase, slot.handle) {
                (Phase::Ending, Some(qp)) => {
                    slot.phase = Phase::EndOut;
                    let slot = at as u16;
                    return Ok(ConnWish::End { slot, qp });
                }
                (Phase::Ending, None) => slot.phase = Phase::Resting,
                _ => {}
            }
            if slot.phase == Phase::Resting {
                if now >= slot.rest {
                    *slot = Slot::free();
                } else {
                    wake = wake.min(slot.rest);
                }
            }
        }
        Err(wake)
    }

    fn make(&self, at: usize) -> ConnWish {
        let sends = match self.slots.get(at).map(|slot| slot.role) {
            Some(Role::Send) => self.profile.send_frames.max(1),
            _ => 1, // nothing is sent on it, but some HCAs want a place
        };
        ConnWish::Make {
            slot: at as u16,
            pd: self.pd,
            init: QpInit {
                qp_type: QpType::Rc,
                port: self.here.port,
                send_cq: self.send_cq.handle(),
                recv_cq: self.recv_cq.handle(),
                srq: Some(self.srq.handle()),
                caps: QpCaps {
                    max_send_wr: sends.into(),
                    max_recv_wr: 0,
                    max_send_sge: 1,
                    max_recv_sge: 1,
                    max_inline: 0,
                },
                signaling: Signaling::All,
                owner: Owner::Kernel,
            },
            port: self.here.port,
            pkey_index: self.here.pkey_index,
        }
    }

    /// A wish was carried out.
    pub(in super::super) fn done(&mut self, done: ConnDone, now: Instant) {
        let at = usize::from(done.slot);
        let device = self.device;
        let Some(slot) = self.slots.get_mut(at) else {
            return;
        };
        match (done.made, slot.phase) {
            (Made::Qp(Ok(made)), Phase::Making) => {
                (slot.handle, slot.qpn) = (Some(made.handle), made.qpn);
                slot.qp = device.qp(made.handle).ok();
                slot.phase = if slot.qp.is_some() {
                    Phase::Made
                } else {
                    Phase::Failed
                };
            }
            (Made::Qp(Err(_)), Phase::Making) => {
                count(&mut self.stats.failed_wishes);
                slot.phase = Phase::Asked;
                slot.fail(now);
            }
            (Made::Gone(_), Phase::EndOut) => {
                slot.handle = None;
                slot.phase = Phase::Resting;
                // What it had not sent yet is lost, and its completions are gone with it.
                for frame in 0..self.sent_by.len() {
                    let id = super::FrameId(frame as u16);
                    let by = self.sent_by.get(frame).copied();
                    if by == Some(done.slot) && self.send.take_back(id) {
                        self.send.release(id);
                    }
                }
            }
            _ => {}
        }
    }

    /// There is a QP: the communication manager is to connect it.
    fn tell<S: Store>(&mut self, at: usize, cm: &mut Cm<S>, cookie: u64, now: Instant) {
        let psn = self.fresh_psn();
        let (here, message) = (self.here, self.message());
        let private = private(here.qpn, message);
        let Some(slot) = self.slots.get_mut(at) else {
            return;
        };
        let asked = match (slot.role, slot.conn) {
            (Role::Send, _) => {
                let path = path(&here, slot);
                let service_id = ServiceId::ipoib_linux(slot.peer.qpn);
                let with = Connect {
                    cookie,
                    qp: slot.handle,
                    qpn: slot.qpn,
                    srq: true,
                    psn,
                    p_key: here.p_key,
                    pkey_index: here.pkey_index,
                    responder_resources: 1,
                    initiator_depth: 0,
                    rnr_retry: 6,
                    private: &private,
                    ..Connect::new(service_id, path, here.mtu.unwrap_or(Mtu::Mtu256))
                };
                let conn = cm.connect(&with, now);
                slot.conn = conn.ok();
                conn.is_ok()
            }
            (Role::Receive, Some(conn)) => {
                let local = Local {
                    port: here.port,
                    pkey_index: here.pkey_index,
                    sgid_index: 0,
                    path_bits: 0,
                };
                let with = Accept {
                    srq: true,
                    responder_resources: 0,
                    initiator_depth: 0,
                    rnr_retry: 6,
                    private: &private,
                    ..Accept::new(slot.handle, slot.qpn, psn, local)
                };
                cm.accept(conn, &with, now).is_ok()
            }
            (Role::Receive, None) => false,
        };
        slot.phase = Phase::Asked;
        if !asked {
            slot.fail(now);
        }
    }

    /// A connection is no good: the peer is told, and its QP is to go.
    fn give_up<S: Store>(&mut self, at: usize, cm: &mut Cm<S>, now: Instant) {
        let Some(slot) = self.slots.get_mut(at) else {
            return;
        };
        if let Some(conn) = slot.conn.take() {
            // It may be over already.
            let _ = cm.abandon(conn, now);
        }
        count(&mut self.stats.ended);
        slot.qp = None;
        slot.phase = Phase::Ending;
        for (frame, _) in core::mem::take(&mut slot.parked) {
            self.send.release(frame);
        }
    }

    fn of_conn(&mut self, conn: ConnId) -> Option<(usize, &mut Slot<V::Qp<'a>>)> {
        let mut slots = self.slots.iter_mut().enumerate();
        slots.find(|(_, slot)| slot.conn == Some(conn))
    }

    /// What the communication manager tells.
    pub(in super::super) fn event<S: Store>(
        &mut self,
        event: &Event,
        cm: &mut Cm<S>,
        now: Instant,
    ) {
        match *event {
            Event::Request { conn, ref req, .. } => {
                if let Err(reason) = self.request(conn, req, now) {
                    count(&mut self.stats.rejected);
                    // It may be over already.
                    let _ = cm.reject(conn, reason, &[], &[], now);
                }
            }
            Event::Reply { conn, ref rep, .. } => {
                let peer = of_private(&rep.private);
                let Some((_, slot)) = self.of_conn(conn) else {
                    return;
                };
                match peer.filter(|(_, mtu)| *mtu > Encapsulation::LEN as u32) {
                    Some((_, mtu)) => {
                        slot.peer_mtu = mtu;
                        let _ = cm.ready(conn, &[]);
                    }
                    None => {
                        let _ = cm.reject(conn, RejReason::CONSUMER, &[], &[], now);
                        slot.fail(now);
                    }
                }
            }
            Event::Established { conn, .. } => {
                let Some((at, slot)) = self.of_conn(conn) else {
                    return;
                };
                slot.phase = Phase::Up;
                slot.last_used = now;
                let (parked, limit) = (core::mem::take(&mut slot.parked), slot.peer_mtu);
                count(&mut self.stats.opened);
                for (frame, len) in parked {
                    if len > limit as usize {
                        count(&mut self.stats.too_long);
                        self.send.release(frame);
                    } else {
                        self.post(at, frame, len);
                    }
                }
            }
            Event::Rejected { conn, .. }
            | Event::Failed { conn, .. }
            | Event::Disconnecting { conn, .. }
            | Event::Disconnected { conn, .. }
            | Event::Gone { conn, .. } => {
                if let Some((_, slot)) = self.of_conn(conn) {
                    if !slot.phase.is_on_its_way() || slot.phase == Phase::Asked {
                        slot.fail(now);
                    } else {
                        slot.conn = None; // seen when its QP is there
                    }
                }
            }
            _ => {}
        }
    }

    /// A peer wants to send to us.
    fn request(&mut self, conn: ConnId, req: &CmReq, now: Instant) -> Result<(), RejReason> {
        let (qpn, mtu) = of_private(&req.private).ok_or(RejReason::UNSUPPORTED)?;
        if !self.here.up {
            return Err(RejReason::NO_RESOURCES);
        }
        if req.primary.remote_gid != self.here.gid {
            return Err(RejReason::PRIMARY_GID);
        }
        let gid = req.primary.local_gid;
        let peer = LinkAddress {
            rc: true,
            uc: false,
            qpn,
            gid,
        };
        // A peer sends by one connection: what was there is of a life before this.
        if let Some(slot) = self
            .find(Role::Receive, &peer)
            .and_then(|at| self.slots.get_mut(at))
        {
            slot.fail(now);
        }
        let mut slots = self.slots.iter_mut();
        let free = slots.find(|slot| slot.phase == Phase::Free);
        let Some(slot) = free else {
            count(&mut self.stats.connections_full);
            return Err(RejReason::NO_QP);
        };
        *slot = Slot::new(Role::Receive, peer, now);
        slot.conn = Some(conn);
        slot.peer_mtu = mtu;
        Ok(())
    }
}

/// From here to the peer of a connection.
fn path<Q>(here: &Here, slot: &Slot<Q>) -> Path {
    let attr = slot.path;
    let grh = attr.grh;
    Path {
        port: here.port,
        local_lid: here.lid,
        path_bits: attr.src_path_bits,
        remote_lid: attr.dlid,
        local_gid: here.gid,
        sgid_index: 0,
        remote_gid: slot.peer.gid,
        sl: attr.sl,
        rate: attr.static_rate,
        flow_label: FlowLabel::new(grh.map_or(0, |grh| grh.flow_label)),
        traffic_class: grh.map_or(0, |grh| grh.traffic_class),
        hop_limit: grh.map_or(0, |grh| grh.hop_limit),
        life_time: LIFE_TIME,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// protocols 6.9.
    #[test]
    fn private_data_is_the_qpn_and_the_longest_message() {
        let bytes = private(Qpn::new(0x12_3456), 65524);
        assert_eq!(bytes, [0, 0x12, 0x34, 0x56, 0, 0, 0xff, 0xf4]);
        assert_eq!(of_private(&bytes), Some((Qpn::new(0x12_3456), 65524)));
        assert_eq!(of_private(&bytes[..7]), None);
    }
}
