//! What can go wrong with a host.

use core::fmt;
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
}

impl fmt::Display for StackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Verbs(error) => error.fmt(f),
            Self::SubnetManager(error) => error.fmt(f),
            Self::Register(error) => error.fmt(f),
            Self::TooMany { what, limit } => write!(f, "at most {limit} {what}"),
            Self::NoSuchPort { port } => write!(f, "the HCA has no port {port}"),
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
