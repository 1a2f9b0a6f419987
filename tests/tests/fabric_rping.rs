//! `rping` between hosts of ours, by IP addresses over IPoIB: RDMA reads and writes whose data both ends check, ends that are
//! refused, and ends that die.

use core::time::Duration;
use openib_sim::host::Command;
use openib_sim::model::Model;
use openib_sim::peer::{PeerStatus, Stage, messages, rping};
use openib_sim::sim::{Settings, SimHost};
use openib_tests::scenario::{Family, Scenario};
use platform_sim::fabric::Faults;
use platform_sim::fabric::topology::build;
use std::net::SocketAddr;

/// Three hosts; the last one serves.
fn up(seed: u64, model: Model) -> Scenario {
    let mut settings = Settings::new(build::star(3), seed);
    settings.model = model;
    settings.connections = true;
    let mut scenario = Scenario::new(settings);
    scenario.sim.start_all();
    scenario.wait_up(Duration::from_secs(60));
    scenario.settle();
    scenario.sim.hosts[2]
        .remote
        .tell(Command::RpingServe(rping::PORT));
    scenario
}

fn ask(scenario: &Scenario, family: Family, (count, size): (u32, u32), port: u16) {
    let hosts = &scenario.sim.hosts;
    let peer = SocketAddr::new(family.of(&hosts[2]).unwrap(), port);
    hosts[1].remote.tell(Command::Rping { peer, count, size });
}

fn peers(host: &SimHost) -> Vec<PeerStatus> {
    host.remote.look(|status| status.peers.clone())
}

fn is_over(host: &SimHost, number: usize) -> bool {
    let over = |peer: &PeerStatus| matches!(peer.stage, Stage::Ended | Stage::Failed(_));
    peers(host).get(number).is_some_and(over)
}

/// Asks, and waits for the end of it: what connection `number` of the client came to.
fn whole(scenario: &mut Scenario, number: usize, family: Family, rounds: (u32, u32)) -> PeerStatus {
    ask(scenario, family, rounds, rping::PORT);
    let limit = Duration::from_secs(120);
    scenario.wait("rping", limit, |hosts| is_over(&hosts[1], number));
    peers(&scenario.sim.hosts[1])[number].clone()
}

fn through(model: Model, seed: u64) {
    let mut scenario = up(seed, model);
    let sizes = [24, 64, 1000, 4096, 65_536];
    for (number, bytes) in sizes.into_iter().enumerate() {
        let family = if number == 2 { Family::V6 } else { Family::V4 };
        let status = whole(&mut scenario, number, family, (7, bytes));
        let expected = PeerStatus {
            messages: false,
            client: true,
            stage: Stage::Ended,
            rounds: 7,
            bytes,
        };
        assert_eq!(status, expected);
    }
    let limit = Duration::from_secs(60);
    scenario.wait("the server's end", limit, |hosts| is_over(&hosts[2], 4));
    for (number, bytes) in sizes.into_iter().enumerate() {
        let expected = PeerStatus {
            messages: false,
            client: false,
            stage: Stage::Ended,
            rounds: 7,
            bytes,
        };
        assert_eq!(peers(&scenario.sim.hosts[2])[number], expected);
    }
    for index in [1, 2] {
        scenario.stop(index);
    }
}

#[test]
fn buffers_of_any_size_are_read_and_written_back_on_tavor() {
    through(Model::Tavor, 31);
}

#[test]
fn buffers_of_any_size_are_read_and_written_back_on_sinai() {
    through(Model::Sinai, 32);
}

#[test]
fn messages_go_both_ways_and_an_end_that_wants_others_says_so() {
    for (model, seed) in [(Model::Tavor, 41), (Model::Arbel, 42), (Model::Sinai, 43)] {
        let mut scenario = up(seed, model);
        let mut number = 0;
        let mut exchange = |served: (u32, u32), asked: (u32, u32)| {
            let hosts = &scenario.sim.hosts;
            hosts[2].remote.tell(Command::MessagesServe(served));
            let to = SocketAddr::new(Family::V4.of(&hosts[2]).unwrap(), messages::PORT);
            hosts[1].remote.tell(Command::Messages(to, asked));
            let limit = Duration::from_secs(60);
            scenario.wait("messages", limit, |hosts| {
                is_over(&hosts[1], number) && is_over(&hosts[2], number)
            });
            number += 1;
            [1, 2].map(|at| peers(&scenario.sim.hosts[at])[number - 1].clone())
        };
        for of in [(1, 16), (16, 1), (10, 100), (16, 65_536)] {
            for (client, end) in [true, false].into_iter().zip(exchange(of, of)) {
                let expected = PeerStatus {
                    messages: true,
                    client,
                    stage: Stage::Ended,
                    rounds: of.0,
                    bytes: of.1,
                };
                assert_eq!(end, expected);
            }
        }
        for end in exchange((10, 100), (10, 99)) {
            assert!(matches!(end.stage, Stage::Failed(_)), "{end}");
        }
    }
}

#[test]
fn who_asks_where_nobody_listens_is_refused() {
    let mut scenario = up(33, Model::Tavor);
    ask(&scenario, Family::V4, (1, 64), 9);
    let limit = Duration::from_secs(60);
    scenario.wait("a refusal", limit, |hosts| is_over(&hosts[1], 0));
    let Stage::Failed(why) = peers(&scenario.sim.hosts[1])[0].stage.clone() else {
        panic!("not refused");
    };
    assert!(why.starts_with("rejected"), "{why}");
    // That is no end of it.
    assert_eq!(whole(&mut scenario, 1, Family::V4, (2, 64)).rounds, 2);
}

#[test]
fn cables_that_lose_cost_time_and_no_data() {
    let mut scenario = up(34, Model::Tavor);
    whole(&mut scenario, 0, Family::V4, (1, 64));
    scenario.sim.set_faults(Faults {
        drop: 5_000,
        ..Faults::default()
    });
    let status = whole(&mut scenario, 1, Family::V4, (20, 65_536));
    assert_eq!((status.stage, status.rounds), (Stage::Ended, 20));
    assert!(scenario.sim.fault_counts().dropped > 0);
}

#[test]
fn a_client_that_was_killed_costs_the_server_an_error_and_is_served_when_it_is_back() {
    let mut scenario = up(35, Model::Tavor);
    ask(&scenario, Family::V4, (1_000_000, 65_536), rping::PORT);
    let limit = Duration::from_secs(60);
    scenario.wait("rounds", limit, |hosts| {
        peers(&hosts[2]).first().is_some_and(|peer| peer.rounds > 5)
    });
    // Nearly all of the time the server reads or writes; whoever only waits for a word learns nothing.
    scenario.sim.power_off(1);
    scenario.wait("an error", limit, |hosts| is_over(&hosts[2], 0));
    let Stage::Failed(why) = peers(&scenario.sim.hosts[2])[0].stage.clone() else {
        panic!("no error");
    };
    assert!(why.starts_with("RetryExceeded of "), "{why}");
    scenario.sim.power_on(1).unwrap();
    scenario.wait_up(limit);
    scenario.settle();
    let mut number = 0;
    // Paths and connections may be those of its last life for a while.
    while whole(&mut scenario, number, Family::V4, (5, 4096)).rounds != 5 {
        number += 1;
        assert!(number < 10, "{}", scenario.log());
        scenario.sim.run_for(Duration::from_secs(1));
    }
}

#[test]
fn a_client_whose_server_dies_is_told_so() {
    let mut scenario = up(36, Model::Tavor);
    ask(&scenario, Family::V4, (1_000_000, 65_536), rping::PORT);
    let limit = Duration::from_secs(60);
    scenario.wait("rounds", limit, |hosts| {
        peers(&hosts[1]).first().is_some_and(|peer| peer.rounds > 5)
    });
    scenario.sim.power_off(2);
    scenario.wait("the end", limit, |hosts| is_over(&hosts[1], 0));
    let Stage::Failed(why) = peers(&scenario.sim.hosts[1])[0].stage.clone() else {
        panic!("no failure");
    };
    let silent = why.starts_with("the peer is silent") || why.starts_with("RetryExceeded");
    assert!(silent, "{why}");
}
