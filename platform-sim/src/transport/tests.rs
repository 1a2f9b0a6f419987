//! Packets from one port to another, and everything that keeps them out.

use super::*;
use crate::fabric::{BadKey, Effect, NodeState, PortCaps};
use core_ib::wire::mad::{MtuCode, PortState as State, SlToVlMappingTable};
use core_ib::wire::packet::{
    FlowLabel, ImmDt, MAX_PACKET, Opcode, Packet, Vl, check_icrc, refresh_vcrc, seal,
};
use core_ib::{Gid, Guid, Lid, Mtu, PKey, Psn, QKey, Qpn, Sl};
use proptest::prelude::*;

const MGID: Gid = Gid([
    0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff,
]);

/// An active port with LID 8 to 11, and a few entries in its tables.
pub(super) fn node() -> NodeState {
    let mut node = NodeState::ca(Guid(0x10), &[Guid(0x11)], &PortCaps::SDR_4X);
    let port = node.port_mut(1).unwrap();
    port.info.state = State::ACTIVE;
    (port.info.lid, port.info.lmc) = (Lid(8), 2);
    port.p_keys[1] = PKey(0x8001);
    port.p_keys[2] = PKey(0x0002);
    port.guids[3] = Guid(0x99);
    node
}

fn sender() -> UdSender {
    UdSender {
        qpn: Qpn::new(0x404),
        q_key: QKey(0x8765_4321),
        p_key_index: 0,
        psn: Psn::new(7),
    }
}

fn request() -> UdRequest {
    UdRequest {
        to: AddressVector {
            dlid: Lid(9),
            sl: Sl::new(2),
            path_bits: 6,
            grh: None,
        },
        dest_qp: Qpn::new(0x405),
        q_key: QKey(0x0b1b),
        imm: None,
        solicited: false,
    }
}

fn route(dgid: Gid) -> GlobalRoute {
    GlobalRoute {
        dgid,
        sgid_index: 3,
        flow_label: FlowLabel::new(0x1_2345),
        hop_limit: 3,
        traffic_class: 9,
    }
}

fn receiver() -> UdReceiver {
    UdReceiver {
        kind: ReceiverKind::Ud { p_key_index: 0 },
        qpn: Qpn::new(0x405),
        q_key: QKey(0x0b1b),
        receives: true,
    }
}

fn packet(sender: &UdSender, request: &UdRequest, payload: &[u8]) -> Vec<u8> {
    let node = node();
    let headers = ud_headers(node.port(1).unwrap(), sender, request).unwrap();
    let mut out = [0; MAX_PACKET];
    headers.write(payload, &mut out).unwrap().to_vec()
}

/// What becomes of a packet at [`node`] and [`receiver`].
fn fate(bytes: &[u8], receiver: &UdReceiver) -> Result<(), DropReason> {
    let mut node = node();
    let incoming = accept(&mut node, 1, bytes, &mut Vec::new())?;
    ud_receive(node.port(1).unwrap(), &incoming, receiver).map(|_| ())
}

#[test]
fn a_datagram_arrives_with_all_that_its_completion_says() {
    let mut wr = request();
    wr.imm = Some(ImmDt([1, 2, 3, 4]));
    wr.solicited = true;
    wr.to.grh = Some(route(Gid::unicast(Gid::DEFAULT_PREFIX, Guid(0x11))));
    let bytes = packet(&sender(), &wr, b"hello");
    let mut node = node();
    let incoming = accept(&mut node, 1, &bytes, &mut Vec::new()).unwrap();
    let (path_bits, gid_index) = (1, Some(0));
    assert_eq!(
        incoming.to,
        Destination::Unicast {
            path_bits,
            gid_index
        }
    );
    let receipt = ud_receive(node.port(1).unwrap(), &incoming, &receiver()).unwrap();
    assert_eq!(
        (receipt.payload, receipt.byte_count()),
        (b"hello".as_slice(), 45)
    );
    assert_eq!(receipt.imm, wr.imm);
    assert!(receipt.solicited && !receipt.multicast);
    assert_eq!(
        (receipt.src_qp, receipt.slid, receipt.sl),
        (Qpn::new(0x404), Lid(10), Sl::new(2))
    );
    assert_eq!((receipt.path_bits, receipt.p_key_index), (1, 0));
    assert_eq!(receipt.grh, bytes.get(8..48));
    let grh = incoming.transport.grh.unwrap();
    assert_eq!(grh.sgid, Gid::unicast(Gid::DEFAULT_PREFIX, Guid(0x99)));
    assert_eq!((grh.hop_limit, grh.traffic_class), (3, 9));
    let counts = &node.port(1).unwrap().counts;
    assert_eq!((counts.rcv_pkts.total(), counts.rcv_errors.total()), (1, 0));
    assert_eq!(counts.rcv_data.total(), (bytes.len() as u64 - 2) / 4);
}

#[test]
fn a_q_key_with_the_top_bit_stands_for_the_queue_pairs_own() {
    let q_key = |q_key| {
        let bytes = packet(
            &sender(),
            &UdRequest {
                q_key: QKey(q_key),
                ..request()
            },
            &[],
        );
        let transport = *Packet::read(&bytes).unwrap().transport().unwrap();
        transport.extended.deth.unwrap().q_key
    };
    assert_eq!(q_key(0x7fff_ffff), QKey(0x7fff_ffff));
    assert_eq!(q_key(0x8000_0000), QKey(0x8765_4321));
}

#[test]
fn a_request_that_names_what_the_port_does_not_have_makes_no_packet() {
    let node = node();
    let port = node.port(1).unwrap();
    let mut wr = request();
    wr.to.grh = Some(GlobalRoute {
        sgid_index: 32,
        ..route(MGID)
    });
    assert_eq!(
        ud_headers(port, &sender(), &wr),
        Err(SendError::SgidIndex(32))
    );
    let with = |p_key_index| {
        let sender = UdSender {
            p_key_index,
            ..sender()
        };
        ud_headers(port, &sender, &request())
    };
    assert_eq!(with(64), Err(SendError::PKeyIndex(64)));
    // An entry without a key is no fault of the request: verbs 12.
    assert_eq!(with(3), Err(SendError::Discard(Discard::NoPKey(3))));
}

#[test]
fn the_lane_is_that_of_the_service_level_and_none_is_a_discard() {
    let mut node = node();
    let port = node.port_mut(1).unwrap();
    let mut lanes = [15; 16];
    lanes[2] = 3;
    port.sl_to_vl[0] = SlToVlMappingTable::new(lanes);
    let mut wr = request();
    assert_eq!(ud_headers(port, &sender(), &wr).unwrap().lrh.vl, Vl::new(3));
    wr.to.sl = Sl::new(5);
    let made = ud_headers(port, &sender(), &wr);
    assert_eq!(made, Err(SendError::Discard(Discard::NoLane)));
}

#[test]
fn a_management_packet_leaves_on_its_own_lane() {
    let smi = UdSender {
        qpn: Qpn::SMI,
        p_key_index: 50,
        ..sender()
    };
    let wr = UdRequest {
        dest_qp: Qpn::SMI,
        q_key: QKey(0),
        ..request()
    };
    let bytes = packet(&smi, &wr, &[0; 256]);
    assert_eq!(
        (bytes[0] >> 4, &bytes[10..12]),
        (15, [0xff, 0xff].as_slice())
    );
    let kind = ReceiverKind::Smi;
    assert_eq!(fate(&bytes, &UdReceiver { kind, ..receiver() }), Ok(()));
}

#[test]
fn a_key_that_does_not_fit_is_a_violation_with_both_ends() {
    let wrong = UdReceiver {
        q_key: QKey(1),
        ..receiver()
    };
    let bytes = packet(&sender(), &request(), &[]);
    let Err(DropReason::Key(violation)) = fate(&bytes, &wrong) else {
        panic!("let in");
    };
    assert_eq!(violation.key, BadKey::Q(QKey(0x0b1b)));
    assert_eq!((violation.slid, violation.dlid), (Lid(10), Lid(9)));
    assert_eq!(
        (violation.src_qp, violation.dest_qp),
        (Qpn::new(0x404), Qpn::new(0x405))
    );
    let other = UdReceiver {
        kind: ReceiverKind::Ud { p_key_index: 1 },
        ..receiver()
    };
    let Err(DropReason::Key(violation)) = fate(&bytes, &other) else {
        panic!("let in");
    };
    assert_eq!(violation.key, BadKey::P(PKey(0xffff)));
}

#[test]
fn two_limited_members_do_not_meet_but_qp1_takes_any_key_of_the_table() {
    let limited = UdSender {
        p_key_index: 2,
        ..sender()
    };
    let bytes = packet(&limited, &request(), &[0; 256]);
    let at = |kind| fate(&bytes, &UdReceiver { kind, ..receiver() });
    let limited = at(ReceiverKind::Ud { p_key_index: 2 });
    assert!(matches!(limited, Err(DropReason::Key(_))));
    assert!(matches!(at(ReceiverKind::Gsi), Err(DropReason::Key(_))));
    let full = UdSender {
        p_key_index: 1,
        ..sender()
    };
    let bytes = packet(&full, &request(), &[0; 256]);
    let mut node = node();
    let incoming = accept(&mut node, 1, &bytes, &mut Vec::new()).unwrap();
    let gsi = UdReceiver {
        kind: ReceiverKind::Gsi,
        ..receiver()
    };
    let receipt = ud_receive(node.port(1).unwrap(), &incoming, &gsi).unwrap();
    assert_eq!(receipt.p_key_index, 1);
}

#[test]
fn special_queue_pairs_take_mads_and_nothing_else() {
    let gsi = UdReceiver {
        kind: ReceiverKind::Gsi,
        ..receiver()
    };
    let short = packet(&sender(), &request(), &[0; 255]);
    assert_eq!(fate(&short, &gsi), Err(DropReason::Payload(255)));
    let wr = UdRequest {
        imm: Some(ImmDt([0; 4])),
        ..request()
    };
    let imm = packet(&sender(), &wr, &[0; 256]);
    assert_eq!(fate(&imm, &gsi), Err(DropReason::Opcode(0x65)));
    assert_eq!(fate(&imm, &receiver()), Ok(()));
}

#[test]
fn a_queue_pair_that_does_not_receive_or_speaks_another_service_gets_nothing() {
    let bytes = packet(&sender(), &request(), &[]);
    let idle = UdReceiver {
        receives: false,
        ..receiver()
    };
    assert_eq!(
        fate(&bytes, &idle),
        Err(DropReason::QpState(Qpn::new(0x405)))
    );
    let mut rc = packet(&sender(), &request(), &[0; 8]);
    rc[8] = Opcode::RC_SEND_ONLY.0;
    seal(&mut rc).unwrap();
    assert_eq!(fate(&rc, &receiver()), Err(DropReason::Opcode(0x04)));
}

#[test]
fn what_is_for_another_port_stays_out() {
    let mut wr = request();
    wr.to.dlid = Lid(12);
    let bytes = packet(&sender(), &wr, &[]);
    assert_eq!(fate(&bytes, &receiver()), Err(DropReason::Dlid(Lid(12))));
    let dgid = Gid::unicast(5, Guid(0x11));
    wr.to = AddressVector {
        dlid: Lid(9),
        grh: Some(route(dgid)),
        ..wr.to
    };
    let bytes = packet(&sender(), &wr, &[]);
    assert_eq!(fate(&bytes, &receiver()), Err(DropReason::Dgid(dgid)));
    wr.to = AddressVector {
        dlid: Lid::PERMISSIVE,
        grh: None,
        ..wr.to
    };
    let bytes = packet(&sender(), &wr, &[]);
    assert_eq!(
        fate(&bytes, &receiver()),
        Err(DropReason::Dlid(Lid::PERMISSIVE))
    );
}

#[test]
fn a_group_needs_its_lid_its_gid_and_its_queue_pair_number_together() {
    let group = |dlid, dgid, dest_qp| {
        let to = AddressVector {
            dlid: Lid(dlid),
            grh: Some(route(dgid)),
            ..request().to
        };
        let wr = UdRequest {
            to,
            dest_qp: Qpn::new(dest_qp),
            ..request()
        };
        fate(&packet(&sender(), &wr, &[]), &receiver())
    };
    let own = Gid::unicast(Gid::DEFAULT_PREFIX, Guid(0x11));
    assert_eq!(group(0xc001, MGID, 0xff_ffff), Ok(()));
    for (dlid, dgid, dest_qp) in [
        (9, MGID, 0xff_ffff),
        (0xc001, own, 0xff_ffff),
        (0xc001, MGID, 0x405),
        (9, own, 0xff_ffff),
        (9, MGID, 0x405),
    ] {
        assert_eq!(group(dlid, dgid, dest_qp), Err(DropReason::Multicast));
    }
    let bare = AddressVector {
        dlid: Lid(0xc001),
        ..request().to
    };
    let wr = UdRequest {
        to: bare,
        dest_qp: Qpn::MULTICAST,
        ..request()
    };
    let fate = fate(&packet(&sender(), &wr, &[]), &receiver());
    assert_eq!(fate, Err(DropReason::Multicast), "without GRH");
}

#[test]
fn vl15_and_qp0_go_together() {
    let to_smi = UdRequest {
        dest_qp: Qpn::SMI,
        ..request()
    };
    let bytes = packet(&sender(), &to_smi, &[0; 256]);
    assert_eq!(
        fate(&bytes, &receiver()),
        Err(DropReason::ManagementLane(Qpn::SMI))
    );
    let mut bytes = packet(&sender(), &request(), &[]);
    bytes[0] = 0xf0;
    refresh_vcrc(&mut bytes).unwrap();
    let fate = fate(&bytes, &receiver());
    assert_eq!(fate, Err(DropReason::ManagementLane(Qpn::new(0x405))));
}

#[test]
fn link_errors_are_counted_and_the_rest_is_silent() {
    let good = packet(&sender(), &request(), &[0; 400]);
    let errors = |bytes: &[u8]| {
        let mut node = node();
        let reason = accept(&mut node, 1, bytes, &mut Vec::new()).unwrap_err();
        (reason, node.port(1).unwrap().counts.rcv_errors.total())
    };
    let mut flipped = good.clone();
    flipped[40] ^= 1;
    assert!(matches!(errors(&flipped), (DropReason::Link(_), 1)));
    refresh_vcrc(&mut flipped).unwrap();
    assert!(
        matches!(errors(&flipped), (DropReason::Malformed(_), 0)),
        "only the ICRC"
    );
    let mut lane = good.clone();
    lane[0] = 0x70;
    refresh_vcrc(&mut lane).unwrap();
    assert_eq!(errors(&lane), (DropReason::Lane(Vl::new(7)), 1));
    let mut cut = good[..good.len() - 4].to_vec();
    refresh_vcrc(&mut cut).unwrap();
    assert!(matches!(errors(&cut), (DropReason::Link(_), 1)));
    let mut node = node();
    node.port_mut(1).unwrap().info.neighbor_mtu = MtuCode::from(Mtu::Mtu256);
    let long = accept(&mut node, 1, &good, &mut Vec::new());
    assert!(matches!(long, Err(DropReason::Link(_))));
}

#[test]
fn an_armed_port_becomes_active_by_data_and_one_not_armed_takes_none() {
    let bytes = packet(&sender(), &request(), &[]);
    let mut node = node();
    node.port_mut(1).unwrap().info.state = State::ARMED;
    let mut effects = Vec::new();
    accept(&mut node, 1, &bytes, &mut effects).unwrap();
    let (old, new) = (State::ARMED, State::ACTIVE);
    assert_eq!(effects, [Effect::PortState { port: 1, old, new }]);
    node.port_mut(1).unwrap().info.state = State::INIT;
    let refused = accept(&mut node, 1, &bytes, &mut effects);
    assert_eq!(refused, Err(DropReason::PortState(State::INIT)));
}

#[test]
fn data_leaves_an_active_port_and_management_one_that_is_up() {
    let data = packet(&sender(), &request(), &[0; 64]);
    let smi = UdSender {
        qpn: Qpn::SMI,
        ..sender()
    };
    let smp = packet(
        &smi,
        &UdRequest {
            dest_qp: Qpn::SMI,
            ..request()
        },
        &[0; 256],
    );
    let rows = [
        (State::DOWN, false, false),
        (State::INIT, false, true),
        (State::ARMED, false, true),
        (State::ACTIVE, true, true),
    ];
    for (state, data_leaves, smp_leaves) in rows {
        let mut node = node();
        let port = node.port_mut(1).unwrap();
        port.info.state = state;
        assert_eq!(depart(port, &data).is_ok(), data_leaves, "{state:?}");
        assert_eq!(depart(port, &smp).is_ok(), smp_leaves, "{state:?}");
        let counts = &port.counts;
        assert_eq!(
            counts.xmit_pkts.total(),
            u64::from(data_leaves),
            "SMPs are not counted"
        );
        let discarded = u64::from(!data_leaves) + u64::from(!smp_leaves);
        assert_eq!(counts.xmit_discards.total(), discarded);
    }
    let mut node = node();
    let port = node.port_mut(1).unwrap();
    let long = packet(&sender(), &request(), &[0; 2049]);
    assert_eq!(depart(port, &long), Ok(()), "headers have some room");
    let long = packet(&sender(), &request(), &[0; 2400]);
    assert_eq!(depart(port, &long), Err(Discard::Length(long.len())));
}

#[test]
fn a_packet_to_an_own_lid_stays_inside_and_multicast_does_both() {
    let node = node();
    let port = node.port(1).unwrap();
    let ways = [11, 12, 0xc000, 0xffff].map(|lid| whither(port, Lid(lid)));
    let expected = [
        Whither::Loopback,
        Whither::Wire,
        Whither::Both,
        Whither::Wire,
    ];
    assert_eq!(ways, expected);
}

#[test]
fn a_raw_packet_gets_its_lane_its_lid_its_lengths_and_its_checksums() {
    let whole = packet(&sender(), &request(), &[0x55; 256]);
    let mut bytes = whole[..whole.len() - 2].to_vec();
    let end = bytes.len();
    bytes[end - 4..].fill(0);
    bytes[0] = 0;
    (bytes[4], bytes[5]) = (0, 1); // a length that is wrong
    (bytes[6], bytes[7]) = (0xff, 0xfe); // path bits 2
    let node = node();
    let port = node.port(1).unwrap();
    let options = MlxOptions {
        vl15: false,
        keep_slid: false,
        icrc: IcrcMode::Compute,
    };
    let mut made = bytes.clone();
    finish_mlx(port, &mut made, &options).unwrap();
    assert_eq!(made, whole);

    let options = MlxOptions {
        vl15: true,
        keep_slid: true,
        icrc: IcrcMode::Keep,
    };
    let mut made = bytes.clone();
    finish_mlx(port, &mut made, &options).unwrap();
    assert_eq!((made[0], &made[6..8]), (0xf0, [0xff, 0xfe].as_slice()));
    assert!(check_icrc(&made).is_err(), "four zeros, as supplied");
    for len in [0, 7, 19, 21, 5000] {
        let mut bytes = vec![0; len];
        assert!(finish_mlx(port, &mut bytes, &options).is_err(), "{len}");
    }
}

#[test]
fn a_raw_packet_with_a_grh_has_both_lengths_set() {
    let mut wr = request();
    wr.to.grh = Some(route(Gid::unicast(Gid::DEFAULT_PREFIX, Guid(0x11))));
    let whole = packet(&sender(), &wr, &[0x55; 256]);
    let mut bytes = whole[..whole.len() - 2].to_vec();
    bytes[12..14].fill(0);
    let options = MlxOptions {
        vl15: false,
        keep_slid: true,
        icrc: IcrcMode::Compute,
    };
    let node = node();
    finish_mlx(node.port(1).unwrap(), &mut bytes, &options).unwrap();
    assert_eq!(bytes, whole);
}

#[test]
fn a_datagram_without_a_receive_request_is_counted_where_there_is_a_counter() {
    let mut counts = crate::fabric::PortCounts::default();
    no_receive_request(&mut counts, ReceiverKind::Smi);
    no_receive_request(&mut counts, ReceiverKind::Gsi);
    no_receive_request(&mut counts, ReceiverKind::Ud { p_key_index: 0 });
    assert_eq!(
        (counts.vl15_dropped.total(), counts.qp1_dropped.total()),
        (1, 1)
    );
}

proptest! {
    #[test]
    fn no_packet_whatever_upsets_a_port(
        damage in prop::collection::vec((0..80_usize, any::<u8>()), 0..5),
        payload in prop::collection::vec(any::<u8>(), 0..40), resealed: bool, grh: bool,
    ) {
        let mut wr = request();
        if grh {
            wr.to.grh = Some(route(Gid::unicast(Gid::DEFAULT_PREFIX, Guid(0x11))));
        }
        let good = packet(&sender(), &wr, &payload);
        let mut bytes = good.clone();
        let len = bytes.len();
        for (at, value) in damage {
            bytes[at % len] = value;
        }
        if resealed {
            let _ = seal(&mut bytes);
        }
        let mut node = node();
        let mut effects = Vec::new();
        match accept(&mut node, 1, &bytes, &mut effects) {
            Ok(incoming) => {
                prop_assert!(resealed || bytes == good, "changed, and taken for good");
                let _ = ud_receive(node.port(1).unwrap(), &incoming, &receiver());
            }
            Err(DropReason::Link(_) | DropReason::Lane(_)) => {
                prop_assert_eq!(node.port(1).unwrap().counts.rcv_errors.total(), 1);
            }
            Err(_) => {}
        }
        let mut raw = bytes.clone();
        let options = MlxOptions { vl15: grh, keep_slid: resealed, icrc: IcrcMode::Compute };
        if finish_mlx(node.port(1).unwrap(), &mut raw, &options).is_ok() {
            prop_assert!(check_icrc(&raw).is_ok());
        }
    }
}
