//! What is plugged into what: nodes, ports and cables, as files say it and as code builds it.
//!
//! A [`Topology`] is plain data. Files in the language of `ibnetdiscover` and `ibsim` are read and written by the
//! modules below (protocols 10.3), regular shapes come from [`build`]; a fabric is made from it.

pub mod build;
mod read;
#[cfg(test)]
mod tests;
mod write;

pub use read::{LoadError, ParseError, Parsed, Place, Problem, Warning, WarningKind};

use crate::machine::{LinkSpeed, LinkWidth};
use core_ib::{Guid, Lid};
use std::fmt;

/// Kind of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NodeKind {
    /// Channel adapter.
    Ca,
    /// Switch.
    Switch,
    /// Router.
    Router,
}

impl NodeKind {
    /// The code of NodeInfo. protocols 3.8.2.
    pub const fn code(self) -> u8 {
        match self {
            Self::Ca => 1,
            Self::Switch => 2,
            Self::Router => 3,
        }
    }
}

/// What a file or a builder says of one port. All of it may be left to the node that has the port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortSpec {
    /// Port GUID; of a switch only port 0 has one.
    pub guid: Option<Guid>,
    /// LID that the port had when the file was written.
    pub lid: Option<Lid>,
    /// LMC that it had.
    pub lmc: u8,
    /// LinkWidthEnabled.
    pub widths: Option<LinkWidth>,
    /// LinkSpeedEnabled, all kinds of speed together.
    pub speeds: Option<LinkSpeed>,
}

/// One node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSpec {
    /// What it is.
    pub kind: NodeKind,
    /// Its name in the file; no two nodes have the same.
    pub id: String,
    /// NodeDescription: at most 64 bytes count.
    pub description: String,
    /// NodeGUID.
    pub guid: Guid,
    /// SystemImageGUID; none means that the node does not support it.
    pub system_image_guid: Option<Guid>,
    /// VendorID, 24 bits.
    pub vendor_id: u32,
    /// DeviceID.
    pub device_id: u16,
    /// Of a switch: port 0 is an enhanced one.
    pub enhanced_port0: bool,
    /// Ports by number. Element 0 is the management port of a switch, and means nothing elsewhere.
    pub ports: Vec<PortSpec>,
}

impl NodeSpec {
    /// A node with `ports` external ports and nothing special about it.
    pub fn new(kind: NodeKind, id: impl Into<String>, guid: Guid, ports: u8) -> Self {
        let id = id.into();
        Self {
            kind,
            description: id.clone(),
            id,
            guid,
            system_image_guid: None,
            vendor_id: 0,
            device_id: 0,
            enhanced_port0: false,
            ports: vec![PortSpec::default(); usize::from(ports) + 1],
        }
    }

    /// Number of external ports.
    pub fn port_count(&self) -> u8 {
        self.ports.len().saturating_sub(1) as u8
    }

    /// GUID of a port: its own if it has one, else (a CA's or router's) the node's plus the port number, else (a
    /// switch's) the node's.
    pub fn port_guid(&self, port: u8) -> Guid {
        let own = self.ports.get(usize::from(port)).and_then(|spec| spec.guid);
        own.unwrap_or(match self.kind {
            NodeKind::Switch => self.guid,
            _ => Guid(self.guid.0.wrapping_add(u64::from(port))),
        })
    }
}

/// One port of one node of a [`Topology`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortRef {
    /// Index of the node.
    pub node: usize,
    /// Port number.
    pub port: u8,
}

impl PortRef {
    /// Port `port` of node `node`.
    pub const fn new(node: usize, port: u8) -> Self {
        Self { node, port }
    }
}

/// One cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CableSpec {
    /// Its two ends.
    pub ends: [PortRef; 2],
    /// The width that the file says it had; none if it says nothing.
    pub width: Option<LinkWidth>,
    /// The speed that the file says it had.
    pub speed: Option<LinkSpeed>,
}

impl CableSpec {
    /// A cable that trains to whatever both ends can do.
    pub const fn new(a: PortRef, b: PortRef) -> Self {
        Self {
            ends: [a, b],
            width: None,
            speed: None,
        }
    }
}

/// Nodes and cables. Cables refer to nodes by index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// All nodes, in the order of the file.
    pub nodes: Vec<NodeSpec>,
    /// All cables; a port is at the end of at most one.
    pub cables: Vec<CableSpec>,
}

impl Topology {
    /// Index of the node called `id`.
    pub fn node(&self, id: &str) -> Option<usize> {
        self.nodes.iter().position(|node| node.id == id)
    }

    /// Indices of all nodes of one kind.
    pub fn of_kind(&self, kind: NodeKind) -> impl Iterator<Item = usize> + '_ {
        let nodes = self.nodes.iter().enumerate();
        nodes.filter_map(move |(index, node)| (node.kind == kind).then_some(index))
    }

    /// The other end of the cable at `port`; none if nothing is plugged in.
    pub fn peer(&self, port: PortRef) -> Option<PortRef> {
        self.cables.iter().find_map(|cable| match cable.ends {
            [a, b] if a == port => Some(b),
            [a, b] if b == port => Some(a),
            _ => None,
        })
    }

    /// Plugs a cable between two ports.
    pub fn connect(&mut self, a: PortRef, b: PortRef) {
        self.cables.push(CableSpec::new(a, b));
    }
}

/// A width as `4x`, for reading and writing.
fn width_from_text(text: &str) -> Option<LinkWidth> {
    Some(match text {
        "1x" => LinkWidth::X1,
        "2x" => LinkWidth::X2,
        "4x" => LinkWidth::X4,
        "8x" => LinkWidth::X8,
        "12x" => LinkWidth::X12,
        _ => return None,
    })
}

const SPEEDS: [(LinkSpeed, &str); 8] = [
    (LinkSpeed::SDR, "SDR"),
    (LinkSpeed::DDR, "DDR"),
    (LinkSpeed::QDR, "QDR"),
    (LinkSpeed::FDR10, "FDR10"),
    (LinkSpeed::FDR, "FDR"),
    (LinkSpeed::EDR, "EDR"),
    (LinkSpeed::HDR, "HDR"),
    (LinkSpeed::NDR, "NDR"),
];

fn speed_from_text(text: &str) -> Option<LinkSpeed> {
    let found = SPEEDS.iter().find(|(_, name)| *name == text);
    found.map(|(speed, _)| *speed)
}

/// Width and speed of a link as `ibnetdiscover` prints them: `4xQDR`.
struct Rate(LinkWidth, LinkSpeed);

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = SPEEDS.iter().find(|(speed, _)| *speed == self.1);
        write!(
            f,
            "{}x{}",
            self.0.lanes(),
            name.map_or("?", |(_, name)| name)
        )
    }
}
