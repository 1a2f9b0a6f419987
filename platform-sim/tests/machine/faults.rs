//! Faults of the machine.

use super::*;
use core_ib::Instant;
use core_ib::platform::{PlatformError, Table};
use platform_sim::machine::{Fallible, LinkControl, Outcome, PciFunction, Wire};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

#[test]
fn a_device_that_is_taken_out_reads_as_all_ones() {
    let (mut world, host) = world(Config::default());
    let task = world.spawn(host, "driver", |machine| {
        let registers = registers(machine);
        let mut good = 0_u32;
        loop {
            if registers.read_be32(0) == !0 {
                registers.write_be32(0, 1);
                return (good, machine.config_read32(0), machine.bar_len(0));
            }
            good += 1;
            machine.sleep(Duration::from_millis(1));
        }
    });
    world.run_for(Duration::from_millis(10));
    let gone = world.remove_function(host).unwrap();
    assert_eq!(gone.name(), "exerciser");
    let (good, identity, bar) = world.finish(task).unwrap();
    assert!((5..=11).contains(&good), "{good}");
    assert_eq!((identity, bar), (!0, None));
    world.insert_function(host, Box::new(Exerciser::new()));
    assert_eq!(world.platform(host).config_read32(0), 0x0005_1b36);
}

#[test]
fn a_host_that_is_switched_off_never_runs_again() {
    let (mut world, host) = world(Config::default());
    let other = world.add_host("host-b", Box::new(Exerciser::new()), &[]);
    let ticks = Arc::new(AtomicU32::new(0));
    let seen = ticks.clone();
    let task = world.spawn(host, "ticker", move |machine| {
        loop {
            machine.sleep(Duration::from_millis(1));
            seen.fetch_add(1, Ordering::Relaxed);
            if machine.name().is_empty() {
                return;
            }
        }
    });
    let lasting = world.spawn(other, "lasting", |machine| {
        machine.sleep(Duration::from_millis(20));
        machine.name().len()
    });
    world.run_for(Duration::from_millis(10));
    world.power_off(host);
    let before = ticks.load(Ordering::Relaxed);
    assert!(before >= 9);
    assert_eq!(world.finish(lasting).unwrap(), 6);
    assert_eq!(ticks.load(Ordering::Relaxed), before);
    let stuck = world.finish(task).unwrap_err();
    assert!(
        stuck.to_string().contains("its host was switched off"),
        "{stuck}"
    );
}

#[test]
fn a_host_that_is_switched_on_again_has_nothing_of_its_former_life() {
    let (mut world, host) = world(Config::default());
    let before = world.spawn(host, "before", |machine| {
        let memory = DmaBuf::new(machine, 4096, 64).unwrap();
        let table = Table::new(machine, 4, |_| 7_u32).unwrap();
        machine.fail(Fallible::DmaMap, 1);
        machine.sleep(Duration::from_secs(3600));
        (memory.len(), table.len())
    });
    world.run_for(Duration::from_millis(10));
    assert_ne!(world.platform(host).memory_in_use(), (0, 0));
    world.power_on(host, Box::new(Exerciser::new()));
    assert_eq!(world.platform(host).memory_in_use(), (0, 0));
    let after = world.spawn(host, "after", |machine| {
        let registers = registers(machine);
        machine.sleep(Duration::from_millis(1));
        registers.read_be32(0)
    });
    assert_ne!(world.finish(after).unwrap(), !0, "its function answers");
    assert!(
        world.finish(before).is_err(),
        "what was running never goes on"
    );
    assert!(world.take_reports().is_empty());
}

#[test]
fn the_call_that_is_to_fail_fails_and_no_other() {
    let (mut world, host) = world(Config::default());
    let task = world.spawn(host, "driver", |machine| {
        machine.fail(Fallible::DmaAlloc, 2);
        let memory: Vec<_> = (0..4).map(|_| DmaBuf::new(machine, 64, 64)).collect();
        let failed: Vec<bool> = memory.iter().map(Result::is_err).collect();
        let why = memory.into_iter().find_map(Result::err);
        assert_eq!(why, Some(PlatformError::NoDmaMemory { len: 64 }));
        machine.fail(Fallible::TableAlloc, 1);
        assert!(Table::new(machine, 4, |_| 0_u32).is_err());
        machine.fail(Fallible::AllocVectors, 1);
        assert!(machine.alloc_vectors(1).is_err());
        assert_eq!(machine.interrupts_bound(), 0);
        machine.fail(Fallible::Completion, 1);
        assert!(machine.completion().is_err());
        assert!(machine.completion().is_ok());
        (failed, machine.calls(Fallible::DmaAlloc))
    });
    let (failed, calls) = world.finish(task).unwrap();
    assert_eq!(failed, [false, true, false, false]);
    assert_eq!(calls, 4);
}

#[test]
fn a_cable_that_is_pulled_takes_the_link_down_at_both_ends() {
    let (mut world, a, b) = two_hosts(Config::default());
    let watch = |machine: &SimPlatform| {
        let registers = registers(machine);
        for wanted in [1, 0] {
            while registers.read_be32(LINK) != wanted {
                machine.sleep(Duration::from_micros(10));
            }
        }
    };
    let tasks = [world.spawn(a, "a", watch), world.spawn(b, "b", watch)];
    world.run_for(Duration::from_millis(1));
    let pulled = world.with_wire(|cable: &mut Cable, now| {
        cable.set_link(WireEnd(1), LinkControl::Disabled, now);
    });
    assert_eq!(pulled, Some(()));
    assert!(world.with_wire(|_: &mut Nowhere, _| ()).is_none());
    for task in tasks {
        world.finish(task).unwrap();
    }
}

#[test]
fn a_test_gets_at_the_model_by_its_type() {
    let (mut world, host) = world(Config::default());
    let name = world.with_model(host, |model: &mut Exerciser, bus| {
        bus.trace(format_args!("seen"));
        model.name().len()
    });
    assert_eq!(name, Some(9));
}

#[test]
fn who_listens_hears_what_functions_say_of_themselves() {
    let (mut world, host) = world(Config::default());
    let said = Arc::new(Mutex::new(Vec::new()));
    let heard = said.clone();
    world.listen(Box::new(move |_, host, what| {
        heard.lock().unwrap().push(format!("{host}: {what}"));
    }));
    world.with_function(host, |_, bus| {
        assert!(bus.tracing());
        bus.trace(format_args!("page {:#x}", 16));
    });
    assert_eq!(*said.lock().unwrap(), ["host-a: page 0x10"]);
}

#[test]
fn a_run_ends_when_what_it_runs_for_is_so() {
    let (mut world, host) = world(Config::default());
    let ticks = Arc::new(AtomicU32::new(0));
    let seen = ticks.clone();
    world.spawn(host, "ticker", move |machine| {
        for _ in 0..100 {
            machine.sleep(Duration::from_millis(1));
            seen.fetch_add(1, Ordering::Relaxed);
        }
    });
    let few = || ticks.load(Ordering::Relaxed) < 5;
    assert_eq!(world.run_while(Duration::from_secs(1), few), Outcome::Done);
    let passed = world.now().since(Instant(0));
    assert!((5..=6).contains(&passed.as_millis()), "{passed:?}");
    let more = world.run_while(Duration::from_millis(3), || true);
    assert_eq!(more, Outcome::Limit);
    let idle = world.run_while(Duration::from_secs(1), || true);
    assert_eq!(idle, Outcome::Idle);
}
