//! The project's commands: `cargo xtask …`. Thin: each starts what a library or a program holds.

mod ci;
mod kmod;
mod run;
mod user;
mod vm;

use clap::{Parser, Subcommand};
use run::Failure;
use std::io::Write;
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The commands of this project", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Two hosts ping each other over a simulated InfiniBand fabric. Options: `cargo xtask demo --help`.
    #[command(disable_help_flag = true)]
    Demo {
        /// Handed to the simulator.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        options: Vec<String>,
    },
    /// All tests that need no privilege.
    Test {
        /// Handed to `cargo test` (a filter, `-p CRATE` …).
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        options: Vec<String>,
    },
    /// What CI runs: formatting, lints, documentation, tests, bare-metal builds, captures, fuzzing, Linux guests.
    Ci {
        /// Only the stages whose names begin so.
        stages: Vec<String>,
    },
    /// Virtual machines with an unmodified Linux on a simulated fabric.
    #[command(subcommand)]
    Vm(vm::Vm),
    /// The stack as a kernel module, and inside a program that stands for a kernel.
    #[command(subcommand)]
    Kmod(kmod::Kmod),
    /// The stack in a process of a guest, over VFIO and over `uio_pci_generic`.
    #[command(subcommand)]
    User(user::User),
    /// Benchmarks, and a table of what they measured.
    Bench {
        /// Only the benchmarks whose names contain this.
        filter: Option<String>,
    },
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Demo { options } => run::simulator("demo", &options),
        Command::Test { options } => run::tests(&options),
        Command::Ci { stages } => ci::run(&stages).map_err(Failure::Told),
        Command::Vm(command) => vm::run(command).map_err(Failure::Told),
        Command::Kmod(command) => kmod::run(command).map_err(Failure::Told),
        Command::User(command) => user::run(command).map_err(Failure::Told),
        Command::Bench { filter } => run::simulator("bench", filter.as_slice()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Child(code)) => ExitCode::from(code),
        Err(Failure::Told(error)) => {
            // Nobody is left to be told that it failed.
            let _ = writeln!(std::io::stderr(), "error: {error}");
            ExitCode::FAILURE
        }
    }
}
