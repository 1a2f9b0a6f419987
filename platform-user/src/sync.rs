//! Locks and waiting. Interrupt handlers are threads here: a lock that they take is one like any other.

use core_ib::Instant;
use core_ib::platform::{RawGate, RawLock, Saved};
use parking_lot::lock_api::RawMutex as _;
use parking_lot::{Condvar, Mutex, RawMutex};
use std::time::Duration;

/// Nanoseconds of the system's monotonic clock.
pub(crate) fn now() -> Instant {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = Duration::from_secs(now.tv_sec.unsigned_abs());
    let all = seconds + Duration::from_nanos(now.tv_nsec.unsigned_abs());
    Instant(u64::try_from(all.as_nanos()).unwrap_or(u64::MAX))
}

/// Something to wait on.
#[derive(Debug, Default)]
pub struct Completion {
    fired: Mutex<bool>,
    changed: Condvar,
}

impl core_ib::platform::Completion for Completion {
    fn fire(&self) {
        *self.fired.lock() = true;
        self.changed.notify_one();
    }

    fn wait_until(&self, deadline: Instant) -> bool {
        let mut fired = self.fired.lock();
        loop {
            if core::mem::take(&mut *fired) {
                return true;
            }
            let left = deadline.since(now());
            if left.is_zero() {
                return false;
            }
            self.changed.wait_for(&mut fired, left);
        }
    }
}

/// A lock, or a gate: whoever waits gives up the processor.
pub struct Mutual(RawMutex);

impl Mutual {
    pub(crate) const fn new() -> Self {
        Self(RawMutex::INIT)
    }
}

// SAFETY: a mutex lets one in at a time.
unsafe impl RawLock for Mutual {
    fn acquire(&self) -> Saved {
        self.0.lock();
        Saved(0)
    }
    unsafe fn release(&self, _: Saved) {
        // SAFETY: held by this context, the caller promises.
        unsafe { self.0.unlock() };
    }
}

// SAFETY: as above.
unsafe impl RawGate for Mutual {
    fn enter(&self) {
        self.0.lock();
    }
    unsafe fn leave(&self) {
        // SAFETY: entered by this context, the caller promises.
        unsafe { self.0.unlock() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core_ib::platform::Completion as _;

    #[test]
    fn a_wait_ends_when_another_thread_fires_and_at_its_deadline() {
        let completion = Completion::default();
        std::thread::scope(|scope| {
            scope.spawn(|| completion.fire());
            assert!(completion.wait_until(Instant::NEVER));
        });
        let deadline = now().after(Duration::from_millis(2));
        assert!(!completion.wait_until(deadline));
        assert!(now() >= deadline);
    }
}
