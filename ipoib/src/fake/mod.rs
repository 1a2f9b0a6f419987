//! For tests: a machine of heap memory, HCAs that know UD alone, a wire between them, and an SA.
//!
//! Just enough of verbs to hold the rings to their contract, and strict where silicon is not: a send reads its frame and
//! its address handle when its turn comes and not when it is posted, a packet is written into memory that a live region
//! covers or not at all, and what is left behind is counted.

mod fabric;
mod hca;
mod machine;
mod sa;

pub(crate) use fabric::{Fabric, HcaState, Packet, QpState as FakeQpState};
pub(crate) use hca::Hca;
pub(crate) use machine::Machine;
pub(crate) use sa::Sa;
