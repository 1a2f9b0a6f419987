//! The control path of QPs: create, modify, query, destroy. verbs 3.
//!
//! All of it happens behind the gate of the QP's place. What a QP holds (its PD, CQs, SRQ, places for records, memory)
//! is claimed piece by piece and given back by one function, whether creation fails half-way or the QP ends.

use super::place::{QpPlace, Queue, Shape};
use super::recv::RecvQueue;
use super::send::SendQueue;
use super::{context, wqe::SEGMENT};
use crate::bells::Bell;
use crate::chip::Mode;
use crate::cmd::CmdError;
use crate::cmd::table::{ModifyQp, QpToError, QpToReset, QpToSqd, QueryQp};
use crate::extents::{Extent, order_of};
use crate::icm::Kind;
use crate::inner::Inner;
use crate::mr::Ring;
use crate::pd::InPd;
use crate::special::{EXTRA_SEGMENTS, HEADERS};
use crate::user::Lent;
use core_ib::Qpn;
use core_ib::platform::{DmaBuf, DmaRing, Platform};
use core_ib::verbs::{
    Access, Object, Owner, PdHandle, QpAttr, QpAttrMask as M, QpCaps, QpHandle, QpInfo, QpInit,
    QpState, QpType, Signaling, VerbsError, check_modify, kind,
};
use hca_abi::infinihost::cmd::{CmdStatus, Opcode};
use hca_abi::infinihost::dev_lim::features;
use hca_abi::infinihost::doorbell::RecordType;
use hca_abi::infinihost::qp::QpMailbox;
use hca_abi::infinihost::wqe;

/// A QP: its handle, and what does not change while it lives.
#[derive(Debug)]
pub(crate) struct Qp {
    /// Number in the HCA, 24 bits, a tag included.
    pub number: u32,
    /// Number on the wire.
    pub wire: Qpn,
    pub service: QpType,
    pub signaling: Signaling,
    pub pd_number: u32,
    pub send_cqn: u32,
    pub recv_cqn: u32,
    /// Places of the CQs.
    pub cqs: [u32; 2],
    /// Place of the SRQ.
    pub srq: Option<u32>,
    /// Place of the user context that it belongs to.
    pub user: Option<u32>,
}

impl Object for Qp {
    type Kind = kind::Qp;
    const NAME: &'static str = "QP";
    const PROFILE: &'static str = "qps";
}

/// What a QP holds, as far as it got.
#[derive(Debug, Default)]
struct Claims {
    pd: Option<InPd>,
    /// Place and number.
    send_cq: Option<(u32, u32)>,
    recv_cq: Option<(u32, u32)>,
    srq: Option<u32>,
    special: Option<(QpType, u8)>,
    send_records: Option<Extent>,
    recv_records: Option<Extent>,
    lent: Option<Lent>,
}

/// One queue of a QP as an HCA of the M-mode is told of it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Told {
    /// Logarithm of its WQEs.
    pub log_size: u8,
    /// Logarithm of their distance, less 4.
    pub log_stride: u8,
    /// Address of the first.
    pub address: u32,
    /// Index of its doorbell record.
    pub record: u32,
}

/// Both queues of a QP.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rings {
    pub recv: Told,
    pub send: Told,
}

impl Told {
    const fn new(shape: &Shape, record: u32) -> Self {
        Self {
            log_size: order_of(shape.mask.wrapping_add(1)),
            log_stride: shape.shift.saturating_sub(4),
            address: shape.base,
            record,
        }
    }

    /// Of a user, who makes a ring of `count` WQEs, rounded up to a power of two, of that shape.
    const fn of_user(shape: &Shape, count: u32, address: u32, record: u32) -> Self {
        Self {
            log_size: order_of(count),
            address,
            ..Self::new(shape, record)
        }
    }

    /// Bytes of all WQEs.
    const fn bytes(&self, count: u32) -> u32 {
        if count == 0 {
            0
        } else {
            16 << self.log_stride << self.log_size
        }
    }
}

/// What changes of a QP: behind the gate of its place.
pub(crate) struct QpControl<'p, P: Platform> {
    pub state: QpState,
    /// Its port; 0 before it is known.
    pub port: u8,
    pub pkey_index: u16,
    pub access: Access,
    pub max_dest_rd_atomic: u8,
    pub rnr_retry: u8,
    /// An alternate path was loaded.
    pub alternate: bool,
    /// Groups that it is attached to.
    pub attachments: u32,
    /// It brought its port up.
    port_open: bool,
    ring: Option<Ring>,
    /// Of a user's QP: what it has instead of a ring of ours.
    lent: Option<Lent>,
    /// M: where its queues are.
    pub rings: Rings,
    claims: Claims,
    machine: core::marker::PhantomData<&'p P>,
}

impl<P: Platform> Default for QpControl<'_, P> {
    fn default() -> Self {
        Self {
            state: QpState::Reset,
            port: 0,
            pkey_index: 0,
            access: Access::empty(),
            max_dest_rd_atomic: 0,
            rnr_retry: 0,
            alternate: false,
            attachments: 0,
            port_open: false,
            ring: None,
            lent: None,
            rings: Rings::default(),
            claims: Claims::default(),
            machine: core::marker::PhantomData,
        }
    }
}

impl<P: Platform> QpControl<'_, P> {
    /// Key of the queues' region.
    pub fn lkey(&self) -> u32 {
        let own = self.ring.as_ref().map_or(0, |ring| ring.key);
        self.lent.map_or(own, |lent| lent.lkey)
    }

    /// The doorbell page that rings for it; `own` is the driver's.
    pub fn page(&self, own: u32) -> u32 {
        self.lent.map_or(own, |lent| lent.page)
    }

    /// What modify can change.
    fn changeable(&self) -> Self {
        Self {
            state: self.state,
            port: self.port,
            pkey_index: self.pkey_index,
            access: self.access,
            max_dest_rd_atomic: self.max_dest_rd_atomic,
            rnr_retry: self.rnr_retry,
            alternate: self.alternate,
            lent: self.lent,
            rings: self.rings,
            ..Self::default()
        }
    }

    fn take_over(&mut self, next: Self) {
        self.state = next.state;
        self.port = next.port;
        self.pkey_index = next.pkey_index;
        self.access = next.access;
        self.max_dest_rd_atomic = next.max_dest_rd_atomic;
        self.rnr_retry = next.rnr_retry;
        self.alternate = next.alternate;
    }
}

const STALE: VerbsError = VerbsError::InvalidHandle { object: Qp::NAME };

const fn is_special(service: QpType) -> bool {
    matches!(service, QpType::Smi | QpType::Gsi)
}

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
            max_sge: (recv_bytes.min(limits.max_wqe) / SEGMENT - 1).min(max_sge),
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

    fn unclaim(&self, claims: &mut Claims) {
        let claims = core::mem::take(claims);
        if let Some((service, port)) = claims.special {
            self.leave_special(service, port);
        }
        for records in [claims.recv_records, claims.send_records]
            .into_iter()
            .flatten()
        {
            self.records.give(records);
        }
        if let Some(srq) = claims.srq {
            self.leave_srq(srq);
        }
        for (cq, _) in [claims.recv_cq, claims.send_cq].into_iter().flatten() {
            self.leave_cq(cq);
        }
        if let Some(pd) = claims.pd {
            self.leave_pd(pd.index);
        }
        self.leave_user(claims.lent);
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

    /// Runs `f` on the QP, while no other control call is at it.
    pub(crate) fn with_qp<T>(
        &self,
        handle: QpHandle,
        f: impl FnOnce(&Qp, &mut QpControl<'p, P>) -> Result<T, VerbsError>,
    ) -> Result<T, VerbsError> {
        let place = self.qp_places.get(handle.index() as usize).ok_or(STALE)?;
        place.gate.with(|control| {
            let qp = self.qps.get(handle)?;
            f(&qp, control)
        })
    }

    pub(crate) fn destroy_qp(&self, handle: QpHandle) -> Result<(), VerbsError> {
        let place = self.qp_places.get(handle.index() as usize).ok_or(STALE)?;
        place.gate.with(|control| {
            self.qps.get(handle).map(drop)?;
            if control.attachments > 0 {
                let (object, holders) = (Qp::NAME, control.attachments);
                return Err(VerbsError::Busy { object, holders });
            }
            let qp = self.qps.remove(handle)?;
            if control.state != QpState::Reset {
                // Whatever it makes of this: without the region it reaches no WQE, and so no buffer.
                self.take_back(&QpToReset { qpn: qp.number });
            }
            self.close_port_of(&qp, control);
            // While it is still known, so that requests of an SRQ find their way back.
            self.purge_cqs(&qp);
            place.withdraw();
            let sq = place.sq.with(core::mem::take);
            let rq = place.rq.with(core::mem::take);
            place.send.end();
            place.recv.end();
            if let Some(released) = control.ring.take().and_then(|ring| self.end_ring(ring)) {
                let memory = [sq.memory, rq.memory].into_iter().flatten();
                memory.for_each(|memory| released.free(memory.into_memory()));
            }
            if let Some(bells) = self.bells.as_ref().filter(|_| control.lent.is_none()) {
                bells.end(bells.send(handle.index()));
                bells.end(bells.receive(handle.index()));
            }
            self.unclaim(&mut control.claims);
            *control = QpControl::default();
            Ok(())
        })
    }

    /// M: what is posted from here on counts from 0. infinihost 2.10.
    fn reset_bells(&self, place: &QpPlace<'p, P>) {
        if let Some(bells) = &self.bells {
            place.sq.with(|queue| bells.count(queue.bell, 0));
            place.rq.with(|queue| bells.count(queue.bell, 0));
        }
    }

    fn purge_cqs(&self, qp: &Qp) {
        let [send, recv] = qp.cqs;
        self.purge_cq(send, qp.number);
        if recv != send {
            self.purge_cq(recv, qp.number);
        }
    }

    pub(crate) fn modify_qp(
        &self,
        handle: QpHandle,
        attr: &QpAttr,
        mask: M,
    ) -> Result<(), VerbsError> {
        let place = self.qp_places.get(handle.index() as usize).ok_or(STALE)?;
        self.with_qp(handle, |qp, control| {
            let from = if mask.contains(M::CUR_STATE) {
                attr.cur_state
            } else {
                control.state
            };
            let alive = self.cmd.health().check();
            let down =
                mask.contains(M::STATE) && matches!(attr.state, QpState::Reset | QpState::Error);
            if !down {
                alive?; // a dead HCA resets and flushes by software, and does nothing else: verbs 13.2
            }
            let to = check_modify(qp.service, control.state, attr, mask)?;
            self.check_values(qp, control, attr, mask, to)?;
            if control.lent.is_some() && mask.contains(M::QKEY) && attr.qkey.0 >> 31 != 0 {
                let operation = "a Q_Key with bit 31 set by a user";
                return Err(VerbsError::NotPermitted { operation });
            }
            if from == to && matches!(to, QpState::Reset | QpState::Error) {
                return Ok(());
            }
            let mut next = control.changeable();
            note(&mut next, qp, attr, mask, to);
            match to {
                QpState::Reset => {
                    // Closed first, so that nothing is posted behind the reset.
                    place.sq.with(SendQueue::forget);
                    place.rq.with(RecvQueue::forget);
                    self.take_back(&QpToReset { qpn: qp.number });
                    self.purge_cqs(qp);
                    place.send.forget();
                    place.recv.forget();
                    if control.lent.is_none() {
                        self.reset_bells(place);
                    }
                    let mem_free = self.chip.is_mem_free();
                    place.rq.with(|queue| queue.link_all(mem_free)).ok();
                    let port = if is_special(qp.service) {
                        control.port
                    } else {
                        0
                    };
                    next = QpControl {
                        port,
                        rings: control.rings,
                        ..QpControl::default()
                    };
                }
                QpState::Error if alive.is_err() => {}
                _ => {
                    next.ring = control.ring.take();
                    let mailbox = self.transition(qp, &next, attr, mask, to);
                    control.ring = next.ring.take();
                    let told = self.tell(qp, from, to, &mailbox, attr);
                    told.map_err(|error| refused(error, from))?;
                }
            }
            next.state = to;
            self.enter_state(place, qp, &next, attr, mask);
            control.take_over(next);
            self.follow_port(qp, control);
            Ok(())
        })
    }

    /// What posting may do from here on.
    fn enter_state(
        &self,
        place: &QpPlace<'p, P>,
        qp: &Qp,
        next: &QpControl<'p, P>,
        attr: &QpAttr,
        mask: M,
    ) {
        let state = next.state;
        place.sq.with(|queue| {
            queue.set_open(matches!(
                state,
                QpState::Rts | QpState::Sqd | QpState::Sqe | QpState::Error
            ));
            if mask.contains(M::MAX_RD_ATOMIC) {
                queue.reads = attr.max_rd_atomic > 0 && qp.service == QpType::Rc;
            }
            if mask.contains(M::QKEY) && qp.service.is_datagram() {
                queue.qkey = attr.qkey;
            }
        });
        place
            .rq
            .with(|queue| queue.set_open(state != QpState::Reset));
    }

    /// A port goes up and down with its QP0. infinihost 3.9.
    fn follow_port(&self, qp: &Qp, control: &mut QpControl<'p, P>) {
        if qp.service != QpType::Smi {
            return;
        }
        match control.state {
            QpState::Rtr if !control.port_open => {
                control.port_open = true;
                if let Err(error) = self.open_port(control.port) {
                    let (name, port) = (self.machine.name(), control.port);
                    log::error!("{name}: port {port} does not come up: {error}");
                }
            }
            QpState::Reset | QpState::Error => self.close_port_of(qp, control),
            _ => {}
        }
    }

    fn close_port_of(&self, qp: &Qp, control: &mut QpControl<'p, P>) {
        if qp.service == QpType::Smi && core::mem::take(&mut control.port_open) {
            // A dead HCA's port is down as well.
            let _ = self.close_port(control.port);
        }
    }

    /// The command of a transition. infinihost 3.11.
    fn tell(
        &self,
        qp: &Qp,
        from: QpState,
        to: QpState,
        mailbox: &QpMailbox,
        attr: &QpAttr,
    ) -> Result<(), CmdError> {
        use QpState::{Error, Init, Rtr, Rts, Sqd, Sqe};
        let qpn = qp.number;
        macro_rules! modify {
            ($opcode:ident) => {
                self.command(&ModifyQp::<{ Opcode::$opcode.0 }> { qpn, mailbox })
            };
        }
        match (from, to) {
            (Init, Init) => modify!(INIT2INIT_QPEE),
            (_, Init) => modify!(RST2INIT_QPEE),
            (_, Rtr) => modify!(INIT2RTR_QPEE),
            (Rtr, Rts) => modify!(RTR2RTS_QPEE),
            (Sqe, Rts) => modify!(SQERR2RTS_QPEE),
            (Sqd, Rts) => modify!(SQD2RTS_QPEE),
            (_, Rts) => modify!(RTS2RTS_QPEE),
            (Sqd, Sqd) => modify!(SQD2SQD_QPEE),
            (_, Sqd) => {
                let event = attr.sq_drained_event;
                self.command(&QpToSqd { qpn, event })
            }
            (_, Error) => self.command(&QpToError { qpn }),
            _ => modify!(RTS2RTS_QPEE),
        }
        .map(drop)
    }

    pub(crate) fn query_qp(&self, handle: QpHandle) -> Result<QpAttr, VerbsError> {
        let place = self.qp_places.get(handle.index() as usize).ok_or(STALE)?;
        self.with_qp(handle, |qp, control| {
            if control.state == QpState::Reset {
                return Ok(QpAttr::EMPTY);
            }
            self.cmd.health().check()?;
            let (mailbox, _) = self.command(&QueryQp { qpn: qp.number })?;
            let unknown = VerbsError::InvalidState { object: Qp::NAME };
            let (state, draining) = context::state_in(&mailbox.context).ok_or(unknown)?;
            let mut attr =
                context::attributes(&mailbox.context, state, draining, |port| self.rates(port));
            if is_special(qp.service) {
                attr.port = control.port;
            }
            // From here on the driver knows what the HCA did by itself.
            if state != QpState::Reset {
                control.state = state;
                if !qp.service.is_datagram() {
                    control.port = attr.port;
                }
                place.rq.with(|queue| queue.set_open(true));
            }
            Ok(attr)
        })
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

/// A refusal where the driver could not know better: verbs 3.7.
fn refused(error: CmdError, from: QpState) -> VerbsError {
    match error.status() {
        Some(CmdStatus::BAD_QPEE_STATE) if from == QpState::Sqd => {
            VerbsError::InvalidState { object: Qp::NAME }
        }
        _ => error.into(),
    }
}

/// What the driver will know after a transition.
fn note<P: Platform>(next: &mut QpControl<'_, P>, qp: &Qp, attr: &QpAttr, mask: M, to: QpState) {
    if mask.contains(M::PORT) {
        next.port = attr.port;
    } else if mask.contains(M::AV) && to == QpState::Sqd && !is_special(qp.service) {
        next.port = attr.path.port;
    }
    if mask.contains(M::PKEY_INDEX) {
        next.pkey_index = attr.pkey_index;
    }
    if mask.contains(M::ACCESS) {
        next.access = attr.access;
    }
    if mask.contains(M::MAX_DEST_RD_ATOMIC) {
        next.max_dest_rd_atomic = attr.max_dest_rd_atomic;
    }
    if mask.contains(M::RNR_RETRY) {
        next.rnr_retry = attr.rnr_retry;
    }
    next.alternate |= mask.contains(M::ALT_PATH);
}
