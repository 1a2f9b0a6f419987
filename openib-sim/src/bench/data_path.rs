//! Posting, polling and arming: nanoseconds and instructions for each request, by the conventions of the C figures
//! (`docs/performance.md`): queues of 256, one scatter entry, all requests signalled, locks real, memory in place of
//! registers.

use super::plain::Plain;
use super::steps;
use super::table::{Cell, Row};
use core_ib::platform::{DmaBuf, LetGo, NoWake};
use core_ib::verbs::{
    Access, AhAttr, CompletionQueue, CqInit, Device, MrInit, NotifyKind, Owner, QpAttr,
    QpAttrMask as M, QpCaps, QpInit, QpState, QpType, QueuePair, RecvWr, SendFlags, SendOp, SendWr,
    Sge, Signaling, Verbs, WorkCompletion,
};
use core_ib::{Guid, Lid, Psn, QKey};
use hca_abi::infinihost::cqe::{Cqe, ErrorCqe, Syndrome};
use hca_abi::infinihost::doorbell::{ReceiveDoorbell, SendDoorbell};
use hca_abi::infinihost::regs::uar;
use mthca_hw::{Hca, Interrupts, Profile};
use platform_sim::hca::infinihost::{Config, InfiniHost};
use platform_sim::machine::{Cable, LinkParameters, SimPlatform, WireEnd, World};
use std::hint::black_box;
use std::time::{Duration, Instant};
use zerocopy::IntoBytes;

/// Requests of a queue, less the one that is never used.
const DEPTH: u32 = 255;
/// Entries of the CQ.
const CQ_ENTRIES: u32 = 256;
/// Rounds whose median counts.
const ROUNDS: usize = 301;

type Machine<'s> = Plain<'s>;

/// Instructions of a C provider for the same (rdma-core 65, libmthca, Tavor, gcc -O2; recorded once).
const C_FIGURES: [(&str, u32); 13] = [
    ("post_send, UD 64 B, 1 a call", 195),
    ("post_recv, 1 a call", 123),
    ("post_recv, 8 a call", 71),
    ("post_recv, 32 a call", 65),
    ("poll_cq, one send", 164),
    ("poll_cq, one receive", 194),
    ("poll_cq, 16 sends", 77),
    ("poll_cq, 16 receives", 107),
    ("poll_cq, nothing there", 55),
    ("poll_cq, one error", 202),
    ("req_notify_cq", 14),
    // The C figures of several sends a call are of RC, which takes 7 less than UD for one.
    ("post_send, UD 64 B, 8 a call", 123 + 7),
    ("post_send, UD 64 B, 32 a call", 116 + 7),
];

/// What was measured of one kind of call.
struct Figure {
    name: String,
    /// Requests or completions of a call.
    per_call: u32,
    ns: f64,
    instructions: Option<u64>,
}

impl Figure {
    fn row(self) -> Row {
        let requests = f64::from(self.per_call.max(1));
        let mine = self.instructions.map(|count| count as f64 / requests);
        let c = C_FIGURES.iter().find(|(name, _)| *name == self.name);
        let c = c.map(|&(_, count)| f64::from(count));
        let or_dash = |value: Option<f64>| value.map_or(Cell::None, Cell::Count);
        Row {
            name: self.name,
            cells: vec![
                Cell::Text(format!("{:.1} ns", self.ns / requests)),
                or_dash(mine),
                or_dash(c),
                mine.zip(c)
                    .map_or(Cell::None, |(mine, c)| Cell::Ratio(mine / c)),
            ],
        }
    }
}

/// The rows of the data path.
pub fn run() -> Result<Vec<Row>, String> {
    let cable = Cable::new(LinkParameters::X4_SDR, Duration::from_nanos(50));
    let config = platform_sim::machine::Config {
        seed: 1,
        stack: 1 << 20,
        stack_budget: None,
        ..platform_sim::machine::Config::default()
    };
    let mut world = World::with(config, cable);
    let hca = Box::new(InfiniHost::new(Config::new(Guid(0x0002_c900_0000_0100))));
    let host = world.add_host("host", hca, &[WireEnd(0), WireEnd(1)]);
    let task = world.spawn(host, "driver", measure);
    world.finish(task).map_err(|stuck| stuck.to_string())?
}

fn text(error: impl core::fmt::Display) -> String {
    error.to_string()
}

fn measure(sim: &SimPlatform) -> Result<Vec<Row>, String> {
    let machine = Plain::new(sim);
    let profile = Profile {
        interrupts: Interrupts::None,
        ..Profile::SERVER
    };
    let hca = Hca::open(&machine, &NoWake, &profile).map_err(text)?;
    let figures = with_hca(&machine, &hca)?;
    hca.close().map_err(|(_, error)| error.to_string())?;
    Ok(figures.into_iter().map(Figure::row).collect())
}

/// Makes the objects, measures, and takes them down.
fn with_hca<'m>(
    machine: &'m Machine<'_>,
    hca: &Hca<'m, Machine<'_>>,
) -> Result<Vec<Figure>, String> {
    let pd = hca.alloc_pd().map_err(text)?;
    let owner = Owner::Kernel;
    let cq_init = CqInit {
        cqe: CQ_ENTRIES - 1,
        vector: 0,
        owner,
    };
    let cq = hca.create_cq(&cq_init).map_err(text)?.handle;
    let ring = machine.last_dma();
    let ring = ring.filter(|ring| ring.len == size_of::<Cqe>() * CQ_ENTRIES as usize);
    let ring = ring.ok_or("the memory of the CQ is not as expected")?;
    let init = QpInit {
        qp_type: QpType::Ud,
        port: 1,
        send_cq: cq,
        recv_cq: cq,
        srq: None,
        caps: QpCaps {
            max_send_wr: DEPTH,
            max_recv_wr: DEPTH,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
        },
        signaling: Signaling::All,
        owner,
    };
    let qp = hca.create_qp(pd, &init).map_err(text)?.handle;
    let attr = QpAttr {
        port: 1,
        qkey: QKey(0x1234),
        sq_psn: Psn::new(0),
        ..QpAttr::EMPTY
    };
    for (state, mask) in [
        (QpState::Init, M::PKEY_INDEX | M::QKEY | M::PORT),
        (QpState::Rtr, M::empty()),
        (QpState::Rts, M::SQ_PSN),
    ] {
        let attr = QpAttr { state, ..attr };
        hca.modify_qp(qp, &attr, mask | M::STATE).map_err(text)?;
    }
    let memory = DmaBuf::new(machine, 4096, 4096).map_err(text)?;
    let mr_init = MrInit {
        iova: 0,
        length: 4096,
        pages: &[memory.addr()],
        page_shift: 12,
        access: Access::LOCAL_WRITE,
    };
    // SAFETY: the memory is given back behind the region; nobody reads it.
    let mr = unsafe { hca.reg_mr(pd, &mr_init) }.map_err(text)?;
    let to = AhAttr {
        port: 1,
        dlid: Lid(2),
        ..AhAttr::default()
    };
    let ah = hca.create_ah(pd, &to).map_err(text)?;
    let figures = {
        let (qp, cq) = (hca.qp(qp).map_err(text)?, hca.cq(cq).map_err(text)?);
        let sge = Sge {
            addr: 0,
            length: 64,
            lkey: mr.lkey,
        };
        let op = SendOp::Datagram {
            ah,
            remote_qpn: qp.qpn(),
            remote_qkey: QKey(0x1234),
            imm: None,
            pkey_index: 0,
        };
        let mut bench = Bench::new(machine, qp, cq, ring.memory.as_ptr(), op, sge)?;
        bench.all()?
    };
    hca.destroy_ah(ah).map_err(text)?;
    hca.destroy_qp(qp).map_err(text)?;
    hca.dereg_mr(mr.handle).map_err(text)?;
    hca.destroy_cq(cq).map_err(text)?;
    hca.dealloc_pd(pd).map_err(text)?;
    // SAFETY: the region over it is gone.
    memory.free(unsafe { LetGo::claim() });
    Ok(figures)
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
    fn address(&self, counter: u32) -> u32 {
        self.base + (counter & DEPTH) * self.stride
    }
}

/// The queues that are measured, and what the benchmark knows of them as the HCA.
struct Bench<Q, C> {
    qp: Q,
    cq: C,
    number: u32,
    entries: *mut u8,
    producer: u32,
    send: Ring,
    recv: Ring,
    op: SendOp,
    sge: Sge,
}

/// One kind of call, with its arguments.
struct Call<'a, Q, C> {
    qp: &'a Q,
    cq: &'a C,
    sends: &'a [SendWr<'a>],
    recvs: &'a [RecvWr<'a>],
    into: &'a mut [WorkCompletion],
    /// It did what was expected.
    good: bool,
}

fn post_send<Q: QueuePair, C>(call: &mut Call<'_, Q, C>) {
    call.good = call.qp.post_send(call.sends).is_ok();
}

fn post_recv<Q: QueuePair, C>(call: &mut Call<'_, Q, C>) {
    call.good = call.qp.post_recv(call.recvs).is_ok();
}

fn poll_cq<Q, C: CompletionQueue>(call: &mut Call<'_, Q, C>) {
    call.good = call
        .cq
        .poll(call.into)
        .is_ok_and(|count| count == call.into.len());
}

fn poll_nothing<Q, C: CompletionQueue>(call: &mut Call<'_, Q, C>) {
    call.good = call.cq.poll(call.into) == Ok(0);
}

fn req_notify<Q, C: CompletionQueue>(call: &mut Call<'_, Q, C>) {
    call.good = call.cq.req_notify(NotifyKind::Any).is_ok();
}

/// What the HCA writes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Send,
    Receive,
    Error,
}

impl<Q: QueuePair, C: CompletionQueue> Bench<Q, C> {
    /// Learns from the doorbells of the first requests where the rings are.
    fn new(
        machine: &Machine<'_>,
        qp: Q,
        cq: C,
        entries: *mut u8,
        op: SendOp,
        sge: Sge,
    ) -> Result<Self, String> {
        let mut bench = Self {
            qp,
            cq,
            number: 0,
            entries,
            producer: 0,
            send: Ring::default(),
            recv: Ring::default(),
            op,
            sge,
        };
        let mut addresses = [[0; 2]; 2];
        for at in &mut addresses {
            bench.calls(1, 1, post_send)?;
            let rung = SendDoorbell::decode(machine.doorbell(uar::SEND));
            bench.number = rung.qpn;
            bench.calls(1, 1, post_recv)?;
            let received = ReceiveDoorbell::decode(machine.doorbell(uar::RECEIVE));
            *at = [rung.nda, received.nda];
        }
        let [first, second] = addresses;
        let ring = |which: usize| Ring {
            base: first[which],
            stride: second[which].wrapping_sub(first[which]),
            completed: 0,
        };
        (bench.send, bench.recv) = (ring(0), ring(1));
        bench.complete(Outcome::Send, 2);
        bench.complete(Outcome::Receive, 2);
        bench.calls(4, 1, poll_cq)?;
        Ok(bench)
    }

    /// Runs `f` for `calls` times with `requests` requests each; the time of all.
    fn calls(
        &self,
        calls: u32,
        requests: usize,
        f: fn(&mut Call<'_, Q, C>),
    ) -> Result<Duration, String> {
        self.with_call(requests, |call| {
            let start = Instant::now();
            let mut good = true;
            for _ in 0..calls {
                f(black_box(call));
                good &= call.good;
            }
            let time = start.elapsed();
            good.then_some(time).ok_or_else(|| "a call failed".into())
        })
    }

    fn count(&self, requests: usize, f: fn(&mut Call<'_, Q, C>)) -> Option<u64> {
        self.with_call(requests, |call| {
            // The zero and the call itself: only the latter works on the queues.
            steps::count(f, call)
        })
    }

    fn with_call<T>(&self, requests: usize, f: impl FnOnce(&mut Call<'_, Q, C>) -> T) -> T {
        let sges = [self.sge];
        let send = SendWr {
            wr_id: 7,
            op: self.op,
            sges: &sges,
            inline: &[],
            flags: SendFlags::SIGNALED,
        };
        let recv = RecvWr {
            wr_id: 8,
            sges: &sges,
        };
        let mut into = vec![WorkCompletion::EMPTY; requests];
        let mut call = Call {
            qp: &self.qp,
            cq: &self.cq,
            sends: &vec![send; requests],
            recvs: &vec![recv; requests],
            into: &mut into,
            good: false,
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

impl<Q: QueuePair, C: CompletionQueue> Bench<Q, C> {
    fn all(&mut self) -> Result<Vec<Figure>, String> {
        let mut figures = Vec::new();
        for requests in [1, 8, 32] {
            figures.push(self.posting("post_send, UD 64 B", Outcome::Send, requests)?);
        }
        for requests in [1, 8, 32] {
            figures.push(self.posting("post_recv", Outcome::Receive, requests)?);
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
        for (name, call) in [
            (
                "poll_cq, nothing there",
                poll_nothing as fn(&mut Call<'_, Q, C>),
            ),
            ("req_notify_cq", req_notify),
        ] {
            let rounds: Result<Vec<f64>, String> = (0..ROUNDS)
                .map(|_| Ok(ns(self.calls(200, 1, call)?, 200)))
                .collect();
            figures.push(Figure {
                name: name.into(),
                per_call: 1,
                ns: median(rounds?),
                instructions: self.count(1, call),
            });
        }
        Ok(figures)
    }

    fn post(outcome: Outcome) -> fn(&mut Call<'_, Q, C>) {
        if outcome == Outcome::Receive {
            post_recv
        } else {
            post_send
        }
    }

    /// Completes `count` requests and polls them away.
    fn clear(&mut self, outcome: Outcome, count: u32) -> Result<(), String> {
        self.complete(outcome, count);
        self.calls(count, 1, poll_cq).map(|_| ())
    }

    fn posting(&mut self, name: &str, outcome: Outcome, requests: u32) -> Result<Figure, String> {
        let (calls, post) = (192 / requests, Self::post(outcome));
        let mut rounds = Vec::new();
        for _ in 0..ROUNDS {
            rounds.push(ns(self.calls(calls, requests as usize, post)?, calls));
            self.clear(outcome, calls * requests)?;
        }
        let instructions = self.count(requests as usize, post);
        if instructions.is_some() {
            self.clear(outcome, requests)?;
        }
        Ok(Figure {
            name: format!("{name}, {requests} a call"),
            per_call: requests,
            ns: median(rounds),
            instructions,
        })
    }

    fn polling(&mut self, name: &str, outcome: Outcome, requests: u32) -> Result<Figure, String> {
        let calls = 192 / requests;
        let mut rounds = Vec::new();
        for _ in 0..ROUNDS {
            self.calls(calls * requests, 1, Self::post(outcome))?;
            self.complete(outcome, calls * requests);
            rounds.push(ns(self.calls(calls, requests as usize, poll_cq)?, calls));
        }
        self.calls(requests, 1, Self::post(outcome))?;
        self.complete(outcome, requests);
        let instructions = self.count(requests as usize, poll_cq);
        Ok(Figure {
            name: name.into(),
            per_call: requests,
            ns: median(rounds),
            instructions,
        })
    }
}
