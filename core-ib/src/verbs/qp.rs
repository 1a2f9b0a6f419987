//! Queue pairs and shared receive queues: types, states, attributes. verbs 3 and 8.

use super::{AhAttr, CqHandle, PdHandle, QpHandle, SrqHandle, UserHandle};
use crate::platform::DmaAddr;
use crate::{LKey, Mtu, Psn, QKey, Qpn};
use bitflags::bitflags;

/// Service type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QpType {
    /// Reliable connected.
    Rc,
    /// Unreliable connected.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// QP0 of a port. On an InfiniHost the port's link comes up when this QP reaches RTR, and goes down with it: without it
    /// no packet leaves, whatever other QPs are posted.
    Smi,
    /// QP1 of a port.
    Gsi,
}

impl QpType {
    /// Requests name an address handle.
    pub const fn is_datagram(self) -> bool {
        matches!(self, Self::Ud | Self::Smi | Self::Gsi)
    }
}

/// State. verbs 3.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QpState {
    /// Nothing outstanding.
    Reset,
    /// Receives may be posted.
    Init,
    /// Ready to receive.
    Rtr,
    /// Ready to send.
    Rts,
    /// Send queue drained or draining.
    Sqd,
    /// Send queue error.
    Sqe,
    /// Everything is flushed.
    Error,
}

/// Which sends complete visibly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signaling {
    /// All.
    All,
    /// Those with the flag, and errors.
    PerRequest,
}

/// Path migration state. verbs 11.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathMigration {
    /// On the primary path, none loaded.
    Migrated,
    /// Waiting for the peer.
    Rearm,
    /// Both sides are ready.
    Armed,
}

/// Memory of a user context that holds a queue.
#[derive(Clone, Copy, Debug)]
pub struct UserBuffer {
    /// The context.
    pub context: UserHandle,
    /// Key of the buffer's region.
    pub lkey: LKey,
    /// Pages that hold the doorbell records (send or arm, receive or consumer), where the HCA has such.
    pub doorbell_pages: [DmaAddr; 2],
    /// Indices of the doorbell records.
    pub doorbell_indices: [u32; 2],
}

/// For whom an object is made.
#[derive(Clone, Copy, Debug, Default)]
pub enum Owner {
    /// The driver allocates the queue and its consumer posts through it.
    #[default]
    Kernel,
    /// The queue lies in a user's memory, and the user rings the doorbells.
    User(UserBuffer),
}

/// Sizes of a QP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpCaps {
    /// Send requests outstanding.
    pub max_send_wr: u32,
    /// Receive requests outstanding; 0 with an SRQ.
    pub max_recv_wr: u32,
    /// Entries of one send request.
    pub max_send_sge: u32,
    /// Entries of one receive request.
    pub max_recv_sge: u32,
    /// Bytes of inline data.
    pub max_inline: u32,
}

/// What to create a QP with.
#[derive(Clone, Copy, Debug)]
pub struct QpInit {
    /// Service type.
    pub qp_type: QpType,
    /// Port of an SMI or GSI QP; otherwise ignored.
    pub port: u8,
    /// Completions of sends.
    pub send_cq: CqHandle,
    /// Completions of receives.
    pub recv_cq: CqHandle,
    /// Receives come from here.
    pub srq: Option<SrqHandle>,
    /// Sizes wanted.
    pub caps: QpCaps,
    /// Policy for the life of the QP.
    pub signaling: Signaling,
    /// Kernel or user.
    pub owner: Owner,
}

/// A created QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpInfo {
    /// Its name.
    pub handle: QpHandle,
    /// Its number on the wire: 0 and 1 for SMI and GSI.
    pub qpn: Qpn,
    /// Its sizes, at least those asked for.
    pub caps: QpCaps,
}

bitflags! {
    /// Which fields of a [`QpAttr`] count. Names: verbs 3.4.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct QpAttrMask: u32 {
        /// `state`
        const STATE = 1 << 0;
        /// `cur_state` (CUR)
        const CUR_STATE = 1 << 1;
        /// `sq_drained_event` (SQDN)
        const SQ_DRAINED = 1 << 2;
        /// `access` (ACC)
        const ACCESS = 1 << 3;
        /// `pkey_index` (PKEY)
        const PKEY_INDEX = 1 << 4;
        /// `port` (PORT)
        const PORT = 1 << 5;
        /// `qkey` (QKEY)
        const QKEY = 1 << 6;
        /// `path` (AV)
        const AV = 1 << 7;
        /// `path_mtu` (MTU)
        const PATH_MTU = 1 << 8;
        /// `timeout` (TMO)
        const TIMEOUT = 1 << 9;
        /// `retry_count` (RTRY)
        const RETRY_COUNT = 1 << 10;
        /// `rnr_retry` (RNRR)
        const RNR_RETRY = 1 << 11;
        /// `rq_psn` (RQPSN)
        const RQ_PSN = 1 << 12;
        /// `max_rd_atomic` (MRA)
        const MAX_RD_ATOMIC = 1 << 13;
        /// `max_dest_rd_atomic` (MDRA)
        const MAX_DEST_RD_ATOMIC = 1 << 14;
        /// `alt_path`, `alt_pkey_index`, `alt_timeout` (ALT)
        const ALT_PATH = 1 << 15;
        /// `min_rnr_timer` (RNRT)
        const MIN_RNR_TIMER = 1 << 16;
        /// `sq_psn` (SQPSN)
        const SQ_PSN = 1 << 17;
        /// `path_migration` (MIG)
        const PATH_MIG_STATE = 1 << 18;
        /// Resize of the queues (CAP): never supported.
        const CAP = 1 << 19;
        /// `dest_qpn` (DQPN)
        const DEST_QPN = 1 << 20;
    }
}

/// Attributes of a QP. What counts is said by a [`QpAttrMask`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpAttr {
    /// State to go to, or (query) the state.
    pub state: QpState,
    /// State that the caller assumes.
    pub cur_state: QpState,
    /// Wants the event when drained.
    pub sq_drained_event: bool,
    /// Query: still draining.
    pub sq_draining: bool,
    /// Remote rights of the QP.
    pub access: super::Access,
    /// Index into the port's P_Key table.
    pub pkey_index: u16,
    /// Port.
    pub port: u8,
    /// Q_Key of a datagram QP.
    pub qkey: QKey,
    /// Primary path.
    pub path: AhAttr,
    /// Path MTU.
    pub path_mtu: Mtu,
    /// Local ACK timeout: 4.096 us * 2^n, 0 for none; 0 to 31.
    pub timeout: u8,
    /// Transport retries, 0 to 7.
    pub retry_count: u8,
    /// RNR retries, 0 to 6; 7 is unlimited.
    pub rnr_retry: u8,
    /// First expected PSN.
    pub rq_psn: Psn,
    /// Reads and atomics outstanding as initiator.
    pub max_rd_atomic: u8,
    /// Reads and atomics outstanding as responder.
    pub max_dest_rd_atomic: u8,
    /// Alternate path.
    pub alt_path: AhAttr,
    /// P_Key index of the alternate path.
    pub alt_pkey_index: u16,
    /// Timeout of the alternate path.
    pub alt_timeout: u8,
    /// Minimum RNR NAK timer, a code 0 to 31.
    pub min_rnr_timer: u8,
    /// First PSN to send.
    pub sq_psn: Psn,
    /// Path migration state.
    pub path_migration: PathMigration,
    /// The peer's QP.
    pub dest_qpn: Qpn,
}

impl QpAttr {
    /// All zero, in RESET: to fill in what counts.
    pub const EMPTY: Self = Self {
        state: QpState::Reset,
        cur_state: QpState::Reset,
        sq_drained_event: false,
        sq_draining: false,
        access: super::Access::empty(),
        pkey_index: 0,
        port: 0,
        qkey: QKey(0),
        path: NO_PATH,
        path_mtu: Mtu::Mtu256,
        timeout: 0,
        retry_count: 0,
        rnr_retry: 0,
        rq_psn: Psn::new(0),
        max_rd_atomic: 0,
        max_dest_rd_atomic: 0,
        alt_path: NO_PATH,
        alt_pkey_index: 0,
        alt_timeout: 0,
        min_rnr_timer: 0,
        sq_psn: Psn::new(0),
        path_migration: PathMigration::Migrated,
        dest_qpn: Qpn::new(0),
    };
}

const NO_PATH: AhAttr = AhAttr {
    port: 0,
    dlid: crate::Lid::NONE,
    sl: crate::Sl::new(0),
    src_path_bits: 0,
    static_rate: crate::Rate::PORT,
    grh: None,
};

/// What to create an SRQ with.
#[derive(Clone, Copy, Debug)]
pub struct SrqInit {
    /// Domain against which its buffers are checked.
    pub pd: PdHandle,
    /// Requests outstanding; at least 1.
    pub max_wr: u32,
    /// Entries of one request.
    pub max_sge: u32,
    /// Kernel or user.
    pub owner: Owner,
}

/// Attributes of an SRQ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SrqAttr {
    /// Requests outstanding.
    pub max_wr: u32,
    /// Entries of one request.
    pub max_sge: u32,
    /// Event when fewer requests than this are left; 0 for none.
    pub limit: u32,
}
