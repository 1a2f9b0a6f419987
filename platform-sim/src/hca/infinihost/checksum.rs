//! The checksums of what IPoIB carries: put into datagrams that leave, looked at in those that arrive. M-mode, as far as
//! INIT_HCA enables it. infinihost 5.11.
//!
//! Both begin behind the 4 bytes of IPoIB. What is no IPv4 packet, or none that ends inside the datagram, is left as it is
//! and never said to be right; so is the segment of a fragment, or of another protocol than TCP and UDP.

use super::params::Checksums;
use core::ops::Range;
use hca_abi::infinihost::wqe::NextSegment;

/// Bytes of IPoIB before the packet, of which the first two are an EtherType.
const IPOIB: usize = 4;
const ETHERTYPE_IPV4: [u8; 2] = [8, 0];
/// Bytes of an IPv4 header without options.
const SHORTEST: usize = 20;
/// Where its checksum is.
const HEADER_SUM: Range<usize> = 10..12;
/// Its addresses.
const ADDRESSES: Range<usize> = 12..20;
const TCP: u8 = 6;
const UDP: u8 = 17;

/// Adds 16-bit words with carry around the end; the last is filled up with zeros.
fn sum(before: u16, bytes: &[u8]) -> u16 {
    let mut total = u64::from(before);
    let (pairs, rest) = bytes.as_chunks::<2>();
    for pair in pairs {
        total += u64::from(u16::from_be_bytes(*pair));
    }
    if let [last] = rest {
        total += u64::from(*last) << 8;
    }
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    total as u16
}

/// A segment of TCP or UDP.
struct Segment {
    protocol: u8,
    /// Its bytes in the packet.
    bytes: Range<usize>,
    /// Where its checksum is.
    sum: Range<usize>,
}

impl Segment {
    /// The sum of the header that TCP and UDP imagine before themselves.
    fn pseudo_header(&self, packet: &[u8]) -> u16 {
        let [high, low] = (self.bytes.len() as u16).to_be_bytes();
        let addresses = packet.get(ADDRESSES).unwrap_or_default();
        sum(sum(0, addresses), &[0, self.protocol, high, low])
    }
}

/// What there is in a datagram.
struct Found {
    /// Where the packet begins and ends.
    packet: Range<usize>,
    /// Bytes of its header.
    header: usize,
    segment: Option<Segment>,
}

impl Found {
    fn new(datagram: &[u8]) -> Option<Self> {
        let (ipoib, rest) = datagram.split_at_checked(IPOIB)?;
        let header = rest.first_chunk::<SHORTEST>()?;
        let len = usize::from(header[0] & 0xf) * 4;
        let total = usize::from(u16::from_be_bytes([header[2], header[3]]));
        let sound = header[0] >> 4 == 4 && (SHORTEST..=total).contains(&len) && total <= rest.len();
        if !ipoib.starts_with(&ETHERTYPE_IPV4) || !sound {
            return None;
        }
        // More fragments, or an offset.
        let whole = u16::from_be_bytes([header[6], header[7]]) & 0x3fff == 0;
        let (protocol, bytes) = (header[9], len..total);
        let (offset, least) = match protocol {
            TCP => (16, 20),
            UDP => (6, 8),
            _ => (0, usize::MAX),
        };
        let at = bytes.start + offset;
        let segment = (whole && bytes.len() >= least).then_some(Segment {
            protocol,
            bytes,
            sum: at..at + 2,
        });
        Some(Self {
            packet: IPOIB..IPOIB + total,
            header: len,
            segment,
        })
    }
}

fn put(packet: &mut [u8], at: &Range<usize>, value: u16) {
    if let Some(place) = packet.get_mut(at.clone()) {
        place.copy_from_slice(&value.to_be_bytes());
    }
}

/// Puts in what a send request asks for. Whatever the IP header has in the place of its own checksum does not count. In the
/// place of a segment's it does if the HCA does not reckon the pseudo header itself: then that is its sum.
pub fn insert(datagram: &mut [u8], asked: &NextSegment, how: Checksums) {
    let Some(found) = Found::new(datagram) else {
        return;
    };
    let packet = datagram.get_mut(found.packet).unwrap_or_default();
    if asked.l4_checksum()
        && let Some(segment) = found.segment
    {
        let mut begin = 0;
        if how.send_pseudo_header {
            put(packet, &segment.sum, 0);
            begin = segment.pseudo_header(packet);
        }
        let bytes = packet.get(segment.bytes).unwrap_or_default();
        let value = match !sum(begin, bytes) {
            // 0 stands for none. RFC 768.
            0 if segment.protocol == UDP => 0xffff,
            value => value,
        };
        put(packet, &segment.sum, value);
    }
    if asked.ip_checksum() {
        put(packet, &HEADER_SUM, 0);
        let value = !sum(0, packet.get(..found.header).unwrap_or_default());
        put(packet, &HEADER_SUM, value);
    }
}

/// What a completion says of a datagram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// It is IPv4, and the checksum of its header is right.
    pub ip_ok: bool,
    /// The sum over its segment, all ones if that is right; 0 if nothing could be verified.
    pub sum: u16,
}

/// Looks at a datagram that arrived. A segment of UDP without a checksum, or with a length of its own, is not verified.
pub fn verify(datagram: &[u8], how: Checksums) -> Verdict {
    let Some(found) = Found::new(datagram) else {
        return Verdict::default();
    };
    let packet = datagram.get(found.packet).unwrap_or_default();
    let header = packet.get(..found.header).unwrap_or_default();
    let sum_of = |segment: Segment| {
        let bytes = packet.get(segment.bytes.clone())?;
        if segment.protocol == UDP {
            let len = (bytes.len() as u16).to_be_bytes();
            if bytes.get(4..6)? != len || packet.get(segment.sum.clone())? == [0; 2] {
                return None;
            }
        }
        let begin = if how.receive_pseudo_header {
            segment.pseudo_header(packet)
        } else {
            0
        };
        Some(sum(begin, bytes))
    };
    Verdict {
        ip_ok: sum(0, header) == 0xffff,
        sum: found.segment.and_then(sum_of).unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BOTH: Checksums = Checksums {
        send_pseudo_header: true,
        receive_pseudo_header: true,
    };

    fn asked(ip: bool, l4: bool) -> NextSegment {
        let mut next = NextSegment::ZERO;
        next.set_ip_checksum(ip).set_l4_checksum(l4);
        next
    }

    /// The reference: bytes as one large number, of which only the rest by 65535 counts. Right is what is a multiple of it.
    fn rest(pieces: &[&[u8]]) -> u32 {
        let mut rest = 0;
        for piece in pieces {
            let odd = piece.len() % 2;
            let padded = piece.iter().chain(&[0; 1][..odd]);
            rest = padded.fold(rest, |rest, byte| (rest * 256 + u32::from(*byte)) % 65535);
        }
        rest
    }

    /// A datagram of IPoIB, whatever is in the places of its checksums.
    #[derive(Clone, Debug)]
    struct Sample {
        bytes: Vec<u8>,
        header: usize,
        total: usize,
        protocol: u8,
        fragment: bool,
    }

    impl Sample {
        fn packet(&self) -> &[u8] {
            &self.bytes[4..4 + self.total]
        }

        fn pseudo_header(&self) -> [u8; 12] {
            let mut pseudo = [0; 12];
            pseudo[..8].copy_from_slice(&self.packet()[12..20]);
            pseudo[9] = self.protocol;
            let len = (self.total - self.header) as u16;
            pseudo[10..].copy_from_slice(&len.to_be_bytes());
            pseudo
        }

        /// Place of the segment's checksum in the datagram.
        fn place(&self) -> Option<usize> {
            let (offset, least) = match self.protocol {
                6 => (16, 20),
                17 => (6, 8),
                _ => return None,
            };
            let fits = self.total - self.header >= least && !self.fragment;
            fits.then_some(4 + self.header + offset)
        }

        fn header_is_right(&self) -> bool {
            rest(&[&self.packet()[..self.header]]) == 0
        }

        fn segment_is_right(&self) -> bool {
            rest(&[&self.pseudo_header(), &self.packet()[self.header..]]) == 0
        }
    }

    prop_compose! {
        fn sample()(
            words in 5..=15_usize,
            payload in prop_oneof![0..40_usize, 1400..=1500_usize],
            trailer in 0..5_usize,
            protocol in prop_oneof![4 => Just(6_u8), 4 => Just(17), 1 => any::<u8>()],
            fragment in prop_oneof![6 => Just(0_u16), 1 => Just(0x2000), 1 => 1..0x2000_u16],
            flags in prop_oneof![Just(0_u16), Just(0x4000)],
        )(
            bytes in prop::collection::vec(any::<u8>(), 4 + words * 4 + payload + trailer),
            (words, payload) in Just((words, payload)),
            (protocol, fragment, flags) in Just((protocol, fragment, flags)),
        ) -> Sample {
            let (header, total) = (words * 4, words * 4 + payload);
            let mut bytes = bytes;
            bytes[..2].copy_from_slice(&[8, 0]);
            bytes[4] = 0x40 | words as u8;
            bytes[6..8].copy_from_slice(&(total as u16).to_be_bytes());
            bytes[10..12].copy_from_slice(&(fragment | flags).to_be_bytes());
            bytes[13] = protocol;
            if protocol == 17 && payload >= 8 {
                bytes[4 + header + 4..][..2].copy_from_slice(&(payload as u16).to_be_bytes());
            }
            Sample { bytes, header, total, protocol, fragment: fragment != 0 }
        }
    }

    proptest! {
        #[test]
        fn what_is_inserted_is_right_by_another_reckoning_and_nothing_else_changes(
            before in sample(), ip: bool, l4: bool,
        ) {
            let mut after = before.clone();
            insert(&mut after.bytes, &asked(ip, l4), BOTH);
            prop_assert!(!ip || after.header_is_right());
            let place = before.place();
            if l4 && let Some(at) = place {
                prop_assert!(after.segment_is_right());
                prop_assert!(before.protocol == 6 || after.bytes[at..at + 2] != [0; 2]);
            }
            let verdict = verify(&after.bytes, BOTH);
            prop_assert_eq!(verdict.ip_ok, after.header_is_right());
            prop_assert!(!l4 || place.is_none() || verdict.sum == 0xffff);
            for (at, (was, is)) in before.bytes.iter().zip(&after.bytes).enumerate() {
                let header = ip && (14..16).contains(&at);
                let segment = l4 && place.is_some_and(|place| (place..place + 2).contains(&at));
                prop_assert!(header || segment || was == is, "byte {}", at);
            }
        }

        #[test]
        fn a_pseudo_header_that_software_reckoned_gives_the_same(before in sample()) {
            prop_assume!(before.place().is_some());
            let mut whole = before.clone();
            insert(&mut whole.bytes, &asked(true, true), BOTH);
            let mut half = before.clone();
            let at = half.place().unwrap();
            let partial = sum(0, &half.pseudo_header());
            half.bytes[at..at + 2].copy_from_slice(&partial.to_be_bytes());
            let by_software = Checksums { send_pseudo_header: false, receive_pseudo_header: false };
            insert(&mut half.bytes, &asked(true, true), by_software);
            prop_assert_eq!(&half.bytes, &whole.bytes);
            // Received, it is software's turn to add it.
            let sums = [verify(&half.bytes, by_software).sum, partial].map(u16::to_be_bytes);
            prop_assert_eq!(rest(&[&sums[0], &sums[1]]), 0);
        }

        #[test]
        fn a_bit_that_flips_is_never_said_to_be_right(before in sample(), bit: prop::sample::Index) {
            prop_assume!(before.place().is_some());
            let mut after = before.clone();
            insert(&mut after.bytes, &asked(true, true), BOTH);
            let bit = bit.index(after.total * 8);
            after.bytes[4 + bit / 8] ^= 1 << (bit % 8);
            let verdict = verify(&after.bytes, BOTH);
            prop_assert!(!verdict.ip_ok || verdict.sum != 0xffff);
        }

        #[test]
        fn no_bytes_whatever_are_said_to_be_right_that_are_not(
            bytes in prop::collection::vec(any::<u8>(), 0..80), ipv4: bool, ip: bool, l4: bool,
        ) {
            let mut bytes = bytes;
            if ipv4 && let Some(begin) = bytes.first_chunk_mut::<5>() {
                *begin = [8, 0, 0, 0, 0x45];
            }
            let len = bytes.len();
            insert(&mut bytes, &asked(ip, l4), BOTH);
            prop_assert_eq!(bytes.len(), len);
            if verify(&bytes, BOTH).ip_ok {
                let header = usize::from(bytes[4] & 15) * 4;
                prop_assert_eq!(rest(&[&bytes[4..4 + header]]), 0);
            }
        }
    }

    /// A datagram of UDP by hand: 10.0.0.1 port 1 to 10.0.0.2 port 2, "hi!".
    const UDP_DATAGRAM: [u8; 35] = [
        8, 0, 0, 0, 0x45, 0, 0, 31, 0, 1, 0x40, 0, 64, 17, 0xaa, 0xaa, 10, 0, 0, 1, 10, 0, 0, 2, 0,
        1, 0, 2, 0, 11, 0xbb, 0xbb, b'h', b'i', b'!',
    ];

    #[test]
    fn a_datagram_of_udp_byte_by_byte() {
        // 4500 + 001f + 0001 + 4000 + 4011 + 0a00 + 0001 + 0a00 + 0002 = d934.
        // 0a00 + 0001 + 0a00 + 0002 + 0011 + 000b, and 0001 + 0002 + 000b + 6869 + 2100 = 9d96.
        let mut bytes = UDP_DATAGRAM;
        insert(&mut bytes, &asked(true, true), BOTH);
        assert_eq!(bytes[14..16], (!0xd934_u16).to_be_bytes());
        assert_eq!(bytes[30..32], (!0x9d96_u16).to_be_bytes());
        let right = Verdict {
            ip_ok: true,
            sum: 0xffff,
        };
        assert_eq!(verify(&bytes, BOTH), right);
    }

    #[test]
    fn udp_without_a_checksum_or_of_another_length_is_not_verified() {
        let mut none = UDP_DATAGRAM;
        insert(&mut none, &asked(true, true), BOTH);
        let mut shorter = none;
        none[30..32].copy_from_slice(&[0; 2]);
        shorter[29] = 10;
        let unverified = Verdict {
            ip_ok: true,
            sum: 0,
        };
        assert_eq!(verify(&none, BOTH), unverified);
        assert_eq!(verify(&shorter, BOTH), unverified);
    }

    #[test]
    fn a_checksum_of_udp_that_comes_to_nothing_is_sent_as_all_ones() {
        let mut bytes = UDP_DATAGRAM;
        // What makes the sum all ones.
        let [high, low] = (0x6869_u16 + !0x9d96).to_be_bytes();
        bytes[32..34].copy_from_slice(&[high, low]);
        insert(&mut bytes, &asked(false, true), BOTH);
        assert_eq!(bytes[30..32], [0xff; 2]);
        assert_eq!(verify(&bytes, BOTH).sum, 0xffff);
    }
}
