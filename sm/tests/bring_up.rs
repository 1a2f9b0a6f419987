//! A subnet comes up, whatever its shape.

mod fabric;

use fabric::{Fabric, checks};
use ib_sm::{Config, Report, Role};
use platform_sim::fabric::topology::build;
use std::time::Duration;

fn comes_up(topology: platform_sim::fabric::Topology) -> Fabric {
    let mut fabric = Fabric::managed(topology, Config::default());
    let up = fabric.run_until(Duration::from_secs(5), |fabric| {
        fabric.seats[0].sm.is_serving()
    });
    assert!(up, "{:?}", fabric.seats[0].reports);
    let from = fabric.seats[0].node;
    checks::subnet_is_up(&fabric, from).unwrap();
    let warnings: Vec<_> = fabric.seats[0]
        .reports
        .iter()
        .filter(|report| report.level() == ib_sm::Level::Warning)
        .collect();
    assert!(warnings.is_empty(), "{warnings:?}");
    assert_eq!(fabric.seats[0].sm.role(), Role::Master);
    fabric
}

#[test]
fn two_hosts_back_to_back() {
    let fabric = comes_up(build::back_to_back());
    assert!(fabric.seats[0].reports.contains(&Report::SubnetUp {
        end_ports: 2,
        switches: 0
    }));
}

#[test]
fn a_star() {
    comes_up(build::star(16));
}

#[test]
fn a_line_of_switches() {
    comes_up(build::line(20, 2));
}

#[test]
fn a_ring_of_switches() {
    comes_up(build::ring(9, 3));
}

#[test]
fn a_fat_tree() {
    comes_up(
        build::fat_tree(build::FatTree {
            radix: 8,
            levels: 3,
            parts: 4,
        })
        .unwrap(),
    );
}

#[test]
fn a_fat_tree_of_a_thousand_hosts() {
    let shape = build::FatTree {
        radix: 64,
        levels: 2,
        parts: 32,
    };
    let fabric = comes_up(build::fat_tree(shape).unwrap());
    assert_eq!(fabric.hosts().len(), 1024);
    assert!(
        fabric.seats[0].by_lid > 4096,
        "most links are set up by LID"
    );
}

#[test]
fn a_single_host_without_a_cable_is_a_subnet_of_one_once_its_port_is_up() {
    let mut topology = build::back_to_back();
    topology.cables.clear();
    let mut fabric = Fabric::managed(topology, Config::default());
    fabric.run_for(Duration::from_secs(1));
    assert_eq!(fabric.seats[0].sm.role(), Role::Master);
    assert!(fabric.lid(fabric.seats[0].node).is_unicast());
}
