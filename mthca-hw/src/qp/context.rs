//! What the HCA is told of a QP in a state transition, and what it tells back. infinihost 4.6, 4.7.
//!
//! Each transition repeats what never changes and adds what the caller gave; a mask names the optional fields that
//! count. What is required of a transition is taken whatever the mask says, so a field that is not known is zero only
//! where the transition does not take it.

use super::control::{Qp, QpControl, Rings};
use crate::av::Rates;
use crate::inner::Inner;
use core_ib::platform::Platform;
use core_ib::verbs::{
    Access, AhAttr, GlobalRoute, PathMigration, QpAttr, QpAttrMask as M, QpState, QpType, Signaling,
};
use core_ib::{Gid, Lid, Mtu, Psn, QKey, Qpn, Sl};
use hca_abi::infinihost::qp::{
    AddressPath, PathMigration as Migration, QpContext, QpMailbox, QpState as State, ServiceType,
    opt,
};

/// ACK request frequency: the logarithm of packets. infinihost 4.6.
const ACK_FREQUENCY: u8 = 10;
/// Flight limit: the logarithm of messages.
const FLIGHT_LIMIT: u8 = 9;
/// Logarithm of the largest message of a connected QP.
const MSG_MAX: u8 = 31;
/// The same of a datagram: 2048 bytes.
const DATAGRAM_MAX: u8 = 11;

const fn service_of(service: QpType) -> ServiceType {
    match service {
        QpType::Rc => ServiceType::RC,
        QpType::Uc => ServiceType::UC,
        QpType::Ud => ServiceType::UD,
        QpType::Smi | QpType::Gsi => ServiceType::MLX,
    }
}

const fn state_of(state: QpState) -> State {
    match state {
        QpState::Reset => State::RST,
        QpState::Init => State::INIT,
        QpState::Rtr => State::RTR,
        QpState::Rts => State::RTS,
        QpState::Sqd => State::SQD,
        QpState::Sqe => State::SQE,
        QpState::Error => State::ERR,
    }
}

/// The logarithm of a number of reads and atomics, rounded up.
const fn depth(count: u8) -> u8 {
    crate::extents::order_of(count as u32)
}

impl<P: Platform> Inner<'_, P> {
    fn path(&self, attr: &AhAttr, pkey_index: u16, timeout: u8) -> AddressPath {
        let rate = self.static_rate(attr);
        let mut path = AddressPath::ZERO;
        path.set_port(attr.port)
            .set_pkey_index(pkey_index as u8)
            .set_path_bits(attr.src_path_bits)
            .set_dlid(attr.dlid.0)
            .set_ack_timeout(timeout)
            .set_static_rate(rate.unwrap_or(0))
            .set_sl(attr.sl.get());
        if let Some(grh) = attr.grh {
            path.set_grh(true)
                .set_gid_index(grh.sgid_index)
                .set_hop_limit(grh.hop_limit)
                .set_traffic_class(grh.traffic_class)
                .set_flow_label(grh.flow_label)
                .set_dgid(grh.dgid.0);
        }
        path
    }

    /// The mailbox of the transition to `to`. `next` is what the driver will know of the QP afterwards.
    pub(super) fn transition(
        &self,
        qp: &Qp,
        next: &QpControl<'_, P>,
        attr: &QpAttr,
        mask: M,
        to: QpState,
    ) -> QpMailbox {
        let mut context = self.constants(qp, next, to);
        let mut optional = 0;
        let datagram = qp.service.is_datagram();
        if datagram {
            context
                .set_mtu(Mtu::Mtu2048.code())
                .set_msg_max(DATAGRAM_MAX);
        } else {
            // Taken only where the path MTU is required.
            context.set_mtu(attr.path_mtu.code()).set_msg_max(MSG_MAX);
        }
        let mut primary = AddressPath::ZERO;
        if mask.contains(M::AV) {
            primary = self.path(&attr.path, next.pkey_index, 0);
            optional |= opt::PRIMARY_PATH;
        }
        if mask.contains(M::TIMEOUT) {
            primary.set_ack_timeout(attr.timeout);
            optional |= opt::ACK_TIMEOUT;
        }
        if mask.contains(M::RNR_RETRY) {
            primary.set_rnr_retry(attr.rnr_retry);
            optional |= opt::RNR_RETRY;
        }
        primary
            .set_port(next.port)
            .set_pkey_index(next.pkey_index as u8);
        if mask.contains(M::PKEY_INDEX) {
            optional |= opt::PKEY_INDEX;
        }
        if mask.contains(M::PORT) || mask.contains(M::AV) && to == QpState::Sqd {
            optional |= opt::PORT;
        }
        context.set_primary_path(primary);
        if mask.contains(M::ALT_PATH) {
            let mut path = self.path(&attr.alt_path, attr.alt_pkey_index, attr.alt_timeout);
            path.set_rnr_retry(next.rnr_retry);
            context.set_alternate_path(path);
            optional |= opt::ALT_PATH;
        }
        if mask.contains(M::QKEY) {
            context.set_q_key(attr.qkey.0);
            optional |= opt::Q_KEY;
        }
        if mask.contains(M::RETRY_COUNT) {
            context.set_retry_count(attr.retry_count);
            optional |= opt::RETRY_COUNT;
        }
        if mask.contains(M::MAX_RD_ATOMIC) {
            let reads = attr.max_rd_atomic > 0;
            context
                .set_sra_max(depth(attr.max_rd_atomic))
                .set_sre(reads)
                .set_sae(reads);
            optional |= opt::SRA_MAX;
        }
        if mask.contains(M::MAX_DEST_RD_ATOMIC) {
            context.set_rra_max(depth(attr.max_dest_rd_atomic));
            optional |= opt::RRA_MAX;
        }
        if mask.intersects(M::ACCESS | M::MAX_DEST_RD_ATOMIC) {
            // Without resources there is nothing to serve reads and atomics with. UC has neither.
            let serves = qp.service == QpType::Rc && next.max_dest_rd_atomic > 0;
            context
                .set_rwe(next.access.contains(Access::REMOTE_WRITE))
                .set_rre(serves && next.access.contains(Access::REMOTE_READ))
                .set_rae(serves && next.access.contains(Access::REMOTE_ATOMIC));
            optional |= opt::RRE | opt::RAE | opt::RWE;
        }
        if mask.contains(M::MIN_RNR_TIMER) {
            context.set_min_rnr_timer(attr.min_rnr_timer);
            optional |= opt::RNR_TIMER;
        }
        if mask.contains(M::RQ_PSN) {
            context.set_next_receive_psn(attr.rq_psn.get());
        }
        if mask.contains(M::SQ_PSN) {
            context.set_next_send_psn(attr.sq_psn.get());
        }
        if mask.contains(M::DEST_QPN) {
            context.set_remote_qpn(attr.dest_qpn.get());
        }
        if mask.contains(M::PATH_MIG_STATE) {
            context.set_path_migration(match attr.path_migration {
                PathMigration::Migrated => Migration::MIGRATED,
                PathMigration::Rearm => Migration::REARM,
                PathMigration::Armed => Migration::ARMED,
            });
            optional |= opt::PM_STATE;
        }
        if to == QpState::Rtr {
            let rdb = self.plan.rdb_of(qp.number);
            context.set_ra_buff_index(rdb as u32); // its low half: infinihost 6.5
        }
        QpMailbox::new(optional, context)
    }

    /// What is the same in every transition.
    fn constants(&self, qp: &Qp, control: &QpControl<'_, P>, to: QpState) -> QpContext {
        let mut context = QpContext::ZERO;
        context
            .set_state(state_of(to))
            .set_service(service_of(qp.service))
            .set_path_migration(Migration::MIGRATED)
            .set_descriptor_events(true)
            .set_uar_page(control.page(self.uar.index))
            .set_local_qpn(qp.number)
            .set_pd(qp.pd_number)
            .set_wqe_lkey(control.lkey())
            .set_ack_request_frequency(ACK_FREQUENCY)
            .set_flight_limit(FLIGHT_LIMIT)
            .set_swe(true)
            .set_all_signaled(qp.signaling == Signaling::All)
            .set_send_cqn(qp.send_cqn)
            .set_receive_cqn(qp.recv_cqn)
            .set_receive_signaled(true);
        if self.chip.is_mem_free() {
            let Rings { recv, send } = control.rings;
            context
                .set_log_rq_size(recv.log_size)
                .set_log_rq_stride(recv.log_stride)
                .set_rq_address(recv.address)
                .set_rq_record(recv.record)
                .set_log_sq_size(send.log_size)
                .set_log_sq_stride(send.log_stride)
                .set_sq_address(send.address)
                .set_sq_record(send.record);
        }
        if let Some(srq) = qp.srq {
            context
                .set_has_srq(true)
                .set_srqn(self.plan.srq.first.wrapping_add(srq))
                .set_invalid_credits(true);
        }
        context
    }
}

const fn path_of(path: &AddressPath, rates: Rates) -> AhAttr {
    AhAttr {
        port: path.port(),
        dlid: Lid(path.dlid()),
        sl: Sl::new(path.sl()),
        src_path_bits: path.path_bits(),
        static_rate: rates.rate(path.static_rate()),
        grh: if path.grh() {
            Some(GlobalRoute {
                dgid: Gid(path.dgid()),
                sgid_index: path.gid_index(),
                flow_label: path.flow_label(),
                hop_limit: path.hop_limit(),
                traffic_class: path.traffic_class(),
            })
        } else {
            None
        },
    }
}

/// The state that a context says, and whether its send queue is draining. `None` if nobody knows that state.
pub(crate) const fn state_in(context: &QpContext) -> Option<(QpState, bool)> {
    Some(match context.state() {
        State::RST => (QpState::Reset, false),
        State::INIT => (QpState::Init, false),
        State::RTR => (QpState::Rtr, false),
        State::RTS => (QpState::Rts, false),
        State::SQE => (QpState::Sqe, false),
        State::SQD => (QpState::Sqd, false),
        State::SQ_DRAINING => (QpState::Sqd, true),
        State::ERR => (QpState::Error, false),
        _ => return None,
    })
}

/// The attributes in a context. `rates` says what static rates mean on a port. verbs 3.12.
pub(crate) fn attributes(
    context: &QpContext,
    state: QpState,
    sq_draining: bool,
    rates: impl Fn(u8) -> Rates,
) -> QpAttr {
    let (primary, alternate) = (context.primary_path(), context.alternate_path());
    let path_of = |path: &AddressPath| path_of(path, rates(path.port()));
    let mut access = Access::empty();
    access.set(Access::REMOTE_READ, context.rre());
    access.set(Access::REMOTE_WRITE, context.rwe());
    access.set(Access::REMOTE_ATOMIC, context.rae());
    QpAttr {
        state,
        cur_state: state,
        sq_drained_event: false,
        sq_draining,
        access,
        pkey_index: primary.pkey_index().into(),
        port: primary.port(),
        qkey: QKey(context.q_key()),
        path: path_of(&primary),
        path_mtu: Mtu::from_code(context.mtu()).unwrap_or(Mtu::Mtu256),
        timeout: primary.ack_timeout(),
        retry_count: context.retry_count(),
        rnr_retry: primary.rnr_retry(),
        rq_psn: Psn::new(context.next_receive_psn()),
        max_rd_atomic: if context.sre() {
            1 << context.sra_max()
        } else {
            0
        },
        max_dest_rd_atomic: 1 << context.rra_max(),
        alt_path: path_of(&alternate),
        alt_pkey_index: alternate.pkey_index().into(),
        alt_timeout: alternate.ack_timeout(),
        min_rnr_timer: context.min_rnr_timer(),
        sq_psn: Psn::new(context.next_send_psn()),
        path_migration: match context.path_migration() {
            Migration::ARMED => PathMigration::Armed,
            Migration::REARM => PathMigration::Rearm,
            _ => PathMigration::Migrated,
        },
        dest_qpn: Qpn::new(context.remote_qpn()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_that_nobody_knows_is_no_state() {
        let mut context = QpContext::ZERO;
        context.set_state(State::SQ_DRAINING);
        assert_eq!(state_in(&context), Some((QpState::Sqd, true)));
        context.set_state(State::SUSPENDED);
        assert_eq!(state_in(&context), None);
    }

    #[test]
    fn depths_are_rounded_up() {
        assert_eq!([1, 2, 3, 4, 5, 128].map(depth), [0, 1, 2, 2, 3, 7]);
    }
}
