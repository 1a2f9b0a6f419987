//! Topologies of regular shape.

use super::{NodeKind, NodeSpec, PortRef, Topology};
use core_ib::Guid;

/// Vendor and device of nodes that a builder makes: OpenIB's OUI, and numbers of our own.
const VENDOR: u32 = 0x00_1405;
const SWITCH_DEVICE: u16 = 0x5357;
const HOST_DEVICE: u16 = 0x4841;

/// First node GUIDs, and the room that each node takes.
const SWITCHES: u64 = 0x0014_0500_0020_0000;
const HOSTS: u64 = 0x0014_0500_0010_0000;
const STEP: u64 = 16;

fn switch(topology: &mut Topology, ports: u8) -> usize {
    let number = topology.of_kind(NodeKind::Switch).count() as u64;
    let guid = Guid(SWITCHES + number * STEP);
    let mut node = NodeSpec::new(NodeKind::Switch, format!("S-{:016x}", guid.0), guid, ports);
    node.description = format!("switch-{}", number + 1);
    (node.vendor_id, node.device_id) = (VENDOR, SWITCH_DEVICE);
    node.system_image_guid = Some(guid);
    topology.nodes.push(node);
    topology.nodes.len() - 1
}

fn host(topology: &mut Topology, ports: u8) -> usize {
    let number = topology.of_kind(NodeKind::Ca).count() as u64;
    let guid = Guid(HOSTS + number * STEP);
    let mut node = NodeSpec::new(NodeKind::Ca, format!("H-{:016x}", guid.0), guid, ports);
    node.description = format!("host-{}", number + 1);
    (node.vendor_id, node.device_id) = (VENDOR, HOST_DEVICE);
    node.system_image_guid = Some(guid);
    topology.nodes.push(node);
    topology.nodes.len() - 1
}

/// Two hosts and a cable.
pub fn back_to_back() -> Topology {
    let mut topology = Topology::default();
    let hosts = [host(&mut topology, 1), host(&mut topology, 1)];
    let [a, b] = hosts.map(|host| PortRef::new(host, 1));
    topology.connect(a, b);
    topology
}

/// One switch with `hosts` hosts of one port each, on its ports 1, 2, …, and no other ports.
pub fn star(hosts: u8) -> Topology {
    let mut topology = Topology::default();
    let centre = switch(&mut topology, hosts.max(1));
    for port in 1..=hosts {
        let host = host(&mut topology, 1);
        topology.connect(PortRef::new(centre, port), PortRef::new(host, 1));
    }
    topology
}

/// `switches` switches in a row, each with `hosts` hosts on its ports 1, 2, …; the two ports behind those lead to the
/// switch before and to the switch after.
pub fn line(switches: usize, hosts: u8) -> Topology {
    let mut topology = Topology::default();
    let hosts = hosts.min(250);
    let mut before: Option<usize> = None;
    for _ in 0..switches {
        let this = switch(&mut topology, hosts + 2);
        for port in 1..=hosts {
            let host = host(&mut topology, 1);
            topology.connect(PortRef::new(this, port), PortRef::new(host, 1));
        }
        if let Some(before) = before {
            let after = PortRef::new(before, hosts + 2);
            topology.connect(after, PortRef::new(this, hosts + 1));
        }
        before = Some(this);
    }
    topology
}

/// As [`line()`], closed to a ring: what a routing without care makes a deadlock of.
pub fn ring(switches: usize, hosts: u8) -> Topology {
    let mut topology = line(switches, hosts);
    let hosts = hosts.min(250);
    let of = topology.of_kind(NodeKind::Switch).collect::<Vec<_>>();
    if let [first, .., last] = of[..] {
        topology.connect(
            PortRef::new(last, hosts + 2),
            PortRef::new(first, hosts + 1),
        );
    }
    topology
}

/// Shape of a fat tree of switches of one radix: half of the ports of each switch lead down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FatTree {
    /// Ports of a switch, even, at most 254.
    pub radix: u8,
    /// 2: leaves and spines. 3: pods of leaves and aggregation, and a core.
    pub levels: u8,
    /// With 2 levels the number of leaves, with 3 that of pods; at most `radix`.
    pub parts: u8,
}

/// Fewest upper switches that take `parts` × `down` links, with the links of one lower switch spread evenly over them.
fn uppers(radix: u8, down: u8, parts: u8) -> u8 {
    let fits = |count: &u8| {
        down.is_multiple_of(*count) && u16::from(parts) * u16::from(down / count) <= radix.into()
    };
    (1..=down).find(fits).unwrap_or(down)
}

/// A fat tree. `None` if `radix` is odd or 0, `levels` neither 2 nor 3, `parts` 0 or more than `radix`.
///
/// Each leaf has `radix`/2 hosts on its lower ports and goes up by the others; there are as many upper switches as the links
/// of the parts need, so that a full tree has full bisection.
pub fn fat_tree(shape: FatTree) -> Option<Topology> {
    let FatTree {
        radix,
        levels,
        parts,
    } = shape;
    let down = radix / 2;
    if radix == 0 || radix % 2 != 0 || radix > 254 || parts == 0 || parts > radix {
        return None;
    }
    let mut topology = Topology::default();
    let leaf = |topology: &mut Topology| {
        let leaf = switch(topology, radix);
        for port in 1..=down {
            let host = host(topology, 1);
            topology.connect(PortRef::new(leaf, port), PortRef::new(host, 1));
        }
        leaf
    };
    match levels {
        2 => {
            let leaves: Vec<_> = (0..parts).map(|_| leaf(&mut topology)).collect();
            spread(&mut topology, &leaves, radix, down);
        }
        3 => {
            let mut groups = vec![Vec::new(); usize::from(down)];
            for _ in 0..parts {
                let leaves: Vec<_> = (0..down).map(|_| leaf(&mut topology)).collect();
                for (up, group) in groups.iter_mut().enumerate() {
                    let aggregation = switch(&mut topology, radix);
                    group.push(aggregation);
                    for (port, leaf) in leaves.iter().enumerate() {
                        topology.connect(
                            PortRef::new(*leaf, down + 1 + up as u8),
                            PortRef::new(aggregation, port as u8 + 1),
                        );
                    }
                }
            }
            for group in &groups {
                spread(&mut topology, group, radix, down);
            }
        }
        _ => return None,
    }
    Some(topology)
}

/// Puts upper switches above `lowers` and spreads the upper half of the ports of each evenly over them.
fn spread(topology: &mut Topology, lowers: &[usize], radix: u8, down: u8) {
    let count = uppers(radix, down, lowers.len() as u8);
    let width = down / count;
    for upper in 0..count {
        let spine = switch(topology, radix);
        for (index, lower) in lowers.iter().enumerate() {
            for lane in 0..width {
                let below = PortRef::new(*lower, down + 1 + upper * width + lane);
                let above = PortRef::new(spine, index as u8 * width + lane + 1);
                topology.connect(below, above);
            }
        }
    }
}
