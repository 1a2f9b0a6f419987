//! Asynchronous events. verbs 10.

use super::{CqHandle, QpHandle, SrqHandle};

/// Something happened that no completion says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// To a CQ: it overran, or its memory could not be written. The device's syndrome.
    Cq(CqHandle, u8),
    /// To a QP.
    Qp(QpHandle, QpEvent),
    /// To an SRQ.
    Srq(SrqHandle, SrqEvent),
    /// To a port (1 or 2).
    Port(u8, PortEvent),
    /// The HCA has failed: release everything, reset it.
    DeviceFatal,
    /// The HCA is gone.
    DeviceGone,
}

/// What happened to a QP. verbs 10.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpEvent {
    /// An error that no completion can carry.
    Fatal,
    /// An invalid request was refused.
    RequestError,
    /// A remote access was refused.
    AccessError,
    /// First packet in RTR.
    CommunicationEstablished,
    /// The send queue has drained.
    SqDrained,
    /// Migrated to the alternate path.
    PathMigrated,
    /// Could not migrate.
    PathMigrationFailed,
    /// It will take no more requests of its SRQ.
    LastWqeReached,
}

/// What happened to an SRQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SrqEvent {
    /// Fewer requests than the limit; the limit is now 0.
    LimitReached,
    /// It failed.
    Error,
}

/// What happened to a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortEvent {
    /// Became Active.
    Active,
    /// Left Active.
    Error,
    /// Another LID or LMC.
    LidChange,
    /// Another P_Key table.
    PkeyChange,
    /// Another GID table or prefix.
    GidChange,
    /// Another subnet manager or SL to it.
    SmChange,
    /// The subnet manager asks to register everything anew.
    ClientReregister,
}
