//! What is to be done and was not done at once: so that no call recurses, and none lasts longer than some dozens of
//! packets. The rest waits for a timer.

use super::{InfiniHost, timers};
use crate::machine::Bus;
use core::time::Duration;
use std::collections::VecDeque;

/// Steps of one call: a step is a WQE, or a packet that came back to its own port.
const STEPS: usize = 64;
/// When a call left something: the rest so much later. Time passes, so that a chain of WQEs without end does not stop
/// the clock.
const PAUSE: Duration = Duration::from_micros(1);

/// One thing to do.
pub enum Work {
    /// The send queue of this QP has something.
    Send {
        /// Full number.
        qpn: u32,
    },
    /// A packet that this port sent comes in at the same port.
    Loopback {
        /// Port 1 or 2.
        port: u8,
        /// LRH to VCRC.
        packet: Vec<u8>,
    },
    /// This CQ failed: its QPs are in error.
    CqFailed {
        /// Full number.
        cqn: u32,
    },
}

/// What is to be done, oldest first.
pub type WorkList = VecDeque<Work>;

impl InfiniHost {
    /// Puts a QP's send queue on the list, unless it is there. That of a connection also sends what is no request.
    pub(super) fn schedule_send(&mut self, qpn: u32) {
        if let Some(qp) = self.qps.get_mut(qpn)
            && (qp.connected.is_some() || !qp.sq.is_empty())
            && !core::mem::replace(&mut qp.sq.scheduled, true)
        {
            self.work.push_back(Work::Send { qpn });
        }
    }

    /// Does what is to be done, as far as one call goes.
    pub(super) fn run(&mut self, bus: &mut dyn Bus) {
        if self.chip.catas.is_raised() {
            return self.work.clear();
        }
        for _ in 0..STEPS {
            match self.work.pop_front() {
                Some(Work::Send { qpn }) => self.send_step(bus, qpn),
                Some(Work::Loopback { port, packet }) => self.arrived(bus, port, &packet),
                Some(Work::CqFailed { cqn }) => self.cq_failed(bus, cqn),
                None => return,
            }
        }
        if !self.work.is_empty() {
            bus.set_timer(timers::WORK, bus.now().after(PAUSE));
        }
    }
}
