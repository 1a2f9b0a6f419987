//! Several managers, one master.

mod fabric;

use core_ib::wire::mad::{AttributeId, Mad, MadStatus, Method, SmInfo, SmState, Smp};
use core_ib::{Guid, Lid, Qpn};
use fabric::{Fabric, checks};
use ib_sm::{Config, Event, Profile, Report, Role};
use platform_sim::fabric::topology::{PortRef, build};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

fn config(priority: u8) -> Config<'static> {
    Config {
        priority,
        poll_interval: SECOND,
        sweep_interval: 2 * SECOND,
        ..Config::default()
    }
}

fn seat(fabric: &mut Fabric, host: usize, priority: u8) -> usize {
    let node = fabric.hosts()[host];
    fabric.seat(node, 1, &Profile::for_hosts(32), config(priority))
}

fn roles(fabric: &Fabric) -> Vec<Role> {
    fabric.seats.iter().map(|seat| seat.sm.role()).collect()
}

fn masters(fabric: &Fabric) -> usize {
    roles(fabric)
        .into_iter()
        .filter(|&role| role == Role::Master)
        .count()
}

fn is_up(fabric: &Fabric) -> bool {
    checks::subnet_is_up(fabric, fabric.seats[0].node).is_ok()
}

#[test]
fn the_higher_priority_wins_whoever_comes_first() {
    for (first, second) in [(3, 5), (5, 3)] {
        let mut fabric = Fabric::new(build::line(3, 2));
        seat(&mut fabric, 1, first);
        seat(&mut fabric, 4, second);
        let winner = usize::from(second > first);
        assert!(
            fabric.run_until(20 * SECOND, |fabric| fabric.seats[winner].sm.is_serving()
                && is_up(fabric))
        );
        fabric.run_for(10 * SECOND);
        assert_eq!(roles(&fabric)[winner], Role::Master);
        assert_eq!(roles(&fabric)[1 - winner], Role::Standby);
        let lid = fabric.lid(fabric.seats[winner].node);
        for host in fabric.hosts() {
            assert_eq!(fabric.nodes[host].port(1).unwrap().info.master_sm_lid, lid);
        }
    }
}

#[test]
fn of_equal_priorities_the_lower_guid_wins() {
    let mut fabric = Fabric::new(build::star(6));
    for host in [4, 1, 3] {
        seat(&mut fabric, host, 7);
    }
    fabric.run_for(10 * SECOND);
    assert_eq!(roles(&fabric), [Role::Standby, Role::Master, Role::Standby]);
    assert!(is_up(&fabric));
}

#[test]
fn a_standby_takes_over_when_the_master_is_gone_and_everybody_keeps_his_lid() {
    let mut fabric = Fabric::new(build::line(3, 3));
    seat(&mut fabric, 0, 9);
    seat(&mut fabric, 8, 2);
    fabric.run_for(5 * SECOND);
    assert_eq!(roles(&fabric), [Role::Master, Role::Standby]);
    let before: Vec<_> = fabric
        .hosts()
        .iter()
        .map(|&host| fabric.lid(host))
        .collect();
    fabric.reregistered.clear();
    fabric.kill(0);
    assert!(fabric.run_until(30 * SECOND, |fabric| fabric.seats[1].sm.is_serving()));
    let after: Vec<_> = fabric
        .hosts()
        .iter()
        .map(|&host| fabric.lid(host))
        .collect();
    assert_eq!(before, after);
    let lid = fabric.lid(fabric.seats[1].node);
    for host in fabric.hosts() {
        assert_eq!(fabric.nodes[host].port(1).unwrap().info.master_sm_lid, lid);
        assert!(
            fabric.reregistered.contains(&host),
            "clients of node {host} are to register anew"
        );
    }
    assert!(is_up(&fabric));
}

#[test]
fn a_standby_takes_over_when_the_masters_host_loses_its_cable() {
    let mut fabric = Fabric::new(build::star(5));
    seat(&mut fabric, 0, 9);
    seat(&mut fabric, 3, 2);
    fabric.run_for(5 * SECOND);
    let node = fabric.seats[0].node;
    let peer = fabric.unplug(PortRef::new(node, 1)).unwrap();
    fabric.run_for(30 * SECOND);
    assert_eq!(roles(&fabric), [Role::Discovering, Role::Master]);
    checks::subnet_is_up(&fabric, fabric.seats[1].node).unwrap();
    // The old one returns; it is better, and gets the subnet back.
    fabric.plug(PortRef::new(node, 1), peer);
    fabric.run_for(30 * SECOND);
    assert_eq!(roles(&fabric), [Role::Master, Role::Standby]);
    assert!(is_up(&fabric));
}

#[test]
fn a_better_manager_that_starts_later_is_handed_the_subnet() {
    let mut fabric = Fabric::new(build::line(2, 3));
    seat(&mut fabric, 0, 1);
    fabric.run_for(5 * SECOND);
    assert_eq!(roles(&fabric), [Role::Master]);
    seat(&mut fabric, 5, 8);
    fabric.run_for(20 * SECOND);
    assert_eq!(roles(&fabric), [Role::Standby, Role::Master]);
    assert!(is_up(&fabric) && fabric.seats[1].sm.is_serving() && !fabric.seats[0].sm.is_serving());
}

#[test]
fn when_two_subnets_are_joined_one_master_remains() {
    let mut topology = build::line(4, 2);
    let between = topology.cables.iter().position(|cable| {
        let switches: Vec<_> = topology
            .of_kind(platform_sim::fabric::topology::NodeKind::Switch)
            .collect();
        let ends = cable.ends.map(|end| end.node);
        ends == [switches[1], switches[2]]
    });
    let [a, b] = topology.cables.remove(between.unwrap()).ends;
    for (left, right) in [(3, 6), (6, 3)] {
        let mut fabric = Fabric::new(topology.clone());
        seat(&mut fabric, 0, left);
        seat(&mut fabric, 7, right);
        fabric.run_for(5 * SECOND);
        assert_eq!(roles(&fabric), [Role::Master, Role::Master]);
        fabric.plug(a, b);
        let whole = fabric.run_until(120 * SECOND, |fabric| masters(fabric) == 1 && is_up(fabric));
        assert!(whole, "{:?}", roles(&fabric));
        let winner = usize::from(right > left);
        assert_eq!(roles(&fabric)[winner], Role::Master);
        assert_eq!(
            checks::reachable(&fabric, fabric.seats[0].node).len(),
            fabric.nodes.len()
        );
    }
}

#[test]
fn one_who_resigns_hands_the_subnet_over() {
    let mut fabric = Fabric::new(build::star(4));
    seat(&mut fabric, 0, 9);
    seat(&mut fabric, 2, 1);
    fabric.run_for(5 * SECOND);
    let now = fabric.now;
    fabric.seats[0].sm.handle(Event::Resign, now);
    fabric.wake(0);
    fabric.run_for(5 * SECOND);
    assert_eq!(roles(&fabric), [Role::NotActive, Role::Master]);
    assert!(is_up(&fabric));
    // Without anybody to hand over to it is over at once.
    let now = fabric.now;
    fabric.seats[1].sm.handle(Event::Resign, now);
    fabric.wake(1);
    fabric.run_for(SECOND);
    assert_eq!(roles(&fabric), [Role::NotActive, Role::NotActive]);
}

#[test]
fn at_no_moment_do_two_masters_write_into_one_subnet_that_started_whole() {
    let mut fabric = Fabric::new(build::line(3, 3));
    for (host, priority) in [(0, 4), (4, 6), (8, 5)] {
        seat(&mut fabric, host, priority);
    }
    fabric.loss = 0x10000 / 50;
    for _ in 0..3000 {
        fabric.run_for(SECOND / 100);
        let writers = fabric
            .seats
            .iter()
            .filter(|seat| seat.sm.is_serving())
            .count();
        assert!(writers <= 1, "{:?}", roles(&fabric));
    }
    assert_eq!(roles(&fabric)[1], Role::Master);
}

/// Set(SMInfo) with a command, as from another manager; gives the status of the answer.
fn command(fabric: &mut Fabric, seat: usize, command: u32, state: SmState) -> MadStatus {
    let (node, now) = (fabric.seats[seat].node, fabric.now);
    let info = SmInfo {
        guid: Guid(77),
        priority: 15,
        state,
        ..SmInfo::default()
    };
    let mut smp = Smp::lid_routed(Method::SET, AttributeId::SM_INFO, command);
    smp.put(&info).unwrap();
    smp.header.tid = now.0;
    fabric.replies.clear();
    fabric.deliver(node, Mad(smp.to_bytes()), Lid(0x77), Qpn::SMI);
    fabric.run_for(Duration::from_micros(100));
    let tid = smp.header.tid;
    let answer = fabric.replies.iter().find(|mad| mad.header().tid == tid);
    answer.expect("an answer").header().status
}

#[test]
fn commands_that_are_illegal_in_a_state_are_refused() {
    use SmInfo as S;
    let mut fabric = Fabric::new(build::star(3));
    seat(&mut fabric, 0, 3);
    fabric.run_for(2 * SECOND);
    let bad = MadStatus::INVALID_FIELD;
    assert_eq!(command(&mut fabric, 0, S::STANDBY, SmState::MASTER), bad);
    assert_eq!(command(&mut fabric, 0, S::DISABLE, SmState::MASTER), bad);
    assert_eq!(command(&mut fabric, 0, 9, SmState::MASTER), bad);
    assert_eq!(
        command(&mut fabric, 0, S::HANDOVER, SmState::STANDBY),
        bad,
        "only a master hands over"
    );
    assert_eq!(
        command(&mut fabric, 0, S::HANDOVER, SmState::MASTER),
        MadStatus::OK
    );
    fabric.run_for(SECOND);
    assert_eq!(
        roles(&fabric),
        [Role::Master],
        "two subnets were joined, and it stays what it is"
    );
}

#[test]
fn a_standby_can_be_sent_to_sleep_and_woken() {
    use SmInfo as S;
    let mut fabric = Fabric::new(build::star(4));
    seat(&mut fabric, 0, 9);
    seat(&mut fabric, 2, 1);
    fabric.run_for(5 * SECOND);
    assert_eq!(
        command(&mut fabric, 1, S::DISABLE, SmState::MASTER),
        MadStatus::OK
    );
    assert_eq!(roles(&fabric)[1], Role::NotActive);
    fabric.kill(0);
    fabric.run_for(30 * SECOND);
    assert_eq!(
        roles(&fabric)[1],
        Role::NotActive,
        "it does not even take over"
    );
    assert_eq!(
        command(&mut fabric, 1, S::STANDBY, SmState::MASTER),
        MadStatus::OK
    );
    fabric.run_for(5 * SECOND);
    assert_eq!(roles(&fabric)[1], Role::Master, "there is nobody else");
}

#[test]
fn a_manager_without_the_key_is_not_obeyed() {
    let mut fabric = Fabric::new(build::star(3));
    let node = fabric.hosts()[0];
    let config = Config {
        sm_key: core_ib::wire::mad::SmKey(5),
        ..config(3)
    };
    fabric.seat(node, 1, &Profile::for_hosts(8), config);
    fabric.run_for(2 * SECOND);
    assert_eq!(
        command(&mut fabric, 0, SmInfo::DISCOVER, SmState::MASTER),
        MadStatus::INVALID_FIELD
    );
}

#[test]
fn every_change_of_role_is_reported() {
    let mut fabric = Fabric::new(build::star(4));
    seat(&mut fabric, 1, 1);
    seat(&mut fabric, 0, 9);
    fabric.run_for(5 * SECOND);
    fabric.kill(1);
    fabric.run_for(30 * SECOND);
    let states = fabric.seats[0]
        .reports
        .iter()
        .filter_map(|report| match report {
            Report::State { now } => Some(*now),
            _ => None,
        });
    let states: Vec<_> = states.collect();
    assert_eq!(states.last(), Some(&Role::Master), "{states:?}");
    assert!(states.contains(&Role::Standby), "{states:?}");
}

#[test]
fn clients_register_anew_with_a_manager_that_was_started_again_in_the_same_place() {
    let mut fabric = Fabric::new(build::star(4));
    seat(&mut fabric, 1, 1);
    fabric.run_for(5 * SECOND);
    fabric.kill(0);
    fabric.reregistered.clear();
    seat(&mut fabric, 1, 1);
    fabric.run_for(5 * SECOND);
    assert_eq!(roles(&fabric)[1], Role::Master);
    for host in fabric.hosts() {
        assert!(fabric.reregistered.contains(&host), "node {host}");
    }
}
