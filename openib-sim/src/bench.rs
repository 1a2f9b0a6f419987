//! Benchmarks: what the data path, a command, a packet, a ping, a stream and the bring-up of a fabric cost.
//!
//! Each prints a table. Times depend on the machine and on what else it does; instructions do not.

mod bring_up;
mod data_path;
mod firmware;
mod flood;
mod plain;
mod steps;
mod table;
mod traffic;

use crate::ended::Stop;
use crate::out;

/// Options of the benchmarks.
#[derive(clap::Args, Debug)]
pub struct Options {
    /// Only the benchmarks whose names contain this: data-path, firmware, packets, ping, tcp, bring-up.
    pub filter: Option<String>,
}

type Benchmark = fn() -> Result<(), String>;

const ALL: [(&str, Benchmark); 6] = [
    ("data-path", data_path),
    ("firmware", firmware),
    ("packets", packets),
    ("ping", ping),
    ("tcp", tcp),
    ("bring-up", bring_up),
];

/// Runs the benchmarks.
pub fn run(options: &Options) -> Result<(), Stop> {
    let wanted = options.filter.as_deref().unwrap_or_default();
    let mut any = false;
    for (name, benchmark) in ALL {
        if name.contains(wanted) {
            any = true;
            benchmark().map_err(|error| format!("{name}: {error}"))?;
            out::state()?;
        }
    }
    if any {
        return Ok(());
    }
    let names: Vec<_> = ALL.iter().map(|(name, _)| *name).collect();
    let names = names.join(", ");
    Err(format!("no benchmark is called {wanted}: there are {names}").into())
}

/// Processor time of this thread so far: what a busy machine does not lengthen. `None` where the system does not say.
fn processor_time() -> Option<core::time::Duration> {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let nanos = stat.split_whitespace().next()?.parse().ok()?;
    Some(core::time::Duration::from_nanos(nanos))
}

/// Seconds of processor time since `start`.
fn processor_since(start: Option<core::time::Duration>) -> Option<f64> {
    let time = processor_time()?.checked_sub(start?)?;
    Some(time.as_secs_f64())
}

fn data_path() -> Result<(), String> {
    let rows = data_path::run()?;
    let of_mode = |mode| [mode, "instructions", "C provider", "ratio"];
    let columns = [of_mode("T-mode"), of_mode("M-mode")].concat();
    table::print("data path, for each request", &columns, &rows);
    Ok(())
}

fn firmware() -> Result<(), String> {
    let columns = ["of the HCA's time", "of the simulator's"];
    table::print("one firmware command", &columns, &firmware::run()?);
    Ok(())
}

fn packets() -> Result<(), String> {
    let columns = ["on the cable", "in real time", "in processor time"];
    table::print("packets through the fabric", &columns, &flood::run()?);
    Ok(())
}

fn ping() -> Result<(), String> {
    let columns = ["answered", "1 %", "median", "99 %"];
    table::print("round trips", &columns, &traffic::ping()?);
    Ok(())
}

fn tcp() -> Result<(), String> {
    let columns = [
        "by the hosts' clock",
        "in real time",
        "in processor time",
        "IP packets, processor time",
    ];
    table::print("goodput", &columns, &traffic::tcp()?);
    Ok(())
}

fn bring_up() -> Result<(), String> {
    let columns = [
        "fabric's time",
        "real time",
        "processor time",
        "peak memory",
        "to OpenSM, a host",
    ];
    table::print(
        "our subnet manager, radix-36 fat tree",
        &columns,
        &bring_up::run()?,
    );
    Ok(())
}
