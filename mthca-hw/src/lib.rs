//! Driver for the Mellanox InfiniHost HCAs, generic over the platform: [`Hca::open`] brings one up and gives the verbs
//! of `core_ib`.
//!
//! What it speaks today is the T-mode: MT23108 ("Tavor"), and MT25208 with firmware that is compatible to it. Where
//! the M-mode (Arbel, Sinai) differs is kept in few rooms: the order of opening, the plan of tables, how a key is made
//! of an index, doorbells, and the linking of WQEs.
//!
//! One file an object of the hardware:
//!
//! | file | object | infinihost |
//! | --- | --- | --- |
//! | `hca` | the open HCA and its verbs | |
//! | `open`, `events`, `bring_up` | the steps of opening and closing | 9.1, 9.4 |
//! | `reset`, `let_go` | the reset; the proof that memory is free | 1.5 |
//! | `profile`, `limits`, `plan` | what is wanted, what there is, where it goes | 3.7, 6 |
//! | `cmd` | firmware commands | 3 |
//! | `uar` | the doorbell page | 2.7 |
//! | `eq`, `isr`, `event` | event queues, interrupts, what happened | 4.2, 4.3, 7 |
//! | `cq` | completion queues | 4.4, 4.5 |
//! | `qp`, `special`, `srq`, `records` | work queues | 4.6 to 4.8, 5 |
//! | `mr`, `mtt`, `extents` | memory regions and translations | 4.9, 4.10 |
//! | `pd`, `av`, `mcg` | protection domains, address vectors, multicast groups | 4.10, 4.12 |
//! | `port`, `mad` | ports, the firmware's agents | 3.9, 3.13, 8 |
//! | `health`, `catas` | the end of the HCA | 2.6 |
#![no_std]

mod av;
mod bring_up;
mod catas;
mod cmd;
mod cq;
mod eq;
mod event;
mod events;
mod extents;
mod fmr;
mod hca;
mod health;
mod inner;
mod isr;
mod let_go;
mod limits;
mod mad;
mod mcg;
mod mr;
mod mtt;
mod mw;
mod open;
mod pd;
mod plan;
mod port;
mod profile;
mod qp;
mod records;
mod reset;
mod special;
mod srq;
mod uar;
mod untrusted;
mod user;
mod users;

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;

pub use bring_up::BringUpError;
pub use cmd::{Cause, CmdError};
pub use cq::CqRef;
pub use event::StrayCounts;
pub use hca::Hca;
pub use limits::{EntrySizes, Limits, LimitsError};
pub use open::{OpenCause, OpenError};
pub use plan::{MptPlan, Numbers, Plan, Tables};
pub use profile::{AvPlace, Interrupts, Profile, ProfileError};
pub use qp::QpRef;
pub use reset::NotBack;
pub use srq::SrqRef;
pub use untrusted::read_untrusted;
