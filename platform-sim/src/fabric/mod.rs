//! The InfiniBand fabric of the simulator: packets from LRH to VCRC, bit for bit.
//!
//! * [`topology`] says what is plugged into what: read from files, written to them, or built;
//! * [`Fabric`] makes it run, and is a [`Wire`](crate::machine::Wire) for the machines at its ends;
//! * [`Link`] is one direction of a cable; [`Faulty`] and [`Tap`] are links around a link;
//! * [`NodeState`] is what the agents of a node know, [`process_smp`] and [`process_perf`] are the agents, [`Smi`] the
//!   rules of directed routes: the switches use them, and the firmware of the HCA models does; [`serve_special`] is all
//!   of them behind one door.

mod agent;
mod arbiter;
mod buffer;
mod capture;
mod counters;
mod engine;
mod fault;
mod link;
mod node;
mod options;
mod pma;
mod port;
mod sma;
mod switch;
#[cfg(test)]
mod tests;
pub mod topology;
mod trap;

pub use agent::{Outgoing, serve as serve_special, trap as trap_packet};
pub use capture::{Capture, Memory, Tap};
pub use core_ib::wire::mad::{Smi, Turn};
pub use counters::{Counter, PortCounts};
pub use engine::Fabric;
pub use fault::{FaultCounts, FaultHandle, Faults, Faulty};
pub use link::{Arrival, Line, Link};
pub use node::{Effect, NodeState, PortCaps, PortState, SwitchState};
pub use options::Options;
pub use pma::{is_perf, process_perf};
pub use sma::{Answer, SmpContext, process_smp};
pub use topology::Topology;
pub use trap::{BadKey, KeyViolation};
