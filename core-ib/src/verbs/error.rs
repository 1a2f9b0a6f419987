//! Immediate errors: those that a call returns. verbs 0.2.

use crate::platform::{OutOfBounds, PlatformError};
use core::fmt;

/// Why a control call failed. Nothing that a query can see has changed, unless the call says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum VerbsError {
    /// The object is unknown, destroyed, or of another HCA.
    InvalidHandle {
        /// Kind of the object.
        object: &'static str,
    },
    /// A value out of range, or a bad combination.
    InvalidAttr {
        /// The field.
        field: &'static str,
        /// What was found.
        found: u64,
        /// What would have been allowed: the largest value, as a rule.
        allowed: u64,
    },
    /// An attribute is missing that the transition needs, or given where it may not be.
    InvalidMask {
        /// Required and absent; bits of [`QpAttrMask`](super::QpAttrMask).
        missing: u32,
        /// Present and forbidden.
        forbidden: u32,
    },
    /// The object's state does not allow the call or the transition.
    InvalidState {
        /// Kind of the object.
        object: &'static str,
    },
    /// Port 0, or above the port count.
    InvalidPort {
        /// What was asked for.
        port: u8,
        /// Ports of this HCA.
        count: u8,
    },
    /// The HCA or the host is out of something.
    NoResources {
        /// The entry of the profile to raise.
        entry: &'static str,
        /// Its present value.
        limit: u32,
    },
    /// Other objects still depend on this one.
    Busy {
        /// Kind of the object.
        object: &'static str,
        /// How many hold it.
        holders: u32,
    },
    /// The HCA, or this driver, does not have the feature.
    Unsupported {
        /// The feature.
        feature: &'static str,
    },
    /// A privileged operation by an unprivileged consumer.
    NotPermitted {
        /// The operation.
        operation: &'static str,
    },
    /// A table search without a match.
    NotFound {
        /// What was looked for.
        what: &'static str,
    },
    /// Catastrophic state; refused without reaching the hardware.
    DeviceFailed,
    /// Removed, or being removed.
    DeviceGone,
    /// The device refused a command.
    CommandFailed {
        /// The command's number, as the device knows it.
        opcode: u16,
        /// The device's own status.
        status: u8,
    },
    /// The machine refused.
    Platform(PlatformError),
}

impl fmt::Display for VerbsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::InvalidHandle { object } => {
                write!(f, "this {object} does not exist (any more) on this HCA")
            }
            Self::InvalidAttr {
                field,
                found,
                allowed,
            } => write!(f, "{field} may not be {found:#x} (limit {allowed:#x})"),
            Self::InvalidMask { missing, forbidden } => write!(
                f,
                "attribute mask: {missing:#x} is missing, {forbidden:#x} may not be given"
            ),
            Self::InvalidState { object } => {
                write!(f, "the state of this {object} does not allow that")
            }
            Self::InvalidPort { port, count } => {
                write!(f, "port {port} does not exist, the HCA has {count}")
            }
            Self::NoResources { entry, limit } => {
                write!(f, "all {limit} are in use: raise `{entry}` in the profile")
            }
            Self::Busy { object, holders } => {
                write!(f, "this {object} is still in use ({holders} holders)")
            }
            Self::Unsupported { feature } => write!(f, "{feature} is not supported"),
            Self::NotPermitted { operation } => write!(f, "{operation} is not permitted"),
            Self::NotFound { what } => write!(f, "no such {what}"),
            Self::DeviceFailed => f.write_str("the HCA has failed: reset it"),
            Self::DeviceGone => f.write_str("the HCA is gone"),
            Self::CommandFailed { opcode, status } => {
                write!(
                    f,
                    "command {opcode:#05x} was refused with status {status:#04x}"
                )
            }
            Self::Platform(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for VerbsError {}

impl From<PlatformError> for VerbsError {
    fn from(error: PlatformError) -> Self {
        Self::Platform(error)
    }
}

impl From<OutOfBounds> for VerbsError {
    fn from(error: OutOfBounds) -> Self {
        Self::InvalidAttr {
            field: "offset in DMA memory",
            found: error.offset as u64,
            allowed: error.size as u64,
        }
    }
}

/// Why posting stopped. All requests before `index` are posted and will execute; it and all after are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PostError {
    /// The request that failed, counted from 0.
    pub index: usize,
    /// Why.
    pub cause: PostCause,
}

/// Why one work request was refused, in the order in which it is checked. verbs 4.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PostCause {
    /// The HCA has failed or is gone.
    DeviceFailed,
    /// The state of the QP does not allow posting, or it receives through an SRQ.
    InvalidState,
    /// No free entry.
    QueueFull,
    /// More scatter/gather entries than the queue takes.
    TooManySge,
    /// Not legal for this service.
    InvalidOpcode,
    /// More inline data than the queue takes, or inline on an opcode that cannot carry it.
    InlineTooLong,
    /// Atomic misaligned or too short, P_Key index outside the table, message too long.
    InvalidAttr,
    /// Address handle unknown.
    InvalidHandle,
    /// A queue of less memory than promised: a defect of the driver.
    OutOfBounds,
}

impl From<OutOfBounds> for PostCause {
    fn from(_: OutOfBounds) -> Self {
        Self::OutOfBounds
    }
}

impl fmt::Display for PostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = match self.cause {
            PostCause::DeviceFailed => "the HCA has failed",
            PostCause::InvalidState => "the state of the QP does not allow it",
            PostCause::QueueFull => "the queue is full: poll completions",
            PostCause::TooManySge => "too many scatter/gather entries",
            PostCause::InvalidOpcode => "the opcode is not legal for this service",
            PostCause::InlineTooLong => "too much inline data",
            PostCause::InvalidAttr => "a value is out of range",
            PostCause::InvalidHandle => "the address handle does not exist",
            PostCause::OutOfBounds => "the queue's memory is too small",
        };
        write!(f, "work request {} was not posted: {why}", self.index)
    }
}

impl core::error::Error for PostError {}
