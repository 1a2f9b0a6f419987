//! A kernel for tests: the functions that are asked of one, over the standard library, with a device that is an array.

use crate::os::{Arrival, Device, Level, LockKind, LockRoom, Net, Packet, Vector, Way};
use core::ffi::{c_char, c_void};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

/// Bytes of BAR 0.
pub(crate) const BAR: usize = 64;
/// The device's registers.
static REGISTERS: [AtomicU32; BAR / 4] = [const { AtomicU32::new(0) }; BAR / 4];
/// Mappings and pieces of memory that were not given back.
pub(crate) static IN_USE: AtomicUsize = AtomicUsize::new(0);
/// What is given out next is not aligned as asked for.
pub(crate) static CROOKED: AtomicBool = AtomicBool::new(false);
/// Who sleeps is woken by this, whatever the word.
static SLEEPERS: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());
static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();

fn layout(len: usize, align: usize) -> Layout {
    Layout::from_size_align(len, align).unwrap()
}

macro_rules! kernel {
    ($(fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $out:ty)? $body:block)*) => {
        $(#[unsafe(no_mangle)]
        extern "C" fn $name($($arg: $ty),*) $(-> $out)? $body)*
    };
}

kernel! {
    fn openib_os_name(_device: *mut Device) -> *const c_char { c"fake".as_ptr() }
    fn openib_os_bar_len(_device: *mut Device, bar: u32) -> u64 {
        if bar == 0 { BAR as u64 } else { 0 }
    }
    fn openib_os_map(
        _device: *mut Device, _bar: u32, at: u64, _len: usize, combine: *mut bool,
    ) -> *mut c_void {
        // SAFETY: the library's.
        unsafe { *combine = false };
        IN_USE.fetch_add(1, Ordering::SeqCst);
        (1 + at as usize) as *mut c_void
    }
    fn openib_os_unmap(_device: *mut Device, _map: *mut c_void) {
        IN_USE.fetch_sub(1, Ordering::SeqCst);
    }
    fn openib_os_read32(map: *mut c_void, offset: usize) -> u32 {
        REGISTERS[(map as usize - 1 + offset) / 4].load(Ordering::SeqCst)
    }
    fn openib_os_write32(map: *mut c_void, offset: usize, value: u32) {
        REGISTERS[(map as usize - 1 + offset) / 4].store(value, Ordering::SeqCst);
    }
    fn openib_os_read64(map: *mut c_void, offset: usize) -> u64 {
        let half = |at| u64::from(openib_os_read32(map, offset + at));
        half(0) << 32 | half(4)
    }
    fn openib_os_write64(map: *mut c_void, offset: usize, value: u64) {
        openib_os_write32(map, offset, (value >> 32) as u32);
        openib_os_write32(map, offset + 4, value as u32);
    }
    fn openib_os_config_read32(_device: *mut Device, _offset: u32) -> u32 { u32::MAX }
    fn openib_os_config_write32(_device: *mut Device, _offset: u32, _value: u32) {}
    fn openib_os_dma_alloc(_device: *mut Device, len: usize, align: usize, bus: *mut u64) -> *mut u8 {
        let crooked = u64::from(CROOKED.load(Ordering::SeqCst));
        let memory = openib_os_alloc(len, align);
        // SAFETY: the library's.
        unsafe { *bus = (align as u64) * 16 + crooked * 4096 };
        memory
    }
    fn openib_os_dma_free(_device: *mut Device, memory: *mut u8, _bus: u64, len: usize) {
        openib_os_free(memory, len, 4096);
    }
    fn openib_os_dma_map(
        _device: *mut Device, _memory: *mut u8, _len: usize, _way: Way, _bus: *mut u64,
    ) -> bool { false }
    fn openib_os_dma_unmap(_device: *mut Device, _bus: u64, _len: usize, _way: Way) {}
    fn openib_os_dma_sync(_device: *mut Device, _bus: u64, _len: usize, _way: Way, _to: bool) {}
    fn openib_os_alloc(len: usize, align: usize) -> *mut u8 {
        IN_USE.fetch_add(1, Ordering::SeqCst);
        // SAFETY: the library never asks for nothing.
        unsafe { alloc_zeroed(layout(len, align.max(4096))) }
    }
    fn openib_os_free(memory: *mut u8, len: usize, align: usize) {
        IN_USE.fetch_sub(1, Ordering::SeqCst);
        // SAFETY: given out above.
        unsafe { dealloc(memory, layout(len, align.max(4096))) };
    }
    fn openib_os_now() -> u64 { START.get_or_init(Instant::now).elapsed().as_nanos() as u64 }
    fn openib_os_sleep(nanoseconds: u64) { std::thread::sleep(Duration::from_nanos(nanoseconds)); }
    fn openib_os_wait(word: *const u32, value: u32, deadline: u64) {
        let guard = SLEEPERS.0.lock().unwrap();
        // SAFETY: an atomic of the library's, which stays while somebody waits at it.
        let word = unsafe { &*word.cast::<AtomicU32>() };
        let left = deadline.saturating_sub(openib_os_now()).min(1_000_000_000);
        if word.load(Ordering::SeqCst) == value && left > 0 {
            drop(SLEEPERS.1.wait_timeout(guard, Duration::from_nanos(left)).unwrap());
        }
    }
    fn openib_os_wake_word(_word: *const u32) {
        let _guard = SLEEPERS.0.lock().unwrap();
        SLEEPERS.1.notify_all();
    }
    fn openib_os_lock_init(_room: *mut LockRoom, _kind: LockKind, _name: *const u8, _len: usize) {}
    fn openib_os_lock_exit(room: *mut LockRoom, _kind: LockKind) {
        // SAFETY: the library's.
        assert_eq!(unsafe { (*room).words }, [0], "a lock ends while it is held");
    }
    fn openib_os_lock(room: *mut LockRoom) {
        // SAFETY: the library's; only this file looks at it, as an atomic.
        let word = unsafe { &*room.cast::<AtomicUsize>() };
        while word.swap(1, Ordering::SeqCst) == 1 {
            std::thread::yield_now();
        }
    }
    fn openib_os_unlock(room: *mut LockRoom) {
        // SAFETY: as above.
        unsafe { &*room.cast::<AtomicUsize>() }.store(0, Ordering::SeqCst);
    }
    fn openib_os_lock_interrupt(room: *mut LockRoom) -> usize {
        openib_os_lock(room);
        77
    }
    fn openib_os_unlock_interrupt(room: *mut LockRoom, saved: usize) {
        assert_eq!(saved, 77);
        openib_os_unlock(room);
    }
    fn openib_os_alloc_vectors(_device: *mut Device, want: u32) -> i32 { want as i32 - 1 }
    fn openib_os_free_vectors(_device: *mut Device) {}
    fn openib_os_bind_vector(_device: *mut Device, number: u32, vector: *mut Vector) -> bool {
        // An interrupt strikes at once; vector 3 has none.
        // SAFETY: bound from now on.
        number != 3 && unsafe { crate::machine::Machine::interrupt(vector) }
    }
    fn openib_os_unbind_vector(_device: *mut Device, _number: u32) {}
    fn openib_os_wake(_device: *mut Device) {}
    fn openib_os_log(_level: Level, text: *const u8, len: usize) {
        // SAFETY: so many bytes, the library says.
        let text = unsafe { core::slice::from_raw_parts(text, len) };
        std::eprintln!("{}", String::from_utf8_lossy(text));
    }
    fn openib_os_panic(_text: *const u8, _len: usize) { std::process::abort() }
    fn openib_os_receive(_net: *mut Net, _arrival: Arrival, _type: u16, _data: *const u8, _len: usize, _verified: bool) {}
    fn openib_os_fill(_packet: *mut Packet, _to: *mut u8, _len: usize, _offered: bool) -> bool { false }
}

use std::string::String;
