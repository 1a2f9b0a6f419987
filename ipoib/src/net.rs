//! What an IP stack sees of an interface.

use crate::link::LinkState;
use crate::stats::Statistics;
use core::fmt;
use core::net::IpAddr;
use core_ib::Gid;
use core_ib::Instant;
use core_ib::wire::ipoib::LinkAddress;

/// Why a packet was not taken. It was not sent and will not be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendError {
    /// The interface is not up.
    Down,
    /// Longer than the MTU.
    TooLong {
        /// Bytes of the packet.
        len: usize,
        /// What would have been allowed.
        mtu: usize,
    },
    /// All `send_frames` of the profile are in use: poll, then try again.
    NoFrame,
    /// It was dropped; the statistics say why.
    Dropped,
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Down => f.write_str("the interface is not up: its state says why"),
            Self::TooLong { len, mtu } => {
                write!(f, "a packet of {len} bytes is longer than the MTU of {mtu}")
            }
            Self::NoFrame => {
                f.write_str("all frames are in use: poll, or raise `send_frames` in the profile")
            }
            Self::Dropped => f.write_str("dropped: the statistics of the interface say why"),
        }
    }
}

impl core::error::Error for SendError {}

/// Why a group cannot be listened to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GroupError {
    /// All places are in use.
    NoRoom {
        /// The entry of the profile to raise.
        entry: &'static str,
        /// Its present value.
        limit: usize,
    },
    /// Not a group of IPv4 or IPv6 of this link's partition and scope.
    NotOfThisLink {
        /// The group.
        mgid: Gid,
    },
    /// Not a multicast address.
    NotMulticast {
        /// The address.
        address: IpAddr,
    },
}

impl fmt::Display for GroupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NoRoom { entry, limit } => {
                write!(f, "all {limit} are in use: raise `{entry}` in the profile")
            }
            Self::NotOfThisLink { mgid } => {
                write!(f, "{mgid} is not a group of this partition and scope")
            }
            Self::NotMulticast { address } => write!(f, "{address} is not a multicast address"),
        }
    }
}

impl core::error::Error for GroupError {}

/// An interface for raw IP packets. Object-safe. Nothing blocks, calls back or allocates: thread or soft interrupt.
pub trait NetInterface {
    /// Is it up, and if not, why?
    fn state(&self) -> LinkState;
    /// Bytes of the largest packet; 0 while down.
    fn mtu(&self) -> usize;
    /// The 20-byte address. Its GID changes when the port's does.
    fn link_address(&self) -> LinkAddress;
    /// Sends one IP packet of `len` bytes, which `fill` writes straight into the memory that the HCA reads. `fill` is
    /// called if and only if there is room, even if the packet is then dropped; it must fill all of it.
    fn send_with(
        &mut self,
        len: usize,
        now: Instant,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), SendError>;
    /// Sends one IP packet, with its header.
    fn send(&mut self, packet: &[u8], now: Instant) -> Result<(), SendError> {
        self.send_with(packet.len(), now, &mut |room| {
            for (to, from) in room.iter_mut().zip(packet) {
                *to = *from;
            }
        })
    }
    /// Can the HCA put in the checksums of an IPv4 packet of `len` bytes
    /// ([`send_unsummed_with`](Self::send_unsummed_with))?
    fn has_checksums(&self, len: usize) -> bool;
    /// As [`send_with`](Self::send_with), an IPv4 packet with TCP or UDP and no fragment, of a length for which
    /// [`has_checksums`](Self::has_checksums): the HCA puts in the checksums of its header and of what it carries. Other
    /// packets are sent as they are.
    fn send_unsummed_with(
        &mut self,
        len: usize,
        now: Instant,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), SendError>;
    /// Takes the next IP packet that came, if there is one, and shows it to `take` where the HCA put it. Says whether
    /// there was one.
    fn receive(&mut self, now: Instant, take: &mut dyn FnMut(&[u8])) -> bool {
        self.receive_judged(now, &mut |packet, _| take(packet))
    }
    /// As [`receive`](Self::receive); also tells `take` whether the HCA found the checksums right, of an IPv4 header and of the
    /// TCP or UDP behind it.
    fn receive_judged(&mut self, now: Instant, take: &mut dyn FnMut(&[u8], bool)) -> bool;
    /// Receives packets to a multicast address, from when the group is joined on; poll afterwards. Each call needs a
    /// [`leave_group`](Self::leave_group).
    fn join_group(&mut self, group: IpAddr) -> Result<(), GroupError>;
    /// Ends that.
    fn leave_group(&mut self, group: IpAddr);
    /// Shows every multicast group of the link, and whether it is joined.
    fn groups(&self, each: &mut dyn FnMut(Gid, bool));
    /// The counters.
    fn statistics(&self) -> Statistics;
}

/// The trait can be used through a reference to a trait object.
const _: fn(&dyn NetInterface) = |_| ();
