//! A machine whose DMA memory is the heap.

use core::alloc::Layout;
use core::ptr::NonNull;
use core::time::Duration;
use core_ib::Instant;
use core_ib::platform::{
    Caching, Completion, Direction, DmaAddr, Handler, Platform, PlatformError, RawDma, RawGate,
    RawLock, Registers, Result, Saved, Vectors,
};
use std::alloc::{alloc_zeroed, dealloc};
use std::sync::Mutex;
use std::vec::Vec;

/// DMA memory: where it is on the bus and in the program, how long, how aligned.
#[derive(Clone, Copy, Debug)]
struct Piece {
    bus: u64,
    memory: usize,
    len: usize,
    align: usize,
}

#[derive(Debug, Default)]
struct State {
    pieces: Vec<Piece>,
    next_bus: u64,
    tables: usize,
    /// Allocations that still succeed.
    budget: Option<u32>,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Machine {
    state: Mutex<State>,
}

impl Machine {
    /// Pieces of DMA memory and of table memory that are out.
    pub(crate) fn out(&self) -> (usize, usize) {
        let state = self.state.lock().unwrap();
        (state.pieces.len(), state.tables)
    }

    /// From now on `allocations` more succeed.
    pub(crate) fn budget(&self, allocations: Option<u32>) {
        self.state.lock().unwrap().budget = allocations;
    }

    /// Copies what the device reads at `bus`; `None` outside all memory.
    pub(crate) fn device_reads(&self, bus: u64, into: &mut [u8]) -> Option<()> {
        let at = self.locate(bus, into.len())?;
        // SAFETY: `locate` found `into.len()` bytes there, allocated and not freed; tests run on one thread, and nobody
        // holds a reference into a frame that the device has.
        unsafe { core::ptr::copy_nonoverlapping(at, into.as_mut_ptr(), into.len()) };
        Some(())
    }

    /// Copies what the device writes to `bus`; `None` outside all memory.
    pub(crate) fn device_writes(&self, bus: u64, from: &[u8]) -> Option<()> {
        let at = self.locate(bus, from.len())?;
        // SAFETY: as in `device_reads`.
        unsafe { core::ptr::copy_nonoverlapping(from.as_ptr(), at, from.len()) };
        Some(())
    }

    fn locate(&self, bus: u64, len: usize) -> Option<*mut u8> {
        let state = self.state.lock().unwrap();
        let inside =
            |piece: &&Piece| bus >= piece.bus && bus + len as u64 <= piece.bus + piece.len as u64;
        let piece = state.pieces.iter().find(inside)?;
        let offset = (bus - piece.bus) as usize;
        Some(core::ptr::with_exposed_provenance_mut(
            piece.memory + offset,
        ))
    }
}

impl State {
    fn spend(&mut self) -> bool {
        match &mut self.budget {
            None => true,
            Some(0) => false,
            Some(left) => {
                *left -= 1;
                true
            }
        }
    }
}

/// No registers.
pub(crate) struct NoRegisters;
// SAFETY: it touches nothing.
unsafe impl Registers for NoRegisters {
    fn caching(&self) -> Caching {
        Caching::Uncached
    }
    fn read_be32(&self, _: usize) -> u32 {
        u32::MAX
    }
    fn write_be32(&self, _: usize, _: u32) {}
    fn read_be64(&self, _: usize) -> u64 {
        u64::MAX
    }
    fn write_be64(&self, _: usize, _: u64) {}
}

/// Nothing ever waits here.
pub(crate) struct NoCompletion;
impl Completion for NoCompletion {
    fn fire(&self) {}
    fn wait_until(&self, _: Instant) -> bool {
        false
    }
}

/// Tests are single-threaded.
pub(crate) struct NoLock;
// SAFETY: one thread, and nothing here locks inside a lock.
unsafe impl RawLock for NoLock {
    fn acquire(&self) -> Saved {
        Saved(0)
    }
    unsafe fn release(&self, _: Saved) {}
}
// SAFETY: as above.
unsafe impl RawGate for NoLock {
    fn enter(&self) {}
    unsafe fn leave(&self) {}
}

// SAFETY: memory is the heap's, zeroed, aligned, and found by the device at `bus` until it is freed.
unsafe impl Platform for Machine {
    type Registers = NoRegisters;
    type Completion = NoCompletion;
    type RawLock = NoLock;
    type RawGate = NoLock;

    fn name(&self) -> &str {
        "fake"
    }
    fn bar_len(&self, _: u8) -> Option<u64> {
        None
    }
    fn map(&self, bar: u8, at: u64, len: usize, _: Caching) -> Result<NoRegisters> {
        Err(PlatformError::OutsideBar { bar, at, len })
    }
    fn config_read32(&self, _: u16) -> u32 {
        u32::MAX
    }
    fn config_write32(&self, _: u16, _: u32) {}
    fn dma_alloc(&self, len: usize, align: usize) -> Result<RawDma> {
        let mut state = self.state.lock().unwrap();
        let align = align.max(4096);
        if !state.spend() || len == 0 {
            return Err(PlatformError::NoDmaMemory { len });
        }
        let layout = Layout::from_size_align(len, align).unwrap();
        // SAFETY: the layout is not empty.
        let memory = NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap();
        let bus = (state.next_bus + 0x10_0000).next_multiple_of(align as u64);
        state.next_bus = bus + len as u64;
        let piece = Piece {
            bus,
            memory: memory.as_ptr().expose_provenance(),
            len,
            align,
        };
        state.pieces.push(piece);
        let bus = DmaAddr::new(bus);
        Ok(RawDma { memory, bus, len })
    }
    unsafe fn dma_free(&self, memory: RawDma) {
        let mut state = self.state.lock().unwrap();
        let same = |piece: &Piece| piece.bus == memory.bus.get();
        let at = state.pieces.iter().position(same).expect("freed once");
        let piece = state.pieces.remove(at);
        let layout = Layout::from_size_align(piece.len, piece.align).unwrap();
        // SAFETY: allocated so in `dma_alloc`.
        unsafe { dealloc(memory.memory.as_ptr(), layout) };
    }
    unsafe fn dma_map(&self, _: NonNull<u8>, len: usize, _: Direction) -> Result<DmaAddr> {
        Err(PlatformError::NotMappable { len })
    }
    unsafe fn dma_unmap(&self, _: DmaAddr, _: usize, _: Direction) {}
    fn dma_sync(&self, _: DmaAddr, _: usize, _: Direction, _: bool) {}
    fn dma_wmb(&self) {}
    fn dma_rmb(&self) {}
    fn table_alloc(&self, layout: Layout) -> Result<NonNull<u8>> {
        let mut state = self.state.lock().unwrap();
        let len = layout.size();
        if !state.spend() {
            return Err(PlatformError::NoTableMemory { len });
        }
        state.tables += 1;
        // SAFETY: nobody asks for an empty table.
        NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(PlatformError::NoTableMemory { len })
    }
    unsafe fn table_free(&self, memory: NonNull<u8>, layout: Layout) {
        self.state.lock().unwrap().tables -= 1;
        // SAFETY: the caller's promise: from `table_alloc` with this layout.
        unsafe { dealloc(memory.as_ptr(), layout) };
    }
    fn now(&self) -> Instant {
        Instant(0)
    }
    fn sleep(&self, _: Duration) {}
    fn completion(&self) -> Result<NoCompletion> {
        Ok(NoCompletion)
    }
    fn raw_lock(&self, _: &'static str, _: bool) -> NoLock {
        NoLock
    }
    fn raw_gate(&self, _: &'static str) -> NoLock {
        NoLock
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
