//! What becomes of a packet that has come to a node: delivered, forwarded, answered, or dropped.

use super::event::Event;
use super::{Fabric, Kind, Node};
use crate::fabric::agent::{self, Outgoing};
use crate::fabric::buffer::{Buffered, From};
use crate::fabric::node::NodeState;
use crate::fabric::port::{Charge, Item, Queued};
use crate::fabric::switch::{PortSet, admit, release, route};
use crate::machine::{Delivery, Wire};
use core::time::Duration;
use core_ib::wire::packet::{Lrh, Vl};

impl Fabric {
    pub(super) fn arrive(
        &mut self,
        index: usize,
        epoch: u32,
        packet: Vec<u8>,
        charge: Option<Charge>,
    ) {
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
    pub(super) fn admit_charge(
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

    pub(super) fn arrive_inside(
        &mut self,
        index: usize,
        epoch: u32,
        packet: Vec<u8>,
        charge: Option<Charge>,
    ) {
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
        let from = From {
            port: index,
            epoch,
            charge,
            is_smp,
        };
        self.hold(node, packet, Some(from), ways, self.options.switch_latency);
    }

    /// Puts a packet into a buffer of a node, and sends it on its ways: to port 0 for the agents, to the others after
    /// `latency`.
    pub(super) fn hold(
        &mut self,
        node: usize,
        packet: Vec<u8>,
        from: Option<From>,
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
            waiting: ways.len(),
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
    pub(super) fn forward(&mut self, node: usize, slot: usize, out: u8) {
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
    pub(super) fn takes(&self, index: usize, vl: Vl) -> bool {
        let Some(port) = self.ports.get(index) else {
            return false;
        };
        let stall = port.stalls.get(usize::from(vl.get()));
        let until = stall.and_then(|stall| stall.until);
        port.up.is_some() && until.is_none_or(|until| until <= self.now)
    }

    /// The agents of a node look at a packet.
    pub(super) fn consult(&mut self, node: usize, slot: usize) {
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
    pub(super) fn emit(&mut self, node: usize, outgoing: Outgoing) {
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
