//! A processor context: a coroutine with a stack of its own, so that driver code can block without a thread.
//!
//! All the `unsafe` of switching stacks is here. The rules that make it right:
//!
//! * a fiber that has run once runs on that thread only (checked at each resume), so it may be `Send` before;
//! * one that has not finished when it is dropped is forgotten with all that is on its stack, as when a machine loses
//!   its power: no destructor runs, and the stack stays allocated, so that nothing that borrowed from it dangles;
//! * what needs a big stack (device models, reports) runs on the scheduler's, where nobody may wait.

use core::cell::Cell;
use core::mem::ManuallyDrop;
use core::ptr::NonNull;
use corosensei::stack::{DefaultStack, Stack};
use corosensei::{Coroutine, CoroutineResult, Yielder};
use std::sync::Once;
use std::thread::ThreadId;

/// Which context of a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ContextId(pub(super) u32);

#[derive(Clone, Copy)]
struct Current {
    world: u64,
    context: ContextId,
    /// The yielder of the coroutine that runs, while its own stack is in use.
    yielder: Option<NonNull<Yielder<(), ()>>>,
}

thread_local! {
    static CURRENT: Cell<Option<Current>> = const { Cell::new(None) };
}

/// The context of world `world` that runs on this thread.
pub(super) fn current(world: u64) -> Option<ContextId> {
    let current = CURRENT.get()?;
    (current.world == world).then_some(current.context)
}

/// Gives way to the scheduler; returns when it resumes this context.
///
/// # Panics
///
/// If no context runs, or it runs on the scheduler's stack: nobody could resume it.
pub(super) fn suspend() {
    let yielder = CURRENT.get().and_then(|current| current.yielder);
    let Some(yielder) = yielder else {
        panic!("only a context of a world can wait; spawn one");
    };
    // SAFETY: `CURRENT` names a yielder only while its coroutine runs on its own stack on this thread; it lives in
    // the coroutine's first frame, which is below ours.
    unsafe { yielder.as_ref() }.suspend(());
}

/// Runs `f` on the scheduler's stack if a context runs, else here. `f` cannot wait.
pub(super) fn on_big_stack<R>(f: impl FnOnce() -> R) -> R {
    /// Claims that a value may go where it is sent.
    struct Carried<T>(T);
    // SAFETY: it goes to another stack and not to another thread. The bound keeps yielders of this stack from the
    // other; no yielder leaves this file, and `suspend`, the one function that uses them, refuses there.
    unsafe impl<T> Send for Carried<T> {}
    impl<R, F: FnOnce() -> R> Carried<F> {
        fn run(self) -> R {
            (self.0)()
        }
    }

    let Some(current) = CURRENT.get() else {
        return f();
    };
    let Some(yielder) = current.yielder else {
        return f();
    };
    let _restore = Restore(Some(current));
    CURRENT.set(Some(Current {
        yielder: None,
        ..current
    }));
    let f = Carried(f);
    // SAFETY: as in `suspend`. Suspending from within `f` would corrupt both stacks; `suspend` finds no yielder
    // there and refuses.
    unsafe { yielder.as_ref() }.on_parent_stack(move || f.run())
}

/// Puts back what was current, also when unwinding.
struct Restore(Option<Current>);

impl Drop for Restore {
    fn drop(&mut self) {
        CURRENT.set(self.0);
    }
}

/// Lets the panic hook print from the scheduler's stack: it needs more than a context has.
fn print_panics_on_the_big_stack() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            on_big_stack(|| print(info));
        }));
    });
}

/// What a context will run.
pub(super) struct Body {
    run: ManuallyDrop<Box<dyn FnOnce() + Send>>,
    /// It borrows from a stack that may be gone when it is dropped without having run.
    borrows: bool,
}

impl Body {
    pub(super) fn new(run: Box<dyn FnOnce() + Send>) -> Self {
        Self {
            run: ManuallyDrop::new(run),
            borrows: false,
        }
    }

    /// # Safety
    ///
    /// What `run` borrows stays valid until it has run to its end, or will never be resumed. Dropped without having
    /// run, it is forgotten.
    pub(super) unsafe fn borrowing<'a>(run: Box<dyn FnOnce() + Send + 'a>) -> Self {
        // SAFETY: the two types differ in the lifetime alone, which the caller looks after.
        let run: Box<dyn FnOnce() + Send> = unsafe { core::mem::transmute(run) };
        Self {
            run: ManuallyDrop::new(run),
            borrows: true,
        }
    }

    fn run(mut self) {
        // SAFETY: taken once: `self` is forgotten.
        let run = unsafe { ManuallyDrop::take(&mut self.run) };
        core::mem::forget(self);
        run();
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        if !self.borrows {
            // SAFETY: not used after this.
            unsafe { ManuallyDrop::drop(&mut self.run) };
        }
    }
}

/// How far a resumed fiber came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// It gave way.
    Suspended,
    /// It is done.
    Finished,
}

/// A coroutine and where its yielder is.
pub(super) struct Fiber {
    coroutine: ManuallyDrop<Coroutine<(), (), (), DefaultStack>>,
    yielder: Option<NonNull<Yielder<(), ()>>>,
    thread: Option<ThreadId>,
    /// Lowest address of the stack that may be touched, and the first above it.
    bounds: (usize, usize),
}

// SAFETY: before its first resume a fiber holds a `Body`, which is `Send`. After that `resume` refuses every other
// thread, and `drop` leaves a suspended one alone; a finished one holds nothing but memory.
unsafe impl Send for Fiber {}

impl Fiber {
    /// Will run `body` on a stack of at least `stack` bytes, below which is a guard page.
    pub(super) fn new(stack: usize, body: Body) -> std::io::Result<Self> {
        print_panics_on_the_big_stack();
        let size = stack.next_multiple_of(4096);
        let stack = DefaultStack::new(size)?;
        let top = stack.base().get();
        // All of this lies above the guard page.
        let bounds = (top - size, top);
        let coroutine = Coroutine::with_stack(stack, move |yielder: &Yielder<(), ()>, ()| {
            if let Some(current) = CURRENT.get() {
                let yielder = Some(NonNull::from(yielder));
                CURRENT.set(Some(Current { yielder, ..current }));
            }
            body.run();
        });
        Ok(Self {
            coroutine: ManuallyDrop::new(coroutine),
            yielder: None,
            thread: None,
            bounds,
        })
    }

    /// Runs it as `context` of `world` until it gives way or is done. A panic inside comes out here, and is its end.
    ///
    /// # Panics
    ///
    /// If it has run on another thread.
    pub(super) fn resume(&mut self, world: u64, context: ContextId) -> Progress {
        let here = std::thread::current().id();
        let home = *self.thread.get_or_insert(here);
        assert!(
            home == here,
            "a world whose contexts have run stays on its thread"
        );
        let yielder = self.yielder;
        let restore = Restore(CURRENT.replace(Some(Current {
            world,
            context,
            yielder,
        })));
        let result = self.coroutine.resume(());
        self.yielder = CURRENT.get().and_then(|current| current.yielder);
        drop(restore);
        match result {
            CoroutineResult::Yield(()) => Progress::Suspended,
            CoroutineResult::Return(()) => Progress::Finished,
        }
    }

    /// Can it be resumed on this thread?
    pub(super) fn is_home(&self) -> bool {
        let here = std::thread::current().id();
        self.thread.is_none_or(|home| home == here)
    }

    /// Most bytes of stack that it has ever used, to 8 bytes: down to the last word that is not zero, where so many
    /// bytes below are that no frame is likely to have left them out. The fiber is not running.
    pub(super) fn stack_used(&self) -> usize {
        const UNTOUCHED: usize = 128 << 10;
        let (low, top) = self.bounds;
        let words = (top - low) / 8;
        let first = core::ptr::with_exposed_provenance::<u64>(low);
        let mut used = 0;
        for depth in 1..=words {
            // SAFETY: within the stack's mapping and above its guard page, aligned; fresh pages read as zeroes and
            // the fiber does not run, so nothing changes meanwhile.
            let word = unsafe { first.add(words - depth).read_volatile() };
            if word != 0 {
                used = depth * 8;
            } else if depth * 8 > used + UNTOUCHED {
                break;
            }
        }
        used
    }
}

impl Drop for Fiber {
    fn drop(&mut self) {
        if self.coroutine.done() || !self.coroutine.started() {
            // SAFETY: not used after this. What is dropped is a stack without frames, or a `Body`.
            unsafe { ManuallyDrop::drop(&mut self.coroutine) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    const ID: ContextId = ContextId(3);

    fn fiber(run: impl FnOnce() + Send + 'static) -> Fiber {
        Fiber::new(32768, Body::new(Box::new(run))).unwrap()
    }

    #[test]
    fn a_fiber_goes_on_where_it_gave_way() {
        let steps = Arc::new(AtomicU32::new(0));
        let seen = steps.clone();
        let mut fiber = fiber(move || {
            assert_eq!(current(1), Some(ID));
            assert_eq!(current(2), None);
            seen.store(1, Ordering::Relaxed);
            suspend();
            seen.store(2, Ordering::Relaxed);
        });
        assert_eq!(fiber.resume(1, ID), Progress::Suspended);
        assert_eq!(steps.load(Ordering::Relaxed), 1);
        assert_eq!(current(1), None);
        assert_eq!(fiber.resume(1, ID), Progress::Finished);
        assert_eq!(steps.load(Ordering::Relaxed), 2);
        let used = fiber.stack_used();
        assert!((64..32768).contains(&used), "{used}");
    }

    #[test]
    fn what_runs_on_the_big_stack_cannot_wait_and_may_panic() {
        let mut fiber = fiber(|| {
            let here = [0_u8; 8];
            let there = on_big_stack(|| {
                let there = [0_u8; 8];
                there.as_ptr().addr()
            });
            assert!(there.abs_diff(here.as_ptr().addr()) > 32768);
            let refused = std::panic::catch_unwind(|| on_big_stack(suspend));
            assert!(refused.is_err());
            suspend();
        });
        assert_eq!(fiber.resume(1, ID), Progress::Suspended);
        assert_eq!(fiber.resume(1, ID), Progress::Finished);
    }

    #[test]
    fn a_panic_of_a_fiber_comes_out_of_its_resume() {
        let run = Body::new(Box::new(|| panic!("inside")));
        let mut fiber = Fiber::new(16384, run).unwrap();
        let resume = core::panic::AssertUnwindSafe(|| fiber.resume(1, ID));
        let caught = std::panic::catch_unwind(resume);
        assert_eq!(caught.unwrap_err().downcast_ref(), Some(&"inside"));
        assert_eq!(current(1), None);
    }

    #[test]
    fn a_fiber_that_never_ran_gives_back_what_it_was_given_and_a_suspended_one_does_not() {
        let token = Arc::new(());
        let held = token.clone();
        let run = move || {
            let _held = held;
            suspend();
        };
        drop(fiber(run.clone()));
        assert_eq!(Arc::strong_count(&token), 2, "ours and the one in `run`");
        let mut fiber = fiber(run);
        assert_eq!(fiber.resume(1, ID), Progress::Suspended);
        drop(fiber);
        assert_eq!(Arc::strong_count(&token), 2);
    }

    #[test]
    fn a_body_that_borrows_is_forgotten_if_it_never_ran() {
        let token = Arc::new(());
        let held = token.clone();
        let run = Box::new(move || drop(held));
        // SAFETY: it borrows nothing.
        drop(unsafe { Body::borrowing(run) });
        assert_eq!(Arc::strong_count(&token), 2);
    }

    #[test]
    fn a_fiber_that_has_run_refuses_another_thread() {
        let mut fiber = fiber(suspend);
        assert_eq!(fiber.resume(1, ID), Progress::Suspended);
        let other = std::thread::spawn(move || {
            let mut fiber = fiber;
            fiber.resume(1, ID)
        });
        assert!(other.join().is_err());
    }
}
