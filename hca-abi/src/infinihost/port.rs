//! Port commands: inputs of INIT_IB and SET_IB. infinihost 3.9.

layout! {
    /// Input of INIT_IB.
    pub struct InitIb[256] {
        /// Take the system image GUID.
        set_system_image / set_set_system_image: bool = bits(0x00, 18, 18);
        /// Take the node GUID.
        set_node / set_set_node: bool = bits(0x00, 17, 17);
        /// Take GUID 0 of the port.
        set_guid0 / set_set_guid0: bool = bits(0x00, 16, 16);
        /// MTU capability code.
        mtu / set_mtu: u8 = bits(0x00, 15, 12);
        /// Port width capability.
        port_width / set_port_width: u8 = bits(0x00, 11, 8);
        /// Virtual lanes.
        vls / set_vls: u8 = bits(0x00, 7, 4);
        /// GIDs.
        max_gids / set_max_gids: u16 = bits(0x04, 15, 0);
        /// P_Keys.
        max_pkeys / set_max_pkeys: u16 = bits(0x08, 15, 0);
        /// GUID 0 of the port.
        guid0 / set_guid0_value: u64 = quad(0x10);
        /// Node GUID.
        node_guid / set_node_guid: u64 = quad(0x18);
        /// System image GUID.
        system_image_guid / set_system_image_guid: u64 = quad(0x20);
    }
}

layout! {
    /// Input of SET_IB.
    pub struct SetIb[64] {
        /// Take the system image GUID.
        set_system_image / set_set_system_image: bool = bits(0x00, 18, 18);
        /// Reset the Q_Key violation counter.
        reset_qkey_counter / set_reset_qkey_counter: bool = bits(0x00, 0, 0);
        /// The whole new capability mask of PortInfo.
        capability_mask / set_capability_mask: u32 = bits(0x04, 31, 0);
        /// System image GUID.
        system_image_guid / set_system_image_guid: u64 = quad(0x08);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::each_field_stands_where_its_row_says;
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    #[test]
    fn init_ib_byte_by_byte() {
        let mut init = InitIb::ZERO;
        init.set_mtu(4)
            .set_port_width(3)
            .set_vls(8)
            .set_max_gids(32)
            .set_max_pkeys(64);
        init.set_set_guid0(true)
            .set_guid0_value(0x0002_c900_0000_0001);
        assert_eq!(
            init.as_bytes()[..12],
            [0, 1, 0x43, 0x80, 0, 0, 0, 32, 0, 0, 0, 64]
        );
        assert_eq!(init.as_bytes()[0x10..0x18], [0, 2, 0xc9, 0, 0, 0, 0, 1]);
    }

    #[test]
    fn set_ib_byte_by_byte() {
        let mut set = SetIb::ZERO;
        set.set_reset_qkey_counter(true)
            .set_capability_mask(0x0251_0a6a)
            .set_system_image_guid(7);
        assert_eq!(
            set.as_bytes()[..16],
            [0, 0, 0, 1, 2, 0x51, 0x0a, 0x6a, 0, 0, 0, 0, 0, 0, 0, 7]
        );
    }

    proptest! {
        #[test]
        fn every_field_stands_alone(bytes in proptest::collection::vec(any::<u8>(), 256)) {
            each_field_stands_where_its_row_says::<InitIb>(&bytes, &[]);
            each_field_stands_where_its_row_says::<SetIb>(&bytes[..64], &[]);
        }
    }
}
