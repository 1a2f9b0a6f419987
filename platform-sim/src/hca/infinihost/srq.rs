//! Shared receive queues. infinihost 4.8.

use super::queue::ReceiveQueue;
use hca_abi::infinihost::srq::{SrqContext, SrqState};
use std::collections::BTreeMap;

/// One SRQ of the HCA's.
pub struct Srq {
    context: SrqContext,
    /// What is posted.
    pub queue: ReceiveQueue,
}

impl Srq {
    /// As given, but for state and count.
    pub fn context(&self) -> SrqContext {
        let mut context = self.context;
        let posted = u16::try_from(self.queue.posted()).unwrap_or(u16::MAX);
        context.set_wqe_count(posted);
        if let Some(first) = self.queue.first() {
            context.set_next_wqe(first.nda);
        }
        context
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
    pub fn limit_reached(&mut self) -> bool {
        let reached = self.queue.posted() < u32::from(self.context.limit());
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
    /// Is SRQ `srqn` the HCA's?
    pub fn contains(&self, srqn: u32) -> bool {
        self.srqs.contains_key(&srqn)
    }

    /// SRQ `srqn`.
    pub fn get(&mut self, srqn: u32) -> Option<&mut Srq> {
        self.srqs.get_mut(&srqn)
    }

    /// Takes SRQ `srqn` over from software.
    pub fn create(&mut self, srqn: u32, mut context: SrqContext) {
        context.set_state(SrqState::HARDWARE);
        let queue = ReceiveQueue::default();
        self.srqs.insert(srqn, Srq { context, queue });
    }

    /// Gives it back.
    pub fn destroy(&mut self, srqn: u32) -> Option<SrqContext> {
        let mut context = self.srqs.remove(&srqn)?.context();
        context.set_state(SrqState::SOFTWARE);
        Some(context)
    }
}
