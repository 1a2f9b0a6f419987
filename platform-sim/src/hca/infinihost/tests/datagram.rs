//! Datagrams on one card: to itself, and what is refused. infinihost 4.10, 5.6, 5.8, 5.10.

use super::verbs::*;
use super::*;
use crate::machine::PciFunction;
use core_ib::wire::mad::{GuidInfo, PortInfo};
use hca_abi::infinihost::cmd::{CmdStatus, Opcode};
use hca_abi::infinihost::cqe::Syndrome;
use hca_abi::infinihost::eqe::EventType;
use hca_abi::infinihost::qp::{QpState, ServiceType};
use hca_abi::infinihost::wqe::{DataSegment, WqeOpcode, next};
use zerocopy::IntoBytes;

const SEND: WqeOpcode = WqeOpcode::SEND;
/// Where address vectors lie.
const AV: u64 = 0x3000;
/// Data to send.
const DATA: u64 = 0x4000;
/// Receive buffers.
const BUFFER: u64 = 0x5000;
const LID: u16 = 0x15;

fn rig() -> (Rig, Cq) {
    let mut rig = Rig::card(1);
    rig.start(true);
    rig.activate(1, LID);
    let cq = rig.create_cq(0x40_0020);
    rig.store(AV, &av(1, LID));
    rig.store(DATA, &[0xab_u8; 100]);
    (rig, cq)
}

fn to(qpn: u32, len: u32) -> Vec<u8> {
    datagram(AV, qpn, Q_KEY, DataSegment::new(len, ALL, DATA))
}

#[test]
fn a_datagram_to_the_own_lid_comes_back_without_the_wire() {
    let (mut rig, mut cq) = rig();
    let mut one = rig.ud_qp(0x12_3018, 1, &cq);
    let mut other = rig.ud_qp(0x00_0019, 1, &cq);
    rig.store(BUFFER, &[0xee_u8; 200]);
    rig.post_receive(&mut other, &[(BUFFER, 200)]);
    rig.post_send(
        &mut one,
        SEND,
        &[to(other.qpn, 100)],
        next::ALWAYS_ONE | next::SOLICITED,
    );
    let sent = rig.poll(&mut cq).unwrap();
    assert_eq!(
        (sent.qpn(), sent.opcode(), sent.is_send()),
        (0x12_3018, 0x0a, true)
    );
    assert_eq!(sent.wqe_address(), rig.wqe_at(&one, one.send_wqe(0)) as u32);
    let received = rig.poll(&mut cq).unwrap();
    assert_eq!((received.qpn(), received.remote_qpn()), (0x19, 0x12_3018));
    assert_eq!((received.byte_count(), received.slid()), (140, LID));
    assert_eq!(
        (received.opcode(), received.is_send(), received.grh()),
        (0x64, false, false)
    );
    assert_eq!(received.wqe_address(), other.at as u32);
    assert_eq!(
        rig.load::<[u8; 40]>(BUFFER),
        [0xee; 40],
        "no GRH: left as it is"
    );
    assert_eq!(rig.load::<[u8; 100]>(BUFFER + 40), [0xab; 100]);
    assert_eq!(rig.load::<[u8; 60]>(BUFFER + 140), [0xee; 60]);
    assert_eq!(rig.bus.sent.len(), 0);
    assert_eq!(rig.bus.reports, [""; 0]);
    assert!(rig.hca.ledger().is_empty(), "{}", rig.hca.ledger());
}

/// infinihost 4.5.1, 4.5.2, byte by byte.
#[test]
fn completions_lie_in_memory_as_published() {
    let (mut rig, cq) = rig();
    let mut qp = rig.ud_qp(0x12_3018, 1, &cq);
    rig.post_receive(&mut qp, &[(BUFFER, 200)]);
    rig.post_send(&mut qp, SEND, &[to(0x12_3018, 4)], next::ALWAYS_ONE);
    let bad = datagram(AV, 1, 0, DataSegment::new(4, 0xbad, 0));
    rig.post_send(&mut qp, SEND, &[bad], next::ALWAYS_ONE);
    let at = (qp.at as u32).to_be_bytes();
    let [_, high, mid, low] = (qp.at as u32 + 0x800).to_be_bytes();
    let sent = [
        [0, 0x12, 0x30, 0x18, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        [
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            at[0],
            high,
            mid,
            low | 5,
            0x0a,
            0x80,
            0,
            0,
        ],
    ];
    let received = [
        [
            0, 0x12, 0x30, 0x18, 0, 0, 0, 0, 0, 0x12, 0x30, 0x18, 0, 0, 0, LID as u8,
        ],
        [
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            44,
            at[0],
            at[1],
            at[2],
            at[3] | 2,
            0x64,
            0,
            0,
            0,
        ],
    ];
    let failed = [
        [0, 0x12, 0x30, 0x18, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        [
            4,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            at[0],
            high,
            mid + 1,
            low | 5,
            0xff,
            0,
            0,
            0,
        ],
    ];
    for (place, expected) in [sent, received, failed].into_iter().enumerate() {
        let found: [[u8; 16]; 2] = rig.load(cq.at + 32 * place as u64);
        assert_eq!(found, expected, "entry {place}");
    }
}

#[test]
fn immediate_data_and_a_grh_arrive() {
    let (mut rig, mut cq) = rig();
    let mut qp = rig.ud_qp(0x20, 1, &cq);
    let gid: GuidInfo = rig.get(1, 0);
    let mut vector = av(1, LID);
    let mut dgid = [0; 16];
    dgid[..8].copy_from_slice(&0xfe80_0000_0000_0000_u64.to_be_bytes());
    dgid[8..].copy_from_slice(&gid.guids[0].0.to_be_bytes());
    vector
        .set_grh(true)
        .set_hop_limit(7)
        .set_dgid(dgid)
        .set_sl(3)
        .set_flow_label(0x1_2345);
    rig.store(AV, &vector);
    rig.post_receive(&mut qp, &[(BUFFER, 256)]);
    rig.post_send(
        &mut qp,
        WqeOpcode::SEND_IMM,
        &[to(0x20, 8)],
        next::ALWAYS_ONE,
    );
    assert_eq!(rig.poll(&mut cq).unwrap().opcode(), 0x0b);
    let received = rig.poll(&mut cq).unwrap();
    assert_eq!(
        (received.opcode(), received.immediate()),
        (0x65, 0xcafe_f00d)
    );
    assert!(received.grh());
    assert_eq!(received.sl(), 3);
    let grh: [u8; 40] = rig.load(BUFFER);
    assert_eq!(grh[..4], [0x60, 0x01, 0x23, 0x45]);
    assert_eq!(grh[7], 7, "hop limit");
    assert_eq!((&grh[8..24], &grh[24..40]), (&dgid[..], &dgid[..]));
}

#[test]
fn a_list_is_gathered_and_scattered_over_its_entries_inline_ones_included() {
    let (mut rig, mut cq) = rig();
    let mut qp = rig.ud_qp(0x20, 1, &cq);
    rig.store(DATA, b"abcdef");
    let mut body = to(0x20, 3);
    let mut inline = [0; 16];
    inline[..4].copy_from_slice(&0x8000_0005_u32.to_be_bytes());
    inline[4..9].copy_from_slice(b"VWXYZ");
    body.extend_from_slice(&inline);
    body.extend_from_slice(DataSegment::new(0, 0xdead, 1).as_bytes());
    body.extend_from_slice(DataSegment::new(2, ALL, DATA + 4).as_bytes());
    rig.post_receive(&mut qp, &[(BUFFER, 43)]);
    let wqe = rig.wqe_at(&qp, 0);
    rig.store(wqe + 32, &DataSegment::new(4, ALL, BUFFER + 0x100));
    rig.store(wqe + 48, &DataSegment::new(100, ALL, BUFFER + 0x200));
    // The doorbell said two units; the list is longer.
    rig.ring(UAR.into(), 0x18, (qp.at | 4) << 32 | 0x20 << 8 | 1);
    rig.post_send(
        &mut qp,
        SEND,
        core::slice::from_ref(&body),
        next::ALWAYS_ONE,
    );
    rig.poll(&mut cq).unwrap();
    let error = rig.poll_error(&mut cq);
    assert_eq!(
        error.syndrome(),
        Syndrome::LOCAL_LENGTH,
        "the first doorbell's two units"
    );
    assert_eq!(error.doorbell_count(), 1);
    assert_eq!(rig.qp_state(0x20), QpState::ERR);

    let mut qp = rig.ud_qp(0x21, 1, &cq);
    let wqe = qp.at;
    for (number, (len, at)) in [(43, 0), (4, 0x100), (100, 0x200)].into_iter().enumerate() {
        rig.store(
            wqe + 16 + 16 * number as u64,
            &DataSegment::new(len, ALL, BUFFER + at),
        );
    }
    rig.ring(UAR.into(), 0x18, (qp.at | 4) << 32 | 0x21 << 8 | 1);
    body[32..36].copy_from_slice(&0x21_u32.to_be_bytes());
    rig.post_send(&mut qp, SEND, &[body], next::ALWAYS_ONE);
    rig.poll(&mut cq).unwrap();
    assert_eq!(rig.poll(&mut cq).unwrap().byte_count(), 50);
    assert_eq!(&rig.load::<[u8; 3]>(BUFFER + 40), b"abc");
    assert_eq!(&rig.load::<[u8; 4]>(BUFFER + 0x100), b"VWXY");
    assert_eq!(&rig.load::<[u8; 3]>(BUFFER + 0x200), b"Zef");
}

#[test]
fn address_vectors_are_read_from_attached_memory_too() {
    let (mut rig, mut cq) = rig();
    let mut qp = rig.ud_qp(0x20, 1, &cq);
    rig.hca
        .attached_memory()
        .write(0x70_0000, av(1, LID).as_bytes())
        .unwrap();
    rig.store(AV, &[0_u8; 32]);
    rig.post_receive(&mut qp, &[(BUFFER, 256)]);
    let body = datagram(
        BAR4 + 0x70_0000,
        0x20,
        Q_KEY,
        DataSegment::new(4, ALL, DATA),
    );
    rig.post_send(&mut qp, SEND, &[body], next::ALWAYS_ONE);
    rig.poll(&mut cq).unwrap();
    assert_eq!(rig.poll(&mut cq).unwrap().byte_count(), 44);
}

#[test]
fn a_controlled_q_key_stands_for_the_senders_own_and_a_wrong_one_is_counted() {
    let (mut rig, mut cq) = rig();
    let mut qp = rig.ud_qp(0x20, 1, &cq);
    rig.post_receive(&mut qp, &[(BUFFER, 256)]);
    for (q_key, arrives) in [(Q_KEY + 1, false), (0x8000_0000, true)] {
        let body = datagram(AV, 0x20, q_key, DataSegment::new(4, ALL, DATA));
        rig.post_send(&mut qp, SEND, &[body], next::ALWAYS_ONE);
        rig.poll(&mut cq).unwrap();
        assert_eq!(rig.poll(&mut cq).is_some(), arrives);
    }
    assert_eq!(rig.get::<PortInfo>(1, 1).q_key_violations, 1);
}

#[test]
fn a_datagram_without_a_receive_request_is_dropped() {
    let (mut rig, mut cq) = rig();
    let mut qp = rig.ud_qp(0x20, 1, &cq);
    rig.post_send(&mut qp, SEND, &[to(0x20, 4)], next::ALWAYS_ONE);
    rig.poll(&mut cq).unwrap();
    assert!(rig.poll(&mut cq).is_none());
    assert_eq!(rig.qp_state(0x20), QpState::RTS);
}

/// A QP that makes no completions unless asked for.
fn quiet_qp(rig: &mut Rig, cq: &Cq) -> Qp {
    let mut context = qp_context(ServiceType::UD, 0, 1, cq.cqn);
    context.set_all_signaled(false);
    let status = rig.modify(Opcode::RST2INIT_QPEE, 0x20, 0, &context);
    assert_eq!(status, CmdStatus::OK);
    let qp = Qp::new(0x20, ServiceType::UD);
    rig.ready(&qp);
    qp
}

#[test]
fn unsignaled_sends_make_no_completion_unless_they_fail() {
    let (mut rig, mut cq) = rig();
    let mut qp = quiet_qp(&mut rig, &cq);
    rig.post_send(&mut qp, SEND, &[to(0x30, 4)], next::ALWAYS_ONE);
    assert!(rig.poll(&mut cq).is_none());
    rig.post_send(
        &mut qp,
        SEND,
        &[to(0x30, 4)],
        next::ALWAYS_ONE | next::SIGNALED,
    );
    assert_eq!(
        rig.poll(&mut cq).unwrap().wqe_address(),
        rig.wqe_at(&qp, qp.send_wqe(1)) as u32
    );
    rig.post_send(
        &mut qp,
        SEND,
        &[datagram(AV, 0x30, 0, DataSegment::new(4, 0xbad, 0))],
        next::ALWAYS_ONE,
    );
    assert_eq!(
        rig.poll_error(&mut cq).syndrome(),
        Syndrome::LOCAL_PROTECTION
    );
}

#[test]
fn what_is_wrong_with_a_send_is_said_by_its_syndrome() {
    let (mut rig, mut cq) = rig();
    rig.store(AV + 0x100, &av(2, LID));
    let mut foreign = av(1, LID);
    foreign.set_pd(PD + 1);
    rig.store(AV + 0x200, &foreign);
    let data = DataSegment::new(4, ALL, DATA);
    let long = DataSegment::new(2049, ALL, DATA);
    let unmapped = DataSegment::new(4, ALL, HOST_END);
    let sentinel = DataSegment::new(4, 0x100, DATA);
    let cases = [
        (
            SEND,
            datagram(AV, 1, 0, unmapped),
            Some(Syndrome::LOCAL_PROTECTION),
        ),
        (SEND, datagram(AV, 1, 0, long), Some(Syndrome::LOCAL_LENGTH)),
        (
            SEND,
            datagram(AV + 0x100, 1, 0, data),
            Some(Syndrome::LOCAL_QP_OPERATION),
        ),
        (
            SEND,
            datagram(AV + 0x200, 1, 0, data),
            Some(Syndrome::LOCAL_PROTECTION),
        ),
        (
            SEND,
            datagram(HOST_END, 1, 0, data),
            Some(Syndrome::LOCAL_PROTECTION),
        ),
        (SEND, vec![0; 16], Some(Syndrome::LOCAL_QP_OPERATION)),
        (
            WqeOpcode::RDMA_READ,
            datagram(AV, 1, 0, data),
            Some(Syndrome::LOCAL_QP_OPERATION),
        ),
        (SEND, datagram(AV, 1, 0, sentinel), None),
        (WqeOpcode::NOP, vec![], None),
        (WqeOpcode::RDMA_WRITE, datagram(AV, 1, 0, data), None),
    ];
    for (number, (opcode, body, syndrome)) in cases.into_iter().enumerate() {
        let mut qp = rig.ud_qp(0x30 + number as u32, 1, &cq);
        rig.post_send(&mut qp, opcode, &[body], next::ALWAYS_ONE);
        match syndrome {
            Some(syndrome) => {
                let error = rig.poll_error(&mut cq);
                assert_eq!(
                    (error.syndrome(), error.opcode()),
                    (syndrome, 0xff),
                    "case {number}"
                );
                assert_eq!(rig.qp_state(qp.qpn), QpState::SQE);
            }
            None => assert!(!rig.poll(&mut cq).unwrap().is_error(), "case {number}"),
        }
    }
}

#[test]
fn a_buffer_that_may_not_be_written_stops_both_queues() {
    let (mut rig, mut cq) = rig();
    let mut qp = rig.ud_qp(0x20, 1, &cq);
    rig.post_receive(&mut qp, &[(HOST_END - 60, 256), (BUFFER, 256)]);
    rig.post_send(&mut qp, SEND, &[to(0x20, 100)], next::ALWAYS_ONE);
    rig.poll(&mut cq).unwrap();
    let error = rig.poll_error(&mut cq);
    assert_eq!(
        (error.syndrome(), error.opcode()),
        (Syndrome::LOCAL_PROTECTION, 0xfe)
    );
    assert_eq!(error.doorbell_count(), 1, "the other request");
    assert_eq!(rig.qp_state(0x20), QpState::ERR);
    assert!(rig.poll(&mut cq).is_none());
}

#[test]
fn a_queue_that_cannot_be_read_is_a_catastrophe_of_that_queue() {
    let (mut rig, mut cq) = rig();
    rig.ud_qp(0x20, 1, &cq);
    rig.ring(UAR.into(), 0x10, (HOST_END | 0x0a) << 32 | 0x20 << 8 | 6);
    let error = rig.poll_error(&mut cq);
    assert_eq!(error.syndrome(), Syndrome::FLUSHED);
    let events = rig.take_events(EQ_ASYNC, &mut 1);
    assert_eq!(events[0].event_type(), EventType::WQ_CATASTROPHIC);
    assert_eq!((events[0].number(), events[0].is_qp()), (0x20, true));
    assert_eq!(rig.qp_state(0x20), QpState::ERR);
}

#[test]
fn a_queue_waits_while_the_wire_has_no_room_and_then_goes_on_in_order() {
    let (mut rig, mut cq) = rig();
    let mut qp = rig.ud_qp(0x20, 1, &cq);
    rig.store(AV, &av(1, 0x99));
    rig.bus.full = true;
    let bodies: Vec<_> = (1..=3).map(|len| to(0x20, len * 4)).collect();
    rig.post_send(&mut qp, SEND, &bodies, next::ALWAYS_ONE);
    rig.settle();
    assert!(rig.poll(&mut cq).is_none() && rig.bus.sent.is_empty());
    rig.bus.full = false;
    rig.hca.send_room(&mut rig.bus, 1, 0);
    let lens: Vec<_> = rig
        .bus
        .sent
        .iter()
        .map(|(_, packet)| packet.len())
        .collect();
    assert_eq!(lens, [38, 42, 46]);
    (0..3).for_each(|_| assert!(!rig.poll(&mut cq).unwrap().is_error()));
    let counts = rig.get::<PortInfo>(1, 1);
    assert_eq!(counts.q_key_violations, 0);
}

/// A NOP that is chained to itself.
fn endless(rig: &mut Rig, qp: &Qp) {
    let at = rig.wqe_at(qp, qp.send_wqe(0));
    rig.store(at, &(at as u32).to_be_bytes());
    rig.store(at + 4, &1_u32.to_be_bytes());
    rig.ring(UAR.into(), 0x10, at << 32 | u64::from(qp.qpn) << 8 | 1);
}

#[test]
fn a_chain_without_end_stops_neither_the_card_nor_the_clock() {
    let (mut rig, cq) = rig();
    let qp = quiet_qp(&mut rig, &cq);
    let before = rig.bus.now;
    endless(&mut rig, &qp);
    rig.settle();
    assert!(
        rig.bus.now.0 > before.0 + 900_000,
        "it goes on, and so does time"
    );
    assert_eq!(
        rig.command(Opcode::ERR2RST_QPEE, 3, qp.qpn, 0).status,
        CmdStatus::OK
    );
    assert!(rig.bus.timers.is_empty());
}

#[test]
fn a_cq_that_overruns_is_an_error_of_the_cq_and_of_its_queue_pairs() {
    let (mut rig, cq) = rig();
    let qp = rig.ud_qp(0x20, 1, &cq);
    rig.ud_qp(0x21, 1, &cq);
    endless(&mut rig, &qp);
    let events = rig.take_events(EQ_ASYNC, &mut 1);
    let kinds: Vec<_> = events
        .iter()
        .map(|eqe| (eqe.event_type(), eqe.number()))
        .collect();
    let expected = [
        (EventType::CQ_ERROR, cq.cqn),
        (EventType::WQ_CATASTROPHIC, 0x20),
        (EventType::WQ_CATASTROPHIC, 0x21),
    ];
    assert_eq!(kinds, expected);
    assert_eq!(events[0].syndrome(), 1);
    assert_eq!(rig.qp_state(0x20), QpState::ERR);
    let written = (0..16)
        .filter(|at| rig.load::<[u8; 32]>(cq.at + at * 32)[31] == 0)
        .count();
    assert_eq!(written, 16, "all entries, and not one twice");
}
