//! The state machine of one interface: port, QP, broadcast group, other groups, paths, and the frames that wait.
//!
//! It holds no frame, no address handle, no QP and no clock. [`Link::handle`] takes note, [`Link::poll`] says what is
//! due, [`Link::send`] says what becomes of a frame. protocols 6.4 to 6.8.

use super::event::{DownCause, DropCause, FrameId, LinkState, PortView, Route, Verdict, Wish};
use super::group::{Group, Phase};
use super::path::{Lookup, Paths};
use super::sa::GroupAnswer;
use crate::keyed::Keyed;
use crate::lot::Lot;
use crate::net::GroupError;
use crate::profile::Profile;
use crate::room::Room;
use crate::stats::{LinkStatistics, count};
use core_ib::platform::PlatformError;
use core_ib::verbs::{AhAttr, VerbsError};
use core_ib::wire::Grh;
use core_ib::wire::ipoib::{LinkAddress, broadcast_gid};
use core_ib::{Gid, Instant, Lid, Mtu, PKey, QKey, Qpn};

/// Place of the broadcast group.
pub(super) const BROADCAST: u16 = 0;

/// What a parked frame waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waits {
    /// A path, and then goes to this QP.
    Path(u16, Qpn),
    /// A group.
    Group(u16),
}

/// Where the QP stands, as far as we know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Qp {
    /// Not started, or to be started anew.
    Stopped,
    /// In RTS.
    Running { pkey_index: u16, q_key: QKey },
}

/// Whose copy a received frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// To this host.
    Host,
    /// To the broadcast group.
    Broadcast,
    /// To another group.
    Multicast,
    /// Our own, back from a group: to be dropped. protocols 6.4.
    Own,
}

/// One interface. `R` says where its tables lie.
pub struct Link<R: Room> {
    pub(super) profile: Profile,
    pub(super) port_number: u8,
    pub(super) p_key: PKey,
    pub(super) qpn: Qpn,
    /// Connected mode, with datagrams as long as that.
    pub(super) connected_mtu: Option<u16>,
    /// What we send goes by connections, where the peer takes them.
    pub(super) by_connections: bool,
    pub(super) admin_up: bool,
    pub(super) device_failed: bool,
    pub(super) port: PortView,
    pub(super) qp: Qp,
    pub(super) qp_error: Option<VerbsError>,
    pub(super) qp_tries: u8,
    pub(super) qp_after: Instant,
    pub(super) mend: bool,
    /// When it was mended last.
    pub(super) mended: Option<Instant>,
    pub(super) mend_after: Instant,
    pub(super) wish: Option<Wish>,
    /// Of the broadcast group, if it is too large for us.
    pub(super) too_large: Option<Mtu>,
    pub(super) up: bool,
    pub(super) told: Option<(LinkState, Gid)>,
    pub(super) groups: Keyed<R, Gid, Group>,
    pub(super) paths: Paths<R>,
    pub(super) lot: Lot<R, Waits>,
    pub(super) serial: u32,
    /// Nothing is to be done before; something happened if zero.
    pub(super) next: Instant,
    pub(super) stats: LinkStatistics,
}

impl<R: Room> Link<R> {
    /// A link of the partition of `p_key` on port `port_number` (1 or 2), whose UD QP is `qpn`. The interface is wanted
    /// up; it needs an [`Event::Port`](super::Event::Port) to begin. Set-up only; may block.
    pub fn new(
        room: &R,
        port_number: u8,
        p_key: PKey,
        qpn: Qpn,
        profile: &Profile,
    ) -> Result<Self, PlatformError> {
        let mut profile = *profile;
        profile.groups = profile.groups.max(2);
        profile.paths = profile.paths.max(1);
        profile.sa_outstanding = profile.sa_outstanding.max(1);
        let p_key = PKey(p_key.0 | 0x8000);
        let mut groups = Keyed::new(room, profile.groups)?;
        let broadcast = broadcast_gid(p_key, profile.scope);
        groups.insert(broadcast, Group::broadcast()); // at place 0
        Ok(Self {
            paths: Paths::new(room, profile.paths)?,
            lot: Lot::new(room, profile.parked)?,
            groups,
            profile,
            port_number,
            p_key,
            qpn,
            connected_mtu: None,
            by_connections: true,
            admin_up: true,
            device_failed: false,
            port: PortView::default(),
            qp: Qp::Stopped,
            qp_error: None,
            qp_tries: 0,
            qp_after: Instant(0),
            mend: false,
            mended: None,
            mend_after: Instant(0),
            wish: None,
            too_large: None,
            up: false,
            told: None,
            serial: 0,
            next: Instant(0),
            stats: LinkStatistics::default(),
        })
    }

    /// Partition, bit 15 set.
    pub const fn p_key(&self) -> PKey {
        self.p_key
    }

    /// The port as last told.
    pub const fn port(&self) -> PortView {
        self.port
    }

    /// The interface's own address.
    pub const fn address(&self) -> LinkAddress {
        LinkAddress {
            rc: self.connected_mtu.is_some(),
            uc: false,
            qpn: self.qpn,
            gid: self.port.gid,
        }
    }

    /// The broadcast group.
    pub const fn broadcast(&self) -> Gid {
        broadcast_gid(self.p_key, self.profile.scope)
    }

    /// How many values [`Route::slot`] takes.
    pub fn routes(&self) -> usize {
        self.groups.capacity().saturating_add(self.paths.capacity())
    }

    /// Has something happened since the link was polled that it must be polled for at once?
    pub const fn is_due(&self) -> bool {
        self.next.0 == 0
    }

    /// The counters.
    pub const fn statistics(&self) -> LinkStatistics {
        self.stats
    }

    /// Every group of the link, and whether it is joined.
    pub fn groups(&self) -> impl Iterator<Item = (Gid, bool)> {
        let joined = |group: &Group| group.phase == Phase::Joined && group.record.is_some();
        self.groups
            .iter()
            .map(move |(_, gid, group)| (*gid, joined(group)))
    }

    /// Groups to which the QP is attached now, with the LID of each: to be detached before the QP is destroyed.
    pub fn attached(&self) -> impl Iterator<Item = (Gid, Lid)> {
        let attached = self.groups.iter();
        attached.filter_map(|(_, gid, group)| Some((*gid, group.attached?)))
    }

    /// State of the interface.
    pub fn state(&self) -> LinkState {
        if self.up {
            let connected = self.connected_mtu.filter(|_| self.by_connections);
            let mtu = connected.unwrap_or(self.datagram_mtu());
            return LinkState::Up { mtu };
        }
        let broadcast = self.groups.get(BROADCAST);
        let failure = broadcast.and_then(|group| group.failure);
        LinkState::Down(if self.device_failed {
            DownCause::DeviceFailed
        } else if !self.admin_up {
            let idle = self.groups.iter().all(|(.., group)| group.is_idle());
            DownCause::Admin {
                idle: idle && self.wish.is_none(),
            }
        } else if !self.port.active {
            DownCause::PortDown
        } else if self.port.pkey_index.is_none() {
            DownCause::NoPKey { p_key: self.p_key }
        } else if let Some(error) = self.qp_error {
            DownCause::QpFailed(error)
        } else if self.qp == Qp::Stopped {
            DownCause::Starting
        } else if let Some(group) = self.too_large {
            let allowed = self.profile.max_mtu;
            DownCause::GroupMtu { group, allowed }
        } else if let Some(failure) = failure {
            DownCause::JoinFailed(failure)
        } else {
            DownCause::Joining
        })
    }

    /// The smallest MTU of the link: every path in it has as much.
    pub(super) fn link_mtu(&self) -> Option<Mtu> {
        let group = self.broadcast_record().map(|record| record.params.mtu);
        group.into_iter().chain(self.port.mtu).min()
    }

    /// Bytes of the longest datagram that goes to a group, or by the datagram QP at all.
    pub fn datagram_mtu(&self) -> u16 {
        self.link_mtu()
            .map_or(0, |mtu| mtu.bytes() as u16)
            .saturating_sub(4)
    }

    pub(super) fn broadcast_record(&self) -> Option<GroupAnswer> {
        self.groups.get(BROADCAST)?.record
    }

    /// Whose copy is a frame from QP `src_qp` at `slid`, with this GRH if it has one?
    pub fn classify(&self, slid: Lid, src_qp: Qpn, grh: Option<&Grh>) -> Arrival {
        let Some(Grh { sgid, dgid, .. }) = grh.filter(|grh| grh.dgid.is_multicast()) else {
            return Arrival::Host;
        };
        let own_lids = 1_u16 << self.port.lmc.min(7);
        let own_lid = slid.0.wrapping_sub(self.port.lid.0) < own_lids;
        // The LID alone would not do for a frame that was on its way while it changed.
        if (own_lid || *sgid == self.port.gid) && src_qp == self.qpn {
            Arrival::Own
        } else if *dgid == self.broadcast() {
            Arrival::Broadcast
        } else {
            Arrival::Multicast
        }
    }

    /// What becomes of a frame to `to`. Data path; any context that may hold the link's lock.
    pub fn send(&mut self, to: &LinkAddress, frame: FrameId, now: Instant) -> Verdict {
        let verdict = self.route(to, frame, now);
        if let Verdict::Drop(cause) = verdict {
            self.stats.dropped(cause);
        }
        verdict
    }

    fn route(&mut self, to: &LinkAddress, frame: FrameId, now: Instant) -> Verdict {
        if !self.up {
            return Verdict::Drop(DropCause::Down);
        }
        if self.is_mending() {
            return Verdict::Drop(DropCause::Repair);
        }
        if to.gid.is_multicast() {
            return self.route_to_group(to.gid, frame, now);
        }
        if to.gid.is_none() || matches!(to.qpn, Qpn::SMI | Qpn::GSI | Qpn::MULTICAST) {
            return Verdict::Drop(DropCause::BadAddress);
        }
        let lot = &self.lot;
        let parked = |at| lot.count(|waits| matches!(waits, Waits::Path(to, _) if to == at));
        let found = self.paths.lookup(to.gid, |at| parked(at) > 0, now);
        if let Lookup::Use(at, _) = found
            && self.paths.is_due(at)
        {
            self.next = Instant(0); // it is asked for anew beside its use
        }
        match found {
            // A frame does not overtake those that wait for the same path.
            Lookup::Use(at, attr) if lot.is_empty() || parked(at) == 0 => self
                .route_of(Waits::Path(at, to.qpn), attr)
                .map_or(Verdict::Drop(DropCause::Down), Verdict::Send),
            Lookup::Use(at, _) | Lookup::Wait(at) => {
                let limit = self.profile.parked_per_path;
                self.park(Waits::Path(at, to.qpn), parked(at), limit, frame)
            }
            Lookup::Unreachable => Verdict::Drop(DropCause::Unreachable),
            Lookup::Full => Verdict::Drop(DropCause::PathsFull),
        }
    }

    fn route_to_group(&mut self, mgid: Gid, frame: FrameId, now: Instant) -> Verdict {
        if !self.is_ours(mgid) {
            return Verdict::Drop(DropCause::BadAddress);
        }
        let at = match self.groups.find(&mgid) {
            Some(at) => at,
            None => match self.begin_sending(mgid, now) {
                Some(at) => at,
                None => return Verdict::Drop(DropCause::GroupsFull),
            },
        };
        let parked = self.lot.count(|waits| waits == Waits::Group(at));
        let Some(group) = self.groups.get_mut(at) else {
            return Verdict::Drop(DropCause::GroupsFull); // not after `find`
        };
        group.touch(now);
        if group.dead {
            return Verdict::Drop(DropCause::Unreachable);
        }
        match group.attr(mgid, self.port_number) {
            Some(attr) if parked == 0 => self
                .route_of(Waits::Group(at), attr)
                .map_or(Verdict::Drop(DropCause::Down), Verdict::Send),
            _ => {
                let limit = self.profile.parked_per_group;
                self.park(Waits::Group(at), parked, limit, frame)
            }
        }
    }

    /// Makes a group that is joined only to send; of such there are at most half the table.
    fn begin_sending(&mut self, mgid: Gid, now: Instant) -> Option<u16> {
        let only_sent_to = |group: &Group| group.listeners == 0;
        let count = self
            .groups
            .iter()
            .filter(|(.., group)| only_sent_to(group))
            .count();
        if count.saturating_mul(2) >= self.groups.capacity() {
            return None;
        }
        self.groups.insert(mgid, Group::new(now))
    }

    fn park(&mut self, waits: Waits, parked: usize, limit: u16, frame: FrameId) -> Verdict {
        if parked < usize::from(limit) && self.lot.push(waits, frame) {
            self.next = Instant(0);
            Verdict::Parked
        } else {
            Verdict::Drop(DropCause::ParkedFull)
        }
    }

    pub(super) fn route_of(&self, waits: Waits, attr: AhAttr) -> Option<Route> {
        let q_key = self.broadcast_record()?.params.q_key;
        let groups = self.groups.capacity() as u16;
        let (slot, qpn) = match waits {
            Waits::Path(at, qpn) => (groups.saturating_add(at), qpn),
            Waits::Group(at) => (at, Qpn::MULTICAST),
        };
        Some(Route {
            slot,
            attr,
            qpn,
            q_key,
        })
    }

    /// Is this a group of our scope and partition, of IPv4 or IPv6?
    fn is_ours(&self, mgid: Gid) -> bool {
        let [a, b, c, d, e, f, ..] = mgid.0;
        let [ours_a, ours_b, _, _, ours_e, ours_f, ..] = self.broadcast().0;
        [a, b, e, f] == [ours_a, ours_b, ours_e, ours_f] && matches!([c, d], [0x40 | 0x60, 0x1b])
    }

    pub(super) fn is_mending(&self) -> bool {
        self.mend || matches!(self.wish, Some(Wish::Mend { .. }))
    }

    /// Receives frames to `mgid` from now on, as soon as it is joined and attached. Each call needs an
    /// [`ignore`](Self::ignore).
    pub fn listen(&mut self, mgid: Gid, now: Instant) -> Result<(), GroupError> {
        if !self.is_ours(mgid) {
            return Err(GroupError::NotOfThisLink { mgid });
        }
        let limit = self.groups.capacity();
        let at = self.groups.find(&mgid);
        let at = at.or_else(|| self.groups.insert(mgid, Group::new(now)));
        let Some(group) = at.and_then(|at| self.groups.get_mut(at)) else {
            count(&mut self.stats.groups_full);
            return Err(GroupError::NoRoom {
                entry: "groups",
                limit,
            });
        };
        if group.listeners == 0 {
            group.hasten(now);
        }
        group.listeners = group.listeners.saturating_add(1);
        self.next = Instant(0);
        Ok(())
    }

    /// Takes one [`listen`](Self::listen) back. Of a group that was not listened to, nothing happens.
    pub fn ignore(&mut self, mgid: Gid, now: Instant) {
        let at = self.groups.find(&mgid);
        let Some(group) = at.and_then(|at| self.groups.get_mut(at)) else {
            return;
        };
        let fewest = u16::from(group.pinned);
        group.listeners = group.listeners.saturating_sub(1).max(fewest);
        if group.listeners == 0 {
            group.sending =
                at.is_some_and(|at| self.lot.count(|waits| waits == Waits::Group(at)) > 0);
            group.hasten(now);
        }
        self.next = Instant(0);
    }
}
