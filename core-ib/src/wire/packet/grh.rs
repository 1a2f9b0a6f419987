//! The global route header (GRH): 40 bytes in the form of an IPv6 header, in packets that leave the subnet and in
//! all multicast.
//!
//! Layout: protocols 1.3.

use super::super::WireError;
use super::view::HeaderView;
use crate::types::Gid;
use static_assertions::const_assert_eq;
use zerocopy::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Flow label, 20 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FlowLabel(u32);

impl FlowLabel {
    /// Keeps the low 20 bits of `value`.
    pub const fn new(value: u32) -> Self {
        Self(value & 0xf_ffff)
    }

    /// The number.
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// The header as it lies in a packet.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct GrhView {
    version_class_flow: U32,
    pay_len: U16,
    nxt_hdr: u8,
    hop_lmt: u8,
    sgid: [u8; 16],
    dgid: [u8; 16],
}
const_assert_eq!(size_of::<GrhView>(), 40);

impl HeaderView for GrhView {
    const NAME: &'static str = "GRH";
}

impl GrhView {
    /// The header as the ICRC sees it: class, flow label and hop limit are all ones, for they may change on the
    /// way. protocols 1.9.
    pub(super) fn invariant(&self) -> Self {
        let mut masked = *self;
        masked.version_class_flow |= U32::new(0x0fff_ffff);
        masked.hop_lmt = 0xff;
        masked
    }
}

/// What the header means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grh {
    /// Traffic class.
    pub traffic_class: u8,
    /// Flow label.
    pub flow_label: FlowLabel,
    /// Bytes from behind the GRH to the end of the ICRC.
    pub pay_len: u16,
    /// What follows, [`Grh::IBA`] for a BTH.
    pub nxt_hdr: u8,
    /// A packet with 0 or 1 does not leave the subnet.
    pub hop_limit: u8,
    /// Source.
    pub sgid: Gid,
    /// Destination.
    pub dgid: Gid,
}

impl Grh {
    /// The next header of every packet with a BTH.
    pub const IBA: u8 = 0x1b;
    /// Bytes that a GRH takes.
    pub const LEN: usize = 40;

    /// Reads the header at the front of `bytes`; gives back what follows it.
    pub fn read(bytes: &[u8]) -> Result<(Self, &[u8]), WireError> {
        let (view, rest) = GrhView::split(bytes)?;
        Ok((Self::try_from(view)?, rest))
    }

    /// Writes the header to the front of `out`; gives back the room behind it.
    pub fn write<'o>(&self, out: &'o mut [u8]) -> Result<&'o mut [u8], WireError> {
        GrhView::from(self).put(out)
    }
}

impl TryFrom<&GrhView> for Grh {
    type Error = WireError;

    fn try_from(view: &GrhView) -> Result<Self, WireError> {
        let first = view.version_class_flow.get();
        let found = (first >> 28) as u8;
        if found != 6 {
            let header = GrhView::NAME;
            return Err(WireError::Version { header, found });
        }
        Ok(Self {
            traffic_class: (first >> 20) as u8,
            flow_label: FlowLabel::new(first),
            pay_len: view.pay_len.get(),
            nxt_hdr: view.nxt_hdr,
            hop_limit: view.hop_lmt,
            sgid: Gid(view.sgid),
            dgid: Gid(view.dgid),
        })
    }
}

impl From<&Grh> for GrhView {
    fn from(grh: &Grh) -> Self {
        let class = u32::from(grh.traffic_class) << 20;
        Self {
            version_class_flow: U32::new(6 << 28 | class | grh.flow_label.get()),
            pay_len: U16::new(grh.pay_len),
            nxt_hdr: grh.nxt_hdr,
            hop_lmt: grh.hop_limit,
            sgid: grh.sgid.0,
            dgid: grh.dgid.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Guid;
    use proptest::prelude::*;

    #[test]
    fn class_and_flow_label_share_the_second_byte() {
        let grh = Grh {
            traffic_class: 0xab,
            flow_label: FlowLabel::new(0xc_def0),
            pay_len: 0x30,
            nxt_hdr: Grh::IBA,
            hop_limit: 16,
            sgid: Gid::unicast(Gid::DEFAULT_PREFIX, Guid(0x125)),
            dgid: Gid::unicast(Gid::DEFAULT_PREFIX, Guid(0x117)),
        };
        let mut bytes = [0; 40];
        grh.write(&mut bytes).unwrap();
        assert_eq!(bytes[..8], [0x6a, 0xbc, 0xde, 0xf0, 0, 0x30, 0x1b, 16]);
        assert_eq!(bytes[8..10], [0xfe, 0x80]);
        assert_eq!(bytes[22..26], [0x01, 0x25, 0xfe, 0x80]);
        assert_eq!(bytes[38..], [0x01, 0x17]);
    }

    #[test]
    fn the_icrc_sees_ones_where_a_router_may_write() {
        let (view, _) = GrhView::split(&[0x60; 40]).unwrap();
        let masked = view.invariant();
        let expected = [0x6f, 0xff, 0xff, 0xff, 0x60, 0x60, 0x60, 0xff, 0x60];
        assert_eq!(masked.as_bytes()[..9], expected);
    }

    proptest! {
        #[test]
        fn what_is_read_writes_back_the_same(
            mut bytes: [u8; 40], right: bool, len in prop_oneof![3 => Just(40), 1 => 0..40_usize],
        ) {
            if right {
                bytes[0] = bytes[0] & 0x0f | 0x60;
            }
            match Grh::read(&bytes[..len]) {
                Ok((grh, _)) => {
                    let mut again = [0xee; 40];
                    grh.write(&mut again).unwrap();
                    prop_assert_eq!(again, bytes);
                }
                Err(WireError::Truncated { have, .. }) => prop_assert!(have == len && len < 40),
                Err(WireError::Version { found, .. }) => prop_assert_eq!(found, bytes[0] >> 4),
                Err(other) => prop_assert!(false, "{other}"),
            }
        }
    }
}
