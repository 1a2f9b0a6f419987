//! The bare machine keeps those sentences of the platform contract that need no second context and no interrupt.

use bare_platform::{Bare, Board, Parts};
use core::cell::{Cell, RefCell};
use core::ops::Range;
use core::ptr::NonNull;
use core::time::Duration;
use core_ib::Instant;
use core_ib::platform::DmaAddr;
use platform_sim::contract::{self, Rig};
use std::alloc::{Layout, alloc_zeroed, dealloc};

/// Bytes of an arena.
const ARENA: usize = 1 << 20;
/// Where the device sees it. It lies so for the processor too, as far as alignment goes.
const BUS: u64 = 0x4000_0000;
/// Bytes of BAR 0, the only one.
const BAR: usize = 4096;

/// Words of a BAR and of configuration space that keep what was written, and a clock that a look at it moves on.
struct Words {
    bar: RefCell<Vec<u8>>,
    config: RefCell<[u32; 64]>,
    now: Cell<u64>,
}

// SAFETY: all of a test is on one thread.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

fn range(offset: u64, len: usize) -> Range<usize> {
    let at = usize::try_from(offset).unwrap();
    at..at + len
}

impl Board for Words {
    fn bar_len(&self, bar: u8) -> Option<u64> {
        (bar == 0).then_some(BAR as u64)
    }
    fn load(&self, _: u8, offset: u64, data: &mut [u8]) {
        data.copy_from_slice(&self.bar.borrow()[range(offset, data.len())]);
    }
    fn store(&self, _: u8, offset: u64, data: &[u8]) {
        self.bar.borrow_mut()[range(offset, data.len())].copy_from_slice(data);
    }
    fn config_read32(&self, offset: u16) -> u32 {
        self.config.borrow()[usize::from(offset) / 4]
    }
    fn config_write32(&self, offset: u16, value: u32) {
        if offset != 0 {
            self.config.borrow_mut()[usize::from(offset) / 4] = value;
        }
    }
    fn now(&self) -> Instant {
        self.now.set(self.now.get() + 1);
        Instant(self.now.get())
    }
    fn pass_time(&self, until: Instant) {
        self.now.set(until.0.min(self.now.get() + 1000));
    }
}

/// Memory whose alignment the bus keeps.
struct Arena(NonNull<u8>);

impl Arena {
    fn layout() -> Layout {
        Layout::from_size_align(ARENA, 1 << 16).unwrap()
    }

    fn new() -> Self {
        // SAFETY: a layout of more than nothing.
        Self(NonNull::new(unsafe { alloc_zeroed(Self::layout()) }).unwrap())
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: from `new`, with this layout.
        unsafe { dealloc(self.0.as_ptr(), Self::layout()) };
    }
}

struct Bench<'b> {
    machine: Bare<'b>,
    arena: NonNull<u8>,
}

// SAFETY: all of a test is on one thread.
unsafe impl Sync for Bench<'_> {}

impl<'b> Rig for Bench<'b> {
    type Machine = Bare<'b>;

    fn machine(&self) -> &Bare<'b> {
        &self.machine
    }
    fn beside(&self, _: &(dyn Fn() + Sync), _: &(dyn Fn() + Sync)) {
        unreachable!("there is one context");
    }
    fn scratch(&self) -> (u8, u64) {
        (0, 64)
    }
    fn raise(&self, _: u16, _: Duration) {
        unreachable!("there are no interrupts");
    }
    fn release(&self) -> bool {
        false
    }
    fn device_copies(&self, from: DmaAddr, to: DmaAddr, len: usize) {
        let place = |at: DmaAddr| {
            let offset = usize::try_from(at.get() - BUS).unwrap();
            assert!(offset + len <= ARENA);
            // SAFETY: inside the arena.
            unsafe { self.arena.add(offset) }
        };
        // SAFETY: both lie in the arena, and the test touches neither meanwhile.
        unsafe { place(from).copy_to(place(to), len) };
    }
}

#[test]
fn the_contract_of_one_context_holds_on_the_bare_machine() {
    for number in 0.. {
        let mut config = [0; 64];
        config[0] = 0x5a44_15b3;
        config[1] = 6;
        let board = Words {
            bar: RefCell::new(vec![0; BAR]),
            config: RefCell::new(config),
            now: Cell::new(1),
        };
        let arena = Arena::new();
        // SAFETY: the arena's bytes, which are the machine's for as long as it lives.
        let bytes = unsafe { NonNull::slice_from_raw_parts(arena.0, ARENA).as_mut() };
        let parts = Parts::new(&board, bytes, DmaAddr::new(BUS));
        let bench = Bench {
            machine: parts.platform(),
            arena: arena.0,
        };
        let Some((name, case)) = contract::cases_of_one_context().into_iter().nth(number) else {
            assert!(number > 10);
            break;
        };
        case(&bench);
        assert_eq!(parts.used(), 0, "{name} leaves memory behind");
    }
}
