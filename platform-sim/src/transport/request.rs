//! A request of a connected send queue, and the packets that it becomes. protocols 1.6, 2.3.2.

use core_ib::wire::packet::{AtomicEth, Extended, ImmDt, Operation, Reth};
use core_ib::{Mtu, RKey};

/// Most bytes of a message. protocols 2.1.
pub const MAX_MESSAGE: u32 = 1 << 31;

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestOp {
    /// SEND.
    Send {
        /// Immediate data.
        imm: Option<ImmDt>,
        /// The receiver's completion is to be solicited.
        solicited: bool,
    },
    /// RDMA WRITE.
    Write {
        /// Virtual address at the responder.
        va: u64,
        /// Key of the responder's memory.
        r_key: RKey,
        /// Immediate data: the responder takes a receive request.
        imm: Option<ImmDt>,
        /// The receiver's completion, if there is one, is to be solicited.
        solicited: bool,
    },
    /// RDMA READ. RC only.
    Read {
        /// Virtual address at the responder.
        va: u64,
        /// Key of the responder's memory.
        r_key: RKey,
    },
    /// Compare and swap, or fetch and add. RC only.
    Atomic {
        /// Virtual address at the responder.
        va: u64,
        /// Key of the responder's memory.
        r_key: RKey,
        /// Which, and its operands.
        op: AtomicOp,
    },
    /// Nothing that travels: done by the owner when it began, completed when its turn comes.
    Local,
}

/// Operands of an atomic. protocols 2.10.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOp {
    /// Stores `swap` where `compare` is.
    CompareSwap {
        /// What has to be there.
        compare: u64,
        /// What is there then.
        swap: u64,
    },
    /// Adds, modulo 2^64.
    FetchAdd {
        /// What is added.
        add: u64,
    },
}

impl AtomicOp {
    /// What is there after, if `original` was there before.
    pub const fn apply(self, original: u64) -> u64 {
        match self {
            Self::CompareSwap { compare, swap } if original == compare => swap,
            Self::CompareSwap { .. } => original,
            Self::FetchAdd { add } => original.wrapping_add(add),
        }
    }
}

/// One request of a send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What it does.
    pub op: RequestOp,
    /// Bytes that it moves, at most [`MAX_MESSAGE`]; 8 for atomics.
    pub len: u32,
}

/// Which packet to make: what a [`Connection`](super::Connection) needs for its headers, and where its payload comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestPacket {
    /// Operation of the opcode.
    pub operation: Operation,
    /// Headers behind the BTH.
    pub extended: Extended,
    /// Of the payload: first byte, counted from the start of the message.
    pub offset: u32,
    /// Of the payload: bytes.
    pub len: u32,
    /// PSNs that the packet takes; a READ request takes as many as its answer has packets.
    pub psns: u32,
    /// No other packet of the message follows.
    pub last: bool,
    /// BTH.SE.
    pub solicited: bool,
}

/// Packets that a payload of `len` bytes takes, at least one.
pub const fn packets(len: u32, mtu: Mtu) -> u32 {
    let count = len.div_ceil(mtu.bytes() as u32);
    if count == 0 { 1 } else { count }
}

impl Request {
    /// PSNs that it takes. protocols 2.3.2.
    pub const fn psns(&self, mtu: Mtu) -> u32 {
        match self.op {
            RequestOp::Local => 0,
            RequestOp::Atomic { .. } => 1,
            _ => packets(self.len, mtu),
        }
    }

    /// READ or atomic: an acknowledge is not enough, data has to come.
    pub const fn brings_data(&self) -> bool {
        matches!(self.op, RequestOp::Read { .. } | RequestOp::Atomic { .. })
    }

    /// Takes a receive request of the responder. protocols 2.4.1.
    pub const fn needs_credit(&self) -> bool {
        match self.op {
            RequestOp::Send { .. } => true,
            RequestOp::Write { imm, .. } => imm.is_some(),
            _ => false,
        }
    }

    /// The packet `index` PSNs from the start; of a READ the request for what is from there on.
    pub fn packet(&self, mtu: Mtu, index: u32) -> RequestPacket {
        let bytes = mtu.bytes() as u32;
        let count = packets(self.len, mtu);
        let offset = index.saturating_mul(bytes).min(self.len);
        let (first, last) = (index == 0, index.saturating_add(1) >= count);
        let rest = self.len - offset;
        let mut packet = RequestPacket {
            operation: Operation::SEND_ONLY,
            extended: Extended::default(),
            offset,
            len: rest.min(bytes),
            psns: 1,
            last,
            solicited: false,
        };
        match self.op {
            RequestOp::Send { imm, solicited } => {
                let imm = imm.filter(|_| last);
                packet.extended.imm_dt = imm;
                packet.solicited = solicited && last;
                packet.operation = match (first, last, imm.is_some()) {
                    (true, true, false) => Operation::SEND_ONLY,
                    (true, true, true) => Operation::SEND_ONLY_IMMEDIATE,
                    (true, false, _) => Operation::SEND_FIRST,
                    (false, false, _) => Operation::SEND_MIDDLE,
                    (false, true, false) => Operation::SEND_LAST,
                    (false, true, true) => Operation::SEND_LAST_IMMEDIATE,
                };
            }
            RequestOp::Write {
                va,
                r_key,
                imm,
                solicited,
            } => {
                let imm = imm.filter(|_| last);
                packet.extended.imm_dt = imm;
                packet.solicited = solicited && imm.is_some();
                let dma_len = self.len;
                packet.extended.reth = first.then_some(Reth { va, r_key, dma_len });
                packet.operation = match (first, last, imm.is_some()) {
                    (true, true, false) => Operation::WRITE_ONLY,
                    (true, true, true) => Operation::WRITE_ONLY_IMMEDIATE,
                    (true, false, _) => Operation::WRITE_FIRST,
                    (false, false, _) => Operation::WRITE_MIDDLE,
                    (false, true, false) => Operation::WRITE_LAST,
                    (false, true, true) => Operation::WRITE_LAST_IMMEDIATE,
                };
            }
            RequestOp::Read { va, r_key } => {
                packet.operation = Operation::READ_REQUEST;
                packet.extended.reth = Some(Reth {
                    va: va.wrapping_add(u64::from(offset)),
                    r_key,
                    dma_len: rest,
                });
                (packet.len, packet.last) = (0, true);
                packet.psns = count.saturating_sub(index).max(1);
            }
            RequestOp::Atomic { va, r_key, op } => {
                let (operation, swap_or_add, compare) = match op {
                    AtomicOp::CompareSwap { compare, swap } => (Operation::CMP_SWAP, swap, compare),
                    AtomicOp::FetchAdd { add } => (Operation::FETCH_ADD, add, 0),
                };
                packet.operation = operation;
                packet.extended.atomic = Some(AtomicEth {
                    va,
                    r_key,
                    swap_or_add,
                    compare,
                });
                (packet.len, packet.last) = (0, true);
            }
            RequestOp::Local => packet.psns = 0,
        }
        packet
    }
}
