//! The rules of directed routes, by the worked example and over any route.

extern crate std;

use super::*;
use crate::wire::mad::{AttributeId, Method};
use proptest::prelude::*;
use std::vec::Vec;

const CA: Smi = Smi {
    is_switch: false,
    ports: 1,
};
const SWITCH: Smi = Smi {
    is_switch: true,
    ports: 8,
};

fn get(path: &[u8]) -> Smp {
    Smp::directed(Method::GET, AttributeId::NODE_INFO, 0, path).unwrap()
}

#[test]
fn the_worked_example_of_two_hops_goes_step_by_step() {
    let mut smp = get(&[1, 7]);
    let pointer = |smp: &Smp| smp.header.hop_pointer;
    assert_eq!(CA.originate(&mut smp), Ok(Turn::Out { port: 1 }));
    assert_eq!(pointer(&smp), 1);
    assert_eq!(SWITCH.receive(&mut smp, 3), Ok(Turn::Out { port: 7 }));
    assert_eq!((pointer(&smp), smp.return_path[1]), (2, 3));
    assert_eq!(CA.receive(&mut smp, 1), Ok(Turn::Local));
    assert_eq!((pointer(&smp), smp.return_path[2]), (3, 1));
    let mut reply = smp.reply(MadStatus::OK).unwrap();
    assert_eq!(CA.originate(&mut reply), Ok(Turn::Out { port: 1 }));
    assert_eq!(pointer(&reply), 2);
    assert_eq!(SWITCH.receive(&mut reply, 7), Ok(Turn::Out { port: 3 }));
    assert_eq!(pointer(&reply), 1);
    assert_eq!(CA.receive(&mut reply, 1), Ok(Turn::Local));
    assert_eq!(pointer(&reply), 0);
}

#[test]
fn a_node_talks_to_itself_over_no_hops() {
    let mut smp = get(&[]);
    assert_eq!(CA.originate(&mut smp), Ok(Turn::Local));
    assert_eq!(smp.header.hop_pointer, 1);
    let mut reply = smp.reply(MadStatus::OK).unwrap();
    assert_eq!(CA.originate(&mut reply), Ok(Turn::Local));
    assert_eq!(reply.header.hop_pointer, 0);
}

#[test]
fn a_switch_in_the_middle_of_a_mixed_route_leaves_and_enters_the_directed_part() {
    // LID-routed to a switch, directed over one hop, LID-routed to the destination.
    let mut smp = get(&[2]);
    (smp.dr_slid, smp.dr_dlid) = (Lid(9), Lid(5));
    assert_eq!(SWITCH.receive(&mut smp, 4), Ok(Turn::Out { port: 2 }));
    assert_eq!(
        SWITCH.receive(&mut smp, 6),
        Ok(Turn::LidRouted { dlid: Lid(5) })
    );
    assert_eq!((smp.header.hop_pointer, smp.return_path[1]), (2, 6));
    assert_eq!(
        CA.receive(&mut smp, 1),
        Ok(Turn::Local),
        "the end of the last part"
    );
    let mut reply = smp.reply(MadStatus::OK).unwrap();
    // The reply goes LID-routed to the switch that ended the directed part.
    assert_eq!(SWITCH.receive(&mut reply, 3), Ok(Turn::Out { port: 6 }));
    assert_eq!(reply.header.hop_pointer, 1);
    assert_eq!(
        SWITCH.receive(&mut reply, 2),
        Ok(Turn::LidRouted { dlid: Lid(9) })
    );
    assert_eq!(CA.receive(&mut reply, 1), Ok(Turn::Local));
}

#[test]
fn what_does_not_fit_the_rules_is_discarded_and_left_as_it_was() {
    let fate = |smi: Smi, smp: Smp, pointer, in_port| {
        let mut smp = smp;
        smp.header.hop_pointer = pointer;
        let before = smp;
        let turn = smi.receive(&mut smp, in_port);
        (turn.is_err(), smp == before)
    };
    let discarded = (true, true);
    assert_eq!(fate(SWITCH, get(&[1, 9]), 1, 3), discarded, "no port 9");
    assert_eq!(
        fate(SWITCH, get(&[1, 0]), 1, 3),
        discarded,
        "port 0 in the middle"
    );
    assert_eq!(
        fate(CA, get(&[1, 1]), 1, 1),
        discarded,
        "a CA does not forward"
    );
    assert_eq!(
        fate(SWITCH, get(&[1, 2]), 0, 3),
        discarded,
        "nobody's request"
    );
    assert_eq!(fate(CA, get(&[1]), 3, 1), discarded, "beyond the end");
    let mut long = get(&[1]);
    long.header.hop_count = 64;
    assert_eq!(fate(SWITCH, long, 1, 1), discarded, "too many hops");
    let returning = get(&[1, 2, 3]).reply(MadStatus::OK).unwrap();
    assert_eq!(fate(CA, returning, 2, 1), discarded);
    assert_eq!(
        fate(SWITCH, returning, 4, 1),
        discarded,
        "a reply that nobody here made"
    );
}

proptest! {
    /// A line of switches, entered and left by any ports: the request arrives, and so does the reply, by the same ports.
    #[test]
    fn a_reply_finds_its_way_back_over_any_route(
        hops in prop::collection::vec((1..=8_u8, 1..=8_u8), 0..62), last in 1..=4_u8,
    ) {
        let ca = Smi { is_switch: false, ports: 4 };
        let path: Vec<u8> = [1].into_iter().chain(hops.iter().map(|(_, out)| *out)).collect();
        let mut smp = get(&path);
        prop_assert_eq!(ca.originate(&mut smp), Ok(Turn::Out { port: 1 }));
        for &(input, output) in &hops {
            prop_assert_eq!(SWITCH.receive(&mut smp, input), Ok(Turn::Out { port: output }));
        }
        prop_assert_eq!(ca.receive(&mut smp, last), Ok(Turn::Local));
        let mut reply = smp.reply(MadStatus::OK).unwrap();
        prop_assert_eq!(ca.originate(&mut reply), Ok(Turn::Out { port: last }));
        for &(input, output) in hops.iter().rev() {
            prop_assert_eq!(SWITCH.receive(&mut reply, output), Ok(Turn::Out { port: input }));
        }
        prop_assert_eq!(ca.receive(&mut reply, 1), Ok(Turn::Local));
        prop_assert_eq!(reply.header.hop_pointer, 0);
    }

    #[test]
    fn no_smp_whatever_leaves_by_a_port_that_does_not_exist(
        count in 0..70_u8, pointer in 0..70_u8, back: bool, lids: (u16, u16),
        path: [u8; 32], is_switch: bool, ports in 1..=8_u8, in_port in 1..=8_u8, own: bool,
    ) {
        let mut smp = get(&path);
        smp.return_path[..32].copy_from_slice(&path);
        (smp.header.hop_count, smp.header.hop_pointer) = (count, pointer);
        (smp.dr_slid, smp.dr_dlid) = (Lid(lids.0), Lid(lids.1));
        smp.header.status = MadStatus(if back { 0x8000 } else { 0 });
        let before = smp;
        let smi = Smi { is_switch, ports };
        let turn = if own { smi.originate(&mut smp) } else { smi.receive(&mut smp, in_port) };
        match turn {
            Ok(turn) => {
                if let Turn::Out { port } = turn {
                    prop_assert!(port >= 1 && port <= ports);
                }
                prop_assert!(smp.header.hop_pointer <= count + 1);
            }
            Err(_) => prop_assert_eq!(smp, before, "what is discarded stays as it was"),
        }
    }
}
