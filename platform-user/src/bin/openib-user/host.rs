//! The host: driver, stack and TUN device, in rounds of one thread.

use crate::tun::Tun;
use crate::{Interrupts, Options};
use core_ib::Instant;
use core_ib::PKey;
use core_ib::platform::{Platform, Wake};
use core_ib::verbs::{Device, VerbsError};
use ib_stack::ipoib::SendError;
use ib_stack::ipoib::link::LinkState;
use ib_stack::{Config, InterfaceConfig, Stack, StackEvent};
use mthca_hw::{Hca, Profile};
use platform_user::Machine;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

type UserHca<'m> = Hca<'m, Machine>;
type UserStack<'h, 'm> = Stack<'h, UserHca<'m>, Machine>;

/// MTU of IPoIB in datagram mode over an InfiniBand MTU of 2048.
const MTU: u16 = 2044;
/// Between two looks at what the HCA does not announce: its error buffer, an interrupt that was lost.
const LOOK: Duration = Duration::from_secs(1);
/// Packets of each way that one round moves at most.
const BURST: usize = 64;

/// What the HCA is to have room for.
const PROFILE: Profile = Profile {
    qps: 32,
    cqs: 32,
    mrs: 32,
    pds: 16,
    ahs: 2048,
    mtt_pages: 8192,
    work_requests: 1 << 14,
    mcast_groups: 256,
    ..Profile::SMALL
};

/// What ends a sleep: the HCA, and a signal that ends the program.
pub struct Bells {
    hca: OwnedFd,
    signals: UnixStream,
}

impl Bells {
    /// From now on signals are heard here.
    pub fn new() -> io::Result<Self> {
        let (signals, rung) = UnixStream::pair()?;
        signals.set_nonblocking(true)?;
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            signal_hook::low_level::pipe::register(signal, rung.try_clone()?)?;
        }
        let hca = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self { hca, signals })
    }

    /// A signal came.
    fn is_over(&self) -> bool {
        io::Read::read(&mut &self.signals, &mut [0; 16]).is_ok()
    }
}

impl Wake for Bells {
    fn wake(&self) {
        // Full, it has rung.
        let _ = rustix::io::write(&self.hca, &1_u64.to_ne_bytes());
    }
}

/// Runs until a signal comes, or the HCA fails.
pub fn run(machine: &Machine, bells: &Bells, options: &Options) -> Result<(), String> {
    let profile = Profile {
        interrupts: match options.interrupts {
            Interrupts::Messages => mthca_hw::Interrupts::Messages,
            Interrupts::Pin => mthca_hw::Interrupts::Pin,
        },
        ..PROFILE
    };
    let hca = Hca::open(machine, bells, &profile).map_err(|error| error.to_string())?;
    let about = hca.query_device();
    let [major, minor, sub] = about.fw_version;
    println!(
        "{}: an HCA with the GUID {:016x}, firmware {major}.{minor}.{sub}, {} ports, {}",
        machine.name(),
        about.node_guid.0,
        about.port_count,
        match hca.interrupts() {
            mthca_hw::Interrupts::Messages => "MSI-X",
            mthca_hw::Interrupts::Pin => "INTx",
            mthca_hw::Interrupts::None => "no interrupts",
        }
    );
    let ran = with_stack(machine, &hca, bells, options);
    let closed = hca.close();
    let closed = closed.map_err(|(_, error)| format!("closing the HCA: {error}"));
    ran.and(closed)
}

fn with_stack<'m>(
    machine: &'m Machine,
    hca: &UserHca<'m>,
    bells: &Bells,
    options: &Options,
) -> Result<(), String> {
    let interfaces = [InterfaceConfig {
        port: options.port,
        p_key: PKey(options.p_key),
        ..InterfaceConfig::DEFAULT
    }];
    let config = Config {
        description: "openib-user",
        interfaces: &interfaces,
        ..Config::default()
    };
    let mut stack = Stack::open(machine, hca, &config).map_err(|error| error.to_string())?;
    for address in &options.address {
        if let Some(ip) = stack.ip(0) {
            let added = ip.add_address(address.address, address.prefix);
            added.map_err(|error| format!("{address}: {error}"))?;
        }
    }
    let tun = Tun::new(&options.tun, MTU, &options.address);
    let tun = tun.map_err(|error| format!("{}: {error}", options.tun))?;
    println!("{} is there", options.tun);
    let mut host = Host {
        machine,
        hca,
        bells,
        tun,
        port: options.port,
        look: Instant(0),
        waiting: None,
        buffer: vec![0; usize::from(MTU)],
        packets: [0; 2],
        dropped: 0,
    };
    let ended = loop {
        match host.round(&mut stack) {
            Ok(()) => {}
            Err(End::Signal) => break Ok(()),
            Err(End::Failed(why)) => break Err(why),
        }
    };
    let [sent, received] = host.packets;
    println!(
        "{sent} packets sent, {received} received, {} dropped",
        host.dropped
    );
    let closed = stack
        .close()
        .map_err(|error| format!("closing the stack: {error}"));
    ended.and(closed)
}

/// Why the rounds ended.
enum End {
    Signal,
    Failed(String),
}

impl From<VerbsError> for End {
    fn from(error: VerbsError) -> Self {
        Self::Failed(format!("the HCA: {error}"))
    }
}

struct Host<'h, 'm> {
    machine: &'m Machine,
    hca: &'h UserHca<'m>,
    bells: &'h Bells,
    tun: Tun,
    port: u8,
    /// When the HCA is to be looked at.
    look: Instant,
    /// Bytes of a packet in the buffer that waits for a frame.
    waiting: Option<usize>,
    buffer: Vec<u8>,
    /// Sent, received.
    packets: [u64; 2],
    dropped: u64,
}

impl<'h, 'm> Host<'h, 'm> {
    /// One round: does what is due, and sleeps if there was nothing.
    fn round(&mut self, stack: &mut UserStack<'h, 'm>) -> Result<(), End> {
        if self.bells.is_over() {
            return Err(End::Signal);
        }
        let now = self.machine.now();
        if now >= self.look {
            self.hca.poll_events();
            self.look = now.after(LOOK);
        }
        let next = stack.poll(now)?.min(self.look);
        let mut worked = false;
        while let Some(job) = stack.next_job() {
            let done = job.run(self.hca);
            stack.job_done(done, self.machine.now());
            worked = true;
        }
        worked |= self.receive(stack);
        worked |= self.send(stack)?;
        self.news(stack);
        if !worked && next > self.machine.now() && !stack.arm()? {
            self.sleep(next)?;
        }
        Ok(())
    }

    /// From the fabric to the system.
    fn receive(&mut self, stack: &mut UserStack<'h, 'm>) -> bool {
        let now = self.machine.now();
        let Self {
            tun,
            packets: [_, received],
            dropped,
            ..
        } = self;
        let mut take = |packet: &[u8]| match tun.send(packet) {
            Ok(_) => *received += 1,
            // The system has its reasons, a full queue among them.
            Err(_) => *dropped += 1,
        };
        (0..BURST)
            .filter(|_| stack.receive(0, now, &mut take))
            .count()
            > 0
    }

    /// From the system to the fabric.
    fn send(&mut self, stack: &mut UserStack<'h, 'm>) -> Result<bool, End> {
        let now = self.machine.now();
        for number in 0..BURST {
            let len = match self.waiting.take() {
                Some(len) => len,
                None => match self.tun.recv(&mut self.buffer) {
                    Ok(len) => len,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(number > 0),
                    Err(error) => return Err(End::Failed(format!("the TUN device: {error}"))),
                },
            };
            let packet = self.buffer.get(..len).unwrap_or_default();
            match stack.send(0, packet, now) {
                Ok(()) => self.packets[0] += 1,
                Err(SendError::NoFrame) => {
                    // Until completions make room; those wake.
                    self.waiting = Some(len);
                    return Ok(number > 0);
                }
                Err(_) => self.dropped += 1,
            }
        }
        Ok(true)
    }

    fn news(&self, stack: &mut UserStack<'h, 'm>) {
        while let Some(event) = stack.next_event() {
            match event {
                StackEvent::Port(port, event) => println!("port {port}: {event:?}"),
                StackEvent::Interface(_, LinkState::Up { mtu }) => {
                    let port = stack.port_status(self.port).unwrap_or_default();
                    println!(
                        "the interface is up: MTU {mtu}, LID {}, subnet manager at LID {}, GID {}",
                        port.lid.0, port.sm_lid.0, port.gid
                    );
                }
                StackEvent::Interface(_, state) => println!("the interface: {state:?}"),
                _ => {}
            }
        }
    }

    fn sleep(&self, until: Instant) -> Result<(), End> {
        let left = until.since(self.machine.now());
        let limit = Timespec::try_from(left.min(LOOK)).ok();
        let mut files = vec![
            PollFd::new(&self.bells.hca, PollFlags::IN),
            PollFd::new(&self.bells.signals, PollFlags::IN),
        ];
        if self.waiting.is_none() {
            files.push(PollFd::from_borrowed_fd(self.tun.as_fd(), PollFlags::IN));
        }
        match poll(&mut files, limit.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(End::Failed(format!("waiting: {error}"))),
        }
        // Silent, it gives nothing.
        let _ = rustix::io::read(&self.bells.hca, &mut [0; 8]);
        Ok(())
    }
}
