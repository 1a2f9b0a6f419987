//! The firmware's management agents: asked by software (MAD_IFC), from the wire as long as software has not taken QP0 and QP1
//! over, and on their own when they have something to tell. infinihost 3.13, 8.

use super::InfiniHost;
use super::port::Special;
use crate::fabric::{Answer, SmpContext, process_perf, process_smp, serve_special, trap_packet};
use crate::machine::Bus;
use crate::transport::{ReceiverKind, UdReceipt};
use core_ib::wire::Lrh;
use core_ib::wire::mad::{Layout, Mad, MadStatus, Method, MgmtClass, Smp};
use core_ib::wire::packet::set_vl;
use core_ib::{Lid, Qpn, Sl};

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
            Answer::Reply(mut reply) => {
                // The D bit is the driver's to set. Linux looks for a status of zero before it does, and else takes no
                // notice of what a Set changed. infinihost 8.2.
                reply.header.status.0 &= !MadStatus::DIRECTION;
                Asked::Reply(Mad(reply.to_bytes()))
            }
            Answer::Nothing if smp.header.method == Method::TRAP_REPRESS => Asked::Silent,
            Answer::Nothing | Answer::BadMKey => Asked::Refused,
        }
    }

    /// A packet came from the wire for QP0 or QP1, which software has not taken over: the firmware answers by itself.
    pub(super) fn firmware_agent(&mut self, bus: &mut dyn Bus, port: u8, packet: &[u8]) {
        let mut effects = Vec::new();
        let answer = serve_special(&mut self.ports.node, port, packet, bus.now(), &mut effects);
        self.follow(bus, &effects);
        if let Some(answer) = answer {
            self.send_own(bus, port, answer.packet);
        }
    }

    /// Sends a MAD of the firmware's own, on the lane of its SL. One that finds no room on the wire is lost: they are
    /// asked for again.
    fn send_own(&mut self, bus: &mut dyn Bus, port: u8, mut packet: Vec<u8>) {
        let (Some(state), Ok((lrh, _))) = (self.ports.node.port(port), Lrh::read(&packet)) else {
            return;
        };
        if !lrh.vl.is_management() {
            let Some(vl) = state.vl_of(0, lrh.sl) else {
                return;
            };
            if set_vl(&mut packet, vl).is_err() {
                return;
            }
        }
        if self.emit(bus, port, &packet).is_err() {
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
                    if let Some(trap) = trap_packet(&self.ports.node, port, &smp) {
                        self.send_own(bus, port, trap.packet);
                    }
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
