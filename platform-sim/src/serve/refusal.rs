//! Why a message of a client is not obeyed, and the error number that it is answered with.

use super::Command;
use core::fmt;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// Nobody knows this command, or it is one that only a server sends.
    Command(Command),
    /// The first message must introduce the client, and no other may.
    Order(Command),
    /// A major version that is not spoken here.
    Version(u16),
    /// The message is too short or too long for what it is.
    Length {
        /// What it asks for.
        command: Command,
        /// Bytes that it has.
        found: usize,
    },
    /// Flags that mean nothing here.
    Flags {
        /// Of which command.
        command: Command,
        /// As they came.
        flags: u32,
    },
    /// There is no such region, kind of interrupt, or interrupt.
    Index {
        /// Of which command.
        command: Command,
        /// As it came.
        index: u32,
    },
    /// A load or store that leaves its region, or is not 1, 2, 4 or 8 aligned bytes of a BAR.
    Access {
        /// Which region.
        region: u32,
        /// Where.
        offset: u64,
        /// How many bytes.
        count: u32,
    },
    /// Too few or too many files came with the message.
    Files {
        /// Of which command.
        command: Command,
        /// How many came.
        found: usize,
    },
    /// Memory that is not whole pages, wraps around, or is not in the file that came with it.
    Memory {
        /// Where the client wanted it.
        address: u64,
        /// How many bytes.
        len: u64,
    },
    /// Something is mapped there already.
    Mapped {
        /// Where the client wanted it.
        address: u64,
    },
    /// What is to be unmapped is no range, or cuts a region.
    NotMapped {
        /// Where it begins.
        address: u64,
    },
    /// More regions than a client may map.
    TooManyRegions,
    /// The operating system would not map the file.
    Map {
        /// Its error number.
        errno: i32,
    },
    /// The device has been taken out.
    Gone,
}

impl Refusal {
    /// The error number of the reply.
    pub fn errno(self) -> u32 {
        let errno = match self {
            Self::Command(_) => rustix::io::Errno::NOSYS,
            Self::Version(_) => rustix::io::Errno::PROTO,
            Self::Mapped { .. } => rustix::io::Errno::EXIST,
            Self::NotMapped { .. } => rustix::io::Errno::NOENT,
            Self::TooManyRegions => rustix::io::Errno::NOSPC,
            Self::Map { errno } => return errno.unsigned_abs(),
            Self::Gone => rustix::io::Errno::NODEV,
            _ => rustix::io::Errno::INVAL,
        };
        errno.raw_os_error().unsigned_abs()
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Command(command) => write!(f, "command {} is not known", command.0),
            Self::Order(command) => write!(f, "command {} came out of turn", command.0),
            Self::Version(major) => write!(f, "version {major} is not spoken, only 0"),
            Self::Length { command, found } => {
                write!(
                    f,
                    "{found} bytes are not a message of command {}",
                    command.0
                )
            }
            Self::Flags { command, flags } => {
                write!(f, "flags {flags:#x} mean nothing in command {}", command.0)
            }
            Self::Index { command, index } => {
                write!(
                    f,
                    "command {} names number {index}, which is not there",
                    command.0
                )
            }
            Self::Access {
                region,
                offset,
                count,
            } => {
                write!(
                    f,
                    "{count} bytes at {offset:#x} are no access to region {region}"
                )
            }
            Self::Files { command, found } => {
                write!(f, "{found} files came with command {}", command.0)
            }
            Self::Memory { address, len } => {
                write!(
                    f,
                    "{len:#x} bytes at {address:#x} are no memory that can be mapped"
                )
            }
            Self::Mapped { address } => write!(f, "memory at {address:#x} is mapped already"),
            Self::NotMapped { address } => {
                write!(
                    f,
                    "what is to be unmapped at {address:#x} is not whole regions"
                )
            }
            Self::TooManyRegions => write!(f, "more regions of memory than a client may map"),
            Self::Map { errno } => {
                let error = std::io::Error::from_raw_os_error(errno);
                write!(f, "the file could not be mapped: {error}")
            }
            Self::Gone => write!(f, "the device has been taken out"),
        }
    }
}

impl core::error::Error for Refusal {}
