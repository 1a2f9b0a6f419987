//! What a driver does with queues, in the manner of Linux: rings in host memory, chains of WQEs, doorbells.

use super::*;
use core_ib::Lid;
use core_ib::wire::mad::{
    Attribute, Mad, MadStatus, Method, PortInfo, PortPhysState, PortState, Smp,
};
use hca_abi::infinihost::av::AddressVector;
use hca_abi::infinihost::cmd::{CmdStatus, Opcode};
use hca_abi::infinihost::cq::CqContext;
use hca_abi::infinihost::cqe::{Cqe, ErrorCqe};
use hca_abi::infinihost::doorbell::{CqCommand, CqDoorbell, ReceiveDoorbell, SendDoorbell};
use hca_abi::infinihost::port::InitIb;
use hca_abi::infinihost::qp::{QpContext, QpMailbox, QpState, ServiceType};
use hca_abi::infinihost::regs::uar;
use hca_abi::infinihost::wqe::{DataSegment, NextSegment, UdSegment, WqeOpcode, next};
use zerocopy::IntoBytes;

/// Q_Key of every QP that does not say otherwise.
pub const Q_KEY: u32 = 0x1234;
/// Log2 of the size of a CQ.
pub const LOG_CQ: u8 = 4;
/// Bytes from one WQE to the next.
pub const STRIDE: u32 = 256;
/// WQEs of one queue.
pub const WQES: u32 = 8;

/// A CQ as its owner sees it.
#[derive(Clone, Copy, Debug)]
pub struct Cq {
    pub cqn: u32,
    pub at: u64,
    pub consumer: u32,
}

/// A QP as its owner sees it: receive queue at `at`, send queue behind it.
#[derive(Clone, Copy, Debug)]
pub struct Qp {
    pub qpn: u32,
    pub at: u64,
    pub sent: u32,
    pub received: u32,
    pub service: ServiceType,
}

impl Qp {
    /// With its queues in host memory behind 0x100_0000.
    pub fn new(qpn: u32, service: ServiceType) -> Self {
        Self {
            qpn,
            at: u64::from(qpn & 0x3ff) * 0x1_0000 + 0x100_0000,
            sent: 0,
            received: 0,
            service,
        }
    }

    pub fn send_wqe(&self, index: u32) -> u32 {
        (WQES + index % WQES) * STRIDE
    }

    pub fn receive_wqe(&self, index: u32) -> u32 {
        index % WQES * STRIDE
    }
}

/// A context of service `service` at port `port`.
pub fn qp_context(service: ServiceType, at: u64, port: u8, cqn: u32) -> QpContext {
    let mut context = QpContext::ZERO;
    let mut path = context.primary_path();
    path.set_port(port);
    context
        .set_service(service)
        .set_mtu(4)
        .set_msg_max(11)
        .set_uar_page(UAR)
        .set_pd(PD)
        .set_wqe_base_high((at >> 32) as u32)
        .set_wqe_lkey(ALL)
        .set_all_signaled(true)
        .set_receive_signaled(true)
        .set_send_cqn(cqn)
        .set_receive_cqn(cqn)
        .set_q_key(Q_KEY)
        .set_primary_path(path);
    context
}

impl Rig {
    pub fn create_cq(&mut self, cqn: u32) -> Cq {
        let at = 0x10_0000 + u64::from(cqn & 0x3ff) * 0x1000;
        self.fresh_ring(at, 1 << LOG_CQ);
        let mut context = CqContext::ZERO;
        context
            .set_translate(true)
            .set_start_address(at)
            .set_log_size(LOG_CQ)
            .set_uar_page(UAR)
            .set_error_eqn(EQ_ASYNC.0)
            .set_completion_eqn(EQ_COMPLETION.0)
            .set_pd(PD)
            .set_lkey(ALL)
            .set_cqn(cqn);
        assert_eq!(self.give(Opcode::SW2HW_CQ, 0, cqn, &context), CmdStatus::OK);
        Cq {
            cqn,
            at,
            consumer: 0,
        }
    }

    /// The next completion, consumed and its entry given back.
    pub fn poll(&mut self, cq: &mut Cq) -> Option<Cqe> {
        let at = cq.at + u64::from(cq.consumer % (1 << LOG_CQ)) * 32;
        let cqe: Cqe = self.load(at);
        if cqe.owned_by_hw() {
            return None;
        }
        self.store(at + 31, &0x80_u8);
        cq.consumer += 1;
        self.ring_cq(cq.cqn, CqCommand::INCREMENT, 0);
        Some(cqe)
    }

    /// As [`poll`](Self::poll), for one that is an error.
    pub fn poll_error(&mut self, cq: &mut Cq) -> ErrorCqe {
        let cqe = self.poll(cq).expect("a completion");
        assert!(cqe.is_error(), "{cqe:?}");
        *cqe.as_error()
    }

    pub fn ring_cq(&mut self, cqn: u32, command: CqCommand, parameter: u32) {
        let doorbell = CqDoorbell {
            command,
            cqn,
            parameter,
        };
        self.ring(UAR.into(), uar::CQ, doorbell.encode());
    }

    pub fn modify(
        &mut self,
        opcode: Opcode,
        qpn: u32,
        mask: u32,
        context: &QpContext,
    ) -> CmdStatus {
        self.give(opcode, 0, qpn, &QpMailbox::new(mask, *context))
    }

    /// A transition that takes nothing from its mailbox.
    pub fn modify_plain(&mut self, opcode: Opcode, modifier: u32) -> CmdStatus {
        self.modify(opcode, modifier, 0, &QpContext::ZERO)
    }

    pub fn query_qp(&mut self, qpn: u32) -> QpContext {
        let mailbox: QpMailbox = self.ask(Opcode::QUERY_QPEE, qpn);
        mailbox.context
    }

    pub fn qp_state(&mut self, qpn: u32) -> QpState {
        self.query_qp(qpn).state()
    }

    /// A QP in INIT.
    pub fn create_qp(&mut self, qpn: u32, service: ServiceType, port: u8, cq: &Cq) -> Qp {
        let context = qp_context(service, 0, port, cq.cqn);
        let status = self.modify(Opcode::RST2INIT_QPEE, qpn, 0, &context);
        assert_eq!(status, CmdStatus::OK);
        Qp::new(qpn, service)
    }

    /// On to RTS.
    pub fn ready(&mut self, qp: &Qp) {
        let context = qp_context(qp.service, 0, 1, 0);
        for opcode in [Opcode::INIT2RTR_QPEE, Opcode::RTR2RTS_QPEE] {
            assert_eq!(self.modify(opcode, qp.qpn, 0, &context), CmdStatus::OK);
        }
    }

    /// A UD QP in RTS.
    pub fn ud_qp(&mut self, qpn: u32, port: u8, cq: &Cq) -> Qp {
        let qp = self.create_qp(qpn, ServiceType::UD, port, cq);
        self.ready(&qp);
        qp
    }

    /// Links `count` WQEs of `body` (all behind the next segment) into the send queue and rings once, as one post call.
    pub fn post_send(&mut self, qp: &mut Qp, opcode: WqeOpcode, bodies: &[Vec<u8>], flags: u32) {
        let mut doorbell = None;
        for (number, body) in bodies.iter().enumerate() {
            let at = self.wqe_at(qp, qp.send_wqe(qp.sent));
            let mut segment = NextSegment::ZERO;
            segment.set_flags(flags).set_immediate(0xcafe_f00d);
            self.store(at, &segment);
            self.store(at + 16, body.as_slice());
            let nds = (1 + body.len() / 16) as u8;
            let nda = at as u32;
            if qp.sent > 0 {
                let before = self.wqe_at(qp, qp.send_wqe(qp.sent - 1));
                let dbd = if number == 0 { next::DBD } else { 0 };
                self.store(before, &(nda | u32::from(opcode.0)).to_be_bytes());
                self.store(before + 4, &(dbd | u32::from(nds)).to_be_bytes());
            }
            doorbell.get_or_insert(SendDoorbell {
                nda,
                fence: false,
                opcode: opcode.0,
                qpn: qp.qpn,
                nds,
            });
            qp.sent += 1;
        }
        if let Some(doorbell) = doorbell {
            self.ring(UAR.into(), uar::SEND, doorbell.encode());
        }
    }

    pub fn wqe_at(&self, qp: &Qp, offset: u32) -> u64 {
        qp.at + u64::from(offset)
    }

    /// Posts receive requests of one entry each, and rings once.
    pub fn post_receive(&mut self, qp: &mut Qp, buffers: &[(u64, u32)]) {
        let mut doorbell = None;
        for &(buffer, len) in buffers {
            let at = self.wqe_at(qp, qp.receive_wqe(qp.received));
            let mut segment = NextSegment::ZERO;
            let following = self.wqe_at(qp, qp.receive_wqe(qp.received + 1)) as u32;
            segment.set_nda(following).set_dbd(true);
            self.store(at, &segment);
            self.store(at + 16, &DataSegment::new(len, ALL, buffer));
            if qp.received > 0 {
                let before = self.wqe_at(qp, qp.receive_wqe(qp.received - 1));
                self.store(before + 4, &(next::DBD | 2).to_be_bytes());
            }
            doorbell.get_or_insert(ReceiveDoorbell {
                nda: at as u32,
                nds: 2,
                number: qp.qpn,
                count: buffers.len() as u16,
            });
            qp.received += 1;
        }
        if let Some(doorbell) = doorbell {
            self.ring(UAR.into(), uar::RECEIVE, doorbell.encode());
        }
    }

    /// Ports up: INIT_IB, a link, and what a subnet manager says: this LID, ACTIVE.
    pub fn activate(&mut self, port: u8, lid: u16) {
        self.init_ib(port);
        self.link(port, true);
        self.set_port(port, |info| info.lid = Lid(lid));
        self.set_port(port, |info| info.state = PortState::ARMED);
        self.set_port(port, |info| info.state = PortState::ACTIVE);
    }

    pub fn init_ib(&mut self, port: u8) {
        let mut init = InitIb::ZERO;
        init.set_mtu(4)
            .set_port_width(3)
            .set_vls(4)
            .set_max_gids(32)
            .set_max_pkeys(64);
        assert_eq!(
            self.give(Opcode::INIT_IB, 0, port.into(), &init),
            CmdStatus::OK
        );
    }

    /// MAD_IFC, keys not checked.
    pub fn mad_ifc(&mut self, port: u8, smp: &Smp) -> Result<Smp, CmdStatus> {
        self.store(IN, &Mad(smp.to_bytes()).0);
        let ended = self.command(Opcode::MAD_IFC, 3, port.into(), IN);
        let reply: [u8; 256] = self.load(OUT);
        match ended.status {
            CmdStatus::OK => Ok(Smp::from_bytes(&reply)),
            status => Err(status),
        }
    }

    /// Get of an attribute, which must succeed.
    pub fn get<A: Attribute>(&mut self, port: u8, modifier: u32) -> A {
        let reply = self
            .mad_ifc(port, &Smp::lid_routed(Method::GET, A::ID, modifier))
            .unwrap();
        assert_eq!(reply.header.status, MadStatus::OK);
        reply.get().unwrap()
    }

    /// Set, which must succeed.
    pub fn set<A: Attribute>(&mut self, port: u8, modifier: u32, attribute: &A) {
        let mut smp = Smp::lid_routed(Method::SET, A::ID, modifier);
        smp.put(attribute).unwrap();
        let reply = self.mad_ifc(port, &smp).unwrap();
        assert_eq!(reply.header.status, MadStatus::OK);
    }

    pub fn set_port(&mut self, port: u8, change: impl FnOnce(&mut PortInfo)) {
        let mut info: PortInfo = self.get(port, port.into());
        (info.state, info.phys_state) = (PortState::NO_CHANGE, PortPhysState::NO_CHANGE);
        change(&mut info);
        self.set(port, port.into(), &info);
    }
}

/// An address vector without GRH.
pub fn av(port: u8, dlid: u16) -> AddressVector {
    let mut av = AddressVector::ZERO;
    av.set_port(port)
        .set_pd(PD)
        .set_dlid(dlid)
        .set_message_size(3)
        .set_dgid_last(AddressVector::NO_GRH);
    av
}

/// Body of a datagram WQE: one inline segment, or one pointer.
pub fn datagram(av_at: u64, dest_qpn: u32, q_key: u32, data: DataSegment) -> Vec<u8> {
    let mut ud = UdSegment::ZERO;
    ud.set_lkey(ALL)
        .set_av_address(av_at)
        .set_dest_qpn(dest_qpn)
        .set_q_key(q_key);
    [ud.as_bytes(), data.as_bytes()].concat()
}
