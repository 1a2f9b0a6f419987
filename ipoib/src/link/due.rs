//! What is due on a [`Link`].

use super::event::{Action, DropCause, Wish};
use super::group::{Circumstances, Group, Need, Phase};
use super::link::{BROADCAST, Link, Qp, Waits};
use super::path::Fate;
use super::sa::{JoinRequest, LeaveRequest, PathQuery, SaFailure, Ticket, TicketOf};
use crate::room::Room;
use crate::stats::count;
use core_ib::{Gid, Instant, QKey};

impl<R: Room> Link<R> {
    /// Says what is due at `now`. Call again until it says [`Action::WaitUntil`]; calling early or late is harmless.
    /// Any context that may hold the link's lock; never blocks.
    pub fn poll(&mut self, now: Instant) -> Action {
        let now = now.on_the_clock();
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
            Qp::Running { .. } if self.mend && now < self.mend_after => Err(self.mend_after),
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
