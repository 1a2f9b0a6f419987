//! What CI runs, stage by stage, each with its own time limit.

use crate::run::{cargo, finish, root};
use crate::say;
use std::process::Command;
use std::time::{Duration, Instant};

/// The crates that must build without an operating system.
const BARE: [&str; 9] = [
    "core-ib",
    "hca-abi",
    "mthca-hw",
    "ib-mad",
    "ib-cm",
    "ipoib",
    "ib-sm",
    "ib-stack",
    "platform-linux",
];

struct Stage {
    name: &'static str,
    minutes: u64,
    run: fn(Duration) -> Result<(), String>,
}

const STAGES: [Stage; 16] = [
    Stage {
        name: "format",
        minutes: 2,
        run: |limit| finish(&mut cargo(&["fmt", "--all", "--check"]), Some(limit)),
    },
    Stage {
        name: "test",
        minutes: 40,
        run: |limit| {
            // By the same door as a newcomer.
            own(&["test"], limit)
        },
    },
    Stage {
        name: "lint",
        minutes: 15,
        run: |limit| {
            let words = [
                "clippy",
                "--workspace",
                "--all-targets",
                "--features",
                "platform-user/program",
                "--",
                "-D",
                "warnings",
            ];
            finish(&mut cargo(&words), Some(limit))
        },
    },
    Stage {
        name: "doc",
        minutes: 10,
        run: |limit| {
            let words = ["doc", "--workspace", "--no-deps", "--quiet"];
            finish(
                cargo(&words).env("RUSTDOCFLAGS", "-D warnings"),
                Some(limit),
            )
        },
    },
    Stage {
        name: "bare",
        minutes: 10,
        run: bare,
    },
    Stage {
        // The tests have it as they build; here as a board would.
        name: "bare-ping",
        minutes: 10,
        run: |limit| {
            let words = ["test", "--release", "--package", "openib-tests"];
            finish(cargo(&words).args(["--test", "bare"]), Some(limit))
        },
    },
    Stage {
        name: "package",
        minutes: 20,
        run: package,
    },
    Stage {
        name: "capture",
        minutes: 10,
        run: |limit| script(".ci/capture", limit),
    },
    Stage {
        name: "tun",
        minutes: 10,
        run: |limit| script(".ci/tun", limit),
    },
    Stage {
        name: "panics",
        minutes: 10,
        run: |limit| script(".ci/panics", limit),
    },
    Stage {
        name: "embedding",
        minutes: 10,
        run: |limit| crate::kmod::embedding(Some(limit)),
    },
    Stage {
        // Built against the headers of this machine's kernel package; `cargo xtask kmod test` loads it.
        name: "kmod",
        minutes: 10,
        run: crate::kmod::ci,
    },
    Stage {
        name: "fuzz",
        minutes: 15,
        run: |limit| script(".ci/fuzz", limit),
    },
    Stage {
        // Five minutes of it make the guests.
        name: "vm",
        minutes: 45,
        run: vm,
    },
    Stage {
        // The least of it: of each mode, that it loads beside Linux's own driver, and that they hear each other.
        name: "module",
        minutes: 15,
        run: |limit| {
            let cases = ["tavor/ping", "tavor/unbind", "arbel/ping"];
            own(&[&["kmod", "test"], &cases[..]].concat(), limit)
        },
    },
    Stage {
        name: "user",
        minutes: 20,
        run: |limit| own(&["user", "test", "--chip", "tavor,arbel"], limit),
    },
];

/// Runs the stages whose names begin with one of `wanted`, or all.
pub fn run(wanted: &[String]) -> Result<(), String> {
    for word in wanted {
        if !STAGES.iter().any(|stage| stage.name.starts_with(word)) {
            let names: Vec<_> = STAGES.iter().map(|stage| stage.name).collect();
            return Err(format!(
                "no stage is called {word}: there are {}",
                names.join(", ")
            ));
        }
    }
    let chosen = |stage: &&Stage| {
        wanted.is_empty() || wanted.iter().any(|word| stage.name.starts_with(word))
    };
    let mut failed = Vec::new();
    for stage in STAGES.iter().filter(chosen) {
        say!("== {} (limit {} min)", stage.name, stage.minutes);
        let start = Instant::now();
        let result = (stage.run)(Duration::from_secs(stage.minutes * 60));
        let seconds = start.elapsed().as_secs_f64();
        match result {
            Ok(()) => say!("== {}: passed in {seconds:.0} s", stage.name),
            Err(error) => {
                say!("== {}: FAILED in {seconds:.0} s: {error}", stage.name);
                failed.push(stage.name);
            }
        }
    }
    if failed.is_empty() {
        Ok(())
    } else {
        Err(format!("failed: {}", failed.join(", ")))
    }
}

/// Builds the library crates for a machine without an operating system. The compiler's own `core` for such a
/// target is built from source, which takes a compiler with its sources: `OPENIB_RUSTC`, else rustup's `rust-src`.
fn bare(limit: Duration) -> Result<(), String> {
    let words = [
        "build",
        "-Zbuild-std=core",
        "--target",
        "x86_64-unknown-none",
    ];
    let mut command = cargo(&words);
    for package in BARE {
        command.args(["--package", package]);
    }
    if let Some(rustc) = std::env::var_os("OPENIB_RUSTC") {
        command.env("RUSTC", rustc);
    }
    let target = root().join("target/bare");
    command
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_TARGET_DIR", target);
    finish(&mut command, Some(limit))
}

/// This program itself.
fn own(words: &[&str], limit: Duration) -> Result<(), String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(own);
    command.args(words).current_dir(root());
    finish(&mut command, Some(limit))
}

/// The short matrix: Linux guests on the device models.
fn vm(limit: Duration) -> Result<(), String> {
    let mut words = vec!["vm", "test", "--quick"];
    // The tools, and not the faults, which take a third of the time and a machine of a steady speed.
    let faults = [
        "flap",
        " of 1 %",
        "way round",
        "restart",
        "failover",
        "soak",
        "crash",
    ];
    for word in faults {
        words.extend(["--without", word]);
    }
    own(&words, limit)
}

/// Packages every crate and builds it from its package. Cargo keeps what it has unpacked by the directory, name and version,
/// so that in a directory used before it would build on the packages of then.
fn package(limit: Duration) -> Result<(), String> {
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed();
    let now = now.map_err(|error| error.to_string())?;
    let fresh = root().join(format!("target/packages-{}", now.as_nanos()));
    let words = ["package", "--workspace", "--allow-dirty", "--quiet"];
    let result = finish(cargo(&words).arg("--target-dir").arg(&fresh), Some(limit));
    // What cannot be removed is in nobody's way.
    let _ = std::fs::remove_dir_all(fresh);
    result
}

fn script(path: &str, limit: Duration) -> Result<(), String> {
    finish(
        Command::new("bash")
            .arg(root().join(path))
            .current_dir(root()),
        Some(limit),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_that_there_is_not_is_refused_before_any_runs() {
        let error = run(&["format".into(), "nosuch".into()]).unwrap_err();
        assert!(
            error.starts_with("no stage is called nosuch: there are format, "),
            "{error}"
        );
    }
}
