//! Mutual exclusion: [`Lock`] for short sections in any context, [`Gate`] for the control path.

use core::cell::UnsafeCell;

/// What `acquire` found and `release` puts back (the interrupt state, say).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Saved(pub usize);

/// A machine's lock, without what it protects.
///
/// # Safety
///
/// Between the return of `acquire` and the call of `release` no other `acquire` of this lock returns, on any
/// processor and in any context that its maker allowed.
pub unsafe trait RawLock: Send + Sync {
    /// Waits, without giving up the processor where the machine has several, until the lock is free.
    fn acquire(&self) -> Saved;
    /// Frees it.
    ///
    /// # Safety
    ///
    /// Pairs with one `acquire` by the same context, which returned `saved`.
    unsafe fn release(&self, saved: Saved);
}

/// A machine's gate, without what it protects. Control context alone.
///
/// # Safety
///
/// Between the return of `enter` and the call of `leave` no other `enter` of this gate returns.
pub unsafe trait RawGate: Send + Sync {
    /// Waits, giving up the processor, until the gate is free.
    fn enter(&self);
    /// Frees it.
    ///
    /// # Safety
    ///
    /// Pairs with one `enter` by the same context.
    unsafe fn leave(&self);
}

/// State shared with other processors and, if its maker said so, with interrupt handlers.
#[derive(Debug)]
pub struct Lock<T, R> {
    raw: R,
    state: UnsafeCell<T>,
}

// SAFETY: `with` is the only way to `state`, and `RawLock` lets one context in at a time.
unsafe impl<T: Send, R: RawLock> Sync for Lock<T, R> {}

impl<T, R: RawLock> Lock<T, R> {
    /// Puts `state` under `raw`, which is used for nothing else.
    pub const fn new(raw: R, state: T) -> Self {
        Self {
            raw,
            state: UnsafeCell::new(state),
        }
    }

    /// Runs `f` on the state. `f` is short: it does not block or call back. It takes another lock in this order alone: the
    /// owner of a stack may hold its own while it posts and polls, and a send queue looks at an address handle.
    #[inline(always)]
    pub fn with<U>(&self, f: impl FnOnce(&mut T) -> U) -> U {
        let saved = self.raw.acquire();
        // SAFETY: the raw lock is held, so this is the only reference to the state. Should
        // `f` unwind, the lock stays held: nobody ever sees a state half changed.
        let result = f(unsafe { &mut *self.state.get() });
        // SAFETY: pairs with the `acquire` above, in this context.
        unsafe { self.raw.release(saved) };
        result
    }

    /// The state, without locking: nobody else can refer to it.
    pub fn get_mut(&mut self) -> &mut T {
        self.state.get_mut()
    }

    /// The state, and the end of the lock.
    pub fn into_inner(self) -> T {
        self.state.into_inner()
    }
}

/// State of the control path, entered by one context at a time, which may block inside.
#[derive(Debug)]
pub struct Gate<T, G> {
    raw: G,
    state: UnsafeCell<T>,
}

// SAFETY: `with` is the only way to `state`, and `RawGate` lets one context in at a time.
unsafe impl<T: Send, G: RawGate> Sync for Gate<T, G> {}

impl<T, G: RawGate> Gate<T, G> {
    /// Puts `state` behind `raw`, which is used for nothing else.
    pub const fn new(raw: G, state: T) -> Self {
        Self {
            raw,
            state: UnsafeCell::new(state),
        }
    }

    /// Runs `f` on the state. `f` may block; it does not enter this gate again.
    pub fn with<U>(&self, f: impl FnOnce(&mut T) -> U) -> U {
        self.raw.enter();
        // SAFETY: inside the gate, so this is the only reference to the state. Should `f` unwind, the gate stays
        // closed: nobody ever sees a state half changed.
        let result = f(unsafe { &mut *self.state.get() });
        // SAFETY: pairs with the `enter` above, in this context.
        unsafe { self.raw.leave() };
        result
    }

    /// The state, without waiting: nobody else can refer to it.
    pub fn get_mut(&mut self) -> &mut T {
        self.state.get_mut()
    }

    /// The state, and the end of the gate.
    pub fn into_inner(self) -> T {
        self.state.into_inner()
    }
}
