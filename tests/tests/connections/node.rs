//! A host with connections: driver, stack, communication manager, and a program that echoes or is echoed.

use core::time::Duration;
use core_ib::platform::{NoWake, Platform};
use core_ib::verbs::{
    Access, CompletionQueue, CqHandle, CqInit, Device, Owner, PdHandle, QpCaps, QpHandle, QpInit,
    QpType, QueuePair, RecvWr, SendFlags, SendOp, SendWr, Signaling, Verbs, WcOpcode, WcStatus,
    WorkCompletion,
};
use core_ib::wire::mad::{RejReason, ServiceId};
use core_ib::{Gid, Instant, Mtu, PKey, Psn, Qpn};
use ib_cm::{Accept, ConnId, Connect, Event, Listen, Path, init_attr};
use ib_stack::{CmConfig, CmNews, Config, Stack};
use mthca_hw::{Hca, Profile};
use openib_tests::conformance::tools::Buffer;
use platform_sim::machine::SimPlatform;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes of a message, and how many receives there are.
pub const LEN: usize = 6000;
const SLOTS: usize = 8;
/// Who echoes.
pub const ECHO: ServiceId = ServiceId::ip(ServiceId::PROTOCOL_TCP, 7);

type Card<'p> = Hca<'p, SimPlatform>;

struct Qp {
    handle: QpHandle,
    qpn: Qpn,
}

/// What is up, and what was heard.
pub struct Node<'h, 'p> {
    machine: &'h SimPlatform,
    hca: &'h Card<'p>,
    stack: Stack<'h, Card<'p>, SimPlatform>,
    pd: PdHandle,
    cq: CqHandle,
    buffer: Buffer<'h, SimPlatform>,
    qps: BTreeMap<ConnId, Qp>,
    next_psn: u32,
    news: Vec<CmNews>,
    wcs: Vec<WorkCompletion>,
}

/// Opens a host, runs `program` on it, and closes it; nothing is left.
pub fn with_node<T>(
    machine: &SimPlatform,
    seed: u32,
    program: impl FnOnce(&mut Node<'_, '_>) -> T,
) -> T {
    let hca = Hca::open(machine, &NoWake, &Profile::SERVER).unwrap();
    let result = {
        let config = Config {
            interfaces: &[],
            cm: Some(CmConfig::new(seed)),
            ..Config::default()
        };
        let stack = Stack::open(machine, &hca, &config).unwrap();
        let pd = hca.alloc_pd().unwrap();
        let cq = CqInit {
            cqe: 128,
            vector: 0,
            owner: Owner::Kernel,
        };
        let cq = hca.create_cq(&cq).unwrap().handle;
        let rights = Access::LOCAL_WRITE;
        let buffer = Buffer::new(machine, &hca, pd, 2 * SLOTS * 8192, rights);
        let mut node = Node {
            machine,
            hca: &hca,
            stack,
            pd,
            cq,
            buffer,
            qps: BTreeMap::new(),
            next_psn: 0x1000,
            news: Vec::new(),
            wcs: Vec::new(),
        };
        let result = program(&mut node);
        let Node {
            stack, qps, buffer, ..
        } = node;
        for qp in qps.into_values() {
            hca.destroy_qp(qp.handle).unwrap();
        }
        stack.close().unwrap();
        hca.dereg_mr(buffer.mr.handle).unwrap();
        // SAFETY: the region is gone, so the HCA has no way to the memory.
        buffer
            .memory
            .free(unsafe { core_ib::platform::LetGo::claim() });
        hca.destroy_cq(cq).unwrap();
        hca.dealloc_pd(pd).unwrap();
        result
    };
    hca.close().map_err(|(_, error)| error).unwrap();
    result
}

impl Node<'_, '_> {
    /// Does what is due, and lets a little time pass.
    pub fn turn(&mut self) {
        self.stack.poll(self.machine.now()).unwrap();
        while let Some(job) = self.stack.next_job() {
            let done = job.run(self.hca);
            self.stack.job_done(done, self.machine.now());
        }
        while let Some(news) = self.stack.next_cm_news() {
            self.news.push(news);
        }
        let cq = self.hca.cq(self.cq).unwrap();
        let mut polled = [WorkCompletion::EMPTY; 16];
        let found = cq.poll(&mut polled).unwrap();
        self.wcs.extend(&polled[..found]);
        self.machine.sleep(Duration::from_micros(500));
    }

    fn until<T>(
        &mut self,
        what: &str,
        limit: Duration,
        mut done: impl FnMut(&mut Self) -> Option<T>,
    ) -> T {
        let end = self.machine.now().after(limit);
        loop {
            if let Some(value) = done(self) {
                return value;
            }
            let late = self.machine.now() >= end;
            assert!(
                !late,
                "{what}: not within {limit:?}; {:?} {:?}",
                self.news, self.wcs
            );
            self.turn();
        }
    }

    /// Waits until port 1 is Active.
    pub fn wait_active(&mut self) {
        let active = |node: &mut Self| {
            let status = node.stack.port_status(1)?;
            (status.state == 4).then_some(())
        };
        self.until("the port is active", Duration::from_secs(20), active);
    }

    fn event(&mut self, limit: Duration) -> Event {
        self.until("news", limit, |node| {
            let at = node
                .news
                .iter()
                .position(|news| matches!(news, CmNews::Event(..)))?;
            match node.news.remove(at) {
                CmNews::Event(1, event) => Some(event),
                _ => None,
            }
        })
    }

    fn make_qp(&mut self) -> Qp {
        let init = QpInit {
            qp_type: QpType::Rc,
            port: 1,
            send_cq: self.cq,
            recv_cq: self.cq,
            srq: None,
            caps: QpCaps {
                max_send_wr: SLOTS as u32,
                max_recv_wr: SLOTS as u32,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline: 0,
            },
            signaling: Signaling::All,
            owner: Owner::Kernel,
        };
        let made = self.hca.create_qp(self.pd, &init).unwrap();
        let (attr, mask) = init_attr(1, 0, Access::empty());
        self.hca.modify_qp(made.handle, &attr, mask).unwrap();
        let qp = Qp {
            handle: made.handle,
            qpn: made.qpn,
        };
        for slot in 0..SLOTS {
            self.post_recv(qp.handle, slot);
        }
        qp
    }

    fn post_recv(&self, qp: QpHandle, slot: usize) {
        let qp = self.hca.qp(qp).unwrap();
        let sge = self.buffer.sge(slot as u64 * 8192, LEN as u32);
        qp.post_recv(&[RecvWr {
            wr_id: slot as u64,
            sges: &[sge],
        }])
        .unwrap();
    }

    fn post_send(&self, qp: QpHandle, at: u64, len: u32) {
        let qp = self.hca.qp(qp).unwrap();
        let sge = self.buffer.sge(at, len);
        let op = SendOp::Send { imm: None };
        qp.post_send(&[SendWr {
            wr_id: 1 << 32,
            op,
            sges: &[sge],
            inline: &[],
            flags: SendFlags::SIGNALED,
        }])
        .unwrap();
    }

    fn psn(&mut self) -> Psn {
        self.next_psn += 0x111;
        Psn::new(self.next_psn)
    }

    /// Asks the SA for the path to `dgid`, until there is one.
    pub fn path_to(&mut self, dgid: Gid) -> (Path, Mtu) {
        for cookie in 0..50 {
            let now = self.machine.now();
            self.stack
                .ask_path(1, dgid, PKey::DEFAULT, cookie, now)
                .unwrap();
            let answer = self.until("a path", Duration::from_secs(60), |node| {
                let is_path = |news: &CmNews| matches!(news, CmNews::Path { .. });
                let at = node.news.iter().position(is_path)?;
                match node.news.remove(at) {
                    CmNews::Path { cookie: of, path } if of == cookie => Some(path),
                    _ => None,
                }
            });
            if let Ok((path, record)) = answer {
                return (path, record.mtu.mtu().unwrap());
            }
            self.pause(Duration::from_millis(100));
        }
        panic!("no path to {dgid}");
    }

    pub fn pause(&mut self, wait: Duration) {
        let end = self.machine.now().after(wait);
        while self.machine.now() < end {
            self.turn();
        }
    }

    /// Connects to `service`: the connection, or why not. What became of one that did not come to be is waited for.
    pub fn connect(
        &mut self,
        service: ServiceId,
        (path, mtu): (Path, Mtu),
    ) -> Result<ConnId, Box<Event>> {
        let qp = self.make_qp();
        let with = Connect {
            qp: Some(qp.handle),
            qpn: qp.qpn,
            psn: self.psn(),
            remote_timeout: core_ib::wire::mad::TimeCode(14),
            local_timeout: core_ib::wire::mad::TimeCode(14),
            private: b"who are you",
            ..Connect::new(
                service,
                Path {
                    life_time: core_ib::wire::mad::TimeCode(12),
                    ..path
                },
                mtu,
            )
        };
        let now = self.machine.now();
        let conn = self.stack.cm(1).unwrap().connect(&with, now).unwrap();
        self.qps.insert(conn, qp);
        loop {
            match self.event(Duration::from_secs(30)) {
                Event::Reply { conn: of, rep, .. } if of == conn => {
                    assert_eq!(rep.private[..4], *b"I am");
                    self.stack.cm(1).unwrap().ready(conn, b"").unwrap();
                }
                Event::Established { conn: of, .. } if of == conn => return Ok(conn),
                why @ (Event::Rejected { .. } | Event::Failed { .. }) => {
                    self.gone(conn);
                    return Err(Box::new(why));
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// Waits for the last of a connection, and ends its QP.
    fn gone(&mut self, conn: ConnId) {
        loop {
            match self.event(Duration::from_secs(60)) {
                Event::Gone { conn: of, .. } if of == conn => break,
                Event::Disconnected { .. } | Event::Rejected { .. } | Event::Failed { .. } => {}
                Event::Disconnecting { conn, .. } => {
                    let now = self.machine.now();
                    let _ = self.stack.cm(1).unwrap().release(conn, &[], now);
                }
                other => panic!("{other:?}"),
            }
        }
        let qp = self.qps.remove(&conn).unwrap();
        self.hca.destroy_qp(qp.handle).unwrap();
        self.wcs.clear();
    }

    /// Sends messages and has them back, each another one. Says how the first that failed did.
    pub fn echo(&mut self, conn: ConnId, count: u8) -> Result<(), WcStatus> {
        let qp = self.qps[&conn].handle;
        for round in 0..count {
            let len = LEN - usize::from(round) * 7;
            let message: Vec<u8> = (0..len)
                .map(|at| (at as u8).wrapping_mul(round + 3) ^ round)
                .collect();
            let at = SLOTS * 8192;
            self.buffer.put(at, &message);
            self.post_send(qp, at as u64, len as u32);
            let got = self.until("an echo", Duration::from_secs(60), |node| {
                for wc in core::mem::take(&mut node.wcs) {
                    if wc.status != WcStatus::Success {
                        return Some(Err(wc.status));
                    }
                    if wc.opcode == WcOpcode::Recv {
                        return Some(Ok(wc));
                    }
                }
                None
            })?;
            assert_eq!(got.byte_len as usize, len);
            let slot = got.wr_id as usize;
            assert!(
                self.buffer.bytes(slot * 8192, len) == message,
                "round {round}"
            );
            self.post_recv(qp, slot);
        }
        Ok(())
    }

    /// Ends a connection in order.
    pub fn disconnect(&mut self, conn: ConnId) {
        let now = self.machine.now();
        self.stack
            .cm(1)
            .unwrap()
            .disconnect(conn, &[], now)
            .unwrap();
        self.gone(conn);
    }

    /// How many connections the communication manager holds.
    pub fn connections(&mut self) -> usize {
        self.stack.cm(1).unwrap().connections()
    }

    /// Echoes whatever comes by whatever connection, until told to stop; then until all connections are gone, or `patience`
    /// is over. Gives what it heard.
    pub fn serve(&mut self, stop: &Arc<AtomicBool>, patience: Duration) -> Vec<Event> {
        self.stack
            .cm(1)
            .unwrap()
            .listen(&Listen::to(ECHO, 1))
            .unwrap();
        let mut heard = Vec::new();
        let mut end = Instant::NEVER;
        loop {
            self.turn();
            if stop.load(Ordering::Acquire) && end == Instant::NEVER {
                end = self.machine.now().after(patience);
            }
            if end != Instant::NEVER && (self.qps.is_empty() || self.machine.now() >= end) {
                return heard;
            }
            for news in core::mem::take(&mut self.news) {
                if let CmNews::Event(1, event) = news {
                    heard.push(event);
                    self.serve_event(event);
                }
            }
            for wc in core::mem::take(&mut self.wcs) {
                if wc.status == WcStatus::Success && wc.opcode == WcOpcode::Recv {
                    self.echo_back(&wc);
                }
            }
        }
    }

    fn serve_event(&mut self, event: Event) {
        let now = self.machine.now();
        match event {
            Event::Request { conn, req, .. } => {
                assert_eq!(req.private[..11], *b"who are you");
                let local = match self.stack.local_of(1, &req) {
                    Ok(local) => local,
                    Err(reason) => {
                        let cm = self.stack.cm(1).unwrap();
                        return cm.reject(conn, reason, &[], &[], now).unwrap();
                    }
                };
                let qp = self.make_qp();
                let with = Accept {
                    private: b"I am",
                    ..Accept::new(Some(qp.handle), qp.qpn, self.psn(), local)
                };
                self.stack.cm(1).unwrap().accept(conn, &with, now).unwrap();
                self.qps.insert(conn, qp);
            }
            Event::Disconnecting { conn, .. } => {
                self.stack.cm(1).unwrap().release(conn, &[], now).unwrap();
            }
            Event::Gone { conn, .. } => {
                if let Some(qp) = self.qps.remove(&conn) {
                    self.hca.destroy_qp(qp.handle).unwrap();
                }
            }
            _ => {}
        }
    }

    /// Sends back what came, out of the place that it came to, which is then used to receive again.
    fn echo_back(&mut self, wc: &WorkCompletion) {
        let qp = self.qps.values().find(|qp| qp.qpn == wc.qpn);
        let Some(handle) = qp.map(|qp| qp.handle) else {
            return;
        };
        let slot = wc.wr_id as usize;
        let bytes = self.buffer.bytes(slot * 8192, wc.byte_len as usize);
        let at = (SLOTS + slot) * 8192;
        self.buffer.put(at, &bytes);
        self.post_recv(handle, slot);
        // The data may be here before the RTU: then the QP cannot send yet, but the event has said that it will.
        let rts =
            |node: &Self| node.hca.query_qp(handle).unwrap().state == core_ib::verbs::QpState::Rts;
        for _ in 0..1000 {
            if rts(self) {
                break;
            }
            self.turn();
        }
        self.post_send(handle, at as u64, wc.byte_len);
    }
}

/// That a rejection says this.
pub fn reason(event: &Event) -> Option<RejReason> {
    match event {
        Event::Rejected { rej, .. } => Some(rej.reason),
        _ => None,
    }
}
