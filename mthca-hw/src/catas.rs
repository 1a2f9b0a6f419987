//! The error buffer: a few dwords in BAR 0 that stay zero for as long as the HCA is well. infinihost 2.6.
//!
//! No event announces them, so they are looked at now and then, from whatever drains the event queues.

use crate::health::End;
use crate::inner::Inner;
use crate::limits::Limits;
use core::sync::atomic::{AtomicU64, Ordering};
use core_ib::Instant;
use core_ib::platform::{Platform, Registers};
use hca_abi::infinihost::regs::CatasKind;

/// Where it is, and when it was last looked at.
#[derive(Debug)]
pub(crate) struct ErrorBuffer {
    offset: usize,
    dwords: usize,
    next_look: AtomicU64,
}

impl ErrorBuffer {
    /// The one that QUERY_FW spoke of.
    pub const fn new(limits: &Limits) -> Self {
        Self {
            offset: limits.error_buffer,
            dwords: limits.error_dwords,
            next_look: AtomicU64::new(0),
        }
    }
}

impl<P: Platform> Inner<'_, P> {
    /// Looks at the error buffer, if it is time to. Any context; never blocks.
    pub fn look_for_errors(&self) {
        let now = self.machine.now();
        let due = Instant(self.errors.next_look.load(Ordering::Relaxed));
        if now < due || !self.cmd.health().is_alive() {
            return;
        }
        let next = now.after(self.profile.error_poll);
        self.errors.next_look.store(next.0, Ordering::Relaxed);
        let dwords = (0..self.errors.dwords)
            .map(|index| self.cmd.dcs().read_be32(self.errors.offset + index * 4));
        let mut first = None;
        let mut ill = false;
        let mut gone = true;
        for dword in dwords {
            first = first.or(Some(dword));
            ill |= dword != 0;
            gone &= dword == u32::MAX;
        }
        let Some(first) = first.filter(|_| ill) else {
            return;
        };
        if gone {
            self.fail(End::Gone);
        } else {
            let kind = CatasKind((first >> 24) as u8);
            log::error!("{}: catastrophic error, {kind:?}", self.machine.name());
            self.fail(End::Failed);
        }
    }
}
