//! The fabric: nodes, cables, and what happens between them, in the order of time.
//!
//! A pure machine: it has no clock and no threads, is told what time it is, and says when something happens next. Events of
//! one instant happen in the order in which they were caused, so that a run is its inputs and its seed. Whoever is plugged
//! in from outside (an HCA model) sees it as a [`Wire`]; switches and hosts inside answer by their own agents.
//!
//! Flow control is counted, not spoken: a transmitter holds the credits of its peer's buffers for each lane, takes them when a
//! packet leaves, and has them back when the packet has left the buffer and the word of it has travelled. What a lost packet
//! took comes back when the flow-control packet of the next 65 536 symbol times would have told. protocols 1.11.

use super::agent::{self, Outgoing};
use super::arbiter::Tables;
use super::buffer::{Buffered, Buffers};
use super::capture::{Capture, Tap};
use super::fault::{FaultHandle, Faulty};
use super::link::{Arrival, Line, Link};
use super::node::{Effect, NodeState, PortCaps};
use super::options::Options;
use super::port::{Charge, DATA_LANES, Item, Port, Queued, Stall};
use super::switch::{PortSet, admit, release, route};
use super::topology::{NodeKind, NodeSpec, PortRef, Topology};
use crate::machine::{
    Delivery, LinkControl, LinkParameters, LinkSpeed, LinkWidth, SendQueueFull, Wire, WireEnd,
};
use core::cmp::Reverse;
use core::fmt;
use core::time::Duration;
use core_ib::wire::mad::{NodeDescription, NodeType};
use core_ib::wire::packet::{HeaderView, Lrh, LrhView, Vl, blocks, set_vl};
use core_ib::{Guid, Instant};
use std::collections::{BinaryHeap, VecDeque};

/// How long a lost packet's credits are missing: 65 536 symbols of 4 ns.
const RESYNC: Duration = Duration::from_nanos(65_536 * 4);
/// How long a port still works after its agent was told to take it down, so that the answer gets out.
const LAST_WORD: Duration = Duration::from_micros(10);
/// Buffers kept for packets to come.
const SPARE: usize = 256;

/// Something due.
#[derive(Debug)]
enum Event {
    /// The last bit of a packet is there.
    Arrive {
        port: usize,
        epoch: u32,
        packet: Vec<u8>,
        charge: Option<Charge>,
    },
    /// The line is free.
    Wake { port: usize },
    /// The peer has room again.
    Credit {
        port: usize,
        epoch: u32,
        charge: Charge,
    },
    /// Two ports have trained.
    Trained { cable: usize, epoch: u32 },
    /// A packet has crossed the switch.
    Forward { node: usize, slot: usize, out: u8 },
    /// An agent looks at a packet.
    Agent { node: usize, slot: usize },
    /// A head of a queue may have grown too old.
    Check { port: usize, vl: u8 },
    /// A trap is to be sent.
    Trap { node: usize },
    /// An agent told a port what to do.
    Control { port: usize, control: LinkControl },
    /// A cable is pulled, or put back.
    Plug { cable: usize, plugged: bool },
}

struct Entry {
    at: Instant,
    order: u64,
    event: Event,
}

impl Entry {
    const fn key(&self) -> (u64, u64) {
        (self.at.0, self.order)
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> core::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

/// A node that the fabric itself plays.
struct Inside {
    state: NodeState,
    buffers: Buffers,
    /// When the trap event that counts is due.
    trap_at: Option<Instant>,
}

enum Kind {
    /// Its ports are played by somebody else.
    Outside,
    /// A switch, or a host with nothing but its agents.
    Inside(Box<Inside>),
}

struct Node {
    kind: Kind,
    /// Index of its port 1.
    first: usize,
    ports: u8,
}

struct Cable {
    ends: [usize; 2],
    /// By the end that sends.
    lines: [Box<dyn Link>; 2],
    widths: LinkWidth,
    speeds: LinkSpeed,
    plugged: bool,
    training: bool,
    /// Counts the times that the link went down: what was under way before is lost.
    epoch: u32,
}

/// The fabric.
pub struct Fabric {
    options: Options,
    now: Instant,
    order: u64,
    events: BinaryHeap<Reverse<Entry>>,
    nodes: Vec<Node>,
    ports: Vec<Port>,
    cables: Vec<Cable>,
    /// Outside port of each end.
    ends: Vec<usize>,
    outbox: VecDeque<Delivery>,
    spare: Vec<Vec<u8>>,
    arrivals: Vec<Arrival>,
}

impl fmt::Debug for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (nodes, cables) = (self.nodes.len(), self.cables.len());
        write!(
            f,
            "Fabric({nodes} nodes, {cables} cables, at {} ns)",
            self.now.0
        )
    }
}

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
    /// ports (they become ends of the [`Wire`], in the order of the topology); the others are hosts whose agents answer
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

    fn port_index(&self, port: PortRef) -> Option<usize> {
        let node = self.nodes.get(port.node)?;
        let offset = usize::from(port.port).checked_sub(1)?;
        (offset < usize::from(node.ports)).then_some(node.first + offset)
    }

    /// The end of the wire that is this port of an outside node.
    pub fn end(&self, port: PortRef) -> Option<WireEnd> {
        self.ports.get(self.port_index(port)?)?.end
    }

    /// The port that is this end of the wire.
    pub fn port(&self, end: WireEnd) -> Option<PortRef> {
        let index = self.ends.get(end.0 as usize)?;
        let port = self.ports.get(*index)?;
        Some(PortRef::new(port.node, port.number))
    }

    /// Number of ends.
    pub fn end_count(&self) -> usize {
        self.ends.len()
    }

    /// What the agents of a node inside know; none of a node that somebody else plays.
    pub fn node(&self, node: usize) -> Option<&NodeState> {
        match &self.nodes.get(node)?.kind {
            Kind::Inside(inside) => Some(&inside.state),
            Kind::Outside => None,
        }
    }

    /// As [`Fabric::node`], to be changed: at rest, as hardware is before it is switched on.
    pub fn node_mut(&mut self, node: usize) -> Option<&mut NodeState> {
        self.inside_mut(node).map(|inside| &mut inside.state)
    }

    fn inside_mut(&mut self, node: usize) -> Option<&mut Inside> {
        match &mut self.nodes.get_mut(node)?.kind {
            Kind::Inside(inside) => Some(inside),
            Kind::Outside => None,
        }
    }

    /// What the link at a port was trained to; none if it is down.
    pub fn link(&self, port: PortRef) -> Option<LinkParameters> {
        self.ports.get(self.port_index(port)?)?.up
    }

    /// Credits that a port has for each data lane, in blocks; none if there is no such port. For reports and tests.
    pub fn credits(&self, port: PortRef) -> Option<[u32; DATA_LANES]> {
        Some(self.ports.get(self.port_index(port)?)?.credits)
    }

    /// Packets that wait in the buffers of a node inside. For reports and tests.
    pub fn held(&self, node: usize) -> usize {
        match self.nodes.get(node).map(|node| &node.kind) {
            Some(Kind::Inside(inside)) => inside.buffers.held(),
            _ => 0,
        }
    }

    /// Wraps the direction of a cable that leaves `from`, for good. Does nothing if nothing is plugged in there.
    pub fn wrap(&mut self, from: PortRef, wrap: impl FnOnce(Box<dyn Link>) -> Box<dyn Link>) {
        let index = self.port_index(from);
        let port = index.and_then(|index| self.ports.get(index));
        let Some((cable, side)) = port.and_then(|port| port.cable) else {
            return;
        };
        let line = self
            .cables
            .get_mut(cable)
            .and_then(|cable| cable.lines.get_mut(side));
        if let Some(line) = line {
            let nothing = Box::new(Line {
                delay: Duration::ZERO,
            });
            let inner = core::mem::replace(line, nothing);
            *line = wrap(inner);
        }
    }

    /// Gives the direction of a cable that leaves `from` the faults of `handle`, with dice of its own. A capture around it
    /// shows packets before they meet a fault, one that was there before shows them after.
    pub fn make_faulty(&mut self, from: PortRef, handle: &FaultHandle) {
        let seed = self.options.seed;
        let name = format!("node {} port {}", from.node, from.port);
        self.wrap(from, |line| {
            Box::new(Faulty::new(line, handle.clone(), seed, &name))
        });
    }

    /// Captures what leaves `from`.
    pub fn tap(&mut self, from: PortRef, capture: &Capture, interface: u8) {
        let capture = capture.clone();
        self.wrap(from, |line| Box::new(Tap::new(line, capture, interface)));
    }

    /// Captures what passes all cables, both ways.
    pub fn tap_all(&mut self, capture: &Capture) {
        let ends = self.cables.iter().flat_map(|cable| (0..).zip(cable.ends));
        let ends: Vec<(u8, usize)> = ends.collect();
        for (interface, end) in ends {
            if let Some(port) = self.ports.get(end) {
                let from = PortRef::new(port.node, port.number);
                self.tap(from, capture, interface);
            }
        }
    }

    /// Pulls the cable at `port` at the instant `at`, or puts it back. A link flaps if it is pulled and put back.
    pub fn plug(&mut self, port: PortRef, plugged: bool, at: Instant) {
        let index = self.port_index(port);
        let port = index.and_then(|index| self.ports.get(index));
        if let Some((cable, _)) = port.and_then(|port| port.cable) {
            self.push(at, Event::Plug { cable, plugged });
        }
    }

    fn push(&mut self, at: Instant, event: Event) {
        self.order += 1;
        let at = if at < self.now { self.now } else { at };
        let order = self.order;
        self.events.push(Reverse(Entry { at, order, event }));
    }

    /// Does what is due up to `until`, as long as nothing comes out.
    fn run(&mut self, until: Instant) {
        while self.outbox.is_empty() {
            match self.events.peek() {
                Some(Reverse(entry)) if entry.at <= until => {}
                _ => break,
            }
            if let Some(Reverse(entry)) = self.events.pop() {
                self.now = entry.at;
                self.happen(entry.event);
            }
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Arrive {
                port,
                epoch,
                packet,
                charge,
            } => self.arrive(port, epoch, packet, charge),
            Event::Wake { port } => {
                if let Some(state) = self.ports.get_mut(port) {
                    state.wake = false;
                }
                self.pump(port);
            }
            Event::Credit {
                port,
                epoch,
                charge,
            } => {
                if self.epoch_of(port) == Some(epoch)
                    && let Some(state) = self.ports.get_mut(port)
                {
                    state.give_back(charge);
                    self.pump(port);
                }
            }
            Event::Trained { cable, epoch } => self.trained(cable, epoch),
            Event::Forward { node, slot, out } => self.forward(node, slot, out),
            Event::Agent { node, slot } => self.consult(node, slot),
            Event::Check { port, vl } => self.check(port, vl),
            Event::Trap { node } => self.trap(node),
            Event::Control { port, control } => self.control(port, control),
            Event::Plug { cable, plugged } => {
                if let Some(state) = self.cables.get_mut(cable) {
                    state.plugged = plugged;
                }
                self.evaluate(cable);
            }
        }
    }

    // Links

    fn epoch_of(&self, port: usize) -> Option<u32> {
        let (cable, _) = self.ports.get(port)?.cable?;
        Some(self.cables.get(cable)?.epoch)
    }

    /// The port at the other end.
    fn peer(&self, port: usize) -> Option<usize> {
        let (cable, side) = self.ports.get(port)?.cable?;
        self.cables.get(cable)?.ends.get(side ^ 1).copied()
    }

    fn control(&mut self, port: usize, control: LinkControl) {
        let Some(state) = self.ports.get_mut(port) else {
            return;
        };
        state.wants = control;
        if let Some((cable, _)) = state.cable {
            self.evaluate(cable);
        }
    }

    /// Widths and speeds that both ends and the cable allow; none if an end does not want a link.
    fn common(&self, cable: &Cable) -> Option<(LinkWidth, LinkSpeed)> {
        let mut both = (cable.widths.0, cable.speeds.0);
        for end in cable.ends {
            match self.ports.get(end)?.wants {
                LinkControl::Polling { widths, speeds } => {
                    both.0 &= widths.0;
                    both.1 &= speeds.0;
                }
                LinkControl::Disabled => return None,
            }
        }
        let possible = cable.plugged && both.0 != 0 && both.1 != 0;
        possible.then_some((LinkWidth(both.0), LinkSpeed(both.1)))
    }

    /// Something about a cable changed: takes the link down, or begins to train.
    fn evaluate(&mut self, index: usize) {
        let Some(cable) = self.cables.get(index) else {
            return;
        };
        let common = self.common(cable);
        let [first, _] = cable.ends;
        let up = self.ports.get(first).and_then(|port| port.up);
        if let Some(up) = up {
            let stays = common.is_some_and(|(widths, speeds)| {
                up.width.0 & widths.0 != 0 && up.speed.0 & speeds.0 != 0
            });
            if stays {
                return;
            }
            self.take_down(index);
        }
        let now = self.now;
        let training = self.options.training;
        let Some(cable) = self.cables.get_mut(index) else {
            return;
        };
        match (common.is_some(), cable.training) {
            (true, false) => {
                cable.training = true;
                let epoch = cable.epoch;
                self.push(
                    now.after(training),
                    Event::Trained {
                        cable: index,
                        epoch,
                    },
                );
            }
            (false, true) => {
                cable.training = false;
                cable.epoch += 1;
            }
            _ => {}
        }
    }

    fn trained(&mut self, index: usize, epoch: u32) {
        let Some(cable) = self.cables.get_mut(index) else {
            return;
        };
        if cable.epoch != epoch || !cable.training {
            return;
        }
        cable.training = false;
        let ends = cable.ends;
        let Some(cable) = self.cables.get(index) else {
            return;
        };
        let Some(common) = self.common(cable) else {
            return;
        };
        let (width, speed) = super::node::best(common);
        let parameters = LinkParameters { width, speed };
        let (room, now) = (self.options.buffer_blocks, self.now);
        for end in ends {
            if let Some(port) = self.ports.get_mut(end) {
                port.begin(parameters, room, now);
            }
        }
        for end in ends {
            self.tell_owner(end, Some(parameters));
        }
    }

    fn take_down(&mut self, index: usize) {
        let Some(cable) = self.cables.get_mut(index) else {
            return;
        };
        cable.epoch += 1;
        cable.training = false;
        let ends = cable.ends;
        for end in ends {
            if let Some(port) = self.ports.get_mut(end) {
                port.up = None;
            }
            self.flush(end, 0xffff);
        }
        for end in ends {
            self.tell_owner(end, None);
        }
    }

    /// Loses everything that waits on these lanes, a set.
    fn flush(&mut self, index: usize, lanes: u16) {
        let Some(port) = self.ports.get_mut(index) else {
            return;
        };
        let node = port.node;
        let number = port.number;
        let mut lost = Vec::new();
        for (vl, queue) in (0_u16..).zip(&mut port.queues) {
            if lanes & 1 << vl != 0 {
                lost.extend(queue.drain(..));
            }
        }
        let refused = core::mem::take(&mut port.refused);
        self.room(index, refused);
        for queued in lost {
            if let Item::Slot(slot) = queued.item {
                if let Some(inside) = self.inside_mut(node)
                    && let Some(state) = inside.state.port_mut(number)
                {
                    state.counts.xmit_discards.bump();
                }
                self.done(node, slot, self.now);
            }
        }
    }

    /// Tells an outside port that these lanes, a set, have room again.
    fn room(&mut self, index: usize, lanes: u16) {
        let end = self.ports.get(index).and_then(|port| port.end);
        if let Some(end) = end {
            let rooms = (0..16_u8)
                .filter(|vl| lanes & 1 << vl != 0)
                .map(|vl| Delivery::Room { end, vl });
            self.outbox.extend(rooms);
        }
    }

    fn tell_owner(&mut self, index: usize, up: Option<LinkParameters>) {
        let Some(port) = self.ports.get(index) else {
            return;
        };
        let (node, number, end) = (port.node, port.number, port.end);
        if let Some(inside) = self.inside_mut(node) {
            let mut effects = Vec::new();
            inside.state.link_changed(number, up, &mut effects);
            self.apply(node, &effects);
        } else if let Some(end) = end {
            self.outbox.push_back(Delivery::Link { end, up });
        }
    }

    /// Carries out what an agent of a node inside asks for.
    fn apply(&mut self, node: usize, effects: &[Effect]) {
        let Some(first) = self.nodes.get(node).map(|node| node.first) else {
            return;
        };
        let at = self.now.after(LAST_WORD);
        for effect in effects {
            if let Effect::SetLink { port, control } = *effect {
                let port = first + usize::from(port.saturating_sub(1));
                self.push(at, Event::Control { port, control });
            }
        }
        self.schedule_trap(node);
    }

    fn schedule_trap(&mut self, node: usize) {
        let now = self.now;
        let Some(inside) = self.inside_mut(node) else {
            return;
        };
        let Some(due) = inside.state.next_trap(now) else {
            return;
        };
        if inside.trap_at.is_none_or(|at| due < at) {
            inside.trap_at = Some(due);
            self.push(due, Event::Trap { node });
        }
    }

    fn trap(&mut self, node: usize) {
        let now = self.now;
        let Some(inside) = self.inside_mut(node) else {
            return;
        };
        if inside.trap_at != Some(now) {
            return;
        }
        inside.trap_at = None;
        let trap = inside.state.poll_trap(now);
        let packet = trap.and_then(|(port, smp)| agent::trap(&inside.state, port, &smp));
        if let Some(outgoing) = packet {
            self.emit(node, outgoing);
        }
        self.schedule_trap(node);
    }

    // Sending

    /// Sends what can be sent by a port, now.
    fn pump(&mut self, index: usize) {
        while let Some(port) = self.ports.get_mut(index) {
            if port.up.is_none() || !port.has_queued() {
                return;
            }
            if port.busy_until > self.now {
                if !port.wake {
                    port.wake = true;
                    let at = port.busy_until;
                    self.push(at, Event::Wake { port: index });
                }
                break;
            }
            match self.choose(index) {
                Some(vl) => self.transmit(index, vl),
                None => break,
            }
        }
        self.watch_heads(index);
    }

    /// The lane that sends next by a port whose line is free.
    fn choose(&mut self, index: usize) -> Option<u8> {
        let port = self.ports.get_mut(index)?;
        if port.head_len(15) != 0 {
            return Some(15);
        }
        let (ready, waits) = port.ready();
        let state = match &self.nodes.get(port.node)?.kind {
            Kind::Inside(inside) => inside.state.port(port.number),
            Kind::Outside => None,
        };
        let tables = state.filter(|s| !s.vl_arb_low.is_empty()).map(|s| Tables {
            high: &s.vl_arb_high,
            low: &s.vl_arb_low,
            limit: s.info.vl_high_limit,
        });
        let mut arbiter = core::mem::take(&mut port.arbiter);
        let vl = arbiter.choose(tables, ready, |vl| port.head_len(vl));
        port.arbiter = arbiter;
        if vl.is_none() && waits && port.waits_since.is_none() {
            port.waits_since = Some(self.now);
        }
        vl
    }

    /// Puts the head of a lane on the line. The line is free, and the credits are there.
    fn transmit(&mut self, index: usize, vl: u8) {
        let now = self.now;
        let Some(port) = self.ports.get_mut(index) else {
            return;
        };
        let Some(queued) = port.pop(vl, now) else {
            return;
        };
        let (node, number) = (port.node, port.number);
        if self.is_too_old(node, queued.arrived) {
            return self.discard(index, queued);
        }
        let Some(port) = self.ports.get_mut(index) else {
            return;
        };
        let charge = port.charge(vl, queued.len);
        let end = port.occupy(queued.len, now);
        let waited = port.waits_since.take();
        if let Some(stall) = port.stalls.get_mut(usize::from(vl)) {
            stall.drops = 0;
        }
        let bit = 1_u16 << (vl & 15);
        let refused = port.refused & bit;
        port.refused &= !bit;
        let Some((cable, side)) = port.cable else {
            return;
        };
        self.room(index, refused);
        let mut packet = match queued.item {
            Item::Own(packet) => packet,
            Item::Slot(slot) => {
                let packet = self.take(node, slot);
                self.done(node, slot, end);
                packet
            }
        };
        let lrh = LrhView::split(&packet).map(|(view, _)| *view);
        if let Ok(lrh) = lrh
            && let Some(inside) = self.inside_mut(node)
            && let Some(state) = inside.state.port_mut(number)
        {
            if vl != 15 {
                let words = lrh.pkt_len().words();
                state.counts.sent(words, lrh.dlid().is_multicast());
            }
            if let Some(since) = waited {
                let ticks = now.since(since).as_nanos() as u64;
                state.counts.xmit_wait.add(ticks);
            }
            if lrh.vl() != Vl::new(vl) {
                let _ = set_vl(&mut packet, Vl::new(vl)); // it has an LRH, so it can
            }
        }
        self.put_on_line(cable, side, packet, end, charge);
    }

    fn put_on_line(
        &mut self,
        index: usize,
        side: usize,
        packet: Vec<u8>,
        end: Instant,
        charge: Option<Charge>,
    ) {
        let now = self.now;
        let mut arrivals = core::mem::take(&mut self.arrivals);
        let Some(cable) = self.cables.get_mut(index) else {
            return;
        };
        let epoch = cable.epoch;
        let sender = cable.ends.get(side).copied().unwrap_or(usize::MAX);
        let port = cable.ends.get(side ^ 1).copied().unwrap_or(usize::MAX);
        if let Some(line) = cable.lines.get_mut(side) {
            line.send(packet, now, end, &mut arrivals);
        }
        let mut charge = charge;
        for Arrival { at, packet } in arrivals.drain(..) {
            let charge = charge.take(); // a second copy has not been paid for
            let event = Event::Arrive {
                port,
                epoch,
                packet,
                charge,
            };
            self.push(at, event);
        }
        self.arrivals = arrivals;
        if let Some(charge) = charge {
            let at = end.after(self.options.delay * 2).after(RESYNC);
            let event = Event::Credit {
                port: sender,
                epoch,
                charge,
            };
            self.push(at, event);
        }
    }

    /// The packet of a buffer, for one of those who wait for it.
    fn take(&mut self, node: usize, slot: usize) -> Vec<u8> {
        let mut copy = self.spare.pop().unwrap_or_default();
        if let Some(inside) = self.inside_mut(node) {
            inside.buffers.take(slot, &mut copy);
        }
        copy
    }

    /// One of those who wait for a buffered packet is done with it at `at`: when all are, its room is given back.
    fn done(&mut self, node: usize, slot: usize, at: Instant) {
        let freed = self
            .inside_mut(node)
            .and_then(|inside| inside.buffers.done(slot));
        let Some(Buffered {
            packet,
            from: Some(from),
            ..
        }) = freed
        else {
            return;
        };
        self.recycle(packet);
        if from.is_smp
            && let Some(port) = self.ports.get_mut(from.port)
        {
            port.vl15_held = port.vl15_held.saturating_sub(1);
        }
        if let Some(charge) = from.charge {
            self.return_credit(from.port, from.epoch, charge, at);
        }
    }

    /// Tells the peer of `port` that room has become free at `at`.
    fn return_credit(&mut self, port: usize, epoch: u32, charge: Charge, at: Instant) {
        if let Some(peer) = self.peer(port) {
            let at = at.after(self.options.delay);
            let event = Event::Credit {
                port: peer,
                epoch,
                charge,
            };
            self.push(at, event);
        }
    }

    // Growing old: protocols 2.17, step 12

    /// HOQLife of a port and LifeTimeValue of its switch; nothing grows old at an outside port or at a host.
    fn lives(&self, node: usize, number: u8) -> (Option<Duration>, Option<Duration>) {
        let Some(state) = self.node(node) else {
            return (None, None);
        };
        let (Some(switch), Some(port)) = (&state.switch, state.port(number)) else {
            return (None, None);
        };
        let life = switch.info.life_time.lifetime();
        (port.info.hoq_life.lifetime(), life)
    }

    fn is_too_old(&self, node: usize, arrived: Instant) -> bool {
        let (_, life) = self.lives(node, 0);
        life.is_some_and(|life| arrived.after(life) <= self.now)
    }

    /// When the head of a lane will have grown too old.
    fn deadline(&self, index: usize, vl: u8) -> Option<Instant> {
        let port = self.ports.get(index)?;
        let head = port.queues.get(usize::from(vl))?.front()?;
        let since = *port.head_since.get(usize::from(vl))?;
        let (hoq, life) = self.lives(port.node, port.number);
        let by_hoq = hoq.map_or(Instant::NEVER, |hoq| since.after(hoq));
        let by_life = life.map_or(Instant::NEVER, |life| head.arrived.after(life));
        let deadline = by_hoq.min(by_life);
        (deadline != Instant::NEVER).then_some(deadline)
    }

    /// Sees to it that old heads are looked at.
    fn watch_heads(&mut self, index: usize) {
        for vl in 0..DATA_LANES as u8 {
            let waits = self.ports.get(index).is_some_and(|port| {
                port.head_len(vl) != 0 && port.check_due.get(usize::from(vl)) == Some(&false)
            });
            if !waits {
                continue;
            }
            if let Some(at) = self.deadline(index, vl) {
                if let Some(port) = self.ports.get_mut(index)
                    && let Some(due) = port.check_due.get_mut(usize::from(vl))
                {
                    *due = true;
                }
                self.push(at, Event::Check { port: index, vl });
            }
        }
    }

    fn check(&mut self, index: usize, vl: u8) {
        let now = self.now;
        if let Some(port) = self.ports.get_mut(index)
            && let Some(due) = port.check_due.get_mut(usize::from(vl))
        {
            *due = false;
        }
        while self.deadline(index, vl).is_some_and(|at| at <= now) {
            let Some(port) = self.ports.get_mut(index) else {
                return;
            };
            let (node, number) = (port.node, port.number);
            let Some(queued) = port.pop(vl, now) else {
                return;
            };
            self.discard(index, queued);
            let (hoq, _) = self.lives(node, number);
            let limit = self.node(node).and_then(|state| state.port(number));
            let limit = limit.map_or(0, |port| port.info.vl_stall_count);
            let stall = self
                .ports
                .get_mut(index)
                .and_then(|port| port.stalls.get_mut(usize::from(vl)));
            if let Some(stall) = stall {
                stall.drops = stall.drops.saturating_add(1);
                if limit != 0 && stall.drops >= limit {
                    let until = hoq.map(|hoq| now.after(hoq * 8));
                    *stall = Stall { drops: 0, until };
                    self.flush(index, 1 << vl);
                }
            }
        }
        self.pump(index);
    }

    /// Loses a packet that was to leave by a port of a node inside.
    fn discard(&mut self, index: usize, queued: Queued) {
        let Some(port) = self.ports.get(index) else {
            return;
        };
        let (node, number) = (port.node, port.number);
        if let Some(inside) = self.inside_mut(node)
            && let Some(state) = inside.state.port_mut(number)
        {
            state.counts.xmit_discards.bump();
        }
        if let Item::Slot(slot) = queued.item {
            self.done(node, slot, self.now);
        }
    }

    // Receiving

    fn arrive(&mut self, index: usize, epoch: u32, packet: Vec<u8>, charge: Option<Charge>) {
        if self.epoch_of(index) != Some(epoch) {
            return; // it was on the way when the link went down
        }
        let Some(port) = self.ports.get(index) else {
            return;
        };
        let (node, number, end) = (port.node, port.number, port.end);
        let Some(charge) = self.admit_charge(index, &packet, charge) else {
            if let Some(inside) = self.inside_mut(node)
                && let Some(state) = inside.state.port_mut(number)
            {
                state.counts.rcv_errors.bump();
                state.counts.excessive_buffer_overrun_errors.bump();
            }
            return;
        };
        if self.inside_mut(node).is_some() {
            self.arrive_inside(index, epoch, packet, charge);
            return;
        }
        if let Some(charge) = charge {
            self.return_credit(index, epoch, charge, self.now);
        }
        if let Some(end) = end {
            self.outbox.push_back(Delivery::Packet { end, packet });
        }
    }

    /// The room that an arriving packet takes. One that came without having paid (a duplicate) pays now; none if there is
    /// no room for it.
    fn admit_charge(
        &mut self,
        index: usize,
        packet: &[u8],
        charge: Option<Charge>,
    ) -> Option<Option<Charge>> {
        if charge.is_some() {
            return Some(charge);
        }
        let vl = packet.first().map_or(15, |byte| byte >> 4);
        if vl == 15 {
            return Some(None);
        }
        let peer = self.peer(index)?;
        let paid = self.ports.get_mut(peer)?.charge(vl, packet.len())?;
        Some(Some(paid))
    }

    fn arrive_inside(&mut self, index: usize, epoch: u32, packet: Vec<u8>, charge: Option<Charge>) {
        let Some(port) = self.ports.get(index) else {
            return;
        };
        let (node, number, held) = (port.node, port.number, port.vl15_held);
        let slots = self.options.vl15_slots;
        let mut effects = Vec::new();
        let Some(inside) = self.inside_mut(node) else {
            return;
        };
        let state = &mut inside.state;
        let mut lrh = admit(state, number, &packet, &mut effects);
        let is_smp = lrh.as_ref().is_some_and(|lrh| lrh.vl.is_management());
        if is_smp && held >= slots {
            if let Some(port) = state.port_mut(number) {
                port.counts.vl15_dropped.bump();
            }
            lrh = None;
        }
        let ways = lrh.map_or(PortSet::default(), |lrh| ways(state, number, &lrh));
        if !effects.is_empty() {
            self.apply(node, &effects);
        }
        if ways.is_empty() {
            if let Some(charge) = charge {
                self.return_credit(index, epoch, charge, self.now);
            }
            self.recycle(packet);
            return;
        }
        if is_smp && let Some(port) = self.ports.get_mut(index) {
            port.vl15_held += 1;
        }
        let from = super::buffer::From {
            port: index,
            epoch,
            charge,
            is_smp,
        };
        self.hold(node, packet, Some(from), ways, self.options.switch_latency);
    }

    /// Puts a packet into a buffer of a node, and sends it on its ways: to port 0 for the agents, to the others after
    /// `latency`.
    fn hold(
        &mut self,
        node: usize,
        packet: Vec<u8>,
        from: Option<super::buffer::From>,
        ways: PortSet,
        latency: Duration,
    ) {
        let now = self.now;
        let agent_time = self.options.agent_time;
        let Some(inside) = self.inside_mut(node) else {
            return;
        };
        let slot = inside.buffers.put(Buffered {
            packet,
            from,
            waiting: ways.iter().count(),
            arrived: now,
        });
        for out in ways.iter() {
            if out == 0 {
                self.push(now.after(agent_time), Event::Agent { node, slot });
            } else {
                self.push(now.after(latency), Event::Forward { node, slot, out });
            }
        }
    }

    /// A packet has crossed the switch: queues it at its output port.
    fn forward(&mut self, node: usize, slot: usize, out: u8) {
        let Some(first) = self.nodes.get(node).map(|node| node.first) else {
            return;
        };
        let index = first + usize::from(out) - 1;
        let now = self.now;
        let Some(Node {
            kind: Kind::Inside(inside),
            ..
        }) = self.nodes.get_mut(node)
        else {
            return;
        };
        let Some(buffered) = inside.buffers.get(slot) else {
            return;
        };
        let in_port = buffered.from.and_then(|from| self.ports.get(from.port));
        let in_port = in_port.map_or(0, |port| port.number);
        let (len, arrived) = (buffered.packet.len(), buffered.arrived);
        let lane = Lrh::read(&buffered.packet).ok().and_then(|(lrh, _)| {
            // What its own agents answer leaves as long as the link is there: they may just have taken the port down.
            if buffered.from.is_none() && lrh.vl.is_management() {
                return Some(Vl::MANAGEMENT);
            }
            release(&mut inside.state, in_port, out, &lrh, &buffered.packet)
        });
        self.schedule_trap(node);
        let queued = Queued {
            item: Item::Slot(slot),
            len,
            arrived,
        };
        match lane {
            Some(vl) if self.takes(index, vl) => {
                if let Some(port) = self.ports.get_mut(index) {
                    port.push(vl.get(), queued, now);
                }
                self.pump(index);
            }
            Some(_) => self.discard(index, queued),
            None => self.done(node, slot, now),
        }
    }

    /// Is there a link, and is the lane not stalled?
    fn takes(&self, index: usize, vl: Vl) -> bool {
        let Some(port) = self.ports.get(index) else {
            return false;
        };
        let stall = port.stalls.get(usize::from(vl.get()));
        let until = stall.and_then(|stall| stall.until);
        port.up.is_some() && until.is_none_or(|until| until <= self.now)
    }

    /// The agents of a node look at a packet.
    fn consult(&mut self, node: usize, slot: usize) {
        let now = self.now;
        let Some(Node {
            kind: Kind::Inside(inside),
            ..
        }) = self.nodes.get_mut(node)
        else {
            return;
        };
        let Some(buffered) = inside.buffers.get(slot) else {
            return;
        };
        let from = buffered.from.and_then(|from| self.ports.get(from.port));
        let in_port = from.map_or(0, |port| port.number);
        let mut effects = Vec::new();
        let answer = agent::serve(
            &mut inside.state,
            in_port,
            &buffered.packet,
            now,
            &mut effects,
        );
        self.done(node, slot, now);
        if let Some(outgoing) = answer {
            self.emit(node, outgoing);
        }
        self.apply(node, &effects);
    }

    /// Sends what an agent of a node made.
    fn emit(&mut self, node: usize, outgoing: Outgoing) {
        let Outgoing { port, packet } = outgoing;
        let Some(inside) = self.inside_mut(node) else {
            return;
        };
        let ways = match port {
            Some(port) => PortSet::one(port),
            None => match Lrh::read(&packet) {
                Ok((lrh, _)) => route(&mut inside.state, 0, &lrh),
                Err(_) => PortSet::default(),
            },
        };
        // There is nobody at port 0 whom an agent could answer.
        if ways.is_empty() || ways.contains(0) {
            return;
        }
        self.hold(node, packet, None, ways, Duration::ZERO);
    }
}

/// Ways of a packet that came in: port 0 stands for the agents of the node.
fn ways(state: &mut NodeState, in_port: u8, lrh: &Lrh) -> PortSet {
    let for_agents = PortSet::one(0);
    if lrh.dlid.is_permissive() {
        return if lrh.vl.is_management() {
            for_agents
        } else {
            route(state, in_port, lrh)
        };
    }
    if state.switch.is_some() {
        return route(state, in_port, lrh);
    }
    match state.port(in_port) {
        Some(port) if port.has_lid(lrh.dlid) => for_agents,
        _ => PortSet::default(),
    }
}

impl Wire for Fabric {
    fn send(&mut self, end: WireEnd, packet: &[u8], now: Instant) -> Result<(), SendQueueFull> {
        self.catch_up(now);
        let Some(&index) = self.ends.get(end.0 as usize) else {
            return Ok(());
        };
        let depth = self.options.queue_depth;
        let Some(port) = self.ports.get_mut(index) else {
            return Ok(());
        };
        // What is no packet at all is lost, as it would be on a wire; so is everything on a link that is down.
        let largest = blocks(packet.len()) as u32 <= self.options.buffer_blocks;
        if port.up.is_none() || packet.len() < LrhView::LEN || !largest {
            return Ok(());
        }
        let vl = packet.first().map_or(0, |byte| byte >> 4);
        let queue = port.queues.get(usize::from(vl));
        if queue.is_some_and(|queue| queue.len() >= depth) {
            port.refused |= 1 << vl;
            return Err(SendQueueFull);
        }
        let mut copy = self.spare.pop().unwrap_or_default();
        copy.clear();
        copy.extend_from_slice(packet);
        let queued = Queued {
            len: copy.len(),
            item: Item::Own(copy),
            arrived: now,
        };
        port.push(vl, queued, self.now);
        self.pump(index);
        Ok(())
    }

    fn set_link(&mut self, end: WireEnd, control: LinkControl, now: Instant) {
        self.catch_up(now);
        if let Some(&index) = self.ends.get(end.0 as usize) {
            self.control(index, control);
        }
    }

    fn next_event(&self) -> Option<Instant> {
        if !self.outbox.is_empty() {
            return Some(self.now);
        }
        self.events.peek().map(|Reverse(entry)| entry.at)
    }

    fn poll(&mut self, now: Instant) -> Option<Delivery> {
        self.run(now);
        self.outbox.pop_front()
    }

    fn recycle(&mut self, packet: Vec<u8>) {
        if self.spare.len() < SPARE {
            self.spare.push(packet);
        }
    }
}

impl Fabric {
    /// It is `now` at least. Whatever is due before happens first; what comes out waits for [`Wire::poll`].
    fn catch_up(&mut self, now: Instant) {
        while let Some(Reverse(entry)) = self.events.peek() {
            if entry.at >= now {
                break;
            }
            if let Some(Reverse(entry)) = self.events.pop() {
                self.now = entry.at;
                self.happen(entry.event);
            }
        }
        if self.now < now {
            self.now = now;
        }
    }
}
