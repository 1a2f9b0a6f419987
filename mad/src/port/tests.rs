//! A port over the verbs of a fake HCA.

use super::fake::{FakeHca, FakeMachine, OnTheWire};
use super::*;
use crate::{Delivery, Dispatch, Registration, Sa, SaAnswer, SaConfig, SaNext, SaPort};
use core_ib::verbs::{QpState, QpType};
use core_ib::wire::FlowLabel;
use core_ib::wire::mad::{AttributeId, MadStatus, Method, PathRecord, Smp};
use core_ib::{Guid, Instant, Mtu, QKey, Qpn};
use proptest::prelude::*;
use std::vec;
use std::vec::Vec;

type Port<'a, 'm> = MadPort<'a, FakeHca<'m>, FakeMachine, 4, 3>;

const SMI: SpecialQp = SpecialQp::Smi;
const GSI: SpecialQp = SpecialQp::Gsi;

fn attr(lid: u16, sm_lid: u16) -> PortAttr {
    PortAttr {
        state: 4,
        phys_state: 5,
        max_mtu: Mtu::Mtu2048,
        active_mtu: Mtu::Mtu2048,
        gid_table_len: 2,
        pkey_table_len: 1,
        max_msg_size: 1 << 31,
        lid: Lid(lid),
        lmc: 1,
        sm_lid: Lid(sm_lid),
        sm_sl: Sl::new(3),
        subnet_timeout: 18,
        capability_mask: 0,
        bad_pkey_counter: 0,
        qkey_violation_counter: 0,
        max_vl: 1,
        active_width: 2,
        active_speed: 1,
        gid_prefix: Gid::DEFAULT_PREFIX,
    }
}

/// A port 1 with LID 4 (and 5), whose subnet manager is at LID 9.
fn with_port(f: impl FnOnce(&mut Port<'_, '_>, &FakeHca<'_>)) {
    with_port_of(true, f);
}

fn with_port_of(firmware: bool, f: impl FnOnce(&mut Port<'_, '_>, &FakeHca<'_>)) {
    let machine = FakeMachine::default();
    let hca = FakeHca::new(&machine, firmware);
    let mut port = Port::open(&hca, &machine, 1, 0).unwrap();
    let gids = [1, 2].map(|low| Gid::unicast(Gid::DEFAULT_PREFIX, Guid(low)));
    port.refresh(&attr(4, 9), &gids);
    f(&mut port, &hca);
    assert_eq!(port.close(), Ok(()));
    assert_eq!(
        (hca.objects(), machine.pieces()),
        ([0; 5], 0),
        "left behind"
    );
}

fn gmp(method: Method, tid: u64) -> Mad {
    let mut mad = Mad::ZERO;
    mad.set_header(&MadHeader {
        base_version: 1,
        class: MgmtClass(0x06),
        class_version: 1,
        method,
        tid,
        ..MadHeader::default()
    });
    mad
}

fn directed(method: Method, attribute: AttributeId, path: &[u8]) -> Mad {
    Mad(Smp::directed(method, attribute, 0, path)
        .unwrap()
        .to_bytes())
}

fn by_lid(method: Method, attribute: AttributeId) -> Mad {
    Mad(Smp::lid_routed(method, attribute, 0).to_bytes())
}

fn wc(slid: u16) -> WorkCompletion {
    WorkCompletion {
        byte_len: 296,
        slid: Lid(slid),
        sl: Sl::new(2),
        src_qp: Qpn::GSI,
        ..WorkCompletion::EMPTY
    }
}

fn arrives(hca: &FakeHca<'_>, qp: SpecialQp, slid: u16, mad: &Mad) {
    let kind = if qp == SMI { QpType::Smi } else { QpType::Gsi };
    let wc = WorkCompletion {
        src_qp: qp.qpn(),
        ..wc(slid)
    };
    assert!(
        hca.arrives(kind, &wc, &[0x5a; 40], mad),
        "no receive posted"
    );
}

fn to(lid: u16) -> MadAddr {
    MadAddr::gsi(Lid(lid), Sl::new(1), 0)
}

fn idle(port: &mut Port<'_, '_>) {
    assert_eq!(port.poll(), Ok(PortNext::Idle));
}

fn received(port: &mut Port<'_, '_>) -> Received {
    match port.poll() {
        Ok(PortNext::Received(received)) => received,
        other => panic!("{other:?}"),
    }
}

fn wish(port: &mut Port<'_, '_>) -> Wish {
    match port.poll() {
        Ok(PortNext::Wish(wish)) => wish,
        other => panic!("{other:?}"),
    }
}

fn grant(port: &mut Port<'_, '_>, hca: &FakeHca<'_>) {
    let wish = wish(port);
    assert_eq!(port.granted(&wish.grant(hca)), Ok(()));
}

#[test]
fn an_open_port_has_both_qps_in_rts_with_all_receives_posted() {
    with_port(|_, hca| {
        assert_eq!(hca.qp(QpType::Smi), (QpState::Rts, 4, QKey(0)));
        assert_eq!(hca.qp(QpType::Gsi), (QpState::Rts, 4, QKey(0x8001_0000)));
        for init in hca.inits() {
            assert_eq!(
                (init.port, init.caps.max_send_wr, init.caps.max_recv_wr),
                (1, 3, 4)
            );
        }
        assert_eq!(hca.objects(), [1, 1, 2, 1, 0]);
    });
}

#[test]
fn a_failure_at_any_step_of_opening_leaves_nothing_behind() {
    let machine = FakeMachine::default();
    let hca = FakeHca::new(&machine, true);
    let mut failures = 0;
    for step in 0.. {
        hca.fails_after(Some(step));
        match Port::open(&hca, &machine, 1, 0) {
            Err(error) => assert_eq!(error, VerbsError::DeviceFailed),
            Ok(port) => {
                hca.fails_after(None);
                port.close().unwrap();
                break;
            }
        }
        failures += 1;
        assert_eq!(
            (hca.objects(), machine.pieces()),
            ([0; 5], 0),
            "step {step}"
        );
    }
    // PD, CQ, region; twice QP, three modifies, reference; reference of the CQ.
    assert_eq!(failures, 14);
}

#[test]
fn a_machine_without_memory_for_a_table_leaves_nothing_behind() {
    let machine = FakeMachine::default();
    let hca = FakeHca::new(&machine, true);
    // Sends, what is looped back, receives of each QP.
    for table in 1..=4 {
        machine.refuse_table(table);
        let error = Port::open(&hca, &machine, 1, 0).map(drop);
        assert!(matches!(error, Err(VerbsError::Platform(_))), "{table}");
        assert_eq!((hca.objects(), machine.pieces()), ([0; 5], 0), "{table}");
        assert_eq!(machine.tables(), 0, "{table}");
    }
    Port::open(&hca, &machine, 1, 0).unwrap().close().unwrap();
    assert_eq!(machine.tables(), 0);
}

#[test]
fn a_mad_leaves_with_its_address_and_gives_its_place_back() {
    with_port(|port, hca| {
        let address = MadAddr {
            pkey_index: 7,
            path_bits: 1,
            remote_qpn: Qpn::new(0x77),
            ..to(12)
        };
        let mad = gmp(Method::GET, 5);
        port.send(&Outgoing { to: address, mad }).unwrap();
        let ah = address.ah_attr(1);
        let sent = OnTheWire {
            qp: QpType::Gsi,
            ah,
            qpn: Qpn::new(0x77),
            qkey: QKey::GSI,
            pkey_index: 7,
            mad,
        };
        assert_eq!(hca.wire(), [sent]);
        assert_eq!((port.room(), hca.objects()[4]), (2, 1));
        idle(port);
        assert_eq!((port.room(), hca.objects()[4]), (3, 0));
    });
}

#[test]
fn a_port_without_room_says_so_before_and_when_asked_to_send() {
    with_port(|port, hca| {
        hca.hold(true);
        let outgoing = Outgoing {
            to: to(12),
            mad: gmp(Method::GET, 5),
        };
        for room in [3, 2, 1] {
            assert_eq!(port.room(), room);
            port.send(&outgoing).unwrap();
        }
        let full = SendError::Full { limit: 3 };
        assert_eq!((port.room(), port.send(&outgoing)), (0, Err(full)));
        hca.hold(false);
        idle(port);
        assert_eq!(port.room(), 3);
    });
}

#[test]
fn what_cannot_be_sent_is_refused_with_the_reason_and_keeps_no_place() {
    with_port(|port, _| {
        let mut refuses = |to, mad, why| {
            assert_eq!(port.send(&Outgoing { to, mad }), Err(why));
            assert_eq!(port.room(), 3);
        };
        let smp = directed(Method::GET, AttributeId::NODE_INFO, &[2]);
        refuses(to(12), smp, SendError::WrongQp(MgmtClass::SUBN_DR));
        let (found, ours) = (2, 1);
        let wrong_port = SmiError::Port { found, port: ours };
        refuses(MadAddr::DIRECTED, smp, SendError::Smi(wrong_port));
        let (field, found, allowed) = ("DLID", 0, 0xffff);
        let no_lid = VerbsError::InvalidAttr {
            field,
            found,
            allowed,
        };
        refuses(to(0), gmp(Method::GET, 1), SendError::Address(no_lid));
    });
}

#[test]
fn a_gmp_reaches_its_agent_with_the_way_back() {
    with_port(|port, hca| {
        let grh = Grh {
            traffic_class: 1,
            flow_label: FlowLabel::new(2),
            pay_len: 280,
            nxt_hdr: Grh::IBA,
            hop_limit: 3,
            sgid: Gid([7; 16]),
            dgid: Gid::unicast(Gid::DEFAULT_PREFIX, Guid(2)),
        };
        let mut first = [0; 40];
        grh.write(&mut first).unwrap();
        let completion = WorkCompletion {
            flags: WcFlags::GRH,
            pkey_index: 1,
            dlid_path_bits: 1,
            ..wc(12)
        };
        let mad = gmp(Method::GET, 0x99);
        assert!(hca.arrives(QpType::Gsi, &completion, &first, &mad));
        let got = received(port);
        assert_eq!((got.mad, got.grh, got.sgid_index), (mad, Some(first), 1));
        idle(port);
        port.send(&got.reply(gmp(Method::GET_RESP, 0x99))).unwrap();
        let [sent] = &hca.wire()[..] else {
            panic!("one MAD");
        };
        let route = sent.ah.grh.unwrap();
        assert_eq!((route.dgid, route.sgid_index), (Gid([7; 16]), 1));
        let ah = (
            sent.ah.dlid,
            sent.ah.sl,
            sent.ah.src_path_bits,
            sent.pkey_index,
        );
        assert_eq!(ah, (Lid(12), Sl::new(2), 1, 1));
        // One without a GRH has none, whatever its first bytes are.
        arrives(hca, GSI, 12, &mad);
        assert_eq!(received(port).grh, None);
    });
}

#[test]
fn receives_are_posted_again_and_again() {
    with_port(|port, hca| {
        for round in 0..20 {
            for number in 0..4 {
                arrives(hca, GSI, 12, &gmp(Method::GET, round * 4 + number));
            }
            for number in 0..4 {
                assert_eq!(received(port).header().tid, round * 4 + number);
            }
            idle(port);
        }
        assert_eq!(hca.qp(QpType::Gsi).1, 4);
    });
}

#[test]
fn the_firmware_answers_an_smp_from_the_wire() {
    with_port(|port, hca| {
        // protocols 3.5.4, step 3.
        let mut mad = directed(Method::GET, AttributeId::NODE_INFO, &[1, 7]);
        mad.0[6] = 2;
        mad.0[193] = 3;
        arrives(hca, SMI, 0xffff, &mad);
        grant(port, hca);
        let [sent] = &hca.wire()[..] else {
            panic!("one MAD");
        };
        assert_eq!(
            (sent.qp, sent.ah.dlid, sent.qpn),
            (QpType::Smi, Lid(0xffff), Qpn::SMI)
        );
        let bytes = sent.mad.0;
        assert_eq!(bytes[..8], [1, 0x81, 1, 0x81, 0x80, 0, 2, 2]);
        assert_eq!((bytes[64], &bytes[193..195]), (0xab, &[3, 1][..]));
        idle(port);
        // By LID, and of performance management.
        arrives(hca, SMI, 9, &by_lid(Method::GET, AttributeId::PORT_INFO));
        grant(port, hca);
        let mut perf = gmp(Method::GET, 1);
        perf.0[1] = 0x04;
        arrives(hca, GSI, 12, &perf);
        grant(port, hca);
        let wire = hca.wire();
        let lids: Vec<_> = wire
            .iter()
            .map(|sent| (sent.ah.dlid, sent.mad.0[3]))
            .collect();
        assert_eq!(lids, [(Lid(9), 0x81), (Lid(12), 0x81)]);
        idle(port);
    });
}

#[test]
fn what_the_firmware_takes_or_rejects_is_not_answered() {
    with_port(|port, hca| {
        let repress = by_lid(Method::TRAP_REPRESS, AttributeId::NOTICE);
        arrives(hca, SMI, 9, &repress);
        grant(port, hca);
        let mut bad_key = by_lid(Method::GET, AttributeId::PORT_INFO);
        bad_key.0[24] = 1;
        arrives(hca, SMI, 9, &bad_key);
        grant(port, hca);
        arrives(hca, SMI, 9, &by_lid(Method::GET, AttributeId::PORT_INFO));
        let wish = wish(port);
        hca.fails_after(Some(0));
        let granted = wish.grant(hca);
        hca.fails_after(None);
        let dead = PortDrop::Firmware(VerbsError::DeviceFailed);
        assert_eq!(port.granted(&granted), Err(dead));
        assert_eq!(hca.wire(), []);
        idle(port);
    });
}

#[test]
fn a_subnet_manager_talks_to_its_own_node_without_the_wire() {
    with_port(|port, hca| {
        // The node's own SMA.
        let mad = directed(Method::GET, AttributeId::NODE_INFO, &[]);
        let to = MadAddr::DIRECTED;
        port.send(&Outgoing { to, mad }).unwrap();
        grant(port, hca);
        let got = received(port);
        assert_eq!((got.qp, got.wc.slid), (SMI, Lid::PERMISSIVE));
        assert_eq!(
            (&got.mad.0[3..8], got.mad.0[64]),
            (&[0x81, 0x80, 0, 0, 0][..], 0xab)
        );
        // The manager itself.
        let mad = directed(Method::GET, AttributeId::SM_INFO, &[]);
        port.send(&Outgoing { to, mad }).unwrap();
        let got = received(port);
        assert_eq!(got.header().method, Method::GET);
        let mut reply = got.mad;
        reply.0[3] = 0x81;
        smi::turn_back(&mut reply);
        port.send(&got.reply(reply)).unwrap();
        let answer = received(port);
        assert_eq!(
            (answer.header().method, answer.mad.0[6]),
            (Method::GET_RESP, 0)
        );
        // By LID: any of the port's two.
        let mad = by_lid(Method::GET, AttributeId::PORT_INFO);
        let to = MadAddr::smi(Lid(5), Sl::new(0));
        port.send(&Outgoing { to, mad }).unwrap();
        grant(port, hca);
        let got = received(port);
        assert_eq!(
            (got.wc.slid, got.header().method),
            (Lid(5), Method::GET_RESP)
        );
        assert!(got.is_from(&to));
        idle(port);
        assert_eq!(hca.wire(), []);
    });
}

#[test]
fn a_trap_of_the_hca_goes_to_the_subnet_manager_wherever_it_is() {
    with_port(|port, hca| {
        let trap = by_lid(Method::TRAP, AttributeId::NOTICE);
        arrives(hca, SMI, 0, &trap);
        idle(port);
        let [sent] = &hca.wire()[..] else {
            panic!("one MAD");
        };
        assert_eq!(
            (sent.ah.dlid, sent.ah.sl, sent.mad),
            (Lid(9), Sl::new(3), trap)
        );
        port.refresh(&attr(4, 0), &[]);
        arrives(hca, SMI, 0, &trap);
        let dropped = Ok(PortNext::Dropped(PortDrop::NoSubnetManager));
        assert_eq!(port.poll(), dropped);
        // Ourselves.
        port.refresh(&attr(4, 4), &[]);
        arrives(hca, SMI, 0, &trap);
        let got = received(port);
        assert_eq!((got.mad, got.wc.slid), (trap, Lid(4)));
        assert_eq!(hca.wire(), []);
        // One from somebody else is for the manager here.
        arrives(hca, SMI, 12, &trap);
        assert_eq!(received(port).wc.slid, Lid(12));
    });
}

#[test]
fn an_hca_without_agents_leaves_everything_to_software() {
    with_port_of(false, |port, hca| {
        let mad = by_lid(Method::GET, AttributeId::NODE_INFO);
        arrives(hca, SMI, 9, &mad);
        assert_eq!(received(port).mad, mad);
    });
}

#[test]
fn what_has_no_business_here_is_dropped_and_told() {
    with_port(|port, hca| {
        let mut drops = |qp, mad: &Mad, why| {
            arrives(hca, qp, 12, mad);
            assert_eq!(port.poll(), Ok(PortNext::Dropped(why)));
        };
        let smp = by_lid(Method::GET, AttributeId::NODE_INFO);
        drops(GSI, &smp, PortDrop::WrongQp(MgmtClass::SUBN_LID));
        let other = gmp(Method::GET, 1);
        drops(SMI, &other, PortDrop::WrongQp(MgmtClass(6)));
        let mut old = other;
        old.0[0] = 2;
        drops(GSI, &old, PortDrop::Version(2));
        let mut middle = directed(Method::GET, AttributeId::NODE_INFO, &[1, 7]);
        middle.0[6] = 1;
        let (hop_pointer, hop_count) = (1, 2);
        let wrong = SmiError::HopPointer {
            hop_pointer,
            hop_count,
        };
        drops(SMI, &middle, PortDrop::Smi(wrong));
        let short = WorkCompletion {
            byte_len: 295,
            ..wc(12)
        };
        assert!(hca.arrives(QpType::Gsi, &short, &[0; 40], &other));
        let byte_len = 295;
        let dropped = PortDrop::Length { byte_len };
        assert_eq!(port.poll(), Ok(PortNext::Dropped(dropped)));
        idle(port);
        assert_eq!((hca.qp(QpType::Smi).1, hca.qp(QpType::Gsi).1), (4, 4));
    });
}

#[test]
fn after_a_failed_send_the_qp_is_brought_back_and_the_others_go_out_in_order() {
    with_port(|port, hca| {
        hca.next_sends_end(&[WcStatus::LocalQpOperation]);
        for tid in [1, 2, 3] {
            let mad = gmp(Method::GET, tid);
            port.send(&Outgoing { to: to(12), mad }).unwrap();
        }
        assert_eq!((hca.wire(), hca.qp(QpType::Gsi).0), (vec![], QpState::Sqe));
        let failed = port.poll();
        assert!(matches!(
            failed,
            Ok(PortNext::SendFailed {
                tid: 1,
                status: WcStatus::LocalQpOperation,
                ..
            })
        ));
        let wish = wish(port);
        assert!(matches!(wish, Wish::Recover(recovery) if recovery.qp() == GSI));
        // Meanwhile more is taken, and waits.
        idle(port);
        let mad = gmp(Method::GET, 4);
        port.send(&Outgoing { to: to(12), mad }).unwrap();
        assert_eq!(port.granted(&wish.grant(hca)), Ok(()));
        let tids: Vec<_> = hca
            .wire()
            .iter()
            .map(|sent| sent.mad.header().tid)
            .collect();
        assert_eq!(tids, [2, 3, 4]);
        idle(port);
        assert_eq!((port.room(), hca.objects()[4]), (3, 0));
    });
}

#[test]
fn a_qp_in_error_is_started_anew_with_all_its_receives() {
    with_port(|port, hca| {
        hca.hold(true);
        let mad = gmp(Method::GET, 1);
        port.send(&Outgoing { to: to(12), mad }).unwrap();
        hca.wire();
        let error = WorkCompletion {
            status: WcStatus::LocalLength,
            ..wc(12)
        };
        assert!(hca.arrives(QpType::Gsi, &error, &[0; 40], &mad));
        let recover = wish(port);
        idle(port);
        assert_eq!(hca.qp(QpType::Gsi).0, QpState::Error);
        assert_eq!(port.granted(&recover.grant(hca)), Ok(()));
        assert_eq!(hca.qp(QpType::Gsi), (QpState::Rts, 4, QKey::GSI));
        // What was under way may or may not have left.
        let failed = port.poll();
        assert!(matches!(failed, Ok(PortNext::SendFailed { tid: 1, .. })));
        arrives(hca, GSI, 12, &mad);
        assert_eq!(received(port).mad, mad);
        idle(port);
        // Its late completion says nothing.
        hca.hold(false);
        assert!(matches!(
            port.poll(),
            Ok(PortNext::Dropped(PortDrop::Stray { .. }))
        ));
    });
}

#[test]
fn an_event_of_a_qp_starts_it_anew_and_one_of_another_does_not() {
    with_port(|port, hca| {
        let handle = port.queues[0].handle;
        port.handle(&AsyncEvent::Qp(handle, QpEvent::SqDrained));
        port.handle(&AsyncEvent::DeviceFatal);
        idle(port);
        port.handle(&AsyncEvent::Qp(handle, QpEvent::Fatal));
        assert!(matches!(wish(port), Wish::Recover(recovery) if recovery.qp() == SMI));
        idle(port);
        let _ = hca;
    });
}

#[test]
fn a_qp_that_cannot_be_brought_back_refuses_and_lets_go_of_what_waits() {
    with_port(|port, hca| {
        hca.next_sends_end(&[WcStatus::General(7)]);
        for tid in [1, 2] {
            let mad = gmp(Method::GET, tid);
            port.send(&Outgoing { to: to(12), mad }).unwrap();
        }
        assert!(matches!(
            port.poll(),
            Ok(PortNext::SendFailed { tid: 1, .. })
        ));
        hca.fails_after(Some(0));
        grant(port, hca); // from SQE to RTS
        grant(port, hca); // through RESET
        hca.fails_after(None);
        assert!(matches!(
            port.poll(),
            Ok(PortNext::SendFailed { tid: 2, .. })
        ));
        // The other QP goes on, in the same buffers; a late completion of the first says nothing of it.
        hca.hold(true);
        let mad = by_lid(Method::GET, AttributeId::SM_INFO);
        let address = MadAddr::smi(Lid(9), Sl::new(0));
        for _ in 0..2 {
            port.send(&Outgoing { to: address, mad }).unwrap();
        }
        let late = port.poll();
        assert!(matches!(
            late,
            Ok(PortNext::Dropped(PortDrop::Stray { .. }))
        ));
        assert_eq!(port.room(), 1);
        hca.hold(false);
        idle(port);
        assert_eq!(port.room(), 3);
        let mad = gmp(Method::GET, 3);
        let dead = port.send(&Outgoing { to: to(12), mad });
        assert_eq!(dead, Err(SendError::Dead(GSI)));
    });
}

#[test]
fn a_port_of_an_hca_that_was_reset_gives_its_memory_back() {
    let machine = FakeMachine::default();
    let hca = FakeHca::new(&machine, true);
    let port = Port::open(&hca, &machine, 1, 0).unwrap();
    assert_eq!(machine.pieces(), 1);
    // SAFETY: the fake HCA does nothing by itself.
    port.abandon(unsafe { LetGo::claim() });
    assert_eq!(machine.pieces(), 0);
}

/// Port, dispatch and SA client as an owner puts them together.
#[test]
fn a_path_query_goes_all_the_way_and_its_answer_comes_back() {
    with_port(|port, hca| {
        let now = Instant(0);
        let mut dispatch = Dispatch::<2, 1>::new();
        let agent = dispatch.register(Registration::sa_client()).unwrap();
        let mut sa = Sa::<2, 1, 1, 256>::new(agent, SaConfig::DEFAULT);
        let at = SaPort {
            active: true,
            lid: Lid(4),
            sm_lid: Lid(9),
            sm_sl: Sl::new(3),
            pkey_index: 0,
        };
        sa.port_changed(&at, now);
        let path = PathRecord {
            numb_path: 1,
            ..PathRecord::default()
        };
        sa.get(77, &path, PathRecord::NUMB_PATH, now).unwrap();
        let SaNext::Send(outgoing) = sa.poll(now) else {
            panic!("is due");
        };
        port.send(&outgoing).unwrap();
        let [sent] = &hca.wire()[..] else {
            panic!("one MAD");
        };
        assert_eq!(
            (sent.ah.dlid, sent.qpn, sent.qkey),
            (Lid(9), Qpn::GSI, QKey::GSI)
        );
        let mut answer = sent.mad;
        answer.set_header(&answer.header().reply(MadStatus::OK).unwrap());
        arrives(hca, GSI, 9, &answer);
        let got = received(port);
        let request = None;
        let response = Delivery::Response { agent, request };
        assert_eq!(dispatch.handle(&got, now), response);
        sa.handle(&got, now);
        let done = sa.poll(now);
        let SaNext::Done {
            cookie: 77,
            result: Ok(SaAnswer::Record(record)),
            ..
        } = done
        else {
            panic!("{done:?}");
        };
        assert_eq!(record.read::<PathRecord>(), Ok(path));
        idle(port);
    });
}

/// What the HCA, the wire or an agent does.
#[derive(Clone, Copy, Debug)]
enum Deed {
    Send {
        smi: bool,
        fails: bool,
    },
    Arrives {
        smi: bool,
        class: u8,
        method: u8,
        hops: [u8; 2],
        slid: u16,
    },
    Breaks,
    Invents {
        wr_id: u64,
        ok: bool,
    },
    Grants(bool),
    Polls,
}

fn deed() -> impl Strategy<Value = Deed> {
    let class = prop_oneof![Just(1_u8), Just(0x81), Just(4), Just(6), any::<u8>()];
    let method = prop_oneof![
        Just(1_u8),
        Just(2),
        Just(5),
        Just(7),
        Just(0x81),
        any::<u8>()
    ];
    let slid = prop_oneof![Just(0_u16), Just(4), Just(12), Just(0xffff)];
    let sends = (0..6_u64, 0..20_u64).prop_map(|(i, order)| 2 << 48 | order << 16 | i);
    let wr_id = prop_oneof![
        0..6_u64,
        (0..6_u64).prop_map(|i| 1 << 48 | i),
        sends,
        any::<u64>(),
    ];
    prop_oneof![
        4 => (any::<bool>(), prop::bool::weighted(0.2))
            .prop_map(|(smi, fails)| Deed::Send { smi, fails }),
        4 => (any::<bool>(), class, method, [0..3_u8, 0..3_u8], slid).prop_map(
            |(smi, class, method, hops, slid)| Deed::Arrives { smi, class, method, hops, slid }
        ),
        1 => Just(Deed::Breaks),
        1 => (wr_id, any::<bool>()).prop_map(|(wr_id, ok)| Deed::Invents { wr_id, ok }),
        3 => prop::bool::weighted(0.9).prop_map(Deed::Grants),
        4 => Just(Deed::Polls),
    ]
}

proptest! {
    #[test]
    fn whatever_happens_every_mad_leaves_or_is_told_and_every_receive_is_posted_again(
        deeds in proptest::collection::vec(deed(), 1..60), lies: bool,
    ) {
        with_port(|port, hca| {
            let (mut taken, mut left, mut failed) = (0, 0, 0);
            let mut wishes: Vec<Wish> = vec![];
            let mut poll = |port: &mut Port<'_, '_>, wishes: &mut Vec<Wish>| {
                for _ in 0..200 {
                    match port.poll().unwrap() {
                        PortNext::Idle => return,
                        PortNext::SendFailed { .. } => failed += 1,
                        PortNext::Wish(wish) => wishes.push(wish),
                        PortNext::Received(_) | PortNext::Dropped(_) => {}
                    }
                }
                panic!("polls without end");
            };
            for deed in deeds {
                match deed {
                    Deed::Send { smi, fails } => {
                        if fails {
                            hca.next_sends_end(&[WcStatus::General(1)]);
                        }
                        let to = if smi { MadAddr::smi(Lid(9), Sl::new(0)) } else { to(12) };
                        let mad = if smi {
                            by_lid(Method::GET, AttributeId::SM_INFO)
                        } else {
                            gmp(Method::GET, 1)
                        };
                        taken += u32::from(port.send(&Outgoing { to, mad }).is_ok());
                    }
                    Deed::Arrives { smi, class, method, hops, slid } => {
                        let mut mad = directed(Method(method), AttributeId::NODE_INFO, &[1, 2]);
                        mad.0[1] = class;
                        mad.0[6..8].copy_from_slice(&hops);
                        let kind = if smi { QpType::Smi } else { QpType::Gsi };
                        hca.arrives(kind, &wc(slid), &[0; 40], &mad);
                    }
                    Deed::Breaks => {
                        let error = WorkCompletion { status: WcStatus::LocalLength, ..wc(1) };
                        hca.arrives(QpType::Gsi, &error, &[0; 40], &Mad::ZERO);
                    }
                    Deed::Invents { wr_id, ok } if lies => {
                        let status = if ok { WcStatus::Success } else { WcStatus::General(3) };
                        hca.invents(&WorkCompletion { wr_id, status, ..wc(12) });
                    }
                    Deed::Invents { .. } => {}
                    Deed::Grants(well) => {
                        for wish in wishes.drain(..) {
                            hca.fails_after((!well && matches!(wish, Wish::Answer(_))).then_some(0));
                            let granted = wish.grant(hca);
                            hca.fails_after(None);
                            let _ = port.granted(&granted);
                        }
                    }
                    Deed::Polls => poll(port, &mut wishes),
                }
                left += hca.wire().iter().filter(|sent| sent.mad.header().method == Method::GET).count() as u32;
            }
            // Everybody gets what he wishes.
            for _ in 0..8 {
                poll(port, &mut wishes);
                for wish in wishes.drain(..) {
                    let _ = port.granted(&wish.grant(hca));
                }
                left += hca.wire().iter().filter(|sent| sent.mad.header().method == Method::GET).count() as u32;
            }
            assert_eq!(port.room(), 3);
            assert_eq!(hca.objects()[4], 0, "an address handle is left");
            if !lies {
                assert!(left + failed >= taken, "{left} left, {failed} failed, {taken} taken");
                for kind in [QpType::Smi, QpType::Gsi] {
                    let (state, posted, _) = hca.qp(kind);
                    assert_eq!((state, posted), (QpState::Rts, 4));
                }
            }
        });
    }
}
