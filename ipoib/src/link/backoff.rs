//! Pauses that double.

use crate::profile::Timers;
use core_ib::Instant;

/// When to try again after `tries` (at least 1) failures in a row: 1, 2, 4, 8, 16, 16 … s by default. protocols 6.4.
pub(crate) fn retry_at(tries: u8, timers: &Timers, now: Instant) -> Instant {
    let doublings = u32::from(tries.saturating_sub(1)).min(31);
    let pause = timers.backoff.saturating_mul(1 << doublings);
    now.after(pause.min(timers.backoff_limit))
}

/// When to ask again after a request that did not even leave.
pub(crate) fn soon(timers: &Timers, now: Instant) -> Instant {
    now.after(timers.backoff / 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_their_limit() {
        let seconds = |tries| {
            let at = retry_at(tries, &Timers::DEFAULT, Instant(0));
            at.since(Instant(0)).as_secs()
        };
        assert_eq!(
            [1, 2, 3, 4, 5, 6, 255].map(seconds),
            [1, 2, 4, 8, 16, 16, 16]
        );
    }
}
