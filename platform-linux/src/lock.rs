//! Locks and gates over what a kernel has: its short locks, and a word that one can wait at.

use crate::os;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, Ordering};
use core_ib::Instant;
use core_ib::platform::{Completion, RawGate, RawLock, Saved};

/// One of the kernel's short locks.
#[derive(Debug)]
pub struct OsLock {
    room: UnsafeCell<os::LockRoom>,
    kind: os::LockKind,
}

// SAFETY: only the kernel touches the room, and its locks are made to be shared.
unsafe impl Send for OsLock {}
// SAFETY: as above.
unsafe impl Sync for OsLock {}

impl OsLock {
    /// Set-up only; may block.
    pub(crate) fn new(kind: os::LockKind, name: &'static str) -> Self {
        let room = UnsafeCell::new(os::LockRoom::default());
        // SAFETY: the room is zeroed, and nobody else knows it; the name stays.
        unsafe { os::openib_os_lock_init(room.get(), kind, name.as_ptr(), name.len()) };
        Self { room, kind }
    }
}

impl Drop for OsLock {
    fn drop(&mut self) {
        // SAFETY: made by `new`; nobody else refers to it any more, so it is free.
        unsafe { os::openib_os_lock_exit(self.room.get(), self.kind) };
    }
}

// SAFETY: the kernel's lock lets one context in at a time, and interrupt handlers too if it was made for them.
unsafe impl RawLock for OsLock {
    #[inline]
    fn acquire(&self) -> Saved {
        let room = self.room.get();
        if self.kind == os::LockKind::Interrupt {
            // SAFETY: made by `new` for interrupt handlers.
            Saved(unsafe { os::openib_os_lock_interrupt(room) })
        } else {
            // SAFETY: made by `new` for others.
            unsafe { os::openib_os_lock(room) };
            Saved(0)
        }
    }

    #[inline]
    unsafe fn release(&self, Saved(saved): Saved) {
        let room = self.room.get();
        if self.kind == os::LockKind::Interrupt {
            // SAFETY: held by this context, the caller promises, and `saved` is what taking it gave.
            unsafe { os::openib_os_unlock_interrupt(room, saved) };
        } else {
            // SAFETY: held by this context, the caller promises.
            unsafe { os::openib_os_unlock(room) };
        }
    }
}

const FREE: u32 = 0;
const HELD: u32 = 1;
/// Held, and somebody may wait.
const WANTED: u32 = 2;

/// A gate: a word, and a wait at it where it is closed. It may move while nobody is inside.
#[derive(Debug, Default)]
pub struct OsGate(AtomicU32);

// SAFETY: from a free gate only one exchange takes it, and it is free again only after `leave`.
unsafe impl RawGate for OsGate {
    fn enter(&self) {
        let free = self
            .0
            .compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed);
        if free.is_ok() {
            return;
        }
        while self.0.swap(WANTED, Ordering::Acquire) != FREE {
            // SAFETY: the word stays while a reference to it does.
            unsafe { os::openib_os_wait(self.0.as_ptr(), WANTED, Instant::NEVER.0) };
        }
    }

    unsafe fn leave(&self) {
        if self.0.swap(FREE, Ordering::Release) == WANTED {
            // SAFETY: the word stays while a reference to it does.
            unsafe { os::openib_os_wake_word(self.0.as_ptr()) };
        }
    }
}

/// A completion: a word that is 1 when it was fired.
#[derive(Debug, Default)]
pub struct OsCompletion(AtomicU32);

impl Completion for OsCompletion {
    fn fire(&self) {
        self.0.store(1, Ordering::Release);
        // SAFETY: the word stays while a reference to it does.
        unsafe { os::openib_os_wake_word(self.0.as_ptr()) };
    }

    fn wait_until(&self, deadline: Instant) -> bool {
        loop {
            if self.0.swap(0, Ordering::Acquire) == 1 {
                return true;
            }
            if crate::machine::now() >= deadline {
                return false;
            }
            // SAFETY: the word stays while a reference to it does.
            unsafe { os::openib_os_wait(self.0.as_ptr(), 0, deadline.0) };
        }
    }
}
