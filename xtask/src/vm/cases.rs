//! The matrix: what unmodified Linux guests must be able to do.

use super::lab::{Lab, Wanted};
use super::setup::Kernel;

/// One fabric, and what is tried on it, in this order.
pub struct Group {
    /// As in results.
    pub name: &'static str,
    /// Also in the short run.
    pub quick: bool,
    /// The device model.
    pub model: &'static str,
    /// The kernel of the guests.
    pub kernel: Kernel,
    /// Words for the simulator.
    pub sim: &'static [&'static str],
    /// What is tried.
    pub cases: &'static [Case],
}

impl Group {
    /// The lab that it needs.
    pub fn wanted(&self) -> Wanted {
        Wanted {
            guests: 2,
            model: self.model.into(),
            kernel: self.kernel,
            more: self.sim.iter().map(|word| (*word).into()).collect(),
            interactive: false,
        }
    }
}

/// One thing that is tried. What it gives is for the table.
pub struct Case {
    /// As in results.
    pub name: &'static str,
    /// Not in the short run.
    pub long: bool,
    /// The trial.
    pub run: fn(&mut Lab, bool) -> Result<String, String>,
}

/// All groups.
pub const GROUPS: &[Group] = &[
    Group {
        name: "tavor",
        quick: true,
        model: "tavor",
        kernel: Kernel::Stable,
        sim: &["--hosts", "2"],
        cases: ALL,
    },
    Group {
        name: "tavor-newest",
        quick: false,
        model: "tavor",
        kernel: Kernel::Newest,
        sim: &["--hosts", "2"],
        cases: ALL,
    },
];

const fn short(name: &'static str, run: fn(&mut Lab, bool) -> Result<String, String>) -> Case {
    Case {
        name,
        long: false,
        run,
    }
}

const ALL: &[Case] = &[
    short("driver", driver),
    short("port active", port_active),
    short("device queries", device_queries),
    short("discovery tools", discovery),
    short("SA and SM queries", queries),
    short("counters", counters),
    short("ibping", ibping),
    short("IPoIB ping", ipoib_ping),
    short("ud pingpong", |lab, quick| pingpong(lab, "ud", 2048, quick)),
    short("rc pingpong", |lab, quick| {
        pingpong(lab, "rc", 1 << 20, quick)
    }),
    short("uc pingpong", |lab, quick| {
        pingpong(lab, "uc", 1 << 20, quick)
    }),
    short("srq pingpong", |lab, quick| {
        pingpong(lab, "srq", 65_536, quick)
    }),
    short("perftest send", |lab, quick| {
        perftest(lab, "send", "RC UC UD", quick)
    }),
    short("perftest write", |lab, quick| {
        perftest(lab, "write", "RC UC", quick)
    }),
    short("perftest read", |lab, quick| {
        perftest(lab, "read", "RC", quick)
    }),
    short("perftest atomic", |lab, quick| {
        perftest(lab, "atomic", "RC", quick)
    }),
    short("iperf3 datagram", |lab, quick| {
        iperf(lab, "datagram", quick)
    }),
    short("iperf3 connected", |lab, quick| {
        iperf(lab, "connected", quick)
    }),
    short("rping", rping),
    short("link flap", link_flap),
    short("reload", reload),
    short("kernel log", kernel_log),
    short("ledger", ledger),
];

/// The driver comes up without a complaint but for the bridge that an endpoint over vfio-user cannot show.
fn driver(lab: &mut Lab, _: bool) -> Result<String, String> {
    for guest in 1..=lab.guests.len() {
        let script = "modprobe -a ib_uverbs ib_umad ib_ipoib rdma_ucm ib_mthca && ls /sys/class/infiniband/mthca0 > /dev/null";
        lab.ok(guest, script, 60)?;
    }
    complaints(lab)
}

/// What the kernels complain about.
fn complaints(lab: &mut Lab) -> Result<String, String> {
    for guest in 1..=lab.guests.len() {
        let script = "dmesg -l emerg,alert,crit,err,warn | grep -E 'mthca|infiniband|ib[0-9]|ib_|rdma|BUG|WARN|Oops' | grep -v 'No bridge found'";
        let said = lab.said(guest, script, 20)?;
        if !said.text.is_empty() {
            return Err(format!("guest{guest} complains:\n{}", said.text));
        }
    }
    Ok(String::new())
}

/// OpenSM in guest 1 makes a subnet.
fn port_active(lab: &mut Lab, _: bool) -> Result<String, String> {
    lab.ok(
        1,
        "setsid opensm -f /tmp/osm.log > /dev/null 2>&1 < /dev/null &",
        10,
    )?;
    wait_active(lab)?;
    let log = lab.ok(
        1,
        "for i in $(seq 50); do grep -q 'SUBNET UP' /tmp/osm.log && break; sleep 0.1; done; grep -c 'SUBNET UP' /tmp/osm.log; ! grep ERR /tmp/osm.log",
        10,
    )?;
    Ok(format!("{} sweeps", log.trim()))
}

fn wait_active(lab: &mut Lab) -> Result<(), String> {
    for guest in 1..=lab.guests.len() {
        let script = "for i in $(seq 100); do grep -q ACTIVE /sys/class/infiniband/mthca0/ports/1/state && exit 0; sleep 0.2; done; ibstat; exit 1";
        lab.ok(guest, script, 60)?;
    }
    Ok(())
}

fn device_queries(lab: &mut Lab, _: bool) -> Result<String, String> {
    let said = lab.ok(2, "ibv_devinfo -v && ibstat", 20)?;
    holds(
        &said,
        &[
            "PORT_ACTIVE",
            "max_mtu:\t\t2048",
            "CA type: MT23108",
            "State: Active",
        ],
    )?;
    Ok(String::new())
}

/// All of these are in `text`.
fn holds(text: &str, wanted: &[&str]) -> Result<(), String> {
    match wanted.iter().find(|wanted| !text.contains(*wanted)) {
        None => Ok(()),
        Some(missing) => Err(format!("\"{missing}\" is not in:\n{text}")),
    }
}

fn discovery(lab: &mut Lab, _: bool) -> Result<String, String> {
    let said = lab.ok(
        2,
        "ibnetdiscover && iblinkinfo && ibswitches && ibhosts",
        60,
    )?;
    holds(&said, &["switch-1", "host-1", "host-2", "host-3", "host-4"])?;
    let lids = "lid() { cat /sys/class/infiniband/mthca0/ports/1/$1 | xargs printf '%d'; }; own=$(lid lid); sm=$(lid sm_lid)";
    let script = format!(
        "{lids}; ibtracert $own $sm && ibroute $(ibswitches | sed 's/.*lid \\([0-9]*\\).*/\\1/')"
    );
    let said = lab.ok(2, &script, 30)?;
    holds(&said, &["switch-1", "valid lids dumped"])?;
    // The switch drops a multicast whose only listener sent it, and counts that.
    lab.ok(2, "ibqueryerrors --suppress-common", 30)?;
    Ok(String::new())
}

fn queries(lab: &mut Lab, _: bool) -> Result<String, String> {
    let said = lab.ok(
        2,
        "sminfo && saquery NR && saquery PIR && saquery MCMR && saquery PR",
        60,
    )?;
    holds(
        &said,
        &[
            "SMINFO_MASTER",
            "NodeRecord dump",
            "PortInfoRecord dump",
            "MCMember Record dump",
            "PathRecord dump",
        ],
    )?;
    let script = "lid=$(sed 's/0x//' /sys/class/infiniband/mthca0/ports/1/sm_lid); lid=$((16#$lid)); \
        sw=$(ibswitches | sed 's/.*lid \\([0-9]*\\).*/\\1/'); \
        for q in nodeinfo nodedesc 'portinfo' ; do smpquery $q $lid 1 || exit 1; done; \
        smpquery pkeys $lid 1 && smpquery sl2vl $lid 1 && smpquery vlarb $lid 1 && smpquery GI $lid && smpquery switchinfo $sw && smpquery -D nodeinfo 0,1";
    let said = lab.ok(2, script, 60)?;
    holds(
        &said,
        &["NodeType", "LinkWidthActive", "0xffff", "LinearFdbTop"],
    )?;
    Ok(String::new())
}

fn counters(lab: &mut Lab, _: bool) -> Result<String, String> {
    let count = "perfquery | sed -n 's/PortXmitPkts:\\.*//p'";
    let number = |text: String| {
        text.trim()
            .parse::<u64>()
            .map_err(|_| format!("no count: {text}"))
    };
    let before = number(lab.ok(2, count, 20)?)?;
    lab.ok(2, "for i in 1 2 3 4 5; do perfquery $(($(cat /sys/class/infiniband/mthca0/ports/1/sm_lid))) 1 > /dev/null || exit 1; done", 20)?;
    let after = number(lab.ok(2, count, 20)?)?;
    if after < before + 5 {
        return Err(format!(
            "PortXmitPkts went from {before} to {after} in five queries over VL0"
        ));
    }
    lab.ok(2, "perfquery -x; perfquery -R && perfquery -a", 20)?;
    Ok(String::new())
}

fn ibping(lab: &mut Lab, _: bool) -> Result<String, String> {
    lab.ok(
        1,
        "setsid ibping -S > /dev/null 2>&1 < /dev/null & sleep 1",
        10,
    )?;
    let script = "lid=$(cat /sys/class/infiniband/mthca0/ports/1/sm_lid); guid=$(saquery -G 2>/dev/null | true; ibhosts | sed -n 's/.*: \\(0x[0-9a-f]*\\) .*host-1.*/\\1/p'); \
        ibping -c 3 $((lid)) && ibping -c 3 -G $(printf '0x%x' $((guid + 1)))";
    let said = lab.ok(2, script, 30)?;
    if said.matches("3 packets transmitted, 3 received").count() == 2 {
        Ok(String::new())
    } else {
        Err(said)
    }
}

/// IPoIB addresses of the guests.
fn addresses(lab: &mut Lab) -> Result<(), String> {
    for guest in 1..=lab.guests.len() {
        let script = format!(
            "sysctl -q net.ipv4.icmp_echo_ignore_broadcasts=0; ip link set ib0 up; ip addr replace 10.0.0.{guest}/24 dev ib0; for i in $(seq 100); do ip link show ib0 | grep -q 'state UP' && exit 0; sleep 0.2; done; exit 1"
        );
        lab.ok(guest, &script, 30)?;
    }
    Ok(())
}

fn ipoib_ping(lab: &mut Lab, quick: bool) -> Result<String, String> {
    addresses(lab)?;
    let count = if quick { 20 } else { 200 };
    let other = lab.ok(
        2,
        "ip -6 -o addr show dev ib0 scope link | sed 's/.*inet6 \\([^/]*\\).*/\\1/'",
        10,
    )?;
    let other = other.trim();
    lab.ok(1, "ping -c 3 -W 3 10.0.0.2", 20)?; // the first may wait for the path
    let said = lab.ok(
        1,
        &format!(
            "ping -q -i 0.01 -c {count} 10.0.0.2 && ping -q -i 0.01 -s 1900 -c {count} 10.0.0.2"
        ),
        60,
    )?;
    lab.ok(1, &format!("ping -q -i 0.01 -c {count} {other}%ib0"), 60)?;
    lab.ok(
        1,
        "ping -c 2 -I ib0 224.0.0.1 | grep 'bytes from 10.0.0.2'",
        20,
    )?;
    let rtt = said
        .lines()
        .find(|line| line.starts_with("rtt"))
        .unwrap_or_default();
    Ok(rtt.into())
}

fn pingpong(lab: &mut Lab, transport: &str, largest: u32, quick: bool) -> Result<String, String> {
    let sizes: &[u32] = if quick {
        &[4096]
    } else {
        &[1, 64, 1024, 4096, 65_536, 1 << 20]
    };
    let mut figure = String::new();
    for size in sizes.iter().map(|size| size.min(&largest)) {
        for events in ["", "-e"] {
            let words = format!("ibv_{transport}_pingpong -s {size} -n 100 {events}");
            let ask = format!("sleep 1; {words} 10.0.0.1");
            let (_, said) = lab.pair((1, &words), (2, &ask), 60)?;
            figure = said
                .lines()
                .find(|line| line.contains("usec/iter"))
                .unwrap_or_default()
                .into();
        }
    }
    Ok(figure)
}

fn perftest(lab: &mut Lab, what: &str, transports: &str, quick: bool) -> Result<String, String> {
    let mut figure = String::new();
    for transport in transports.split(' ') {
        for measure in ["bw", "lat"] {
            let sizes = match (quick, what) {
                (_, "atomic") => "",
                (true, _) => "-s 1024",
                (false, _) if transport == "UD" => "-s 2048",
                (false, _) => "-a",
            };
            // In one guest processor server and client of a WRITE poll memory: there is no waiting for it.
            let events = if what == "write" { "" } else { "-e" };
            let words =
                format!("ib_{what}_{measure} -F -c {transport} -n 100 {sizes} {events} 2>&1");
            let words = if what == "read" || what == "atomic" {
                words.replace("-c RC", "")
            } else {
                words
            };
            let ask = format!("sleep 1; {words}").replace("2>&1", "10.0.0.1 2>&1");
            let (_, said) = lab.pair((1, &words), (2, &ask), 120)?;
            figure = said
                .lines()
                .rev()
                .find(|line| {
                    line.trim_start()
                        .starts_with(|first: char| first.is_ascii_digit())
                })
                .unwrap_or_default()
                .trim()
                .into();
        }
    }
    Ok(figure)
}

fn iperf(lab: &mut Lab, mode: &str, quick: bool) -> Result<String, String> {
    for guest in 1..=2 {
        let script = format!(
            "ip link set ib0 down; echo {mode} > /sys/class/net/ib0/mode && ip link set ib0 up"
        );
        lab.ok(guest, &script, 20)?;
    }
    addresses(lab)?;
    lab.ok(2, "ping -c 3 -W 3 10.0.0.1", 20)?;
    let seconds = if quick { 2 } else { 20 };
    let ask = format!("sleep 1; iperf3 -c 10.0.0.1 -t {seconds}");
    let (_, said) = lab.pair((1, "iperf3 -s -1"), (2, &ask), 60 + seconds)?;
    let figure = said
        .lines()
        .find(|line| line.contains("receiver"))
        .unwrap_or_default();
    Ok(figure.split_whitespace().collect::<Vec<_>>().join(" "))
}

fn rping(lab: &mut Lab, _: bool) -> Result<String, String> {
    addresses(lab)?;
    let serve = "rping -s -a 10.0.0.1 -V -C 20";
    let (_, said) = lab.pair(
        (1, serve),
        (2, "sleep 1; rping -c -a 10.0.0.1 -V -C 20 -v"),
        60,
    )?;
    Ok(said
        .lines()
        .last()
        .unwrap_or_default()
        .chars()
        .take(40)
        .collect())
}

/// The cable of guest 2 is pulled and put back.
fn link_flap(lab: &mut Lab, _: bool) -> Result<String, String> {
    lab.command("down 2 switch-1")?;
    lab.ok(2, "for i in $(seq 50); do grep -q DOWN /sys/class/infiniband/mthca0/ports/1/state && exit 0; sleep 0.1; done; exit 1", 20)?;
    lab.command("up 2 switch-1")?;
    wait_active(lab)?;
    lab.ok(
        2,
        "for i in $(seq 20); do ping -c 1 -W 1 10.0.0.1 > /dev/null && exit 0; done; exit 1",
        60,
    )?;
    Ok(String::new())
}

fn reload(lab: &mut Lab, quick: bool) -> Result<String, String> {
    let times = if quick { 2 } else { 10 };
    let script = format!(
        "ip link set ib0 down; for i in $(seq {times}); do rmmod ib_mthca && modprobe ib_mthca || exit 1; done"
    );
    lab.ok(2, &script, 60 + 10 * times)?;
    wait_active(lab)?;
    Ok(format!("{times} times"))
}

fn kernel_log(lab: &mut Lab, _: bool) -> Result<String, String> {
    complaints(lab)
}

/// The models acted on all that Linux used.
fn ledger(lab: &mut Lab, _: bool) -> Result<String, String> {
    let said = lab.ledgers()?;
    let empty = said
        .iter()
        .filter(|line| line.contains("ledger: empty"))
        .count();
    if empty == lab.guests.len() {
        Ok(String::new())
    } else {
        Err(said.join("\n"))
    }
}
