//! The diagnostics: what they say of a fabric of several switches is right.

use super::{Case, Manager, Outcome, Terms, holds, line_with, with_words};
use crate::vm::lab::Lab;

/// All of them.
pub const CASES: &[Case] = &[
    Case::new("discovery", discovery),
    Case::new("routes", routes),
    Case::new("subnet queries", subnet_queries),
    Case::new("SA queries", sa_queries),
    Case::new("counters", counters),
    Case::new("errors", errors),
    Case::new("ibping", ibping),
    Case::new("ibdiagnet", ibdiagnet),
];

/// Descriptions of all nodes.
const NODES: [&str; 9] = [
    "switch-1", "switch-2", "switch-3", "guest-1", "guest-2", "ours-1", "ours-2", "quiet-1",
    "quiet-2",
];

fn discovery(lab: &mut Lab, _: &Terms) -> Outcome {
    for tool in ["ibnetdiscover", "iblinkinfo"] {
        holds(&lab.ok(2, tool, 30)?, &NODES)?;
    }
    let script = "ibnetdiscover | awk '/^Switch|^Ca/ { kind[$1]++ } /^\\[/ { ends++ } END { print kind[\"Switch\"], kind[\"Ca\"], ends }'";
    let counted = lab.ok(2, script, 30)?;
    // Six cables between a host and a switch, three between switches; each is told from both ends.
    if counted.trim() != "3 6 18" {
        return Err(format!("switches, hosts, ends of cables: {counted}"));
    }
    let (switches, hosts) = NODES.split_at(3);
    holds(&lab.ok(2, "ibswitches", 20)?, switches)?;
    holds(&lab.ok(2, "ibhosts", 20)?, hosts)?;
    Ok("3 switches, 6 hosts, 9 cables".into())
}

/// What is on the way from guest 2 to everybody is what the cables say, and the switches' tables lead there.
fn routes(lab: &mut Lab, _: &Terms) -> Outcome {
    let script = "ibtracert $(lid own) $(lid_of guest-1) && ibtracert $(lid own) $(lid_of quiet-2)";
    let said = with_words(lab, 2, script, 30)?;
    holds(&said, &["switch-2", "switch-1", "switch-3", "quiet-2"])?;
    if said.matches("-> switch port").count() != 4 {
        return Err(format!("there are two switches on each way, but:\n{said}"));
    }
    let script = "for sw in $(switches); do ibroute $sw || exit 1; ibroute -M $sw || exit 1; done";
    let said = with_words(lab, 2, script, 30)?;
    if said.matches("9 valid lids dumped").count() != 3 {
        return Err(format!("a switch does not have 9 routes:\n{said}"));
    }
    if said.matches("valid mlids dumped").count() != 3 {
        return Err(format!("a switch does not tell its groups:\n{said}"));
    }
    Ok(String::new())
}

/// All attributes that `smpquery` knows, of a guest, of a host of ours, of a switch; by LID and by path.
fn subnet_queries(lab: &mut Lab, _: &Terms) -> Outcome {
    let script = "for lid in $(lid own) $(lid_of guest-1) $(lid_of ours-1); do
          for what in nodeinfo nodedesc; do smpquery $what $lid || exit 1; done
          for what in portinfo pkeys sl2vl vlarb; do smpquery $what $lid 1 || exit 1; done
          smpquery guidinfo $lid || exit 1
        done
        for lid in $(switches); do
          for what in nodeinfo nodedesc switchinfo; do smpquery $what $lid || exit 1; done
          for what in portinfo pkeys sl2vl vlarb; do smpquery $what $lid 5 || exit 1; done
        done
        smpquery -D nodeinfo 0 && smpquery -D nodeinfo 0,1 && smpquery -D portinfo 0,1 5 && smpquery -c nodeinfo $(lid_of switch-1) 0,1";
    let said = with_words(lab, 2, script, 60)?;
    let wanted = [
        "NodeType",
        "LinkWidthActive",
        "0xffff",
        "0x8001",
        "LinearFdbTop",
        "LinkState:.......................Active",
    ];
    holds(&said, &wanted)?;
    holds(&said, &NODES[..4])?;
    Ok(line_with(&said, "LinkWidthActive"))
}

fn sa_queries(lab: &mut Lab, terms: &Terms) -> Outcome {
    let script = "sminfo && for what in NR PIR MCMR LR SWIR SL2VL VLAR GIR SMIR; do saquery $what || exit 1; done; saquery -c";
    let said = with_words(lab, 2, script, 60)?;
    if terms.manager == Manager::Ours {
        // OpenSM tells its table of partitions to nobody without its key.
        lab.ok(2, "saquery PKTR", 20)?;
    }
    holds(
        &said,
        &[
            "SMINFO_MASTER",
            "NodeRecord dump",
            "PortInfoRecord dump",
            "MCMember Record dump",
            "LinkRecord dump",
            "SwitchInfoRecord dump",
        ],
    )?;
    holds(&said, &NODES)?;
    let script = "saquery PR --src-to-dst $(lid own):$(lid_of guest-1) && saquery PR > /tmp/all && grep -c 'PathRecord dump' /tmp/all";
    let said = with_words(lab, 2, script, 30)?;
    holds(&said, &["PathRecord dump", "mtu.....................0x84"])?;
    Ok(String::new())
}

/// Counters count what is sent, the extended ones too, and can be set back.
fn counters(lab: &mut Lab, _: &Terms) -> Outcome {
    let count = "perfquery | sed -n 's/PortXmitPkts:\\.*//p'";
    let number = |text: String| {
        let number = text.trim().parse::<u64>();
        number.map_err(|_| format!("no count: {text}"))
    };
    let before = number(lab.ok(2, count, 20)?)?;
    let script = "for i in 1 2 3 4 5; do perfquery $(lid_of guest-1) 1 > /dev/null || exit 1; done";
    with_words(lab, 2, script, 20)?;
    let after = number(lab.ok(2, count, 20)?)?;
    if after < before + 5 {
        return Err(format!(
            "PortXmitPkts went from {before} to {after} in five queries over VL0"
        ));
    }
    lab.ok(2, "perfquery -R", 20)?;
    let reset = number(lab.ok(2, count, 20)?)?;
    if reset >= after {
        return Err(format!("PortXmitPkts is {reset} after it was set back"));
    }
    let script = "for lid in $(switches); do perfquery $lid 5 && perfquery -a $lid || exit 1; done; perfquery $(lid_of ours-1) 1 && perfquery $(lid_of quiet-1) 1";
    with_words(lab, 2, script, 30)?;
    Ok(String::new())
}

/// No counter of errors has moved.
fn errors(lab: &mut Lab, _: &Terms) -> Outcome {
    // A switch drops a multicast where nobody but its sender listens, and counts that.
    let common = "PortXmitDiscards,PortXmitWait,PortRcvSwitchRelayErrors";
    let said = lab.ok(2, &format!("ibqueryerrors -s {common} 2>&1"), 30)?;
    holds(&said, &["9 nodes checked, 0 bad nodes found"])?;
    Ok(line_with(&said, "nodes checked"))
}

fn ibping(lab: &mut Lab, _: &Terms) -> Outcome {
    lab.ok(
        1,
        "setsid ibping -S > /dev/null 2>&1 < /dev/null & sleep 1",
        10,
    )?;
    let script = "lid=$(lid_of guest-1); guid=$(smpquery -G nodeinfo $(saquery NR $lid | sed -n 's/.*port_guid\\.*//p') | sed -n 's/PortGuid:\\.*//p')
        ibping -c 5 $lid && ibping -c 5 -G $guid; status=$?; exit $status";
    let said = with_words(lab, 2, script, 30);
    lab.ok(1, "pkill ibping; true", 10)?;
    let said = said?;
    if said.matches("5 packets transmitted, 5 received").count() == 2 {
        Ok(line_with(&said, "rtt"))
    } else {
        Err(said)
    }
}

fn ibdiagnet(lab: &mut Lab, _: &Terms) -> Outcome {
    let script = "mkdir -p /tmp/ibdiagnet && ibdiagnet -o /tmp/ibdiagnet -ls 2.5 -lw 4x 2>&1";
    let said = lab.ok(2, script, 120)?;
    if said.lines().any(|line| line.contains("-E-")) {
        return Err(said);
    }
    let warned = said.lines().filter(|line| line.contains("-W-")).count();
    Ok(format!("{warned} warnings"))
}
