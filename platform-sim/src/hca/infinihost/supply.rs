//! The receive requests of a queue pair or of an SRQ: what is posted and not yet taken. infinihost 2.8, 2.10, 5.4.
//!
//! In T-mode doorbells add them. In M-mode software counts them in a record, which is looked at when one is needed; those
//! of a queue pair stand in a ring, those of an SRQ in whatever order software linked them.

use super::chip::Chip;
use super::queue::{Flushed, Ring};
use super::record::RecordId;
use super::wqe::{Position, Wqe};
use crate::machine::Bus;
use hca_abi::infinihost::doorbell::ReceiveDoorbell;
use std::collections::VecDeque;

/// Doorbells that one queue remembers; a queue of the largest size cannot use more.
const MAX_DOORBELLS: usize = 1 << 16;

/// Requests that one doorbell added.
#[derive(Clone, Copy, Debug)]
struct Batch {
    first: Position,
    left: u16,
}

/// Where the next request of an M-mode queue is.
#[derive(Clone, Copy, Debug)]
enum Next {
    /// In its place.
    Ring(Ring),
    /// Where the last one's link said; each has as much room.
    Link(Position),
}

/// How requests become known.
enum Source {
    /// T: by doorbell.
    Doorbells {
        batches: VecDeque<Batch>,
        posted: u32,
    },
    /// M: by a record.
    Record {
        id: RecordId,
        next: Next,
        /// Taken since RESET.
        taken: u16,
    },
}

/// Receive requests.
pub struct ReceiveQueue {
    source: Source,
}

impl ReceiveQueue {
    /// T: fed by doorbells.
    pub fn by_doorbell() -> Self {
        Self {
            source: Source::Doorbells {
                batches: VecDeque::new(),
                posted: 0,
            },
        }
    }

    /// M: of a queue pair.
    pub fn in_ring(id: RecordId, ring: Ring) -> Self {
        Self {
            source: Source::Record {
                id,
                next: Next::Ring(ring),
                taken: 0,
            },
        }
    }

    /// M: of an SRQ, linked from `first` on.
    pub fn linked(id: RecordId, first: Position) -> Self {
        Self {
            source: Source::Record {
                id,
                next: Next::Link(first),
                taken: 0,
            },
        }
    }

    /// T: takes a doorbell; false if there are too many.
    pub fn ring(&mut self, doorbell: &ReceiveDoorbell, nds: u8) -> bool {
        let Source::Doorbells { batches, posted } = &mut self.source else {
            return false;
        };
        if batches.len() >= MAX_DOORBELLS {
            return false;
        }
        batches.push_back(Batch {
            first: Position::receive(doorbell.nda, nds),
            left: doorbell.count,
        });
        *posted = posted.saturating_add(u32::from(doorbell.count));
        true
    }

    /// Requests that are posted.
    pub fn posted(&self, chip: &Chip, bus: &mut dyn Bus) -> u32 {
        match &self.source {
            Source::Doorbells { posted, .. } => *posted,
            Source::Record { id, next, taken } => {
                let counter = chip.record(bus, *id).counter() as u16;
                let posted = u32::from(counter.wrapping_sub(*taken));
                match next {
                    // More than there are places is nothing that software can mean.
                    Next::Ring(ring) => posted.min(ring.size()),
                    Next::Link(_) => posted,
                }
            }
        }
    }

    /// M: requests taken since RESET, modulo 65536.
    pub fn taken(&self) -> u16 {
        match self.source {
            Source::Doorbells { .. } => 0,
            Source::Record { taken, .. } => taken,
        }
    }

    /// Where the request is, or will be, that is to be filled next; none if T-mode was told of none.
    pub fn next(&self) -> Option<Position> {
        match &self.source {
            Source::Doorbells { batches, .. } => batches.front().map(|batch| batch.first),
            Source::Record { next, taken, .. } => Some(match next {
                Next::Ring(ring) => Position::receive(ring.place(*taken), ring.units()),
                Next::Link(at) => *at,
            }),
        }
    }

    /// The request that is to be filled next.
    pub fn first(&self, chip: &Chip, bus: &mut dyn Bus) -> Option<Position> {
        self.next().filter(|_| self.posted(chip, bus) != 0)
    }

    /// That request, fetched, is taken: on to the one behind it. With `nds` all have the same size.
    pub fn advance(&mut self, fetched: &Wqe, nds: Option<u8>) {
        let link = fetched.next();
        match &mut self.source {
            Source::Doorbells { batches, posted } => {
                let Some(batch) = batches.front_mut() else {
                    return;
                };
                *posted = posted.saturating_sub(1);
                batch.left = batch.left.saturating_sub(1);
                if batch.left == 0 {
                    batches.pop_front();
                } else {
                    batch.first = Position::receive(link.nda(), nds.unwrap_or(link.nds()));
                }
            }
            Source::Record { next, taken, .. } => {
                *taken = taken.wrapping_add(1);
                if let Next::Link(at) = next {
                    at.nda = link.nda();
                }
            }
        }
    }

    /// Forgets everything and says what that was: in T-mode the first request, and how many were behind it, which
    /// stands for all; in M-mode each request.
    pub fn flush(&mut self, chip: &Chip, bus: &mut dyn Bus) -> Vec<Flushed> {
        let (first, posted) = (self.first(chip, bus), self.posted(chip, bus));
        match &mut self.source {
            Source::Doorbells { batches, posted } => {
                batches.clear();
                let behind = core::mem::take(posted).saturating_sub(1);
                let behind = u16::try_from(behind).unwrap_or(u16::MAX);
                first.map(|at| Flushed { at, behind }).into_iter().collect()
            }
            Source::Record { next, taken, .. } => {
                let Next::Ring(ring) = *next else {
                    return Vec::new();
                };
                let start = *taken;
                *taken = start.wrapping_add(posted as u16);
                let places = (0..posted).map(|ahead| start.wrapping_add(ahead as u16));
                let at = places.map(|place| Position::receive(ring.place(place), ring.units()));
                at.map(|at| Flushed { at, behind: 0 }).collect()
            }
        }
    }

    /// T: forgets everything, since the completion of a failed request stands for it; says how many requests that is.
    /// M: nothing, each request has a completion of its own.
    pub fn forget(&mut self) -> u16 {
        match &mut self.source {
            Source::Doorbells { batches, posted } => {
                batches.clear();
                u16::try_from(core::mem::take(posted)).unwrap_or(u16::MAX)
            }
            Source::Record { .. } => 0,
        }
    }
}
