//! Driver for the Mellanox InfiniHost HCAs, generic over the platform: [`Hca::open`] brings one up and gives the verbs
//! of `core_ib`.
//!
//! It speaks both interfaces of the family: the T-mode of the MT23108 ("Tavor") and of an MT25208 with firmware that is
//! compatible to it, and the M-mode of the mem-free ones, MT25208 ("Arbel") and MT25204 ("Sinai"). Which it is is found
//! once, when the HCA is opened. Where the modes differ is kept in few rooms: the order of opening, the plan of tables
//! and what is lent behind them, how a key is made of an index, doorbells and their records, and the linking of WQEs.
//!
//! One (private) file an object of the hardware, for who reads the source:
//!
//! | file | object | infinihost |
//! | --- | --- | --- |
//! | `hca` | the open HCA and its verbs | |
//! | `chip` | which of the family it is | 1.1 |
//! | `open`, `lend`, `events`, `bring_up` | the steps of opening and closing | 9.1, 9.2, 9.4 |
//! | `reset`, `let_go` | the reset; the proof that memory is free | 1.5 |
//! | `profile`, `limits`, `plan` | what is wanted, what there is, where it goes | 3.7, 6 |
//! | `cmd` | firmware commands | 3 |
//! | `icm` | host memory behind the tables of a mem-free HCA | 3.10, 6.6 |
//! | `uar`, `bells` | the doorbell page; doorbell records | 2.7 to 2.10 |
//! | `eq`, `isr`, `event` | event queues, interrupts, what happened | 4.2, 4.3, 7 |
//! | `cq` | completion queues | 4.4, 4.5 |
//! | `qp`, `special`, `srq`, `records` | work queues | 4.6 to 4.8, 5 |
//! | `mr`, `fmr`, `mw`, `mtt`, `keys`, `extents` | memory regions, fast ones, windows, translations and their keys | 4.9 to 4.11 |
//! | `user`, `users` | contexts of user space; who uses an object | 11 |
//! | `pd`, `av`, `mcg` | protection domains, address vectors, multicast groups | 4.10, 4.12 |
//! | `port`, `mad` | ports, the firmware's agents | 3.9, 3.13, 8 |
//! | `health`, `catas` | the end of the HCA | 2.6 |
#![no_std]

mod av;
mod bells;
mod bring_up;
mod catas;
mod chip;
mod cmd;
mod cq;
mod eq;
mod event;
mod events;
mod extents;
mod fmr;
mod hca;
mod health;
mod icm;
mod inner;
mod isr;
mod keys;
mod lend;
mod let_go;
mod limits;
mod mad;
mod mcg;
mod mr;
mod mtt;
mod mw;
mod once;
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
mod sync;
mod uar;
mod untrusted;
mod user;
mod users;

#[cfg(test)]
mod fake;
#[cfg(all(test, loom))]
mod interleavings;
#[cfg(test)]
mod tests;

pub use bring_up::BringUpError;
pub use chip::{Chip, Mode};
pub use cmd::{Cause, CmdError};
pub use cq::CqRef;
pub use event::StrayCounts;
pub use hca::Hca;
pub use inner::Left;
pub use limits::{EntrySizes, EventRegisters, Limits, LimitsError};
pub use open::{OpenCause, OpenError};
pub use plan::{MptPlan, Numbers, Plan, Tables};
pub use profile::{AvPlace, Interrupts, Profile, ProfileError};
pub use qp::QpRef;
pub use reset::NotBack;
pub use srq::SrqRef;
pub use untrusted::read_untrusted;
