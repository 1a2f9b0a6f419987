//! What a connection answers: acknowledges, refusals, and what READs and atomics bring. infinihost 5.12.

use super::super::InfiniHost;
use super::super::qp::Qp;
use super::super::remote::{Remote, RemoteError};
use super::{Connected, End, Moved, Responder};
use crate::machine::Bus;
use crate::transport::{Refusal, SendError};
use core_ib::wire::packet::NakCode;
use hca_abi::infinihost::qp::QpState;

/// What the engine makes of a refused access.
pub fn refusal(error: &RemoteError) -> Refusal {
    match error.nak() {
        NakCode::INVALID_REQUEST => Refusal::InvalidRequest,
        NakCode::REMOTE_ACCESS_ERROR => Refusal::RemoteAccess,
        _ => Refusal::Operational,
    }
}

impl InfiniHost {
    /// Sends the next answer of QP `qpn`. In ERR that is a refusal, and what has to go before it.
    pub(super) fn answer(
        &mut self,
        bus: &mut dyn Bus,
        qpn: u32,
        connected: &mut Connected,
    ) -> Moved {
        let answers = |qp: &Qp| qp.receives() || qp.state() == QpState::ERR;
        if !matches!(&connected.responder, Responder::Reliable(engine) if engine.has_reply())
            || !self.qps.get(qpn).is_some_and(answers)
        {
            return Moved::Idle;
        }
        let mut scratch = core::mem::take(&mut self.scratch);
        let moved = self.answer_in(bus, qpn, connected, &mut scratch);
        self.scratch = scratch;
        moved
    }

    fn answer_in(
        &mut self,
        bus: &mut dyn Bus,
        qpn: u32,
        connected: &mut Connected,
        scratch: &mut [u8],
    ) -> Moved {
        let (Some(qp), Responder::Reliable(engine)) = (self.qps.get(qpn), &mut connected.responder)
        else {
            return Moved::Idle;
        };
        let credits = qp.credits(&self.chip, bus, connected.in_hand.is_some());
        let Some(reply) = engine.next_reply(credits) else {
            return Moved::Idle;
        };
        let port = qp.port();
        let Some(state) = self.ports.node.port_mut(port) else {
            return Moved::Idle;
        };
        let connection = qp.connection();
        let headers = connection.headers(state, reply.operation, reply.psn, reply.extended);
        let headers = match headers {
            Ok(headers) => headers,
            Err(error) => {
                // Nobody is told of an answer that cannot leave: the peer will ask again.
                if matches!(error, SendError::Discard(_)) {
                    state.counts.xmit_discards.bump();
                }
                engine.sent(&reply);
                return Moved::On;
            }
        };
        let len = reply.data.map_or(0, |data| data.len as usize);
        let Ok(mut frame) = headers.frame(len, scratch) else {
            engine.sent(&reply);
            return Moved::On;
        };
        if let Some(data) = reply.data {
            let who = Remote::of(qp, data.r_key.0);
            let read = self.chip.remote_read(bus, &who, data.va, frame.payload());
            if let Err(error) = read {
                if bus.tracing() {
                    bus.trace(format_args!("QP {qpn:#x}: READ response: {error}"));
                }
                let refusal = refusal(&error);
                engine.cannot_send(&reply, refusal);
                connected.ended = Some(End::Refused(refusal));
                return Moved::On;
            }
        }
        match self.emit(bus, port, frame.seal()) {
            Ok(()) => {
                engine.sent(&reply);
                Moved::On
            }
            Err(vl) => Moved::Blocked { port, vl },
        }
    }
}
