//! Who gets a MAD: agents, what they registered for, and what they asked. protocols 3.12.
//!
//! An *agent* is whoever sends requests or serves a class on one port. [`Dispatch`] gives each an identity, which is
//! the upper half of every transaction id that it uses; a response finds its way by that, an unsolicited MAD by
//! class, class version, method and (0x30 to 0x4F) OUI. It owns no QP and calls nobody: the owner puts what it
//! [polls](Dispatch::poll) on the wire and hands each [`Delivery`] to the agent it names.

use crate::addr::{Outgoing, Received, SpecialQp};
use crate::requests::{Answer, RequestId, Requests, RequestsNext, TooManyRequests};
use crate::transaction::{NoAnswer, Patience};
use core::fmt;
use core_ib::Instant;
use core_ib::platform::Blank;
use core_ib::wire::mad::{AttributeId, Mad, MadHeader, MadStatus, Method, MgmtClass};

/// Names an agent of one port. Never used again once the agent is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AgentId(u32);

impl AgentId {
    /// For who keeps agents of his own, without [`Dispatch`].
    pub const fn new(id: u32) -> Self {
        Self(id)
    }

    /// The number: the upper half of the agent's transaction ids.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The transaction id with this lower half.
    pub const fn tid(self, low: u32) -> u64 {
        (self.0 as u64) << 32 | low as u64
    }

    /// Whose transaction this is.
    pub const fn of_tid(tid: u64) -> Self {
        Self((tid >> 32) as u32)
    }
}

/// A set of methods, without the response bit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Methods(u128);

impl Methods {
    /// None: an agent that only asks.
    pub const NONE: Self = Self(0);
    /// What an attribute of most classes takes.
    pub const GET_SET: Self = Self::NONE.and(Method::GET).and(Method::SET);
    /// What an SA serves.
    pub const SA_SERVER: Self = Self::GET_SET
        .and(Method::GET_TABLE)
        .and(Method::GET_TRACE_TABLE)
        .and(Method::GET_MULTI)
        .and(Method::DELETE);

    /// These and `method`.
    pub const fn and(self, method: Method) -> Self {
        Self(self.0 | 1 << (method.0 & 0x7f))
    }

    /// Is `method` among them?
    pub const fn contains(self, method: Method) -> bool {
        self.0 >> (method.0 & 0x7f) & 1 != 0
    }

    const fn overlaps(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

/// Who waits for the answers to an agent's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tracking {
    /// [`Dispatch::request`] does; other responses are dropped.
    Dispatch,
    /// The agent itself, like [`Sa`](crate::Sa): it gets every response with its identity.
    Agent,
}

/// What an agent wants to get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registration {
    /// By which QP.
    pub qp: SpecialQp,
    /// Class of the unsolicited MADs that it takes.
    pub class: MgmtClass,
    /// Their class version.
    pub class_version: u8,
    /// With class 0x30 to 0x4F: their OUI.
    pub oui: [u8; 3],
    /// Their methods.
    pub methods: Methods,
    /// Who waits for answers.
    pub tracking: Tracking,
}

impl Registration {
    /// Takes nothing unsolicited, and lets the dispatch wait for its answers.
    pub const fn client(qp: SpecialQp) -> Self {
        Self {
            qp,
            class: MgmtClass(0),
            class_version: 0,
            oui: [0; 3],
            methods: Methods::NONE,
            tracking: Tracking::Dispatch,
        }
    }

    /// Takes `methods` of a class.
    pub const fn server(qp: SpecialQp, class: MgmtClass, version: u8, methods: Methods) -> Self {
        Self {
            class,
            class_version: version,
            methods,
            ..Self::client(qp)
        }
    }

    /// What the client of a subnet administrator takes: reports. See [`Sa`](crate::Sa).
    pub const fn sa_client() -> Self {
        let reports = Methods::NONE.and(Method::REPORT);
        Self {
            tracking: Tracking::Agent,
            ..Self::server(SpecialQp::Gsi, MgmtClass::SUBN_ADM, 2, reports)
        }
    }

    /// What a client of performance management takes: nothing but its answers. See [`Perf`](crate::Perf).
    pub const fn perf_client() -> Self {
        Self {
            tracking: Tracking::Agent,
            ..Self::client(SpecialQp::Gsi)
        }
    }

    /// Would some MAD be taken by both?
    fn collides(&self, other: &Self) -> bool {
        self.qp == other.qp
            && self.class == other.class
            && self.class_version == other.class_version
            && (!self.class.is_vendor_oui() || self.oui == other.oui)
            && self.methods.overlaps(other.methods)
    }

    fn takes(&self, qp: SpecialQp, header: &MadHeader, oui: [u8; 3]) -> bool {
        self.qp == qp
            && self.class == header.class
            && self.class_version == header.class_version
            && (!self.class.is_vendor_oui() || self.oui == oui)
            && self.methods.contains(header.method)
    }
}

/// Why an agent was not registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RegisterError {
    /// All places are taken.
    TooManyAgents {
        /// How many there are.
        limit: usize,
    },
    /// Another agent takes some of these methods.
    Taken {
        /// That agent.
        by: AgentId,
    },
    /// This QP does not carry this class.
    WrongQp {
        /// The class.
        class: MgmtClass,
    },
}

impl fmt::Display for RegisterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::TooManyAgents { limit } => write!(f, "all {limit} places for agents are in use"),
            Self::Taken { by } => write!(f, "agent {:#x} takes some of these MADs", by.0),
            Self::WrongQp { class } => {
                write!(f, "class {:#04x} does not travel by this QP", class.0)
            }
        }
    }
}

impl core::error::Error for RegisterError {}

/// What becomes of a received MAD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// An agent serves it.
    Request {
        /// That agent.
        agent: AgentId,
    },
    /// It answers what an agent asked.
    Response {
        /// That agent.
        agent: AgentId,
        /// Which request, if it was made with [`Dispatch::request`]; it is over.
        request: Option<RequestId>,
    },
    /// Nobody serves it: send this refusal.
    Refused(Outgoing),
    /// Nothing to be done.
    Dropped(Dropped),
}

/// Why a MAD is dropped without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Dropped {
    /// A base version that is not spoken here.
    Version(u8),
    /// A class that this QP does not carry.
    WrongQp(MgmtClass),
    /// A response to an agent that is not there (any more).
    NoSuchAgent,
    /// A response to nothing that waits: late, a duplicate, or from somebody else.
    NotAsked,
    /// The peer is busy; the request goes out again.
    Busy,
    /// Unsolicited, not served by anybody, and of a method that is not refused.
    Unclaimed,
}

/// What the owner is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DispatchNext<'a> {
    /// Put this on the wire, then poll again.
    Send(&'a Outgoing),
    /// Tell the agent that its request is over. Then poll again.
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

/// At most `AGENTS` agents of one port, and at most `REQUESTS` of their requests that wait for an answer.
#[derive(Debug)]
pub struct Dispatch<const AGENTS: usize, const REQUESTS: usize> {
    agents: [Option<(AgentId, Registration)>; AGENTS],
    requests: Requests<REQUESTS>,
    last: u32,
}

// SAFETY: it holds values alone, no owner of anything.
unsafe impl<const AGENTS: usize, const REQUESTS: usize> Blank for Dispatch<AGENTS, REQUESTS> {
    const BLANK: &'static Self = &Self::new();
}

impl<const AGENTS: usize, const REQUESTS: usize> Default for Dispatch<AGENTS, REQUESTS> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const AGENTS: usize, const REQUESTS: usize> Dispatch<AGENTS, REQUESTS> {
    /// Nobody.
    pub const fn new() -> Self {
        Self {
            agents: [const { None }; AGENTS],
            requests: Requests::new(),
            last: 0,
        }
    }

    /// A new agent.
    pub fn register(&mut self, wanted: Registration) -> Result<AgentId, RegisterError> {
        let serves = wanted.methods != Methods::NONE;
        if serves && !wanted.qp.carries(wanted.class) {
            let class = wanted.class;
            return Err(RegisterError::WrongQp { class });
        }
        let known = self.agents.iter().flatten();
        if let Some(&(by, _)) = known.clone().find(|(_, other)| other.collides(&wanted)) {
            return Err(RegisterError::Taken { by });
        }
        let free = |id: u32| id != 0 && !known.clone().any(|(agent, _)| agent.0 == id);
        let mut id = self.last.wrapping_add(1);
        while !free(id) {
            id = id.wrapping_add(1); // ends: of AGENTS + 2 numbers one is free
        }
        let Some(slot) = self.agents.iter_mut().find(|slot| slot.is_none()) else {
            return Err(RegisterError::TooManyAgents { limit: AGENTS });
        };
        self.last = id;
        *slot = Some((AgentId(id), wanted));
        Ok(AgentId(id))
    }

    /// Ends an agent. Its requests are forgotten, and late answers to them are dropped. Harmless if it is gone.
    pub fn unregister(&mut self, agent: AgentId) {
        let slots = self.agents.iter_mut();
        for slot in slots.filter(|slot| slot.is_some_and(|(id, _)| id == agent)) {
            *slot = None;
        }
        self.requests.forget_agent(agent);
    }

    /// Sends a request until it is answered or `patience` is at an end. The transaction id in `outgoing` is replaced.
    pub fn request(
        &mut self,
        agent: AgentId,
        outgoing: &Outgoing,
        patience: Patience,
        now: Instant,
    ) -> Result<RequestId, TooManyRequests> {
        self.requests.start(agent, outgoing, patience, now)
    }

    /// Takes a request back; [`poll`](Self::poll) reports it as failed. Says whether it was waiting.
    pub fn cancel(&mut self, request: RequestId, now: Instant) -> bool {
        self.requests.cancel(request, now)
    }

    /// A send of the MAD with this transaction id did not reach the wire. Says whether a request of ours was meant.
    pub fn send_failed(&mut self, tid: u64, now: Instant) -> bool {
        self.requests.send_failed(tid, now)
    }

    /// Says who gets `received`.
    pub fn handle(&mut self, received: &Received, now: Instant) -> Delivery {
        let header = received.header();
        if header.base_version != MadHeader::BASE_VERSION {
            return Delivery::Dropped(Dropped::Version(header.base_version));
        }
        if !received.qp.carries(header.class) {
            return Delivery::Dropped(Dropped::WrongQp(header.class));
        }
        if header.is_response() {
            self.response(received, &header, now)
        } else {
            self.unsolicited(received, &header)
        }
    }

    fn response(&mut self, received: &Received, header: &MadHeader, now: Instant) -> Delivery {
        let agent = AgentId::of_tid(header.tid);
        let mut known = self.agents.iter().flatten();
        let Some((_, registration)) = known.find(|(id, _)| *id == agent) else {
            return Delivery::Dropped(Dropped::NoSuchAgent);
        };
        match self.requests.answer(received, now) {
            Answer::To(request) => Delivery::Response {
                agent,
                request: Some(request),
            },
            Answer::Busy => Delivery::Dropped(Dropped::Busy),
            Answer::ToNothing if registration.tracking == Tracking::Agent => Delivery::Response {
                agent,
                request: None,
            },
            Answer::ToNothing => Delivery::Dropped(Dropped::NotAsked),
        }
    }

    fn unsolicited(&self, received: &Received, header: &MadHeader) -> Delivery {
        let oui = [received.mad.0[37], received.mad.0[38], received.mad.0[39]];
        let mut agents = self.agents.iter().flatten();
        let taker = agents.find(|(_, wanted)| wanted.takes(received.qp, header, oui));
        if let Some(&(agent, _)) = taker
            && is_acceptable(header)
        {
            return Delivery::Request { agent };
        }
        match refusal(&received.mad) {
            Some(mad) => Delivery::Refused(received.reply(mad)),
            None => Delivery::Dropped(Dropped::Unclaimed),
        }
    }

    /// What is due at `now`. Poll again after anything but `WaitUntil`. Ask first whether the port has room: a `Send`
    /// that is thrown away counts as a try.
    pub fn poll(&mut self, now: Instant) -> DispatchNext<'_> {
        match self.requests.poll(now.on_the_clock()) {
            RequestsNext::Send(outgoing) => DispatchNext::Send(outgoing),
            RequestsNext::Failed {
                agent,
                request,
                why,
            } => DispatchNext::Failed {
                agent,
                request,
                why,
            },
            RequestsNext::WaitUntil(at) => DispatchNext::WaitUntil(at),
        }
    }
}

/// Communication management is Send, but for its ClassPortInfo. protocols 3.12.
fn is_acceptable(header: &MadHeader) -> bool {
    header.class != MgmtClass::CM
        || header.method == Method::SEND
        || header.attribute == AttributeId::CLASS_PORT_INFO
}

/// The answer to a Get or a Set that nobody serves: everything as it was, status 0x000C. `None` for what is never
/// refused, RMPP acknowledgements among it. protocols 3.4.
pub fn refusal(mad: &Mad) -> Option<Mad> {
    let asked = mad.header();
    let asks = matches!(asked.method, Method::GET | Method::SET) && !asked.is_response();
    if !asks || crate::rmpp::is_control(mad) {
        return None;
    }
    let mut mad = *mad;
    let [high, low] = MadStatus::UNSUPPORTED_METHOD_ATTRIBUTE.0.to_be_bytes();
    (mad.0[3], mad.0[4], mad.0[5]) = (Method::GET_RESP.0, high, low);
    crate::smi::turn_back(&mut mad);
    Some(mad)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MadAddr;
    use core_ib::{Lid, Sl};
    use proptest::prelude::*;
    use std::vec::Vec;

    const NOW: Instant = Instant(0);
    const SMI: SpecialQp = SpecialQp::Smi;
    const GSI: SpecialQp = SpecialQp::Gsi;

    fn mad(class: u8, version: u8, method: u8, tid: u64) -> Mad {
        let mut mad = Mad::ZERO;
        mad.set_header(&MadHeader {
            base_version: 1,
            class: MgmtClass(class),
            class_version: version,
            method: Method(method),
            attribute: AttributeId::CLASS_PORT_INFO,
            tid,
            ..MadHeader::default()
        });
        mad
    }

    fn received(qp: SpecialQp, mad: Mad) -> Received {
        let mut received = Received::looped_back(qp, mad);
        received.wc.slid = Lid(4);
        received
    }

    fn server(qp: SpecialQp, class: u8, version: u8) -> Registration {
        Registration::server(qp, MgmtClass(class), version, Methods::GET_SET)
    }

    #[test]
    fn an_unsolicited_mad_goes_to_who_registered_for_it() {
        let mut dispatch = Dispatch::<4, 2>::new();
        let dm = dispatch.register(server(GSI, 0x06, 1)).unwrap();
        let sa = Registration::server(GSI, MgmtClass::SUBN_ADM, 2, Methods::SA_SERVER);
        let sa = dispatch.register(sa).unwrap();
        let mut to = |mad| dispatch.handle(&received(GSI, mad), NOW);
        assert_eq!(to(mad(0x06, 1, 1, 9)), Delivery::Request { agent: dm });
        assert_eq!(to(mad(0x03, 2, 0x12, 9)), Delivery::Request { agent: sa });
        assert!(
            matches!(to(mad(0x03, 1, 1, 9)), Delivery::Refused(_)),
            "another version"
        );
        let unclaimed = Delivery::Dropped(Dropped::Unclaimed);
        assert_eq!(to(mad(0x06, 1, 3, 9)), unclaimed, "another method");
    }

    #[test]
    fn two_vendors_share_a_class_by_their_oui() {
        let mut dispatch = Dispatch::<4, 2>::new();
        let mut register = |oui| {
            let registration = Registration {
                oui,
                ..server(GSI, 0x32, 1)
            };
            dispatch.register(registration)
        };
        let ping = register([0x00, 0x14, 0x05]).unwrap();
        let other = register([1, 2, 3]).unwrap();
        assert_eq!(register([1, 2, 3]), Err(RegisterError::Taken { by: other }));
        let mut mad = mad(0x32, 1, 1, 9);
        mad.0[37..40].copy_from_slice(&[0x00, 0x14, 0x05]);
        let delivery = dispatch.handle(&received(GSI, mad), NOW);
        assert_eq!(delivery, Delivery::Request { agent: ping });
        mad.0[39] = 6;
        let delivery = dispatch.handle(&received(GSI, mad), NOW);
        assert!(matches!(delivery, Delivery::Refused(_)));
    }

    #[test]
    fn what_nobody_serves_is_refused_as_it_came() {
        let mut dispatch = Dispatch::<1, 1>::new();
        let mut asked = mad(0x81, 1, 1, 0x0102_0304_0506_0708);
        asked.0[6..8].copy_from_slice(&[3, 2]);
        asked.0[200] = 0x77;
        let delivery = dispatch.handle(&received(SMI, asked), NOW);
        let mut expected = asked;
        expected.0[3..6].copy_from_slice(&[0x81, 0x80, 0x0c]); // with the D bit
        let refused = received(SMI, asked).reply(expected);
        assert_eq!(delivery, Delivery::Refused(refused));
        assert_eq!(refused.to, MadAddr::smi(Lid(4), Sl::new(0)));
        for method in [3, 5, 6, 7, 0x12, 0x81, 0x86] {
            let refusal = refusal(&mad(0x04, 1, method, 9));
            assert_eq!(refusal, None, "method {method:#x}");
        }
        let mut ack = mad(0x32, 1, 1, 9);
        ack.0[24..27].copy_from_slice(&[1, 2, 1]);
        assert_eq!(refusal(&ack), None, "of a GetResp in segments");
    }

    #[test]
    fn an_acknowledgement_that_looks_like_a_request_reaches_the_server() {
        let mut dispatch = Dispatch::<1, 1>::new();
        let sa = Registration::server(GSI, MgmtClass::SUBN_ADM, 2, Methods::SA_SERVER);
        let agent = dispatch.register(sa).unwrap();
        let mut ack = mad(0x03, 2, 0x12, 9);
        ack.0[24..28].copy_from_slice(&[1, 2, 1, 0]);
        let delivery = dispatch.handle(&received(GSI, ack), NOW);
        assert_eq!(delivery, Delivery::Request { agent });
        assert!(crate::rmpp::is_control(&ack));
    }

    #[test]
    fn a_response_finds_the_agent_whose_transaction_it_is() {
        let mut dispatch = Dispatch::<3, 2>::new();
        let sa = dispatch.register(Registration::sa_client()).unwrap();
        let client = dispatch.register(Registration::client(GSI)).unwrap();
        let to = MadAddr::gsi(Lid(4), Sl::new(0), 0);
        let mad_out = mad(0x04, 1, 1, 0);
        let outgoing = Outgoing { to, mad: mad_out };
        let patience = Patience::QUERY;
        let request = dispatch.request(client, &outgoing, patience, NOW).unwrap();
        assert!(matches!(dispatch.poll(NOW), DispatchNext::Send(_)));
        let mut response = |class, version, tid| {
            let received = received(GSI, mad(class, version, 0x81, tid));
            dispatch.handle(&received, NOW)
        };
        let (agent, none) = (sa, None);
        let own = Delivery::Response {
            agent,
            request: none,
        };
        assert_eq!(response(0x03, 2, sa.tid(77)), own);
        let not_asked = Delivery::Dropped(Dropped::NotAsked);
        assert_eq!(response(0x04, 1, client.tid(request.0 + 1)), not_asked);
        let (agent, request) = (client, Some(request));
        let asked = Delivery::Response { agent, request };
        let tid = client.tid(request.unwrap().0);
        assert_eq!(response(0x04, 1, tid), asked);
        assert_eq!(response(0x04, 1, tid), not_asked, "once");
        let nobody = Delivery::Dropped(Dropped::NoSuchAgent);
        assert_eq!(response(0x04, 1, 0x99 << 32), nobody);
    }

    #[test]
    fn an_agent_that_is_gone_gets_nothing_and_its_identity_is_not_used_again() {
        let mut dispatch = Dispatch::<2, 2>::new();
        let first = dispatch.register(server(GSI, 0x06, 1)).unwrap();
        let to = MadAddr::gsi(Lid(4), Sl::new(0), 0);
        let outgoing = Outgoing {
            to,
            mad: mad(0x06, 1, 1, 0),
        };
        let request = dispatch
            .request(first, &outgoing, Patience::QUERY, NOW)
            .unwrap();
        dispatch.unregister(first);
        assert_eq!(dispatch.poll(NOW), DispatchNext::WaitUntil(Instant::NEVER));
        let second = dispatch.register(server(GSI, 0x06, 1)).unwrap();
        assert_ne!(first, second);
        let late = received(GSI, mad(0x06, 1, 0x81, first.tid(request.0)));
        let delivery = dispatch.handle(&late, NOW);
        assert_eq!(delivery, Delivery::Dropped(Dropped::NoSuchAgent));
    }

    #[test]
    fn a_class_keeps_to_its_qp_and_a_version_to_its_number() {
        let mut dispatch = Dispatch::<1, 1>::new();
        let class = MgmtClass(0x06);
        let wrong = Err(RegisterError::WrongQp { class });
        assert_eq!(dispatch.register(server(SMI, 0x06, 1)), wrong);
        let delivery = dispatch.handle(&received(SMI, mad(0x06, 1, 1, 9)), NOW);
        assert_eq!(delivery, Delivery::Dropped(Dropped::WrongQp(class)));
        let mut old = mad(0x06, 1, 1, 9);
        old.0[0] = 0;
        let delivery = dispatch.handle(&received(GSI, old), NOW);
        assert_eq!(delivery, Delivery::Dropped(Dropped::Version(0)));
    }

    #[test]
    fn communication_management_is_send_but_for_its_class_port_info() {
        let mut dispatch = Dispatch::<1, 1>::new();
        let methods = Methods::GET_SET.and(Method::SEND);
        let cm = Registration::server(GSI, MgmtClass::CM, 2, methods);
        let agent = dispatch.register(cm).unwrap();
        let mut to = |mad| dispatch.handle(&received(GSI, mad), NOW);
        assert_eq!(to(mad(0x07, 2, 3, 9)), Delivery::Request { agent });
        assert_eq!(to(mad(0x07, 2, 1, 9)), Delivery::Request { agent });
        let mut get = mad(0x07, 2, 1, 9);
        get.0[17] = 0x10;
        assert!(matches!(to(get), Delivery::Refused(_)));
    }

    proptest! {
        #[test]
        fn whoever_is_told_of_a_mad_asked_for_it(
            registrations in proptest::collection::vec(
                (any::<bool>(), prop_oneof![Just(1_u8), Just(0x81), Just(3), Just(6), Just(0x32)],
                 1..3_u8, 0..3_u8, any::<u128>()),
                0..6
            ),
            qp: bool,
            class in prop_oneof![Just(1_u8), Just(0x81), Just(3), Just(6), Just(0x32), any::<u8>()],
            version in 1..3_u8, method: u8, oui in 0..3_u8, tid_agent in 0..8_u64,
        ) {
            let qp_of = |smi| if smi { SMI } else { GSI };
            let mut dispatch = Dispatch::<4, 1>::new();
            let mut agents = Vec::new();
            for (smi, class, class_version, oui, methods) in registrations {
                let wanted = Registration {
                    oui: [0, 0, oui],
                    methods: Methods(methods),
                    class_version,
                    ..server(qp_of(smi), class, 1)
                };
                match dispatch.register(wanted) {
                    Ok(agent) => agents.push((agent, wanted)),
                    Err(RegisterError::Taken { by }) => {
                        let (_, other) = agents.iter().find(|(agent, _)| *agent == by).unwrap();
                        prop_assert!(other.collides(&wanted));
                    }
                    Err(RegisterError::TooManyAgents { limit }) => prop_assert_eq!(agents.len(), limit),
                    Err(_) => prop_assert!(!qp_of(smi).carries(MgmtClass(class))),
                }
            }
            let mut mad = mad(class, version, method, tid_agent << 32);
            mad.0[39] = oui;
            let received = received(qp_of(qp), mad);
            let header = received.header();
            let takes = |(_, wanted): &&(AgentId, Registration)| {
                wanted.takes(received.qp, &header, [0, 0, oui])
            };
            match dispatch.handle(&received, NOW) {
                Delivery::Request { agent } => {
                    prop_assert!(!header.is_response());
                    let takers: Vec<_> = agents.iter().filter(takes).map(|(agent, _)| *agent).collect();
                    prop_assert_eq!(takers, [agent], "he, and nobody else");
                }
                Delivery::Response { .. } => prop_assert!(false, "nobody asked"),
                Delivery::Refused(refusal) => {
                    prop_assert!(matches!(method, 1 | 2));
                    prop_assert_eq!(agents.iter().find(takes), None);
                    prop_assert_eq!(&refusal.mad.0[6..], &mad.0[6..]);
                }
                Delivery::Dropped(why) => prop_assert_eq!(
                    why == Dropped::WrongQp(header.class), !received.qp.carries(header.class)
                ),
            }
        }
    }
}
