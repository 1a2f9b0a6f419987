//! What a world does beyond the platform contract: one seed one run, offences by name, deadlocks told, faults, and
//! real time that sleeps.

use core::time::Duration;
use core_ib::Instant;
use core_ib::platform::{
    Caching, Completion, Direction, DmaBuf, Handled, Handler, LetGo, Platform, PlatformError,
    Registers, Table, Vectors, Wake,
};
use platform_sim::machine::{
    Cable, Config, Exerciser, Fallible, HostId, LinkParameters, Mode, Nowhere, OnReport, Outcome,
    Report, ReportKind, SimCompletion, SimPlatform, SimRegisters, WireEnd, World,
};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

const FROM: usize = 0x40;
const TO: usize = 0x48;
const COPY: usize = 0x50;
const RAISE: usize = 0x54;
const PIN: usize = 0x58;
const LATE: usize = 0x5c;
const SEND: usize = 0x60;
const RECEIVED: usize = 0x64;
const LINK: usize = 0x6c;
const STATUS: usize = 0x70;
const PACKET: usize = 0x400;

fn collecting(seed: u64) -> Config {
    Config {
        seed,
        on_report: OnReport::Collect,
        ..Config::default()
    }
}

fn world(config: Config) -> (World, HostId) {
    let mut world = World::with(config, Nowhere);
    let host = world.add_host("host-a", Box::new(Exerciser::new()), &[]);
    (world, host)
}

fn registers(machine: &SimPlatform) -> SimRegisters {
    machine.map(0, 0, 4096, Caching::Uncached).unwrap()
}

/// Runs `f` in a world of its own and gives the offences.
fn offences<T: Send + 'static>(
    f: impl FnOnce(&SimPlatform) -> T + Send + 'static,
) -> (Option<T>, Vec<Report>) {
    let (mut world, host) = world(collecting(1));
    let task = world.spawn(host, "driver", f);
    let result = world.finish(task).ok();
    (result, world.take_reports())
}

#[track_caller]
fn only(reports: &[Report], kind: ReportKind, words: &[&str]) {
    let [report] = reports else {
        panic!("one {kind:?} expected: {reports:#?}");
    };
    assert_eq!(report.kind, kind, "{report}");
    assert_eq!(report.host, "host-a");
    for word in words {
        assert!(report.text.contains(word), "{word:?} in {:?}", report.text);
    }
}

/// # Safety
///
/// `handler` lives until the vector is unbound.
unsafe fn bind(machine: &SimPlatform, vector: u16, handler: &dyn Handler) {
    // SAFETY: the lifetime alone changes, and the caller looks after it.
    let handler: NonNull<dyn Handler> = unsafe { core::mem::transmute(NonNull::from(handler)) };
    // SAFETY: the caller's promise.
    unsafe { machine.bind_interrupt(vector, handler) }.unwrap();
}

// One seed, one run.

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

// Contexts.

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

// Offences.

#[test]
fn an_offence_panics_where_it_happens_unless_reports_are_collected() {
    let (mut world, host) = world(Config::default());
    let task = world.spawn(host, "driver", |machine| {
        registers(machine).write_be32(2, 0);
    });
    let run = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.finish(task)));
    let message = run.unwrap_err().downcast::<String>().unwrap();
    assert!(
        message.contains("host-a (driver): Register: misaligned"),
        "{message}"
    );
}

#[test]
fn a_lock_held_across_a_wait_is_named() {
    for wait in 0..4 {
        let (_, reports) = offences(move |machine| {
            let completion = machine.completion().unwrap();
            let gate = machine.gate("control", ());
            machine.lock("CQ 7", false, ()).with(|()| match wait {
                0 => machine.sleep(Duration::from_micros(1)),
                1 => drop(completion.wait_until(machine.now().after(Duration::from_micros(9)))),
                2 => gate.with(|()| ()),
                _ => assert!(machine.dma_alloc(4096, 4096).is_ok()),
            });
        });
        only(&reports, ReportKind::LockAcrossWait, &["lock \"CQ 7\""]);
    }
    let (_, reports) = offences(|machine| {
        let completion = machine.completion().unwrap();
        machine
            .lock("CQ 7", false, ())
            .with(|()| completion.wait_until(Instant(0)));
    });
    assert!(reports.is_empty(), "a test of a completion does not wait");
}

#[test]
fn a_lock_taken_twice_is_named_and_never_returns() {
    let (result, reports) = offences(|machine| {
        let lock = machine.lock("SRQ 1", false, 0);
        lock.with(|_| lock.with(|_| ()));
    });
    assert!(result.is_none());
    only(&reports, ReportKind::SelfDeadlock, &["lock \"SRQ 1\""]);
}

#[test]
fn two_locks_in_both_orders_are_named_though_nothing_went_wrong() {
    let (result, reports) = offences(|machine| {
        let (send, receive) = (
            machine.lock("send CQ", false, ()),
            machine.lock("receive CQ", false, ()),
        );
        for _ in 0..3 {
            send.with(|()| receive.with(|()| ()));
            receive.with(|()| send.with(|()| ()));
        }
    });
    assert!(result.is_some());
    only(
        &reports,
        ReportKind::InvertedOrder,
        &["send CQ", "receive CQ"],
    );
}

struct On<F: Fn() -> Handled + Sync>(F);

impl<F: Fn() -> Handled + Sync> Handler for On<F> {
    fn handle(&self) -> Handled {
        self.0()
    }
}

/// Raises message 0 once, and runs `f` as its handler.
fn in_an_interrupt(machine: &SimPlatform, f: impl Fn() + Sync) {
    machine.alloc_vectors(1).unwrap();
    let done = machine.completion().unwrap();
    let handler = On(|| {
        f();
        done.fire();
        Handled::Yes
    });
    // SAFETY: unbound below.
    unsafe { bind(machine, 0, &handler) };
    registers(machine).write_be32(RAISE, 0);
    assert!(done.wait_until(machine.now().after(Duration::from_secs(1))));
    machine.unbind_interrupt(0);
    machine.free_vectors();
}

#[test]
fn an_interrupt_handler_that_takes_a_lock_it_was_not_declared_for_is_named() {
    let (_, reports) = offences(|machine| {
        let declared = machine.lock("EQ 1", true, ());
        let other = machine.lock("QP 3", false, ());
        in_an_interrupt(machine, || {
            declared.with(|()| ());
            other.with(|()| ());
        });
    });
    only(&reports, ReportKind::LockInInterrupt, &["lock \"QP 3\""]);
}

#[test]
fn what_may_block_in_an_interrupt_or_a_soft_one_is_named() {
    let (_, reports) = offences(|machine| {
        in_an_interrupt(machine, || {
            let _ = machine.dma_alloc(1, 1);
        });
    });
    let words = ["an interrupt handler allocates DMA memory"];
    only(&reports, ReportKind::WaitInInterrupt, &words);
    let (waited, reports) = offences(|machine| {
        let bell = machine.completion().unwrap();
        let deadline = machine.now().after(Duration::from_secs(1));
        machine.soft_interrupt(|| bell.wait_until(deadline));
        machine.now() >= deadline
    });
    assert_eq!(waited, Some(false), "it does not wait, either");
    let words = ["a soft interrupt handler waits for a completion"];
    only(&reports, ReportKind::WaitInInterrupt, &words);
}

#[test]
fn a_register_that_never_changes_is_named_when_it_is_read_for_ever() {
    let (mut world, host) = world(Config {
        spin_limit: 1000,
        ..collecting(1)
    });
    let task = world.spawn(host, "poller", |machine| {
        let registers = registers(machine);
        for _ in 0..3000 {
            registers.read_be32(0x68); // counts
        }
        for _ in 0..3000 {
            registers.read_be32(0x14);
        }
    });
    world.finish(task).unwrap();
    only(
        &world.take_reports(),
        ReportKind::Spin,
        &["BAR 0 offset 0x14", "1000 times"],
    );
}

/// Makes the device copy 8 bytes.
fn copy(registers: &SimRegisters, from: u64, to: u64) -> bool {
    registers.write_be64(FROM, from);
    registers.write_be64(TO, to);
    registers.write_be32(COPY, 8);
    registers.read_be32(STATUS) == 0
}

fn let_go() -> LetGo {
    // SAFETY: for tests that have the device do it again: the simulator refuses.
    unsafe { LetGo::claim() }
}

#[test]
fn a_device_that_goes_for_memory_outside_of_what_it_was_given_is_named_and_stopped() {
    let (copied, reports) = offences(|machine| {
        let memory = DmaBuf::new(machine, 4096, 4096).unwrap();
        let at = memory.addr().get();
        let copied = copy(&registers(machine), at + 4090, at);
        memory.free(let_go());
        copied
    });
    assert_eq!(copied, Some(false));
    let words = [
        "the device reads 8 bytes",
        "offset 4090 of DMA memory #1 (4096 bytes)",
    ];
    only(&reports, ReportKind::DmaOutside, &words);
}

#[test]
fn a_device_that_goes_for_memory_that_was_given_back_is_named_and_stopped() {
    let (copied, reports) = offences(|machine| {
        let memory = DmaBuf::new(machine, 4096, 4096).unwrap();
        let gone = DmaBuf::new(machine, 64, 64).unwrap();
        let to = gone.addr().get();
        gone.free(let_go());
        let copied = copy(&registers(machine), memory.addr().get(), to + 8);
        memory.free(let_go());
        copied
    });
    assert_eq!(copied, Some(false));
    let words = [
        "the device writes 8 bytes",
        "given back: offset 8 of DMA memory #2 (64 bytes)",
    ];
    only(&reports, ReportKind::DmaAfterFree, &words);
}

#[test]
fn a_device_that_writes_to_a_mapping_for_reading_is_named_and_stopped() {
    let (_, reports) = offences(|machine| {
        let raw = machine.dma_alloc(4096, 4096).unwrap();
        // SAFETY: it stays; unmapped below.
        let at = unsafe { machine.dma_map(raw.memory, 64, Direction::ToDevice) }.unwrap();
        assert!(!copy(&registers(machine), raw.bus.get(), at.get()));
        assert!(copy(&registers(machine), at.get(), raw.bus.get()));
        // SAFETY: mapped above, and the device is done.
        unsafe { machine.dma_unmap(at, 64, Direction::ToDevice) };
        // SAFETY: from `dma_alloc`, and the device is done.
        unsafe { machine.dma_free(raw) };
    });
    only(&reports, ReportKind::DmaDirection, &["other direction"]);
}

#[test]
fn memory_that_is_given_back_while_the_device_says_it_can_reach_it_is_named() {
    let mut world = World::with(collecting(1), Nowhere);
    let host = world.add_host("host-a", Box::new(Exerciser::holding_on()), &[]);
    let task = world.spawn(host, "driver", |machine| {
        let memory = DmaBuf::new(machine, 4096, 4096).unwrap();
        let at = memory.addr().get();
        assert!(copy(&registers(machine), at, at + 64));
        memory.free(let_go());
    });
    world.finish(task).unwrap();
    let words = ["4096 bytes", "register \"copy from\""];
    only(
        &world.take_reports(),
        ReportKind::FreedWhileReachable,
        &words,
    );
}

#[test]
fn what_was_never_given_back_is_counted_when_asked_for() {
    let (mut world, host) = world(collecting(1));
    let task = world.spawn(host, "driver", |machine| {
        let _leaked = DmaBuf::new(machine, 100, 1).unwrap();
        core::mem::forget(Table::new(machine, 10, |_| 0_u64).unwrap());
        machine.memory_in_use()
    });
    assert_eq!(world.finish(task).unwrap(), (100, 80));
    world.check_leaks(host);
    let words = ["DMA memory #1 (100 bytes)", "a table of 80 bytes"];
    only(&world.take_reports(), ReportKind::Leak, &words);
}

// Interrupts.

#[test]
fn an_interrupt_strikes_on_top_of_code_but_never_where_a_lock_masks_it() {
    let mut strikes = 0;
    for seed in 0..30 {
        let (mut world, host) = world(Config {
            seed,
            ..Config::default()
        });
        let task = world.spawn(host, "driver", |machine| {
            let registers = registers(machine);
            machine.alloc_vectors(1).unwrap();
            let masked = AtomicBool::new(false);
            let lock = machine.lock("EQ", true, 0);
            let handler = On(|| {
                // On top of the lock's holder this would be a deadlock by itself; elsewhere it waits its turn.
                lock.with(|count| *count += 1);
                assert!(!masked.load(Ordering::Relaxed));
                Handled::Yes
            });
            // SAFETY: unbound below.
            unsafe { bind(machine, 0, &handler) };
            for round in 1..=10 {
                registers.write_be32(LATE, round * 20);
                registers.write_be32(RAISE, 0);
                lock.with(|_| {
                    masked.store(true, Ordering::Relaxed);
                    for _ in 0..10 {
                        machine.dma_wmb();
                    }
                    masked.store(false, Ordering::Relaxed);
                });
                for _ in 0..10 {
                    machine.dma_wmb();
                }
                machine.sleep(Duration::from_micros(10));
            }
            machine.unbind_interrupt(0);
            machine.free_vectors();
            lock.into_inner()
        });
        assert_eq!(world.finish(task).unwrap(), 10);
        let statistics = world.statistics();
        assert_eq!(statistics.interrupts, 10);
        strikes += statistics.strikes;
    }
    assert!((10..290).contains(&strikes), "{strikes} of 300");
}

#[test]
fn a_pin_that_stays_asserted_runs_the_handler_again_and_nobody_wanting_it_is_named() {
    let (mut world, host) = world(collecting(1));
    let task = world.spawn(host, "driver", |machine| {
        let registers = registers(machine);
        assert_eq!(machine.alloc_vectors(0), Ok(Vectors::Intx));
        let calls = AtomicU32::new(0);
        let handler = On(|| {
            if calls.fetch_add(1, Ordering::Relaxed) == 5 {
                registers.write_be32(PIN, 0);
                registers.read_be32(PIN);
            }
            Handled::Yes
        });
        // SAFETY: unbound below.
        unsafe { bind(machine, 0, &handler) };
        registers.write_be32(RAISE, 0);
        machine.sleep(Duration::from_millis(1));
        machine.unbind_interrupt(0);
        let six = calls.load(Ordering::Relaxed);
        let unwanted = AtomicU32::new(0);
        let nobody = On(|| {
            unwanted.fetch_add(1, Ordering::Relaxed);
            Handled::No
        });
        // SAFETY: unbound below.
        unsafe { bind(machine, 0, &nobody) };
        registers.write_be32(RAISE, 0);
        machine.sleep(Duration::from_millis(100));
        machine.unbind_interrupt(0);
        (six, unwanted.into_inner())
    });
    assert_eq!(world.finish(task).unwrap(), (6, 1000));
    only(
        &world.take_reports(),
        ReportKind::Interrupt,
        &["nobody wants it"],
    );
}

#[test]
fn a_machine_without_messages_gives_its_pin() {
    let (mut world, host) = world(Config::default());
    world.limit_messages(host, 2);
    let task = world.spawn(host, "driver", |machine| {
        let vectors = machine.alloc_vectors(3);
        machine.free_vectors();
        vectors
    });
    assert_eq!(world.finish(task).unwrap(), Ok(Vectors::Msix { count: 2 }));
    world.limit_messages(host, 0);
    let task = world.spawn(host, "driver", |machine| machine.alloc_vectors(3));
    assert_eq!(world.finish(task).unwrap(), Ok(Vectors::Intx));
}

// Stores that are on their way.

#[test]
fn stores_arrive_late_in_their_order_and_ahead_of_a_load() {
    let mut late = 0;
    for seed in 0..20 {
        let (mut world, host) = world(Config {
            seed,
            ..Config::default()
        });
        let task = world.spawn(host, "driver", |machine| {
            let (registers, others) = (registers(machine), registers(machine));
            let memory = DmaBuf::new(machine, 4096, 4096).unwrap();
            memory.write_be32(0, 7).unwrap();
            registers.write_be64(FROM, memory.addr().get());
            registers.write_be64(TO, memory.addr().plus(8).get());
            registers.write_be32(COPY, 4);
            let at_once = memory.read_be32(8) == Ok(7);
            assert_eq!(others.read_be32(COPY), 4);
            assert_eq!(
                memory.read_be32(8),
                Ok(7),
                "behind the load it has happened"
            );
            memory.free(let_go());
            at_once
        });
        late += u32::from(!world.finish(task).unwrap());
    }
    assert!(late > 10, "{late} of 20");
}

// Faults of the machine.

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
        machine.fail(Fallible::Completion, 1);
        assert!(machine.completion().is_err());
        assert!(machine.completion().is_ok());
        (failed, machine.calls(Fallible::DmaAlloc))
    });
    let (failed, calls) = world.finish(task).unwrap();
    assert_eq!(failed, [false, true, false, false]);
    assert_eq!(calls, 4);
}

// The wire.

fn two_hosts(config: Config) -> (World, HostId, HostId) {
    let cable = Cable::new(LinkParameters::X4_SDR, Duration::from_nanos(100));
    let mut world = World::with(config, cable);
    let mut add = |name, end| {
        let ends = [WireEnd(end)];
        world.add_host(name, Box::new(Exerciser::new()), &ends)
    };
    let (a, b) = (add("host-a", 0), add("host-b", 1));
    (world, a, b)
}

/// Sends `words` packets of one word.
fn sends(machine: &SimPlatform, words: u32) {
    let registers = registers(machine);
    while registers.read_be32(LINK) == 0 {
        machine.sleep(Duration::from_micros(1));
    }
    let memory = DmaBuf::new(machine, 4096, 4096).unwrap();
    registers.write_be64(FROM, memory.addr().get());
    for word in 1..=words {
        memory.write_be32(0, word).unwrap();
        registers.write_be32(SEND, 64);
        while registers.read_be32(STATUS) != 0 {
            machine.sleep(Duration::from_micros(1));
            registers.write_be32(SEND, 64);
        }
    }
    memory.free(let_go());
}

/// Takes packets by interrupt, until there were `words`.
fn receives(machine: &SimPlatform, words: u32) -> u32 {
    let registers = registers(machine);
    machine.alloc_vectors(1).unwrap();
    let bell = machine.completion().unwrap();
    let handler = On(|| {
        bell.wake();
        Handled::Yes
    });
    // SAFETY: unbound below.
    unsafe { bind(machine, 0, &handler) };
    while registers.read_be32(RECEIVED) < words {
        assert!(bell.wait_until(machine.now().after(Duration::from_secs(10))));
    }
    machine.unbind_interrupt(0);
    machine.free_vectors();
    registers.read_be32(PACKET)
}

fn packets(config: Config) -> (u32, World) {
    let (mut world, a, b) = two_hosts(config);
    let receiver = world.spawn(b, "receiver", |machine| receives(machine, 100));
    let sender = world.spawn(a, "sender", |machine| sends(machine, 100));
    world.finish(sender).unwrap();
    let last = world.finish(receiver).unwrap();
    (last, world)
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

// Real time.

fn real() -> Config {
    Config {
        mode: Mode::RealTime,
        ..Config::default()
    }
}

#[test]
fn packets_go_from_host_to_host_in_real_time() {
    assert_eq!(packets(real()).0, 100);
}

/// Processor time of this thread, from the system.
fn processor_ticks() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    let field = |index: usize| {
        fields
            .get(index)
            .and_then(|field| field.parse::<u64>().ok())
    };
    field(11).unwrap_or(0) + field(12).unwrap_or(0)
}

#[test]
fn real_time_sleeps_while_nothing_is_due() {
    let (mut world, host) = world(real());
    let task = world.spawn(host, "sleeper", |machine| {
        for _ in 0..5 {
            machine.sleep(Duration::from_millis(60));
        }
        machine.now()
    });
    let before = processor_ticks();
    let now = world.finish(task).unwrap();
    let ticks = processor_ticks() - before;
    assert!(now.since(Instant(0)) >= Duration::from_millis(300));
    assert!(ticks <= 5, "{ticks} ticks of 10 ms in 300 ms");
    let sleeps = world.statistics().sleeps;
    assert!((5..50).contains(&sleeps), "{sleeps}");
}

#[test]
fn a_completion_that_another_thread_fires_ends_the_sleep() {
    let (mut world, host) = world(real());
    let bell: Arc<SimCompletion> = Arc::new(world.platform(host).completion().unwrap());
    let ours = bell.clone();
    let task = world.spawn(host, "waiter", move |machine| {
        let rung = ours.wait_until(machine.now().after(Duration::from_secs(20)));
        (rung, machine.now())
    });
    let (sender, receiver) = std::sync::mpsc::channel::<()>();
    let ringer = std::thread::spawn(move || {
        let _ = receiver.recv_timeout(Duration::from_millis(30));
        bell.fire();
    });
    let (rung, now) = world.finish(task).unwrap();
    drop(sender);
    ringer.join().unwrap();
    assert!(rung && now.since(Instant(0)) < Duration::from_secs(10));
}

#[test]
fn a_source_is_called_when_the_waker_was_used() {
    let (mut world, host) = world(real());
    let bell = Arc::new(world.platform(host).completion().unwrap());
    let ours = bell.clone();
    world.on_wake(move || bell.fire());
    let waker = world.waker();
    let other = std::thread::spawn(move || waker.wake());
    let task = world.spawn(host, "waiter", move |machine| {
        ours.wait_until(machine.now().after(Duration::from_secs(20)))
    });
    assert!(world.finish(task).unwrap());
    other.join().unwrap();
}

#[test]
fn a_context_waits_for_a_file() {
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    let (mut world, host) = world(real());
    let (mut here, mut there) = std::os::unix::net::UnixStream::pair().unwrap();
    let task = world.spawn(host, "reader", move |machine| {
        let soon = machine.now().after(Duration::from_millis(20));
        let early = machine.wait_file(here.as_fd(), false, soon).unwrap();
        let later = machine.now().after(Duration::from_secs(20));
        assert!(machine.wait_file(here.as_fd(), false, later).unwrap());
        let mut bytes = [0; 5];
        here.read_exact(&mut bytes).unwrap();
        (early, bytes)
    });
    let writer = world.spawn(host, "writer", move |machine| {
        machine.sleep(Duration::from_millis(60));
        there.write_all(b"frame").unwrap();
    });
    assert_eq!(world.finish(task).unwrap(), (false, *b"frame"));
    world.finish(writer).unwrap();
}

#[test]
fn in_virtual_time_no_file_can_be_waited_for() {
    use std::os::fd::AsFd;
    let (mut world, host) = world(Config::default());
    let task = world.spawn(host, "reader", |machine| {
        let (here, _there) = std::os::unix::net::UnixStream::pair().unwrap();
        let waited = machine.wait_file(here.as_fd(), false, Instant::NEVER);
        waited.map_err(|error| error.kind())
    });
    let kind = std::io::ErrorKind::Unsupported;
    assert_eq!(world.finish(task).unwrap(), Err(kind));
}
