//! Requests that wait for an answer, beside the MADs that ask. protocols 3.12.
//!
//! [`Requests`] is a table of [`Transaction`]s. It chooses the transaction id of each (upper half: the agent, lower
//! half: a serial number), repeats what is not answered, and knows an answer by transaction, class and sender.

use crate::addr::{Outgoing, Received};
use crate::dispatch::AgentId;
use crate::transaction::{Event, Next, NoAnswer, Patience, Transaction};
use core::fmt;
use core_ib::Instant;
use core_ib::wire::mad::{MadHeader, MadStatus, MgmtClass};

/// Names a request while it waits: the lower half of its transaction id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestId(pub u32);

/// No request was taken on: all places are in use. Wait for an answer, or raise the capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyRequests {
    /// How many places there are.
    pub limit: usize,
}

impl fmt::Display for TooManyRequests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "all {} places for requests are in use", self.limit)
    }
}

impl core::error::Error for TooManyRequests {}

/// What the owner of the table is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestsNext<'a> {
    /// Put this on the wire, then poll again.
    Send(&'a Outgoing),
    /// This request is over and gone.
    Failed {
        /// Whose it was.
        agent: AgentId,
        /// Which.
        request: RequestId,
        /// Why.
        why: NoAnswer,
    },
    /// Nothing before this instant, unless an event comes.
    WaitUntil(Instant),
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    agent: AgentId,
    id: RequestId,
    outgoing: Outgoing,
    transaction: Transaction,
}

/// At most `N` requests that wait.
#[derive(Debug)]
pub struct Requests<const N: usize> {
    pending: [Option<Pending>; N],
    serial: u32,
}

impl<const N: usize> Default for Requests<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> Requests<N> {
    /// None.
    pub const fn new() -> Self {
        Self {
            pending: [const { None }; N],
            serial: 0,
        }
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.pending.iter().flatten().count()
    }

    /// Does none wait?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes a request on: gives it a transaction id and sends it at the next [`poll`](Self::poll).
    pub fn start(
        &mut self,
        agent: AgentId,
        outgoing: &Outgoing,
        patience: Patience,
        now: Instant,
    ) -> Result<RequestId, TooManyRequests> {
        let place = self.pending.iter().position(Option::is_none);
        let full = TooManyRequests { limit: N };
        let id = self.next_id();
        let slot = place.and_then(|index| self.pending.get_mut(index));
        let slot = slot.ok_or(full)?;
        let mut outgoing = *outgoing;
        set_tid(&mut outgoing, agent.tid(id.0));
        *slot = Some(Pending {
            agent,
            id,
            outgoing,
            transaction: Transaction::new(patience, now),
        });
        Ok(id)
    }

    /// A serial number that no waiting request has. Those that are over have had theirs for 2^32 requests.
    fn next_id(&mut self) -> RequestId {
        loop {
            self.serial = self.serial.wrapping_add(1);
            let id = RequestId(self.serial);
            if !self
                .pending
                .iter()
                .flatten()
                .any(|request| request.id == id)
            {
                return id; // at the latest after N rounds
            }
        }
    }

    fn find(&mut self, matches: impl Fn(&Pending) -> bool) -> Option<&mut Option<Pending>> {
        let found = |slot: &&mut Option<Pending>| slot.as_ref().is_some_and(&matches);
        self.pending.iter_mut().find(found)
    }

    /// Is `received` the answer to one of these? If so that one is over. An answer "busy" is taken, but ends nothing:
    /// the request goes out again in time.
    pub fn answer(&mut self, received: &Received, now: Instant) -> Answer {
        let header = received.header();
        let slot = self.find(|request| {
            let asked = request.outgoing.mad.header();
            asked.tid == header.tid
                && asked.class == header.class
                && received.is_from(&request.outgoing.to)
        });
        let Some(slot) = slot else {
            return Answer::ToNothing;
        };
        let Some(request) = slot else {
            return Answer::ToNothing;
        };
        let status = MadStatus(header.status.0 & !direction(&header));
        request.transaction.handle(Event::Response(status), now);
        match request.transaction.poll(now) {
            Next::Done(Ok(_)) => {
                let id = request.id;
                *slot = None;
                Answer::To(id)
            }
            _ => Answer::Busy,
        }
    }

    /// The last try with this transaction id did not reach the wire. Says whether it was one of these.
    pub fn send_failed(&mut self, tid: u64, now: Instant) -> bool {
        let slot = self.find(|request| request.outgoing.mad.view().tid() == tid);
        if let Some(Some(request)) = slot {
            request.transaction.handle(Event::SendFailed, now);
            return true;
        }
        false
    }

    /// Ends a request; [`poll`](Self::poll) reports it as [`NoAnswer::Cancelled`]. Says whether it was waiting.
    pub fn cancel(&mut self, id: RequestId, now: Instant) -> bool {
        if let Some(Some(request)) = self.find(|request| request.id == id) {
            request.transaction.handle(Event::Cancelled, now);
            return true;
        }
        false
    }

    /// Forgets a request without a word. Says whether it was waiting.
    pub fn forget(&mut self, id: RequestId) -> bool {
        self.find(|request| request.id == id)
            .and_then(Option::take)
            .is_some()
    }

    /// Forgets all requests of an agent without a word.
    pub fn forget_agent(&mut self, agent: AgentId) {
        while let Some(slot) = self.find(|request| request.agent == agent) {
            *slot = None;
        }
    }

    /// Sends what waits elsewhere from now on, and at once, with all its tries: the peer has moved.
    pub fn readdress(&mut self, change: impl Fn(&mut Outgoing), patience: Patience, now: Instant) {
        for request in self.pending.iter_mut().flatten() {
            change(&mut request.outgoing);
            request.transaction = Transaction::new(patience, now);
        }
    }

    /// What is due at `now`. Poll again after anything but `WaitUntil`. Ask first whether the wire has room: a `Send`
    /// that is thrown away counts as a try.
    pub fn poll(&mut self, now: Instant) -> RequestsNext<'_> {
        let mut wake = Instant::NEVER;
        let mut due = None;
        for (index, slot) in self.pending.iter_mut().enumerate() {
            let Some(request) = slot else { continue };
            match request.transaction.poll(now) {
                Next::Send => {
                    due = Some(index);
                    break;
                }
                Next::WaitUntil(at) => wake = wake.min(at),
                Next::Done(outcome) => {
                    let (agent, request) = (request.agent, request.id);
                    *slot = None;
                    if let Err(why) = outcome {
                        return RequestsNext::Failed {
                            agent,
                            request,
                            why,
                        };
                    }
                }
            }
        }
        match due.and_then(|index| self.pending.get(index)) {
            Some(Some(request)) => RequestsNext::Send(&request.outgoing),
            _ => RequestsNext::WaitUntil(wake),
        }
    }
}

/// What a response answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// This request, which is over.
    To(RequestId),
    /// A request that goes out again, because the peer is busy.
    Busy,
    /// Nothing that waits: a duplicate, a late one, a forged one.
    ToNothing,
}

/// The bit of the status that is none in a directed-route SMP.
fn direction(header: &MadHeader) -> u16 {
    if header.class == MgmtClass::SUBN_DR {
        MadStatus::DIRECTION
    } else {
        0
    }
}

pub(crate) fn set_tid(outgoing: &mut Outgoing, tid: u64) {
    if let Some(place) = outgoing.mad.0.get_mut(8..16) {
        place.copy_from_slice(&tid.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MadAddr, SpecialQp};
    use core_ib::wire::mad::{AttributeId, Mad, Method, Smp};
    use core_ib::{Lid, Sl};
    use proptest::prelude::*;
    use std::vec::Vec;

    const AGENT: AgentId = AgentId::new(5);

    const fn ms(millis: u64) -> Instant {
        Instant(millis * 1_000_000)
    }

    fn outgoing(lid: u16) -> Outgoing {
        let smp = Smp::lid_routed(Method::GET, AttributeId::SM_INFO, 0);
        Outgoing {
            to: MadAddr::smi(Lid(lid), Sl::new(0)),
            mad: Mad(smp.to_bytes()),
        }
    }

    fn answer(tid: u64, lid: u16, status: MadStatus) -> Received {
        let mut mad = outgoing(lid).mad;
        let mut header = mad.header().reply(status).unwrap();
        header.tid = tid;
        mad.set_header(&header);
        let mut received = Received::looped_back(SpecialQp::Smi, mad);
        received.wc.slid = Lid(lid);
        received
    }

    #[test]
    fn only_the_one_who_was_asked_can_answer_and_only_once() {
        let mut requests = Requests::<2>::new();
        let id = requests
            .start(AGENT, &outgoing(7), Patience::new(100, 1), ms(0))
            .unwrap();
        let RequestsNext::Send(sent) = requests.poll(ms(0)) else {
            panic!("is due");
        };
        let tid = sent.mad.header().tid;
        assert_eq!(tid, AGENT.tid(id.0));
        let ok = MadStatus::OK;
        for wrong in [answer(tid + 1, 7, ok), answer(tid, 8, ok)] {
            assert_eq!(requests.answer(&wrong, ms(1)), Answer::ToNothing);
        }
        let mut other_class = answer(tid, 7, ok);
        other_class.mad.0[1] = 0x81;
        assert_eq!(requests.answer(&other_class, ms(1)), Answer::ToNothing);
        assert_eq!(
            requests.answer(&answer(tid, 7, MadStatus::BUSY), ms(1)),
            Answer::Busy
        );
        assert_eq!(requests.answer(&answer(tid, 7, ok), ms(2)), Answer::To(id));
        assert_eq!(
            requests.answer(&answer(tid, 7, ok), ms(3)),
            Answer::ToNothing
        );
        assert!(requests.is_empty());
    }

    #[test]
    fn the_d_bit_of_a_directed_route_is_no_status() {
        let smp = Smp::directed(Method::GET, AttributeId::NODE_INFO, 0, &[1]).unwrap();
        let mad = Mad(smp.to_bytes());
        let to = MadAddr::DIRECTED;
        let mut requests = Requests::<1>::new();
        let asked = Outgoing { to, mad };
        let id = requests.start(AGENT, &asked, Patience::SMP, ms(0)).unwrap();
        requests.poll(ms(0));
        let mut reply = answer(AGENT.tid(id.0), 3, MadStatus(0x8000));
        reply.mad.0[1] = 0x81;
        assert_eq!(requests.answer(&reply, ms(1)), Answer::To(id));
    }

    #[test]
    fn a_full_table_says_how_large_it_is_and_a_cancelled_request_makes_room() {
        let mut requests = Requests::<1>::new();
        let patience = Patience::SMP;
        let id = requests
            .start(AGENT, &outgoing(7), patience, ms(0))
            .unwrap();
        let more = requests.start(AGENT, &outgoing(8), patience, ms(0));
        assert_eq!(more, Err(TooManyRequests { limit: 1 }));
        assert!(requests.cancel(id, ms(0)));
        let (agent, request, why) = (AGENT, id, NoAnswer::Cancelled);
        let failed = RequestsNext::Failed {
            agent,
            request,
            why,
        };
        assert_eq!(requests.poll(ms(0)), failed);
        assert!(!requests.cancel(id, ms(0)));
        assert!(requests.start(AGENT, &outgoing(8), patience, ms(0)).is_ok());
    }

    #[test]
    fn a_peer_that_moved_is_asked_there_from_the_beginning() {
        let mut requests = Requests::<1>::new();
        let patience = Patience::new(100, 0);
        requests
            .start(AGENT, &outgoing(7), patience, ms(0))
            .unwrap();
        requests.poll(ms(0));
        requests.readdress(|outgoing| outgoing.to.lid = Lid(9), patience, ms(50));
        let next = requests.poll(ms(50));
        assert!(matches!(next, RequestsNext::Send(sent) if sent.to.lid == Lid(9)));
        assert_eq!(requests.poll(ms(60)), RequestsNext::WaitUntil(ms(150)));
    }

    proptest! {
        #[test]
        fn every_request_ends_once_by_answer_or_failure(
            starts in proptest::collection::vec((0..300_u64, any::<bool>()), 1..30),
        ) {
            let mut requests = Requests::<4>::new();
            let (mut now, mut started, mut ended) = (0, Vec::new(), Vec::new());
            for (wait, answers) in starts.into_iter().chain([(1000, false); 3]) {
                now += wait;
                if now < 10_000 && let Ok(id) = requests.start(AGENT, &outgoing(7), Patience::new(100, 2), ms(now)) {
                    prop_assert!(!started.contains(&id), "a number is not given twice");
                    started.push(id);
                }
                loop {
                    match requests.poll(ms(now)) {
                        RequestsNext::Send(sent) => {
                            let tid = sent.mad.header().tid;
                            if answers {
                                let reply = answer(tid, 7, MadStatus::OK);
                                if let Answer::To(id) = requests.answer(&reply, ms(now)) {
                                    ended.push(id);
                                }
                            }
                        }
                        RequestsNext::Failed { request, .. } => ended.push(request),
                        RequestsNext::WaitUntil(at) => {
                            prop_assert!(at > ms(now));
                            break;
                        }
                    }
                }
            }
            // Whoever is left times out.
            now += 10_000;
            for _ in 0..4 {
                loop {
                    match requests.poll(ms(now)) {
                        RequestsNext::Failed { request, .. } => ended.push(request),
                        RequestsNext::Send(_) => {}
                        RequestsNext::WaitUntil(_) => break,
                    }
                }
                now += 1000;
            }
            started.sort_by_key(|id| id.0);
            ended.sort_by_key(|id| id.0);
            prop_assert_eq!(started, ended);
        }
    }
}
