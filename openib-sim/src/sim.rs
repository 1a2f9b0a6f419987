//! A simulation: a world, a fabric from a topology, and hosts of ours on its channel adapters.

use crate::host::{self, HostSpec, IpEnd, ManagerSpec, Phase, Remote, TunEnd};
use crate::ip::IpHost;
use crate::tun::{BurstTun, Cidr};
use core::time::Duration;
use core_ib::Instant;
use ib_stack::ipoib::link::LinkState;
use platform_sim::fabric::topology::{NodeKind, PortRef, Topology};
use platform_sim::fabric::{Capture, Fabric, FaultHandle, Faults, Options};
use platform_sim::hca::infinihost::{self, InfiniHost};
use platform_sim::machine::{Config, HostId, Mode, Outcome, SimPlatform, Task, World};
use std::collections::BTreeSet;
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
    /// Partitions beside the default one.
    pub partitions: Vec<core_ib::PKey>,
    /// Records packets: see [`Settings::capture_at`].
    pub capture: Option<Capture>,
    /// The host whose cable is recorded, both ways, by its number from 0; none: every cable, so that a packet is
    /// recorded once for each cable that it passes.
    pub capture_at: Option<usize>,
    /// Capacities of the drivers.
    pub driver: mthca_hw::Profile,
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
            partitions: Vec::new(),
            capture: None,
            capture_at: Some(0),
            driver: mthca_hw::Profile::SERVER,
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

/// The first port of a node that has a cable; 1 if none has.
pub fn first_port(topology: &Topology, node: usize) -> u8 {
    let ends = topology.cables.iter().flat_map(|cable| cable.ends);
    let ports = ends.filter(|end| end.node == node).map(|end| end.port);
    ports.min().unwrap_or(1)
}

/// What the InfiniHost on the channel adapter `node` is like.
pub fn hca_config(topology: &Topology, node: usize) -> Option<infinihost::Config> {
    let spec = topology.nodes.get(node)?;
    let ports = spec.port_count().clamp(1, 2);
    let mut config = infinihost::Config::new(spec.guid);
    config.ports = ports;
    config.port_guids = [spec.port_guid(1), spec.port_guid(2)];
    config.system_image_guid = spec.system_image_guid.unwrap_or(spec.guid);
    config.node_description = spec.description.chars().take(63).collect();
    Some(config)
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
            partitions,
            capture,
            capture_at,
            driver,
        } = settings;
        let options = Options {
            seed,
            ..Options::default()
        };
        let adapters = topology.of_kind(NodeKind::Ca).filter(|node| {
            let spec = topology.nodes.get(*node);
            spec.is_some_and(|spec| spec.port_count() <= 2)
        });
        let adapters: BTreeSet<usize> = adapters.take(hosts.unwrap_or(usize::MAX)).collect();
        let end_ports = topology.nodes.len();
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
        match (&capture, capture_at) {
            (None, _) => {}
            (Some(capture), None) => fabric.tap_all(capture),
            (Some(capture), Some(index)) => {
                let (node, _) = places
                    .get(index)
                    .ok_or("there is no such host to capture at")?;
                let here = PortRef::new(*node, 1);
                fabric.tap(here, capture, 0);
                if let Some(there) = topology.peer(here) {
                    fabric.tap(there, capture, 1);
                }
            }
        }
        let config = Config {
            seed,
            mode,
            // The hosts' programs (an IP stack among them) run in the contexts of the drivers, and a build without
            // optimisation moves large values by way of the stack.
            stack: 1 << 20,
            stack_budget: None,
            ..Config::default()
        };
        let mut simulation = Self {
            world: World::with(config, fabric),
            hosts: Vec::new(),
            topology,
            faults: Vec::new(),
            seed,
            mode,
        };
        for (index, (node, ends)) in places.into_iter().enumerate() {
            let hca = hca_config(&simulation.topology, node).ok_or("no such node")?;
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
            let function = Box::new(InfiniHost::new(hca));
            let id = simulation.world.add_host(&name, function, &ends);
            let remote =
                Remote::new(&simulation.world.platform(id)).map_err(|error| error.to_string())?;
            let manager = (index < managers).then(|| ManagerSpec {
                priority: 15_u8.saturating_sub(u8::try_from(index).unwrap_or(15)),
                hosts: u32::try_from(end_ports.max(16)).unwrap_or(u32::MAX),
                sweep_interval,
                poll_interval: sweep_interval,
            });
            let spec = HostSpec {
                name: name.clone(),
                port: first_port(&simulation.topology, node),
                addresses: if ip { addresses(index) } else { Vec::new() },
                subnet_manager: manager,
                driver,
                ipoib: ib_stack::ipoib::Profile::DEFAULT,
                partitions: partitions.clone(),
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

    /// Starts host `index`, with programs of ours on its interface.
    pub fn start(&mut self, index: usize) {
        let seed = self.seed.wrapping_mul(31).wrapping_add(index as u64);
        self.start_with(index, move |machine, spec, _| {
            use core_ib::platform::Platform;
            if spec.addresses.is_empty() {
                return IpEnd::None;
            }
            let host = IpHost::new(&spec.addresses, 2044, seed, machine.now());
            IpEnd::Programs(Box::new(host))
        });
    }

    /// Starts host `index` with a real network device on its interface. Real time alone.
    pub fn start_with_tun(&mut self, index: usize, tun: BurstTun) {
        self.start_with(index, move |machine, _, remote| {
            match TunEnd::start(machine, tun, remote) {
                Ok(end) => IpEnd::Tun(end),
                Err(_) => IpEnd::None,
            }
        });
    }

    fn start_with(
        &mut self,
        index: usize,
        end: impl FnOnce(&SimPlatform, &HostSpec, &Remote) -> IpEnd + Send + 'static,
    ) {
        let Some(host) = self.hosts.get_mut(index) else {
            return;
        };
        let (spec, remote) = (host.spec.clone(), host.remote.clone());
        host.task = Some(self.world.spawn(host.id, "host", move |machine| {
            let end = end(machine, &spec, &remote);
            host::run(machine, &spec, &remote, end);
        }));
    }

    /// Starts all hosts.
    pub fn start_all(&mut self) {
        for index in 0..self.hosts.len() {
            self.start(index);
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
            let cables = self.topology.cables.iter();
            let ends: Vec<PortRef> = cables.flat_map(|cable| cable.ends).collect();
            let handles: Vec<_> = ends.iter().map(|_| FaultHandle::new(faults)).collect();
            self.world.with_wire(|fabric: &mut Fabric, _| {
                for (end, handle) in ends.iter().zip(&handles) {
                    fabric.make_faulty(*end, handle);
                }
            });
            self.faults = handles;
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
        let hca = hca_config(&self.topology, host.node).ok_or("no such node")?;
        self.world.power_on(host.id, Box::new(InfiniHost::new(hca)));
        let machine = self.world.platform(host.id);
        host.remote = Remote::new(&machine).map_err(|error| error.to_string())?;
        self.start(index);
        Ok(())
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
                format!(
                    "{}: {:?}, port state {}, LID {}, {interface}\n",
                    host.name, status.phase, port.state, port.lid
                )
            });
            text.push_str(&line);
        }
        text
    }
}
