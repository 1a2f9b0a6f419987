//! QP0 and QP1: packets whose headers the driver builds. infinihost 5.9.
//!
//! A WQE of the MLX service gathers a whole packet: headers, payload, and four bytes for the ICRC, which the HCA
//! computes as it does the VCRC. The headers lie behind the ring, one place for each WQE, and are gathered through the
//! ring's own region.

use crate::inner::{Inner, NOBODY};
use crate::qp::send::SendQueue;
use crate::qp::wqe::{Wqe, put_sges};
use core::sync::atomic::Ordering;
use core_ib::platform::{DmaBuf, Platform};
use core_ib::verbs::{AhAttr, Imm, PostCause, QpType, SendFlags, SendOp, SendWr, VerbsError};
use core_ib::wire::packet::PadCount;
use core_ib::wire::{Bth, Deth, Extended, FlowLabel, Grh, ImmDt, Lnh, Lrh, Opcode, PktLen, Vl};
use core_ib::{Gid, Lid, PKey, Psn, QKey, Qpn};
use hca_abi::infinihost::wqe::{DataSegment, INLINE, MlxNextSegment, NextSegment, WqeOpcode};

/// Bytes for the headers of one WQE: LRH, GRH, BTH, DETH and immediate take 72.
pub(crate) const HEADERS: usize = 80;
/// Segments that a packet takes beside its payload: its headers, and padding with ICRC.
pub(crate) const EXTRA_SEGMENTS: u32 = 2;
/// Bytes of an LRH.
const LRH: usize = 8;
/// Bytes of the ICRC.
const ICRC: usize = 4;
/// Longest payload: what an MTU of 2048 carries.
const MAX_PAYLOAD: u64 = 2048;

/// Which special QP: SMI of port 1, of port 2, GSI of port 1, of port 2.
pub(crate) const fn which(service: QpType, port: u8) -> Option<usize> {
    match (service, port) {
        (QpType::Smi, 1) => Some(0),
        (QpType::Smi, 2) => Some(1),
        (QpType::Gsi, 1) => Some(2),
        (QpType::Gsi, 2) => Some(3),
        _ => None,
    }
}

impl<P: Platform> Inner<'_, P> {
    /// Makes QP `index` a special one, if there is none yet; its number in the HCA.
    pub(crate) fn enter_special(
        &self,
        service: QpType,
        port: u8,
        index: u32,
    ) -> Result<u32, VerbsError> {
        self.check_port(port)?;
        let invalid = VerbsError::InvalidHandle { object: "QP" };
        let which = which(service, port).ok_or(invalid)?;
        let place = self.special.get(which).ok_or(invalid)?;
        let (object, holders) = (if service == QpType::Smi { "SMI" } else { "GSI" }, 1);
        place
            .compare_exchange(NOBODY, index, Ordering::AcqRel, Ordering::Acquire)
            .map(|_| self.plan.special_qps.wrapping_add(which as u32))
            .map_err(|_| VerbsError::Busy { object, holders })
    }

    /// It is one no more.
    pub(crate) fn leave_special(&self, service: QpType, port: u8) {
        if let Some(place) = which(service, port).and_then(|which| self.special.get(which)) {
            place.store(NOBODY, Ordering::Release);
        }
    }
}

/// What the headers are made from.
struct Packet<'a> {
    service: QpType,
    to: &'a AhAttr,
    source_gid: Gid,
    pkey: PKey,
    remote_qpn: Qpn,
    qkey: QKey,
    imm: Option<Imm>,
    solicited: bool,
    psn: u32,
    payload: usize,
}

impl Packet<'_> {
    /// Writes the headers to the front of `out`; how many bytes they take.
    fn write(&self, out: &mut [u8; HEADERS]) -> Option<usize> {
        let room = out.len();
        let pad_count = PadCount::of_payload(self.payload);
        let opcode = match self.imm {
            Some(_) => Opcode::UD_SEND_ONLY_IMMEDIATE,
            None => Opcode::UD_SEND_ONLY,
        };
        let source = if self.service == QpType::Smi {
            Qpn::SMI
        } else {
            Qpn::GSI
        };
        let extended = Extended {
            imm_dt: self.imm.map(|Imm(bytes)| ImmDt(bytes)),
            ..Extended::datagram(Deth {
                q_key: self.qkey,
                src_qp: source,
            })
        };
        let behind_grh =
            12 + extended.set().bytes() + self.payload + usize::from(pad_count.get()) + ICRC;
        let grh_len = if self.to.grh.is_some() { Grh::LEN } else { 0 };
        let permissive = self.to.dlid.is_permissive();
        let lrh = Lrh {
            vl: Vl::new(if self.service == QpType::Smi { 15 } else { 0 }),
            sl: self.to.sl,
            lnh: if self.to.grh.is_some() {
                Lnh::Global
            } else {
                Lnh::Local
            },
            dlid: self.to.dlid,
            pkt_len: PktLen::from_bytes(LRH + grh_len + behind_grh)?,
            slid: if permissive {
                Lid::PERMISSIVE
            } else {
                Lid(u16::from(self.to.src_path_bits))
            },
        };
        let mut rest = lrh.write(out).ok()?;
        if let Some(route) = &self.to.grh {
            let grh = Grh {
                traffic_class: route.traffic_class,
                flow_label: FlowLabel::new(route.flow_label),
                pay_len: behind_grh as u16,
                nxt_hdr: Grh::IBA,
                hop_limit: route.hop_limit,
                sgid: self.source_gid,
                dgid: route.dgid,
            };
            rest = grh.write(rest).ok()?;
        }
        let bth = Bth {
            solicited: self.solicited,
            pad_count,
            ..Bth::new(opcode, self.pkey, self.remote_qpn, Psn::new(self.psn))
        };
        let rest = extended.write(bth.write(rest).ok()?).ok()?;
        Some(room - rest.len())
    }
}

impl<'p, P: Platform> SendQueue<'p, P> {
    /// Writes headers and segments of a packet of QP0 or QP1.
    pub(crate) fn special(
        &self,
        core: &Inner<'p, P>,
        memory: &DmaBuf<'p, P>,
        wqe: &mut Wqe,
        wr: &SendWr<'_>,
    ) -> Result<(), PostCause> {
        let SendOp::Datagram {
            ah,
            remote_qpn,
            remote_qkey,
            imm,
            pkey_index,
        } = wr.op
        else {
            return Err(PostCause::InvalidOpcode);
        };
        let smi = self.service == QpType::Smi;
        if smi && imm.is_some() {
            return Err(PostCause::InvalidOpcode);
        }
        if wr.flags.contains(SendFlags::INLINE) {
            return Err(PostCause::InlineTooLong);
        }
        let total: u64 = wr.sges.iter().map(|sge| u64::from(sge.length)).sum();
        if total > MAX_PAYLOAD {
            return Err(PostCause::InvalidAttr);
        }
        let vector = core.ahs.get(ah).map_err(|_| PostCause::InvalidHandle)?;
        if vector.pd != self.pd {
            return Err(PostCause::InvalidHandle);
        }
        drop(vector);
        let to = core.av.attr(ah.index()).ok_or(PostCause::InvalidHandle)?;
        let port = core.check_port(self.port);
        let port = port.map_err(|_| PostCause::InvalidAttr)?;
        if to.port != self.port {
            return Err(PostCause::InvalidAttr);
        }
        let pkey = if smi {
            Some(PKey::DEFAULT)
        } else {
            port.pkey(pkey_index)
        };
        let source_gid = match to.grh {
            Some(route) => port.gid(u16::from(route.sgid_index)),
            None => Some(Gid::NONE),
        };
        // Bit 31 means the QP's own, which for QP1 is the well-known one.
        let qkey = if remote_qkey.0 & QKey::CONTROLLED != 0 {
            self.qkey
        } else {
            remote_qkey
        };
        let packet = Packet {
            service: self.service,
            to: &to,
            source_gid: source_gid.ok_or(PostCause::InvalidAttr)?,
            pkey: pkey.ok_or(PostCause::InvalidAttr)?,
            remote_qpn,
            qkey,
            imm,
            solicited: wr.flags.contains(SendFlags::SOLICITED),
            psn: self.psn,
            payload: total as usize,
        };
        let mut headers = [0; HEADERS];
        let len = packet.write(&mut headers).ok_or(PostCause::InvalidAttr)?;
        let index = wqe.at >> self.shape.shift;
        let at = self.shape.bytes() + index as usize * HEADERS;
        memory.write(at, &headers)?;
        let address = u64::from(self.shape.base).wrapping_add(at as u64);
        let segment = DataSegment::new(len as u32, self.lkey, address);
        memory.write(wqe.end as usize, &segment)?;
        wqe.end = wqe.end.wrapping_add(size_of::<DataSegment>() as u32);
        put_sges(memory, &mut wqe.end, wr.sges)?;
        let pad = u32::from(PadCount::of_payload(total as usize).get());
        let tail = [INLINE | (pad + ICRC as u32), 0, 0, 0].map(u32::to_be_bytes);
        memory.write(wqe.end as usize, &tail)?;
        wqe.end = wqe.end.wrapping_add(size_of_val(&tail) as u32);
        let rate = core.static_rate(&to);
        let mut control = MlxNextSegment::ZERO;
        control
            .set_vl15(smi)
            .set_slr(to.dlid.is_permissive())
            .set_static_rate(rate.unwrap_or(0))
            .set_sl(to.sl.get())
            .set_signaled(wr.flags.contains(SendFlags::SIGNALED))
            .set_dlid(to.dlid.0);
        let control: NextSegment = zerocopy::transmute!(control);
        wqe.opcode = WqeOpcode::SEND;
        wqe.flags = control.flags();
        wqe.immediate = control.immediate();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core_ib::Sl;
    use core_ib::verbs::GlobalRoute;

    fn packet<'a>(to: &'a AhAttr, service: QpType, payload: usize) -> Packet<'a> {
        Packet {
            service,
            to,
            source_gid: Gid([0x5a; 16]),
            pkey: PKey(0x8012),
            remote_qpn: Qpn::GSI,
            qkey: QKey::GSI,
            imm: None,
            solicited: true,
            psn: 0x0100_0007,
            payload,
        }
    }

    #[test]
    fn a_mad_of_qp1_has_the_headers_of_protocols_1() {
        let to = AhAttr {
            port: 1,
            dlid: Lid(0x0012),
            sl: Sl::new(3),
            src_path_bits: 1,
            ..AhAttr::default()
        };
        let mut out = [0; HEADERS];
        let len = packet(&to, QpType::Gsi, 256).write(&mut out).unwrap();
        // LRH 8, BTH 12, DETH 8, payload 256, ICRC 4: 288 bytes, 72 words.
        let expected = [
            0x00, 0x32, 0x00, 0x12, 0x00, 72, 0x00,
            0x01, // VL 0, SL 3, LNH 2, DLID, length, path bits
            0x64, 0x80, 0x80, 0x12, 0x00, 0x00, 0x00,
            0x01, // SEND only, solicited, P_Key, QP1
            0x00, 0x00, 0x00, 0x07, // PSN
            0x80, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x01, // Q_Key, from QP1
        ];
        assert_eq!(out[..len], expected);
    }

    #[test]
    fn an_smp_to_the_neighbour_leaves_on_vl15_from_nobody() {
        let to = AhAttr {
            port: 2,
            dlid: Lid::PERMISSIVE,
            ..AhAttr::default()
        };
        let mut out = [0; HEADERS];
        let len = packet(&to, QpType::Smi, 256).write(&mut out).unwrap();
        assert_eq!(out[..8], [0xf0, 0x02, 0xff, 0xff, 0x00, 72, 0xff, 0xff]);
        assert_eq!((len, out[27]), (28, 0), "from QP0");
    }

    #[test]
    fn a_grh_counts_in_the_length_and_padding_does_too() {
        let route = GlobalRoute {
            dgid: Gid([0xff; 16]),
            hop_limit: 9,
            flow_label: 0x12345,
            traffic_class: 0x66,
            ..GlobalRoute::default()
        };
        let to = AhAttr {
            port: 1,
            dlid: Lid(0xc001),
            grh: Some(route),
            ..AhAttr::default()
        };
        let mut out = [0; HEADERS];
        let len = packet(&to, QpType::Gsi, 61).write(&mut out).unwrap();
        assert_eq!(len, 68);
        // Behind the GRH: 12 + 8 + 61 + 3 + 4 = 88; with it and the LRH 136 bytes, 34 words.
        assert_eq!((out[1], out[5]), (0x03, 34));
        assert_eq!(out[8..16], [0x66, 0x61, 0x23, 0x45, 0x00, 88, 0x1b, 9]);
        assert_eq!(out[49], 0x80 | 3 << 4, "solicited, three bytes of padding");
    }
}
