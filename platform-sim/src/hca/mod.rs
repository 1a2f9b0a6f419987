//! Device models: PCI functions that speak the language of `hca-abi`.

pub mod infinihost;
