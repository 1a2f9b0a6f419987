//! As much of IP as it takes to know where a packet goes and what is in it: headers of IPv4 (RFC 791) and IPv6
//! (RFC 8200), and the Internet checksum (RFC 1071).

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use zerocopy::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Numbers of protocols.
pub(super) mod protocol {
    pub(in super::super) const HOP_BY_HOP: u8 = 0;
    pub(in super::super) const IGMP: u8 = 2;
    pub(in super::super) const ICMPV6: u8 = 58;
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Ipv4View {
    version_ihl: u8,
    tos: u8,
    total_len: U16,
    id: U16,
    fragment: U16,
    ttl: u8,
    protocol: u8,
    checksum: U16,
    source: [u8; 4],
    destination: [u8; 4],
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Ipv6View {
    version_class_flow: U32,
    payload_len: U16,
    next_header: u8,
    hop_limit: u8,
    source: [u8; 16],
    destination: [u8; 16],
}

/// Bytes of an IPv6 header.
pub(super) const IPV6_HEADER: usize = size_of::<Ipv6View>();

/// What a packet says at its front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IpPacket<'a> {
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
    /// Of the payload.
    pub(super) protocol: u8,
    pub(super) hop_limit: u8,
    /// Behind the header, and behind a hop-by-hop header of IPv6. Empty in a fragment that is not the first.
    pub(super) payload: &'a [u8],
}

impl<'a> IpPacket<'a> {
    /// Reads the header of either version; `None` if it is none, or longer than `bytes`. The header's checksum is the IP
    /// stack's business.
    pub(super) fn read(bytes: &'a [u8]) -> Option<Self> {
        match bytes.first()? >> 4 {
            4 => Self::read_v4(bytes),
            6 => Self::read_v6(bytes),
            _ => None,
        }
    }

    fn read_v4(bytes: &'a [u8]) -> Option<Self> {
        let (view, _) = Ipv4View::ref_from_prefix(bytes).ok()?;
        let header = usize::from(view.version_ihl & 0x0f) * 4;
        let payload = bytes.get(header..usize::from(view.total_len.get()))?;
        let later_fragment = view.fragment.get() & 0x1fff != 0;
        (header >= size_of::<Ipv4View>()).then_some(Self {
            source: Ipv4Addr::from(view.source).into(),
            destination: Ipv4Addr::from(view.destination).into(),
            protocol: view.protocol,
            hop_limit: view.ttl,
            payload: if later_fragment { &[] } else { payload },
        })
    }

    fn read_v6(bytes: &'a [u8]) -> Option<Self> {
        let (view, rest) = Ipv6View::ref_from_prefix(bytes).ok()?;
        let mut payload = rest.get(..usize::from(view.payload_len.get()))?;
        let mut protocol = view.next_header;
        if protocol == protocol::HOP_BY_HOP {
            // Next header, length in units of 8 bytes beyond the first 8.
            let [next, units] = *payload.first_chunk()?;
            payload = payload.get((usize::from(units) + 1) * 8..)?;
            protocol = next;
        }
        Some(Self {
            source: Ipv6Addr::from(view.source).into(),
            destination: Ipv6Addr::from(view.destination).into(),
            protocol,
            hop_limit: view.hop_limit,
            payload,
        })
    }
}

/// Writes an IPv6 header to the front of `out`; gives the room behind it. `None` without room for it and the payload.
pub(super) fn write_ipv6_header(
    out: &mut [u8],
    source: Ipv6Addr,
    destination: Ipv6Addr,
    next_header: u8,
    hop_limit: u8,
    payload_len: u16,
) -> Option<&mut [u8]> {
    let view = Ipv6View {
        version_class_flow: U32::new(6 << 28),
        payload_len: U16::new(payload_len),
        next_header,
        hop_limit,
        source: source.octets(),
        destination: destination.octets(),
    };
    let (front, rest) = out.split_at_mut_checked(IPV6_HEADER)?;
    front.copy_from_slice(view.as_bytes());
    rest.get_mut(..payload_len.into())
}

/// The Internet checksum over some pieces, of which all but the last are of even length.
pub(super) fn checksum(pieces: &[&[u8]]) -> u16 {
    let mut sum = 0_u32;
    for piece in pieces {
        let (pairs, odd) = piece.as_chunks::<2>();
        for pair in pairs {
            sum = sum.wrapping_add(u16::from_be_bytes(*pair).into()); // 2^16 pairs at most
        }
        if let [last] = odd {
            sum = sum.wrapping_add(u32::from(*last) << 8);
        }
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// The checksum of an ICMPv6 message, pseudo-header included; 0 if the message has the right one in it.
pub(super) fn icmpv6_checksum(source: Ipv6Addr, destination: Ipv6Addr, message: &[u8]) -> u16 {
    let len = (message.len() as u32).to_be_bytes();
    checksum(&[
        &source.octets(),
        &destination.octets(),
        &len,
        &[0, 0, 0, protocol::ICMPV6],
        message,
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_checksum_is_that_of_rfc_1071() {
        // RFC 1071, 3: the sum of these is ddf2.
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(checksum(&[&bytes]), !0xddf2);
        assert_eq!(checksum(&[&bytes[..4], &bytes[4..]]), !0xddf2);
    }

    #[test]
    fn an_ipv4_packet_ends_where_it_says_and_padding_is_not_payload() {
        let mut bytes = [0; 60];
        bytes[..24].copy_from_slice(&[
            0x46, 0, 0, 32, 0, 0, 0, 0, 1, 2, 0, 0, 10, 0, 0, 1, 224, 0, 0, 22, 0x94, 4, 0, 0,
        ]);
        let packet = IpPacket::read(&bytes).unwrap();
        assert_eq!(packet.destination, IpAddr::V4(Ipv4Addr::new(224, 0, 0, 22)));
        assert_eq!((packet.protocol, packet.payload.len()), (protocol::IGMP, 8));
        bytes[0] = 0x44; // a header shorter than a header
        assert_eq!(IpPacket::read(&bytes), None);
        bytes[0] = 0x46;
        bytes[3] = 61; // more than there is
        assert_eq!(IpPacket::read(&bytes), None);
    }

    #[test]
    fn a_hop_by_hop_header_is_stepped_over() {
        let mut bytes = [0; 56];
        bytes[..8].copy_from_slice(&[0x60, 0, 0, 0, 0, 16, 0, 1]);
        bytes[40..48].copy_from_slice(&[58, 0, 5, 2, 0, 0, 1, 0]);
        bytes[48] = 143;
        let packet = IpPacket::read(&bytes).unwrap();
        assert_eq!((packet.protocol, packet.payload.first()), (58, Some(&143)));
    }

    proptest! {
        #[test]
        fn no_bytes_whatever_upset_the_reader(
            mut bytes in prop::collection::vec(any::<u8>(), 0..80), version in prop_oneof![Just(0x45_u8), Just(0x60), any::<u8>()],
        ) {
            if let Some(first) = bytes.first_mut() {
                *first = version;
            }
            if let Some(packet) = IpPacket::read(&bytes) {
                prop_assert!(packet.payload.len() < bytes.len());
            }
        }
    }
}
