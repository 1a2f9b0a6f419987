//! States of a queue pair, and the completions of those that stop. infinihost 3.11, 4.7, 5.4, 5.8.

use super::verbs::*;
use super::*;
use crate::machine::PciFunction;
use hca_abi::infinihost::cmd::{CmdStatus, Opcode, QpModifier};
use hca_abi::infinihost::cqe::{ErrorCqe, Syndrome};
use hca_abi::infinihost::eqe::EventType;
use hca_abi::infinihost::qp::{QpContext, QpMailbox, QpState, ServiceType, opt};
use hca_abi::infinihost::wqe::{DataSegment, NextSegment, WqeOpcode, next};

const SEND: WqeOpcode = WqeOpcode::SEND;
const AV: u64 = 0x3000;
const DATA: u64 = 0x4000;
const BUFFER: u64 = 0x5000;
const FLAGS: u32 = next::ALWAYS_ONE;

fn rig() -> (Rig, Cq) {
    let mut rig = Rig::card(1);
    rig.start(true);
    rig.activate(1, 0x15);
    let cq = rig.create_cq(0x20);
    rig.store(AV, &av(1, 0x99));
    (rig, cq)
}

fn good() -> Vec<u8> {
    datagram(AV, 0x30, Q_KEY, DataSegment::new(4, ALL, DATA))
}

fn bad() -> Vec<u8> {
    datagram(AV, 0x30, Q_KEY, DataSegment::new(4, 0xbad, DATA))
}

/// What software makes of a T-mode error completion: addresses of the WQEs that it stands for. infinihost 5.8.
fn expand(rig: &Rig, cqe: &ErrorCqe) -> Vec<u32> {
    let mut count = u32::from(cqe.doorbell_count());
    let mut at = cqe.wqe_address();
    let mut expanded = vec![at];
    loop {
        let segment: NextSegment = rig.load(at.into());
        let dbd = u32::from(segment.dbd());
        if segment.nds() == 0 || count == 0 && dbd == 1 {
            return expanded;
        }
        count -= dbd;
        at = segment.nda();
        expanded.push(at);
    }
}

#[test]
fn the_error_completion_of_a_send_stands_for_the_rest_of_its_chain_and_the_doorbells_behind() {
    let (mut rig, mut cq) = rig();
    let mut qp = rig.ud_qp(0x20, 1, &cq);
    // Held back until all is posted.
    rig.modify_plain(Opcode::RTS2SQD_QPEE, 0x20);
    rig.post_send(&mut qp, SEND, &[good(), bad(), good()], FLAGS);
    rig.post_send(&mut qp, SEND, &[good()], FLAGS);
    rig.post_send(&mut qp, SEND, &[good(), good()], FLAGS);
    assert!(rig.poll(&mut cq).is_none(), "drained: sends wait");
    assert_eq!(
        rig.modify(Opcode::SQD2RTS_QPEE, 0x20, 0, &QpContext::ZERO),
        CmdStatus::OK
    );
    assert!(!rig.poll(&mut cq).unwrap().is_error());
    let error = rig.poll_error(&mut cq);
    assert_eq!(
        (error.syndrome(), error.doorbell_count()),
        (Syndrome::LOCAL_PROTECTION, 2)
    );
    let all: Vec<u32> = (1..6)
        .map(|index| rig.wqe_at(&qp, qp.send_wqe(index)) as u32)
        .collect();
    assert_eq!(expand(&rig, &error), all);
    assert!(rig.poll(&mut cq).is_none());
    assert_eq!(rig.qp_state(0x20), QpState::SQE);
    // A doorbell that comes later makes a completion of its own.
    rig.post_send(&mut qp, SEND, &[good()], FLAGS);
    let late = rig.poll_error(&mut cq);
    assert_eq!(
        (late.syndrome(), late.doorbell_count()),
        (Syndrome::FLUSHED, 0)
    );
    assert_eq!(late.wqe_address(), rig.wqe_at(&qp, qp.send_wqe(6)) as u32);
    assert_eq!(expand(&rig, &error), all, "not reached from before");
    // Receives went on all the time, and sends do again.
    assert_eq!(
        rig.modify(Opcode::SQERR2RTS_QPEE, 0x20, 0, &QpContext::ZERO),
        CmdStatus::OK
    );
    rig.post_send(&mut qp, SEND, &[good()], FLAGS);
    assert!(!rig.poll(&mut cq).unwrap().is_error());
}

#[test]
fn a_queue_pair_that_is_put_into_error_flushes_each_half_by_one_completion() {
    let (mut rig, mut cq) = rig();
    let mut qp = rig.ud_qp(0x20, 1, &cq);
    rig.post_receive(&mut qp, &[(BUFFER, 256), (BUFFER, 256)]);
    rig.post_receive(&mut qp, &[(BUFFER, 256)]);
    rig.modify_plain(Opcode::RTS2SQD_QPEE, 0x20);
    rig.post_send(&mut qp, SEND, &[good(), good()], FLAGS);
    rig.post_send(&mut qp, SEND, &[good()], FLAGS);
    assert_eq!(rig.modify_plain(Opcode::TO_ERR_QPEE, 0x20), CmdStatus::OK);
    let sends = rig.poll_error(&mut cq);
    assert_eq!(
        (sends.syndrome(), sends.opcode()),
        (Syndrome::FLUSHED, 0xff)
    );
    assert_eq!(expand(&rig, &sends).len(), 3);
    let receives = rig.poll_error(&mut cq);
    assert_eq!((receives.opcode(), receives.doorbell_count()), (0xfe, 2));
    assert_eq!(expand(&rig, &receives).len(), 3);
    assert!(rig.poll(&mut cq).is_none());
    assert_eq!(
        rig.modify_plain(Opcode::TO_ERR_QPEE, 0x20),
        CmdStatus::OK,
        "again"
    );
    assert!(rig.poll(&mut cq).is_none());
    rig.post_receive(&mut qp, &[(BUFFER, 256), (BUFFER, 256)]);
    let late = rig.poll_error(&mut cq);
    assert_eq!((late.opcode(), late.doorbell_count()), (0xfe, 1));
}

#[test]
fn nothing_outstanding_makes_no_flush_completion() {
    let (mut rig, mut cq) = rig();
    rig.ud_qp(0x20, 1, &cq);
    rig.modify_plain(Opcode::TO_ERR_QPEE, 0x20);
    assert!(rig.poll(&mut cq).is_none());
}

#[test]
fn reset_forgets_what_is_posted_and_gives_the_number_free() {
    let (mut rig, mut cq) = rig();
    let mut qp = rig.ud_qp(0x20, 1, &cq);
    rig.post_receive(&mut qp, &[(BUFFER, 256)]);
    let ended = rig.command(Opcode::ERR2RST_QPEE, 2, 0x20, 0);
    assert_eq!(ended.status, CmdStatus::OK);
    let last: QpMailbox = rig.load(OUT);
    assert_eq!(
        (last.context.state(), last.context.q_key()),
        (QpState::RTS, Q_KEY)
    );
    assert!(rig.poll(&mut cq).is_none());
    assert_eq!(rig.qp_state(0x20), QpState::RST);
    assert_eq!(
        rig.command(Opcode::ERR2RST_QPEE, 3, 0x20, 0).status,
        CmdStatus::OK
    );
    rig.post_receive(&mut qp, &[(BUFFER, 256)]);
    assert_eq!(rig.hca.ledger().get("receive doorbell of no QP or SRQ"), 1);
    rig.create_qp(0x8_0020, ServiceType::UD, 1, &cq);
    assert_eq!(
        rig.qp_state(0x20),
        QpState::RST,
        "that was another generation"
    );
    assert_eq!(rig.qp_state(0x8_0020), QpState::INIT);
}

#[test]
fn every_transition_is_refused_from_every_state_but_its_own() {
    let (mut rig, cq) = rig();
    let context = qp_context(ServiceType::UD, 0, 1, cq.cqn);
    let rows = [
        (Opcode::RST2INIT_QPEE, QpState::RST),
        (Opcode::INIT2INIT_QPEE, QpState::INIT),
        (Opcode::INIT2RTR_QPEE, QpState::INIT),
        (Opcode::RTR2RTS_QPEE, QpState::RTR),
        (Opcode::RTS2RTS_QPEE, QpState::RTS),
        (Opcode::RTS2SQD_QPEE, QpState::RTS),
        (Opcode::SQD2SQD_QPEE, QpState::SQD),
        (Opcode::SQD2RTS_QPEE, QpState::SQD),
        (Opcode::SQERR2RTS_QPEE, QpState::SQE),
    ];
    let way = [
        Opcode::RST2INIT_QPEE,
        Opcode::INIT2RTR_QPEE,
        Opcode::RTR2RTS_QPEE,
        Opcode::RTS2SQD_QPEE,
        Opcode::TO_ERR_QPEE,
    ];
    for steps in 0..=way.len() {
        for (opcode, from) in rows {
            rig.command(Opcode::ERR2RST_QPEE, 3, 0x20, 0);
            for &step in &way[..steps] {
                assert_eq!(rig.modify(step, 0x20, 0, &context), CmdStatus::OK);
            }
            let state = rig.qp_state(0x20);
            let expected = match state == from {
                true => CmdStatus::OK,
                false => CmdStatus::BAD_QPEE_STATE,
            };
            assert_eq!(
                rig.modify(opcode, 0x20, 0, &context),
                expected,
                "{opcode:?} in {state:?}"
            );
            if expected != CmdStatus::OK {
                assert_eq!(rig.qp_state(0x20), state);
            }
        }
    }
}

#[test]
fn a_drained_queue_tells_if_it_was_asked_to() {
    let (mut rig, cq) = rig();
    rig.ud_qp(0x20, 1, &cq);
    let mut modifier = QpModifier::new(0x20);
    modifier.sqd_event = true;
    rig.modify_plain(Opcode::RTS2SQD_QPEE, modifier.encode());
    let events = rig.take_events(EQ_ASYNC, &mut 1);
    assert_eq!(
        (events[0].event_type(), events[0].number()),
        (EventType::SQ_DRAINED, 0x20)
    );
}

#[test]
fn what_a_query_shows_is_what_the_transitions_took() {
    let (mut rig, cq) = rig();
    let mut context = qp_context(ServiceType::RC, 0, 2, cq.cqn);
    let status = rig.modify(Opcode::RST2INIT_QPEE, 0x20, 0, &context);
    assert_eq!(status, CmdStatus::OK);
    let mut path = context.primary_path();
    path.set_dlid(0x77).set_sl(5).set_grh(true).set_hop_limit(9);
    context
        .set_primary_path(path)
        .set_remote_qpn(0x404)
        .set_next_receive_psn(0x12_3456)
        .set_rra_max(2)
        .set_min_rnr_timer(12)
        .set_rre(true);
    assert_eq!(
        rig.modify(Opcode::INIT2RTR_QPEE, 0x20, opt::RRE, &context),
        CmdStatus::OK
    );
    let mut rts = QpContext::ZERO;
    let mut path = rts.primary_path();
    path.set_ack_timeout(14).set_rnr_retry(6);
    rts.set_primary_path(path)
        .set_next_send_psn(0x65_4321)
        .set_retry_count(5)
        .set_sra_max(1);
    assert_eq!(
        rig.modify(Opcode::RTR2RTS_QPEE, 0x20, 0, &rts),
        CmdStatus::OK
    );
    let shown = rig.query_qp(0x20);
    assert_eq!(
        (shown.state(), shown.service(), shown.mtu()),
        (QpState::RTS, ServiceType::RC, 4)
    );
    let path = shown.primary_path();
    assert_eq!(
        (path.port(), path.dlid(), path.sl(), path.hop_limit()),
        (2, 0x77, 5, 9)
    );
    assert_eq!(
        (path.ack_timeout(), path.rnr_retry(), shown.retry_count()),
        (14, 6, 5)
    );
    assert_eq!(
        (
            shown.remote_qpn(),
            shown.next_receive_psn(),
            shown.next_send_psn()
        ),
        (0x404, 0x12_3456, 0x65_4321)
    );
    assert_eq!(
        (shown.sra_max(), shown.rra_max(), shown.min_rnr_timer()),
        (1, 2, 12)
    );
    assert!(shown.rre() && !shown.rwe() && shown.all_signaled());
    assert_eq!((shown.q_key(), shown.local_qpn()), (Q_KEY, 0x20));
}

#[test]
fn sends_before_rts_are_lost_and_receives_before_init_too() {
    let (mut rig, mut cq) = rig();
    let mut qp = rig.create_qp(0x20, ServiceType::UD, 1, &cq);
    rig.post_receive(&mut qp, &[(BUFFER, 256)]);
    rig.post_send(&mut qp, SEND, &[good()], FLAGS);
    rig.ready(&qp);
    assert!(rig.poll(&mut cq).is_none());
    rig.modify_plain(Opcode::TO_ERR_QPEE, 0x20);
    assert_eq!(
        rig.poll_error(&mut cq).opcode(),
        0xfe,
        "the receive of INIT counts"
    );
    assert!(rig.poll(&mut cq).is_none());
}

#[test]
fn a_context_that_names_what_does_not_exist_is_refused() {
    let (mut rig, cq) = rig();
    let bad: [(Change<QpContext>, CmdStatus); 6] = [
        (
            |context| context.set_send_cqn(0x21),
            CmdStatus::BAD_RESOURCE,
        ),
        (
            |context| context.set_receive_cqn(0x1_0020),
            CmdStatus::BAD_RESOURCE,
        ),
        (
            |context| context.set_has_srq(true).set_srqn(0x20),
            CmdStatus::BAD_RESOURCE,
        ),
        (
            |context| context.set_service(ServiceType::RD),
            CmdStatus::BAD_PARAM,
        ),
        (
            |context| context.set_uar_page(0xff_ffff),
            CmdStatus::BAD_PARAM,
        ),
        (
            |context| context.set_primary_path(QpContext::ZERO.primary_path()),
            CmdStatus::BAD_PARAM,
        ),
    ];
    for (change, status) in bad {
        let mut context = qp_context(ServiceType::UD, 0, 1, cq.cqn);
        change(&mut context);
        assert_eq!(rig.modify(Opcode::RST2INIT_QPEE, 0x20, 0, &context), status);
    }
    let context = qp_context(ServiceType::UD, 0, 1, cq.cqn);
    assert_eq!(
        rig.modify(Opcode::RST2INIT_QPEE, 0x0f, 0, &context),
        CmdStatus::BAD_RESOURCE
    );
    assert_eq!(
        rig.modify(Opcode::RST2INIT_QPEE, 1 << 24 | 0x20, 0, &context),
        CmdStatus::BAD_PARAM
    );
}
