//! Counts of users, and what is set once: `users`, `once`.

extern crate std;
use super::explore;
use crate::once::Once;
use crate::users::Users;
use core::sync::atomic::Ordering;
use loom::thread;
use std::boxed::Box;
use std::sync::Arc;
use std::vec::Vec;

#[test]
fn loom_the_door_closes_on_nobody() {
    explore("users", Some(3), || {
        let users = Arc::new(Users::closed());
        users.open();
        let inside = Arc::new(loom::sync::atomic::AtomicU32::new(0));
        let others: Vec<_> = (0..2)
            .map(|_| {
                let (users, inside) = (users.clone(), inside.clone());
                thread::spawn(move || {
                    if users.enter() {
                        inside.store(1, Ordering::Relaxed);
                        users.leave();
                    }
                })
            })
            .collect();
        let closed = users.close();
        if closed.is_ok() {
            // Who was in has left, and what it did is seen; nobody comes after.
            let seen = inside.load(Ordering::Relaxed);
            assert!(!users.enter());
            for other in others {
                other.join().unwrap();
            }
            assert_eq!(inside.load(Ordering::Relaxed), seen);
        } else {
            for other in others {
                other.join().unwrap();
            }
            assert_eq!(users.close(), Ok(()));
        }
    });
}

#[test]
fn loom_a_value_is_set_once_and_read_whole() {
    explore("once", None, || {
        let place = Arc::new(Once::new());
        let other = {
            let place = place.clone();
            thread::spawn(move || place.set(Box::new(1)).is_ok())
        };
        let reader = {
            let place = place.clone();
            thread::spawn(move || place.get().map(|value| **value))
        };
        let one = place.set(Box::new(2)).is_ok();
        let seen = reader.join().unwrap();
        assert!(one ^ other.join().unwrap());
        let value = **place.get().unwrap();
        assert_eq!(value, if one { 2 } else { 1 });
        assert!(seen.is_none_or(|seen| seen == value));
    });
}
