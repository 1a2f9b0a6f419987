//! What arrives for a connection: requests of the peer, which the responder takes, and answers, which bring data into
//! send requests. infinihost 5.12, verbs 6.2, 6.3.

use super::super::flush::Side;
use super::super::receive::dropped;
use super::super::remote::{HostOrder, Remote, RemoteError, RemoteOp};
use super::super::{InfiniHost, Params, qp::Qp};
use super::answers::refusal;
use super::requests::data_of;
use super::{Connected, End, InHand, Requester, Responder};
use crate::machine::Bus;
use crate::transport::{
    AtomicOp, DropReason, Failure, Incoming, Receipt, Refusal, RemoteRight, ResponderHost, Response,
};
use core_ib::RKey;
use hca_abi::infinihost::cqe::{Cqe, Syndrome};
use hca_abi::infinihost::eqe::EventType;
use hca_abi::infinihost::qp::QpState;
use hca_abi::infinihost::wqe::NextSegment;

impl InfiniHost {
    /// A packet for QP `qpn`, which is connected.
    pub(in super::super) fn connection_packet(
        &mut self,
        bus: &mut dyn Bus,
        port: u8,
        incoming: &Incoming<'_>,
        qpn: u32,
    ) {
        if let Err(reason) = self.came_by_path(bus, port, incoming, qpn) {
            if let DropReason::Key(violation) = &reason {
                self.ports.node.key_violation(port, violation);
                self.plan_traps(bus);
            }
            return dropped(bus, port, &reason);
        }
        let Some(qp) = self.qps.get_mut(qpn) else {
            return;
        };
        let is_new = qp.state() == QpState::RTR;
        let Some(mut connected) = qp.connected.take() else {
            return;
        };
        if is_new && !core::mem::replace(&mut connected.established, true) {
            self.qp_event(bus, EventType::COMM_ESTABLISHED, qpn);
        }
        if incoming.transport.bth.opcode.is_response() {
            self.response(bus, qpn, &mut connected, incoming);
        } else {
            self.peer_request(bus, qpn, &mut connected, incoming);
        }
        self.put_back(qpn, connected);
        self.settle(bus, qpn);
        self.schedule_send(qpn);
    }

    fn peer_request(
        &mut self,
        bus: &mut dyn Bus,
        qpn: u32,
        connected: &mut Connected,
        incoming: &Incoming<'_>,
    ) {
        let Connected {
            responder, in_hand, ..
        } = connected;
        let mut host = Host {
            hca: self,
            bus,
            qpn,
            in_hand,
        };
        let taken = match responder {
            Responder::Reliable(engine) => engine.receive(&incoming.transport, &mut host),
            Responder::Unreliable(engine) => engine.receive(&incoming.transport, &mut host),
        };
        if let Err(refusal) = taken {
            connected.ended = Some(End::Refused(refusal));
        }
    }

    fn response(
        &mut self,
        bus: &mut dyn Bus,
        qpn: u32,
        connected: &mut Connected,
        incoming: &Incoming<'_>,
    ) {
        let Requester::Reliable(engine) = &mut connected.requester else {
            return;
        };
        let now = bus.now();
        let order = self.params().map(|params| HostOrder::from(&params.raw));
        let original;
        let (slot, offset, data) = match engine.receive(&incoming.transport, now) {
            Response::Data { slot, offset } => (slot, offset, incoming.transport.payload),
            Response::Original {
                slot,
                original: value,
            } => {
                original = order.unwrap_or(HostOrder::Little).bytes(value);
                (slot, 0, original.as_slice())
            }
            Response::Noted | Response::Ignored => {
                // Even an old acknowledge may bring credit.
                connected.waits = false;
                return;
            }
        };
        let (Some(one), Some(qp)) = (engine.tag(slot), self.qps.get(qpn)) else {
            return;
        };
        let (list, skip, pd) = (data_of(one.wqe.at.opcode), offset as usize, qp.context.pd());
        match one.wqe.scatter(&mut self.chip, bus, pd, (list, skip), data) {
            Ok(()) => engine.placed(now),
            Err(Syndrome::LOCAL_PROTECTION) => engine.fail(slot, Failure::LocalProtection),
            Err(_) => engine.fail(slot, Failure::LocalOperation),
        }
    }

    /// The peer was refused, or a receive request is bad: what is in hand says so, or else an event does. Both halves stop.
    /// verbs 6.3.
    pub(super) fn refused(&mut self, bus: &mut dyn Bus, qpn: u32, refusal: Refusal) {
        let (syndrome, event) = match refusal {
            Refusal::InvalidRequest => (
                Syndrome::REMOTE_INVALID_REQUEST,
                EventType::WQ_INVALID_REQUEST,
            ),
            Refusal::RemoteAccess => (Syndrome::LOCAL_ACCESS, EventType::WQ_ACCESS_VIOLATION),
            Refusal::ReceiveLength => (Syndrome::LOCAL_LENGTH, EventType::WQ_CATASTROPHIC),
            Refusal::ReceiveProtection => (Syndrome::LOCAL_PROTECTION, EventType::WQ_CATASTROPHIC),
            Refusal::ReceiveQueue => return self.queue_failed(bus, qpn),
            _ => (Syndrome::LOCAL_QP_OPERATION, EventType::WQ_CATASTROPHIC),
        };
        let in_hand = self.connected(qpn).and_then(Connected::flush_receive);
        match in_hand {
            Some(at) => self.receive_failed(bus, qpn, at, syndrome),
            None => {
                self.stop_qp(bus, qpn);
                self.qp_event(bus, event, qpn);
            }
        }
    }
}

/// Where the list of data of a receive request begins.
const RECEIVE_DATA: usize = size_of::<NextSegment>();

/// The queue pair's memory and receive queue, for a responder.
struct Host<'a> {
    hca: &'a mut InfiniHost,
    bus: &'a mut dyn Bus,
    qpn: u32,
    in_hand: &'a mut Option<InHand>,
}

impl Host<'_> {
    fn remote(&self, r_key: RKey) -> Result<Remote, Refusal> {
        let qp = self.hca.qps.get(self.qpn).ok_or(Refusal::Operational)?;
        Ok(Remote::of(qp, r_key.0))
    }

    fn refuse(&mut self, error: &RemoteError) -> Refusal {
        if self.bus.tracing() {
            let qpn = self.qpn;
            self.bus
                .trace(format_args!("QP {qpn:#x}: peer refused: {error}"));
        }
        refusal(error)
    }
}

impl ResponderHost for Host<'_> {
    fn begin_receive(&mut self) -> Result<bool, Refusal> {
        if self.in_hand.is_none() {
            let taken = self.hca.take_request(self.bus, self.qpn);
            let taken = taken.map_err(|_| Refusal::ReceiveQueue)?;
            *self.in_hand = taken.map(|taken| InHand {
                wqe: taken.wqe,
                pd: taken.pd,
            });
        }
        Ok(self.in_hand.is_some())
    }

    fn place(&mut self, offset: u32, payload: &[u8]) -> Result<(), Refusal> {
        let InHand { wqe, pd } = self.in_hand.as_ref().ok_or(Refusal::Operational)?;
        let place = (RECEIVE_DATA, offset as usize);
        let placed = wqe.scatter(&mut self.hca.chip, self.bus, *pd, place, payload);
        placed.map_err(|syndrome| match syndrome {
            Syndrome::LOCAL_LENGTH => Refusal::ReceiveLength,
            Syndrome::LOCAL_PROTECTION => Refusal::ReceiveProtection,
            _ => Refusal::ReceiveOperation,
        })
    }

    fn finish_receive(&mut self, receipt: &Receipt) {
        let Some(InHand { wqe, .. }) = self.in_hand.take() else {
            return;
        };
        let signaled = wqe.next().signaled();
        let quiet = |qp: &Qp| !qp.context.receive_signaled() && !signaled;
        if self.hca.qps.get(self.qpn).is_none_or(quiet) {
            return;
        }
        let mut cqe = Cqe::ZERO;
        cqe.set_qpn(self.qpn)
            .set_immediate(receipt.imm.map_or(0, |imm| u32::from_be_bytes(imm.0)))
            .set_byte_count(receipt.len)
            .set_wqe_address(wqe.at.nda)
            .set_wqe_size(wqe.at.nds)
            .set_opcode(receipt.opcode.0);
        let (bus, side) = (&mut *self.bus, Side::Receive);
        self.hca
            .complete(bus, self.qpn, side, &cqe, receipt.solicited);
    }

    fn check(&mut self, right: RemoteRight, r_key: RKey, va: u64, len: u32) -> Result<(), Refusal> {
        let op = match right {
            RemoteRight::Read => RemoteOp::Read,
            RemoteRight::Write => RemoteOp::Write,
            RemoteRight::Atomic => RemoteOp::Atomic,
        };
        let who = self.remote(r_key)?;
        let checked = self
            .hca
            .chip
            .remote_check(self.bus, &who, op, va, u64::from(len));
        checked.map_err(|error| self.refuse(&error))
    }

    fn write(&mut self, r_key: RKey, va: u64, payload: &[u8]) -> Result<(), Refusal> {
        let who = self.remote(r_key)?;
        let written = self.hca.chip.remote_write(self.bus, &who, va, payload);
        written.map_err(|error| self.refuse(&error))
    }

    fn atomic(&mut self, r_key: RKey, va: u64, op: AtomicOp) -> Result<u64, Refusal> {
        let who = self.remote(r_key)?;
        let order = self
            .hca
            .params()
            .map(|params: &Params| HostOrder::from(&params.raw));
        let order = order.unwrap_or(HostOrder::Little);
        let done = self.hca.chip.remote_atomic(self.bus, &who, va, op, order);
        done.map_err(|error| self.refuse(&error))
    }
}
