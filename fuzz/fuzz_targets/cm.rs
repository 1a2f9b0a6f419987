//! Messages of communication management from anybody.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ib_cm::read_untrusted(bytes));
