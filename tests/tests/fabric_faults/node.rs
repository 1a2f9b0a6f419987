//! A host that sends tagged datagrams to QPs of the others and keeps a ledger of what arrives.

use core::time::Duration;
use core_ib::platform::{DmaBuf, LetGo, NoWake, Platform};
use core_ib::verbs::{
    Access, AhAttr, AhHandle, CompletionQueue, CqInit, Device, Mr, MrInit, Owner, QpAttr,
    QpAttrMask as M, QpCaps, QpHandle, QpInit, QpState, QpType, QueuePair, RecvWr, SendFlags,
    SendOp, SendWr, Sge, Signaling, Verbs, WcOpcode, WcStatus, WorkCompletion,
};
use core_ib::{Lid, Psn, QKey, Qpn};
use ib_stack::{Config, SmProfile, Stack, SubnetManager};
use mthca_hw::{Hca, Profile};
use platform_sim::machine::SimPlatform;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

const QKEY: QKey = QKey(0x2345_6789);
/// Bytes of a message, and of its place in memory with the 40 of a GRH.
const LENGTH: usize = 200;
const PLACE: usize = 256;
/// Receives posted on each QP, and messages under way.
const DEPTH: usize = 15;
const IOVA: u64 = 0x10_0000;

/// What all nodes know.
#[derive(Default)]
pub struct Ledger {
    /// LID and QPs of each node, once it is ready.
    pub nodes: BTreeMap<usize, (Lid, [Qpn; 2])>,
    /// Messages are to be sent.
    pub send: bool,
    /// Nodes are to close all and end.
    pub stop: bool,
    /// Messages sent, and to which QP.
    pub sent: BTreeMap<u64, Qpn>,
    /// Messages that arrived, and how often.
    pub received: BTreeMap<u64, u32>,
    /// What must not be.
    pub wrong: Vec<String>,
}

/// The ledger, from everywhere.
#[derive(Clone, Default)]
pub struct Shared(Arc<Mutex<Ledger>>);

impl Shared {
    pub fn with<R>(&self, f: impl FnOnce(&mut Ledger) -> R) -> R {
        f(&mut self.0.lock().unwrap())
    }
}

/// The message with this tag: its tag, where it goes, and bytes that follow from both.
fn message(tag: u64, node: usize, qpn: Qpn) -> [u8; LENGTH] {
    let mut bytes = [0; LENGTH];
    bytes[..8].copy_from_slice(&tag.to_be_bytes());
    bytes[8..12].copy_from_slice(&(node as u32).to_be_bytes());
    bytes[12..16].copy_from_slice(&qpn.get().to_be_bytes());
    let mut state = tag ^ 0x9e37_79b9_7f4a_7c15;
    for byte in &mut bytes[16..] {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(99);
        *byte = (state >> 56) as u8;
    }
    bytes
}

struct Node<'h, 'm> {
    hca: &'h Hca<'m, SimPlatform>,
    number: usize,
    memory: DmaBuf<'m, SimPlatform>,
    mr: Mr,
    cq: core_ib::verbs::CqHandle,
    qps: [(QpHandle, Qpn); 2],
    pd: core_ib::verbs::PdHandle,
    /// Address handles of the nodes.
    ahs: BTreeMap<usize, AhHandle>,
    /// Free places to send from.
    free: Vec<usize>,
    sent: u64,
}

impl<'h, 'm> Node<'h, 'm> {
    fn new(machine: &'m SimPlatform, hca: &'h Hca<'m, SimPlatform>, number: usize) -> Self {
        let pd = hca.alloc_pd().unwrap();
        let owner = Owner::Kernel;
        let (cqe, vector) = (127, 0);
        let cq = hca
            .create_cq(&CqInit { cqe, vector, owner })
            .unwrap()
            .handle;
        // Places: the receives of both QPs, then the sends.
        let pages = (3 * DEPTH * PLACE).div_ceil(4096);
        let memory = DmaBuf::new(machine, pages * 4096, 4096).unwrap();
        let starts: Vec<_> = (0..pages)
            .map(|page| memory.addr().plus(page as u64 * 4096))
            .collect();
        let init = MrInit {
            iova: IOVA,
            length: (pages * 4096) as u64,
            pages: &starts,
            page_shift: 12,
            access: Access::LOCAL_WRITE,
        };
        // SAFETY: the memory is given back behind the region, and read and written meanwhile as it likes.
        let mr = unsafe { hca.reg_mr(pd, &init) }.unwrap();
        let qps = [0, 1].map(|_| {
            let init = QpInit {
                qp_type: QpType::Ud,
                port: 1,
                send_cq: cq,
                recv_cq: cq,
                srq: None,
                caps: QpCaps {
                    max_send_wr: DEPTH as u32,
                    max_recv_wr: DEPTH as u32,
                    max_send_sge: 1,
                    max_recv_sge: 1,
                    max_inline: 0,
                },
                signaling: Signaling::All,
                owner,
            };
            let qp = hca.create_qp(pd, &init).unwrap();
            for (state, mask) in [
                (QpState::Init, M::PKEY_INDEX | M::QKEY | M::PORT),
                (QpState::Rtr, M::empty()),
                (QpState::Rts, M::SQ_PSN),
            ] {
                let attr = QpAttr {
                    state,
                    port: 1,
                    qkey: QKEY,
                    sq_psn: Psn::new(7),
                    ..QpAttr::EMPTY
                };
                hca.modify_qp(qp.handle, &attr, mask | M::STATE).unwrap();
            }
            (qp.handle, qp.qpn)
        });
        let node = Self {
            hca,
            number,
            memory,
            mr,
            cq,
            qps,
            pd,
            ahs: BTreeMap::new(),
            free: (2 * DEPTH..3 * DEPTH).collect(),
            sent: 0,
        };
        for place in 0..2 * DEPTH {
            node.post_recv(place);
        }
        node
    }

    fn sge(&self, place: usize, length: usize) -> Sge {
        Sge {
            addr: IOVA + (place * PLACE) as u64,
            length: length as u32,
            lkey: self.mr.lkey,
        }
    }

    /// The place says whose receive it is.
    fn post_recv(&self, place: usize) {
        let sges = [self.sge(place, PLACE)];
        let wr_id = place as u64;
        let qp = self.qps[place / DEPTH].0;
        let wr = RecvWr { wr_id, sges: &sges };
        self.hca.qp(qp).unwrap().post_recv(&[wr]).unwrap();
    }

    /// Sends a message to one of the others' QPs, if there is a place free and an address handle to be had.
    fn send(&mut self, shared: &Shared) {
        let Some(place) = self.free.pop() else {
            return;
        };
        self.sent += 1;
        let tag = (self.number as u64) << 32 | self.sent;
        let choice = (self.sent.wrapping_mul(0x9e37_79b9) >> 7) as usize;
        let peer = shared.with(|ledger| {
            let others: Vec<_> = ledger.nodes.iter().map(|(node, to)| (*node, *to)).collect();
            let (node, (lid, qpns)) = others[choice % others.len()];
            let qpn = qpns[choice / others.len() % 2];
            ledger.sent.insert(tag, qpn);
            (node, lid, qpn)
        });
        let (node, dlid, remote_qpn) = peer;
        let (hca, pd) = (self.hca, self.pd);
        let ah = *self.ahs.entry(node).or_insert_with(|| {
            let attr = AhAttr {
                port: 1,
                dlid,
                ..AhAttr::default()
            };
            hca.create_ah(pd, &attr).unwrap()
        });
        let bytes = message(tag, node, remote_qpn);
        self.memory.copy_in(place * PLACE, &bytes).unwrap();
        let op = SendOp::Datagram {
            ah,
            remote_qpn,
            remote_qkey: QKEY,
            imm: None,
            pkey_index: 0,
        };
        let wr = SendWr {
            wr_id: place as u64,
            op,
            sges: &[self.sge(place, LENGTH)],
            inline: &[],
            flags: SendFlags::empty(),
        };
        let qp = self.qps[choice % 2].0;
        hca.qp(qp).unwrap().post_send(&[wr]).unwrap();
    }

    /// Takes what completed.
    fn poll(&mut self, shared: &Shared) {
        let mut completions = [WorkCompletion::EMPTY; 16];
        loop {
            let cq = self.hca.cq(self.cq).unwrap();
            let count = cq.poll(&mut completions).unwrap();
            if count == 0 {
                return;
            }
            for done in &completions[..count] {
                self.completed(done, shared);
            }
        }
    }

    fn completed(&mut self, done: &WorkCompletion, shared: &Shared) {
        let wrong = |what: &str| {
            let text = format!("node {}: {what}: {done:?}", self.number);
            shared.with(|ledger| ledger.wrong.push(text));
        };
        if done.status != WcStatus::Success {
            wrong("a request failed");
        }
        let place = done.wr_id as usize;
        if done.opcode == WcOpcode::Send {
            self.free.push(place);
            return;
        }
        let mut bytes = [0; LENGTH];
        let at = place * PLACE + 40;
        self.memory.copy_out(at, &mut bytes).unwrap();
        let tag = u64::from_be_bytes(bytes[..8].try_into().unwrap());
        let expected = message(tag, self.number, done.qpn);
        if done.byte_len as usize != LENGTH + 40 {
            wrong("a message of another length");
        } else if bytes != expected {
            wrong("a message that changed, or is for another QP");
        } else if done.qpn != self.qps[place / DEPTH].1 {
            wrong("a message in the memory of another QP");
        } else if shared.with(|ledger| ledger.sent.get(&tag) != Some(&done.qpn)) {
            wrong("a message that nobody sent");
        } else {
            shared.with(|ledger| *ledger.received.entry(tag).or_default() += 1);
        }
        self.post_recv(place);
    }

    fn close(self) {
        for ah in self.ahs.values() {
            self.hca.destroy_ah(*ah).unwrap();
        }
        for (qp, _) in self.qps {
            self.hca.destroy_qp(qp).unwrap();
        }
        self.hca.destroy_cq(self.cq).unwrap();
        self.hca.dereg_mr(self.mr.handle).unwrap();
        self.hca.dealloc_pd(self.pd).unwrap();
        // SAFETY: the region over it is gone.
        self.memory.free(unsafe { LetGo::claim() });
    }
}

/// The host: driver, stack, and the node beside them. Number 0 has the subnet manager.
pub fn run(machine: &SimPlatform, number: usize, shared: &Shared) {
    let hca = Hca::open(machine, &NoWake, &Profile::SERVER).unwrap();
    let config = Config {
        subnet_manager: (number == 0).then(|| SubnetManager {
            port: 1,
            profile: SmProfile::for_hosts(16),
            config: ib_sm::Config::default(),
        }),
        ..Config::default()
    };
    let mut stack = Stack::open(machine, &hca, &config).unwrap();
    let mut node = Node::new(machine, &hca, number);
    let qpns = node.qps.map(|(_, qpn)| qpn);
    loop {
        stack.poll(machine.now()).unwrap();
        while let Some(job) = stack.next_job() {
            let done = job.run(&hca);
            stack.job_done(done, machine.now());
        }
        while stack.next_event().is_some() {}
        let port = stack.port_status(1).unwrap_or_default();
        let (send, stop) = shared.with(|ledger| {
            if port.state == 4 {
                ledger.nodes.insert(number, (port.lid, qpns));
            }
            (ledger.send, ledger.stop)
        });
        node.poll(shared);
        if stop {
            break;
        }
        let ready = send && port.state == 4;
        if ready {
            node.send(shared);
        }
        let idle = if ready { 100 } else { 1000 };
        machine.sleep(Duration::from_micros(idle));
    }
    node.close();
    stack.close().unwrap();
    hca.close().map_err(|(_, error)| error).unwrap();
}
