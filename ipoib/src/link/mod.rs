//! The link: frames with a 20-byte destination in, frames out.
//!
//! [`Link`] is the state machine: life cycle, groups, paths, and which frames wait; it knows frames by name alone.
//! [`LinkInterface`] puts it on a UD QP with rings in DMA memory, and is what a kernel drives whose IP stack resolves
//! addresses itself; how is said on the crate's page, where it takes the place of `IpInterface`. [`Control`] carries out
//! what blocks. Requests to the SA leave as values and know their records ([`PathQuery::record`],
//! [`JoinRequest::record`], [`LeaveRequest::record`]); answers are made from records with `From` and `TryFrom`.

pub(crate) mod backoff;
mod buffers;
#[cfg(test)]
mod chaos;
mod connected;
mod control;
mod due;
mod event;
mod group;
mod handles;
mod interface;
#[expect(
    clippy::module_inception,
    reason = "the link is the object of this module"
)]
mod link;
mod path;
mod react;
#[cfg(test)]
mod ring_tests;
mod rings;
mod sa;
#[cfg(test)]
mod tests;

pub use connected::{ConnDone, ConnWish, Made};
pub use control::Control;
pub use event::{
    Action, Done, DownCause, DropCause, Event, FrameId, LinkState, Outcome, PortView, Route,
    Verdict, Wish,
};
pub use interface::{FrameInfo, LinkInterface, Step};
pub use link::{Arrival, Link};
pub use sa::{
    GroupAnswer, GroupParams, JoinRequest, LeaveRequest, PathAnswer, PathQuery, SaFailure, Ticket,
};
