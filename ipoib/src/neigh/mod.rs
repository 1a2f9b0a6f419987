//! The neighbour half: raw IP packets in, packets with a 20-byte destination out, for hosts whose IP stack cannot do
//! address resolution over InfiniBand.
//!
//! [`Neigh`] is a state machine beside that of the link: ARP (RFC 826, RFC 4391), neighbour discovery (RFC 4861) with
//! duplicate address detection (RFC 4862), group membership as the host's IP stack says it (IGMP, MLD). It is not a
//! router: an address is on the link, or behind the one gateway of its version. [`IpInterface`] puts it on a link.

mod address;
mod cache;
#[cfg(test)]
mod chaos;
mod interface;
mod ip;
mod membership;
mod message;
mod nd;
mod snoop;
#[cfg(test)]
mod tests;
mod too_big;

pub use address::ADDRESSES;
pub use interface::IpInterface;
pub use message::Message;
pub use nd::{NdKind, NdMessage};

use crate::link::{Arrival, FrameId};
use crate::lot::Lot;
use crate::net::GroupError;
use crate::profile::{Profile, Timers};
use crate::room::Room;
use crate::stats::{NeighbourStatistics, count};
use address::{Own, Say};
use cache::{Found, Neighbours, Report, Solicit};
use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core_ib::platform::PlatformError;
use core_ib::wire::ipoib::{
    Arp, ArpOperation, EtherType, LinkAddress, Scope, broadcast_gid, ipv4_multicast_gid,
    ipv6_multicast_gid,
};
use core_ib::{Gid, Instant, PKey, Qpn};
use ip::IpPacket;
use membership::Memberships;
use nd::solicited_node;

/// Answers that wait to be sent.
const REPLIES: usize = 8;

const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ALL_SYSTEMS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 1);

/// Where a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextHop {
    /// To this link-layer address.
    To(LinkAddress),
    /// It waits for the address. [`NeighAction::Release`] or [`NeighAction::Drop`] will give it back.
    Parked,
    /// Nowhere; the frame stays the caller's.
    Drop,
}

/// What the owner of a [`Neigh`] is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NeighAction {
    /// Send a message of ours.
    Say {
        /// Where to.
        to: LinkAddress,
        /// What.
        message: Message,
    },
    /// A parked packet may go.
    Release {
        /// The frame; it is the owner's again.
        frame: FrameId,
        /// Where to.
        to: LinkAddress,
    },
    /// A parked packet will never go.
    Drop {
        /// The frame; it is the owner's again.
        frame: FrameId,
    },
    /// Listen to the group that this address maps to; if that fails, say so with [`Neigh::listen_failed`].
    Listen {
        /// The IP address.
        group: IpAddr,
        /// The group.
        mgid: Gid,
    },
    /// Listen no more.
    Ignore {
        /// The group.
        mgid: Gid,
    },
    /// The path to this port may be wrong.
    Suspect(Gid),
    /// Nothing before this instant, unless something happens.
    WaitUntil(Instant),
}

/// Why an address cannot be the interface's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AddressError {
    /// It is not one of a host.
    NotUnicast {
        /// The address.
        address: IpAddr,
    },
    /// It has not as many bits as are to be the same on the link.
    Prefix {
        /// The address.
        address: IpAddr,
        /// How many bits were said.
        prefix_len: u8,
    },
    /// There are [`ADDRESSES`] of them already.
    NoRoom,
    /// No room for the groups that come with it.
    Groups(GroupError),
}

impl fmt::Display for AddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotUnicast { address } => write!(f, "{address} is not the address of a host"),
            Self::Prefix {
                address,
                prefix_len,
            } => write!(f, "{address} has no prefix of {prefix_len} bits"),
            Self::NoRoom => write!(f, "an interface has {ADDRESSES} addresses at most"),
            Self::Groups(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for AddressError {}

/// The state machine. `R` says where its tables lie.
pub struct Neigh<R: Room> {
    timers: Timers,
    dad: bool,
    p_key: PKey,
    scope: Scope,
    up: bool,
    link: LinkAddress,
    addresses: heapless::Vec<Own, ADDRESSES>,
    gateway_v4: Option<Ipv4Addr>,
    gateway_v6: Option<Ipv6Addr>,
    neighbours: Neighbours<R>,
    memberships: Memberships<R>,
    lot: Lot<R, u16>,
    parked_per_neighbour: u16,
    replies: heapless::Deque<(LinkAddress, Message), REPLIES>,
    next: Instant,
    stats: NeighbourStatistics,
}

impl<R: Room> Neigh<R> {
    /// For the link of the partition of `p_key`. Set-up only; may block.
    pub fn new(room: &R, p_key: PKey, profile: &Profile) -> Result<Self, PlatformError> {
        Ok(Self {
            timers: profile.timers,
            dad: profile.duplicate_address_detection,
            p_key,
            scope: profile.scope,
            up: false,
            link: LinkAddress::default(),
            addresses: heapless::Vec::new(),
            gateway_v4: None,
            gateway_v6: None,
            neighbours: Neighbours::new(room, profile.neighbours.max(1))?,
            memberships: Memberships::new(room, profile.memberships)?,
            lot: Lot::new(room, profile.parked_for_neighbours)?,
            parked_per_neighbour: profile.parked_per_neighbour,
            replies: heapless::Deque::new(),
            next: Instant(0),
            stats: NeighbourStatistics::default(),
        })
    }

    /// The link-layer address of a neighbour, if it is known; a packet to it finds it out. That is no use of it: it is not
    /// kept longer for being looked at.
    pub fn link_address(&mut self, neighbour: IpAddr) -> Option<LinkAddress> {
        self.neighbours.peek(neighbour)
    }

    /// The counters.
    pub const fn statistics(&self) -> NeighbourStatistics {
        self.stats
    }

    /// The link is up or not, and has this address.
    pub fn link_changed(&mut self, up: bool, link: LinkAddress, now: Instant) {
        self.next = Instant(0);
        if up && (!self.up || self.link != link) {
            self.neighbours.doubt_all(now);
            self.addresses.iter_mut().for_each(Own::restart);
        }
        if !up {
            self.replies.clear();
        }
        self.up = up;
        self.link = link;
    }

    /// An address of the host, and how many of its bits are the same for all on the link. A second time it only changes
    /// the latter.
    pub fn add_address(&mut self, address: IpAddr, prefix_len: u8) -> Result<(), AddressError> {
        let broadcast = matches!(address, IpAddr::V4(v4) if v4.is_broadcast());
        if address.is_unspecified() || address.is_multicast() || broadcast {
            return Err(AddressError::NotUnicast { address });
        }
        let bits = match address {
            IpAddr::V4(_) => 32,
            IpAddr::V6(_) => 128,
        };
        if prefix_len > bits {
            return Err(AddressError::Prefix {
                address,
                prefix_len,
            });
        }
        if let Some(own) = self.addresses.iter_mut().find(|own| own.address == address) {
            own.prefix_len = prefix_len;
            return Ok(());
        }
        if self.addresses.is_full() {
            return Err(AddressError::NoRoom);
        }
        for group in groups_of(address).into_iter().flatten() {
            if let Err(error) = self.join(group) {
                self.leave_groups_of(address, group);
                return Err(AddressError::Groups(error));
            }
        }
        let own = Own::new(address, prefix_len);
        self.next = Instant(0);
        self.addresses.push(own).map_err(|_| AddressError::NoRoom)
    }

    /// Leaves the groups of `address` that come before `end`.
    fn leave_groups_of(&mut self, address: IpAddr, end: IpAddr) {
        for group in groups_of(address).into_iter().flatten() {
            if group == end {
                return;
            }
            self.leave(group);
        }
    }

    /// The host does not have this address any more.
    pub fn remove_address(&mut self, address: IpAddr) {
        let before = self.addresses.len();
        self.addresses.retain(|own| own.address != address);
        if self.addresses.len() < before {
            self.leave_groups_of(address, address); // all: an address is no group
        }
    }

    /// Our addresses, and whether each is in use: not still being asked for, not somebody else's, and the link up.
    pub fn addresses(&self) -> impl Iterator<Item = (IpAddr, bool)> {
        self.addresses
            .iter()
            .map(|own| (own.address, own.is_ours()))
    }

    /// An address of ours that somebody else turned out to have before we used it, once for each. We do not answer for
    /// it; the IP stack is to be told.
    pub fn take_conflict(&mut self) -> Option<IpAddr> {
        let mut all = self.addresses.iter_mut();
        all.find_map(|own| own.tell_loss().then_some(own.address))
    }

    /// Where packets to addresses that are not on the link go.
    pub const fn set_gateway(&mut self, gateway: IpAddr) {
        match gateway {
            IpAddr::V4(gateway) => self.gateway_v4 = Some(gateway),
            IpAddr::V6(gateway) => self.gateway_v6 = Some(gateway),
        }
    }

    /// No gateway any more, for either version.
    pub const fn clear_gateways(&mut self) {
        self.gateway_v4 = None;
        self.gateway_v6 = None;
    }

    /// Has the link listen to `group`, until as many [`leave`](Self::leave)s.
    pub fn join(&mut self, group: IpAddr) -> Result<(), GroupError> {
        if !group.is_multicast() {
            return Err(GroupError::NotMulticast { address: group });
        }
        self.next = Instant(0);
        self.memberships
            .join(group)
            .inspect_err(|_| count(&mut self.stats.groups_full))
    }

    /// Takes one [`join`](Self::join) back.
    pub fn leave(&mut self, group: IpAddr) {
        self.next = Instant(0);
        self.memberships.leave(group);
    }

    /// [`NeighAction::Listen`] for this address could not be done; it is tried again.
    pub fn listen_failed(&mut self, group: IpAddr, now: Instant) {
        count(&mut self.stats.groups_full);
        self.next = Instant(0);
        self.memberships
            .listen_failed(group, now.after(self.timers.backoff_limit));
    }

    /// The group that a multicast address maps to.
    pub fn mgid(&self, group: IpAddr) -> Gid {
        match group {
            IpAddr::V4(group) => ipv4_multicast_gid(group, self.p_key, self.scope),
            IpAddr::V6(group) => ipv6_multicast_gid(group, self.p_key, self.scope),
        }
    }

    /// Where an IP packet of the host goes, which lies in `frame`. Data path; any context that may hold the lock.
    pub fn send(&mut self, packet: &[u8], frame: FrameId, now: Instant) -> NextHop {
        if !self.up {
            count(&mut self.stats.down);
            return NextHop::Drop;
        }
        let Some(packet) = IpPacket::read(packet) else {
            count(&mut self.stats.malformed);
            return NextHop::Drop;
        };
        if packet.destination.is_multicast() {
            self.snoop(&packet);
            return NextHop::To(LinkAddress::multicast(self.mgid(packet.destination)));
        }
        if let IpAddr::V4(destination) = packet.destination
            && (destination.is_broadcast() || self.is_subnet_broadcast(destination))
        {
            let group = broadcast_gid(self.p_key, self.scope);
            return NextHop::To(LinkAddress::multicast(group));
        }
        if self.has(packet.destination)
            || packet.destination.is_unspecified()
            || packet.destination.is_loopback()
        {
            count(&mut self.stats.bad_destination);
            return NextHop::Drop;
        }
        let Some(neighbour) = self.next_hop(packet.destination) else {
            count(&mut self.stats.no_route);
            return NextHop::Drop;
        };
        self.resolve(neighbour, frame, now)
    }

    fn resolve(&mut self, neighbour: IpAddr, frame: FrameId, now: Instant) -> NextHop {
        let lot = &self.lot;
        let parked = |at| lot.count(|to| to == at);
        let found = self
            .neighbours
            .lookup(neighbour, |at| parked(at) > 0, &self.timers, now);
        // To be probed after that, at the earliest.
        self.next = self.next.min(now.after(self.timers.delay));
        match found {
            // A packet does not overtake those that wait for the same neighbour.
            Found::Use(at, address) if lot.is_empty() || parked(at) == 0 => NextHop::To(address),
            Found::Use(at, _) | Found::Wait(at) => {
                let waiting = parked(at);
                let room = waiting < usize::from(self.parked_per_neighbour);
                if room && self.lot.push(at, frame) {
                    self.next = Instant(0);
                    return NextHop::Parked;
                }
                count(&mut self.stats.parked_full);
                NextHop::Drop
            }
            Found::Unreachable => {
                count(&mut self.stats.unreachable);
                NextHop::Drop
            }
            Found::Full => {
                count(&mut self.stats.neighbours_full);
                NextHop::Drop
            }
        }
    }

    fn snoop(&mut self, packet: &IpPacket<'_>) {
        let (memberships, stats) = (&mut self.memberships, &mut self.stats);
        let mut changed = false;
        snoop::memberships(packet, |group, joins| {
            changed = true;
            if memberships.snooped(group, joins).is_err() {
                count(&mut stats.groups_full);
            }
        });
        if changed {
            self.next = Instant(0);
        }
    }

    fn is_subnet_broadcast(&self, destination: Ipv4Addr) -> bool {
        self.addresses
            .iter()
            .any(|own| own.is_broadcast(destination))
    }

    /// The neighbour that a packet to `destination` goes to.
    fn next_hop(&self, destination: IpAddr) -> Option<IpAddr> {
        let link_local = match destination {
            IpAddr::V4(v4) => v4.is_link_local(),
            IpAddr::V6(v6) => v6.is_unicast_link_local(),
        };
        if link_local || self.addresses.iter().any(|own| own.covers(destination)) {
            return Some(destination);
        }
        match destination {
            IpAddr::V4(_) => self.gateway_v4.map(IpAddr::V4),
            IpAddr::V6(_) => self.gateway_v6.map(IpAddr::V6),
        }
    }

    /// A frame came. Says whether its datagram is for the IP stack; else it was for us, or is dropped.
    pub fn receive(
        &mut self,
        arrival: Arrival,
        ether_type: EtherType,
        datagram: &[u8],
        now: Instant,
    ) -> bool {
        match ether_type {
            EtherType::ARP => {
                match Arp::read(datagram) {
                    Ok((arp, _)) => self.arp(&arp, arrival, now),
                    Err(_) => count(&mut self.stats.bad_messages),
                }
                false
            }
            EtherType::IPV4 | EtherType::IPV6 => {
                let version = if ether_type == EtherType::IPV4 { 4 } else { 6 };
                if datagram.first().is_none_or(|first| first >> 4 != version) {
                    count(&mut self.stats.malformed);
                    return false;
                }
                let packet = IpPacket::read(datagram).filter(NdMessage::is_one);
                let Some(packet) = packet else {
                    return true;
                };
                match NdMessage::read(&packet) {
                    Some(message) => self.nd(&message, now),
                    None => count(&mut self.stats.bad_messages),
                }
                false
            }
            _ => {
                count(&mut self.stats.unknown_protocol);
                false
            }
        }
    }

    /// RFC 826, and RFC 5227 as far as it says whom not to believe.
    fn arp(&mut self, arp: &Arp, arrival: Arrival, now: Instant) {
        if !matches!(arp.operation, ArpOperation::REQUEST | ArpOperation::REPLY) {
            return count(&mut self.stats.bad_messages);
        }
        let sender = IpAddr::V4(arp.sender_ip);
        let host = !(arp.sender_ip.is_multicast() || arp.sender_ip.is_broadcast());
        if !is_host(&arp.sender) || !host {
            return count(&mut self.stats.bad_messages);
        }
        count(&mut self.stats.messages_received);
        self.next = Instant(0);
        if arp.sender == self.link {
            return; // our own, by whatever way
        }
        if self.has(sender) {
            return count(&mut self.stats.conflicts);
        }
        let to_us = self.is_ours(IpAddr::V4(arp.target_ip));
        if !arp.sender_ip.is_unspecified() {
            let reply = arp.operation == ArpOperation::REPLY;
            let report = Report {
                address: Some(arp.sender),
                confirms: reply && arrival == Arrival::Host,
                replaces: true,
                creates: to_us && !reply,
            };
            self.heard(sender, report, now);
        }
        if to_us && arp.operation == ArpOperation::REQUEST {
            let reply = Arp {
                operation: ArpOperation::REPLY,
                sender: self.link,
                sender_ip: arp.target_ip,
                target: arp.sender,
                target_ip: arp.sender_ip,
            };
            self.reply(arp.sender, Message::Arp(reply));
        }
    }

    fn nd(&mut self, message: &NdMessage, now: Instant) {
        if message.address.is_some_and(|address| !is_host(&address)) {
            return count(&mut self.stats.bad_messages);
        }
        count(&mut self.stats.messages_received);
        self.next = Instant(0);
        match message.kind {
            NdKind::Solicitation => self.solicited(message, now),
            NdKind::Advertisement {
                solicited,
                overrides,
                ..
            } => {
                let target = IpAddr::V6(message.target);
                if self.claimed(target) {
                    return;
                }
                let report = Report {
                    address: message.address,
                    confirms: solicited,
                    replaces: overrides,
                    creates: false,
                };
                self.heard(target, report, now);
            }
        }
    }

    /// RFC 4861, 7.2.3 and 7.2.4; RFC 4862, 5.4.3.
    fn solicited(&mut self, message: &NdMessage, now: Instant) {
        let target = IpAddr::V6(message.target);
        let asks_for_itself = message.source.is_unspecified();
        let tentative = |own: &Own| own.address == target && own.is_tentative();
        if self.addresses.iter().any(tentative) {
            if asks_for_itself {
                self.claimed(target); // two that want it: neither gets it
            }
            return;
        }
        if !self.is_ours(target) {
            return;
        }
        let source = IpAddr::V6(message.source);
        let to = if asks_for_itself {
            Some(LinkAddress::multicast(self.mgid(ALL_NODES.into())))
        } else {
            let report = Report {
                address: message.address,
                confirms: false,
                replaces: true,
                creates: true,
            };
            self.heard(source, report, now);
            message.address.or_else(|| self.neighbours.peek(source))
        };
        let Some(to) = to else {
            return count(&mut self.stats.bad_messages); // it does not say where it is
        };
        let answer = NdMessage {
            source: message.target,
            destination: if asks_for_itself {
                ALL_NODES
            } else {
                message.source
            },
            kind: NdKind::Advertisement {
                router: false,
                solicited: !asks_for_itself,
                overrides: true,
            },
            target: message.target,
            address: Some(self.link),
        };
        self.reply(to, Message::Nd(answer));
    }

    fn heard(&mut self, ip: IpAddr, report: Report, now: Instant) {
        let lot = &self.lot;
        let parked = |at| lot.count(|to| to == at) > 0;
        self.neighbours.heard(ip, report, parked, &self.timers, now);
    }

    /// Somebody else says that it has `address`. Is it one of ours?
    fn claimed(&mut self, address: IpAddr) -> bool {
        let mut all = self.addresses.iter_mut();
        let Some(own) = all.find(|own| own.address == address && !own.is_lost()) else {
            return false;
        };
        count(&mut self.stats.conflicts);
        if own.is_tentative() {
            own.lose();
        }
        true
    }

    /// Is it one of the host's, as far as we know?
    fn has(&self, address: IpAddr) -> bool {
        let mut all = self.addresses.iter();
        all.any(|own| own.address == address && !own.is_lost())
    }

    /// Do we answer for it?
    fn is_ours(&self, address: IpAddr) -> bool {
        let mut all = self.addresses.iter();
        all.any(|own| own.address == address && own.is_ours())
    }

    fn reply(&mut self, to: LinkAddress, message: Message) {
        if self.replies.push_back((to, message)).is_err() {
            count(&mut self.stats.replies_full);
        }
    }

    /// Says what is due at `now`. Call again until it says [`NeighAction::WaitUntil`]; calling early or late is harmless.
    /// Any context that may hold the lock; never blocks.
    pub fn poll(&mut self, now: Instant) -> NeighAction {
        let now = now.on_the_clock();
        if now < self.next {
            return NeighAction::WaitUntil(self.next);
        }
        if let Some(action) = self.serve_membership(now) {
            return action;
        }
        if !self.up {
            let Some(((), frame)) = self.lot.take(|_| Some(())) else {
                self.next = self.memberships.next();
                return NeighAction::WaitUntil(self.next);
            };
            count(&mut self.stats.down);
            return NeighAction::Drop { frame };
        }
        if let Some((to, message)) = self.replies.pop_front() {
            return self.say(to, message);
        }
        let mut addresses = self.addresses.iter_mut();
        if let Some(say) = addresses.find_map(|own| own.say(self.dad, &self.timers, now)) {
            return self.announce(say);
        }
        while let Some(solicit) = self.neighbours.solicit(&self.timers, now) {
            if let Some(action) = self.solicit(solicit) {
                return action;
            }
        }
        if let Some(action) = self.unpark() {
            return action;
        }
        let lot = &self.lot;
        let parked = |at| lot.count(|to| to == at) > 0;
        self.neighbours.expire(parked, &self.timers, now);
        let addresses = self.addresses.iter().map(Own::next);
        self.next = addresses
            .fold(self.neighbours.next(&self.timers), Instant::min)
            .min(self.memberships.next());
        NeighAction::WaitUntil(self.next)
    }

    fn serve_membership(&mut self, now: Instant) -> Option<NeighAction> {
        let (group, listen) = self.memberships.serve(now)?;
        let mgid = self.mgid(group);
        Some(if listen {
            NeighAction::Listen { group, mgid }
        } else {
            NeighAction::Ignore { mgid }
        })
    }

    const fn say(&mut self, to: LinkAddress, message: Message) -> NeighAction {
        count(&mut self.stats.messages_sent);
        NeighAction::Say { to, message }
    }

    fn announce(&mut self, say: Say) -> NeighAction {
        match say {
            Say::Ask(address) => {
                let destination = solicited_node(address);
                let question = NdMessage {
                    source: Ipv6Addr::UNSPECIFIED,
                    destination,
                    kind: NdKind::Solicitation,
                    target: address,
                    address: None,
                };
                let to = LinkAddress::multicast(self.mgid(destination.into()));
                self.say(to, Message::Nd(question))
            }
            Say::Announce(IpAddr::V4(address)) => {
                let claim = Arp {
                    operation: ArpOperation::REQUEST,
                    sender: self.link,
                    sender_ip: address,
                    target: LinkAddress::default(),
                    target_ip: address,
                };
                let group = broadcast_gid(self.p_key, self.scope);
                self.say(LinkAddress::multicast(group), Message::Arp(claim))
            }
            Say::Announce(IpAddr::V6(address)) => {
                let claim = NdMessage {
                    source: address,
                    destination: ALL_NODES,
                    kind: NdKind::Advertisement {
                        router: false,
                        solicited: false,
                        overrides: true,
                    },
                    target: address,
                    address: Some(self.link),
                };
                let to = LinkAddress::multicast(self.mgid(ALL_NODES.into()));
                self.say(to, Message::Nd(claim))
            }
        }
    }

    /// The question to ask; `None` if we have no address to ask from.
    fn solicit(&mut self, solicit: Solicit) -> Option<NeighAction> {
        let (ip, only) = match solicit {
            Solicit::All(ip) => (ip, None),
            Solicit::Only(ip, address) => (ip, Some(address)),
            Solicit::Doubt(address) => return Some(NeighAction::Suspect(address.gid)),
        };
        let own = self.source_for(ip);
        let (to, message) = match (ip, own?) {
            (IpAddr::V4(target_ip), IpAddr::V4(sender_ip)) => {
                let group = broadcast_gid(self.p_key, self.scope);
                let question = Arp {
                    operation: ArpOperation::REQUEST,
                    sender: self.link,
                    sender_ip,
                    target: LinkAddress::default(),
                    target_ip,
                };
                (LinkAddress::multicast(group), Message::Arp(question))
            }
            (IpAddr::V6(target), IpAddr::V6(source)) => {
                let group = solicited_node(target);
                let question = NdMessage {
                    source,
                    destination: if only.is_some() { target } else { group },
                    kind: NdKind::Solicitation,
                    target,
                    address: Some(self.link),
                };
                let to = LinkAddress::multicast(self.mgid(group.into()));
                (to, Message::Nd(question))
            }
            _ => return None,
        };
        Some(self.say(only.unwrap_or(to), message))
    }

    /// From which of our addresses we ask for `neighbour`: one that is on a link with it, or else any.
    fn source_for(&self, neighbour: IpAddr) -> Option<IpAddr> {
        let same = |own: &&Own| own.is_ours() && own.address.is_ipv4() == neighbour.is_ipv4();
        let mut all = self.addresses.iter().filter(same);
        let near = all.clone().find(|own| own.covers(neighbour));
        near.or_else(|| all.next()).map(|own| own.address)
    }

    /// A parked packet whose fate is known.
    fn unpark(&mut self) -> Option<NeighAction> {
        let neighbours = &self.neighbours;
        let (to, frame) = self.lot.take(|at| neighbours.fate(at))?;
        Some(match to {
            Some(to) => NeighAction::Release { frame, to },
            None => {
                count(&mut self.stats.unreachable);
                NeighAction::Drop { frame }
            }
        })
    }
}

/// The groups that come with an address.
fn groups_of(address: IpAddr) -> [Option<IpAddr>; 2] {
    match address {
        IpAddr::V4(_) => [Some(ALL_SYSTEMS.into()), None],
        IpAddr::V6(address) => [Some(ALL_NODES.into()), Some(solicited_node(address).into())],
    }
}

/// Can this be the address of a peer?
fn is_host(address: &LinkAddress) -> bool {
    let special = matches!(address.qpn, Qpn::SMI | Qpn::GSI | Qpn::MULTICAST);
    !special && !address.gid.is_multicast() && !address.gid.is_none()
}
