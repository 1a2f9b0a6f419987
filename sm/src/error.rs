//! What can be wrong with a subnet manager before it runs.

use core::fmt;
use core_ib::platform::PlatformError;

/// Why a subnet manager could not be set up, or an entry could not be taken. Nothing has changed.
///
/// A table that overflows while the manager runs is no error of a call: the entry is left out, and a
/// [`Report::NoRoom`](crate::Report::NoRoom) names the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SmError {
    /// The store gave no memory.
    Memory {
        /// The table it was for, as the [`Profile`](crate::Profile) names it.
        entry: &'static str,
        /// What the machine said.
        cause: PlatformError,
    },
    /// An entry of the profile is out of range.
    Profile {
        /// Its name.
        entry: &'static str,
        /// Its value.
        found: u32,
        /// The least that makes sense.
        min: u32,
        /// The most that is possible.
        max: u32,
    },
    /// A value of the configuration is out of range.
    Config {
        /// Its name.
        entry: &'static str,
        /// Its value.
        found: u64,
    },
    /// Two partitions of the configuration have one number, or the members of one are not in ascending order.
    Partition {
        /// Number of the partition.
        base: u16,
    },
    /// A table is full.
    NoRoom {
        /// The table, as the profile names it.
        entry: &'static str,
        /// Entries it has.
        limit: u32,
    },
}

impl fmt::Display for SmError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Memory { entry, cause } => write!(f, "no memory for {entry}: {cause}"),
            Self::Profile {
                entry,
                found,
                min,
                max,
            } => write!(f, "{entry} of the profile is {found}; use {min} to {max}"),
            Self::Config { entry, found } => {
                write!(f, "{entry} of the configuration may not be {found:#x}")
            }
            Self::Partition { base } => write!(
                f,
                "partition {base:#06x} is there twice, is no partition number, or its members are not sorted"
            ),
            Self::NoRoom { entry, limit } => {
                write!(
                    f,
                    "all {limit} entries of {entry} are in use; raise it in the profile"
                )
            }
        }
    }
}

impl core::error::Error for SmError {}
