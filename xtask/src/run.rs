//! Starting cargo and the project's programs.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// The checkout.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

/// `cargo`, in the checkout.
pub fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(root());
    command
}

/// Runs `command` to its end, for at most `limit` if there is one.
pub fn finish(command: &mut Command, limit: Option<Duration>) -> Result<(), String> {
    let shown = shown(command);
    let mut child = command
        .spawn()
        .map_err(|error| format!("`{shown}` could not be started: {error}"))?;
    let start = Instant::now();
    let status = loop {
        let waited = match limit {
            None => child.wait().map(Some),
            Some(_) => child.try_wait(),
        };
        match waited {
            Err(error) => return Err(format!("`{shown}`: {error}")),
            Ok(Some(status)) => break status,
            Ok(None) if limit.is_some_and(|limit| start.elapsed() > limit) => {
                // It is being given up: that it may be gone already does not matter.
                let _ = child.kill();
                let _ = child.wait();
                let seconds = start.elapsed().as_secs();
                return Err(format!("`{shown}` was given up after {seconds} s"));
            }
            Ok(None) => std::thread::sleep(Duration::from_millis(50)),
        }
    };
    if status.success() {
        Ok(())
    } else {
        Err(format!("`{shown}` ended with {status}"))
    }
}

fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    words.join(" ")
}

/// The simulator's subcommand `what`.
pub fn simulator(what: &str, options: &[String]) -> Result<(), String> {
    let mut command = cargo(&[
        "run",
        "--quiet",
        "--release",
        "--package",
        "openib-sim",
        "--",
        what,
    ]);
    command.args(options);
    finish(&mut command, None)
}

/// All tests that need no privilege: those of the workspace, and those of the crates outside it.
pub fn tests(options: &[String]) -> Result<(), String> {
    // The same cases in every run, so that a change is judged and not a throw of dice; others by setting the seed.
    let seed = std::env::var("PROPTEST_RNG_SEED").unwrap_or_else(|_| "20041".into());
    let mut tests = cargo(&["test", "--workspace"]);
    finish(tests.args(options).env("PROPTEST_RNG_SEED", seed), None)?;
    if options.is_empty() && root().join("tests/consumer/Cargo.toml").exists() {
        let consumer = "tests/consumer/Cargo.toml";
        finish(&mut cargo(&["test", "--manifest-path", consumer]), None)?;
    }
    Ok(())
}
