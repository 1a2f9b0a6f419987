//! IP over InfiniBand (RFC 4391, RFC 4392), by datagrams and, where wanted, by connections (RFC 4755).
//!
//! One interface is one partition (P_Key) of one port: a UD queue pair, a broadcast group, an MTU. Any number of them
//! may live on a port, and know nothing of each other. Two halves:
//!
//! * [`link`] carries frames whose destination is a 20-byte link-layer address: life cycle, multicast groups, paths,
//!   address handles, rings. A kernel, whose IP stack has ARP and neighbour discovery for InfiniBand, uses it alone;
//! * [`neigh`] turns it into an interface for raw IP packets ([`NetInterface`]), for hosts whose IP stack cannot do
//!   that: ARP, neighbour discovery, group snooping.
//!
//! # Driving it
//!
//! Nothing here has a thread, a timer or a callback. The owner tells what happened, asks what is due, and moves
//! packets; all of it may run in a soft interrupt, but for what is said to block:
//!
//! ```text
//! // Control context; these block.
//! let mut interface = IpInterface::open(device, machine, port, p_key, &profile)?;
//! interface.add_address(address, prefix_len)?;
//! let control = interface.control();              // carries out wishes; plain data, borrows the device alone
//! interface.handle(Event::Port(PortView::of(&cache, p_key)), now);
//!
//! // Whenever something happened, and at the instant that the last round ended with:
//! let wake_at = loop {
//!     match interface.poll(now) {
//!         Step::QuerySa(ticket, query) => …       // to the SA client; its answer: Event::Path(ticket, …)
//!         Step::Join(ticket, request) => …        // likewise: Event::Joined(ticket, …)
//!         Step::Leave(ticket, request) => …       // likewise: Event::Left(ticket, …)
//!                                                 // or, for any of them: Event::SaFailed(ticket, …)
//!         Step::Wish(wish) => …                   // to the control context: Event::Done(control.carry_out(wish))
//!         Step::Changed(state) => …               // tell the IP stack: carrier, MTU, address
//!         Step::WaitUntil(instant) => break instant,
//!     }
//! };
//! while interface.receive(now, &mut |packet| …) {}
//! interface.send(packet, now)?;
//!
//! // Where completions are announced by interrupts: arm, then look once more before going to sleep.
//! interface.arm()?;
//!
//! // A port event, after the cache was refreshed:
//! interface.handle(Event::PortChanged(event, PortView::of(&cache, p_key)), now);
//! // An event of the interface's QP (SQ error, fatal):
//! interface.handle(Event::QpTrouble, now);
//!
//! // Control context; blocks. For an orderly end first Event::Admin { up: false }, then poll until the state is
//! // Down(DownCause::Admin { idle: true }): groups are left.
//! interface.close()?;
//! ```
//!
//! Requests to the SA and wishes are answered in any order and at any time; each is to be answered once. A wish is
//! outstanding at most once, requests at most `sa_outstanding` times.
//!
//! Sections "protocols 6.4" are those of `docs/reference/infiniband-protocols.md`.
#![no_std]

#[cfg(test)]
extern crate std;

#[cfg(test)]
mod fake;
mod keyed;
pub mod link;
mod lot;
pub mod neigh;
mod net;
mod profile;
mod room;
mod stats;
#[cfg(test)]
mod world;

pub use net::{GroupError, NetInterface, SendError};
pub use profile::{ConnectedProfile, Profile, Timers};
pub use room::Room;
pub use stats::{
    ConnectedStatistics, LinkStatistics, NeighbourStatistics, RingStatistics, Statistics,
};
