//! Events that are noted, and taken once: `event`.

extern crate std;
use super::{explore, machine};
use crate::event::{Marks, Pending, Tenants};
use core::sync::atomic::Ordering;
use core_ib::verbs::{QpEvent, SrqEvent};
use loom::thread;
use std::sync::Arc;
use std::vec::Vec;

fn all(pending: &Pending) -> Vec<QpEvent> {
    core::iter::from_fn(|| pending.pop())
        .map(|(_, event)| event)
        .collect()
}

#[test]
fn loom_an_event_that_is_noted_is_taken_once_by_who_follows_the_marks() {
    let machine = machine();
    explore("pending events and marks", None, move || {
        let marks = Arc::new(Marks::new(machine, 64).unwrap());
        let pending = Arc::new(Pending::closed());
        pending.open(7);
        let handlers: Vec<_> = [QpEvent::Fatal, QpEvent::SqDrained]
            .into_iter()
            .map(|event| {
                let (marks, pending) = (marks.clone(), pending.clone());
                thread::spawn(move || {
                    pending.push(7, event);
                    marks.set(3);
                })
            })
            .collect();
        // As `Inner::next_async_event` does.
        let take = || {
            while let Some(index) = marks.take() {
                assert_eq!(index, 3);
                let Some((_, event)) = pending.pop::<QpEvent>() else {
                    continue;
                };
                if !pending.is_empty() {
                    marks.set(3);
                }
                return Some(event);
            }
            None
        };
        let mut taken: Vec<_> = take().into_iter().collect();
        for handler in handlers {
            handler.join().unwrap();
        }
        taken.extend(core::iter::from_fn(take));
        taken.sort_by_key(|event| *event as u32);
        assert_eq!(taken.len(), 2, "{taken:?}");
        assert!(taken.contains(&QpEvent::Fatal) && taken.contains(&QpEvent::SqDrained));
    });
}

#[test]
fn loom_an_event_in_flight_is_not_the_next_tenants() {
    explore("event against destroy and create", None, || {
        let pending = Arc::new(Pending::closed());
        pending.open(7);
        let handler = {
            let pending = pending.clone();
            thread::spawn(move || pending.push(7, QpEvent::Fatal))
        };
        pending.close();
        pending.open(8);
        assert_eq!(all(&pending), []);
        pending.push(8, QpEvent::SqDrained);
        handler.join().unwrap();
        assert_eq!(all(&pending), [QpEvent::SqDrained]);
    });
}

#[test]
fn loom_an_event_in_hand_is_not_the_next_srqs_though_both_have_one_number() {
    explore("event in hand against a reused SRQ number", None, || {
        let tenants = Arc::new(Tenants::new());
        let place = Arc::new(loom::sync::atomic::AtomicU32::new(tenants.enter()));
        let pending = Arc::new(Pending::closed());
        pending.open(place.load(Ordering::Relaxed));
        // Entries of the queue of events, under its lock: one for the first SRQ.
        let queue = Arc::new(loom::sync::Mutex::new(1));
        let handler = {
            let (tenants, place) = (tenants.clone(), place.clone());
            let (pending, queue) = (pending.clone(), queue.clone());
            // As `Inner::drain` and `Inner::note_srq` do.
            move || loop {
                let mut entries = queue.lock().unwrap();
                if *entries == 0 {
                    return;
                }
                *entries -= 1;
                let newest = tenants.newest();
                drop(entries);
                let tenant = place.load(Ordering::Acquire);
                if Tenants::had(newest, tenant) {
                    pending.push(tenant, SrqEvent::LimitReached);
                }
            }
        };
        let interrupt = thread::spawn(handler.clone());
        // As `Inner::destroy_srq` and `Inner::create_srq` do.
        handler();
        pending.close();
        let next = tenants.enter();
        pending.open(next);
        place.store(next, Ordering::Release);
        *queue.lock().unwrap() += 1; // of the second, when it is there
        handler();
        interrupt.join().unwrap();
        assert_eq!(pending.pop(), Some((next, SrqEvent::LimitReached)));
        assert_eq!(pending.pop::<SrqEvent>(), None);
    });
}
