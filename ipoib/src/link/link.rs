//! The state machine of one interface: port, QP, broadcast group, other groups, paths, and the frames that wait.
//!
//! It holds no frame, no address handle, no QP and no clock. [`Link::handle`] takes note, [`Link::poll`] says what is
//! due, [`Link::send`] says what becomes of a frame. protocols 6.4 to 6.8.

use super::backoff::retry_at;
use super::event::{
    Action, Done, DownCause, DropCause, Event, FrameId, LinkState, Outcome, PortView, Route,
    Verdict, Wish,
};
use super::group::{Circumstances, Group, Need, Phase};
use super::path::{Doubt, Fate, Heard, Lookup, Paths};
use super::sa::{
    GroupAnswer, JoinRequest, LeaveRequest, PathAnswer, PathQuery, SaFailure, Ticket, TicketOf,
};
use crate::keyed::Keyed;
use crate::lot::Lot;
use crate::net::GroupError;
use crate::profile::Profile;
use crate::room::Room;
use crate::stats::{LinkStatistics, count};
use core_ib::platform::PlatformError;
use core_ib::verbs::{AhAttr, GlobalRoute, PortEvent, VerbsError};
use core_ib::wire::ipoib::{LinkAddress, broadcast_gid};
use core_ib::{Gid, Instant, Lid, Mtu, PKey, QKey, Qpn};

/// Place of the broadcast group.
const BROADCAST: u16 = 0;

/// What a parked frame waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waits {
    /// A path, and then goes to this QP.
    Path(u16, Qpn),
    /// A group.
    Group(u16),
}

/// Where the QP stands, as far as we know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Qp {
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
    profile: Profile,
    port_number: u8,
    p_key: PKey,
    qpn: Qpn,
    admin_up: bool,
    device_failed: bool,
    port: PortView,
    qp: Qp,
    qp_error: Option<VerbsError>,
    qp_tries: u8,
    qp_after: Instant,
    mend: bool,
    wish: Option<Wish>,
    /// Of the broadcast group, if it is too large for us.
    too_large: Option<Mtu>,
    up: bool,
    told: Option<(LinkState, Gid)>,
    groups: Keyed<R, Gid, Group>,
    paths: Paths<R>,
    lot: Lot<R, Waits>,
    serial: u32,
    /// Nothing is to be done before; something happened if zero.
    next: Instant,
    stats: LinkStatistics,
}

impl<R: Room> Link<R> {
    /// A link of the partition of `p_key` on port `port_number` (1 or 2), whose UD QP is `qpn`. The interface is wanted
    /// up; it needs an [`Event::Port`] to begin. Set-up only; may block.
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
            admin_up: true,
            device_failed: false,
            port: PortView::default(),
            qp: Qp::Stopped,
            qp_error: None,
            qp_tries: 0,
            qp_after: Instant(0),
            mend: false,
            wish: None,
            too_large: None,
            up: false,
            told: None,
            serial: 0,
            next: Instant(0),
            stats: LinkStatistics::default(),
        })
    }

    /// The same link with another QP.
    pub(super) fn with_qpn(self, qpn: Qpn) -> Self {
        Self { qpn, ..self }
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
            rc: false,
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
            return LinkState::Up { mtu: self.mtu() };
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

    fn mtu(&self) -> u16 {
        let group = self.broadcast_record().map(|record| record.params.mtu);
        let smallest = group.into_iter().chain(self.port.mtu).min();
        smallest
            .map_or(0, |mtu| mtu.bytes() as u16)
            .saturating_sub(4)
    }

    fn broadcast_record(&self) -> Option<GroupAnswer> {
        self.groups.get(BROADCAST)?.record
    }

    /// Whose copy is a frame from QP `src_qp` at `slid`, to the group `dgid` if it has a GRH that says so?
    pub fn classify(&self, slid: Lid, src_qp: Qpn, dgid: Option<Gid>) -> Arrival {
        let Some(group) = dgid.filter(|gid| gid.is_multicast()) else {
            return Arrival::Host;
        };
        let own_lids = 1_u16 << self.port.lmc.min(7);
        let own_lid = slid.0.wrapping_sub(self.port.lid.0) < own_lids;
        if own_lid && src_qp == self.qpn {
            Arrival::Own
        } else if group == self.broadcast() {
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

    fn route_of(&self, waits: Waits, attr: AhAttr) -> Option<Route> {
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

    fn is_mending(&self) -> bool {
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

    /// Takes note. Any context that may hold the link's lock; never blocks.
    pub fn handle(&mut self, event: Event, now: Instant) {
        self.next = Instant(0);
        match event {
            Event::Port(view) => self.see(view, now),
            Event::PortChanged(event, view) => self.port_changed(event, view, now),
            Event::Admin { up } => {
                if up != self.admin_up {
                    self.admin_up = up;
                    self.groups
                        .iter_mut()
                        .for_each(|(.., group)| group.hasten(now));
                }
            }
            Event::Path(ticket, answer) => self.path_answered(ticket, answer, now),
            Event::Joined(ticket, answer) => self.join_answered(ticket, answer, now),
            Event::Left(ticket, answer) => match self.awaited(ticket, Phase::Leaving) {
                Some(group) => {
                    group.left(now);
                    if answer.is_err() {
                        count(&mut self.stats.sa_failures);
                    }
                }
                None => count(&mut self.stats.stale_answers),
            },
            Event::Done(done) => self.done(done, now),
            Event::QpTrouble => self.mend |= self.qp != Qp::Stopped,
            Event::Suspect(gid) => self.paths.suspect(gid, now),
        }
        self.update_up();
    }

    /// The port looks so; whatever differs happened, event or not.
    fn see(&mut self, view: PortView, now: Instant) {
        let before = core::mem::replace(&mut self.port, view);
        if !view.active {
            if before.active {
                self.groups
                    .iter_mut()
                    .for_each(|(.., group)| group.lose(now));
                self.paths.doubt(Doubt::Invalid, now);
            }
            return;
        }
        let admitted = before.pkey_index.is_none() && view.pkey_index.is_some();
        if !before.active || before.gid != view.gid || admitted {
            // To the SA, a port of another GID is another member.
            self.groups
                .iter_mut()
                .for_each(|(.., group)| group.renew(now));
            self.paths.doubt(Doubt::Invalid, now);
        } else if (before.lid, before.lmc) != (view.lid, view.lmc) {
            self.port_moved(now);
        }
    }

    fn port_moved(&mut self, now: Instant) {
        self.groups
            .iter_mut()
            .for_each(|(.., group)| group.renew(now));
        self.paths.doubt(Doubt::Invalid, now);
    }

    /// protocols 6.7.
    fn port_changed(&mut self, event: PortEvent, view: PortView, now: Instant) {
        if event == PortEvent::Error && view.active && self.port.active {
            // It went and came back before anybody looked.
            let gone = PortView {
                active: false,
                ..view
            };
            self.see(gone, now);
        }
        self.see(view, now);
        match event {
            PortEvent::Active | PortEvent::LidChange | PortEvent::GidChange => self.port_moved(now),
            PortEvent::ClientReregister => {
                self.groups
                    .iter_mut()
                    .for_each(|(.., group)| group.renew(now));
                self.paths.doubt(Doubt::Old, now);
            }
            PortEvent::SmChange => {
                self.groups
                    .iter_mut()
                    .for_each(|(.., group)| group.hasten(now));
                self.paths.doubt(Doubt::Old, now);
            }
            PortEvent::Error | PortEvent::PkeyChange => {}
        }
    }

    /// The group that waits for the answer to `ticket`.
    fn awaited(&mut self, ticket: Ticket, phase: Phase) -> Option<&mut Group> {
        let (TicketOf::Group, at, serial) = ticket.of()? else {
            return None;
        };
        let group = self.groups.get_mut(at)?;
        (group.phase == phase && group.serial == serial).then_some(group)
    }

    fn path_answered(
        &mut self,
        ticket: Ticket,
        answer: Result<PathAnswer, SaFailure>,
        now: Instant,
    ) {
        let Some((TicketOf::Path, at, serial)) = ticket.of() else {
            return count(&mut self.stats.stale_answers);
        };
        let dgid = self.paths.gid(at);
        let answer = answer.and_then(|answer| {
            let dgid = dgid.filter(|_| answer.dlid.is_unicast());
            dgid.map(|dgid| self.attr_of(dgid, &answer))
                .ok_or(SaFailure::BadAnswer)
        });
        let timers = &self.profile.timers;
        match self.paths.answer(at, serial, answer, timers, now) {
            Heard::Stale => count(&mut self.stats.stale_answers),
            Heard::Noted => self.note_failure(answer.err()),
        }
    }

    const fn note_failure(&mut self, failure: Option<SaFailure>) {
        match failure {
            None => {}
            Some(SaFailure::BadAnswer) => count(&mut self.stats.bad_answers),
            Some(_) => count(&mut self.stats.sa_failures),
        }
    }

    /// With a GRH only if the path leaves the subnet. protocols 6.5.
    fn attr_of(&self, dgid: Gid, path: &PathAnswer) -> AhAttr {
        let path_bits = (1_u16 << self.port.lmc.min(7)).wrapping_sub(1);
        let global = GlobalRoute {
            dgid,
            sgid_index: 0,
            flow_label: path.flow_label.get(),
            hop_limit: path.hop_limit,
            traffic_class: path.traffic_class,
        };
        AhAttr {
            port: self.port_number,
            dlid: path.dlid,
            sl: path.sl,
            src_path_bits: (path.slid.0 & path_bits) as u8,
            static_rate: path.rate,
            grh: (path.hop_limit > 1).then_some(global),
        }
    }

    fn join_answered(
        &mut self,
        ticket: Ticket,
        answer: Result<GroupAnswer, SaFailure>,
        now: Instant,
    ) {
        let (timers, p_key, allowed) = (self.profile.timers, self.p_key, self.profile.max_mtu);
        let place = ticket.of().map_or(BROADCAST, |(_, at, _)| at);
        let mgid = self.groups.key(place);
        let mut too_large = None;
        let answer = answer.and_then(|record| {
            let fits = Some(record.mgid) == mgid
                && record.mlid.is_multicast()
                && record.p_key.base() == p_key.base()
                && !record.join_state.is_empty();
            if place == BROADCAST && record.params.mtu > allowed {
                too_large = Some(record.params.mtu);
            }
            let fits = fits && too_large.is_none();
            fits.then_some(record).ok_or(SaFailure::BadAnswer)
        });
        let Some(group) = self.awaited(ticket, Phase::Joining) else {
            return count(&mut self.stats.stale_answers);
        };
        group.joined(answer, &timers, now);
        if too_large.is_some() {
            group.record = None; // frames of others would not fit into our buffers
        }
        if place == BROADCAST && (answer.is_ok() || too_large.is_some()) {
            self.too_large = too_large;
        }
        self.note_failure(answer.err());
    }

    fn done(&mut self, done: Done, now: Instant) {
        if self.wish != Some(done.wish) {
            return count(&mut self.stats.stale_answers);
        }
        self.wish = None;
        if let Err(error) = done.result {
            count(&mut self.stats.failed_wishes);
            self.device_failed |=
                matches!(error, VerbsError::DeviceFailed | VerbsError::DeviceGone);
        }
        let timers = self.profile.timers;
        match (done.wish, done.result) {
            (Wish::Attach { mgid, mlid }, result) => {
                let at = self.groups.find(&mgid);
                let Some(group) = at.and_then(|at| self.groups.get_mut(at)) else {
                    return;
                };
                match result {
                    Ok(_) => group.attached = Some(mlid),
                    Err(_) => group.attach_failed(&timers, now),
                }
            }
            // If it fails it was not attached: nothing is gained by trying again.
            (Wish::Detach { mgid, .. }, _) => {
                let at = self.groups.find(&mgid);
                if let Some(group) = at.and_then(|at| self.groups.get_mut(at)) {
                    group.attached = None;
                }
            }
            (Wish::Start { pkey_index, q_key }, Ok(_))
            | (Wish::Mend { pkey_index, q_key }, Ok(Outcome::Restarted)) => {
                self.qp = Qp::Running { pkey_index, q_key };
                self.qp_is_well();
            }
            (Wish::Mend { .. }, Ok(Outcome::Kept)) => self.qp_is_well(),
            (Wish::SetQKey(q_key), Ok(_)) => {
                if let Qp::Running { pkey_index, .. } = self.qp {
                    self.qp = Qp::Running { pkey_index, q_key };
                }
                self.qp_is_well();
            }
            (Wish::Start { .. } | Wish::Mend { .. } | Wish::SetQKey(_), Err(error)) => {
                self.qp = Qp::Stopped;
                self.qp_error = Some(error);
                self.qp_tries = self.qp_tries.saturating_add(1);
                self.qp_after = retry_at(self.qp_tries, &timers, now);
            }
        }
    }

    const fn qp_is_well(&mut self) {
        self.qp_error = None;
        self.qp_tries = 0;
    }

    /// Comes up when everything is in place; goes down only when something is really gone.
    fn update_up(&mut self) {
        if let (Qp::Running { pkey_index, .. }, Some(target)) = (self.qp, self.port.pkey_index)
            && pkey_index != target
        {
            self.qp = Qp::Stopped;
            self.mend = false;
        }
        let broadcast = self.groups.get(BROADCAST);
        let record = broadcast.and_then(|group| group.record);
        let attached = broadcast.is_some_and(|group| group.attached.is_some());
        let possible = self.admin_up && !self.device_failed && self.port.active;
        let up = match (self.qp, record) {
            (Qp::Running { pkey_index, q_key }, Some(record)) if possible => {
                let partition = self.port.pkey_index == Some(pkey_index);
                partition && (self.up || (attached && q_key == record.params.q_key))
            }
            _ => false,
        };
        if up && !self.up {
            count(&mut self.stats.ups);
        }
        if self.up && !up {
            self.paths.clear(); // the frames that wait there will be dropped
        }
        self.up = up;
    }

    /// Says what is due at `now`. Call again until it says [`Action::WaitUntil`]; calling early or late is harmless.
    /// Any context that may hold the link's lock; never blocks.
    pub fn poll(&mut self, now: Instant) -> Action {
        if now < self.next {
            return Action::WaitUntil(self.next);
        }
        self.expire(now);
        self.update_up();
        let state = (self.state(), self.port.gid);
        if self.told != Some(state) {
            self.told = Some(state);
            return Action::Changed(state.0);
        }
        if let Some(action) = self.unpark() {
            return action;
        }
        let qp_next = match self.qp_wish(now) {
            Ok(wish) => return self.wish(wish),
            Err(next) => next,
        };
        let mut next = match self.serve_groups(now) {
            Ok(next) => next,
            Err(action) => return action,
        };
        let may_ask = self.may_ask() && self.up;
        if may_ask && let Some((at, dgid)) = self.paths.due(now) {
            return self.query(at, dgid, now);
        }
        next = next.min(qp_next);
        next = next.min(self.paths.next(may_ask, &self.profile.timers));
        self.next = next;
        Action::WaitUntil(next)
    }

    fn expire(&mut self, now: Instant) {
        let timers = self.profile.timers;
        let lot = &self.lot;
        let parked = |at| lot.count(|waits| matches!(waits, Waits::Path(to, _) if to == at)) > 0;
        let mut timed_out = self.paths.expire(parked, &timers, now);
        for (.., group) in self.groups.iter_mut() {
            if group.is_overdue(now) {
                timed_out += 1;
                match group.phase {
                    Phase::Leaving => group.left(now),
                    _ => group.joined(Err(SaFailure::TimedOut), &timers, now),
                }
            }
            if group.idle_at(&timers).is_some_and(|idle| idle <= now) {
                group.sending = false;
                group.hasten(now);
            }
        }
        self.stats.sa_failures = self.stats.sa_failures.saturating_add(timed_out);
    }

    /// A parked frame whose fate is known.
    fn unpark(&mut self) -> Option<Action> {
        if self.lot.is_empty() {
            return None;
        }
        let (up, mending, port) = (self.up, self.is_mending(), self.port_number);
        let (groups, paths) = (&self.groups, &self.paths);
        let fate = |waits| match waits {
            _ if !up => Some(Err(DropCause::Down)),
            _ if mending => None,
            Waits::Path(at, _) => match paths.fate(at) {
                Fate::Use(attr) => Some(Ok((waits, attr))),
                Fate::Wait => None,
                Fate::Dead => Some(Err(DropCause::Unreachable)),
            },
            Waits::Group(at) => {
                let (Some(group), Some(mgid)) = (groups.get(at), groups.key(at)) else {
                    return Some(Err(DropCause::Unreachable));
                };
                match group.attr(mgid, port) {
                    Some(attr) => Some(Ok((waits, attr))),
                    None if group.dead => Some(Err(DropCause::Unreachable)),
                    None => None,
                }
            }
        };
        let (fate, frame) = self.lot.take(fate)?;
        let route = fate.and_then(|(waits, attr)| {
            let route = self.route_of(waits, attr);
            route.ok_or(DropCause::Down)
        });
        Some(match route {
            Ok(route) => Action::Send { frame, route },
            Err(cause) => {
                self.stats.dropped(cause);
                Action::Drop { frame, cause }
            }
        })
    }

    const fn wish(&mut self, wish: Wish) -> Action {
        self.wish = Some(wish);
        Action::Wish(wish)
    }

    /// What the QP needs, or else when it will need something.
    fn qp_wish(&mut self, now: Instant) -> Result<Wish, Instant> {
        if self.wish.is_some() || self.device_failed || !self.admin_up {
            return Err(Instant::NEVER);
        }
        let Some(pkey_index) = self.port.pkey_index else {
            return Err(Instant::NEVER);
        };
        let record = self.broadcast_record();
        let wanted = record.map_or(QKey(0), |record| record.params.q_key);
        let start = Wish::Start {
            pkey_index,
            q_key: wanted,
        };
        match self.qp {
            Qp::Stopped if self.qp_after <= now => Ok(start),
            Qp::Stopped => Err(self.qp_after),
            Qp::Running {
                pkey_index: old, ..
            } if old != pkey_index => {
                self.qp = Qp::Stopped;
                self.mend = false;
                Ok(start)
            }
            Qp::Running { pkey_index, q_key } if self.mend => {
                self.mend = false;
                count(&mut self.stats.repairs);
                Ok(Wish::Mend { pkey_index, q_key })
            }
            Qp::Running { q_key, .. } if record.is_some() && q_key != wanted => {
                Ok(Wish::SetQKey(wanted))
            }
            Qp::Running { .. } => Err(Instant::NEVER),
        }
    }

    fn outstanding(&self) -> usize {
        let waiting = |group: &Group| matches!(group.phase, Phase::Joining | Phase::Leaving);
        let groups = self
            .groups
            .iter()
            .filter(|(.., group)| waiting(group))
            .count();
        groups.saturating_add(self.paths.asking())
    }

    fn may_ask(&self) -> bool {
        let limit = usize::from(self.profile.sa_outstanding);
        self.port.active && self.outstanding() < limit
    }

    /// The first thing that a group needs, or else when one will need something.
    fn serve_groups(&mut self, now: Instant) -> Result<Instant, Action> {
        let timers = self.profile.timers;
        let record = self.broadcast_record();
        let mut around = Circumstances {
            up: self.admin_up && !self.device_failed,
            sa: self.port.active,
            may_ask: self.may_ask(),
            may_join: self.port.pkey_index.is_some() && !self.port.gid.is_none(),
            may_wish: self.wish.is_none() && !self.device_failed,
        };
        let mut next = Instant::NEVER;
        for at in (0..).take(self.groups.capacity()) {
            let (Some(mgid), Some(group)) = (self.groups.key(at), self.groups.get_mut(at)) else {
                continue;
            };
            match group.need(around, &timers, now) {
                Need::Wait(until) => next = next.min(until),
                Need::Detach(mlid) => return Err(self.wish(Wish::Detach { mgid, mlid })),
                Need::Attach(mlid) => return Err(self.wish(Wish::Attach { mgid, mlid })),
                Need::Join(join_state) => {
                    let refused = matches!(group.failure, Some(SaFailure::Refused { .. }));
                    let create = match at {
                        BROADCAST => self.profile.create_broadcast.filter(|_| refused),
                        _ => record.map(|record| record.params),
                    };
                    let request = JoinRequest {
                        mgid,
                        port_gid: self.port.gid,
                        p_key: self.p_key,
                        join_state,
                        create,
                    };
                    self.serial = self.serial.wrapping_add(1);
                    group.joining(join_state, self.serial, now.after(timers.sa_limit));
                    count(&mut self.stats.joins);
                    let ticket = Ticket::new(TicketOf::Group, at, self.serial);
                    return Err(Action::Join(ticket, request));
                }
                Need::Leave(join_state) => {
                    let request = LeaveRequest {
                        mgid,
                        port_gid: self.port.gid,
                        join_state,
                    };
                    self.serial = self.serial.wrapping_add(1);
                    group.leaving(self.serial, now.after(timers.sa_limit));
                    count(&mut self.stats.leaves);
                    let ticket = Ticket::new(TicketOf::Group, at, self.serial);
                    return Err(Action::Leave(ticket, request));
                }
                Need::Forget => {
                    // No frame may be left to whoever gets this place.
                    let waits = |waits| (waits == Waits::Group(at)).then_some(());
                    if let Some(((), frame)) = self.lot.take(waits) {
                        let cause = DropCause::Unreachable;
                        self.stats.dropped(cause);
                        return Err(Action::Drop { frame, cause });
                    }
                    self.groups.remove(at);
                }
            }
            // The others need the link that the first one defines.
            around.may_join &= record.is_some();
        }
        Ok(next)
    }

    fn query(&mut self, at: u16, dgid: Gid, now: Instant) -> Action {
        self.serial = self.serial.wrapping_add(1);
        let limit = now.after(self.profile.timers.sa_limit);
        self.paths.asked(at, self.serial, limit);
        count(&mut self.stats.path_queries);
        let record = self.broadcast_record();
        let query = PathQuery {
            dgid,
            sgid: self.port.gid,
            p_key: self.p_key,
            traffic_class: record.map_or(0, |record| record.params.traffic_class),
        };
        Action::QuerySa(Ticket::new(TicketOf::Path, at, self.serial), query)
    }
}
