//! A port as the subnet manager sees it: PortInfo and GUIDInfo. protocols 3.8.4, 3.8.5.

use super::layout::{constants, layout, number};
use super::{AttributeId, MKey, MtuCode, TimeCode, VlCode};
use crate::types::{Guid, Lid, Rate, Sl};
use bitflags::bitflags;

/// Logical state of a port. protocols 3.8.5.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortState(pub u8);

constants! { PortState:
    /// In Set: stay.
    NO_CHANGE = 0;
    /// No link.
    DOWN = 1;
    /// Subnet management only.
    INIT = 2;
    /// May receive data.
    ARMED = 3;
    /// May send data.
    ACTIVE = 4;
    /// Active, while the link recovers.
    ACT_DEFER = 5;
}

/// State of a link's physical layer. protocols 3.8.5.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PortPhysState(pub u8);

constants! { PortPhysState:
    /// In Set: stay.
    NO_CHANGE = 0;
    /// Waits to be woken.
    SLEEP = 1;
    /// Looks for a neighbour.
    POLLING = 2;
    /// Does nothing.
    DISABLED = 3;
    /// PortConfigurationTraining.
    TRAINING = 4;
    /// LinkUp.
    LINK_UP = 5;
    /// LinkErrorRecovery.
    RECOVERY = 6;
    /// Phy Test.
    TEST = 7;
}

bitflags! {
    /// Numbers of lanes. protocols 3.8.5.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct LinkWidth: u8 {
        /// One lane.
        const X1 = 1;
        /// Four.
        const X4 = 2;
        /// Eight.
        const X8 = 4;
        /// Twelve.
        const X12 = 8;
        /// Two.
        const X2 = 16;
        /// In Set: all that is supported.
        const SUPPORTED = 0xff;
    }

    /// Speeds of a lane that fit in four bits. protocols 3.8.5.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct LinkSpeed: u8 {
        /// 2.5 Gbit/s.
        const SDR = 1;
        /// 5 Gbit/s.
        const DDR = 2;
        /// 10 Gbit/s.
        const QDR = 4;
        /// In Set: all that is supported.
        const SUPPORTED = 15;
    }

    /// Extended speeds of a lane. protocols 3.8.5.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct LinkSpeedExt: u8 {
        /// 14.0625 Gbit/s.
        const FDR = 1;
        /// 25.78125 Gbit/s.
        const EDR = 2;
        /// 53.125 Gbit/s.
        const HDR = 4;
        /// 106.25 Gbit/s.
        const NDR = 8;
        /// In Set: none of them.
        const DISABLE = 30;
        /// In Set: all that is supported.
        const SUPPORTED = 31;
    }

    /// What a subnet manager may want of a port before it begins, and what it kept. protocols 3.8.5.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct InitType: u8 {
        /// NoLoad.
        const NO_LOAD = 1;
        /// PreserveContent.
        const PRESERVE_CONTENT = 2;
        /// PreservePresence.
        const PRESERVE_PRESENCE = 4;
        /// DoNotResuscitate.
        const DO_NOT_RESUSCITATE = 8;
    }

    /// CapabilityMask of a port. protocols 3.8.5.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Capability: u32 {
        /// A subnet manager is there.
        const SM = 1 << 1;
        /// Notices by Get.
        const NOTICE = 1 << 2;
        /// Notices by trap.
        const TRAP = 1 << 3;
        /// Optional inter-packet delays.
        const OPTIONAL_IPD = 1 << 4;
        /// Automatic path migration.
        const AUTO_MIGRATION = 1 << 5;
        /// An SLtoVLMappingTable.
        const SL_MAPPING = 1 << 6;
        /// Keeps the M_Key over a reset.
        const M_KEY_NVRAM = 1 << 7;
        /// Keeps the P_Keys over a reset.
        const P_KEY_NVRAM = 1 << 8;
        /// LedInfo.
        const LED_INFO = 1 << 9;
        /// No subnet manager may start there.
        const SM_DISABLED = 1 << 10;
        /// SystemImageGUID.
        const SYSTEM_IMAGE_GUID = 1 << 11;
        /// Trap 259.
        const P_KEY_SWITCH_EXTERNAL_PORT_TRAP = 1 << 12;
        /// CableInfo.
        const CABLE_INFO = 1 << 13;
        /// Extended link speeds.
        const EXTENDED_SPEEDS = 1 << 14;
        /// CapabilityMask2 counts.
        const CAPABILITY_MASK2 = 1 << 15;
        /// Communication management.
        const CM = 1 << 16;
        /// SNMP tunnelling.
        const SNMP_TUNNEL = 1 << 17;
        /// InitType and its reply.
        const REINIT = 1 << 18;
        /// Device management.
        const DEVICE_MANAGEMENT = 1 << 19;
        /// Classes of the vendor.
        const VENDOR_CLASS = 1 << 20;
        /// Directed-route notices.
        const DR_NOTICE = 1 << 21;
        /// Trap 144 has change flags.
        const CAPABILITY_MASK_NOTICE = 1 << 22;
        /// Boot management.
        const BOOT_MANAGEMENT = 1 << 23;
        /// LinkRoundTripLatency.
        const LINK_ROUND_TRIP_LATENCY = 1 << 24;
        /// ClientReregister.
        const CLIENT_REREGISTRATION = 1 << 25;
        /// Trap 144 tells of other local changes.
        const OTHER_LOCAL_CHANGES_NOTICE = 1 << 26;
        /// LinkSpeedWidthPairsTable.
        const LINK_SPEED_WIDTH_PAIRS = 1 << 27;
        /// VendorSpecificMadsTable.
        const VENDOR_SPECIFIC_MADS = 1 << 28;
        /// P_Key traps of multicast can be suppressed.
        const MULTICAST_P_KEY_TRAP_SUPPRESSION = 1 << 29;
        /// MulticastFDBTop of SwitchInfo counts.
        const MULTICAST_FDB_TOP = 1 << 30;
        /// HierarchyInfo.
        const HIERARCHY_INFO = 1 << 31;
    }

    /// CapabilityMask2 of a port. protocols 3.8.5.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Capability2: u16 {
        /// NodeDescription can be set.
        const SET_NODE_DESCRIPTION = 1 << 0;
        /// PortInfoExtended.
        const PORT_INFO_EXTENDED = 1 << 1;
        /// Virtual ports.
        const VIRTUALIZATION = 1 << 2;
        /// Table of the port states of a switch.
        const SWITCH_PORT_STATE_TABLE = 1 << 3;
        /// Links of two lanes.
        const LINK_WIDTH_2X = 1 << 4;
        /// HDR.
        const HDR = 1 << 5;
        /// NDR.
        const NDR = 1 << 10;
    }
}

number! {
    PortState, 1, |bits| Self(bits as u8), |state| state.0.into();
    PortPhysState, 1, |bits| Self(bits as u8), |state| state.0.into();
    LinkWidth, 1, |bits| Self::from_bits_retain(bits as u8), |width| width.bits().into();
    LinkSpeed, 1, |bits| Self::from_bits_retain(bits as u8), |speed| speed.bits().into();
    LinkSpeedExt, 1, |bits| Self::from_bits_retain(bits as u8), |speed| speed.bits().into();
    InitType, 1, |bits| Self::from_bits_retain(bits as u8), |init| init.bits().into();
    Capability, 4, |bits| Self::from_bits_retain(bits as u32), |mask| mask.bits().into();
    Capability2, 2, |bits| Self::from_bits_retain(bits as u16), |mask| mask.bits().into();
}

layout! {
    /// A port; the modifier of the attribute says which. protocols 3.8.5.
    pub struct PortInfo, PortInfoView: 64, AttributeId::PORT_INFO;
    /// Zero for who does not have it, from protection 1 on.
    m_key: MKey = 0,
    /// GidPrefix: the subnet.
    gid_prefix: u64 = 8,
    /// Base LID.
    lid: Lid = 16,
    /// Base LID of the master subnet manager.
    master_sm_lid: Lid = 18,
    /// CapabilityMask.
    capability: Capability = 20,
    /// 0 is well.
    diag_code: u16 = 24,
    /// Seconds; 0 never expires.
    m_key_lease_period: u16 = 26,
    /// The port that received the SMP.
    local_port_num: u8 = 28,
    /// In Set, none is no change.
    link_width_enabled: LinkWidth = 29,
    /// LinkWidthSupported.
    link_width_supported: LinkWidth = 30,
    /// One of them.
    link_width_active: LinkWidth = 31,
    /// LinkSpeedSupported.
    link_speed_supported: LinkSpeed = 32 [7:4],
    /// PortState.
    state: PortState = 32 [3:0],
    /// PortPhysicalState.
    phys_state: PortPhysState = 33 [7:4],
    /// Sleep or Polling.
    link_down_default_state: PortPhysState = 33 [3:0],
    /// How well the M_Key guards the port. protocols 3.9.
    m_key_protect: u8 = 34 [7:6],
    /// The port has 2^LMC LIDs.
    lmc: u8 = 34 [2:0],
    /// One of them; may be none if an extended speed is active.
    link_speed_active: LinkSpeed = 35 [7:4],
    /// In Set, none is no change.
    link_speed_enabled: LinkSpeed = 35 [3:0],
    /// The largest MTU on this link.
    neighbor_mtu: MtuCode = 36 [7:4],
    /// Service level to the master subnet manager.
    master_sm_sl: Sl = 36 [3:0],
    /// Virtual lanes that there are.
    vl_cap: VlCode = 37 [7:4],
    /// What the port wants of the subnet manager.
    init_type: InitType = 37 [3:0],
    /// How much the high priority may send ahead, in 4096 bytes. protocols 1.13.1.
    vl_high_limit: u8 = 38,
    /// Entries.
    vl_arb_high_cap: u8 = 39,
    /// Entries.
    vl_arb_low_cap: u8 = 40,
    /// What the subnet manager kept.
    init_type_reply: InitType = 41 [7:4],
    /// The largest MTU of the port.
    mtu_cap: MtuCode = 41 [3:0],
    /// Packets dropped at the head of a lane's queue before it counts as stalled.
    vl_stall_count: u8 = 42 [7:5],
    /// How long a packet may stay at the head of a queue: see [`TimeCode::lifetime`].
    hoq_life: TimeCode = 42 [4:0],
    /// Virtual lanes in use; in Set, 0 is no change.
    operational_vls: VlCode = 43 [7:4],
    /// PartitionEnforcementInbound, of a switch.
    partition_enforcement_inbound: bool = 43 [3:3],
    /// PartitionEnforcementOutbound, of a switch.
    partition_enforcement_outbound: bool = 43 [2:2],
    /// FilterRawInbound, of a switch.
    filter_raw_inbound: bool = 43 [1:1],
    /// FilterRawOutbound, of a switch.
    filter_raw_outbound: bool = 43 [0:0],
    /// Set to 0 clears.
    m_key_violations: u16 = 44,
    /// Set to 0 clears.
    p_key_violations: u16 = 46,
    /// Set to 0 clears.
    q_key_violations: u16 = 48,
    /// Entries of GUIDInfo.
    guid_cap: u8 = 50,
    /// In Set: clients are to register anew. Comes back as it was set.
    client_reregister: bool = 51 [7:7],
    /// MulticastPKeyTrapSuppressionEnabled.
    multicast_p_key_trap_suppression: u8 = 51 [6:5],
    /// Longest time through the subnet, and shortest between traps.
    subnet_timeout: TimeCode = 51 [4:0],
    /// How long the port may take to answer.
    resp_time: TimeCode = 52 [4:0],
    /// Threshold of trap 129.
    local_phy_errors: u8 = 53 [7:4],
    /// Threshold of trap 130.
    overrun_errors: u8 = 53 [3:0],
    /// MaxCreditHint.
    max_credit_hint: u16 = 54,
    /// 24 bits.
    link_round_trip_latency: u32 = 57/3 [23:0],
    /// CapabilityMask2.
    capability2: Capability2 = 60,
    /// One of them, or none.
    link_speed_ext_active: LinkSpeedExt = 62 [7:4],
    /// LinkSpeedExtSupported.
    link_speed_ext_supported: LinkSpeedExt = 62 [3:0],
    /// In Set, none is no change.
    link_speed_ext_enabled: LinkSpeedExt = 63 [4:0],
}

impl PortInfo {
    /// Attribute modifier of a port.
    pub const fn modifier(port: u8) -> u32 {
        port as u32
    }

    /// Of the modifier of Set: whoever asks knows the extended speeds.
    pub const KNOWS_EXTENDED_SPEEDS: u32 = 1 << 31;

    /// Rate of the link as it is: lanes by speed; `None` if the port says no one width and speed. protocols A.2.
    pub fn rate(&self) -> Option<Rate> {
        use {LinkSpeed as S, LinkSpeedExt as E, LinkWidth as W};
        let column = match self.link_width_active {
            W::X1 => 0,
            W::X2 => 1,
            W::X4 => 2,
            W::X8 => 3,
            W::X12 => 4,
            _ => return None,
        };
        let row: [u8; 5] = match (self.link_speed_ext_active, self.link_speed_active) {
            (E::FDR, _) => [11, 19, 12, 13, 14],
            (E::EDR, _) => [15, 20, 16, 17, 18],
            (E::HDR, _) => [20, 16, 17, 21, 22],
            (E::NDR, _) => [16, 17, 21, 23, 24],
            (_, S::SDR) => [2, 5, 3, 6, 4],
            (_, S::DDR) => [5, 3, 6, 7, 8],
            (_, S::QDR) => [3, 6, 7, 9, 10],
            _ => return None,
        };
        row.get(column).copied().map(Rate)
    }
}

layout! {
    /// Eight GUIDs of a port; the modifier is the block. protocols 3.8.4.
    pub struct GuidInfo, GuidInfoView: 64, AttributeId::GUID_INFO;
    /// Block *b* has the entries from 8 *b*; the first of all is read-only.
    guids: [Guid; 8] = 0,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Mtu;
    use crate::wire::mad::layout::property::round_trip_tests;

    round_trip_tests!(PortInfo, GuidInfo);

    /// protocols 3.8.5, with every field another number.
    #[test]
    fn the_port_info_lies_as_the_table_says() {
        let info = PortInfo {
            m_key: MKey(0x0102_0304_0506_0708),
            gid_prefix: 0xfe80_0000_0000_0001,
            lid: Lid(0x0011),
            master_sm_lid: Lid(0x0022),
            capability: Capability::SM | Capability::TRAP | Capability::HIERARCHY_INFO,
            diag_code: 0x0033,
            m_key_lease_period: 0x0044,
            local_port_num: 0x55,
            link_width_enabled: LinkWidth::SUPPORTED,
            link_width_supported: LinkWidth::X1 | LinkWidth::X4 | LinkWidth::X2,
            link_width_active: LinkWidth::X4,
            link_speed_supported: LinkSpeed::SDR | LinkSpeed::DDR | LinkSpeed::QDR,
            state: PortState::ACTIVE,
            phys_state: PortPhysState::LINK_UP,
            link_down_default_state: PortPhysState::POLLING,
            m_key_protect: 2,
            lmc: 5,
            link_speed_active: LinkSpeed::QDR,
            link_speed_enabled: LinkSpeed::SUPPORTED,
            neighbor_mtu: Mtu::Mtu2048.into(),
            master_sm_sl: Sl::new(9),
            vl_cap: VlCode(4),
            init_type: InitType::PRESERVE_CONTENT,
            vl_high_limit: 0x66,
            vl_arb_high_cap: 0x77,
            vl_arb_low_cap: 0x88,
            init_type_reply: InitType::PRESERVE_PRESENCE,
            mtu_cap: Mtu::Mtu4096.into(),
            vl_stall_count: 7,
            hoq_life: TimeCode(0x12),
            operational_vls: VlCode(3),
            partition_enforcement_inbound: true,
            partition_enforcement_outbound: false,
            filter_raw_inbound: true,
            filter_raw_outbound: false,
            m_key_violations: 0x99,
            p_key_violations: 0xaa,
            q_key_violations: 0xbb,
            guid_cap: 0xcc,
            client_reregister: true,
            multicast_p_key_trap_suppression: 1,
            subnet_timeout: TimeCode(18),
            resp_time: TimeCode(16),
            local_phy_errors: 8,
            overrun_errors: 6,
            max_credit_hint: 0x1234,
            link_round_trip_latency: 0x56_789a,
            capability2: Capability2::LINK_WIDTH_2X | Capability2::NDR,
            link_speed_ext_active: LinkSpeedExt::FDR,
            link_speed_ext_supported: LinkSpeedExt::FDR | LinkSpeedExt::EDR,
            link_speed_ext_enabled: LinkSpeedExt::DISABLE,
        };
        let bytes = [
            0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, // 0: M_Key
            0xfe, 0x80, 0x00, 0x00, 0x00, 0x00, 0x00, 0x01, // 8: prefix
            0x00, 0x11, 0x00, 0x22, 0x80, 0x00, 0x00, 0x0a, // 16: LIDs, capabilities
            0x00, 0x33, 0x00, 0x44, 0x55, 0xff, 0x13, 0x02, // 24: diag, lease, port, widths
            0x74, 0x52, 0x85, 0x4f, 0x49, 0x42, 0x66, 0x77, // 32: states, speeds, MTU, lanes
            0x88, 0x45, 0xf2, 0x3a, 0x00, 0x99, 0x00,
            0xaa, // 40: arbitration, queues, violations
            0x00, 0xbb, 0xcc, 0xb2, 0x10, 0x86, 0x12, 0x34, // 48: violations, GUIDs, times
            0x00, 0x56, 0x78, 0x9a, 0x04, 0x10, 0x13,
            0x1e, // 56: latency, mask 2, extended speeds
        ];
        assert_eq!(info.to_bytes(), bytes);
        assert_eq!(PortInfo::from_bytes(&bytes), info);
        let (view, rest) = PortInfoView::split(&bytes).unwrap();
        assert_eq!(
            (view.lid(), view.state(), rest.len()),
            (Lid(0x11), PortState::ACTIVE, 0)
        );
    }

    /// protocols A.2.
    #[test]
    fn a_rate_is_lanes_by_speed() {
        let port = |width, speed, ext| PortInfo {
            link_width_active: width,
            link_speed_active: speed,
            link_speed_ext_active: ext,
            ..PortInfo::default()
        };
        let none = LinkSpeedExt::empty();
        let rate = |width, speed, ext| port(width, speed, ext).rate();
        assert_eq!(
            rate(LinkWidth::X4, LinkSpeed::SDR, none),
            Some(Rate::GBPS_10)
        );
        assert_eq!(
            rate(LinkWidth::X4, LinkSpeed::QDR, none),
            Some(Rate::GBPS_40)
        );
        assert_eq!(
            rate(LinkWidth::X12, LinkSpeed::DDR, none),
            Some(Rate::GBPS_60)
        );
        assert_eq!(
            rate(LinkWidth::X4, LinkSpeed::QDR, LinkSpeedExt::FDR),
            Some(Rate(12))
        );
        assert_eq!(
            rate(LinkWidth::X2, LinkSpeed::empty(), LinkSpeedExt::HDR),
            Some(Rate(16))
        );
        assert_eq!(
            rate(LinkWidth::X1 | LinkWidth::X4, LinkSpeed::SDR, none),
            None
        );
        assert_eq!(rate(LinkWidth::X4, LinkSpeed::empty(), none), None);
    }

    /// protocols 3.8.4.
    #[test]
    fn guids_lie_one_after_another() {
        let mut info = GuidInfo::default();
        info.guids[1] = Guid(0x0002_c903_0000_1001);
        let bytes = info.to_bytes();
        assert_eq!(
            bytes[8..16],
            [0x00, 0x02, 0xc9, 0x03, 0x00, 0x00, 0x10, 0x01]
        );
        assert_eq!(bytes[..8], [0; 8]);
    }
}
