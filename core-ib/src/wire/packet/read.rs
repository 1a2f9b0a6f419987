//! The reader of whole packets.

use super::super::WireError;
use super::bth::{Bth, BthView};
use super::crc::{ICRC_LEN, VCRC_LEN, check_icrc, check_vcrc, seal};
use super::eth::{Extended, Rwh};
use super::flow::FlowControl;
use super::grh::{Grh, GrhView};
use super::lrh::{Lnh, Lrh, LrhView, PktLen};
use super::view::HeaderView;
use super::write::Headers;
use super::{MAX_PACKET, opcode::PayloadRule};
use crate::types::Mtu;

/// A packet taken apart. Borrows the bytes that it was read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'p> {
    /// The header that all packets have.
    pub lrh: Lrh,
    /// What the LRH says follows.
    pub contents: Contents<'p>,
}

/// What follows an LRH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "a short-lived value without heap; nearly all packets are of the large kind"
)]
pub enum Contents<'p> {
    /// A transport packet, local or global.
    Iba(Transport<'p>),
    /// A raw packet with an EtherType.
    RawEther {
        /// Says what the payload is.
        rwh: Rwh,
        /// Whole words.
        payload: &'p [u8],
    },
    /// A raw packet that holds an IPv6 packet, whole words.
    RawIpv6(&'p [u8]),
}

/// A transport packet taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transport<'p> {
    /// There if the packet is global.
    pub grh: Option<Grh>,
    /// Opcode, destination QP, PSN …
    pub bth: Bth,
    /// The headers that the opcode calls for.
    pub extended: Extended,
    /// Without padding.
    pub payload: &'p [u8],
}

impl<'p> Packet<'p> {
    /// Reads `bytes`, which are one packet from LRH to VCRC and nothing else.
    ///
    /// Checked are the versions, that PktLen is within its bounds and says how many bytes there are, that PayLen of
    /// the GRH agrees, that all headers of the opcode and the padding fit. Not checked are the checksums, and
    /// whether the packet is welcome: a payload that the opcode does not allow ([`Transport::payload_fits`]) is
    /// something to be answered, not something unreadable.
    pub fn read(bytes: &'p [u8]) -> Result<Self, WireError> {
        let (lrh, rest) = Lrh::read(bytes)?;
        let claimed = lrh.pkt_len.bytes();
        if lrh.pkt_len < PktLen::MIN || lrh.pkt_len > PktLen::MAX {
            return Err(WireError::Field {
                header: LrhView::NAME,
                field: "PktLen",
                found: u64::from(lrh.pkt_len.words()),
            });
        }
        if bytes.len() != claimed.saturating_add(VCRC_LEN) {
            return Err(WireError::Length {
                header: LrhView::NAME,
                claimed: claimed.saturating_add(VCRC_LEN),
                have: bytes.len(),
            });
        }
        let (rest, _) = split_end(rest, VCRC_LEN, "VCRC")?;
        let contents = match lrh.lnh {
            Lnh::RawEther => {
                let (rwh, payload) = Rwh::read(rest)?;
                Contents::RawEther { rwh, payload }
            }
            Lnh::RawIpv6 => Contents::RawIpv6(rest),
            Lnh::Local => Contents::Iba(Transport::read(None, rest)?),
            Lnh::Global => {
                let (grh, rest) = Grh::read(rest)?;
                if usize::from(grh.pay_len) != rest.len() {
                    return Err(WireError::Length {
                        header: GrhView::NAME,
                        claimed: usize::from(grh.pay_len),
                        have: rest.len(),
                    });
                }
                if grh.nxt_hdr != Grh::IBA {
                    return Err(WireError::Field {
                        header: GrhView::NAME,
                        field: "NxtHdr",
                        found: u64::from(grh.nxt_hdr),
                    });
                }
                Contents::Iba(Transport::read(Some(grh), rest)?)
            }
        };
        Ok(Self { lrh, contents })
    }

    /// Reads `bytes` as [`Packet::read`] does and checks ICRC and VCRC: all that a destination asks of a packet
    /// before it looks at a QP.
    pub fn read_checked(bytes: &'p [u8]) -> Result<Self, WireError> {
        let packet = Self::read(bytes)?;
        check_vcrc(bytes)?;
        check_icrc(bytes)?;
        Ok(packet)
    }

    /// The transport packet; `None` if the packet is raw.
    pub fn transport(&self) -> Option<&Transport<'p>> {
        match &self.contents {
            Contents::Iba(transport) => Some(transport),
            _ => None,
        }
    }

    /// The headers of a transport packet, as they would be written; `None` if the packet is raw.
    pub fn headers(&self) -> Option<Headers> {
        self.transport().map(|transport| Headers {
            lrh: self.lrh,
            grh: transport.grh,
            bth: transport.bth,
            extended: transport.extended,
        })
    }
}

impl<'p> Transport<'p> {
    /// Reads what follows LRH and GRH, up to the last byte of the ICRC.
    fn read(grh: Option<Grh>, bytes: &'p [u8]) -> Result<Self, WireError> {
        let (bth, rest) = Bth::read(bytes)?;
        let (extended, rest) = Extended::read(bth.opcode, rest)?;
        let (rest, _) = split_end(rest, ICRC_LEN, "ICRC")?;
        let pad = usize::from(bth.pad_count.get());
        let too_much_padding = WireError::Length {
            header: BthView::NAME,
            claimed: pad,
            have: rest.len(),
        };
        let (payload, _) = split_end(rest, pad, "padding").map_err(|_| too_much_padding)?;
        Ok(Self {
            grh,
            bth,
            extended,
            payload,
        })
    }

    /// Does the payload have a length that the opcode allows on a path of this MTU? If not, a responder that is
    /// connected answers with a NAK for an invalid request, any other drops the packet. protocols 1.6.
    pub fn payload_fits(&self, mtu: Mtu) -> bool {
        let rule = self.bth.opcode.payload();
        rule.unwrap_or(PayloadRule::None)
            .allows(self.payload.len(), mtu)
    }
}

/// Splits `len` bytes off the end.
fn split_end<'p>(
    bytes: &'p [u8],
    len: usize,
    header: &'static str,
) -> Result<(&'p [u8], &'p [u8]), WireError> {
    let have = bytes.len();
    let front = have.checked_sub(len);
    let split = front.and_then(|front| bytes.split_at_checked(front));
    split.ok_or(WireError::Truncated {
        header,
        need: len,
        have,
    })
}

/// Lets everything in this module that reads bytes read these, which may be anything. For property tests, fuzz targets
/// and the replay of their corpus; what is found out is that nothing panics and that what can be read can be
/// written.
///
/// # Panics
///
/// If a packet that was read writes back differently where it should not: that is the defect being looked for.
pub fn read_untrusted(bytes: &[u8]) {
    let _ = FlowControl::read(bytes);
    let _ = check_icrc(bytes);
    let _ = check_vcrc(bytes);
    let Ok(packet) = Packet::read(bytes) else {
        return;
    };
    let (Some(headers), Some(transport)) = (packet.headers(), packet.transport()) else {
        return;
    };
    let mut again = [0; MAX_PACKET];
    // A packet with more padding than its payload needs is read, but never written.
    if let Ok(written) = headers.write(transport.payload, &mut again)
        && written.len() == bytes.len()
    {
        assert_eq!(Packet::read_checked(written), Ok(packet));
        let _ = seal(written);
    }
}
