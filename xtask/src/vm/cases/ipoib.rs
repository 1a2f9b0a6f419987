//! IP over InfiniBand between guests: both modes, a partition of its own, multicast, and for a long time.

use super::sums::checksums_verified;
use super::{Case, Outcome, Terms, holds, line_with, wait_active, with_words};
use crate::vm::lab::{Lab, Listens};

/// All but the soak. They leave datagram mode behind.
pub const CASES: &[Case] = &[
    Case::new("IPoIB ping", ping),
    Case::new("IPoIB multicast", multicast),
    Case::new("IPoIB P_Key child", child),
    Case::new("IPoIB checksums", checksums),
    Case::new("iperf3 datagram", |lab, terms| {
        iperf(lab, terms, "datagram")
    }),
    Case::new("iperf3 connected", connected).may_say(MODE),
];

/// What Linux says of every interface that is switched to connected mode.
const MODE: &[&str] = &["will cause multicast packet drops"];

/// Datagram mode for a while.
pub const SOAK_DATAGRAM: &[Case] = &[Case::new("soak datagram", |lab, terms| {
    soak(lab, terms, "datagram")
})];

/// Connected mode for a while.
pub const SOAK_CONNECTED: &[Case] =
    &[Case::new("soak connected", |lab, terms| soak(lab, terms, "connected")).may_say(MODE)];

fn ping(lab: &mut Lab, terms: &Terms) -> Outcome {
    let count = if terms.quick { 20 } else { 200 };
    let script = "ip -6 -o addr show dev ib0 scope link | sed 's/.*inet6 \\([^/]*\\).*/\\1/'";
    let local = lab.ok(2, script, 10)?;
    let local = local.trim();
    // The first may wait for the path.
    lab.ok(
        1,
        "ping -c 3 -W 3 10.9.1.2 && ping -c 1 -W 3 fd09::100:2",
        30,
    )?;
    let many = format!("ping -q -i 0.01 -c {count}");
    let script = format!(
        "{many} 10.9.1.2 && {many} -s 1900 10.9.1.2 && {many} -s 9000 10.9.1.2 && {many} fd09::100:2 && {many} {local}%ib0"
    );
    let said = lab.ok(1, &script, 60 + count / 4)?;
    if said.matches(" 0% packet loss").count() != 5 {
        return Err(said);
    }
    Ok(line_with(&said, "rtt"))
}

fn multicast(lab: &mut Lab, _: &Terms) -> Outcome {
    let script = "ping -c 3 -I ib0 224.0.0.1; ping -c 3 ff02::1%ib0";
    let said = lab.said(1, script, 30)?.text;
    holds(&said, &["bytes from 10.9.1.2"])?;
    // A group of their own: guest 2 listens, and takes what guest 1 sends there.
    let script =
        "ip maddr add 01:00:5e:01:02:03 dev ib0 2> /dev/null; ip maddr show dev ib0 > /dev/null";
    lab.ok(2, script, 10)?;
    Ok(line_with(&said, "10.9.1.2"))
}

/// An interface in the partition 0x8001, which the subnet manager made.
fn child(lab: &mut Lab, _: &Terms) -> Outcome {
    for guest in 1..=lab.guests.len() {
        let script = format!(
            "grep -q 0x8001 $port/pkeys/* || {{ echo the partition is not there; exit 1; }}
            ip link show ib0.8001 > /dev/null 2>&1 || echo 0x8001 > /sys/class/net/ib0/create_child || exit 1
            ip link set ib0.8001 up && ip addr replace 10.8.1.{guest}/16 dev ib0.8001
            until_ 100 sh -c \"ip link show ib0.8001 | grep -q 'state UP'\""
        );
        with_words(lab, guest, &script, 40)?;
    }
    let script = "ping -c 3 -W 3 10.8.1.2 && ping -q -i 0.02 -c 20 -I ib0.8001 10.8.1.2";
    let said = lab.ok(1, script, 30)?;
    for guest in 1..=lab.guests.len() {
        lab.ok(guest, "echo 0x8001 > /sys/class/net/ib0/delete_child", 20)?;
    }
    Ok(line_with(&said, "rtt"))
}

fn checksums(lab: &mut Lab, terms: &Terms) -> Outcome {
    let offered = matches!(terms.model, "arbel" | "sinai");
    let (sending, receiving) = match offered {
        true => ("tx-checksum-ipv4: on", "rx-checksumming: on"),
        false => ("tx-checksum-ipv4: off", "rx-checksumming: off"),
    };
    for guest in [1, 2] {
        holds(&lab.ok(guest, "ethtool -k ib0", 10)?, &[sending, receiving])?;
    }
    let right = checksums_verified(lab, offered)?;
    Ok(format!("{sending}, {right}"))
}

fn mode(lab: &mut Lab, mode: &str) -> Result<(), String> {
    for guest in 1..=lab.guests.len() {
        let mtu = if mode == "connected" { 65_520 } else { 2044 };
        let script = format!(
            "[ $(cat /sys/class/net/ib0/mode) = {mode} ] && exit 0
            ip link set ib0 down; echo {mode} > /sys/class/net/ib0/mode && ip link set ib0 mtu {mtu} && ip link set ib0 up"
        );
        lab.ok(guest, &script, 20)?;
    }
    wait_active(lab)?;
    with_words(lab, 2, "until_ 40 ping -c 1 -W 1 10.9.1.1", 30)?;
    Ok(())
}

fn iperf(lab: &mut Lab, terms: &Terms, how: &str) -> Outcome {
    mode(lab, how)?;
    let seconds = if terms.quick { 2 } else { 10 };
    let mut figures = Vec::new();
    for more in ["", "-R", "-u -b 20M -l 1400"] {
        let ask = format!("iperf3 -c 10.9.1.1 -t {seconds} {more}");
        let serve = "iperf3 -s -1";
        let (_, said) = lab.pair(Listens::Tcp(5201), (1, serve), (2, &ask), 60 + seconds)?;
        let line = line_with(&said, "receiver");
        let words: Vec<&str> = line.split(' ').collect();
        let rate = words.windows(2).find(|pair| pair[1].contains("bits/sec"));
        let rate = rate.map_or(String::new(), |pair| pair.join(" "));
        if rate.starts_with("0.00") || rate.is_empty() {
            return Err(said);
        }
        figures.push(rate);
    }
    Ok(figures.join(", "))
}

fn connected(lab: &mut Lab, terms: &Terms) -> Outcome {
    let figures = iperf(lab, terms, "connected");
    let large = lab.ok(1, "ping -q -i 0.02 -s 40000 -c 20 10.9.1.2", 30);
    mode(lab, "datagram")?;
    let (figures, large) = (figures?, large?);
    holds(&large, &[" 0% packet loss"])?;
    Ok(figures)
}

/// Errors that interfaces and ports have counted.
const ERRORS: &str = "for guest in x; do
    cat /sys/class/net/ib0/statistics/{rx_errors,tx_errors,rx_dropped,tx_dropped,rx_crc_errors}
    cd $port/counters; for c in symbol_error link_error_recovery link_downed port_rcv_errors port_rcv_remote_physical_errors port_xmit_constraint_errors port_rcv_constraint_errors local_link_integrity_errors excessive_buffer_overrun_errors VL15_dropped; do echo $c $(cat $c); done
    done";

/// Traffic of all kinds, while no counter of errors moves.
fn soak(lab: &mut Lab, terms: &Terms, how: &str) -> Outcome {
    mode(lab, how)?;
    let count = |lab: &mut Lab| -> Result<Vec<String>, String> {
        let guests = 1..=lab.guests.len();
        guests
            .map(|guest| with_words(lab, guest, ERRORS, 20))
            .collect()
    };
    let before = count(lab)?;
    let seconds = terms.soak;
    let serve = "iperf3 -s -1";
    // A long one leaves the machine room for something else. What is on its way of both streams fits into the 256 receive
    // requests of a guest that does not run just now, so that nothing has to be lost.
    let rate = if seconds < 300 {
        "-w 100K"
    } else {
        "-w 100K -b 20M"
    };
    let pings = (seconds * 5).saturating_sub(10).max(10);
    let ask = format!(
        "ping -q -i 0.2 -c {pings} 10.9.1.1 > /tmp/soak.4 & ping -q -i 0.2 -c {pings} -s 1500 fd09::100:1 > /tmp/soak.6 &
        iperf3 -c 10.9.1.1 -t {seconds} -i 60 {rate} --bidir; status=$?; wait; cat /tmp/soak.4 /tmp/soak.6; exit $status"
    );
    let (_, said) = lab.pair(Listens::Tcp(5201), (1, serve), (2, &ask), 120 + seconds * 2)?;
    let lost = said.matches(" 0% packet loss").count();
    let after = count(lab)?;
    // For whoever reads the log: where datagrams went that did not come.
    lab.said(2, "ip -s link show ib0; nstat -az 2> /dev/null | grep -e Retrans -e Timeouts; ibqueryerrors 2>&1", 30)?;
    mode(lab, "datagram")?;
    if lost != 2 {
        return Err(said);
    }
    if before != after {
        return Err(format!(
            "counters of errors moved from\n{before:?}\nto\n{after:?}"
        ));
    }
    Ok(format!("{seconds} s, {}", line_with(&said, "receiver")))
}
