//! What crosses the fabric: pings and TCP streams over IPoIB, in virtual and in real time.

use super::table::{Cell, Row};
use crate::host::{Command, HostStatus};
use crate::ip::Transfer;
use crate::sim::{Settings, SimHost, Simulation};
use core::time::Duration;
use platform_sim::fabric::topology::build;
use platform_sim::machine::Mode;

/// Two hosts on a switch, their interfaces up.
fn two_hosts(mode: Mode) -> Result<Simulation, String> {
    let mut settings = Settings::new(build::star(2), 1);
    settings.mode = mode;
    let mut simulation = Simulation::new(settings)?;
    simulation.start_all();
    if !simulation.run_until(Duration::from_secs(60), Simulation::all_up) {
        return Err(format!("not up:\n{}", simulation.describe()));
    }
    // The multicast tables are written, and nobody has the hosts' IPv6 addresses (RFC 4862).
    simulation.run_for(Duration::from_millis(1500));
    Ok(simulation)
}

fn millis(time: Duration) -> Cell {
    Cell::Text(format!("{:.3} ms", time.as_secs_f64() * 1e3))
}

/// Round trips of pings in real time: the median, and the nearest of each tail.
pub fn ping() -> Result<Vec<Row>, String> {
    const COUNT: u16 = 300;
    [("real", Mode::RealTime), ("virtual", Mode::Virtual)]
        .into_iter()
        .map(|(name, mode)| {
            let mut simulation = two_hosts(mode)?;
            let [first, second] = simulation.hosts.as_slice() else {
                return Err("two hosts".into());
            };
            let peer = second.ipv4().ok_or("no address")?;
            first.remote.tell(Command::Ping {
                peer,
                count: COUNT,
                interval: Duration::from_millis(5),
                patience: Duration::from_secs(2),
            });
            let all = |status: &HostStatus| status.echoes.len() >= usize::from(COUNT);
            let done = |hosts: &[SimHost]| hosts.iter().any(|host| host.remote.look(all));
            let _ = simulation.run_until(Duration::from_secs(30), done);
            let first = simulation.hosts.first().ok_or("no host")?;
            let echoes = first.remote.take_echoes();
            let mut times: Vec<_> = echoes.iter().filter_map(|echo| echo.round_trip).collect();
            times.sort();
            let at = |percent: usize| {
                let index = (times.len() * percent / 100).min(times.len().saturating_sub(1));
                times.get(index).map_or(Cell::None, |&time| millis(time))
            };
            let answered = Cell::Text(format!("{} of {COUNT}", times.len()));
            Ok(Row {
                name: format!("ping, 64 B, IPv4, {name} time"),
                cells: vec![answered, at(1), at(50), at(99)],
            })
        })
        .collect()
}

/// Goodput of a TCP stream.
pub fn tcp() -> Result<Vec<Row>, String> {
    const LENGTH: u64 = 16 << 20;
    [("virtual", Mode::Virtual), ("real", Mode::RealTime)]
        .into_iter()
        .map(|(name, mode)| {
            let mut simulation = two_hosts(mode)?;
            let [sender, receiver] = simulation.hosts.as_slice() else {
                return Err("two hosts".into());
            };
            let peer = receiver.ipv4().ok_or("no address")?;
            let port = 5001;
            let before = packets(&simulation);
            receiver.remote.tell(Command::Listen {
                port,
                expected: LENGTH,
            });
            sender.remote.tell(Command::Send {
                peer,
                port,
                length: LENGTH,
            });
            let (real, processor) = (std::time::Instant::now(), super::processor_time());
            let transfer = |host: &SimHost| -> Option<Transfer> {
                let look = |status: &HostStatus| status.transfers.first().copied();
                host.remote.look(look)
            };
            let over = |host: &SimHost| {
                transfer(host).is_some_and(|transfer| transfer.complete || transfer.failed)
            };
            let done = |hosts: &[SimHost]| hosts.iter().all(over);
            let _ = simulation.run_until(Duration::from_secs(300), done);
            let real = real.elapsed().as_secs_f64();
            let processor = super::processor_since(processor);
            let packets = packets(&simulation).saturating_sub(before);
            let received = simulation.hosts.get(1).and_then(transfer);
            let received = received.ok_or("no transfer")?;
            if !received.complete || received.bytes != LENGTH {
                return Err(format!("the stream did not arrive: {received:?}"));
            }
            let own = received.span.map_or(Duration::ZERO, |(a, b)| b.since(a));
            let rate = |seconds: f64| LENGTH as f64 * 8.0 / seconds.max(1e-9) / 1e6;
            Ok(Row {
                name: format!("TCP over IPv4, 16 MiB, {name} time"),
                cells: vec![
                    Cell::Text(format!("{:.0} Mbit/s", rate(own.as_secs_f64()))),
                    Cell::Text(format!("{:.0} Mbit/s", rate(real))),
                    processor.map_or(Cell::None, |time| {
                        Cell::Text(format!("{:.0} Mbit/s", rate(time)))
                    }),
                    processor.map_or(Cell::None, |time| {
                        Cell::Text(format!("{:.0} /s", packets as f64 / time.max(1e-9)))
                    }),
                ],
            })
        })
        .collect()
}

/// IP packets that all interfaces took so far.
fn packets(simulation: &Simulation) -> u64 {
    let sent = |host: &SimHost| host.remote.look(|status| status.packets.0);
    simulation.hosts.iter().map(sent).sum()
}
