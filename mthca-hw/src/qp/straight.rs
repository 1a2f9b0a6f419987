//! The straight way of a send queue: requests of one entry, and inline data of connected QPs, written as a chain and
//! counted at once. What is refused or unusual stops it: `general` has that.

use super::place::Half;
use super::room::Room;
use super::send::{Link, SendQueue, Straight};
use super::wqe::{CHECKSUMS, DATAGRAM_WORDS, fits, flags_of, put_entry, segment};
use crate::av::Vector;
use crate::inner::Inner;
use core::sync::atomic::Ordering;
use core_ib::platform::{Platform, RingEntry};
use core_ib::verbs::{Imm, RemoteAddr, SendFlags, SendOp, SendWr, Sge};
use hca_abi::infinihost::wqe::{INLINE, UNIT, WqeOpcode, next, ud};

/// Words of one with a single entry.
pub(super) const DATAGRAM: usize = DATAGRAM_WORDS + UNIT / 4;

/// Words that every WQE of a connected QP has room for: an atomic, or a bind.
pub(super) const CONNECTED: usize = 4 * UNIT / 4;

/// From the flag of a request to the bit of a link.
const FENCE_OF_FLAG: u32 = next::FENCE / SendFlags::FENCE.bits() as u32;

/// WQEs of a call that goes straight, each of at least `N` words.
pub(super) struct Chain<'q, const N: usize, const M: bool> {
    pub room: Room<'q, N>,
    /// Not 0 if the next waits for the doorbell: in T-mode the first.
    waits: u32,
}

impl<'q, const N: usize, const M: bool> Chain<'q, N, M> {
    /// What was appended from count `begin` on, the chain's beginning. The doorbell says of the first what the WQE before it
    /// does: if an HCA has changed that in between, it tells itself so.
    #[inline(always)]
    pub fn since(&self, begin: u32, qpn: u32) -> Straight {
        let before = self.room.ring.at(begin.wrapping_sub(1));
        let first = Link {
            nda: before.get(next::NDA / 4),
            nds: before.get(next::NDS / 4),
            immediate: [0; 4],
        };
        Straight {
            begin,
            end: self.room.posted,
            doorbell: first.doorbell(qpn),
        }
    }

    /// Ends it, and links it to the one before in the order of infinihost 2.11.
    #[inline(always)]
    pub fn add<P: Platform>(&mut self, machine: &P, wr: &SendWr<'_>, link: Link) {
        let wqe = self.room.wqe();
        if !M {
            wqe.set_long(next::NDA / 4, 0);
        }
        let offered = if M && N == DATAGRAM {
            CHECKSUMS
        } else {
            SendFlags::empty()
        };
        let [a, b, c, d] = flags_of(wr.flags, offered).to_be_bytes();
        let [e, f, g, h] = link.immediate;
        wqe.set_bytes(next::FLAGS / 4, [a, b, c, d, e, f, g, h]);
        let record = self.room.records.at(self.room.posted);
        record.wr_id.store(wr.wr_id, Ordering::Relaxed);
        if !M {
            record.link.store(self.waits, Ordering::Relaxed);
        }
        self.room.before.set(next::NDA / 4, link.nda);
        machine.dma_wmb();
        self.room.before.set(next::NDS / 4, link.nds | self.waits);
        if !M {
            self.waits = 0;
        }
        self.room.advance(wqe);
    }
}

/// Appends `wrs` up to the first that `write` does not write. They are to be counted before the doorbell: nothing of a call
/// is executed earlier.
#[inline(always)]
fn append_all<'q, const N: usize, const M: bool>(
    chain: &mut Chain<'q, N, M>,
    machine: &impl Platform,
    wrs: &[SendWr<'_>],
    write: impl Fn(&Chain<'q, N, M>, &SendWr<'_>) -> Option<Link>,
) {
    for wr in wrs {
        if chain.room.is_full() {
            return;
        }
        let Some(link) = write(chain, wr) else { return };
        chain.add(machine, wr, link);
    }
}

impl<'p, P: Platform> SendQueue<'p, P> {
    /// Appends datagrams up to the first that does not go straight. A function of its own, so that its loop has the
    /// registers.
    #[inline(never)]
    pub(super) fn append_datagrams<'q, const M: bool>(
        &'q self,
        core: &'q Inner<'p, P>,
        chain: &mut Chain<'q, DATAGRAM, M>,
        wrs: &[SendWr<'_>],
    ) {
        append_all(chain, core.machine, wrs, |chain, wr| {
            self.write_datagram::<M>(core, chain, wr)
        });
    }

    /// The same for connected QPs.
    #[inline(always)]
    pub(super) fn append_connected<'q, const M: bool>(
        &'q self,
        core: &'q Inner<'p, P>,
        chain: &mut Chain<'q, CONNECTED, M>,
        wrs: &[SendWr<'_>],
    ) {
        append_all(chain, core.machine, wrs, |chain, wr| {
            self.write_connected::<M>(chain, wr)
        });
    }

    /// The chain that requests are appended to, if posting may go straight and there is room.
    #[inline(always)]
    pub(super) fn open_chain<'q, const N: usize, const M: bool>(
        &'q self,
        core: &'q Inner<'p, P>,
        half: &Half,
    ) -> Option<Chain<'q, N, M>> {
        let room = Room::open(core, half, &self.memory, self.straight, self.posted)?;
        let waits = next::DBD;
        Some(Chain { room, waits })
    }

    /// Writes the segments of a datagram of one entry; `None` if it is another, or there is something against it.
    #[inline(always)]
    pub(super) fn write_datagram<const M: bool>(
        &self,
        core: &Inner<'p, P>,
        chain: &Chain<'_, DATAGRAM, M>,
        wr: &SendWr<'_>,
    ) -> Option<Link> {
        let [sge] = wr.sges else { return None };
        let SendOp::Datagram {
            ah,
            remote_qpn,
            remote_qkey,
            imm,
            ..
        } = &wr.op
        else {
            return None;
        };
        if !fits(sge)
            || wr.flags.contains(SendFlags::INLINE)
            || ah.device() != core.device
            || !core.av.is_in(*ah, self.pd)
        {
            return None;
        }
        let wqe = chain.room.wqe();
        if M {
            let vector = core.av.own_vector(ah.index())?;
            put_vector(wqe, vector);
        } else {
            wqe.set_long(segment(ud::AV_ADDRESS_HIGH), core.av.address(ah.index()));
        }
        let (opcode, immediate) = match imm {
            Some(Imm(bytes)) => (WqeOpcode::SEND_IMM, *bytes),
            None => (WqeOpcode::SEND, [0; 4]),
        };
        wqe.set_pair(segment(ud::DEST_QPN), remote_qpn.get(), remote_qkey.0);
        put_entry(wqe, DATAGRAM_WORDS, sge);
        let nda = self
            .shape
            .base
            .wrapping_add(chain.room.ring.offset(chain.room.posted));
        Some(Link {
            nda: nda | u32::from(opcode.0),
            nds: (DATAGRAM * 4 / UNIT) as u32,
            immediate,
        })
    }

    /// Writes the segments of a request of a connected QP, of one entry or inline; `None` if it is another, or there is
    /// something against it.
    #[inline(always)]
    pub(super) fn write_connected<const M: bool>(
        &self,
        chain: &Chain<'_, CONNECTED, M>,
        wr: &SendWr<'_>,
    ) -> Option<Link> {
        let wqe = chain.room.wqe();
        let (plain, immediate, data, ahead) = match &wr.op {
            SendOp::Send { imm } => (WqeOpcode::SEND, imm, wqe.part::<4, 4>(), 1),
            SendOp::RdmaWrite { remote, imm } => {
                put_remote(wqe, remote);
                (WqeOpcode::RDMA_WRITE, imm, wqe.part::<8, 4>(), 2)
            }
            SendOp::RdmaRead { remote } if self.may_read(wr) => {
                put_remote(wqe, remote);
                (WqeOpcode::RDMA_READ, &None, wqe.part::<8, 4>(), 2)
            }
            SendOp::CompareSwap {
                remote,
                compare,
                swap,
            } if self.may_atomic(wr, remote) => {
                put_remote(wqe, remote);
                wqe.set_long(8, *swap);
                wqe.set_long(10, *compare);
                (WqeOpcode::ATOMIC_CS, &None, wqe.part::<12, 4>(), 3)
            }
            SendOp::FetchAdd { remote, add } if self.may_atomic(wr, remote) => {
                put_remote(wqe, remote);
                wqe.set_long(8, *add);
                wqe.set_long(10, 0);
                (WqeOpcode::ATOMIC_FA, &None, wqe.part::<12, 4>(), 3)
            }
            _ => return None,
        };
        let units = if wr.flags.contains(SendFlags::INLINE) {
            let length = wr.inline.len();
            let at = ahead as usize * UNIT;
            let head = INLINE | length as u32;
            if length.wrapping_sub(1) >= self.shape.max_inline as usize
                || !chain
                    .room
                    .ring
                    .put_inline(chain.room.posted, at, head, wr.inline)
            {
                return None;
            }
            ((at + 4 + length).div_ceil(UNIT)) as u32
        } else {
            let [sge] = wr.sges else { return None };
            if !fits(sge) {
                return None;
            }
            // The answer of an atomic has 8 bytes, whatever room there is.
            let length = if ahead == 3 { 8 } else { sge.length };
            put_entry(data, 0, &Sge { length, ..*sge });
            ahead + 1
        };
        let immediate = immediate.as_ref();
        // "With immediate" is the next number.
        let opcode = u32::from(plain.0) + u32::from(immediate.is_some());
        let fence = u32::from((wr.flags & SendFlags::FENCE).bits()) * FENCE_OF_FLAG;
        Some(Link {
            nda: self
                .shape
                .base
                .wrapping_add(chain.room.ring.offset(chain.room.posted))
                | opcode,
            nds: units | fence & self.fence,
            immediate: immediate.map_or([0; 4], |&Imm(bytes)| bytes),
        })
    }

    /// A request whose data comes from the peer may be posted.
    #[inline(always)]
    fn may_read(&self, wr: &SendWr<'_>) -> bool {
        self.reads && !wr.flags.contains(SendFlags::INLINE)
    }

    /// So may an atomic.
    #[inline(always)]
    fn may_atomic(&self, wr: &SendWr<'_>, remote: &RemoteAddr) -> bool {
        let [sge] = wr.sges else { return false };
        self.may_read(wr) && self.atomics && sge.length >= 8 && remote.addr & 7 == 0
    }
}

/// Copies an address vector into the segment of a datagram.
#[inline(always)]
fn put_vector<const N: usize>(wqe: RingEntry<'_, N>, vector: &Vector) {
    for (at, pair) in (segment(0)..).step_by(2).zip(vector) {
        wqe.set_bytes(at, pair.load(Ordering::Relaxed).to_ne_bytes());
    }
}

/// Writes the segment of the peer's memory.
#[inline(always)]
fn put_remote<const N: usize>(wqe: RingEntry<'_, N>, remote: &RemoteAddr) {
    wqe.set_long(4, remote.addr);
    wqe.set_pair(6, remote.rkey.0, 0);
}
