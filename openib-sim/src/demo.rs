//! The demonstration: hosts come up on a fabric, ping each other over IPoIB and send a checked TCP stream.

use crate::ended::{Ended, Stop};
use crate::host::{Command, HostStatus, Phase};
use crate::ip::Transfer;
use crate::sim::{Settings, SimHost, Simulation};
use core::time::Duration;
use core_ib::Instant;
use indicatif::{ProgressBar, ProgressStyle};
use platform_sim::fabric::topology::NodeKind;

pub use crate::options::{IpMode, Options};

fn seconds(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    if seconds >= 1.0 {
        format!("{seconds:.2} s")
    } else if seconds >= 1e-3 {
        format!("{:.2} ms", seconds * 1e3)
    } else {
        format!("{:.2} us", seconds * 1e6)
    }
}

/// A run, step by step, with a progress display.
pub struct Steps {
    bar: ProgressBar,
    ended: Ended,
    verbose: bool,
    real: std::time::Instant,
    started: Instant,
    rows: Vec<(String, Duration, Duration)>,
}

impl Steps {
    fn new(verbose: bool, ended: Ended) -> Self {
        let bar = ProgressBar::new_spinner();
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} ({elapsed})") {
            bar.set_style(style);
        }
        Self {
            bar,
            ended,
            verbose,
            real: std::time::Instant::now(),
            started: Instant(0),
            rows: Vec::new(),
        }
    }

    fn say(&self, text: &str) {
        self.bar.suspend(|| crate::say!("{text}"));
    }

    fn begin(&mut self, now: Instant, name: &str) {
        self.real = std::time::Instant::now();
        self.started = now;
        self.bar.set_message(name.to_string());
    }

    fn end(&mut self, now: Instant, name: &str, detail: &str) {
        let row = (
            name.to_string(),
            now.since(self.started),
            self.real.elapsed(),
        );
        let (virtual_time, real_time) = (seconds(row.1), seconds(row.2));
        self.say(&format!(
            "  {name:<40} {virtual_time:>10} virtual {real_time:>10} real   {detail}"
        ));
        self.rows.push(row);
    }

    /// Runs until `done`, keeping the display alive. Says whether it is, after `limit`.
    fn run(
        &self,
        simulation: &mut Simulation,
        limit: Duration,
        mut done: impl FnMut(&[SimHost]) -> bool,
        show: impl Fn(&[SimHost]) -> String,
    ) -> Result<bool, Stop> {
        let end = simulation.now().after(limit);
        while simulation.now() < end {
            let over = simulation.run_until(Duration::from_millis(20), |hosts| {
                done(hosts) || self.ended.check().is_err()
            });
            if self.verbose {
                for host in &simulation.hosts {
                    for (at, what) in host.remote.take_log() {
                        self.say(&format!(
                            "    {:>12} {}: {what}",
                            seconds(at.since(Instant(0))),
                            host.name
                        ));
                    }
                }
            }
            self.ended.check()?;
            if over {
                return Ok(true);
            }
            if let Some(why) = simulation.hosts.iter().find_map(failed) {
                return Err(why.into());
            }
            self.bar.set_message(show(&simulation.hosts));
            self.bar.tick();
        }
        Ok(false)
    }
}

/// Why a host gave up, if it did.
pub fn failed(host: &SimHost) -> Option<String> {
    host.remote.look(|status| match &status.phase {
        Phase::Failed(why) => Some(format!("{}: {why}", host.name)),
        _ => None,
    })
}

fn count(hosts: &[SimHost], is: impl Fn(&HostStatus) -> bool) -> usize {
    hosts.iter().filter(|host| host.remote.look(&is)).count()
}

/// Runs the demonstration.
pub fn run(options: &Options) -> Result<(), Stop> {
    if options.tun {
        return crate::demo_tun::run(options);
    }
    let began = std::time::Instant::now();
    let ended = Ended::new()?;
    let mut settings = Settings::new(options.topology()?, options.seed);
    settings.model = options.model;
    let canvas = options.canvas()?;
    let capture = options.capture()?;
    settings.capture = capture.clone();
    settings.connected = options.mode == IpMode::Connected;
    if options.pcap_all {
        settings.capture_at = None;
    }
    let mut steps = Steps::new(options.verbose, ended);
    let mut simulation = Simulation::new(settings)?;
    let total = simulation.hosts.len();
    let switches = simulation.topology.of_kind(NodeKind::Switch).count();
    let cables = simulation.topology.cables.len();
    steps.say(&format!(
        "A fabric of {total} hosts with an InfiniHost each, {switches} switches and {cables} cables; seed {}.",
        options.seed
    ));
    let results = show(&mut simulation, &mut steps, options);
    // What was asked for is there however it ended.
    let drawn = canvas.map_or(Ok(()), |canvas| {
        let picture = crate::drawing::draw(&mut simulation);
        steps.bar.suspend(|| canvas.draw(&picture))
    });
    let results = results.and_then(|results| {
        stop(&mut simulation, &mut steps)?;
        Ok(results)
    });
    steps.bar.finish_and_clear();
    if let Ok((echoes, transfers)) = &results {
        summary(&mut simulation, &steps, began.elapsed(), echoes, transfers);
    }
    let captured = options.finish(capture.as_ref());
    results?;
    drawn?;
    Ok(captured?)
}

/// What hosts can do: come up, ping each other, send streams.
fn show(
    simulation: &mut Simulation,
    steps: &mut Steps,
    options: &Options,
) -> Result<(Echoes, Transfers), Stop> {
    bring_up(simulation, steps)?;
    simulation.set_faults(options.faults());
    let echoes = pings(simulation, steps, options.loss > 0.0)?;
    let transfers = streams(simulation, steps, options.mib << 20)?;
    Ok((echoes, transfers))
}

/// From power-on to interfaces that are up.
fn bring_up(simulation: &mut Simulation, steps: &mut Steps) -> Result<(), Stop> {
    let total = simulation.hosts.len();
    simulation.start_all();
    let limit = Duration::from_secs(120);
    type Is = fn(&HostStatus) -> bool;
    let stages: [(&str, Is); 3] = [
        ("drivers bring up their HCAs", |status| {
            status.phase == Phase::Running
        }),
        ("subnet manager makes ports Active", |status| {
            status.port.state == 4
        }),
        ("IPoIB interfaces join and come up", |status| {
            status.interface.is_some_and(|state| state.is_up())
        }),
    ];
    for (name, is) in stages {
        steps.begin(simulation.now(), name);
        let done = steps.run(
            simulation,
            limit,
            |hosts| count(hosts, is) == hosts.len(),
            |hosts| format!("{name}: {} of {}", count(hosts, is), hosts.len()),
        )?;
        if !done {
            return Err(Stop::Failed(format!(
                "{name}: not all of {total} after {limit:?}\n{}",
                simulation.describe()
            )));
        }
        steps.end(simulation.now(), name, &format!("{total} of {total}"));
    }
    // The subnet manager gathers joins before it writes the multicast tables, and each host waits a second for somebody
    // who has its IPv6 addresses already (RFC 4862).
    let name = "duplicate IPv6 addresses are looked for";
    steps.begin(simulation.now(), name);
    simulation.run_for(Duration::from_millis(1200));
    steps.end(simulation.now(), name, "");
    Ok(())
}

/// Transfers by name.
type Transfers = Vec<(String, Transfer)>;

/// Echoes sent and answered, and the mean round trip.
type Echoes = Vec<(String, usize, usize, Duration)>;

/// Every host pings the one after it, the last the first, in both families.
fn pings(simulation: &mut Simulation, steps: &mut Steps, lossy: bool) -> Result<Echoes, Stop> {
    let total = simulation.hosts.len();
    let mut results = Vec::new();
    type Address = fn(&SimHost) -> Option<std::net::IpAddr>;
    let families: [(&str, Address); 2] = [("IPv4", SimHost::ipv4), ("IPv6", SimHost::ipv6)];
    for (family, address) in families {
        let name = format!("ping over {family}, each host its next");
        steps.begin(simulation.now(), &name);
        for index in 0..total {
            let peer = simulation.hosts.get((index + 1) % total).and_then(address);
            let (Some(peer), Some(host)) = (peer, simulation.hosts.get(index)) else {
                continue;
            };
            host.remote.take_echoes();
            host.remote.tell(Command::Ping {
                peer,
                count: 5,
                interval: Duration::from_millis(10),
                patience: Duration::from_secs(2),
            });
        }
        let all =
            |hosts: &[SimHost]| count(hosts, |status| status.echoes.len() >= 5) == hosts.len();
        let done = steps.run(simulation, Duration::from_secs(20), all, |_| name.clone())?;
        let echoes: Vec<_> = simulation
            .hosts
            .iter()
            .flat_map(|host| host.remote.take_echoes())
            .collect();
        let times: Vec<_> = echoes.iter().filter_map(|echo| echo.round_trip).collect();
        let mean = times.iter().sum::<Duration>() / u32::try_from(times.len().max(1)).unwrap_or(1);
        let detail = format!(
            "{} of {} answered, {} mean",
            times.len(),
            5 * total,
            seconds(mean)
        );
        steps.end(simulation.now(), &name, &detail);
        if !done || (!lossy && times.len() < 5 * total) {
            return Err(Stop::Failed(format!("{name}: {detail}")));
        }
        results.push((name, times.len(), 5 * total, mean));
    }
    Ok(results)
}

/// The first host sends to the last, and the last to the first.
fn streams(simulation: &mut Simulation, steps: &mut Steps, length: u64) -> Result<Transfers, Stop> {
    let last = simulation.hosts.len() - 1;
    let mut results = Vec::new();
    for (number, (from, to)) in [(0, last), (last, 0)].into_iter().enumerate() {
        let (Some(sender), Some(receiver)) = (simulation.hosts.get(from), simulation.hosts.get(to))
        else {
            continue;
        };
        let name = format!(
            "TCP, {} MiB, {} to {}",
            length >> 20,
            sender.name,
            receiver.name
        );
        let peer = if number == 0 {
            receiver.ipv4()
        } else {
            receiver.ipv6()
        };
        let Some(peer) = peer else { continue };
        let (port, expected) = (5001, length);
        steps.begin(simulation.now(), &name);
        receiver.remote.tell(Command::Listen { port, expected });
        sender.remote.tell(Command::Send { peer, port, length });
        let over = |status: &HostStatus| {
            let transfer = status.transfers.get(number);
            transfer.is_some_and(|transfer| transfer.complete || transfer.failed)
        };
        let done = steps.run(
            simulation,
            Duration::from_secs(600),
            |hosts| {
                [from, to]
                    .iter()
                    .all(|index| hosts.get(*index).is_some_and(|host| host.remote.look(over)))
            },
            |hosts| {
                let bytes = hosts.get(to).map_or(0, |host| {
                    host.remote.look(|status| {
                        status
                            .transfers
                            .get(number)
                            .map_or(0, |transfer| transfer.bytes)
                    })
                });
                format!("{name}: {} %", bytes * 100 / length.max(1))
            },
        )?;
        let transfer = |index: usize| {
            let host = simulation.hosts.get(index);
            host.and_then(|host| {
                host.remote
                    .look(|status| status.transfers.get(number).copied())
            })
            .unwrap_or_default()
        };
        let (sent, received) = (transfer(from), transfer(to));
        let same = sent.checksum == received.checksum && received.bytes == length;
        let time = received
            .span
            .map_or(Duration::ZERO, |(first, last)| last.since(first));
        let rate = received.bytes as f64 * 8.0 / time.as_secs_f64().max(1e-9) / 1e9;
        let detail = if received.bytes == length {
            let judged = if same { "right" } else { "WRONG" };
            format!("CRC {:08x} {judged}, {rate:.2} Gbit/s", received.checksum)
        } else {
            format!("{} of {length} bytes arrived", received.bytes)
        };
        steps.end(simulation.now(), &name, &detail);
        if !done || !same || !received.complete {
            return Err(Stop::Failed(format!("{name}: {detail}")));
        }
        results.push((name, received));
    }
    Ok(results)
}

fn stop(simulation: &mut Simulation, steps: &mut Steps) -> Result<(), Stop> {
    let name = "hosts close their HCAs";
    steps.begin(simulation.now(), name);
    for host in &simulation.hosts {
        host.remote.tell(Command::Stop);
    }
    let stopped =
        |hosts: &[SimHost]| count(hosts, |status| status.phase == Phase::Stopped) == hosts.len();
    let done = steps.run(simulation, Duration::from_secs(60), stopped, |_| {
        name.into()
    })?;
    let mut leaks = 0;
    for host in &simulation.hosts {
        let (dma, tables) = simulation.world.platform(host.id).memory_in_use();
        leaks += dma + tables;
    }
    steps.end(
        simulation.now(),
        name,
        &format!("{leaks} bytes left behind"),
    );
    if done && leaks == 0 {
        Ok(())
    } else {
        Err(Stop::Failed(format!(
            "{name}: {leaks} bytes left behind\n{}",
            simulation.describe()
        )))
    }
}

fn summary(
    simulation: &mut Simulation,
    steps: &Steps,
    real: Duration,
    echoes: &Echoes,
    transfers: &Transfers,
) {
    let statistics = simulation.world.statistics();
    let faults = simulation.fault_counts();
    let dropped: u64 = simulation
        .hosts
        .iter()
        .map(|host| host.remote.look(|status| status.packets_dropped))
        .sum();
    let ip: u64 = simulation
        .hosts
        .iter()
        .map(|host| host.remote.look(|status| status.packets.0))
        .sum();
    crate::say!("");
    crate::say!("summary");
    let row = |name: &str, value: String| crate::say!("  {name:<40} {value:>14}");
    row("time, virtual", seconds(simulation.now().since(Instant(0))));
    row("time, real", seconds(real));
    row("steps", steps.rows.len().to_string());
    row("packets sent by HCAs", statistics.packets_sent.to_string());
    row(
        "packets received by HCAs",
        statistics.packets_received.to_string(),
    );
    row("IP packets sent", ip.to_string());
    row("IP packets not taken", dropped.to_string());
    row("packets lost by faults", faults.dropped.to_string());
    row(
        "register reads / writes",
        format!(
            "{} / {}",
            statistics.register_reads, statistics.register_writes
        ),
    );
    row("interrupts", statistics.interrupts.to_string());
    for (name, answered, sent, mean) in echoes {
        row(name, format!("{answered}/{sent}, {}", seconds(*mean)));
    }
    for (name, transfer) in transfers {
        row(name, format!("CRC {:08x}", transfer.checksum));
    }
    row(
        "fingerprint of the run",
        format!("{:016x}", simulation.world.fingerprint()),
    );
    for host in &simulation.hosts {
        let ledger = simulation
            .world
            .with_function(host.id, |function, _| function.ledger().to_string());
        if let Some(ledger) = ledger.filter(|ledger| !ledger.trim().is_empty()) {
            crate::say!(
                "  {} used what the model does not act on:\n{ledger}",
                host.name
            );
        }
    }
}
