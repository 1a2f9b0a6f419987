//! Multicast. infinihost 3.14, 4.12.

use super::verbs::*;
use super::*;
use hca_abi::infinihost::cmd::{CmdStatus, Opcode};
use hca_abi::infinihost::mgm::Mgm;
use hca_abi::infinihost::wqe::{DataSegment, WqeOpcode, next};
use zerocopy::IntoBytes;

const MGID: [u8; 16] = [
    0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff,
];
const MLID: u16 = 0xc001;
const AV: u64 = 0x3000;
const DATA: u64 = 0x4000;
const BUFFER: u64 = 0x5000;

fn hash(rig: &mut Rig, mgid: &[u8; 16]) -> u32 {
    rig.store(IN, mgid);
    let ended = rig.command(Opcode::MGID_HASH, 0, 0, IN);
    assert_eq!(ended.status, CmdStatus::OK);
    ended.immediate as u32
}

fn entry(mgid: [u8; 16], next: u32, members: &[u32]) -> Mgm {
    let mut entry = Mgm::ZERO;
    entry.set_gid(mgid).set_next(next);
    for (at, &qpn) in members.iter().enumerate() {
        entry.set_member(at, Some(qpn));
    }
    entry
}

fn write(rig: &mut Rig, index: u32, entry: &Mgm) {
    assert_eq!(rig.give(Opcode::WRITE_MGM, 0, index, entry), CmdStatus::OK);
}

#[test]
fn a_multicast_goes_out_and_to_every_member_at_the_port_the_sender_included() {
    let mut rig = Rig::card(1);
    rig.start(true);
    rig.activate(1, 0x15);
    let mut cq = rig.create_cq(0x20);
    let mut qps: Vec<Qp> = (0x30..0x33).map(|qpn| rig.ud_qp(qpn, 1, &cq)).collect();
    qps.push(rig.ud_qp(0x33, 2, &cq));
    for qp in &mut qps {
        rig.post_receive(qp, &[(BUFFER + u64::from(qp.qpn) * 0x100, 256)]);
    }
    let bucket = hash(&mut rig, &MGID);
    let mut other = MGID;
    other[15] = 1;
    // Our group is the second of its chain; 0x32 is not attached, 0x33 is at another port, 0x44 is nobody.
    write(&mut rig, bucket, &entry(other, 100, &[0x32]));
    write(&mut rig, 100, &entry(MGID, 0, &[0x30, 0x44, 0x33, 0x31]));
    let mut vector = av(1, MLID);
    vector.set_grh(true).set_dgid(MGID);
    rig.store(AV, &vector);
    let body = datagram(AV, 0xff_ffff, Q_KEY, DataSegment::new(20, ALL, DATA));
    rig.post_send(&mut qps[0], WqeOpcode::SEND, &[body], next::ALWAYS_ONE);
    assert!(rig.poll(&mut cq).unwrap().is_send());
    let received: Vec<_> = core::iter::from_fn(|| rig.poll(&mut cq)).collect();
    let to: Vec<_> = received
        .iter()
        .map(|cqe| (cqe.qpn(), cqe.byte_count(), cqe.grh()))
        .collect();
    assert_eq!(to, [(0x30, 60, true), (0x31, 60, true)]);
    assert_eq!(rig.bus.sent.len(), 1, "and on the wire");
    assert_eq!(received[0].path_bits(), 0);
}

#[test]
fn a_chain_that_runs_in_circles_ends() {
    let mut rig = Rig::card(1);
    rig.start(true);
    rig.activate(1, 0x15);
    let cq = rig.create_cq(0x20);
    let mut qp = rig.ud_qp(0x30, 1, &cq);
    let bucket = hash(&mut rig, &MGID);
    let mut other = MGID;
    other[15] = 1;
    write(&mut rig, bucket, &entry(other, 70, &[]));
    write(&mut rig, 70, &entry(other, 71, &[]));
    write(&mut rig, 71, &entry(other, 70, &[]));
    let mut vector = av(1, MLID);
    vector.set_grh(true).set_dgid(MGID);
    rig.store(AV, &vector);
    let body = datagram(AV, 0xff_ffff, Q_KEY, DataSegment::new(20, ALL, DATA));
    rig.post_send(&mut qp, WqeOpcode::SEND, &[body], next::ALWAYS_ONE);
    assert_eq!(rig.bus.sent.len(), 1);
}

#[test]
fn entries_are_read_as_they_were_written_and_begin_empty() {
    let mut rig = Rig::card(1);
    rig.plain(Opcode::SYS_EN, 0);
    rig.hca
        .attached_memory()
        .write(5 << 20, &[0xee; 4096])
        .unwrap();
    assert_eq!(rig.give(Opcode::INIT_HCA, 0, 0, &tables()), CmdStatus::OK);
    assert_eq!(rig.ask::<Mgm>(Opcode::READ_MGM, 3), Mgm::ZERO);
    let ours = entry(MGID, 5, &[1, 2, 3]);
    write(&mut rig, 127, &ours);
    assert_eq!(rig.ask::<Mgm>(Opcode::READ_MGM, 127), ours);
    assert_eq!(rig.plain(Opcode::READ_MGM, 128), CmdStatus::BAD_INDEX);
    assert_eq!(
        rig.command(Opcode::WRITE_MGM, 0, 128, IN).status,
        CmdStatus::BAD_INDEX
    );
}

#[test]
fn small_entries_are_transferred_in_their_size() {
    let mut rig = Rig::card(1);
    rig.plain(Opcode::SYS_EN, 0);
    let mut init = tables();
    init.set_log_mc_entry_size(6)
        .set_mc_hash_size(8)
        .set_log_mc_table_size(3);
    assert_eq!(rig.give(Opcode::INIT_HCA, 0, 0, &init), CmdStatus::OK);
    let ours = entry(MGID, 0, &[1, 2, 3, 4, 5, 6, 7, 8]);
    for index in 0..8 {
        write(&mut rig, index, &ours);
    }
    rig.store(OUT, &[0xee_u8; 256]);
    rig.plain(Opcode::READ_MGM, 2);
    let read: [u8; 256] = rig.load(OUT);
    assert_eq!(read[..64], ours.as_bytes()[..64]);
    assert_eq!(read[64..], [0xee; 192]);
    assert!(hash(&mut rig, &MGID) < 8);
}
