//! The pingpongs between a guest and a host of ours: each transport, either end at either, and ends that die.

use super::{Case, Outcome, Terms, holds, with_words};
use crate::vm::lab::{Lab, Listens};

/// All of them.
pub const CASES: &[Case] = &[
    Case::new("ours: rc pingpong", |lab, terms| both(lab, terms, "rc")),
    Case::new("ours: uc pingpong", |lab, terms| both(lab, terms, "uc")),
    Case::new("ours: ud pingpong", |lab, terms| both(lab, terms, "ud")),
    Case::new("ours: srq pingpong", |lab, terms| both(lab, terms, "srq")),
    Case::new("ours: pingpong killed", killed),
    Case::new("ours: atomics", atomics),
    Case::new("ours: RDMA reads", |lab, terms| {
        memory(lab, terms, "reads", "ib_read_bw")
    }),
    Case::new("ours: RDMA writes", |lab, terms| {
        memory(lab, terms, "writes", "ib_write_bw")
    }),
];

/// The guest's tool asks ours, and ours asks the guest's; both check what comes.
fn both(lab: &mut Lab, terms: &Terms, kind: &str) -> Outcome {
    let sizes: &[u32] = match (kind, terms.quick) {
        ("ud", true) => &[2048],
        (_, true) => &[4096],
        ("ud", false) => &[1, 64, 1024, 2048],
        (_, false) => &[1, 64, 1024, 4096, 65_536, 1 << 20],
    };
    with_words(lab, 1, "until_ 150 ping -c 1 -W 1 10.9.0.2", 40)?;
    let mut checked = 0;
    for &size in sizes {
        let count = match (terms.quick, size) {
            (true, _) => 20,
            (false, 65_536..) => 40,
            _ => 200,
        };
        let of = format!("of {size} bytes, ended");
        let tool = format!("ibv_{kind}_pingpong -s {size} -n {count} -c");
        lab.command(&format!("pingpong ours-2 {kind} {count} {size}"))?;
        let said = lab.ok(1, &format!("{tool} 10.9.0.2"), 60)?;
        holds(&said, &["usec/iter"])?;
        let seen = lab.command("pingpong ours-2")?;
        let last = seen.last().cloned().unwrap_or_default();
        holds(&last, &[&format!("{kind} pingpong server: "), &of])?;
        checked += received(&last, count)?;

        let server = lab.start_script(1, &tool, 90)?;
        let there = lab.ok(1, &Listens::Tcp(18515).script(), 20);
        let asked = there
            .and_then(|_| lab.command(&format!("pingpong ours-2 {kind} {count} {size} 10.9.1.1")));
        let asked = asked.map(|said| said.join("\n"));
        let good = asked.and_then(|said| {
            holds(&said, &[&format!("{kind} pingpong client: "), &of])?;
            received(&said, count)
        });
        if good.is_err() {
            lab.guest(1)?.end(&server)?;
        }
        let served = lab.end_script(1, &tool, &server)?;
        checked += good.map_err(|error| format!("{error}\nthe server said:\n{}", served.text))?;
        holds(&served.text, &["usec/iter"])?;
        if served.text.contains("invalid data") || said.contains("invalid data") {
            return Err(served.text);
        }
    }
    let most = sizes.last().copied().unwrap_or_default();
    Ok(format!(
        "{checked} received and checked, up to {most} bytes"
    ))
}

/// The guest works on our memory, which adds up in the end; ours works on the guest's, and finds what was there before.
fn atomics(lab: &mut Lab, terms: &Terms) -> Outcome {
    let count = if terms.quick { 100 } else { 2000 };
    with_words(lab, 1, "until_ 150 ping -c 1 -W 1 10.9.0.2", 40)?;
    // The tool's swaps change nothing.
    for (kind, added) in [("FETCH_AND_ADD", count), ("CMP_AND_SWAP", 0)] {
        lab.command(&format!("atomics ours-2 {added}"))?;
        let ask = format!("ib_atomic_bw -A {kind} -n {count} 10.9.0.2");
        let said = lab.ok(1, &ask, 60)?;
        holds(&said, &["MsgRate"])?;
        let seen = lab.command("pingpong ours-2")?.pop().unwrap_or_default();
        holds(
            &seen,
            &[&format!(
                "atomics server: 0 of ours done, {count} checked, ended"
            )],
        )?;
    }
    let tool = "ib_atomic_bw";
    let server = lab.start_script(1, tool, 60)?;
    let there = lab.ok(1, &Listens::Tcp(18515).script(), 20);
    let asked = there.and_then(|_| lab.command(&format!("atomics ours-2 {count} 10.9.1.1")));
    let end = format!("atomics client: {count} of ours done, {count} checked, ended");
    let good = asked.and_then(|said| holds(&said.join("\n"), &[&end]));
    if good.is_err() {
        lab.guest(1)?.end(&server)?;
    }
    let served = lab.end_script(1, tool, &server)?;
    good.map_err(|error| format!("{error}\nthe server said:\n{}", served.text))?;
    Ok(format!(
        "{count} of either kind, and {count} of both to the guest"
    ))
}

/// The guest works on our memory, and ours on the guest's: reads, of which ours checks every byte, or writes.
fn memory(lab: &mut Lab, terms: &Terms, word: &str, tool: &str) -> Outcome {
    let (sizes, count): (&[u32], u32) = match terms.quick {
        true => (&[65_536], 50),
        false => (&[64, 4096, 65_536, 1 << 20], 200),
    };
    with_words(lab, 1, "until_ 150 ping -c 1 -W 1 10.9.0.2", 40)?;
    for &size in sizes {
        lab.command(&format!("{word} ours-2 {count} {size}"))?;
        let said = lab.ok(1, &format!("{tool} -s {size} -n {count} 10.9.0.2"), 60)?;
        holds(&said, &["BW average"])?;
        let seen = lab.command("pingpong ours-2")?.pop().unwrap_or_default();
        let end = format!("{word} server: 0 of ours done, {count} checked, of {size} bytes, ended");
        holds(&seen, &[&end])?;

        let script = format!("{tool} -s {size} -n {count}");
        let server = lab.start_script(1, &script, 60)?;
        let there = lab.ok(1, &Listens::Tcp(18515).script(), 20);
        let ask = format!("{word} ours-2 {count} {size} 10.9.1.1");
        let asked = there.and_then(|_| lab.command(&ask));
        let checked = if word == "reads" { count } else { 0 };
        let end = format!(
            "{word} client: {count} of ours done, {checked} checked, of {size} bytes, ended"
        );
        let good = asked.and_then(|said| holds(&said.join("\n"), &[&end]));
        if good.is_err() {
            lab.guest(1)?.end(&server)?;
        }
        let served = lab.end_script(1, &script, &server)?;
        good.map_err(|error| format!("{error}\nthe server said:\n{}", served.text))?;
    }
    let most = sizes.last().copied().unwrap_or_default();
    Ok(format!("{count} each way of each size, up to {most} bytes"))
}

/// Messages that a host of ours received and checked, not fewer than `count`.
fn received(line: &str, count: u32) -> Result<u32, String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let at = words.iter().position(|word| *word == "received");
    let before = at.and_then(|at| words.get(at.checked_sub(1)?));
    let number = before.and_then(|word| word.parse().ok());
    number
        .filter(|number| *number >= count)
        .ok_or_else(|| format!("not {count} were received: {line}"))
}

/// Either end is killed in the middle, ours says so, and the next one is served.
fn killed(lab: &mut Lab, _: &Terms) -> Outcome {
    // The guest's client.
    lab.command("pingpong ours-2 rc 10000000 4096")?;
    let script = "ibv_rc_pingpong -s 4096 -n 10000000 10.9.0.2 & client=$!; sleep 3; kill -9 $client; wait $client; true";
    with_words(lab, 1, script, 30)?;
    let cut = until_over(lab)?;
    holds(&cut, &["rc pingpong server: ", "failed: "])?;
    // The guest's server, while ours asks and says when it is through.
    let serve = "ibv_rc_pingpong -s 4096 -n 10000000 & server=$!; sleep 6; kill -9 $server; wait $server; true";
    let server = lab.start_script(1, serve, 60)?;
    let there = lab.ok(1, &Listens::Tcp(18515).script(), 20);
    let asked = there.and_then(|_| lab.command("pingpong ours-2 rc 10000000 4096 10.9.1.1"));
    lab.end_script(1, serve, &server)?;
    let asked = asked?.join("\n");
    holds(&asked, &["rc pingpong client: ", "failed: "])?;
    // Ours is switched off under the guest's tool, and is back. With a message under way the tool learns of it; else it
    // waits for ever, and is asked again.
    let mut told = Err("the tool was not asked".into());
    for _ in 0..4 {
        lab.command("pingpong ours-2 rc 10000000 4096")?;
        let ask = "timeout -s KILL 8 ibv_rc_pingpong -s 4096 -n 10000000 10.9.0.2; true";
        let client = lab.start_script(1, ask, 60)?;
        with_words(lab, 1, "sleep 2", 10)?;
        lab.command("off ours-2")?;
        let said = lab.end_script(1, ask, &client)?;
        lab.command("on ours-2")?;
        let back = "ip neigh flush dev ib0; until_ 150 ping -c 1 -W 1 10.9.0.2";
        with_words(lab, 1, back, 60)?;
        told = holds(
            &said.text,
            &["Failed status transport retry counter exceeded"],
        );
        if told.is_ok() {
            break;
        }
    }
    told?;
    lab.command("pingpong ours-2 rc 100 4096")?;
    with_words(lab, 1, "ibv_rc_pingpong -s 4096 -n 100 -c 10.9.0.2", 30)?;
    let seen = lab.command("pingpong ours-2")?.join("\n");
    holds(&seen, &["100 received and checked, of 4096 bytes, ended"])?;
    Ok(cut)
}

/// The last one, once it is over.
fn until_over(lab: &mut Lab) -> Outcome {
    let mut last = String::new();
    for _ in 0..60 {
        last = lab.command("pingpong ours-2")?.pop().unwrap_or_default();
        if !last.contains("running") {
            break;
        }
        with_words(lab, 1, "sleep 0.5", 10)?;
    }
    Ok(last)
}
