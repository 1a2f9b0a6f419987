//! Completion queue entry (CQE): 32 bytes that the HCA writes into a CQ. infinihost 4.5.

number_set! {
    /// Syndrome of an error CQE. infinihost 4.5.2.
    pub struct Syndrome(u8) {
        /// Message longer than the buffer.
        LOCAL_LENGTH = 0x01;
        /// Malformed request.
        LOCAL_QP_OPERATION = 0x02;
        /// Local EE context operation.
        LOCAL_EEC_OPERATION = 0x03;
        /// Local memory protection.
        LOCAL_PROTECTION = 0x04;
        /// Flushed.
        FLUSHED = 0x05;
        /// Window not bound.
        MW_BIND = 0x06;
        /// The response made no sense.
        BAD_RESPONSE = 0x10;
        /// Local target of a remote access.
        LOCAL_ACCESS = 0x11;
        /// The peer refused the request as invalid.
        REMOTE_INVALID_REQUEST = 0x12;
        /// The peer refused the access.
        REMOTE_ACCESS = 0x13;
        /// The peer could not finish.
        REMOTE_OPERATION = 0x14;
        /// No answer.
        RETRY_EXCEEDED = 0x15;
        /// The peer was never ready.
        RNR_RETRY_EXCEEDED = 0x16;
        /// Reliable datagram domain violation.
        LOCAL_RDD_VIOLATION = 0x20;
        /// Invalid reliable datagram request.
        REMOTE_INVALID_RD_REQUEST = 0x21;
        /// Aborted by the peer.
        REMOTE_ABORTED = 0x22;
        /// Invalid EE context number.
        INVALID_EECN = 0x23;
        /// Invalid EE context state.
        INVALID_EEC_STATE = 0x24;
    }
}

layout! {
    /// One entry: good, or, when [`Cqe::is_error`], what [`ErrorCqe`] says.
    pub struct Cqe[32] {
        /// Local QP. The whole dword: bits 31:24 are zero in a good entry.
        qpn / set_qpn: u32 = bits(0x00, 31, 0);
        /// Upper half of the checksum (M, receive).
        checksum_high / set_checksum_high: u8 = bits(0x04, 31, 24);
        /// Lower half of the checksum (M, receive).
        checksum_low / set_checksum_low: u8 = bits(0x08, 31, 24);
        /// Remote QP (UD receive).
        remote_qpn / set_remote_qpn: u32 = bits(0x08, 23, 0);
        /// Service level (UD receive).
        sl / set_sl: u8 = bits(0x0c, 31, 28);
        /// The IP header was verified (M, receive).
        ip_ok / set_ip_ok: bool = bits(0x0c, 24, 24);
        /// A GRH is present (UD receive).
        grh / set_grh: bool = bits(0x0c, 23, 23);
        /// Low bits of the destination LID (UD receive).
        path_bits / set_path_bits: u8 = bits(0x0c, 22, 16);
        /// Source LID (UD receive).
        slid / set_slid: u16 = bits(0x0c, 15, 0);
        /// Immediate data in wire order; QP1: P_Key index in the upper half.
        immediate / set_immediate: u32 = bits(0x10, 31, 0);
        /// Bytes received; UD: 40 more than the payload.
        byte_count / set_byte_count: u32 = bits(0x14, 31, 0);
        /// Address of the WQE, low 32 bits, a multiple of 64.
        wqe_address / set_wqe_address: u32 = in_place32(0x18, 31, 6);
        /// T: size of the WQE in 16-byte units.
        wqe_size / set_wqe_size: u8 = bits(0x18, 5, 0);
        /// Send: the WQE's opcode. Receive: opcode of the last packet. [`Cqe::ERROR_SEND`], [`Cqe::ERROR_RECEIVE`].
        opcode / set_opcode: u8 = bits(0x1c, 31, 24);
        /// Of the send queue; valid in good entries.
        is_send / set_is_send: bool = bits(0x1c, 23, 23);
        /// The entry belongs to the HCA; nothing else in it may be read then.
        owned_by_hw / set_owned_by_hw: bool = bits(0x1c, 7, 7);
    }
}

layout! {
    /// The same 32 bytes when they report an error.
    pub struct ErrorCqe[32] {
        /// Local QP.
        qpn / set_qpn: u32 = bits(0x00, 23, 0);
        /// What went wrong.
        syndrome / set_syndrome: Syndrome = bits(0x10, 31, 24);
        /// The vendor's own code.
        vendor_error / set_vendor_error: u8 = bits(0x10, 23, 16);
        /// T: doorbells that the chain from this WQE may still cross.
        doorbell_count / set_doorbell_count: u16 = bits(0x10, 15, 0);
        /// Address of the WQE, low 32 bits, a multiple of 64.
        wqe_address / set_wqe_address: u32 = in_place32(0x18, 31, 6);
        /// T: size of the WQE in 16-byte units.
        wqe_size / set_wqe_size: u8 = bits(0x18, 5, 0);
        /// [`Cqe::ERROR_SEND`] or [`Cqe::ERROR_RECEIVE`].
        opcode / set_opcode: u8 = bits(0x1c, 31, 24);
        /// The entry belongs to the HCA.
        owned_by_hw / set_owned_by_hw: bool = bits(0x1c, 7, 7);
    }
}

impl Cqe {
    /// `opcode` of an error on the send queue.
    pub const ERROR_SEND: u8 = 0xff;
    /// `opcode` of an error on the receive queue.
    pub const ERROR_RECEIVE: u8 = 0xfe;
    /// Offset of the byte that holds the owner bit.
    pub const OWNER: usize = 0x1f;
    /// That byte while the entry belongs to the HCA.
    pub const OWNER_HW: u8 = 0x80;

    /// Does it report an error?
    #[inline]
    pub const fn is_error(&self) -> bool {
        self.opcode() & 0xfe == 0xfe
    }

    /// M, receive: the checksums of an IPv4 packet with TCP or UDP are right: the header's was verified, and the sum over
    /// the rest comes to all ones. Says nothing if the HCA does not offload checksums. infinihost 4.5.1.
    #[inline]
    pub const fn checksum_ok(&self) -> bool {
        // One addition carries if all bits are set: without a jump, on the way of every datagram.
        let ones = (self.checksum_high() & self.checksum_low()) as u32;
        (ones + self.ip_ok() as u32) >> 8 != 0
    }

    /// Sets the sum over what follows the IP header.
    pub const fn set_checksum(&mut self, sum: u16) -> &mut Self {
        let [high, low] = sum.to_be_bytes();
        self.set_checksum_high(high).set_checksum_low(low)
    }

    /// The same bytes as an error entry.
    #[inline]
    pub const fn as_error(&self) -> &ErrorCqe {
        zerocopy::transmute_ref!(self)
    }
}

impl ErrorCqe {
    /// The same bytes as an entry.
    #[inline]
    pub const fn as_cqe(&self) -> &Cqe {
        zerocopy::transmute_ref!(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::each_field_stands_where_its_row_says;
    use proptest::prelude::*;
    use zerocopy::{FromBytes, IntoBytes};

    #[test]
    fn a_ud_receive_byte_by_byte() {
        let mut cqe = Cqe::ZERO;
        cqe.set_qpn(0x404)
            .set_remote_qpn(0x12_3456)
            .set_sl(3)
            .set_grh(true)
            .set_path_bits(2);
        cqe.set_slid(0x17)
            .set_immediate(0x0005_0000)
            .set_byte_count(296);
        cqe.set_wqe_address(0x1040)
            .set_wqe_size(2)
            .set_opcode(0x65)
            .set_owned_by_hw(true);
        let expected = [
            0, 0, 4, 4, 0, 0, 0, 0, 0, 0x12, 0x34, 0x56, 0x30, 0x82, 0, 0x17, 0, 5, 0, 0, 0, 0, 1,
            0x28, 0, 0, 0x10, 0x42, 0x65, 0, 0, 0x80,
        ];
        assert_eq!(cqe.as_bytes(), expected);
    }

    #[test]
    fn checksums_are_right_if_the_header_was_verified_and_the_sum_is_all_ones() {
        let mut raw = [0; 32];
        raw[0x04] = 0xff;
        raw[0x08] = 0xff;
        raw[0x0c] = 0x31;
        let cqe = Cqe::read_from_bytes(&raw).unwrap();
        assert!(cqe.checksum_ok());
        let mut made = Cqe::ZERO;
        made.set_checksum(0xffff).set_ip_ok(true).set_sl(3);
        assert_eq!(made.as_bytes(), raw);
        for (at, value) in [(0x04, 0x7f), (0x08, 0xfe), (0x0c, 0x30)] {
            let mut raw = raw;
            raw[at] = value;
            assert!(
                !Cqe::read_from_bytes(&raw).unwrap().checksum_ok(),
                "{at:#x}"
            );
        }
    }

    #[test]
    fn an_error_is_told_by_its_opcode_and_its_queue_by_bit_0() {
        let mut raw = [0; 32];
        raw[3] = 9;
        raw[0x10..0x14].copy_from_slice(&[0x15, 0x81, 0, 2]);
        raw[0x1c] = 0xff;
        let cqe = Cqe::read_from_bytes(&raw).unwrap();
        assert!(cqe.is_error());
        let error = cqe.as_error();
        assert_eq!(error.syndrome(), Syndrome::RETRY_EXCEEDED);
        assert_eq!((error.vendor_error(), error.doorbell_count()), (0x81, 2));
        assert_eq!((error.opcode(), error.qpn()), (Cqe::ERROR_SEND, 9));
        raw[0x1c] = 0x0a;
        assert!(!Cqe::read_from_bytes(&raw).unwrap().is_error());
    }

    proptest! {
        #[test]
        fn every_field_stands_alone(bytes: [u8; 32]) {
            each_field_stands_where_its_row_says::<Cqe>(&bytes, &[]);
            each_field_stands_where_its_row_says::<ErrorCqe>(&bytes, &[]);
        }
    }
}
