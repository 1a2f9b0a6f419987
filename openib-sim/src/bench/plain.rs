//! A machine whose doorbell page is plain memory: for measuring the data path alone.
//!
//! Everything goes to the simulated machine beneath, so that the driver brings up a modelled HCA and makes its objects
//! there. Only two things differ. The doorbell page is ordinary memory: a doorbell costs one store, and the model never
//! hears of it. And a lock is a plain spin lock, as on a machine with several processors. The benchmark plays the HCA
//! from there on: it reads doorbells and writes completions.

use core::alloc::Layout;
use core::hint::spin_loop;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering, compiler_fence};
use core::time::Duration;
use core_ib::Instant;
use core_ib::platform::{
    Caching, Direction, DmaAddr, Handler, Platform, RawDma, RawLock, Registers, Result, Saved,
    Vectors,
};
use platform_sim::machine::SimPlatform;
use std::sync::Mutex;

/// The BAR of the doorbell pages. infinihost 2.7.
const BAR_UAR: u8 = 2;
/// 64-bit words of a page.
const WORDS: usize = 512;

/// The machine.
pub struct Plain<'s> {
    sim: &'s SimPlatform,
    doorbells: Box<[AtomicU64; WORDS]>,
    given: Mutex<Vec<RawDma>>,
}

impl<'s> Plain<'s> {
    /// Over `sim`.
    pub fn new(sim: &'s SimPlatform) -> Self {
        Self {
            sim,
            doorbells: Box::new([const { AtomicU64::new(0) }; WORDS]),
            given: Mutex::new(Vec::new()),
        }
    }

    /// The doorbell last rung at `offset` of the page.
    pub fn doorbell(&self, offset: usize) -> u64 {
        let word = self.doorbells.get(offset / 8);
        word.map_or(0, |word| u64::from_be(word.load(Ordering::Relaxed)))
    }

    /// Pieces of DMA memory given out so far.
    pub fn dma_count(&self) -> usize {
        self.given.lock().map_or(0, |given| given.len())
    }

    /// The pieces given out after the first `count`, in order.
    pub fn dma_since(&self, count: usize) -> Vec<RawDma> {
        let given = self.given.lock();
        given.map_or_else(
            |_| Vec::new(),
            |given| given.iter().skip(count).copied().collect(),
        )
    }
}

// SAFETY: `RawDma` holds a pointer, which this machine hands out and never follows.
unsafe impl Send for Plain<'_> {}
// SAFETY: as for `Send`.
unsafe impl Sync for Plain<'_> {}

/// Registers of the simulated machine, or a page of memory.
pub struct PlainRegisters<'s> {
    page: *const AtomicU64,
    /// Bytes of the page; 0 of the simulated machine's.
    len: usize,
    beneath: Option<<SimPlatform as Platform>::Registers>,
    sim: core::marker::PhantomData<&'s SimPlatform>,
}

// SAFETY: the page is atomic words, which live as long as the machine.
unsafe impl Send for PlainRegisters<'_> {}
// SAFETY: as for `Send`.
unsafe impl Sync for PlainRegisters<'_> {}

impl PlainRegisters<'_> {
    #[cold]
    #[inline(never)]
    fn write_beneath(&self, offset: usize, value: u64) {
        if let Some(sim) = &self.beneath {
            sim.write_be64(offset, value);
        }
    }
}

// SAFETY: an offset is compared with the page, or handed to registers that promise the same.
unsafe impl Registers for PlainRegisters<'_> {
    fn caching(&self) -> Caching {
        Caching::Uncached
    }
    fn read_be32(&self, offset: usize) -> u32 {
        let sim = self.beneath.as_ref();
        sim.map_or(u32::MAX, |sim| sim.read_be32(offset))
    }
    fn write_be32(&self, offset: usize, value: u32) {
        if let Some(sim) = &self.beneath {
            sim.write_be32(offset, value);
        }
    }
    fn read_be64(&self, offset: usize) -> u64 {
        let sim = self.beneath.as_ref();
        sim.map_or(u64::MAX, |sim| sim.read_be64(offset))
    }
    #[inline]
    fn write_be64(&self, offset: usize, value: u64) {
        if offset < self.len {
            // SAFETY: in the page, which lives as long as the machine: a driver borrows that for as long as it has this.
            let word = unsafe { &*self.page.byte_add(offset & !7) };
            word.store(value.to_be(), Ordering::Relaxed);
        } else {
            self.write_beneath(offset, value);
        }
    }
    #[inline]
    unsafe fn write_be64_inside(&self, offset: usize, value: u64) {
        // Doorbells, and a driver has those in the page alone.
        // SAFETY: in the page, whatever the offset; it lives as long as the machine (see above).
        let word = unsafe { &*self.page.byte_add(offset & (8 * WORDS - 8)) };
        word.store(value.to_be(), Ordering::Relaxed);
    }
}

/// A spin lock.
pub struct SpinLock(AtomicBool);

// SAFETY: the exchange succeeds for one context, until its `release`.
unsafe impl RawLock for SpinLock {
    #[inline]
    fn acquire(&self) -> Saved {
        while self
            .0
            .compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed)
            .is_err()
        {
            spin_loop();
        }
        Saved(0)
    }
    #[inline]
    unsafe fn release(&self, _: Saved) {
        self.0.store(false, Ordering::Release);
    }
}

// SAFETY: all is left to the simulated machine, but for the doorbell page, which is memory of this value alone.
unsafe impl<'s> Platform for Plain<'s> {
    type Registers = PlainRegisters<'s>;
    type Completion = <SimPlatform as Platform>::Completion;
    type RawLock = SpinLock;
    type RawGate = <SimPlatform as Platform>::RawGate;

    fn name(&self) -> &str {
        self.sim.name()
    }
    fn bar_len(&self, bar: u8) -> Option<u64> {
        self.sim.bar_len(bar)
    }
    fn map(&self, bar: u8, at: u64, len: usize, want: Caching) -> Result<Self::Registers> {
        let sim = self.sim.map(bar, at, len, want)?;
        Ok(PlainRegisters {
            page: self.doorbells.as_ptr(),
            len: if bar == BAR_UAR { 8 * WORDS } else { 0 },
            beneath: (bar != BAR_UAR).then_some(sim),
            sim: core::marker::PhantomData,
        })
    }
    fn config_read32(&self, offset: u16) -> u32 {
        self.sim.config_read32(offset)
    }
    fn config_write32(&self, offset: u16, value: u32) {
        self.sim.config_write32(offset, value);
    }
    fn dma_alloc(&self, len: usize, align: usize) -> Result<RawDma> {
        let memory = self.sim.dma_alloc(len, align)?;
        if let Ok(mut given) = self.given.lock() {
            given.push(memory);
        }
        Ok(memory)
    }
    unsafe fn dma_free(&self, memory: RawDma) {
        // SAFETY: the caller's promise, handed down.
        unsafe { self.sim.dma_free(memory) };
    }
    unsafe fn dma_map(&self, memory: NonNull<u8>, len: usize, way: Direction) -> Result<DmaAddr> {
        // SAFETY: the caller's promise, handed down.
        unsafe { self.sim.dma_map(memory, len, way) }
    }
    unsafe fn dma_unmap(&self, at: DmaAddr, len: usize, way: Direction) {
        // SAFETY: the caller's promise, handed down.
        unsafe { self.sim.dma_unmap(at, len, way) };
    }
    fn dma_sync(&self, at: DmaAddr, len: usize, way: Direction, to_device: bool) {
        self.sim.dma_sync(at, len, way, to_device);
    }
    #[inline]
    fn dma_wmb(&self) {
        // What a barrier for coherent memory is on x86-64.
        compiler_fence(Ordering::SeqCst);
    }
    #[inline]
    fn dma_rmb(&self) {
        compiler_fence(Ordering::SeqCst);
    }
    fn table_alloc(&self, layout: Layout) -> Result<NonNull<u8>> {
        self.sim.table_alloc(layout)
    }
    unsafe fn table_free(&self, memory: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller's promise, handed down.
        unsafe { self.sim.table_free(memory, layout) };
    }
    fn now(&self) -> Instant {
        self.sim.now()
    }
    fn sleep(&self, wait: Duration) {
        self.sim.sleep(wait);
    }
    fn completion(&self) -> Result<Self::Completion> {
        self.sim.completion()
    }
    fn raw_lock(&self, _: &'static str, _: bool) -> SpinLock {
        SpinLock(AtomicBool::new(false))
    }
    fn raw_gate(&self, name: &'static str) -> Self::RawGate {
        self.sim.raw_gate(name)
    }
    fn alloc_vectors(&self, want: u16) -> Result<Vectors> {
        self.sim.alloc_vectors(want)
    }
    fn free_vectors(&self) {
        self.sim.free_vectors();
    }
    unsafe fn bind_interrupt(&self, vector: u16, handler: NonNull<dyn Handler>) -> Result<()> {
        // SAFETY: the caller's promise, handed down.
        unsafe { self.sim.bind_interrupt(vector, handler) }
    }
    fn unbind_interrupt(&self, vector: u16) {
        self.sim.unbind_interrupt(vector);
    }
}
