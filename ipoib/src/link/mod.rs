//! The link: frames with a 20-byte destination in, frames out.

pub(crate) mod backoff;
mod buffers;
#[cfg(test)]
mod chaos;
mod control;
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
#[cfg(test)]
mod ring_tests;
mod rings;
mod sa;
#[cfg(test)]
mod tests;

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
