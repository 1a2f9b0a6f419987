//! Event queues: rings that the HCA writes events into. infinihost 2.5, 4.1 to 4.3, 7.
//!
//! There is one for asynchronous events, one for command completions, and one for each completion vector. An entry is
//! taken under the queue's lock and dealt with outside, so that an interrupt and a poller may drain one queue at the same
//! time.

use crate::event::Tenants;
use crate::let_go::Released;
use crate::limits::EventRegisters;
use crate::uar::Uar;
use core_ib::platform::{DmaBuf, Lock, OutOfBounds, Platform, PlatformError, Registers};
use hca_abi::infinihost::doorbell::EqCommand;
use hca_abi::infinihost::eqe::{Eqe, EventType};
use hca_abi::infinihost::regs::EQ_SET_CI_STRIDE;

/// Most completion vectors. All EQs are among the 32 that a dword of the registers knows.
pub const MAX_VECTORS: u16 = 16;
/// Most EQs.
pub const MAX_EQS: usize = MAX_VECTORS as usize + 2;
/// Consumed entries of which the HCA is not yet told, at most (infinihost 4.1); half the ring if it is small.
const UNTOLD: u32 = 0x80;

/// Which of the EQs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// Completion events of this vector, as each CQ's context says.
    Completion(u16),
    /// All that is asynchronous.
    Async,
    /// Ends of commands.
    Command,
}

impl Which {
    /// All, in the order of their numbers, of an HCA with so many completion vectors.
    pub fn all(vectors: u16) -> impl Iterator<Item = Self> {
        let first = [Self::Completion(0), Self::Async, Self::Command];
        first.into_iter().chain((1..vectors).map(Self::Completion))
    }

    /// Place among the EQs; also the number of its interrupt message.
    pub const fn index(self) -> usize {
        match self {
            Self::Completion(0) => 0,
            Self::Async => 1,
            Self::Command => 2,
            Self::Completion(vector) => vector as usize + 2,
        }
    }

    /// Event types for MAP_EQ. infinihost 4.3.
    pub const fn mask(self) -> u64 {
        match self {
            Self::Completion(_) => 0, // routed by the CQ's context
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

/// Where EQs are armed, and where the HCA is told what is consumed.
#[derive(Debug)]
pub enum EqPort<'a, R> {
    /// T-mode: a doorbell page.
    Page(&'a Uar<R>),
    /// M-mode: registers of BAR 0.
    Registers(&'a R, EventRegisters),
}

impl<R: Registers> EqPort<'_, R> {
    /// `counter` runs free; the ring has `mask + 1` entries.
    fn set_index(&self, eqn: u8, counter: u32, mask: u32) {
        match self {
            Self::Page(uar) => uar.ring_eq(eqn, EqCommand::SET_INDEX, counter & mask),
            Self::Registers(dcs, at) => {
                let place = usize::from(eqn).wrapping_mul(EQ_SET_CI_STRIDE);
                dcs.write_be32(at.eq_set_ci.wrapping_add(place), counter);
            }
        }
    }

    fn arm(&self, eqn: u8) {
        match self {
            Self::Page(uar) => uar.ring_eq(eqn, EqCommand::ARM, 0),
            Self::Registers(dcs, at) => {
                // Of 64 bits the high dword comes first.
                let half = if eqn < 32 { 4 } else { 0 };
                dcs.write_be32(at.eq_arm.wrapping_add(half), 1 << (eqn % 32));
            }
        }
    }
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
    pub fn next(&self, port: &EqPort<'_, P::Registers>, tenants: &Tenants) -> Option<(Eqe, u32)> {
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
                self.tell(consumer, port);
            }
            Some((eqe, tenants.newest()))
        })
    }

    /// Tells the HCA what is consumed and, if `arm`, asks for an interrupt with the next event; one that is there
    /// already interrupts at once. Interrupt context.
    pub fn finish(&self, port: &EqPort<'_, P::Registers>, arm: bool) {
        self.consumer.with(|consumer| {
            self.tell(consumer, port);
            if arm {
                port.arm(self.eqn);
            }
        });
    }

    fn tell(&self, consumer: &mut Consumer, port: &EqPort<'_, P::Registers>) {
        let mask = self.entries().wrapping_sub(1);
        self.ring.machine().dma_wmb();
        port.set_index(self.eqn, consumer.index, mask);
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
    fn every_eq_has_a_place_of_its_own_in_order() {
        for vectors in [1, 2, MAX_VECTORS] {
            let places = Which::all(vectors).map(Which::index);
            assert!(places.eq(0..usize::from(vectors) + 2));
        }
    }

    #[test]
    fn the_masks_are_those_of_the_reference() {
        // infinihost 4.3
        assert_eq!(Which::Async.mask(), 0x343fe);
        assert_eq!(Which::Async.mask() | Which::SRQ_MASK, 0x1f43fe);
        assert_eq!(Which::Command.mask(), 0x400);
    }
}
