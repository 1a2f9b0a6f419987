//! Messages of a virtual machine.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| platform_sim::serve::read_untrusted(bytes));
