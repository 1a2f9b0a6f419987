//! Shared receive queues. infinihost 4.3, 4.8, 5.5.

use super::verbs::*;
use super::*;
use hca_abi::infinihost::cmd::{CmdStatus, Opcode};
use hca_abi::infinihost::cqe::Syndrome;
use hca_abi::infinihost::doorbell::ReceiveDoorbell;
use hca_abi::infinihost::eqe::EventType;
use hca_abi::infinihost::qp::{QpState, ServiceType};
use hca_abi::infinihost::regs::uar;
use hca_abi::infinihost::srq::{SrqContext, SrqState};
use hca_abi::infinihost::wqe::{DataSegment, NextSegment, WqeOpcode, next};

const SRQ: u32 = 0x12;
const AT: u64 = 0x9_0000;
const AV: u64 = 0x3000;
const DATA: u64 = 0x4000;
const BUFFER: u64 = 0x5000;

fn context() -> SrqContext {
    let mut context = SrqContext::ZERO;
    context
        .set_state(SrqState::SOFTWARE)
        .set_wqe_size(4)
        .set_pd(PD)
        .set_lkey(ALL)
        .set_uar_page(UAR);
    context
}

/// A card with an SRQ and two QPs that share it.
fn rig() -> (Rig, Cq, [Qp; 2]) {
    let mut rig = Rig::card(1);
    rig.start(true);
    rig.activate(1, 0x15);
    let cq = rig.create_cq(0x20);
    assert_eq!(
        rig.give(Opcode::SW2HW_SRQ, 0, SRQ, &context()),
        CmdStatus::OK
    );
    rig.store(AV, &av(1, 0x15));
    let qps = [0x30, 0x31].map(|qpn| {
        let mut context = qp_context(ServiceType::UD, 0, 1, cq.cqn);
        context.set_has_srq(true).set_srqn(SRQ);
        assert_eq!(
            rig.modify(Opcode::RST2INIT_QPEE, qpn, 0, &context),
            CmdStatus::OK
        );
        let qp = Qp::new(qpn, ServiceType::UD);
        rig.ready(&qp);
        qp
    });
    (rig, cq, qps)
}

/// Request `index` of the SRQ: two entries, then the end of the list, then something that must not be looked at.
fn post(rig: &mut Rig, indices: core::ops::Range<u64>) {
    for index in indices.clone() {
        let at = AT + index * 64;
        let mut segment = NextSegment::ZERO;
        segment.set_nda((at + 64) as u32);
        rig.store(at, &segment);
        let buffer = BUFFER + index * 0x100;
        let list = [
            DataSegment::new(40, ALL, buffer),
            DataSegment::new(8, ALL, buffer + 0x80),
            DataSegment::END_OF_LIST,
        ];
        rig.store(at + 16, &list);
    }
    let doorbell = ReceiveDoorbell {
        nda: (AT + indices.start * 64) as u32,
        nds: 0,
        number: SRQ,
        count: (indices.end - indices.start) as u16,
    };
    rig.ring(UAR.into(), uar::RECEIVE, doorbell.encode());
}

fn send(rig: &mut Rig, from: &mut Qp, to: u32, len: u32) {
    let body = datagram(AV, to, Q_KEY, DataSegment::new(len, ALL, DATA));
    rig.post_send(from, WqeOpcode::SEND, &[body], next::ALWAYS_ONE);
}

#[test]
fn queue_pairs_take_requests_from_the_head_of_what_they_share() {
    let (mut rig, mut cq, [mut one, mut other]) = rig();
    post(&mut rig, 0..3);
    rig.store(DATA, b"to-share");
    for (from, to) in [(&mut one, 0x31), (&mut other, 0x30)] {
        send(&mut rig, from, to, 8);
        rig.poll(&mut cq).unwrap();
        let received = rig.poll(&mut cq).unwrap();
        assert_eq!((received.qpn(), received.byte_count()), (to, 48));
    }
    assert_eq!(&rig.load::<[u8; 8]>(BUFFER + 0x80), b"to-share");
    assert_eq!(&rig.load::<[u8; 8]>(BUFFER + 0x180), b"to-share");
    let shown: SrqContext = rig.ask(Opcode::QUERY_SRQ, SRQ);
    assert_eq!(
        (shown.wqe_count(), shown.next_wqe()),
        (1, (AT + 128) as u32)
    );
    assert_eq!(shown.state(), SrqState::HARDWARE);
}

#[test]
fn an_error_takes_the_request_at_hand_and_leaves_the_others_to_the_other_queue_pair() {
    let (mut rig, mut cq, [mut one, mut other]) = rig();
    post(&mut rig, 0..2);
    send(&mut rig, &mut one, 0x31, 9);
    rig.poll(&mut cq).unwrap();
    let error = rig.poll_error(&mut cq);
    assert_eq!(
        (error.syndrome(), error.qpn(), error.doorbell_count()),
        (Syndrome::LOCAL_LENGTH, 0x31, 0)
    );
    assert_eq!(error.wqe_address(), AT as u32);
    assert_eq!(rig.qp_state(0x31), QpState::ERR);
    let events = rig.take_events(EQ_ASYNC, &mut 1);
    assert_eq!(
        (events[0].event_type(), events[0].number()),
        (EventType::LAST_WQE_REACHED, 0x31)
    );
    send(&mut rig, &mut other, 0x30, 4);
    assert_eq!(
        rig.poll_error(&mut cq).syndrome(),
        Syndrome::FLUSHED,
        "it is in error"
    );
    send(&mut rig, &mut one, 0x30, 4);
    rig.poll(&mut cq).unwrap();
    assert_eq!(rig.poll(&mut cq).unwrap().wqe_address(), AT as u32 + 64);
}

#[test]
fn the_limit_is_told_once_and_then_is_zero() {
    let (mut rig, mut cq, [mut one, _]) = rig();
    post(&mut rig, 0..3);
    let arm = |rig: &mut Rig, limit| rig.command(Opcode::ARM_SRQ, 0, SRQ, limit).status;
    let limit = |rig: &mut Rig| rig.ask::<SrqContext>(Opcode::QUERY_SRQ, SRQ).limit();
    assert_eq!(arm(&mut rig, 3), CmdStatus::OK);
    assert_eq!(limit(&mut rig), 3);
    let mut index = 1;
    assert!(
        rig.take_events(EQ_ASYNC, &mut index).is_empty(),
        "three are not below three"
    );
    for expected in [1, 0] {
        send(&mut rig, &mut one, 0x31, 4);
        rig.poll(&mut cq).unwrap();
        rig.poll(&mut cq).unwrap();
        let events = rig.take_events(EQ_ASYNC, &mut index);
        assert_eq!(events.len(), expected);
        if let Some(event) = events.first() {
            assert_eq!(
                (event.event_type(), event.number()),
                (EventType::SRQ_LIMIT, SRQ)
            );
        }
        assert_eq!(limit(&mut rig), 0);
    }
    arm(&mut rig, 2);
    assert_eq!(
        rig.take_events(EQ_ASYNC, &mut index).len(),
        1,
        "below already"
    );
    assert_eq!(arm(&mut rig, 0x1_0000), CmdStatus::BAD_PARAM);
}

#[test]
fn entering_error_by_command_is_the_last_request_too() {
    let (mut rig, _, _) = rig();
    rig.modify_plain(Opcode::TO_ERR_QPEE, 0x30);
    let events = rig.take_events(EQ_ASYNC, &mut 1);
    assert_eq!(
        (events[0].event_type(), events[0].number()),
        (EventType::LAST_WQE_REACHED, 0x30)
    );
}

#[test]
fn a_shared_queue_that_cannot_be_read_fails() {
    let (mut rig, mut cq, [mut one, _]) = rig();
    let mut context = context();
    context.set_lkey(0xbad);
    rig.plain(Opcode::HW2SW_SRQ, SRQ);
    assert_eq!(rig.bus.reports.len(), 1, "two QPs still had it");
    assert_eq!(rig.give(Opcode::SW2HW_SRQ, 0, SRQ, &context), CmdStatus::OK);
    post(&mut rig, 0..2);
    send(&mut rig, &mut one, 0x31, 4);
    rig.poll(&mut cq).unwrap();
    assert!(rig.poll(&mut cq).is_none());
    let events = rig.take_events(EQ_ASYNC, &mut 1);
    let kinds: Vec<_> = events.iter().map(|eqe| eqe.event_type()).collect();
    let expected = [
        EventType::SRQ_CATASTROPHIC,
        EventType::LAST_WQE_REACHED,
        EventType::WQ_CATASTROPHIC,
    ];
    assert_eq!(kinds, expected);
    assert_eq!(
        rig.ask::<SrqContext>(Opcode::QUERY_SRQ, SRQ).state(),
        SrqState::ERROR
    );
}

#[test]
fn srq_contexts_are_handed_over_once_and_taken_back() {
    let (mut rig, _, _) = rig();
    assert_eq!(
        rig.give(Opcode::SW2HW_SRQ, 0, SRQ, &context()),
        CmdStatus::BAD_RES_STATE
    );
    assert_eq!(
        rig.give(Opcode::SW2HW_SRQ, 0, 0x0f, &context()),
        CmdStatus::BAD_RESOURCE
    );
    assert_eq!(
        rig.give(Opcode::SW2HW_SRQ, 0, 1 << 10, &context()),
        CmdStatus::BAD_INDEX
    );
    let last: SrqContext = rig.ask(Opcode::HW2SW_SRQ, SRQ);
    assert_eq!(last.state(), SrqState::SOFTWARE);
    assert_eq!(rig.plain(Opcode::QUERY_SRQ, SRQ), CmdStatus::BAD_RES_STATE);
    assert_eq!(rig.plain(Opcode::HW2SW_SRQ, SRQ), CmdStatus::OK, "again");
}
