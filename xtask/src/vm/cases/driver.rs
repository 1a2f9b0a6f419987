//! The driver: it comes up without a complaint, and goes and comes again.

use super::{Case, Manager, Outcome, Terms, holds, line_with, wait_active, with_words};
use crate::vm::lab::Lab;

/// What makes the subnet, and what the devices say of themselves.
pub const UP: &[Case] = &[
    Case::new("driver", driver),
    Case::new("port active", port_active),
    Case::new("device queries", device_queries),
];

/// What goes away and comes again.
pub const DOWN: &[Case] = &[
    Case::new("reload", reload),
    Case::new("guest reboot", reboot),
    Case::new("guest crash", crash).long(),
];

/// What the models did not act on: when all else is over.
pub const LEDGER: &[Case] = &[Case::new("ledger", ledger)];

/// Nothing is left of the models afterwards, their ledgers included.
pub const SERVER: &[Case] = &[Case::new("server restart", server_restart).long()];

const LOAD: &str = "modprobe -a ib_uverbs ib_umad ib_ipoib rdma_ucm ib_mthca && ls /sys/class/infiniband/mthca0 > /dev/null";

/// Loads the driver, and what stands on it, in all guests.
pub fn load(lab: &mut Lab) -> Result<(), String> {
    for guest in 1..=lab.guests.len() {
        lab.ok(guest, LOAD, 60)?;
    }
    Ok(())
}

fn driver(lab: &mut Lab, _: &Terms) -> Outcome {
    load(lab)?;
    let script = "cat /sys/class/infiniband/mthca0/{hca_type,fw_ver}";
    let said = lab.ok(1, script, 10)?;
    Ok(said.split_whitespace().collect::<Vec<_>>().join(", "))
}

/// OpenSM's partitions: the default one, and one more, both with IPoIB.
const PARTITIONS: &str = "Default=0x7fff,ipoib:ALL=full;\nOne=0x0001,ipoib:ALL=full;\n";

fn port_active(lab: &mut Lab, terms: &Terms) -> Outcome {
    let mut note = String::new();
    if terms.manager == Manager::OpenSm {
        start_opensm(lab)?;
        let script =
            "until_ 100 grep -q 'SUBNET UP' /tmp/osm.log; grep -c 'SUBNET UP' /tmp/osm.log";
        let sweeps = with_words(lab, 1, script, 30)?;
        note = format!("{} sweeps", sweeps.trim());
    }
    wait_active(lab)?;
    // A slow guest's port comes up some time before its QP0 has receive requests, and drops what it is asked meanwhile. Each of
    // the two attributes that show it has a zero of its own.
    for guest in 1..=lab.guests.len() {
        let script = "perfquery -R $(lid own) 1 0x0800 && perfquery -x -R $(lid own) 1 || exit 1
            for more in '' -x; do perfquery $more $(lid own) 1; done | grep 'VL15Dropped:[.]*[1-9]' && exit 1; true";
        with_words(lab, guest, script, 20)?;
    }
    Ok(note)
}

/// Starts OpenSM in guest 1. With -d2 a line is in its log when it is written: else "SUBNET UP", which is a mere notice,
/// stays in a buffer until something goes wrong.
pub(super) fn start_opensm(lab: &mut Lab) -> Result<(), String> {
    let script = format!(
        "printf '{}' > /tmp/partitions.conf
        setsid opensm -d2 -p 8 -f /tmp/osm.log -P /tmp/partitions.conf > /dev/null 2>&1 < /dev/null &",
        PARTITIONS.replace('\n', "\\n")
    );
    lab.ok(1, &script, 10)?;
    Ok(())
}

fn device_queries(lab: &mut Lab, terms: &Terms) -> Outcome {
    let said = lab.ok(2, "ibv_devinfo -v && ibstat && ibstatus", 20)?;
    let kind = match terms.model {
        "tavor" => "CA type: MT23108",
        "arbel-compat" => "CA type: MT25208 (MT23108 compat mode)",
        "arbel" => "CA type: MT25208",
        _ => "CA type: MT25204",
    };
    holds(
        &said,
        &[
            "PORT_ACTIVE",
            "max_mtu:\t\t2048",
            kind,
            "State: Active",
            "Physical state: LinkUp",
        ],
    )?;
    Ok(String::new())
}

fn reload(lab: &mut Lab, terms: &Terms) -> Outcome {
    let times = if terms.quick { 2 } else { 10 };
    let script = format!(
        "ip link set ib0 down; for i in $(seq {times}); do rmmod ib_mthca && modprobe ib_mthca || exit 1; done"
    );
    lab.ok(2, &script, 60 + 10 * times)?;
    wait_active(lab)?;
    lab.ok(2, "ping -c 2 -W 5 10.9.1.1", 20)?;
    Ok(format!("{times} times"))
}

/// The guest resets its machine while the driver runs; then all of it comes up again.
fn reboot(lab: &mut Lab, _: &Terms) -> Outcome {
    let limit = lab.limit(120);
    lab.guest(2)?.reset("echo b > /proc/sysrq-trigger", limit)?;
    lab.ok(2, LOAD, 60)?;
    wait_active(lab)?;
    lab.ok(2, "ping -c 2 -W 5 10.9.1.1", 20)?;
    Ok(String::new())
}

/// The guest's QEMU is killed while the driver runs; another one takes its socket.
fn crash(lab: &mut Lab, _: &Terms) -> Outcome {
    lab.start_again(2)?;
    lab.ok(2, LOAD, 60)?;
    wait_active(lab)?;
    lab.ok(2, "ping -c 2 -W 5 10.9.1.1", 20)?;
    Ok(String::new())
}

/// The server is killed while drivers run: to a guest the device is gone, which its kernel says, and it goes on without. A
/// new server and new guests find nothing in their way.
fn server_restart(lab: &mut Lab, terms: &Terms) -> Outcome {
    lab.crash_simulator();
    let script = "for i in $(seq 100); do dmesg | grep -q 'Catastrophic error' && break; sleep 0.2; done; dmesg | grep 'ib_mthca.*Catastrophic error' && uname -r";
    let said: Result<Vec<_>, _> = (1..=lab.guests.len())
        .map(|guest| lab.ok(guest, script, 60))
        .collect();
    lab.start_all_again()?;
    load(lab)?;
    if terms.manager == Manager::OpenSm {
        start_opensm(lab)?;
    }
    wait_active(lab)?;
    lab.ok(2, "ping -c 2 -W 5 10.9.1.1", 20)?;
    said.map(|said| line_with(&said.concat(), "Catastrophic"))
}

/// What is explained in docs/status.md.
const EXPLAINED: [&str; 1] = ["address vector: static rate"];

/// The models acted on all that Linux used, but for what is explained.
fn ledger(lab: &mut Lab, _: &Terms) -> Outcome {
    let said = lab.ledgers()?;
    // An entry is a count, two spaces, and a name.
    let entry = |line: &String| {
        let (count, name) = line.trim().split_once("  ")?;
        count.parse::<u64>().ok().map(|_| name.trim().to_owned())
    };
    let mut found: Vec<String> = said.iter().filter_map(entry).collect();
    found.sort();
    found.dedup();
    let explained = |name: &String| EXPLAINED.contains(&name.as_str());
    match (found.is_empty(), found.iter().all(explained)) {
        (true, _) => Ok("empty".into()),
        (_, true) => Ok(format!("explained: {}", found.join("; "))),
        _ => Err(found.join("\n")),
    }
}
