//! Datagrams and raw packets: from a send request to a packet. infinihost 5.6, 5.9, 4.10.

use super::InfiniHost;
use super::checksum;
use super::cmd::LOG_GIDS;
use super::mpt::Key;
use super::send::Sent;
use super::variant::Mode;
use super::wqe::Wqe;
use crate::machine::Bus;
use crate::transport::{
    AddressVector, GlobalRoute, IcrcMode, MlxError, MlxOptions, SendError, UdRequest, UdSender,
    finish_mlx, ud_headers,
};
use core_ib::wire::packet::{FlowLabel, ImmDt, MAX_PACKET};
use core_ib::{Gid, Lid, Mtu, Psn, QKey, Qpn, Sl};
use hca_abi::infinihost::av::AddressVector as Av;
use hca_abi::infinihost::cqe::Syndrome;
use hca_abi::infinihost::wqe::{MlxNextSegment, NextSegment, UdSegment, WqeOpcode};
use zerocopy::IntoBytes;

/// Offset of the data of a datagram.
const UD_DATA: usize = size_of::<NextSegment>() + size_of::<UdSegment>();

/// Bytes of an MTU code; an unknown one is the smallest.
pub fn mtu_bytes(code: u8) -> usize {
    Mtu::from_code(code).unwrap_or(Mtu::Mtu256).bytes()
}

/// The port in an address vector, and the rest as the transport knows it.
fn route(av: &Av) -> (u8, AddressVector) {
    let first = av.port().saturating_sub(1) << LOG_GIDS;
    let grh = av.grh().then(|| GlobalRoute {
        dgid: Gid(av.dgid()),
        // Numbered over the tables of all ports: one of another port is beyond this one's.
        sgid_index: usize::from(av.gid_index().wrapping_sub(first)),
        flow_label: FlowLabel::new(av.flow_label()),
        hop_limit: av.hop_limit(),
        traffic_class: av.traffic_class(),
    });
    let to = AddressVector {
        dlid: Lid(av.dlid()),
        sl: Sl::new(av.sl()),
        path_bits: av.path_bits(),
        grh,
    };
    (av.port(), to)
}

impl InfiniHost {
    /// The address vector of a datagram: in M-mode part of it, in T-mode somewhere in host memory or attached memory.
    fn address_vector(
        &self,
        bus: &mut dyn Bus,
        pd: u32,
        wqe: &Wqe,
        ud: &UdSegment,
    ) -> Result<Av, Syndrome> {
        let av = match self.mode() {
            Mode::T => self.fetch_av(bus, pd, ud)?,
            Mode::M => {
                let av = wqe.segment(size_of::<NextSegment>());
                av.ok_or(Syndrome::LOCAL_QP_OPERATION)?
            }
        };
        if av.pd() != pd {
            return Err(Syndrome::LOCAL_PROTECTION);
        }
        Ok(av)
    }

    fn fetch_av(&self, bus: &mut dyn Bus, pd: u32, ud: &UdSegment) -> Result<Av, Syndrome> {
        let mut av = Av::ZERO;
        let key = Key { key: ud.lkey(), pd };
        let read = self.chip.read(bus, key, ud.av_address(), av.as_mut_bytes());
        if let Err(error) = read {
            if bus.tracing() {
                bus.trace(format_args!(
                    "address vector at {:#x}: {error}",
                    ud.av_address()
                ));
            }
            return Err(Syndrome::LOCAL_PROTECTION);
        }
        Ok(av)
    }

    /// One send request of a UD QP.
    pub(super) fn send_datagram(
        &mut self,
        bus: &mut dyn Bus,
        qpn: u32,
        wqe: &Wqe,
    ) -> Result<Sent, Syndrome> {
        const MALFORMED: Syndrome = Syndrome::LOCAL_QP_OPERATION;
        // 0x08 and 0x09 stand for sends too: infinihost 5.3.
        let (opcode, with_imm) = match wqe.at.opcode {
            WqeOpcode::SEND | WqeOpcode::RDMA_WRITE => (WqeOpcode::SEND, false),
            WqeOpcode::SEND_IMM | WqeOpcode::RDMA_WRITE_IMM => (WqeOpcode::SEND_IMM, true),
            _ => return Err(MALFORMED),
        };
        let qp = self.qps.get(qpn).ok_or(MALFORMED)?;
        let (pd, psn, own_port) = (qp.context.pd(), qp.context.next_send_psn(), qp.port());
        let (wire_number, _) = self.wire_number(qp);
        let sender = UdSender {
            qpn: Qpn::new(wire_number),
            q_key: QKey(qp.context.q_key()),
            p_key_index: usize::from(qp.context.primary_path().pkey_index()),
            psn: Psn::new(psn),
        };
        let most = Self::max_message(qp);
        let next = wqe.next();
        // Destination and Q_Key stand in the same place in both modes.
        let ud: UdSegment = wqe.segment(size_of::<NextSegment>()).ok_or(MALFORMED)?;
        let av = self.address_vector(bus, pd, wqe, &ud)?;
        if av.static_rate() != 0 {
            self.chip.ledger.count("address vector: static rate");
        }
        let most = most.min(256 << av.message_size());
        let (port, to) = route(&av);
        let checked = self.params().is_some_and(|params| params.av_port_check);
        if checked && port != own_port {
            return Err(MALFORMED);
        }
        let request = UdRequest {
            to,
            dest_qp: Qpn::new(ud.dest_qpn()),
            q_key: QKey(ud.q_key()),
            imm: with_imm.then(|| ImmDt(next.immediate().to_be_bytes())),
            solicited: next.solicited(),
        };
        let state = self.ports.node.port(port).ok_or(MALFORMED)?;
        let headers = ud_headers(state, &sender, &request);
        let mut data = Vec::with_capacity(most);
        wqe.gather(&self.chip, bus, pd, UD_DATA, most, &mut data)?;
        if next.ip_checksum() || next.l4_checksum() {
            match self.params().and_then(|params| params.checksums) {
                Some(how) => checksum::insert(&mut data, &next, how),
                None => self.chip.ledger.count("datagram: checksums not enabled"),
            }
        }
        let headers = match headers {
            Ok(headers) => headers,
            Err(SendError::Discard(_)) => {
                if let Some(state) = self.ports.node.port_mut(port) {
                    state.counts.xmit_discards.bump();
                }
                return Ok(self.datagram_sent(qpn, opcode));
            }
            Err(error) => {
                if bus.tracing() {
                    bus.trace(format_args!("QP {qpn:#x}: {error}"));
                }
                return Err(MALFORMED);
            }
        };
        let mut packet = vec![0; MAX_PACKET];
        let written = headers.write(&data, &mut packet).map_err(|_| MALFORMED)?;
        let len = written.len();
        packet.truncate(len);
        match self.emit(bus, port, &packet) {
            Ok(()) => Ok(self.datagram_sent(qpn, opcode)),
            Err(vl) => Ok(Sent::Blocked { port, vl }),
        }
    }

    fn datagram_sent(&mut self, qpn: u32, opcode: WqeOpcode) -> Sent {
        if let Some(qp) = self.qps.get_mut(qpn) {
            let psn = Psn::new(qp.context.next_send_psn()).plus(1);
            qp.context.set_next_send_psn(psn.get());
        }
        Sent::Done(opcode)
    }

    /// One send request of an MLX QP: what is gathered is the packet. infinihost 5.9.
    pub(super) fn send_raw(
        &mut self,
        bus: &mut dyn Bus,
        qpn: u32,
        wqe: &Wqe,
    ) -> Result<Sent, Syndrome> {
        const MALFORMED: Syndrome = Syndrome::LOCAL_QP_OPERATION;
        let opcode = match wqe.at.opcode {
            WqeOpcode::SEND | WqeOpcode::RDMA_WRITE => WqeOpcode::SEND,
            WqeOpcode::SEND_IMM | WqeOpcode::RDMA_WRITE_IMM => WqeOpcode::SEND_IMM,
            _ => return Err(MALFORMED),
        };
        let qp = self.qps.get(qpn).ok_or(MALFORMED)?;
        let (_, port) = self.wire_number(qp);
        let pd = qp.context.pd();
        let control: MlxNextSegment = wqe.segment(0).ok_or(MALFORMED)?;
        let mut packet = Vec::with_capacity(MAX_PACKET);
        let data = size_of::<MlxNextSegment>();
        wqe.gather(&self.chip, bus, pd, data, MAX_PACKET, &mut packet)?;
        if control.static_rate() != 0 || control.vcrc() != 0 {
            self.chip.ledger.count("MLX WQE: static rate or VCRC");
        }
        let options = MlxOptions {
            vl15: control.vl15(),
            keep_slid: control.slr(),
            icrc: match control.icrc() {
                3 => IcrcMode::Keep,
                _ => IcrcMode::Compute,
            },
        };
        let state = self.ports.node.port_mut(port).ok_or(MALFORMED)?;
        match finish_mlx(state, &mut packet, &options) {
            Ok(()) => {}
            Err(MlxError::Discard(_)) => {
                state.counts.xmit_discards.bump();
                return Ok(Sent::Done(opcode));
            }
            Err(error) => {
                if bus.tracing() {
                    bus.trace(format_args!("QP {qpn:#x}: {error}"));
                }
                return Err(MALFORMED);
            }
        }
        match self.emit(bus, port, &packet) {
            Ok(()) => Ok(Sent::Done(opcode)),
            Err(vl) => Ok(Sent::Blocked { port, vl }),
        }
    }
}
