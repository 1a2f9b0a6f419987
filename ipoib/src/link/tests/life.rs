//! The interface: up, down, and what must not take it down.

use super::*;

#[test]
fn an_interface_comes_up_in_the_order_of_the_reference() {
    let mut desk = Desk::new(Profile::DEFAULT);
    let init = PortView {
        active: false,
        pkey_index: None,
        ..view()
    };
    let keyless = PortView {
        pkey_index: None,
        ..view()
    };
    desk.is(&[
        (0, Nothing, &[down(PortDown)]),
        (1, It(Event::Port(init)), &[down(PortDown)]), // the address is known now
        (
            2,
            port(PortEvent::Active, keyless),
            &[down(NoPKey {
                p_key: PKey::DEFAULT,
            })],
        ),
        (
            3,
            port(PortEvent::PkeyChange, view()),
            &[down(Starting), start(0, QKey(0)), Join(B, FULL, None)],
        ),
        (4, Joined(B, Ok(record(B, 0xc000, FULL))), &[]), // before the QP is there
        (
            5,
            Done(RESTARTED),
            &[down(Joining), Saw::Wish(Wish::SetQKey(Q))],
        ),
        (6, Done(KEPT), &[attach(B, 0xc000)]),
        (7, Done(KEPT), &[UP]),
        (60_000, Nothing, &[]),
    ]);
    assert_eq!(desk.link.state(), LinkState::Up { mtu: 2044 });
}

#[test]
fn a_qp_that_starts_after_the_join_gets_its_key_at_once() {
    let mut desk = up();
    let moved = PortView {
        pkey_index: Some(3),
        ..view()
    };
    desk.is(&[
        (
            1,
            port(PortEvent::PkeyChange, moved),
            &[down(Starting), start(3, Q)],
        ),
        (2, Send(1, peer(1)), &[Lost(1, Down)]),
        (3, Done(RESTARTED), &[UP]), // RESET keeps attachments: verbs 3.10
    ]);
}

#[test]
fn a_pkey_table_that_moved_something_else_disturbs_nobody() {
    let mut desk = up();
    desk.is(&[(1, port(PortEvent::PkeyChange, view()), &[])]);
}

#[test]
fn an_absent_broadcast_group_is_asked_for_again_and_again_ever_more_slowly() {
    let mut desk = Desk::new(Profile::DEFAULT);
    let failed = |failure| down(JoinFailed(failure));
    let out = SaFailure::TimedOut;
    desk.is(&[
        (
            0,
            It(Event::Port(view())),
            &[down(Starting), start(0, QKey(0)), Join(B, FULL, None)],
        ),
        (0, Done(RESTARTED), &[down(Joining)]),
        (10, Joined(B, Err(NO)), &[failed(NO)]),
        (1009, Nothing, &[]),
        (1010, Nothing, &[Join(B, FULL, None)]),
        (1020, Joined(B, Err(out)), &[failed(out)]),
        (3020, Nothing, &[Join(B, FULL, None)]),
        (3030, Joined(B, Err(out)), &[]),
        (7030, Nothing, &[Join(B, FULL, None)]),
        (7040, Joined(B, Err(out)), &[]),
        (15_040, Nothing, &[Join(B, FULL, None)]),
        (15_050, Joined(B, Err(out)), &[]),
        (31_050, Nothing, &[Join(B, FULL, None)]),
        (31_060, Joined(B, Err(out)), &[]),
        (47_060, Nothing, &[Join(B, FULL, None)]),
        (
            47_070,
            Joined(B, Err(SaFailure::NotSent)),
            &[failed(SaFailure::NotSent)],
        ),
        (47_195, Nothing, &[Join(B, FULL, None)]), // an eighth of a second: it was not a try
        (47_200, port(PortEvent::SmChange, view()), &[]), // it is on its way
        (47_210, Joined(B, Err(out)), &[failed(out)]),
        (
            47_300,
            port(PortEvent::SmChange, view()),
            &[Join(B, FULL, None)],
        ), // whom we may well reach
    ]);
}

#[test]
fn a_broadcast_group_is_created_after_a_refusal_if_the_profile_says_with_what() {
    let mut desk = Desk::new(Profile {
        create_broadcast: params(),
        ..Profile::DEFAULT
    });
    desk.is(&[
        (
            0,
            It(Event::Port(view())),
            &[down(Starting), start(0, QKey(0)), Join(B, FULL, None)],
        ),
        (0, Done(RESTARTED), &[down(Joining)]),
        (0, Joined(B, Err(NO)), &[down(JoinFailed(NO))]),
        (1000, Nothing, &[Join(B, FULL, params())]),
        (
            1001,
            Joined(B, Ok(record(B, 0xc000, FULL))),
            &[down(Joining), Saw::Wish(Wish::SetQKey(Q))],
        ),
    ]);
}

#[test]
fn a_broadcast_group_too_large_for_our_buffers_keeps_the_interface_down_by_name() {
    let mut desk = Desk::new(Profile::DEFAULT);
    let mut large = record(B, 0xc000, FULL);
    large.params.mtu = Mtu::Mtu4096;
    let cause = GroupMtu {
        group: Mtu::Mtu4096,
        allowed: Mtu::Mtu2048,
    };
    desk.is(&[
        (
            0,
            It(Event::Port(view())),
            &[down(Starting), start(0, QKey(0)), Join(B, FULL, None)],
        ),
        (0, Done(RESTARTED), &[down(Joining)]),
        (1, Joined(B, Ok(large)), &[down(cause)]),
        (1001, Nothing, &[Join(B, FULL, None)]),
        (
            1002,
            Joined(B, Ok(record(B, 0xc000, FULL))),
            &[down(Joining), Saw::Wish(Wish::SetQKey(Q))],
        ),
    ]);
}

#[test]
fn the_mtu_is_the_smaller_of_port_and_group() {
    let mut desk = up();
    let mut smaller = record(B, 0xc000, FULL);
    smaller.params.mtu = Mtu::Mtu1024;
    desk.is(&[
        (
            1,
            port(PortEvent::ClientReregister, view()),
            &[Join(B, FULL, None)],
        ),
        (
            2,
            Joined(B, Ok(smaller)),
            &[State(LinkState::Up { mtu: 1020 })],
        ),
    ]);
}

#[test]
fn a_port_of_a_smaller_mtu_than_the_group_makes_the_mtu() {
    let mut desk = up();
    let smaller = PortView {
        mtu: Some(Mtu::Mtu1024),
        ..view()
    };
    let told = State(LinkState::Up { mtu: 1020 });
    desk.is(&[(1, It(Event::Port(smaller)), &[told])]);
}

#[test]
fn a_pkey_that_moved_in_the_table_is_followed() {
    let mut desk = up();
    let moved = PortView {
        pkey_index: Some(3),
        ..view()
    };
    desk.is(&[(
        1,
        port(PortEvent::PkeyChange, moved),
        &[down(Starting), start(3, Q)],
    )]);
}

#[test]
fn no_path_of_before_outlives_the_going_of_its_port() {
    let mut desk = up();
    let gone = PortView {
        active: false,
        ..view()
    };
    desk.is(&[
        (1, Send(1, peer(1)), &[Parked(1), Query(peer(1))]),
        (2, Path(peer(1), Ok(path(9))), &[Sent(1, Lid(9))]),
        (3, It(Event::Port(gone)), &[down(PortDown)]),
        (
            4,
            It(Event::Port(view())),
            &[down(Joining), Join(B, FULL, None)],
        ),
        (5, Joined(B, Ok(record(B, 0xc000, FULL))), &[UP]),
        (6, Send(2, peer(1)), &[Parked(2), Query(peer(1))]),
    ]);
}

#[test]
fn a_lid_change_stops_no_interface_and_trusts_no_path() {
    let mut desk = up();
    let moved = PortView {
        lid: Lid(6),
        ..view()
    };
    desk.is(&[
        (1, Send(1, peer(1)), &[Parked(1), Query(peer(1))]),
        (2, Path(peer(1), Ok(path(9))), &[Sent(1, Lid(9))]),
        (3, Send(2, peer(2)), &[Parked(2), Query(peer(2))]),
        (
            4,
            port(PortEvent::LidChange, moved),
            &[Join(B, FULL, None), Query(peer(2))],
        ),
        (5, Send(3, B), &[Sent(3, Lid(0xc000))]), // the group is still there, as far as we know
        (6, Send(4, peer(1)), &[Parked(4), Query(peer(1))]), // whose LID may be another's now
        (7, Path(peer(1), Ok(path(19))), &[Sent(4, Lid(19))]),
        (8, Joined(B, Ok(record(B, 0xc000, FULL))), &[]),
        (9, Path(peer(2), Ok(path(7))), &[Sent(2, Lid(7))]),
    ]);
}

#[test]
fn a_reregistration_renews_everything_and_interrupts_nothing() {
    let mut desk = up();
    desk.is(&[
        (1, Send(1, peer(1)), &[Parked(1), Query(peer(1))]),
        (2, Path(peer(1), Ok(path(9))), &[Sent(1, Lid(9))]),
        (3, Listen(group(1)), &[Join(group(1), FULL, params())]),
        (
            4,
            Joined(group(1), Ok(record(group(1), 0xc001, FULL))),
            &[attach(group(1), 0xc001)],
        ),
        (5, Done(KEPT), &[]),
        (
            6,
            port(PortEvent::ClientReregister, view()),
            &[Join(B, FULL, None), Join(group(1), FULL, params())],
        ),
        (7, Send(2, peer(1)), &[Sent(2, Lid(9)), Query(peer(1))]),
        (8, Path(peer(1), Ok(path(11))), &[]),
        (9, Send(3, peer(1)), &[Sent(3, Lid(11))]),
        (10, Joined(B, Err(SaFailure::TimedOut)), &[]), // still up
        (11, Send(4, B), &[Sent(4, Lid(0xc000))]),
        (
            12,
            Joined(group(1), Ok(record(group(1), 0xc009, FULL))),
            &[detach(group(1), 0xc001)],
        ),
        (13, Done(KEPT), &[attach(group(1), 0xc009)]),
        (14, Done(KEPT), &[]),
        (1010, Nothing, &[Join(B, FULL, None)]),
        (
            1011,
            Joined(B, Ok(record(B, 0xc002, FULL))),
            &[detach(B, 0xc000)],
        ),
        (1012, Done(KEPT), &[attach(B, 0xc002)]),
        (1013, Done(KEPT), &[]),
    ]);
    assert_eq!(desk.link.statistics().ups, 1);
}

#[test]
fn a_port_that_goes_down_takes_the_interface_along_and_brings_it_back() {
    let mut desk = up();
    let gone = PortView {
        active: false,
        ..view()
    };
    desk.is(&[
        (1, Send(1, peer(1)), &[Parked(1), Query(peer(1))]),
        (
            2,
            port(PortEvent::Error, gone),
            &[down(PortDown), Lost(1, Down)],
        ),
        (3, Send(2, B), &[Lost(2, Down)]),
        (
            9,
            port(PortEvent::Active, view()),
            &[down(Joining), Join(B, FULL, None)],
        ),
        (10, Joined(B, Ok(record(B, 0xc000, FULL))), &[UP]), // attached all the time
        (11, Send(3, peer(1)), &[Parked(3), Query(peer(1))]),
    ]);
}

#[test]
fn a_port_that_bounced_unseen_is_down_and_up_all_the_same() {
    let mut desk = up();
    desk.is(&[
        (
            1,
            port(PortEvent::Error, view()),
            &[down(Joining), Join(B, FULL, None)],
        ),
        (2, port(PortEvent::Active, view()), &[Join(B, FULL, None)]),
        (3, Joined(B, Ok(record(B, 0xc000, FULL))), &[UP]),
    ]);
}

#[test]
fn a_new_gid_is_a_new_member_and_a_new_address() {
    let mut desk = up();
    let renamed = PortView {
        gid: peer(100),
        ..view()
    };
    desk.is(&[(
        1,
        port(PortEvent::GidChange, renamed),
        &[UP, Join(B, FULL, None)],
    )]);
    assert_eq!(desk.link.address().gid, peer(100));
    assert_eq!(desk.link.address().qpn, OWN);
}

#[test]
fn the_administrator_takes_the_interface_down_in_good_order() {
    let mut desk = up();
    desk.is(&[
        (1, Listen(group(1)), &[Join(group(1), FULL, params())]),
        (
            2,
            Joined(group(1), Ok(record(group(1), 0xc001, FULL))),
            &[attach(group(1), 0xc001)],
        ),
        (3, Done(KEPT), &[]),
        (
            4,
            It(Event::Admin { up: false }),
            &[down(Admin { idle: false }), detach(B, 0xc000)],
        ),
        (5, Done(KEPT), &[Leave(B, FULL), detach(group(1), 0xc001)]),
        (6, Done(KEPT), &[Leave(group(1), FULL)]),
        (7, Left(B), &[]),
        (8, Left(group(1)), &[down(Admin { idle: true })]),
        (
            9,
            It(Event::Admin { up: true }),
            &[down(Joining), Join(B, FULL, None)],
        ),
        (
            10,
            Joined(B, Ok(record(B, 0xc000, FULL))),
            &[attach(B, 0xc000), Join(group(1), FULL, params())],
        ),
        (11, Done(KEPT), &[UP]),
    ]);
}

#[test]
fn a_qp_in_trouble_is_mended_and_the_interface_stays_up() {
    let mut desk = up();
    let mend = Saw::Wish(Wish::Mend {
        pkey_index: 0,
        q_key: Q,
    });
    desk.is(&[
        (1, It(Event::QpTrouble), &[mend]),
        (2, It(Event::QpTrouble), &[]), // once is enough
        (3, Send(1, B), &[Lost(1, Repair)]),
        (4, Done(KEPT), &[mend]),
        (5, Done(RESTARTED), &[]),
        (6, Send(2, B), &[Sent(2, Lid(0xc000))]),
    ]);
    assert_eq!(desk.link.statistics().repairs, 2);
    // One that breaks again and again is not mended without a pause.
    desk.is(&[
        (7, It(Event::QpTrouble), &[]),
        (8, Send(3, B), &[Lost(3, Repair)]),
        (130, Nothing, &[mend]),
        (131, Done(KEPT), &[]),
        (132, Send(4, B), &[Sent(4, Lid(0xc000))]),
        (5000, It(Event::QpTrouble), &[mend]),
    ]);
}

#[test]
fn a_qp_that_does_not_start_is_tried_again_and_a_dead_hca_is_not() {
    let mut desk = up();
    let moved = PortView {
        pkey_index: Some(1),
        ..view()
    };
    let error = VerbsError::Platform(PlatformError::NoDmaMemory { len: 1 });
    desk.is(&[
        (
            0,
            port(PortEvent::PkeyChange, moved),
            &[down(Starting), start(1, Q)],
        ),
        (1, Done(Err(error)), &[down(QpFailed(error))]),
        (1001, Nothing, &[start(1, Q)]),
        (
            1002,
            Done(Err(VerbsError::DeviceFailed)),
            &[down(DeviceFailed)],
        ),
        (99_000, port(PortEvent::Active, view()), &[]),
    ]);
}

#[test]
fn a_new_queue_key_of_the_link_is_taken_over() {
    let mut desk = up();
    let mut other = record(B, 0xc000, FULL);
    other.params.q_key = QKey(0x1234);
    desk.is(&[
        (
            1,
            port(PortEvent::ClientReregister, view()),
            &[Join(B, FULL, None)],
        ),
        (
            2,
            Joined(B, Ok(other)),
            &[Saw::Wish(Wish::SetQKey(QKey(0x1234)))],
        ),
        (3, Done(KEPT), &[]),
    ]);
}
