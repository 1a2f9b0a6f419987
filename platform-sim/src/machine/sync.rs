//! What contexts wait on: locks that yield rather than spin, gates, completions. Each checks that it is used by its
//! rules.

use super::context::{self, ContextId};
use super::engine::{CompletionState, Engine, Step, Waiting};
use super::locks::{Holder, LockId, LockKind};
use super::shared::Shared;
use super::{HostId, ReportKind, SimPlatform};
use core::fmt;
use core_ib::Instant;
use core_ib::platform::{Completion, RawGate, RawLock, Saved, Wake};
use std::sync::Arc;

impl Engine {
    /// First try of `me` (or of code outside of all contexts) for a lock or gate; true if it has it now. Else it
    /// waits.
    fn take(&mut self, me: Option<ContextId>, id: LockId) -> bool {
        let Some(lock) = self.locks.get(id) else {
            return false;
        };
        let (kind, host) = (lock.kind, lock.host);
        let Some(me) = me else {
            assert!(
                lock.holder.is_none(),
                "{} is taken outside of all contexts, but is held: who could release it?",
                lock.title()
            );
            return self.try_take(Holder::Outside, id);
        };
        let Some(context) = self.contexts.get_mut(me.0 as usize) else {
            return false;
        };
        if kind == LockKind::Masking {
            context.masked += 1;
        }
        if context.in_interrupt && kind == LockKind::Plain {
            let what = format!(
                "{} is taken by an interrupt handler, which its maker did not say",
                self.locks.title(id)
            );
            self.report(host, ReportKind::LockInInterrupt, format_args!("{what}"));
        }
        self.check_order(me, id, host);
        self.retake(me, id)
    }

    /// `me`, with whatever it holds, takes `id`.
    fn check_order(&mut self, me: ContextId, id: LockId, host: HostId) {
        let Some(context) = self.context(me) else {
            return;
        };
        if context.locks.is_empty() && context.gates.is_empty() {
            return;
        }
        let held: Vec<LockId> = context
            .locks
            .iter()
            .chain(&context.gates)
            .copied()
            .collect();
        let title = self.locks.title(id);
        if held.contains(&id) {
            let what = format_args!("{title} is taken by who holds it");
            self.report(host, ReportKind::SelfDeadlock, what);
        }
        for other in held {
            if self.locks.note_order(other, id) {
                let other = self.locks.title(other);
                let what = format_args!(
                    "{title} is taken with {other} held, and elsewhere the other way round"
                );
                self.report(host, ReportKind::InvertedOrder, what);
            }
        }
    }

    /// Another try of `me`; true if it has it now. Else it waits.
    fn retake(&mut self, me: ContextId, id: LockId) -> bool {
        if self.try_take(Holder::Context(me), id) {
            let gate = self
                .locks
                .get(id)
                .is_some_and(|lock| lock.kind == LockKind::Gate);
            if let Some(context) = self.context_mut(me) {
                let list = if gate {
                    &mut context.gates
                } else {
                    &mut context.locks
                };
                list.push(id);
            }
            return true;
        }
        if let Some(lock) = self.locks.get_mut(id) {
            lock.waiters.push(me);
        }
        self.wait(me, Waiting::Lock(id), Instant::NEVER);
        false
    }

    fn try_take(&mut self, holder: Holder, id: LockId) -> bool {
        match self.locks.get_mut(id) {
            Some(lock) if lock.holder.is_none() => {
                lock.holder = Some(holder);
                true
            }
            _ => false,
        }
    }

    fn give_back(&mut self, me: Option<ContextId>, id: LockId) {
        let holder = me.map_or(Holder::Outside, Holder::Context);
        let Some(lock) = self.locks.get_mut(id) else {
            return;
        };
        let (host, kind) = (lock.host, lock.kind);
        if lock.holder != Some(holder) {
            let what = format!("{} is released by who does not hold it", lock.title());
            return self.report(host, ReportKind::NotHeld, format_args!("{what}"));
        }
        lock.holder = None;
        let waiters = core::mem::take(&mut lock.waiters);
        if let Some(context) = me.and_then(|me| self.context_mut(me)) {
            context.locks.retain(|held| *held != id);
            context.gates.retain(|held| *held != id);
            if kind == LockKind::Masking {
                context.masked = context.masked.saturating_sub(1);
            }
        }
        // All of them try; the dice say who is first.
        for waiter in waiters {
            self.wake(waiter);
        }
    }
}

/// A lock or gate of one machine.
struct Raw {
    shared: Arc<Shared>,
    id: LockId,
    name: &'static str,
}

impl Raw {
    fn new(platform: &SimPlatform, name: &'static str, kind: LockKind) -> Self {
        let (shared, host) = (platform.shared.clone(), platform.host);
        let id = shared.with(|engine| engine.locks.make(host, name, kind));
        Self { shared, id, name }
    }

    fn take(&self) {
        let me = self.shared.me();
        let mut taken = self.shared.access(|engine| engine.take(me, self.id));
        while !taken {
            context::suspend();
            taken = self
                .shared
                .with(|engine| me.is_some_and(|me| engine.retake(me, self.id)));
        }
    }

    fn give_back(&self) {
        let me = self.shared.me();
        let step = self.shared.with(|engine| {
            engine.give_back(me, self.id);
            me.map_or(Step::Go, |me| engine.step(me))
        });
        if let Some(me) = me {
            self.shared.rest_of_point(me, step);
        }
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        self.shared.with(|engine| engine.locks.drop(self.id));
    }
}

/// A lock of a simulated machine.
pub struct SimLock(Raw);

impl SimLock {
    pub(super) fn new(platform: &SimPlatform, name: &'static str, kind: LockKind) -> Self {
        Self(Raw::new(platform, name, kind))
    }
}

impl fmt::Debug for SimLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimLock({:?})", self.0.name)
    }
}

// SAFETY: `Engine` gives a lock to one holder at a time, and `acquire` returns when it is that one.
unsafe impl RawLock for SimLock {
    fn acquire(&self) -> Saved {
        self.0.take();
        Saved(0)
    }

    unsafe fn release(&self, _: Saved) {
        self.0.give_back();
    }
}

/// A gate of a simulated machine.
pub struct SimGate(Raw);

impl SimGate {
    pub(super) fn new(platform: &SimPlatform, name: &'static str) -> Self {
        Self(Raw::new(platform, name, LockKind::Gate))
    }
}

impl fmt::Debug for SimGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimGate({:?})", self.0.name)
    }
}

// SAFETY: as for `SimLock`.
unsafe impl RawGate for SimGate {
    fn enter(&self) {
        if let Some(me) = self.0.shared.me() {
            let what = format!("enters gate \"{}\"", self.0.name);
            self.0.shared.with(|engine| engine.may_block(me, &what));
        }
        self.0.take();
    }

    unsafe fn leave(&self) {
        self.0.give_back();
    }
}

/// A completion of a simulated machine. Also a bell: [`Wake::wake`] is [`Completion::fire`], so that a context can
/// be woken by a driver and poll.
pub struct SimCompletion {
    shared: Arc<Shared>,
    host: HostId,
    index: usize,
}

impl fmt::Debug for SimCompletion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SimCompletion").field(&self.index).finish()
    }
}

/// How a look at a completion went.
enum Look {
    Fired,
    TooLate,
    Waits,
}

impl SimCompletion {
    pub(super) fn new(platform: &SimPlatform) -> Self {
        let (shared, host) = (platform.shared.clone(), platform.host);
        let index = shared.with(|engine| {
            let state = CompletionState::default();
            match engine.free_completions.pop() {
                Some(index) => {
                    if let Some(slot) = engine.completions.get_mut(index) {
                        *slot = state;
                    }
                    index
                }
                None => {
                    engine.completions.push(state);
                    engine.completions.len() - 1
                }
            }
        });
        Self {
            shared,
            host,
            index,
        }
    }

    fn look(&self, engine: &mut Engine, me: Option<ContextId>, deadline: Instant) -> Look {
        engine.refresh();
        let now = engine.now;
        let Some(state) = engine.completions.get_mut(self.index) else {
            return Look::TooLate;
        };
        if state.fired {
            *state = CompletionState::default();
            return Look::Fired;
        }
        if state.waiter == me {
            state.waiter = None;
        }
        let Some(me) = me else {
            assert!(
                now >= deadline,
                "only a context of a world can wait; spawn one"
            );
            return Look::TooLate;
        };
        let other = state.waiter.is_some();
        if now >= deadline || !engine.may_block(me, "waits for a completion") {
            return Look::TooLate;
        }
        if other {
            let what = format_args!("two contexts wait for one completion");
            engine.report(self.host, ReportKind::TwoWaiters, what);
        }
        if let Some(state) = engine.completions.get_mut(self.index) {
            state.waiter = Some(me);
        }
        engine.wait(me, Waiting::Completion, deadline);
        Look::Waits
    }
}

impl Completion for SimCompletion {
    fn fire(&self) {
        self.shared.with(|engine| {
            if let Some(state) = engine.completions.get_mut(self.index) {
                state.fired = true;
                if let Some(waiter) = state.waiter.take() {
                    engine.wake(waiter);
                }
            }
        });
        self.shared.nudge();
    }

    fn wait_until(&self, deadline: Instant) -> bool {
        let me = self.shared.me();
        let mut look = self.shared.access(|engine| self.look(engine, me, deadline));
        loop {
            match look {
                Look::Fired => return true,
                Look::TooLate => return false,
                Look::Waits => context::suspend(),
            }
            look = self.shared.with(|engine| self.look(engine, me, deadline));
        }
    }
}

impl Wake for SimCompletion {
    fn wake(&self) {
        self.fire();
    }
}

impl Drop for SimCompletion {
    fn drop(&mut self) {
        self.shared.with(|engine| {
            engine.free_completions.push(self.index);
        });
    }
}
