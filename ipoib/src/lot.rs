//! The parking lot: frames that wait for something to be resolved, in the order in which they came.
//!
//! It holds names of frames and not frames, and so few of them that a look through all is cheaper than a list for
//! each destination.

use crate::link::FrameId;
use crate::room::Room;
use core_ib::platform::PlatformError;

/// At most a fixed number of frames, each with a `D` that says what it waits for.
pub(crate) struct Lot<R: Room, D> {
    /// The first `len` are occupied, oldest first.
    places: R::Of<Option<(D, FrameId)>>,
    len: usize,
}

impl<R: Room, D: Copy> Lot<R, D> {
    /// An empty lot.
    pub(crate) fn new(room: &R, capacity: u16) -> Result<Self, PlatformError> {
        let places = room.table(usize::from(capacity), |_| None)?;
        Ok(Self { places, len: 0 })
    }

    /// Nobody waits?
    pub(crate) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many of those for which `of` holds wait.
    pub(crate) fn count(&self, of: impl Fn(D) -> bool) -> usize {
        let waiting = self.places.iter().take(self.len).flatten();
        waiting.filter(|(to, _)| of(*to)).count()
    }

    /// Puts a frame behind all others; `false` if the lot is full.
    pub(crate) fn push(&mut self, to: D, frame: FrameId) -> bool {
        let Some(place) = self.places.get_mut(self.len) else {
            return false;
        };
        *place = Some((to, frame));
        self.len += 1;
        true
    }

    /// Takes out the first frame of which `pick` makes something.
    pub(crate) fn take<U>(&mut self, mut pick: impl FnMut(D) -> Option<U>) -> Option<(U, FrameId)> {
        let mut waiting = self.places.iter().take(self.len).enumerate();
        let (at, picked, frame) = waiting.find_map(|(at, place)| {
            let (to, frame) = (*place)?;
            Some((at, pick(to)?, frame))
        })?;
        // Order is kept, one by one: `rotate_left` has a panic in it.
        let mut rest = self.places.iter_mut().take(self.len).skip(at);
        if let Some(mut gap) = rest.next() {
            for next in rest {
                *gap = next.take();
                gap = next;
            }
            *gap = None;
            self.len -= 1;
        }
        Some((picked, frame))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::room::Heap;
    use proptest::prelude::*;
    use std::vec::Vec;

    proptest! {
        #[test]
        fn frames_of_one_destination_leave_in_order_and_none_is_lost(
            steps in prop::collection::vec(prop_oneof![(0..4_u8).prop_map(Ok), (0..4_u8).prop_map(Err)], 0..60),
        ) {
            let mut lot = Lot::<Heap, u8>::new(&Heap, 7).unwrap();
            let mut model: Vec<(u8, FrameId)> = Vec::new();
            for (frame, step) in (0..).map(FrameId).zip(steps) {
                match step {
                    Ok(to) => {
                        let parked = lot.push(to, frame);
                        prop_assert_eq!(parked, model.len() < 7);
                        if parked {
                            model.push((to, frame));
                        }
                    }
                    Err(to) => {
                        let taken = lot.take(|waits| (waits == to).then_some(waits));
                        let at = model.iter().position(|(waits, _)| *waits == to);
                        prop_assert_eq!(taken, at.map(|at| model.remove(at)));
                    }
                }
                for to in 0..4 {
                    let count = model.iter().filter(|(waits, _)| *waits == to).count();
                    prop_assert_eq!(lot.count(|waits| waits == to), count);
                }
                prop_assert_eq!(lot.is_empty(), model.is_empty());
            }
        }
    }
}
