//! The smallest platform: one processor context, no interrupts, no clock interrupt, one fixed arena of memory.
//!
//! It is also the shortest complete example of a [`Platform`]. What differs from board to board is behind [`Board`]:
//! loads and stores, a clock, and a way to pass the time. A wait polls: it calls the bound interrupt handlers
//! until what it waits for has happened, so a driver that knows only interrupts works here all the same.
#![no_std]

pub mod ping;

use core::alloc::Layout;
use core::marker::PhantomData;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use core_ib::Instant;
use core_ib::platform::{
    Caching, Completion, Direction, DmaAddr, Handled, Handler, Platform, PlatformError, RawDma,
    RawGate, RawLock, Registers, Result, Saved, Vectors,
};
use linked_list_allocator::Heap;
use spin::Mutex;

/// Interrupt vectors that can be bound: the pin.
const VECTORS: usize = 1;

/// A page, the least that DMA memory is given out by.
const PAGE: usize = 4096;

/// The wiring of one board with one HCA on it. Offsets are bytes; values are numbers, the board swaps.
pub trait Board: Send + Sync {
    /// Bytes of a memory BAR.
    fn bar_len(&self, bar: u8) -> Option<u64>;
    /// Loads `data.len()` (4 or 8) bytes from a BAR as they lie on the bus.
    fn load(&self, bar: u8, offset: u64, data: &mut [u8]);
    /// Stores them.
    fn store(&self, bar: u8, offset: u64, data: &[u8]);
    /// Loads a word of configuration space.
    fn config_read32(&self, offset: u16) -> u32;
    /// Stores it.
    fn config_write32(&self, offset: u16, value: u32);
    /// The clock.
    fn now(&self) -> Instant;
    /// Passes some time, not beyond `until`. On hardware a pause; in a simulation, the world moves.
    fn pass_time(&self, until: Instant);
    /// Hears how far a program has come: `what` is done.
    fn reached(&self, what: &'static str) {
        let _ = what;
    }
}

/// What the machine is made of: put it where it stays, and make a [`Bare`] of it.
pub struct Parts<'a> {
    board: &'a dyn Board,
    heap: Mutex<Heap>,
    /// Where the arena lies for the processor, and for the device.
    arena: (usize, DmaAddr),
    handlers: Mutex<[Option<Bound>; VECTORS]>,
    lent: PhantomData<&'a mut [u8]>,
}

/// The platform.
pub struct Bare<'b>(&'b Parts<'b>);

#[derive(Clone, Copy)]
struct Bound(NonNull<dyn Handler>);

// SAFETY: a `Handler` is `Sync`, and whoever bound it promised that it stays valid until unbound.
unsafe impl Send for Bound {}

impl<'a> Parts<'a> {
    /// All memory comes from `arena`, which the device sees at `bus`. Both are multiples of 4096.
    pub fn new(board: &'a dyn Board, arena: &'a mut [u8], bus: DmaAddr) -> Self {
        let start = arena.as_mut_ptr();
        let mut heap = Heap::empty();
        // SAFETY: the arena is borrowed for as long as this value lives, and for nothing else.
        unsafe { heap.init(start, arena.len()) };
        Self {
            board,
            heap: Mutex::new(heap),
            arena: (start.addr(), bus),
            handlers: Mutex::new([None; VECTORS]),
            lent: PhantomData,
        }
    }

    /// The platform of these parts.
    pub const fn platform(&self) -> Bare<'_> {
        Bare(self)
    }

    /// The board.
    pub fn board(&self) -> &'a dyn Board {
        self.board
    }

    /// Bytes of the arena that are given out.
    pub fn used(&self) -> usize {
        self.heap.lock().used()
    }

    /// Calls every bound handler, as its interrupt would.
    pub fn poll_interrupts(&self) {
        for vector in 0..VECTORS {
            let bound = self.handlers.lock().get(vector).copied().flatten();
            if let Some(Bound(handler)) = bound {
                // SAFETY: valid until `unbind_interrupt`, which only this one context could call.
                let _: Handled = unsafe { handler.as_ref() }.handle();
            }
        }
    }

    fn allocate(&self, layout: Layout) -> Option<NonNull<u8>> {
        let memory = self.heap.lock().allocate_first_fit(layout).ok()?;
        // SAFETY: just allocated with this size.
        unsafe { memory.write_bytes(0, layout.size()) };
        Some(memory)
    }
}

fn dma_layout(len: usize, align: usize) -> Option<Layout> {
    let size = len.checked_next_multiple_of(PAGE)?;
    Layout::from_size_align(size, align.max(PAGE)).ok()
}

/// A piece of a BAR.
pub struct BareRegisters<'b> {
    board: &'b dyn Board,
    bar: u8,
    at: u64,
    len: usize,
}

impl BareRegisters<'_> {
    fn load<const N: usize>(&self, offset: usize) -> [u8; N] {
        let mut data = [0xff; N];
        if offset.checked_add(N).is_some_and(|end| end <= self.len) {
            self.board
                .load(self.bar, self.at + offset as u64, &mut data);
        }
        data
    }

    fn store(&self, offset: usize, data: &[u8]) {
        if offset
            .checked_add(data.len())
            .is_some_and(|end| end <= self.len)
        {
            self.board.store(self.bar, self.at + offset as u64, data);
        }
    }
}

// SAFETY: `load` and `store` check every access against the length of the mapping.
unsafe impl Registers for BareRegisters<'_> {
    fn caching(&self) -> Caching {
        Caching::Uncached
    }
    fn read_be32(&self, offset: usize) -> u32 {
        u32::from_be_bytes(self.load(offset))
    }
    fn write_be32(&self, offset: usize, value: u32) {
        self.store(offset, &value.to_be_bytes());
    }
    fn read_be64(&self, offset: usize) -> u64 {
        u64::from_be_bytes(self.load(offset))
    }
    fn write_be64(&self, offset: usize, value: u64) {
        self.store(offset, &value.to_be_bytes());
    }
}

/// Something to wait on. Knows the machine, since waiting is polling.
pub struct BareCompletion<'b> {
    fired: AtomicBool,
    parts: &'b Parts<'b>,
}

impl Completion for BareCompletion<'_> {
    fn fire(&self) {
        self.fired.store(true, Ordering::Release);
    }

    fn wait_until(&self, deadline: Instant) -> bool {
        loop {
            if self.fired.swap(false, Ordering::Acquire) {
                return true;
            }
            if self.parts.board.now() >= deadline {
                return false;
            }
            self.parts.board.pass_time(deadline);
            self.parts.poll_interrupts();
        }
    }
}

/// Mutual exclusion on a machine with one context: a check that nobody locks twice.
pub struct BareLock {
    held: AtomicBool,
    name: &'static str,
}

impl BareLock {
    fn take(&self) {
        assert!(
            !self.held.swap(true, Ordering::Acquire),
            "{} is taken by the context that holds it",
            self.name
        );
    }
}

// SAFETY: a second `acquire` does not return before `release`: it panics.
unsafe impl RawLock for BareLock {
    fn acquire(&self) -> Saved {
        self.take();
        Saved(0)
    }
    unsafe fn release(&self, _: Saved) {
        self.held.store(false, Ordering::Release);
    }
}

// SAFETY: as for `RawLock`.
unsafe impl RawGate for BareLock {
    fn enter(&self) {
        self.take();
    }
    unsafe fn leave(&self) {
        self.held.store(false, Ordering::Release);
    }
}

// SAFETY: memory comes from the heap over the arena, which gives each byte to one taker, zeroed, with the alignment
// asked for; the arena is a multiple of 4096 in both address spaces and lies at one distance, so alignments up to
// a page carry over, and a larger one is checked for.
// `unbind_interrupt` cannot run while a handler does, since there is one context.
unsafe impl<'b> Platform for Bare<'b> {
    type Registers = BareRegisters<'b>;
    type Completion = BareCompletion<'b>;
    type RawLock = BareLock;
    type RawGate = BareLock;

    fn name(&self) -> &str {
        "bare"
    }

    fn bar_len(&self, bar: u8) -> Option<u64> {
        self.0.board.bar_len(bar)
    }

    fn map(&self, bar: u8, at: u64, len: usize, _: Caching) -> Result<Self::Registers> {
        let end = at.checked_add(len as u64);
        let size = self.0.board.bar_len(bar).unwrap_or(0);
        if end.is_none_or(|end| end > size) {
            return Err(PlatformError::OutsideBar { bar, at, len });
        }
        let board = self.0.board;
        Ok(BareRegisters {
            board,
            bar,
            at,
            len,
        })
    }

    fn config_read32(&self, offset: u16) -> u32 {
        self.0.board.config_read32(offset)
    }

    fn config_write32(&self, offset: u16, value: u32) {
        self.0.board.config_write32(offset, value);
    }

    fn dma_alloc(&self, len: usize, align: usize) -> Result<RawDma> {
        let none = PlatformError::NoDmaMemory { len };
        let layout = dma_layout(len, align).ok_or(none)?;
        let memory = self.0.allocate(layout).ok_or(none)?;
        let (start, bus) = self.0.arena;
        let distance = memory.as_ptr().addr().wrapping_sub(start);
        let bus = bus.plus(distance as u64);
        if bus.get() & (layout.align() as u64).wrapping_sub(1) != 0 {
            // SAFETY: allocated above, with this layout.
            unsafe { self.0.heap.lock().deallocate(memory, layout) };
            return Err(none);
        }
        Ok(RawDma { memory, bus, len })
    }

    unsafe fn dma_free(&self, memory: RawDma) {
        // Only the size matters to the heap when it takes memory back.
        if let Some(layout) = dma_layout(memory.len, PAGE) {
            // SAFETY: came from `dma_alloc`, with this size.
            unsafe { self.0.heap.lock().deallocate(memory.memory, layout) };
        }
    }

    unsafe fn dma_map(&self, memory: NonNull<u8>, len: usize, _: Direction) -> Result<DmaAddr> {
        let (start, bus) = self.0.arena;
        let size = self.0.heap.lock().size();
        let distance = memory.as_ptr().addr().wrapping_sub(start);
        // All that this board's device can reach is the arena.
        if distance.checked_add(len).is_none_or(|end| end > size) {
            return Err(PlatformError::NotMappable { len });
        }
        Ok(bus.plus(distance as u64))
    }

    unsafe fn dma_unmap(&self, _: DmaAddr, _: usize, _: Direction) {}

    fn dma_sync(&self, _: DmaAddr, _: usize, _: Direction, _: bool) {}

    fn dma_wmb(&self) {
        core::sync::atomic::fence(Ordering::Release);
    }

    fn dma_rmb(&self) {
        core::sync::atomic::fence(Ordering::Acquire);
    }

    fn table_alloc(&self, layout: Layout) -> Result<NonNull<u8>> {
        let len = layout.size();
        self.0
            .allocate(layout)
            .ok_or(PlatformError::NoTableMemory { len })
    }

    unsafe fn table_free(&self, memory: NonNull<u8>, layout: Layout) {
        // SAFETY: came from `table_alloc` with this layout.
        unsafe { self.0.heap.lock().deallocate(memory, layout) };
    }

    fn now(&self) -> Instant {
        self.0.board.now()
    }

    fn sleep(&self, wait: Duration) {
        let until = self.0.board.now().after(wait);
        while self.0.board.now() < until {
            self.0.board.pass_time(until);
            self.0.poll_interrupts();
        }
    }

    fn completion(&self) -> Result<Self::Completion> {
        Ok(BareCompletion {
            fired: AtomicBool::new(false),
            parts: self.0,
        })
    }

    fn raw_lock(&self, name: &'static str, _: bool) -> BareLock {
        let held = AtomicBool::new(false);
        BareLock { held, name }
    }

    fn raw_gate(&self, name: &'static str) -> BareLock {
        self.raw_lock(name, false)
    }

    fn alloc_vectors(&self, _: u16) -> Result<Vectors> {
        Ok(Vectors::Intx)
    }

    fn free_vectors(&self) {}

    unsafe fn bind_interrupt(&self, vector: u16, handler: NonNull<dyn Handler>) -> Result<()> {
        let mut handlers = self.0.handlers.lock();
        match handlers.get_mut(usize::from(vector)) {
            Some(slot) if slot.is_none() => {
                *slot = Some(Bound(handler));
                Ok(())
            }
            _ => Err(PlatformError::NoVector { vector }),
        }
    }

    fn unbind_interrupt(&self, vector: u16) {
        if let Some(slot) = self.0.handlers.lock().get_mut(usize::from(vector)) {
            *slot = None;
        }
    }
}
