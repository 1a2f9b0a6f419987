//! M-mode queue pairs and shared receive queues: requests in rings and chains, posted by counters. infinihost 2.9, 4.8, 5.4 to
//! 5.8.

use super::memfree::*;
use super::verbs::*;
use super::*;
use crate::hca::infinihost::Variant;
use crate::machine::PciFunction;
use hca_abi::infinihost::cmd::{CmdStatus, Opcode};
use hca_abi::infinihost::cqe::{Cqe, Syndrome};
use hca_abi::infinihost::doorbell::MSendDoorbell;
use hca_abi::infinihost::eqe::EventType;
use hca_abi::infinihost::qp::{QpContext, QpState, ServiceType};
use hca_abi::infinihost::regs::uar;
use hca_abi::infinihost::wqe::{DataSegment, WqeOpcode, next};

const SEND: WqeOpcode = WqeOpcode::SEND;
const NOP: WqeOpcode = WqeOpcode::NOP;
const ONE: u32 = next::ALWAYS_ONE;
const LID: u16 = 0x15;
const DATA: u64 = 0x4000;
const BUFFER: u64 = 0x5000;

fn rig() -> (Rig, Cq) {
    let mut rig = Rig::memfree(Variant::Arbel);
    rig.m_start(true);
    rig.activate(1, LID);
    let cq = rig.m_create_cq(0x20);
    rig.store(DATA, &[0xab_u8; 100]);
    (rig, cq)
}

fn to(qpn: u32, len: u32) -> Vec<u8> {
    m_datagram(&av(1, LID), qpn, Q_KEY, DataSegment::new(len, ALL_M, DATA))
}

/// What is polled: QP, WQE offset from the start of the QP's queues, opcode or syndrome of an error.
fn polled(rig: &mut Rig, cq: &mut Cq, qp: &verbs::Qp) -> Vec<(u32, u8)> {
    let mut all = Vec::new();
    while let Some(cqe) = rig.m_poll(cq) {
        let at = cqe.wqe_address() - qp.at as u32;
        let what = match cqe.is_error() {
            true => cqe.as_error().syndrome().0,
            false => cqe.opcode(),
        };
        all.push((at, what));
    }
    all
}

#[test]
fn datagrams_go_round_both_rings_and_completions_name_their_places() {
    let (mut rig, mut cq) = rig();
    let mut one = rig.m_ud_qp(0x12_3018, &cq);
    let mut other = rig.m_ud_qp(0x00_0019, &cq);
    for round in 0..20 {
        rig.store(BUFFER, &[0xee_u8; 200]);
        rig.m_post_receive(&mut other, &[(BUFFER, 200)]);
        let body = to(other.qpn, 100);
        rig.m_post_send(&mut one, SEND, &[body], ONE | next::SOLICITED);
        let sent = rig.m_poll(&mut cq).unwrap();
        assert_eq!(
            (sent.qpn(), sent.opcode(), sent.is_send()),
            (one.qpn, 0x0a, true)
        );
        let place = one.at as u32 + one.send_wqe(round);
        assert_eq!((sent.wqe_address(), sent.wqe_size()), (place, 0));
        let received = rig.m_poll(&mut cq).unwrap();
        assert_eq!((received.qpn(), received.remote_qpn()), (0x19, one.qpn));
        assert_eq!((received.byte_count(), received.slid()), (140, LID));
        let place = other.at as u32 + other.receive_wqe(round);
        assert_eq!((received.wqe_address(), received.wqe_size()), (place, 0));
        assert_eq!(rig.load::<[u8; 100]>(BUFFER + 40), [0xab; 100]);
    }
    let shown = rig.query_qp(one.qpn);
    assert_eq!((shown.sq_counter(), shown.rq_counter()), (20, 0));
    assert_eq!(rig.query_qp(other.qpn).rq_counter(), 20);
    assert_eq!(rig.bus.reports, [""; 0]);
    assert!(rig.hca.ledger().is_empty(), "{}", rig.hca.ledger());
}

#[test]
fn one_doorbell_carries_out_as_many_requests_as_it_says_whatever_their_links_say() {
    let (mut rig, mut cq) = rig();
    let mut qp = rig.m_ud_qp(0x30, &cq);
    rig.m_post_send(&mut qp, NOP, &vec![vec![]; 5], ONE);
    let places: Vec<_> = (0..5).map(|index| (qp.send_wqe(index), 0)).collect();
    assert_eq!(polled(&mut rig, &mut cq, &qp), places);
    // Over the end of the ring; the last link leads on to what is not posted yet.
    let stale = qp.at + u64::from(qp.send_wqe(9));
    rig.store(stale, &[0_u32, (next::DBD | 1).to_be()]);
    rig.m_post_send(&mut qp, NOP, &vec![vec![]; 5], ONE);
    let places: Vec<_> = (5..10).map(|index| (qp.send_wqe(index), 0)).collect();
    assert_eq!(polled(&mut rig, &mut cq, &qp), places);
}

#[test]
fn a_doorbell_of_more_than_the_ring_holds_is_lost_and_one_with_another_counter_is_told() {
    let (mut rig, mut cq) = rig();
    let qp = rig.m_ud_qp(0x30, &cq);
    let mut doorbell = MSendDoorbell {
        count: 9,
        counter: 0,
        fence: false,
        opcode: 0,
        qpn: 0x30,
        nds: 1,
    };
    rig.ring(UAR.into(), uar::SEND, doorbell.encode());
    assert_eq!(polled(&mut rig, &mut cq, &qp), []);
    assert_eq!(rig.bus.reports.len(), 1);
    (doorbell.count, doorbell.counter) = (1, 3);
    rig.ring(UAR.into(), uar::SEND, doorbell.encode());
    assert_eq!(polled(&mut rig, &mut cq, &qp), [(qp.send_wqe(0), 0)]);
    assert!(
        rig.bus.reports[1].ends_with("after 0 entries"),
        "{:?}",
        rig.bus.reports
    );
    rig.ring(UAR as u64 + 1, uar::SEND, doorbell.encode());
    assert_eq!(
        rig.m_take_events(EQ_ASYNC, &mut 1)[0].event_type(),
        EventType::LOCAL_CATASTROPHIC,
        "another UAR page"
    );
}

#[test]
fn a_send_that_fails_flushes_each_request_behind_it_and_receives_go_on() {
    let (mut rig, mut cq) = rig();
    let mut qp = rig.m_ud_qp(0x30, &cq);
    let mut other = rig.m_ud_qp(0x31, &cq);
    rig.m_post_receive(&mut qp, &[(BUFFER, 200)]);
    let bad = m_datagram(&av(1, LID), 1, 0, DataSegment::new(4, 0xbad, 0));
    rig.m_post_send(&mut qp, SEND, &[bad, to(1, 4), to(1, 4)], ONE);
    let flushed = Syndrome::FLUSHED.0;
    let expected = [
        (qp.send_wqe(0), Syndrome::LOCAL_PROTECTION.0),
        (qp.send_wqe(1), flushed),
        (qp.send_wqe(2), flushed),
    ];
    assert_eq!(polled(&mut rig, &mut cq, &qp), expected);
    assert_eq!(rig.qp_state(0x30), QpState::SQE);
    rig.m_post_send(&mut qp, SEND, &[to(1, 4), to(1, 4)], ONE);
    let expected = [(qp.send_wqe(3), flushed), (qp.send_wqe(4), flushed)];
    assert_eq!(polled(&mut rig, &mut cq, &qp), expected, "what comes after");
    rig.m_post_send(&mut other, SEND, &[to(0x30, 4)], ONE);
    rig.m_poll(&mut cq).unwrap();
    assert_eq!(rig.m_poll(&mut cq).unwrap().qpn(), 0x30);
    assert_eq!(
        rig.modify_plain(Opcode::SQERR2RTS_QPEE, 0x30),
        CmdStatus::OK
    );
    rig.m_post_send(&mut qp, SEND, &[to(1, 4)], ONE);
    assert_eq!(polled(&mut rig, &mut cq, &qp), [(qp.send_wqe(5), 0x0a)]);
    assert_eq!(rig.bus.reports, [""; 0]);
}

#[test]
fn a_queue_pair_in_error_completes_each_request_by_itself() {
    let (mut rig, mut cq) = rig();
    let mut qp = rig.m_qp(0x30, ServiceType::UD, &cq);
    rig.m_post_receive(&mut qp, &[(BUFFER, 200), (BUFFER, 200), (BUFFER, 200)]);
    rig.modify_plain(Opcode::RTS2SQD_QPEE, 0x30);
    rig.m_post_send(&mut qp, SEND, &[to(1, 4), to(1, 4)], ONE);
    assert_eq!(polled(&mut rig, &mut cq, &qp), []);
    assert_eq!(rig.modify_plain(Opcode::TO_ERR_QPEE, 0x30), CmdStatus::OK);
    let places = [
        qp.send_wqe(0),
        qp.send_wqe(1),
        qp.receive_wqe(0),
        qp.receive_wqe(1),
        qp.receive_wqe(2),
    ];
    let flushed = places.map(|place| (place, Syndrome::FLUSHED.0));
    assert_eq!(polled(&mut rig, &mut cq, &qp), flushed);
    let raw: Cqe = rig.load(cq.at);
    assert_eq!(raw.as_error().doorbell_count(), 0);
    rig.m_post_send(&mut qp, SEND, &[to(1, 4)], ONE);
    let late = [(qp.send_wqe(2), Syndrome::FLUSHED.0)];
    assert_eq!(polled(&mut rig, &mut cq, &qp), late);
    assert_eq!(rig.qp_state(0x30), QpState::ERR);
}

/// No doorbell tells of a receive request in M-mode, so somebody has to look.
#[test]
fn receive_requests_posted_in_error_are_flushed_soon_and_however_late() {
    let (mut rig, mut cq) = rig();
    let mut qp = rig.m_qp(0x30, ServiceType::UD, &cq);
    rig.modify_plain(Opcode::TO_ERR_QPEE, 0x30);
    rig.m_post_receive(&mut qp, &[(BUFFER, 200), (BUFFER, 200)]);
    rig.settle();
    let places = [qp.receive_wqe(0), qp.receive_wqe(1)];
    let flushed = places.map(|place| (place, Syndrome::FLUSHED.0));
    assert_eq!(polled(&mut rig, &mut cq, &qp), flushed);
    rig.settle_for(60_000_000_000);
    rig.m_post_receive(&mut qp, &[(BUFFER, 200)]);
    rig.settle_for(2_000_000_000);
    let late = [(qp.receive_wqe(2), Syndrome::FLUSHED.0)];
    assert_eq!(polled(&mut rig, &mut cq, &qp), late);
    assert_eq!(rig.plain(Opcode::CLOSE_HCA, 0), CmdStatus::OK);
    assert!(rig.bus.timers.is_empty());
}

#[test]
fn a_list_ends_at_its_key_or_where_the_request_ends_and_not_by_a_size() {
    let (mut rig, mut cq) = rig();
    let mut qp = rig.m_ud_qp(0x30, &cq);
    rig.m_post_receive(&mut qp, &[(BUFFER, 40)]);
    let wqe = qp.at;
    rig.store(wqe + 32, &DataSegment::new(3, ALL_M, BUFFER + 0x100));
    rig.store(wqe + 48, &DataSegment::new(0, 0, 0));
    rig.store(wqe + 64, &DataSegment::new(50, ALL_M, BUFFER + 0x200));
    rig.store(wqe + 80, &DataSegment::END_OF_LIST);
    rig.m_post_send(&mut qp, SEND, &[to(0x30, 53)], ONE);
    rig.m_poll(&mut cq).unwrap();
    assert_eq!(rig.m_poll(&mut cq).unwrap().byte_count(), 93);
    assert_eq!(rig.load::<[u8; 3]>(BUFFER + 0x100), [0xab; 3]);
    assert_eq!(rig.load::<[u8; 50]>(BUFFER + 0x200), [0xab; 50]);
    rig.m_post_receive(&mut qp, &[(BUFFER, 40)]);
    rig.m_post_send(&mut qp, SEND, &[to(0x30, 1)], ONE);
    rig.m_poll(&mut cq).unwrap();
    assert_eq!(rig.m_poll_error(&mut cq).syndrome(), Syndrome::LOCAL_LENGTH);
}

#[test]
fn an_address_vector_of_another_domain_or_port_is_refused() {
    let (mut rig, mut cq) = rig();
    let data = DataSegment::new(4, ALL_M, DATA);
    let mut foreign = av(1, LID);
    foreign.set_pd(PD + 1);
    let cases = [
        (m_datagram(&foreign, 1, 0, data), Syndrome::LOCAL_PROTECTION),
        (
            m_datagram(&av(2, LID), 1, 0, data),
            Syndrome::LOCAL_QP_OPERATION,
        ),
        (vec![0; 16], Syndrome::LOCAL_QP_OPERATION),
    ];
    for (number, (body, syndrome)) in (0x30..).zip(cases) {
        let mut qp = rig.m_ud_qp(number, &cq);
        rig.m_post_send(&mut qp, SEND, &[body], ONE);
        assert_eq!(
            rig.m_poll_error(&mut cq).syndrome(),
            syndrome,
            "{number:#x}"
        );
    }
}

#[test]
fn contexts_that_are_too_large_or_name_records_of_others_are_refused() {
    let (mut rig, cq) = rig();
    let qp = verbs::Qp::new(0x30, ServiceType::UD);
    let bad: [(Change<QpContext>, CmdStatus); 4] = [
        (|context| context.set_log_sq_size(15), CmdStatus::EXCEED_LIM),
        (|context| context.set_log_rq_size(15), CmdStatus::EXCEED_LIM),
        (|context| context.set_sq_record(512), CmdStatus::BAD_PARAM),
        (|context| context.set_rq_record(512), CmdStatus::BAD_PARAM),
    ];
    for (change, status) in bad {
        let mut context = m_qp_context(&qp, cq.cqn);
        change(&mut context);
        let found = rig.modify(Opcode::RST2INIT_QPEE, 0x30, 0, &context);
        assert_eq!(found, status);
    }
    rig.command(Opcode::UNMAP_ICM, 0, 64, QPC);
    let context = m_qp_context(&qp, cq.cqn);
    let found = rig.modify(Opcode::RST2INIT_QPEE, 0x30, 0, &context);
    assert_eq!(found, CmdStatus::INTERNAL_ERR);
}

/// infinihost 13.6: the published size word, and what a query shows of it.
#[test]
fn a_context_is_shown_as_it_was_given() {
    let (mut rig, cq) = rig();
    let qp = verbs::Qp::new(0x30, ServiceType::RC);
    let mut context = m_qp_context(&qp, cq.cqn);
    context
        .set_log_rq_size(6)
        .set_log_rq_stride(2)
        .set_log_sq_size(7)
        .set_log_sq_stride(3);
    let status = rig.modify(Opcode::RST2INIT_QPEE, 0x30, 0, &context);
    assert_eq!(status, CmdStatus::OK);
    rig.plain(Opcode::QUERY_QPEE, 0x30);
    let word = |rig: &Rig, at: u64| u32::from_be_bytes(rig.load(OUT + 8 + at));
    assert_eq!(word(&rig, 0x08) & 0x7fff00, 0x9f32_3b00 & 0x7fff00);
    assert_eq!(word(&rig, 0x80), qp.at as u32 + qp.send_wqe(0));
    assert_eq!((word(&rig, 0x84), word(&rig, 0xa4)), (0x30, 0xb0));
    assert_eq!(word(&rig, 0xa0), qp.at as u32);
    assert_eq!(word(&rig, 0xb4), 0);
}
