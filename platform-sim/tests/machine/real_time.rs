//! Real time, and machines of other worlds.

use super::*;
use core_ib::Instant;
use core_ib::platform::DmaAddr;
use platform_sim::machine::{DmaFault, Guest, Message, Mode, SimCompletion};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

fn real() -> Config {
    Config {
        mode: Mode::RealTime,
        ..Config::default()
    }
}

#[test]
fn packets_go_from_host_to_host_in_real_time() {
    assert_eq!(packets(real()).0, 100);
}

/// Processor time of this thread, from the system.
fn processor_ticks() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    let field = |index: usize| {
        fields
            .get(index)
            .and_then(|field| field.parse::<u64>().ok())
    };
    field(11).unwrap_or(0) + field(12).unwrap_or(0)
}

#[test]
fn real_time_sleeps_while_nothing_is_due() {
    let (mut world, host) = world(real());
    let task = world.spawn(host, "sleeper", |machine| {
        for _ in 0..5 {
            machine.sleep(Duration::from_millis(60));
        }
        machine.now()
    });
    let before = processor_ticks();
    let now = world.finish(task).unwrap();
    let ticks = processor_ticks() - before;
    assert!(now.since(Instant(0)) >= Duration::from_millis(300));
    assert!(ticks <= 5, "{ticks} ticks of 10 ms in 300 ms");
    let sleeps = world.statistics().sleeps;
    assert!((5..50).contains(&sleeps), "{sleeps}");
}

#[test]
fn a_completion_that_another_thread_fires_ends_the_sleep() {
    let (mut world, host) = world(real());
    let bell: Arc<SimCompletion> = Arc::new(world.platform(host).completion().unwrap());
    let ours = bell.clone();
    let task = world.spawn(host, "waiter", move |machine| {
        let rung = ours.wait_until(machine.now().after(Duration::from_secs(20)));
        (rung, machine.now())
    });
    let (sender, receiver) = std::sync::mpsc::channel::<()>();
    let ringer = std::thread::spawn(move || {
        let _ = receiver.recv_timeout(Duration::from_millis(30));
        bell.fire();
    });
    let (rung, now) = world.finish(task).unwrap();
    drop(sender);
    ringer.join().unwrap();
    assert!(rung && now.since(Instant(0)) < Duration::from_secs(10));
}

#[test]
fn a_source_is_called_when_the_waker_was_used() {
    let (mut world, host) = world(real());
    let bell = Arc::new(world.platform(host).completion().unwrap());
    let ours = bell.clone();
    world.on_wake(move || bell.fire());
    let waker = world.waker();
    let other = std::thread::spawn(move || waker.wake());
    let task = world.spawn(host, "waiter", move |machine| {
        ours.wait_until(machine.now().after(Duration::from_secs(20)))
    });
    assert!(world.finish(task).unwrap());
    other.join().unwrap();
}

#[test]
fn a_context_waits_for_a_file() {
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    let (mut world, host) = world(real());
    let (mut here, mut there) = std::os::unix::net::UnixStream::pair().unwrap();
    let task = world.spawn(host, "reader", move |machine| {
        let soon = machine.now().after(Duration::from_millis(20));
        let early = machine.wait_file(here.as_fd(), false, soon).unwrap();
        let later = machine.now().after(Duration::from_secs(20));
        assert!(machine.wait_file(here.as_fd(), false, later).unwrap());
        let mut bytes = [0; 5];
        here.read_exact(&mut bytes).unwrap();
        (early, bytes)
    });
    let writer = world.spawn(host, "writer", move |machine| {
        machine.sleep(Duration::from_millis(60));
        there.write_all(b"frame").unwrap();
    });
    assert_eq!(world.finish(task).unwrap(), (false, *b"frame"));
    world.finish(writer).unwrap();
}

#[test]
fn a_context_that_polls_for_ever_keeps_no_file_from_another() {
    use std::io::Write;
    use std::os::fd::AsFd;
    let (mut world, host) = world(real());
    let (here, mut there) = std::os::unix::net::UnixStream::pair().unwrap();
    let ready = Arc::new(AtomicBool::new(false));
    let seen = ready.clone();
    world.spawn(host, "reader", move |machine| {
        let later = machine.now().after(Duration::from_secs(20));
        let can = machine.wait_file(here.as_fd(), false, later).unwrap();
        ready.store(can, Ordering::Relaxed);
    });
    let poller = world.spawn(host, "poller", move |machine| {
        let deadline = machine.now().after(Duration::from_secs(10));
        while !seen.load(Ordering::Relaxed) && machine.now() < deadline {
            machine.dma_rmb();
        }
        seen.load(Ordering::Relaxed)
    });
    let writer = std::thread::spawn(move || there.write_all(b"frame").unwrap());
    assert!(world.finish(poller).unwrap());
    writer.join().unwrap();
}

#[test]
fn in_virtual_time_no_file_can_be_waited_for() {
    use std::os::fd::AsFd;
    let (mut world, host) = world(Config::default());
    let task = world.spawn(host, "reader", |machine| {
        let (here, _there) = std::os::unix::net::UnixStream::pair().unwrap();
        let waited = machine.wait_file(here.as_fd(), false, Instant::NEVER);
        waited.map_err(|error| error.kind())
    });
    let kind = std::io::ErrorKind::Unsupported;
    assert_eq!(world.finish(task).unwrap(), Err(kind));
}

/// A machine elsewhere: 4 KiB of memory at 0x10000, and messages that are counted.
struct Elsewhere {
    memory: Arc<Mutex<[u8; 4096]>>,
    messages: std::sync::mpsc::Sender<Message>,
}

impl Elsewhere {
    fn range(at: DmaAddr, len: usize) -> Result<std::ops::Range<usize>, DmaFault> {
        let start = at.get().wrapping_sub(0x10000) as usize;
        let end = start.saturating_add(len);
        if end > 4096 {
            return Err(DmaFault::NotMapped { at, len });
        }
        Ok(start..end)
    }
}

impl Guest for Elsewhere {
    fn dma_read(&mut self, at: DmaAddr, data: &mut [u8]) -> Result<(), DmaFault> {
        let range = Self::range(at, data.len())?;
        data.copy_from_slice(&self.memory.lock().unwrap()[range]);
        Ok(())
    }
    fn dma_write(&mut self, at: DmaAddr, data: &[u8]) -> Result<(), DmaFault> {
        let range = Self::range(at, data.len())?;
        self.memory.lock().unwrap()[range].copy_from_slice(data);
        Ok(())
    }
    fn set_intx(&mut self, _: bool) {}
    fn message(&mut self, message: Message) {
        self.messages.send(message).unwrap();
    }
}

#[test]
fn a_function_serves_a_machine_of_another_world_from_another_thread() {
    let cable = Cable::new(LinkParameters::X4_SDR, Duration::from_nanos(100));
    let mut world = World::with(real(), cable);
    let ours = world.add_host("host-a", Box::new(Exerciser::new()), &[WireEnd(0)]);
    let memory = Arc::new(Mutex::new([0; 4096]));
    let (messages, arrived) = std::sync::mpsc::channel();
    let guest = Elsewhere {
        memory: memory.clone(),
        messages,
    };
    let function = Box::new(Exerciser::new());
    let theirs = world.add_guest("guest", function, Box::new(guest), &[WireEnd(1)]);
    let remote = world.remote(theirs);

    // What the guest's software does: messages on, the first unmasked; then it waits for one, and answers.
    let write = move |offset, data: &[u8]| {
        remote.with_function(|function, bus| {
            function.config_write(bus, 0x04, &6_u16.to_le_bytes());
            function.config_write(bus, 0x42, &0x8000_u16.to_le_bytes());
            function.mmio_write(bus, 0, offset, data);
        });
    };
    write(0x800, &0xfee0_0000_u64.to_le_bytes());
    write(0x808, &33_u32.to_le_bytes());
    write(0x80c, &0_u32.to_le_bytes());
    let thread = std::thread::spawn(move || {
        let wait = Duration::from_secs(20);
        let message = arrived.recv_timeout(wait).unwrap();
        assert_eq!((message.address, message.data), (0xfee0_0000, 33));
        memory.lock().unwrap()[..4].copy_from_slice(&77_u32.to_be_bytes());
        write(FROM as u64, &0x10000_u64.to_be_bytes());
        write(SEND as u64, &64_u32.to_be_bytes());
    });

    let sender = world.spawn(ours, "sender", |machine| {
        sends(machine, 1);
        receives(machine, 1)
    });
    assert_eq!(world.finish(sender).unwrap(), 77);
    thread.join().unwrap();
}

#[test]
fn a_load_by_another_thread_does_not_wake_a_world_that_has_nothing_to_do() {
    let mut world = World::with(real(), Nowhere);
    let (messages, arrived) = std::sync::mpsc::channel();
    let guest = Elsewhere {
        memory: Arc::new(Mutex::new([0; 4096])),
        messages,
    };
    let function = Box::new(Exerciser::new());
    let theirs = world.add_guest("guest", function, Box::new(guest), &[]);
    let remote = world.remote(theirs);
    let loads = std::thread::spawn(move || {
        for _ in 0..500 {
            remote.with_function(|function, bus| function.mmio_read(bus, 0, 0, &mut [0; 4]));
            // Time for the world to wake up, if it would; no message comes.
            let _ = arrived.recv_timeout(Duration::from_micros(100));
        }
    });
    world.run_for(Duration::from_millis(100));
    loads.join().unwrap();
    let sleeps = world.statistics().sleeps;
    assert!(sleeps < 50, "{sleeps} sleeps");
}

#[test]
#[should_panic(expected = "only guests")]
fn a_machine_of_this_world_is_not_reached_from_other_threads() {
    let (world, host) = world(real());
    world.remote(host);
}
