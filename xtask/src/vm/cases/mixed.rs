//! A guest and hosts of ours, in process, on one fabric.

use super::{Case, Manager, Outcome, Terms, holds, line_with, with_words};
use crate::vm::lab::Lab;

/// All of them.
pub const CASES: &[Case] = &[
    Case::new("ours: ping both ways", ping),
    Case::new("ours: MADs", mads),
];

/// Over IPoIB, IPv4 and IPv6, whoever asks.
fn ping(lab: &mut Lab, _: &Terms) -> Outcome {
    let script = "peers='10.9.0.1 10.9.0.2 fd09::1 fd09::2'; for peer in $peers; do ping -q -W 3 -c 3 $peer > /dev/null; done; for peer in $peers; do ping -q -i 0.05 -W 3 -c 10 $peer || exit 1; done";
    let said = lab.ok(1, script, 60)?;
    if said.matches(" 0% packet loss").count() != 4 {
        return Err(said);
    }
    for (host, peer) in [
        ("ours-1", "10.9.1.1"),
        ("ours-2", "10.9.1.2"),
        ("ours-1", "fd09::100:1"),
        ("ours-2", "fd09::100:2"),
    ] {
        // The first may wait for the path.
        lab.command(&format!("ping {host} {peer} 2"))?;
        let said = lab.command(&format!("ping {host} {peer} 10"))?.join("\n");
        holds(&said, &["10 sent, 10 answered"])?;
    }
    Ok(line_with(&said, "rtt"))
}

/// What the agents of our host answer, and what our manager, if it is one, does for Linux.
fn mads(lab: &mut Lab, terms: &Terms) -> Outcome {
    let script = "lid=$(lid_of ours-2); smpquery nodeinfo $lid && smpquery nodedesc $lid && perfquery $lid 1 && smpquery portinfo $lid 1
        saquery PR --src-to-dst $(lid own):$lid && saquery NR $lid && ibping -c 5 $lid";
    let said = with_words(lab, 2, script, 30)?;
    holds(
        &said,
        &[
            "ours-2",
            "Pong from ours-2",
            "5 packets transmitted, 5 received",
            "PathRecord dump",
            "NodeRecord dump",
            "PortXmitPkts",
        ],
    )?;
    let shown = lab.command("show")?.join("\n");
    holds(&shown, &["== ours-1: Running, port state 4"])?;
    if terms.manager == Manager::Ours {
        holds(&shown, &["manager Master", "manager Standby"])?;
    }
    Ok(line_with(&shown, "PortStatistics"))
}
