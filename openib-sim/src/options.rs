//! The options of the demonstration. All that can be wrong with them is found before anything runs, and before a file
//! of the user's is touched.

use crate::ended::Stop;
use crate::model::Model;
use crate::sim;
use core::time::Duration;
use platform_sim::fabric::topology::{Topology, build};
use platform_sim::fabric::{Capture, Faults};
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// How an IP interface carries packets to one peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum IpMode {
    /// As datagrams, 2044 bytes at most.
    #[default]
    Datagram,
    /// By a connection, 65520 bytes at most, where the peer takes them.
    Connected,
}

/// Options of the demonstration.
#[derive(clap::Args, Debug)]
pub struct Options {
    /// Write a capture, for Wireshark or tshark, of what passes the first host's cable.
    #[arg(long, value_name = "FILE")]
    pub pcap: Option<PathBuf>,
    /// Capture every cable. A packet then appears once for each cable that it passes.
    #[arg(long, requires = "pcap")]
    pub pcap_all: bool,
    /// Chooses everything that is left to chance: the same seed gives the same run.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Nodes and cables, in the language of ibnetdiscover and ibsim. Default: two hosts on one switch.
    #[arg(long, value_name = "FILE")]
    pub topology: Option<PathBuf>,
    /// Hosts on one switch.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(2..=35), conflicts_with = "topology")]
    pub hosts: u8,
    /// How the IP interfaces carry packets.
    #[arg(long, value_enum, default_value_t)]
    pub mode: IpMode,
    /// The HCAs of the hosts.
    #[arg(long, value_enum, default_value_t)]
    pub model: Model,
    /// Packets lost on every cable, in percent, once the interfaces are up. A capture has them, too.
    #[arg(long, default_value_t = 0.0, value_name = "PERCENT", value_parser = percent)]
    pub loss: f64,
    /// Draw the fabric, with LIDs, routes and port states, as it is at the end.
    #[arg(long, value_name = "FILE.svg", conflicts_with = "tun")]
    pub drawing: Option<PathBuf>,
    /// Size of the TCP transfer each way, in MiB.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=65536), conflicts_with = "tun")]
    pub mib: u64,
    /// Show what each host notes.
    #[arg(long, short)]
    pub verbose: bool,
    /// Each host's interface is a TUN device in a network namespace of its own (takes root), in real time. Then the
    /// words after `--` are run in the first host's namespace, with PEER, PEER6, NS and PEER_NS set; without words,
    /// until Ctrl-C.
    #[arg(long)]
    pub tun: bool,
    /// With --tun and a command: so many seconds after it began, the first host's cable is pulled for one second.
    #[arg(long, value_name = "SECONDS", requires_all = ["tun", "command"], value_parser = seconds)]
    pub flap: Option<Duration>,
    /// With --tun: a command to run.
    #[arg(last = true, requires = "tun")]
    pub command: Vec<String>,
}

/// A share of packets: a number of percent.
fn percent(text: &str) -> Result<f64, String> {
    let number = text.parse().ok();
    number
        .filter(|number| (0.0..=100.0).contains(number))
        .ok_or_else(|| "not a number from 0 to 100".into())
}

/// A time in seconds, of a day at most.
fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.parse().ok();
    number
        .filter(|number| (0.0..=86400.0).contains(number))
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "not a number from 0 to 86400".into())
}

/// `error`, about the file at `path`.
fn about(path: &Path, error: impl core::fmt::Display) -> String {
    format!("{}: {error}", path.display())
}

impl Options {
    /// The topology that is asked for, on which a demonstration can be given.
    pub fn topology(&self) -> Result<Topology, String> {
        let topology = self.given_topology()?;
        sim::takes(&topology, self.model)?;
        Ok(topology)
    }

    fn given_topology(&self) -> Result<Topology, String> {
        self.files_differ()?;
        let Some(path) = &self.topology else {
            return Ok(build::star(self.hosts));
        };
        let parsed = Topology::load(path).map_err(|error| about(path, error))?;
        for warning in &parsed.warnings {
            crate::complain!("{}: {warning}", path.display());
        }
        sim::suits(&parsed.topology).map_err(|error| about(path, error))?;
        Ok(parsed.topology)
    }

    /// No file is written that another option reads or writes.
    fn files_differ(&self) -> Result<(), String> {
        let all = [
            ("--topology", &self.topology),
            ("--pcap", &self.pcap),
            ("--drawing", &self.drawing),
        ];
        let mut seen: Vec<(&str, PathBuf)> = Vec::new();
        for (option, path) in all {
            let Some(path) = path else { continue };
            let Some(place) = regular(path) else { continue };
            if let Some((other, _)) = seen.iter().find(|(_, known)| *known == place) {
                return Err(about(path, format!("{other} and {option} are one file")));
            }
            seen.push((option, place));
        }
        Ok(())
    }

    /// The capture that is asked for. Empties its file.
    pub fn capture(&self) -> Result<Option<Capture>, String> {
        let Some(path) = &self.pcap else {
            return Ok(None);
        };
        let file = File::create(path).map_err(|error| about(path, error))?;
        let capture = Capture::new(BufWriter::new(file)).map_err(|error| about(path, error))?;
        Ok(Some(capture))
    }

    /// Ends the capture; says how many packets it has.
    pub fn finish(&self, capture: Option<&Capture>) -> Result<(), String> {
        let (Some(path), Some(capture)) = (&self.pcap, capture) else {
            return Ok(());
        };
        capture.finish().map_err(|error| about(path, error))?;
        let packets = capture.packets();
        crate::say!("capture: {packets} packets in {}", path.display());
        Ok(())
    }

    /// The place of the drawing that is asked for. What is there stays until it is drawn.
    pub fn canvas(&self) -> Result<Option<Canvas>, String> {
        let Some(path) = &self.drawing else {
            return Ok(None);
        };
        let options = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(path);
        let file = options.map_err(|error| about(path, error))?;
        Ok(Some(Canvas {
            path: path.clone(),
            file,
        }))
    }

    /// The faults that are asked for.
    pub fn faults(&self) -> Faults {
        Faults {
            // At most a million.
            drop: (self.loss * 10_000.0).round() as u32,
            ..Faults::default()
        }
    }
}

/// The one path of a regular file, or of one that is still to be made.
fn regular(path: &Path) -> Option<PathBuf> {
    match path.canonicalize() {
        Ok(path) => path.is_file().then_some(path),
        Err(_) => {
            let parent = path.parent().filter(|parent| *parent != Path::new(""));
            let parent = parent.unwrap_or(Path::new(".")).canonicalize().ok()?;
            Some(parent.join(path.file_name()?))
        }
    }
}

/// Where a drawing goes.
#[derive(Debug)]
pub struct Canvas {
    path: PathBuf,
    file: File,
}

impl Canvas {
    /// Puts `picture` there, instead of what was there.
    pub fn draw(mut self, picture: &str) -> Result<(), Stop> {
        let replace = |file: &mut File| -> io::Result<()> {
            if file.metadata()?.is_file() {
                file.set_len(0)?;
            }
            file.write_all(picture.as_bytes())
        };
        replace(&mut self.file).map_err(|error| about(&self.path, error))?;
        crate::say!("drawing: {}", self.path.display());
        Ok(())
    }
}
