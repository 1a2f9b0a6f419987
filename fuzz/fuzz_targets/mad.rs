//! MADs from anybody.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ib_mad::read_untrusted(bytes));
