//! What a driver does with a card of M-mode, in the manner of Linux: memory lent, doorbell records, rings of WQEs.

use super::verbs::*;
use super::*;
use crate::hca::infinihost::{Config, Variant};
use core_ib::Guid;
use hca_abi::infinihost::av::AddressVector;
use hca_abi::infinihost::cmd::{CmdStatus, Opcode};
use hca_abi::infinihost::cq::CqContext;
use hca_abi::infinihost::cqe::{Cqe, ErrorCqe};
use hca_abi::infinihost::doorbell::{MArm, MCqDoorbell, MSendDoorbell};
use hca_abi::infinihost::eq::{EqContext, EqState};
use hca_abi::infinihost::init_hca::InitHca;
use hca_abi::infinihost::qp::{QpContext, ServiceType};
use hca_abi::infinihost::regs::uar;
use hca_abi::infinihost::vpm::VpmEntry;
use hca_abi::infinihost::wqe::{DataSegment, MUdTail, NextSegment, WqeOpcode, next};
use zerocopy::IntoBytes;

/// Key of all host memory: that of entry 0x10.
pub const ALL_M: u32 = 0x1000;
/// Host pages of the firmware area, of the auxiliary area, of ICM.
pub const FIRMWARE: u64 = 0x200_0000;
pub const AUX: u64 = 0x210_0000;
pub const ICM: u64 = 0x220_0000;
/// ICM addresses of some tables.
pub const QPC: u64 = 0;
pub const CQC: u64 = 2 << 20;
pub const SRQC: u64 = 3 << 20;
pub const EQC: u64 = 4 << 20;
pub const GROUPS: u64 = 5 << 20;
pub const MPTS: u64 = 6 << 20;
pub const MTTS: u64 = 7 << 20;
pub const UARC: u64 = 8 << 20;
/// Everything that is mapped.
pub const ICM_LEN: u64 = 9 << 20;
/// Registers that QUERY_FW tells.
pub const EQ_ARM: u64 = 0xf_0200;
pub const EQ_SET_CI: u64 = 0xf_0400;
/// Doorbell records: of a CQ, by its number; of a QP.
pub const SET_CI: u32 = 0x100;
pub const ARM: u32 = 0x180;
pub const SQ: u32 = 0;
pub const RQ: u32 = 0x80;

/// Host address of the page behind an ICM address.
pub const fn behind(icm: u64) -> u64 {
    ICM + icm
}

/// Host address of a doorbell record of the page of everything.
pub const fn record(index: u32) -> u64 {
    behind(UARC) + UAR as u64 * 4096 + index as u64 * 8
}

/// Tables one megabyte apart, records behind.
pub fn m_tables() -> InitHca {
    let mut init = InitHca::ZERO;
    init.set_ud_av_port_check(true)
        .set_qpc_base(QPC)
        .set_log_qps(10)
        .set_eqpc_base(1 << 20)
        .set_cqc_base(CQC)
        .set_log_cqs(10)
        .set_srqc_base(SRQC)
        .set_log_srqs(10)
        .set_eqc_base(EQC)
        .set_log_eqs(5)
        .set_mc_base(GROUPS)
        .set_log_mc_entry_size(8)
        .set_mc_hash_size(64)
        .set_log_mc_table_size(7)
        .set_mpt_base(MPTS)
        .set_log_mpts(10)
        .set_mtt_base(MTTS)
        .set_uarc_base(UARC)
        .set_log_uars(3);
    init
}

/// An EQ with its ring at `at`.
pub fn m_eq_context(at: u64, intr: u8) -> EqContext {
    let mut context = EqContext::ZERO;
    context
        .set_translate(true)
        .set_state(EqState::M_ARMED)
        .set_start_address(at)
        .set_log_size(LOG_EQ)
        .set_m_pd(PD)
        .set_lkey(ALL_M)
        .set_intr(intr);
    context
}

/// A CQ with its ring at `at`.
pub fn m_cq_context(cqn: u32, at: u64) -> CqContext {
    let mut context = CqContext::ZERO;
    context
        .set_start_address(at)
        .set_log_size(LOG_CQ)
        .set_uar_page(UAR)
        .set_completion_eqn(EQ_COMPLETION.0)
        .set_pd(PD)
        .set_lkey(ALL_M)
        .set_cqn(cqn)
        .set_set_ci_record(SET_CI + (cqn & 0x7f))
        .set_arm_record(ARM + (cqn & 0x7f));
    context
}

/// A context of service `service` at port 1, with its queues where [`Qp`] has them.
pub fn m_qp_context(qp: &super::verbs::Qp, cqn: u32) -> QpContext {
    let mut context = qp_context(qp.service, qp.at, 1, cqn);
    let log = WQES.trailing_zeros() as u8;
    let stride = STRIDE.trailing_zeros() as u8 - 4;
    context
        .set_wqe_lkey(ALL_M)
        .set_log_rq_size(log)
        .set_log_rq_stride(stride)
        .set_log_sq_size(log)
        .set_log_sq_stride(stride)
        .set_rq_address(qp.at as u32)
        .set_sq_address(qp.at as u32 + qp.send_wqe(0))
        .set_rq_record(RQ + (qp.qpn & 0x7f))
        .set_sq_record(SQ + (qp.qpn & 0x7f));
    context
}

/// Body of a datagram WQE: address vector, destination, one segment.
pub fn m_datagram(av: &AddressVector, dest_qpn: u32, q_key: u32, data: DataSegment) -> Vec<u8> {
    let mut tail = MUdTail::ZERO;
    tail.set_dest_qpn(dest_qpn).set_q_key(q_key);
    [av.as_bytes(), tail.as_bytes(), data.as_bytes()].concat()
}

impl Rig {
    /// A card of M-mode.
    pub fn memfree(variant: Variant) -> Self {
        Self::new(Config::of(variant, Guid(0x0002_c900_0000_0010)))
    }

    /// A command whose mailbox lists blocks.
    pub fn map(&mut self, opcode: Opcode, blocks: &[VpmEntry]) -> CmdStatus {
        self.store(IN, blocks);
        let count = blocks.len() as u32;
        self.command(opcode, 0, count, IN).status
    }

    /// As far as INIT_HCA may come.
    pub fn lend(&mut self) {
        let ok = CmdStatus::OK;
        assert_eq!(self.plain(Opcode::ENABLE_LAM, 0), CmdStatus::LAM_NOT_PRE);
        let firmware = [VpmEntry::new(0, FIRMWARE, 8)];
        assert_eq!(self.map(Opcode::MAP_FA, &firmware), ok);
        assert_eq!(self.plain(Opcode::RUN_FW, 0), ok);
        let size = self.command(Opcode::SET_ICM_SIZE, 0, 0, ICM_LEN);
        assert_eq!(size.status, ok);
        assert_eq!(size.immediate, 64);
        let aux = [VpmEntry::new(0, AUX, 6)];
        assert_eq!(self.map(Opcode::MAP_ICM_AUX, &aux), ok);
        // In chunks of 256 KB, as many to a command as fit.
        let chunks = (0..ICM_LEN).step_by(0x4_0000);
        let chunks: Vec<_> = chunks.map(|at| VpmEntry::new(at, behind(at), 6)).collect();
        assert_eq!(self.map(Opcode::MAP_ICM, &chunks), ok);
    }

    pub fn m_init(&mut self) {
        self.m_init_by(&m_tables());
    }

    pub fn m_init_by(&mut self, tables: &InitHca) {
        self.lend();
        let status = self.give(Opcode::INIT_HCA, 0, 0, tables);
        assert_eq!(status, CmdStatus::OK);
        let mut entry = all_memory();
        entry.set_mtt_address(0);
        let status = self.give(Opcode::SW2HW_MPT, 0, 0x10, &entry);
        assert_eq!(status, CmdStatus::OK);
    }

    pub fn m_create_eq(&mut self, (eqn, at): (u8, u64), intr: u8) {
        self.fresh_ring(at, 1 << LOG_EQ);
        let context = m_eq_context(at, intr);
        let status = self.give(Opcode::SW2HW_EQ, 0, eqn.into(), &context);
        assert_eq!(status, CmdStatus::OK);
    }

    /// All that Linux does before its first event.
    pub fn m_start(&mut self, by_message: bool) {
        self.m_init();
        self.m_hear(by_message);
    }

    /// Queues of events, and what goes to which.
    pub fn m_hear(&mut self, by_message: bool) {
        if by_message {
            self.enable_messages();
        }
        for (eq, vector) in [EQ_COMPLETION, EQ_ASYNC, EQ_COMMAND].into_iter().zip(0..) {
            let intr = if by_message { 0x80 + vector } else { 31 };
            self.m_create_eq(eq, intr);
        }
        self.map_eq(EQ_ASYNC.0, 0x1f_43fe);
        self.map_eq(EQ_COMMAND.0, 0x400);
        self.m_arm_eqs();
    }

    /// The register with a bit for each EQ.
    pub fn m_arm_eqs(&mut self) {
        let mask = [EQ_COMPLETION, EQ_ASYNC, EQ_COMMAND];
        let mask = mask.iter().fold(0, |mask, (eqn, _)| mask | 1 << eqn);
        self.write32(0, EQ_ARM + 4, mask);
    }

    /// Consumes all events of an EQ, from `index` on, and tells the card; the EQ is not armed.
    pub fn m_take_events(
        &mut self,
        eq: (u8, u64),
        index: &mut u64,
    ) -> Vec<hca_abi::infinihost::eqe::Eqe> {
        let mut events = Vec::new();
        while let Some(eqe) = self.eqe(eq, *index) {
            events.push(eqe);
            self.store(eq.1 + *index % (1 << LOG_EQ) * 32 + 31, &0x80_u8);
            *index += 1;
        }
        self.write32(0, EQ_SET_CI + u64::from(eq.0) * 8, *index as u32);
        events
    }

    pub fn m_create_cq(&mut self, cqn: u32) -> Cq {
        let at = 0x10_0000 + u64::from(cqn & 0x3ff) * 0x1000;
        self.fresh_ring(at, 1 << LOG_CQ);
        let status = self.give(Opcode::SW2HW_CQ, 0, cqn, &m_cq_context(cqn, at));
        assert_eq!(status, CmdStatus::OK);
        let consumer = 0;
        Cq { cqn, at, consumer }
    }

    /// The next completion, consumed and its entry given back; the record is brought up to date.
    pub fn m_poll(&mut self, cq: &mut Cq) -> Option<Cqe> {
        let at = cq.at + u64::from(cq.consumer % (1 << LOG_CQ)) * 32;
        let cqe: Cqe = self.load(at);
        if cqe.owned_by_hw() {
            return None;
        }
        self.store(at + 31, &0x80_u8);
        cq.consumer += 1;
        let place = record(SET_CI + (cq.cqn & 0x7f));
        self.store(place, &cq.consumer.to_be_bytes());
        Some(cqe)
    }

    pub fn m_poll_error(&mut self, cq: &mut Cq) -> ErrorCqe {
        let cqe = self.m_poll(cq).expect("a completion");
        assert!(cqe.is_error(), "{cqe:?}");
        *cqe.as_error()
    }

    pub fn m_arm(&mut self, cq: &Cq, sequence: u8, arm: MArm) {
        let doorbell = MCqDoorbell {
            sequence,
            arm,
            cqn: cq.cqn,
            counter: cq.consumer,
        };
        self.ring(UAR.into(), uar::CQ, doorbell.encode());
    }

    /// A QP in RTS.
    pub fn m_qp(&mut self, qpn: u32, service: ServiceType, cq: &Cq) -> super::verbs::Qp {
        let qp = super::verbs::Qp::new(qpn, service);
        let context = m_qp_context(&qp, cq.cqn);
        let status = self.modify(Opcode::RST2INIT_QPEE, qpn, 0, &context);
        assert_eq!(status, CmdStatus::OK);
        self.ready(&qp);
        qp
    }

    pub fn m_ud_qp(&mut self, qpn: u32, cq: &Cq) -> super::verbs::Qp {
        self.m_qp(qpn, ServiceType::UD, cq)
    }

    /// Writes WQEs of `bodies`, each described by the one before, and rings once.
    pub fn m_post_send(
        &mut self,
        qp: &mut super::verbs::Qp,
        opcode: WqeOpcode,
        bodies: &[Vec<u8>],
        flags: u32,
    ) {
        let counter = qp.sent as u16;
        let mut first = None;
        for body in bodies {
            let at = self.wqe_at(qp, qp.send_wqe(qp.sent));
            let nds = (1 + body.len() / 16) as u8;
            let before = self.wqe_at(qp, qp.send_wqe(qp.sent.wrapping_sub(1)));
            self.store(at + 8, &[flags.to_be_bytes(), [0xca, 0xfe, 0xf0, 0x0d]]);
            self.store(at + 16, body.as_slice());
            self.store(before, &(at as u32 | u32::from(opcode.0)).to_be_bytes());
            self.store(before + 4, &(next::DBD | u32::from(nds)).to_be_bytes());
            first.get_or_insert(nds);
            qp.sent += 1;
        }
        let place = record(SQ + (qp.qpn & 0x7f));
        self.store(place, &(qp.sent & 0xffff).to_be_bytes());
        if let Some(nds) = first {
            let doorbell = MSendDoorbell {
                count: bodies.len() as u8,
                counter,
                fence: false,
                opcode: opcode.0,
                qpn: qp.qpn,
                nds,
            };
            self.ring(UAR.into(), uar::SEND, doorbell.encode());
        }
    }

    /// Posts receive requests of one entry each by the record. As with one foreign driver, the sizes in them are too small.
    pub fn m_post_receive(&mut self, qp: &mut super::verbs::Qp, buffers: &[(u64, u32)]) {
        for &(buffer, len) in buffers {
            let at = self.wqe_at(qp, qp.receive_wqe(qp.received));
            let mut segment = NextSegment::ZERO;
            let following = self.wqe_at(qp, qp.receive_wqe(qp.received + 1)) as u32;
            segment.set_nda(following).set_nds(1);
            self.store(at, &segment);
            self.store(at + 16, &DataSegment::new(len, ALL_M, buffer));
            self.store(at + 32, &DataSegment::END_OF_LIST);
            qp.received += 1;
        }
        let place = record(RQ + (qp.qpn & 0x7f));
        self.store(place, &(qp.received & 0xffff).to_be_bytes());
    }
}
