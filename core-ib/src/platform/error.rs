//! What a machine could not give.

use core::fmt;

/// Why the machine refused. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlatformError {
    /// No DMA memory of this size and alignment.
    NoDmaMemory {
        /// Bytes asked for.
        len: usize,
    },
    /// No memory for a table.
    NoTableMemory {
        /// Bytes asked for.
        len: usize,
    },
    /// The memory cannot be mapped for the device.
    NotMappable {
        /// Bytes asked for.
        len: usize,
    },
    /// No such BAR, or not that long.
    OutsideBar {
        /// Number of the BAR.
        bar: u8,
        /// First byte asked for.
        at: u64,
        /// Bytes asked for.
        len: usize,
    },
    /// No such interrupt vector, or it is bound already.
    NoVector {
        /// The vector asked for.
        vector: u16,
    },
    /// The machine is out of something else.
    Exhausted {
        /// What.
        what: &'static str,
    },
}

impl fmt::Display for PlatformError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NoDmaMemory { len } => write!(f, "no {len} bytes of DMA memory"),
            Self::NoTableMemory { len } => write!(f, "no {len} bytes of memory for tables"),
            Self::NotMappable { len } => write!(f, "{len} bytes cannot be mapped for the device"),
            Self::OutsideBar { bar, at, len } => {
                write!(f, "BAR {bar} has no {len} bytes at {at:#x}")
            }
            Self::NoVector { vector } => {
                write!(f, "interrupt vector {vector} does not exist or is in use")
            }
            Self::Exhausted { what } => write!(f, "the machine has no more {what}"),
        }
    }
}

impl core::error::Error for PlatformError {}
