//! Starting cargo and the project's programs.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Says a line on the standard output; if nobody reads it any more, the work goes on.
#[macro_export]
macro_rules! say {
    ($($words:tt)*) => {{
        use std::io::Write;
        let _ = writeln!(std::io::stdout(), $($words)*);
    }};
}

/// The checkout.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

/// The `cargo` that started this program.
fn program() -> std::ffi::OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// `cargo`, in the checkout.
pub fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(program());
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

/// Why a command fails.
#[derive(Debug, PartialEq, Eq)]
pub enum Failure {
    /// As the user is told.
    Told(String),
    /// A program that was run for the user failed, and said why: what it exited with, which is passed on.
    Child(u8),
}

/// Runs `command` for the user, whose it is from here on.
fn pass(command: &mut Command) -> Result<(), Failure> {
    let status = command.status();
    let status = status.map_err(|error| Failure::Told(format!("`{}`: {error}", shown(command))))?;
    if status.success() {
        return Ok(());
    }
    // As a shell says it.
    let signal = || status.signal().map_or(1, |signal| 128 + signal);
    let code = status.code().unwrap_or_else(signal);
    Err(Failure::Child(u8::try_from(code).unwrap_or(1)))
}

/// The simulator's subcommand `what`, in place of this program and where the user is: paths are the user's, signals
/// and what it exits with are the simulator's.
pub fn simulator(what: &str, options: &[String]) -> Result<(), Failure> {
    let mut command = Command::new(program());
    command.args(["run", "--release", "--manifest-path"]);
    command.arg(root().join("openib-sim/Cargo.toml"));
    // The first time takes minutes, which should be seen to pass.
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    if target.join("release/openib-sim").exists() {
        command.arg("--quiet");
    }
    let error = command.args(["--", what]).args(options).exec();
    Err(Failure::Told(format!("`{}`: {error}", shown(&command))))
}

/// All tests that need no privilege: those of the workspace, and those of the crates outside it.
pub fn tests(options: &[String]) -> Result<(), Failure> {
    // The same cases in every run, so that a change is judged and not a throw of dice; others by setting the seed.
    let seed = std::env::var("PROPTEST_RNG_SEED").unwrap_or_else(|_| "20041".into());
    let mut tests = cargo(&["test", "--workspace", "--features", "platform-user/program"]);
    pass(tests.args(options).env("PROPTEST_RNG_SEED", seed))?;
    if options.is_empty() {
        // What is shared without a lock, in every interleaving: see `sync` of both.
        for package in ["core-ib", "mthca-hw"] {
            let words = ["test", "--package", package, "--lib", "loom_"];
            let mut loom = cargo(&words);
            loom.args(["--target-dir", "target/loom"]);
            pass(loom.env("RUSTFLAGS", "--cfg loom"))?;
        }
    }
    if options.is_empty() && root().join("tests/consumer/Cargo.toml").exists() {
        let consumer = "tests/consumer/Cargo.toml";
        pass(&mut cargo(&["test", "--manifest-path", consumer]))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Result<(), Failure> {
        pass(Command::new("sh").args(["-c", script]))
    }

    #[test]
    fn what_a_program_exits_with_is_passed_on() {
        assert_eq!(shell("exit 0"), Ok(()));
        assert_eq!(shell("exit 2"), Err(Failure::Child(2)));
        assert_eq!(shell("kill -TERM $$"), Err(Failure::Child(143)));
        let missing = pass(&mut Command::new("/nonexistent"));
        assert!(matches!(missing, Err(Failure::Told(why)) if why.starts_with("`/nonexistent`: ")));
    }
}
