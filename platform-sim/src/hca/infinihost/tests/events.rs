//! Events, and the interrupts that they raise. infinihost 3.2, 4.1, 7.

use super::*;
use crate::hca::infinihost::Config;
use crate::machine::PciFunction;
use core_ib::Guid;
use hca_abi::infinihost::cmd::{CmdStatus, Opcode};
use hca_abi::infinihost::doorbell::EqCommand;
use hca_abi::infinihost::eq::{EqContext, EqState, QueueStatus};
use hca_abi::infinihost::eqe::EventType;
use hca_abi::infinihost::regs::{self, CatasKind};

fn nop(rig: &mut Rig, token: u16) {
    rig.post(Opcode::NOP, 0, 0x1f, 0, Some(token));
}

#[test]
fn a_nop_by_event_comes_with_its_token_and_a_message() {
    let mut rig = Rig::card(1);
    rig.start(true);
    nop(&mut rig, 0x1234);
    assert_eq!(
        rig.read32(0, regs::HCR_CONTROL as u64) & 0x0080_0000,
        0,
        "GO"
    );
    let eqe = rig.eqe(EQ_COMMAND, 0).unwrap();
    assert_eq!(eqe.event_type(), EventType::COMMAND);
    assert_eq!(
        (eqe.token(), eqe.syndrome(), eqe.out_param()),
        (0x1234, 0, 0)
    );
    assert_eq!(rig.messages(), [2]);
    assert!(!rig.bus.pin);
    nop(&mut rig, 0x1235);
    assert_eq!(rig.messages(), [0; 0], "fired, and not armed again");
    rig.arm_eq(EQ_COMMAND.0);
    assert_eq!(rig.messages(), [2], "events slipped in between");
    assert_eq!(rig.take_events(EQ_COMMAND, &mut 0).len(), 2);
    rig.arm_eq(EQ_COMMAND.0);
    assert_eq!(rig.messages(), [0; 0]);
    nop(&mut rig, 0x1236);
    assert_eq!(rig.messages(), [2]);
    assert!(rig.hca.ledger().is_empty(), "{}", rig.hca.ledger());
}

/// infinihost 4.3, byte by byte.
#[test]
fn a_command_event_lies_in_memory_as_published() {
    let mut rig = Rig::card(1);
    rig.start(true);
    rig.store(
        IN,
        &[
            0xff_u8, 0x12, 0x40, 0x1b, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        ],
    );
    rig.post(Opcode::MGID_HASH, 0, 0, IN, Some(0x1234));
    let mut expected = [0; 32];
    (expected[1], expected[6], expected[7]) = (0x0a, 0x12, 0x34);
    expected[23] = 0x09; // 0xff12 ^ 0x401b = 0xbf09, of 64 buckets
    assert_eq!(rig.load::<[u8; 32]>(EQ_COMMAND.1), expected);
}

#[test]
fn a_refusal_by_event_carries_its_status() {
    let mut rig = Rig::card(1);
    rig.start(true);
    rig.post(Opcode::HW2SW_EQ, 0, 32, 0, Some(7));
    let eqe = rig.eqe(EQ_COMMAND, 0).unwrap();
    assert_eq!((eqe.token(), eqe.syndrome()), (7, CmdStatus::BAD_INDEX.0));
}

#[test]
fn a_nop_by_event_asserts_the_pin_until_it_is_cleared_and_names_its_eq() {
    let mut rig = Rig::card(1);
    rig.start(false);
    nop(&mut rig, 1);
    assert!(rig.bus.pin);
    assert_eq!(rig.read32(0, 0x8_0704), 1 << EQ_COMMAND.0);
    rig.write32(0, 0xf_00d8 + 4, 1 << 30);
    assert!(rig.bus.pin, "that is another pin");
    rig.write32(0, 0xf_00d8 + 4, 1 << 31);
    assert!(!rig.bus.pin);
    assert_eq!(rig.read32(0, 0x8_0704), 1 << EQ_COMMAND.0, "cause stays");
    rig.write32(0, 0x8_070c, 1 << EQ_COMMAND.0);
    assert_eq!(rig.read32(0, 0x8_0704), 0);
    rig.take_events(EQ_COMMAND, &mut 0);
    rig.arm_eq(EQ_COMMAND.0);
    assert!(!rig.bus.pin);
    nop(&mut rig, 2);
    assert!(rig.bus.pin);
}

#[test]
fn an_eq_that_was_created_fired_raises_no_interrupt() {
    let mut rig = Rig::card(1);
    rig.start(true);
    let mut context = eq_context(0x2_0000, 0x80);
    context.set_state(EqState::FIRED).set_translate(false);
    rig.fresh_ring(0x2_0000, 1 << LOG_EQ);
    assert_eq!(rig.give(Opcode::SW2HW_EQ, 0, 0, &context), CmdStatus::OK);
    rig.map_eq(0, EventType::COMMAND.mask());
    nop(&mut rig, 9);
    assert_eq!(rig.eqe((0, 0x2_0000), 0).unwrap().token(), 9);
    assert_eq!(rig.messages(), [0; 0]);
}

#[test]
fn events_that_find_the_ring_full_wait_and_none_is_lost() {
    let mut rig = Rig::card(1);
    rig.start(true);
    for token in 0..40 {
        nop(&mut rig, token);
    }
    let mut index = 0;
    let mut tokens = Vec::new();
    while tokens.len() < 40 {
        let events = rig.take_events(EQ_COMMAND, &mut index);
        assert!(!events.is_empty(), "after {}", tokens.len());
        tokens.extend(events.iter().map(|eqe| eqe.token()));
    }
    assert_eq!(tokens, (0..40).collect::<Vec<_>>());
}

#[test]
fn contexts_are_shown_as_they_are_and_taken_back_for_good() {
    let mut rig = Rig::card(1);
    rig.start(true);
    nop(&mut rig, 1);
    nop(&mut rig, 2);
    let shown: EqContext = rig.ask(Opcode::QUERY_EQ, EQ_COMMAND.0.into());
    assert_eq!((shown.producer_index(), shown.consumer_index()), (2, 0));
    assert_eq!((shown.state(), shown.owner()), (EqState::FIRED, 1));
    assert_eq!(
        rig.give(Opcode::SW2HW_EQ, 0, EQ_COMMAND.0.into(), &shown),
        CmdStatus::BAD_RES_STATE
    );
    let last: EqContext = rig.ask(Opcode::HW2SW_EQ, EQ_COMMAND.0.into());
    assert_eq!((last.producer_index(), last.owner()), (2, 0));
    nop(&mut rig, 3);
    assert_eq!(rig.eqe(EQ_COMMAND, 2), None);
    assert_eq!(rig.hca.ledger().get("event COMMAND lost: no EQ 3"), 1);
    assert_eq!(
        rig.plain(Opcode::HW2SW_EQ, EQ_COMMAND.0.into()),
        CmdStatus::OK,
        "again"
    );
    assert_eq!(
        rig.plain(Opcode::QUERY_EQ, EQ_COMMAND.0.into()),
        CmdStatus::BAD_RES_STATE
    );
}

#[test]
fn an_eq_context_without_sense_is_refused() {
    let mut rig = Rig::card(1);
    rig.start(true);
    let bad: [(Change<EqContext>, CmdStatus); 4] = [
        (|context| context.set_log_size(18), CmdStatus::EXCEED_LIM),
        (|context| context.set_log_size(0), CmdStatus::BAD_PARAM),
        (|context| context.set_intr(0x50), CmdStatus::BAD_PARAM),
        (|context| context.set_uar_page(2048), CmdStatus::BAD_PARAM),
    ];
    for (change, status) in bad {
        let mut context = eq_context(0x2_0000, 0x80);
        change(&mut context);
        assert_eq!(rig.give(Opcode::SW2HW_EQ, 0, 9, &context), status);
    }
}

#[test]
fn a_doorbell_through_the_wrong_page_is_dropped_and_told() {
    let mut rig = Rig::card(1);
    rig.start(true);
    rig.ring(u64::from(UAR) + 1, regs::uar::EQ, 0x0200_0003_0000_0000);
    let eqe = rig.eqe(EQ_ASYNC, 0).unwrap();
    assert_eq!(
        (eqe.event_type(), eqe.syndrome()),
        (EventType::LOCAL_CATASTROPHIC, 2)
    );
    assert_eq!(rig.bus.reports.len(), 1);
}

#[test]
fn an_eq_that_cannot_be_written_fails_and_another_tells() {
    let mut rig = Rig::card(1);
    rig.start(true);
    rig.plain(Opcode::HW2SW_EQ, EQ_COMMAND.0.into());
    let context = eq_context(HOST_END, 0x82);
    assert_eq!(
        rig.give(Opcode::SW2HW_EQ, 0, EQ_COMMAND.0.into(), &context),
        CmdStatus::OK
    );
    nop(&mut rig, 1);
    let eqe = rig.eqe(EQ_ASYNC, 0).unwrap();
    assert_eq!(
        (eqe.event_type(), eqe.syndrome()),
        (EventType::LOCAL_CATASTROPHIC, 3)
    );
    let shown: EqContext = rig.ask(Opcode::QUERY_EQ, EQ_COMMAND.0.into());
    assert_eq!(shown.status(), QueueStatus::WRITE_FAILURE);
    assert_eq!(rig.read32(0, 0xf_0800), 0);
    rig.plain(Opcode::HW2SW_MPT, ALL);
    rig.ring(u64::from(UAR) + 1, regs::uar::EQ, 0x0200_0003_0000_0000);
    assert_eq!(rig.read32(0, 0xf_0800), 0x0300_0000, "nobody else can tell");
    assert_eq!(rig.plain(Opcode::NOP, 0), CmdStatus::INTERNAL_ERR);
}

#[test]
fn an_index_that_is_set_beyond_what_was_produced_is_reported() {
    let mut rig = Rig::card(1);
    rig.start(true);
    rig.ring_eq(EqCommand::SET_INDEX, EQ_ASYNC.0, 3);
    assert_eq!(rig.bus.reports.len(), 1);
}

/// infinihost 3.2: Linux does so when no interrupt comes after its NOP.
#[test]
fn after_messages_that_do_not_come_the_same_eqs_are_set_up_with_the_pin() {
    let mut rig = Rig::card(1);
    rig.start(true);
    rig.config_write(0x40, &[0, 0, 0, 0]);
    nop(&mut rig, 1);
    assert!(rig.messages().is_empty() && !rig.bus.pin);
    assert_eq!(rig.hca.ledger().get("message 2 lost: not in use"), 1);
    for (eqn, mask) in [(EQ_ASYNC.0, 0x1f_43fe), (EQ_COMMAND.0, 0x400)] {
        let unmap = 1 << 31 | u32::from(eqn);
        assert_eq!(
            rig.command(Opcode::MAP_EQ, 0, unmap, mask).status,
            CmdStatus::OK
        );
    }
    for eq in [EQ_COMPLETION, EQ_ASYNC, EQ_COMMAND] {
        assert_eq!(rig.plain(Opcode::HW2SW_EQ, eq.0.into()), CmdStatus::OK);
        rig.create_eq(eq, 31);
    }
    rig.map_eq(EQ_COMMAND.0, 0x400);
    rig.arm_eq(EQ_COMMAND.0);
    nop(&mut rig, 2);
    assert_eq!(rig.eqe(EQ_COMMAND, 0).unwrap().token(), 2);
    assert!(rig.bus.pin);
}

#[test]
fn a_slow_card_takes_sixteen_commands_and_holds_the_block_until_one_is_done() {
    let mut config = Config::new(Guid(1));
    config.command_time = core::time::Duration::from_micros(50);
    let mut rig = Rig::new(config);
    rig.start(true);
    let go = |rig: &mut Rig| rig.read32(0, regs::HCR_CONTROL as u64) & 0x0080_0000 != 0;
    for token in 0..16 {
        assert!(!go(&mut rig), "{token}");
        nop(&mut rig, token);
    }
    assert!(go(&mut rig));
    assert_eq!(rig.eqe(EQ_COMMAND, 0), None);
    rig.settle();
    assert!(!go(&mut rig));
    let mut index = 0;
    let mut tokens = Vec::new();
    while tokens.len() < 16 {
        let events = rig.take_events(EQ_COMMAND, &mut index);
        tokens.extend(events.iter().map(|eqe| eqe.token()));
    }
    assert_eq!(tokens, (0..16).collect::<Vec<_>>());
}

#[test]
fn a_catastrophe_is_told_by_event_and_buffer_and_ends_with_a_reset() {
    let mut rig = Rig::card(1);
    rig.start(true);
    rig.messages();
    rig.hca.inject_catastrophic(&mut rig.bus, CatasKind::DDR);
    let eqe = rig.eqe(EQ_ASYNC, 0).unwrap();
    assert_eq!(
        (eqe.event_type(), eqe.syndrome()),
        (EventType::LOCAL_CATASTROPHIC, 4)
    );
    assert_eq!(rig.messages(), [1]);
    assert_eq!(rig.read32(0, 0xf_0800), 0x0400_0000);
    assert_eq!(rig.plain(Opcode::NOP, 0), CmdStatus::INTERNAL_ERR);
    rig.arm_eq(EQ_ASYNC.0);
    assert_eq!(rig.messages(), [0; 0], "doorbells are lost");
    rig.write32(0, regs::RESET as u64, 1);
    rig.configure();
    assert_eq!(rig.read32(0, 0xf_0800), 0);
    rig.start(true);
    assert_eq!(rig.plain(Opcode::NOP, 0), CmdStatus::OK);
}
