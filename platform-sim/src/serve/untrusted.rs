//! What anybody may send, to a session with a device behind it: for fuzzing, and for the property test.

use super::client::{Door, Shared};
use super::connection::Stream;
use super::session::{Device, Session};
use crate::machine::{
    Bus, DmaFault, Exerciser, Guest, LinkControl, Message, PciFunction, SendQueueFull, TimerId,
};
use core::fmt;
use core_ib::Instant;
use core_ib::platform::DmaAddr;
use rustix::fs::{MemfdFlags, SealFlags};
use std::cell::RefCell;
use std::os::fd::OwnedFd;

/// A function on a bus whose other end is a client; no wire, no clock.
struct Alone {
    function: RefCell<Exerciser>,
    client: Shared,
}

struct AloneBus(Door);

impl Device for &Alone {
    fn with<R>(&self, f: impl FnOnce(&mut dyn PciFunction, &mut dyn Bus) -> R) -> Option<R> {
        let mut bus = AloneBus(Door(self.client.clone()));
        Some(f(&mut *self.function.borrow_mut(), &mut bus))
    }
}

impl Bus for AloneBus {
    fn now(&self) -> Instant {
        Instant(0)
    }
    fn dma_read(&mut self, at: DmaAddr, data: &mut [u8]) -> Result<(), DmaFault> {
        self.0.dma_read(at, data)
    }
    fn dma_write(&mut self, at: DmaAddr, data: &[u8]) -> Result<(), DmaFault> {
        self.0.dma_write(at, data)
    }
    fn set_intx(&mut self, asserted: bool) {
        self.0.set_intx(asserted);
    }
    fn message(&mut self, message: Message) {
        self.0.message(message);
    }
    fn send(&mut self, _: u8, _: &[u8]) -> Result<(), SendQueueFull> {
        Ok(())
    }
    fn set_link(&mut self, _: u8, _: LinkControl) {}
    fn set_timer(&mut self, _: TimerId, _: Instant) {}
    fn cancel_timer(&mut self, _: TimerId) {}
    fn report(&mut self, _: fmt::Arguments<'_>) {}
}

/// Takes `bytes` for what a client sends, packet by packet. Before each is a byte: its low 6 bits count the packet's
/// words of 4 bytes (all ones: the rest), its high 2 say which file comes along (10 memory, 11 an event).
///
/// Never panics, never blocks, and reaches no memory but the file's.
pub fn read_untrusted(bytes: &[u8]) {
    let alone = Alone {
        function: RefCell::default(),
        client: Shared::default(),
    };
    let Some(mut session) = Session::new(&alone, alone.client.clone()) else {
        return;
    };
    let mut stream = Stream::new();
    let mut rest = bytes;
    while let Some((&head, after)) = rest.split_first() {
        let len = match head & 0x3f {
            0x3f => after.len(),
            len => usize::from(len) * 4,
        };
        let (packet, after) = after.split_at_checked(len).unwrap_or((after, &[]));
        let file = match head >> 6 {
            0 | 1 => None,
            2 => memory(),
            _ => rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).ok(),
        };
        let fed = stream.feed(
            packet,
            file.into_iter().collect(),
            |header, body, files, out| session.handle(header, body, files, out),
        );
        if fed.is_err() {
            break;
        }
        rest = after;
    }
    session.end();
}

/// Four pages in a sealed file.
fn memory() -> Option<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("untrusted", flags).ok()?;
    rustix::fs::ftruncate(&file, 4 * 4096).ok()?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).ok()?;
    Some(file)
}
