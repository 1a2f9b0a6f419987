//! The platform contract over what a kernel provides.

use crate::lock::{OsCompletion, OsGate, OsLock};
use crate::os;
use core::alloc::Layout;
use core::cell::UnsafeCell;
use core::ffi::{CStr, c_void};
use core::ptr::NonNull;
use core::sync::atomic::{Ordering, fence};
use core::time::Duration;
use core_ib::Instant;
use core_ib::platform::{
    Caching, Direction, DmaAddr, Handled, Handler, Platform, PlatformError, RawDma, Registers,
    Result, Vectors, Wake,
};

/// Interrupt vectors that can be bound: those of an InfiniHost driver.
const VECTORS: usize = 4;
/// A page, the least that DMA memory is given out by, and the most that other memory is aligned to.
const PAGE: usize = 4096;

/// The kernel's clock.
pub(crate) fn now() -> Instant {
    // SAFETY: callable in any context.
    Instant(unsafe { os::openib_os_now() })
}

/// What an interrupt vector calls, if it is bound.
struct Slot(UnsafeCell<Option<NonNull<dyn Handler>>>);

/// The machine with one HCA in it, as a kernel shows it.
pub struct Machine {
    device: *mut os::Device,
    slots: [Slot; VECTORS],
}

// SAFETY: the device is a name that the kernel knows in every context; a slot is written only while its vector is
// not bound, by the one context that sets up.
unsafe impl Send for Machine {}
// SAFETY: as above.
unsafe impl Sync for Machine {}

impl Machine {
    /// The machine of `device`.
    ///
    /// # Safety
    ///
    /// `device` is one of the kernel's, and stays one for as long as this value lives.
    pub(crate) unsafe fn new(device: *mut os::Device) -> Self {
        Self {
            device,
            slots: [const { Slot(UnsafeCell::new(None)) }; VECTORS],
        }
    }

    /// Calls the handler that is bound to `vector`. Interrupt context.
    ///
    /// # Safety
    ///
    /// `vector` came with `openib_os_bind_vector`, and is still bound.
    pub(crate) unsafe fn interrupt(vector: *mut os::Vector) -> bool {
        // SAFETY: a vector is a slot of a machine that lives, the caller promises.
        let slot = unsafe { &*vector.cast::<Slot>() };
        // SAFETY: written before it was bound, and not again before it is unbound.
        let handler = unsafe { *slot.0.get() };
        // SAFETY: valid until the vector is unbound: the promise of `bind_interrupt`.
        handler.is_some_and(|handler| unsafe { handler.as_ref() }.handle() == Handled::Yes)
    }

    /// Has the host polled soon.
    pub(crate) fn wake(&self) {
        // SAFETY: the device stays, and waking is allowed in any context.
        unsafe { os::openib_os_wake(self.device) };
    }
}

/// The kernel as what is woken when the HCA has something to say.
pub(crate) struct OsWake(pub(crate) *mut os::Device);

// SAFETY: the device is a name that the kernel knows in every context.
unsafe impl Sync for OsWake {}
// SAFETY: as above.
unsafe impl Send for OsWake {}

impl Wake for OsWake {
    fn wake(&self) {
        // SAFETY: as long as there is an HCA there is its device; waking is allowed in any context.
        unsafe { os::openib_os_wake(self.0) };
    }
}

/// A piece of a BAR.
#[derive(Debug)]
pub struct OsRegisters {
    device: *mut os::Device,
    map: NonNull<c_void>,
    len: usize,
    caching: Caching,
}

// SAFETY: a mapping may be used on any processor.
unsafe impl Send for OsRegisters {}
// SAFETY: as above; the kernel orders what needs order.
unsafe impl Sync for OsRegisters {}

impl Drop for OsRegisters {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, and used no more.
        unsafe { os::openib_os_unmap(self.device, self.map.as_ptr()) };
    }
}

impl OsRegisters {
    /// Do `bytes` at `offset` lie in the mapping, aligned to their size?
    #[inline]
    const fn has(&self, offset: usize, bytes: usize) -> bool {
        offset < self.len && self.len - offset >= bytes && offset & (bytes - 1) == 0
    }
}

// SAFETY: every access is checked against the length of the mapping.
unsafe impl Registers for OsRegisters {
    fn caching(&self) -> Caching {
        self.caching
    }
    #[inline]
    fn read_be32(&self, offset: usize) -> u32 {
        if !self.has(offset, 4) {
            return u32::MAX;
        }
        // SAFETY: within the mapping.
        unsafe { os::openib_os_read32(self.map.as_ptr(), offset) }
    }
    #[inline]
    fn write_be32(&self, offset: usize, value: u32) {
        if self.has(offset, 4) {
            // SAFETY: within the mapping.
            unsafe { os::openib_os_write32(self.map.as_ptr(), offset, value) };
        }
    }
    #[inline]
    fn read_be64(&self, offset: usize) -> u64 {
        if !self.has(offset, 8) {
            return u64::MAX;
        }
        // SAFETY: within the mapping.
        unsafe { os::openib_os_read64(self.map.as_ptr(), offset) }
    }
    #[inline]
    fn write_be64(&self, offset: usize, value: u64) {
        if self.has(offset, 8) {
            // SAFETY: within the mapping.
            unsafe { os::openib_os_write64(self.map.as_ptr(), offset, value) };
        }
    }
    #[inline]
    unsafe fn write_be64_inside(&self, offset: usize, value: u64) {
        debug_assert!(self.has(offset, 8));
        // SAFETY: within the mapping, says the caller.
        unsafe { os::openib_os_write64(self.map.as_ptr(), offset, value) };
    }
}

const fn way(direction: Direction) -> os::Way {
    match direction {
        Direction::ToDevice => os::Way::ToDevice,
        Direction::FromDevice => os::Way::FromDevice,
        Direction::Both => os::Way::Both,
    }
}

// SAFETY: memory is the kernel's, given out zeroed and to one taker (the shim's promise, `openib_os_dma_alloc` and
// `openib_os_alloc`); its place is checked against what was asked for. `openib_os_unbind_vector` waits for a handler.
unsafe impl Platform for Machine {
    type Registers = OsRegisters;
    type Completion = OsCompletion;
    type RawLock = OsLock;
    type RawGate = OsGate;

    fn name(&self) -> &str {
        // SAFETY: the device stays.
        let name = unsafe { os::openib_os_name(self.device) };
        if name.is_null() {
            return "HCA";
        }
        // SAFETY: a string that ends with 0 and stays as long as the device.
        let name = unsafe { CStr::from_ptr(name) };
        name.to_str().unwrap_or("HCA")
    }

    fn bar_len(&self, bar: u8) -> Option<u64> {
        // SAFETY: the device stays.
        let len = unsafe { os::openib_os_bar_len(self.device, bar.into()) };
        (len != 0).then_some(len)
    }

    fn map(&self, bar: u8, at: u64, len: usize, want: Caching) -> Result<OsRegisters> {
        let refused = PlatformError::OutsideBar { bar, at, len };
        let end = at.checked_add(len as u64);
        let size = self.bar_len(bar).unwrap_or(0);
        if len == 0 || end.is_none_or(|end| end > size) {
            return Err(refused);
        }
        let (device, mut combine) = (self.device, want == Caching::WriteCombining);
        // SAFETY: the device stays; the piece is within the BAR.
        let map = unsafe { os::openib_os_map(device, bar.into(), at, len, &raw mut combine) };
        let caching = match combine {
            true => Caching::WriteCombining,
            false => Caching::Uncached,
        };
        Ok(OsRegisters {
            device,
            map: NonNull::new(map).ok_or(refused)?,
            len,
            caching,
        })
    }

    fn config_read32(&self, offset: u16) -> u32 {
        // SAFETY: the device stays.
        unsafe { os::openib_os_config_read32(self.device, offset.into()) }
    }

    fn config_write32(&self, offset: u16, value: u32) {
        // SAFETY: the device stays.
        unsafe { os::openib_os_config_write32(self.device, offset.into(), value) };
    }

    fn dma_alloc(&self, len: usize, align: usize) -> Result<RawDma> {
        let refused = PlatformError::NoDmaMemory { len };
        let len = len.max(1).checked_next_multiple_of(PAGE).ok_or(refused)?;
        let (align, mut bus) = (align.max(PAGE), 0);
        // SAFETY: the device stays; length and alignment are as the shim is promised.
        let memory = unsafe { os::openib_os_dma_alloc(self.device, len, align, &raw mut bus) };
        let memory = NonNull::new(memory).ok_or(refused)?;
        let raw = RawDma {
            memory,
            bus: DmaAddr::new(bus),
            len,
        };
        if (memory.as_ptr().addr() | bus as usize) & align.wrapping_sub(1) != 0 {
            // SAFETY: allocated just now, and nobody was told of it.
            unsafe { self.dma_free(raw) };
            return Err(refused);
        }
        Ok(raw)
    }

    unsafe fn dma_free(&self, RawDma { memory, bus, len }: RawDma) {
        // SAFETY: came from `dma_alloc`, and the device no longer uses it: the caller's promise.
        unsafe { os::openib_os_dma_free(self.device, memory.as_ptr(), bus.get(), len) };
    }

    unsafe fn dma_map(&self, memory: NonNull<u8>, len: usize, how: Direction) -> Result<DmaAddr> {
        let (device, memory, mut bus) = (self.device, memory.as_ptr(), 0);
        // SAFETY: the device stays; the caller answers for the memory.
        let mapped = unsafe { os::openib_os_dma_map(device, memory, len, way(how), &raw mut bus) };
        mapped
            .then_some(DmaAddr::new(bus))
            .ok_or(PlatformError::NotMappable { len })
    }

    unsafe fn dma_unmap(&self, at: DmaAddr, len: usize, how: Direction) {
        // SAFETY: of one `dma_map`, the caller promises.
        unsafe { os::openib_os_dma_unmap(self.device, at.get(), len, way(how)) };
    }

    fn dma_sync(&self, at: DmaAddr, len: usize, how: Direction, to_device: bool) {
        // SAFETY: the device stays, and a kernel checks what it can of the rest.
        unsafe { os::openib_os_dma_sync(self.device, at.get(), len, way(how), to_device) };
    }

    // Coherent memory of x86-64 needs the compiler kept in order and no more. Elsewhere these fences order what the
    // processors of this machine see, and a shim's register stores what the device sees.
    #[inline]
    fn dma_wmb(&self) {
        fence(Ordering::Release);
    }

    #[inline]
    fn dma_rmb(&self) {
        fence(Ordering::Acquire);
    }

    fn table_alloc(&self, layout: Layout) -> Result<NonNull<u8>> {
        let (len, align) = (layout.size(), layout.align());
        let refused = PlatformError::NoTableMemory { len };
        if align > PAGE {
            return Err(refused);
        }
        // SAFETY: a power of two, at most a page.
        NonNull::new(unsafe { os::openib_os_alloc(len, align) }).ok_or(refused)
    }

    unsafe fn table_free(&self, memory: NonNull<u8>, layout: Layout) {
        // SAFETY: came from `table_alloc` with this layout: the caller's promise.
        unsafe { os::openib_os_free(memory.as_ptr(), layout.size(), layout.align()) };
    }

    fn now(&self) -> Instant {
        now()
    }

    fn sleep(&self, wait: Duration) {
        let nanoseconds = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
        // SAFETY: in a control context, where blocking is allowed.
        unsafe { os::openib_os_sleep(nanoseconds) };
    }

    fn completion(&self) -> Result<OsCompletion> {
        Ok(OsCompletion::default())
    }

    fn raw_lock(&self, name: &'static str, taken_by_interrupt: bool) -> OsLock {
        let kind = match taken_by_interrupt {
            true => os::LockKind::Interrupt,
            false => os::LockKind::Queue,
        };
        OsLock::new(kind, name)
    }

    fn raw_gate(&self, _: &'static str) -> OsGate {
        OsGate::default()
    }

    fn alloc_vectors(&self, want: u16) -> Result<Vectors> {
        let want = usize::from(want).min(VECTORS) as u32;
        // SAFETY: the device stays.
        let given = unsafe { os::openib_os_alloc_vectors(self.device, want) };
        match u16::try_from(given) {
            Ok(0) => Ok(Vectors::Intx),
            Ok(count) => Ok(Vectors::Msix { count }),
            Err(_) => Err(PlatformError::Exhausted {
                what: "interrupt vectors",
            }),
        }
    }

    fn free_vectors(&self) {
        // SAFETY: the device stays.
        unsafe { os::openib_os_free_vectors(self.device) };
    }

    unsafe fn bind_interrupt(&self, vector: u16, handler: NonNull<dyn Handler>) -> Result<()> {
        let refused = PlatformError::NoVector { vector };
        let slot = self.slots.get(usize::from(vector)).ok_or(refused)?;
        let at = slot.0.get();
        // SAFETY: only who sets up writes here, and reads here unless it is bound.
        if unsafe { (*at).is_some() } {
            return Err(refused);
        }
        // SAFETY: as above; nothing is bound, so that no interrupt reads it.
        unsafe { *at = Some(handler) };
        let told = core::ptr::from_ref(slot).cast_mut().cast::<os::Vector>();
        // SAFETY: the device stays, and this machine longer than the binding.
        if unsafe { os::openib_os_bind_vector(self.device, vector.into(), told) } {
            return Ok(());
        }
        // SAFETY: as above.
        unsafe { *at = None };
        Err(refused)
    }

    fn unbind_interrupt(&self, vector: u16) {
        let Some(slot) = self.slots.get(usize::from(vector)) else {
            return;
        };
        let at = slot.0.get();
        // SAFETY: only who sets up writes here.
        if unsafe { (*at).is_none() } {
            return;
        }
        // SAFETY: the device stays; it is bound.
        unsafe { os::openib_os_unbind_vector(self.device, vector.into()) };
        // SAFETY: as above, and no interrupt reads it any more.
        unsafe { *at = None };
    }
}
