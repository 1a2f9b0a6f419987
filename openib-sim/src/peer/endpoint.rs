//! One end of an RC connection with memory of its own: a QP, and one registered piece of memory with a source, a sink,
//! and places for short messages.

use super::messages::NOTHING;
use super::rping::{Advert, LARGEST};
use core_ib::Qpn;
use core_ib::platform::{DmaBuf, LetGo};
use core_ib::verbs::{
    Access, CqHandle, Device, MrHandle, MrInit, Owner, PdHandle, QpCaps, QpHandle, QpInit, QpType,
    QueuePair, RecvWr, SendFlags, SendOp, SendWr, Sge, Signaling, Verbs,
};
use ib_stack::ib_cm::init_attr;
use mthca_hw::Hca;
use platform_sim::machine::SimPlatform;

/// Where the source is, and the sink behind it, and the short messages behind that: those received, then those to send.
const SOURCE: usize = 0;
const SINK: usize = LARGEST;
const RECEIVED: usize = 2 * LARGEST;
const PAGE: usize = 4096;
/// Receives that are posted, and messages that may be on their way.
pub(super) const SLOTS: usize = 8;

/// What a request's completion is about, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Done {
    /// A message came into this place.
    Received(usize),
    /// A message went.
    Sent,
    /// The source was filled from the peer's memory.
    Read,
    /// The source was written to the peer's memory.
    Written,
}

const READ: u64 = 1 << 32;
const WRITTEN: u64 = 2 << 32;
const SENT: u64 = 3 << 32;

impl Done {
    pub(super) const fn of(wr_id: u64) -> Self {
        match wr_id {
            READ => Self::Read,
            WRITTEN => Self::Written,
            SENT => Self::Sent,
            slot => Self::Received(slot as usize),
        }
    }
}

/// See the module.
pub(super) struct Endpoint<'h> {
    /// The QP.
    pub(super) qp: QpHandle,
    /// Its number.
    pub(super) qpn: Qpn,
    mr: MrHandle,
    key: Sge,
    rkey: u32,
    memory: DmaBuf<'h, SimPlatform>,
    next: usize,
    /// Receives, and bytes of each.
    slots: usize,
    slot: usize,
}

fn text(error: impl core::fmt::Display) -> String {
    error.to_string()
}

impl<'h> Endpoint<'h> {
    /// A QP in INIT on `port`, with so many receives of so many bytes posted.
    pub(super) fn new(
        machine: &'h SimPlatform,
        hca: &Hca<'_, SimPlatform>,
        (pd, cq, port): (PdHandle, CqHandle, u8),
        (slots, slot): (usize, usize),
    ) -> Result<Self, String> {
        let bytes = RECEIVED + slots * slot + SLOTS * Advert::SIZE;
        let bytes = bytes.next_multiple_of(PAGE);
        let memory = DmaBuf::new(machine, bytes, PAGE).map_err(text)?;
        let first = memory.addr();
        let pages: Vec<_> = (0..bytes / PAGE)
            .map(|page| first.plus((page * PAGE) as u64))
            .collect();
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let init = MrInit {
            iova: 0,
            length: bytes as u64,
            pages: &pages,
            page_shift: 12,
            access,
        };
        // SAFETY: the memory is given back behind the region, or never; it is read and written through `DmaBuf` alone.
        let mr = unsafe { hca.reg_mr(pd, &init) }.map_err(text)?;
        let init = QpInit {
            qp_type: QpType::Rc,
            port,
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            caps: QpCaps {
                max_send_wr: 2 * SLOTS as u32,
                max_recv_wr: slots as u32,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline: 0,
            },
            signaling: Signaling::All,
            owner: Owner::Kernel,
        };
        let made = hca.create_qp(pd, &init).map_err(text);
        let made = match made {
            Ok(made) => made,
            Err(error) => {
                hca.dereg_mr(mr.handle).map_err(text)?;
                return Err(error);
            }
        };
        let mut end = Self {
            qp: made.handle,
            qpn: made.qpn,
            mr: mr.handle,
            key: Sge {
                addr: 0,
                length: 0,
                lkey: mr.lkey,
            },
            rkey: mr.rkey.0,
            memory,
            next: 0,
            slots,
            slot,
        };
        match end.begin(hca, port) {
            Ok(()) => Ok(end),
            Err(error) => {
                end.end(hca)?;
                Err(error)
            }
        }
    }

    fn begin(&mut self, hca: &Hca<'_, SimPlatform>, port: u8) -> Result<(), String> {
        let rights = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let (attr, mask) = init_attr(port, 0, rights);
        hca.modify_qp(self.qp, &attr, mask).map_err(text)?;
        (0..self.slots).try_for_each(|slot| self.receive(hca, slot))
    }

    /// Ends the QP and the region, and gives the memory back.
    pub(super) fn end(self, hca: &Hca<'_, SimPlatform>) -> Result<(), String> {
        hca.destroy_qp(self.qp).map_err(text)?;
        hca.dereg_mr(self.mr).map_err(text)?;
        // SAFETY: the region over it is gone.
        self.memory.free(unsafe { LetGo::claim() });
        Ok(())
    }

    fn sge(&self, at: usize, len: u32) -> Sge {
        Sge {
            addr: at as u64,
            length: len,
            ..self.key
        }
    }

    /// Posts the receive of this place.
    pub(super) fn receive(&self, hca: &Hca<'_, SimPlatform>, slot: usize) -> Result<(), String> {
        let at = RECEIVED + slot * self.slot;
        self.memory.fill(at, self.slot, NOTHING).map_err(text)?;
        let request = RecvWr {
            wr_id: slot as u64,
            sges: &[self.sge(at, self.slot as u32)],
        };
        let qp = hca.qp(self.qp).map_err(text)?;
        qp.post_recv(&[request]).map_err(text)
    }

    /// What came into this place.
    pub(super) fn received(&self, slot: usize) -> Result<Advert, String> {
        let mut bytes = [0; Advert::SIZE];
        let at = RECEIVED + slot * self.slot;
        self.memory.copy_out(at, &mut bytes).map_err(text)?;
        Ok(Advert::read(bytes))
    }

    /// As many bytes of it, where no more than that were to come.
    pub(super) fn message(&self, slot: usize, len: u32) -> Result<Vec<u8>, String> {
        let len = len.min(self.slot as u32);
        self.bytes(RECEIVED + slot * self.slot, len)
    }

    /// Sends what is in the source.
    pub(super) fn send(&self, hca: &Hca<'_, SimPlatform>, len: u32) -> Result<(), String> {
        self.post(hca, SENT, SendOp::Send { imm: None }, self.sge(SOURCE, len))
    }

    fn post(
        &self,
        hca: &Hca<'_, SimPlatform>,
        wr_id: u64,
        op: SendOp,
        sge: Sge,
    ) -> Result<(), String> {
        let request = SendWr {
            wr_id,
            op,
            sges: &[sge],
            inline: &[],
            flags: SendFlags::SIGNALED,
        };
        let qp = hca.qp(self.qp).map_err(text)?;
        qp.post_send(&[request]).map_err(text)
    }

    /// Sends a message.
    pub(super) fn say(&mut self, hca: &Hca<'_, SimPlatform>, advert: Advert) -> Result<(), String> {
        let at = RECEIVED + self.slots * self.slot + self.next * Advert::SIZE;
        self.next = (self.next + 1) % SLOTS;
        self.memory.copy_in(at, &advert.to_bytes()).map_err(text)?;
        let sge = self.sge(at, Advert::SIZE as u32);
        self.post(hca, SENT, SendOp::Send { imm: None }, sge)
    }

    /// Fills the source from the peer's memory.
    pub(super) fn read(&self, hca: &Hca<'_, SimPlatform>, from: Advert) -> Result<(), String> {
        let remote = from.remote();
        self.post(
            hca,
            READ,
            SendOp::RdmaRead { remote },
            self.sge(SOURCE, from.len),
        )
    }

    /// Writes the source to the peer's memory.
    pub(super) fn write(&self, hca: &Hca<'_, SimPlatform>, to: Advert) -> Result<(), String> {
        let (remote, imm) = (to.remote(), None);
        let op = SendOp::RdmaWrite { remote, imm };
        self.post(hca, WRITTEN, op, self.sge(SOURCE, to.len))
    }

    /// How the source is named to the peer.
    pub(super) const fn source(&self, len: u32) -> Advert {
        Advert {
            addr: SOURCE as u64,
            rkey: self.rkey,
            len,
        }
    }

    /// How the sink is.
    pub(super) const fn sink(&self, len: u32) -> Advert {
        Advert {
            addr: SINK as u64,
            rkey: self.rkey,
            len,
        }
    }

    /// Puts `data` into the source, and nothing of it into the sink.
    pub(super) fn fill(&self, data: &[u8]) -> Result<(), String> {
        self.memory.fill(SINK, LARGEST, NOTHING).map_err(text)?;
        self.memory.copy_in(SOURCE, data).map_err(text)
    }

    /// What the source holds.
    pub(super) fn in_source(&self, len: u32) -> Result<Vec<u8>, String> {
        self.bytes(SOURCE, len)
    }

    /// What the sink holds.
    pub(super) fn in_sink(&self, len: u32) -> Result<Vec<u8>, String> {
        self.bytes(SINK, len)
    }

    fn bytes(&self, at: usize, len: u32) -> Result<Vec<u8>, String> {
        let mut bytes = vec![0; LARGEST.min(len as usize)];
        self.memory.copy_out(at, &mut bytes).map_err(text)?;
        Ok(bytes)
    }
}
