//! `openib-sim serve`: a fabric some of whose hosts are sockets, each of them for a virtual machine.
//!
//! Ends at SIGINT or SIGTERM; says at the end, and at SIGUSR1, what each HCA was used for that its model does not act
//! on. Commands on the standard input break and mend links.

mod command;
mod ours;
mod plan;

pub use crate::model::Model;
pub use plan::Plan;

use crate::logger;
use clap::Args;
use command::{Command, Handles};
use log::LevelFilter;
use ours::Ours;
use platform_sim::fabric::topology::{NodeKind, PortRef, Topology};
use platform_sim::fabric::{self, Capture, Fabric, FaultHandle, NodeState};
use platform_sim::hca::infinihost::InfiniHost;
use platform_sim::machine::{Config, HostId, Mode, OnReport, Waker, WireEnd, World};
use platform_sim::serve::{Server, Socket};
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

/// Flags of `openib-sim serve`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// How many guests there are: the first hosts of the topology.
    #[arg(long, default_value_t = 2)]
    pub guests: u32,
    /// Which hosts are guests, by name or description, instead.
    #[arg(long, value_delimiter = ',')]
    pub guest: Vec<String>,
    /// A file in the language of ibnetdiscover or ibsim. Without it: a switch with all the hosts.
    #[arg(long)]
    pub topology: Option<PathBuf>,
    /// Without a topology: further hosts that have nothing but their agents.
    #[arg(long, default_value_t = 0)]
    pub hosts: u32,
    /// How many hosts of ours there are, in process: driver, stack and IPoIB (10.9.0.1/16, fd09::1/64 and on). The first
    /// hosts that are no guests.
    #[arg(long, default_value_t = 0)]
    pub ours: u32,
    /// How their IP interfaces carry packets.
    #[arg(long, value_enum, default_value_t)]
    pub mode: crate::options::IpMode,
    /// What is in their slots.
    #[arg(long, value_enum, default_value_t)]
    pub host_model: Model,
    /// On how many of them a subnet manager runs, the first with the highest priority.
    #[arg(long, default_value_t = 0)]
    pub managers: u32,
    /// Partitions that these managers make beside the default one.
    #[arg(long, value_delimiter = ',', value_parser = p_key)]
    pub partition: Vec<u16>,
    /// What is in the slots of the guests; the last one is for all further guests, too.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "tavor")]
    pub model: Vec<Model>,
    /// Where the sockets are: `guest1`, `guest2` …
    #[arg(long, default_value = ".")]
    pub sockets: PathBuf,
    /// Writes every packet on every cable into this file, for Wireshark.
    #[arg(long)]
    pub capture: Option<PathBuf>,
    /// How long two ports train after both are there, in milliseconds. A guest whose processor is emulated needs it as
    /// much longer as it is slower: its HCA is not, and the subnet manager would be done before its driver is.
    #[arg(long, default_value_t = 200)]
    pub training: u64,
    /// Seed of the dice.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Take commands from the standard input, and end with it.
    #[arg(long)]
    pub commands: bool,
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

/// What comes from outside.
enum Wish {
    Show,
    Stop,
    Line(String),
}

/// Serves until it is told to stop.
pub fn run(options: &Options) -> Result<(), String> {
    logger::start(match options.verbose {
        0 => LevelFilter::Warn,
        1 => LevelFilter::Info,
        _ => LevelFilter::Debug,
    });
    let plan = Plan::new(options)?;
    let ours = ours::choose(options, &plan)?;
    let (mut fabric, handles) = fabric(options, &plan, &ours);
    let capture = capture(options, &mut fabric)?;
    let ends = |node: usize| -> Vec<WireEnd> {
        let ports = plan
            .topology
            .nodes
            .get(node)
            .map_or(0, |node| node.port_count());
        (1..=ports)
            .filter_map(|port| fabric.end(PortRef::new(node, port)))
            .collect()
    };
    let guest_ends: Vec<_> = plan.guests.iter().map(|node| ends(*node)).collect();
    let our_ends: Vec<_> = ours.iter().map(|node| ends(*node)).collect();
    let config = Config {
        seed: options.seed,
        mode: Mode::RealTime,
        on_report: OnReport::Collect,
        // The IP programs of our hosts run in the contexts of their drivers.
        stack: 1 << 20,
        stack_budget: None,
        ..Config::default()
    };
    let mut world = World::with(config, fabric);
    let mut guests = Vec::new();
    for (index, (node, ends)) in plan.guests.iter().zip(guest_ends).enumerate() {
        guests.push(guest(
            options,
            &mut world,
            &plan.topology,
            (index, *node),
            &ends,
        )?);
    }
    let mut hosts = Vec::new();
    for (place, ends) in ours.iter().copied().enumerate().zip(our_ends) {
        hosts.push(Ours::settle(
            &mut world,
            options,
            &plan.topology,
            place,
            &ends,
        )?);
    }
    let wishes = listen(&world.waker(), options.commands)?;
    crate::say!("ready");
    let mut served = Served {
        fresh: fresh(&mut world, &plan.topology),
        world,
        topology: plan.topology,
        handles,
        guests,
        ours: hosts,
        off: BTreeSet::new(),
    };
    served.serve(&wishes);
    for guest in &served.guests {
        guest.server.disconnect();
    }
    served.show();
    if let Some(capture) = capture {
        capture
            .finish()
            .map_err(|error| format!("the capture: {error}"))?;
    }
    Ok(())
}

/// The fabric, with a handle at each end of each cable that will make faults there.
fn fabric(options: &Options, plan: &Plan, ours: &[usize]) -> (Fabric, Handles) {
    let topology = &plan.topology;
    let settings = fabric::Options {
        seed: options.seed,
        training: Duration::from_millis(options.training),
        ..fabric::Options::default()
    };
    let mut fabric = Fabric::new(topology, settings, |node, _| {
        plan.guests.contains(&node) || ours.contains(&node)
    });
    let mut handles = Handles::new();
    if options.commands {
        for port in topology.cables.iter().flat_map(|cable| cable.ends) {
            let handle = FaultHandle::default();
            fabric.make_faulty(port, &handle);
            handles.insert(port, handle);
        }
    }
    (fabric, handles)
}

fn capture(options: &Options, fabric: &mut Fabric) -> Result<Option<Capture>, String> {
    let Some(path) = &options.capture else {
        return Ok(None);
    };
    let told = |error: io::Error| format!("{}: {error}", path.display());
    let file = std::fs::File::create(path).map_err(told)?;
    let capture = Capture::new(BufWriter::new(file)).map_err(told)?;
    fabric.tap_all(&capture);
    Ok(Some(capture))
}

/// Opens a socket, and puts a machine behind it into the world.
fn guest(
    options: &Options,
    world: &mut World,
    topology: &Topology,
    (index, node): (usize, usize),
    ends: &[WireEnd],
) -> Result<Guest, String> {
    let name = format!("guest{}", index + 1);
    let model = options.model.get(index).or(options.model.last());
    let model = model.copied().unwrap_or(Model::Tavor);
    let node = topology.nodes.get(node).ok_or("the node is not there")?;
    let path = options.sockets.join(&name);
    let shown = path.display().to_string();
    let told = |error: io::Error| format!("{shown}: {error}");
    let function = model.make(node)?;
    let socket = Socket::bind(&path).map_err(told)?;
    let host = world.add_guest(&name, function, socket.guest(), ends);
    let server = socket.serve(world.remote(host)).map_err(told)?;
    crate::say!("{name}: {model:?}, \"{}\", at {shown}", node.description);
    Ok(Guest { name, host, server })
}

/// What the agents of each switch knew before anybody told them.
fn fresh(world: &mut World, topology: &Topology) -> BTreeMap<usize, NodeState> {
    let switches: Vec<usize> = topology.of_kind(NodeKind::Switch).collect();
    let states = world.with_wire::<Fabric, _>(|fabric, _| {
        let state = |node: usize| Some((node, fabric.node(node)?.clone()));
        switches.into_iter().filter_map(state).collect()
    });
    states.unwrap_or_default()
}

/// Reads a P_Key.
fn p_key(text: &str) -> Result<u16, String> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    u16::from_str_radix(digits, 16).map_err(|_| format!("\"{text}\" is no P_Key, like 0x8001"))
}

/// All that is there.
struct Served {
    world: World,
    topology: Topology,
    handles: Handles,
    guests: Vec<Guest>,
    ours: Vec<Ours>,
    fresh: BTreeMap<usize, NodeState>,
    /// Switches without power.
    off: BTreeSet<usize>,
}

impl Served {
    /// Runs the world, and does what is asked for meanwhile.
    fn serve(&mut self, wishes: &Receiver<Wish>) {
        loop {
            let mut wish = None;
            self.world.run_while(Duration::from_secs(1), || {
                wish = wishes.try_recv().ok();
                wish.is_none()
            });
            // Each was told when it happened.
            self.world.take_reports();
            let command = match wish {
                None => continue,
                Some(Wish::Show) => Ok(Command::Show),
                Some(Wish::Stop) => Ok(Command::Stop),
                Some(Wish::Line(line)) => Command::read(&line, &self.topology),
            };
            match command {
                Ok(Command::Stop) => return,
                command => match command.and_then(|command| self.obey(command)) {
                    Ok(()) => crate::say!("ok"),
                    Err(error) => crate::say!("error: {error}"),
                },
            }
            // The reader is a program: it is there, or it is gone and wants nothing.
            let _ = io::stdout().flush();
        }
    }

    fn obey(&mut self, command: Command) -> Result<(), String> {
        match command {
            Command::Stop => {}
            Command::Show => {
                self.show();
                for (port, handle) in &self.handles {
                    let counts = handle.counts();
                    if counts != fabric::FaultCounts::default() {
                        let node = self.topology.nodes.get(port.node);
                        let name = node.map_or("", |node| &node.description);
                        crate::say!("   faults {} {name}: {counts:?}", port.port);
                    }
                }
            }
            Command::Plug { port, plugged } => self.plug(port, plugged),
            Command::Faults { port, faults } => {
                let handle = self.handles.get(&port).ok_or("no cable is there")?;
                handle.set(faults);
            }
            Command::Mode { node, connected } => {
                let host = self.ours.iter_mut().find(|ours| ours.node == node);
                let host = host.ok_or("that is no host of ours")?;
                host.set_mode(&mut self.world, &self.topology, connected)?;
            }
            Command::Power { node, on } => self.power(node, on)?,
            Command::Rping { node, client } => {
                let host = self.ours.iter().find(|ours| ours.node == node);
                let host = host.ok_or("that is no host of ours")?;
                crate::say!("{}", host.rping(&mut self.world, client)?);
            }
            Command::Messages { node, of } => {
                let host = self.ours.iter().find(|ours| ours.node == node);
                let host = host.ok_or("that is no host of ours")?;
                crate::say!("{}", host.messages(&mut self.world, of)?);
            }
            Command::Pingpong { node, wish } => {
                let host = self.ours.iter().find(|ours| ours.node == node);
                let host = host.ok_or("that is no host of ours")?;
                crate::say!("{}", host.pingpong(&mut self.world, wish)?);
            }
            Command::Ping {
                node,
                peer,
                count,
                size,
            } => {
                let host = self.ours.iter().find(|ours| ours.node == node);
                let host = host.ok_or("that is no host of ours")?;
                crate::say!("{}", host.ping(&mut self.world, peer, (count, size))?);
            }
        }
        Ok(())
    }

    fn plug(&mut self, port: PortRef, plugged: bool) {
        self.world
            .with_wire::<Fabric, _>(|fabric, now| fabric.plug(port, plugged, now));
    }

    /// A switch loses its cables; before it gets them back it forgets all that it was told.
    fn power(&mut self, node: usize, on: bool) -> Result<(), String> {
        if let Some(host) = self.ours.iter_mut().find(|ours| ours.node == node) {
            return host.switch(&mut self.world, &self.topology, on);
        }
        let fresh = self.fresh.get(&node);
        let fresh = fresh
            .ok_or("that is neither a switch nor a host of ours")?
            .clone();
        let ports = fresh.port_count();
        let changes = if on {
            self.off.remove(&node)
        } else {
            self.off.insert(node)
        };
        if !changes {
            return Err(format!("it is {} already", if on { "on" } else { "off" }));
        }
        if on {
            self.world.with_wire::<Fabric, _>(|fabric, _| {
                if let Some(state) = fabric.node_mut(node) {
                    *state = fresh;
                }
            });
        }
        for port in 1..=ports {
            self.plug(PortRef::new(node, port), on);
        }
        Ok(())
    }
}

/// Threads that note signals and commands.
fn listen(waker: &Waker, commands: bool) -> Result<Receiver<Wish>, String> {
    let (sender, wishes) = mpsc::channel();
    let signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGUSR1]);
    let mut signals = signals.map_err(|error| format!("signals cannot be caught: {error}"))?;
    let tell = |sender: Sender<Wish>, waker: Waker| {
        move |wish| {
            let heard = sender.send(wish).is_ok();
            waker.wake();
            heard
        }
    };
    let signalled = tell(sender.clone(), waker.clone());
    std::thread::spawn(move || {
        for signal in signals.forever() {
            signalled(if signal == SIGUSR1 {
                Wish::Show
            } else {
                Wish::Stop
            });
        }
    });
    if commands {
        let said = tell(sender, waker.clone());
        std::thread::spawn(move || {
            for line in io::stdin().lines().map_while(Result::ok) {
                if !said(Wish::Line(line)) {
                    return;
                }
            }
            said(Wish::Stop);
        });
    }
    Ok(wishes)
}

impl Served {
    /// Prints use, ledger and holdings of each HCA.
    fn show(&mut self) {
        let Self {
            world,
            guests,
            ours,
            ..
        } = self;
        for Guest { name, host, server } in guests.iter() {
            let traffic = server.traffic();
            let usage = server.usage();
            crate::say!("== {name}");
            crate::say!(
                "   {} loads, {} stores, {} other messages, {} refused",
                traffic.reads,
                traffic.writes,
                traffic.others,
                traffic.refused
            );
            crate::say!(
                "   {} bytes read, {} written, {} refused accesses to memory, {} interrupts",
                usage.read,
                usage.written,
                usage.faults,
                usage.interrupts
            );
            let ledger = world.with_function(*host, |function, _| function.ledger().clone());
            match ledger {
                Some(ledger) if ledger.is_empty() => crate::say!("   ledger: empty"),
                Some(ledger) => crate::say!("   ledger:\n{}", ledger.to_string().trim_end()),
                None => crate::say!("   ledger: the device has been taken out"),
            }
            let model = world.with_model(*host, |hca: &mut InfiniHost, _| {
                (hca.holdings(), hca.left(), hca.lent_pages())
            });
            if let Some((held, left, lent)) = model {
                crate::say!("   holds: {held}, {lent} pages lent");
                crate::say!("   held when it last stopped: {left}");
            }
        }
        for host in ours.iter() {
            crate::say!("{}", host.describe().trim_end());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use core_ib::Instant;
    use platform_sim::machine::{Delivery, LinkControl, LinkSpeed, LinkWidth, Wire};

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    /// When the link of the first guest is up.
    fn up(words: &[&str]) -> Instant {
        let words = std::iter::once(&"serve").chain(words);
        let options = Line::parse_from(words).options;
        let plan = Plan::new(&options).unwrap();
        let (mut fabric, _) = fabric(&options, &plan, &[]);
        let end = fabric.end(PortRef::new(plan.guests[0], 1)).unwrap();
        let polling = LinkControl::Polling {
            widths: LinkWidth(3),
            speeds: LinkSpeed::SDR,
        };
        fabric.set_link(end, polling, Instant(0));
        loop {
            let now = fabric.next_event().expect("a link that trains");
            while let Some(delivery) = fabric.poll(now) {
                if matches!(delivery, Delivery::Link { up: Some(_), .. }) {
                    return now;
                }
            }
        }
    }

    #[test]
    fn a_link_trains_as_long_as_it_is_told_and_not_in_no_time_else() {
        assert_eq!(up(&[]), Instant(200_000_000));
        assert_eq!(up(&["--training", "4000"]), Instant(4_000_000_000));
    }
}
