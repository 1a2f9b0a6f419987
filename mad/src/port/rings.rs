//! The DMA memory of a port: receive buffers of both QPs and send buffers, one region.

use crate::addr::SpecialQp;
use core_ib::platform::{DmaAddr, DmaBuf, LetGo, OutOfBounds, Platform};
use core_ib::verbs::{Access, Device, Grh40, Mr, MrInit, PdHandle, Sge, VerbsError};
use core_ib::wire::mad::Mad;

/// Bytes of a receive: room for a GRH, and a MAD.
pub(super) const RECV_LEN: u32 = 40 + 256;
/// From one receive buffer to the next.
const RECV_STRIDE: usize = 320;
/// From one send buffer to the next.
const SEND_STRIDE: usize = 256;
/// Pages that a registration names at most; larger memory gets larger pages.
const MAX_PAGES: usize = 64;

/// The memory, and its region.
#[derive(Debug)]
pub(super) struct Rings<'v, P: Platform> {
    memory: DmaBuf<'v, P>,
    mr: Mr,
    recvs: usize,
}

impl<'v, P: Platform> Rings<'v, P> {
    /// `recvs` buffers for each QP, and `sends` in all. Blocks.
    pub(super) fn register<D: Device + ?Sized>(
        device: &D,
        machine: &'v P,
        pd: PdHandle,
        recvs: usize,
        sends: usize,
    ) -> Result<Self, VerbsError> {
        let len = recvs
            .saturating_mul(2 * RECV_STRIDE)
            .saturating_add(sends.saturating_mul(SEND_STRIDE));
        let mut page_shift = 12;
        while len.div_ceil(1 << page_shift) > MAX_PAGES {
            page_shift += 1; // ends at the latest when one page holds all of a usize
        }
        let page = 1_usize << page_shift;
        let memory = DmaBuf::new(machine, len.next_multiple_of(page), page)?;
        let mut pages = [DmaAddr::default(); MAX_PAGES];
        let mut at = memory.addr();
        for entry in &mut pages {
            *entry = at;
            at = at.plus(page as u64);
        }
        let init = MrInit {
            iova: memory.addr().get(),
            length: memory.len() as u64,
            pages: pages.get(..memory.len() >> page_shift).unwrap_or(&[]),
            page_shift,
            access: Access::LOCAL_WRITE,
        };
        // SAFETY: the memory is `DmaBuf`'s own, which hands out no reference into it, and lives until `release` has
        // deregistered it or `abandon` was shown that the HCA let go; dropped otherwise it leaks.
        let mr = unsafe { device.reg_mr(pd, &init) };
        match mr {
            Ok(mr) => Ok(Self { memory, mr, recvs }),
            Err(error) => {
                // SAFETY: the registration failed, so the HCA was never told of the memory.
                memory.free(unsafe { LetGo::claim() });
                Err(error)
            }
        }
    }

    fn recv_offset(&self, qp: SpecialQp, index: usize) -> usize {
        let first = match qp {
            SpecialQp::Smi => 0,
            SpecialQp::Gsi => self.recvs,
        };
        first.saturating_add(index).saturating_mul(RECV_STRIDE)
    }

    fn send_offset(&self, index: usize) -> usize {
        let first = self.recvs.saturating_mul(2 * RECV_STRIDE);
        first.saturating_add(index.saturating_mul(SEND_STRIDE))
    }

    fn sge(&self, offset: usize, length: u32) -> Sge {
        Sge {
            addr: self.memory.addr().plus(offset as u64).get(),
            length,
            lkey: self.mr.lkey,
        }
    }

    /// Receive buffer `index` of `qp`.
    pub(super) fn recv(&self, qp: SpecialQp, index: usize) -> Sge {
        self.sge(self.recv_offset(qp, index), RECV_LEN)
    }

    /// Send buffer `index`.
    pub(super) fn send(&self, index: usize) -> Sge {
        self.sge(self.send_offset(index), Mad::SIZE as u32)
    }

    /// Fills send buffer `index`.
    pub(super) fn store(&self, index: usize, mad: &Mad) -> Result<(), OutOfBounds> {
        self.memory.write(self.send_offset(index), mad)
    }

    /// What lies in receive buffer `index` of `qp`. Only after its completion.
    pub(super) fn load(&self, qp: SpecialQp, index: usize) -> Result<(Grh40, Mad), OutOfBounds> {
        let at = self.recv_offset(qp, index);
        let grh = self.memory.read(at)?;
        let mad = self.memory.read(at.saturating_add(40))?;
        Ok((grh, mad))
    }

    /// Deregisters and gives the memory back. Blocks. On error the memory is lost until the HCA is reset.
    pub(super) fn release<D: Device + ?Sized>(self, device: &D) -> Result<(), VerbsError> {
        device.dereg_mr(self.mr.handle)?;
        // SAFETY: the region is gone, and when `dereg_mr` returned the HCA did not touch the memory any more.
        self.memory.free(unsafe { LetGo::claim() });
        Ok(())
    }

    /// Gives the memory back without asking the HCA.
    pub(super) fn abandon(self, proof: LetGo) {
        self.memory.free(proof);
    }
}
