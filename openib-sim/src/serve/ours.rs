//! Hosts of ours beside the guests: in process, each a driver, a stack and IP programs on an MT23108 of its own, some
//! of them with a subnet manager.

use super::{Options, Plan};
use crate::host::{self, HostSpec, IpEnd, ManagerSpec, Phase, Remote};
use crate::ip::IpHost;
use crate::model::Model;
use crate::peer::play::Wish;
use crate::peer::{PeerStatus, Stage, messages, rping};
use crate::sim::{addresses, first_port, hca_of, ipoib_profile, manager_profile};
use core_ib::platform::Platform;
use core_ib::{Instant, PKey};
use platform_sim::fabric::topology::{NodeKind, Topology};
use platform_sim::machine::{HostId, Outcome, WireEnd, World};
use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Between two sweeps of a subnet manager, and between two looks of a standby at the master.
const SWEEP: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_secs(2);
/// Between two echo requests, and how long an answer may take: the other end may be a guest whose processor is emulated.
const INTERVAL: Duration = Duration::from_millis(50);
const PATIENCE: Duration = Duration::from_secs(2);
/// What a client over a connection has time for.
const RPING_LIMIT: Duration = Duration::from_secs(25);

/// The nodes that are hosts of ours: the first that are no guests, and have an InfiniHost's ports.
pub(super) fn choose(options: &Options, plan: &Plan) -> Result<Vec<usize>, String> {
    let topology = &plan.topology;
    let fits = |node: &usize| {
        let ports = topology
            .nodes
            .get(*node)
            .map_or(0, |spec| spec.port_count());
        !plan.guests.contains(node) && matches!(ports, 1 | 2)
    };
    let count = options.ours as usize;
    let free: Vec<usize> = topology.of_kind(NodeKind::Ca).filter(fits).collect();
    if options.managers > options.ours {
        return Err("a subnet manager runs on a host of ours; raise --ours".into());
    }
    let chosen = free.get(..count);
    let chosen =
        chosen.ok_or_else(|| format!("there are only {} hosts for {count}", free.len()))?;
    Ok(chosen.to_vec())
}

/// One of them.
pub(super) struct Ours {
    /// Its node.
    pub node: usize,
    name: String,
    model: Model,
    id: HostId,
    remote: Remote,
    spec: HostSpec,
}

impl Ours {
    /// Number `index` (from 0) moves into `node`, whose ports are plugged in at `ends`.
    pub fn settle(
        world: &mut World,
        options: &Options,
        topology: &Topology,
        (index, node): (usize, usize),
        ends: &[WireEnd],
    ) -> Result<Self, String> {
        let model = options.host_model;
        let function = hca_of(topology, node, model)?;
        let spec = topology.nodes.get(node).ok_or("no such node")?;
        let name = match spec.description.as_str() {
            "" => spec.id.clone(),
            description => description.to_owned(),
        };
        let id = world.add_host(&name, function, ends);
        let partitions: Vec<_> = options.partition.iter().map(|key| PKey(*key)).collect();
        let number = u32::try_from(index).unwrap_or(u32::MAX);
        let manager = (number < options.managers).then(|| ManagerSpec {
            priority: 14_u8.saturating_sub(u8::try_from(index).unwrap_or(14)),
            profile: manager_profile(topology, &partitions),
            sweep_interval: SWEEP,
            poll_interval: POLL,
        });
        let spec = HostSpec {
            name: name.clone(),
            port: first_port(topology, node),
            addresses: addresses(index),
            subnet_manager: manager,
            driver: mthca_hw::Profile::SERVER,
            ipoib: ipoib_profile(options.mode == crate::options::IpMode::Connected),
            partitions,
            connections: true,
        };
        let remote = Remote::new(&world.platform(id)).map_err(|error| error.to_string())?;
        let mut ours = Self {
            node,
            name,
            model,
            id,
            remote,
            spec,
        };
        ours.start(world);
        Ok(ours)
    }

    fn start(&mut self, world: &mut World) {
        let (spec, remote) = (self.spec.clone(), self.remote.clone());
        let seed = self.node as u64;
        // The task ends with the world, or when the host is switched off.
        drop(world.spawn(self.id, "host", move |machine| {
            let ip = IpHost::new(&spec.addresses, spec.mtu(), seed, machine.now());
            host::run(machine, &spec, &remote, IpEnd::Programs(Box::new(ip)));
        }));
    }

    /// Switches it off, or on: an empty machine with an HCA that nobody has used.
    pub fn switch(
        &mut self,
        world: &mut World,
        topology: &Topology,
        on: bool,
    ) -> Result<(), String> {
        if !on {
            world.power_off(self.id);
            return Ok(());
        }
        world.power_on(self.id, hca_of(topology, self.node, self.model)?);
        let remote = Remote::new(&world.platform(self.id));
        self.remote = remote.map_err(|error| error.to_string())?;
        self.start(world);
        Ok(())
    }

    /// Starts it again, with IPoIB in another mode.
    pub fn set_mode(
        &mut self,
        world: &mut World,
        topology: &Topology,
        connected: bool,
    ) -> Result<(), String> {
        self.spec.ipoib = ipoib_profile(connected);
        self.switch(world, topology, false)?;
        self.switch(world, topology, true)
    }

    /// Sends `count` echo requests with `size` bytes of data each, and says how many were answered.
    pub fn ping(
        &self,
        world: &mut World,
        peer: IpAddr,
        (count, size): (u16, u16),
    ) -> Result<String, String> {
        if self.remote.look(|status| status.phase != Phase::Running) {
            return Err(format!("{} is not running", self.name));
        }
        self.remote.take_echoes();
        self.remote.tell(host::Command::PingSize(size.into()));
        self.remote.tell(host::Command::Ping {
            peer,
            count,
            interval: INTERVAL,
            patience: PATIENCE,
        });
        let limit = INTERVAL * u32::from(count) + PATIENCE * 2;
        let wanted = usize::from(count);
        let all = || {
            let seen = self.remote.look(|status| status.echoes.len());
            seen < wanted
        };
        let ended = world.run_while(limit, all);
        let echoes = self.remote.take_echoes();
        let answered: Vec<_> = echoes.iter().filter_map(|echo| echo.round_trip).collect();
        let mean = answered.iter().sum::<Duration>() / (answered.len().max(1) as u32);
        if ended != Outcome::Done && echoes.len() < wanted {
            log::warn!(
                "{}: {} echoes are neither answered nor lost",
                self.name,
                wanted - echoes.len()
            );
        }
        Ok(format!(
            "{} sent, {} answered, {mean:?} mean",
            count,
            answered.len()
        ))
    }

    /// Answers clients of `rping`, and says what became of all connections; or is a client, to the end of it.
    pub fn rping(
        &self,
        world: &mut World,
        client: Option<(IpAddr, u32, u32)>,
    ) -> Result<String, String> {
        if self.remote.look(|status| status.phase != Phase::Running) {
            return Err(format!("{} is not running", self.name));
        }
        let Some((peer, count, size)) = client else {
            self.remote.tell(host::Command::RpingServe(rping::PORT));
            let seen = self.remote.look(|status| status.peers.clone());
            let lines: Vec<String> = seen.iter().map(ToString::to_string).collect();
            return Ok(lines.join("\n"));
        };
        let peer = SocketAddr::new(peer, rping::PORT);
        self.client(world, host::Command::Rping { peer, count, size })
    }

    /// Says what became of all connections; or serves so many messages of so many bytes each way; or asks an address for
    /// them, to the end of it.
    pub fn messages(
        &self,
        world: &mut World,
        of: Option<((u32, u32), Option<IpAddr>)>,
    ) -> Result<String, String> {
        if self.remote.look(|status| status.phase != Phase::Running) {
            return Err(format!("{} is not running", self.name));
        }
        match of {
            None => {
                let seen = self.remote.look(|status| status.peers.clone());
                let seen = seen.iter().filter(|seen| seen.messages);
                let lines: Vec<String> = seen.map(ToString::to_string).collect();
                Ok(lines.join("\n"))
            }
            Some((of, None)) => {
                self.remote.tell(host::Command::MessagesServe(of));
                Ok(String::new())
            }
            Some((of, Some(peer))) => {
                let peer = SocketAddr::new(peer, messages::PORT);
                self.client(world, host::Command::Messages(peer, of))
            }
        }
    }

    /// Is a client, to the end of it.
    fn client(&self, world: &mut World, command: host::Command) -> Result<String, String> {
        let before = self.remote.look(|status| clients(&status.peers).count());
        self.remote.tell(command);
        let ours = |status: &host::HostStatus| clients(&status.peers).nth(before).cloned();
        let under_way = || {
            let seen = self.remote.look(ours);
            seen.is_none_or(|seen| matches!(seen.stage, Stage::Connecting | Stage::Running))
        };
        world.run_while(RPING_LIMIT, under_way);
        let seen = self.remote.look(ours);
        Ok(seen.map_or("not begun".into(), |seen| seen.to_string()))
    }

    /// Says what became of all pingpongs; or is one end of one: a client to the end of it.
    pub fn pingpong(&self, world: &mut World, wish: Option<Wish>) -> Result<String, String> {
        if self.remote.look(|status| status.phase != Phase::Running) {
            return Err(format!("{} is not running", self.name));
        }
        let Some(wish) = wish else {
            let seen = self.remote.look(|status| status.played.clone());
            let lines: Vec<String> = seen.iter().map(ToString::to_string).collect();
            return Ok(lines.join("\n"));
        };
        let before = self.remote.look(|status| status.played.len());
        self.remote.tell(host::Command::Play(wish));
        let ours = |status: &host::HostStatus| status.played.get(before).cloned();
        let under_way = || {
            let seen = self.remote.look(ours);
            // A server is ready when it is there.
            seen.is_none_or(|seen| wish.peer.is_some() && !seen.stage.is_over())
        };
        world.run_while(RPING_LIMIT, under_way);
        let seen = self.remote.look(ours);
        Ok(seen.map_or("not begun".into(), |seen| seen.to_string()))
    }

    /// What it is at.
    pub fn describe(&self) -> String {
        let mut text = self.remote.look(|status| {
            let manager = status
                .manager
                .map_or(String::new(), |role| format!(", manager {role:?}"));
            format!(
                "== {}: {:?}, port state {}, LID {}, interface {:?}{manager}\n   {:?}\n",
                self.name,
                status.phase,
                status.port.state,
                status.port.lid,
                status.interface,
                status.mads,
            )
        });
        for (at, what) in self.remote.take_log() {
            // Into a string: it cannot fail.
            let _ = writeln!(text, "   {} {what}", Seconds(at));
        }
        text
    }
}

/// Connections that the host asked for.
fn clients(peers: &[PeerStatus]) -> impl Iterator<Item = &PeerStatus> {
    peers.iter().filter(|peer| peer.client)
}

/// An instant, for people.
struct Seconds(Instant);

impl std::fmt::Display for Seconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.3} s", self.0.0 as f64 / 1e9)
    }
}
