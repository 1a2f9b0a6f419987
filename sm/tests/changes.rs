//! What changes in a subnet is noticed, mended, and disturbs nobody else.

mod fabric;

use core_ib::wire::mad::{
    Attribute, AttributeId, ChangeFlags, LocalChangesTrap, MKey, Mad, Method, MtuCode,
    NodeDescription, NodeRecord, PortState, SaHeader, TrapDetails, VlCode, VlWeight,
};
use core_ib::{Guid, Lid, Mtu, PKey, Sl};
use fabric::{Fabric, checks};
use ib_sm::{Broadcast, Config, Level, Membership, Partition, Qos, Report};
use platform_sim::fabric::Topology;
use platform_sim::fabric::topology::{PortRef, build};
use std::collections::HashMap;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

fn up(topology: Topology, config: Config<'static>) -> Fabric {
    let mut fabric = Fabric::managed(topology, config);
    assert!(fabric.run_until(20 * SECOND, |fabric| fabric.seats[0].sm.is_serving()));
    fabric.run_for(SECOND / 10);
    let from = fabric.seats[0].node;
    checks::subnet_is_up(&fabric, from).unwrap();
    fabric
}

fn tree() -> Topology {
    build::fat_tree(build::FatTree {
        radix: 8,
        levels: 2,
        parts: 4,
    })
    .unwrap()
}

fn heals(fabric: &mut Fabric) {
    let from = fabric.seats[0].node;
    let healed = fabric.run_until(60 * SECOND, |fabric| {
        checks::subnet_is_up(fabric, from).is_ok()
    });
    assert!(
        healed,
        "{:?}: {:?}",
        checks::subnet_is_up(fabric, from),
        fabric.seats[0].reports
    );
}

fn lids(fabric: &Fabric) -> HashMap<usize, Lid> {
    (0..fabric.nodes.len())
        .map(|node| (node, fabric.lid(node)))
        .collect()
}

#[test]
fn a_host_that_vanishes_and_returns_gets_its_lid_again_and_disturbs_no_other_host() {
    let mut fabric = up(tree(), Config::default());
    let before = lids(&fabric);
    fabric.writes.clear();
    let (host, others) = (fabric.hosts()[5], fabric.hosts());
    fabric.power_off(host);
    fabric.run_for(SECOND);
    let guid = Guid(fabric.topology.nodes[host].guid.0 + 1);
    assert!(fabric.seats[0].reports.contains(&Report::PortOut {
        guid,
        lid: before[&host]
    }));
    fabric.power_on(host);
    heals(&mut fabric);
    assert_eq!(lids(&fabric), before);
    let written: Vec<_> = others
        .into_iter()
        .filter(|node| fabric.writes.contains_key(node))
        .collect();
    assert_eq!(written, [host]);
}

#[test]
fn a_cable_between_switches_that_goes_is_routed_around_and_used_again_when_it_returns() {
    let mut fabric = up(tree(), Config::default());
    let before = lids(&fabric);
    let cable = fabric.cables.keys().copied().filter(|end| {
        let peer = fabric.cables[end];
        fabric.nodes[end.node].switch.is_some() && fabric.nodes[peer.node].switch.is_some()
    });
    let cable = cable.min().unwrap();
    let peer = fabric.unplug(cable).unwrap();
    heals(&mut fabric);
    fabric.plug(cable, peer);
    fabric.run_for(SECOND);
    heals(&mut fabric);
    assert_eq!(lids(&fabric), before);
    let switch = fabric.nodes[cable.node].switch.as_ref().unwrap();
    let used = before
        .values()
        .filter(|&&lid| switch.unicast_port(lid) == Some(cable.port))
        .count();
    assert!(used >= 2, "{used} LIDs leave by the cable that returned");
}

#[test]
fn a_switch_that_starts_anew_gets_its_tables_again() {
    let mut fabric = up(tree(), Config::default());
    let before = lids(&fabric);
    for switch in fabric.switches().into_iter().skip(1) {
        fabric.power_off(switch);
        fabric.run_for(2 * SECOND);
        fabric.power_on(switch);
        fabric.run_for(2 * SECOND);
        heals(&mut fabric);
    }
    assert_eq!(lids(&fabric), before);
}

#[test]
fn a_switch_that_lost_its_memory_between_two_sweeps_is_noticed() {
    let mut fabric = up(build::line(3, 2), Config::default());
    let last = *fabric.switches().last().unwrap();
    // It is off for so short a time that nobody sees it down.
    fabric.power_off(last);
    fabric.power_on(last);
    fabric.run_for(SECOND);
    heals(&mut fabric);
}

#[test]
fn a_trap_is_not_needed_to_notice_a_change() {
    let mut fabric = up(
        build::line(3, 2),
        Config {
            sweep_interval: SECOND,
            ..Config::default()
        },
    );
    fabric.loss = 0x10000; // nothing arrives, traps neither
    let host = *fabric.hosts().last().unwrap();
    fabric.power_off(host);
    fabric.run_for(SECOND / 20);
    fabric.loss = 0;
    fabric.run_for(30 * SECOND);
    let gone = fabric.seats[0]
        .reports
        .iter()
        .any(|report| matches!(report, Report::PortOut { .. }));
    assert!(gone, "{:?}", fabric.seats[0].reports);
}

#[test]
fn a_subnet_comes_up_although_smps_are_lost() {
    for seed in 1..6_u64 {
        let mut fabric = Fabric::managed(tree(), Config::default());
        fabric.loss = 0x10000 / 12;
        fabric.dice = (seed << 32 | seed).wrapping_mul(0x9e37_79b9) | 1;
        let from = fabric.seats[0].node;
        let up = fabric.run_until(120 * SECOND, |fabric| {
            checks::subnet_is_up(fabric, from).is_ok()
        });
        assert!(up, "seed {seed}: {:?}", checks::subnet_is_up(&fabric, from));
    }
}

#[test]
fn a_quiet_subnet_is_only_looked_at() {
    let mut fabric = up(tree(), Config::default());
    fabric.writes.clear();
    let sent = fabric.seats[0].sent;
    fabric.run_for(11 * SECOND);
    // One question to each switch.
    assert_eq!(fabric.seats[0].sent - sent, fabric.switches().len() as u64);
    fabric.sweep_now(0);
    fabric.run_for(SECOND);
    assert!(
        fabric.seats[0].sent - sent > 80,
        "a heavy sweep asks everybody"
    );
    assert_eq!(fabric.writes, HashMap::new(), "and writes nothing");
}

#[test]
fn with_an_lmc_every_adapter_port_has_a_block_of_lids_that_all_work() {
    let fabric = up(
        tree(),
        Config {
            lmc: 2,
            ..Config::default()
        },
    );
    let host = fabric.hosts()[3];
    let info = fabric.nodes[host].port(1).unwrap().info;
    assert_eq!((info.lmc, info.lid.0 % 4), (2, 0));
    // Its four LIDs take different ways from another leaf.
    let leaf = fabric
        .peer(PortRef::new(*fabric.hosts().last().unwrap(), 1))
        .unwrap()
        .node;
    let switch = fabric.nodes[leaf].switch.as_ref().unwrap();
    let mut ways: Vec<_> = (0..4)
        .map(|bit| switch.unicast_port(Lid(info.lid.0 + bit)))
        .collect();
    ways.sort_unstable();
    ways.dedup();
    assert_eq!(ways.len(), 4);
}

#[test]
fn with_an_m_key_the_nodes_obey_this_manager_alone() {
    let config = Config {
        m_key: MKey(0x1234),
        m_key_protect: 2,
        ..Config::default()
    };
    let mut fabric = up(tree(), config);
    for (node, port, ..) in
        checks::end_ports(&fabric, &checks::reachable(&fabric, fabric.seats[0].node))
    {
        let info = fabric.nodes[node].port(port).unwrap().info;
        assert_eq!((info.m_key, info.m_key_protect), (MKey(0x1234), 2));
    }
    let host = fabric.hosts()[7];
    fabric.power_off(host);
    fabric.run_for(SECOND);
    fabric.power_on(host);
    heals(&mut fabric);
}

#[test]
fn hosts_get_the_keys_of_their_partitions_and_stale_ones_go() {
    static MEMBERS: [(Guid, Membership); 2] = [
        (Guid(0x0014_0500_0010_0011), Membership::Full),
        (Guid(0x0014_0500_0010_0021), Membership::Limited),
    ];
    static PARTITIONS: [Partition<'static>; 2] = [
        Partition {
            base: 0x0011,
            others: None,
            members: &MEMBERS,
            ipoib: Some(Broadcast::DEFAULT),
        },
        Partition::open(0x0022),
    ];
    let mut fabric = Fabric::managed(
        build::star(4),
        Config {
            partitions: &PARTITIONS,
            ..Config::default()
        },
    );
    let hosts = fabric.hosts();
    fabric.nodes[hosts[3]].port_mut(1).unwrap().p_keys[40] = PKey(0x8099);
    assert!(fabric.run_until(SECOND, |fabric| fabric.seats[0].sm.is_serving()));
    let keys = |host: usize| -> Vec<u16> {
        let port = fabric.nodes[hosts[host]].port(1).unwrap();
        port.p_keys
            .iter()
            .map(|key| key.0)
            .filter(|&key| key != 0)
            .collect()
    };
    assert_eq!(keys(0), [0xffff, 0x8022]);
    assert_eq!(keys(1), [0xffff, 0x8011, 0x8022]);
    assert_eq!(keys(2), [0xffff, 0x0011, 0x8022]);
    assert_eq!(keys(3), [0xffff, 0x8022]);
}

#[test]
fn quality_of_service_is_written_into_every_port_of_every_link() {
    let mut sl_to_vl = [0; 16];
    (sl_to_vl[1], sl_to_vl[2], sl_to_vl[15]) = (1, 7, 15);
    let mut qos = Qos {
        sl_to_vl,
        high: [VlWeight::default(); 16],
        low: [VlWeight::default(); 16],
        high_limit: 9,
    };
    (qos.low[0], qos.low[1], qos.high[0]) = (
        VlWeight { vl: 0, weight: 4 },
        VlWeight { vl: 9, weight: 5 },
        VlWeight { vl: 1, weight: 6 },
    );
    let fabric = up(
        build::line(2, 2),
        Config {
            qos: Some(qos),
            ..Config::default()
        },
    );
    for &end in fabric.cables.keys() {
        let port = fabric.nodes[end.node].port(end.port).unwrap();
        assert!(!port.sl_to_vl.is_empty());
        // What a switch sends itself comes from port 0.
        for table in &port.sl_to_vl {
            let lanes = [0, 1, 2, 15].map(|sl| table.vl(Sl::new(sl)));
            assert_eq!(lanes, [0, 1, 3, 15], "{end:?}: lane 7 is folded onto four");
        }
        assert_eq!(port.vl_arb_low[0], VlWeight { vl: 0, weight: 4 });
        assert_eq!(
            port.vl_arb_low[1],
            VlWeight::default(),
            "there is no lane 9"
        );
        assert_eq!(port.vl_arb_high[0], VlWeight { vl: 1, weight: 6 });
        assert_eq!(port.info.vl_high_limit, 9);
    }
}

#[test]
fn both_ends_of_a_link_get_what_the_weaker_one_can() {
    let mut fabric = Fabric::managed(
        build::star(3),
        Config {
            max_op_vls: VlCode(2),
            ..Config::default()
        },
    );
    let host = fabric.hosts()[1];
    let info = &mut fabric.nodes[host].port_mut(1).unwrap().info;
    info.mtu_cap = MtuCode::from(Mtu::Mtu1024);
    assert!(fabric.run_until(SECOND, |fabric| fabric.seats[0].sm.is_serving()));
    checks::subnet_is_up(&fabric, fabric.seats[0].node).unwrap();
    let switch = fabric.switches()[0];
    let mtu = |node: usize, port| fabric.nodes[node].port(port).unwrap().info.neighbor_mtu;
    assert_eq!(
        [mtu(host, 1), mtu(switch, 2), mtu(switch, 1)].map(|mtu| mtu.0),
        [3, 3, 4]
    );
    assert_eq!(
        fabric.nodes[host].port(1).unwrap().info.operational_vls,
        VlCode(2)
    );
}

#[test]
fn a_link_in_use_whose_ends_should_agree_on_something_else_trains_anew_once() {
    let mut fabric = up(build::star(3), Config::default());
    let (host, switch) = (fabric.hosts()[2], fabric.switches()[0]);
    for (node, port) in [(host, 1), (switch, 3)] {
        fabric.nodes[node].port_mut(port).unwrap().info.neighbor_mtu = MtuCode(1);
    }
    fabric.sweep_now(0);
    fabric.run_for(5 * SECOND);
    heals(&mut fabric);
    assert_eq!(
        fabric.nodes[host].port(1).unwrap().info.neighbor_mtu,
        MtuCode(4)
    );
    assert_eq!(
        fabric.nodes[host]
            .port(1)
            .unwrap()
            .counts
            .link_downed
            .total(),
        1
    );
}

#[test]
fn two_hosts_with_one_guid_are_reported_and_the_rest_comes_up() {
    let mut topology = build::star(4);
    topology.nodes[3].guid = topology.nodes[2].guid;
    let mut fabric = Fabric::managed(topology, Config::default());
    assert!(fabric.run_until(20 * SECOND, |fabric| fabric.seats[0].sm.is_serving()));
    let guid = fabric.topology.nodes[2].guid;
    let reports = &fabric.seats[0].reports;
    assert!(
        reports.contains(&Report::DuplicateGuid { guid }),
        "{reports:?}"
    );
    let active = |node: usize| fabric.nodes[node].port(1).unwrap().info.state == PortState::ACTIVE;
    assert!(active(1) && active(4));
    assert!(active(2) != active(3), "one of the two is left out");
}

#[test]
fn a_plug_that_loops_does_no_harm() {
    let mut topology = build::line(2, 2);
    let switch = topology
        .of_kind(platform_sim::fabric::topology::NodeKind::Switch)
        .next()
        .unwrap();
    topology.connect(PortRef::new(switch, 3), PortRef::new(switch, 3));
    let mut fabric = Fabric::managed(topology, Config::default());
    assert!(fabric.run_until(5 * SECOND, |fabric| fabric.seats[0].sm.is_serving()));
    let nodes = checks::reachable(&fabric, fabric.seats[0].node);
    checks::everybody_reaches_everybody(&fabric, &nodes).unwrap();
}

#[test]
fn what_is_too_far_away_is_left_out_and_named() {
    let mut fabric = Fabric::managed(build::line(66, 1), Config::default());
    assert!(fabric.run_until(20 * SECOND, |fabric| fabric.seats[0].sm.is_serving()));
    let reports = &fabric.seats[0].reports;
    assert!(
        reports
            .iter()
            .any(|report| matches!(report, Report::TooFar { .. })),
        "{reports:?}"
    );
    let hosts = fabric.hosts();
    assert!(fabric.lid(hosts[60]).is_unicast());
    assert_eq!(fabric.lid(hosts[65]), Lid::NONE);
}

#[test]
fn a_link_that_gives_errors_again_and_again_is_no_longer_routed_over() {
    let mut fabric = up(tree(), Config::default());
    let leaf = fabric
        .peer(PortRef::new(fabric.hosts()[0], 1))
        .unwrap()
        .node;
    let up_port = fabric.nodes[leaf].external_ports().find(|&port| {
        fabric
            .peer(PortRef::new(leaf, port))
            .is_some_and(|peer| fabric.nodes[peer.node].switch.is_some())
    });
    let up_port = up_port.unwrap();
    for _ in 0..10 {
        fabric.port_trap(leaf, 129, up_port);
        fabric.run_for(SECOND / 5);
    }
    fabric.run_for(SECOND);
    let guid = fabric.topology.nodes[leaf].guid;
    assert!(fabric.seats[0].reports.contains(&Report::Unhealthy {
        guid,
        port: up_port
    }));
    let switch = fabric.nodes[leaf].switch.as_ref().unwrap();
    assert!(
        lids(&fabric)
            .values()
            .all(|&lid| switch.unicast_port(lid) != Some(up_port))
    );
    let nodes = checks::reachable(&fabric, fabric.seats[0].node);
    checks::everybody_reaches_everybody(&fabric, &nodes).unwrap();
}

#[test]
fn a_table_that_is_too_small_is_named_and_the_rest_comes_up() {
    for (entry, shrink) in [
        (
            "nodes",
            (|profile| profile.nodes = 5) as fn(&mut ib_sm::Profile),
        ),
        ("ports", |profile| profile.ports = 20),
        ("switches", |profile| profile.switches = 1),
        ("lids", |profile| profile.lids = 6),
    ] {
        let mut profile = ib_sm::Profile::for_hosts(16);
        shrink(&mut profile);
        let topology = build::line(4, 4);
        let first = topology
            .of_kind(platform_sim::fabric::topology::NodeKind::Ca)
            .next()
            .unwrap();
        let mut fabric = Fabric::new(topology);
        fabric.seat(first, 1, &profile, Config::default());
        fabric.run_for(5 * SECOND);
        let reports = &fabric.seats[0].reports;
        let named = |report: &Report| matches!(report, Report::NoRoom { entry: found, .. } if *found == entry);
        assert!(reports.iter().any(named), "{entry}: {reports:?}");
        assert!(fabric.lid(first).is_unicast(), "{entry}");
    }
}

#[test]
fn lids_that_were_remembered_are_given_again() {
    let topology = build::star(4);
    let mut fabric = Fabric::new(topology);
    let profile = ib_sm::Profile::for_hosts(64);
    let first = fabric.hosts()[0];
    let seat = fabric.seat(first, 1, &profile, Config::default());
    let guid = fabric.guid(fabric.hosts()[2]);
    assert!(fabric.seats[seat].sm.remember(guid, Lid(77)));
    assert!(
        !fabric.seats[seat].sm.remember(Guid(99), Lid(77)),
        "it is taken"
    );
    assert!(fabric.run_until(SECOND, |fabric| fabric.seats[0].sm.is_serving()));
    assert_eq!(fabric.lid(fabric.hosts()[2]), Lid(77));
    assert!(
        fabric.seats[seat]
            .sm
            .lids()
            .any(|kept| kept == (guid, Lid(77)))
    );
    assert_eq!(fabric.seats[seat].sm.lids().count(), 5);
}

#[test]
fn ports_that_have_a_lid_keep_it_when_a_manager_that_does_not_know_them_starts() {
    let mut fabric = up(build::star(5), Config::default());
    let before = lids(&fabric);
    fabric.kill(0);
    let last = *fabric.hosts().last().unwrap();
    fabric.seat(last, 1, &ib_sm::Profile::for_hosts(8), Config::default());
    assert!(fabric.run_until(5 * SECOND, |fabric| fabric.seats[1].sm.is_serving()));
    assert_eq!(lids(&fabric), before);
    checks::subnet_is_up(&fabric, last).unwrap();
}

#[test]
fn no_warning_is_given_where_nothing_is_wrong() {
    let mut fabric = up(build::ring(5, 3), Config::default());
    fabric.run_for(30 * SECOND);
    let warnings = fabric.seats[0]
        .reports
        .iter()
        .filter(|report| report.level() == Level::Warning);
    assert_eq!(warnings.count(), 0);
}

#[test]
fn a_trap_is_repressed_and_a_new_description_is_read() {
    let mut fabric = up(build::line(2, 3), Config::default());
    let host = fabric.hosts()[4];
    fabric.nodes[host].description = NodeDescription::new("another name");
    let lid = fabric.lid(host);
    let represses = |fabric: &Fabric| {
        let repress = (Method::TRAP_REPRESS, AttributeId::NOTICE);
        fabric.seats[0].kinds.get(&repress).copied().unwrap_or(0)
    };
    let (sent, before) = (fabric.seats[0].sent, represses(&fabric));
    let details = TrapDetails::LocalChanges(LocalChangesTrap {
        lid,
        other_local_changes: true,
        changes: ChangeFlags::NODE_DESCRIPTION,
        ..LocalChangesTrap::default()
    });
    fabric.trap(host, 1, 144, &details);
    fabric.run_for(SECOND / 10);
    assert_eq!(
        fabric.seats[0].sent - sent,
        2,
        "it is repressed, and one question is asked"
    );
    assert_eq!(represses(&fabric) - before, 1);
    let mut header = SaHeader::request(Method::GET, NodeRecord::ID, NodeRecord::LID);
    header.header.tid = 5;
    let mut mad = Mad::ZERO;
    mad.set_front(&header).unwrap();
    mad.put(&NodeRecord {
        lid,
        ..NodeRecord::default()
    })
    .unwrap();
    let record: NodeRecord = fabric.ask_and_wait(host, mad).unwrap().get().unwrap();
    assert_eq!(record.description.as_str(), "another name");
}

#[test]
fn hosts_that_start_one_after_another_are_all_noticed_at_once() {
    let mut fabric = up(
        build::star(20),
        Config {
            sweep_interval: 3600 * SECOND,
            ..Config::default()
        },
    );
    let hosts = fabric.hosts();
    for &host in &hosts[1..] {
        fabric.power_off(host);
    }
    fabric.run_for(2 * SECOND);
    for &host in &hosts[1..] {
        fabric.power_on(host);
        fabric.run_for(3 * SECOND / 2);
        let state = fabric.nodes[host].port(1).unwrap().info.state;
        assert_eq!(state, PortState::ACTIVE, "host {host}");
    }
}

#[test]
fn a_manager_can_sit_on_a_switch() {
    let mut fabric = Fabric::new(build::line(3, 2));
    let switch = fabric.switches()[1];
    fabric.seat(switch, 0, &ib_sm::Profile::for_hosts(8), Config::default());
    assert!(fabric.run_until(5 * SECOND, |fabric| fabric.seats[0].sm.is_serving()));
    checks::subnet_is_up(&fabric, switch).unwrap();
    let lid = fabric.lid(switch);
    for host in fabric.hosts() {
        assert_eq!(fabric.nodes[host].port(1).unwrap().info.master_sm_lid, lid);
    }
}

#[test]
fn a_switch_whose_tables_cannot_be_written_is_not_routed_through() {
    let mut fabric = Fabric::managed(build::ring(3, 1), Config::default());
    let switches = fabric.switches();
    fabric.nodes[switches[1]]
        .switch
        .as_mut()
        .unwrap()
        .info
        .linear_fdb_cap = 0;
    assert!(fabric.run_until(5 * SECOND, |fabric| fabric.seats[0].sm.is_serving()));
    let guid = fabric.topology.nodes[switches[1]].guid;
    assert!(
        fabric.seats[0]
            .reports
            .contains(&Report::NoLinearTable { guid })
    );
    // The other two reach each other by the third cable.
    let hosts = fabric.hosts();
    let mut hops = 0;
    let end = fabric.by_lid(hosts[0], 1, fabric.lid(hosts[2]), false, &mut hops);
    assert_eq!(end.map(|end| end.node), Some(hosts[2]));
}

#[test]
fn a_switch_that_lost_its_tables_alone_is_found_by_a_light_sweep() {
    let mut fabric = up(build::line(3, 2), Config::default());
    let switch = fabric.switches()[1];
    fabric.lose_tables(switch);
    fabric.run_for(12 * SECOND);
    heals(&mut fabric);
}

#[test]
fn nodes_that_are_busy_are_asked_again() {
    let mut fabric = Fabric::managed(build::line(3, 2), Config::default());
    let warnings = |fabric: &Fabric| {
        let all = fabric.seats[0].reports.iter();
        all.filter(|report| report.level() == Level::Warning)
            .count()
    };
    // Four tries are made; after that it is not there, until the next sweep.
    for (busy, told) in [(3, 0), (5, 1)] {
        fabric.busy = busy;
        fabric.sweep_now(0);
        fabric.run_for(5 * SECOND);
        assert_eq!((fabric.busy, warnings(&fabric)), (0, told));
        checks::subnet_is_up(&fabric, fabric.seats[0].node).unwrap();
    }
}
