//! One connection of an interface: to a peer, or from one.

use super::super::event::FrameId;
use core::time::Duration;
use core_ib::verbs::{AhAttr, QpHandle};
use core_ib::wire::ipoib::LinkAddress;
use core_ib::{Instant, Qpn};
use ib_cm::ConnId;

/// Packets that wait for a connection to be opened.
const PARKED: usize = 4;
/// After a failure, none is opened to that peer for so long.
const REST: Duration = Duration::from_millis(500);

/// Which way packets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// To the peer: we opened it.
    Send,
    /// From the peer: he opened it.
    Receive,
}

/// How far it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// No connection.
    Free,
    /// A QP is wanted.
    Wanted,
    /// It is being made.
    Making,
    /// There is one, and the communication manager is to be told.
    Made,
    /// The communication manager is at it.
    Asked,
    /// Packets pass.
    Up,
    /// To be ended.
    Failed,
    /// Its QP is to be destroyed.
    Ending,
    /// It is being destroyed.
    EndOut,
    /// None is to be opened yet.
    Resting,
}

impl Phase {
    /// Will packets pass, as far as one knows?
    pub(super) const fn is_on_its_way(self) -> bool {
        matches!(self, Self::Wanted | Self::Making | Self::Made | Self::Asked)
    }
}

pub(super) struct Slot<Q> {
    pub(super) role: Role,
    pub(super) phase: Phase,
    pub(super) peer: LinkAddress,
    /// Bytes of the longest message that the peer takes.
    pub(super) peer_mtu: u32,
    pub(super) path: AhAttr,
    pub(super) conn: Option<ConnId>,
    pub(super) qp: Option<Q>,
    pub(super) handle: Option<QpHandle>,
    pub(super) qpn: Qpn,
    pub(super) last_used: Instant,
    pub(super) rest: Instant,
    pub(super) parked: heapless::Vec<(FrameId, usize), PARKED>,
}

impl<Q> Slot<Q> {
    pub(super) fn free() -> Self {
        Self {
            phase: Phase::Free,
            ..Self::new(Role::Send, LinkAddress::default(), Instant(0))
        }
    }

    pub(super) fn new(role: Role, peer: LinkAddress, now: Instant) -> Self {
        Self {
            role,
            phase: Phase::Wanted,
            peer,
            peer_mtu: 0,
            path: AhAttr::default(),
            conn: None,
            qp: None,
            handle: None,
            qpn: Qpn::default(),
            last_used: now,
            rest: Instant(0),
            parked: heapless::Vec::new(),
        }
    }

    /// A packet goes to this peer, to which this is the path now. Says whether it may go at once.
    pub(super) fn touch(&mut self, path: &AhAttr, now: Instant) -> bool {
        self.last_used = now;
        if self.phase == Phase::Resting && now >= self.rest {
            self.phase = Phase::Wanted;
            self.path = *path;
        }
        self.phase == Phase::Up
    }

    /// It is no good any more.
    pub(super) fn fail(&mut self, now: Instant) {
        self.rest = now.after(REST);
        if matches!(self.phase, Phase::Made | Phase::Asked | Phase::Up) {
            self.phase = Phase::Failed;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_failed_rests_before_it_is_wanted_again() {
        let path = AhAttr::default();
        let mut slot = Slot::<()>::new(Role::Send, LinkAddress::default(), Instant(0));
        slot.phase = Phase::Up;
        assert!(slot.touch(&path, Instant(1)));
        slot.fail(Instant(1));
        assert_eq!(slot.phase, Phase::Failed);
        slot.phase = Phase::Resting; // its QP has gone
        let again = Instant(1).after(REST);
        slot.touch(&path, Instant(again.0 - 1));
        assert_eq!(slot.phase, Phase::Resting);
        slot.touch(&path, again);
        assert_eq!(slot.phase, Phase::Wanted);
    }
}
