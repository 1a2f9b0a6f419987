//! Management datagrams (MADs): what a host needs to be a citizen of an InfiniBand subnet.
//!
//! Everything here is a state machine without callbacks, timers, locks or an allocator: `handle` takes note of what
//! happened, `poll(now)` says what is due or when to ask again. All of it may run in a soft interrupt.
//!
//! * [`MadPort`]: QP0 and QP1 of a port over verbs. What would block comes out of it as a [`Wish`].
//! * [`Dispatch`]: who gets a MAD. Agents by class, version, method (and OUI); answers by transaction id; requests
//!   that are repeated until answered ([`Dispatch::request`]).
//! * [`smi`]: what a channel adapter's subnet management interface does to directed routes, and which MADs belong to
//!   the agents in the HCA's firmware.
//! * [`rmpp`]: messages of many MADs, both ends.
//! * [`Transaction`], [`Requests`]: what the others are made of.
//!
//! A [`Received`] MAD has the address that an answer goes to ([`Received::reply`]); an [`Outgoing`] one the address
//! that it goes to.
//!
//! Numbers of sections are those of `docs/reference/infiniband-protocols.md` ("protocols"), `infinihost.md` and
//! `verbs.md`.
#![no_std]
// A MAD in an enum is 256 bytes more, and there is no allocator to box it with.
#![allow(clippy::large_enum_variant)]

mod addr;
mod dispatch;
mod port;
mod requests;
pub mod rmpp;
pub mod smi;
mod transaction;

pub use addr::{MadAddr, Outgoing, Received, SpecialQp};
pub use dispatch::{
    AgentId, Delivery, Dispatch, DispatchNext, Dropped, Methods, RegisterError, Registration,
    Tracking, refusal,
};
pub use port::{Granted, MadPort, PortDrop, PortNext, Question, Recovery, SendError, Wish};
pub use requests::{Answer, RequestId, Requests, RequestsNext, TooManyRequests};
pub use rmpp::{ReceiverNext, RmppError, RmppReceiver, RmppSender, SenderNext};
pub use transaction::{Event, Next, NoAnswer, Patience, Transaction};

#[cfg(test)]
extern crate std;
