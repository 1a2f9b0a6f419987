//! The firmware's management agents: asked by software (MAD_IFC), from the wire as long as software has not taken QP0 and QP1
//! over, and on their own when they have something to tell. infinihost 3.13, 8.

use super::InfiniHost;
use super::port::Special;
use crate::fabric::{Answer, Smi, SmpContext, Turn, process_perf, process_smp};
use crate::machine::Bus;
use crate::transport::{
    AddressVector, GlobalRoute, Incoming, ReceiverKind, UdReceipt, UdRequest, UdSender, ud_headers,
};
use core_ib::wire::mad::{Layout, Mad, MadStatus, Method, MgmtClass, Smp};
use core_ib::wire::packet::MAX_PACKET;
use core_ib::{Lid, Psn, QKey, Qpn, Sl};

/// What came of asking the agents.
#[expect(
    clippy::large_enum_variant,
    reason = "nearly all answers are replies, and none lives long"
)]
pub enum Asked {
    /// The answer.
    Reply(Mad),
    /// Taken note of; no answer.
    Silent,
    /// No agent's business, or the wrong key.
    Refused,
}

/// How a MAD came to the agents.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// Port it came in on, or is about.
    pub port: u8,
    /// LID of the sender, 0 if it is ourselves.
    pub slid: Lid,
    /// M_Key and B_Key are not looked at.
    pub trusted: bool,
}

impl InfiniHost {
    /// Asks the agent of the MAD's class.
    pub(super) fn ask_agent(&mut self, bus: &mut dyn Bus, mad: &Mad, arrival: Arrival) -> Asked {
        let header = mad.header();
        match header.class {
            MgmtClass::SUBN_LID | MgmtClass::SUBN_DR => self.ask_sma(bus, mad, arrival),
            MgmtClass::PERF => match process_perf(&mut self.ports.node, arrival.port, mad) {
                Some(reply) => Asked::Reply(reply),
                None => Asked::Silent,
            },
            // The vendor's own agents know nothing.
            MgmtClass(0x09 | 0x0a) if matches!(header.method, Method::GET | Method::SET) => {
                self.chip
                    .ledger
                    .count(format!("vendor MAD of class {:#04x}", header.class.0));
                let mut reply = *mad;
                match header.reply(MadStatus::UNSUPPORTED_METHOD_ATTRIBUTE) {
                    Some(header) => reply.set_header(&header),
                    None => return Asked::Refused,
                }
                Asked::Reply(reply)
            }
            _ => Asked::Refused,
        }
    }

    fn ask_sma(&mut self, bus: &mut dyn Bus, mad: &Mad, arrival: Arrival) -> Asked {
        let Ok(smp) = Smp::read(&mad.0) else {
            return Asked::Refused;
        };
        let context = SmpContext {
            in_port: arrival.port,
            slid: arrival.slid,
            ignore_m_key: arrival.trusted,
            now: bus.now(),
        };
        let mut effects = Vec::new();
        let answer = process_smp(&mut self.ports.node, &smp, &context, &mut effects);
        self.follow(bus, &effects);
        match answer {
            Answer::Reply(reply) => Asked::Reply(Mad(reply.to_bytes())),
            Answer::Nothing if smp.header.method == Method::TRAP_REPRESS => Asked::Silent,
            Answer::Nothing | Answer::BadMKey => Asked::Refused,
        }
    }

    /// A MAD came from the wire for QP0 or QP1, which software has not taken over: the firmware answers by itself.
    pub(super) fn firmware_agent(
        &mut self,
        bus: &mut dyn Bus,
        port: u8,
        special: Special,
        incoming: &Incoming<'_>,
        receipt: &UdReceipt<'_>,
    ) {
        let Ok(mad) = Mad::from_prefix(receipt.payload).copied() else {
            return;
        };
        let class = mad.header().class;
        let is_smp = class == MgmtClass::SUBN_LID || class == MgmtClass::SUBN_DR;
        if is_smp != (special == Special::Smi) {
            return;
        }
        let arrival = Arrival {
            port,
            slid: receipt.slid,
            trusted: false,
        };
        if class == MgmtClass::SUBN_DR {
            return self.directed(bus, &mad, arrival);
        }
        let Asked::Reply(reply) = self.ask_agent(bus, &mad, arrival) else {
            return;
        };
        let grh = incoming.transport.grh.map(|grh| GlobalRoute {
            dgid: grh.sgid,
            sgid_index: match incoming.to {
                crate::transport::Destination::Unicast { gid_index, .. } => gid_index.unwrap_or(0),
                _ => 0,
            },
            flow_label: grh.flow_label,
            hop_limit: 0xff,
            traffic_class: grh.traffic_class,
        });
        let to = AddressVector {
            dlid: receipt.slid,
            sl: receipt.sl,
            path_bits: receipt.path_bits,
            grh,
        };
        let p_key_index = receipt.p_key_index;
        self.send_mad(bus, port, special, &reply, to, receipt.src_qp, p_key_index);
    }

    /// A directed-route SMP came in.
    fn directed(&mut self, bus: &mut dyn Bus, mad: &Mad, arrival: Arrival) {
        let smi = Smi {
            is_switch: false,
            ports: self.ports.node.port_count(),
        };
        let Ok(mut smp) = Smp::read(&mad.0) else {
            return;
        };
        if smi.receive(&mut smp, arrival.port) != Turn::Local {
            return;
        }
        let Asked::Reply(reply) = self.ask_agent(bus, &Mad(smp.to_bytes()), arrival) else {
            return;
        };
        let Ok(mut reply) = Smp::read(&reply.0) else {
            return;
        };
        // With a LID-routed last part the answer starts with it: back whence the request came. protocols 3.5.3.
        let dlid = match smi.originate(&mut reply) {
            Turn::Out { port } if port == arrival.port => Lid::PERMISSIVE,
            _ if !smp.dr_dlid.is_permissive() => arrival.slid,
            _ => return,
        };
        let to = AddressVector {
            dlid,
            sl: Sl::new(0),
            path_bits: 0,
            grh: None,
        };
        let mad = Mad(reply.to_bytes());
        self.send_mad(bus, arrival.port, Special::Smi, &mad, to, Qpn::SMI, 0);
    }

    /// Sends a MAD of the firmware's own. One that finds no room on the wire is lost: they are asked for again.
    #[expect(
        clippy::too_many_arguments,
        reason = "a MAD and all that is said of its way"
    )]
    fn send_mad(
        &mut self,
        bus: &mut dyn Bus,
        port: u8,
        special: Special,
        mad: &Mad,
        to: AddressVector,
        dest_qp: Qpn,
        p_key_index: usize,
    ) {
        let q_key = match special {
            Special::Smi => QKey(0),
            Special::Gsi => QKey::GSI,
        };
        let sender = UdSender {
            qpn: Qpn::new(special as u32),
            q_key,
            p_key_index,
            psn: Psn::new(0),
        };
        let request = UdRequest {
            to,
            dest_qp,
            q_key,
            imm: None,
            solicited: false,
        };
        let Some(state) = self.ports.node.port(port) else {
            return;
        };
        let Ok(mut headers) = ud_headers(state, &sender, &request) else {
            return;
        };
        if to.dlid.is_permissive() {
            headers.lrh.slid = Lid::PERMISSIVE;
        }
        let mut packet = vec![0; MAX_PACKET];
        let Ok(written) = headers.write(&mad.0, &mut packet) else {
            return;
        };
        let len = written.len();
        packet.truncate(len);
        if self.emit(bus, port, packet).is_err() {
            self.chip
                .ledger
                .count("MAD of the firmware's lost: no room on the wire");
        }
    }

    /// A trap is due: to QP0, if software has taken it over, which sends it on; else out. infinihost 8.4.
    pub(super) fn trap_due(&mut self, bus: &mut dyn Bus) {
        if let Some((port, smp)) = self.ports.node.poll_trap(bus.now()) {
            let mad = Mad(smp.to_bytes());
            match self.ports.special_qpn(Special::Smi, port) {
                Some(qpn) => self.own_trap(bus, port, qpn, &mad),
                None => {
                    let info = self.ports.node.port(port).map(|state| state.info);
                    let info = info.unwrap_or_default();
                    let to = AddressVector {
                        dlid: info.master_sm_lid,
                        sl: info.master_sm_sl,
                        path_bits: 0,
                        grh: None,
                    };
                    self.send_mad(bus, port, Special::Smi, &mad, to, Qpn::SMI, 0);
                }
            }
        }
        self.plan_traps(bus);
    }

    fn own_trap(&mut self, bus: &mut dyn Bus, port: u8, qpn: u32, mad: &Mad) {
        let receipt = UdReceipt {
            grh: None,
            payload: &mad.0,
            imm: None,
            solicited: false,
            src_qp: Qpn::SMI,
            slid: Lid::NONE,
            sl: Sl::new(0),
            path_bits: 0,
            p_key_index: 0,
            multicast: false,
        };
        if self.qps.get(qpn).is_some_and(super::qp::Qp::receives) {
            self.fill(bus, port, qpn, ReceiverKind::Smi, &receipt);
        }
    }
}
