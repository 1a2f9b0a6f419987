//! Atomic words and cells of what is shared without a lock of the machine: those of `core`. In the tests of this
//! crate under `--cfg loom` they are loom's, so that those (`loom_…`) go through every interleaving of the code itself, and of what memory may show.

#[cfg(not(all(test, loom)))]
pub use core::sync::atomic;
#[cfg(all(test, loom))]
pub use loom::{cell::UnsafeCell, sync::atomic};

/// Memory behind a shared reference. Loom's of the same name notes who is inside, and when.
#[cfg(not(all(test, loom)))]
#[derive(Debug)]
pub struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

#[cfg(not(all(test, loom)))]
impl<T> UnsafeCell<T> {
    /// Holds `value`.
    pub const fn new(value: T) -> Self {
        Self(core::cell::UnsafeCell::new(value))
    }

    /// Runs `f` on the value, which others may read, too.
    #[inline(always)]
    pub fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        f(self.0.get())
    }

    /// Runs `f` on the value, which is `f`'s alone.
    #[inline(always)]
    pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }

    /// The value.
    pub fn into_inner(self) -> T {
        self.0.into_inner()
    }
}
