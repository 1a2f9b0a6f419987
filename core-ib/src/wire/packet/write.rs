//! The writer of whole packets.

use super::super::WireError;
use super::bth::{Bth, BthView, PadCount};
use super::crc::{ICRC_LEN, VCRC_LEN, icrc, refresh_vcrc, vcrc};
use super::eth::{Extended, Rwh, RwhView};
use super::grh::Grh;
use super::lrh::{Lnh, Lrh, LrhView, PktLen};
use super::view::HeaderView;

/// All headers of a transport packet.
///
/// What follows from the others (LNH and PktLen of the LRH, PayLen and NxtHdr of the GRH, PadCnt of the BTH) is not looked
/// at on writing, but worked out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers {
    /// Where to, within the subnet.
    pub lrh: Lrh,
    /// Where to, beyond; in multicast always.
    pub grh: Option<Grh>,
    /// What for.
    pub bth: Bth,
    /// Exactly those that the opcode calls for.
    pub extended: Extended,
}

/// A packet whose headers are written and whose payload is not: fill [`Frame::payload`], then [`Frame::seal`].
#[derive(Debug)]
pub struct Frame<'o> {
    packet: &'o mut [u8],
    /// Offset of the payload.
    start: usize,
    /// Offset of the padding.
    end: usize,
}

impl Headers {
    /// Bytes of all headers together, without ICRC and VCRC.
    pub fn len(&self) -> usize {
        let grh = if self.grh.is_some() { Grh::LEN } else { 0 };
        LrhView::LEN + grh + BthView::LEN + self.extended.set().bytes()
    }

    /// Never: there is always an LRH.
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Bytes of a whole packet with `payload_len` bytes of payload, LRH to VCRC.
    pub fn packet_len(&self, payload_len: usize) -> usize {
        let pad = PadCount::of_payload(payload_len);
        let rest = usize::from(pad.get()) + ICRC_LEN + VCRC_LEN;
        (self.len() + rest).saturating_add(payload_len)
    }

    /// Writes the headers of a packet with `payload_len` bytes of payload to the front of `out`.
    ///
    /// Errors: the extended headers are not those of the opcode; the packet would be longer than any link takes;
    /// `out` is too small. Whether the opcode allows such a payload is not asked. After an error the content of `out`
    /// means nothing.
    pub fn frame<'o>(&self, payload_len: usize, out: &'o mut [u8]) -> Result<Frame<'o>, WireError> {
        let opcode = self.bth.opcode;
        if opcode.headers() != Some(self.extended.set()) {
            return Err(WireError::Headers { opcode: opcode.0 });
        }
        let start = self.len();
        let pad_count = PadCount::of_payload(payload_len);
        let end = start.saturating_add(payload_len);
        let (packet, pkt_len) = cut(out, self.packet_len(payload_len))?;
        let lrh = Lrh {
            lnh: if self.grh.is_some() {
                Lnh::Global
            } else {
                Lnh::Local
            },
            pkt_len,
            ..self.lrh
        };
        let mut rest = lrh.write(packet)?;
        if let Some(grh) = &self.grh {
            let pay_len = pkt_len.bytes().saturating_sub(LrhView::LEN + Grh::LEN);
            let grh = Grh {
                pay_len: pay_len as u16, // at most 4172
                nxt_hdr: Grh::IBA,
                ..*grh
            };
            rest = grh.write(rest)?;
        }
        let bth = Bth {
            pad_count,
            ..self.bth
        };
        rest = bth.write(rest)?;
        self.extended.write(rest)?;
        Ok(Frame { packet, start, end })
    }

    /// Writes a whole packet to the front of `out`: headers, `payload`, padding, ICRC, VCRC. Gives back the packet.
    /// Errors as [`Headers::frame`].
    pub fn write<'o>(&self, payload: &[u8], out: &'o mut [u8]) -> Result<&'o mut [u8], WireError> {
        let mut frame = self.frame(payload.len(), out)?;
        frame.payload().copy_from_slice(payload);
        Ok(frame.seal())
    }
}

impl<'o> Frame<'o> {
    /// Room for the payload, exactly; holds whatever the buffer held.
    pub fn payload(&mut self) -> &mut [u8] {
        self.packet
            .get_mut(self.start..self.end)
            .unwrap_or_default()
    }

    /// Adds padding, ICRC and VCRC, and gives back the packet.
    pub fn seal(self) -> &'o mut [u8] {
        let Self { packet, end, .. } = self;
        if let Some(behind) = packet.get_mut(end..) {
            behind.fill(0);
        }
        let icrc_at = packet.len().saturating_sub(ICRC_LEN + VCRC_LEN);
        if let Some((covered, tail)) = packet.split_at_mut_checked(icrc_at)
            && let Ok(Some(computed)) = icrc(covered)
            && let Some(crc) = tail.first_chunk_mut::<ICRC_LEN>()
        {
            *crc = computed;
        }
        let _ = refresh_vcrc(packet); // a frame has room for one
        packet
    }
}

/// A raw packet: no transport, no ICRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawPacket<'a> {
    /// LNH and PktLen are not looked at, but worked out.
    pub lrh: Lrh,
    /// With it the payload is of this EtherType, without it an IPv6 packet.
    pub rwh: Option<Rwh>,
    /// Whole words: a raw packet has no pad count.
    pub payload: &'a [u8],
}

impl RawPacket<'_> {
    /// Writes the packet with its VCRC to the front of `out` and gives it back. Errors: the payload is not a number of
    /// whole words, or too long for any link, or `out` is too small.
    pub fn write<'o>(&self, out: &'o mut [u8]) -> Result<&'o mut [u8], WireError> {
        let rwh = if self.rwh.is_some() { RwhView::LEN } else { 0 };
        let len = LrhView::LEN + rwh + VCRC_LEN;
        let (packet, pkt_len) = cut(out, len.saturating_add(self.payload.len()))?;
        let lnh = match self.rwh {
            Some(_) => Lnh::RawEther,
            None => Lnh::RawIpv6,
        };
        let lrh = Lrh {
            lnh,
            pkt_len,
            ..self.lrh
        };
        if let Some((covered, crc)) = packet.split_last_chunk_mut::<VCRC_LEN>() {
            let mut rest = lrh.write(covered)?;
            if let Some(rwh) = self.rwh {
                rest = rwh.write(rest)?;
            }
            rest.copy_from_slice(self.payload);
            *crc = vcrc(covered);
        }
        Ok(packet)
    }
}

/// The first `len` bytes of `out`, for a packet of so many from LRH to VCRC, and the PktLen to write there.
fn cut(out: &mut [u8], len: usize) -> Result<(&mut [u8], PktLen), WireError> {
    let have = out.len();
    let pkt_len = PktLen::from_bytes(len.saturating_sub(VCRC_LEN));
    let pkt_len = pkt_len.filter(|&words| words >= PktLen::MIN && words <= PktLen::MAX);
    let pkt_len = pkt_len.ok_or(WireError::Field {
        header: LrhView::NAME,
        field: "PktLen",
        found: len as u64 / 4,
    })?;
    match out.get_mut(..len) {
        Some(packet) => Ok((packet, pkt_len)),
        None => Err(WireError::NoSpace {
            header: "packet",
            need: len,
            have,
        }),
    }
}
