//! A machine: what hosts a PCI function, and what runs the drivers on it.

mod function;
mod ledger;

pub use function::{
    Bus, DmaFault, LinkControl, LinkParameters, LinkSpeed, LinkWidth, Message, PciFunction,
    SendQueueFull, TimerId,
};
pub use ledger::Ledger;
