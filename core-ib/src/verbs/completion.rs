//! Completions. verbs 5 and 6.

use super::{Imm, Owner};
use crate::{Lid, Qpn, RKey, Sl};
use bitflags::bitflags;

/// What to create a CQ with.
#[derive(Clone, Copy, Debug)]
pub struct CqInit {
    /// Entries that the consumer will have outstanding at most; at least 1.
    pub cqe: u32,
    /// Which of the device's completion vectors announces it.
    pub vector: u16,
    /// Kernel or user.
    pub owner: Owner,
}

/// What an armed CQ waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotifyKind {
    /// The next completion.
    Any = 0,
    /// The next completion of a message with the solicited bit, or of any error.
    Solicited = 1,
}

/// How a work request ended. An open set: what the HCA said is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WcStatus {
    /// Done.
    Success,
    /// Message longer than the buffer, the path MTU or the port allow.
    LocalLength,
    /// Malformed request.
    LocalQpOperation,
    /// Local buffer: key, domain, bounds or right.
    LocalProtection,
    /// The QP was in error when its turn came.
    Flushed,
    /// Window not bound.
    MwBind,
    /// The peer's response made no sense.
    BadResponse,
    /// Local target of a remote write.
    LocalAccess,
    /// The peer refused the request as invalid.
    RemoteInvalidRequest,
    /// The peer refused the key, bounds or right.
    RemoteAccess,
    /// The peer could not finish.
    RemoteOperation,
    /// No answer.
    RetryExceeded,
    /// The peer was never ready to receive.
    RnrRetryExceeded,
    /// None of the above; [`WorkCompletion::vendor_error`] has more. Holds the device's syndrome.
    General(u8),
}

/// What a work request was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WcOpcode {
    /// Any of the sends.
    Send,
    /// RDMA write, with or without immediate.
    RdmaWrite,
    /// RDMA read.
    RdmaRead,
    /// Compare and swap.
    CompareSwap,
    /// Fetch and add.
    FetchAdd,
    /// Bind of a memory window.
    BindMw,
    /// Local invalidate.
    LocalInvalidate,
    /// Fast registration.
    FastRegister,
    /// A receive.
    Recv,
    /// A receive consumed by an RDMA write with immediate.
    RecvRdmaWithImm,
    /// Unspecified: the status is not success, or the device reported an opcode that is not known.
    Unknown,
}

bitflags! {
    /// What a completion carries.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct WcFlags: u8 {
        /// The first 40 bytes of the buffer hold a GRH.
        const GRH = 1;
        /// `imm` is valid.
        const IMM = 2;
        /// `invalidated` is valid.
        const INVALIDATED = 4;
        /// The device verified the IP checksum.
        const CHECKSUM_OK = 8;
    }
}

/// One completion. Which fields are valid: verbs 5.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkCompletion {
    /// As given when posting.
    pub wr_id: u64,
    /// How it ended.
    pub status: WcStatus,
    /// What it was.
    pub opcode: WcOpcode,
    /// The device's own error code.
    pub vendor_error: u8,
    /// What is valid.
    pub flags: WcFlags,
    /// Service level (datagram receives).
    pub sl: Sl,
    /// Low bits of the destination LID (datagram receives, not of multicast).
    pub dlid_path_bits: u8,
    /// Bytes received, for datagrams 40 more than the payload.
    pub byte_len: u32,
    /// The QP, by the number on the wire.
    pub qpn: Qpn,
    /// Sender's QP (datagram receives).
    pub src_qp: Qpn,
    /// Sender's LID (datagram receives).
    pub slid: Lid,
    /// P_Key index (GSI receives).
    pub pkey_index: u16,
    /// Immediate data, if the flag says so.
    pub imm: Imm,
    /// Key invalidated by the peer, if the flag says so.
    pub invalidated: RKey,
}

impl WorkCompletion {
    /// All zero: to make room for [`CompletionQueue::poll`](super::CompletionQueue::poll).
    pub const EMPTY: Self = Self {
        wr_id: 0,
        status: WcStatus::Success,
        opcode: WcOpcode::Unknown,
        vendor_error: 0,
        flags: WcFlags::empty(),
        sl: Sl::new(0),
        dlid_path_bits: 0,
        byte_len: 0,
        qpn: Qpn::new(0),
        src_qp: Qpn::new(0),
        slid: Lid::NONE,
        pkey_index: 0,
        imm: Imm([0; 4]),
        invalidated: RKey(0),
    };
}
