//! Posting, polling and arming of the InfiniHost driver for a machine that is nothing but types: what the compiler makes
//! of them, alone in an object, so that it can be searched for panics.
#![no_std]

use core::alloc::Layout;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use core_ib::Instant;
use core_ib::platform::{
    Caching, Completion, Direction, DmaAddr, Handler, Platform, PlatformError, RawDma, RawGate,
    RawLock, Registers, Result, Saved, Vectors,
};
use core_ib::verbs::{
    CompletionQueue, NotifyKind, QueuePair, RecvWr, SendWr, SharedReceiveQueue, WorkCompletion,
};
use mthca_hw::{CqRef, QpRef, SrqRef};

type Qp = QpRef<'static, 'static, Machine>;
type Cq = CqRef<'static, 'static, Machine>;
type Srq = SrqRef<'static, 'static, Machine>;

/// Index of the request that was refused, or -1.
#[unsafe(no_mangle)]
pub fn data_path_post_send(qp: &Qp, wrs: &[SendWr<'_>]) -> isize {
    qp.post_send(wrs)
        .map_or_else(|error| error.index as isize, |()| -1)
}

/// As for sends.
#[unsafe(no_mangle)]
pub fn data_path_post_recv(qp: &Qp, wrs: &[RecvWr<'_>]) -> isize {
    qp.post_recv(wrs)
        .map_or_else(|error| error.index as isize, |()| -1)
}

/// As for sends.
#[unsafe(no_mangle)]
pub fn data_path_post_srq_recv(srq: &Srq, wrs: &[RecvWr<'_>]) -> isize {
    srq.post_recv(wrs)
        .map_or_else(|error| error.index as isize, |()| -1)
}

/// How many completions.
#[unsafe(no_mangle)]
pub fn data_path_poll_cq(cq: &Cq, into: &mut [WorkCompletion]) -> isize {
    cq.poll(into).map_or(-1, |count| count as isize)
}

/// Did it work?
#[unsafe(no_mangle)]
pub fn data_path_req_notify_cq(cq: &Cq, solicited: bool) -> bool {
    let kind = if solicited {
        NotifyKind::Solicited
    } else {
        NotifyKind::Any
    };
    cq.req_notify(kind).is_ok()
}

/// A machine that can do nothing; its registers and locks are what they would be.
pub struct Machine;

/// A page of registers.
pub struct Page(*mut u8, usize);

// SAFETY: the page is device memory, the same from everywhere.
unsafe impl Send for Page {}
// SAFETY: as for `Send`.
unsafe impl Sync for Page {}

// SAFETY: an access outside the page is dropped.
unsafe impl Registers for Page {
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
    #[inline]
    fn write_be64(&self, offset: usize, value: u64) {
        if offset < self.1 {
            // SAFETY: inside the page.
            unsafe {
                self.0
                    .add(offset)
                    .cast::<u64>()
                    .write_volatile(value.to_be())
            };
        }
    }
    #[inline]
    unsafe fn write_be64_inside(&self, offset: usize, value: u64) {
        // SAFETY: inside the page, says the caller.
        unsafe {
            self.0
                .add(offset)
                .cast::<u64>()
                .write_volatile(value.to_be())
        };
    }
}

/// Never fires.
pub struct Never;

impl Completion for Never {
    fn fire(&self) {}
    fn wait_until(&self, _: Instant) -> bool {
        false
    }
}

/// A spin lock.
pub struct Spin(AtomicBool);

// SAFETY: the exchange succeeds for one context, until its `release`.
unsafe impl RawLock for Spin {
    #[inline]
    fn acquire(&self) -> Saved {
        while self.0.swap(true, Ordering::Acquire) {
            core::hint::spin_loop();
        }
        Saved(0)
    }
    #[inline]
    unsafe fn release(&self, _: Saved) {
        self.0.store(false, Ordering::Release);
    }
}

// SAFETY: as the lock's.
unsafe impl RawGate for Spin {
    fn enter(&self) {
        let _ = self.acquire();
    }
    unsafe fn leave(&self) {
        self.0.store(false, Ordering::Release);
    }
}

// SAFETY: it gives out nothing.
unsafe impl Platform for Machine {
    type Registers = Page;
    type Completion = Never;
    type RawLock = Spin;
    type RawGate = Spin;

    fn name(&self) -> &str {
        "machine"
    }
    fn bar_len(&self, _: u8) -> Option<u64> {
        None
    }
    fn map(&self, bar: u8, at: u64, len: usize, _: Caching) -> Result<Page> {
        Err(PlatformError::OutsideBar { bar, at, len })
    }
    fn config_read32(&self, _: u16) -> u32 {
        u32::MAX
    }
    fn config_write32(&self, _: u16, _: u32) {}
    fn dma_alloc(&self, len: usize, _: usize) -> Result<RawDma> {
        Err(PlatformError::NoDmaMemory { len })
    }
    unsafe fn dma_free(&self, _: RawDma) {}
    unsafe fn dma_map(&self, _: NonNull<u8>, len: usize, _: Direction) -> Result<DmaAddr> {
        Err(PlatformError::NoDmaMemory { len })
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
        Err(PlatformError::NoTableMemory { len: layout.size() })
    }
    unsafe fn table_free(&self, _: NonNull<u8>, _: Layout) {}
    fn now(&self) -> Instant {
        Instant(0)
    }
    fn sleep(&self, _: Duration) {}
    fn completion(&self) -> Result<Never> {
        Ok(Never)
    }
    fn raw_lock(&self, _: &'static str, _: bool) -> Spin {
        Spin(AtomicBool::new(false))
    }
    fn raw_gate(&self, _: &'static str) -> Spin {
        Spin(AtomicBool::new(false))
    }
    fn alloc_vectors(&self, _: u16) -> Result<Vectors> {
        Ok(Vectors::Intx)
    }
    fn free_vectors(&self) {}
    unsafe fn bind_interrupt(&self, _: u16, _: NonNull<dyn Handler>) -> Result<()> {
        Ok(())
    }
    fn unbind_interrupt(&self, _: u16) {}
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
