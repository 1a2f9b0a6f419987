//! Fabrics from files come up: those of `tests/topologies`, and every `*.ibnetdiscover` in the folder that `OPENIB_TOPOLOGIES`
//! names. On each, our subnet manager makes every port that has a cable Active; hosts of ours reach each other, as many as
//! the file has, or two of them where it has many: then the others are channel adapters that only answer the manager.

use core::time::Duration;
use core_ib::wire::mad::PortState;
use openib_sim::sim::Settings;
use openib_tests::scenario::Scenario;
use platform_sim::fabric::Fabric;
use platform_sim::fabric::topology::{NodeKind, Topology};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// A fabric with more hosts has no driver on most of them.
const MANY: usize = 24;

fn files() -> Vec<PathBuf> {
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("topologies");
    let theirs = std::env::var_os("OPENIB_TOPOLOGIES").map(PathBuf::from);
    let mut all = Vec::new();
    for folder in [Some(ours), theirs].into_iter().flatten() {
        let entries = std::fs::read_dir(&folder).unwrap();
        let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        let is_topology = |end: &OsStr| end == "ibnetdiscover" || end == "ibsim";
        files.retain(|path| path.extension().is_some_and(is_topology));
        files.sort();
        assert!(files.len() > 1, "{folder:?} has hardly a topology");
        all.extend(files);
    }
    all
}

/// Ports that have a cable and are not Active.
fn not_active(scenario: &mut Scenario) -> Vec<String> {
    let topology = scenario.sim.topology.clone();
    let own: Vec<_> = scenario.sim.hosts.iter().map(|host| host.node).collect();
    let look = |fabric: &mut Fabric, _| {
        let ends = topology.cables.iter().flat_map(|cable| cable.ends);
        let theirs = ends.filter(|end| !own.contains(&end.node));
        let idle = theirs.filter_map(|end| {
            let node = &topology.nodes[end.node];
            let state = fabric.node(end.node)?.port(end.port)?.info.state;
            let text = format!("{} port {}: {state:?}", node.id, end.port);
            (state != PortState::ACTIVE).then_some(text)
        });
        idle.collect()
    };
    let mut idle: Vec<String> = scenario.sim.world.with_wire(look).unwrap();
    for host in &scenario.sim.hosts {
        let state = host.remote.look(|status| status.port.state);
        if state != 4 {
            idle.push(format!("{}: {state}", host.name));
        }
    }
    idle
}

/// What switches, and channel adapters without a driver, are called is what the file says, to the last of 64 bytes.
fn is_called_as_written(scenario: &mut Scenario) {
    let topology = scenario.sim.topology.clone();
    let look = |fabric: &mut Fabric, _| {
        for (index, spec) in topology.nodes.iter().enumerate() {
            if let Some(node) = fabric.node(index) {
                assert_eq!(node.description.as_str(), spec.description);
            }
        }
    };
    scenario.sim.world.with_wire(look).unwrap();
}

#[test]
fn every_fabric_of_the_folders_comes_up() {
    for path in files() {
        let parsed = Topology::load(&path).unwrap();
        let topology = parsed.topology;
        let hosts = topology.of_kind(NodeKind::Ca).count();
        println!("{}: {hosts} channel adapters", path.display());
        let mut settings = Settings::new(topology, 7);
        if hosts > MANY {
            settings.hosts = Some(2);
        }
        let mut scenario = Scenario::new(settings);
        is_called_as_written(&mut scenario);
        if scenario.is_empty() {
            continue;
        }
        scenario.sim.start_all();
        scenario.wait_up(Duration::from_secs(120));
        scenario.settle();
        let end = scenario.sim.now().after(Duration::from_secs(60));
        loop {
            let idle = not_active(&mut scenario);
            if idle.is_empty() {
                break;
            }
            let late = scenario.sim.now() >= end;
            assert!(!late, "{}: {idle:#?}", path.display());
            scenario.sim.run_for(Duration::from_millis(100));
        }
        let last = scenario.len() - 1;
        if last > 0 {
            scenario.ping_all(&[(0, last), (last, 0)]);
        }
    }
}
