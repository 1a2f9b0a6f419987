//! Every interleaving of those who share the driver's own words, under loom: the code is the driver's, atomics and locks
//! are loom's. What the HCA and its interrupts do is a thread.

extern crate std;

mod chunks;
mod commands;
mod cqs;
mod ends;
mod eqs;
mod events;
mod fmrs;
mod hcas;
mod srqs;
mod words;

use crate::fake::Machine;
use core::cell::UnsafeCell;
use core::sync::atomic::Ordering;
use core_ib::platform::{RawGate, RawLock, Saved};
use std::boxed::Box;
use std::sync::Arc;

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
    tell(name, schedules.load(Ordering::Relaxed), preemptions);
}

fn tell(name: &str, count: u64, preemptions: Option<usize>) {
    match preemptions {
        None => std::eprintln!("{name}: {count} schedules, all"),
        Some(most) => std::eprintln!("{name}: {count} schedules, of {most} preemptions at most"),
    }
}

/// A machine for as long as the process lives, for what refers to one.
fn machine() -> &'static Machine {
    Box::leak(Box::new(Machine::idle()))
}
