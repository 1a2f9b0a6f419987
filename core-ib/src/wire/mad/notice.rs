//! Notices: what a node or the SA reports unasked. protocols 3.10, 4.11.

use super::AttributeId;
use super::layout::{constants, layout, number};
use crate::types::{Gid, Lid};

/// Kind of a notice. protocols 3.10.1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct NoticeType(pub u8);

constants! { NoticeType:
    /// Fatal.
    FATAL = 0;
    /// Urgent.
    URGENT = 1;
    /// Security.
    SECURITY = 2;
    /// Subnet management.
    SUBNET_MANAGEMENT = 3;
    /// Informational.
    INFO = 4;
    /// There is none.
    EMPTY = 0x7f;
}

number! {
    NoticeType, 1, |bits| Self(bits as u8), |kind| kind.0.into();
}

layout! {
    /// A notice as it is in an SMP. protocols 3.10.1.
    pub struct Notice, NoticeView: 64, AttributeId::NOTICE;
    /// Its number is a trap of the architecture, not a device of a vendor.
    is_generic: bool = 0 [7:7],
    /// Type.
    kind: NoticeType = 0 [6:0],
    /// ProducerType, or VendorID if not generic; 24 bits.
    producer: u32 = 1/3 [23:0],
    /// TrapNumber, or DeviceID if not generic.
    number: u16 = 4,
    /// IssuerLID.
    issuer_lid: Lid = 6,
    /// NoticeToggle.
    toggle: bool = 8 [7:7],
    /// NoticeCount.
    count: u16 = 8/2 [14:0],
    /// DataDetails, by the number.
    details: [u8; 54] = 10,
}

layout! {
    /// A notice as the SA reports it. protocols 3.10.1.
    pub struct SaNotice, SaNoticeView: 80, AttributeId::NOTICE;
    /// The notice.
    notice: Notice = 0,
    /// IssuerGID.
    issuer_gid: Gid = 64,
}
