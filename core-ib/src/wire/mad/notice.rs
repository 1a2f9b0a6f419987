//! Notices: what a node or the SA reports unasked. protocols 3.10, 4.11.

use super::layout::{constants, layout, number};
use super::trap::TrapDetails;
use super::{AttributeId, Layout};
use crate::types::{Gid, Lid};
use crate::wire::WireError;

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

/// Who issues a trap: a number of 24 bits. protocols 3.10.1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ProducerType(pub u32);

constants! { ProducerType:
    /// Channel adapter.
    CA = 1;
    /// Switch.
    SWITCH = 2;
    /// Router.
    ROUTER = 3;
    /// Class manager: of subnet management, the SM.
    CLASS_MANAGER = 4;
}

/// What happened. protocols 3.10.2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TrapNumber(pub u16);

constants! { TrapNumber:
    /// A port came into service.
    GID_IN_SERVICE = 64;
    /// A port went out of service.
    GID_OUT_OF_SERVICE = 65;
    /// A multicast group was created.
    GROUP_CREATED = 66;
    /// A multicast group was deleted.
    GROUP_DELETED = 67;
    /// A path is no longer available.
    PATH_UNAVAILABLE = 68;
    /// A path has changed.
    REPATH = 69;
    /// Links of a switch changed their state.
    LINK_STATE_CHANGE = 128;
    /// Local link integrity threshold reached.
    LOCAL_LINK_INTEGRITY = 129;
    /// Excessive buffer overrun threshold reached.
    EXCESSIVE_BUFFER_OVERRUN = 130;
    /// Flow-control update watchdog expired.
    FLOW_CONTROL_WATCHDOG = 131;
    /// Capability mask or something else of the node changed.
    LOCAL_CHANGES = 144;
    /// System image GUID changed.
    SYSTEM_IMAGE_GUID = 145;
    /// Bad M_Key.
    BAD_M_KEY = 256;
    /// Bad P_Key.
    BAD_P_KEY = 257;
    /// Bad Q_Key.
    BAD_Q_KEY = 258;
    /// Bad P_Key at an external port of a switch.
    BAD_P_KEY_SWITCH = 259;
}

impl TrapNumber {
    /// The type of its notices; `None` if the number is not known.
    pub const fn kind(self) -> Option<NoticeType> {
        Some(match self.0 {
            64..=69 => NoticeType::SUBNET_MANAGEMENT,
            128..=131 => NoticeType::URGENT,
            144 | 145 => NoticeType::INFO,
            256..=259 => NoticeType::SECURITY,
            _ => return None,
        })
    }
}

number! {
    NoticeType, 1, |bits| Self(bits as u8), |kind| kind.0.into();
    ProducerType, 3, |bits| Self(bits as u32), |producer| producer.0.into();
    TrapNumber, 2, |bits| Self(bits as u16), |number| number.0.into();
}

layout! {
    /// A notice as it is in an SMP. protocols 3.10.1.
    pub struct Notice, NoticeView: 64, AttributeId::NOTICE;
    /// Its number is a trap of the architecture, not a device of a vendor.
    is_generic: bool = 0 [7:7],
    /// Type.
    kind: NoticeType = 0 [6:0],
    /// ProducerType; VendorID if not generic.
    producer: ProducerType = 1,
    /// TrapNumber; DeviceID if not generic.
    number: TrapNumber = 4,
    /// IssuerLID.
    issuer_lid: Lid = 6,
    /// NoticeToggle.
    toggle: bool = 8 [7:7],
    /// NoticeCount.
    count: u16 = 8/2 [14:0],
    /// DataDetails: see [`Notice::trap`].
    details: [u8; 54] = 10,
}

impl Notice {
    /// A trap of the architecture.
    pub fn new(
        number: TrapNumber,
        producer: ProducerType,
        issuer_lid: Lid,
        details: &TrapDetails,
    ) -> Self {
        Self {
            is_generic: true,
            kind: number.kind().unwrap_or(NoticeType::INFO),
            producer,
            number,
            issuer_lid,
            toggle: false,
            count: 0,
            details: details.to_bytes(),
        }
    }

    /// The details, if the notice is generic and its number is known.
    pub fn trap(&self) -> Option<TrapDetails> {
        if !self.is_generic {
            return None;
        }
        TrapDetails::from_bytes(self.number, &self.details)
    }
}

layout! {
    /// A notice as the SA reports it. protocols 3.10.1.
    pub struct SaNotice, SaNoticeView: 80, AttributeId::NOTICE;
    /// The notice.
    notice: Notice = 0,
    /// IssuerGID.
    issuer_gid: Gid = 64,
}

impl SaNotice {
    /// Reads a notice of either length; of a short one the issuer's GID is [`Gid::NONE`].
    pub fn read_any(bytes: &[u8]) -> Result<Self, WireError> {
        Self::read(bytes).or_else(|_| {
            let notice = Notice::read(bytes)?;
            Ok(Self {
                notice,
                issuer_gid: Gid::NONE,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::mad::layout::property::round_trip_tests;

    round_trip_tests!(Notice, SaNotice);

    /// protocols 3.10.1.
    #[test]
    fn the_notice_lies_as_the_table_says() {
        let notice = Notice {
            is_generic: true,
            kind: NoticeType::URGENT,
            producer: ProducerType::SWITCH,
            number: TrapNumber::LINK_STATE_CHANGE,
            issuer_lid: Lid(0x0102),
            toggle: true,
            count: 0x0304,
            details: [0x55; 54],
        };
        let sa = SaNotice {
            notice,
            issuer_gid: Gid([0x66; 16]),
        };
        let bytes = sa.to_bytes();
        assert_eq!(bytes[..10], [0x81, 0, 0, 2, 0, 128, 1, 2, 0x83, 4]);
        assert_eq!(bytes[10..64], [0x55; 54]);
        assert_eq!(bytes[64..], [0x66; 16]);
        assert_eq!(SaNotice::read_any(&bytes), Ok(sa));
        let short = SaNotice {
            issuer_gid: Gid::NONE,
            ..sa
        };
        assert_eq!(SaNotice::read_any(&bytes[..64]), Ok(short));
        assert!(SaNotice::read_any(&bytes[..63]).is_err());
    }

    #[test]
    fn a_notice_of_a_vendor_has_no_trap() {
        let details = TrapDetails::Gid(Default::default());
        let number = TrapNumber::GID_IN_SERVICE;
        let mut notice = Notice::new(number, ProducerType::CLASS_MANAGER, Lid(1), &details);
        assert_eq!(notice.kind, NoticeType::SUBNET_MANAGEMENT);
        assert_eq!(notice.trap(), Some(details));
        notice.is_generic = false;
        assert_eq!(notice.trap(), None);
    }
}
