//! What is due: messages, transitions of QPs, news, and what is not answered in time. protocols 5.9.

use crate::ask::{CmNext, Event};
use crate::cm::Cm;
use crate::conn::{Conn, ConnId, Failure, LapState, Note, State};
use crate::listen::ListenerId;
use crate::message::mad_of;
use crate::migrate::apr;
use crate::qp::{Granted, Step, Wish};
use crate::store::{ConnPlace, Store};
use crate::user::{dreq_of, leave, rej_of, rep_goes, rtu_goes, timeout_rej};
use core_ib::wire::mad::{AprStatus, RejReason};
use core_ib::{Guid, Instant};
use ib_mad::Outgoing;

impl<S: Store> Cm<S> {
    /// Says what is due at `now`. Call again after everything but [`CmNext::WaitUntil`], and at the instant that it names;
    /// calling early or late is harmless.
    pub fn poll(&mut self, now: Instant) -> CmNext {
        let now = now.on_the_clock();
        if !self.dirty && now < self.wake {
            return CmNext::WaitUntil(self.wake);
        }
        self.dirty = true;
        if let Some(outgoing) = self.replies.pop_front() {
            self.statistics.sent = self.statistics.sent.saturating_add(1);
            return CmNext::Send(outgoing);
        }
        let ca_guid = self.ca_guid;
        let mut wake = Instant::NEVER;
        let mut next = None;
        for place in self.store.conns_mut() {
            let Some(conn) = &mut place.0 else {
                continue;
            };
            if conn.note.is_none() && now >= conn.deadline && late(conn, ca_guid, now) {
                self.statistics.repeated = self.statistics.repeated.saturating_add(1);
            }
            if conn.is_over() {
                let gone = (!conn.orphan).then_some(Event::Gone {
                    conn: ConnId(conn.id),
                    cookie: conn.cookie,
                });
                *place = ConnPlace(None);
                match gone {
                    Some(event) => return CmNext::Event(event),
                    None => continue,
                }
            }
            next = due(conn);
            if next.is_some() {
                break;
            }
            wake = wake.min(conn.deadline);
        }
        let next = next.or_else(|| self.service_due(now, &mut wake));
        if let Some(next) = next {
            if matches!(next, CmNext::Send(_)) {
                self.statistics.sent = self.statistics.sent.saturating_add(1);
            }
            return next;
        }
        self.dirty = false;
        self.wake = wake;
        CmNext::WaitUntil(wake)
    }

    /// A wish was carried out, or not. Never blocks.
    pub fn granted(&mut self, granted: &Granted, now: Instant) {
        let now = now.on_the_clock();
        let tid = self.fresh_tid();
        self.dirty = true;
        let Some(conn) = self.find_mut(granted.id) else {
            return;
        };
        if !conn.wish_out || conn.wish != Some(granted.step) {
            return;
        }
        (conn.wish, conn.wish_out) = (None, false);
        let about = conn.received;
        match (granted.step, conn.state, granted.result) {
            (Step::Rtr, State::ReqRcvd | State::MraReqSent, Ok(())) => rep_goes(conn, now),
            (Step::Rtr, State::RepRcvd | State::MraRepSent, Ok(())) => conn.wish = Some(Step::Rts),
            (Step::Rts, State::RepRcvd | State::MraRepSent, Ok(())) => rtu_goes(conn),
            (Step::Rts, State::Established, Ok(())) => conn.tell(Note::Established, &about),
            (Step::Rearm, State::Established, Ok(())) if conn.lap == LapState::Loading => {
                apr(conn, AprStatus::OK);
            }
            (Step::Rearm, State::Established, Ok(())) => conn.tell(Note::PathAnswered, &about),
            (Step::Rearm, State::Established, Err(error)) => {
                conn.facts.alternate = None;
                if conn.lap == LapState::Loading {
                    apr(conn, AprStatus::REJECTED);
                } else {
                    conn.tell(Note::PathFailed(Failure::Qp(error)), &about);
                }
            }
            (Step::Rts, State::Established, Err(error)) => {
                let dreq = dreq_of(conn);
                leave(conn, tid, &dreq, now);
                conn.tell(Note::Failed(Failure::Qp(error)), &about);
            }
            (
                Step::Rtr | Step::Rts,
                State::ReqRcvd | State::MraReqSent | State::RepRcvd | State::MraRepSent,
                Err(error),
            ) => {
                let rej = rej_of(conn, RejReason::NO_RESOURCES);
                conn.answer(mad_of(conn.tid, &rej));
                conn.tell(Note::Failed(Failure::Qp(error)), &about);
                conn.end(now);
            }
            // Overtaken by events: the connection is at its end.
            _ => {}
        }
    }
}

/// The time is up. `true` if something is repeated.
fn late(conn: &mut Conn, ca_guid: Guid, now: Instant) -> bool {
    let asks = matches!(
        conn.state,
        State::ReqSent
            | State::MraReqRcvd
            | State::RepSent
            | State::MraRepRcvd
            | State::DreqSent
            | State::Established
    );
    if !asks {
        conn.deadline = Instant::NEVER;
        if conn.state == State::Timewait {
            conn.state = State::Idle;
        }
        return false;
    }
    if conn.retries_left > 0 {
        conn.retries_left = conn.retries_left.saturating_sub(1);
        conn.request_due = true;
        conn.deadline = now.after(conn.patience);
        match conn.state {
            State::MraReqRcvd => conn.state = State::ReqSent,
            State::MraRepRcvd => conn.state = State::RepSent,
            State::Established => conn.lap = LapState::Sent,
            _ => {}
        }
        return true;
    }
    let about = conn.received;
    match conn.state {
        State::Established => {
            conn.answered();
            conn.lap = LapState::None;
            conn.facts.alternate = None;
            conn.tell(Note::PathFailed(Failure::TimedOut), &about);
        }
        State::DreqSent => {
            conn.tell(Note::Disconnected, &about);
            conn.end(now);
        }
        _ => {
            let rej = timeout_rej(conn, ca_guid);
            conn.answer(mad_of(conn.tid, &rej));
            conn.tell(Note::Failed(Failure::TimedOut), &about);
            conn.end(now);
        }
    }
    false
}

/// What is due of a connection, whatever the time.
fn due(conn: &mut Conn) -> Option<CmNext> {
    if let Some(note) = conn.note.take() {
        return event(conn, note).map(CmNext::Event);
    }
    if conn.stop && conn.wish.is_none() {
        conn.stop = false;
        conn.wish = Some(Step::Error);
    }
    if let Some(step) = conn.wish
        && !conn.wish_out
    {
        let (attr, mask) = step.attr(&conn.facts);
        match conn.qp {
            Some(qp) => {
                conn.wish_out = true;
                let id = conn.id;
                return Some(CmNext::Wish(Wish {
                    id,
                    step,
                    qp,
                    attr,
                    mask,
                }));
            }
            None => conn.wish = None,
        }
    }
    let to = conn.to;
    if core::mem::take(&mut conn.answer_due) {
        let mad = conn.answer;
        return Some(CmNext::Send(Outgoing { to, mad }));
    }
    if core::mem::take(&mut conn.request_due) {
        let mad = conn.request;
        return Some(CmNext::Send(Outgoing { to, mad }));
    }
    None
}

/// The news as its user gets it. The message was read when it came, so that it can be read again.
fn event(of: &Conn, note: Note) -> Option<Event> {
    let (conn, cookie) = (ConnId(of.id), of.cookie);
    let mad = &of.received;
    Some(match note {
        Note::Request => Event::Request {
            conn,
            listener: ListenerId(of.listener?),
            cookie,
            req: mad.get().ok()?,
        },
        Note::Reply => Event::Reply {
            conn,
            cookie,
            rep: mad.get().ok()?,
        },
        Note::Established => Event::Established { conn, cookie },
        Note::Rejected => Event::Rejected {
            conn,
            cookie,
            rej: mad.get().ok()?,
        },
        Note::Failed(why) => Event::Failed { conn, cookie, why },
        Note::Disconnecting => Event::Disconnecting {
            conn,
            cookie,
            dreq: mad.get().ok()?,
        },
        Note::Disconnected => Event::Disconnected { conn, cookie },
        Note::PathRequested => Event::PathRequested {
            conn,
            cookie,
            lap: mad.get().ok()?,
        },
        Note::PathAnswered => Event::PathAnswered {
            conn,
            cookie,
            apr: mad.get().ok()?,
        },
        Note::PathFailed(why) => Event::PathFailed { conn, cookie, why },
    })
}
