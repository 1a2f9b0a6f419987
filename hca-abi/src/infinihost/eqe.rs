//! Event queue entry (EQE): 32 bytes that the HCA writes into an EQ. infinihost 4.3.

number_set! {
    /// Kind of an event.
    pub struct EventType(u8) {
        /// A CQ that was armed got an entry.
        COMPLETION = 0x00;
        /// A QP migrated to its alternate path.
        PATH_MIGRATED = 0x01;
        /// First packet in RTR.
        COMM_ESTABLISHED = 0x02;
        /// The send queue has drained.
        SQ_DRAINED = 0x03;
        /// A CQ overran, or its memory could not be written.
        CQ_ERROR = 0x04;
        /// A work queue failed.
        WQ_CATASTROPHIC = 0x05;
        /// An EE context failed.
        EEC_CATASTROPHIC = 0x06;
        /// A QP could not migrate.
        PATH_MIGRATION_FAILED = 0x07;
        /// The HCA failed.
        LOCAL_CATASTROPHIC = 0x08;
        /// A port became active or went down.
        PORT_CHANGE = 0x09;
        /// A command posted with E = 1 has finished.
        COMMAND = 0x0a;
        /// Page fault on a work queue entry.
        WQE_PAGE_FAULT = 0x0b;
        /// Page fault that is not supported.
        UNSUPPORTED_PAGE_FAULT = 0x0c;
        /// An ECC error was detected.
        ECC_DETECT = 0x0e;
        /// An EQ is full.
        EQ_OVERFLOW = 0x0f;
        /// A responder refused an invalid request.
        WQ_INVALID_REQUEST = 0x10;
        /// A responder refused a remote access.
        WQ_ACCESS_VIOLATION = 0x11;
        /// An SRQ failed.
        SRQ_CATASTROPHIC = 0x12;
        /// A QP with an SRQ will take no more of its entries.
        LAST_WQE_REACHED = 0x13;
        /// An SRQ has fewer entries than its limit.
        SRQ_LIMIT = 0x14;
    }
}

impl EventType {
    /// Its bit in the mask of MAP_EQ; 0 for a type that has none.
    pub const fn mask(self) -> u64 {
        if self.0 < 64 { 1 << self.0 } else { 0 }
    }
}

number_set! {
    /// Sub-type of [`EventType::PORT_CHANGE`].
    pub struct PortChange(u8) {
        /// The port went down.
        DOWN = 1;
        /// The port became active.
        ACTIVE = 4;
    }
}

number_set! {
    /// Syndrome of [`EventType::CQ_ERROR`].
    pub struct CqSyndrome(u8) {
        /// No room.
        OVERRUN = 1;
        /// The ring could not be written.
        ACCESS_VIOLATION = 2;
    }
}

number_set! {
    /// Syndrome of [`EventType::LOCAL_CATASTROPHIC`].
    pub struct LocalSyndrome(u8) {
        /// An EQ overflowed.
        EQ_OVERFLOW = 1;
        /// A doorbell through the wrong UAR page.
        BAD_UAR_PAGE = 2;
        /// Uplink bus error.
        UPLINK = 3;
        /// DDR data error.
        DDR = 4;
        /// Internal parity error.
        PARITY = 5;
    }
}

layout! {
    /// One entry. Which fields count depends on [`event_type`](Self::event_type); numbers come from the device: look
    /// them up, never index with them.
    pub struct Eqe[32] {
        /// Kind.
        event_type / set_event_type: EventType = bits(0x00, 23, 16);
        /// Sub-type: [`PortChange`] of a port change.
        sub_type / set_sub_type: u8 = bits(0x00, 7, 0);
        /// Number of the QP, CQ, SRQ or EQ concerned.
        number / set_number: u32 = bits(0x04, 23, 0);
        /// Command: token.
        token / set_token: u16 = bits(0x04, 15, 0);
        /// QP events: it is a QP and not an EE context.
        is_qp / set_is_qp: bool = bits(0x0c, 28, 28);
        /// Port change: which port, 1 or 2.
        port / set_port: u8 = bits(0x0c, 29, 28);
        /// CQ error, local catastrophic: syndrome. Command: status.
        syndrome / set_syndrome: u8 = bits(0x0c, 7, 0);
        /// Command: immediate output.
        out_param / set_out_param: u64 = quad(0x10);
        /// The entry belongs to the HCA; nothing else in it may be read then.
        owned_by_hw / set_owned_by_hw: bool = bits(0x1c, 7, 7);
    }
}

impl Eqe {
    /// Offset of the byte that holds the owner bit.
    pub const OWNER: usize = 0x1f;
    /// That byte while the entry belongs to the HCA.
    pub const OWNER_HW: u8 = 0x80;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::each_field_stands_where_its_row_says;
    use proptest::prelude::*;
    use zerocopy::FromBytes;

    fn eqe(bytes: &[(usize, u8)]) -> Eqe {
        let mut raw = [0; 32];
        bytes.iter().for_each(|&(at, byte)| raw[at] = byte);
        Eqe::read_from_bytes(&raw).unwrap()
    }

    #[test]
    fn a_command_completion_has_token_status_and_result() {
        let command = eqe(&[
            (1, 0x0a),
            (6, 0xbe),
            (7, 0xef),
            (0xf, 0x22),
            (0x17, 0x40),
            (0x1f, 0),
        ]);
        assert_eq!(command.event_type(), EventType::COMMAND);
        assert_eq!(command.token(), 0xbeef);
        assert_eq!((command.syndrome(), command.out_param()), (0x22, 0x40));
        assert!(!command.owned_by_hw());
    }

    #[test]
    fn a_port_change_names_port_and_direction() {
        let change = eqe(&[(1, 0x09), (3, 4), (0xc, 0x20)]);
        assert_eq!(change.port(), 2);
        assert_eq!(PortChange(change.sub_type()), PortChange::ACTIVE);
    }

    #[test]
    fn the_owner_is_bit_7_of_the_last_byte() {
        assert!(eqe(&[(Eqe::OWNER, Eqe::OWNER_HW)]).owned_by_hw());
        assert!(!eqe(&[(Eqe::OWNER, 0x7f)]).owned_by_hw());
    }

    #[test]
    fn a_completion_names_a_24_bit_cq() {
        assert_eq!(
            eqe(&[(4, 0xff), (5, 0x12), (6, 0x34), (7, 0x56)]).number(),
            0x12_3456
        );
    }

    #[test]
    fn linux_masks() {
        // infinihost 4.3: async 0x343fe, with SRQ 0x1f43fe; command 0x400.
        use EventType as E;
        let mask = |types: &[E]| types.iter().fold(0, |mask, kind| mask | kind.mask());
        let some = [
            E::PATH_MIGRATED,
            E::COMM_ESTABLISHED,
            E::SQ_DRAINED,
            E::CQ_ERROR,
            E::WQ_CATASTROPHIC,
            E::EEC_CATASTROPHIC,
            E::PATH_MIGRATION_FAILED,
            E::LOCAL_CATASTROPHIC,
            E::PORT_CHANGE,
            E::ECC_DETECT,
            E::WQ_INVALID_REQUEST,
            E::WQ_ACCESS_VIOLATION,
        ];
        assert_eq!(mask(&some), 0x343fe);
        let srq = [E::SRQ_CATASTROPHIC, E::LAST_WQE_REACHED, E::SRQ_LIMIT];
        assert_eq!(mask(&some) | mask(&srq), 0x1f_43fe);
        assert_eq!((E::COMMAND.mask(), E(0xff).mask()), (0x400, 0));
    }

    proptest! {
        #[test]
        fn every_field_stands_alone(bytes: [u8; 32]) {
            each_field_stands_where_its_row_says::<Eqe>(&bytes, &["token", "port"]);
        }
    }
}
