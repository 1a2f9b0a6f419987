//! ClassPortInfo: what every class above QP0 says of itself. protocols 3.13.1, 3.13.2, 4.10.

use super::layout::{layout, number};
use super::{AttributeId, TimeCode};
use crate::types::{Gid, Lid, PKey, QKey, Qpn, Sl};
use crate::wire::FlowLabel;
use bitflags::bitflags;

bitflags! {
    /// CapabilityMask of a class; the upper byte means another thing in each class. protocols 3.13.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct GmpCapability: u16 {
        /// Sends traps.
        const TRAP = 1 << 0;
        /// Get and Set of notices.
        const NOTICE = 1 << 1;

        /// Performance: PortSelect 0xFF is all ports.
        const PERF_ALL_PORT_SELECT = 1 << 8;
        /// Performance: the full set of extended counters.
        const PERF_EXTENDED = 1 << 9;
        /// Performance: extended counters but for the unicast and multicast ones.
        const PERF_EXTENDED_NO_IETF = 1 << 10;
        /// Performance: sampling only.
        const PERF_SAMPLES_ONLY = 1 << 11;
        /// Performance: PortXmitWait of PortCounters.
        const PERF_XMIT_WAIT = 1 << 12;
        /// Performance: inhibits the limited PKeyMulticastConstraint.
        const PERF_INHIBIT_LIMITED_P_KEY = 1 << 13;
        /// Performance: RSFEC mode.
        const PERF_RSFEC = 1 << 14;
        /// Performance: QP1Dropped.
        const PERF_QP1_DROPPED = 1 << 15;

        /// SA: the optional records.
        const SA_OPTIONAL_RECORDS = 1 << 8;
        /// SA: multicast groups.
        const SA_UD_MULTICAST = 1 << 9;
        /// SA: MultiPathRecord.
        const SA_MULTI_PATH = 1 << 10;
        /// SA: reinitialisation.
        const SA_REINIT = 1 << 11;
        /// SA: MultiPathRecord by GIDs in a scope.
        const SA_GID_SCOPED_MULTI_PATH = 1 << 12;
        /// SA: ports can be asked for by their CapabilityMask. protocols 4.8.
        const SA_CAPABILITY_MASK_MATCH = 1 << 13;
        const _ = !0;
    }
}

number! {
    GmpCapability, 2, |bits| Self::from_bits_retain(bits as u16), |mask| mask.bits().into();
}

layout! {
    /// Versions and capabilities of a class on a port, and where else to turn. protocols 3.13.1.
    pub struct ClassPortInfo, ClassPortInfoView: 72, AttributeId::CLASS_PORT_INFO;
    /// 1.
    base_version: u8 = 0,
    /// Of the class.
    class_version: u8 = 1,
    /// CapabilityMask.
    capability: GmpCapability = 2,
    /// CapabilityMask2, 27 bits.
    capability2: u32 = 4/4 [31:5],
    /// How long the class may take to answer.
    resp_time: TimeCode = 7 [4:0],
    /// RedirectGID.
    redirect_gid: Gid = 8,
    /// RedirectTC: traffic class.
    redirect_tc: u8 = 24,
    /// RedirectSL.
    redirect_sl: Sl = 25 [7:4],
    /// RedirectFL.
    redirect_fl: FlowLabel = 25/3 [19:0],
    /// RedirectLID; 0 if there is no redirection or it is by GID.
    redirect_lid: Lid = 28,
    /// RedirectP_Key.
    redirect_p_key: PKey = 30,
    /// RedirectQP.
    redirect_qp: Qpn = 33,
    /// RedirectQ_Key.
    redirect_q_key: QKey = 36,
    /// TrapGID: who wants the traps of the class.
    trap_gid: Gid = 40,
    /// TrapTC: traffic class.
    trap_tc: u8 = 56,
    /// TrapSL.
    trap_sl: Sl = 57 [7:4],
    /// TrapFL.
    trap_fl: FlowLabel = 57/3 [19:0],
    /// TrapLID.
    trap_lid: Lid = 60,
    /// TrapP_Key.
    trap_p_key: PKey = 62,
    /// TrapHL: hop limit.
    trap_hl: u8 = 64,
    /// TrapQP.
    trap_qp: Qpn = 65,
    /// TrapQ_Key.
    trap_q_key: QKey = 68,
}

impl ClassPortInfo {
    /// Bit of the SA's CapabilityMask2: QoS. protocols 4.10.
    pub const SA2_QOS: u32 = 1 << 1;
    /// Bit of the SA's CapabilityMask2: MulticastFDBTop.
    pub const SA2_MULTICAST_FDB_TOP: u32 = 1 << 3;
    /// Bit of the SA's CapabilityMask2: joins as a full member that only sends.
    pub const SA2_SEND_ONLY_FULL_MEMBER: u32 = 1 << 12;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::mad::layout::property::round_trip_tests;

    round_trip_tests!(ClassPortInfo);

    /// protocols 3.13.1.
    #[test]
    fn the_class_port_info_lies_as_the_table_says() {
        let info = ClassPortInfo {
            base_version: 1,
            class_version: 2,
            capability: GmpCapability::SA_UD_MULTICAST | GmpCapability::TRAP,
            capability2: ClassPortInfo::SA2_SEND_ONLY_FULL_MEMBER | ClassPortInfo::SA2_QOS,
            resp_time: TimeCode(0x13),
            redirect_gid: Gid::unicast(Gid::DEFAULT_PREFIX, crate::types::Guid(0x11)),
            redirect_tc: 0x22,
            redirect_sl: Sl::new(3),
            redirect_fl: FlowLabel::new(0x4_5678),
            redirect_lid: Lid(0x099a),
            redirect_p_key: PKey(0xffff),
            redirect_qp: Qpn::new(0x01_0203),
            redirect_q_key: QKey::GSI,
            trap_gid: Gid::unicast(1, crate::types::Guid(2)),
            trap_tc: 0x44,
            trap_sl: Sl::new(5),
            trap_fl: FlowLabel::new(0x6_789a),
            trap_lid: Lid(0x0bbb),
            trap_p_key: PKey(0x7fff),
            trap_hl: 0x3f,
            trap_qp: Qpn::new(1),
            trap_q_key: QKey(0x8001_0001),
        };
        let bytes = [
            0x01, 0x02, 0x02, 0x01, 0x00, 0x02, 0x00, 0x53, // versions, masks, time
            0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x11, // 8: GID
            0x22, 0x34, 0x56, 0x78, 0x09, 0x9a, 0xff, 0xff, // 24: TC, SL, FL, LID, P_Key
            0x00, 0x01, 0x02, 0x03, 0x80, 0x01, 0x00, 0x00, // 32: QP, Q_Key
            0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, // 40: GID
            0x44, 0x56, 0x78, 0x9a, 0x0b, 0xbb, 0x7f, 0xff, // 56
            0x3f, 0x00, 0x00, 0x01, 0x80, 0x01, 0x00, 0x01, // 64
        ];
        assert_eq!(info.to_bytes(), bytes);
        assert_eq!(ClassPortInfo::from_bytes(&bytes), info);
    }
}
