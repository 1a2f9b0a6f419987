//! Interrupts of a host: which vectors are bound, which are pending, who handles them.

use super::context::ContextId;
use core::ptr::NonNull;
use core_ib::platform::{Handled, Handler};

/// A bound handler. Whoever bound it keeps it valid until it is unbound.
#[derive(Clone, Copy)]
pub(super) struct HandlerRef(NonNull<dyn Handler>);

// SAFETY: handlers are `Sync`, so that any thread may call one through a shared reference.
unsafe impl Send for HandlerRef {}

impl HandlerRef {
    /// # Safety
    ///
    /// `handler` stays valid as long as any copy of this is called.
    pub(super) const unsafe fn new(handler: NonNull<dyn Handler>) -> Self {
        Self(handler)
    }

    /// Calls it.
    pub(super) fn call(self) -> Handled {
        // SAFETY: the maker promised it. `Interrupts` gives a copy to a context that then counts as running, and
        // `unbind_interrupt` does not return while one does.
        unsafe { self.0.as_ref() }.handle()
    }
}

/// How many times in a row a pin may find nobody who wants it.
const PATIENCE: u32 = 1000;

/// One vector.
#[derive(Default)]
struct Vector {
    handler: Option<HandlerRef>,
    pending: bool,
    running: Option<ContextId>,
    waiters: Vec<ContextId>,
    unwanted: u32,
    /// Nobody wanted it for too long.
    disabled: bool,
}

/// What the vectors of a host are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Delivery {
    Pin,
    Messages,
}

/// All vectors of a host.
pub(super) struct Interrupts {
    pub(super) delivery: Delivery,
    line: bool,
    vectors: Vec<Vector>,
}

impl Interrupts {
    pub(super) fn new() -> Self {
        Self {
            delivery: Delivery::Pin,
            line: false,
            vectors: vec![Vector::default()],
        }
    }

    /// Starts anew with `count` vectors. False, and nothing done, if one is bound.
    pub(super) fn set_up(&mut self, delivery: Delivery, count: u16) -> bool {
        if self.any_bound() {
            return false;
        }
        self.delivery = delivery;
        self.vectors.clear();
        self.vectors
            .resize_with(usize::from(count), Vector::default);
        true
    }

    /// Vectors that are bound.
    pub(super) fn bound(&self) -> usize {
        let bound = self
            .vectors
            .iter()
            .filter(|vector| vector.handler.is_some());
        bound.count()
    }

    pub(super) fn any_bound(&self) -> bool {
        self.vectors.iter().any(|vector| vector.handler.is_some())
    }

    /// False if there is no such vector, or it is bound.
    pub(super) fn bind(&mut self, vector: u16, handler: HandlerRef) -> bool {
        match self.vectors.get_mut(usize::from(vector)) {
            Some(vector) if vector.handler.is_none() => {
                *vector = Vector::default();
                vector.handler = Some(handler);
                true
            }
            _ => false,
        }
    }

    /// No handler starts from now on. Gives who runs it at present, whom `waiter` is to wait for.
    pub(super) fn unbind(&mut self, vector: u16, waiter: Option<ContextId>) -> Option<ContextId> {
        let vector = self.vectors.get_mut(usize::from(vector))?;
        vector.handler = None;
        vector.pending = false;
        let running = vector.running?;
        vector.waiters.extend(waiter);
        Some(running)
    }

    /// The pin's level.
    pub(super) fn set_line(&mut self, asserted: bool) {
        self.line = asserted;
    }

    /// A message came in. False if nothing is bound to it.
    pub(super) fn message(&mut self, vector: u16) -> bool {
        match self.vectors.get_mut(usize::from(vector)) {
            Some(vector) if vector.handler.is_some() => {
                vector.pending = true;
                true
            }
            _ => false,
        }
    }

    fn is_due(&self, vector: &Vector) -> bool {
        let pending = match self.delivery {
            Delivery::Pin => self.line,
            Delivery::Messages => vector.pending,
        };
        pending && vector.handler.is_some() && vector.running.is_none() && !vector.disabled
    }

    /// How many vectors could be handled now.
    pub(super) fn due(&self) -> usize {
        self.vectors
            .iter()
            .filter(|vector| self.is_due(vector))
            .count()
    }

    /// Starts the `choice`-th of those that are due, in context `by`.
    pub(super) fn begin(&mut self, choice: usize, by: ContextId) -> Option<(u16, HandlerRef)> {
        let all = self.vectors.iter().enumerate();
        let mut due = all.filter(|(_, vector)| self.is_due(vector));
        let index = due.nth(choice)?.0;
        let vector = self.vectors.get_mut(index)?;
        vector.pending = false;
        vector.running = Some(by);
        Some((index as u16, vector.handler?))
    }

    /// The handler has returned. Gives who waited for that, and whether this was once too often that nobody wanted
    /// the pin: it is switched off then.
    pub(super) fn end(&mut self, vector: u16, handled: Handled) -> (Vec<ContextId>, bool) {
        let shared = self.delivery == Delivery::Pin;
        let Some(vector) = self.vectors.get_mut(usize::from(vector)) else {
            return (Vec::new(), false);
        };
        vector.running = None;
        vector.unwanted = match handled {
            Handled::Yes => 0,
            Handled::No => vector.unwanted + 1,
        };
        let nobody = shared && vector.unwanted >= PATIENCE && !vector.disabled;
        vector.disabled |= nobody;
        (core::mem::take(&mut vector.waiters), nobody)
    }
}
