//! A ring in DMA memory: equal entries, as many as a power of two, found by a counter that runs free.
//!
//! That every entry lies in the memory is checked when the ring is made and not again: a masked counter cannot leave it.
//! And memory as 64-bit words, however many: that they are aligned is checked once, which of them at each access.

use super::{DmaBuf, Platform, Words};
use core::fmt;
use core::marker::PhantomData;
use core::ops::Deref;
use core::ptr::NonNull;

/// DMA memory that is a ring. Its bytes are reached as those of any [`DmaBuf`], its entries by [`view`](Self::view).
pub struct DmaRing<'p, P: Platform> {
    memory: DmaBuf<'p, P>,
    /// Entries less one: a power of two less one. `(mask + 1) << shift` is no more than the memory has, and than 2^32.
    mask: u32,
    /// Distance of two entries in bytes: a power of two, 8 at least.
    stride: u32,
}

/// A [`DmaRing`] for the length of a call: entries of which the first `N` words are used. A copy of three numbers.
#[derive(Clone, Copy, Debug)]
pub struct RingView<'b, const N: usize> {
    first: *mut u8,
    mask: u32,
    stride: u32,
    memory: PhantomData<&'b ()>,
}

/// One entry: its first `N` words, the first of which lies at a multiple of 8 bytes, so that two can be stored at once.
#[derive(Clone, Copy, Debug)]
pub struct RingEntry<'b, const N: usize>(Words<'b, N>);

impl<'b, const N: usize> Deref for RingEntry<'b, N> {
    type Target = Words<'b, N>;

    #[inline]
    fn deref(&self) -> &Words<'b, N> {
        &self.0
    }
}

impl<'b, const N: usize> RingEntry<'b, N> {
    /// The `K` words from word `AT` (even) on.
    #[inline(always)]
    pub fn part<const AT: usize, const K: usize>(self) -> RingEntry<'b, K> {
        const { assert!(AT & 1 == 0 && AT + K <= N, "no part of the entry") };
        // SAFETY: `K` of the `N` words, the first at a multiple of 8 bytes since word 0 is (`RingView::at`).
        RingEntry(unsafe { Words::new(self.first().add(AT)) })
    }

    /// Stores word `index` (even) and the one behind it as one big-endian number: `first` in its upper half. Beyond the
    /// last nothing happens.
    #[inline(always)]
    pub fn set_pair(self, index: usize, first: u32, second: u32) {
        self.set_long(index, u64::from(first) << 32 | u64::from(second));
    }

    /// Stores words `index` (even) and the next as a big-endian number.
    #[inline(always)]
    pub fn set_long(self, index: usize, value: u64) {
        self.set_bytes(index, value.to_be_bytes());
    }

    /// Stores eight bytes, which lie as they are, at word `index` (even).
    #[inline(always)]
    pub fn set_bytes(self, index: usize, bytes: [u8; 8]) {
        if index & 1 == 0 && index + 1 < N {
            let value = u64::from_ne_bytes(bytes);
            // SAFETY: two of the `N` words, the first at a multiple of 8 bytes since word 0 is (`RingView::at`).
            unsafe { self.first().add(index).cast::<u64>().write_volatile(value) };
        }
    }
}

impl<'p, P: Platform> DmaRing<'p, P> {
    /// The memory as a ring of `mask + 1` entries (a power of two), `1 << shift` bytes (8 at least) from one to the next;
    /// there may be more behind them. The memory is given back where that is no ring, or does not fit, or has more than 2^32
    /// bytes.
    pub fn over(memory: DmaBuf<'p, P>, mask: u32, shift: u8) -> Result<Self, DmaBuf<'p, P>> {
        let is_ring = mask & mask.wrapping_add(1) == 0 && (3..=31).contains(&shift);
        let size = (memory.len() as u64).min(1 << 32);
        if !is_ring || (u64::from(mask) + 1) << (shift & 31) > size || !memory.is_aligned() {
            return Err(memory);
        }
        Ok(Self {
            memory,
            mask,
            stride: 1 << (shift & 31),
        })
    }

    /// Its entries, of which `N` words each are used; `None` if they are not as long as that.
    #[inline]
    pub fn view<const N: usize>(&self) -> Option<RingView<'_, N>> {
        (4 * N <= self.stride as usize).then_some(RingView {
            first: self.memory.first(),
            mask: self.mask,
            stride: self.stride,
            memory: PhantomData,
        })
    }

    /// The memory alone, to be given back.
    pub fn into_memory(self) -> DmaBuf<'p, P> {
        self.memory
    }
}

impl<'p, P: Platform> Deref for DmaRing<'p, P> {
    type Target = DmaBuf<'p, P>;

    #[inline]
    fn deref(&self) -> &DmaBuf<'p, P> {
        &self.memory
    }
}

impl<P: Platform> fmt::Debug for DmaRing<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DmaRing")
            .field("memory", &self.memory)
            .field("mask", &self.mask)
            .field("stride", &self.stride)
            .finish()
    }
}

impl<'b, const N: usize> RingView<'b, N> {
    /// Entries less one: a power of two less one.
    #[inline]
    pub const fn mask(self) -> u32 {
        self.mask
    }

    /// Bytes from entry 0 to entry `counter`, which runs free.
    #[inline]
    pub const fn offset(self, counter: u32) -> u32 {
        (counter & self.mask).wrapping_mul(self.stride)
    }

    /// Entry `counter`, which runs free.
    #[inline]
    pub fn at(self, counter: u32) -> RingEntry<'b, N> {
        let offset = self.offset(counter) as usize;
        // SAFETY: the masked counter is an entry of the ring, which is in the memory (checked when it was made); the
        // first `N` words are in the entry (checked by `view`), aligned since the memory is to 8 bytes and the distance is
        // a multiple of 8; and the memory stays as long as the `DmaBuf` is borrowed.
        RingEntry(unsafe { Words::new(self.first.add(offset).cast()) })
    }

    /// Stores in entry `counter`, from byte `at` (a multiple of 8) on, the big-endian word `head` and `bytes` behind it.
    /// False if that is more than an entry.
    #[inline(always)]
    pub fn put_inline(self, counter: u32, at: usize, head: u32, bytes: &[u8]) -> bool {
        let end = bytes.len().saturating_add(4).saturating_add(at);
        if end > self.stride as usize || at & 7 != 0 {
            return false;
        }
        let entry = self.offset(counter) as usize;
        // SAFETY: within the entry, which is in the memory and at a multiple of 8 (as for `at`). The bytes lie outside every
        // Rust object, so in no slice; the device looks at them behind the barrier that comes before a doorbell.
        unsafe {
            let to = self.first.add(entry).add(at);
            to.cast::<u32>().write_volatile(head.to_be());
            to.add(4)
                .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
        true
    }
}

/// One of [`DmaLongs`], as long as these are borrowed.
#[derive(Clone, Copy, Debug)]
pub struct DmaLong<'b> {
    word: NonNull<u64>,
    memory: PhantomData<&'b ()>,
}

// SAFETY: DMA memory is the same from every thread (as for `DmaBuf`), and a store takes the word as a whole.
unsafe impl Send for DmaLong<'_> {}
// SAFETY: as for `Send`.
unsafe impl Sync for DmaLong<'_> {}

impl DmaLong<'_> {
    /// Stores a big-endian number.
    #[inline]
    pub fn set(self, value: u64) {
        // SAFETY: a word of the memory, aligned as that is (`DmaLongs::over`), which lives as long as it is borrowed; no
        // reference into it exists.
        unsafe { self.word.as_ptr().write_volatile(value.to_be()) };
    }
}

/// DMA memory as 64-bit words, the first at its start.
pub struct DmaLongs<'p, P: Platform> {
    memory: DmaBuf<'p, P>,
    /// The memory has them.
    count: usize,
}

impl<'p, P: Platform> DmaLongs<'p, P> {
    /// The words of `memory`; it is given back if they are not aligned.
    pub fn over(memory: DmaBuf<'p, P>) -> Result<Self, DmaBuf<'p, P>> {
        if !memory.is_aligned() {
            return Err(memory);
        }
        let count = memory.len() / 8;
        Ok(Self { memory, count })
    }

    /// Stores word `index` as a big-endian number. Beyond the last nothing happens.
    #[inline]
    pub fn set(&self, index: usize, value: u64) {
        if index < self.count {
            let first = self.memory.first().cast::<u64>();
            // SAFETY: one of the words that the memory has, aligned as the memory is (`over`); no reference into it exists.
            unsafe { first.add(index).write_volatile(value.to_be()) };
        }
    }

    /// Stores the upper half of word `index`, which lies first, as a big-endian number. Beyond the last nothing happens.
    #[inline]
    pub fn set_upper(&self, index: usize, value: u32) {
        if index < self.count {
            let first = self.memory.first().cast::<u64>();
            // SAFETY: as for `set`.
            unsafe { first.add(index).cast::<u32>().write_volatile(value.to_be()) };
        }
    }

    /// Word `index`, to be stored to often.
    #[inline]
    pub fn word(&self, index: usize) -> Option<DmaLong<'_>> {
        let first = self.memory.first().cast::<u64>();
        // In the memory, if it is one of the words that it has.
        let word = NonNull::new(first.wrapping_add(index));
        word.filter(|_| index < self.count).map(|word| DmaLong {
            word,
            memory: PhantomData,
        })
    }

    /// The memory alone, to be given back.
    pub fn into_memory(self) -> DmaBuf<'p, P> {
        self.memory
    }
}

impl<'p, P: Platform> Deref for DmaLongs<'p, P> {
    type Target = DmaBuf<'p, P>;

    #[inline]
    fn deref(&self) -> &DmaBuf<'p, P> {
        &self.memory
    }
}
