//! Multicast groups: verbs 9.2.

use super::tools::{
    GRH, MGID, MLID, QKEY, QUIET, Station, is_invalid_attr, is_invalid_handle, is_no_resources,
    qp_init,
};
use super::{Features, Rig, Side};
use core_ib::platform::Platform as _;
use core_ib::verbs::{
    AhAttr, AhHandle, Device, GlobalRoute, QpAttrMask, QpInfo, QpState, QpType, SendOp, WcFlags,
};
use core_ib::{Gid, Lid, QKey, Qpn};

/// Address handle of the group.
fn group<R: Rig>(station: &Station<'_, R>, mgid: Gid, mlid: Lid) -> AhHandle {
    let attr = AhAttr {
        dlid: mlid,
        grh: Some(GlobalRoute {
            dgid: mgid,
            hop_limit: 1,
            ..GlobalRoute::default()
        }),
        ..station.address_of(Side::B)
    };
    station.hca().create_ah(station.pd, &attr).unwrap()
}

fn to_all(ah: AhHandle) -> SendOp {
    SendOp::Datagram {
        ah,
        remote_qpn: Qpn::MULTICAST,
        remote_qkey: QKEY,
        imm: None,
        pkey_index: 0,
    }
}

/// Sends a message to the group from a QP of `station`, and waits until everybody has it.
fn send<R: Rig>(station: &Station<'_, R>, qp: &QpInfo, ah: AhHandle) {
    station.send(qp.handle, 99, to_all(ah), &[station.buffer.sge(0, 16)]);
    station.machine().sleep(QUIET);
}

/// Identifiers of the receives that have completed.
fn received<R: Rig>(station: &Station<'_, R>) -> Vec<u64> {
    let mut ids: Vec<u64> = station
        .poll(station.cq, 32)
        .iter()
        .map(|wc| wc.wr_id)
        .collect();
    ids.sort_unstable();
    ids
}

/// A receive whose identifier says whose it is.
fn receive<R: Rig>(station: &Station<'_, R>, qp: &QpInfo, id: u64) {
    station.receive(qp.handle, id, &[station.buffer.sge(id * 1024, 512)]);
}

/// verbs 9.2, T144.
pub fn who_is_attached_gets_the_messages_of_the_group<R: Rig>(rig: &R) {
    let [a, b] = Station::pair(rig);
    let (sender, member) = (a.ud(), b.ud());
    let ah = group(&a, MGID, MLID);
    receive(&b, &member, 1);
    send(&a, &sender, ah);
    assert_eq!(
        (received(&a), received(&b)),
        (vec![99], vec![]),
        "nobody yet"
    );
    b.hca().attach_mcast(member.handle, MGID, MLID).unwrap();
    a.buffer.put(0, b"to all of you   ");
    send(&a, &sender, ah);
    let wc = b.success(1);
    assert_eq!((wc.byte_len, wc.src_qp), (16 + GRH, sender.qpn));
    assert!(wc.flags.contains(WcFlags::GRH));
    assert_eq!(
        b.buffer.bytes(1024 + 24, 16),
        MGID.0,
        "destination of the GRH"
    );
    assert_eq!(b.buffer.bytes(1024 + 40, 16), b"to all of you   ");
    receive(&b, &member, 2);
    b.hca().detach_mcast(member.handle, MGID, MLID).unwrap();
    send(&a, &sender, ah);
    assert_eq!(received(&b), []);
}

/// verbs 9.2, T145.
pub fn to_attach_twice_is_once<R: Rig>(rig: &R) {
    let [a, b] = Station::pair(rig);
    let (sender, member) = (a.ud(), b.ud());
    let ah = group(&a, MGID, MLID);
    for _ in 0..2 {
        b.hca().attach_mcast(member.handle, MGID, MLID).unwrap();
    }
    receive(&b, &member, 1);
    receive(&b, &member, 2);
    send(&a, &sender, ah);
    assert_eq!(received(&b), [1], "one copy");
    b.hca().detach_mcast(member.handle, MGID, MLID).unwrap();
    send(&a, &sender, ah);
    assert_eq!(received(&b), []);
    is_invalid_attr(b.hca().detach_mcast(member.handle, MGID, MLID));
    b.hca().destroy_qp(member.handle).unwrap();
}

/// verbs 9.2.
pub fn what_is_not_attached_cannot_be_detached<R: Rig>(rig: &R) {
    let station = Station::new(rig, Side::A);
    let (hca, qp, other) = (station.hca(), station.ud().handle, station.ud().handle);
    is_invalid_attr(hca.detach_mcast(qp, MGID, MLID));
    hca.attach_mcast(qp, MGID, MLID).unwrap();
    is_invalid_attr(hca.detach_mcast(other, MGID, MLID));
    let mut elsewhere = MGID;
    elsewhere.0[15] ^= 1;
    is_invalid_attr(hca.detach_mcast(qp, elsewhere, MLID));
    hca.detach_mcast(qp, MGID, MLID).unwrap();
    hca.destroy_qp(other).unwrap();
    is_invalid_handle(hca.attach_mcast(other, MGID, MLID));
    is_invalid_handle(hca.detach_mcast(other, MGID, MLID));
}

/// verbs 9.2, T146.
pub fn what_is_no_group_or_no_datagram_qp_is_not_attached<R: Rig>(rig: &R) {
    let station = Station::new(rig, Side::A);
    let (hca, qp) = (station.hca(), station.ud().handle);
    let unicast = Gid([0xfe; 16]);
    is_invalid_attr(hca.attach_mcast(qp, unicast, MLID));
    for lid in [0, 1, 0xbfff, 0xffff].map(Lid) {
        is_invalid_attr(hca.attach_mcast(qp, MGID, lid));
    }
    for (service, feature) in [
        (QpType::Rc, Features::RC),
        (QpType::Uc, Features::UC),
        (QpType::Gsi, Features::empty()),
    ] {
        if rig.declared().has(feature) {
            let qp = station.create(&qp_init(service, station.cq));
            is_invalid_attr(hca.attach_mcast(qp.handle, MGID, MLID));
        }
    }
    hca.destroy_qp(qp).unwrap();
}

/// verbs 9.2, T147.
pub fn one_member_that_cannot_receive_does_not_keep_the_others_from_it<R: Rig>(rig: &R) {
    let [a, b] = Station::pair(rig);
    let sender = a.ud();
    let [good, empty, stranger, late] = [(); 4].map(|()| b.ud_in_reset());
    for qp in [&good, &empty, &stranger] {
        b.bring_to(QpType::Ud, qp.handle, QpState::Rts);
    }
    b.bring_to(QpType::Ud, late.handle, QpState::Init);
    let changed = b.modify(stranger.handle, QpState::Rts, QpAttrMask::QKEY, |attr| {
        attr.qkey = QKey(QKEY.0 ^ 2);
    });
    assert_eq!(changed, Ok(()));
    for (id, qp) in [(1, &good), (3, &stranger), (4, &late)] {
        receive(&b, qp, id);
    }
    for qp in [&empty, &stranger, &late, &good] {
        b.hca().attach_mcast(qp.handle, MGID, MLID).unwrap();
    }
    let ah = group(&a, MGID, MLID);
    send(&a, &sender, ah);
    assert_eq!(received(&b), [1]);
    a.success(99);
    // Now that one is ready, it gets what comes.
    receive(&b, &good, 5);
    assert_eq!(
        b.modify(late.handle, QpState::Rtr, QpAttrMask::empty(), |_| ()),
        Ok(())
    );
    send(&a, &sender, ah);
    assert_eq!(received(&b), [4, 5]);
}

/// verbs 9.2, T147: n copies.
pub fn every_member_gets_a_copy_of_its_own<R: Rig>(rig: &R) {
    let [a, b] = Station::pair(rig);
    let sender = a.ud();
    let members: Vec<QpInfo> = (0..6).map(|_| b.ud()).collect();
    for (id, qp) in (0..).zip(&members) {
        b.hca().attach_mcast(qp.handle, MGID, MLID).unwrap();
        receive(&b, qp, id);
    }
    a.buffer.put(0, b"one copy for all");
    send(&a, &sender, group(&a, MGID, MLID));
    assert_eq!(received(&b), [0, 1, 2, 3, 4, 5]);
    for id in 0..6 {
        assert_eq!(b.buffer.bytes(id * 1024 + 40, 16), b"one copy for all");
    }
    for (id, qp) in (0..).zip(&members) {
        receive(&b, qp, id);
    }
    b.hca().detach_mcast(members[2].handle, MGID, MLID).unwrap();
    send(&a, &sender, group(&a, MGID, MLID));
    assert_eq!(received(&b), [0, 1, 3, 4, 5]);
}

/// verbs 9.2, T148: without loopback blocking.
pub fn a_sender_that_is_a_member_gets_a_copy<R: Rig>(rig: &R) {
    let [a, b] = Station::pair(rig);
    let (sender, member) = (a.ud(), b.ud());
    a.hca().attach_mcast(sender.handle, MGID, MLID).unwrap();
    b.hca().attach_mcast(member.handle, MGID, MLID).unwrap();
    receive(&a, &sender, 1);
    receive(&b, &member, 2);
    send(&a, &sender, group(&a, MGID, MLID));
    assert_eq!((received(&a), received(&b)), (vec![1, 99], vec![2]));
}

/// verbs 9.2, T149.
pub fn more_groups_than_there_are_is_a_want_of_resources<R: Rig>(rig: &R) {
    let station = Station::new(rig, Side::A);
    let (hca, qp) = (station.hca(), station.ud().handle);
    let most = u64::from(hca.query_device().max_mcast_groups);
    let mgid = |number: u64| {
        let mut mgid = MGID;
        mgid.0[8..].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
        mgid
    };
    for number in 0..most {
        hca.attach_mcast(qp, mgid(number), MLID).unwrap();
    }
    // A device that spreads groups over buckets may have room for more.
    let (mut number, mut answer) = (most, Ok(()));
    while answer.is_ok() {
        assert!(number <= 4 * most + 64, "there is no end");
        answer = hca.attach_mcast(qp, mgid(number), MLID);
        number += 1;
    }
    is_no_resources(answer);
    for number in 0..number - 1 {
        hca.detach_mcast(qp, mgid(number), MLID).unwrap();
    }
    hca.attach_mcast(qp, mgid(number), MLID).unwrap();
    hca.detach_mcast(qp, mgid(number), MLID).unwrap();
    hca.destroy_qp(qp).unwrap();
}

/// verbs 2.1, 9.2.
pub fn more_members_than_a_group_takes_is_a_want_of_resources<R: Rig>(rig: &R) {
    let station = Station::new(rig, Side::A);
    let hca = station.hca();
    let most = hca.query_device().max_mcast_qp_attach;
    let mut init = qp_init(QpType::Ud, station.cq);
    (init.caps.max_send_wr, init.caps.max_recv_wr) = (1, 1);
    let mut members = Vec::new();
    while let Ok(qp) = hca.create_qp(station.pd, &init) {
        let answer = hca.attach_mcast(qp.handle, MGID, MLID);
        if members.len() as u32 == most {
            is_no_resources(answer);
            break;
        }
        answer.unwrap();
        members.push(qp.handle);
    }
    for qp in members {
        hca.detach_mcast(qp, MGID, MLID).unwrap();
        hca.destroy_qp(qp).unwrap();
    }
}

/// verbs 3.10, 9.2: attachments are kept.
pub fn a_member_that_is_reset_is_a_member_when_it_comes_back<R: Rig>(rig: &R) {
    let [a, b] = Station::pair(rig);
    let (sender, member) = (a.ud(), b.ud());
    let ah = group(&a, MGID, MLID);
    b.hca().attach_mcast(member.handle, MGID, MLID).unwrap();
    for state in [QpState::Error, QpState::Reset] {
        let done = b.modify(member.handle, state, QpAttrMask::empty(), |_| ());
        assert_eq!(done, Ok(()));
        send(&a, &sender, ah);
        assert_eq!(received(&b), []);
    }
    b.bring_to(QpType::Ud, member.handle, QpState::Rtr);
    receive(&b, &member, 1);
    send(&a, &sender, ah);
    assert_eq!(received(&b), [1]);
}

/// verbs 9.2: two groups that share a LID.
pub fn a_message_of_another_group_with_the_same_lid_is_not_for_us<R: Rig>(rig: &R) {
    let [a, b] = Station::pair(rig);
    let (sender, one, two) = (a.ud(), b.ud(), b.ud());
    let mut other = MGID;
    other.0[15] ^= 0x80;
    b.hca().attach_mcast(one.handle, MGID, MLID).unwrap();
    b.hca().attach_mcast(two.handle, other, MLID).unwrap();
    receive(&b, &one, 1);
    receive(&b, &two, 2);
    send(&a, &sender, group(&a, MGID, MLID));
    assert_eq!(received(&b), [1]);
    send(&a, &sender, group(&a, other, MLID));
    assert_eq!(received(&b), [2]);
}
