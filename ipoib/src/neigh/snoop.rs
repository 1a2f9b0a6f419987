//! What the host's IP stack says of its multicast groups in the packets that it sends: IGMP (RFC 1112, 2236, 3376) and
//! MLD (RFC 2710, 3810). An IP stack that thinks of a raw IP interface has no other way to tell.

use super::ip::{IpPacket, protocol};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Calls `each` with every group that `packet` joins (`true`) or leaves.
pub(super) fn memberships(packet: &IpPacket<'_>, mut each: impl FnMut(IpAddr, bool)) {
    let message = packet.payload;
    match (packet.protocol, message.first()) {
        (protocol::IGMP, Some(&kind)) => {
            let single = |at: usize| Some(Ipv4Addr::from(*message.get(at..)?.first_chunk::<4>()?));
            match kind {
                0x12 | 0x16 => tell(single(4), true, &mut each),
                0x17 => tell(single(4), false, &mut each),
                0x22 => records::<4>(message, &mut each),
                _ => {}
            }
        }
        (protocol::ICMPV6, Some(&kind)) => {
            let single = |at: usize| Some(Ipv6Addr::from(*message.get(at..)?.first_chunk::<16>()?));
            match kind {
                131 => tell(single(8), true, &mut each),
                132 => tell(single(8), false, &mut each),
                143 => records::<16>(message, &mut each),
                _ => {}
            }
        }
        _ => {}
    }
}

fn tell(group: Option<impl Into<IpAddr>>, joins: bool, each: &mut impl FnMut(IpAddr, bool)) {
    if let Some(group) = group.map(Into::into).filter(IpAddr::is_multicast) {
        each(group, joins);
    }
}

/// The records of a report of IGMPv3 or MLDv2, which differ in the length `N` of an address.
fn records<const N: usize>(message: &[u8], each: &mut impl FnMut(IpAddr, bool))
where
    [u8; N]: Into<IpAddr>,
{
    let Some((&[.., high, low], mut rest)) = message.split_first_chunk::<8>() else {
        return;
    };
    for _ in 0..u16::from_be_bytes([high, low]) {
        let Some((&[kind, auxiliary, high, low], after)) = rest.split_first_chunk() else {
            return;
        };
        let Some((group, after)) = after.split_first_chunk::<N>() else {
            return;
        };
        let sources = usize::from(u16::from_be_bytes([high, low]));
        match (kind, sources) {
            (2 | 4, _) | (1 | 3 | 5, 1..) => tell(Some(*group), true, each), // anything of it is wanted
            (1 | 3, 0) => tell(Some(*group), false, each),
            _ => {} // blocking some sources says nothing about the rest
        }
        let Some(after) = after.get(sources * N + usize::from(auxiliary) * 4..) else {
            return;
        };
        rest = after;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec;
    use std::vec::Vec;

    fn seen(protocol: u8, payload: &[u8]) -> Vec<(IpAddr, bool)> {
        let packet = IpPacket {
            source: IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            destination: IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            protocol,
            hop_limit: 1,
            payload,
        };
        let mut all = Vec::new();
        memberships(&packet, |group, joins| all.push((group, joins)));
        all
    }

    fn v4(last: u8) -> IpAddr {
        Ipv4Addr::new(224, 1, 2, last).into()
    }

    #[test]
    fn igmp_versions_1_and_2_join_and_leave_one_group() {
        let message = |kind| [kind, 0, 0, 0, 224, 1, 2, 3];
        assert_eq!(seen(2, &message(0x12)), [(v4(3), true)]);
        assert_eq!(seen(2, &message(0x16)), [(v4(3), true)]);
        assert_eq!(seen(2, &message(0x17)), [(v4(3), false)]);
        assert_eq!(seen(2, &message(0x11)), []); // a query
        assert_eq!(seen(2, &[0x16, 0, 0, 0, 10, 0, 0, 1]), []); // no group
        assert_eq!(seen(2, &[0x16, 0, 0, 0, 224]), []);
    }

    #[test]
    fn igmp_version_3_says_what_is_excluded() {
        let mut message = vec![0x22, 0, 0, 0, 0, 0, 0, 5];
        message.extend([4, 0, 0, 0, 224, 1, 2, 1]); // to exclude nothing
        message.extend([3, 0, 0, 0, 224, 1, 2, 2]); // to include nothing
        message.extend([5, 1, 0, 1, 224, 1, 2, 3, 10, 0, 0, 1, 9, 9, 9, 9]); // a source; auxiliary data
        message.extend([6, 0, 0, 1, 224, 1, 2, 4, 10, 0, 0, 1]); // not a source
        message.extend([2, 0, 0, 0, 224, 1, 2, 5]);
        let expected = [(v4(1), true), (v4(2), false), (v4(3), true), (v4(5), true)];
        assert_eq!(seen(2, &message), expected);
        message.truncate(message.len() - 1);
        assert_eq!(seen(2, &message), expected[..3]);
    }

    #[test]
    fn mld_of_both_versions_is_understood() {
        let group: Ipv6Addr = "ff02::fb".parse().unwrap();
        for (kind, joins) in [(131, true), (132, false)] {
            let mut message = vec![kind, 0, 0, 0, 0, 0, 0, 0];
            message.extend(group.octets());
            assert_eq!(seen(58, &message), [(group.into(), joins)]);
        }
        let mut message = vec![143, 0, 0, 0, 0, 0, 0, 1, 4, 0, 0, 0];
        message.extend(group.octets());
        assert_eq!(seen(58, &message), [(group.into(), true)]);
    }

    proptest! {
        #[test]
        fn nothing_but_groups_is_ever_told(
            mut payload in prop::collection::vec(any::<u8>(), 0..60),
            kind in prop::sample::select(vec![0x16_u8, 0x22, 131, 143]),
            protocol in prop::sample::select(vec![2_u8, 58]),
        ) {
            if let Some(first) = payload.first_mut() {
                *first = kind;
            }
            for (group, _) in seen(protocol, &payload) {
                prop_assert!(group.is_multicast());
            }
        }
    }
}
