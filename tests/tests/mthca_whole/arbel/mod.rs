//! On the MT25208 as it is without an MT23108's firmware: mem-free.

use platform_sim::hca::infinihost::Variant;

const VARIANT: Variant = Variant::Arbel;

#[path = "../suite.rs"]
mod suite;
