//! The program that stands for a kernel (`platform-linux/harness`), on a simulated HCA.

use super::place;
use crate::run::{cargo, finish, root};
use crate::say;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A simulator, which ends with this.
struct Simulator(Child);

impl Drop for Simulator {
    fn drop(&mut self) {
        // The end of its input ends it; that it may be gone already does not matter.
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// Builds it, and has it ping a host of ours over a simulated HCA.
pub fn run(limit: Option<Duration>) -> Result<(), String> {
    let target = place().join("embedding");
    let told = |error: std::io::Error| format!("{}: {error}", target.display());
    std::fs::create_dir_all(&target).map_err(told)?;
    let harness = root().join("platform-linux/harness");
    let manifest = root().join("platform-linux/archive/Cargo.toml");
    let mut archive = cargo(&["build", "--quiet", "--release", "--manifest-path"]);
    archive.arg(manifest).arg("--target-dir").arg(&target);
    finish(&mut archive, limit)?;
    // As the Makefile there does it.
    let mut compile = Command::new("cc");
    compile
        .args(["-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror"])
        .args(["-Wno-unused-parameter", "-Wno-sign-compare", "-o"])
        .arg(target.join("ping"))
        .args(["ping.c", "kernel.c", "vfio_user.c"].map(|file| harness.join(file)))
        .arg(target.join("release/libopenib.a"))
        .arg("-pthread");
    finish(&mut compile, limit)?;
    let mut simulator = match std::env::var_os("OPENIB_SIM") {
        Some(path) => Command::new(path),
        None => {
            let build = ["build", "--quiet", "--release", "--package", "openib-sim"];
            finish(&mut cargo(&build), limit)?;
            let release = place().with_file_name("release");
            Command::new(release.join("openib-sim"))
        }
    };
    let mut child = simulator
        .args(["serve", "--commands", "--guests", "1", "--hosts", "1"])
        .args(["--ours", "1", "--managers", "1", "--sockets"])
        .arg(&target)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(told)?;
    let output = child.stdout.take();
    let _simulator = Simulator(child);
    let mut lines = BufReader::new(output.ok_or("the simulator says nothing")?).lines();
    if !lines.any(|line| line.is_ok_and(|line| line == "ready")) {
        return Err("the simulator does not start".into());
    }
    // Nobody reads what else it says, and it may not wait for that.
    std::thread::spawn(move || lines.for_each(drop));
    let mut ping = Command::new(target.join("ping"));
    ping.arg(target.join("guest1"))
        .args(["10.9.0.2", "10.9.0.1", "5"]);
    finish(&mut ping, Some(Duration::from_secs(90)))?;
    say!("a program in C has brought up an HCA, and pinged");
    Ok(())
}
