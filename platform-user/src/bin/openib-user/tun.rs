//! The TUN device: raw IP packets from the system and to it.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::str::FromStr;
use tun_rs::{DeviceBuilder, SyncDevice};

/// An address with the length of its prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    pub address: IpAddr,
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
        let read = || {
            let (address, prefix) = text.split_once('/')?;
            let (address, prefix): (IpAddr, u8) = (address.parse().ok()?, prefix.parse().ok()?);
            let most = if address.is_ipv4() { 32 } else { 128 };
            (prefix <= most).then_some(Self { address, prefix })
        };
        read().ok_or_else(|| format!("`{text}` is not an address with a prefix, like 10.0.0.1/24"))
    }
}

/// See the module. Non-blocking; gone with the process.
pub struct Tun(SyncDevice);

impl Tun {
    pub fn new(name: &str, mtu: u16, addresses: &[Cidr]) -> io::Result<Self> {
        let mut device = DeviceBuilder::new().name(name).mtu(mtu);
        for Cidr { address, prefix } in addresses {
            device = match address {
                IpAddr::V4(address) => device.ipv4(*address, *prefix, None),
                IpAddr::V6(address) => device.ipv6(*address, *prefix),
            };
        }
        let device = device.build_sync()?;
        device.set_nonblocking(true)?;
        Ok(Self(device))
    }

    /// A packet that the system sends; `WouldBlock` if there is none.
    pub fn recv(&self, into: &mut [u8]) -> io::Result<usize> {
        self.0.recv(into)
    }

    /// Gives the system a packet; `WouldBlock` if its queue is full.
    pub fn send(&self, packet: &[u8]) -> io::Result<usize> {
        self.0.send(packet)
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_without_a_sensible_prefix_is_refused() {
        let right: Cidr = "fd09::1/64".parse().unwrap();
        assert_eq!(right.to_string(), "fd09::1/64");
        for wrong in ["10.0.0.1", "10.0.0.1/33", "fd00::1/129", "x/8", ""] {
            assert!(wrong.parse::<Cidr>().is_err(), "{wrong}");
        }
    }
}
