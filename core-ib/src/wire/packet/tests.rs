//! Whole packets: the worked examples of protocols 1.12, byte for byte, and the properties of reader and writer.

extern crate std;
use super::*;
use crate::types::{Gid, Guid, Lid, Mtu, PKey, Psn, QKey, Qpn, RKey, Sl};
use crate::wire::WireError;
use proptest::prelude::*;
use std::vec::Vec;

/// Bytes from a dump: hexadecimal digits, spaces between.
fn hex(dump: &str) -> Vec<u8> {
    let bytes = dump.split_whitespace();
    bytes
        .map(|byte| u8::from_str_radix(byte, 16).unwrap())
        .collect()
}

fn lrh(vl: u8, sl: u8, dlid: u16, slid: u16) -> Lrh {
    Lrh {
        vl: Vl::new(vl),
        sl: Sl::new(sl),
        lnh: Lnh::Local,
        dlid: Lid(dlid),
        pkt_len: PktLen::default(),
        slid: Lid(slid),
    }
}

/// Writes `headers` and `payload`, compares with the dump, reads the dump, and finds the same.
fn packet_is(headers: Headers, payload: &[u8], dump: &str) {
    let bytes = hex(dump);
    let mut out = [0xee; MAX_PACKET];
    let written = headers.write(payload, &mut out).unwrap();
    assert_eq!(written, bytes);
    let packet = Packet::read_checked(&bytes).unwrap();
    assert_eq!(packet.transport().unwrap().payload, payload);
    let read = packet.headers().unwrap();
    assert_eq!(read.lrh.pkt_len.bytes() + 2, bytes.len());
    let mut again = [0; MAX_PACKET];
    assert_eq!(read.write(payload, &mut again).unwrap(), bytes);
    read_untrusted(&bytes);
}

fn example_a() -> Headers {
    let bth = Bth::new(
        Opcode::RC_WRITE_ONLY,
        PKey(0x2487),
        Qpn::new(0x87_b1b3),
        Psn::new(0x0d_ec2a),
    );
    let reth = Reth {
        va: 0x0171_0a1c_015d_4002,
        r_key: RKey(0x38f2_7a05),
        dma_len: 14,
    };
    Headers {
        lrh: lrh(7, 1, 0x375c, 0x17d2),
        grh: None,
        bth,
        extended: Extended {
            reth: Some(reth),
            ..Extended::default()
        },
    }
}

const DATA_A: [u8; 14] = [
    0xbb, 0x88, 0x4d, 0x85, 0xfd, 0x5c, 0xfb, 0xa4, 0x72, 0x8b, 0xc0, 0x69, 0x0e, 0xd4,
];

const DUMP_A: &str = "
    70 12 37 5c 00 0e 17 d2 0a 20 24 87 00 87 b1 b3
    00 0d ec 2a 01 71 0a 1c 01 5d 40 02 38 f2 7a 05
    00 00 00 0e bb 88 4d 85 fd 5c fb a4 72 8b c0 69
    0e d4 00 00 96 25 b7 5a 45 fa";

#[test]
fn example_a_rc_rdma_write_only() {
    packet_is(example_a(), &DATA_A, DUMP_A);
}

#[test]
fn example_a_on_lane_15_keeps_its_icrc_and_changes_its_vcrc() {
    let mut bytes = hex(DUMP_A);
    set_vl(&mut bytes, Vl::MANAGEMENT).unwrap();
    assert_eq!(bytes[0], 0xf0);
    assert_eq!(bytes[52..], [0x96, 0x25, 0xb7, 0x5a, 0x21, 0x20]);
    assert!(Packet::read_checked(&bytes).is_ok());
}

#[test]
fn example_b_the_same_with_a_grh() {
    let grh = Grh {
        traffic_class: 0,
        flow_label: FlowLabel::new(0),
        pay_len: 0,
        nxt_hdr: 0,
        hop_limit: 16,
        sgid: Gid::unicast(Gid::DEFAULT_PREFIX, Guid(0x125)),
        dgid: Gid::unicast(Gid::DEFAULT_PREFIX, Guid(0x117)),
    };
    let headers = Headers {
        grh: Some(grh),
        ..example_a()
    };
    packet_is(
        headers,
        &DATA_A,
        "70 13 37 5c 00 18 17 d2 60 00 00 00 00 30 1b 10
         fe 80 00 00 00 00 00 00 00 00 00 00 00 00 01 25
         fe 80 00 00 00 00 00 00 00 00 00 00 00 00 01 17
         0a 20 24 87 00 87 b1 b3 00 0d ec 2a 01 71 0a 1c
         01 5d 40 02 38 f2 7a 05 00 00 00 0e bb 88 4d 85
         fd 5c fb a4 72 8b c0 69 0e d4 00 00 39 2c cd c4 6e 20",
    );
}

#[test]
fn example_c_rc_acknowledge() {
    let aeth = Aeth {
        syndrome: Syndrome::ack(CreditCode::NONE),
        msn: Msn::new(1),
    };
    let headers = Headers {
        lrh: lrh(0, 0, 2, 5),
        grh: None,
        bth: Bth::new(
            Opcode::RC_ACKNOWLEDGE,
            PKey::DEFAULT,
            Qpn::new(0x401),
            Psn::new(0x64),
        ),
        extended: Extended {
            aeth: Some(aeth),
            ..Extended::default()
        },
    };
    packet_is(
        headers,
        &[],
        "00 02 00 02 00 07 00 05 11 00 ff ff 00 00 04 01
         00 00 00 64 1f 00 00 01 9d 59 b4 8f c0 68",
    );
}

#[test]
fn example_d_ipoib_arp_request_to_the_broadcast_group() {
    let dgid = Gid(hex("ff 12 40 1b ff ff 00 00 00 00 00 00 ff ff ff ff")
        .try_into()
        .unwrap());
    let grh = Grh {
        traffic_class: 0,
        flow_label: FlowLabel::new(0),
        pay_len: 0x54,
        nxt_hdr: Grh::IBA,
        hop_limit: 0,
        sgid: Gid::unicast(Gid::DEFAULT_PREFIX, Guid(0x10_0001)),
        dgid,
    };
    let headers = Headers {
        lrh: lrh(0, 0, 0xc000, 1),
        grh: Some(grh),
        bth: Bth::new(
            Opcode::UD_SEND_ONLY,
            PKey::DEFAULT,
            Qpn::MULTICAST,
            Psn::new(0),
        ),
        extended: Extended::datagram(Deth {
            q_key: QKey(0x0b1b),
            src_qp: Qpn::new(0x404),
        }),
    };
    let arp = hex("08 06 00 00 00 20 08 00 14 04 00 01
         00 00 04 04 fe 80 00 00 00 00 00 00 00 00 00 00
         00 10 00 01 0a 00 00 01 00 00 00 00 00 00 00 00
         00 00 00 00 00 00 00 00 00 00 00 00 0a 00 00 02");
    packet_is(
        headers,
        &arp,
        "00 03 c0 00 00 21 00 01 60 00 00 00 00 54 1b 00
         fe 80 00 00 00 00 00 00 00 00 00 00 00 10 00 01
         ff 12 40 1b ff ff 00 00 00 00 00 00 ff ff ff ff
         64 00 ff ff 00 ff ff ff 00 00 00 00 00 00 0b 1b
         00 00 04 04 08 06 00 00 00 20 08 00 14 04 00 01
         00 00 04 04 fe 80 00 00 00 00 00 00 00 00 00 00
         00 10 00 01 0a 00 00 01 00 00 00 00 00 00 00 00
         00 00 00 00 00 00 00 00 00 00 00 00 0a 00 00 02
         95 99 b2 3a 88 5c",
    );
}

#[test]
fn example_e_directed_route_smp() {
    let mut bytes = hex("f0 02 ff ff 00 48 ff ff 64 00 ff ff 00 00 00 00
         00 00 00 00 00 00 00 00 00 00 00 00 01 81 01 01
         00 00 01 01 00 00 00 00 00 00 12 34 00 11 00 00
         00 00 00 00 00 00 00 00 00 00 00 00 ff ff ff ff");
    bytes.resize(0x11c, 0);
    bytes[0x9d] = 1;
    let mad = bytes[0x1c..].to_vec();
    bytes.extend(hex("8a ae cb 0d 91 3b"));
    let headers = Headers {
        lrh: lrh(15, 0, 0xffff, 0xffff),
        grh: None,
        bth: Bth::new(Opcode::UD_SEND_ONLY, PKey::DEFAULT, Qpn::SMI, Psn::new(0)),
        extended: Extended::datagram(Deth {
            q_key: QKey(0),
            src_qp: Qpn::SMI,
        }),
    };
    let mut out = [0; MAX_PACKET];
    assert_eq!(headers.write(&mad, &mut out).unwrap(), bytes);
    let packet = Packet::read_checked(&bytes).unwrap();
    assert_eq!(packet.transport().unwrap().payload, mad);
    assert!(packet.transport().unwrap().payload_fits(Mtu::Mtu256));
}

#[test]
fn a_raw_packet_reads_as_it_was_written() {
    let raw = RawPacket {
        lrh: lrh(3, 2, 7, 9),
        rwh: Some(Rwh { ether_type: 0x0800 }),
        payload: &[1, 2, 3, 4, 5, 6, 7, 8],
    };
    let mut out = [0; 64];
    let bytes = raw.write(&mut out).unwrap();
    assert_eq!(
        bytes[..20],
        [
            0x30, 0x20, 0, 7, 0, 5, 0, 9, 0, 0, 8, 0, 1, 2, 3, 4, 5, 6, 7, 8
        ]
    );
    let packet = Packet::read_checked(bytes).unwrap();
    let Contents::RawEther { rwh, payload } = packet.contents else {
        panic!("{packet:?}");
    };
    assert_eq!((Some(rwh), payload), (raw.rwh, raw.payload));
    let ipv6 = RawPacket {
        rwh: None,
        payload: &[0x60; 40],
        ..raw
    };
    let bytes = ipv6.write(&mut out).unwrap();
    let packet = Packet::read(bytes).unwrap();
    assert_eq!(packet.contents, Contents::RawIpv6(&[0x60; 40]));
    assert_eq!(packet.lrh.lnh, Lnh::RawIpv6);
}

#[test]
fn headers_that_the_opcode_does_not_have_are_not_written() {
    let mut headers = example_a();
    headers.bth.opcode = Opcode::RC_SEND_ONLY;
    let error = headers.write(&[], &mut [0; 99]).unwrap_err();
    assert_eq!(error, WireError::Headers { opcode: 0x04 });
}

#[test]
fn a_payload_longer_than_any_mtu_is_not_written() {
    let error = example_a().write(&[0; 5000], &mut [0; 6000]).unwrap_err();
    assert!(
        matches!(
            error,
            WireError::Field {
                field: "PktLen",
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn a_buffer_one_byte_short_is_told_so() {
    let error = example_a().write(&DATA_A, &mut [0; 57]).unwrap_err();
    let expected = WireError::NoSpace {
        header: "packet",
        need: 58,
        have: 57,
    };
    assert_eq!(error, expected);
}

#[test]
fn a_payload_fits_or_not_by_the_rule_of_its_opcode() {
    let bytes = hex(DUMP_A);
    let mut transport = *Packet::read(&bytes).unwrap().transport().unwrap();
    assert!(transport.payload_fits(Mtu::Mtu256));
    transport.bth.opcode = Opcode::RC_SEND_MIDDLE;
    assert!(!transport.payload_fits(Mtu::Mtu256));
    transport.bth.opcode = Opcode::RC_READ_REQUEST;
    assert!(!transport.payload_fits(Mtu::Mtu256));
}

fn some_headers() -> impl Strategy<Value = (Headers, Vec<u8>)> {
    let known: Vec<Opcode> = (0..=255).map(Opcode).filter(|o| o.is_known()).collect();
    let grh = any::<Option<(u8, u32, u8, [u8; 16], [u8; 16])>>();
    let local = any::<(u8, u8, u16, u16)>();
    let bth = any::<(bool, bool, bool, u16, u32, u32)>();
    let tail = prop::collection::vec(any::<u8>(), 44);
    let payload = prop_oneof![
        4 => prop::collection::vec(any::<u8>(), 0..80),
        1 => prop::collection::vec(any::<u8>(), 4000..=4096),
    ];
    let parts = (prop::sample::select(known), grh, local, bth, tail, payload);
    parts.prop_map(|(opcode, grh, local, bth, tail, payload)| {
        let (vl, sl, dlid, slid) = local;
        let (solicited, mig_req, ack_req, p_key, dest_qp, psn) = bth;
        let grh = grh.map(|(traffic_class, flow_label, hop_limit, sgid, dgid)| Grh {
            traffic_class,
            flow_label: FlowLabel::new(flow_label),
            pay_len: 0,
            nxt_hdr: 0,
            hop_limit,
            sgid: Gid(sgid),
            dgid: Gid(dgid),
        });
        let bth = Bth {
            solicited,
            mig_req,
            ack_req,
            ..Bth::new(opcode, PKey(p_key), Qpn::new(dest_qp), Psn::new(psn))
        };
        let (extended, _) = Extended::read(opcode, &tail).unwrap();
        let headers = Headers {
            lrh: lrh(vl, sl, dlid, slid),
            grh,
            bth,
            extended,
        };
        (headers, payload)
    })
}

proptest! {
    #[test]
    fn what_is_written_is_read((headers, payload) in some_headers()) {
        let mut out = [0xee; MAX_PACKET];
        let bytes = headers.write(&payload, &mut out).unwrap();
        prop_assert_eq!(bytes.len(), headers.packet_len(payload.len()));
        let packet = Packet::read_checked(bytes).unwrap();
        let transport = packet.transport().unwrap();
        prop_assert_eq!(transport.payload, payload.as_slice());
        prop_assert_eq!(transport.extended, headers.extended);
        let mut expected = headers;
        expected.lrh = Lrh { lnh: packet.lrh.lnh, pkt_len: packet.lrh.pkt_len, ..headers.lrh };
        expected.bth.pad_count = PadCount::of_payload(payload.len());
        expected.grh = headers.grh.map(|grh| Grh {
            pay_len: (packet.lrh.pkt_len.bytes() - 48) as u16,
            nxt_hdr: 0x1b,
            ..grh
        });
        prop_assert_eq!(packet.headers().unwrap(), expected);
        read_untrusted(bytes);
    }

    #[test]
    fn one_flipped_bit_is_never_overlooked((headers, payload) in some_headers(), bit: usize) {
        let mut out = [0; MAX_PACKET];
        let bytes = headers.write(&payload, &mut out).unwrap();
        let bit = bit % (bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(Packet::read_checked(bytes).is_err());
        prop_assert!(check_vcrc(bytes).is_err());
    }

    #[test]
    fn no_bytes_whatever_upset_the_reader(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        read_untrusted(&bytes);
    }

    #[test]
    fn a_packet_with_a_few_wrong_bytes_upsets_nobody(
        (headers, payload) in some_headers(),
        damage in prop::collection::vec((any::<usize>(), any::<u8>()), 0..4),
        cut in prop_oneof![3 => Just(0), 1 => 0..70_usize],
        resealed: bool,
    ) {
        let mut out = [0; MAX_PACKET];
        let bytes = headers.write(&payload, &mut out).unwrap();
        for (at, value) in damage {
            let front = bytes.len().min(80);
            bytes[at % front] = value;
        }
        if resealed {
            let _ = seal(bytes);
        }
        let keep = bytes.len().saturating_sub(cut);
        read_untrusted(&bytes[..keep]);
    }

    #[test]
    fn a_frame_filled_in_place_is_the_packet_written_at_once((headers, payload) in some_headers()) {
        let (mut one, mut two) = ([0xee; MAX_PACKET], [0x11; MAX_PACKET]);
        let mut frame = headers.frame(payload.len(), &mut one).unwrap();
        frame.payload().copy_from_slice(&payload);
        let one: &[u8] = frame.seal();
        prop_assert_eq!(one, headers.write(&payload, &mut two).unwrap());
    }
}
