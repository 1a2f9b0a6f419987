//! Building the module against a kernel's headers.

use super::{For, object, place};
use crate::run::root;
use crate::say;
use crate::vm::Kernel;
use clap::Args;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Flags of `build`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    #[command(flatten)]
    pub(super) target: For,
}

impl Options {
    /// Against the headers that are installed.
    pub fn for_this_machine() -> Self {
        let target = For {
            headers: None,
            kernel: Kernel::Stable,
        };
        Self { target }
    }
}

/// Builds it, the Rust part within `limit`. Gives the file.
pub fn run(options: &Options, limit: Option<Duration>) -> Result<PathBuf, String> {
    let at = place();
    let told = |error: std::io::Error| format!("{}: {error}", at.display());
    std::fs::create_dir_all(&at).map_err(told)?;
    let object = object::make(limit)?;
    let folder = at.join("build").join(options.target.kernel.name());
    copy(&object, &folder).map_err(told)?;
    let (words, release) = match (&options.target.headers, options.target.kernel) {
        (None, Kernel::Newest) => in_tree(&folder)?,
        _ => here(&headers(&options.target)?, &folder)?,
    };
    let complaints = complaints(&words);
    if !complaints.is_empty() {
        return Err(format!("the build complains:\n{}", complaints.join("\n")));
    }
    let module = folder.join("kmod/openib.ko");
    let bytes = std::fs::metadata(&module).map_err(told)?.len();
    say!(
        "{}: {bytes} bytes, for {release}, no warning",
        module.display()
    );
    Ok(module)
}

/// With the headers and the compiler of this machine. Gives what make said, and the kernel's release.
fn here(headers: &Path, folder: &Path) -> Result<(String, String), String> {
    let release = std::fs::read_to_string(headers.join("include/config/kernel.release"));
    let release = release.map_err(|error| format!("{}: {error}", headers.display()))?;
    let release = release.trim().to_owned();
    say!("building the module for {release}");
    let output = Command::new("make")
        .arg("-C")
        .arg(headers)
        .arg(format!("M={}", folder.join("kmod").display()))
        .args(["modules"])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("make: {error}"))?;
    let words = [output.stdout, output.stderr].concat();
    let words = String::from_utf8_lossy(&words).into_owned();
    match output.status.success() {
        true => Ok((words, release)),
        false => Err(format!("the module does not build:\n{words}")),
    }
}

/// With those of the Debian tree in which the newest kernel is; likewise.
fn in_tree(folder: &Path) -> Result<(String, String), String> {
    say!("building the module in the tree of the newest kernel");
    let mut script = Command::new("bash");
    script.arg(root().join("vm/module"));
    script
        .arg(crate::vm::place().join("sid"))
        .arg(folder)
        .stdin(Stdio::null());
    let output = script.output().map_err(|error| format!("bash: {error}"))?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(format!("the module does not build:\n{words}"));
    }
    let read = |name: &str| {
        let path = folder.join(name);
        std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))
    };
    Ok((read("make.log")?, read("release")?.trim().to_owned()))
}

/// Lines in which a tool of the build is not content.
fn complaints(words: &str) -> Vec<&str> {
    let bad = |line: &&str| {
        let line = line.to_lowercase();
        ["warning", "error", "objtool", "modpost:"]
            .iter()
            .any(|word| line.contains(word))
    };
    // What is not there on this machine, and not needed.
    let harmless = ["Skipping BTF generation", "compiler differs from the one"];
    words
        .lines()
        .filter(bad)
        .filter(|line| !harmless.iter().any(|word| line.contains(word)))
        .collect()
}

/// The headers that were named, or those that are installed.
fn headers(target: &For) -> Result<PathBuf, String> {
    if let Some(headers) = &target.headers {
        return Ok(headers.clone());
    }
    if target.kernel == Kernel::Debug {
        return Ok(target.kernel.place().join("build"));
    }
    let modules = Path::new("/lib/modules");
    let built = std::fs::read_dir(modules)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path().join("build")))
        .filter(|build| build.join("Makefile").exists());
    built
        .max()
        .ok_or("no headers of a kernel; on Debian: apt-get install linux-headers-amd64".into())
}

/// Kbuild writes beside what it reads: a copy is built, for each kernel its own.
fn copy(object: &Path, folder: &Path) -> std::io::Result<()> {
    let from = root().join("platform-linux");
    for part in ["kmod", "include"] {
        std::fs::create_dir_all(folder.join(part))?;
        for entry in std::fs::read_dir(from.join(part))? {
            let entry = entry?;
            std::fs::copy(entry.path(), folder.join(part).join(entry.file_name()))?;
        }
    }
    std::fs::copy(object, folder.join("kmod/openib_rust.o_shipped"))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_that_warns_is_not_content_and_one_without_btf_is() {
        assert_eq!(
            complaints("rust.o: warning: objtool: x"),
            ["rust.o: warning: objtool: x"]
        );
        assert!(
            complaints("  LD [M]  openib.ko\nSkipping BTF generation for openib.ko").is_empty()
        );
    }
}
