//! The server, asked by a client of a few lines.

mod memory;
mod protocol;
mod random;
mod sockets;

use super::client::{Door, Shared};
use super::message::{AccessBody, Command, HEADER, Header};
use super::session::{Device, Session};
use crate::machine::{
    Bus, DmaFault, Exerciser, Guest, LinkControl, Message, PciFunction, SendQueueFull, TimerId,
};
use core_ib::Instant;
use core_ib::platform::DmaAddr;
use rustix::fs::{MemfdFlags, SealFlags};
use std::cell::RefCell;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::rc::Rc;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// An exerciser on a bus whose other end is a client; no wire, no clock.
#[derive(Clone)]
struct Bench {
    function: Rc<RefCell<Exerciser>>,
    client: Shared,
    links: Rc<RefCell<Vec<LinkControl>>>,
}

impl Bench {
    fn new() -> Self {
        Self {
            function: Rc::default(),
            client: Shared::default(),
            links: Rc::default(),
        }
    }

    fn session(&self) -> Session<Self> {
        Session::new(self.clone(), self.client.clone()).unwrap()
    }
}

impl Device for Bench {
    fn with<R>(&self, f: impl FnOnce(&mut dyn PciFunction, &mut dyn Bus) -> R) -> Option<R> {
        let mut bus = BenchBus {
            door: Door(self.client.clone()),
            links: self.links.clone(),
        };
        Some(f(&mut *self.function.borrow_mut(), &mut bus))
    }
}

struct BenchBus {
    door: Door,
    links: Rc<RefCell<Vec<LinkControl>>>,
}

impl Bus for BenchBus {
    fn now(&self) -> Instant {
        Instant(0)
    }
    fn dma_read(&mut self, at: DmaAddr, data: &mut [u8]) -> Result<(), DmaFault> {
        self.door.dma_read(at, data)
    }
    fn dma_write(&mut self, at: DmaAddr, data: &[u8]) -> Result<(), DmaFault> {
        self.door.dma_write(at, data)
    }
    fn set_intx(&mut self, asserted: bool) {
        self.door.set_intx(asserted);
    }
    fn message(&mut self, message: Message) {
        self.door.message(message);
    }
    fn send(&mut self, _: u8, _: &[u8]) -> Result<(), SendQueueFull> {
        Ok(())
    }
    fn set_link(&mut self, _: u8, control: LinkControl) {
        self.links.borrow_mut().push(control);
    }
    fn set_timer(&mut self, _: TimerId, _: Instant) {}
    fn cancel_timer(&mut self, _: TimerId) {}
    fn report(&mut self, what: core::fmt::Arguments<'_>) {
        panic!("{what}");
    }
}

/// What came back: the error number, or the body.
type Answer = Result<Vec<u8>, u32>;

/// A session and the client at its other end.
struct Talk {
    bench: Bench,
    session: Session<Bench>,
    id: u16,
}

impl Talk {
    /// Introduced already.
    fn new() -> Self {
        let mut talk = Self::stranger();
        talk.ask(Command::VERSION, &[0, 0, 1, 0]).unwrap();
        talk
    }

    fn stranger() -> Self {
        let bench = Bench::new();
        Self {
            session: bench.session(),
            bench,
            id: 0,
        }
    }

    fn ask(&mut self, command: Command, body: &[u8]) -> Answer {
        self.ask_with(command, body, Vec::new())
    }

    fn ask_with(&mut self, command: Command, body: &[u8], mut files: Vec<OwnedFd>) -> Answer {
        self.id += 1;
        let header = Header::command_of(self.id, command, body.len(), true);
        let mut out = Vec::new();
        // Whether the session goes on is asked elsewhere.
        let _ = self.session.handle(&header, body, &mut files, &mut out);
        assert!(files.is_empty(), "every file is kept or closed");
        let (reply, body) = Header::read_from_prefix(&out).unwrap();
        assert_eq!(reply.id.get(), self.id);
        assert_eq!(reply.command(), command);
        assert_eq!(reply.size(), HEADER + body.len());
        assert!(!reply.is_command());
        reply.error().map_or(Ok(body.to_vec()), Err)
    }

    fn load(&mut self, region: u32, offset: u64, count: u32) -> Answer {
        let access = access(region, offset, count);
        let body = self.ask(Command::REGION_READ, access.as_bytes())?;
        let (echo, data) = body.split_at(size_of::<AccessBody>());
        assert_eq!(echo, access.as_bytes());
        Ok(data.to_vec())
    }

    fn store(&mut self, region: u32, offset: u64, data: &[u8]) -> Answer {
        let mut body = access(region, offset, data.len() as u32)
            .as_bytes()
            .to_vec();
        body.extend_from_slice(data);
        self.ask(Command::REGION_WRITE, &body)
    }

    /// Memory, I/O and bus mastering on.
    fn enable(&mut self) {
        self.store(7, 4, &[6, 0]).unwrap();
    }

    fn map(&mut self, flags: u32, at: u64, len: u64, offset: u64, file: Option<&File>) -> Answer {
        let words = [offset, at, len];
        let mut body = [32, flags].map(u32::to_ne_bytes).concat();
        body.extend(words.map(u64::to_ne_bytes).concat());
        let files = file.map(|file| OwnedFd::from(file.try_clone().unwrap()));
        self.ask_with(Command::DMA_MAP, &body, files.into_iter().collect())
    }

    fn unmap(&mut self, flags: u32, at: u64, len: u64) -> Answer {
        let mut body = [24, flags].map(u32::to_ne_bytes).concat();
        body.extend([at, len].map(u64::to_ne_bytes).concat());
        self.ask(Command::DMA_UNMAP, &body)
    }

    fn set_irqs(&mut self, words: [u32; 4], data: &[u8], files: Vec<OwnedFd>) -> Answer {
        let [flags, index, start, count] = words;
        let words = [20 + data.len() as u32, flags, index, start, count];
        let mut body = words.map(u32::to_ne_bytes).concat();
        body.extend_from_slice(data);
        self.ask_with(Command::SET_IRQS, &body, files)
    }
}

fn access(region: u32, offset: u64, count: u32) -> AccessBody {
    AccessBody {
        offset: offset.into(),
        region: region.into(),
        count: count.into(),
    }
}

/// A file of `len` bytes in memory, sealed as QEMU's are, or not.
fn memory_file(len: u64, sealed: bool) -> File {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("test", flags).unwrap();
    rustix::fs::ftruncate(&file, len).unwrap();
    if sealed {
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW).unwrap();
    }
    File::from(file)
}

fn event() -> OwnedFd {
    rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap()
}

/// How often `event` was signalled since this was last asked.
fn signals(event: &OwnedFd) -> u64 {
    let mut count = [0; 8];
    match rustix::io::read(event, &mut count) {
        Ok(8) => u64::from_ne_bytes(count),
        _ => 0,
    }
}

fn at(file: &File, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, offset).unwrap();
    bytes
}

/// The view of `T` that `bytes` begin with.
fn view<T: FromBytes + Immutable>(bytes: &[u8]) -> T {
    T::read_from_prefix(bytes).unwrap().0
}
