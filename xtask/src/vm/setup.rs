//! What a guest is made of: a QEMU that speaks vfio-user, kernels, and an image. Made by the scripts in `vm/` out of
//! Debian's packages, and kept under the target directory.

use crate::run::root;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// What the scripts need, and the package that each is in.
const TOOLS: [(&str, &str); 10] = [
    ("setpriv", "util-linux"),
    ("apt-get", "apt"),
    ("dpkg-deb", "dpkg"),
    ("debootstrap", "debootstrap"),
    ("mksquashfs", "squashfs-tools"),
    ("cpio", "cpio"),
    ("modprobe", "kmod"),
    ("python3", "python3"),
    ("xz", "xz-utils"),
    ("zstd", "zstd"),
];

/// Where all of it is.
pub fn place() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let target = target.unwrap_or_else(|| "target".into());
    root().join(target).join("vm")
}

/// Which kernel a guest runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Kernel {
    /// That of the Debian release on this machine.
    #[default]
    Stable,
    /// Debian's newest.
    Newest,
    /// One that is built from the source of Debian's stable one, with what finds faults of a driver. Half an hour's work.
    Debug,
}

impl Kernel {
    /// As in file names.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stable => "stable",
            Self::Newest => "newest",
            Self::Debug => "debug",
        }
    }

    /// Where its kernel and its image are.
    pub fn place(self) -> PathBuf {
        place().join(self.name())
    }

    /// The kernel is unpacked.
    fn is_unpacked(self) -> bool {
        self.place().join("vmlinux").exists()
    }

    /// The image is there, and made by the scripts as they are.
    fn has_image(self) -> bool {
        let image = |file: &str| {
            is_newer(
                &self.place().join(file),
                &["root", "init", "stub", "srpt.sh"],
            )
        };
        image("root.sqfs") && image("stub.cpio")
    }
}

/// `file` is there, and made after these scripts of `vm/`.
fn is_newer(file: &Path, scripts: &[&str]) -> bool {
    let age = |path: &Path| {
        std::fs::metadata(path)
            .and_then(|about| about.modified())
            .ok()
    };
    let made = age(file);
    let mut scripts = scripts
        .iter()
        .map(|script| age(&root().join("vm").join(script)));
    made.is_some() && scripts.all(|script| script < made)
}

/// How a QEMU is called that has `vfio-user-pci`.
pub fn qemu() -> Option<Vec<PathBuf>> {
    if let Some(path) = std::env::var_os("OPENIB_QEMU") {
        return Some(vec![path.into()]);
    }
    let tree = place().join("sid");
    if tree.join("usr/bin/qemu-system-x86_64").exists() {
        return Some(vec![root().join("vm/qemu"), tree]);
    }
    let own: PathBuf = "qemu-system-x86_64".into();
    let asked = Command::new(&own).args(["-device", "help"]).output();
    let speaks = asked.is_ok_and(|output| {
        let said = [output.stdout, output.stderr].concat();
        String::from_utf8_lossy(&said).contains("vfio-user-pci")
    });
    speaks.then(|| vec![own])
}

/// Makes what is not there; with `anew`, all of it.
pub fn run(kernels: &[Kernel], anew: bool) -> Result<(), String> {
    let place = place();
    let told = |error: std::io::Error| format!("{}: {error}", place.display());
    std::fs::create_dir_all(place.join("logs")).map_err(told)?;
    tools()?;
    let sid = place.join("sid");
    let needs_tree = qemu().is_none() || kernels.contains(&Kernel::Newest);
    if needs_tree && !sid.join("usr/bin/qemu-system-x86_64").exists() {
        step("a Debian sid with QEMU", "sid", &[&sid])?;
    }
    let fetched = place.join("fetched");
    if anew || !is_newer(&fetched, &["fetch"]) {
        step("packages of the guest", "fetch", &[&place])?;
        std::fs::write(&fetched, "").map_err(told)?;
    }
    let debs = place.join("debs");
    for kernel in kernels {
        let at = kernel.place();
        let name = kernel.name();
        if anew || !kernel.is_unpacked() {
            let (script, words): (_, &[&Path]) = match kernel {
                Kernel::Stable => ("kernel", &[&at]),
                Kernel::Newest => ("kernel", &[&at, &sid]),
                Kernel::Debug => ("debug-kernel", &[&at]),
            };
            step(&format!("{name} kernel"), script, words)?;
        }
        if anew || !kernel.has_image() {
            step(&format!("{name} image"), "root", &[&debs, &at, &at])?;
        }
    }
    let qemu = qemu().ok_or("no QEMU has vfio-user-pci; QEMU 10.1 is the first that does")?;
    let words: Vec<_> = qemu.iter().map(|word| word.display().to_string()).collect();
    println!("QEMU: {}", words.join(" "));
    Ok(())
}

/// Says what is missing on this machine, and how to get it.
fn tools() -> Result<(), String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    folders.extend(["/usr/sbin", "/sbin"].map(PathBuf::from));
    let there = |tool: &str| folders.iter().any(|folder| folder.join(tool).exists());
    let missing: Vec<&str> = TOOLS
        .iter()
        .filter(|(tool, _)| !there(tool))
        .map(|(_, package)| *package)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(format!(
        "this machine lacks programs that make a guest; on Debian: apt-get install {}",
        missing.join(" ")
    ))
}

/// Runs a script of `vm/`, with its words in a log.
fn step(what: &str, script: &str, arguments: &[&Path]) -> Result<(), String> {
    let log = place().join("logs").join(format!("{script}.log"));
    let told = |error: std::io::Error| format!("{what}: {error}");
    let file = File::create(&log).map_err(told)?;
    print!("{what} …");
    // So that one sees what takes so long; no harm if not.
    let _ = std::io::Write::flush(&mut std::io::stdout());
    let start = Instant::now();
    let path = std::env::var("PATH").unwrap_or_default();
    let status = Command::new("bash")
        .arg(root().join("vm").join(script))
        .args(arguments)
        .env("PATH", format!("{path}:/usr/sbin:/sbin"))
        .stdin(Stdio::null())
        .stderr(file.try_clone().map_err(told)?)
        .stdout(file)
        .status()
        .map_err(told)?;
    println!(" {:.0} s", start.elapsed().as_secs_f64());
    if status.success() {
        return Ok(());
    }
    let said = std::fs::read_to_string(&log).unwrap_or_default();
    let lines: Vec<&str> = said.lines().collect();
    let last = lines.len().saturating_sub(8);
    let tail = lines.get(last..).unwrap_or(&[]).join("\n");
    Err(format!(
        "{what} could not be made; the end of {}:\n{tail}",
        log.display()
    ))
}
