//! The fabric: nodes, cables, and what happens between them, in the order of time.
//!
//! A pure machine: it has no clock and no threads, is told what time it is, and says when something happens next. Events of
//! one instant happen in the order in which they were caused, so that a run is its inputs and its seed. Whoever is plugged
//! in from outside (an HCA model) sees it as a [`Wire`]; switches and hosts inside answer by their own agents.
//!
//! Flow control is counted, not spoken: a transmitter holds the credits of its peer's buffers for each lane, takes them when a
//! packet leaves, and has them back when the packet has left the buffer and the word of it has travelled. What a lost packet
//! took comes back when the flow-control packet of the next 65 536 symbol times would have told. protocols 1.11.

mod age;
mod build;
mod cables;
mod event;
mod receive;
mod transmit;

use self::event::{Entry, Event};
use super::buffer::Buffers;
use super::capture::{Capture, Tap};
use super::fault::{FaultHandle, Faulty};
use super::link::{Arrival, Line, Link};
use super::node::NodeState;
use super::options::Options;
use super::port::{DATA_LANES, Item, Port, Queued};
use super::topology::PortRef;
use crate::machine::{
    Delivery, LinkControl, LinkParameters, LinkSpeed, LinkWidth, SendQueueFull, Wire, WireEnd,
};
use core::cmp::Reverse;
use core::fmt;
use core::time::Duration;
use core_ib::Instant;
use core_ib::wire::packet::{HeaderView, LrhView, blocks};
use std::collections::{BinaryHeap, VecDeque};

/// Buffers kept for packets to come.
const SPARE: usize = 256;

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

impl Fabric {
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
