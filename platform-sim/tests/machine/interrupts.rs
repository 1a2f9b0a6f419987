//! Interrupts, and stores that are on their way.

use super::*;
use core_ib::platform::Vectors;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

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

#[test]
fn two_halves_of_a_64_bit_store_stay_together() {
    for seed in 0..10 {
        let (mut world, host) = world(Config {
            seed,
            narrow: true,
            ..Config::default()
        });
        let task = world.spawn(host, "both", |machine| {
            let registers = registers(machine);
            machine.scope(|scope| {
                for value in [0x1111_1111_1111_1111, 0x2222_2222_2222_2222] {
                    let registers = &registers;
                    scope.spawn(format!("{value:#x}"), move |_| {
                        for _ in 0..50 {
                            registers.write_be64(0, value);
                            let there = registers.read_be64(0);
                            assert_eq!(there >> 32, there & 0xffff_ffff);
                        }
                    });
                }
            });
        });
        world.finish(task).unwrap();
        assert_eq!(world.statistics().register_writes, 200);
    }
}
