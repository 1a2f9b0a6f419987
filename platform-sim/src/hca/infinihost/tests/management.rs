//! Ports and their agents: MAD_IFC, QP0 and QP1, the firmware on its own. infinihost 3.9, 3.13, 5.9, 8.

use super::verbs::*;
use super::*;
use crate::machine::{LinkControl, PciFunction};
use core_ib::wire::Bth;
use core_ib::wire::mad::{
    AttributeId, Capability, GuidInfo, MKey, Mad, MadStatus, Method, NodeDescription, NodeInfo,
    PKeyTable, PortInfo, PortPhysState, PortState, Smp,
};
use core_ib::wire::packet::{
    Deth, Extended, Headers, Lnh, Lrh, Opcode as Op, Packet, PktLen, Vl, check_icrc,
};
use core_ib::{Guid, Lid, PKey, Psn, QKey, Qpn, Sl};
use hca_abi::infinihost::cmd::{CmdStatus, Opcode};
use hca_abi::infinihost::eqe::EventType;
use hca_abi::infinihost::port::SetIb;
use hca_abi::infinihost::qp::ServiceType;
use hca_abi::infinihost::wqe::{DataSegment, MlxNextSegment, WqeOpcode};
use zerocopy::IntoBytes;

const SMI_BASE: u32 = 0x10;
const GSI_BASE: u32 = 0x12;
const BUFFER: u64 = 0x5000;
const HEADER: u64 = 0x3000;
const MAD: u64 = 0x3800;
const LID: u16 = 0x15;

/// QP0 or QP1 of port 1, in RTS.
fn special(rig: &mut Rig, base: u32, kind: u8, cq: &Cq) -> Qp {
    assert_eq!(
        rig.command(Opcode::CONF_SPECIAL_QP, kind, base, 0).status,
        CmdStatus::OK
    );
    let mut context = qp_context(ServiceType::MLX, 0, 1, cq.cqn);
    context.set_q_key(QKey::GSI.0);
    assert_eq!(
        rig.modify(Opcode::RST2INIT_QPEE, base, 0, &context),
        CmdStatus::OK
    );
    let qp = Qp::new(base, ServiceType::MLX);
    rig.ready(&qp);
    qp
}

/// Posts a MAD as Linux does: header, payload, and an inline place for the ICRC.
fn post_mad(
    rig: &mut Rig,
    qp: &mut Qp,
    headers: &Headers,
    mad: &[u8; 256],
    control: MlxNextSegment,
) {
    let mut packet = [0; 512];
    let written = headers.write(mad, &mut packet).unwrap();
    let header = written.len() - 256 - 6;
    rig.store(HEADER, &written[..header]);
    rig.store(MAD, mad);
    let at = rig.wqe_at(qp, qp.send_wqe(qp.sent));
    let pointers = [
        DataSegment::new(header as u32, ALL, HEADER),
        DataSegment::new(256, ALL, MAD),
    ];
    rig.store(at, &control);
    rig.store(at + 16, &pointers);
    rig.store(at + 48, &[0x80_u8, 0, 0, 4]);
    rig.store(at + 52, &[0_u8; 12]);
    rig.ring(
        UAR.into(),
        0x10,
        (at | 0x0a) << 32 | u64::from(qp.qpn) << 8 | 4,
    );
    qp.sent += 1;
}

/// Headers of a MAD from `slid` to `dlid`.
pub fn headers(slid: Lid, dlid: Lid, qpn: Qpn, q_key: QKey) -> Headers {
    let vl = if qpn == Qpn::SMI {
        Vl::MANAGEMENT
    } else {
        Vl::new(0)
    };
    let deth = Deth { q_key, src_qp: qpn };
    Headers {
        lrh: Lrh {
            vl,
            sl: Sl::new(0),
            lnh: Lnh::Local,
            dlid,
            pkt_len: PktLen::default(),
            slid,
        },
        grh: None,
        bth: Bth::new(Op::UD_SEND_ONLY, PKey::DEFAULT, qpn, Psn::new(0)),
        extended: Extended::datagram(deth),
    }
}

/// A MAD comes in at port 1.
fn arrive(rig: &mut Rig, headers: &Headers, mad: &[u8; 256]) {
    let mut packet = [0; 512];
    let packet = headers.write(mad, &mut packet).unwrap();
    rig.hca.receive(&mut rig.bus, 1, packet);
}

fn get(attribute: AttributeId) -> Smp {
    Smp::lid_routed(Method::GET, attribute, 0)
}

#[test]
fn the_agent_tells_of_node_and_ports() {
    let mut rig = Rig::card(1);
    rig.start(true);
    let info: NodeInfo = rig.get(2, 0);
    assert_eq!((info.num_ports, info.local_port_num), (2, 2));
    assert_eq!(
        (info.node_guid, info.port_guid),
        (Guid(0x2_c900_0000_0010), Guid(0x2_c900_0000_0012))
    );
    assert_eq!(
        (info.device_id, info.vendor_id, info.revision),
        (0x5a44, 0x2c9, 0xa1)
    );
    assert_eq!(info.sys_image_guid, Guid(0x2_c900_0000_0013));
    assert_eq!(
        rig.get::<NodeDescription>(1, 0).as_str(),
        "MT23108 InfiniHost"
    );
    let guids: GuidInfo = rig.get(1, 0);
    assert_eq!(guids.guids[0], Guid(0x2_c900_0000_0011));
    let keys: PKeyTable = rig.get(1, 1);
    assert_eq!(keys.keys, [PKey(0); 32]);
    let port: PortInfo = rig.get(1, 1);
    assert_eq!((port.state, port.guid_cap), (PortState::DOWN, 32));
}

#[test]
fn what_is_no_agents_business_gets_no_answer() {
    let mut rig = Rig::card(1);
    rig.start(true);
    let mut smp = get(AttributeId::NODE_INFO);
    for class in [3, 7, 0x30] {
        smp.header.class.0 = class;
        assert_eq!(
            rig.mad_ifc(1, &smp),
            Err(CmdStatus::BAD_PKT),
            "class {class}"
        );
    }
    assert_eq!(
        rig.mad_ifc(3, &get(AttributeId::NODE_INFO)),
        Err(CmdStatus::BAD_PARAM)
    );
    smp.header.class.0 = 9;
    let reply = rig.mad_ifc(1, &smp).unwrap();
    assert_eq!(reply.header.status, MadStatus::UNSUPPORTED_METHOD_ATTRIBUTE);
    let unknown = rig.mad_ifc(1, &get(AttributeId(0xff17))).unwrap();
    assert_eq!(
        unknown.header.status,
        MadStatus::UNSUPPORTED_METHOD_ATTRIBUTE
    );
}

#[test]
fn an_answer_to_a_directed_route_leaves_the_d_bit_to_the_driver() {
    let mut rig = Rig::card(1);
    rig.start(true);
    let mut smp = Smp::directed(Method::SET, AttributeId::PORT_INFO, 0, &[1, 3]).unwrap();
    let mut info: PortInfo = rig.get(1, 1);
    info.lid = Lid(5);
    info.client_reregister = true;
    smp.put(&info).unwrap();
    let reply = rig.mad_ifc(1, &smp).unwrap();
    // Whoever hands the Set over takes notice of what it changed if this is zero.
    assert_eq!(reply.header.status, MadStatus::OK);
    let refused = Smp::directed(Method::GET, AttributeId(0xff17), 0, &[1, 3]).unwrap();
    assert_eq!(
        rig.mad_ifc(1, &refused).unwrap().header.status,
        MadStatus::UNSUPPORTED_METHOD_ATTRIBUTE
    );
}

#[test]
fn the_m_key_is_looked_at_unless_the_command_says_otherwise() {
    let mut rig = Rig::card(1);
    rig.start(true);
    rig.set_port(1, |info| (info.m_key, info.m_key_protect) = (MKey(7), 2));
    let mut smp = get(AttributeId::NODE_INFO);
    rig.store(IN, &smp.to_bytes());
    assert_eq!(
        rig.command(Opcode::MAD_IFC, 0, 1, IN).status,
        CmdStatus::BAD_PKT
    );
    assert!(rig.mad_ifc(1, &smp).is_ok());
    smp.m_key = MKey(7);
    rig.store(IN, &smp.to_bytes());
    assert_eq!(rig.command(Opcode::MAD_IFC, 0, 1, IN).status, CmdStatus::OK);
    assert_eq!(rig.get::<PortInfo>(1, 1).m_key_violations, 1);
}

#[test]
fn a_port_lives_from_init_ib_to_close_ib_and_tells_of_active_and_down_alone() {
    let mut rig = Rig::card(1);
    rig.start(true);
    rig.link(1, true);
    assert_eq!(
        rig.get::<PortInfo>(1, 1).state,
        PortState::DOWN,
        "not before INIT_IB"
    );
    rig.init_ib(1);
    let info: PortInfo = rig.get(1, 1);
    assert_eq!(
        (info.state, info.phys_state),
        (PortState::INIT, PortPhysState::LINK_UP)
    );
    rig.set_port(1, |info| info.state = PortState::ARMED);
    assert_eq!(rig.eqe(EQ_ASYNC, 0), None);
    rig.set_port(1, |info| info.state = PortState::ACTIVE);
    let mut index = 0;
    let mut events = |rig: &mut Rig| -> Vec<(u8, u8)> {
        let events = rig.take_events(EQ_ASYNC, &mut index);
        assert!(
            events
                .iter()
                .all(|eqe| eqe.event_type() == EventType::PORT_CHANGE)
        );
        events
            .iter()
            .map(|eqe| (eqe.port(), eqe.sub_type()))
            .collect()
    };
    assert_eq!(events(&mut rig), [(1, 4)]);
    rig.link(1, false);
    assert_eq!(events(&mut rig), [(1, 1)]);
    rig.link(1, true);
    assert_eq!(events(&mut rig), [], "INIT is no news");
    assert_eq!(rig.plain(Opcode::CLOSE_IB, 1), CmdStatus::OK);
    assert_eq!(rig.get::<PortInfo>(1, 1).state, PortState::DOWN);
    assert_eq!(rig.plain(Opcode::CLOSE_IB, 1), CmdStatus::OK, "again");
    assert_eq!(
        rig.plain(Opcode::CLOSE_IB, 2),
        CmdStatus::OK,
        "never opened"
    );
    assert_eq!(rig.plain(Opcode::CLOSE_IB, 3), CmdStatus::BAD_PARAM);
    let polls: Vec<bool> = rig
        .bus
        .links
        .iter()
        .map(|(_, control)| *control != LinkControl::Disabled)
        .collect();
    assert_eq!(polls, [true, false]);
}

#[test]
fn set_ib_changes_what_port_info_shows() {
    let mut rig = Rig::card(1);
    rig.start(true);
    let mut input = SetIb::ZERO;
    let mask = Capability::SM | Capability::TRAP;
    input
        .set_capability_mask(mask.bits())
        .set_set_system_image(true)
        .set_system_image_guid(0x99);
    assert_eq!(rig.give(Opcode::SET_IB, 0, 2, &input), CmdStatus::OK);
    assert_eq!(rig.get::<PortInfo>(2, 2).capability, mask);
    assert_eq!(rig.get::<NodeInfo>(1, 0).sys_image_guid, Guid(0x99));
}

#[test]
fn a_changed_capability_mask_is_told_by_a_trap_of_the_firmwares() {
    let mut rig = Rig::card(1);
    rig.start(true);
    rig.activate(1, LID);
    rig.set_port(1, |info| info.master_sm_lid = Lid(3));
    let mut input = SetIb::ZERO;
    input.set_capability_mask(Capability::TRAP.bits());
    assert_eq!(rig.give(Opcode::SET_IB, 0, 1, &input), CmdStatus::OK);
    rig.settle();
    let (_, bytes) = rig.bus.sent.pop().expect("a trap");
    let packet = Packet::read_checked(&bytes).unwrap();
    assert_eq!((packet.lrh.dlid, packet.lrh.vl), (Lid(3), Vl::MANAGEMENT));
    let trap = Smp::from_bytes(packet.transport().unwrap().payload.try_into().unwrap());
    assert_eq!(
        (trap.header.method, &trap.data[4..6]),
        (Method::TRAP, &144_u16.to_be_bytes()[..])
    );
}

#[test]
fn qp0_takes_and_sends_smps_by_directed_route_before_the_port_has_a_lid() {
    let mut rig = Rig::card(1);
    rig.start(true);
    let mut cq = rig.create_cq(0x20);
    let mut qp = special(&mut rig, SMI_BASE, 0, &cq);
    rig.init_ib(1);
    rig.link(1, true);
    let request = Smp::directed(Method::GET, AttributeId::NODE_INFO, 0, &[1, 3]).unwrap();
    let from = headers(Lid::PERMISSIVE, Lid::PERMISSIVE, Qpn::SMI, QKey(0));
    arrive(&mut rig, &from, &request.to_bytes());
    assert!(rig.poll(&mut cq).is_none(), "no receive request");
    rig.post_receive(&mut qp, &[(BUFFER, 296)]);
    arrive(&mut rig, &from, &request.to_bytes());
    let cqe = rig.poll(&mut cq).unwrap();
    assert_eq!(
        (cqe.qpn(), cqe.remote_qpn(), cqe.opcode()),
        (SMI_BASE, 0, 0x64)
    );
    assert_eq!(
        (cqe.byte_count(), cqe.slid(), cqe.immediate()),
        (296, 0xffff, 0)
    );
    assert_eq!(rig.load::<[u8; 256]>(BUFFER + 40), request.to_bytes());
    assert!(rig.bus.sent.is_empty(), "software answers");

    let mut control = MlxNextSegment::ZERO;
    control
        .set_vl15(true)
        .set_slr(true)
        .set_dlid(0xffff)
        .set_signaled(true);
    let reply = request.reply(MadStatus::OK).unwrap().to_bytes();
    // What software gets wrong and the hardware puts right: lane, lengths, ICRC.
    let mut wrong = from;
    wrong.lrh.vl = Vl::new(0);
    post_mad(&mut rig, &mut qp, &wrong, &reply, control);
    assert_eq!(rig.poll(&mut cq).unwrap().opcode(), 0x0a);
    let (port, bytes) = rig.bus.sent.pop().unwrap();
    let packet = Packet::read_checked(&bytes).unwrap();
    assert_eq!(
        (port, packet.lrh.vl, packet.lrh.slid),
        (1, Vl::MANAGEMENT, Lid::PERMISSIVE)
    );
    assert_eq!(packet.transport().unwrap().payload, reply);
}

#[test]
fn qp1_shows_the_p_key_index_and_sends_from_the_ports_own_lid() {
    let mut rig = Rig::card(1);
    rig.start(true);
    rig.activate(1, LID);
    rig.set_port(1, |info| info.lmc = 2);
    let mut table: PKeyTable = rig.get(1, 0);
    table.keys[5] = PKey(0x8002);
    rig.set(1, 0, &table);
    let mut cq = rig.create_cq(0x20);
    let mut qp = special(&mut rig, GSI_BASE, 1, &cq);
    rig.post_receive(&mut qp, &[(BUFFER, 296)]);
    let mut from = headers(Lid(7), Lid(LID & !3 | 2), Qpn::GSI, QKey::GSI);
    from.bth.p_key = PKey(0x0002);
    arrive(&mut rig, &from, &[0x33; 256]);
    let cqe = rig.poll(&mut cq).unwrap();
    assert_eq!(
        (cqe.qpn(), cqe.remote_qpn(), cqe.opcode()),
        (GSI_BASE, 1, 0x65)
    );
    assert_eq!(
        (cqe.immediate(), cqe.path_bits(), cqe.slid()),
        (5 << 16, 2, 7)
    );
    let mut wrong_key = from;
    wrong_key.extended = Extended::datagram(Deth {
        q_key: QKey(1),
        src_qp: Qpn::GSI,
    });
    rig.post_receive(&mut qp, &[(BUFFER, 296)]);
    arrive(&mut rig, &wrong_key, &[0x33; 256]);
    assert!(rig.poll(&mut cq).is_none());

    let mut control = MlxNextSegment::ZERO;
    control.set_dlid(7).set_signaled(true);
    let to = headers(Lid(3), Lid(7), Qpn::GSI, QKey::GSI);
    post_mad(&mut rig, &mut qp, &to, &[0x44; 256], control);
    rig.poll(&mut cq).unwrap();
    let (_, bytes) = rig.bus.sent.pop().unwrap();
    let packet = Packet::read_checked(&bytes).unwrap();
    assert_eq!(
        packet.lrh.slid,
        Lid(LID & !3 | 3),
        "base of the port, path bits of the header"
    );
    assert!(!packet.lrh.vl.is_management());
    assert_eq!(packet.transport().unwrap().payload, [0x44; 256]);
    check_icrc(&bytes).unwrap();
}

#[test]
fn until_software_takes_qp0_over_the_firmware_answers() {
    let mut rig = Rig::card(1);
    rig.start(true);
    rig.init_ib(1);
    rig.link(1, true);
    let mut request = Smp::directed(Method::GET, AttributeId::NODE_INFO, 0, &[1, 3]).unwrap();
    request.header.hop_pointer = 2;
    request.return_path[1] = 9;
    let from = headers(Lid::PERMISSIVE, Lid::PERMISSIVE, Qpn::SMI, QKey(0));
    arrive(&mut rig, &from, &request.to_bytes());
    let (_, bytes) = rig.bus.sent.pop().unwrap();
    let packet = Packet::read_checked(&bytes).unwrap();
    assert_eq!(
        (packet.lrh.dlid, packet.lrh.slid),
        (Lid::PERMISSIVE, Lid::PERMISSIVE)
    );
    let reply = Smp::from_bytes(packet.transport().unwrap().payload.try_into().unwrap());
    assert!(reply.is_returning());
    assert_eq!((reply.header.hop_pointer, reply.return_path[2]), (2, 1));
    assert_eq!(reply.get::<NodeInfo>().unwrap().local_port_num, 1);

    let mut info: PortInfo = rig.get(1, 1);
    (info.state, info.phys_state) = (PortState::NO_CHANGE, PortPhysState::NO_CHANGE);
    (info.lid, info.master_sm_lid) = (Lid(LID), Lid(3));
    let mut set = Smp::lid_routed(Method::SET, AttributeId::PORT_INFO, 1);
    set.put(&info).unwrap();
    rig.set_port(1, |info| info.lid = Lid(LID));
    arrive(
        &mut rig,
        &headers(Lid(3), Lid(LID), Qpn::SMI, QKey(0)),
        &set.to_bytes(),
    );
    let (_, bytes) = rig.bus.sent.pop().unwrap();
    let packet = Packet::read_checked(&bytes).unwrap();
    assert_eq!((packet.lrh.dlid, packet.lrh.slid), (Lid(3), Lid(LID)));
    assert_eq!(rig.get::<PortInfo>(1, 1).master_sm_lid, Lid(3));

    // Counters are for QP1.
    rig.set_port(1, |info| info.state = PortState::ARMED);
    rig.set_port(1, |info| info.state = PortState::ACTIVE);
    let mut counters = get(AttributeId(0x12)).to_bytes();
    counters[1] = 4;
    counters[65] = 1;
    arrive(
        &mut rig,
        &headers(Lid(3), Lid(LID), Qpn::GSI, QKey::GSI),
        &counters,
    );
    let (_, bytes) = rig.bus.sent.pop().unwrap();
    let packet = Packet::read_checked(&bytes).unwrap();
    let reply = Mad::from_prefix(packet.transport().unwrap().payload).unwrap();
    assert_eq!(
        (reply.header().method, reply.header().status),
        (Method::GET_RESP, MadStatus::OK)
    );
    arrive(
        &mut rig,
        &headers(Lid(3), Lid(LID), Qpn::SMI, QKey(0)),
        &counters,
    );
    assert!(rig.bus.sent.is_empty(), "a class of the other QP");
}

#[test]
fn a_violation_is_told_by_a_trap_through_qp0_until_it_is_repressed() {
    let mut rig = Rig::card(1);
    rig.start(true);
    rig.activate(1, LID);
    rig.set_port(1, |info| info.master_sm_lid = Lid(3));
    let mut cq = rig.create_cq(0x20);
    let mut qp = special(&mut rig, SMI_BASE, 0, &cq);
    rig.post_receive(&mut qp, &[(BUFFER, 296), (BUFFER, 296), (BUFFER, 296)]);
    rig.ud_qp(0x30, 1, &cq);
    let mut wrong = headers(Lid(9), Lid(LID), Qpn::new(0x30), QKey(1));
    wrong.lrh.vl = Vl::new(0);
    arrive(&mut rig, &wrong, &[0; 256]);
    rig.settle();
    let cqe = rig.poll(&mut cq).expect("a trap");
    assert_eq!(
        (cqe.qpn(), cqe.slid(), cqe.byte_count()),
        (SMI_BASE, 0, 296)
    );
    let trap = Smp::from_bytes(&rig.load::<[u8; 256]>(BUFFER + 40));
    assert_eq!(
        (trap.header.method, trap.header.attribute),
        (Method::TRAP, AttributeId::NOTICE)
    );
    assert_eq!(trap.data[4..6], 258_u16.to_be_bytes());
    let mut repress = trap;
    repress.header.method = Method::TRAP_REPRESS;
    assert!(rig.mad_ifc(1, &repress).is_ok());
    assert!(rig.bus.timers.is_empty());
}

#[test]
fn the_special_numbers_are_even_not_reserved_and_can_be_released() {
    let mut rig = Rig::card(1);
    rig.start(true);
    let conf =
        |rig: &mut Rig, kind, base| rig.command(Opcode::CONF_SPECIAL_QP, kind, base, 0).status;
    assert_eq!(conf(&mut rig, 0, 0x0e), CmdStatus::BAD_RESOURCE);
    assert_eq!(conf(&mut rig, 0, 0x11), CmdStatus::BAD_PARAM);
    assert_eq!(conf(&mut rig, 0, 1 << 10), CmdStatus::BAD_INDEX);
    assert_eq!(conf(&mut rig, 2, 0x10), CmdStatus::BAD_PARAM);
    assert_eq!(conf(&mut rig, 0, 0x10), CmdStatus::OK);
    assert_eq!(conf(&mut rig, 1, 0), CmdStatus::OK);
    assert_eq!(conf(&mut rig, 0, 0), CmdStatus::OK);
}

#[test]
fn a_raw_packet_that_is_none_fails_its_request() {
    let mut rig = Rig::card(1);
    rig.start(true);
    rig.activate(1, LID);
    let mut cq = rig.create_cq(0x20);
    let qp = special(&mut rig, GSI_BASE, 1, &cq);
    let at = rig.wqe_at(&qp, qp.send_wqe(0));
    rig.store(at, MlxNextSegment::ZERO.as_bytes());
    rig.store(at + 16, &DataSegment::new(10, ALL, HEADER));
    rig.ring(
        UAR.into(),
        0x10,
        (at | u64::from(WqeOpcode::SEND.0)) << 32 | u64::from(qp.qpn) << 8 | 2,
    );
    let error = rig.poll_error(&mut cq);
    assert_eq!(
        error.syndrome(),
        hca_abi::infinihost::cqe::Syndrome::LOCAL_QP_OPERATION
    );
}
