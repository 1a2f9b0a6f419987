//! The local route header (LRH): the 8 bytes that open every data packet and steer it through a subnet.
//!
//! Layout: protocols 1.2.

use super::super::WireError;
use super::view::HeaderView;
use crate::types::{Lid, Mtu, Sl};
use core::fmt;
use static_assertions::const_assert_eq;
use zerocopy::big_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Virtual lane, 4 bits: 0 to 14 carry data, 15 subnet management. protocols 1.13.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Vl(u8);

impl Vl {
    /// The lane of subnet management packets: without flow control, ahead of all others.
    pub const MANAGEMENT: Self = Self(15);

    /// Keeps the low 4 bits of `value`.
    pub const fn new(value: u8) -> Self {
        Self(value & 0x0f)
    }

    /// The number, 0 to 15.
    pub const fn get(self) -> u8 {
        self.0
    }

    /// VL15.
    pub const fn is_management(self) -> bool {
        self.0 == 15
    }
}

impl fmt::Display for Vl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VL{}", self.0)
    }
}

/// What follows the LRH (link next header). The discriminant is the code on the wire. protocols 1.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Lnh {
    /// A raw header with an EtherType.
    RawEther = 0,
    /// An IPv6 packet that is none of InfiniBand's.
    RawIpv6 = 1,
    /// BTH.
    Local = 2,
    /// GRH, then BTH.
    Global = 3,
}

impl Lnh {
    /// From the low 2 bits of `code`.
    pub const fn from_code(code: u8) -> Self {
        match code & 3 {
            0 => Self::RawEther,
            1 => Self::RawIpv6,
            2 => Self::Local,
            _ => Self::Global,
        }
    }

    /// A BTH and an ICRC are in the packet.
    pub const fn is_iba(self) -> bool {
        matches!(self, Self::Local | Self::Global)
    }
}

/// Packet length in words of 4 bytes, 11 bits: first byte of the LRH to last byte before the VCRC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PktLen(u16);

impl PktLen {
    /// The smallest that is legal. protocols 1.2.
    pub const MIN: Self = Self(5);
    /// The largest of any MTU.
    pub const MAX: Self = Self::max(Mtu::Mtu4096);

    /// Keeps the low 11 bits of `words`.
    pub const fn new(words: u16) -> Self {
        Self(words & 0x7ff)
    }

    /// From a length in bytes, without the VCRC. `None` if it is no multiple of 4, or beyond 11 bits of words.
    pub const fn from_bytes(bytes: usize) -> Option<Self> {
        if !bytes.is_multiple_of(4) || bytes / 4 > 0x7ff {
            return None;
        }
        Some(Self((bytes / 4) as u16))
    }

    /// The largest packet that a link of this neighbour MTU carries.
    pub const fn max(mtu: Mtu) -> Self {
        Self(((mtu.bytes() + 124) / 4) as u16)
    }

    /// The number of words.
    pub const fn words(self) -> u16 {
        self.0
    }

    /// The number of bytes, without the VCRC.
    pub const fn bytes(self) -> usize {
        self.0 as usize * 4
    }
}

/// The header as it lies in a packet.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct LrhView {
    vl_lver: u8,
    sl_lnh: u8,
    dlid: U16,
    pkt_len: U16,
    slid: U16,
}
const_assert_eq!(size_of::<LrhView>(), 8);

impl HeaderView for LrhView {
    const NAME: &'static str = "LRH";
}

impl LrhView {
    /// The lane on this link.
    pub const fn vl(&self) -> Vl {
        Vl::new(self.vl_lver >> 4)
    }

    /// Moves the packet to another lane, as a switch does on every hop. The VCRC must be made anew after it, the
    /// ICRC does not cover the lane.
    pub const fn set_vl(&mut self, vl: Vl) {
        self.vl_lver = self.vl_lver & 0x0f | vl.get() << 4;
    }

    /// What follows.
    pub const fn lnh(&self) -> Lnh {
        Lnh::from_code(self.sl_lnh)
    }

    /// Service level.
    pub const fn sl(&self) -> Sl {
        Sl::new(self.sl_lnh >> 4)
    }

    /// Destination LID.
    pub const fn dlid(&self) -> Lid {
        Lid(self.dlid.get())
    }

    /// Source LID.
    pub const fn slid(&self) -> Lid {
        Lid(self.slid.get())
    }

    /// Length that the packet claims; nobody has compared it with anything.
    pub const fn pkt_len(&self) -> PktLen {
        PktLen::new(self.pkt_len.get())
    }
}

/// What the header means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lrh {
    /// Virtual lane on this link; every hop sets its own.
    pub vl: Vl,
    /// Service level, unchanged to the end of the subnet.
    pub sl: Sl,
    /// What follows.
    pub lnh: Lnh,
    /// Destination.
    pub dlid: Lid,
    /// Length up to the VCRC.
    pub pkt_len: PktLen,
    /// Source.
    pub slid: Lid,
}

impl TryFrom<&LrhView> for Lrh {
    type Error = WireError;

    fn try_from(view: &LrhView) -> Result<Self, WireError> {
        let found = view.vl_lver & 0x0f;
        if found != 0 {
            let header = LrhView::NAME;
            return Err(WireError::Version { header, found });
        }
        Ok(Self {
            vl: view.vl(),
            sl: view.sl(),
            lnh: view.lnh(),
            dlid: view.dlid(),
            pkt_len: view.pkt_len(),
            slid: view.slid(),
        })
    }
}

impl From<&Lrh> for LrhView {
    fn from(lrh: &Lrh) -> Self {
        Self {
            vl_lver: lrh.vl.get() << 4,
            sl_lnh: lrh.sl.get() << 4 | lrh.lnh as u8,
            dlid: U16::new(lrh.dlid.0),
            pkt_len: U16::new(lrh.pkt_len.words()),
            slid: U16::new(lrh.slid.0),
        }
    }
}

impl Lrh {
    /// Reads the header at the front of `packet`; gives back what follows it.
    pub fn read(packet: &[u8]) -> Result<(Self, &[u8]), WireError> {
        let (view, rest) = LrhView::split(packet)?;
        Ok((Self::try_from(view)?, rest))
    }

    /// Writes the header to the front of `out`; gives back the room behind it.
    pub fn write<'o>(&self, out: &'o mut [u8]) -> Result<&'o mut [u8], WireError> {
        LrhView::from(self).put(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_lrh_of_example_a_reads_as_stated() {
        let (lrh, rest) = Lrh::read(&[0x70, 0x12, 0x37, 0x5c, 0, 0x0e, 0x17, 0xd2, 9]).unwrap();
        let expected = Lrh {
            vl: Vl::new(7),
            sl: Sl::new(1),
            lnh: Lnh::Local,
            dlid: Lid(0x375c),
            pkt_len: PktLen::new(14),
            slid: Lid(0x17d2),
        };
        assert_eq!((lrh, rest), (expected, [9].as_slice()));
    }

    #[test]
    fn the_largest_packet_of_each_mtu_is_that_of_the_table() {
        let words = [1, 2, 3, 4, 5].map(|code| PktLen::max(Mtu::from_code(code).unwrap()).words());
        assert_eq!(words, [95, 159, 287, 543, 1055]);
        assert_eq!(PktLen::MAX.words(), 1055);
    }

    #[test]
    fn a_length_that_is_no_number_of_words_is_no_pkt_len() {
        assert_eq!(PktLen::from_bytes(0x7ff * 4), Some(PktLen::new(0x7ff)));
        assert_eq!(PktLen::from_bytes(0x800 * 4), None);
        assert_eq!(PktLen::from_bytes(22), None);
    }

    #[test]
    fn setting_the_lane_leaves_the_link_version_alone() {
        let mut bytes = [0x73, 0, 0, 0, 0, 0, 0, 0];
        LrhView::split_mut(&mut bytes).unwrap().0.set_vl(Vl::new(2));
        assert_eq!(bytes[0], 0x23);
    }

    proptest! {
        #[test]
        fn what_is_read_writes_back_the_same_but_for_bits_without_meaning(
            mut bytes: [u8; 8], right: bool, len in prop_oneof![3 => Just(8), 1 => 0..8_usize],
        ) {
            bytes[0] &= if right { 0xf0 } else { 0xff };
            match Lrh::read(&bytes[..len]) {
                Ok((lrh, rest)) => {
                    prop_assert!(rest.is_empty());
                    let mut again = [0xee; 8];
                    lrh.write(&mut again).unwrap();
                    bytes[1] &= 0xf3;
                    bytes[4] &= 0x07;
                    prop_assert_eq!(again, bytes);
                }
                Err(WireError::Truncated { have, .. }) => prop_assert!(have == len && len < 8),
                Err(WireError::Version { found, .. }) => prop_assert_eq!(found, bytes[0] & 15),
                Err(other) => prop_assert!(false, "{other}"),
            }
        }
    }
}
