//! Management datagrams (MADs): what a host needs to be a citizen of an InfiniBand subnet.
//!
//! Everything here is a state machine without callbacks, timers, locks or an allocator: `handle` takes note of what
//! happened, `poll(now)` says what is due or when to ask again. All of it may run in a soft interrupt, but for
//! [`MadPort::open`], [`MadPort::close`] and [`Wish::grant`], which block.
//!
//! * [`MadPort`]: QP0 and QP1 of a port over verbs. What would block comes out of it as a [`Wish`].
//! * [`Dispatch`]: who gets a MAD. Agents by class, version, method (and OUI); answers by transaction id; requests
//!   that are repeated until answered ([`Dispatch::request`]).
//! * [`Sa`]: the client of the subnet administrator. Queries, tables, multicast groups, services, subscriptions.
//! * [`Perf`]: the counters of any port of the subnet.
//! * [`Pong`]: answers `ibping`.
//! * [`smi`]: what a channel adapter's subnet management interface does to directed routes, and which MADs belong to
//!   the agents in the HCA's firmware. [`MadPort`] applies it.
//! * [`rmpp`]: messages of many MADs, both ends, for who serves or reads such.
//! * [`Transaction`], [`Requests`]: what the others are made of.
//!
//! # Transaction ids
//!
//! The upper half of every transaction id is the [`AgentId`] of whoever asked, which the dispatch gives out; answers
//! find their way by it. An agent that keeps its own transactions ([`Tracking::Agent`]: [`Sa`], [`Perf`], a subnet
//! manager) has to put it there: [`AgentId::tid`].
//!
//! # Driving a port
//!
//! One owner per port holds the port, the dispatch and the agents, and turns this crank whenever the CQ fired, a
//! user asked something, or the instant has come that the last turn returned:
//!
//! ```
//! use core_ib::Instant;
//! use core_ib::platform::Platform;
//! use core_ib::verbs::{Verbs, VerbsError};
//! use ib_mad::{
//!     Delivery, Dispatch, DispatchNext, MadPort, PortNext, Sa, SaNext, Wish,
//! };
//!
//! type Port<'v, V, P> = MadPort<'v, V, P, 64, 32>;
//! type SaClient = Sa<16, 32, 8, 16384>;
//!
//! /// Turns until there is nothing to do. Says when to turn again. What may block is put on `wishes`: for the
//! /// control context, which calls `wish.grant(device)` and then `port.granted(&granted)`.
//! fn turn<V: Verbs, P: Platform>(
//!     port: &mut Port<'_, V, P>,
//!     dispatch: &mut Dispatch<8, 32>,
//!     sa: &mut SaClient,
//!     wishes: &mut heapless::Deque<Wish, 4>,
//!     now: Instant,
//! ) -> Result<Instant, VerbsError> {
//!     loop {
//!         // What comes in. The port is not asked for a wish that nobody could take.
//!         while !wishes.is_full() {
//!             match port.poll()? {
//!                 PortNext::Received(received) => match dispatch.handle(&received, now) {
//!                     Delivery::Request { agent } | Delivery::Response { agent, .. }
//!                         if agent == sa.agent() =>
//!                     {
//!                         sa.handle(&received, now);
//!                     }
//!                     // Another agent: the subnet manager, say.
//!                     Delivery::Request { .. } | Delivery::Response { .. } => {}
//!                     Delivery::Refused(refusal) => drop(port.send(&refusal)),
//!                     Delivery::Dropped(_) => {}
//!                 },
//!                 PortNext::SendFailed { tid, .. } => {
//!                     let _ = dispatch.send_failed(tid, now) || sa.send_failed(tid, now);
//!                 }
//!                 PortNext::Wish(wish) => drop(wishes.push_back(wish)),
//!                 PortNext::Dropped(_) => {}
//!                 PortNext::Idle => break,
//!             }
//!         }
//!         // What goes out, while there is room for it.
//!         if port.room() == 0 {
//!             return Ok(Instant::NEVER); // the CQ will fire
//!         }
//!         let wake = match sa.poll(now) {
//!             // One that is refused is lost like any other on the way, and repeated.
//!             SaNext::Send(outgoing) => {
//!                 let _ = port.send(&outgoing);
//!                 continue;
//!             }
//!             SaNext::WaitUntil(at) => at,
//!             // An answer, a report, news of a group: to whom it concerns.
//!             _ => continue,
//!         };
//!         match dispatch.poll(now) {
//!             DispatchNext::Send(outgoing) => drop(port.send(outgoing)),
//!             DispatchNext::Failed { .. } => {} // tell the agent
//!             DispatchNext::WaitUntil(at) => return Ok(wake.min(at)),
//!         }
//!     }
//! }
//! ```
//!
//! Where completions are announced, arm ([`MadPort::arm`]) and turn once more before going to sleep. After each port
//! event, with the caches refreshed: first [`MadPort::refresh`], then [`Sa::port_changed`] and (for a client
//! reregistration) [`Sa::reregister`], then the users. An event of a QP goes to [`MadPort::handle`].
//!
//! Numbers of sections are those of `docs/reference/infiniband-protocols.md` ("protocols"), `infinihost.md` and
//! `verbs.md`.
#![no_std]
// A MAD in an enum is 256 bytes more, and there is no allocator to box it with.
#![allow(clippy::large_enum_variant)]

mod addr;
mod dispatch;
mod perf;
mod pong;
mod port;
mod requests;
pub mod rmpp;
mod sa;
pub mod smi;
mod transaction;
mod untrusted;

pub use addr::{MadAddr, Outgoing, Received, SpecialQp};
pub use dispatch::{
    AgentId, Delivery, Dispatch, DispatchNext, Dropped, Methods, RegisterError, Registration,
    Tracking, refusal,
};
pub use perf::{Perf, PerfAnswer, PerfAsk, PerfError, PerfNext};
pub use pong::Pong;
pub use port::{Granted, MadPort, PortDrop, PortNext, Question, Recovery, SendError, Wish};
pub use requests::{Answer, RequestId, Requests, RequestsNext, TooManyRequests};
pub use rmpp::{ReceiverNext, RmppError, RmppReceiver, RmppSender, SenderNext};
pub use sa::{
    GroupUser, GroupUsers, QueryId, Sa, SaAnswer, SaConfig, SaError, SaNext, SaPort, SaRecord,
};
pub use transaction::{Event, Next, NoAnswer, Patience, Transaction};

pub use untrusted::read_untrusted;

#[cfg(test)]
extern crate std;
