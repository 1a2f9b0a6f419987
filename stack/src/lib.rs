//! One InfiniBand host assembled: management datagrams, the SA client, IP interfaces and, if wanted, a subnet manager,
//! over any HCA that has verbs and any machine that is a platform.
//!
//! The simulator's hosts, a kernel module and a bare machine all use this assembly. It owns no thread, no timer and no
//! lock. Its owner puts it where his contexts can reach it and drives it:
//!
//! ```text
//! let hca = Hca::open(&machine, &wake, &profile)?;              // the driver; control context
//! let mut stack = Stack::open(&machine, &hca, &config)?;        // control context
//!
//! loop {
//!     let next = stack.poll(machine.now())?;                    // never blocks: a soft interrupt may do it
//!     while let Some(job) = stack.next_job() {                  // what blocks …
//!         let done = job.run(&hca);                             // … is done where that is allowed, without the stack
//!         stack.job_done(done, machine.now());
//!     }
//!     while stack.receive(0, now, &mut |packet| …) {}           // IP packets of interface 0
//!     stack.send(0, packet, now)?;
//!     if !stack.arm()? {                                        // nothing new came while arming
//!         wait(next);                                           // for `wake`, or that instant
//!     }
//! }
//! ```
//!
//! A kernel polls in a soft interrupt under a lock of its own, and runs the jobs in a thread.
#![no_std]
// A MAD in an enum is 256 bytes more, and there is no allocator to box it with.
#![allow(clippy::large_enum_variant)]

mod cm;
mod config;
mod error;
mod job;
mod net;
mod port;
mod stack;

pub use cm::CmNews;
pub use config::{CmConfig, Config, InterfaceConfig, InterfaceKind, SubnetManager};
pub use error::StackError;
pub use ib_cm;
pub use ib_sm::{Profile as SmProfile, Report as SmReport, Role as SmRole};
pub use ipoib;
pub use job::{Job, JobDone};
pub use port::{PortStatistics, PortStatus};
pub use stack::{Stack, StackEvent};

/// Entries of a port's GID table that are kept: all that an InfiniHost has.
pub const GIDS: usize = 32;
/// Entries of a port's P_Key table that are kept: all that an InfiniHost has.
pub const PKEYS: usize = 64;
/// Ports of an HCA.
pub const MAX_PORTS: usize = 2;
/// IP interfaces of a host.
pub const MAX_INTERFACES: usize = 8;
