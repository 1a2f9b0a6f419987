//! The guest comes as far as it should, and is caught where it should be.

use super::forms;
use super::machine::{Machine, REGION, REGIONS};
use super::program::{Guest, drive_untrusted};
use core_ib::platform::DmaAddr;
use hca_abi::infinihost::cmd::Opcode;
use hca_abi::infinihost::cqe::Cqe;
use hca_abi::infinihost::qp::{QpMailbox, QpState, ServiceType};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use zerocopy::FromBytes;

fn state(guest: &mut Guest<'_>, which: u8) -> QpState {
    guest.plain(Opcode::QUERY_QPEE, &[which]);
    let out = guest.machine.read::<264>(forms::OUT);
    QpMailbox::read_from_bytes(&out).unwrap().context.state()
}

#[test]
fn a_guest_that_has_started_has_its_queues_running() {
    for card in 0..5 {
        let bytes = [card, 3];
        let mut guest = Guest::new(&bytes).unwrap();
        assert_eq!(guest.refused, [], "card {card}");
        for which in 0..forms::QPS.len() as u8 {
            let found = state(&mut guest, which);
            assert_eq!(found, QpState::RTS, "card {card}, queue {which}");
        }
        guest.machine.end();
    }
}

#[test]
fn what_one_queue_sends_the_other_receives() {
    // A receive of the second, a send of the first, what is on the wire. In M-mode a record is written, too.
    let receive = [14, 1, 0xff, 0, 0, 0, 0, 0].as_slice();
    let send = [11, 0, 0x10, 0, 0, 0, 100, 0, 4, 0, 0].as_slice();
    let record: [&[u8]; 5] = [&[], &[], &[0], &[0], &[0]];
    for (card, record) in (0..).zip(record) {
        let bytes = [&[card, 3], receive, send, record, &[22, 0]].concat();
        let mut guest = Guest::new(&bytes).unwrap();
        guest.run();
        let cqe = guest.machine.read::<32>(forms::cq_at(forms::CQS[1]));
        let cqe = Cqe::read_from_bytes(&cqe).unwrap();
        assert!(
            !cqe.owned_by_hw() && !cqe.is_error(),
            "card {card}: {cqe:?}"
        );
        assert_eq!((cqe.qpn(), cqe.byte_count()), (forms::QPS[1].qpn, 140));
        guest.machine.end();
    }
}

#[test]
fn every_service_has_a_queue() {
    let services = [
        ServiceType::UD,
        ServiceType::RC,
        ServiceType::UC,
        ServiceType::MLX,
    ];
    for service in services {
        assert!(
            forms::QPS.iter().any(|qp| qp.service == service),
            "{service:?}"
        );
    }
}

#[test]
fn a_device_reaches_what_is_mapped_for_it_only() {
    let guest = Guest::new(&[]).unwrap();
    let mut machine = guest.machine;
    machine.map(0, true, true);
    let all = REGIONS * REGION;
    machine.around(|around| around.check(DmaAddr::new(0), all as usize, true));
    let caught = |machine: &Machine, at, len, write| {
        let check = || machine.around(|around| around.check(DmaAddr::new(at), len, write));
        std::panic::catch_unwind(core::panic::AssertUnwindSafe(check)).is_err()
    };
    assert!(caught(&machine, all - 4, 8, true));
    machine.unmap(Some(1));
    machine.map(1, true, false);
    assert!(!caught(&machine, REGION - 4, 8, false));
    assert!(caught(&machine, REGION - 4, 8, true), "it may be read only");
    machine.unmap(None);
    assert!(caught(&machine, 0, 1, false));
}

#[test]
fn a_change_beyond_the_memory_is_seen() {
    let guest = Guest::new(&[]).unwrap();
    guest.machine.spoil_guard();
    let end = std::panic::catch_unwind(core::panic::AssertUnwindSafe(|| guest.machine.end()));
    assert!(end.is_err());
}

/// Bytes of a step: its number, and what decides where it goes.
fn step() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![2 => select(vec![0_u8, 1, 2, 3, 4, 8, 0x10, 0x80, 0xc1, 0xff]), 1 => any::<u8>()];
    vec(byte, 1..24)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn no_guest_panics_the_card_or_reaches_what_is_not_mapped(
        card in prop_oneof![0..5_u8, any::<u8>()], started in 0..8_u8, steps in vec(step(), 0..40),
    ) {
        drive_untrusted(&[vec![card, started], steps.concat()].concat());
    }
}
