//! Event queue context. infinihost 4.2.

number_set! {
    /// State of an EQ, as its context holds it. T-mode looks at the low two bits alone.
    pub struct EqState(u8) {
        /// T: the next event interrupts.
        ARMED = 1;
        /// T: has interrupted; armed anew by doorbell.
        FIRED = 2;
        /// T: every event interrupts.
        ALWAYS_ARMED = 3;
        /// M: the next event interrupts.
        M_ARMED = 9;
        /// M: has interrupted.
        M_FIRED = 10;
        /// M: every event interrupts.
        M_ALWAYS_ARMED = 11;
    }
}

number_set! {
    /// Status of an EQ or a CQ, as its context holds it.
    pub struct QueueStatus(u8) {
        /// Good.
        OK = 0;
        /// No room.
        OVERFLOW = 9;
        /// The ring could not be written.
        WRITE_FAILURE = 10;
    }
}

layout! {
    /// Context of an EQ, as in the mailboxes of SW2HW_EQ, HW2SW_EQ and QUERY_EQ.
    pub struct EqContext[64] {
        /// Status.
        status / set_status: QueueStatus = bits(0x00, 31, 28);
        /// 0 software, 1 hardware; ignored on input.
        owner / set_owner: u8 = bits(0x00, 27, 24);
        /// The start address goes through the key.
        translate / set_translate: bool = bits(0x00, 18, 18);
        /// Overrun is not noticed.
        ignore_overrun / set_ignore_overrun: bool = bits(0x00, 17, 17);
        /// State.
        state / set_state: EqState = bits(0x00, 11, 8);
        /// First byte of the ring: virtual with `translate`, else a bus address.
        start_address / set_start_address: u64 = quad(0x04);
        /// Logarithm of the number of entries.
        log_size / set_log_size: u8 = bits(0x0c, 28, 24);
        /// T: UAR page that may ring for it.
        uar_page / set_uar_page: u32 = bits(0x0c, 23, 0);
        /// T: protection domain.
        pd / set_pd: u32 = bits(0x10, 23, 0);
        /// Where interrupts go; see [`EqContext::MSIX`].
        intr / set_intr: u8 = bits(0x14, 7, 0);
        /// M: protection domain. T: lost events.
        m_pd / set_m_pd: u32 = bits(0x18, 23, 0);
        /// Key of the ring.
        lkey / set_lkey: u32 = bits(0x1c, 31, 0);
        /// Consumer index.
        consumer_index / set_consumer_index: u32 = bits(0x28, 31, 0);
        /// Producer index.
        producer_index / set_producer_index: u32 = bits(0x2c, 31, 0);
    }
}

impl EqContext {
    /// `intr` of message n is this plus n; below 64 it is the interrupt pin.
    pub const MSIX: u8 = 0x80;
    /// T: no interrupt.
    pub const NO_INTERRUPT: u8 = 60;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::each_field_stands_where_its_row_says;
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    #[test]
    fn an_eq_as_linux_makes_it() {
        let mut context = EqContext::ZERO;
        context
            .set_owner(1)
            .set_translate(true)
            .set_state(EqState::ARMED)
            .set_log_size(8)
            .set_uar_page(2)
            .set_pd(0x40)
            .set_intr(EqContext::MSIX + 1)
            .set_lkey(0x1234_5678);
        let mut expected = [0; 64];
        expected[0..4].copy_from_slice(&[0x01, 0x04, 0x01, 0x00]);
        expected[0x0c..0x10].copy_from_slice(&[0x08, 0, 0, 2]);
        expected[0x13] = 0x40;
        expected[0x17] = 0x81;
        expected[0x1c..0x20].copy_from_slice(&[0x12, 0x34, 0x56, 0x78]);
        assert_eq!(context.as_bytes(), expected);
    }

    #[test]
    fn the_start_address_is_not_aligned() {
        let mut context = EqContext::ZERO;
        context.set_start_address(0x0102_0304_0506_0708);
        assert_eq!(context.as_bytes()[4..12], [1, 2, 3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn an_m_mode_eq_has_its_domain_at_0x18_and_other_numbers_for_its_states() {
        let mut context = EqContext::ZERO;
        context
            .set_translate(true)
            .set_state(EqState::M_ARMED)
            .set_log_size(17)
            .set_m_pd(0x12_3456)
            .set_intr(31)
            .set_consumer_index(0x0102_0304)
            .set_producer_index(0x0506_0708);
        let mut expected = [0; 64];
        expected[0..4].copy_from_slice(&[0, 0x04, 0x09, 0]);
        (expected[0x0c], expected[0x17]) = (17, 31);
        expected[0x18..0x1c].copy_from_slice(&[0, 0x12, 0x34, 0x56]);
        expected[0x28..0x30].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(context.as_bytes(), expected);
        assert_eq!(context.set_state(EqState::M_FIRED).as_bytes()[2], 0x0a);
    }

    proptest! {
        #[test]
        fn every_field_stands_alone(bytes: [u8; 64]) {
            each_field_stands_where_its_row_says::<EqContext>(&bytes, &[]);
        }
    }
}
