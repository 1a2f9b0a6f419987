//! Offences are named.

use super::*;
use core_ib::Instant;
use core_ib::platform::{Direction, Table};

#[test]
fn an_offence_panics_where_it_happens_unless_reports_are_collected() {
    let (mut world, host) = world(Config::default());
    let task = world.spawn(host, "driver", |machine| {
        registers(machine).write_be32(2, 0);
    });
    let run = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.finish(task)));
    let message = run.unwrap_err().downcast::<String>().unwrap();
    assert!(
        message.contains("host-a (driver): Register: misaligned"),
        "{message}"
    );
}

#[test]
fn a_lock_held_across_a_wait_is_named() {
    for wait in 0..4 {
        let (_, reports) = offences(move |machine| {
            let completion = machine.completion().unwrap();
            let gate = machine.gate("control", ());
            machine.lock("CQ 7", false, ()).with(|()| match wait {
                0 => machine.sleep(Duration::from_micros(1)),
                1 => drop(completion.wait_until(machine.now().after(Duration::from_micros(9)))),
                2 => gate.with(|()| ()),
                _ => assert!(machine.dma_alloc(4096, 4096).is_ok()),
            });
        });
        only(&reports, ReportKind::LockAcrossWait, &["lock \"CQ 7\""]);
    }
    let (_, reports) = offences(|machine| {
        let completion = machine.completion().unwrap();
        machine
            .lock("CQ 7", false, ())
            .with(|()| completion.wait_until(Instant(0)));
    });
    assert!(reports.is_empty(), "a test of a completion does not wait");
}

#[test]
fn a_lock_taken_twice_is_named_and_never_returns() {
    let (result, reports) = offences(|machine| {
        let lock = machine.lock("SRQ 1", false, 0);
        lock.with(|_| lock.with(|_| ()));
    });
    assert!(result.is_none());
    only(&reports, ReportKind::SelfDeadlock, &["lock \"SRQ 1\""]);
}

#[test]
fn two_locks_in_both_orders_are_named_though_nothing_went_wrong() {
    let (result, reports) = offences(|machine| {
        let (send, receive) = (
            machine.lock("send CQ", false, ()),
            machine.lock("receive CQ", false, ()),
        );
        for _ in 0..3 {
            send.with(|()| receive.with(|()| ()));
            receive.with(|()| send.with(|()| ()));
        }
    });
    assert!(result.is_some());
    only(
        &reports,
        ReportKind::InvertedOrder,
        &["send CQ", "receive CQ"],
    );
}

/// Raises message 0 once, and runs `f` as its handler.
fn in_an_interrupt(machine: &SimPlatform, f: impl Fn() + Sync) {
    machine.alloc_vectors(1).unwrap();
    let done = machine.completion().unwrap();
    let handler = On(|| {
        f();
        done.fire();
        Handled::Yes
    });
    // SAFETY: unbound below.
    unsafe { bind(machine, 0, &handler) };
    registers(machine).write_be32(RAISE, 0);
    assert!(done.wait_until(machine.now().after(Duration::from_secs(1))));
    machine.unbind_interrupt(0);
    machine.free_vectors();
}

#[test]
fn an_interrupt_handler_that_takes_a_lock_it_was_not_declared_for_is_named() {
    let (_, reports) = offences(|machine| {
        let declared = machine.lock("EQ 1", true, ());
        let other = machine.lock("QP 3", false, ());
        in_an_interrupt(machine, || {
            declared.with(|()| ());
            other.with(|()| ());
        });
    });
    only(&reports, ReportKind::LockInInterrupt, &["lock \"QP 3\""]);
}

#[test]
fn what_may_block_in_an_interrupt_or_a_soft_one_is_named() {
    let (_, reports) = offences(|machine| {
        in_an_interrupt(machine, || {
            let _ = machine.dma_alloc(1, 1);
        });
    });
    let words = ["an interrupt handler allocates DMA memory"];
    only(&reports, ReportKind::WaitInInterrupt, &words);
    let (waited, reports) = offences(|machine| {
        let bell = machine.completion().unwrap();
        let deadline = machine.now().after(Duration::from_secs(1));
        machine.soft_interrupt(|| bell.wait_until(deadline));
        machine.now() >= deadline
    });
    assert_eq!(waited, Some(false), "it does not wait, either");
    let words = ["a soft interrupt handler waits for a completion"];
    only(&reports, ReportKind::WaitInInterrupt, &words);
}

#[test]
fn a_register_that_never_changes_is_named_when_it_is_read_for_ever() {
    let (mut world, host) = world(Config {
        spin_limit: 1000,
        ..collecting(1)
    });
    let task = world.spawn(host, "poller", |machine| {
        let registers = registers(machine);
        for _ in 0..3000 {
            registers.read_be32(0x68); // counts
        }
        for _ in 0..3000 {
            registers.read_be32(0x14);
        }
    });
    world.finish(task).unwrap();
    only(
        &world.take_reports(),
        ReportKind::Spin,
        &["BAR 0 offset 0x14", "1000 times"],
    );
}

/// Makes the device copy 8 bytes.
fn copy(registers: &SimRegisters, from: u64, to: u64) -> bool {
    registers.write_be64(FROM, from);
    registers.write_be64(TO, to);
    registers.write_be32(COPY, 8);
    registers.read_be32(STATUS) == 0
}

#[test]
fn a_device_that_goes_for_memory_outside_of_what_it_was_given_is_named_and_stopped() {
    let (copied, reports) = offences(|machine| {
        let memory = DmaBuf::new(machine, 4096, 4096).unwrap();
        let at = memory.addr().get();
        let copied = copy(&registers(machine), at + 4090, at);
        memory.free(let_go());
        copied
    });
    assert_eq!(copied, Some(false));
    let words = [
        "the device reads 8 bytes",
        "offset 4090 of DMA memory #1 (4096 bytes)",
    ];
    only(&reports, ReportKind::DmaOutside, &words);
}

#[test]
fn a_device_that_goes_for_memory_that_was_given_back_is_named_and_stopped() {
    let (copied, reports) = offences(|machine| {
        let memory = DmaBuf::new(machine, 4096, 4096).unwrap();
        let gone = DmaBuf::new(machine, 64, 64).unwrap();
        let to = gone.addr().get();
        gone.free(let_go());
        let copied = copy(&registers(machine), memory.addr().get(), to + 8);
        memory.free(let_go());
        copied
    });
    assert_eq!(copied, Some(false));
    let words = [
        "the device writes 8 bytes",
        "given back: offset 8 of DMA memory #2 (64 bytes)",
    ];
    only(&reports, ReportKind::DmaAfterFree, &words);
}

#[test]
fn a_device_that_writes_to_a_mapping_for_reading_is_named_and_stopped() {
    let (_, reports) = offences(|machine| {
        let raw = machine.dma_alloc(4096, 4096).unwrap();
        // SAFETY: it stays; unmapped below.
        let at = unsafe { machine.dma_map(raw.memory, 64, Direction::ToDevice) }.unwrap();
        assert!(!copy(&registers(machine), raw.bus.get(), at.get()));
        assert!(copy(&registers(machine), at.get(), raw.bus.get()));
        // SAFETY: mapped above, and the device is done.
        unsafe { machine.dma_unmap(at, 64, Direction::ToDevice) };
        // SAFETY: from `dma_alloc`, and the device is done.
        unsafe { machine.dma_free(raw) };
    });
    only(&reports, ReportKind::DmaDirection, &["other direction"]);
}

#[test]
fn memory_that_is_given_back_while_the_device_says_it_can_reach_it_is_named() {
    let mut world = World::with(collecting(1), Nowhere);
    let host = world.add_host("host-a", Box::new(Exerciser::holding_on()), &[]);
    let task = world.spawn(host, "driver", |machine| {
        let memory = DmaBuf::new(machine, 4096, 4096).unwrap();
        let at = memory.addr().get();
        assert!(copy(&registers(machine), at, at + 64));
        memory.free(let_go());
    });
    world.finish(task).unwrap();
    let words = ["4096 bytes", "register \"copy from\""];
    only(
        &world.take_reports(),
        ReportKind::FreedWhileReachable,
        &words,
    );
}

#[test]
fn what_was_never_given_back_is_counted_when_asked_for() {
    let (mut world, host) = world(collecting(1));
    let task = world.spawn(host, "driver", |machine| {
        let _leaked = DmaBuf::new(machine, 100, 1).unwrap();
        core::mem::forget(Table::new(machine, 10, |_| 0_u64).unwrap());
        machine.memory_in_use()
    });
    assert_eq!(world.finish(task).unwrap(), (100, 80));
    world.check_leaks(host);
    let words = ["DMA memory #1 (100 bytes)", "a table of 80 bytes"];
    only(&world.take_reports(), ReportKind::Leak, &words);
}
