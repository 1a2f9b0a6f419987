//! What a [`Link`] makes of what it is told. protocols 6.7.

use super::backoff::{retry_at, soon};
use super::event::{Done, Event, Outcome, PortView, Wish};
use super::group::{Group, Phase};
use super::link::{BROADCAST, Link, Qp};
use super::path::{Doubt, Heard};
use super::sa::{GroupAnswer, PathAnswer, SaFailure, Ticket, TicketOf};
use crate::room::Room;
use crate::stats::count;
use core_ib::Gid;
use core_ib::Instant;
use core_ib::verbs::{AhAttr, GlobalRoute, PortEvent, VerbsError};

impl<R: Room> Link<R> {
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
            Event::Left(ticket, answer) => self.leave_answered(ticket, answer, now),
            Event::SaFailed(ticket, failure) => match ticket.of() {
                Some((TicketOf::Path, ..)) => self.path_answered(ticket, Err(failure), now),
                _ if self.awaited(ticket, Phase::Leaving).is_some() => {
                    self.leave_answered(ticket, Err(failure), now);
                }
                _ => self.join_answered(ticket, Err(failure), now),
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

    fn leave_answered(&mut self, ticket: Ticket, answer: Result<(), SaFailure>, now: Instant) {
        match self.awaited(ticket, Phase::Leaving) {
            Some(group) => {
                group.left(now);
                self.note_failure(answer.err());
            }
            None => count(&mut self.stats.stale_answers),
        }
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
        if matches!(done.wish, Wish::Mend { .. }) {
            // One that breaks again and again must not keep its owner busy.
            let lately = self.mended.is_some_and(|at| now < at.after(timers.backoff));
            self.mend_after = if lately { soon(&timers, now) } else { now };
            self.mended = Some(now);
        }
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
    pub(super) fn update_up(&mut self) {
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
}
