//! The send side: doorbells, and one send request after the other. infinihost 2.8, 5.3 to 5.9.
//!
//! A request leaves no trace before its packet is taken by the wire: if the wire has no room the same request is carried
//! out again from the beginning when it has.

use super::eq::Rung;
use super::flush::Side;
use super::qp::{Engine, Qp};
use super::queue::Added;
use super::work::Work;
use super::wqe::Wqe;
use super::{InfiniHost, ud};
use crate::machine::Bus;
use crate::transport::{Whither, depart, whither};
use core_ib::wire::Lrh;
use hca_abi::infinihost::cqe::{Cqe, Syndrome};
use hca_abi::infinihost::qp::QpState;
use hca_abi::infinihost::wqe::WqeOpcode;

/// What carrying out a request came to.
pub enum Sent {
    /// Done; the opcode that its completion shows.
    Done(WqeOpcode),
    /// The wire has no room on the lane of this port.
    Blocked {
        /// Port 1 or 2.
        port: u8,
        /// Virtual lane.
        vl: u8,
    },
}

impl InfiniHost {
    /// A send doorbell through UAR page `page`.
    pub(super) fn ring_send(&mut self, bus: &mut dyn Bus, page: u32, added: &Added) -> Rung {
        let qpn = added.qpn();
        let Some(qp) = self.qps.get_mut(qpn) else {
            return Rung::NoSuchQueue;
        };
        if qp.context.uar_page() != page {
            return Rung::WrongPage;
        }
        let state = qp.state();
        if matches!(state, QpState::RST | QpState::INIT | QpState::RTR) {
            return Rung::State;
        }
        if let Added::Counted(doorbell) = added
            && doorbell.counter != qp.sq.posted()
        {
            let posted = qp.sq.posted();
            bus.report(format_args!(
                "QP {qpn:#x}: {doorbell:?} after {posted} entries"
            ));
        }
        if !qp.sq.ring(added) {
            return Rung::Full;
        }
        match state {
            QpState::RTS => self.schedule_send(qpn),
            QpState::ERR | QpState::SQE => {
                let flushed = qp.sq.flush();
                self.flushed(bus, qpn, Side::Send, &flushed);
            }
            _ => {}
        }
        Rung::Done
    }

    /// Carries out one request of QP `qpn`, and puts the queue on the list again if there are more.
    pub(super) fn send_step(&mut self, bus: &mut dyn Bus, qpn: u32) {
        let Some(qp) = self.qps.get_mut(qpn) else {
            return;
        };
        qp.sq.scheduled = false;
        if qp.connected.is_some() {
            return self.connected_step(bus, qpn);
        }
        if qp.state() != QpState::RTS {
            return;
        }
        let Some(at) = qp.sq.begin() else {
            return;
        };
        let key = qp.wqe_key();
        let wqe = match Wqe::fetch(&self.chip, bus, key, qp.context.wqe_base_high(), at) {
            Ok(wqe) => wqe,
            Err(error) => {
                bus.report(format_args!("QP {qpn:#x}: send WQE {:#x}: {error}", at.nda));
                return self.queue_failed(bus, qpn);
            }
        };
        match self.carry_out_send(bus, qpn, &wqe) {
            Ok(Sent::Blocked { port, vl }) => {
                let qp = self.qps.get_mut(qpn);
                if qp.is_some_and(|qp| !core::mem::replace(&mut qp.sq.scheduled, true)) {
                    self.ports.wait(port, vl, qpn);
                }
            }
            Ok(Sent::Done(opcode)) => {
                self.sent(bus, qpn, &wqe, opcode);
                self.schedule_send(qpn);
            }
            Err(syndrome) => self.send_failed(bus, qpn, syndrome),
        }
    }

    fn carry_out_send(&mut self, bus: &mut dyn Bus, qpn: u32, wqe: &Wqe) -> Result<Sent, Syndrome> {
        let engine = self.qps.get(qpn).map_or(Engine::Connected, |qp| qp.engine);
        let opcode = wqe.at.opcode;
        if wqe.at.nds == 0 {
            return Err(Syndrome::LOCAL_QP_OPERATION);
        }
        if wqe.next().event() {
            self.chip.ledger.count("WQE: event bit");
        }
        match engine {
            _ if opcode == WqeOpcode::NOP => Ok(Sent::Done(opcode)),
            Engine::Datagram => self.send_datagram(bus, qpn, wqe),
            Engine::Raw => self.send_raw(bus, qpn, wqe),
            // From RTR on it has engines, which send.
            Engine::Connected => Err(Syndrome::LOCAL_QP_OPERATION),
        }
    }

    /// A request is done: its completion, if it makes one, and on.
    fn sent(&mut self, bus: &mut dyn Bus, qpn: u32, wqe: &Wqe, opcode: WqeOpcode) {
        let Some(qp) = self.qps.get_mut(qpn) else {
            return;
        };
        qp.sq.advance(&wqe.next());
        if !qp.context.all_signaled() && !wqe.next().signaled() {
            return;
        }
        let mut cqe = Cqe::ZERO;
        cqe.set_qpn(qpn)
            .set_wqe_address(wqe.at.nda)
            .set_wqe_size(wqe.at.nds)
            .set_opcode(opcode.0)
            .set_is_send(true);
        self.complete(bus, qpn, Side::Send, &cqe, false);
    }

    /// Sends a packet (LRH to VCRC) by `port`: on the wire, back in, or both. One that may not leave is lost, and as
    /// good as sent.
    pub(super) fn emit(&mut self, bus: &mut dyn Bus, port: u8, packet: &[u8]) -> Result<(), u8> {
        let (Some(state), Ok((lrh, _))) = (self.ports.node.port_mut(port), Lrh::read(packet))
        else {
            return Ok(());
        };
        let counts = state.counts;
        if let Err(discard) = depart(state, packet) {
            if bus.tracing() {
                bus.trace(format_args!("port {port}: not sent: {discard}"));
            }
            return Ok(());
        }
        let ways = whither(state, lrh.dlid);
        if ways != Whither::Loopback && bus.send(port, packet).is_err() {
            state.counts = counts;
            return Err(lrh.vl.get());
        }
        if ways != Whither::Wire {
            let packet = packet.to_vec();
            self.work.push_back(Work::Loopback { port, packet });
        }
        Ok(())
    }

    /// The wire has room on a lane again.
    pub(super) fn room(&mut self, port: u8, vl: u8) {
        for qpn in self.ports.waiters(port, vl) {
            if let Some(qp) = self.qps.get_mut(qpn) {
                qp.sq.scheduled = false;
            }
            self.schedule_send(qpn);
        }
    }

    /// The number on the wire: 0 and 1 for the special QPs, which also have a port.
    pub(super) fn wire_number(&self, qp: &Qp) -> (u32, u8) {
        match self.ports.special(qp.qpn()) {
            Some((special, port)) => (special as u32, port),
            None => (qp.qpn(), qp.port()),
        }
    }

    /// Most bytes of a message on QP `qp`.
    pub(super) fn max_message(qp: &Qp) -> usize {
        ud::mtu_bytes(qp.context.mtu())
    }
}
