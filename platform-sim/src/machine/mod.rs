//! A machine: what hosts a PCI function, and what runs the drivers on it.
//!
//! From below: [`PciFunction`] and [`Bus`] are the seam between a device model and its host; [`Wire`] is the one
//! between hosts and fabric. A [`World`] holds hosts, wire and clock; a [`SimPlatform`] is one host as a driver sees
//! it, and keeps the platform contract of `core-ib`.

mod clock;
mod config;
mod context;
mod dice;
mod engine;
mod exerciser;
mod function;
mod host;
mod interrupt;
mod ledger;
mod locks;
mod memory;
mod msix;
mod options;
mod pci;
mod platform;
mod report;
mod shared;
mod sync;
mod timeline;
mod trace;
mod wire;
mod world;

pub use clock::Waker;
pub use config::{ConfigSpace, Identity};
pub use dice::SplitMix64;
pub use exerciser::Exerciser;
pub use function::{
    Bus, DmaFault, LinkControl, LinkParameters, LinkSpeed, LinkWidth, Message, PciFunction,
    SendQueueFull, TimerId,
};
pub use host::{Fallible, Guest, HostId};
pub use ledger::Ledger;
pub use msix::Msix;
pub use options::{Config, Mode, Statistics};
pub use pci::PciCore;
pub use platform::{Scope, SimPlatform, SimRegisters, Task};
pub use report::{OnReport, Report, ReportKind};
pub use sync::{SimCompletion, SimGate, SimLock};
pub use trace::Listener;
pub use wire::{Cable, Delivery, Nowhere, Wire, WireEnd};
pub use world::{Outcome, Remote, Stuck, World};
