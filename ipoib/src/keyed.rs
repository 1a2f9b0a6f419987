//! A table of a fixed number of entries found by key: paths by GID, groups by MGID, neighbours by IP address.
//!
//! An entry keeps its place, whose number others may remember. A search first asks a hint, one a hash value, and only
//! if that is wrong looks through the table; so the data path makes one comparison as a rule, and nothing has to be
//! moved when an entry goes.

use crate::room::Room;
use core::net::IpAddr;
use core_ib::Gid;
use core_ib::platform::PlatformError;

/// A key whose bytes can be mixed into a number.
pub(crate) trait Key: Copy + Eq {
    /// Any function of the key alone.
    fn mix(&self) -> u32;
}

/// Folds 128 bits into 32, such that neighbouring numbers part.
const fn fold(bits: u128) -> u32 {
    let half = (bits >> 64) as u64 ^ bits as u64;
    let spread = half.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (spread >> 32) as u32
}

impl Key for Gid {
    fn mix(&self) -> u32 {
        fold(u128::from_be_bytes(self.0))
    }
}

impl Key for IpAddr {
    fn mix(&self) -> u32 {
        match self {
            IpAddr::V4(address) => fold(u128::from(address.to_bits())),
            IpAddr::V6(address) => fold(address.to_bits()),
        }
    }
}

/// One place: an entry or none, and the hint of the hash value that has the place's number.
pub(crate) struct Place<K, V> {
    entry: Option<(K, V)>,
    hint: u16,
}

/// See the module.
pub(crate) struct Keyed<R: Room, K, V> {
    places: R::Of<Place<K, V>>,
}

impl<R: Room, K: Key, V> Keyed<R, K, V> {
    /// An empty table of `capacity` places.
    pub(crate) fn new(room: &R, capacity: u16) -> Result<Self, PlatformError> {
        let places = room.table(usize::from(capacity), |_| Place {
            entry: None,
            hint: 0,
        })?;
        Ok(Self { places })
    }

    /// Places.
    pub(crate) fn capacity(&self) -> usize {
        self.places.len()
    }

    fn bucket(&self, key: &K) -> usize {
        let hash = key.mix() as usize;
        hash.checked_rem(self.places.len()).unwrap_or(0)
    }

    fn holds(&self, at: u16, key: &K) -> bool {
        let entry = self
            .places
            .get(usize::from(at))
            .and_then(|p| p.entry.as_ref());
        entry.is_some_and(|(known, _)| known == key)
    }

    fn set_hint(&mut self, key: &K, at: u16) {
        let bucket = self.bucket(key);
        if let Some(place) = self.places.get_mut(bucket) {
            place.hint = at;
        }
    }

    /// Place of `key`.
    pub(crate) fn find(&mut self, key: &K) -> Option<u16> {
        let hint = self.places.get(self.bucket(key))?.hint;
        if self.holds(hint, key) {
            return Some(hint);
        }
        let at = self.iter().find(|(_, known, _)| *known == key)?.0;
        self.set_hint(key, at);
        Some(at)
    }

    /// The entry at `at`.
    pub(crate) fn get(&self, at: u16) -> Option<&V> {
        let (_, value) = self.places.get(usize::from(at))?.entry.as_ref()?;
        Some(value)
    }

    /// The entry at `at`, to be changed.
    pub(crate) fn get_mut(&mut self, at: u16) -> Option<&mut V> {
        let (_, value) = self.places.get_mut(usize::from(at))?.entry.as_mut()?;
        Some(value)
    }

    /// Its key.
    pub(crate) fn key(&self, at: u16) -> Option<K> {
        let (key, _) = self.places.get(usize::from(at))?.entry.as_ref()?;
        Some(*key)
    }

    /// Puts an entry that is not there yet into a free place.
    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<u16> {
        let free = self.places.iter().position(|place| place.entry.is_none())?;
        let at = u16::try_from(free).ok()?;
        self.places.get_mut(free)?.entry = Some((key, value));
        self.set_hint(&key, at);
        Some(at)
    }

    /// Takes an entry out.
    pub(crate) fn remove(&mut self, at: u16) -> Option<V> {
        let place = self.places.get_mut(usize::from(at))?;
        place.entry.take().map(|(_, value)| value)
    }

    /// All entries.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u16, &K, &V)> {
        (0..).zip(self.places.iter()).filter_map(|(at, place)| {
            let (key, value) = place.entry.as_ref()?;
            Some((at, key, value))
        })
    }

    /// All entries, to be changed.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (u16, K, &mut V)> {
        (0..).zip(self.places.iter_mut()).filter_map(|(at, place)| {
            let (key, value) = place.entry.as_mut()?;
            Some((at, *key, value))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::room::Heap;
    use core_ib::Guid;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::vec::Vec;

    #[derive(Clone, Copy, Debug)]
    enum Op {
        Insert(u64, u32),
        Remove(u64),
        Find(u64),
    }

    fn op() -> impl Strategy<Value = Op> {
        let key = 0..12_u64; // more keys than places, few enough to meet again
        prop_oneof![
            (key.clone(), any::<u32>()).prop_map(|(key, value)| Op::Insert(key, value)),
            key.clone().prop_map(Op::Remove),
            key.prop_map(Op::Find),
        ]
    }

    proptest! {
        #[test]
        fn a_key_finds_its_own_entry_or_none_whatever_came_and_went(
            ops in prop::collection::vec(op(), 0..80), capacity in 0..9_u16,
        ) {
            let mut table = Keyed::<Heap, Gid, u32>::new(&Heap, capacity).unwrap();
            let mut model = BTreeMap::new();
            let gid = |key| Gid::unicast(Gid::DEFAULT_PREFIX, Guid(key));
            for op in ops {
                match op {
                    Op::Insert(key, value) if !model.contains_key(&key) => {
                        let at = table.insert(gid(key), value);
                        prop_assert_eq!(at.is_some(), model.len() < usize::from(capacity));
                        if at.is_some() {
                            model.insert(key, value);
                        }
                    }
                    Op::Insert(key, _) | Op::Find(key) => {
                        let at = table.find(&gid(key));
                        let found = at.and_then(|at| table.get(at)).copied();
                        prop_assert_eq!(found, model.get(&key).copied());
                    }
                    Op::Remove(key) => {
                        let at = table.find(&gid(key));
                        let gone = at.and_then(|at| table.remove(at));
                        prop_assert_eq!(gone, model.remove(&key));
                    }
                }
                let mut all: Vec<_> = table.iter().map(|(_, key, value)| (key.guid().0, *value)).collect();
                all.sort_unstable();
                prop_assert_eq!(all, model.iter().map(|(key, value)| (*key, *value)).collect::<Vec<_>>());
            }
        }
    }
}
