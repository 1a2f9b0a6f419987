//! The requesting half of a reliable connection: which packet goes next, what the answers mean, when to try again.
//! protocols 2.4, 2.6.
//!
//! PSNs name everything. The window holds the requests that have begun, oldest first, each with its range of PSNs. All
//! before `una` is acknowledged; `next` goes back when something was lost, and whatever lies behind it is sent again.

use super::request::{Request, RequestOp, RequestPacket};
use core::time::Duration;
use core_ib::wire::packet::{Aeth, Msn, NakCode, Operation, SyndromeKind, Transport};
use core_ib::{Instant, Mtu, Psn};
use std::collections::VecDeque;

/// Most PSNs that are outstanding. protocols 2.3.2.
const MAX_PSNS: u32 = 1 << 23;
/// A long message asks for an acknowledge so often.
const ACK_EVERY: u32 = 64;

/// What a queue pair's attributes say. They may change while nothing is outstanding, and the retry counts at any time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequesterLimits {
    /// MTU of the path.
    pub mtu: Mtu,
    /// Local ACK timeout code; 0 is no timeout.
    pub timeout: u8,
    /// Transmissions beside the first.
    pub retry_count: u8,
    /// RNR NAKs that are borne; 7 is any number.
    pub rnr_retry: u8,
    /// READs and atomics that are outstanding at most.
    pub max_rd_atomic: usize,
    /// Requests that are outstanding at most.
    pub max_requests: usize,
    /// End-to-end credits are not looked at.
    pub ignore_credits: bool,
}

impl RequesterLimits {
    /// How long an answer may take; twice the least that is allowed. protocols 2.6.3.
    fn patience(&self) -> Option<Duration> {
        let code = self.timeout & 0x1f;
        (code != 0).then(|| Duration::from_nanos(8192 << code))
    }
}

/// How a request fails. verbs 6.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// A message too long.
    LocalLength,
    /// Malformed, or not what the queue pair may ask for.
    LocalOperation,
    /// Its own memory.
    LocalProtection,
    /// A memory window was not bound.
    Bind,
    /// A response that makes no sense.
    BadResponse,
    /// NAK invalid request.
    RemoteInvalidRequest,
    /// NAK remote access error.
    RemoteAccess,
    /// NAK remote operational error.
    RemoteOperation,
    /// No answer after all retries.
    RetryExceeded,
    /// RNR NAK after all retries.
    RnrRetryExceeded,
}

/// One request that has begun.
struct Outstanding<T> {
    request: Request,
    first: Psn,
    psns: u32,
    ssn: Msn,
    /// Fails as soon as those before it are complete.
    doomed: Option<Failure>,
    tag: T,
}

/// A packet to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Which request of the window, for [`RcRequester::tag`].
    pub slot: usize,
    /// What it is made of.
    pub packet: RequestPacket,
    /// Its PSN.
    pub psn: Psn,
    /// BTH.AckReq.
    pub ack_req: bool,
}

/// What an answer asks of the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Response {
    /// Nothing, but perhaps requests are complete.
    Noted,
    /// It is none that is waited for.
    Ignored,
    /// The payload belongs to the message of request `slot`, `offset` bytes in; then [`RcRequester::placed`] or
    /// [`RcRequester::fail`].
    Data {
        /// Which request.
        slot: usize,
        /// Bytes from its start.
        offset: u32,
    },
    /// What the memory held goes into the 8 bytes of request `slot`; then the same.
    Original {
        /// Which request.
        slot: usize,
        /// The value.
        original: u64,
    },
}

/// The engine. `T` is what the owner wants to find again with a request.
pub struct RcRequester<T> {
    limits: RequesterLimits,
    window: VecDeque<Outstanding<T>>,
    /// All before it is acknowledged.
    una: Psn,
    /// Of the next packet, in request `at`.
    next: Psn,
    at: usize,
    /// Behind all that was ever sent.
    top: Psn,
    /// Behind the last packet that has to be answered.
    asked: Psn,
    /// Behind the window.
    end: Psn,
    /// Of the youngest request.
    ssn: Msn,
    /// Last request that has credit; none if nobody counts.
    limit: Option<Msn>,
    retries: u8,
    rnr_retries: u8,
    /// When the answer is given up.
    timer: Option<Instant>,
    /// Nothing is sent before this.
    not_ready: Option<Instant>,
    /// `next` was put back, and nothing was acknowledged since.
    gone_back: bool,
}

impl<T> RcRequester<T> {
    /// Whose first packet will be `psn`.
    pub fn new(psn: Psn, limits: RequesterLimits) -> Self {
        Self {
            limits,
            window: VecDeque::new(),
            una: psn,
            next: psn,
            at: 0,
            top: psn,
            asked: psn,
            end: psn,
            ssn: Msn::default(),
            limit: (!limits.ignore_credits).then(Msn::default),
            retries: limits.retry_count,
            rnr_retries: limits.rnr_retry,
            timer: None,
            not_ready: None,
            gone_back: false,
        }
    }

    /// Other limits from now on.
    pub fn set_limits(&mut self, limits: RequesterLimits) {
        if limits.ignore_credits {
            self.limit = None;
        }
        if limits.retry_count != self.limits.retry_count {
            self.retries = limits.retry_count;
        }
        if limits.rnr_retry != self.limits.rnr_retry {
            self.rnr_retries = limits.rnr_retry;
        }
        self.limits = limits;
    }

    /// First PSN of the next request.
    pub const fn next_psn(&self) -> Psn {
        self.end
    }

    /// Nothing is outstanding.
    pub fn is_idle(&self) -> bool {
        self.window.is_empty()
    }

    /// What the owner gave with request `slot`.
    pub fn tag(&self, slot: usize) -> Option<&T> {
        self.window.get(slot).map(|outstanding| &outstanding.tag)
    }

    /// The tags of all that is outstanding, oldest first.
    pub fn tags(&self) -> impl Iterator<Item = &T> {
        self.window.iter().map(|outstanding| &outstanding.tag)
    }

    /// First PSN of the window, from which the others are counted.
    fn base(&self) -> Psn {
        self.window.front().map_or(self.una, |front| front.first)
    }

    fn is_beyond_credit(&self, ssn: Msn) -> bool {
        let ahead = |limit| ssn.since(limit);
        self.limit
            .is_some_and(|limit| (1..1 << 23).contains(&ahead(limit)))
    }

    /// May a request begin, whatever it is? One at a time does, when all packets of those before it are sent.
    pub fn is_open(&self) -> bool {
        self.next == self.end
            && self.not_ready.is_none()
            && self.window.len() < self.limits.max_requests
            && self.failure().is_none()
            && self.window.back().is_none_or(|last| last.doomed.is_none())
    }

    /// May `request` begin?
    pub fn may_begin(&self, request: &Request, fence: bool) -> bool {
        let bringing = self.window.iter().filter(|one| one.request.brings_data());
        let waited_for = bringing.count();
        let has_credit = !request.needs_credit()
            // One without credit may try its luck.
            || !self.is_beyond_credit(self.ssn.plus(1))
            || !self.is_beyond_credit(self.ssn);
        let psns = self
            .end
            .since(self.base())
            .saturating_add(request.psns(self.limits.mtu));
        self.is_open()
            && !(fence && waited_for != 0)
            && !(request.brings_data() && waited_for >= self.limits.max_rd_atomic.max(1))
            && psns <= MAX_PSNS
            && has_credit
    }

    /// `request` begins.
    pub fn begin(&mut self, request: Request, tag: T) {
        self.push(request, None, tag);
    }

    /// A request that cannot be carried out: it fails when those before it are complete.
    pub fn begin_doomed(&mut self, failure: Failure, tag: T) {
        let request = Request {
            op: RequestOp::Local,
            len: 0,
        };
        self.push(request, Some(failure), tag);
    }

    fn push(&mut self, request: Request, doomed: Option<Failure>, tag: T) {
        let psns = request.psns(self.limits.mtu);
        self.ssn = match psns {
            0 => self.ssn,
            _ => self.ssn.plus(1),
        };
        self.window.push_back(Outstanding {
            request,
            first: self.end,
            psns,
            ssn: self.ssn,
            doomed,
            tag,
        });
        self.end = self.end.plus(psns);
    }

    /// The packet that goes next at `now`, if one may; the same until [`sent`](Self::sent) says that it went.
    pub fn transmit(&mut self, now: Instant) -> Option<Transmit> {
        if self.not_ready.is_some_and(|until| now < until) {
            return None;
        }
        self.not_ready = None;
        while self
            .window
            .get(self.at)
            .is_some_and(|one| one.psns == 0 && one.doomed.is_none())
        {
            self.at += 1;
        }
        let one = self
            .window
            .get(self.at)
            .filter(|one| one.doomed.is_none())?;
        let index = self.next.since(one.first);
        let beyond = one.request.needs_credit() && self.is_beyond_credit(one.ssn);
        // Beyond the credit one packet goes; an answer shows that there is a receive request after all.
        let unseen = self.una.since(self.base()) <= one.first.since(self.base());
        if beyond && index != 0 && unseen {
            return None;
        }
        let packet = one.request.packet(self.limits.mtu, index);
        let again = self.gone_back && self.next == self.una;
        Some(Transmit {
            slot: self.at,
            packet,
            psn: self.next,
            ack_req: packet.last || beyond || again || index % ACK_EVERY == ACK_EVERY - 1,
        })
    }

    /// That packet went out at `now`.
    pub fn sent(&mut self, transmit: &Transmit, now: Instant) {
        let base = self.base();
        self.next = self.next.plus(transmit.packet.psns);
        if self.next.since(base) > self.top.since(base) {
            self.top = self.next;
        }
        if transmit.ack_req {
            self.asked = self.next;
            self.timer = self.limits.patience().map(|wait| now.after(wait));
        }
        self.find_next();
    }

    /// Makes `at` the request that holds `next`.
    fn find_next(&mut self) {
        let base = self.base();
        let offset = self.next.since(base);
        while let Some(one) = self.window.get(self.at) {
            if offset < one.first.since(base).saturating_add(one.psns) || one.doomed.is_some() {
                break;
            }
            self.at += 1;
        }
    }

    /// When [`expired`](Self::expired) is to be called.
    pub fn deadline(&self) -> Option<Instant> {
        let waiting = self.asked != self.una;
        let timer = self.timer.filter(|_| waiting);
        self.not_ready.or(timer)
    }

    /// Looks at the clock.
    pub fn expired(&mut self, now: Instant) {
        if self.not_ready.is_some_and(|until| until <= now) {
            self.not_ready = None;
        }
        let waiting = self.asked != self.una;
        if waiting && self.not_ready.is_none() && self.timer.is_some_and(|due| due <= now) {
            self.go_back(self.una);
        }
    }

    /// All from `psn` on is sent again; without a retry left the request there fails.
    fn go_back(&mut self, psn: Psn) {
        let Some(retries) = self.retries.checked_sub(1) else {
            return self.doom(psn, Failure::RetryExceeded);
        };
        self.retries = retries;
        self.resume_at(psn);
        self.gone_back = true;
    }

    fn resume_at(&mut self, psn: Psn) {
        self.timer = None;
        self.asked = self.una;
        self.next = psn;
        self.at = 0;
        self.find_next();
    }

    /// The request that holds `psn` is to fail.
    fn doom(&mut self, psn: Psn, failure: Failure) {
        let base = self.base();
        let offset = psn.since(base);
        let holds =
            |one: &&mut Outstanding<T>| offset < one.first.since(base).saturating_add(one.psns);
        if let Some(one) = self.window.iter_mut().find(holds) {
            one.doomed = one.doomed.or(Some(failure));
        }
    }

    /// Request `slot` is to fail, since its own memory or the answer to it is bad.
    pub fn fail(&mut self, slot: usize, failure: Failure) {
        if let Some(one) = self.window.get_mut(slot) {
            one.doomed = one.doomed.or(Some(failure));
        }
    }

    /// What [`Response::Data`] or [`Response::Original`] asked for is done at `now`.
    pub fn placed(&mut self, now: Instant) {
        self.advance(self.una.plus(1), now);
    }

    /// The oldest request, if it is complete; it is forgotten.
    pub fn pop_completed(&mut self) -> Option<(Request, T)> {
        let front = self.window.front()?;
        let done = self.una.since(front.first) >= front.psns;
        if !done || front.doomed.is_some() {
            return None;
        }
        let front = self.window.pop_front()?;
        self.at = self.at.saturating_sub(1);
        Some((front.request, front.tag))
    }

    /// Why the oldest request fails, if it does: the connection is over.
    pub fn failure(&self) -> Option<Failure> {
        self.window.front()?.doomed
    }

    /// Another path is to be tried: what failed for want of an answer is sent again, with all retries.
    pub fn try_anew(&mut self) {
        if let Some(front) = self.window.front_mut() {
            front.doomed = front
                .doomed
                .filter(|failure| *failure != Failure::RetryExceeded);
        }
        self.retries = self.limits.retry_count;
        self.resume_at(self.una);
        self.gone_back = true;
    }

    /// Takes out all that is outstanding, oldest first. The engine is of no use any more.
    pub fn drain(&mut self) -> impl Iterator<Item = T> {
        (self.at, self.timer, self.not_ready) = (0, None, None);
        (self.next, self.top, self.asked) = (self.una, self.una, self.una);
        self.end = self.una;
        self.window.drain(..).map(|one| one.tag)
    }

    /// `una` becomes `to`.
    fn advance(&mut self, to: Psn, now: Instant) {
        let base = self.base();
        self.una = to;
        if self.next.since(base) < to.since(base) {
            self.next = to;
        }
        if self.asked.since(base) < to.since(base) {
            self.asked = to;
        }
        self.find_next();
        self.gone_back = false;
        self.retries = self.limits.retry_count;
        self.rnr_retries = self.limits.rnr_retry;
        self.timer = self.limits.patience().map(|wait| now.after(wait));
    }

    /// Everything before `to` is acknowledged, but for a READ or atomic whose answer is missing: the first missing PSN is
    /// given back then.
    fn acknowledge(&mut self, to: Psn, now: Instant) -> Option<Psn> {
        let base = self.base();
        let una = self.una.since(base);
        let mut reach = to.since(base);
        let mut lost = None;
        for one in &self.window {
            let first = one.first.since(base);
            let missing = first.max(una);
            let is_open = missing < first.saturating_add(one.psns);
            if one.request.brings_data() && is_open && missing < reach {
                reach = missing;
                lost = Some(base.plus(missing));
            }
            if first >= reach {
                break;
            }
        }
        if reach > una {
            self.advance(base.plus(reach), now);
        }
        lost
    }

    /// An answer to something that lies behind a lost one. Told once: those that follow say the same.
    fn lost(&mut self, psn: Psn) -> Response {
        if !self.gone_back && self.next != psn {
            self.go_back(psn);
        }
        Response::Noted
    }

    /// Takes a packet that came over the connection, whose operation is a response.
    pub fn receive(&mut self, packet: &Transport<'_>, now: Instant) -> Response {
        let psn = packet.bth.psn;
        let (base, operation) = (self.base(), packet.bth.opcode.operation());
        let aeth = packet.extended.aeth;
        if let Some(aeth) = aeth {
            self.take_credit(&aeth);
        }
        let offset = psn.since(base);
        if offset < self.una.since(base) || offset >= self.top.since(base) {
            return Response::Ignored;
        }
        match operation {
            Operation::ACKNOWLEDGE => match aeth {
                Some(aeth) => self.acknowledged(psn, &aeth, now),
                None => Response::Ignored,
            },
            _ => self.data(packet, psn, now),
        }
    }

    fn take_credit(&mut self, aeth: &Aeth) {
        let SyndromeKind::Ack(credits) = aeth.syndrome.kind() else {
            return;
        };
        self.limit = match (self.limit, credits.credits()) {
            (None, _) | (_, None) => None,
            (Some(old), Some(credits)) => {
                let new = aeth.msn.plus(credits);
                Some(if new.since(old) < 1 << 23 { new } else { old })
            }
        };
    }

    fn acknowledged(&mut self, psn: Psn, aeth: &Aeth, now: Instant) -> Response {
        let kind = aeth.syndrome.kind();
        let before = match kind {
            SyndromeKind::Ack(_) => psn.plus(1),
            _ => psn,
        };
        if let Some(missing) = self.acknowledge(before, now) {
            return self.lost(missing);
        }
        match kind {
            SyndromeKind::Ack(_) => {}
            SyndromeKind::RnrNak(timer) => {
                if self.not_ready.is_some() {
                    return Response::Ignored;
                }
                if self.limits.rnr_retry < 7 {
                    let Some(left) = self.rnr_retries.checked_sub(1) else {
                        self.doom(psn, Failure::RnrRetryExceeded);
                        return Response::Noted;
                    };
                    self.rnr_retries = left;
                }
                self.resume_at(psn);
                self.not_ready = Some(now.after(timer.duration()));
            }
            SyndromeKind::Nak(NakCode::PSN_SEQUENCE_ERROR) => {
                if self.next != psn {
                    self.go_back(psn);
                }
            }
            SyndromeKind::Nak(code) => self.doom(
                psn,
                match code {
                    NakCode::INVALID_REQUEST => Failure::RemoteInvalidRequest,
                    NakCode::REMOTE_ACCESS_ERROR => Failure::RemoteAccess,
                    NakCode::REMOTE_OPERATIONAL_ERROR => Failure::RemoteOperation,
                    _ => Failure::BadResponse,
                },
            ),
            SyndromeKind::Reserved => self.doom(psn, Failure::BadResponse),
        }
        Response::Noted
    }

    /// A READ response or an atomic acknowledge.
    fn data(&mut self, packet: &Transport<'_>, psn: Psn, now: Instant) -> Response {
        if let Some(missing) = self.acknowledge(psn, now) {
            return self.lost(missing);
        }
        let base = self.base();
        let offset = psn.since(base);
        let found = self
            .window
            .iter()
            .enumerate()
            .find(|(_, one)| offset < one.first.since(base).saturating_add(one.psns));
        let Some((slot, one)) = found else {
            return Response::Ignored;
        };
        let index = psn.since(one.first);
        if let Some(ack) = packet.extended.atomic_ack {
            if matches!(one.request.op, RequestOp::Atomic { .. }) {
                let original = ack.original;
                return Response::Original { slot, original };
            }
        } else if let Some((offset, len)) = expected_data(&one.request, self.limits.mtu, index)
            && fits(packet, index.saturating_add(1) == one.psns)
            && packet.payload.len() == len as usize
        {
            return Response::Data { slot, offset };
        }
        self.fail(slot, Failure::BadResponse);
        Response::Noted
    }
}

/// Of a READ: where the data of its packet `index` belongs, and how long it is.
fn expected_data(request: &Request, mtu: Mtu, index: u32) -> Option<(u32, u32)> {
    let RequestOp::Read { .. } = request.op else {
        return None;
    };
    let bytes = mtu.bytes() as u32;
    let offset = index.saturating_mul(bytes).min(request.len);
    Some((offset, (request.len - offset).min(bytes)))
}

/// A response to a READ that was asked for again from the middle begins there: First and Only stand for Middle and Last.
fn fits(packet: &Transport<'_>, last: bool) -> bool {
    let operation = packet.bth.opcode.operation();
    match operation {
        Operation::READ_RESPONSE_FIRST | Operation::READ_RESPONSE_MIDDLE => !last,
        Operation::READ_RESPONSE_LAST | Operation::READ_RESPONSE_ONLY => last,
        _ => false,
    }
}
