//! A host on the smallest machine: the HCA, the stack over it, one IP interface, and echoes by hand.
//!
//! All of it is in one context: a round does what is due, runs the jobs that would block elsewhere, and looks at the
//! packets that came. Between two rounds the board passes the time.

use crate::{Bare, Parts};
use core::fmt;
use core::net::{IpAddr, Ipv4Addr};
use core::time::Duration;
use core_ib::Instant;
use core_ib::platform::{NoWake, Placed, Platform, PlatformError, Room};
use core_ib::verbs::VerbsError;
use ib_stack::ipoib::link::LinkState;
use ib_stack::{Config, InterfaceConfig, PortStatus, SmProfile, Stack, StackError, SubnetManager};
use mthca_hw::{Hca, Interrupts, OpenError, Profile};

/// Bytes of an echo packet: IPv4 header, ICMP header, and what is to come back.
const ECHO: usize = 20 + 8 + 32;
/// Between two echo requests.
const EVERY: Duration = Duration::from_millis(200);
/// How long a host stays after its last echo: the other one may still wait for an answer.
const LINGER: Duration = Duration::from_millis(500);

/// What a host is to be.
#[derive(Clone, Copy, Debug)]
pub struct Host<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its address, of a network of 24 bits.
    pub address: Ipv4Addr,
    /// Whom it pings; without one it answers.
    pub peer: Option<Ipv4Addr>,
    /// The subnet manager is here.
    pub subnet_manager: bool,
    /// Echoes to be seen, requests or answers.
    pub echoes: u16,
    /// It gives up then.
    pub deadline: Instant,
}

/// Why a host ended early.
#[derive(Clone, Copy, Debug)]
pub enum HostError {
    /// The HCA did not open.
    Open(OpenError),
    /// The stack failed.
    Stack(StackError),
    /// The HCA failed.
    Verbs(VerbsError),
    /// The machine has not enough memory.
    Platform(PlatformError),
    /// The address is none for an interface.
    Address,
    /// Time is over.
    TooLate {
        /// So many echoes were seen.
        seen: u16,
        /// How the port stands.
        port: PortStatus,
        /// How the interface stands.
        interface: Option<LinkState>,
    },
}

impl fmt::Display for HostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open(error) => error.fmt(f),
            Self::Stack(error) => error.fmt(f),
            Self::Verbs(error) => error.fmt(f),
            Self::Platform(error) => error.fmt(f),
            Self::Address => f.write_str("no address for an interface"),
            Self::TooLate {
                seen,
                port,
                interface,
            } => write!(
                f,
                "only {seen} echoes came in time; {port:?}, interface {interface:?}"
            ),
        }
    }
}

impl core::error::Error for HostError {}

macro_rules! errors {
    ($($variant:ident($ty:ty)),*) => {
        $(impl From<$ty> for HostError {
            fn from(error: $ty) -> Self {
                Self::$variant(error)
            }
        })*
    };
}
errors!(
    Open(OpenError),
    Stack(StackError),
    Verbs(VerbsError),
    Platform(PlatformError)
);

type BareHca<'p, 'b> = Hca<'p, Bare<'b>>;
type BareStack<'d, 'p, 'b> = Stack<'d, BareHca<'p, 'b>, Bare<'b>>;

/// One host, from power-on to power-off. Gives the echoes seen.
pub fn run(parts: &Parts<'_>, host: &Host<'_>) -> Result<u16, HostError> {
    let machine = parts.platform();
    let profile = Profile {
        // The pin, which a wait looks at.
        interrupts: Interrupts::Pin,
        ..Profile::SMALL
    };
    let hca = Hca::open(&machine, &NoWake, &profile)?;
    parts.board().reached("the HCA is open");
    let seen = on(parts, &machine, &hca, host);
    hca.close().map_err(|(_, error)| error)?;
    parts.board().reached("the HCA is closed");
    seen
}

#[inline(never)]
fn on<'d, 'p, 'b>(
    parts: &Parts<'_>,
    machine: &'d Bare<'b>,
    hca: &'d BareHca<'p, 'b>,
    host: &Host<'d>,
) -> Result<u16, HostError> {
    let mut stack = open(machine, hca, host)?;
    parts.board().reached("the stack is open");
    let seen = match stack.ip(0) {
        Some(ip) => match ip.add_address(IpAddr::V4(host.address), 24) {
            Ok(()) => echoes(parts, machine, hca, &mut stack, host),
            Err(_) => Err(HostError::Address),
        },
        None => Err(HostError::Address),
    };
    parts.board().reached("the echoes have come");
    close(stack)?;
    parts.board().reached("the stack is closed");
    seen
}

#[inline(never)]
fn open<'d, 'p, 'b>(
    machine: &'d Bare<'b>,
    hca: &'d BareHca<'p, 'b>,
    host: &Host<'d>,
) -> Result<Placed<'d, BareStack<'d, 'p, 'b>, Bare<'b>>, HostError> {
    let interfaces: &'static [InterfaceConfig] = &const {
        let mut one = InterfaceConfig::DEFAULT;
        one.profile.send_frames = 16;
        one.profile.recv_frames = 32;
        [one]
    };
    let manager = SubnetManager {
        port: 1,
        profile: SM,
        config: ib_sm::Config::default(),
    };
    let config = Config {
        description: host.name,
        interfaces,
        subnet_manager: host.subnet_manager.then_some(manager),
        ..Config::default()
    };
    let room = Room::new(machine)?;
    Ok(room.put(Stack::open(machine, hca, &config)?))
}

#[inline(never)]
fn close<'d, 'p, 'b>(stack: Placed<'d, BareStack<'d, 'p, 'b>, Bare<'b>>) -> Result<(), HostError> {
    Ok(Placed::into_inner(stack).close()?)
}

/// A subnet of two hosts without a switch.
const SM: SmProfile = SmProfile {
    nodes: 4,
    ports: 8,
    switches: 1,
    switch_ports: 8,
    lids: 64,
    guids: 8,
    mlids: 64,
    members: 64,
    services: 4,
    informs: 8,
    notices: 8,
    window: 16,
    transfers: 2,
    records: 64,
    replies: 16,
    ..SmProfile::for_hosts(2)
};

/// Rounds until all echoes were seen.
#[inline(never)]
fn echoes<'d, 'p, 'b>(
    parts: &Parts<'_>,
    machine: &'d Bare<'b>,
    hca: &'d BareHca<'p, 'b>,
    stack: &mut BareStack<'d, 'p, 'b>,
    host: &Host<'_>,
) -> Result<u16, HostError> {
    let (mut seen, mut sent) = (0, 0_u16);
    let mut next_request = machine.now();
    let mut end = host.deadline;
    loop {
        parts.poll_interrupts();
        let now = machine.now();
        if now >= end {
            break;
        }
        let mut next = stack.poll(now)?.min(end);
        let mut worked = false;
        while let Some(job) = stack.next_job() {
            let done = job.run(hca);
            stack.job_done(done, machine.now());
            worked = true;
        }
        let mut packet = [0; ECHO];
        let mut came = false;
        let mut take = |bytes: &[u8]| {
            came = bytes.len() == ECHO;
            if came {
                packet.copy_from_slice(bytes);
            }
        };
        while stack.receive(0, machine.now(), &mut take) {
            worked = true;
        }
        let (request, answer) = (is_echo(&packet, 8), is_echo(&packet, 0));
        if came && (request || answer && host.peer.is_some()) {
            seen += 1;
            if request {
                turn_round(&mut packet);
                // One that finds no room is lost, as on any network.
                let _ = stack.send(0, &packet, machine.now());
            }
            if seen == host.echoes {
                end = end.min(now.after(LINGER));
            }
        }
        if let Some(peer) = host.peer
            && now >= next_request
            && seen < host.echoes
        {
            next_request = now.after(EVERY);
            sent = sent.wrapping_add(1);
            let request = echo_request(host.address, peer, sent);
            // Until the interface is up there is nobody to take it.
            let _ = stack.send(0, &request, now);
            worked = true;
        }
        if host.peer.is_some() && seen < host.echoes {
            next = next.min(next_request);
        }
        if !worked {
            let least = now.after(Duration::from_micros(1));
            let most = now.after(Duration::from_millis(1));
            parts.board().pass_time(next.clamp(least, most));
        }
    }
    if seen >= host.echoes {
        Ok(seen)
    } else {
        Err(HostError::TooLate {
            seen,
            port: stack.port_status(1).unwrap_or_default(),
            interface: stack.interface_state(0),
        })
    }
}

/// The Internet checksum. RFC 1071.
fn checksum(bytes: &[u8]) -> [u8; 2] {
    let words = bytes.chunks(2).map(|pair| match *pair {
        [high, low] => u32::from(u16::from_be_bytes([high, low])),
        [high] => u32::from(high) << 8,
        _ => 0,
    });
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!(sum as u16)).to_be_bytes()
}

/// An ICMP echo message of the kind `kind`, from and to anybody.
fn is_echo(packet: &[u8; ECHO], kind: u8) -> bool {
    packet[0] == 0x45 && packet[9] == 1 && packet[20] == kind && checksum(&packet[20..]) == [0; 2]
}

fn echo_request(from: Ipv4Addr, to: Ipv4Addr, sequence: u16) -> [u8; ECHO] {
    let mut packet = [0; ECHO];
    packet[0] = 0x45;
    packet[2..4].copy_from_slice(&(ECHO as u16).to_be_bytes());
    packet[8] = 64;
    packet[9] = 1;
    packet[12..16].copy_from_slice(&from.octets());
    packet[16..20].copy_from_slice(&to.octets());
    packet[20] = 8;
    packet[26..28].copy_from_slice(&sequence.to_be_bytes());
    packet[28..].fill(sequence as u8);
    seal(&mut packet);
    packet
}

/// Makes the answer of a request.
fn turn_round(packet: &mut [u8; ECHO]) {
    let mut from = [0; 4];
    from.copy_from_slice(&packet[12..16]);
    packet.copy_within(16..20, 12);
    packet[16..20].copy_from_slice(&from);
    packet[20] = 0;
    seal(packet);
}

fn seal(packet: &mut [u8; ECHO]) {
    packet[10..12].fill(0);
    packet[22..24].fill(0);
    let header = checksum(&packet[..20]);
    packet[10..12].copy_from_slice(&header);
    let message = checksum(&packet[20..]);
    packet[22..24].copy_from_slice(&message);
}
