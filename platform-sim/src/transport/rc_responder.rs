//! The responding half of a reliable connection: which packets are obeyed, and what is answered. protocols 2.4, 2.5.
//!
//! Answers leave in the order of their PSNs: first what READs and atomics bring, then one acknowledge or refusal, which
//! stands for all before it. Both wait here until the owner has sent them, so a slow wire makes for fewer acknowledges.

use super::message::take_message;
use super::message::{Message, NotTaken, Refusal, RemoteAccess, RemoteRight, ResponderHost};
use super::request::{AtomicOp, MAX_MESSAGE, packets};
use core_ib::wire::packet::{
    Aeth, AtomicAckEth, CreditCode, Extended, Msn, NakCode, Operation, RnrTimer, Syndrome,
    Transport,
};
use core_ib::{Mtu, Psn, RKey};
use std::collections::VecDeque;

/// What a queue pair's attributes say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponderLimits {
    /// MTU of the path.
    pub mtu: Mtu,
    /// Which remote accesses are admitted.
    pub access: RemoteAccess,
    /// READs and atomics that the peer may have outstanding.
    pub max_rd_atomic: usize,
    /// How long a peer waits that found no receive request.
    pub rnr_timer: RnrTimer,
}

/// A READ or atomic, for those who ask again.
#[derive(Clone, Copy)]
struct Remembered {
    first: Psn,
    psns: u32,
    what: Done,
}

#[derive(Clone, Copy)]
enum Done {
    Read { len: u32 },
    Atomic { original: u64 },
}

/// An answer that brings data, and how much of it was sent.
#[derive(Clone, Copy)]
struct Pending {
    first: Psn,
    psns: u32,
    sent: u32,
    what: Bring,
    /// The requester asked again.
    again: bool,
}

#[derive(Clone, Copy)]
enum Bring {
    Read { va: u64, r_key: RKey, len: u32 },
    Atomic { original: u64 },
}

/// The acknowledge or refusal behind them.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tail {
    Ack,
    NotReady,
    Nak(NakCode),
}

/// The payload of a READ response: read it at the moment of sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyData {
    /// First byte.
    pub va: u64,
    /// Key of the memory.
    pub r_key: RKey,
    /// Bytes, at most the MTU.
    pub len: u32,
}

/// A packet to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Operation of the opcode.
    pub operation: Operation,
    /// Headers behind the BTH.
    pub extended: Extended,
    /// Its PSN.
    pub psn: Psn,
    /// Its payload, if it has one.
    pub data: Option<ReplyData>,
}

/// The engine.
pub struct RcResponder {
    limits: ResponderLimits,
    expected: Psn,
    msn: Msn,
    message: Option<Message>,
    /// A refusal says what is expected; no other does until it comes.
    told: bool,
    remembered: VecDeque<Remembered>,
    pending: VecDeque<Pending>,
    tail: Option<(Psn, Tail)>,
    failed: bool,
}

impl RcResponder {
    /// That expects `psn` first.
    pub fn new(psn: Psn, limits: ResponderLimits) -> Self {
        Self {
            limits,
            expected: psn,
            msn: Msn::default(),
            message: None,
            told: false,
            remembered: VecDeque::new(),
            pending: VecDeque::new(),
            tail: None,
            failed: false,
        }
    }

    /// Other limits from now on.
    pub fn set_limits(&mut self, limits: ResponderLimits) {
        self.limits = limits;
    }

    /// The PSN that comes next.
    pub const fn expected_psn(&self) -> Psn {
        self.expected
    }

    /// Messages that were completed.
    pub const fn msn(&self) -> Msn {
        self.msn
    }

    /// There is something to send.
    pub fn has_reply(&self) -> bool {
        !self.pending.is_empty() || self.tail.is_some()
    }

    /// Takes a packet that came over the connection, whose operation is a request. After an error the connection is over:
    /// nothing is accepted any more, and what is to be sent ends with the refusal.
    pub fn receive(
        &mut self,
        packet: &Transport<'_>,
        host: &mut dyn ResponderHost,
    ) -> Result<(), Refusal> {
        if self.failed {
            return Ok(());
        }
        let psn = packet.bth.psn;
        match psn.since(self.expected) {
            0 => {}
            1..=0x7f_ffff => {
                if !self.told {
                    self.told = true;
                    let nak = Tail::Nak(NakCode::PSN_SEQUENCE_ERROR);
                    self.tail = Some((self.expected, nak));
                }
                return Ok(());
            }
            _ => {
                let again = self.duplicate(packet, host);
                return again.inspect_err(|&refusal| self.refuse(psn, refusal));
            }
        }
        self.told = false;
        match self.take(packet, host) {
            Ok(psns) => {
                self.expected = psn.plus(psns);
                // A refusal that waits says that this packet had not come.
                self.tail = self.tail.filter(|&(_, tail)| tail == Tail::Ack);
                if packet.bth.ack_req && self.pending.back().is_none_or(|last| last.first != psn) {
                    self.tail = Some((psn, Tail::Ack));
                }
                Ok(())
            }
            Err(NotTaken::NotReady) => {
                self.told = true;
                self.tail = Some((psn, Tail::NotReady));
                Ok(())
            }
            Err(NotTaken::Refused(refusal)) => {
                self.refuse(psn, refusal);
                Err(refusal)
            }
        }
    }

    fn refuse(&mut self, psn: Psn, refusal: Refusal) {
        self.tail = Some((psn, Tail::Nak(refusal.nak())));
        self.failed = true;
    }

    /// A packet in its turn; the PSNs that it took.
    fn take(
        &mut self,
        packet: &Transport<'_>,
        host: &mut dyn ResponderHost,
    ) -> Result<u32, NotTaken> {
        let operation = packet.bth.opcode.operation();
        let limits = self.limits;
        let bring = match operation {
            Operation::READ_REQUEST | Operation::CMP_SWAP | Operation::FETCH_ADD => {
                self.bring(packet, host)?
            }
            _ => {
                let terms = (limits.mtu, limits.access);
                self.message = take_message(self.message, terms, packet, host)?;
                if self.message.is_none() {
                    self.msn = self.msn.plus(1);
                }
                return Ok(1);
            }
        };
        let (what, psns) = match bring {
            Bring::Read { len, .. } => (Done::Read { len }, packets(len, limits.mtu)),
            Bring::Atomic { original } => (Done::Atomic { original }, 1),
        };
        let first = packet.bth.psn;
        self.msn = self.msn.plus(1);
        self.remembered.push_back(Remembered { first, psns, what });
        while self.remembered.len() > limits.max_rd_atomic {
            self.remembered.pop_front();
        }
        self.pending.push_back(Pending {
            first,
            psns,
            sent: 0,
            what: bring,
            again: false,
        });
        Ok(psns)
    }

    /// A READ or atomic in its turn.
    fn bring(
        &self,
        packet: &Transport<'_>,
        host: &mut dyn ResponderHost,
    ) -> Result<Bring, Refusal> {
        let limits = &self.limits;
        let held = self.pending.iter().filter(|one| !one.again).count();
        let sound = self.message.is_none() && packet.payload_fits(limits.mtu);
        if !sound || held >= limits.max_rd_atomic {
            return Err(Refusal::InvalidRequest);
        }
        if let Some(reth) = packet.extended.reth {
            let (va, r_key, len) = (reth.va, reth.r_key, reth.dma_len);
            if len > MAX_MESSAGE || !limits.access.admits(RemoteRight::Read) {
                return Err(Refusal::InvalidRequest);
            }
            if len != 0 {
                host.check(RemoteRight::Read, r_key, va, len)?;
            }
            return Ok(Bring::Read { va, r_key, len });
        }
        let atomic = packet.extended.atomic.ok_or(Refusal::InvalidRequest)?;
        let (va, r_key) = (atomic.va, atomic.r_key);
        if !limits.access.admits(RemoteRight::Atomic) || !va.is_multiple_of(8) {
            return Err(Refusal::InvalidRequest);
        }
        host.check(RemoteRight::Atomic, r_key, va, 8)?;
        let op = match packet.bth.opcode.operation() {
            Operation::CMP_SWAP => AtomicOp::CompareSwap {
                compare: atomic.compare,
                swap: atomic.swap_or_add,
            },
            _ => AtomicOp::FetchAdd {
                add: atomic.swap_or_add,
            },
        };
        let original = host.atomic(r_key, va, op)?;
        Ok(Bring::Atomic { original })
    }

    /// A packet that came before. protocols 2.5.4.
    fn duplicate(
        &mut self,
        packet: &Transport<'_>,
        host: &mut dyn ResponderHost,
    ) -> Result<(), Refusal> {
        let psn = packet.bth.psn;
        let operation = packet.bth.opcode.operation();
        let is_atomic = matches!(operation, Operation::CMP_SWAP | Operation::FETCH_ADD);
        if operation != Operation::READ_REQUEST && !is_atomic {
            if self.tail.is_none_or(|(_, tail)| tail == Tail::Ack) {
                let last = self.expected.plus(0xff_ffff);
                self.tail = Some((last, Tail::Ack));
            }
            return Ok(());
        }
        let holds = |one: &&Remembered| psn.since(one.first) < one.psns;
        let Some(one) = self.remembered.iter().find(holds).copied() else {
            return Ok(());
        };
        match (one.what, packet.extended.reth) {
            (Done::Read { len }, Some(reth)) => {
                let skipped = psn
                    .since(one.first)
                    .saturating_mul(self.limits.mtu.bytes() as u32);
                let psns = packets(reth.dma_len, self.limits.mtu);
                if reth.dma_len > len.saturating_sub(skipped) {
                    return Ok(());
                }
                let (va, r_key, len) = (reth.va, reth.r_key, reth.dma_len);
                if len != 0 {
                    host.check(RemoteRight::Read, r_key, va, len)?;
                }
                self.bring_again(psn, psns, Bring::Read { va, r_key, len });
            }
            (Done::Atomic { original }, None) => {
                self.bring_again(psn, 1, Bring::Atomic { original });
            }
            _ => {}
        }
        Ok(())
    }

    /// Answers once more, in the place that is due to the PSN.
    fn bring_again(&mut self, first: Psn, psns: u32, what: Bring) {
        let again = Pending {
            first,
            psns,
            sent: 0,
            what,
            again: true,
        };
        let expected = self.expected;
        let before = |psn: Psn| expected.since(psn);
        // What is not sent yet of the same operation ends where this ends.
        let end = first.plus(psns);
        let mut at = 0;
        while let Some(one) = self.pending.get_mut(at) {
            let one_end = one.first.plus(one.psns);
            if one_end == end {
                *one = Pending {
                    again: one.again,
                    ..again
                };
                return;
            }
            if before(one_end) < before(end) {
                break;
            }
            at += 1;
        }
        self.pending.insert(at, again);
    }

    /// The packet that goes next; the same until [`sent`](Self::sent) says that it went. `credits` counts the receive
    /// requests that there are, the one in hand included.
    pub fn next_reply(&mut self, credits: CreditCode) -> Option<Reply> {
        let ack = Aeth {
            syndrome: Syndrome::ack(credits),
            msn: self.msn,
        };
        let mut extended = Extended {
            aeth: Some(ack),
            ..Extended::default()
        };
        let Some(one) = self.pending.front() else {
            let (psn, tail) = self.tail?;
            let syndrome = match tail {
                Tail::Ack => Syndrome::ack(credits),
                Tail::NotReady => Syndrome::rnr_nak(self.limits.rnr_timer),
                Tail::Nak(code) => Syndrome::nak(code),
            };
            extended.aeth = Some(Aeth { syndrome, ..ack });
            return Some(Reply {
                operation: Operation::ACKNOWLEDGE,
                extended,
                psn,
                data: None,
            });
        };
        let psn = one.first.plus(one.sent);
        let (operation, data) = match one.what {
            Bring::Atomic { original } => {
                extended.atomic_ack = Some(AtomicAckEth { original });
                (Operation::ATOMIC_ACKNOWLEDGE, None)
            }
            Bring::Read { va, r_key, len } => {
                let mtu = self.limits.mtu.bytes() as u32;
                let offset = one.sent.saturating_mul(mtu).min(len);
                let operation = match (one.sent == 0, one.sent.saturating_add(1) >= one.psns) {
                    (true, true) => Operation::READ_RESPONSE_ONLY,
                    (true, false) => Operation::READ_RESPONSE_FIRST,
                    (false, false) => Operation::READ_RESPONSE_MIDDLE,
                    (false, true) => Operation::READ_RESPONSE_LAST,
                };
                if operation == Operation::READ_RESPONSE_MIDDLE {
                    extended.aeth = None;
                }
                let data = ReplyData {
                    va: va.wrapping_add(u64::from(offset)),
                    r_key,
                    len: (len - offset).min(mtu),
                };
                (operation, Some(data))
            }
        };
        Some(Reply {
            operation,
            extended,
            psn,
            data,
        })
    }

    /// That packet went out.
    pub fn sent(&mut self, reply: &Reply) {
        let Some(one) = self.pending.front_mut() else {
            self.tail = None;
            return;
        };
        one.sent = one.sent.saturating_add(1);
        if one.sent >= one.psns {
            self.pending.pop_front();
        }
        // An acknowledge of what came before the answer has become needless.
        let expected = self.expected;
        self.tail = self.tail.filter(|&(psn, tail)| {
            tail != Tail::Ack || expected.since(psn) < expected.since(reply.psn)
        });
    }

    /// The payload of that packet cannot be read: the peer is told instead, and the connection is over.
    pub fn cannot_send(&mut self, reply: &Reply, refusal: Refusal) {
        self.pending.clear();
        self.refuse(reply.psn, refusal);
    }

    /// Nothing more is accepted or sent, but for a refusal that has ended the connection already, and what goes before it.
    pub fn stop(&mut self) {
        if core::mem::replace(&mut self.failed, true) {
            return;
        }
        self.pending.clear();
        self.tail = None;
    }
}
