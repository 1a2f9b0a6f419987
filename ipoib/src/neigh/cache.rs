//! The neighbour cache: from an IP address on the link to a 20-byte link-layer address.
//!
//! States and times are those of RFC 4861, 7.3, for IPv4 as well: an address is used while it is doubted and probed,
//! and replaced at once when its owner says that it has another. What ARP and neighbour discovery heard comes in as a
//! [`Report`]; what is to be asked comes out as a [`Solicit`].

use crate::keyed::Keyed;
use crate::profile::Timers;
use crate::room::Room;
use core::net::IpAddr;
use core_ib::Instant;
use core_ib::platform::PlatformError;
use core_ib::wire::ipoib::LinkAddress;

/// Solicitations of a kind before giving up. RFC 4861, 10.
const TRIES: u8 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Being asked for, from everybody.
    Incomplete,
    /// Confirmed until the deadline.
    Reachable,
    /// Not confirmed of late.
    Stale,
    /// In use and not confirmed; probed from the deadline on.
    Delay,
    /// Being asked whether it is still there.
    Probe,
    /// Nobody answered; asked for again if a packet comes after the deadline.
    Failed,
}

struct Neighbour {
    phase: Phase,
    address: Option<LinkAddress>,
    deadline: Instant,
    tries: u8,
    last_used: Instant,
}

/// What there is for a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Send it there; the neighbour has this place.
    Use(u16, LinkAddress),
    /// It is being found out.
    Wait(u16),
    /// It does not answer.
    Unreachable,
    /// All places are being found out.
    Full,
}

/// What was heard of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Report {
    /// Its address, if it was said.
    pub(super) address: Option<LinkAddress>,
    /// It answered us, so the way there and back works.
    pub(super) confirms: bool,
    /// The address replaces what is known.
    pub(super) replaces: bool,
    /// Take note even if we did not ask: it is about to need us.
    pub(super) creates: bool,
}

/// What is to be asked about a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Solicit {
    /// Everybody.
    All(IpAddr),
    /// Itself.
    Only(IpAddr, LinkAddress),
    /// Nothing yet, but it does not answer at its address.
    Doubt(LinkAddress),
}

/// See the module.
pub(super) struct Neighbours<R: Room> {
    table: Keyed<R, IpAddr, Neighbour>,
}

impl<R: Room> Neighbours<R> {
    pub(super) fn new(room: &R, capacity: u16) -> Result<Self, PlatformError> {
        Ok(Self {
            table: Keyed::new(room, capacity)?,
        })
    }

    /// Where to send a packet to the neighbour `ip`; starts finding it out where needed. `parked` says whether packets
    /// wait at a place, which is then not given to another.
    pub(super) fn lookup(
        &mut self,
        ip: IpAddr,
        parked: impl Fn(u16) -> bool,
        timers: &Timers,
        now: Instant,
    ) -> Found {
        let at = match self.table.find(&ip) {
            Some(at) => Some(at),
            None => self.insert(ip, parked, now),
        };
        let Some((at, entry)) = at.and_then(|at| Some((at, self.table.get_mut(at)?))) else {
            return Found::Full;
        };
        entry.last_used = now;
        match entry.phase {
            Phase::Reachable if entry.deadline > now => {}
            Phase::Reachable | Phase::Stale => {
                entry.phase = Phase::Delay;
                entry.deadline = now.after(timers.delay);
            }
            Phase::Failed if entry.deadline > now => return Found::Unreachable,
            Phase::Failed => entry.ask_all(now),
            Phase::Incomplete | Phase::Delay | Phase::Probe => {}
        }
        entry
            .address
            .map_or(Found::Wait(at), |address| Found::Use(at, address))
    }

    /// A new entry, in place of the one not used for longest if need be.
    fn insert(&mut self, ip: IpAddr, parked: impl Fn(u16) -> bool, now: Instant) -> Option<u16> {
        if self.table.iter().count() == self.table.capacity() {
            // One that is only doubted can be asked for again.
            let resolved = |entry: &Neighbour| entry.phase != Phase::Incomplete;
            let idle = self
                .table
                .iter()
                .filter(|(at, _, entry)| resolved(entry) && !parked(*at));
            let (victim, ..) = idle.min_by_key(|(.., entry)| entry.last_used)?;
            self.table.remove(victim);
        }
        let entry = Neighbour {
            phase: Phase::Incomplete,
            address: None,
            deadline: now,
            tries: 0,
            last_used: now,
        };
        self.table.insert(ip, entry)
    }

    /// Something was heard of `ip`. RFC 4861, 7.2.3 to 7.2.5; RFC 826.
    pub(super) fn heard(
        &mut self,
        ip: IpAddr,
        report: Report,
        parked: impl Fn(u16) -> bool,
        timers: &Timers,
        now: Instant,
    ) {
        let known = self.table.find(&ip);
        let at = match known {
            None if report.creates && report.address.is_some() => self.insert(ip, parked, now),
            known => known,
        };
        if let Some(entry) = at.and_then(|at| self.table.get_mut(at)) {
            entry.heard(report, timers, now);
        }
    }

    /// The neighbour's address, if it is known; this is no use of it.
    pub(super) fn peek(&mut self, ip: IpAddr) -> Option<LinkAddress> {
        let at = self.table.find(&ip)?;
        self.table.get(at)?.address
    }

    /// What becomes of a packet that waits at `at`: `None` waits on, `Some(None)` is dropped.
    pub(super) fn fate(&self, at: u16) -> Option<Option<LinkAddress>> {
        match self.table.get(at) {
            Some(entry) if entry.address.is_some() => Some(entry.address),
            Some(entry) if entry.phase != Phase::Failed => None,
            _ => Some(None),
        }
    }

    /// What is to be asked at `now`. Call again until there is nothing.
    pub(super) fn solicit(&mut self, timers: &Timers, now: Instant) -> Option<Solicit> {
        let mut all = self.table.iter_mut();
        all.find_map(|(_, ip, entry)| entry.solicit(ip, timers, now))
    }

    /// Forgets those not used for long, unless packets are `parked` there.
    pub(super) fn expire(&mut self, parked: impl Fn(u16) -> bool, timers: &Timers, now: Instant) {
        for at in (0..).take(self.table.capacity()) {
            let entry = self.table.get(at);
            if entry.is_some_and(|entry| entry.idle_at(timers) <= now) && !parked(at) {
                self.table.remove(at);
            }
        }
    }

    /// The link was down: nothing is confirmed any more, and nobody is waited for.
    pub(super) fn doubt_all(&mut self, now: Instant) {
        for (.., entry) in self.table.iter_mut() {
            match entry.phase {
                Phase::Incomplete | Phase::Failed => entry.fail(now),
                _ => entry.phase = Phase::Stale,
            }
        }
    }

    /// When something is to be done next.
    pub(super) fn next(&self, timers: &Timers) -> Instant {
        let of = |entry: &Neighbour| match entry.phase {
            Phase::Incomplete | Phase::Delay | Phase::Probe => entry.deadline,
            Phase::Reachable | Phase::Stale | Phase::Failed => entry.idle_at(timers),
        };
        let all = self.table.iter().map(|(.., entry)| of(entry));
        all.fold(Instant::NEVER, Instant::min)
    }
}

impl Neighbour {
    /// Is nothing to be asked about it?
    const fn rests(&self) -> bool {
        matches!(self.phase, Phase::Reachable | Phase::Stale | Phase::Failed)
    }

    fn idle_at(&self, timers: &Timers) -> Instant {
        if self.rests() {
            self.last_used.after(timers.neighbour_idle)
        } else {
            Instant::NEVER
        }
    }

    fn ask_all(&mut self, now: Instant) {
        self.phase = Phase::Incomplete;
        self.address = None;
        self.deadline = now;
        self.tries = 0;
    }

    fn fail(&mut self, until: Instant) {
        self.phase = Phase::Failed;
        self.address = None;
        self.deadline = until;
    }

    fn heard(&mut self, report: Report, timers: &Timers, now: Instant) {
        let changes = report.address.is_some() && report.address != self.address;
        if self.address.is_none() && report.address.is_none() {
            return; // an answer that does not say where
        }
        if changes && self.address.is_some() && !report.replaces {
            // Somebody else answers for it as well; who we know is doubted, and kept.
            if self.phase == Phase::Reachable {
                self.phase = Phase::Stale;
            }
            return;
        }
        self.address = report.address.or(self.address);
        if report.confirms {
            self.phase = Phase::Reachable;
            self.deadline = now.after(timers.reachable);
        } else if changes {
            self.phase = Phase::Stale;
        }
    }

    fn solicit(&mut self, ip: IpAddr, timers: &Timers, now: Instant) -> Option<Solicit> {
        if now < self.deadline {
            return None;
        }
        if self.phase == Phase::Delay {
            self.phase = Phase::Probe;
            self.tries = 0;
        }
        let again = now.after(timers.retransmit);
        match (self.phase, self.address) {
            (Phase::Incomplete, _) if self.tries >= TRIES => {
                self.fail(again);
                None
            }
            (Phase::Incomplete, _) => {
                self.tries += 1;
                self.deadline = again;
                Some(Solicit::All(ip))
            }
            (Phase::Probe, Some(address)) if self.tries < TRIES => {
                self.tries += 1;
                self.deadline = again;
                Some(Solicit::Only(ip, address))
            }
            (Phase::Probe, Some(address)) => {
                self.ask_all(now); // it may live elsewhere now
                Some(Solicit::Doubt(address))
            }
            _ => None,
        }
    }
}
