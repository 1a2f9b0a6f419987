//! A fabric is made from a topology.

use super::{Cable, Fabric, Inside, Kind, Node};
use crate::fabric::buffer::Buffers;
use crate::fabric::link::{Line, Link};
use crate::fabric::node::{NodeState, PortCaps};
use crate::fabric::options::Options;
use crate::fabric::port::Port;
use crate::fabric::topology::{NodeKind, NodeSpec, Topology};
use crate::machine::{LinkSpeed, LinkWidth, WireEnd};
use core_ib::wire::mad::{NodeDescription, NodeType};
use core_ib::{Guid, Instant};
use std::collections::{BinaryHeap, VecDeque};

/// All widths of at most as many lanes; all of them if none is stated.
fn widths_up_to(width: Option<LinkWidth>) -> LinkWidth {
    let Some(width) = width else {
        return LinkWidth(0xff);
    };
    let all = [1, 2, 4, 8, 16].map(LinkWidth);
    let fit = all.into_iter().filter(|w| w.lanes() <= width.lanes());
    LinkWidth(fit.fold(0, |set, width| set | width.0))
}

/// All speeds of at most this one; all of them if none is stated.
fn speeds_up_to(speed: Option<LinkSpeed>) -> LinkSpeed {
    match speed.and_then(|speed| speed.0.checked_ilog2()) {
        Some(bit) => LinkSpeed(0xff >> (7 - bit)),
        None => LinkSpeed(0xff),
    }
}

/// What the nodes inside can do: what the options say, and what the topology says of the cables at each.
fn capabilities(topology: &Topology, options: &Options) -> Vec<PortCaps> {
    let mut all = vec![options.caps; topology.nodes.len()];
    for cable in &topology.cables {
        for end in cable.ends {
            let Some(caps) = all.get_mut(end.node) else {
                continue;
            };
            if let Some(speed) = cable.speed {
                caps.speeds = LinkSpeed(caps.speeds.0 | speeds_up_to(Some(speed)).0);
            }
            if let Some(width) = cable.width {
                caps.widths = LinkWidth(caps.widths.0 | width.0);
            }
        }
    }
    all
}

/// The state of a node that the fabric plays.
fn inside(spec: &NodeSpec, caps: &PortCaps, keep_lids: bool) -> NodeState {
    let mut state = match spec.kind {
        NodeKind::Switch => {
            let port0 = spec.port_guid(0);
            NodeState::switch(
                spec.guid,
                port0,
                spec.port_count(),
                caps,
                spec.enhanced_port0,
            )
        }
        NodeKind::Ca | NodeKind::Router => {
            let guids: Vec<_> = (1..=spec.port_count()).map(|p| spec.port_guid(p)).collect();
            NodeState::ca(spec.guid, &guids, caps)
        }
    };
    state.node_type = NodeType(spec.kind.code());
    state.description = NodeDescription::new(&spec.description);
    state.system_image_guid = spec.system_image_guid.unwrap_or(Guid(0));
    state.vendor_id = spec.vendor_id;
    state.device_id = spec.device_id;
    for (number, port_spec) in (0..).zip(&spec.ports) {
        let Some(port) = state.port_mut(number) else {
            continue;
        };
        if keep_lids && let Some(lid) = port_spec.lid {
            (port.info.lid, port.info.lmc) = (lid, port_spec.lmc);
        }
        port.enable(port_spec.widths, port_spec.speeds);
    }
    state
}

impl Fabric {
    /// The fabric that a topology describes. `outside` says of each node that is no switch whether somebody else plays its
    /// ports (they become ends of the [`Wire`](crate::machine::Wire), in the order of the topology); the others are hosts whose agents answer
    /// for themselves. All links of switches and hosts begin to train at instant 0.
    pub fn new(
        topology: &Topology,
        options: Options,
        mut outside: impl FnMut(usize, &NodeSpec) -> bool,
    ) -> Self {
        let mut fabric = Self {
            options,
            now: Instant(0),
            order: 0,
            events: BinaryHeap::new(),
            nodes: Vec::new(),
            ports: Vec::new(),
            cables: Vec::new(),
            ends: Vec::new(),
            outbox: VecDeque::new(),
            spare: Vec::new(),
            arrivals: Vec::new(),
        };
        let caps = capabilities(topology, &options);
        for (index, (spec, caps)) in topology.nodes.iter().zip(&caps).enumerate() {
            let first = fabric.ports.len();
            let numbers = 1..=spec.port_count();
            let ports = numbers.map(|number| Port::new(index, number));
            fabric.ports.extend(ports);
            let kind = if spec.kind != NodeKind::Switch && outside(index, spec) {
                for port in fabric.ports.iter_mut().skip(first) {
                    port.end = Some(WireEnd(fabric.ends.len() as u32));
                    fabric.ends.push(first + usize::from(port.number) - 1);
                }
                Kind::Outside
            } else {
                let state = inside(spec, caps, options.keep_lids);
                for port in fabric.ports.iter_mut().skip(first) {
                    if let Some(state) = state.port(port.number) {
                        port.wants = state.polling();
                    }
                }
                Kind::Inside(Box::new(Inside {
                    state,
                    buffers: Buffers::default(),
                    trap_at: None,
                }))
            };
            let ports = spec.port_count();
            fabric.nodes.push(Node { kind, first, ports });
        }
        for spec in &topology.cables {
            let ends = spec.ends.map(|end| fabric.port_index(end));
            if let [Some(a), Some(b)] = ends {
                fabric.plug_in([a, b], spec.width, spec.speed);
            }
        }
        for cable in 0..fabric.cables.len() {
            fabric.evaluate(cable);
        }
        fabric
    }

    fn plug_in(&mut self, ends: [usize; 2], width: Option<LinkWidth>, speed: Option<LinkSpeed>) {
        let cable = self.cables.len();
        for (side, end) in ends.into_iter().enumerate() {
            if let Some(port) = self.ports.get_mut(end) {
                port.cable = Some((cable, side));
            }
        }
        let delay = self.options.delay;
        let line = || -> Box<dyn Link> { Box::new(Line { delay }) };
        self.cables.push(Cable {
            ends,
            lines: [line(), line()],
            widths: widths_up_to(width),
            speeds: speeds_up_to(speed),
            plugged: true,
            training: false,
            epoch: 0,
        });
    }
}
