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
    /// By its buffer.
    Recv(SpecialQp, u16),
    /// By its buffer, and the low bits of its order, so that a late completion finds no later send.
    Send(u16, u32),
}

impl WrName {
    pub(super) const fn to_wr_id(self) -> u64 {
        match self {
            Self::Recv(SpecialQp::Smi, index) => index as u64,
            Self::Recv(SpecialQp::Gsi, index) => 1 << 48 | index as u64,
            Self::Send(index, order) => 2 << 48 | (order as u64) << 16 | index as u64,
        }
    }

    pub(super) const fn of(wr_id: u64) -> Option<Self> {
        let (index, order) = (wr_id as u16, (wr_id >> 16) as u32);
        match (wr_id >> 48, order) {
            (0, 0) => Some(Self::Recv(SpecialQp::Smi, index)),
            (1, 0) => Some(Self::Recv(SpecialQp::Gsi, index)),
            (2, _) => Some(Self::Send(index, order)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_number_that_names_something_names_nothing_else(
            kind in 0..4_u64, order in prop_oneof![Just(0), any::<u32>()], index: u16, junk: u8,
        ) {
            let wr_id = u64::from(junk & 1) << 60 | kind << 48 | u64::from(order) << 16 | u64::from(index);
            match WrName::of(wr_id) {
                Some(name) => prop_assert_eq!(name.to_wr_id(), wr_id),
                None => prop_assert!(junk & 1 == 1 || kind == 3 || (kind < 2 && order != 0)),
            }
        }
    }
}
