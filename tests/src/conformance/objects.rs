//! Objects and their life cycle: verbs 1.

use super::tools::{
    Buffer, MGID, MLID, QUIET, Station, is_busy, is_invalid_attr, is_invalid_handle,
    is_no_resources, is_unsupported, qp_init, steps,
};
use super::{Features, Rig, Side};
use core_ib::Qpn;
use core_ib::platform::{DmaBuf, Platform as _};
use core_ib::verbs::{
    Access, CompletionQueue, CqInit, Device, MwKind, NotifyKind, Owner, PdHandle, QpCaps, QpInfo,
    QpInit, QpState, QpType, QueuePair, SrqHandle, SrqInit, Verbs, VerbsError,
};

const SRQ: fn(PdHandle) -> SrqInit = |pd| SrqInit {
    pd,
    max_wr: 8,
    max_sge: 2,
    owner: Owner::Kernel,
};

/// An SRQ of a station; `None`, proven, if the HCA has none.
fn srq<R: Rig>(station: &Station<'_, R>) -> Option<SrqHandle> {
    let created = station.hca().create_srq(&SRQ(station.pd));
    if station.rig.declared().has(Features::SRQ) {
        return Some(created.unwrap().handle);
    }
    is_unsupported(created);
    None
}

/// verbs 1.2, T001.
pub fn a_pd_with_a_qp_in_it_is_busy_until_the_qp_is_gone<R: Rig>(rig: &R) {
    let station = Station::new(rig, Side::A);
    let hca = rig.hca(Side::A);
    let pd = hca.alloc_pd().unwrap();
    let qp = hca.create_qp(pd, &qp_init(QpType::Ud, station.cq)).unwrap();
    is_busy(hca.dealloc_pd(pd));
    assert_eq!(station.state(qp.handle), QpState::Reset, "still usable");
    hca.destroy_qp(qp.handle).unwrap();
    assert_eq!(hca.dealloc_pd(pd), Ok(()));
    is_invalid_handle(hca.dealloc_pd(pd));
}

/// verbs 1.2, T001.
pub fn a_pd_with_an_srq_in_it_is_busy_until_the_srq_is_gone<R: Rig>(rig: &R) {
    let hca = rig.hca(Side::A);
    let pd = hca.alloc_pd().unwrap();
    let created = hca.create_srq(&SRQ(pd));
    if !rig.declared().has(Features::SRQ) {
        return is_unsupported(created);
    }
    let srq = created.unwrap().handle;
    is_busy(hca.dealloc_pd(pd));
    assert!(hca.query_srq(srq).unwrap().max_wr >= 8, "still usable");
    hca.destroy_srq(srq).unwrap();
    assert_eq!(hca.dealloc_pd(pd), Ok(()));
}

/// verbs 1.2, T001.
pub fn a_pd_with_a_region_in_it_is_busy_until_the_region_is_gone<R: Rig>(rig: &R) {
    let (hca, machine) = (rig.hca(Side::A), rig.machine(Side::A));
    let pd = hca.alloc_pd().unwrap();
    let buffer = Buffer::new(machine, hca, pd, 4096, Access::LOCAL_WRITE);
    is_busy(hca.dealloc_pd(pd));
    hca.dereg_mr(buffer.mr.handle).unwrap();
    assert_eq!(hca.dealloc_pd(pd), Ok(()));
}

/// verbs 1.2, T001.
pub fn a_pd_with_a_window_in_it_is_busy_until_the_window_is_gone<R: Rig>(rig: &R) {
    let hca = rig.hca(Side::A);
    let pd = hca.alloc_pd().unwrap();
    for (kind, feature) in [
        (MwKind::Type1, Features::WINDOWS_1),
        (MwKind::Type2, Features::WINDOWS_2),
    ] {
        let window = hca.alloc_mw(pd, kind);
        if !rig.declared().has(feature) {
            is_unsupported(window);
            continue;
        }
        is_busy(hca.dealloc_pd(pd));
        hca.dealloc_mw(window.unwrap().0).unwrap();
    }
    assert_eq!(hca.dealloc_pd(pd), Ok(()));
}

/// verbs 1.2, T001.
pub fn a_pd_with_an_address_handle_in_it_is_busy_until_that_is_gone<R: Rig>(rig: &R) {
    let station = Station::new(rig, Side::A);
    let hca = rig.hca(Side::A);
    let pd = hca.alloc_pd().unwrap();
    let attr = station.address_of(Side::B);
    let ah = hca.create_ah(pd, &attr).unwrap();
    is_busy(hca.dealloc_pd(pd));
    assert_eq!(hca.query_ah(ah), Ok(attr), "still usable");
    hca.destroy_ah(ah).unwrap();
    assert_eq!(hca.dealloc_pd(pd), Ok(()));
}

/// verbs 1.2: the whole-memory region goes with its PD.
pub fn a_pd_with_its_own_whole_memory_region_goes<R: Rig>(rig: &R) {
    let hca = rig.hca(Side::A);
    let pd = hca.alloc_pd().unwrap();
    let key = hca.whole_memory_key(pd).unwrap();
    assert_eq!(hca.whole_memory_key(pd), Ok(key), "made once");
    assert_eq!(hca.dealloc_pd(pd), Ok(()));
    is_invalid_handle(hca.whole_memory_key(pd));
}

/// verbs 1.2, T002.
pub fn a_cq_is_busy_while_it_is_either_cq_of_a_qp<R: Rig>(rig: &R) {
    let station = Station::new(rig, Side::A);
    let hca = rig.hca(Side::A);
    for service in [QpType::Ud, QpType::Rc, QpType::Uc] {
        let (send_cq, recv_cq) = (station.another_cq(8), station.another_cq(8));
        let init = QpInit {
            send_cq,
            recv_cq,
            ..qp_init(service, station.cq)
        };
        let qp = station.create(&init).handle;
        is_busy(hca.destroy_cq(send_cq));
        is_busy(hca.destroy_cq(recv_cq));
        hca.destroy_qp(qp).unwrap();
        assert_eq!(hca.destroy_cq(send_cq), Ok(()));
        assert_eq!(hca.destroy_cq(recv_cq), Ok(()));
        is_invalid_handle(hca.destroy_cq(recv_cq));
    }
}

/// verbs 1.2, T003.
pub fn a_cq_with_unpolled_completions_goes_once_its_qp_is_gone<R: Rig>(rig: &R) {
    let [a, _b] = Station::pair(rig);
    let cq = a.another_cq(8);
    let qp = a.ready(&qp_init(QpType::Ud, cq));
    let nobody = QpInfo {
        qpn: Qpn::new(0xabcdef),
        ..qp
    };
    a.send(qp.handle, 1, a.to(&nobody), &[a.buffer.sge(0, 64)]);
    a.machine().sleep(QUIET);
    a.hca().destroy_qp(qp.handle).unwrap();
    assert_eq!(a.hca().destroy_cq(cq), Ok(()));
}

/// verbs 1.2, T004.
pub fn an_srq_is_busy_while_a_qp_receives_through_it<R: Rig>(rig: &R) {
    let station = Station::new(rig, Side::A);
    let Some(srq) = srq(&station) else { return };
    for service in [QpType::Ud, QpType::Rc] {
        let init = QpInit {
            srq: Some(srq),
            ..qp_init(service, station.cq)
        };
        let qp = station.create(&init).handle;
        is_busy(station.hca().destroy_srq(srq));
        station.hca().destroy_qp(qp).unwrap();
    }
    assert_eq!(station.hca().destroy_srq(srq), Ok(()));
    is_invalid_handle(station.hca().destroy_srq(srq));
}

/// verbs 1.2, T005.
pub fn a_qp_attached_to_a_group_is_busy_until_detached<R: Rig>(rig: &R) {
    let station = Station::new(rig, Side::A);
    let hca = rig.hca(Side::A);
    let qp = station.ud().handle;
    let (mgid, mlid) = (MGID, MLID);
    hca.attach_mcast(qp, mgid, mlid).unwrap();
    is_busy(hca.destroy_qp(qp));
    assert_eq!(station.state(qp), QpState::Rts, "still usable");
    hca.detach_mcast(qp, mgid, mlid).unwrap();
    assert_eq!(hca.destroy_qp(qp), Ok(()));
}

/// `Device`: a resolved reference is a holder.
pub fn an_object_is_busy_while_a_reference_is_out<R: Rig>(rig: &R) {
    let station = Station::new(rig, Side::A);
    let hca = rig.hca(Side::A);
    let (cq, qp) = (station.another_cq(4), station.ud_in_reset());
    let reference = hca.cq(cq).unwrap();
    assert_eq!(reference.handle(), cq);
    is_busy(hca.destroy_cq(cq));
    drop(reference);
    assert_eq!(hca.destroy_cq(cq), Ok(()));
    is_invalid_handle(hca.cq(cq).map(|cq| cq.handle()));
    let reference = hca.qp(qp.handle).unwrap();
    assert_eq!((reference.handle(), reference.qpn()), (qp.handle, qp.qpn));
    is_busy(hca.destroy_qp(qp.handle));
    drop(reference);
    assert_eq!(hca.destroy_qp(qp.handle), Ok(()));
    is_invalid_handle(hca.qp(qp.handle).map(|qp| qp.qpn()));
}

/// verbs 1.3, T007.
pub fn a_qp_with_work_outstanding_goes_from_every_state_and_completes_nothing_after<R: Rig>(
    rig: &R,
) {
    let [a, b] = Station::pair(rig);
    let peer = b.ud();
    for state in steps::STATES {
        let qp = a.ud_in_reset().handle;
        a.bring_to(QpType::Ud, qp, state);
        if state != QpState::Reset {
            for id in 0..3 {
                a.receive(qp, id, &[a.buffer.sge(0, 256)]);
            }
        }
        if matches!(state, QpState::Rts | QpState::Sqd | QpState::Error) {
            for id in 0..3 {
                a.send(qp, id, a.to(&peer), &[a.buffer.sge(0, 64)]);
            }
        }
        assert_eq!(a.hca().destroy_qp(qp), Ok(()), "in {state:?}");
        assert_eq!(a.poll(a.cq, 8), [], "in {state:?}");
        a.stays_quiet();
    }
}

/// verbs 1.3, T008.
pub fn completions_of_a_destroyed_qp_leave_the_shared_cq_and_the_others_stay_in_order<R: Rig>(
    rig: &R,
) {
    let [a, b] = Station::pair(rig);
    let (first, second, peer) = (a.ud(), a.ud(), b.ud());
    for id in 0..4 {
        a.send(first.handle, id, a.to(&peer), &[a.buffer.sge(0, 64)]);
        a.send(second.handle, 10 + id, a.to(&peer), &[a.buffer.sge(0, 64)]);
    }
    a.machine().sleep(QUIET);
    a.hca().destroy_qp(first.handle).unwrap();
    let left = a.completions(4);
    let ids: Vec<u64> = left.iter().map(|wc| wc.wr_id).collect();
    assert_eq!(ids, [10, 11, 12, 13]);
    assert!(left.iter().all(|wc| wc.qpn == second.qpn));
    a.stays_quiet();
}

/// verbs 1.4, T009.
pub fn a_number_that_comes_back_is_never_that_of_a_living_qp<R: Rig>(rig: &R) {
    let station = Station::new(rig, Side::A);
    let hca = rig.hca(Side::A);
    let alive = [station.ud_in_reset().qpn, station.ud_in_reset().qpn];
    let gone = station.ud_in_reset();
    hca.destroy_qp(gone.handle).unwrap();
    let mut before = gone.qpn;
    for _ in 0..200 {
        let qp = station.ud_in_reset();
        assert!(!alive.contains(&qp.qpn), "{} is alive", qp.qpn);
        assert!(qp.qpn.get() > 1, "0 and 1 are special");
        assert_ne!(qp.qpn, before, "the least recently freed comes first");
        before = qp.qpn;
        hca.destroy_qp(qp.handle).unwrap();
        is_invalid_handle(hca.query_qp(qp.handle));
    }
}

/// verbs 1.4, 2.1, T010.
pub fn after_the_last_qp_there_is_none_until_one_is_destroyed<R: Rig>(rig: &R) {
    let station = Station::new(rig, Side::A);
    let hca = rig.hca(Side::A);
    let mut init = qp_init(QpType::Ud, station.cq);
    (init.caps.max_send_wr, init.caps.max_recv_wr) = (1, 1);
    let most = hca.query_device().max_qp;
    let mut qps = Vec::new();
    let error = loop {
        match hca.create_qp(station.pd, &init) {
            Ok(qp) => qps.push(qp),
            Err(error) => break error,
        }
        assert!(qps.len() <= most as usize, "more than max_qp");
    };
    is_no_resources(Err::<(), _>(error));
    assert_eq!(qps.len() as u32, most, "max_qp is what can be made");
    let numbers: std::collections::BTreeSet<u32> = qps.iter().map(|qp| qp.qpn.get()).collect();
    assert_eq!(numbers.len(), qps.len(), "all numbers differ");
    hca.destroy_qp(qps[0].handle).unwrap();
    hca.create_qp(station.pd, &init).unwrap();
}

/// verbs 1.4, 2.1, T013.
pub fn a_cq_has_at_least_the_size_asked_for_and_never_more_than_the_limit<R: Rig>(rig: &R) {
    let hca = rig.hca(Side::A);
    let limit = hca.query_device().max_cqe;
    let cq = |cqe| {
        hca.create_cq(&CqInit {
            cqe,
            vector: 0,
            owner: Owner::Kernel,
        })
    };
    for cqe in [1, 2, 3, 100] {
        let created = cq(cqe).unwrap();
        assert!(created.size >= cqe, "{} for {cqe}", created.size);
        hca.destroy_cq(created.handle).unwrap();
    }
    let largest = cq(limit).unwrap();
    assert_eq!(largest.size, limit);
    hca.destroy_cq(largest.handle).unwrap();
    is_invalid_attr(cq(limit + 1));
    is_invalid_attr(cq(0));
}

/// verbs 5.1.
pub fn a_completion_vector_that_does_not_exist_is_refused<R: Rig>(rig: &R) {
    let hca = rig.hca(Side::A);
    let vectors = hca.query_device().completion_vectors;
    assert!(vectors >= 1);
    let cq = |vector| {
        hca.create_cq(&CqInit {
            cqe: 4,
            vector,
            owner: Owner::Kernel,
        })
    };
    for vector in 0..vectors {
        hca.destroy_cq(cq(vector).unwrap().handle).unwrap();
    }
    is_invalid_attr(cq(vectors));
}

/// verbs 1.4, 2.1, T013.
pub fn a_qp_has_at_least_the_sizes_asked_for_and_never_more_than_the_limits<R: Rig>(rig: &R) {
    let station = Station::new(rig, Side::A);
    let hca = rig.hca(Side::A);
    let limits = hca.query_device();
    let with = |change: &dyn Fn(&mut QpCaps)| {
        let mut init = qp_init(QpType::Ud, station.cq);
        init.caps = QpCaps {
            max_send_wr: 1,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
        };
        change(&mut init.caps);
        let created = hca.create_qp(station.pd, &init)?;
        hca.destroy_qp(created.handle).unwrap();
        let (got, asked) = (created.caps, init.caps);
        assert!(got.max_send_wr >= asked.max_send_wr, "{got:?} {asked:?}");
        assert!(got.max_recv_wr >= asked.max_recv_wr, "{got:?} {asked:?}");
        assert!(got.max_send_sge >= asked.max_send_sge, "{got:?} {asked:?}");
        assert!(got.max_recv_sge >= asked.max_recv_sge, "{got:?} {asked:?}");
        assert!(got.max_inline >= asked.max_inline, "{got:?} {asked:?}");
        Ok::<QpCaps, VerbsError>(got)
    };
    with(&|_| ()).unwrap();
    let (wr, sge, inline) = (limits.max_qp_wr, limits.max_sge, limits.max_inline);
    let most = with(&|caps| caps.max_send_wr = wr).unwrap();
    assert_eq!(most.max_send_wr, wr);
    let most = with(&|caps| caps.max_recv_wr = wr).unwrap();
    assert_eq!(most.max_recv_wr, wr);
    with(&|caps| caps.max_send_sge = sge).unwrap();
    with(&|caps| caps.max_recv_sge = sge).unwrap();
    with(&|caps| caps.max_inline = inline).unwrap();
    is_invalid_attr(with(&|caps| caps.max_send_wr = wr + 1));
    is_invalid_attr(with(&|caps| caps.max_recv_wr = wr + 1));
    is_invalid_attr(with(&|caps| caps.max_send_sge = sge + 1));
    is_invalid_attr(with(&|caps| caps.max_recv_sge = sge + 1));
    is_invalid_attr(with(&|caps| caps.max_inline = inline + 1));
}

/// verbs 1.4, 2.1, 8.1, T013.
pub fn an_srq_has_at_least_the_sizes_asked_for_and_never_more_than_the_limits<R: Rig>(rig: &R) {
    let station = Station::new(rig, Side::A);
    let hca = rig.hca(Side::A);
    let limits = hca.query_device();
    let (wr, sge) = (limits.max_srq_wr, limits.max_srq_sge);
    let with = |max_wr, max_sge| {
        let init = SrqInit {
            max_wr,
            max_sge,
            ..SRQ(station.pd)
        };
        let created = hca.create_srq(&init)?;
        let attr = hca.query_srq(created.handle).unwrap();
        hca.destroy_srq(created.handle).unwrap();
        assert_eq!(attr.max_wr, created.size);
        assert!(attr.max_wr >= max_wr && attr.max_sge >= max_sge, "{attr:?}");
        assert_eq!(attr.limit, 0, "a new SRQ is not armed");
        Ok::<u32, VerbsError>(created.size)
    };
    if !rig.declared().has(Features::SRQ) {
        return is_unsupported(with(1, 1));
    }
    with(1, 1).unwrap();
    assert_eq!(with(wr, 1), Ok(wr));
    with(1, sge).unwrap();
    is_invalid_attr(with(0, 1));
    is_invalid_attr(with(wr + 1, 1));
    is_invalid_attr(with(1, sge + 1));
}

/// verbs 1.3, T014, T015: what would be lost once in a thousand times is gone after a thousand.
pub fn a_full_set_torn_down_in_the_right_order_leaves_room_for_a_thousand_more<R: Rig>(rig: &R) {
    let (hca, machine) = (rig.hca(Side::A), rig.machine(Side::A));
    let station = Station::new(rig, Side::A);
    let memory = DmaBuf::new(machine, 16 << 10, 4096).unwrap();
    let before = hca.query_device();
    for _ in 0..1000 {
        let pd = hca.alloc_pd().unwrap();
        let cq = station.another_cq(16);
        let mr = Buffer::register(hca, pd, &memory, 0, 16 << 10, Access::LOCAL_WRITE).unwrap();
        let ah = hca.create_ah(pd, &station.address_of(Side::B)).unwrap();
        let srq = rig.declared().has(Features::SRQ).then(|| {
            let created = hca.create_srq(&SRQ(pd));
            created.unwrap().handle
        });
        let qp = hca
            .create_qp(
                pd,
                &QpInit {
                    srq,
                    ..qp_init(QpType::Ud, cq)
                },
            )
            .unwrap()
            .handle;
        station.bring_to(QpType::Ud, qp, QpState::Rts);
        hca.attach_mcast(qp, MGID, MLID).unwrap();
        hca.detach_mcast(qp, MGID, MLID).unwrap();
        hca.destroy_qp(qp).unwrap();
        if let Some(srq) = srq {
            hca.destroy_srq(srq).unwrap();
        }
        hca.dereg_mr(mr.handle).unwrap();
        hca.destroy_ah(ah).unwrap();
        hca.destroy_cq(cq).unwrap();
        hca.dealloc_pd(pd).unwrap();
    }
    assert_eq!(hca.query_device(), before);
}

/// verbs 0.2, 1.4, T012.
pub fn a_handle_of_another_hca_is_refused<R: Rig>(rig: &R) {
    let (a, b) = (Station::new(rig, Side::A), Station::new(rig, Side::B));
    let (hca, qp, of_b) = (rig.hca(Side::A), a.ud_in_reset(), b.ud_in_reset());
    assert_ne!(qp.handle, of_b.handle);
    is_invalid_handle(hca.dealloc_pd(b.pd));
    is_invalid_handle(hca.destroy_cq(b.cq));
    is_invalid_handle(hca.query_qp(of_b.handle));
    is_invalid_handle(hca.qp(of_b.handle).map(|qp| qp.qpn()));
    is_invalid_handle(hca.cq(b.cq).map(|cq| cq.handle()));
    is_invalid_handle(hca.dereg_mr(b.buffer.mr.handle));
    is_invalid_handle(hca.create_ah(b.pd, &a.address_of(Side::B)));
    is_invalid_handle(hca.create_qp(b.pd, &qp_init(QpType::Ud, a.cq)));
    is_invalid_handle(hca.create_qp(a.pd, &qp_init(QpType::Ud, b.cq)));
    assert!(!hca.take_cq_event(b.cq));
}

/// verbs 1.2, 1.4.
pub fn a_handle_of_a_dead_object_stays_dead_when_its_place_has_a_new_tenant<R: Rig>(rig: &R) {
    let hca = rig.hca(Side::A);
    let dead = hca.alloc_pd().unwrap();
    hca.dealloc_pd(dead).unwrap();
    let mut tenants = Vec::new();
    while let Ok(pd) = hca.alloc_pd() {
        assert_ne!(pd, dead);
        tenants.push(pd);
        assert!(
            tenants.len() <= hca.query_device().max_pd as usize,
            "more than max_pd"
        );
    }
    is_no_resources(hca.alloc_pd());
    is_invalid_handle(hca.dealloc_pd(dead));
    is_invalid_handle(hca.whole_memory_key(dead));
    for pd in tenants {
        hca.dealloc_pd(pd).unwrap();
    }
}

/// verbs 1.3, T011, T156, as far as they can be pulled: nothing speaks of an object that is gone.
pub fn a_destroyed_cq_never_fires<R: Rig>(rig: &R) {
    let [a, b] = Station::pair(rig);
    let (cq, peer) = (a.another_cq(16), b.ud());
    let qp = a.ready(&qp_init(QpType::Ud, cq));
    a.arm(cq, NotifyKind::Any);
    for id in 0..4 {
        a.send(qp.handle, id, a.to(&peer), &[a.buffer.sge(0, 64)]);
    }
    a.hca().destroy_qp(qp.handle).unwrap();
    a.hca().destroy_cq(cq).unwrap();
    a.does_not_fire(cq);
    assert_eq!(a.events(), []);
}
