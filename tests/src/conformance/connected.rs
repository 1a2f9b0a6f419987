//! Messages over connections: verbs 4.7, 4.8, 5.3 and the rows of chapter 3 that need a connection.

use super::tools::{Link, MTU, QUIET, is_invalid_state};
use super::{Rig, Side};
use core_ib::LKey;
use core_ib::platform::Platform as _;
use core_ib::verbs::{
    AsyncEvent, Device, Imm, PostCause, QpAttrMask as M, QpEvent, QpState, QpType, RecvWr,
    SendFlags, SendOp, SendWr, Sge, WcFlags, WcOpcode, WcStatus,
};

const SEND: SendOp = SendOp::Send { imm: None };

/// Runs `f` over a connection of each service that there is.
fn each<R: Rig>(rig: &R, f: impl Fn(&Link<'_, R>)) {
    for service in [QpType::Rc, QpType::Uc] {
        if let Some(link) = Link::new(rig, service) {
            f(&link);
            link.a.hca().destroy_qp(link.qa.handle).unwrap();
            link.b.hca().destroy_qp(link.qb.handle).unwrap();
        }
    }
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at % 253) as u8 ^ seed).collect()
}

/// verbs 3.2, 3.9: the HCA takes a QP from RTR to ERR by itself; once its consumer has asked, sends are flushed, too.
pub fn a_qp_that_failed_in_rtr_flushes_sends_once_it_was_asked<R: Rig>(rig: &R) {
    for service in [QpType::Rc, QpType::Uc] {
        let Some(link) = Link::in_reset(rig, service) else {
            continue;
        };
        link.bring_to(Side::B, QpState::Rtr, |_| ());
        link.bring_to(Side::A, QpState::Rts, |_| ());
        let short = link.b.buffer.sge(0, 4);
        link.b.receive(link.qb.handle, 1, &[short]);
        link.a
            .send(link.qa.handle, 2, SEND, &[link.a.buffer.sge(0, 8)]);
        assert_eq!(link.b.completion().status, WcStatus::LocalLength);
        assert_eq!(link.b.state(link.qb.handle), QpState::Error);
        link.b.send(link.qb.handle, 3, SEND, &[]);
        let wc = link.b.completion();
        assert_eq!((wc.wr_id, wc.status), (3, WcStatus::Flushed));
    }
}

/// verbs 4.7, 5.3, T078.
pub fn a_message_of_any_length_arrives_whole<R: Rig>(rig: &R) {
    each(rig, |link| {
        let mtu = MTU.bytes() as u32;
        let lengths = [
            0,
            1,
            3,
            mtu - 1,
            mtu,
            mtu + 1,
            2 * mtu,
            7 * mtu + 5,
            32 << 10,
        ];
        for (seed, length) in (0..).zip(lengths) {
            let data = pattern(length as usize, seed);
            link.a.buffer.put(0, &data);
            link.b
                .receive(link.qb.handle, 1, &[link.b.buffer.sge(0, 32 << 10)]);
            link.succeeds(SEND, 0, length);
            let wc = link.b.success(1);
            assert_eq!(
                (wc.byte_len, wc.opcode),
                (length, WcOpcode::Recv),
                "{length}"
            );
            assert_eq!(wc.qpn, link.qb.qpn);
            assert_eq!(link.b.buffer.bytes(0, length as usize), data, "{length}");
        }
    });
}

/// verbs 4.2, 4.4, T073.
pub fn inline_data_of_a_connection_is_copied_while_posting<R: Rig>(rig: &R) {
    each(rig, |link| {
        let most = link.qa.caps.max_inline as usize;
        for len in [0, 1, 31, most] {
            let mut data = pattern(len, 3);
            let expected = data.clone();
            link.b
                .receive(link.qb.handle, 1, &[link.b.buffer.sge(0, 4096)]);
            let wr = SendWr {
                wr_id: 2,
                op: SEND,
                sges: &[],
                inline: &data,
                flags: SendFlags::INLINE | SendFlags::SIGNALED,
            };
            link.a.post_send(link.qa.handle, &[wr]).unwrap();
            data.fill(0xee);
            link.a.success(2);
            assert_eq!(link.b.success(1).byte_len, len as u32);
            assert_eq!(link.b.buffer.bytes(0, len), expected);
        }
    });
}

/// verbs 4.2, T074.
pub fn a_read_or_atomic_cannot_be_inline<R: Rig>(rig: &R) {
    let Some(link) = Link::new(rig, QpType::Rc) else {
        return;
    };
    let remote = link.at(0);
    for op in [
        SendOp::RdmaRead { remote },
        SendOp::FetchAdd { remote, add: 1 },
        SendOp::CompareSwap {
            remote,
            compare: 0,
            swap: 1,
        },
    ] {
        let wr = SendWr {
            wr_id: 2,
            op,
            sges: &[],
            inline: &[0; 8],
            flags: SendFlags::INLINE,
        };
        let error = link.a.post_send(link.qa.handle, &[wr]).unwrap_err();
        assert_eq!(
            (error.index, error.cause),
            (0, PostCause::InlineTooLong),
            "{op:?}"
        );
    }
}

/// verbs 4.2, T072.
pub fn an_opcode_that_uc_does_not_have_is_refused<R: Rig>(rig: &R) {
    let Some(link) = Link::new(rig, QpType::Uc) else {
        return;
    };
    let remote = link.at(0);
    for op in [
        SendOp::RdmaRead { remote },
        SendOp::FetchAdd { remote, add: 1 },
        SendOp::CompareSwap {
            remote,
            compare: 0,
            swap: 1,
        },
        SendOp::SendInvalidate { rkey: remote.rkey },
    ] {
        let sges = [link.a.buffer.sge(0, 8)];
        let wr = super::tools::send_wr(1, op, &sges);
        let error = link.a.post_send(link.qa.handle, &[wr]).unwrap_err();
        assert_eq!(error.cause, PostCause::InvalidOpcode, "{op:?}");
    }
    assert_eq!(link.a.state(link.qa.handle), QpState::Rts);
}

/// verbs 5.3, T081.
pub fn immediate_data_of_a_send_or_write_arrives_in_the_order_of_the_wire<R: Rig>(rig: &R) {
    each(rig, |link| {
        let imm = Some(Imm([1, 2, 3, 4]));
        let into = link.b.buffer.sge(0, 4096);
        link.b.receive(link.qb.handle, 1, &[into]);
        link.succeeds(SendOp::Send { imm }, 0, 5);
        let wc = link.b.success(1);
        assert!(wc.flags.contains(WcFlags::IMM));
        assert_eq!(
            (wc.imm, wc.byte_len, wc.opcode),
            (Imm([1, 2, 3, 4]), 5, WcOpcode::Recv)
        );
        link.a.buffer.put(0, b"written");
        link.b.receive(link.qb.handle, 2, &[]);
        let remote = link.at(100);
        link.succeeds(SendOp::RdmaWrite { remote, imm }, 0, 7);
        let wc = link.b.success(2);
        let told = (wc.imm, wc.byte_len, wc.opcode);
        assert_eq!(told, (Imm([1, 2, 3, 4]), 7, WcOpcode::RecvRdmaWithImm));
        assert_eq!(link.remote.bytes(100, 7), b"written");
    });
}

/// verbs 4.7, 4.8, T075.
pub fn pieces_of_a_message_arrive_as_one_stream<R: Rig>(rig: &R) {
    each(rig, |link| {
        let data = pattern(64 << 10, 5);
        link.a.buffer.put(0, &data);
        let sge = |offset, length| link.a.buffer.sge(offset, length);
        let wild = Sge {
            lkey: LKey(0xdead_beef),
            ..sge(0, 0)
        };
        let sges = [sge(9, 1), wild, sge(100, 7), sge(4000, 4096)];
        let into = [link.b.buffer.sge(1, 3), link.b.buffer.sge(4096, 8192)];
        link.b.receive(link.qb.handle, 1, &into);
        link.a.send(link.qa.handle, 2, SEND, &sges);
        link.a.success(2);
        assert_eq!(link.b.success(1).byte_len, 4104);
        let stream = [&data[9..10], &data[100..107], &data[4000..8096]].concat();
        let arrived = [link.b.buffer.bytes(1, 3), link.b.buffer.bytes(4096, 4101)].concat();
        assert_eq!(arrived, stream);
    });
}

/// verbs 3.9, T062, T063, T064: over connections.
pub fn err_flushes_a_connection_in_order<R: Rig>(rig: &R) {
    each(rig, |link| {
        let (a, qp) = (&link.a, link.qa.handle);
        assert_eq!(a.modify(qp, QpState::Sqd, M::empty(), |_| ()), Ok(()));
        a.drain(qp);
        for id in 0..4 {
            a.receive(qp, id, &[a.buffer.sge(0, 64)]);
            a.send(qp, 10 + id, SEND, &[a.buffer.sge(0, 8)]);
        }
        assert_eq!(a.modify(qp, QpState::Error, M::empty(), |_| ()), Ok(()));
        a.receive(qp, 4, &[]);
        a.send(qp, 14, SEND, &[]);
        let all = a.completions(10);
        assert!(
            all.iter().all(|wc| wc.status == WcStatus::Flushed),
            "{all:?}"
        );
        let (sends, receives): (Vec<_>, Vec<_>) =
            all.iter().map(|wc| wc.wr_id).partition(|id| *id >= 10);
        assert_eq!(
            (sends, receives),
            (vec![10, 11, 12, 13, 14], vec![0, 1, 2, 3, 4])
        );
        a.stays_quiet();
    });
}

/// verbs 3.6, 3.7, T055, T056: over connections.
pub fn sends_of_a_connection_wait_in_sqd_and_receives_do_not<R: Rig>(rig: &R) {
    each(rig, |link| {
        let (a, qp) = (&link.a, link.qa.handle);
        for id in 0..3 {
            link.b
                .receive(link.qb.handle, id, &[link.b.buffer.sge(0, 64)]);
        }
        assert_eq!(a.modify(qp, QpState::Sqd, M::empty(), |_| ()), Ok(()));
        a.drain(qp);
        for id in 0..3 {
            a.send(qp, id, SEND, &[a.buffer.sge(0, 8)]);
        }
        a.receive(qp, 9, &[a.buffer.sge(0, 64)]);
        link.b
            .send(link.qb.handle, 8, SEND, &[link.b.buffer.sge(0, 8)]);
        link.b.success(8);
        a.success(9);
        a.stays_quiet();
        assert_eq!(a.modify(qp, QpState::Rts, M::empty(), |_| ()), Ok(()));
        let ids = |wcs: Vec<core_ib::verbs::WorkCompletion>| -> Vec<u64> {
            wcs.iter().map(|wc| wc.wr_id).collect()
        };
        assert_eq!(ids(a.completions(3)), [0, 1, 2]);
        assert_eq!(ids(link.b.completions(3)), [0, 1, 2]);
    });
}

/// verbs 3.7, 10.2, T053.
pub fn a_busy_connection_drains_and_then_says_so_once<R: Rig>(rig: &R) {
    let Some(link) = Link::new(rig, QpType::Rc) else {
        return;
    };
    let (a, qp) = (&link.a, link.qa.handle);
    for id in 0..8 {
        link.b
            .receive(link.qb.handle, id, &[link.b.buffer.sge(0, 32 << 10)]);
    }
    let sges = [a.buffer.sge(0, 32 << 10)];
    let wrs = [0, 1, 2, 3, 4, 5, 6, 7].map(|id| super::tools::send_wr(id, SEND, &sges));
    a.post_send(qp, &wrs).unwrap();
    let done = a.modify(qp, QpState::Sqd, M::SQ_DRAINED, |attr| {
        attr.sq_drained_event = true
    });
    assert_eq!(done, Ok(()));
    let drained = AsyncEvent::Qp(qp, QpEvent::SqDrained);
    a.event(|event| *event == drained);
    let started = a.poll(a.cq, 16);
    assert!(
        started.iter().all(|wc| wc.status == WcStatus::Success),
        "{started:?}"
    );
    a.stays_quiet();
    assert!(!a.events().contains(&drained), "once");
    assert_eq!(a.modify(qp, QpState::Rts, M::empty(), |_| ()), Ok(()));
    let rest = a.completions(8 - started.len());
    let ids: Vec<u64> = started.iter().chain(&rest).map(|wc| wc.wr_id).collect();
    assert_eq!(ids, [0, 1, 2, 3, 4, 5, 6, 7]);
}

/// verbs 3.7, T057: the peer has no receive, so that the send goes on and on.
pub fn a_qp_that_is_draining_cannot_leave_sqd_but_for_err_and_reset<R: Rig>(rig: &R) {
    let Some(link) = Link::new(rig, QpType::Rc) else {
        return;
    };
    let (a, qp) = (&link.a, link.qa.handle);
    a.send(qp, 1, SEND, &[a.buffer.sge(0, 8)]);
    a.machine().sleep(QUIET);
    assert_eq!(a.modify(qp, QpState::Sqd, M::empty(), |_| ()), Ok(()));
    let attr = a.hca().query_qp(qp).unwrap();
    assert_eq!((attr.state, attr.sq_draining), (QpState::Sqd, true));
    is_invalid_state(a.modify(qp, QpState::Rts, M::empty(), |_| ()));
    is_invalid_state(a.modify(qp, QpState::Sqd, M::PKEY_INDEX, |_| ()));
    link.b
        .receive(link.qb.handle, 2, &[link.b.buffer.sge(0, 64)]);
    a.success(1);
    a.drain(qp);
    assert_eq!(a.modify(qp, QpState::Rts, M::empty(), |_| ()), Ok(()));
}

/// verbs 3.10, T045.
pub fn a_connection_that_is_reset_is_as_new<R: Rig>(rig: &R) {
    each(rig, |link| {
        for round in 0..3 {
            link.b
                .receive(link.qb.handle, 1, &[link.b.buffer.sge(0, 64)]);
            link.succeeds(SEND, 0, 8);
            link.b.success(1);
            link.b
                .receive(link.qb.handle, 100 + round, &[link.b.buffer.sge(0, 64)]);
            link.start_anew();
        }
    });
}

/// verbs 10.2, T052.
pub fn the_first_packet_in_rtr_is_told_once<R: Rig>(rig: &R) {
    let Some(link) = Link::in_reset(rig, QpType::Rc) else {
        return;
    };
    link.bring_to(Side::B, QpState::Rtr, |_| ());
    link.bring_to(Side::A, QpState::Rts, |_| ());
    for id in 0..3 {
        link.b
            .receive(link.qb.handle, id, &[link.b.buffer.sge(0, 64)]);
        link.succeeds(SEND, 0, 8);
    }
    let established = AsyncEvent::Qp(link.qb.handle, QpEvent::CommunicationEstablished);
    let events = link.b.events();
    let times = events.iter().filter(|event| **event == established).count();
    assert_eq!(times, 1, "{events:?}");
}

/// verbs 4.5, T070; 4.1, T069.
pub fn the_queues_of_a_connection_fill_and_empty<R: Rig>(rig: &R) {
    each(rig, |link| {
        let depth = link.qa.caps.max_send_wr as u64;
        let receives: Vec<_> = (0..depth)
            .map(|wr_id| RecvWr { wr_id, sges: &[] })
            .collect();
        let room = receives.len().min(link.qb.caps.max_recv_wr as usize);
        link.b.post_recv(link.qb.handle, &receives[..room]).unwrap();
        let wrs: Vec<_> = (0..=depth)
            .map(|id| super::tools::send_wr(id, SEND, &[]))
            .collect();
        let error = link.a.post_send(link.qa.handle, &wrs).unwrap_err();
        let told = (error.index as u64, error.cause);
        assert_eq!(told, (depth, PostCause::QueueFull));
        let ids: Vec<u64> = link
            .a
            .completions(depth as usize)
            .iter()
            .map(|wc| wc.wr_id)
            .collect();
        assert_eq!(ids, (0..depth).collect::<Vec<_>>());
    });
}
