//! What a peer does by an R_Key: rights, bounds, windows, atomics. infinihost 4.9, 5.7, 5.12, verbs 7.4.

use super::super::bind::Binder;
use super::super::mpt::{AccessError, Right};
use super::super::remote::{HostOrder, Remote, RemoteError, RemoteOp};
use super::*;
use crate::transport::AtomicOp;
use core_ib::wire::packet::NakCode;
use hca_abi::infinihost::cmd::{CmdStatus, Opcode};
use hca_abi::infinihost::mpt::Mpt;
use hca_abi::infinihost::mtt::Mtt;
use hca_abi::infinihost::wqe::BindSegment;
use proptest::prelude::*;

const RKEY: u32 = 0x7700_0020;
const WINDOW: u32 = 0x0100_0021;
const BASE: u64 = 0x1_0000_1000;
/// Where its pages of 8 KB lie: not one behind the other.
const PAGES: [u64; 3] = [0x34_0000, 0x31_0000, 0x3e_0000];

fn mtt(number: u64) -> u64 {
    tables().mtt_base() + 16 * 64 + number * 8
}

/// A region of 16 KB over three pages of 8 KB, from the middle of the first one to that of the last.
fn region() -> Mpt {
    let mut entry = all_memory();
    entry
        .set_physical(false)
        .set_page_size(1)
        .set_key(RKEY)
        .set_start(BASE)
        .set_length(0x4000)
        .set_remote_read(true)
        .set_remote_write(true)
        .set_remote_atomic(true)
        .set_bind(true)
        .set_mtt_address(mtt(0));
    entry
}

/// A window on 0x100 bytes of it, for writing.
fn bind_window(rig: &mut Rig) {
    let mut entry = Mpt::ZERO;
    entry.set_key(0x21).set_pd(PD);
    assert_eq!(rig.give(Opcode::SW2HW_MPT, 0, 0x21, &entry), CmdStatus::OK);
    let mut wanted = BindSegment::ZERO;
    wanted
        .set_rkey(WINDOW)
        .set_lkey(RKEY)
        .set_remote_write(true)
        .set_start(BASE + 0xf80)
        .set_length(0x100);
    let binder = Binder { pd: PD, qpn: 0x20 };
    let bound = rig.hca.chip.bind(&mut rig.bus, binder, &wanted);
    assert_eq!(bound, Ok(()));
}

fn with(region: &Mpt) -> Rig {
    let mut rig = Rig::card(1);
    rig.start(true);
    for (number, page) in (0..).zip(PAGES) {
        rig.store_attached(mtt(number), &Mtt::page(page));
    }
    assert_eq!(rig.give(Opcode::SW2HW_MPT, 0, 0x20, region), CmdStatus::OK);
    rig
}

fn who(rkey: u32) -> Remote {
    Remote {
        rkey,
        pd: PD,
        qpn: 0x30,
        read: true,
        write: true,
        atomic: true,
    }
}

fn check(rig: &mut Rig, who: Remote, op: RemoteOp, at: u64, len: u64) -> Result<(), RemoteError> {
    rig.hca.chip.remote_check(&mut rig.bus, &who, op, at, len)
}

fn write(rig: &mut Rig, rkey: u32, at: u64, data: &[u8]) -> Result<(), RemoteError> {
    let chip = &mut rig.hca.chip;
    chip.remote_write(&mut rig.bus, &who(rkey), at, data)
}

#[test]
fn what_a_peer_writes_lies_page_by_page_and_is_read_back() {
    let mut rig = with(&region());
    let data: Vec<u8> = (0..0x4000_u32).map(|byte| (byte % 251) as u8).collect();
    let before = rig.bus.accesses;
    assert_eq!(write(&mut rig, RKEY, BASE, &data), Ok(()));
    assert_eq!(rig.bus.accesses - before, 3, "one a page");
    for (at, bytes) in [
        (PAGES[0] + 0x1000, &data[..0x1000]),
        (PAGES[1], &data[0x1000..0x3000]),
        (PAGES[2], &data[0x3000..]),
    ] {
        let mut found = vec![0; bytes.len()];
        rig.bus.memory.read(at, &mut found).unwrap();
        assert_eq!(found, bytes, "{at:#x}");
    }
    let mut again = vec![0; 0x4000];
    let chip = &rig.hca.chip;
    let read = chip.remote_read(&mut rig.bus, &who(RKEY), BASE, &mut again);
    assert_eq!(read, Ok(()));
    assert_eq!(again, data);
}

#[test]
fn each_operation_needs_the_permission_of_the_qp_and_the_right_of_the_region() {
    let rows: [(RemoteOp, Right, Change<Remote>, Change<Mpt>); 3] = [
        (
            RemoteOp::Read,
            Right::RemoteRead,
            |who| {
                who.read = false;
                who
            },
            |mpt| mpt.set_remote_read(false),
        ),
        (
            RemoteOp::Write,
            Right::RemoteWrite,
            |who| {
                who.write = false;
                who
            },
            |mpt| mpt.set_remote_write(false),
        ),
        (
            RemoteOp::Atomic,
            Right::RemoteAtomic,
            |who| {
                who.atomic = false;
                who
            },
            |mpt| mpt.set_remote_atomic(false),
        ),
    ];
    for (op, right, forbid, take) in rows {
        let mut entry = region();
        take(&mut entry);
        let mut rig = with(&entry);
        let missing = check(&mut rig, who(RKEY), op, BASE, 8).unwrap_err();
        let key = RKEY;
        assert_eq!(
            missing,
            RemoteError::Access(AccessError::Right { key, right })
        );
        assert_eq!(missing.nak(), NakCode::REMOTE_ACCESS_ERROR);
        for (other, ..) in rows.iter().filter(|row| row.0 != op) {
            assert_eq!(
                check(&mut rig, who(RKEY), *other, BASE, 8),
                Ok(()),
                "{other:?}"
            );
        }
        let mut rig = with(&region());
        let mut forbidden = who(RKEY);
        forbid(&mut forbidden);
        let refused = check(&mut rig, forbidden, op, BASE, 8).unwrap_err();
        let qpn = 0x30;
        assert_eq!(refused, RemoteError::NotEnabled { op, qpn });
        assert_eq!(refused.nak(), NakCode::INVALID_REQUEST);
        assert_eq!(
            check(&mut rig, forbidden, op, 0, 0),
            Err(refused),
            "of no bytes too"
        );
    }
}

#[test]
fn an_operation_of_no_bytes_does_not_look_at_the_key() {
    let mut rig = with(&region());
    assert_eq!(check(&mut rig, who(0xdead), RemoteOp::Read, 7, 0), Ok(()));
    assert_eq!(write(&mut rig, 0xdead, 7, &[]), Ok(()));
}

#[test]
fn key_generation_domain_and_bounds_are_refused_by_name() {
    let mut rig = with(&region());
    let mut refused = |who: Remote, at, len| match check(&mut rig, who, RemoteOp::Write, at, len) {
        Err(RemoteError::Access(error)) => error,
        other => panic!("{other:?}"),
    };
    let (key, pd, owner) = (RKEY, PD + 1, PD);
    let other = Remote { pd, ..who(key) };
    assert_eq!(refused(who(0x20), BASE, 1), AccessError::Key { key: 0x20 });
    assert_eq!(
        refused(who(0x100), BASE, 1),
        AccessError::Key { key: 0x100 }
    );
    assert_eq!(
        refused(other, BASE, 1),
        AccessError::Domain { key, pd, owner }
    );
    for (at, len) in [
        (BASE - 1, 1),
        (BASE + 0x3fff, 2),
        (BASE, 0x4001),
        (u64::MAX, 2),
    ] {
        assert_eq!(
            refused(who(key), at, len),
            AccessError::Bounds { key, at, len }
        );
    }
    assert_eq!(
        check(&mut rig, who(key), RemoteOp::Write, BASE + 0x3fff, 1),
        Ok(())
    );
    rig.plain(Opcode::HW2SW_MPT, 0x20);
    assert!(write(&mut rig, RKEY, BASE, &[1]).is_err(), "taken back");
}

#[test]
fn a_window_has_its_own_rights_and_bounds_and_the_translations_of_its_region() {
    let mut rig = with(&region());
    bind_window(&mut rig);
    let start = BASE + 0xf80;
    assert_eq!(write(&mut rig, WINDOW, start + 0x7e, b"seam"), Ok(()));
    assert_eq!(rig.load::<[u8; 2]>(PAGES[0] + 0x1ffe), *b"se");
    assert_eq!(rig.load::<[u8; 2]>(PAGES[1]), *b"am");
    let check = |rig: &mut Rig, who, op, at, len| check(rig, who, op, at, len).map_err(|e| e.nak());
    let refused = Err(NakCode::REMOTE_ACCESS_ERROR);
    for (op, at, len) in [
        (RemoteOp::Read, start, 1),
        (RemoteOp::Atomic, start, 8),
        (RemoteOp::Write, start - 1, 1),
        (RemoteOp::Write, start + 0xff, 2),
    ] {
        assert_eq!(
            check(&mut rig, who(WINDOW), op, at, len),
            refused,
            "{op:?} {at:#x}"
        );
    }
    let other = Remote {
        pd: PD + 1,
        ..who(WINDOW)
    };
    assert_eq!(check(&mut rig, other, RemoteOp::Write, start, 1), refused);
    // No command takes the region away while it is bound, but its owner can reach the table.
    rig.store_attached(tables().mpt_base() + 0x20 * 64, &0xf0_u8);
    assert_eq!(
        check(&mut rig, who(WINDOW), RemoteOp::Write, start, 1),
        refused,
        "without its region"
    );
}

#[test]
fn the_host_says_in_init_hca_how_it_stores_numbers() {
    let mut init = tables();
    assert_eq!(HostOrder::from(&init), HostOrder::Little);
    init.set_big_endian_host(true);
    assert_eq!(HostOrder::from(&init), HostOrder::Big);
}

fn atomic(rig: &mut Rig, at: u64, op: AtomicOp, order: HostOrder) -> Result<u64, RemoteError> {
    let chip = &mut rig.hca.chip;
    chip.remote_atomic(&mut rig.bus, &who(RKEY), at, op, order)
}

#[test]
fn an_atomic_answers_what_was_there_and_changes_8_bytes_in_the_order_of_the_host() {
    let mut rig = with(&region());
    let at = PAGES[0] + 0x1008;
    rig.store(at - 8, &[0xee_u8; 24]);
    rig.store(at, &[1_u8, 0, 0, 0, 0, 0, 0, 2]);
    let value = 0x0200_0000_0000_0001;
    let (compare, swap) = (value, 0x0102_0304_0506_0708);
    let exchange = AtomicOp::CompareSwap { compare, swap };
    for expected in [value, swap] {
        let answer = atomic(&mut rig, BASE + 8, exchange, HostOrder::Little);
        assert_eq!(answer, Ok(expected));
        assert_eq!(rig.load::<[u8; 8]>(at), [8, 7, 6, 5, 4, 3, 2, 1]);
    }
    let add = u64::MAX;
    let answer = atomic(
        &mut rig,
        BASE + 8,
        AtomicOp::FetchAdd { add },
        HostOrder::Big,
    );
    assert_eq!(answer, Ok(0x0807_0605_0403_0201));
    assert_eq!(rig.load::<[u8; 8]>(at), [8, 7, 6, 5, 4, 3, 2, 0]);
    for beside in [at - 8, at + 8] {
        assert_eq!(rig.load::<[u8; 8]>(beside), [0xee; 8]);
    }
}

#[test]
fn an_atomic_that_is_not_aligned_is_an_invalid_request_unless_the_key_is_wrong_too() {
    let mut rig = with(&region());
    let op = AtomicOp::FetchAdd { add: 1 };
    let refused = atomic(&mut rig, BASE + 4, op, HostOrder::Little).unwrap_err();
    assert_eq!(refused, RemoteError::Misaligned { at: BASE + 4 });
    assert_eq!(refused.nak(), NakCode::INVALID_REQUEST);
    let beyond = atomic(&mut rig, BASE + 0x3ffc, op, HostOrder::Little).unwrap_err();
    assert_eq!(beyond.nak(), NakCode::REMOTE_ACCESS_ERROR);
}

#[test]
fn memory_that_the_host_does_not_give_is_an_operational_error() {
    let mut entry = region();
    entry.set_physical(true);
    let mut rig = with(&entry);
    let at = HOST_END - 1;
    let mut far = entry;
    far.set_start(at);
    rig.plain(Opcode::HW2SW_MPT, 0x20);
    rig.give(Opcode::SW2HW_MPT, 0, 0x20, &far);
    let refused = write(&mut rig, RKEY, at, &[1, 2]).unwrap_err();
    assert_eq!(refused.nak(), NakCode::REMOTE_OPERATIONAL_ERROR);
}

/// An address near an edge of the region.
fn near() -> impl Strategy<Value = u64> {
    let edges = vec![BASE, BASE + 0x1000, BASE + 0x3000, BASE + 0x4000, u64::MAX];
    (prop::sample::select(edges), -20..20_i64).prop_map(|(edge, by)| edge.wrapping_add_signed(by))
}

proptest! {
    #[test]
    fn what_is_written_is_all_within_or_nothing_is(at in near(), len in 0..40_u64) {
        let mut rig = with(&region());
        let data = vec![0x5a; len as usize];
        let within = (BASE..=BASE + 0x4000).contains(&at) && at + len <= BASE + 0x4000;
        let written = write(&mut rig, RKEY, at, &data);
        prop_assert_eq!(written.is_ok(), within || len == 0);
        let mut found = 0;
        for page in PAGES {
            let mut bytes = [0; 0x2000];
            rig.bus.memory.read(page, &mut bytes).unwrap();
            found += bytes.iter().filter(|&&byte| byte == 0x5a).count() as u64;
        }
        prop_assert_eq!(found, if within { len } else { 0 });
    }

    #[test]
    fn adding_commutes_and_wraps_and_a_swap_that_does_not_compare_changes_nothing(
        value: u64, add: u64, compare: u64, swap: u64,
    ) {
        let added = AtomicOp::FetchAdd { add }.apply(value);
        prop_assert_eq!(added.wrapping_sub(value), add);
        prop_assert_eq!(AtomicOp::FetchAdd { add: value }.apply(add), added);
        let swapped = AtomicOp::CompareSwap { compare, swap }.apply(value);
        prop_assert_eq!(swapped, if compare == value { swap } else { value });
        let equal = AtomicOp::CompareSwap { compare: value, swap };
        prop_assert_eq!(equal.apply(value), swap);
    }
}
