//! IP over InfiniBand: the frame header, the link-layer address, ARP, the neighbour discovery option, and multicast.
//!
//! An IPoIB frame is the payload of a UD SEND (or a message of a connected QP). Who sent it stands in the packet's headers,
//! not in the frame. Layouts: protocols 6.1 to 6.3, RFC 4391.

use super::WireError;
use super::packet::HeaderView;
use crate::types::{Gid, Guid, PKey, Qpn};
use core::fmt;
use core::net::{Ipv4Addr, Ipv6Addr};
use static_assertions::const_assert_eq;
use zerocopy::big_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Kind of a datagram. An open set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EtherType(pub u16);

impl EtherType {
    /// IPv4.
    pub const IPV4: Self = Self(0x0800);
    /// ARP.
    pub const ARP: Self = Self(0x0806);
    /// RARP.
    pub const RARP: Self = Self(0x8035);
    /// IPv6.
    pub const IPV6: Self = Self(0x86dd);
}

/// The 4 bytes before a datagram, as they lie there.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct EncapsulationView {
    ether_type: U16,
    _reserved: U16,
}
const_assert_eq!(size_of::<EncapsulationView>(), 4);

impl HeaderView for EncapsulationView {
    const NAME: &'static str = "IPoIB header";
}

/// The header of a frame; its reserved half is ignored, and written as zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encapsulation {
    /// What the datagram is.
    pub ether_type: EtherType,
}

impl Encapsulation {
    /// Bytes that the header takes.
    pub const LEN: usize = 4;

    /// Splits a frame into its header and the datagram.
    pub fn read(frame: &[u8]) -> Result<(Self, &[u8]), WireError> {
        let (view, datagram) = EncapsulationView::split(frame)?;
        let ether_type = EtherType(view.ether_type.get());
        Ok((Self { ether_type }, datagram))
    }

    /// Writes the header to the front of `out`; gives back the room behind it.
    pub fn write<'o>(&self, out: &'o mut [u8]) -> Result<&'o mut [u8], WireError> {
        let view = EncapsulationView {
            ether_type: U16::new(self.ether_type.0),
            _reserved: U16::ZERO,
        };
        view.put(out)
    }
}

/// A link-layer address as it lies in ARP and in options.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct LinkAddressView {
    flags: u8,
    qpn: [u8; 3],
    gid: [u8; 16],
}
const_assert_eq!(size_of::<LinkAddressView>(), LinkAddress::LEN);

impl HeaderView for LinkAddressView {
    const NAME: &'static str = "IPoIB link-layer address";
}

/// The link-layer address of an interface: what ARP resolves to. A path to the GID is still to be found, and changes
/// while the address stays. Flags whose meaning is not known are dropped on reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LinkAddress {
    /// Connected mode over RC is spoken.
    pub rc: bool,
    /// Connected mode over UC is spoken.
    pub uc: bool,
    /// The UD QP.
    pub qpn: Qpn,
    /// The port, or the group.
    pub gid: Gid,
}

impl LinkAddress {
    /// Bytes that an address takes.
    pub const LEN: usize = 20;

    /// The address of a multicast group. protocols 6.3.
    pub const fn multicast(mgid: Gid) -> Self {
        Self {
            rc: false,
            uc: false,
            qpn: Qpn::MULTICAST,
            gid: mgid,
        }
    }

    /// Reads the address at the front of `bytes`; gives back what follows it.
    pub fn read(bytes: &[u8]) -> Result<(Self, &[u8]), WireError> {
        let (view, rest) = LinkAddressView::split(bytes)?;
        Ok((Self::from(view), rest))
    }

    /// Writes the address to the front of `out`; gives back the room behind it.
    pub fn write<'o>(&self, out: &'o mut [u8]) -> Result<&'o mut [u8], WireError> {
        LinkAddressView::from(self).put(out)
    }

    /// The address as bytes.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        zerocopy::transmute!(LinkAddressView::from(self))
    }

    /// From exactly 20 bytes.
    pub fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        let view: LinkAddressView = zerocopy::transmute!(bytes);
        Self::from(&view)
    }
}

impl From<&LinkAddressView> for LinkAddress {
    fn from(view: &LinkAddressView) -> Self {
        Self {
            rc: view.flags & 0x80 != 0,
            uc: view.flags & 0x40 != 0,
            qpn: Qpn::from_wire(view.qpn),
            gid: Gid(view.gid),
        }
    }
}

impl From<&LinkAddress> for LinkAddressView {
    fn from(address: &LinkAddress) -> Self {
        Self {
            flags: u8::from(address.rc) << 7 | u8::from(address.uc) << 6,
            qpn: address.qpn.to_wire(),
            gid: address.gid.0,
        }
    }
}

impl fmt::Display for LinkAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QP {} at {}", self.qpn, self.gid)
    }
}

/// What an ARP packet does. An open set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ArpOperation(pub u16);

impl ArpOperation {
    /// Who has the target's address?
    pub const REQUEST: Self = Self(1);
    /// The sender has its address.
    pub const REPLY: Self = Self(2);
}

/// An ARP packet as it lies in a frame.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ArpView {
    hardware: U16,
    protocol: U16,
    hardware_len: u8,
    protocol_len: u8,
    operation: U16,
    sender: LinkAddressView,
    sender_ip: [u8; 4],
    target: LinkAddressView,
    target_ip: [u8; 4],
}
const_assert_eq!(size_of::<ArpView>(), Arp::LEN);
const_assert_eq!(core::mem::offset_of!(ArpView, target_ip), 52);

impl HeaderView for ArpView {
    const NAME: &'static str = "ARP";
}

/// ARP between IPv4 and InfiniBand addresses (RFC 826).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arp {
    /// Request or reply.
    pub operation: ArpOperation,
    /// Link-layer address of the sender.
    pub sender: LinkAddress,
    /// IPv4 address of the sender.
    pub sender_ip: Ipv4Addr,
    /// Link-layer address of the target; all zero in a request.
    pub target: LinkAddress,
    /// IPv4 address of the target.
    pub target_ip: Ipv4Addr,
}

impl Arp {
    /// Bytes of the packet, without the frame's header.
    pub const LEN: usize = 56;
    /// Hardware type of InfiniBand.
    pub const HARDWARE: u16 = 32;

    /// Reads the packet at the front of `datagram`; gives back what follows it. Other hardware than InfiniBand and
    /// other protocols than IPv4 are errors.
    pub fn read(datagram: &[u8]) -> Result<(Self, &[u8]), WireError> {
        let (view, rest) = ArpView::split(datagram)?;
        Ok((Self::try_from(view)?, rest))
    }

    /// Writes the packet to the front of `out`; gives back the room behind it.
    pub fn write<'o>(&self, out: &'o mut [u8]) -> Result<&'o mut [u8], WireError> {
        ArpView::from(self).put(out)
    }
}

impl TryFrom<&ArpView> for Arp {
    type Error = WireError;

    fn try_from(view: &ArpView) -> Result<Self, WireError> {
        let fixed = [
            ("hardware type", view.hardware.get(), Self::HARDWARE),
            ("protocol", view.protocol.get(), EtherType::IPV4.0),
            ("hardware length", view.hardware_len.into(), 20),
            ("protocol length", view.protocol_len.into(), 4),
        ];
        for (field, found, expected) in fixed {
            if found != expected {
                return Err(WireError::Field {
                    header: ArpView::NAME,
                    field,
                    found: found.into(),
                });
            }
        }
        Ok(Self {
            operation: ArpOperation(view.operation.get()),
            sender: LinkAddress::from(&view.sender),
            sender_ip: view.sender_ip.into(),
            target: LinkAddress::from(&view.target),
            target_ip: view.target_ip.into(),
        })
    }
}

impl From<&Arp> for ArpView {
    fn from(arp: &Arp) -> Self {
        Self {
            hardware: U16::new(Arp::HARDWARE),
            protocol: U16::new(EtherType::IPV4.0),
            hardware_len: 20,
            protocol_len: 4,
            operation: U16::new(arp.operation.0),
            sender: LinkAddressView::from(&arp.sender),
            sender_ip: arp.sender_ip.octets(),
            target: LinkAddressView::from(&arp.target),
            target_ip: arp.target_ip.octets(),
        }
    }
}

/// Which address a neighbour discovery option gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum NdOptionKind {
    /// That of the sender of the message.
    Source = 1,
    /// That of the message's target.
    Target = 2,
}

/// The link-layer address option as it lies in a message of IPv6 neighbour discovery.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct NdOptionView {
    kind: u8,
    len: u8,
    _padding: U16,
    address: LinkAddressView,
}
const_assert_eq!(size_of::<NdOptionView>(), NdOption::LEN);

impl HeaderView for NdOptionView {
    const NAME: &'static str = "link-layer address option";
}

/// A link-layer address in a message of IPv6 neighbour discovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NdOption {
    /// Whose.
    pub kind: NdOptionKind,
    /// The address.
    pub address: LinkAddress,
}

impl NdOption {
    /// Bytes that the option takes: three units of 8.
    pub const LEN: usize = 24;

    /// Reads the option at the front of `bytes`; gives back what follows it. Another option is an error.
    pub fn read(bytes: &[u8]) -> Result<(Self, &[u8]), WireError> {
        let (view, rest) = NdOptionView::split(bytes)?;
        let wrong = |field, found: u8| WireError::Field {
            header: NdOptionView::NAME,
            field,
            found: found.into(),
        };
        let kind = match view.kind {
            1 => NdOptionKind::Source,
            2 => NdOptionKind::Target,
            other => return Err(wrong("type", other)),
        };
        if view.len != 3 {
            return Err(wrong("length", view.len));
        }
        let address = LinkAddress::from(&view.address);
        Ok((Self { kind, address }, rest))
    }

    /// Writes the option to the front of `out`; gives back the room behind it.
    pub fn write<'o>(&self, out: &'o mut [u8]) -> Result<&'o mut [u8], WireError> {
        let view = NdOptionView {
            kind: self.kind as u8,
            len: 3,
            _padding: U16::ZERO,
            address: LinkAddressView::from(&self.address),
        };
        view.put(out)
    }
}

/// Scope of a multicast group, 4 bits. protocols 1.3.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Scope(u8);

impl Scope {
    /// The link, and the usual scope of an IPoIB broadcast group.
    pub const LINK_LOCAL: Self = Self(2);
    /// The site.
    pub const SITE_LOCAL: Self = Self(5);
    /// The organisation.
    pub const ORGANISATION_LOCAL: Self = Self(8);
    /// Everywhere.
    pub const GLOBAL: Self = Self(14);

    /// Keeps the low 4 bits of `value`.
    pub const fn new(value: u8) -> Self {
        Self(value & 0x0f)
    }

    /// That of a multicast GID.
    pub const fn of(mgid: Gid) -> Self {
        let [_, flags_scope, ..] = mgid.0;
        Self::new(flags_scope)
    }

    /// The number.
    pub const fn get(self) -> u8 {
        self.0
    }
}

/// First six bytes of every IPoIB group: transient, `scope`, `signature` of the protocol, partition as full member.
const fn group_head(p_key: PKey, scope: Scope, signature: [u8; 2]) -> [u8; 6] {
    let [high, low] = (p_key.0 | 0x8000).to_be_bytes();
    let [first, second] = signature;
    [0xff, 0x10 | scope.0, first, second, high, low]
}

/// The group that is the IPoIB link of a partition. protocols 6.3, 6.4.
pub const fn broadcast_gid(p_key: PKey, scope: Scope) -> Gid {
    let [a, b, c, d, e, f] = group_head(p_key, scope, [0x40, 0x1b]);
    let ones = 0xff;
    Gid([a, b, c, d, e, f, 0, 0, 0, 0, 0, 0, ones, ones, ones, ones])
}

/// The group of an IPv4 multicast address: its low 28 bits count. For 255.255.255.255 it is the broadcast group; that of
/// a subnet's own broadcast address is [`broadcast_gid`], which the address does not tell.
pub const fn ipv4_multicast_gid(group: Ipv4Addr, p_key: PKey, scope: Scope) -> Gid {
    if group.is_broadcast() {
        return broadcast_gid(p_key, scope);
    }
    let [a, b, c, d, e, f] = group_head(p_key, scope, [0x40, 0x1b]);
    let [w, x, y, z] = group.octets();
    Gid([a, b, c, d, e, f, 0, 0, 0, 0, 0, 0, w & 0x0f, x, y, z])
}

/// The group of an IPv6 multicast address: its low 80 bits count.
pub const fn ipv6_multicast_gid(group: Ipv6Addr, p_key: PKey, scope: Scope) -> Gid {
    let [a, b, c, d, e, f] = group_head(p_key, scope, [0x60, 0x1b]);
    let [.., g, h, i, j, k, l, m, n, o, p] = group.octets();
    Gid([a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p])
}

/// The interface identifier of a port: its GUID with the universal bit set. protocols 6.2.
pub const fn interface_id(port_guid: Guid) -> [u8; 8] {
    (port_guid.0 | 1 << 57).to_be_bytes()
}

/// Lets every reader of this file read `bytes`, which may be anything; see [`super::packet::read_untrusted`].
pub fn read_untrusted(bytes: &[u8]) {
    // Results are looked at, or an optimised build would leave out the reading.
    use core::hint::black_box;
    black_box(NdOption::read(bytes)).ok();
    black_box(Arp::read(bytes)).ok();
    black_box(LinkAddress::read(bytes)).ok();
    if let Ok((_, datagram)) = black_box(Encapsulation::read(bytes)) {
        black_box(Arp::read(datagram)).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn port(guid: u64) -> Gid {
        Gid::unicast(Gid::DEFAULT_PREFIX, Guid(guid))
    }

    #[test]
    fn the_arp_request_of_example_d_reads_and_writes_as_stated() {
        let mut frame = [0; 60];
        frame[..12].copy_from_slice(&[8, 6, 0, 0, 0, 0x20, 8, 0, 0x14, 4, 0, 1]);
        frame[12..18].copy_from_slice(&[0, 0, 4, 4, 0xfe, 0x80]);
        frame[29..36].copy_from_slice(&[0x10, 0, 1, 10, 0, 0, 1]);
        frame[56..].copy_from_slice(&[10, 0, 0, 2]);
        let arp = Arp {
            operation: ArpOperation::REQUEST,
            sender: LinkAddress {
                rc: false,
                uc: false,
                qpn: Qpn::new(0x404),
                gid: port(0x10_0001),
            },
            sender_ip: Ipv4Addr::new(10, 0, 0, 1),
            target: LinkAddress::default(),
            target_ip: Ipv4Addr::new(10, 0, 0, 2),
        };
        let (head, datagram) = Encapsulation::read(&frame).unwrap();
        assert_eq!(head.ether_type, EtherType::ARP);
        assert_eq!(Arp::read(datagram).unwrap(), (arp, [].as_slice()));
        let mut again = [0xee; 60];
        let room = head.write(&mut again).unwrap();
        assert!(arp.write(room).unwrap().is_empty());
        assert_eq!(again, frame);
    }

    #[test]
    fn the_groups_of_the_table_come_out() {
        let v4 = |group| ipv4_multicast_gid(group, PKey::DEFAULT, Scope::LINK_LOCAL);
        let v6 = |group: &str| {
            ipv6_multicast_gid(group.parse().unwrap(), PKey::DEFAULT, Scope::LINK_LOCAL)
        };
        let gid = |text: &str| Gid(text.parse::<Ipv6Addr>().unwrap().octets());
        let broadcast = gid("ff12:401b:ffff:0000:0000:0000:ffff:ffff");
        assert_eq!(v4(Ipv4Addr::BROADCAST), broadcast);
        assert_eq!(broadcast_gid(PKey(0x7fff), Scope::LINK_LOCAL), broadcast);
        let all_systems = gid("ff12:401b:ffff:0000:0000:0000:0000:0001");
        assert_eq!(v4(Ipv4Addr::new(224, 0, 0, 1)), all_systems);
        let all_nodes = gid("ff12:601b:ffff:0000:0000:0000:0000:0001");
        assert_eq!(v6("ff02::1"), all_nodes);
        let solicited = gid("ff12:601b:ffff:0000:0000:0001:ff10:0001");
        assert_eq!(v6("ff02::1:ff10:0001"), solicited);
    }

    #[test]
    fn a_group_knows_partition_and_scope() {
        let gid = ipv4_multicast_gid(Ipv4Addr::new(239, 1, 2, 3), PKey(0x1234), Scope::GLOBAL);
        let expected = [
            0xff, 0x1e, 0x40, 0x1b, 0x92, 0x34, 0, 0, 0, 0, 0, 0, 0x0f, 1, 2, 3,
        ];
        assert_eq!(gid.0, expected);
        assert_eq!(Scope::of(gid), Scope::GLOBAL);
    }

    #[test]
    fn the_address_of_a_group_has_the_multicast_qpn() {
        let group = broadcast_gid(PKey::DEFAULT, Scope::LINK_LOCAL);
        let bytes = LinkAddress::multicast(group).to_bytes();
        assert_eq!(bytes[..6], [0, 0xff, 0xff, 0xff, 0xff, 0x12]);
    }

    #[test]
    fn the_universal_bit_is_set_and_not_flipped() {
        let id = [0x02, 0x02, 0xc9, 3, 0, 0, 0x10, 1];
        assert_eq!(interface_id(Guid(0x0002_c903_0000_1001)), id);
        assert_eq!(interface_id(Guid(0x0202_c903_0000_1001)), id);
    }

    #[test]
    fn ethernet_arp_is_refused_by_the_field_that_says_so() {
        let mut bytes = [0; 56];
        bytes[..6].copy_from_slice(&[0, 1, 8, 0, 6, 4]);
        let expected = WireError::Field {
            header: "ARP",
            field: "hardware type",
            found: 1,
        };
        assert_eq!(Arp::read(&bytes).unwrap_err(), expected);
    }

    #[test]
    fn a_neighbour_discovery_option_is_three_units_long() {
        let address = LinkAddress {
            rc: true,
            uc: false,
            qpn: Qpn::new(0x48),
            gid: port(7),
        };
        let option = NdOption {
            kind: NdOptionKind::Target,
            address,
        };
        let mut bytes = [0xee; 24];
        option.write(&mut bytes).unwrap();
        assert_eq!(bytes[..10], [2, 3, 0, 0, 0x80, 0, 0, 0x48, 0xfe, 0x80]);
        assert_eq!(bytes[23], 7);
        assert_eq!(NdOption::read(&bytes).unwrap().0, option);
        bytes[1] = 1;
        assert!(NdOption::read(&bytes).is_err());
    }

    proptest! {
        #[test]
        fn an_address_keeps_all_but_unknown_flags(mut bytes: [u8; 20]) {
            let again = LinkAddress::from_bytes(bytes).to_bytes();
            bytes[0] &= 0xc0;
            prop_assert_eq!(again, bytes);
        }

        #[test]
        fn an_arp_packet_that_is_read_writes_back_the_same(
            mut bytes: [u8; 56], right: bool,
        ) {
            if right {
                bytes[..6].copy_from_slice(&[0, 32, 8, 0, 20, 4]);
            }
            match Arp::read(&bytes) {
                Ok((arp, _)) => {
                    let mut again = [0; 56];
                    arp.write(&mut again).unwrap();
                    bytes[8] &= 0xc0;
                    bytes[32] &= 0xc0;
                    prop_assert_eq!(again, bytes);
                }
                Err(WireError::Field { .. }) => {
                    prop_assert!(bytes[..6] != [0, 32, 8, 0, 20, 4]);
                }
                Err(other) => prop_assert!(false, "{other}"),
            }
        }

        #[test]
        fn no_bytes_whatever_upset_the_readers(bytes in prop::collection::vec(any::<u8>(), 0..70)) {
            read_untrusted(&bytes);
        }
    }
}
