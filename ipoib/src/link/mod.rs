//! The link: frames with a 20-byte destination in, frames out.

mod event;
mod sa;

pub use event::{
    Action, Done, DownCause, DropCause, Event, FrameId, LinkState, Outcome, PortView, Route,
    Verdict, Wish,
};
pub use sa::{
    GroupAnswer, GroupParams, JoinRequest, JoinState, LeaveRequest, PathAnswer, PathQuery,
    SaFailure, Ticket,
};
