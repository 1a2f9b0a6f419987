//! What is tried with the module in guest 1 and Linux's own driver in guest 2.

use super::test::Options;
use crate::vm::{Guests, Listens};
use std::time::{Duration, Instant};

/// A note for the table, or what went wrong.
pub type Outcome = Result<String, String>;

/// One thing that is tried.
pub struct Case {
    /// As in results.
    pub name: &'static str,
    /// The trial.
    pub run: fn(&mut Guests, &Options) -> Outcome,
    /// Of the least that is tried on every HCA.
    pub least: bool,
    /// On a debugging kernel alone.
    pub debug: bool,
}

impl Case {
    const fn new(name: &'static str, run: fn(&mut Guests, &Options) -> Outcome) -> Self {
        Self {
            name,
            run,
            least: false,
            debug: false,
        }
    }

    const fn least(mut self) -> Self {
        self.least = true;
        self
    }

    const fn debug(mut self) -> Self {
        self.debug = true;
        self
    }
}

/// The first of these make what the others need.
pub const FIRST: usize = 3;

/// In this order.
pub const CASES: [Case; 20] = [
    Case::new("the module loads", loads).least(),
    Case::new("the stock driver loads", stock).least(),
    Case::new("interfaces come up", up).least(),
    Case::new("ethtool", ethtool),
    Case::new("ping", ping).least(),
    Case::new("ping6", ping6),
    Case::new("multicast", multicast),
    Case::new("iperf3", iperf).least(),
    Case::new("checksums", checksums).least(),
    Case::new("P_Key interface", p_key),
    Case::new("link flap", flap),
    Case::new("link flap under traffic", flap_under_traffic),
    Case::new("OpenSM takes over, and dies", failover),
    Case::new("connected mode", connected).least(),
    Case::new("restart", restart).least(),
    Case::new("unbind and bind", unbind),
    Case::new("load and unload", reload).least(),
    Case::new("nothing is left", nothing_left).least(),
    Case::new("what the kernel looked for", debugging).debug(),
    Case::new("the stock driver instead", compare),
];

/// Has a script wait: `until_ TIMES COMMAND`, five times a second.
const UNTIL: &str = "until_() { n=$1; shift; for i in $(seq $n); do \"$@\" > /dev/null 2>&1 && return 0; sleep 0.2; done; echo \"never: $*\"; return 1; }\n";

/// The first line of `said` with `word` in it, without spaces around it.
fn line(said: &str, word: &str) -> String {
    let line = said.lines().find(|line| line.contains(word));
    line.unwrap_or_default().trim().into()
}

fn waiting(lab: &mut Guests, guest: usize, script: &str, limit: u64) -> Outcome {
    lab.ok(guest, &format!("{UNTIL}{script}"), limit)
}

fn loads(lab: &mut Guests, _: &Options) -> Outcome {
    let said = lab.ok(
        1,
        "insmod /run/openib.ko debug=1 p_keys=0x8001 && dmesg | grep 'openib.*HCA'",
        60,
    )?;
    Ok(line(&said, "HCA"))
}

fn stock(lab: &mut Guests, _: &Options) -> Outcome {
    lab.ok(2, "modprobe -a ib_uverbs ib_umad ib_ipoib ib_mthca && cat /sys/class/infiniband/mthca0/hca_type", 60)
}

fn up(lab: &mut Guests, _: &Options) -> Outcome {
    for guest in [1, 2] {
        let script = format!(
            "ip link set ib0 up && ip addr replace 10.9.1.{guest}/16 dev ib0 && ip -6 addr replace fd09::100:{guest}/64 dev ib0 nodad
            until_ 150 sh -c \"ip link show ib0 | grep -q 'state UP'\"; ip -s link show ib0"
        );
        waiting(lab, guest, &script, 60)?;
    }
    let said = lab.ok(1, "ip link show ib0", 10)?;
    Ok(line(&said, "ib0:"))
}

fn ethtool(lab: &mut Guests, _: &Options) -> Outcome {
    let said = lab.ok(
        1,
        "ethtool -i ib0 && ethtool ib0 | grep 'Link detected: yes' && ethtool -S ib0",
        10,
    )?;
    let driver = line(&said, "driver:");
    let joins = line(&said, "joins:");
    match driver == "driver: openib" && !joins.ends_with(" 0") {
        true => Ok(format!(
            "{driver}, {}, {joins}",
            line(&said, "firmware-version:")
        )),
        false => Err(said),
    }
}

/// Pings without a loss; says how long that took.
fn answered(lab: &mut Guests, guest: usize, what: &str) -> Outcome {
    let said = lab.ok(guest, &format!("ping -q -c 50 -i 0.02 {what}"), 40)?;
    match said.contains(" 0% packet loss") {
        true => Ok(line(&said, "rtt")),
        false => Err(said),
    }
}

fn ping(lab: &mut Guests, _: &Options) -> Outcome {
    // The first waits for address and path.
    waiting(lab, 1, "until_ 50 ping -c 1 -W 1 10.9.1.2", 60)?;
    waiting(lab, 1, "until_ 50 ping -c 1 -W 1 10.9.0.1", 60)?;
    let plain = answered(lab, 1, "10.9.1.2")?;
    answered(lab, 2, "10.9.1.1")?;
    answered(lab, 1, "10.9.0.1")?;
    answered(lab, 1, "-s 2016 10.9.1.2")?;
    // One after the other: each is 33 datagrams, and nothing keeps a sender from sending more than there is room for.
    answered(lab, 1, "-i 0.2 -c 20 -s 65000 10.9.1.2")?;
    Ok(plain)
}

fn ping6(lab: &mut Guests, _: &Options) -> Outcome {
    waiting(lab, 1, "until_ 50 ping -c 1 -W 1 fd09::100:2", 60)?;
    answered(lab, 2, "fd09::100:1")?;
    answered(lab, 1, "-i 0.2 -c 20 -s 65000 fd09::100:2")?;
    answered(lab, 1, "fd09::100:2")
}

fn multicast(lab: &mut Guests, _: &Options) -> Outcome {
    for guest in [1, 2] {
        lab.ok(
            guest,
            "echo 0 > /proc/sys/net/ipv4/icmp_echo_ignore_broadcasts",
            10,
        )?;
    }
    let said = lab
        .said(1, "ping -c 5 -I ib0 224.0.0.1; ping -c 5 ff02::1%ib0", 40)?
        .text;
    if !said.contains("from 10.9.1.2") || !said.contains("from fe80") {
        return Err(said);
    }
    let said = lab
        .said(2, "ping -c 5 -I ib0 224.0.0.1; ping -c 5 ff02::1%ib0", 40)?
        .text;
    if !said.contains("from 10.9.1.1") || !said.contains("from fe80") {
        return Err(said);
    }
    Ok(line(&said, "from 10.9.1.1"))
}

/// The module leaves to its HCA what the stock driver leaves to its own, and sums the rest as it copies.
fn checksums(lab: &mut Guests, _: &Options) -> Outcome {
    let by_stock = lab.ok(2, "ethtool -k ib0", 10)?;
    let offered = line(&by_stock, "tx-checksum-ipv4:").contains(": on");
    let said = lab.ok(1, "ethtool -k ib0", 10)?;
    let judged = line(&said, "rx-checksumming:");
    let summed = line(&said, "tx-checksumming:");
    if judged.contains(": on") != offered || !summed.contains(": on") {
        return Err(said);
    }
    let right = crate::vm::checksums_verified(lab, offered)?;
    Ok(format!("{judged}, {right}"))
}

fn iperf(lab: &mut Guests, _: &Options) -> Outcome {
    let mut figures = Vec::new();
    for more in ["", "-R", "-u -b 20M -l 1400", "-u -b 20M -l 1400 -R"] {
        let ask = format!("iperf3 -J -c 10.9.1.1 -t 4 {more}");
        let before = stores(lab)?;
        let (_, said) = lab.pair(Listens::Tcp(5201), (1, "iperf3 -s -1"), (2, &ask), 60)?;
        // What came in: the last but one of all sums, or the only one of UDP.
        let number = |line: &str| line.split([':', ',']).nth(1)?.trim().parse::<f64>().ok();
        let rates = said
            .lines()
            .filter(|line| line.contains("\"bits_per_second\""));
        let rate = rates.filter_map(number).next_back().unwrap_or(0.0) / 1e6;
        let stores = stores(lab)?.saturating_sub(before);
        let cpu = line(&said, "\"remote_total\"");
        let cpu = number(&cpu).unwrap_or(0.0);
        if rate < 0.01 {
            return Err(said);
        }
        let kilobytes = (rate * 4e3 / 8.0).max(1.0);
        let each = stores as f64 / kilobytes;
        figures.push(format!("{rate:.1} ({cpu:.0} %, {each:.2})"));
    }
    Ok(format!(
        "Mbit/s, guest 1's processor, its stores to the HCA for each kilobyte: TCP in {}, out {}, UDP in {}, out {}",
        figures[0], figures[1], figures[2], figures[3]
    ))
}

fn p_key(lab: &mut Guests, _: &Options) -> Outcome {
    lab.ok(2, "echo 0x8001 > /sys/class/net/ib0/create_child", 20)?;
    for guest in [1, 2] {
        let script = format!(
            "ip link set ib0.8001 up && ip addr replace 10.8.1.{guest}/16 dev ib0.8001
            until_ 150 sh -c \"ip link show ib0.8001 | grep -q 'state UP'\""
        );
        waiting(lab, guest, &script, 60)?;
    }
    waiting(lab, 1, "until_ 50 ping -c 1 -W 1 10.8.1.2", 60)?;
    answered(lab, 1, "10.8.1.2")
}

/// Both ends send by connections, packets of up to 64 KiB, and then by datagrams again.
fn connected(lab: &mut Guests, options: &Options) -> Outcome {
    let mode = |lab: &mut Guests, mode: &str, mtu: u32| -> Result<(), String> {
        for guest in [1, 2] {
            let script = format!(
                "echo {mode} > /sys/class/net/ib0/mode && grep -q {mode} /sys/class/net/ib0/mode
                until_ 50 grep -q '^{mtu}$' /sys/class/net/ib0/mtu; ip neigh flush dev ib0"
            );
            waiting(lab, guest, &script, 30)?;
        }
        waiting(lab, 1, "until_ 50 ping -c 1 -W 1 10.9.1.2", 60).map(drop)
    };
    mode(lab, "connected", 65520)?;
    let mut last = String::new();
    for (guest, peer) in [(1, 2), (2, 1)] {
        // The first may wait for the connection.
        let first = format!("until_ 50 ping -c 1 -W 1 -s 40000 10.9.1.{peer}");
        waiting(lab, guest, &first, 60)?;
        let counter = "/sys/class/net/ib0/statistics/tx_packets";
        let sent = |lab: &mut Guests| -> Result<u64, String> {
            let said = lab.ok(guest, &format!("cat {counter}"), 10)?;
            said.trim().parse().map_err(|_| said)
        };
        let before = sent(lab)?;
        for size in [2000, 9000, 40000, 65492] {
            last = answered(lab, guest, &format!("-s {size} 10.9.1.{peer}"))?;
        }
        let packets = sent(lab)?.saturating_sub(before);
        if packets > 300 {
            return Err(format!("200 echoes were {packets} packets: in fragments"));
        }
        answered(lab, guest, &format!("-s 60000 fd09::100:{peer}"))?;
    }
    // The host with the subnet manager takes datagrams alone, and whoever wants to send more is told.
    waiting(lab, 1, "until_ 50 ping -c 1 -W 1 10.9.0.1", 60)?;
    let said = lab.said(1, "ping -c 3 -M do -s 9000 10.9.0.1", 20)?.text;
    if !said.contains("mtu = 2044") && !said.contains("mtu=2044") {
        return Err(format!("9000 bytes in one piece: {said}"));
    }
    let counters = lab.ok(1, "ethtool -S ib0", 10)?;
    let rates = iperf(lab, options)?;
    // One end in each mode: it still takes connections.
    lab.ok(2, "echo datagram > /sys/class/net/ib0/mode", 10)?;
    waiting(lab, 1, "until_ 50 ping -c 1 -W 1 -s 9000 10.9.1.2", 60)?;
    answered(lab, 1, "-s 9000 10.9.1.2")?;
    mode(lab, "datagram", 2044)?;
    answered(lab, 1, "10.9.1.2")?;
    Ok(format!(
        "{rates}; 65492 bytes: {last}; {}, {}",
        line(&counters, "connected_sent:"),
        line(&counters, "connected_received:")
    ))
}

fn flap(lab: &mut Guests, _: &Options) -> Outcome {
    lab.command("down 1 host-1")?;
    waiting(
        lab,
        1,
        "until_ 50 sh -c \"ip link show ib0 | grep -q NO-CARRIER\"",
        30,
    )?;
    lab.command("up 1 host-1")?;
    waiting(lab, 1, "until_ 150 ping -c 1 -W 1 10.9.1.2", 90)?;
    answered(lab, 1, "10.9.1.2")
}

/// A TCP stream goes over it meanwhile, and on afterwards; an echo every 50 ms says for how long nothing came.
fn under_traffic(
    lab: &mut Guests,
    seconds: u32,
    trouble: impl FnOnce(&mut Guests) -> Result<(), String>,
) -> Outcome {
    let (serve, ask) = (
        "iperf3 -s -1",
        format!("iperf3 -c 10.9.1.1 -t {seconds} & ping -q -i 0.05 -w {seconds} 10.9.1.1; wait $!"),
    );
    let limit = u64::from(seconds) + 60;
    let server = lab.start_script(1, serve, limit)?;
    lab.ok(1, &Listens::Tcp(5201).script(), 20)?;
    let client = lab.start_script(2, &ask, limit)?;
    let troubled = trouble(lab);
    let asked = lab.end_script(2, &ask, &client)?;
    if asked.status != 0 {
        lab.guest(1)?.end(&server)?;
    }
    lab.end_script(1, serve, &server)?;
    troubled?;
    let said = asked.good(2, &ask)?;
    waiting(lab, 1, "until_ 100 ping -c 1 -W 1 10.9.1.2", 90)?;
    answered(lab, 1, "10.9.1.2")?;
    Ok(format!(
        "{}; {}",
        line(&said, "receiver"),
        line(&said, "packet loss")
    ))
}

fn flap_under_traffic(lab: &mut Guests, _: &Options) -> Outcome {
    let no_carrier = "until_ 50 sh -c \"ip link show ib0 | grep -q NO-CARRIER\"";
    under_traffic(lab, 15, |lab| {
        lab.ok(1, "sleep 2", 10)?;
        lab.command("down 1 host-1")?;
        let seen = waiting(lab, 1, no_carrier, 30);
        lab.command("up 1 host-1")?;
        seen.map(drop)
    })
}

/// OpenSM's partitions: the default one, and one more, both with IPoIB.
const PARTITIONS: &str = "Default=0x7fff,ipoib:ALL=full;\nOne=0x0001,ipoib:ALL=full;\n";

/// Our subnet manager says that this is what it is, before long.
fn ours_is(lab: &mut Guests, role: &str) -> Result<(), String> {
    let end = Instant::now() + lab.limit(30);
    let wanted = format!("manager {role}");
    loop {
        let shown = lab.ledgers()?;
        if shown.iter().any(|line| line.contains(&wanted)) {
            return Ok(());
        }
        if Instant::now() > end {
            return Err(format!("never \"{wanted}\":\n{}", shown.join("\n")));
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// In guest 2, OpenSM (with the key that ours has: it deals with no other manager) takes the subnet over from our subnet
/// manager; the module's interface comes up anew under it; then it is killed, and ours takes over. TCP streams live
/// through both.
fn failover(lab: &mut Guests, options: &Options) -> Outcome {
    let port = "/sys/class/infiniband/mthca0/ports/1";
    let sm = |mine: &str| {
        format!("until_ 300 sh -c '[ $(($(cat {port}/sm_lid))) {mine} $(($(cat {port}/lid))) ]'")
    };
    let start = format!(
        "printf '{}' > /run/partitions.conf
        setsid opensm -d2 -p 15 -k 0 -f /run/osm.log -P /run/partitions.conf > /dev/null 2>&1 < /dev/null &",
        PARTITIONS.replace('\n', "\\n")
    );
    let taken = under_traffic(lab, 20, |lab| {
        lab.ok(2, &start, 10)?;
        waiting(lab, 2, &sm("="), 90)?;
        waiting(lab, 2, "until_ 200 grep -q 'SUBNET UP' /run/osm.log", 60)?;
        ours_is(lab, "Standby")
    })?;
    lab.ok(1, "ip link set ib0 down && ip link set ib0 up", 30)?;
    up(lab, options)?;
    ping(lab, options)?;
    ping6(lab, options)?;
    multicast(lab, options)?;
    flap(lab, options)?;
    let back = under_traffic(lab, 90, |lab| {
        lab.ok(2, "pkill -9 opensm", 10)?;
        waiting(lab, 2, &sm("!="), 150)?;
        ours_is(lab, "Master")
    })?;
    lab.ok(1, "ip link set ib0 down && ip link set ib0 up", 30)?;
    up(lab, options)?;
    waiting(lab, 1, "until_ 100 ping -c 1 -W 1 10.9.1.2", 90)?;
    multicast(lab, options)?;
    Ok(format!("to OpenSM: {taken}; back: {back}"))
}

/// The HCA may not write to memory for a moment, which is a catastrophic error: it is reset, and all goes on.
fn restart(lab: &mut Guests, _: &Options) -> Outcome {
    let script = "setpci -s $(basename $(ls -d /sys/bus/pci/drivers/openib/0000:*)) COMMAND=2
        ping -q -c 3 -W 1 10.9.1.2 > /dev/null
        until_ 150 sh -c \"dmesg | grep -q 'openib.*works again'\" || { dmesg | tail -n 40; exit 1; }
        until_ 50 ping -c 1 -W 1 10.9.1.2 || { dmesg | tail -n 40; ip -s link show ib0; exit 1; }
        dmesg | grep -c 'openib.*it is restarted'; dmesg -l emerg,alert,crit,err,warn | wc -l > /run/seen";
    let said = waiting(lab, 1, script, 90)?;
    answered(lab, 1, "10.9.1.2")?;
    Ok(format!("{} time", said.trim()))
}

fn unbind(lab: &mut Guests, options: &Options) -> Outcome {
    let script = "cd /sys/bus/pci/drivers/openib && slot=$(ls -d 0000:*) && echo $slot > unbind && ! ip link show ib0 2> /dev/null && echo $slot > bind && ip link show ib0";
    lab.ok(1, script, 60)?;
    up(lab, options)?;
    waiting(lab, 1, "until_ 100 ping -c 1 -W 1 10.9.1.2", 90)?;
    answered(lab, 1, "10.9.1.2")
}

/// Kilobytes of a guest's memory: free, slabs, vmalloc.
type Memory = [u64; 3];

fn memory(lab: &mut Guests) -> Result<Memory, String> {
    let script = "sync; echo 3 > /proc/sys/vm/drop_caches; awk '/^Slab|^VmallocUsed|^MemFree/ { print $2 }' /proc/meminfo";
    let said = lab.ok(1, script, 30)?;
    let numbers: Result<Vec<u64>, _> = said.split_whitespace().map(str::parse).collect();
    let numbers = numbers.ok().and_then(|numbers| numbers.try_into().ok());
    numbers.ok_or(said)
}

/// Loads before memory is looked at: each kind of object has its slabs by then.
const WARM: usize = 3;

/// What grew from one load to the next: the least of the last quarter is above the least of the first by more than a page
/// a load, and more than what a guest that is left alone comes and goes by.
fn growth(seen: &[Memory]) -> Option<String> {
    let seen = seen.get(WARM..)?;
    let quarter = (seen.len() / 4).max(1);
    let (first, last) = (seen.get(..quarter)?, seen.get(seen.len() - quarter..)?);
    let least = |part: &[Memory], of: fn(&Memory) -> u64| part.iter().map(of).min().unwrap_or(0);
    let most = |part: &[Memory], of: fn(&Memory) -> u64| part.iter().map(of).max().unwrap_or(0);
    let room = (seen.len() as u64 * 4).max(512);
    let [slab, vmalloc]: [fn(&Memory) -> u64; 2] = [|at| at[1], |at| at[2]];
    for (name, of) in [("slabs", slab), ("vmalloc", vmalloc)] {
        let (before, after) = (least(first, of), least(last, of));
        if after > before + room {
            return Some(format!("{name} grew from {before} to {after} kB"));
        }
    }
    let (before, after) = (most(first, |at| at[0]), most(last, |at| at[0]));
    (after + 4 * room < before).then(|| format!("free memory went from {before} to {after} kB"))
}

fn reload(lab: &mut Guests, options: &Options) -> Outcome {
    let mut seen = Vec::new();
    for _ in 0..options.loads {
        lab.ok(1, "rmmod openib && ! ip link show ib0 2> /dev/null", 90)?;
        seen.push(memory(lab)?);
        released(lab)?;
        lab.ok(1, "insmod /run/openib.ko p_keys=0x8001", 90)?;
        up(lab, options)?;
        waiting(lab, 1, "until_ 100 ping -c 1 -W 1 10.9.1.2", 90)?;
        lab.ok(1, "ping -q -f -c 200 10.9.1.2", 40)?;
    }
    if let Some(growth) = growth(&seen) {
        return Err(format!("{growth}: {seen:?}"));
    }
    let at = |index: usize| seen.get(index).copied().unwrap_or_default();
    Ok(format!(
        "{} times; MemFree, Slab, VmallocUsed in kB without it: {:?}, at last {:?}",
        options.loads,
        at(WARM.min(seen.len().saturating_sub(1))),
        at(seen.len().saturating_sub(1))
    ))
}

/// The model of guest 1's HCA holds nothing of a driver's, and held nothing when it was closed.
fn released(lab: &mut Guests) -> Result<(), String> {
    let shown = lab.ledgers()?;
    let own = shown
        .iter()
        .skip_while(|line| !line.contains("guest-1") && !line.contains("guest1"));
    let mut holds = own.filter(|line| line.contains("hold") || line.contains("held"));
    let nothing = "0 EQs, 0 CQs, 0 SRQs, 0 QPs, 0 keys";
    for wanted in [
        format!("   holds: {nothing}, 0 pages lent"),
        format!("   held when it last stopped: {nothing}"),
    ] {
        match holds.next() {
            Some(line) if *line == wanted => {}
            other => return Err(format!("{wanted:?} is not what it says: {other:?}")),
        }
    }
    Ok(())
}

/// Without the module, the model of its HCA holds nothing, and did all that the module used.
fn nothing_left(lab: &mut Guests, options: &Options) -> Outcome {
    lab.ok(1, "rmmod openib && ! ip link show ib0 2> /dev/null", 90)?;
    released(lab)?;
    let shown = lab.ledgers()?;
    lab.ok(1, "insmod /run/openib.ko p_keys=0x8001", 90)?;
    up(lab, options)?;
    let ledger = shown.iter().skip_while(|line| !line.contains("ledger"));
    let ledger: Vec<&str> = ledger
        .take_while(|line| !line.contains("holds"))
        .map(|line| line.trim())
        .collect();
    Ok(ledger.join(" "))
}

/// Stores that guest 1 has made to its HCA so far.
fn stores(lab: &mut Guests) -> Result<u64, String> {
    let shown = lab.ledgers()?;
    let number = |line: &String| {
        let (before, _) = line.split_once(" stores")?;
        before.rsplit(' ').next()?.parse().ok()
    };
    let found = shown.iter().find_map(number);
    found.ok_or_else(|| shown.join("\n"))
}

/// The debugging kernel still looks for faults of locks, knows of no memory that nobody reaches, and of no DMA that went
/// wrong. (What it finds at once, it says, which every case looks for.)
fn debugging(lab: &mut Guests, _: &Options) -> Outcome {
    let script = "grep -q 'debug_locks: *1' /proc/lockdep_stats || { echo 'lockdep is off'; exit 1; }
        mount | grep -q debugfs || mount -t debugfs debugfs /sys/kernel/debug
        cd /sys/kernel/debug && [ $(cat dma-api/error_count) = 0 ] && [ $(cat dma-api/disabled) = N ] || { grep . dma-api/*; exit 1; }
        echo scan > kmemleak && sleep 6 && echo scan > kmemleak && cat kmemleak > /run/leaks
        grep -A20 -e openib /run/leaks && exit 1
        echo $(grep -c unreferenced /run/leaks) objects of others, $(grep 'lock-classes' /proc/lockdep_stats)";
    let said = waiting(lab, 1, script, 120)?;
    Ok(said.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// The same traffic with Linux's own driver in guest 1, to compare.
fn compare(lab: &mut Guests, options: &Options) -> Outcome {
    lab.ok(1, "rmmod openib && modprobe -a ib_ipoib ib_mthca", 60)?;
    up(lab, options)?;
    waiting(lab, 1, "until_ 100 ping -c 1 -W 1 10.9.1.2", 90)?;
    let pings = answered(lab, 1, "10.9.1.2")?;
    Ok(format!("{}; {pings}", iperf(lab, options)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_every_load_takes_is_seen_and_noise_is_not() {
        let noise = |load: u64| [600_000 + load * 37 % 900, 40_000 + load * 53 % 400, 9_000];
        let quiet: Vec<Memory> = (0..100).map(noise).collect();
        assert_eq!(growth(&quiet), None);
        let leak = |load| {
            let [free, slab, vmalloc] = noise(load);
            [free - 8 * load, slab + 8 * load, vmalloc]
        };
        let leaks: Vec<Memory> = (0..100).map(leak).collect();
        assert!(growth(&leaks).is_some_and(|what| what.starts_with("slabs")));
        assert_eq!(growth(&quiet[..2]), None);
    }
}
