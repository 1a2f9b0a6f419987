//! `openib-sim serve`: a fabric whose hosts are sockets, each of them for a virtual machine.
//!
//! Ends at SIGINT or SIGTERM, or (asked for) when its input ends; says at the end, and at SIGUSR1, what each HCA was
//! used for that its model does not act on.

use crate::logger;
use clap::{Args, ValueEnum};
use core_ib::Guid;
use log::LevelFilter;
use platform_sim::hca::infinihost::{self, InfiniHost};
use platform_sim::machine::{
    Cable, Config, Exerciser, HostId, LinkParameters, Mode, OnReport, PciFunction, Waker, WireEnd,
    World,
};
use platform_sim::serve::{Server, Socket};
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What is in a guest's slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Model {
    /// InfiniHost MT23108, attached memory visible.
    Tavor,
    /// No HCA: the device that the simulator's own tests use.
    Exerciser,
}

impl Model {
    /// One of these, number `index` of the fabric.
    fn make(self, index: u64, name: &str) -> Box<dyn PciFunction> {
        match self {
            Self::Tavor => {
                let mut config = infinihost::Config::new(Guid(0x0002_c901_0000_0000 | index << 8));
                config.node_description = format!("{name} mthca0");
                Box::new(InfiniHost::new(config))
            }
            Self::Exerciser => Box::new(Exerciser::new()),
        }
    }
}

/// Flags of `openib-sim serve`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// How many guests there are.
    #[arg(long, default_value_t = 2)]
    pub guests: u32,
    /// What is in their slots; the last one is for all further guests, too.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "tavor")]
    pub model: Vec<Model>,
    /// Where the sockets are: `guest1`, `guest2` …
    #[arg(long, default_value = ".")]
    pub sockets: PathBuf,
    /// End when the standard input does.
    #[arg(long)]
    pub until_eof: bool,
    /// Tell more.
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub verbose: u8,
}

/// A host that is a virtual machine.
struct Guest {
    name: String,
    host: HostId,
    server: Server,
}

/// What has come from outside since it was last asked.
#[derive(Debug, Default)]
struct Wishes {
    stop: AtomicBool,
    show: AtomicBool,
}

/// Serves until it is told to stop. `populate` may add hosts of its own to the fabric, once the guests are there.
pub fn run(options: &Options, populate: impl FnOnce(&mut World)) -> Result<(), String> {
    logger::start(match options.verbose {
        0 => LevelFilter::Warn,
        1 => LevelFilter::Info,
        _ => LevelFilter::Debug,
    });
    let (wire, ends) = fabric(options)?;
    let config = Config {
        mode: Mode::RealTime,
        on_report: OnReport::Collect,
        ..Config::default()
    };
    let mut world = World::with(config, wire);
    let mut guests = Vec::new();
    for (index, ends) in (0..).zip(&ends) {
        let name = format!("guest{}", index + 1);
        let model = options.model.get(index as usize).or(options.model.last());
        let model = model.copied().unwrap_or(Model::Tavor);
        let path = options.sockets.join(&name);
        let shown = path.display().to_string();
        let at = |error: io::Error| format!("{shown}: {error}");
        let socket = Socket::bind(&path).map_err(at)?;
        let function = model.make(index, &name);
        let host = world.add_guest(&name, function, socket.guest(), ends);
        let server = socket.serve(world.remote(host)).map_err(at)?;
        println!("{name}: {model:?} at {shown}");
        guests.push(Guest { name, host, server });
    }
    populate(&mut world);
    let wishes = listen(world.waker(), options.until_eof)?;
    println!("ready");
    while !wishes.stop.load(Ordering::Acquire) {
        let wishes = &wishes;
        world.run_while(Duration::from_secs(1), || {
            !wishes.stop.load(Ordering::Relaxed) && !wishes.show.load(Ordering::Relaxed)
        });
        // Each has been told by the logger when it happened.
        world.take_reports();
        if wishes.show.swap(false, Ordering::AcqRel) {
            show(&mut world, &guests);
        }
    }
    for guest in &guests {
        guest.server.disconnect();
    }
    show(&mut world, &guests);
    Ok(())
}

/// What the guests are plugged into, and where.
fn fabric(options: &Options) -> Result<(Cable, Vec<Vec<WireEnd>>), String> {
    let guests = options.guests;
    if guests > 2 {
        return Err(format!(
            "a cable has two ends, which is too few for {guests} guests"
        ));
    }
    let cable = Cable::new(LinkParameters::X4_SDR, Duration::from_nanos(100));
    let ends = (0..guests).map(|guest| vec![WireEnd(guest)]);
    Ok((cable, ends.collect()))
}

/// Threads that note signals, and the end of the input.
fn listen(waker: Waker, until_eof: bool) -> Result<Arc<Wishes>, String> {
    let wishes = Arc::new(Wishes::default());
    let signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGUSR1]);
    let mut signals = signals.map_err(|error| format!("signals cannot be caught: {error}"))?;
    let (noted, woken) = (wishes.clone(), waker.clone());
    std::thread::spawn(move || {
        for signal in signals.forever() {
            let wish = if signal == SIGUSR1 {
                &noted.show
            } else {
                &noted.stop
            };
            wish.store(true, Ordering::Release);
            woken.wake();
        }
    });
    if until_eof {
        let noted = wishes.clone();
        std::thread::spawn(move || {
            let mut sink = [0; 256];
            while io::stdin().read(&mut sink).is_ok_and(|count| count > 0) {}
            noted.stop.store(true, Ordering::Release);
            waker.wake();
        });
    }
    Ok(wishes)
}

/// Prints use and ledger of each HCA.
fn show(world: &mut World, guests: &[Guest]) {
    for Guest { name, host, server } in guests {
        let traffic = server.traffic();
        let usage = server.usage();
        println!("== {name}");
        println!(
            "   {} loads, {} stores, {} other messages, {} refused",
            traffic.reads, traffic.writes, traffic.others, traffic.refused
        );
        println!(
            "   {} bytes read, {} written, {} refused accesses to memory, {} interrupts",
            usage.read, usage.written, usage.faults, usage.interrupts
        );
        let ledger = world.with_function(*host, |function, _| function.ledger().clone());
        match ledger {
            Some(ledger) if ledger.is_empty() => println!("   ledger: empty"),
            Some(ledger) => print!("   ledger:\n{ledger}"),
            None => println!("   ledger: the device has been taken out"),
        }
    }
}
