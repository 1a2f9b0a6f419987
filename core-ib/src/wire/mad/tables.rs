//! The tables of a port: partition keys, service levels to virtual lanes, arbitration. protocols 3.8.6 to 3.8.8.

use super::AttributeId;
use super::layout::layout;
use crate::types::{PKey, Sl};

layout! {
    /// 32 partition keys; 0 is no entry. protocols 3.8.6.
    pub struct PKeyTable, PKeyTableView: 64, AttributeId::P_KEY_TABLE;
    /// Block *b* has the entries from 32 *b*.
    keys: [PKey; 32] = 0,
}

impl PKeyTable {
    /// Attribute modifier of `block` of `port`; only a switch looks at the port.
    pub const fn modifier(port: u8, block: u16) -> u32 {
        ((port as u32) << 16) | block as u32
    }

    /// Port and block of a modifier.
    pub const fn port_and_block(modifier: u32) -> (u16, u16) {
        ((modifier >> 16) as u16, modifier as u16)
    }
}

layout! {
    /// The virtual lane of each service level. protocols 3.8.7.
    pub struct SlToVlMappingTable, SlToVlMappingTableView: 8, AttributeId::SL_TO_VL_MAPPING_TABLE;
    /// Two to a byte, the even one above.
    nibbles: [u8; 8] = 0,
}

impl SlToVlMappingTable {
    /// The lane that stands for "drop".
    pub const DROP: u8 = 15;

    /// From the lane of each level, 0 to 15.
    pub fn new(lanes: [u8; 16]) -> Self {
        let (pairs, _) = lanes.as_chunks();
        let mut nibbles = [0; 8];
        for (to, &[even, odd]) in nibbles.iter_mut().zip(pairs) {
            *to = even << 4 | (odd & 0xf);
        }
        Self { nibbles }
    }

    /// The lane of `sl`.
    pub fn vl(&self, sl: Sl) -> u8 {
        let pair = self
            .nibbles
            .get(usize::from(sl.get() / 2))
            .copied()
            .unwrap_or(0xff);
        if sl.get().is_multiple_of(2) {
            pair >> 4
        } else {
            pair & 0xf
        }
    }

    /// Attribute modifier of a switch; of a CA it is 0.
    pub const fn modifier(in_port: u8, out_port: u8) -> u32 {
        ((in_port as u32) << 8) | out_port as u32
    }

    /// In port and out port of a modifier.
    pub const fn ports(modifier: u32) -> (u8, u8) {
        ((modifier >> 8) as u8, modifier as u8)
    }
}

layout! {
    /// Entry of an arbitration table. protocols 1.13.1, 3.8.8.
    pub struct VlWeight, VlWeightView: 2;
    /// Data lane, 0 to 14.
    vl: u8 = 0 [3:0],
    /// In units of 64 bytes; 0 passes the entry over.
    weight: u8 = 1,
}

layout! {
    /// 32 entries of a port's arbitration. protocols 3.8.8.
    pub struct VlArbitrationTable, VlArbitrationTableView: 64, AttributeId::VL_ARBITRATION_TABLE;
    /// See the blocks.
    entries: [VlWeight; 32] = 0,
}

impl VlArbitrationTable {
    /// Block of the low-priority entries 0 to 31.
    pub const LOW: u16 = 1;
    /// Block of the low-priority entries 32 to 63.
    pub const LOW_UPPER: u16 = 2;
    /// Block of the high-priority entries 0 to 31.
    pub const HIGH: u16 = 3;
    /// Block of the high-priority entries 32 to 63.
    pub const HIGH_UPPER: u16 = 4;

    /// Attribute modifier of `block` of `port`.
    pub const fn modifier(block: u16, port: u8) -> u32 {
        ((block as u32) << 16) | port as u32
    }

    /// Block and port of a modifier.
    pub const fn block_and_port(modifier: u32) -> (u16, u16) {
        ((modifier >> 16) as u16, modifier as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::mad::layout::property::round_trip_tests;

    round_trip_tests!(PKeyTable, SlToVlMappingTable, VlWeight, VlArbitrationTable);

    /// protocols 3.8.6.
    #[test]
    fn partition_keys_lie_one_after_another() {
        let mut table = PKeyTable::default();
        table.keys[0] = PKey::DEFAULT;
        table.keys[31] = PKey(0x8001);
        let bytes = table.to_bytes();
        assert_eq!(bytes[..4], [0xff, 0xff, 0, 0]);
        assert_eq!(bytes[60..], [0, 0, 0x80, 0x01]);
        assert_eq!(PKeyTable::from_bytes(&bytes), table);
        assert_eq!(PKeyTable::modifier(3, 2), 0x0003_0002);
        assert_eq!(PKeyTable::port_and_block(0x0003_0002), (3, 2));
    }

    /// protocols 3.8.7.
    #[test]
    fn the_even_service_level_is_the_upper_nibble() {
        let lanes = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
        let table = SlToVlMappingTable::new(lanes);
        let bytes = [0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef];
        assert_eq!(table.to_bytes(), bytes);
        assert_eq!(lanes.map(|sl| table.vl(Sl::new(sl))), lanes);
        assert_eq!(SlToVlMappingTable::modifier(2, 5), 0x0205);
        assert_eq!(SlToVlMappingTable::ports(0x0205), (2, 5));
    }

    /// protocols 3.8.8.
    #[test]
    fn an_arbitration_entry_is_a_lane_and_a_weight() {
        let mut table = VlArbitrationTable::default();
        table.entries[1] = VlWeight { vl: 3, weight: 64 };
        assert_eq!(table.to_bytes()[..6], [0, 0, 3, 64, 0, 0]);
        let reserved = VlWeight::from_bytes(&[0xf3, 1]);
        assert_eq!(reserved, VlWeight { vl: 3, weight: 1 });
        assert_eq!(
            VlArbitrationTable::modifier(VlArbitrationTable::HIGH, 7),
            0x0003_0007
        );
        assert_eq!(VlArbitrationTable::block_and_port(0x0003_0007), (3, 7));
    }
}
