//! Completion queues: arming, resizing, failing. infinihost 4.4, 4.5.

use super::verbs::*;
use super::*;
use hca_abi::infinihost::cmd::{CmdStatus, Opcode};
use hca_abi::infinihost::cq::{CqContext, CqState};
use hca_abi::infinihost::doorbell::{CqCommand, EqCommand};
use hca_abi::infinihost::eq::QueueStatus;
use hca_abi::infinihost::eqe::EventType;
use hca_abi::infinihost::resize_cq::ResizeCq;
use hca_abi::infinihost::wqe::{DataSegment, WqeOpcode, next};

const AV: u64 = 0x3000;
const DATA: u64 = 0x4000;
const BUFFER: u64 = 0x5000;
const CQN: u32 = 0x5_0020;

/// A card, a CQ, and a QP whose NOPs make completions.
fn rig() -> (Rig, Cq, Qp) {
    let mut rig = Rig::card(1);
    rig.start(true);
    rig.activate(1, 0x15);
    let cq = rig.create_cq(CQN);
    rig.store(AV, &av(1, 0x15));
    let qp = rig.ud_qp(0x30, 1, &cq);
    (rig, cq, qp)
}

fn complete(rig: &mut Rig, qp: &mut Qp, count: usize) {
    for _ in 0..count {
        rig.post_send(qp, WqeOpcode::NOP, &[vec![]], next::ALWAYS_ONE);
    }
}

fn arm(rig: &mut Rig, command: CqCommand) {
    rig.ring_cq(CQN, command, u32::MAX);
}

fn events(rig: &mut Rig, index: &mut u64) -> Vec<(EventType, u32)> {
    let events = rig.take_events(EQ_COMPLETION, index);
    events
        .iter()
        .map(|eqe| (eqe.event_type(), eqe.number()))
        .collect()
}

const FIRED: (EventType, u32) = (EventType::COMPLETION, CQN);

#[test]
fn an_armed_cq_tells_of_one_completion_and_then_no_more() {
    let (mut rig, _, mut qp) = rig();
    let mut index = 0;
    complete(&mut rig, &mut qp, 1);
    assert_eq!(events(&mut rig, &mut index), [], "not armed at creation");
    rig.ring_cq(CQN, CqCommand::INCREMENT, 0);
    arm(&mut rig, CqCommand::ARM);
    assert_eq!(events(&mut rig, &mut index), []);
    complete(&mut rig, &mut qp, 2);
    assert_eq!(events(&mut rig, &mut index), [FIRED]);
    let shown: CqContext = rig.ask(Opcode::QUERY_CQ, CQN);
    assert_eq!((shown.state(), shown.cqn()), (CqState::FIRED, CQN));
    assert_eq!((shown.producer_index(), shown.consumer_index()), (3, 1));
}

#[test]
fn arming_with_unconsumed_completions_tells_at_once() {
    let (mut rig, _, mut qp) = rig();
    let mut index = 0;
    complete(&mut rig, &mut qp, 2);
    rig.ring_cq(CQN, CqCommand::INCREMENT, 0);
    arm(&mut rig, CqCommand::ARM);
    assert_eq!(events(&mut rig, &mut index), [FIRED]);
    // With an index of its own: entry 1 was the last one polled.
    rig.ring_cq(CQN, CqCommand::ARM, 1);
    assert_eq!(events(&mut rig, &mut index), []);
    rig.ring_cq(CQN, CqCommand::ARM, 0);
    assert_eq!(events(&mut rig, &mut index), [], "told of entry 1 already");
    complete(&mut rig, &mut qp, 1);
    assert_eq!(events(&mut rig, &mut index), [FIRED]);
    complete(&mut rig, &mut qp, 1);
    rig.ring_cq(CQN, CqCommand::ARM, 0);
    assert_eq!(events(&mut rig, &mut index), [FIRED], "not of entry 3");
    rig.ring_cq(CQN, CqCommand::SET_INDEX, 4);
    arm(&mut rig, CqCommand::ARM);
    assert_eq!(events(&mut rig, &mut index), []);
}

#[test]
fn solicited_arming_waits_for_a_solicited_receive_or_an_error() {
    let (mut rig, mut cq, mut qp) = rig();
    let mut index = 0;
    arm(&mut rig, CqCommand::ARM_SOLICITED);
    let body = datagram(AV, 0x30, Q_KEY, DataSegment::new(4, ALL, DATA));
    rig.post_receive(&mut qp, &[(BUFFER, 256), (BUFFER, 256)]);
    rig.post_send(
        &mut qp,
        WqeOpcode::SEND,
        core::slice::from_ref(&body),
        next::ALWAYS_ONE,
    );
    assert_eq!(events(&mut rig, &mut index), []);
    rig.post_send(
        &mut qp,
        WqeOpcode::SEND,
        &[body],
        next::ALWAYS_ONE | next::SOLICITED,
    );
    assert_eq!(events(&mut rig, &mut index), [FIRED]);
    // It lies between the consumer and the producer, and was told of.
    rig.poll(&mut cq).unwrap();
    arm(&mut rig, CqCommand::ARM_SOLICITED);
    assert_eq!(events(&mut rig, &mut index), []);
    (0..3).for_each(|_| assert!(rig.poll(&mut cq).is_some()));
    complete(&mut rig, &mut qp, 1);
    arm(&mut rig, CqCommand::ARM_SOLICITED);
    assert_eq!(events(&mut rig, &mut index), [], "a send is not solicited");
    rig.post_send(&mut qp, WqeOpcode::RDMA_READ, &[vec![]], next::ALWAYS_ONE);
    assert_eq!(events(&mut rig, &mut index), [FIRED], "an error is");
}

#[test]
fn the_eq_doorbell_disarms_a_cq() {
    let (mut rig, _, mut qp) = rig();
    arm(&mut rig, CqCommand::ARM);
    rig.ring_eq(EqCommand::DISARM_CQ, EQ_COMPLETION.0, CQN);
    complete(&mut rig, &mut qp, 1);
    assert_eq!(events(&mut rig, &mut 0), []);
}

#[test]
fn a_completion_event_has_the_message_of_its_eq() {
    let (mut rig, _, mut qp) = rig();
    rig.messages();
    arm(&mut rig, CqCommand::ARM);
    complete(&mut rig, &mut qp, 1);
    assert_eq!(rig.messages(), [0]);
}

/// A ring of 2^`log` entries at `at`.
fn resize(rig: &mut Rig, at: u64, log: u8) -> CmdStatus {
    rig.fresh_ring(at, 1 << log);
    let mut new = ResizeCq::ZERO;
    new.set_start_address(at).set_log_size(log).set_lkey(ALL);
    rig.give(Opcode::RESIZE_CQ, 1, CQN, &new)
}

/// What Linux does after RESIZE_CQ: places in the new ring of the old ring's unconsumed entries.
fn copied(old_size: u32, new_size: u32, consumer: u32, wrapped: bool, count: u32) -> Vec<u32> {
    let mut consumer = consumer;
    if new_size > old_size {
        consumer &= old_size - 1;
        if wrapped {
            consumer = consumer.wrapping_sub(old_size);
        }
    }
    (0..count)
        .map(|at| consumer.wrapping_add(at) & (new_size - 1))
        .collect()
}

#[test]
fn a_resized_cq_goes_on_where_the_copied_entries_end() {
    // Completions before, consumed of them, log of the new size.
    for (before, consumed, log) in [
        (3, 1, 6),
        (20, 12, 6),
        (30, 20, 5),
        (17, 14, 2),
        (16, 16, 3),
        (31, 31, 6),
    ] {
        let (mut rig, mut cq, mut qp) = rig();
        for step in 0..before {
            complete(&mut rig, &mut qp, 1);
            if step < consumed {
                rig.poll(&mut cq).unwrap();
            }
        }
        let waiting = before - consumed;
        let last: [u8; 32] = rig.load(cq.at + 15 * 32);
        let places = copied(16, 1 << log, consumed, last[31] == 0, waiting);
        let new = 0x20_0000;
        assert_eq!(resize(&mut rig, new, log), CmdStatus::OK);
        complete(&mut rig, &mut qp, 1);
        let size = 1 << log;
        let next = places.last().map_or(consumed % 16, |place| place + 1) % size;
        let owned = (0..u64::from(size)).filter(|at| rig.load::<[u8; 32]>(new + at * 32)[31] == 0);
        assert_eq!(
            owned.collect::<Vec<_>>(),
            [u64::from(next)],
            "{before} {consumed} {log}"
        );
        rig.ring_cq(CQN, CqCommand::INCREMENT, waiting);
        arm(&mut rig, CqCommand::ARM);
        assert_eq!(events(&mut rig, &mut 0), [], "all consumed");
    }
}

#[test]
fn a_ring_that_is_too_small_for_what_waits_is_refused() {
    let (mut rig, _, mut qp) = rig();
    complete(&mut rig, &mut qp, 5);
    assert_eq!(resize(&mut rig, 0x20_0000, 2), CmdStatus::BAD_SIZE);
    assert_eq!(resize(&mut rig, 0x20_0000, 18), CmdStatus::EXCEED_LIM);
    complete(&mut rig, &mut qp, 1);
    let shown: CqContext = rig.ask(Opcode::QUERY_CQ, CQN);
    assert_eq!((shown.log_size(), shown.producer_index()), (LOG_CQ, 6));
}

#[test]
fn a_ring_that_may_not_be_written_is_an_access_violation() {
    let (mut rig, _, mut qp) = rig();
    assert_eq!(resize(&mut rig, HOST_END - 64, 1), CmdStatus::OK);
    complete(&mut rig, &mut qp, 1);
    let mut new = ResizeCq::ZERO;
    new.set_start_address(HOST_END)
        .set_log_size(3)
        .set_lkey(ALL);
    assert_eq!(rig.give(Opcode::RESIZE_CQ, 1, CQN, &new), CmdStatus::OK);
    complete(&mut rig, &mut qp, 1);
    let events = rig.take_events(EQ_ASYNC, &mut 1);
    assert_eq!(
        (events[0].event_type(), events[0].syndrome()),
        (EventType::CQ_ERROR, 2)
    );
    let shown: CqContext = rig.ask(Opcode::QUERY_CQ, CQN);
    assert_eq!(shown.status(), QueueStatus::WRITE_FAILURE);
}

#[test]
fn a_cq_context_is_handed_over_once_and_taken_back() {
    let (mut rig, _, _) = rig();
    let context: CqContext = rig.ask(Opcode::QUERY_CQ, CQN);
    assert_eq!(
        rig.give(Opcode::SW2HW_CQ, 0, 0x20, &context),
        CmdStatus::BAD_RES_STATE
    );
    assert_eq!(
        rig.give(Opcode::SW2HW_CQ, 0, 0x0f, &context),
        CmdStatus::BAD_RESOURCE
    );
    let mut large = context;
    large.set_log_size(18);
    assert_eq!(
        rig.give(Opcode::SW2HW_CQ, 0, 0x21, &large),
        CmdStatus::EXCEED_LIM
    );
    let mut stray = context;
    stray.set_completion_eqn(32);
    assert_eq!(
        rig.give(Opcode::SW2HW_CQ, 0, 0x21, &stray),
        CmdStatus::BAD_PARAM
    );
    assert_eq!(
        rig.plain(Opcode::QUERY_CQ, 0x20),
        CmdStatus::BAD_RES_STATE,
        "another generation"
    );
    assert_eq!(rig.plain(Opcode::HW2SW_CQ, CQN), CmdStatus::OK);
    assert_eq!(rig.bus.reports.len(), 1, "a QP still had it");
    assert_eq!(rig.plain(Opcode::HW2SW_CQ, CQN), CmdStatus::OK, "again");
}
