//! The conformance suite: what `docs/reference/verbs.md` ("verbs") says that a consumer may rely on, as functions over
//! any HCA.
//!
//! A case is a function generic over a [`Rig`], which has two HCAs on one cable. Its name is the sentence that it
//! proves; the numbers behind "verbs" and "T" in its comment are the section and the line of chapter 14. A case knows
//! nothing of the device but [`Verbs`](core_ib::verbs::Verbs) and what the rig [declares](Declared): the choices that
//! the reference leaves to devices, and which features there are. Where a feature is missing, the case proves that the
//! answer is `Unsupported`.
//!
//! A case leaves its objects behind: each runs in a rig of its own. [`conformance!`](crate::conformance!) makes a test
//! of each; all of them for the next driver is one line.

mod declared;
mod list;
mod not_covered;
mod rig;

pub mod address;
pub mod checksums;
pub mod churn;
pub mod connected;
pub mod cq;
pub mod crowd;
pub mod failure;
pub mod fmr;
pub mod hca_and_port;
pub mod keys;
pub mod memory;
pub mod migration;
pub mod multicast;
pub mod objects;
pub mod posting;
pub mod qp_masks;
pub mod qp_states;
pub mod rdma;
pub mod reliable;
pub mod srq;
pub mod tools;
pub mod windows;

pub use declared::{Declared, Features, Hears, Refusal, TooLong};
pub use not_covered::NOT_COVERED;
pub use rig::{Filter, Rig, Side};
