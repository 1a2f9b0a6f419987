//! `cargo xtask vm`: virtual machines with an unmodified Linux on a simulated fabric.

mod bench;
mod cases;
mod guest;
mod lab;
mod setup;
mod test;

pub use cases::checksums_verified;
use clap::{Args, Subcommand};
pub use lab::{Lab as Guests, Listens, Wanted as WantedGuests};
use lab::{Lab, Wanted};
pub use setup::{Kernel, place, run as set_up};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

/// Subcommands.
#[derive(Subcommand)]
pub enum Vm {
    /// Makes what guests need, from Debian's packages: a QEMU with vfio-user, a kernel, an image.
    Setup {
        /// Which kernels.
        #[arg(long, value_enum, value_delimiter = ',', default_value = "stable")]
        kernel: Vec<Kernel>,
        /// Makes packages and images again.
        #[arg(long)]
        anew: bool,
    },
    /// Starts guests on a fabric, with a console each (`cargo xtask vm console 1`).
    Run(Run),
    /// A terminal on the console of a guest that `run` started.
    Console {
        /// Which, from 1.
        guest: usize,
    },
    /// Runs what unmodified guests must be able to do, unattended, and prints a table.
    Test(test::Options),
    /// Measures the modelled HCA and Soft-RoCE in the same guests.
    Bench(bench::Options),
}

/// Flags of `run`.
#[derive(Args)]
pub struct Run {
    /// How many guests.
    #[arg(long, default_value_t = 2)]
    guests: usize,
    /// Their device model.
    #[arg(long, default_value = "tavor")]
    model: String,
    /// Their kernel.
    #[arg(long, value_enum, default_value = "stable")]
    kernel: Kernel,
    /// Handed to `openib-sim serve`.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    more: Vec<String>,
}

/// Runs a subcommand.
pub fn run(command: Vm) -> Result<(), String> {
    match command {
        Vm::Setup { kernel, anew } => setup::run(&kernel, anew),
        Vm::Run(options) => start(options),
        Vm::Console { guest } => console(guest),
        Vm::Test(options) => test::run(&options),
        Vm::Bench(options) => bench::run(&options),
    }
}

fn folder() -> PathBuf {
    setup::place().join("run/by-hand")
}

fn start(options: Run) -> Result<(), String> {
    setup::run(&[options.kernel], false)?;
    let wanted = Wanted {
        guests: options.guests,
        model: options.model,
        kernel: options.kernel,
        more: [
            vec!["--guests".into(), options.guests.to_string()],
            options.more,
        ]
        .concat(),
        ethernet: false,
        iommu: false,
        interactive: true,
    };
    let mut lab = Lab::start(&wanted, &folder())?;
    for (number, guest) in (1..).zip(&lab.guests) {
        let place = guest.console();
        println!(
            "{}: cargo xtask vm console {number}   ({})",
            guest.name,
            place.display()
        );
    }
    println!("It ends when all guests are switched off (`poweroff -f`), or with this program.");
    lab.guests.iter_mut().for_each(guest::Guest::join);
    Ok(())
}

fn console(guest: usize) -> Result<(), String> {
    let path = folder().join(format!("guest{guest}.d/console"));
    let told = |error: std::io::Error| format!("{}: {error}", path.display());
    let mut stream = UnixStream::connect(&path).map_err(told)?;
    let mut writer = stream.try_clone().map_err(told)?;
    std::thread::spawn(move || {
        // Whichever side ends first ends it.
        let _ = std::io::copy(&mut std::io::stdin(), &mut writer);
    });
    let mut bytes = [0; 4096];
    let mut output = std::io::stdout();
    loop {
        let count = stream.read(&mut bytes).map_err(told)?;
        let said = bytes.get(..count).unwrap_or(&[]);
        if said.is_empty() {
            return Ok(());
        }
        output
            .write_all(said)
            .and_then(|()| output.flush())
            .map_err(told)?;
    }
}
