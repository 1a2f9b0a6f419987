//! The InfiniBand simulator as a program.

use clap::{Parser, Subcommand};
use openib_sim::{bench, demo, out, relay, serve};
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "openib-sim", about = "The InfiniBand simulator", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Hosts come up, ping each other over IPoIB and send checked TCP streams.
    Demo(demo::Options),
    /// Benchmarks, and tables of what they measured.
    Bench(bench::Options),
    /// A fabric whose hosts are sockets for virtual machines (QEMU: `-device vfio-user-pci`).
    Serve(serve::Options),
    /// Two TUN devices with nothing but a copying thread between them, to measure `demo --tun` against.
    #[command(hide = true)]
    Relay(relay::Options),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Demo(options) => demo::run(&options),
        Command::Relay(options) => relay::run(&options),
        Command::Bench(options) => bench::run(&options),
        Command::Serve(options) => serve::run(&options).map_err(Into::into),
    };
    match result.and_then(|()| out::state()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(stop) => stop.report(),
    }
}
