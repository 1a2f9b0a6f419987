//! Atomic words and cells of what the driver shares without a lock of the machine: those of `core`. In the tests of this
//! crate under `--cfg loom` they are loom's, so that those (`loom_…`) go through every interleaving of the code itself,
//! and of what memory may show.

#[cfg(not(all(test, loom)))]
pub use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64};
#[cfg(not(all(test, loom)))]
pub use core_ib::sync::UnsafeCell;
#[cfg(all(test, loom))]
pub use loom::cell::UnsafeCell;
#[cfg(all(test, loom))]
pub use loom::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64};
