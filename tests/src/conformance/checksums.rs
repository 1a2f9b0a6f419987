//! Checksums of IPv4, TCP and UDP that are left to the HCA, in datagrams of IPoIB. verbs 2.1, 4.4, 5.3.

use super::tools::{GRH, Station, send_wr};
use super::{Features, Rig};
use core_ib::verbs::{QpInfo, SendFlags, SendOp, WcFlags};

/// Asks for both.
const BOTH: SendFlags = SendFlags::IP_CHECKSUM.union(SendFlags::L4_CHECKSUM);

/// Behind the four bytes of IPoIB: from 10.0.0.1 port 1 to 10.0.0.2 port 2, "hi!", by UDP.
const UDP: [u8; 35] = [
    8, 0, 0, 0, 0x45, 0, 0, 31, 0, 1, 0x40, 0, 64, 17, 0x26, 0xcb, 10, 0, 0, 1, 10, 0, 0, 2, 0, 1,
    0, 2, 0, 11, 0x62, 0x69, b'h', b'i', b'!',
];

/// The same by TCP, with a flag PSH.
const TCP: [u8; 47] = [
    8, 0, 0, 0, 0x45, 0, 0, 43, 0, 1, 0x40, 0, 64, 6, 0x26, 0xca, 10, 0, 0, 1, 10, 0, 0, 2, 0, 1,
    0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 8, 0, 0, 0x12, 0x6b, 0, 0, b'h', b'i', b'!',
];

/// Where the checksum of the header is, and that of UDP or TCP.
fn places(datagram: &[u8]) -> [usize; 2] {
    [14, if datagram[13] == 17 { 30 } else { 40 }]
}

/// From a QP of one side to one of the other.
struct Way<'r, R: Rig> {
    a: Station<'r, R>,
    b: Station<'r, R>,
    from: QpInfo,
    to: QpInfo,
    op: SendOp,
}

impl<'r, R: Rig> Way<'r, R> {
    fn new(rig: &'r R) -> Self {
        let [a, b] = Station::pair(rig);
        let (from, to) = (a.ud(), b.ud());
        let op = a.to(&to);
        Self { a, b, from, to, op }
    }

    /// Sends `datagram`: what arrives, and whether it was found right.
    fn carry(&self, datagram: &[u8], flags: SendFlags) -> (Vec<u8>, bool) {
        let Self { a, b, .. } = self;
        let len = datagram.len() as u32;
        a.buffer.put(0, datagram);
        b.receive(self.to.handle, 1, &[b.buffer.sge(0, 256)]);
        let sges = [a.buffer.sge(0, len)];
        let mut request = send_wr(2, self.op, &sges);
        request.flags |= flags;
        a.post_send(self.from.handle, &[request]).unwrap();
        a.success(2);
        let wc = b.success(1);
        assert_eq!(wc.byte_len, len + GRH);
        let arrived = b.buffer.bytes(GRH as usize, datagram.len());
        (arrived, wc.flags.contains(WcFlags::CHECKSUM_OK))
    }
}

/// verbs 4.4. Without the feature the flags ask for nothing, and the datagram goes as it is.
pub fn wrong_checksums_arrive_right_if_the_hca_was_asked_to_make_them<R: Rig>(rig: &R) {
    let way = Way::new(rig);
    let offered = rig.declared().has(Features::CHECKSUMS);
    for right in [&UDP[..], &TCP[..]] {
        let mut wrong = right.to_vec();
        for place in places(right) {
            wrong[place..place + 2].copy_from_slice(&[0xbe, 0xef]);
        }
        let (arrived, found_right) = way.carry(&wrong, BOTH);
        assert_eq!(arrived, if offered { right } else { &wrong });
        assert_eq!(found_right, offered);
    }
}

/// verbs 4.4.
pub fn each_checksum_is_made_alone_if_it_alone_is_asked_for<R: Rig>(rig: &R) {
    let way = Way::new(rig);
    let offered = rig.declared().has(Features::CHECKSUMS);
    let [header, segment] = places(&TCP);
    for (flags, made) in [
        (SendFlags::IP_CHECKSUM, header),
        (SendFlags::L4_CHECKSUM, segment),
    ] {
        let mut wrong = TCP;
        let mut wanted = TCP;
        for place in [header, segment] {
            wrong[place..place + 2].copy_from_slice(&[0xbe, 0xef]);
            if place != made || !offered {
                wanted[place..place + 2].copy_from_slice(&[0xbe, 0xef]);
            }
        }
        let (arrived, found_right) = way.carry(&wrong, flags);
        assert_eq!(arrived, wanted);
        assert!(!found_right);
    }
}

/// verbs 5.3. Whoever made the checksums.
pub fn what_is_right_is_said_to_be_and_what_is_corrupted_is_not<R: Rig>(rig: &R) {
    let way = Way::new(rig);
    let offered = rig.declared().has(Features::CHECKSUMS);
    for right in [&UDP[..], &TCP[..]] {
        let (arrived, found_right) = way.carry(right, SendFlags::empty());
        assert_eq!((&arrived[..], found_right), (right, offered));
        // Any byte of the packet: addresses, ports, either checksum, data.
        for at in 4..right.len() {
            let mut corrupted = right.to_vec();
            corrupted[at] ^= 0x11;
            let (arrived, found_right) = way.carry(&corrupted, SendFlags::empty());
            assert_eq!((arrived, found_right), (corrupted, false), "byte {at}");
        }
    }
}

/// verbs 4.4, 5.3: no IPv4, fragments, other protocols.
pub fn what_is_not_about_checksums_goes_as_it_is<R: Rig>(rig: &R) {
    let way = Way::new(rig);
    let mut ipv6 = UDP;
    ipv6[..2].copy_from_slice(&[0x86, 0xdd]);
    let mut longer_than_it_is = UDP;
    longer_than_it_is[7] = 32;
    for odd in [
        &ipv6[..],
        &longer_than_it_is,
        &[0xab; 100],
        &[8, 0, 0, 0, 0x45],
    ] {
        assert_eq!(way.carry(odd, BOTH), (odd.to_vec(), false));
    }
    let mut fragment = UDP;
    fragment[10] = 0x20;
    let mut icmp = UDP;
    icmp[13] = 1;
    for odd in [fragment, icmp] {
        let (arrived, found_right) = way.carry(&odd, BOTH);
        // That of the header alone.
        let [header, _] = places(&UDP);
        assert_eq!(arrived[header + 2..], odd[header + 2..]);
        assert!(!found_right);
    }
}
