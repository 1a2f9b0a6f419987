//! The hardware's own language of InfiniHost and ConnectX HCAs as plain data: registers, commands, contexts, queue
//! entries.
//!
//! A layout is written once, and drivers and device models both stand on it. Structures are bytes in the HCA's order,
//! so a cast (`zerocopy`) reads them from memory and writes them back; accessors give and take plain integers of a
//! stated width, or newtypes for sets of named values. Nothing here behaves, allocates or can fail: a writer keeps
//! the low bits of a value that is too wide for its field, a reader ignores the bits around the field.
#![no_std]
#![deny(missing_docs)]

#[macro_use]
mod layout;

pub mod infinihost;
mod untrusted;

pub use untrusted::read_untrusted;
