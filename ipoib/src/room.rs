//! Where the tables of an interface lie.
//!
//! The state machines know their capacities only at run time and allocate nothing: a [`Room`] gives each table once,
//! when the interface is made. That of a machine takes the platform's table memory; a test's is the heap.

use core::ops::DerefMut;
use core_ib::platform::{Platform, PlatformError, Table};

/// Gives memory for tables of a fixed number of entries.
pub trait Room {
    /// A table.
    type Of<T>: DerefMut<Target = [T]>;

    /// A table of `len` entries, each made by `make` from its index. Set-up only; may block.
    fn table<T>(
        &self,
        len: usize,
        make: impl FnMut(usize) -> T,
    ) -> Result<Self::Of<T>, PlatformError>;
}

impl<'p, P: Platform> Room for &'p P {
    type Of<T> = Table<'p, T, P>;

    fn table<T>(
        &self,
        len: usize,
        make: impl FnMut(usize) -> T,
    ) -> Result<Table<'p, T, P>, PlatformError> {
        Table::new(*self, len, make)
    }
}

/// The heap, for tests.
#[cfg(test)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heap;

#[cfg(test)]
impl Room for Heap {
    type Of<T> = std::vec::Vec<T>;

    fn table<T>(
        &self,
        len: usize,
        make: impl FnMut(usize) -> T,
    ) -> Result<std::vec::Vec<T>, PlatformError> {
        Ok((0..len).map(make).collect())
    }
}
