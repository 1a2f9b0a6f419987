//! What happens next: events in the order of their time, and of their causes where several have the same.

use crate::fabric::port::Charge;
use crate::machine::LinkControl;
use core_ib::Instant;

/// Something due.
#[derive(Debug)]
pub(super) enum Event {
    /// The last bit of a packet is there.
    Arrive {
        port: usize,
        epoch: u32,
        packet: Vec<u8>,
        charge: Option<Charge>,
    },
    /// The line is free.
    Wake { port: usize },
    /// The peer has room again.
    Credit {
        port: usize,
        epoch: u32,
        charge: Charge,
    },
    /// Two ports have trained.
    Trained { cable: usize, epoch: u32 },
    /// A packet has crossed the switch.
    Forward { node: usize, slot: usize, out: u8 },
    /// An agent looks at a packet.
    Agent { node: usize, slot: usize },
    /// A head of a queue may have grown too old.
    Check { port: usize, vl: u8 },
    /// A trap is to be sent.
    Trap { node: usize },
    /// An agent told a port what to do.
    Control { port: usize, control: LinkControl },
    /// A cable is pulled, or put back.
    Plug { cable: usize, plugged: bool },
}

pub(super) struct Entry {
    pub(super) at: Instant,
    pub(super) order: u64,
    pub(super) event: Event,
}

impl Entry {
    const fn key(&self) -> (u64, u64) {
        (self.at.0, self.order)
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> core::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}
