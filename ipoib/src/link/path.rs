//! The path cache: from a peer's GID to the address vector of the path that the SA gave.
//!
//! A path is asked for when a frame first needs it, asked for anew when it is old or something happened to the subnet,
//! and forgotten when nobody uses it. Three degrees of trust: *settled* is used; *old* is used while the SA is asked
//! again, for where nothing says that it is wrong; *invalid* is not used, for a frame sent to a LID that has a new
//! owner reaches a stranger. protocols 6.5, 6.7.

use super::backoff::{retry_at, soon};
use super::sa::SaFailure;
use crate::keyed::Keyed;
use crate::profile::Timers;
use crate::room::Room;
use core_ib::platform::PlatformError;
use core_ib::verbs::AhAttr;
use core_ib::{Gid, Instant};

/// Tries until a path counts as unreachable.
const TRIES: u8 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// To be asked for, not before the deadline.
    Due,
    /// Asked for under the serial number; given up at the deadline.
    Asking,
    /// Nothing to do.
    Settled,
    /// Nobody knows a path; to be asked for again if a frame comes after the deadline.
    Failed,
}

/// One destination.
struct Path {
    phase: Phase,
    /// The path, if it may be used.
    attr: Option<AhAttr>,
    serial: u32,
    deadline: Instant,
    tries: u8,
    /// A frame that comes then or later has it asked for anew.
    refresh: Instant,
    last_used: Instant,
}

/// What there is for a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lookup {
    /// Use this, kept at this place.
    Use(u16, AhAttr),
    /// It is being found out, at this place.
    Wait(u16),
    /// Nobody knows.
    Unreachable,
    /// All places are being found out.
    Full,
}

/// What became of the place that a parked frame waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// Go.
    Use(AhAttr),
    /// Go on waiting.
    Wait,
    /// Give up.
    Dead,
}

/// Is this answer to a question of ours?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// It was waited for.
    Noted,
    /// Nobody waits for it.
    Stale,
}

/// How much an event says against the paths known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doubt {
    /// They may be old.
    Old,
    /// They may be wrong.
    Invalid,
}

/// The cache.
pub(super) struct Paths<R: Room> {
    table: Keyed<R, Gid, Path>,
}

impl<R: Room> Paths<R> {
    pub(super) fn new(room: &R, capacity: u16) -> Result<Self, PlatformError> {
        Ok(Self {
            table: Keyed::new(room, capacity)?,
        })
    }

    pub(super) fn capacity(&self) -> usize {
        self.table.capacity()
    }

    /// The path to `gid` for a frame; starts finding it out where needed. `parked` says whether frames wait at a
    /// place, which is then not given to another.
    pub(super) fn lookup(
        &mut self,
        gid: Gid,
        parked: impl Fn(u16) -> bool,
        now: Instant,
    ) -> Lookup {
        let Some(at) = self.table.find(&gid) else {
            return self
                .begin(gid, parked, now)
                .map_or(Lookup::Full, Lookup::Wait);
        };
        let Some(path) = self.table.get_mut(at) else {
            return Lookup::Full; // not after `find`
        };
        path.last_used = now;
        match path.phase {
            Phase::Settled if now >= path.refresh => path.ask(now),
            Phase::Failed if now < path.deadline => return Lookup::Unreachable,
            Phase::Failed => path.ask(now),
            _ => {}
        }
        path.attr
            .map_or(Lookup::Wait(at), |attr| Lookup::Use(at, attr))
    }

    fn begin(&mut self, gid: Gid, parked: impl Fn(u16) -> bool, now: Instant) -> Option<u16> {
        let path = Path {
            phase: Phase::Due,
            attr: None,
            serial: 0,
            deadline: now,
            tries: 0,
            refresh: now,
            last_used: now,
        };
        if self.table.iter().count() == self.table.capacity() {
            // One that is asked for beside its use can be asked for again.
            let resolved = |path: &Path| path.attr.is_some() || path.phase == Phase::Failed;
            let idle = self
                .table
                .iter()
                .filter(|(at, _, path)| resolved(path) && !parked(*at));
            let (victim, ..) = idle.min_by_key(|(.., path)| path.last_used)?;
            self.table.remove(victim);
        }
        self.table.insert(gid, path)
    }

    /// Is the path at `at` to be asked for?
    pub(super) fn is_due(&self, at: u16) -> bool {
        self.table
            .get(at)
            .is_some_and(|path| path.phase == Phase::Due)
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        for at in (0..).take(self.table.capacity()) {
            self.table.remove(at);
        }
    }

    /// A path to be asked for now.
    pub(super) fn due(&self, now: Instant) -> Option<(u16, Gid)> {
        let mut all = self.table.iter();
        all.find(|(.., path)| path.phase == Phase::Due && path.deadline <= now)
            .map(|(at, gid, _)| (at, *gid))
    }

    /// It was asked for, under `serial`; no answer by `limit` counts as one.
    pub(super) fn asked(&mut self, at: u16, serial: u32, limit: Instant) {
        if let Some(path) = self.table.get_mut(at) {
            path.phase = Phase::Asking;
            path.serial = serial;
            path.deadline = limit;
        }
    }

    /// How many questions are outstanding.
    pub(super) fn asking(&self) -> usize {
        let asking = |(_, _, path): &(u16, &Gid, &Path)| path.phase == Phase::Asking;
        self.table.iter().filter(asking).count()
    }

    /// The answer to the question `serial` about the place `at`.
    pub(super) fn answer(
        &mut self,
        at: u16,
        serial: u32,
        answer: Result<AhAttr, SaFailure>,
        timers: &Timers,
        now: Instant,
    ) -> Heard {
        match self.table.get_mut(at) {
            Some(path) if path.phase == Phase::Asking && path.serial == serial => {
                path.answered(answer, timers, now);
                Heard::Noted
            }
            _ => Heard::Stale,
        }
    }

    /// Something happened that concerns every path.
    pub(super) fn doubt(&mut self, doubt: Doubt, now: Instant) {
        for (.., path) in self.table.iter_mut() {
            path.doubt(doubt, now);
        }
    }

    /// Something happened that concerns the path to `gid`.
    pub(super) fn suspect(&mut self, gid: Gid, now: Instant) {
        if let Some(at) = self.table.find(&gid)
            && let Some(path) = self.table.get_mut(at)
        {
            path.doubt(Doubt::Invalid, now);
        }
    }

    /// Destination at `at`.
    pub(super) fn gid(&self, at: u16) -> Option<Gid> {
        self.table.key(at)
    }

    /// What becomes of a frame that waits at `at`.
    pub(super) fn fate(&self, at: u16) -> Fate {
        match self.table.get(at) {
            Some(Path {
                attr: Some(attr), ..
            }) => Fate::Use(*attr),
            Some(path) if path.phase != Phase::Failed => Fate::Wait,
            _ => Fate::Dead,
        }
    }

    /// Counts those without answer as timed out, returning how many, and forgets those not used for long, unless
    /// frames are `parked` there.
    pub(super) fn expire(
        &mut self,
        parked: impl Fn(u16) -> bool,
        timers: &Timers,
        now: Instant,
    ) -> u64 {
        let mut timed_out = 0;
        for at in (0..).take(self.table.capacity()) {
            let Some(path) = self.table.get_mut(at) else {
                continue;
            };
            if path.phase == Phase::Asking && path.deadline <= now {
                path.answered(Err(SaFailure::TimedOut), timers, now);
                timed_out += 1;
            }
            if path.idle_at(timers).is_some_and(|idle| idle <= now) && !parked(at) {
                self.table.remove(at);
            }
        }
        timed_out
    }

    /// When something is to be done next. `may_ask`: asking is allowed.
    pub(super) fn next(&self, may_ask: bool, timers: &Timers) -> Instant {
        let of = |path: &Path| match path.phase {
            Phase::Due if !may_ask => Instant::NEVER,
            Phase::Due | Phase::Asking => path.deadline,
            Phase::Settled | Phase::Failed => path.idle_at(timers).unwrap_or(Instant::NEVER),
        };
        let all = self.table.iter().map(|(.., path)| of(path));
        all.fold(Instant::NEVER, Instant::min)
    }
}

impl Path {
    /// To be asked for; what is usable stays so.
    fn ask(&mut self, now: Instant) {
        self.phase = Phase::Due;
        self.deadline = now;
        if self.attr.is_none() {
            self.tries = 0;
        }
    }

    fn doubt(&mut self, doubt: Doubt, now: Instant) {
        if doubt == Doubt::Invalid {
            self.attr = None;
        }
        match (self.phase, doubt) {
            // An answer on its way may be of the time before.
            (Phase::Due | Phase::Asking, _) => self.ask(now),
            // Asked for on the next use.
            (Phase::Settled, Doubt::Old) => self.refresh = now,
            (Phase::Settled, Doubt::Invalid) => self.fail(now),
            (Phase::Failed, _) => self.deadline = now,
        }
    }

    /// No path; the next frame after `until` asks.
    fn fail(&mut self, until: Instant) {
        self.phase = Phase::Failed;
        self.deadline = until;
        self.attr = None;
    }

    fn answered(&mut self, answer: Result<AhAttr, SaFailure>, timers: &Timers, now: Instant) {
        match answer {
            Ok(attr) => {
                self.phase = Phase::Settled;
                self.attr = Some(attr);
                self.refresh = now.after(timers.path_refresh);
                self.tries = 0;
            }
            Err(SaFailure::NotSent) => {
                self.phase = Phase::Due;
                self.deadline = soon(timers, now);
            }
            Err(failure) => {
                self.tries = self.tries.saturating_add(1);
                let again = retry_at(self.tries, timers, now);
                let refused = matches!(failure, SaFailure::Refused { .. });
                if self.attr.is_some() && !refused {
                    // An SA that is silent, between two masters say, is no reason to stop.
                    self.phase = Phase::Settled;
                    self.refresh = again;
                } else if refused || self.tries >= TRIES {
                    self.fail(again);
                } else {
                    self.phase = Phase::Due;
                    self.deadline = again;
                }
            }
        }
    }

    /// When it is forgotten, if it rests.
    fn idle_at(&self, timers: &Timers) -> Option<Instant> {
        let rests = matches!(self.phase, Phase::Settled | Phase::Failed);
        rests.then(|| self.last_used.after(timers.path_idle))
    }
}
