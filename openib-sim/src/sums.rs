//! Checksums of TCP and UDP that the IP stack leaves to the HCA: made and looked at here where the HCA does not.

use smoltcp::wire::{
    IpAddress, IpProtocol, IpVersion, Ipv4Packet, Ipv6Packet, TcpPacket, UdpPacket,
};

/// What a packet carries, and between whom.
struct Parts<'p> {
    version: IpVersion,
    protocol: IpProtocol,
    from: IpAddress,
    to: IpAddress,
    segment: &'p mut [u8],
}

/// `None` for what is no packet, and for fragments.
fn parts(packet: &mut [u8]) -> Option<Parts<'_>> {
    let version = IpVersion::of_packet(packet).ok()?;
    match version {
        IpVersion::Ipv4 => {
            let packet = Ipv4Packet::new_checked(packet).ok()?;
            let whole = packet.frag_offset() == 0 && !packet.more_frags();
            let (protocol, from, to) = (packet.next_header(), packet.src_addr(), packet.dst_addr());
            let header = usize::from(packet.header_len());
            let total = usize::from(packet.total_len());
            let segment = packet.into_inner().get_mut(header..total)?;
            whole.then_some(Parts {
                version,
                protocol,
                from: from.into(),
                to: to.into(),
                segment,
            })
        }
        IpVersion::Ipv6 => {
            let packet = Ipv6Packet::new_checked(packet).ok()?;
            let (protocol, from, to) = (packet.next_header(), packet.src_addr(), packet.dst_addr());
            let (header, total) = (packet.header_len(), packet.total_len());
            let segment = packet.into_inner().get_mut(header..total)?;
            Some(Parts {
                version,
                protocol,
                from: from.into(),
                to: to.into(),
                segment,
            })
        }
    }
}

/// Is it a packet whose checksums an HCA can make: IPv4 with TCP or UDP, in one piece?
pub fn can_be_left(packet: &mut [u8]) -> bool {
    parts(packet).is_some_and(|parts| {
        parts.version == IpVersion::Ipv4
            && matches!(parts.protocol, IpProtocol::Tcp | IpProtocol::Udp)
    })
}

/// Makes the checksum of TCP or UDP, if the packet carries one of them.
pub fn fill(packet: &mut [u8]) {
    let Some(parts) = parts(packet) else { return };
    match parts.protocol {
        IpProtocol::Tcp => {
            if let Ok(mut tcp) = TcpPacket::new_checked(parts.segment) {
                tcp.fill_checksum(&parts.from, &parts.to);
            }
        }
        IpProtocol::Udp => {
            if let Ok(mut udp) = UdpPacket::new_checked(parts.segment) {
                udp.fill_checksum(&parts.from, &parts.to);
            }
        }
        _ => {}
    }
}

/// Is it right, as far as there is one?
pub fn is_right(packet: &mut [u8]) -> bool {
    let Some(parts) = parts(packet) else {
        return true;
    };
    let (from, to) = (parts.from, parts.to);
    match parts.protocol {
        IpProtocol::Tcp => {
            TcpPacket::new_checked(parts.segment).is_ok_and(|tcp| tcp.verify_checksum(&from, &to))
        }
        IpProtocol::Udp => {
            UdpPacket::new_checked(parts.segment).is_ok_and(|udp| udp.verify_checksum(&from, &to))
        }
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand: UDP from 10.0.0.1 port 1 to 10.0.0.2 port 2, "hi!".
    const RIGHT: [u8; 31] = [
        0x45, 0, 0, 31, 0, 1, 0x40, 0, 64, 17, 0x26, 0xcb, 10, 0, 0, 1, 10, 0, 0, 2, 0, 1, 0, 2, 0,
        11, 0x62, 0x69, b'h', b'i', b'!',
    ];

    #[test]
    fn what_was_left_out_is_made_and_what_is_wrong_is_found() {
        let mut packet = RIGHT;
        assert!(can_be_left(&mut packet) && is_right(&mut packet));
        packet[26..28].copy_from_slice(&[0xaa; 2]);
        assert!(!is_right(&mut packet));
        fill(&mut packet);
        assert_eq!(packet, RIGHT);
    }

    #[test]
    fn fragments_and_other_protocols_are_left_alone() {
        let mut fragment = RIGHT;
        fragment[6] = 0x20;
        let mut other = RIGHT;
        other[9] = 1;
        for packet in [fragment, other] {
            let mut after = packet;
            fill(&mut after);
            assert_eq!(after, packet);
            assert!(!can_be_left(&mut after));
        }
    }
}
