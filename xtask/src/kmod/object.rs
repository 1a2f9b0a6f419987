//! The library as one object for a kernel: how it is compiled, and what may not be in it.

use super::place;
use crate::run::{cargo, finish, root};
use crate::say;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// What the compiler is told so that the object suits kernels with and without each mitigation: no unwinding, no
/// position-independent code, thunks for indirect calls and returns, landing pads, room before functions. One object
/// does for all.
const FLAGS: [&str; 11] = [
    "-Crelocation-model=static",
    "-Cforce-unwind-tables=no",
    "-Csymbol-mangling-version=v0",
    "-Zplt=yes",
    "-Zfunction-sections=no",
    "-Zretpoline-external-thunk",
    "-Zfunction-return=thunk-extern",
    "-Zcf-protection=branch",
    "-Cjump-tables=no",
    "-Zpatchable-function-entry=16,16",
    "-Zemit-stack-sizes",
];

/// What a kernel gives every module, beside the shim.
const KERNEL_GIVES: [&str; 6] = ["memcpy", "memset", "memmove", "memcmp", "bcmp", "strlen"];

/// Bytes of the largest frame: of 16 KiB of stack, a quarter. A kernel's own functions have 2 KiB at most; getting
/// there is work to be done (docs/status.md).
const FRAME: u64 = 4096;

/// What is there of panics: a sort of the subnet manager's, which the module does not run, asks whether an order is one.
const PANICS: [&str; 1] = ["panicking9panic_fmt"];

/// Compiles it. Gives the file.
pub fn make(limit: Option<Duration>) -> Result<PathBuf, String> {
    let target = place().join("rust");
    let manifest = root().join("platform-linux/archive/Cargo.toml");
    let mut command = cargo(&["build", "--release", "--manifest-path"]);
    command.arg(manifest).args([
        "-Zbuild-std=core",
        "--target",
        "x86_64-unknown-none",
        "--target-dir",
    ]);
    command.arg(&target);
    if let Some(rustc) = std::env::var_os("OPENIB_RUSTC") {
        command.env("RUSTC", rustc);
    }
    command
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTFLAGS", FLAGS.join(" "));
    finish(&mut command, limit)?;
    take_out(
        &target.join("x86_64-unknown-none/release/libopenib.a"),
        &place(),
    )
}

/// Runs a tool and gives what it says.
fn said(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .output()
        .map_err(|error| format!("{name}: {error}"))?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(format!("{name}: {why}"));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The one object of the archive that is the library's: what else is in it, a kernel has, or must not need.
fn take_out(archive: &Path, to: &Path) -> Result<PathBuf, String> {
    let members = said(Command::new("ar").arg("t").arg(archive))?;
    let ours: Vec<&str> = members
        .lines()
        .filter(|member| member.starts_with("openib-"))
        .collect();
    let [ours] = ours[..] else {
        return Err(format!("the archive has other objects: {members}"));
    };
    said(
        Command::new("ar")
            .arg("x")
            .arg("--output")
            .arg(to)
            .arg(archive)
            .arg(ours),
    )?;
    let object = to.join("openib_rust.o_shipped");
    let told = |error: std::io::Error| format!("{}: {error}", object.display());
    std::fs::rename(to.join(ours), &object).map_err(told)?;
    check(&object)?;
    said(
        Command::new("objcopy")
            .args(["--remove-section=.stack_sizes", "--strip-debug"])
            .arg(&object),
    )?;
    Ok(object)
}

/// Looks for what must not be there.
fn check(object: &Path) -> Result<(), String> {
    let symbols = said(Command::new("nm").arg(object))?;
    let undefined = symbols
        .lines()
        .filter_map(|line| line.trim().strip_prefix("U "));
    let foreign: Vec<&str> = undefined
        .filter(|name| !name.starts_with("openib_os_") && !KERNEL_GIVES.contains(name))
        .filter(|name| !name.starts_with("__x86_indirect_thunk_") && *name != "__x86_return_thunk")
        .collect();
    if !foreign.is_empty() {
        return Err(format!(
            "the object needs what a kernel does not have: {}",
            foreign.join(", ")
        ));
    }
    let relocations = said(Command::new("readelf").args(["-rW"]).arg(object))?;
    let got = relocations.matches("GOTPCREL").count();
    if got > 0 {
        return Err(format!("the object has {got} references by way of a GOT"));
    }
    let panics: Vec<&str> = symbols
        .lines()
        .filter_map(|line| line.split(' ').nth(2))
        .filter(|name| name.contains("panicking"))
        .collect();
    let bytes = std::fs::read(object).map_err(|error| format!("{}: {error}", object.display()))?;
    let frames = super::elf::frames(&bytes).ok_or("the object cannot be read")?;
    let functions = frames.values().map(Vec::len).sum::<usize>();
    let (largest, names) = frames.last_key_value().ok_or("no function has a frame")?;
    let large: usize = frames.range(1025..).map(|(_, names)| names.len()).sum();
    say!(
        "the library: {functions} functions, {large} with a frame above 1 KiB, the largest {largest} bytes: {}",
        names.join(", ")
    );
    if panics.len() > PANICS.len()
        || panics
            .iter()
            .any(|name| !PANICS.iter().any(|known| name.contains(known)))
    {
        return Err(format!("the library can panic: {}", panics.join(", ")));
    }
    if *largest > FRAME {
        return Err(format!("a frame of more than {FRAME} bytes"));
    }
    Ok(())
}
