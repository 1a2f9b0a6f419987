//! HCAs of two ports, both cabled, each to another switch.

use super::{Case, Outcome, Terms, holds, line_with, with_words};
use crate::vm::lab::{Lab, Listens};

/// All of them.
pub const CASES: &[Case] = &[
    Case::new("both ports active", both_active),
    Case::new("IPoIB on both ports", ping),
    Case::new("pingpong on port 2", pingpong),
    Case::new("one port down", one_down),
];

/// Port 2 of each guest is Active, its interface is up, and has an address.
fn wait_second(lab: &mut Lab) -> Result<(), String> {
    for guest in 1..=lab.guests.len() {
        let script = format!(
            "second=/sys/class/infiniband/mthca0/ports/2
            until_ 150 grep -q ACTIVE $second/state || {{ ibstat; exit 1; }}
            ip link set ib1 up && ip addr replace 10.10.1.{guest}/16 dev ib1
            until_ 100 sh -c \"ip link show ib1 | grep -q 'state UP'\""
        );
        with_words(lab, guest, &script, 50)?;
    }
    Ok(())
}

fn both_active(lab: &mut Lab, _: &Terms) -> Outcome {
    wait_second(lab)?;
    for guest in 1..=lab.guests.len() {
        let said = lab.ok(guest, "ibstat && ibv_devinfo", 20)?;
        if said.matches("State: Active").count() != 2 || said.matches("PORT_ACTIVE").count() != 2 {
            return Err(said);
        }
        let script = "cat /sys/class/infiniband/mthca0/ports/*/lid";
        let said = lab.ok(guest, script, 10)?;
        let mut lids: Vec<&str> = said.split_whitespace().collect();
        lids.sort_unstable();
        lids.dedup();
        if lids.len() != 2 || lids.contains(&"0x0") {
            return Err(format!("LIDs of guest {guest}: {said}"));
        }
    }
    let script = "ibnetdiscover | awk '/^\\[/ { ends++ } END { print ends }'";
    // Eight cables between a host and a switch, three between switches; each is told from both ends.
    let counted = lab.ok(2, script, 30)?;
    if counted.trim() != "22" {
        return Err(format!("ends of cables: {counted}"));
    }
    Ok(line_with(&lab.ok(2, "ibstat", 10)?, "CA type"))
}

fn ping(lab: &mut Lab, terms: &Terms) -> Outcome {
    let count = if terms.quick { 10 } else { 100 };
    let many = format!("ping -q -i 0.02 -c {count}");
    lab.ok(2, "ping -c 1 -W 5 10.9.1.1; ping -c 1 -W 5 10.10.1.1", 20)?;
    let script = format!("{many} -I ib0 10.9.1.1 && {many} -I ib1 10.10.1.1");
    let said = lab.ok(2, &script, 60)?;
    if said.matches(" 0% packet loss").count() != 2 {
        return Err(said);
    }
    Ok(line_with(&said, "rtt"))
}

/// Between the second ports, and from a first to a second.
fn pingpong(lab: &mut Lab, _: &Terms) -> Outcome {
    let mut figure = String::new();
    for (transport, size) in [("rc", 65_536), ("ud", 1024)] {
        for (server, client) in [(2, 2), (2, 1)] {
            let words = format!("ibv_{transport}_pingpong -s {size} -n 50 -c -e");
            let serve = format!("{words} -i {server}");
            let ask = format!("{words} -i {client} 10.9.1.1");
            let (_, said) = lab.pair(Listens::Tcp(18515), (1, &serve), (2, &ask), 60)?;
            holds(&said, &["usec/iter"])?;
            if said.contains("invalid data") {
                return Err(said);
            }
            figure = line_with(&said, "usec/iter");
        }
    }
    Ok(figure)
}

/// The cable of one port is out: the other goes on; each port tells of its own.
fn one_down(lab: &mut Lab, _: &Terms) -> Outcome {
    let watch = "stdbuf -oL ibv_asyncwatch > /tmp/events 2>&1; true";
    let running = lab.start_script(2, watch, 90)?;
    with_words(lab, 2, "until_ 50 pgrep ibv_asyncwatch; sleep 0.5", 20)?;
    // Port 2 of guest 2.
    lab.command("down 2 guest-2")?;
    let script = "until_ 100 grep -q DOWN /sys/class/infiniband/mthca0/ports/2/state && grep ACTIVE $port/state && ping -q -i 0.05 -c 20 10.9.1.1";
    let said = with_words(lab, 2, script, 60);
    lab.command("up 2 guest-2")?;
    let said = said?;
    wait_second(lab)?;
    lab.guest(2)?.end(&running)?;
    lab.end_script(2, watch, &running)?;
    holds(&said, &[" 0% packet loss"])?;
    let events = lab.ok(2, "cat /tmp/events", 10)?;
    holds(&events, &["IBV_EVENT_PORT_ERR", "IBV_EVENT_PORT_ACTIVE"])?;
    let script = "until_ 40 ping -c 1 -W 1 -I ib1 10.10.1.1";
    with_words(lab, 2, script, 60)?;
    Ok(String::new())
}
