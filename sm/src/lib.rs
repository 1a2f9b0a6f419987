//! An InfiniBand subnet manager and subnet administrator that runs over verbs, on any host.
//!
//! It is a state machine without a device, a clock, an allocator or a callback. Its owner tells it what happened (an
//! [`Event`]: an SMP or a GMP came, a send failed, the local port changed) and asks what to do (an [`Action`]: send
//! this SMP or GMP, wait until then, tell a person). Behaviour: protocols 9 and 3.11; administration: protocols 4.
//!
//! # The owner's part
//!
//! * Memory: a [`Store`] (every platform is one, by reference) and a [`Profile`] that says how large a subnet is to
//!   fit. A table that overflows is named, and the rest goes on.
//! * SMPs: it runs the directed-route rules of the node (protocols 3.5) over what goes out and comes in. One of no
//!   hops goes to the node's own SMA, and the SMA's answer comes back as an event. Of requests that others send, the
//!   node's SMA gets all but Get and Set of SMInfo, and traps: these are the manager's.
//! * GMPs: those of class 0x03 that are requests to the administrator, responses to its reports, or RMPP packets of its
//!   transfers. What to register with a MAD dispatcher is [`REGISTRATIONS`].
//! * It sets bit IsSM of the port as it is told, and calls `poll` until it is told to wait: after every event, and at
//!   the instant given.
//!
//! Calls never block and may be made in a soft interrupt.
#![no_std]

mod api;
mod config;
mod discover;
mod elect;
mod error;
mod fabric;
mod lid;
mod link;
mod manager;
mod multicast;
mod notice;
mod profile;
mod route;
mod sa;
mod sm;
mod smp;
mod store;
mod subnet;
mod sweep;
mod table;

pub use api::{Action, Event, Level, Report, Role};
pub use config::{Broadcast, Config, DEFAULT_BASE, Membership, Partition, Qos};
pub use error::SmError;
pub use profile::Profile;
pub use sm::{REGISTRATIONS, Sm};
pub use store::Store;
