//! The verbs objects of a port: made step by step, and taken back in the opposite order.

use super::rings::Rings;
use super::wish::start;
use crate::addr::SpecialQp;
use core_ib::platform::Platform;
use core_ib::verbs::{
    CqHandle, CqInit, Device, Owner, PdHandle, QpCaps, QpHandle, QpInit, QpType, Signaling,
    VerbsError,
};

/// What there is so far.
#[derive(Debug)]
pub(super) struct Made<'d, D: Device> {
    device: &'d D,
    pd: Option<PdHandle>,
    cq: Option<CqHandle>,
    qps: [Option<QpHandle>; 2],
}

impl<'d, D: Device> Made<'d, D> {
    pub(super) const fn nothing(device: &'d D) -> Self {
        Self {
            device,
            pd: None,
            cq: None,
            qps: [None; 2],
        }
    }

    /// Domain, completion queue, registered memory. Blocks.
    pub(super) fn memory<'p, P: Platform>(
        &mut self,
        machine: &'p P,
        vector: u16,
        recvs: usize,
        sends: usize,
    ) -> Result<(PdHandle, CqHandle, Rings<'p, P>), VerbsError> {
        let pd = self.device.alloc_pd()?;
        self.pd = Some(pd);
        let cq = self.device.create_cq(&CqInit {
            cqe: (2 * recvs + sends) as u32, // at most 65535 each
            vector,
            owner: Owner::Kernel,
        })?;
        self.cq = Some(cq.handle);
        let rings = Rings::register(self.device, machine, pd, recvs, sends)?;
        Ok((pd, cq.handle, rings))
    }

    /// One special QP of `port`, in RTS. Blocks.
    pub(super) fn qp(
        &mut self,
        which: SpecialQp,
        port: u8,
        (pd, cq): (PdHandle, CqHandle),
        recvs: usize,
        sends: usize,
    ) -> Result<QpHandle, VerbsError> {
        let [smi, gsi] = &mut self.qps;
        let (qp_type, place) = match which {
            SpecialQp::Smi => (QpType::Smi, smi),
            SpecialQp::Gsi => (QpType::Gsi, gsi),
        };
        let init = QpInit {
            qp_type,
            port,
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            caps: QpCaps {
                max_send_wr: sends as u32,
                max_recv_wr: recvs as u32,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline: 0,
            },
            signaling: Signaling::All,
            owner: Owner::Kernel,
        };
        let qp = self.device.create_qp(pd, &init)?.handle;
        *place = Some(qp);
        start(self.device, qp, which)?;
        Ok(qp)
    }

    /// For the end of a port: all of it.
    pub(super) const fn all(device: &'d D, pd: PdHandle, cq: CqHandle, qps: [QpHandle; 2]) -> Self {
        let [smi, gsi] = qps;
        Self {
            device,
            pd: Some(pd),
            cq: Some(cq),
            qps: [Some(smi), Some(gsi)],
        }
    }

    /// Takes the QPs back. No reference to them is out. Blocks. Goes on after an error and says the first.
    pub(super) fn undo_qps(&mut self) -> Result<(), VerbsError> {
        let mut result = Ok(());
        for qp in self.qps.iter_mut().rev().filter_map(Option::take) {
            result = result.and(self.device.destroy_qp(qp));
        }
        result
    }

    /// Takes everything back, registered memory included. Blocks. Goes on after an error and says the first; what an
    /// HCA that has failed does not give back, its reset does.
    pub(super) fn undo<P: Platform>(
        mut self,
        rings: Option<Rings<'_, P>>,
    ) -> Result<(), VerbsError> {
        let mut result = self.undo_qps();
        if let Some(rings) = rings {
            result = result.and(rings.release(self.device));
        }
        if let Some(cq) = self.cq {
            result = result.and(self.device.destroy_cq(cq));
        }
        if let Some(pd) = self.pd {
            result = result.and(self.device.dealloc_pd(pd));
        }
        result
    }
}
