//! Two ends of a connection, engines and memories, over a channel that loses and repeats.

mod path;
mod rc;
mod refusals;
mod uc;

use super::tests::node;
use super::*;
use crate::fabric::NodeState;
use core::time::Duration;
use core_ib::wire::packet::{
    CreditCode, ImmDt, MAX_PACKET, Operation, Packet, RnrTimer, Service, Transport,
};
use core_ib::{Instant, Lid, Mtu, Psn, Qpn, RKey, Sl};
use std::collections::VecDeque;

/// The one key of every memory here.
const KEY: RKey = RKey(0x1234);
const MTU: Mtu = Mtu::Mtu256;

/// Memory and receive queue of one end.
#[derive(Default)]
struct Owner {
    memory: Vec<u8>,
    /// Sizes of the buffers that are posted.
    posted: VecDeque<usize>,
    in_hand: Option<Vec<u8>>,
    received: Vec<(Vec<u8>, Receipt)>,
    atomics: usize,
    shared: bool,
}

impl Owner {
    fn range(&self, va: u64, len: usize) -> Result<core::ops::Range<usize>, Refusal> {
        let start = usize::try_from(va).map_err(|_| Refusal::RemoteAccess)?;
        let end = start
            .checked_add(len)
            .filter(|&end| end <= self.memory.len());
        Ok(start..end.ok_or(Refusal::RemoteAccess)?)
    }

    fn credits(&self) -> CreditCode {
        if self.shared {
            return CreditCode::NONE;
        }
        let in_hand = u32::from(self.in_hand.is_some());
        CreditCode::at_most(self.posted.len() as u32 + in_hand)
    }
}

impl ResponderHost for Owner {
    fn begin_receive(&mut self) -> Result<bool, Refusal> {
        if self.in_hand.is_none() {
            self.in_hand = self.posted.pop_front().map(|len| vec![0; len]);
        }
        Ok(self.in_hand.is_some())
    }

    fn place(&mut self, offset: u32, payload: &[u8]) -> Result<(), Refusal> {
        let buffer = self.in_hand.as_mut().expect("a request in hand");
        let start = offset as usize;
        let place = buffer.get_mut(start..start + payload.len());
        place
            .ok_or(Refusal::ReceiveLength)?
            .copy_from_slice(payload);
        Ok(())
    }

    fn finish_receive(&mut self, receipt: &Receipt) {
        let buffer = self.in_hand.take().expect("a request in hand");
        self.received.push((buffer, *receipt));
    }

    fn check(&mut self, _: RemoteRight, r_key: RKey, va: u64, len: u32) -> Result<(), Refusal> {
        if r_key != KEY {
            return Err(Refusal::RemoteAccess);
        }
        self.range(va, len as usize).map(|_| ())
    }

    fn write(&mut self, _: RKey, va: u64, payload: &[u8]) -> Result<(), Refusal> {
        let range = self.range(va, payload.len())?;
        self.memory[range].copy_from_slice(payload);
        Ok(())
    }

    fn atomic(&mut self, _: RKey, va: u64, op: AtomicOp) -> Result<u64, Refusal> {
        let range = self.range(va, 8)?;
        let original = u64::from_be_bytes(self.memory[range.clone()].try_into().unwrap());
        self.memory[range].copy_from_slice(&op.apply(original).to_be_bytes());
        self.atomics += 1;
        Ok(original)
    }
}

fn connection(service: Service) -> Connection {
    Connection {
        service,
        qpn: Qpn::new(0x404),
        dest_qp: Qpn::new(0x405),
        path: AddressVector {
            dlid: Lid(8),
            sl: Sl::new(0),
            path_bits: 0,
            grh: None,
        },
        p_key_index: 0,
        migration: Migration::Migrated,
    }
}

/// Makes the packet that an engine asked for.
fn make(
    node: &NodeState,
    service: Service,
    operation: Operation,
    psn: Psn,
    (extended, ack_req, solicited): (core_ib::wire::packet::Extended, bool, bool),
    payload: &[u8],
) -> Vec<u8> {
    let port = node.port(1).unwrap();
    let mut headers = connection(service)
        .headers(port, operation, psn, extended)
        .unwrap();
    (headers.bth.ack_req, headers.bth.solicited) = (ack_req, solicited);
    let mut out = [0; MAX_PACKET];
    headers.write(payload, &mut out).unwrap().to_vec()
}

fn read(bytes: &[u8]) -> Transport<'_> {
    *Packet::read_checked(bytes).unwrap().transport().unwrap()
}

fn requester_limits() -> RequesterLimits {
    RequesterLimits {
        mtu: MTU,
        timeout: 10,
        retry_count: 7,
        rnr_retry: 7,
        max_rd_atomic: 4,
        max_requests: 16,
        ignore_credits: false,
    }
}

fn responder_limits() -> ResponderLimits {
    ResponderLimits {
        mtu: MTU,
        access: RemoteAccess {
            read: true,
            write: true,
            atomic: true,
        },
        max_rd_atomic: 4,
        rnr_timer: RnrTimer::new(1),
    }
}

/// A request and the bytes that it sends, or that it brought.
#[derive(Clone, Debug)]
struct Job {
    request: Request,
    fence: bool,
    data: Vec<u8>,
}

/// A requester and the responder that it talks to.
struct Pair {
    node: NodeState,
    now: Instant,
    requester: RcRequester<usize>,
    responder: RcResponder,
    owner: Owner,
    jobs: Vec<Job>,
    begun: usize,
    completed: Vec<usize>,
    /// On their way.
    there: VecDeque<Vec<u8>>,
    back: VecDeque<Vec<u8>>,
    /// What the channel does with the next packet.
    fate: Box<dyn FnMut(&Transport<'_>) -> Fate>,
    /// Opcode and PSN of all that was sent by the requester.
    log: Vec<(Operation, Psn)>,
    refusal: Option<Refusal>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Arrives,
    Lost,
    Twice,
}

impl Pair {
    fn new(psn: Psn, limits: (RequesterLimits, ResponderLimits), jobs: Vec<Job>) -> Self {
        Self {
            node: node(),
            now: Instant(0),
            requester: RcRequester::new(psn, limits.0),
            responder: RcResponder::new(psn, limits.1),
            owner: Owner {
                memory: vec![0; 8192],
                ..Owner::default()
            },
            jobs,
            begun: 0,
            completed: Vec::new(),
            there: VecDeque::new(),
            back: VecDeque::new(),
            fate: Box::new(|_| Fate::Arrives),
            log: Vec::new(),
            refusal: None,
        }
    }

    fn convey(&mut self, bytes: Vec<u8>, there: bool) {
        let queue = if there {
            &mut self.there
        } else {
            &mut self.back
        };
        match (self.fate)(&read(&bytes)) {
            Fate::Lost => {}
            Fate::Arrives => queue.push_back(bytes),
            Fate::Twice => queue.extend([bytes.clone(), bytes]),
        }
    }

    /// The requester sends one packet, if it may.
    fn request(&mut self) -> bool {
        while let Some(job) = self.jobs.get(self.begun)
            && self.requester.may_begin(&job.request, job.fence)
        {
            self.requester.begin(job.request, self.begun);
            self.begun += 1;
        }
        let Some(transmit) = self.requester.transmit(self.now) else {
            return false;
        };
        assert_eq!(
            self.requester.transmit(self.now),
            Some(transmit),
            "until it is sent"
        );
        let Transmit { packet, psn, .. } = transmit;
        let job = &self.jobs[*self.requester.tag(transmit.slot).unwrap()];
        let start = packet.offset as usize;
        let payload = job
            .data
            .get(start..start + packet.len as usize)
            .unwrap_or(&[]);
        let flags = (packet.extended, transmit.ack_req, packet.solicited);
        let bytes = make(
            &self.node,
            Service::Rc,
            packet.operation,
            psn,
            flags,
            payload,
        );
        self.log.push((packet.operation, psn));
        self.requester.sent(&transmit, self.now);
        self.convey(bytes, true);
        true
    }
}

impl Pair {
    /// The responder sends one packet, if it has one.
    fn reply(&mut self) -> bool {
        let Some(reply) = self.responder.next_reply(self.owner.credits()) else {
            return false;
        };
        let mut payload = Vec::new();
        if let Some(data) = reply.data {
            match self.owner.range(data.va, data.len as usize) {
                Ok(range) => payload.extend_from_slice(&self.owner.memory[range]),
                Err(refusal) => {
                    self.responder.cannot_send(&reply, refusal);
                    self.refusal = Some(refusal);
                    return true;
                }
            }
        }
        let flags = (reply.extended, false, false);
        let bytes = make(
            &self.node,
            Service::Rc,
            reply.operation,
            reply.psn,
            flags,
            &payload,
        );
        self.responder.sent(&reply);
        self.convey(bytes, false);
        true
    }

    /// One packet arrives at each end.
    fn deliver(&mut self) -> bool {
        let there = self.there.pop_front();
        if let Some(bytes) = &there {
            let taken = self.responder.receive(&read(bytes), &mut self.owner);
            self.refusal = self.refusal.or(taken.err());
        }
        let back = self.back.pop_front();
        if let Some(bytes) = &back {
            let packet = read(bytes);
            match self.requester.receive(&packet, self.now) {
                Response::Noted | Response::Ignored => {}
                Response::Data { slot, offset } => {
                    let job = &mut self.jobs[*self.requester.tag(slot).unwrap()];
                    assert_eq!(job.data.len(), offset as usize, "in order, once");
                    job.data.extend_from_slice(packet.payload);
                    self.requester.placed(self.now);
                }
                Response::Original { slot, original } => {
                    let job = &mut self.jobs[*self.requester.tag(slot).unwrap()];
                    job.data = original.to_be_bytes().to_vec();
                    self.requester.placed(self.now);
                }
            }
        }
        while let Some((_, index)) = self.requester.pop_completed() {
            self.completed.push(index);
        }
        there.is_some() || back.is_some()
    }

    /// Until nothing moves and no clock runs. Gives up after many turns.
    fn run(&mut self) {
        for _ in 0..200_000 {
            if self.requester.failure().is_some() {
                return;
            }
            let moved = [self.request(), self.reply(), self.deliver()];
            if moved.contains(&true) {
                self.now = self.now.after(Duration::from_nanos(500));
                continue;
            }
            let Some(due) = self.requester.deadline() else {
                return;
            };
            self.now = self.now.max(due);
            self.requester.expired(self.now);
        }
        panic!("no end");
    }
}

fn send(data: &[u8]) -> Job {
    let op = RequestOp::Send {
        imm: None,
        solicited: false,
    };
    job(op, data.to_vec())
}

fn job(op: RequestOp, data: Vec<u8>) -> Job {
    let len = data.len() as u32;
    Job {
        request: Request { op, len },
        fence: false,
        data,
    }
}

fn write(va: u64, data: &[u8]) -> Job {
    let op = RequestOp::Write {
        va,
        r_key: KEY,
        imm: None,
        solicited: false,
    };
    job(op, data.to_vec())
}

fn read_job(va: u64, len: u32) -> Job {
    let op = RequestOp::Read { va, r_key: KEY };
    Job {
        request: Request { op, len },
        ..job(op, Vec::new())
    }
}

fn atomic(va: u64, op: AtomicOp) -> Job {
    let op = RequestOp::Atomic { va, r_key: KEY, op };
    Job {
        request: Request { op, len: 8 },
        ..job(op, Vec::new())
    }
}

fn imm(value: u8) -> Option<ImmDt> {
    Some(ImmDt([value; 4]))
}
