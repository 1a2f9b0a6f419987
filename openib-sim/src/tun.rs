//! Real network interfaces for the simulator's hosts: a TUN device each, in a network namespace of its own, so that
//! programs that know nothing of the simulator (`ping`, `iperf3`, `curl`) send through the fabric.
//!
//! Takes the rights of an administrator and the `ip` program.

use crate::ended::{Ended, Stop};
use rustix::process::{Pid, Signal};
use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tun_rs::{DeviceBuilder, GROTable, SyncDevice, VIRTIO_NET_HDR_LEN};

/// An address with the length of its prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    /// The address.
    pub address: IpAddr,
    /// Bits of the network's part.
    pub prefix: u8,
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

impl FromStr for Cidr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not an address with a prefix, like 10.0.0.1/24");
        let (address, prefix) = text.split_once('/').ok_or_else(wrong)?;
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let prefix: u8 = prefix.parse().map_err(|_| wrong())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        if prefix > most {
            return Err(wrong());
        }
        Ok(Self { address, prefix })
    }
}

/// MTU of IPoIB in datagram mode over an InfiniBand MTU of 2048.
pub const MTU: u16 = 2044;

/// A command that runs in a namespace. When this is dropped, it ends, and whatever it started in there.
pub struct Child {
    program: String,
    process: std::process::Child,
    /// Inode of the namespace.
    inside: u64,
}

/// How long a process that is asked to end may take.
const LAST_WORDS: Duration = Duration::from_secs(1);

impl Child {
    /// Starts `words` in `here`. The environment names the other namespace, `there`, and its IPv4 and IPv6 addresses.
    pub fn start(
        words: &[String],
        here: &Namespace,
        there: &Namespace,
        (peer4, peer6): (Option<IpAddr>, Option<IpAddr>),
    ) -> Result<Self, String> {
        let (program, words) = words.split_first().ok_or("there is no command to run")?;
        // What it leaves behind becomes ours, so that it can be found.
        let adopted = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
        let inside = adopted.map_err(io::Error::from).and_then(|()| here.inode());
        let inside = inside.map_err(|error| format!("{program}: {error}"))?;
        let text = |address: Option<IpAddr>| address.map_or_else(String::new, |it| it.to_string());
        let process = here
            .command(program)
            .args(words)
            .env("PEER", text(peer4))
            .env("PEER6", text(peer6))
            .env("NS", &here.name)
            .env("PEER_NS", &there.name)
            .spawn()
            .map_err(|error| format!("{program}: {error}"))?;
        let program = program.clone();
        Ok(Self {
            program,
            process,
            inside,
        })
    }

    /// How it ended, or that this program was told to end; `None` while it runs.
    pub fn result(&mut self, ended: &Ended) -> Option<Result<(), Stop>> {
        let program = &self.program;
        let failed = |why| Some(Err(Stop::Failed(why)));
        match self.process.try_wait() {
            Ok(None) => ended.check().err().map(Err),
            Ok(Some(status)) if status.success() => Some(Ok(())),
            Ok(Some(status)) => failed(format!("{program} ended with {status}")),
            Err(error) => failed(format!("{program}: {error}")),
        }
    }
}

/// This process's descendants in the network namespace of this inode.
fn descendants(inside: u64) -> Vec<Pid> {
    let mut parents: BTreeMap<u32, u32> = BTreeMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        // PID (NAME) STATE PARENT …, and a name may have anything in it.
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let rest = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
        if let Some(parent) = rest.split(' ').nth(1).and_then(|word| word.parse().ok()) {
            parents.insert(pid, parent);
        }
    }
    let me = std::process::id();
    let is_ours = |pid: u32| {
        let mut above = parents.get(&pid);
        // Bounded: the table is no snapshot, and so may have a ring.
        for _ in 0..parents.len() {
            match above {
                Some(parent) if *parent == me => return true,
                Some(parent) => above = parents.get(parent),
                None => return false,
            }
        }
        false
    };
    let is_inside = |pid: u32| {
        let net = std::fs::metadata(format!("/proc/{pid}/ns/net"));
        net.is_ok_and(|net| net.ino() == inside)
    };
    let all = parents.keys().copied();
    all.filter(|pid| is_ours(*pid) && is_inside(*pid))
        .filter_map(|pid| Pid::from_raw(i32::try_from(pid).ok()?))
        .collect()
}

impl Drop for Child {
    fn drop(&mut self) {
        for signal in [Signal::TERM, Signal::KILL] {
            for pid in descendants(self.inside) {
                // It may have ended meanwhile.
                let _ = rustix::process::kill_process(pid, signal);
            }
            let asked = Instant::now();
            while !descendants(self.inside).is_empty() && asked.elapsed() < LAST_WORDS {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        // These fail if it has ended; it may not have been inside yet.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A network namespace, gone when this is dropped.
#[derive(Debug)]
pub struct Namespace {
    name: String,
}

/// What `ip` printed.
fn ip(arguments: &[&str]) -> io::Result<String> {
    let output = Command::new("ip").args(arguments).output()?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let words = arguments.join(" ");
    Err(io::Error::other(format!("`ip {words}`: {}", said.trim())))
}

impl Namespace {
    /// Name of the namespace of host number `index`, from 0.
    pub fn of_host(index: usize) -> String {
        format!("openib{index}")
    }

    /// Makes it. One of the same name that a killed run left behind, with nothing in it, is replaced; one in use is
    /// left alone, and is an error.
    pub fn new(name: &str) -> io::Result<Self> {
        if let Err(error) = ip(&["netns", "add", name]) {
            // A TUN device goes with its program, so a namespace that nobody uses has its loopback alone.
            let devices = ip(&["-n", name, "-oneline", "link", "show"])?;
            if devices.lines().count() > 1 || !ip(&["netns", "pids", name])?.is_empty() {
                return Err(error);
            }
            ip(&["netns", "delete", name])?;
            ip(&["netns", "add", name])?;
        }
        let made = Self { name: name.into() };
        ip(&["-n", name, "link", "set", "lo", "up"])?;
        Ok(made)
    }

    /// Its name, for `ip netns exec`.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn inode(&self) -> io::Result<u64> {
        Ok(std::fs::metadata(format!("/run/netns/{}", self.name))?.ino())
    }

    /// Packets that a device inside did not take: of those that the system sent, because the simulator was busy.
    pub fn not_taken(&self, device: &str) -> io::Result<u64> {
        let counter = format!("/sys/class/net/{device}/statistics/tx_dropped");
        let output = self.command("cat").arg(counter).output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        text.trim().parse().map_err(io::Error::other)
    }

    /// A command that runs inside.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, program]);
        command
    }

    /// Makes a TUN device inside, one packet a call: raw IP packets, non-blocking.
    pub fn tun(&self, device: &str, mtu: u16, addresses: &[Cidr]) -> io::Result<Tun> {
        let device = self.device(device, mtu, addresses, false)?;
        Ok(Tun { device })
    }

    /// Makes a TUN device inside, a burst of packets a call: raw IP packets, non-blocking.
    pub fn burst_tun(&self, device: &str, mtu: u16, addresses: &[Cidr]) -> io::Result<BurstTun> {
        let made = self.device(device, mtu, addresses, true)?;
        // A segment of the system's is cut into so many packets at most.
        let most = BURST.to_string();
        ip(&[
            "-n",
            &self.name,
            "link",
            "set",
            device,
            "gso_max_segs",
            &most,
        ])?;
        Ok(BurstTun {
            device: Arc::new(made),
            segment: vec![0; VIRTIO_NET_HDR_LEN + 65536],
            cut: vec![vec![0; usize::from(mtu)]; BURST],
            sizes: vec![0; BURST],
        })
    }

    fn device(
        &self,
        device: &str,
        mtu: u16,
        addresses: &[Cidr],
        offload: bool,
    ) -> io::Result<SyncDevice> {
        let namespace = File::open(format!("/run/netns/{}", self.name))?;
        // A thread of its own enters the namespace and ends; the device stays there.
        let made = std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                let kind = rustix::thread::LinkNameSpaceType::Network;
                rustix::thread::move_into_link_name_space(namespace.as_fd(), Some(kind))?;
                let device = DeviceBuilder::new().name(device).mtu(mtu);
                let device = device.with(|tun| {
                    tun.offload(offload);
                });
                let device = device.build_sync()?;
                device.set_nonblocking(true)?;
                Ok::<_, io::Error>(device)
            });
            inside
                .join()
                .unwrap_or_else(|_| Err(io::Error::other("the TUN device's thread died")))
        })?;
        for address in addresses {
            let address = address.to_string();
            let words = ["-n", &self.name, "addr", "add", &address, "dev", device];
            // No duplicate address detection: it would hold the address back for a second.
            let nodad: &[&str] = if address.contains(':') {
                &["nodad"]
            } else {
                &[]
            };
            ip(&[&words, nodad].concat())?;
        }
        ip(&["-n", &self.name, "link", "set", device, "up"])?;
        Ok(made)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // Nobody is left to tell; a later run replaces what remains.
        let _ = ip(&["netns", "delete", &self.name]);
    }
}

/// A TUN device. Non-blocking.
pub struct Tun {
    device: SyncDevice,
}

impl Tun {
    /// Takes a packet that the system sends. `WouldBlock` if there is none.
    pub fn recv(&self, into: &mut [u8]) -> io::Result<usize> {
        self.device.recv(into)
    }

    /// Gives the system a packet. `WouldBlock` if its queue is full.
    pub fn send(&self, packet: &[u8]) -> io::Result<usize> {
        self.device.send(packet)
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}

/// Packets of one burst at most.
pub const BURST: usize = 64;

/// A TUN device that moves bursts. Non-blocking.
///
/// What the system sends by TCP comes as segments of many packets, which are cut here, and what it is given is joined
/// again where it belongs to one stream: one call and one walk through the system's IP stack for many packets. The
/// fabric sees none of that.
pub struct BurstTun {
    device: Arc<SyncDevice>,
    segment: Vec<u8>,
    cut: Vec<Vec<u8>>,
    sizes: Vec<usize>,
}

impl BurstTun {
    /// Takes what the system sends, at most [`BURST`] packets. `WouldBlock` if there is nothing. An error that the
    /// system did not give is about this burst alone, which is lost.
    pub fn recv(&mut self, mut take: impl FnMut(&[u8])) -> io::Result<()> {
        let Self {
            device,
            segment,
            cut,
            sizes,
        } = self;
        let count = device.recv_multiple(segment, cut, sizes, 0)?;
        for (packet, size) in cut.iter().zip(sizes.iter()).take(count) {
            take(packet.get(..*size).unwrap_or(packet));
        }
        Ok(())
    }

    /// The way in.
    pub fn outbox(&self) -> Outbox {
        let room = VIRTIO_NET_HDR_LEN * 2 + 65536;
        Outbox {
            device: self.device.clone(),
            packets: (0..BURST).map(|_| Vec::with_capacity(room)).collect(),
            filled: 0,
            joined: GROTable::new(),
        }
    }
}

impl AsFd for BurstTun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}

/// Packets on their way to the system.
pub struct Outbox {
    device: Arc<SyncDevice>,
    packets: Vec<Vec<u8>>,
    filled: usize,
    joined: GROTable,
}

impl Outbox {
    /// Adds a packet. False if the burst is full, and then it is not added.
    pub fn push(&mut self, packet: &[u8]) -> bool {
        let Some(place) = self.packets.get_mut(self.filled) else {
            return false;
        };
        place.clear();
        place.resize(VIRTIO_NET_HDR_LEN, 0);
        place.extend_from_slice(packet);
        self.filled += 1;
        true
    }

    /// Gives the system what was added. What it does not take is lost, and how many packets those are is not known.
    pub fn flush(&mut self) -> io::Result<()> {
        let filled = core::mem::take(&mut self.filled);
        let packets = self.packets.get_mut(..filled).unwrap_or_default();
        let joined = &mut self.joined;
        self.device
            .send_multiple(joined, packets, VIRTIO_NET_HDR_LEN)?;
        Ok(())
    }

    /// Is nothing added?
    pub fn is_empty(&self) -> bool {
        self.filled == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_without_a_sensible_prefix_is_refused() {
        assert_eq!(
            "10.0.0.1/24".parse::<Cidr>().map(|cidr| cidr.prefix),
            Ok(24)
        );
        for wrong in ["10.0.0.1", "10.0.0.1/33", "fd00::1/129", "x/8", ""] {
            assert!(wrong.parse::<Cidr>().is_err(), "{wrong}");
        }
    }
}
