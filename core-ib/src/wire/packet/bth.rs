//! The base transport header (BTH): the 12 bytes that open every transport packet.
//!
//! [`BthView`] lies over bytes and believes nothing; [`Bth`] is what they mean. Layout: protocols 1.4.

use super::super::WireError;
use super::opcode::Opcode;
use super::view::HeaderView;
use crate::types::{PKey, Psn, Qpn};
use static_assertions::const_assert_eq;
use zerocopy::big_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Number of zero bytes between payload and ICRC, 0 to 3. protocols 1.7.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PadCount(u8);

impl PadCount {
    /// What a payload of `len` bytes needs to fill its last word.
    pub const fn of_payload(len: usize) -> Self {
        Self((len.wrapping_neg() & 3) as u8)
    }

    /// The number, 0 to 3.
    pub const fn get(self) -> u8 {
        self.0
    }
}

/// The header as it lies in a packet: any 12 bytes are a valid view.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct BthView {
    opcode: u8,
    flags: u8,
    p_key: U16,
    congestion: u8,
    dest_qp: [u8; 3],
    ack_req: u8,
    psn: [u8; 3],
}
const_assert_eq!(size_of::<BthView>(), 12);

impl HeaderView for BthView {
    const NAME: &'static str = "BTH";
}

impl BthView {
    /// The header as the ICRC sees it: the congestion byte is all ones. protocols 1.9.
    pub(super) const fn invariant(&self) -> Self {
        let mut masked = *self;
        masked.congestion = 0xff;
        masked
    }
}

/// What the header means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bth {
    /// Service and operation.
    pub opcode: Opcode,
    /// The receiver's completion counts as solicited.
    pub solicited: bool,
    /// The sender's path migration state is Migrated.
    pub mig_req: bool,
    /// Bytes between payload and ICRC.
    pub pad_count: PadCount,
    /// Partition key.
    pub p_key: PKey,
    /// The packet met congestion on its way (set by switches).
    pub fecn: bool,
    /// A packet of the other direction met congestion.
    pub becn: bool,
    /// Destination QP; [`Qpn::MULTICAST`] for a group.
    pub dest_qp: Qpn,
    /// The requester asks for an acknowledgement of this packet.
    pub ack_req: bool,
    /// Packet sequence number.
    pub psn: Psn,
}

impl Bth {
    /// A header without flags: nothing solicited, migrated, congested or to be acknowledged, and no padding.
    pub const fn new(opcode: Opcode, p_key: PKey, dest_qp: Qpn, psn: Psn) -> Self {
        Self {
            opcode,
            solicited: false,
            mig_req: false,
            pad_count: PadCount(0),
            p_key,
            fecn: false,
            becn: false,
            dest_qp,
            ack_req: false,
            psn,
        }
    }

    /// Reads the header at the front of `bytes`; gives back what follows it.
    pub fn read(bytes: &[u8]) -> Result<(Self, &[u8]), WireError> {
        let (view, rest) = BthView::split(bytes)?;
        Ok((Self::try_from(view)?, rest))
    }

    /// Writes the header to the front of `out`; gives back the room behind it.
    pub fn write<'o>(&self, out: &'o mut [u8]) -> Result<&'o mut [u8], WireError> {
        BthView::from(self).put(out)
    }
}

impl TryFrom<&BthView> for Bth {
    type Error = WireError;

    fn try_from(view: &BthView) -> Result<Self, WireError> {
        let found = view.flags & 0x0f;
        if found != 0 {
            let header = BthView::NAME;
            return Err(WireError::Version { header, found });
        }
        Ok(Self {
            opcode: Opcode(view.opcode),
            solicited: view.flags & 0x80 != 0,
            mig_req: view.flags & 0x40 != 0,
            pad_count: PadCount(view.flags >> 4 & 3),
            p_key: PKey(view.p_key.get()),
            fecn: view.congestion & 0x80 != 0,
            becn: view.congestion & 0x40 != 0,
            dest_qp: Qpn::from_wire(view.dest_qp),
            ack_req: view.ack_req & 0x80 != 0,
            psn: Psn::from_wire(view.psn),
        })
    }
}

impl From<&Bth> for BthView {
    fn from(bth: &Bth) -> Self {
        let flags = u8::from(bth.solicited) << 7 | u8::from(bth.mig_req) << 6;
        Self {
            opcode: bth.opcode.0,
            flags: flags | bth.pad_count.0 << 4,
            p_key: U16::new(bth.p_key.0),
            congestion: u8::from(bth.fecn) << 7 | u8::from(bth.becn) << 6,
            dest_qp: bth.dest_qp.to_wire(),
            ack_req: u8::from(bth.ack_req) << 7,
            psn: bth.psn.to_wire(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_bth_of_example_a_reads_as_stated() {
        let bytes = [
            0x0a, 0x20, 0x24, 0x87, 0, 0x87, 0xb1, 0xb3, 0, 0x0d, 0xec, 0x2a,
        ];
        let (bth, _) = Bth::read(&bytes).unwrap();
        let mut expected = Bth::new(
            Opcode::RC_WRITE_ONLY,
            PKey(0x2487),
            Qpn::new(0x87_b1b3),
            Psn::new(0x0d_ec2a),
        );
        expected.pad_count = PadCount::of_payload(14);
        assert_eq!(bth, expected);
        assert_eq!(bth.pad_count.get(), 2);
    }

    #[test]
    fn each_flag_has_its_bit() {
        let mut bth = Bth::new(Opcode(0), PKey(0), Qpn::new(0), Psn::new(0));
        let mut write = |change: fn(&mut Bth)| {
            change(&mut bth);
            let mut bytes = [0; 12];
            bth.write(&mut bytes).unwrap();
            (bytes[1], bytes[4], bytes[8])
        };
        assert_eq!(write(|bth| bth.solicited = true), (0x80, 0, 0));
        assert_eq!(write(|bth| bth.mig_req = true), (0xc0, 0, 0));
        assert_eq!(write(|bth| bth.pad_count = PadCount(3)), (0xf0, 0, 0));
        assert_eq!(write(|bth| bth.fecn = true), (0xf0, 0x80, 0));
        assert_eq!(write(|bth| bth.becn = true), (0xf0, 0xc0, 0));
        assert_eq!(write(|bth| bth.ack_req = true), (0xf0, 0xc0, 0x80));
    }

    proptest! {
        #[test]
        fn what_is_read_writes_back_the_same_but_for_bits_without_meaning(
            mut bytes: [u8; 12], right: bool, len in prop_oneof![3 => Just(12), 1 => 0..12_usize],
        ) {
            bytes[1] &= if right { 0xf0 } else { 0xff }; // else one in 16 would be version 0
            match Bth::read(&bytes[..len]) {
                Ok((bth, _)) => {
                    let mut again = [0xee; 12];
                    bth.write(&mut again).unwrap();
                    bytes[4] &= 0xc0;
                    bytes[8] &= 0x80;
                    prop_assert_eq!(again, bytes);
                }
                Err(WireError::Truncated { have, .. }) => prop_assert!(have == len && len < 12),
                Err(WireError::Version { found, .. }) => prop_assert_eq!(found, bytes[1] & 15),
                Err(other) => prop_assert!(false, "{other}"),
            }
        }

        #[test]
        fn payload_and_padding_fill_words(len: u16) {
            let pad = PadCount::of_payload(usize::from(len));
            prop_assert_eq!((usize::from(len) + usize::from(pad.get())) % 4, 0);
            prop_assert!(pad.get() < 4);
        }
    }
}
