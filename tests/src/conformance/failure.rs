//! An HCA that fails or is pulled out: verbs 13.

use super::tools::{PATIENCE, QUIET, Station, qp_init, send_wr, wait_for};
use super::{Features, Rig, Side};
use core_ib::platform::Platform as _;
use core_ib::verbs::{
    Access, AsyncEvent, Device, DeviceModify, NotifyKind, Owner, PortModify, PostCause, QpAttrMask,
    QpInfo, QpState, QpType, RecvWr, SrqInit, VerbsError, WcStatus,
};

/// How an HCA ends.
#[derive(Clone, Copy, Debug)]
enum End {
    Fails,
    IsPulledOut,
}

const ENDS: [End; 2] = [End::Fails, End::IsPulledOut];

/// Ends the HCA of A, and waits until its driver knows; the events that it gave.
fn end<R: Rig>(rig: &R, how: End) -> Vec<AsyncEvent> {
    let (hca, machine) = (rig.hca(Side::A), rig.machine(Side::A));
    while hca.next_async_event().is_some() {}
    match how {
        End::Fails => rig.break_down(Side::A),
        End::IsPulledOut => rig.pull_out(Side::A),
    }
    let noticed = wait_for(machine, PATIENCE, || {
        hca.poll_events();
        hca.check().is_err()
    });
    assert!(noticed, "the driver does not notice that the HCA {how:?}");
    machine.sleep(QUIET);
    core::iter::from_fn(|| hca.next_async_event()).collect()
}

/// The answer of a dead HCA.
#[track_caller]
fn is_dead<T: core::fmt::Debug>(answer: Result<T, VerbsError>) {
    let dead = matches!(
        answer,
        Err(VerbsError::DeviceFailed | VerbsError::DeviceGone)
    );
    assert!(dead, "{answer:?} of a dead HCA");
}

/// A QP in SQD with `receives` receives and `sends` sends that nobody takes.
fn loaded<R: Rig>(station: &Station<'_, R>, peer: &QpInfo) -> QpInfo {
    let qp = station.ud();
    let to_sqd = station.modify(qp.handle, QpState::Sqd, QpAttrMask::empty(), |_| ());
    assert_eq!(to_sqd, Ok(()));
    station.drain(qp.handle);
    let op = station.to(peer);
    for id in 0..3 {
        station.receive(qp.handle, id, &[station.buffer.sge(id * 512, 512)]);
        station.send(qp.handle, 10 + id, op, &[station.buffer.sge(0, 8)]);
    }
    qp
}

/// Both ways to end, each in a rig of its own.
fn tells_once<R: Rig>(rig: &R, how: End) {
    let [a, b] = Station::pair(rig);
    let peer = b.ud();
    let qps = [loaded(&a, &peer), loaded(&a, &peer)];
    a.arm(a.cq, NotifyKind::Any);
    let wakes = rig.wakes(Side::A);
    let events = end(rig, how);
    let fatal =
        |event: &&AsyncEvent| matches!(event, AsyncEvent::DeviceFatal | AsyncEvent::DeviceGone);
    assert_eq!(events.iter().filter(fatal).count(), 1, "{events:?}");
    assert!(rig.wakes(Side::A) > wakes, "the owner is woken");
    assert!(a.fires(a.cq), "the CQ fires");
    let all = a.completions(12);
    assert!(
        all.iter().all(|wc| wc.status == WcStatus::Flushed),
        "{all:?}"
    );
    for qp in qps {
        let ids = all.iter().filter(|wc| wc.qpn == qp.qpn).map(|wc| wc.wr_id);
        let (sends, receives): (Vec<_>, Vec<_>) = ids.partition(|id| *id >= 10);
        assert_eq!((sends, receives), (vec![10, 11, 12], vec![0, 1, 2]));
    }
    a.stays_quiet();
    assert_eq!(a.events(), [], "once");
}

/// verbs 13.2, T163.
pub fn a_failure_is_told_once_and_flushes_all_that_is_outstanding<R: Rig>(rig: &R) {
    tells_once(rig, ENDS[0]);
}

/// verbs 13.1, T163, T167.
pub fn a_removal_is_told_once_and_flushes_all_that_is_outstanding<R: Rig>(rig: &R) {
    tells_once(rig, ENDS[1]);
}

fn refuses_everything<R: Rig>(rig: &R, how: End) {
    let [a, b] = Station::pair(rig);
    let (hca, qp, peer) = (a.hca(), a.ud(), b.ud());
    let (op, cq) = (a.to(&peer), a.another_cq(4));
    let srq_init = SrqInit {
        pd: a.pd,
        max_wr: 4,
        max_sge: 1,
        owner: Owner::Kernel,
    };
    let srq = rig.declared().has(Features::SRQ).then(|| {
        let created = hca.create_srq(&srq_init);
        created.unwrap().handle
    });
    let mcast = (super::tools::MGID, super::tools::MLID);
    hca.attach_mcast(qp.handle, mcast.0, mcast.1).unwrap();
    end(rig, how);
    is_dead(hca.check());
    is_dead(hca.query_port(1));
    is_dead(hca.query_qp(qp.handle));
    is_dead(hca.modify_port(
        1,
        &PortModify {
            set_caps: 2,
            ..PortModify::default()
        },
    ));
    let set = DeviceModify {
        node_description: Some(&[0; 64]),
        sys_image_guid: None,
    };
    if rig.declared().has(Features::NODE_DESCRIPTION) {
        is_dead(hca.modify_device(&set));
    }
    is_dead(hca.create_qp(a.pd, &qp_init(QpType::Ud, a.cq)));
    is_dead(hca.create_cq(&core_ib::verbs::CqInit {
        cqe: 4,
        vector: 0,
        owner: Owner::Kernel,
    }));
    is_dead(hca.resize_cq(cq, 16));
    is_dead(hca.attach_mcast(qp.handle, mcast.0, core_ib::Lid(0xc999)));
    if let Some(srq) = srq {
        is_dead(hca.create_srq(&srq_init));
        is_dead(hca.arm_srq(srq, 1));
        is_dead(hca.query_srq(srq));
    }
    let memory = core_ib::platform::DmaBuf::new(a.machine(), 4096, 4096).unwrap();
    is_dead(super::tools::Buffer::register(
        hca,
        a.pd,
        &memory,
        0,
        4096,
        Access::empty(),
    ));
    for state in [QpState::Sqd, QpState::Rts] {
        is_dead(a.modify(qp.handle, state, QpAttrMask::empty(), |_| ()));
    }
    let sges = [a.buffer.sge(0, 8)];
    let error = a
        .post_send(qp.handle, &[send_wr(1, op, &sges)])
        .unwrap_err();
    assert_eq!((error.index, error.cause), (0, PostCause::DeviceFailed));
    let error = a
        .post_recv(
            qp.handle,
            &[RecvWr {
                wr_id: 1,
                sges: &sges,
            }],
        )
        .unwrap_err();
    assert_eq!((error.index, error.cause), (0, PostCause::DeviceFailed));
    a.arm(cq, NotifyKind::Any);
    // What takes things down goes on.
    let to_err = a.modify(qp.handle, QpState::Error, QpAttrMask::empty(), |_| ());
    assert_eq!(to_err, Ok(()));
    let to_reset = a.modify(qp.handle, QpState::Reset, QpAttrMask::empty(), |_| ());
    assert_eq!(to_reset, Ok(()));
    hca.detach_mcast(qp.handle, mcast.0, mcast.1).unwrap();
    hca.destroy_qp(qp.handle).unwrap();
    if let Some(srq) = srq {
        hca.destroy_srq(srq).unwrap();
    }
    hca.dereg_mr(a.buffer.mr.handle).unwrap();
    let core_ib::verbs::SendOp::Datagram { ah, .. } = op else {
        unreachable!("`to` makes datagrams")
    };
    hca.destroy_ah(ah).unwrap();
    hca.destroy_cq(cq).unwrap();
    hca.destroy_cq(a.cq).unwrap();
    hca.dealloc_pd(a.pd).unwrap();
    is_dead(hca.check());
}

/// verbs 13.2, T164.
pub fn an_hca_that_has_failed_takes_no_more_and_gives_everything_back<R: Rig>(rig: &R) {
    refuses_everything(rig, ENDS[0]);
}

/// verbs 13.1, 13.2, T164, T167.
pub fn an_hca_that_is_gone_takes_no_more_and_gives_everything_back<R: Rig>(rig: &R) {
    refuses_everything(rig, ENDS[1]);
}

/// verbs 13: the peer of an HCA that failed goes on.
pub fn the_peer_of_an_hca_that_failed_works_on<R: Rig>(rig: &R) {
    let [a, b] = Station::pair(rig);
    let (gone, one, two) = (a.ud(), b.ud(), b.ud());
    let to_gone = b.to(&gone);
    end(rig, End::Fails);
    b.send(one.handle, 1, to_gone, &[]);
    b.success(1);
    b.receive(two.handle, 2, &[b.buffer.sge(0, 256)]);
    b.send(one.handle, 3, b.datagram(b.ah(Side::B), &two), &[]);
    let mut ids: Vec<u64> = b.completions(2).iter().map(|wc| wc.wr_id).collect();
    ids.sort_unstable();
    assert_eq!(ids, [2, 3]);
}
