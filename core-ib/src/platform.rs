//! The platform contract.
