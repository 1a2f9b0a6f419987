//! The fabric breaks while it is used: cables, packets, a switch, the subnet manager.

use super::driver::start_opensm;
use super::{Case, Manager, Outcome, Terms, holds, line_with, wait_active, with_words};
use crate::vm::lab::{Lab, Listens};

/// All of them.
pub const CASES: &[Case] = &[
    Case::new("link flap", link_flap),
    Case::new("loss of 1 %", |lab, terms| {
        packets(lab, terms, "drop=10000")
    }),
    Case::new("corruption of 1 %", |lab, terms| {
        packets(lab, terms, "corrupt=10000")
    }),
    Case::new("a way round", way_round),
    Case::new("switch restart", switch_restart),
    Case::new("SM failover", failover),
];

/// Both directions of the cable of guest 2.
fn set_faults(lab: &mut Lab, faults: &str) -> Result<(), String> {
    lab.command(&format!("faults 1 guest-2 {faults}"))?;
    lab.command(&format!("faults 1 switch-2 {faults}"))?;
    Ok(())
}

/// The cable is out for a moment, while a TCP stream goes over it, which goes on afterwards.
fn link_flap(lab: &mut Lab, _: &Terms) -> Outcome {
    let seconds = 12;
    let (serve, ask) = ("iperf3 -s -1", format!("iperf3 -c 10.9.1.1 -t {seconds}"));
    let server = lab.start_script(1, serve, 60)?;
    lab.ok(1, &Listens::Tcp(5201).script(), 20)?;
    let client = lab.start_script(2, &ask, 60)?;
    let flapped = flap(lab);
    let asked = lab.end_script(2, &ask, &client)?;
    if asked.status != 0 {
        lab.guest(1)?.end(&server)?;
    }
    lab.end_script(1, serve, &server)?;
    flapped?;
    wait_active(lab)?;
    let figure = line_with(&asked.good(2, &ask)?, "receiver");
    let script = "until_ 40 ping -c 1 -W 1 10.9.1.1 && ping -q -i 0.05 -c 20 10.9.1.1";
    let said = with_words(lab, 2, script, 60)?;
    holds(&said, &[" 0% packet loss"])?;
    Ok(figure)
}

/// Out, until guest 2 sees it, and in again.
fn flap(lab: &mut Lab) -> Outcome {
    with_words(lab, 2, "sleep 2", 10)?;
    lab.command("down 1 guest-2")?;
    let down = with_words(lab, 2, "until_ 100 grep -q DOWN $port/state", 20);
    lab.command("up 1 guest-2")?;
    down
}

/// RC delivers everything although packets vanish; of datagrams only what vanished is lost.
fn packets(lab: &mut Lab, terms: &Terms, faults: &str) -> Outcome {
    set_faults(lab, faults)?;
    let result = under_loss(lab, terms);
    set_faults(lab, "")?;
    let note = result?;
    lab.ok(2, "ping -q -i 0.05 -c 10 10.9.1.1", 20)?;
    Ok(note)
}

fn under_loss(lab: &mut Lab, terms: &Terms) -> Outcome {
    let count = if terms.quick { 100 } else { 500 };
    let words = format!("ibv_rc_pingpong -s 4096 -n {count} -c -e");
    let ask = format!("{words} 10.9.1.1");
    lab.pair(Listens::Tcp(18515), (1, &words), (2, &ask), 120)?;
    let serve = "ib_write_bw -F -n 500 -s 65536 2>&1";
    let ask = "ib_write_bw -F -n 500 -s 65536 10.9.1.1 2>&1";
    lab.pair(Listens::Tcp(18515), (1, serve), (2, ask), 120)?;
    let said = lab
        .said(2, "ping -q -i 0.02 -W 2 -c 500 10.9.1.1", 60)?
        .text;
    let lost = said
        .split(", ")
        .find_map(|part| part.strip_suffix("% packet loss"));
    let lost: f64 = lost.and_then(|lost| lost.parse().ok()).ok_or(said)?;
    // Two cables' directions, one packet in a hundred each.
    if lost > 6.0 {
        return Err(format!("{lost} % of all echoes are lost"));
    }
    let shown = lab.command("show")?.join("\n");
    let faults = line_with(&shown, "faults 1 guest-2");
    Ok(format!("{lost} % of echoes lost; {faults}"))
}

/// The cable between the guests' switches is out; the manager leads them over the third.
fn way_round(lab: &mut Lab, _: &Terms) -> Outcome {
    // Asked for while there is a way to whom to ask.
    let lids = with_words(lab, 2, "echo $(($(cat $port/lid))) $(lid_of guest-1)", 20)?;
    let lids = lids.trim();
    if lids.split(' ').count() != 2 {
        return Err(format!("two LIDs are not \"{lids}\""));
    }
    lab.command("down 5 switch-2")?;
    let script = format!(
        "until_ 150 sh -c 'ibtracert {lids} | grep -q switch-3' && until_ 30 ping -c 1 -W 1 10.9.1.1 && ping -q -i 0.05 -c 20 10.9.1.1"
    );
    let round = with_words(lab, 2, &script, 90);
    lab.command("up 5 switch-2")?;
    holds(&round?, &[" 0% packet loss"])?;
    let script = format!(
        "until_ 150 sh -c 'ibtracert {lids} | grep switch && ! ibtracert {lids} | grep -q switch-3' && until_ 30 ping -c 1 -W 1 10.9.1.1"
    );
    with_words(lab, 2, &script, 90)?;
    Ok(String::new())
}

/// The guests' switch loses power and comes back with empty tables.
fn switch_restart(lab: &mut Lab, _: &Terms) -> Outcome {
    lab.command("off switch-2")?;
    let down = with_words(lab, 2, "until_ 100 grep -q DOWN $port/state", 20);
    lab.command("on switch-2")?;
    down?;
    wait_active(lab)?;
    let script = "until_ 100 ping -c 1 -W 1 10.9.1.1 && ping -q -i 0.05 -c 20 10.9.1.1";
    let said = with_words(lab, 2, script, 120)?;
    holds(&said, &[" 0% packet loss"])?;
    Ok(String::new())
}

/// The master vanishes; another takes over, and what was there goes on.
fn failover(lab: &mut Lab, terms: &Terms) -> Outcome {
    if terms.manager == Manager::OpenSm {
        // A second OpenSM, in the other guest; then the first is killed.
        let start = "setsid opensm -d2 -p 1 -f /tmp/osm.log -P /tmp/partitions.conf > /dev/null 2>&1 < /dev/null &";
        let copy = lab
            .ok(1, "cat /tmp/partitions.conf", 10)?
            .replace('\n', "\\n");
        lab.ok(
            2,
            &format!("printf '{copy}' > /tmp/partitions.conf; {start}"),
            10,
        )?;
        with_words(lab, 2, "until_ 100 grep -q STANDBY /tmp/osm.log", 40)?;
        lab.ok(1, "pkill -9 opensm", 10)?;
        // It asks the master five times, every ten seconds, before it believes that it is gone.
        let script =
            "until_ 600 grep -q 'SUBNET UP' /tmp/osm.log || { tail -30 /tmp/osm.log; exit 1; }";
        with_words(lab, 2, script, 150)?;
    } else {
        let heir = with_words(lab, 2, "lid_of ours-2", 20)?;
        lab.command("off ours-1")?;
        let script = format!(
            "until_ 300 sh -c '[ $(($(cat $0/sm_lid))) = {} ]' $port",
            heir.trim()
        );
        let taken = with_words(lab, 2, &script, 90);
        if taken.is_err() {
            lab.command("on ours-1")?;
        }
        taken?;
    }
    // What was on its way when the manager went is asked for anew.
    let script = "until_ 50 sminfo && sminfo && saquery NR > /dev/null && until_ 60 ping -c 1 -W 1 10.9.1.1 && ping -q -i 0.05 -c 20 10.9.1.1 || { saquery MCMR | grep -A4 MGID; for s in $(switches); do ibroute -M $s; done; ip -s neigh; cat /sys/kernel/debug/ipoib/*; exit 1; }";
    let said = with_words(lab, 2, script, 60);
    if terms.manager == Manager::Ours {
        lab.command("on ours-1")?;
        // It takes over again, since it has the highest priority.
        let script = "until_ 200 sh -c 'sminfo | grep -q \"priority 14 state 3\"' && until_ 60 ping -c 1 -W 1 10.9.1.1";
        with_words(lab, 2, script, 90)?;
    }
    if terms.manager == Manager::OpenSm {
        // Back to where it was: what comes next takes the driver of guest 2 away.
        lab.ok(2, "pkill opensm; sleep 1", 20)?;
        start_opensm(lab)?;
        let script = "until_ 200 sh -c 'sminfo | grep -q \"priority 8 state 3\"'";
        with_words(lab, 2, script, 90)?;
    }
    let said = said?;
    holds(&said, &["SMINFO_MASTER", " 0% packet loss"])?;
    wait_active(lab)?;
    Ok(line_with(&said, "sminfo:"))
}
