//! A fabric of management agents, for tests: nodes and cables, SMPs that travel by directed route and by the tables that
//! were written into the switches, and managers that sit on some of the nodes. Time is virtual.
#![allow(dead_code)] // each test uses a part of it

pub mod ask;
pub mod checks;
mod gmp;
mod mischief;

use core_ib::verbs::{WcOpcode, WcStatus, WorkCompletion};
use core_ib::wire::mad::{
    AttributeId, Capability, Mad, MadStatus, Method, MgmtClass, NodeDescription, NodeType, Notice,
    PortState, PortTrap, ProducerType, Smp, TrapDetails, TrapNumber,
};
use core_ib::{Guid, Instant, Lid, Qpn};
use ib_mad::{Outgoing, Received, SpecialQp};
use ib_sm::{Action, Config, Event, Profile, Report, Sm, SmError, Store};
use platform_sim::fabric::topology::{NodeKind, PortRef, Topology};
use platform_sim::fabric::{
    Answer, Effect, NodeState, PortCaps, Smi, SmpContext, Turn, process_smp,
};
use platform_sim::machine::{LinkControl, LinkParameters, LinkSpeed, LinkWidth};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};
use std::time::Duration;

/// Tables on the heap.
pub struct Heap;

impl Store for Heap {
    type Table<T> = Vec<T>;

    fn table<T>(
        &self,
        _: &'static str,
        len: usize,
        make: impl FnMut(usize) -> T,
    ) -> Result<Vec<T>, SmError> {
        Ok((0..len).map(make).collect())
    }
}

const HOP: Duration = Duration::from_micros(1);
const AGENT: Duration = Duration::from_micros(5);
const TRAINING: Duration = Duration::from_millis(10);

/// Something that will happen.
enum Happening {
    /// A MAD arrives at a port of a node.
    Mad {
        node: usize,
        port: u8,
        mad: Box<Mad>,
        slid: Lid,
        src_qp: Qpn,
    },
    /// A link trains, or goes down.
    Link { node: usize, port: u8, up: bool },
    /// A node may have a trap to send.
    Trap { node: usize },
}

struct Due {
    at: Instant,
    serial: u64,
    what: Happening,
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.serial) == (other.at, other.serial)
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.serial).cmp(&(other.at, other.serial))
    }
}

/// A manager on a node.
pub struct Seat {
    pub node: usize,
    pub port: u8,
    pub sm: Sm<'static, Heap>,
    pub reports: Vec<Report>,
    /// Processor time that its calls took.
    pub cpu: Duration,
    pub sent: u64,
    /// Of those, requests that went by LID.
    pub by_lid: u64,
    /// Requests by method, class and attribute.
    pub kinds: HashMap<(Method, AttributeId), u64>,
    next: Instant,
    alive: bool,
}

pub struct Fabric {
    pub nodes: Vec<NodeState>,
    pub topology: Topology,
    pub cables: HashMap<PortRef, PortRef>,
    /// Cables that are pulled, by either end.
    pub alive: Vec<bool>,
    pub seats: Vec<Seat>,
    pub now: Instant,
    /// Chance that a MAD is lost on its way, in 65536ths.
    pub loss: u32,
    pub dice: u64,
    /// GMPs that came to nodes without a manager.
    pub inbox: Vec<(usize, Received)>,
    /// Set(PortInfo) that made a port Down, or any write into a node, by node.
    pub writes: HashMap<usize, u64>,
    /// Nodes whose clients were told to register anew.
    pub reregistered: HashSet<usize>,
    /// So many of the next requests are answered "busy".
    pub busy: u32,
    /// SMPs with which managers answered.
    pub replies: Vec<Mad>,
    queue: BinaryHeap<Reverse<Due>>,
    serial: u64,
    measure: bool,
}

pub fn caps() -> PortCaps {
    PortCaps {
        widths: LinkWidth(3),
        ..PortCaps::SDR_4X
    }
}

impl Fabric {
    /// All nodes powered, all cables plugged and trained.
    pub fn new(topology: Topology) -> Self {
        let mut nodes = Vec::new();
        for spec in &topology.nodes {
            let ports = spec.port_count();
            let mut node = match spec.kind {
                NodeKind::Switch => NodeState::switch(spec.guid, spec.guid, ports, &caps(), false),
                _ => {
                    let guids: Vec<_> = (1..=ports).map(|port| spec.port_guid(port)).collect();
                    NodeState::ca(spec.guid, &guids, &caps())
                }
            };
            node.description = NodeDescription::new(&spec.description);
            node.system_image_guid = spec.guid;
            nodes.push(node);
        }
        let ends = topology.cables.iter().flat_map(|cable| {
            let [a, b] = cable.ends;
            [(a, b), (b, a)]
        });
        let cables = ends.collect();
        let count = nodes.len();
        let mut fabric = Self {
            nodes,
            topology,
            cables,
            alive: vec![true; count],
            seats: Vec::new(),
            now: Instant(1_000_000),
            loss: 0,
            dice: 0x1234_5678_9abc_def1,
            inbox: Vec::new(),
            writes: HashMap::new(),
            reregistered: HashSet::new(),
            busy: 0,
            replies: Vec::new(),
            queue: BinaryHeap::new(),
            serial: 0,
            measure: true,
        };
        let ports: Vec<_> = fabric.cables.keys().copied().collect();
        for port in ports {
            fabric.train(port, true);
        }
        fabric
    }

    /// Puts a manager on `port` of `node`, whose port is up.
    pub fn seat(
        &mut self,
        node: usize,
        port: u8,
        profile: &Profile,
        config: Config<'static>,
    ) -> usize {
        let config = Config {
            smi_agent: ib_mad::AgentId::new(0x100 + self.seats.len() as u32),
            sa_agent: ib_mad::AgentId::new(0x200 + self.seats.len() as u32),
            ..config
        };
        let mut sm = Sm::new(&Heap, profile, config).unwrap();
        sm.handle(Event::Port { up: true }, self.now);
        let at = self.seats.len();
        self.seats.push(Seat {
            node,
            port,
            sm,
            reports: Vec::new(),
            cpu: Duration::ZERO,
            sent: 0,
            by_lid: 0,
            kinds: HashMap::new(),
            next: self.now,
            alive: true,
        });
        at
    }

    /// A manager on the first host, with a profile that fits.
    pub fn managed(topology: Topology, config: Config<'static>) -> Self {
        let hosts = topology.of_kind(NodeKind::Ca).count() as u32;
        let first = topology.of_kind(NodeKind::Ca).next().unwrap();
        let switches = topology.of_kind(NodeKind::Switch).count() as u32;
        let ports = topology
            .nodes
            .iter()
            .map(|node| u32::from(node.port_count()));
        let mut profile = Profile::for_hosts(hosts.max(switches));
        profile.switches = profile.switches.max(switches);
        profile.switch_ports = ports.clone().max().unwrap_or(1);
        profile.ports = profile.ports.max(ports.map(|ports| ports + 1).sum());
        profile.lids <<= config.lmc;
        profile.nodes = profile.nodes.max(topology.nodes.len() as u32 + 2);
        let mut fabric = Self::new(topology);
        fabric.seat(first, 1, &profile, config);
        fabric
    }

    fn roll(&mut self) -> u32 {
        self.dice ^= self.dice << 13;
        self.dice ^= self.dice >> 7;
        self.dice ^= self.dice << 17;
        (self.dice >> 24) as u32 & 0xffff
    }

    fn push(&mut self, at: Instant, what: Happening) {
        self.serial += 1;
        let serial = self.serial;
        self.queue.push(Reverse(Due { at, serial, what }));
    }

    pub fn peer(&self, port: PortRef) -> Option<PortRef> {
        self.cables
            .get(&port)
            .copied()
            .filter(|peer| self.alive[peer.node])
    }

    fn state(&self, port: PortRef) -> PortState {
        self.nodes[port.node]
            .port(port.port)
            .map_or(PortState::DOWN, |port| port.info.state)
    }

    fn train(&mut self, port: PortRef, up: bool) {
        let parameters = LinkParameters {
            width: LinkWidth::X4,
            speed: LinkSpeed::SDR,
        };
        let mut effects = Vec::new();
        self.nodes[port.node].link_changed(port.port, up.then_some(parameters), &mut effects);
        self.effects(port.node, effects);
        for seat in &mut self.seats {
            if seat.alive && (seat.node, seat.port) == (port.node, port.port) {
                seat.sm.handle(Event::Port { up }, self.now);
                seat.next = self.now;
            }
        }
    }

    fn effects(&mut self, node: usize, effects: Vec<Effect>) {
        for effect in effects {
            if let Effect::ClientReregister { .. } = effect {
                self.reregistered.insert(node);
            }
            if let Effect::SetLink { port, control } = effect {
                let end = PortRef::new(node, port);
                let Some(peer) = self.peer(end) else { continue };
                if let LinkControl::Polling { .. } = control {
                    let at = self.now.after(TRAINING);
                    for end in [end, peer] {
                        self.push(
                            at,
                            Happening::Link {
                                node: end.node,
                                port: end.port,
                                up: true,
                            },
                        );
                    }
                } else {
                    self.train(peer, false);
                }
            }
        }
        if let Some(at) = self.nodes[node].next_trap(self.now) {
            self.push(at, Happening::Trap { node });
        }
    }

    /// Sends from `port` of `node` (0: a switch itself).
    fn send(&mut self, node: usize, port: u8, mut mad: Mad, dlid: Lid, slid: Lid, src_qp: Qpn) {
        if self.loss != 0 && self.roll() < self.loss {
            return;
        }
        let is_smp = mad.view().class().is_smp();
        let mut hops = 0;
        let arrival = if mad.view().class() == MgmtClass::SUBN_DR {
            let mut smp = Smp::from_bytes(&mad.0);
            let end = self.directed(node, port, &mut smp, &mut hops);
            mad.0 = smp.to_bytes();
            end
        } else {
            self.by_lid(node, port, dlid, is_smp, &mut hops)
        };
        if let Some(at) = arrival {
            let when = self.now.after(HOP * hops + AGENT);
            let mad = Box::new(mad);
            self.push(
                when,
                Happening::Mad {
                    node: at.node,
                    port: at.port,
                    mad,
                    slid,
                    src_qp,
                },
            );
        }
    }

    fn smi(&self, node: usize) -> Smi {
        let node = &self.nodes[node];
        Smi {
            is_switch: node.node_type == NodeType::SWITCH,
            ports: node.port_count(),
        }
    }

    fn cross(&self, out: PortRef) -> Option<PortRef> {
        let peer = self.peer(out)?;
        (self.state(out) >= PortState::INIT && self.state(peer) >= PortState::INIT).then_some(peer)
    }

    fn directed(&self, node: usize, port: u8, smp: &mut Smp, hops: &mut u32) -> Option<PortRef> {
        let mut at = PortRef::new(node, port);
        let mut turn = self.smi(node).originate(smp).ok()?;
        loop {
            match turn {
                Turn::Local => return Some(at),
                Turn::Out { port } => {
                    at = self.cross(PortRef::new(at.node, port))?;
                    *hops += 1;
                    turn = self.smi(at.node).receive(smp, at.port).ok()?;
                }
                Turn::LidRouted { .. } => return None,
            }
        }
    }

    /// Where a packet to `dlid` ends; data needs active ports.
    pub fn by_lid(
        &self,
        node: usize,
        port: u8,
        dlid: Lid,
        is_smp: bool,
        hops: &mut u32,
    ) -> Option<PortRef> {
        let least = if is_smp {
            PortState::INIT
        } else {
            PortState::ACTIVE
        };
        let own = |at: PortRef| {
            let node = &self.nodes[at.node];
            node.port(node.end_port(at.port))
                .is_some_and(|port| port.has_lid(dlid))
        };
        let mut at = PortRef::new(node, port);
        if own(at) {
            return Some(at);
        }
        for _ in 0..=self.nodes.len() {
            let out = match &self.nodes[at.node].switch {
                Some(switch) => PortRef::new(at.node, switch.unicast_port(dlid)?),
                None if *hops == 0 => at,
                None => return None, // it arrived at the wrong adapter
            };
            if out.port == 0 {
                return own(out).then_some(PortRef::new(at.node, at.port));
            }
            at = self.cross(out)?;
            if self.state(out) < least || self.state(at) < least {
                return None;
            }
            *hops += 1;
            if self.nodes[at.node].switch.is_none() {
                return own(at).then_some(at);
            }
        }
        panic!("a loop on the way from node {node} to LID {dlid}");
    }

    fn received(mad: &Mad, slid: Lid, src_qp: Qpn) -> Received {
        let qp = if mad.view().class().is_smp() {
            SpecialQp::Smi
        } else {
            SpecialQp::Gsi
        };
        let wc = WorkCompletion {
            status: WcStatus::Success,
            opcode: WcOpcode::Recv,
            byte_len: 296,
            qpn: qp.qpn(),
            src_qp,
            slid,
            ..WorkCompletion::EMPTY
        };
        Received {
            qp,
            wc,
            grh: None,
            sgid_index: 0,
            mad: *mad,
        }
    }

    fn arrived(&mut self, node: usize, port: u8, mad: &Mad, slid: Lid, src_qp: Qpn) {
        if !self.alive[node] {
            return;
        }
        let header = mad.header();
        let seat = self
            .seats
            .iter()
            .position(|seat| seat.alive && seat.node == node);
        let for_manager = header.method.is_response() && header.method != Method::TRAP_REPRESS
            || header.attribute == AttributeId::SM_INFO
            || header.method == Method::TRAP
            || !header.class.is_smp();
        if for_manager {
            let received = Self::received(mad, slid, src_qp);
            match seat {
                Some(seat) => {
                    let now = self.now;
                    let seat = &mut self.seats[seat];
                    let start = std::time::Instant::now();
                    seat.sm.handle(Event::Received(&received), now);
                    if self.measure {
                        seat.cpu += start.elapsed();
                    }
                    seat.next = now;
                }
                None if !header.class.is_smp() => self.inbox.push((node, received)),
                None => {}
            }
            // A client on the manager's own node hears, too.
            if seat.is_some() && !header.class.is_smp() && header.method.is_response() {
                self.inbox.push((node, received));
            }
            return;
        }
        let smp = Smp::from_bytes(&mad.0);
        if smp.header.method == Method::SET {
            *self.writes.entry(node).or_default() += 1;
        }
        let context = SmpContext {
            in_port: port,
            slid,
            ignore_m_key: false,
            now: self.now,
        };
        if self.busy != 0 {
            self.busy -= 1;
            let reply = smp.reply(MadStatus::BUSY).unwrap();
            self.send(node, port, Mad(reply.to_bytes()), slid, Lid::NONE, Qpn::SMI);
            return;
        }
        let mut effects = Vec::new();
        let answer = process_smp(&mut self.nodes[node], &smp, &context, &mut effects);
        if let Answer::Reply(reply) = answer {
            let own = self.nodes[node].port(self.nodes[node].end_port(port));
            let own = own.map_or(Lid::NONE, |port| port.info.lid);
            self.send(node, port, Mad(reply.to_bytes()), slid, own, Qpn::SMI);
        }
        self.effects(node, effects);
    }

    fn happen(&mut self, what: Happening) {
        match what {
            Happening::Mad {
                node,
                port,
                mad,
                slid,
                src_qp,
            } => self.arrived(node, port, &mad, slid, src_qp),
            Happening::Link { node, port, up } => {
                let end = PortRef::new(node, port);
                if self.alive[node]
                    && self.peer(end).is_some()
                    && self.state(end) == PortState::DOWN
                {
                    self.train(end, up);
                }
            }
            Happening::Trap { node } => {
                if let Some((port, smp)) = self.nodes[node].poll_trap(self.now) {
                    let info = self.nodes[node].port(port).map(|port| port.info).unwrap();
                    self.send(
                        node,
                        port,
                        Mad(smp.to_bytes()),
                        info.master_sm_lid,
                        info.lid,
                        Qpn::SMI,
                    );
                    if let Some(at) = self.nodes[node].next_trap(self.now) {
                        self.push(at, Happening::Trap { node });
                    }
                }
            }
        }
    }

    fn poll_seat(&mut self, at: usize) {
        loop {
            let seat = &mut self.seats[at];
            let start = std::time::Instant::now();
            let action = seat.sm.poll(self.now);
            if self.measure {
                seat.cpu += start.elapsed();
            }
            match action {
                Action::Send(outgoing) => {
                    seat.sent += 1;
                    let header = outgoing.mad.header();
                    if header.class == MgmtClass::SUBN_LID && !header.method.is_response() {
                        seat.by_lid += 1;
                    }
                    *seat
                        .kinds
                        .entry((header.method, header.attribute))
                        .or_default() += 1;
                    if header.class.is_smp() && header.method == Method::GET_RESP {
                        self.replies.push(outgoing.mad);
                    }
                    self.send_from_seat(at, &outgoing);
                }
                Action::SetIsSm(is_sm) => {
                    let (node, port) = (seat.node, seat.port);
                    let port = self.nodes[node].port_mut(port).unwrap();
                    port.info.capability.set(Capability::SM, is_sm);
                }
                Action::Log(report) => seat.reports.push(report),
                Action::WaitUntil(next) => {
                    seat.next = next;
                    return;
                }
                other => panic!("what is {other:?}?"),
            }
        }
    }

    fn send_from_seat(&mut self, at: usize, outgoing: &Outgoing) {
        let (node, port) = (self.seats[at].node, self.seats[at].port);
        let own = self.nodes[node]
            .port(port)
            .map_or(Lid::NONE, |port| port.info.lid);
        let src_qp = outgoing.to.qp.qpn();
        self.send(node, port, outgoing.mad, outgoing.to.lid, own, src_qp);
    }

    /// A switch complains of one of its links: trap 129, 130 or 131.
    pub fn port_trap(&mut self, node: usize, number: u16, port: u8) {
        let lid = self.lid(node);
        let details = TrapDetails::Port(PortTrap { lid, port });
        self.trap(node, 0, number, &details);
    }

    /// A node sends a trap from this port.
    pub fn trap(&mut self, node: usize, port: u8, number: u16, details: &TrapDetails) {
        let info = self.nodes[node].port(port).unwrap().info;
        let producer = ProducerType(self.nodes[node].node_type.0.into());
        let notice = Notice::new(TrapNumber(number), producer, info.lid, details);
        let mut smp = Smp::lid_routed(Method::TRAP, AttributeId::NOTICE, 0);
        smp.header.tid = self.serial;
        smp.put(&notice).unwrap();
        let mad = Mad(smp.to_bytes());
        self.send(node, port, mad, info.master_sm_lid, info.lid, Qpn::SMI);
    }

    /// A MAD comes to a manager out of nowhere.
    pub fn deliver(&mut self, node: usize, mad: Mad, slid: Lid, src_qp: Qpn) {
        self.arrived(node, 1, &mad, slid, src_qp);
    }

    /// A manager is to be polled.
    pub fn wake(&mut self, seat: usize) {
        self.seats[seat].next = self.now;
    }

    /// A manager is told to sweep.
    pub fn sweep_now(&mut self, seat: usize) {
        let now = self.now;
        let seat = &mut self.seats[seat];
        seat.sm.handle(Event::Sweep, now);
        seat.next = now;
    }

    /// Lets time pass.
    pub fn run_for(&mut self, time: Duration) {
        let end = self.now.after(time);
        loop {
            for at in 0..self.seats.len() {
                if self.seats[at].alive && self.seats[at].next <= self.now {
                    self.poll_seat(at);
                }
            }
            let next = self.queue.peek().map_or(Instant::NEVER, |due| due.0.at);
            let seats = self
                .seats
                .iter()
                .filter(|seat| seat.alive)
                .map(|seat| seat.next);
            let next = seats.fold(next, Instant::min);
            if next > end {
                self.now = end;
                return;
            }
            self.now = if next > self.now { next } else { self.now };
            while let Some(due) = self.queue.peek() {
                if due.0.at > self.now {
                    break;
                }
                let due = self.queue.pop().unwrap().0;
                self.happen(due.what);
            }
        }
    }

    /// Lets time pass until `done`, and at most `most`. Says whether it came to that.
    pub fn run_until(&mut self, most: Duration, done: impl Fn(&Self) -> bool) -> bool {
        let end = self.now.after(most);
        let mut step = Duration::from_millis(1);
        while self.now < end {
            if done(self) {
                return true;
            }
            self.run_for(step);
            step = (step * 5 / 4).min(Duration::from_millis(500));
        }
        done(self)
    }

    pub fn hosts(&self) -> Vec<usize> {
        self.topology.of_kind(NodeKind::Ca).collect()
    }

    pub fn switches(&self) -> Vec<usize> {
        self.topology.of_kind(NodeKind::Switch).collect()
    }

    pub fn lid(&self, node: usize) -> Lid {
        let node = &self.nodes[node];
        node.port(node.first_port()).unwrap().info.lid
    }

    pub fn guid(&self, node: usize) -> Guid {
        let node = &self.nodes[node];
        node.port(node.first_port()).unwrap().guids[0]
    }
}
