//! Which device is in a host's slot, with the ports and the identity that the topology gives it.

use clap::ValueEnum;
use core_ib::Guid;
use platform_sim::fabric::topology::NodeSpec;
use platform_sim::hca::infinihost::{self, InfiniHost, Variant};
use platform_sim::machine::{Exerciser, PciFunction};

/// What is in a host's slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Model {
    /// InfiniHost MT23108, attached memory visible.
    #[default]
    Tavor,
    /// InfiniHost III Ex MT25208 with firmware that is compatible to the MT23108's.
    ArbelCompat,
    /// InfiniHost III Ex MT25208, without memory of its own.
    Arbel,
    /// InfiniHost III Lx MT25204: one port, without memory of its own.
    Sinai,
    /// The same under its older device number.
    SinaiOld,
    /// No HCA: the device that the simulator's own tests use. For guests alone.
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
    pub fn make(self, node: &NodeSpec) -> Result<Box<dyn PciFunction>, String> {
        match self {
            Self::Exerciser => Ok(Box::new(Exerciser::new())),
            _ => Ok(self.hca(node)?),
        }
    }

    /// The same, of an HCA.
    pub fn hca(self, node: &NodeSpec) -> Result<Box<InfiniHost>, String> {
        Ok(Box::new(InfiniHost::new(self.config(node)?)))
    }

    /// What an HCA there is like.
    pub fn config(self, node: &NodeSpec) -> Result<infinihost::Config, String> {
        let Some(variant) = self.variant() else {
            return Err("an exerciser is no HCA, and hosts of ours take one".into());
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
        Ok(config)
    }
}
