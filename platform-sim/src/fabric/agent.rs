//! The agents of a node as the wire sees them: packets in, packets out.
//!
//! What a node does whose special queue pairs are owned by its firmware: a switch, a host that is only simulated on the
//! wire, an HCA before a driver takes QP0 and QP1 over. Both agents and the directed route are here put behind one door.

use super::node::{Effect, NodeState};
use super::pma::{process_perf, refuse};
use super::sma::{Answer, SmpContext, process_smp};
use super::trap::{BadKey, KeyViolation};
use core_ib::wire::mad::{Layout, Mad, MadStatus, Method, MgmtClass, Smi, Smp, Turn};
use core_ib::wire::packet::{
    Bth, Deth, Extended, FlowLabel, Grh, Headers, Lnh, Lrh, MAX_PACKET, Opcode, Packet, PktLen,
    Transport, Vl, check_icrc, seal,
};
use core_ib::{Gid, Instant, Lid, PKey, Psn, QKey, Qpn, Sl};

/// A packet that an agent sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// By which port; none if its destination LID decides, on a switch.
    pub port: Option<u8>,
    /// LRH to VCRC; the lane of a data packet is still to be chosen.
    pub packet: Vec<u8>,
}

/// ICRC and VCRC behind a payload.
const TRAILER: usize = 6;

/// Serves one packet (LRH to VCRC, link level checked) that reached this node at `in_port` and is for its special queue
/// pairs. What cannot be read is dropped.
pub fn serve(
    node: &mut NodeState,
    in_port: u8,
    bytes: &[u8],
    now: Instant,
    effects: &mut Vec<Effect>,
) -> Option<Outgoing> {
    let packet = Packet::read(bytes).ok()?;
    let transport = packet.transport()?;
    check_icrc(bytes).ok()?;
    if transport.bth.opcode != Opcode::UD_SEND_ONLY || transport.payload.len() != Mad::SIZE {
        return None;
    }
    let deth = transport.extended.deth?;
    let lrh = &packet.lrh;
    match (lrh.vl.is_management(), transport.bth.dest_qp) {
        (true, Qpn::SMI) => subnet(node, in_port, bytes, lrh, transport, now, effects),
        (false, Qpn::GSI) => general(node, in_port, lrh, transport, &deth, effects),
        _ => None,
    }
}

fn is_own_lid(node: &NodeState, in_port: u8, lid: Lid) -> bool {
    let end_port = node.port(node.end_port(in_port));
    end_port.is_some_and(|port| port.has_lid(lid))
}

fn subnet(
    node: &mut NodeState,
    in_port: u8,
    bytes: &[u8],
    lrh: &Lrh,
    transport: &Transport<'_>,
    now: Instant,
    effects: &mut Vec<Effect>,
) -> Option<Outgoing> {
    let mut smp = Smp::read(transport.payload).ok()?;
    if !lrh.dlid.is_permissive() && !is_own_lid(node, in_port, lrh.dlid) {
        return None;
    }
    let smi = Smi {
        is_switch: node.switch.is_some(),
        ports: node.port_count(),
    };
    let directed = lrh.dlid.is_permissive();
    match smp.header.class {
        MgmtClass::SUBN_DR => match smi.receive(&mut smp, in_port).ok()? {
            Turn::Local => {}
            Turn::Out { port } => {
                let both = Lid::PERMISSIVE;
                return forwarded(bytes, &smp, both, both, Some(port));
            }
            Turn::LidRouted { dlid } => {
                let slid = node.port(0)?.info.lid;
                return forwarded(bytes, &smp, dlid, slid, None);
            }
        },
        MgmtClass::SUBN_LID if !directed => {}
        _ => return None,
    }
    let context = SmpContext {
        in_port,
        slid: lrh.slid,
        ignore_m_key: false,
        now,
    };
    let Answer::Reply(mut reply) = process_smp(node, &smp, &context, effects) else {
        return None;
    };
    if directed {
        let both = Lid::PERMISSIVE;
        return match smi.originate(&mut reply).ok()? {
            Turn::Out { port } => smp_packet(&reply, lrh.sl, both, both, Some(port)),
            _ => None,
        };
    }
    let back = if smi.is_switch { None } else { Some(in_port) };
    smp_packet(&reply, lrh.sl, lrh.slid, lrh.dlid, back)
}

/// The same packet with another SMP in it, further on its way.
fn forwarded(bytes: &[u8], smp: &Smp, dlid: Lid, slid: Lid, port: Option<u8>) -> Option<Outgoing> {
    let mut packet = bytes.to_vec();
    let (lrh, _) = Lrh::read(&packet).ok()?;
    let lrh = Lrh { dlid, slid, ..lrh };
    lrh.write(&mut packet).ok()?;
    let payload = packet.len().checked_sub(TRAILER + Mad::SIZE)?;
    smp.write(packet.get_mut(payload..)?).ok()?;
    seal(&mut packet).ok()?;
    Some(Outgoing { port, packet })
}

fn smp_packet(smp: &Smp, sl: Sl, dlid: Lid, slid: Lid, port: Option<u8>) -> Option<Outgoing> {
    let headers = Headers {
        lrh: lrh(Vl::MANAGEMENT, sl, dlid, slid),
        grh: None,
        bth: Bth::new(Opcode::UD_SEND_ONLY, PKey::DEFAULT, Qpn::SMI, Psn::new(0)),
        extended: Extended::datagram(Deth {
            q_key: QKey(0),
            src_qp: Qpn::SMI,
        }),
    };
    let packet = written(&headers, &smp.to_bytes())?;
    Some(Outgoing { port, packet })
}

fn lrh(vl: Vl, sl: Sl, dlid: Lid, slid: Lid) -> Lrh {
    Lrh {
        vl,
        sl,
        lnh: Lnh::Local,
        dlid,
        pkt_len: PktLen::default(),
        slid,
    }
}

fn written(headers: &Headers, payload: &[u8]) -> Option<Vec<u8>> {
    let mut room = [0; MAX_PACKET];
    let packet = headers.write(payload, &mut room).ok()?;
    Some(packet.to_vec())
}

/// A trap of this node on its way from `port` to the master subnet manager.
pub fn trap(node: &NodeState, port: u8, smp: &Smp) -> Option<Outgoing> {
    let info = &node.port(port)?.info;
    let by = if node.switch.is_some() {
        None
    } else {
        Some(port)
    };
    smp_packet(smp, info.master_sm_sl, info.master_sm_lid, info.lid, by)
}

fn general(
    node: &mut NodeState,
    in_port: u8,
    lrh_in: &Lrh,
    transport: &Transport<'_>,
    deth: &Deth,
    effects: &mut Vec<Effect>,
) -> Option<Outgoing> {
    let end_port = node.end_port(in_port);
    let port = node.port(end_port)?;
    let own_gid = port.gid(0).unwrap_or(Gid::NONE);
    let own = match transport.grh {
        Some(grh) => port.gid_index(grh.dgid).is_some() && port.has_lid(lrh_in.dlid),
        None => port.has_lid(lrh_in.dlid),
    };
    if !own {
        return None;
    }
    let p_key = transport.bth.p_key;
    let wrong_key = if port.p_key_index(p_key).is_none() {
        Some(BadKey::P(p_key))
    } else if deth.q_key != QKey::GSI {
        Some(BadKey::Q(deth.q_key))
    } else {
        None
    };
    if let Some(key) = wrong_key {
        let violation = KeyViolation {
            key,
            slid: lrh_in.slid,
            dlid: lrh_in.dlid,
            sl: lrh_in.sl,
            src_qp: deth.src_qp,
            dest_qp: Qpn::GSI,
            gids: transport.grh.map(|grh| (grh.sgid, grh.dgid)),
        };
        node.key_violation(end_port, &violation);
        effects.push(Effect::Notice);
        return None;
    }
    let mad = Mad::from_prefix(transport.payload).ok()?;
    let header = mad.header();
    let answer = if header.class == MgmtClass::PERF {
        process_perf(node, in_port, mad)?
    } else if matches!(header.method, Method::GET | Method::SET) {
        refuse(mad, MadStatus::UNSUPPORTED_METHOD_ATTRIBUTE)?
    } else {
        return None;
    };
    let grh = transport.grh.map(|grh| Grh {
        traffic_class: grh.traffic_class,
        flow_label: FlowLabel::new(0),
        pay_len: 0,
        nxt_hdr: Grh::IBA,
        hop_limit: 0xff,
        sgid: own_gid,
        dgid: grh.sgid,
    });
    let headers = Headers {
        lrh: lrh(Vl::new(0), lrh_in.sl, lrh_in.slid, lrh_in.dlid),
        grh,
        bth: Bth::new(Opcode::UD_SEND_ONLY, p_key, deth.src_qp, Psn::new(0)),
        extended: Extended::datagram(Deth {
            q_key: QKey::GSI,
            src_qp: Qpn::GSI,
        }),
    };
    let packet = written(&headers, &answer.0)?;
    let port = if node.switch.is_some() {
        None
    } else {
        Some(in_port)
    };
    Some(Outgoing { port, packet })
}
