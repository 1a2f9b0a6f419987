//! The InfiniBand fabric of the simulator.

mod capture;
mod fault;
mod link;
pub mod topology;

pub use capture::{Capture, Memory, Tap};
pub use fault::{FaultCounts, FaultHandle, Faults, Faulty};
pub use link::{Arrival, Line, Link};
pub use topology::Topology;
