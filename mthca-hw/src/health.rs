//! Whether the HCA can be used: a latch that only ever goes from alive to failed or gone.
//!
//! Set by whoever finds out (a command that timed out, the error buffer, a register of all ones), read by every call
//! before it touches the hardware.

use crate::sync::AtomicU8;
use core::sync::atomic::Ordering;
use core_ib::verbs::VerbsError;

const ALIVE: u8 = 0;
const FAILED: u8 = 1;
const GONE: u8 = 2;

/// How an HCA ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It failed: it may still write to memory until it is reset.
    Failed,
    /// It is not on the bus any more.
    Gone,
}

/// The latch.
#[derive(Debug, Default)]
pub struct Health(AtomicU8);

impl Health {
    /// Alive.
    pub fn new() -> Self {
        Self(AtomicU8::new(ALIVE))
    }

    /// Any context; one load.
    #[inline]
    pub fn is_alive(&self) -> bool {
        self.0.load(Ordering::Relaxed) == ALIVE
    }

    /// How it ended, if it did. Any context.
    pub fn end(&self) -> Option<End> {
        match self.0.load(Ordering::Acquire) {
            ALIVE => None,
            GONE => Some(End::Gone),
            _ => Some(End::Failed),
        }
    }

    /// `DeviceFailed` or `DeviceGone` if it ended. Any context.
    pub fn check(&self) -> Result<(), VerbsError> {
        match self.end() {
            None => Ok(()),
            Some(End::Failed) => Err(VerbsError::DeviceFailed),
            Some(End::Gone) => Err(VerbsError::DeviceGone),
        }
    }

    /// Ends it. A failed one may turn out to be gone, nothing else changes an end. Any context.
    pub fn latch(&self, end: End) {
        let level = match end {
            End::Failed => FAILED,
            End::Gone => GONE,
        };
        self.0.fetch_max(level, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_hca_that_is_gone_does_not_come_back_as_merely_failed() {
        let health = Health::new();
        assert!(health.is_alive() && health.check().is_ok());
        health.latch(End::Failed);
        assert_eq!(health.check(), Err(VerbsError::DeviceFailed));
        health.latch(End::Gone);
        health.latch(End::Failed);
        assert_eq!(health.check(), Err(VerbsError::DeviceGone));
    }
}
