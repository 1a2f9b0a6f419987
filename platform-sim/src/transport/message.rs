//! A SEND or WRITE as a responder takes it, packet by packet, and what the owner of the queue pair does for it.
//! protocols 2.5.1.

use super::request::{AtomicOp, MAX_MESSAGE};
use core_ib::wire::packet::{ImmDt, NakCode, Opcode, Operation, Transport};
use core_ib::{Mtu, RKey};

/// What a remote access wants to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteRight {
    /// RDMA READ.
    Read,
    /// RDMA WRITE.
    Write,
    /// Atomics.
    Atomic,
}

/// Which remote accesses a queue pair admits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteAccess {
    /// RDMA READ.
    pub read: bool,
    /// RDMA WRITE.
    pub write: bool,
    /// Atomics.
    pub atomic: bool,
}

impl RemoteAccess {
    /// Is `right` admitted?
    pub const fn admits(self, right: RemoteRight) -> bool {
        match right {
            RemoteRight::Read => self.read,
            RemoteRight::Write => self.write,
            RemoteRight::Atomic => self.atomic,
        }
    }
}

/// Why a request was refused for good. verbs 6.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// Sequence of opcodes, lengths, an operation that is not enabled, too many READs, an atomic that is not aligned.
    InvalidRequest,
    /// R_Key, domain, bounds or right of the memory that the requester named.
    RemoteAccess,
    /// The message is longer than the receive request.
    ReceiveLength,
    /// The memory of the receive request cannot be written.
    ReceiveProtection,
    /// The receive request is malformed.
    ReceiveOperation,
    /// The receive queue, own or shared, cannot be read.
    ReceiveQueue,
    /// What is allowed cannot be done: tables or memory are out of reach.
    Operational,
}

impl Refusal {
    /// What the requester is told. protocols 2.4.
    pub const fn nak(self) -> NakCode {
        match self {
            Self::InvalidRequest | Self::ReceiveLength => NakCode::INVALID_REQUEST,
            Self::RemoteAccess => NakCode::REMOTE_ACCESS_ERROR,
            Self::ReceiveProtection
            | Self::ReceiveOperation
            | Self::ReceiveQueue
            | Self::Operational => NakCode::REMOTE_OPERATIONAL_ERROR,
        }
    }
}

/// A message that has arrived whole: what the completion of its receive request says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// Bytes of the message.
    pub len: u32,
    /// Of its last packet.
    pub opcode: Opcode,
    /// Immediate data.
    pub imm: Option<ImmDt>,
    /// The completion is solicited.
    pub solicited: bool,
}

/// What a responder needs of whoever owns the queue pair's receive queue and memory. Nothing here may block or call the
/// responder.
pub trait ResponderHost {
    /// Takes a receive request in hand, unless there is one; false if there is none to take. The request in hand is
    /// filled from its start.
    fn begin_receive(&mut self) -> Result<bool, Refusal>;
    /// Puts part of a message into the request in hand, `offset` bytes from its start.
    fn place(&mut self, offset: u32, payload: &[u8]) -> Result<(), Refusal>;
    /// Completes the request in hand; none is in hand then.
    fn finish_receive(&mut self, receipt: &Receipt);
    /// May the peer do that with these bytes? Nothing is done yet.
    fn check(&mut self, right: RemoteRight, r_key: RKey, va: u64, len: u32) -> Result<(), Refusal>;
    /// Writes part of what was checked.
    fn write(&mut self, r_key: RKey, va: u64, payload: &[u8]) -> Result<(), Refusal>;
    /// Carries out an atomic on 8 aligned bytes; gives what they held before.
    fn atomic(&mut self, r_key: RKey, va: u64, op: AtomicOp) -> Result<u64, Refusal>;
}

/// A message whose first packet was accepted, and whose last was not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// SEND: bytes that were placed.
    Send(u32),
    /// WRITE.
    Write {
        /// Where the next byte goes.
        va: u64,
        /// Key of the memory.
        r_key: RKey,
        /// Bytes that were written.
        done: u32,
        /// Bytes of the whole message.
        total: u32,
    },
}

/// Why a packet that came in its turn does not do what it asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotTaken {
    /// No receive request: nothing has happened.
    NotReady,
    /// Refused.
    Refused(Refusal),
}

impl From<Refusal> for NotTaken {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

const INVALID: NotTaken = NotTaken::Refused(Refusal::InvalidRequest);

/// Takes a SEND or WRITE packet in its turn: the checks of protocols 2.5.1 in their order, then its effect. `message` is the
/// one under way; what is given back is the same after this packet, `None` if it was the last. Any other operation is invalid.
pub(super) fn take_message(
    message: Option<Message>,
    (mtu, access): (Mtu, RemoteAccess),
    packet: &Transport<'_>,
    host: &mut dyn ResponderHost,
) -> Result<Option<Message>, NotTaken> {
    let operation = packet.bth.opcode.operation();
    let payload = packet.payload;
    let imm = packet.extended.imm_dt;
    let (is_send, first, last) = place_of(operation).ok_or(INVALID)?;
    let in_turn = match message {
        None => first,
        Some(Message::Send(_)) => is_send && !first,
        Some(Message::Write { .. }) => !is_send && !first,
    };
    // A First or Middle is exactly the MTU, and so needs no padding.
    if !in_turn || !packet.payload_fits(mtu) {
        return Err(INVALID);
    }
    let len = payload.len() as u32; // at most 4096
    if is_send {
        let done = match message {
            Some(Message::Send(done)) => done,
            _ => 0,
        };
        let after = done.checked_add(len).filter(|&sum| sum <= MAX_MESSAGE);
        let after = after.ok_or(INVALID)?;
        if first && !host.begin_receive()? {
            return Err(NotTaken::NotReady);
        }
        host.place(done, payload)?;
        if last {
            host.finish_receive(&receipt(packet, after));
        }
        return Ok((!last).then_some(Message::Send(after)));
    }
    let (va, r_key, done, total) = match (message, packet.extended.reth) {
        (
            Some(Message::Write {
                va,
                r_key,
                done,
                total,
            }),
            _,
        ) => (va, r_key, done, total),
        (_, Some(reth)) => (reth.va, reth.r_key, 0, reth.dma_len),
        _ => return Err(INVALID),
    };
    let after = done.checked_add(len).filter(|&sum| sum <= total);
    let after = after.ok_or(INVALID)?;
    if total > MAX_MESSAGE || last != (after == total) {
        return Err(INVALID);
    }
    if imm.is_some() && !host.begin_receive()? {
        return Err(NotTaken::NotReady);
    }
    if !access.write {
        return Err(INVALID);
    }
    if first && total != 0 {
        host.check(RemoteRight::Write, r_key, va, total)?;
    }
    if !payload.is_empty() {
        host.write(r_key, va, payload)?;
    }
    if imm.is_some() {
        host.finish_receive(&receipt(packet, total));
    }
    Ok((!last).then_some(Message::Write {
        va: va.wrapping_add(u64::from(len)),
        r_key,
        done: after,
        total,
    }))
}

/// Is the operation a SEND (or a WRITE), the first packet of its message, the last? None of other operations.
fn place_of(operation: Operation) -> Option<(bool, bool, bool)> {
    Some(match operation {
        Operation::SEND_FIRST => (true, true, false),
        Operation::SEND_MIDDLE => (true, false, false),
        Operation::SEND_LAST | Operation::SEND_LAST_IMMEDIATE => (true, false, true),
        Operation::SEND_ONLY | Operation::SEND_ONLY_IMMEDIATE => (true, true, true),
        Operation::WRITE_FIRST => (false, true, false),
        Operation::WRITE_MIDDLE => (false, false, false),
        Operation::WRITE_LAST | Operation::WRITE_LAST_IMMEDIATE => (false, false, true),
        Operation::WRITE_ONLY | Operation::WRITE_ONLY_IMMEDIATE => (false, true, true),
        _ => return None,
    })
}

fn receipt(packet: &Transport<'_>, len: u32) -> Receipt {
    Receipt {
        len,
        opcode: packet.bth.opcode,
        imm: packet.extended.imm_dt,
        solicited: packet.bth.solicited,
    }
}
