//! Queue pairs: context, queues, and who carries out their work. infinihost 4.6, 4.7.

use super::chip::Chip;
use super::connected::Connected;
use super::mpt::Key;
use super::queue::{Flushed, Ring, SendQueue};
use super::record::RecordId;
use super::supply::ReceiveQueue;
use super::variant::Mode;
use super::wqe::Position;
use crate::machine::Bus;
use hca_abi::infinihost::qp::{QpContext, QpState, ServiceType};
use std::collections::BTreeMap;

/// Who sends and receives for a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// Unreliable datagrams.
    Datagram,
    /// Packets that software builds: QP0 and QP1.
    Raw,
    /// Reliable and unreliable connections: [`Connected`].
    Connected,
}

impl Engine {
    fn of(service: ServiceType) -> Self {
        match service {
            ServiceType::UD => Self::Datagram,
            ServiceType::MLX => Self::Raw,
            _ => Self::Connected,
        }
    }
}

/// A queue pair that is the HCA's.
pub struct Qp {
    mode: Mode,
    /// As a driver gave it, and as it may query it.
    pub context: QpContext,
    /// Who does the work.
    pub engine: Engine,
    /// Send requests.
    pub sq: SendQueue,
    /// Receive requests, unless they come from an SRQ.
    pub rq: ReceiveQueue,
    /// The engines of a connection, from RTR on; out while they are at work.
    pub connected: Option<Box<Connected>>,
}

impl Qp {
    /// With nothing posted.
    pub fn new(mode: Mode, context: QpContext) -> Self {
        let (log_size, log_stride) = (context.log_rq_size(), context.log_rq_stride());
        let record = RecordId {
            uar: context.uar_page(),
            index: context.rq_record(),
        };
        Self {
            mode,
            engine: Engine::of(context.service()),
            sq: SendQueue::new(mode, &context),
            rq: match mode {
                Mode::T => ReceiveQueue::by_doorbell(),
                Mode::M => {
                    let ring = Ring::new(context.rq_address(), log_size, log_stride);
                    ReceiveQueue::in_ring(record, ring)
                }
            },
            context,
            connected: None,
        }
    }

    /// Full number.
    pub fn qpn(&self) -> u32 {
        self.context.local_qpn()
    }

    /// State.
    pub fn state(&self) -> QpState {
        self.context.state()
    }

    /// Port 1 or 2.
    pub fn port(&self) -> u8 {
        self.context.primary_path().port()
    }

    /// Key and domain of the queues' own memory.
    pub fn wqe_key(&self) -> Key {
        Key {
            key: self.context.wqe_lkey(),
            pd: self.context.pd(),
        }
    }

    /// Packets are accepted.
    pub fn receives(&self) -> bool {
        matches!(
            self.state(),
            QpState::RTR | QpState::RTS | QpState::SQD | QpState::SQE | QpState::SQ_DRAINING
        )
    }

    /// The SRQ that it takes its receive requests from.
    pub fn srq(&self) -> Option<u32> {
        self.context.has_srq().then(|| self.context.srqn())
    }

    /// Forgets all send requests, those in flight included, and says what they were as [`SendQueue::flush`] does.
    pub fn flush_sends(&mut self) -> Vec<Flushed> {
        let mut posted = self.sq.flush();
        let Some(connected) = self.connected.as_deref_mut() else {
            return posted;
        };
        let (in_flight, rung) = connected.flush_sends();
        let Some(&(first, _)) = in_flight.first() else {
            return posted;
        };
        let mut flushed: Vec<Flushed> = in_flight
            .iter()
            .map(|&(at, _)| Flushed { at, behind: 0 })
            .collect();
        if self.mode == Mode::M {
            flushed.append(&mut posted);
            return flushed;
        }
        // One stands for all: it says how many doorbells led to those behind it.
        let led = in_flight.iter().skip(1).filter(|&&(_, rung)| rung).count();
        let more = posted
            .first()
            .map_or(0, |rest| usize::from(rest.behind) + usize::from(rung));
        let behind = u16::try_from(led + more).unwrap_or(u16::MAX);
        vec![Flushed { at: first, behind }]
    }

    /// Forgets all receive requests of its own and the one in hand, and says what they were as [`ReceiveQueue::flush`]
    /// does.
    pub fn flush_receives(&mut self, chip: &Chip, bus: &mut dyn Bus) -> Vec<Flushed> {
        let connected = self.connected.as_deref_mut();
        let in_hand = connected.and_then(Connected::flush_receive);
        let in_hand = in_hand.map(|at| Flushed { at, behind: 0 });
        if self.srq().is_some() {
            return in_hand.into_iter().collect();
        }
        match (in_hand, self.mode) {
            (None, _) => self.rq.flush(chip, bus),
            (Some(Flushed { at, .. }), Mode::T) => {
                let behind = self.rq.forget();
                vec![Flushed { at, behind }]
            }
            (Some(first), Mode::M) => {
                let mut flushed = vec![first];
                flushed.append(&mut self.rq.flush(chip, bus));
                flushed
            }
        }
    }

    /// As a driver may query it.
    pub fn shown(&self) -> QpContext {
        let mut context = self.context;
        let next = |position: Option<Position>| position.map_or(0, |at| at.nda);
        match self.mode {
            Mode::T => context
                .set_sq_address(next(self.sq.first()))
                .set_rq_address(next(self.rq.next())),
            Mode::M => context
                .set_sq_counter(self.sq.posted())
                .set_rq_counter(self.rq.taken()),
        };
        if let Some(connected) = &self.connected {
            connected.show(&mut context);
        }
        context
    }
}

/// All QPs.
#[derive(Default)]
pub struct Qps {
    qps: BTreeMap<u32, Qp>,
    mask: u32,
}

impl Qps {
    /// Of a table of `count` contexts, a power of two.
    pub fn new(count: u32) -> Self {
        Self {
            qps: BTreeMap::new(),
            mask: count.wrapping_sub(1),
        }
    }

    /// QPs that are the HCA's.
    pub fn count(&self) -> usize {
        self.qps.len()
    }

    /// The place of `qpn` in the table.
    pub fn index(&self, qpn: u32) -> u32 {
        qpn & self.mask
    }

    /// QP `qpn`, of this generation.
    pub fn get(&self, qpn: u32) -> Option<&Qp> {
        let qp = self.qps.get(&self.index(qpn));
        qp.filter(|qp| qp.qpn() == qpn)
    }

    /// QP `qpn`, of this generation.
    pub fn get_mut(&mut self, qpn: u32) -> Option<&mut Qp> {
        let qp = self.qps.get_mut(&(qpn & self.mask));
        qp.filter(|qp| qp.qpn() == qpn)
    }

    /// Is the place of `qpn` taken, by whatever generation?
    pub fn is_taken(&self, qpn: u32) -> bool {
        self.qps.contains_key(&self.index(qpn))
    }

    /// Takes a QP over from software.
    pub fn insert(&mut self, qp: Qp) {
        self.qps.insert(self.index(qp.qpn()), qp);
    }

    /// Back to RESET: forgotten, with all that is posted.
    pub fn remove(&mut self, qpn: u32) -> Option<Qp> {
        self.get(qpn)?;
        self.qps.remove(&self.index(qpn))
    }

    /// A QP whose completions go to CQ `cqn`.
    pub fn user_of(&self, cqn: u32) -> Option<u32> {
        self.users_of(cqn).next()
    }

    /// All of them.
    pub fn users_of(&self, cqn: u32) -> impl Iterator<Item = u32> {
        let uses = move |qp: &&Qp| [qp.context.send_cqn(), qp.context.receive_cqn()].contains(&cqn);
        self.qps.values().filter(uses).map(Qp::qpn)
    }

    /// QPs that are in error and have receive requests of their own.
    pub fn in_error(&self) -> impl Iterator<Item = u32> {
        let failed = |qp: &&Qp| qp.state() == QpState::ERR && qp.srq().is_none();
        self.qps.values().filter(failed).map(Qp::qpn)
    }

    /// A QP that takes its receive requests from SRQ `srqn`.
    pub fn user_of_srq(&self, srqn: u32) -> Option<u32> {
        let mut users = self.qps.values().filter(|qp| qp.srq() == Some(srqn));
        users.next().map(Qp::qpn)
    }
}
