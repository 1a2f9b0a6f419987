//! Random programs of verbs calls against the reference model, on every HCA that the driver drives.
//!
//! A failure is shown as the shortest program that still fails. `PROGRAMS=n` runs n programs a variant, `OPENIB_LONG=1`
//! thousands, `PROGRAMS_SEED=n` others than always.

use core::time::Duration;
use core_ib::platform::NoWake;
use core_ib::{Guid, Instant};
use mthca_hw::{Hca, Profile};
use openib_tests::conformance::{Declared, Features, Hears, Refusal, TooLong};
use openib_tests::programs::{Disagreement, Pair, Program, Tally, programs, run};
use openib_tests::scenario::cases;
use platform_sim::hca::infinihost::{Config, InfiniHost, Variant};
use platform_sim::machine::{
    self, Cable, Delivery, LinkControl, LinkParameters, OnReport, SendQueueFull, Wire, WireEnd,
    World,
};
use proptest::test_runner::{
    Config as Proptest, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner,
};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, Once};

/// What the driver and the model are. In M-mode a receive request is counted in a record, and no doorbell tells of it.
const fn declared(variant: Variant) -> Declared {
    let late_flush = match variant {
        Variant::Tavor | Variant::ArbelCompat => Duration::ZERO,
        Variant::Arbel | Variant::Sinai | Variant::SinaiOld => Duration::from_millis(2100),
    };
    Declared {
        late_flush,
        ..T_MODE
    }
}

const T_MODE: Declared = Declared {
    features: Features::RC
        .union(Features::UC)
        .union(Features::SRQ)
        .union(Features::CQ_RESIZE)
        .union(Features::ATOMICS)
        .union(Features::WINDOWS_1)
        .union(Features::FMR)
        .union(Features::MODIFY_AH)
        .union(Features::REREGISTER)
        .union(Features::PATH_MIGRATION),
    ah_of_another_pd: Refusal::AtPost,
    datagram_too_long: TooLong::InCompletion,
    receive_too_short: Hears::Error,
    send_error_is_fatal: false,
    late_flush: Duration::ZERO,
};

const PROFILE: Profile = Profile {
    mws: 4,
    fmrs: 4,
    ..Profile::SMALL
};

/// A cable that loses data packets of one service level.
struct Lossy {
    cable: Cable,
    /// That level, or more than any.
    lost: Arc<AtomicU8>,
}

/// No level.
const NOTHING: u8 = 0xff;

impl Wire for Lossy {
    fn send(&mut self, end: WireEnd, packet: &[u8], now: Instant) -> Result<(), SendQueueFull> {
        // Virtual lane and service level: protocols 1.1.
        let lost = match packet {
            [lane, level, ..] => lane >> 4 != 15 && level >> 4 == self.lost.load(Ordering::Relaxed),
            _ => false,
        };
        if lost {
            return Ok(());
        }
        self.cable.send(end, packet, now)
    }

    fn set_link(&mut self, end: WireEnd, control: LinkControl, now: Instant) {
        self.cable.set_link(end, control, now);
    }

    fn next_event(&self) -> Option<Instant> {
        self.cable.next_event()
    }

    fn poll(&mut self, now: Instant) -> Option<Delivery> {
        self.cable.poll(now)
    }
}

/// Runs `program` on two HCAs of that kind, in a world of its own.
fn on(variant: Variant, program: Program) -> Result<Tally, Disagreement> {
    let config = machine::Config {
        seed: 1,
        on_report: OnReport::Collect,
        stalls: 0,
        // The program's own is on the same stack, and optimised it is one large function.
        stack_budget: None,
        ..machine::Config::default()
    };
    let lost = Arc::new(AtomicU8::new(NOTHING));
    let cable = Lossy {
        cable: Cable::new(LinkParameters::X4_SDR, Duration::from_nanos(20)),
        lost: lost.clone(),
    };
    let mut world = World::with(config, cable);
    let [a, b] = [(0_u32, "host-a"), (1, "host-b")].map(|(end, name)| {
        let card = Config::of(variant, Guid(0x0002_c900_0000_0100 + (u64::from(end) << 8)));
        world.add_host(name, Box::new(InfiniHost::new(card)), &[WireEnd(end)])
    });
    let peer = world.platform(b);
    let task = world.spawn(a, "program", move |machine| {
        let machines = [machine, &peer];
        let hcas = machines.map(|machine| Hca::open(machine, &NoWake, &PROFILE).unwrap());
        let pair = Pair {
            hcas: [&hcas[0], &hcas[1]],
            machines,
            declared: &declared(variant),
            lose: &|path| lost.store(path.unwrap_or(NOTHING), Ordering::Relaxed),
        };
        run(&pair, &program)
    });
    let tally = world.finish(task).map_err(|stuck| stuck.to_string())??;
    let reports = world.take_reports();
    match reports.first() {
        Some(report) => Err(format!("{report}")),
        None => Ok(tally),
    }
}

/// Many programs.
fn many(variant: Variant) {
    let number = |name: &str| {
        std::env::var(name)
            .ok()
            .and_then(|value| value.parse::<u64>().ok())
    };
    let count = number("PROGRAMS").unwrap_or_else(|| cases(60, 3000).into());
    let seed = number("PROGRAMS_SEED").unwrap_or(1) as u8;
    let config = Proptest {
        cases: count as u32,
        max_shrink_iters: 2000,
        max_shrink_time: number("PROGRAMS_SHRINK").unwrap_or(60_000) as u32,
        failure_persistence: None,
        ..Proptest::default()
    };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32]);
    let all = Mutex::new(Tally::default());
    let first = Once::new();
    let mut runner = TestRunner::new_with_rng(config, rng);
    let result = runner.run(&programs(), |program| match on(variant, program) {
        Ok(tally) => {
            all.lock().unwrap().add(&tally);
            Ok(())
        }
        Err(what) => {
            // At once: to make it small takes a while.
            first.call_once(|| eprintln!("{variant:?}: {what}\nmaking it small …"));
            Err(TestCaseError::fail(what))
        }
    });
    match result {
        Ok(()) => {}
        Err(TestError::Fail(why, program)) => {
            let lines: Vec<String> = program.iter().map(|line| format!("    {line:?}")).collect();
            panic!("{variant:?}: {why}\nof the program\n{}", lines.join("\n"));
        }
        Err(error) => panic!("{error}"),
    }
    eprintln!("{variant:?}: {count} programs: {:#?}", all.lock().unwrap());
}

#[test]
fn random_programs_on_a_tavor_do_what_the_reference_says() {
    many(Variant::Tavor);
}

#[test]
fn random_programs_on_an_arbel_in_compatible_mode_do_what_the_reference_says() {
    many(Variant::ArbelCompat);
}

#[test]
fn random_programs_on_an_arbel_do_what_the_reference_says() {
    many(Variant::Arbel);
}

#[test]
fn random_programs_on_a_sinai_do_what_the_reference_says() {
    many(Variant::Sinai);
}

#[test]
fn random_programs_on_a_sinai_under_its_older_number_do_what_the_reference_says() {
    many(Variant::SinaiOld);
}
