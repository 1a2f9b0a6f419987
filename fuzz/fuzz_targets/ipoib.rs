//! Frames of IP over InfiniBand.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| core_ib::wire::ipoib::read_untrusted(bytes));
