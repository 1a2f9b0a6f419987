//! The pingpongs of ours, either end, over IPoIB and over QPs that they tell each other of: each transport, small and large,
//! ends that nobody answers, and ends that die.

use core::time::Duration;
use openib_sim::host::Command;
use openib_sim::model::Model;
use openib_sim::peer::Stage;
use openib_sim::peer::pingpong::{Kind, PORT};
use openib_sim::peer::play::{PlayStatus, Wish};
use openib_sim::sim::{Settings, SimHost};
use openib_tests::scenario::{Family, Scenario};
use platform_sim::fabric::Faults;
use platform_sim::fabric::topology::build;
use std::net::SocketAddr;

const LIMIT: Duration = Duration::from_secs(120);

/// Three hosts; the last one serves.
fn up(seed: u64, model: Model) -> Scenario {
    let mut settings = Settings::new(build::star(3), seed);
    settings.model = model;
    let mut scenario = Scenario::new(settings);
    scenario.sim.start_all();
    scenario.wait_up(Duration::from_secs(60));
    scenario.settle();
    scenario
}

fn wish(scenario: &Scenario, (kind, count, size): (Kind, u32, u32), client: bool) -> Wish {
    let server = Family::V4.of(&scenario.sim.hosts[2]).unwrap();
    Wish {
        kind,
        count,
        size,
        peer: client.then(|| SocketAddr::new(server, PORT)),
    }
}

fn last(host: &SimHost) -> Option<PlayStatus> {
    host.remote.look(|status| status.played.last().cloned())
}

fn is_over(host: &SimHost, number: usize) -> bool {
    let over = |play: &PlayStatus| play.stage.is_over();
    host.remote
        .look(|status| status.played.get(number).is_some_and(over))
}

fn serve(scenario: &mut Scenario, what: (Kind, u32, u32)) -> usize {
    let host = &scenario.sim.hosts[2];
    let number = host.remote.look(|status| status.played.len());
    host.remote.tell(Command::Play(wish(scenario, what, false)));
    let there = |hosts: &[SimHost]| hosts[2].remote.look(|status| status.played.len() > number);
    scenario.wait("a server", LIMIT, there);
    number
}

fn ask(scenario: &Scenario, what: (Kind, u32, u32)) -> usize {
    let host = &scenario.sim.hosts[1];
    let number = host.remote.look(|status| status.played.len());
    host.remote.tell(Command::Play(wish(scenario, what, true)));
    number
}

/// Plays, and what both ends came to.
fn whole(scenario: &mut Scenario, what: (Kind, u32, u32)) -> [PlayStatus; 2] {
    let server = serve(scenario, what);
    let client = ask(scenario, what);
    scenario.wait("the ends", LIMIT, |hosts| {
        is_over(&hosts[1], client) && is_over(&hosts[2], server)
    });
    [1, 2].map(|host: usize| last(&scenario.sim.hosts[host]).unwrap())
}

fn through(model: Model, seed: u64) {
    let mut scenario = up(seed, model);
    for kind in [Kind::Rc, Kind::Uc, Kind::Ud, Kind::Srq] {
        for size in [1, 1000, 65_536] {
            let size = size.min(kind.largest());
            for end in whole(&mut scenario, (kind, 20, size)) {
                assert_eq!(end.stage, Stage::Ended, "{end}");
                assert!(end.sent >= 20 && end.checked >= 20, "{end}");
                assert!(kind == Kind::Srq || end.checked == 20, "{end}");
            }
        }
    }
    for index in [1, 2] {
        scenario.stop(index);
    }
}

#[test]
fn messages_of_each_transport_come_as_they_went_on_tavor() {
    through(Model::Tavor, 41);
}

#[test]
fn messages_of_each_transport_come_as_they_went_on_arbel() {
    through(Model::Arbel, 42);
}

#[test]
fn messages_of_each_transport_come_as_they_went_on_sinai() {
    through(Model::Sinai, 43);
}

#[test]
fn cables_that_lose_cost_a_reliable_connection_time_and_no_data() {
    let mut scenario = up(44, Model::Tavor);
    whole(&mut scenario, (Kind::Rc, 2, 64));
    scenario.sim.set_faults(Faults {
        drop: 5_000,
        ..Faults::default()
    });
    for end in whole(&mut scenario, (Kind::Rc, 30, 65_536)) {
        assert_eq!((end.stage, end.checked), (Stage::Ended, 30));
    }
    assert!(scenario.sim.fault_counts().dropped > 0);
}

#[test]
fn who_asks_where_nobody_serves_is_told() {
    let mut scenario = up(45, Model::Tavor);
    let client = ask(&scenario, (Kind::Rc, 2, 64));
    scenario.wait("a refusal", LIMIT, |hosts| is_over(&hosts[1], client));
    let end = last(&scenario.sim.hosts[1]).unwrap();
    let expected = Stage::Failed("the peer takes no connection".into());
    assert_eq!(end.stage, expected);
    // That is no end of it.
    let ends = whole(&mut scenario, (Kind::Rc, 2, 64));
    assert!(ends.iter().all(|end| end.stage == Stage::Ended));
}

#[test]
fn an_end_whose_peer_dies_is_told_and_the_next_client_is_served() {
    let mut scenario = up(46, Model::Tavor);
    let server = serve(&mut scenario, (Kind::Uc, 1_000_000, 4096));
    ask(&scenario, (Kind::Uc, 1_000_000, 4096));
    scenario.wait("messages", LIMIT, |hosts| {
        last(&hosts[2]).is_some_and(|end| end.checked > 5)
    });
    // Whoever waits for a message on an unreliable connection learns nothing from the HCA.
    scenario.sim.power_off(1);
    scenario.wait("the end", LIMIT, |hosts| is_over(&hosts[2], server));
    let Stage::Failed(why) = last(&scenario.sim.hosts[2]).unwrap().stage else {
        panic!("no failure");
    };
    assert!(why.starts_with("the peer is silent"), "{why}");
    scenario.sim.power_on(1).unwrap();
    scenario.wait_up(LIMIT);
    scenario.settle();
    let server = serve(&mut scenario, (Kind::Uc, 10, 4096));
    // Its address may be that of its last life for a while.
    for _ in 0..10 {
        let client = ask(&scenario, (Kind::Uc, 10, 4096));
        scenario.wait("the end", LIMIT, |hosts| is_over(&hosts[1], client));
        if last(&scenario.sim.hosts[1]).unwrap().stage == Stage::Ended {
            break;
        }
    }
    scenario.wait("the server's end", LIMIT, |hosts| {
        is_over(&hosts[2], server)
    });
    let end = last(&scenario.sim.hosts[2]).unwrap();
    assert_eq!((end.stage, end.checked), (Stage::Ended, 10));
}

#[test]
fn atomics_are_done_once_each_and_both_ends_see_it() {
    for (model, seed) in [(Model::Tavor, 47), (Model::Sinai, 48)] {
        let mut scenario = up(seed, model);
        let server = serve(&mut scenario, (Kind::Atomic, 1, 8));
        let client = ask(&scenario, (Kind::Atomic, 30, 8));
        scenario.wait("the client's end", LIMIT, |hosts| {
            is_over(&hosts[1], client)
        });
        let end = last(&scenario.sim.hosts[1]).unwrap();
        assert_eq!(
            (end.stage.clone(), end.checked),
            (Stage::Ended, 30),
            "{end}"
        );
        // Ours adds other numbers than the tool: the sum is not the count.
        scenario.wait("the server's", LIMIT, |hosts| is_over(&hosts[2], server));
        let end = last(&scenario.sim.hosts[2]).unwrap();
        let Stage::Failed(why) = end.stage else {
            panic!("no failure");
        };
        assert!(why.ends_with("were added, and 1 were to be"), "{why}");
    }
}

#[test]
fn memory_is_read_as_it_was_and_written_all_over() {
    for (model, seed) in [(Model::Tavor, 49), (Model::Arbel, 50)] {
        let mut scenario = up(seed, model);
        for (kind, checked) in [(Kind::Read, 30), (Kind::Write, 0)] {
            for size in [1, 4097, 1 << 20] {
                let [client, server] = whole(&mut scenario, (kind, 30, size));
                let ended = [&server, &client].map(|end| end.stage.clone());
                assert_eq!(ended, [Stage::Ended, Stage::Ended], "{server}, {client}");
                assert_eq!([server.sent, server.checked], [0, 30], "{server}");
                assert_eq!([client.sent, client.checked], [30, checked], "{client}");
            }
        }
        // A server that was to be written more often says so.
        let server = serve(&mut scenario, (Kind::Write, 31, 64));
        ask(&scenario, (Kind::Write, 30, 64));
        scenario.wait("the server's end", LIMIT, |hosts| {
            is_over(&hosts[2], server)
        });
        let end = last(&scenario.sim.hosts[2]).unwrap();
        let why = "30 operations, and 31 were to be".to_string();
        assert_eq!(end.stage, Stage::Failed(why));
    }
}
