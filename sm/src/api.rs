//! What goes in and what comes out: events, actions, reports.

use core::fmt;
use core_ib::wire::mad::{AttributeId, MadStatus, SmState};
use core_ib::{Gid, Guid, Instant, Lid};
use ib_mad::{Outgoing, Received};

/// What happened.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A MAD came by QP0 or QP1, or the node's own agent answered one of ours. The owner has run the SMI over it
    /// (protocols 3.5) and kept what is for the node's own agents. What is not for the manager is ignored.
    Received(&'a Received),
    /// What was sent with this TransactionID did not leave the port. It counts as lost on the way.
    SendFailed {
        /// As in the MAD.
        tid: u64,
    },
    /// The port that the manager sits on can carry SMPs (Init or better) from now on, or cannot any more. The owner
    /// says so at the start, too.
    Port {
        /// It can.
        up: bool,
    },
    /// Somebody wants a heavy sweep now.
    Sweep,
    /// Somebody wants the manager to step down: it hands the subnet over to the best standby, if there is one, and is
    /// not active after.
    Resign,
}

/// What the owner is to do. It polls again until told to wait.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
// A MAD in an enum is 256 bytes more, and there is no allocator to box it with.
#[allow(clippy::large_enum_variant)]
pub enum Action {
    /// Put this on the wire. An SMP with a directed route goes through the SMI as an outgoing one; it is for the
    /// node's own agent if it has no hops.
    Send(Outgoing),
    /// Set or clear bit IsSM of the port's capability mask (a verb that may block).
    SetIsSm(bool),
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
    /// A switch has no linear forwarding table. It is not routed through, and what hangs on it is not reached.
    NoLinearTable {
        /// The switch.
        guid: Guid,
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
            Self::NoLinearTable { guid } => {
                write!(
                    f,
                    "switch {guid} has a random forwarding table only, which is not written"
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
