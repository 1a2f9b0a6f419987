//! What a user of the communication manager says and hears.

use crate::conn::{ConnId, Failure, State};
use crate::listen::ListenerId;
use crate::path::{Local, Path};
use crate::qp::Wish;
use crate::sidr::SidrId;
use core::fmt;
use core_ib::verbs::{QpHandle, QpType};
use core_ib::wire::mad::{
    CmApr, CmDreq, CmLap, CmRej, CmRep, CmReq, CmSidrRep, CmSidrReq, Failover, ServiceId, TimeCode,
};
use core_ib::{Instant, Mtu, PKey, Psn, QKey, Qpn};
use ib_mad::Outgoing;

/// What to connect with. [`Connect::new`] has what most want.
#[derive(Clone, Copy, Debug)]
pub struct Connect<'a> {
    /// Comes back with each event.
    pub cookie: u64,
    /// Whom to ask for.
    pub service_id: ServiceId,
    /// Our QP, in INIT: the transitions come as [`Wish`]es. `None`: the user makes them by himself, out of
    /// [`Cm::rtr`](crate::Cm::rtr) and [`Cm::rts`](crate::Cm::rts).
    pub qp: Option<QpHandle>,
    /// Its number.
    pub qpn: Qpn,
    /// RC or UC.
    pub service: QpType,
    /// It receives through an SRQ.
    pub srq: bool,
    /// The PSN that it is to expect first: one that was not in use lately.
    pub psn: Psn,
    /// Partition.
    pub p_key: PKey,
    /// Where it is in the port's table.
    pub pkey_index: u16,
    /// The path.
    pub primary: Path,
    /// Another, if the HCA can migrate.
    pub alternate: Option<Path>,
    /// Path MTU.
    pub mtu: Mtu,
    /// Reads and atomics that we serve at once.
    pub responder_resources: u8,
    /// Reads and atomics that we want under way at once.
    pub initiator_depth: u8,
    /// End-to-end flow control.
    pub flow_control: bool,
    /// Transport retries of both, 0 to 7.
    pub retry_count: u8,
    /// RNR retries of the peer, 0 to 7.
    pub rnr_retry: u8,
    /// Minimum RNR NAK timer of our QP, a code 0 to 31.
    pub min_rnr_timer: u8,
    /// How long our HCA takes to acknowledge: [`DeviceAttr::local_ca_ack_delay`](core_ib::verbs::DeviceAttr).
    pub ack_delay: TimeCode,
    /// How long the peer's CM may take to answer.
    pub remote_timeout: TimeCode,
    /// How long ours takes.
    pub local_timeout: TimeCode,
    /// How often a message is repeated, 0 to 15.
    pub max_retries: u8,
    /// At most 92 bytes.
    pub private: &'a [u8],
}

impl<'a> Connect<'a> {
    /// An RC connection of `qp` over `primary`, with the times and retries of Linux's RDMA CM (protocols 5.10.1).
    pub const fn new(service_id: ServiceId, primary: Path, mtu: Mtu) -> Self {
        Self {
            cookie: 0,
            service_id,
            qp: None,
            qpn: Qpn::new(0),
            service: QpType::Rc,
            srq: false,
            psn: Psn::new(0),
            p_key: PKey::DEFAULT,
            pkey_index: 0,
            primary,
            alternate: None,
            mtu,
            responder_resources: 1,
            initiator_depth: 1,
            flow_control: false,
            retry_count: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            ack_delay: TimeCode(15),
            remote_timeout: TimeCode(20),
            local_timeout: TimeCode(20),
            max_retries: 15,
            private: &[],
        }
    }
}

/// What to accept a connection with. [`Accept::new`] has what most want.
#[derive(Clone, Copy, Debug)]
pub struct Accept<'a> {
    /// As in [`Connect`].
    pub qp: Option<QpHandle>,
    /// Its number.
    pub qpn: Qpn,
    /// It receives through an SRQ.
    pub srq: bool,
    /// The PSN that it is to expect first.
    pub psn: Psn,
    /// Where the request's values are in our port's tables.
    pub local: Local,
    /// Where those of the alternate path are; `None`: it is not taken.
    pub alternate: Option<Local>,
    /// Why not, if it is not.
    pub failover: Failover,
    /// Reads and atomics that we serve at once, at most; the request may have asked for fewer.
    pub responder_resources: u8,
    /// Reads and atomics that we have under way at once, at most.
    pub initiator_depth: u8,
    /// End-to-end flow control.
    pub flow_control: bool,
    /// RNR retries of the peer, 0 to 7.
    pub rnr_retry: u8,
    /// Minimum RNR NAK timer of our QP, a code 0 to 31.
    pub min_rnr_timer: u8,
    /// How long our HCA takes to acknowledge.
    pub ack_delay: TimeCode,
    /// At most 196 bytes.
    pub private: &'a [u8],
}

impl<'a> Accept<'a> {
    /// With a QP, by the port that the request came to.
    pub const fn new(qp: Option<QpHandle>, qpn: Qpn, psn: Psn, local: Local) -> Self {
        Self {
            qp,
            qpn,
            srq: false,
            psn,
            local,
            alternate: None,
            failover: Failover::UNSUPPORTED,
            responder_resources: 1,
            initiator_depth: 1,
            flow_control: false,
            rnr_retry: 7,
            min_rnr_timer: 12,
            ack_delay: TimeCode(15),
            private: &[],
        }
    }
}

/// Another path to offer.
#[derive(Clone, Copy, Debug)]
pub struct LoadPath<'a> {
    /// The path.
    pub path: Path,
    /// Where the connection's P_Key is in its port's table.
    pub pkey_index: u16,
    /// How long our HCA takes to acknowledge.
    pub ack_delay: TimeCode,
    /// How long the peer's CM may take to answer.
    pub remote_timeout: TimeCode,
    /// At most 168 bytes.
    pub private: &'a [u8],
}

/// What to resolve a service of datagrams with.
#[derive(Clone, Copy, Debug)]
pub struct Resolve<'a> {
    /// Comes back with the answer.
    pub cookie: u64,
    /// Whom to ask for.
    pub service_id: ServiceId,
    /// Partition.
    pub p_key: PKey,
    /// Where it is in the port's table.
    pub pkey_index: u16,
    /// The way there.
    pub path: Path,
    /// How long the peer may take to answer.
    pub timeout: TimeCode,
    /// How often the question is repeated.
    pub max_retries: u8,
    /// At most 216 bytes.
    pub private: &'a [u8],
}

/// An answer to a request of a service of datagrams.
#[derive(Clone, Copy, Debug)]
pub struct Served<'a> {
    /// The service's QP.
    pub qpn: Qpn,
    /// Its Q_Key.
    pub q_key: QKey,
    /// At most 136 bytes.
    pub private: &'a [u8],
}

/// News for a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// Somebody wants to connect: [`accept`](crate::Cm::accept), [`delay`](crate::Cm::delay) or
    /// [`reject`](crate::Cm::reject).
    Request {
        /// The connection to be.
        conn: ConnId,
        /// Who listens.
        listener: ListenerId,
        /// His cookie.
        cookie: u64,
        /// What was asked.
        req: CmReq,
    },
    /// The peer has accepted: [`ready`](crate::Cm::ready), [`delay`](crate::Cm::delay) or
    /// [`reject`](crate::Cm::reject).
    Reply {
        /// The connection.
        conn: ConnId,
        /// Whose it is.
        cookie: u64,
        /// What was answered.
        rep: CmRep,
    },
    /// The QP may be used, in RTS if the wishes were ours.
    Established {
        /// The connection.
        conn: ConnId,
        /// Whose it is.
        cookie: u64,
    },
    /// The peer rejected the connection, or threw it away.
    Rejected {
        /// The connection; [`Event::Gone`] follows.
        conn: ConnId,
        /// Whose it is.
        cookie: u64,
        /// What was said.
        rej: CmRej,
    },
    /// It failed without a word.
    Failed {
        /// The connection; [`Event::Gone`] follows.
        conn: ConnId,
        /// Whose it is.
        cookie: u64,
        /// Why.
        why: Failure,
    },
    /// The peer wants out: [`release`](crate::Cm::release).
    Disconnecting {
        /// The connection.
        conn: ConnId,
        /// Whose it is.
        cookie: u64,
        /// What was said.
        dreq: CmDreq,
    },
    /// It is over, as we wanted.
    Disconnected {
        /// The connection; [`Event::Gone`] follows.
        conn: ConnId,
        /// Whose it is.
        cookie: u64,
    },
    /// The peer offers another path: [`answer_path`](crate::Cm::answer_path).
    PathRequested {
        /// The connection.
        conn: ConnId,
        /// Whose it is.
        cookie: u64,
        /// The path.
        lap: CmLap,
    },
    /// The peer answered an offer of ours; the QP has the path if it was taken.
    PathAnswered {
        /// The connection.
        conn: ConnId,
        /// Whose it is.
        cookie: u64,
        /// What was said.
        apr: CmApr,
    },
    /// The other path did not come to be; the connection stays.
    PathFailed {
        /// The connection.
        conn: ConnId,
        /// Whose it is.
        cookie: u64,
        /// Why.
        why: Failure,
    },
    /// The last of a connection: its QP and its name may be used for another.
    Gone {
        /// The connection.
        conn: ConnId,
        /// Whose it was.
        cookie: u64,
    },
    /// Somebody asks for a service of datagrams: [`serve`](crate::Cm::serve) or [`refuse`](crate::Cm::refuse).
    ServiceRequest {
        /// The request.
        sidr: SidrId,
        /// Who listens.
        listener: ListenerId,
        /// His cookie.
        cookie: u64,
        /// What was asked.
        req: CmSidrReq,
    },
    /// A service of datagrams was resolved, or refused.
    Resolved {
        /// The request; it is over.
        sidr: SidrId,
        /// Whose it was.
        cookie: u64,
        /// The answer.
        rep: CmSidrRep,
    },
    /// Nobody answered.
    Unresolved {
        /// The request; it is over.
        sidr: SidrId,
        /// Whose it was.
        cookie: u64,
    },
}

impl Event {
    /// Whose it is.
    pub const fn cookie(&self) -> u64 {
        match self {
            Self::Request { cookie, .. }
            | Self::Reply { cookie, .. }
            | Self::Established { cookie, .. }
            | Self::Rejected { cookie, .. }
            | Self::Failed { cookie, .. }
            | Self::Disconnecting { cookie, .. }
            | Self::Disconnected { cookie, .. }
            | Self::PathRequested { cookie, .. }
            | Self::PathAnswered { cookie, .. }
            | Self::PathFailed { cookie, .. }
            | Self::Gone { cookie, .. }
            | Self::ServiceRequest { cookie, .. }
            | Self::Resolved { cookie, .. }
            | Self::Unresolved { cookie, .. } => *cookie,
        }
    }
}

/// What the owner is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CmNext {
    /// Put this on the wire, then poll again.
    Send(Outgoing),
    /// Have this carried out where blocking is allowed; then [`Cm::granted`](crate::Cm::granted).
    Wish(Wish),
    /// Tell the user.
    Event(Event),
    /// Nothing before this instant, unless a MAD comes or the user says something.
    WaitUntil(Instant),
}

/// Why the communication manager did not do what it was told. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CmError {
    /// The connection, listener or request does not exist (any more).
    Unknown {
        /// Kind of the object.
        object: &'static str,
    },
    /// Its state does not allow that.
    WrongState {
        /// Where it stands.
        state: State,
    },
    /// No place is left.
    Full {
        /// The entry of the profile to raise.
        entry: &'static str,
        /// Its present value.
        limit: usize,
    },
    /// Another listener takes some of these services.
    Taken {
        /// That listener.
        by: ListenerId,
    },
    /// More private data than the message holds.
    PrivateTooLong {
        /// Bytes given.
        len: usize,
        /// Bytes that there is room for.
        limit: usize,
    },
    /// A service type that no connection has.
    Service {
        /// That type.
        found: QpType,
    },
}

impl fmt::Display for CmError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Unknown { object } => write!(f, "this {object} does not exist (any more)"),
            Self::WrongState { state } => write!(f, "a connection in {state:?} cannot do that"),
            Self::Full { entry, limit } => {
                write!(f, "all {limit} are in use: raise `{entry}` in the profile")
            }
            Self::Taken { by } => write!(f, "listener {} takes some of these services", by.0),
            Self::PrivateTooLong { len, limit } => {
                write!(f, "{len} bytes of private data, and room for {limit}")
            }
            Self::Service { found } => write!(f, "no connection is of service {found:?}"),
        }
    }
}

impl core::error::Error for CmError {}
