//! Checksums that go from guest to guest, by the reckoning of the kernel that receives them.

use crate::vm::lab::{Lab, Listens};

/// Segments of TCP and datagrams of UDP that came, and those whose checksum was wrong.
const COUNTERS: &str = "awk '
    /^(Tcp|Udp):/ && !names[$1] { names[$1] = $0; next }
    /^(Tcp|Udp):/ { split(names[$1], name); for (i = 2; i <= NF; i++) if (name[i] ~ /^(InCsumErrors|InSegs|InDatagrams)$/) print $1 name[i], $i }
    ' /proc/net/snmp";

/// A line of [`COUNTERS`].
fn counter(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines();
    lines.find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

/// TCP and UDP in either direction between guests 1 and 2. Who receives lets its kernel verify every checksum, and none is
/// wrong: so whatever its HCA says of them (`offered`), which is believed afterwards again.
pub fn checksums_verified(lab: &mut Lab, offered: bool) -> Result<String, String> {
    let mut counts = Vec::new();
    for (verifies, sends) in [(1, 2), (2, 1)] {
        if offered {
            lab.ok(verifies, "ethtool -K ib0 rx off", 10)?;
        }
        let before = lab.ok(verifies, COUNTERS, 10)?;
        for more in ["-n 2M", "-u -b 20M -l 1400 -n 1M"] {
            let (serve, ask) = (
                "iperf3 -s -1",
                format!("iperf3 -c 10.9.1.{verifies} {more}"),
            );
            lab.pair(Listens::Tcp(5201), (verifies, serve), (sends, &ask), 60)?;
        }
        let after = lab.ok(verifies, COUNTERS, 10)?;
        if offered {
            lab.ok(verifies, "ethtool -K ib0 rx on", 10)?;
        }
        let moved = |name| {
            let (after, before) = counter(&after, name).zip(counter(&before, name))?;
            Some(after.saturating_sub(before))
        };
        let came = ["Tcp:InSegs", "Udp:InDatagrams"].map(moved);
        let wrong = ["Tcp:InCsumErrors", "Udp:InCsumErrors"].map(moved);
        // A kernel makes one segment of as many as come together, of 64 KiB at most.
        let [Some(tcp @ 30..), Some(udp @ 100..)] = came else {
            return Err(format!("guest {verifies}: {before} and then {after}"));
        };
        if wrong != [Some(0); 2] {
            return Err(format!("guest {verifies}: {before} and then {after}"));
        }
        counts.push(format!("{tcp} + {udp}"));
    }
    Ok(format!("{} right", counts.join(", ")))
}
