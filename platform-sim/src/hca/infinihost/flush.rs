//! Completions, and what becomes of a queue pair that fails. infinihost 4.3, 5.8.

use super::cq::CqLost;
use super::qp::Qp;
use super::queue::Flushed;
use super::variant::Mode;
use super::work::Work;
use super::wqe::Position;
use super::{InfiniHost, timers};
use crate::machine::Bus;
use core::time::Duration;
use hca_abi::infinihost::cqe::{Cqe, ErrorCqe, Syndrome};
use hca_abi::infinihost::eqe::{Eqe, EventType};
use hca_abi::infinihost::qp::{QpState, ServiceType};

/// From an error to the first look at what was posted after it.
const WATCH_FIRST: Duration = Duration::from_micros(100);
/// Between two looks at most.
const WATCH_LAST: Duration = Duration::from_secs(2);

/// Which half of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Send queue.
    Send,
    /// Receive queue, own or shared.
    Receive,
}

impl InfiniHost {
    /// Writes a completion of QP `qpn`.
    pub(super) fn complete(
        &mut self,
        bus: &mut dyn Bus,
        qpn: u32,
        side: Side,
        cqe: &Cqe,
        solicited: bool,
    ) {
        let Some(qp) = self.qps.get(qpn) else {
            return;
        };
        let cqn = match side {
            Side::Send => qp.context.send_cqn(),
            Side::Receive => qp.context.receive_cqn(),
        };
        let mut cqe = *cqe;
        if self.mode() == Mode::M {
            cqe.set_wqe_size(0);
        }
        let (chip, events) = (&mut self.chip, &mut self.events);
        let written = self.cqs.complete(chip, events, bus, cqn, &cqe, solicited);
        if written == Err(CqLost::Failed) {
            self.work.push_back(Work::CqFailed { cqn });
        }
    }

    /// Writes an error completion. `behind` is its doorbell count.
    fn complete_error(
        &mut self,
        bus: &mut dyn Bus,
        qpn: u32,
        side: Side,
        at: Position,
        syndrome: Syndrome,
        behind: u16,
    ) {
        let mut cqe = ErrorCqe::ZERO;
        cqe.set_qpn(qpn)
            .set_syndrome(syndrome)
            .set_doorbell_count(behind)
            .set_wqe_address(at.nda)
            .set_wqe_size(at.nds)
            .set_opcode(match side {
                Side::Send => Cqe::ERROR_SEND,
                Side::Receive => Cqe::ERROR_RECEIVE,
            });
        self.complete(bus, qpn, side, cqe.as_cqe(), true);
    }

    /// Completions of entries that were given up.
    pub(super) fn flushed(&mut self, bus: &mut dyn Bus, qpn: u32, side: Side, flushed: &[Flushed]) {
        for &Flushed { at, behind } in flushed {
            self.complete_error(bus, qpn, side, at, Syndrome::FLUSHED, behind);
        }
    }

    /// An event about QP `qpn`.
    pub(super) fn qp_event(&mut self, bus: &mut dyn Bus, event: EventType, qpn: u32) {
        let mut eqe = Eqe::ZERO;
        eqe.set_event_type(event).set_number(qpn).set_is_qp(true);
        self.events.post(&mut self.chip, bus, &eqe);
    }

    /// The send request at the front failed. The queue stops; of a connected QP the other half too.
    pub(super) fn send_failed(&mut self, bus: &mut dyn Bus, qpn: u32, syndrome: Syndrome) {
        let Some(qp) = self.qps.get_mut(qpn) else {
            return;
        };
        let reliable = matches!(qp.context.service(), ServiceType::RC | ServiceType::RD);
        let flushed = qp.flush_sends();
        let Some((&Flushed { at, behind }, rest)) = flushed.split_first() else {
            return;
        };
        qp.context.set_state(QpState::SQE);
        self.complete_error(bus, qpn, Side::Send, at, syndrome, behind);
        self.flushed(bus, qpn, Side::Send, rest);
        if reliable {
            self.stop_qp(bus, qpn);
        }
    }

    /// The receive request `at`, which is taken from its queue, failed. Both halves stop.
    pub(super) fn receive_failed(
        &mut self,
        bus: &mut dyn Bus,
        qpn: u32,
        at: Position,
        syndrome: Syndrome,
    ) {
        let Some(qp) = self.qps.get_mut(qpn) else {
            return;
        };
        let behind = qp.rq.forget();
        self.complete_error(bus, qpn, Side::Receive, at, syndrome, behind);
        self.stop_qp(bus, qpn);
    }

    /// A work queue could not be read: nothing can be said of its requests but that they are flushed.
    pub(super) fn queue_failed(&mut self, bus: &mut dyn Bus, qpn: u32) {
        self.stop_qp(bus, qpn);
        self.qp_event(bus, EventType::WQ_CATASTROPHIC, qpn);
    }

    /// QP `qpn` goes to ERR: what is outstanding is flushed, in T-mode by one completion for each half.
    pub(super) fn stop_qp(&mut self, bus: &mut dyn Bus, qpn: u32) {
        let Some(qp) = self.qps.get_mut(qpn) else {
            return;
        };
        if qp.state() == QpState::ERR {
            return;
        }
        qp.context.set_state(QpState::ERR);
        let shares = qp.srq().is_some();
        let sends = qp.flush_sends();
        let receives = qp.flush_receives(&self.chip, bus);
        if let Some(connected) = &mut qp.connected {
            connected.stop();
        }
        self.flushed(bus, qpn, Side::Send, &sends);
        self.flushed(bus, qpn, Side::Receive, &receives);
        if shares {
            self.qp_event(bus, EventType::LAST_WQE_REACHED, qpn);
        } else if self.mode() == Mode::M {
            self.watch_after(bus, WATCH_FIRST);
        }
    }

    /// In M-mode no doorbell tells of receive requests, and those that come to a queue in error are to be flushed: the
    /// records are looked at, ever more rarely, as long as there is such a queue.
    fn watch_after(&mut self, bus: &mut dyn Bus, pause: Duration) {
        self.watch = pause;
        bus.set_timer(timers::WATCH, bus.now().after(pause));
    }

    /// It is time to look.
    pub(super) fn watch_due(&mut self, bus: &mut dyn Bus) {
        let failed: Vec<u32> = self.qps.in_error().collect();
        let mut found = false;
        for &qpn in &failed {
            let Some(qp) = self.qps.get_mut(qpn) else {
                continue;
            };
            let flushed = qp.rq.flush(&self.chip, bus);
            found |= !flushed.is_empty();
            self.flushed(bus, qpn, Side::Receive, &flushed);
        }
        let pause = if found {
            WATCH_FIRST
        } else {
            self.watch.saturating_mul(2).min(WATCH_LAST)
        };
        if !failed.is_empty() {
            self.watch_after(bus, pause);
        }
    }

    /// A CQ failed: the QPs that complete there are in error.
    pub(super) fn cq_failed(&mut self, bus: &mut dyn Bus, cqn: u32) {
        let users: Vec<u32> = self.qps.users_of(cqn).collect();
        for qpn in users {
            let alive = self.qps.get(qpn).map(Qp::state) != Some(QpState::ERR);
            if alive {
                self.queue_failed(bus, qpn);
            }
        }
    }
}
