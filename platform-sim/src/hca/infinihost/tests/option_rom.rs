//! M-mode as a boot ROM drives it: physical addresses everywhere, nothing armed, sizes that are too small. infinihost 2.10, 4.7,
//! 5.1, 5.9, 9.5, 10.5.

use super::memfree::*;
use super::verbs::{Q_KEY, WQES, av};
use super::*;
use crate::hca::infinihost::Variant;
use core_ib::wire::mad::{Attribute, Method, PortInfo, Smp};
use hca_abi::infinihost::cmd::{CmdStatus, Opcode};
use hca_abi::infinihost::cq::{CqContext, CqState};
use hca_abi::infinihost::cqe::Cqe;
use hca_abi::infinihost::doorbell::MSendDoorbell;
use hca_abi::infinihost::eq::{EqContext, EqState};
use hca_abi::infinihost::eqe::EventType;
use hca_abi::infinihost::init_hca::InitHca;
use hca_abi::infinihost::mpt::Mpt;
use hca_abi::infinihost::qp::{QpContext, QpMailbox, QpState, ServiceType, opt};
use hca_abi::infinihost::regs::uar;
use hca_abi::infinihost::vpm::VpmEntry;
use hca_abi::infinihost::wqe::{DataSegment, NextSegment, WqeOpcode};

/// The page whose doorbells it rings: the first behind the reserved one.
const PAGE: u64 = 1;
const DOMAIN: u32 = 0x12_3456;
/// Generation 0x77 of entry 16.
const KEY: u32 = 0x1077;
const EQ: (u8, u64) = (0, 0x1_0000);
const CQN: u32 = 0x10;
const CQ_AT: u64 = 0x10_0000;
/// Random upper bits of the number.
const QPN: u32 = 0x7a_b014;
const SEND_AT: u64 = 0x30_0000;
const RECEIVE_AT: u64 = 0x31_0000;
const SEND_STRIDE: u64 = 128;
const RECEIVE_STRIDE: u64 = 64;
const LID: u16 = 0x21;
/// Records in its one page of 512.
const SET_CI_INDEX: u32 = 511;
const SQ_INDEX: u32 = 8;
const RQ_INDEX: u32 = 503;

/// Host address of a record of [`PAGE`].
const fn place(index: u32) -> u64 {
    behind(UARC) + 4096 + index as u64 * 8
}

/// Small tables in one block, and the page of records behind what SET_ICM_SIZE was told.
fn rom_tables() -> InitHca {
    let mut init = m_tables();
    init.set_ud_av_port_check(false)
        .set_log_qps(5)
        .set_log_cqs(5)
        .set_log_srqs(4)
        .set_log_eqs(6)
        .set_log_mpts(5)
        .set_log_mc_entry_size(6)
        .set_mc_hash_size(8)
        .set_log_mc_table_size(3)
        .set_log_uars(1);
    init
}

fn start(rig: &mut Rig) {
    let ok = CmdStatus::OK;
    assert_eq!(
        rig.command(Opcode::ENABLE_LAM, 1, 0, 0).status,
        CmdStatus::LAM_NOT_PRE
    );
    // One entry a command, in descending sizes.
    for block in [
        VpmEntry::new(0, FIRMWARE, 7),
        VpmEntry::new(0, FIRMWARE + 0x8_0000, 7),
    ] {
        assert_eq!(rig.map(Opcode::MAP_FA, &[block]), ok);
    }
    assert_eq!(rig.plain(Opcode::RUN_FW, 0), ok);
    rig.command(Opcode::SET_ICM_SIZE, 0, 0, UARC);
    assert_eq!(
        rig.map(Opcode::MAP_ICM_AUX, &[VpmEntry::new(0, AUX, 6)]),
        ok
    );
    for at in (0..UARC).step_by(1 << 20) {
        assert_eq!(
            rig.map(Opcode::MAP_ICM, &[VpmEntry::new(at, behind(at), 8)]),
            ok
        );
    }
    let records = VpmEntry::new(UARC + 4096, behind(UARC + 4096), 0);
    assert_eq!(rig.map(Opcode::MAP_ICM, &[records]), ok);
    assert_eq!(rig.give(Opcode::INIT_HCA, 0, 0, &rom_tables()), ok);
    let mut all = Mpt::ZERO;
    all.set_local_read(true)
        .set_local_write(true)
        .set_remote_enable(true)
        .set_physical(true)
        .set_region(true)
        .set_key(0x7700_0010)
        .set_pd(DOMAIN)
        .set_length(Mpt::NO_LIMIT);
    assert_eq!(rig.give(Opcode::SW2HW_MPT, 0, 0x10, &all), ok);
    let mut eq = EqContext::ZERO;
    eq.set_state(EqState::M_FIRED)
        .set_start_address(EQ.1)
        .set_log_size(2);
    rig.fresh_ring(EQ.1, 4);
    assert_eq!(rig.give(Opcode::SW2HW_EQ, 0, 0, &eq), ok);
    assert_eq!(rig.command(Opcode::MAP_EQ, 0, 0, u64::MAX).status, ok);
    for (kind, base) in [(0, 16), (1, 18)] {
        assert_eq!(
            rig.command(Opcode::CONF_SPECIAL_QP, kind, base, 0).status,
            ok
        );
    }
}

/// CQ and QP, which is in RTS then.
fn queues(rig: &mut Rig) {
    let ok = CmdStatus::OK;
    rig.fresh_ring(CQ_AT, 8);
    let mut cq = CqContext::ZERO;
    cq.set_state(CqState::FIRED)
        .set_start_address(CQ_AT)
        .set_log_size(3)
        .set_uar_page(PAGE as u32)
        .set_pd(DOMAIN)
        .set_lkey(KEY)
        .set_cqn(CQN)
        .set_set_ci_record(SET_CI_INDEX);
    assert_eq!(rig.give(Opcode::SW2HW_CQ, 0, CQN, &cq), ok);
    let log = WQES.trailing_zeros() as u8;
    let mut qp = QpContext::ZERO;
    let mut path = qp.primary_path();
    path.set_port(1);
    qp.set_service(ServiceType::UD)
        .set_mtu(4)
        .set_msg_max(11)
        .set_log_rq_size(log)
        .set_log_rq_stride(2)
        .set_log_sq_size(log)
        .set_log_sq_stride(3)
        .set_uar_page(PAGE as u32)
        .set_primary_path(path)
        .set_pd(DOMAIN)
        .set_wqe_lkey(KEY)
        .set_all_signaled(true)
        .set_receive_signaled(true)
        .set_send_cqn(CQN)
        .set_receive_cqn(CQN)
        .set_sq_address(SEND_AT as u32)
        .set_sq_record(SQ_INDEX)
        .set_rq_address(RECEIVE_AT as u32)
        .set_rq_record(RQ_INDEX);
    assert_eq!(rig.modify(Opcode::RST2INIT_QPEE, QPN, 0, &qp), ok);
    let mut ready = QpContext::ZERO;
    ready.set_mtu(4).set_msg_max(11);
    assert_eq!(rig.modify(Opcode::INIT2RTR_QPEE, QPN, 0, &ready), ok);
    assert_eq!(
        rig.modify(Opcode::RTR2RTS_QPEE, QPN, 0, &QpContext::ZERO),
        ok
    );
    let mut key = QpContext::ZERO;
    key.set_q_key(Q_KEY);
    assert_eq!(rig.modify(Opcode::RTS2RTS_QPEE, QPN, opt::Q_KEY, &key), ok);
    // Rings of links; receives claim two units and have three.
    for index in 0..u64::from(WQES) {
        let next = (index + 1) % u64::from(WQES);
        let mut send = NextSegment::ZERO;
        send.set_nda((SEND_AT + next * SEND_STRIDE) as u32);
        rig.store(SEND_AT + index * SEND_STRIDE, &send);
        let mut receive = NextSegment::ZERO;
        receive
            .set_nda((RECEIVE_AT + next * RECEIVE_STRIDE) as u32)
            .set_nds(2);
        rig.store(RECEIVE_AT + index * RECEIVE_STRIDE, &receive);
        rig.store(RECEIVE_AT + index * RECEIVE_STRIDE + 16, &[0_u8; 48]);
    }
}

/// A receive of the GRH into one buffer and of the payload into another.
fn post_receive(rig: &mut Rig, count: u32) {
    let at = RECEIVE_AT + u64::from(count % WQES) * RECEIVE_STRIDE;
    let list = [
        DataSegment::new(40, KEY, 0x5000),
        DataSegment::new(256, KEY, 0x6000),
    ];
    rig.store(at + 16, &list);
    rig.store(place(RQ_INDEX), &((count + 1) & 0xffff).to_be_bytes());
}

/// A datagram to ourselves, without the bit that asks for a completion.
fn post_send(rig: &mut Rig, count: u32) {
    let mut av = av(1, LID);
    av.set_pd(DOMAIN)
        .set_dgid_last(0x0200_0000)
        .set_static_rate(1);
    let body = m_datagram(&av, QPN, Q_KEY, DataSegment::new(64, KEY, 0x4000));
    let at = SEND_AT + u64::from(count % WQES) * SEND_STRIDE;
    rig.store(at + 8, &1_u32.to_be_bytes());
    rig.store(at + 16, body.as_slice());
    let nds = (1 + body.len() / 16) as u8;
    let before = SEND_AT + u64::from(count.wrapping_sub(1) % WQES) * SEND_STRIDE;
    rig.store(before, &(at as u32 | 0x0a).to_be_bytes());
    rig.store(before + 4, &(0x80 | u32::from(nds)).to_be_bytes());
    rig.store(place(SQ_INDEX), &((count + 1) & 0xffff).to_be_bytes());
    let doorbell = MSendDoorbell {
        count: 1,
        counter: count as u16,
        fence: false,
        opcode: WqeOpcode::SEND.0,
        qpn: QPN,
        nds,
    };
    // Two stores of 32 bits.
    let at = PAGE * 4096 + uar::SEND as u64;
    rig.write32(2, at, (doorbell.encode() >> 32) as u32);
    rig.write32(2, at + 4, doorbell.encode() as u32);
}

#[test]
fn a_boot_rom_comes_up_sends_to_itself_and_goes_more_than_once() {
    let mut rig = Rig::memfree(Variant::Arbel);
    for _ in 0..2 {
        start(&mut rig);
        rig.activate(1, LID);
        queues(&mut rig);
        let mut consumer = 0_u32;
        for count in 0..20 {
            post_receive(&mut rig, count);
            post_send(&mut rig, count);
            for (opcode, at) in [(0x0a_u8, SEND_AT), (0x64, RECEIVE_AT)] {
                let entry = CQ_AT + u64::from(consumer % 8) * 32;
                let cqe: Cqe = rig.load(entry);
                assert!(!cqe.owned_by_hw(), "entry {consumer}");
                assert_eq!((cqe.qpn(), cqe.opcode()), (QPN, opcode));
                assert_eq!(cqe.wqe_address() as u64 & !0xfff, at);
                rig.store(entry + 31, &0x80_u8);
                consumer += 1;
                rig.store(place(SET_CI_INDEX), &consumer.to_be_bytes());
            }
        }
        assert_eq!(rig.bus.messages, []);
        assert!(!rig.bus.pin, "nothing is armed");
        let events = rig.eqe(EQ, 0).map(|eqe| eqe.event_type());
        assert_eq!(events, Some(EventType::PORT_CHANGE));
        rig.store(EQ.1 + 31, &0x80_u8);
        rig.write32(0, EQ_SET_CI, 1);
        let shown: QpMailbox = rig.ask(Opcode::QUERY_QPEE, QPN);
        assert_eq!(
            (shown.context.state(), shown.context.mtu()),
            (QpState::RTS, 4)
        );
        assert!(shown.context.all_signaled() && shown.context.q_key() == Q_KEY);
        assert_eq!(rig.get::<PortInfo>(1, 1).lid.0, LID);
        assert_eq!(
            rig.mad_ifc(3, &Smp::lid_routed(Method::GET, PortInfo::ID, 3))
                .err(),
            Some(CmdStatus::BAD_PARAM)
        );
        // It leaves special QPs, key and queues as they are.
        assert_eq!(
            rig.command(Opcode::MAP_EQ, 0, 1 << 31, 1 << 9).status,
            CmdStatus::OK
        );
        assert_eq!(rig.command(Opcode::HW2SW_EQ, 1, 0, 0).status, CmdStatus::OK);
        assert_eq!(rig.plain(Opcode::CLOSE_IB, 1), CmdStatus::OK);
        assert_eq!(rig.plain(Opcode::CLOSE_HCA, 0), CmdStatus::OK);
        for (at, pages) in [(UARC + 4096, 1), (0, (UARC >> 12) as u32)] {
            let status = rig.command(Opcode::UNMAP_ICM, 0, pages, at).status;
            assert_eq!(status, CmdStatus::OK);
        }
        for opcode in [Opcode::UNMAP_ICM_AUX, Opcode::UNMAP_FA] {
            assert_eq!(rig.plain(opcode, 0), CmdStatus::OK);
        }
        rig.write32(0, hca_abi::infinihost::regs::RESET as u64, 1);
        rig.configure();
        assert_eq!(rig.bus.reports, [""; 0]);
    }
}
