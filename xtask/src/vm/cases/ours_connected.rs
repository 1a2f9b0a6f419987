//! IPoIB in connected mode between a guest and a host of ours: each opens a connection to the other.

use super::{Case, Manager, Outcome, Terms, holds, line_with, with_words};
use crate::vm::lab::Lab;

/// All of them. They leave datagram mode behind.
pub const CASES: &[Case] = &[
    Case::new("ours: connected mode", connected).may_say(&["will cause multicast packet drops"])
];

/// Both ends in this mode: a host of ours, which starts again for it, and a guest.
fn mode(lab: &mut Lab, mode: &str) -> Result<(), String> {
    lab.command(&format!("mode ours-2 {mode}"))?;
    let mtu = if mode == "connected" { 65_520 } else { 2044 };
    let script = format!(
        "ip link set ib0 down; echo {mode} > /sys/class/net/ib0/mode && ip link set ib0 mtu {mtu} && ip link set ib0 up
        ip addr replace 10.9.1.1/16 dev ib0 && ip addr replace fd09::100:1/64 dev ib0 nodad
        ip neigh flush dev ib0; until_ 150 ping -c 1 -W 1 10.9.0.2"
    );
    with_words(lab, 1, &script, 60).map(|_| ())
}

/// Packets that no datagram holds, asked for by either end, and what the guest's kernel says of the connections.
fn connected(lab: &mut Lab, terms: &Terms) -> Outcome {
    mode(lab, "connected")?;
    let tried = large(lab, terms);
    mode(lab, "datagram")?;
    tried
}

fn large(lab: &mut Lab, terms: &Terms) -> Outcome {
    let count = if terms.quick { 10 } else { 100 };
    let script = format!(
        "ping -q -i 0.05 -W 3 -c 3 -s 40000 10.9.0.2 > /dev/null
        for size in 56 2000 9000 40000 65492; do ping -q -i 0.05 -W 3 -c {count} -s $size 10.9.0.2 || exit 1; done
        # A neighbour that is asked for has room for three of these, and a subnet manager may take its time with the group.
        until_ 150 ping -c 1 -W 1 fd09::2
        sent=/sys/class/net/ib0/statistics/tx_packets; before=$(cat $sent)
        ping -q -i 0.05 -W 3 -c {count} -s 60000 fd09::2 || exit 1
        # Whole, and not in 30 fragments each.
        [ $(($(cat $sent) - before)) -lt $((3 * {count})) ] || {{ echo in fragments; exit 1; }}"
    );
    let said = with_words(lab, 1, &script, 60 + count)?;
    if said.matches(" 0% packet loss").count() != 6 {
        return Err(said);
    }
    for peer in ["10.9.1.1", "fd09::100:1"] {
        // The first may wait for the connection.
        lab.command(&format!("ping ours-2 {peer} 2 60000"))?;
        let heard = lab
            .command(&format!("ping ours-2 {peer} 10 60000"))?
            .join("\n");
        holds(&heard, &["10 sent, 10 answered"])?;
    }
    if terms.manager == Manager::Ours {
        let shown = lab.command("show")?.join("\n");
        holds(&shown, &["== ours-2: Running, port state 4"])?;
    }
    Ok(line_with(&said, "rtt"))
}
