//! Address vector. infinihost 4.10.

layout! {
    /// Where a datagram goes.
    pub struct AddressVector[32] {
        /// Port, 1 or 2.
        port / set_port: u8 = bits(0x00, 25, 24);
        /// Protection domain.
        pd / set_pd: u32 = bits(0x00, 23, 0);
        /// The packet has a GRH.
        grh / set_grh: bool = bits(0x04, 23, 23);
        /// Low bits of the source LID.
        path_bits / set_path_bits: u8 = bits(0x04, 22, 16);
        /// Destination LID.
        dlid / set_dlid: u16 = bits(0x04, 15, 0);
        /// Index into the GID tables of all ports: (port - 1) * table length + index.
        gid_index / set_gid_index: u8 = bits(0x08, 21, 16);
        /// Maximum message size: 256 * 2^n.
        message_size / set_message_size: u8 = bits(0x08, 13, 12);
        /// Static rate code.
        static_rate / set_static_rate: u8 = bits(0x08, 10, 8);
        /// Hop limit.
        hop_limit / set_hop_limit: u8 = bits(0x08, 7, 0);
        /// Service level.
        sl / set_sl: u8 = bits(0x0c, 31, 28);
        /// Traffic class.
        traffic_class / set_traffic_class: u8 = bits(0x0c, 27, 20);
        /// Flow label.
        flow_label / set_flow_label: u32 = bits(0x0c, 19, 0);
        /// Destination GID.
        dgid / set_dgid: [u8; 16] = raw(0x10);
        /// Last dword of the GID: [`AddressVector::NO_GRH`] where there is no GRH.
        dgid_last / set_dgid_last: u32 = bits(0x1c, 31, 0);
    }
}

impl AddressVector {
    /// What Arbel wants in the last dword of the GID of a vector without a GRH.
    pub const NO_GRH: u32 = 2;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::each_field_stands_where_its_row_says;
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    #[test]
    fn a_vector_byte_by_byte() {
        let mut av = AddressVector::ZERO;
        av.set_port(2)
            .set_pd(0x41)
            .set_grh(true)
            .set_path_bits(1)
            .set_dlid(0xc001);
        av.set_gid_index(33)
            .set_message_size(3)
            .set_static_rate(1)
            .set_hop_limit(64);
        av.set_sl(5)
            .set_traffic_class(0xab)
            .set_flow_label(0x1_2345);
        av.set_dgid([0xff; 16]);
        let expected = [
            2, 0, 0, 0x41, 0, 0x81, 0xc0, 1, 0, 33, 0x31, 64, 0x5a, 0xb1, 0x23, 0x45,
        ];
        assert_eq!(av.as_bytes()[..16], expected);
        assert_eq!(av.as_bytes()[16..], [0xff; 16]);
    }

    proptest! {
        #[test]
        fn every_field_stands_alone(bytes: [u8; 32]) {
            each_field_stands_where_its_row_says::<AddressVector>(&bytes, &["dgid_last"]);
        }
    }
}
