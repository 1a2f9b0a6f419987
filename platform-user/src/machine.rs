//! The platform contract over a device that the kernel gave to this process.

use crate::arena::{Arena, Span};
use crate::interrupts::{Source, Vector};
use crate::pages::{HUGE, Pages};
use crate::pci::Function;
use crate::sync::{self, Completion, Mutual};
use crate::uio::Uio;
use crate::vfio::Vfio;
use crate::{Error, Slot};
use core::alloc::Layout;
use core::ptr::NonNull;
use core::sync::atomic::{Ordering, fence};
use core::time::Duration;
use core_ib::Instant;
use core_ib::platform::{
    Caching, Direction, DmaAddr, Handler, Platform, PlatformError, RawDma, Result, Vectors,
};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

pub use crate::registers::Registers;

/// Vectors that are asked for at most: more than an InfiniHost driver binds.
const VECTORS: u16 = 32;

/// Where interrupts come from, vector by vector.
pub(crate) type Sources = Vec<Arc<dyn Source>>;

/// A way to a device, which was taken and has its memory.
pub(crate) trait Link: Send + Sync {
    fn function(&self) -> &Function;
    /// The memory that the device reaches.
    fn pages(&self) -> &Pages;
    /// Where the device sees each huge page of it, in their order.
    fn places(&self) -> Vec<u64>;
    /// Maps a piece of a BAR that is there.
    fn map(&self, bar: u8, at: u64, len: usize) -> io::Result<Registers>;
    fn config_read32(&self, offset: u16) -> u32;
    fn config_write32(&self, offset: u16, value: u32);
    /// At most `want` messages, or the pin.
    fn vectors(&self, want: u16) -> io::Result<(Vectors, Sources)>;
    fn free_vectors(&self, vectors: Vectors);
}

/// How to reach the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// VFIO with an IOMMU of type 1.
    Vfio,
    /// `uio_pci_generic`, without an IOMMU.
    Uio,
}

/// Which HCA, and how.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// The only one, if it is not said where.
    pub slot: Option<Slot>,
    /// The way to it.
    pub way: Way,
    /// Bytes of DMA memory, from which all comes that the device reaches. Rounded up to whole huge pages of 2 MiB.
    pub memory: usize,
    /// Take huge pages. With [`Way::Uio`] they are taken in any case, and no piece of DMA memory is longer than the huge pages
    /// that happen to lie beside each other.
    pub huge: bool,
}

/// The vectors that were given out.
#[derive(Default)]
struct Given {
    vectors: Option<Vectors>,
    sources: Sources,
    bound: BTreeMap<u16, Vector>,
}

/// The machine with one HCA in it.
pub struct Machine {
    name: String,
    given: Mutex<Given>,
    arena: Mutex<Arena>,
    link: Box<dyn Link>,
}

impl Machine {
    /// Takes the HCA from the driver that it is bound to, gives it memory, and turns it on. When the machine is dropped, the
    /// HCA is turned off, and goes back to that driver. Blocks.
    pub fn open(wanted: &Wanted) -> core::result::Result<Self, Error> {
        let function = Function::find(wanted.slot)?;
        let name = function.slot.to_string();
        let Wanted { memory, huge, .. } = *wanted;
        let link: Box<dyn Link> = match wanted.way {
            Way::Vfio => Box::new(Vfio::open(function, memory, huge)?),
            Way::Uio => Box::new(Uio::open(function, memory)?),
        };
        let start = link.pages().start().addr();
        let spans = link.places().into_iter().enumerate();
        let arena = Arena::new(spans.map(|(number, bus)| Span {
            at: start + number * HUGE,
            bus,
            len: HUGE,
        }));
        Ok(Self {
            name,
            given: Mutex::default(),
            arena: Mutex::new(arena),
            link,
        })
    }

    /// Bytes of DMA memory that are free.
    pub fn free_memory(&self) -> usize {
        self.arena.lock().free()
    }

    /// A pointer into the memory, which was asked where `at` is.
    fn pointer(&self, at: usize) -> Option<NonNull<u8>> {
        let pages = self.link.pages();
        let offset = at.checked_sub(pages.start().addr())?;
        NonNull::new(pages.start().wrapping_add(offset))
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.free_vectors();
    }
}

// SAFETY: DMA memory is a part of the pages, which nothing else refers to; the arena gives each byte to one taker, aligned
// both ways, and it is zeroed before. Memory for tables is the allocator's. Dropping a vector waits for its handler.
unsafe impl Platform for Machine {
    type Registers = Registers;
    type Completion = Completion;
    type RawLock = Mutual;
    type RawGate = Mutual;

    fn name(&self) -> &str {
        &self.name
    }

    fn bar_len(&self, bar: u8) -> Option<u64> {
        self.link.function().bar_len(bar)
    }

    fn map(&self, bar: u8, at: u64, len: usize, _: Caching) -> Result<Registers> {
        let refused = PlatformError::OutsideBar { bar, at, len };
        let end = at.checked_add(len as u64);
        let size = self.bar_len(bar).unwrap_or(0);
        if len == 0 || end.is_none_or(|end| end > size) {
            return Err(refused);
        }
        self.link.map(bar, at, len).map_err(|error| {
            log::error!("{}: {refused}: {error}", self.name);
            refused
        })
    }

    fn config_read32(&self, offset: u16) -> u32 {
        self.link.config_read32(offset)
    }

    fn config_write32(&self, offset: u16, value: u32) {
        self.link.config_write32(offset, value);
    }

    fn dma_alloc(&self, len: usize, align: usize) -> Result<RawDma> {
        let refused = PlatformError::NoDmaMemory { len };
        let taken = self.arena.lock().take(len, align);
        let (at, bus) = taken.ok_or(refused)?;
        let memory = self.pointer(at).ok_or(refused)?;
        // SAFETY: of the pages, and nobody else's.
        unsafe { memory.write_bytes(0, len) };
        let bus = DmaAddr::new(bus);
        Ok(RawDma { memory, bus, len })
    }

    unsafe fn dma_free(&self, RawDma { memory, len, .. }: RawDma) {
        self.arena.lock().give(memory.as_ptr().addr(), len);
    }

    /// What was given out as DMA memory alone: anything else the device does not reach.
    unsafe fn dma_map(&self, memory: NonNull<u8>, len: usize, _: Direction) -> Result<DmaAddr> {
        let bus = self.arena.lock().bus(memory.as_ptr().addr(), len);
        bus.map(DmaAddr::new)
            .ok_or(PlatformError::NotMappable { len })
    }

    unsafe fn dma_unmap(&self, _: DmaAddr, _: usize, _: Direction) {}

    fn dma_sync(&self, _: DmaAddr, _: usize, _: Direction, _: bool) {}

    // Of x86-64, whose processors keep stores in order and loads in order, it is the compiler that is told.
    #[inline]
    fn dma_wmb(&self) {
        fence(Ordering::Release);
    }

    #[inline]
    fn dma_rmb(&self) {
        fence(Ordering::Acquire);
    }

    fn table_alloc(&self, layout: Layout) -> Result<NonNull<u8>> {
        let len = layout.size();
        if len == 0 {
            return Ok(layout.dangling_ptr());
        }
        // SAFETY: not of length 0.
        let memory = unsafe { std::alloc::alloc_zeroed(layout) };
        NonNull::new(memory).ok_or(PlatformError::NoTableMemory { len })
    }

    unsafe fn table_free(&self, memory: NonNull<u8>, layout: Layout) {
        if layout.size() > 0 {
            // SAFETY: came from `table_alloc` with this layout: the caller's promise.
            unsafe { std::alloc::dealloc(memory.as_ptr(), layout) };
        }
    }

    fn now(&self) -> Instant {
        sync::now()
    }

    fn sleep(&self, wait: Duration) {
        std::thread::sleep(wait);
    }

    fn completion(&self) -> Result<Completion> {
        Ok(Completion::default())
    }

    fn raw_lock(&self, _: &'static str, _: bool) -> Mutual {
        Mutual::new()
    }

    fn raw_gate(&self, _: &'static str) -> Mutual {
        Mutual::new()
    }

    fn alloc_vectors(&self, want: u16) -> Result<Vectors> {
        let mut given = self.given.lock();
        let (vectors, sources) = self.link.vectors(want.min(VECTORS)).map_err(|error| {
            log::error!("{}: no interrupts: {error}", self.name);
            PlatformError::Exhausted {
                what: "interrupt vectors",
            }
        })?;
        given.vectors = Some(vectors);
        given.sources = sources;
        Ok(vectors)
    }

    fn free_vectors(&self) {
        let given = core::mem::take(&mut *self.given.lock());
        // Waits for those that are still bound.
        drop(given.bound);
        if let Some(vectors) = given.vectors {
            self.link.free_vectors(vectors);
        }
    }

    unsafe fn bind_interrupt(&self, vector: u16, handler: NonNull<dyn Handler>) -> Result<()> {
        let refused = PlatformError::NoVector { vector };
        let mut given = self.given.lock();
        let source = given.sources.get(usize::from(vector)).cloned();
        let source = source.ok_or(refused)?;
        if given.bound.contains_key(&vector) {
            return Err(refused);
        }
        // SAFETY: valid until it is unbound, the caller promises; that drops it.
        let bound = unsafe { Vector::bind(self.name.clone(), source, handler) };
        let bound = bound.map_err(|error| {
            log::error!("{}: {error}", self.name);
            refused
        })?;
        given.bound.insert(vector, bound);
        Ok(())
    }

    fn unbind_interrupt(&self, vector: u16) {
        let bound = self.given.lock().bound.remove(&vector);
        drop(bound);
    }
}
