//! The details of each trap. protocols 3.10.2.
//!
//! They fill bytes 10 to 63 of a [`Notice`](super::Notice); offsets here count from that byte.

use super::layout::{layout, number};
use super::{AttributeId, Capability, Capability2, MKey, Method, TrapNumber};
use crate::types::{Gid, Guid, Lid, PKey, Qpn, Sl};
use bitflags::bitflags;

layout! {
    /// Traps 64 to 67: a port or a group.
    pub struct GidTrap, GidTrapView: 54;
    /// GID of the port, or of the group.
    gid: Gid = 6,
}

layout! {
    /// Trap 128: links of a switch.
    pub struct SwitchTrap, SwitchTrapView: 54;
    /// The switch.
    lid: Lid = 0,
}

layout! {
    /// Traps 129 to 131: a link.
    pub struct PortTrap, PortTrapView: 54;
    /// The node.
    lid: Lid = 2,
    /// Its port.
    port: u8 = 4,
}

bitflags! {
    /// What changed at a node, besides its capabilities.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct ChangeFlags: u16 {
        /// NodeDescription.
        const NODE_DESCRIPTION = 1 << 0;
        /// LinkWidthEnabled.
        const LINK_WIDTH_ENABLED = 1 << 1;
        /// LinkSpeedEnabled.
        const LINK_SPEED_ENABLED = 1 << 2;
        /// Priority of the SM.
        const SM_PRIORITY = 1 << 3;
        /// HierarchyInfo.
        const HIERARCHY = 1 << 4;
        /// CapabilityMask2.
        const CAPABILITY2 = 1 << 5;
    }
}

number! {
    ChangeFlags, 2, |bits| Self::from_bits_retain(bits as u16), |flags| flags.bits().into();
}

layout! {
    /// Trap 144: what a node is, has changed.
    pub struct LocalChangesTrap, LocalChangesTrapView: 54;
    /// The node.
    lid: Lid = 2,
    /// OtherLocalChanges: the change flags count.
    other_local_changes: bool = 5 [0:0],
    /// CapabilityMask as it is now.
    capability: Capability = 6,
    /// ChangeFlags.
    changes: ChangeFlags = 10,
    /// CapabilityMask2 as it is now.
    capability2: Capability2 = 12,
}

layout! {
    /// Trap 145: the system image GUID has changed.
    pub struct SystemImageTrap, SystemImageTrapView: 54;
    /// The node.
    lid: Lid = 2,
    /// The GUID as it is now.
    sys_image_guid: Guid = 6,
}

layout! {
    /// Trap 256: an SMP with a wrong M_Key.
    pub struct MKeyTrap, MKeyTrapView: 54;
    /// Where the SMP came from.
    lid: Lid = 2,
    /// Its DrSLID.
    dr_slid: Lid = 4,
    /// Its method.
    method: Method = 6,
    /// Its attribute.
    attribute: AttributeId = 8,
    /// Its attribute modifier.
    modifier: u32 = 10,
    /// Its M_Key.
    m_key: MKey = 14,
    /// DRNotice: it came by a directed route.
    dr_notice: bool = 23 [7:7],
    /// DRPathTruncated: the path is longer than there is room for.
    dr_path_truncated: bool = 23 [6:6],
    /// DRHopCount.
    dr_hop_count: u8 = 23 [5:0],
    /// The first hops of its return path.
    return_path: [u8; 30] = 24,
}

layout! {
    /// Traps 257 and 258: a packet with a wrong P_Key or Q_Key.
    pub struct KeyTrap, KeyTrapView: 54;
    /// Source.
    lid1: Lid = 2,
    /// Destination.
    lid2: Lid = 4,
    /// The Q_Key, or the P_Key in the low 16 bits.
    key: u32 = 6,
    /// Service level.
    sl: Sl = 10 [7:4],
    /// Source.
    qp1: Qpn = 11,
    /// Destination.
    qp2: Qpn = 15,
    /// Source.
    gid1: Gid = 18,
    /// Destination.
    gid2: Gid = 34,
}

layout! {
    /// Trap 259: a packet with a wrong P_Key at an external port of a switch.
    pub struct SwitchPKeyTrap, SwitchPKeyTrapView: 54;
    /// DataValid: which fields count.
    data_valid: u16 = 0,
    /// Source.
    lid1: Lid = 2,
    /// Destination.
    lid2: Lid = 4,
    /// The P_Key.
    p_key: PKey = 6,
    /// Service level.
    sl: Sl = 8 [7:4],
    /// Source.
    qp1: Qpn = 9,
    /// Destination.
    qp2: Qpn = 13,
    /// Source.
    gid1: Gid = 16,
    /// Destination.
    gid2: Gid = 32,
    /// The switch.
    switch_lid: Lid = 48,
    /// Its port.
    port: u8 = 50,
}

/// The details of a trap, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TrapDetails {
    /// 64 to 67.
    Gid(GidTrap),
    /// 128.
    Switch(SwitchTrap),
    /// 129 to 131.
    Port(PortTrap),
    /// 144.
    LocalChanges(LocalChangesTrap),
    /// 145.
    SystemImage(SystemImageTrap),
    /// 256.
    MKey(MKeyTrap),
    /// 257 and 258.
    Key(KeyTrap),
    /// 259.
    SwitchPKey(SwitchPKeyTrap),
}

impl TrapDetails {
    /// What the details of trap `number` mean; `None` if it has none or is not known.
    pub fn from_bytes(number: TrapNumber, bytes: &[u8; 54]) -> Option<Self> {
        Some(match number.0 {
            64..=67 => Self::Gid(GidTrap::from_bytes(bytes)),
            128 => Self::Switch(SwitchTrap::from_bytes(bytes)),
            129..=131 => Self::Port(PortTrap::from_bytes(bytes)),
            144 => Self::LocalChanges(LocalChangesTrap::from_bytes(bytes)),
            145 => Self::SystemImage(SystemImageTrap::from_bytes(bytes)),
            256 => Self::MKey(MKeyTrap::from_bytes(bytes)),
            257 | 258 => Self::Key(KeyTrap::from_bytes(bytes)),
            259 => Self::SwitchPKey(SwitchPKeyTrap::from_bytes(bytes)),
            _ => return None,
        })
    }

    /// As they go into a notice.
    pub fn to_bytes(&self) -> [u8; 54] {
        match self {
            Self::Gid(details) => details.to_bytes(),
            Self::Switch(details) => details.to_bytes(),
            Self::Port(details) => details.to_bytes(),
            Self::LocalChanges(details) => details.to_bytes(),
            Self::SystemImage(details) => details.to_bytes(),
            Self::MKey(details) => details.to_bytes(),
            Self::Key(details) => details.to_bytes(),
            Self::SwitchPKey(details) => details.to_bytes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::mad::layout::property::round_trip_tests;
    use crate::wire::mad::{Notice, ProducerType};

    round_trip_tests!(
        GidTrap,
        SwitchTrap,
        PortTrap,
        LocalChangesTrap,
        SystemImageTrap,
        MKeyTrap,
        KeyTrap,
        SwitchPKeyTrap,
    );

    /// The notice of trap `number`, of which the bytes at each offset are given; the rest are zeros.
    fn lies(number: u16, details: TrapDetails, places: &[(usize, &[u8])]) {
        let notice = Notice::new(TrapNumber(number), ProducerType::CA, Lid(5), &details);
        let mut bytes = [0; 64];
        bytes[..10].copy_from_slice(&notice.to_bytes()[..10]);
        for (at, place) in places {
            bytes[*at..at + place.len()].copy_from_slice(place);
        }
        assert_eq!(notice.to_bytes(), bytes);
        assert_eq!(Notice::from_bytes(&bytes).trap(), Some(details));
    }

    /// protocols 3.10.2; offsets are those of its table, inside the notice.
    #[test]
    fn the_details_of_every_trap_lie_as_the_table_says() {
        let gid = Gid(core::array::from_fn(|i| 0x10 + i as u8));
        let other = Gid(core::array::from_fn(|i| 0x30 + i as u8));
        for number in 64..68 {
            lies(number, TrapDetails::Gid(GidTrap { gid }), &[(16, &gid.0)]);
        }
        let lid = Lid(0x0123);
        lies(
            128,
            TrapDetails::Switch(SwitchTrap { lid }),
            &[(10, &[1, 0x23])],
        );
        for number in 129..132 {
            let port = TrapDetails::Port(PortTrap { lid, port: 7 });
            lies(number, port, &[(12, &[1, 0x23, 7])]);
        }
        let changes = LocalChangesTrap {
            lid,
            other_local_changes: true,
            capability: Capability::SM,
            changes: ChangeFlags::NODE_DESCRIPTION | ChangeFlags::CAPABILITY2,
            capability2: Capability2::NDR,
        };
        let bytes = [1, 0x23, 0, 1, 0, 0, 0, 2, 0, 0x21, 4, 0];
        lies(144, TrapDetails::LocalChanges(changes), &[(12, &bytes)]);
        let image = SystemImageTrap {
            lid,
            sys_image_guid: Guid(0x0102_0304_0506_0708),
        };
        let places: [(_, &[u8]); 2] = [(12, &[1, 0x23]), (16, &[1, 2, 3, 4, 5, 6, 7, 8])];
        lies(145, TrapDetails::SystemImage(image), &places);
        let m_key = MKeyTrap {
            lid,
            dr_slid: Lid::PERMISSIVE,
            method: Method::SET,
            attribute: AttributeId::PORT_INFO,
            modifier: 0x0405_0607,
            m_key: MKey(0x0102_0304_0506_0708),
            dr_notice: true,
            dr_path_truncated: false,
            dr_hop_count: 2,
            return_path: core::array::from_fn(|i| i as u8),
        };
        let places: [(_, &[u8]); 3] = [
            (12, &[1, 0x23, 0xff, 0xff, 2, 0, 0, 0x15, 4, 5, 6, 7]),
            (24, &[1, 2, 3, 4, 5, 6, 7, 8, 0, 0x82]),
            (34, &m_key.return_path),
        ];
        lies(256, TrapDetails::MKey(m_key), &places);
        let key = KeyTrap {
            lid1: lid,
            lid2: Lid(0x0456),
            key: 0x8001_0000,
            sl: Sl::new(9),
            qp1: Qpn::new(0x01_0203),
            qp2: Qpn::new(0x04_0506),
            gid1: gid,
            gid2: other,
        };
        let head = [1, 0x23, 4, 0x56, 0x80, 1, 0, 0, 0x90, 1, 2, 3, 0, 4, 5, 6];
        let places: [(_, &[u8]); 3] = [(12, &head), (28, &gid.0), (44, &other.0)];
        lies(257, TrapDetails::Key(key), &places);
        lies(258, TrapDetails::Key(key), &places);
        let p_key = SwitchPKeyTrap {
            data_valid: 0x0f0e,
            lid1: lid,
            lid2: Lid(0x0456),
            p_key: PKey(0x8003),
            sl: Sl::new(9),
            qp1: Qpn::new(0x01_0203),
            qp2: Qpn::new(0x04_0506),
            gid1: gid,
            gid2: other,
            switch_lid: Lid(0x0789),
            port: 0x22,
        };
        let head = [
            0xf, 0xe, 1, 0x23, 4, 0x56, 0x80, 3, 0x90, 1, 2, 3, 0, 4, 5, 6,
        ];
        let tail = [7, 0x89, 0x22];
        let places: [(_, &[u8]); 4] = [(10, &head), (26, &gid.0), (42, &other.0), (58, &tail)];
        lies(259, TrapDetails::SwitchPKey(p_key), &places);
    }

    #[test]
    fn a_trap_without_a_layout_has_no_details() {
        for number in [0, 63, 68, 69, 127, 132, 146, 260, 0xffff] {
            assert_eq!(TrapDetails::from_bytes(TrapNumber(number), &[0; 54]), None);
        }
    }
}
