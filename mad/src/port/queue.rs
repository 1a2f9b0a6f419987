//! One of the two special QPs of a port: its state as we know it, and which of its receives are posted.

use super::rings::Rings;
use super::slot::WrName;
use crate::addr::SpecialQp;
use core_ib::platform::{Platform, PlatformError, Table};
use core_ib::verbs::{QpHandle, QueuePair, RecvWr};

/// Does the QP work?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Health {
    /// In RTS, as far as we know.
    Well,
    /// In SQE, or worse (`reset`). `asked`: the wish to change that is with the owner.
    Sick { reset: bool, asked: bool },
    /// It could not be brought back.
    Dead,
}

#[derive(Debug)]
pub(super) struct Queue<'v, Q, P: Platform> {
    pub(super) which: SpecialQp,
    pub(super) qp: Q,
    pub(super) handle: QpHandle,
    pub(super) health: Health,
    posted: Table<'v, bool, P>,
    missing: usize,
}

impl<'v, Q: QueuePair, P: Platform> Queue<'v, Q, P> {
    /// With `recvs` receives, none of which is posted. Set-up only; may block.
    pub(super) fn new(
        machine: &'v P,
        which: SpecialQp,
        qp: Q,
        recvs: usize,
    ) -> Result<Self, PlatformError> {
        Ok(Self {
            which,
            handle: qp.handle(),
            qp,
            health: Health::Well,
            posted: Table::new(machine, recvs, |_| false)?,
            missing: recvs,
        })
    }

    /// Posts what is not posted. What the QP does not take now is tried again at the next call.
    pub(super) fn fill(&mut self, rings: &Rings<'_, P>) {
        if self.missing == 0 || self.health != Health::Well {
            return;
        }
        for (index, posted) in self.posted.iter_mut().enumerate() {
            if *posted {
                continue;
            }
            let wr = RecvWr {
                wr_id: WrName::Recv(self.which, index as u16).to_wr_id(),
                sges: &[rings.recv(self.which, index)],
            };
            if self.qp.post_recv(&[wr]).is_err() {
                return;
            }
            *posted = true;
            self.missing = self.missing.saturating_sub(1);
        }
    }

    /// A receive has completed. `false` if it was not posted.
    pub(super) fn take(&mut self, index: usize) -> bool {
        match self.posted.get_mut(index) {
            Some(posted) if *posted => {
                *posted = false;
                self.missing = self.missing.saturating_add(1);
                true
            }
            _ => false,
        }
    }

    /// After a reset nothing is posted.
    pub(super) fn forget_receives(&mut self) {
        self.posted.fill(false);
        self.missing = self.posted.len();
    }

    /// It does not work (any more).
    pub(super) fn sicken(&mut self, reset: bool) {
        self.health = match self.health {
            Health::Well => Health::Sick {
                reset,
                asked: false,
            },
            // Worse than what was asked to be healed: ask again.
            Health::Sick { reset: false, .. } if reset => Health::Sick {
                reset: true,
                asked: false,
            },
            other => other,
        };
    }
}
