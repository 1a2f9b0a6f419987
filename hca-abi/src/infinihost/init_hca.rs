//! Input of INIT_HCA, output of QUERY_HCA: where the tables are and how large. infinihost 3.8.

layout! {
    /// The parameters. A base shares its last dword with the count that follows it: the low bits of a base are zero.
    pub struct InitHca[512] {
        /// Sinai: memory-key throughput optimisation.
        sinai_key_optimisation / set_sinai_key_optimisation: bool = bits(0x0c, 0, 0);
        /// M: check the checksum of received packets with a pseudo header.
        receive_pseudo_header / set_receive_pseudo_header: bool = bits(0x14, 5, 5);
        /// M: the same for sending.
        send_pseudo_header / set_send_pseudo_header: bool = bits(0x14, 4, 4);
        /// M: checksums enabled.
        checksum / set_checksum: bool = bits(0x14, 3, 3);
        /// T: address vectors are checked.
        ud_av_check / set_ud_av_check: bool = bits(0x14, 2, 2);
        /// The host is big-endian.
        big_endian_host / set_big_endian_host: bool = bits(0x14, 1, 1);
        /// The port in an address vector must be the QP's.
        ud_av_port_check / set_ud_av_port_check: bool = bits(0x14, 0, 0);
        /// QP contexts.
        qpc_base / set_qpc_base: u64 = in_place(0x30, 63, 7);
        /// Log of the QPs.
        log_qps / set_log_qps: u8 = bits(0x34, 4, 0);
        /// EE contexts.
        eec_base / set_eec_base: u64 = in_place(0x40, 63, 7);
        /// Log of the EE contexts.
        log_eecs / set_log_eecs: u8 = bits(0x44, 4, 0);
        /// SRQ contexts.
        srqc_base / set_srqc_base: u64 = in_place(0x48, 63, 5);
        /// Log of the SRQs.
        log_srqs / set_log_srqs: u8 = bits(0x4c, 4, 0);
        /// CQ contexts.
        cqc_base / set_cqc_base: u64 = in_place(0x50, 63, 6);
        /// Log of the CQs.
        log_cqs / set_log_cqs: u8 = bits(0x54, 4, 0);
        /// Extended QP contexts.
        eqpc_base / set_eqpc_base: u64 = quad(0x60);
        /// Extended EE contexts.
        eeec_base / set_eeec_base: u64 = quad(0x70);
        /// EQ contexts.
        eqc_base / set_eqc_base: u64 = in_place(0x80, 63, 6);
        /// Log of the EQs.
        log_eqs / set_log_eqs: u8 = bits(0x84, 3, 0);
        /// RDB.
        rdb_base / set_rdb_base: u64 = quad(0x90);
        /// T: key of the address vector table.
        ud_av_lkey / set_ud_av_lkey: u32 = bits(0xb0, 31, 0);
        /// T: the address vector table is translated.
        ud_av_translate / set_ud_av_translate: bool = bits(0xb4, 29, 29);
        /// T: PD of the address vector table.
        ud_av_pd / set_ud_av_pd: u32 = bits(0xb4, 23, 0);
        /// Multicast table.
        mc_base / set_mc_base: u64 = quad(0xc0);
        /// Log of the bytes of a multicast entry.
        log_mc_entry_size / set_log_mc_entry_size: u16 = bits(0xd0, 15, 0);
        /// Hash buckets of the multicast table.
        mc_hash_size / set_mc_hash_size: u32 = bits(0xd4, 16, 0);
        /// Hash function; 0 is the default.
        mc_hash_function / set_mc_hash_function: u8 = bits(0xd8, 26, 24);
        /// Log of the multicast entries, buckets included.
        log_mc_table_size / set_log_mc_table_size: u8 = bits(0xd8, 4, 0);
        /// Memory protection table.
        mpt_base / set_mpt_base: u64 = quad(0xf0);
        /// T: translation segments have 64 * 2^n bytes.
        mtt_segment_size / set_mtt_segment_size: u8 = bits(0xf8, 18, 16);
        /// Page-fault RNR timeout.
        page_fault_rnr_timeout / set_page_fault_rnr_timeout: u8 = bits(0xf8, 12, 8);
        /// Log of the MPT entries.
        log_mpts / set_log_mpts: u8 = bits(0xf8, 5, 0);
        /// Memory translation table.
        mtt_base / set_mtt_base: u64 = quad(0x100);
        /// QUERY_HCA: bus address of the UAR pages.
        uar_base / set_uar_base: u64 = in_place(0x120, 63, 20);
        /// M: log of the pages of a UAR context.
        log_uarc_pages / set_log_uarc_pages: u8 = bits(0x128, 21, 16);
        /// M: log of the UARs.
        log_uars / set_log_uars: u8 = bits(0x128, 11, 8);
        /// UAR pages have 4 KB * 2^n.
        uar_page_size / set_uar_page_size: u8 = bits(0x128, 7, 0);
        /// UAR scratch.
        uar_scratch_base / set_uar_scratch_base: u64 = quad(0x130);
        /// M: UAR contexts.
        uarc_base / set_uarc_base: u64 = quad(0x138);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::each_field_stands_where_its_row_says;
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    #[test]
    fn the_published_fragments() {
        // infinihost 13.5
        let mut init = InitHca::ZERO;
        init.set_ud_av_port_check(true)
            .set_qpc_base(0x2400_0000)
            .set_log_qps(16);
        init.set_cqc_base(0x2600_0000)
            .set_log_cqs(16)
            .set_eqc_base(0x2681_a000)
            .set_log_eqs(5);
        init.set_mc_base(0x2660_0000)
            .set_log_mc_entry_size(8)
            .set_mc_hash_size(4096);
        init.set_log_mc_table_size(13)
            .set_mpt_base(0x2580_0000)
            .set_log_mpts(17);
        init.set_mtt_base(0x2000_0000)
            .set_log_uarc_pages(6)
            .set_log_uars(11);
        init.set_uar_scratch_base(0x2680_0000);
        let dwords: &[(usize, u32)] = &[
            (0x14, 1),
            (0x30, 0),
            (0x34, 0x2400_0010),
            (0x50, 0),
            (0x54, 0x2600_0010),
            (0x80, 0),
            (0x84, 0x2681_a005),
            (0xc0, 0),
            (0xc4, 0x2660_0000),
            (0xd0, 8),
            (0xd4, 0x1000),
            (0xd8, 0x0d),
            (0xf0, 0),
            (0xf4, 0x2580_0000),
            (0xf8, 0x11),
            (0x100, 0),
            (0x104, 0x2000_0000),
            (0x128, 0x0006_0b00),
            (0x130, 0),
            (0x134, 0x2680_0000),
            (0x138, 0),
            (0x13c, 0),
        ];
        let mut expected = [0; 512];
        for &(at, dword) in dwords {
            expected[at..at + 4].copy_from_slice(&dword.to_be_bytes());
        }
        assert_eq!(init.as_bytes(), expected);
    }

    #[test]
    fn a_base_and_its_count_do_not_disturb_each_other() {
        let mut init = InitHca::ZERO;
        init.set_log_srqs(10).set_srqc_base(0x1_2681_0000);
        assert_eq!((init.log_srqs(), init.srqc_base()), (10, 0x1_2681_0000));
        assert_eq!(
            init.as_bytes()[0x48..0x50],
            [0, 0, 0, 1, 0x26, 0x81, 0, 0x0a]
        );
    }

    proptest! {
        #[test]
        fn every_field_stands_alone(bytes in proptest::collection::vec(any::<u8>(), 512)) {
            each_field_stands_where_its_row_says::<InitHca>(&bytes, &[]);
        }
    }
}
