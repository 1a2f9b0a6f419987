//! Work queue entries: the segments that a descriptor is made of. infinihost 5.4 to 5.6.

number_set! {
    /// What a send WQE does. infinihost 5.3.
    pub struct WqeOpcode(u8) {
        /// Nothing; completes.
        NOP = 0x00;
        /// RDMA write.
        RDMA_WRITE = 0x08;
        /// RDMA write with immediate.
        RDMA_WRITE_IMM = 0x09;
        /// Send.
        SEND = 0x0a;
        /// Send with immediate.
        SEND_IMM = 0x0b;
        /// RDMA read.
        RDMA_READ = 0x10;
        /// Compare and swap.
        ATOMIC_CS = 0x11;
        /// Fetch and add.
        ATOMIC_FA = 0x12;
        /// Bind a memory window.
        BIND = 0x18;
    }
}

/// Bytes that sizes of WQEs count in.
pub const UNIT: usize = 16;
/// Most units of one WQE: the field has 6 bits.
pub const MAX_UNITS: u8 = 63;
/// WQEs are aligned to this.
pub const ALIGN: usize = 64;
/// The key that ends a scatter list. infinihost 5.5.
pub const END_OF_LIST_LKEY: u32 = 0x100;

layout! {
    /// Next and control segment: the first 16 bytes of every WQE. The first eight describe the following WQE, the
    /// flags and the immediate this one.
    pub struct NextSegment[16] {
        /// Address of the following WQE, low 32 bits, a multiple of 64.
        nda / set_nda: u32 = in_place32(0x00, 31, 6);
        /// Opcode of the following WQE.
        next_opcode / set_next_opcode: WqeOpcode = bits(0x00, 4, 0);
        /// EE number of the following WQE (RD only).
        next_ee / set_next_ee: u32 = bits(0x04, 31, 8);
        /// The following WQE starts only after a doorbell.
        dbd / set_dbd: bool = bits(0x04, 7, 7);
        /// Fence the following WQE.
        fence / set_fence: bool = bits(0x04, 6, 6);
        /// Size of the following WQE in 16-byte units; 0 ends the chain.
        nds / set_nds: u8 = bits(0x04, 5, 0);
        /// Strong ordering (M).
        strong_order / set_strong_order: bool = bits(0x08, 7, 7);
        /// Compute the TCP or UDP checksum (M).
        l4_checksum / set_l4_checksum: bool = bits(0x08, 5, 5);
        /// Compute the IP checksum (M).
        ip_checksum / set_ip_checksum: bool = bits(0x08, 4, 4);
        /// Make a CQE.
        signaled / set_signaled: bool = bits(0x08, 3, 3);
        /// Make an event.
        event / set_event: bool = bits(0x08, 2, 2);
        /// Solicited event.
        solicited / set_solicited: bool = bits(0x08, 1, 1);
        /// Always set in a send WQE that is not MLX.
        always_one / set_always_one: bool = bits(0x08, 0, 0);
        /// The dword of flags.
        flags / set_flags: u32 = bits(0x08, 31, 0);
        /// Immediate data in wire order.
        immediate / set_immediate: u32 = bits(0x0c, 31, 0);
    }
}

/// The dwords of a [`NextSegment`], for those who write it dword by dword.
pub mod next {
    /// Offset of nda and next opcode.
    pub const NDA: usize = 0x00;
    /// Offset of EE, DBD, fence and nds.
    pub const NDS: usize = 0x04;
    /// Offset of the flags.
    pub const FLAGS: usize = 0x08;
    /// Offset of the immediate.
    pub const IMMEDIATE: usize = 0x0c;
    /// DBD in the dword at [`NDS`].
    pub const DBD: u32 = 1 << 7;
    /// Fence in the dword at [`NDS`].
    pub const FENCE: u32 = 1 << 6;
    /// The TCP or UDP checksum in the dword at [`FLAGS`] (M).
    pub const L4_CHECKSUM: u32 = 1 << 5;
    /// The IP checksum in the dword at [`FLAGS`] (M).
    pub const IP_CHECKSUM: u32 = 1 << 4;
    /// C in the dword at [`FLAGS`].
    pub const SIGNALED: u32 = 1 << 3;
    /// S in the dword at [`FLAGS`].
    pub const SOLICITED: u32 = 1 << 1;
    /// Bit 0 of the dword at [`FLAGS`].
    pub const ALWAYS_ONE: u32 = 1;
}

layout! {
    /// The same 16 bytes of a WQE of QP0 or QP1. infinihost 5.9.
    pub struct MlxNextSegment[16] {
        /// Address of the following WQE, low 32 bits.
        nda / set_nda: u32 = in_place32(0x00, 31, 6);
        /// Opcode of the following WQE.
        next_opcode / set_next_opcode: WqeOpcode = bits(0x00, 4, 0);
        /// The following WQE starts only after a doorbell.
        dbd / set_dbd: bool = bits(0x04, 7, 7);
        /// Fence the following WQE.
        fence / set_fence: bool = bits(0x04, 6, 6);
        /// Size of the following WQE; 0 ends the chain.
        nds / set_nds: u8 = bits(0x04, 5, 0);
        /// Send on VL15.
        vl15 / set_vl15: bool = bits(0x08, 17, 17);
        /// The source LID is exactly that of the header.
        slr / set_slr: bool = bits(0x08, 16, 16);
        /// Static rate.
        static_rate / set_static_rate: u8 = bits(0x08, 15, 12);
        /// Service level.
        sl / set_sl: u8 = bits(0x08, 11, 8);
        /// 0: compute the ICRC; 3: send the last dword as it is.
        icrc / set_icrc: u8 = bits(0x08, 5, 4);
        /// Make a CQE.
        signaled / set_signaled: bool = bits(0x08, 3, 3);
        /// Make an event.
        event / set_event: bool = bits(0x08, 2, 2);
        /// Destination LID, as in the header.
        dlid / set_dlid: u16 = bits(0x0c, 31, 16);
        /// VCRC; 0: computed.
        vcrc / set_vcrc: u16 = bits(0x0c, 15, 0);
    }
}

layout! {
    /// Pointer to memory: gather or scatter entry.
    pub struct DataSegment[16] {
        /// The segment is inline data.
        inline / set_inline: bool = bits(0x00, 31, 31);
        /// Bytes.
        byte_count / set_byte_count: u32 = bits(0x00, 30, 0);
        /// Key.
        lkey / set_lkey: u32 = bits(0x04, 31, 0);
        /// Address.
        address / set_address: u64 = quad(0x08);
    }
}

impl DataSegment {
    /// An entry.
    #[inline]
    pub const fn new(byte_count: u32, lkey: u32, address: u64) -> Self {
        let mut segment = Self::ZERO;
        segment
            .set_byte_count(byte_count)
            .set_lkey(lkey)
            .set_address(address);
        segment
    }

    /// What ends a scatter list.
    pub const END_OF_LIST: Self = Self::new(0, END_OF_LIST_LKEY, 0);
}

/// Bit 31 of the first dword of an inline segment; the bytes that follow it are counted in the low bits.
pub const INLINE: u32 = 1 << 31;

layout! {
    /// Memory of the peer.
    pub struct RemoteAddressSegment[16] {
        /// Address.
        address / set_address: u64 = quad(0x00);
        /// Key.
        rkey / set_rkey: u32 = bits(0x08, 31, 0);
    }
}

layout! {
    /// Operands of an atomic.
    pub struct AtomicSegment[16] {
        /// What to swap in, or to add.
        swap_add / set_swap_add: u64 = quad(0x00);
        /// What to compare with; 0 for fetch and add.
        compare / set_compare: u64 = quad(0x08);
    }
}

layout! {
    /// Bind of a memory window.
    pub struct BindSegment[32] {
        /// Remote atomics.
        remote_atomic / set_remote_atomic: bool = bits(0x00, 31, 31);
        /// Remote write.
        remote_write / set_remote_write: bool = bits(0x00, 30, 30);
        /// Remote read.
        remote_read / set_remote_read: bool = bits(0x00, 29, 29);
        /// M: type 2.
        type2 / set_type2: bool = bits(0x04, 31, 31);
        /// M: addresses count from 0.
        zero_based / set_zero_based: bool = bits(0x04, 30, 30);
        /// New key of the window.
        rkey / set_rkey: u32 = bits(0x08, 31, 0);
        /// Key of the region.
        lkey / set_lkey: u32 = bits(0x0c, 31, 0);
        /// First byte.
        start / set_start: u64 = quad(0x10);
        /// Bytes.
        length / set_length: u64 = quad(0x18);
    }
}

layout! {
    /// Datagram segment, T-mode: the address vector is elsewhere.
    pub struct UdSegment[48] {
        /// Key of the address vector.
        lkey / set_lkey: u32 = bits(0x04, 31, 0);
        /// Address of the address vector.
        av_address / set_av_address: u64 = quad(0x08);
        /// Destination QP.
        dest_qpn / set_dest_qpn: u32 = bits(0x20, 23, 0);
        /// Q_Key; bit 31 set: the QP's own.
        q_key / set_q_key: u32 = bits(0x24, 31, 0);
    }
}

/// The dwords of a [`UdSegment`], for those who write it dword by dword; all others are zero.
pub mod ud {
    /// Offset of the key of the address vector.
    pub const LKEY: usize = 0x04;
    /// Offset of the upper half of the address of the address vector.
    pub const AV_ADDRESS_HIGH: usize = 0x08;
    /// Offset of the lower half.
    pub const AV_ADDRESS_LOW: usize = 0x0c;
    /// Offset of the destination QP.
    pub const DEST_QPN: usize = 0x20;
    /// Offset of the Q_Key.
    pub const Q_KEY: usize = 0x24;
}

layout! {
    /// The part of an M-mode datagram segment that follows the address vector.
    pub struct MUdTail[16] {
        /// Destination QP.
        dest_qpn / set_dest_qpn: u32 = bits(0x00, 23, 0);
        /// Q_Key; bit 31 set: the QP's own.
        q_key / set_q_key: u32 = bits(0x04, 31, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::each_field_stands_where_its_row_says;
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    #[test]
    fn a_control_segment_byte_by_byte() {
        let mut next = NextSegment::ZERO;
        next.set_nda(0x1040)
            .set_next_opcode(WqeOpcode::SEND)
            .set_dbd(true)
            .set_nds(3);
        next.set_signaled(true)
            .set_solicited(true)
            .set_always_one(true)
            .set_immediate(0x0102_0304);
        let expected = [0, 0, 0x10, 0x4a, 0, 0, 0, 0x83, 0, 0, 0, 0x0b, 1, 2, 3, 4];
        assert_eq!(next.as_bytes(), expected);
        assert_eq!(
            next.flags(),
            next::SIGNALED | next::SOLICITED | next::ALWAYS_ONE
        );
    }

    #[test]
    fn the_control_segment_of_a_special_qp_byte_by_byte() {
        let mut next = MlxNextSegment::ZERO;
        next.set_vl15(true)
            .set_slr(true)
            .set_sl(2)
            .set_signaled(true)
            .set_dlid(0xffff);
        assert_eq!(next.as_bytes()[8..], [0, 3, 2, 8, 0xff, 0xff, 0, 0]);
    }

    #[test]
    fn a_scatter_list_ends_with_a_key_of_its_own() {
        let expected = [0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(DataSegment::END_OF_LIST.as_bytes(), expected);
        let data = DataSegment::new(0x28, 0x12345678, 0x1_0000_2000);
        let expected = [
            0, 0, 0, 0x28, 0x12, 0x34, 0x56, 0x78, 0, 0, 0, 1, 0, 0, 0x20, 0,
        ];
        assert_eq!(data.as_bytes(), expected);
    }

    #[test]
    fn the_other_segments_byte_by_byte() {
        let mut ud = UdSegment::ZERO;
        ud.set_lkey(0x11223344)
            .set_av_address(0x5566_7788_99aa_bbcc);
        ud.set_dest_qpn(0x404).set_q_key(0x8001_0000);
        let bytes = ud.as_bytes();
        assert_eq!(
            bytes[4..16],
            [
                0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc
            ]
        );
        assert_eq!(bytes[0x20..0x28], [0, 0, 4, 4, 0x80, 1, 0, 0]);
        let word = |offset: usize| u32::from_be_bytes(bytes[offset..][..4].try_into().unwrap());
        let words = [ud::LKEY, ud::AV_ADDRESS_HIGH, ud::AV_ADDRESS_LOW];
        assert_eq!(words.map(word), [0x1122_3344, 0x5566_7788, 0x99aa_bbcc]);
        assert_eq!([ud::DEST_QPN, ud::Q_KEY].map(word), [0x404, 0x8001_0000]);
        let mut remote = RemoteAddressSegment::ZERO;
        remote.set_address(1).set_rkey(2);
        assert_eq!(
            remote.as_bytes(),
            [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0]
        );
        let mut atomic = AtomicSegment::ZERO;
        atomic.set_swap_add(1).set_compare(2);
        assert_eq!(
            atomic.as_bytes(),
            [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2]
        );
        let mut bind = BindSegment::ZERO;
        bind.set_remote_write(true)
            .set_rkey(1)
            .set_lkey(2)
            .set_start(3)
            .set_length(4);
        let mut expected = [0; 32];
        (
            expected[0],
            expected[0xb],
            expected[0xf],
            expected[0x17],
            expected[0x1f],
        ) = (0x40, 1, 2, 3, 4);
        assert_eq!(bind.as_bytes(), expected);
    }

    proptest! {
        #[test]
        fn every_field_stands_alone(bytes: [u8; 48]) {
            each_field_stands_where_its_row_says::<NextSegment>(&bytes[..16], &["flags"]);
            each_field_stands_where_its_row_says::<MlxNextSegment>(&bytes[..16], &[]);
            each_field_stands_where_its_row_says::<DataSegment>(&bytes[..16], &[]);
            each_field_stands_where_its_row_says::<RemoteAddressSegment>(&bytes[..16], &[]);
            each_field_stands_where_its_row_says::<AtomicSegment>(&bytes[..16], &[]);
            each_field_stands_where_its_row_says::<BindSegment>(&bytes[..32], &[]);
            each_field_stands_where_its_row_says::<UdSegment>(&bytes, &[]);
            each_field_stands_where_its_row_says::<MUdTail>(&bytes[..16], &[]);
        }
    }
}
