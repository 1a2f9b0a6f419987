//! Posting work to datagram QPs, and how datagrams arrive: verbs 4, 9.3.

use super::tools::{Buffer, GRH, MTU, QKEY, QUIET, Station, qp_init, send_wr, steps};
use super::{Hears, Refusal, Rig, Side, TooLong};
use core_ib::platform::Platform as _;
use core_ib::verbs::{
    Access, Device, Imm, PostCause, PostError, QpHandle, QpInfo, QpState, QpType, RecvWr,
    RemoteAddr, SendFlags, SendOp, SendWr, Sge, Signaling, WcFlags, WcOpcode, WcStatus,
};
use core_ib::{LKey, QKey, Qpn, RKey};

/// Bytes that differ from their neighbours and from those of other seeds.
fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|at| (at as u8).wrapping_mul(7) ^ (at >> 8) as u8 ^ seed)
        .collect()
}

fn refused(index: usize, cause: PostCause) -> Result<(), PostError> {
    Err(PostError { index, cause })
}

/// A station's receive of `room` bytes of payload at 32 KiB of its buffer.
fn receives<R: Rig>(station: &Station<'_, R>, qp: QpHandle, wr_id: u64, room: u32) {
    let sge = station.buffer.sge(32 << 10, room + GRH);
    station.receive(qp, wr_id, &[sge]);
}

/// The payload of that receive.
fn payload<R: Rig>(station: &Station<'_, R>, len: usize) -> Vec<u8> {
    station.buffer.bytes((32 << 10) + GRH as usize, len)
}

/// verbs 3.2, 4.1, T067.
pub fn a_state_that_takes_no_work_refuses_the_first_request<R: Rig>(rig: &R) {
    let [a, _b] = Station::pair(rig);
    for state in steps::STATES {
        let qp = a.ud_in_reset();
        a.bring_to(QpType::Ud, qp.handle, state);
        let sges = [a.buffer.sge(0, 64)];
        let op = a.to(&qp);
        let wrs = [send_wr(1, op, &sges), send_wr(2, op, &sges)];
        let takes_sends = matches!(state, QpState::Rts | QpState::Sqd | QpState::Error);
        let expected = if takes_sends {
            Ok(())
        } else {
            refused(0, PostCause::InvalidState)
        };
        assert_eq!(a.post_send(qp.handle, &wrs), expected, "{state:?}");
        let wrs = [1, 2].map(|wr_id| RecvWr { wr_id, sges: &sges });
        let takes_receives = state != QpState::Reset;
        let expected = if takes_receives {
            Ok(())
        } else {
            refused(0, PostCause::InvalidState)
        };
        assert_eq!(a.post_recv(qp.handle, &wrs), expected, "{state:?}");
        a.hca().destroy_qp(qp.handle).unwrap();
    }
}

/// verbs 4.1, 4.6, T069.
pub fn one_request_too_many_is_named_and_the_others_complete<R: Rig>(rig: &R) {
    let [a, b] = Station::pair(rig);
    let (qp, peer) = (a.ud(), b.ud());
    let op = a.to(&peer);
    let sges = [a.buffer.sge(0, 8)];
    let depth = qp.caps.max_recv_wr as usize;
    let wrs: Vec<_> = (0..=depth as u64)
        .map(|wr_id| RecvWr { wr_id, sges: &sges })
        .collect();
    assert_eq!(
        a.post_recv(qp.handle, &wrs),
        refused(depth, PostCause::QueueFull)
    );
    let depth = qp.caps.max_send_wr as usize;
    let wrs: Vec<_> = (0..=depth as u64)
        .map(|wr_id| send_wr(wr_id, op, &sges))
        .collect();
    assert_eq!(
        a.post_send(qp.handle, &wrs),
        refused(depth, PostCause::QueueFull)
    );
    let ids: Vec<u64> = a.completions(depth).iter().map(|wc| wc.wr_id).collect();
    assert_eq!(ids, (0..depth as u64).collect::<Vec<_>>());
    a.stays_quiet();
}

/// verbs 4.5, T070.
pub fn entries_of_unsignalled_sends_are_free_once_a_later_completion_is_polled<R: Rig>(rig: &R) {
    let [a, b] = Station::pair(rig);
    let (qp, peer) = (a.ud(), b.ud());
    let op = a.to(&peer);
    let sges = [a.buffer.sge(0, 8)];
    let unsignalled = SendWr {
        flags: SendFlags::empty(),
        ..send_wr(0, op, &sges)
    };
    let depth = qp.caps.max_send_wr as usize;
    for _ in 0..depth - 1 {
        a.post_send(qp.handle, &[unsignalled]).unwrap();
    }
    a.post_send(qp.handle, &[send_wr(1, op, &sges)]).unwrap();
    a.machine().sleep(QUIET);
    let full = refused(0, PostCause::QueueFull);
    assert_eq!(
        a.post_send(qp.handle, &[unsignalled]),
        full,
        "not polled yet"
    );
    a.success(1);
    let wrs = vec![unsignalled; depth];
    assert_eq!(a.post_send(qp.handle, &wrs), Ok(()), "all are free");
    a.stays_quiet();
    assert_eq!(a.post_send(qp.handle, &[unsignalled]), full, "and stays so");
}

/// verbs 3.1, 4.4: the policy "all".
pub fn with_the_policy_all_every_send_completes<R: Rig>(rig: &R) {
    let [a, b] = Station::pair(rig);
    let mut init = qp_init(QpType::Ud, a.cq);
    init.signaling = Signaling::All;
    let (qp, peer) = (a.ready(&init), b.ud());
    let sges = [a.buffer.sge(0, 8)];
    let wr = SendWr {
        flags: SendFlags::empty(),
        ..send_wr(5, a.to(&peer), &sges)
    };
    a.post_send(qp.handle, &[wr]).unwrap();
    a.success(5);
}

/// verbs 4.1, 4.6, T071.
pub fn a_list_stops_at_the_first_request_with_too_many_entries<R: Rig>(rig: &R) {
    let [a, b] = Station::pair(rig);
    let (qp, peer) = (a.ud(), b.ud());
    let op = a.to(&peer);
    let sge = a.buffer.sge(0, 8);
    let most = vec![sge; qp.caps.max_send_sge as usize];
    let too_many = vec![sge; most.len() + 1];
    let wrs = [&most, &most, &too_many, &most, &most];
    let wrs: Vec<_> = (0..)
        .zip(wrs)
        .map(|(id, sges)| send_wr(id, op, sges))
        .collect();
    assert_eq!(
        a.post_send(qp.handle, &wrs),
        refused(2, PostCause::TooManySge)
    );
    let ids: Vec<u64> = a.completions(2).iter().map(|wc| wc.wr_id).collect();
    assert_eq!(ids, [0, 1]);
    a.stays_quiet();
    let too_many = vec![sge; qp.caps.max_recv_sge as usize + 1];
    let (fits, long) = (&too_many[1..], &too_many[..]);
    let wrs: Vec<_> = (0..)
        .zip([fits, long, fits])
        .map(|(wr_id, sges)| RecvWr { wr_id, sges })
        .collect();
    assert_eq!(
        a.post_recv(qp.handle, &wrs),
        refused(1, PostCause::TooManySge)
    );
    assert_eq!(a.post_send(qp.handle, &[]), Ok(()), "nothing to post");
    assert_eq!(a.post_recv(qp.handle, &[]), Ok(()), "nothing to post");
}

/// verbs 4.2, T072.
pub fn an_opcode_of_another_service_is_refused_and_the_qp_lives<R: Rig>(rig: &R) {
    let [a, b] = Station::pair(rig);
    let (qp, peer) = (a.ud(), b.ud());
    let remote = RemoteAddr {
        addr: 0,
        rkey: RKey(0),
    };
    let sges = [a.buffer.sge(0, 8)];
    for op in [
        SendOp::Send { imm: None },
        SendOp::Send {
            imm: Some(Imm([0; 4])),
        },
        SendOp::SendInvalidate { rkey: RKey(0) },
        SendOp::RdmaWrite { remote, imm: None },
        SendOp::RdmaWrite {
            remote,
            imm: Some(Imm([0; 4])),
        },
        SendOp::RdmaRead { remote },
        SendOp::CompareSwap {
            remote,
            compare: 0,
            swap: 0,
        },
        SendOp::FetchAdd { remote, add: 0 },
        SendOp::LocalInvalidate { rkey: RKey(0) },
    ] {
        let answer = a.post_send(qp.handle, &[send_wr(1, op, &sges)]);
        assert_eq!(answer, refused(0, PostCause::InvalidOpcode), "{op:?}");
    }
    a.stays_quiet();
    assert_eq!(a.state(qp.handle), QpState::Rts);
    receives(&b, peer.handle, 1, 64);
    a.send(qp.handle, 2, a.to(&peer), &sges);
    a.success(2);
    b.success(1);
}

/// verbs 4.2, 4.4, T073.
pub fn inline_data_is_copied_while_posting_and_its_key_is_not_looked_at<R: Rig>(rig: &R) {
    let [a, b] = Station::pair(rig);
    let (qp, peer) = (a.ud(), b.ud());
    let op = a.to(&peer);
    for len in [0, 1, 3, 4, 13, 60, qp.caps.max_inline as usize] {
        receives(&b, peer.handle, 1, 1024);
        let mut data = pattern(len, 3);
        let expected = data.clone();
        let inline = SendWr {
            inline: &data,
            flags: SendFlags::INLINE | SendFlags::SIGNALED,
            ..send_wr(2, op, &[])
        };
        a.post_send(qp.handle, &[inline]).unwrap();
        data.fill(0xee);
        a.success(2);
        assert_eq!(b.success(1).byte_len, len as u32 + GRH);
        assert_eq!(payload(&b, len), expected, "{len} bytes");
    }
    let data = pattern(qp.caps.max_inline as usize + 1, 4);
    let too_long = SendWr {
        inline: &data,
        flags: SendFlags::INLINE,
        ..send_wr(3, op, &[])
    };
    let answer = a.post_send(qp.handle, &[too_long]);
    assert_eq!(answer, refused(0, PostCause::InlineTooLong));
    b.stays_quiet();
}

/// verbs 4.7, 4.8, T075.
pub fn entries_of_any_length_over_several_regions_arrive_as_one_stream<R: Rig>(rig: &R) {
    let [a, b] = Station::pair(rig);
    let (qp, peer) = (a.ud(), b.ud());
    let other = Buffer::new(a.machine(), a.hca(), a.pd, 8192, Access::empty());
    let (here, there) = (pattern(64 << 10, 1), pattern(8192, 2));
    a.buffer.put(0, &here);
    other.put(0, &there);
    let sges = [
        a.buffer.sge(5, 1),
        other.sge(0, 0),
        other.sge(4093, 7),
        a.buffer.sge(4095, 1500),
    ];
    let stream = [&here[5..6], &there[4093..4100], &here[4095..5595]].concat();
    let into = [
        b.buffer.sge(0, 17),
        b.buffer.sge(100, 0),
        b.buffer.sge(4090, 30),
        b.buffer.sge(9000, 2048),
    ];
    b.receive(peer.handle, 1, &into);
    a.send(qp.handle, 2, a.to(&peer), &sges);
    a.success(2);
    assert_eq!(b.success(1).byte_len, stream.len() as u32 + GRH);
    // 17 and 23 bytes hold what would be the GRH.
    let arrived = [
        b.buffer.bytes(4113, 7),
        b.buffer.bytes(9000, stream.len() - 7),
    ]
    .concat();
    assert_eq!(arrived, stream);
}

/// verbs 4.7, T076.
pub fn a_send_of_nothing_arrives_with_a_length_of_40<R: Rig>(rig: &R) {
    let [a, b] = Station::pair(rig);
    let (qp, peer) = (a.ud(), b.ud());
    let op = a.to(&peer);
    let wild = Sge {
        addr: 1,
        length: 0,
        lkey: LKey(0xdead_beef),
    };
    for sges in [&[][..], &[wild], &[wild, wild, wild]] {
        receives(&b, peer.handle, 1, 0);
        a.send(qp.handle, 2, op, sges);
        a.success(2);
        assert_eq!(b.success(1).byte_len, GRH);
    }
}

/// verbs 4.3, T080.
pub fn a_datagram_of_the_mtu_arrives_and_one_byte_more_never_leaves<R: Rig>(rig: &R) {
    let [a, b] = Station::pair(rig);
    let (qp, peer) = (a.ud(), b.ud());
    let (op, mtu) = (a.to(&peer), MTU.bytes());
    let data = pattern(mtu, 5);
    a.buffer.put(0, &data);
    receives(&b, peer.handle, 1, 4096);
    a.send(qp.handle, 2, op, &[a.buffer.sge(0, mtu as u32)]);
    a.success(2);
    assert_eq!(b.success(1).byte_len, mtu as u32 + GRH);
    assert_eq!(payload(&b, mtu), data);
    receives(&b, peer.handle, 3, 4096);
    let sges = [a.buffer.sge(0, mtu as u32 + 1)];
    let answer = a.post_send(qp.handle, &[send_wr(4, op, &sges)]);
    match rig.declared().datagram_too_long {
        TooLong::AtPost => assert_eq!(answer, refused(0, PostCause::InvalidAttr)),
        TooLong::Silently => {
            answer.unwrap();
            a.success(4);
        }
        TooLong::InCompletion => {
            answer.unwrap();
            let status = a.completion().status;
            let told = [WcStatus::LocalLength, WcStatus::LocalQpOperation];
            assert!(told.contains(&status), "{status:?}");
        }
    }
    b.stays_quiet();
}

/// verbs 4.1, 4.3, T087.
pub fn an_address_handle_of_another_pd_sends_nothing<R: Rig>(rig: &R) {
    let [a, b] = Station::pair(rig);
    let (qp, peer) = (a.ud(), b.ud());
    let pd = a.hca().alloc_pd().unwrap();
    let ah = a.hca().create_ah(pd, &a.address_of(Side::B)).unwrap();
    receives(&b, peer.handle, 1, 64);
    let sges = [a.buffer.sge(0, 8)];
    let answer = a.post_send(qp.handle, &[send_wr(2, a.datagram(ah, &peer), &sges)]);
    match rig.declared().ah_of_another_pd {
        Refusal::AtPost => assert_eq!(answer, refused(0, PostCause::InvalidHandle)),
        Refusal::InCompletion => {
            answer.unwrap();
            assert_eq!(a.completion().status, WcStatus::LocalQpOperation);
        }
        Refusal::Never => panic!("verbs 4.3 knows no such choice"),
    }
    b.stays_quiet();
}

/// verbs 4.1: check 9.
pub fn an_address_handle_that_is_gone_is_refused<R: Rig>(rig: &R) {
    let [a, b] = Station::pair(rig);
    let (qp, peer) = (a.ud(), b.ud());
    let (dead, foreign) = (a.ah(Side::B), b.ah(Side::A));
    a.hca().destroy_ah(dead).unwrap();
    for ah in [dead, foreign] {
        let wr = send_wr(1, a.datagram(ah, &peer), &[]);
        let answer = a.post_send(qp.handle, &[wr]);
        assert_eq!(answer, refused(0, PostCause::InvalidHandle));
    }
    a.stays_quiet();
}

/// verbs 4.1: check 10.
pub fn a_gsi_send_with_a_pkey_index_outside_the_table_is_refused<R: Rig>(rig: &R) {
    let [a, _b] = Station::pair(rig);
    let qp = a.ready(&qp_init(QpType::Gsi, a.cq));
    let pkeys = a.hca().query_port(1).unwrap().pkey_table_len;
    let op = SendOp::Datagram {
        ah: a.ah(Side::B),
        remote_qpn: Qpn::GSI,
        remote_qkey: QKey::GSI,
        imm: None,
        pkey_index: pkeys,
    };
    let answer = a.post_send(qp.handle, &[send_wr(1, op, &[a.buffer.sge(0, 256)])]);
    assert_eq!(answer, refused(0, PostCause::InvalidAttr));
}

/// verbs 4.3, 6.1: a bad buffer is never an immediate error, and a completion even if unsignalled.
pub fn every_kind_of_bad_send_buffer_completes_with_loc_prot<R: Rig>(rig: &R) {
    let [a, b] = Station::pair(rig);
    let peer = b.ud();
    let op = a.to(&peer);
    let other_pd = a.hca().alloc_pd().unwrap();
    let foreign = Buffer::new(a.machine(), a.hca(), other_pd, 4096, Access::LOCAL_WRITE);
    let gone = Buffer::new(a.machine(), a.hca(), a.pd, 4096, Access::LOCAL_WRITE);
    a.hca().dereg_mr(gone.mr.handle).unwrap();
    let end = a.buffer.memory.len() as u64;
    let unknown = Sge {
        lkey: LKey(!a.buffer.lkey().0),
        ..a.buffer.sge(0, 8)
    };
    let below = Sge {
        addr: a.buffer.iova - 1,
        ..a.buffer.sge(0, 8)
    };
    let wraps = Sge {
        addr: u64::MAX - 3,
        ..a.buffer.sge(0, 8)
    };
    for (what, sge) in [
        ("unknown key", unknown),
        ("region of another PD", foreign.sge(0, 8)),
        ("deregistered", gone.sge(0, 8)),
        ("one byte below", below),
        ("one byte beyond", a.buffer.sge(end - 7, 8)),
        ("around the end of addresses", wraps),
    ] {
        let qp = a.ud();
        receives(&b, peer.handle, 1, 64);
        let sges = [sge];
        let wr = SendWr {
            flags: SendFlags::empty(),
            ..send_wr(9, op, &sges)
        };
        a.post_send(qp.handle, &[wr]).unwrap();
        let wc = a.completion();
        assert_eq!(
            (wc.wr_id, wc.status),
            (9, WcStatus::LocalProtection),
            "{what}"
        );
        assert_eq!(wc.qpn, qp.qpn, "{what}");
        b.stays_quiet();
        a.hca().destroy_qp(qp.handle).unwrap();
    }
    let qp = a.ud();
    let last = [a.buffer.sge(end - 8, 8)];
    a.send(qp.handle, 3, op, &last);
    a.success(3);
}

/// verbs 4.3, 6.2, 6.4: a bad receive buffer is told when a message needs it.
pub fn every_kind_of_bad_receive_buffer_completes_with_loc_prot<R: Rig>(rig: &R) {
    let [a, b] = Station::pair(rig);
    let sender = a.ud();
    let other_pd = b.hca().alloc_pd().unwrap();
    let foreign = Buffer::new(b.machine(), b.hca(), other_pd, 4096, Access::LOCAL_WRITE);
    let read_only = Buffer::new(b.machine(), b.hca(), b.pd, 4096, Access::empty());
    let end = b.buffer.memory.len() as u64;
    let unknown = Sge {
        lkey: LKey(!b.buffer.lkey().0),
        ..b.buffer.sge(0, 256)
    };
    for (what, sge) in [
        ("unknown key", unknown),
        ("region of another PD", foreign.sge(0, 256)),
        ("no local write", read_only.sge(0, 256)),
        ("beyond the end", b.buffer.sge(end - 255, 256)),
    ] {
        let qp = b.ud();
        let op = a.to(&qp);
        b.receive(qp.handle, 1, &[sge]);
        b.receive(qp.handle, 2, &[b.buffer.sge(0, 256)]);
        b.stays_quiet();
        a.send(sender.handle, 3, op, &[a.buffer.sge(0, 216)]);
        a.success(3);
        let ends: Vec<_> = b
            .completions(2)
            .iter()
            .map(|wc| (wc.wr_id, wc.status))
            .collect();
        let expected = [(1, WcStatus::LocalProtection), (2, WcStatus::Flushed)];
        assert_eq!(ends, expected, "{what}");
        assert_eq!(b.state(qp.handle), QpState::Error, "{what}");
        b.hca().destroy_qp(qp.handle).unwrap();
    }
    assert_eq!(foreign.bytes(0, 256), [0; 256]);
    assert_eq!(read_only.bytes(0, 256), [0; 256]);
}

/// verbs 6.4, 9.3.
pub fn a_datagram_longer_than_the_receive_ends_as_declared<R: Rig>(rig: &R) {
    let [a, b] = Station::pair(rig);
    let (sender, qp) = (a.ud(), b.ud());
    let op = a.to(&qp);
    receives(&b, qp.handle, 1, 100);
    a.send(sender.handle, 2, op, &[a.buffer.sge(0, 101)]);
    a.success(2);
    match rig.declared().receive_too_short {
        Hears::Error => {
            let wc = b.completion();
            assert_eq!((wc.wr_id, wc.status), (1, WcStatus::LocalLength));
            assert_eq!(b.state(qp.handle), QpState::Error);
        }
        Hears::Nothing => {
            b.stays_quiet();
            a.send(sender.handle, 3, op, &[a.buffer.sge(0, 100)]);
            assert_eq!(b.success(1).byte_len, 100 + GRH);
        }
    }
    let beyond = b.buffer.bytes((32 << 10) + 140, 64);
    assert_eq!(beyond, [0; 64], "nothing is written beyond the buffer");
}

/// verbs 5.3, 9.3, T104.
pub fn a_datagram_tells_who_sent_it<R: Rig>(rig: &R) {
    let [a, b] = Station::pair(rig);
    let (qp, peer) = (a.ud(), b.ud());
    receives(&b, peer.handle, 77, 256);
    let mut attr = a.address_of(Side::B);
    attr.sl = core_ib::Sl::new(0);
    let ah = a.hca().create_ah(a.pd, &attr).unwrap();
    a.send(qp.handle, 2, a.datagram(ah, &peer), &[a.buffer.sge(0, 99)]);
    let sent = a.success(2);
    assert_eq!((sent.qpn, sent.opcode), (qp.qpn, WcOpcode::Send));
    let wc = b.success(77);
    assert_eq!((wc.qpn, wc.opcode), (peer.qpn, WcOpcode::Recv));
    assert_eq!((wc.src_qp, wc.slid), (qp.qpn, super::tools::lid(Side::A)));
    assert_eq!((wc.sl.get(), wc.dlid_path_bits), (0, 0));
    assert_eq!(wc.byte_len, 99 + GRH);
    let none = WcFlags::GRH | WcFlags::IMM | WcFlags::INVALIDATED;
    assert!(!wc.flags.intersects(none), "{:?}", wc.flags);
}

/// verbs 4.2, 5.3.
pub fn immediate_data_arrives_in_the_order_of_the_wire<R: Rig>(rig: &R) {
    let [a, b] = Station::pair(rig);
    let (qp, peer) = (a.ud(), b.ud());
    receives(&b, peer.handle, 1, 64);
    let op = a.to_with_imm(&peer, [0x12, 0x34, 0x56, 0x78]);
    a.send(qp.handle, 2, op, &[a.buffer.sge(0, 4)]);
    let wc = b.success(1);
    assert!(wc.flags.contains(WcFlags::IMM));
    assert_eq!(wc.imm, Imm([0x12, 0x34, 0x56, 0x78]));
    assert_eq!((wc.opcode, wc.byte_len), (WcOpcode::Recv, 4 + GRH));
}

/// verbs 4.8, 9.3: one sender, one QP, one path.
pub fn datagrams_of_one_path_fill_receives_in_posting_order<R: Rig>(rig: &R) {
    let [a, b] = Station::pair(rig);
    let (qp, peer) = (a.ud(), b.ud());
    let op = a.to(&peer);
    for round in 0..20_u8 {
        for id in 0..8 {
            b.receive(peer.handle, id, &[b.buffer.sge(id * 4096, 256)]);
        }
        for id in 0..8 {
            a.buffer.put(id as usize * 64, &[round ^ id as u8; 64]);
            a.send(qp.handle, id, op, &[a.buffer.sge(id * 64, 64)]);
        }
        let sent: Vec<u64> = a.completions(8).iter().map(|wc| wc.wr_id).collect();
        let received: Vec<u64> = b.completions(8).iter().map(|wc| wc.wr_id).collect();
        assert_eq!(
            (&sent[..], &received[..]),
            (&[0, 1, 2, 3, 4, 5, 6, 7][..], &sent[..])
        );
        for id in 0..8 {
            let at = id * 4096 + GRH as usize;
            assert_eq!(b.buffer.bytes(at, 64), [round ^ id as u8; 64]);
        }
    }
}

/// verbs 1.5, 4.6, T088.
pub fn lists_of_two_posters_do_not_mix<R: Rig>(rig: &R) {
    let [a, b] = Station::pair(rig);
    let mut init = qp_init(QpType::Ud, a.cq);
    init.caps.max_send_wr = 64;
    let (qp, peer) = (a.ready(&init), b.ud());
    let op = a.to(&peer);
    let post = |poster: u64| {
        for list in 0..8 {
            let first = poster << 8 | list << 2;
            let wrs = [0, 1, 2, 3].map(|at| send_wr(first | at, op, &[]));
            a.post_send(qp.handle, &wrs).unwrap();
        }
    };
    rig.together(&|| post(1), &|| post(2));
    let ids: Vec<u64> = a.completions(64).iter().map(|wc| wc.wr_id).collect();
    let mut next = [0; 3];
    for list in ids.chunks(4) {
        let (poster, first) = ((list[0] >> 8) as usize, list[0]);
        assert_eq!(list, [first, first + 1, first + 2, first + 3]);
        assert_eq!(
            first & 0xff,
            next[poster] << 2,
            "lists of one poster in order"
        );
        next[poster] += 1;
    }
    assert_eq!(next, [0, 8, 8]);
}

/// verbs 12, T159: bit 31 of a request's Q_Key stands for the QP's own.
pub fn a_qkey_with_bit_31_is_that_of_the_qp<R: Rig>(rig: &R) {
    let [a, b] = Station::pair(rig);
    let (qp, peer) = (a.ud(), b.ud());
    let op = |remote_qkey| SendOp::Datagram {
        ah: a.ah(Side::B),
        remote_qpn: peer.qpn,
        remote_qkey,
        imm: None,
        pkey_index: 0,
    };
    receives(&b, peer.handle, 1, 64);
    a.send(qp.handle, 2, op(QKey(QKEY.0 ^ 1)), &[]);
    a.success(2);
    b.stays_quiet();
    a.send(qp.handle, 3, op(QKey(QKey::CONTROLLED)), &[]);
    a.success(3);
    b.success(1);
}

/// verbs 8.4, 4.8: a QP sends to itself.
pub fn a_qp_sends_to_itself<R: Rig>(rig: &R) {
    let [a, _b] = Station::pair(rig);
    let qp: QpInfo = a.ud();
    receives(&a, qp.handle, 1, 64);
    let data = pattern(64, 9);
    a.buffer.put(0, &data);
    a.send(
        qp.handle,
        2,
        a.datagram(a.ah(Side::A), &qp),
        &[a.buffer.sge(0, 64)],
    );
    let mut ids: Vec<u64> = a.completions(2).iter().map(|wc| wc.wr_id).collect();
    ids.sort_unstable();
    assert_eq!(ids, [1, 2]);
    assert_eq!(payload(&a, 64), data);
}
