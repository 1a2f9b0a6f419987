//! The InfiniHost driver on a device that lies. Whatever that says, the driver does not panic, touches no memory but its
//! own, ends each call, completes a work request once at most, and gives all its memory back once the device has let go
//! of it.

use mthca_hw::Interrupts;
use openib_tests::hostile::{Liar, Lies, drive_untrusted, live, live_as_host};
use platform_sim::hca::infinihost::Variant;
use platform_sim::machine::{Report, ReportKind};
use proptest::prelude::*;

/// What a driver is to blame for, whatever the device does.
fn is_the_drivers(report: &Report, answers_lie: bool) -> bool {
    match report.kind {
        // The device went where it may not, or makes the driver's next step look wrong to it.
        ReportKind::DmaOutside
        | ReportKind::DmaAfterFree
        | ReportKind::DmaDirection
        | ReportKind::Interrupt
        | ReportKind::Device => false,
        // It said that it had let go, and had not.
        ReportKind::FreedWhileReachable => !answers_lie,
        _ => true,
    }
}

/// Gives whether the HCA was opened, and how many lies were told.
fn survives(lies: Lies, seed: u64) -> (bool, u64) {
    let ways = [Interrupts::Messages, Interrupts::Pin, Interrupts::None];
    let way = ways[(seed % 3) as usize];
    let (reports, opened, told) = live(Liar::new(lies, seed), seed, way);
    let answers_lie = lies.answers + lies.reads + lies.registers > 0;
    let mut blamed = reports.iter();
    if let Some(report) = blamed.find(|report| is_the_drivers(report, answers_lie)) {
        panic!("{lies:?}, seed {seed}: {report}");
    }
    (opened, told)
}

/// How often: rarely, so that it comes far, or often.
fn often() -> impl Strategy<Value = u32> {
    prop_oneof![Just(2_000_u32), Just(20_000), Just(200_000), Just(700_000)]
}

#[test]
fn a_device_that_does_not_lie_is_used_to_the_end() {
    for seed in 0..6 {
        let lies = Lies::default();
        let ways = [Interrupts::Messages, Interrupts::Pin, Interrupts::None];
        let (reports, opened, told) = live(Liar::new(lies, seed), seed, ways[(seed % 3) as usize]);
        assert!(opened && told == 0 && reports.is_empty(), "{reports:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn entries_that_are_wrong_or_lost_or_come_twice_are_survived(seed: u64, entries in often()) {
        survives(Lies { entries, ..Lies::default() }, seed);
    }

    #[test]
    fn answers_and_arrivals_that_are_wrong_are_survived(seed: u64, answers in often()) {
        survives(Lies { answers, ..Lies::default() }, seed);
    }

    #[test]
    fn a_device_that_misreads_what_it_is_told_is_survived(seed: u64, reads in often()) {
        survives(Lies { reads, ..Lies::default() }, seed);
    }

    #[test]
    fn registers_that_say_anything_are_survived(seed: u64, registers in often()) {
        survives(Lies { registers, ..Lies::default() }, seed);
    }

    #[test]
    fn commands_that_never_end_end_the_hca_and_nothing_else(seed: u64, silence in often()) {
        survives(Lies { silence, ..Lies::default() }, seed);
    }

    #[test]
    fn a_storm_of_interrupts_passes(seed: u64, storm in often()) {
        survives(Lies { storm, ..Lies::default() }, seed);
    }

    #[test]
    fn an_hca_may_be_pulled_out_at_any_moment(seed: u64, gone_after in 0..3000_u64) {
        survives(Lies { gone_after: Some(gone_after), ..Lies::default() }, seed);
    }

    #[test]
    fn all_lies_at_once_are_survived(seed: u64, parts in prop_oneof![Just(300_u32), Just(3000), Just(30_000)]) {
        let [entries, answers, reads, registers, storm] = [parts; 5];
        let silence = parts / 10;
        survives(Lies { entries, answers, reads, registers, silence, storm, ..Lies::default() }, seed);
    }
}

#[test]
fn a_host_on_a_device_that_does_not_lie_hears_from_itself() {
    for variant in [Variant::Tavor, Variant::Arbel] {
        let liar = Liar::of(variant, Lies::default(), 1);
        let (reports, came, told) = live_as_host(liar, 1, Interrupts::Messages);
        assert!(told == 0 && reports.is_empty(), "{reports:?}");
        assert!(came.is_some_and(|came| came > 10), "{came:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// Special QPs, SA client, subnet manager and both halves of IPoIB, whatever completions and answers say.
    #[test]
    fn a_host_on_a_device_that_lies_ends_and_shows_no_more_than_it_received(
        seed: u64, entries in prop_oneof![Just(0_u32), Just(500), Just(20_000)],
        answers in prop_oneof![Just(0_u32), Just(500), Just(5000)],
        reads in prop_oneof![3 => Just(0_u32), 1 => Just(2000)],
    ) {
        let lies = Lies { entries, answers, reads, ..Lies::default() };
        let ways = [Interrupts::Messages, Interrupts::Pin, Interrupts::None];
        let way = ways[(seed % 3) as usize];
        let (reports, ..) = live_as_host(Liar::new(lies, seed), seed, way);
        let mut blamed = reports.iter();
        let blamed = blamed.find(|report| is_the_drivers(report, answers + reads > 0));
        prop_assert!(blamed.is_none(), "{:?}, seed {}: {:?}", lies, seed, blamed);
    }
}

#[test]
fn what_an_hca_may_still_write_to_is_never_given_back() {
    let lies = Lies {
        never_back: true,
        silence: 20_000,
        ..Lies::default()
    };
    let mut kept = 0;
    for seed in 0..12 {
        let (reports, ..) = live(Liar::new(lies, seed), seed, Interrupts::Messages);
        kept += reports
            .iter()
            .filter(|report| report.kind == ReportKind::Leak)
            .count();
        let mut blamed = reports
            .iter()
            .filter(|report| report.kind != ReportKind::Leak);
        let bad = blamed.find(|report| is_the_drivers(report, false));
        assert!(bad.is_none(), "seed {seed}: {bad:?}");
    }
    assert!(kept > 0, "no reset was needed: the test proves nothing");
}

#[test]
fn lies_are_told_before_and_after_the_hca_is_open() {
    let often = 20_000;
    let none = Lies::default();
    let kinds = [
        Lies {
            entries: often,
            ..none
        },
        Lies {
            answers: often,
            ..none
        },
        Lies {
            reads: often,
            ..none
        },
        Lies {
            registers: often,
            ..none
        },
        Lies {
            silence: often,
            ..none
        },
        Lies {
            storm: often,
            ..none
        },
    ];
    for lies in kinds {
        let lives: Vec<_> = (0..12).map(|seed| survives(lies, seed)).collect();
        assert!(
            lives.iter().any(|(opened, told)| *opened && *told > 0),
            "{lies:?}: {lives:?}"
        );
    }
}

#[test]
fn lies_by_the_book_are_told_and_survived() {
    let book = |honest_for: u16| {
        let mut bytes = vec![0];
        bytes.extend(honest_for.to_le_bytes());
        bytes.extend((0..600_u32).map(|n| ((n * n) >> 3) as u8));
        bytes
    };
    for mode in [0, 0x80] {
        for n in 0..6 {
            let mut bytes = book(n * 150);
            bytes[0] |= mode;
            drive_untrusted(&bytes);
        }
    }
    drive_untrusted(&[]);
}
