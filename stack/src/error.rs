//! What can go wrong with a host.

use core::fmt;
use core_ib::PKey;
use core_ib::verbs::VerbsError;
use ib_mad::RegisterError;
use ib_sm::SmError;

/// Why a host does not come up, or goes down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StackError {
    /// The HCA refused, or failed.
    Verbs(VerbsError),
    /// The subnet manager refused its configuration.
    SubnetManager(SmError),
    /// A MAD agent could not be registered.
    Register(RegisterError),
    /// More of something than there is room for.
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many there may be.
        limit: usize,
    },
    /// An interface or the subnet manager names a port that the HCA does not have.
    NoSuchPort {
        /// The port.
        port: u8,
    },
    /// An interface has the P_Key 0 or 0x8000, which is no partition's.
    NoPartition {
        /// The P_Key.
        p_key: PKey,
    },
    /// An interface is to have connected mode, and the host no communication manager.
    NoCommunicationManager {
        /// The interface's port.
        port: u8,
    },
    /// Two interfaces are on one partition of one port.
    SamePartition {
        /// The port.
        port: u8,
        /// The P_Key of the second.
        p_key: PKey,
    },
}

impl fmt::Display for StackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Verbs(error) => error.fmt(f),
            Self::SubnetManager(error) => error.fmt(f),
            Self::Register(error) => error.fmt(f),
            Self::TooMany { what, limit } => write!(f, "at most {limit} {what}"),
            Self::NoSuchPort { port } => write!(f, "the HCA has no port {port}"),
            Self::NoPartition { p_key } => write!(f, "P_Key {p_key} is no partition's"),
            Self::NoCommunicationManager { port } => write!(
                f,
                "the interface on port {port} is to have connected mode: give `cm` in the configuration"
            ),
            Self::SamePartition { port, p_key } => {
                write!(
                    f,
                    "port {port} has an interface with the P_Key {p_key} already"
                )
            }
        }
    }
}

impl core::error::Error for StackError {}

impl From<VerbsError> for StackError {
    fn from(error: VerbsError) -> Self {
        Self::Verbs(error)
    }
}

impl From<SmError> for StackError {
    fn from(error: SmError) -> Self {
        Self::SubnetManager(error)
    }
}

impl From<RegisterError> for StackError {
    fn from(error: RegisterError) -> Self {
        Self::Register(error)
    }
}

impl From<core_ib::platform::PlatformError> for StackError {
    fn from(error: core_ib::platform::PlatformError) -> Self {
        Self::Verbs(error.into())
    }
}
