//! Unreliable connections: requests are complete when they are sent, and what is lost stays lost. protocols 2.7.

use super::message::{Message, NotTaken, Refusal, RemoteAccess, ResponderHost, take_message};
use super::rc_requester::{Failure, Transmit};
use super::request::{Request, RequestOp};
use core_ib::wire::packet::{Position, Transport};
use core_ib::{Mtu, Psn};

/// The requesting half: one request at a time, packet by packet.
pub struct UcRequester<T> {
    mtu: Mtu,
    psn: Psn,
    current: Option<(Request, T)>,
    /// Packets of it that went.
    sent: u32,
    /// It fails.
    doomed: Option<Failure>,
}

impl<T> UcRequester<T> {
    /// Whose first packet will be `psn`.
    pub const fn new(psn: Psn, mtu: Mtu) -> Self {
        Self {
            mtu,
            psn,
            current: None,
            sent: 0,
            doomed: None,
        }
    }

    /// PSN of the next packet.
    pub const fn next_psn(&self) -> Psn {
        self.psn
    }

    /// Nothing has begun: a request may.
    pub const fn is_idle(&self) -> bool {
        self.current.is_none()
    }

    /// `request` begins.
    pub fn begin(&mut self, request: Request, tag: T) {
        (self.current, self.sent, self.doomed) = (Some((request, tag)), 0, None);
    }

    /// A request begins that cannot be carried out.
    pub fn begin_doomed(&mut self, failure: Failure, tag: T) {
        let op = RequestOp::Local;
        self.begin(Request { op, len: 0 }, tag);
        self.doomed = Some(failure);
    }

    /// The request that has begun cannot be carried out to its end.
    pub fn fail(&mut self, failure: Failure) {
        self.doomed = self.doomed.or(Some(failure));
    }

    /// Why the request that has begun fails, if it does.
    pub fn failure(&self) -> Option<Failure> {
        self.doomed.filter(|_| self.current.is_some())
    }

    /// What the owner gave with the request that has begun.
    pub fn tag(&self) -> Option<&T> {
        self.current.as_ref().map(|(_, tag)| tag)
    }

    /// The packet that goes next; the same until [`sent`](Self::sent) says that it went.
    pub fn transmit(&self) -> Option<Transmit> {
        let (request, _) = self.current.as_ref()?;
        let goes_on = self.doomed.is_none() && self.sent < request.psns(self.mtu);
        goes_on.then(|| Transmit {
            slot: 0,
            packet: request.packet(self.mtu, self.sent),
            psn: self.psn,
            ack_req: false,
        })
    }

    /// That packet went out.
    pub fn sent(&mut self, transmit: &Transmit) {
        self.sent = self.sent.saturating_add(transmit.packet.psns);
        self.psn = self.psn.plus(transmit.packet.psns);
    }

    /// The request, if all of it was sent; it is forgotten.
    pub fn pop_completed(&mut self) -> Option<(Request, T)> {
        let (sent, mtu, sound) = (self.sent, self.mtu, self.doomed.is_none());
        let done = |(request, _): &mut (Request, T)| sound && sent >= request.psns(mtu);
        self.current.take_if(done)
    }

    /// Takes the request out, complete or not.
    pub fn abandon(&mut self) -> Option<T> {
        self.current.take().map(|(_, tag)| tag)
    }
}

/// The responding half.
pub struct UcResponder {
    mtu: Mtu,
    access: RemoteAccess,
    expected: Psn,
    message: Option<Message>,
    /// The rest of the message is dropped.
    dropping: bool,
}

impl UcResponder {
    /// That expects `psn` first.
    pub const fn new(psn: Psn, mtu: Mtu, access: RemoteAccess) -> Self {
        Self {
            mtu,
            access,
            expected: psn,
            message: None,
            dropping: false,
        }
    }

    /// Other rights from now on.
    pub fn set_access(&mut self, access: RemoteAccess) {
        self.access = access;
    }

    /// The PSN that comes next.
    pub const fn expected_psn(&self) -> Psn {
        self.expected
    }

    /// Takes a packet that came over the connection. An error is one of the receive request in hand; whatever else is
    /// wrong with a packet costs no more than its message.
    pub fn receive(
        &mut self,
        packet: &Transport<'_>,
        host: &mut dyn ResponderHost,
    ) -> Result<(), Refusal> {
        let psn = packet.bth.psn;
        let position = packet.bth.opcode.position();
        let begins = matches!(position, Some(Position::First | Position::Only));
        if psn != self.expected {
            (self.message, self.dropping) = (None, true);
        }
        self.expected = psn.plus(1);
        if begins {
            (self.message, self.dropping) = (None, false);
        }
        if self.dropping {
            return Ok(());
        }
        let taken = take_message(self.message, (self.mtu, self.access), packet, host);
        match taken {
            Ok(message) => {
                self.message = message;
                Ok(())
            }
            Err(NotTaken::Refused(
                refusal @ (Refusal::ReceiveLength
                | Refusal::ReceiveProtection
                | Refusal::ReceiveOperation
                | Refusal::ReceiveQueue),
            )) => Err(refusal),
            Err(_) => {
                (self.message, self.dropping) = (None, true);
                Ok(())
            }
        }
    }
}
