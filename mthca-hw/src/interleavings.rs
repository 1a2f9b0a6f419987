//! Every interleaving of those who share the driver's own words, under loom: the code is the driver's, atomics and locks
//! are loom's. What the HCA and its interrupts do is a thread.

extern crate std;
use crate::cmd::table::Nop;
use crate::cmd::{Cause, Channel};
use crate::cq::CqPlace;
use crate::event::{Marks, Pending, Tenants};
use crate::fake::{Machine, Reply};
use crate::health::{End, Health};
use crate::once::Once;
use crate::users::Users;
use core::cell::UnsafeCell;
use core::sync::atomic::Ordering;
use core::time::Duration;
use core_ib::platform::{Caching, Platform, RawGate, RawLock, Saved};
use core_ib::verbs::{QpEvent, SrqEvent};
use hca_abi::infinihost::cmd::{CmdStatus, Opcode};
use loom::thread;
use std::boxed::Box;
use std::sync::Arc;
use std::vec::Vec;

/// Loom's own mutex as a machine's lock and gate: whoever waits for it is not tried in vain.
pub struct LoomLock {
    mutex: Box<loom::sync::Mutex<()>>,
    guard: UnsafeCell<Option<loom::sync::MutexGuard<'static, ()>>>,
}

// SAFETY: the guard is touched by who has locked the mutex.
unsafe impl Send for LoomLock {}
// SAFETY: likewise.
unsafe impl Sync for LoomLock {}

impl Default for LoomLock {
    fn default() -> Self {
        Self {
            mutex: Box::new(loom::sync::Mutex::new(())),
            guard: UnsafeCell::new(None),
        }
    }
}

// SAFETY: the mutex lets one context in until its guard goes.
unsafe impl RawLock for LoomLock {
    fn acquire(&self) -> Saved {
        let guard = self.mutex.lock().unwrap();
        // SAFETY: the guard goes in `release`, while the mutex, in its box, is still there; the mutex is held, so that
        // nobody else touches the place.
        unsafe {
            *self.guard.get() = Some(core::mem::transmute::<loom::sync::MutexGuard<'_, ()>, _>(
                guard,
            ))
        };
        Saved(0)
    }

    unsafe fn release(&self, _: Saved) {
        // SAFETY: the mutex is held, as above.
        let guard = unsafe { (*self.guard.get()).take() };
        drop(guard);
    }
}

// SAFETY: likewise.
unsafe impl RawGate for LoomLock {
    fn enter(&self) {
        self.acquire();
    }
    unsafe fn leave(&self) {
        // SAFETY: pairs with `enter`, which the caller promises.
        unsafe { self.release(Saved(0)) };
    }
}

/// Runs `f` in every interleaving that differs to somebody, with at most `preemptions` of a thread that could go on, and
/// says how many there were.
fn explore(name: &str, preemptions: Option<usize>, f: impl Fn() + Sync + Send + 'static) {
    let schedules = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let count = schedules.clone();
    let mut model = loom::model::Builder::new();
    model.preemption_bound = preemptions;
    model.check(move || {
        count.fetch_add(1, Ordering::Relaxed);
        f();
    });
    let count = schedules.load(Ordering::Relaxed);
    match preemptions {
        None => std::eprintln!("{name}: {count} schedules, all"),
        Some(most) => std::eprintln!("{name}: {count} schedules, of {most} preemptions at most"),
    }
}

/// A machine for as long as the process lives, for what refers to one.
fn machine() -> &'static Machine {
    Box::leak(Box::new(Machine::idle()))
}

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

/// A channel of `slots` commands in flight, by events, with firmware that says nothing of its own.
fn channel(machine: &'static Machine, slots: usize) -> Channel<'static, Machine> {
    let dcs = machine.map(0, 0, 1 << 20, Caching::Uncached).unwrap();
    let channel = Channel::new(machine, dcs, slots, LIMIT).unwrap();
    channel.complete_by_events(true);
    machine.reply(Opcode::NOP, [Reply::Silence; 2]);
    channel
}

/// Of one look at the clock while a command is waited for.
const LIMIT: Duration = Duration::from_secs(1);
const ONE: CmdStatus = CmdStatus::RESOURCE_BUSY;
const TWO: CmdStatus = CmdStatus::REG_BOUND;

#[test]
fn loom_a_completion_is_the_answer_of_its_command_or_a_stray() {
    explore("late completion", Some(3), || {
        let machine = machine();
        let channel = Arc::new(channel(machine, 1));
        let interrupt = {
            let channel = channel.clone();
            thread::spawn(move || channel.complete(1, ONE, 0))
        };
        let cause = |result: Result<(), crate::CmdError>| result.unwrap_err().cause;
        let first = cause(channel.attempt(&Nop {}, LIMIT));
        let second = cause(channel.attempt(&Nop {}, LIMIT));
        assert_eq!(second, Cause::TimedOut, "the answer of the one before");
        interrupt.join().unwrap();
        match first {
            Cause::Refused(ONE) => assert_eq!(channel.strays(), 0),
            Cause::TimedOut => assert_eq!(channel.strays(), 1, "an answer is lost"),
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn loom_two_commands_in_flight_get_their_own_answers() {
    explore("two commands in flight", Some(2), || {
        let machine = machine();
        let channel = Arc::new(channel(machine, 2));
        let other = {
            let channel = channel.clone();
            thread::spawn(move || channel.attempt(&Nop {}, LIMIT).unwrap_err().cause)
        };
        let interrupt = {
            let channel = channel.clone();
            thread::spawn(move || {
                // The first tokens of the two slots.
                channel.complete(2, ONE, 0);
                channel.complete(3, TWO, 0);
            })
        };
        let one = channel.attempt(&Nop {}, LIMIT).unwrap_err().cause;
        let two = other.join().unwrap();
        interrupt.join().unwrap();
        let answered = [one, two].iter().filter(|c| **c != Cause::TimedOut).count() as u32;
        assert_eq!(answered + channel.strays(), 2);
        assert!(answered < 2 || one != two, "one answer for both");
    });
}

#[test]
fn loom_who_waits_for_a_command_is_told_of_the_end() {
    explore("end against a command", Some(3), || {
        let machine = machine();
        let channel = Arc::new(channel(machine, 1));
        let end = {
            let channel = channel.clone();
            thread::spawn(move || channel.fail(End::Gone))
        };
        let cause = channel.attempt(&Nop {}, LIMIT).unwrap_err().cause;
        assert!(matches!(cause, Cause::Gone | Cause::TimedOut), "{cause:?}");
        end.join().unwrap();
        let cause = channel.attempt(&Nop {}, LIMIT).unwrap_err().cause;
        assert_eq!(cause, Cause::Gone, "posted to a dead HCA");
    });
}
