//! Verbs: what a consumer sees of an HCA.
//!
//! Names and semantics are those of the InfiniBand Architecture Specification, chapters 10 and 11; the behaviour
//! is listed row by row in `docs/reference/verbs.md` ("verbs").
//!
//! * [`Device`] is the control path: object-safe, `&self`, may block unless a method says otherwise.
//! * [`Verbs`] adds the data path: references resolved once ([`QueuePair`], [`CompletionQueue`],
//!   [`SharedReceiveQueue`]), which count as holders of their object.
//! * No verb takes a callback. The driver's interrupt handler sets flags and calls the [`Wake`](crate::platform::Wake)
//!   that it was opened with; consumers pull with [`Device::take_cq_event`] and [`Device::next_async_event`].
//!
//! Objects are named by [`Handle`]s: plain numbers without a lifetime. A stale handle, or one of another HCA, is
//! refused with [`VerbsError::InvalidHandle`].

mod address;
mod cache;
mod client;
mod completion;
mod device;
mod error;
mod event;
mod handle;
mod memory;
mod qp;
mod request;
mod slab;
mod transition;

pub use address::{AhAttr, GlobalRoute, Grh40};
pub use cache::{PortCache, PortTables};
pub use client::{Client, ClientRegistry};
pub use completion::{CqInit, NotifyKind, WcFlags, WcOpcode, WcStatus, WorkCompletion};
pub use device::{
    CompletionQueue, Created, Device, DeviceAttr, DeviceCaps, DeviceModify, Mad256, MadFlags,
    MadOutcome, MadSource, PortAttr, PortModify, QueuePair, SharedReceiveQueue, Verbs,
};
pub use error::{PostCause, PostError, VerbsError};
pub use event::{AsyncEvent, PortEvent, QpEvent, SrqEvent};
pub use handle::{
    AhHandle, CqHandle, FmrHandle, Handle, MrHandle, MwHandle, PdHandle, QpHandle, SrqHandle,
    UserHandle, kind,
};
pub use memory::{Access, FmrInit, Mr, MrInit, MwKind, RawKeys, WholeMemoryKey};
pub use qp::{
    Owner, PathMigration, QpAttr, QpAttrMask, QpCaps, QpInfo, QpInit, QpState, QpType, Signaling,
    SrqAttr, SrqInit, UserBuffer,
};
pub use request::{Imm, RecvWr, RemoteAddr, SendFlags, SendOp, SendWr, Sge};
pub use slab::{Held, Object, Places, Slab, Slot, Vacant};
pub use transition::check_modify;
