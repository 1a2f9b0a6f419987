//! What every transport needs of a port: may this packet come in, may it go out?

use crate::fabric::{Effect, KeyViolation, NodeState, PortState};
use core::fmt;
use core_ib::wire::mad::PortState as State;
use core_ib::wire::packet::{
    BthView, GrhView, HeaderView, LrhView, Packet, PktLen, Service, Transport, VCRC_LEN, Vl,
    check_icrc, check_vcrc,
};
use core_ib::wire::{Lrh, WireError};
use core_ib::{Gid, Lid, Qpn};

/// Why an arriving packet is dropped. Whatever the port counts is counted already, but for key violations, which
/// [`NodeState::key_violation`] takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DropReason {
    /// Malformed, longer than the MTU allows, or a bad VCRC: PortRcvErrors.
    Link(WireError),
    /// A lane that is not operational: PortRcvErrors.
    Lane(Vl),
    /// The port is down, or has not been armed and this is no SMP.
    PortState(State),
    /// The destination LID is none of the port's.
    Dlid(Lid),
    /// The destination GID is none of the port's.
    Dgid(Gid),
    /// What is behind the GRH cannot be read (ICRC, version, opcode).
    Malformed(WireError),
    /// Raw packets have no queue pair to go to here.
    Raw,
    /// A multicast LID without GRH, multicast GID and QP 0xFFFFFF, or one of these without the LID. protocols 2.9.
    Multicast,
    /// QP0 off VL15, or another QP on VL15.
    ManagementLane(Qpn),
    /// The queue pair is in no state to receive.
    QpState(Qpn),
    /// A service or an operation that the queue pair does not speak.
    Opcode(u8),
    /// A payload that the queue pair does not take: of QP0 and QP1 anything but 256 bytes.
    Payload(usize),
    /// The P_Key or the Q_Key does not fit.
    Key(KeyViolation),
    /// Not the way that the connection takes: another source LID (this), or GRH. protocols 2.3.1.
    Path(Lid),
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Link(error) | Self::Malformed(error) => error.fmt(f),
            Self::Lane(vl) => write!(f, "{vl} is not operational"),
            Self::PortState(state) => write!(f, "the port is in state {}", state.0),
            Self::Dlid(lid) => write!(f, "LID {lid} is none of the port's"),
            Self::Dgid(gid) => write!(f, "GID {gid} is none of the port's"),
            Self::Raw => f.write_str("raw packets go nowhere"),
            Self::Multicast => f.write_str("neither unicast nor multicast"),
            Self::ManagementLane(qpn) => write!(f, "QP {qpn} and VL15 do not go together"),
            Self::QpState(qpn) => write!(f, "QP {qpn} does not receive"),
            Self::Opcode(opcode) => write!(f, "opcode {opcode:#04x} is not spoken by the QP"),
            Self::Payload(len) => write!(f, "{len} bytes of payload are not taken"),
            Self::Key(violation) => write!(f, "wrong key: {:?}", violation.key),
            Self::Path(slid) => write!(f, "LID {slid} is not where the connection leads"),
        }
    }
}

/// Whom an accepted packet is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// One queue pair of this port.
    Unicast {
        /// Low LMC bits of the destination LID.
        path_bits: u8,
        /// Entry of the GID table that the GRH names, if there is a GRH.
        gid_index: Option<usize>,
    },
    /// Every queue pair that is attached to this group.
    Multicast {
        /// The group's GID.
        mgid: Gid,
        /// The group's LID.
        mlid: Lid,
    },
    /// QP0 of whoever receives it.
    Permissive,
}

/// A packet that this port takes: checks 1 to 5 and 7 of protocols 2.2 are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Incoming<'p> {
    /// Its first header.
    pub lrh: Lrh,
    /// GRH, BTH, extended headers, payload.
    pub transport: Transport<'p>,
    /// The 40 bytes of the GRH as they came, for the receive buffer.
    pub grh: Option<&'p [u8]>,
    /// Whom it is for.
    pub to: Destination,
}

/// Takes a packet (LRH to VCRC) that has arrived at `port` of a CA, or says why not. Counts what the port counts; an armed
/// port becomes active by a data packet.
pub fn accept<'p>(
    node: &mut NodeState,
    port: u8,
    bytes: &'p [u8],
    effects: &mut Vec<Effect>,
) -> Result<Incoming<'p>, DropReason> {
    let Some(state) = node.port_mut(port) else {
        return Err(DropReason::PortState(State::DOWN));
    };
    let lrh = link_checks(state, bytes)?;
    let is_smp = lrh.vl.is_management();
    match state.info.state {
        State::ARMED | State::ACTIVE => {}
        State::INIT if is_smp => {}
        other => return Err(DropReason::PortState(other)),
    }
    if !is_smp {
        let words = lrh.pkt_len.words();
        state.counts.received(words, lrh.dlid.is_multicast());
        node.data_received(port, effects);
    }
    let state = node.port(port).ok_or(DropReason::Dlid(lrh.dlid))?;
    read(state, lrh, bytes)
}

/// Check 1: version, length, VCRC, lane.
fn link_checks(state: &mut PortState, bytes: &[u8]) -> Result<Lrh, DropReason> {
    let whole = || -> Result<Lrh, WireError> {
        let (lrh, _) = Lrh::read(bytes)?;
        check_vcrc(bytes)?;
        let most = PktLen::max(state.neighbor_mtu());
        let claimed = lrh.pkt_len.bytes() + VCRC_LEN;
        if claimed != bytes.len() || lrh.pkt_len < PktLen::MIN || lrh.pkt_len > most {
            return Err(WireError::Length {
                header: LrhView::NAME,
                claimed,
                have: bytes.len(),
            });
        }
        Ok(lrh)
    };
    match whole() {
        Ok(lrh) if state.is_operational(lrh.vl) => Ok(lrh),
        Ok(lrh) => {
            state.counts.rcv_errors.bump();
            Err(DropReason::Lane(lrh.vl))
        }
        Err(error) => {
            state.counts.rcv_errors.bump();
            Err(DropReason::Link(error))
        }
    }
}

/// Checks 2 to 5 and 7.
fn read<'p>(state: &PortState, lrh: Lrh, bytes: &'p [u8]) -> Result<Incoming<'p>, DropReason> {
    let dlid = lrh.dlid;
    let ours = dlid.is_multicast() || dlid.is_permissive() || state.has_lid(dlid);
    if !ours {
        return Err(DropReason::Dlid(dlid));
    }
    let packet = Packet::read(bytes).map_err(DropReason::Malformed)?;
    let transport = *packet.transport().ok_or(DropReason::Raw)?;
    check_icrc(bytes).map_err(DropReason::Malformed)?;
    let dest_qp = transport.bth.dest_qp;
    if lrh.vl.is_management() != (dest_qp == Qpn::SMI) {
        return Err(DropReason::ManagementLane(dest_qp));
    }
    let dgid = transport.grh.map(|grh| grh.dgid);
    let to_group = dest_qp == Qpn::MULTICAST;
    let to = match dgid {
        Some(mgid) if dlid.is_multicast() && mgid.is_multicast() && to_group => {
            if transport.bth.opcode.service() != Service::Ud {
                return Err(DropReason::Opcode(transport.bth.opcode.0));
            }
            Destination::Multicast { mgid, mlid: dlid }
        }
        _ if dlid.is_multicast() || to_group => return Err(DropReason::Multicast),
        Some(gid) if gid.is_multicast() => return Err(DropReason::Multicast),
        // QP0 is the only one on VL15, so that a permissive LID is for QP0 alone.
        _ if dlid.is_permissive() && dest_qp == Qpn::SMI => Destination::Permissive,
        _ if dlid.is_permissive() => return Err(DropReason::Dlid(dlid)),
        dgid => {
            let index = |gid| state.gid_index(gid).ok_or(DropReason::Dgid(gid));
            let gid_index = dgid.map(index).transpose()?;
            let mask = (1_u16 << (state.info.lmc & 7)) - 1;
            let path_bits = (dlid.0 & mask) as u8;
            Destination::Unicast {
                path_bits,
                gid_index,
            }
        }
    };
    let grh = transport.grh.and_then(|_| {
        let end = LrhView::LEN + GrhView::LEN;
        bytes.get(LrhView::LEN..end)
    });
    Ok(Incoming {
        lrh,
        transport,
        grh,
        to,
    })
}

/// Why a packet does not leave. PortXmitDiscards is counted already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Discard {
    /// Data leaves an active port only, an SMP one that is at least initialised.
    PortState(State),
    /// Longer than the MTU of the link allows, or no packet at all.
    Length(usize),
    /// The service level leads to no lane.
    NoLane,
    /// The P_Key table entry of the queue pair holds no key. verbs 12.
    NoPKey(usize),
}

impl fmt::Display for Discard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PortState(state) => write!(f, "the port is in state {}", state.0),
            Self::Length(len) => write!(f, "{len} bytes do not go over this link"),
            Self::NoLane => f.write_str("the service level leads to no lane"),
            Self::NoPKey(index) => write!(f, "P_Key table entry {index} holds no key"),
        }
    }
}

/// May this packet (LRH to VCRC) leave by the port? Counts it either way.
pub fn depart(state: &mut PortState, bytes: &[u8]) -> Result<(), Discard> {
    let verdict = may_depart(state, bytes);
    match verdict {
        Ok(lrh) if lrh.vl.is_management() => {}
        Ok(lrh) => {
            let words = lrh.pkt_len.words();
            state.counts.sent(words, lrh.dlid.is_multicast());
        }
        Err(_) => state.counts.xmit_discards.bump(),
    }
    verdict.map(|_| ())
}

fn may_depart(state: &PortState, bytes: &[u8]) -> Result<Lrh, Discard> {
    let (lrh, _) = Lrh::read(bytes).map_err(|_| Discard::Length(bytes.len()))?;
    let most = PktLen::max(state.neighbor_mtu()).bytes() + VCRC_LEN;
    if bytes.len() > most || bytes.len() < LrhView::LEN + BthView::LEN + VCRC_LEN {
        return Err(Discard::Length(bytes.len()));
    }
    match state.info.state {
        State::ACTIVE => {}
        State::INIT | State::ARMED if lrh.vl.is_management() => {}
        other => return Err(Discard::PortState(other)),
    }
    if !state.is_operational(lrh.vl) {
        return Err(Discard::NoLane);
    }
    Ok(lrh)
}
