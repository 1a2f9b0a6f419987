//! What goes in and what comes out: events, actions, addresses, reports.

use core::fmt;
use core_ib::verbs::GlobalRoute;
use core_ib::wire::mad::{AttributeId, Mad, MadStatus, SmState};
use core_ib::{Gid, Guid, Instant, Lid, Qpn, Sl};

/// What happened.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// QP0 received an SMP, or the node's own SMA answered one. The owner has run the SMI over it (protocols 3.5);
    /// what reached its own SMA is not for here: only responses, traps, and Get and Set of SMInfo are.
    Smp {
        /// All of it.
        mad: &'a Mad,
        /// Source of the packet; permissive for a directed route.
        slid: Lid,
        /// Service level of the packet.
        sl: Sl,
    },
    /// QP1 received a GMP of class 0x03. Those of other classes are ignored.
    Gmp {
        /// All of it.
        mad: &'a Mad,
        /// Whom an answer goes to.
        from: GmpAddress,
    },
    /// What was sent with this TransactionID did not leave the port. It is tried again like one lost on the way.
    SendFailed {
        /// As in the MAD.
        tid: u64,
    },
    /// The port that the manager sits on changed: link up or down, LID, SM LID, or a reset of the HCA.
    Port {
        /// It can carry SMPs (Init or better).
        up: bool,
    },
    /// Somebody wants a full sweep now.
    Sweep,
    /// Somebody wants the manager to step down: it hands the subnet over to the best standby, if there is one, and
    /// is not active after.
    Resign,
}

/// The address of a peer's general-service QP: where a GMP came from, or goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GmpAddress {
    /// LID of the peer.
    pub lid: Lid,
    /// Service level.
    pub sl: Sl,
    /// Low bits of our own LID that the peer used or is to see; below 2^LMC.
    pub path_bits: u8,
    /// QP of the peer, 1 as a rule.
    pub qpn: Qpn,
    /// Entry of the local port's P_Key table that the packet carried or is to carry.
    pub pkey_index: u16,
    /// Present if the packet had a GRH: how to send one back.
    pub grh: Option<GlobalRoute>,
}

/// What the owner is to do. It polls again until told to wait.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Action {
    /// Send the 256 bytes, which lie in the buffer given to poll, as an SMP. Its class says how: directed route
    /// (hand it to the SMI as an outgoing one; a request of no hops is for the node's own SMA) or by LID.
    SendSmp {
        /// Destination of a LID-routed one; permissive for a directed route.
        dlid: Lid,
        /// Service level of a LID-routed one.
        sl: Sl,
    },
    /// Send the 256 bytes from QP1.
    SendGmp {
        /// Where to.
        to: GmpAddress,
    },
    /// Set or clear bit IsSM of the port's capability mask (a verb that may block).
    SetIsSm {
        /// The manager is willing to manage.
        is_sm: bool,
    },
    /// Something for a person to read.
    Log(Report),
    /// Nothing before this instant, unless an event comes.
    WaitUntil(Instant),
}

/// What a subnet manager is at the moment: its SMState. protocols 3.11.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// Does nothing until another manager says so.
    NotActive,
    /// Walks the fabric to see who else is there.
    #[default]
    Discovering,
    /// Polls the master.
    Standby,
    /// Configures the subnet and answers for it.
    Master,
}

impl Role {
    /// As it goes on the wire.
    pub const fn state(self) -> SmState {
        match self {
            Self::NotActive => SmState::NOT_ACTIVE,
            Self::Discovering => SmState::DISCOVERING,
            Self::Standby => SmState::STANDBY,
            Self::Master => SmState::MASTER,
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotActive => "not active",
            Self::Discovering => "discovering",
            Self::Standby => "standby",
            Self::Master => "master",
        })
    }
}

/// News for a person. The owner logs them by their [`level`](Report::level).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Report {
    /// The manager changed its state.
    State {
        /// What it is now.
        now: Role,
    },
    /// A sweep found everything and configured it.
    SubnetUp {
        /// End ports with a LID, switches among them.
        end_ports: u32,
        /// Switches.
        switches: u32,
    },
    /// A sweep ended with something left undone; another follows.
    SubnetIncomplete {
        /// Requests that got no answer or a refusal.
        failures: u32,
    },
    /// An end port came into service.
    PortIn {
        /// Its GUID.
        guid: Guid,
        /// Its LID.
        lid: Lid,
    },
    /// An end port went out of service.
    PortOut {
        /// Its GUID.
        guid: Guid,
        /// Its LID.
        lid: Lid,
    },
    /// A port answers with a link up, but the node behind does not.
    NoAnswer {
        /// Node asked, or the one before it.
        guid: Guid,
        /// Port asked, or the one before it.
        port: u8,
        /// Attribute asked for.
        attribute: AttributeId,
    },
    /// A node refused a request.
    Refused {
        /// The node.
        guid: Guid,
        /// Attribute concerned.
        attribute: AttributeId,
        /// Status of its answer.
        status: MadStatus,
    },
    /// Two nodes, or two ports, claim one GUID. The second is left out.
    DuplicateGuid {
        /// The GUID.
        guid: Guid,
    },
    /// A directed route would be longer than 63 hops. What lies behind is left out.
    TooFar {
        /// The last node reached.
        guid: Guid,
    },
    /// A table is full; an entry was left out.
    NoRoom {
        /// As the profile calls it.
        entry: &'static str,
        /// Entries it has.
        limit: u32,
    },
    /// A link gives errors again and again and is no longer routed over.
    Unhealthy {
        /// The node that complained.
        guid: Guid,
        /// Its port.
        port: u8,
    },
    /// A node sent a trap that needs a person: a wrong key.
    Trap {
        /// Number of the trap.
        number: u16,
        /// Who sent it.
        lid: Lid,
    },
    /// A group was created.
    GroupCreated {
        /// Its MGID.
        mgid: Gid,
    },
    /// A group was deleted.
    GroupDeleted {
        /// Its MGID.
        mgid: Gid,
    },
    /// Reports were lost because nobody polled.
    Lost {
        /// How many.
        count: u32,
    },
}

/// How much a report matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Somebody should look into it.
    Warning,
    /// What happens in a life.
    Info,
    /// Only for who looks for something.
    Debug,
}

impl Report {
    /// How much it matters.
    pub const fn level(&self) -> Level {
        match self {
            Self::State { .. } | Self::SubnetUp { .. } => Level::Info,
            Self::PortIn { .. } | Self::PortOut { .. } => Level::Debug,
            Self::GroupCreated { .. } | Self::GroupDeleted { .. } => Level::Debug,
            _ => Level::Warning,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::State { now } => write!(f, "this subnet manager is {now}"),
            Self::SubnetUp {
                end_ports,
                switches,
            } => write!(f, "subnet up: {end_ports} end ports, {switches} switches"),
            Self::SubnetIncomplete { failures } => {
                write!(
                    f,
                    "subnet incomplete: {failures} requests failed; sweeping again"
                )
            }
            Self::PortIn { guid, lid } => write!(f, "port {guid} is in service with LID {lid}"),
            Self::PortOut { guid, lid } => write!(f, "port {guid}, LID {lid}, is out of service"),
            Self::NoAnswer {
                guid,
                port,
                attribute,
            } => write!(
                f,
                "no answer at node {guid} port {port} for attribute {attribute:?}; check the link and its M_Key"
            ),
            Self::Refused {
                guid,
                attribute,
                status,
            } => write!(
                f,
                "node {guid} refused attribute {attribute:?}: status {status:?}"
            ),
            Self::DuplicateGuid { guid } => {
                write!(f, "GUID {guid} is there twice; the second is left out")
            }
            Self::TooFar { guid } => {
                write!(f, "what lies behind node {guid} is more than 63 hops away")
            }
            Self::NoRoom { entry, limit } => {
                write!(
                    f,
                    "all {limit} entries of {entry} are in use; raise it in the profile"
                )
            }
            Self::Unhealthy { guid, port } => {
                write!(
                    f,
                    "node {guid} port {port} keeps failing and is not routed over; check the cable"
                )
            }
            Self::Trap { number, lid } => write!(f, "trap {number} from LID {lid}"),
            Self::GroupCreated { mgid } => write!(f, "multicast group {mgid} created"),
            Self::GroupDeleted { mgid } => write!(f, "multicast group {mgid} deleted"),
            Self::Lost { count } => write!(f, "{count} messages were lost"),
        }
    }
}
