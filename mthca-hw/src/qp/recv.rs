//! The receive queue. verbs 4, infinihost 5.4.
//!
//! The ring is linked once, when it begins: each WQE names the next. Posting writes the entries and says in the WQE
//! before how long they are; every link waits for a doorbell, and a doorbell tells of 256 at most.

use super::place::{Half, Shape};
use super::send::{SEGMENT, put_sges};
use crate::inner::Inner;
use core_ib::platform::{DmaBuf, OutOfBounds, Platform};
use core_ib::verbs::{PostCause, PostError, RecvWr};
use hca_abi::infinihost::doorbell::ReceiveDoorbell;
use hca_abi::infinihost::wqe::next;

/// A receive queue. Under the lock of its place.
pub(crate) struct RecvQueue<'p, P: Platform> {
    /// None of a QP that receives through an SRQ, or does not receive.
    pub(super) memory: Option<DmaBuf<'p, P>>,
    pub(super) shape: Shape,
    pub(super) posted: u32,
    /// The state allows posting.
    pub(super) open: bool,
    /// Receives come from an SRQ.
    pub(super) shared: bool,
    /// Number in the HCA.
    pub(super) number: u32,
}

impl<P: Platform> Default for RecvQueue<'_, P> {
    fn default() -> Self {
        Self {
            memory: None,
            shape: Shape::default(),
            posted: 0,
            open: false,
            shared: false,
            number: 0,
        }
    }
}

impl<'p, P: Platform> RecvQueue<'p, P> {
    /// Links the ring. Bit 0 of a link says that it is one. infinihost 5.4.
    pub(super) fn link_all(&self) -> Result<(), OutOfBounds> {
        let Some(memory) = &self.memory else {
            return Ok(());
        };
        for counter in 0..=self.shape.mask {
            let at = self.shape.offset(counter) as usize;
            let following = self.shape.offset(counter.wrapping_add(1));
            let nda = self.shape.base.wrapping_add(following) | 1;
            memory.write_be32(at + next::NDA, nda)?;
            memory.write_be32(at + next::NDS, next::DBD)?;
        }
        Ok(())
    }

    /// What was posted is forgotten: the QP was reset.
    pub(super) fn forget(&mut self) {
        self.posted = 0;
        self.open = false;
    }

    /// Posts `wrs` in order; the error names the first that was not. Thread or soft interrupt; never blocks, allocates
    /// or panics. Caller holds this queue's lock.
    pub(super) fn post(
        &mut self,
        core: &Inner<'p, P>,
        half: &Half,
        wrs: &[RecvWr<'_>],
    ) -> Result<(), PostError> {
        let refused = |cause| match wrs {
            [] => Ok(()),
            _ => Err(PostError { index: 0, cause }),
        };
        if !core.cmd.health().is_alive() {
            return refused(PostCause::DeviceFailed);
        }
        if !self.open || self.shared {
            return refused(PostCause::InvalidState);
        }
        let mut doorbell = None;
        let mut result = Ok(());
        for (index, wr) in wrs.iter().enumerate() {
            let (nda, nds) = match self.enqueue(core, half, wr) {
                Ok(wqe) => wqe,
                Err(cause) => {
                    result = Err(PostError { index, cause });
                    break;
                }
            };
            let pending = doorbell.get_or_insert(ReceiveDoorbell {
                nda,
                nds,
                number: self.number,
                count: 0,
            });
            pending.count = pending.count.wrapping_add(1);
            if pending.count >= ReceiveDoorbell::MAX_COUNT {
                ring(core, &mut doorbell);
            }
        }
        ring(core, &mut doorbell);
        result
    }

    /// Writes one WQE and its length in the one before; where it is, and how long.
    #[inline]
    fn enqueue(
        &mut self,
        core: &Inner<'p, P>,
        half: &Half,
        wr: &RecvWr<'_>,
    ) -> Result<(u32, u8), PostCause> {
        let posted = self.posted;
        if posted.wrapping_sub(half.retired()) >= self.shape.mask {
            return Err(PostCause::QueueFull);
        }
        if wr.sges.len() > self.shape.max_sge as usize {
            return Err(PostCause::TooManySge);
        }
        let memory = self.memory.as_ref().ok_or(PostCause::QueueFull)?;
        let at = self.shape.offset(posted);
        let mut end = at.wrapping_add(SEGMENT);
        put_sges(memory, &mut end, wr.sges)?;
        let nds = (end.wrapping_sub(at) / SEGMENT) as u8;
        let before = self.shape.offset(posted.wrapping_sub(1));
        let before = memory.words::<2>(before as usize)?;
        memory
            .words::<2>(at as usize)?
            .set(next::NDS / 4, next::DBD);
        half.remember(posted, wr.wr_id, true, &core.records);
        before.set(next::NDS / 4, next::DBD | u32::from(nds));
        self.posted = posted.wrapping_add(1);
        Ok((self.shape.base.wrapping_add(at), nds))
    }
}

#[inline]
fn ring<P: Platform>(core: &Inner<'_, P>, doorbell: &mut Option<ReceiveDoorbell>) {
    if let Some(doorbell) = doorbell.take() {
        core.machine.dma_wmb();
        core.uar.ring_receive(doorbell);
    }
}
