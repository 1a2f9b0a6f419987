//! An interface for raw IP packets: [`Neigh`] on a [`LinkInterface`].

use super::too_big::{KEPT, TooBig};
use super::{AddressError, Neigh, NeighAction, NextHop};
use crate::link::{Control, Event, LinkInterface, LinkState, Step};
use crate::net::{GroupError, NetInterface, SendError};
use crate::profile::Profile;
use crate::stats::Statistics;
use core::net::IpAddr;
use core_ib::platform::{Placed, Platform, Room};
use core_ib::verbs::{CqHandle, QpHandle, Verbs, VerbsError};
use core_ib::wire::ipoib::{EtherType, LinkAddress};
use core_ib::{Gid, Instant, PKey};

/// One interface for raw IP packets. How to drive it is said on the crate's page.
pub struct IpInterface<'a, V: Verbs, P: Platform> {
    link: LinkInterface<'a, V, P>,
    neigh: Placed<'a, Neigh<&'a P>, P>,
    /// The host's IP stack is to hear that a packet was too long for its next hop.
    too_big: Option<TooBig>,
}

impl<'a, V: Verbs, P: Platform> IpInterface<'a, V, P> {
    /// As [`LinkInterface::open`]. Control context; blocks.
    pub fn open(
        device: &'a V,
        machine: &'a P,
        port: u8,
        p_key: PKey,
        profile: &Profile,
    ) -> Result<Self, VerbsError> {
        let neigh = Self::neigh_of(machine, p_key, profile)?;
        Ok(Self {
            link: LinkInterface::open(device, machine, port, p_key, profile)?,
            neigh,
            too_big: None,
        })
    }

    /// In a function of its own, so that its frame is gone when the link is opened.
    #[inline(never)]
    fn neigh_of(
        machine: &'a P,
        p_key: PKey,
        profile: &Profile,
    ) -> Result<Placed<'a, Neigh<&'a P>, P>, VerbsError> {
        let room = Room::new(machine)?;
        Ok(room.put(Neigh::new(&machine, p_key, profile)?))
    }

    /// As [`LinkInterface::close`]. Control context; blocks.
    pub fn close(self) -> Result<(), VerbsError> {
        self.link.close()
    }

    /// Carries out this interface's wishes.
    pub fn control(&self) -> Control<'a, V> {
        self.link.control()
    }

    /// The QP, to tell whose event an asynchronous event is.
    pub fn qp(&self) -> QpHandle {
        self.link.qp()
    }

    /// The completion queues, to tell whose completions are announced: sends, receives.
    pub fn cqs(&self) -> [CqHandle; 2] {
        self.link.cqs()
    }

    /// As [`LinkInterface::arm`].
    pub fn arm(&self) -> Result<(), VerbsError> {
        self.link.arm()
    }

    /// The link below, to look at.
    pub const fn link(&self) -> &LinkInterface<'a, V, P> {
        &self.link
    }

    /// The link below, for what it does about connections.
    pub const fn link_mut(&mut self) -> &mut LinkInterface<'a, V, P> {
        &mut self.link
    }

    /// The neighbour half, to look at.
    pub fn neighbours(&self) -> &Neigh<&'a P> {
        &self.neigh
    }

    /// As [`Neigh::link_address`].
    pub fn link_address(&mut self, neighbour: IpAddr) -> Option<LinkAddress> {
        self.neigh.link_address(neighbour)
    }

    /// As [`Neigh::add_address`].
    pub fn add_address(&mut self, address: IpAddr, prefix_len: u8) -> Result<(), AddressError> {
        self.neigh.add_address(address, prefix_len)
    }

    /// As [`Neigh::remove_address`].
    pub fn remove_address(&mut self, address: IpAddr) {
        self.neigh.remove_address(address);
    }

    /// As [`Neigh::set_gateway`].
    pub fn set_gateway(&mut self, gateway: IpAddr) {
        self.neigh.set_gateway(gateway);
    }

    /// As [`Neigh::clear_gateways`].
    pub fn clear_gateways(&mut self) {
        self.neigh.clear_gateways();
    }

    /// As [`Neigh::take_conflict`].
    pub fn take_conflict(&mut self) -> Option<IpAddr> {
        self.neigh.take_conflict()
    }

    /// Takes note. Thread or soft interrupt; never blocks.
    pub fn handle(&mut self, event: Event, now: Instant) {
        self.link.handle(event, now);
    }

    /// Says what is due at `now`; call again until it says [`Step::WaitUntil`]. Thread or soft interrupt; never blocks.
    pub fn poll(&mut self, now: Instant) -> Step {
        loop {
            let of_link = match self.link.poll(now) {
                Step::Changed(state) => {
                    let address = self.link.link().address();
                    self.neigh.link_changed(state.is_up(), address, now);
                    return Step::Changed(state);
                }
                Step::WaitUntil(until) => until,
                step => return step,
            };
            if let NeighAction::WaitUntil(of_neigh) = self.serve_neigh(now) {
                return Step::WaitUntil(of_link.min(of_neigh));
            }
            // What was just done may have the link do something.
        }
    }

    fn serve_neigh(&mut self, now: Instant) -> NeighAction {
        let action = self.neigh.poll(now);
        match action {
            NeighAction::Say { to, message } => {
                if let Ok((frame, room)) = self.link.begin(message.ether_type(), message.len(), now)
                {
                    if message.write(room) {
                        let _ = self.link.finish(&to, frame, now); // counted
                    } else {
                        self.link.abandon(frame);
                    }
                }
            }
            NeighAction::Release { frame, to } => {
                let _ = self.link.finish(&to, frame, now); // counted
            }
            NeighAction::Drop { frame } => self.link.abandon(frame),
            NeighAction::Listen { group, mgid } => {
                if self.link.listen(mgid, now).is_err() {
                    self.neigh.listen_failed(group, now);
                }
            }
            NeighAction::Ignore { mgid } => self.link.ignore(mgid, now),
            NeighAction::Suspect(gid) => self.link.handle(Event::Suspect(gid), now),
            NeighAction::WaitUntil(_) => {}
        }
        action
    }
}

impl<V: Verbs, P: Platform> IpInterface<'_, V, P> {
    /// Sends a packet that `fill` writes; `unsummed` if the HCA is to put in its checksums.
    fn send_filled(
        &mut self,
        len: usize,
        unsummed: bool,
        now: Instant,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), SendError> {
        let (frame, room) = self.link.begin(EtherType::IPV4, len, now)?;
        fill(room);
        let version = room.first().map(|first| first >> 4);
        if version == Some(6) {
            self.link.set_ether_type(frame, EtherType::IPV6);
        }
        if unsummed {
            self.link.leave_checksums(frame);
        }
        let long = len > usize::from(self.link.link().datagram_mtu());
        let head = self.link.datagram(frame).first_chunk::<KEPT>();
        let head = head.copied().filter(|_| long);
        match self.neigh.send(self.link.datagram(frame), frame, now) {
            NextHop::To(to) => {
                let sent = self.link.finish(&to, frame, now);
                self.link.flush();
                if let (Err(SendError::TooLong { mtu, .. }), Some(head)) = (sent, &head) {
                    self.too_big = TooBig::about(head, mtu as u16); // at most 65520
                }
                sent
            }
            NextHop::Parked => Ok(()),
            NextHop::Drop => {
                self.link.abandon(frame);
                Err(SendError::Dropped)
            }
        }
    }
}

impl<V: Verbs, P: Platform> NetInterface for IpInterface<'_, V, P> {
    fn state(&self) -> LinkState {
        self.link.link().state()
    }

    fn mtu(&self) -> usize {
        self.link.mtu()
    }

    fn link_address(&self) -> LinkAddress {
        self.link.link().address()
    }

    fn send_with(
        &mut self,
        len: usize,
        now: Instant,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), SendError> {
        self.send_filled(len, false, now, fill)
    }

    fn has_checksums(&self, len: usize) -> bool {
        self.link.has_checksums(len)
    }

    fn send_unsummed_with(
        &mut self,
        len: usize,
        now: Instant,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), SendError> {
        self.send_filled(len, true, now, fill)
    }

    fn receive_judged(&mut self, now: Instant, take: &mut dyn FnMut(&[u8], bool)) -> bool {
        if let Some(too_big) = self.too_big.take() {
            take(too_big.packet(), false);
            return true;
        }
        loop {
            let neigh = &mut self.neigh;
            let delivered = self.link.receive(now, |info, datagram| {
                let deliver = neigh.receive(info.arrival, info.ether_type, datagram, now);
                if deliver {
                    take(datagram, info.verified);
                }
                deliver
            });
            match delivered {
                None => return false,
                Some(true) => return true,
                Some(false) => {}
            }
        }
    }

    fn join_group(&mut self, group: IpAddr) -> Result<(), GroupError> {
        self.neigh.join(group)
    }

    fn leave_group(&mut self, group: IpAddr) {
        self.neigh.leave(group);
    }

    fn groups(&self, each: &mut dyn FnMut(Gid, bool)) {
        for (mgid, joined) in self.link.link().groups() {
            each(mgid, joined);
        }
    }

    fn statistics(&self) -> Statistics {
        Statistics {
            neighbours: self.neigh.statistics(),
            ..self.link.statistics()
        }
    }
}
