//! IPoIB in connected mode, between hosts of ours: packets of 64 KiB, beside hosts that know datagrams alone, over cables
//! that lose, and when a peer dies and returns.

use core::time::Duration;
use openib_sim::host::Command;
use openib_sim::sim::{Settings, ipoib_profile};
use openib_tests::scenario::{Family, Scenario, assert_exact, is_up};
use platform_sim::fabric::Faults;
use platform_sim::fabric::topology::build;

/// Four hosts on two switches; those named have datagrams alone.
fn up(seed: u64, datagram: &[usize]) -> Scenario {
    let mut settings = Settings::new(build::line(2, 2), seed);
    settings.connected = true;
    let mut scenario = Scenario::new(settings);
    for index in datagram {
        scenario.sim.hosts[*index].spec.ipoib = ipoib_profile(false);
    }
    scenario.sim.start_all();
    scenario.wait_up(Duration::from_secs(60));
    scenario.settle();
    scenario
}

fn ping_size(scenario: &Scenario, index: usize, size: usize) {
    scenario.sim.hosts[index]
        .remote
        .tell(Command::PingSize(size));
}

/// How many of `count` echoes with `size` bytes of data are answered.
fn answered(
    scenario: &mut Scenario,
    pair: (usize, usize),
    family: Family,
    size: usize,
    count: u16,
) -> usize {
    ping_size(scenario, pair.0, size);
    let echoes = scenario.ping(&[pair], family, count, Duration::from_secs(4));
    let echoes = echoes.iter().flatten();
    echoes.filter(|echo| echo.round_trip.is_some()).count()
}

/// As much as an IPv4 packet of 65520 bytes holds, and an IPv6 packet.
const FULL_V4: usize = 65520 - 20 - 8;
const FULL_V6: usize = 65520 - 40 - 8;

#[test]
fn packets_of_64_kib_are_answered_from_the_first_on() {
    let mut scenario = up(21, &[]);
    assert_eq!(answered(&mut scenario, (0, 3), Family::V4, FULL_V4, 5), 5);
    assert_eq!(answered(&mut scenario, (3, 0), Family::V4, FULL_V4, 5), 5);
    assert_eq!(answered(&mut scenario, (1, 2), Family::V6, FULL_V6, 5), 5);
    // Short ones, too, and between others at the same time.
    for index in 0..4 {
        ping_size(&scenario, index, 56);
    }
    scenario.ping_all(&[(0, 1), (1, 3), (2, 0), (3, 2)]);
    let length = 3_000_000;
    for (from, to) in [(0, 3), (2, 1)] {
        let ends = scenario.stream(from, to, Family::V4, length, Duration::from_secs(60));
        assert_exact(ends, length);
    }
    for index in 0..4 {
        scenario.stop(index);
    }
}

#[test]
fn a_host_without_connected_mode_is_sent_datagrams() {
    let mut scenario = up(22, &[2]);
    scenario.ping_all(&[(0, 2), (2, 0), (1, 2)]);
    // What a datagram holds, and what it does not.
    assert_eq!(answered(&mut scenario, (0, 2), Family::V4, 2044 - 28, 3), 3);
    assert_eq!(answered(&mut scenario, (0, 2), Family::V4, 2044 - 27, 3), 0);
    assert_eq!(answered(&mut scenario, (0, 1), Family::V4, FULL_V4, 3), 3);
    let length = 200_000;
    let ends = scenario.stream(2, 1, Family::V4, length, Duration::from_secs(60));
    assert_exact(ends, length);
}

#[test]
fn a_peer_that_was_killed_is_connected_to_again() {
    let mut scenario = up(23, &[]);
    assert_eq!(answered(&mut scenario, (0, 3), Family::V4, FULL_V4, 3), 3);
    scenario.sim.power_off(3);
    assert_eq!(answered(&mut scenario, (0, 3), Family::V4, FULL_V4, 2), 0);
    scenario.sim.run_for(Duration::from_secs(15));
    scenario.sim.power_on(3).unwrap();
    scenario.wait("the host is up", Duration::from_secs(120), |hosts| {
        is_up(&hosts[3])
    });
    scenario.settle();
    let end = scenario.sim.now().after(Duration::from_secs(120));
    for pair in [(0, 3), (3, 0)] {
        while answered(&mut scenario, pair, Family::V4, FULL_V4, 1) == 0 {
            assert!(
                scenario.sim.now() < end,
                "{pair:?}\n{}",
                scenario.sim.describe()
            );
        }
        assert_eq!(answered(&mut scenario, pair, Family::V4, FULL_V4, 4), 4);
    }
}

#[test]
fn a_stream_over_cables_that_lose_arrives_whole() {
    let mut scenario = up(24, &[]);
    scenario.sim.set_faults(Faults {
        drop: 5_000,
        ..Faults::default()
    });
    let length = 1_000_000;
    let ends = scenario.stream(0, 3, Family::V4, length, Duration::from_secs(200));
    assert_exact(ends, length);
    assert!(scenario.sim.fault_counts().dropped > 0);
}
