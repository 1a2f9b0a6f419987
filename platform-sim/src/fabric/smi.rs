//! The subnet management interface: what becomes of a directed-route SMP at each node on its way.
//!
//! Pure rules over the SMP, as written in protocols 3.5. Who calls does the sending.

use core_ib::Lid;
use core_ib::wire::mad::Smp;

/// What is to become of the SMP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// It is for the agent, or for the manager, of this node.
    Local,
    /// Out by this port, both LIDs permissive.
    Out {
        /// Which port.
        port: u8,
    },
    /// The directed part of its way is over: on to this LID, from the LID of this switch.
    LidRouted {
        /// Whither.
        dlid: Lid,
    },
    /// Nothing.
    Discard,
}

/// The interface of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Smi {
    /// The node can forward.
    pub is_switch: bool,
    /// Number of external ports.
    pub ports: u8,
}

impl Smi {
    /// Out by `port`, if the node has it.
    fn out(self, port: Option<u8>) -> Turn {
        match port {
            Some(port) if port >= 1 && port <= self.ports => Turn::Out { port },
            _ => Turn::Discard,
        }
    }

    /// An SMP arrived at `in_port`. Changes hop pointer and return path as the rules say.
    pub fn receive(self, smp: &mut Smp, in_port: u8) -> Turn {
        self.turn(smp, Some(in_port))
    }

    /// An SMP was made on this node: a request of its own, or the answer to one that it received. A CA with several ports
    /// sends it by the port that the path names.
    pub fn originate(self, smp: &mut Smp) -> Turn {
        self.turn(smp, None)
    }

    fn turn(self, smp: &mut Smp, in_port: Option<u8>) -> Turn {
        if usize::from(smp.header.hop_count) > Smp::MAX_HOPS {
            return Turn::Discard;
        }
        if smp.is_returning() {
            self.returning(smp, in_port)
        } else {
            self.outbound(smp, in_port)
        }
    }

    /// protocols 3.5.1; the numbers are those of its cases.
    fn outbound(self, smp: &mut Smp, in_port: Option<u8>) -> Turn {
        let (hops, at) = (smp.header.hop_count, smp.header.hop_pointer);
        match at {
            // 1: the beginning of the directed part
            0 if hops > 0 => {
                let begins_here =
                    in_port.is_none() || self.is_switch && !smp.dr_slid.is_permissive();
                if !begins_here {
                    return Turn::Discard;
                }
                smp.header.hop_pointer = 1;
                self.out(smp.initial_hop(1))
            }
            // 2: on the way
            _ if at < hops => {
                let Some(in_port) = in_port.filter(|_| self.is_switch) else {
                    return Turn::Discard;
                };
                let out = self.out(smp.initial_hop(at + 1));
                if out != Turn::Discard {
                    set_hop(&mut smp.return_path, at, in_port);
                    smp.header.hop_pointer = at + 1;
                }
                out
            }
            // 3: the end of the directed part
            _ if at == hops => {
                if hops > 0 {
                    let Some(in_port) = in_port else {
                        return Turn::Discard;
                    };
                    set_hop(&mut smp.return_path, at, in_port);
                }
                smp.header.hop_pointer = at + 1;
                self.end_of(smp.dr_dlid)
            }
            // 4: the end of the last LID-routed part
            _ if at == hops + 1 => Turn::Local,
            // 5
            _ => Turn::Discard,
        }
    }

    /// protocols 3.5.2; the numbers are those of its cases.
    fn returning(self, smp: &mut Smp, in_port: Option<u8>) -> Turn {
        let (hops, at) = (smp.header.hop_count, smp.header.hop_pointer);
        match at {
            // 4: the end of the last LID-routed part
            0 => Turn::Local,
            // 5
            _ if at > hops + 1 => Turn::Discard,
            // 1: the beginning of the directed part
            _ if hops > 0 && at == hops + 1 => {
                let begins_here =
                    in_port.is_none() || self.is_switch && !smp.dr_dlid.is_permissive();
                if !begins_here {
                    return Turn::Discard;
                }
                smp.header.hop_pointer = hops;
                self.out(smp.return_hop(hops))
            }
            // 3: the end of the directed part
            1 => {
                smp.header.hop_pointer = 0;
                self.end_of(smp.dr_slid)
            }
            // 2: on the way
            _ => {
                if !self.is_switch {
                    return Turn::Discard;
                }
                let out = self.out(smp.return_hop(at - 1));
                if out != Turn::Discard {
                    smp.header.hop_pointer = at - 1;
                }
                out
            }
        }
    }

    /// The directed part ends here: on to `lid`, if there is more to go.
    fn end_of(self, lid: Lid) -> Turn {
        match lid {
            lid if lid.is_permissive() => Turn::Local,
            dlid if self.is_switch => Turn::LidRouted { dlid },
            _ => Turn::Discard,
        }
    }
}

fn set_hop(path: &mut [u8; 64], hop: u8, port: u8) {
    if let Some(place) = path.get_mut(usize::from(hop)) {
        *place = port;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core_ib::wire::mad::{AttributeId, MadStatus, Method};
    use proptest::prelude::*;

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
        assert_eq!(CA.originate(&mut smp), Turn::Out { port: 1 });
        assert_eq!(pointer(&smp), 1);
        assert_eq!(SWITCH.receive(&mut smp, 3), Turn::Out { port: 7 });
        assert_eq!((pointer(&smp), smp.return_path[1]), (2, 3));
        assert_eq!(CA.receive(&mut smp, 1), Turn::Local);
        assert_eq!((pointer(&smp), smp.return_path[2]), (3, 1));
        let mut reply = smp.reply(MadStatus::OK).unwrap();
        assert_eq!(CA.originate(&mut reply), Turn::Out { port: 1 });
        assert_eq!(pointer(&reply), 2);
        assert_eq!(SWITCH.receive(&mut reply, 7), Turn::Out { port: 3 });
        assert_eq!(pointer(&reply), 1);
        assert_eq!(CA.receive(&mut reply, 1), Turn::Local);
        assert_eq!(pointer(&reply), 0);
    }

    #[test]
    fn a_node_talks_to_itself_over_no_hops() {
        let mut smp = get(&[]);
        assert_eq!(CA.originate(&mut smp), Turn::Local);
        assert_eq!(smp.header.hop_pointer, 1);
        let mut reply = smp.reply(MadStatus::OK).unwrap();
        assert_eq!(CA.originate(&mut reply), Turn::Local);
        assert_eq!(reply.header.hop_pointer, 0);
    }

    #[test]
    fn a_switch_in_the_middle_of_a_mixed_route_leaves_and_enters_the_directed_part() {
        // LID-routed to a switch, directed over one hop, LID-routed to the destination.
        let mut smp = get(&[2]);
        (smp.dr_slid, smp.dr_dlid) = (Lid(9), Lid(5));
        assert_eq!(SWITCH.receive(&mut smp, 4), Turn::Out { port: 2 });
        assert_eq!(
            SWITCH.receive(&mut smp, 6),
            Turn::LidRouted { dlid: Lid(5) }
        );
        assert_eq!((smp.header.hop_pointer, smp.return_path[1]), (2, 6));
        assert_eq!(
            CA.receive(&mut smp, 1),
            Turn::Local,
            "the end of the last part"
        );
        let mut reply = smp.reply(MadStatus::OK).unwrap();
        // The reply goes LID-routed to the switch that ended the directed part.
        assert_eq!(SWITCH.receive(&mut reply, 3), Turn::Out { port: 6 });
        assert_eq!(reply.header.hop_pointer, 1);
        assert_eq!(
            SWITCH.receive(&mut reply, 2),
            Turn::LidRouted { dlid: Lid(9) }
        );
        assert_eq!(CA.receive(&mut reply, 1), Turn::Local);
    }

    #[test]
    fn what_does_not_fit_the_rules_is_discarded_and_left_as_it_was() {
        let fate = |smi: Smi, smp: Smp, pointer, in_port| {
            let mut smp = smp;
            smp.header.hop_pointer = pointer;
            let before = smp;
            let turn = smi.receive(&mut smp, in_port);
            (turn, smp == before)
        };
        let discarded = (Turn::Discard, true);
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
            prop_assert_eq!(ca.originate(&mut smp), Turn::Out { port: 1 });
            for &(input, output) in &hops {
                prop_assert_eq!(SWITCH.receive(&mut smp, input), Turn::Out { port: output });
            }
            prop_assert_eq!(ca.receive(&mut smp, last), Turn::Local);
            let mut reply = smp.reply(MadStatus::OK).unwrap();
            prop_assert_eq!(ca.originate(&mut reply), Turn::Out { port: last });
            for &(input, output) in hops.iter().rev() {
                prop_assert_eq!(SWITCH.receive(&mut reply, output), Turn::Out { port: input });
            }
            prop_assert_eq!(ca.receive(&mut reply, 1), Turn::Local);
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
            let smi = Smi { is_switch, ports };
            let turn = if own { smi.originate(&mut smp) } else { smi.receive(&mut smp, in_port) };
            if let Turn::Out { port } = turn {
                prop_assert!(port >= 1 && port <= ports);
            }
            prop_assert!(smp.header.hop_pointer <= count + 1 || turn == Turn::Discard || pointer == 0);
        }
    }
}
