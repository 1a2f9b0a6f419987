//! Fabrics of one host and of many come up: ports Active, interfaces up, pings between hosts near and far.

use core::time::Duration;
use core_ib::PKey;
use core_ib::wire::mad::PortState;
use openib_sim::host::Phase;
use openib_sim::sim::{Settings, SimHost};
use openib_tests::scenario::{Family, Scenario, lids};
use platform_sim::fabric::topology::build::{self, FatTree};
use platform_sim::fabric::topology::{NodeKind, PortRef, PortSpec};

/// All ports are Active, all LIDs differ.
fn check(scenario: &Scenario) {
    for host in &scenario.sim.hosts {
        let state = host.remote.look(|status| status.port.state);
        assert_eq!(state, 4, "{}", host.name);
    }
    let mut all = lids(&scenario.sim.hosts);
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), scenario.len(), "LIDs differ");
    assert!(!all.contains(&0));
}

#[test]
fn one_host_on_a_switch_comes_up_alone() {
    let scenario = Scenario::up(build::star(1), 1);
    check(&scenario);
}

#[test]
fn two_hosts_on_a_cable_reach_each_other() {
    let mut scenario = Scenario::up(build::back_to_back(), 2);
    check(&scenario);
    scenario.ping_all(&[(0, 1), (1, 0)]);
    scenario.stop(1);
    scenario.stop(0);
}

#[test]
fn no_interface_waits_for_a_second_try_at_joining() {
    let mut scenario = Scenario::new(Settings::new(build::ring(3, 2), 6));
    scenario.sim.start_all();
    scenario.wait("ports Active", Duration::from_secs(10), |hosts| {
        let active = |host: &SimHost| host.remote.look(|status| status.port.state == 4);
        hosts.iter().all(active)
    });
    // The SA client asks again after three seconds.
    scenario.wait_up(Duration::from_millis(100));
}

#[test]
fn no_neighbour_solicitation_is_lost_on_its_way_over_several_switches() {
    for (topology, seed) in [(build::line(4, 1), 7), (build::ring(3, 1), 8)] {
        let mut scenario = Scenario::up(topology, seed);
        let count = scenario.len();
        let pairs: Vec<_> = (0..count).map(|host| (host, (host + 1) % count)).collect();
        let echoes = scenario.ping(&pairs, Family::V6, 5, Duration::from_secs(2));
        for (pair, echoes) in pairs.iter().zip(echoes) {
            let times = echoes.iter().map(|echo| echo.round_trip);
            // A lost solicitation is made up for after a second.
            let at_once = |time: Option<Duration>| time.is_some_and(|time| time.as_millis() < 500);
            assert!(
                times.clone().all(at_once),
                "{pair:?}: {:?}",
                times.collect::<Vec<_>>()
            );
        }
    }
}

#[test]
fn sixteen_hosts_on_a_ring_of_four_switches_reach_their_neighbours_and_the_far_side() {
    let mut scenario = Scenario::up(build::ring(4, 4), 3);
    check(&scenario);
    assert_eq!(scenario.len(), 16);
    let near: Vec<_> = (0..16).map(|host| (host, (host + 1) % 16)).collect();
    scenario.ping_all(&near);
    let far: Vec<_> = (0..16).map(|host| (host, (host + 8) % 16)).collect();
    scenario.ping_all(&far);
}

#[test]
fn sixty_four_hosts_on_a_fat_tree_reach_their_neighbours_and_other_leaves() {
    let shape = FatTree {
        radix: 16,
        levels: 2,
        parts: 8,
    };
    let topology = build::fat_tree(shape).unwrap();
    let mut scenario = Scenario::up(topology, 4);
    check(&scenario);
    assert_eq!(scenario.len(), 64);
    let pairs: Vec<_> = (0..64).map(|host| (host, (host + 27) % 64)).collect();
    scenario.ping_all(&pairs);
}

#[test]
fn two_cables_between_the_same_switches_are_both_brought_up() {
    let mut topology = build::line(2, 1);
    let switches: Vec<_> = topology.of_kind(NodeKind::Switch).collect();
    for switch in &switches {
        let spec = &mut topology.nodes[*switch];
        spec.ports.push(PortSpec::default());
    }
    let last = topology.nodes[switches[0]].port_count();
    let ends = [switches[0], switches[1]].map(|node| PortRef::new(node, last));
    topology.connect(ends[0], ends[1]);
    let mut scenario = Scenario::up(topology, 5);
    check(&scenario);
    scenario.ping_all(&[(0, 1), (1, 0)]);
    let active = |scenario: &mut Scenario, end: PortRef| {
        let sim = &mut scenario.sim;
        let state = sim
            .world
            .with_wire(|fabric: &mut platform_sim::fabric::Fabric, _| {
                let node = fabric.node(end.node)?;
                Some(node.port(end.port)?.info.state)
            });
        state.flatten()
    };
    for end in ends {
        assert_eq!(active(&mut scenario, end), Some(PortState::ACTIVE));
    }
}

#[test]
fn a_host_assembled_is_moved_on_a_small_stack() {
    use mthca_hw::Hca;
    use platform_sim::machine::SimPlatform;
    let size = size_of::<ib_stack::Stack<'static, Hca<'static, SimPlatform>, SimPlatform>>();
    assert!(size <= 8192, "{size}");
}

#[test]
fn an_interface_in_a_partition_comes_up_beside_the_one_in_the_default_partition() {
    let mut settings = Settings::new(build::line(2, 1), 9);
    settings.partitions = vec![PKey(0x8001)];
    let mut scenario = Scenario::new(settings);
    scenario.sim.start_all();
    scenario.wait_up(Duration::from_secs(60));
    scenario.settle();
    for host in &scenario.sim.hosts {
        let up = |words: &str| words.starts_with("interface 1: Up");
        let log = host.remote.take_log();
        assert!(
            log.iter().any(|(_, words)| up(words)),
            "{}: {log:?}",
            host.name
        );
    }
    scenario.ping_all(&[(0, 1), (1, 0)]);
}

#[test]
fn an_interface_in_no_partition_or_in_one_that_another_is_in_is_refused() {
    for (partitions, because) in [
        (vec![PKey(0x8000)], "P_Key 0x8000 is no partition's"),
        (
            vec![PKey(0x7fff)],
            "port 1 has an interface with the P_Key 0x7fff already",
        ),
        (
            vec![PKey(0x8001), PKey(1)],
            "port 1 has an interface with the P_Key 0x0001 already",
        ),
    ] {
        let mut settings = Settings::new(build::star(1), 10);
        settings.partitions = partitions;
        let mut scenario = Scenario::new(settings);
        scenario.sim.start_all();
        scenario.wait("refused", Duration::from_secs(10), |hosts| {
            hosts[0]
                .remote
                .look(|status| status.phase == Phase::Failed(because.into()))
        });
    }
}
