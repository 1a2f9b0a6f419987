//! The platform contract as tests: each function is a sentence of `core_ib::platform` that is true of every machine.
//!
//! A machine is tested with a device that it can exercise; [`Rig`] says how. The simulated machine runs all of them,
//! [`cases`], in virtual and in real time. A machine that has one context and polls, like that of `tests/bare`, runs
//! those that need neither a second context nor an interrupt, [`cases_of_one_context`].

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use core::time::Duration;
use core_ib::Instant;
use core_ib::platform::{
    Blank, Caching, Completion, Direction, DmaAddr, DmaBuf, Fifo, Gate, Handled, Handler, LetGo,
    Lock, Platform, PlatformError, Registers, Room, Table, Vectors,
};
use std::ptr::NonNull;

/// A machine under test, and the device in it. All of it is called in a control context.
pub trait Rig: Sync {
    /// The machine.
    type Machine: Platform;

    /// It.
    fn machine(&self) -> &Self::Machine;
    /// Runs both, beside each other, until both have ended.
    fn beside(&self, one: &(dyn Fn() + Sync), other: &(dyn Fn() + Sync));
    /// BAR and offset of 64 bytes that read back as they were written.
    fn scratch(&self) -> (u8, u64);
    /// Makes the device raise `vector`, `late` from now; it returns before that.
    fn raise(&self, vector: u16, late: Duration);
    /// Makes the device release its pin, if that is asserted; says whether it was. Interrupt context.
    fn release(&self) -> bool;
    /// Makes the device copy, and returns when it has.
    fn device_copies(&self, from: DmaAddr, to: DmaAddr, len: usize);
}

/// A sentence and its test.
pub type Case<R> = (&'static str, fn(&R));

macro_rules! list {
    ($($case:ident),* $(,)?) => {
        vec![$((stringify!($case), $case::<R> as fn(&R))),*]
    };
}

/// All sentences.
pub fn cases<R: Rig>() -> Vec<Case<R>> {
    let mut all = cases_of_one_context();
    all.extend(list![
        a_wait_ends_when_another_context_fires,
        a_lock_lets_one_context_in_at_a_time,
        a_gate_lets_one_context_in_at_a_time_and_its_owner_may_sleep,
        an_interrupt_runs_the_handler_that_is_bound_to_its_vector,
        no_handler_starts_once_unbind_has_returned,
        unbind_waits_for_a_handler_that_runs,
        a_lock_of_interrupts_keeps_the_handler_out,
    ]);
    all
}

/// The sentences that need no second context and no interrupt: they call neither [`Rig::beside`] nor [`Rig::raise`].
pub fn cases_of_one_context<R: Rig>() -> Vec<Case<R>> {
    list![
        the_clock_never_goes_back_and_a_sleep_lasts_at_least_as_long_as_asked,
        a_completion_remembers_one_firing_until_a_wait_takes_it,
        a_wait_ends_at_its_deadline_and_not_before,
        dma_memory_is_zeroed_aligned_and_seen_by_the_device,
        memory_that_was_given_back_comes_again_zeroed,
        words_of_memory_are_those_that_were_checked,
        a_mapping_carries_bytes_both_ways,
        a_table_is_zeroed_and_dropped_entry_by_entry,
        a_queue_gives_back_in_order_what_it_took_and_refuses_what_it_has_no_place_for,
        a_blank_value_is_a_copy_that_changes_alone,
        registers_read_back_in_big_endian_words_of_both_widths,
        an_access_outside_of_a_mapping_gives_ones_and_changes_nothing,
        a_mapping_that_reaches_out_of_its_bar_is_refused,
        configuration_space_reads_and_writes_by_words,
        at_least_one_vector_and_at_most_as_many_as_asked_for_are_given,
        a_vector_is_bound_once,
    ]
}

/// Sleeps are in the hundreds of microseconds, which any machine keeps.
const SHORT: Duration = Duration::from_micros(200);
/// Nothing here takes as long.
const LONG: Duration = Duration::from_secs(5);

fn soon<R: Rig>(rig: &R) -> Instant {
    rig.machine().now().after(LONG)
}

/// The device has let go of memory that no test here leaves it with.
fn let_go() -> LetGo {
    // SAFETY: `Rig::device_copies` has returned for whatever the device was told of.
    unsafe { LetGo::claim() }
}

/// Time.
pub fn the_clock_never_goes_back_and_a_sleep_lasts_at_least_as_long_as_asked<R: Rig>(rig: &R) {
    let machine = rig.machine();
    let mut last = machine.now();
    for _ in 0..20 {
        let now = machine.now();
        assert!(now >= last);
        last = now;
    }
    machine.sleep(SHORT);
    assert!(machine.now().since(last) >= SHORT);
}

/// Completions.
pub fn a_completion_remembers_one_firing_until_a_wait_takes_it<R: Rig>(rig: &R) {
    let machine = rig.machine();
    let completion = machine.completion().unwrap();
    let past = Instant(0);
    assert!(!completion.wait_until(past));
    completion.fire();
    completion.fire();
    assert!(completion.wait_until(soon(rig)));
    assert!(!completion.wait_until(past), "two firings are one");
}

/// Completions.
pub fn a_wait_ends_at_its_deadline_and_not_before<R: Rig>(rig: &R) {
    let machine = rig.machine();
    let completion = machine.completion().unwrap();
    let deadline = machine.now().after(SHORT);
    assert!(!completion.wait_until(deadline));
    assert!(machine.now() >= deadline);
}

/// Completions.
pub fn a_wait_ends_when_another_context_fires<R: Rig>(rig: &R) {
    let machine = rig.machine();
    let (there, back) = (machine.completion().unwrap(), machine.completion().unwrap());
    let turns = 20;
    rig.beside(
        &|| {
            for _ in 0..turns {
                there.fire();
                assert!(back.wait_until(soon(rig)));
            }
        },
        &|| {
            for _ in 0..turns {
                assert!(there.wait_until(soon(rig)));
                back.fire();
            }
        },
    );
    assert!(!there.wait_until(Instant(0)) && !back.wait_until(Instant(0)));
}

/// Counts in a way that shows when two do it at once.
fn count<R: Rig>(rig: &R, counter: &mut u32, inside: &AtomicBool) {
    assert!(!inside.swap(true, Ordering::SeqCst), "two are in");
    let before = *counter;
    rig.machine().dma_wmb();
    *counter = before + 1;
    inside.store(false, Ordering::SeqCst);
}

/// Locks.
pub fn a_lock_lets_one_context_in_at_a_time<R: Rig>(rig: &R) {
    for taken_by_interrupt in [false, true] {
        let lock = rig.machine().lock("counter", taken_by_interrupt, 0);
        let inside = AtomicBool::new(false);
        let work = || {
            for _ in 0..200 {
                lock.with(|counter| count(rig, counter, &inside));
            }
        };
        rig.beside(&work, &work);
        assert_eq!(lock.into_inner(), 400);
    }
}

/// Gates.
pub fn a_gate_lets_one_context_in_at_a_time_and_its_owner_may_sleep<R: Rig>(rig: &R) {
    let mut gate = rig.machine().gate("counter", 0);
    let inside = AtomicBool::new(false);
    let shared: &Gate<u32, _> = &gate;
    let work = || {
        for _ in 0..3 {
            shared.with(|counter| {
                rig.machine().sleep(Duration::from_micros(50));
                count(rig, counter, &inside);
            });
        }
    };
    rig.beside(&work, &work);
    assert_eq!(*gate.get_mut(), 6);
}

/// DMA memory.
pub fn dma_memory_is_zeroed_aligned_and_seen_by_the_device<R: Rig>(rig: &R) {
    let machine = rig.machine();
    for (len, align) in [(1, 1), (4096, 4096), (100, 8192), (20_000, 65536)] {
        let memory = DmaBuf::new(machine, len, align).unwrap();
        assert_eq!(memory.len(), len);
        assert_eq!(memory.addr().get() % align.max(4096) as u64, 0);
        let mut bytes = vec![1; len];
        memory.copy_out(0, &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 0));
        memory.free(let_go());
    }
    let from = DmaBuf::new(machine, 4096, 4096).unwrap();
    let to = DmaBuf::new(machine, 4096, 4096).unwrap();
    from.copy_in(8, b"by the device").unwrap();
    machine.dma_wmb();
    rig.device_copies(from.addr().plus(8), to.addr().plus(3), 13);
    machine.dma_rmb();
    let mut there = [0; 15];
    to.copy_out(2, &mut there).unwrap();
    assert_eq!(&there, b"\0by the device\0");
    from.free(let_go());
    to.free(let_go());
}

/// DMA memory.
pub fn memory_that_was_given_back_comes_again_zeroed<R: Rig>(rig: &R) {
    for _ in 0..8 {
        let memory = DmaBuf::new(rig.machine(), 4096, 4096).unwrap();
        assert_eq!(memory.read_be32(4092), Ok(0));
        memory.fill(0, 4096, 0xa5).unwrap();
        memory.free(let_go());
    }
}

/// DMA memory.
pub fn words_of_memory_are_those_that_were_checked<R: Rig>(rig: &R) {
    let memory = DmaBuf::new(rig.machine(), 4096, 4096).unwrap();
    let words = memory.words::<4>(4080).unwrap();
    words.set(3, 0x0102_0304);
    words.set(4, 1);
    assert_eq!((words.get(3), words.get(4)), (0x0102_0304, 0), "four words");
    words.write(&[[5_u8, 6, 7, 8]; 4]);
    assert_eq!(
        memory.read::<[u8; 16]>(4080),
        Ok([5, 6, 7, 8].repeat(4).try_into().unwrap())
    );
    assert_eq!(words.read::<[u8; 16]>()[12..], [5, 6, 7, 8]);
    assert_eq!(words.get(0), 0x0506_0708);
    for offset in [4084, 4096, 5000, usize::MAX - 3, 2] {
        assert!(memory.words::<4>(offset).is_err(), "{offset}");
    }
    assert!(memory.words::<0>(4096).is_ok());
    memory.free(let_go());
}

/// Streaming mappings.
pub fn a_mapping_carries_bytes_both_ways<R: Rig>(rig: &R) {
    let machine = rig.machine();
    // Pages of the machine's own, since only those are known to be contiguous.
    let ours = DmaBuf::new(machine, 4096, 4096).unwrap();
    let raw = machine.dma_alloc(4096, 4096).unwrap();
    ours.copy_in(0, b"there").unwrap();
    // SAFETY: the page stays until the mapping has ended, and is left alone in between.
    let at = unsafe { machine.dma_map(raw.memory, 4096, Direction::Both) }.unwrap();
    machine.dma_sync(at, 4096, Direction::Both, true);
    rig.device_copies(ours.addr(), at, 5);
    rig.device_copies(at.plus(1), ours.addr().plus(100), 4);
    machine.dma_sync(at, 4096, Direction::Both, false);
    // SAFETY: the mapping above; the device has copied.
    unsafe { machine.dma_unmap(at, 4096, Direction::Both) };
    // SAFETY: 5 bytes of a page that nobody else uses.
    let there: [u8; 5] = unsafe { raw.memory.cast().read() };
    assert_eq!(&there, b"there");
    let mut back = [0; 4];
    ours.copy_out(100, &mut back).unwrap();
    assert_eq!(&back, b"here");
    ours.free(let_go());
    // SAFETY: from `dma_alloc` above; the device was told of it under another address alone, and has let go.
    unsafe { machine.dma_free(raw) };
}

/// Tables.
pub fn a_table_is_zeroed_and_dropped_entry_by_entry<R: Rig>(rig: &R) {
    struct Counted<'a>(&'a AtomicU32);
    impl Drop for Counted<'_> {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let machine = rig.machine();
    let layout = core::alloc::Layout::from_size_align(5000, 64).unwrap();
    let raw = machine.table_alloc(layout).unwrap();
    assert_eq!(raw.addr().get() % 64, 0);
    // SAFETY: 5000 bytes of ours.
    let bytes = unsafe { NonNull::slice_from_raw_parts(raw, 5000).as_ref() };
    assert!(bytes.iter().all(|byte| *byte == 0));
    // SAFETY: from `table_alloc`; `bytes` is not used again.
    unsafe { machine.table_free(raw, layout) };

    let dropped = AtomicU32::new(0);
    let table = Table::new(machine, 10, |_| Counted(&dropped)).unwrap();
    assert_eq!(table.len(), 10);
    drop(table);
    assert_eq!(dropped.load(Ordering::Relaxed), 10);
}

/// Tables. A queue lies in one, and turns round in it.
pub fn a_queue_gives_back_in_order_what_it_took_and_refuses_what_it_has_no_place_for<R: Rig>(
    rig: &R,
) {
    let mut queue = Fifo::new(rig.machine(), 3).unwrap();
    assert_eq!(queue.pop_front(), None);
    for turn in 0..5 {
        for number in 0..3 {
            assert_eq!(queue.push_back(turn * 10 + number), Ok(()));
        }
        assert!(queue.is_full());
        assert_eq!(queue.push_back(99), Err(99));
        assert_eq!(queue.pop_front(), Some(turn * 10));
        assert_eq!(queue.push_back(turn * 10 + 3), Ok(()), "one place is free");
        for number in 1..4 {
            assert_eq!(queue.pop_front(), Some(turn * 10 + number));
        }
        assert!(queue.is_empty());
        // The next turn begins one place further on.
        assert_eq!(queue.push_back(0), Ok(()));
        assert_eq!(queue.pop_front(), Some(0));
    }
    let mut nothing = Fifo::new(rig.machine(), 0).unwrap();
    assert_eq!(nothing.push_back(1), Err(1));
    assert_eq!(nothing.pop_front(), None);
}

/// Tables. What is large is made where it lies.
pub fn a_blank_value_is_a_copy_that_changes_alone<R: Rig>(rig: &R) {
    struct Large([u32; 1000]);
    // SAFETY: numbers own nothing.
    unsafe impl Blank for Large {
        const BLANK: &'static Self = &Self([7; 1000]);
    }
    let room = || Room::<Large, _>::new(rig.machine()).unwrap();
    let mut one = room().blank();
    assert_eq!(one.0, [7; 1000]);
    one.0[999] = 8;
    assert_eq!(room().blank().0, [7; 1000]);
}

/// Registers.
pub fn registers_read_back_in_big_endian_words_of_both_widths<R: Rig>(rig: &R) {
    let (bar, at) = rig.scratch();
    let machine = rig.machine();
    let registers = machine.map(bar, at, 64, Caching::Uncached).unwrap();
    assert_eq!(registers.caching(), Caching::Uncached);
    registers.write_be64(8, 0x0102_0304_0506_0708);
    assert_eq!(registers.read_be32(8), 0x0102_0304);
    assert_eq!(registers.read_be32(12), 0x0506_0708);
    registers.write_be32(12, 0xdead_beef);
    assert_eq!(registers.read_be64(8), 0x0102_0304_dead_beef);
    // SAFETY: of the 64 bytes that were mapped.
    unsafe { registers.write_be64_inside(56, 0x1122_3344_5566_7788) };
    assert_eq!(registers.read_be64(56), 0x1122_3344_5566_7788);
    let combined = machine.map(bar, at, 64, Caching::WriteCombining).unwrap();
    assert_eq!(combined.read_be32(12), 0xdead_beef, "whatever was granted");
}

/// Registers. The machine may complain.
pub fn an_access_outside_of_a_mapping_gives_ones_and_changes_nothing<R: Rig>(rig: &R) {
    let (bar, at) = rig.scratch();
    let all = rig.machine().map(bar, at, 64, Caching::Uncached).unwrap();
    let some = rig.machine().map(bar, at, 16, Caching::Uncached).unwrap();
    all.write_be64(16, 7);
    assert_eq!(some.read_be32(16), !0);
    assert_eq!(some.read_be64(16), !0);
    some.write_be32(16, 1);
    some.write_be64(16, 1);
    assert_eq!(some.read_be32(usize::MAX & !3), !0);
    assert_eq!(all.read_be64(16), 7);
}

/// Registers.
pub fn a_mapping_that_reaches_out_of_its_bar_is_refused<R: Rig>(rig: &R) {
    let (bar, _) = rig.scratch();
    let machine = rig.machine();
    let size = machine.bar_len(bar).unwrap();
    assert!(
        machine
            .map(bar, 0, size as usize, Caching::Uncached)
            .is_ok()
    );
    let at = size - 4;
    let outside = machine.map(bar, at, 8, Caching::Uncached).err();
    let len = 8;
    assert_eq!(outside, Some(PlatformError::OutsideBar { bar, at, len }));
    assert!(machine.map(bar, u64::MAX, 8, Caching::Uncached).is_err());
    let none = (0..6).find(|bar| machine.bar_len(*bar).is_none());
    assert!(none.is_none_or(|bar| machine.map(bar, 0, 4, Caching::Uncached).is_err()));
    assert_eq!(machine.bar_len(6), None);
}

/// Configuration space.
pub fn configuration_space_reads_and_writes_by_words<R: Rig>(rig: &R) {
    let machine = rig.machine();
    let identity = machine.config_read32(0);
    assert!(identity != 0 && identity != !0);
    machine.config_write32(0, 0);
    assert_eq!(machine.config_read32(0), identity, "read only");
    assert_eq!(
        machine.config_read32(4) & 6,
        6,
        "memory and bus master are on"
    );
    let line = machine.config_read32(0x3c);
    machine.config_write32(0x3c, line ^ 0x55);
    assert_eq!(machine.config_read32(0x3c), line ^ 0x55);
    machine.config_write32(0x3c, line);
}

/// Tells what it was called for.
struct Counter<'a, R: Rig> {
    rig: &'a R,
    calls: AtomicU32,
    done: <R::Machine as Platform>::Completion,
}

impl<'a, R: Rig> Counter<'a, R> {
    fn new(rig: &'a R) -> Self {
        Self {
            rig,
            calls: AtomicU32::new(0),
            done: rig.machine().completion().unwrap(),
        }
    }
}

impl<R: Rig> Handler for Counter<'_, R> {
    fn handle(&self) -> Handled {
        self.rig.release();
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.done.fire();
        Handled::Yes
    }
}

/// Binds `handler`, which outlives what `f` does, for as long as `f` runs.
fn bound<R: Rig, U>(rig: &R, vector: u16, handler: &dyn Handler, f: impl FnOnce() -> U) -> U {
    // SAFETY: the lifetime alone changes; see below.
    let handler: NonNull<dyn Handler> = unsafe { core::mem::transmute(NonNull::from(handler)) };
    // SAFETY: it is unbound below, while the borrow still lasts. A panic of `f` ends the test program's world, in
    // which no handler runs any more.
    unsafe { rig.machine().bind_interrupt(vector, handler) }.unwrap();
    let result = f();
    rig.machine().unbind_interrupt(vector);
    result
}

/// What the machine has: messages if it can, and the pin.
fn with_vectors<R: Rig>(rig: &R, f: impl Fn(u16)) {
    let machine = rig.machine();
    for want in [4, 0] {
        let count = match machine.alloc_vectors(want).unwrap() {
            Vectors::Msix { count } => count,
            Vectors::Intx => 1,
        };
        f(count);
        machine.free_vectors();
    }
}

/// Interrupts.
pub fn at_least_one_vector_and_at_most_as_many_as_asked_for_are_given<R: Rig>(rig: &R) {
    let machine = rig.machine();
    for want in [0, 1, 2, 2000] {
        let vectors = machine.alloc_vectors(want).unwrap();
        match vectors {
            Vectors::Intx => {}
            Vectors::Msix { count } => assert!(count >= 1 && count <= want),
        }
        machine.free_vectors();
    }
    assert_eq!(machine.alloc_vectors(0), Ok(Vectors::Intx));
    machine.free_vectors();
}

/// Interrupts.
pub fn an_interrupt_runs_the_handler_that_is_bound_to_its_vector<R: Rig>(rig: &R) {
    with_vectors(rig, |count| {
        let last = count - 1;
        let (other, ours) = (Counter::new(rig), Counter::new(rig));
        bound(rig, last, &ours, || {
            let raise = || {
                for _ in 0..5 {
                    rig.raise(last, SHORT);
                    assert!(ours.done.wait_until(soon(rig)));
                }
            };
            if last > 0 {
                bound(rig, 0, &other, raise);
            } else {
                raise();
            }
        });
        assert_eq!(ours.calls.load(Ordering::Relaxed), 5);
        assert_eq!(other.calls.load(Ordering::Relaxed), 0);
    });
}

/// Interrupts.
pub fn a_vector_is_bound_once<R: Rig>(rig: &R) {
    with_vectors(rig, |count| {
        let counter = Counter::new(rig);
        bound(rig, 0, &counter, || {
            // SAFETY: refused.
            let again = unsafe {
                rig.machine()
                    .bind_interrupt(0, NonNull::<Never>::dangling())
            };
            assert_eq!(again, Err(PlatformError::NoVector { vector: 0 }));
        });
        // SAFETY: refused.
        let beyond = unsafe {
            rig.machine()
                .bind_interrupt(count, NonNull::<Never>::dangling())
        };
        assert_eq!(beyond, Err(PlatformError::NoVector { vector: count }));
        rig.machine().unbind_interrupt(0);
    });
}

/// A handler that is never called.
struct Never;

impl Handler for Never {
    fn handle(&self) -> Handled {
        Handled::No
    }
}

/// Interrupts.
pub fn no_handler_starts_once_unbind_has_returned<R: Rig>(rig: &R) {
    with_vectors(rig, |_| {
        let counter = Counter::new(rig);
        bound(rig, 0, &counter, || rig.raise(0, SHORT));
        let calls = counter.calls.load(Ordering::Relaxed);
        rig.machine().sleep(SHORT * 5);
        assert_eq!(counter.calls.load(Ordering::Relaxed), calls);
        rig.release();
    });
}

/// Says when it has begun, and whether it is at it.
struct Slow<'a, R: Rig> {
    rig: &'a R,
    running: AtomicBool,
    begun: <R::Machine as Platform>::Completion,
}

impl<R: Rig> Handler for Slow<'_, R> {
    fn handle(&self) -> Handled {
        self.running.store(true, Ordering::SeqCst);
        self.rig.release();
        self.begun.fire();
        for _ in 0..500 {
            self.rig.machine().dma_rmb();
        }
        self.running.store(false, Ordering::SeqCst);
        Handled::Yes
    }
}

/// Interrupts.
pub fn unbind_waits_for_a_handler_that_runs<R: Rig>(rig: &R) {
    with_vectors(rig, |_| {
        let slow = Slow {
            rig,
            running: AtomicBool::new(false),
            begun: rig.machine().completion().unwrap(),
        };
        bound(rig, 0, &slow, || {
            rig.raise(0, SHORT);
            assert!(slow.begun.wait_until(soon(rig)));
        });
        assert!(!slow.running.load(Ordering::SeqCst));
    });
}

/// Takes a lock that its maker said interrupts take.
struct Locking<'a, R: Rig> {
    rig: &'a R,
    lock: &'a Lock<u32, <R::Machine as Platform>::RawLock>,
    inside: &'a AtomicBool,
    done: <R::Machine as Platform>::Completion,
}

impl<R: Rig> Handler for Locking<'_, R> {
    fn handle(&self) -> Handled {
        self.rig.release();
        self.lock
            .with(|counter| count(self.rig, counter, self.inside));
        self.done.fire();
        Handled::Yes
    }
}

/// Interrupts and locks.
pub fn a_lock_of_interrupts_keeps_the_handler_out<R: Rig>(rig: &R) {
    with_vectors(rig, |_| {
        let lock = rig.machine().lock("counter", true, 0);
        let inside = AtomicBool::new(false);
        let handler = Locking {
            rig,
            lock: &lock,
            inside: &inside,
            done: rig.machine().completion().unwrap(),
        };
        let (rounds, each) = (10, 20);
        bound(rig, 0, &handler, || {
            for _ in 0..rounds {
                rig.raise(0, Duration::from_micros(1));
                for _ in 0..each {
                    lock.with(|counter| count(rig, counter, &inside));
                }
                assert!(handler.done.wait_until(soon(rig)));
            }
        });
        assert_eq!(lock.into_inner(), rounds * (each + 1));
    });
}
