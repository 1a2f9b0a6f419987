//! Connected queue pairs: the engines of RC and UC, joined to this HCA's queues, memory and clock. infinihost 5.8, 5.12,
//! protocols 2.3 to 2.7.
//!
//! The engines live in the queue pair from RTR on. One step of work sends one packet: an answer (`answers`), or a part of
//! a request (`requests`), in turn. What arrives comes through `arrivals`. While an engine is at work it is out of
//! its queue pair, so nothing that it calls may end the connection; that is done when it is back, by
//! [`settle`](InfiniHost::settle).

mod answers;
mod arrivals;
mod migration;
mod requests;

use super::chip::Chip;
use super::cmd::LOG_GIDS;
use super::qp::Qp;
use super::wqe::{Position, Wqe};
use super::{InfiniHost, timers};
use crate::machine::Bus;
use crate::transport::{
    AddressVector, Connection, Failure, GlobalRoute, Migration, RcRequester, RcResponder, Refusal,
    RemoteAccess, Request, RequesterLimits, ResponderLimits, Transmit, UcRequester, UcResponder,
};
use core_ib::wire::packet::{CreditCode, FlowLabel, RnrTimer, Service};
use core_ib::{Gid, Instant, Lid, Mtu, Psn, Qpn, Sl};
use hca_abi::infinihost::cqe::Syndrome;
use hca_abi::infinihost::eqe::EventType;
use hca_abi::infinihost::qp::{AddressPath, PathMigration, QpContext, QpState, ServiceType};

/// Log2 of the requests that one queue has outstanding, whatever its context says: each is remembered whole.
const MAX_LOG_FLIGHT: u8 = 8;

/// A send request that has begun.
pub struct InFlight {
    wqe: Wqe,
    /// A doorbell led to it, and not the entry before it.
    rung: bool,
}

/// A receive request that a message has taken, and the domain of its buffers.
pub struct InHand {
    wqe: Wqe,
    pd: u32,
}

/// The requesting half.
enum Requester {
    Reliable(Box<RcRequester<InFlight>>),
    Unreliable(Box<UcRequester<InFlight>>),
}

/// The responding half.
enum Responder {
    Reliable(Box<RcResponder>),
    Unreliable(UcResponder),
}

/// What ends a connection from within.
#[derive(Clone, Copy)]
enum End {
    /// The peer asked for what is refused, or a receive request is bad.
    Refused(Refusal),
    /// The send queue cannot be read.
    QueueFailed,
}

/// What a connected queue pair is beside its context and queues.
pub struct Connected {
    requester: Requester,
    responder: Responder,
    in_hand: Option<InHand>,
    /// The entry that was begun last leads to the next without a doorbell.
    chained: bool,
    /// The request at the front of the send queue has to wait until another is complete or acknowledged.
    waits: bool,
    /// Software was told that the connection is established.
    established: bool,
    /// Software is to be told when the send queue is drained.
    tell_drained: bool,
    /// If both have something to send, the responder is next.
    answer_next: bool,
    /// When the timer is set to strike.
    alarm: Option<Instant>,
    /// The connection is to end.
    ended: Option<End>,
    /// Software was told that the peer wants to migrate where it cannot be followed.
    told_astray: bool,
}

fn mtu(context: &QpContext) -> Mtu {
    Mtu::from_code(context.mtu()).unwrap_or(Mtu::Mtu256)
}

fn access(context: &QpContext) -> RemoteAccess {
    RemoteAccess {
        read: context.rre(),
        write: context.rwe(),
        atomic: context.rae(),
    }
}

fn requester_limits(context: &QpContext) -> RequesterLimits {
    let path = context.primary_path();
    RequesterLimits {
        mtu: mtu(context),
        timeout: path.ack_timeout(),
        retry_count: context.retry_count(),
        rnr_retry: path.rnr_retry(),
        max_rd_atomic: 1 << context.sra_max(),
        max_requests: 1 << context.flight_limit().min(MAX_LOG_FLIGHT),
        ignore_credits: context.ignore_credits(),
    }
}

fn responder_limits(context: &QpContext) -> ResponderLimits {
    ResponderLimits {
        mtu: mtu(context),
        access: access(context),
        max_rd_atomic: 1 << context.rra_max(),
        rnr_timer: RnrTimer::new(context.min_rnr_timer()),
    }
}

impl Requester {
    fn new(context: &QpContext) -> Self {
        let psn = Psn::new(context.next_send_psn());
        if context.service() == ServiceType::UC {
            return Self::Unreliable(Box::new(UcRequester::new(psn, mtu(context))));
        }
        let limits = requester_limits(context);
        Self::Reliable(Box::new(RcRequester::new(psn, limits)))
    }

    fn next_psn(&self) -> Psn {
        match self {
            Self::Reliable(engine) => engine.next_psn(),
            Self::Unreliable(engine) => engine.next_psn(),
        }
    }

    /// A request may begin, unless it is one that has to wait.
    fn is_open(&self) -> bool {
        match self {
            Self::Reliable(engine) => engine.is_open(),
            Self::Unreliable(engine) => engine.is_idle(),
        }
    }

    fn is_idle(&self) -> bool {
        match self {
            Self::Reliable(engine) => engine.is_idle(),
            Self::Unreliable(engine) => engine.is_idle(),
        }
    }

    fn may_begin(&self, request: &Request, fence: bool) -> bool {
        match self {
            Self::Reliable(engine) => engine.may_begin(request, fence),
            Self::Unreliable(engine) => engine.is_idle(),
        }
    }

    fn begin(&mut self, request: Request, in_flight: InFlight) {
        match self {
            Self::Reliable(engine) => engine.begin(request, in_flight),
            Self::Unreliable(engine) => engine.begin(request, in_flight),
        }
    }

    fn transmit(&mut self, now: Instant) -> Option<Transmit> {
        match self {
            Self::Reliable(engine) => engine.transmit(now),
            Self::Unreliable(engine) => engine.transmit(),
        }
    }

    fn sent(&mut self, transmit: &Transmit, now: Instant) {
        match self {
            Self::Reliable(engine) => engine.sent(transmit, now),
            Self::Unreliable(engine) => engine.sent(transmit),
        }
    }

    fn tag(&self, slot: usize) -> Option<&InFlight> {
        match self {
            Self::Reliable(engine) => engine.tag(slot),
            Self::Unreliable(engine) => engine.tag(),
        }
    }

    fn fail(&mut self, slot: usize, failure: Failure) {
        match self {
            Self::Reliable(engine) => engine.fail(slot, failure),
            Self::Unreliable(engine) => engine.fail(failure),
        }
    }

    fn begin_doomed(&mut self, failure: Failure, in_flight: InFlight) {
        match self {
            Self::Reliable(engine) => engine.begin_doomed(failure, in_flight),
            Self::Unreliable(engine) => engine.begin_doomed(failure, in_flight),
        }
    }

    fn pop_completed(&mut self) -> Option<(Request, InFlight)> {
        match self {
            Self::Reliable(engine) => engine.pop_completed(),
            Self::Unreliable(engine) => engine.pop_completed(),
        }
    }

    fn failure(&self) -> Option<Failure> {
        match self {
            Self::Reliable(engine) => engine.failure(),
            Self::Unreliable(engine) => engine.failure(),
        }
    }

    fn deadline(&self) -> Option<Instant> {
        match self {
            Self::Reliable(engine) => engine.deadline(),
            Self::Unreliable(_) => None,
        }
    }

    /// Forgets what is in flight; gives it, oldest first.
    fn drain(&mut self) -> Vec<InFlight> {
        match self {
            Self::Reliable(engine) => engine.drain().collect(),
            Self::Unreliable(engine) => engine.abandon().into_iter().collect(),
        }
    }
}

impl Connected {
    fn new(context: &QpContext) -> Self {
        let psn = Psn::new(context.next_receive_psn());
        let responder = match context.service() {
            ServiceType::UC => {
                Responder::Unreliable(UcResponder::new(psn, mtu(context), access(context)))
            }
            _ => Responder::Reliable(Box::new(RcResponder::new(psn, responder_limits(context)))),
        };
        Self {
            requester: Requester::new(context),
            responder,
            in_hand: None,
            chained: false,
            waits: false,
            established: false,
            tell_drained: false,
            answer_next: true,
            alarm: None,
            ended: None,
            told_astray: false,
        }
    }

    /// Nothing that was begun is incomplete.
    pub fn is_drained(&self) -> bool {
        self.requester.is_idle()
    }

    /// Once nothing is in flight, software is told, if it wants to be.
    pub fn drain(&mut self, tell: bool) {
        self.tell_drained = tell;
    }

    /// The send requests in flight, which are forgotten, oldest first: where each is, and whether a doorbell led to it.
    /// Then, whether one leads to what is posted next.
    pub fn flush_sends(&mut self) -> (Vec<(Position, bool)>, bool) {
        let flushed = self.requester.drain();
        let flushed = flushed.iter().map(|one| (one.wqe.at, one.rung)).collect();
        (flushed, !core::mem::replace(&mut self.chained, false))
    }

    /// The receive request in hand, which is forgotten.
    pub fn flush_receive(&mut self) -> Option<Position> {
        self.in_hand.take().map(|one| one.wqe.at)
    }

    /// Nothing is accepted any more, and of what waits only a refusal is still sent.
    pub fn stop(&mut self) {
        if let Responder::Reliable(engine) = &mut self.responder {
            engine.stop();
        }
    }

    /// Shows in `context` how far the engines are.
    pub fn show(&self, context: &mut QpContext) {
        context.set_next_send_psn(self.requester.next_psn().get());
        context.set_next_receive_psn(match &self.responder {
            Responder::Reliable(engine) => engine.expected_psn().get(),
            Responder::Unreliable(engine) => engine.expected_psn().get(),
        });
    }
}

impl Qp {
    /// Software moved the queue pair on, or changed what its context says.
    pub fn context_changed(&mut self, from: QpState) {
        let context = &self.context;
        let connected = matches!(context.service(), ServiceType::RC | ServiceType::UC);
        match (from, context.state()) {
            (QpState::INIT, QpState::RTR) if connected => {
                self.connected = Some(Box::new(Connected::new(context)));
            }
            (QpState::RTR, QpState::RTS) => {
                if let Some(connected) = &mut self.connected {
                    connected.requester = Requester::new(context);
                    connected.established = true;
                }
            }
            _ => {}
        }
        if let Some(connected) = &mut self.connected {
            connected.waits = false;
            connected.told_astray &= context.path_migration() != PathMigration::REARM;
            if let Requester::Reliable(engine) = &mut connected.requester {
                engine.set_limits(requester_limits(context));
            }
            match &mut connected.responder {
                Responder::Reliable(engine) => engine.set_limits(responder_limits(context)),
                Responder::Unreliable(engine) => engine.set_access(access(context)),
            }
        }
    }

    /// The connection, as the transport knows it.
    fn connection(&self) -> Connection {
        self.connection_by(&self.context.primary_path())
    }

    /// The same by this path. The GID index of a QP is that of its port. infinihost 4.6.
    fn connection_by(&self, path: &AddressPath) -> Connection {
        let grh = path.grh().then(|| GlobalRoute {
            dgid: Gid(path.dgid()),
            sgid_index: usize::from(path.gid_index() & ((1 << LOG_GIDS) - 1)),
            flow_label: FlowLabel::new(path.flow_label()),
            hop_limit: path.hop_limit(),
            traffic_class: path.traffic_class(),
        });
        Connection {
            service: match self.context.service() {
                ServiceType::UC => Service::Uc,
                _ => Service::Rc,
            },
            qpn: Qpn::new(self.qpn()),
            dest_qp: Qpn::new(self.context.remote_qpn()),
            path: AddressVector {
                dlid: Lid(path.dlid()),
                sl: Sl::new(path.sl()),
                path_bits: path.path_bits(),
                grh,
            },
            p_key_index: usize::from(path.pkey_index()),
            migration: match self.context.path_migration() {
                PathMigration::ARMED => Migration::Armed,
                PathMigration::REARM => Migration::Rearm,
                _ => Migration::Migrated,
            },
        }
    }

    /// What an acknowledge says of the receive requests that there are. protocols 2.4.1.
    fn credits(&self, chip: &Chip, bus: &mut dyn Bus, in_hand: bool) -> CreditCode {
        if self.context.invalid_credits() || self.srq().is_some() {
            return CreditCode::NONE;
        }
        let posted = self.rq.posted(chip, bus).saturating_add(u32::from(in_hand));
        CreditCode::at_most(posted)
    }
}

/// What one step of a connection came to.
enum Moved {
    /// Something went out, or began.
    On,
    /// There is nothing to do.
    Idle,
    /// The wire has no room on this lane.
    Blocked {
        /// Port 1 or 2.
        port: u8,
        /// Virtual lane.
        vl: u8,
    },
}

/// The syndrome of a completion. infinihost 4.5.2.
fn syndrome(failure: Failure) -> Syndrome {
    match failure {
        Failure::LocalLength => Syndrome::LOCAL_LENGTH,
        Failure::LocalProtection => Syndrome::LOCAL_PROTECTION,
        Failure::Bind => Syndrome::MW_BIND,
        Failure::BadResponse => Syndrome::BAD_RESPONSE,
        Failure::RemoteInvalidRequest => Syndrome::REMOTE_INVALID_REQUEST,
        Failure::RemoteAccess => Syndrome::REMOTE_ACCESS,
        Failure::RemoteOperation => Syndrome::REMOTE_OPERATION,
        Failure::RetryExceeded => Syndrome::RETRY_EXCEEDED,
        Failure::RnrRetryExceeded => Syndrome::RNR_RETRY_EXCEEDED,
        _ => Syndrome::LOCAL_QP_OPERATION,
    }
}

impl InfiniHost {
    /// One packet of QP `qpn`, and the queue on the list again if there may be more.
    pub(super) fn connected_step(&mut self, bus: &mut dyn Bus, qpn: u32) {
        let qp = self.qps.get_mut(qpn);
        let Some(mut connected) = qp.and_then(|qp| qp.connected.take()) else {
            return;
        };
        let order = [connected.answer_next, !connected.answer_next];
        let mut moved = Moved::Idle;
        for answer in order {
            moved = if answer {
                self.answer(bus, qpn, &mut connected)
            } else {
                self.request(bus, qpn, &mut connected)
            };
            match moved {
                Moved::Idle => {}
                Moved::On => {
                    connected.answer_next = !answer;
                    break;
                }
                Moved::Blocked { .. } => break,
            }
        }
        self.put_back(qpn, connected);
        self.settle(bus, qpn);
        match moved {
            Moved::Idle => {}
            Moved::On => self.schedule_send(qpn),
            Moved::Blocked { port, vl } => {
                let qp = self.qps.get_mut(qpn);
                if qp.is_some_and(|qp| !core::mem::replace(&mut qp.sq.scheduled, true)) {
                    self.ports.wait(port, vl, qpn);
                }
            }
        }
    }

    fn put_back(&mut self, qpn: u32, connected: Box<Connected>) {
        if let Some(qp) = self.qps.get_mut(qpn) {
            qp.connected = Some(connected);
        }
    }

    /// Completes what is complete, ends the connection if it has failed, and sets the clock.
    fn settle(&mut self, bus: &mut dyn Bus, qpn: u32) {
        while let Some(connected) = self.connected(qpn) {
            let Some((request, one)) = connected.requester.pop_completed() else {
                break;
            };
            connected.waits = false;
            self.request_completed(bus, qpn, &request, &one.wqe);
        }
        let ended = self.connected(qpn).and_then(|one| one.ended.take());
        match ended {
            Some(End::Refused(refusal)) => return self.refused(bus, qpn, refusal),
            Some(End::QueueFailed) => return self.queue_failed(bus, qpn),
            None => {}
        }
        let mut failure = self.connected(qpn).and_then(|one| one.requester.failure());
        if failure == Some(Failure::RetryExceeded) && self.other_path(bus, qpn) {
            failure = None;
        }
        if let Some(failure) = failure {
            return self.send_failed(bus, qpn, syndrome(failure));
        }
        self.drained(bus, qpn);
        self.set_alarm(bus, qpn);
    }

    fn connected(&mut self, qpn: u32) -> Option<&mut Connected> {
        self.qps.get_mut(qpn)?.connected.as_deref_mut()
    }

    /// The last request that had begun before SQD may be complete now.
    fn drained(&mut self, bus: &mut dyn Bus, qpn: u32) {
        let Some(qp) = self.qps.get_mut(qpn) else {
            return;
        };
        let idle = qp.connected.as_deref().is_none_or(Connected::is_drained);
        if qp.state() != QpState::SQ_DRAINING || !idle {
            return;
        }
        qp.context.set_state(QpState::SQD);
        let connected = qp.connected.as_deref_mut();
        if connected.is_some_and(|one| core::mem::take(&mut one.tell_drained)) {
            self.qp_event(bus, EventType::SQ_DRAINED, qpn);
        }
    }

    /// Sets the QP's timer, unless it strikes early enough anyway: most are put off before they strike.
    fn set_alarm(&mut self, bus: &mut dyn Bus, qpn: u32) {
        let Some(connected) = self.connected(qpn) else {
            return;
        };
        if let Some(due) = connected.requester.deadline()
            && connected.alarm.is_none_or(|alarm| due < alarm)
        {
            connected.alarm = Some(due);
            bus.set_timer(timers::connection(qpn), due);
        }
    }

    /// The timer of a QP struck.
    pub(super) fn connection_timer(&mut self, bus: &mut dyn Bus, qpn: u32) {
        let now = bus.now();
        let Some(connected) = self.connected(qpn) else {
            return;
        };
        (connected.alarm, connected.waits) = (None, false);
        if let Requester::Reliable(engine) = &mut connected.requester {
            engine.expired(now);
        }
        self.settle(bus, qpn);
        self.schedule_send(qpn);
    }
}
