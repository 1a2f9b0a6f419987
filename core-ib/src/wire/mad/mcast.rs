//! MCMemberRecord: a multicast group and who is in it. protocols 4.6.

use super::layout::{layout, number, records};
use super::{AttributeId, MtuCode, Selector, TimeCode};
use crate::types::{Gid, Lid, PKey, QKey, Rate, Sl};
use crate::wire::FlowLabel;
use bitflags::bitflags;

bitflags! {
    /// How a port is in a group. protocols 4.6.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct JoinState: u8 {
        /// Receives, sends, keeps the group alive.
        const FULL_MEMBER = 1;
        /// Receives and sends.
        const NON_MEMBER = 2;
        /// Sends.
        const SEND_ONLY_NON_MEMBER = 4;
        /// Sends, keeps the group alive.
        const SEND_ONLY_FULL_MEMBER = 8;
    }
}

number! {
    JoinState, 1, |bits| Self::from_bits_retain(bits as u8), |state| state.bits().into();
}

layout! {
    /// A group and one member of it. protocols 4.6.
    pub struct McMemberRecord, McMemberRecordView: 52, AttributeId::MC_MEMBER_RECORD;
    /// MGID: names the group.
    mgid: Gid = 0,
    /// PortGID: the member.
    port_gid: Gid = 16,
    /// Q_Key.
    q_key: QKey = 32,
    /// MLID.
    mlid: Lid = 36,
    /// How `mtu` is meant.
    mtu_selector: Selector = 38 [7:6],
    /// MTU.
    mtu: MtuCode = 38 [5:0],
    /// Traffic class.
    tclass: u8 = 39,
    /// P_Key.
    p_key: PKey = 40,
    /// How `rate` is meant.
    rate_selector: Selector = 42 [7:6],
    /// Rate.
    rate: Rate = 42 [5:0],
    /// How `packet_life_time` is meant.
    packet_life_time_selector: Selector = 43 [7:6],
    /// How long a packet may be on its way.
    packet_life_time: TimeCode = 43 [5:0],
    /// Service level.
    sl: Sl = 44 [7:4],
    /// FlowLabel.
    flow_label: FlowLabel = 44/4 [27:8],
    /// HopLimit.
    hop_limit: u8 = 47,
    /// 2 is the link.
    scope: u8 = 48 [7:4],
    /// JoinState.
    join_state: JoinState = 48 [3:0],
    /// Asked for by another port than the member.
    proxy_join: bool = 49 [7:7],
}

records! { McMemberRecord:
    MGID = 0: mgid;
    PORT_GID = 1: port_gid;
    Q_KEY = 2: q_key;
    MLID = 3: mlid;
    MTU_SELECTOR = 4;
    MTU = 5;
    TCLASS = 6: tclass;
    P_KEY = 7: p_key;
    RATE_SELECTOR = 8;
    RATE = 9;
    PACKET_LIFE_TIME_SELECTOR = 10;
    PACKET_LIFE_TIME = 11;
    SL = 12: sl;
    FLOW_LABEL = 13: flow_label;
    HOP_LIMIT = 14: hop_limit;
    SCOPE = 15: scope;
    JOIN_STATE = 16: join_state;
    PROXY_JOIN = 17: proxy_join;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Guid, Mtu};
    use crate::wire::mad::layout::property::round_trip_tests;

    round_trip_tests!(McMemberRecord);

    /// protocols 4.6.
    #[test]
    fn the_member_record_lies_as_the_table_says() {
        let record = McMemberRecord {
            mgid: Gid(*b"\xff\x12\x40\x1b\xff\xff\0\0\0\0\0\0\xff\xff\xff\xff"),
            port_gid: Gid::unicast(Gid::DEFAULT_PREFIX, Guid(0x11)),
            q_key: QKey(0x0b1b),
            mlid: Lid(0xc001),
            mtu_selector: Selector::Exactly,
            mtu: Mtu::Mtu2048.into(),
            tclass: 0x22,
            p_key: PKey::DEFAULT,
            rate_selector: Selector::GreaterThan,
            rate: Rate::GBPS_10,
            packet_life_time_selector: Selector::Best,
            packet_life_time: TimeCode(18),
            sl: Sl::new(3),
            flow_label: FlowLabel::new(0x4_5678),
            hop_limit: 0x99,
            scope: 2,
            join_state: JoinState::FULL_MEMBER | JoinState::SEND_ONLY_FULL_MEMBER,
            proxy_join: true,
        };
        let bytes = [
            0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff,
            0xff, // MGID
            0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x11, // 16: PortGID
            0x00, 0x00, 0x0b, 0x1b, 0xc0, 0x01, 0x84, 0x22, // 32: Q_Key, MLID, MTU, TClass
            0xff, 0xff, 0x03, 0xd2, 0x34, 0x56, 0x78, 0x99, // 40: P_Key to HopLimit
            0x29, 0x80, 0, 0,
        ];
        assert_eq!(record.to_bytes(), bytes);
        assert_eq!(McMemberRecord::from_bytes(&bytes), record);
    }
}
