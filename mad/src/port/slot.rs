//! Sends of a port that are not over yet, and the names of its work requests.

use crate::addr::{MadAddr, SpecialQp};
use core_ib::verbs::{AhHandle, WcStatus};

/// Where a send stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotState {
    Free,
    /// To be posted once the QP works again.
    Waiting,
    Posted,
    /// To be reported.
    Failed(WcStatus),
}

/// One send, beside its buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub(super) state: SlotState,
    pub(super) to: MadAddr,
    pub(super) tid: u64,
    pub(super) ah: Option<AhHandle>,
    /// In which order the sends were asked for.
    pub(super) order: u64,
    /// How often the QP failed before its turn came.
    pub(super) flushed: u8,
}

impl Slot {
    pub(super) const FREE: Self = Self {
        state: SlotState::Free,
        to: MadAddr::DIRECTED,
        tid: 0,
        ah: None,
        order: 0,
        flushed: 0,
    };

    /// A send that is flushed so often is not tried again.
    pub(super) const MAX_FLUSHES: u8 = 3;
}

/// What a work request is, as its `wr_id` says. It comes back from the HCA, so it is looked up and not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WrName {
    Recv(SpecialQp, usize),
    Send(usize),
}

impl WrName {
    pub(super) const fn to_wr_id(self) -> u64 {
        match self {
            Self::Recv(SpecialQp::Smi, index) => index as u64,
            Self::Recv(SpecialQp::Gsi, index) => 1 << 32 | index as u64,
            Self::Send(index) => 2 << 32 | index as u64,
        }
    }

    pub(super) const fn of(wr_id: u64) -> Option<Self> {
        let index = wr_id as u32 as usize;
        match wr_id >> 32 {
            0 => Some(Self::Recv(SpecialQp::Smi, index)),
            1 => Some(Self::Recv(SpecialQp::Gsi, index)),
            2 => Some(Self::Send(index)),
            _ => None,
        }
    }
}
