//! A CQ that fires, by its interrupt or by the end of the HCA: `cq`.

extern crate std;
use super::{explore, machine};
use crate::cq::CqPlace;
use crate::health::{End, Health};
use core::sync::atomic::Ordering;
use loom::thread;
use std::sync::Arc;

#[test]
fn loom_a_cq_that_comes_while_the_hca_ends_fires() {
    let machine = machine();
    explore("end against a new CQ", None, move || {
        let place = Arc::new(CqPlace::new(machine));
        let health = Arc::new(Health::new());
        let end = {
            let (place, health) = (place.clone(), health.clone());
            thread::spawn(move || {
                // As `Inner::fail` does.
                health.latch(End::Failed);
                place.fire();
            })
        };
        place.publish(5, 1, &health);
        end.join().unwrap();
        assert!(place.take_fired(1), "nobody is told of the end");
    });
}

#[test]
fn loom_a_cq_that_is_armed_while_the_hca_ends_fires_after_that() {
    let machine = machine();
    explore("end against arming", None, move || {
        let place = Arc::new(CqPlace::new(machine));
        let health = Arc::new(Health::new());
        place.publish(5, 1, &health);
        let end = {
            let (place, health) = (place.clone(), health.clone());
            thread::spawn(move || {
                // As `Inner::fail` does.
                health.latch(End::Failed);
                place.fire();
            })
        };
        // What fired before is taken; then armed as `CqRef::req_notify` does, which looks for the end first.
        place.take_fired(1);
        if !health.is_alive() {
            place.fire();
        }
        end.join().unwrap();
        assert!(place.take_fired(1), "armed, and nobody fires it");
    });
}

#[test]
fn loom_who_finds_that_a_cq_fired_sees_what_came_before() {
    let machine = machine();
    explore("firing of a CQ", None, move || {
        let place = Arc::new(CqPlace::new(machine));
        let health = Health::new();
        place.publish(5, 1, &health);
        let entry = Arc::new(loom::sync::atomic::AtomicU32::new(0));
        let handler = {
            let (place, entry) = (place.clone(), entry.clone());
            thread::spawn(move || {
                assert_eq!(place.number(), 5);
                entry.store(1, Ordering::Relaxed);
                place.next_sequence(5);
                place.fire();
            })
        };
        if place.take_fired(1) {
            assert_eq!(entry.load(Ordering::Relaxed), 1);
            assert_eq!(
                place.arming().sequence(),
                2,
                "armed anew with an old number"
            );
            assert!(!place.take_fired(1), "taken twice");
            handler.join().unwrap();
        } else {
            handler.join().unwrap();
            assert!(place.take_fired(1), "missed");
        }
    });
}
