//! Running the matrix: one group of cases after the other, a table, and what it takes to go on after an interruption.

use super::cases::{Case, GROUPS, Group};
use super::lab::Lab;
use super::setup::{self, place};
use clap::Args;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

/// Flags of `test`.
#[derive(Args)]
pub struct Options {
    /// The short run.
    #[arg(long)]
    quick: bool,
    /// Only groups and cases whose names ("group/case") contain one of these.
    filter: Vec<String>,
    /// Goes on where an interrupted run was, and does not repeat what passed.
    #[arg(long)]
    resume: bool,
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

/// Runs the matrix, or some of it.
pub fn run(options: &Options) -> Result<(), String> {
    let mut memory = Memory::load();
    let mut plan: Vec<(&Group, Vec<&Case>)> = Vec::new();
    for group in GROUPS.iter().filter(|group| group.quick || !options.quick) {
        let full = |case: &Case| format!("{}/{}", group.name, case.name);
        let chosen = |case: &&Case| {
            let name = full(case);
            let words = &options.filter;
            let named = words.is_empty() || words.iter().any(|word| name.contains(word.as_str()));
            named && !(options.quick && case.long)
        };
        let done = |case: &&Case| {
            options.resume
                && memory
                    .entries
                    .get(&full(case))
                    .is_some_and(|(passed, _)| *passed)
        };
        let cases: Vec<&Case> = group.cases.iter().filter(chosen).collect();
        // The first two make the subnet that the others need.
        let first = group.cases.iter().take(2);
        if cases.iter().any(|case| !done(case)) {
            let needed = first.filter(|first| !cases.iter().any(|case| case.name == first.name));
            let others = cases.iter().copied().enumerate();
            let others = others.filter(|(_, case)| {
                !done(case)
                    || group
                        .cases
                        .iter()
                        .take(2)
                        .any(|first| first.name == case.name)
            });
            let all = needed.chain(others.map(|(_, case)| case)).collect();
            plan.push((group, all));
        }
    }
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
        let folder = place().join("run").join(group.name);
        let start = Instant::now();
        let lab = Lab::start(&group.wanted(), &folder);
        let mut lab = match lab {
            Ok(lab) => lab,
            Err(error) => {
                table.push(Entry {
                    name: format!("{}/start", group.name),
                    passed: false,
                    seconds: start.elapsed().as_secs_f64(),
                    note: error,
                });
                continue;
            }
        };
        println!(
            "{}: guests are up after {:.0} s; logs in {}",
            group.name,
            start.elapsed().as_secs_f64(),
            folder.display()
        );
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
            let result = (case.run)(&mut lab, options.quick);
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
                println!("    {}", entry.note.trim_end().replace('\n', "\n    "));
            }
            memory.note(&entry)?;
            table.push(entry);
        }
    }
    report(&table)
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
    let failed = table.iter().filter(|entry| !entry.passed).count();
    match failed {
        0 => Ok(()),
        _ => Err(format!("{failed} of {} cases failed", table.len())),
    }
}
