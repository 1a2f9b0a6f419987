//! The receive side: doorbells, packets that arrive, and one receive request for each. infinihost 2.8, 5.9, 5.10.

use super::InfiniHost;
use super::checksum;
use super::eq::Rung;
use super::flush::Side;
use super::port::Special;
use super::qp::{Engine, Qp};
use super::wqe::Wqe;
use crate::machine::Bus;
use crate::transport::{
    Destination, DropReason, Incoming, ReceiverKind, UdReceipt, UdReceiver, accept,
    no_receive_request, ud_receive,
};
use core_ib::wire::packet::Opcode;
use core_ib::{QKey, Qpn};
use hca_abi::infinihost::cqe::Cqe;
use hca_abi::infinihost::doorbell::ReceiveDoorbell;
use hca_abi::infinihost::eqe::{Eqe, EventType};
use hca_abi::infinihost::qp::QpState;
use hca_abi::infinihost::wqe::NextSegment;

/// Where the list of data of a receive request begins.
const RECEIVE_DATA: usize = size_of::<NextSegment>();

/// A receive request that was taken from its queue, and the domain of its buffers.
pub struct Taken {
    /// The request.
    pub wqe: Wqe,
    /// Domain of its buffers: the QP's, or the SRQ's.
    pub pd: u32,
}

/// The queue that requests are taken from cannot be read, and its QP is to fail.
pub struct QueueUnreadable;

impl InfiniHost {
    /// A receive doorbell through UAR page `page`; without a size it is an SRQ's.
    pub(super) fn ring_receive(
        &mut self,
        bus: &mut dyn Bus,
        page: u32,
        doorbell: &ReceiveDoorbell,
    ) -> Rung {
        if doorbell.nds == 0 {
            return self.ring_srq(page, doorbell);
        }
        let qpn = doorbell.number;
        let Some(qp) = self.qps.get_mut(qpn) else {
            return Rung::NoSuchQueue;
        };
        if qp.context.uar_page() != page {
            return Rung::WrongPage;
        }
        if qp.srq().is_some() {
            bus.report(format_args!(
                "receive requests for QP {qpn:#x}, which has an SRQ"
            ));
            return Rung::State;
        }
        if !qp.rq.ring(doorbell, doorbell.nds) {
            return Rung::Full;
        }
        if qp.state() == QpState::ERR {
            let flushed = qp.rq.flush(&self.chip, bus);
            self.flushed(bus, qpn, Side::Receive, &flushed);
        }
        Rung::Done
    }

    fn ring_srq(&mut self, page: u32, doorbell: &ReceiveDoorbell) -> Rung {
        let Some(srq) = self.srqs.get(doorbell.number) else {
            return Rung::NoSuchQueue;
        };
        if srq.uar_page() != page {
            return Rung::WrongPage;
        }
        let units = srq.units();
        if srq.queue.ring(doorbell, units) {
            Rung::Done
        } else {
            Rung::Full
        }
    }

    /// A packet (LRH to VCRC) comes in at `port`, from the wire or back from itself.
    pub(super) fn arrived(&mut self, bus: &mut dyn Bus, port: u8, packet: &[u8]) {
        let mut effects = Vec::new();
        let accepted = accept(&mut self.ports.node, port, packet, &mut effects);
        if !effects.is_empty() {
            self.follow(bus, &effects);
        }
        let incoming = match accepted {
            Ok(incoming) => incoming,
            Err(reason) => return dropped(bus, port, &reason),
        };
        let dest_qp = incoming.transport.bth.dest_qp;
        match incoming.to {
            Destination::Multicast { mgid, .. } => {
                for qpn in self.members(bus, mgid) {
                    self.datagram_for(bus, port, &incoming, qpn);
                }
            }
            Destination::Permissive => self.for_special(bus, port, &incoming, Special::Smi, packet),
            Destination::Unicast { .. } => match dest_qp {
                Qpn::SMI => self.for_special(bus, port, &incoming, Special::Smi, packet),
                Qpn::GSI => self.for_special(bus, port, &incoming, Special::Gsi, packet),
                qpn => self.datagram_for(bus, port, &incoming, qpn.get()),
            },
        }
    }

    /// A packet for QP0 or QP1: of software, if software has taken them over, else of the firmware.
    fn for_special(
        &mut self,
        bus: &mut dyn Bus,
        port: u8,
        incoming: &Incoming<'_>,
        special: Special,
        packet: &[u8],
    ) {
        let kind = match special {
            Special::Smi => ReceiverKind::Smi,
            Special::Gsi => ReceiverKind::Gsi,
        };
        let Some(qpn) = self.ports.special_qpn(special, port) else {
            return self.firmware_agent(bus, port, packet);
        };
        let qp = self.qps.get(qpn);
        let receiver = UdReceiver {
            kind,
            qpn: Qpn::new(special as u32),
            q_key: qp.map_or(QKey::GSI, |qp| QKey(qp.context.q_key())),
            receives: qp.is_some_and(Qp::receives),
        };
        if let Some(receipt) = self.receipt(bus, port, incoming, &receiver) {
            self.fill(bus, port, qpn, kind, &receipt);
        }
    }

    /// A packet for QP `qpn`.
    fn datagram_for(&mut self, bus: &mut dyn Bus, port: u8, incoming: &Incoming<'_>, qpn: u32) {
        let opcode = incoming.transport.bth.opcode;
        // The special QPs are reached by their numbers on the wire alone.
        let special = self.ports.special(qpn).is_some();
        let qp = self.qps.get(qpn).filter(|_| !special);
        if qp.is_some_and(|qp| qp.engine == Engine::Connected) {
            return self.connection_packet(bus, port, incoming, qpn);
        }
        let Some(qp) = qp.filter(|qp| qp.port() == port) else {
            return dropped(bus, port, &DropReason::QpState(Qpn::new(qpn)));
        };
        let receiver = match qp.engine {
            Engine::Datagram => UdReceiver {
                kind: ReceiverKind::Ud {
                    p_key_index: usize::from(qp.context.primary_path().pkey_index()),
                },
                qpn: Qpn::new(qpn),
                q_key: QKey(qp.context.q_key()),
                receives: qp.receives(),
            },
            Engine::Raw | Engine::Connected => {
                return dropped(bus, port, &DropReason::Opcode(opcode.0));
            }
        };
        let kind = receiver.kind;
        if let Some(receipt) = self.receipt(bus, port, incoming, &receiver) {
            self.fill(bus, port, qpn, kind, &receipt);
        }
    }

    fn receipt<'p>(
        &mut self,
        bus: &mut dyn Bus,
        port: u8,
        incoming: &Incoming<'p>,
        receiver: &UdReceiver,
    ) -> Option<UdReceipt<'p>> {
        let state = self.ports.node.port(port)?;
        match ud_receive(state, incoming, receiver) {
            Ok(receipt) => Some(receipt),
            Err(reason) => {
                if let DropReason::Key(violation) = &reason {
                    self.ports.node.key_violation(port, violation);
                    self.plan_traps(bus);
                }
                dropped(bus, port, &reason);
                None
            }
        }
    }

    /// Puts a datagram into the next receive request of QP `qpn`, if there is one.
    pub(super) fn fill(
        &mut self,
        bus: &mut dyn Bus,
        port: u8,
        qpn: u32,
        kind: ReceiverKind,
        receipt: &UdReceipt<'_>,
    ) {
        let taken = match self.take_request(bus, qpn) {
            Ok(taken) => taken,
            Err(QueueUnreadable) => return self.queue_failed(bus, qpn),
        };
        let Some(taken) = taken else {
            if let Some(state) = self.ports.node.port_mut(port) {
                no_receive_request(&mut state.counts, kind);
            }
            return;
        };
        let Taken { wqe, pd } = taken;
        // Without a GRH its place is left as it is.
        let mut whole = Vec::with_capacity(receipt.byte_count());
        whole.extend_from_slice(receipt.grh.unwrap_or_default());
        whole.extend_from_slice(receipt.payload);
        let skip = UdReceipt::GRH_ROOM.saturating_sub(receipt.grh.map_or(0, <[u8]>::len));
        if let Err(syndrome) = wqe.scatter(&mut self.chip, bus, pd, (RECEIVE_DATA, skip), &whole) {
            return self.receive_failed(bus, qpn, wqe.at, syndrome);
        }
        let signaled = wqe.next().signaled();
        let quiet = |qp: &Qp| !qp.context.receive_signaled() && !signaled;
        if self.qps.get(qpn).is_none_or(quiet) {
            return;
        }
        let mut cqe = completion(qpn, kind, receipt, &wqe);
        let checksums = self.params().and_then(|params| params.checksums);
        if let (ReceiverKind::Ud { .. }, Some(how)) = (kind, checksums) {
            let verdict = checksum::verify(receipt.payload, how);
            cqe.set_ip_ok(verdict.ip_ok).set_checksum(verdict.sum);
        }
        self.complete(bus, qpn, Side::Receive, &cqe, receipt.solicited);
    }

    /// Takes the next receive request of QP `qpn`, own or shared.
    pub(super) fn take_request(
        &mut self,
        bus: &mut dyn Bus,
        qpn: u32,
    ) -> Result<Option<Taken>, QueueUnreadable> {
        let Some(qp) = self.qps.get_mut(qpn) else {
            return Ok(None);
        };
        if let Some(srqn) = qp.srq() {
            return self.take_shared(bus, srqn);
        }
        let Some(at) = qp.rq.first(&self.chip, bus) else {
            return Ok(None);
        };
        let fetched = Wqe::fetch(
            &self.chip,
            bus,
            qp.wqe_key(),
            qp.context.wqe_base_high(),
            at,
        );
        match fetched {
            Ok(wqe) => {
                let pd = qp.context.pd();
                qp.rq.advance(&wqe, None);
                Ok(Some(Taken { wqe, pd }))
            }
            Err(error) => {
                bus.report(format_args!(
                    "QP {qpn:#x}: receive WQE {:#x}: {error}",
                    at.nda
                ));
                Err(QueueUnreadable)
            }
        }
    }

    fn take_shared(
        &mut self,
        bus: &mut dyn Bus,
        srqn: u32,
    ) -> Result<Option<Taken>, QueueUnreadable> {
        let Some(srq) = self.srqs.get(srqn) else {
            return Ok(None);
        };
        if !srq.is_sound() {
            return Err(QueueUnreadable);
        }
        let Some(at) = srq.queue.first(&self.chip, bus) else {
            return Ok(None);
        };
        let key = srq.key();
        match Wqe::fetch(&self.chip, bus, key, srq.base_high(), at) {
            Ok(wqe) => {
                let units = srq.units();
                srq.queue.advance(&wqe, Some(units));
                let pd = key.pd;
                self.check_limit(bus, srqn);
                Ok(Some(Taken { wqe, pd }))
            }
            Err(error) => {
                bus.report(format_args!("SRQ {srqn:#x}: WQE {:#x}: {error}", at.nda));
                srq.fail();
                self.srq_event(bus, EventType::SRQ_CATASTROPHIC, srqn);
                Err(QueueUnreadable)
            }
        }
    }

    /// Tells if SRQ `srqn` has fallen below its limit.
    pub(super) fn check_limit(&mut self, bus: &mut dyn Bus, srqn: u32) {
        let srq = self.srqs.get(srqn);
        if srq.is_some_and(|srq| srq.limit_reached(&self.chip, bus)) {
            self.srq_event(bus, EventType::SRQ_LIMIT, srqn);
        }
    }

    fn srq_event(&mut self, bus: &mut dyn Bus, event: EventType, srqn: u32) {
        let mut eqe = Eqe::ZERO;
        eqe.set_event_type(event).set_number(srqn);
        self.events.post(&mut self.chip, bus, &eqe);
    }
}

/// A packet goes nowhere; only the machine's trace is told.
pub fn dropped(bus: &mut dyn Bus, port: u8, reason: &DropReason) {
    if bus.tracing() {
        bus.trace(format_args!("port {port}: packet dropped: {reason}"));
    }
}

/// infinihost 4.5.1: QP1 shows the P_Key index where immediate data would be, QP0 nothing.
fn completion(qpn: u32, kind: ReceiverKind, receipt: &UdReceipt<'_>, wqe: &Wqe) -> Cqe {
    let plain = Opcode::UD_SEND_ONLY;
    let with_immediate = Opcode::UD_SEND_ONLY_IMMEDIATE;
    let (opcode, immediate) = match (kind, receipt.imm) {
        (ReceiverKind::Smi, _) => (plain, 0),
        (ReceiverKind::Gsi, _) => (with_immediate, (receipt.p_key_index as u32) << 16),
        (ReceiverKind::Ud { .. }, Some(imm)) => (with_immediate, u32::from_be_bytes(imm.0)),
        (ReceiverKind::Ud { .. }, None) => (plain, 0),
    };
    let mut cqe = Cqe::ZERO;
    cqe.set_qpn(qpn)
        .set_remote_qpn(receipt.src_qp.get())
        .set_sl(receipt.sl.get())
        .set_grh(receipt.grh.is_some())
        .set_path_bits(receipt.path_bits)
        .set_slid(receipt.slid.0)
        .set_immediate(immediate)
        .set_byte_count(receipt.byte_count() as u32)
        .set_wqe_address(wqe.at.nda)
        .set_wqe_size(wqe.at.nds)
        .set_opcode(opcode.0);
    cqe
}
