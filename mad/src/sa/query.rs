//! What is asked of the SA and what it answers.

use crate::rmpp::RmppError;
use crate::transaction::{NoAnswer, Patience, Transaction};
use core::fmt;
use core_ib::wire::WireError;
use core_ib::wire::mad::{
    Attribute, AttributeId, ComponentMask, JoinState, Layout, Mad, MadStatus, McMemberRecord,
    Method, SaHeader,
};
use core_ib::{Gid, Lid, Sl};

/// Names a request while it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueryId(pub(super) u32);

/// Who shares the port's group memberships: an interface, say. 0 to 7.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupUser(u8);

impl GroupUser {
    /// How many there may be.
    pub const COUNT: usize = 8;

    /// `None` above 7.
    pub const fn new(user: u8) -> Option<Self> {
        if (user as usize) < Self::COUNT {
            Some(Self(user))
        } else {
            None
        }
    }

    pub(super) const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Some of the users, a bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupUsers(pub(super) u8);

impl GroupUsers {
    /// Is `user` one of them?
    pub const fn contains(self, user: GroupUser) -> bool {
        self.0 >> user.0 & 1 != 0
    }

    /// Is none?
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// Where the port stands, as the SA client must know it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SaPort {
    /// State Active.
    pub active: bool,
    /// Base LID.
    pub lid: Lid,
    /// LID of the master subnet manager.
    pub sm_lid: Lid,
    /// Service level to it.
    pub sm_sl: Sl,
    /// Index of an entry 0xFFFF or 0x7FFF in the P_Key table.
    pub pkey_index: u16,
}

impl SaPort {
    /// The SA can be reached.
    pub const fn is_usable(&self) -> bool {
        self.active && self.lid.is_unicast() && self.sm_lid.is_unicast()
    }
}

/// How long to wait for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SaConfig {
    /// Queries.
    pub query: Patience,
    /// Joins, leaves, registrations.
    pub change: Patience,
    /// Segments of a table that may be under way at once: an eighth of the receive queue, say.
    pub window: u32,
}

impl SaConfig {
    /// 1 s and 3 retries for queries, 3 s and 3 retries for changes, a window of 16.
    pub const DEFAULT: Self = Self {
        query: Patience::QUERY,
        change: Patience::JOIN,
        window: 16,
    };
}

impl Default for SaConfig {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Why there is no answer, or none of use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SaError {
    /// The port is not active, or nobody has told it where the subnet manager is. Wait for a port event.
    NoSubnetManager,
    /// All places are in use.
    Full {
        /// Which parameter of [`Sa`](crate::Sa) to raise.
        entry: &'static str,
        /// Its present value.
        limit: usize,
    },
    /// The SA did not answer.
    NoAnswer(NoAnswer),
    /// The SA said no.
    Refused {
        /// Status of its answer. protocols 4.1.
        status: MadStatus,
    },
    /// The table did not get through; `BufferTooSmall`: raise `TABLE`.
    Table(RmppError),
    /// The record does not fit into a MAD, or the answer holds none.
    Record(WireError),
    /// Leave of a group in which the user is not.
    NotMember {
        /// The group.
        mgid: Gid,
    },
    /// A join without any membership bit.
    NothingToJoin,
}

impl fmt::Display for SaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NoSubnetManager => f.write_str("no subnet manager is known, or the port is down"),
            Self::Full { entry, limit } => {
                write!(f, "all {limit} are in use: raise {entry} of the SA client")
            }
            Self::NoAnswer(why) => write!(f, "the SA: {why}"),
            Self::Refused { status } => write!(f, "the SA refused with status {:#06x}", status.0),
            Self::Table(error) => write!(f, "the SA's table: {error}"),
            Self::Record(error) => write!(f, "SA record: {error}"),
            Self::NotMember { mgid } => write!(f, "not a member of group {mgid}"),
            Self::NothingToJoin => f.write_str("a join needs a membership bit"),
        }
    }
}

impl core::error::Error for SaError {}

impl From<WireError> for SaError {
    fn from(error: WireError) -> Self {
        Self::Record(error)
    }
}

/// One record, as the SA sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SaRecord {
    /// Which attribute.
    pub attribute: AttributeId,
    pub(super) mad: Mad,
}

impl SaRecord {
    pub(super) fn of(mad: &Mad) -> Self {
        let attribute = mad.view().attribute();
        let mad = *mad;
        Self { attribute, mad }
    }

    /// The record, read as one.
    pub fn read<R: Layout>(&self) -> Result<R, WireError> {
        self.mad.get()
    }
}

/// What the SA answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaAnswer {
    /// To Get, Set and Delete.
    Record(SaRecord),
    /// To GetTable. Read it with [`Sa::records`](crate::Sa::records) before the next poll.
    Table,
    /// To a join: the group, complete.
    Joined(McMemberRecord),
    /// To a leave.
    Left,
}

/// What a request that waits is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// Get, Set, Delete: one MAD each way.
    One { mad: Mad, transaction: Transaction },
    /// GetTable. Waits for the buffer first.
    Table {
        mad: Mad,
        transaction: Option<Transaction>,
    },
    /// Waits for the group in this place.
    Join {
        group: usize,
        user: GroupUser,
        bits: JoinState,
    },
    /// The same.
    Leave { group: usize, bits: JoinState },
    /// Waits for the registration in this place.
    Keep { place: usize },
    /// To be reported.
    Over(Result<SaAnswer, SaError>),
}

/// A request that waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Query {
    pub(super) id: QueryId,
    pub(super) cookie: u64,
    pub(super) kind: Kind,
}

impl Query {
    /// Its transaction, if the SA was asked.
    pub(super) fn transaction(&mut self) -> Option<&mut Transaction> {
        match &mut self.kind {
            Kind::One { transaction, .. } => Some(transaction),
            Kind::Table { transaction, .. } => transaction.as_mut(),
            _ => None,
        }
    }

    /// What it sends; nothing if it sends nothing.
    pub(super) fn mad(&self) -> Result<Mad, SaError> {
        match &self.kind {
            Kind::One { mad, .. } | Kind::Table { mad, .. } => Ok(*mad),
            _ => Err(SaError::NoAnswer(NoAnswer::Cancelled)),
        }
    }

    /// The SA was asked for a table in this transaction.
    pub(super) fn asks_table(&self, serial: u32) -> bool {
        let asked = Kind::is_asked_table;
        self.id.0 == serial && asked(&self.kind)
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self.kind, Kind::Over(_))
    }

    pub(super) fn is_waiting_table(&self) -> bool {
        matches!(&self.kind, Kind::Table { transaction, .. } if transaction.is_none())
    }

    /// Waits for the group in this place.
    pub(super) fn is_of_group(&self, place: usize) -> bool {
        match self.kind {
            Kind::Join { group, .. } | Kind::Leave { group, .. } => group == place,
            _ => false,
        }
    }

    /// The bits with which it waits to join the group in this place.
    pub(super) fn is_joining(&self, place: usize) -> Option<JoinState> {
        match self.kind {
            Kind::Join { group, bits, .. } if group == place => Some(bits),
            _ => None,
        }
    }

    /// Waits for the registration in this place.
    pub(super) fn is_of_kept(&self, place: usize) -> bool {
        matches!(self.kind, Kind::Keep { place: at } if at == place)
    }
}

impl Kind {
    fn is_asked_table(&self) -> bool {
        matches!(self, Self::Table { transaction, .. } if transaction.is_some())
    }
}

/// A request to the SA, without a transaction id.
pub(super) fn request<R: Attribute>(
    method: Method,
    record: &R,
    mask: ComponentMask,
) -> Result<Mad, SaError> {
    let mut mad = Mad::ZERO;
    mad.set_front(&SaHeader::request(method, R::ID, mask))?;
    mad.put(record)?;
    Ok(mad)
}
