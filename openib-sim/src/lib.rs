//! The InfiniBand simulator as a program: a fabric from a file, hosts in process, faults on command.

pub mod ip;
pub mod logger;
pub mod serve;
pub mod tun;
