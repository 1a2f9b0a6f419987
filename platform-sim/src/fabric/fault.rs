//! Faults of a wire: packets that get lost, change, come late or come twice.

use super::link::{Arrival, Link};
use crate::machine::SplitMix64;
use core::time::Duration;
use core_ib::Instant;
use std::sync::{Arc, Mutex, PoisonError};

/// How often what goes wrong, in a million packets. Each fault is thrown for by itself, so that one packet may meet
/// several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// The packet is gone.
    pub drop: u32,
    /// One bit of it is flipped.
    pub corrupt: u32,
    /// It comes late, up to [`Faults::delay_max`], and others may overtake it.
    pub delay: u32,
    /// The longest that it comes late.
    pub delay_max: Duration,
    /// It comes twice.
    pub duplicate: u32,
}

/// What a [`Faulty`] did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// Packets gone.
    pub dropped: u64,
    /// Packets with a flipped bit.
    pub corrupted: u64,
    /// Packets late.
    pub delayed: u64,
    /// Packets that came twice.
    pub duplicated: u64,
}

/// Sees and changes a [`Faulty`] that is built into a fabric.
#[derive(Clone, Debug, Default)]
pub struct FaultHandle(Arc<Mutex<(Faults, FaultCounts)>>);

impl FaultHandle {
    /// Faults as given, for a [`Faulty`] yet to be made.
    pub fn new(faults: Faults) -> Self {
        Self(Arc::new(Mutex::new((faults, FaultCounts::default()))))
    }

    /// From the next packet on.
    pub fn set(&self, faults: Faults) {
        self.with(|state| state.0 = faults);
    }

    /// What happened so far.
    pub fn counts(&self) -> FaultCounts {
        self.with(|state| state.1)
    }

    fn with<T>(&self, f: impl FnOnce(&mut (Faults, FaultCounts)) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// `inner` with faults. Its dice are its own, seeded by the run's seed and the link's name, so that a fault on one link
/// moves nothing on another.
#[derive(Debug)]
pub struct Faulty<L> {
    inner: L,
    dice: SplitMix64,
    state: FaultHandle,
}

impl<L: Link> Faulty<L> {
    /// Wraps `inner`, the link called `name` in the run of seed `seed`.
    pub fn new(inner: L, state: FaultHandle, seed: u64, name: &str) -> Self {
        let dice = SplitMix64::named(seed, name);
        Self { inner, dice, state }
    }
}

impl<L: Link> Link for Faulty<L> {
    fn send(&mut self, mut packet: Vec<u8>, now: Instant, end: Instant, out: &mut Vec<Arrival>) {
        let Self { inner, dice, state } = self;
        let faults = state.with(|state| state.0);
        let drop = dice.hits(faults.drop);
        let corrupt = dice.hits(faults.corrupt);
        let delay = dice.hits(faults.delay);
        let duplicate = dice.hits(faults.duplicate);
        state.with(|(_, counts)| {
            counts.dropped += u64::from(drop);
            counts.corrupted += u64::from(corrupt && !drop);
            counts.delayed += u64::from(delay && !drop);
            counts.duplicated += u64::from(duplicate && !drop);
        });
        if drop {
            return;
        }
        if corrupt {
            let bit = dice.below(packet.len() as u64 * 8);
            if let Some(byte) = packet.get_mut((bit / 8) as usize) {
                *byte ^= 1 << (bit % 8);
            }
        }
        let late = if delay {
            Duration::from_nanos(dice.below(faults.delay_max.as_nanos() as u64 + 1))
        } else {
            Duration::ZERO
        };
        let again = duplicate.then(|| packet.clone());
        let first = out.len();
        inner.send(packet, now, end, out);
        if let Some(packet) = again {
            inner.send(packet, now, end, out);
        }
        for arrival in out.iter_mut().skip(first) {
            arrival.at = arrival.at.after(late);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::link::Line;
    use proptest::prelude::*;

    const DELAY: Duration = Duration::from_nanos(10);

    fn send(faults: Faults, packets: u64) -> (Vec<Arrival>, FaultCounts) {
        let handle = FaultHandle::new(faults);
        let wire = Line { delay: DELAY };
        let mut link = Faulty::new(wire, handle.clone(), 1, "host 1 to switch 3");
        let mut out = Vec::new();
        for at in 0..packets {
            link.send(vec![0; 32], Instant(at), Instant(at + 5), &mut out);
        }
        (out, handle.counts())
    }

    #[test]
    fn without_faults_everything_comes_out_as_it_went_in() {
        let (out, counts) = send(Faults::default(), 3);
        let expected = [15, 16, 17].map(|at| Arrival {
            at: Instant(at),
            packet: vec![0; 32],
        });
        assert_eq!(out, expected);
        assert_eq!(counts, FaultCounts::default());
    }

    #[test]
    fn each_fault_does_what_its_name_says() {
        let always = 1_000_000;
        let (out, counts) = send(
            Faults {
                drop: always,
                ..Faults::default()
            },
            5,
        );
        assert_eq!((out.len(), counts.dropped), (0, 5));
        let (out, counts) = send(
            Faults {
                corrupt: always,
                ..Faults::default()
            },
            5,
        );
        let ones = |arrival: &Arrival| arrival.packet.iter().map(|b| b.count_ones()).sum::<u32>();
        assert!(out.iter().all(|arrival| ones(arrival) == 1));
        assert_eq!(counts.corrupted, 5);
        let (out, counts) = send(
            Faults {
                duplicate: always,
                ..Faults::default()
            },
            5,
        );
        assert_eq!((out.len(), counts.duplicated), (10, 5));
        let delay_max = Duration::from_nanos(1000);
        let (out, counts) = send(
            Faults {
                delay: always,
                delay_max,
                ..Faults::default()
            },
            50,
        );
        assert!(out.iter().any(|arrival| arrival.at > Instant(500)));
        assert!(out.iter().all(|arrival| arrival.at <= Instant(1065)));
        assert_eq!(counts.delayed, 50);
    }

    proptest! {
        #[test]
        fn what_comes_out_is_accounted_for(
            drop in 0..1_000_000_u32, duplicate in 0..1_000_000_u32, packets in 0..100_u64,
        ) {
            let faults = Faults {
                drop,
                duplicate,
                ..Faults::default()
            };
            let (out, counts) = send(faults, packets);
            prop_assert_eq!(out.len() as u64, packets - counts.dropped + counts.duplicated);
            prop_assert_eq!(send(faults, packets), (out, counts), "the same seed, the same faults");
        }
    }
}
