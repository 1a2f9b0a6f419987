//! Counters of a port. protocols 3.13.2.

use super::AttributeId;
use super::layout::{layout, number};
use bitflags::bitflags;

bitflags! {
    /// Which counters of [`PortCounters`] a Set writes. protocols 3.13.2.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct CounterSelect: u16 {
        /// SymbolErrorCounter.
        const SYMBOL_ERRORS = 1 << 0;
        /// LinkErrorRecoveryCounter.
        const LINK_ERROR_RECOVERY = 1 << 1;
        /// LinkDownedCounter.
        const LINK_DOWNED = 1 << 2;
        /// PortRcvErrors.
        const RCV_ERRORS = 1 << 3;
        /// PortRcvRemotePhysicalErrors.
        const RCV_REMOTE_PHYSICAL_ERRORS = 1 << 4;
        /// PortRcvSwitchRelayErrors.
        const RCV_SWITCH_RELAY_ERRORS = 1 << 5;
        /// PortXmitDiscards.
        const XMIT_DISCARDS = 1 << 6;
        /// PortXmitConstraintErrors.
        const XMIT_CONSTRAINT_ERRORS = 1 << 7;
        /// PortRcvConstraintErrors.
        const RCV_CONSTRAINT_ERRORS = 1 << 8;
        /// LocalLinkIntegrityErrors.
        const LOCAL_LINK_INTEGRITY_ERRORS = 1 << 9;
        /// ExcessiveBufferOverrunErrors.
        const EXCESSIVE_BUFFER_OVERRUN_ERRORS = 1 << 10;
        /// VL15Dropped.
        const VL15_DROPPED = 1 << 11;
        /// PortXmitData.
        const XMIT_DATA = 1 << 12;
        /// PortRcvData.
        const RCV_DATA = 1 << 13;
        /// PortXmitPkts.
        const XMIT_PKTS = 1 << 14;
        /// PortRcvPkts.
        const RCV_PKTS = 1 << 15;
    }

    /// Which counters of [`PortCountersExtended`] a Set writes. protocols 3.13.2.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct CounterSelectExt: u16 {
        /// PortXmitData.
        const XMIT_DATA = 1 << 0;
        /// PortRcvData.
        const RCV_DATA = 1 << 1;
        /// PortXmitPkts.
        const XMIT_PKTS = 1 << 2;
        /// PortRcvPkts.
        const RCV_PKTS = 1 << 3;
        /// PortUnicastXmitPkts.
        const UNICAST_XMIT_PKTS = 1 << 4;
        /// PortUnicastRcvPkts.
        const UNICAST_RCV_PKTS = 1 << 5;
        /// PortMulticastXmitPkts.
        const MULTICAST_XMIT_PKTS = 1 << 6;
        /// PortMulticastRcvPkts.
        const MULTICAST_RCV_PKTS = 1 << 7;
    }

    /// Which of the further counters of [`PortCountersExtended`] a Set writes. protocols 3.13.2.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct CounterSelectExt2: u32 {
        /// SymbolErrorCounter.
        const SYMBOL_ERRORS = 1 << 0;
        /// LinkErrorRecoveryCounter.
        const LINK_ERROR_RECOVERY = 1 << 1;
        /// LinkDownedCounter.
        const LINK_DOWNED = 1 << 2;
        /// PortRcvErrors.
        const RCV_ERRORS = 1 << 3;
        /// PortRcvRemotePhysicalErrors.
        const RCV_REMOTE_PHYSICAL_ERRORS = 1 << 4;
        /// PortRcvSwitchRelayErrors.
        const RCV_SWITCH_RELAY_ERRORS = 1 << 5;
        /// PortXmitDiscards.
        const XMIT_DISCARDS = 1 << 6;
        /// PortXmitConstraintErrors.
        const XMIT_CONSTRAINT_ERRORS = 1 << 7;
        /// PortRcvConstraintErrors.
        const RCV_CONSTRAINT_ERRORS = 1 << 8;
        /// LocalLinkIntegrityErrors.
        const LOCAL_LINK_INTEGRITY_ERRORS = 1 << 9;
        /// ExcessiveBufferOverrunErrors.
        const EXCESSIVE_BUFFER_OVERRUN_ERRORS = 1 << 10;
        /// VL15Dropped.
        const VL15_DROPPED = 1 << 11;
        /// PortXmitWait.
        const XMIT_WAIT = 1 << 12;
        /// QP1Dropped.
        const QP1_DROPPED = 1 << 13;
    }
}

number! {
    CounterSelect, 2, |bits| Self::from_bits_retain(bits as u16), |select| select.bits().into();
    CounterSelectExt, 2, |bits| Self::from_bits_retain(bits as u16), |select| select.bits().into();
    CounterSelectExt2, 4, |bits| Self::from_bits_retain(bits as u32), |select| select.bits().into();
}

layout! {
    /// Counters that stop at all ones. protocols 3.13.2.
    pub struct PortCounters, PortCountersView: 44, AttributeId::PORT_COUNTERS;
    /// The port; 0xFF for all of them together.
    port_select: u8 = 1,
    /// The counters that Set writes.
    select: CounterSelect = 2,
    /// SymbolErrorCounter.
    symbol_errors: u16 = 4,
    /// LinkErrorRecoveryCounter.
    link_error_recovery: u8 = 6,
    /// LinkDownedCounter.
    link_downed: u8 = 7,
    /// PortRcvErrors.
    rcv_errors: u16 = 8,
    /// PortRcvRemotePhysicalErrors.
    rcv_remote_physical_errors: u16 = 10,
    /// PortRcvSwitchRelayErrors.
    rcv_switch_relay_errors: u16 = 12,
    /// PortXmitDiscards.
    xmit_discards: u16 = 14,
    /// PortXmitConstraintErrors.
    xmit_constraint_errors: u8 = 16,
    /// PortRcvConstraintErrors.
    rcv_constraint_errors: u8 = 17,
    /// CounterSelect2: Set writes `xmit_wait`.
    select_xmit_wait: bool = 18 [0:0],
    /// LocalLinkIntegrityErrors.
    local_link_integrity_errors: u8 = 19 [7:4],
    /// ExcessiveBufferOverrunErrors.
    excessive_buffer_overrun_errors: u8 = 19 [3:0],
    /// QP1Dropped.
    qp1_dropped: u16 = 20,
    /// VL15Dropped.
    vl15_dropped: u16 = 22,
    /// PortXmitData, in 4 bytes.
    xmit_data: u32 = 24,
    /// PortRcvData, in 4 bytes.
    rcv_data: u32 = 28,
    /// PortXmitPkts.
    xmit_pkts: u32 = 32,
    /// PortRcvPkts.
    rcv_pkts: u32 = 36,
    /// PortXmitWait, in ticks.
    xmit_wait: u32 = 40,
}

layout! {
    /// Counters of 64 bits. Those behind the first eight are there if the class's CapabilityMask2 says so.
    /// protocols 3.13.2.
    pub struct PortCountersExtended, PortCountersExtendedView: 184, AttributeId::PORT_COUNTERS_EXTENDED;
    /// The port; 0xFF for all of them together.
    port_select: u8 = 1,
    /// The counters that Set writes.
    select: CounterSelectExt = 2,
    /// The further counters that Set writes.
    select2: CounterSelectExt2 = 4,
    /// PortXmitData, in 4 bytes.
    xmit_data: u64 = 8,
    /// PortRcvData, in 4 bytes.
    rcv_data: u64 = 16,
    /// PortXmitPkts.
    xmit_pkts: u64 = 24,
    /// PortRcvPkts.
    rcv_pkts: u64 = 32,
    /// PortUnicastXmitPkts.
    unicast_xmit_pkts: u64 = 40,
    /// PortUnicastRcvPkts.
    unicast_rcv_pkts: u64 = 48,
    /// PortMulticastXmitPkts.
    multicast_xmit_pkts: u64 = 56,
    /// PortMulticastRcvPkts.
    multicast_rcv_pkts: u64 = 64,
    /// SymbolErrorCounter.
    symbol_errors: u64 = 72,
    /// LinkErrorRecoveryCounter.
    link_error_recovery: u64 = 80,
    /// LinkDownedCounter.
    link_downed: u64 = 88,
    /// PortRcvErrors.
    rcv_errors: u64 = 96,
    /// PortRcvRemotePhysicalErrors.
    rcv_remote_physical_errors: u64 = 104,
    /// PortRcvSwitchRelayErrors.
    rcv_switch_relay_errors: u64 = 112,
    /// PortXmitDiscards.
    xmit_discards: u64 = 120,
    /// PortXmitConstraintErrors.
    xmit_constraint_errors: u64 = 128,
    /// PortRcvConstraintErrors.
    rcv_constraint_errors: u64 = 136,
    /// LocalLinkIntegrityErrors.
    local_link_integrity_errors: u64 = 144,
    /// ExcessiveBufferOverrunErrors.
    excessive_buffer_overrun_errors: u64 = 152,
    /// VL15Dropped.
    vl15_dropped: u64 = 160,
    /// PortXmitWait, in ticks.
    xmit_wait: u64 = 168,
    /// QP1Dropped.
    qp1_dropped: u64 = 176,
}

impl PortCountersExtended {
    /// Bytes without the further counters.
    pub const SHORT_SIZE: usize = 72;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::mad::layout::property::round_trip_tests;

    round_trip_tests!(PortCounters, PortCountersExtended);

    /// protocols 3.13.2: counter *i* holds *i*.
    #[test]
    fn the_extended_counters_lie_as_the_table_says() {
        let counters = PortCountersExtended {
            port_select: 1,
            select: CounterSelectExt::MULTICAST_RCV_PKTS | CounterSelectExt::XMIT_DATA,
            select2: CounterSelectExt2::QP1_DROPPED | CounterSelectExt2::SYMBOL_ERRORS,
            xmit_data: 0,
            rcv_data: 1,
            xmit_pkts: 2,
            rcv_pkts: 3,
            unicast_xmit_pkts: 4,
            unicast_rcv_pkts: 5,
            multicast_xmit_pkts: 6,
            multicast_rcv_pkts: 7,
            symbol_errors: 8,
            link_error_recovery: 9,
            link_downed: 10,
            rcv_errors: 11,
            rcv_remote_physical_errors: 12,
            rcv_switch_relay_errors: 13,
            xmit_discards: 14,
            xmit_constraint_errors: 15,
            rcv_constraint_errors: 16,
            local_link_integrity_errors: 17,
            excessive_buffer_overrun_errors: 18,
            vl15_dropped: 19,
            xmit_wait: 20,
            qp1_dropped: 21,
        };
        let bytes = counters.to_bytes();
        assert_eq!(bytes[..8], [0, 1, 0, 0x81, 0, 0, 0x20, 1]);
        let (rest, _) = bytes[8..].as_chunks();
        for (i, place) in rest.iter().enumerate() {
            assert_eq!(u64::from_be_bytes(*place), i as u64);
        }
        assert_eq!(rest.len(), 22);
        assert_eq!(PortCountersExtended::from_bytes(&bytes), counters);
    }

    /// protocols 3.13.2.
    #[test]
    fn the_port_counters_lie_as_the_table_says() {
        let counters = PortCounters {
            port_select: 0x01,
            select: CounterSelect::RCV_PKTS | CounterSelect::SYMBOL_ERRORS,
            symbol_errors: 0x0203,
            link_error_recovery: 0x04,
            link_downed: 0x05,
            rcv_errors: 0x0607,
            rcv_remote_physical_errors: 0x0809,
            rcv_switch_relay_errors: 0x0a0b,
            xmit_discards: 0x0c0d,
            xmit_constraint_errors: 0x0e,
            rcv_constraint_errors: 0x0f,
            select_xmit_wait: true,
            local_link_integrity_errors: 0x1,
            excessive_buffer_overrun_errors: 0x2,
            qp1_dropped: 0x1314,
            vl15_dropped: 0x1516,
            xmit_data: 0x1718_191a,
            rcv_data: 0x1b1c_1d1e,
            xmit_pkts: 0x1f20_2122,
            rcv_pkts: 0x2324_2526,
            xmit_wait: 0x2728_292a,
        };
        let bytes = [
            0x00, 0x01, 0x80, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, 0x09, 0x0a, 0x0b,
            0x0c, 0x0d, 0x0e, 0x0f, 0x01, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x19, 0x1a,
            0x1b, 0x1c, 0x1d, 0x1e, 0x1f, 0x20, 0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28,
            0x29, 0x2a,
        ];
        assert_eq!(counters.to_bytes(), bytes);
        assert_eq!(PortCounters::from_bytes(&bytes), counters);
    }
}
