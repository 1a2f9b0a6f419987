//! Packets of native InfiniBand, LRH to VCRC, and the headers that they are made of. protocols 1.
//!
//! Each header is a view over bytes and a value, in a file of its own. A whole packet is read with
//! [`Packet::read`], which checks every length but no checksum ([`check_icrc`] and [`check_vcrc`] do that, where it
//! is wanted: a switch looks at one, the destination at both), and written with [`Headers::write`] or, where the
//! payload is to be gathered in place, [`Headers::frame`]. Nothing here allocates.

mod aeth;
mod bth;
mod crc;
mod eth;
mod flow;
mod grh;
mod lrh;
mod opcode;
mod read;
#[cfg(test)]
mod tests;
mod view;
mod write;

pub use aeth::{Aeth, AethView, CreditCode, Msn, NakCode, RnrTimer, Syndrome, SyndromeKind};
pub use bth::{Bth, BthView, PadCount};
pub use crc::{ICRC_LEN, VCRC_LEN, check_icrc, check_vcrc, icrc, refresh_vcrc, seal, set_vl, vcrc};
pub use eth::{
    AtomicAckEth, AtomicAckEthView, AtomicEth, AtomicEthView, Deth, DethView, Extended, Ieth,
    IethView, ImmDt, ImmDtView, Rdeth, RdethView, Reth, RethView, Rwh, RwhView, Xrceth, XrcethView,
};
pub use flow::{BLOCK, Blocks, FlowControl, FlowControlView, FlowOp, blocks};
pub use grh::{FlowLabel, Grh, GrhView};
pub use lrh::{Lnh, Lrh, LrhView, PktLen, Vl};
pub use opcode::{HeaderSet, Opcode, Operation, PayloadRule, Position, Service};
pub use read::{Contents, Packet, Transport, read_untrusted};
pub use view::HeaderView;
pub use write::{Frame, Headers, RawPacket};

/// Bytes of the largest packet there is, LRH to VCRC: 4096 of payload, 124 of headers and ICRC, the VCRC.
pub const MAX_PACKET: usize = PktLen::MAX.bytes() + VCRC_LEN;
