//! The module in a guest, Linux's own driver in another, and what they have to say to each other.

use super::cases::{CASES, Case, FIRST, Outcome};
use super::{For, build, place};
use crate::run::finish;
use crate::say;
use crate::vm::{Guests, Kernel, WantedGuests, set_up};
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
    pub(super) loads: u32,
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
    let debug = options.target.kernel == Kernel::Debug;
    let wanted = |case: &&Case| {
        if case.debug && !debug {
            return false;
        }
        let name = format!("{}/{}", group.name, case.name);
        let holds = |word: &String| name.contains(word.as_str());
        match options.filter.is_empty() {
            true => (whole || case.least || case.debug) && !options.without.iter().any(holds),
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
        iommu: false,
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
                "ODEBUG",
                "INFO:",
            ];
            words.iter().any(|word| line.contains(word))
        });
    let lines: Vec<&str> = lines.collect();
    match lines.is_empty() {
        true => Ok(note),
        false => Err(format!("the kernel complains:\n{}", lines.join("\n"))),
    }
}
