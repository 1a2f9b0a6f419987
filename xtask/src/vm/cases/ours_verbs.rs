//! RDMA between a guest and a host of ours: programs of librdmacm against the same of ours, over connections that either
//! end set up.

use super::{Case, Outcome, Terms, holds, with_words};
use crate::vm::lab::{Lab, Listens};

/// All of them.
pub const CASES: &[Case] = &[
    Case::new("ours: rping from the guest", from_guest),
    Case::new("ours: rping to the guest", to_guest),
    Case::new("ours: rping killed", killed),
    Case::new("ours: ucmatose", ucmatose),
    Case::new("ours: rdma_client and rdma_server", client_and_server),
];

/// The guest asks; the host of ours reads and writes the guest's memory.
fn from_guest(lab: &mut Lab, terms: &Terms) -> Outcome {
    let count = if terms.quick { 10 } else { 200 };
    lab.command("rping ours-2")?;
    let script = format!(
        "until_ 150 ping -c 1 -W 1 10.9.0.2
        for size in 64 1000 4096 60000; do rping -c -a 10.9.0.2 -V -C {count} -S $size || exit 1; done"
    );
    with_words(lab, 1, &script, 60)?;
    let seen = lab.command("rping ours-2")?.join("\n");
    let ends = [64, 1000, 4096, 60_000]
        .map(|size| format!("server: {count} rounds of {size} bytes, ended"));
    let ends: Vec<&str> = ends.iter().map(String::as_str).collect();
    holds(&seen, &ends)?;
    Ok(format!(
        "{count} checked at both ends, of 64 to 60000 bytes"
    ))
}

/// A host of ours asks; the guest reads and writes.
fn to_guest(lab: &mut Lab, terms: &Terms) -> Outcome {
    let count = if terms.quick { 10 } else { 200 };
    // In the group of processes that is ended with the script.
    let serve = "rping -s -P -S 65535 -a 10.9.1.1";
    let server = lab.start_script(1, serve, 200)?;
    let there = lab.ok(1, &Listens::Cm.script(), 20);
    let asked = there.and_then(|_| all_sizes(lab, count));
    lab.guest(1)?.end(&server)?;
    lab.end_script(1, serve, &server)?;
    asked.map(|()| format!("{count} checked, of 64 to 60000 bytes"))
}

fn all_sizes(lab: &mut Lab, count: u32) -> Result<(), String> {
    for size in [64, 1000, 4096, 60_000] {
        let asked = format!("rping ours-2 10.9.1.1 {count} {size}");
        let said = lab.command(&asked)?.join("\n");
        let end = format!("client: {count} rounds of {size} bytes, ended");
        holds(&said, &[&end])?;
    }
    Ok(())
}

/// Messages both ways between `ucmatose` and ours, over one connection and over several.
fn ucmatose(lab: &mut Lab, terms: &Terms) -> Outcome {
    let sizes: &[u32] = if terms.quick {
        &[100]
    } else {
        &[1, 100, 4096, 65_536]
    };
    with_words(lab, 1, "until_ 150 ping -c 1 -W 1 10.9.0.2", 40)?;
    for &size in sizes {
        let of = format!("10 each way of {size} bytes, ended");
        lab.command(&format!("messages ours-2 10 {size}"))?;
        let ask = format!("ucmatose -s 10.9.0.2 -c 3 -C 10 -S {size}");
        let said = lab.ok(1, &ask, 40)?;
        holds(&said, &["data transfers complete", "return status 0"])?;
        let seen = lab.command("messages ours-2")?;
        let last = seen.iter().rev().take(3);
        let whole = format!("messages server: {of}");
        if last.filter(|line| line.contains(&whole)).count() != 3 {
            return Err(seen.join("\n"));
        }
        let serve = format!("ucmatose -C 10 -S {size}");
        let ask = format!("messages ours-2 10 {size} 10.9.1.1");
        let served = to_server(lab, &serve, &ask, &of)?;
        holds(&served, &["data transfers complete", "return status 0"])?;
    }
    let most = sizes.last().copied().unwrap_or_default();
    Ok(format!(
        "10 each way over 3 connections of the guest's and one of ours, up to {most} bytes"
    ))
}

/// One message of 16 bytes each way.
fn client_and_server(lab: &mut Lab, _: &Terms) -> Outcome {
    with_words(lab, 1, "until_ 150 ping -c 1 -W 1 10.9.0.2", 40)?;
    let of = "1 each way of 16 bytes, ended";
    lab.command("messages ours-2 1 16")?;
    let said = lab.ok(1, "rdma_client -s 10.9.0.2", 40)?;
    holds(&said, &["rdma_client: end 0"])?;
    let seen = lab.command("messages ours-2")?.pop().unwrap_or_default();
    holds(&seen, &[&format!("messages server: {of}")])?;
    let served = to_server(lab, "rdma_server", "messages ours-2 1 16 10.9.1.1", of)?;
    holds(&served, &["rdma_server: end 0"])?;
    Ok(of.into())
}

/// Ours asks a server of the guest's that ends by itself: what it said.
fn to_server(lab: &mut Lab, serve: &str, ask: &str, of: &str) -> Outcome {
    let server = lab.start_script(1, serve, 60)?;
    let there = lab.ok(1, &Listens::Cm.script(), 20);
    let asked = there.and_then(|_| lab.command(ask));
    let client = format!("messages client: {of}");
    let good = asked.and_then(|said| holds(&said.join("\n"), &[&client]));
    if good.is_err() {
        lab.guest(1)?.end(&server)?;
    }
    let served = lab.end_script(1, serve, &server)?;
    good.map_err(|error| format!("{error}\nthe server said:\n{}", served.text))?;
    served.good(1, serve)
}

/// The guest's client is killed in the middle of it, and the next one is served; then the guest's server is, under ours.
fn killed(lab: &mut Lab, terms: &Terms) -> Outcome {
    lab.command("rping ours-2")?;
    let script = "rping -c -a 10.9.0.2 -C 1000000 -S 4096 & client=$!; sleep 3; kill -9 $client; wait $client
        rping -c -a 10.9.0.2 -V -C 5 -S 2000";
    with_words(lab, 1, script, 60)?;
    let seen = lab.command("rping ours-2")?;
    let cut = seen.iter().rev().nth(1).cloned().unwrap_or_default();
    let last = seen.last().cloned().unwrap_or_default();
    holds(&last, &["server: 5 rounds of 2000 bytes, ended"])?;
    holds(&cut, &["of 4096 bytes"])?;
    if cut.contains("server: 0 rounds") || cut.contains("running") {
        return Err(cut);
    }
    let serve = "rping -s -P -S 65535 -a 10.9.1.1 & server=$!; sleep 6; kill -9 $server; wait $server; true";
    let server = lab.start_script(1, serve, 60)?;
    let there = lab.ok(1, &Listens::Cm.script(), 20);
    let asked = there.and_then(|_| lab.command("rping ours-2 10.9.1.1 1000000 4096"));
    lab.end_script(1, serve, &server)?;
    let asked = asked?.join("\n");
    holds(&asked, &["client: ", "of 4096 bytes"])?;
    if asked.contains("client: 0 rounds") || asked.contains("running") {
        return Err(asked);
    }
    // And a whole one afterwards.
    to_guest(
        lab,
        &Terms {
            quick: true,
            ..*terms
        },
    )?;
    Ok(format!("{cut}; {asked}"))
}
