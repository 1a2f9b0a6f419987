//! One seed, one run; contexts.

use super::*;
use core_ib::Instant;
use platform_sim::machine::Outcome;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Two contexts append to one list, under a lock, between register accesses.
fn interleaving(seed: u64) -> (Vec<u8>, u64) {
    let (mut world, host) = world(Config {
        seed,
        ..Config::default()
    });
    let task = world.spawn(host, "both", |machine| {
        let list = machine.lock("list", false, Vec::new());
        let registers = registers(machine);
        machine.scope(|scope| {
            for who in [b'a', b'b'] {
                let (list, registers) = (&list, &registers);
                scope.spawn(format!("{}", who as char), move |_| {
                    for round in 0..20 {
                        registers.write_be32(0, round);
                        list.with(|list| list.push(who));
                    }
                });
            }
        });
        list.into_inner()
    });
    let list = world.finish(task).unwrap();
    (list, world.fingerprint())
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 0..20 {
        assert_eq!(interleaving(seed), interleaving(seed));
    }
}

#[test]
fn another_seed_gives_another_interleaving() {
    let mut lists: Vec<_> = (0..20).map(|seed| interleaving(seed).0).collect();
    lists.sort();
    lists.dedup();
    assert!(lists.len() > 15, "{} of 20", lists.len());
}

#[test]
fn a_race_shows_within_a_few_seeds() {
    let lost = |seed| {
        let (mut world, host) = world(Config {
            seed,
            ..Config::default()
        });
        let task = world.spawn(host, "both", |machine| {
            let counter = AtomicU32::new(0);
            machine.scope(|scope| {
                for name in ["one", "other"] {
                    let counter = &counter;
                    scope.spawn(name, move |machine| {
                        for _ in 0..20 {
                            machine.dma_wmb();
                        }
                        let before = counter.load(Ordering::Relaxed);
                        machine.dma_wmb();
                        counter.store(before + 1, Ordering::Relaxed);
                    });
                }
            });
            counter.into_inner() == 1
        });
        world.finish(task).unwrap()
    };
    let losses = (0..20).filter(|seed| lost(*seed)).count();
    assert!((2..20).contains(&losses), "{losses} of 20");
}

#[test]
fn time_passes_in_a_loop_that_only_looks_at_the_clock() {
    let (mut world, host) = world(Config::default());
    let task = world.spawn(host, "spinner", |machine| {
        let end = machine.now().after(Duration::from_micros(100));
        let mut looks = 0;
        while machine.now() < end {
            looks += 1;
        }
        looks
    });
    let looks = world.finish(task).unwrap();
    assert!((500..5000).contains(&looks), "{looks}");
}

#[test]
fn contexts_run_beside_each_other_and_not_one_after_the_other() {
    let (mut world, host) = world(Config {
        stalls: 0,
        ..Config::default()
    });
    let work = |machine: &SimPlatform| {
        for _ in 0..1000 {
            machine.dma_wmb();
        }
    };
    let alone = world.spawn(host, "alone", work);
    world.finish(alone).unwrap();
    let one = world.now();
    let many: Vec<_> = (0..8)
        .map(|index| world.spawn(host, format!("{index}"), work))
        .collect();
    for task in many {
        world.finish(task).unwrap();
    }
    let eight = world.now().since(one);
    assert!(eight < one.since(Instant(0)) * 3 / 2, "{one:?}, {eight:?}");
}

#[test]
fn a_world_whose_contexts_have_not_run_can_be_sent_to_another_thread() {
    let (mut world, host) = world(Config::default());
    let task = world.spawn(host, "driver", |machine| machine.now());
    let now = std::thread::spawn(move || world.finish(task).unwrap());
    assert!(now.join().unwrap() > Instant(0));
}

#[test]
fn a_device_that_was_used_refuses_other_threads() {
    let (world, host) = world(Config::default());
    let machine = world.platform(host);
    let registers = registers(&machine);
    registers.write_be32(0, 1);
    let other = std::thread::spawn(move || registers.read_be32(0));
    assert!(other.join().is_err());
}

#[test]
fn memory_of_a_world_goes_when_its_contexts_have_ended() {
    let token = Arc::new(());
    let (mut world, host) = world(Config::default());
    let held = token.clone();
    let task = world.spawn(host, "driver", move |machine| {
        let _held = held;
        machine.sleep(Duration::from_secs(1));
    });
    world.finish(task).unwrap();
    drop(world);
    assert_eq!(Arc::strong_count(&token), 1);
}

#[test]
fn a_scope_returns_when_all_its_contexts_have_ended() {
    let (mut world, host) = world(Config::default());
    let task = world.spawn(host, "parent", |machine| {
        let ended = AtomicU32::new(0);
        let results = machine.scope(|scope| {
            let spawn = |wait: u64| {
                let ended = &ended;
                scope.spawn(format!("{wait}"), move |machine| {
                    machine.sleep(Duration::from_micros(wait));
                    ended.fetch_add(1, Ordering::Relaxed);
                    wait
                })
            };
            [spawn(30), spawn(10), spawn(20)]
        });
        let sum: u64 = results
            .into_iter()
            .filter_map(|task| machine.join(task))
            .sum();
        (ended.into_inner(), sum)
    });
    assert_eq!(world.finish(task).unwrap(), (3, 60));
}

#[test]
fn a_panic_in_a_context_comes_out_of_the_run_and_says_whose_it_was() {
    let (mut world, host) = world(Config::default());
    let task = world.spawn(host, "careless", |machine| {
        machine.dma_wmb();
        let none = machine.bar_len(5);
        none.expect("something")
    });
    let run = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.finish(task)));
    let message = run.unwrap_err().downcast::<String>();
    assert!(message.is_ok_and(|message| message.contains("something")));
}

#[test]
fn contexts_of_a_scope_that_panics_never_run_again() {
    let (mut world, host) = world(Config::default());
    let ran = Arc::new(AtomicBool::new(false));
    let seen = ran.clone();
    let task = world.spawn(host, "parent", move |machine| {
        let local = [1, 2, 3];
        machine.scope(|scope| {
            let (local, seen) = (&local, &seen);
            scope.spawn("child", move |machine| {
                machine.sleep(Duration::from_millis(1));
                seen.store(local == &[1, 2, 3], Ordering::Relaxed);
            });
            scope.spawn("never started", move |_| assert_eq!(local.len(), 3));
            assert_eq!(1, 2, "on purpose");
        });
    });
    let run = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.finish(task)));
    assert!(run.is_err());
    world.run_for(Duration::from_millis(5));
    assert!(!ran.load(Ordering::Relaxed));
}

#[test]
fn a_deadlock_is_told_with_what_every_context_waits_for() {
    let (mut world, host) = world(collecting(3));
    let gates = |machine: &SimPlatform| {
        let first = Arc::new(machine.gate("first", ()));
        let second = Arc::new(machine.gate("second", ()));
        (first, second)
    };
    let (first, second) = gates(&world.platform(host));
    let (one, other) = (first.clone(), second.clone());
    let task = world.spawn(host, "one way", move |machine| {
        one.with(|()| {
            machine.sleep(Duration::from_millis(1));
            other.with(|()| ());
        });
    });
    world.spawn(host, "other way", move |machine| {
        second.with(|()| {
            machine.sleep(Duration::from_millis(1));
            first.with(|()| ());
        });
    });
    let stuck = world.finish(task).unwrap_err();
    assert_eq!(stuck.outcome, Outcome::Idle);
    let text = stuck.to_string();
    for words in [
        "\"one way\": waits for gate \"second\", held by \"other way\"",
        "\"other way\": waits for gate \"first\", held by \"one way\"",
    ] {
        assert!(text.contains(words), "{text}");
    }
    only(
        &world.take_reports(),
        ReportKind::InvertedOrder,
        &["first", "second"],
    );
}

#[test]
fn a_task_that_takes_too_long_is_told_apart_from_a_deadlock() {
    let (mut world, host) = world(Config::default());
    let task = world.spawn(host, "sleeper", |machine| {
        machine.sleep(Duration::from_secs(100));
    });
    let stuck = world
        .finish_within(task, Duration::from_secs(1))
        .unwrap_err();
    assert_eq!(stuck.outcome, Outcome::Limit);
    assert!(stuck.to_string().contains("sleeps (for 1"), "{stuck}");
    assert_eq!(
        world.run_until_idle(Duration::from_secs(1000)),
        Outcome::Idle
    );
    assert!(world.now().since(Instant(0)) >= Duration::from_secs(100));
}

#[test]
fn a_context_that_uses_too_much_stack_is_named() {
    let (mut world, host) = world(Config {
        stack_budget: Some(64 << 10),
        ..collecting(1)
    });
    let task = world.spawn(host, "deep", |machine| {
        let large = std::hint::black_box([1_u8; 100 << 10]);
        machine.dma_wmb();
        large.iter().map(|byte| u32::from(*byte)).sum::<u32>()
    });
    assert_eq!(world.finish(task).unwrap(), 100 << 10);
    only(
        &world.take_reports(),
        ReportKind::Stack,
        &["\"deep\"", "65536"],
    );
    assert!(world.statistics().stack_used > 100 << 10);
}

#[test]
fn packets_go_from_host_to_host_the_same_way_each_time() {
    let run = |seed| {
        let (last, world) = packets(Config {
            seed,
            ..Config::default()
        });
        assert_eq!(last, 100);
        let statistics = world.statistics();
        assert_eq!(statistics.packets_sent, 100);
        assert_eq!(statistics.packets_received, 100);
        (world.fingerprint(), world.now())
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}
