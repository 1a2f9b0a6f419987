//! Processor time that a manager needs to bring up subnets of several sizes, over a fabric of agents in memory.
//!
//! `cargo run --release -p ib-sm --example cpu_time [hosts …]`

#[path = "../tests/fabric/mod.rs"]
mod fabric;

use fabric::{Fabric, checks};
use ib_sm::Config;
use platform_sim::fabric::topology::{Topology, build};
use std::time::{Duration, Instant};

fn topology(hosts: usize) -> Topology {
    let tree = |radix, levels, parts| {
        build::fat_tree(build::FatTree {
            radix,
            levels,
            parts,
        })
        .unwrap()
    };
    match hosts {
        0..=36 => build::star(hosts as u8),
        37..=648 => tree(36, 2, hosts.div_ceil(18) as u8),
        _ => tree(36, 3, hosts.div_ceil(18 * 18) as u8),
    }
}

fn main() {
    let sizes: Vec<usize> = std::env::args()
        .skip(1)
        .filter_map(|size| size.parse().ok())
        .collect();
    let sizes = if sizes.is_empty() {
        vec![16, 256, 1024, 5184]
    } else {
        sizes
    };
    println!(
        "| hosts | switches | SMPs | by LID | sweep, ms of fabric time | CPU, ms | a second sweep, CPU, ms |"
    );
    for size in sizes {
        let topology = topology(size);
        let (start, config) = (Instant::now(), Config::default());
        let mut fabric = Fabric::managed(topology, config);
        let begin = fabric.now;
        let up = fabric.run_until(Duration::from_secs(60), |fabric| {
            fabric.seats[0].sm.is_serving()
        });
        let took = fabric.now.since(begin);
        assert!(up, "{:?}", fabric.seats[0].reports);
        let seat = &fabric.seats[0];
        let (cpu, sent, by_lid) = (seat.cpu, seat.sent, seat.by_lid);
        let (hosts, switches) = (fabric.hosts().len(), fabric.switches().len());
        checks::subnet_is_up(&fabric, seat.node).unwrap();
        fabric.sweep_now(0);
        fabric.run_for(Duration::from_secs(2));
        let again = fabric.seats[0].cpu - cpu;
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        println!(
            "| {hosts} | {switches} | {sent} | {by_lid} | {:.1} | {:.1} | {:.1} |",
            ms(took),
            ms(cpu),
            ms(again)
        );
        eprintln!("{:?} in all", start.elapsed());
    }
}
