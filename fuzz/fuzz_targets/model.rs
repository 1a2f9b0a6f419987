//! A guest that uses an HCA as drivers must not.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| platform_sim::serve::drive_untrusted(bytes));
