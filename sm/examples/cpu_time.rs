//! Processor time that a manager needs to bring up subnets of several sizes, over a fabric of agents in memory.
//!
//! `cargo run --release -p ib-sm --example cpu_time [hosts …]`

#[path = "../tests/fabric/mod.rs"]
mod fabric;

use core_ib::wire::mad::{Attribute, JoinState, Mad, McMemberRecord, Method, SaHeader};
use core_ib::{Gid, PKey, QKey};
use fabric::{Fabric, checks};
use ib_sm::Config;
use platform_sim::fabric::topology::{Topology, build};
use std::time::Duration;

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

/// Every host joins what a host with IP joins: the broadcast group, all nodes, and a group of its own.
fn join_all(fabric: &mut Fabric) -> usize {
    use McMemberRecord as M;
    let broadcast = ib_sm::Broadcast::DEFAULT.mgid(ib_sm::DEFAULT_BASE);
    let (mut all, mut own) = (broadcast, broadcast);
    all.0[12..].copy_from_slice(&[0, 0, 0, 1]);
    let mut tid = 0_u64;
    for (number, host) in fabric.hosts().into_iter().enumerate() {
        own.0[3] = 0x1b;
        own.0[2] = 0x60;
        own.0[12..].copy_from_slice(&(number as u32).to_be_bytes());
        for mgid in [broadcast, all, own] {
            let record = M {
                mgid,
                port_gid: Gid::unicast(Gid::DEFAULT_PREFIX, fabric.guid(host)),
                join_state: JoinState::FULL_MEMBER,
                q_key: QKey(0x0b1b),
                p_key: PKey(0xffff),
                ..M::default()
            };
            let mask = M::MGID | M::PORT_GID | M::JOIN_STATE | M::Q_KEY | M::P_KEY;
            let mask = mask | M::TCLASS | M::SL | M::FLOW_LABEL;
            let mut header = SaHeader::request(Method::SET, M::ID, mask);
            tid += 1;
            header.header.tid = 0x5_0000_0000 + tid;
            let mut mad = Mad::ZERO;
            mad.set_front(&header).unwrap();
            mad.put(&record).unwrap();
            fabric.ask(host, mad);
        }
        fabric.run_for(Duration::from_micros(50));
    }
    fabric.run_for(Duration::from_secs(1));
    let good = fabric
        .inbox
        .iter()
        .filter(|(_, received)| received.header().status.0 == 0);
    assert_eq!(good.count() as u64, tid);
    tid as usize
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
        "| hosts | switches | SMPs | by LID | sweep, ms of fabric time | CPU, ms | a second sweep, CPU, ms | joins | their CPU, ms |"
    );
    for size in sizes {
        // Other programs can only add to it, so the least of several runs is nearest to the truth.
        let runs: Vec<Run> = (0..if size > 2000 { 2 } else { 5 })
            .map(|_| Run::of(size))
            .collect();
        let least = |cost: fn(&Run) -> Duration| {
            runs.iter()
                .map(cost)
                .min()
                .unwrap_or_default()
                .as_secs_f64()
                * 1e3
        };
        let run = &runs[0];
        println!(
            "| {} | {} | {} | {} | {:.1} | {:.2} | {:.2} | {} | {:.2} |",
            run.hosts,
            run.switches,
            run.sent,
            run.by_lid,
            least(|run| run.took),
            least(|run| run.up),
            least(|run| run.again),
            run.joins,
            least(|run| run.joined),
        );
    }
}

/// What one subnet cost its manager.
struct Run {
    hosts: usize,
    switches: usize,
    sent: u64,
    by_lid: u64,
    took: Duration,
    up: Duration,
    again: Duration,
    joins: usize,
    joined: Duration,
}

impl Run {
    fn of(size: usize) -> Self {
        let mut fabric = Fabric::managed(topology(size), Config::default());
        let begin = fabric.now;
        let is_up = fabric.run_until(Duration::from_secs(60), |fabric| {
            fabric.seats[0].sm.is_serving()
        });
        assert!(is_up, "{:?}", fabric.seats[0].reports);
        let took = fabric.now.since(begin);
        let seat = &fabric.seats[0];
        let (up, sent, by_lid) = (seat.cpu, seat.sent, seat.by_lid);
        let (hosts, switches) = (fabric.hosts().len(), fabric.switches().len());
        checks::lids_are_unique(&fabric, &checks::reachable(&fabric, seat.node)).unwrap();
        fabric.sweep_now(0);
        fabric.run_for(Duration::from_secs(2));
        let again = fabric.seats[0].cpu - up;
        let before = fabric.seats[0].cpu;
        let joins = join_all(&mut fabric);
        let joined = fabric.seats[0].cpu - before;
        Self {
            hosts,
            switches,
            sent,
            by_lid,
            took,
            up,
            again,
            joins,
            joined,
        }
    }
}
