//! perftest: bandwidth and latency of every operation on every transport that has it.

use super::{Case, Outcome, Terms};
use crate::vm::lab::{Lab, Listens};

/// All of them.
pub const CASES: &[Case] = &[
    Case::new("perftest send", |lab, terms| {
        perftest(lab, terms, "send", &["RC", "UC", "UD"])
    }),
    Case::new("perftest write", |lab, terms| {
        perftest(lab, terms, "write", &["RC", "UC"])
    }),
    Case::new("perftest read", |lab, terms| {
        perftest(lab, terms, "read", &["RC"])
    }),
    Case::new("perftest atomic", |lab, terms| {
        perftest(lab, terms, "atomic", &["RC"])
    }),
];

fn perftest(lab: &mut Lab, terms: &Terms, what: &str, transports: &[&str]) -> Outcome {
    let mut figures = Vec::new();
    for transport in transports {
        for measure in ["bw", "lat"] {
            let sizes = match (terms.quick, *transport) {
                _ if what == "atomic" => "",
                (true, _) => "-s 1024",
                (false, _) => "-a",
            };
            let choice = match what {
                "read" | "atomic" => String::new(),
                _ => format!("-c {transport}"),
            };
            let mut all = vec![format!("{choice} {sizes}")];
            // A WRITE has no events; latency with events is not tried, since perftest posts after an event that found
            // no completion.
            if measure == "bw" && what != "write" {
                let size = if what == "atomic" { "" } else { "-s 1024" };
                all.push(format!("{choice} {size} -e"));
            }
            if measure == "bw" && !terms.quick {
                let size = if what == "atomic" { "" } else { "-s 1024" };
                all.push(format!("{choice} {size} -q 4"));
                if what != "atomic" {
                    all.push(format!("{choice} {size} -b"));
                }
            }
            for words in all {
                // All sizes go up to 8 MiB.
                let count = if words.contains("-a") { 20 } else { 100 };
                let serve = format!("ib_{what}_{measure} -F -n {count} {words} 2>&1");
                let ask = serve.replace("2>&1", "10.9.1.1 2>&1");
                let (_, said) = lab.pair(Listens::Tcp(18515), (1, &serve), (2, &ask), 120)?;
                let last = figure(&said).ok_or_else(|| format!("no figure in:\n{said}"))?;
                if measure == "bw" && words.contains("-q") || figures.is_empty() {
                    figures.push(format!("{transport} {last}"));
                }
            }
        }
    }
    Ok(figures.join("; "))
}

/// The last line of figures.
fn figure(said: &str) -> Option<String> {
    let digit = |first: char| first.is_ascii_digit();
    let mut lines = said.lines().rev();
    let line = lines.find(|line| line.trim_start().starts_with(digit))?;
    Some(line.split_whitespace().collect::<Vec<_>>().join(" "))
}
