//! The demonstration with real interfaces: a TUN device in a network namespace for each host, in real time.

use crate::demo::failed;
use crate::ended::{Ended, Stop};
use crate::options::IpMode;
use crate::options::Options;
use crate::say;
use crate::sim::{Settings, Simulation};
use crate::tun::{Child, Namespace};
use core::time::Duration;
use core_ib::Instant;
use platform_sim::fabric::topology::PortRef;
use platform_sim::machine::Mode;

/// Runs it.
pub fn run(options: &Options) -> Result<(), Stop> {
    // First of all: what is made from here on is taken away again, however it ends.
    let ended = Ended::new()?;
    let mut settings = Settings::new(options.topology()?, options.seed);
    settings.model = options.model;
    let capture = options.capture()?;
    settings.capture = capture.clone();
    settings.connected = options.mode == IpMode::Connected;
    if options.pcap_all {
        settings.capture_at = None;
    }
    settings.mode = Mode::RealTime;
    let mut simulation = Simulation::new(settings)?;
    let result = show(&mut simulation, options, &ended);
    let counts = simulation.fault_counts();
    let statistics = simulation.world.statistics();
    say!(
        "packets: {} sent by HCAs, {} received, {} lost by faults",
        statistics.packets_sent,
        statistics.packets_received,
        counts.dropped
    );
    if options.verbose {
        say!("{statistics:?}");
    }
    let captured = options.finish(capture.as_ref());
    result?;
    Ok(captured?)
}

/// From the first namespace to the end of the command.
fn show(simulation: &mut Simulation, options: &Options, ended: &Ended) -> Result<(), Stop> {
    let total = simulation.hosts.len();
    // Dropped at the end, and the namespaces with it.
    let mut namespaces = Vec::new();
    for index in 0..total {
        ended.check()?;
        let name = Namespace::of_host(index);
        let problem =
            |error| format!("network namespace {name}: {error} (this takes root and `ip`)");
        let namespace = Namespace::new(&name).map_err(problem)?;
        let Some(host) = simulation.hosts.get(index) else {
            continue;
        };
        let tun = namespace
            .burst_tun("ib0", host.spec.mtu(), &host.spec.addresses)
            .map_err(problem)?;
        namespaces.push(namespace);
        simulation.start_with_tun(index, tun)?;
    }
    say!(
        "{total} hosts, each with an interface ib0 in a network namespace of its own; coming up …"
    );
    bring_up(simulation, options, ended)?;
    say!("{}", simulation.describe().trim_end());
    simulation.set_faults(options.faults());
    let result = serve(simulation, options, &namespaces, ended);
    let unheard = namespaces
        .iter()
        .map(|namespace| namespace.not_taken("ib0"));
    let unheard: u64 = unheard.map(|counter| counter.unwrap_or_default()).sum();
    let hosts = simulation.hosts.iter();
    let refused: u64 = hosts
        .map(|host| host.remote.look(|it| it.packets_dropped))
        .sum();
    say!(
        "IP packets: {unheard} that the system sent found a full queue, {refused} were not taken by an interface"
    );
    result
}

/// Runs until all interfaces are up.
fn bring_up(simulation: &mut Simulation, options: &Options, ended: &Ended) -> Result<(), Stop> {
    let limit = simulation.now().after(Duration::from_secs(60));
    loop {
        let up = simulation.run_until(Duration::from_millis(100), Simulation::all_up);
        notes(simulation, options);
        ended.check()?;
        if up {
            return Ok(());
        }
        if let Some(why) = simulation.hosts.iter().find_map(failed) {
            return Err(why.into());
        }
        if simulation.now() >= limit {
            let state = simulation.describe();
            return Err(Stop::Failed(format!(
                "not all interfaces came up\n{}",
                state.trim_end()
            )));
        }
    }
}

/// Shows what the hosts noted, if that is asked for.
fn notes(simulation: &Simulation, options: &Options) {
    for host in simulation.hosts.iter().filter(|_| options.verbose) {
        for (at, what) in host.remote.take_log() {
            let seconds = at.since(Instant(0)).as_secs_f64();
            say!("    {seconds:>10.3} s {}: {what}", host.name);
        }
    }
}

fn serve(
    simulation: &mut Simulation,
    options: &Options,
    namespaces: &[Namespace],
    ended: &Ended,
) -> Result<(), Stop> {
    let (Some(host), Some(peer), Some(here), Some(there)) = (
        simulation.hosts.first(),
        simulation.hosts.get(1),
        namespaces.first(),
        namespaces.get(1),
    ) else {
        return Ok(());
    };
    let port = PortRef::new(host.node, host.spec.port);
    let addresses = (peer.ipv4(), peer.ipv6());
    if options.command.is_empty() {
        let peer = addresses.0.map(|address| address.to_string());
        say!(
            "try:  ip netns exec {} ping {}      (Ctrl-C ends)",
            here.name(),
            peer.unwrap_or_default()
        );
        // What ends it is asked for, unless it is that nobody reads this.
        while ended.check().is_ok() {
            simulation.run_for(Duration::from_millis(100));
            notes(simulation, options);
        }
        return match ended.signal() {
            Some(_) => Ok(()),
            None => ended.check(),
        };
    }
    let child = Child::start(&options.command, here, there, addresses)?;
    watch(simulation, child, options, port, ended)
}

/// Runs the world until the command ends, with a flap in the middle if that is asked for.
fn watch(
    simulation: &mut Simulation,
    mut child: Child,
    options: &Options,
    port: PortRef,
    ended: &Ended,
) -> Result<(), Stop> {
    let began = std::time::Instant::now();
    // Still to come: pull, put back.
    let mut flap: Vec<(Duration, bool)> = options
        .flap
        .map(|at| vec![(at + Duration::from_secs(1), true), (at, false)])
        .unwrap_or_default();
    loop {
        simulation.run_for(Duration::from_millis(20));
        notes(simulation, options);
        if let Some((at, plugged)) = flap.last().copied()
            && began.elapsed() >= at
        {
            flap.pop();
            say!(
                "cable of the first host {}",
                if plugged { "put back" } else { "pulled" }
            );
            simulation.plug(port, plugged);
        }
        match child.result(ended) {
            None => {}
            Some(Ok(())) => return Ok(()),
            Some(Err(Stop::Failed(why))) => {
                let state = simulation.describe();
                return Err(Stop::Failed(format!("{why}\n{}", state.trim_end())));
            }
            Some(Err(stop)) => return Err(stop),
        }
    }
}
