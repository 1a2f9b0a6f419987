//! What the machine itself costs, in nanoseconds of the wall: `cargo run --release -p platform-sim --example
//! machine_costs`.

#![expect(
    clippy::disallowed_methods,
    reason = "it measures, and a world has no wall clock"
)]

use core::time::Duration;
use core_ib::platform::{Caching, Completion, Platform, Registers};
use platform_sim::machine::{Config, Exerciser, Mode, Nowhere, SimPlatform, World};
use std::time::Instant;

const TIMES: u32 = 1_000_000;

fn measure(
    what: &str,
    mode: Mode,
    contexts: u32,
    f: impl Fn(&SimPlatform, u32) + Send + Sync + Clone + 'static,
) {
    let mut world = World::with(
        Config {
            mode,
            spin_limit: u32::MAX,
            ..Config::default()
        },
        Nowhere,
    );
    let host = world.add_host("host", Box::new(Exerciser::new()), &[]);
    let tasks: Vec<_> = (0..contexts)
        .map(|_| {
            let f = f.clone();
            world.spawn(host, "driver", move |machine| f(machine, TIMES / contexts))
        })
        .collect();
    let before = Instant::now();
    for task in tasks {
        if let Err(stuck) = world.finish(task) {
            eprintln!("{stuck}");
        }
    }
    let each = before.elapsed().as_secs_f64() * 1e9 / f64::from(TIMES);
    let statistics = world.statistics();
    println!(
        "{what:<44} {mode:?}: {each:7.1} ns, {:.2} switches, stack {} bytes",
        statistics.switches as f64 / f64::from(TIMES),
        statistics.stack_used
    );
}

fn main() {
    for mode in [Mode::Virtual, Mode::RealTime] {
        measure("barrier (a point)", mode, 1, |machine, times| {
            for _ in 0..times {
                machine.dma_wmb();
            }
        });
        measure("barrier, two contexts", mode, 2, |machine, times| {
            for _ in 0..times {
                machine.dma_wmb();
            }
        });
        let registers = |machine: &SimPlatform| machine.map(0, 0, 4096, Caching::Uncached);
        measure("register write, 64 bits", mode, 1, move |machine, times| {
            if let Ok(registers) = registers(machine) {
                for value in 0..u64::from(times) {
                    registers.write_be64(8, value);
                }
            }
        });
        measure(
            "register write, two contexts",
            mode,
            2,
            move |machine, times| {
                if let Ok(registers) = registers(machine) {
                    for value in 0..u64::from(times) {
                        registers.write_be64(8, value);
                    }
                }
            },
        );
        measure("register read, 32 bits", mode, 1, move |machine, times| {
            if let Ok(registers) = registers(machine) {
                for _ in 0..times {
                    registers.read_be32(8);
                }
            }
        });
        measure("lock and unlock", mode, 1, |machine, times| {
            let lock = machine.lock("lock", false, 0);
            for _ in 0..times {
                lock.with(|count| *count += 1);
            }
        });
        measure("clock", mode, 1, |machine, times| {
            for _ in 0..times {
                machine.now();
            }
        });
        measure("fire and wait", mode, 1, |machine, times| {
            if let Ok(bell) = machine.completion() {
                for _ in 0..times {
                    bell.fire();
                    bell.wait_until(core_ib::Instant(0));
                }
            }
        });
    }
    measure("sleep (a switch)", Mode::Virtual, 1, |machine, times| {
        for _ in 0..times {
            machine.sleep(Duration::from_nanos(1));
        }
    });
}
