//! What happens next: events in the order of their time, and of the dice where several have the same.

use super::context::ContextId;
use super::{HostId, SplitMix64, TimerId};
use core::cmp::Ordering;
use core_ib::Instant;
use std::collections::BinaryHeap;

/// Something due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// A context goes on, if `ticket` is still the one it waits with.
    Context { id: ContextId, ticket: u64 },
    /// A timer of a host's function, if `ticket` is still its own.
    Timer {
        host: HostId,
        id: TimerId,
        ticket: u64,
    },
    /// The oldest of a host's posted stores reaches the device.
    Posted { host: HostId },
}

#[derive(Debug)]
struct Entry {
    at: Instant,
    tie: u32,
    order: u64,
    due: Due,
}

impl Entry {
    const fn key(&self) -> (u64, u32, u64) {
        (self.at.0, self.tie, self.order)
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    /// The heap gives the greatest first; we want the earliest.
    fn cmp(&self, other: &Self) -> Ordering {
        other.key().cmp(&self.key())
    }
}

/// All that is due.
#[derive(Debug)]
pub(super) struct Timeline {
    heap: BinaryHeap<Entry>,
    order: u64,
    /// Breaks ties; without dice, first come first served.
    dice: Option<SplitMix64>,
}

impl Timeline {
    pub(super) const fn new(dice: Option<SplitMix64>) -> Self {
        Self {
            heap: BinaryHeap::new(),
            order: 0,
            dice,
        }
    }

    pub(super) fn push(&mut self, at: Instant, due: Due) {
        self.order += 1;
        let tie = self.dice.as_mut().map_or(0, |dice| dice.next_u64() as u32);
        let order = self.order;
        self.heap.push(Entry {
            at,
            tie,
            order,
            due,
        });
    }

    /// When the first is due; [`Instant::NEVER`] if none is.
    pub(super) fn first(&self) -> Instant {
        self.heap.peek().map_or(Instant::NEVER, |entry| entry.at)
    }

    /// Is a context the first?
    pub(super) fn first_is_context(&self) -> bool {
        let first = self.heap.peek();
        first.is_some_and(|entry| matches!(entry.due, Due::Context { .. }))
    }

    pub(super) fn pop(&mut self) -> Option<(Instant, Due)> {
        self.heap.pop().map(|entry| (entry.at, entry.due))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(seed: Option<u64>) -> Vec<u32> {
        let mut timeline = Timeline::new(seed.map(SplitMix64::new));
        for host in 0..8 {
            let host = HostId(host);
            timeline.push(Instant(5), Due::Posted { host });
        }
        let host = HostId(99);
        timeline.push(Instant(4), Due::Posted { host });
        core::iter::from_fn(|| timeline.pop())
            .map(|(_, due)| match due {
                Due::Posted { host } => host.0,
                _ => 0,
            })
            .collect()
    }

    #[test]
    fn the_earliest_comes_first_and_dice_choose_among_equals() {
        assert_eq!(order(None), [99, 0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(order(Some(1)), order(Some(1)));
        assert_ne!(order(Some(1)), order(Some(2)));
        assert_eq!(order(Some(3)).first(), Some(&99));
    }
}
