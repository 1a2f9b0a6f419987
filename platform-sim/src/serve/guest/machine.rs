//! The guest's machine: memory in a file, of which the device may reach what is mapped; a wire from port to port.

use super::super::client::{Door, Shared};
use super::super::message::{Command, HEADER, Header};
use super::super::session::{Device, Session};
use crate::hca::infinihost::{Config, InfiniHost};
use crate::machine::{
    Bus, DmaFault, Guest, LinkControl, LinkParameters, Message, PciFunction, SendQueueFull, TimerId,
};
use core::fmt;
use core_ib::Instant;
use core_ib::platform::DmaAddr;
use rustix::fs::{MemfdFlags, SealFlags};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::rc::Rc;
use zerocopy::{FromBytes, IntoBytes};

/// Regions of the guest's memory, mapped one by one.
pub const REGIONS: u64 = 8;
/// Bytes of a region.
pub const REGION: u64 = 512 << 10;
/// Bytes before and behind the memory in its file, which nobody may change.
const GUARD: usize = 4096;
/// What is in them.
const UNTOUCHED: u8 = 0xa5;
/// DMA accesses that one call may make: some dozens of WQEs, each of a list of at most 62 pieces, a packet for each, and
/// what a full list of events takes.
const MOST: usize = 40_000;
/// Packets that are under way at most.
const WIRE: usize = 64;

/// What is not the device.
pub struct Around {
    now: Instant,
    timers: BTreeMap<TimerId, Instant>,
    /// What is on the wire, with the port that it came out of.
    pub wire: VecDeque<(u8, Vec<u8>)>,
    /// Nothing is taken.
    pub full: bool,
    /// What is mapped as far as the guest knows: start, length, may be read, may be written.
    mapped: Vec<(u64, u64, bool, bool)>,
    accesses: usize,
}

impl Around {
    /// An access took place: was all of it mapped?
    pub fn check(&mut self, at: DmaAddr, len: usize, write: bool) {
        self.accesses += 1;
        assert!(self.accesses < MOST, "a call that does not end");
        let (mut next, mut left) = (at.get(), len as u64);
        while left > 0 {
            let region = self
                .mapped
                .iter()
                .find(|(start, len, ..)| next.wrapping_sub(*start) < *len);
            let Some(&(start, len, readable, writable)) = region else {
                panic!("an access to {next:#x}, which is not mapped");
            };
            assert!(
                if write { writable } else { readable },
                "{next:#x} is not mapped for this"
            );
            let here = left.min(start + len - next);
            (next, left) = (next.wrapping_add(here), left - here);
        }
    }
}

/// The device and all around it.
#[derive(Clone)]
struct Alone {
    function: Rc<RefCell<InfiniHost>>,
    client: Shared,
    around: Rc<RefCell<Around>>,
}

struct AloneBus {
    door: Door,
    around: Rc<RefCell<Around>>,
}

impl Device for Alone {
    fn with<R>(&self, f: impl FnOnce(&mut dyn PciFunction, &mut dyn Bus) -> R) -> Option<R> {
        self.around.borrow_mut().accesses = 0;
        let mut bus = AloneBus {
            door: Door(self.client.clone()),
            around: self.around.clone(),
        };
        Some(f(&mut *self.function.borrow_mut(), &mut bus))
    }
}

impl Bus for AloneBus {
    fn now(&self) -> Instant {
        self.around.borrow().now
    }
    fn dma_read(&mut self, at: DmaAddr, data: &mut [u8]) -> Result<(), DmaFault> {
        self.door.dma_read(at, data)?;
        self.around.borrow_mut().check(at, data.len(), false);
        Ok(())
    }
    fn dma_write(&mut self, at: DmaAddr, data: &[u8]) -> Result<(), DmaFault> {
        self.door.dma_write(at, data)?;
        self.around.borrow_mut().check(at, data.len(), true);
        Ok(())
    }
    fn set_intx(&mut self, asserted: bool) {
        self.door.set_intx(asserted);
    }
    fn message(&mut self, message: Message) {
        self.door.message(message);
    }
    fn send(&mut self, port: u8, packet: &[u8]) -> Result<(), SendQueueFull> {
        let mut around = self.around.borrow_mut();
        if around.full {
            return Err(SendQueueFull);
        }
        if around.wire.len() < WIRE {
            around.wire.push_back((port, packet.to_vec()));
        }
        Ok(())
    }
    fn set_link(&mut self, _: u8, _: LinkControl) {}
    fn set_timer(&mut self, id: TimerId, at: Instant) {
        self.around.borrow_mut().timers.insert(id, at);
    }
    fn cancel_timer(&mut self, id: TimerId) {
        self.around.borrow_mut().timers.remove(&id);
    }
    fn report(&mut self, _: fmt::Arguments<'_>) {}
}

/// A guest's machine with an HCA in it.
pub struct Machine {
    device: Alone,
    session: Session<Alone>,
    memory: File,
    /// The last replies.
    replies: Vec<u8>,
}

impl Machine {
    /// All memory is mapped, both ways. `None` if there is no memory to be had.
    pub fn new(config: Config) -> Option<Self> {
        let memory = File::from(memory()?);
        let device = Alone {
            function: Rc::new(RefCell::new(InfiniHost::new(config))),
            client: Shared::default(),
            around: Rc::new(RefCell::new(Around {
                now: Instant(1000),
                timers: BTreeMap::new(),
                wire: VecDeque::new(),
                full: false,
                mapped: Vec::new(),
                accesses: 0,
            })),
        };
        let session = Session::new(device.clone(), device.client.clone())?;
        let replies = Vec::new();
        let mut machine = Self {
            device,
            session,
            memory,
            replies,
        };
        machine.say(Command::VERSION, &[&[0; 4]], None);
        (0..REGIONS).for_each(|region| machine.map(region, true, true));
        Some(machine)
    }

    /// Says something to the server; was it obeyed?
    fn say(&mut self, command: Command, body: &[&[u8]], file: Option<OwnedFd>) -> bool {
        let body = body.concat();
        let header = Header::command_of(0, command, body.len(), true);
        self.replies.clear();
        let mut files = file.into_iter().collect();
        let handled = self
            .session
            .handle(&header, &body, &mut files, &mut self.replies);
        let reply = Header::read_from_prefix(&self.replies);
        handled.is_ok() && reply.is_ok_and(|(reply, _)| reply.error().is_none())
    }

    /// Maps a region. What is there already stays.
    pub fn map(&mut self, region: u64, read: bool, write: bool) {
        let at = region.wrapping_mul(REGION);
        let flags = u32::from(read) | u32::from(write) << 1;
        let inside = if region < REGIONS { at } else { 0 };
        let words = [inside + GUARD as u64, at, REGION];
        let (Ok(file), start) = (self.memory.as_fd().try_clone_to_owned(), at) else {
            return;
        };
        let head = [32, flags];
        if self.say(
            Command::DMA_MAP,
            &[head.as_bytes(), words.as_bytes()],
            Some(file),
        ) {
            let mut around = self.device.around.borrow_mut();
            around.mapped.push((start, REGION, read, write));
        }
    }

    /// Unmaps a region, or all of them.
    pub fn unmap(&mut self, region: Option<u64>) {
        let at = region.unwrap_or(0).wrapping_mul(REGION);
        let (flags, len) = if region.is_some() {
            (0_u32, REGION)
        } else {
            (2, 0)
        };
        let (head, words) = ([24, flags], [at, len]);
        if self.say(
            Command::DMA_UNMAP,
            &[head.as_bytes(), words.as_bytes()],
            None,
        ) {
            let mut around = self.device.around.borrow_mut();
            around
                .mapped
                .retain(|(start, ..)| region.is_some() && *start != at);
        }
    }

    /// The conventional reset.
    pub fn reset(&mut self) {
        self.say(Command::RESET, &[], None);
    }

    /// A store to a region of the device: a BAR, or configuration space, which is number 7.
    pub fn store(&mut self, region: u32, at: u64, data: &[u8]) {
        let numbers = [region, data.len() as u32];
        self.say(
            Command::REGION_WRITE,
            &[at.as_bytes(), numbers.as_bytes(), data],
            None,
        );
    }

    /// A load of at most 8 bytes; all ones if it was refused.
    pub fn load(&mut self, region: u32, at: u64, len: usize) -> u64 {
        let numbers = [region, len as u32];
        let mut value = [0xff; 8];
        if self.say(
            Command::REGION_READ,
            &[at.as_bytes(), numbers.as_bytes()],
            None,
        ) {
            let data = self.replies.get(HEADER + 16..).unwrap_or_default();
            value
                .iter_mut()
                .zip(data)
                .for_each(|(to, from)| *to = *from);
        }
        u64::from_le_bytes(value)
    }

    /// Writes into the guest's own memory; what lies outside goes nowhere.
    pub fn write(&self, at: u64, data: &[u8]) {
        let inside = at
            .checked_add(data.len() as u64)
            .is_some_and(|end| end <= REGIONS * REGION);
        if inside {
            let written = self.memory.write_all_at(data, at + GUARD as u64);
            written.unwrap_or_else(|error| panic!("the guest's memory: {error}"));
        }
    }

    /// Reads from it; zeros outside.
    pub fn read<const N: usize>(&self, at: u64) -> [u8; N] {
        let mut data = [0; N];
        if at
            .checked_add(N as u64)
            .is_some_and(|end| end <= REGIONS * REGION)
        {
            let read = self.memory.read_exact_at(&mut data, at + GUARD as u64);
            read.unwrap_or_else(|error| panic!("the guest's memory: {error}"));
        }
        data
    }

    /// Changes a byte behind the memory.
    #[cfg(test)]
    pub fn spoil_guard(&self) {
        let at = GUARD as u64 + REGIONS * REGION;
        self.memory.write_all_at(&[0], at).unwrap();
    }

    /// Lets `f` at what is around the device.
    pub fn around<R>(&self, f: impl FnOnce(&mut Around) -> R) -> R {
        f(&mut self.device.around.borrow_mut())
    }

    /// A packet arrives at `port`.
    pub fn arrive(&mut self, port: u8, packet: &[u8]) {
        self.device
            .with(|function, bus| function.receive(bus, port, packet));
    }

    /// The cable of `port` is plugged in or pulled.
    pub fn link(&mut self, port: u8, up: bool) {
        let up = up.then_some(LinkParameters::X4_SDR);
        self.device
            .with(|function, bus| function.link_changed(bus, port, up));
    }

    /// There is room on a lane again.
    pub fn room(&mut self, port: u8, vl: u8) {
        self.device
            .with(|function, bus| function.send_room(bus, port, vl));
    }

    /// Lets the timers that are set run, once each; time passes to each of them.
    pub fn tick(&mut self) {
        let due = self.around(|around| core::mem::take(&mut around.timers));
        let mut due: Vec<_> = due.into_iter().collect();
        due.sort_by_key(|(_, at)| *at);
        for (id, at) in due {
            self.around(|around| around.now = around.now.max(at));
            self.device.with(|function, bus| function.timer(bus, id));
        }
    }

    /// The guest ends. Nothing around its memory was changed.
    pub fn end(self) {
        let mut guards = [[0; GUARD]; 2];
        let ends = [0, GUARD as u64 + REGIONS * REGION];
        for (guard, at) in guards.iter_mut().zip(ends) {
            let read = self.memory.read_exact_at(guard, at);
            read.unwrap_or_else(|error| panic!("the guest's memory: {error}"));
            assert!(
                guard.iter().all(|byte| *byte == UNTOUCHED),
                "beyond the guest's memory"
            );
        }
        self.session.end();
    }
}

/// A sealed file for all regions, with guards.
fn memory() -> Option<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("guest", flags).ok()?;
    let len = REGIONS * REGION + 2 * GUARD as u64;
    rustix::fs::ftruncate(&file, len).ok()?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).ok()?;
    let file = File::from(file);
    for at in [0, len - GUARD as u64] {
        file.write_all_at(&[UNTOUCHED; GUARD], at).ok()?;
    }
    Some(file.into())
}
