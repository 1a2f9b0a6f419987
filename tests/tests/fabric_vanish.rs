//! Who vanishes and returns: a host, a switch, the subnet manager's host. Traffic resumes, and what was there keeps its
//! LID.

use core::time::Duration;
use ib_stack::SmRole;
use openib_sim::sim::{Settings, Simulation};
use openib_tests::scenario::{Family, Scenario, assert_exact, lid, lids};
use platform_sim::fabric::topology::{NodeKind, build};

/// Of a change, until it is mended: the manager's look at the fabric, ageing neighbours.
const PATIENCE: Duration = Duration::from_secs(120);

/// Pings between pairs until all are answered, in both families.
fn resumes(scenario: &mut Scenario, pairs: &[(usize, usize)]) {
    let end = scenario.sim.now().after(PATIENCE);
    for family in [Family::V4, Family::V6] {
        loop {
            let echoes = scenario.ping(pairs, family, 1, Duration::from_secs(1));
            let all = echoes.iter().flatten();
            if all.into_iter().all(|echo| echo.round_trip.is_some()) {
                break;
            }
            assert!(
                scenario.sim.now() < end,
                "{family:?} {pairs:?}\n{}\n{}",
                scenario.sim.describe(),
                scenario.log()
            );
        }
    }
    scenario.ping_all(pairs);
}

/// None of `pairs` is answered.
fn is_silent(scenario: &mut Scenario, pairs: &[(usize, usize)]) {
    let echoes = scenario.ping(pairs, Family::V4, 2, Duration::from_millis(500));
    assert!(
        echoes
            .iter()
            .flatten()
            .all(|echo| echo.round_trip.is_none())
    );
}

#[test]
fn a_host_that_loses_power_and_returns_is_reached_again_and_the_others_notice_nothing() {
    let mut scenario = Scenario::up(build::line(2, 2), 11);
    let before = lids(&scenario.sim.hosts);
    scenario.ping_all(&[(0, 3), (3, 1), (1, 2)]);
    scenario.sim.power_off(3);
    scenario.ping_all(&[(1, 2), (2, 0)]);
    is_silent(&mut scenario, &[(0, 3)]);
    scenario.sim.run_for(Duration::from_secs(15));
    scenario.sim.power_on(3).unwrap();
    scenario.wait_up(PATIENCE);
    resumes(&mut scenario, &[(0, 3), (3, 1), (2, 3)]);
    assert_eq!(lids(&scenario.sim.hosts), before);
    let length = 100_000;
    let ends = scenario.stream(3, 0, Family::V6, length, PATIENCE);
    assert_exact(ends, length);
}

#[test]
fn a_host_that_closes_its_hca_and_opens_it_again_is_reached_again() {
    let mut scenario = Scenario::up(build::star(2), 12);
    scenario.ping_all(&[(0, 1)]);
    scenario.stop(1);
    is_silent(&mut scenario, &[(0, 1)]);
    scenario.sim.start(1).unwrap();
    assert!(
        !Simulation::all_up(&scenario.sim.hosts),
        "it has only begun"
    );
    assert!(scenario.sim.start(1).is_err(), "it runs already");
    scenario.wait_up(PATIENCE);
    resumes(&mut scenario, &[(0, 1), (1, 0)]);
}

#[test]
fn a_switch_that_vanishes_and_returns_carries_traffic_again() {
    let mut scenario = Scenario::up(build::line(2, 2), 13);
    let before = lids(&scenario.sim.hosts);
    scenario.ping_all(&[(0, 2), (3, 1)]);
    let switches: Vec<_> = scenario.sim.topology.of_kind(NodeKind::Switch).collect();
    scenario.sim.plug_node(switches[1], false);
    scenario.sim.run_for(Duration::from_secs(15));
    // What it does not touch goes on.
    scenario.ping_all(&[(0, 1)]);
    is_silent(&mut scenario, &[(0, 2)]);
    scenario.sim.plug_node(switches[1], true);
    scenario.wait_up(PATIENCE);
    resumes(&mut scenario, &[(0, 2), (3, 1), (2, 3)]);
    assert_eq!(lids(&scenario.sim.hosts), before);
}

#[test]
fn a_ring_goes_the_other_way_round_when_a_switch_on_the_way_vanishes() {
    let mut scenario = Scenario::up(build::ring(4, 1), 14);
    scenario.ping_all(&[(0, 1), (1, 2), (2, 3), (3, 0)]);
    let switches: Vec<_> = scenario.sim.topology.of_kind(NodeKind::Switch).collect();
    scenario.sim.plug_node(switches[1], false);
    resumes(&mut scenario, &[(0, 2), (2, 3), (3, 0)]);
}

#[test]
fn the_managers_host_that_loses_power_and_returns_finds_everybody_with_the_lid_they_had() {
    let mut scenario = Scenario::up(build::star(3), 15);
    let before = lids(&scenario.sim.hosts);
    scenario.ping_all(&[(1, 2), (0, 1)]);
    scenario.sim.power_off(0);
    // Without a manager, what is known goes on.
    scenario.ping_all(&[(1, 2)]);
    scenario.sim.power_on(0).unwrap();
    scenario.wait_up(PATIENCE);
    resumes(&mut scenario, &[(0, 1), (1, 2), (2, 0)]);
    assert_eq!(lids(&scenario.sim.hosts), before);
}

#[test]
fn a_second_manager_takes_over_when_the_masters_host_vanishes_and_lids_stay() {
    let mut settings = Settings::new(build::line(2, 2), 16);
    settings.managers = 2;
    settings.sweep_interval = Duration::from_secs(2);
    let mut scenario = Scenario::new(settings);
    scenario.sim.start_all();
    scenario.wait_up(PATIENCE);
    let role = |scenario: &Scenario, index: usize| {
        scenario.sim.hosts[index]
            .remote
            .look(|status| status.manager)
    };
    scenario.wait("one master, one standby", PATIENCE, |hosts| {
        let role = |index: usize| hosts[index].remote.look(|status| status.manager);
        (role(0), role(1)) == (Some(SmRole::Master), Some(SmRole::Standby))
    });
    let before = lids(&scenario.sim.hosts);
    scenario.sim.power_off(0);
    let sm_lid = lid(&scenario.sim.hosts[1]);
    scenario.wait("the standby takes over", PATIENCE, |hosts| {
        hosts[1..].iter().all(|host| {
            let status = host.remote.status();
            status.port.state == 4 && status.port.sm_lid.0 == sm_lid
        })
    });
    assert_eq!(role(&scenario, 1), Some(SmRole::Master));
    assert_eq!(lids(&scenario.sim.hosts)[1..], before[1..]);
    resumes(&mut scenario, &[(1, 2), (2, 3), (3, 1)]);
    // The first returns, with the higher priority: there is one master in the end, and all is as it was.
    scenario.sim.power_on(0).unwrap();
    scenario.wait_up(PATIENCE);
    scenario.wait("one master again", PATIENCE, |hosts| {
        let role = |index: usize| hosts[index].remote.look(|status| status.manager);
        let masters = (0..2).filter(|index| role(*index) == Some(SmRole::Master));
        masters.count() == 1 && Simulation::all_up(hosts)
    });
    assert_eq!(lids(&scenario.sim.hosts), before);
    resumes(&mut scenario, &[(0, 3), (1, 0), (2, 1)]);
}
