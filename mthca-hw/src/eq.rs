//! Event queues: rings that the HCA writes events into. infinihost 4.1 to 4.3, 7.
//!
//! There are three: completions, asynchronous events, command completions. An entry is taken under the queue's lock and
//! dealt with outside, so that an interrupt and a poller may drain one queue at the same time.

use crate::let_go::Released;
use crate::uar::Uar;
use core_ib::platform::{DmaBuf, Lock, OutOfBounds, Platform, PlatformError};
use hca_abi::infinihost::doorbell::EqCommand;
use hca_abi::infinihost::eqe::{Eqe, EventType};

/// How many EQs there are.
pub const EQS: usize = 3;
/// Consumed entries of which the HCA is not yet told, at most (infinihost 4.1); half the ring if it is small.
const UNTOLD: u32 = 0x80;

/// Which of the EQs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// Completion events, as each CQ's context says.
    Completion,
    /// All that is asynchronous.
    Async,
    /// Ends of commands.
    Command,
}

impl Which {
    /// All, in the order of their numbers.
    pub const ALL: [Self; EQS] = [Self::Completion, Self::Async, Self::Command];

    /// Place among the EQs; also the number of its interrupt message.
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Event types for MAP_EQ. infinihost 4.3.
    pub const fn mask(self) -> u64 {
        match self {
            Self::Completion => 0, // routed by the CQ's context
            Self::Async => {
                EventType::PATH_MIGRATED.mask()
                    | EventType::COMM_ESTABLISHED.mask()
                    | EventType::SQ_DRAINED.mask()
                    | EventType::CQ_ERROR.mask()
                    | EventType::WQ_CATASTROPHIC.mask()
                    | EventType::EEC_CATASTROPHIC.mask()
                    | EventType::PATH_MIGRATION_FAILED.mask()
                    | EventType::LOCAL_CATASTROPHIC.mask()
                    | EventType::PORT_CHANGE.mask()
                    | EventType::ECC_DETECT.mask()
                    | EventType::WQ_INVALID_REQUEST.mask()
                    | EventType::WQ_ACCESS_VIOLATION.mask()
            }
            Self::Command => EventType::COMMAND.mask(),
        }
    }

    /// Event types in addition if the HCA has SRQs.
    pub const SRQ_MASK: u64 = EventType::SRQ_CATASTROPHIC.mask()
        | EventType::LAST_WQE_REACHED.mask()
        | EventType::SRQ_LIMIT.mask();
}

#[derive(Debug, Default)]
struct Consumer {
    /// Free-running.
    index: u32,
    /// Of which the HCA knows.
    told: u32,
}

/// One event queue.
pub struct Eq<'p, P: Platform> {
    ring: DmaBuf<'p, P>,
    log_size: u8,
    /// Its number.
    pub eqn: u8,
    consumer: Lock<Consumer, P::RawLock>,
}

/// Bytes of an entry.
const ENTRY: usize = size_of::<Eqe>();

impl<'p, P: Platform> Eq<'p, P> {
    /// A ring of `1 << log_size` entries, all the HCA's. Tells the HCA nothing. Set-up only.
    pub fn new(machine: &'p P, eqn: u8, log_size: u8) -> Result<Self, PlatformError> {
        let consumer = machine.lock("EQ", true, Consumer::default());
        let ring = DmaBuf::new(machine, ENTRY << log_size, ENTRY)?;
        let eq = Self {
            ring,
            log_size,
            eqn,
            consumer,
        };
        eq.begin();
        Ok(eq)
    }

    /// Empties the ring: before it is given to the HCA (again).
    pub fn begin(&self) {
        self.consumer
            .with(|consumer| *consumer = Consumer::default());
        for index in 0..self.entries() {
            // Within the ring by construction; a ring that is too short has entries that never fill.
            let _ = self.give(index);
        }
    }

    /// The memory.
    pub const fn ring(&self) -> &DmaBuf<'p, P> {
        &self.ring
    }

    /// Logarithm of the number of entries.
    pub const fn log_size(&self) -> u8 {
        self.log_size
    }

    /// Entries.
    pub const fn entries(&self) -> u32 {
        1 << self.log_size
    }

    fn offset(&self, index: u32) -> usize {
        (index & self.entries().wrapping_sub(1)) as usize * ENTRY
    }

    fn give(&self, index: u32) -> Result<(), OutOfBounds> {
        let owner = self.offset(index) + Eqe::OWNER;
        self.ring.write(owner, &[Eqe::OWNER_HW])
    }

    /// Takes the next entry, if there is one. Interrupt context.
    pub fn next(&self, uar: &Uar<P::Registers>) -> Option<Eqe> {
        let machine = self.ring.machine();
        self.consumer.with(|consumer| {
            let at = self.offset(consumer.index);
            let owner: [u8; 1] = self.ring.read(at + Eqe::OWNER).ok()?;
            if owner[0] & Eqe::OWNER_HW != 0 {
                return None;
            }
            machine.dma_rmb();
            let eqe = self.ring.read(at).ok()?;
            self.give(consumer.index).ok()?;
            consumer.index = consumer.index.wrapping_add(1);
            if consumer.index.wrapping_sub(consumer.told) >= UNTOLD.min(self.entries() / 2) {
                self.tell(consumer, uar);
            }
            Some(eqe)
        })
    }

    /// Tells the HCA what is consumed and, if `arm`, asks for an interrupt with the next event; one that is there
    /// already interrupts at once. Interrupt context.
    pub fn finish(&self, uar: &Uar<P::Registers>, arm: bool) {
        self.consumer.with(|consumer| {
            self.tell(consumer, uar);
            if arm {
                uar.ring_eq(self.eqn, EqCommand::ARM, 0);
            }
        });
    }

    fn tell(&self, consumer: &mut Consumer, uar: &Uar<P::Registers>) {
        let mask = self.entries().wrapping_sub(1);
        self.ring.machine().dma_wmb();
        uar.ring_eq(self.eqn, EqCommand::SET_INDEX, consumer.index & mask);
        consumer.told = consumer.index;
    }

    /// Gives the ring back.
    pub fn free(self, released: &Released) {
        released.free(self.ring);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_masks_are_those_of_the_reference() {
        // infinihost 4.3
        assert_eq!(Which::Async.mask(), 0x343fe);
        assert_eq!(Which::Async.mask() | Which::SRQ_MASK, 0x1f43fe);
        assert_eq!(Which::Command.mask(), 0x400);
    }
}
