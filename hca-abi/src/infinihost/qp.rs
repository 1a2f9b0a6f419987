//! Queue pair context, address path, and the mailbox of the state transitions. infinihost 4.6, 4.7.

number_set! {
    /// State of a QP, as its context holds it.
    pub struct QpState(u8) {
        /// Reset.
        RST = 0;
        /// Initialised.
        INIT = 1;
        /// Ready to receive.
        RTR = 2;
        /// Ready to send.
        RTS = 3;
        /// Send queue error.
        SQE = 4;
        /// Send queue drained.
        SQD = 5;
        /// Error.
        ERR = 6;
        /// Send queue draining.
        SQ_DRAINING = 7;
        /// Suspended.
        SUSPENDED = 9;
    }
}

number_set! {
    /// Service type.
    pub struct ServiceType(u8) {
        /// Reliable connected.
        RC = 0;
        /// Unreliable connected.
        UC = 1;
        /// Reliable datagram.
        RD = 2;
        /// Unreliable datagram.
        UD = 3;
        /// Packets built by software: QP0 and QP1.
        MLX = 7;
    }
}

number_set! {
    /// Path migration state.
    pub struct PathMigration(u8) {
        /// Both sides are ready.
        ARMED = 0;
        /// Waiting for the peer.
        REARM = 1;
        /// On its path.
        MIGRATED = 3;
    }
}

/// Bits of the opt_param_mask. infinihost 4.7.
pub mod opt {
    /// Alternate path.
    pub const ALT_PATH: u32 = 1 << 0;
    /// Remote read enable.
    pub const RRE: u32 = 1 << 1;
    /// Remote atomic enable.
    pub const RAE: u32 = 1 << 2;
    /// Remote write enable.
    pub const RWE: u32 = 1 << 3;
    /// P_Key index.
    pub const PKEY_INDEX: u32 = 1 << 4;
    /// Q_Key.
    pub const Q_KEY: u32 = 1 << 5;
    /// RNR NAK timer.
    pub const RNR_TIMER: u32 = 1 << 6;
    /// Primary path.
    pub const PRIMARY_PATH: u32 = 1 << 7;
    /// Reads and atomics as requester.
    pub const SRA_MAX: u32 = 1 << 8;
    /// Reads and atomics as responder.
    pub const RRA_MAX: u32 = 1 << 9;
    /// Path migration state.
    pub const PM_STATE: u32 = 1 << 10;
    /// Port.
    pub const PORT: u32 = 1 << 11;
    /// Retry count.
    pub const RETRY_COUNT: u32 = 1 << 12;
    /// RNR retry count of the alternate path.
    pub const ALT_RNR_RETRY: u32 = 1 << 13;
    /// ACK timeout.
    pub const ACK_TIMEOUT: u32 = 1 << 14;
    /// RNR retry count.
    pub const RNR_RETRY: u32 = 1 << 15;
    /// Schedule queue.
    pub const SCHED_QUEUE: u32 = 1 << 16;
}

layout! {
    /// Address path of a QP.
    pub struct AddressPath[32] {
        /// Port, 1 or 2.
        port / set_port: u8 = bits(0x00, 25, 24);
        /// P_Key index.
        pkey_index / set_pkey_index: u8 = bits(0x00, 6, 0);
        /// RNR retry count; 7 is unlimited.
        rnr_retry / set_rnr_retry: u8 = bits(0x04, 31, 29);
        /// Packets have a GRH.
        grh / set_grh: bool = bits(0x04, 23, 23);
        /// Low bits of the source LID.
        path_bits / set_path_bits: u8 = bits(0x04, 22, 16);
        /// Destination LID.
        dlid / set_dlid: u16 = bits(0x04, 15, 0);
        /// Local ACK timeout code.
        ack_timeout / set_ack_timeout: u8 = bits(0x08, 31, 27);
        /// Index into the port's GID table.
        gid_index / set_gid_index: u8 = bits(0x08, 21, 16);
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
    }
}

layout! {
    /// Context of a QP.
    pub struct QpContext[256] {
        /// State.
        state / set_state: QpState = bits(0x00, 31, 28);
        /// Service type.
        service / set_service: ServiceType = bits(0x00, 18, 16);
        /// Path migration state.
        path_migration / set_path_migration: PathMigration = bits(0x00, 12, 11);
        /// DE: descriptor events enabled.
        descriptor_events / set_descriptor_events: bool = bits(0x00, 8, 8);
        /// T: schedule queue.
        sched_queue / set_sched_queue: u8 = bits(0x04, 3, 0);
        /// MTU code.
        mtu / set_mtu: u8 = bits(0x08, 31, 29);
        /// Logarithm of the largest message.
        msg_max / set_msg_max: u8 = bits(0x08, 28, 24);
        /// M: logarithm of the receive queue's size.
        log_rq_size / set_log_rq_size: u8 = bits(0x08, 22, 19);
        /// M: logarithm of the receive stride, less 4.
        log_rq_stride / set_log_rq_stride: u8 = bits(0x08, 18, 16);
        /// M: logarithm of the send queue's size.
        log_sq_size / set_log_sq_size: u8 = bits(0x08, 14, 11);
        /// M: logarithm of the send stride, less 4.
        log_sq_stride / set_log_sq_stride: u8 = bits(0x08, 10, 8);
        /// M: may use the reserved key.
        reserved_lkey / set_reserved_lkey: bool = bits(0x08, 4, 4);
        /// M: schedule queue.
        m_sched_queue / set_m_sched_queue: u8 = bits(0x08, 3, 0);
        /// UAR page that may ring for it.
        uar_page / set_uar_page: u32 = bits(0x0c, 23, 0);
        /// Its number.
        local_qpn / set_local_qpn: u32 = bits(0x10, 23, 0);
        /// The peer's number.
        remote_qpn / set_remote_qpn: u32 = bits(0x14, 23, 0);
        /// Primary path.
        primary_path / set_primary_path: AddressPath = part(0x20);
        /// Alternate path.
        alternate_path / set_alternate_path: AddressPath = part(0x40);
        /// Reliable datagram domain.
        rdd / set_rdd: u32 = bits(0x60, 23, 0);
        /// Protection domain.
        pd / set_pd: u32 = bits(0x64, 23, 0);
        /// Upper half of the addresses of WQEs.
        wqe_base_high / set_wqe_base_high: u32 = bits(0x68, 31, 0);
        /// Key of the WQEs.
        wqe_lkey / set_wqe_lkey: u32 = bits(0x6c, 31, 0);
        /// ACK request frequency.
        ack_request_frequency / set_ack_request_frequency: u8 = bits(0x70, 31, 28);
        /// Flight limit.
        flight_limit / set_flight_limit: u8 = bits(0x70, 27, 24);
        /// Logarithm of reads and atomics as requester.
        sra_max / set_sra_max: u8 = bits(0x70, 23, 21);
        /// Retry count.
        retry_count / set_retry_count: u8 = bits(0x70, 18, 16);
        /// SRE: the send queue may read.
        sre / set_sre: bool = bits(0x70, 15, 15);
        /// SWE: the send queue may write.
        swe / set_swe: bool = bits(0x70, 14, 14);
        /// SAE: the send queue may use atomics.
        sae / set_sae: bool = bits(0x70, 13, 13);
        /// M: fast registration enabled.
        fast_register / set_fast_register: bool = bits(0x70, 11, 11);
        /// Output: RNR retries left.
        current_rnr_retry / set_current_rnr_retry: u8 = bits(0x70, 10, 8);
        /// Output: retries left.
        current_retry / set_current_retry: u8 = bits(0x70, 7, 5);
        /// SIC: ignore end-to-end credits.
        ignore_credits / set_ignore_credits: bool = bits(0x70, 4, 4);
        /// SSC: every send makes a CQE.
        all_signaled / set_all_signaled: bool = bits(0x70, 3, 3);
        /// Next PSN to send.
        next_send_psn / set_next_send_psn: u32 = bits(0x78, 23, 0);
        /// CQ of the send queue.
        send_cqn / set_send_cqn: u32 = bits(0x7c, 23, 0);
        /// M: address of the send queue, low 32 bits. T, output: next WQE.
        sq_address / set_sq_address: u32 = bits(0x80, 31, 0);
        /// M: doorbell record of the send queue.
        sq_record / set_sq_record: u32 = bits(0x84, 31, 0);
        /// Output: last PSN acknowledged.
        last_acked_psn / set_last_acked_psn: u32 = bits(0x88, 23, 0);
        /// Output: send sequence number.
        ssn / set_ssn: u32 = bits(0x8c, 23, 0);
        /// Logarithm of reads and atomics as responder.
        rra_max / set_rra_max: u8 = bits(0x90, 23, 21);
        /// RRE: the peer may read.
        rre / set_rre: bool = bits(0x90, 15, 15);
        /// RWE: the peer may write.
        rwe / set_rwe: bool = bits(0x90, 14, 14);
        /// RAE: the peer may use atomics.
        rae / set_rae: bool = bits(0x90, 13, 13);
        /// RIC: ACKs carry the invalid credit count.
        invalid_credits / set_invalid_credits: bool = bits(0x90, 4, 4);
        /// RSC: every receive makes a CQE.
        receive_signaled / set_receive_signaled: bool = bits(0x90, 3, 3);
        /// Minimum RNR NAK timer code.
        min_rnr_timer / set_min_rnr_timer: u8 = bits(0x94, 28, 24);
        /// Next PSN expected.
        next_receive_psn / set_next_receive_psn: u32 = bits(0x94, 23, 0);
        /// RDB entries of the QP.
        ra_buff_index / set_ra_buff_index: u32 = in_place32(0x98, 31, 5);
        /// CQ of the receive queue.
        receive_cqn / set_receive_cqn: u32 = bits(0x9c, 23, 0);
        /// M: address of the receive queue, low 32 bits. T, output: next WQE.
        rq_address / set_rq_address: u32 = bits(0xa0, 31, 0);
        /// M: doorbell record of the receive queue.
        rq_record / set_rq_record: u32 = bits(0xa4, 31, 0);
        /// Q_Key.
        q_key / set_q_key: u32 = bits(0xa8, 31, 0);
        /// Receives come from an SRQ.
        has_srq / set_has_srq: bool = bits(0xac, 24, 24);
        /// Which.
        srqn / set_srqn: u32 = bits(0xac, 23, 0);
        /// Output: responder's message sequence number.
        rmsn / set_rmsn: u32 = bits(0xb0, 23, 0);
        /// M, output: counter of the receive queue.
        rq_counter / set_rq_counter: u16 = bits(0xb4, 31, 16);
        /// M, output: counter of the send queue.
        sq_counter / set_sq_counter: u16 = bits(0xb4, 15, 0);
    }
}

/// Mailbox of the QP commands: which optional fields count, and the context. infinihost 3.11.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    zerocopy::FromBytes,
    zerocopy::IntoBytes,
    zerocopy::KnownLayout,
    zerocopy::Immutable,
    zerocopy::Unaligned,
)]
#[repr(C)]
pub struct QpMailbox {
    opt_param_mask: zerocopy::big_endian::U32,
    reserved: [u8; 4],
    /// The context.
    pub context: QpContext,
}
static_assertions::const_assert_eq!(size_of::<QpMailbox>(), 264);
static_assertions::const_assert_eq!(core::mem::offset_of!(QpMailbox, context), 8);

impl QpMailbox {
    /// With these optional fields; bits: [`opt`].
    pub const fn new(opt_param_mask: u32, context: QpContext) -> Self {
        Self {
            opt_param_mask: zerocopy::big_endian::U32::new(opt_param_mask),
            reserved: [0; 4],
            context,
        }
    }

    /// Which optional fields count.
    pub const fn opt_param_mask(&self) -> u32 {
        self.opt_param_mask.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::each_field_stands_where_its_row_says;
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    fn dword(context: &QpContext, at: usize) -> u32 {
        u32::from_be_bytes(*context.as_bytes()[at..].first_chunk().unwrap())
    }

    #[test]
    fn the_published_context_words() {
        // infinihost 13.6
        let mut context = QpContext::ZERO;
        context
            .set_descriptor_events(true)
            .set_path_migration(PathMigration::MIGRATED);
        context
            .set_state(QpState::INIT)
            .set_service(ServiceType::RC);
        assert_eq!(dword(&context, 0), 0x1000_1900);
        context
            .set_state(QpState::RTR)
            .set_service(ServiceType::MLX);
        assert_eq!(dword(&context, 0), 0x2007_1900);
        context.set_mtu(4).set_msg_max(31);
        context
            .set_log_rq_size(6)
            .set_log_rq_stride(2)
            .set_log_sq_size(7)
            .set_log_sq_stride(3);
        assert_eq!(dword(&context, 8), 0x9f32_3b00);
        context
            .set_ack_request_frequency(10)
            .set_flight_limit(9)
            .set_retry_count(7);
        context.set_swe(true).set_all_signaled(true);
        assert_eq!(dword(&context, 0x70), 0xa907_4008);
    }

    #[test]
    fn paths_stand_at_0x20_and_0x40() {
        let mut path = AddressPath::ZERO;
        path.set_port(1)
            .set_pkey_index(3)
            .set_rnr_retry(7)
            .set_grh(true)
            .set_path_bits(1)
            .set_dlid(0x1234);
        path.set_ack_timeout(14)
            .set_gid_index(2)
            .set_static_rate(1)
            .set_hop_limit(64);
        path.set_sl(4)
            .set_traffic_class(0xcd)
            .set_flow_label(0x5_4321);
        let mut context = QpContext::ZERO;
        context.set_alternate_path(path);
        let bytes = context.as_bytes();
        let expected = [
            1, 0, 0, 3, 0xe0, 0x81, 0x12, 0x34, 0x70, 2, 1, 64, 0x4c, 0xd5, 0x43, 0x21,
        ];
        assert_eq!(bytes[0x40..0x50], expected);
        assert_eq!(context.alternate_path(), path);
        assert_eq!(context.primary_path(), AddressPath::ZERO);
    }

    #[test]
    fn m_mode_names_rings_and_records_and_shows_counters() {
        let mut context = QpContext::ZERO;
        context
            .set_sq_address(0x0102_0340)
            .set_sq_record(0x1111)
            .set_rq_address(0x0506_0780)
            .set_rq_record(0x2222)
            .set_rq_counter(0x3333)
            .set_sq_counter(0x4444)
            .set_m_sched_queue(2)
            .set_reserved_lkey(true)
            .set_fast_register(true);
        let words = [0x08, 0x70, 0x80, 0x84, 0xa0, 0xa4, 0xb4].map(|at| dword(&context, at));
        let expected = [
            0x12,
            0x800,
            0x0102_0340,
            0x1111,
            0x0506_0780,
            0x2222,
            0x3333_4444,
        ];
        assert_eq!(words, expected);
    }

    #[test]
    fn draining_is_a_state_of_its_own() {
        let mut context = QpContext::ZERO;
        assert_eq!(
            dword(context.set_state(QpState::SQ_DRAINING), 0),
            0x7000_0000
        );
        assert_eq!(dword(context.set_state(QpState::SQD), 0), 0x5000_0000);
    }

    #[test]
    fn the_context_of_a_mailbox_starts_at_byte_8() {
        let mut context = QpContext::ZERO;
        context.set_local_qpn(0x404);
        let mailbox = QpMailbox::new(opt::Q_KEY | opt::PORT, context);
        assert_eq!(mailbox.as_bytes()[..4], [0, 0, 8, 0x20]);
        assert_eq!(mailbox.as_bytes()[8 + 0x10..8 + 0x14], [0, 0, 4, 4]);
        assert_eq!(mailbox.opt_param_mask(), 0x820);
    }

    proptest! {
        #[test]
        fn every_field_stands_alone(bytes in proptest::collection::vec(any::<u8>(), 256)) {
            each_field_stands_where_its_row_says::<QpContext>(&bytes, &[]);
            each_field_stands_where_its_row_says::<AddressPath>(&bytes[..32], &[]);
        }
    }
}
