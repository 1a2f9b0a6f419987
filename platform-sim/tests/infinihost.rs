//! An InfiniHost in a machine: what firmware, operating system and the first commands of a driver find.

use core::time::Duration;
use core_ib::Guid;
use core_ib::platform::{Caching, DmaBuf, LetGo, Platform, Registers, Vectors};
use platform_sim::hca::infinihost::{self, InfiniHost};
use platform_sim::machine::{Nowhere, SimPlatform, SimRegisters, World};

const HCR: usize = 0x8_0680;
const GO: u32 = 1 << 23;

/// The polled protocol: infinihost 3.1. Gives the status.
fn command(machine: &SimPlatform, bar0: &SimRegisters, opcode: u32, output: u64) -> u32 {
    let words = [
        0,
        0,
        0,
        (output >> 32) as u32,
        output as u32,
        0xffff_0000,
        GO | opcode,
    ];
    for (index, word) in words.into_iter().enumerate() {
        bar0.write_be32(HCR + 4 * index, word);
    }
    let deadline = machine.now().after(Duration::from_secs(2));
    loop {
        let last = bar0.read_be32(HCR + 0x18);
        if last & GO == 0 {
            return last >> 24;
        }
        assert!(machine.now() < deadline, "the command never ends");
        machine.sleep(Duration::from_micros(10));
    }
}

#[test]
fn an_infinihost_is_enumerated_gives_messages_and_answers_its_first_commands() {
    for seed in 0..5 {
        let mut world = World::new(seed, Nowhere);
        let hca = InfiniHost::new(infinihost::Config::new(Guid(0x0002_c900_0000_1230)));
        let host = world.add_host("host-a", Box::new(hca), &[]);
        let task = world.spawn(host, "driver", |machine| {
            assert_eq!(machine.config_read32(0), 0x5a44_15b3);
            assert_eq!(machine.bar_len(0), Some(1 << 20));
            assert_eq!(machine.bar_len(1), None);
            assert_eq!(machine.alloc_vectors(3), Ok(Vectors::Msix { count: 3 }));
            let bar0 = machine.map(0, 0, 1 << 20, Caching::Uncached).unwrap();
            let mailbox = DmaBuf::new(machine, 4096, 4096).unwrap();
            assert_eq!(command(machine, &bar0, 0x001, 0), 0, "SYS_EN");
            let output = mailbox.addr().get();
            assert_eq!(command(machine, &bar0, 0x004, output), 0, "QUERY_FW");
            let firmware = (mailbox.read_be32(0).unwrap(), mailbox.read_be32(4).unwrap());
            // SAFETY: the command has ended.
            mailbox.free(unsafe { LetGo::claim() });
            machine.free_vectors();
            firmware
        });
        let (major, minors) = world.finish(task).unwrap();
        assert_eq!((major & 0xffff, minors), (3, 5), "version 3.5.0");
        world.check_leaks(host);
    }
}
