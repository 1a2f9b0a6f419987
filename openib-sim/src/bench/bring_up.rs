//! From power-on to SUBNET UP: a radix-36 fat tree of switches, a host with our subnet manager (driver, HCA model and
//! all), and agents on the other channel adapters.

use super::table::{Cell, Row};
use crate::host::HostStatus;
use crate::sim::{Settings, SimHost, Simulation};
use core::time::Duration;
use platform_sim::fabric::topology::{NodeKind, Topology, build};

/// Hosts, and what OpenSM on ibsim took for a fabric of nearly that size, in a run of its own (recorded once): hosts, and
/// seconds, nearly all of them OpenSM's processor time.
const SIZES: [(usize, Option<(u32, f64)>); 3] =
    [(16, None), (256, None), (1024, Some((972, 1.56)))];

/// A full-bisection tree of switches with 36 ports and so many hosts.
fn topology(hosts: usize) -> Option<Topology> {
    let part = |per_part: usize| u8::try_from(hosts.div_ceil(per_part)).ok();
    let (levels, parts) = match hosts {
        0..=18 => return Some(build::star(u8::try_from(hosts).ok()?)),
        19..=648 => (2, part(18)?),
        _ => (3, part(18 * 18)?),
    };
    let mut topology = build::fat_tree(build::FatTree {
        radix: 36,
        levels,
        parts,
    })?;
    // The tree has places for more: the last stay empty.
    let mut left = hosts;
    let mut gone = std::collections::BTreeSet::new();
    for (node, spec) in topology.nodes.iter().enumerate() {
        if spec.kind == NodeKind::Ca {
            if left == 0 {
                gone.insert(node);
            }
            left = left.saturating_sub(1);
        }
    }
    let stays = |end: &platform_sim::fabric::topology::PortRef| !gone.contains(&end.node);
    topology.cables.retain(|cable| cable.ends.iter().all(stays));
    Some(topology)
}

/// The largest resident size of this process so far, in MB.
fn peak_memory() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    let kilobytes: f64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kilobytes / 1024.0)
}

/// The rows of the fabrics.
pub fn run() -> Result<Vec<Row>, String> {
    SIZES
        .into_iter()
        .map(|(hosts, opensm)| measure(hosts, opensm))
        .collect()
}

fn measure(hosts: usize, opensm: Option<(u32, f64)>) -> Result<Row, String> {
    let topology = topology(hosts).ok_or("no such tree")?;
    let switches = topology.nodes.iter();
    let switches = switches
        .filter(|spec| spec.kind == NodeKind::Switch)
        .count();
    let cables = topology.cables.len();
    let mut settings = Settings::new(topology, 1);
    settings.hosts = Some(1);
    settings.ip = false;
    let mut simulation = Simulation::new(settings)?;
    simulation.start_all();
    let running = |status: &HostStatus| status.phase == crate::host::Phase::Running;
    if !simulation.run_until(Duration::from_secs(60), |hosts: &[SimHost]| {
        hosts.iter().all(|host| host.remote.look(running))
    }) {
        return Err(simulation.describe());
    }
    let (start, real) = (simulation.now(), std::time::Instant::now());
    let processor = super::processor_time();
    let up = |status: &HostStatus| status.subnet_up.0 > 0;
    let done = |hosts: &[SimHost]| hosts.iter().any(|host| host.remote.look(up));
    if !simulation.run_until(Duration::from_secs(120), done) {
        return Err(simulation.describe());
    }
    let (virtual_time, real) = (simulation.now().since(start), real.elapsed().as_secs_f64());
    let processor = super::processor_since(processor);
    let memory = peak_memory();
    let per_host = opensm.map(|(hosts, seconds)| seconds / f64::from(hosts));
    let mine = processor.unwrap_or(real) / hosts as f64;
    let ratio = per_host.map(|theirs| mine / theirs);
    Ok(Row {
        name: format!("{hosts} hosts, {switches} switches, {cables} cables"),
        cells: vec![
            Cell::Text(format!("{:.1} ms", virtual_time.as_secs_f64() * 1e3)),
            Cell::Text(format!("{real:.3} s")),
            processor.map_or(Cell::None, |time| Cell::Text(format!("{time:.3} s"))),
            memory.map_or(Cell::None, |mb| Cell::Text(format!("{mb:.0} MB"))),
            ratio.map_or(Cell::None, Cell::Ratio),
        ],
    })
}
