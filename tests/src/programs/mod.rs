//! Random programs of verbs calls, on two HCAs joined by a cable and on a small `model` of what
//! `docs/reference/verbs.md` says, compared call by call and completion by completion.
//!
//! A [program](Program) names objects by place, so that it makes sense whatever lines are taken away: that is how a
//! failing one is made small. [`run`] knows nothing of the device but [`Verbs`](core_ib::verbs::Verbs) and what it
//! [declares](crate::conformance::Declared).
#![allow(
    missing_docs,
    reason = "names of the field, explained where they are used: this is a test"
)]

mod call;
mod carry;
mod exec;
mod lines;
mod model;
mod objects;
mod strategy;

pub use call::{
    Address, Call, Group, Key, Line, Name, Piece, Program, QKeyOf, Remote, Send, Twist, Verb,
};
pub use exec::{Disagreement, Pair, Tally, run};
pub use strategy::programs;
