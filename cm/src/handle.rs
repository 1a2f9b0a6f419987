//! What comes by the wire: each message, in each state. protocols 5.10.

use crate::cm::Cm;
use crate::conn::{Conn, Failure, LapState, Note, State};
use crate::message::{Message, mad_of};
use crate::migrate::{apr_came, lap_came};
use crate::path::{ack_timeout, life_of, wait};
use crate::store::{ConnPlace, Store};
use crate::user::{dreq_of, established, leave};
use core_ib::wire::mad::{
    AprStatus, Attribute, AttributeId, ClassPortInfo, CmApr, CmDrep, CmDreq, CmLap, CmMra, CmRej,
    CmRep, CmReq, CmRtu, CmService, CmSubject, CommId, MadHeader, MadStatus, Method, MgmtClass,
    RejReason, TimeCode,
};
use core_ib::{Guid, Instant};
use ib_mad::Received;

fn count(counter: &mut u64) {
    *counter = counter.saturating_add(1);
}

impl<S: Store> Cm<S> {
    /// Takes note of a MAD of the class. Any context that may hold the owner's lock; never blocks.
    pub fn handle(&mut self, received: &Received, now: Instant) {
        let now = now.on_the_clock();
        count(&mut self.statistics.received);
        self.dirty = true;
        let Some(message) = Message::read(&received.mad) else {
            return self.other(received);
        };
        match message {
            Message::Req(req) => self.req(&req, received, now),
            Message::Rep(rep) => self.rep(&rep, received, now),
            Message::Rtu(rtu) => self.rtu(&rtu),
            Message::Mra(mra) => self.mra(&mra, now),
            Message::Rej(rej) => self.rej(&rej, received, now),
            Message::Dreq(dreq) => self.dreq(&dreq, received, now),
            Message::Drep(drep) => self.drep(&drep, received, now),
            Message::Lap(lap) => self.lap(&lap, received),
            Message::Apr(apr) => self.apr(&apr, received),
            Message::SidrReq(req) => self.sidr_req(&req, received),
            Message::SidrRep(rep) => self.sidr_rep(&rep, received),
        }
    }

    /// ClassPortInfo, or nothing that we know.
    fn other(&mut self, received: &Received) {
        let header = received.header();
        let asks = header.class == MgmtClass::CM && header.method == Method::GET;
        if !asks || header.attribute != AttributeId::CLASS_PORT_INFO {
            count(&mut self.statistics.malformed);
            if let Some(refusal) = ib_mad::refusal(&received.mad) {
                self.reply(received.reply(refusal));
            }
            return;
        }
        let info = ClassPortInfo {
            base_version: MadHeader::BASE_VERSION,
            class_version: crate::CLASS_VERSION,
            resp_time: TimeCode(18),
            ..ClassPortInfo::default()
        };
        let Some(header) = header.reply(MadStatus::OK) else {
            return;
        };
        let mut mad = received.mad;
        mad.set_header(&header);
        // The data of the class is longer than that.
        let _ = mad.put(&info);
        self.reply(received.reply(mad));
    }

    fn back<A: Attribute>(&mut self, received: &Received, message: &A) {
        let mad = mad_of(received.header().tid, message);
        self.reply(received.reply(mad));
    }

    /// A rejection that belongs to no connection of ours.
    fn turn_away(
        &mut self,
        received: &Received,
        ids: (CommId, CommId),
        subject: CmSubject,
        reason: RejReason,
    ) {
        let (local_id, remote_id) = ids;
        let rej = CmRej {
            local_id,
            remote_id,
            subject,
            reason,
            ..CmRej::default()
        };
        self.back(received, &rej);
    }

    fn stray(&mut self) {
        count(&mut self.statistics.strays);
    }

    fn req(&mut self, req: &CmReq, received: &Received, now: Instant) {
        if req.local_id == CommId::NONE {
            return count(&mut self.statistics.malformed);
        }
        let ids = (CommId::NONE, req.local_id);
        let mut no = |reason| self.turn_away(received, ids, CmSubject::REQ, reason);
        if !matches!(req.service, CmService::RC | CmService::UC) {
            return no(RejReason::INVALID_TRANSPORT);
        }
        if req.mtu.mtu().is_none() {
            return no(RejReason::INVALID_MTU);
        }
        if let Some(id) = self.by_peer(req.local_id, req.ca_guid)
            && self.req_again(id, req, received)
        {
            return;
        }
        let same_peer = self.by_peer(req.local_id, req.ca_guid);
        let same_qp = self.by_qpn(req.qpn, req.ca_guid, CommId::NONE);
        if same_peer.is_some() || same_qp.is_some() {
            count(&mut self.statistics.stale);
            self.turn_away(received, ids, CmSubject::REQ, RejReason::STALE_CONNECTION);
            [same_peer, same_qp]
                .into_iter()
                .flatten()
                .for_each(|id| self.is_stale(id, now));
            return;
        }
        let Some(listener) = self.listener_for(req.service_id) else {
            count(&mut self.statistics.no_listener);
            let reason = RejReason::INVALID_SERVICE_ID;
            return self.turn_away(received, ids, CmSubject::REQ, reason);
        };
        let full = self.waiting_for(listener.id) >= usize::from(listener.what.backlog);
        let Some(place) = self.free_place().filter(|_| !full) else {
            count(&mut self.statistics.no_room);
            return self.turn_away(received, ids, CmSubject::REQ, RejReason::NO_RESOURCES);
        };
        let id = self.fresh_id(place);
        let mut to = received.reply_to();
        to.static_rate = req.primary.rate;
        let mut conn = Conn::new(id, listener.what.cookie, State::ReqRcvd, to);
        conn.listener = Some(listener.id.0);
        conn.remote_id = req.local_id;
        conn.remote_guid = req.ca_guid;
        conn.remote_qpn = req.qpn;
        conn.tid = received.header().tid;
        conn.life = life_of(req.primary.ack_timeout);
        conn.patience = wait(req.local_timeout, conn.life);
        conn.quiet = req.primary.ack_timeout.duration();
        conn.max_retries = req.max_cm_retries;
        conn.request = received.mad; // for `accept`
        conn.tell(Note::Request, &received.mad);
        if let Some(place) = self.store.conns_mut().get_mut(place) {
            *place = ConnPlace(Some(conn));
        }
    }

    /// A REQ from somebody whose connection we know by that name. `false` if it is another one. protocols 5.10.1.
    fn req_again(&mut self, id: CommId, req: &CmReq, received: &Received) -> bool {
        let tid = received.header().tid;
        let Some(conn) = self.find_mut(id) else {
            return false;
        };
        if conn.active || conn.tid != tid || conn.remote_qpn != req.qpn {
            return false;
        }
        match conn.state {
            State::MraReqSent => conn.answer_due = true,
            State::RepSent | State::MraRepRcvd => conn.request_due = true,
            State::Timewait => return false,
            _ => {}
        }
        count(&mut self.statistics.duplicates);
        true
    }

    /// The peer of this connection has begun another with its QP or its name: he does not know it any more.
    fn is_stale(&mut self, id: CommId, now: Instant) {
        let tid = self.fresh_tid();
        let Some(conn) = self.find_mut(id) else {
            return;
        };
        if conn.state == State::Established {
            let dreq = dreq_of(conn);
            leave(conn, tid, &dreq, now);
            let about = conn.received;
            conn.tell(Note::Failed(Failure::Stale), &about);
        }
    }

    fn rep(&mut self, rep: &CmRep, received: &Received, now: Instant) {
        let crossed = (rep.remote_id, rep.local_id);
        let no = |cm: &mut Self, reason| {
            cm.turn_away(received, crossed, CmSubject::REP, reason);
        };
        let other = self.by_peer(rep.local_id, rep.ca_guid);
        let other_qp = self.by_qpn(rep.qpn, rep.ca_guid, rep.remote_id);
        let Some(conn) = self.find_mut(rep.remote_id).filter(|conn| conn.active) else {
            self.stray();
            return no(self, RejReason::INVALID_COMM_ID);
        };
        if !matches!(conn.state, State::ReqSent | State::MraReqRcvd) {
            if !conn.is_with(rep.local_id) {
                // Of a REQ that came twice: that end learns that nobody waits for it.
                self.stray();
                return no(self, RejReason::INVALID_COMM_ID);
            }
            match conn.state {
                State::MraRepSent => conn.answer_due = true,
                State::Established => conn.answer_due = true,
                // What we said may be lost: a rejection.
                State::Timewait if conn.answer.header().attribute == AttributeId::CM_REJ => {
                    conn.answer_due = true;
                }
                _ => {}
            }
            return count(&mut self.statistics.duplicates);
        }
        if rep.local_id == CommId::NONE {
            return count(&mut self.statistics.malformed);
        }
        if conn.note.is_some() {
            return;
        }
        if other.is_some() || other_qp.is_some() {
            conn.tell(Note::Failed(Failure::Stale), &received.mad);
            conn.end(now);
            count(&mut self.statistics.stale);
            return no(self, RejReason::STALE_CONNECTION);
        }
        conn.answered();
        conn.state = State::RepRcvd;
        conn.remote_id = rep.local_id;
        conn.remote_guid = rep.ca_guid;
        conn.remote_qpn = rep.qpn;
        let facts = &mut conn.facts;
        facts.dest_qpn = rep.qpn;
        facts.sq_psn = rep.psn;
        facts.max_rd_atomic = facts.max_rd_atomic.min(rep.responder_resources);
        facts.max_dest_rd_atomic = facts.max_dest_rd_atomic.min(rep.initiator_depth);
        facts.rnr_retry = rep.rnr_retry;
        facts.timeout = ack_timeout(conn.life, rep.target_ack_delay).0;
        if rep.failover != core_ib::wire::mad::Failover::ACCEPTED {
            facts.alternate = None;
        }
        conn.tell(Note::Reply, &received.mad);
    }

    fn rtu(&mut self, rtu: &CmRtu) {
        let known = self.find_mut(rtu.remote_id);
        match known.filter(|conn| conn.is_with(rtu.local_id) && !conn.active) {
            Some(conn) if matches!(conn.state, State::RepSent | State::MraRepRcvd) => {
                established(conn);
            }
            Some(_) => count(&mut self.statistics.duplicates),
            None => self.stray(),
        }
    }

    fn mra(&mut self, mra: &CmMra, now: Instant) {
        let Some(conn) = self.find_mut(mra.remote_id) else {
            return self.stray();
        };
        let until = now.after(wait(mra.service_timeout, conn.life));
        match (mra.subject, conn.state, conn.lap) {
            (CmSubject::REQ, State::ReqSent, _) => conn.state = State::MraReqRcvd,
            (CmSubject::REP, State::RepSent, _) if conn.is_with(mra.local_id) => {
                conn.state = State::MraRepRcvd;
            }
            (CmSubject::OTHER, State::Established, LapState::Sent)
                if conn.is_with(mra.local_id) =>
            {
                conn.lap = LapState::MraRcvd;
            }
            _ => return self.stray(),
        }
        conn.request_due = false;
        conn.deadline = until;
    }

    fn rej(&mut self, rej: &CmRej, received: &Received, now: Instant) {
        let by_guid = rej.reason == RejReason::TIMEOUT && rej.remote_id == CommId::NONE;
        let id = match rej.ari.first_chunk() {
            Some(guid) if by_guid && rej.ari_len >= 8 => {
                self.by_peer(rej.local_id, Guid(u64::from_be_bytes(*guid)))
            }
            _ => Some(rej.remote_id),
        };
        let Some(conn) = id.and_then(|id| self.find_mut(id)) else {
            return self.stray();
        };
        let unanswered = matches!(conn.state, State::ReqSent | State::MraReqRcvd);
        if !unanswered && !conn.is_with(rej.local_id) {
            return self.stray();
        }
        match conn.state {
            // What he said before he knew that we were leaving, or after he had left.
            State::DreqRcvd | State::Timewait | State::Idle => return self.stray(),
            State::DreqSent => conn.tell(Note::Disconnected, &received.mad),
            // A request whose user has not been told of it: nor needs he be told of its end.
            State::ReqRcvd if conn.note == Some(Note::Request) => {
                conn.note = None;
                conn.orphan = true;
            }
            _ => conn.tell(Note::Rejected, &received.mad),
        }
        // One who says that our QP is in another connection wants it to rest. protocols 5.10.1.
        if unanswered && rej.reason == RejReason::STALE_CONNECTION {
            conn.state = State::RepRcvd;
        }
        conn.end(now);
    }

    fn dreq(&mut self, dreq: &CmDreq, received: &Received, now: Instant) {
        let known = self.find_mut(dreq.remote_id);
        let Some(conn) = known.filter(|conn| conn.is_with(dreq.local_id)) else {
            self.stray();
            // So that the peer can finish: protocols 5.10.1.
            let drep = CmDrep {
                local_id: dreq.remote_id,
                remote_id: dreq.local_id,
                ..CmDrep::default()
            };
            return self.back(received, &drep);
        };
        if conn.qpn != dreq.remote_qpn {
            return self.stray();
        }
        let tid = received.header().tid;
        let drep = CmDrep {
            local_id: conn.id,
            remote_id: conn.remote_id,
            ..CmDrep::default()
        };
        match conn.state {
            // Without an RTU that was lost, too.
            State::Established | State::RepSent | State::MraRepRcvd => {
                // The news that the connection stands is old with this.
                if !matches!(conn.note, None | Some(Note::Established)) {
                    return;
                }
                conn.answered();
                conn.state = State::DreqRcvd;
                conn.lap = LapState::None;
                conn.exchange = tid;
                conn.tell(Note::Disconnecting, &received.mad);
                if conn.orphan {
                    conn.answer(mad_of(tid, &drep));
                    conn.end(now);
                }
            }
            State::DreqSent => {
                conn.answer(mad_of(tid, &drep));
                conn.tell(Note::Disconnected, &received.mad);
                conn.end(now);
            }
            State::Timewait | State::Idle => {
                if conn.answer.header().attribute != AttributeId::CM_DREP {
                    conn.answer = mad_of(tid, &drep);
                }
                conn.answer_due = true;
                count(&mut self.statistics.duplicates);
            }
            State::DreqRcvd => count(&mut self.statistics.duplicates),
            _ => self.stray(),
        }
    }

    fn drep(&mut self, drep: &CmDrep, received: &Received, now: Instant) {
        let known = self.find_mut(drep.remote_id);
        let known = known.filter(|conn| conn.is_with(drep.local_id));
        let Some(conn) = known.filter(|conn| conn.state == State::DreqSent) else {
            return self.stray();
        };
        conn.tell(Note::Disconnected, &received.mad);
        conn.end(now);
    }

    fn lap(&mut self, lap: &CmLap, received: &Received) {
        let known = self.find_mut(lap.remote_id);
        let Some(conn) = known.filter(|conn| conn.is_with(lap.local_id)) else {
            self.stray();
            let apr = CmApr {
                local_id: lap.remote_id,
                remote_id: lap.local_id,
                status: AprStatus::INVALID_COMM_ID,
                ..CmApr::default()
            };
            return self.back(received, &apr);
        };
        let welcome = conn.state == State::Established && !conn.active;
        if !welcome || conn.qpn != lap.remote_qpn {
            return self.stray();
        }
        if lap_came(conn, &received.mad, received.header().tid) {
            count(&mut self.statistics.duplicates);
        }
    }

    fn apr(&mut self, apr: &CmApr, received: &Received) {
        let known = self.find_mut(apr.remote_id);
        let known = known.filter(|conn| conn.is_with(apr.local_id));
        let tid = received.header().tid;
        let taken = known
            .filter(|conn| conn.state == State::Established && conn.active)
            .is_some_and(|conn| apr_came(conn, &received.mad, tid, apr.status));
        if !taken {
            self.stray();
        }
    }
}
