//! Memory that the device reaches.

use super::Platform;
use core::fmt;
use core::marker::PhantomData;
use core::ptr::NonNull;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// An address as the device sees it: never a pointer, never a bare `u64`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DmaAddr(u64);

impl DmaAddr {
    /// From a number that a machine says is an address of its device.
    pub const fn new(address: u64) -> Self {
        Self(address)
    }

    /// The number, for descriptors and registers.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// `bytes` further on, wrapping.
    pub const fn plus(self, bytes: u64) -> Self {
        Self(self.0.wrapping_add(bytes))
    }
}

impl fmt::Display for DmaAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// Which way data goes through a streaming mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The device reads.
    ToDevice,
    /// The device writes.
    FromDevice,
    /// Both.
    Both,
}

/// DMA memory as a machine gives it.
#[derive(Clone, Copy, Debug)]
pub struct RawDma {
    /// Where the program sees it.
    pub memory: NonNull<u8>,
    /// Where the device sees it.
    pub bus: DmaAddr,
    /// Bytes, as many as were asked for.
    pub len: usize,
}

/// An access past the end of DMA memory. Nothing was read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfBounds {
    /// First byte asked for.
    pub offset: usize,
    /// Bytes asked for.
    pub len: usize,
    /// Bytes there are.
    pub size: usize,
}

impl fmt::Display for OutOfBounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { offset, len, size } = *self;
        write!(f, "{len} bytes at {offset} of {size} bytes of DMA memory")
    }
}

impl core::error::Error for OutOfBounds {}

/// Proof that the device has let go of some memory: it was never told of it, a command took it back, or the HCA
/// was reset.
#[derive(Debug)]
pub struct LetGo(());

impl LetGo {
    /// Claims it.
    ///
    /// # Safety
    ///
    /// The device no longer uses the memory that this proof is shown for, and will not until told of it anew.
    pub const unsafe fn claim() -> Self {
        Self(())
    }
}

/// DMA memory with safe, bounds-checked access. Dropping it leaks it, since nobody knows whether the device still
/// writes there; [`DmaBuf::free`] gives it back.
///
/// Accesses are volatile, by 32-bit words where aligned, so that the device sees whole words and what it writes
/// meanwhile is never assumed to be stable.
pub struct DmaBuf<'p, P: Platform> {
    raw: RawDma,
    machine: &'p P,
}

// SAFETY: the memory belongs to this value alone (contract of `dma_alloc`), whichever context holds it.
unsafe impl<P: Platform> Send for DmaBuf<'_, P> {}
// SAFETY: `&self` gives volatile accesses only. Two contexts that write the same words through it see either
// value, as with the device itself; no reference into the memory is ever made.
unsafe impl<P: Platform> Sync for DmaBuf<'_, P> {}

impl<P: Platform> fmt::Debug for DmaBuf<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DmaBuf").field(&self.raw).finish()
    }
}

impl<'p, P: Platform> DmaBuf<'p, P> {
    /// `len` zeroed bytes at a multiple of `align` (a power of two). Control context; may block.
    pub fn new(machine: &'p P, len: usize, align: usize) -> super::Result<Self> {
        let raw = machine.dma_alloc(len, align)?;
        Ok(Self { raw, machine })
    }

    /// Where the device sees it.
    #[inline]
    pub const fn addr(&self) -> DmaAddr {
        self.raw.bus
    }

    /// Bytes.
    #[inline]
    pub const fn len(&self) -> usize {
        self.raw.len
    }

    /// No bytes at all?
    pub const fn is_empty(&self) -> bool {
        self.raw.len == 0
    }

    /// Its first byte.
    #[inline]
    pub(super) const fn first(&self) -> *mut u8 {
        self.raw.memory.as_ptr()
    }

    /// To words of 64 bits?
    pub(super) fn is_aligned(&self) -> bool {
        self.first().addr() & 7 == 0
    }

    /// The machine it came from.
    #[inline]
    pub const fn machine(&self) -> &'p P {
        self.machine
    }

    #[inline]
    fn at(&self, offset: usize, len: usize) -> Result<*mut u8, OutOfBounds> {
        let size = self.raw.len;
        if offset.checked_add(len).is_none_or(|end| end > size) {
            return Err(OutOfBounds { offset, len, size });
        }
        // SAFETY: `offset <= size`, and the allocation has `size` bytes.
        Ok(unsafe { self.raw.memory.as_ptr().add(offset) })
    }

    /// Stores `value` at `offset`.
    #[inline]
    pub fn write<T: IntoBytes + Immutable + ?Sized>(
        &self,
        offset: usize,
        value: &T,
    ) -> Result<(), OutOfBounds> {
        let bytes = value.as_bytes();
        let to = self.at(offset, bytes.len())?;
        // SAFETY: `to` is good for `bytes.len()` bytes (checked by `at`), which lie outside every Rust object.
        unsafe { copy_volatile_to(to, bytes) };
        Ok(())
    }

    /// Loads a `T` from `offset`.
    #[inline]
    pub fn read<T: FromBytes + IntoBytes>(&self, offset: usize) -> Result<T, OutOfBounds> {
        let mut value = T::new_zeroed();
        let bytes = value.as_mut_bytes();
        let from = self.at(offset, bytes.len())?;
        // SAFETY: `from` is good for `bytes.len()` bytes (checked by `at`).
        unsafe { copy_volatile_from(from, bytes) };
        Ok(value)
    }

    /// Stores `bytes` at `offset`.
    #[inline]
    pub fn copy_in(&self, offset: usize, bytes: &[u8]) -> Result<(), OutOfBounds> {
        self.write(offset, bytes)
    }

    /// Loads `bytes.len()` bytes from `offset`.
    #[inline]
    pub fn copy_out(&self, offset: usize, bytes: &mut [u8]) -> Result<(), OutOfBounds> {
        let from = self.at(offset, bytes.len())?;
        // SAFETY: `from` is good for `bytes.len()` bytes (checked by `at`).
        unsafe { copy_volatile_from(from, bytes) };
        Ok(())
    }

    /// Stores `byte` at every one of `len` bytes from `offset`.
    pub fn fill(&self, offset: usize, len: usize, byte: u8) -> Result<(), OutOfBounds> {
        let to = self.at(offset, len)?;
        for index in 0..len {
            // SAFETY: `index < len`, and `at` checked `len` bytes.
            unsafe { to.add(index).write_volatile(byte) };
        }
        Ok(())
    }

    /// Stores the big-endian 32-bit word `value` at `offset` (a multiple of 4) in one store.
    #[inline]
    pub fn write_be32(&self, offset: usize, value: u32) -> Result<(), OutOfBounds> {
        self.write(offset, &value.to_be_bytes())
    }

    /// Loads the big-endian 32-bit word at `offset` (a multiple of 4) in one load.
    #[inline]
    pub fn read_be32(&self, offset: usize) -> Result<u32, OutOfBounds> {
        self.read::<[u8; 4]>(offset).map(u32::from_be_bytes)
    }

    /// `N` words from `offset` (a multiple of 4) on, checked once: for descriptors on a data path.
    #[inline]
    pub fn words<const N: usize>(&self, offset: usize) -> Result<Words<'_, N>, OutOfBounds> {
        let (len, size) = (4 * N, self.raw.len);
        let first = self.raw.memory.as_ptr().wrapping_add(offset);
        let fits = offset.checked_add(len).is_some_and(|end| end <= size);
        if !fits || first.addr() & 3 != 0 {
            return Err(OutOfBounds { offset, len, size });
        }
        Ok(Words {
            first: first.cast(),
            memory: PhantomData,
        })
    }

    /// Gives the memory back to the machine.
    pub fn free(self, _: LetGo) {
        // SAFETY: `raw` came from `dma_alloc` of this machine, and the device has let go.
        unsafe { self.machine.dma_free(self.raw) };
    }
}

/// `N` aligned 32-bit words of DMA memory. Each is loaded or stored whole; big-endian numbers by [`get`](Self::get) and
/// [`set`](Self::set), structures as they lie by [`read`](Self::read) and [`write`](Self::write).
#[derive(Clone, Copy)]
pub struct Words<'b, const N: usize> {
    first: *mut u32,
    memory: PhantomData<&'b ()>,
}

impl<const N: usize> fmt::Debug for Words<'_, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Words").field(&self.first).finish()
    }
}

impl<const N: usize> Words<'_, N> {
    /// # Safety
    ///
    /// `first` is good for `N` aligned words of DMA memory for as long as the lifetime says.
    #[inline]
    pub(super) const unsafe fn new(first: *mut u32) -> Self {
        Self {
            first,
            memory: PhantomData,
        }
    }

    /// Its first word.
    #[inline]
    pub(super) const fn first(self) -> *mut u32 {
        self.first
    }

    #[inline]
    fn load(self, index: usize) -> u32 {
        if index >= N {
            return 0;
        }
        // SAFETY: `words` checked `N` aligned words, which are memory for as long as the `DmaBuf` is borrowed.
        unsafe { self.first.add(index).read_volatile() }
    }

    #[inline]
    fn store(self, index: usize, word: u32) {
        if index < N {
            // SAFETY: as for `load`; no reference into the memory exists.
            unsafe { self.first.add(index).write_volatile(word) };
        }
    }

    /// Word `index` as a big-endian number; 0 beyond the last.
    #[inline]
    pub fn get(self, index: usize) -> u32 {
        u32::from_be(self.load(index))
    }

    /// Stores word `index` as a big-endian number. Beyond the last nothing happens.
    #[inline]
    pub fn set(self, index: usize, value: u32) {
        self.store(index, value.to_be());
    }

    /// Stores a structure of `N` words, first word first.
    #[inline]
    pub fn write<T: IntoBytes + Immutable>(self, value: &T) {
        const { assert!(size_of::<T>() == 4 * N, "the structure has other words") };
        let (words, _) = value.as_bytes().as_chunks::<4>();
        let mut index = 0;
        while index < N {
            if let Some(word) = words.get(index) {
                self.store(index, u32::from_ne_bytes(*word));
            }
            index += 1;
        }
    }

    /// Loads a structure of `N` words, first word first.
    #[inline]
    pub fn read<T: FromBytes + IntoBytes>(self) -> T {
        const { assert!(size_of::<T>() == 4 * N, "the structure has other words") };
        let mut value = T::new_zeroed();
        let (words, _) = value.as_mut_bytes().as_chunks_mut::<4>();
        let mut index = 0;
        while index < N {
            if let Some(word) = words.get_mut(index) {
                *word = self.load(index).to_ne_bytes();
            }
            index += 1;
        }
        value
    }
}

/// # Safety
///
/// `to` is good for writing `bytes.len()` bytes that no reference covers.
#[inline]
unsafe fn copy_volatile_to(to: *mut u8, bytes: &[u8]) {
    if to.addr() & 3 == 0 {
        let (words, rest) = bytes.as_chunks::<4>();
        for (index, word) in words.iter().enumerate() {
            // SAFETY: within `bytes.len()`, and aligned, as `to` is and the step is 4.
            unsafe {
                to.cast::<u32>()
                    .add(index)
                    .write_volatile(u32::from_ne_bytes(*word));
            }
        }
        // SAFETY: the words end where the rest begins.
        let to = unsafe { to.add(bytes.len() - rest.len()) };
        for (index, byte) in rest.iter().enumerate() {
            // SAFETY: within `bytes.len()`.
            unsafe { to.add(index).write_volatile(*byte) };
        }
    } else {
        for (index, byte) in bytes.iter().enumerate() {
            // SAFETY: within `bytes.len()`.
            unsafe { to.add(index).write_volatile(*byte) };
        }
    }
}

/// # Safety
///
/// `from` is good for reading `bytes.len()` bytes.
#[inline]
unsafe fn copy_volatile_from(from: *const u8, bytes: &mut [u8]) {
    let len = bytes.len();
    if from.addr() & 3 == 0 {
        let (words, rest) = bytes.as_chunks_mut::<4>();
        for (index, word) in words.iter_mut().enumerate() {
            // SAFETY: within `len`, and aligned, as `from` is and the step is 4.
            let value = unsafe { from.cast::<u32>().add(index).read_volatile() };
            *word = value.to_ne_bytes();
        }
        // SAFETY: the words end where the rest begins.
        let from = unsafe { from.add(len - rest.len()) };
        for (index, byte) in rest.iter_mut().enumerate() {
            // SAFETY: within `len`.
            *byte = unsafe { from.add(index).read_volatile() };
        }
    } else {
        for (index, byte) in bytes.iter_mut().enumerate() {
            // SAFETY: within `len`.
            *byte = unsafe { from.add(index).read_volatile() };
        }
    }
}
