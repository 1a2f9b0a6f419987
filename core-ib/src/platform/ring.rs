//! A ring in DMA memory: equal entries, as many as a power of two, found by a counter that runs free.
//!
//! That every entry lies in the memory is checked when the ring is made and not again: a masked counter cannot leave it.

use super::{DmaBuf, Platform, Words};
use core::fmt;
use core::marker::PhantomData;
use core::ops::Deref;

/// DMA memory that is a ring. Its bytes are reached as those of any [`DmaBuf`], its entries by [`view`](Self::view).
pub struct DmaRing<'p, P: Platform> {
    memory: DmaBuf<'p, P>,
    /// Entries less one: a power of two less one. `(mask + 1) << shift` is no more than the memory has.
    mask: u32,
    /// Logarithm of the distance of two entries in bytes: 2 to 31.
    shift: u8,
}

/// A [`DmaRing`] for the length of a call: entries of which the first `N` words are used. A copy of three numbers.
#[derive(Clone, Copy, Debug)]
pub struct RingView<'b, const N: usize> {
    first: *mut u8,
    mask: u32,
    shift: u8,
    memory: PhantomData<&'b ()>,
}

impl<'p, P: Platform> DmaRing<'p, P> {
    /// The memory as a ring of `mask + 1` entries (a power of two), `1 << shift` bytes (4 at least) from one to the next;
    /// there may be more behind them. The memory is given back where that is no ring, or does not fit.
    pub fn over(memory: DmaBuf<'p, P>, mask: u32, shift: u8) -> Result<Self, DmaBuf<'p, P>> {
        let is_ring = mask & mask.wrapping_add(1) == 0 && (2..=31).contains(&shift);
        let size = memory.len() as u64;
        if !is_ring || (u64::from(mask) + 1) << (shift & 31) > size || !memory.is_aligned() {
            return Err(memory);
        }
        Ok(Self {
            memory,
            mask,
            shift,
        })
    }

    /// Its entries, of which `N` words each are used; `None` if they are not as long as that.
    #[inline]
    pub fn view<const N: usize>(&self) -> Option<RingView<'_, N>> {
        (4 * N <= 1 << self.shift).then_some(RingView {
            first: self.memory.first(),
            mask: self.mask,
            shift: self.shift,
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
            .field("shift", &self.shift)
            .finish()
    }
}

impl<'b, const N: usize> RingView<'b, N> {
    /// Bytes from entry 0 to entry `counter`, which runs free; modulo 2^32.
    #[inline]
    pub const fn offset(self, counter: u32) -> u32 {
        (counter & self.mask) << (self.shift & 31)
    }

    /// Entry `counter`, which runs free.
    #[inline]
    pub fn at(self, counter: u32) -> Words<'b, N> {
        let offset = ((counter & self.mask) as usize) << (self.shift & 31);
        // SAFETY: the masked counter is an entry of the ring, which is in the memory (checked when it was made); the
        // first `N` words are in the entry (checked by `view`), aligned since the memory is and the distance is a
        // multiple of 4; and the memory stays as long as the `DmaBuf` is borrowed.
        unsafe { Words::new(self.first.add(offset).cast()) }
    }
}
