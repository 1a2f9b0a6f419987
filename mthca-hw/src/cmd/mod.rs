//! Firmware commands: what a command is, how it ends, and the one way to the firmware. infinihost 3.
//!
//! [`Command`] ties number, mailboxes and modifiers together; [`table`] lists the commands of infinihost 3.5 that this
//! driver uses; [`channel`] carries them, polled at first and by events later.

mod channel;
pub mod table;

pub use channel::Channel;

use core::fmt;
use core_ib::verbs::VerbsError;
use hca_abi::infinihost::cmd::{CmdStatus, Opcode, TimeoutClass};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// One command of the table in infinihost 3.5. `()` stands for "no mailbox".
pub trait Command {
    /// As the reference writes it; appears in errors.
    const NAME: &'static str;
    /// Its number.
    const OPCODE: Opcode;
    /// Its nominal limit: how often a poller looks. Firmware may be starved, so the limit that counts is the profile's.
    const CLASS: TimeoutClass;
    /// Layout of the input mailbox.
    type Input: IntoBytes + Immutable;
    /// Layout of the output mailbox.
    type Output: FromBytes + IntoBytes;

    /// What goes into the input mailbox.
    fn input(&self) -> &Self::Input;
    /// The input parameter of a command without an input mailbox.
    fn immediate(&self) -> u64 {
        0
    }
    /// Mostly the number of the object concerned.
    fn input_modifier(&self) -> u32 {
        0
    }
    /// Four bits.
    fn opcode_modifier(&self) -> u8 {
        0
    }
}

/// A command after whose success the HCA does not touch the memory of the object that it names.
pub trait TakesBack: Command {}

/// Why a command did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// The HCA refused; nothing has changed there.
    Refused(CmdStatus),
    /// No answer within the limit: the HCA is dead from here on.
    TimedOut,
    /// The HCA was dead before; no register was touched.
    Dead,
    /// The HCA is not on the bus any more.
    Gone,
    /// A mailbox smaller than its layout: a defect of the driver.
    Mailbox,
}

/// A command that did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmdError {
    /// Its name in the reference.
    pub command: &'static str,
    /// Its number.
    pub opcode: u16,
    /// Why.
    pub cause: Cause,
    /// The immediate result, which SYS_EN gives with an error too.
    pub immediate: u64,
}

impl CmdError {
    const fn of<C: Command>(cause: Cause, immediate: u64) -> Self {
        Self {
            command: C::NAME,
            opcode: C::OPCODE.0,
            cause,
            immediate,
        }
    }

    /// The HCA's own status, if it refused.
    pub const fn status(&self) -> Option<CmdStatus> {
        match self.cause {
            Cause::Refused(status) => Some(status),
            _ => None,
        }
    }
}

impl fmt::Display for CmdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.command;
        match self.cause {
            Cause::Refused(status) => write!(f, "{name}: refused, {status:?}"),
            Cause::TimedOut => write!(f, "{name}: no answer; the HCA must be reset"),
            Cause::Dead => write!(f, "{name}: not posted, the HCA has failed"),
            Cause::Gone => write!(f, "{name}: the HCA is gone"),
            Cause::Mailbox => write!(f, "{name}: does not fit a mailbox"),
        }
    }
}

impl core::error::Error for CmdError {}

impl From<CmdError> for VerbsError {
    fn from(error: CmdError) -> Self {
        match (error.opcode, error.cause) {
            (opcode, Cause::Refused(CmdStatus(status))) => Self::CommandFailed { opcode, status },
            (_, Cause::Gone) => Self::DeviceGone,
            (_, _) => Self::DeviceFailed,
        }
    }
}
