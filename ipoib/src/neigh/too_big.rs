//! What the host's IP stack is told of a packet that the next hop does not take: ICMP "fragmentation needed" (RFC 1191)
//! or ICMPv6 "packet too big" (RFC 4443, 3.2), as if the destination had sent it.

/// Of the packet that was too long, so many bytes are kept: the largest header without options, and eight more.
pub(super) const KEPT: usize = 48;
/// Bytes of the longest message.
const LEN: usize = 40 + 8 + KEPT;

/// A message for the host's IP stack.
#[derive(Clone, Copy, Debug)]
pub(super) struct TooBig {
    bytes: [u8; LEN],
    len: usize,
}

/// Sum of 16-bit words, as RFC 1071 has it.
fn sum(bytes: &[u8], mut sum: u32) -> u32 {
    for pair in bytes.chunks(2) {
        let word = match *pair {
            [high, low] => u16::from_be_bytes([high, low]),
            [high] => u16::from_be_bytes([high, 0]),
            _ => 0,
        };
        sum = sum.wrapping_add(word.into());
    }
    sum
}

const fn fold(sum: u32) -> u16 {
    let sum = (sum & 0xffff).wrapping_add(sum >> 16);
    let sum = (sum & 0xffff).wrapping_add(sum >> 16);
    !(sum as u16)
}

fn put(bytes: &mut [u8], at: usize, what: &[u8]) {
    let place = bytes.iter_mut().skip(at);
    place.zip(what).for_each(|(to, from)| *to = *from);
}

impl TooBig {
    /// About a packet that begins so: nothing longer than `mtu` bytes gets through. `None` for what is no IP packet, and
    /// for IPv4 that may be fragmented by routers, which here has none.
    pub(super) fn about(head: &[u8; KEPT], mtu: u16) -> Option<Self> {
        match head[0] >> 4 {
            4 => Self::v4(head, mtu),
            6 => Self::v6(head, mtu),
            _ => None,
        }
    }

    fn v4(head: &[u8; KEPT], mtu: u16) -> Option<Self> {
        let header = usize::from(head[0] & 15) * 4;
        let kept = head.get(..header + 8).filter(|_| header >= 20)?;
        let len = 28 + kept.len();
        let mut bytes = [0; LEN];
        put(&mut bytes, 0, &[0x45, 0, 0, len as u8, 0, 0, 0, 0, 64, 1]);
        put(&mut bytes, 12, head.get(16..20)?); // from whom it was for
        put(&mut bytes, 16, head.get(12..16)?);
        let header = fold(sum(bytes.get(..20)?, 0));
        put(&mut bytes, 10, &header.to_be_bytes());
        put(&mut bytes, 20, &[3, 4]);
        put(&mut bytes, 26, &mtu.to_be_bytes());
        put(&mut bytes, 28, kept);
        let icmp = fold(sum(bytes.get(20..len)?, 0));
        put(&mut bytes, 22, &icmp.to_be_bytes());
        Some(Self { bytes, len })
    }

    fn v6(head: &[u8; KEPT], mtu: u16) -> Option<Self> {
        let mut bytes = [0; LEN];
        let payload = (8 + KEPT) as u8;
        put(&mut bytes, 0, &[0x60, 0, 0, 0, 0, payload, 58, 64]);
        put(&mut bytes, 8, head.get(24..40)?); // from whom it was for
        put(&mut bytes, 24, head.get(8..24)?);
        put(&mut bytes, 40, &[2, 0]);
        put(&mut bytes, 46, &mtu.to_be_bytes());
        put(&mut bytes, 48, head);
        let pseudo = sum(bytes.get(8..40)?, u32::from(payload) + 58);
        let icmp = fold(sum(bytes.get(40..)?, pseudo));
        put(&mut bytes, 42, &icmp.to_be_bytes());
        Some(Self { bytes, len: LEN })
    }

    /// The packet.
    pub(super) fn packet(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&[])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(first: u8, src: u8, dst: u8) -> [u8; KEPT] {
        let mut head: [u8; KEPT] = core::array::from_fn(|i| i as u8);
        head[0] = first;
        let (from, to) = if first >> 4 == 4 { (12, 16) } else { (8, 24) };
        head[from] = src;
        head[to] = dst;
        head
    }

    /// RFC 1191, 4; RFC 792.
    #[test]
    fn fragmentation_needed_names_the_mtu_and_the_packet() {
        let head = head(0x45, 10, 20);
        let message = TooBig::about(&head, 2044).unwrap();
        let packet = message.packet();
        assert_eq!(packet.len(), 56);
        assert_eq!((packet[9], packet[12], packet[16]), (1, 20, 10));
        assert_eq!(packet[20..22], [3, 4]);
        assert_eq!(packet[24..28], [0, 0, 7, 0xfc]);
        assert_eq!(packet[28..], head[..28]);
        assert_eq!(fold(sum(&packet[..20], 0)), 0);
        assert_eq!(fold(sum(&packet[20..], 0)), 0);
    }

    /// RFC 4443, 2.3 and 3.2.
    #[test]
    fn packet_too_big_names_the_mtu_and_the_packet() {
        let head = head(0x60, 0xfd, 0xfe);
        let message = TooBig::about(&head, 2044).unwrap();
        let packet = message.packet();
        assert_eq!((packet.len(), packet[6]), (96, 58));
        assert_eq!((packet[8], packet[24]), (0xfe, 0xfd));
        assert_eq!(packet[40..42], [2, 0]);
        assert_eq!(packet[44..48], [0, 0, 7, 0xfc]);
        assert_eq!(packet[48..], head);
        assert_eq!(fold(sum(&packet[40..], sum(&packet[8..40], 56 + 58))), 0);
    }

    #[test]
    fn nothing_is_said_of_what_is_no_ip_packet() {
        assert!(TooBig::about(&head(0x15, 1, 2), 2044).is_none());
        assert!(TooBig::about(&head(0x41, 1, 2), 2044).is_none());
        assert!(
            TooBig::about(&head(0x4f, 1, 2), 2044).is_none(),
            "more options than are kept"
        );
    }
}
