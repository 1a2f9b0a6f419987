//! Two of the smallest machines on a cable, without an operating system: each runs on a stack of 16 KiB over one fixed
//! arena, without interrupts, and one pings the other over IPoIB. All that runs on that stack is optimised in every
//! profile (the workspace's `Cargo.toml`), so that any build says whether it fits.
//!
//! All that a machine does outside of its own stack is a question to this file: a load, a store, the time. So the
//! models run here, and only the machine's own code is on its stack.

use bare_platform::ping::{self, Host, HostError};
use bare_platform::{Board, Parts};
use core::cell::Cell;
use core::fmt;
use core::net::Ipv4Addr;
use core::time::Duration;
use core_ib::platform::DmaAddr;
use core_ib::{Guid, Instant};
use corosensei::stack::{DefaultStack, Stack as _};
use corosensei::{Coroutine, CoroutineResult, Yielder};
use platform_sim::hca::infinihost::{Config, InfiniHost, Variant};
use platform_sim::machine::{
    Bus, Cable, Delivery, DmaFault, LinkControl, LinkParameters, Message, PciFunction,
    SendQueueFull, TimerId, Wire, WireEnd,
};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::BTreeMap;

/// Bytes of an arena.
const ARENA: usize = 8 << 20;
/// Where a device sees it.
const BUS: u64 = 0x4000_0000;
/// The stack of a machine, a kernel's.
const STACK: usize = 16 << 10;
/// One on which a machine that needs too much is measured and does not crash.
const ROOMY: usize = 1 << 20;

/// A question of a machine.
#[derive(Clone, Copy, Debug)]
enum Ask {
    Load(u8, u64, usize),
    Store(u8, u64, [u8; 8], usize),
    ConfigRead(u16),
    ConfigWrite(u16, u32),
    Now,
    /// Wakes it at this time, or when something happened.
    Pass(Instant),
    /// So far it is; and where its stack ends now.
    Reached(&'static str, usize),
}

type Answer = [u8; 8];

/// The board of one machine: questions, and nothing else.
struct Questions {
    yielder: Cell<*const Yielder<Answer, Ask>>,
}

// SAFETY: one machine is one coroutine on one thread.
unsafe impl Send for Questions {}
// SAFETY: as above.
unsafe impl Sync for Questions {}

impl Questions {
    fn ask(&self, question: Ask) -> Answer {
        // SAFETY: set by the coroutine that we are in, which keeps its yielder as long as it runs.
        unsafe { &*self.yielder.get() }.suspend(question)
    }
}

impl Board for Questions {
    fn bar_len(&self, bar: u8) -> Option<u64> {
        match bar {
            0 => Some(1 << 20),
            2 => Some(8 << 20),
            4 => Some(128 << 20),
            _ => None,
        }
    }
    fn load(&self, bar: u8, offset: u64, data: &mut [u8]) {
        let answer = self.ask(Ask::Load(bar, offset, data.len()));
        let len = data.len();
        data.copy_from_slice(&answer[..len]);
    }
    fn store(&self, bar: u8, offset: u64, data: &[u8]) {
        let mut bytes = [0; 8];
        bytes[..data.len()].copy_from_slice(data);
        self.ask(Ask::Store(bar, offset, bytes, data.len()));
    }
    fn config_read32(&self, offset: u16) -> u32 {
        let [a, b, c, d, ..] = self.ask(Ask::ConfigRead(offset));
        u32::from_le_bytes([a, b, c, d])
    }
    fn config_write32(&self, offset: u16, value: u32) {
        self.ask(Ask::ConfigWrite(offset, value));
    }
    fn now(&self) -> Instant {
        Instant(u64::from_le_bytes(self.ask(Ask::Now)))
    }
    fn pass_time(&self, until: Instant) {
        self.ask(Ask::Pass(until));
    }
    fn reached(&self, what: &'static str) {
        let here = 0_u8;
        self.ask(Ask::Reached(what, core::ptr::from_ref(&here).addr()));
    }
}

/// The stack of a machine that stands still, looked at from outside. It begins as zeros.
struct Watched {
    /// Its lowest address above the guard page.
    low: usize,
    /// The one above its highest.
    top: usize,
    /// Bytes that each part of the program took.
    taken: Vec<(&'static str, usize)>,
}

impl Watched {
    fn new(stack: &DefaultStack) -> Self {
        Self {
            low: stack.limit().get() + 4096,
            top: stack.base().get(),
            taken: Vec::new(),
        }
    }

    /// `what` is done, and the stack ends at `end`: what is not zero was used. Makes it zeros again.
    fn note(&mut self, what: &'static str, end: usize) {
        // What suspended the machine lies below its own frames.
        let free = (end - self.low - 1024) / 8;
        let first = core::ptr::with_exposed_provenance_mut::<u64>(self.low);
        let mut fresh = free;
        for word in 0..free {
            // SAFETY: within the stack, above its guard page, and below all that is in use.
            let place = unsafe { first.add(word) };
            // SAFETY: as above, and the machine stands still.
            if unsafe { place.read_volatile() } != 0 {
                fresh = fresh.min(word);
                // SAFETY: as above.
                unsafe { place.write_volatile(0) };
            }
        }
        self.taken.push((what, self.top - self.low - fresh * 8));
    }
}

/// One arena, as the device sees it.
struct Arena(*mut u8);

impl Arena {
    const LAYOUT: Layout = match Layout::from_size_align(ARENA, 4096) {
        Ok(layout) => layout,
        Err(_) => panic!("a size and an alignment"),
    };

    fn new() -> Self {
        // SAFETY: the layout has a size.
        Self(unsafe { alloc_zeroed(Self::LAYOUT) })
    }

    /// Offset of `len` bytes at `at`, if all of them are in the arena.
    fn offset(at: DmaAddr, len: usize) -> Result<usize, DmaFault> {
        let offset = at.get().wrapping_sub(BUS) as usize;
        let fits = offset.checked_add(len).is_some_and(|end| end <= ARENA);
        fits.then_some(offset)
            .ok_or(DmaFault::NotMapped { at, len })
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: came from `alloc_zeroed` with this layout.
        unsafe { dealloc(self.0, Self::LAYOUT) };
    }
}

/// What is around one device.
struct Slot {
    memory: *mut u8,
    end: WireEnd,
    timers: BTreeMap<TimerId, Instant>,
    /// The interrupt pin.
    pin: bool,
}

/// The bus, for the length of a call. What is on the wire is sent on afterwards.
struct SlotBus<'a> {
    slot: &'a mut Slot,
    cable: &'a mut Cable,
    now: Instant,
}

impl Bus for SlotBus<'_> {
    fn now(&self) -> Instant {
        self.now
    }
    fn dma_read(&mut self, at: DmaAddr, data: &mut [u8]) -> Result<(), DmaFault> {
        let offset = Arena::offset(at, data.len())?;
        // SAFETY: inside the arena, while the machine stands still; drivers know that a device reads it.
        unsafe {
            self.slot
                .memory
                .add(offset)
                .copy_to(data.as_mut_ptr(), data.len())
        };
        Ok(())
    }
    fn dma_write(&mut self, at: DmaAddr, data: &[u8]) -> Result<(), DmaFault> {
        let offset = Arena::offset(at, data.len())?;
        // SAFETY: as above; where the model writes, the driver has lent it memory.
        unsafe {
            self.slot
                .memory
                .add(offset)
                .copy_from(data.as_ptr(), data.len())
        };
        Ok(())
    }
    fn set_intx(&mut self, asserted: bool) {
        self.slot.pin = asserted;
    }
    fn message(&mut self, message: Message) {
        panic!("{message:?} and nobody wanted messages");
    }
    fn send(&mut self, port: u8, packet: &[u8]) -> Result<(), SendQueueFull> {
        match port {
            1 => self.cable.send(self.slot.end, packet, self.now),
            _ => Ok(()),
        }
    }
    fn set_link(&mut self, port: u8, control: LinkControl) {
        if port == 1 {
            self.cable.set_link(self.slot.end, control, self.now);
        }
    }
    fn set_timer(&mut self, id: TimerId, at: Instant) {
        self.slot.timers.insert(id, at);
    }
    fn cancel_timer(&mut self, id: TimerId) {
        self.slot.timers.remove(&id);
    }
    fn report(&mut self, what: fmt::Arguments<'_>) {
        panic!("{what}");
    }
}

/// Two devices, the cable, and the time.
struct Bench {
    hcas: [InfiniHost; 2],
    slots: [Slot; 2],
    cable: Cable,
    now: Instant,
}

impl Bench {
    fn new(variant: Variant, arenas: &[Arena; 2]) -> Self {
        let card = |number: u64| {
            let guid = Guid(0x0002_c900_0000_0000 + number * 0x100);
            InfiniHost::new(Config::of(variant, guid))
        };
        let slot = |number: usize| Slot {
            memory: arenas[number].0,
            end: WireEnd(number as u32),
            timers: BTreeMap::new(),
            pin: false,
        };
        let mut bench = Self {
            hcas: [card(1), card(2)],
            slots: [slot(0), slot(1)],
            cable: Cable::new(LinkParameters::X4_SDR, Duration::from_nanos(50)),
            now: Instant(0),
        };
        for side in 0..2 {
            bench.with(side, |hca, bus| {
                hca.reset(bus);
                // As firmware would: where the BARs are, memory on, bus master.
                for (at, value) in [(0x14_u16, 0xc0_u32), (0x1c, 0xc1), (0x24, 0xc2), (0x04, 6)] {
                    hca.config_write(bus, at, &value.to_le_bytes());
                }
            });
        }
        bench
    }

    fn with<R>(&mut self, side: usize, f: impl FnOnce(&mut InfiniHost, &mut dyn Bus) -> R) -> R {
        let (cable, now) = (&mut self.cable, self.now);
        let slot = &mut self.slots[side];
        f(&mut self.hcas[side], &mut SlotBus { slot, cable, now })
    }

    fn answer(&mut self, side: usize, question: Ask) -> Answer {
        let mut answer = [0; 8];
        match question {
            Ask::Load(bar, offset, len) => {
                let data = &mut answer[..len];
                self.with(side, |hca, bus| hca.mmio_read(bus, bar, offset, data));
            }
            Ask::Store(bar, offset, bytes, len) => {
                let data = &bytes[..len];
                self.with(side, |hca, bus| hca.mmio_write(bus, bar, offset, data));
            }
            Ask::ConfigRead(offset) => {
                let data = &mut answer[..4];
                self.with(side, |hca, bus| hca.config_read(bus, offset, data));
            }
            Ask::ConfigWrite(offset, value) => {
                let data = value.to_le_bytes();
                self.with(side, |hca, bus| hca.config_write(bus, offset, &data));
            }
            Ask::Now => {
                // Whoever looks at a clock sees it go on.
                self.now = self.now.after(Duration::from_nanos(50));
                return self.now.0.to_le_bytes();
            }
            Ask::Pass(_) | Ask::Reached(..) => {}
        }
        answer
    }

    /// The next thing that happens by itself, `until` at the latest.
    fn step(&mut self, until: Instant) {
        // An interrupt ends a pause, though nobody is interrupted here.
        let until = match self.slots.iter().any(|slot| slot.pin) {
            true => until.min(self.now.after(Duration::from_micros(1))),
            false => until,
        };
        let timers = self.slots.iter().flat_map(|slot| slot.timers.values());
        let next = timers.copied().chain(self.cable.next_event()).min();
        let next = next.unwrap_or(until).min(until);
        self.now = self.now.max(next);
        while let Some(delivery) = self.cable.poll(self.now) {
            match delivery {
                Delivery::Packet { end, packet } => {
                    self.with(end.0 as usize, |hca, bus| hca.receive(bus, 1, &packet));
                }
                Delivery::Link { end, up } => {
                    self.with(end.0 as usize, |hca, bus| hca.link_changed(bus, 1, up));
                }
                Delivery::Room { end, vl } => {
                    self.with(end.0 as usize, |hca, bus| hca.send_room(bus, 1, vl));
                }
            }
        }
        for side in 0..2 {
            let now = self.now;
            let due = self.slots[side].timers.extract_if(.., |_, at| *at <= now);
            for (id, _) in due.collect::<Vec<_>>() {
                self.with(side, |hca, bus| hca.timer(bus, id));
            }
        }
    }
}

type Machine = Coroutine<Answer, Ask, Result<u16, HostError>, DefaultStack>;

/// Runs both machines to their end.
fn run(
    bench: &mut Bench,
    mut machines: [Machine; 2],
    stacks: &mut [Watched; 2],
) -> [Result<u16, HostError>; 2] {
    let mut results = [None, None];
    let mut answers = [[0; 8]; 2];
    while results.iter().any(Option::is_none) {
        let mut until = Instant::NEVER;
        for side in 0..2 {
            while results[side].is_none() {
                match machines[side].resume(answers[side]) {
                    CoroutineResult::Yield(Ask::Pass(at)) => {
                        until = until.min(at);
                        break;
                    }
                    CoroutineResult::Yield(Ask::Reached(what, end)) => {
                        stacks[side].note(what, end);
                    }
                    CoroutineResult::Yield(question) => {
                        answers[side] = bench.answer(side, question);
                    }
                    CoroutineResult::Return(result) => results[side] = Some(result),
                }
            }
        }
        bench.step(until);
    }
    results.map(|result| result.unwrap_or(Ok(0)))
}

/// What the host `name` says of the stack that a part of its program took.
type Taken = (&'static str, &'static str, usize);

/// Brings up both on stacks of `len` bytes, has one ping the other, and shuts them down. Gives what stack each part took.
fn two_bare_machines(variant: Variant, len: usize) -> Vec<Taken> {
    let arenas = [Arena::new(), Arena::new()];
    let mut bench = Bench::new(variant, &arenas);
    let [first, second] = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)];
    let host = |name, address, peer, subnet_manager| Host {
        name,
        address,
        peer,
        subnet_manager,
        echoes: 5,
        deadline: Instant(60_000_000_000),
    };
    let hosts = [
        host("first", first, Some(second), true),
        host("second", second, None, false),
    ];
    let stacks = [0, 1].map(|_| DefaultStack::new(len).unwrap());
    let mut watched = [Watched::new(&stacks[0]), Watched::new(&stacks[1])];
    assert_eq!(
        watched[0].top - watched[0].low,
        len,
        "and a guard page below"
    );
    let mut sides = [0, 1].into_iter();
    let machines = stacks.map(|stack| {
        let side = sides.next().unwrap();
        let (memory, host) = (arenas[side].0, hosts[side]);
        Coroutine::with_stack(stack, move |yielder: &Yielder<Answer, Ask>, _| {
            // SAFETY: the arena lives longer than the machine, and is its alone but for its device.
            let arena = unsafe { core::slice::from_raw_parts_mut(memory, ARENA) };
            let yielder = Cell::new(core::ptr::from_ref(yielder));
            let board = Questions { yielder };
            let parts = Parts::new(&board, arena, DmaAddr::new(BUS));
            let result = ping::run(&parts, &host);
            assert_eq!(parts.used(), 0, "memory that was not given back");
            result
        })
    });
    let results = run(&mut bench, machines, &mut watched);
    for (result, host) in results.into_iter().zip(hosts) {
        let seen = result.unwrap_or_else(|error| panic!("{}: {error}", host.name));
        assert!(seen >= 5, "{}: {seen}", host.name);
    }
    let taken = watched.iter().zip(hosts).flat_map(|(watched, host)| {
        let parts = watched.taken.iter();
        parts.map(move |(what, taken)| (host.name, *what, *taken))
    });
    taken.collect()
}

fn ping_on_16_kib(variant: Variant) {
    // First where what is too much has a name, then where nothing but a guard page is below.
    let taken = two_bare_machines(variant, ROOMY);
    for (host, what, taken) in &taken {
        println!("{host}: {what}: {taken} bytes of stack");
    }
    assert_eq!(taken.len(), 10, "five parts each");
    for (host, what, taken) in taken {
        assert!(taken <= STACK, "{host}: {what}: {taken} bytes of stack");
    }
    two_bare_machines(variant, STACK);
}

#[test]
fn two_bare_machines_ping_each_other_on_16_kib_of_stack() {
    ping_on_16_kib(Variant::Tavor);
}

#[test]
fn two_bare_machines_with_mem_free_cards_do_so_too() {
    ping_on_16_kib(Variant::Arbel);
    ping_on_16_kib(Variant::Sinai);
}
