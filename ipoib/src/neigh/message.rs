//! What an interface says to its neighbours.

use super::nd::NdMessage;
use core_ib::wire::ipoib::{Arp, EtherType};

/// An ARP packet, or one of neighbour discovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// For IPv4.
    Arp(Arp),
    /// For IPv6.
    Nd(NdMessage),
}

impl Message {
    /// What the header of the frame says.
    pub const fn ether_type(&self) -> EtherType {
        match self {
            Self::Arp(_) => EtherType::ARP,
            Self::Nd(_) => EtherType::IPV6,
        }
    }

    /// Bytes of the datagram; at most 88.
    pub const fn len(&self) -> usize {
        match self {
            Self::Arp(_) => Arp::LEN,
            Self::Nd(message) => message.len(),
        }
    }

    /// No message is empty.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes the datagram; `false`, and nothing of use written, without room for it.
    #[must_use]
    pub fn write(&self, out: &mut [u8]) -> bool {
        match self {
            Self::Arp(arp) => arp.write(out).is_ok(),
            Self::Nd(message) => message.write(out).is_some(),
        }
    }
}
