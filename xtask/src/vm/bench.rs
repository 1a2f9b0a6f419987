//! The modelled HCA against Linux's Soft-RoCE, and IPoIB against an Ethernet of virtio: the same two guests, the same run,
//! one after the other, over and over.

use super::cases::{Manager, load, wait_active};
use super::lab::{Lab, Listens, Wanted};
use super::setup::{self, Kernel, place};
use crate::run::{finish, root};
use clap::Args;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

/// Flags of `bench`.
#[derive(Args)]
pub struct Options {
    /// The device model.
    #[arg(long, default_value = "tavor")]
    model: String,
    /// Measures everything so often, and shows medians.
    #[arg(long, default_value_t = 3)]
    times: usize,
    /// Only measurements whose names contain one of these.
    filter: Vec<String>,
}

/// Two devices side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Device {
    Hca,
    SoftRoce,
}

impl Device {
    const BOTH: [Self; 2] = [Self::Hca, Self::SoftRoce];

    /// For perftest: device, path MTU, entry of the GID table.
    const fn words(self) -> &'static str {
        match self {
            Self::Hca => "-d mthca0 -m 2048",
            Self::SoftRoce => "-d rxe0 -m 4096 -x 1",
        }
    }

    /// The address of guest 1 that is reached by it.
    const fn address(self) -> &'static str {
        match self {
            Self::Hca => "10.9.1.1",
            Self::SoftRoce => "10.1.0.1",
        }
    }
}

/// Gives one figure.
type Trial = dyn Fn(&mut Lab, Device) -> Result<f64, String>;

/// What is measured.
struct Measure {
    name: String,
    unit: &'static str,
    run: Box<Trial>,
}

/// Runs it all, prints a table, and keeps it.
pub fn run(options: &Options) -> Result<(), String> {
    setup::run(&[Kernel::Stable], false)?;
    let folder = place().join("run/bench");
    let mut wanted = Wanted {
        ethernet: true,
        ..super::cases::wanted(&options.model, Kernel::Stable, Manager::Ours)
    };
    // One switch between them, as there is one Ethernet.
    wanted.more = [
        "--guests",
        "2",
        "--ours",
        "1",
        "--managers",
        "1",
        "--hosts",
        "1",
    ]
    .map(String::from)
    .to_vec();
    let mut lab = Lab::start(&wanted, &folder)?;
    load(&mut lab)?;
    wait_active(&mut lab)?;
    ethernet(&mut lab)?;
    let measures = measures();
    let named = |measure: &&Measure| {
        let words = &options.filter;
        words.is_empty()
            || words
                .iter()
                .any(|word| measure.name.contains(word.as_str()))
    };
    let mut table =
        String::from("| | HCA model | Soft-RoCE, virtio-net | |\n| --- | --- | --- | --- |\n");
    for measure in measures.iter().filter(named) {
        let mut figures = [Vec::new(), Vec::new()];
        for _ in 0..options.times {
            for (device, figures) in Device::BOTH.into_iter().zip(&mut figures) {
                match (measure.run)(&mut lab, device) {
                    Ok(figure) => figures.push(figure),
                    Err(error) => println!("{}, {device:?}: {error}", measure.name),
                }
            }
        }
        let [ours, theirs] = figures.map(median);
        let shown = |figure: Option<f64>| figure.map_or("–".into(), digits);
        let line = format!(
            "| {} | {} | {} | {} |",
            measure.name,
            shown(ours),
            shown(theirs),
            measure.unit
        );
        println!("{line}");
        // Into a string: it cannot fail.
        let _ = writeln!(table, "{line}");
    }
    let words = &options.filter;
    if words.is_empty() || words.iter().any(|word| REGISTERS.contains(word.as_str())) {
        let said = registers(&mut lab, &folder)?;
        println!("{said}");
        // As above.
        let _ = writeln!(table, "\n{said}");
    }
    let path = folder.join("table.md");
    std::fs::write(&path, table).map_err(|error| format!("{}: {error}", path.display()))?;
    println!("The table is in {}.", path.display());
    Ok(())
}

/// What the measurement of registers is called.
const REGISTERS: &str = "registers";

/// Loads and stores of a program in guest 2 that has the device for itself, and what the server counted meanwhile.
fn registers(lab: &mut Lab, folder: &Path) -> Result<String, String> {
    let probe = folder.join("probe");
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut build = Command::new(rustc);
    build.args(["--edition", "2024", "-O", "-C", "strip=symbols"]);
    build.args([
        "-C",
        "panic=abort",
        "-C",
        "target-feature=+crt-static",
        "-o",
    ]);
    build.arg(&probe).arg(root().join("vm/probe.rs"));
    finish(&mut build, None)?;
    let told = |error: std::io::Error| format!("{}: {error}", probe.display());
    let program = std::fs::read(&probe).map_err(told)?;
    let text = program.chunks(39).fold(String::new(), |mut text, bytes| {
        for byte in bytes {
            // Into a string: it cannot fail.
            let _ = write!(text, "{byte:02x}");
        }
        text.push('\n');
        text
    });
    lab.ok(
        2,
        &format!("xxd -r -p > /tmp/probe <<'END'\n{text}END\nchmod +x /tmp/probe"),
        60,
    )?;
    let before = lab.ledgers()?.join("\n");
    let script = "device=$(readlink -f /sys/class/infiniband/mthca0/device); ip link set ib0 down; rmmod ib_mthca; echo 1 > $device/enable; for i in 1 2 3; do /tmp/probe $device/resource0 $device/resource2 || exit 1; done";
    let said = lab.ok(2, script, 120)?;
    let after = lab.ledgers()?.join("\n");
    let count = |shown: &str| {
        let own = shown.split("== guest2").nth(1).unwrap_or_default();
        own.lines().nth(1).unwrap_or_default().trim().to_owned()
    };
    let names = [
        "a load",
        "a doorbell alone",
        "16 doorbells and a load",
        "a doorbell of many",
    ];
    let mut text = format!("before: {}\nafter: {}\n", count(&before), count(&after));
    for name in names {
        let figures = said.lines().filter_map(|line| {
            let (figure, what) = line.split_once(" us ")?;
            (what == name).then(|| figure.parse::<f64>().ok())?
        });
        let figure = median(figures.collect()).ok_or_else(|| said.clone())?;
        let _ = writeln!(text, "| {name} | {} | us |", digits(figure));
    }
    Ok(text)
}

fn median(mut figures: Vec<f64>) -> Option<f64> {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied()
}

/// Three digits that mean something.
fn digits(figure: f64) -> String {
    match figure {
        figure if figure >= 100.0 => format!("{figure:.0}"),
        figure if figure >= 10.0 => format!("{figure:.1}"),
        figure => format!("{figure:.2}"),
    }
}

/// The Ethernet, and Soft-RoCE over it.
fn ethernet(lab: &mut Lab) -> Result<(), String> {
    for guest in 1..=2 {
        let script = format!(
            "modprobe -a virtio_net crc32_generic rdma_rxe && net=$(ls /sys/class/net | grep -v -e lo -e ib | head -1) && ip link set $net mtu 4200 && ip addr add 10.1.0.{guest}/24 dev $net && ip link set $net up && rdma link add rxe0 type rxe netdev $net && sleep 2 && ibv_devinfo -d rxe0"
        );
        lab.ok(guest, &script, 40)?;
    }
    lab.ok(2, "ping -c 3 10.1.0.1", 20)?;
    Ok(())
}

fn measures() -> Vec<Measure> {
    let mut all = Vec::new();
    for what in ["send", "write", "read"] {
        for (size, count) in [(64_u32, 5000_u32), (4096, 3000), (65_536, 400)] {
            let events = if what == "write" { "" } else { "-e" };
            let unit = if size > 4096 { "MiB/s" } else { "messages/s" };
            all.push(Measure {
                name: format!("RC {what}, {size} B"),
                unit,
                run: Box::new(move |lab, device| {
                    let words = format!("ib_{what}_bw {events} -F -s {size} -n {count}");
                    let columns = perftest(lab, device, &words)?;
                    match columns[..] {
                        [_, _, _, mib, _] if size > 4096 => Ok(mib),
                        [_, _, _, _, millions] => Ok(millions * 1e6),
                        _ => Err(format!("perftest says {columns:?}")),
                    }
                }),
            });
        }
        let events = if what == "write" { "" } else { "-e" };
        all.push(Measure {
            name: format!("RC {what} latency, 64 B"),
            unit: "us",
            run: Box::new(move |lab, device| {
                let words = format!("ib_{what}_lat {events} -F -s 64 -n 1000");
                let columns = perftest(lab, device, &words)?;
                columns
                    .get(4)
                    .copied()
                    .ok_or(format!("perftest says {columns:?}"))
            }),
        });
    }
    for (more, name) in [("", "TCP"), ("-R", "TCP, the other way")] {
        all.push(Measure {
            name: name.into(),
            unit: "Mbit/s",
            run: Box::new(move |lab, device| iperf(lab, device, more)),
        });
    }
    all.push(Measure {
        name: "ping".into(),
        unit: "ms",
        run: Box::new(|lab, device| {
            let script = format!("ping -q -i 0.01 -c 200 {}", device.address());
            let said = lab.ok(2, &script, 30)?;
            let mean = said
                .lines()
                .find_map(|line| line.strip_prefix("rtt ")?.split('/').nth(4));
            mean.and_then(|mean| mean.parse().ok()).ok_or(said)
        }),
    });
    all
}

/// The columns of its last line of figures. Both ends meet over the Ethernet, whichever device is measured.
fn perftest(lab: &mut Lab, device: Device, words: &str) -> Result<Vec<f64>, String> {
    let serve = format!("{words} {} 2>&1", device.words());
    let ask = format!("{words} {} 10.1.0.1 2>&1", device.words());
    let (_, said) = lab.pair(Listens::Tcp(18515), (1, &serve), (2, &ask), 90)?;
    let figures = said.lines().rev().find_map(|line| {
        let columns: Result<Vec<f64>, _> = line.split_whitespace().map(str::parse).collect();
        columns.ok().filter(|columns| columns.len() >= 5)
    });
    figures.ok_or(said)
}

fn iperf(lab: &mut Lab, device: Device, more: &str) -> Result<f64, String> {
    let ask = format!("iperf3 -f m -c {} -t 5 {more}", device.address());
    let (_, said) = lab.pair(Listens::Tcp(5201), (1, "iperf3 -s -1"), (2, &ask), 60)?;
    let line = said.lines().find(|line| line.contains("receiver"));
    let words: Vec<&str> = line.unwrap_or_default().split_whitespace().collect();
    let rate = words.windows(2).find(|pair| pair[1] == "Mbits/sec");
    rate.and_then(|pair| pair[0].parse().ok()).ok_or(said)
}
