//! What the user of a connection wants.

use crate::ask::{Accept, CmError, Connect};
use crate::cm::Cm;
use crate::conn::{Conn, ConnId, LapState, State};
use crate::message::{mad_of, private};
use crate::path::{Path, ack_timeout, wait};
use crate::qp::{Alternate, Facts, Step};
use crate::store::{ConnPlace, Store};
use core_ib::Instant;
use core_ib::Mtu;
use core_ib::verbs::{QpAttr, QpAttrMask, QpType};
use core_ib::wire::mad::{
    CmDrep, CmDreq, CmMra, CmPath, CmRej, CmRep, CmReq, CmRtu, CmService, CmSubject, Failover,
    RejReason, TimeCode,
};
use core_ib::{Guid, QKey};

pub(crate) fn fit<const N: usize>(data: &[u8]) -> Result<[u8; N], CmError> {
    let len = data.len();
    private(data).map_err(|limit| CmError::PrivateTooLong { len, limit })
}

pub(crate) fn wrong<T>(conn: &Conn) -> Result<T, CmError> {
    let state = conn.state;
    Err(CmError::WrongState { state })
}

/// A rejection of `conn`, from the state that it is in. The peer is named where it is known.
pub(crate) fn rej_of(conn: &Conn, reason: RejReason) -> CmRej {
    let subject = match conn.state {
        State::ReqRcvd | State::MraReqSent => CmSubject::REQ,
        State::RepRcvd | State::MraRepSent => CmSubject::REP,
        _ => CmSubject::OTHER,
    };
    CmRej {
        local_id: conn.id,
        remote_id: conn.remote_id,
        subject,
        reason,
        ..CmRej::default()
    }
}

/// As [`rej_of`], for want of an answer: with the GUID by which the peer may know us. protocols 5.9.
pub(crate) fn timeout_rej(conn: &Conn, ca_guid: Guid) -> CmRej {
    let mut rej = rej_of(conn, RejReason::TIMEOUT);
    rej.subject = CmSubject::OTHER;
    if let Some(place) = rej.ari.first_chunk_mut() {
        *place = ca_guid.0.to_be_bytes();
        rej.ari_len = 8;
    }
    rej
}

pub(crate) fn dreq_of(conn: &Conn) -> CmDreq {
    CmDreq {
        local_id: conn.id,
        remote_id: conn.remote_id,
        remote_qpn: conn.remote_qpn,
        ..CmDreq::default()
    }
}

impl<S: Store> Cm<S> {
    /// Asks a peer for a connection. [`Event::Reply`](crate::Event::Reply) or its end comes of it.
    ///
    /// # Errors
    ///
    /// `Full`, `PrivateTooLong`; `Service` for a QP that is not of a connected service.
    pub fn connect(&mut self, with: &Connect<'_>, now: Instant) -> Result<ConnId, CmError> {
        let now = now.on_the_clock();
        let service = match with.service {
            QpType::Rc => CmService::RC,
            QpType::Uc => CmService::UC,
            found => return Err(CmError::Service { found }),
        };
        let private = fit(with.private)?;
        let limit = self.store.conns().len();
        let entry = "connections";
        let full = CmError::Full { entry, limit };
        let place = self.free_place().ok_or(full)?;
        let id = self.fresh_id(place);
        let timeout = ack_timeout(with.primary.life_time, with.ack_delay);
        let wire = |path: &Path| path.to_wire(ack_timeout(path.life_time, with.ack_delay));
        let req = CmReq {
            local_id: id,
            service_id: with.service_id,
            ca_guid: self.ca_guid,
            qpn: with.qpn,
            responder_resources: with.responder_resources,
            initiator_depth: with.initiator_depth,
            remote_timeout: with.remote_timeout,
            service,
            flow_control: with.flow_control,
            psn: with.psn,
            local_timeout: with.local_timeout,
            retry_count: with.retry_count & 7,
            p_key: with.p_key,
            mtu: with.mtu.into(),
            rnr_retry: with.rnr_retry & 7,
            max_cm_retries: with.max_retries & 15,
            srq: with.srq,
            primary: wire(&with.primary),
            alternate: with.alternate.as_ref().map_or(CmPath::default(), wire),
            private,
            ..CmReq::default()
        };
        let to = with.primary.gsi(with.pkey_index);
        let mut conn = Conn::new(id, with.cookie, State::ReqSent, to);
        conn.tid = self.agent.tid(id.0);
        conn.qpn = with.qpn;
        conn.qp = with.qp;
        conn.life = with.primary.life_time;
        conn.patience = wait(with.remote_timeout, conn.life);
        conn.quiet = timeout.duration();
        conn.max_retries = with.max_retries & 15;
        conn.facts = Facts {
            service: with.service,
            path: with.primary.ah_attr(),
            pkey_index: with.pkey_index,
            timeout: timeout.0,
            alternate: with.alternate.map(|path| Alternate {
                path: path.ah_attr(),
                pkey_index: with.pkey_index,
                timeout: ack_timeout(path.life_time, with.ack_delay).0,
            }),
            mtu: with.mtu,
            rq_psn: with.psn,
            max_rd_atomic: with.initiator_depth,
            max_dest_rd_atomic: with.responder_resources,
            retry_count: with.retry_count & 7,
            rnr_retry: with.rnr_retry & 7,
            min_rnr_timer: with.min_rnr_timer & 31,
            ..Facts::NONE
        };
        conn.ask(mad_of(conn.tid, &req), now);
        if let Some(place) = self.store.conns_mut().get_mut(place) {
            *place = ConnPlace(Some(conn));
        }
        self.dirty = true;
        Ok(ConnId(id))
    }

    /// Accepts a request: the QP becomes ready to receive, then the REP goes out.
    ///
    /// # Errors
    ///
    /// `Unknown`, `PrivateTooLong`; `WrongState` if it was answered, or is over.
    pub fn accept(&mut self, conn: ConnId, with: &Accept<'_>, now: Instant) -> Result<(), CmError> {
        let private = fit(with.private)?;
        let ca_guid = self.ca_guid;
        let conn = self.conn(conn)?;
        let waiting = matches!(conn.state, State::ReqRcvd | State::MraReqSent);
        let Some(crate::Message::Req(req)) = crate::Message::read(&conn.request) else {
            return wrong(conn);
        };
        if !waiting || conn.wish.is_some() || conn.note.is_some() {
            return wrong(conn);
        }
        let path = Path::back(&req.primary, &with.local, conn.to.lid);
        let alternate = with.alternate.filter(|_| req.alternate.is_some());
        let failover = match alternate {
            Some(_) => Failover::ACCEPTED,
            None if req.alternate.is_some() => with.failover,
            None => Failover::ACCEPTED,
        };
        let responder_resources = with.responder_resources.min(req.initiator_depth);
        let initiator_depth = with.initiator_depth.min(req.responder_resources);
        conn.listener = None;
        conn.qpn = with.qpn;
        conn.qp = with.qp;
        conn.facts = Facts {
            service: match req.service {
                CmService::UC => QpType::Uc,
                _ => QpType::Rc,
            },
            path: path.ah_attr(),
            pkey_index: with.local.pkey_index,
            timeout: req.primary.ack_timeout.0,
            alternate: alternate.map(|local| Alternate {
                path: Path::back(&req.alternate, &local, conn.to.lid).ah_attr(),
                pkey_index: local.pkey_index,
                timeout: req.alternate.ack_timeout.0,
            }),
            mtu: req.mtu.mtu().unwrap_or(Mtu::Mtu256), // was looked at when it came
            dest_qpn: req.qpn,
            rq_psn: with.psn,
            sq_psn: req.psn,
            max_rd_atomic: initiator_depth,
            max_dest_rd_atomic: responder_resources,
            retry_count: req.retry_count,
            rnr_retry: req.rnr_retry,
            min_rnr_timer: with.min_rnr_timer & 31,
        };
        let rep = CmRep {
            local_id: conn.id,
            remote_id: conn.remote_id,
            q_key: QKey(0),
            qpn: with.qpn,
            psn: with.psn,
            responder_resources,
            initiator_depth,
            target_ack_delay: with.ack_delay,
            failover,
            flow_control: with.flow_control,
            rnr_retry: with.rnr_retry & 7,
            srq: with.srq,
            ca_guid,
            private,
            ..CmRep::default()
        };
        conn.request = mad_of(conn.tid, &rep);
        if conn.qp.is_some() {
            conn.wish = Some(Step::Rtr);
        } else {
            rep_goes(conn, now.on_the_clock());
        }
        Ok(())
    }

    /// Takes a reply: the QP becomes ready to receive and to send, then the RTU goes out and
    /// [`Event::Established`](crate::Event::Established) comes. At most 224 bytes of private data.
    ///
    /// # Errors
    ///
    /// As [`accept`](Self::accept).
    pub fn ready(&mut self, conn: ConnId, private: &[u8]) -> Result<(), CmError> {
        let private = fit(private)?;
        let conn = self.conn(conn)?;
        let waiting = matches!(conn.state, State::RepRcvd | State::MraRepSent);
        if !waiting || conn.wish.is_some() || conn.note.is_some() {
            return wrong(conn);
        }
        conn.answer_due = false;
        conn.answer = mad_of(
            conn.tid,
            &CmRtu {
                local_id: conn.id,
                remote_id: conn.remote_id,
                private,
            },
        );
        if conn.qp.is_some() {
            conn.wish = Some(Step::Rtr);
        } else {
            rtu_goes(conn);
        }
        Ok(())
    }

    /// Asks the peer for time: up to `timeout` (a code) for what it waits for, the answer to a REQ, a REP or a LAP.
    ///
    /// # Errors
    ///
    /// `Unknown`, `PrivateTooLong` (222 bytes); `WrongState` if nothing is to be answered.
    pub fn delay(
        &mut self,
        conn: ConnId,
        timeout: TimeCode,
        private: &[u8],
    ) -> Result<(), CmError> {
        let private = fit(private)?;
        let conn = self.conn(conn)?;
        let (subject, tid) = match (conn.state, conn.lap) {
            (State::ReqRcvd | State::MraReqSent, _) => (CmSubject::REQ, conn.tid),
            (State::RepRcvd | State::MraRepSent, _) if conn.wish.is_none() => {
                (CmSubject::REP, conn.tid)
            }
            (State::Established, LapState::Rcvd | LapState::MraSent) => {
                (CmSubject::OTHER, conn.exchange)
            }
            _ => return wrong(conn),
        };
        match subject {
            CmSubject::REQ => conn.state = State::MraReqSent,
            CmSubject::REP => conn.state = State::MraRepSent,
            _ => conn.lap = LapState::MraSent,
        }
        let mra = CmMra {
            local_id: conn.id,
            remote_id: conn.remote_id,
            subject,
            service_timeout: timeout,
            private,
        };
        conn.answer(mad_of(tid, &mra));
        Ok(())
    }

    /// Rejects a request or a reply. `ari` is what the reason wants, at most 72 bytes; at most 148 bytes of private data.
    /// [`Event::Gone`](crate::Event::Gone) follows.
    ///
    /// # Errors
    ///
    /// `Unknown`, `PrivateTooLong`; `WrongState` if nothing is to be answered.
    pub fn reject(
        &mut self,
        conn: ConnId,
        reason: RejReason,
        ari: &[u8],
        private: &[u8],
        now: Instant,
    ) -> Result<(), CmError> {
        let (ari_field, private) = (fit(ari)?, fit(private)?);
        let conn = self.conn(conn)?;
        let (State::ReqRcvd | State::MraReqSent | State::RepRcvd | State::MraRepSent) = conn.state
        else {
            return wrong(conn);
        };
        let rej = CmRej {
            ari_len: ari.len() as u8, // at most 72
            ari: ari_field,
            private,
            ..rej_of(conn, reason)
        };
        conn.answer(mad_of(conn.tid, &rej));
        conn.note = None;
        conn.end(now.on_the_clock());
        Ok(())
    }

    /// Ends a connection. [`Event::Disconnected`](crate::Event::Disconnected) comes when the peer has said yes, or is given
    /// up. At most 220 bytes of private data.
    ///
    /// # Errors
    ///
    /// `Unknown`, `PrivateTooLong`; `WrongState` if it is not established.
    pub fn disconnect(
        &mut self,
        conn: ConnId,
        private: &[u8],
        now: Instant,
    ) -> Result<(), CmError> {
        let private = fit(private)?;
        let tid = self.fresh_tid();
        let conn = self.conn(conn)?;
        if conn.state != State::Established {
            return wrong(conn);
        }
        let dreq = CmDreq {
            private,
            ..dreq_of(conn)
        };
        leave(conn, tid, &dreq, now.on_the_clock());
        Ok(())
    }

    /// Lets a peer go that wants out: the DREP goes out, with at most 224 bytes of private data, and
    /// [`Event::Gone`](crate::Event::Gone) follows.
    ///
    /// # Errors
    ///
    /// `Unknown`, `PrivateTooLong`; `WrongState` if the peer does not want out.
    pub fn release(&mut self, conn: ConnId, private: &[u8], now: Instant) -> Result<(), CmError> {
        let private = fit(private)?;
        let conn = self.conn(conn)?;
        if conn.state != State::DreqRcvd {
            return wrong(conn);
        }
        let drep = CmDrep {
            local_id: conn.id,
            remote_id: conn.remote_id,
            private,
        };
        conn.answer(mad_of(conn.exchange, &drep));
        conn.note = None;
        conn.end(now.on_the_clock());
        Ok(())
    }

    /// Ends a connection in whatever state it is, as politely as that allows, and hears no more of it: its name is dead at
    /// once. The QP is the user's, to be destroyed when he likes.
    ///
    /// # Errors
    ///
    /// `Unknown`.
    pub fn abandon(&mut self, conn: ConnId, now: Instant) -> Result<(), CmError> {
        let now = now.on_the_clock();
        let (tid, ca_guid) = (self.fresh_tid(), self.ca_guid);
        let conn = self.conn(conn)?;
        conn.orphan = true;
        conn.note = None;
        conn.qp = None;
        match conn.state {
            State::ReqSent | State::MraReqRcvd => {
                let rej = timeout_rej(conn, ca_guid);
                conn.answer(mad_of(conn.tid, &rej));
                conn.end(now);
            }
            State::ReqRcvd
            | State::MraReqSent
            | State::RepSent
            | State::MraRepRcvd
            | State::RepRcvd
            | State::MraRepSent => {
                let rej = rej_of(conn, RejReason::CONSUMER);
                conn.answer(mad_of(conn.tid, &rej));
                conn.end(now);
            }
            State::Established => {
                let dreq = dreq_of(conn);
                leave(conn, tid, &dreq, now);
            }
            State::DreqRcvd => {
                let drep = CmDrep {
                    local_id: conn.id,
                    remote_id: conn.remote_id,
                    ..CmDrep::default()
                };
                conn.answer(mad_of(conn.exchange, &drep));
                conn.end(now);
            }
            State::DreqSent | State::Timewait | State::Idle => {}
        }
        Ok(())
    }

    /// Data came, or the QP says that communication is established, before the RTU did. Harmless at any other time.
    /// protocols 5.10.
    pub fn communication_established(&mut self, conn: ConnId) {
        if let Ok(conn) = self.conn(conn)
            && matches!(conn.state, State::RepSent | State::MraRepRcvd)
        {
            established(conn);
        }
    }

    /// The connection whose QP this is of ours, for events of QPs.
    pub fn of_qp(&self, qp: core_ib::verbs::QpHandle) -> Option<ConnId> {
        let conns = self
            .store
            .conns()
            .iter()
            .filter_map(|place| place.0.as_ref());
        let mut conns = conns.filter(|conn| conn.qp == Some(qp));
        conns.next().map(|conn| ConnId(conn.id))
    }

    /// INIT to RTR, for who makes it by himself: after [`accept`](Self::accept), before [`ready`](Self::ready).
    pub fn rtr(&self, conn: ConnId) -> Option<(QpAttr, QpAttrMask)> {
        self.find(conn.0).map(|conn| conn.facts.rtr())
    }

    /// RTR to RTS, likewise.
    pub fn rts(&self, conn: ConnId) -> Option<(QpAttr, QpAttrMask)> {
        self.find(conn.0).map(|conn| conn.facts.rts())
    }
}

/// The REP goes out.
pub(crate) fn rep_goes(conn: &mut Conn, now: Instant) {
    conn.state = State::RepSent;
    let rep = conn.request;
    conn.ask(rep, now);
}

/// The RTU goes out, and that is it.
pub(crate) fn rtu_goes(conn: &mut Conn) {
    conn.answer_due = true;
    conn.state = State::Established;
    let about = conn.received;
    conn.tell(crate::conn::Note::Established, &about);
}

/// Passive side: both ends are ready.
pub(crate) fn established(conn: &mut Conn) {
    conn.answered();
    conn.state = State::Established;
    if conn.qp.is_some() {
        conn.wish = Some(Step::Rts);
    } else {
        let about = conn.received;
        conn.tell(crate::conn::Note::Established, &about);
    }
}

/// The DREQ goes out.
pub(crate) fn leave(conn: &mut Conn, tid: u64, dreq: &CmDreq, now: Instant) {
    conn.state = State::DreqSent;
    conn.lap = LapState::None;
    conn.note = None;
    conn.ask(mad_of(tid, dreq), now);
}
