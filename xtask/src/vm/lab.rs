//! A fabric and the guests on it, for a test or for a user.

use super::guest::{Guest, Running, Said, Shape};
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
    /// Further words for `openib-sim serve`, the number of guests among them.
    pub more: Vec<String>,
    /// An Ethernet between the guests, too.
    pub ethernet: bool,
    /// Guest 1 has an IOMMU.
    pub iommu: bool,
    /// A shell on each console, and no agents.
    pub interactive: bool,
}

/// How long a guest may take to come up, and how long it takes on a machine that has nothing else to do, in seconds.
const BOOT: u64 = 120;
const NOMINAL_BOOT: f64 = 6.0;

/// See the module. Dropped, it stops all of it.
pub struct Lab {
    /// The machines, guest 1 first.
    pub guests: Vec<Guest>,
    /// How many times slower than a machine that has nothing else to do.
    pub slowness: f64,
    shapes: Vec<Shape>,
    folder: PathBuf,
    wanted: Wanted,
    simulator: Simulator,
    log: File,
}

/// `openib-sim serve`. Dropped, it is stopped.
struct Simulator {
    child: Child,
    commands: Option<ChildStdin>,
    lines: std::sync::mpsc::Receiver<String>,
}

impl Simulator {
    fn start(wanted: &Wanted, folder: &Path, log: &File) -> Result<Self, String> {
        let told = |error: std::io::Error| format!("{}: {error}", folder.display());
        let mut child = Command::new(simulator()?)
            .args(["serve", "--commands", "-v", "--model", &wanted.model])
            .args(["--training", training(wanted.kernel)])
            .arg("--sockets")
            .arg(folder)
            .args(&wanted.more)
            .current_dir(root())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log.try_clone().map_err(told)?)
            .spawn()
            .map_err(told)?;
        let commands = child.stdin.take();
        let output = child.stdout.take().ok_or("the simulator says nothing")?;
        let (sender, lines) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Self {
            child,
            commands,
            lines,
        })
    }

    fn has_ended(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|status| status.is_some())
    }

    /// Ends it as a crash would.
    fn kill(&mut self) {
        // It may be gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Simulator {
    fn drop(&mut self) {
        // The end of its input ends it.
        self.commands = None;
        let end = Instant::now() + Duration::from_secs(5);
        while Instant::now() < end {
            if self.has_ended() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        self.kill();
    }
}

/// The simulator's program, built; or the one that `OPENIB_SIM` names.
pub fn simulator() -> Result<PathBuf, String> {
    if let Some(path) = std::env::var_os("OPENIB_SIM") {
        return Ok(path.into());
    }
    static BUILT: std::sync::OnceLock<Result<(), String>> = std::sync::OnceLock::new();
    BUILT.get_or_init(build_simulator).clone()?;
    let target = place();
    let target = target.parent().unwrap_or(&target);
    Ok(target.join("release/openib-sim"))
}

fn build_simulator() -> Result<(), String> {
    let build = ["build", "--quiet", "--release", "--package", "openib-sim"];
    crate::run::finish(&mut cargo(&build), None)
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

/// How long links train, in milliseconds. Linux' driver starts a port some time before it takes note of who the subnet
/// manager is, and is not told again: the traps of its HCA would never leave it. On a machine the driver is ready long
/// before the link is. An emulated processor is twenty times slower and more, a subnet manager on a host of ours is not.
fn training(kernel: Kernel) -> &'static str {
    match accelerator(kernel) {
        "kvm" => "200",
        // Five times slower once more.
        _ if kernel == Kernel::Debug => "20000",
        _ => "4000",
    }
}

fn shape(name: &str, kernel: Kernel, accelerator: &'static str) -> Shape {
    Shape {
        name: name.into(),
        kernel,
        processors: 1,
        memory: 768,
        hca: None,
        iommu: false,
        more: Vec::new(),
        interactive: false,
        accelerator,
    }
}

/// Words for QEMU: an Ethernet of two, guest 1 and guest 2.
fn ethernet(folder: &Path, number: usize) -> Vec<String> {
    let socket = |number: usize| {
        folder
            .join(format!("ethernet{number}"))
            .display()
            .to_string()
    };
    let (own, other) = (socket(number), socket(3_usize.saturating_sub(number)));
    let net = format!(
        "dgram,id=ethernet,local.type=unix,local.path={own},remote.type=unix,remote.path={other}"
    );
    let device = format!(
        "virtio-net-pci,netdev=ethernet,mac=52:54:00:00:00:0{number},romfile=,host_mtu=4200"
    );
    vec!["-netdev".into(), net, "-device".into(), device]
}

impl Lab {
    /// Starts the fabric, then the guests, all at once, and waits until they answer. Everything is kept in `folder`.
    pub fn start(wanted: &Wanted, folder: &Path) -> Result<Self, String> {
        let told = |error: std::io::Error| format!("{}: {error}", folder.display());
        std::fs::create_dir_all(folder).map_err(told)?;
        let log = File::create(folder.join("openib-sim.log")).map_err(told)?;
        let simulator = Simulator::start(wanted, folder, &log)?;
        let mut lab = Self {
            guests: Vec::new(),
            slowness: 4.0,
            shapes: Vec::new(),
            folder: folder.into(),
            wanted: wanted.clone(),
            simulator,
            log,
        };
        lab.hear("ready", Duration::from_secs(20))?;
        let accelerator = accelerator(wanted.kernel);
        let start = Instant::now();
        for number in 1..=wanted.guests {
            let name = format!("guest{number}");
            let mut shape = shape(&name, wanted.kernel, accelerator);
            shape.hca = Some(folder.join(&name));
            shape.interactive = wanted.interactive;
            shape.iommu = wanted.iommu && number == 1;
            if wanted.ethernet {
                shape.more.extend(ethernet(folder, number));
            }
            let place = folder.join(format!("{name}.d"));
            lab.guests.push(Guest::start(&shape, &place)?);
            lab.shapes.push(shape);
        }
        if !wanted.interactive {
            let limit = lab.limit(BOOT);
            for guest in &mut lab.guests {
                guest.wait(limit)?;
            }
            lab.slowness = (start.elapsed().as_secs_f64() / NOMINAL_BOOT).clamp(1.5, 6.0);
        }
        Ok(lab)
    }

    /// Reads what the simulator says, up to a line that begins with `end`, or `error`.
    fn hear(&mut self, end: &str, limit: Duration) -> Result<Vec<String>, String> {
        let until = Instant::now() + limit;
        let mut said = Vec::new();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let line = self.simulator.lines.recv_timeout(left);
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
        let commands = self.simulator.commands.as_mut();
        let commands = commands.ok_or("the simulator is not listening")?;
        let sent = writeln!(commands, "{command}").and_then(|()| commands.flush());
        sent.map_err(|error| format!("the simulator: {error}"))?;
        self.hear("ok", Duration::from_secs(30))
    }

    /// Guest `number`, from 1.
    pub fn guest(&mut self, number: usize) -> Result<&mut Guest, String> {
        let index = number.wrapping_sub(1);
        let guest = self.guests.get_mut(index);
        guest.ok_or_else(|| format!("there is no guest {number}"))
    }

    /// Runs a script in a guest; it must succeed. `limit` is in seconds of a machine that has nothing else to do.
    pub fn ok(&mut self, number: usize, script: &str, limit: u64) -> Result<String, String> {
        let said = self.said(number, script, limit)?;
        said.good(number, script)
    }

    /// As [`ok`](Self::ok), for a script that is too long for the log.
    pub fn quiet(&mut self, number: usize, script: &str, limit: u64) -> Result<String, String> {
        let limit = self.limit(limit);
        let said = self.guest(number)?.run(script, limit)?;
        said.good(number, "a long script")
    }

    /// Runs a script in a guest.
    pub fn said(&mut self, number: usize, script: &str, limit: u64) -> Result<Said, String> {
        let limit = self.limit(limit);
        let said = self.guest(number)?.run(script, limit)?;
        self.note(number, script, &said);
        Ok(said)
    }

    /// Writes something down for whoever reads the log.
    pub fn remark(&mut self, text: &str) {
        // The test does not need it.
        let _ = writeln!(self.log, "## {text}");
    }

    /// Writes down what a guest was told and said.
    fn note(&mut self, number: usize, script: &str, said: &Said) {
        let text = said.text.trim_end();
        // For whoever reads the log; the test does not.
        let _ = writeln!(
            self.log,
            "-- guest{number}$ {script}\n{text}\n-- {}",
            said.status
        );
    }

    /// Starts a script in a guest beside all others.
    pub fn start_script(
        &mut self,
        number: usize,
        script: &str,
        limit: u64,
    ) -> Result<Running, String> {
        let limit = self.limit(limit);
        self.guest(number)?.send(1, script, limit)
    }

    /// Waits for the end of a script that was started in a guest.
    pub fn end_script(
        &mut self,
        number: usize,
        script: &str,
        run: &Running,
    ) -> Result<Said, String> {
        let said = self.guest(number)?.answer(run)?;
        self.note(number, script, &said);
        Ok(said)
    }

    /// Runs a server in one guest and a client in another, both to their ends. The client starts when the server
    /// `listens`; a server that is left over is ended.
    pub fn pair(
        &mut self,
        listens: Listens,
        (server, serve): (usize, &str),
        (client, ask): (usize, &str),
        limit: u64,
    ) -> Result<(String, String), String> {
        let running = self.start_script(server, serve, limit + 20)?;
        let there = self.ok(server, &listens.script(), 20);
        let asked = there.and_then(|_| self.ok(client, ask, limit));
        if asked.is_err() {
            self.guest(server)?.end(&running)?;
        }
        let served = self.end_script(server, serve, &running)?;
        let asked = asked.map_err(|error| {
            let text = served.text.trim_end();
            format!("{error}\nthe server said, {}:\n{text}", served.status)
        })?;
        let served = served.good(server, serve)?;
        Ok((served, asked))
    }

    /// What kernels complained about since this was last asked.
    pub fn complaints(&mut self) -> Result<Vec<String>, String> {
        let mut all = Vec::new();
        for number in 1..=self.guests.len() {
            let script = "dmesg -l emerg,alert,crit,err,warn > /run/complaints; \
                tail -n +$(($(cat /run/complaints.seen 2>/dev/null || echo 0) + 1)) /run/complaints; \
                wc -l < /run/complaints > /run/complaints.seen";
            let said = self.ok(number, script, 20)?;
            let lines = said.lines().filter(|line| concerns(line));
            all.extend(lines.map(|line| format!("guest{number}: {line}")));
        }
        Ok(all)
    }

    /// A guest or the simulator has come to its end.
    pub fn is_broken(&mut self) -> bool {
        self.simulator.has_ended() || self.guests.iter_mut().any(Guest::has_ended)
    }

    /// Ends the simulator as a crash would.
    pub fn crash_simulator(&mut self) {
        self.simulator.kill();
    }

    /// Starts the simulator again, and all guests anew.
    pub fn start_all_again(&mut self) -> Result<(), String> {
        self.guests.iter_mut().for_each(Guest::kill);
        self.simulator = Simulator::start(&self.wanted, &self.folder, &self.log)?;
        self.hear("ready", Duration::from_secs(20))?;
        for number in 1..=self.guests.len() {
            self.start_again(number)?;
        }
        Ok(())
    }

    /// Starts a guest again that was killed.
    pub fn start_again(&mut self, number: usize) -> Result<(), String> {
        let shape = self.shapes.get(number.wrapping_sub(1)).cloned();
        let shape = shape.ok_or_else(|| format!("there is no guest {number}"))?;
        let place = self.folder.join(format!("{}.d", shape.name));
        let limit = self.limit(BOOT);
        let guest = self.guest(number)?;
        guest.kill();
        *guest = Guest::start(&shape, &place)?;
        guest.wait(limit)
    }

    /// What models of the guests did not act on.
    pub fn ledgers(&mut self) -> Result<Vec<String>, String> {
        self.command("show")
    }

    /// How long `seconds` may be on this machine, as busy as it is.
    pub fn limit(&self, seconds: u64) -> Duration {
        Duration::from_secs_f64(seconds as f64 * self.slowness)
    }
}

/// A line of a kernel that has to do with what is tested, and says that something is not as it should be.
fn concerns(line: &str) -> bool {
    let words = [
        "mthca",
        "infiniband",
        "ib0",
        "ib1",
        "ib_",
        "ib:",
        "ipoib",
        "rdma",
        "srp",
        "mad",
        "BUG",
        "WARN",
        "Oops",
        "Call Trace",
        "lockup",
        "stall",
    ];
    // The second is Linux's own race: a MAD that comes before its agent for answers is there. So is the third: after each
    // event of a port the subnet administrator's address is unknown for a moment, and IPoIB asks for paths meanwhile. And the
    // fourth: an interface that has its carrier has no queue yet, and takes what waited for a group for congestion (2).
    let harmless = [
        "No bridge found",
        "Unable to find port agent",
        "ib_sa_path_rec_get failed: -11",
        "failed to re-queue packet, ret:2",
        "clocksource",
        "Spectre",
    ];
    words.iter().any(|word| line.contains(word)) && !harmless.iter().any(|word| line.contains(word))
}

/// What a server does when it can be asked.
#[derive(Clone, Copy, Debug)]
pub enum Listens {
    /// Listens on this TCP port.
    Tcp(u16),
    /// Listens for connections of the RDMA CM.
    Cm,
    /// Runs: its name.
    Runs(&'static str),
}

impl Listens {
    /// Waits for it.
    pub fn script(self) -> String {
        let test = match self {
            Self::Tcp(port) => format!("ss -Hltn | grep -q ':{port} '"),
            Self::Cm => "rdma resource show cm_id | grep -q LISTEN".into(),
            Self::Runs(name) => format!("pgrep -f {name} > /dev/null && sleep 1"),
        };
        format!(
            "for i in $(seq 200); do {test} && exit 0; sleep 0.05; done; echo it does not listen; exit 1"
        )
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        // Before what they are plugged into.
        self.guests.clear();
    }
}
