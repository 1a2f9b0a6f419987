//! Tests that cross the project's crates.

pub mod conformance;
