//! The two halves of a queue pair as T-mode doorbells fill them: what is posted and not yet begun. infinihost 2.8, 5.4.

use super::wqe::{Position, Wqe};
use hca_abi::infinihost::doorbell::{ReceiveDoorbell, SendDoorbell};
use hca_abi::infinihost::wqe::WqeOpcode;
use std::collections::VecDeque;

/// Doorbells that one queue remembers; a queue of the largest size cannot use more.
const MAX_DOORBELLS: usize = 1 << 16;

/// Send requests: the chain that is being carried out, and the doorbells that wait.
#[derive(Default)]
pub struct SendQueue {
    current: Option<Position>,
    doorbells: VecDeque<Position>,
    /// The model has it on its list of work.
    pub scheduled: bool,
}

impl SendQueue {
    /// Takes a doorbell; false if there are too many.
    pub fn ring(&mut self, doorbell: &SendDoorbell) -> bool {
        if self.doorbells.len() >= MAX_DOORBELLS {
            return false;
        }
        self.doorbells.push_back(Position {
            nda: doorbell.nda,
            nds: doorbell.nds,
            opcode: WqeOpcode(doorbell.opcode),
            fence: doorbell.fence,
        });
        true
    }

    /// The entry that is to be carried out next. Its doorbell counts as begun.
    pub fn begin(&mut self) -> Option<Position> {
        if self.current.is_none() {
            self.current = self.doorbells.pop_front();
        }
        self.current
    }

    /// The entry that [`begin`](Self::begin) gave is done: on to the one that it is chained to, or to the next doorbell.
    pub fn advance(&mut self, done: &Wqe) {
        let next = done.next();
        self.current = (next.nds() != 0 && !next.dbd()).then(|| Position {
            nda: next.nda(),
            nds: next.nds(),
            opcode: next.next_opcode(),
            fence: next.fence(),
        });
    }

    /// The first entry that is not done, without beginning it.
    pub fn first(&self) -> Option<Position> {
        self.current.or_else(|| self.doorbells.front().copied())
    }

    /// Nothing is posted.
    pub fn is_empty(&self) -> bool {
        self.first().is_none()
    }

    /// Forgets everything and says which entry was the first, and how many doorbells were not begun behind it: what a
    /// flush completion stands for. infinihost 5.8.
    pub fn flush(&mut self) -> Option<(Position, u16)> {
        let first = self.begin()?;
        let behind = u16::try_from(self.doorbells.len()).unwrap_or(u16::MAX);
        self.current = None;
        self.doorbells.clear();
        Some((first, behind))
    }
}

/// Some receive requests that one doorbell added.
#[derive(Clone, Copy, Debug)]
struct Batch {
    first: Position,
    left: u16,
}

/// Receive requests of a queue pair or of an SRQ.
#[derive(Default)]
pub struct ReceiveQueue {
    batches: VecDeque<Batch>,
    posted: u32,
}

impl ReceiveQueue {
    /// Takes a doorbell; false if there are too many.
    pub fn ring(&mut self, doorbell: &ReceiveDoorbell, nds: u8) -> bool {
        if self.batches.len() >= MAX_DOORBELLS {
            return false;
        }
        self.batches.push_back(Batch {
            first: Position::receive(doorbell.nda, nds),
            left: doorbell.count,
        });
        self.posted = self.posted.saturating_add(u32::from(doorbell.count));
        true
    }

    /// The request that is to be filled next.
    pub fn first(&self) -> Option<Position> {
        self.batches.front().map(|batch| batch.first)
    }

    /// That request, fetched, is taken: on to the one that it is linked to. With `nds` all have the same size.
    pub fn advance(&mut self, taken: &Wqe, nds: Option<u8>) {
        let Some(batch) = self.batches.front_mut() else {
            return;
        };
        self.posted = self.posted.saturating_sub(1);
        batch.left = batch.left.saturating_sub(1);
        if batch.left == 0 {
            self.batches.pop_front();
        } else {
            let next = taken.next();
            batch.first = Position::receive(next.nda(), nds.unwrap_or(next.nds()));
        }
    }

    /// Requests that are posted.
    pub fn posted(&self) -> u32 {
        self.posted
    }

    /// Forgets everything and says which request was the first, and how many were behind it.
    pub fn flush(&mut self) -> Option<(Position, u16)> {
        let first = self.first()?;
        let behind = self.forget().saturating_sub(1);
        Some((first, u16::try_from(behind).unwrap_or(u16::MAX)))
    }

    /// Forgets everything; says how many there were.
    pub fn forget(&mut self) -> u32 {
        self.batches.clear();
        core::mem::take(&mut self.posted)
    }
}
