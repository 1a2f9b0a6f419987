//! PathRecord: from one port to another. protocols 4.5.

use super::layout::{components, layout};
use super::{AttributeId, MtuCode, Selector, TimeCode};
use crate::types::{Gid, Lid, PKey, Rate, Sl};
use crate::wire::FlowLabel;

layout! {
    /// A path, or what is asked of one. protocols 4.5.
    pub struct PathRecord, PathRecordView: 64, AttributeId::PATH_RECORD;
    /// ServiceID.
    service_id: u64 = 0,
    /// DGID.
    dgid: Gid = 8,
    /// SGID.
    sgid: Gid = 24,
    /// DLID.
    dlid: Lid = 40,
    /// SLID.
    slid: Lid = 42,
    /// RawTraffic.
    raw_traffic: bool = 44 [7:7],
    /// FlowLabel.
    flow_label: FlowLabel = 44/4 [27:8],
    /// More than 1: through a router, so with a GRH.
    hop_limit: u8 = 47,
    /// Traffic class.
    tclass: u8 = 48,
    /// The way back is the same.
    reversible: bool = 49 [7:7],
    /// How many paths at most.
    numb_path: u8 = 49 [6:0],
    /// P_Key.
    p_key: PKey = 50,
    /// QoSClass.
    qos_class: u16 = 52/2 [15:4],
    /// Service level.
    sl: Sl = 53 [3:0],
    /// How `mtu` is meant.
    mtu_selector: Selector = 54 [7:6],
    /// MTU of the whole path.
    mtu: MtuCode = 54 [5:0],
    /// How `rate` is meant.
    rate_selector: Selector = 55 [7:6],
    /// The least rate on the path.
    rate: Rate = 55 [5:0],
    /// How `packet_life_time` is meant.
    packet_life_time_selector: Selector = 56 [7:6],
    /// How long a packet may be on its way.
    packet_life_time: TimeCode = 56 [5:0],
    /// 0 is the best of several.
    preference: u8 = 57,
}

components! { PathRecord:
    SERVICE_ID = 0 | 1;
    DGID = 2;
    SGID = 3;
    DLID = 4;
    SLID = 5;
    RAW_TRAFFIC = 6;
    FLOW_LABEL = 8;
    HOP_LIMIT = 9;
    TCLASS = 10;
    REVERSIBLE = 11;
    NUMB_PATH = 12;
    P_KEY = 13;
    QOS_CLASS = 14;
    SL = 15;
    MTU_SELECTOR = 16;
    MTU = 17;
    RATE_SELECTOR = 18;
    RATE = 19;
    PACKET_LIFE_TIME_SELECTOR = 20;
    PACKET_LIFE_TIME = 21;
    PREFERENCE = 22;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Guid, Mtu};
    use crate::wire::mad::ComponentMask;
    use crate::wire::mad::layout::property::round_trip_tests;

    round_trip_tests!(PathRecord);

    /// protocols 4.5.
    #[test]
    fn the_path_record_lies_as_the_table_says() {
        let path = PathRecord {
            service_id: 0x0102_0304_0506_0708,
            dgid: Gid::unicast(Gid::DEFAULT_PREFIX, Guid(0x11)),
            sgid: Gid::unicast(Gid::DEFAULT_PREFIX, Guid(0x22)),
            dlid: Lid(0x0033),
            slid: Lid(0x0044),
            raw_traffic: true,
            flow_label: FlowLabel::new(0x1_2345),
            hop_limit: 0x67,
            tclass: 0x89,
            reversible: true,
            numb_path: 0x01,
            p_key: PKey(0x8001),
            qos_class: 0xabc,
            sl: Sl::new(0xd),
            mtu_selector: Selector::Exactly,
            mtu: Mtu::Mtu2048.into(),
            rate_selector: Selector::LessThan,
            rate: Rate::GBPS_20,
            packet_life_time_selector: Selector::Best,
            packet_life_time: TimeCode(18),
            preference: 0xef,
        };
        let bytes = [
            0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, // service
            0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x11, // 8: DGID
            0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x22, // 24: SGID
            0x00, 0x33, 0x00, 0x44, 0x81, 0x23, 0x45, 0x67, // 40: LIDs, flow, hops
            0x89, 0x81, 0x80, 0x01, 0xab, 0xcd, 0x84, 0x46, // 48: to the rate
            0xd2, 0xef, 0, 0, 0, 0, 0, 0, // 56: lifetime, preference
        ];
        assert_eq!(path.to_bytes(), bytes);
        assert_eq!(PathRecord::from_bytes(&bytes), path);
    }

    /// protocols 4.5: what IPoIB asks.
    #[test]
    fn a_mask_is_a_bit_for_each_component() {
        let mask = PathRecord::DGID
            | PathRecord::SGID
            | PathRecord::NUMB_PATH
            | PathRecord::TCLASS
            | PathRecord::P_KEY;
        assert_eq!(mask, ComponentMask(0b11_0100_0000_1100));
        assert!(mask.has(PathRecord::DGID | PathRecord::P_KEY));
        assert!(!mask.has(PathRecord::DGID | PathRecord::SERVICE_ID));
        assert_eq!(PathRecord::SERVICE_ID, ComponentMask(3));
    }
}
