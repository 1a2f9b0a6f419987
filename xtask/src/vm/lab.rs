//! A fabric and the guests on it, for a test or for a user.

use super::guest::{Guest, Said, Shape};
use super::setup::{Kernel, place};
use crate::run::{cargo, root};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

/// What a lab is to be like.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// How many guests.
    pub guests: usize,
    /// Their device model, as `openib-sim serve` calls it.
    pub model: String,
    /// Their kernel.
    pub kernel: Kernel,
    /// Further words for `openib-sim serve`.
    pub more: Vec<String>,
    /// A shell on each console, and no agents.
    pub interactive: bool,
}

/// How long a guest may take to come up.
const BOOT: Duration = Duration::from_secs(120);

/// See the module. Dropped, it stops all of it.
pub struct Lab {
    /// The machines, guest 1 first.
    pub guests: Vec<Guest>,
    sim: Child,
    commands: Option<ChildStdin>,
    lines: std::sync::mpsc::Receiver<String>,
    log: File,
}

/// The simulator's program, built.
pub fn simulator() -> Result<PathBuf, String> {
    let build = ["build", "--quiet", "--release", "--package", "openib-sim"];
    crate::run::finish(&mut cargo(&build), None)?;
    let target = place();
    let target = target.parent().unwrap_or(&target);
    Ok(target.join("release/openib-sim"))
}

/// `kvm` if this machine has one that boots a guest, else `tcg`. Tried once, and remembered.
pub fn accelerator(kernel: Kernel) -> &'static str {
    if let Ok(wish) = std::env::var("OPENIB_ACCEL") {
        return if wish == "kvm" { "kvm" } else { "tcg" };
    }
    let memory = place().join("accelerator");
    match std::fs::read_to_string(&memory).as_deref() {
        Ok("kvm") => return "kvm",
        Ok(_) => return "tcg",
        Err(_) => {}
    }
    let opens = File::options().read(true).write(true).open("/dev/kvm");
    let works = opens.is_ok() && {
        let shape = shape("probe", kernel, "kvm");
        let guest = Guest::start(&shape, &place().join("run/probe"));
        guest.is_ok_and(|mut guest| guest.wait(Duration::from_secs(20)).is_ok())
    };
    let found = if works { "kvm" } else { "tcg" };
    // Not remembered, it is tried again.
    let _ = std::fs::write(&memory, found);
    found
}

fn shape(name: &str, kernel: Kernel, accelerator: &'static str) -> Shape {
    Shape {
        name: name.into(),
        kernel,
        processors: 1,
        memory: 768,
        hca: None,
        more: Vec::new(),
        interactive: false,
        accelerator,
    }
}

impl Lab {
    /// Starts the fabric, then the guests, all at once, and waits until they answer. Everything is kept in `folder`.
    pub fn start(wanted: &Wanted, folder: &Path) -> Result<Self, String> {
        let told = |error: std::io::Error| format!("{}: {error}", folder.display());
        std::fs::create_dir_all(folder).map_err(told)?;
        let log = File::create(folder.join("openib-sim.log")).map_err(told)?;
        let mut sim = Command::new(simulator()?)
            .args(["serve", "--commands", "-v", "--model", &wanted.model])
            .args(["--guests", &wanted.guests.to_string()])
            .arg("--sockets")
            .arg(folder)
            .args(&wanted.more)
            .current_dir(root())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log.try_clone().map_err(told)?)
            .spawn()
            .map_err(told)?;
        let commands = sim.stdin.take();
        let output = sim.stdout.take().ok_or("the simulator says nothing")?;
        let (sender, lines) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let mut lab = Self {
            guests: Vec::new(),
            sim,
            commands,
            lines,
            log,
        };
        lab.hear("ready", Duration::from_secs(20))?;
        let accelerator = accelerator(wanted.kernel);
        for number in 1..=wanted.guests {
            let name = format!("guest{number}");
            let mut shape = shape(&name, wanted.kernel, accelerator);
            shape.hca = Some(folder.join(&name));
            shape.interactive = wanted.interactive;
            let place = folder.join(format!("{name}.d"));
            lab.guests.push(Guest::start(&shape, &place)?);
        }
        if !wanted.interactive {
            for guest in &mut lab.guests {
                guest.wait(BOOT)?;
            }
        }
        Ok(lab)
    }

    /// Reads what the simulator says, up to a line that begins with `end`, or `error`.
    fn hear(&mut self, end: &str, limit: Duration) -> Result<Vec<String>, String> {
        let until = Instant::now() + limit;
        let mut said = Vec::new();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left);
            let line =
                line.map_err(|_| format!("the simulator did not say \"{end}\"; see its log"))?;
            // For whoever reads the log; the test does not.
            let _ = writeln!(self.log, "{line}");
            if line.starts_with("error") {
                return Err(format!("the simulator: {line}"));
            }
            if line.starts_with(end) {
                return Ok(said);
            }
            said.push(line);
        }
    }

    /// Has the simulator do something, and gives what it says.
    pub fn command(&mut self, command: &str) -> Result<Vec<String>, String> {
        let commands = self
            .commands
            .as_mut()
            .ok_or("the simulator is not listening")?;
        let sent = writeln!(commands, "{command}").and_then(|()| commands.flush());
        sent.map_err(|error| format!("the simulator: {error}"))?;
        self.hear("ok", Duration::from_secs(10))
    }

    /// Guest `number`, from 1.
    pub fn guest(&mut self, number: usize) -> Result<&mut Guest, String> {
        let index = number.wrapping_sub(1);
        let guest = self.guests.get_mut(index);
        guest.ok_or_else(|| format!("there is no guest {number}"))
    }

    /// Runs a script in a guest; it must succeed.
    pub fn ok(&mut self, number: usize, script: &str, limit: u64) -> Result<String, String> {
        let said = self.said(number, script, limit)?;
        if said.status == 0 {
            return Ok(said.text);
        }
        let Said { status, text } = said;
        let first = script.lines().next().unwrap_or_default();
        Err(format!(
            "guest{number}: `{first}` ended with {status}:\n{text}"
        ))
    }

    /// Runs a script in a guest.
    pub fn said(&mut self, number: usize, script: &str, limit: u64) -> Result<Said, String> {
        let said = self
            .guest(number)?
            .run(script, Duration::from_secs(limit))?;
        let text = said.text.trim_end();
        let _ = writeln!(
            self.log,
            "-- guest{number}$ {script}\n{text}\n-- {}",
            said.status
        );
        Ok(said)
    }

    /// Runs a server in one guest and a client in another, both to their ends.
    pub fn pair(
        &mut self,
        (server, serve): (usize, &str),
        (client, ask): (usize, &str),
        limit: u64,
    ) -> Result<(String, String), String> {
        let running = self.guest(server)?.send(1, serve)?;
        let asked = self.ok(client, ask, limit);
        let guest = self.guest(server)?;
        let served = guest.answer(&running, Duration::from_secs(limit.min(20)));
        if let Ok(served) = &served {
            let text = served.text.trim_end();
            let _ = writeln!(
                self.log,
                "-- guest{server}$ {serve}\n{text}\n-- {}",
                served.status
            );
        }
        let (asked, served) = (asked?, served?);
        if served.status == 0 {
            return Ok((served.text, asked));
        }
        let Said { status, text } = served;
        Err(format!(
            "guest{server}: `{serve}` ended with {status}:\n{text}"
        ))
    }

    /// What models of the guests did not act on.
    pub fn ledgers(&mut self) -> Result<Vec<String>, String> {
        self.command("show")
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.guests.clear();
        // The end of its input ends it.
        self.commands = None;
        let end = Instant::now() + Duration::from_secs(5);
        while Instant::now() < end {
            if self.sim.try_wait().is_ok_and(|status| status.is_some()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.sim.kill();
        let _ = self.sim.wait();
    }
}
