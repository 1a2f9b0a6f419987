//! The communication manager (CM): how two QPs of different hosts come to be connected, and part again. protocols 5.
//!
//! [`Cm`] is a state machine without callbacks, timers, locks or an allocator. It is told what happened
//! ([`handle`](Cm::handle), [`granted`](Cm::granted), [`communication_established`](Cm::communication_established)) and
//! what its user wants ([`connect`](Cm::connect), [`listen`](Cm::listen), [`accept`](Cm::accept) …), and says by
//! [`poll`](Cm::poll) what is due: a MAD to be sent, a transition of a QP to be made where blocking is allowed
//! ([`Wish`]), news for the user ([`Event`]), or when to ask again. All of it may run in a soft interrupt, but for
//! [`Wish::grant`].
//!
//! ```text
//! active:   connect                Event::Reply, ready                 Event::Established
//!              REQ ───────────────▶    ◀─────────── REP        RTU ───────────────▶
//! passive:          Event::Request, accept                             Event::Established
//! ```
//!
//! A connection has one name from its first event to [`Event::Gone`], which comes in every case, after the time that its
//! QP must rest (timewait). Its user makes the QP, brings it to INIT ([`init_attr`]) and posts receives; the CM makes RTR
//! and RTS of it, and ERR at the end. Who gives no [`QpHandle`](core_ib::verbs::QpHandle) does that by himself, out of
//! [`Cm::rtr`] and [`Cm::rts`].
//!
//! * Duplicates are answered as before, in every state; requests are repeated as often as the REQ says.
//! * A REQ or REP whose QP is in a connection that we know is stale: it is rejected (reason 10), and the old connection
//!   ends.
//! * Two REQs that cross are two connections: the peer-to-peer model, which makes one of them, is not in the reference and
//!   not here.
//! * [`ip`]: addresses and ports of IP instead of GIDs and service IDs, as Linux's RDMA CM has them.
//!
//! The MADs come from and go to an agent for class 0x07: [`registration`].
#![no_std]
// A MAD in an enum is 256 bytes more, and there is no allocator to box it with.
#![allow(clippy::large_enum_variant)]

mod ask;
mod cm;
mod conn;
mod due;
mod handle;
pub mod ip;
mod listen;
mod message;
mod migrate;
mod path;
mod qp;
mod services;
mod sidr;
mod store;
mod untrusted;
mod user;

#[cfg(test)]
mod tests;

pub use ask::{Accept, CmError, CmNext, Connect, Event, LoadPath, Resolve, Served};
pub use cm::{Cm, Statistics, registration};
pub use conn::{ConnId, Failure, State};
pub use listen::{Listen, ListenerId};
pub use message::{CLASS_VERSION, Message, mad_of};
pub use path::{Local, Path, ack_timeout};
pub use qp::{Granted, Wish, init_attr};
pub use sidr::SidrId;
pub use store::{ArrayStore, ConnPlace, ListenPlace, Profile, SidrPlace, Store, TableStore};
pub use untrusted::read_untrusted;

#[cfg(test)]
extern crate std;
