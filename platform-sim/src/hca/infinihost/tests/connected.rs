//! Connections, as a driver of T-mode sees them: two cards on one cable. infinihost 4.5, 5.3 to 5.8, 5.12.

use super::verbs::*;
use super::*;
use crate::machine::PciFunction;
use core_ib::Instant;
use hca_abi::infinihost::cmd::{CmdStatus, Opcode};
use hca_abi::infinihost::cqe::Syndrome;
use hca_abi::infinihost::eqe::EventType;
use hca_abi::infinihost::qp::{PathMigration, QpContext, QpState, ServiceType, opt};
use hca_abi::infinihost::wqe::{AtomicSegment, DataSegment, RemoteAddressSegment, WqeOpcode, next};
use proptest::prelude::*;
use zerocopy::IntoBytes;

const DATA: u64 = 0x4000;
const BUFFER: u64 = 0x8000;
const QPN: u32 = 0x30;
/// Key of what peers may do to memory.
const PEER: u32 = 0x21;
const FLAGS: u32 = next::ALWAYS_ONE;
/// First PSN of either.
const PSN: u32 = 0xff_fffe;

/// A context for every transition of a connection to QP [`QPN`] at `dlid`.
fn context(service: ServiceType, dlid: u16, cq: &Cq) -> QpContext {
    let mut context = qp_context(service, 0, 1, cq.cqn);
    let mut path = context.primary_path();
    path.set_dlid(dlid).set_ack_timeout(10).set_rnr_retry(7);
    context
        .set_path_migration(PathMigration::MIGRATED)
        .set_mtu(1)
        .set_msg_max(31)
        .set_remote_qpn(QPN)
        .set_primary_path(path)
        .set_flight_limit(4)
        .set_sra_max(2)
        .set_rra_max(2)
        .set_retry_count(3)
        .set_min_rnr_timer(1)
        .set_next_send_psn(PSN)
        .set_next_receive_psn(PSN);
    for set in [QpContext::set_sre, QpContext::set_sae] {
        set(&mut context, true);
    }
    for set in [QpContext::set_rre, QpContext::set_rwe, QpContext::set_rae] {
        set(&mut context, true);
    }
    context
}

const ALL_BITS: u32 =
    opt::RRE | opt::RWE | opt::RAE | opt::SRA_MAX | opt::ACK_TIMEOUT | opt::PM_STATE;
const RETRIES: u32 = opt::RETRY_COUNT | opt::RNR_RETRY;

/// Takes QP [`QPN`] from INIT to RTS.
fn connect(rig: &mut Rig, context: &QpContext) {
    for opcode in [Opcode::INIT2RTR_QPEE, Opcode::RTR2RTS_QPEE] {
        let mask = ALL_BITS | RETRIES;
        assert_eq!(rig.modify(opcode, QPN, mask, context), CmdStatus::OK);
    }
}

/// One end: a card with an active port, a CQ and a QP in RTS.
struct End {
    rig: Rig,
    cq: Cq,
    qp: Qp,
    /// Events that were taken.
    told: u64,
}

impl End {
    fn new(number: u64, service: ServiceType) -> Self {
        let mut rig = Rig::card(number);
        rig.start(true);
        rig.activate(1, number as u16);
        let cq = rig.create_cq(0x20);
        let qp = rig.create_qp(QPN, service, 1, &cq);
        let mut end = Self {
            rig,
            cq,
            qp,
            told: 0,
        };
        let context = context(service, 3 - number as u16, &end.cq);
        connect(&mut end.rig, &context);
        end
    }

    fn post(&mut self, opcode: WqeOpcode, bodies: &[Vec<u8>]) {
        self.rig.post_send(&mut self.qp, opcode, bodies, FLAGS);
    }

    /// All completions: opcode and byte count, or 0xfe or 0xff, syndrome and doorbell count.
    fn completions(&mut self) -> Vec<(u8, u32, u16)> {
        let mut all = Vec::new();
        while let Some(cqe) = self.rig.poll(&mut self.cq) {
            let error = cqe.as_error();
            all.push(if cqe.is_error() {
                let syndrome = u32::from(error.syndrome().0);
                (error.opcode(), syndrome, error.doorbell_count())
            } else {
                (cqe.opcode(), cqe.byte_count(), 0)
            });
        }
        all
    }

    fn events(&mut self) -> Vec<(EventType, u32)> {
        let all = self.rig.take_events(EQ_ASYNC, &mut self.told);
        let all = all.into_iter().map(|eqe| (eqe.event_type(), eqe.number()));
        all.filter(|(event, _)| *event != EventType::PORT_CHANGE)
            .collect()
    }
}

fn pair(service: ServiceType) -> [End; 2] {
    [1, 2].map(|number| End::new(number, service))
}

/// What `from` has sent arrives.
fn deliver(from: &mut End, to: &mut End) {
    for (port, packet) in core::mem::take(&mut from.rig.bus.sent) {
        to.rig.hca.receive(&mut to.rig.bus, port, &packet);
    }
}

/// Carries packets until none is under way and no clock of the next millisecond is set.
fn carry(one: &mut End, other: &mut End) {
    for _ in 0..1000 {
        deliver(one, other);
        deliver(other, one);
        if !one.rig.bus.sent.is_empty() || !other.rig.bus.sent.is_empty() {
            continue;
        }
        one.rig.settle();
        other.rig.settle();
        if one.rig.bus.sent.is_empty() && other.rig.bus.sent.is_empty() {
            return;
        }
    }
    panic!("no end");
}

fn remote(at: u64, rkey: u32) -> RemoteAddressSegment {
    let mut segment = RemoteAddressSegment::ZERO;
    segment.set_address(at).set_rkey(rkey);
    segment
}

fn local(at: u64, len: u32) -> DataSegment {
    DataSegment::new(len, ALL, at)
}

fn send(len: u32) -> Vec<u8> {
    local(DATA, len).as_bytes().to_vec()
}

fn rdma(at: u64, len: u32) -> Vec<u8> {
    [remote(at, PEER).as_bytes(), local(DATA, len).as_bytes()].concat()
}

/// On the number at 0x9000.
fn atomic(operands: &AtomicSegment, to: u64) -> Vec<u8> {
    let (remote, local) = (remote(0x9000, PEER), local(to, 8));
    [remote.as_bytes(), operands.as_bytes(), local.as_bytes()].concat()
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8 ^ seed).collect()
}

/// Lets peers at the first megabyte.
fn open(rig: &mut Rig) {
    let mut region = all_memory();
    region
        .set_key(PEER)
        .set_length(1 << 20)
        .set_remote_read(true)
        .set_remote_write(true)
        .set_remote_atomic(true);
    let status = rig.give(Opcode::SW2HW_MPT, 0, PEER, &region);
    assert_eq!(status, CmdStatus::OK);
}

#[test]
fn completions_of_a_connection_say_what_the_reference_says() {
    let [mut one, mut other] = pair(ServiceType::RC);
    open(&mut other.rig);
    other.rig.post_receive(
        &mut other.qp,
        &[(BUFFER, 1000), (BUFFER, 1000), (BUFFER, 0)],
    );
    one.rig.store(DATA, &pattern(700, 1)[..]);
    one.post(WqeOpcode::SEND, &[send(700)]);
    one.post(WqeOpcode::SEND_IMM, &[send(5)]);
    one.post(WqeOpcode::RDMA_WRITE_IMM, &[rdma(0x9000, 300)]);
    one.post(WqeOpcode::RDMA_WRITE, &[rdma(0x9800, 300)]);
    one.post(WqeOpcode::RDMA_READ, &[rdma(0x9000, 300)]);
    carry(&mut one, &mut other);
    assert_eq!(
        one.completions(),
        [
            (0x0a, 0, 0),
            (0x0b, 0, 0),
            (0x09, 0, 0),
            (0x08, 0, 0),
            (0x10, 300, 0)
        ]
    );
    assert_eq!(
        other.completions(),
        [(0x02, 700, 0), (0x05, 5, 0), (0x09, 300, 0)]
    );
    assert_eq!(
        other.rig.load::<[u8; 300]>(0x9800).to_vec(),
        pattern(300, 1)
    );
    assert_eq!(
        one.rig.query_qp(QPN).next_send_psn(),
        (PSN + 3 + 1 + 2 + 2 + 2) & 0xff_ffff
    );
}

#[test]
fn an_atomic_adds_where_it_should_and_brings_the_old_value() {
    let [mut one, mut other] = pair(ServiceType::RC);
    open(&mut other.rig);
    other.rig.store(0x9000, &7_u64.to_le_bytes());
    let mut operands = AtomicSegment::ZERO;
    operands.set_swap_add(5);
    one.post(WqeOpcode::ATOMIC_FA, &[atomic(&operands, DATA)]);
    operands.set_swap_add(99).set_compare(12);
    one.post(WqeOpcode::ATOMIC_CS, &[atomic(&operands, DATA + 8)]);
    carry(&mut one, &mut other);
    assert_eq!(one.completions(), [(0x12, 8, 0), (0x11, 8, 0)]);
    assert_eq!(one.rig.load::<[u8; 8]>(DATA), 7_u64.to_le_bytes());
    assert_eq!(one.rig.load::<[u8; 8]>(DATA + 8), 12_u64.to_le_bytes());
    assert_eq!(other.rig.load::<[u8; 8]>(0x9000), 99_u64.to_le_bytes());
}

#[test]
fn what_is_in_flight_is_flushed_by_one_completion_that_counts_doorbells() {
    let [mut one, _] = pair(ServiceType::RC);
    one.post(WqeOpcode::SEND, &[send(1), send(2)]);
    one.post(WqeOpcode::RDMA_WRITE, &[rdma(0, 3)]);
    one.post(WqeOpcode::SEND, &[send(4), send(5)]);
    assert!(!one.rig.bus.sent.is_empty(), "the first is on its way");
    assert_eq!(one.completions(), []);
    one.rig.modify_plain(Opcode::TO_ERR_QPEE, QPN);
    let flushed = u32::from(Syndrome::FLUSHED.0);
    assert_eq!(one.completions(), [(0xff, flushed, 2)]);
}

#[test]
fn silence_fails_the_oldest_and_a_refusal_the_one_it_is_about() {
    let [mut one, mut other] = pair(ServiceType::RC);
    one.post(WqeOpcode::SEND, &[send(1), send(2)]);
    for _ in 0..100 {
        one.rig.settle();
        one.rig.bus.now = Instant(one.rig.bus.now.0 + 1_000_000);
    }
    let ended = u32::from(Syndrome::RETRY_EXCEEDED.0);
    assert_eq!(one.completions(), [(0xff, ended, 0)]);
    assert_eq!(one.rig.qp_state(QPN), QpState::ERR);

    let [mut one, mut peer] = pair(ServiceType::RC);
    core::mem::swap(&mut other, &mut peer);
    other
        .rig
        .post_receive(&mut other.qp, &[(BUFFER, 10), (BUFFER, 10), (BUFFER, 10)]);
    one.post(WqeOpcode::SEND, &[send(1)]);
    one.post(WqeOpcode::SEND, &[send(11), send(3)]);
    one.post(WqeOpcode::SEND, &[send(4)]);
    carry(&mut one, &mut other);
    let refused = u32::from(Syndrome::REMOTE_INVALID_REQUEST.0);
    assert_eq!(one.completions(), [(0x0a, 0, 0), (0xff, refused, 1)]);
    let too_long = u32::from(Syndrome::LOCAL_LENGTH.0);
    assert_eq!(other.completions(), [(0x04, 1, 0), (0xfe, too_long, 1)]);
    let states = [&mut one, &mut other].map(|end| end.rig.qp_state(QPN));
    assert_eq!(states, [QpState::ERR; 2]);
}

#[test]
fn a_refused_access_is_an_event_and_flushes_what_was_posted() {
    let [mut one, mut other] = pair(ServiceType::RC);
    other
        .rig
        .post_receive(&mut other.qp, &[(BUFFER, 10), (BUFFER, 10)]);
    one.post(WqeOpcode::RDMA_WRITE, &[rdma(0x9000, 8)]);
    carry(&mut one, &mut other);
    let refused = u32::from(Syndrome::REMOTE_ACCESS.0);
    assert_eq!(one.completions(), [(0xff, refused, 0)]);
    assert_eq!(
        other.completions(),
        [(0xfe, u32::from(Syndrome::FLUSHED.0), 1)]
    );
    assert_eq!(other.events(), [(EventType::WQ_ACCESS_VIOLATION, QPN)]);
    assert_eq!(other.rig.load::<[u8; 8]>(0x9000), [0; 8]);
}

#[test]
fn a_message_half_received_is_flushed_with_the_rest() {
    let [mut one, mut other] = pair(ServiceType::RC);
    other
        .rig
        .post_receive(&mut other.qp, &[(BUFFER, 1000), (BUFFER, 10)]);
    one.post(WqeOpcode::SEND, &[send(700)]);
    let (port, first) = one.rig.bus.sent.remove(0);
    other.rig.hca.receive(&mut other.rig.bus, port, &first);
    other.rig.modify_plain(Opcode::TO_ERR_QPEE, QPN);
    let flushed = u32::from(Syndrome::FLUSHED.0);
    assert_eq!(other.completions(), [(0xfe, flushed, 1)]);
    other.rig.bus.sent.clear();
    one.rig.settle();
    carry(&mut one, &mut other);
    assert_eq!(other.completions(), [], "nothing of a queue pair in ERR");
}

#[test]
fn a_queue_pair_drains_what_it_has_begun_and_then_says_so() {
    let [mut one, mut other] = pair(ServiceType::RC);
    other
        .rig
        .post_receive(&mut other.qp, &[(BUFFER, 10), (BUFFER, 10)]);
    one.post(WqeOpcode::SEND, &[send(1)]);
    one.rig.modify_plain(Opcode::RTS2SQD_QPEE, QPN | 1 << 31);
    assert_eq!(one.rig.qp_state(QPN), QpState::SQ_DRAINING);
    one.post(WqeOpcode::SEND, &[send(2)]);
    assert_eq!(one.events(), []);
    let status = one.rig.modify_plain(Opcode::SQD2RTS_QPEE, QPN);
    assert_eq!(status, CmdStatus::BAD_QPEE_STATE);
    carry(&mut one, &mut other);
    assert_eq!(one.completions(), [(0x0a, 0, 0)]);
    assert_eq!(one.events(), [(EventType::SQ_DRAINED, QPN)]);
    assert_eq!(one.rig.qp_state(QPN), QpState::SQD);
    assert_eq!(
        one.rig.modify_plain(Opcode::SQD2RTS_QPEE, QPN),
        CmdStatus::OK
    );
    carry(&mut one, &mut other);
    assert_eq!(one.completions(), [(0x0a, 0, 0)]);
}

#[test]
fn a_uc_queue_stops_at_a_bad_request_and_goes_on_after_sqerr2rts() {
    let [mut one, mut other] = pair(ServiceType::UC);
    other
        .rig
        .post_receive(&mut other.qp, &[(BUFFER, 1000), (BUFFER, 1000)]);
    let bad = DataSegment::new(8, 0x7777, DATA).as_bytes().to_vec();
    one.post(WqeOpcode::SEND, &[send(700), bad, send(3)]);
    let wrong = u32::from(Syndrome::LOCAL_PROTECTION.0);
    assert_eq!(one.completions(), [(0x0a, 0, 0), (0xff, wrong, 0)]);
    assert_eq!(one.rig.qp_state(QPN), QpState::SQE);
    assert_eq!(
        one.rig.modify_plain(Opcode::SQERR2RTS_QPEE, QPN),
        CmdStatus::OK
    );
    one.post(WqeOpcode::SEND, &[send(4)]);
    carry(&mut one, &mut other);
    assert_eq!(other.completions(), [(0x22, 700, 0), (0x24, 4, 0)]);
}

#[test]
fn a_full_wire_stops_a_message_where_it_is_until_there_is_room() {
    for service in [ServiceType::RC, ServiceType::UC] {
        let [mut one, mut other] = pair(service);
        open(&mut other.rig);
        one.rig.store(DATA, &pattern(0x3000, 9)[..]);
        one.rig.bus.full = true;
        one.post(WqeOpcode::RDMA_WRITE, &[rdma(0xa000, 0x3000)]);
        one.rig.settle();
        assert!(one.rig.bus.sent.is_empty());
        one.rig.bus.full = false;
        one.rig.hca.send_room(&mut one.rig.bus, 1, 0);
        assert!(!one.rig.bus.sent.is_empty());
        carry(&mut one, &mut other);
        assert_eq!(one.completions(), [(0x08, 0, 0)]);
        assert_eq!(
            other.rig.load::<[u8; 0x3000]>(0xa000).to_vec(),
            pattern(0x3000, 9)
        );
    }
}

#[test]
fn a_card_is_its_own_peer() {
    let mut end = End::new(1, ServiceType::RC);
    let context = context(ServiceType::RC, 1, &end.cq);
    end.rig.modify_plain(Opcode::ERR2RST_QPEE, QPN);
    end.qp = end.rig.create_qp(QPN, ServiceType::RC, 1, &end.cq);
    connect(&mut end.rig, &context);
    open(&mut end.rig);
    end.rig.store(DATA, &pattern(5000, 4)[..]);
    end.post(WqeOpcode::RDMA_WRITE, &[rdma(0xa000, 5000)]);
    end.rig.settle();
    assert_eq!(end.completions(), [(0x08, 0, 0)]);
    assert_eq!(
        end.rig.load::<[u8; 5000]>(0xa000).to_vec(),
        pattern(5000, 4)
    );
    assert!(end.rig.bus.sent.is_empty(), "nothing on the wire");
}

#[test]
fn the_first_packet_in_rtr_is_an_event() {
    let [mut one, mut other] = pair(ServiceType::RC);
    let context = context(ServiceType::RC, 1, &other.cq);
    other.rig.modify_plain(Opcode::ERR2RST_QPEE, QPN);
    other.qp = other.rig.create_qp(QPN, ServiceType::RC, 1, &other.cq);
    let status = other
        .rig
        .modify(Opcode::INIT2RTR_QPEE, QPN, ALL_BITS, &context);
    assert_eq!(status, CmdStatus::OK);
    one.post(WqeOpcode::RDMA_WRITE, &[rdma(0, 0)]);
    one.post(WqeOpcode::RDMA_WRITE, &[rdma(0, 0)]);
    carry(&mut one, &mut other);
    assert_eq!(one.completions(), [(0x08, 0, 0), (0x08, 0, 0)]);
    assert_eq!(other.events(), [(EventType::COMM_ESTABLISHED, QPN)]);
}

#[test]
fn a_packet_from_elsewhere_is_none_of_the_connection() {
    let [mut one, mut other] = pair(ServiceType::RC);
    open(&mut other.rig);
    other.rig.set_port(1, |info| info.lmc = 1);
    one.rig.set_port(1, |info| info.lid = core_ib::Lid(9));
    one.post(WqeOpcode::RDMA_WRITE, &[rdma(0xa000, 8)]);
    one.rig.store(DATA, &[1_u8; 8]);
    deliver(&mut one, &mut other);
    assert!(other.rig.bus.sent.is_empty());
    assert_eq!(other.rig.load::<[u8; 8]>(0xa000), [0; 8]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn no_request_whatever_upsets_either_card(
        bodies in prop::collection::vec(
            (prop_oneof![0..0x20_u8, Just(0x10), Just(0x08)], prop::collection::vec(any::<u8>(), 0..112), 0..3_usize),
            1..6,
        ),
        unreliable: bool,
    ) {
        let service = if unreliable { ServiceType::UC } else { ServiceType::RC };
        let [mut one, mut other] = pair(service);
        open(&mut other.rig);
        other.rig.post_receive(&mut other.qp, &[(BUFFER, 1000); 4]);
        for (opcode, mut body, good) in bodies {
            body.resize(body.len() / 16 * 16, 0);
            // One in three is nearly right.
            if good == 0 {
                body = [&rdma(0xa000, 600)[..], &body].concat();
            }
            one.post(WqeOpcode(opcode), &[body]);
        }
        carry(&mut one, &mut other);
        for end in [&mut one, &mut other] {
            end.completions();
            let reset = end.rig.modify_plain(Opcode::ERR2RST_QPEE, QPN);
            prop_assert_eq!(reset, CmdStatus::OK);
        }
    }
}

/// Both with LIDs of two, and an alternate path by the second of each.
fn two_paths() -> [End; 2] {
    let mut ends = pair(ServiceType::RC);
    for (end, number) in ends.iter_mut().zip([1_u16, 2]) {
        let lid = |number| core_ib::Lid(number * 4);
        end.rig
            .set_port(1, |info| (info.lid, info.lmc) = (lid(number), 1));
        let mut context = context(ServiceType::RC, lid(3 - number).0, &end.cq);
        let mut path = context.primary_path();
        path.set_dlid(lid(3 - number).0 + 1).set_path_bits(1);
        context
            .set_alternate_path(path)
            .set_path_migration(PathMigration::REARM);
        end.rig.modify_plain(Opcode::ERR2RST_QPEE, QPN);
        end.qp = end.rig.create_qp(QPN, ServiceType::RC, 1, &end.cq);
        let mask = ALL_BITS | RETRIES | opt::ALT_PATH;
        for opcode in [Opcode::INIT2RTR_QPEE, Opcode::RTR2RTS_QPEE] {
            assert_eq!(end.rig.modify(opcode, QPN, mask, &context), CmdStatus::OK);
        }
    }
    ends
}

fn migration(end: &mut End) -> (PathMigration, u16) {
    let context = end.rig.query_qp(QPN);
    (context.path_migration(), context.primary_path().dlid())
}

/// Both armed, by a message each way.
fn arm(one: &mut End, other: &mut End) {
    one.post(WqeOpcode::RDMA_WRITE, &[rdma(0, 0)]);
    carry(one, other);
    other.post(WqeOpcode::RDMA_WRITE, &[rdma(0, 0)]);
    carry(one, other);
    assert_eq!(migration(one), (PathMigration::ARMED, 8));
    assert_eq!(migration(other), (PathMigration::ARMED, 4));
    one.completions();
}

#[test]
fn a_silent_path_is_left_for_the_other_and_the_peer_follows() {
    let [mut one, mut other] = two_paths();
    arm(&mut one, &mut other);
    one.post(WqeOpcode::RDMA_WRITE, &[rdma(0, 0)]);
    for _ in 0..200 {
        one.rig.bus.sent.retain(|(_, packet)| packet[3] == 9);
        carry(&mut one, &mut other);
        one.rig.bus.now = Instant(one.rig.bus.now.0 + 1_000_000);
        one.rig.settle();
    }
    assert_eq!(one.completions(), [(0x08, 0, 0)], "no request failed");
    assert_eq!(migration(&mut one), (PathMigration::MIGRATED, 9));
    assert_eq!(migration(&mut other), (PathMigration::MIGRATED, 5));
    for end in [&mut one, &mut other] {
        assert_eq!(end.events(), [(EventType::PATH_MIGRATED, QPN)]);
    }
}

#[test]
fn software_may_ask_for_the_other_path_and_a_peer_without_it_stays() {
    let [mut one, mut other] = two_paths();
    arm(&mut one, &mut other);
    let mut context = QpContext::ZERO;
    context.set_path_migration(PathMigration::MIGRATED);
    let status = one
        .rig
        .modify(Opcode::RTS2RTS_QPEE, QPN, opt::PM_STATE, &context);
    assert_eq!(status, CmdStatus::OK);
    assert_eq!(migration(&mut one), (PathMigration::MIGRATED, 9));
    assert_eq!(one.events(), [(EventType::PATH_MIGRATED, QPN)]);
    let mut astray = context;
    astray.set_path_migration(PathMigration::ARMED);
    let mut path = astray.alternate_path();
    path.set_port(1).set_dlid(77);
    astray.set_alternate_path(path);
    let mask = opt::ALT_PATH | opt::PM_STATE;
    let status = other.rig.modify(Opcode::RTS2RTS_QPEE, QPN, mask, &astray);
    assert_eq!(status, CmdStatus::OK);
    one.post(WqeOpcode::RDMA_WRITE, &[rdma(0, 0), rdma(0, 0)]);
    carry(&mut one, &mut other);
    assert_eq!(migration(&mut other), (PathMigration::ARMED, 4));
    assert_eq!(other.events(), [(EventType::PATH_MIGRATION_FAILED, QPN)]);
    assert_eq!(one.completions(), []);
}
