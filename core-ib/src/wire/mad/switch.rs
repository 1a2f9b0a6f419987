//! What only a switch has: SwitchInfo and the forwarding tables. protocols 3.8.3, 3.8.9 to 3.8.11.

use super::layout::layout;
use super::{AttributeId, TimeCode};
use crate::types::Lid;

layout! {
    /// What a switch can do, and how it forwards. protocols 3.8.3.
    pub struct SwitchInfo, SwitchInfoView: 20, AttributeId::SWITCH_INFO;
    /// Entries of the linear table; 0 if it has a random one.
    linear_fdb_cap: u16 = 0,
    /// Entries of the random table.
    random_fdb_cap: u16 = 2,
    /// Entries of the multicast table.
    multicast_fdb_cap: u16 = 4,
    /// The highest LID in the linear table.
    linear_fdb_top: Lid = 6,
    /// Of random tables: where unknown LIDs go.
    default_port: u8 = 8,
    /// DefaultMulticastPrimaryPort.
    default_mc_primary_port: u8 = 9,
    /// DefaultMulticastNotPrimaryPort.
    default_mc_not_primary_port: u8 = 10,
    /// How long a packet may live in the switch: see [`TimeCode::lifetime`].
    life_time: TimeCode = 11 [7:3],
    /// The state of a port changed; written as true to clear.
    port_state_change: bool = 11 [2:2],
    /// OptimizedSLtoVLMappingProgramming.
    optimized_sl_to_vl: u8 = 11 [1:0],
    /// Of random tables: LIDs for each port.
    lids_per_port: u16 = 12,
    /// Entries of the P_Key tables of the external ports.
    partition_enforcement_cap: u16 = 14,
    /// InboundEnforcementCap.
    inbound_enforcement_cap: bool = 16 [7:7],
    /// OutboundEnforcementCap.
    outbound_enforcement_cap: bool = 16 [6:6],
    /// FilterRawInboundCap.
    filter_raw_inbound_cap: bool = 16 [5:5],
    /// FilterRawOutboundCap.
    filter_raw_outbound_cap: bool = 16 [4:4],
    /// EnhancedPort0.
    enhanced_port0: bool = 16 [3:3],
    /// The highest multicast LID in the table; 0xBFFF is none.
    multicast_fdb_top: Lid = 18,
}

layout! {
    /// Output ports of 64 LIDs; the modifier is the block. protocols 3.8.9.
    pub struct LinearForwardingTable, LinearForwardingTableView: 64, AttributeId::LINEAR_FORWARDING_TABLE;
    /// Byte *i* of block *b* is for LID 64 *b* + *i*.
    ports: [u8; 64] = 0,
}

impl LinearForwardingTable {
    /// The entry of a LID that cannot be reached.
    pub const UNREACHABLE: u8 = 0xff;

    /// Block and place in it.
    pub const fn place(lid: Lid) -> (u32, usize) {
        ((lid.0 >> 6) as u32, (lid.0 & 63) as usize)
    }
}

layout! {
    /// Where the LIDs go that have the same upper bits. protocols 3.8.10.
    pub struct RandomEntry, RandomEntryView: 4;
    /// The first of 2^LMC.
    lid: Lid = 0,
    /// The entry counts.
    valid: bool = 2 [7:7],
    /// How many of the LID's low bits do not count.
    lmc: u8 = 2 [6:4],
    /// Output port.
    port: u8 = 3,
}

layout! {
    /// 16 entries of a random table; the modifier is the block. protocols 3.8.10.
    pub struct RandomForwardingTable, RandomForwardingTableView: 64, AttributeId::RANDOM_FORWARDING_TABLE;
    /// In any order.
    entries: [RandomEntry; 16] = 0,
}

layout! {
    /// Masks of 16 ports for 32 multicast LIDs. protocols 3.8.11.
    pub struct MulticastForwardingTable, MulticastForwardingTableView: 64, AttributeId::MULTICAST_FORWARDING_TABLE;
    /// Entry *i* of block *b* is for LID 0xC000 + 32 *b* + *i*; bit *j* at position *p* is port 16 *p* + *j*.
    masks: [u16; 32] = 0,
}

impl MulticastForwardingTable {
    /// Attribute modifier of `block` (9 bits) at `position` (4 bits).
    pub const fn modifier(block: u16, position: u8) -> u32 {
        ((position as u32 & 0xf) << 28) | (block as u32 & 0x1ff)
    }

    /// Block and position of a modifier.
    pub const fn block_and_position(modifier: u32) -> (u16, u8) {
        ((modifier & 0x1ff) as u16, (modifier >> 28) as u8)
    }

    /// Block and place in it; `None` for a LID that is not of multicast.
    pub const fn place(mlid: Lid) -> Option<(u16, usize)> {
        if !mlid.is_multicast() {
            return None;
        }
        let entry = mlid.0 & 0x3fff;
        Some((entry >> 5, (entry & 31) as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::mad::layout::property::round_trip_tests;

    round_trip_tests!(
        SwitchInfo,
        RandomEntry,
        RandomForwardingTable,
        LinearForwardingTable,
        MulticastForwardingTable
    );

    /// protocols 3.8.3.
    #[test]
    fn the_switch_info_lies_as_the_table_says() {
        let info = SwitchInfo {
            linear_fdb_cap: 0xc000,
            random_fdb_cap: 0x0102,
            multicast_fdb_cap: 0x1000,
            linear_fdb_top: Lid(0x0024),
            default_port: 4,
            default_mc_primary_port: 5,
            default_mc_not_primary_port: 6,
            life_time: TimeCode(0x12),
            port_state_change: true,
            optimized_sl_to_vl: 1,
            lids_per_port: 0x0708,
            partition_enforcement_cap: 0x0020,
            inbound_enforcement_cap: true,
            outbound_enforcement_cap: false,
            filter_raw_inbound_cap: true,
            filter_raw_outbound_cap: false,
            enhanced_port0: true,
            multicast_fdb_top: Lid(0xbfff),
        };
        let bytes = [
            0xc0, 0x00, 0x01, 0x02, 0x10, 0x00, 0x00, 0x24, 4, 5, 6, 0x95, 0x07, 0x08, 0x00, 0x20,
            0xa8, 0, 0xbf, 0xff,
        ];
        assert_eq!(info.to_bytes(), bytes);
        assert_eq!(SwitchInfo::from_bytes(&bytes), info);
    }

    /// protocols 3.8.9.
    #[test]
    fn the_port_of_a_lid_is_at_its_place_in_its_block() {
        assert_eq!(LinearForwardingTable::place(Lid(0)), (0, 0));
        assert_eq!(LinearForwardingTable::place(Lid(130)), (2, 2));
        let mut table = LinearForwardingTable { ports: [0xff; 64] };
        table.ports[2] = 9;
        assert_eq!(table.to_bytes()[..4], [0xff, 0xff, 9, 0xff]);
    }

    /// protocols 3.8.10.
    #[test]
    fn a_random_entry_is_a_lid_and_a_port() {
        let mut table = RandomForwardingTable::default();
        table.entries[1] = RandomEntry {
            lid: Lid(0x0102),
            valid: true,
            lmc: 5,
            port: 3,
        };
        let bytes = table.to_bytes();
        assert_eq!(bytes[..8], [0, 0, 0, 0, 1, 2, 0xd0, 3]);
        assert_eq!(bytes[8..], [0; 56]);
        assert_eq!(RandomForwardingTable::from_bytes(&bytes), table);
    }

    /// protocols 3.8.11.
    #[test]
    fn a_multicast_mask_is_big_endian_at_its_place() {
        assert_eq!(MulticastForwardingTable::place(Lid(0xc021)), Some((1, 1)));
        assert_eq!(
            MulticastForwardingTable::place(Lid(0xfffe)),
            Some((0x1ff, 30))
        );
        assert_eq!(MulticastForwardingTable::place(Lid(0xbfff)), None);
        assert_eq!(MulticastForwardingTable::place(Lid::PERMISSIVE), None);
        let mut table = MulticastForwardingTable::default();
        table.masks[1] = 1 << 9 | 1 << 3;
        assert_eq!(table.to_bytes()[..6], [0, 0, 0x02, 0x08, 0, 0]);
        let modifier = MulticastForwardingTable::modifier(0x1fe, 2);
        assert_eq!(modifier, 0x2000_01fe);
        assert_eq!(
            MulticastForwardingTable::block_and_position(modifier),
            (0x1fe, 2)
        );
    }
}
