//! Another path for a connection that stands: LAP and APR. protocols 5.7.

use crate::ask::{CmError, LoadPath};
use crate::cm::Cm;
use crate::conn::{Conn, ConnId, LapState, Note, State};
use crate::message::mad_of;
use crate::path::{Local, Path, ack_timeout, path_of_lap, wait};
use crate::qp::{Alternate, Step};
use crate::store::Store;
use crate::user::{fit, wrong};
use core_ib::Instant;
use core_ib::wire::mad::{AprStatus, CmApr, CmLap, Mad};

impl<S: Store> Cm<S> {
    /// Offers the peer another alternate path. [`Event::PathAnswered`](crate::Event::PathAnswered) or
    /// [`PathFailed`](crate::Event::PathFailed) comes of it.
    ///
    /// # Errors
    ///
    /// `Unknown`, `PrivateTooLong`; `WrongState` if the connection is not established, was not begun by us, or an offer is
    /// out.
    pub fn load_path(
        &mut self,
        conn: ConnId,
        with: &LoadPath<'_>,
        now: Instant,
    ) -> Result<(), CmError> {
        let private = fit(with.private)?;
        let tid = self.fresh_tid();
        let conn = self.conn(conn)?;
        if conn.state != State::Established
            || !conn.active
            || conn.lap != LapState::None
            || conn.wish.is_some()
            || conn.note.is_some()
        {
            return wrong(conn);
        }
        let timeout = ack_timeout(with.path.life_time, with.ack_delay);
        let wire = with.path.to_wire(timeout);
        let lap = CmLap {
            local_id: conn.id,
            remote_id: conn.remote_id,
            remote_qpn: conn.remote_qpn,
            remote_timeout: with.remote_timeout,
            local_lid: wire.local_lid,
            remote_lid: wire.remote_lid,
            local_gid: wire.local_gid,
            remote_gid: wire.remote_gid,
            flow_label: wire.flow_label,
            traffic_class: wire.traffic_class,
            hop_limit: wire.hop_limit,
            rate: wire.rate,
            sl: wire.sl,
            subnet_local: wire.subnet_local,
            ack_timeout: wire.ack_timeout,
            private,
        };
        conn.lap = LapState::Sent;
        conn.exchange = tid;
        conn.facts.alternate = Some(Alternate {
            path: with.path.ah_attr(),
            pkey_index: with.pkey_index,
            timeout: timeout.0,
        });
        let patience = wait(with.remote_timeout, with.path.life_time);
        let usual = core::mem::replace(&mut conn.patience, patience);
        conn.ask(mad_of(tid, &lap), now.on_the_clock());
        conn.patience = usual;
        Ok(())
    }

    /// Answers an offer of another path: takes it, `local` being where its values are in our port's tables, or says why
    /// not. What is taken is loaded into the QP before the APR goes out.
    ///
    /// # Errors
    ///
    /// `Unknown`; `WrongState` if there is no offer.
    pub fn answer_path(
        &mut self,
        conn: ConnId,
        taken: Result<Local, AprStatus>,
    ) -> Result<(), CmError> {
        let conn = self.conn(conn)?;
        let offered = matches!(conn.lap, LapState::Rcvd | LapState::MraSent);
        let lap = conn.request.get::<CmLap>();
        let (true, State::Established, None, None, Ok(lap)) =
            (offered, conn.state, conn.note, conn.wish, lap)
        else {
            return wrong(conn);
        };
        let local = match taken {
            Ok(local) => local,
            Err(status) => {
                apr(conn, status);
                return Ok(());
            }
        };
        let path = path_of_lap(&lap);
        conn.facts.alternate = Some(Alternate {
            path: Path::back(&path, &local, conn.to.lid).ah_attr(),
            pkey_index: local.pkey_index,
            timeout: path.ack_timeout.0,
        });
        if conn.qp.is_some() {
            conn.lap = LapState::Loading;
            conn.wish = Some(Step::Rearm);
        } else {
            apr(conn, AprStatus::OK);
        }
        Ok(())
    }
}

/// The APR goes out, and again when the LAP comes again.
pub(crate) fn apr(conn: &mut Conn, status: AprStatus) {
    let apr = CmApr {
        local_id: conn.id,
        remote_id: conn.remote_id,
        status,
        ..CmApr::default()
    };
    conn.lap = LapState::Answered;
    conn.answer(mad_of(conn.exchange, &apr));
}

/// A LAP came for this connection, which is established and was begun by the peer. `true` if it came before.
pub(crate) fn lap_came(conn: &mut Conn, mad: &Mad, tid: u64) -> bool {
    let again = conn.lap != LapState::None && conn.exchange == tid;
    match conn.lap {
        LapState::MraSent | LapState::Answered if again => conn.answer_due = true,
        // One at a time: the other comes again.
        LapState::Rcvd | LapState::MraSent | LapState::Loading => {}
        _ if conn.note.is_some() || conn.wish.is_some() => {}
        _ => {
            conn.lap = LapState::Rcvd;
            conn.exchange = tid;
            conn.request = *mad;
            conn.tell(Note::PathRequested, mad);
            if conn.orphan {
                apr(conn, AprStatus::REJECTED);
            }
        }
    }
    again
}

/// An APR came for this connection, which is established and was begun by us.
pub(crate) fn apr_came(conn: &mut Conn, mad: &Mad, tid: u64, status: AprStatus) -> bool {
    let waiting = matches!(conn.lap, LapState::Sent | LapState::MraRcvd) && conn.exchange == tid;
    if !waiting || conn.note.is_some() {
        return false;
    }
    conn.answered();
    conn.lap = LapState::None;
    conn.received = *mad;
    if status == AprStatus::OK && conn.qp.is_some() {
        conn.wish = Some(Step::Rearm);
    } else {
        conn.tell(Note::PathAnswered, mad);
    }
    true
}
