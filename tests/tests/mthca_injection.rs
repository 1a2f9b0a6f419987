//! Failure injection: the first, second, third … firmware command, and the first, second, third … piece of memory,
//! mapping or interrupt that the driver asks its machine for, fails once: while the HCA comes up and goes down, while an
//! object of each kind is made and ended, and with the HCA dead in the end or not. Afterwards the machine has back what
//! it gave, the HCA holds what it held, and a second attempt works. On each variant that the driver drives.

#[path = "injection/bench.rs"]
mod bench;
#[path = "injection/kinds.rs"]
mod kinds;

use bench::{Bench, FAULTS, Fault, Snapshot, open};
use core::time::Duration;
use core_ib::Guid;
use core_ib::platform::NoWake;
use core_ib::verbs::{CqInit, Device, Owner, QpType, VerbsError};
use hca_abi::infinihost::cmd::{CmdStatus, Opcode};
use kinds::KINDS;
use mthca_hw::{Hca, Interrupts, Profile};
use openib_tests::conformance::tools::{MGID, MLID, qp_init};
use platform_sim::hca::infinihost::{CommandFault, Config, InfiniHost, Variant};
use platform_sim::machine::{self, Nowhere, SimPlatform, World};

/// Runs `f` on the only host of a world.
fn alone(variant: Variant, f: impl FnOnce(&SimPlatform) + Send + 'static) {
    let config = machine::Config {
        seed: 1,
        patience: Duration::from_secs(1 << 20),
        ..machine::Config::default()
    };
    let mut world = World::with(config, Nowhere);
    let card = Config::of(variant, Guid(0x0002_c900_0000_0100));
    let host = world.add_host("host-a", Box::new(InfiniHost::new(card)), &[]);
    let task = world.spawn(host, "driver", f);
    world.finish(task).unwrap_or_else(|stuck| panic!("{stuck}"));
    world.check_leaks(host);
}

/// The HCA is brought up, and down again.
fn up_and_down(machine: &SimPlatform, interrupts: Interrupts) -> Result<(), String> {
    let hca = open(machine, interrupts)?;
    let pd = hca.alloc_pd().map_err(|error| error.to_string())?;
    hca.dealloc_pd(pd).map_err(|error| error.to_string())?;
    hca.close().map_err(|(_, error)| error.to_string())
}

fn bring_up_and_teardown(variant: Variant) {
    for interrupts in [Interrupts::Messages, Interrupts::Pin, Interrupts::None] {
        alone(variant, move |machine| {
            let (mut tried, mut failed) = (0, 0);
            let fresh = Snapshot::of(machine);
            for fault in FAULTS {
                let before = fault.count(machine);
                up_and_down(machine, interrupts).unwrap();
                assert_eq!(Snapshot::of(machine), fresh, "without a failure");
                for n in 1..=fault.count(machine) - before {
                    fault.arm(machine, n);
                    let outcome = up_and_down(machine, interrupts);
                    let hit = fault.disarm(machine);
                    let what = format!("{interrupts:?}, {fault:?} {n}, {hit:?}: {outcome:?}");
                    (tried, failed) = (tried + 1, failed + u32::from(outcome.is_err()));
                    let after = Snapshot::of(machine);
                    assert_eq!(after.of_the_machine(), fresh.of_the_machine(), "{what}");
                    assert!(!after.holdings.running, "{what}");
                    up_and_down(machine, interrupts).expect(&what);
                    assert_eq!(Snapshot::of(machine), fresh, "{what}, second attempt");
                }
            }
            eprintln!("{variant:?} {interrupts:?}: {tried} failures, {failed} told to the caller");
        });
    }
}

/// The commands that take back what the HCA was lent, as far as they are part of making something.
const TAKES_BACK: [Opcode; 2] = [Opcode::HW2SW_MPT, Opcode::ERR2RST_QPEE];

/// An object of each kind, on an HCA that lives on.
fn objects_that_are_refused(variant: Variant) {
    alone(variant, |machine| {
        let fresh = Snapshot::of(machine);
        let mut bench = Bench::new(machine);
        let mut tried = 0;
        for kind in KINDS {
            let clean = bench.snapshot();
            for fault in FAULTS.iter().filter(|fault| !fault.kills()) {
                let before = fault.count(machine);
                let made = (kind.make)(&bench).unwrap();
                let chances = fault.count(machine) - before;
                (kind.end)(&bench, made).unwrap();
                assert_eq!(bench.snapshot(), clean, "{} without a failure", kind.name);
                for n in 1..=chances {
                    fault.arm(machine, n);
                    let outcome = (kind.make)(&bench);
                    let hit = fault.disarm(machine);
                    let what = format!("{}, {fault:?} {n}, {hit:?}", kind.name);
                    tried += 1;
                    let taken = hit.is_some_and(|opcode| TAKES_BACK.contains(&opcode));
                    if taken && bench.hca().check() == Err(VerbsError::DeviceFailed) {
                        // What it does not give back it may still use: it counts as failed, and a reset mends that.
                        bench.end_with_all();
                        assert_eq!(Snapshot::of(machine), fresh, "{what}");
                        bench = Bench::new(machine);
                        continue;
                    }
                    match outcome {
                        // A port that does not come up with its QP0 is told to the log: another port may.
                        Ok(made) if hit == Some(Opcode::INIT_IB) => {
                            (kind.end)(&bench, made).expect(&what)
                        }
                        Ok(made) => panic!("{what}: {made:?} was made all the same"),
                        Err(error) => fault.is_told_by(error, &what),
                    }
                    assert_eq!(bench.hca().check(), Ok(()), "{what}");
                    assert_eq!(bench.snapshot(), clean, "{what}");
                    let made = (kind.make)(&bench).expect(&what);
                    (kind.end)(&bench, made).expect(&what);
                    assert_eq!(bench.snapshot(), clean, "{what}, second attempt");
                }
            }
        }
        bench.end();
        eprintln!("{tried} failures while objects were made");
    });
}

/// The same where the HCA does not live on, and where it is the end of an object that goes wrong: everything can be
/// ended, the HCA is closed, and what is opened anew works.
fn objects_whose_hca_dies(variant: Variant) {
    alone(variant, |machine| {
        let mut tried = 0;
        let fresh = Snapshot::of(machine);
        for kind in KINDS {
            for fault in FAULTS {
                let bench = Bench::new(machine);
                let before = fault.count(machine);
                let made = (kind.make)(&bench).unwrap();
                let to_make = fault.count(machine) - before;
                (kind.end)(&bench, made).unwrap();
                let all = fault.count(machine) - before;
                bench.end();
                let first = if fault.kills() { 1 } else { to_make + 1 };
                for n in first..=all {
                    let bench = Bench::new(machine);
                    fault.arm(machine, n);
                    let outcome = (kind.make)(&bench).map(|made| (kind.end)(&bench, made));
                    let hit = fault.disarm(machine);
                    let what = format!("{}, {fault:?} {n}, {hit:?}: {outcome:?}", kind.name);
                    tried += 1;
                    if fault.kills() && matches!(outcome, Err(_) | Ok(Err(_))) {
                        let check = bench.hca().check();
                        assert_eq!(check, Err(VerbsError::DeviceFailed), "{what}");
                    }
                    bench.end_with_all();
                    let after = Snapshot::of(machine);
                    assert_eq!(after.of_the_machine(), fresh.of_the_machine(), "{what}");
                    assert_eq!(after.holdings, fresh.holdings, "{what}");
                    let bench = Bench::new(machine);
                    let made = (kind.make)(&bench).expect(&what);
                    (kind.end)(&bench, made).expect(&what);
                    bench.end();
                    assert_eq!(Snapshot::of(machine), fresh, "{what}, second attempt");
                }
            }
        }
        eprintln!("{tried} failures that may end the HCA");
    });
}

/// A test of each for a variant.
macro_rules! variants {
    ($($name:ident: $variant:expr),* $(,)?) => { $(mod $name {
        use super::*;

        #[test]
        fn whatever_fails_once_while_the_hca_comes_up_or_goes_down_leaves_no_trace() {
            bring_up_and_teardown($variant);
        }

        #[test]
        fn an_object_that_cannot_be_made_leaves_no_trace() {
            objects_that_are_refused($variant);
        }

        #[test]
        fn an_hca_that_dies_of_an_object_gives_everything_back() {
            objects_whose_hca_dies($variant);
        }
    })* };
}

variants! {
    tavor: Variant::Tavor,
    arbel_compat: Variant::ArbelCompat,
    arbel: Variant::Arbel,
    sinai: Variant::Sinai,
    sinai_old: Variant::SinaiOld,
}

/// The test above is one of the injection, too: that a failure was asked for is not that it came.
#[test]
fn every_fault_is_one_that_the_driver_meets() {
    alone(Variant::Tavor, |machine| {
        for fault in FAULTS {
            let before = fault.count(machine);
            let bench = Bench::new(machine);
            for kind in KINDS {
                let made = (kind.make)(&bench).unwrap();
                (kind.end)(&bench, made).unwrap();
            }
            bench.end();
            assert!(fault.count(machine) > before, "{fault:?} never comes");
        }
        let nth = Fault::Command(CommandFault::Silent);
        nth.arm(machine, 1);
        let hca = Hca::open(machine, &NoWake, &bench::PROFILE);
        assert!(hca.is_err() && nth.disarm(machine).is_some());
    });
}

/// A group whose bucket is taken has an entry of the overflow, which is chained last: if that fails it is free again.
#[test]
fn a_group_that_could_not_be_chained_takes_no_entry() {
    for variant in [Variant::Tavor, Variant::Arbel] {
        alone(variant, |machine| {
            let profile = Profile {
                mcast_groups: 1,
                ..bench::PROFILE
            };
            let hca = Hca::open(machine, &NoWake, &profile).unwrap();
            let pd = hca.alloc_pd().unwrap();
            let init = CqInit {
                cqe: 15,
                vector: 0,
                owner: Owner::Kernel,
            };
            let cq = hca.create_cq(&init).unwrap().handle;
            let qp = hca.create_qp(pd, &qp_init(QpType::Ud, cq)).unwrap().handle;
            let group = |last: u8| {
                let mut gid = MGID;
                gid.0[15] = last;
                gid
            };
            hca.attach_mcast(qp, group(1), MLID).unwrap();
            // MGID_HASH, READ_MGM, WRITE_MGM of the new entry, and of the one before it.
            let fault = Fault::Command(CommandFault::Refused(CmdStatus::INTERNAL_ERR));
            fault.arm(machine, 4);
            assert!(hca.attach_mcast(qp, group(2), MLID).is_err());
            assert_eq!(fault.disarm(machine), Some(Opcode::WRITE_MGM));
            assert_eq!(hca.attach_mcast(qp, group(2), MLID), Ok(()));
            let full = hca.attach_mcast(qp, group(3), MLID);
            assert!(
                matches!(full, Err(VerbsError::NoResources { .. })),
                "{full:?}"
            );
            for last in [2, 1] {
                hca.detach_mcast(qp, group(last), MLID).unwrap();
            }
            hca.destroy_qp(qp).unwrap();
            hca.destroy_cq(cq).unwrap();
            hca.dealloc_pd(pd).unwrap();
            hca.close().map_err(|(_, error)| error).unwrap();
        });
    }
}
