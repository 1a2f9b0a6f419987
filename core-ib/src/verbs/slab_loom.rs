//! Every interleaving of those who hold, look up, remove and make objects, under loom.

extern crate std;
use super::super::kind;
use super::*;
use crate::platform::Saved;
use std::boxed::Box;
use std::sync::Arc;
use std::vec::Vec;

/// Something with a value of its own, on the heap, so that a use after its end shows.
struct Thing(Box<u32>);

impl Object for Thing {
    type Kind = kind::Pd;
    const NAME: &'static str = "thing";
    const PROFILE: &'static str = "things";
}

/// Loom's own mutex as a machine's lock: whoever waits for it is not tried in vain.
struct Raw {
    mutex: Box<loom::sync::Mutex<()>>,
    guard: core::cell::UnsafeCell<Option<loom::sync::MutexGuard<'static, ()>>>,
}

// SAFETY: the guard is touched by who has locked the mutex.
unsafe impl Send for Raw {}
// SAFETY: likewise.
unsafe impl Sync for Raw {}

impl Raw {
    fn new() -> Self {
        Self {
            mutex: Box::new(loom::sync::Mutex::new(())),
            guard: core::cell::UnsafeCell::new(None),
        }
    }
}

// SAFETY: the mutex lets one context in until its guard goes.
unsafe impl RawLock for Raw {
    fn acquire(&self) -> Saved {
        let guard = self.mutex.lock().unwrap();
        // SAFETY: the guard goes in `release`, while the mutex, in its box, is still there; the mutex is held, so that
        // nobody else touches the place.
        unsafe {
            *self.guard.get() = Some(core::mem::transmute::<loom::sync::MutexGuard<'_, ()>, _>(
                guard,
            ))
        };
        Saved(0)
    }

    unsafe fn release(&self, _: Saved) {
        // SAFETY: the mutex is held, as above.
        let guard = unsafe { (*self.guard.get()).take() };
        drop(guard);
    }
}

/// Slots on the heap.
struct Own(Box<[Slot<Thing>]>);

impl Deref for Own {
    type Target = [Slot<Thing>];
    fn deref(&self) -> &[Slot<Thing>] {
        &self.0
    }
}

// SAFETY: a box owns its slots.
unsafe impl Places for Own {}

type Things = Slab<Own, Raw>;

fn slab(count: usize) -> Things {
    let slots: Vec<_> = (0..count).map(|_| Slot::new()).collect();
    Slab::new(Own(slots.into_boxed_slice()), Raw::new(), 7)
}

fn put(slab: &Things, value: u32) -> Handle<kind::Pd> {
    slab.reserve().unwrap().fill(Thing(Box::new(value)))
}

/// Runs `f` in every interleaving that differs to somebody, and says how many there were.
fn explore(name: &str, f: impl Fn() + Sync + Send + 'static) {
    let schedules = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let count = schedules.clone();
    loom::model(move || {
        count.fetch_add(1, Ordering::Relaxed);
        f();
    });
    std::eprintln!("{name}: {} schedules", schedules.load(Ordering::Relaxed));
}

#[test]
fn loom_who_holds_an_object_keeps_it_from_who_removes_it() {
    explore("hold and remove", || {
        let slab = Arc::new(slab(1));
        let handle = put(&slab, 1);
        let reader = {
            let slab = slab.clone();
            loom::thread::spawn(move || match slab.get(handle) {
                Ok(held) => {
                    let more = held.clone();
                    drop(held);
                    assert_eq!(*more.0, 1);
                }
                Err(error) => assert_eq!(error, Things::stale()),
            })
        };
        let removed = slab.remove(handle);
        if let Err(error) = &removed {
            assert!(
                matches!(error, VerbsError::Busy { holders: 1 | 2, .. }),
                "{error}"
            );
        }
        reader.join().unwrap();
        assert_eq!(slab.remove(handle).is_ok(), removed.is_err());
        assert_eq!(slab.in_use(), 0);
    });
}

#[test]
fn loom_one_of_two_removes() {
    explore("remove twice", || {
        let slab = Arc::new(slab(1));
        let handle = put(&slab, 1);
        let other = {
            let slab = slab.clone();
            loom::thread::spawn(move || slab.remove(handle).is_ok())
        };
        let one = slab.remove(handle).is_ok();
        assert!(one ^ other.join().unwrap());
        assert_eq!(slab.in_use(), 0);
    });
}

#[test]
fn loom_a_new_tenant_is_not_found_by_the_old_handle_and_whole_by_its_place() {
    explore("another tenant", || {
        let slab = Arc::new(slab(1));
        let old = put(&slab, 1);
        let reader = {
            let slab = slab.clone();
            loom::thread::spawn(move || {
                if let Ok(held) = slab.get(old) {
                    assert_eq!(*held.0, 1);
                }
                if let Some(held) = slab.at(0) {
                    assert!(matches!(*held.0, 1 | 2));
                }
            })
        };
        if slab.remove(old).is_ok() {
            let new = put(&slab, 2);
            assert_ne!(old, new);
            assert!(slab.get(old).is_err());
        }
        reader.join().unwrap();
    });
}

#[test]
fn loom_two_who_make_objects_get_places_of_their_own() {
    explore("make and end", || {
        let slab = Arc::new(slab(2));
        let other = {
            let slab = slab.clone();
            loom::thread::spawn(move || {
                let handle = put(&slab, 1);
                assert_eq!(*slab.get(handle).unwrap().0, 1);
                slab.remove(handle).map(drop).unwrap();
            })
        };
        let handle = put(&slab, 2);
        assert_eq!(*slab.get(handle).unwrap().0, 2);
        other.join().unwrap();
        assert_eq!(slab.in_use(), 1);
        slab.remove(handle).map(drop).unwrap();
    });
}

#[test]
fn loom_two_who_hold_and_one_who_removes_agree_on_who_was_there() {
    explore("two hold, one removes", || {
        let slab = Arc::new(slab(1));
        let handle = put(&slab, 1);
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let slab = slab.clone();
                loom::thread::spawn(move || slab.get(handle).map(|held| *held.0))
            })
            .collect();
        let removed = slab.remove(handle);
        for reader in readers {
            match reader.join().unwrap() {
                Ok(value) => assert_eq!(value, 1),
                Err(error) => assert!(removed.is_ok(), "{error}, and nobody removed it"),
            }
        }
        assert_eq!(slab.remove(handle).is_ok(), removed.is_err());
    });
}
