//! On the MT23108, which has memory of its own.

use platform_sim::hca::infinihost::Variant;

const VARIANT: Variant = Variant::Tavor;

#[path = "../suite.rs"]
mod suite;
