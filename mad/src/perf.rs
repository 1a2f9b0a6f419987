//! Queries of performance management: the counters of any port of the subnet. protocols 3.13.2.
//!
//! [`Perf`] asks the performance agent of a node, through its QP1 or where its ClassPortInfo redirects to. A switch
//! answers for each of its ports; a port of 0xFF means all of them together, where the agent can that
//! ([`GmpCapability::PERF_ALL_PORT_SELECT`](core_ib::wire::mad::GmpCapability::PERF_ALL_PORT_SELECT)). Our own port is
//! asked like any other.

use crate::addr::{MadAddr, Outgoing, Received};
use crate::dispatch::AgentId;
use crate::requests::{Answer, RequestId, Requests, RequestsNext, TooManyRequests};
use crate::transaction::{NoAnswer, Patience};
use core::fmt;
use core_ib::wire::WireError;
use core_ib::wire::mad::{
    Attribute, AttributeId, ClassPortInfo, CounterSelect, CounterSelectExt, CounterSelectExt2, Mad,
    MadHeader, MadStatus, Method, MgmtClass, PortCounters, PortCountersExtended,
};
use core_ib::{Instant, QKey};

/// What to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PerfAsk {
    /// What the agent can.
    ClassPortInfo,
    /// The counters of 32 bits and less.
    Counters {
        /// Which port of the node.
        port: u8,
    },
    /// The counters of 64 bits, where the agent has them.
    Extended {
        /// Which port of the node.
        port: u8,
    },
    /// Sets counters to 0.
    Reset {
        /// Which port of the node.
        port: u8,
        /// Which counters.
        select: CounterSelect,
        /// PortXmitWait too.
        xmit_wait: bool,
    },
    /// Sets counters of 64 bits to 0.
    ResetExtended {
        /// Which port of the node.
        port: u8,
        /// Which counters.
        select: CounterSelectExt,
        /// Which of the further ones.
        select2: CounterSelectExt2,
    },
}

impl PerfAsk {
    /// As a request, without a transaction id.
    pub fn mad(&self) -> Result<Mad, WireError> {
        match *self {
            Self::ClassPortInfo => request(Method::GET, &ClassPortInfo::default()),
            Self::Counters { port } => request(
                Method::GET,
                &PortCounters {
                    port_select: port,
                    ..PortCounters::default()
                },
            ),
            Self::Extended { port } => request(
                Method::GET,
                &PortCountersExtended {
                    port_select: port,
                    ..PortCountersExtended::default()
                },
            ),
            Self::Reset {
                port,
                select,
                xmit_wait,
            } => request(
                Method::SET,
                &PortCounters {
                    port_select: port,
                    select,
                    select_xmit_wait: xmit_wait,
                    ..PortCounters::default()
                },
            ),
            Self::ResetExtended {
                port,
                select,
                select2,
            } => request(
                Method::SET,
                &PortCountersExtended {
                    port_select: port,
                    select,
                    select2,
                    ..PortCountersExtended::default()
                },
            ),
        }
    }

    fn read(&self, mad: &Mad) -> Result<PerfAnswer, WireError> {
        Ok(match self {
            Self::ClassPortInfo => PerfAnswer::ClassPortInfo(mad.get()?),
            Self::Counters { .. } | Self::Reset { .. } => PerfAnswer::Counters(mad.get()?),
            Self::Extended { .. } | Self::ResetExtended { .. } => PerfAnswer::Extended(mad.get()?),
        })
    }
}

fn request<A: Attribute>(method: Method, attribute: &A) -> Result<Mad, WireError> {
    let mut mad = Mad::ZERO;
    mad.set_header(&MadHeader {
        base_version: MadHeader::BASE_VERSION,
        class: MgmtClass::PERF,
        class_version: 1,
        method,
        attribute: A::ID,
        ..MadHeader::default()
    });
    mad.put(attribute)?;
    Ok(mad)
}

/// What the agent answered; to a reset, the counters after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PerfAnswer {
    /// What it can.
    ClassPortInfo(ClassPortInfo),
    /// Counters.
    Counters(PortCounters),
    /// Counters of 64 bits.
    Extended(PortCountersExtended),
}

/// Why there are no counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PerfError {
    /// All places are in use.
    Full(TooManyRequests),
    /// Nobody answered.
    NoAnswer(NoAnswer),
    /// The agent said no.
    Refused {
        /// Status of its answer.
        status: MadStatus,
    },
    /// The agent is elsewhere: only known by its GID, or redirected once already.
    Redirected,
    /// A MAD that could not be written or read.
    Mad(WireError),
}

impl fmt::Display for PerfError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full(error) => error.fmt(f),
            Self::NoAnswer(why) => write!(f, "performance agent: {why}"),
            Self::Refused { status } => {
                write!(
                    f,
                    "the performance agent refused with status {:#06x}",
                    status.0
                )
            }
            Self::Redirected => f.write_str("the performance agent is at an address not known"),
            Self::Mad(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for PerfError {}

/// What the owner is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PerfNext {
    /// Put this on the wire, then poll again.
    Send(Outgoing),
    /// A query is over.
    Done {
        /// What its maker gave.
        cookie: u64,
        /// How it went.
        result: Result<PerfAnswer, PerfError>,
    },
    /// Nothing before this instant, unless an event comes.
    WaitUntil(Instant),
}

/// Where a query stands.
#[derive(Clone, Copy, Debug)]
enum Stage {
    /// The counters were asked for.
    Asked(RequestId),
    /// The agent is elsewhere; where, was asked.
    Looking(RequestId),
    /// To be reported.
    Over(Result<PerfAnswer, PerfError>),
}

#[derive(Clone, Copy, Debug)]
struct Query {
    cookie: u64,
    ask: PerfAsk,
    to: MadAddr,
    redirected: bool,
    stage: Stage,
}

impl Query {
    fn waits_for(&self, request: RequestId) -> bool {
        matches!(self.stage, Stage::Asked(id) | Stage::Looking(id) if id == request)
    }
}

/// At most `QUERIES` queries at once. Register the agent with [`Registration::perf_client`].
///
/// [`Registration::perf_client`]: crate::Registration::perf_client
#[derive(Debug)]
pub struct Perf<const QUERIES: usize> {
    agent: AgentId,
    patience: Patience,
    requests: Requests<QUERIES>,
    queries: [Option<Query>; QUERIES],
}

impl<const QUERIES: usize> Perf<QUERIES> {
    /// The client that acts as `agent`.
    pub const fn new(agent: AgentId, patience: Patience) -> Self {
        Self {
            agent,
            patience,
            requests: Requests::new(),
            queries: [const { None }; QUERIES],
        }
    }

    /// The agent that it is.
    pub const fn agent(&self) -> AgentId {
        self.agent
    }

    /// Asks the agent of the node at `to`, a GSI address.
    pub fn ask(
        &mut self,
        cookie: u64,
        to: &MadAddr,
        ask: PerfAsk,
        now: Instant,
    ) -> Result<(), PerfError> {
        let full = TooManyRequests { limit: QUERIES };
        let place = self.queries.iter().position(Option::is_none);
        let place = place.ok_or(PerfError::Full(full))?;
        let id = self.start(to, ask, now)?;
        if let Some(slot) = self.queries.get_mut(place) {
            *slot = Some(Query {
                cookie,
                ask,
                to: *to,
                redirected: false,
                stage: Stage::Asked(id),
            });
        }
        Ok(())
    }

    fn start(&mut self, to: &MadAddr, ask: PerfAsk, now: Instant) -> Result<RequestId, PerfError> {
        let (to, mad) = (*to, ask.mad().map_err(PerfError::Mad)?);
        let outgoing = Outgoing { to, mad };
        let id = self
            .requests
            .start(self.agent, &outgoing, self.patience, now);
        id.map_err(PerfError::Full)
    }

    /// A MAD that the dispatch gave to this agent. What is not awaited is ignored.
    pub fn handle(&mut self, received: &Received, now: Instant) {
        let Answer::To(id) = self.requests.answer(received, now) else {
            return;
        };
        let mut queries = self.queries.iter();
        let waits = |slot: &Option<Query>| slot.as_ref().is_some_and(|query| query.waits_for(id));
        let Some(place) = queries.position(waits) else {
            return;
        };
        let Some(Some(query)) = self.queries.get(place) else {
            return;
        };
        let stage = self.answered(*query, received, now);
        if let Some(Some(query)) = self.queries.get_mut(place) {
            query.redirected |= !matches!(stage, Stage::Over(_));
            query.stage = stage;
        }
    }

    /// What becomes of a query.
    fn answered(&mut self, query: Query, received: &Received, now: Instant) -> Stage {
        let (header, mad) = (received.header(), &received.mad);
        let looking = matches!(query.stage, Stage::Looking(_));
        let over = |error| Stage::Over(Err(error));
        if header.status.is_redirect() || looking {
            if header.attribute == AttributeId::CLASS_PORT_INFO {
                return match self.follow(&query, mad, now) {
                    Ok(id) => Stage::Asked(id),
                    Err(error) => over(error),
                };
            }
            if query.redirected {
                return over(PerfError::Redirected);
            }
            return match self.start(&query.to, PerfAsk::ClassPortInfo, now) {
                Ok(id) => Stage::Looking(id),
                Err(error) => over(error),
            };
        }
        if header.status != MadStatus::OK {
            let status = header.status;
            return over(PerfError::Refused { status });
        }
        Stage::Over(query.ask.read(mad).map_err(PerfError::Mad))
    }

    /// Asks again where the ClassPortInfo in `mad` says.
    fn follow(&mut self, query: &Query, mad: &Mad, now: Instant) -> Result<RequestId, PerfError> {
        let info = mad.get::<ClassPortInfo>().map_err(PerfError::Mad)?;
        let again = query.redirected && !matches!(query.stage, Stage::Looking(_));
        if again || !info.redirect_lid.is_unicast() {
            return Err(PerfError::Redirected);
        }
        let to = MadAddr {
            lid: info.redirect_lid,
            sl: info.redirect_sl,
            remote_qpn: info.redirect_qp,
            remote_qkey: if info.redirect_q_key == QKey(0) {
                QKey::GSI
            } else {
                info.redirect_q_key
            },
            grh: None,
            ..query.to
        };
        self.start(&to, query.ask, now)
    }

    /// A send of the MAD with this transaction id did not reach the wire. Says whether it was ours.
    pub fn send_failed(&mut self, tid: u64, now: Instant) -> bool {
        self.requests.send_failed(tid, now)
    }

    /// What is due at `now`. Poll again after anything but `WaitUntil`. Ask first whether the port has room: a `Send`
    /// that is thrown away counts as a try.
    pub fn poll(&mut self, now: Instant) -> PerfNext {
        let now = now.on_the_clock();
        loop {
            for slot in &mut self.queries {
                if let Some(Query {
                    cookie,
                    stage: Stage::Over(result),
                    ..
                }) = *slot
                {
                    *slot = None;
                    return PerfNext::Done { cookie, result };
                }
            }
            let (id, why) = match self.requests.poll(now) {
                RequestsNext::Send(outgoing) => return PerfNext::Send(*outgoing),
                RequestsNext::WaitUntil(at) => return PerfNext::WaitUntil(at),
                RequestsNext::Failed { request, why, .. } => (request, why),
            };
            let mut queries = self.queries.iter_mut().flatten();
            if let Some(query) = queries.find(|query| query.waits_for(id)) {
                query.stage = Stage::Over(Err(PerfError::NoAnswer(why)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SpecialQp;
    use core_ib::{Lid, Qpn, Sl};
    use proptest::prelude::*;

    const fn ms(millis: u64) -> Instant {
        Instant(millis * 1_000_000)
    }

    const TO: MadAddr = MadAddr::gsi(Lid(7), Sl::new(2), 0);

    fn perf() -> Perf<2> {
        Perf::new(AgentId::new(3), Patience::new(100, 1))
    }

    fn sent(perf: &mut Perf<2>) -> Outgoing {
        match perf.poll(ms(0)) {
            PerfNext::Send(outgoing) => outgoing,
            other => panic!("{other:?}"),
        }
    }

    /// An answer to what was sent.
    fn answer(to: &Outgoing, status: MadStatus, change: impl Fn(&mut Mad)) -> Received {
        let mut mad = to.mad;
        mad.set_header(&mad.header().reply(status).unwrap());
        change(&mut mad);
        let mut received = Received::looped_back(SpecialQp::Gsi, mad);
        received.wc.slid = to.to.lid;
        received
    }

    #[test]
    fn counters_are_asked_for_and_read_as_the_table_says() {
        let mut perf = perf();
        perf.ask(9, &TO, PerfAsk::Counters { port: 3 }, ms(0))
            .unwrap();
        let asked = sent(&mut perf);
        let bytes = asked.mad.0;
        assert_eq!(bytes[..8], [1, 4, 1, 1, 0, 0, 0, 0]);
        assert_eq!(bytes[8..12], [0, 0, 0, 3]);
        assert_eq!((&bytes[16..18], bytes[65]), (&[0, 0x12][..], 3));
        let counters = PortCounters {
            port_select: 3,
            rcv_errors: 5,
            xmit_data: 0x1234_5678,
            ..PortCounters::default()
        };
        let fill = |mad: &mut Mad| mad.put(&counters).unwrap();
        perf.handle(&answer(&asked, MadStatus::OK, fill), ms(1));
        let (cookie, result) = (9, Ok(PerfAnswer::Counters(counters)));
        assert_eq!(perf.poll(ms(1)), PerfNext::Done { cookie, result });
        assert_eq!(perf.poll(ms(1)), PerfNext::WaitUntil(Instant::NEVER));
    }

    #[test]
    fn a_reset_writes_zeros_into_what_is_selected() {
        let ask = PerfAsk::Reset {
            port: 1,
            select: CounterSelect::SYMBOL_ERRORS | CounterSelect::RCV_PKTS,
            xmit_wait: true,
        };
        let bytes = ask.mad().unwrap().0;
        assert_eq!((bytes[3], bytes[65]), (2, 1));
        assert_eq!((&bytes[66..68], bytes[82]), (&[0x80, 0x01][..], 1));
        let rest = bytes[68..82].iter().chain(&bytes[83..]);
        assert!(rest.into_iter().all(|byte| *byte == 0));
    }

    #[test]
    fn an_agent_that_is_elsewhere_is_found_there() {
        let mut perf = perf();
        let ask = PerfAsk::Extended { port: 1 };
        perf.ask(1, &TO, ask, ms(0)).unwrap();
        let asked = sent(&mut perf);
        let redirect = MadStatus::REDIRECT;
        perf.handle(&answer(&asked, redirect, |_| {}), ms(0));
        let looking = sent(&mut perf);
        assert_eq!(looking.mad.0[16..18], [0, 1]);
        let info = ClassPortInfo {
            redirect_lid: Lid(8),
            redirect_qp: Qpn::new(0x123),
            redirect_q_key: QKey::GSI,
            ..ClassPortInfo::default()
        };
        let fill = |mad: &mut Mad| mad.put(&info).unwrap();
        perf.handle(&answer(&looking, MadStatus::OK, fill), ms(0));
        let again = sent(&mut perf);
        assert_eq!(
            (again.to.lid, again.to.remote_qpn),
            (Lid(8), Qpn::new(0x123))
        );
        assert_eq!(again.mad.0[16..18], [0, 0x1d]);
        // But not in a circle.
        perf.handle(&answer(&again, redirect, |_| {}), ms(0));
        let (cookie, result) = (1, Err(PerfError::Redirected));
        assert_eq!(perf.poll(ms(0)), PerfNext::Done { cookie, result });
    }

    #[test]
    fn silence_and_refusal_are_told_apart() {
        let mut perf = perf();
        perf.ask(1, &TO, PerfAsk::ClassPortInfo, ms(0)).unwrap();
        perf.ask(2, &TO, PerfAsk::Counters { port: 1 }, ms(0))
            .unwrap();
        let full = perf.ask(3, &TO, PerfAsk::ClassPortInfo, ms(0));
        let limit = 2;
        assert_eq!(full, Err(PerfError::Full(TooManyRequests { limit })));
        let (_, second) = (sent(&mut perf), sent(&mut perf));
        let status = MadStatus::UNSUPPORTED_METHOD_ATTRIBUTE;
        perf.handle(&answer(&second, status, |_| {}), ms(1));
        let (cookie, result) = (2, Err(PerfError::Refused { status }));
        assert_eq!(perf.poll(ms(1)), PerfNext::Done { cookie, result });
        assert!(matches!(perf.poll(ms(100)), PerfNext::Send(_)));
        let why = NoAnswer::TimedOut { tries: 2 };
        let (cookie, result) = (1, Err(PerfError::NoAnswer(why)));
        assert_eq!(perf.poll(ms(200)), PerfNext::Done { cookie, result });
    }

    proptest! {
        #[test]
        fn whatever_agents_answer_each_query_ends_once(
            answers in proptest::collection::vec(
                (prop_oneof![Just(0_u16), Just(2), Just(1), any::<u16>()], any::<bool>(), any::<u16>()),
                1..20
            ),
        ) {
            let mut perf = perf();
            perf.ask(1, &TO, PerfAsk::Counters { port: 1 }, ms(0)).unwrap();
            let (mut ended, mut now) = (0, 0);
            let mut answers = answers.into_iter();
            while now < 10_000 {
                match perf.poll(ms(now)) {
                    PerfNext::Send(outgoing) => {
                        if let Some((status, class_port_info, lid)) = answers.next() {
                            let reply = answer(&outgoing, MadStatus(status), |mad| {
                                if class_port_info {
                                    mad.0[16..18].copy_from_slice(&[0, 1]);
                                }
                                mad.0[92..94].copy_from_slice(&lid.to_be_bytes());
                            });
                            perf.handle(&reply, ms(now));
                        }
                    }
                    PerfNext::Done { .. } => ended += 1,
                    PerfNext::WaitUntil(at) if at == Instant::NEVER => break,
                    PerfNext::WaitUntil(at) => now = at.0 / 1_000_000,
                }
            }
            prop_assert_eq!(ended, 1);
        }
    }
}
