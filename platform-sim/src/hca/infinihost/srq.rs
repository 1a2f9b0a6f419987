//! Shared receive queues. infinihost 4.8.

use super::chip::Chip;
use super::mpt::Key;
use super::record::RecordId;
use super::supply::ReceiveQueue;
use super::wqe::Position;
use crate::machine::Bus;
use hca_abi::infinihost::srq::{MSrqContext, SrqContext, SrqState};
use hca_abi::infinihost::wqe::MAX_UNITS;
use std::collections::BTreeMap;

/// A context of either mode: the same facts in other places.
#[derive(Clone, Copy, Debug)]
pub enum Context {
    /// T-mode.
    T(SrqContext),
    /// M-mode.
    M(MSrqContext),
}

impl Context {
    fn key(&self) -> Key {
        let (key, pd) = match self {
            Self::T(context) => (context.lkey(), context.pd()),
            Self::M(context) => (context.lkey(), context.pd()),
        };
        Key { key, pd }
    }

    /// UAR page that may ring for it.
    pub fn uar_page(&self) -> u32 {
        match self {
            Self::T(context) => context.uar_page(),
            Self::M(context) => context.uar_page(),
        }
    }

    fn state(&self) -> SrqState {
        match self {
            Self::T(context) => context.state(),
            Self::M(context) => context.state(),
        }
    }

    fn set_state(&mut self, state: SrqState) {
        match self {
            Self::T(context) => _ = context.set_state(state),
            Self::M(context) => _ = context.set_state(state),
        }
    }

    fn limit(&self) -> u16 {
        match self {
            Self::T(context) => context.limit(),
            Self::M(context) => context.limit(),
        }
    }

    fn set_limit(&mut self, limit: u16) {
        match self {
            Self::T(context) => _ = context.set_limit(limit),
            Self::M(context) => _ = context.set_limit(limit),
        }
    }

    /// Room of a request in units of 16 bytes.
    pub fn units(&self) -> u8 {
        match self {
            Self::T(context) => context.wqe_size(),
            Self::M(context) => {
                let units = 1_u8.checked_shl(context.log_stride().into());
                units.unwrap_or(MAX_UNITS).min(MAX_UNITS)
            }
        }
    }

    /// Upper half of the addresses of its requests.
    fn base_high(&self) -> u32 {
        match self {
            Self::T(context) => context.wqe_base_high(),
            Self::M(context) => (context.wqe_address() >> 32) as u32,
        }
    }

    fn queue(&self) -> ReceiveQueue {
        match self {
            Self::T(_) => ReceiveQueue::by_doorbell(),
            Self::M(context) => {
                let id = RecordId {
                    uar: context.uar_page(),
                    index: context.record(),
                };
                let first = Position::receive(context.wqe_address() as u32, self.units());
                ReceiveQueue::linked(id, first)
            }
        }
    }
}

/// One SRQ of the HCA's.
pub struct Srq {
    context: Context,
    /// What is posted.
    pub queue: ReceiveQueue,
}

impl Srq {
    /// As given, but for state and counts.
    pub fn context(&self, chip: &Chip, bus: &mut dyn Bus) -> Context {
        let posted = u16::try_from(self.queue.posted(chip, bus)).unwrap_or(u16::MAX);
        let mut context = self.context;
        match &mut context {
            Context::T(context) => {
                context.set_wqe_count(posted);
                if let Some(first) = self.queue.next() {
                    context.set_next_wqe(first.nda);
                }
            }
            Context::M(context) => {
                context
                    .set_wqe_count(posted)
                    .set_wqe_counter(self.queue.taken());
            }
        }
        context
    }

    /// Key and domain of its requests and their buffers.
    pub fn key(&self) -> Key {
        self.context.key()
    }

    /// UAR page that may ring for it.
    pub fn uar_page(&self) -> u32 {
        self.context.uar_page()
    }

    /// Room of a request in units of 16 bytes.
    pub fn units(&self) -> u8 {
        self.context.units()
    }

    /// Upper half of the addresses of its requests.
    pub fn base_high(&self) -> u32 {
        self.context.base_high()
    }

    /// It failed: no request is taken from it any more.
    pub fn fail(&mut self) {
        self.context.set_state(SrqState::ERROR);
    }

    /// Requests can be taken.
    pub fn is_sound(&self) -> bool {
        self.context.state() == SrqState::HARDWARE
    }

    /// Sets the limit; 0 disarms.
    pub fn arm(&mut self, limit: u16) {
        self.context.set_limit(limit);
    }

    /// Fewer requests than the limit are posted: true once, then the limit is 0.
    pub fn limit_reached(&mut self, chip: &Chip, bus: &mut dyn Bus) -> bool {
        let limit = u32::from(self.context.limit());
        let reached = limit != 0 && self.queue.posted(chip, bus) < limit;
        if reached {
            self.context.set_limit(0);
        }
        reached
    }
}

/// All SRQs, by number.
#[derive(Default)]
pub struct Srqs {
    srqs: BTreeMap<u32, Srq>,
}

impl Srqs {
    /// SRQs that are the HCA's.
    pub fn count(&self) -> usize {
        self.srqs.len()
    }

    /// Is SRQ `srqn` the HCA's?
    pub fn contains(&self, srqn: u32) -> bool {
        self.srqs.contains_key(&srqn)
    }

    /// SRQ `srqn`.
    pub fn get(&mut self, srqn: u32) -> Option<&mut Srq> {
        self.srqs.get_mut(&srqn)
    }

    /// Takes SRQ `srqn` over from software.
    pub fn create(&mut self, srqn: u32, mut context: Context) {
        context.set_state(SrqState::HARDWARE);
        let queue = context.queue();
        self.srqs.insert(srqn, Srq { context, queue });
    }

    /// Gives it back.
    pub fn destroy(&mut self, chip: &Chip, bus: &mut dyn Bus, srqn: u32) -> Option<Context> {
        let mut context = self.srqs.remove(&srqn)?.context(chip, bus);
        context.set_state(SrqState::SOFTWARE);
        Some(context)
    }
}
