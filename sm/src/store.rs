//! Where the manager's tables live: in memory that its owner gives at set-up.

use crate::SmError;
use core::ops::DerefMut;
use core_ib::platform::{Platform, Table};

/// Gives memory for tables. Every platform is a store by reference; a test may use vectors.
pub trait Store {
    /// A fixed number of `T`s.
    type Table<T>: DerefMut<Target = [T]>;

    /// `len` entries, each made by `make` from its index. Set-up only; may block. `entry` is what the profile calls the
    /// table, for the error.
    fn table<T>(
        &self,
        entry: &'static str,
        len: usize,
        make: impl FnMut(usize) -> T,
    ) -> Result<Self::Table<T>, SmError>;
}

impl<'p, P: Platform> Store for &'p P {
    type Table<T> = Table<'p, T, P>;

    fn table<T>(
        &self,
        entry: &'static str,
        len: usize,
        make: impl FnMut(usize) -> T,
    ) -> Result<Self::Table<T>, SmError> {
        let memory = |cause| SmError::Memory { entry, cause };
        Table::new(*self, len, make).map_err(memory)
    }
}
