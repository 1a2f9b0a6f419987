//! What must be true of a subnet that is up, seen from the nodes and not from the manager's books.

use super::Fabric;
use core_ib::Lid;
use core_ib::wire::mad::PortState;
use platform_sim::fabric::topology::PortRef;
use std::collections::{HashMap, HashSet, VecDeque};

/// Everything below.
pub fn subnet_is_up(fabric: &Fabric, from: usize) -> Result<(), String> {
    let reached = reachable(fabric, from);
    lids_are_unique(fabric, &reached)?;
    links_are_active(fabric, &reached)?;
    everybody_reaches_everybody(fabric, &reached)
}

/// Nodes that hang together with port 1 of `from` by cables whose ends have power.
pub fn reachable(fabric: &Fabric, from: usize) -> Vec<usize> {
    let mut seen = HashSet::from([from]);
    let mut queue = VecDeque::from([from]);
    while let Some(node) = queue.pop_front() {
        let ports = match fabric.nodes[node].switch {
            Some(_) => fabric.nodes[node].external_ports(),
            None if node == from => 1..=1,
            None => continue,
        };
        for port in ports {
            if let Some(peer) = fabric.peer(PortRef::new(node, port))
                && seen.insert(peer.node)
            {
                queue.push_back(peer.node);
            }
        }
    }
    let mut seen: Vec<_> = seen.into_iter().collect();
    seen.sort_unstable();
    seen
}

/// End ports of nodes: node, port, base LID, LMC.
pub fn end_ports(fabric: &Fabric, nodes: &[usize]) -> Vec<(usize, u8, Lid, u8)> {
    let mut all = Vec::new();
    for &node in nodes {
        let state = &fabric.nodes[node];
        let ports: Vec<u8> = match state.switch {
            Some(_) => vec![0],
            None => state
                .external_ports()
                .filter(|&port| {
                    let peer = fabric.peer(PortRef::new(node, port));
                    peer.is_some_and(|peer| nodes.contains(&peer.node))
                })
                .collect(),
        };
        for port in ports {
            let info = state.port(port).unwrap().info;
            all.push((node, port, info.lid, info.lmc));
        }
    }
    all
}

pub fn lids_are_unique(fabric: &Fabric, nodes: &[usize]) -> Result<(), String> {
    let mut owners = HashMap::new();
    for (node, port, lid, lmc) in end_ports(fabric, nodes) {
        if !lid.is_unicast() {
            return Err(format!("node {node} port {port} has LID {lid}"));
        }
        if lid.0 % (1 << lmc) != 0 {
            return Err(format!(
                "LID {lid} of node {node} is not aligned to LMC {lmc}"
            ));
        }
        for lid in lid.0..lid.0 + (1 << lmc) {
            if let Some(other) = owners.insert(lid, node) {
                return Err(format!("nodes {node} and {other} both have LID {lid}"));
            }
        }
    }
    Ok(())
}

/// Both ends of every cable between nodes of the subnet are active and agree.
pub fn links_are_active(fabric: &Fabric, nodes: &[usize]) -> Result<(), String> {
    let here: HashSet<_> = nodes.iter().copied().collect();
    for (&end, &peer) in &fabric.cables {
        let both = here.contains(&end.node) && here.contains(&peer.node);
        if !both || !fabric.alive[end.node] || !fabric.alive[peer.node] || end == peer {
            continue;
        }
        let own = fabric.nodes[end.node].port(end.port).unwrap().info;
        let far = fabric.nodes[peer.node].port(peer.port).unwrap().info;
        if own.state != PortState::ACTIVE {
            return Err(format!(
                "node {} port {} is in state {:?}",
                end.node, end.port, own.state
            ));
        }
        let agreed =
            |info: &core_ib::wire::mad::PortInfo| (info.neighbor_mtu, info.operational_vls);
        if agreed(&own) != agreed(&far) {
            return Err(format!("the ends of {end:?} - {peer:?} do not agree"));
        }
    }
    Ok(())
}

/// Every LID is reached from every end port; the walk itself panics on a loop.
pub fn everybody_reaches_everybody(fabric: &Fabric, nodes: &[usize]) -> Result<(), String> {
    let ports = end_ports(fabric, nodes);
    // From every switch, and from every adapter to the one beside it: the rest follows.
    for &(from, from_port, ..) in &ports {
        let is_switch = fabric.nodes[from].switch.is_some();
        for &(to, to_port, lid, lmc) in &ports {
            if !is_switch && ports.len() > 200 && (to + from) % 37 != 0 {
                continue;
            }
            for lid in lid.0..lid.0 + (1 << lmc) {
                let mut hops = 0;
                let end = fabric.by_lid(from, from_port, Lid(lid), false, &mut hops);
                let right = end.is_some_and(|end| {
                    end.node == to && (fabric.nodes[to].switch.is_some() || end.port == to_port)
                });
                if !right {
                    return Err(format!(
                        "node {from} port {from_port} reaches LID {lid} of node {to} at {end:?}"
                    ));
                }
            }
        }
    }
    Ok(())
}

/// How often a packet to `mlid` that `node` sends reaches each host, itself left out.
pub fn multicast(fabric: &Fabric, node: usize, mlid: Lid) -> HashMap<usize, usize> {
    let mut count = HashMap::new();
    let mut queue = VecDeque::new();
    let start = PortRef::new(node, 1);
    queue.extend(fabric.peer(start).map(|peer| (peer, 1)));
    while let Some((at, hops)) = queue.pop_front() {
        assert!(hops < 200, "a multicast packet goes around");
        let Some(switch) = &fabric.nodes[at.node].switch else {
            *count.entry(at.node).or_default() += 1;
            continue;
        };
        for port in fabric.nodes[at.node].external_ports() {
            if port != at.port
                && switch.multicast_has(mlid, port)
                && let Some(peer) = fabric.peer(PortRef::new(at.node, port))
            {
                queue.push_back((peer, hops + 1));
            }
        }
    }
    count
}
