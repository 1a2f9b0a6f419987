//! The pingpongs of `ibverbs-utils`, one transport each, and asynchronous events.

use super::{Case, Outcome, Terms, holds, line_with, wait_active, with_words};
use crate::vm::lab::{Lab, Listens};

/// All of them.
pub const CASES: &[Case] = &[
    Case::new("ud pingpong", |lab, terms| pingpong(lab, terms, "ud", 2048)),
    Case::new("rc pingpong", |lab, terms| {
        pingpong(lab, terms, "rc", 1 << 20)
    }),
    Case::new("uc pingpong", |lab, terms| {
        pingpong(lab, terms, "uc", 1 << 20)
    }),
    Case::new("srq pingpong", |lab, terms| {
        pingpong(lab, terms, "srq", 1 << 20)
    }),
    Case::new("asyncwatch", asyncwatch),
];

/// Sizes up to `largest`, polled and with events, what arrives checked. The checking asks for more messages than the
/// receive queue holds only where that is so anyway.
fn pingpong(lab: &mut Lab, terms: &Terms, transport: &str, largest: u32) -> Outcome {
    let sizes: &[u32] = match terms.quick {
        true => &[4096],
        false => &[1, 64, 1024, 4096, 65_536, 1 << 20],
    };
    let mut tried: Vec<u32> = sizes.iter().map(|size| *size.min(&largest)).collect();
    tried.dedup();
    let mut figure = String::new();
    for size in tried {
        for events in ["", "-e"] {
            let count = if size > 65_536 { 20 } else { 200 };
            // What the SRQ pingpong checks it calls a validation of all its queue pairs' buffers.
            let words = format!("ibv_{transport}_pingpong -s {size} -n {count} -c {events}");
            let ask = format!("{words} 10.9.1.1");
            let (_, said) = lab.pair(Listens::Tcp(18515), (1, &words), (2, &ask), 60)?;
            holds(&said, &["usec/iter"])?;
            if said.contains("invalid data") {
                return Err(said);
            }
            figure = line_with(&said, "usec/iter");
        }
    }
    Ok(figure)
}

/// The cable is pulled and put back, and a program that listens to events is told of both.
fn asyncwatch(lab: &mut Lab, _: &Terms) -> Outcome {
    let watch = "stdbuf -oL ibv_asyncwatch > /tmp/events 2>&1; true";
    let running = lab.start_script(2, watch, 70)?;
    with_words(lab, 2, "until_ 50 pgrep ibv_asyncwatch; sleep 0.5", 20)?;
    lab.command("down 1 guest-2")?;
    let down = with_words(lab, 2, "until_ 100 grep -q DOWN $port/state", 30);
    lab.command("up 1 guest-2")?;
    down?;
    wait_active(lab)?;
    lab.guest(2)?.end(&running)?;
    lab.end_script(2, watch, &running)?;
    let said = lab.ok(2, "cat /tmp/events", 10)?;
    holds(&said, &["IBV_EVENT_PORT_ERR", "IBV_EVENT_PORT_ACTIVE"])?;
    Ok(String::new())
}
