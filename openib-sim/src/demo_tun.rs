//! The demonstration with real interfaces: a TUN device in a network namespace for each host, in real time.

use crate::demo::Options;
use crate::sim::{Settings, Simulation};
use crate::tun::{Child, Ended, MTU, Namespace};
use core::time::Duration;
use platform_sim::fabric::Capture;
use platform_sim::fabric::topology::PortRef;
use platform_sim::machine::Mode;
use std::fs::File;
use std::io::BufWriter;

/// Runs it.
pub fn run(options: &Options) -> Result<(), String> {
    let capture = match &options.pcap {
        Some(path) => {
            let file =
                File::create(path).map_err(|error| format!("{}: {error}", path.display()))?;
            Some(Capture::new(BufWriter::new(file)).map_err(|error| error.to_string())?)
        }
        None => None,
    };
    let mut settings = Settings::new(options.topology()?, options.seed);
    settings.capture = capture.clone();
    if options.pcap_all {
        settings.capture_at = None;
    }
    settings.mode = Mode::RealTime;
    let mut simulation = Simulation::new(settings)?;
    let total = simulation.hosts.len();
    if total < 2 {
        return Err("a demonstration takes two hosts at least".into());
    }
    // Dropped at the end, and the namespaces with it.
    let mut namespaces = Vec::new();
    for index in 0..total {
        let name = Namespace::of_host(index);
        let problem =
            |error| format!("network namespace {name}: {error} (this takes root and `ip`)");
        let namespace = Namespace::new(&name).map_err(problem)?;
        let Some(host) = simulation.hosts.get(index) else {
            continue;
        };
        let tun = namespace
            .burst_tun("ib0", MTU, &host.spec.addresses)
            .map_err(problem)?;
        namespaces.push(namespace);
        simulation.start_with_tun(index, tun);
    }
    println!(
        "{total} hosts, each with an interface ib0 in a network namespace of its own; coming up …"
    );
    if !simulation.run_until(Duration::from_secs(60), Simulation::all_up) {
        return Err(format!(
            "not all interfaces came up\n{}",
            simulation.describe()
        ));
    }
    print!("{}", simulation.describe());
    simulation.set_faults(options.faults()?);
    let result = serve(&mut simulation, options, &namespaces);
    let counts = simulation.fault_counts();
    let statistics = simulation.world.statistics();
    println!(
        "packets: {} sent by HCAs, {} received, {} lost by faults",
        statistics.packets_sent, statistics.packets_received, counts.dropped
    );
    if options.verbose {
        println!("{statistics:?}");
    }
    if let (Some(capture), Some(path)) = (&capture, &options.pcap) {
        capture
            .finish()
            .map_err(|error| format!("the capture: {error}"))?;
        println!(
            "capture: {} packets in {}",
            capture.packets(),
            path.display()
        );
    }
    result
}

fn serve(
    simulation: &mut Simulation,
    options: &Options,
    namespaces: &[Namespace],
) -> Result<(), String> {
    let (Some(host), Some(peer), Some(here), Some(there)) = (
        simulation.hosts.first(),
        simulation.hosts.get(1),
        namespaces.first(),
        namespaces.get(1),
    ) else {
        return Ok(());
    };
    let port = PortRef::new(host.node, 1);
    let addresses = (peer.ipv4(), peer.ipv6());
    let ended = Ended::new()?;
    if options.command.is_empty() {
        let peer = addresses.0.map(|address| address.to_string());
        println!(
            "try:  ip netns exec {} ping {}      (Ctrl-C ends)",
            here.name(),
            peer.unwrap_or_default()
        );
        while !ended.is() {
            simulation.run_for(Duration::from_millis(100));
        }
        return Ok(());
    }
    let child = Child::start(&options.command, here, there, addresses)?;
    watch(simulation, child, options, port, &ended)
}

/// Runs the world until the command ends, with a flap in the middle if that is asked for.
fn watch(
    simulation: &mut Simulation,
    mut child: Child,
    options: &Options,
    port: PortRef,
    ended: &Ended,
) -> Result<(), String> {
    let began = std::time::Instant::now();
    // Still to come: pull, put back.
    let mut flap: Vec<(Duration, bool)> = options
        .flap
        .map(|at| {
            let at = Duration::from_secs_f64(at.max(0.0));
            vec![(at + Duration::from_secs(1), true), (at, false)]
        })
        .unwrap_or_default();
    loop {
        simulation.run_for(Duration::from_millis(20));
        if let Some((at, plugged)) = flap.last().copied()
            && began.elapsed() >= at
        {
            flap.pop();
            println!(
                "cable of the first host {}",
                if plugged { "put back" } else { "pulled" }
            );
            simulation.plug(port, plugged);
        }
        match child.result(ended) {
            None => {}
            Some(Ok(())) => return Ok(()),
            Some(Err(error)) => return Err(format!("{error}\n{}", simulation.describe())),
        }
    }
}
