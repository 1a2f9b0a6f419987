//! What a link is told and what it says: the vocabulary between it and its owner.

use super::sa::{GroupAnswer, JoinRequest, LeaveRequest, PathAnswer, PathQuery, SaFailure, Ticket};
use core_ib::platform::RawLock;
use core_ib::verbs::{AhAttr, PortCache, PortEvent, VerbsError};
use core_ib::{Gid, Instant, Lid, Mtu, PKey, QKey, Qpn};

/// A frame of whoever keeps the frames: the link stores the name and never looks inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FrameId(pub u16);

/// The port as the owner's cache shows it, for one partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortView {
    /// State Active.
    pub active: bool,
    /// Base LID.
    pub lid: Lid,
    /// The port has 2^lmc LIDs.
    pub lmc: u8,
    /// MTU of the link; `None` while it is not known.
    pub mtu: Option<Mtu>,
    /// GID 0.
    pub gid: Gid,
    /// Where the partition's key is in the port's table, if it is.
    pub pkey_index: Option<u16>,
}

impl PortView {
    /// What `cache` says for the partition of `p_key`. Not to be called while the cache's lock is held.
    pub fn of<R: RawLock, const GIDS: usize, const PKEYS: usize>(
        cache: &PortCache<R, GIDS, PKEYS>,
        p_key: PKey,
    ) -> Self {
        let port = cache.port();
        Self {
            active: port.is_some_and(|port| port.is_active()),
            lid: port.map_or(Lid::NONE, |port| port.lid),
            lmc: port.map_or(0, |port| port.lmc),
            mtu: port.map(|port| port.active_mtu),
            gid: cache.gid(0).unwrap_or(Gid::NONE),
            pkey_index: cache.find_pkey(p_key).ok(),
        }
    }
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// The port looks so: at the start, and whenever the owner likes.
    Port(PortView),
    /// This happened to the port, and it looks so now (the cache was refreshed before).
    PortChanged(PortEvent, PortView),
    /// The administrator wants the interface up (as it is when made) or down.
    Admin {
        /// Up?
        up: bool,
    },
    /// The SA answered [`Action::QuerySa`].
    Path(Ticket, Result<PathAnswer, SaFailure>),
    /// The SA answered [`Action::Join`].
    Joined(Ticket, Result<GroupAnswer, SaFailure>),
    /// The SA answered [`Action::Leave`], or did not.
    Left(Ticket, Result<(), SaFailure>),
    /// Whatever was asked of the SA with this ticket failed: the same as that event with this failure.
    SaFailed(Ticket, SaFailure),
    /// A wish was carried out, or not.
    Done(Done),
    /// A completion or an asynchronous event says that the QP may have stopped.
    QpTrouble,
    /// A peer did not answer at its address: its path may be wrong.
    Suspect(Gid),
}

/// Something that may block, and so is not done by the link. One wish at most is outstanding; each is answered by
/// [`Event::Done`]. [`Control::carry_out`](super::Control::carry_out) does it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Bring the QP from whatever state to RESET and through INIT and RTR to RTS.
    Start {
        /// The partition.
        pkey_index: u16,
        /// The queue key; 0 while the group's is not known.
        q_key: QKey,
    },
    /// Look at the QP: if its send queue stopped (SQE), let it go on; if it is in error, as `Start`.
    Mend {
        /// The partition.
        pkey_index: u16,
        /// The queue key.
        q_key: QKey,
    },
    /// Change the QP's queue key.
    SetQKey(QKey),
    /// Attach the QP to a group.
    Attach {
        /// The group.
        mgid: Gid,
        /// Its LID.
        mlid: Lid,
    },
    /// Detach it.
    Detach {
        /// The group.
        mgid: Gid,
        /// The LID it was attached with.
        mlid: Lid,
    },
}

/// How a wish ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// What was wished.
    pub wish: Wish,
    /// What became of it.
    pub result: Result<Outcome, VerbsError>,
}

/// What carrying out a wish did to the QP's queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing: all that was posted still is.
    Kept,
    /// The QP went through RESET: nothing is posted any more, and no completion of it will come.
    Restarted,
}

/// What the owner of a [`Link`](super::Link) is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Ask the SA for a path; answer with [`Event::Path`].
    QuerySa(Ticket, PathQuery),
    /// Ask the SA for membership; answer with [`Event::Joined`].
    Join(Ticket, JoinRequest),
    /// Give membership up; answer with [`Event::Left`].
    Leave(Ticket, LeaveRequest),
    /// Carry this out where blocking is allowed; answer with [`Event::Done`].
    Wish(Wish),
    /// A parked frame may go.
    Send {
        /// The frame; it is the owner's again.
        frame: FrameId,
        /// Where to.
        route: Route,
    },
    /// A parked frame will never go.
    Drop {
        /// The frame; it is the owner's again.
        frame: FrameId,
        /// Why.
        cause: DropCause,
    },
    /// State, MTU or address changed: tell whoever stands above.
    Changed(LinkState),
    /// Nothing before this instant, unless an event comes or a frame is sent.
    WaitUntil(Instant),
}

/// How to send a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Below [`Link::routes`](super::Link::routes): frames of one `slot` have the same `attr` as a rule, so that an
    /// address handle kept under this number need only be compared.
    pub slot: u16,
    /// The address vector.
    pub attr: AhAttr,
    /// Destination QP.
    pub qpn: Qpn,
    /// The link's queue key.
    pub q_key: QKey,
}

/// What becomes of a frame given to [`Link::send`](super::Link::send).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Send it now; the frame stays the caller's.
    Send(Route),
    /// It waits. [`Action::Send`] or [`Action::Drop`] will give it back.
    Parked,
    /// Forget it; the frame stays the caller's.
    Drop(DropCause),
}

/// Why a frame was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DropCause {
    /// The interface is not up.
    Down,
    /// The address is not one of a peer or a group of this link.
    BadAddress,
    /// The SA knows no path, or no group, or does not answer.
    Unreachable,
    /// `parked`, `parked_per_path` or `parked_per_group` frames wait already.
    ParkedFull,
    /// All `paths` are being asked for.
    PathsFull,
    /// Half of all `groups` are joined only to send.
    GroupsFull,
    /// The QP is being repaired.
    Repair,
}

/// State of the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// No frame passes.
    Down(DownCause),
    /// Frames pass.
    Up {
        /// Bytes of the largest datagram behind the 4-byte header: 2044 as a rule.
        mtu: u16,
    },
}

impl LinkState {
    /// Do frames pass?
    pub const fn is_up(self) -> bool {
        matches!(self, Self::Up { .. })
    }
}

/// Why no frame passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DownCause {
    /// The administrator wants it so. With `idle`, all groups are left and nothing is outstanding any more.
    Admin {
        /// Nothing left to do?
        idle: bool,
    },
    /// The port is not Active.
    PortDown,
    /// The partition's key is not in the port's table: the subnet manager decides.
    NoPKey {
        /// The key looked for.
        p_key: PKey,
    },
    /// The QP is being started.
    Starting,
    /// The QP could not be started; tried again.
    QpFailed(VerbsError),
    /// The broadcast group is being joined.
    Joining,
    /// The broadcast group could not be joined; tried again.
    JoinFailed(SaFailure),
    /// The broadcast group has a larger MTU than buffers were made for: raise `max_mtu` in the profile.
    GroupMtu {
        /// That of the group.
        group: Mtu,
        /// That of the buffers.
        allowed: Mtu,
    },
    /// The HCA has failed or is gone; this interface is to be closed.
    DeviceFailed,
}
