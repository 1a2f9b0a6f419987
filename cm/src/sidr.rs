//! Requests of services of datagrams (SIDR), asked and served. protocols 5.8.

use core::time::Duration;
use core_ib::Instant;
use core_ib::wire::mad::{CommId, Mad};
use ib_mad::MadAddr;

/// Names a request of a service of datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SidrId(pub(crate) CommId);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SidrState {
    /// Ours, waits for its answer.
    Asked,
    /// Ours, answered; the user is to be told.
    Answered,
    /// Ours, not answered; the user is to be told.
    Silent,
    /// A peer's; the user is to be told.
    Heard,
    /// A peer's; the user is to answer.
    Told,
    /// A peer's, answered; the message is to go.
    Served,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Sidr {
    /// Our name of it; of our own requests, that on the wire.
    pub(crate) id: CommId,
    /// The peer's name of his request.
    pub(crate) request_id: CommId,
    pub(crate) listener: u32,
    pub(crate) cookie: u64,
    pub(crate) state: SidrState,
    pub(crate) to: MadAddr,
    /// What is to be sent, or was received.
    pub(crate) mad: Mad,
    pub(crate) send_due: bool,
    pub(crate) retries_left: u8,
    pub(crate) patience: Duration,
    pub(crate) deadline: Instant,
}
