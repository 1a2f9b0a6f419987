//! Which fabric is served, and who plays which of its hosts.

use super::Options;
use platform_sim::fabric::topology::{NodeKind, Topology, build};

/// A fabric, and the nodes of it that are guests.
#[derive(Debug)]
pub struct Plan {
    /// What is plugged into what.
    pub topology: Topology,
    /// Nodes that are virtual machines, in the order of their sockets.
    pub guests: Vec<usize>,
}

impl Plan {
    /// Reads the topology, or makes a switch with all the hosts.
    pub fn new(options: &Options) -> Result<Self, String> {
        let topology = match &options.topology {
            Some(path) => {
                let parsed = Topology::load(path);
                let parsed = parsed.map_err(|error| format!("{}: {error}", path.display()))?;
                for warning in &parsed.warnings {
                    log::warn!("{}: {warning}", path.display());
                }
                parsed.topology
            }
            None => {
                let hosts = options.guests.checked_add(options.hosts);
                let hosts = hosts.filter(|hosts| *hosts <= 254);
                let hosts = hosts.ok_or("a switch has room for 254 hosts; use a topology")?;
                build::star(hosts as u8)
            }
        };
        let all: Vec<usize> = topology.of_kind(NodeKind::Ca).collect();
        let guests = if options.guest.is_empty() {
            let count = options.guests as usize;
            let guests = all.get(..count);
            guests
                .ok_or(format!(
                    "there are only {} hosts for {count} guests",
                    all.len()
                ))?
                .to_vec()
        } else {
            let named = options.guest.iter().map(|name| node(&topology, name));
            named.collect::<Result<_, _>>()?
        };
        Ok(Self { topology, guests })
    }
}

/// The node of this name or, if only one has it, description.
pub(super) fn node(topology: &Topology, name: &str) -> Result<usize, String> {
    if let Some(node) = topology.node(name) {
        return Ok(node);
    }
    let mut described = topology.nodes.iter().enumerate();
    let mut of = || described.find(|(_, node)| node.description == name);
    match (of(), of()) {
        (Some((node, _)), None) => Ok(node),
        (None, _) => Err(format!("no node is called \"{name}\"")),
        _ => Err(format!(
            "several nodes are described as \"{name}\"; use the name"
        )),
    }
}
