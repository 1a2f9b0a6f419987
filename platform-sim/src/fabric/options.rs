//! What a fabric is like where its topology says nothing.

use super::node::PortCaps;
use crate::machine::{LinkSpeed, LinkWidth};
use core::time::Duration;
use core_ib::Mtu;
use core_ib::wire::mad::VlCode;

/// Properties of a fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Seed of the run, for the dice of faults.
    pub seed: u64,
    /// Time from one end of a cable to the other: 5 ns a metre.
    pub delay: Duration,
    /// Time that two ports need to train.
    pub training: Duration,
    /// Time from the last bit of a packet at a switch to the earliest first bit of it at the output port.
    pub switch_latency: Duration,
    /// Time that the agent of a switch or a host takes for a MAD.
    pub agent_time: Duration,
    /// Room for each lane at a receiving port, in blocks of 64 bytes; at least the 67 of the largest packet.
    pub buffer_blocks: u32,
    /// Management packets that a node holds of one port; more are lost (VL15Dropped).
    pub vl15_slots: u16,
    /// Packets that an outside port may queue on one lane.
    pub queue_depth: usize,
    /// What switches and hosts of the fabric can do. A switch also has every speed that a cable at it is said to have.
    pub caps: PortCaps,
    /// Ports begin with the LIDs that the topology says they had.
    pub keep_lids: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            seed: 0,
            delay: Duration::from_nanos(25),
            training: Duration::from_micros(100),
            switch_latency: Duration::from_nanos(150),
            agent_time: Duration::from_micros(1),
            buffer_blocks: 512,
            vl15_slots: 64,
            queue_depth: 16,
            caps: PortCaps {
                widths: LinkWidth(3),
                speeds: LinkSpeed(7),
                mtu: Mtu::Mtu4096,
                vl_cap: VlCode(4),
                ..PortCaps::SDR_4X
            },
            keep_lids: false,
        }
    }
}
