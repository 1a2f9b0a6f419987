//! Subscriptions to the forwarding of notices. protocols 4.9.

use super::layout::{layout, records};
use super::{AttributeId, TimeCode};
use crate::types::{Gid, Lid, Qpn};

layout! {
    /// What a subscriber wants to hear of, and whether it still does. protocols 4.9.
    pub struct InformInfo, InformInfoView: 36, AttributeId::INFORM_INFO;
    /// Only notices about this GID; if it is zero, the LIDs count.
    gid: Gid = 0,
    /// LIDRangeBegin: see [`InformInfo::ALL_LIDS`].
    lid_range_begin: Lid = 16,
    /// LIDRangeEnd.
    lid_range_end: Lid = 18,
    /// Traps of the architecture, not of a vendor.
    is_generic: bool = 22 [0:0],
    /// Begin or end.
    subscribe: bool = 23 [0:0],
    /// Type of the notices: see [`InformInfo::ALL`].
    kind: u16 = 24,
    /// TrapNumber; DeviceID if not generic. See [`InformInfo::ALL`].
    number: u16 = 26,
    /// Where the reports go.
    qpn: Qpn = 28,
    /// How long the subscriber may take to answer.
    resp_time: TimeCode = 31 [4:0],
    /// ProducerType; VendorID if not generic. See [`InformInfo::ALL_PRODUCERS`].
    producer: u32 = 33/3 [23:0],
}

impl InformInfo {
    /// As the beginning of the range: every LID.
    pub const ALL_LIDS: Lid = Lid(0xffff);
    /// As type or trap number: every one.
    pub const ALL: u16 = 0xffff;
    /// As producer: every one.
    pub const ALL_PRODUCERS: u32 = 0xff_ffff;
}

layout! {
    /// A subscription that the SA has. protocols 4.9.
    pub struct InformInfoRecord, InformInfoRecordView: 60, AttributeId::INFORM_INFO_RECORD;
    /// SubscriberGID.
    subscriber_gid: Gid = 0,
    /// Enum: tells those of one subscriber apart.
    index: u16 = 16,
    /// InformInfo.
    info: InformInfo = 24,
}

records! { InformInfoRecord:
    SUBSCRIBER_GID = 0: subscriber_gid;
    INDEX = 1: index;
    GID = 3: info.gid;
    LID_RANGE_BEGIN = 4: info.lid_range_begin;
    LID_RANGE_END = 5: info.lid_range_end;
    IS_GENERIC = 7: info.is_generic;
    SUBSCRIBE = 8: info.subscribe;
    KIND = 9: info.kind;
    NUMBER = 10: info.number;
    QPN = 11: info.qpn;
    RESP_TIME = 13: info.resp_time;
    PRODUCER = 15: info.producer;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::mad::layout::property::round_trip_tests;
    use crate::wire::mad::{ComponentMask, Record, SaHeader};

    round_trip_tests!(InformInfo, InformInfoRecord);

    fn example() -> InformInfo {
        InformInfo {
            gid: Gid([0x11; 16]),
            lid_range_begin: InformInfo::ALL_LIDS,
            lid_range_end: Lid(0x0102),
            is_generic: true,
            subscribe: true,
            kind: InformInfo::ALL,
            number: 66,
            qpn: Qpn::new(0x03_0405),
            resp_time: TimeCode(0x13),
            producer: 4,
        }
    }

    /// protocols 4.9.
    #[test]
    fn the_inform_info_lies_as_the_table_says() {
        let bytes = [
            0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11,
            0x11, 0x11, 0xff, 0xff, 0x01, 0x02, 0, 0, 1, 1, 0xff, 0xff, 0, 66, 3, 4, 5, 0x13, 0, 0,
            0, 4,
        ];
        assert_eq!(example().to_bytes(), bytes);
        assert_eq!(InformInfo::from_bytes(&bytes), example());
        let record = InformInfoRecord {
            subscriber_gid: Gid([0x22; 16]),
            index: 0x0607,
            info: example(),
        };
        let again = record.to_bytes();
        assert_eq!(again[..16], [0x22; 16]);
        assert_eq!(again[16..24], [6, 7, 0, 0, 0, 0, 0, 0]);
        assert_eq!(again[24..], bytes);
        assert_eq!(SaHeader::offset_of(InformInfoRecord::SIZE), 8);
    }

    #[test]
    fn a_subscription_is_found_by_its_components() {
        let record = InformInfoRecord {
            info: example(),
            ..InformInfoRecord::default()
        };
        let mut query = record;
        query.info.producer = 2;
        assert!(record.matches(&query, InformInfoRecord::QPN | InformInfoRecord::NUMBER));
        assert!(!record.matches(&query, InformInfoRecord::PRODUCER));
        assert_eq!(InformInfoRecord::PRODUCER, ComponentMask(1 << 15));
    }
}
