//! What programs have that agree on their QPs by themselves: a QP of any service, and registered memory.

use core_ib::platform::{DmaBuf, LetGo};
use core_ib::verbs::QpAttrMask as M;
use core_ib::verbs::{
    Access, AhAttr, AhHandle, CqHandle, Device, MrHandle, MrInit, Owner, PdHandle, QpAttr, QpCaps,
    QpHandle, QpInit, QpState, QpType, Sge, Signaling, SrqHandle,
};
use core_ib::{Lid, Mtu, Psn, QKey, Qpn};
use mthca_hw::Hca;
use platform_sim::machine::SimPlatform;

const PAGE: usize = 4096;

fn text(error: impl core::fmt::Display) -> String {
    error.to_string()
}

/// Memory that the HCA reads and writes, by its key and from address 0.
pub(super) struct Area<'h> {
    mr: MrHandle,
    key: Sge,
    /// Its key for the peer.
    pub(super) rkey: u32,
    /// What it holds.
    pub(super) memory: DmaBuf<'h, SimPlatform>,
}

impl<'h> Area<'h> {
    pub(super) fn new(
        machine: &'h SimPlatform,
        hca: &Hca<'_, SimPlatform>,
        pd: PdHandle,
        (bytes, access): (usize, Access),
    ) -> Result<Self, String> {
        let bytes = bytes.next_multiple_of(PAGE);
        let memory = DmaBuf::new(machine, bytes, PAGE).map_err(text)?;
        let first = memory.addr();
        let pages: Vec<_> = (0..bytes / PAGE)
            .map(|page| first.plus((page * PAGE) as u64))
            .collect();
        let init = MrInit {
            iova: 0,
            length: bytes as u64,
            pages: &pages,
            page_shift: 12,
            access,
        };
        // SAFETY: the memory is given back behind the region, or never; it is read and written through `DmaBuf` alone.
        let mr = unsafe { hca.reg_mr(pd, &init) }.map_err(text)?;
        Ok(Self {
            mr: mr.handle,
            key: Sge {
                addr: 0,
                length: 0,
                lkey: mr.lkey,
            },
            rkey: mr.rkey.0,
            memory,
        })
    }

    /// `len` bytes from `at` on.
    pub(super) const fn sge(&self, at: usize, len: usize) -> Sge {
        Sge {
            addr: at as u64,
            length: len as u32,
            lkey: self.key.lkey,
        }
    }

    /// What is there.
    pub(super) fn bytes(&self, at: usize, len: usize) -> Result<Vec<u8>, String> {
        let mut bytes = vec![0; len];
        self.memory.copy_out(at, &mut bytes).map_err(text)?;
        Ok(bytes)
    }

    /// Gives it back; no QP uses it any more.
    pub(super) fn end(self, hca: &Hca<'_, SimPlatform>) -> Result<(), String> {
        hca.dereg_mr(self.mr).map_err(text)?;
        // SAFETY: the region over it is gone.
        self.memory.free(unsafe { LetGo::claim() });
        Ok(())
    }
}

/// Where a QP is, as programs tell each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Whereabouts {
    pub(super) lid: u16,
    pub(super) qpn: u32,
    pub(super) psn: u32,
}

/// What is agreed on by being the same at both ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    pub(super) service: QpType,
    pub(super) mtu: Mtu,
    pub(super) qkey: QKey,
    pub(super) access: Access,
}

/// A QP, in INIT first.
pub(super) struct Line {
    pub(super) qp: QpHandle,
    pub(super) qpn: Qpn,
    pub(super) psn: u32,
    port: u8,
    /// Of datagrams to the peer.
    pub(super) ah: Option<AhHandle>,
    /// The peer's QP.
    pub(super) peer: u32,
}

impl Line {
    pub(super) fn new(
        hca: &Hca<'_, SimPlatform>,
        (pd, cq, port): (PdHandle, CqHandle, u8),
        (srq, depth): (Option<SrqHandle>, u32),
        (terms, psn): (&Terms, u32),
    ) -> Result<Self, String> {
        let init = QpInit {
            qp_type: terms.service,
            port,
            send_cq: cq,
            recv_cq: cq,
            srq,
            caps: QpCaps {
                max_send_wr: depth,
                max_recv_wr: if srq.is_some() { 0 } else { depth },
                max_send_sge: 1,
                max_recv_sge: if srq.is_some() { 0 } else { 1 },
                max_inline: 0,
            },
            signaling: Signaling::All,
            owner: Owner::Kernel,
        };
        let made = hca.create_qp(pd, &init).map_err(text)?;
        let line = Self {
            qp: made.handle,
            qpn: made.qpn,
            psn: psn & 0xff_ffff,
            port,
            ah: None,
            peer: 0,
        };
        let attr = QpAttr {
            state: QpState::Init,
            port,
            qkey: terms.qkey,
            access: terms.access,
            ..QpAttr::EMPTY
        };
        let key = match terms.service {
            QpType::Ud => M::QKEY,
            _ => M::ACCESS,
        };
        let mask = M::STATE | M::PORT | M::PKEY_INDEX | key;
        match hca.modify_qp(line.qp, &attr, mask) {
            Ok(_) => Ok(line),
            Err(error) => {
                line.end(hca)?;
                Err(text(error))
            }
        }
    }

    /// To RTS, with the peer there.
    pub(super) fn connect(
        &mut self,
        hca: &Hca<'_, SimPlatform>,
        (pd, terms): (PdHandle, &Terms),
        peer: Whereabouts,
    ) -> Result<(), String> {
        self.peer = peer.qpn;
        let path = AhAttr {
            port: self.port,
            dlid: Lid(peer.lid),
            ..AhAttr::default()
        };
        let attr = QpAttr {
            path,
            path_mtu: terms.mtu,
            dest_qpn: Qpn::new(peer.qpn),
            rq_psn: Psn::new(peer.psn),
            sq_psn: Psn::new(self.psn),
            max_rd_atomic: 1,
            max_dest_rd_atomic: 1,
            min_rnr_timer: 12,
            timeout: 14,
            retry_count: 7,
            rnr_retry: 7,
            ..QpAttr::EMPTY
        };
        let connected = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
        let (rtr, rts) = match terms.service {
            QpType::Ud => {
                self.ah = Some(hca.create_ah(pd, &path).map_err(text)?);
                (M::empty(), M::SQ_PSN)
            }
            QpType::Uc => (connected, M::SQ_PSN),
            _ => (
                connected | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER,
                M::SQ_PSN | M::TIMEOUT | M::RETRY_COUNT | M::RNR_RETRY | M::MAX_RD_ATOMIC,
            ),
        };
        for (state, mask) in [(QpState::Rtr, rtr), (QpState::Rts, rts)] {
            let attr = QpAttr { state, ..attr };
            hca.modify_qp(self.qp, &attr, mask | M::STATE)
                .map_err(text)?;
        }
        Ok(())
    }

    /// Ends it.
    pub(super) fn end(self, hca: &Hca<'_, SimPlatform>) -> Result<(), String> {
        hca.destroy_qp(self.qp).map_err(text)?;
        self.ah
            .map_or(Ok(()), |ah| hca.destroy_ah(ah).map_err(text))
    }
}
