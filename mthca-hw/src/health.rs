//! Whether the HCA can be used: a latch that only ever goes from alive to failed or gone.
//!
//! Set by whoever finds out (a command that timed out, the error buffer, a register of all ones), read by every call
//! before it touches the hardware. Beside it stands whether CQs are armed by records, since arming looks at both at once.

use crate::sync::AtomicU8;
use core::sync::atomic::Ordering;
use core_ib::verbs::VerbsError;

/// It failed.
const FAILED: u8 = 1;
/// It is gone.
const GONE: u8 = 2;
/// Either.
const ENDED: u8 = FAILED | GONE;

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
    /// M: a CQ is armed by a record and a doorbell. Does not change once there is a CQ.
    pub const RECORDS: u8 = 4;

    /// Alive.
    pub fn new() -> Self {
        Self(AtomicU8::new(0))
    }

    /// Any context; one load.
    #[inline]
    pub fn is_alive(&self) -> bool {
        self.0.load(Ordering::Relaxed) & ENDED == 0
    }

    /// CQs are armed by records from here on. Set-up only.
    pub fn arms_by_records(&self) {
        self.0.fetch_or(Self::RECORDS, Ordering::Relaxed);
    }

    /// What arming has to know: 0 if the HCA is alive and a CQ is armed by a doorbell alone, [`Self::RECORDS`] if it is alive
    /// and there are records, and else it has ended. Any context; one load.
    #[inline]
    pub fn odds_of_arming(&self) -> u8 {
        self.0.load(Ordering::Relaxed)
    }

    /// How it ended, if it did. Any context.
    pub fn end(&self) -> Option<End> {
        match self.0.load(Ordering::Acquire) & ENDED {
            0 => None,
            FAILED => Some(End::Failed),
            _ => Some(End::Gone),
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
        let bit = match end {
            End::Failed => FAILED,
            End::Gone => GONE,
        };
        self.0.fetch_or(bit, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_hca_that_is_gone_does_not_come_back_as_merely_failed() {
        let health = Health::new();
        health.arms_by_records();
        assert!(health.is_alive() && health.check().is_ok());
        health.latch(End::Failed);
        assert_eq!(health.check(), Err(VerbsError::DeviceFailed));
        health.latch(End::Gone);
        health.latch(End::Failed);
        assert_eq!(health.check(), Err(VerbsError::DeviceGone));
    }
}
