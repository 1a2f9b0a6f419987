//! Programs over the RDMA connection manager, by IPoIB addresses.

use super::{Case, Outcome, Terms, line_with};
use crate::vm::lab::{Lab, Listens};

/// All of them.
pub const CASES: &[Case] = &[
    Case::new("rping", rping),
    Case::new("ucmatose", ucmatose),
    Case::new("udaddy", udaddy),
    Case::new("mckey", mckey),
    Case::new("rdma_client", rdma_client),
];

/// Sends, RDMA writes and reads, their content checked.
fn rping(lab: &mut Lab, terms: &Terms) -> Outcome {
    let count = if terms.quick { 20 } else { 200 };
    let serve = format!("rping -s -a 10.9.1.1 -V -C {count}");
    let ask = format!(
        "rping -c -a 10.9.1.1 -V -C {count} && rping -c -a 10.9.1.1 -V -C {count} -S 60000; exit $?"
    );
    let serve = format!("{serve} && {serve} -S 60000");
    // The second client may come before its server: it asks again.
    let ask = ask.replace("&& rping", "&& sleep 2 && rping");
    lab.pair(Listens::Cm, (1, &serve), (2, &ask), 60)?;
    Ok(format!("{count} checked, of 64 and of 60000 bytes"))
}

fn ucmatose(lab: &mut Lab, _: &Terms) -> Outcome {
    let (_, said) = lab.pair(
        Listens::Cm,
        (1, "ucmatose -b 10.9.1.1 -c 4 -C 50"),
        (2, "ucmatose -s 10.9.1.1 -c 4 -C 50"),
        60,
    )?;
    Ok(line_with(&said, "return status"))
}

fn udaddy(lab: &mut Lab, _: &Terms) -> Outcome {
    let (_, said) = lab.pair(
        Listens::Cm,
        (1, "udaddy -b 10.9.1.1 -c 4 -C 50"),
        (2, "udaddy -s 10.9.1.1 -c 4 -C 50"),
        60,
    )?;
    Ok(line_with(&said, "return status"))
}

/// Datagrams to a multicast group that both joined by the connection manager.
fn mckey(lab: &mut Lab, _: &Terms) -> Outcome {
    let (said, _) = lab.pair(
        Listens::Runs("mckey"),
        (1, "mckey -m 239.1.2.3 -b 10.9.1.1 -C 20"),
        (2, "mckey -s -m 239.1.2.3 -b 10.9.1.2 -C 20"),
        60,
    )?;
    Ok(line_with(&said, "return status"))
}

fn rdma_client(lab: &mut Lab, _: &Terms) -> Outcome {
    let (_, said) = lab.pair(
        Listens::Cm,
        (1, "rdma_server -s 10.9.1.1"),
        (2, "rdma_client -s 10.9.1.1"),
        60,
    )?;
    Ok(line_with(&said, "end"))
}
