//! Records of subnet administration that hold what an SMP asks a node for, with the LID it was asked at.
//! protocols 4.7 to 4.9.

use super::layout::{layout, records};
use super::{AttributeId, NodeDescription, NodeInfo, PortInfo, SmInfo, SwitchInfo};
use crate::types::Lid;

layout! {
    /// A node, once for each of its end ports. protocols 4.7.
    pub struct NodeRecord, NodeRecordView: 108, AttributeId::NODE_RECORD;
    /// LID.
    lid: Lid = 0,
    /// NodeInfo.
    info: NodeInfo = 4,
    /// NodeDescription.
    description: NodeDescription = 44,
}

records! { NodeRecord:
    LID = 0: lid;
    BASE_VERSION = 2: info.base_version;
    CLASS_VERSION = 3: info.class_version;
    NODE_TYPE = 4: info.node_type;
    NUM_PORTS = 5: info.num_ports;
    SYS_IMAGE_GUID = 6: info.sys_image_guid;
    NODE_GUID = 7: info.node_guid;
    PORT_GUID = 8: info.port_guid;
    PARTITION_CAP = 9: info.partition_cap;
    DEVICE_ID = 10: info.device_id;
    REVISION = 11: info.revision;
    LOCAL_PORT_NUM = 12: info.local_port_num;
    VENDOR_ID = 13: info.vendor_id;
    NODE_DESCRIPTION = 14: description;
}

layout! {
    /// A port. Old SAs leave out its end. protocols 4.8.
    pub struct PortInfoRecord, PortInfoRecordView: 68, AttributeId::PORT_INFO_RECORD;
    /// EndportLID.
    lid: Lid = 0,
    /// PortNum.
    port_num: u8 = 2,
    /// Options.
    options: u8 = 3,
    /// PortInfo.
    info: PortInfo = 4,
}

records! { PortInfoRecord:
    LID = 0: lid;
    PORT_NUM = 1: port_num;
    OPTIONS = 2: options;
    M_KEY = 3: info.m_key;
    GID_PREFIX = 4: info.gid_prefix;
    BASE_LID = 5: info.lid;
    MASTER_SM_LID = 6: info.master_sm_lid;
    CAPABILITY = 7: info.capability;
    DIAG_CODE = 8: info.diag_code;
    M_KEY_LEASE_PERIOD = 9: info.m_key_lease_period;
    LOCAL_PORT_NUM = 10: info.local_port_num;
    LINK_WIDTH_ENABLED = 11: info.link_width_enabled;
    LINK_WIDTH_SUPPORTED = 12: info.link_width_supported;
    LINK_WIDTH_ACTIVE = 13: info.link_width_active;
    LINK_SPEED_SUPPORTED = 14: info.link_speed_supported;
    STATE = 15: info.state;
    PHYS_STATE = 16: info.phys_state;
    LINK_DOWN_DEFAULT_STATE = 17: info.link_down_default_state;
    M_KEY_PROTECT = 18: info.m_key_protect;
    LMC = 20: info.lmc;
    LINK_SPEED_ACTIVE = 21: info.link_speed_active;
    LINK_SPEED_ENABLED = 22: info.link_speed_enabled;
    NEIGHBOR_MTU = 23: info.neighbor_mtu;
    MASTER_SM_SL = 24: info.master_sm_sl;
    VL_CAP = 25: info.vl_cap;
    INIT_TYPE = 26: info.init_type;
    VL_HIGH_LIMIT = 27: info.vl_high_limit;
    VL_ARB_HIGH_CAP = 28: info.vl_arb_high_cap;
    VL_ARB_LOW_CAP = 29: info.vl_arb_low_cap;
    INIT_TYPE_REPLY = 30: info.init_type_reply;
    MTU_CAP = 31: info.mtu_cap;
    VL_STALL_COUNT = 32: info.vl_stall_count;
    HOQ_LIFE = 33: info.hoq_life;
    OPERATIONAL_VLS = 34: info.operational_vls;
    PARTITION_ENFORCEMENT_INBOUND = 35: info.partition_enforcement_inbound;
    PARTITION_ENFORCEMENT_OUTBOUND = 36: info.partition_enforcement_outbound;
    FILTER_RAW_INBOUND = 37: info.filter_raw_inbound;
    FILTER_RAW_OUTBOUND = 38: info.filter_raw_outbound;
    M_KEY_VIOLATIONS = 39: info.m_key_violations;
    P_KEY_VIOLATIONS = 40: info.p_key_violations;
    Q_KEY_VIOLATIONS = 41: info.q_key_violations;
    GUID_CAP = 42: info.guid_cap;
    CLIENT_REREGISTER = 43: info.client_reregister;
    SUBNET_TIMEOUT = 45: info.subnet_timeout;
    RESP_TIME = 47: info.resp_time;
    LOCAL_PHY_ERRORS = 48: info.local_phy_errors;
    OVERRUN_ERRORS = 49: info.overrun_errors;
    MAX_CREDIT_HINT = 50: info.max_credit_hint;
    LINK_ROUND_TRIP_LATENCY = 52: info.link_round_trip_latency;
    CAPABILITY2 = 53: info.capability2;
    LINK_SPEED_EXT_ACTIVE = 54: info.link_speed_ext_active;
    LINK_SPEED_EXT_SUPPORTED = 55: info.link_speed_ext_supported;
    LINK_SPEED_EXT_ENABLED = 57: info.link_speed_ext_enabled;
}

impl PortInfoRecord {
    /// Of the attribute modifier: a query's CapabilityMask is what a port must have at least. Then whoever matches
    /// compares that component himself.
    pub const AT_LEAST_CAPABILITIES: u32 = 1 << 31;
}

layout! {
    /// A subnet manager. protocols 4.9.
    pub struct SmInfoRecord, SmInfoRecordView: 25, AttributeId::SM_INFO_RECORD;
    /// LID.
    lid: Lid = 0,
    /// SMInfo.
    info: SmInfo = 4,
}

records! { SmInfoRecord:
    LID = 0: lid;
    GUID = 2: info.guid;
    SM_KEY = 3: info.sm_key;
    ACT_COUNT = 4: info.act_count;
    PRIORITY = 5: info.priority;
    STATE = 6: info.state;
}

layout! {
    /// A switch. protocols 4.9.
    pub struct SwitchInfoRecord, SwitchInfoRecordView: 24, AttributeId::SWITCH_INFO_RECORD;
    /// LID.
    lid: Lid = 0,
    /// SwitchInfo.
    info: SwitchInfo = 4,
}

records! { SwitchInfoRecord:
    LID = 0: lid;
    LINEAR_FDB_CAP = 2: info.linear_fdb_cap;
    RANDOM_FDB_CAP = 3: info.random_fdb_cap;
    MULTICAST_FDB_CAP = 4: info.multicast_fdb_cap;
    LINEAR_FDB_TOP = 5: info.linear_fdb_top;
    DEFAULT_PORT = 6: info.default_port;
    DEFAULT_MC_PRIMARY_PORT = 7: info.default_mc_primary_port;
    DEFAULT_MC_NOT_PRIMARY_PORT = 8: info.default_mc_not_primary_port;
    LIFE_TIME = 9: info.life_time;
    PORT_STATE_CHANGE = 10: info.port_state_change;
    OPTIMIZED_SL_TO_VL = 11: info.optimized_sl_to_vl;
    LIDS_PER_PORT = 12: info.lids_per_port;
    PARTITION_ENFORCEMENT_CAP = 13: info.partition_enforcement_cap;
    INBOUND_ENFORCEMENT_CAP = 14: info.inbound_enforcement_cap;
    OUTBOUND_ENFORCEMENT_CAP = 15: info.outbound_enforcement_cap;
    FILTER_RAW_INBOUND_CAP = 16: info.filter_raw_inbound_cap;
    FILTER_RAW_OUTBOUND_CAP = 17: info.filter_raw_outbound_cap;
    ENHANCED_PORT0 = 18: info.enhanced_port0;
}

layout! {
    /// A cable, from one of its ends. protocols 4.9.
    pub struct LinkRecord, LinkRecordView: 6, AttributeId::LINK_RECORD;
    /// FromLID.
    from_lid: Lid = 0,
    /// FromPort.
    from_port: u8 = 2,
    /// ToPort.
    to_port: u8 = 3,
    /// ToLID.
    to_lid: Lid = 4,
}

records! { LinkRecord:
    FROM_LID = 0: from_lid;
    FROM_PORT = 1: from_port;
    TO_PORT = 2: to_port;
    TO_LID = 3: to_lid;
}

layout! {
    /// A node on the way of a packet. protocols 4.9.
    pub struct TraceRecord, TraceRecordView: 46, AttributeId::TRACE_RECORD;
    /// GIDPrefix.
    gid_prefix: u64 = 0,
    /// IDGeneration.
    id_generation: u16 = 8,
    /// NodeType.
    node_type: super::NodeType = 11,
    /// NodeID.
    node_id: u64 = 12,
    /// ChassisID.
    chassis_id: u64 = 20,
    /// EntryPortID.
    entry_port_id: u64 = 28,
    /// ExitPortID.
    exit_port_id: u64 = 36,
    /// EntryPort.
    entry_port: u8 = 44,
    /// ExitPort.
    exit_port: u8 = 45,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Guid;
    use crate::wire::mad::layout::property::round_trip_tests;
    use crate::wire::mad::{ComponentMask, NodeType, PortState, Record, SaHeader, SmKey, SmState};

    round_trip_tests!(
        NodeRecord,
        PortInfoRecord,
        SmInfoRecord,
        SwitchInfoRecord,
        LinkRecord,
        TraceRecord,
    );

    /// protocols 4.7.
    #[test]
    fn the_node_record_lies_as_the_table_says() {
        let record = NodeRecord {
            lid: Lid(0x0102),
            info: NodeInfo::from_bytes(&[0x33; 40]),
            description: NodeDescription { text: [0x44; 64] },
        };
        let bytes = record.to_bytes();
        assert_eq!(bytes[..4], [1, 2, 0, 0]);
        assert_eq!(bytes[4..44], [0x33; 40]);
        assert_eq!(bytes[44..], [0x44; 64]);
        assert_eq!(NodeRecord::from_bytes(&bytes), record);
    }

    /// protocols 4.8; the state is in the low half of PortInfo's byte 32.
    #[test]
    fn the_port_info_record_lies_as_the_table_says() {
        let mut record = PortInfoRecord {
            lid: Lid(0x0102),
            port_num: 3,
            options: 4,
            ..PortInfoRecord::default()
        };
        record.info.state = PortState::ACTIVE;
        record.info.link_speed_ext_enabled = crate::wire::mad::LinkSpeedExt::SUPPORTED;
        let mut bytes = [0; 68];
        bytes[..4].copy_from_slice(&[1, 2, 3, 4]);
        (bytes[36], bytes[67]) = (4, 31);
        assert_eq!(record.to_bytes(), bytes);
        assert_eq!(PortInfoRecord::from_bytes(&bytes), record);
    }

    /// protocols 4.9.
    #[test]
    fn the_smaller_records_lie_as_the_table_says() {
        let record = SmInfoRecord {
            lid: Lid(0x0102),
            info: SmInfo {
                guid: Guid(3),
                sm_key: SmKey(4),
                act_count: 5,
                priority: 6,
                state: SmState::STANDBY,
            },
        };
        let bytes = [
            1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 5, 0x62,
        ];
        assert_eq!(record.to_bytes(), bytes);

        let mut record = SwitchInfoRecord {
            lid: Lid(0x0102),
            ..SwitchInfoRecord::default()
        };
        record.info.linear_fdb_cap = 0x0304;
        record.info.multicast_fdb_top = Lid(0xbfff);
        let bytes = record.to_bytes();
        assert_eq!(bytes[..6], [1, 2, 0, 0, 3, 4]);
        assert_eq!(
            bytes[6..],
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xbf, 0xff]
        );

        let record = LinkRecord {
            from_lid: Lid(0x0102),
            from_port: 3,
            to_port: 4,
            to_lid: Lid(0x0506),
        };
        assert_eq!(record.to_bytes(), [1, 2, 3, 4, 5, 6]);

        let record = TraceRecord {
            gid_prefix: 1,
            id_generation: 2,
            node_type: NodeType::SWITCH,
            node_id: 3,
            chassis_id: 4,
            entry_port_id: 5,
            exit_port_id: 6,
            entry_port: 7,
            exit_port: 8,
        };
        let bytes = [
            0, 0, 0, 0, 0, 0, 0, 1, 0, 2, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 4, 0,
            0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 6, 7, 8,
        ];
        assert_eq!(record.to_bytes(), bytes);
    }

    /// protocols 4.2.
    #[test]
    fn the_offset_between_records_is_that_of_the_table() {
        let sizes = [
            NodeRecord::SIZE,
            PortInfoRecord::SIZE,
            SwitchInfoRecord::SIZE,
            SmInfoRecord::SIZE,
            LinkRecord::SIZE,
            TraceRecord::SIZE,
        ];
        assert_eq!(sizes.map(SaHeader::offset_of), [14, 9, 3, 4, 1, 6]);
    }

    /// protocols 4.1, 4.7.
    #[test]
    fn a_record_matches_by_the_components_that_are_meant_and_no_other() {
        let mut node = NodeRecord {
            lid: Lid(7),
            ..NodeRecord::default()
        };
        node.info.node_type = NodeType::CA;
        node.info.node_guid = Guid(9);
        let mut query = NodeRecord::default();
        query.info.node_guid = Guid(9);
        query.info.node_type = NodeType::SWITCH;
        assert!(node.matches(&query, ComponentMask::NONE));
        assert!(node.matches(&query, NodeRecord::NODE_GUID));
        assert!(!node.matches(&query, NodeRecord::NODE_GUID | NodeRecord::NODE_TYPE));
        assert!(!node.matches(&query, NodeRecord::LID));
        assert_eq!(NodeRecord::NODE_DESCRIPTION, ComponentMask(1 << 14));
        assert_eq!(
            PortInfoRecord::LINK_SPEED_EXT_ENABLED,
            ComponentMask(1 << 57)
        );
        // A bit of no component, or of a reserved one, asks nothing.
        assert!(node.matches(&query, ComponentMask(1 << 1 | 1 << 15 | 1 << 63)));
    }
}
