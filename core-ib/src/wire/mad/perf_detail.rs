//! Counters of a port in detail: why packets were lost, and by lane and service level. protocols 3.13.2.

use super::AttributeId;
use super::layout::layout;

layout! {
    /// Why arriving packets were errors.
    pub struct PortRcvErrorDetails, PortRcvErrorDetailsView: 16, AttributeId::PORT_RCV_ERROR_DETAILS;
    /// The port.
    port_select: u8 = 1,
    /// The counters that Set writes, a bit for each.
    select: u16 = 2,
    /// PortLocalPhysicalErrors.
    local_physical: u16 = 4,
    /// PortMalformedPktErrors.
    malformed: u16 = 6,
    /// PortBufferOverrunErrors.
    buffer_overrun: u16 = 8,
    /// PortDLIDMappingErrors.
    dlid_mapping: u16 = 10,
    /// PortVLMappingErrors.
    vl_mapping: u16 = 12,
    /// PortLoopingErrors.
    looping: u16 = 14,
}

layout! {
    /// Why packets to be sent were discarded.
    pub struct PortXmitDiscardDetails, PortXmitDiscardDetailsView: 12, AttributeId::PORT_XMIT_DISCARD_DETAILS;
    /// The port.
    port_select: u8 = 1,
    /// The counters that Set writes, a bit for each.
    select: u16 = 2,
    /// PortInactiveDiscards.
    inactive: u16 = 4,
    /// PortNeighborMTUDiscards.
    neighbor_mtu: u16 = 6,
    /// PortSwLifetimeLimitDiscards.
    sw_lifetime_limit: u16 = 8,
    /// PortSwHOQLifetimeLimitDiscards.
    sw_hoq_lifetime_limit: u16 = 10,
}

layout! {
    /// Packets of an operation that arrived.
    pub struct PortOpRcvCounters, PortOpRcvCountersView: 12, AttributeId::PORT_OP_RCV_COUNTERS;
    /// OpCode: the operation.
    opcode: u8 = 0,
    /// The port.
    port_select: u8 = 1,
    /// The counters that Set writes, a bit for each.
    select: u16 = 2,
    /// PortOpRcvPkts.
    pkts: u32 = 4,
    /// PortOpRcvData, in 4 bytes.
    data: u32 = 8,
}

layout! {
    /// Flow-control packets.
    pub struct PortFlowCtlCounters, PortFlowCtlCountersView: 12, AttributeId::PORT_FLOW_CTL_COUNTERS;
    /// The port.
    port_select: u8 = 1,
    /// The counters that Set writes, a bit for each.
    select: u16 = 2,
    /// PortXmitFlowPkts.
    xmit_flow_pkts: u32 = 4,
    /// PortRcvFlowPkts.
    rcv_flow_pkts: u32 = 8,
}

layout! {
    /// Packets of an operation by lane.
    pub struct PortVlOpPackets, PortVlOpPacketsView: 36, AttributeId::PORT_VL_OP_PACKETS;
    /// OpCode: the operation.
    opcode: u8 = 0,
    /// The port.
    port_select: u8 = 1,
    /// The counters that Set writes, a bit for each.
    select: u16 = 2,
    /// PortVLOpPackets of each lane.
    counts: [u16; 16] = 4,
}

layout! {
    /// Data of an operation by lane.
    pub struct PortVlOpData, PortVlOpDataView: 68, AttributeId::PORT_VL_OP_DATA;
    /// OpCode: the operation.
    opcode: u8 = 0,
    /// The port.
    port_select: u8 = 1,
    /// The counters that Set writes, a bit for each.
    select: u16 = 2,
    /// PortVLOpData of each lane, in 4 bytes.
    counts: [u32; 16] = 4,
}

layout! {
    /// Flow-control updates that came too late, by lane.
    pub struct PortVlXmitFlowCtlUpdateErrors, PortVlXmitFlowCtlUpdateErrorsView: 8,
        AttributeId::PORT_VL_XMIT_FLOW_CTL_UPDATE_ERRORS;
    /// The port.
    port_select: u8 = 1,
    /// The counters that Set writes, a bit for each.
    select: u16 = 2,
    /// Two bits for each lane, that of VL0 on top.
    counts: u32 = 4,
}

impl PortVlXmitFlowCtlUpdateErrors {
    /// The count of a lane, 0 to 3.
    pub const fn count(&self, vl: u8) -> u8 {
        (self.counts >> (30 - 2 * (vl & 15))) as u8 & 3
    }
}

layout! {
    /// Time that data had to wait, by lane.
    pub struct PortVlXmitWaitCounters, PortVlXmitWaitCountersView: 36, AttributeId::PORT_VL_XMIT_WAIT_COUNTERS;
    /// The port.
    port_select: u8 = 1,
    /// The counters that Set writes, a bit for each.
    select: u16 = 2,
    /// PortVLXmitWait of each lane, in ticks.
    counts: [u16; 16] = 4,
}

layout! {
    /// Packets lost in a switch for congestion, by lane.
    pub struct SwPortVlCongestion, SwPortVlCongestionView: 36, AttributeId::SW_PORT_VL_CONGESTION;
    /// The port.
    port_select: u8 = 1,
    /// The counters that Set writes, a bit for each.
    select: u16 = 2,
    /// SWPortVLCongestion of each lane.
    counts: [u16; 16] = 4,
}

layout! {
    /// Data sent, by service level.
    pub struct PortXmitDataSl, PortXmitDataSlView: 68, AttributeId::PORT_XMIT_DATA_SL;
    /// The port.
    port_select: u8 = 1,
    /// The counters that Set writes, a bit for each.
    select: u16 = 2,
    /// PortXmitDataSL of each level, in 4 bytes.
    counts: [u32; 16] = 4,
}

layout! {
    /// Data received, by service level.
    pub struct PortRcvDataSl, PortRcvDataSlView: 68, AttributeId::PORT_RCV_DATA_SL;
    /// The port.
    port_select: u8 = 1,
    /// The counters that Set writes, a bit for each.
    select: u16 = 2,
    /// PortRcvDataSL of each level, in 4 bytes.
    counts: [u32; 16] = 4,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::mad::layout::property::round_trip_tests;

    round_trip_tests!(
        PortRcvErrorDetails,
        PortXmitDiscardDetails,
        PortOpRcvCounters,
        PortFlowCtlCounters,
        PortVlOpPackets,
        PortVlOpData,
        PortVlXmitFlowCtlUpdateErrors,
        PortVlXmitWaitCounters,
        SwPortVlCongestion,
        PortXmitDataSl,
        PortRcvDataSl,
    );

    /// protocols 3.13.2.
    #[test]
    fn counters_of_one_kind_lie_one_after_another() {
        let details = PortRcvErrorDetails {
            port_select: 1,
            select: 0x0203,
            local_physical: 4,
            malformed: 5,
            buffer_overrun: 6,
            dlid_mapping: 7,
            vl_mapping: 8,
            looping: 0x090a,
        };
        let bytes = [0, 1, 2, 3, 0, 4, 0, 5, 0, 6, 0, 7, 0, 8, 9, 0xa];
        assert_eq!(details.to_bytes(), bytes);
        let details = PortXmitDiscardDetails {
            port_select: 1,
            select: 0x0203,
            inactive: 4,
            neighbor_mtu: 5,
            sw_lifetime_limit: 6,
            sw_hoq_lifetime_limit: 0x0708,
        };
        assert_eq!(details.to_bytes(), [0, 1, 2, 3, 0, 4, 0, 5, 0, 6, 7, 8]);
        let counters = PortOpRcvCounters {
            opcode: 9,
            port_select: 1,
            select: 0x0203,
            pkts: 4,
            data: 0x0506_0708,
        };
        assert_eq!(counters.to_bytes(), [9, 1, 2, 3, 0, 0, 0, 4, 5, 6, 7, 8]);
        let counters = PortFlowCtlCounters {
            port_select: 1,
            select: 0x0203,
            xmit_flow_pkts: 4,
            rcv_flow_pkts: 0x0506_0708,
        };
        assert_eq!(counters.to_bytes(), [0, 1, 2, 3, 0, 0, 0, 4, 5, 6, 7, 8]);
    }

    /// protocols 3.13.2.
    #[test]
    fn counters_by_lane_begin_with_lane_0() {
        let short: [u16; 16] = core::array::from_fn(|i| 0x0100 + i as u16);
        let long: [u32; 16] = core::array::from_fn(|i| 0x0102_0300 + i as u32);
        let (opcode, port_select, select) = (9, 1, 0x0203);
        let packets = PortVlOpPackets {
            opcode,
            port_select,
            select,
            counts: short,
        };
        let data = PortVlOpData {
            opcode,
            port_select,
            select,
            counts: long,
        };
        let wait = PortVlXmitWaitCounters {
            port_select,
            select,
            counts: short,
        };
        let congestion = SwPortVlCongestion {
            port_select,
            select,
            counts: short,
        };
        let sent = PortXmitDataSl {
            port_select,
            select,
            counts: long,
        };
        let received = PortRcvDataSl {
            port_select,
            select,
            counts: long,
        };
        let heads = [packets.to_bytes(), wait.to_bytes(), congestion.to_bytes()];
        for (bytes, first) in heads.iter().zip([9, 0, 0]) {
            assert_eq!(bytes[..8], [first, 1, 2, 3, 1, 0, 1, 1]);
            assert_eq!(bytes[34..], [1, 15]);
        }
        let heads = [data.to_bytes(), sent.to_bytes(), received.to_bytes()];
        for (bytes, first) in heads.iter().zip([9, 0, 0]) {
            assert_eq!(bytes[..12], [first, 1, 2, 3, 1, 2, 3, 0, 1, 2, 3, 1]);
            assert_eq!(bytes[64..], [1, 2, 3, 15]);
        }
        let errors =
            PortVlXmitFlowCtlUpdateErrors::from_bytes(&[0, 1, 2, 3, 0b10_01_00_11, 0, 0, 1]);
        assert_eq!((errors.port_select, errors.select), (1, 0x0203));
        let counts = [0, 1, 2, 3, 4, 14, 15].map(|vl| errors.count(vl));
        assert_eq!(counts, [2, 1, 0, 3, 0, 0, 1]);
    }
}
