//! Arming an EQ: a handler or who polls has looked, the HCA writes an event, then it is armed. `eq`, `isr`.

extern crate std;
use super::hcas::{TINY, explore_hca};
use crate::fake::Machine;
use crate::qp::tests::{FIRST_QP, Rig};
use crate::{Interrupts, Profile};
use core_ib::verbs::{AsyncEvent, Device, QpEvent};
use hca_abi::infinihost::eqe::{Eqe, EventType};
use loom::thread;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::vec::Vec;

/// Entries of a queue are used again within a model.
const PROFILE: Profile = Profile {
    event_entries: 4,
    interrupts: Interrupts::Messages,
    ..TINY
};
/// Number of the queue of what is asynchronous.
const ASYNC: u8 = 1;

/// The HCA has something to tell of the QP, and interrupts if it is armed.
fn tell(machine: &Machine, event_type: EventType) {
    let mut eqe = Eqe::ZERO;
    eqe.set_event_type(event_type).set_number(FIRST_QP);
    machine.event(ASYNC, eqe);
    machine.deliver();
}

fn taken(rig: &Rig<'_>) -> Vec<QpEvent> {
    let events = core::iter::from_fn(|| rig.hca.next_async_event());
    let of_qp = |event| match event {
        AsyncEvent::Qp(_, event) => event,
        other => panic!("{other:?}"),
    };
    events.map(of_qp).collect()
}

fn no_event_is_lost(name: &str, make: fn() -> Machine, preemptions: usize) {
    explore_hca(name, make, &PROFILE, Some(preemptions), |rig| {
        loom::explore();
        let others: Vec<_> = [
            &[EventType::PATH_MIGRATED, EventType::SQ_DRAINED][..],
            &[EventType::COMM_ESTABLISHED],
        ]
        .into_iter()
        .map(|events| {
            let rig: Arc<Rig<'static>> = rig.clone();
            thread::spawn(move || {
                for event in events {
                    tell(rig.machine, *event);
                }
            })
        })
        .collect();
        rig.hca.poll_events();
        for other in others {
            other.join().unwrap();
        }
        loom::stop_exploring();
        // Nobody looks from here on: what the HCA had to tell was told, and the queue is armed.
        let events: BTreeSet<_> = taken(rig).into_iter().map(|event| event as u32).collect();
        assert_eq!(events.len(), 3, "an event is lost");
        tell(rig.machine, EventType::WQ_INVALID_REQUEST);
        assert_eq!(taken(rig), [QpEvent::RequestError], "it is not armed");
    });
}

#[test]
fn loom_no_event_is_lost_between_the_last_look_and_arming_in_t_mode() {
    no_event_is_lost("arming of an EQ, T-mode", || Machine::new().on_a_bus(), 2);
}

#[test]
fn loom_no_event_is_lost_between_the_last_look_and_arming_in_m_mode() {
    no_event_is_lost("arming of an EQ, M-mode", || Machine::sinai().on_a_bus(), 2);
}
