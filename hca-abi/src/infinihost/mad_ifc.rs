//! Input mailbox of MAD_IFC: a MAD, and how it arrived. infinihost 3.13.

layout! {
    /// What follows the MAD at offset 0x100, 256 bytes: counts if the opcode modifier says so
    /// ([`mad_ifc_flags::EXTENDED_INFO`](super::cmd::mad_ifc_flags::EXTENDED_INFO)).
    pub struct ExtendedInfo[256] {
        /// Local QP, 0 or 1.
        local_qpn / set_local_qpn: u32 = bits(0x00, 31, 0);
        /// Source QP.
        remote_qpn / set_remote_qpn: u32 = bits(0x08, 31, 0);
        /// Service level.
        sl / set_sl: u8 = bits(0x0c, 31, 28);
        /// A GRH was present.
        grh / set_grh: bool = bits(0x0c, 23, 23);
        /// Destination path bits.
        path_bits / set_path_bits: u8 = bits(0x0c, 22, 16);
        /// Source LID.
        slid / set_slid: u16 = bits(0x0c, 15, 0);
        /// P_Key index.
        pkey_index / set_pkey_index: u16 = bits(0x10, 15, 0);
    }
}

/// Offset of the GRH within [`ExtendedInfo`].
pub const GRH: usize = 0x40;

/// The whole mailbox.
#[derive(
    Clone,
    Copy,
    zerocopy::FromBytes,
    zerocopy::IntoBytes,
    zerocopy::KnownLayout,
    zerocopy::Immutable,
    zerocopy::Unaligned,
)]
#[repr(C)]
pub struct MadIfcInput {
    /// The request.
    pub mad: [u8; 256],
    /// How it arrived.
    pub info: ExtendedInfo,
}
static_assertions::const_assert_eq!(size_of::<MadIfcInput>(), 0x200);

impl MadIfcInput {
    /// A request of our own: nothing arrived.
    pub const fn local(mad: [u8; 256]) -> Self {
        Self {
            mad,
            info: ExtendedInfo::ZERO,
        }
    }

    /// Writes the GRH as received.
    pub fn set_grh(&mut self, grh: &[u8; 40]) {
        let info: &mut [u8; 256] = zerocopy::transmute_mut!(&mut self.info);
        if let Some((_, rest)) = info.split_first_chunk_mut::<GRH>()
            && let Some(place) = rest.first_chunk_mut::<40>()
        {
            *place = *grh;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::each_field_stands_where_its_row_says;
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    #[test]
    fn the_mailbox_byte_by_byte() {
        let mut input = MadIfcInput::local([0xaa; 256]);
        input
            .info
            .set_local_qpn(1)
            .set_remote_qpn(0x1234)
            .set_sl(3)
            .set_grh(true);
        input.info.set_path_bits(5).set_slid(0x17).set_pkey_index(2);
        input.set_grh(&[0x6b; 40]);
        let bytes = input.as_bytes();
        assert_eq!(bytes[0x100..0x104], [0, 0, 0, 1]);
        assert_eq!(
            bytes[0x108..0x114],
            [0, 0, 0x12, 0x34, 0x30, 0x85, 0, 0x17, 0, 0, 0, 2]
        );
        assert!(bytes[0x140..0x168].iter().all(|&byte| byte == 0x6b));
        assert_eq!((bytes[0xff], bytes[0x13f], bytes[0x168]), (0xaa, 0, 0));
    }

    proptest! {
        #[test]
        fn every_field_stands_alone(bytes in proptest::collection::vec(any::<u8>(), 256)) {
            each_field_stands_where_its_row_says::<ExtendedInfo>(&bytes, &[]);
        }
    }
}
