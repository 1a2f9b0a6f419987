//! The few kinds of table that the manager is made of: rows by number, a map from GUIDs, sets of bits, a queue.
//!
//! None of them owns its memory: each lies over a slice of the [`Store`](crate::Store).

use core::marker::PhantomData;
use core::num::NonZeroU32;
use core_ib::{Gid, Guid};

/// The number of a row of one kind of table.
pub(crate) trait Id: Copy {
    /// Row 0.
    const FIRST: Self;
    /// Row `index`; `None` if there can be no such row.
    fn new(index: usize) -> Option<Self>;
    /// Where the row is.
    fn index(self) -> usize;
}

/// Makes an [`Id`] that takes no more room in an `Option`.
macro_rules! id {
    ($($(#[$meta:meta])* $name:ident)*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub(crate) struct $name(NonZeroU32);

        impl Id for $name {
            const FIRST: Self = Self(NonZeroU32::MIN);

            #[inline]
            fn new(index: usize) -> Option<Self> {
                let index = u32::try_from(index).ok()?;
                NonZeroU32::new(index.wrapping_add(1)).map(Self)
            }

            #[inline]
            fn index(self) -> usize {
                self.0.get().wrapping_sub(1) as usize
            }
        }
    )*};
}

id! {
    /// An adapter, a router or a switch.
    NodeId
    /// A port of a node.
    PortId
    /// A switch among switches.
    SwitchId
    /// A multicast group.
    GroupId
    /// A member of a multicast group.
    MemberId
}

/// Rows by number.
#[derive(Debug)]
pub(crate) struct Rows<'a, I, T> {
    rows: &'a mut [T],
    id: PhantomData<fn(I)>,
}

impl<'a, I: Id, T> Rows<'a, I, T> {
    pub(crate) const fn new(rows: &'a mut [T]) -> Self {
        Self {
            rows,
            id: PhantomData,
        }
    }

    #[inline]
    pub(crate) fn get(&self, id: I) -> Option<&T> {
        self.rows.get(id.index())
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: I) -> Option<&mut T> {
        self.rows.get_mut(id.index())
    }

    /// Rows that there is room for.
    pub(crate) const fn capacity(&self) -> usize {
        self.rows.len()
    }

    /// All rows with their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (I, &T)> {
        let numbered = self.rows.iter().enumerate();
        numbered.filter_map(|(index, row)| Some((I::new(index)?, row)))
    }
}

/// What a [`Map`] finds its numbers by. Zero is no key.
pub(crate) trait Key: Copy + Default + PartialEq {
    /// Well mixed in the low 32 bits.
    fn hash(self) -> u64;
}

impl Key for Guid {
    fn hash(self) -> u64 {
        (self.0 ^ self.0 >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
    }
}

impl Key for Gid {
    fn hash(self) -> u64 {
        Guid(self.prefix().rotate_left(29) ^ self.guid().0).hash()
    }
}

/// A map from GUIDs, or GIDs, to numbers, by open addressing.
#[derive(Debug)]
pub(crate) struct Map<'a, K> {
    slots: &'a mut [(K, u32)],
}

/// Slots for `entries` entries of a [`Map`]: a power of two, half of it free at least.
pub(crate) const fn map_slots(entries: u32) -> usize {
    (entries as usize).saturating_mul(2).next_power_of_two()
}

impl<'a, K: Key> Map<'a, K> {
    /// Over slots that are zero where they are free; their number is a power of two.
    pub(crate) const fn new(slots: &'a mut [(K, u32)]) -> Self {
        Self { slots }
    }

    /// Slots that there are.
    pub(crate) const fn slots(&self) -> usize {
        self.slots.len()
    }

    fn mask(&self) -> usize {
        self.slots.len().wrapping_sub(1)
    }

    fn home(&self, key: K) -> usize {
        key.hash() as usize & self.mask()
    }

    /// The slot that holds `key`, or the free one where it would go.
    fn find(&self, key: K) -> Option<(usize, bool)> {
        let mut at = self.home(key);
        for _ in 0..self.slots.len() {
            match self.slots.get(at)?.0 {
                found if found == key => return Some((at, true)),
                free if free == K::default() => return Some((at, false)),
                _ => at = (at + 1) & self.mask(),
            }
        }
        None
    }

    pub(crate) fn get(&self, key: K) -> Option<u32> {
        match self.find(key)? {
            (at, true) if key != K::default() => self.slots.get(at).map(|slot| slot.1),
            _ => None,
        }
    }

    /// Says whether there was room (or the key was there).
    #[must_use]
    pub(crate) fn insert(&mut self, key: K, value: u32) -> bool {
        if key == K::default() {
            return false;
        }
        let place = self.find(key).and_then(|(at, _)| self.slots.get_mut(at));
        place.map(|slot| *slot = (key, value)).is_some()
    }

    pub(crate) fn remove(&mut self, key: K) {
        let Some((mut hole, true)) = self.find(key).filter(|_| key != K::default()) else {
            return;
        };
        // Move back what was pushed past the hole.
        let mut at = hole;
        for _ in 1..self.slots.len() {
            at = (at + 1) & self.mask();
            let Some(&slot) = self.slots.get(at) else {
                break;
            };
            if slot.0 == K::default() {
                break;
            }
            let pushed = at.wrapping_sub(self.home(slot.0)) & self.mask();
            let back = at.wrapping_sub(hole) & self.mask();
            if pushed >= back {
                if let Some(place) = self.slots.get_mut(hole) {
                    *place = slot;
                }
                hole = at;
            }
        }
        if let Some(place) = self.slots.get_mut(hole) {
            *place = (K::default(), 0);
        }
    }
}

/// Bits in words: sets of small numbers.
pub(crate) mod bits {
    /// Words that `count` bits take.
    pub(crate) const fn words(count: usize) -> usize {
        count.div_ceil(64)
    }

    #[inline]
    pub(crate) fn get(words: &[u64], bit: usize) -> bool {
        words
            .get(bit / 64)
            .is_some_and(|word| word >> (bit % 64) & 1 != 0)
    }

    #[inline]
    pub(crate) fn set(words: &mut [u64], bit: usize) {
        if let Some(word) = words.get_mut(bit / 64) {
            *word |= 1 << (bit % 64);
        }
    }

    #[inline]
    pub(crate) fn clear(words: &mut [u64], bit: usize) {
        if let Some(word) = words.get_mut(bit / 64) {
            *word &= !(1 << (bit % 64));
        }
    }

    pub(crate) fn first(words: &[u64]) -> Option<usize> {
        let at = words.iter().position(|&word| word != 0)?;
        let word = words.get(at)?;
        Some(at * 64 + word.trailing_zeros() as usize)
    }

    /// Every bit that is set, ascending.
    pub(crate) fn each(words: &[u64]) -> impl Iterator<Item = usize> {
        words.iter().enumerate().flat_map(|(at, &word)| {
            let mut left = word;
            core::iter::from_fn(move || {
                let bit = left.trailing_zeros() as usize;
                left &= left.wrapping_sub(1);
                (bit < 64).then_some(at * 64 + bit)
            })
        })
    }
}

/// A queue over a slice. It remembers where it stands in [`Mark`].
#[derive(Debug)]
pub(crate) struct Ring<'a, T> {
    slots: &'a mut [T],
    mark: &'a mut Mark,
}

/// Where a [`Ring`] stands.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Mark {
    first: usize,
    len: usize,
}

impl<'a, T: Copy> Ring<'a, T> {
    pub(crate) const fn new(slots: &'a mut [T], mark: &'a mut Mark) -> Self {
        Self { slots, mark }
    }

    pub(crate) const fn len(&self) -> usize {
        self.mark.len
    }

    /// Items that there is room for.
    pub(crate) const fn capacity(&self) -> usize {
        self.slots.len()
    }

    fn at(&self, offset: usize) -> usize {
        let at = self.mark.first + offset;
        if at >= self.slots.len() {
            at - self.slots.len()
        } else {
            at
        }
    }

    /// Says whether there was room.
    pub(crate) fn push(&mut self, item: T) -> bool {
        if self.mark.len >= self.slots.len() {
            return false;
        }
        let at = self.at(self.mark.len);
        let place = self.slots.get_mut(at);
        self.mark.len += usize::from(place.is_some());
        place.map(|slot| *slot = item).is_some()
    }

    pub(crate) fn pop(&mut self) -> Option<T> {
        let item = self.get(0)?;
        self.mark.first = self.at(1);
        self.mark.len -= 1;
        Some(item)
    }

    /// The `offset`th from the front.
    pub(crate) fn get(&self, offset: usize) -> Option<T> {
        if offset >= self.mark.len {
            return None;
        }
        self.slots.get(self.at(offset)).copied()
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use proptest::prelude::*;
    use std::collections::{HashMap, VecDeque};
    use std::vec::Vec;

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u64, u32),
        Remove(u64),
        Get(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        // Few keys, so that they meet; multiples of a power of two, so that they collide.
        let key = prop_oneof![1..12_u64, (1..12_u64).prop_map(|key| key << 40)];
        prop_oneof![
            (key.clone(), any::<u32>()).prop_map(|(key, value)| Step::Insert(key, value)),
            key.clone().prop_map(Step::Remove),
            key.prop_map(Step::Get),
        ]
    }

    proptest! {
        #[test]
        fn a_guid_map_is_a_map(steps in proptest::collection::vec(step(), 0..200)) {
            let mut slots = [(Guid(0), 0); 32];
            let mut map = Map::new(&mut slots);
            let mut model = HashMap::new();
            for step in steps {
                match step {
                    Step::Insert(key, value) => {
                        prop_assert!(map.insert(Guid(key), value));
                        model.insert(key, value);
                    }
                    Step::Remove(key) => {
                        map.remove(Guid(key));
                        model.remove(&key);
                    }
                    Step::Get(key) => prop_assert_eq!(map.get(Guid(key)), model.get(&key).copied()),
                }
            }
            for (key, value) in &model {
                prop_assert_eq!(map.get(Guid(*key)), Some(*value));
            }
            prop_assert_eq!(slots.iter().filter(|slot| slot.0.0 != 0).count(), model.len());
        }

        #[test]
        fn a_ring_is_a_queue(steps in proptest::collection::vec(any::<Option<u8>>(), 0..100)) {
            let mut slots = [0; 5];
            let mut mark = Mark::default();
            let mut ring = Ring::new(&mut slots, &mut mark);
            let mut model = VecDeque::new();
            for step in steps {
                match step {
                    Some(item) => {
                        let fits = model.len() < 5;
                        prop_assert_eq!(ring.push(item), fits);
                        if fits {
                            model.push_back(item);
                        }
                    }
                    None => prop_assert_eq!(ring.pop(), model.pop_front()),
                }
                prop_assert_eq!(ring.len(), model.len());
                prop_assert_eq!(ring.get(1), model.get(1).copied());
            }
        }
    }

    #[test]
    fn a_full_guid_map_refuses_and_forgets_nothing() {
        let mut slots = [(Guid(0), 0); 2];
        let mut map = Map::new(&mut slots);
        assert!(map.insert(Guid(1), 10) && map.insert(Guid(2), 20));
        assert!(!map.insert(Guid(3), 30));
        assert!(!map.insert(Guid(0), 0));
        assert!(map.insert(Guid(1), 11));
        assert_eq!(
            [1, 2, 3, 0].map(|guid| map.get(Guid(guid))),
            [Some(11), Some(20), None, None]
        );
    }

    #[test]
    fn the_bits_of_a_set_come_in_order() {
        let mut words = [0; 3];
        for bit in [0, 63, 64, 130, 191, 192] {
            bits::set(&mut words, bit); // the last is outside and lost
        }
        bits::clear(&mut words, 64);
        assert_eq!(bits::each(&words).collect::<Vec<_>>(), [0, 63, 130, 191]);
        assert_eq!(bits::first(&words), Some(0));
        assert!(bits::get(&words, 130) && !bits::get(&words, 64) && !bits::get(&words, 192));
    }
}
