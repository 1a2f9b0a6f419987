//! An IPoIB interface in a process: an HCA by way of VFIO or of `uio_pci_generic`, the stack over it, and a TUN device with
//! which programs that know nothing of it send and receive.

mod host;
mod logger;
mod tun;

use clap::{Parser, ValueEnum};
use platform_user::{Machine, Slot, Wanted, Way};
use std::process::ExitCode;
use tun::Cidr;

/// Flags.
#[derive(Parser, Debug)]
#[command(name = "openib-user", about, version)]
struct Options {
    /// The HCA's place on the PCI bus, like 0000:04:00.0. May be left out if there is one alone.
    #[arg(long)]
    device: Option<Slot>,
    /// The way to it.
    #[arg(long, value_enum, default_value = "vfio")]
    driver: Driver,
    /// How the HCA announces events.
    #[arg(long, value_enum, default_value = "messages")]
    interrupts: Interrupts,
    /// MiB of DMA memory.
    #[arg(long, default_value_t = 64)]
    memory: usize,
    /// Take ordinary pages for it. With VFIO alone.
    #[arg(long)]
    small_pages: bool,
    /// Port of the HCA.
    #[arg(long, default_value_t = 1)]
    port: u8,
    /// Partition of the interface.
    #[arg(long, default_value = "0xffff", value_parser = hexadecimal)]
    p_key: u16,
    /// Addresses of the interface, like 10.0.0.1/24. May be given several times.
    #[arg(long, required = true)]
    address: Vec<Cidr>,
    /// Name of the TUN device.
    #[arg(long, default_value = "ib0")]
    tun: String,
    /// Says more.
    #[arg(long, short)]
    verbose: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Driver {
    /// VFIO: with an IOMMU.
    Vfio,
    /// `uio_pci_generic`: without.
    Uio,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Interrupts {
    /// By messages, or by the pin if there are none.
    Messages,
    /// By the pin.
    Pin,
}

fn hexadecimal(text: &str) -> Result<u16, String> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    u16::from_str_radix(digits, 16).map_err(|_| format!("`{text}` is not a P_Key, like 0x8001"))
}

fn run(options: &Options) -> Result<(), String> {
    let wanted = Wanted {
        slot: options.device,
        way: match options.driver {
            Driver::Vfio => Way::Vfio,
            Driver::Uio => Way::Uio,
        },
        memory: options
            .memory
            .checked_mul(1 << 20)
            .ok_or("so much memory there is not")?,
        huge: !options.small_pages,
    };
    let bells = host::Bells::new().map_err(|error| error.to_string())?;
    let machine = Machine::open(&wanted).map_err(|error| error.to_string())?;
    let free = machine.free_memory();
    let ended = host::run(&machine, &bells, options);
    let left = free.saturating_sub(machine.free_memory());
    println!("{left} bytes of DMA memory were left behind");
    ended
}

fn main() -> ExitCode {
    let options = Options::parse();
    logger::start(options.verbose);
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("openib-user: {why}");
            ExitCode::FAILURE
        }
    }
}
