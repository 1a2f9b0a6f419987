//! Running the matrix: one group of cases after the other, a table, and what it takes to go on after an interruption.

use super::cases::{Case, GROUPS, Group, Terms};
use super::lab::{Lab, simulator};
use super::setup::{self, place};
use clap::Args;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Flags of `test`.
#[derive(Args)]
pub struct Options {
    /// The short run.
    #[arg(long)]
    quick: bool,
    /// Only groups and cases whose names ("group/case") contain one of these.
    filter: Vec<String>,
    /// Without groups and cases whose names contain this. May be given several times.
    #[arg(long, value_name = "WORD")]
    without: Vec<String>,
    /// Goes on where an interrupted run was, and does not repeat what passed.
    #[arg(long)]
    resume: bool,
    /// Minutes of each soak, in place of those of its group.
    #[arg(long)]
    soak: Option<f64>,
    /// Lists what there is.
    #[arg(long)]
    list: bool,
}

/// How a case ended.
#[derive(Clone, Debug)]
struct Entry {
    name: String,
    passed: bool,
    seconds: f64,
    note: String,
}

/// What runs before this one left behind: how long each case took, and what has passed since the last whole run.
struct Memory {
    path: PathBuf,
    entries: BTreeMap<String, (bool, f64)>,
}

impl Memory {
    fn load() -> Self {
        let path = place().join("results");
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let entries = text.lines().filter_map(|line| {
            let mut words = line.split('\t');
            let passed = words.next()? == "passed";
            let seconds = words.next()?.parse().ok()?;
            Some((words.next()?.to_owned(), (passed, seconds)))
        });
        let entries = entries.collect();
        Self { path, entries }
    }

    fn note(&mut self, entry: &Entry) -> Result<(), String> {
        let value = (entry.passed, entry.seconds);
        self.entries.insert(entry.name.clone(), value);
        let lines = self.entries.iter().map(|(name, (passed, seconds))| {
            let word = if *passed { "passed" } else { "failed" };
            format!("{word}\t{seconds:.1}\t{name}\n")
        });
        let told = |error: std::io::Error| format!("{}: {error}", self.path.display());
        std::fs::write(&self.path, lines.collect::<String>()).map_err(told)
    }

    /// Seconds that a case will take.
    fn estimate(&self, name: &str) -> f64 {
        self.entries.get(name).map_or(8.0, |(_, seconds)| *seconds)
    }
}

/// What is to be run: groups, and of each those cases that were asked for and, with `--resume`, have not passed. The
/// first two of a group make the subnet that the others need.
fn plan(options: &Options, memory: &Memory) -> Vec<(&'static Group, Vec<&'static Case>)> {
    let mut plan = Vec::new();
    let words = &options.filter;
    // Another group is run in short if it is asked for.
    let asked = |group: &Group| {
        let mut groups = words.iter().filter_map(|word| word.split_once('/'));
        groups.any(|(name, _)| name == group.name)
    };
    let takes_part = |group: &&Group| group.quick || !options.quick || asked(group);
    for group in GROUPS.iter().filter(takes_part) {
        let wanted = |case: &Case| {
            let name = format!("{}/{}", group.name, case.name);
            let named = words.is_empty() || words.iter().any(|word| name.contains(word.as_str()));
            let mut without = options.without.iter();
            let named = named && !without.any(|word| name.contains(word.as_str()));
            let passed = memory.entries.get(&name).is_some_and(|(passed, _)| *passed);
            named && !(options.quick && case.long) && !(options.resume && passed)
        };
        let rest = group.cases().skip(2).filter(|case| wanted(case));
        let rest: Vec<_> = rest.collect();
        let needed = group.cases().take(2);
        if !rest.is_empty() || needed.clone().any(wanted) {
            plan.push((group, needed.chain(rest).collect()));
        }
    }
    plan
}

/// Runs the matrix, or some of it.
pub fn run(options: &Options) -> Result<(), String> {
    let mut memory = Memory::load();
    let plan = plan(options, &memory);
    if options.list {
        for (group, cases) in &plan {
            cases
                .iter()
                .for_each(|case| println!("{}/{}", group.name, case.name));
        }
        return Ok(());
    }
    let kernels: Vec<_> = plan.iter().map(|(group, _)| group.kernel).collect();
    setup::run(&kernels, false)?;
    simulator()?;
    let names = |(group, cases): &(&Group, Vec<&Case>)| -> Vec<String> {
        let names = cases
            .iter()
            .map(|case| format!("{}/{}", group.name, case.name));
        names.collect()
    };
    let all: Vec<String> = plan.iter().flat_map(names).collect();
    let mut left: f64 = all.iter().map(|name| memory.estimate(name)).sum();
    println!("{} cases, about {:.0} min", all.len(), (left / 60.0).ceil());
    let mut table = Vec::new();
    for (group, cases) in &plan {
        let mut run = GroupRun::new(group, options);
        for case in cases {
            let name = format!("{}/{}", group.name, case.name);
            let number = table.len() + 1;
            print!(
                "[{number}/{}, {:.0} min left] {name} … ",
                all.len(),
                (left / 60.0).ceil()
            );
            // Whoever watches sees it; nobody else needs to.
            let _ = std::io::stdout().flush();
            left -= memory.estimate(&name);
            let start = Instant::now();
            let result = run.case(case);
            let passed = result.is_ok();
            let entry = Entry {
                name,
                passed,
                seconds: start.elapsed().as_secs_f64(),
                note: result.unwrap_or_else(|error| error),
            };
            println!(
                "{} ({:.1} s)",
                if passed { "passed" } else { "FAILED" },
                entry.seconds
            );
            if !passed {
                show(&entry, &run.folder);
            }
            memory.note(&entry)?;
            table.push(entry);
        }
        run.close();
    }
    report(&table)
}

/// What went wrong: how it began, how it ended, and where the rest is.
fn show(entry: &Entry, folder: &Path) {
    let lines: Vec<&str> = entry.note.lines().collect();
    let hidden = 1..lines.len().saturating_sub(SHOWN).max(1);
    for (number, line) in lines.iter().enumerate() {
        if hidden.start == number && !hidden.is_empty() {
            println!("    … {} lines; see {}", hidden.len(), folder.display());
        }
        if !hidden.contains(&number) {
            println!("    {line}");
        }
    }
}

/// A group that is being run.
struct GroupRun {
    group: &'static Group,
    terms: Terms,
    folder: PathBuf,
    lab: Option<Lab>,
    /// How often a lab could not be started, or broke.
    broken: u32,
}

/// So many lines of what went wrong are shown.
const SHOWN: usize = 16;

/// With so many broken labs a group is given up.
const PATIENCE: u32 = 3;

impl GroupRun {
    fn new(group: &'static Group, options: &Options) -> Self {
        let short = if options.quick { 0.25 } else { group.soak };
        let minutes = options.soak.unwrap_or(short);
        let terms = Terms {
            quick: options.quick,
            soak: (minutes * 60.0) as u64,
            model: group.model.rsplit(',').next().unwrap_or(group.model),
            manager: group.manager,
        };
        Self {
            group,
            terms,
            folder: place().join("run").join(group.name),
            lab: None,
            broken: 0,
        }
    }

    /// Runs a case, on a new lab if there is none: the first, or one in place of a lab in which a guest died.
    fn case(&mut self, case: &Case) -> Result<String, String> {
        if self.broken >= PATIENCE {
            return Err("not tried: guests of this group keep failing".into());
        }
        let result = self.try_case(case);
        if result.is_err() && self.lab.as_mut().is_none_or(Lab::is_broken) {
            self.broken += 1;
            self.close();
        }
        result
    }

    fn try_case(&mut self, case: &Case) -> Result<String, String> {
        let lab = match &mut self.lab {
            Some(lab) => lab,
            None => {
                let folder = self.folder.join(format!("lab{}", self.broken));
                let lab = self.lab.insert(Lab::start(&self.group.wanted(), &folder)?);
                let first: Vec<_> = self.group.cases().take(2).collect();
                if !first.iter().any(|first| first.name == case.name) {
                    for first in first {
                        (first.run)(lab, &self.terms)?;
                    }
                }
                lab
            }
        };
        lab.remark(case.name);
        let result = (case.run)(lab, &self.terms);
        let complaints = lab.complaints();
        if let Err(error) = &result {
            lab.remark(&format!("failed: {error}"));
        }
        let note = result?;
        let may = |line: &&String| !case.may_say.iter().any(|word| line.contains(word));
        let said = complaints?;
        let said: Vec<_> = said.iter().filter(may).map(String::as_str).collect();
        match said.is_empty() {
            true => Ok(note),
            false => Err(format!("a kernel complains:\n{}", said.join("\n"))),
        }
    }

    fn close(&mut self) {
        self.lab = None;
    }
}

fn report(table: &[Entry]) -> Result<(), String> {
    let width = table
        .iter()
        .map(|entry| entry.name.len())
        .max()
        .unwrap_or(0);
    println!();
    for entry in table {
        let word = if entry.passed { "passed" } else { "FAILED" };
        let note = entry.note.lines().next().unwrap_or_default();
        println!(
            "{word}  {:width$}  {:6.1} s  {note}",
            entry.name, entry.seconds
        );
    }
    let failed = table.iter().filter(|entry| !entry.passed);
    // Once more, where whoever reads the end of a log finds it.
    for entry in failed.clone() {
        let group = entry.name.split('/').next().unwrap_or_default();
        println!("\n{}:", entry.name);
        show(entry, &place().join("run").join(group));
    }
    match failed.count() {
        0 => Ok(()),
        failed => Err(format!("{failed} of {} cases failed", table.len())),
    }
}
