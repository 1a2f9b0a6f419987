//! The queues that are measured, and what the benchmark knows of them as the HCA: where requests lie, and how to write
//! their completions.

use super::super::steps;
use super::{CQ_ENTRIES, DEPTH, Figure, Machine};
use core_ib::RKey;
use core_ib::platform::RawDma;
use core_ib::verbs::{
    CompletionQueue, NotifyKind, PostError, QueuePair, RecvWr, RemoteAddr, SendFlags, SendOp,
    SendWr, Sge, SharedReceiveQueue, WorkCompletion,
};
use hca_abi::infinihost::cqe::{Cqe, ErrorCqe, Syndrome};
use hca_abi::infinihost::doorbell::SendDoorbell;
use hca_abi::infinihost::regs::uar;
use hca_abi::infinihost::wqe::next;
use std::hint::black_box;
use std::time::{Duration, Instant};
use zerocopy::IntoBytes;

/// Rounds whose median counts.
const ROUNDS: usize = 301;
/// Instructions of a function that returns a constant and does nothing else: it, and the return.
const NOTHING: u64 = 2;
/// Of a call that did what it was to do.
const DONE: isize = 1;

/// Resolved.
pub struct Queues<Q, C, S> {
    pub qp: Q,
    pub cq: C,
    pub srq: S,
}

/// One work queue, as the HCA knows it.
#[derive(Clone, Copy, Default)]
struct Ring {
    base: u32,
    stride: u32,
    /// Requests completed so far.
    completed: u32,
}

impl Ring {
    /// Of a queue whose last entry is linked to its first.
    fn of(memory: &RawDma) -> Self {
        let stride = memory.len / (DEPTH as usize + 1);
        let last = DEPTH as usize * stride + next::NDA;
        // SAFETY: in the memory of the queue; the driver writes whole words of it.
        let nda = unsafe {
            memory
                .memory
                .as_ptr()
                .add(last)
                .cast::<u32>()
                .read_volatile()
        };
        Self {
            base: u32::from_be(nda) & !0x3f,
            stride: stride as u32,
            completed: 0,
        }
    }

    fn address(&self, counter: u32) -> u32 {
        self.base + (counter & DEPTH) * self.stride
    }
}

/// See the module.
pub struct Bench<Q, C, S> {
    queues: Queues<Q, C, S>,
    number: u32,
    entries: *mut u8,
    producer: u32,
    send: Ring,
    recv: Ring,
    op: SendOp,
    sge: Sge,
    /// Bytes of inline data, if there are any.
    inline: usize,
}

/// One kind of call, with its arguments.
struct Call<'a, Q, C, S> {
    queues: &'a Queues<Q, C, S>,
    verbs: Verbs<Q, C, S>,
    sends: &'a [SendWr<'a>],
    recvs: &'a [RecvWr<'a>],
    into: &'a mut [WorkCompletion],
    /// What came back.
    outcome: isize,
}

/// The functions that are counted, from their first instruction to their return, and nothing around them.
#[derive(Clone, Copy)]
struct Verbs<Q, C, S> {
    post_send: fn(&Q, &[SendWr<'_>]) -> Result<(), PostError>,
    post_recv: fn(&Q, &[RecvWr<'_>]) -> Result<(), PostError>,
    post_srq_recv: fn(&S, &[RecvWr<'_>]) -> Result<(), PostError>,
    poll_cq: fn(&C, &mut [WorkCompletion]) -> isize,
    req_notify: fn(&C, NotifyKind) -> bool,
}

impl<Q: QueuePair, C: CompletionQueue, S: SharedReceiveQueue> Verbs<Q, C, S> {
    const REAL: Self = Self {
        post_send: Q::post_send,
        post_recv: Q::post_recv,
        post_srq_recv: S::post_recv,
        poll_cq: |cq, into| cq.poll(into).map_or(-1, |count| count as isize),
        req_notify: |cq, kind| cq.req_notify(kind).is_ok(),
    };
    /// What calling them costs.
    const NOTHING: Self = Self {
        post_send: |_, _| Ok(()),
        post_recv: |_, _| Ok(()),
        post_srq_recv: |_, _| Ok(()),
        poll_cq: |_, _| 0,
        req_notify: |_, _| true,
    };
}

type Verb<Q, C, S> = fn(&mut Call<'_, Q, C, S>);

fn posted(result: Result<(), PostError>) -> isize {
    isize::from(result.is_ok())
}

fn post_send<Q, C, S>(call: &mut Call<'_, Q, C, S>) {
    call.outcome = posted((call.verbs.post_send)(&call.queues.qp, call.sends));
}

fn post_recv<Q, C, S>(call: &mut Call<'_, Q, C, S>) {
    call.outcome = posted((call.verbs.post_recv)(&call.queues.qp, call.recvs));
}

fn post_srq_recv<Q, C, S>(call: &mut Call<'_, Q, C, S>) {
    call.outcome = posted((call.verbs.post_srq_recv)(&call.queues.srq, call.recvs));
}

fn poll_cq<Q, C, S>(call: &mut Call<'_, Q, C, S>) {
    call.outcome = (call.verbs.poll_cq)(&call.queues.cq, call.into);
}

fn req_notify<Q, C, S>(call: &mut Call<'_, Q, C, S>) {
    call.outcome = isize::from((call.verbs.req_notify)(&call.queues.cq, NotifyKind::Any));
}

/// What the HCA writes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Send,
    Receive,
    Error,
}

impl<Q: QueuePair, C: CompletionQueue, S: SharedReceiveQueue> Bench<Q, C, S> {
    /// `memory` of the CQ, the send queue, the receive queue.
    pub fn new(
        machine: &Machine<'_>,
        queues: Queues<Q, C, S>,
        [entries, send, recv]: [RawDma; 3],
        op: SendOp,
        sge: Sge,
    ) -> Result<Self, String> {
        let mut bench = Self {
            queues,
            number: 0,
            entries: entries.memory.as_ptr(),
            producer: 0,
            send: Ring::default(),
            recv: Ring::of(&recv),
            op,
            sge,
            inline: 0,
        };
        // In T-mode a send queue is linked when it is used.
        bench.calls(1, 1, post_send, DONE)?;
        bench.send = Ring::of(&send);
        bench.number = SendDoorbell::decode(machine.doorbell(uar::SEND)).qpn;
        bench.clear(Outcome::Send, 1)?;
        Ok(bench)
    }

    /// Runs `f` for `calls` times with `requests` requests each; the time of all.
    fn calls(
        &self,
        calls: u32,
        requests: usize,
        f: Verb<Q, C, S>,
        expected: isize,
    ) -> Result<Duration, String> {
        self.with_call(requests, |call| {
            let start = Instant::now();
            let mut good = true;
            for _ in 0..calls {
                f(black_box(call));
                good &= call.outcome == expected;
            }
            let time = start.elapsed();
            good.then_some(time).ok_or_else(|| "a call failed".into())
        })
    }

    /// Instructions of one call; it is carried out.
    fn count(&self, requests: usize, f: Verb<Q, C, S>) -> Option<u64> {
        self.with_call(requests, |call| {
            call.verbs = Verbs::NOTHING;
            let around = steps::count(f, call)?;
            call.verbs = Verbs::REAL;
            let all = steps::count(f, call)?;
            Some((all + NOTHING).saturating_sub(around))
        })
    }

    fn with_call<T>(&self, requests: usize, f: impl FnOnce(&mut Call<'_, Q, C, S>) -> T) -> T {
        let sges = [self.sge];
        let (data, inline) = match self.inline {
            0 => (sges.as_slice(), [].as_slice()),
            bytes => ([].as_slice(), [0x5a; 64].get(..bytes).unwrap_or_default()),
        };
        let mut flags = SendFlags::SIGNALED;
        flags.set(SendFlags::INLINE, self.inline > 0);
        let send = SendWr {
            wr_id: 7,
            op: self.op,
            sges: data,
            inline,
            flags,
        };
        let recv = RecvWr {
            wr_id: 8,
            sges: &sges,
        };
        let mut into = vec![WorkCompletion::EMPTY; requests];
        let mut call = Call {
            queues: &self.queues,
            verbs: Verbs::REAL,
            sends: &vec![send; requests],
            recvs: &vec![recv; requests],
            into: &mut into,
            outcome: 0,
        };
        f(&mut call)
    }

    /// Writes completions of the oldest `count` requests, as the HCA would.
    fn complete(&mut self, outcome: Outcome, count: u32) {
        for _ in 0..count {
            let ring = if outcome == Outcome::Receive {
                &mut self.recv
            } else {
                &mut self.send
            };
            let address = ring.address(ring.completed);
            ring.completed = ring.completed.wrapping_add(1);
            let mut good = Cqe::ZERO;
            good.set_qpn(self.number).set_wqe_address(address);
            match outcome {
                Outcome::Send => {
                    good.set_opcode(0x0a).set_is_send(true);
                }
                Outcome::Receive => {
                    good.set_opcode(0x04)
                        .set_byte_count(104)
                        .set_slid(2)
                        .set_remote_qpn(0x404);
                }
                Outcome::Error => {
                    let mut bad = ErrorCqe::ZERO;
                    bad.set_qpn(self.number)
                        .set_wqe_address(address)
                        .set_syndrome(Syndrome::LOCAL_PROTECTION)
                        .set_opcode(Cqe::ERROR_SEND);
                    good = *bad.as_cqe();
                }
            }
            let at = (self.producer & (CQ_ENTRIES - 1)) as usize * size_of::<Cqe>();
            self.producer = self.producer.wrapping_add(1);
            for (offset, byte) in good.as_bytes().iter().enumerate() {
                // SAFETY: within the memory of the CQ, whose length was checked; the driver reads it volatile.
                unsafe { self.entries.add(at + offset).write_volatile(*byte) };
            }
        }
    }
}

/// Nanoseconds of a call: the median of many rounds.
fn median(mut rounds: Vec<f64>) -> f64 {
    rounds.sort_by(f64::total_cmp);
    rounds.get(rounds.len() / 2).copied().unwrap_or(f64::NAN)
}

fn ns(time: Duration, calls: u32) -> f64 {
    time.as_nanos() as f64 / f64::from(calls.max(1))
}

impl<Q: QueuePair, C: CompletionQueue, S: SharedReceiveQueue> Bench<Q, C, S> {
    /// Everything that a datagram QP, its CQ and an SRQ do.
    pub fn datagrams(&mut self) -> Result<Vec<Figure>, String> {
        let mut figures = Vec::new();
        for requests in [1, 8, 32] {
            figures.push(self.posting("UD send 64 B", Outcome::Send, requests)?);
        }
        for requests in [1, 8, 32] {
            figures.push(self.posting("post_recv", Outcome::Receive, requests)?);
        }
        for requests in [1, 8, 32] {
            figures.push(Figure {
                name: format!("post_srq_recv, {requests} a call"),
                per_call: requests,
                ns: None, // nothing is received through it
                instructions: self.count(requests as usize, post_srq_recv),
            });
        }
        for (name, outcome, requests) in [
            ("poll_cq, one send", Outcome::Send, 1),
            ("poll_cq, one receive", Outcome::Receive, 1),
            ("poll_cq, 16 sends", Outcome::Send, 16),
            ("poll_cq, 16 receives", Outcome::Receive, 16),
            ("poll_cq, one error", Outcome::Error, 1),
        ] {
            figures.push(self.polling(name, outcome, requests)?);
        }
        for (name, call, outcome) in [
            ("poll_cq, nothing there", poll_cq as Verb<Q, C, S>, 0),
            ("req_notify_cq", req_notify, DONE),
        ] {
            let rounds: Result<Vec<f64>, String> = (0..ROUNDS)
                .map(|_| Ok(ns(self.calls(200, 1, call, outcome)?, 200)))
                .collect();
            figures.push(Figure {
                name: name.into(),
                per_call: 1,
                ns: Some(median(rounds?)),
                instructions: self.count(1, call),
            });
        }
        Ok(figures)
    }

    /// What a connected QP sends.
    pub fn connected(&mut self) -> Result<Vec<Figure>, String> {
        let mut figures = Vec::new();
        for requests in [1, 8, 32] {
            figures.push(self.posting("RC send 64 B", Outcome::Send, requests)?);
        }
        let send = self.op;
        let remote = RemoteAddr {
            addr: 0x1000,
            rkey: RKey(0x77),
        };
        let write = SendOp::RdmaWrite { remote, imm: None };
        let (compare, swap) = (1, 2);
        let swap = SendOp::CompareSwap {
            remote,
            compare,
            swap,
        };
        for (name, op, length, inline) in [
            ("RC send inline 64 B", send, 0, 64),
            ("RDMA write 4 KiB", write, 4096, 0),
            ("RDMA write inline 16 B", write, 0, 16),
            ("RDMA read 4 KiB", SendOp::RdmaRead { remote }, 4096, 0),
            ("compare and swap", swap, 8, 0),
        ] {
            (self.op, self.sge.length, self.inline) = (op, length, inline);
            let figure = self.posting(name, Outcome::Send, 1)?;
            figures.push(Figure {
                name: name.into(),
                ..figure
            });
        }
        Ok(figures)
    }

    fn post(outcome: Outcome) -> Verb<Q, C, S> {
        if outcome == Outcome::Receive {
            post_recv
        } else {
            post_send
        }
    }

    /// Completes `count` requests and polls them away.
    fn clear(&mut self, outcome: Outcome, count: u32) -> Result<(), String> {
        self.complete(outcome, count);
        self.calls(count, 1, poll_cq, 1).map(|_| ())
    }

    fn posting(&mut self, name: &str, outcome: Outcome, requests: u32) -> Result<Figure, String> {
        let (calls, post) = (192 / requests, Self::post(outcome));
        let mut rounds = Vec::new();
        for _ in 0..ROUNDS {
            let time = self.calls(calls, requests as usize, post, DONE)?;
            rounds.push(ns(time, calls));
            self.clear(outcome, calls * requests)?;
        }
        let instructions = self.count(requests as usize, post);
        if instructions.is_some() {
            self.clear(outcome, requests)?;
        }
        Ok(Figure {
            name: format!("{name}, {requests} a call"),
            per_call: requests,
            ns: Some(median(rounds)),
            instructions,
        })
    }

    fn polling(&mut self, name: &str, outcome: Outcome, requests: u32) -> Result<Figure, String> {
        let calls = 192 / requests;
        let (post, all) = (Self::post(outcome), requests as isize);
        let mut rounds = Vec::new();
        for _ in 0..ROUNDS {
            self.calls(calls * requests, 1, post, DONE)?;
            self.complete(outcome, calls * requests);
            let time = self.calls(calls, requests as usize, poll_cq, all)?;
            rounds.push(ns(time, calls));
        }
        self.calls(requests, 1, post, DONE)?;
        self.complete(outcome, requests);
        let instructions = self.count(requests as usize, poll_cq);
        Ok(Figure {
            name: name.into(),
            per_call: requests,
            ns: Some(median(rounds)),
            instructions,
        })
    }
}
