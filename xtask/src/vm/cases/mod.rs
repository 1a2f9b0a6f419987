//! The matrix: what unmodified Linux guests must be able to do. One file for each group of programs.

mod connections;
mod driver;
mod faults;
mod ipoib;
mod mixed;
mod ours_connected;
mod ours_pingpong;
mod ours_verbs;
mod perftest;
mod pingpong;
mod srp;
mod sums;
mod tools;
mod two_ports;

pub use driver::load;
pub use sums::checksums_verified;

use super::lab::{Lab, Wanted};
use super::setup::Kernel;

/// Which subnet manager there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manager {
    /// Ours, on a host in process.
    Ours,
    /// OpenSM, in guest 1.
    OpenSm,
}

/// One fabric, and what is tried on it, in this order.
pub struct Group {
    /// As in results.
    pub name: &'static str,
    /// Also in the short run.
    pub quick: bool,
    /// The device model; of each guest, if there are two.
    pub model: &'static str,
    /// The device model of the hosts of ours.
    pub ours: &'static str,
    /// The fabric.
    pub fabric: &'static str,
    /// The kernel of the guests.
    pub kernel: Kernel,
    /// The subnet manager.
    pub manager: Manager,
    /// Minutes of each of its soaks.
    pub soak: f64,
    /// What is tried, part by part.
    pub parts: &'static [&'static [Case]],
}

impl Group {
    /// The lab that it needs.
    pub fn wanted(&self) -> Wanted {
        Wanted {
            more: words(self.fabric, self.manager, self.ours),
            ..wanted(self.model, self.kernel, self.manager)
        }
    }

    /// All of its cases. The first two make the subnet that the others need.
    pub fn cases(&self) -> impl Iterator<Item = &'static Case> + Clone {
        self.parts.iter().copied().flatten()
    }
}

/// The fabric of the tests.
const FABRIC: &str = "vm/fabric.ibsim";

/// Two guests on the fabric of the tests.
pub fn wanted(model: &str, kernel: Kernel, manager: Manager) -> Wanted {
    Wanted {
        guests: 2,
        model: model.into(),
        kernel,
        more: words(FABRIC, manager, "tavor"),
        ethernet: false,
        iommu: false,
        interactive: false,
    }
}

/// Words for the simulator: who plays which host of a fabric.
fn words(fabric: &str, manager: Manager, ours: &str) -> Vec<String> {
    let managers = match manager {
        Manager::Ours => "2",
        Manager::OpenSm => "0",
    };
    let words = [
        "--topology",
        fabric,
        "--guest",
        "guest-1,guest-2",
        "--ours",
        "2",
        "--partition",
        "0x8001",
        "--managers",
        managers,
        "--host-model",
        ours,
    ];
    words.map(String::from).to_vec()
}

/// What a case is told.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// As short as it can be and still show that the thing works.
    pub quick: bool,
    /// Seconds of each soak.
    pub soak: u64,
    /// The device model of guest 2.
    pub model: &'static str,
    /// The subnet manager.
    pub manager: Manager,
}

/// What a case gives: a note for the table, or what went wrong.
type Outcome = Result<String, String>;

/// One thing that is tried.
pub struct Case {
    /// As in results.
    pub name: &'static str,
    /// Not in the short run.
    pub long: bool,
    /// What kernels may say meanwhile, by words in it.
    pub may_say: &'static [&'static str],
    /// The trial.
    pub run: fn(&mut Lab, &Terms) -> Outcome,
}

impl Case {
    const fn new(name: &'static str, run: fn(&mut Lab, &Terms) -> Outcome) -> Self {
        Self {
            name,
            long: false,
            may_say: &[],
            run,
        }
    }

    const fn long(self) -> Self {
        Self { long: true, ..self }
    }

    const fn may_say(self, may_say: &'static [&'static str]) -> Self {
        Self { may_say, ..self }
    }
}

/// Points 1 to 5 of the matrix.
const FIVE: &[&[Case]] = &[
    driver::UP,
    tools::CASES,
    pingpong::CASES,
    ipoib::CASES,
    connections::CASES,
    perftest::CASES,
    driver::DOWN,
    driver::LEDGER,
    driver::SERVER,
];

/// All points.
const ALL: &[&[Case]] = &[
    driver::UP,
    tools::CASES,
    pingpong::CASES,
    ipoib::CASES,
    mixed::CASES,
    ours_connected::CASES,
    ours_verbs::CASES,
    ours_pingpong::CASES,
    connections::CASES,
    perftest::CASES,
    srp::CASES,
    faults::CASES,
    ipoib::SOAK_DATAGRAM,
    ipoib::SOAK_CONNECTED,
    driver::DOWN,
    driver::LEDGER,
    driver::SERVER,
];

/// A group of all points.
const fn whole(name: &'static str, model: &'static str, manager: Manager) -> Group {
    Group {
        name,
        quick: false,
        model,
        ours: "tavor",
        fabric: FABRIC,
        kernel: Kernel::Stable,
        manager,
        soak: 0.25,
        parts: ALL,
    }
}

/// A group of points 1 to 5, with our subnet manager.
const fn five(name: &'static str, model: &'static str, kernel: Kernel) -> Group {
    Group {
        kernel,
        parts: FIVE,
        ..whole(name, model, Manager::Ours)
    }
}

/// All groups: every variant with our subnet manager, one of either mode with OpenSM, too, and another kernel; a long soak
/// of each mode of IPoIB.
pub const GROUPS: &[Group] = &[
    Group {
        quick: true,
        ..whole("tavor", "tavor", Manager::Ours)
    },
    Group {
        quick: true,
        ours: "arbel",
        ..whole("arbel-opensm", "arbel", Manager::OpenSm)
    },
    whole("tavor-opensm", "tavor", Manager::OpenSm),
    Group {
        ours: "sinai",
        ..whole("arbel", "arbel", Manager::Ours)
    },
    five("arbel-compat", "arbel-compat", Kernel::Stable),
    five("sinai", "sinai", Kernel::Stable),
    five("sinai-old", "sinai-old", Kernel::Stable),
    five("tavor-newest", "tavor", Kernel::Newest),
    five("arbel-newest", "arbel", Kernel::Newest),
    Group {
        fabric: "vm/two-ports.ibsim",
        parts: &[driver::UP, two_ports::CASES, driver::LEDGER],
        ..whole("two-ports", "tavor,arbel", Manager::Ours)
    },
    Group {
        soak: 15.0,
        parts: &[driver::UP, ipoib::SOAK_DATAGRAM, driver::LEDGER],
        ..whole("soak-datagram", "tavor", Manager::Ours)
    },
    Group {
        soak: 15.0,
        parts: &[driver::UP, ipoib::SOAK_CONNECTED, driver::LEDGER],
        ..whole("soak-connected", "arbel", Manager::Ours)
    },
];

/// Words of the shell that scripts begin with: `lid own`, `lid sm`, `lid_of DESCRIPTION`, `switches` (their LIDs),
/// `until_ N COMMAND …` (tries N times, five times a second).
const WORDS: &str = "port=/sys/class/infiniband/mthca0/ports/1
lid() { case $1 in sm) echo $(($(cat $port/sm_lid)));; *) echo $(($(cat $port/lid)));; esac; }
until_() { n=$1; shift; for i in $(seq $n); do \"$@\" > /dev/null 2>&1 && return 0; sleep 0.2; done; echo \"never: $*\"; return 1; }
switches() { ibswitches | sed 's/.* lid \\([0-9]*\\) .*/\\1/'; }
lid_of() { saquery NR 2> /dev/null | awk -v name=\"$1\" '/[^_]lid\\./ { sub(/.*lid\\.*/, \"\"); lid = $0 } /NodeDescription/ { sub(/.*NodeDescription\\.*/, \"\"); if ($0 == name) print lid }'; }
";

/// Runs a script that begins with [`WORDS`]; it must succeed.
fn with_words(lab: &mut Lab, guest: usize, script: &str, limit: u64) -> Outcome {
    lab.ok(guest, &format!("{WORDS}{script}"), limit)
}

/// All of these are in `text`.
fn holds(text: &str, wanted: &[&str]) -> Result<(), String> {
    match wanted.iter().find(|wanted| !text.contains(*wanted)) {
        None => Ok(()),
        Some(missing) => Err(format!("\"{missing}\" is not in:\n{text}")),
    }
}

/// The first line of `text` with `word` in it, its spaces made single.
fn line_with(text: &str, word: &str) -> String {
    let line = text.lines().find(|line| line.contains(word));
    let words: Vec<&str> = line.unwrap_or_default().split_whitespace().collect();
    words.join(" ")
}

/// Waits until the ports of all guests are Active and their interfaces up, with addresses.
pub fn wait_active(lab: &mut Lab) -> Result<(), String> {
    for guest in 1..=lab.guests.len() {
        let script = format!(
            "until_ 150 grep -q ACTIVE $port/state || {{ ibstat; exit 1; }}
            sysctl -q net.ipv4.icmp_echo_ignore_broadcasts=0
            ip link set ib0 up && ip addr replace 10.9.1.{guest}/16 dev ib0 && ip addr replace fd09::100:{guest}/64 dev ib0 nodad
            until_ 100 sh -c \"ip link show ib0 | grep -q 'state UP'\""
        );
        with_words(lab, guest, &script, 50)?;
    }
    Ok(())
}
