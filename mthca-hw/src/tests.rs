//! The driver on the fake: opening and closing with failures anywhere, commands, and a device that lies.

extern crate std;

use crate::cmd::table::{Nop, QueryAdapter, SysEn};
use crate::cmd::{Cause, Channel};
use crate::fake::{GUID, Machine, Reply};
use crate::health::End;
use crate::{Hca, Interrupts, OpenCause, OpenError, Profile};
use core::time::Duration;
use core_ib::platform::{Caching, DmaAddr, NoWake, Platform};
use core_ib::verbs::{
    Access, AsyncEvent, CqInit, Device, DeviceModify, MrInit, Owner, PortEvent, QpCaps, QpInit,
    QpType, Signaling, VerbsError,
};
use hca_abi::infinihost::cmd::{CmdStatus, Opcode};
use hca_abi::infinihost::cq::CqContext;
use hca_abi::infinihost::eqe::{Eqe, EventType, PortChange};
use hca_abi::infinihost::regs;
use proptest::prelude::*;
use std::vec::Vec;
use zerocopy::FromBytes;

const SECOND: Duration = Duration::from_secs(1);

pub(crate) fn open(machine: &Machine) -> Hca<'_, Machine> {
    Hca::open(machine, &NoWake, &Profile::SMALL).unwrap()
}

fn open_with(machine: &Machine, interrupts: Interrupts) -> Result<Interrupts, OpenError> {
    let profile = Profile {
        interrupts,
        ..Profile::SMALL
    };
    Hca::open(machine, &NoWake, &profile).map(|hca| hca.interrupts())
}

fn is_as_it_was_found(machine: &Machine) -> bool {
    machine.pieces_out() == 0 && machine.bound() == 0 && machine.firmware().debts == 0
}

/// One of each mode.
const BOTH: [fn() -> Machine; 2] = [Machine::new, Machine::sinai];

#[test]
fn opening_and_closing_leaves_the_hca_and_the_machine_as_they_were() {
    for (machine, name) in BOTH.map(|make| make()).iter().zip(["MT23108", "MT25204"]) {
        let hca = open(machine);
        assert_eq!(hca.chip().name, name);
        assert_eq!(hca.query_device().node_guid, GUID);
        assert_eq!(hca.interrupts(), Interrupts::Messages);
        assert_eq!(machine.bound(), 3);
        hca.close().unwrap();
        assert!(is_as_it_was_found(machine));
    }
}

#[test]
fn a_mem_free_hca_gives_its_memory_back_in_the_order_of_the_reference() {
    let machine = Machine::sinai();
    drop(open(&machine));
    let firmware = machine.firmware();
    let of_memory = [
        Opcode::MAP_FA,
        Opcode::RUN_FW,
        Opcode::SET_ICM_SIZE,
        Opcode::MAP_ICM_AUX,
        Opcode::INIT_HCA,
        Opcode::CLOSE_HCA,
        Opcode::UNMAP_ICM,
        Opcode::UNMAP_ICM_AUX,
        Opcode::UNMAP_FA,
    ];
    let seen = firmware.seen.iter().map(|seen| seen.opcode);
    let mut seen: Vec<Opcode> = seen.filter(|opcode| of_memory.contains(opcode)).collect();
    seen.dedup();
    assert_eq!(seen, of_memory, "infinihost 9.2, 9.4");
}

#[test]
fn an_hca_that_does_not_interrupt_by_messages_is_tried_by_its_pin() {
    for (messages, id, expected) in [
        (32, 0x5a44_15b3, Interrupts::Messages),
        (2, 0x5a44_15b3, Interrupts::Pin),
        (0, 0x5a44_15b3, Interrupts::Pin),
        (32, 0x6282_15b3, Interrupts::Messages),
        (0, 0x6282_15b3, Interrupts::Pin),
    ] {
        let machine = Machine::with(messages, id);
        assert_eq!(open_with(&machine, Interrupts::Messages), Ok(expected));
        assert!(is_as_it_was_found(&machine));
    }
}

#[test]
fn completions_are_told_by_the_vector_of_their_cq_or_the_first_where_messages_are_few() {
    for (messages, expected) in [(32, [0, 3, 4]), (4, [0, 3, 0]), (3, [0, 0, 0])] {
        let machine = Machine::with(messages, 0x6274_15b3);
        let profile = Profile {
            completion_vectors: 3,
            ..Profile::SMALL
        };
        let hca = Hca::open(&machine, &NoWake, &profile).unwrap();
        assert_eq!(hca.query_device().completion_vectors, 3);
        assert_eq!(
            [0, 1, 2].map(|vector| hca.message_of(vector)),
            expected.map(Some)
        );
        let init = |vector| CqInit {
            cqe: 15,
            vector,
            owner: Owner::Kernel,
        };
        for (vector, place) in (0..).zip([0, 3, 4]) {
            let cq = hca.create_cq(&init(vector)).unwrap().handle;
            let context = {
                let firmware = machine.firmware();
                let last = firmware.seen.last().unwrap();
                CqContext::read_from_bytes(&last.input[..]).unwrap()
            };
            assert_eq!(context.completion_eqn(), 1 + place);
            let mut eqe = Eqe::ZERO;
            eqe.set_event_type(EventType::COMPLETION)
                .set_number(context.cqn());
            machine.event(1 + place, eqe);
            machine.deliver();
            assert!(hca.take_cq_event(cq), "vector {vector} of {messages}");
            hca.destroy_cq(cq).unwrap();
        }
        let beyond = hca.create_cq(&init(3));
        assert!(matches!(
            beyond,
            Err(VerbsError::InvalidAttr {
                found: 3,
                allowed: 2,
                ..
            })
        ));
        hca.close().unwrap();
        assert!(is_as_it_was_found(&machine));
    }
}

#[test]
fn an_hca_that_does_not_interrupt_at_all_can_be_polled_and_nothing_else() {
    let machine = Machine::new();
    machine.firmware().deaf = true;
    let error = open_with(&machine, Interrupts::Messages).unwrap_err();
    assert_eq!(error.cause, OpenCause::NoInterrupt);
    let nops = |machine: &Machine| {
        let firmware = machine.firmware();
        let nops = firmware
            .seen
            .iter()
            .filter(|seen| seen.opcode == Opcode::NOP);
        nops.count()
    };
    assert_eq!(nops(&machine), 2, "messages, then the pin");
    assert!(is_as_it_was_found(&machine));
    assert_eq!(open_with(&machine, Interrupts::None), Ok(Interrupts::None));
    assert!(is_as_it_was_found(&machine));
}

#[test]
fn a_failure_at_any_step_leaves_the_hca_as_it_was_found() {
    BOTH.into_iter().for_each(fails_at_any_step);
}

fn fails_at_any_step(make: fn() -> Machine) {
    let commands = {
        let machine = make();
        open(&machine);
        machine.firmware().seen.len()
    };
    let refused = Reply::Status(CmdStatus::INTERNAL_ERR);
    for reply in [refused, Reply::Silence] {
        for nth in 0..commands {
            let machine = make();
            machine.firmware().nth = Some((nth, reply));
            let result = Hca::open(&machine, &NoWake, &Profile::SMALL).map(drop);
            let firmware = machine.firmware();
            let opcode = firmware.seen[nth].opcode;
            drop(firmware);
            if result.is_ok() {
                // It failed on the way down: what the HCA refused to undo, it keeps.
                machine.firmware().debts = 0;
            }
            assert!(
                is_as_it_was_found(&machine),
                "{opcode:?} {reply:?}: {result:?}"
            );
            // What fails on the way down does not fail the way up.
            if let Err(OpenError {
                cause: OpenCause::Command(error),
                ..
            }) = result
            {
                assert_eq!(error.opcode, opcode.0);
            }
        }
    }
}

#[test]
fn a_machine_that_runs_out_of_memory_anywhere_gets_all_of_it_back() {
    BOTH.into_iter().for_each(runs_out_of_memory);
}

fn runs_out_of_memory(make: fn() -> Machine) {
    let mut allowed = 0;
    loop {
        let machine = make();
        machine.allow_allocations(Some(allowed));
        let result = Hca::open(&machine, &NoWake, &Profile::SMALL).map(drop);
        assert!(is_as_it_was_found(&machine), "after {allowed}: {result:?}");
        match result {
            Ok(()) => break,
            Err(error) => assert!(matches!(error.cause, OpenCause::Platform(_)), "{error}"),
        }
        allowed += 1;
    }
    assert!(allowed > 20, "{allowed} allocations");
}

#[test]
fn what_is_not_an_infinihost_is_left_alone() {
    for (id, cause) in [
        (
            0x1234_15b3,
            OpenCause::NotAnInfiniHost {
                vendor: 0x15b3,
                device: 0x1234,
            },
        ),
        (
            0x5a44_8086,
            OpenCause::NotAnInfiniHost {
                vendor: 0x8086,
                device: 0x5a44,
            },
        ),
        (u32::MAX, OpenCause::Gone),
    ] {
        let machine = Machine::with(0, id);
        let error = Hca::open(&machine, &NoWake, &Profile::SMALL)
            .map(drop)
            .unwrap_err();
        assert_eq!(error.cause, cause);
        assert!(machine.firmware().seen.is_empty() && machine.firmware().resets == 0);
    }
}

#[test]
fn an_hca_is_busy_while_an_object_lives() {
    let machine = Machine::new();
    let hca = open(&machine);
    let pd = hca.alloc_pd().unwrap();
    let busy = VerbsError::Busy {
        object: "PD",
        holders: 1,
    };
    let (hca, error) = hca.close().unwrap_err();
    assert_eq!(error, busy);
    hca.dealloc_pd(pd).unwrap();
    hca.close().unwrap();
    assert!(is_as_it_was_found(&machine));
}

#[test]
fn dropping_an_hca_ends_what_lives_on_it() {
    for machine in BOTH.map(|make| make()) {
        let hca = open(&machine);
        let pd = hca.alloc_pd().unwrap();
        hca.whole_memory_key(pd).unwrap();
        drop(hca);
        assert!(is_as_it_was_found(&machine));
    }
}

// Commands.

fn channel(machine: &Machine, slots: usize) -> Channel<'_, Machine> {
    let dcs = machine.map(0, 0, 1 << 20, Caching::Uncached).unwrap();
    Channel::new(machine, dcs, slots, 60 * SECOND).unwrap()
}

fn polled<C: crate::cmd::Command>(
    channel: &Channel<'_, Machine>,
    command: &C,
) -> Result<C::Output, Cause> {
    let result = channel.execute(command, &|| ());
    result
        .map(|(output, _)| output)
        .map_err(|error| error.cause)
}

#[test]
fn a_polled_command_brings_its_output_and_its_status() {
    let machine = Machine::new();
    let channel = channel(&machine, 1);
    let adapter = polled(&channel, &QueryAdapter {}).unwrap();
    assert_eq!(adapter.inta_pin(), 31);
    machine.reply(Opcode::SYS_EN, [Reply::Status(CmdStatus::DDR_MEM_ERR)]);
    let refused = Cause::Refused(CmdStatus::DDR_MEM_ERR);
    assert_eq!(polled(&channel, &SysEn {}), Err(refused));
    assert!(channel.health().is_alive(), "a refusal is not an end");
}

#[test]
fn a_command_without_an_answer_is_the_end_of_the_hca() {
    let machine = Machine::new();
    let channel = channel(&machine, 2);
    machine.reply(Opcode::SYS_EN, [Reply::Silence]);
    assert_eq!(polled(&channel, &SysEn {}), Err(Cause::TimedOut));
    let now = machine.now();
    assert!(now.0 >= 60_000_000_000 && now.0 < 61_000_000_000);
    assert_eq!(channel.health().end(), Some(End::Failed));
    assert_eq!(polled(&channel, &Nop {}), Err(Cause::Dead));
    assert_eq!(machine.now(), now, "the next one is refused at once");
    assert_eq!(machine.firmware().seen.len(), 1, "and reaches no register");
}

#[test]
fn a_register_of_all_ones_is_a_device_that_is_gone() {
    let machine = Machine::new();
    let channel = channel(&machine, 1);
    machine.firmware().gone = true;
    assert_eq!(polled(&channel, &Nop {}), Err(Cause::Gone));
    assert_eq!(channel.health().end(), Some(End::Gone));
}

#[test]
fn an_answer_that_comes_too_late_is_counted_and_forgotten() {
    let machine = Machine::new();
    let hca = open(&machine);
    let limit = Duration::from_millis(100);
    machine.reply(Opcode::NOP, [Reply::Silence]);
    // A test of the interrupt is the one command that may be late.
    let core = hca.core_for_tests();
    let late = core.cmd.attempt(&Nop {}, limit);
    assert_eq!(late.map_err(|error| error.cause), Err(Cause::TimedOut));
    let token = machine.firmware().seen.last().unwrap().token;
    machine
        .firmware()
        .complete(token, CmdStatus::INTERNAL_ERR, 0);
    assert!(machine.deliver());
    assert_eq!(hca.strays().command, 1);
    // The slot is used again, and the old token with it does not pass.
    assert_eq!(core.cmd.attempt(&Nop {}, limit), Ok(()));
    let again = machine.firmware().seen.last().unwrap().token;
    assert_ne!(token, again);
    assert!(hca.check().is_ok());
}

#[test]
fn a_completion_without_a_command_is_counted() {
    let machine = Machine::new();
    let hca = open(&machine);
    for token in [0, 1, 17, 0xffff] {
        machine.firmware().complete(token, CmdStatus::OK, 0);
    }
    machine.deliver();
    assert_eq!(hca.strays().command, 4);
    assert!(hca.alloc_pd().is_ok());
}

#[test]
fn a_completion_whose_interrupt_was_lost_is_found_all_the_same() {
    let machine = Machine::new();
    let hca = open(&machine);
    machine.firmware().deaf = true;
    assert!(hca.alloc_pd().is_ok());
    assert!(hca.check().is_ok());
}

#[test]
fn a_command_that_times_out_wakes_everybody_and_the_reset_frees_everything() {
    let machine = Machine::new();
    let hca = open(&machine);
    let pd = hca.alloc_pd().unwrap();
    machine.reply(Opcode::SW2HW_MPT, [Reply::Silence]);
    assert_eq!(hca.alloc_pd(), Err(VerbsError::DeviceFailed));
    assert_eq!(hca.next_async_event(), Some(AsyncEvent::DeviceFatal));
    assert_eq!(hca.next_async_event(), None, "once");
    assert_eq!(hca.alloc_pd(), Err(VerbsError::DeviceFailed));
    assert_eq!(
        hca.dealloc_pd(pd),
        Ok(()),
        "ending an object of a dead HCA succeeds"
    );
    assert_eq!(machine.firmware().resets, 2);
    hca.close().unwrap();
    assert!(is_as_it_was_found(&machine));
    assert_eq!(machine.firmware().resets, 2, "one reset is enough");
}

#[test]
fn an_hca_that_is_pulled_out_is_gone_and_no_memory_with_it() {
    let machine = Machine::new();
    let hca = open(&machine);
    let pd = hca.alloc_pd().unwrap();
    machine.firmware().gone = true;
    assert_eq!(hca.query_port(1), Err(VerbsError::DeviceGone));
    assert_eq!(hca.next_async_event(), Some(AsyncEvent::DeviceGone));
    // What never reaches the HCA is refused all the same: verbs 13.2.
    let nothing = DeviceModify::default();
    assert_eq!(hca.modify_device(&nothing), Err(VerbsError::DeviceGone));
    assert_eq!(hca.dealloc_pd(pd), Ok(()));
    hca.close().unwrap();
    assert_eq!((machine.pieces_out(), machine.bound()), (0, 0));
}

#[test]
fn an_entry_in_the_error_buffer_is_found_by_who_polls() {
    let machine = Machine::new();
    let hca = open(&machine);
    machine.firmware().error_buffer = 0x0400_0000;
    hca.poll_events();
    assert_eq!(hca.check(), Err(VerbsError::DeviceFailed));
    assert_eq!(hca.next_async_event(), Some(AsyncEvent::DeviceFatal));
}

/// verbs 2.1: one more is a bad value, not a want of resources.
#[test]
fn a_qp_can_have_two_queues_of_the_length_that_is_reported_and_no_longer_ones() {
    let machine = Machine::new();
    let hca = open(&machine);
    let pd = hca.alloc_pd().unwrap();
    let init = CqInit {
        cqe: 3,
        vector: 0,
        owner: Owner::Kernel,
    };
    let cq = hca.create_cq(&init).unwrap().handle;
    let most = hca.query_device().max_qp_wr;
    let with = |max_send_wr, max_recv_wr| QpInit {
        qp_type: QpType::Ud,
        port: 1,
        send_cq: cq,
        recv_cq: cq,
        srq: None,
        caps: QpCaps {
            max_send_wr,
            max_recv_wr,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
        },
        signaling: Signaling::All,
        owner: Owner::Kernel,
    };
    for (send, recv) in [(most + 1, 1), (1, most + 1)] {
        let refused = hca.create_qp(pd, &with(send, recv));
        assert!(
            matches!(refused, Err(VerbsError::InvalidAttr { .. })),
            "{refused:?}"
        );
    }
    let qp = hca.create_qp(pd, &with(most, most)).unwrap();
    assert_eq!((qp.caps.max_send_wr, qp.caps.max_recv_wr), (most, most));
    drop(hca);
}

/// verbs 10.1.
/// Its translations are gone, and what lies at the beginning of the table is somebody else's.
#[test]
fn a_region_that_lost_its_pages_is_good_for_new_ones_or_for_deregistering_and_nothing_else() {
    for machine in BOTH.map(|make| make()) {
        let hca = open(&machine);
        let pd = hca.alloc_pd().unwrap();
        let access = Access::LOCAL_WRITE;
        let page = |at: u64| DmaAddr::new(at << 12);
        let pages: Vec<DmaAddr> = (1..=u64::from(Profile::SMALL.mtt_pages) + 8)
            .map(page)
            .collect();
        let init = |count: usize| MrInit {
            iova: 0,
            length: (count as u64) << 12,
            pages: &pages[..count],
            page_shift: 12,
            access,
        };
        // SAFETY: the fake HCA reaches no memory by key.
        let mr = unsafe { hca.reg_mr(pd, &init(1)) }.unwrap().handle;
        let (long, short) = (init(pages.len()), init(2));
        // SAFETY: as above.
        let again = |init, access| unsafe { hca.rereg_mr(mr, None, init, access) };
        let too_long = again(Some(&long), None);
        let entry = "mtt_pages";
        assert!(matches!(too_long, Err(VerbsError::NoResources { entry: e, .. }) if e == entry));
        let told = machine.firmware().seen.len();
        let object = "MR";
        let unusable = Err(VerbsError::InvalidState { object });
        assert_eq!(again(None, Some(access)), unusable);
        assert_eq!(
            machine.firmware().seen.len(),
            told,
            "the HCA hears of nothing"
        );
        assert!(again(Some(&short), None).is_ok());
        assert_eq!(hca.dereg_mr(mr), Ok(()));
        assert_eq!(hca.dealloc_pd(pd), Ok(()));
    }
}

#[test]
fn a_cq_that_fired_before_it_was_destroyed_has_nothing_to_say_afterwards() {
    let machine = Machine::new();
    let hca = open(&machine);
    let init = CqInit {
        cqe: 3,
        vector: 0,
        owner: Owner::Kernel,
    };
    let cq = hca.create_cq(&init).unwrap().handle;
    let places = &hca.core_for_tests().cq_places;
    places[cq.index() as usize].fire();
    assert!(hca.take_cq_event(cq));
    places[cq.index() as usize].fire();
    hca.destroy_cq(cq).unwrap();
    assert!(!hca.take_cq_event(cq));
    hca.close().unwrap();
}

// Events.

fn port_event(port: u8, change: PortChange) -> Eqe {
    let mut eqe = Eqe::ZERO;
    eqe.set_event_type(EventType::PORT_CHANGE)
        .set_sub_type(change.0)
        .set_port(port);
    eqe
}

#[test]
fn the_events_of_a_port_come_in_order_and_those_of_no_port_are_counted() {
    let machine = Machine::new();
    let hca = open(&machine);
    for (port, change) in [
        (2, PortChange::ACTIVE),
        (1, PortChange::DOWN),
        (3, PortChange::DOWN),
        (2, PortChange::DOWN),
        (1, PortChange(2)),
    ] {
        machine.event(2, port_event(port, change));
    }
    machine.deliver();
    let events: Vec<_> = core::iter::from_fn(|| hca.next_async_event()).collect();
    let expected = [
        AsyncEvent::Port(1, PortEvent::Error),
        AsyncEvent::Port(2, PortEvent::Active),
        AsyncEvent::Port(2, PortEvent::Error),
    ];
    assert_eq!(events, expected);
    let strays = hca.strays();
    assert_eq!((strays.port, strays.event_type), (1, 1));
}

#[test]
fn a_ring_full_of_events_is_drained_and_the_hca_is_told_in_time() {
    let machine = Machine::new();
    let hca = open(&machine);
    let entries = 64;
    machine.firmware().doorbells.clear();
    for _ in 0..entries {
        machine.event(2, port_event(1, PortChange::ACTIVE));
    }
    machine.deliver();
    let firmware = machine.firmware();
    let told: Vec<u64> = firmware
        .doorbells
        .iter()
        .map(|doorbell| doorbell.1)
        .collect();
    // Half-way, at the end of the ring, at the end; then armed. infinihost 13.2: set CI of EQ 2.
    let half = 0x0400_0002_0000_0020;
    assert_eq!(
        told,
        [
            half,
            0x0400_0002_0000_0000,
            0x0400_0002_0000_0000,
            0x0200_0002_0000_0000
        ]
    );
    drop(firmware);
    drop(hca);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn no_event_that_a_device_can_write_does_more_than_be_counted_or_noted(
        events in proptest::collection::vec((any::<[u8; 32]>(), 0..24_u8, prop_oneof![0..64_u32, any::<u32>()]), 1..40),
    ) {
        let machine = Machine::new();
        let hca = open(&machine);
        let mut written = 0;
        for (mut bytes, kind, number) in events {
            if kind == EventType::LOCAL_CATASTROPHIC.0 || kind == EventType::EQ_OVERFLOW.0 {
                continue; // these end the HCA, by right
            }
            bytes[1] = kind;
            bytes[4..8].copy_from_slice(&number.to_be_bytes());
            machine.event(2, Eqe::read_from_bytes(&bytes).unwrap());
            machine.deliver();
            written += 1;
        }
        let mut taken = 0;
        while let Some(event) = hca.next_async_event() {
            // There are ports, and nothing else.
            prop_assert!(matches!(event, AsyncEvent::Port(1 | 2, _)), "{event:?}");
            taken += 1;
        }
        let strays = hca.strays();
        let counted = strays.cqn + strays.qpn + strays.srqn + strays.port + strays.event_type + strays.command;
        // ECC reports are logged alone; repeated port events are one.
        prop_assert!(taken + counted <= written);
        prop_assert!(hca.check().is_ok());
        hca.close().unwrap();
        prop_assert!(is_as_it_was_found(&machine));
    }
}

#[test]
fn the_pin_is_released_and_only_the_queues_that_fired_are_drained() {
    let machine = Machine::with(0, 0x5a44_15b3);
    let hca = open(&machine);
    machine.event(2, port_event(1, PortChange::ACTIVE));
    assert!(machine.deliver());
    assert_eq!(
        hca.next_async_event(),
        Some(AsyncEvent::Port(1, PortEvent::Active))
    );
    let dcs = machine.map(0, 0, 1 << 20, Caching::Uncached).unwrap();
    use core_ib::platform::Registers;
    assert_eq!(dcs.read_be32(regs::ECR_LOW), 0);
}
