//! The control path of the InfiniHost driver on a model of the family: what the conformance suite, which knows no driver,
//! cannot ask for. What errors name, what queries round, memory, several contexts at once, and the end of the HCA.

use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;
use core_ib::platform::{Completion, NoWake, Platform, Wake};
use core_ib::verbs::{
    Access, AhAttr, AsyncEvent, CompletionQueue, CqHandle, CqInit, Device, FmrInit, GlobalRoute,
    MrInit, MwKind, NotifyKind, Owner, PdHandle, PostCause, QpAttr, QpAttrMask as M, QpCaps,
    QpHandle, QpInfo, QpInit, QpState, QpType, QueuePair, RecvWr, SendFlags, SendOp, SendWr,
    SharedReceiveQueue, Signaling, SrqInit, Verbs, VerbsError, WcStatus, WorkCompletion,
};
use core_ib::{Gid, Guid, Lid, Mtu, Psn, QKey, Qpn};
use mthca_hw::{Hca, Interrupts, Profile};
use platform_sim::hca::infinihost::{Config, InfiniHost};
use platform_sim::machine::{
    Config as WorldConfig, HostId, Nowhere, SimCompletion, SimPlatform, World,
};

/// Tells one context.
struct Bell(SimCompletion);

impl Wake for Bell {
    fn wake(&self) {
        self.0.fire();
    }
}

fn card(number: u64) -> Config {
    Config::of(super::VARIANT, Guid(0x0002_c900_0000_0000 + number * 0x100))
}

fn world(seed: u64, config: Config) -> (World, HostId) {
    let mut world = World::new(seed, Nowhere);
    let host = world.add_host("host-a", Box::new(InfiniHost::new(config)), &[]);
    (world, host)
}

/// Opens the HCA, runs `f`, closes it; nothing may be left behind, and nothing used that the model does not act on.
fn with_hca(f: impl FnOnce(&SimPlatform, &Hca<'_, SimPlatform>) + Send + 'static) {
    let (mut world, host) = world(1, card(1));
    let task = world.spawn(host, "driver", |machine| {
        let hca = Hca::open(machine, &NoWake, &Profile::SMALL).unwrap();
        f(machine, &hca);
        hca.close().map_err(|(_, busy)| busy).unwrap();
    });
    world.finish(task).unwrap_or_else(|stuck| panic!("{stuck}"));
    world.check_leaks(host);
    let ledger = world.with_function(host, |function, _| {
        let entries = function.ledger().iter();
        // A connection's packets are the model's next chapter; its contexts are kept today.
        let acted_on = entries.filter(|(what, _)| !what.starts_with("QP of service"));
        acted_on
            .map(|(what, count)| format!("{what}: {count}"))
            .collect::<Vec<_>>()
    });
    assert_eq!(ledger.unwrap(), [""; 0]);
}

fn cq(hca: &Hca<'_, SimPlatform>) -> CqHandle {
    let init = CqInit {
        cqe: 15,
        vector: 0,
        owner: Owner::Kernel,
    };
    hca.create_cq(&init).unwrap().handle
}

const CAPS: QpCaps = QpCaps {
    max_send_wr: 4,
    max_recv_wr: 4,
    max_send_sge: 1,
    max_recv_sge: 1,
    max_inline: 0,
};

fn qp_init(service: QpType, cq: CqHandle) -> QpInit {
    QpInit {
        qp_type: service,
        port: 1,
        send_cq: cq,
        recv_cq: cq,
        srq: None,
        caps: CAPS,
        signaling: Signaling::All,
        owner: Owner::Kernel,
    }
}

fn qp(hca: &Hca<'_, SimPlatform>, pd: PdHandle, service: QpType, cq: CqHandle) -> QpInfo {
    hca.create_qp(pd, &qp_init(service, cq)).unwrap()
}

const fn busy(object: &'static str, holders: u32) -> Result<(), VerbsError> {
    Err(VerbsError::Busy { object, holders })
}

const fn stale(object: &'static str) -> Result<(), VerbsError> {
    Err(VerbsError::InvalidHandle { object })
}

fn invalid<T>(result: Result<T, VerbsError>) -> Option<&'static str> {
    match result {
        Err(VerbsError::InvalidAttr { field, .. }) => Some(field),
        _ => None,
    }
}

fn to_self() -> AhAttr {
    AhAttr {
        port: 1,
        dlid: Lid(1),
        ..AhAttr::default()
    }
}

// Objects: verbs 1.

#[test]
fn a_pd_is_busy_while_anything_is_in_it() {
    with_hca(|machine, hca| {
        let pd = hca.alloc_pd().unwrap();
        let cq = cq(hca);
        let ud = qp(hca, pd, QpType::Ud, cq).handle;
        assert_eq!(hca.dealloc_pd(pd), busy("PD", 1));
        let srq_init = SrqInit {
            pd,
            max_wr: 4,
            max_sge: 1,
            owner: Owner::Kernel,
        };
        let srq = hca.create_srq(&srq_init).unwrap().handle;
        let ah = hca.create_ah(pd, &to_self()).unwrap();
        let memory = core_ib::platform::DmaBuf::new(machine, 4096, 4096).unwrap();
        let mr_init = MrInit {
            iova: 0,
            length: 4096,
            pages: &[memory.addr()],
            page_shift: 12,
            access: Access::empty(),
        };
        // SAFETY: the memory is given back behind the region.
        let mr = unsafe { hca.reg_mr(pd, &mr_init) }.unwrap().handle;
        hca.whole_memory_key(pd).unwrap();
        assert_eq!(hca.dealloc_pd(pd), busy("PD", 4));
        hca.destroy_qp(ud).unwrap();
        hca.destroy_srq(srq).unwrap();
        hca.destroy_ah(ah).unwrap();
        assert_eq!(hca.dealloc_pd(pd), busy("PD", 1));
        hca.dereg_mr(mr).unwrap();
        // The whole-memory region goes with its PD.
        assert_eq!(hca.dealloc_pd(pd), Ok(()));
        for again in [hca.dealloc_pd(pd), hca.destroy_ah(ah).and(Ok(()))] {
            assert!(matches!(again, Err(VerbsError::InvalidHandle { .. })));
        }
        assert_eq!(hca.destroy_qp(ud), stale("QP"));
        assert_eq!(hca.dereg_mr(mr), stale("MR"));
        assert_eq!(hca.destroy_srq(srq), stale("SRQ"));
        hca.destroy_cq(cq).unwrap();
        assert_eq!(hca.destroy_cq(cq), stale("CQ"));
        // SAFETY: the region over it is gone.
        memory.free(unsafe { core_ib::platform::LetGo::claim() });
    });
}

#[test]
fn a_full_table_names_its_entry_and_has_room_again() {
    with_hca(|_, hca| {
        let pd = hca.alloc_pd().unwrap();
        let cq = cq(hca);
        let max = hca.query_device().max_qp;
        let all: Vec<QpHandle> = (0..max)
            .map(|_| qp(hca, pd, QpType::Ud, cq).handle)
            .collect();
        let full = VerbsError::NoResources {
            entry: "qps",
            limit: max,
        };
        assert_eq!(hca.create_qp(pd, &qp_init(QpType::Ud, cq)), Err(full));
        hca.destroy_qp(all[3]).unwrap();
        let again = qp(hca, pd, QpType::Ud, cq).handle;
        for qp in all.iter().filter(|qp| **qp != all[3]).chain([&again]) {
            hca.destroy_qp(*qp).unwrap();
        }
        hca.destroy_cq(cq).unwrap();
        hca.dealloc_pd(pd).unwrap();
    });
}

// QP states: verbs 3.

fn attr() -> QpAttr {
    QpAttr {
        port: 1,
        qkey: QKey(7),
        path: to_self(),
        path_mtu: Mtu::Mtu1024,
        dest_qpn: Qpn::new(0x1234),
        rq_psn: Psn::new(0x111),
        sq_psn: Psn::new(0x222),
        max_dest_rd_atomic: 3,
        max_rd_atomic: 2,
        min_rnr_timer: 9,
        timeout: 14,
        retry_count: 5,
        rnr_retry: 6,
        access: Access::REMOTE_WRITE.union(Access::REMOTE_READ),
        ..QpAttr::EMPTY
    }
}

/// What INIT, RTR and RTS need.
fn required(service: QpType) -> [M; 3] {
    match service {
        QpType::Rc => [
            M::PKEY_INDEX | M::PORT | M::ACCESS,
            M::AV
                | M::PATH_MTU
                | M::DEST_QPN
                | M::RQ_PSN
                | M::MAX_DEST_RD_ATOMIC
                | M::MIN_RNR_TIMER,
            M::SQ_PSN | M::TIMEOUT | M::RETRY_COUNT | M::RNR_RETRY | M::MAX_RD_ATOMIC,
        ],
        QpType::Uc => [
            M::PKEY_INDEX | M::PORT | M::ACCESS,
            M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN,
            M::SQ_PSN,
        ],
        QpType::Ud => [M::PKEY_INDEX | M::PORT | M::QKEY, M::empty(), M::SQ_PSN],
        QpType::Smi | QpType::Gsi => [M::PKEY_INDEX | M::QKEY, M::empty(), M::SQ_PSN],
    }
}

fn go(hca: &Hca<'_, SimPlatform>, qp: QpHandle, state: QpState, mask: M) -> Result<(), VerbsError> {
    let attr = QpAttr {
        state,
        cur_state: state,
        ..attr()
    };
    hca.modify_qp(qp, &attr, mask | M::STATE)
}

/// From RESET to `to`, which is on the straight way.
fn lead(hca: &Hca<'_, SimPlatform>, qp: QpHandle, service: QpType, to: QpState) {
    let [init, rtr, rts] = required(service);
    let way = [
        (QpState::Init, init),
        (QpState::Rtr, rtr),
        (QpState::Rts, rts),
        (QpState::Sqd, M::empty()),
    ];
    if to == QpState::Reset {
        return;
    }
    if to == QpState::Error {
        go(hca, qp, QpState::Init, init).unwrap();
        go(hca, qp, QpState::Error, M::empty()).unwrap();
        return;
    }
    for (state, mask) in way {
        go(hca, qp, state, mask).unwrap();
        if state == to {
            return;
        }
    }
}

const STATES: [QpState; 6] = [
    QpState::Reset,
    QpState::Init,
    QpState::Rtr,
    QpState::Rts,
    QpState::Sqd,
    QpState::Error,
];
const SERVICES: [QpType; 5] = [QpType::Rc, QpType::Uc, QpType::Ud, QpType::Smi, QpType::Gsi];

#[test]
fn the_straight_way_and_back_shows_what_was_set() {
    let straight = |hca: &Hca<'_, SimPlatform>, service: QpType, qp| {
        for state in STATES {
            lead(hca, qp, service, state);
            let got = hca.query_qp(qp).unwrap();
            assert_eq!(got.state, state, "{service:?}");
            let set = attr();
            let rts = state == QpState::Rts;
            if rts && service.is_datagram() {
                assert_eq!((got.qkey, got.sq_psn), (set.qkey, set.sq_psn));
            }
            if rts && !service.is_datagram() {
                assert_eq!(
                    (got.path, got.path_mtu, got.port),
                    (set.path, set.path_mtu, 1)
                );
                assert_eq!(
                    (got.dest_qpn, got.rq_psn, got.sq_psn),
                    (set.dest_qpn, set.rq_psn, set.sq_psn)
                );
            }
            if rts && service == QpType::Rc {
                assert_eq!((got.timeout, got.retry_count, got.rnr_retry), (14, 5, 6));
                assert_eq!((got.min_rnr_timer, got.access), (9, set.access));
                // Rounded up: T042.
                assert_eq!((got.max_dest_rd_atomic, got.max_rd_atomic), (4, 2));
            }
            if state != QpState::Reset {
                go(hca, qp, QpState::Error, M::empty()).unwrap();
                assert_eq!(hca.query_qp(qp).unwrap().state, QpState::Error);
            }
            go(hca, qp, QpState::Reset, M::empty()).unwrap();
            assert_eq!(hca.query_qp(qp).unwrap().state, QpState::Reset);
        }
    };
    with_hca(move |_, hca| {
        let pd = hca.alloc_pd().unwrap();
        let cq = cq(hca);
        for service in SERVICES {
            let qp = qp(hca, pd, service, cq).handle;
            straight(hca, service, qp);
            hca.destroy_qp(qp).unwrap();
        }
        hca.destroy_cq(cq).unwrap();
        hca.dealloc_pd(pd).unwrap();
    });
}

#[test]
fn what_the_profile_does_not_ask_for_or_the_hca_has_not_is_unsupported() {
    with_hca(|_, hca| {
        let pd = hca.alloc_pd().unwrap();
        let unsupported = |error: VerbsError| matches!(error, VerbsError::Unsupported { .. });
        assert!(unsupported(hca.alloc_user().unwrap_err()));
        for kind in [MwKind::Type1, MwKind::Type2] {
            assert!(unsupported(hca.alloc_mw(pd, kind).unwrap_err()));
        }
        let init = FmrInit {
            max_pages: 1,
            max_maps: 1,
            page_shift: 12,
            access: Access::empty(),
        };
        assert!(unsupported(hca.alloc_fmr(pd, &init).unwrap_err()));
        hca.dealloc_pd(pd).unwrap();
    });
}

// Memory: verbs 7.

#[test]
fn regions_are_checked_and_can_be_registered_anew() {
    with_hca(|machine, hca| {
        let [pd, other] = [hca.alloc_pd().unwrap(), hca.alloc_pd().unwrap()];
        let memory = core_ib::platform::DmaBuf::new(machine, 8192, 4096).unwrap();
        let pages = [memory.addr(), memory.addr().plus(4096)];
        let good = MrInit {
            iova: 0x7000_0010,
            length: 4096,
            pages: &pages,
            page_shift: 12,
            access: Access::LOCAL_WRITE | Access::REMOTE_READ,
        };
        // SAFETY: the memory is given back behind the regions.
        let register = |init: &MrInit<'_>| unsafe { hca.reg_mr(pd, init) };
        let unknown = Access::from_bits_retain(0x80);
        for bad in [
            MrInit { length: 0, ..good },
            MrInit {
                iova: u64::MAX - 10,
                ..good
            },
            MrInit {
                pages: &pages[..1],
                ..good
            },
            MrInit {
                page_shift: 11,
                ..good
            },
            MrInit {
                access: Access::REMOTE_WRITE,
                ..good
            },
            MrInit {
                access: Access::REMOTE_ATOMIC,
                ..good
            },
            MrInit {
                access: unknown,
                ..good
            },
        ] {
            assert!(invalid(register(&bad)).is_some(), "{bad:?}");
        }
        let bind = register(&MrInit {
            access: Access::MW_BIND,
            ..good
        });
        assert!(matches!(bind, Err(VerbsError::Unsupported { .. })));
        let first = register(&good).unwrap();
        assert_eq!(first.lkey.0, first.rkey.0);
        let local = register(&MrInit {
            access: Access::empty(),
            ..good
        })
        .unwrap();
        assert_eq!(local.rkey.0, 0, "nothing for a peer");
        hca.dereg_mr(local.handle).unwrap();
        // SAFETY: as above.
        let again = |pd, init, access| unsafe { hca.rereg_mr(first.handle, pd, init, access) };
        assert!(invalid(again(None, None, None)).is_some());
        let moved = again(Some(other), None, None).unwrap();
        assert_ne!(moved.lkey, first.lkey);
        assert_eq!(hca.dealloc_pd(pd), Ok(()), "nothing is in it any more");
        assert_eq!(hca.dealloc_pd(other), busy("PD", 1));
        let narrow = again(None, None, Some(Access::empty())).unwrap();
        assert_eq!(narrow.rkey.0, 0);
        let page = MrInit {
            iova: 0,
            pages: &pages[1..],
            ..good
        };
        again(None, Some(&page), None).unwrap();
        assert!(invalid(again(None, Some(&MrInit { length: 0, ..good }), None)).is_some());
        hca.dereg_mr(first.handle).unwrap();
        hca.dealloc_pd(other).unwrap();
        // SAFETY: no region over it is left.
        memory.free(unsafe { core_ib::platform::LetGo::claim() });
    });
}

// SRQs: verbs 8.

#[test]
fn the_limit_of_an_srq_is_checked_and_shown() {
    with_hca(|_, hca| {
        let pd = hca.alloc_pd().unwrap();
        let init = SrqInit {
            pd,
            max_wr: 7,
            max_sge: 2,
            owner: Owner::Kernel,
        };
        let srq = hca.create_srq(&init).unwrap();
        let attr = hca.query_srq(srq.handle).unwrap();
        assert_eq!((attr.max_wr, attr.limit), (7, 0));
        assert!(invalid(hca.arm_srq(srq.handle, 8)).is_some());
        let list = [RecvWr {
            wr_id: 0,
            sges: &[],
        }; 7];
        hca.srq(srq.handle).unwrap().post_recv(&list).unwrap();
        hca.arm_srq(srq.handle, 5).unwrap();
        assert_eq!(hca.query_srq(srq.handle).unwrap().limit, 5);
        let resize = hca.resize_srq(srq.handle, 9);
        assert!(matches!(resize, Err(VerbsError::Unsupported { .. })));
        hca.destroy_srq(srq.handle).unwrap();
        hca.dealloc_pd(pd).unwrap();
    });
}

// Address handles and groups: verbs 9.

#[test]
fn an_address_that_leads_nowhere_is_refused() {
    with_hca(|_, hca| {
        let pd = hca.alloc_pd().unwrap();
        let refused = |attr: AhAttr| hca.create_ah(pd, &attr).unwrap_err();
        for port in [0, 3] {
            let attr = AhAttr { port, ..to_self() };
            assert_eq!(refused(attr), VerbsError::InvalidPort { port, count: 2 });
        }
        let route = |sgid_index| GlobalRoute {
            sgid_index,
            ..GlobalRoute::default()
        };
        for grh in [route(32), route(1)] {
            let attr = AhAttr {
                grh: Some(grh),
                ..to_self()
            };
            assert!(matches!(refused(attr), VerbsError::InvalidAttr { .. }));
        }
        for dlid in [Lid(0), Lid(0xc000)] {
            let attr = AhAttr { dlid, ..to_self() };
            assert!(matches!(refused(attr), VerbsError::InvalidAttr { .. }));
        }
        let attr = AhAttr {
            grh: Some(route(0)),
            src_path_bits: 3,
            ..to_self()
        };
        let ah = hca.create_ah(pd, &attr).unwrap();
        assert_eq!(hca.query_ah(ah), Ok(attr));
        hca.destroy_ah(ah).unwrap();
        assert!(hca.query_ah(ah).is_err());
        hca.dealloc_pd(pd).unwrap();
    });
}

#[test]
fn groups_take_datagram_queues_until_they_are_full() {
    with_hca(|_, hca| {
        let pd = hca.alloc_pd().unwrap();
        let cq = cq(hca);
        let (ud, rc) = (
            qp(hca, pd, QpType::Ud, cq).handle,
            qp(hca, pd, QpType::Rc, cq).handle,
        );
        let group = |n: u8| {
            let mut gid = [0; 16];
            (gid[0], gid[15]) = (0xff, n);
            Gid(gid)
        };
        let mlid = Lid(0xc001);
        assert!(invalid(hca.attach_mcast(rc, group(1), mlid)).is_some());
        assert!(
            invalid(hca.attach_mcast(ud, Gid::unicast(Gid::DEFAULT_PREFIX, Guid(9)), mlid))
                .is_some()
        );
        for lid in [Lid(0xbfff), Lid(0xffff)] {
            assert!(invalid(hca.attach_mcast(ud, group(1), lid)).is_some());
        }
        // Sixteen buckets and sixteen entries more: these all hash apart or chain.
        let mut attached = Vec::new();
        let full = (0..=255).find_map(|n| match hca.attach_mcast(ud, group(n), mlid) {
            Ok(()) => {
                attached.push(n);
                None
            }
            Err(error) => Some(error),
        });
        let entry = VerbsError::NoResources {
            entry: "mcast_groups",
            limit: 16,
        };
        assert_eq!(full, Some(entry));
        assert!(attached.len() >= 16);
        hca.detach_mcast(ud, group(attached[0]), mlid).unwrap();
        for n in &attached[1..] {
            hca.detach_mcast(ud, group(*n), mlid).unwrap();
        }
        assert!(invalid(hca.detach_mcast(ud, group(attached[0]), mlid)).is_some());
        for qp in [ud, rc] {
            hca.destroy_qp(qp).unwrap();
        }
        hca.destroy_cq(cq).unwrap();
        hca.dealloc_pd(pd).unwrap();
    });
}

// The end: verbs 13.

/// Opens an HCA with work outstanding, calls `ruin` from outside, and looks what the driver makes of it.
fn ruined(ruin: impl FnOnce(&mut World, HostId), expected: (VerbsError, AsyncEvent)) {
    let (mut world, host) = world(3, card(1));
    let go_on = world.platform(host).completion().unwrap();
    let go_on = std::sync::Arc::new(go_on);
    let waits = go_on.clone();
    let task = world.spawn(host, "driver", move |machine| {
        let hca = Hca::open(machine, &NoWake, &Profile::SMALL).unwrap();
        let pd = hca.alloc_pd().unwrap();
        let cq = cq(&hca);
        let ud = qp(&hca, pd, QpType::Ud, cq).handle;
        lead(&hca, ud, QpType::Ud, QpState::Sqd);
        let list = [RecvWr {
            wr_id: 5,
            sges: &[],
        }; 3];
        hca.qp(ud).unwrap().post_recv(&list).unwrap();
        let ah = hca.create_ah(pd, &to_self()).unwrap();
        let op = SendOp::Datagram {
            ah,
            remote_qpn: Qpn::new(1),
            remote_qkey: QKey(0),
            imm: None,
            pkey_index: 0,
        };
        let send = SendWr {
            wr_id: 6,
            op,
            sges: &[],
            inline: &[],
            flags: SendFlags::empty(),
        };
        hca.qp(ud).unwrap().post_send(&[send]).unwrap();
        hca.cq(cq).unwrap().req_notify(NotifyKind::Any).unwrap();
        let _ = hca.take_cq_event(cq);
        waits.wait_until(core_ib::Instant::NEVER);

        let (error, event) = expected;
        machine.sleep(Duration::from_secs(6));
        hca.poll_events();
        assert_eq!(hca.check(), Err(error));
        assert_eq!(hca.next_async_event(), Some(event));
        assert_eq!(hca.next_async_event(), None, "once");
        assert!(hca.take_cq_event(cq), "the CQ has fired");
        let mut all = [WorkCompletion::EMPTY; 8];
        let count = hca.cq(cq).unwrap().poll(&mut all).unwrap();
        let ids: Vec<_> = all[..count]
            .iter()
            .map(|wc| (wc.wr_id, wc.status))
            .collect();
        let flushed = WcStatus::Flushed;
        assert_eq!(
            ids,
            [(6, flushed), (5, flushed), (5, flushed), (5, flushed)]
        );
        assert!(hca.qp(ud).unwrap().post_send(&[send]).is_err());
        assert_eq!(hca.alloc_pd(), Err(error));
        assert_eq!(hca.query_port(1), Err(error));
        assert_eq!(go(&hca, ud, QpState::Rts, M::empty()), Err(error));
        assert_eq!(go(&hca, ud, QpState::Reset, M::empty()), Ok(()));
        hca.destroy_ah(ah).unwrap();
        hca.destroy_qp(ud).unwrap();
        hca.destroy_cq(cq).unwrap();
        hca.dealloc_pd(pd).unwrap();
        hca.close().map_err(|(_, busy)| busy).unwrap();
    });
    world.run_for(Duration::from_secs(5));
    ruin(&mut world, host);
    go_on.fire();
    world.finish(task).unwrap_or_else(|stuck| panic!("{stuck}"));
    world.check_leaks(host);
}

#[test]
fn a_catastrophic_error_flushes_everything_and_everything_can_be_ended() {
    let ruin = |world: &mut World, host| {
        world.with_model::<InfiniHost, _>(host, |hca, _| {
            hca.break_down(hca_abi::infinihost::regs::CatasKind::DDR);
        });
    };
    ruined(ruin, (VerbsError::DeviceFailed, AsyncEvent::DeviceFatal));
}

#[test]
fn an_hca_that_is_pulled_out_is_gone_and_nothing_hangs() {
    let ruin = |world: &mut World, host| {
        world.remove_function(host).unwrap();
    };
    ruined(ruin, (VerbsError::DeviceGone, AsyncEvent::DeviceGone));
}

/// Posts lists until the HCA refuses; how many requests it took.
fn post_to_the_end(
    machine: &SimPlatform,
    hca: &Hca<'_, SimPlatform>,
    ud: QpHandle,
    op: SendOp,
) -> usize {
    let send = SendWr {
        wr_id: 6,
        op,
        sges: &[],
        inline: &[],
        flags: SendFlags::empty(),
    };
    let qp = hca.qp(ud).unwrap();
    let mut taken = 0;
    loop {
        match qp.post_send(&[send; 8]) {
            Ok(()) => taken += 8,
            Err(error) => {
                taken += error.index;
                if error.cause == PostCause::DeviceFailed {
                    return taken;
                }
                machine.sleep(Duration::from_micros(1));
            }
        }
    }
}

/// Takes what completes whenever the CQ says that there is something, until `done` says how much there is to come and
/// all of it has come. Of an HCA that has ended it asks no more to be told.
fn take_when_told(
    bell: &SimCompletion,
    hca: &Hca<'_, SimPlatform>,
    cq: CqHandle,
    done: &AtomicUsize,
    deadline: core_ib::Instant,
) -> usize {
    let queue = hca.cq(cq).unwrap();
    let mut come = 0;
    while come != done.load(Ordering::Acquire) {
        if hca.check().is_ok() {
            queue.req_notify(NotifyKind::Any).unwrap();
        }
        while !hca.take_cq_event(cq) {
            if !bell.wait_until(deadline) {
                return come;
            }
            if come == done.load(Ordering::Acquire) {
                return come;
            }
        }
        let mut some = [WorkCompletion::EMPTY; 256];
        loop {
            match queue.poll(&mut some).unwrap() {
                0 => break,
                count => come += count,
            }
        }
    }
    come
}

#[test]
fn what_is_posted_while_others_find_the_hca_gone_completes_without_being_asked_for() {
    const BEGIN: core_ib::Instant = core_ib::Instant(6_000_000_000);
    for seed in 0..60 {
        let config = WorldConfig {
            seed,
            // A processor is taken away often, so that much happens between two stores of a list.
            stalls: 200_000,
            stall: Duration::from_micros(5),
            ..WorldConfig::default()
        };
        let mut world = World::with(config, Nowhere);
        let config = Config {
            command_time: Duration::from_nanos(500),
            ..card(1)
        };
        let host = world.add_host("host-a", Box::new(InfiniHost::new(config)), &[]);
        let task = world.spawn(host, "driver", move |machine| {
            let bell = Bell(machine.completion().unwrap());
            // Commands are polled, so that the next one finds out.
            let profile = Profile {
                interrupts: Interrupts::None,
                ..Profile::SMALL
            };
            let hca = Hca::open(machine, &bell, &profile).unwrap();
            let pd = hca.alloc_pd().unwrap();
            let cq_init = CqInit {
                cqe: 255,
                vector: 0,
                owner: Owner::Kernel,
            };
            let cq = hca.create_cq(&cq_init).unwrap().handle;
            let caps = QpCaps {
                max_send_wr: 255,
                ..CAPS
            };
            let init = QpInit {
                caps,
                ..qp_init(QpType::Ud, cq)
            };
            let ud = hca.create_qp(pd, &init).unwrap().handle;
            lead(&hca, ud, QpType::Ud, QpState::Rts);
            let ah = hca.create_ah(pd, &to_self()).unwrap();
            let op = SendOp::Datagram {
                ah,
                remote_qpn: Qpn::new(1),
                remote_qkey: QKey(0),
                imm: None,
                pkey_index: 0,
            };
            let taken = AtomicUsize::new(usize::MAX);
            machine.sleep(BEGIN.since(machine.now()));
            machine.scope(|scope| {
                let (hca, taken, bell) = (&hca, &taken, &bell);
                scope.spawn("poster", move |machine| {
                    let count = post_to_the_end(machine, hca, ud, op);
                    taken.store(count, Ordering::Release);
                    bell.wake();
                });
                scope.spawn("watcher", move |_| {
                    while hca.query_qp(ud).is_ok() {
                        hca.poll_events();
                    }
                });
                scope.spawn("reaper", move |machine| {
                    let deadline = machine.now().after(Duration::from_secs(1));
                    let come = take_when_told(&bell.0, hca, cq, taken, deadline);
                    let taken = taken.load(Ordering::Acquire);
                    assert_eq!(come, taken, "seed {seed}: what came of itself");
                });
            });
            hca.destroy_ah(ah).unwrap();
            hca.destroy_qp(ud).unwrap();
            hca.destroy_cq(cq).unwrap();
            hca.dealloc_pd(pd).unwrap();
            hca.close().map_err(|(_, busy)| busy).unwrap();
        });
        world.run_for(Duration::from_nanos(BEGIN.0 + 20_000 + seed * 211));
        world.remove_function(host).unwrap();
        world
            .finish(task)
            .unwrap_or_else(|stuck| panic!("seed {seed}: {stuck}"));
        world.check_leaks(host);
    }
}

// Scheduling.

#[test]
fn control_calls_of_several_contexts_at_once_give_what_some_order_gives() {
    for seed in 0..12 {
        let config = Config {
            command_time: Duration::from_micros(50),
            ..card(1)
        };
        let (mut world, host) = world(seed, config);
        let task = world.spawn(host, "driver", |machine| {
            let profile = Profile {
                interrupts: Interrupts::Messages,
                ..Profile::SMALL
            };
            let hca = Hca::open(machine, &NoWake, &profile).unwrap();
            let pd = hca.alloc_pd().unwrap();
            let cq = cq(&hca);
            machine.scope(|scope| {
                for number in 0..4 {
                    let hca = &hca;
                    scope.spawn(format!("user {number}"), move |_| {
                        for _ in 0..6 {
                            let ud = qp(hca, pd, QpType::Ud, cq).handle;
                            lead(hca, ud, QpType::Ud, QpState::Rts);
                            let ah = hca.create_ah(pd, &to_self()).unwrap();
                            hca.destroy_ah(ah).unwrap();
                            hca.destroy_qp(ud).unwrap();
                        }
                    });
                }
                let hca = &hca;
                scope.spawn("poller", move |machine| {
                    for _ in 0..50 {
                        let mut some = [WorkCompletion::EMPTY; 4];
                        assert_eq!(hca.cq(cq).unwrap().poll(&mut some), Ok(0));
                        hca.poll_events();
                        machine.sleep(Duration::from_micros(70));
                    }
                });
            });
            hca.destroy_cq(cq).unwrap();
            hca.dealloc_pd(pd).unwrap();
            hca.close().map_err(|(_, busy)| busy).unwrap();
        });
        world
            .finish(task)
            .unwrap_or_else(|stuck| panic!("seed {seed}: {stuck}"));
        world.check_leaks(host);
    }
}
