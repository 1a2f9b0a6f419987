//! Packets off a wire.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| core_ib::wire::packet::read_untrusted(bytes));
