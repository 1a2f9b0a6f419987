//! A mapped piece of a BAR.

use core_ib::platform::Caching;
use memmap2::{MmapOptions, MmapRaw};
use std::io;
use std::os::fd::AsRawFd;

/// See the module. Accesses are whole, and in the order of the program: what x86-64 does with memory that is not cached.
#[derive(Debug)]
pub struct Registers {
    map: MmapRaw,
    len: usize,
}

impl Registers {
    /// `len` bytes of `file` from `offset` on, which the caller knows to be there.
    pub(crate) fn map(file: &impl AsRawFd, offset: u64, len: usize) -> io::Result<Self> {
        let map = MmapOptions::new()
            .offset(offset)
            .len(len)
            .map_raw(file.as_raw_fd())?;
        Ok(Self { map, len })
    }

    /// The word of `bytes` at `offset`, if it lies in the piece and is aligned.
    #[inline]
    fn word(&self, offset: usize, bytes: usize) -> Option<*mut u8> {
        let inside = offset < self.len && self.len - offset >= bytes;
        let at = self.map.as_mut_ptr().wrapping_add(offset);
        (inside && at.addr() & (bytes - 1) == 0).then_some(at)
    }
}

// SAFETY: every access is checked against the length of the mapping.
unsafe impl core_ib::platform::Registers for Registers {
    fn caching(&self) -> Caching {
        Caching::Uncached
    }
    #[inline]
    fn read_be32(&self, offset: usize) -> u32 {
        match self.word(offset, 4) {
            // SAFETY: within the mapping, and aligned.
            Some(at) => u32::from_be(unsafe { at.cast::<u32>().read_volatile() }),
            None => u32::MAX,
        }
    }
    #[inline]
    fn write_be32(&self, offset: usize, value: u32) {
        if let Some(at) = self.word(offset, 4) {
            // SAFETY: within the mapping, and aligned.
            unsafe { at.cast::<u32>().write_volatile(value.to_be()) };
        }
    }
    #[inline]
    fn read_be64(&self, offset: usize) -> u64 {
        match self.word(offset, 8) {
            // SAFETY: within the mapping, and aligned.
            Some(at) => u64::from_be(unsafe { at.cast::<u64>().read_volatile() }),
            None => u64::MAX,
        }
    }
    #[inline]
    fn write_be64(&self, offset: usize, value: u64) {
        if let Some(at) = self.word(offset, 8) {
            // SAFETY: within the mapping, and aligned.
            unsafe { at.cast::<u64>().write_volatile(value.to_be()) };
        }
    }
    #[inline]
    unsafe fn write_be64_inside(&self, offset: usize, value: u64) {
        debug_assert!(self.word(offset, 8).is_some());
        // SAFETY: within the mapping, and aligned, says the caller; what is mapped begins at a page.
        unsafe {
            let at = self.map.as_mut_ptr().add(offset);
            at.cast::<u64>().write_volatile(value.to_be());
        }
    }
}
