//! A driver on a liar, and a user of it.

use super::{Liar, Lies};
use core::time::Duration;
use core_ib::platform::{DmaBuf, LetGo, NoWake, Platform};
use core_ib::verbs::{
    Access, AhAttr, CompletionQueue, CqInit, Device, FmrInit, MadFlags, MrInit, MwKind, NotifyKind,
    Owner, PdHandle, QpAttr, QpAttrMask as M, QpCaps, QpHandle, QpInit, QpState, QpType, QueuePair,
    RecvWr, SendFlags, SendOp, SendWr, Sge, Signaling, Verbs, VerbsError, WorkCompletion,
};
use core_ib::wire::mad::{AttributeId, Mad, Method, PortInfo, PortPhysState, PortState, Smp};
use core_ib::{Gid, Lid, QKey, Qpn};
use mthca_hw::{Hca, Interrupts, Profile};
use platform_sim::hca::infinihost::Variant;
use platform_sim::machine::{
    Cable, Config as WorldConfig, LinkParameters, OnReport, Report, SimPlatform, WireEnd, World,
};
use std::collections::BTreeMap;

/// Waits are short: what is not there after them does not come.
const PATIENCE: Duration = Duration::from_millis(5);

fn profile(interrupts: Interrupts) -> Profile {
    Profile {
        interrupts,
        command_limit: Duration::from_millis(10),
        interrupt_test: Duration::from_millis(2),
        error_poll: Duration::from_millis(50),
        mws: 1,
        fmrs: 1,
        users: 1,
        ..Profile::SMALL
    }
}

/// A QP and its number.
type QpNamed = (QpHandle, Qpn);

/// Work requests that are outstanding, by number, and the number of the QP that each was given to.
#[derive(Default)]
struct Outstanding {
    requests: BTreeMap<u64, Qpn>,
    next: u64,
}

impl Outstanding {
    fn add(&mut self, qp: QpNamed) -> u64 {
        self.next += 1;
        self.requests.insert(self.next, qp.1);
        self.next
    }

    /// What completes was outstanding, and is not any more.
    fn complete(&mut self, wc: &WorkCompletion) {
        let request = self.requests.remove(&wc.wr_id);
        let qpn = request.unwrap_or_else(|| panic!("nobody waits for {wc:?}"));
        assert_eq!(wc.qpn, qpn, "{wc:?}");
    }
}

/// Does with an HCA what users do, until something fails.
fn use_it(
    machine: &SimPlatform,
    hca: &Hca<'_, SimPlatform>,
    memory: &DmaBuf<'_, SimPlatform>,
) -> Result<(), VerbsError> {
    let pd = hca.alloc_pd()?;
    let owner = Owner::Kernel;
    let cq_init = CqInit {
        cqe: 63,
        vector: 0,
        owner,
    };
    let cq = hca.create_cq(&cq_init)?.handle;
    let mr_init = MrInit {
        iova: 0x10_0000,
        length: 4096,
        pages: &[memory.addr()],
        page_shift: 12,
        access: Access::LOCAL_WRITE,
    };
    // SAFETY: the memory outlives the HCA, and is read and written meanwhile as it likes.
    let mr = unsafe { hca.reg_mr(pd, &mr_init) }?;
    let qp = |service, port| {
        let caps = QpCaps {
            max_send_wr: 15,
            max_recv_wr: 15,
            max_send_sge: 2,
            max_recv_sge: 2,
            max_inline: 0,
        };
        let signaling = Signaling::All;
        let init = QpInit {
            qp_type: service,
            port,
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            caps,
            signaling,
            owner,
        };
        let qp = hca.create_qp(pd, &init)?;
        let special = service == QpType::Smi;
        let mask = if special { M::empty() } else { M::PORT };
        let qkey = if special { QKey(0) } else { QKey(7) };
        let attr = QpAttr {
            port,
            qkey,
            ..QpAttr::EMPTY
        };
        let steps = [
            (QpState::Init, mask | M::PKEY_INDEX | M::QKEY),
            (QpState::Rtr, M::empty()),
            (QpState::Rts, M::SQ_PSN),
        ];
        for (state, mask) in steps {
            hca.modify_qp(qp.handle, &QpAttr { state, ..attr }, mask | M::STATE)?;
        }
        Ok::<QpNamed, VerbsError>((qp.handle, qp.qpn))
    };
    let smis = [qp(QpType::Smi, 1)?, qp(QpType::Smi, 2)?];
    let deadline = machine.now().after(PATIENCE);
    while hca.query_port(1)?.state < 2 && machine.now() < deadline {
        machine.sleep(PATIENCE / 50);
    }
    set_port(hca, 1)?;
    set_port(hca, 2)?;
    let ends = [qp(QpType::Ud, 1)?, qp(QpType::Ud, 2)?];
    let ah = hca.create_ah(
        pd,
        &AhAttr {
            port: 1,
            dlid: Lid(2),
            ..AhAttr::default()
        },
    )?;
    let mut group = Gid([0; 16]);
    (group.0[0], group.0[1]) = (0xff, 0x12);
    hca.attach_mcast(ends[1].0, group, Lid(0xc001))?;
    let sges = [Sge {
        addr: 0x10_0000,
        length: 400,
        lkey: mr.lkey,
    }];
    let mut outstanding = Outstanding::default();
    for round in 0..30 {
        for _ in 0..3 {
            let wr_id = outstanding.add(ends[1]);
            if hca
                .qp(ends[1].0)?
                .post_recv(&[RecvWr { wr_id, sges: &sges }])
                .is_err()
            {
                outstanding.requests.remove(&wr_id);
            }
            let wr_id = outstanding.add(ends[0]);
            let remote = ends[1].1;
            let op = SendOp::Datagram {
                ah,
                remote_qpn: remote,
                remote_qkey: QKey(7),
                imm: None,
                pkey_index: 0,
            };
            let send = SendWr {
                wr_id,
                op,
                sges: &sges,
                inline: &[],
                flags: SendFlags::SOLICITED,
            };
            if hca
                .qp(ends[0].0)?
                .post_send(&[SendWr {
                    sges: &[Sge {
                        length: 100,
                        ..sges[0]
                    }],
                    ..send
                }])
                .is_err()
            {
                outstanding.requests.remove(&wr_id);
            }
        }
        hca.cq(cq)?.req_notify(NotifyKind::Any)?;
        machine.sleep(PATIENCE / 100);
        hca.poll_events();
        let mut some = [WorkCompletion::EMPTY; 16];
        let count = hca.cq(cq)?.poll(&mut some)?;
        some.iter()
            .take(count)
            .for_each(|wc| outstanding.complete(wc));
        let _ = hca.take_cq_event(cq);
        while hca.next_async_event().is_some() {}
        match round {
            10 => drop(hca.resize_cq(cq, 100)),
            15 => use_keys(hca, pd, memory)?,
            20 => drop(hca.query_qp(ends[0].0)),
            _ => {}
        }
    }
    hca.detach_mcast(ends[1].0, group, Lid(0xc001))?;
    for (qp, _) in ends.into_iter().chain(smis) {
        hca.destroy_qp(qp)?;
    }
    hca.destroy_ah(ah)?;
    hca.dereg_mr(mr.handle)?;
    hca.destroy_cq(cq)?;
    hca.dealloc_pd(pd)
}

/// Windows, fast regions and contexts come and go.
fn use_keys(
    hca: &Hca<'_, SimPlatform>,
    pd: PdHandle,
    memory: &DmaBuf<'_, SimPlatform>,
) -> Result<(), VerbsError> {
    let (window, key) = hca.alloc_mw(pd, MwKind::Type1)?;
    assert_eq!(hca.mw_rkey(window), Ok(key));
    let init = FmrInit {
        max_pages: 1,
        max_maps: 3,
        page_shift: 12,
        access: Access::LOCAL_WRITE,
    };
    let fast = hca.alloc_fmr(pd, &init)?;
    for iova in [0x1000, 0x5000, 0x9000] {
        // SAFETY: the memory outlives the HCA, and is read and written meanwhile as it likes.
        unsafe { hca.map_fmr(fast, &[memory.addr()], iova) }?;
    }
    hca.unmap_fmrs(&[fast])?;
    hca.dealloc_fmr(fast)?;
    hca.dealloc_mw(window)?;
    let user = hca.alloc_user()?;
    hca.user_doorbell_page(user)?;
    hca.dealloc_user(user)
}

/// What a subnet manager does with a port, by the HCA's own agent.
fn set_port(hca: &Hca<'_, SimPlatform>, port: u8) -> Result<(), VerbsError> {
    let modifier = PortInfo::modifier(port);
    let mut smp = Smp::lid_routed(Method::GET, AttributeId::PORT_INFO, modifier);
    let ask = |smp: &Smp| {
        let (mut request, mut response) = (Mad::ZERO, [0; 256]);
        let _ = request.set_front(smp);
        hca.process_mad(port, MadFlags::empty(), None, &request.0, &mut response)?;
        Ok::<Mad, VerbsError>(Mad(response))
    };
    let Ok(mut info) = ask(&smp)?.get::<PortInfo>() else {
        return Ok(());
    };
    (info.lid, info.master_sm_lid) = (Lid(port.into()), Lid(1));
    info.phys_state = PortPhysState::NO_CHANGE;
    smp.header.method = Method::SET;
    for state in [PortState::NO_CHANGE, PortState::ARMED, PortState::ACTIVE] {
        info.state = state;
        let _ = smp.put(&info);
        ask(&smp)?;
    }
    Ok(())
}

/// One life of a driver on a liar: it is opened, used and closed. Gives what the machine reports, whether the HCA was
/// opened, and how many lies were told.
///
/// # Panics
///
/// If the driver does, if it never ends, or if it completes what nobody waits for.
pub fn live(liar: Liar, seed: u64, interrupts: Interrupts) -> (Vec<Report>, bool, u64) {
    let (reports, used, told) = live_as(liar, seed, interrupts, |machine, hca, memory| {
        let _ = use_it(machine, hca, memory);
    });
    (reports, used.is_some(), told)
}

/// As [`live`], but it is a whole host. Gives how many packets came, if its HCA and it were opened and nothing failed.
///
/// # Panics
///
/// If the driver or the stack does, if it never ends, or if it shows more than a packet can be.
pub fn live_as_host(
    liar: Liar,
    seed: u64,
    interrupts: Interrupts,
) -> (Vec<Report>, Option<u32>, u64) {
    let (reports, came, told) = live_as(liar, seed, interrupts, |machine, hca, _| {
        super::stack::host_it(machine, hca).ok()
    });
    (reports, came.flatten(), told)
}

type User<T> = fn(&SimPlatform, &Hca<'_, SimPlatform>, &DmaBuf<'_, SimPlatform>) -> T;

fn live_as<T: Send + 'static>(
    liar: Liar,
    seed: u64,
    interrupts: Interrupts,
    user: User<T>,
) -> (Vec<Report>, Option<T>, u64) {
    let config = WorldConfig {
        seed,
        on_report: OnReport::Collect,
        stack_budget: None,
        // A pin that never falls keeps its machine busy: not too busy for a test.
        interrupt_latency: Duration::from_micros(40),
        ..WorldConfig::default()
    };
    let cable = Cable::new(LinkParameters::X4_SDR, Duration::from_nanos(50));
    let mut world = World::with(config, cable);
    let comes_back = !liar.mind.lies.never_back;
    let host = world.add_host("victim", Box::new(liar), &[WireEnd(0), WireEnd(1)]);
    let task = world.spawn(host, "driver", move |machine| {
        let memory = DmaBuf::new(machine, 4096, 4096).ok()?;
        let hca = Hca::open(machine, &NoWake, &profile(interrupts));
        let mut used = None;
        if let Ok(hca) = hca {
            used = Some(user(machine, &hca, &memory));
            if let Err((hca, _)) = hca.close() {
                drop(hca);
            }
        }
        if comes_back {
            // SAFETY: the HCA was reset or closed.
            memory.free(unsafe { LetGo::claim() });
        }
        used
    });
    let used = world.finish(task).unwrap_or_else(|stuck| panic!("{stuck}"));
    world.check_leaks(host);
    let told = world.with_model::<Liar, _>(host, |liar, _| liar.told());
    (world.take_reports(), used, told.unwrap_or(0))
}

/// A driver on a liar whose lies are `bytes`. Nothing panics, and everything ends.
pub fn drive_untrusted(bytes: &[u8]) {
    let parts = 1; // any: the book says when
    let lies = Lies {
        entries: parts,
        answers: parts,
        reads: parts,
        registers: parts,
        silence: parts,
        storm: parts,
        ..Lies::default()
    };
    let (kind, bytes) = bytes.split_first().unwrap_or((&0, &[]));
    let interrupts = match kind % 3 {
        0 => Interrupts::Messages,
        1 => Interrupts::Pin,
        _ => Interrupts::None,
    };
    let variant = if kind & 0x80 == 0 {
        Variant::Tavor
    } else {
        Variant::Arbel
    };
    live(Liar::by_the_book(variant, lies, bytes), 1, interrupts);
}
