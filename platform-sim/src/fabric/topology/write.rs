//! The writer of topology files, in the form that `ibnetdiscover` prints.

use super::{NodeKind, NodeSpec, PortRef, Rate, Topology};
use core_ib::Lid;
use std::collections::BTreeMap;
use std::fmt;

/// What stands at the far end of each plugged port.
type Peers = BTreeMap<PortRef, (PortRef, usize)>;

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut peers = Peers::new();
        for (cable, spec) in self.cables.iter().enumerate() {
            let [a, b] = spec.ends;
            peers.insert(a, (b, cable));
            peers.insert(b, (a, cable));
        }
        let nodes = self.nodes.iter().enumerate();
        let switches = nodes.clone().filter(|(_, n)| n.kind == NodeKind::Switch);
        let others = nodes.filter(|(_, n)| n.kind != NodeKind::Switch);
        for (index, node) in switches.chain(others) {
            write_node(f, node)?;
            for port in 1..=node.port_count() {
                write_port(f, self, &peers, node, PortRef::new(index, port))?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

fn write_node(f: &mut fmt::Formatter<'_>, node: &NodeSpec) -> fmt::Result {
    writeln!(f, "vendid=0x{:x}", node.vendor_id)?;
    writeln!(f, "devid=0x{:x}", node.device_id)?;
    if let Some(guid) = node.system_image_guid {
        writeln!(f, "sysimgguid=0x{:x}", guid.0)?;
    }
    let guid = node.guid.0;
    let (key, kind) = match node.kind {
        NodeKind::Switch => {
            let port0 = node.port_guid(0).0;
            writeln!(f, "switchguid=0x{guid:x}({port0:x})")?;
            ("", "Switch")
        }
        NodeKind::Ca => ("caguid", "Ca"),
        NodeKind::Router => ("rtguid", "Rt"),
    };
    if !key.is_empty() {
        writeln!(f, "{key}=0x{guid:x}")?;
    }
    let (count, id, text) = (node.port_count(), &node.id, &node.description);
    write!(f, "{kind}\t{count} \"{id}\"\t\t# \"{text}\"")?;
    if let (NodeKind::Switch, Some(port0)) = (node.kind, node.ports.first()) {
        let port0_kind = if node.enhanced_port0 {
            "enhanced"
        } else {
            "base"
        };
        let (lid, lmc) = (port0.lid.unwrap_or(Lid::NONE).0, port0.lmc);
        write!(f, " {port0_kind} port 0 lid {lid} lmc {lmc}")?;
    }
    writeln!(f)
}

/// The LID by which a port is reached: its own, or that of its switch.
fn lid_of(topology: &Topology, port: PortRef) -> u16 {
    let node = topology.nodes.get(port.node);
    let spec = node.and_then(|node| match node.kind {
        NodeKind::Switch => node.ports.first(),
        _ => node.ports.get(usize::from(port.port)),
    });
    spec.and_then(|spec| spec.lid).unwrap_or(Lid::NONE).0
}

fn write_port(
    f: &mut fmt::Formatter<'_>,
    topology: &Topology,
    peers: &Peers,
    node: &NodeSpec,
    port: PortRef,
) -> fmt::Result {
    let spec = node.ports.get(usize::from(port.port));
    let Some(spec) = spec else { return Ok(()) };
    let peer = peers.get(&port);
    if peer.is_none() && spec.guid.is_none() && spec.lid.is_none() {
        return Ok(());
    }
    write!(f, "[{}]", port.port)?;
    if node.kind != NodeKind::Switch {
        write!(f, "({:x}) ", node.port_guid(port.port).0)?;
    }
    let mut comment = String::new();
    if node.kind != NodeKind::Switch {
        comment = format!("lid {} lmc {} ", spec.lid.unwrap_or(Lid::NONE).0, spec.lmc);
    }
    if let Some(&(far, cable)) = peer
        && let Some(far_node) = topology.nodes.get(far.node)
    {
        write!(f, "\t\"{}\"[{}]", far_node.id, far.port)?;
        if far_node.kind != NodeKind::Switch {
            write!(f, "({:x})", far_node.port_guid(far.port).0)?;
        }
        comment += &format!("\"{}\" lid {}", far_node.description, lid_of(topology, far));
        if let Some(spec) = topology.cables.get(cable)
            && let (Some(width), Some(speed)) = (spec.width, spec.speed)
        {
            comment += &format!(" {}", Rate(width, speed));
        }
    }
    if let Some(widths) = spec.widths {
        write!(f, " w={}", widths.0)?;
    }
    if let Some(speeds) = spec.speeds {
        write!(f, " s={} e={}", speeds.0 & 7, speeds.0 >> 4)?;
    }
    writeln!(f, " \t\t# {}", comment.trim_end())
}
