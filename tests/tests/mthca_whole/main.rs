//! The InfiniHost driver on the model, from bring-up to teardown, on a chip of each interface: the tests of `suite.rs`, once for each.

#![expect(clippy::duplicate_mod, reason = "the same tests, of another chip")]

mod arbel;
mod tavor;
