//! P_Keys and Q_Keys: verbs 12.

use super::tools::{Buffer, MTU, QKEY, QUIET, Station, get, qp_init, set_pkeys};
use super::{Features, Rig, Side};
use core_ib::platform::{DmaBuf, Platform as _};
use core_ib::verbs::{
    Access, CqInit, Device, DeviceCaps, Owner, PortModify, QpAttrMask as M, QpInfo, QpState,
    QpType, SendOp, UserBuffer, WcStatus,
};
use core_ib::wire::mad::PortInfo;
use core_ib::{PKey, Psn, QKey, Qpn};

/// A UD QP in RTS with another P_Key index.
fn with_index<R: Rig>(station: &Station<'_, R>, pkey_index: u16) -> QpInfo {
    let qp = station.ud_in_reset();
    for (state, mask) in super::tools::steps::way(QpType::Ud, QpState::Rts) {
        let done = station.modify(qp.handle, state, mask, |attr| {
            *attr = station.values();
            attr.pkey_index = pkey_index;
        });
        assert_eq!(done, Ok(()), "{state:?}");
    }
    qp
}

/// Sends from one to the other; did it arrive?
fn arrives<R: Rig>(a: &Station<'_, R>, from: &QpInfo, b: &Station<'_, R>, to: &QpInfo) -> bool {
    b.receive(to.handle, 1, &[b.buffer.sge(0, 256)]);
    a.send(from.handle, 2, a.to(to), &[]);
    a.success(2);
    b.machine().sleep(QUIET);
    let completions = b.poll(b.cq, 4);
    assert!(completions.iter().all(|wc| wc.status == WcStatus::Success));
    completions.len() == 1
}

/// verbs 12: limited and full members, and entries that are none.
pub fn two_limited_members_do_not_meet_and_all_others_do<R: Rig>(rig: &R) {
    let [a, b] = Station::pair(rig);
    // Index 1: full; 2: limited; 3: none; 4: another partition.
    let table = [0xffff, 0x8012, 0x0012, 0x0000, 0x8034].map(PKey);
    set_pkeys(a.hca(), &table);
    set_pkeys(b.hca(), &table);
    for (from, to, meet) in [
        (1, 1, true),
        (1, 2, true),
        (2, 1, true),
        (2, 2, false),
        (1, 4, false),
        (0, 1, false),
        (3, 3, false),
        (3, 1, false),
        (1, 3, false),
        (4, 4, true),
    ] {
        let (sender, receiver) = (with_index(&a, from), with_index(&b, to));
        let met = arrives(&a, &sender, &b, &receiver);
        assert_eq!(met, meet, "index {from} to index {to}");
        a.hca().destroy_qp(sender.handle).unwrap();
        b.hca().destroy_qp(receiver.handle).unwrap();
    }
}

/// verbs 2.2, 12, T157: as datagrams show it.
pub fn a_pkey_that_does_not_match_is_counted<R: Rig>(rig: &R) {
    let [a, b] = Station::pair(rig);
    if !b
        .hca()
        .query_device()
        .caps
        .contains(DeviceCaps::BAD_PKEY_COUNTER)
    {
        return;
    }
    set_pkeys(a.hca(), &[PKey(0xffff), PKey(0x8012)]);
    let (sender, receiver) = (with_index(&a, 1), b.ud());
    let before = b.hca().query_port(1).unwrap().bad_pkey_counter;
    assert!(!arrives(&a, &sender, &b, &receiver));
    let after = b.hca().query_port(1).unwrap().bad_pkey_counter;
    assert!(after > before, "{before}, then {after}");
}

/// verbs 2.2, 2.3, 12, T158.
pub fn a_qkey_that_does_not_match_is_counted_and_the_counter_is_cleared<R: Rig>(rig: &R) {
    let [a, b] = Station::pair(rig);
    let (sender, receiver) = (a.ud(), b.ud());
    let other = b.modify(receiver.handle, QpState::Rts, M::QKEY, |attr| {
        attr.qkey = QKey(QKEY.0 + 1);
    });
    assert_eq!(other, Ok(()));
    let count = || b.hca().query_port(1).unwrap().qkey_violation_counter;
    let before = count();
    assert!(!arrives(&a, &sender, &b, &receiver));
    let counts = b
        .hca()
        .query_device()
        .caps
        .contains(DeviceCaps::BAD_QKEY_COUNTER);
    if counts {
        assert_eq!(count(), before + 1);
        let info: PortInfo = get(b.hca(), PortInfo::modifier(1));
        assert_eq!(info.q_key_violations, count());
        let reset = PortModify {
            reset_qkey_counter: true,
            ..PortModify::default()
        };
        if rig.declared().has(Features::PORT_CAPABILITIES) {
            b.hca().modify_port(1, &reset).unwrap();
            assert_eq!(count(), 0);
        }
    }
    let same = b.modify(receiver.handle, QpState::Rts, M::QKEY, |attr| {
        attr.qkey = QKEY
    });
    assert_eq!(same, Ok(()));
    assert!(arrives(&a, &sender, &b, &receiver));
}

/// verbs 12: an entry that is rewritten counts at once, for QPs that are up, without modify.
pub fn a_pkey_entry_that_is_rewritten_counts_at_once<R: Rig>(rig: &R) {
    let [a, b] = Station::pair(rig);
    let here = [0xffff, 0x8012].map(PKey);
    set_pkeys(a.hca(), &here);
    set_pkeys(b.hca(), &here);
    let (sender, receiver) = (with_index(&a, 1), with_index(&b, 1));
    assert!(arrives(&a, &sender, &b, &receiver));
    set_pkeys(b.hca(), &[0xffff, 0x8034].map(PKey));
    assert!(!arrives(&a, &sender, &b, &receiver), "the receiver's");
    set_pkeys(a.hca(), &[0xffff, 0x8034].map(PKey));
    assert!(arrives(&a, &sender, &b, &receiver), "both");
    set_pkeys(a.hca(), &[0xffff, 0x0000].map(PKey));
    b.poll(b.cq, 8);
    assert!(!arrives(&a, &sender, &b, &receiver), "none");
}

/// verbs 3.11, 12, T162.
pub fn gsi_tells_the_index_by_which_a_packet_came_and_sends_by_the_one_given<R: Rig>(rig: &R) {
    let [a, b] = Station::pair(rig);
    set_pkeys(a.hca(), &[0xffff, 0x8012, 0x8034].map(PKey));
    set_pkeys(b.hca(), &[0xffff, 0x8034, 0x8056, 0x8012].map(PKey));
    let (of_a, of_b) = (gsi(&a), gsi(&b));
    let send = |station: &Station<'_, R>, qp: &QpInfo, pkey_index| {
        let op = SendOp::Datagram {
            ah: station.ah(station.side.peer()),
            remote_qpn: Qpn::GSI,
            remote_qkey: QKey::GSI,
            imm: None,
            pkey_index,
        };
        station.send(qp.handle, 2, op, &[station.buffer.sge(0, 256)]);
        station.success(2);
    };
    for (sent, told) in [(0, 0), (1, 3), (2, 1)] {
        b.receive(of_b.handle, 1, &[b.buffer.sge(0, 512)]);
        send(&a, &of_a, sent);
        let wc = b.success(1);
        assert_eq!((wc.pkey_index, wc.src_qp), (told, Qpn::GSI));
        assert_eq!((wc.qpn, wc.byte_len), (Qpn::GSI, 256 + 40));
        a.receive(of_a.handle, 3, &[a.buffer.sge(1024, 512)]);
        send(&b, &of_b, told);
        assert_eq!(a.success(3).pkey_index, sent);
    }
    b.receive(of_b.handle, 4, &[b.buffer.sge(0, 512)]);
    set_pkeys(a.hca(), &[0xffff, 0x8078].map(PKey));
    send(&a, &of_a, 1);
    b.stays_quiet();
}

/// QP1 of a station, in RTS.
fn gsi<R: Rig>(station: &Station<'_, R>) -> QpInfo {
    let qp = station.create(&qp_init(QpType::Gsi, station.cq));
    for (state, mask) in super::tools::steps::way(QpType::Gsi, QpState::Rts) {
        let done = station.modify(qp.handle, state, mask, |attr| {
            (attr.qkey, attr.sq_psn) = (QKey::GSI, Psn::new(1));
        });
        assert_eq!(done, Ok(()), "{state:?}");
    }
    qp
}

/// verbs 3.11, 12: the Q_Key of a GSI QP is the well-known one.
pub fn gsi_hears_who_knows_its_qkey_and_nobody_else<R: Rig>(rig: &R) {
    let [a, b] = Station::pair(rig);
    let (sender, of_b) = (a.ud(), gsi(&b));
    let send = |remote_qkey| {
        let op = SendOp::Datagram {
            ah: a.ah(Side::B),
            remote_qpn: Qpn::GSI,
            remote_qkey,
            imm: None,
            pkey_index: 0,
        };
        a.send(sender.handle, 2, op, &[a.buffer.sge(0, 256)]);
        a.success(2);
    };
    b.receive(of_b.handle, 1, &[b.buffer.sge(0, MTU.bytes() as u32)]);
    send(QKEY);
    b.stays_quiet();
    // Bit 31 of a request stands for the QP's own key, so the QP must have it.
    let done = a.modify(sender.handle, QpState::Rts, M::QKEY, |attr| {
        attr.qkey = QKey::GSI
    });
    assert_eq!(done, Ok(()));
    send(QKey::GSI);
    assert_eq!(b.success(1).src_qp, sender.qpn);
}

/// verbs 3.5, 12, T160: a Q_Key with bit 31 set is for the kernel.
pub fn a_user_sets_no_privileged_qkey<R: Rig>(rig: &R) {
    let station = Station::new(rig, Side::A);
    let hca = station.hca();
    let user = hca.alloc_user();
    if !rig.declared().has(Features::USERS) {
        return super::tools::is_unsupported(user);
    }
    let context = user.unwrap();
    // What a context keeps in one place is in one page.
    let memory = [(); 3].map(|()| DmaBuf::new(station.machine(), 4096, 4096).unwrap());
    let [ring, queues, doorbells] = &memory;
    let owner = |memory: &DmaBuf<'_, R::Machine>, access, first| {
        let mr = Buffer::register(hca, station.pd, memory, 0, 4096, access).unwrap();
        Owner::User(UserBuffer {
            context,
            lkey: mr.lkey,
            doorbell_pages: [doorbells.addr(); 2],
            doorbell_indices: [first, first + 1],
        })
    };
    let init = CqInit {
        cqe: 15,
        vector: 0,
        owner: owner(ring, Access::LOCAL_WRITE, 0),
    };
    let cq = hca.create_cq(&init).unwrap().handle;
    let mut init = qp_init(QpType::Ud, cq);
    init.owner = owner(queues, Access::empty(), 2);
    let qp = station.create(&init);
    let set = |qkey| {
        station.modify(
            qp.handle,
            QpState::Init,
            M::PKEY_INDEX | M::PORT | M::QKEY,
            |attr| (attr.port, attr.qkey) = (1, qkey),
        )
    };
    super::tools::is_not_permitted(set(QKey(0x8001_0000)));
    assert_eq!(station.state(qp.handle), QpState::Reset);
    assert_eq!(set(QKey(0x7fff_ffff)), Ok(()));
    init.qp_type = QpType::Gsi;
    super::tools::is_not_permitted(hca.create_qp(station.pd, &init));
}
