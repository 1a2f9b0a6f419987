//! Two cards on one cable.

use super::verbs::*;
use super::*;
use crate::machine::PciFunction;
use core_ib::wire::mad::{Attribute, MadStatus, Method, NodeInfo, PortInfo, PortState, Smp};
use core_ib::{Guid, Lid};
use hca_abi::infinihost::cmd::{CmdStatus, Opcode};
use hca_abi::infinihost::mgm::Mgm;
use hca_abi::infinihost::wqe::{DataSegment, WqeOpcode, next};

const AV: u64 = 0x3000;
const DATA: u64 = 0x4000;
const BUFFER: u64 = 0x5000;

/// Carries packets between port 1 of either until none is under way.
fn carry(one: &mut Rig, other: &mut Rig) {
    while !one.bus.sent.is_empty() || !other.bus.sent.is_empty() {
        for (port, packet) in core::mem::take(&mut one.bus.sent) {
            other.hca.receive(&mut other.bus, port, &packet);
        }
        for (port, packet) in core::mem::take(&mut other.bus.sent) {
            one.hca.receive(&mut one.bus, port, &packet);
        }
    }
}

/// Both with an active port 1, LIDs 1 and 2, a CQ and a UD QP 0x30 that has a receive request.
fn pair() -> [(Rig, Cq, Qp); 2] {
    [1, 2].map(|number| {
        let mut rig = Rig::card(number);
        rig.start(number == 1);
        rig.activate(1, number as u16);
        let cq = rig.create_cq(0x20);
        let mut qp = rig.ud_qp(0x30, 1, &cq);
        rig.post_receive(&mut qp, &[(BUFFER, 2088), (BUFFER, 2088)]);
        rig.store(AV, &av(1, 3 - number as u16));
        (rig, cq, qp)
    })
}

#[test]
fn datagrams_of_all_lengths_cross() {
    for len in [0, 1, 2, 3, 4, 255, 2048] {
        let [(mut one, mut cq, mut qp), (mut other, mut other_cq, _)] = pair();
        let data: Vec<u8> = (0..len).map(|at| (at * 7) as u8).collect();
        one.store(DATA, &data[..]);
        let body = datagram(AV, 0x30, Q_KEY, DataSegment::new(len as u32, ALL, DATA));
        one.post_send(&mut qp, WqeOpcode::SEND_IMM, &[body], next::ALWAYS_ONE);
        assert!(!one.poll(&mut cq).unwrap().is_error(), "sent is done");
        carry(&mut one, &mut other);
        let cqe = other.poll(&mut other_cq).unwrap();
        assert_eq!(
            (cqe.byte_count(), cqe.slid(), cqe.remote_qpn()),
            (40 + len as u32, 1, 0x30)
        );
        assert_eq!(cqe.immediate(), 0xcafe_f00d);
        let received: [u8; 2048] = other.load(BUFFER + 40);
        assert_eq!(received[..len], data);
    }
}

#[test]
fn a_packet_that_was_corrupted_on_the_way_is_counted_and_gone() {
    let [(mut one, _, mut qp), (mut other, mut other_cq, _)] = pair();
    let body = datagram(AV, 0x30, Q_KEY, DataSegment::new(20, ALL, DATA));
    one.post_send(&mut qp, WqeOpcode::SEND, &[body], next::ALWAYS_ONE);
    let (port, mut packet) = one.bus.sent.pop().unwrap();
    packet[30] ^= 1;
    other.hca.receive(&mut other.bus, port, &packet);
    assert!(other.poll(&mut other_cq).is_none());
}

#[test]
fn a_group_has_members_on_both_cards() {
    const MGID: [u8; 16] = [
        0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff,
    ];
    let [(mut one, mut cq, mut qp), (mut other, mut other_cq, _)] = pair();
    for rig in [&mut one, &mut other] {
        rig.store(IN, &MGID);
        let bucket = rig.command(Opcode::MGID_HASH, 0, 0, IN).immediate as u32;
        let mut entry = Mgm::ZERO;
        entry.set_gid(MGID).set_member(0, Some(0x30));
        assert_eq!(
            rig.give(Opcode::WRITE_MGM, 0, bucket, &entry),
            CmdStatus::OK
        );
        let mut vector = av(1, 0xc001);
        vector.set_grh(true).set_dgid(MGID);
        rig.store(AV, &vector);
    }
    let body = datagram(AV, 0xff_ffff, Q_KEY, DataSegment::new(20, ALL, DATA));
    one.post_send(&mut qp, WqeOpcode::SEND, &[body], next::ALWAYS_ONE);
    carry(&mut one, &mut other);
    assert!(one.poll(&mut cq).unwrap().is_send());
    for cqe in [
        one.poll(&mut cq).unwrap(),
        other.poll(&mut other_cq).unwrap(),
    ] {
        assert_eq!((cqe.qpn(), cqe.byte_count(), cqe.slid()), (0x30, 60, 1));
    }
}

/// The firmware of `other` is asked by directed route; the answer's state afterwards.
#[test]
fn firmware_lets_itself_be_brought_up_from_the_other_end() {
    let mut one = Rig::card(1);
    let mut other = Rig::card(2);
    for rig in [&mut one, &mut other] {
        rig.start(true);
        rig.init_ib(1);
        rig.link(1, true);
    }
    let mut cq = one.create_cq(0x20);
    let mut smi = Smi::new(&mut one, &cq);
    let node: NodeInfo = smi
        .ask(&mut one, &mut other, &mut cq, Method::GET, None)
        .unwrap();
    assert_eq!(node.node_guid, Guid(0x2_c900_0000_0020));
    let mut info: PortInfo = smi
        .ask(&mut one, &mut other, &mut cq, Method::GET, None)
        .unwrap();
    (info.lid, info.master_sm_lid) = (Lid(9), Lid(1));
    for state in [PortState::NO_CHANGE, PortState::ARMED, PortState::ACTIVE] {
        info.state = state;
        info.phys_state.0 = 0;
        let set = smi.ask(&mut one, &mut other, &mut cq, Method::SET, Some(info));
        let now: PortInfo = set.unwrap();
        assert_eq!(now.lid, Lid(9));
    }
    assert_eq!(other.get::<PortInfo>(1, 1).state, PortState::ACTIVE);
    assert_eq!(other.eqe(EQ_ASYNC, 0).unwrap().sub_type(), 4);
}

/// QP0 of a card whose software manages the other.
struct Smi {
    qp: Qp,
}

impl Smi {
    fn new(rig: &mut Rig, cq: &Cq) -> Self {
        use hca_abi::infinihost::qp::ServiceType;
        assert_eq!(
            rig.command(Opcode::CONF_SPECIAL_QP, 0, 0x10, 0).status,
            CmdStatus::OK
        );
        let qp = rig.create_qp(0x10, ServiceType::MLX, 1, cq);
        rig.ready(&qp);
        Self { qp }
    }

    fn ask<A: Attribute>(
        &mut self,
        one: &mut Rig,
        other: &mut Rig,
        cq: &mut Cq,
        method: Method,
        value: Option<A>,
    ) -> Result<A, MadStatus> {
        use core_ib::wire::packet::*;
        use core_ib::{PKey, Psn, QKey, Qpn, Sl};
        use hca_abi::infinihost::wqe::MlxNextSegment;
        let modifier = u32::from(A::ID == PortInfo::ID);
        let mut smp = Smp::directed(method, A::ID, modifier, &[1]).unwrap();
        smp.header.hop_pointer = 1; // our own SMI has done its part
        if let Some(value) = value {
            smp.put(&value).unwrap();
        }
        let headers = Headers {
            lrh: Lrh {
                vl: Vl::MANAGEMENT,
                sl: Sl::new(0),
                lnh: Lnh::Local,
                dlid: Lid::PERMISSIVE,
                pkt_len: PktLen::default(),
                slid: Lid::PERMISSIVE,
            },
            grh: None,
            bth: Bth::new(Opcode::UD_SEND_ONLY, PKey::DEFAULT, Qpn::SMI, Psn::new(0)),
            extended: Extended::datagram(Deth {
                q_key: QKey(0),
                src_qp: Qpn::SMI,
            }),
        };
        let mut packet = [0; 512];
        let len = headers.write(&smp.to_bytes(), &mut packet).unwrap().len();
        one.store(DATA, &packet[..len - 6]);
        one.post_receive(&mut self.qp, &[(BUFFER, 296)]);
        let at = one.wqe_at(&self.qp, self.qp.send_wqe(self.qp.sent));
        self.qp.sent += 1;
        let mut control = MlxNextSegment::ZERO;
        control.set_vl15(true).set_slr(true);
        one.store(at, &control);
        // As iPXE does: four bytes more than there is to say, for the ICRC.
        one.store(at + 16, &DataSegment::new(len as u32 - 2, ALL, DATA));
        one.ring(UAR.into(), 0x10, (at | 0x0a) << 32 | 0x10 << 8 | 2);
        assert!(one.poll(cq).unwrap().is_send());
        carry(one, other);
        let cqe = one.poll(cq).expect("an answer");
        assert_eq!((cqe.qpn(), cqe.slid()), (0x10, 0xffff));
        let reply = Smp::from_bytes(&one.load(BUFFER + 40));
        match reply.header.status.0 & !MadStatus::DIRECTION {
            0 => Ok(reply.get().unwrap()),
            status => Err(MadStatus(status)),
        }
    }
}
