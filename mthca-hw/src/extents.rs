//! Extents: aligned power-of-two runs of a numbered space, the MTT segments of the HCA and the places for work
//! request identifiers.
//!
//! A buddy allocator whose bitmaps lie in table memory: one bit a block and order, set while the block is free. It
//! belongs to the control path; the numbers that it gives out are constant for the life of their object.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use core_ib::platform::{Lock, Platform, PlatformError, Table};
use core_ib::verbs::VerbsError;

/// Orders there can be: spaces have fewer than 2^31 numbers.
const ORDERS: usize = 31;

/// A run of `1 << order` numbers, aligned to its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Its first number.
    pub first: u32,
    order: u8,
}

impl Extent {
    /// Numbers in it.
    pub const fn len(self) -> u32 {
        1 << self.order
    }
}

/// The smallest order whose extents have `count` numbers.
pub const fn order_of(count: u32) -> u8 {
    if count <= 1 {
        0
    } else {
        (u32::BITS - (count - 1).leading_zeros()) as u8
    }
}

/// A space of numbers from which extents are taken.
pub struct Extents<'p, P: Platform> {
    /// The bitmaps, order 0 first, each of whole words.
    bits: Table<'p, AtomicU32, P>,
    /// Free blocks by order.
    free: Lock<[u32; ORDERS], P::RawLock>,
    end: u32,
    entry: &'static str,
}

/// Words of the bitmap of `order` in a space of `end` numbers.
const fn words(end: u32, order: usize) -> usize {
    ((end >> order) as usize).div_ceil(32)
}

impl<'p, P: Platform> Extents<'p, P> {
    /// The numbers `first..end`, all free. `entry` of the profile says how many. Set-up only.
    pub fn new(
        machine: &'p P,
        first: u32,
        end: u32,
        entry: &'static str,
    ) -> Result<Self, PlatformError> {
        let end = end.min(1 << (ORDERS - 1));
        let all = (0..ORDERS).map(|order| words(end, order)).sum();
        let extents = Self {
            bits: Table::new(machine, all, |_| AtomicU32::new(0))?,
            free: machine.lock("extents", false, [0; ORDERS]),
            end,
            entry,
        };
        let mut next = first;
        while next < end {
            let aligned = next.trailing_zeros().min(ORDERS as u32 - 1);
            let fits = (end - next).ilog2();
            let order = aligned.min(fits) as usize;
            extents
                .free
                .with(|free| extents.put(free, next >> order, order));
            next = next.saturating_add(1 << order);
        }
        Ok(extents)
    }

    fn bitmap(&self, order: usize) -> &[AtomicU32] {
        let before: usize = (0..order).map(|order| words(self.end, order)).sum();
        let bits = self.bits.get(before..).unwrap_or(&[]);
        bits.get(..words(self.end, order)).unwrap_or(&[])
    }

    /// How many are free. Any context but a hard interrupt.
    pub fn room(&self) -> u32 {
        self.free.with(|free| {
            let of_orders = (0..).zip(free.iter());
            of_orders.map(|(order, count)| count << order).sum()
        })
    }

    fn put(&self, free: &mut [u32; ORDERS], block: u32, order: usize) {
        let word = self.bitmap(order).get((block / 32) as usize);
        if let (Some(word), Some(count)) = (word, free.get_mut(order)) {
            word.store(word.load(Relaxed) | 1 << (block % 32), Relaxed);
            *count = count.saturating_add(1);
        }
    }

    /// Takes `block` if it is free.
    fn claim(&self, free: &mut [u32; ORDERS], block: u32, order: usize) -> bool {
        let word = self.bitmap(order).get((block / 32) as usize);
        let (Some(word), Some(count)) = (word, free.get_mut(order)) else {
            return false;
        };
        let bit = 1 << (block % 32);
        let bits = word.load(Relaxed);
        if bits & bit == 0 {
            return false;
        }
        word.store(bits & !bit, Relaxed);
        *count = count.saturating_sub(1);
        true
    }

    fn lowest(&self, free: &[u32; ORDERS], order: usize) -> Option<u32> {
        if free.get(order).is_none_or(|&count| count == 0) {
            return None;
        }
        let words = self.bitmap(order).iter().enumerate();
        words
            .map(|(index, word)| (index as u32, word.load(Relaxed)))
            .find(|&(_, bits)| bits != 0)
            .map(|(index, bits)| index * 32 + bits.trailing_zeros())
    }

    /// Takes at least `count` numbers. Control context.
    pub fn take(&self, count: u32) -> Result<Extent, VerbsError> {
        let order = order_of(count);
        self.free
            .with(|free| {
                let mut from = usize::from(order);
                let mut block = loop {
                    match self.lowest(free, from) {
                        Some(block) => break block,
                        None if from + 1 < ORDERS => from += 1,
                        None => return None,
                    }
                };
                self.claim(free, block, from);
                while from > usize::from(order) {
                    from -= 1;
                    block <<= 1;
                    self.put(free, block | 1, from);
                }
                let first = block << order;
                Some(Extent { first, order })
            })
            .ok_or(VerbsError::NoResources {
                entry: self.entry,
                limit: self.end,
            })
    }

    /// Gives an extent back. Control context.
    pub fn give(&self, extent: Extent) {
        self.free.with(|free| {
            let mut order = usize::from(extent.order);
            let mut block = extent.first >> extent.order;
            while order + 1 < ORDERS && self.claim(free, block ^ 1, order) {
                block >>= 1;
                order += 1;
            }
            self.put(free, block, order);
        });
    }

    /// How many numbers are free.
    #[cfg(test)]
    pub fn free(&self) -> u32 {
        self.free
            .with(|free| (0_u32..).zip(free.iter()).map(|(o, &n)| n << o).sum())
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::fake::Machine;
    use proptest::prelude::*;
    use std::vec::Vec;

    #[test]
    fn orders_round_up() {
        let orders = [0, 1, 2, 3, 4, 5, 1 << 20].map(order_of);
        assert_eq!(orders, [0, 0, 1, 2, 2, 3, 20]);
    }

    #[test]
    fn a_space_that_is_used_up_says_which_entry_to_raise() {
        let machine = Machine::idle();
        let space = Extents::new(&machine, 4, 8, "mtt_pages").unwrap();
        assert_eq!(space.take(4).map(|extent| extent.first), Ok(4));
        let error = VerbsError::NoResources {
            entry: "mtt_pages",
            limit: 8,
        };
        assert_eq!(space.take(1), Err(error));
    }

    proptest! {
        #[test]
        fn extents_never_overlap_and_all_come_back(
            first in 0..20_u32, len in 1..300_u32,
            steps in proptest::collection::vec((any::<bool>(), 1..40_u32), 1..80),
        ) {
            let machine = Machine::idle();
            let space = Extents::new(&machine, first, first + len, "x").unwrap();
            let mut taken: Vec<Extent> = Vec::new();
            for (take, number) in steps {
                if take {
                    let Ok(new) = space.take(number) else { continue };
                    prop_assert!(new.len() >= number && new.first % new.len() == 0);
                    prop_assert!(new.first >= first && new.first + new.len() <= first + len);
                    for old in &taken {
                        let apart = new.first + new.len() <= old.first || old.first + old.len() <= new.first;
                        prop_assert!(apart, "{new:?} lies over {old:?}");
                    }
                    taken.push(new);
                } else if !taken.is_empty() {
                    space.give(taken.swap_remove(number as usize % taken.len()));
                }
                let out: u32 = taken.iter().map(|extent| extent.len()).sum();
                prop_assert_eq!(space.free() + out, len);
            }
            taken.drain(..).for_each(|extent| space.give(extent));
            prop_assert_eq!(space.free(), len);
        }
    }
}
