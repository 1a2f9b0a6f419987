//! A host of ours in the simulator: driver, stack and IP programs, in one context of one machine.
//!
//! The host runs inside the world; whoever watches it from outside gives [`Command`]s and reads [`HostStatus`] through
//! a [`Remote`]. Neither side ever waits for the other.

use crate::ip::{Echo, IpHost, Transfer};
use crate::peer::play::{PlayStatus, Wish};
use crate::peer::{PeerStatus, Peers};
use crate::sums;
use crate::tun::{BurstTun, Cidr, Outbox};
use core::time::Duration;
use core_ib::Instant;
use core_ib::platform::{Completion, Platform, Wake};
use core_ib::verbs::{Device, DeviceCaps, VerbsError};
use ib_sm::Level as SmLevel;
use ib_stack::ipoib::link::LinkState;
use ib_stack::ipoib::{NetInterface, SendError};
use ib_stack::{PortStatistics, PortStatus, SmReport, SmRole, Stack, StackError, StackEvent};
use mthca_hw::Hca;
use platform_sim::machine::SimPlatform;
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a host is to be.
#[derive(Clone, Debug)]
pub struct HostSpec {
    /// Its name, and its node description.
    pub name: String,
    /// Port of its HCA that the interface and the subnet manager are on.
    pub port: u8,
    /// IP addresses of its interface; none: no interface.
    pub addresses: Vec<Cidr>,
    /// A subnet manager runs on it.
    pub subnet_manager: Option<ManagerSpec>,
    /// Capacities of the driver.
    pub driver: mthca_hw::Profile,
    /// Capacities of the IP interface.
    pub ipoib: ib_stack::ipoib::Profile,
    /// Partitions beside the default one in which it has an interface too, with nobody behind it.
    pub partitions: Vec<core_ib::PKey>,
    /// It has a communication manager even if its interface needs none: for [`Command::RpingServe`] and [`Command::Rping`].
    pub connections: bool,
}

/// A subnet manager.
#[derive(Clone, Copy, Debug)]
pub struct ManagerSpec {
    /// The highest wins.
    pub priority: u8,
    /// Capacities: see [`manager_profile`](crate::sim::manager_profile).
    pub profile: ib_stack::SmProfile,
    /// Between two looks at whether all is as it was.
    pub sweep_interval: Duration,
    /// Between two looks of a standby at the master.
    pub poll_interval: Duration,
}

/// Something that a host is told to do.
#[derive(Clone, Debug)]
pub enum Command {
    /// Send echo requests.
    Ping {
        /// Whom to.
        peer: IpAddr,
        /// How many.
        count: u16,
        /// Between two.
        interval: Duration,
        /// How long to wait for an answer.
        patience: Duration,
    },
    /// Echo requests from now on have so many bytes of data.
    PingSize(usize),
    /// Take a TCP stream; transfers count from 0 in the order in which they were asked for.
    Listen {
        /// On this port.
        port: u16,
        /// Bytes that will come.
        expected: u64,
    },
    /// Send a TCP stream.
    Send {
        /// Whom to.
        peer: IpAddr,
        /// To this port.
        port: u16,
        /// Bytes.
        length: u64,
    },
    /// Answer `rping` clients at this port.
    RpingServe(u16),
    /// Be one.
    Rping {
        /// Of this server.
        peer: SocketAddr,
        /// Rounds.
        count: u32,
        /// Bytes of each.
        size: u32,
    },
    /// Serve so many messages of so many bytes each way, over connections.
    MessagesServe((u32, u32)),
    /// Ask this server for them.
    Messages(SocketAddr, (u32, u32)),
    /// Be one end of a pingpong.
    Play(Wish),
    /// Close the stack and the HCA, and end.
    Stop,
}

/// So many complaints of a subnet manager are kept.
const COMPLAINTS: usize = 8;

/// How far a host has come.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Phase {
    /// The driver brings the HCA up.
    #[default]
    Starting,
    /// The stack runs.
    Running,
    /// It was stopped in order.
    Stopped,
    /// It gave up: why.
    Failed(String),
}

impl Phase {
    /// Has it ended, one way or the other?
    pub const fn is_over(&self) -> bool {
        matches!(self, Self::Stopped | Self::Failed(_))
    }
}

/// What can be seen of a host.
#[derive(Clone, Debug, Default)]
pub struct HostStatus {
    /// How far it has come.
    pub phase: Phase,
    /// The port in use.
    pub port: PortStatus,
    /// Its MAD counters.
    pub mads: PortStatistics,
    /// The IP interface.
    pub interface: Option<LinkState>,
    /// The subnet manager, if there is one.
    pub manager: Option<SmRole>,
    /// What the manager asks somebody to look into: each once, the first few.
    pub complaints: Vec<String>,
    /// How often the manager said that the subnet is up, and the last time that it did.
    pub subnet_up: (u32, Option<Instant>),
    /// Echoes so far.
    pub echoes: Vec<Echo>,
    /// Echo requests are under way.
    pub pinging: bool,
    /// Transfers, by number.
    pub transfers: Vec<Transfer>,
    /// Connections of programs: all there have been.
    pub peers: Vec<PeerStatus>,
    /// Pingpongs: all there have been.
    pub played: Vec<PlayStatus>,
    /// IP packets taken from and given to the interface.
    pub packets: (u64, u64),
    /// IP packets that the interface did not take.
    pub packets_dropped: u64,
    /// What happened, and when.
    pub log: Vec<(Instant, String)>,
}

#[derive(Default)]
struct Shared {
    commands: VecDeque<Command>,
    status: HostStatus,
}

/// What a host is woken by.
struct HostWake(<SimPlatform as Platform>::Completion);

impl Wake for HostWake {
    fn wake(&self) {
        self.0.fire();
    }
}

/// A host from outside.
#[derive(Clone)]
pub struct Remote {
    shared: Arc<Mutex<Shared>>,
    wake: Arc<HostWake>,
}

impl HostSpec {
    /// Bytes of the longest packet of its interface.
    pub fn mtu(&self) -> u16 {
        self.ipoib
            .connected
            .map_or(crate::tun::MTU, |connected| connected.mtu)
    }
}

impl Remote {
    /// For the host in `machine`. Fails if the machine has no completion left.
    pub fn new(machine: &SimPlatform) -> core_ib::platform::Result<Self> {
        Ok(Self {
            shared: Arc::default(),
            wake: Arc::new(HostWake(machine.completion()?)),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        // What is in there is plain data: a panic elsewhere leaves nothing half done.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a command.
    pub fn tell(&self, command: Command) {
        self.lock().commands.push_back(command);
        self.wake.wake();
    }

    /// Looks at the status.
    pub fn look<R>(&self, f: impl FnOnce(&HostStatus) -> R) -> R {
        f(&self.lock().status)
    }

    /// A copy of it.
    pub fn status(&self) -> HostStatus {
        self.look(Clone::clone)
    }

    /// Takes the echoes so far.
    pub fn take_echoes(&self) -> Vec<Echo> {
        core::mem::take(&mut self.lock().status.echoes)
    }

    /// Takes the log so far.
    pub fn take_log(&self) -> Vec<(Instant, String)> {
        core::mem::take(&mut self.lock().status.log)
    }

    fn note(&self, now: Instant, what: impl Into<String>) {
        self.lock().status.log.push((now, what.into()));
    }

    fn phase(&self, phase: Phase) {
        self.lock().status.phase = phase;
    }

    /// What was seen of an earlier run, and what it was told and did not do, is forgotten; its log is not.
    pub(crate) fn forget(&self) {
        let mut shared = self.lock();
        let log = core::mem::take(&mut shared.status.log);
        shared.commands.clear();
        shared.status = HostStatus {
            log,
            ..HostStatus::default()
        };
    }
}

/// Where a host's IP packets come from and go to.
pub enum IpEnd {
    /// Programs in the simulator. Boxed: hosts have small stacks.
    Programs(Box<IpHost>),
    /// A real interface, read by a context of its own.
    Tun(Box<TunEnd>),
    /// Nobody.
    None,
}

/// A TUN device of a host.
pub struct TunEnd {
    queue: Arc<TunQueue>,
    outbox: Outbox,
}

/// Packets from a TUN device to a host.
struct TunQueue {
    /// Packets that the system sent.
    waiting: Mutex<VecDeque<Vec<u8>>>,
    /// There is room again.
    room: <SimPlatform as Platform>::Completion,
}

/// With so many packets that wait between a TUN device and the host, no more are read; then the device's own queue
/// fills, as it should.
const TUN_QUEUE: usize = 128;

impl TunEnd {
    /// For `device`, read by a context of `machine`.
    pub fn start(
        machine: &SimPlatform,
        device: BurstTun,
        remote: &Remote,
    ) -> core_ib::platform::Result<Box<Self>> {
        let queue = Arc::new(TunQueue {
            waiting: Mutex::default(),
            room: machine.completion()?,
        });
        let outbox = device.outbox();
        let (reader, remote) = (queue.clone(), remote.clone());
        // The task ends with the world.
        drop(machine.spawn("tun", move |machine| reader.read(device, machine, &remote)));
        Ok(Box::new(Self { queue, outbox }))
    }
}

impl TunQueue {
    fn queue(&self) -> MutexGuard<'_, VecDeque<Vec<u8>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self, mut device: BurstTun, machine: &SimPlatform, remote: &Remote) {
        use std::os::fd::AsFd;
        loop {
            if self.queue().len() >= TUN_QUEUE {
                self.room.wait_until(Instant::NEVER);
                continue;
            }
            let mut waiting = self.queue();
            let read = device.recv(|packet| waiting.push_back(packet.to_vec()));
            drop(waiting);
            match read {
                Ok(()) => remote.wake.wake(),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    let wait = machine.wait_file(device.as_fd(), false, Instant::NEVER);
                    if let Err(error) = wait {
                        let what = format!("the TUN device cannot be waited for: {error}");
                        remote.note(machine.now(), what);
                        return;
                    }
                }
                // Not the system's: about this burst alone.
                Err(error) if error.raw_os_error().is_none() => {
                    remote.note(machine.now(), format!("from the TUN device: {error}"));
                }
                Err(error) => {
                    remote.note(machine.now(), format!("the TUN device failed: {error}"));
                    return;
                }
            }
        }
    }
}

/// Why a host's round ended.
enum End {
    Stop,
    Failed(StackError),
    /// What programs have could not be made, or not be used any more.
    Peers(String),
}

impl From<VerbsError> for End {
    fn from(error: VerbsError) -> Self {
        Self::Failed(error.into())
    }
}

/// The host. Runs until told to stop, or until the HCA fails. Give it to [`World::spawn`](platform_sim::machine::World).
pub fn run(machine: &SimPlatform, spec: &HostSpec, remote: &Remote, mut end: IpEnd) {
    match bring_up(machine, spec, remote, &mut end) {
        Ok(()) => remote.phase(Phase::Stopped),
        Err(why) => {
            remote.note(machine.now(), why.clone());
            remote.phase(Phase::Failed(why));
        }
    }
}

fn bring_up(
    machine: &SimPlatform,
    spec: &HostSpec,
    remote: &Remote,
    end: &mut IpEnd,
) -> Result<(), String> {
    let wake: &HostWake = &remote.wake;
    let hca = Hca::open(machine, wake, &spec.driver).map_err(|error| error.to_string())?;
    remote.note(machine.now(), "the HCA is up");
    let stacked = with_stack(machine, &hca, spec, remote, end);
    let closed = hca
        .close()
        .map_err(|(_, error)| format!("closing the HCA: {error}"));
    stacked.and(closed)
}

fn with_stack(
    machine: &SimPlatform,
    hca: &Hca<'_, SimPlatform>,
    spec: &HostSpec,
    remote: &Remote,
    end: &mut IpEnd,
) -> Result<(), String> {
    let mut interfaces = Vec::new();
    if !spec.addresses.is_empty() {
        let keys = core::iter::once(core_ib::PKey::DEFAULT).chain(spec.partitions.iter().copied());
        interfaces.extend(keys.map(|p_key| ib_stack::InterfaceConfig {
            port: spec.port,
            p_key,
            profile: spec.ipoib,
            ..ib_stack::InterfaceConfig::DEFAULT
        }));
    }
    let partitions: Vec<_> = spec
        .partitions
        .iter()
        .map(|key| ib_sm::Partition::open(key.base()))
        .collect();
    let config = ib_stack::Config {
        description: &spec.name,
        interfaces: &interfaces,
        subnet_manager: spec.subnet_manager.map(|manager| ib_stack::SubnetManager {
            port: spec.port,
            profile: manager.profile,
            config: ib_sm::Config {
                priority: manager.priority,
                sweep_interval: manager.sweep_interval,
                poll_interval: manager.poll_interval,
                partitions: &partitions,
                ..ib_sm::Config::default()
            },
        }),
        // Another life has other IDs.
        cm: (spec.connections || spec.ipoib.connected.is_some()).then(|| {
            let now = machine.now().0 >> 10;
            ib_stack::CmConfig::new(
                now as u32 ^ (hca.query_device().node_guid.0 as u32).rotate_left(16),
            )
        }),
        ..ib_stack::Config::default()
    };
    let mut stack = Stack::open(machine, hca, &config).map_err(|error| error.to_string())?;
    for index in 0..interfaces.len() {
        for address in &spec.addresses {
            if let Some(ip) = stack.ip(index) {
                ip.add_address(address.address, address.prefix)
                    .map_err(|error| format!("{address}: {error}"))?;
            }
        }
    }
    if let IpEnd::Programs(ip) = end
        && hca.query_device().caps.contains(DeviceCaps::IP_CHECKSUM)
    {
        ip.leave_sums(machine.now());
    }
    remote.phase(Phase::Running);
    let mut host = Host {
        machine,
        hca,
        remote,
        port: spec.port,
        interfaces: interfaces.len(),
        stack,
        end,
        transfers: 0,
        packets: (0, 0),
        dropped: 0,
        peers: None,
    };
    let ended = loop {
        if let Err(end) = host.round() {
            break end;
        }
    };
    let Host { stack, peers, .. } = host;
    let closed = stack
        .close()
        .map_err(|error| format!("closing the stack: {error}"));
    let closed = closed.and(peers.map_or(Ok(()), |peers| peers.close()));
    match ended {
        End::Stop => closed,
        End::Failed(error) => Err(error.to_string()),
        End::Peers(why) => Err(why),
    }
}

/// Sends a packet without a checksum of TCP or UDP: the HCA makes it if it can, else it is made here.
fn send_unsummed(
    ip: &mut impl NetInterface,
    packet: &mut [u8],
    now: Instant,
) -> Result<(), SendError> {
    if !ip.has_checksums(packet.len()) || !sums::can_be_left(packet) {
        sums::fill(packet);
        return ip.send(packet, now);
    }
    ip.send_unsummed_with(packet.len(), now, &mut |room| room.copy_from_slice(packet))
}

struct Host<'h, 'p> {
    machine: &'h SimPlatform,
    hca: &'h Hca<'p, SimPlatform>,
    remote: &'h Remote,
    port: u8,
    stack: Stack<'h, Hca<'p, SimPlatform>, SimPlatform>,
    interfaces: usize,
    end: &'h mut IpEnd,
    transfers: usize,
    packets: (u64, u64),
    dropped: u64,
    /// From the first command about it on.
    peers: Option<Box<Peers<'h, 'p>>>,
}

impl<'h, 'p> Host<'h, 'p> {
    /// One round: does what is due, and sleeps if there was nothing.
    fn round(&mut self) -> Result<(), End> {
        let now = self.machine.now();
        self.commands(now)?;
        let mut next = self.stack.poll(now)?;
        let mut worked = false;
        while let Some(job) = self.stack.next_job() {
            let done = job.run(self.hca);
            self.stack.job_done(done, self.machine.now());
            worked = true;
        }
        let now = self.machine.now();
        worked |= self.receive(now);
        let (ip_next, sent) = self.send(now);
        next = next.min(ip_next);
        worked |= sent;
        let (peers_next, turned) = self.turn_peers(now)?;
        next = next.min(peers_next);
        worked |= turned;
        self.publish(now);
        if worked || next <= now {
            return Ok(());
        }
        if self.stack.arm()? {
            return Ok(());
        }
        if let Some(peers) = &self.peers {
            peers.arm().map_err(End::Peers)?;
            if self.turn_peers(now)?.1 {
                return Ok(());
            }
        }
        self.remote.wake.0.wait_until(next);
        Ok(())
    }

    /// What programs have to do over connections: when they have, and whether something was done.
    fn turn_peers(&mut self, now: Instant) -> Result<(Instant, bool), End> {
        let Some(peers) = &mut self.peers else {
            return Ok((Instant::NEVER, false));
        };
        let mut turned = peers.turn(&mut self.stack, now).map_err(End::Peers)?;
        if let IpEnd::Programs(ip) = &mut *self.end {
            let lid = self.stack.port_status(self.port).unwrap_or_default().lid;
            turned |= peers.go_on(ip, lid.0, now);
        }
        if let Some(stranger) = peers.stranger(&mut self.stack, now)
            && let IpEnd::Programs(ip) = &mut *self.end
        {
            ip.ping(stranger, 1, Duration::ZERO, Duration::from_secs(1), now);
        }
        Ok((peers.next(), turned))
    }

    /// What programs have, made at the first use.
    fn peers(&mut self) -> Result<&mut Box<Peers<'h, 'p>>, End> {
        match &mut self.peers {
            Some(peers) => Ok(peers),
            none => {
                let peers = Peers::new(self.machine, self.hca, self.port);
                Ok(none.insert(peers.map_err(End::Peers)?))
            }
        }
    }

    fn commands(&mut self, now: Instant) -> Result<(), End> {
        loop {
            let command = self.remote.lock().commands.pop_front();
            let Some(command) = command else {
                return Ok(());
            };
            match command {
                Command::RpingServe(port) => {
                    self.peers()?;
                    if let Some(peers) = &mut self.peers {
                        let listens = peers.listen(&mut self.stack, port);
                        listens.map_err(End::Peers)?;
                    }
                    continue;
                }
                Command::Rping { peer, count, size } => {
                    self.peers()?.connect(peer, (count, size), now);
                    continue;
                }
                Command::MessagesServe(of) => {
                    self.peers()?;
                    if let Some(peers) = &mut self.peers {
                        let serves = peers.serve_messages(&mut self.stack, of);
                        serves.map_err(End::Peers)?;
                    }
                    continue;
                }
                Command::Messages(peer, of) => {
                    self.peers()?.ask_messages(peer, of, now);
                    continue;
                }
                Command::Play(wish) => {
                    self.peers()?;
                    if let Some(peers) = &mut self.peers
                        && let IpEnd::Programs(ip) = &mut *self.end
                    {
                        peers.play(wish, ip);
                    }
                    continue;
                }
                _ => {}
            }
            let IpEnd::Programs(ip) = &mut *self.end else {
                if matches!(command, Command::Stop) {
                    return Err(End::Stop);
                }
                continue;
            };
            match command {
                Command::Stop => return Err(End::Stop),
                Command::Ping {
                    peer,
                    count,
                    interval,
                    patience,
                } => ip.ping(peer, count, interval, patience, now),
                Command::PingSize(size) => ip.set_ping_size(size),
                Command::Listen { port, expected } => {
                    ip.listen(port, expected);
                    self.transfers += 1;
                }
                Command::Send { peer, port, length } => {
                    ip.send(peer, port, length);
                    self.transfers += 1;
                }
                // Done above.
                Command::RpingServe(_)
                | Command::Rping { .. }
                | Command::MessagesServe(_)
                | Command::Messages(..)
                | Command::Play(_) => {}
            }
        }
    }

    /// From the interface to the IP end.
    fn receive(&mut self, now: Instant) -> bool {
        let mut any = false;
        let end = &mut *self.end;
        let received = &mut self.packets.1;
        let dropped = &mut self.dropped;
        // Nobody is behind an interface in a further partition; what comes there may not stay, or the host never sleeps.
        for index in 1..self.interfaces {
            while self.stack.receive(index, now, &mut |_| {}) {
                any = true;
            }
        }
        while self.stack.receive_judged(0, now, &mut |packet, verified| {
            *received += 1;
            match end {
                IpEnd::Programs(ip) => ip.receive(packet, verified),
                IpEnd::Tun(tun) => {
                    if !tun.outbox.push(packet) {
                        *dropped += u64::from(tun.outbox.flush().is_err());
                        tun.outbox.push(packet);
                    }
                }
                IpEnd::None => {}
            }
        }) {
            any = true;
        }
        if let IpEnd::Tun(tun) = end
            && !tun.outbox.is_empty()
        {
            *dropped += u64::from(tun.outbox.flush().is_err());
        }
        any
    }

    /// From the IP end to the interface. Says when the IP end has something to do, and whether something was sent.
    fn send(&mut self, now: Instant) -> (Instant, bool) {
        let mut any = false;
        let next = match &mut *self.end {
            IpEnd::Programs(ip) => ip.poll(now),
            IpEnd::Tun(_) | IpEnd::None => Instant::NEVER,
        };
        loop {
            let packet = match &mut *self.end {
                IpEnd::Programs(ip) => ip.pop(),
                IpEnd::Tun(tun) => {
                    let mut waiting = tun.queue.queue();
                    let packet = waiting.pop_front();
                    let room = waiting.len() == TUN_QUEUE / 2;
                    drop(waiting);
                    if packet.is_some() && room {
                        tun.queue.room.fire();
                    }
                    packet
                }
                IpEnd::None => None,
            };
            let Some(mut packet) = packet else { break };
            let leaves = matches!(&*self.end, IpEnd::Programs(ip) if ip.leaves_sums());
            let sent = match self.stack.ip(0) {
                Some(ip) if leaves => send_unsummed(ip, &mut packet, now),
                Some(ip) => ip.send(&packet, now),
                None => Err(SendError::Down),
            };
            match sent {
                Ok(()) => {
                    self.packets.0 += 1;
                    any = true;
                }
                Err(SendError::NoFrame) => {
                    // Back to where it came from, until completions make room; those fire the CQ.
                    match &mut *self.end {
                        IpEnd::Programs(ip) => ip.put_back(packet),
                        IpEnd::Tun(tun) => tun.queue.queue().push_front(packet),
                        IpEnd::None => {}
                    }
                    break;
                }
                Err(_) => self.dropped += 1,
            }
        }
        (next, any)
    }

    fn publish(&mut self, now: Instant) {
        let mut news = Vec::new();
        while let Some(event) = self.stack.next_event() {
            news.push(event);
        }
        // All questions first: the stack's locks are points at which the world may go on with another context, and
        // nobody may hold the status meanwhile.
        let port = self.stack.port_status(self.port).unwrap_or_default();
        let mads = self.stack.port_statistics(self.port).unwrap_or_default();
        let interface = self.stack.interface_state(0);
        let manager = self.stack.manager_role();
        let mut shared = self.remote.lock();
        let status = &mut shared.status;
        for event in news {
            match event {
                StackEvent::Port(port, event) => {
                    status.log.push((now, format!("port {port}: {event:?}")));
                }
                StackEvent::Interface(index, state) => {
                    status
                        .log
                        .push((now, format!("interface {index}: {state:?}")));
                }
                StackEvent::Manager(report) => {
                    if matches!(report, SmReport::SubnetUp { .. }) {
                        status.subnet_up = (status.subnet_up.0 + 1, Some(now));
                    }
                    let words = report.to_string();
                    if report.level() == SmLevel::Warning
                        && status.complaints.len() < COMPLAINTS
                        && !status.complaints.contains(&words)
                    {
                        status.complaints.push(words.clone());
                    }
                    status.log.push((now, format!("subnet manager: {words}")));
                }
                _ => {}
            }
        }
        (status.port, status.mads) = (port, mads);
        (status.interface, status.manager) = (interface, manager);
        status.packets = self.packets;
        status.packets_dropped = self.dropped;
        if let Some(peers) = &self.peers {
            status.peers.clone_from(&peers.statuses);
            status.played.clone_from(&peers.played);
        }
        if let IpEnd::Programs(ip) = &mut *self.end {
            status.echoes.extend(ip.take_echoes());
            status.pinging = ip.is_pinging();
            status.transfers.clear();
            let transfers = (0..self.transfers).map(|number| ip.transfer(number));
            status.transfers.extend(transfers);
        }
    }
}
