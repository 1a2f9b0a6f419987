//! The simulated machine keeps the platform contract, whatever the seed, and in real time.

use core::time::Duration;
use core_ib::platform::{Caching, DmaAddr, Platform, Registers};
use platform_sim::contract::{self, Case, Rig};
use platform_sim::machine::{
    Config, Exerciser, Mode, Nowhere, OnReport, ReportKind, SimPlatform, SimRegisters, World,
};

/// An [`Exerciser`] in a machine.
struct Bench {
    machine: SimPlatform,
    registers: SimRegisters,
}

impl Bench {
    fn new(machine: &SimPlatform) -> Self {
        Self {
            machine: machine.clone(),
            registers: machine.map(0, 0, 4096, Caching::Uncached).unwrap(),
        }
    }
}

impl Rig for Bench {
    type Machine = SimPlatform;

    fn machine(&self) -> &SimPlatform {
        &self.machine
    }

    fn beside(&self, one: &(dyn Fn() + Sync), other: &(dyn Fn() + Sync)) {
        self.machine.scope(|scope| {
            scope.spawn("one", |_| one());
            scope.spawn("other", |_| other());
        });
    }

    fn scratch(&self) -> (u8, u64) {
        (0, 0)
    }

    fn raise(&self, vector: u16, late: Duration) {
        self.registers.write_be32(0x5c, late.as_nanos() as u32);
        self.registers.write_be32(0x54, u32::from(vector));
    }

    fn release(&self) -> bool {
        let asserted = self.registers.read_be32(0x58) != 0;
        self.registers.write_be32(0x58, 0);
        self.registers.read_be32(0x58);
        asserted
    }

    fn device_copies(&self, from: DmaAddr, to: DmaAddr, len: usize) {
        self.registers.write_be64(0x40, from.get());
        self.registers.write_be64(0x48, to.get());
        self.registers.write_be32(0x50, len as u32);
        assert_eq!(self.registers.read_be32(0x70), 0);
    }
}

fn holds(config: Config, (name, case): Case<Bench>) {
    let mode = config.mode;
    let mut world = World::with(config, Nowhere);
    let host = world.add_host("host", Box::new(Exerciser::new()), &[]);
    let task = world.spawn(host, name, move |machine| case(&Bench::new(machine)));
    world.finish(task).unwrap_or_else(|stuck| panic!("{stuck}"));
    world.check_leaks(host);
    let reports = world.take_reports();
    let complaints = name == "an_access_outside_of_a_mapping_gives_ones_and_changes_nothing";
    if complaints {
        assert_eq!(reports.len(), 5, "{reports:?}");
        assert!(reports.iter().all(|r| r.kind == ReportKind::Register));
    } else {
        assert!(reports.is_empty(), "{name} in {mode:?}: {reports:?}");
    }
}

fn config(seed: u64, mode: Mode) -> Config {
    Config {
        seed,
        mode,
        on_report: OnReport::Collect,
        ..Config::default()
    }
}

#[test]
fn the_contract_holds_in_virtual_time_whatever_the_seed() {
    for seed in 0..30 {
        for case in contract::cases() {
            holds(config(seed, Mode::Virtual), case);
        }
    }
}

#[test]
fn the_contract_holds_on_a_machine_without_64_bit_accesses() {
    for case in contract::cases() {
        let narrow = true;
        let config = config(7, Mode::Virtual);
        holds(Config { narrow, ..config }, case);
    }
}

#[test]
fn the_contract_holds_in_real_time() {
    for case in contract::cases() {
        holds(config(0, Mode::RealTime), case);
    }
}
