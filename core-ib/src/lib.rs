//! The hardware-agnostic core of an InfiniBand stack.
//!
//! * [`types`]: the numbers of the field, each a type of its own (LID, GID, PSN, keys …);
//! * [`wire`]: every header of native InfiniBand and every management datagram, as views over bytes and as
//!   values;
//! * [`platform`]: the one seam between this stack and the machine it runs on;
//! * [`verbs`]: what a consumer sees of an HCA.
//!
//! Nothing here allocates, knows a device, or has a clock of its own.
#![no_std]

pub mod platform;
#[doc(hidden)]
pub mod sync;
pub mod types;
pub mod verbs;
pub mod wire;

pub use types::*;
