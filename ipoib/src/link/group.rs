//! One multicast group of a link: what we want of it, what the SA made of that, what the QP is attached to.
//!
//! A group is wanted by listeners (full member, attached), by frames sent to it (send-only member), or no longer
//! (detached, left). The record of a group stays in use while the membership is renewed; it goes only when the port
//! leaves Active or when we leave. Requests for one group are outstanding one at a time, so that the SA cannot see a
//! leave behind the join that followed it. protocols 4.6, 6.4.

use super::backoff::{retry_at, soon};
use super::sa::{GroupAnswer, SaFailure};
use crate::profile::Timers;
use core_ib::verbs::{AhAttr, GlobalRoute};
use core_ib::wire::mad::JoinState;
use core_ib::{Gid, Instant, Lid};

/// Tries until frames no longer wait for a group.
const TRIES: u8 = 2;

/// Where the dealings with the SA stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Something may be to be asked, not before the deadline.
    Due,
    /// A join was asked for; given up at the deadline.
    Joining,
    /// As the SA answered.
    Joined,
    /// A leave was asked for; given up at the deadline.
    Leaving,
}

/// What is to be done about a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// Nothing before this instant.
    Wait(Instant),
    /// Join as this.
    Join(JoinState),
    /// Detach from this LID.
    Detach(Lid),
    /// Attach to this LID.
    Attach(Lid),
    /// Leave as this.
    Leave(JoinState),
    /// Forget it.
    Forget,
}

/// What holds for every group of the link at the moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Circumstances {
    /// The SA can be asked, so far as we know.
    pub(super) sa: bool,
    /// The SA may be asked now: not too much is outstanding.
    pub(super) may_ask: bool,
    /// Joining has a chance.
    pub(super) may_join: bool,
    /// Groups are wanted at all.
    pub(super) up: bool,
    /// A wish may be made.
    pub(super) may_wish: bool,
}

/// One group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group {
    /// How often somebody asked to receive.
    pub(super) listeners: u16,
    /// Frames were sent to it.
    pub(super) sending: bool,
    /// Never forgotten: the broadcast group.
    pub(super) pinned: bool,
    pub(super) phase: Phase,
    pub(super) serial: u32,
    deadline: Instant,
    tries: u8,
    /// Usable for sending.
    pub(super) record: Option<GroupAnswer>,
    /// What the SA holds us for, or may: a join whose answer was lost counts.
    member: JoinState,
    /// LID with which the QP is attached.
    pub(super) attached: Option<Lid>,
    /// No attaching before this: the last one failed.
    attach_after: Instant,
    /// The SA does not know send-only full members.
    no_send_only_full: bool,
    /// Frames do not wait for it any more.
    pub(super) dead: bool,
    pub(super) last_used: Instant,
    /// Why the last join failed.
    pub(super) failure: Option<SaFailure>,
}

impl Group {
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            listeners: 0,
            sending: false,
            pinned: false,
            phase: Phase::Due,
            serial: 0,
            deadline: now,
            tries: 0,
            record: None,
            member: JoinState::empty(),
            attached: None,
            attach_after: Instant(0),
            no_send_only_full: false,
            dead: false,
            last_used: now,
            failure: None,
        }
    }

    /// The broadcast group, to which the link itself listens.
    pub(super) const fn broadcast() -> Self {
        let mut group = Self::new(Instant(0));
        group.listeners = 1;
        group.pinned = true;
        group
    }

    /// What we want to be.
    fn wanted(&self, up: bool) -> JoinState {
        match (up, self.listeners, self.sending) {
            (true, 1.., _) => JoinState::FULL_MEMBER,
            (true, 0, true) if self.no_send_only_full => JoinState::SEND_ONLY_NON_MEMBER,
            (true, 0, true) => JoinState::SEND_ONLY_FULL_MEMBER,
            _ => JoinState::empty(),
        }
    }

    /// A group of which nothing is left.
    pub(super) fn is_idle(&self) -> bool {
        self.phase == Phase::Due && self.member.is_empty() && self.attached.is_none()
    }

    /// A frame is to go there.
    pub(super) fn touch(&mut self, now: Instant) {
        self.last_used = now;
        self.sending |= self.listeners == 0;
        if self.dead && self.phase == Phase::Due && self.deadline <= now {
            self.dead = false;
        }
    }

    /// The group is wanted (more) from now on: what is due is due at once.
    pub(super) fn hasten(&mut self, now: Instant) {
        if self.phase == Phase::Due {
            self.deadline = now;
        }
        self.tries = 0;
        self.dead = false;
    }

    /// The membership may be lost: renewed, and used meanwhile.
    pub(super) fn renew(&mut self, now: Instant) {
        self.no_send_only_full = false; // maybe another SA
        if self.phase != Phase::Leaving {
            self.phase = Phase::Due; // an answer on its way is of the time before
            self.hasten(now);
        }
    }

    /// The membership is lost.
    pub(super) fn lose(&mut self, now: Instant) {
        self.record = None;
        self.failure = None;
        if self.phase != Phase::Leaving {
            self.member = JoinState::empty();
        }
        self.renew(now);
    }

    /// What is to be done at `now`.
    pub(super) fn need(&self, around: Circumstances, timers: &Timers, now: Instant) -> Need {
        let wanted = self.wanted(around.up);
        match self.phase {
            Phase::Joining | Phase::Leaving => Need::Wait(self.deadline),
            _ if wanted.is_empty() => self.farewell(around),
            Phase::Joined if !self.member.contains(wanted) => {
                self.due(wanted, around, now, timers, now)
            }
            Phase::Joined => self.presence(around, timers, now),
            Phase::Due => self.due(wanted, around, self.deadline, timers, now),
        }
    }

    fn due(
        &self,
        wanted: JoinState,
        around: Circumstances,
        at: Instant,
        timers: &Timers,
        now: Instant,
    ) -> Need {
        let asleep = self.dead && self.listeners == 0; // until the next frame
        let idle = self.idle_at(timers).unwrap_or(Instant::NEVER);
        match around.sa && around.may_ask && around.may_join && !asleep {
            true if at <= now => Need::Join(wanted),
            true => Need::Wait(at.min(idle)),
            false => Need::Wait(idle),
        }
    }

    /// It is not wanted: detach, leave, forget.
    fn farewell(&self, around: Circumstances) -> Need {
        match self.attached {
            Some(mlid) if around.may_wish => return Need::Detach(mlid),
            Some(_) => return Need::Wait(Instant::NEVER),
            None => {}
        }
        match (self.member.is_empty(), around.sa, around.may_ask) {
            (false, true, true) => Need::Leave(self.member),
            (false, ..) => Need::Wait(Instant::NEVER),
            (true, ..) if self.pinned || self.listeners > 0 => Need::Wait(Instant::NEVER),
            (true, ..) => Need::Forget,
        }
    }

    /// It is joined: be attached if there are listeners, and only then.
    fn presence(&self, around: Circumstances, timers: &Timers, now: Instant) -> Need {
        let target = self.record.filter(|_| self.listeners > 0);
        match (self.attached, target.map(|record| record.mlid)) {
            (Some(old), new) if new != Some(old) && around.may_wish => Need::Detach(old),
            (None, Some(mlid)) if around.may_wish && self.attach_after <= now => Need::Attach(mlid),
            (None, Some(_)) if around.may_wish => Need::Wait(self.attach_after),
            _ => Need::Wait(self.idle_at(timers).unwrap_or(Instant::NEVER)),
        }
    }

    /// When it is given up for not being sent to.
    pub(super) fn idle_at(&self, timers: &Timers) -> Option<Instant> {
        let only_sent_to = self.sending && self.listeners == 0 && !self.pinned;
        only_sent_to.then(|| self.last_used.after(timers.group_idle))
    }

    /// A join as `asked` was asked for under `serial`; no answer by `limit` counts as one.
    pub(super) fn joining(&mut self, asked: JoinState, serial: u32, limit: Instant) {
        self.member |= asked;
        (self.phase, self.serial, self.deadline) = (Phase::Joining, serial, limit);
    }

    /// A leave was asked for under `serial`; no answer by `limit` counts as one.
    pub(super) fn leaving(&mut self, serial: u32, limit: Instant) {
        (self.phase, self.serial, self.deadline) = (Phase::Leaving, serial, limit);
        self.record = None;
    }

    /// The limit of a request has passed.
    pub(super) fn is_overdue(&self, now: Instant) -> bool {
        matches!(self.phase, Phase::Joining | Phase::Leaving) && self.deadline <= now
    }

    /// The answer to a join.
    pub(super) fn joined(
        &mut self,
        answer: Result<GroupAnswer, SaFailure>,
        timers: &Timers,
        now: Instant,
    ) {
        self.failure = answer.err();
        match answer {
            Ok(record) => {
                self.phase = Phase::Joined;
                self.record = Some(record);
                self.member = record.join_state;
                self.tries = 0;
                self.dead = false;
            }
            Err(SaFailure::NotSent) => {
                self.phase = Phase::Due;
                self.deadline = soon(timers, now);
            }
            Err(SaFailure::Refused { .. }) if self.may_ask_for_less() => {
                self.no_send_only_full = true;
                self.phase = Phase::Due;
                self.deadline = now;
            }
            Err(_) => {
                self.phase = Phase::Due;
                self.tries = self.tries.saturating_add(1);
                self.deadline = retry_at(self.tries, timers, now);
                self.dead = self.record.is_none() && self.tries >= TRIES;
            }
        }
    }

    /// We wanted to be send-only full member, which an older SA does not know. protocols 4.10.
    const fn may_ask_for_less(&self) -> bool {
        self.listeners == 0 && self.sending && !self.no_send_only_full
    }

    /// The answer to a leave, whatever it was: if the SA does not know it yet, its own sweep will.
    pub(super) fn left(&mut self, now: Instant) {
        self.member = JoinState::empty();
        self.record = None;
        self.phase = Phase::Due;
        self.deadline = now;
        self.tries = 0;
    }

    /// Attaching failed.
    pub(super) fn attach_failed(&mut self, timers: &Timers, now: Instant) {
        self.attach_after = now.after(timers.backoff_limit);
    }

    /// Address vector of frames to it, leaving by `port`. Always with a GRH. protocols 4.6.
    pub(super) fn attr(&self, mgid: Gid, port: u8) -> Option<AhAttr> {
        let record = self.record?;
        Some(AhAttr {
            port,
            dlid: record.mlid,
            sl: record.params.sl,
            src_path_bits: 0,
            static_rate: record.params.rate,
            grh: Some(GlobalRoute {
                dgid: mgid,
                sgid_index: 0,
                flow_label: record.params.flow_label.get(),
                hop_limit: record.params.hop_limit,
                traffic_class: record.params.traffic_class,
            }),
        })
    }
}
