//! MADs from anybody, and what becomes of a communication manager that takes them.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    ib_mad::read_untrusted(bytes);
    ib_cm::read_untrusted(bytes);
});
