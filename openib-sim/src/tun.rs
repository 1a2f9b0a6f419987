//! Real network interfaces for the simulator's hosts: a TUN device each, in a network namespace of its own, so that
//! programs that know nothing of the simulator (`ping`, `iperf3`, `curl`) send through the fabric.
//!
//! Takes the rights of an administrator and the `ip` program.

use std::fmt;
use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::process::Command;
use std::str::FromStr;
use tun_rs::{DeviceBuilder, SyncDevice};

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

/// A network namespace, gone when this is dropped.
#[derive(Debug)]
pub struct Namespace {
    name: String,
}

fn ip(arguments: &[&str]) -> io::Result<()> {
    let output = Command::new("ip").args(arguments).output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let words = arguments.join(" ");
    Err(io::Error::other(format!("`ip {words}`: {}", said.trim())))
}

impl Namespace {
    /// Makes it. One of the same name that an earlier run left behind is replaced.
    pub fn new(name: &str) -> io::Result<Self> {
        if ip(&["netns", "add", name]).is_err() {
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

    /// A command that runs inside.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, program]);
        command
    }

    /// Makes a TUN device inside: raw IP packets, non-blocking.
    pub fn tun(&self, device: &str, mtu: u16, addresses: &[Cidr]) -> io::Result<Tun> {
        let namespace = File::open(format!("/run/netns/{}", self.name))?;
        // A thread of its own enters the namespace and ends; the device stays there.
        let made = std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                let kind = rustix::thread::LinkNameSpaceType::Network;
                rustix::thread::move_into_link_name_space(namespace.as_fd(), Some(kind))?;
                let device = DeviceBuilder::new().name(device).mtu(mtu).build_sync()?;
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
        Ok(Tun { device: made })
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

impl AsRawFd for Tun {
    fn as_raw_fd(&self) -> RawFd {
        self.device.as_raw_fd()
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
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
