//! Work requests. verbs 4.

use super::{AhHandle, MrHandle, MwHandle};
use crate::{LKey, QKey, Qpn, RKey};
use bitflags::bitflags;

/// One piece of local memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sge {
    /// Address in the space of the key.
    pub addr: u64,
    /// Bytes; an entry of 0 bytes is skipped.
    pub length: u32,
    /// Key of the memory.
    pub lkey: LKey,
}

/// Four bytes of immediate data in wire order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Imm(pub [u8; 4]);

/// Memory of the peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteAddr {
    /// Address in the space of the key.
    pub addr: u64,
    /// Key of the memory.
    pub rkey: RKey,
}

bitflags! {
    /// Flags of a send request. verbs 4.4.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct SendFlags: u8 {
        /// Completion also on success, where the QP's policy is "per request".
        const SIGNALED = 1;
        /// Sets the solicited-event bit of the last packet.
        const SOLICITED = 2;
        /// Start only after all earlier reads and atomics have completed.
        const FENCE = 4;
        /// The data is copied while posting.
        const INLINE = 8;
        /// Compute the IP checksum of an IPoIB packet, where the HCA can.
        const IP_CHECKSUM = 16;
        /// Compute the TCP or UDP checksum, where the HCA can.
        const L4_CHECKSUM = 32;
    }
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendOp {
    /// Send on a connected QP.
    Send {
        /// Immediate data, if any.
        imm: Option<Imm>,
    },
    /// Send a datagram (UD, SMI, GSI).
    Datagram {
        /// Where to.
        ah: AhHandle,
        /// Which QP there.
        remote_qpn: Qpn,
        /// Its Q_Key; bit 31 set means the QP's own.
        remote_qkey: QKey,
        /// Immediate data, if any.
        imm: Option<Imm>,
        /// P_Key index; GSI only, else ignored.
        pkey_index: u16,
    },
    /// Send, and invalidate a key of the peer.
    SendInvalidate {
        /// The peer's key.
        rkey: RKey,
    },
    /// Write to the peer's memory.
    RdmaWrite {
        /// Where.
        remote: RemoteAddr,
        /// Immediate data, if any.
        imm: Option<Imm>,
    },
    /// Read from the peer's memory into the scatter list.
    RdmaRead {
        /// Where.
        remote: RemoteAddr,
    },
    /// Store `swap` if the 8 bytes hold `compare`; the old value goes to the scatter list.
    CompareSwap {
        /// Where; a multiple of 8.
        remote: RemoteAddr,
        /// What must be there.
        compare: u64,
        /// What comes there.
        swap: u64,
    },
    /// Add to the 8 bytes; the old value goes to the scatter list.
    FetchAdd {
        /// Where; a multiple of 8.
        remote: RemoteAddr,
        /// What to add.
        add: u64,
    },
    /// Bind a memory window. A window of type 1 gets a new key, which [`Device::mw_rkey`](super::Device::mw_rkey)
    /// tells once this is posted.
    BindMw {
        /// The window.
        mw: MwHandle,
        /// The region.
        mr: MrHandle,
        /// First byte, in the region's address space.
        addr: u64,
        /// Bytes; 0 unbinds a type 1 window.
        length: u64,
        /// Remote rights.
        access: super::Access,
    },
    /// Invalidate a local key.
    LocalInvalidate {
        /// The key.
        rkey: RKey,
    },
}

/// One request for a send queue.
#[derive(Clone, Copy, Debug)]
pub struct SendWr<'a> {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// What to do.
    pub op: SendOp,
    /// Local memory, in order. With [`SendFlags::INLINE`] not looked at.
    pub sges: &'a [Sge],
    /// With [`SendFlags::INLINE`]: the data itself, instead of `sges`. Without it not looked at: neither is an error, as
    /// the flag alone says which of the two counts.
    pub inline: &'a [u8],
    /// Flags.
    pub flags: SendFlags,
}

/// One request for a receive queue.
#[derive(Clone, Copy, Debug)]
pub struct RecvWr<'a> {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// Local memory, in order. Datagrams: the first 40 bytes are for the GRH.
    pub sges: &'a [Sge],
}
