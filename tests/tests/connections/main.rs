//! Connections set up by the communication manager, between hosts of ours on Tavor models, through two switches: data
//! both ways, the end of a connection, refusals, hosts that die and return, and cables that lose.

mod node;

use core::time::Duration;
use core_ib::Gid;
use core_ib::wire::mad::{RejReason, ServiceId};
use ib_cm::Event;
use node::{ECHO, reason, with_node};
use openib_sim::model::Model;
use openib_sim::sim::{Settings, Simulation, hca_config};
use platform_sim::fabric::Faults;
use platform_sim::fabric::topology::build;
use platform_sim::hca::infinihost::InfiniHost;
use platform_sim::machine::Task;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const LIMIT: Duration = Duration::from_secs(300);

/// Four hosts on two switches; the first has the subnet manager, and runs.
fn fabric(seed: u64) -> Simulation {
    let mut settings = Settings::new(build::line(2, 2), seed);
    settings.ip = false;
    settings.sweep_interval = Duration::from_secs(1);
    let mut sim = Simulation::new(settings).unwrap();
    sim.start(0).unwrap();
    sim
}

fn gid(sim: &Simulation, index: usize) -> Gid {
    let config = hca_config(&sim.topology, sim.hosts[index].node, Model::Tavor).unwrap();
    Gid::unicast(Gid::DEFAULT_PREFIX, config.port_guids[0])
}

/// A host that echoes until it is told to stop.
fn server(sim: &mut Simulation, index: usize, seed: u32) -> (Task<Vec<Event>>, Arc<AtomicBool>) {
    let stop = Arc::new(AtomicBool::new(false));
    let told = stop.clone();
    let task = sim
        .world
        .spawn(sim.hosts[index].id, "server", move |machine| {
            with_node(machine, seed, |node| {
                node.wait_active();
                node.serve(&told, Duration::from_secs(30))
            })
        });
    (task, stop)
}

fn finish<T>(sim: &mut Simulation, task: Task<T>) -> T {
    let done = sim.world.finish_within(task, LIMIT);
    done.unwrap_or_else(|stuck| panic!("{stuck}"))
}

/// A machine that lost power and is on again, with nobody on it.
fn restart(sim: &mut Simulation, index: usize) {
    let config = hca_config(&sim.topology, sim.hosts[index].node, Model::Tavor).unwrap();
    let id = sim.hosts[index].id;
    sim.world.power_off(id);
    sim.world.run_for(Duration::from_millis(50));
    sim.world.power_on(id, Box::new(InfiniHost::new(config)));
}

#[test]
fn data_goes_both_ways_and_both_ends_are_told_of_the_end() {
    let mut sim = fabric(1);
    let (server, stop) = server(&mut sim, 3, 0x1111);
    let to = gid(&sim, 3);
    let client = sim.world.spawn(sim.hosts[1].id, "client", move |machine| {
        with_node(machine, 0x2222, |node| {
            node.wait_active();
            let path = node.path_to(to);
            let mut conns = Vec::new();
            for _ in 0..3 {
                conns.push(node.connect(ECHO, path).unwrap());
            }
            for conn in &conns {
                node.echo(*conn, 5).unwrap();
            }
            // Nobody listens there.
            let refused = node.connect(ServiceId::sdp(9), path).unwrap_err();
            assert_eq!(reason(&refused), Some(RejReason::INVALID_SERVICE_ID));
            for conn in conns {
                node.disconnect(conn);
            }
            node.connections()
        })
    });
    assert_eq!(finish(&mut sim, client), 0);
    stop.store(true, Ordering::Release);
    let heard = finish(&mut sim, server);
    let count = |is: fn(&Event) -> bool| heard.iter().filter(|event| is(event)).count();
    assert_eq!(count(|event| matches!(event, Event::Request { .. })), 3);
    assert_eq!(count(|event| matches!(event, Event::Established { .. })), 3);
    assert_eq!(
        count(|event| matches!(event, Event::Disconnecting { .. })),
        3
    );
    assert_eq!(count(|event| matches!(event, Event::Gone { .. })), 3);
    for index in [1, 3] {
        sim.world.check_leaks(sim.hosts[index].id);
    }
}

#[test]
fn a_client_that_was_killed_is_stale_at_first_and_connects_again() {
    let mut sim = fabric(2);
    let (server, stop) = server(&mut sim, 3, 0x1111);
    let to = gid(&sim, 3);
    let id = sim.hosts[1].id;
    let ready = Arc::new(AtomicBool::new(false));
    let says = ready.clone();
    drop(sim.world.spawn(id, "client", move |machine| {
        with_node(machine, 0x2222, |node| {
            node.wait_active();
            let path = node.path_to(to);
            let conn = node.connect(ECHO, path).unwrap();
            node.echo(conn, 2).unwrap();
            says.store(true, Ordering::Release);
            node.pause(Duration::from_secs(1000));
        });
    }));
    let seen = ready.clone();
    sim.world.run_while(LIMIT, || !seen.load(Ordering::Acquire));
    assert!(ready.load(Ordering::Acquire));
    restart(&mut sim, 1);
    // Another life, other IDs, and QPs of the same numbers.
    let client = sim.world.spawn(id, "client", move |machine| {
        with_node(machine, 0x3333, |node| {
            node.wait_active();
            let path = node.path_to(to);
            let first = node.connect(ECHO, path).unwrap_err();
            let mut tries = 1;
            let conn = loop {
                tries += 1;
                if let Ok(conn) = node.connect(ECHO, path) {
                    break conn;
                }
                node.pause(Duration::from_millis(20));
            };
            node.echo(conn, 3).unwrap();
            node.disconnect(conn);
            (reason(&first), tries)
        })
    });
    let (first, tries) = finish(&mut sim, client);
    assert_eq!(first, Some(RejReason::STALE_CONNECTION));
    assert!(tries < 50, "{tries}");
    stop.store(true, Ordering::Release);
    let heard = finish(&mut sim, server);
    let why = ib_cm::Failure::Stale;
    let stale = |event: &Event| matches!(event, Event::Failed { why: found, .. } if *found == why);
    assert!(heard.iter().any(stale), "{heard:?}");
}

#[test]
fn a_server_that_was_killed_costs_the_connection_and_takes_another_when_it_is_back() {
    let mut sim = fabric(3);
    let (first, _) = server(&mut sim, 3, 0x1111);
    drop(first);
    let to = gid(&sim, 3);
    let step = Arc::new(AtomicBool::new(false));
    let says = step.clone();
    let client = sim.world.spawn(sim.hosts[1].id, "client", move |machine| {
        with_node(machine, 0x2222, |node| {
            node.wait_active();
            let path = node.path_to(to);
            let conn = node.connect(ECHO, path).unwrap();
            node.echo(conn, 2).unwrap();
            says.store(true, Ordering::Release);
            node.pause(Duration::from_millis(20));
            let status = node.echo(conn, 1).unwrap_err();
            node.disconnect(conn);
            let mut tries = 0;
            let conn = loop {
                tries += 1;
                assert!(tries < 50);
                if let Ok(conn) = node.connect(ECHO, path) {
                    break conn;
                }
                node.pause(Duration::from_millis(200));
            };
            node.echo(conn, 2).unwrap();
            node.disconnect(conn);
            status
        })
    });
    let seen = step.clone();
    sim.world.run_while(LIMIT, || !seen.load(Ordering::Acquire));
    assert!(step.load(Ordering::Acquire));
    restart(&mut sim, 3);
    let (second, stop) = server(&mut sim, 3, 0x4444);
    let status = finish(&mut sim, client);
    assert_eq!(status, core_ib::verbs::WcStatus::RetryExceeded);
    stop.store(true, Ordering::Release);
    finish(&mut sim, second);
}

#[test]
fn connections_come_and_go_over_cables_that_lose_and_repeat() {
    let mut sim = fabric(4);
    let (server, stop) = server(&mut sim, 3, 0x1111);
    sim.world.run_for(Duration::from_secs(3));
    sim.set_faults(Faults {
        drop: 50_000,
        duplicate: 50_000,
        ..Faults::default()
    });
    let to = gid(&sim, 3);
    let client = sim.world.spawn(sim.hosts[1].id, "client", move |machine| {
        with_node(machine, 0x2222, |node| {
            node.wait_active();
            let path = node.path_to(to);
            for _ in 0..6 {
                let conn = node.connect(ECHO, path).unwrap();
                node.echo(conn, 4).unwrap();
                node.disconnect(conn);
            }
            node.connections()
        })
    });
    assert_eq!(finish(&mut sim, client), 0);
    assert!(sim.fault_counts().dropped > 20);
    stop.store(true, Ordering::Release);
    finish(&mut sim, server);
}
