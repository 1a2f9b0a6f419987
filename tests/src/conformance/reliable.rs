//! What a reliable connection makes of loss, silence and a peer that is not ready: verbs 3.9, 6.1 to 6.4, 8.4, 12. The rig
//! loses packets on command.

use super::tools::{Link, MTU, QUIET, qp_init, set_pkeys, steps, wait_for};
use super::{Features, Rig, Side};
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use core_ib::LKey;
use core_ib::PKey;
use core_ib::platform::Platform as _;
use core_ib::verbs::{
    AsyncEvent, Device, Owner, QpAttrMask as M, QpEvent, QpInit, QpState, QpType, RecvWr, SendOp,
    Sge, SharedReceiveQueue, SrqInit, Verbs, WcStatus,
};
use std::sync::Arc;

const SEND: SendOp = SendOp::Send { imm: None };

/// Loses the `n`-th packet (from 0) that `from` sends from now on, and counts them.
fn lose<R: Rig>(rig: &R, from: Side, n: u32) -> Arc<AtomicU32> {
    let count = Arc::new(AtomicU32::new(0));
    let counted = count.clone();
    rig.filter(Some(Box::new(move |side, _| {
        side != from || counted.fetch_add(1, Ordering::Relaxed) != n
    })));
    count
}

/// verbs 6.1, T105.
pub fn a_silent_peer_is_given_up_after_all_retries<R: Rig>(rig: &R) {
    let (timeout, retries) = (10_u8, 3_u8);
    let link = Link::with(rig, QpType::Rc, |_, attr| {
        (attr.timeout, attr.retry_count) = (timeout, retries);
    });
    let Some(link) = link else { return };
    let sent = Arc::new(AtomicU32::new(0));
    let counted = sent.clone();
    rig.filter(Some(Box::new(move |side, _| {
        if side == Side::A {
            counted.fetch_add(1, Ordering::Relaxed);
        }
        false
    })));
    let started = link.a.machine().now();
    let wc = link.carry_out(SEND, 0, 8);
    let took = link.a.machine().now().since(started);
    assert_eq!(wc.status, WcStatus::RetryExceeded);
    assert_eq!(link.a.state(link.qa.handle), QpState::Error);
    let transmissions = u32::from(retries) + 1;
    assert_eq!(sent.load(Ordering::Relaxed), transmissions);
    let least = Duration::from_nanos(4096 << timeout);
    let bounds = least * transmissions..=least * 4 * transmissions + Duration::from_millis(1);
    assert!(bounds.contains(&took), "{took:?} is not within {bounds:?}");
}

/// verbs 6.1, 7.6, T106: any one packet of either side.
pub fn any_one_packet_may_be_lost_and_everything_comes_right<R: Rig>(rig: &R) {
    let Some(link) = Link::new(rig, QpType::Rc) else {
        return;
    };
    let length = 3 * MTU.bytes() as u32 + 100;
    let mut sum = 0_u64;
    // Requests are so many packets: 4, 4, 1, 1. Answers are at least 1, 1, 4, 1.
    for (from, packets) in [(Side::A, 10), (Side::B, 7)] {
        let packets = if rig.declared().has(Features::ATOMICS) {
            packets
        } else {
            packets - 1
        };
        for n in 0..packets {
            let fill = (n as u8 + 1) << from.index();
            link.a.buffer.memory.fill(0, length as usize, fill).unwrap();
            link.b
                .receive(link.qb.handle, 1, &[link.b.buffer.sge(0, 32 << 10)]);
            let lost = lose(rig, from, n);
            link.succeeds(SEND, 0, length);
            link.b.success(1);
            assert_eq!(
                link.b.buffer.bytes(0, length as usize),
                vec![fill; length as usize]
            );
            let remote = link.at(0);
            link.succeeds(SendOp::RdmaWrite { remote, imm: None }, 0, length);
            link.succeeds(SendOp::RdmaRead { remote }, 32 << 10, length);
            let read = link.a.buffer.bytes(32 << 10, length as usize);
            assert_eq!(read, vec![fill; length as usize]);
            if rig.declared().has(Features::ATOMICS) {
                let remote = link.at(32 << 10);
                link.succeeds(SendOp::FetchAdd { remote, add: 3 }, 0, 8);
                sum += 3;
                let there = link.remote.bytes(32 << 10, 8);
                assert_eq!(there, sum.to_ne_bytes(), "exactly once");
            }
            assert!(
                lost.load(Ordering::Relaxed) > n,
                "{from:?} sent no packet {n}"
            );
            rig.filter(None);
        }
    }
}

/// verbs 6.1, 8.4, T086: RNR with patience.
pub fn a_send_waits_for_a_receive_as_long_as_it_takes<R: Rig>(rig: &R) {
    let Some(link) = Link::new(rig, QpType::Rc) else {
        return;
    };
    link.a
        .send(link.qa.handle, 1, SEND, &[link.a.buffer.sge(0, 8)]);
    link.a.machine().sleep(QUIET * 10);
    link.a.stays_quiet();
    link.b
        .receive(link.qb.handle, 2, &[link.b.buffer.sge(0, 64)]);
    link.b.success(2);
    link.a.success(1);
}

/// verbs 6.1, T086: RNR without.
pub fn without_rnr_retries_the_first_rnr_nak_ends_it<R: Rig>(rig: &R) {
    let Some(link) = Link::with(rig, QpType::Rc, |_, attr| attr.rnr_retry = 0) else {
        return;
    };
    assert_eq!(
        link.carry_out(SEND, 0, 8).status,
        WcStatus::RnrRetryExceeded
    );
    assert_eq!(link.a.state(link.qa.handle), QpState::Error);
    assert_eq!(link.b.state(link.qb.handle), QpState::Rts);
}

/// verbs 6.2, 6.3, T107.
pub fn a_send_longer_than_the_receive_ends_both<R: Rig>(rig: &R) {
    let Some(link) = Link::new(rig, QpType::Rc) else {
        return;
    };
    link.b
        .receive(link.qb.handle, 1, &[link.b.buffer.sge(0, 100)]);
    link.b
        .receive(link.qb.handle, 2, &[link.b.buffer.sge(0, 100)]);
    assert_eq!(
        link.carry_out(SEND, 0, 101).status,
        WcStatus::RemoteInvalidRequest
    );
    let ends: Vec<_> = link
        .b
        .completions(2)
        .iter()
        .map(|wc| (wc.wr_id, wc.status))
        .collect();
    assert_eq!(ends, [(1, WcStatus::LocalLength), (2, WcStatus::Flushed)]);
    assert_eq!(link.a.state(link.qa.handle), QpState::Error);
    assert_eq!(link.b.state(link.qb.handle), QpState::Error);
}

/// verbs 6.2, 6.3, T108.
pub fn a_receive_without_a_good_key_ends_both<R: Rig>(rig: &R) {
    let Some(link) = Link::new(rig, QpType::Rc) else {
        return;
    };
    let bad = Sge {
        lkey: LKey(!link.b.buffer.lkey().0),
        ..link.b.buffer.sge(0, 100)
    };
    link.b.receive(link.qb.handle, 1, &[bad]);
    assert_eq!(link.carry_out(SEND, 0, 8).status, WcStatus::RemoteOperation);
    let wc = link.b.completion();
    assert_eq!((wc.wr_id, wc.status), (1, WcStatus::LocalProtection));
}

/// verbs 6.4, T114.
pub fn a_uc_message_that_loses_its_middle_leaves_the_receive_to_the_next<R: Rig>(rig: &R) {
    let Some(link) = Link::new(rig, QpType::Uc) else {
        return;
    };
    let length = 3 * MTU.bytes() as u32;
    link.b
        .receive(link.qb.handle, 1, &[link.b.buffer.sge(0, 32 << 10)]);
    lose(rig, Side::A, 1);
    link.succeeds(SEND, 0, length);
    link.b.stays_quiet();
    rig.filter(None);
    link.a.buffer.put(0, &[0x42; 100]);
    link.succeeds(SEND, 0, 100);
    assert_eq!(link.b.success(1).byte_len, 100);
    assert_eq!(link.b.buffer.bytes(0, 100), [0x42; 100]);
}

/// verbs 3.2, T051: what comes too early comes again.
pub fn what_arrives_before_rtr_is_retried<R: Rig>(rig: &R) {
    let Some(link) = Link::in_reset(rig, QpType::Rc) else {
        return;
    };
    link.bring_to(Side::B, QpState::Init, |_| ());
    link.b
        .receive(link.qb.handle, 1, &[link.b.buffer.sge(0, 64)]);
    link.bring_to(Side::A, QpState::Rts, |_| ());
    link.a
        .send(link.qa.handle, 2, SEND, &[link.a.buffer.sge(0, 8)]);
    link.a.machine().sleep(QUIET);
    link.b.stays_quiet();
    let (_, mask) = steps::way(QpType::Rc, QpState::Rtr)[1];
    let done = link.b.modify(link.qb.handle, QpState::Rtr, mask, |attr| {
        *attr = link.b.values();
        attr.dest_qpn = link.qa.qpn;
        attr.rq_psn = Link::<R>::first_psn(Side::A);
    });
    assert_eq!(done, Ok(()));
    link.b.success(1);
    link.a.success(2);
}

/// verbs 3.9, T065.
pub fn a_peer_in_err_does_not_answer<R: Rig>(rig: &R) {
    let change = |_, attr: &mut core_ib::verbs::QpAttr| (attr.timeout, attr.retry_count) = (10, 1);
    let Some(link) = Link::with(rig, QpType::Rc, change) else {
        return;
    };
    let none = M::empty();
    assert_eq!(
        link.b.modify(link.qb.handle, QpState::Error, none, |_| ()),
        Ok(())
    );
    let op = SendOp::RdmaWrite {
        remote: link.at(0),
        imm: None,
    };
    link.a.buffer.put(0, &[1; 8]);
    assert_eq!(link.carry_out(op, 0, 8).status, WcStatus::RetryExceeded);
    assert_eq!(link.remote.bytes(0, 8), [0; 8]);
}

/// verbs 3.7, T059.
pub fn a_request_that_fails_while_draining_ends_in_err_without_drained<R: Rig>(rig: &R) {
    let change = |_, attr: &mut core_ib::verbs::QpAttr| (attr.timeout, attr.retry_count) = (10, 1);
    let Some(link) = Link::with(rig, QpType::Rc, change) else {
        return;
    };
    let (a, qp) = (&link.a, link.qa.handle);
    rig.filter(Some(Box::new(|_, _| false)));
    a.send(qp, 1, SEND, &[a.buffer.sge(0, 8)]);
    a.machine().sleep(Duration::from_micros(20));
    let done = a.modify(qp, QpState::Sqd, M::SQ_DRAINED, |attr| {
        attr.sq_drained_event = true
    });
    assert_eq!(done, Ok(()));
    assert_eq!(a.completion().status, WcStatus::RetryExceeded);
    assert_eq!(a.state(qp), QpState::Error);
    let drained = AsyncEvent::Qp(qp, QpEvent::SqDrained);
    assert!(!a.events().contains(&drained));
}

/// verbs 3.7, T058. The peer has to come from the LID that the new path leads to (protocols 2.3.1).
pub fn a_drained_connection_takes_another_path_and_timeout<R: Rig>(rig: &R) {
    let Some(link) = Link::new(rig, QpType::Rc) else {
        return;
    };
    let (a, qp) = (&link.a, link.qa.handle);
    super::tools::change_port(link.b.hca(), |info| info.lmc = 2);
    assert_eq!(a.modify(qp, QpState::Sqd, M::empty(), |_| ()), Ok(()));
    a.drain(qp);
    let mask = M::AV | M::TIMEOUT | M::RETRY_COUNT;
    let changed = a.modify(qp, QpState::Sqd, mask, |attr| {
        *attr = a.values();
        attr.path.dlid.0 += 2;
        (attr.timeout, attr.retry_count) = (16, 5);
    });
    assert_eq!(changed, Ok(()));
    let found = a.hca().query_qp(qp).unwrap();
    assert_eq!((found.timeout, found.retry_count), (16, 5));
    assert_eq!(a.modify(qp, QpState::Rts, M::empty(), |_| ()), Ok(()));
    let (b, peer) = (&link.b, link.qb.handle);
    assert_eq!(b.modify(peer, QpState::Sqd, M::empty(), |_| ()), Ok(()));
    b.drain(peer);
    let changed = b.modify(peer, QpState::Sqd, M::AV, |attr| {
        *attr = b.values();
        attr.path.src_path_bits = 2;
    });
    assert_eq!(changed, Ok(()));
    assert_eq!(b.modify(peer, QpState::Rts, M::empty(), |_| ()), Ok(()));
    let lids = Arc::new(AtomicU32::new(0));
    let seen = lids.clone();
    rig.filter(Some(Box::new(move |side, packet| {
        if side == Side::A && packet.len() > 4 {
            let dlid = u16::from_be_bytes([packet[2], packet[3]]);
            seen.store(dlid.into(), Ordering::Relaxed);
        }
        true
    })));
    link.b
        .receive(link.qb.handle, 1, &[link.b.buffer.sge(0, 64)]);
    link.succeeds(SEND, 0, 8);
    link.b.success(1);
    let expected = u32::from(super::tools::lid(Side::B).0) + 2;
    assert_eq!(lids.load(Ordering::Relaxed), expected);
}

/// verbs 8.4, T139; 8.5, T138: a reliable connection and an SRQ.
pub fn a_connection_waits_for_its_srq_and_tells_of_its_last_wqe<R: Rig>(rig: &R) {
    let Some(mut link) = Link::in_reset(rig, QpType::Rc) else {
        return;
    };
    if !rig.declared().has(Features::SRQ) {
        return;
    }
    let created = link.b.hca().create_srq(&SrqInit {
        pd: link.b.pd,
        max_wr: 8,
        max_sge: 1,
        owner: Owner::Kernel,
    });
    let srq = created.unwrap().handle;
    let init = QpInit {
        srq: Some(srq),
        ..qp_init(QpType::Rc, link.b.cq)
    };
    link.replace_b(&init);
    for side in Side::BOTH {
        link.bring_to(side, QpState::Rts, |_| ());
    }
    link.a
        .send(link.qa.handle, 1, SEND, &[link.a.buffer.sge(0, 8)]);
    link.a.machine().sleep(QUIET);
    link.a.stays_quiet();
    for wr_id in [2, 3] {
        let sges = [link.b.buffer.sge(0, 64)];
        let wr = RecvWr { wr_id, sges: &sges };
        link.b.hca().srq(srq).unwrap().post_recv(&[wr]).unwrap();
    }
    link.a.success(1);
    link.b.success(2);
    let none = M::empty();
    assert_eq!(
        link.b.modify(link.qb.handle, QpState::Error, none, |_| ()),
        Ok(())
    );
    let last = AsyncEvent::Qp(link.qb.handle, QpEvent::LastWqeReached);
    link.b.event(|event| *event == last);
    link.b.stays_quiet();
}

/// verbs 12, T157.
pub fn two_limited_members_have_no_connection<R: Rig>(rig: &R) {
    let change = |_, attr: &mut core_ib::verbs::QpAttr| {
        (attr.timeout, attr.retry_count, attr.pkey_index) = (10, 1, 1);
    };
    for (service, status) in [
        (QpType::Rc, WcStatus::RetryExceeded),
        (QpType::Uc, WcStatus::Success),
    ] {
        let Some(link) = Link::in_reset(rig, service) else {
            continue;
        };
        for side in Side::BOTH {
            set_pkeys(rig.hca(side), &[PKey(0xffff), PKey(0x0012)]);
        }
        for side in Side::BOTH {
            link.bring_to(side, QpState::Rts, |attr| change(side, attr));
        }
        link.b
            .receive(link.qb.handle, 1, &[link.b.buffer.sge(0, 64)]);
        assert_eq!(link.carry_out(SEND, 0, 8).status, status, "{service:?}");
        link.b.stays_quiet();
    }
}

/// verbs 12, T161.
pub fn a_connection_stops_with_its_pkey_and_goes_on_with_it<R: Rig>(rig: &R) {
    let Some(link) = Link::with(rig, QpType::Rc, |_, attr| attr.timeout = 14) else {
        return;
    };
    link.b
        .receive(link.qb.handle, 1, &[link.b.buffer.sge(0, 64)]);
    set_pkeys(link.b.hca(), &[PKey(0x0000)]);
    link.a
        .send(link.qa.handle, 2, SEND, &[link.a.buffer.sge(0, 8)]);
    link.a.machine().sleep(Duration::from_millis(80));
    assert_eq!(link.a.poll(link.a.cq, 1), []);
    set_pkeys(link.b.hca(), &[PKey::DEFAULT]);
    link.a.success(2);
    link.b.success(1);
}

/// verbs 3.9: a cable that is out is no error by itself.
pub fn a_short_cut_of_the_cable_costs_time_and_nothing_else<R: Rig>(rig: &R) {
    let Some(link) = Link::with(rig, QpType::Rc, |_, attr| attr.timeout = 17) else {
        return;
    };
    link.b
        .receive(link.qb.handle, 1, &[link.b.buffer.sge(0, 64)]);
    rig.plug(false);
    link.a
        .send(link.qa.handle, 2, SEND, &[link.a.buffer.sge(0, 8)]);
    link.a.machine().sleep(QUIET);
    rig.plug(true);
    super::tools::bring_up(rig);
    let came = wait_for(link.a.machine(), Duration::from_secs(10), || {
        link.a
            .poll(link.a.cq, 1)
            .first()
            .is_some_and(|wc| wc.status == WcStatus::Success)
    });
    assert!(came, "the send did not survive");
    assert_eq!(link.b.success(1).byte_len, 8);
}
