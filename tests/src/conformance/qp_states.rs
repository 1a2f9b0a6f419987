//! What creation and modification of a QP check, and what the states do to work: verbs 3.1, 3.2, 3.5 to 3.12.

use super::tools::{
    MTU, QKEY, QUIET, Station, is_busy, is_invalid_attr, is_invalid_port, is_unsupported, qp_init,
    send_wr,
};
use super::{Features, Rig, Side};
use core_ib::platform::Platform as _;
use core_ib::verbs::{
    AsyncEvent, Device, Owner, PostCause, PostError, QpAttr, QpAttrMask as M, QpCaps, QpEvent,
    QpHandle, QpInfo, QpInit, QpState, QpType, SrqInit, WcStatus, WorkCompletion,
};
use core_ib::{LKey, Lid, Mtu, QKey, Qpn};

/// A QP made by `station` that has a receive of 256 bytes for each of `ids`.
fn receives<R: Rig>(station: &Station<'_, R>, qp: &QpInfo, ids: core::ops::Range<u64>) {
    for id in ids {
        station.receive(qp.handle, id, &[station.buffer.sge(id * 512, 256)]);
    }
}

/// Identifiers and statuses, in order.
fn ends(completions: &[WorkCompletion]) -> Vec<(u64, WcStatus)> {
    completions.iter().map(|wc| (wc.wr_id, wc.status)).collect()
}

/// verbs 3.1.
pub fn a_second_special_qp_of_a_port_is_busy<R: Rig>(rig: &R) {
    let station = Station::new(rig, Side::A);
    for service in [QpType::Smi, QpType::Gsi] {
        let init = qp_init(service, station.cq);
        let first = station.create(&init);
        assert_eq!(
            first.qpn,
            if service == QpType::Smi {
                Qpn::SMI
            } else {
                Qpn::GSI
            }
        );
        is_busy(station.hca().create_qp(station.pd, &init));
        let ports = station.hca().query_device().port_count;
        for port in [0, ports + 1] {
            let init = QpInit { port, ..init };
            is_invalid_port(station.hca().create_qp(station.pd, &init));
        }
        station.hca().destroy_qp(first.handle).unwrap();
        station.create(&init);
    }
}

/// verbs 3.1.
pub fn a_qp_with_an_srq_has_no_receive_queue<R: Rig>(rig: &R) {
    let station = Station::new(rig, Side::A);
    if !rig.declared().has(Features::SRQ) {
        return;
    }
    let init = SrqInit {
        pd: station.pd,
        max_wr: 8,
        max_sge: 1,
        owner: Owner::Kernel,
    };
    let srq = station.hca().create_srq(&init).unwrap().handle;
    let init = QpInit {
        srq: Some(srq),
        ..qp_init(QpType::Ud, station.cq)
    };
    let qp = station.ready(&init);
    assert_eq!(qp.caps.max_recv_wr, 0);
    let wr = core_ib::verbs::RecvWr {
        wr_id: 1,
        sges: &[station.buffer.sge(0, 64)],
    };
    let error = station.post_recv(qp.handle, &[wr]).unwrap_err();
    assert_eq!((error.index, error.cause), (0, PostCause::InvalidState));
    let of_uc = QpInit {
        qp_type: QpType::Uc,
        ..init
    };
    if rig.declared().has(Features::UC) && !rig.declared().has(Features::SRQ_OF_UC) {
        is_unsupported(station.hca().create_qp(station.pd, &of_uc));
    }
}

/// verbs 1.4: a queue of size 0 cannot be posted to.
pub fn a_queue_of_size_0_is_always_full<R: Rig>(rig: &R) {
    let station = Station::new(rig, Side::A);
    let mut init = qp_init(QpType::Ud, station.cq);
    init.caps = QpCaps {
        max_send_wr: 0,
        max_recv_wr: 0,
        ..init.caps
    };
    let qp = station.create(&init);
    assert_eq!((qp.caps.max_send_wr, qp.caps.max_recv_wr), (0, 0));
    station.bring_to(QpType::Ud, qp.handle, QpState::Rts);
    let full = Err(PostError {
        index: 0,
        cause: PostCause::QueueFull,
    });
    let op = station.to(&qp);
    assert_eq!(station.post_send(qp.handle, &[send_wr(1, op, &[])]), full);
    let wr = core_ib::verbs::RecvWr {
        wr_id: 1,
        sges: &[],
    };
    assert_eq!(station.post_recv(qp.handle, &[wr]), full);
}

/// verbs 3.5, T039.
pub fn a_port_or_pkey_index_that_is_not_there_is_refused<R: Rig>(rig: &R) {
    let station = Station::new(rig, Side::A);
    let hca = station.hca();
    let ports = hca.query_device().port_count;
    let pkeys = hca.query_port(1).unwrap().pkey_table_len;
    for (service, feature) in [
        (QpType::Ud, Features::empty()),
        (QpType::Rc, Features::RC),
        (QpType::Uc, Features::UC),
    ] {
        if !rig.declared().has(feature) {
            continue;
        }
        let qp = station.create(&qp_init(service, station.cq)).handle;
        let key = if service == QpType::Ud {
            M::QKEY
        } else {
            M::ACCESS
        };
        let mask = M::PKEY_INDEX | M::PORT | key;
        let to_init = |port, pkey_index| {
            station.modify(qp, QpState::Init, mask, |attr| {
                (attr.port, attr.pkey_index) = (port, pkey_index);
            })
        };
        is_invalid_port(to_init(0, 0));
        is_invalid_port(to_init(ports + 1, 0));
        is_invalid_attr(to_init(1, pkeys));
        is_invalid_attr(to_init(1, u16::MAX));
        assert_eq!(station.state(qp), QpState::Reset);
        assert_eq!(to_init(1, pkeys - 1), Ok(()));
    }
}

/// Modifies a connected QP from INIT to RTR, then on to RTS, with one attribute changed; the last answer.
fn connect<R: Rig>(
    station: &Station<'_, R>,
    service: QpType,
    change: impl Fn(&mut QpAttr),
) -> Result<(), core_ib::verbs::VerbsError> {
    let qp = station.create(&qp_init(service, station.cq)).handle;
    let mut answer = Ok(());
    for (state, mask) in super::tools::steps::way(service, QpState::Rts) {
        let before = station.state(qp);
        answer = station.modify(qp, state, mask, |attr| {
            *attr = station.values();
            change(attr);
        });
        if answer.is_err() {
            assert_eq!(station.state(qp), before, "unchanged");
            break;
        }
    }
    station.hca().destroy_qp(qp).unwrap();
    answer
}

/// The connected services that there are, on an active port.
fn connected<R: Rig>(rig: &R, f: impl Fn(&Station<'_, R>, QpType)) {
    let [station, _peer] = Station::pair(rig);
    for (service, feature) in [(QpType::Rc, Features::RC), (QpType::Uc, Features::UC)] {
        if rig.declared().has(feature) {
            f(&station, service);
        }
    }
}

/// verbs 3.5, T040: what the type allows and the port does not.
pub fn a_path_mtu_above_that_of_the_port_is_refused<R: Rig>(rig: &R) {
    connected(rig, |station, service| {
        let with = |mtu| connect(station, service, |attr| attr.path_mtu = mtu);
        for mtu in [Mtu::Mtu256, Mtu::Mtu512, Mtu::Mtu1024, MTU] {
            assert_eq!(with(mtu), Ok(()), "{service:?} {mtu:?}");
        }
        is_invalid_attr(with(Mtu::Mtu4096));
    });
}

/// verbs 3.5, T041.
pub fn timers_and_counts_above_their_limits_are_refused<R: Rig>(rig: &R) {
    connected(rig, |station, service| {
        if service != QpType::Rc {
            return;
        }
        let limits = station.hca().query_device();
        let (mra, mdra) = (limits.max_rd_atomic, limits.max_dest_rd_atomic);
        let with = |change: &dyn Fn(&mut QpAttr)| connect(station, service, change);
        assert_eq!(with(&|attr| attr.timeout = 31), Ok(()));
        assert_eq!(with(&|attr| attr.timeout = 0), Ok(()));
        is_invalid_attr(with(&|attr| attr.timeout = 32));
        assert_eq!(with(&|attr| attr.retry_count = 7), Ok(()));
        is_invalid_attr(with(&|attr| attr.retry_count = 8));
        assert_eq!(with(&|attr| attr.rnr_retry = 7), Ok(()));
        is_invalid_attr(with(&|attr| attr.rnr_retry = 8));
        assert_eq!(with(&|attr| attr.min_rnr_timer = 31), Ok(()));
        is_invalid_attr(with(&|attr| attr.min_rnr_timer = 32));
        assert_eq!(with(&|attr| attr.max_rd_atomic = mra), Ok(()));
        assert_eq!(with(&|attr| attr.max_rd_atomic = 0), Ok(()));
        is_invalid_attr(with(&|attr| attr.max_rd_atomic = mra + 1));
        assert_eq!(with(&|attr| attr.max_dest_rd_atomic = mdra), Ok(()));
        assert_eq!(with(&|attr| attr.max_dest_rd_atomic = 0), Ok(()));
        is_invalid_attr(with(&|attr| attr.max_dest_rd_atomic = mdra + 1));
    });
}

/// verbs 3.5, T042.
pub fn a_responder_depth_is_never_rounded_down<R: Rig>(rig: &R) {
    connected(rig, |station, service| {
        if service != QpType::Rc {
            return;
        }
        let most = station.hca().query_device().max_dest_rd_atomic;
        for depth in 1..=most {
            let qp = station.create(&qp_init(service, station.cq)).handle;
            for (state, mask) in super::tools::steps::way(service, QpState::Rtr) {
                let done = station.modify(qp, state, mask, |attr| {
                    *attr = station.values();
                    attr.max_dest_rd_atomic = depth;
                });
                assert_eq!(done, Ok(()));
            }
            let found = station.hca().query_qp(qp).unwrap().max_dest_rd_atomic;
            assert!(found >= depth, "{found} for {depth}");
            station.hca().destroy_qp(qp).unwrap();
        }
    });
}

/// verbs 3.5, T043.
pub fn a_connection_leads_to_one_port_of_the_subnet_and_leaves_by_its_own<R: Rig>(rig: &R) {
    connected(rig, |station, service| {
        let gids = station.hca().query_port(1).unwrap().gid_table_len;
        let ports = station.hca().query_device().port_count;
        let with = |change: &dyn Fn(&mut QpAttr)| connect(station, service, change);
        for dlid in [0, 0xc000, 0xfffe, 0xffff].map(Lid) {
            is_invalid_attr(with(&|attr| attr.path.dlid = dlid));
        }
        assert_eq!(with(&|attr| attr.path.dlid = Lid(0xbfff)), Ok(()));
        let route = |sgid_index| {
            Some(core_ib::verbs::GlobalRoute {
                dgid: station.rig.hca(Side::B).query_gid(1, 0).unwrap(),
                sgid_index,
                hop_limit: 1,
                ..core_ib::verbs::GlobalRoute::default()
            })
        };
        assert_eq!(with(&|attr| attr.path.grh = route(0)), Ok(()));
        is_invalid_attr(with(&|attr| attr.path.grh = route(gids as u8)));
        if ports > 1 {
            is_invalid_attr(with(&|attr| attr.path.port = 2));
        }
    });
}

/// verbs 3.5, 12, T044.
pub fn a_new_qkey_holds_once_modify_has_returned<R: Rig>(rig: &R) {
    let [a, b] = Station::pair(rig);
    let (sender, receiver) = (a.ud(), b.ud());
    let new = QKey(0x3333_4444);
    let ah = a.ah(Side::B);
    let with = |remote_qkey| core_ib::verbs::SendOp::Datagram {
        ah,
        remote_qpn: receiver.qpn,
        remote_qkey,
        imm: None,
        pkey_index: 0,
    };
    receives(&b, &receiver, 0..2);
    let done = b.modify(receiver.handle, QpState::Rts, M::QKEY, |attr| {
        attr.qkey = new
    });
    assert_eq!(done, Ok(()));
    assert_eq!(b.hca().query_qp(receiver.handle).unwrap().qkey, new);
    a.send(sender.handle, 1, with(QKEY), &[a.buffer.sge(0, 8)]);
    a.success(1);
    b.stays_quiet();
    a.send(sender.handle, 2, with(new), &[a.buffer.sge(0, 8)]);
    b.success(0);
}

/// verbs 3.10, T046.
pub fn reset_discards_all_work_and_leaves_both_queues_empty<R: Rig>(rig: &R) {
    let [a, b] = Station::pair(rig);
    let (qp, peer) = (a.ud(), b.ud());
    let op = a.to(&peer);
    for round in 0..3 {
        for id in 0..u64::from(qp.caps.max_recv_wr) {
            a.receive(qp.handle, id, &[a.buffer.sge(0, 256)]);
        }
        for id in 0..u64::from(qp.caps.max_send_wr) {
            a.send(qp.handle, id, op, &[a.buffer.sge(0, 64)]);
        }
        let done = a.modify(qp.handle, QpState::Reset, M::empty(), |_| ());
        assert_eq!(done, Ok(()), "round {round}");
        assert_eq!(a.poll(a.cq, 8), [], "round {round}");
        a.stays_quiet();
        assert_eq!(a.state(qp.handle), QpState::Reset);
        a.bring_to(QpType::Ud, qp.handle, QpState::Rts);
    }
    receives(&a, &qp, 0..1);
    a.send(qp.handle, 99, op, &[a.buffer.sge(0, 64)]);
    a.success(99);
}

/// verbs 3.10, T045: nothing of the old life completes what the new one has posted.
pub fn what_was_not_polled_before_reset_completes_nothing_after_it<R: Rig>(rig: &R) {
    let [a, b] = Station::pair(rig);
    let (qp, peer) = (a.ud(), b.ud());
    let (to_peer, to_us) = (a.to(&peer), b.to(&qp));
    for id in 0..4 {
        a.receive(qp.handle, id, &[a.buffer.sge(0, 256)]);
        a.send(qp.handle, 10 + id, to_peer, &[a.buffer.sge(0, 8)]);
        b.send(peer.handle, id, to_us, &[b.buffer.sge(0, 8)]);
    }
    a.machine().sleep(QUIET);
    let reset = a.modify(qp.handle, QpState::Reset, M::empty(), |_| ());
    assert_eq!(reset, Ok(()));
    a.bring_to(QpType::Ud, qp.handle, QpState::Sqd);
    for id in 20..24 {
        a.receive(qp.handle, id, &[a.buffer.sge(0, 256)]);
        a.send(qp.handle, 10 + id, to_peer, &[a.buffer.sge(0, 8)]);
    }
    a.stays_quiet();
    let to_rts = a.modify(qp.handle, QpState::Rts, M::empty(), |_| ());
    assert_eq!(to_rts, Ok(()));
    let sent: Vec<u64> = a.completions(4).iter().map(|wc| wc.wr_id).collect();
    assert_eq!(sent, [30, 31, 32, 33]);
}

/// verbs 3.10: what is kept.
pub fn reset_keeps_number_and_sizes<R: Rig>(rig: &R) {
    let [a, b] = Station::pair(rig);
    let (qp, peer) = (a.ud(), b.ud());
    let done = a.modify(qp.handle, QpState::Reset, M::empty(), |_| ());
    assert_eq!(done, Ok(()));
    a.bring_to(QpType::Ud, qp.handle, QpState::Rts);
    b.receive(peer.handle, 7, &[b.buffer.sge(0, 256)]);
    a.send(qp.handle, 1, a.to(&peer), &[a.buffer.sge(0, 8)]);
    assert_eq!(b.success(7).src_qp, qp.qpn);
}

/// verbs 3.2, 3.6, T068.
pub fn receives_posted_in_init_are_used_from_rtr_on<R: Rig>(rig: &R) {
    let [a, b] = Station::pair(rig);
    let (sender, qp) = (a.ud(), b.ud_in_reset());
    b.bring_to(QpType::Ud, qp.handle, QpState::Init);
    receives(&b, &qp, 0..2);
    let op = a.to(&qp);
    a.send(sender.handle, 1, op, &[a.buffer.sge(0, 8)]);
    a.success(1);
    b.stays_quiet();
    let done = b.modify(qp.handle, QpState::Rtr, M::empty(), |_| ());
    assert_eq!(done, Ok(()));
    a.send(sender.handle, 2, op, &[a.buffer.sge(0, 8)]);
    b.success(0);
}

/// verbs 3.2: incoming messages are dropped but in RTR, RTS, SQD and SQE.
pub fn a_message_for_a_qp_in_err_or_reset_is_dropped<R: Rig>(rig: &R) {
    let [a, b] = Station::pair(rig);
    let (sender, qp) = (a.ud(), b.ud());
    let op = a.to(&qp);
    for state in [QpState::Error, QpState::Reset] {
        assert_eq!(b.modify(qp.handle, state, M::empty(), |_| ()), Ok(()));
        a.send(sender.handle, 1, op, &[a.buffer.sge(0, 8)]);
        a.success(1);
        b.stays_quiet();
    }
}

/// verbs 3.7, T054.
pub fn an_idle_qp_is_drained_at_once_and_says_so_if_asked<R: Rig>(rig: &R) {
    let [a, _b] = Station::pair(rig);
    for wanted in [true, false] {
        let qp = a.ud().handle;
        let done = a.modify(qp, QpState::Sqd, M::SQ_DRAINED, |attr| {
            attr.sq_drained_event = wanted;
        });
        assert_eq!(done, Ok(()));
        let drained = AsyncEvent::Qp(qp, QpEvent::SqDrained);
        let events = a.events();
        let times = events.iter().filter(|event| **event == drained).count();
        assert_eq!(times, usize::from(wanted), "{events:?}");
        let attr = a.hca().query_qp(qp).unwrap();
        assert_eq!((attr.state, attr.sq_draining), (QpState::Sqd, false));
    }
}

/// verbs 3.7, T055.
pub fn sends_posted_in_sqd_wait_for_rts_and_then_go_in_order<R: Rig>(rig: &R) {
    let [a, b] = Station::pair(rig);
    let (qp, peer) = (a.ud(), b.ud());
    receives(&b, &peer, 0..3);
    assert_eq!(
        a.modify(qp.handle, QpState::Sqd, M::empty(), |_| ()),
        Ok(())
    );
    a.drain(qp.handle);
    let op = a.to(&peer);
    for id in 0..3 {
        a.send(qp.handle, id, op, &[a.buffer.sge(0, 8)]);
    }
    a.stays_quiet();
    b.stays_quiet();
    assert_eq!(
        a.modify(qp.handle, QpState::Rts, M::empty(), |_| ()),
        Ok(())
    );
    let sent = ends(&a.completions(3));
    assert_eq!(sent, [0, 1, 2].map(|id| (id, WcStatus::Success)));
    let received = ends(&b.completions(3));
    assert_eq!(received, [0, 1, 2].map(|id| (id, WcStatus::Success)));
}

/// verbs 3.2, T056.
pub fn a_qp_in_sqd_receives<R: Rig>(rig: &R) {
    let [a, b] = Station::pair(rig);
    let (sender, qp) = (a.ud(), b.ud_in_reset());
    b.bring_to(QpType::Ud, qp.handle, QpState::Sqd);
    receives(&b, &qp, 0..1);
    a.send(sender.handle, 1, a.to(&qp), &[a.buffer.sge(0, 8)]);
    b.success(0);
}

/// A send that no HCA can gather, between good ones; all unsignalled.
fn break_send_queue<R: Rig>(station: &Station<'_, R>, qp: QpHandle, to: &QpInfo) {
    let op = station.to(to);
    let good = [station.buffer.sge(0, 8)];
    let mut bad = good;
    bad[0].lkey = LKey(!bad[0].lkey.0);
    let lists = [&good, &good, &bad, &good, &good];
    let wrs = core::array::from_fn::<_, 5, _>(|id| core_ib::verbs::SendWr {
        flags: core_ib::verbs::SendFlags::empty(),
        ..send_wr(id as u64, op, lists[id])
    });
    station.post_send(qp, &wrs).unwrap();
}

/// verbs 3.8, 6.1, T060.
pub fn a_bad_send_among_good_ones_is_told_and_what_follows_is_flushed<R: Rig>(rig: &R) {
    let [a, b] = Station::pair(rig);
    let (qp, peer) = (a.ud(), b.ud());
    receives(&b, &peer, 0..4);
    break_send_queue(&a, qp.handle, &peer);
    let told = ends(&a.completions(3));
    let expected = [
        (2, WcStatus::LocalProtection),
        (3, WcStatus::Flushed),
        (4, WcStatus::Flushed),
    ];
    assert_eq!(told, expected);
    a.stays_quiet();
    assert_eq!(b.completions(2).len(), 2, "those before it");
    b.stays_quiet();
    let fatal = rig.declared().send_error_is_fatal;
    let state = if fatal { QpState::Error } else { QpState::Sqe };
    assert_eq!(a.state(qp.handle), state);
}

/// verbs 3.2, 3.8, T061.
pub fn a_qp_in_sqe_receives_and_flushes_sends<R: Rig>(rig: &R) {
    let [a, b] = Station::pair(rig);
    if rig.declared().send_error_is_fatal {
        return;
    }
    let (qp, peer) = (a.ud(), b.ud());
    receives(&a, &qp, 10..11);
    break_send_queue(&a, qp.handle, &peer);
    a.completions(3);
    a.send(qp.handle, 20, a.to(&peer), &[a.buffer.sge(0, 8)]);
    assert_eq!(ends(&a.completions(1)), [(20, WcStatus::Flushed)]);
    b.send(peer.handle, 30, b.to(&qp), &[b.buffer.sge(0, 8)]);
    a.success(10);
    assert_eq!(a.state(qp.handle), QpState::Sqe);
}

/// verbs 3.3, 3.8, T048.
pub fn a_qp_recovers_from_sqe_and_the_next_send_goes_out<R: Rig>(rig: &R) {
    let [a, b] = Station::pair(rig);
    if rig.declared().send_error_is_fatal {
        return;
    }
    let (qp, peer) = (a.ud(), b.ud());
    break_send_queue(&a, qp.handle, &peer);
    a.completions(3);
    let done = a.modify(qp.handle, QpState::Rts, M::CUR_STATE, |attr| {
        attr.cur_state = QpState::Sqe;
    });
    assert_eq!(done, Ok(()));
    assert_eq!(a.state(qp.handle), QpState::Rts);
    receives(&b, &peer, 0..1);
    a.send(qp.handle, 40, a.to(&peer), &[a.buffer.sge(0, 8)]);
    a.success(40);
    b.success(0);
}

/// verbs 3.6, 3.9, T062.
pub fn err_flushes_everything_in_order_and_exactly_once<R: Rig>(rig: &R) {
    let [a, b] = Station::pair(rig);
    let (qp, peer) = (a.ud(), b.ud());
    receives(&a, &qp, 0..5);
    assert_eq!(
        a.modify(qp.handle, QpState::Sqd, M::empty(), |_| ()),
        Ok(())
    );
    a.drain(qp.handle);
    let op = a.to(&peer);
    for id in 10..14 {
        a.send(qp.handle, id, op, &[a.buffer.sge(0, 8)]);
    }
    assert_eq!(
        a.modify(qp.handle, QpState::Error, M::empty(), |_| ()),
        Ok(())
    );
    let (sends, receives): (Vec<_>, Vec<_>) = ends(&a.completions(9))
        .into_iter()
        .partition(|(id, _)| *id >= 10);
    let flushed = |id| (id, WcStatus::Flushed);
    assert_eq!(receives, [0, 1, 2, 3, 4].map(flushed));
    assert_eq!(sends, [10, 11, 12, 13].map(flushed));
    a.stays_quiet();
    b.stays_quiet();
}

/// verbs 1.3, 3.9, T063, T064.
pub fn what_is_posted_in_err_is_flushed_behind_the_rest<R: Rig>(rig: &R) {
    let [a, b] = Station::pair(rig);
    let (qp, peer) = (a.ud(), b.ud());
    receives(&a, &qp, 0..2);
    assert_eq!(
        a.modify(qp.handle, QpState::Error, M::empty(), |_| ()),
        Ok(())
    );
    let op = a.to(&peer);
    for late in 0..3 {
        receives(&a, &qp, 2 + late..3 + late);
        a.send(qp.handle, 10 + late, op, &[a.buffer.sge(0, 8)]);
        a.machine().sleep(QUIET * late as u32);
    }
    let (sends, receives): (Vec<_>, Vec<_>) = ends(&a.completions(8))
        .into_iter()
        .partition(|(id, _)| *id >= 10);
    let flushed = |id| (id, WcStatus::Flushed);
    assert_eq!(receives, [0, 1, 2, 3, 4].map(flushed));
    assert_eq!(sends, [10, 11, 12].map(flushed));
    assert_eq!(a.state(qp.handle), QpState::Error);
}

/// verbs 1.5, T049.
pub fn two_who_modify_one_qp_get_the_results_of_some_order<R: Rig>(rig: &R) {
    let [a, _b] = Station::pair(rig);
    for _ in 0..20 {
        let qp = a.ud().handle;
        let answers = [(); 2].map(|()| std::sync::Mutex::new(None));
        let modify = |at: usize| {
            let to = [QpState::Sqd, QpState::Error][at];
            let answer = a.modify(qp, to, M::empty(), |_| ());
            *answers[at].lock().unwrap() = Some(answer);
        };
        rig.together(&|| modify(0), &|| modify(1));
        let [to_sqd, to_err] = answers.map(|answer| answer.into_inner().unwrap().unwrap());
        assert_eq!(to_err, Ok(()), "any state leads to ERR");
        assert_eq!(a.state(qp), QpState::Error);
        if to_sqd.is_err() {
            super::tools::is_invalid_state(to_sqd);
        }
        a.hca().destroy_qp(qp).unwrap();
    }
}

/// verbs 3.7.
pub fn a_qp_in_sqd_takes_another_pkey_and_qkey<R: Rig>(rig: &R) {
    let [a, _b] = Station::pair(rig);
    let qp = a.ud_in_reset().handle;
    a.bring_to(QpType::Ud, qp, QpState::Sqd);
    let done = a.modify(qp, QpState::Sqd, M::PKEY_INDEX | M::QKEY, |attr| {
        (attr.pkey_index, attr.qkey) = (1, QKey(0x42));
    });
    assert_eq!(done, Ok(()));
    let attr = a.hca().query_qp(qp).unwrap();
    assert_eq!((attr.pkey_index, attr.qkey), (1, QKey(0x42)));
    assert_eq!(a.modify(qp, QpState::Rts, M::empty(), |_| ()), Ok(()));
    assert_eq!(a.state(qp), QpState::Rts);
}
