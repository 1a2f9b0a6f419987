//! The checksums: ICRC from end to end, VCRC on every hop, LPCRC on link packets.
//!
//! By sixteen tables each, so that a packet costs little more than reading it; with the feature `simd`, which a simulator
//! wants, by vector instructions. Definitions and check values: protocols 1.9, 1.10.

use super::super::WireError;
use super::bth::BthView;
use super::grh::GrhView;
use super::lrh::{Lnh, LrhView, Vl};
use super::view::HeaderView;
use crc::{Algorithm, Crc, Table};
use zerocopy::IntoBytes;

/// The CRC of VCRC and LPCRC.
const VCRC_ALGORITHM: Algorithm<u16> = Algorithm {
    width: 16,
    poly: 0x100b,
    init: 0xffff,
    refin: true,
    refout: true,
    xorout: 0xffff,
    check: 0x0a3d,
    residue: 0x556f,
};

static VCRC: Crc<u16, Table<16>> = Crc::<u16, Table<16>>::new(&VCRC_ALGORITHM);

/// Bytes of an ICRC.
pub const ICRC_LEN: usize = 4;
/// Bytes of a VCRC.
pub const VCRC_LEN: usize = 2;

/// The VCRC of `bytes` (LRH to the last byte before the VCRC), or the LPCRC of the first four bytes of a link packet,
/// as it lies on the wire.
pub fn vcrc(bytes: &[u8]) -> [u8; VCRC_LEN] {
    #[cfg(feature = "simd")]
    if bytes.len() >= vector::WORTH_IT {
        return vector::vcrc(bytes).to_le_bytes();
    }
    VCRC.checksum(bytes).to_le_bytes()
}

/// The same sum by vector instructions.
#[cfg(feature = "simd")]
mod vector {
    extern crate std;

    use super::VCRC_ALGORITHM;
    use crc_fast::{CrcParams, checksum_with_params};
    use std::sync::LazyLock;

    /// Bytes from which on vectors are faster than tables.
    pub const WORTH_IT: usize = 192;

    static PARAMS: LazyLock<CrcParams> = LazyLock::new(|| {
        let crc = &VCRC_ALGORITHM;
        let wide = u64::from;
        let (poly, init, xorout) = (wide(crc.poly), wide(crc.init), wide(crc.xorout));
        let (reflected, check) = (crc.refin, wide(crc.check));
        CrcParams::new("VCRC", crc.width, poly, init, reflected, xorout, check)
    });

    pub fn vcrc(bytes: &[u8]) -> u16 {
        checksum_with_params(*PARAMS, bytes) as u16
    }
}

/// The ICRC of `bytes` (LRH to the last pad byte), as it lies on the wire. `None` for a raw packet, which has none.
/// What may change on the way counts as ones.
pub fn icrc(bytes: &[u8]) -> Result<Option<[u8; ICRC_LEN]>, WireError> {
    let (lrh, rest) = LrhView::split(bytes)?;
    let mut digest = crc32fast::Hasher::new();
    let rest = match lrh.lnh() {
        Lnh::RawEther | Lnh::RawIpv6 => return Ok(None),
        Lnh::Local => {
            let mut masked = *lrh;
            masked.set_vl(Vl::MANAGEMENT);
            digest.update(masked.as_bytes());
            rest
        }
        Lnh::Global => {
            let (grh, rest) = GrhView::split(rest)?;
            digest.update(&[0xff; LrhView::LEN]);
            digest.update(grh.invariant().as_bytes());
            rest
        }
    };
    let (bth, rest) = BthView::split(rest)?;
    digest.update(bth.invariant().as_bytes());
    digest.update(rest);
    Ok(Some(digest.finalize().to_le_bytes()))
}

/// Splits a checksum of `N` bytes off the end.
fn split_end<'p, const N: usize>(
    header: &'static str,
    bytes: &'p [u8],
) -> Result<(&'p [u8], [u8; N]), WireError> {
    let short = WireError::Truncated {
        header,
        need: N,
        have: bytes.len(),
    };
    let (covered, crc) = bytes.split_last_chunk::<N>().ok_or(short)?;
    Ok((covered, *crc))
}

/// Compares the VCRC at the end of `packet` (LRH to VCRC) with the bytes before it.
pub fn check_vcrc(packet: &[u8]) -> Result<(), WireError> {
    let (covered, found) = split_end::<VCRC_LEN>("VCRC", packet)?;
    let computed = vcrc(covered);
    if found == computed {
        return Ok(());
    }
    Err(WireError::Checksum {
        kind: "VCRC",
        found: u32::from(u16::from_le_bytes(found)),
        computed: u32::from(u16::from_le_bytes(computed)),
    })
}

/// Compares the ICRC of `packet` (LRH to VCRC) with the bytes before it. A raw packet has none and passes.
pub fn check_icrc(packet: &[u8]) -> Result<(), WireError> {
    let (covered, _) = split_end::<VCRC_LEN>("VCRC", packet)?;
    let (covered, found) = split_end::<ICRC_LEN>("ICRC", covered)?;
    match icrc(covered)? {
        Some(computed) if computed != found => Err(WireError::Checksum {
            kind: "ICRC",
            found: u32::from_le_bytes(found),
            computed: u32::from_le_bytes(computed),
        }),
        _ => Ok(()),
    }
}

/// Makes the VCRC at the end of `packet` (LRH to VCRC) fit the bytes before it.
pub fn refresh_vcrc(packet: &mut [u8]) -> Result<(), WireError> {
    let short = WireError::Truncated {
        header: "VCRC",
        need: VCRC_LEN,
        have: packet.len(),
    };
    let (covered, crc) = packet.split_last_chunk_mut::<VCRC_LEN>().ok_or(short)?;
    *crc = vcrc(covered);
    Ok(())
}

/// Makes ICRC (unless the packet is raw) and VCRC at the end of `packet` (LRH to VCRC) fit the bytes before them.
pub fn seal(packet: &mut [u8]) -> Result<(), WireError> {
    let have = packet.len();
    let short = |header, need| WireError::Truncated { header, need, have };
    let (covered, _) = packet
        .split_last_chunk_mut::<VCRC_LEN>()
        .ok_or(short("VCRC", VCRC_LEN))?;
    let (covered, crc) = covered
        .split_last_chunk_mut::<ICRC_LEN>()
        .ok_or(short("ICRC", ICRC_LEN + VCRC_LEN))?;
    if let Some(computed) = icrc(covered)? {
        *crc = computed;
    }
    refresh_vcrc(packet)
}

/// Moves `packet` (LRH to VCRC) to lane `vl` and makes its VCRC anew: what a switch does on output.
pub fn set_vl(packet: &mut [u8], vl: Vl) -> Result<(), WireError> {
    LrhView::split_mut(packet)?.0.set_vl(vl);
    refresh_vcrc(packet)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition, a bit at a time.
    fn bitwise(bytes: &[u8], reflected: u32, width: u32) -> u32 {
        let ones = u32::MAX >> (32 - width);
        let mut register = ones;
        for &byte in bytes {
            register ^= u32::from(byte);
            for _ in 0..8 {
                let feedback = if register & 1 != 0 { reflected } else { 0 };
                register = register >> 1 ^ feedback;
            }
        }
        register ^ ones
    }

    #[test]
    fn the_vcrc_of_the_nine_digits_is_the_published_one() {
        assert_eq!(vcrc(b"123456789"), [0x3d, 0x0a]);
    }

    #[test]
    fn the_lpcrcs_are_the_published_ones() {
        assert_eq!(vcrc(&[0x10, 0x00, 0x00, 0x80]), [0x50, 0xd5]);
        assert_eq!(vcrc(&[0x00, 0x05, 0x00, 0x85]), [0x98, 0x82]);
    }

    #[test]
    fn bytes_with_their_vcrc_leave_the_published_residue() {
        let whole = b"123456789\x3d\x0a";
        assert_eq!(VCRC.checksum(whole) ^ 0xffff, 0x556f);
    }

    #[test]
    fn the_icrc_register_after_eight_ones_is_the_published_one() {
        assert_eq!(crc32fast::hash(&[0xff; 8]) ^ u32::MAX, 0xdebb_20e3);
    }

    #[test]
    fn a_bit_that_fell_over_is_found_by_both_checksums() {
        let mut packet = [0; 8 + 12 + 4 + ICRC_LEN + VCRC_LEN];
        packet[1] = 2; // LRH, then BTH
        packet[5] = 7; // words, the VCRC not among them
        seal(&mut packet).unwrap();
        assert_eq!((check_icrc(&packet), check_vcrc(&packet)), (Ok(()), Ok(())));
        packet[21] ^= 4;
        assert!(check_icrc(&packet).is_err());
        assert!(check_vcrc(&packet).is_err());
    }

    #[test]
    fn a_raw_packet_has_no_icrc() {
        let mut raw = [0; 26];
        raw[5] = 6;
        assert_eq!(icrc(&raw[..24]), Ok(None));
        seal(&mut raw).unwrap();
        assert_eq!(
            raw[20..24],
            [0; 4],
            "where an ICRC would be, a raw packet has data"
        );
        assert_eq!((check_icrc(&raw), check_vcrc(&raw)), (Ok(()), Ok(())));
    }

    proptest! {
        #[test]
        fn tables_and_vectors_agree_with_the_definition(
            bytes in prop::collection::vec(any::<u8>(), 0..300), times in 1..12_usize,
        ) {
            let bytes = bytes.repeat(times);
            prop_assert_eq!(bitwise(&bytes, 0xedb8_8320, 32), crc32fast::hash(&bytes));
            let sum = u32::from(u16::from_le_bytes(vcrc(&bytes)));
            prop_assert_eq!(bitwise(&bytes, 0xd008, 16), sum);
        }

        #[test]
        fn no_bytes_whatever_upset_the_checksums(
            mut bytes in prop::collection::vec(any::<u8>(), 0..120), vl: u8,
        ) {
            let _ = check_icrc(&bytes);
            let _ = check_vcrc(&bytes);
            if seal(&mut bytes).is_ok() {
                prop_assert_eq!((check_icrc(&bytes), check_vcrc(&bytes)), (Ok(()), Ok(())));
                set_vl(&mut bytes, Vl::new(vl)).unwrap();
                prop_assert_eq!(check_vcrc(&bytes), Ok(()));
                prop_assert_eq!(check_icrc(&bytes), Ok(()), "the lane is not covered");
            }
        }
    }
}
