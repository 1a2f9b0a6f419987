//! Memory keys, by the accesses of an EQ, a CQ and a QP. infinihost 4.9, 4.10, 4.11.

use super::verbs::*;
use super::*;
use crate::hca::infinihost::Config;
use crate::machine::PciFunction;
use core_ib::Guid;
use core_ib::platform::DmaAddr;
use hca_abi::infinihost::cmd::{CmdStatus, Opcode};
use hca_abi::infinihost::cqe::Syndrome;
use hca_abi::infinihost::mpt::{Mpt, MptStatus};
use hca_abi::infinihost::mtt::{Mtt, WriteMttHeader};
use hca_abi::infinihost::wqe::{DataSegment, WqeOpcode, next};
use zerocopy::IntoBytes;

const AV: u64 = 0x3000;
const BUFFER: u64 = 0x5000;
const KEY: u32 = 0x7700_0020;

fn rig() -> (Rig, Cq, Qp) {
    let mut rig = Rig::card(1);
    rig.start(true);
    rig.activate(1, 0x15);
    let cq = rig.create_cq(0x20);
    rig.store(AV, &av(1, 0x15));
    let mut qp = rig.ud_qp(0x30, 1, &cq);
    let buffers = [(BUFFER, 256); 7];
    rig.post_receive(&mut qp, &buffers);
    (rig, cq, qp)
}

/// Address of translation `number`, behind the reserved segments.
fn mtt(number: u64) -> u64 {
    tables().mtt_base() + 16 * 64 + number * 8
}

/// A region of two pages of 8 KB that starts in the middle of the first one.
fn region() -> Mpt {
    let mut entry = all_memory();
    entry
        .set_physical(false)
        .set_page_size(1)
        .set_key(KEY)
        .set_start(0x1_0000_1000)
        .set_length(0x2000)
        .set_mtt_address(mtt(0));
    entry
}

/// Sends 4 bytes by `key` at `address` to itself; the bytes, or what is wrong.
fn fetch(
    rig: &mut Rig,
    cq: &mut Cq,
    qp: &mut Qp,
    key: u32,
    address: u64,
) -> Result<[u8; 4], Syndrome> {
    let body = datagram(AV, 0x30, Q_KEY, DataSegment::new(4, key, address));
    rig.post_send(qp, WqeOpcode::SEND, &[body], next::ALWAYS_ONE);
    let sent = rig.poll(cq).unwrap();
    if sent.is_error() {
        rig.modify_plain(Opcode::SQERR2RTS_QPEE, 0x30);
        return Err(sent.as_error().syndrome());
    }
    rig.poll(cq).unwrap();
    Ok(rig.load(BUFFER + 40))
}

const PROTECTION: Result<[u8; 4], Syndrome> = Err(Syndrome::LOCAL_PROTECTION);

#[test]
fn a_region_is_translated_page_by_page_and_ends_where_it_ends() {
    let (mut rig, mut cq, mut qp) = rig();
    rig.store(0x31_1000, b"head");
    rig.store(0x31_1ffe, b"ta");
    rig.store(0x34_0000, b"il__");
    rig.store(0x34_0ffc, b"last");
    for (number, page) in [0x31_0000_u64, 0x34_0000].into_iter().enumerate() {
        rig.store_attached(mtt(number as u64), &Mtt::page(page));
    }
    assert_eq!(
        rig.give(Opcode::SW2HW_MPT, 0, 0x20, &region()),
        CmdStatus::OK
    );
    let mut fetch = |address| fetch(&mut rig, &mut cq, &mut qp, KEY, address);
    assert_eq!(fetch(0x1_0000_1000), Ok(*b"head"));
    assert_eq!(fetch(0x1_0000_1ffe), Ok(*b"tail"));
    assert_eq!(fetch(0x1_0000_2ffc), Ok(*b"last"));
    assert_eq!(fetch(0x1_0000_0fff), PROTECTION);
    assert_eq!(fetch(0x1_0000_2ffd), PROTECTION);
    assert_eq!(fetch(u64::MAX - 1), PROTECTION);
}

#[test]
fn a_translation_that_is_not_present_or_whose_table_is_elsewhere_is_a_fault() {
    let (mut rig, mut cq, mut qp) = rig();
    let mut absent = Mtt::page(0x31_0000);
    absent.set_present(false);
    rig.store_attached(mtt(0), &absent);
    assert_eq!(
        rig.give(Opcode::SW2HW_MPT, 0, 0x20, &region()),
        CmdStatus::OK
    );
    assert_eq!(
        fetch(&mut rig, &mut cq, &mut qp, KEY, 0x1_0000_1000),
        PROTECTION
    );
    rig.plain(Opcode::HW2SW_MPT, 0x20);
    let mut elsewhere = region();
    elsewhere.set_mtt_address(0x1000);
    rig.give(Opcode::SW2HW_MPT, 0, 0x20, &elsewhere);
    assert_eq!(
        fetch(&mut rig, &mut cq, &mut qp, KEY, 0x1_0000_1000),
        PROTECTION
    );
}

#[test]
fn key_domain_and_rights_are_checked() {
    let changes: [Change<Mpt>; 5] = [
        |entry| entry.set_pd(PD + 1),
        |entry| entry.set_local_read(false),
        |entry| entry.set_region(false),
        |entry| entry.set_start(0x6000),
        |entry| entry.set_length(0x5003),
    ];
    let (mut rig, mut cq, mut qp) = rig();
    let mut entry = all_memory();
    entry.set_key(KEY);
    for change in changes.into_iter().map(Some).chain([None]) {
        let mut entry = entry;
        if let Some(change) = change {
            change(&mut entry);
        }
        assert_eq!(rig.give(Opcode::SW2HW_MPT, 0, 0x20, &entry), CmdStatus::OK);
        let fetched = fetch(&mut rig, &mut cq, &mut qp, KEY, 0x5000);
        assert_eq!(fetched.is_ok(), change.is_none());
        let generation = fetch(&mut rig, &mut cq, &mut qp, 0x20, 0x5000);
        assert_eq!(generation, PROTECTION, "another generation of the key");
        assert_eq!(rig.plain(Opcode::HW2SW_MPT, 0x20), CmdStatus::OK);
        assert_eq!(fetch(&mut rig, &mut cq, &mut qp, KEY, 0x5000), PROTECTION);
    }
}

#[test]
fn a_whole_memory_key_reaches_attached_memory_by_its_bus_address() {
    let (mut rig, mut cq, mut qp) = rig();
    rig.store_attached(BAR4 + 0x200_0000, b"here");
    assert_eq!(
        fetch(&mut rig, &mut cq, &mut qp, ALL, BAR4 + 0x200_0000),
        Ok(*b"here")
    );
}

/// infinihost 4.11: a driver writes the protection entry itself, and no command follows.
#[test]
fn an_entry_that_is_rewritten_in_place_counts_at_the_next_access() {
    let (mut rig, mut cq, mut qp) = rig();
    let mut entry = region();
    entry.set_start(0).set_length(0).set_page_size(0);
    assert_eq!(rig.give(Opcode::SW2HW_MPT, 0, 0x20, &entry), CmdStatus::OK);
    rig.store(0x31_0000, b"fast");
    let place = tables().mpt_base() + 0x20 * 64;
    rig.store_attached(place, &[0xf0_u8]);
    rig.store_attached(mtt(0), &Mtt::page(0x31_0000));
    let key = KEY + 1024;
    rig.store_attached(place + 0x08, &key.to_be_bytes());
    rig.store_attached(place + 0x10, &0x7000_u64.to_be_bytes());
    rig.store_attached(place + 0x18, &0x1000_u64.to_be_bytes());
    assert_eq!(
        fetch(&mut rig, &mut cq, &mut qp, key, 0x7000),
        PROTECTION,
        "software's"
    );
    rig.store_attached(place, &[0_u8]);
    assert_eq!(fetch(&mut rig, &mut cq, &mut qp, key, 0x7000), Ok(*b"fast"));
    assert_eq!(fetch(&mut rig, &mut cq, &mut qp, KEY, 0x7000), PROTECTION);
    rig.store_attached(place, &[0xf0_u8]);
    assert_eq!(rig.plain(Opcode::SYNC_TPT, 0), CmdStatus::OK);
    assert_eq!(fetch(&mut rig, &mut cq, &mut qp, key, 0x7000), PROTECTION);
}

#[test]
fn translations_are_written_and_read_by_command_where_memory_is_hidden() {
    let mut config = Config::new(Guid(0x10));
    config.hidden_ddr = true;
    let mut rig = Rig::new(config);
    rig.plain(Opcode::SYS_EN, 0);
    let ddr: hca_abi::infinihost::fw::DdrInfo = rig.ask(Opcode::QUERY_DDR, 0);
    let mut init = tables();
    let base = ddr.start();
    init.set_qpc_base(base)
        .set_eqpc_base(base + 0x10_0000)
        .set_cqc_base(base + 0x20_0000)
        .set_srqc_base(base + 0x30_0000)
        .set_eqc_base(base + 0x40_0000)
        .set_mc_base(base + 0x50_0000)
        .set_mpt_base(base + 0x60_0000)
        .set_mtt_base(base + 0x70_0000);
    assert_eq!(rig.give(Opcode::INIT_HCA, 0, 0, &init), CmdStatus::OK);
    let first = base + 0x70_0000 + 1024;
    let mut header = WriteMttHeader::ZERO;
    header.set_address(first);
    let entries = [
        Mtt::page(0x1000),
        Mtt::page(0x2000),
        Mtt::page(0x3000),
        Mtt::ZERO,
    ];
    rig.store(IN, &header);
    rig.store(IN + 16, &entries);
    assert_eq!(
        rig.command(Opcode::WRITE_MTT, 0, 4, IN).status,
        CmdStatus::OK
    );
    assert_eq!(
        rig.command(Opcode::READ_MTT, 0, 4, first).status,
        CmdStatus::OK
    );
    assert_eq!(rig.load::<[u8; 32]>(OUT), *entries.as_bytes());
    assert_eq!(
        rig.command(Opcode::READ_MTT, 0, 65, first).status,
        CmdStatus::EXCEED_LIM
    );
    for reserved in [first - 8, base, u64::MAX - 7, first + 4] {
        assert_eq!(
            rig.command(Opcode::READ_MTT, 0, 2, reserved).status,
            CmdStatus::BAD_PARAM
        );
    }
    assert_eq!(
        rig.command(Opcode::WRITE_MTT, 0, 511, IN).status,
        CmdStatus::EXCEED_LIM
    );
}

#[test]
fn protection_entries_are_handed_over_once_and_shown() {
    let (mut rig, _, _) = rig();
    assert_eq!(
        rig.give(Opcode::SW2HW_MPT, 0, 0x20, &region()),
        CmdStatus::OK
    );
    assert_eq!(
        rig.give(Opcode::SW2HW_MPT, 0, 0x20, &region()),
        CmdStatus::BAD_RES_STATE
    );
    assert_eq!(
        rig.give(Opcode::SW2HW_MPT, 0, 0x21, &region()),
        CmdStatus::BAD_PARAM,
        "its key"
    );
    assert_eq!(
        rig.give(Opcode::SW2HW_MPT, 0, 0x0f, &region()),
        CmdStatus::BAD_RESOURCE
    );
    assert_eq!(
        rig.give(Opcode::SW2HW_MPT, 0, 1 << 10, &region()),
        CmdStatus::BAD_INDEX
    );
    let mut shown: Mpt = rig.ask(Opcode::QUERY_MPT, 0x20);
    assert_eq!(shown.status(), MptStatus::HARDWARE);
    shown.set_status(region().status());
    assert_eq!(shown, region());
    let taken: Mpt = rig.ask(Opcode::HW2SW_MPT, 0x20);
    assert_eq!((taken.status(), taken.key()), (MptStatus::SOFTWARE, KEY));
    assert_eq!(
        rig.command(Opcode::HW2SW_MPT, 1, 0x20, 0).status,
        CmdStatus::OK,
        "again"
    );
}

#[test]
fn what_the_card_can_still_reach_is_named_by_the_object_that_lets_it() {
    let (mut rig, cq, _) = rig();
    rig.store_attached(mtt(0), &Mtt::page(0x31_0000));
    rig.store_attached(mtt(1), &Mtt::page(0x34_0000));
    assert_eq!(
        rig.give(Opcode::SW2HW_MPT, 0, 0x20, &region()),
        CmdStatus::OK
    );
    let reaches = |rig: &mut Rig, at, len| rig.hca.reaches(&mut rig.bus, DmaAddr::new(at), len);
    let named = |name: &str| Some(name.to_string());
    assert_eq!(reaches(&mut rig, EQ_ASYNC.1 + 511, 1), named("EQ 2"));
    assert_eq!(reaches(&mut rig, EQ_ASYNC.1 + 512, 1), None);
    assert_eq!(reaches(&mut rig, cq.at - 10, 11), named("CQ 0x20"));
    assert_eq!(
        reaches(&mut rig, 0x34_0fff, 0x1000),
        named("MPT entry 0x20")
    );
    assert_eq!(
        reaches(&mut rig, 0x34_1000, 0x1000),
        None,
        "behind the end of the region"
    );
    assert_eq!(
        reaches(&mut rig, 0x31_0000, 0x1000),
        None,
        "before its start"
    );
    rig.plain(Opcode::HW2SW_MPT, 0x20);
    assert_eq!(reaches(&mut rig, 0x34_0000, 0x1000), None);
    rig.plain(Opcode::CLOSE_HCA, 0);
    assert_eq!(reaches(&mut rig, EQ_ASYNC.1, 512), None);
}

#[test]
fn the_mailboxes_of_a_command_under_way_are_the_cards() {
    let mut config = Config::new(Guid(0x10));
    config.command_time = core::time::Duration::from_micros(5);
    let mut rig = Rig::new(config);
    rig.post(Opcode::SYS_EN, 0, 0, 0, None);
    assert_eq!(
        rig.hca
            .reaches(&mut rig.bus, DmaAddr::new(OUT + 4), 4)
            .unwrap(),
        "a mailbox of SYS_EN"
    );
    rig.settle();
    assert_eq!(
        rig.hca.reaches(&mut rig.bus, DmaAddr::new(OUT + 4), 4),
        None
    );
}
