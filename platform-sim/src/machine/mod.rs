//! A machine: what hosts a PCI function, and what runs the drivers on it.

mod config;
mod dice;
mod function;
mod ledger;
mod msix;
mod pci;
mod wire;

pub use config::{ConfigSpace, Identity};
pub use dice::SplitMix64;
pub use function::{
    Bus, DmaFault, LinkControl, LinkParameters, LinkSpeed, LinkWidth, Message, PciFunction,
    SendQueueFull, TimerId,
};
pub use ledger::Ledger;
pub use msix::Msix;
pub use pci::PciCore;
pub use wire::{Cable, Delivery, Wire, WireEnd};
