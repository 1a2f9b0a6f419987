//! Profiles of every shape, on each variant that the driver drives: one either does not fit, which is said by naming its
//! entry before the HCA is touched, or there are as many objects of each kind as it says and not one more.

use core::cell::Cell;
use core::time::Duration;
use core_ib::platform::NoWake;
use core_ib::verbs::{
    Access, AhAttr, CqInit, Device, FmrInit, MwKind, Owner, QpCaps, QpInit, QpType, Signaling,
    SrqInit, VerbsError,
};
use core_ib::{Guid, Lid};
use mthca_hw::{AvPlace, Hca, Interrupts, OpenCause, Profile};
use platform_sim::hca::infinihost::{Config, InfiniHost, Variant};
use platform_sim::machine::{self, Nowhere, SimPlatform, World};
use proptest::prelude::*;
use proptest::test_runner::{Config as Cases, TestRunner};

/// Profiles that each variant sees.
const CASES: u32 = 120;

/// A count of one kind of object: few, none, and far too many.
fn count() -> impl Strategy<Value = u32> {
    prop_oneof![
        40 => 1..9_u32,
        20 => 9..70_u32,
        1 => Just(0),
        1 => (7..32_u32, -1..2_i32).prop_map(|(log, more)| (1_u32 << log).wrapping_add_signed(more)),
        1 => Just(u32::MAX),
    ]
}

fn choices() -> impl Strategy<Value = (AvPlace, Interrupts, u16, u8)> {
    (
        prop_oneof![Just(AvPlace::AttachedMemory), Just(AvPlace::HostMemory)],
        prop_oneof![
            Just(Interrupts::Messages),
            Just(Interrupts::Pin),
            Just(Interrupts::None)
        ],
        prop_oneof![30 => 1..17_u16, 1 => Just(0), 1 => 17..20_u16],
        prop_oneof![30 => 1..33_u8, 1 => Just(0), 1 => 33..=255_u8],
    )
}

fn profile() -> impl Strategy<Value = Profile> {
    let objects = prop::array::uniform9(count());
    // Mostly enough for what is made below, so that an entry of objects is what ends it.
    let shared = prop::array::uniform5(prop_oneof![12 => Just(1_u32 << 13), 1 => count()]);
    (objects, shared, choices()).prop_map(|(objects, shared, choices)| {
        let [qps, cqs, srqs, mrs, mws, fmrs, users, pds, ahs] = objects;
        let [mtt_pages, work_requests, groups, depth, events] = shared;
        let (address_vectors, interrupts, completion_vectors, commands) = choices;
        Profile {
            qps,
            cqs,
            srqs,
            mrs,
            mws,
            fmrs,
            users,
            pds,
            ahs,
            mtt_pages,
            work_requests,
            mcast_groups: if groups == 1 << 13 { 64 } else { groups },
            responder_depth: if depth == 1 << 13 { 4 } else { depth },
            event_entries: if events == 1 << 13 { 64 } else { events },
            completion_vectors,
            commands,
            command_limit: Duration::from_secs(5),
            address_vectors,
            interrupts,
            ..Profile::SMALL
        }
    })
}

/// Makes objects until none can be made any more, which must be for this entry, or for one that several kinds share, and
/// then as many as there were to be; or for none at all if the HCA does not have the kind.
fn exhaust<T>(
    entry: &str,
    limit: u32,
    mut make: impl FnMut() -> Result<T, VerbsError>,
) -> Result<Vec<T>, TestCaseError> {
    const SHARED: [&str; 3] = ["mtt_pages", "work_requests", "mrs"];
    let mut made = Vec::new();
    loop {
        match make() {
            Ok(one) => made.push(one),
            Err(VerbsError::NoResources { entry: found, .. }) => {
                let enough = found != entry || made.len() == limit as usize;
                let known = found == entry || SHARED.contains(&found);
                prop_assert!(known && enough, "{entry}: {found} after {}", made.len());
                return Ok(made);
            }
            Err(error) => {
                let none = limit == 0
                    || match error {
                        VerbsError::Unsupported { .. } => true,
                        // A queue that is longer than all places together.
                        VerbsError::InvalidAttr { found, allowed, .. } => {
                            found > allowed && allowed == 0
                        }
                        _ => false,
                    };
                prop_assert!(
                    none && made.is_empty(),
                    "{entry}: {error:?} after {}",
                    made.len()
                );
                return Ok(made);
            }
        }
        prop_assert!(made.len() <= limit as usize, "more than {limit} {entry}");
        // Thousands of them show nothing more.
        if made.len() == 200 {
            return Ok(made);
        }
    }
}

fn fill(hca: &Hca<'_, SimPlatform>, profile: &Profile) -> Result<(), TestCaseError> {
    let fail = |error: VerbsError| TestCaseError::fail(format!("{error:?}"));
    let pds = exhaust("pds", profile.pds, || hca.alloc_pd())?;
    let pd = *pds.first().ok_or_else(|| TestCaseError::fail("no PD"))?;
    let ah = AhAttr {
        port: 1,
        dlid: Lid(1),
        ..AhAttr::default()
    };
    let ahs = exhaust("ahs", profile.ahs, || hca.create_ah(pd, &ah))?;
    let users = exhaust("users", profile.users, || hca.alloc_user())?;
    let init = FmrInit {
        max_pages: 2,
        max_maps: 4,
        page_shift: 12,
        access: Access::LOCAL_WRITE,
    };
    let fmrs = exhaust("fmrs", profile.fmrs, || hca.alloc_fmr(pd, &init))?;
    let mws = exhaust("mws", profile.mws, || hca.alloc_mw(pd, MwKind::Type1))?;
    let init = CqInit {
        cqe: 7,
        vector: 0,
        owner: Owner::Kernel,
    };
    let cqs = exhaust("cqs", profile.cqs, || hca.create_cq(&init))?;
    let caps = QpCaps {
        max_send_wr: 1,
        max_recv_wr: 1,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline: 0,
    };
    let srq = SrqInit {
        pd,
        max_wr: 1,
        max_sge: 1,
        owner: Owner::Kernel,
    };
    let srqs = exhaust("srqs", profile.srqs, || hca.create_srq(&srq))?;
    let mut qps = Vec::new();
    if let Some(cq) = cqs.first() {
        let init = QpInit {
            qp_type: QpType::Rc,
            port: 1,
            send_cq: cq.handle,
            recv_cq: cq.handle,
            srq: None,
            caps,
            signaling: Signaling::All,
            owner: Owner::Kernel,
        };
        qps = exhaust("qps", profile.qps, || hca.create_qp(pd, &init))?;
    }
    for qp in qps {
        hca.destroy_qp(qp.handle).map_err(fail)?;
    }
    for srq in srqs {
        hca.destroy_srq(srq.handle).map_err(fail)?;
    }
    for cq in cqs {
        hca.destroy_cq(cq.handle).map_err(fail)?;
    }
    for (mw, _) in mws {
        hca.dealloc_mw(mw).map_err(fail)?;
    }
    for fmr in fmrs {
        hca.dealloc_fmr(fmr).map_err(fail)?;
    }
    for user in users {
        hca.dealloc_user(user).map_err(fail)?;
    }
    for ah in ahs {
        hca.destroy_ah(ah).map_err(fail)?;
    }
    for pd in pds {
        hca.dealloc_pd(pd).map_err(fail)?;
    }
    Ok(())
}

fn try_profile(machine: &SimPlatform, profile: &Profile) -> Result<bool, TestCaseError> {
    let hca = match Hca::open(machine, &NoWake, profile) {
        Ok(hca) => hca,
        Err(error) => {
            // What its own queues need of what all share is seen when they are made.
            let named = matches!(
                error.cause,
                OpenCause::Profile(_) | OpenCause::Query(VerbsError::NoResources { .. })
            );
            prop_assert!(named, "{error}");
            return Ok(false);
        }
    };
    fill(&hca, profile)?;
    let closed = hca.close();
    prop_assert!(closed.is_ok(), "objects are left");
    Ok(true)
}

fn every_profile(variant: Variant) {
    let config = machine::Config {
        seed: 1,
        patience: Duration::from_secs(1 << 30),
        ..machine::Config::default()
    };
    let mut world = World::with(config, Nowhere);
    let card = Config::of(variant, Guid(0x0002_c900_0000_0100));
    let host = world.add_host("host-a", Box::new(InfiniHost::new(card)), &[]);
    let task = world.spawn(host, "driver", move |machine: &SimPlatform| {
        let opened = Cell::new(0_u32);
        let cases = Cases {
            cases: CASES,
            failure_persistence: None,
            ..Cases::default()
        };
        let outcome = TestRunner::new(cases).run(&profile(), |profile| {
            let before = machine.memory_in_use();
            let opens = try_profile(machine, &profile)?;
            opened.set(opened.get() + u32::from(opens));
            prop_assert_eq!(machine.memory_in_use(), before);
            Ok(())
        });
        outcome.unwrap_or_else(|failure| panic!("{failure}"));
        let opened = opened.get();
        assert!(opened > CASES / 10, "{opened} of {CASES} profiles fit");
    });
    world.finish(task).unwrap_or_else(|stuck| panic!("{stuck}"));
    world.check_leaks(host);
}

#[test]
fn on_a_tavor() {
    every_profile(Variant::Tavor);
}

#[test]
fn on_an_arbel_that_is_compatible() {
    every_profile(Variant::ArbelCompat);
}

#[test]
fn on_an_arbel() {
    every_profile(Variant::Arbel);
}

#[test]
fn on_a_sinai() {
    every_profile(Variant::Sinai);
}

#[test]
fn on_an_older_sinai() {
    every_profile(Variant::SinaiOld);
}
