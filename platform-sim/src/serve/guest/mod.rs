//! A guest of whom nothing is believed: a program, made of bytes, that uses an HCA as drivers do and as they must not.
//!
//! It is what a fuzzer drives in place of a virtual machine. The HCA is behind a [`Session`], so that its memory is what
//! the guest maps and unmaps; the two ports are connected to each other. A program ([`program`]) mostly does what a
//! driver would do ([`forms`]), or bytes would never come past the first command, and changes some of it.
//!
//! Found out is: nothing panics, no call takes forever, and the device reaches nothing but what is mapped, in the
//! direction that it is mapped for.

mod forms;
mod machine;
mod program;
mod rings;

#[cfg(test)]
mod tests;

pub use program::drive_untrusted;
