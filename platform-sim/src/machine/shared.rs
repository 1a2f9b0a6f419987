//! A world as its platforms see it: the engine behind its mutex, and the points at which driver code meets it.

use super::clock::Waker;
use super::context::{self, ContextId};
use super::engine::{Engine, Step, Waiting};
use core_ib::Instant;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::ThreadId;

/// See the module.
pub(super) struct Shared {
    /// Tells contexts of one world from those of another.
    pub(super) world: u64,
    engine: Mutex<Engine>,
    pub(super) waker: Waker,
    /// Where devices and the driver code of its contexts run.
    home: OnceLock<ThreadId>,
}

impl Shared {
    pub(super) fn new(world: u64, engine: Engine, waker: Waker) -> Self {
        Self {
            world,
            engine: Mutex::new(engine),
            waker,
            home: OnceLock::new(),
        }
    }

    /// The state. Never held while other code runs, so a panic cannot have left it half changed for long.
    pub(super) fn lock(&self) -> MutexGuard<'_, Engine> {
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What follows may make a device reach into memory, so it happens on one thread alone: that of the first such
    /// use.
    ///
    /// # Panics
    ///
    /// On another.
    pub(super) fn stay_home(&self) {
        let here = std::thread::current().id();
        let home = *self.home.get_or_init(|| here);
        assert!(
            home == here,
            "a world that has run, or whose devices were used, stays on its thread"
        );
    }

    /// The context that calls.
    pub(super) fn me(&self) -> Option<ContextId> {
        context::current(self.world)
    }

    /// `f` on the state, on the scheduler's stack. Panics afterwards if an offence was noted that is to.
    pub(super) fn with<R>(&self, f: impl FnOnce(&mut Engine) -> R) -> R {
        let (result, raised) = context::on_big_stack(|| {
            let mut engine = self.lock();
            let result = f(&mut engine);
            (result, engine.raised.take())
        });
        if let Some(raised) = raised {
            self.raise(raised);
        }
        result
    }

    #[cold]
    fn raise(&self, raised: String) {
        if !std::thread::panicking() {
            panic!("{raised}");
        }
    }

    /// A point, then `f` on the state.
    ///
    /// # Panics
    ///
    /// Away from home.
    pub(super) fn access<R>(&self, mut f: impl FnMut(&mut Engine) -> R) -> R {
        let Some(me) = self.me() else {
            self.stay_home();
            return self.with(f);
        };
        let first = self.with(|engine| match engine.step(me) {
            Step::Go => Ok(f(engine)),
            other => Err(other),
        });
        match first {
            Ok(result) => result,
            Err(step) => {
                self.rest_of_point(me, step);
                self.with(f)
            }
        }
    }

    /// A point: others may run, an interrupt may strike.
    pub(super) fn point(&self) {
        self.access(|_| ());
    }

    pub(super) fn rest_of_point(&self, me: ContextId, step: Step) {
        let mut step = step;
        if step == Step::GiveWay {
            context::suspend();
            step = self.with(|engine| engine.strike(me));
        }
        if step == Step::Strike {
            self.take_interrupt(me);
        }
    }

    /// Handles one interrupt on top of `me`, if one is due; says whether one was.
    pub(super) fn take_interrupt(&self, me: ContextId) -> bool {
        let Some((vector, handler)) = self.with(|engine| engine.begin_interrupt(me)) else {
            return false;
        };
        let handled = handler.call();
        self.with(|engine| engine.end_interrupt(me, vector, handled));
        true
    }

    /// Waits for `what`, at most until `deadline`, unless `ready` says that it is so already (asked at once with
    /// going to sleep).
    ///
    /// # Panics
    ///
    /// In no context.
    pub(super) fn block(
        &self,
        what: Waiting,
        deadline: Instant,
        ready: impl FnOnce(&mut Engine, ContextId) -> bool,
    ) {
        let Some(me) = self.me() else {
            panic!("only a context of a world can wait; spawn one");
        };
        let sleeps = self.with(|engine| {
            let ready = ready(engine, me);
            if !ready {
                engine.wait(me, what, deadline);
            }
            !ready
        });
        if sleeps {
            context::suspend();
        }
    }

    /// For who is not in a context: the scheduler may be asleep.
    pub(super) fn nudge(&self) {
        if self.me().is_none() {
            self.waker.wake();
        }
    }

    /// What the context that takes interrupts of an idle host does, until the world ends.
    pub(super) fn idle(&self) {
        let Some(me) = self.me() else {
            return;
        };
        // Looked at first: a world that ends resumes this once, and does not wait for what `point` would let in.
        while !self.with(|engine| engine.stopping) {
            self.point();
            if self.take_interrupt(me) {
                continue;
            }
            self.block(Waiting::Interrupts, Instant::NEVER, |engine, me| {
                if engine.stopping {
                    return true;
                }
                let host = engine.context(me).map(|context| context.host);
                let host = host.and_then(|id| engine.host(id));
                host.is_some_and(|host| host.interrupts.due() > 0)
            });
        }
    }
}
