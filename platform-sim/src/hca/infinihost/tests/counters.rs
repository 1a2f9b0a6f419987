//! M-mode events and completions: counters in registers and records, and when something is told. infinihost 2.5, 2.9, 2.10,
//! 4.1, 4.5, 7.

use super::memfree::*;
use super::verbs::{Cq, LOG_CQ};
use super::*;
use crate::hca::infinihost::Variant;
use crate::machine::PciFunction;
use hca_abi::infinihost::cmd::{CmdStatus, Opcode};
use hca_abi::infinihost::cq::{CqContext, CqState};
use hca_abi::infinihost::doorbell::MArm;
use hca_abi::infinihost::eq::{EqContext, EqState, QueueStatus};
use hca_abi::infinihost::eqe::{CqSyndrome, EventType};
use hca_abi::infinihost::resize_cq::ResizeCq;
use hca_abi::infinihost::wqe::{WqeOpcode, next};

fn rig() -> Rig {
    let mut rig = Rig::memfree(Variant::Sinai);
    rig.m_start(true);
    rig
}

fn nops(rig: &mut Rig, count: usize) {
    for token in 0..count {
        rig.post(Opcode::NOP, 0, 0x1f, 0, Some(token as u16));
    }
}

#[test]
fn a_ring_of_events_holds_its_whole_size_and_the_rest_waits() {
    let mut rig = rig();
    nops(&mut rig, 20);
    assert!((0..16).all(|index| rig.eqe(EQ_COMMAND, index).is_some()));
    let shown: EqContext = rig.ask(Opcode::QUERY_EQ, EQ_COMMAND.0.into());
    assert_eq!((shown.producer_index(), shown.consumer_index()), (16, 0));
    let mut index = 0;
    let events = rig.m_take_events(EQ_COMMAND, &mut index);
    assert_eq!((events.len(), events[15].token()), (16, 15));
    let events = rig.m_take_events(EQ_COMMAND, &mut index);
    assert_eq!((events.len(), events[3].token()), (4, 19));
    let shown: EqContext = rig.ask(Opcode::QUERY_EQ, EQ_COMMAND.0.into());
    let indices = (shown.producer_index(), shown.consumer_index());
    assert_eq!(indices, (20, 20), "not reduced by the size");
    assert_eq!((shown.m_pd(), shown.status()), (PD, QueueStatus::OK));
}

#[test]
fn consuming_more_events_than_there_are_is_reported_and_changes_nothing() {
    let mut rig = rig();
    nops(&mut rig, 1);
    rig.write32(0, EQ_SET_CI + u64::from(EQ_COMMAND.0) * 8, 2);
    assert_eq!(rig.bus.reports, ["EQ 3 consumes more than there is"]);
    let shown: EqContext = rig.ask(Opcode::QUERY_EQ, EQ_COMMAND.0.into());
    assert_eq!(shown.consumer_index(), 0);
}

#[test]
fn an_event_queue_interrupts_once_until_it_is_armed_and_at_once_if_something_came_meanwhile() {
    let mut rig = rig();
    let state = |rig: &mut Rig| {
        let shown: EqContext = rig.ask(Opcode::QUERY_EQ, EQ_COMMAND.0.into());
        shown.state()
    };
    assert_eq!(state(&mut rig), EqState::M_ARMED);
    nops(&mut rig, 2);
    assert_eq!(rig.messages(), [2], "once");
    assert_eq!(state(&mut rig), EqState::M_FIRED);
    rig.m_arm_eqs();
    assert_eq!(rig.messages(), [2], "both are still there");
    rig.m_take_events(EQ_COMMAND, &mut 0);
    rig.write32(0, EQ_ARM + 4, 0);
    assert_eq!(state(&mut rig), EqState::M_FIRED, "zeros have no effect");
    rig.m_arm_eqs();
    assert_eq!(state(&mut rig), EqState::M_ARMED);
    assert_eq!(rig.messages(), []);
    nops(&mut rig, 1);
    assert_eq!(rig.messages(), [2]);
}

#[test]
fn the_pin_is_asserted_until_it_is_cleared_and_there_is_no_cause_register() {
    let mut rig = Rig::memfree(Variant::Arbel);
    rig.m_start(false);
    nops(&mut rig, 1);
    assert!(rig.bus.pin);
    assert_eq!(rig.read32(0, 0x8_0704), 0);
    rig.write32(0, 0xf_00dc, 1 << 31);
    assert!(!rig.bus.pin);
    rig.m_take_events(EQ_COMMAND, &mut 0);
    rig.m_arm_eqs();
    assert!(!rig.bus.pin);
    nops(&mut rig, 1);
    assert!(rig.bus.pin);
}

/// A queue pair whose requests do nothing but complete.
fn completing(rig: &mut Rig) -> (Cq, verbs::Qp) {
    let cq = rig.m_create_cq(0x40_0020);
    let qp = rig.m_ud_qp(0x12_3018, &cq);
    (cq, qp)
}

fn complete(rig: &mut Rig, qp: &mut verbs::Qp, count: usize) {
    for _ in 0..count {
        rig.m_post_send(qp, WqeOpcode::NOP, &[vec![]], next::ALWAYS_ONE);
    }
}

#[test]
fn room_in_a_ring_of_completions_is_what_the_record_says() {
    let mut rig = rig();
    let (mut cq, mut qp) = completing(&mut rig);
    complete(&mut rig, &mut qp, 16);
    let shown: CqContext = rig.ask(Opcode::QUERY_CQ, cq.cqn);
    assert_eq!((shown.producer_index(), shown.consumer_index()), (16, 0));
    for _ in 0..10 {
        assert_eq!(rig.m_poll(&mut cq).unwrap().qpn(), 0x12_3018);
    }
    complete(&mut rig, &mut qp, 10);
    let shown: CqContext = rig.ask(Opcode::QUERY_CQ, cq.cqn);
    assert_eq!((shown.producer_index(), shown.consumer_index()), (26, 10));
    assert_eq!(shown.status(), QueueStatus::OK);
    assert_eq!(rig.bus.reports, [""; 0]);
}

#[test]
fn an_overrun_is_told_where_errors_are_mapped_to_and_stops_the_queue_pairs() {
    let mut rig = rig();
    let (cq, mut qp) = completing(&mut rig);
    complete(&mut rig, &mut qp, 17);
    let shown: CqContext = rig.ask(Opcode::QUERY_CQ, cq.cqn);
    assert_eq!(shown.status(), QueueStatus::OVERFLOW);
    let events = rig.m_take_events(EQ_ASYNC, &mut 0);
    assert_eq!(events[0].event_type(), EventType::CQ_ERROR);
    assert_eq!(events[0].number(), cq.cqn);
    assert_eq!(CqSyndrome(events[0].syndrome()), CqSyndrome::OVERRUN);
    assert_eq!(events[1].event_type(), EventType::WQ_CATASTROPHIC);
}

#[test]
fn a_record_that_says_nonsense_or_is_not_mapped_says_nothing() {
    let mut rig = rig();
    let (cq, mut qp) = completing(&mut rig);
    complete(&mut rig, &mut qp, 3);
    let place = record(SET_CI + (cq.cqn & 0x7f));
    let consumer = |rig: &mut Rig| {
        let shown: CqContext = rig.ask(Opcode::QUERY_CQ, 0x40_0020);
        shown.consumer_index()
    };
    rig.store(place, &4_u32.to_be_bytes());
    assert_eq!(consumer(&mut rig), 0, "more than there are");
    rig.store(place, &2_u32.to_be_bytes());
    assert_eq!(consumer(&mut rig), 2);
    rig.store(place, &1_u32.to_be_bytes());
    assert_eq!(consumer(&mut rig), 2, "back");
    rig.command(Opcode::UNMAP_ICM, 0, 64, UARC);
    assert_eq!(consumer(&mut rig), 2);
    assert_eq!(rig.bus.reports, [""; 0]);
}

#[test]
fn arming_tells_once_and_at_once_if_there_is_something() {
    let mut rig = rig();
    let (mut cq, mut qp) = completing(&mut rig);
    let state = |rig: &mut Rig| {
        let shown: CqContext = rig.ask(Opcode::QUERY_CQ, 0x40_0020);
        shown.state()
    };
    let mut index = 0;
    let mut events = |rig: &mut Rig| {
        let events = rig.m_take_events(EQ_COMPLETION, &mut index);
        rig.m_arm_eqs();
        events.iter().map(|eqe| eqe.number()).collect::<Vec<_>>()
    };
    complete(&mut rig, &mut qp, 1);
    assert_eq!(events(&mut rig), [], "nobody asked");
    rig.m_arm(&cq, 1, MArm::ANY);
    assert_eq!(events(&mut rig), [cq.cqn], "it is there already");
    assert_eq!(state(&mut rig), CqState::FIRED);
    rig.m_poll(&mut cq).unwrap();
    rig.m_arm(&cq, 1, MArm::ANY);
    complete(&mut rig, &mut qp, 1);
    assert_eq!(events(&mut rig), [], "a repeat of an arming that was told");
    rig.m_arm(&cq, 2, MArm::ANY);
    assert_eq!(events(&mut rig), [cq.cqn]);
    rig.m_poll(&mut cq).unwrap();
    rig.m_arm(&cq, 3, MArm::ANY);
    assert_eq!(state(&mut rig), CqState::M_ARMED);
    complete(&mut rig, &mut qp, 2);
    assert_eq!(events(&mut rig), [cq.cqn], "the first of the two");
}

/// As perftest does: told, armed anew, and only then polled.
#[test]
fn arming_before_polling_waits_for_what_no_event_told_of() {
    let mut rig = rig();
    let (mut cq, mut qp) = completing(&mut rig);
    let mut index = 0;
    for sequence in [1, 2, 3, 0, 1] {
        rig.m_arm(&cq, sequence, MArm::ANY);
        assert_eq!(rig.m_take_events(EQ_COMPLETION, &mut index), []);
        complete(&mut rig, &mut qp, 1);
        assert_eq!(rig.m_take_events(EQ_COMPLETION, &mut index).len(), 1);
        if sequence == 3 {
            while rig.m_poll(&mut cq).is_some() {}
        }
    }
}

#[test]
fn solicited_arming_sleeps_through_sends_and_wakes_for_an_error() {
    let mut rig = rig();
    let (mut cq, mut qp) = completing(&mut rig);
    rig.m_arm(&cq, 1, MArm::SOLICITED);
    let shown: CqContext = rig.ask(Opcode::QUERY_CQ, cq.cqn);
    assert_eq!(shown.state(), CqState::M_ARMED_SOLICITED);
    complete(&mut rig, &mut qp, 1);
    let mut index = 0;
    assert_eq!(rig.m_take_events(EQ_COMPLETION, &mut index), []);
    rig.m_post_send(&mut qp, WqeOpcode::RDMA_READ, &[vec![0; 48]], 1);
    assert_eq!(rig.m_take_events(EQ_COMPLETION, &mut index).len(), 1);
    rig.m_poll(&mut cq).unwrap();
    rig.m_poll_error(&mut cq);
    rig.m_arm(&cq, 2, MArm::ARM_N);
    assert_eq!(
        rig.hca.ledger().iter().count(),
        1,
        "arming for the nth: nobody uses it"
    );
}

#[test]
fn a_ring_that_is_changed_goes_on_at_its_counter() {
    let mut rig = rig();
    let (mut cq, mut qp) = completing(&mut rig);
    complete(&mut rig, &mut qp, 16);
    for _ in 0..13 {
        rig.m_poll(&mut cq).unwrap();
    }
    let at = 0x1e_0000;
    let mut new = ResizeCq::ZERO;
    new.set_start_address(at).set_log_size(1).set_lkey(ALL_M);
    let resize = |rig: &mut Rig, new: &ResizeCq| rig.give(Opcode::RESIZE_CQ, 1, cq.cqn, new);
    assert_eq!(resize(&mut rig, &new), CmdStatus::BAD_SIZE, "three wait");
    new.set_log_size(LOG_CQ + 1);
    rig.fresh_ring(at, 32);
    assert_eq!(resize(&mut rig, &new), CmdStatus::OK);
    complete(&mut rig, &mut qp, 1);
    let owner = |rig: &Rig, place: u64| rig.load::<[u8; 32]>(at + place * 32)[31];
    assert_eq!((owner(&rig, 16), owner(&rig, 0)), (0, 0x80));
    let shown: CqContext = rig.ask(Opcode::QUERY_CQ, cq.cqn);
    assert_eq!((shown.producer_index(), shown.consumer_index()), (17, 13));
}

#[test]
fn a_cq_whose_record_is_in_another_context_is_refused() {
    let mut rig = rig();
    let mut context = m_cq_context(0x21, 0x12_1000);
    context.set_set_ci_record(512);
    let create = |rig: &mut Rig, context: &CqContext| rig.give(Opcode::SW2HW_CQ, 0, 0x21, context);
    assert_eq!(create(&mut rig, &context), CmdStatus::BAD_PARAM);
    context.set_set_ci_record(511).set_arm_record(u32::MAX);
    assert_eq!(create(&mut rig, &context), CmdStatus::BAD_PARAM);
    context.set_arm_record(0).set_uar_page(8);
    assert_eq!(create(&mut rig, &context), CmdStatus::BAD_PARAM, "8 UARs");
    context.set_uar_page(UAR);
    assert_eq!(create(&mut rig, &context), CmdStatus::OK);
}

#[test]
fn a_context_without_a_page_behind_it_is_an_internal_error() {
    let mut rig = rig();
    let context = m_cq_context(0x21, 0x12_1000);
    rig.command(Opcode::UNMAP_ICM, 0, 64, CQC);
    let status = rig.give(Opcode::SW2HW_CQ, 0, 0x21, &context);
    assert_eq!(status, CmdStatus::INTERNAL_ERR);
    rig.command(Opcode::UNMAP_ICM, 0, 1, EQC);
    let status = rig.give(Opcode::SW2HW_EQ, 0, 7, &m_eq_context(0x1_4000, 31));
    assert_eq!(status, CmdStatus::INTERNAL_ERR);
    assert_eq!(
        rig.bus.reports,
        [
            "no page is mapped at ICM address 0x200840, where context 0x21 is",
            "no page is mapped at ICM address 0x4001c0, where context 0x7 is",
        ]
    );
}
