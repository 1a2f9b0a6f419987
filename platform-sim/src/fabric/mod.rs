//! The InfiniBand fabric of the simulator.

mod capture;
mod counters;
mod fault;
mod link;
mod node;
mod pma;
mod sma;
mod smi;
pub mod topology;
mod trap;

pub use capture::{Capture, Memory, Tap};
pub use counters::{Counter, PortCounts};
pub use fault::{FaultCounts, FaultHandle, Faults, Faulty};
pub use link::{Arrival, Line, Link};
pub use node::{Effect, NodeState, PortCaps, PortState, SwitchState};
pub use pma::{is_perf, process_perf};
pub use sma::{Answer, SmpContext, process_smp};
pub use smi::{Smi, Turn};
pub use topology::Topology;
pub use trap::{BadKey, KeyViolation};
