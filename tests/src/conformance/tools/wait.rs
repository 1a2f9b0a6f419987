//! Waiting: nothing spins without a bound, and a case that waits for what never comes fails.

use core::time::Duration;
use core_ib::platform::Platform;

/// How long what must come may take. Far more than any device needs.
pub const PATIENCE: Duration = Duration::from_secs(2);
/// How long one waits for what must not come. Far more than a datagram takes.
pub const QUIET: Duration = Duration::from_millis(2);

/// Longer than a store to a register is on its way: posting returns before the HCA has heard of it.
pub const ON_ITS_WAY: Duration = Duration::from_micros(1);

/// Time between two looks.
const STEP: Duration = Duration::from_micros(10);

/// Asks `done` until it says yes, or for `limit`; gives the last answer. Blocks.
pub fn wait_for<P: Platform>(machine: &P, limit: Duration, mut done: impl FnMut() -> bool) -> bool {
    let deadline = machine.now().after(limit);
    loop {
        if done() {
            return true;
        }
        if machine.now() >= deadline {
            return done();
        }
        machine.sleep(STEP);
    }
}
