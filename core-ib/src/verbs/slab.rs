//! Slabs: where objects live, in memory that the platform gave at set-up.
//!
//! Looking an object up takes no lock: one atomic word a slot holds its generation, whether it is alive, and how
//! many hold it. Freed places are reused oldest first, so that a late packet meets a number's new owner as late as
//! can be (verbs 1.4).

use super::{Handle, VerbsError};
use crate::platform::{Lock, Platform, RawLock, Table};
use crate::sync::UnsafeCell;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use core::fmt;
use core::mem::MaybeUninit;
use core::ops::Deref;

/// What a slab can hold.
pub trait Object {
    /// Kind, for its handles.
    type Kind;
    /// The field's own name for it, for errors.
    const NAME: &'static str;
    /// The entry of the driver's profile that bounds how many there are, for errors.
    const PROFILE: &'static str;
}

const LIVE: u64 = 1 << 31;
const HOLDERS: u64 = LIVE - 1;
const NONE: u32 = u32::MAX;

const fn generation_of(word: u64) -> u32 {
    (word >> 32) as u32
}

/// One place.
pub struct Slot<T> {
    /// Generation (upper half), alive (bit 31), holders (bits 30:0).
    word: AtomicU64,
    next_free: AtomicU32,
    object: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: the object is reached by shared reference only while `word` says alive and counts the holder, and
// taken out only when `word` went from alive without holders to dead, which one context can do.
unsafe impl<T: Send + Sync> Sync for Slot<T> {}

impl<T> Slot<T> {
    /// A free place.
    #[cfg(not(all(test, loom)))]
    pub const fn new() -> Self {
        Self {
            word: AtomicU64::new(0),
            next_free: AtomicU32::new(NONE),
            object: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }

    /// The same.
    #[cfg(all(test, loom))]
    pub fn new() -> Self {
        Self {
            word: AtomicU64::new(0),
            next_free: AtomicU32::new(NONE),
            object: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }
}

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Drop for Slot<T> {
    fn drop(&mut self) {
        if self.word.load(Ordering::Relaxed) & LIVE != 0 {
            // SAFETY: alive, so initialised; nobody else can refer to it.
            self.object
                .with_mut(|object| unsafe { (*object).assume_init_drop() });
        }
    }
}

/// Memory for the places of one slab.
///
/// # Safety
///
/// Dereferences to the same slots every time, and nothing else in the program refers to them.
pub unsafe trait Places: Deref {}

// SAFETY: a table owns its entries, which never move.
unsafe impl<T, P: Platform> Places for Table<'_, Slot<T>, P> {}

#[derive(Debug)]
struct FreeList {
    oldest: u32,
    newest: u32,
    in_use: u32,
}

/// All objects of one kind of one HCA. Allocates nothing.
pub struct Slab<S, R> {
    slots: S,
    free: Lock<FreeList, R>,
    device: u32,
}

impl<S, R: RawLock> fmt::Debug for Slab<S, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slab")
            .field("device", &self.device)
            .finish_non_exhaustive()
    }
}

impl<T: Object, S: Places + Deref<Target = [Slot<T>]>, R: RawLock> Slab<S, R> {
    /// Puts all of `slots` to use, lowest index first, for the HCA that the process knows as `device`.
    pub fn new(slots: S, raw: R, device: u32) -> Self {
        let count = slots.len().min(NONE as usize) as u32;
        for (index, slot) in slots.iter().enumerate() {
            let next = (index as u32).wrapping_add(1);
            let next = if next < count { next } else { NONE };
            slot.next_free.store(next, Ordering::Relaxed);
        }
        let free = FreeList {
            oldest: if count == 0 { NONE } else { 0 },
            newest: count.wrapping_sub(1),
            in_use: 0,
        };
        Self {
            slots,
            free: Lock::new(raw, free),
            device,
        }
    }

    /// Places, free ones included.
    pub fn capacity(&self) -> u32 {
        self.slots.len().min(NONE as usize) as u32
    }

    /// Objects alive and places reserved.
    pub fn in_use(&self) -> u32 {
        self.free.with(|free| free.in_use)
    }

    /// Reserves the place that has been free the longest. Dropping the reservation gives it back.
    pub fn reserve(&self) -> Result<Vacant<'_, T, S, R>, VerbsError> {
        let index = self.free.with(|free| {
            let index = free.oldest;
            let slot = self.slots.get(index as usize)?;
            free.oldest = slot.next_free.swap(NONE, Ordering::Relaxed);
            if free.oldest == NONE {
                free.newest = NONE;
            }
            free.in_use = free.in_use.saturating_add(1);
            Some(index)
        });
        match index {
            Some(index) => Ok(Vacant {
                slab: self,
                index,
                _object: core::marker::PhantomData,
            }),
            None => Err(VerbsError::NoResources {
                entry: T::PROFILE,
                limit: self.capacity(),
            }),
        }
    }

    fn give_back(&self, index: u32) {
        self.free.with(|free| {
            let newest = free.newest;
            match self.slots.get(newest as usize) {
                Some(last) => last.next_free.store(index, Ordering::Relaxed),
                None => free.oldest = index,
            }
            free.newest = index;
            free.in_use = free.in_use.saturating_sub(1);
        });
    }

    const fn stale() -> VerbsError {
        VerbsError::InvalidHandle { object: T::NAME }
    }

    fn slot(&self, handle: Handle<T::Kind>) -> Result<&Slot<T>, VerbsError> {
        if handle.device() != self.device {
            return Err(Self::stale());
        }
        self.slots.get(handle.index() as usize).ok_or(Self::stale())
    }

    fn hold<'a>(&self, slot: &'a Slot<T>, generation: Option<u32>) -> Option<Held<'a, T>> {
        let mut word = slot.word.load(Ordering::Acquire);
        loop {
            let right = generation.is_none_or(|wanted| wanted == generation_of(word));
            if word & LIVE == 0 || !right || word & HOLDERS == HOLDERS {
                return None;
            }
            let more = word.wrapping_add(1);
            let swap =
                slot.word
                    .compare_exchange_weak(word, more, Ordering::Acquire, Ordering::Acquire);
            match swap {
                Ok(_) => return Some(Held { slot }),
                Err(now) => word = now,
            }
        }
    }

    /// The object, held: it cannot be removed until the reference is dropped. Any context; takes no lock.
    pub fn get(&self, handle: Handle<T::Kind>) -> Result<Held<'_, T>, VerbsError> {
        let slot = self.slot(handle)?;
        self.hold(slot, Some(handle.generation()))
            .ok_or(Self::stale())
    }

    /// Whatever object is at `index` now, for numbers that come from the device. Any context; takes no lock.
    pub fn at(&self, index: u32) -> Option<Held<'_, T>> {
        self.hold(self.slots.get(index as usize)?, None)
    }

    /// The handle of the object at `index`, if one is alive.
    pub fn handle_at(&self, index: u32) -> Option<Handle<T::Kind>> {
        let word = self.slots.get(index as usize)?.word.load(Ordering::Acquire);
        (word & LIVE != 0).then(|| Handle::new(self.device, index, generation_of(word)))
    }

    /// Indices of all objects alive, in order.
    pub fn live<'a>(&'a self) -> impl Iterator<Item = u32> + 'a
    where
        T: 'a,
    {
        self.slots.iter().enumerate().filter_map(|(index, slot)| {
            (slot.word.load(Ordering::Acquire) & LIVE != 0).then_some(index as u32)
        })
    }

    /// Takes the object out. From here on every copy of the handle is stale.
    pub fn remove(&self, handle: Handle<T::Kind>) -> Result<T, VerbsError> {
        let slot = self.slot(handle)?;
        let alive = (u64::from(handle.generation()) << 32) | LIVE;
        let dead = u64::from(handle.generation().wrapping_add(1)) << 32;
        let swap = slot
            .word
            .compare_exchange(alive, dead, Ordering::AcqRel, Ordering::Acquire);
        match swap {
            Ok(_) => {
                // SAFETY: alive without holders until just now, and dead since: initialised, and ours alone.
                let object = slot
                    .object
                    .with_mut(|object| unsafe { (*object).assume_init_read() });
                self.give_back(handle.index());
                Ok(object)
            }
            Err(word) if word & !HOLDERS == alive => Err(VerbsError::Busy {
                object: T::NAME,
                holders: (word & HOLDERS) as u32,
            }),
            Err(_) => Err(Self::stale()),
        }
    }
}

/// A reserved place, not yet an object.
pub struct Vacant<'a, T: Object, S: Places + Deref<Target = [Slot<T>]>, R: RawLock> {
    slab: &'a Slab<S, R>,
    index: u32,
    _object: core::marker::PhantomData<T>,
}

impl<T: Object, S: Places + Deref<Target = [Slot<T>]>, R: RawLock> Vacant<'_, T, S, R> {
    /// Its index in the slab.
    pub const fn index(&self) -> u32 {
        self.index
    }

    /// The generation that an object in this place will have: a tag for numbers that must differ on reuse.
    pub fn generation(&self) -> u32 {
        self.slab
            .slots
            .get(self.index as usize)
            .map_or(0, |slot| generation_of(slot.word.load(Ordering::Relaxed)))
    }

    /// Moves the object in; from here on it can be found.
    pub fn fill(self, object: T) -> Handle<T::Kind> {
        let generation = self.generation();
        let (slab, index) = (self.slab, self.index);
        core::mem::forget(self);
        if let Some(slot) = slab.slots.get(index as usize) {
            // SAFETY: the place is dead and reserved by us alone, so nobody refers to it.
            slot.object
                .with_mut(|place| unsafe { (*place).write(object) });
            let word = (u64::from(generation) << 32) | LIVE;
            slot.word.store(word, Ordering::Release);
        }
        Handle::new(slab.device, index, generation)
    }
}

impl<T: Object, S: Places + Deref<Target = [Slot<T>]>, R: RawLock> Drop for Vacant<'_, T, S, R> {
    fn drop(&mut self) {
        self.slab.give_back(self.index);
    }
}

/// An object that cannot go away while this lives.
pub struct Held<'a, T> {
    slot: &'a Slot<T>,
}

impl<T> Deref for Held<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: held, so alive, so initialised; only shared references exist.
        self.slot
            .object
            .with(|object| unsafe { (*object).assume_init_ref() })
    }
}

impl<T> Clone for Held<'_, T> {
    fn clone(&self) -> Self {
        // Cannot overflow into `LIVE`: that would take 2^31 references.
        self.slot.word.fetch_add(1, Ordering::Relaxed);
        Self { slot: self.slot }
    }
}

impl<T> Drop for Held<'_, T> {
    fn drop(&mut self) {
        self.slot.word.fetch_sub(1, Ordering::Release);
    }
}

impl<T: fmt::Debug> fmt::Debug for Held<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(all(test, loom))]
#[path = "slab_loom.rs"]
mod loom_tests;

#[cfg(test)]
pub(super) mod tests {
    extern crate std;
    use super::super::kind;
    use super::*;
    use crate::platform::Saved;
    use core::sync::atomic::AtomicBool;
    use std::boxed::Box;
    use std::sync::Arc;
    use std::vec::Vec;

    struct Thing(#[allow(dead_code)] Arc<()>, u32);
    impl Object for Thing {
        type Kind = kind::Pd;
        const NAME: &'static str = "thing";
        const PROFILE: &'static str = "things";
    }

    #[derive(Default)]
    pub(in super::super) struct Spin(AtomicBool);
    // SAFETY: `swap` lets one context in until `store`.
    unsafe impl RawLock for Spin {
        fn acquire(&self) -> Saved {
            while self.0.swap(true, Ordering::Acquire) {
                std::thread::yield_now();
            }
            Saved(0)
        }
        unsafe fn release(&self, _: Saved) {
            self.0.store(false, Ordering::Release);
        }
    }

    // SAFETY: a box owns its slots.
    unsafe impl<T> Places for Box<[Slot<T>]> {}

    type Things = Slab<Box<[Slot<Thing>]>, Spin>;

    fn slab(count: usize) -> Things {
        let slots: Vec<_> = (0..count).map(|_| Slot::new()).collect();
        Slab::new(slots.into_boxed_slice(), Spin::default(), 7)
    }

    fn put(slab: &Things, value: u32) -> Handle<kind::Pd> {
        slab.reserve().unwrap().fill(Thing(Arc::new(()), value))
    }

    #[test]
    fn a_handle_of_the_former_tenant_is_stale() {
        let slab = slab(1);
        let old = put(&slab, 1);
        assert_eq!(slab.remove(old).unwrap().1, 1);
        let new = put(&slab, 2);
        let stale = VerbsError::InvalidHandle { object: "thing" };
        assert_eq!(slab.get(old).err(), Some(stale));
        assert_eq!(slab.remove(old).err(), Some(stale));
        assert_eq!(slab.get(new).unwrap().1, 2);
    }

    #[test]
    fn a_handle_of_another_hca_is_refused() {
        let slab = slab(1);
        let handle = put(&slab, 1);
        let foreign = Handle::<kind::Pd>::new(8, handle.index(), handle.generation());
        assert!(slab.get(foreign).is_err());
    }

    #[test]
    fn an_object_in_use_is_busy_and_says_by_how_many() {
        let slab = slab(2);
        let handle = put(&slab, 1);
        let (one, two) = (slab.get(handle).unwrap(), slab.get(handle).unwrap());
        let (object, holders) = ("thing", 2);
        assert_eq!(
            slab.remove(handle).err(),
            Some(VerbsError::Busy { object, holders })
        );
        drop((one, two));
        assert!(slab.remove(handle).is_ok());
    }

    #[test]
    fn places_are_reused_oldest_first() {
        let slab = slab(3);
        let handles = [put(&slab, 0), put(&slab, 1), put(&slab, 2)];
        let full = VerbsError::NoResources {
            entry: "things",
            limit: 3,
        };
        assert_eq!(slab.reserve().err(), Some(full));
        for index in [1, 0, 2] {
            slab.remove(handles[index]).unwrap();
        }
        let order = [put(&slab, 0), put(&slab, 0), put(&slab, 0)].map(Handle::index);
        assert_eq!(order, [1, 0, 2]);
    }

    #[test]
    fn a_reservation_that_is_dropped_comes_back() {
        let slab = slab(1);
        drop(slab.reserve().unwrap());
        assert_eq!(slab.in_use(), 0);
        put(&slab, 1);
        assert_eq!(slab.in_use(), 1);
    }

    #[test]
    fn what_is_left_is_dropped_with_the_slab() {
        let witness = Arc::new(());
        let slab = slab(2);
        slab.reserve().unwrap().fill(Thing(witness.clone(), 0));
        drop(slab);
        assert_eq!(Arc::strong_count(&witness), 1);
    }

    #[test]
    fn a_holder_and_a_remover_on_two_threads_never_meet() {
        let slab = Arc::new(slab(4));
        let stop = Arc::new(AtomicBool::new(false));
        let reader = {
            let (slab, stop) = (slab.clone(), stop.clone());
            std::thread::spawn(move || {
                let mut seen = 0_u64;
                while !stop.load(Ordering::Relaxed) {
                    for index in 0..4 {
                        seen += slab.at(index).map_or(0, |held| u64::from(held.1));
                    }
                }
                seen
            })
        };
        for round in 0..20_000 {
            let handle = put(&slab, round);
            while slab.remove(handle).is_err() {
                std::thread::yield_now();
            }
        }
        stop.store(true, Ordering::Relaxed);
        reader.join().unwrap();
        assert_eq!(slab.in_use(), 0);
    }
}
