//! A driver on a device that lies.
#![no_main]

// Of the crate `openib-tests` only this: the rest of it would have to be built for nothing.
#[allow(unused, reason = "others leave the lies to chance")]
#[path = "../../tests/src/hostile/mod.rs"]
mod hostile;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hostile::drive_untrusted(bytes));
