//! The transport engines behind every device model.
//!
//! They know ports ([`NodeState`](crate::fabric::NodeState)) and packets, and no format of a work queue, a completion or a
//! context: a model takes those apart and puts them together itself. An engine is functions over small values; whatever
//! a packet needs to be told apart is in its argument, and whatever follows is in its result.
//!
//! A packet that leaves is made by an engine ([`ud_headers`], [`finish_mlx`]) and goes through [`depart`]; one that
//! arrives goes through [`accept`], which does what every transport needs (checks 1 to 5 and 7 of protocols 2.2), and
//! then, for each queue pair that it may concern, through the engine of that queue pair's service
//! ([`ud_receive`]). RC and UC engines stand beside these and begin at the same two doors.

mod mlx;
mod port;
#[cfg(test)]
mod tests;
mod ud;

pub use mlx::{IcrcMode, MlxError, MlxOptions, finish_mlx};
pub use port::{Destination, Discard, DropReason, Incoming, accept, depart};
pub use ud::{
    AddressVector, GlobalRoute, ReceiverKind, SendError, UdReceipt, UdReceiver, UdRequest,
    UdSender, Whither, no_receive_request, ud_headers, ud_receive, whither,
};
