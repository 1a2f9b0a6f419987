//! The transport engines behind every device model.
//!
//! They know ports ([`NodeState`](crate::fabric::NodeState)) and packets, and no format of a work queue, a completion or a
//! context: a model takes those apart and puts them together itself. An engine is functions over small values; whatever
//! a packet needs to be told apart is in its argument, and whatever follows is in its result.
//!
//! A packet that leaves is made by an engine ([`ud_headers`], [`finish_mlx`]) and goes through [`depart`]; one that
//! arrives goes through [`accept`], which does what every transport needs (checks 1 to 5 and 7 of protocols 2.2), and
//! then, for each queue pair that it may concern, through the engine of that queue pair's service
//! ([`ud_receive`]).
//!
//! A connected queue pair has engines that remember: [`RcRequester`] and [`RcResponder`], or [`UcRequester`] and
//! [`UcResponder`]. They say which packet is to be made next ([`Connection::headers`] makes it), are told of every packet
//! that came their way ([`Connection::accepts`]), and keep the clock that they are told. A responder reaches memory and
//! receive queue through its [`ResponderHost`]; a requester only says where data goes.

#[cfg(test)]
mod connected_tests;
mod connection;
mod message;
mod mlx;
mod port;
mod rc_requester;
mod rc_responder;
mod request;
#[cfg(test)]
mod tests;
mod uc;
mod ud;

pub use connection::{Connection, Migration, PathChoice};
pub use message::{Receipt, Refusal, RemoteAccess, RemoteRight, ResponderHost};
pub use mlx::{IcrcMode, MlxError, MlxOptions, finish_mlx};
pub use port::{Destination, Discard, DropReason, Incoming, accept, depart};
pub use rc_requester::{Failure, RcRequester, RequesterLimits, Response, Transmit};
pub use rc_responder::{RcResponder, Reply, ReplyData, ResponderLimits};
pub use request::{AtomicOp, MAX_MESSAGE, Request, RequestOp, RequestPacket, packets};
pub use uc::{UcRequester, UcResponder};
pub use ud::{
    AddressVector, GlobalRoute, ReceiverKind, SendError, UdReceipt, UdReceiver, UdRequest,
    UdSender, Whither, no_receive_request, ud_headers, ud_receive, whither,
};
