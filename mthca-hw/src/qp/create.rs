//! Creating QPs: the shapes of their queues, and what they claim. verbs 3.1, infinihost 5.1.

use super::control::{Claims, QpControl, Rings, STALE, Told, is_special};
use super::place::{QpPlace, Queue, Shape};
use super::recv::RecvQueue;
use super::send::SendQueue;
use super::{Qp, wqe::SEGMENT};
use crate::bells::Bell;
use crate::chip::Mode;
use crate::extents::order_of;
use crate::icm::Kind;
use crate::inner::Inner;
use crate::mr::Ring;
use crate::special::{EXTRA_SEGMENTS, HEADERS};
use core_ib::Qpn;
use core_ib::platform::{DmaBuf, DmaRing, Platform};
use core_ib::verbs::{Access, Owner, PdHandle, QpCaps, QpInfo, QpInit, QpType, VerbsError};
use hca_abi::infinihost::dev_lim::features;
use hca_abi::infinihost::doorbell::RecordType;
use hca_abi::infinihost::wqe;

/// Bytes that the segments before the data take in a send WQE. infinihost 5.1.
const fn overhead(service: QpType) -> u32 {
    SEGMENT
        + match service {
            QpType::Rc | QpType::Uc => SEGMENT,
            QpType::Ud => 3 * SEGMENT,
            QpType::Smi | QpType::Gsi => EXTRA_SEGMENTS * SEGMENT,
        }
}

/// Bytes that a send WQE must have at least: an atomic with its entry, or a bind.
const fn least(service: QpType) -> u32 {
    match service {
        QpType::Rc => 4 * SEGMENT,
        _ => 3 * SEGMENT,
    }
}

impl<'p, P: Platform> Inner<'p, P> {
    /// Shapes of the queues for `caps`: receive queue, send queue.
    fn shapes(
        &self,
        service: QpType,
        caps: &QpCaps,
        shared: bool,
    ) -> Result<[Shape; 2], VerbsError> {
        let limits = &self.limits;
        let check = |field, found: u32, allowed: u32| {
            if found > allowed {
                return Err(VerbsError::InvalidAttr {
                    field,
                    found: found.into(),
                    allowed: allowed.into(),
                });
            }
            Ok(())
        };
        let (max_wr, max_sge) = (self.max_qp_wr(), limits.max_sge);
        check("max_send_wr", caps.max_send_wr, max_wr)?;
        check("max_send_sge", caps.max_send_sge, max_sge)?;
        let (recv_wr, recv_sge) = if shared {
            (0, 0)
        } else {
            (caps.max_recv_wr, caps.max_recv_sge)
        };
        check("max_recv_wr", recv_wr, max_wr)?;
        check("max_recv_sge", recv_sge, max_sge)?;
        let overhead = overhead(service);
        let most_inline = if is_special(service) {
            0 // the data is gathered, never copied
        } else {
            limits.max_wqe.saturating_sub(overhead + 4)
        };
        check("max_inline", caps.max_inline, most_inline)?;

        let recv_bytes = (SEGMENT + recv_sge * SEGMENT).next_power_of_two().max(64);
        let recv = Shape {
            mask: ring_mask(recv_wr),
            base: 0,
            shift: recv_bytes.trailing_zeros() as u8,
            max_sge: (recv_bytes.min(limits.max_wqe) / SEGMENT)
                .saturating_sub(1) // an HCA may say that there are no bytes at all
                .min(max_sge),
            max_inline: 0,
        };
        let inline = (caps.max_inline + 4).next_multiple_of(SEGMENT);
        let data = (caps.max_send_sge * SEGMENT).max(if caps.max_inline > 0 { inline } else { 0 });
        let send_bytes = (overhead + data).max(least(service));
        let send_bytes = send_bytes.next_power_of_two().max(64);
        let room = send_bytes.min(limits.max_wqe).saturating_sub(overhead);
        let recv_len = if recv.mask == 0 { 0 } else { recv.bytes() };
        let send = Shape {
            mask: ring_mask(caps.max_send_wr),
            base: recv_len.next_multiple_of(4096) as u32,
            shift: send_bytes.trailing_zeros() as u8,
            max_sge: (room / SEGMENT).min(max_sge),
            max_inline: room.saturating_sub(4).min(most_inline),
        };
        Ok([recv, send])
    }

    fn claim(
        &self,
        pd: PdHandle,
        init: &QpInit,
        shapes: &[Shape; 2],
        index: u32,
        claims: &mut Claims,
    ) -> Result<Option<u32>, VerbsError> {
        let [recv, send] = shapes;
        claims.lent = self.enter_user(&init.owner)?;
        self.check_owner(init, claims.lent)?;
        claims.pd = Some(self.enter_pd(pd)?);
        claims.send_cq = Some((init.send_cq.index(), self.enter_cq(init.send_cq)?));
        claims.recv_cq = Some((init.recv_cq.index(), self.enter_cq(init.recv_cq)?));
        if let Some(srq) = init.srq {
            self.enter_srq(srq)?;
            claims.srq = Some(srq.index());
        }
        if let Some(lent) = &claims.lent {
            self.user_bells(lent, &init.owner, [true, init.srq.is_none()])?;
            return Ok(None); // who posts remembers
        }
        claims.send_records = Some(self.records.take(send.mask.saturating_add(1))?);
        if recv.mask != 0 {
            claims.recv_records = Some(self.records.take(recv.mask.saturating_add(1))?);
        }
        if is_special(init.qp_type) {
            let number = self.enter_special(init.qp_type, init.port, index)?;
            claims.special = Some((init.qp_type, init.port));
            return Ok(Some(number));
        }
        Ok(None)
    }

    /// Memory of the queues, and the region over it.
    #[expect(
        clippy::type_complexity,
        reason = "two pieces of memory, of which one may be missing"
    )]
    fn begin_queues(
        &self,
        index: u32,
        pd: u32,
        service: QpType,
        shapes: &[Shape; 2],
    ) -> Result<(Option<DmaBuf<'p, P>>, DmaBuf<'p, P>, Ring), VerbsError> {
        let [recv, send] = shapes;
        let recv_len = if recv.mask == 0 { 0 } else { recv.bytes() };
        let headers = if is_special(service) {
            (send.mask as usize + 1) * HEADERS
        } else {
            0
        };
        let send_len = send.bytes() + headers;
        let rq = match recv_len {
            0 => None,
            len => Some(DmaBuf::new(self.machine, len.next_multiple_of(4096), 4096)?),
        };
        let sq = match DmaBuf::new(self.machine, send_len, 4096) {
            Ok(sq) => sq,
            Err(error) => {
                let untold = crate::let_go::Released::never_told();
                if let Some(rq) = rq {
                    untold.free(rq);
                }
                return Err(error.into());
            }
        };
        let mpt = self.plan.mpt.qps.wrapping_add(index);
        let pieces = [
            rq.as_ref().map(|rq| (rq, u64::from(send.base))),
            Some((&sq, send_len as u64)),
        ];
        match self.begin_ring(mpt, pd, Access::empty(), pieces) {
            Ok(ring) => Ok((rq, sq, ring)),
            Err(error) => {
                if let Some(released) = self.untold() {
                    [rq, Some(sq)]
                        .into_iter()
                        .flatten()
                        .for_each(|memory| released.free(memory));
                }
                Err(error)
            }
        }
    }

    pub(crate) fn create_qp(&self, pd: PdHandle, init: &QpInit) -> Result<QpInfo, VerbsError> {
        self.cmd.health().check()?;
        let is_user = matches!(init.owner, Owner::User(_));
        if is_user && is_special(init.qp_type) {
            let operation = "an SMI or GSI QP of a user context";
            return Err(VerbsError::NotPermitted { operation });
        }
        if init.srq.is_some() && !matches!(init.qp_type, QpType::Rc | QpType::Ud) {
            return Err(VerbsError::Unsupported {
                feature: "SRQs with this service",
            });
        }
        if is_special(init.qp_type) {
            self.check_port(init.port)?;
        }
        let shapes = self.shapes(init.qp_type, &init.caps, init.srq.is_some())?;
        let vacant = self.qps.reserve()?;
        let (index, generation) = (vacant.index(), vacant.generation());
        let place = self.qp_places.get(index as usize).ok_or(STALE)?;
        place.gate.with(|control| {
            let mut claims = Claims::default();
            let begun = self
                .claim(pd, init, &shapes, index, &mut claims)
                .and_then(|special| {
                    let number = special.unwrap_or(self.plan.qp.number(index, generation));
                    self.back_qp(number)?;
                    let pd = claims.pd.map_or(0, |pd| pd.number);
                    let queues = match claims.lent {
                        None => Some(self.begin_queues(index, pd, init.qp_type, &shapes)?),
                        Some(_) => None,
                    };
                    Ok((special, queues))
                });
            let (special, queues) = match begun {
                Ok(begun) => begun,
                Err(error) => {
                    self.unclaim(&mut claims);
                    return Err(error);
                }
            };
            let number = special.unwrap_or_else(|| self.plan.qp.number(index, generation));
            let wire = match init.qp_type {
                QpType::Smi => Qpn::SMI,
                QpType::Gsi => Qpn::GSI,
                _ => Qpn::new(number),
            };
            let qp = Qp {
                number,
                wire,
                service: init.qp_type,
                signaling: init.signaling,
                pd_number: claims.pd.map_or(0, |pd| pd.number),
                send_cqn: claims.send_cq.map_or(0, |cq| cq.1),
                recv_cqn: claims.recv_cq.map_or(0, |cq| cq.1),
                cqs: [init.send_cq.index(), init.recv_cq.index()],
                srq: claims.srq,
                user: claims.lent.map(|lent| lent.context),
            };
            let (rq, sq, ring) = match queues {
                Some((rq, sq, ring)) => (rq, Some(sq), Some(ring)),
                None => (None, None, None),
            };
            let pd = claims.pd.map_or(0, |pd| pd.index);
            let rings = self.rings(index, number, init, &shapes);
            *control = QpControl {
                port: if special.is_some() { init.port } else { 0 },
                ring,
                lent: claims.lent,
                rings,
                claims,
                ..QpControl::default()
            };
            self.begin_place(place, &qp, control, (index, pd), &shapes, (rq, sq));
            let mut caps = granted(&shapes, init.srq.is_some());
            if is_user {
                // How long its queues are is the user's business (infinihost 5.1); in M-mode a power of two.
                let round = |count: u32| match self.chip.mode {
                    Mode::M if count != 0 => count.next_power_of_two(),
                    _ => count,
                };
                caps.max_send_wr = round(init.caps.max_send_wr);
                caps.max_recv_wr = if qp.srq.is_some() {
                    0
                } else {
                    round(init.caps.max_recv_wr)
                };
            }
            place.publish(number, wire, self.queue_of(qp.service), qp.srq);
            let handle = vacant.fill(qp);
            Ok(QpInfo {
                handle,
                qpn: wire,
                caps,
            })
        })
    }

    /// How completions of a QP's receives are to be read.
    const fn queue_of(&self, service: QpType) -> Queue {
        match service {
            QpType::Rc | QpType::Uc => Queue::CONNECTED,
            QpType::Ud if self.limits.has_checksums(&self.chip) => Queue::VERIFIED,
            QpType::Ud => Queue::DATAGRAM,
            QpType::Smi | QpType::Gsi => Queue::SPECIAL,
        }
    }

    /// M: sees to it that there are pages behind the contexts of a QP.
    fn back_qp(&self, number: u32) -> Result<(), VerbsError> {
        let entry = self.plan.qp.entry(number);
        for kind in [Kind::Qpc, Kind::Eqpc, Kind::Rdb] {
            self.back(kind, entry, 1)?;
        }
        Ok(())
    }

    /// M: what the HCA is told of the queues. A user's lie in one piece of memory, the send queue behind the receive
    /// queue at a multiple of its own stride (infinihost 5.1, 11.2).
    fn rings(&self, index: u32, number: u32, init: &QpInit, [recv, send]: &[Shape; 2]) -> Rings {
        if let Owner::User(buffer) = &init.owner {
            let [send_bell, recv_bell] = buffer.doorbell_indices;
            let count = if init.srq.is_some() {
                0
            } else {
                init.caps.max_recv_wr
            };
            let told = Told::of_user(recv, count, 0, recv_bell);
            let behind = told.bytes(count).next_multiple_of(1 << send.shift);
            return Rings {
                recv: told,
                send: Told::of_user(send, init.caps.max_send_wr, behind, send_bell),
            };
        }
        let Some(bells) = &self.bells else {
            return Rings::default();
        };
        let (send_bell, recv_bell) = (bells.send(index), bells.receive(index));
        bells.begin(send_bell, RecordType::SQ, number);
        bells.begin(recv_bell, RecordType::RQ, number);
        Rings {
            recv: Told::new(recv, recv_bell.index),
            send: Told::new(send, send_bell.index),
        }
    }

    fn begin_place(
        &self,
        place: &QpPlace<'p, P>,
        qp: &Qp,
        control: &QpControl<'p, P>,
        (index, pd): (u32, u32),
        shapes: &[Shape; 2],
        (rq, sq): (Option<DmaBuf<'p, P>>, Option<DmaBuf<'p, P>>),
    ) {
        let [recv, send] = shapes;
        let claims = &control.claims;
        let mem_free = self.chip.is_mem_free();
        let bells = match &self.bells {
            Some(bells) => [bells.send(index), bells.receive(index)],
            None => [Bell::default(); 2],
        };
        place.send.begin(send, claims.send_records, qp.cqs[0]);
        place.recv.begin(recv, claims.recv_records, qp.cqs[1]);
        place.sq.with(|queue| {
            *queue = SendQueue {
                // The memory has the shape's size, and more for headers.
                memory: sq.and_then(|sq| DmaRing::over(sq, send.mask, send.shift).ok()),
                shape: *send,
                atomics: self.limits.can(features::ATOMICS),
                fence: match qp.service {
                    QpType::Rc => wqe::next::FENCE,
                    _ => 0,
                },
                service: qp.service,
                number: qp.number,
                pd,
                lkey: control.lkey(),
                vectors: claims.pd.map_or(0, |pd| pd.vectors),
                bell: bells[0],
                port: control.port,
                ..SendQueue::default()
            };
            // The memory has the shape's size.
            let _ = queue.prepare(mem_free);
        });
        place.rq.with(|queue| {
            *queue = RecvQueue {
                memory: rq.and_then(|rq| DmaRing::over(rq, recv.mask, recv.shift).ok()),
                shape: *recv,
                shared: qp.srq.is_some(),
                number: qp.number,
                bell: bells[1],
                ..RecvQueue::default()
            };
            // The memory has the shape's size.
            let _ = queue.link_all(mem_free);
        });
    }
}

/// Mask of a ring for `count` requests: one entry is never used. 0 for none.
const fn ring_mask(count: u32) -> u32 {
    if count == 0 {
        0
    } else {
        (1_u32 << order_of(count.saturating_add(1))).wrapping_sub(1)
    }
}

/// What was made.
fn granted([recv, send]: &[Shape; 2], shared: bool) -> QpCaps {
    QpCaps {
        max_send_wr: send.mask,
        max_recv_wr: recv.mask,
        max_send_sge: send.max_sge,
        max_recv_sge: if shared { 0 } else { recv.max_sge },
        max_inline: send.max_inline,
    }
}
