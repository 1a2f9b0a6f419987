//! Datagrams as fast as the cable takes them, from one host through a switch to another: how many packets the simulator
//! carries in a second of the wall's clock.

use super::table::{Cell, Row};
use crate::sim::{Settings, Simulation};
use core::time::Duration;
use core_ib::platform::{DmaBuf, NoWake, Platform};
use core_ib::verbs::{
    Access, AhAttr, CompletionQueue, CqInit, Device, MrInit, Owner, QpAttr, QpAttrMask as M,
    QpCaps, QpInit, QpState, QpType, QueuePair, RecvWr, SendFlags, SendOp, SendWr, Sge, Signaling,
    Verbs, WorkCompletion,
};
use core_ib::{Lid, Psn, QKey, Qpn};
use ib_stack::Stack;
use mthca_hw::{Hca, Profile};
use platform_sim::fabric::topology::build;
use platform_sim::machine::SimPlatform;
use std::sync::{Arc, Mutex};

/// Requests of a queue.
const DEPTH: u32 = 255;
/// Requests of a call.
const BATCH: usize = 32;
const KEY: QKey = QKey(0x1234);

/// What the two hosts tell each other and the benchmark.
#[derive(Default)]
struct Meeting {
    receiver: Option<(Lid, Qpn)>,
    /// Packets sent, in how much virtual, real and processor time.
    sent: Option<(u64, [Duration; 3])>,
    /// How many came, once no more do.
    received: Option<u64>,
}

type Shared = Arc<Mutex<Meeting>>;

fn at<T>(shared: &Shared, f: impl FnOnce(&mut Meeting) -> T) -> Result<T, String> {
    let mut meeting = shared.lock().map_err(|error| error.to_string())?;
    Ok(f(&mut meeting))
}

fn text(error: impl core::fmt::Display) -> String {
    error.to_string()
}

/// The rows of the floods.
pub fn run() -> Result<Vec<Row>, String> {
    [(64, 40_000), (2048, 10_000)]
        .into_iter()
        .map(|(bytes, packets)| measure(bytes, packets))
        .collect()
}

fn measure(bytes: u32, packets: u64) -> Result<Row, String> {
    let mut simulation = Simulation::new(Settings::new(build::star(2), 1))?;
    let shared = Shared::default();
    let ids: Vec<_> = simulation.hosts.iter().map(|host| host.id).collect();
    let mut tasks = Vec::new();
    for (index, id) in ids.into_iter().enumerate() {
        let shared = shared.clone();
        let task = simulation.world.spawn(id, "flood", move |machine| {
            host(machine, &shared, index == 0, bytes, packets)
        });
        tasks.push(task);
    }
    for task in tasks {
        simulation.world.finish(task).map_err(text)??;
    }
    let (sent, received) = at(&shared, |meeting| (meeting.sent, meeting.received))?;
    let (count, times) = sent.ok_or("nothing was sent")?;
    let received = received.unwrap_or(0);
    if received != count {
        return Err(format!("{received} of {count} packets arrived"));
    }
    let rate = |time: Duration| count as f64 / time.as_secs_f64().max(1e-9);
    Ok(Row {
        name: format!("UD, {bytes} B, host to host through a switch"),
        cells: times
            .map(|time| Cell::Text(format!("{:.0} /s", rate(time))))
            .into(),
    })
}

type HostStack<'h, 'p> = Stack<'h, Hca<'p, SimPlatform>, SimPlatform>;

/// Does what is due in the stack, then sleeps a little.
fn service<'h, 'p>(
    machine: &SimPlatform,
    hca: &'h Hca<'p, SimPlatform>,
    stack: &mut HostStack<'h, 'p>,
    pause: Duration,
) -> Result<(), String> {
    stack.poll(machine.now()).map_err(text)?;
    while let Some(job) = stack.next_job() {
        let done = job.run(hca);
        stack.job_done(done, machine.now());
    }
    while stack.next_event().is_some() {}
    machine.sleep(pause);
    Ok(())
}

fn host(
    machine: &SimPlatform,
    shared: &Shared,
    sends: bool,
    bytes: u32,
    packets: u64,
) -> Result<(), String> {
    let hca = Hca::open(machine, &NoWake, &Profile::SERVER).map_err(text)?;
    let manager = ib_stack::SubnetManager {
        port: 1,
        profile: ib_stack::SmProfile::for_hosts(16),
        config: ib_sm::Config::default(),
    };
    let config = ib_stack::Config {
        interfaces: &[],
        subnet_manager: sends.then_some(manager),
        ..ib_stack::Config::default()
    };
    let mut stack = Stack::open(machine, &hca, &config).map_err(text)?;
    let deadline = machine.now().after(Duration::from_secs(30));
    let pause = Duration::from_micros(20);
    // Both ports active, and the receiver ready.
    let lid = loop {
        service(machine, &hca, &mut stack, pause)?;
        let port = stack.port_status(1).unwrap_or_default();
        let ready = !sends || at(shared, |meeting| meeting.receiver.is_some())?;
        if port.state == 4 && ready {
            break port.lid;
        }
        if machine.now() > deadline {
            return Err("the port did not become active".into());
        }
    };
    let end = End::new(machine, &hca)?;
    if sends {
        let to = at(shared, |meeting| meeting.receiver)?.ok_or("no receiver")?;
        let times = end.send_all(machine, to, bytes, packets)?;
        at(shared, |meeting| meeting.sent = Some((packets, times)))?;
        // A send completes when the port has the packet: closing the HCA now would lose the last of them.
        while at(shared, |meeting| meeting.received.is_none())? && machine.now() < deadline {
            machine.sleep(pause);
        }
    } else {
        let qp = hca.qp(end.qp).map_err(text)?;
        end.post_receives(&qp, DEPTH as usize)?;
        at(shared, |meeting| meeting.receiver = Some((lid, qp.qpn())))?;
        let cq = hca.cq(end.cq).map_err(text)?;
        let mut received = 0;
        let mut quiet = 0;
        // Until all has come, or nothing does any more.
        while received < packets && quiet < 10_000 {
            let mut into = [WorkCompletion::EMPTY; BATCH];
            let count = cq.poll(&mut into).map_err(text)?;
            if count > 0 {
                end.post_receives(&qp, count)?;
                received += count as u64;
                quiet = 0;
            } else if received == 0 {
                service(machine, &hca, &mut stack, pause)?;
            } else {
                quiet += 1;
                machine.sleep(Duration::from_micros(2));
            }
            if machine.now() > deadline {
                break;
            }
        }
        at(shared, |meeting| meeting.received = Some(received))?;
    }
    stack.close().map_err(text)
    // The HCA takes down what is left when it is dropped.
}

/// A datagram QP and a page.
struct End<'h, 'p> {
    hca: &'h Hca<'p, SimPlatform>,
    pd: core_ib::verbs::PdHandle,
    cq: core_ib::verbs::CqHandle,
    qp: core_ib::verbs::QpHandle,
    lkey: core_ib::LKey,
}

impl<'h, 'p> End<'h, 'p> {
    fn new(machine: &'p SimPlatform, hca: &'h Hca<'p, SimPlatform>) -> Result<Self, String> {
        let owner = Owner::Kernel;
        let pd = hca.alloc_pd().map_err(text)?;
        let cq_init = CqInit {
            cqe: 511,
            vector: 0,
            owner,
        };
        let cq = hca.create_cq(&cq_init).map_err(text)?.handle;
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
            qkey: KEY,
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
        // Leaked when dropped: it ends with the world.
        let memory = DmaBuf::new(machine, 4096, 4096).map_err(text)?;
        let mr_init = MrInit {
            iova: 0,
            length: 4096,
            pages: &[memory.addr()],
            page_shift: 12,
            access: Access::LOCAL_WRITE,
        };
        // SAFETY: the memory is never given back, and nobody cares what is in it.
        let mr = unsafe { hca.reg_mr(pd, &mr_init) }.map_err(text)?;
        let lkey = mr.lkey;
        Ok(Self {
            hca,
            pd,
            cq,
            qp,
            lkey,
        })
    }

    fn post_receives<Q: QueuePair>(&self, qp: &Q, count: usize) -> Result<(), String> {
        let sges = [Sge {
            addr: 0,
            length: 4096,
            lkey: self.lkey,
        }];
        let wr = RecvWr {
            wr_id: 0,
            sges: &sges,
        };
        qp.post_recv(&vec![wr; count])
            .map_err(|error| format!("{error:?}"))
    }

    /// Sends `packets` of `bytes` each; how long that took, in virtual, real and processor time.
    fn send_all(
        &self,
        machine: &SimPlatform,
        (dlid, remote_qpn): (Lid, Qpn),
        bytes: u32,
        packets: u64,
    ) -> Result<[Duration; 3], String> {
        let attr = AhAttr {
            port: 1,
            dlid,
            ..AhAttr::default()
        };
        let ah = self.hca.create_ah(self.pd, &attr).map_err(text)?;
        let sges = [Sge {
            addr: 0,
            length: bytes,
            lkey: self.lkey,
        }];
        let wr = SendWr {
            wr_id: 0,
            op: SendOp::Datagram {
                ah,
                remote_qpn,
                remote_qkey: KEY,
                imm: None,
                pkey_index: 0,
            },
            sges: &sges,
            inline: &[],
            flags: SendFlags::SIGNALED,
        };
        let wrs = [wr; BATCH];
        let (qp, cq) = (
            self.hca.qp(self.qp).map_err(text)?,
            self.hca.cq(self.cq).map_err(text)?,
        );
        let (mut posted, mut done) = (0, 0);
        let (start, real) = (machine.now(), std::time::Instant::now());
        let processor = super::processor_time();
        while done < packets {
            while posted < packets && posted - done + BATCH as u64 <= u64::from(DEPTH) {
                let batch = (packets - posted).min(BATCH as u64) as usize;
                let wrs = wrs.get(..batch).unwrap_or(&wrs);
                qp.post_send(wrs).map_err(|error| format!("{error:?}"))?;
                posted += batch as u64;
            }
            let mut into = [WorkCompletion::EMPTY; BATCH];
            let count = cq.poll(&mut into).map_err(text)?;
            done += count as u64;
            if count == 0 {
                machine.sleep(Duration::from_micros(2));
            }
        }
        let processor = super::processor_since(processor);
        let processor = Duration::from_secs_f64(processor.unwrap_or(0.0));
        Ok([machine.now().since(start), real.elapsed(), processor])
    }
}
