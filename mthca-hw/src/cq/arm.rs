//! A resolved CQ, and arming it. verbs 5.4, infinihost 2.8 to 2.11, 4.5.4.

use super::{Cq, CqPlace, FIRED};
use crate::health::Health;
use crate::inner::Inner;
use core::sync::atomic::Ordering;
use core_ib::platform::{DmaLong, Platform};
use core_ib::verbs::{CompletionQueue, CqHandle, Held, NotifyKind, VerbsError, WorkCompletion};
use hca_abi::infinihost::doorbell::{CqCommand, CqDoorbell, MArm, MArming};

/// A resolved CQ.
pub struct CqRef<'a, 'p, P: Platform> {
    pub(super) core: &'a Inner<'p, P>,
    pub(super) place: &'a CqPlace<'p, P>,
    pub(super) held: Held<'a, Cq>,
    handle: CqHandle,
    /// T: the doorbell that arms it for any completion.
    arm: u64,
    /// M: its record of arming.
    record: Option<DmaLong<'a>>,
}

impl<'p, P: Platform> Inner<'p, P> {
    pub(crate) fn cq(&self, handle: CqHandle) -> Result<CqRef<'_, 'p, P>, VerbsError> {
        let held = self.cqs.get(handle)?;
        crate::user::refuse_user("CQ", held.user)?;
        let index = handle.index();
        let place = self.cq_places.get(index as usize);
        Ok(CqRef {
            core: self,
            place: place.ok_or(super::STALE)?,
            record: match &self.bells {
                None => None,
                Some(bells) => bells.word(bells.arm(index)),
            },
            arm: arm_doorbell(CqCommand::ARM, held.number),
            held,
            handle,
        })
    }
}

/// T: the doorbell that arms a CQ.
const fn arm_doorbell(command: CqCommand, cqn: u32) -> u64 {
    CqDoorbell {
        command,
        cqn,
        parameter: CqDoorbell::KNOWN_INDEX,
    }
    .encode()
}

impl<P: Platform> CompletionQueue for CqRef<'_, '_, P> {
    #[inline]
    fn poll(&self, into: &mut [WorkCompletion]) -> Result<usize, VerbsError> {
        Ok(match into {
            [wc] => self.poll_one(wc),
            _ => self.poll_several(into),
        })
    }

    #[inline]
    fn req_notify(&self, kind: NotifyKind) -> Result<(), VerbsError> {
        // Who sees the HCA alive has not taken the firing of its end, which comes behind: it is still to be found.
        let odds = kind as u8 | self.core.cmd.health().odds_of_arming();
        if odds == 0 {
            self.place.armed_any.store(true, Ordering::Relaxed);
            self.core.uar.ring_cq(self.arm);
        } else if odds == Health::RECORDS {
            self.place.armed_any.store(true, Ordering::Relaxed);
            self.arm_by_record(|arming| arming);
        } else {
            self.arm_otherwise();
        }
        Ok(())
    }

    fn handle(&self) -> CqHandle {
        self.handle
    }
}

impl<'p, P: Platform> CqRef<'_, 'p, P> {
    /// For a solicited completion, or at the end of the HCA.
    #[cold]
    #[inline(never)]
    fn arm_otherwise(&self) {
        if !self.core.cmd.health().is_alive() {
            self.arm_by_software();
            return;
        }
        if self.place.armed_any.load(Ordering::Relaxed) {
            // Arming for less does not take back arming for more (verbs 5.4), and the HCA would.
            return;
        }
        if self.record.is_some() {
            self.arm_by_record(|arming| arming.arm(MArm::SOLICITED));
        } else {
            let doorbell = arm_doorbell(CqCommand::ARM_SOLICITED, self.held.number);
            self.core.uar.ring_cq(doorbell);
        }
    }

    /// M: the record says what the doorbell says, and the doorbell that it does. infinihost 2.10, 2.11. Under the lock of
    /// the queue, so that the counter is the right one and two that arm do not mix.
    #[inline(always)]
    fn arm_by_record(&self, kind: impl FnOnce(MArming) -> MArming) {
        self.place.queue.with(|queue| {
            let (counter, arming) = (queue.consumer, kind(self.place.arming()));
            if let Some(record) = self.record {
                record.set(arming.record(counter));
            }
            self.core.machine.dma_wmb();
            self.core.uar.ring_cq(arming.doorbell(counter));
        });
    }

    /// The HCA has ended: the CQ fires for what there is.
    #[cold]
    fn arm_by_software(&self) {
        let fired = self.place.ready.fetch_or(FIRED, Ordering::AcqRel);
        if fired & FIRED == 0 {
            self.core.wake.wake();
        }
    }
}
