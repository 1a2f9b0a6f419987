//! Memory of the peer: writes, reads, atomics, and what is refused. verbs 6.1 to 6.3, 7.3 to 7.8.

use super::tools::{ALL_RIGHTS, Buffer, Link, qp_init};
use super::{Features, Rig, Side};
use core_ib::RKey;
use core_ib::verbs::{
    Access, AsyncEvent, Device, MwKind, QpEvent, QpState, QpType, RemoteAddr, SendFlags, SendOp,
    SendWr, WcOpcode, WcStatus,
};

fn write(remote: RemoteAddr) -> SendOp {
    SendOp::RdmaWrite { remote, imm: None }
}

fn read(remote: RemoteAddr) -> SendOp {
    SendOp::RdmaRead { remote }
}

/// verbs 4.7, 5.3, T078, T103.
pub fn what_is_written_is_what_is_read_back<R: Rig>(rig: &R) {
    let Some(link) = Link::new(rig, QpType::Rc) else {
        return;
    };
    for length in [1, 7, 2047, 2048, 2049, 20_000] {
        let data: Vec<u8> = (0..length).map(|at| (at * 31 + length) as u8).collect();
        link.a.buffer.put(0, &data);
        let wc = link.succeeds(write(link.at(500)), 0, length);
        assert_eq!(wc.opcode, WcOpcode::RdmaWrite);
        assert_eq!(link.remote.bytes(500, length as usize), data);
        let wc = link.succeeds(read(link.at(500)), 32 << 10, length);
        assert_eq!((wc.opcode, wc.byte_len), (WcOpcode::RdmaRead, length));
        assert_eq!(link.a.buffer.bytes(32 << 10, length as usize), data);
    }
    link.b.stays_quiet();
}

/// verbs 5.2, T115: UC writes too, and nobody hears of it.
pub fn a_uc_write_arrives_and_a_refused_one_is_silent<R: Rig>(rig: &R) {
    let Some(link) = Link::new(rig, QpType::Uc) else {
        return;
    };
    link.a.buffer.put(0, &[0x77; 5000]);
    link.succeeds(write(link.at(10)), 0, 5000);
    link.b.stays_quiet();
    assert_eq!(link.remote.bytes(10, 5000), [0x77; 5000]);
    let wrong = link.at_with(8000, RKey(!link.remote.mr.rkey.0));
    link.succeeds(write(wrong), 0, 5000);
    link.b.stays_quiet();
    assert_eq!(link.remote.bytes(8000, 5000), [0; 5000]);
    assert_eq!(link.b.state(link.qb.handle), QpState::Rts);
    link.b
        .receive(link.qb.handle, 1, &[link.b.buffer.sge(0, 64)]);
    link.succeeds(SendOp::Send { imm: None }, 0, 8);
    link.b.success(1);
}

/// verbs 4.7, T077.
pub fn a_write_or_read_of_nothing_looks_at_no_key<R: Rig>(rig: &R) {
    let wild = RemoteAddr {
        addr: 3,
        rkey: RKey(0x1234_5678),
    };
    for service in [QpType::Rc, QpType::Uc] {
        let Some(link) = Link::new(rig, service) else {
            continue;
        };
        link.succeeds(write(wild), 0, 0);
        if service == QpType::Rc {
            link.succeeds(read(wild), 0, 0);
        }
        link.b.stays_quiet();
        assert_eq!(link.remote.bytes(0, 64), [0; 64]);
    }
}

/// The peer refused: the request and the peer say so, and nothing was touched.
fn is_refused<R: Rig>(link: &Link<'_, R>, op: SendOp, what: &str) {
    let wc = link.carry_out(op, 0, 8);
    assert_eq!(wc.status, WcStatus::RemoteAccess, "{what}: {op:?}");
    assert_eq!(link.a.state(link.qa.handle), QpState::Error, "{what}");
    assert_eq!(link.b.state(link.qb.handle), QpState::Error, "{what}");
    let events = link.b.events();
    let told = AsyncEvent::Qp(link.qb.handle, QpEvent::AccessError);
    if !matches!(op, SendOp::RdmaRead { .. }) {
        assert!(events.contains(&told), "{what}: {events:?}");
    }
    link.start_anew();
}

/// verbs 6.1, 6.3, 7.4, T110, T120.
pub fn what_the_region_of_the_peer_does_not_allow_is_refused<R: Rig>(rig: &R) {
    let Some(link) = Link::new(rig, QpType::Rc) else {
        return;
    };
    let (b, hca) = (&link.b, link.b.hca());
    link.a.buffer.put(0, &[0xaa; 8]);
    let make = |access| Buffer::new(b.machine(), hca, b.pd, 4096, access);
    let remote_of = |buffer: &Buffer<'_, R::Machine>, offset| RemoteAddr {
        addr: buffer.iova + offset,
        rkey: buffer.mr.rkey,
    };
    let read_only = make(Access::LOCAL_WRITE | Access::REMOTE_READ);
    let write_only = make(Access::LOCAL_WRITE | Access::REMOTE_WRITE);
    let other_pd = hca.alloc_pd().unwrap();
    let foreign = Buffer::new(b.machine(), hca, other_pd, 4096, ALL_RIGHTS);
    let gone = make(ALL_RIGHTS);
    hca.dereg_mr(gone.mr.handle).unwrap();
    is_refused(
        &link,
        write(link.at_with(0, RKey(!link.remote.mr.rkey.0))),
        "unknown key",
    );
    is_refused(
        &link,
        read(link.at_with(0, RKey(!link.remote.mr.rkey.0))),
        "unknown key",
    );
    is_refused(&link, write(remote_of(&gone, 0)), "deregistered");
    is_refused(&link, write(remote_of(&foreign, 0)), "other PD");
    is_refused(&link, read(remote_of(&foreign, 0)), "other PD");
    is_refused(&link, write(remote_of(&read_only, 0)), "read only");
    is_refused(&link, read(remote_of(&write_only, 0)), "write only");
    is_refused(
        &link,
        write(remote_of(&write_only, 4096 - 7)),
        "one byte beyond",
    );
    is_refused(
        &link,
        read(remote_of(&read_only, 4096 - 7)),
        "one byte beyond",
    );
    let before = RemoteAddr {
        addr: write_only.iova - 1,
        rkey: write_only.mr.rkey,
    };
    is_refused(&link, write(before), "one byte before");
    if rig.declared().has(Features::ATOMICS) {
        let remote = remote_of(&write_only, 0);
        is_refused(&link, SendOp::FetchAdd { remote, add: 1 }, "no atomics");
    }
    for buffer in [&read_only, &write_only, &foreign, &gone] {
        assert_eq!(buffer.bytes(0, 4096), [0; 4096]);
    }
    link.succeeds(write(remote_of(&write_only, 4096 - 8)), 0, 8);
    assert_eq!(write_only.bytes(4088, 8), [0xaa; 8]);
}

/// verbs 6.3, 7.4, T111: what the QP of the peer does not allow.
pub fn what_the_qp_of_the_peer_does_not_allow_is_refused<R: Rig>(rig: &R) {
    let Some(link) = Link::new(rig, QpType::Rc) else {
        return;
    };
    let remote = link.at(0);
    for (op, allowed) in [
        (write(remote), Access::REMOTE_READ),
        (read(remote), Access::REMOTE_WRITE),
    ] {
        let none = core_ib::verbs::QpAttrMask::empty();
        for side in Side::BOTH {
            let qp = link.qp(side).handle;
            link.station(side)
                .modify(qp, QpState::Reset, none, |_| ())
                .unwrap();
            link.bring_to(side, QpState::Rts, |attr| attr.access = allowed);
        }
        let status = link.carry_out(op, 0, 8).status;
        let refusals = [WcStatus::RemoteInvalidRequest, WcStatus::RemoteAccess];
        assert!(refusals.contains(&status), "{op:?}: {status:?}");
        assert_eq!(link.b.state(link.qb.handle), QpState::Error);
        assert_eq!(link.remote.bytes(0, 64), [0; 64]);
        while link.b.hca().next_async_event().is_some() {}
    }
}

/// verbs 6.1, T109.
pub fn a_read_into_memory_that_may_not_be_written_ends_with_loc_prot<R: Rig>(rig: &R) {
    let Some(link) = Link::new(rig, QpType::Rc) else {
        return;
    };
    let a = &link.a;
    let constant = Buffer::new(a.machine(), a.hca(), a.pd, 4096, Access::empty());
    a.send(link.qa.handle, 1, read(link.at(0)), &[constant.sge(0, 8)]);
    let wc = a.completion();
    assert_eq!((wc.wr_id, wc.status), (1, WcStatus::LocalProtection));
    assert_eq!(a.state(link.qa.handle), QpState::Error);
}

/// verbs 6.2, 6.3, T113.
pub fn a_write_with_immediate_to_a_bad_key_does_not_complete_a_receive<R: Rig>(rig: &R) {
    let Some(link) = Link::new(rig, QpType::Rc) else {
        return;
    };
    link.b.receive(link.qb.handle, 1, &[]);
    let op = SendOp::RdmaWrite {
        remote: link.at_with(0, RKey(!link.remote.mr.rkey.0)),
        imm: Some(core_ib::verbs::Imm([9; 4])),
    };
    assert_eq!(link.carry_out(op, 0, 8).status, WcStatus::RemoteAccess);
    let wc = link.b.completion();
    let right = [WcStatus::LocalAccess, WcStatus::Flushed].contains(&wc.status);
    assert!(right && wc.wr_id == 1, "{wc:?}");
}

/// verbs 3.9, 6.3, T066.
pub fn a_responder_that_refuses_goes_to_err_and_flushes_its_receives<R: Rig>(rig: &R) {
    let Some(link) = Link::new(rig, QpType::Rc) else {
        return;
    };
    for id in 0..3 {
        link.b
            .receive(link.qb.handle, id, &[link.b.buffer.sge(0, 64)]);
    }
    let wrong = link.at_with(0, RKey(!link.remote.mr.rkey.0));
    assert_eq!(
        link.carry_out(write(wrong), 0, 8).status,
        WcStatus::RemoteAccess
    );
    let all = link.b.completions(3);
    let ids: Vec<u64> = all.iter().map(|wc| wc.wr_id).collect();
    assert_eq!(ids, [0, 1, 2]);
    assert!(all.iter().all(|wc| wc.status == WcStatus::Flushed));
}

/// verbs 7.6, T132.
pub fn atomics_give_the_old_value_in_host_order<R: Rig>(rig: &R) {
    let Some(link) = Link::new(rig, QpType::Rc) else {
        return;
    };
    let remote = link.at(64);
    if !rig.declared().has(Features::ATOMICS) {
        let wr = super::tools::send_wr(1, SendOp::FetchAdd { remote, add: 1 }, &[]);
        assert!(link.a.post_send(link.qa.handle, &[wr]).is_err());
        return;
    }
    let there = || u64::from_ne_bytes(link.remote.bytes(64, 8).try_into().unwrap());
    let old = || u64::from_ne_bytes(link.a.buffer.bytes(0, 8).try_into().unwrap());
    link.remote.put(64, &5_u64.to_ne_bytes());
    let wc = link.succeeds(SendOp::FetchAdd { remote, add: 10 }, 0, 8);
    assert_eq!((wc.opcode, wc.byte_len), (WcOpcode::FetchAdd, 8));
    assert_eq!((old(), there()), (5, 15));
    link.succeeds(
        SendOp::FetchAdd {
            remote,
            add: u64::MAX,
        },
        0,
        8,
    );
    assert_eq!((old(), there()), (15, 14));
    let wc = link.succeeds(
        SendOp::CompareSwap {
            remote,
            compare: 14,
            swap: 99,
        },
        0,
        8,
    );
    assert_eq!((wc.opcode, wc.byte_len), (WcOpcode::CompareSwap, 8));
    assert_eq!((old(), there()), (14, 99));
    link.succeeds(
        SendOp::CompareSwap {
            remote,
            compare: 14,
            swap: 1,
        },
        0,
        8,
    );
    assert_eq!((old(), there()), (99, 99));
}

/// verbs 7.6, T133.
pub fn fetch_adds_of_many_qps_add_up<R: Rig>(rig: &R) {
    let Some(mut link) = Link::in_reset(rig, QpType::Rc) else {
        return;
    };
    if !rig.declared().has(Features::ATOMICS) {
        return;
    }
    let qps = [(); 4].map(|()| {
        link.qa = link.a.create(&qp_init(QpType::Rc, link.a.cq));
        link.qb = link.b.create(&qp_init(QpType::Rc, link.b.cq));
        for side in Side::BOTH {
            link.bring_to(side, QpState::Rts, |_| ());
        }
        link.qa.handle
    });
    let (remote, into) = (link.at(0), [link.a.buffer.sge(0, 8)]);
    for _ in 0..10 {
        for (add, qp) in (1..).zip(qps) {
            link.a
                .send(qp, add, SendOp::FetchAdd { remote, add }, &into);
        }
        let all = link.a.completions(4);
        assert!(
            all.iter().all(|wc| wc.status == WcStatus::Success),
            "{all:?}"
        );
    }
    assert_eq!(link.remote.bytes(0, 8), 100_u64.to_ne_bytes());
}

/// verbs 4.3, 7.6, T112.
pub fn an_atomic_that_is_not_aligned_is_refused<R: Rig>(rig: &R) {
    let Some(link) = Link::new(rig, QpType::Rc) else {
        return;
    };
    if !rig.declared().has(Features::ATOMICS) {
        return;
    }
    let remote = link.at(4);
    let sges = [link.a.buffer.sge(0, 8)];
    let wr = super::tools::send_wr(1, SendOp::FetchAdd { remote, add: 1 }, &sges);
    match link.a.post_send(link.qa.handle, &[wr]) {
        Err(error) => assert_eq!(error.cause, core_ib::verbs::PostCause::InvalidAttr),
        Ok(()) => assert_eq!(link.a.completion().status, WcStatus::RemoteInvalidRequest),
    }
    assert_eq!(link.remote.bytes(0, 16), [0; 16]);
}

/// verbs 6.1, T116.
pub fn an_error_lets_the_earlier_ones_succeed_and_flushes_the_later_ones<R: Rig>(rig: &R) {
    let Some(link) = Link::new(rig, QpType::Rc) else {
        return;
    };
    let sges = [link.a.buffer.sge(0, 8)];
    let wrong = link.at_with(0, RKey(!link.remote.mr.rkey.0));
    let wrs = [0, 1, 2, 3, 4, 5].map(|id| SendWr {
        wr_id: id,
        op: write(if id == 3 { wrong } else { link.at(id * 8) }),
        sges: &sges,
        inline: &[],
        flags: SendFlags::SIGNALED,
    });
    link.a.post_send(link.qa.handle, &wrs).unwrap();
    let ends: Vec<_> = link
        .a
        .completions(6)
        .iter()
        .map(|wc| (wc.wr_id, wc.status))
        .collect();
    let [ok, flushed] = [WcStatus::Success, WcStatus::Flushed];
    let refused = WcStatus::RemoteAccess;
    assert_eq!(
        ends,
        [
            (0, ok),
            (1, ok),
            (2, ok),
            (3, refused),
            (4, flushed),
            (5, flushed)
        ]
    );
}

/// verbs 4.8, T083: with a fence the read comes first.
pub fn a_fenced_send_carries_what_the_read_before_it_brought<R: Rig>(rig: &R) {
    let Some(link) = Link::new(rig, QpType::Rc) else {
        return;
    };
    let sges = [link.a.buffer.sge(0, 4096)];
    for round in 0..100_u8 {
        link.remote.memory.fill(0, 4096, round + 1).unwrap();
        link.b
            .receive(link.qb.handle, 1, &[link.b.buffer.sge(0, 4096)]);
        let first = super::tools::send_wr(2, read(link.at(0)), &sges);
        let second = SendWr {
            flags: SendFlags::SIGNALED | SendFlags::FENCE,
            ..super::tools::send_wr(3, SendOp::Send { imm: None }, &sges)
        };
        link.a.post_send(link.qa.handle, &[first, second]).unwrap();
        link.a.completions(2);
        link.b.success(1);
        assert_eq!(link.b.buffer.bytes(0, 4096), [round + 1; 4096]);
    }
}

/// verbs 3.5, 4.3, T084.
pub fn more_reads_than_may_be_outstanding_wait_their_turn<R: Rig>(rig: &R) {
    let Some(link) = Link::with(rig, QpType::Rc, |_, attr| attr.max_rd_atomic = 1) else {
        return;
    };
    for id in 0..8_u8 {
        link.remote
            .memory
            .fill(usize::from(id) * 64, 64, id + 1)
            .unwrap();
    }
    for id in 0..8 {
        let into = [link.a.buffer.sge(id * 64, 64)];
        link.a
            .send(link.qa.handle, id, read(link.at(id * 64)), &into);
    }
    let all = link.a.completions(8);
    assert!(
        (0..)
            .zip(&all)
            .all(|(id, wc)| (wc.wr_id, wc.status) == (id, WcStatus::Success))
    );
    for id in 0..8_u8 {
        assert_eq!(link.a.buffer.bytes(usize::from(id) * 64, 64), [id + 1; 64]);
    }
}

/// verbs 7.8, T122.
pub fn no_byte_changes_once_a_region_is_gone<R: Rig>(rig: &R) {
    let Some(link) = Link::new(rig, QpType::Rc) else {
        return;
    };
    let sges = [link.a.buffer.sge(0, 4096)];
    link.a.buffer.memory.fill(0, 4096, 0x11).unwrap();
    let wrs = [0, 1, 2, 3, 4, 5, 6, 7]
        .map(|id| super::tools::send_wr(id, write(link.at(id * 4096)), &sges));
    link.a.post_send(link.qa.handle, &wrs).unwrap();
    link.b.hca().dereg_mr(link.remote.mr.handle).unwrap();
    let then = link.remote.bytes(0, 32 << 10);
    let all = link.a.completions(8);
    assert_eq!(link.remote.bytes(0, 32 << 10), then);
    let first_bad = all.iter().find(|wc| wc.status != WcStatus::Success);
    assert!(
        first_bad.is_none_or(|wc| wc.status == WcStatus::RemoteAccess),
        "{all:?}"
    );
    assert_ne!(
        link.carry_out(write(link.at(0)), 0, 8).status,
        WcStatus::Success
    );
}

/// verbs 7.9, T128: what a window lends is for the peer, by the key of the last bind, and nothing else is.
pub fn a_window_lends_what_it_is_bound_to_and_by_its_last_key_alone<R: Rig>(rig: &R) {
    let Some(link) = Link::new(rig, QpType::Rc) else {
        return;
    };
    if !rig.declared().has(Features::WINDOWS_1) {
        return;
    }
    let (a, b) = (&link.a, &link.b);
    let bindable = super::windows::BINDABLE;
    let regions = [0, 1].map(|_| Buffer::new(b.machine(), b.hca(), b.pd, 4096, bindable));
    let (window, unbound) = b.hca().alloc_mw(b.pd, MwKind::Type1).unwrap();
    let bind = |region: &Buffer<'_, R::Machine>, offset, length| {
        let op = SendOp::BindMw {
            mw: window,
            mr: region.mr.handle,
            addr: region.iova + offset,
            length,
            access: Access::REMOTE_READ | Access::REMOTE_WRITE,
        };
        b.send(link.qb.handle, 9, op, &[]);
        b.success(9);
        b.hca().mw_rkey(window).unwrap()
    };
    let lent = |region: &Buffer<'_, R::Machine>, offset, rkey| RemoteAddr {
        addr: region.iova + offset,
        rkey,
    };
    a.buffer.put(0, &[0xaa; 8]);
    let [one, other] = &regions;
    is_refused(&link, read(lent(one, 64, unbound)), "not bound");
    let first = bind(one, 64, 16);
    link.succeeds(write(lent(one, 72, first)), 0, 8);
    link.succeeds(read(lent(one, 72, first)), 32, 8);
    assert_eq!(a.buffer.bytes(32, 8), [0xaa; 8]);
    is_refused(&link, write(lent(one, 73, first)), "one byte beyond");
    is_refused(&link, write(lent(one, 63, first)), "one byte before");
    is_refused(
        &link,
        write(lent(one, 64, one.mr.rkey)),
        "by the region's key",
    );
    let second = bind(other, 0, 8);
    is_refused(&link, write(lent(one, 64, first)), "the key of before");
    is_refused(&link, write(lent(one, 64, second)), "the region of before");
    link.succeeds(write(lent(other, 0, second)), 0, 8);
    let last = bind(other, 0, 0);
    for key in [first, second, last] {
        is_refused(&link, write(lent(other, 0, key)), "unbound");
    }
    assert_eq!(one.bytes(64, 16), [[0; 8], [0xaa; 8]].concat());
}
