//! Records of subnet administration that hold one block of a table. protocols 4.9.

use super::layout::{layout, records};
use super::{
    AttributeId, GuidInfo, LinearForwardingTable, MulticastForwardingTable, PKeyTable,
    RandomForwardingTable, SlToVlMappingTable, VlArbitrationTable,
};
use crate::types::Lid;

layout! {
    /// A block of a linear forwarding table.
    pub struct LinearForwardingTableRecord, LinearForwardingTableRecordView: 72,
        AttributeId::LINEAR_FORWARDING_TABLE_RECORD;
    /// The switch.
    lid: Lid = 0,
    /// BlockNum.
    block: u16 = 2,
    /// The block.
    table: LinearForwardingTable = 8,
}

records! { LinearForwardingTableRecord:
    LID = 0: lid;
    BLOCK = 1: block;
}

layout! {
    /// A block of a random forwarding table.
    pub struct RandomForwardingTableRecord, RandomForwardingTableRecordView: 72,
        AttributeId::RANDOM_FORWARDING_TABLE_RECORD;
    /// The switch.
    lid: Lid = 0,
    /// BlockNum.
    block: u16 = 2,
    /// The block.
    table: RandomForwardingTable = 8,
}

records! { RandomForwardingTableRecord:
    LID = 0: lid;
    BLOCK = 1: block;
}

layout! {
    /// A block of a multicast forwarding table, for 16 ports.
    pub struct MulticastForwardingTableRecord, MulticastForwardingTableRecordView: 72,
        AttributeId::MULTICAST_FORWARDING_TABLE_RECORD;
    /// The switch.
    lid: Lid = 0,
    /// Position: the ports from 16 times this.
    position: u8 = 2 [7:4],
    /// BlockNum.
    block: u16 = 2/2 [8:0],
    /// The block.
    table: MulticastForwardingTable = 8,
}

records! { MulticastForwardingTableRecord:
    LID = 0: lid;
    POSITION = 1: position;
    BLOCK = 3: block;
}

layout! {
    /// A block of a partition table.
    pub struct PKeyTableRecord, PKeyTableRecordView: 72, AttributeId::P_KEY_TABLE_RECORD;
    /// The node.
    lid: Lid = 0,
    /// BlockNum.
    block: u16 = 2,
    /// PortNum.
    port: u8 = 4,
    /// The block.
    table: PKeyTable = 8,
}

records! { PKeyTableRecord:
    LID = 0: lid;
    BLOCK = 1: block;
    PORT = 2: port;
}

layout! {
    /// A table of virtual lanes.
    pub struct SlToVlMappingTableRecord, SlToVlMappingTableRecordView: 16,
        AttributeId::SL_TO_VL_MAPPING_TABLE_RECORD;
    /// The node.
    lid: Lid = 0,
    /// InputPortNum, of a switch.
    in_port: u8 = 2,
    /// OutputPortNum.
    out_port: u8 = 3,
    /// The table.
    table: SlToVlMappingTable = 8,
}

records! { SlToVlMappingTableRecord:
    LID = 0: lid;
    IN_PORT = 1: in_port;
    OUT_PORT = 2: out_port;
}

layout! {
    /// A block of an arbitration table.
    pub struct VlArbitrationTableRecord, VlArbitrationTableRecordView: 72,
        AttributeId::VL_ARBITRATION_TABLE_RECORD;
    /// The node.
    lid: Lid = 0,
    /// OutputPortNum.
    out_port: u8 = 2,
    /// BlockNum, 1 to 4.
    block: u8 = 3,
    /// The block.
    table: VlArbitrationTable = 8,
}

records! { VlArbitrationTableRecord:
    LID = 0: lid;
    OUT_PORT = 1: out_port;
    BLOCK = 2: block;
}

layout! {
    /// A block of a port's GUIDs.
    pub struct GuidInfoRecord, GuidInfoRecordView: 72, AttributeId::GUID_INFO_RECORD;
    /// The node.
    lid: Lid = 0,
    /// BlockNum.
    block: u8 = 2,
    /// The block.
    info: GuidInfo = 8,
}

records! { GuidInfoRecord:
    LID = 0: lid;
    BLOCK = 1: block;
    [guid; 8] = 4: info.guids;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Guid;
    use crate::wire::mad::layout::property::round_trip_tests;
    use crate::wire::mad::{ComponentMask, Record, SaHeader};

    round_trip_tests!(
        LinearForwardingTableRecord,
        RandomForwardingTableRecord,
        MulticastForwardingTableRecord,
        PKeyTableRecord,
        SlToVlMappingTableRecord,
        VlArbitrationTableRecord,
        GuidInfoRecord,
    );

    /// protocols 4.9.
    #[test]
    fn the_head_of_each_record_lies_as_the_table_says() {
        let lid = Lid(0x0102);
        let bytes = LinearForwardingTableRecord {
            lid,
            block: 0x0304,
            table: LinearForwardingTable { ports: [9; 64] },
        }
        .to_bytes();
        assert_eq!(bytes[..8], [1, 2, 3, 4, 0, 0, 0, 0]);
        assert_eq!(bytes[8..], [9; 64]);

        let bytes = RandomForwardingTableRecord {
            lid,
            block: 0x0304,
            ..Default::default()
        }
        .to_bytes();
        assert_eq!(bytes[..9], [1, 2, 3, 4, 0, 0, 0, 0, 0]);

        let mut record = MulticastForwardingTableRecord {
            lid,
            position: 0xa,
            block: 0x1fe,
            ..Default::default()
        };
        record.table.masks[0] = 0x0b0c;
        assert_eq!(
            record.to_bytes()[..10],
            [1, 2, 0xa1, 0xfe, 0, 0, 0, 0, 0xb, 0xc]
        );

        let mut record = PKeyTableRecord {
            lid,
            block: 0x0304,
            port: 5,
            ..Default::default()
        };
        record.table.keys[0] = crate::types::PKey(0x0b0c);
        assert_eq!(record.to_bytes()[..10], [1, 2, 3, 4, 5, 0, 0, 0, 0xb, 0xc]);

        let bytes = SlToVlMappingTableRecord {
            lid,
            in_port: 3,
            out_port: 4,
            table: SlToVlMappingTable { nibbles: [0x67; 8] },
        }
        .to_bytes();
        assert_eq!(bytes, *b"\x01\x02\x03\x04\0\0\0\0gggggggg");

        let mut record = VlArbitrationTableRecord {
            lid,
            out_port: 3,
            block: 4,
            ..Default::default()
        };
        record.table.entries[0].weight = 0x0c;
        assert_eq!(record.to_bytes()[..10], [1, 2, 3, 4, 0, 0, 0, 0, 0, 0xc]);

        let mut record = GuidInfoRecord {
            lid,
            block: 3,
            ..Default::default()
        };
        record.info.guids[0] = Guid(0xb);
        assert_eq!(
            record.to_bytes()[..16],
            [1, 2, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xb]
        );
    }

    /// protocols 4.2.
    #[test]
    fn the_offset_between_records_is_that_of_the_table() {
        let sizes = [
            LinearForwardingTableRecord::SIZE,
            RandomForwardingTableRecord::SIZE,
            MulticastForwardingTableRecord::SIZE,
            PKeyTableRecord::SIZE,
            SlToVlMappingTableRecord::SIZE,
            VlArbitrationTableRecord::SIZE,
            GuidInfoRecord::SIZE,
        ];
        assert_eq!(sizes.map(SaHeader::offset_of), [9, 9, 9, 9, 2, 9, 9]);
    }

    /// protocols 4.9.
    #[test]
    fn each_guid_of_a_block_is_a_component() {
        assert_eq!(GuidInfoRecord::guid(0), ComponentMask(1 << 4));
        assert_eq!(GuidInfoRecord::guid(7), ComponentMask(1 << 11));
        assert_eq!(GuidInfoRecord::guid(8), ComponentMask::NONE);
        let (mut one, mut two) = (GuidInfoRecord::default(), GuidInfoRecord::default());
        one.info.guids[7] = Guid(7);
        two.info.guids[7] = Guid(8);
        assert!(one.matches(&two, GuidInfoRecord::guid(6)));
        assert!(!one.matches(&two, GuidInfoRecord::guid(7)));
    }
}
