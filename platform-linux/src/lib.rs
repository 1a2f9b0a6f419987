//! The Rust side of a binding to a kernel: the platform contract over functions of that kernel, and a host as functions
//! that it calls.
//!
//! The kernel side is Linux's in `kmod/`, and a program's in `harness/`. `include/openib.h` is the contract between the
//! two sides, generated from this crate; `docs/embedding.md` says how a third is written. `archive/` makes a static
//! library of all of it.
//!
//! | file | what |
//! | --- | --- |
//! | `os` | what is asked of a kernel |
//! | `entry` | what a kernel calls, from which context |
//! | `machine`, `lock` | the platform contract over `os` |
//! | `host`, `counters` | the HCA, the stack over it, and its rounds |
//! | `logger` | the log, and last words |
#![no_std]

#[cfg(test)]
extern crate std;

mod counters;
pub mod entry;
#[cfg(test)]
mod fake;
mod host;
mod lock;
mod logger;
mod machine;
pub mod os;
#[cfg(test)]
mod tests;

pub use host::Host;
pub use logger::panic;
