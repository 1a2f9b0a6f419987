//! One connection: its state, the two messages that it may have to repeat, and what is due of it. protocols 5.10.

use crate::qp::{Facts, Step};
use core::time::Duration;
use core_ib::verbs::{QpHandle, VerbsError};
use core_ib::wire::mad::{CommId, Mad, TimeCode};
use core_ib::{Guid, Instant, Qpn};
use ib_mad::MadAddr;

/// Names a connection of one [`Cm`](crate::Cm), from its REQ until [`Event::Gone`](crate::Event::Gone). The number is its
/// local communication ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId(pub(crate) CommId);

impl ConnId {
    /// The local communication ID.
    pub const fn comm_id(self) -> CommId {
        self.0
    }
}

/// Where a connection stands. protocols 5.10.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// We have asked.
    ReqSent,
    /// The peer needs time.
    MraReqRcvd,
    /// We were asked: accept, delay or reject.
    ReqRcvd,
    /// We were asked, and asked for time.
    MraReqSent,
    /// We have accepted.
    RepSent,
    /// The peer needs time.
    MraRepRcvd,
    /// The peer has accepted: say ready, delay or reject.
    RepRcvd,
    /// The peer has accepted, and we asked for time.
    MraRepSent,
    /// Both are ready, as far as we know.
    Established,
    /// We want out.
    DreqSent,
    /// The peer wants out: release.
    DreqRcvd,
    /// Over; the QP and the IDs are not to be used again yet.
    Timewait,
    /// Over.
    Idle,
}

/// Another path for an established connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LapState {
    None,
    /// Active side: asked.
    Sent,
    MraRcvd,
    /// Passive side: to be answered.
    Rcvd,
    MraSent,
    /// Passive side, answered with this path loaded into the QP first.
    Loading,
    /// Passive side: the APR can be had again.
    Answered,
}

/// News of a connection that its user has not got yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Note {
    Request,
    Reply,
    Established,
    Rejected,
    Failed(Failure),
    Disconnecting,
    Disconnected,
    PathRequested,
    PathAnswered,
    PathFailed(Failure),
}

/// Why a connection ended, or did not come to be, without a word of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// The peer did not answer, however often it was asked.
    TimedOut,
    /// The peer's QP or ID belongs to another connection, as far as we know.
    Stale,
    /// The QP did not take the attributes.
    Qp(VerbsError),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Conn {
    pub(crate) id: CommId,
    pub(crate) cookie: u64,
    pub(crate) state: State,
    /// We sent the REQ.
    pub(crate) active: bool,
    /// Nobody wants to hear of it any more.
    pub(crate) orphan: bool,
    /// Its user knows that it is over.
    pub(crate) ended: bool,
    /// Not yet answered by its listener.
    pub(crate) listener: Option<u32>,
    pub(crate) remote_id: CommId,
    pub(crate) remote_guid: Guid,
    pub(crate) remote_qpn: Qpn,
    pub(crate) to: MadAddr,
    /// Of the REQ.
    pub(crate) tid: u64,
    pub(crate) qpn: Qpn,
    pub(crate) qp: Option<QpHandle>,
    pub(crate) facts: Facts,
    /// Of packets on the path.
    pub(crate) life: TimeCode,
    /// How long the peer may take to answer, the way included.
    pub(crate) patience: Duration,
    /// How long it has to be in timewait.
    pub(crate) quiet: Duration,
    pub(crate) max_retries: u8,
    pub(crate) retries_left: u8,
    pub(crate) deadline: Instant,
    pub(crate) lap: LapState,
    /// Transaction of the LAP, then of the DREQ.
    pub(crate) exchange: u64,
    /// What is repeated until answered: REQ, REP, DREQ, LAP.
    pub(crate) request: Mad,
    pub(crate) request_due: bool,
    /// What is repeated when asked again: MRA, RTU, DREP, APR, REJ.
    pub(crate) answer: Mad,
    pub(crate) answer_due: bool,
    /// The wish that is wanted, and whether it is out.
    pub(crate) wish: Option<Step>,
    pub(crate) wish_out: bool,
    /// The QP is to be stopped once no wish is out.
    pub(crate) stop: bool,
    pub(crate) note: Option<Note>,
    /// What the note is about.
    pub(crate) received: Mad,
}

impl Conn {
    /// With everything that is not known yet at nothing.
    pub(crate) const fn new(id: CommId, cookie: u64, state: State, to: MadAddr) -> Self {
        Self {
            id,
            cookie,
            state,
            active: matches!(state, State::ReqSent),
            orphan: false,
            ended: false,
            listener: None,
            remote_id: CommId::NONE,
            remote_guid: Guid(0),
            remote_qpn: Qpn::new(0),
            to,
            tid: 0,
            qpn: Qpn::new(0),
            qp: None,
            facts: Facts::NONE,
            life: TimeCode(0),
            patience: Duration::ZERO,
            quiet: Duration::ZERO,
            max_retries: 0,
            retries_left: 0,
            deadline: Instant::NEVER,
            lap: LapState::None,
            exchange: 0,
            request: Mad::ZERO,
            request_due: false,
            answer: Mad::ZERO,
            answer_due: false,
            wish: None,
            wish_out: false,
            stop: false,
            note: None,
            received: Mad::ZERO,
        }
    }

    /// Is it this peer's connection?
    pub(crate) fn is_with(&self, remote_id: CommId) -> bool {
        self.remote_id == remote_id && remote_id != CommId::NONE
    }

    /// Puts a request on its way, to be repeated.
    pub(crate) fn ask(&mut self, mad: Mad, now: Instant) {
        self.request = mad;
        self.request_due = true;
        self.retries_left = self.max_retries;
        self.deadline = now.after(self.patience);
    }

    /// Stops repeating.
    pub(crate) fn answered(&mut self) {
        self.request_due = false;
        self.deadline = Instant::NEVER;
    }

    pub(crate) fn answer(&mut self, mad: Mad) {
        self.answer = mad;
        self.answer_due = true;
    }

    /// The QP is no longer of use.
    fn stop_qp(&mut self) {
        if !self.wish_out {
            self.wish = None;
        }
        self.stop = self.qp.is_some();
    }

    /// To timewait, or out of it at once where the QP was never used.
    pub(crate) fn end(&mut self, now: Instant) {
        self.answered();
        self.listener = None;
        self.lap = LapState::None;
        let used = !matches!(
            self.state,
            State::ReqSent | State::MraReqRcvd | State::ReqRcvd | State::MraReqSent
        );
        if used || self.wish_out {
            self.stop_qp();
            self.state = State::Timewait;
            self.deadline = now.after(self.quiet);
        } else {
            self.wish = None;
            self.state = State::Idle;
        }
    }

    /// Tells the user, unless he has gone. `mad` is what it is about.
    pub(crate) fn tell(&mut self, note: Note, mad: &Mad) {
        let ends = matches!(note, Note::Rejected | Note::Failed(_) | Note::Disconnected);
        let unheard = self.orphan || ends && self.ended;
        if !unheard {
            self.ended |= ends;
            self.note = Some(note);
            self.received = *mad;
        }
    }

    /// Nothing is left to be done.
    pub(crate) const fn is_over(&self) -> bool {
        matches!(self.state, State::Idle)
            && self.note.is_none()
            && !self.answer_due
            && self.wish.is_none()
            && !self.stop
    }
}
