//! The machine over a kernel for tests. That a whole host works is seen in `harness/` and `kmod/`.

use crate::entry::{self, HostConfig, Outcome};
use crate::fake::{BAR, CROOKED, IN_USE};
use crate::host::Host;
use crate::machine::{Machine, now};
use core::ptr::{NonNull, null, null_mut};
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use core_ib::platform::{
    Caching, Completion, DmaBuf, Handled, Handler, LetGo, Platform, PlatformError, Registers,
    Vectors,
};
use std::sync::Mutex;

/// What the kernel counts is of one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn with(test: impl FnOnce(&Machine)) {
    let alone = ALONE.lock();
    let before = IN_USE.load(Ordering::SeqCst);
    // SAFETY: the kernel for tests does not look at it.
    let machine = unsafe { Machine::new(null_mut()) };
    test(&machine);
    assert_eq!(
        IN_USE.load(Ordering::SeqCst),
        before,
        "something was left behind"
    );
    drop(alone);
}

#[test]
fn an_access_outside_of_a_mapping_never_reaches_the_kernel() {
    with(|machine| {
        let map = machine.map(0, 32, 32, Caching::WriteCombining).unwrap();
        assert_eq!(map.caching(), Caching::Uncached, "as the kernel says");
        map.write_be64(24, 0x0102_0304_0506_0708);
        assert_eq!(map.read_be32(28), 0x0506_0708);
        for outside in [28, 32, usize::MAX - 3, 4, 2] {
            assert_eq!(map.read_be64(outside), u64::MAX, "{outside}");
            map.write_be64(outside, 0);
        }
        assert_eq!((map.read_be32(32), map.read_be32(30)), (u32::MAX, u32::MAX));
        assert_eq!(map.read_be64(24), 0x0102_0304_0506_0708);
        let refused = PlatformError::OutsideBar {
            bar: 0,
            at: 33,
            len: 32,
        };
        assert_eq!(
            machine.map(0, 33, 32, Caching::Uncached).err(),
            Some(refused)
        );
        assert!(machine.map(1, 0, 4, Caching::Uncached).is_err());
        assert!(machine.map(0, 0, BAR, Caching::Uncached).is_ok());
    });
}

#[test]
fn memory_that_is_not_aligned_for_the_device_is_given_back() {
    with(|machine| {
        let memory = DmaBuf::new(machine, 1, 8192).unwrap();
        assert_eq!((memory.len(), memory.addr().get() % 8192), (4096, 0));
        // SAFETY: no device knows it.
        memory.free(unsafe { LetGo::claim() });
        CROOKED.store(true, Ordering::SeqCst);
        let refused = PlatformError::NoDmaMemory { len: 1 };
        assert_eq!(DmaBuf::new(machine, 1, 8192).err(), Some(refused));
        CROOKED.store(false, Ordering::SeqCst);
    });
}

struct Count(AtomicU32);

impl Handler for Count {
    fn handle(&self) -> Handled {
        self.0.fetch_add(1, Ordering::SeqCst);
        Handled::Yes
    }
}

#[test]
fn an_interrupt_calls_what_is_bound_and_a_vector_is_bound_once() {
    with(|machine| {
        assert_eq!(machine.alloc_vectors(4), Ok(Vectors::Msix { count: 3 }));
        assert_eq!(machine.alloc_vectors(1), Ok(Vectors::Intx));
        assert!(machine.alloc_vectors(0).is_err());
        let count = Count(AtomicU32::new(0));
        let handler: &(dyn Handler + 'static) = std::boxed::Box::leak(std::boxed::Box::new(count));
        let bind = |vector| {
            // SAFETY: it stays for good.
            unsafe { machine.bind_interrupt(vector, NonNull::from(handler)) }
        };
        assert_eq!(bind(2), Ok(()));
        let refused = |vector| Err(PlatformError::NoVector { vector });
        assert_eq!(
            (bind(2), bind(3), bind(4)),
            (refused(2), refused(3), refused(4))
        );
        machine.unbind_interrupt(2);
        machine.unbind_interrupt(2);
        assert_eq!(bind(2), Ok(()));
        machine.unbind_interrupt(2);
    });
}

#[test]
fn a_gate_lets_one_thread_in_at_a_time_and_a_completion_remembers_one_firing() {
    with(|machine| {
        let (gate, lock) = (machine.gate("test", 0), machine.lock("test", true, 0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        gate.with(|count| {
                            let seen = *count;
                            std::thread::yield_now();
                            *count = seen + 1;
                        });
                        lock.with(|count| *count += 1);
                    }
                });
            }
        });
        assert_eq!((gate.into_inner(), lock.into_inner()), (800, 800));
        let completion = machine.completion().unwrap();
        completion.fire();
        completion.fire();
        assert!(completion.wait_until(now()));
        assert!(!completion.wait_until(now().after(Duration::from_millis(2))));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                machine.sleep(Duration::from_millis(2));
                completion.fire();
            });
            assert!(completion.wait_until(now().after(Duration::from_secs(20))));
        });
    });
}

#[test]
fn an_empty_slot_costs_nothing_and_is_no_device() {
    with(|_| {
        let config = HostConfig {
            description: c"test".as_ptr(),
            messages: true,
            debug: true,
            send_frames: 16,
            recv_frames: 16,
            connected: false,
        };
        let mut host: *mut Host = null_mut();
        // SAFETY: all of it is there for the length of the call.
        let opened = unsafe { entry::openib_open(null_mut(), &raw const config, &raw mut host) };
        assert_eq!((opened, host.cast_const()), (Outcome::NoDevice, null()));
    });
}

#[test]
fn every_counter_has_a_name_and_there_is_none_behind_the_last() {
    let count = (0..).take_while(|number| !entry::openib_counter_name(*number).is_null());
    assert_eq!(count.count(), size_of::<crate::counters::Values>() / 8);
}
