//! Tests that cross the project's crates.

pub mod conformance;
pub mod hostile;
pub mod programs;
pub mod scenario;

/// The examples of the README compile.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
pub struct Readme;
