//! Neighbour solicitation and advertisement (RFC 4861), with the link-layer address option of InfiniBand.
//!
//! As these are what an interface says of itself, they are whole packets here, IPv6 header and all. protocols 6.2.

use super::ip::{IPV6_HEADER, IpPacket, icmpv6_checksum, protocol, write_ipv6_header};
use core::net::{IpAddr, Ipv6Addr};
use core_ib::wire::ipoib::{LinkAddress, NdOption, NdOptionKind};
use zerocopy::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// Only a neighbour can send a packet that arrives with it.
const HOP_LIMIT: u8 = 255;

const ROUTER: u32 = 1 << 31;
const SOLICITED: u32 = 1 << 30;
const OVERRIDE: u32 = 1 << 29;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct NdView {
    kind: u8,
    code: u8,
    checksum: U16,
    flags: U32,
    target: [u8; 16],
}

/// What a message says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NdKind {
    /// Who has the target?
    Solicitation,
    /// The target is there.
    Advertisement {
        /// It is a router.
        router: bool,
        /// This is the answer to a solicitation.
        solicited: bool,
        /// What is known of the target is to be replaced.
        overrides: bool,
    },
}

/// A solicitation or advertisement, with the addresses of its packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NdMessage {
    /// Who says it; unspecified while it looks for others that have its address.
    pub source: Ipv6Addr,
    /// To whom.
    pub destination: Ipv6Addr,
    /// What.
    pub kind: NdKind,
    /// Of whom.
    pub target: Ipv6Addr,
    /// Link-layer address of the source (solicitation) or the target (advertisement).
    pub address: Option<LinkAddress>,
}

/// The group that a node of address `address` listens to. RFC 4291, 2.7.1.
pub(super) const fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., x, y, z] = address.octets();
    Ipv6Addr::from_octets([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, x, y, z])
}

impl NdMessage {
    /// Is this packet a solicitation or an advertisement, readable or not?
    pub(super) fn is_one(packet: &IpPacket<'_>) -> bool {
        let kind = packet.payload.first();
        packet.protocol == protocol::ICMPV6 && matches!(kind, Some(&(SOLICITATION | ADVERTISEMENT)))
    }

    /// Reads a message; `None` if it breaks a rule of RFC 4861, 7.1.
    pub(super) fn read(packet: &IpPacket<'_>) -> Option<Self> {
        let (IpAddr::V6(source), IpAddr::V6(destination)) = (packet.source, packet.destination)
        else {
            return None;
        };
        let (view, mut options) = NdView::ref_from_prefix(packet.payload).ok()?;
        let whole = icmpv6_checksum(source, destination, packet.payload) == 0;
        let target = Ipv6Addr::from(view.target);
        if !whole || packet.hop_limit != HOP_LIMIT || view.code != 0 || target.is_multicast() {
            return None;
        }
        let (kind, of) = if view.kind == SOLICITATION {
            (NdKind::Solicitation, NdOptionKind::Source)
        } else {
            let flags = view.flags.get();
            let kind = NdKind::Advertisement {
                router: flags & ROUTER != 0,
                solicited: flags & SOLICITED != 0,
                overrides: flags & OVERRIDE != 0,
            };
            (kind, NdOptionKind::Target)
        };
        let mut address = None;
        while let Some(&[_, units]) = options.first_chunk() {
            if let Ok((option, _)) = NdOption::read(options)
                && option.kind == of
            {
                address = Some(option.address);
            }
            let len = usize::from(units) * 8;
            options = options.get(len..).filter(|_| len > 0)?;
        }
        let sane = match kind {
            NdKind::Solicitation => {
                let looks_for_itself = source.is_unspecified();
                !looks_for_itself || (address.is_none() && destination == solicited_node(target))
            }
            NdKind::Advertisement { solicited, .. } => !(solicited && destination.is_multicast()),
        };
        sane.then_some(Self {
            source,
            destination,
            kind,
            target,
            address,
        })
    }

    /// Bytes of the packet.
    pub(super) const fn len(&self) -> usize {
        let option = if self.address.is_some() {
            NdOption::LEN
        } else {
            0
        };
        IPV6_HEADER + size_of::<NdView>() + option
    }

    /// Writes the packet; `None` without room for it.
    pub(super) fn write(&self, out: &mut [u8]) -> Option<()> {
        let payload_len = self.len().checked_sub(IPV6_HEADER)? as u16;
        let message = write_ipv6_header(
            out,
            self.source,
            self.destination,
            protocol::ICMPV6,
            HOP_LIMIT,
            payload_len,
        )?;
        let (kind, flags, of) = match self.kind {
            NdKind::Solicitation => (SOLICITATION, 0, NdOptionKind::Source),
            NdKind::Advertisement {
                router,
                solicited,
                overrides,
            } => {
                let flag = |set, bit| if set { bit } else { 0 };
                let flags =
                    flag(router, ROUTER) | flag(solicited, SOLICITED) | flag(overrides, OVERRIDE);
                (ADVERTISEMENT, flags, NdOptionKind::Target)
            }
        };
        let view = NdView {
            kind,
            code: 0,
            checksum: U16::ZERO,
            flags: U32::new(flags),
            target: self.target.octets(),
        };
        let (front, rest) = message.split_at_mut_checked(size_of::<NdView>())?;
        front.copy_from_slice(view.as_bytes());
        if let Some(address) = self.address {
            NdOption { kind: of, address }.write(rest).ok()?;
        }
        let sum = icmpv6_checksum(self.source, self.destination, message);
        message.get_mut(2..4)?.copy_from_slice(&sum.to_be_bytes());
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core_ib::{Gid, Guid, Qpn};
    use proptest::prelude::*;
    use std::vec;
    use std::vec::Vec;

    fn written(message: &NdMessage) -> Vec<u8> {
        let mut bytes = vec![0xee; message.len()];
        message.write(&mut bytes).unwrap();
        bytes
    }

    fn read(bytes: &[u8]) -> Option<NdMessage> {
        NdMessage::read(&IpPacket::read(bytes)?)
    }

    fn some_address() -> impl Strategy<Value = Ipv6Addr> {
        any::<u64>().prop_map(|low| Ipv6Addr::from_bits(0xfe80 << 112 | u128::from(low)))
    }

    fn message() -> impl Strategy<Value = NdMessage> {
        let link =
            prop::option::of(
                (any::<u32>(), any::<u64>()).prop_map(|(qpn, guid)| LinkAddress {
                    rc: false,
                    uc: false,
                    qpn: Qpn::new(qpn),
                    gid: Gid::unicast(Gid::DEFAULT_PREFIX, Guid(guid)),
                }),
            );
        let kind = prop_oneof![
            Just(NdKind::Solicitation),
            any::<[bool; 3]>().prop_map(|[router, solicited, overrides]| NdKind::Advertisement {
                router,
                solicited,
                overrides,
            }),
        ];
        (some_address(), some_address(), kind, some_address(), link).prop_map(
            |(source, destination, kind, target, address)| NdMessage {
                source,
                destination,
                kind,
                target,
                address,
            },
        )
    }

    #[test]
    fn a_solicitation_lies_as_the_rfc_says() {
        let source = "fe80::1".parse().unwrap();
        let target: Ipv6Addr = "fe80::202:c903:0:1002".parse().unwrap();
        let bytes = written(&NdMessage {
            source,
            destination: solicited_node(target),
            kind: NdKind::Solicitation,
            target,
            address: Some(LinkAddress {
                rc: false,
                uc: false,
                qpn: Qpn::new(0x404),
                gid: Gid::unicast(Gid::DEFAULT_PREFIX, Guid(7)),
            }),
        });
        assert_eq!(bytes.len(), 40 + 24 + 24);
        assert_eq!(bytes[..8], [0x60, 0, 0, 0, 0, 48, 58, 255]);
        let group: Ipv6Addr = "ff02::1:ff00:1002".parse().unwrap();
        assert_eq!(bytes[24..40], group.octets());
        assert_eq!(bytes[40..42], [135, 0]);
        assert_eq!(bytes[44..48], [0; 4]);
        assert_eq!(bytes[48..64], target.octets());
        assert_eq!(bytes[64..74], [1, 3, 0, 0, 0, 0, 4, 4, 0xfe, 0x80]);
        // The checksum by hand: pseudo-header and message in 16-bit words, without the checksum.
        let words = [
            0xfe80, 0x0001, 0xff02, 0x0001, 0xff00, 0x1002, 48, 58, // pseudo-header
            0x8700, 0xfe80, 0x0202, 0xc903, 0x1002, // type, target
            0x0103, 0x0404, 0xfe80, 0x0007_u32,
        ];
        let sum: u32 = words.iter().sum();
        let folded = (sum & 0xffff) + (sum >> 16);
        assert_eq!(bytes[42..44], (!(folded as u16)).to_be_bytes());
    }

    #[test]
    fn a_message_from_beyond_the_link_is_not_believed() {
        let source = "fe80::1".parse().unwrap();
        let target = "fe80::2".parse().unwrap();
        let message = NdMessage {
            source,
            destination: solicited_node(target),
            kind: NdKind::Solicitation,
            target,
            address: None,
        };
        let mut bytes = written(&message);
        assert_eq!(read(&bytes), Some(message));
        bytes[7] = 254;
        assert_eq!(read(&bytes), None);
    }

    #[test]
    fn who_looks_for_its_own_address_gives_no_other() {
        let target = "fe80::2".parse().unwrap();
        let mut message = NdMessage {
            source: Ipv6Addr::UNSPECIFIED,
            destination: solicited_node(target),
            kind: NdKind::Solicitation,
            target,
            address: None,
        };
        assert_eq!(read(&written(&message)), Some(message));
        message.address = Some(LinkAddress::default());
        assert_eq!(read(&written(&message)), None);
        message.address = None;
        message.destination = target;
        assert_eq!(read(&written(&message)), None);
    }

    proptest! {
        #[test]
        fn what_is_written_reads_the_same(message in message()) {
            prop_assert_eq!(read(&written(&message)), Some(message));
        }

        #[test]
        fn one_flipped_bit_and_it_is_not_believed(message in message(), bit in any::<prop::sample::Index>()) {
            let mut bytes = written(&message);
            let bit = bit.index((bytes.len() - 8) * 8) + 64; // from the addresses on
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(read(&bytes), None);
        }

        #[test]
        fn no_bytes_whatever_upset_the_reader(
            message in message(), cut in any::<prop::sample::Index>(), tail in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            let mut bytes = written(&message);
            bytes.truncate(cut.index(bytes.len()));
            bytes.extend(tail);
            let _ = read(&bytes);
            if let Some(IpPacket { source, destination, .. }) = IpPacket::read(&bytes) {
                let packet = IpPacket { source, destination, protocol: 58, hop_limit: 255, payload: &bytes };
                let _ = NdMessage::read(&packet);
            }
        }
    }
}
