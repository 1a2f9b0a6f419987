//! The seed decides everything: the same gives the same capture byte for byte, another gives another interleaving.

use core::time::Duration;
use openib_sim::sim::Settings;
use openib_tests::scenario::{Family, Scenario, assert_exact};
use platform_sim::fabric::topology::build;
use platform_sim::fabric::{Capture, Faults, Memory};

/// A run with everything in it: bring-up, pings, faults if wanted, a stream, a host that vanishes. Its capture and
/// fingerprint.
fn run(seed: u64, faults: bool) -> (Vec<u8>, u64) {
    let memory = Memory::default();
    let capture = Capture::new(memory.clone()).unwrap();
    let mut settings = Settings::new(build::line(2, 1), seed);
    settings.capture = Some(capture.clone());
    let mut scenario = Scenario::new(settings);
    scenario.sim.start_all();
    scenario.wait_up(Duration::from_secs(60));
    scenario.settle();
    scenario.ping_all(&[(0, 1), (1, 0)]);
    let thousandth = 1000;
    if faults {
        scenario.sim.set_faults(Faults {
            drop: thousandth,
            corrupt: thousandth,
            delay: 20 * thousandth,
            delay_max: Duration::from_micros(50),
            duplicate: thousandth,
        });
    }
    let ends = scenario.stream(0, 1, Family::V4, 50_000, Duration::from_secs(120));
    assert_exact(ends, 50_000);
    scenario.sim.power_off(1);
    scenario.sim.run_for(Duration::from_millis(500));
    capture.finish().unwrap();
    assert!(capture.packets() > 200, "{capture:?}");
    (memory.bytes(), scenario.sim.world.fingerprint())
}

#[test]
fn the_same_seed_gives_the_same_capture() {
    let first = run(42, true);
    let again = run(42, true);
    assert_eq!(first.1, again.1, "fingerprints");
    let differ = first.0.iter().zip(&again.0).position(|(a, b)| a != b);
    assert_eq!((differ, first.0.len()), (None, again.0.len()), "captures");
}

/// Without faults, whose dice the seed throws too: only the order in which contexts run is left.
#[test]
fn another_seed_gives_another_interleaving() {
    let (first, other) = (run(42, false), run(43, false));
    assert_ne!(first.1, other.1, "fingerprints");
    assert_ne!(first.0, other.0, "captures");
}
