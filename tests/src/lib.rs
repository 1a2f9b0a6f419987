//! Tests that cross the project's crates.
