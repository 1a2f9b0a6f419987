//! The wire between fake HCAs: what is sent arrives when the fabric runs, or is lost.

use super::machine::Machine;
use core_ib::verbs::{AhAttr, DeviceCaps, SendFlags, WcFlags, WcOpcode, WcStatus, WorkCompletion};
use core_ib::wire::{FlowLabel, Grh};
use core_ib::{Gid, Lid, PKey, QKey, Qpn};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::string::String;
use std::sync::Mutex;
use std::vec::Vec;

/// What a queue pair does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QpState {
    Reset,
    Init,
    Rtr,
    Rts,
    Sqe,
    Error,
}

#[derive(Clone, Debug)]
pub(crate) struct Send {
    pub(crate) wr_id: u64,
    pub(crate) ah: u32,
    pub(crate) qpn: Qpn,
    pub(crate) q_key: QKey,
    pub(crate) addr: u64,
    pub(crate) len: u32,
    pub(crate) lkey: u32,
    pub(crate) flags: SendFlags,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Recv {
    pub(crate) wr_id: u64,
    pub(crate) addr: u64,
    pub(crate) len: u32,
    pub(crate) lkey: u32,
}

#[derive(Debug)]
pub(crate) struct Qp {
    pub(crate) state: QpState,
    pub(crate) pkey_index: u16,
    pub(crate) q_key: QKey,
    pub(crate) sends: VecDeque<Send>,
    pub(crate) recvs: VecDeque<Recv>,
    pub(crate) max_send: usize,
    pub(crate) max_recv: usize,
    pub(crate) send_cq: u32,
    pub(crate) recv_cq: u32,
    pub(crate) attached: BTreeSet<(Gid, Lid)>,
    pub(crate) holders: u32,
}

/// A region: first address, bytes, may the device write?
#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    pub(crate) iova: u64,
    pub(crate) len: u64,
    pub(crate) writable: bool,
}

/// One HCA with one port.
#[derive(Debug, Default)]
pub(crate) struct HcaState {
    pub(crate) lid: Lid,
    pub(crate) gid: Gid,
    pub(crate) active: bool,
    pub(crate) caps: DeviceCaps,
    pub(crate) pkeys: Vec<PKey>,
    pub(crate) pds: BTreeSet<u32>,
    pub(crate) ahs: BTreeMap<u32, AhAttr>,
    pub(crate) cqs: BTreeMap<u32, (VecDeque<WorkCompletion>, u32)>,
    /// By QPN.
    pub(crate) qps: BTreeMap<u32, Qp>,
    pub(crate) regions: BTreeMap<u32, Region>,
    pub(crate) next: u32,
    /// Calls that make something and still succeed.
    pub(crate) budget: Option<u32>,
    /// Sends still allowed before the QP stops: then it goes to this state.
    pub(crate) breaks: Option<(u32, QpState)>,
}

impl HcaState {
    pub(crate) fn number(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    /// Everything that was made and not ended.
    pub(crate) fn left(&self) -> usize {
        self.pds.len() + self.ahs.len() + self.cqs.len() + self.qps.len() + self.regions.len()
    }

    fn covers(&self, lkey: u32, addr: u64, len: u64, write: bool) -> bool {
        self.regions.get(&lkey).is_some_and(|region| {
            let inside = addr >= region.iova && addr + len <= region.iova + region.len;
            inside && (region.writable || !write)
        })
    }

    fn complete(&mut self, cq: u32, completion: WorkCompletion) {
        if let Some((queue, _)) = self.cqs.get_mut(&cq) {
            queue.push_back(completion);
        }
    }
}

/// A packet on the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Packet {
    pub(crate) from: usize,
    pub(crate) slid: Lid,
    pub(crate) sgid: Gid,
    pub(crate) p_key: PKey,
    pub(crate) src_qp: Qpn,
    pub(crate) attr: AhAttr,
    pub(crate) qpn: Qpn,
    pub(crate) q_key: QKey,
    /// What its sender asked for. Nobody reckons here: whose checksums the HCA puts in has right ones, and no other.
    pub(crate) flags: SendFlags,
    pub(crate) payload: Vec<u8>,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) hcas: Vec<HcaState>,
    /// Ports that the SM routes a multicast LID to.
    pub(crate) routes: BTreeMap<u16, BTreeSet<usize>>,
    /// What nobody should have done.
    pub(crate) violations: Vec<String>,
    pub(crate) delivered: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Fabric {
    pub(crate) state: Mutex<State>,
}

/// Both.
pub(crate) const CHECKSUMS: SendFlags = SendFlags::IP_CHECKSUM.union(SendFlags::L4_CHECKSUM);

fn completion(wr_id: u64, status: WcStatus, qpn: Qpn) -> WorkCompletion {
    WorkCompletion {
        wr_id,
        status,
        qpn,
        ..WorkCompletion::EMPTY
    }
}

impl Fabric {
    pub(crate) fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        f(&mut self.state.lock().unwrap())
    }

    /// A packet of somebody who is not here.
    pub(crate) fn inject(&self, machines: &[&Machine], packet: &Packet) {
        self.state
            .lock()
            .unwrap()
            .deliver(packet, machines, &mut |_| false);
    }

    /// Everything posted is sent, and arrives unless `lose` says otherwise.
    pub(crate) fn run(&self, machines: &[&Machine], mut lose: impl FnMut(&Packet) -> bool) {
        let mut state = self.state.lock().unwrap();
        let mut wire = Vec::new();
        for (from, machine) in machines.iter().enumerate() {
            state.send_all(from, machine, &mut wire);
        }
        for packet in wire {
            state.deliver(&packet, machines, &mut lose);
        }
    }
}

impl State {
    fn send_all(&mut self, from: usize, machine: &Machine, wire: &mut Vec<Packet>) {
        let Self {
            hcas, violations, ..
        } = self;
        let hca = &mut hcas[from];
        let qpns: Vec<u32> = hca.qps.keys().copied().collect();
        for number in qpns {
            let qpn = Qpn::new(number);
            while let Some(qp) = hca.qps.get_mut(&number)
                && let Some(send) = qp.sends.pop_front()
            {
                let (cq, src_key, pkey_index) = (qp.send_cq, qp.q_key, qp.pkey_index);
                if qp.state != QpState::Rts {
                    hca.complete(cq, completion(send.wr_id, WcStatus::Flushed, qpn));
                    continue;
                }
                if let Some((left, broken)) = hca.breaks {
                    hca.breaks = left.checked_sub(1).map(|left| (left, broken));
                    if left == 0 {
                        qp.state = broken;
                        hca.complete(cq, completion(send.wr_id, WcStatus::LocalProtection, qpn));
                        continue;
                    }
                }
                let mut payload = std::vec![0; send.len as usize];
                if !hca.covers(send.lkey, send.addr, send.len.into(), false)
                    || machine.device_reads(send.addr, &mut payload).is_none()
                {
                    violations.push("a send from memory that is not registered".into());
                    continue;
                }
                let Some(attr) = hca.ahs.get(&send.ah) else {
                    violations.push("a send by an address handle that is gone".into());
                    continue;
                };
                let own_key = send.q_key.0 & QKey::CONTROLLED != 0;
                wire.push(Packet {
                    from,
                    slid: Lid(hca.lid.0 | u16::from(attr.src_path_bits)),
                    sgid: hca.gid,
                    p_key: hca
                        .pkeys
                        .get(usize::from(pkey_index))
                        .copied()
                        .unwrap_or_default(),
                    src_qp: qpn,
                    attr: *attr,
                    qpn: send.qpn,
                    q_key: if own_key { src_key } else { send.q_key },
                    flags: send.flags,
                    payload,
                });
                hca.complete(cq, completion(send.wr_id, WcStatus::Success, qpn));
            }
            // What was posted to receive is flushed as well.
            while let Some(qp) = hca.qps.get_mut(&number)
                && qp.state == QpState::Error
                && let Some(recv) = qp.recvs.pop_front()
            {
                let cq = qp.recv_cq;
                hca.complete(cq, completion(recv.wr_id, WcStatus::Flushed, qpn));
            }
        }
    }

    fn deliver(
        &mut self,
        packet: &Packet,
        machines: &[&Machine],
        lose: &mut impl FnMut(&Packet) -> bool,
    ) {
        if !self.hcas[packet.from].active {
            return;
        }
        let dlid = packet.attr.dlid;
        for (to, machine) in machines.iter().enumerate() {
            let routed = if dlid.is_multicast() {
                let routes = self.routes.get(&dlid.0);
                to == packet.from || routes.is_some_and(|ports| ports.contains(&to))
            } else {
                self.hcas[to].lid == dlid
            };
            if !routed || !self.hcas[to].active || lose(packet) {
                continue;
            }
            let qpns: Vec<u32> = self.hcas[to].qps.keys().copied().collect();
            for number in qpns {
                self.arrive(packet, to, number, machine);
            }
        }
    }

    fn arrive(&mut self, packet: &Packet, to: usize, number: u32, machine: &Machine) {
        let hca = &mut self.hcas[to];
        let Some(qp) = hca.qps.get_mut(&number) else {
            return;
        };
        let qpn = Qpn::new(number);
        let wanted = match packet.attr.grh {
            Some(grh) if grh.dgid.is_multicast() => {
                qp.attached.iter().any(|(mgid, _)| *mgid == grh.dgid)
            }
            _ => packet.qpn == qpn,
        };
        let key = hca
            .pkeys
            .get(usize::from(qp.pkey_index))
            .copied()
            .unwrap_or_default();
        let receives = matches!(qp.state, QpState::Rtr | QpState::Rts | QpState::Sqe);
        if !wanted || !receives || qp.q_key != packet.q_key || !key.matches(packet.p_key) {
            return;
        }
        let Some(recv) = qp.recvs.pop_front() else {
            return;
        };
        let cq = qp.recv_cq;
        if packet.payload.len() + 40 > recv.len as usize {
            qp.state = QpState::Error;
            return hca.complete(cq, completion(recv.wr_id, WcStatus::LocalLength, qpn));
        }
        let mut bytes = std::vec![0; 40];
        if let Some(grh) = packet.attr.grh {
            let header = Grh {
                traffic_class: grh.traffic_class,
                flow_label: FlowLabel::new(grh.flow_label),
                pay_len: 0,
                nxt_hdr: Grh::IBA,
                hop_limit: grh.hop_limit,
                sgid: packet.sgid,
                dgid: grh.dgid,
            };
            header.write(&mut bytes).unwrap();
        }
        bytes.extend(&packet.payload);
        if !hca.covers(recv.lkey, recv.addr, recv.len.into(), true)
            || machine.device_writes(recv.addr, &bytes).is_none()
        {
            return self
                .violations
                .push("a receive into memory that is not registered".into());
        }
        let mut flags = WcFlags::empty();
        flags.set(WcFlags::GRH, packet.attr.grh.is_some());
        let verifies = hca.caps.contains(DeviceCaps::IP_CHECKSUM);
        let right = packet.flags.contains(CHECKSUMS);
        flags.set(WcFlags::CHECKSUM_OK, verifies && right);
        let done = WorkCompletion {
            opcode: WcOpcode::Recv,
            flags,
            byte_len: bytes.len() as u32,
            src_qp: packet.src_qp,
            slid: packet.slid,
            ..completion(recv.wr_id, WcStatus::Success, qpn)
        };
        hca.complete(cq, done);
        self.delivered += 1;
    }
}
