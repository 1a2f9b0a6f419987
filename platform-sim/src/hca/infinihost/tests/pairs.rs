//! Connections on a card of M-mode, to itself. infinihost 5.3 to 5.8, 5.12.

use super::memfree::*;
use super::verbs::*;
use super::*;
use crate::hca::infinihost::Variant;
use crate::machine::PciFunction;
use hca_abi::infinihost::cmd::{CmdStatus, Opcode};
use hca_abi::infinihost::cqe::Syndrome;
use hca_abi::infinihost::eqe::EventType;
use hca_abi::infinihost::mpt::Mpt;
use hca_abi::infinihost::qp::{QpState, ServiceType, opt};
use hca_abi::infinihost::srq::MSrqContext;
use hca_abi::infinihost::wqe::{
    AtomicSegment, DataSegment, NextSegment, RemoteAddressSegment, WqeOpcode, next,
};
use zerocopy::IntoBytes;

const LID: u16 = 0x15;
const DATA: u64 = 0x4000;
const BUFFER: u64 = 0x8000;
const QPNS: [u32; 2] = [0x12_3030, 0x31];
const ONE: u32 = next::ALWAYS_ONE;
const SRQ: u32 = 0x12;
const FLUSHED: u32 = Syndrome::FLUSHED.0 as u32;

/// What peers use: all rights, of generation 0x5a.
const REMOTE: u32 = 0x115a;

fn rig(service: ServiceType, with_srq: bool) -> (Rig, Cq, [verbs::Qp; 2]) {
    let mut rig = Rig::memfree(Variant::Arbel);
    rig.m_start(true);
    rig.activate(1, LID);
    let cq = rig.m_create_cq(0x20);
    let mut region: Mpt = all_memory();
    region
        .set_key(0x5a00_0011)
        .set_remote_read(true)
        .set_remote_write(true)
        .set_remote_atomic(true);
    assert_eq!(rig.give(Opcode::SW2HW_MPT, 0, 0x11, &region), CmdStatus::OK);
    if with_srq {
        let mut srq = MSrqContext::ZERO;
        srq.set_lkey(ALL_M)
            .set_record(0x1f0)
            .set_log_stride(2)
            .set_uar_page(UAR)
            .set_wqe_address(0x9_0000)
            .set_pd(PD);
        assert_eq!(rig.give(Opcode::SW2HW_SRQ, 0, SRQ, &srq), CmdStatus::OK);
    }
    let qps = [0, 1].map(|side: usize| {
        let qp = verbs::Qp::new(QPNS[side], service);
        let mut context = m_qp_context(&qp, cq.cqn);
        let mut path = context.primary_path();
        path.set_dlid(LID).set_ack_timeout(10).set_rnr_retry(1);
        context
            .set_mtu(1)
            .set_msg_max(31)
            .set_remote_qpn(QPNS[1 - side])
            .set_primary_path(path)
            .set_flight_limit(4)
            .set_sra_max(2)
            .set_rra_max(2)
            .set_retry_count(1)
            .set_min_rnr_timer(1)
            .set_has_srq(with_srq)
            .set_srqn(SRQ)
            .set_sre(true)
            .set_sae(true)
            .set_rre(true)
            .set_rwe(true)
            .set_rae(true);
        let access = opt::RRE | opt::RAE | opt::RWE;
        let retries = opt::SRA_MAX | opt::ACK_TIMEOUT | opt::RETRY_COUNT | opt::RNR_RETRY;
        for (opcode, mask) in [
            (Opcode::RST2INIT_QPEE, 0),
            (Opcode::INIT2RTR_QPEE, access),
            (Opcode::RTR2RTS_QPEE, retries),
        ] {
            let status = rig.modify(opcode, qp.qpn, mask, &context);
            assert_eq!(status, CmdStatus::OK, "{opcode:?}");
        }
        qp
    });
    rig.store(DATA, &core::array::from_fn::<u8, 1000, _>(|at| at as u8));
    (rig, cq, qps)
}

fn list(len: u32, at: u64) -> Vec<u8> {
    DataSegment::new(len, ALL_M, at).as_bytes().to_vec()
}

fn remote(rkey: u32, at: u64, rest: &[u8]) -> Vec<u8> {
    let mut segment = RemoteAddressSegment::ZERO;
    segment.set_rkey(rkey).set_address(at);
    [segment.as_bytes(), rest].concat()
}

/// All completions: QP, opcode (or 0xfe, 0xff), byte count (or syndrome).
fn completions(rig: &mut Rig, cq: &mut Cq) -> Vec<(u32, u8, u32)> {
    // Timers of a few milliseconds strike.
    (0..100).for_each(|_| rig.settle());
    let mut all = Vec::new();
    while let Some(cqe) = rig.m_poll(cq) {
        let what = match cqe.is_error() {
            true => u32::from(cqe.as_error().syndrome().0),
            false => cqe.byte_count(),
        };
        assert_eq!(cqe.wqe_size(), 0);
        all.push((cqe.qpn(), cqe.opcode(), what));
    }
    all
}

#[test]
fn every_operation_of_a_reliable_connection_arrives() {
    let (mut rig, mut cq, [mut one, mut other]) = rig(ServiceType::RC, false);
    let [left, right] = QPNS;
    rig.m_post_receive(&mut other, &[(BUFFER, 1000), (BUFFER, 1000)]);
    rig.m_post_send(&mut one, WqeOpcode::SEND, &[list(1000, DATA)], ONE);
    let mut found = completions(&mut rig, &mut cq);
    found.sort();
    assert_eq!(found, [(right, 0x02, 1000), (left, 0x0a, 0)]);
    assert_eq!(rig.load::<[u8; 1000]>(BUFFER), rig.load::<[u8; 1000]>(DATA));

    let write = remote(REMOTE, 0x1_8000, &list(600, DATA));
    rig.m_post_send(&mut one, WqeOpcode::RDMA_WRITE_IMM, &[write], ONE);
    let mut found = completions(&mut rig, &mut cq);
    found.sort();
    assert_eq!(found, [(right, 0x09, 600), (left, 0x09, 0)]);
    assert_eq!(rig.load::<[u8; 600]>(0x1_8000), rig.load::<[u8; 600]>(DATA));

    let read = remote(REMOTE, DATA + 100, &list(700, 0x1_9000));
    rig.m_post_send(&mut one, WqeOpcode::RDMA_READ, &[read], ONE);
    assert_eq!(completions(&mut rig, &mut cq), [(left, 0x10, 700)]);
    assert_eq!(
        rig.load::<[u8; 700]>(0x1_9000),
        rig.load::<[u8; 700]>(DATA + 100)
    );

    rig.store(0x1_a000, &40_u64.to_le_bytes());
    let mut add = AtomicSegment::ZERO;
    add.set_swap_add(2);
    let rest = [add.as_bytes(), &list(8, 0x1_b000)].concat();
    let body = remote(REMOTE, 0x1_a000, &rest);
    rig.m_post_send(&mut one, WqeOpcode::ATOMIC_FA, &[body], ONE);
    assert_eq!(completions(&mut rig, &mut cq), [(left, 0x12, 8)]);
    let numbers = [rig.load(0x1_a000), rig.load(0x1_b000)].map(u64::from_le_bytes);
    assert_eq!(numbers, [42, 40]);
    assert_eq!(rig.bus.reports, [""; 0]);
    assert!(rig.hca.ledger().is_empty(), "{}", rig.hca.ledger());
}

#[test]
fn a_key_of_another_generation_ends_both_sides_and_each_request_is_flushed() {
    let (mut rig, mut cq, [mut one, mut other]) = rig(ServiceType::RC, false);
    let [left, right] = QPNS;
    rig.m_post_receive(&mut other, &[(BUFFER, 64), (BUFFER, 64)]);
    rig.m_post_receive(&mut one, &[(BUFFER, 64)]);
    let bad = remote(REMOTE + 1, DATA, &list(4, DATA));
    let good = remote(REMOTE, DATA, &list(4, DATA));
    rig.m_post_send(
        &mut one,
        WqeOpcode::RDMA_WRITE,
        &[bad, good.clone(), good],
        ONE,
    );
    let mut found = completions(&mut rig, &mut cq);
    let first = found.iter().find(|(qpn, ..)| *qpn == left);
    let access = u32::from(Syndrome::REMOTE_ACCESS.0);
    assert_eq!(first, Some(&(left, 0xff, access)), "before those behind it");
    found.sort();
    let expected = [
        (right, 0xfe, FLUSHED),
        (right, 0xfe, FLUSHED),
        (left, 0xfe, FLUSHED),
        (left, 0xff, FLUSHED),
        (left, 0xff, FLUSHED),
        (left, 0xff, access),
    ];
    assert_eq!(found, expected);
    for qpn in QPNS {
        assert_eq!(rig.qp_state(qpn), QpState::ERR);
    }
}

#[test]
fn sends_in_flight_are_flushed_one_by_one_when_software_stops_the_queue_pair() {
    let (mut rig, mut cq, [mut one, _]) = rig(ServiceType::RC, false);
    let [left, _] = QPNS;
    // Nobody has posted a receive: the first is refused for now, the others behind it are out or wait.
    rig.m_post_send(&mut one, WqeOpcode::SEND, &vec![list(4, DATA); 5], ONE);
    assert_eq!(rig.m_poll(&mut cq).map(|cqe| cqe.qpn()), None);
    rig.modify_plain(Opcode::TO_ERR_QPEE, left);
    let found = completions(&mut rig, &mut cq);
    assert_eq!(found, [(left, 0xff, FLUSHED); 5]);
    rig.command(Opcode::ERR2RST_QPEE, 3, left, 0);
    assert_eq!(completions(&mut rig, &mut cq), []);
}

#[test]
fn connections_share_requests_and_the_last_one_is_told() {
    let (mut rig, mut cq, [mut one, _]) = rig(ServiceType::RC, true);
    let [left, right] = QPNS;
    for (index, next) in [(0_u64, 2_u32), (2, 0)] {
        let at = 0x9_0000 + index * 64;
        let mut segment = NextSegment::ZERO;
        segment.set_nda(0x9_0000 + next * 64);
        rig.store(at, &segment);
        let list = [
            DataSegment::new(64, ALL_M, BUFFER + index * 64),
            DataSegment::END_OF_LIST,
        ];
        rig.store(at + 16, &list);
    }
    rig.store(record(0x1f0), &2_u32.to_be_bytes());
    for index in [0, 2] {
        rig.m_post_send(&mut one, WqeOpcode::SEND, &[list(8, DATA)], ONE);
        let mut found = completions(&mut rig, &mut cq);
        found.sort();
        assert_eq!(found, [(right, 0x04, 8), (left, 0x0a, 0)]);
        let data: [u8; 8] = rig.load(BUFFER + index * 64);
        assert_eq!(data, rig.load::<[u8; 8]>(DATA));
    }
    let mut index = 1;
    rig.m_take_events(EQ_ASYNC, &mut index);
    rig.modify_plain(Opcode::TO_ERR_QPEE, right);
    let events = rig.m_take_events(EQ_ASYNC, &mut index);
    let last = events.iter().map(|eqe| (eqe.event_type(), eqe.number()));
    assert_eq!(
        last.collect::<Vec<_>>(),
        [(EventType::LAST_WQE_REACHED, right)]
    );
}

#[test]
fn an_unreliable_connection_completes_when_sent() {
    let (mut rig, mut cq, [mut one, mut other]) = rig(ServiceType::UC, false);
    let [left, right] = QPNS;
    rig.m_post_send(&mut one, WqeOpcode::SEND, &[list(4, DATA)], ONE);
    assert_eq!(completions(&mut rig, &mut cq), [(left, 0x0a, 0)], "lost");
    rig.m_post_receive(&mut other, &[(BUFFER, 600)]);
    rig.m_post_send(&mut one, WqeOpcode::SEND_IMM, &[list(600, DATA)], ONE);
    let mut found = completions(&mut rig, &mut cq);
    found.sort();
    assert_eq!(found, [(right, 0x23, 600), (left, 0x0b, 0)]);
}
