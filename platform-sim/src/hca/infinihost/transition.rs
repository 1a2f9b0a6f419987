//! The commands that move a queue pair from state to state, and which fields of the mailbox each of them takes. infinihost
//! 3.11, 4.7.
//!
//! Taking more than is listed would corrupt the context: drivers leave zeros where a transition has no say.

use hca_abi::infinihost::cmd::Opcode;
use hca_abi::infinihost::qp::{QpContext, QpState, ServiceType, opt};

/// One row of the table in 4.7.
pub struct Transition {
    /// From here, and from nowhere else.
    pub from: QpState,
    /// To here.
    pub to: QpState,
    /// Fields that are always taken.
    required: fn(&mut QpContext, &QpContext),
    /// Bits of the opt_param_mask that are honoured.
    optional: u32,
    /// Bits of it whose fields are among those that are taken anyway.
    implied: u32,
}

const ACCESS: u32 = opt::RRE | opt::RAE | opt::RWE;
/// What changes while the queue pair sends.
const RUNNING: u32 = opt::Q_KEY | ACCESS | opt::RNR_TIMER | opt::ALT_PATH | opt::PM_STATE;
/// What changes while the send queue is drained.
const DRAINED: u32 = RUNNING
    | opt::PRIMARY_PATH
    | opt::PKEY_INDEX
    | opt::PORT
    | opt::SRA_MAX
    | opt::RRA_MAX
    | opt::RETRY_COUNT
    | opt::RNR_RETRY
    | opt::ALT_RNR_RETRY
    | opt::ACK_TIMEOUT
    | opt::SCHED_QUEUE;

/// What RST2INIT takes anyway.
const CREATED: u32 = opt::PKEY_INDEX | opt::PORT | opt::Q_KEY | opt::PM_STATE | ACCESS;
/// What INIT2RTR takes anyway.
const RECEIVING: u32 = opt::PRIMARY_PATH
    | opt::RRA_MAX
    | opt::RNR_TIMER
    | opt::ACK_TIMEOUT
    | opt::RETRY_COUNT
    | opt::RNR_RETRY;
/// What RTR2RTS takes anyway.
const SENDING: u32 = opt::ACK_TIMEOUT | opt::RETRY_COUNT | opt::RNR_RETRY | opt::SRA_MAX;

impl Transition {
    /// The row of `opcode`; none for the commands that take no fields (2ERR, ERR2RST, RTS2SQD).
    pub fn of(opcode: Opcode) -> Option<Self> {
        let row = |from, to, required, optional| Self {
            from,
            to,
            required,
            optional,
            implied: match from {
                QpState::RST => CREATED,
                QpState::INIT if to == QpState::RTR => RECEIVING,
                QpState::RTR => SENDING,
                _ => 0,
            },
        };
        let nothing: fn(&mut QpContext, &QpContext) = |_, _| {};
        Some(match opcode {
            Opcode::RST2INIT_QPEE => row(QpState::RST, QpState::INIT, init, opt::SCHED_QUEUE),
            Opcode::INIT2INIT_QPEE => row(
                QpState::INIT,
                QpState::INIT,
                nothing,
                opt::PKEY_INDEX | opt::PORT | opt::Q_KEY | ACCESS,
            ),
            Opcode::INIT2RTR_QPEE => row(
                QpState::INIT,
                QpState::RTR,
                ready_to_receive,
                opt::ALT_PATH
                    | ACCESS
                    | opt::PKEY_INDEX
                    | opt::Q_KEY
                    | opt::PORT
                    | opt::PM_STATE
                    | opt::SCHED_QUEUE,
            ),
            Opcode::RTR2RTS_QPEE => row(
                QpState::RTR,
                QpState::RTS,
                ready_to_send,
                RUNNING | opt::ALT_RNR_RETRY,
            ),
            Opcode::RTS2RTS_QPEE => row(QpState::RTS, QpState::RTS, nothing, RUNNING),
            Opcode::SQERR2RTS_QPEE => row(QpState::SQE, QpState::RTS, nothing, RUNNING),
            Opcode::SQD2RTS_QPEE => row(QpState::SQD, QpState::RTS, nothing, DRAINED),
            Opcode::SQD2SQD_QPEE => row(QpState::SQD, QpState::SQD, nothing, DRAINED),
            _ => return None,
        })
    }

    /// Takes from `input` what this transition takes.
    pub fn apply(&self, context: &mut QpContext, input: &QpContext, mask: u32) {
        (self.required)(context, input);
        optional(context, input, mask & self.optional);
        context.set_state(self.to);
    }

    /// Bits of `mask` that are set, and whose fields are not taken.
    pub fn ignored(&self, mask: u32) -> u32 {
        mask & !self.optional & !self.implied & 0x1_ffff
    }
}

fn init(to: &mut QpContext, from: &QpContext) {
    to.set_service(from.service())
        .set_descriptor_events(from.descriptor_events())
        .set_path_migration(from.path_migration())
        .set_uar_page(from.uar_page())
        .set_pd(from.pd())
        .set_wqe_base_high(from.wqe_base_high())
        .set_wqe_lkey(from.wqe_lkey())
        .set_all_signaled(from.all_signaled())
        .set_receive_signaled(from.receive_signaled())
        .set_invalid_credits(from.invalid_credits())
        .set_send_cqn(from.send_cqn())
        .set_receive_cqn(from.receive_cqn())
        .set_has_srq(from.has_srq())
        .set_srqn(from.srqn())
        .set_log_rq_size(from.log_rq_size())
        .set_log_rq_stride(from.log_rq_stride())
        .set_log_sq_size(from.log_sq_size())
        .set_log_sq_stride(from.log_sq_stride())
        .set_reserved_lkey(from.reserved_lkey())
        .set_fast_register(from.fast_register())
        .set_sq_address(from.sq_address())
        .set_sq_record(from.sq_record())
        .set_rq_address(from.rq_address())
        .set_rq_record(from.rq_record())
        .set_q_key(from.q_key())
        .set_swe(from.swe())
        .set_ack_request_frequency(from.ack_request_frequency())
        .set_flight_limit(from.flight_limit());
    let mut path = to.primary_path();
    path.set_port(from.primary_path().port())
        .set_pkey_index(from.primary_path().pkey_index());
    to.set_primary_path(path);
    optional(to, from, ACCESS);
    if matches!(from.service(), ServiceType::UD | ServiceType::MLX) {
        to.set_mtu(from.mtu()).set_msg_max(from.msg_max());
    }
}

fn ready_to_receive(to: &mut QpContext, from: &QpContext) {
    to.set_mtu(from.mtu())
        .set_msg_max(from.msg_max())
        .set_remote_qpn(from.remote_qpn())
        .set_next_receive_psn(from.next_receive_psn())
        .set_rra_max(from.rra_max())
        .set_min_rnr_timer(from.min_rnr_timer())
        .set_ra_buff_index(from.ra_buff_index());
    primary_path(to, from);
    if from.retry_count() != 0 {
        to.set_retry_count(from.retry_count());
    }
}

/// All of the path but port and P_Key index; timeout and RNR retry if given.
fn primary_path(to: &mut QpContext, from: &QpContext) {
    let old = to.primary_path();
    let mut path = from.primary_path();
    path.set_port(old.port()).set_pkey_index(old.pkey_index());
    if path.ack_timeout() == 0 {
        path.set_ack_timeout(old.ack_timeout());
    }
    if path.rnr_retry() == 0 {
        path.set_rnr_retry(old.rnr_retry());
    }
    to.set_primary_path(path);
}

fn ready_to_send(to: &mut QpContext, from: &QpContext) {
    to.set_next_send_psn(from.next_send_psn())
        .set_ignore_credits(from.ignore_credits());
    optional(
        to,
        from,
        opt::ACK_TIMEOUT | opt::RETRY_COUNT | opt::RNR_RETRY | opt::SRA_MAX,
    );
    if from.ack_request_frequency() != 0 {
        to.set_ack_request_frequency(from.ack_request_frequency());
    }
    if from.flight_limit() != 0 {
        to.set_flight_limit(from.flight_limit());
    }
}

/// Takes the fields whose bits are set in `mask`.
fn optional(to: &mut QpContext, from: &QpContext, mask: u32) {
    let has = |bit| mask & bit != 0;
    let given = from.primary_path();
    if has(opt::PRIMARY_PATH) {
        primary_path(to, from);
    }
    if has(opt::ALT_PATH) {
        to.set_alternate_path(from.alternate_path());
    }
    let mut path = to.primary_path();
    if has(opt::PKEY_INDEX) {
        path.set_pkey_index(given.pkey_index());
    }
    if has(opt::PORT) {
        path.set_port(given.port());
    }
    if has(opt::ACK_TIMEOUT) {
        path.set_ack_timeout(given.ack_timeout());
    }
    if has(opt::RNR_RETRY) {
        path.set_rnr_retry(given.rnr_retry());
    }
    to.set_primary_path(path);
    if has(opt::ALT_RNR_RETRY) {
        let mut path = to.alternate_path();
        path.set_rnr_retry(from.alternate_path().rnr_retry());
        to.set_alternate_path(path);
    }
    if has(opt::RRE) {
        to.set_rre(from.rre());
    }
    if has(opt::RAE) {
        to.set_rae(from.rae());
    }
    if has(opt::RWE) {
        to.set_rwe(from.rwe());
    }
    if has(opt::Q_KEY) {
        to.set_q_key(from.q_key());
    }
    if has(opt::RNR_TIMER) {
        to.set_min_rnr_timer(from.min_rnr_timer());
    }
    if has(opt::SRA_MAX) {
        to.set_sra_max(from.sra_max())
            .set_sre(from.sre())
            .set_sae(from.sae());
    }
    if has(opt::RRA_MAX) {
        to.set_rra_max(from.rra_max());
    }
    if has(opt::PM_STATE) {
        to.set_path_migration(from.path_migration());
    }
    if has(opt::RETRY_COUNT) {
        to.set_retry_count(from.retry_count());
    }
    if has(opt::SCHED_QUEUE) {
        to.set_sched_queue(from.sched_queue())
            .set_m_sched_queue(from.m_sched_queue());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use zerocopy::{FromBytes, IntoBytes};

    #[test]
    fn what_linux_leaves_zero_in_rtr2rts_stays_as_it_was() {
        let mut context = QpContext::ZERO;
        context
            .set_service(ServiceType::RC)
            .set_mtu(4)
            .set_remote_qpn(0x404)
            .set_next_receive_psn(7)
            .set_all_signaled(true);
        let mut input = QpContext::ZERO;
        input.set_next_send_psn(9).set_retry_count(7);
        let row = Transition::of(Opcode::RTR2RTS_QPEE).unwrap();
        row.apply(&mut context, &input, 0);
        assert_eq!(
            (
                context.mtu(),
                context.remote_qpn(),
                context.next_receive_psn()
            ),
            (4, 0x404, 7)
        );
        assert_eq!((context.next_send_psn(), context.retry_count()), (9, 7));
        assert!(
            context.all_signaled(),
            "SSC comes at creation and never again"
        );
        assert_eq!(context.state(), QpState::RTS);
    }

    #[test]
    fn remote_rights_arrive_with_their_bits_in_init2rtr() {
        let mut context = QpContext::ZERO;
        let mut input = QpContext::ZERO;
        input.set_rre(true).set_rwe(true).set_rae(true);
        let row = Transition::of(Opcode::INIT2RTR_QPEE).unwrap();
        row.apply(&mut context, &input, opt::RRE | opt::RAE);
        assert_eq!(
            (context.rre(), context.rwe(), context.rae()),
            (true, false, true)
        );
    }

    #[test]
    fn a_path_in_init2rtr_keeps_port_and_p_key_of_rst2init() {
        let mut input = QpContext::ZERO;
        let mut path = input.primary_path();
        path.set_port(2).set_pkey_index(5).set_dlid(9);
        input.set_primary_path(path);
        let mut context = QpContext::ZERO;
        Transition::of(Opcode::RST2INIT_QPEE)
            .unwrap()
            .apply(&mut context, &input, 0);
        assert_eq!(context.primary_path().dlid(), 0);
        let mut rtr = QpContext::ZERO;
        let mut path = rtr.primary_path();
        path.set_dlid(11);
        rtr.set_primary_path(path);
        Transition::of(Opcode::INIT2RTR_QPEE)
            .unwrap()
            .apply(&mut context, &rtr, 0);
        let path = context.primary_path();
        assert_eq!((path.port(), path.pkey_index(), path.dlid()), (2, 5, 11));
    }

    #[test]
    fn a_bit_of_what_is_taken_anyway_is_not_ignored() {
        let ignored = |opcode, mask| Transition::of(opcode).unwrap().ignored(mask);
        assert_eq!(
            ignored(Opcode::RST2INIT_QPEE, opt::PORT | opt::Q_KEY | opt::RRA_MAX),
            opt::RRA_MAX
        );
        assert_eq!(
            ignored(Opcode::RTR2RTS_QPEE, opt::ACK_TIMEOUT | opt::Q_KEY),
            0
        );
        assert_eq!(
            ignored(Opcode::RTR2RTS_QPEE, opt::RNR_RETRY | opt::ALT_RNR_RETRY),
            0,
            "Linux gives both retry counts together"
        );
        assert_eq!(
            ignored(Opcode::RTS2RTS_QPEE, opt::ACK_TIMEOUT),
            opt::ACK_TIMEOUT
        );
    }

    proptest! {
        #[test]
        fn without_bits_a_running_queue_pair_keeps_every_field(
            old: Vec<u8>, new: Vec<u8>, opcode in prop::sample::select(vec![
                Opcode::INIT2INIT_QPEE, Opcode::RTS2RTS_QPEE, Opcode::SQERR2RTS_QPEE, Opcode::SQD2SQD_QPEE,
                Opcode::SQD2RTS_QPEE,
            ]),
        ) {
            let context = |bytes: &[u8]| {
                let mut whole = [0; 256];
                whole.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
                QpContext::read_from_bytes(&whole).unwrap()
            };
            let row = Transition::of(opcode).unwrap();
            let mut after = context(&old);
            row.apply(&mut after, &context(&new), 0);
            let mut before = context(&old);
            before.set_state(row.to);
            prop_assert_eq!(after.as_bytes(), before.as_bytes());
        }
    }
}
