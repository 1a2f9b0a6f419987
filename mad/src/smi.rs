//! The subnet management interface of a channel adapter: what it does to a directed-route SMP on its way out and in,
//! and which MADs are for the agents in the HCA's firmware. protocols 3.5, infinihost 8.1.
//!
//! A CA forwards nothing, so most of the table of protocols 3.5 ends in "discard". These functions change the hop
//! pointer and the return path in place and leave every other byte alone; the class of the MAD must be
//! [`MgmtClass::SUBN_DR`], else they let it pass. Pure; any context.

use core_ib::Lid;
pub use core_ib::wire::mad::SmiError;
use core_ib::wire::mad::{
    AttributeId, DirectedRoute, Mad, MadHeader, MadStatus, Method, MgmtClass, Smi, Smp, Turn,
};

/// Where the return path is in an SMP.
const RETURN_PATH: usize = 192;

/// Where an SMP of our own goes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// To the wire, to the LID that its sender named.
    Wire,
    /// To this very port: to its agents, as if received.
    Local,
}

/// The fields of a directed route that decide; `None` if it is not a directed-route SMP.
fn route_of(mad: &Mad) -> Option<DirectedRoute<'_>> {
    let header = mad.header();
    let (_, paths) = mad.0.split_first_chunk::<128>()?;
    let (initial_path, return_path) = paths.split_first_chunk()?;
    (header.class == MgmtClass::SUBN_DR).then_some(DirectedRoute {
        hop_pointer: header.hop_pointer,
        hop_count: header.hop_count,
        returning: header.status.0 & MadStatus::DIRECTION != 0,
        dr_slid: Lid(u16::from_be_bytes([mad.0[32], mad.0[33]])),
        dr_dlid: Lid(u16::from_be_bytes([mad.0[34], mad.0[35]])),
        initial_path,
        return_path: return_path.first_chunk()?,
    })
}

/// A CA whose ports go up to `port`.
const fn ca(port: u8) -> Smi {
    Smi {
        is_switch: false,
        ports: port,
    }
}

/// What our own software sends from `port`, requests and responses alike. An SMP with a LID-routed part at our side
/// goes to the wire as it is: the switch at the end of that part begins the directed one.
///
/// # Errors
///
/// The SMP must not be sent; it is unchanged.
pub fn send(mad: &mut Mad, port: u8) -> Result<Way, SmiError> {
    let Some(route) = route_of(mad) else {
        return Ok(Way::Wire);
    };
    let by_lid_first = if route.returning {
        route.dr_dlid
    } else {
        route.dr_slid
    };
    let too_long = usize::from(route.hop_count) > Smp::MAX_HOPS;
    if !by_lid_first.is_permissive() && !too_long {
        return Ok(Way::Wire);
    }
    let step = ca(port).step(&route, None)?;
    let way = match step.turn {
        Turn::Out { port: found } if found != port => return Err(SmiError::Port { found, port }),
        Turn::Out { .. } | Turn::LidRouted { .. } => Way::Wire,
        Turn::Local => Way::Local,
    };
    mad.0[6] = step.hop_pointer;
    Ok(way)
}

/// What came by `port` from the wire. `Ok`: it is for this port's agents.
///
/// # Errors
///
/// The SMP must be dropped without an answer; it is unchanged.
pub fn receive(mad: &mut Mad, port: u8) -> Result<(), SmiError> {
    let Some(route) = route_of(mad) else {
        return Ok(());
    };
    let pointer = route.hop_pointer;
    let step = ca(port).step(&route, Some(port))?;
    if let Some(port) = step.came_by
        && let Some(came_by) = mad.0.get_mut(RETURN_PATH + usize::from(pointer))
    {
        *came_by = port;
    }
    mad.0[6] = step.hop_pointer;
    Ok(())
}

/// Is `mad` for an agent in the firmware (SMA, PMA, the vendor's), if the HCA has such? What is not goes to the
/// agents that registered. infinihost 8.1.
pub fn is_for_firmware(mad: &MadHeader) -> bool {
    let MadHeader { method, .. } = *mad;
    let asks = matches!(method, Method::GET | Method::SET);
    match mad.class {
        MgmtClass::SUBN_LID | MgmtClass::SUBN_DR => {
            (asks || method == Method::TRAP_REPRESS)
                && mad.attribute != AttributeId::SM_INFO
                && mad.attribute.0 < 0xff00
        }
        MgmtClass::PERF | MgmtClass(0x09 | 0x0a) => asks,
        _ => false,
    }
}

/// Did the HCA itself make this MAD? It hands its traps to us as receives from LID 0, to be sent to the subnet
/// manager. infinihost 8.4.
pub fn is_own_trap(mad: &MadHeader, slid: Lid) -> bool {
    mad.method == Method::TRAP && mad.class == MgmtClass::SUBN_LID && slid == Lid::NONE
}

/// Sets the D bit of a directed-route response, whether or not its maker did.
pub fn turn_back(response: &mut Mad) {
    if response.0[1] == MgmtClass::SUBN_DR.0 {
        response.0[4] |= (MadStatus::DIRECTION >> 8) as u8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A directed-route SMP at hop `pointer` of `path`.
    fn smp(pointer: u8, path: &[u8]) -> Mad {
        let mut smp = Smp::directed(Method::GET, AttributeId::NODE_INFO, 0, path).unwrap();
        smp.header.hop_pointer = pointer;
        Mad(smp.to_bytes())
    }

    fn returning(pointer: u8, path: &[u8], back: &[u8]) -> Mad {
        let mut mad = smp(pointer, path);
        turn_back(&mut mad);
        mad.0[193..193 + back.len()].copy_from_slice(back);
        mad
    }

    /// The CA's part of protocols 3.5.4: steps 1, 3, 4, 6.
    #[test]
    fn two_hops_go_as_in_the_worked_example() {
        let mut mad = smp(0, &[1, 7]);
        assert_eq!(send(&mut mad, 1), Ok(Way::Wire));
        assert_eq!(mad.0[6], 1);
        (mad.0[6], mad.0[193]) = (2, 3); // switch A
        assert_eq!(receive(&mut mad, 1), Ok(()));
        assert_eq!((mad.0[6], &mad.0[192..195]), (3, &[0, 3, 1][..]));
        mad.0[3] = 0x81;
        turn_back(&mut mad);
        assert_eq!(mad.0[4], 0x80);
        assert_eq!(send(&mut mad, 1), Ok(Way::Wire));
        assert_eq!(mad.0[6], 2);
        mad.0[6] = 1; // switch A
        assert_eq!(receive(&mut mad, 1), Ok(()));
        assert_eq!(mad.0[6], 0);
    }

    #[test]
    fn a_route_of_no_hops_stays_at_home_both_ways() {
        let mut mad = smp(0, &[]);
        assert_eq!(send(&mut mad, 2), Ok(Way::Local));
        assert_eq!(mad.0[6], 1);
        turn_back(&mut mad);
        assert_eq!(send(&mut mad, 2), Ok(Way::Local));
        assert_eq!(mad.0[6], 0);
    }

    #[test]
    fn a_route_that_leaves_by_another_port_is_not_sent() {
        let (found, port) = (2, 1);
        let error = Err(SmiError::Port { found, port });
        assert_eq!(send(&mut smp(0, &[2, 7]), 1), error);
        assert_eq!(send(&mut returning(3, &[1, 7], &[3, 2]), 1), error);
        assert_eq!(send(&mut returning(3, &[1, 7], &[3, 1]), 1), Ok(Way::Wire));
    }

    #[test]
    fn the_middle_of_a_route_is_nowhere_for_a_channel_adapter() {
        let wrong = |hop_pointer, hop_count| SmiError::HopPointer {
            hop_pointer,
            hop_count,
        };
        assert_eq!(receive(&mut smp(0, &[1, 7]), 1), Err(wrong(0, 2)));
        assert_eq!(receive(&mut smp(1, &[1, 7]), 1), Err(wrong(1, 2)));
        assert_eq!(receive(&mut smp(4, &[1, 7]), 1), Err(wrong(4, 2)));
        assert_eq!(
            receive(&mut returning(2, &[1, 7], &[1, 1]), 1),
            Err(wrong(2, 2))
        );
        assert_eq!(send(&mut smp(1, &[1, 7]), 1), Err(wrong(1, 2)));
        assert_eq!(
            send(&mut returning(2, &[1, 7], &[1, 1]), 1),
            Err(wrong(2, 2))
        );
    }

    #[test]
    fn more_than_63_hops_are_no_route() {
        let mut mad = smp(0, &[]);
        mad.0[7] = 64;
        let error = SmiError::TooManyHops { hop_count: 64 };
        assert_eq!(send(&mut mad, 1), Err(error));
        assert_eq!(receive(&mut mad, 1), Err(error));
    }

    #[test]
    fn a_lid_routed_part_is_left_to_the_switch_at_its_end() {
        let mut mad = smp(0, &[1, 7]);
        mad.0[32..34].copy_from_slice(&[0, 9]); // DrSLID
        let before = mad;
        assert_eq!(send(&mut mad, 1), Ok(Way::Wire));
        assert_eq!(mad, before);
        let mut mad = smp(2, &[1, 7]);
        mad.0[34..36].copy_from_slice(&[0, 9]); // DrDLID
        let error = SmiError::NotASwitch { lid: Lid(9) };
        assert_eq!(receive(&mut mad, 1), Err(error));
        (mad.0[6], mad.0[3]) = (3, 0x81);
        assert_eq!(receive(&mut mad, 1), Ok(()), "end of the LID-routed part");
        turn_back(&mut mad);
        assert_eq!(send(&mut mad, 1), Ok(Way::Wire));
        assert_eq!(mad.0[6], 3, "the switch begins the way back");
    }

    /// infinihost 8.1.
    #[test]
    fn the_firmware_gets_what_the_table_gives_it() {
        let is = |class, method, attribute| {
            is_for_firmware(&MadHeader {
                class: MgmtClass(class),
                method: Method(method),
                attribute: AttributeId(attribute),
                ..MadHeader::default()
            })
        };
        for class in [0x01, 0x81] {
            assert!(is(class, 1, 0x11) && is(class, 2, 0x15) && is(class, 7, 2));
            assert!(!is(class, 5, 2) && !is(class, 0x81, 0x11) && !is(class, 0x83, 2));
            assert!(!is(class, 1, 0x20) && !is(class, 1, 0xff90));
        }
        for class in [0x04, 0x09, 0x0a] {
            assert!(is(class, 1, 0x12) && is(class, 2, 0x12));
            assert!(!is(class, 7, 2) && !is(class, 0x81, 0x12));
        }
        assert!(!is(0x03, 1, 0x35) && !is(0x07, 3, 0x10) && !is(0x06, 1, 1));
    }

    proptest! {
        #[test]
        fn an_smp_that_is_discarded_is_unchanged_and_one_that_is_not_changes_little(
            pointer in 0..66_u8, count in 0..66_u8, back: bool, port in 1..3_u8,
            slid in prop_oneof![3 => Just(0xffff_u16), 1 => any::<u16>()],
            dlid in prop_oneof![3 => Just(0xffff_u16), 1 => any::<u16>()],
            path in proptest::collection::vec(1..3_u8, 128),
            sends: bool,
        ) {
            let mut mad = smp(pointer, &[]);
            mad.0[7] = count;
            mad.0[32..34].copy_from_slice(&slid.to_be_bytes());
            mad.0[34..36].copy_from_slice(&dlid.to_be_bytes());
            mad.0[128..].copy_from_slice(&path);
            if back {
                turn_back(&mut mad);
            }
            let before = mad;
            let went = if sends {
                send(&mut mad, port).is_ok()
            } else {
                receive(&mut mad, port).is_ok()
            };
            if !went {
                prop_assert_eq!(mad, before);
            }
            let mut same = mad;
            same.0[6] = before.0[6];
            let at = 192 + usize::from(pointer);
            if !sends && !back && at < 256 {
                same.0[at] = before.0[at];
            }
            prop_assert_eq!(same, before, "hop pointer and return path alone");
            prop_assert!(count <= 63 || !went);
        }

        #[test]
        fn a_request_finds_its_way_and_the_answer_finds_it_back(
            path in proptest::collection::vec(1..37_u8, 1..63), back in 1..37_u8,
            ports in proptest::collection::vec(1..37_u8, 63),
        ) {
            let mut path = path;
            path[0] = 1;
            let hops = path.len();
            let mut mad = smp(0, &path);
            prop_assert_eq!(send(&mut mad, 1), Ok(Way::Wire));
            let switches = || ports.iter().enumerate().take(hops).skip(1);
            for (hop, port) in switches() {
                prop_assert_eq!(usize::from(mad.0[6]), hop);
                mad.0[192 + hop] = *port;
                mad.0[6] += 1;
            }
            prop_assert_eq!(receive(&mut mad, back), Ok(()));
            turn_back(&mut mad);
            prop_assert_eq!(send(&mut mad, back), Ok(Way::Wire));
            for (hop, port) in switches().rev() {
                mad.0[6] -= 1;
                prop_assert_eq!(mad.0[192 + hop], *port);
            }
            prop_assert_eq!(receive(&mut mad, 1), Ok(()));
            prop_assert_eq!(mad.0[6], 0);
        }
    }
}
