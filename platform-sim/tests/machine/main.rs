//! What a world does beyond the platform contract: one seed one run, offences by name, deadlocks told, faults, and
//! real time that sleeps.

mod faults;
mod interrupts;
mod offences;
mod real_time;
mod runs;

use core::time::Duration;
use core_ib::platform::{
    Caching, Completion, DmaBuf, Handled, Handler, LetGo, Platform, Registers, Wake,
};
use platform_sim::machine::{
    Cable, Config, Exerciser, HostId, LinkParameters, Nowhere, OnReport, Report, ReportKind,
    SimPlatform, SimRegisters, WireEnd, World,
};
use std::ptr::NonNull;

const FROM: usize = 0x40;
const TO: usize = 0x48;
const COPY: usize = 0x50;
const RAISE: usize = 0x54;
const PIN: usize = 0x58;
const LATE: usize = 0x5c;
const SEND: usize = 0x60;
const RECEIVED: usize = 0x64;
const LINK: usize = 0x6c;
const STATUS: usize = 0x70;
const PACKET: usize = 0x400;

fn collecting(seed: u64) -> Config {
    Config {
        seed,
        on_report: OnReport::Collect,
        ..Config::default()
    }
}

fn world(config: Config) -> (World, HostId) {
    let mut world = World::with(config, Nowhere);
    let host = world.add_host("host-a", Box::new(Exerciser::new()), &[]);
    (world, host)
}

fn registers(machine: &SimPlatform) -> SimRegisters {
    machine.map(0, 0, 4096, Caching::Uncached).unwrap()
}

/// Runs `f` in a world of its own and gives the offences.
fn offences<T: Send + 'static>(
    f: impl FnOnce(&SimPlatform) -> T + Send + 'static,
) -> (Option<T>, Vec<Report>) {
    let (mut world, host) = world(collecting(1));
    let task = world.spawn(host, "driver", f);
    let result = world.finish(task).ok();
    (result, world.take_reports())
}

#[track_caller]
fn only(reports: &[Report], kind: ReportKind, words: &[&str]) {
    let [report] = reports else {
        panic!("one {kind:?} expected: {reports:#?}");
    };
    assert_eq!(report.kind, kind, "{report}");
    assert_eq!(report.host, "host-a");
    for word in words {
        assert!(report.text.contains(word), "{word:?} in {:?}", report.text);
    }
}

/// # Safety
///
/// `handler` lives until the vector is unbound.
unsafe fn bind(machine: &SimPlatform, vector: u16, handler: &dyn Handler) {
    // SAFETY: the lifetime alone changes, and the caller looks after it.
    let handler: NonNull<dyn Handler> = unsafe { core::mem::transmute(NonNull::from(handler)) };
    // SAFETY: the caller's promise.
    unsafe { machine.bind_interrupt(vector, handler) }.unwrap();
}

struct On<F: Fn() -> Handled + Sync>(F);

impl<F: Fn() -> Handled + Sync> Handler for On<F> {
    fn handle(&self) -> Handled {
        self.0()
    }
}

fn let_go() -> LetGo {
    // SAFETY: for tests that have the device do it again: the simulator refuses.
    unsafe { LetGo::claim() }
}

fn two_hosts(config: Config) -> (World, HostId, HostId) {
    let cable = Cable::new(LinkParameters::X4_SDR, Duration::from_nanos(100));
    let mut world = World::with(config, cable);
    let mut add = |name, end| {
        let ends = [WireEnd(end)];
        world.add_host(name, Box::new(Exerciser::new()), &ends)
    };
    let (a, b) = (add("host-a", 0), add("host-b", 1));
    (world, a, b)
}

/// Sends `words` packets of one word.
fn sends(machine: &SimPlatform, words: u32) {
    let registers = registers(machine);
    while registers.read_be32(LINK) == 0 {
        machine.sleep(Duration::from_micros(1));
    }
    let memory = DmaBuf::new(machine, 4096, 4096).unwrap();
    registers.write_be64(FROM, memory.addr().get());
    for word in 1..=words {
        memory.write_be32(0, word).unwrap();
        registers.write_be32(SEND, 64);
        while registers.read_be32(STATUS) != 0 {
            machine.sleep(Duration::from_micros(1));
            registers.write_be32(SEND, 64);
        }
    }
    memory.free(let_go());
}

/// Takes packets by interrupt, until there were `words`.
fn receives(machine: &SimPlatform, words: u32) -> u32 {
    let registers = registers(machine);
    machine.alloc_vectors(1).unwrap();
    let bell = machine.completion().unwrap();
    let handler = On(|| {
        bell.wake();
        Handled::Yes
    });
    // SAFETY: unbound below.
    unsafe { bind(machine, 0, &handler) };
    while registers.read_be32(RECEIVED) < words {
        assert!(bell.wait_until(machine.now().after(Duration::from_secs(10))));
    }
    machine.unbind_interrupt(0);
    machine.free_vectors();
    registers.read_be32(PACKET)
}

fn packets(config: Config) -> (u32, World) {
    let (mut world, a, b) = two_hosts(config);
    let receiver = world.spawn(b, "receiver", |machine| receives(machine, 100));
    let sender = world.spawn(a, "sender", |machine| sends(machine, 100));
    world.finish(sender).unwrap();
    let last = world.finish(receiver).unwrap();
    (last, world)
}
