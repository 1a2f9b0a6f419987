//! Whatever happens to packets and cables: nothing is corrupted, nothing reaches the wrong QP, a datagram arrives at most
//! once and once more for each duplicate that a fault made, and TCP streams are exact.

mod node;

use core::time::Duration;
use node::Shared;
use openib_sim::sim::{Settings, Simulation};
use openib_tests::scenario::{Family, Scenario, assert_exact, cases};
use platform_sim::fabric::Faults;
use platform_sim::fabric::topology::{PortRef, Topology, build};
use proptest::prelude::*;

/// Small fabrics of two to six hosts.
fn topologies() -> impl Strategy<Value = Topology> {
    prop_oneof![
        1 => Just(build::back_to_back()),
        2 => (2..5_u8).prop_map(build::star),
        2 => (2..4_usize, 1..3_u8).prop_map(|(switches, hosts)| build::line(switches, hosts)),
        2 => (3..5_usize, 1..2_u8).prop_map(|(switches, hosts)| build::ring(switches, hosts)),
    ]
}

/// In a million packets of each cable. A kind of fault is absent half of the time.
fn faults(most: u32) -> impl Strategy<Value = Faults> {
    let often = move || prop_oneof![Just(0), 1..most];
    let delays = (often(), 1..200_u64);
    (often(), often(), delays, often()).prop_map(|(drop, corrupt, (delay, longest), duplicate)| {
        Faults {
            drop,
            corrupt,
            delay,
            delay_max: Duration::from_micros(longest),
            duplicate,
        }
    })
}

/// Which cable is pulled when, and for how long, in milliseconds.
fn flaps() -> impl Strategy<Value = Vec<(prop::sample::Index, u64, u64)>> {
    prop::collection::vec((any::<prop::sample::Index>(), 1..20_u64, 1..30_u64), 0..3)
}

/// Pulls a cable and puts it back, one after the other.
fn flap(sim: &mut Simulation, flaps: &[(prop::sample::Index, u64, u64)]) {
    for (which, after, length) in flaps {
        let end: PortRef = which.get(&sim.topology.cables).ends[0];
        sim.run_for(Duration::from_millis(*after));
        sim.plug(end, false);
        sim.run_for(Duration::from_millis(*length));
        sim.plug(end, true);
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: cases(6, 200),
        failure_persistence: None,
        max_shrink_iters: 20,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_datagram_arrives_unchanged_at_its_qp_and_once_but_for_the_duplicates_of_faults(
        topology in topologies(), seed: u64, faults in faults(200_000), flaps in flaps(),
    ) {
        let mut settings = Settings::new(topology, seed);
        settings.ip = false;
        let mut sim = Simulation::new(settings).unwrap();
        let shared = Shared::default();
        let count = sim.hosts.len();
        let mut tasks = Vec::new();
        for (number, host) in sim.hosts.iter().enumerate() {
            let shared = shared.clone();
            let run = move |machine: &_| node::run(machine, number, &shared);
            tasks.push(sim.world.spawn(host.id, "node", run));
        }
        let ready = |shared: &Shared| shared.with(|ledger| ledger.nodes.len()) == count;
        while !ready(&shared) {
            prop_assert!(sim.now().0 < 10_000_000_000, "not all ports Active");
            sim.run_for(Duration::from_millis(5));
        }
        sim.set_faults(faults);
        shared.with(|ledger| ledger.send = true);
        sim.run_for(Duration::from_millis(5));
        flap(&mut sim, &flaps);
        sim.run_for(Duration::from_millis(15));
        shared.with(|ledger| ledger.send = false);
        sim.run_for(Duration::from_millis(5));
        shared.with(|ledger| ledger.stop = true);
        for task in tasks {
            let ended = sim.world.finish(task);
            prop_assert!(ended.is_ok(), "{}", ended.unwrap_err());
        }
        let counts = sim.fault_counts();
        shared.with(|ledger| {
            prop_assert!(ledger.wrong.is_empty(), "{:#?}", ledger.wrong);
            prop_assert!(ledger.sent.len() > count * 50, "{}", ledger.sent.len());
            let more: u32 = ledger.received.values().map(|times| times - 1).sum();
            prop_assert!(u64::from(more) <= counts.duplicated, "{more} {counts:?}");
            let lossless = (counts.dropped, counts.corrupted) == (0, 0) && flaps.is_empty();
            if lossless {
                prop_assert_eq!(ledger.received.len(), ledger.sent.len());
            }
            Ok(())
        })?;
        prop_assert_eq!(sim.world.take_reports().len(), 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: cases(3, 60),
        failure_persistence: None,
        max_shrink_iters: 5,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_stream_is_exact_though_packets_are_lost_changed_late_or_doubled_and_a_cable_flaps(
        topology in topologies(), seed: u64, faults in faults(15_000), flaps in flaps(),
    ) {
        let mut scenario = Scenario::up(topology, seed);
        scenario.sim.set_faults(faults);
        let (last, length) = (scenario.len() - 1, 60_000);
        let streams = [(0, last, Family::V4), (last, 0, Family::V6)];
        let streams = streams.map(|(from, to, family)| {
            scenario.start_stream(from, to, family, length)
        });
        flap(&mut scenario.sim, &flaps);
        scenario.wait("streams end", Duration::from_secs(600), |hosts| {
            streams.iter().all(|stream| stream.is_over(hosts))
        });
        for stream in streams {
            assert_exact(stream.ends(&scenario.sim.hosts), length);
        }
    }
}
