//! Registers, contexts, entries of queues, and answers of an HCA.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    hca_abi::read_untrusted(bytes);
    mthca_hw::read_untrusted(bytes);
});
