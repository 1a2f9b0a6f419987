//! The attributes of diagnosis, and one of a vendor's. protocols 3.8.13, 3.8.14.

use super::AttributeId;
use super::layout::{layout, number};
use bitflags::bitflags;

layout! {
    /// What a vendor says of a node; the modifier is the index. protocols 3.8.13.
    pub struct VendorDiag, VendorDiagView: 64, AttributeId::VENDOR_DIAG;
    /// The next index that there is.
    next_index: u16 = 0,
    /// The vendor's.
    data: [u8; 62] = 2,
}

layout! {
    /// The beacon of a port. protocols 3.8.13.
    pub struct LedInfo, LedInfoView: 64, AttributeId::LED_INFO;
    /// LedMask: it is on.
    on: bool = 0 [7:7],
}

bitflags! {
    /// Speeds that only Mellanox has. protocols 3.8.14.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct MlnxLinkSpeed: u8 {
        /// 10.3125 Gbit/s with 64/66 coding.
        const FDR10 = 1;
    }
}

number! {
    MlnxLinkSpeed, 1, |bits| Self::from_bits_retain(bits as u8), |speed| speed.bits().into();
}

layout! {
    /// More of a port of Mellanox. protocols 3.8.14.
    pub struct ExtendedPortInfo, ExtendedPortInfoView: 64, AttributeId::MLNX_EXTENDED_PORT_INFO;
    /// StateChangeEnable.
    state_change_enable: u8 = 3,
    /// LinkSpeedSupported.
    link_speed_supported: MlnxLinkSpeed = 7,
    /// LinkSpeedEnabled.
    link_speed_enabled: MlnxLinkSpeed = 11,
    /// LinkSpeedActive.
    link_speed_active: MlnxLinkSpeed = 15,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::mad::layout::property::round_trip_tests;

    round_trip_tests!(VendorDiag, LedInfo, ExtendedPortInfo);

    /// protocols 3.8.13, 3.8.14.
    #[test]
    fn the_attributes_of_diagnosis_lie_as_the_tables_say() {
        let mut diag = VendorDiag::from_bytes(&[0; 64]);
        diag.next_index = 0x0102;
        diag.data[0] = 0x33;
        assert_eq!(diag.to_bytes()[..4], [1, 2, 0x33, 0]);
        assert_eq!(LedInfo { on: true }.to_bytes()[..2], [0x80, 0]);
        let info = ExtendedPortInfo {
            state_change_enable: 4,
            link_speed_supported: MlnxLinkSpeed::FDR10,
            link_speed_enabled: MlnxLinkSpeed::from_bits_retain(3),
            link_speed_active: MlnxLinkSpeed::empty(),
        };
        let bytes = info.to_bytes();
        assert_eq!(
            bytes[..16],
            [0, 0, 0, 4, 0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0, 0]
        );
        assert_eq!(bytes[16..], [0; 48]);
    }
}
