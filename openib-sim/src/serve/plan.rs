//! Which fabric is served, and who plays which of its hosts.

use super::Options;
use clap::ValueEnum;
use core_ib::Guid;
use platform_sim::fabric::topology::{NodeKind, NodeSpec, Topology, build};
use platform_sim::hca::infinihost::{self, InfiniHost, Variant};
use platform_sim::machine::{Exerciser, PciFunction};

/// What is in a guest's slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Model {
    /// InfiniHost MT23108, attached memory visible.
    Tavor,
    /// InfiniHost III Ex MT25208 with firmware that is compatible to the MT23108's.
    ArbelCompat,
    /// InfiniHost III Ex MT25208, without memory of its own.
    Arbel,
    /// InfiniHost III Lx MT25204: one port, without memory of its own.
    Sinai,
    /// The same under its older device number.
    SinaiOld,
    /// No HCA: the device that the simulator's own tests use.
    Exerciser,
}

impl Model {
    fn variant(self) -> Option<Variant> {
        Some(match self {
            Self::Tavor => Variant::Tavor,
            Self::ArbelCompat => Variant::ArbelCompat,
            Self::Arbel => Variant::Arbel,
            Self::Sinai => Variant::Sinai,
            Self::SinaiOld => Variant::SinaiOld,
            Self::Exerciser => return None,
        })
    }

    /// The function with the ports and the identity that the topology gives to `node`.
    pub(super) fn make(self, node: &NodeSpec) -> Result<Box<dyn PciFunction>, String> {
        let Some(variant) = self.variant() else {
            return Ok(Box::new(Exerciser::new()));
        };
        let (ports, most) = (node.port_count(), variant.max_ports());
        if !(1..=most).contains(&ports) {
            let (name, id) = (variant.name(), &node.id);
            return Err(format!("an {name} has 1 to {most} ports; {id} has {ports}"));
        }
        let mut config = infinihost::Config::of(variant, node.guid);
        config.ports = ports;
        config.port_guids = [1, 2].map(|port| node.port_guid(port));
        let system = node.guid.0.wrapping_add(3);
        config.system_image_guid = node.system_image_guid.unwrap_or(Guid(system));
        config.node_description.clone_from(&node.description);
        Ok(Box::new(InfiniHost::new(config)))
    }
}

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
