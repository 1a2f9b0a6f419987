//! The control path of QPs: modify, query, destroy. verbs 3.
//!
//! All of it happens behind the gate of the QP's place. What a QP holds (its PD, CQs, SRQ, places for records, memory)
//! is claimed piece by piece and given back by one function, whether creation fails half-way or the QP ends.

use super::context;
use super::place::{QpPlace, Shape};
use super::recv::RecvQueue;
use super::send::SendQueue;
use crate::cmd::CmdError;
use crate::cmd::table::{ModifyQp, QpToError, QpToReset, QpToSqd, QueryQp};
use crate::eq::Which;
use crate::extents::{Extent, order_of};
use crate::inner::Inner;
use crate::isr::Arm;
use crate::mr::Ring;
use crate::pd::InPd;
use crate::user::Lent;
use core_ib::Qpn;
use core_ib::platform::Platform;
use core_ib::verbs::{
    Access, Object, QpAttr, QpAttrMask as M, QpHandle, QpState, QpType, Signaling, VerbsError,
    check_modify, kind,
};
use hca_abi::infinihost::cmd::{CmdStatus, Opcode};
use hca_abi::infinihost::qp::QpMailbox;

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
pub(super) struct Claims {
    pub pd: Option<InPd>,
    /// Place and number.
    pub send_cq: Option<(u32, u32)>,
    pub recv_cq: Option<(u32, u32)>,
    pub srq: Option<u32>,
    pub special: Option<(QpType, u8)>,
    pub send_records: Option<Extent>,
    pub recv_records: Option<Extent>,
    pub lent: Option<Lent>,
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
    pub(super) const fn new(shape: &Shape, record: u32) -> Self {
        Self {
            log_size: order_of(shape.mask.wrapping_add(1)),
            log_stride: shape.shift.saturating_sub(4),
            address: shape.base,
            record,
        }
    }

    /// Of a user, who makes a ring of `count` WQEs, rounded up to a power of two, of that shape.
    pub(super) const fn of_user(shape: &Shape, count: u32, address: u32, record: u32) -> Self {
        Self {
            log_size: order_of(count),
            address,
            ..Self::new(shape, record)
        }
    }

    /// Bytes of all WQEs.
    pub(super) const fn bytes(&self, count: u32) -> u32 {
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
    pub(super) port_open: bool,
    pub(super) ring: Option<Ring>,
    /// Of a user's QP: what it has instead of a ring of ours.
    pub(super) lent: Option<Lent>,
    /// M: where its queues are.
    pub rings: Rings,
    pub(super) claims: Claims,
    pub(super) machine: core::marker::PhantomData<&'p P>,
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

pub(super) const STALE: VerbsError = VerbsError::InvalidHandle { object: Qp::NAME };

pub(super) const fn is_special(service: QpType) -> bool {
    matches!(service, QpType::Smi | QpType::Gsi)
}

impl<'p, P: Platform> Inner<'p, P> {
    pub(super) fn unclaim(&self, claims: &mut Claims) {
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
            if is_special(qp.service) {
                // Its number carries no tag: what is still in the queue of events must not meet the next owner.
                self.drain(Which::Async, Arm::IfAny);
            }
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
            queue.set_open(may_send(state));
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
                place.sq.with(|queue| queue.set_open(may_send(state)));
                place.rq.with(|queue| queue.set_open(true));
            }
            Ok(attr)
        })
    }
}

/// May sends be posted? verbs 3.2.
const fn may_send(state: QpState) -> bool {
    matches!(
        state,
        QpState::Rts | QpState::Sqd | QpState::Sqe | QpState::Error
    )
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
