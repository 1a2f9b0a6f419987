//! Flow-control link packets: 6 bytes with which the two ends of a link tell each other how much may be sent.
//!
//! Layout and arithmetic: protocols 1.11.

use super::super::WireError;
use super::crc::vcrc;
use super::lrh::Vl;
use super::view::HeaderView;
use static_assertions::const_assert_eq;
use zerocopy::big_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a credit block.
pub const BLOCK: usize = 64;

/// Blocks that a packet of `len` bytes (LRH to VCRC) takes.
pub const fn blocks(len: usize) -> usize {
    len.div_ceil(BLOCK)
}

/// A count of blocks, modulo 4096.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Blocks(u16);

impl Blocks {
    /// Keeps the low 12 bits of `count`.
    pub const fn new(count: u16) -> Self {
        Self(count & 0xfff)
    }

    /// The number, 0 to 4095.
    pub const fn get(self) -> u16 {
        self.0
    }

    /// The count `more` blocks later, modulo 4096.
    pub const fn plus(self, more: usize) -> Self {
        Self::new(self.0.wrapping_add((more & 0xfff) as u16))
    }

    /// Blocks from `earlier` to `self`, modulo 4096.
    pub const fn since(self, earlier: Blocks) -> u16 {
        self.0.wrapping_sub(earlier.0) & 0xfff
    }

    /// The credit limit of a receiver that has counted `self` blocks and has room for `free` more.
    pub const fn limit(self, free: usize) -> Self {
        self.plus(if free < 2048 { free } else { 2048 })
    }

    /// May a transmitter that has sent `self` blocks send `more` (the largest packet has 67) under the limit
    /// `fccl`? Never 2048 and more at once, where modulo 4096 a lack looks like an abundance.
    pub const fn may_send(self, more: usize, fccl: Blocks) -> bool {
        more < 2048 && fccl.since(self.plus(more)) <= 2048
    }
}

/// What a flow-control packet is for; an open set of 4 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowOp(u8);

impl FlowOp {
    /// Normal flow control.
    pub const NORMAL: Self = Self(0);
    /// Sent while the port is in LinkInit.
    pub const INIT: Self = Self(1);

    /// Keeps the low 4 bits of `code`.
    pub const fn new(code: u8) -> Self {
        Self(code & 0x0f)
    }

    /// The code.
    pub const fn code(self) -> u8 {
        self.0
    }
}

/// The packet as it lies on the wire.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct FlowControlView {
    op_fctbs: U16,
    vl_fccl: U16,
    lpcrc: [u8; 2],
}
const_assert_eq!(size_of::<FlowControlView>(), 6);

impl HeaderView for FlowControlView {
    const NAME: &'static str = "flow-control packet";
}

/// What the packet means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowControl {
    /// Normal or initialisation.
    pub op: FlowOp,
    /// Blocks that the sender of this packet has sent on the lane since the link came up.
    pub fctbs: Blocks,
    /// The lane.
    pub vl: Vl,
    /// Up to which count its peer may send.
    pub fccl: Blocks,
}

impl FlowControl {
    /// Bytes that the packet takes.
    pub const LEN: usize = 6;

    /// Reads the packet at the front of `bytes`, LPCRC checked; gives back what follows it.
    pub fn read(bytes: &[u8]) -> Result<(Self, &[u8]), WireError> {
        let (view, rest) = FlowControlView::split(bytes)?;
        Ok((Self::try_from(view)?, rest))
    }

    /// Writes the packet with its LPCRC to the front of `out`; gives back the room behind it.
    pub fn write<'o>(&self, out: &'o mut [u8]) -> Result<&'o mut [u8], WireError> {
        FlowControlView::from(self).put(out)
    }
}

impl FlowControlView {
    fn computed_lpcrc(&self) -> [u8; 2] {
        let [a, b] = self.op_fctbs.to_bytes();
        let [c, d] = self.vl_fccl.to_bytes();
        vcrc(&[a, b, c, d])
    }
}

impl TryFrom<&FlowControlView> for FlowControl {
    type Error = WireError;

    fn try_from(view: &FlowControlView) -> Result<Self, WireError> {
        let computed = view.computed_lpcrc();
        if view.lpcrc != computed {
            return Err(WireError::Checksum {
                kind: "LPCRC",
                found: u32::from(u16::from_le_bytes(view.lpcrc)),
                computed: u32::from(u16::from_le_bytes(computed)),
            });
        }
        let (first, second) = (view.op_fctbs.get(), view.vl_fccl.get());
        Ok(Self {
            op: FlowOp((first >> 12) as u8),
            fctbs: Blocks::new(first),
            vl: Vl::new((second >> 12) as u8),
            fccl: Blocks::new(second),
        })
    }
}

impl From<&FlowControl> for FlowControlView {
    fn from(flow: &FlowControl) -> Self {
        let mut view = Self {
            op_fctbs: U16::new(u16::from(flow.op.0) << 12 | flow.fctbs.0),
            vl_fccl: U16::new(u16::from(flow.vl.get()) << 12 | flow.fccl.0),
            lpcrc: [0; 2],
        };
        view.lpcrc = view.computed_lpcrc();
        view
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_published_examples_read_and_write_as_stated() {
        let init = FlowControl {
            op: FlowOp::INIT,
            fctbs: Blocks::new(0),
            vl: Vl::new(0),
            fccl: Blocks::new(0x80),
        };
        let normal = FlowControl {
            op: FlowOp::NORMAL,
            fctbs: Blocks::new(5),
            vl: Vl::new(0),
            fccl: Blocks::new(0x85),
        };
        let wire = [[0x10, 0, 0, 0x80, 0x50, 0xd5], [0, 5, 0, 0x85, 0x98, 0x82]];
        for (flow, bytes) in [init, normal].into_iter().zip(wire) {
            let mut out = [0; 6];
            flow.write(&mut out).unwrap();
            assert_eq!(out, bytes);
            assert_eq!(FlowControl::read(&bytes).unwrap().0, flow);
        }
    }

    #[test]
    fn a_flipped_bit_is_a_bad_lpcrc() {
        let error = FlowControl::read(&[0, 5, 0, 0x84, 0x98, 0x82]).unwrap_err();
        assert!(matches!(error, WireError::Checksum { kind: "LPCRC", .. }));
    }

    #[test]
    fn a_packet_takes_whole_blocks() {
        assert_eq!([0, 1, 64, 65, 290].map(blocks), [0, 1, 1, 2, 5]);
    }

    proptest! {
        #[test]
        fn a_transmitter_may_send_what_the_receiver_has_room_for_and_no_more(
            sent: u16, free in 0..4000_usize, more in 0..3000_usize,
        ) {
            let fctbs = Blocks::new(sent);
            let fccl = fctbs.limit(free); // receiver and transmitter have counted the same
            prop_assert_eq!(fctbs.may_send(more, fccl), more <= free.min(2047));
        }

        #[test]
        fn what_is_written_is_read(op: u8, fctbs: u16, vl: u8, fccl: u16) {
            let flow = FlowControl {
                op: FlowOp::new(op),
                fctbs: Blocks::new(fctbs),
                vl: Vl::new(vl),
                fccl: Blocks::new(fccl),
            };
            let mut bytes = [0xee; 7];
            flow.write(&mut bytes).unwrap();
            prop_assert_eq!(FlowControl::read(&bytes).unwrap(), (flow, [0xee].as_slice()));
        }
    }
}
