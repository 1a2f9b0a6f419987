//! The demonstration with real interfaces: a TUN device in a network namespace for each host, in real time.

use crate::demo::Options;
use crate::sim::{Settings, Simulation};
use crate::tun::Namespace;
use core::time::Duration;
use platform_sim::fabric::Capture;
use platform_sim::fabric::topology::PortRef;
use platform_sim::machine::Mode;
use std::fs::File;
use std::io::BufWriter;
use std::process::Child;

/// MTU of IPoIB in datagram mode over an InfiniBand MTU of 2048.
const MTU: u16 = 2044;

/// Name of the namespace of host number `index`.
pub fn namespace(index: usize) -> String {
    format!("openib{index}")
}

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
        let name = namespace(index);
        let problem =
            |error| format!("network namespace {name}: {error} (this takes root and `ip`)");
        let namespace = Namespace::new(&name).map_err(problem)?;
        let Some(host) = simulation.hosts.get(index) else {
            continue;
        };
        let tun = namespace
            .tun("ib0", MTU, &host.spec.addresses)
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
    let address = |address: Option<std::net::IpAddr>| {
        address
            .map(|address| address.to_string())
            .unwrap_or_default()
    };
    let (peer4, peer6) = (address(peer.ipv4()), address(peer.ipv6()));
    let host_node = host.node;
    let Some((program, words)) = options.command.split_first() else {
        println!(
            "try:  ip netns exec {} ping {peer4}      (Ctrl-C ends)",
            here.name()
        );
        loop {
            simulation.run_for(Duration::from_millis(100));
        }
    };
    let mut command = here.command(program);
    command
        .args(words)
        .env("PEER", &peer4)
        .env("PEER6", &peer6)
        .env("NS", here.name())
        .env("PEER_NS", there.name());
    let child = command
        .spawn()
        .map_err(|error| format!("{program}: {error}"))?;
    watch(simulation, child, options, host_node)
}

/// Runs the world until the command ends, with a flap in the middle if that is asked for.
fn watch(
    simulation: &mut Simulation,
    mut child: Child,
    options: &Options,
    node: usize,
) -> Result<(), String> {
    let began = std::time::Instant::now();
    let port = PortRef::new(node, 1);
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
        match child.try_wait() {
            Ok(None) => {}
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => {
                return Err(format!(
                    "the command ended with {status}\n{}",
                    simulation.describe()
                ));
            }
            Err(error) => return Err(format!("the command: {error}")),
        }
    }
}
