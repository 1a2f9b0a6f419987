//! How many objects use another one for as long as they live: QPs a CQ, regions a PD.
//!
//! References of the data path are counted by the slab; this counts what is created on top of an object, in any
//! context and without a lock, and closes the door before the object goes.

use crate::sync::AtomicU32;
use core::sync::atomic::Ordering;

const CLOSED: u32 = 1 << 31;

/// A count that can be closed at zero. Open by default.
#[derive(Debug, Default)]
pub struct Users(AtomicU32);

impl Users {
    /// Nobody, and closed: for a place without an object.
    pub fn closed() -> Self {
        Self(AtomicU32::new(CLOSED))
    }

    /// Nobody, and open. For the maker of a new object.
    pub fn open(&self) {
        self.0.store(0, Ordering::Release);
    }

    /// One more; false if closed. Any context.
    pub fn enter(&self) -> bool {
        let one_more =
            |users: u32| (users & CLOSED == 0 && users < CLOSED - 1).then(|| users.wrapping_add(1));
        self.0
            .try_update(Ordering::AcqRel, Ordering::Acquire, one_more)
            .is_ok()
    }

    /// One less. Pairs with an `enter` that said true. Any context.
    pub fn leave(&self) {
        let one_less = |users: u32| (users & !CLOSED != 0).then(|| users.wrapping_sub(1));
        // Without a matching `enter` nothing changes.
        let _ = self
            .0
            .try_update(Ordering::AcqRel, Ordering::Acquire, one_less);
    }

    /// Nobody may enter from here on; if somebody is in, nothing changes and the error says how many.
    pub fn close(&self) -> Result<(), u32> {
        self.0
            .compare_exchange(0, CLOSED, Ordering::AcqRel, Ordering::Acquire)
            .map(drop)
            .map_err(|users| users & !CLOSED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_enters_through_a_closed_door_and_it_does_not_close_on_anybody() {
        let users = Users::closed();
        assert!(!users.enter());
        users.open();
        assert!(users.enter() && users.enter());
        assert_eq!(users.close(), Err(2));
        users.leave();
        users.leave();
        assert_eq!(users.close(), Ok(()));
        assert!(!users.enter());
    }

    #[test]
    fn leaving_an_empty_or_closed_place_changes_nothing() {
        let users = Users::closed();
        users.leave();
        assert!(!users.enter());
        users.open();
        users.leave();
        assert_eq!(users.close(), Ok(()));
    }
}
