//! How to use the crates from another project, and how to write a platform: here of a machine with an empty slot.
//!
//! A platform is registers, DMA memory, a clock, something to wait on, locks, and interrupts. This one is as small as
//! can be: one context, no interrupts, and memory from one piece that is given out once and never comes back. It is
//! complete: put real loads and stores into [`SlotRegisters`], a real clock into [`Slot::now`], and it drives an HCA.
#![no_std]

use core::alloc::Layout;
use core::cell::UnsafeCell;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use core::time::Duration;
use core_ib::Instant;
use core_ib::platform::{
    Caching, Completion, Direction, DmaAddr, Handler, NoWake, Platform, PlatformError, RawDma,
    RawGate, RawLock, Registers, Result, Saved, Vectors,
};
use core_ib::verbs::Device;
use ib_stack::{Config, Stack, StackError};
use mthca_hw::{Hca, Interrupts, OpenError, Profile};

/// Bytes of memory of the machine.
const MEMORY: usize = 1 << 20;

/// Memory, aligned so that offsets are alignments.
#[repr(align(4096))]
struct Arena(UnsafeCell<[u8; MEMORY]>);

/// The machine.
pub struct Slot {
    arena: Arena,
    /// Bytes that were given out.
    used: AtomicUsize,
    clock: AtomicU64,
}

// SAFETY: the arena is only ever handed out in pieces, each once.
unsafe impl Sync for Slot {}

impl Slot {
    /// With memory that is all zeros, as [`Platform`] asks for.
    pub const fn new() -> Self {
        Self {
            arena: Arena(UnsafeCell::new([0; MEMORY])),
            used: AtomicUsize::new(0),
            clock: AtomicU64::new(0),
        }
    }

    /// The next piece that nobody has had.
    fn take(&self, len: usize, align: usize) -> Option<NonNull<u8>> {
        if align > align_of::<Arena>() {
            return None;
        }
        let place = |used: usize| used.checked_next_multiple_of(align);
        let take = |used| place(used)?.checked_add(len).filter(|end| *end <= MEMORY);
        let before = self
            .used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
            .ok()?;
        // SAFETY: `take` has checked that the piece ends within the arena.
        let piece = unsafe { self.arena.0.get().cast::<u8>().add(place(before)?) };
        NonNull::new(piece)
    }
}

impl Default for Slot {
    fn default() -> Self {
        Self::new()
    }
}

/// A mapped BAR. Where no device answers, loads give all ones and stores are lost.
pub struct SlotRegisters;

// SAFETY: nothing is touched at all.
unsafe impl Registers for SlotRegisters {
    fn caching(&self) -> Caching {
        Caching::Uncached
    }
    fn read_be32(&self, _offset: usize) -> u32 {
        u32::MAX
    }
    fn write_be32(&self, _offset: usize, _value: u32) {}
    fn read_be64(&self, _offset: usize) -> u64 {
        u64::MAX
    }
    fn write_be64(&self, _offset: usize, _value: u64) {}
}

/// Something to wait on. With interrupts a wait would sleep; without, it looks at the clock.
pub struct Flag<'s>(AtomicBool, &'s Slot);

impl Completion for Flag<'_> {
    fn fire(&self) {
        self.0.store(true, Ordering::Release);
    }
    fn wait_until(&self, deadline: Instant) -> bool {
        while !self.0.swap(false, Ordering::Acquire) {
            if (&self.1).now() >= deadline {
                return false;
            }
        }
        true
    }
}

/// One context has nobody to exclude: finding the lock taken would be a deadlock, and a mistake of ours.
pub struct OneContext(AtomicBool);

impl OneContext {
    fn take(&self) {
        assert!(!self.0.swap(true, Ordering::Acquire), "taken twice");
    }
}

// SAFETY: a second `acquire` before `release` does not return.
unsafe impl RawLock for OneContext {
    fn acquire(&self) -> Saved {
        self.take();
        Saved(0)
    }
    unsafe fn release(&self, _: Saved) {
        self.0.store(false, Ordering::Release);
    }
}

// SAFETY: as above.
unsafe impl RawGate for OneContext {
    fn enter(&self) {
        self.take();
    }
    unsafe fn leave(&self) {
        self.0.store(false, Ordering::Release);
    }
}

// SAFETY: `take` gives each byte of the arena once, zeroed as it was made, at the alignment asked for; bus address and
// address are the same here. No handler ever runs.
unsafe impl<'s> Platform for &'s Slot {
    type Registers = SlotRegisters;
    type Completion = Flag<'s>;
    type RawLock = OneContext;
    type RawGate = OneContext;

    fn name(&self) -> &str {
        "slot 1"
    }
    fn bar_len(&self, _bar: u8) -> Option<u64> {
        None
    }
    fn map(&self, bar: u8, at: u64, len: usize, _: Caching) -> Result<SlotRegisters> {
        Err(PlatformError::OutsideBar { bar, at, len })
    }
    fn config_read32(&self, _offset: u16) -> u32 {
        u32::MAX
    }
    fn config_write32(&self, _offset: u16, _value: u32) {}
    fn dma_alloc(&self, len: usize, align: usize) -> Result<RawDma> {
        let none = PlatformError::NoDmaMemory { len };
        let memory = self.take(len, align.max(4096)).ok_or(none)?;
        let bus = DmaAddr::new(memory.as_ptr().addr() as u64);
        Ok(RawDma { memory, bus, len })
    }
    unsafe fn dma_free(&self, _: RawDma) {}
    unsafe fn dma_map(&self, memory: NonNull<u8>, _: usize, _: Direction) -> Result<DmaAddr> {
        Ok(DmaAddr::new(memory.as_ptr().addr() as u64))
    }
    unsafe fn dma_unmap(&self, _: DmaAddr, _: usize, _: Direction) {}
    fn dma_sync(&self, _: DmaAddr, _: usize, _: Direction, _: bool) {}
    fn dma_wmb(&self) {
        fence(Ordering::Release);
    }
    fn dma_rmb(&self) {
        fence(Ordering::Acquire);
    }
    fn table_alloc(&self, layout: Layout) -> Result<NonNull<u8>> {
        let len = layout.size();
        self.take(len, layout.align())
            .ok_or(PlatformError::NoTableMemory { len })
    }
    unsafe fn table_free(&self, _: NonNull<u8>, _: Layout) {}
    fn now(&self) -> Instant {
        // A machine has a counter; this one counts how often it is asked.
        Instant(self.clock.fetch_add(1000, Ordering::Relaxed))
    }
    fn sleep(&self, wait: Duration) {
        self.clock
            .fetch_add(wait.as_nanos() as u64, Ordering::Relaxed);
    }
    fn completion(&self) -> Result<Flag<'s>> {
        Ok(Flag(AtomicBool::new(false), self))
    }
    fn raw_lock(&self, _: &'static str, _: bool) -> OneContext {
        OneContext(AtomicBool::new(false))
    }
    fn raw_gate(&self, _: &'static str) -> OneContext {
        OneContext(AtomicBool::new(false))
    }
    fn alloc_vectors(&self, _: u16) -> Result<Vectors> {
        Ok(Vectors::Intx)
    }
    fn free_vectors(&self) {}
    unsafe fn bind_interrupt(&self, vector: u16, _: NonNull<dyn Handler>) -> Result<()> {
        Err(PlatformError::NoVector { vector })
    }
    fn unbind_interrupt(&self, _: u16) {}
}

/// Opens the HCA of `machine`, polled. Whoever wants to be woken gives something better than [`NoWake`].
pub fn open<'p, 's>(machine: &'p &'s Slot) -> core::result::Result<Hca<'p, &'s Slot>, OpenError> {
    let profile = Profile {
        interrupts: Interrupts::None,
        ..Profile::SMALL
    };
    Hca::open(machine, &NoWake, &profile)
}

/// One round of a host with one IP interface: what is due is done, and packets are taken. Says when to come again.
pub fn round<'s>(
    stack: &mut Stack<'_, Hca<'_, &'s Slot>, &'s Slot>,
    machine: &&'s Slot,
    take: &mut dyn FnMut(&[u8]),
) -> core::result::Result<Instant, StackError> {
    stack.device().poll_events();
    let next = stack.poll(machine.now())?;
    while let Some(job) = stack.next_job() {
        let done = job.run(stack.device());
        stack.job_done(done, machine.now());
    }
    while stack.receive(0, machine.now(), take) {}
    Ok(next)
}

/// A host on an HCA: management datagrams, and an IP interface on port 1.
pub fn host<'d, 'p, 's>(
    machine: &'d &'s Slot,
    hca: &'d Hca<'p, &'s Slot>,
) -> core::result::Result<Stack<'d, Hca<'p, &'s Slot>, &'s Slot>, StackError> {
    Stack::open(machine, hca, &Config::default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use mthca_hw::OpenCause;

    static SLOT: Slot = Slot::new();

    #[test]
    fn an_empty_slot_is_an_hca_that_is_gone_and_costs_no_more_than_the_asking() {
        let machine = &SLOT;
        let error = open(&machine).err().map(|error| (error.step, error.cause));
        assert_eq!(error, Some(("PCI function", OpenCause::Gone)));
        // What the driver gave back is counted still: this slot takes nothing back. No DMA memory is among it.
        let used = SLOT.used.load(Ordering::Relaxed);
        assert!(used < 4096, "{used} bytes");
    }

    #[test]
    fn memory_is_given_out_once_aligned_and_ends() {
        static OTHER: Slot = Slot::new();
        let machine = &OTHER;
        let first = machine.dma_alloc(100, 64).unwrap();
        let second = machine.dma_alloc(MEMORY - 8192, 4096).unwrap();
        assert_eq!(second.bus.get() - first.bus.get(), 4096);
        assert_eq!(second.bus.get() % 4096, 0);
        let third = machine.dma_alloc(8192, 1);
        assert_eq!(third.err(), Some(PlatformError::NoDmaMemory { len: 8192 }));
    }
}
