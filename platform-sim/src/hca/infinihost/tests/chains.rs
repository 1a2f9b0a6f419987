//! M-mode shared receive queues and memory keys: what links and rotated numbers lead to. infinihost 4.8 to 4.10.

use super::memfree::*;
use super::verbs::*;
use super::*;
use crate::hca::infinihost::Variant;
use crate::machine::PciFunction;
use core_ib::platform::DmaAddr;
use hca_abi::infinihost::cmd::{CmdStatus, Opcode};
use hca_abi::infinihost::cqe::Syndrome;
use hca_abi::infinihost::eqe::EventType;
use hca_abi::infinihost::mpt::{Mpt, MptStatus};
use hca_abi::infinihost::mtt::{Mtt, WriteMttHeader};
use hca_abi::infinihost::qp::{QpState, ServiceType};
use hca_abi::infinihost::srq::{MSrqContext, SrqState};
use hca_abi::infinihost::wqe::{DataSegment, NextSegment, WqeOpcode, next};

const SRQ: u32 = 0x12;
/// Where its requests are: 8 of 64 bytes.
const AT: u64 = 0x9_0000;
const RECORD: u32 = 0x1f0;
const LID: u16 = 0x15;
const DATA: u64 = 0x4000;
const BUFFER: u64 = 0x5000;

fn context() -> MSrqContext {
    let mut context = MSrqContext::ZERO;
    context
        .set_log_size(3)
        .set_srqn(SRQ)
        .set_lkey(ALL_M)
        .set_record(RECORD)
        .set_log_stride(2)
        .set_uar_page(UAR)
        .set_wqe_address(AT)
        .set_eqn(1)
        .set_pd(PD);
    context
}

/// A card with an SRQ and two QPs that share it.
fn shared() -> (Rig, Cq, [verbs::Qp; 2]) {
    let mut rig = Rig::memfree(Variant::Sinai);
    rig.m_start(true);
    rig.activate(1, LID);
    let cq = rig.m_create_cq(0x20);
    let status = rig.give(Opcode::SW2HW_SRQ, 0, SRQ, &context());
    assert_eq!(status, CmdStatus::OK);
    rig.store(DATA, &[0xab_u8; 100]);
    let qps = [0x30, 0x31].map(|qpn| {
        let qp = verbs::Qp::new(qpn, ServiceType::UD);
        let mut context = m_qp_context(&qp, cq.cqn);
        context.set_has_srq(true).set_srqn(SRQ);
        let status = rig.modify(Opcode::RST2INIT_QPEE, qpn, 0, &context);
        assert_eq!(status, CmdStatus::OK);
        rig.ready(&qp);
        qp
    });
    (rig, cq, qps)
}

/// Request `index`, which leads on to `next`: room for a GRH and 8 bytes, in a buffer of its own.
fn request(rig: &mut Rig, index: u64, next: u64) {
    let at = AT + index * 64;
    let mut segment = NextSegment::ZERO;
    segment.set_nda((AT + next * 64) as u32);
    rig.store(at, &segment);
    let list = [
        DataSegment::new(48, ALL_M, BUFFER + index * 0x100),
        DataSegment::END_OF_LIST,
    ];
    rig.store(at + 16, &list);
}

fn count(rig: &mut Rig, counter: u16) {
    rig.store(record(RECORD), &u32::from(counter).to_be_bytes());
}

fn send(rig: &mut Rig, from: &mut verbs::Qp, to: u32, len: u32) {
    let data = DataSegment::new(len, ALL_M, DATA);
    let body = m_datagram(&av(1, LID), to, Q_KEY, data);
    rig.m_post_send(from, WqeOpcode::SEND, &[body], next::ALWAYS_ONE);
}

#[test]
fn requests_are_taken_along_their_links_and_not_in_the_order_of_their_places() {
    let (mut rig, mut cq, [mut one, mut other]) = shared();
    for (index, next) in [(0, 5), (5, 2), (2, 7)] {
        request(&mut rig, index, next);
    }
    count(&mut rig, 3);
    for (round, index) in [0, 5, 2].into_iter().enumerate() {
        let (from, to) = match round % 2 {
            0 => (&mut one, 0x31),
            _ => (&mut other, 0x30),
        };
        send(&mut rig, from, to, 8);
        rig.m_poll(&mut cq).unwrap();
        let received = rig.m_poll(&mut cq).unwrap();
        assert_eq!((received.qpn(), received.byte_count()), (to, 48));
        assert_eq!(received.wqe_address(), (AT + index * 64) as u32);
        let data: [u8; 8] = rig.load(BUFFER + index * 0x100 + 40);
        assert_eq!(data, [0xab; 8]);
    }
    send(&mut rig, &mut one, 0x31, 8);
    rig.m_poll(&mut cq).unwrap();
    assert!(rig.m_poll(&mut cq).is_none(), "nothing is posted");
    // What is linked behind the last that was taken comes next.
    request(&mut rig, 7, 0);
    count(&mut rig, 4);
    send(&mut rig, &mut one, 0x31, 8);
    rig.m_poll(&mut cq).unwrap();
    let received = rig.m_poll(&mut cq).unwrap();
    assert_eq!(received.wqe_address(), (AT + 7 * 64) as u32);
    let shown: MSrqContext = rig.ask(Opcode::QUERY_SRQ, SRQ);
    assert_eq!((shown.wqe_count(), shown.wqe_counter()), (0, 4));
    assert_eq!(shown.state(), SrqState::HARDWARE);
}

#[test]
fn the_limit_is_told_by_the_route_of_its_event_and_not_by_the_context() {
    let (mut rig, mut cq, [mut one, _]) = shared();
    (0..3).for_each(|index| request(&mut rig, index, index + 1));
    count(&mut rig, 3);
    let arm = |rig: &mut Rig, limit| rig.command(Opcode::ARM_SRQ, 0, SRQ, limit).status;
    assert_eq!(arm(&mut rig, 3), CmdStatus::OK);
    let mut index = 1; // the port
    assert_eq!(rig.m_take_events(EQ_ASYNC, &mut index), []);
    send(&mut rig, &mut one, 0x31, 4);
    rig.m_poll(&mut cq).unwrap();
    let events = rig.m_take_events(EQ_ASYNC, &mut index);
    let event = (events[0].event_type(), events[0].number());
    assert_eq!((events.len(), event), (1, (EventType::SRQ_LIMIT, SRQ)));
    rig.plain(Opcode::QUERY_SRQ, SRQ);
    let raw: [u8; 2] = rig.load(OUT + 0x1c);
    assert_eq!(raw, [0, 0], "where Linux reads it");
}

#[test]
fn the_counter_of_posted_requests_wraps() {
    let (mut rig, mut cq, [mut one, _]) = shared();
    (0..8).for_each(|index| request(&mut rig, index, (index + 1) % 8));
    for round in 1..=0x1_0003_u32 {
        count(&mut rig, round as u16);
        if round % 0x4001 == 0 || round > 0xfffe {
            send(&mut rig, &mut one, 0x31, 4);
            rig.m_poll(&mut cq).unwrap();
            rig.m_poll(&mut cq).unwrap();
        }
    }
    let shown: MSrqContext = rig.ask(Opcode::QUERY_SRQ, SRQ);
    assert_eq!((shown.wqe_count(), shown.wqe_counter()), (0xfffb, 8));
}

#[test]
fn a_request_that_cannot_be_read_fails_the_queue() {
    let (mut rig, mut cq, [mut one, _]) = shared();
    rig.store(AT, &(HOST_END as u32).to_be_bytes());
    rig.store(AT + 16, &DataSegment::new(48, ALL_M, BUFFER));
    count(&mut rig, 2);
    for _ in 0..2 {
        send(&mut rig, &mut one, 0x31, 4);
    }
    rig.m_poll(&mut cq).unwrap();
    let shown: MSrqContext = rig.ask(Opcode::QUERY_SRQ, SRQ);
    assert_eq!(shown.state(), SrqState::ERROR);
    assert_eq!(rig.qp_state(0x31), QpState::ERR);
    let events = rig.m_take_events(EQ_ASYNC, &mut 1);
    assert_eq!(events[0].event_type(), EventType::SRQ_CATASTROPHIC);
}

#[test]
fn srq_contexts_with_foreign_records_or_without_pages_are_refused() {
    let (mut rig, _, _) = shared();
    let mut foreign = context();
    foreign.set_record(512);
    let create =
        |rig: &mut Rig, context: &MSrqContext| rig.give(Opcode::SW2HW_SRQ, 0, 0x13, context);
    assert_eq!(create(&mut rig, &foreign), CmdStatus::BAD_PARAM);
    foreign = context();
    foreign.set_uar_page(8);
    assert_eq!(create(&mut rig, &foreign), CmdStatus::BAD_PARAM);
    rig.command(Opcode::UNMAP_ICM, 0, 64, SRQC);
    assert_eq!(create(&mut rig, &context()), CmdStatus::INTERNAL_ERR);
    let raw: MSrqContext = rig.ask(Opcode::HW2SW_SRQ, SRQ);
    assert_eq!(raw.state(), SrqState::SOFTWARE);
}

/// A region of two pages behind index `key`, whose translations are number 16 and 17 of the table.
fn region(mtt_address: u64) -> Mpt {
    let mut entry = Mpt::ZERO;
    entry
        .set_status(MptStatus::SOFTWARE)
        .set_local_read(true)
        .set_local_write(true)
        .set_region(true)
        .set_key(0x0100_0023)
        .set_pd(PD)
        .set_start(0x7000_0800)
        .set_length(0x1000)
        .set_mtt_address(mtt_address);
    entry
}

/// infinihost 13.1: index 0x01000123 has key 0x00012301; here with another index.
#[test]
fn a_key_is_its_index_rotated_and_translations_are_named_from_their_table_or_from_zero() {
    let (mut rig, mut cq, _) = shared();
    let mut qp = rig.m_ud_qp(0x38, &cq);
    for (number, at) in [0x31_0000, 0x34_0000].into_iter().enumerate() {
        rig.store(behind(MTTS) + 128 + number as u64 * 8, &Mtt::page(at));
    }
    rig.store(0x31_0800, &[0x11_u8; 0x800]);
    rig.store(0x34_0000, &[0x22_u8; 0x800]);
    for address in [MTTS + 128, 128] {
        let status = rig.give(Opcode::SW2HW_MPT, 0, 0x23, &region(address));
        assert_eq!(status, CmdStatus::OK);
        let stored: Mpt = rig.load(behind(MPTS) + 0x23 * 64);
        assert_eq!(
            stored.status(),
            MptStatus::HARDWARE,
            "in ICM, as it was given"
        );
        assert_eq!(stored.mtt_address(), address);
        let at = DmaAddr::new(0x34_07ff);
        let reached = rig.hca.reaches(&mut rig.bus, at, 1);
        assert_eq!(reached, Some("MPT entry 0x23".to_string()));
        rig.m_post_receive(&mut qp, &[(BUFFER, 200)]);
        let data = DataSegment::new(64, 0x2301, 0x7000_0fe0);
        let body = m_datagram(&av(1, LID), 0x38, Q_KEY, data);
        rig.m_post_send(&mut qp, WqeOpcode::SEND, &[body], next::ALWAYS_ONE);
        rig.m_poll(&mut cq).unwrap();
        rig.m_poll(&mut cq).unwrap();
        let halves: [[u8; 32]; 2] = rig.load(BUFFER + 40);
        assert_eq!(halves, [[0x11; 32], [0x22; 32]]);
        rig.plain(Opcode::HW2SW_MPT, 0x23);
    }
}

#[test]
fn another_generation_an_index_and_an_unmapped_translation_are_refused() {
    let (mut rig, mut cq, _) = shared();
    rig.give(Opcode::SW2HW_MPT, 0, 0x23, &region(MTTS + 128));
    rig.store(behind(MTTS) + 128, &[Mtt::page(0x31_0000); 2]);
    let mut number = 0x38;
    let mut read = |rig: &mut Rig, key, len| {
        let mut qp = rig.m_ud_qp(number, &cq);
        number += 1;
        let data = DataSegment::new(len, key, 0x7000_0800);
        let body = m_datagram(&av(1, LID), 1, Q_KEY, data);
        rig.m_post_send(&mut qp, WqeOpcode::SEND, &[body], next::ALWAYS_ONE);
        let cqe = rig.m_poll(&mut cq).unwrap();
        cqe.is_error().then(|| cqe.as_error().syndrome())
    };
    let refused = Some(Syndrome::LOCAL_PROTECTION);
    assert_eq!(read(&mut rig, 0x2301, 4), None);
    assert_eq!(read(&mut rig, 0x2302, 4), refused, "another generation");
    assert_eq!(read(&mut rig, 0x0100_0023, 4), refused, "the index itself");
    rig.command(Opcode::UNMAP_ICM, 0, 1, MTTS);
    assert_eq!(read(&mut rig, 0x2301, 4), refused, "no page behind it");
    rig.command(Opcode::UNMAP_ICM, 0, 1, MPTS);
    let status = rig.give(Opcode::SW2HW_MPT, 0, 0x24, region(0).set_key(0x24));
    assert_eq!(status, CmdStatus::INTERNAL_ERR);
}

#[test]
fn translations_are_written_by_command_too_but_not_those_of_the_firmware() {
    let (mut rig, _, _) = shared();
    let mut write = |address: u64| {
        let mut header = WriteMttHeader::ZERO;
        header.set_address(address);
        rig.store(IN, &header);
        rig.store(IN + 16, &Mtt::page(0x31_0000));
        rig.command(Opcode::WRITE_MTT, 0, 1, IN).status
    };
    assert_eq!(
        write(MTTS + 127 - 7),
        CmdStatus::BAD_PARAM,
        "16 are reserved"
    );
    assert_eq!(write(MTTS + 128), CmdStatus::OK);
    let stored: Mtt = rig.load(behind(MTTS) + 128);
    assert_eq!(stored, Mtt::page(0x31_0000));
    let status = rig.command(Opcode::READ_MTT, 0, 1, MTTS + 128).status;
    assert_eq!((status, rig.load::<Mtt>(OUT)), (CmdStatus::OK, stored));
}
