//! Shared receive queue contexts. infinihost 4.8.

number_set! {
    /// State of an SRQ, as its context holds it.
    pub struct SrqState(u8) {
        /// The HCA owns it.
        HARDWARE = 0x0;
        /// It failed.
        ERROR = 0x1;
        /// Software owns it.
        SOFTWARE = 0xf;
    }
}

layout! {
    /// T-mode.
    pub struct SrqContext[32] {
        /// Upper half of the addresses of WQEs.
        wqe_base_high / set_wqe_base_high: u32 = bits(0x00, 31, 0);
        /// Output: next WQE.
        next_wqe / set_next_wqe: u32 = in_place32(0x04, 31, 6);
        /// Size of a WQE in 16-byte units.
        wqe_size / set_wqe_size: u8 = bits(0x04, 5, 0);
        /// State.
        state / set_state: SrqState = bits(0x08, 31, 28);
        /// Protection domain.
        pd / set_pd: u32 = bits(0x08, 23, 0);
        /// Key of the WQEs.
        lkey / set_lkey: u32 = bits(0x0c, 31, 0);
        /// UAR page that may ring for it.
        uar_page / set_uar_page: u32 = bits(0x10, 23, 0);
        /// Limit.
        limit / set_limit: u16 = bits(0x14, 31, 16);
        /// Output: WQEs posted.
        wqe_count / set_wqe_count: u16 = bits(0x14, 15, 0);
    }
}

layout! {
    /// M-mode.
    pub struct MSrqContext[48] {
        /// State.
        state / set_state: SrqState = bits(0x00, 31, 28);
        /// Logarithm of the number of WQEs.
        log_size / set_log_size: u8 = bits(0x00, 27, 24);
        /// Its number.
        srqn / set_srqn: u32 = bits(0x00, 23, 0);
        /// Key of the WQEs.
        lkey / set_lkey: u32 = bits(0x04, 31, 0);
        /// Doorbell record.
        record / set_record: u32 = bits(0x08, 31, 0);
        /// Logarithm of the stride, less 4.
        log_stride / set_log_stride: u8 = bits(0x0c, 31, 29);
        /// UAR page that may ring for it.
        uar_page / set_uar_page: u32 = bits(0x0c, 23, 0);
        /// Address of the first WQE, a multiple of 64.
        wqe_address / set_wqe_address: u64 = in_place(0x10, 63, 6);
        /// An EQ number to one driver, undefined to the manual; ignored.
        eqn / set_eqn: u8 = bits(0x18, 31, 24);
        /// Protection domain.
        pd / set_pd: u32 = bits(0x18, 23, 0);
        /// Limit.
        limit / set_limit: u16 = bits(0x1c, 31, 16);
        /// Output: WQEs posted.
        wqe_count / set_wqe_count: u16 = bits(0x1c, 15, 0);
        /// Output: WQE counter.
        wqe_counter / set_wqe_counter: u16 = bits(0x20, 15, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::each_field_stands_where_its_row_says;
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    #[test]
    fn the_t_mode_context_byte_by_byte() {
        let mut srq = SrqContext::ZERO;
        srq.set_wqe_size(4)
            .set_state(SrqState::SOFTWARE)
            .set_pd(0x41)
            .set_lkey(0x1122_3344);
        srq.set_uar_page(2).set_limit(0x0102).set_wqe_count(0x0304);
        let expected = [
            0, 0, 0, 0, 0, 0, 0, 4, 0xf0, 0, 0, 0x41, 0x11, 0x22, 0x33, 0x44, 0, 0, 0, 2, 1, 2, 3,
            4, 0, 0, 0, 0, 0, 0, 0, 0,
        ];
        assert_eq!(srq.as_bytes(), expected);
    }

    #[test]
    fn the_m_mode_context_byte_by_byte() {
        let mut srq = MSrqContext::ZERO;
        srq.set_log_size(7)
            .set_srqn(0x12)
            .set_lkey(1)
            .set_record(0x7fff)
            .set_log_stride(2);
        srq.set_uar_page(3).set_pd(0x41).set_limit(9);
        let bytes = srq.as_bytes();
        assert_eq!(
            bytes[..16],
            [7, 0, 0, 0x12, 0, 0, 0, 1, 0, 0, 0x7f, 0xff, 0x40, 0, 0, 3]
        );
        assert_eq!(bytes[0x18..0x20], [0, 0, 0, 0x41, 0, 9, 0, 0]);
    }

    #[test]
    fn the_m_mode_context_has_its_address_and_counters_where_published() {
        let mut srq = MSrqContext::ZERO;
        srq.set_wqe_address(0x0102_0304_0506_0740)
            .set_eqn(1)
            .set_pd(0x12_3456)
            .set_limit(0x0809)
            .set_wqe_count(0x0a0b)
            .set_wqe_counter(0x0c0d);
        let expected = [
            1, 2, 3, 4, 5, 6, 7, 0x40, 1, 0x12, 0x34, 0x56, 8, 9, 10, 11, 0, 0, 12, 13,
        ];
        assert_eq!(srq.as_bytes()[0x10..0x24], expected);
    }

    proptest! {
        #[test]
        fn every_field_stands_alone(bytes: [u8; 48]) {
            each_field_stands_where_its_row_says::<SrqContext>(&bytes[..32], &[]);
            each_field_stands_where_its_row_says::<MSrqContext>(&bytes, &[]);
        }
    }
}
