//! What can be wrong with bytes.

use core::fmt;

/// Why bytes could not be read or written. Names the header and says what was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WireError {
    /// Fewer bytes than the header takes.
    Truncated {
        /// The header.
        header: &'static str,
        /// Bytes that it takes.
        need: usize,
        /// Bytes that are there.
        have: usize,
    },
    /// A version that is not spoken here.
    Version {
        /// The header.
        header: &'static str,
        /// The version found.
        found: u8,
    },
    /// A field holds a value that it may not hold.
    Field {
        /// The header.
        header: &'static str,
        /// The field, as the reference names it.
        field: &'static str,
        /// The value found.
        found: u64,
    },
    /// The lengths in the packet contradict each other or the bytes at hand.
    Length {
        /// The header whose length it is.
        header: &'static str,
        /// Bytes that the header claims.
        claimed: usize,
        /// Bytes that are there.
        have: usize,
    },
    /// The extended headers at hand are not those that the opcode calls for.
    Headers {
        /// The opcode.
        opcode: u8,
    },
    /// A checksum does not fit.
    Checksum {
        /// `"ICRC"` or `"VCRC"`.
        kind: &'static str,
        /// As found in the packet.
        found: u32,
        /// As computed.
        computed: u32,
    },
    /// The space to write to is too small.
    NoSpace {
        /// What was to be written.
        header: &'static str,
        /// Bytes that it takes.
        need: usize,
        /// Bytes that there are.
        have: usize,
    },
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Truncated { header, need, have } => {
                write!(f, "{header} takes {need} bytes, but only {have} are there")
            }
            Self::Version { header, found } => {
                write!(f, "{header} has version {found}, which is not known")
            }
            Self::Field {
                header,
                field,
                found,
            } => write!(f, "{field} of {header} may not be {found:#x}"),
            Self::Length {
                header,
                claimed,
                have,
            } => write!(f, "{header} claims {claimed} bytes, but {have} are there"),
            Self::Headers { opcode } => write!(
                f,
                "the extended headers given are not those of opcode {opcode:#04x}"
            ),
            Self::Checksum {
                kind,
                found,
                computed,
            } => write!(f, "{kind} is {found:#x}, but the bytes give {computed:#x}"),
            Self::NoSpace { header, need, have } => {
                write!(
                    f,
                    "{header} needs {need} bytes of space, but there are {have}"
                )
            }
        }
    }
}

impl core::error::Error for WireError {}
