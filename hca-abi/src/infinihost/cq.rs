//! Completion queue context. infinihost 4.4.

use super::eq::QueueStatus;

number_set! {
    /// State of a CQ, as its context holds it.
    pub struct CqState(u8) {
        /// T: no notification asked for.
        DISARMED = 0;
        /// T: armed for the next completion.
        ARMED = 1;
        /// T: armed for the next solicited completion or error.
        ARMED_SOLICITED = 4;
        /// M: armed for the next solicited completion or error.
        M_ARMED_SOLICITED = 6;
        /// M: armed for the next completion.
        M_ARMED = 9;
        /// Has notified.
        FIRED = 10;
    }
}

layout! {
    /// Context of a CQ, as in the mailboxes of SW2HW_CQ, HW2SW_CQ and QUERY_CQ.
    pub struct CqContext[64] {
        /// Status.
        status / set_status: QueueStatus = bits(0x00, 31, 28);
        /// T: the start address goes through the key. M: always so.
        translate / set_translate: bool = bits(0x00, 18, 18);
        /// Overrun is not noticed.
        ignore_overrun / set_ignore_overrun: bool = bits(0x00, 17, 17);
        /// State.
        state / set_state: CqState = bits(0x00, 11, 8);
        /// First byte of the ring.
        start_address / set_start_address: u64 = quad(0x04);
        /// Logarithm of the number of entries, at most 17.
        log_size / set_log_size: u8 = bits(0x0c, 28, 24);
        /// UAR page that may ring for it.
        uar_page / set_uar_page: u32 = bits(0x0c, 23, 0);
        /// T: EQ of errors.
        error_eqn / set_error_eqn: u8 = bits(0x10, 7, 0);
        /// EQ of completions.
        completion_eqn / set_completion_eqn: u8 = bits(0x14, 7, 0);
        /// Protection domain.
        pd / set_pd: u32 = bits(0x18, 23, 0);
        /// Key of the ring.
        lkey / set_lkey: u32 = bits(0x1c, 31, 0);
        /// Output.
        last_notified_index / set_last_notified_index: u32 = bits(0x20, 31, 0);
        /// Output.
        solicit_producer_index / set_solicit_producer_index: u32 = bits(0x24, 31, 0);
        /// Consumer index.
        consumer_index / set_consumer_index: u32 = bits(0x28, 31, 0);
        /// Producer index.
        producer_index / set_producer_index: u32 = bits(0x2c, 31, 0);
        /// Number of the CQ.
        cqn / set_cqn: u32 = bits(0x30, 23, 0);
        /// M: doorbell record of the consumer index.
        set_ci_record / set_set_ci_record: u32 = bits(0x34, 31, 0);
        /// M: doorbell record of arming.
        arm_record / set_arm_record: u32 = bits(0x38, 31, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::each_field_stands_where_its_row_says;
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    #[test]
    fn a_cq_byte_by_byte() {
        let mut context = CqContext::ZERO;
        context
            .set_translate(true)
            .set_log_size(7)
            .set_uar_page(3)
            .set_error_eqn(2)
            .set_completion_eqn(1)
            .set_pd(0x41)
            .set_lkey(0xaabb_ccdd)
            .set_cqn(0x85);
        let mut expected = [0; 64];
        expected[1] = 0x04;
        expected[0x0c] = 7;
        expected[0x0f] = 3;
        (expected[0x13], expected[0x17], expected[0x1b]) = (2, 1, 0x41);
        expected[0x1c..0x20].copy_from_slice(&[0xaa, 0xbb, 0xcc, 0xdd]);
        expected[0x33] = 0x85;
        assert_eq!(context.as_bytes(), expected);
    }

    #[test]
    fn an_m_mode_cq_names_its_records_behind_its_number() {
        let mut context = CqContext::ZERO;
        context
            .set_cqn(0x12_3456)
            .set_set_ci_record(0x7ffe)
            .set_arm_record(0x0102_0304);
        let expected = [
            0, 0x12, 0x34, 0x56, 0, 0, 0x7f, 0xfe, 1, 2, 3, 4, 0, 0, 0, 0,
        ];
        assert_eq!(context.as_bytes()[0x30..], expected);
        for (state, byte) in [
            (CqState::M_ARMED, 9),
            (CqState::M_ARMED_SOLICITED, 6),
            (CqState::FIRED, 10),
        ] {
            assert_eq!(context.set_state(state).as_bytes()[2], byte);
        }
    }

    proptest! {
        #[test]
        fn every_field_stands_alone(bytes: [u8; 64]) {
            each_field_stands_where_its_row_says::<CqContext>(&bytes, &[]);
        }
    }
}
