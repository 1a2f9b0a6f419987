//! The unreliable datagram engine, QP0 and QP1 included. protocols 2.8, 2.9.

use super::port::{Destination, Discard, DropReason, Incoming};
use crate::fabric::{BadKey, KeyViolation, PortCounts, PortState};
use core::fmt;
use core_ib::wire::packet::{
    Bth, Deth, Extended, FlowLabel, Grh, Headers, ImmDt, Lnh, Lrh, Opcode, PktLen, Vl,
};
use core_ib::{Gid, Lid, PKey, Psn, QKey, Qpn, Sl};

/// The global part of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GlobalRoute {
    /// Destination.
    pub dgid: Gid,
    /// Entry of the port's GID table that is the source.
    pub sgid_index: usize,
    /// Flow label.
    pub flow_label: FlowLabel,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
}

/// Where a packet goes, as an address handle or a connection says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressVector {
    /// Destination, unicast or multicast.
    pub dlid: Lid,
    /// Service level.
    pub sl: Sl,
    /// Low LMC bits of the source LID.
    pub path_bits: u8,
    /// With it the packet has a GRH.
    pub grh: Option<GlobalRoute>,
}

impl AddressVector {
    /// LRH of a packet that goes there from `port`, on the lane that its SL leads to.
    pub fn lrh(&self, port: &PortState) -> Result<Lrh, SendError> {
        let mask = (1_u16 << (port.info.lmc & 7)) - 1;
        let slid = port.info.lid.0 & !mask | u16::from(self.path_bits) & mask;
        Ok(Lrh {
            vl: port
                .vl_of(0, self.sl)
                .ok_or(SendError::Discard(Discard::NoLane))?,
            sl: self.sl,
            lnh: Lnh::Local,
            dlid: self.dlid,
            pkt_len: PktLen::default(),
            slid: Lid(slid),
        })
    }

    /// GRH of a packet that goes there from `port`, if it has one.
    pub fn grh(&self, port: &PortState) -> Result<Option<Grh>, SendError> {
        let grh = |route: &GlobalRoute| {
            let index = route.sgid_index;
            Ok(Grh {
                traffic_class: route.traffic_class,
                flow_label: route.flow_label,
                pay_len: 0,
                nxt_hdr: Grh::IBA,
                hop_limit: route.hop_limit,
                sgid: port.gid(index).ok_or(SendError::SgidIndex(index))?,
                dgid: route.dgid,
            })
        };
        self.grh.as_ref().map(grh).transpose()
    }
}

/// What a datagram needs of the queue pair that sends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdSender {
    /// Its number on the wire: 0 and 1 for the special ones.
    pub qpn: Qpn,
    /// Q_Key of its context.
    pub q_key: QKey,
    /// Entry of the port's P_Key table.
    pub p_key_index: usize,
    /// PSN of this packet; the queue pair counts on.
    pub psn: Psn,
}

/// One send request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdRequest {
    /// Where to.
    pub to: AddressVector,
    /// Destination QP, [`Qpn::MULTICAST`] for a group.
    pub dest_qp: Qpn,
    /// Q_Key of the request; with bit 31 the queue pair's own is sent instead. protocols 1.14.3.
    pub q_key: QKey,
    /// Immediate data.
    pub imm: Option<ImmDt>,
    /// The receiver's completion is to be solicited.
    pub solicited: bool,
}

/// Why there is no packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendError {
    /// The port has no GID table entry of this number.
    SgidIndex(usize),
    /// The port has no P_Key table entry of this number.
    PKeyIndex(usize),
    /// The packet is made and lost: nothing is wrong with the request.
    Discard(Discard),
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SgidIndex(index) => write!(f, "there is no GID table entry {index}"),
            Self::PKeyIndex(index) => write!(f, "there is no P_Key table entry {index}"),
            Self::Discard(discard) => discard.fmt(f),
        }
    }
}

impl std::error::Error for SendError {}

/// Headers of the packet that carries out `request`. QP0 sends on VL15, with P_Key 0xFFFF. The payload, at most the
/// path's MTU, is the caller's to check and to gather.
pub fn ud_headers(
    port: &PortState,
    sender: &UdSender,
    request: &UdRequest,
) -> Result<Headers, SendError> {
    let is_smi = sender.qpn == Qpn::SMI;
    let p_key = match sender.p_key_index {
        _ if is_smi => PKey::DEFAULT,
        index => {
            let entry = port.p_keys.get(index).copied();
            let key = entry.ok_or(SendError::PKeyIndex(index))?;
            if key.base() == 0 {
                return Err(SendError::Discard(Discard::NoPKey(index)));
            }
            key
        }
    };
    let mut lrh = match request.to.lrh(port) {
        Err(SendError::Discard(Discard::NoLane)) if is_smi => {
            // An SMP ignores its SL.
            let to = AddressVector {
                sl: Sl::new(0),
                ..request.to
            };
            Lrh {
                sl: request.to.sl,
                ..to.lrh(port)?
            }
        }
        other => other?,
    };
    if is_smi {
        lrh.vl = Vl::MANAGEMENT;
    }
    let q_key = if request.q_key.0 & QKey::CONTROLLED != 0 {
        sender.q_key
    } else {
        request.q_key
    };
    let opcode = match request.imm {
        Some(_) => Opcode::UD_SEND_ONLY_IMMEDIATE,
        None => Opcode::UD_SEND_ONLY,
    };
    let mut bth = Bth::new(opcode, p_key, request.dest_qp, sender.psn);
    bth.solicited = request.solicited;
    let deth = Deth {
        q_key,
        src_qp: sender.qpn,
    };
    Ok(Headers {
        lrh,
        grh: request.to.grh(port)?,
        bth,
        extended: Extended {
            imm_dt: request.imm,
            ..Extended::datagram(deth)
        },
    })
}

/// Which ways a packet takes that a port sends. protocols 2.8.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whither {
    /// On the wire.
    Wire,
    /// To this very port, and not on the wire.
    Loopback,
    /// On the wire, and to the attached queue pairs of this port.
    Both,
}

/// Which ways a packet to `dlid` takes from `port`.
pub fn whither(port: &PortState, dlid: Lid) -> Whither {
    if dlid.is_multicast() {
        Whither::Both
    } else if port.has_lid(dlid) {
        Whither::Loopback
    } else {
        Whither::Wire
    }
}

/// Which rules a datagram queue pair obeys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiverKind {
    /// QP0: no P_Key, no Q_Key, MADs on VL15.
    Smi,
    /// QP1: any P_Key of the table, MADs.
    Gsi,
    /// All others: the one P_Key of this entry.
    Ud {
        /// Entry of the port's P_Key table.
        p_key_index: usize,
    },
}

/// What a datagram needs of the queue pair that receives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdReceiver {
    /// Which rules.
    pub kind: ReceiverKind,
    /// Its number on the wire, for reports.
    pub qpn: Qpn,
    /// Q_Key of its context.
    pub q_key: QKey,
    /// It is in a state to receive: RTR, RTS, SQD or SQE.
    pub receives: bool,
}

/// A datagram for a receive request: what goes into its buffer, and what its completion says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdReceipt<'p> {
    /// First 40 bytes of the buffer; without a GRH they are left as they are.
    pub grh: Option<&'p [u8]>,
    /// The bytes from 40 on.
    pub payload: &'p [u8],
    /// Immediate data.
    pub imm: Option<ImmDt>,
    /// The completion is solicited.
    pub solicited: bool,
    /// Queue pair of the sender.
    pub src_qp: Qpn,
    /// LID of the sender.
    pub slid: Lid,
    /// Service level.
    pub sl: Sl,
    /// Low LMC bits of the destination LID; 0 for multicast and permissive.
    pub path_bits: u8,
    /// Entry of the P_Key table that let it in; 0 for QP0.
    pub p_key_index: usize,
    /// The packet came by multicast.
    pub multicast: bool,
}

impl UdReceipt<'_> {
    /// What goes before every payload.
    pub const GRH_ROOM: usize = 40;

    /// Bytes that the completion counts: GRH room and payload.
    pub fn byte_count(&self) -> usize {
        self.payload.len().saturating_add(Self::GRH_ROOM)
    }
}

/// May the queue pair `receiver`, which the packet is for, have it? Rules 1 to 5 of protocols 2.8.2; whether there is a
/// receive request, and whether its buffer is long enough, is the model's business.
pub fn ud_receive<'p>(
    port: &PortState,
    incoming: &Incoming<'p>,
    receiver: &UdReceiver,
) -> Result<UdReceipt<'p>, DropReason> {
    let Incoming {
        lrh, transport, to, ..
    } = incoming;
    let opcode = transport.bth.opcode;
    let is_mad = !matches!(receiver.kind, ReceiverKind::Ud { .. });
    let with_imm = opcode == Opcode::UD_SEND_ONLY_IMMEDIATE;
    let deth = match transport.extended.deth {
        Some(deth) if opcode == Opcode::UD_SEND_ONLY || with_imm => deth,
        _ => return Err(DropReason::Opcode(opcode.0)),
    };
    if !receiver.receives {
        return Err(DropReason::QpState(receiver.qpn));
    }
    let violation = |key| {
        DropReason::Key(KeyViolation {
            key,
            slid: lrh.slid,
            dlid: lrh.dlid,
            sl: lrh.sl,
            src_qp: deth.src_qp,
            dest_qp: receiver.qpn,
            gids: transport.grh.map(|grh| (grh.sgid, grh.dgid)),
        })
    };
    let p_key = transport.bth.p_key;
    let p_key_index = match receiver.kind {
        ReceiverKind::Smi => Some(0),
        ReceiverKind::Gsi => port.p_key_index(p_key),
        ReceiverKind::Ud { p_key_index } => {
            let entry = port.p_keys.get(p_key_index);
            let matches = entry.is_some_and(|entry| entry.matches(p_key));
            matches.then_some(p_key_index)
        }
    };
    let p_key_index = p_key_index.ok_or_else(|| violation(BadKey::P(p_key)))?;
    if receiver.kind != ReceiverKind::Smi && deth.q_key != receiver.q_key {
        return Err(violation(BadKey::Q(deth.q_key)));
    }
    let len = transport.payload.len();
    if is_mad && len != 256 || !transport.payload_fits(port.neighbor_mtu()) {
        return Err(DropReason::Payload(len));
    }
    if is_mad && with_imm {
        return Err(DropReason::Opcode(opcode.0));
    }
    let (path_bits, multicast) = match to {
        Destination::Unicast { path_bits, .. } => (*path_bits, false),
        Destination::Multicast { .. } => (0, true),
        Destination::Permissive => (0, false),
    };
    Ok(UdReceipt {
        grh: incoming.grh,
        payload: transport.payload,
        imm: transport.extended.imm_dt,
        solicited: transport.bth.solicited,
        src_qp: deth.src_qp,
        slid: lrh.slid,
        sl: lrh.sl,
        path_bits,
        p_key_index,
        multicast,
    })
}

/// Counts a datagram that found no receive request.
pub fn no_receive_request(counts: &mut PortCounts, kind: ReceiverKind) {
    match kind {
        ReceiverKind::Smi => counts.vl15_dropped.bump(),
        ReceiverKind::Gsi => counts.qp1_dropped.bump(),
        ReceiverKind::Ud { .. } => {}
    }
}
