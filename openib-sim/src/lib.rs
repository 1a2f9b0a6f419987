//! The InfiniBand simulator as a program: a fabric from a file, hosts in process, faults on command.

// By `say!` and `complain!`, which do not panic over a closed stream.
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod bench;
pub mod demo;
pub mod demo_tun;
pub mod drawing;
pub mod ended;
pub mod host;
pub mod ip;
pub mod logger;
pub mod model;
pub mod options;
pub mod out;
pub mod peer;
pub mod relay;
pub mod serve;
pub mod sim;
mod sums;
pub mod tun;
