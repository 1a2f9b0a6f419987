//! What the device reaches of a client: memory and interrupts, behind one lock. The server's session changes it, the
//! device model uses it, each from its own thread.

use super::dma::ClientMemory;
use super::irq::Interrupts;
use crate::machine::{DmaFault, Guest, Message};
use core_ib::platform::DmaAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The address that the server writes into the device's message table. Clients keep the real one, and give us a file
/// for each message; the data of an entry is its number.
pub(super) const MESSAGE_ADDRESS: u64 = 0xfee0_0000;
/// So many refused accesses are told one by one.
const TOLD: u64 = 16;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Client {
    pub(super) memory: ClientMemory,
    pub(super) interrupts: Interrupts,
    faults: u64,
    read: u64,
    written: u64,
}

/// Use of a client's memory and interrupts so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes that the device read from its memory.
    pub read: u64,
    /// Bytes that the device wrote into it.
    pub written: u64,
    /// Accesses to memory that it had not mapped, or not for this direction.
    pub faults: u64,
    /// Interrupts that went out.
    pub interrupts: u64,
    /// Regions of memory mapped now.
    pub regions: usize,
}

/// The client of one socket, shared between its session and the world.
#[derive(Clone, Debug, Default)]
pub(super) struct Shared(Arc<Mutex<Client>>);

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, Client> {
        // Nothing is half done where this could panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn usage(&self) -> Usage {
        let client = self.lock();
        Usage {
            read: client.read,
            written: client.written,
            faults: client.faults,
            interrupts: client.interrupts.sent(),
            regions: client.memory.len(),
        }
    }
}

impl Client {
    fn note(&mut self, result: Result<(), DmaFault>, verb: &str) -> Result<(), DmaFault> {
        if let Err(fault) = result {
            self.faults += 1;
            if self.faults <= TOLD {
                log::warn!("the device {verb} where it may not: {fault}");
            }
        }
        result
    }
}

/// The client as a world sees it.
#[derive(Debug)]
pub(super) struct Door(pub(super) Shared);

impl Guest for Door {
    fn dma_read(&mut self, at: DmaAddr, data: &mut [u8]) -> Result<(), DmaFault> {
        let mut client = self.0.lock();
        client.read += data.len() as u64;
        let result = client.memory.read(at, data);
        client.note(result, "reads")
    }

    fn dma_write(&mut self, at: DmaAddr, data: &[u8]) -> Result<(), DmaFault> {
        let mut client = self.0.lock();
        client.written += data.len() as u64;
        let result = client.memory.write(at, data);
        client.note(result, "writes")
    }

    fn set_intx(&mut self, asserted: bool) {
        self.0.lock().interrupts.set_line(asserted);
    }

    fn message(&mut self, message: Message) {
        if message.address == MESSAGE_ADDRESS {
            self.0.lock().interrupts.message(message.data);
        }
    }
}
