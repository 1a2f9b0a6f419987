//! The control path of the InfiniHost driver on the model, on a chip of each interface: the tests of `suite.rs`, once for each.

#![expect(clippy::duplicate_mod, reason = "the same tests, of another chip")]

mod arbel;
mod tavor;
