//! Address vectors. verbs 9.1.

use crate::{Gid, Lid, Rate, Sl};

/// Where a datagram or a connection goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AhAttr {
    /// Port that it leaves by, 1 or 2.
    pub port: u8,
    /// Destination LID.
    pub dlid: Lid,
    /// Service level.
    pub sl: Sl,
    /// Low bits of the source LID, below 2^LMC.
    pub src_path_bits: u8,
    /// Injection limit; [`Rate::PORT`] for none.
    pub static_rate: Rate,
    /// Present if the packet carries a GRH.
    pub grh: Option<GlobalRoute>,
}

/// The part of an address that goes into a GRH.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GlobalRoute {
    /// Destination GID.
    pub dgid: Gid,
    /// Index of the source GID in the port's table.
    pub sgid_index: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
}

/// The first 40 bytes of a datagram's receive buffer: a GRH if the completion says so, else unspecified.
pub type Grh40 = [u8; 40];
