//! What a program is made of: calls of verbs, which name objects by their place in small tables.

use super::super::conformance::Side;
use core_ib::verbs::{Access, NotifyKind, QpAttrMask, QpState, QpType};

/// An object by its place among those of its kind: below `PLACES` one of this side's, from there on one of the peer's,
/// whose handle is of another HCA. A place whose object was destroyed still has its handle, a stale one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name(pub u8);

/// Places of a kind on a side.
pub const PLACES: u8 = 4;

/// A key by what made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// Of a memory region.
    Mr(Name),
    /// Of a memory window.
    Mw(Name),
    /// Of a fast memory region, as mapped last.
    Fmr(Name),
    /// Nobody made it.
    Wild,
}

/// A piece of local memory: offset in the arena of the side, and bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub key: Key,
    pub at: u16,
    pub len: u16,
}

/// Memory of the peer: offset in its arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    pub key: Key,
    pub at: u16,
}

/// What a send request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Send {
        imm: bool,
    },
    Write {
        remote: Remote,
        imm: bool,
    },
    Read {
        remote: Remote,
    },
    Swap {
        remote: Remote,
        /// Compares with what is there, or with something else.
        right: bool,
    },
    Add {
        remote: Remote,
    },
    Datagram {
        ah: Name,
        /// The QP in that place, on the side that the address leads to.
        to: u8,
        qkey: QKeyOf,
        imm: bool,
    },
    Bind {
        mw: Name,
        mr: Name,
        at: u16,
        len: u16,
        access: Access,
    },
    Invalidate {
        remote: Key,
    },
    LocalInvalidate {
        key: Key,
    },
}

/// Which Q_Key a datagram names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QKeyOf {
    Right,
    Wrong,
    /// With bit 31 set: the sender's own.
    Own,
}

/// A send request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Send {
    pub verb: Verb,
    pub pieces: Vec<Piece>,
    /// Instead of the pieces: so many bytes, copied while posting.
    pub inline: Option<u16>,
    pub signaled: bool,
    pub solicited: bool,
    pub fence: bool,
    /// Posted as it is, whatever the service of the QP.
    pub stubborn: bool,
}

/// What is not as it should be of a modify, or only unusual.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Twist {
    /// Nothing.
    None,
    /// The n-th of the required attributes is missing.
    Missing(u8),
    /// These attributes are given, too.
    Extra(QpAttrMask),
    /// The remote rights are these and no more.
    Access(Access),
    /// The receiver is waited for as often as that.
    RnrRetry(u8),
    /// Reads and atomics as initiator, and as responder.
    Reads(u8, u8),
    Port(u8),
    PkeyIndex(u16),
    Mtu4096,
    Timeout(u8),
    RetryCount(u8),
    RnrTimer(u8),
    /// The path leads to a group.
    MulticastPath,
    /// The path leaves by another port.
    PathPort,
    /// The event is wanted.
    Drained,
    /// The other path is loaded, and is to be armed or not.
    Alternate {
        rearm: bool,
    },
    /// To be armed, with the path that was loaded before.
    Rearm,
    /// To migrate now.
    Migrate,
}

/// A call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    AllocPd {
        pd: u8,
    },
    DeallocPd {
        pd: Name,
    },
    CreateCq {
        cq: u8,
        cqe: u32,
        vector: u16,
    },
    ResizeCq {
        cq: Name,
        cqe: u32,
    },
    DestroyCq {
        cq: Name,
    },
    Arm {
        cq: Name,
        kind: NotifyKind,
    },
    Poll {
        cq: Name,
        room: u8,
    },
    CreateSrq {
        srq: u8,
        pd: Name,
        wrs: u32,
        sges: u32,
    },
    ArmSrq {
        srq: Name,
        limit: u32,
    },
    QuerySrq {
        srq: Name,
    },
    PostSrq {
        srq: Name,
        wrs: Vec<Vec<Piece>>,
    },
    DestroySrq {
        srq: Name,
    },
    CreateQp {
        qp: u8,
        pd: Name,
        service: QpType,
        cqs: [Name; 2],
        srq: Option<Name>,
        wrs: u32,
        sges: u32,
        inline: u32,
        all: bool,
    },
    Modify {
        qp: Name,
        to: Option<QpState>,
        twist: Twist,
    },
    Query {
        qp: Name,
    },
    DestroyQp {
        qp: Name,
    },
    PostRecv {
        qp: Name,
        wrs: Vec<Vec<Piece>>,
    },
    PostSend {
        qp: Name,
        wrs: Vec<Send>,
    },
    RegMr {
        mr: u8,
        pd: Name,
        at: u16,
        len: u16,
        access: Access,
    },
    ReregMr {
        mr: Name,
        pd: Option<Name>,
        access: Option<Access>,
    },
    DeregMr {
        mr: Name,
    },
    AllocMw {
        mw: u8,
        pd: Name,
    },
    DeallocMw {
        mw: Name,
    },
    AllocFmr {
        fmr: u8,
        pd: Name,
        pages: u32,
        maps: u32,
        access: Access,
    },
    MapFmr {
        fmr: Name,
        first: u8,
        pages: u8,
        aligned: bool,
    },
    UnmapFmrs {
        fmrs: Vec<Name>,
    },
    DeallocFmr {
        fmr: Name,
    },
    CreateAh {
        ah: u8,
        pd: Name,
        to: Address,
    },
    ModifyAh {
        ah: Name,
        to: Address,
    },
    QueryAh {
        ah: Name,
    },
    DestroyAh {
        ah: Name,
    },
    Attach {
        qp: Name,
        group: Group,
    },
    Detach {
        qp: Name,
        group: Group,
    },
    QueryPort {
        port: u8,
    },
    QueryGid {
        port: u8,
        index: u16,
    },
    QueryPkey {
        port: u8,
        index: u16,
    },
    /// From now on the cable loses what goes by this service level.
    Lose {
        path: Option<u8>,
    },
    /// The consumer fills memory that is nobody's at the moment.
    Fill {
        at: u16,
        len: u16,
        seed: u8,
    },
}

/// Where an address handle leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Address {
    /// Port 1 of this side itself.
    Here,
    /// Port 1 of the peer.
    There,
    /// A LID that nobody has.
    Nowhere,
    /// A group.
    Group(Group),
    /// A group, without the GRH that it needs.
    Bare,
    /// LID 0.
    NoLid,
    /// By a port that is not there.
    BadPort,
    /// By a source GID beyond the table.
    BadGid,
}

/// A multicast group, or what is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    One,
    Two,
    /// Its GID is not multicast.
    Unicast,
    /// Its LID is not.
    UnicastLid,
}

/// A line of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// A call.
    Call(Side, Call),
    /// Creates the QPs in a place of both sides (0, 1), or in two places of one side (2 with 3), connected services, and
    /// takes both to RTS, step by step, each a call.
    Connect {
        service: QpType,
        place: u8,
        side: Side,
        srq: bool,
        all: bool,
    },
    /// Creates a UD QP, or the GSI, and takes it to RTS.
    Datagrams {
        place: u8,
        side: Side,
        srq: bool,
        special: bool,
    },
    /// Takes a QP to a state by the shortest way that there is from where it is.
    Bring { side: Side, qp: u8, to: QpState },
    /// Sends one message more than the peer has receives for, stops the queue, and goes on when it has one: calls that are
    /// refused meanwhile among them.
    Stop { side: Side, qp: u8, told: bool },
    /// Both ends of a connection load another path; then messages go both ways.
    Arm { side: Side, qp: u8 },
    /// The path of a connection is lost for a message each way, or its consumer has it migrate.
    Move { side: Side, qp: u8, lost: bool },
    /// Polls a CQ until it is empty.
    Drain { side: Side, cq: u8 },
}

/// A program.
pub type Program = Vec<Line>;
