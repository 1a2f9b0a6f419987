//! Memory windows, bound by requests and used by peers. infinihost 4.9, 5.6, verbs 7.9.

use super::super::bind::{BindError, Binder};
use super::super::remote::{Remote, RemoteOp};
use super::verbs::*;
use super::*;
use crate::hca::infinihost::Variant;
use hca_abi::infinihost::cmd::{CmdStatus, Opcode};
use hca_abi::infinihost::cqe::Syndrome;
use hca_abi::infinihost::mpt::Mpt;
use hca_abi::infinihost::qp::{QpState, ServiceType};
use hca_abi::infinihost::wqe::{BindSegment, WqeOpcode, next};
use zerocopy::IntoBytes;

const REGION: u32 = 0x7700_0020;
const OTHER_REGION: u32 = 0x7700_0022;
const WINDOW: u32 = 0x21;
/// A key of the window's entry.
const RKEY: u32 = 0x0000_0421;
const START: u64 = 0x6_0000;

fn region(key: u32) -> Mpt {
    let mut entry = all_memory();
    entry
        .set_key(key)
        .set_bind(true)
        .set_start(START)
        .set_length(0x1_0000);
    entry
}

fn window() -> Mpt {
    let mut entry = Mpt::ZERO;
    entry.set_key(WINDOW).set_pd(PD);
    entry
}

/// Lends 0x100 bytes for reading and writing.
fn bind() -> BindSegment {
    let mut bind = BindSegment::ZERO;
    bind.set_remote_read(true)
        .set_remote_write(true)
        .set_rkey(RKEY)
        .set_lkey(REGION)
        .set_start(START + 0x1000)
        .set_length(0x100);
    bind
}

/// A card with two regions and a window that is not bound.
fn rig() -> Rig {
    let mut rig = Rig::card(1);
    rig.start(true);
    for entry in [region(REGION), region(OTHER_REGION), window()] {
        let index = entry.key() & 0x3ff;
        assert_eq!(rig.give(Opcode::SW2HW_MPT, 0, index, &entry), CmdStatus::OK);
    }
    rig
}

fn try_bind(rig: &mut Rig, wanted: &BindSegment) -> Result<(), BindError> {
    let binder = Binder { pd: PD, qpn: 0x20 };
    rig.hca.chip.bind(&mut rig.bus, binder, wanted)
}

fn may(rig: &mut Rig, rkey: u32, op: RemoteOp, at: u64, len: u64) -> bool {
    let who = Remote {
        rkey,
        pd: PD,
        qpn: 0x30,
        read: true,
        write: true,
        atomic: true,
    };
    let checked = rig.hca.chip.remote_check(&mut rig.bus, &who, op, at, len);
    checked.is_ok()
}

fn windows_of(rig: &mut Rig, region: u32) -> u32 {
    let entry: Mpt = rig.ask(Opcode::QUERY_MPT, region & 0x3ff);
    entry.window_count()
}

/// A connected QP in RTS and its CQ.
fn connected(rig: &mut Rig, service: ServiceType) -> (Qp, Cq) {
    rig.activate(1, 0x15);
    let cq = rig.create_cq(0x20);
    let qp = rig.create_qp(0x20, service, 1, &cq);
    rig.ready(&qp);
    (qp, cq)
}

fn post(rig: &mut Rig, qp: &mut Qp, wanted: &BindSegment) {
    let body = wanted.as_bytes().to_vec();
    rig.post_send(qp, WqeOpcode::BIND, &[body], next::ALWAYS_ONE);
}

#[test]
fn a_bind_request_lends_a_piece_of_a_region_under_its_key_and_completes() {
    for service in [ServiceType::RC, ServiceType::UC] {
        let mut rig = rig();
        let (mut qp, mut cq) = connected(&mut rig, service);
        assert!(
            !may(&mut rig, WINDOW, RemoteOp::Read, START, 1),
            "not bound"
        );
        post(&mut rig, &mut qp, &bind());
        let done = rig.poll(&mut cq).unwrap();
        assert!(!done.is_error());
        assert_eq!((done.opcode(), done.is_send()), (0x18, true));
        let start = START + 0x1000;
        for op in [RemoteOp::Read, RemoteOp::Write] {
            assert!(may(&mut rig, RKEY, op, start, 0x100));
            assert!(!may(&mut rig, RKEY, op, start - 1, 2));
            assert!(!may(&mut rig, RKEY, op, start + 0xff, 2));
            assert!(!may(&mut rig, WINDOW, op, start, 1), "the key of before");
        }
        assert!(!may(&mut rig, RKEY, RemoteOp::Atomic, start, 8));
        assert_eq!(rig.qp_state(0x20), QpState::RTS);
    }
}

#[test]
fn a_bind_request_by_its_bytes() {
    let mut rig = rig();
    let (mut qp, mut cq) = connected(&mut rig, ServiceType::RC);
    // infinihost 5.6: 0x00 [31] atomic [30] write [29] read, 0x08 new rkey, 0x0c lkey, 0x10 start, 0x18 length.
    let mut bytes = vec![0; 32];
    bytes[0] = 0x80;
    bytes[0x08..0x0c].copy_from_slice(&RKEY.to_be_bytes());
    bytes[0x0c..0x10].copy_from_slice(&REGION.to_be_bytes());
    bytes[0x10..0x18].copy_from_slice(&(START + 8).to_be_bytes());
    bytes[0x18..0x20].copy_from_slice(&8_u64.to_be_bytes());
    rig.post_send(&mut qp, WqeOpcode::BIND, &[bytes], next::ALWAYS_ONE);
    assert!(!rig.poll(&mut cq).unwrap().is_error());
    assert!(may(&mut rig, RKEY, RemoteOp::Atomic, START + 8, 8));
    assert!(!may(&mut rig, RKEY, RemoteOp::Read, START + 8, 8));
}

#[test]
fn whatever_is_wrong_with_a_bind_is_named_and_leaves_the_window_as_it_was() {
    let rows: [(Change<BindSegment>, BindError); 12] = [
        (
            |bind| bind.set_rkey(0x100),
            BindError::NotWindow { rkey: 0x100 },
        ),
        (
            |bind| bind.set_rkey(0x24),
            BindError::NotWindow { rkey: 0x24 },
        ),
        (
            |bind| bind.set_rkey(OTHER_REGION),
            BindError::NotWindow { rkey: OTHER_REGION },
        ),
        (
            |bind| bind.set_lkey(0x20),
            BindError::NotRegion { lkey: 0x20 },
        ),
        (
            |bind| bind.set_lkey(RKEY),
            BindError::NotRegion { lkey: RKEY },
        ),
        (|bind| bind.set_lkey(ALL), BindError::Right { lkey: ALL }),
        (|bind| bind.set_type2(true), BindError::Type { rkey: RKEY }),
        (
            |bind| bind.set_zero_based(true),
            BindError::Type { rkey: RKEY },
        ),
        (
            |bind| bind.set_start(START - 1),
            BindError::Bounds {
                start: START - 1,
                length: 0x100,
            },
        ),
        (
            |bind| bind.set_start(START + 0xff01),
            BindError::Bounds {
                start: START + 0xff01,
                length: 0x100,
            },
        ),
        (
            |bind| bind.set_length(0xf001),
            BindError::Bounds {
                start: START + 0x1000,
                length: 0xf001,
            },
        ),
        (
            |bind| bind.set_length(u64::MAX),
            BindError::Bounds {
                start: START + 0x1000,
                length: u64::MAX,
            },
        ),
    ];
    let mut rig = rig();
    let mut first = bind();
    first.set_rkey(0x821);
    assert_eq!(try_bind(&mut rig, &first), Ok(()));
    for (change, expected) in rows {
        let mut wanted = bind();
        change(&mut wanted);
        assert_eq!(try_bind(&mut rig, &wanted), Err(expected));
        assert!(may(&mut rig, 0x821, RemoteOp::Write, START + 0x1000, 0x100));
        assert_eq!(windows_of(&mut rig, REGION), 1);
    }
}

/// Binds to a region that was changed so.
fn bind_to(change: Change<Mpt>, wanted: &BindSegment) -> Result<(), BindError> {
    let mut rig = rig();
    assert_eq!(rig.plain(Opcode::HW2SW_MPT, 0x20), CmdStatus::OK);
    let mut entry = region(REGION);
    change(&mut entry);
    assert_eq!(rig.give(Opcode::SW2HW_MPT, 0, 0x20, &entry), CmdStatus::OK);
    try_bind(&mut rig, wanted)
}

#[test]
fn domain_bind_right_and_local_write_of_the_region_are_needed() {
    let (lkey, pd) = (REGION, PD);
    let mut reads = bind();
    reads.set_remote_write(false);
    let mut atomics = reads;
    atomics.set_remote_atomic(true);
    let foreign: Change<Mpt> = |entry| entry.set_pd(PD + 1);
    let owner = PD + 1;
    assert_eq!(
        bind_to(foreign, &reads),
        Err(BindError::Domain { pd, owner })
    );
    assert_eq!(
        bind_to(|entry| entry.set_bind(false), &reads),
        Err(BindError::Right { lkey })
    );
    let read_only: Change<Mpt> = |entry| entry.set_local_write(false);
    assert_eq!(bind_to(read_only, &reads), Ok(()));
    for wanted in [bind(), atomics] {
        assert_eq!(
            bind_to(read_only, &wanted),
            Err(BindError::ReadOnly { lkey })
        );
    }
}

#[test]
fn a_window_of_another_domain_is_refused() {
    let mut rig = rig();
    rig.plain(Opcode::HW2SW_MPT, WINDOW);
    let mut entry = window();
    entry.set_pd(PD + 1);
    rig.give(Opcode::SW2HW_MPT, 0, WINDOW, &entry);
    let (pd, owner) = (PD, PD + 1);
    assert_eq!(
        try_bind(&mut rig, &bind()),
        Err(BindError::Domain { pd, owner })
    );
}

#[test]
fn a_region_is_not_given_back_while_a_window_is_bound_to_it() {
    let mut rig = rig();
    assert_eq!(try_bind(&mut rig, &bind()), Ok(()));
    assert_eq!(rig.plain(Opcode::HW2SW_MPT, 0x20), CmdStatus::REG_BOUND);
    assert!(may(&mut rig, RKEY, RemoteOp::Read, START + 0x1000, 1));
    let mut elsewhere = bind();
    elsewhere.set_lkey(OTHER_REGION).set_rkey(RKEY + 0x400);
    assert_eq!(try_bind(&mut rig, &elsewhere), Ok(()), "rebound");
    assert!(!may(&mut rig, RKEY, RemoteOp::Read, START + 0x1000, 1));
    assert!(may(
        &mut rig,
        RKEY + 0x400,
        RemoteOp::Read,
        START + 0x1000,
        1
    ));
    assert_eq!(windows_of(&mut rig, OTHER_REGION), 1);
    assert_eq!(rig.plain(Opcode::HW2SW_MPT, 0x20), CmdStatus::OK);
    assert_eq!(rig.plain(Opcode::HW2SW_MPT, 0x22), CmdStatus::REG_BOUND);
    assert_eq!(rig.plain(Opcode::HW2SW_MPT, WINDOW), CmdStatus::OK);
    assert_eq!(rig.plain(Opcode::HW2SW_MPT, 0x22), CmdStatus::OK);
}

#[test]
fn a_bind_of_no_bytes_unbinds_and_asks_for_no_region() {
    let mut rig = rig();
    assert_eq!(try_bind(&mut rig, &bind()), Ok(()));
    let mut unbind = BindSegment::ZERO;
    unbind.set_rkey(RKEY + 0x400);
    for _ in 0..2 {
        assert_eq!(try_bind(&mut rig, &unbind), Ok(()));
        assert_eq!(windows_of(&mut rig, REGION), 0);
        for rkey in [RKEY, RKEY + 0x400] {
            assert!(!may(&mut rig, rkey, RemoteOp::Read, START + 0x1000, 1));
        }
    }
    assert_eq!(rig.plain(Opcode::HW2SW_MPT, 0x20), CmdStatus::OK);
}

#[test]
fn a_region_has_at_most_as_many_windows_as_its_limit_says() {
    let mut rig = rig();
    rig.plain(Opcode::HW2SW_MPT, 0x20);
    let mut entry = region(REGION);
    entry.set_window_limit(1).set_window_count(7);
    rig.give(Opcode::SW2HW_MPT, 0, 0x20, &entry);
    let mut other = window();
    other.set_key(0x24);
    rig.give(Opcode::SW2HW_MPT, 0, 0x24, &other);
    assert_eq!(
        try_bind(&mut rig, &bind()),
        Ok(()),
        "what was given as count is none"
    );
    let mut second = bind();
    second.set_rkey(0x424);
    let full = BindError::Full { limit: 1 };
    assert_eq!(try_bind(&mut rig, &second), Err(full));
    assert_eq!(try_bind(&mut rig, &bind()), Ok(()), "the same again");
    assert_eq!(rig.plain(Opcode::HW2SW_MPT, WINDOW), CmdStatus::OK);
    assert_eq!(try_bind(&mut rig, &second), Ok(()));
}

#[test]
fn a_window_comes_into_being_unbound_whatever_its_entry_says() {
    let mut rig = rig();
    rig.plain(Opcode::HW2SW_MPT, WINDOW);
    let mut entry = window();
    entry
        .set_lkey(REGION)
        .set_remote_read(true)
        .set_start(START)
        .set_length(8);
    rig.give(Opcode::SW2HW_MPT, 0, WINDOW, &entry);
    assert!(!may(&mut rig, WINDOW, RemoteOp::Read, START, 1));
    assert_eq!(rig.plain(Opcode::HW2SW_MPT, WINDOW), CmdStatus::OK);
    assert_eq!(windows_of(&mut rig, REGION), 0);
}

#[test]
fn a_window_of_type_2_is_bound_once_and_for_one_queue_pair() {
    let mut rig = rig();
    rig.plain(Opcode::HW2SW_MPT, WINDOW);
    let mut entry = window();
    entry.set_window_type2(true);
    rig.give(Opcode::SW2HW_MPT, 0, WINDOW, &entry);
    let rkey = RKEY;
    assert_eq!(try_bind(&mut rig, &bind()), Err(BindError::Type { rkey }));
    let mut wanted = bind();
    wanted.set_type2(true);
    assert_eq!(try_bind(&mut rig, &wanted), Ok(()));
    let entry: Mpt = rig.ask(Opcode::QUERY_MPT, WINDOW);
    assert_eq!(entry.window_qpn(), 0x20);
    assert!(
        !may(&mut rig, RKEY, RemoteOp::Read, START + 0x1000, 1),
        "QP 0x30"
    );
    let bound = Err(BindError::Bound { rkey });
    assert_eq!(try_bind(&mut rig, &wanted), bound);
    wanted.set_length(0);
    assert_eq!(try_bind(&mut rig, &wanted), bound);
}

#[test]
fn a_bind_that_is_refused_fails_the_queue() {
    for (service, state) in [
        (ServiceType::RC, QpState::ERR),
        (ServiceType::UC, QpState::SQE),
    ] {
        let mut rig = rig();
        let (mut qp, mut cq) = connected(&mut rig, service);
        let mut wanted = bind();
        wanted.set_lkey(ALL);
        post(&mut rig, &mut qp, &wanted);
        assert_eq!(rig.poll_error(&mut cq).syndrome(), Syndrome::MW_BIND);
        assert_eq!(rig.qp_state(0x20), state);
    }
}

#[test]
fn a_bind_that_is_too_short_or_on_a_datagram_queue_is_no_request() {
    let mut rig = rig();
    let (mut qp, mut cq) = connected(&mut rig, ServiceType::RC);
    let half = bind().as_bytes()[..16].to_vec();
    rig.post_send(&mut qp, WqeOpcode::BIND, &[half], next::ALWAYS_ONE);
    let syndrome = rig.poll_error(&mut cq).syndrome();
    assert_eq!(syndrome, Syndrome::LOCAL_QP_OPERATION);
    let mut ud = rig.ud_qp(0x31, 1, &cq);
    post(&mut rig, &mut ud, &bind());
    let syndrome = rig.poll_error(&mut cq).syndrome();
    assert_eq!(syndrome, Syndrome::LOCAL_QP_OPERATION);
    assert!(!may(&mut rig, RKEY, RemoteOp::Read, START + 0x1000, 1));
}

#[test]
fn in_m_mode_keys_are_rotated_in_the_request_and_not_in_the_entry() {
    let mut rig = Rig::memfree(Variant::Arbel);
    rig.m_start(true);
    // Index forms; the keys are these rotated.
    let (region_index, window_index) = (0x0100_0020_u32, 0x0000_0021_u32);
    for mut entry in [region(region_index), window()] {
        entry.set_mtt_address(0);
        let index = entry.key() & 0x3ff;
        assert_eq!(rig.give(Opcode::SW2HW_MPT, 0, index, &entry), CmdStatus::OK);
    }
    let new = (window_index + 0x400).rotate_left(8);
    let mut wanted = bind();
    wanted.set_rkey(new).set_lkey(region_index.rotate_left(8));
    assert_eq!(try_bind(&mut rig, &wanted), Ok(()));
    assert!(may(&mut rig, new, RemoteOp::Write, START + 0x1000, 0x100));
    assert!(!may(
        &mut rig,
        new.rotate_right(8),
        RemoteOp::Write,
        START + 0x1000,
        1
    ));
    let entry: Mpt = rig.ask(Opcode::QUERY_MPT, window_index);
    assert_eq!(entry.key(), window_index + 0x400);
    assert_eq!(rig.plain(Opcode::HW2SW_MPT, 0x20), CmdStatus::REG_BOUND);
    wanted.set_length(0);
    assert_eq!(try_bind(&mut rig, &wanted), Ok(()));
    assert_eq!(rig.plain(Opcode::HW2SW_MPT, 0x20), CmdStatus::OK);
}
