//! What a node says of itself: NodeDescription and NodeInfo. protocols 3.8.1, 3.8.2.

use super::AttributeId;
use super::layout::{constants, layout, number};
use crate::types::Guid;

/// Kind of a node. protocols 3.8.2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct NodeType(pub u8);

constants! { NodeType:
    /// Channel adapter.
    CA = 1;
    /// Switch.
    SWITCH = 2;
    /// Router.
    ROUTER = 3;
}

number! {
    NodeType, 1, |bits| Self(bits as u8), |node| node.0.into();
}

layout! {
    /// Text for people. protocols 3.8.1.
    pub struct NodeDescription, NodeDescriptionView: 64, AttributeId::NODE_DESCRIPTION;
    /// UTF-8, padded with zeros, not necessarily terminated.
    text: [u8; 64] = 0,
}

impl NodeDescription {
    /// As much of `text` as fits, in whole characters.
    pub fn new(text: &str) -> Self {
        let mut this = Self { text: [0; 64] };
        let end = text.floor_char_boundary(64);
        for (to, from) in this.text.iter_mut().zip(text.bytes().take(end)) {
            *to = from;
        }
        this
    }

    /// The text up to the first zero, and up to the first byte that is no UTF-8.
    pub fn as_str(&self) -> &str {
        let text = self.text.split(|&byte| byte == 0).next().unwrap_or(&[]);
        let valid = text.utf8_chunks().next();
        valid.map_or("", |chunk| chunk.valid())
    }
}

layout! {
    /// The node, and the port by which it was asked. protocols 3.8.2.
    pub struct NodeInfo, NodeInfoView: 40, AttributeId::NODE_INFO;
    /// 1.
    base_version: u8 = 0,
    /// 1.
    class_version: u8 = 1,
    /// NodeType.
    node_type: NodeType = 2,
    /// Physical ports: port 0 of a switch is not among them.
    num_ports: u8 = 3,
    /// SystemImageGUID; 0 if not supported.
    sys_image_guid: Guid = 4,
    /// NodeGUID.
    node_guid: Guid = 12,
    /// Of the port that received the SMP; of port 0 of a switch.
    port_guid: Guid = 20,
    /// Entries of the P_Key table of a port (of port 0 of a switch), at least 1.
    partition_cap: u16 = 28,
    /// The vendor's number of the device.
    device_id: u16 = 30,
    /// The vendor's revision of the device.
    revision: u32 = 32,
    /// The port that received the SMP.
    local_port_num: u8 = 36,
    /// IEEE OUI, 24 bits.
    vendor_id: u32 = 37/3 [23:0],
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::wire::mad::layout::property::round_trip_tests;

    round_trip_tests!(NodeDescription, NodeInfo);

    /// protocols 3.8.2.
    #[test]
    fn the_node_info_lies_as_the_table_says() {
        let info = NodeInfo {
            base_version: 1,
            class_version: 1,
            node_type: NodeType::SWITCH,
            num_ports: 36,
            sys_image_guid: Guid(0x0002_c903_0000_1003),
            node_guid: Guid(0x0002_c903_0000_1000),
            port_guid: Guid(0x0002_c903_0000_1001),
            partition_cap: 0x0080,
            device_id: 0x6274,
            revision: 0x0000_00a0,
            local_port_num: 7,
            vendor_id: 0x00_02c9,
        };
        let bytes = [
            0x01, 0x01, 0x02, 0x24, // versions, type, ports
            0x00, 0x02, 0xc9, 0x03, 0x00, 0x00, 0x10, 0x03, // system image
            0x00, 0x02, 0xc9, 0x03, 0x00, 0x00, 0x10, 0x00, // node
            0x00, 0x02, 0xc9, 0x03, 0x00, 0x00, 0x10, 0x01, // port
            0x00, 0x80, 0x62, 0x74, 0x00, 0x00, 0x00, 0xa0, // partitions, device, revision
            0x07, 0x00, 0x02, 0xc9, // port, vendor
        ];
        assert_eq!(info.to_bytes(), bytes);
        assert_eq!(NodeInfo::from_bytes(&bytes), info);
    }

    #[test]
    fn a_description_is_cut_between_characters() {
        assert_eq!(NodeDescription::new("node1 HCA-1").as_str(), "node1 HCA-1");
        let long = "ä".repeat(33);
        assert_eq!(NodeDescription::new(&long).as_str(), &long[..64]);
        let odd = std::format!("x{long}");
        assert_eq!(NodeDescription::new(&odd).as_str().len(), 63);
        let mut broken = NodeDescription::new("ab\u{e4}");
        broken.text[3] = b'c';
        assert_eq!(broken.as_str(), "ab");
    }
}
