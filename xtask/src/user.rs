//! `cargo xtask user`: the program `openib-user` in two guests, one with an IOMMU and VFIO, the other without and with
//! `uio_pci_generic`, on a fabric with hosts of ours.

use crate::run::{cargo, finish};
use crate::say;
use crate::vm::{Guests, Kernel, WantedGuests, place, set_up};
use clap::{Args, Subcommand};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// Subcommands.
#[derive(Subcommand)]
pub enum User {
    /// Runs the cases, and prints a table.
    Test(Options),
}

/// Flags of `test`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// HCAs in both guests: tavor, arbel-compat, arbel, sinai, sinai-old. May be given several times.
    #[arg(long, value_name = "CHIP", value_delimiter = ',', default_values_t = ["tavor", "arbel", "sinai"].map(String::from))]
    chip: Vec<String>,
    /// Which kernel the guests run.
    #[arg(long, value_enum, default_value = "stable")]
    kernel: Kernel,
    /// A program that is built already.
    #[arg(long)]
    program: Option<PathBuf>,
}

type Outcome = Result<String, String>;

/// One thing that is tried.
struct Case {
    name: &'static str,
    run: fn(&mut Guests) -> Outcome,
}

/// In this order. Without the first two the others are not tried.
const CASES: [Case; 10] = [
    Case {
        name: "VFIO, messages",
        run: messages,
    },
    Case {
        name: "uio_pci_generic",
        run: uio,
    },
    Case {
        name: "ping between the two",
        run: ping,
    },
    Case {
        name: "iperf3",
        run: iperf,
    },
    Case {
        name: "link flap",
        run: flap,
    },
    Case {
        name: "what is refused",
        run: refused,
    },
    Case {
        name: "in order to its end",
        run: end,
    },
    Case {
        name: "VFIO, the pin, small pages",
        run: pin,
    },
    Case {
        name: "killed and started again",
        run: killed,
    },
    Case {
        name: "ledger",
        run: ledger,
    },
];
const FIRST: usize = 2;

/// Runs a subcommand.
pub fn run(User::Test(options): User) -> Result<(), String> {
    set_up(&[options.kernel], false)?;
    let program = match &options.program {
        Some(program) => program.clone(),
        None => build()?,
    };
    let mut failed = Vec::new();
    for chip in &options.chip {
        failed.extend(run_group(chip, options.kernel, &program)?);
    }
    match failed.is_empty() {
        true => Ok(()),
        false => Err(format!("failed: {}", failed.join(", "))),
    }
}

/// Builds the program.
fn build() -> Result<PathBuf, String> {
    let words = "build --quiet --release --package platform-user --features program";
    let words: Vec<&str> = words.split(' ').collect();
    finish(&mut cargo(&words), None)?;
    let vm = place();
    Ok(vm.parent().unwrap_or(&vm).join("release/openib-user"))
}

/// Gives the names of those that failed.
fn run_group(chip: &str, kernel: Kernel, program: &Path) -> Result<Vec<String>, String> {
    let serve =
        "--topology vm/fabric.ibsim --guest guest-1,guest-2 --ours 2 --managers 2 --guests 2";
    let wanted = WantedGuests {
        guests: 2,
        model: chip.into(),
        kernel,
        more: serve.split(' ').map(String::from).collect(),
        ethernet: false,
        iommu: true,
        interactive: false,
    };
    let mut lab = Guests::start(&wanted, &place().join("run").join(format!("user-{chip}")))?;
    bring(&mut lab, program)?;
    let mut failed = Vec::new();
    for (number, case) in CASES.iter().enumerate() {
        let start = Instant::now();
        let name = format!("{chip}/{}", case.name);
        lab.remark(&name);
        let result = (case.run)(&mut lab).and_then(|note| match lab.complaints()? {
            said if said.is_empty() => Ok(note),
            said => Err(format!("the kernel complains:\n{}", said.join("\n"))),
        });
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

/// Puts the program into both guests, by way of a script: guests have no network that is not under test.
fn bring(lab: &mut Guests, program: &Path) -> Result<(), String> {
    let small = place().join("run/openib-user");
    let mut strip = Command::new("objcopy");
    strip.arg("--strip-all").arg(program).arg(&small);
    finish(&mut strip, None)?;
    let output = Command::new("base64").arg(&small).output();
    let output = output.map_err(|error| format!("base64: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let script = format!(
        "base64 -d > /run/openib-user <<'END'\n{text}END\nchmod +x /run/openib-user
        echo {HUGE_PAGES} > /proc/sys/vm/nr_hugepages && grep -q 'HugePages_Free: *{HUGE_PAGES}' /proc/meminfo"
    );
    for guest in [1, 2] {
        lab.quiet(guest, &script, 60)?;
    }
    Ok(())
}

/// Of 2 MiB, in each guest: what the program asks for, and a few more.
const HUGE_PAGES: u32 = 36;

/// Words of the shell: `until_ TIMES COMMAND` (five times a second), `start WORDS` and `stop` of the program.
const WORDS: &str = "n=$(hostname); n=${n#guest}; log=/run/openib-user.log; device=$(lspci -D -d 15b3: | cut -d' ' -f1)
until_() { t=$1; shift; for i in $(seq $t); do \"$@\" > /dev/null 2>&1 && return 0; sleep 0.2; done; echo \"never: $*\"; return 1; }
driver() { basename $(readlink /sys/bus/pci/devices/$device/driver 2> /dev/null) 2> /dev/null; }
start() {
  setsid /run/openib-user --address 10.9.1.$n/16 --address fd09::100:$n/64 \"$@\" > $log 2>&1 < /dev/null & echo $! > /run/openib-user.pid
  until_ 150 grep -q 'the interface is up' $log || { cat $log; return 1; }
  cat $log
}
stop() {
  kill -TERM $(cat /run/openib-user.pid) && until_ 100 grep -q 'left behind' $log && sleep 0.5; cat $log
  ! grep -q '^openib-user:' $log && grep -q '^0 bytes of DMA memory were left behind' $log && grep -q 'HugePages_Free: *36' /proc/meminfo
}
";

fn script(lab: &mut Guests, guest: usize, script: &str, limit: u64) -> Outcome {
    lab.ok(guest, &format!("{WORDS}{script}"), limit)
}

/// The first line of `said` with `word` in it.
fn line(said: &str, word: &str) -> String {
    let line = said.lines().find(|line| line.contains(word));
    line.unwrap_or_default().trim().into()
}

/// Between a guest and a host of ours, each asking.
fn with_ours(lab: &mut Guests, guest: usize) -> Outcome {
    let ask = "until_ 50 ping -c 1 -W 1 10.9.0.2 && ping -q -c 20 -i 0.05 10.9.0.2";
    let said = script(lab, guest, ask, 60)?;
    if !said.contains(" 0% packet loss") {
        return Err(said);
    }
    let asked = lab
        .command(&format!("ping ours-2 10.9.1.{guest} 10"))?
        .join("\n");
    if !asked.contains("10 sent, 10 answered") {
        return Err(asked);
    }
    Ok(line(&said, "rtt"))
}

/// It takes the HCA from Linux' own driver.
fn messages(lab: &mut Guests) -> Outcome {
    let said = script(
        lab,
        1,
        "modprobe ib_mthca && [ $(driver) = ib_mthca ] && start && [ $(driver) = vfio-pci ]",
        60,
    )?;
    if !said.contains("MSI-X") {
        return Err(said);
    }
    Ok(format!(
        "{}; {}",
        line(&said, "the interface is up"),
        with_ours(lab, 1)?
    ))
}

fn uio(lab: &mut Guests) -> Outcome {
    let said = script(
        lab,
        2,
        "modprobe ib_mthca && start --driver uio && [ $(driver) = uio_pci_generic ]",
        60,
    )?;
    if !said.contains("INTx") {
        return Err(said);
    }
    Ok(format!(
        "{}; {}",
        line(&said, "the interface is up"),
        with_ours(lab, 2)?
    ))
}

fn ping(lab: &mut Guests) -> Outcome {
    let mut last = String::new();
    for (guest, peer) in [(1, 2), (2, 1)] {
        let text = format!(
            "until_ 50 ping -c 1 -W 1 10.9.1.{peer} && until_ 50 ping -c 1 -W 1 fd09::100:{peer}
            ping -q -c 50 -i 0.02 10.9.1.{peer} && ping -q -c 20 -i 0.05 -s 2016 10.9.1.{peer} && ping -q -c 20 -i 0.05 fd09::100:{peer}"
        );
        let said = script(lab, guest, &text, 60)?;
        if said.matches(" 0% packet loss").count() != 3 {
            return Err(said);
        }
        last = line(&said, "rtt");
    }
    Ok(last)
}

fn iperf(lab: &mut Guests) -> Outcome {
    let mut rates = Vec::new();
    for more in ["", "-R"] {
        let ask = format!("iperf3 -J -c 10.9.1.1 -t 4 {more}");
        let listens = crate::vm::Listens::Tcp(5201);
        let (_, said) = lab.pair(listens, (1, "iperf3 -s -1"), (2, &ask), 60)?;
        let number = |line: &str| line.split([':', ',']).nth(1)?.trim().parse::<f64>().ok();
        let all = said
            .lines()
            .filter(|line| line.contains("\"bits_per_second\""));
        let rate = all.filter_map(number).next_back().unwrap_or(0.0) / 1e6;
        if rate < 0.1 {
            return Err(said);
        }
        rates.push(format!("{rate:.1}"));
    }
    Ok(format!(
        "Mbit/s to guest 1 and from it: {}",
        rates.join(", ")
    ))
}

fn flap(lab: &mut Guests) -> Outcome {
    lab.command("down 1 guest-1")?;
    script(lab, 1, "until_ 50 grep -q 'the interface: Down' $log", 30)?;
    lab.command("up 1 guest-1")?;
    script(lab, 1, "until_ 150 ping -c 1 -W 1 10.9.1.2", 90)?;
    with_ours(lab, 1)
}

/// Words of the shell: `refuses WHY WORDS` of the program.
const REFUSES: &str = "other() { /run/openib-user --tun other --address 10.8.0.1/24 \"$@\" 2>&1; }
refuses() { why=$1; shift; said=$(other \"$@\"); echo \"$said\" | grep -q \"$why\" || { echo \"$*: $said\"; exit 1; }; }";

/// Each says why, and what runs is left alone.
fn refused(lab: &mut Guests) -> Outcome {
    let text = format!("{REFUSES}\nrefuses 'is not an InfiniHost' --device 00:00.0");
    let one = "refuses 'is behind an IOMMU' --driver uio; refuses 'is in use' --memory 4";
    let two = "refuses 'is not behind an IOMMU'; refuses 'is in use' --driver uio --memory 4";
    for (guest, more) in [(1, one), (2, two)] {
        script(lab, guest, &format!("{text}\n{more}"), 60)?;
        with_ours(lab, guest)?;
    }
    Ok("six attempts".into())
}

/// Signals end it, and Linux' own driver has the HCA again.
fn end(lab: &mut Guests) -> Outcome {
    let mut last = String::new();
    for guest in [1, 2] {
        last = script(
            lab,
            guest,
            "stop && until_ 20 [ $(driver) = ib_mthca ] && grep ^0x /sys/class/infiniband/mthca0/ports/1/gids/0 || true; stat -c %N /sys/bus/pci/devices/$device/driver; [ $(driver) = ib_mthca ]",
            60,
        )?;
    }
    Ok(line(&last, "packets sent"))
}

fn pin(lab: &mut Guests) -> Outcome {
    let said = script(lab, 1, "start --interrupts pin --small-pages", 60)?;
    if !said.contains("INTx") {
        return Err(said);
    }
    let pings = with_ours(lab, 1)?;
    script(lab, 1, "stop", 60)?;
    // Refused, it leaves the HCA to its driver.
    let more = "refuses nr_hugepages --driver uio --memory 512; [ $(driver) = ib_mthca ]";
    script(lab, 2, &format!("{REFUSES}\n{more}"), 60)?;
    Ok(pings)
}

/// While the peer floods it. What it had is the system's again, and the HCA writes nowhere.
fn killed(lab: &mut Guests) -> Outcome {
    script(lab, 1, "start", 60)?;
    script(lab, 2, "start --driver uio", 60)?;
    let mut last = String::new();
    for (guest, more) in [(1, ""), (2, "--driver uio"), (1, "--small-pages")] {
        let peer = 3 - guest;
        script(
            lab,
            peer,
            &format!("until_ 50 ping -c 1 -W 1 10.9.1.{guest}"),
            60,
        )?;
        let flood = format!("ping -q -f -w 4 10.9.1.{guest}; true");
        let flooding = lab.start_script(peer, &flood, 30)?;
        let text = format!(
            "sleep 1; kill -9 $(cat /run/openib-user.pid); until_ 50 grep -q 'HugePages_Free: *{HUGE_PAGES}' /proc/meminfo || exit 1
            lspci -v -s $device | grep Flags; lspci -v -s $device | grep Flags: | grep -q 'bus master' && exit 1
            start {more}"
        );
        script(lab, guest, &text, 90)?;
        lab.end_script(peer, &flood, &flooding)?;
        last = with_ours(lab, guest)?;
    }
    for guest in [1, 2] {
        script(lab, guest, "stop", 60)?;
    }
    Ok(last)
}

/// The models acted on all that was asked of them. What docs/status.md explains, and what a kill brings.
fn ledger(lab: &mut Guests) -> Outcome {
    let said = lab.ledgers()?;
    let entry = |line: &String| {
        let (count, name) = line.trim().split_once("  ")?;
        count.parse::<u64>().ok().map(|_| name.trim().to_owned())
    };
    let mut found: Vec<String> = said.iter().filter_map(entry).collect();
    found.sort();
    found.dedup();
    let explained = ["address vector: static rate", "lost: not in use"];
    let strange = |name: &&String| !explained.iter().any(|word| name.contains(word));
    match found.iter().find(strange) {
        None => Ok(found.join("; ")),
        Some(_) => Err(found.join("\n")),
    }
}
