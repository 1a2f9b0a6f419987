//! A queue of a fixed length in memory for tables: what would be too large for the stack that it is made on.

use super::{Platform, Table};

/// At most so many `T`s as it was made for, first in, first out. Its owner's lock guards it.
pub struct Fifo<'p, T, P: Platform> {
    places: Table<'p, Option<T>, P>,
    first: usize,
    len: usize,
}

impl<'p, T, P: Platform> Fifo<'p, T, P> {
    /// An empty queue with `limit` places. Set-up only; may block.
    pub fn new(machine: &'p P, limit: usize) -> super::Result<Self> {
        Ok(Self {
            places: Table::new(machine, limit, |_| None)?,
            first: 0,
            len: 0,
        })
    }

    /// How many wait.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Does none wait?
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Are all places taken?
    pub fn is_full(&self) -> bool {
        self.len >= self.places.len()
    }

    /// Puts `value` behind all others; gives it back if there is no place.
    pub fn push_back(&mut self, value: T) -> Result<(), T> {
        let limit = self.places.len();
        let at = self.first.wrapping_add(self.len);
        let at = if at < limit {
            at
        } else {
            at.wrapping_sub(limit)
        };
        match self.places.get_mut(at) {
            Some(place @ None) => {
                *place = Some(value);
                self.len = self.len.wrapping_add(1);
                Ok(())
            }
            _ => Err(value),
        }
    }

    /// Takes the one that waits longest.
    pub fn pop_front(&mut self) -> Option<T> {
        let value = self.places.get_mut(self.first)?.take()?;
        self.len = self.len.wrapping_sub(1);
        self.first = self.first.wrapping_add(1);
        if self.first >= self.places.len() {
            self.first = 0;
        }
        Some(value)
    }
}
