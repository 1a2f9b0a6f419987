//! What travels on an InfiniBand link: headers, whole packets, checksums, management datagrams.
//!
//! A *view* lies over bytes and believes nothing; a *value* is what they mean. Numbers of sections are those of
//! `docs/reference/infiniband-protocols.md` ("protocols").

mod error;
pub mod ipoib;
pub mod mad;
pub mod packet;

pub use error::WireError;
pub use packet::{
    Aeth, Bth, Deth, Extended, FlowLabel, Grh, Headers, ImmDt, Lnh, Lrh, MAX_PACKET, Opcode,
    Packet, PktLen, Reth, Transport, Vl,
};
