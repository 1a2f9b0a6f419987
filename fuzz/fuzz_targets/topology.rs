//! Topology files.
#![no_main]
use platform_sim::fabric::Topology;
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| drop(Topology::parse(&String::from_utf8_lossy(bytes))));
