//! The host's own addresses: what is on the link, who we are to neighbours, and whether nobody else is.

use crate::profile::Timers;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core_ib::Instant;

/// How many addresses an interface has at most.
pub const ADDRESSES: usize = 8;

/// Announcements of an address after it came into use.
const ANNOUNCEMENTS: u8 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The link is down, or has just come up.
    Waiting,
    /// Others that have it were asked for (RFC 4862, 5.4); nobody answered by the deadline: it is ours.
    Tentative(Instant),
    /// Ours; to be announced so often, next at the deadline.
    Ours(u8, Instant),
    /// Somebody else has it, and our owner knows or does not.
    Duplicate(bool),
}

/// One address of ours.
#[derive(Clone, Copy, Debug)]
pub(super) struct Own {
    pub(super) address: IpAddr,
    pub(super) prefix_len: u8,
    phase: Phase,
}

/// What an address has its owner do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Say {
    /// Ask whether somebody has it.
    Ask(Ipv6Addr),
    /// Tell everybody that we have it.
    Announce(IpAddr),
}

impl Own {
    pub(super) const fn new(address: IpAddr, prefix_len: u8) -> Self {
        Self {
            address,
            prefix_len,
            phase: Phase::Waiting,
        }
    }

    /// Do we answer for it?
    pub(super) const fn is_ours(&self) -> bool {
        matches!(self.phase, Phase::Ours(..))
    }

    /// Are we still asking?
    pub(super) const fn is_tentative(&self) -> bool {
        matches!(self.phase, Phase::Tentative(_))
    }

    /// Is `other` on the link, as far as this address tells?
    pub(super) fn covers(&self, other: IpAddr) -> bool {
        match (self.address, other) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                let mask = mask_v4(self.prefix_len);
                own.to_bits() & mask == other.to_bits() & mask
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                let host_bits = 128_u32.saturating_sub(self.prefix_len.into());
                let mask = u128::MAX.checked_shl(host_bits).unwrap_or(0);
                own.to_bits() & mask == other.to_bits() & mask
            }
            _ => false,
        }
    }

    /// Is it the subnet's own broadcast address?
    pub(super) fn is_broadcast(&self, other: Ipv4Addr) -> bool {
        let mask = mask_v4(self.prefix_len);
        match self.address {
            IpAddr::V4(own) => self.prefix_len < 31 && own.to_bits() | !mask == other.to_bits(),
            IpAddr::V6(_) => false,
        }
    }

    /// The link went up or down; who has the address is to be found out and said anew.
    pub(super) const fn restart(&mut self) {
        self.phase = Phase::Waiting;
    }

    /// Has somebody else got it?
    pub(super) const fn is_lost(&self) -> bool {
        matches!(self.phase, Phase::Duplicate(_))
    }

    /// Somebody else has it.
    pub(super) const fn lose(&mut self) {
        self.phase = Phase::Duplicate(false);
    }

    /// Is it lost, and nobody was told? From now on somebody was.
    pub(super) fn tell_loss(&mut self) -> bool {
        let news = self.phase == Phase::Duplicate(false);
        if news {
            self.phase = Phase::Duplicate(true);
        }
        news
    }

    /// What is to be said at `now`; the link is up. `dad`: ask first, where the protocol has it.
    pub(super) fn say(&mut self, dad: bool, timers: &Timers, now: Instant) -> Option<Say> {
        let again = now.after(timers.retransmit);
        match (self.phase, self.address) {
            (Phase::Waiting, IpAddr::V6(address)) if dad => {
                self.phase = Phase::Tentative(again);
                return Some(Say::Ask(address));
            }
            (Phase::Waiting, _) => self.phase = Phase::Ours(ANNOUNCEMENTS, now),
            (Phase::Tentative(until), _) if until <= now => {
                self.phase = Phase::Ours(ANNOUNCEMENTS, now);
            }
            _ => {}
        }
        match self.phase {
            Phase::Ours(left @ 1.., at) if at <= now => {
                self.phase = Phase::Ours(left - 1, again);
                Some(Say::Announce(self.address))
            }
            _ => None,
        }
    }

    /// When something is to be said next; the link is up.
    pub(super) const fn next(&self) -> Instant {
        match self.phase {
            Phase::Tentative(at) | Phase::Ours(1.., at) => at,
            Phase::Waiting => Instant(0),
            Phase::Ours(0, _) | Phase::Duplicate(_) => Instant::NEVER,
        }
    }
}

const fn mask_v4(prefix_len: u8) -> u32 {
    let host_bits = 32_u32.saturating_sub(prefix_len as u32);
    match u32::MAX.checked_shl(host_bits) {
        Some(mask) => mask,
        None => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_says_what_is_on_the_link() {
        let own = |text: &str, len| Own::new(text.parse().unwrap(), len);
        let covers = |own: Own, other: &str| own.covers(other.parse().unwrap());
        assert!(covers(own("10.0.0.1", 24), "10.0.0.200"));
        assert!(!covers(own("10.0.0.1", 24), "10.0.1.1"));
        assert!(covers(own("10.0.0.1", 0), "192.0.2.1"));
        assert!(!covers(own("10.0.0.1", 32), "10.0.0.2"));
        assert!(covers(own("fd00::1", 64), "fd00::2"));
        assert!(!covers(own("fd00::1", 64), "fd00:0:0:1::2"));
        assert!(covers(own("fd00::1", 0), "2001:db8::1"));
        assert!(!covers(own("10.0.0.1", 0), "fd00::1"));
    }

    #[test]
    fn a_subnet_of_two_has_no_broadcast_address() {
        let is = |len, other: &str| {
            let own = Own::new("10.0.0.1".parse().unwrap(), len);
            own.is_broadcast(other.parse().unwrap())
        };
        assert!(is(24, "10.0.0.255"));
        assert!(!is(24, "10.0.0.1"));
        assert!(is(30, "10.0.0.3"));
        assert!(!is(31, "10.0.0.1"));
        assert!(!is(32, "10.0.0.1"));
    }
}
