//! A simulation: a world, a fabric from a topology, and hosts of ours on its channel adapters.

use crate::host::{self, HostSpec, IpEnd, ManagerSpec, Phase, Remote, TunEnd};
use crate::ip::IpHost;
use crate::model::Model;
use crate::tun::{BurstTun, Cidr};
use core::time::Duration;
use core_ib::Instant;
use ib_stack::SmProfile;
use ib_stack::ipoib::link::LinkState;
use platform_sim::fabric::topology::{NodeKind, PortRef, Topology};
use platform_sim::fabric::{Capture, Fabric, FaultHandle, Faults, Options};
use platform_sim::hca::infinihost::{self, InfiniHost};
use platform_sim::machine::{Config, HostId, Mode, Outcome, SimPlatform, Task, World};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// What a simulation is to be.
pub struct Settings {
    /// Chooses everything that is left to chance.
    pub seed: u64,
    /// Virtual or real time.
    pub mode: Mode,
    /// Nodes and cables.
    pub topology: Topology,
    /// How many channel adapters are hosts of ours, from the first on; the others only answer the subnet manager.
    /// `None`: all.
    pub hosts: Option<usize>,
    /// On how many hosts a subnet manager runs, from the first on, with falling priority.
    pub managers: usize,
    /// Between two looks of the subnet manager, and of its standbys.
    pub sweep_interval: Duration,
    /// Hosts have IP interfaces.
    pub ip: bool,
    /// The interfaces have connected mode.
    pub connected: bool,
    /// Programs may have connections: see [`HostSpec::connections`].
    pub connections: bool,
    /// Partitions beside the default one.
    pub partitions: Vec<core_ib::PKey>,
    /// Records packets: see [`Settings::capture_at`].
    pub capture: Option<Capture>,
    /// The host whose cable is recorded, both ways, by its number from 0; none: every cable, so that a packet is
    /// recorded once for each cable that it passes.
    pub capture_at: Option<usize>,
    /// Capacities of the drivers.
    pub driver: mthca_hw::Profile,
    /// The HCAs.
    pub model: Model,
}

impl Settings {
    /// Virtual time, one subnet manager, IP on every host.
    pub fn new(topology: Topology, seed: u64) -> Self {
        Self {
            seed,
            mode: Mode::Virtual,
            topology,
            hosts: None,
            managers: 1,
            sweep_interval: Duration::from_secs(10),
            ip: true,
            connected: false,
            connections: false,
            partitions: Vec::new(),
            capture: None,
            capture_at: Some(0),
            driver: mthca_hw::Profile::SERVER,
            model: Model::default(),
        }
    }
}

/// One host.
pub struct SimHost {
    /// Its name.
    pub name: String,
    /// Its node in the topology.
    pub node: usize,
    /// Its machine.
    pub id: HostId,
    /// Its status, and the way to give it commands.
    pub remote: Remote,
    /// What it was started with.
    pub spec: HostSpec,
    task: Option<Task<()>>,
}

impl SimHost {
    /// Its IPv4 address.
    pub fn ipv4(&self) -> Option<IpAddr> {
        let mut all = self.spec.addresses.iter().map(|cidr| cidr.address);
        all.find(IpAddr::is_ipv4)
    }

    /// Its IPv6 address.
    pub fn ipv6(&self) -> Option<IpAddr> {
        let mut all = self.spec.addresses.iter().map(|cidr| cidr.address);
        all.find(IpAddr::is_ipv6)
    }
}

/// A simulation.
pub struct Simulation {
    /// The world.
    pub world: World,
    /// Its hosts, in the order of the topology.
    pub hosts: Vec<SimHost>,
    /// Nodes and cables.
    pub topology: Topology,
    faults: Vec<FaultHandle>,
    seed: u64,
    mode: Mode,
    model: Model,
}

/// Addresses of host number `index` (from 0): 10.9.0.0/16 and fd09::/64.
pub fn addresses(index: usize) -> Vec<Cidr> {
    let number = u16::try_from(index + 1).unwrap_or(u16::MAX);
    let [high, low] = number.to_be_bytes();
    let v4 = Ipv4Addr::new(10, 9, high, low);
    let v6 = Ipv6Addr::new(0xfd09, 0, 0, 0, 0, 0, 0, number);
    vec![
        Cidr {
            address: v4.into(),
            prefix: 16,
        },
        Cidr {
            address: v6.into(),
            prefix: 64,
        },
    ]
}

/// Capacities of a host's interface.
pub fn ipoib_profile(connected: bool) -> ib_stack::ipoib::Profile {
    ib_stack::ipoib::Profile {
        connected: connected.then_some(ib_stack::ipoib::ConnectedProfile::DEFAULT),
        ..ib_stack::ipoib::Profile::DEFAULT
    }
}

/// The first port of a node that has a cable; 1 if none has.
pub fn first_port(topology: &Topology, node: usize) -> u8 {
    let ends = topology.cables.iter().flat_map(|cable| cable.ends);
    let ports = ends.filter(|end| end.node == node).map(|end| end.port);
    ports.min().unwrap_or(1)
}

/// The nodes that can be hosts: the channel adapters that an InfiniHost can be, with its one or two ports.
pub fn host_nodes(topology: &Topology) -> impl Iterator<Item = usize> {
    topology.of_kind(NodeKind::Ca).filter(|node| {
        let spec = topology.nodes.get(*node);
        spec.is_some_and(|spec| spec.port_count() <= 2)
    })
}

/// Can all hosts of `topology`, two at least, hear of each other? If not, says why not.
pub fn suits(topology: &Topology) -> Result<(), String> {
    let hosts: Vec<usize> = host_nodes(topology).collect();
    let (Some(first), Some(others)) = (hosts.first(), hosts.get(1..).filter(|it| !it.is_empty()))
    else {
        return Err(format!(
            "a demonstration takes two hosts; of {} channel adapters {} can be one: an InfiniHost has 1 or 2 ports",
            topology.of_kind(NodeKind::Ca).count(),
            hosts.len()
        ));
    };
    let name = |node: &usize| {
        let spec = topology.nodes.get(*node);
        spec.map_or_else(String::new, |spec| format!("{:?}", spec.id))
    };
    let reached = reached(topology, PortRef::new(*first, first_port(topology, *first)));
    let lonely = others.iter().filter(|host| {
        let port = PortRef::new(**host, first_port(topology, **host));
        !reached.contains(&port)
    });
    let lonely: Vec<String> = lonely.map(name).collect();
    if lonely.is_empty() {
        return Ok(());
    }
    Err(format!(
        "no cable joins {} to {}, the host of the subnet manager",
        lonely.join(", "),
        name(first)
    ))
}

/// All ports that a packet from `start` can come to: what is not a switch passes nothing on.
fn reached(topology: &Topology, start: PortRef) -> BTreeSet<PortRef> {
    let cables = topology.cables.iter().map(|cable| cable.ends);
    let peers: BTreeMap<PortRef, PortRef> = cables.flat_map(|[a, b]| [(a, b), (b, a)]).collect();
    let mut reached = BTreeSet::new();
    let mut waiting = vec![start];
    while let Some(port) = waiting.pop() {
        let Some(peer) = peers.get(&port).filter(|peer| reached.insert(**peer)) else {
            continue;
        };
        let switch = topology.nodes.get(peer.node);
        if let Some(switch) = switch.filter(|spec| spec.kind == NodeKind::Switch) {
            let ports = 1..=switch.port_count();
            waiting.extend(ports.map(|port| PortRef::new(peer.node, port)));
        }
    }
    reached
}

/// Capacities of a subnet manager for all that `topology` has.
pub fn manager_profile(topology: &Topology, partitions: &[core_ib::PKey]) -> SmProfile {
    let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let (mut adapter_ports, mut switches, mut switch_ports, mut largest) = (0, 0, 0, 0);
    for node in &topology.nodes {
        let ports = usize::from(node.port_count());
        match node.kind {
            NodeKind::Switch => {
                switches += 1;
                switch_ports += ports + 1;
                largest = largest.max(ports);
            }
            _ => adapter_ports += ports,
        }
    }
    // An interface in each partition joins its own groups.
    let interfaces = number(adapter_ports).max(16) * number(partitions.len() + 1);
    let usual = SmProfile::for_hosts(number(topology.nodes.len()).max(16));
    let groups = SmProfile::for_hosts(interfaces);
    let end_ports = number(adapter_ports + switches);
    SmProfile {
        nodes: usual.nodes.max(number(topology.nodes.len())),
        ports: usual.ports.max(number(adapter_ports + switch_ports)),
        switches: usual.switches.max(number(switches)),
        switch_ports: usual.switch_ports.max(number(largest)),
        lids: usual.lids.max(end_ports),
        guids: usual.guids.max(end_ports),
        mlids: usual.mlids.max(groups.mlids),
        groups: usual.groups.max(groups.groups),
        members: usual.members.max(groups.members),
        ..usual
    }
}

/// Makes every direction of every cable one that can have faults.
fn fault_handles(topology: &Topology, fabric: &mut Fabric) -> Vec<FaultHandle> {
    let ends = topology.cables.iter().flat_map(|cable| cable.ends);
    ends.map(|end| {
        let handle = FaultHandle::default();
        fabric.make_faulty(end, &handle);
        handle
    })
    .collect()
}

/// What the HCA on the channel adapter `node` is like.
pub fn hca_config(
    topology: &Topology,
    node: usize,
    model: Model,
) -> Result<infinihost::Config, String> {
    model.config(topology.nodes.get(node).ok_or("no such node")?)
}

/// The HCA on the channel adapter `node`.
pub fn hca_of(topology: &Topology, node: usize, model: Model) -> Result<Box<InfiniHost>, String> {
    model.hca(topology.nodes.get(node).ok_or("no such node")?)
}

/// Can the hosts of this topology have such HCAs?
pub fn takes(topology: &Topology, model: Model) -> Result<(), String> {
    let mut hosts = host_nodes(topology);
    hosts.try_for_each(|node| hca_of(topology, node, model).map(drop))
}

impl Simulation {
    /// Makes the world; nothing has run yet.
    pub fn new(settings: Settings) -> Result<Self, String> {
        let Settings {
            seed,
            mode,
            topology,
            hosts,
            managers,
            sweep_interval,
            ip,
            connected,
            connections,
            partitions,
            capture,
            capture_at,
            driver,
            model,
        } = settings;
        let options = Options {
            seed,
            ..Options::default()
        };
        let adapters = host_nodes(&topology).take(hosts.unwrap_or(usize::MAX));
        let adapters: BTreeSet<usize> = adapters.collect();
        let capacities = manager_profile(&topology, &partitions);
        let is_host =
            |node: usize, _: &platform_sim::fabric::topology::NodeSpec| adapters.contains(&node);
        let mut fabric = Fabric::new(&topology, options, is_host);
        let mut places = Vec::new();
        for (node, spec) in topology.nodes.iter().enumerate() {
            if is_host(node, spec) {
                let ports = 1..=spec.port_count().clamp(1, 2);
                let ends: Vec<_> = ports
                    .filter_map(|port| fabric.end(PortRef::new(node, port)))
                    .collect();
                places.push((node, ends));
            }
        }
        // Around the faults, a capture shows what is lost, too.
        let faults = match &capture {
            Some(_) => fault_handles(&topology, &mut fabric),
            None => Vec::new(),
        };
        match (&capture, capture_at) {
            (None, _) => {}
            (Some(capture), None) => fabric.tap_all(capture),
            (Some(capture), Some(index)) => {
                let (node, _) = places
                    .get(index)
                    .ok_or("there is no such host to capture at")?;
                let here = PortRef::new(*node, first_port(&topology, *node));
                fabric.tap(here, capture, 0);
                if let Some(there) = topology.peer(here) {
                    fabric.tap(there, capture, 1);
                }
            }
        }
        let config = Config {
            seed,
            mode,
            // The hosts' programs (an IP stack among them, and what they print) run in the contexts of the drivers, so
            // what is measured here is not ours alone. That driver and stack fit 16 KiB is held by a machine on whose
            // stack is nothing else: `tests/bare`.
            stack: 1 << 20,
            stack_budget: None,
            ..Config::default()
        };
        let mut simulation = Self {
            world: World::with(config, fabric),
            hosts: Vec::new(),
            topology,
            faults,
            seed,
            mode,
            model,
        };
        for (index, (node, ends)) in places.into_iter().enumerate() {
            let function = hca_of(&simulation.topology, node, model)?;
            let name = simulation
                .topology
                .nodes
                .get(node)
                .map_or_else(String::new, |spec| {
                    if spec.description.is_empty() {
                        spec.id.clone()
                    } else {
                        spec.description.clone()
                    }
                });
            let id = simulation.world.add_host(&name, function, &ends);
            let remote =
                Remote::new(&simulation.world.platform(id)).map_err(|error| error.to_string())?;
            let manager = (index < managers).then(|| ManagerSpec {
                priority: 15_u8.saturating_sub(u8::try_from(index).unwrap_or(15)),
                profile: capacities,
                sweep_interval,
                poll_interval: sweep_interval,
            });
            let spec = HostSpec {
                name: name.clone(),
                port: first_port(&simulation.topology, node),
                addresses: if ip { addresses(index) } else { Vec::new() },
                subnet_manager: manager,
                driver,
                ipoib: ipoib_profile(connected),
                partitions: partitions.clone(),
                connections,
            };
            simulation.hosts.push(SimHost {
                name,
                node,
                id,
                remote,
                spec,
                task: None,
            });
        }
        Ok(simulation)
    }

    /// Which mode it runs in.
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    /// Starts host `index`, with programs of ours on its interface. A host that runs already is an error.
    pub fn start(&mut self, index: usize) -> Result<(), String> {
        let seed = self.seed.wrapping_mul(31).wrapping_add(index as u64);
        self.start_with(index, move |machine, spec, _| {
            use core_ib::platform::Platform;
            if spec.addresses.is_empty() {
                return IpEnd::None;
            }
            let host = IpHost::new(&spec.addresses, spec.mtu(), seed, machine.now());
            IpEnd::Programs(Box::new(host))
        })
    }

    /// Starts host `index` with a real network device on its interface. Real time alone. A host that runs already is an
    /// error.
    pub fn start_with_tun(&mut self, index: usize, tun: BurstTun) -> Result<(), String> {
        self.start_with(index, move |machine, _, remote| {
            match TunEnd::start(machine, tun, remote) {
                Ok(end) => IpEnd::Tun(end),
                Err(_) => IpEnd::None,
            }
        })
    }

    fn start_with(
        &mut self,
        index: usize,
        end: impl FnOnce(&SimPlatform, &HostSpec, &Remote) -> IpEnd + Send + 'static,
    ) -> Result<(), String> {
        let host = self.hosts.get_mut(index).ok_or("no such host")?;
        if host.task.is_some() && !host.remote.look(|status| status.phase.is_over()) {
            return Err(format!("{} runs already", host.name));
        }
        host.remote.forget();
        let (spec, remote) = (host.spec.clone(), host.remote.clone());
        host.task = Some(self.world.spawn(host.id, "host", move |machine| {
            let end = end(machine, &spec, &remote);
            host::run(machine, &spec, &remote, end);
        }));
        Ok(())
    }

    /// Starts all hosts that do not run.
    pub fn start_all(&mut self) {
        for index in 0..self.hosts.len() {
            // Fails for one that runs.
            let _ = self.start(index);
        }
    }

    /// Runs until `done` says so, for at most `limit`. Says whether it did.
    pub fn run_until(&mut self, limit: Duration, mut done: impl FnMut(&[SimHost]) -> bool) -> bool {
        let hosts = &self.hosts;
        self.world.run_while(limit, || !done(hosts)) == Outcome::Done
    }

    /// Runs for `time`.
    pub fn run_for(&mut self, time: Duration) {
        self.world.run_for(time);
    }

    /// The clock.
    pub fn now(&self) -> Instant {
        self.world.now()
    }

    /// Gives every direction of every cable these faults from now on; counts are in [`Simulation::fault_counts`].
    pub fn set_faults(&mut self, faults: Faults) {
        if self.faults.is_empty() {
            let topology = &self.topology;
            let made = self
                .world
                .with_wire(|fabric: &mut Fabric, _| fault_handles(topology, fabric));
            self.faults = made.unwrap_or_default();
        }
        self.faults.iter().for_each(|handle| handle.set(faults));
    }

    /// What the faults did so far, all cables together.
    pub fn fault_counts(&self) -> platform_sim::fabric::FaultCounts {
        let mut sum = platform_sim::fabric::FaultCounts::default();
        for handle in &self.faults {
            let counts = handle.counts();
            sum.dropped += counts.dropped;
            sum.corrupted += counts.corrupted;
            sum.delayed += counts.delayed;
            sum.duplicated += counts.duplicated;
        }
        sum
    }

    /// Pulls the cable at a port, or puts it back, now.
    pub fn plug(&mut self, port: PortRef, plugged: bool) {
        self.world
            .with_wire(|fabric: &mut Fabric, now| fabric.plug(port, plugged, now));
    }

    /// Pulls all cables of a node, or puts them back: a switch that vanishes and returns with its tables.
    pub fn plug_node(&mut self, node: usize, plugged: bool) {
        let ports = self
            .topology
            .nodes
            .get(node)
            .map_or(0, |spec| spec.port_count());
        for port in 1..=ports {
            self.plug(PortRef::new(node, port), plugged);
        }
    }

    /// Switches host `index` off: no context of it runs any more, its cables are dead.
    pub fn power_off(&mut self, index: usize) {
        if let Some(host) = self.hosts.get_mut(index) {
            self.world.power_off(host.id);
            host.task = None;
        }
    }

    /// Switches host `index` on, after [`Simulation::power_off`] or instead of it, and starts it anew: an empty machine
    /// with an HCA that nobody has used. Its [`SimHost::remote`] is a new one.
    pub fn power_on(&mut self, index: usize) -> Result<(), String> {
        let host = self.hosts.get_mut(index).ok_or("no such host")?;
        let function = hca_of(&self.topology, host.node, self.model)?;
        self.world.power_on(host.id, function);
        let machine = self.world.platform(host.id);
        host.remote = Remote::new(&machine).map_err(|error| error.to_string())?;
        host.task = None;
        self.start(index)
    }

    /// Are all hosts' interfaces up (or, without IP, their ports active)?
    pub fn all_up(hosts: &[SimHost]) -> bool {
        hosts.iter().all(|host| {
            host.remote.look(|status| match status.interface {
                Some(state) => state.is_up(),
                None => status.phase == Phase::Running && status.port.state == 4,
            })
        })
    }

    /// What every host is at, for messages.
    pub fn describe(&self) -> String {
        let mut text = String::new();
        for host in &self.hosts {
            let line = host.remote.look(|status| {
                let interface = match status.interface {
                    Some(LinkState::Up { mtu }) => format!("up, MTU {mtu}"),
                    Some(LinkState::Down(cause)) => format!("down: {cause:?}"),
                    None => "no interface".into(),
                };
                let port = status.port;
                let mut line = format!(
                    "{}: {:?}, port state {}, LID {}, {interface}\n",
                    host.name, status.phase, port.state, port.lid
                );
                for complaint in &status.complaints {
                    line.push_str(&format!("    its subnet manager: {complaint}\n"));
                }
                line
            });
            text.push_str(&line);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use platform_sim::fabric::topology::build;

    #[test]
    fn a_manager_has_room_for_every_shape() {
        let tree = build::FatTree {
            radix: 36,
            levels: 3,
            parts: 36,
        };
        let shapes = [
            build::back_to_back(),
            build::star(253),
            build::line(600, 0),
            build::ring(300, 1),
            build::fat_tree(tree).unwrap(),
        ];
        for topology in shapes {
            let profile = manager_profile(&topology, &[core_ib::PKey(0x8001)]);
            assert_eq!(profile.check(), Ok(()));
            let of_kind = |kind| topology.of_kind(kind).count() as u32;
            let (switches, adapters) = (of_kind(NodeKind::Switch), of_kind(NodeKind::Ca));
            assert!(profile.switches >= switches && profile.nodes >= switches + adapters);
            assert!(profile.lids >= switches + adapters && profile.guids >= switches + adapters);
            let ports = topology
                .nodes
                .iter()
                .map(|node| u32::from(node.port_count()));
            assert!(profile.ports >= ports.clone().sum::<u32>() + switches);
            assert!(profile.switch_ports >= ports.max().unwrap());
        }
    }
}
