//! A value that is set once and then read without a lock, for as long as its place lives.

use crate::sync::{AtomicBool, UnsafeCell};
use core::sync::atomic::Ordering;

/// An empty place, or a value that stays.
pub(crate) struct Once<T> {
    /// Who sets it, or has.
    claimed: AtomicBool,
    set: AtomicBool,
    value: UnsafeCell<Option<T>>,
}

// SAFETY: the value is written once, by whoever claimed the place, before `set` says so; from then on there are shared
// references alone. It moves to another context with its place, and is shared by those who share that.
unsafe impl<T: Send + Sync> Sync for Once<T> {}

impl<T> Once<T> {
    /// Empty.
    pub fn new() -> Self {
        Self {
            claimed: AtomicBool::new(false),
            set: AtomicBool::new(false),
            value: UnsafeCell::new(None),
        }
    }

    /// The value, if it is set. Any context.
    #[inline]
    pub fn get(&self) -> Option<&T> {
        if !self.set.load(Ordering::Acquire) {
            return None;
        }
        // SAFETY: `set` is stored after the only write, and seen here; nobody writes afterwards.
        self.value.with(|value| unsafe { (*value).as_ref() })
    }

    /// Sets it; gives the value back if that was done, or is being done.
    pub fn set(&self, value: T) -> Result<(), T> {
        if self.claimed.swap(true, Ordering::AcqRel) {
            return Err(value);
        }
        // SAFETY: one caller in the life of the place gets here, and nobody reads before `set`.
        self.value.with_mut(|place| unsafe { *place = Some(value) });
        self.set.store(true, Ordering::Release);
        Ok(())
    }

    /// Takes it out: nobody else refers to the place.
    pub fn take(&mut self) -> Option<T> {
        core::mem::take(self).value.into_inner()
    }
}

impl<T> Default for Once<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_set_once_and_is_empty_again_when_it_is_taken() {
        let mut place = Once::new();
        assert_eq!(place.get(), None);
        assert_eq!(place.set(7), Ok(()));
        assert_eq!(place.set(8), Err(8));
        assert_eq!(place.get(), Some(&7));
        assert_eq!(place.take(), Some(7));
        assert_eq!((place.get(), place.set(9)), (None, Ok(())));
    }
}
