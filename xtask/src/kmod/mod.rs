//! `cargo xtask kmod`: the stack inside a kernel, and its small sister, a program that stands for one.

mod build;
mod cases;
mod elf;
mod embed;
mod object;
mod test;

use crate::vm::Kernel;
use clap::{Args, Subcommand};
use std::path::PathBuf;
use std::time::Duration;

pub use embed::run as embedding;

/// Subcommands.
#[derive(Subcommand)]
pub enum Kmod {
    /// Builds the module against the headers of a kernel.
    Build(build::Options),
    /// Loads it in a guest on a simulated HCA, beside a guest with Linux's own driver, and has them talk.
    Test(test::Options),
    /// Builds the program that stands for a kernel, and has it ping a host over a simulated HCA.
    Embed,
}

/// Which kernel the module is for.
#[derive(Args, Clone, Debug)]
pub struct For {
    /// A folder with its headers, instead of those of the installed package (`linux-headers-amd64`).
    #[arg(long)]
    headers: Option<PathBuf>,
    /// Which kernel: the installed one's version, the newest (built in a Debian tree of its own), or the debugging one.
    #[arg(long, value_enum, default_value = "stable")]
    kernel: Kernel,
}

/// Runs a subcommand.
pub fn run(command: Kmod) -> Result<(), String> {
    match command {
        Kmod::Build(options) => {
            if options.target.headers.is_none() && options.target.kernel != Kernel::Stable {
                crate::vm::set_up(&[options.target.kernel], false)?;
            }
            build::run(&options, None).map(drop)
        }
        Kmod::Test(options) => test::run(&options),
        Kmod::Embed => embed::run(None),
    }
}

/// For CI: builds the module, within a time.
pub fn ci(limit: Duration) -> Result<(), String> {
    build::run(&build::Options::for_this_machine(), Some(limit)).map(drop)
}

/// Where all of it is made.
fn place() -> PathBuf {
    let vm = crate::vm::place();
    vm.parent().unwrap_or(&vm).join("kmod")
}
