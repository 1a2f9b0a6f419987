//! The module in a guest, Linux's own driver in another, and what they have to say to each other.

use super::{For, build, place};
use crate::run::finish;
use crate::say;
use crate::vm::{Guests, WantedGuests, set_up};
use clap::Args;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// Flags of `test`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    #[command(flatten)]
    target: For,
    /// Only these HCAs: tavor, arbel-compat, arbel, sinai, sinai-old. May be given several times.
    #[arg(long, value_name = "CHIP", value_delimiter = ',')]
    chip: Vec<String>,
    /// The short run: one HCA of each mode, and of the second the least.
    #[arg(long)]
    quick: bool,
    /// How often the module is loaded and unloaded, with traffic in between.
    #[arg(long, default_value_t = 3)]
    loads: u32,
    /// A module that is built already.
    #[arg(long)]
    module: Option<PathBuf>,
    /// Only groups and cases whose names ("chip/case") contain one of these.
    filter: Vec<String>,
    /// Without those whose names contain this. May be given several times.
    #[arg(long, value_name = "WORD")]
    without: Vec<String>,
    /// Lists what there is.
    #[arg(long)]
    list: bool,
}

/// HCAs in both guests.
struct Group {
    /// As `openib-sim serve` calls its model.
    name: &'static str,
    /// All cases and not the least alone, unless more are asked for by name.
    whole: bool,
    quick: bool,
}

impl Group {
    const fn new(name: &'static str, whole: bool, quick: bool) -> Self {
        Self { name, whole, quick }
    }
}

/// In this order: T-mode, T-mode by another name, M-mode with each way to arm and to make keys.
const GROUPS: [Group; 5] = [
    Group::new("tavor", true, true),
    Group::new("arbel-compat", false, false),
    Group::new("arbel", true, true),
    Group::new("sinai", false, false),
    Group::new("sinai-old", false, false),
];

type Outcome = Result<String, String>;

/// One thing that is tried.
struct Case {
    name: &'static str,
    run: fn(&mut Guests, &Options) -> Outcome,
    /// Of the least that is tried on every HCA.
    least: bool,
}

impl Case {
    const fn new(name: &'static str, run: fn(&mut Guests, &Options) -> Outcome) -> Self {
        let least = false;
        Self { name, run, least }
    }

    const fn least(mut self) -> Self {
        self.least = true;
        self
    }
}

/// The first of these make what the others need.
const FIRST: usize = 3;

/// In this order.
const CASES: [Case; 15] = [
    Case::new("the module loads", loads).least(),
    Case::new("the stock driver loads", stock).least(),
    Case::new("interfaces come up", up).least(),
    Case::new("ethtool", ethtool),
    Case::new("ping", ping).least(),
    Case::new("ping6", ping6),
    Case::new("multicast", multicast),
    Case::new("iperf3", iperf).least(),
    Case::new("P_Key interface", p_key),
    Case::new("link flap", flap),
    Case::new("connected mode", connected).least(),
    Case::new("restart", restart).least(),
    Case::new("unbind and bind", unbind),
    Case::new("load and unload", reload).least(),
    Case::new("the stock driver instead", compare),
];

/// Has a script wait: `until_ TIMES COMMAND`, five times a second.
const UNTIL: &str = "until_() { n=$1; shift; for i in $(seq $n); do \"$@\" > /dev/null 2>&1 && return 0; sleep 0.2; done; echo \"never: $*\"; return 1; }\n";

/// What is to be run of a group.
fn plan(group: &Group, options: &Options) -> Vec<&'static Case> {
    let chips = &options.chip;
    let asked = |word: &String| word == group.name;
    let named = chips.iter().any(asked) || options.filter.iter().any(|word| word.contains('/'));
    let takes_part = match chips.is_empty() {
        true => group.quick || !options.quick || named,
        false => chips.iter().any(asked),
    };
    if !takes_part {
        return Vec::new();
    }
    let whole = match options.quick {
        true => group.name == "tavor",
        false => group.whole,
    };
    let wanted = |case: &&Case| {
        let name = format!("{}/{}", group.name, case.name);
        let holds = |word: &String| name.contains(word.as_str());
        match options.filter.is_empty() {
            true => (whole || case.least) && !options.without.iter().any(holds),
            false => options.filter.iter().any(holds) && !options.without.iter().any(holds),
        }
    };
    let rest: Vec<_> = CASES.iter().skip(FIRST).filter(wanted).collect();
    if rest.is_empty() && !CASES.iter().take(FIRST).any(|case| wanted(&case)) {
        return Vec::new();
    }
    CASES.iter().take(FIRST).chain(rest).collect()
}

/// Runs the cases, and prints a table.
pub fn run(options: &Options) -> Result<(), String> {
    let plans = GROUPS.iter().map(|group| (group, plan(group, options)));
    let plans: Vec<_> = plans.filter(|(_, cases)| !cases.is_empty()).collect();
    if options.list {
        for (group, cases) in &plans {
            cases
                .iter()
                .for_each(|case| println!("{}/{}", group.name, case.name));
        }
        return Ok(());
    }
    if plans.is_empty() {
        return Err("there is no such case: --list shows all".into());
    }
    set_up(&[options.target.kernel], false)?;
    let target = options.target.clone();
    let module = match &options.module {
        Some(module) => module.clone(),
        None => build::run(&build::Options { target }, None)?,
    };
    let mut failed = Vec::new();
    for (group, cases) in &plans {
        failed.extend(run_group(group, cases, options, &module)?);
    }
    match failed.is_empty() {
        true => Ok(()),
        false => Err(format!("failed: {}", failed.join(", "))),
    }
}

/// Gives the names of those that failed.
fn run_group(
    group: &Group,
    cases: &[&Case],
    options: &Options,
    module: &Path,
) -> Result<Vec<String>, String> {
    let serve = "--guests 2 --hosts 1 --ours 1 --managers 1 --partition 0x8001";
    let wanted = WantedGuests {
        guests: 2,
        model: group.name.into(),
        kernel: options.target.kernel,
        more: serve.split(' ').map(String::from).collect(),
        ethernet: false,
        interactive: false,
    };
    let mut lab = Guests::start(&wanted, &place().join("run").join(group.name))?;
    bring(&mut lab, module)?;
    let mut failed = Vec::new();
    for (number, case) in cases.iter().enumerate() {
        let start = Instant::now();
        let name = format!("{}/{}", group.name, case.name);
        lab.remark(&name);
        let result = (case.run)(&mut lab, options).and_then(|note| quiet(&mut lab, note));
        let seconds = start.elapsed().as_secs_f64();
        let (word, note) = match &result {
            Ok(note) => ("passed", note),
            Err(error) => ("FAILED", error),
        };
        say!("{word}  {name:34} {seconds:6.1} s  {}", note.trim());
        if result.is_err() {
            failed.push(name);
            if number < FIRST {
                break;
            }
        }
    }
    Ok(failed)
}

/// Puts the module into guest 1, by way of a script: guests have no network that is not under test.
fn bring(lab: &mut Guests, module: &Path) -> Result<(), String> {
    let small = place().join("openib.ko");
    let mut strip = Command::new("objcopy");
    strip.arg("--strip-debug").arg(module).arg(&small);
    finish(&mut strip, None)?;
    let output = Command::new("base64").arg(&small).output();
    let output = output.map_err(|error| format!("base64: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let script = format!("base64 -d > /run/openib.ko <<'END'\n{text}END\nls -l /run/openib.ko");
    lab.quiet(1, &script, 60).map(drop)
}

/// Guest 1's kernel has nothing to complain of; that it is tainted by a module that nobody signed is known.
fn quiet(lab: &mut Guests, note: String) -> Outcome {
    let script = "dmesg -l emerg,alert,crit,err,warn > /run/now; \
        tail -n +$(($(cat /run/seen 2> /dev/null || echo 0) + 1)) /run/now; wc -l < /run/now > /run/seen";
    let known = [
        "taints kernel",
        "module verification failed",
        "No bridge found",
        "Spectre",
        "clocksource",
        "not been signed",
    ];
    let said = lab.ok(1, script, 20)?;
    // What it said before the module was there is not of the module.
    let lines = said
        .lines()
        .filter(|line| !known.iter().any(|known| line.contains(known)))
        .filter(|line| {
            let words = [
                "openib",
                "BUG",
                "WARN",
                "Oops",
                "Call Trace",
                "ib0",
                "lockup",
                "stall",
                "DMA-API",
            ];
            words.iter().any(|word| line.contains(word))
        });
    let lines: Vec<&str> = lines.collect();
    match lines.is_empty() {
        true => Ok(note),
        false => Err(format!("the kernel complains:\n{}", lines.join("\n"))),
    }
}

/// The first line of `said` with `word` in it, without spaces around it.
fn line(said: &str, word: &str) -> String {
    let line = said.lines().find(|line| line.contains(word));
    line.unwrap_or_default().trim().into()
}

fn waiting(lab: &mut Guests, guest: usize, script: &str, limit: u64) -> Outcome {
    lab.ok(guest, &format!("{UNTIL}{script}"), limit)
}

fn loads(lab: &mut Guests, _: &Options) -> Outcome {
    let said = lab.ok(
        1,
        "insmod /run/openib.ko debug=1 p_keys=0x8001 && dmesg | grep 'openib.*HCA'",
        60,
    )?;
    Ok(line(&said, "HCA"))
}

fn stock(lab: &mut Guests, _: &Options) -> Outcome {
    lab.ok(2, "modprobe -a ib_uverbs ib_umad ib_ipoib ib_mthca && cat /sys/class/infiniband/mthca0/hca_type", 60)
}

fn up(lab: &mut Guests, _: &Options) -> Outcome {
    for guest in [1, 2] {
        let script = format!(
            "ip link set ib0 up && ip addr replace 10.9.1.{guest}/16 dev ib0 && ip -6 addr replace fd09::100:{guest}/64 dev ib0 nodad
            until_ 150 sh -c \"ip link show ib0 | grep -q 'state UP'\"; ip -s link show ib0"
        );
        waiting(lab, guest, &script, 60)?;
    }
    let said = lab.ok(1, "ip link show ib0", 10)?;
    Ok(line(&said, "ib0:"))
}

fn ethtool(lab: &mut Guests, _: &Options) -> Outcome {
    let said = lab.ok(
        1,
        "ethtool -i ib0 && ethtool ib0 | grep 'Link detected: yes' && ethtool -S ib0",
        10,
    )?;
    let driver = line(&said, "driver:");
    let joins = line(&said, "joins:");
    match driver == "driver: openib" && !joins.ends_with(" 0") {
        true => Ok(format!(
            "{driver}, {}, {joins}",
            line(&said, "firmware-version:")
        )),
        false => Err(said),
    }
}

/// Pings without a loss; says how long that took.
fn answered(lab: &mut Guests, guest: usize, what: &str) -> Outcome {
    let said = lab.ok(guest, &format!("ping -q -c 50 -i 0.02 {what}"), 40)?;
    match said.contains(" 0% packet loss") {
        true => Ok(line(&said, "rtt")),
        false => Err(said),
    }
}

fn ping(lab: &mut Guests, _: &Options) -> Outcome {
    // The first waits for address and path.
    waiting(lab, 1, "until_ 50 ping -c 1 -W 1 10.9.1.2", 60)?;
    waiting(lab, 1, "until_ 50 ping -c 1 -W 1 10.9.0.1", 60)?;
    let plain = answered(lab, 1, "10.9.1.2")?;
    answered(lab, 2, "10.9.1.1")?;
    answered(lab, 1, "10.9.0.1")?;
    answered(lab, 1, "-s 2016 10.9.1.2")?;
    // One after the other: each is 33 datagrams, and nothing keeps a sender from sending more than there is room for.
    answered(lab, 1, "-i 0.2 -c 20 -s 65000 10.9.1.2")?;
    Ok(plain)
}

fn ping6(lab: &mut Guests, _: &Options) -> Outcome {
    waiting(lab, 1, "until_ 50 ping -c 1 -W 1 fd09::100:2", 60)?;
    answered(lab, 2, "fd09::100:1")?;
    answered(lab, 1, "-i 0.2 -c 20 -s 65000 fd09::100:2")?;
    answered(lab, 1, "fd09::100:2")
}

fn multicast(lab: &mut Guests, _: &Options) -> Outcome {
    for guest in [1, 2] {
        lab.ok(
            guest,
            "echo 0 > /proc/sys/net/ipv4/icmp_echo_ignore_broadcasts",
            10,
        )?;
    }
    let said = lab
        .said(1, "ping -c 5 -I ib0 224.0.0.1; ping -c 5 ff02::1%ib0", 40)?
        .text;
    if !said.contains("from 10.9.1.2") || !said.contains("from fe80") {
        return Err(said);
    }
    let said = lab
        .said(2, "ping -c 5 -I ib0 224.0.0.1; ping -c 5 ff02::1%ib0", 40)?
        .text;
    if !said.contains("from 10.9.1.1") || !said.contains("from fe80") {
        return Err(said);
    }
    Ok(line(&said, "from 10.9.1.1"))
}

fn iperf(lab: &mut Guests, _: &Options) -> Outcome {
    let mut figures = Vec::new();
    for more in ["", "-R", "-u -b 20M -l 1400", "-u -b 20M -l 1400 -R"] {
        let ask = format!("iperf3 -J -c 10.9.1.1 -t 4 {more}");
        let (_, said) = lab.pair(
            crate::vm::Listens::Tcp(5201),
            (1, "iperf3 -s -1"),
            (2, &ask),
            60,
        )?;
        // What came in: the last but one of all sums, or the only one of UDP.
        let number = |line: &str| line.split([':', ',']).nth(1)?.trim().parse::<f64>().ok();
        let rates = said
            .lines()
            .filter(|line| line.contains("\"bits_per_second\""));
        let rate = rates.filter_map(number).next_back().unwrap_or(0.0) / 1e6;
        let cpu = line(&said, "\"remote_total\"");
        let cpu = number(&cpu).unwrap_or(0.0);
        if rate < 0.01 {
            return Err(said);
        }
        figures.push(format!("{rate:.1} ({cpu:.0} %)"));
    }
    Ok(format!(
        "Mbit/s, and guest 1's processor: TCP in {}, out {}, UDP in {}, out {}",
        figures[0], figures[1], figures[2], figures[3]
    ))
}

fn p_key(lab: &mut Guests, _: &Options) -> Outcome {
    lab.ok(2, "echo 0x8001 > /sys/class/net/ib0/create_child", 20)?;
    for guest in [1, 2] {
        let script = format!(
            "ip link set ib0.8001 up && ip addr replace 10.8.1.{guest}/16 dev ib0.8001
            until_ 150 sh -c \"ip link show ib0.8001 | grep -q 'state UP'\""
        );
        waiting(lab, guest, &script, 60)?;
    }
    waiting(lab, 1, "until_ 50 ping -c 1 -W 1 10.8.1.2", 60)?;
    answered(lab, 1, "10.8.1.2")
}

/// Both ends send by connections, packets of up to 64 KiB, and then by datagrams again.
fn connected(lab: &mut Guests, _: &Options) -> Outcome {
    let mode = |lab: &mut Guests, mode: &str, mtu: u32| -> Result<(), String> {
        for guest in [1, 2] {
            let script = format!(
                "echo {mode} > /sys/class/net/ib0/mode && grep -q {mode} /sys/class/net/ib0/mode
                until_ 50 grep -q '^{mtu}$' /sys/class/net/ib0/mtu; ip neigh flush dev ib0"
            );
            waiting(lab, guest, &script, 30)?;
        }
        waiting(lab, 1, "until_ 50 ping -c 1 -W 1 10.9.1.2", 60).map(drop)
    };
    mode(lab, "connected", 65520)?;
    let mut last = String::new();
    for (guest, peer) in [(1, 2), (2, 1)] {
        // The first may wait for the connection.
        let first = format!("until_ 50 ping -c 1 -W 1 -s 40000 10.9.1.{peer}");
        waiting(lab, guest, &first, 60)?;
        let counter = "/sys/class/net/ib0/statistics/tx_packets";
        let sent = |lab: &mut Guests| -> Result<u64, String> {
            let said = lab.ok(guest, &format!("cat {counter}"), 10)?;
            said.trim().parse().map_err(|_| said)
        };
        let before = sent(lab)?;
        for size in [2000, 9000, 40000, 65492] {
            last = answered(lab, guest, &format!("-s {size} 10.9.1.{peer}"))?;
        }
        let packets = sent(lab)?.saturating_sub(before);
        if packets > 300 {
            return Err(format!("200 echoes were {packets} packets: in fragments"));
        }
        answered(lab, guest, &format!("-s 60000 fd09::100:{peer}"))?;
    }
    // The host with the subnet manager takes datagrams alone, and whoever wants to send more is told.
    waiting(lab, 1, "until_ 50 ping -c 1 -W 1 10.9.0.1", 60)?;
    let said = lab.said(1, "ping -c 3 -M do -s 9000 10.9.0.1", 20)?.text;
    if !said.contains("mtu = 2044") && !said.contains("mtu=2044") {
        return Err(format!("9000 bytes in one piece: {said}"));
    }
    let counters = lab.ok(1, "ethtool -S ib0", 10)?;
    let rates = iperf(lab, &options())?;
    // One end in each mode: it still takes connections.
    lab.ok(2, "echo datagram > /sys/class/net/ib0/mode", 10)?;
    waiting(lab, 1, "until_ 50 ping -c 1 -W 1 -s 9000 10.9.1.2", 60)?;
    answered(lab, 1, "-s 9000 10.9.1.2")?;
    mode(lab, "datagram", 2044)?;
    answered(lab, 1, "10.9.1.2")?;
    Ok(format!(
        "{rates}; 65492 bytes: {last}; {}, {}",
        line(&counters, "connected_sent:"),
        line(&counters, "connected_received:")
    ))
}

fn flap(lab: &mut Guests, _: &Options) -> Outcome {
    lab.command("down 1 host-1")?;
    waiting(
        lab,
        1,
        "until_ 50 sh -c \"ip link show ib0 | grep -q NO-CARRIER\"",
        30,
    )?;
    lab.command("up 1 host-1")?;
    waiting(lab, 1, "until_ 150 ping -c 1 -W 1 10.9.1.2", 90)?;
    answered(lab, 1, "10.9.1.2")
}

/// The HCA may not write to memory for a moment, which is a catastrophic error: it is reset, and all goes on.
fn restart(lab: &mut Guests, _: &Options) -> Outcome {
    let script = "setpci -s $(basename $(ls -d /sys/bus/pci/drivers/openib/0000:*)) COMMAND=2
        ping -q -c 3 -W 1 10.9.1.2 > /dev/null
        until_ 150 sh -c \"dmesg | grep -q 'openib.*works again'\" || { dmesg | tail -n 40; exit 1; }
        until_ 50 ping -c 1 -W 1 10.9.1.2 || { dmesg | tail -n 40; ip -s link show ib0; exit 1; }
        dmesg | grep -c 'openib.*it is restarted'; dmesg -l emerg,alert,crit,err,warn | wc -l > /run/seen";
    let said = waiting(lab, 1, script, 90)?;
    answered(lab, 1, "10.9.1.2")?;
    Ok(format!("{} time", said.trim()))
}

fn unbind(lab: &mut Guests, _: &Options) -> Outcome {
    let script = "cd /sys/bus/pci/drivers/openib && slot=$(ls -d 0000:*) && echo $slot > unbind && ! ip link show ib0 2> /dev/null && echo $slot > bind && ip link show ib0";
    lab.ok(1, script, 60)?;
    up(lab, &options())?;
    waiting(lab, 1, "until_ 100 ping -c 1 -W 1 10.9.1.2", 90)?;
    answered(lab, 1, "10.9.1.2")
}

fn options() -> Options {
    Options {
        target: For {
            headers: None,
            kernel: crate::vm::Kernel::Stable,
        },
        chip: Vec::new(),
        quick: false,
        loads: 0,
        module: None,
        filter: Vec::new(),
        without: Vec::new(),
        list: false,
    }
}

fn reload(lab: &mut Guests, options: &Options) -> Outcome {
    let memory = "sync; echo 3 > /proc/sys/vm/drop_caches; awk '/^Slab|^VmallocUsed|^MemFree/ { print $2 }' /proc/meminfo";
    let mut seen = Vec::new();
    for _ in 0..options.loads {
        lab.ok(1, "rmmod openib && ! ip link show ib0 2> /dev/null && insmod /run/openib.ko p_keys=0x8001", 90)?;
        up(lab, options)?;
        waiting(lab, 1, "until_ 100 ping -c 1 -W 1 10.9.1.2", 90)?;
        lab.ok(1, "ping -q -f -c 200 10.9.1.2", 40)?;
        let said = lab.ok(1, memory, 20)?;
        seen.push(said.split_whitespace().collect::<Vec<_>>().join(" "));
    }
    let ends = [seen.first(), seen.last()];
    let [first, last] = ends.map(|end| end.cloned().unwrap_or_default());
    Ok(format!(
        "{} times; MemFree, Slab, VmallocUsed in kB: {first}, at last {last}",
        options.loads
    ))
}

/// The same traffic with Linux's own driver in guest 1, to compare.
fn compare(lab: &mut Guests, options: &Options) -> Outcome {
    lab.ok(1, "rmmod openib && modprobe -a ib_ipoib ib_mthca", 60)?;
    up(lab, options)?;
    waiting(lab, 1, "until_ 100 ping -c 1 -W 1 10.9.1.2", 90)?;
    let pings = answered(lab, 1, "10.9.1.2")?;
    Ok(format!("{}; {pings}", iperf(lab, options)?))
}
