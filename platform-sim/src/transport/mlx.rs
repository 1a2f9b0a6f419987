//! The raw path of QP0 and QP1: software gives the whole packet, the hardware adds what only it knows.
//!
//! infinihost 5.9.

use super::port::Discard;
use crate::fabric::PortState;
use core::fmt;
use core_ib::Lid;
use core_ib::wire::WireError;
use core_ib::wire::packet::{
    Grh, HeaderView, ICRC_LEN, Lrh, LrhView, PktLen, VCRC_LEN, Vl, icrc, refresh_vcrc,
};

/// Who makes the ICRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IcrcMode {
    /// The hardware, over whatever the last four bytes hold.
    Compute,
    /// Software did.
    Keep,
}

/// What the request says beside the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MlxOptions {
    /// Send on VL15; else the SL of the header leads to the lane.
    pub vl15: bool,
    /// The source LID of the header is sent as it is; else it is the port's, with the path bits of the header.
    pub keep_slid: bool,
    /// Who makes the ICRC.
    pub icrc: IcrcMode,
}

/// Why there is no packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MlxError {
    /// The bytes are no packet: too short, no whole words, an unknown version.
    Malformed(WireError),
    /// The packet is made and lost: nothing is wrong with the request.
    Discard(Discard),
}

impl fmt::Display for MlxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(error) => error.fmt(f),
            Self::Discard(discard) => discard.fmt(f),
        }
    }
}

impl std::error::Error for MlxError {}

/// Makes a packet of the gathered bytes, LRH to ICRC: appends the VCRC, sets lane, source LID and ICRC as `options` say, and
/// makes the lengths of LRH and GRH those of the bytes, which are trusted above what the headers say.
pub fn finish_mlx(
    port: &PortState,
    bytes: &mut Vec<u8>,
    options: &MlxOptions,
) -> Result<(), MlxError> {
    let malformed = MlxError::Malformed;
    let (mut lrh, _) = Lrh::read(bytes).map_err(malformed)?;
    let len = bytes.len();
    let words = PktLen::from_bytes(len).filter(|&w| w >= PktLen::MIN && w <= PktLen::MAX);
    lrh.pkt_len = words.ok_or(MlxError::Malformed(WireError::Length {
        header: LrhView::NAME,
        claimed: lrh.pkt_len.bytes(),
        have: len,
    }))?;
    lrh.vl = if options.vl15 {
        Vl::MANAGEMENT
    } else {
        let vl = port.vl_of(0, lrh.sl);
        vl.ok_or(MlxError::Discard(Discard::NoLane))?
    };
    if !options.keep_slid {
        let mask = (1_u16 << (port.info.lmc & 7)) - 1;
        lrh.slid = Lid(port.info.lid.0 & !mask | lrh.slid.0 & mask);
    }
    let rest = lrh.write(bytes).map_err(malformed)?;
    if lrh.lnh == core_ib::wire::Lnh::Global {
        let (mut grh, behind) = Grh::read(rest).map_err(malformed)?;
        grh.pay_len = behind.len() as u16; // at most 4172
        grh.write(rest).map_err(malformed)?;
    }
    if options.icrc == IcrcMode::Compute
        && let Some((covered, crc)) = bytes.split_last_chunk_mut::<ICRC_LEN>()
        && let Some(computed) = icrc(covered).map_err(malformed)?
    {
        *crc = computed;
    }
    bytes.extend_from_slice(&[0; VCRC_LEN]);
    refresh_vcrc(bytes).map_err(malformed)
}
