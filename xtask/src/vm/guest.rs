//! One virtual machine: started, spoken to, stopped.

use super::setup::{Kernel, qemu};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Words for the kernel. Under load the timer check fails that some kernels make at start.
const KERNEL_WORDS: &str = "console=ttyS0 quiet panic=-1 mitigations=off nokaslr random.trust_cpu=on \
    cryptomgr.notests=1 apparmor=0 audit=0 tsc=reliable no_timer_check";

/// Frequency of this machine's time stamp counter, which guests see. A guest that measures it while the machine is busy
/// may be wrong by a factor of ten, and all that it measures afterwards is, too.
fn tsc_khz() -> Option<u64> {
    #[cfg(target_arch = "x86_64")]
    {
        static KHZ: std::sync::OnceLock<u64> = std::sync::OnceLock::new();
        // SAFETY: every processor of this architecture has the counter.
        let read = || unsafe { core::arch::x86_64::_rdtsc() };
        let measure = || {
            let (start, ticks) = (Instant::now(), read());
            std::thread::sleep(Duration::from_millis(50));
            let passed = read().wrapping_sub(ticks);
            let micros = start.elapsed().as_micros().max(1);
            (u128::from(passed) * 1000 / micros) as u64
        };
        // Being interrupted between the two readings makes one of several wrong.
        let several = || {
            let mut several = [measure(), measure(), measure()];
            several.sort_unstable();
            several[1]
        };
        Some(*KHZ.get_or_init(several))
    }
    #[cfg(not(target_arch = "x86_64"))]
    None
}

/// How to start one.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Host name.
    pub name: String,
    /// Which kernel.
    pub kernel: Kernel,
    /// Processors.
    pub processors: u32,
    /// Memory in MiB.
    pub memory: u32,
    /// Socket of its HCA.
    pub hca: Option<PathBuf>,
    /// An IOMMU between the HCA and memory.
    pub iommu: bool,
    /// Further words for QEMU.
    pub more: Vec<String>,
    /// A shell on the console, and no agents.
    pub interactive: bool,
    /// `kvm` or `tcg`.
    pub accelerator: &'static str,
}

/// A machine that runs.
pub struct Guest {
    /// Host name.
    pub name: String,
    folder: PathBuf,
    child: Child,
    ports: Vec<Port>,
}

/// One channel to a guest, on which scripts run one after the other.
struct Port {
    stream: BufReader<UnixStream>,
    next: u64,
}

/// A script that has been sent and not answered.
#[derive(Debug)]
pub struct Running {
    port: usize,
    id: u64,
    limit: Duration,
}

/// What a script said, and its exit status.
#[derive(Clone, Debug)]
pub struct Said {
    /// 0 is good.
    pub status: i32,
    /// Both of its streams.
    pub text: String,
}

/// How much later than a script's limit its answer may come from a guest that is alive.
const ANSWER: Duration = Duration::from_secs(60);

impl Said {
    /// What it said, if it ended well.
    pub fn good(self, number: usize, script: &str) -> Result<String, String> {
        let Self { status, text } = self;
        match status {
            0 => Ok(text),
            _ => {
                let first = script.lines().last().unwrap_or_default().trim();
                let why = if status == 124 {
                    " (it took too long)"
                } else {
                    ""
                };
                Err(format!(
                    "guest{number}: `{first}` ended with {status}{why}:\n{text}"
                ))
            }
        }
    }
}

/// Channels of a guest: a server and a client can run at once.
const PORTS: usize = 2;

impl Guest {
    /// Starts it, in `folder`, which keeps its console and its sockets.
    pub fn start(shape: &Shape, folder: &Path) -> Result<Self, String> {
        let name = shape.name.clone();
        let told = |error: std::io::Error| format!("{name}: {error}");
        std::fs::create_dir_all(folder).map_err(told)?;
        let words = qemu().ok_or("there is no QEMU; run `cargo xtask vm setup`")?;
        let (program, before) = words.split_first().ok_or("there is no QEMU")?;
        let image = shape.kernel.place();
        // Killed itself, this program takes its guests along.
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL"])
            .arg(program)
            .args(before);
        let mut say = |words: &[String]| {
            command.args(words);
        };
        let text = |text: &str| text.to_owned();
        let file = |path: PathBuf| path.display().to_string();
        say(&["-nodefaults", "-display", "none", "-machine", "q35"].map(text));
        let (accelerator, processor) = match shape.accelerator {
            "kvm" => ("kvm", "host"),
            _ => ("tcg,thread=multi", "max"),
        };
        say(&["-accel", accelerator, "-cpu", processor].map(text));
        let memory = shape.memory;
        let backend = format!("memory-backend-memfd,id=ram,size={memory}M,share=on");
        say(&[text("-smp"), shape.processors.to_string()]);
        say(&[text("-m"), memory.to_string(), text("-object"), backend]);
        say(&["-machine", "memory-backend=ram", "-bios", "qboot.rom"].map(text));
        let clock = tsc_khz().map_or(String::new(), |khz| format!("tsc_early_khz={khz}"));
        let iommu = if shape.iommu { "intel_iommu=on" } else { "" };
        let append = format!("{KERNEL_WORDS} {clock} {iommu} host={name}");
        say(&[
            text("-kernel"),
            file(image.join("vmlinux")),
            text("-append"),
            append,
        ]);
        say(&[text("-initrd"), file(image.join("stub.cpio"))]);
        if shape.iommu {
            // It remaps interrupts, too, which takes half of the interrupt controller out of a KVM. Before all devices.
            say(&["-machine", "kernel-irqchip=split"].map(text));
            say(&["-device", "intel-iommu,caching-mode=on"].map(text));
        }
        let disk = file(image.join("root.sqfs"));
        let drive = format!("if=none,id=root,file={disk},format=raw,readonly=on");
        say(&[text("-drive"), drive]);
        say(&[
            "-device",
            "virtio-blk-pci,drive=root",
            "-device",
            "virtio-serial-pci",
        ]
        .map(text));
        let console = file(folder.join("console"));
        say(&[
            text("-serial"),
            match shape.interactive {
                true => format!("unix:{console},server=on,wait=off"),
                false => format!("file:{console}"),
            },
        ]);
        let ports = if shape.interactive { 0 } else { PORTS };
        for port in 0..ports {
            let path = file(folder.join(format!("agent{port}")));
            let chardev = format!("socket,id=agent{port},path={path},server=on,wait=off");
            let device = format!("virtserialport,chardev=agent{port},name=agent{port}");
            say(&[text("-chardev"), chardev, text("-device"), device]);
        }
        if let Some(socket) = &shape.hca {
            let path = file(socket.clone());
            let device = format!(
                "{{\"driver\":\"vfio-user-pci\",\"id\":\"hca\",\"socket\":{{\"type\":\"unix\",\"path\":\"{path}\"}}}}"
            );
            say(&[text("-device"), device]);
        }
        say(&shape.more);
        let errors = File::create(folder.join("qemu.log")).map_err(told)?;
        let output = errors.try_clone().map_err(told)?;
        command.stdin(Stdio::null()).stdout(output).stderr(errors);
        let child = command.spawn().map_err(told)?;
        Ok(Self {
            name,
            folder: folder.into(),
            child,
            ports: Vec::new(),
        })
    }

    /// Waits until its agents answer.
    pub fn wait(&mut self, limit: Duration) -> Result<(), String> {
        let end = Instant::now() + limit;
        for port in 0..PORTS {
            let path = self.folder.join(format!("agent{port}"));
            let stream = loop {
                match UnixStream::connect(&path) {
                    Ok(stream) => break stream,
                    Err(error) if Instant::now() > end || self.has_ended() => {
                        return Err(self.trouble(&format!("its agent cannot be reached: {error}")));
                    }
                    Err(_) => std::thread::sleep(Duration::from_millis(10)),
                }
            };
            self.ports.push(Port {
                stream: BufReader::new(stream),
                next: 1,
            });
            let left = end.saturating_duration_since(Instant::now());
            let head = self.head(port, left)?;
            if head.first().is_none_or(|word| word != "ready") {
                return Err(self.trouble("its agent does not say that it is ready"));
            }
        }
        Ok(())
    }

    /// It has come to its end.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|status| status.is_some())
    }

    /// The first line of an answer.
    fn head(&mut self, port: usize, limit: Duration) -> Result<Vec<String>, String> {
        let mut line = String::new();
        let stream = &mut self
            .ports
            .get_mut(port)
            .ok_or("there is no such port")?
            .stream;
        let limit = limit.max(Duration::from_millis(1));
        let read = stream
            .get_ref()
            .set_read_timeout(Some(limit))
            .and_then(|()| stream.read_line(&mut line));
        match read {
            Ok(0) => Err(self.trouble("it is gone")),
            Ok(_) => Ok(line.split_whitespace().map(str::to_owned).collect()),
            Err(error) => {
                Err(self.trouble(&format!("no answer in {} s: {error}", limit.as_secs())))
            }
        }
    }

    /// What went wrong, with the end of what QEMU and the console said.
    fn trouble(&self, what: &str) -> String {
        let end = |file: &str| {
            let text = std::fs::read(self.folder.join(file)).unwrap_or_default();
            let text = String::from_utf8_lossy(&text).into_owned();
            let lines: Vec<&str> = text.lines().collect();
            let from = lines.len().saturating_sub(12);
            lines.get(from..).unwrap_or(&[]).join("\n")
        };
        let (qemu, console) = (end("qemu.log"), end("console"));
        format!("{}: {what}\n{qemu}\n{console}", self.name)
    }

    /// Sends a script to one of its ports; it runs when those before it have ended, and is ended after `limit`.
    pub fn send(&mut self, port: usize, script: &str, limit: Duration) -> Result<Running, String> {
        let name = self.name.clone();
        let channel = self.ports.get_mut(port).ok_or("there is no such port")?;
        let id = channel.next;
        channel.next += 1;
        let seconds = limit.as_secs().max(1);
        let request = format!("{id} {} {seconds}\n{script}", script.len());
        let stream = channel.stream.get_mut();
        let sent = stream.write_all(request.as_bytes());
        sent.map_err(|error| format!("{name}: {error}"))?;
        Ok(Running { port, id, limit })
    }

    /// Waits for the end of a script, which the guest's own clock ends.
    pub fn answer(&mut self, running: &Running) -> Result<Said, String> {
        let head = self.head(running.port, running.limit * 2 + ANSWER)?;
        if head.first().is_some_and(|word| word == "ready") {
            return Err(self.trouble("it has started again"));
        }
        let numbers: Vec<i64> = head.iter().filter_map(|word| word.parse().ok()).collect();
        let [id, status, len] = numbers[..] else {
            return Err(self.trouble(&format!("its agent says {head:?}")));
        };
        if id != running.id as i64 {
            return Err(self.trouble(&format!("an answer to {id} instead of {}", running.id)));
        }
        let mut text = vec![0; usize::try_from(len).unwrap_or(0)];
        let channel = self.ports.get_mut(running.port);
        let stream = &mut channel.ok_or("there is no such port")?.stream;
        let read = stream.read_exact(&mut text);
        read.map_err(|error| self.trouble(&format!("half an answer: {error}")))?;
        Ok(Said {
            status: status as i32,
            text: String::from_utf8_lossy(&text).into_owned(),
        })
    }

    /// Runs a script to its end.
    pub fn run(&mut self, script: &str, limit: Duration) -> Result<Said, String> {
        let running = self.send(0, script, limit)?;
        self.answer(&running)
    }

    /// Ends a script that was sent.
    pub fn end(&mut self, running: &Running) -> Result<(), String> {
        let script = format!("kill -9 -- -$(cat /run/running.{})", running.port);
        self.run(&script, Duration::from_secs(20)).map(|_| ())
    }

    /// Starts it again as `how` says, and waits until its agents answer.
    pub fn reset(&mut self, how: &str, limit: Duration) -> Result<(), String> {
        self.send(0, how, limit)?;
        let end = Instant::now() + limit;
        for port in 0..PORTS {
            let left = end.saturating_duration_since(Instant::now());
            let head = self.head(port, left)?;
            if head.first().is_none_or(|word| word != "ready") {
                return Err(self.trouble(&format!("it does not start again: {head:?}")));
            }
        }
        Ok(())
    }

    /// Ends it as a loss of power would.
    pub fn kill(&mut self) {
        // It may be gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Where its console is.
    pub fn console(&self) -> PathBuf {
        self.folder.join("console")
    }

    /// Waits until its user ends it.
    pub fn join(&mut self) {
        // However it ends, it has ended.
        let _ = self.child.wait();
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.kill();
    }
}
