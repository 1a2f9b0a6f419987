//! Paths: asked for, used, doubted, forgotten.

use super::*;

#[test]
fn frames_wait_for_their_path_in_order_and_the_fourth_is_dropped() {
    let mut desk = up();
    desk.is(&[
        (1, Send(1, peer(1)), &[Parked(1), Query(peer(1))]),
        (2, Send(2, peer(1)), &[Parked(2)]),
        (2, Send(3, peer(1)), &[Parked(3)]),
        (2, Send(4, peer(1)), &[Lost(4, ParkedFull)]),
        (
            3,
            Path(peer(1), Ok(path(9))),
            &[Sent(1, Lid(9)), Sent(2, Lid(9)), Sent(3, Lid(9))],
        ),
        (4, Send(5, peer(1)), &[Sent(5, Lid(9))]),
    ]);
}

#[test]
fn a_frame_does_not_overtake_those_that_wait() {
    let mut desk = up();
    desk.is(&[(1, Send(1, peer(1)), &[Parked(1), Query(peer(1))])]);
    let mut saw = Vec::new();
    desk.happens(Path(peer(1), Ok(path(9))), &mut saw);
    desk.happens(Send(2, peer(1)), &mut saw); // before anybody polled
    desk.settle(&mut saw);
    assert_eq!(saw, [Parked(2), Sent(1, Lid(9)), Sent(2, Lid(9))]);
}

#[test]
fn a_peer_that_the_sa_does_not_know_is_asked_for_once_a_second_at_most() {
    let mut desk = up();
    desk.is(&[
        (1, Send(1, peer(1)), &[Parked(1), Query(peer(1))]),
        (2, Path(peer(1), Err(NO)), &[Lost(1, Unreachable)]),
        (500, Send(2, peer(1)), &[Lost(2, Unreachable)]),
        (1002, Send(3, peer(1)), &[Parked(3), Query(peer(1))]),
        (1003, Path(peer(1), Err(SaFailure::TimedOut)), &[]), // one more try
        (2003, Nothing, &[Query(peer(1))]),
        (
            2004,
            Path(peer(1), Err(SaFailure::TimedOut)),
            &[Lost(3, Unreachable)],
        ),
    ]);
}

#[test]
fn an_answer_of_the_sa_that_makes_no_sense_is_a_failure() {
    let mut desk = up();
    desk.is(&[
        (1, Send(1, peer(1)), &[Parked(1), Query(peer(1))]),
        (2, Path(peer(1), Ok(path(0xc001))), &[]),
        (1002, Nothing, &[Query(peer(1))]),
        (1003, Path(peer(1), Ok(path(0))), &[Lost(1, Unreachable)]),
        (1004, Listen(group(1)), &[Join(group(1), FULL, params())]),
        (
            1005,
            Joined(group(1), Ok(record(group(2), 0xc001, FULL))),
            &[],
        ),
        (2005, Nothing, &[Join(group(1), FULL, params())]),
        (2006, Joined(group(1), Ok(record(group(1), 9, FULL))), &[]),
    ]);
    assert_eq!(desk.link.statistics().bad_answers, 4);
}

#[test]
fn a_lost_answer_is_given_up_at_the_limit() {
    let mut desk = up();
    desk.is(&[
        (0, Send(1, peer(1)), &[Parked(1), Query(peer(1))]),
        (59_999, Nothing, &[]),
        (60_000, Nothing, &[]),
        (61_000, Nothing, &[Query(peer(1))]),
        (61_001, Path(peer(1), Ok(path(9))), &[Sent(1, Lid(9))]),
    ]);
}

#[test]
fn no_more_requests_are_outstanding_than_the_profile_says() {
    let mut desk = up(); // sa_outstanding: 4
    desk.is(&[
        (1, Send(1, peer(1)), &[Parked(1), Query(peer(1))]),
        (1, Send(2, peer(2)), &[Parked(2), Query(peer(2))]),
        (1, Send(3, peer(3)), &[Parked(3), Query(peer(3))]),
        (1, Listen(group(1)), &[Join(group(1), FULL, params())]),
        (1, Send(4, peer(4)), &[Parked(4)]),
        (
            2,
            Path(peer(2), Ok(path(9))),
            &[Sent(2, Lid(9)), Query(peer(4))],
        ),
    ]);
}

#[test]
fn an_answer_from_before_the_lid_change_is_not_used() {
    let mut desk = up();
    let moved = PortView {
        lid: Lid(6),
        ..view()
    };
    desk.is(&[(1, Send(1, peer(1)), &[Parked(1), Query(peer(1))])]);
    let old = desk.tickets[&peer(1)];
    desk.is(&[
        (
            2,
            port(PortEvent::LidChange, moved),
            &[Join(B, FULL, None), Query(peer(1))],
        ),
        (3, It(Event::Path(old, Ok(path(9)))), &[]),
        (4, Path(peer(1), Ok(path(10))), &[Sent(1, Lid(10))]),
        (5, It(Event::Path(old, Ok(path(9)))), &[]),
    ]);
    assert_eq!(desk.link.statistics().stale_answers, 2);
}

#[test]
fn a_silent_sa_does_not_take_a_path_away_but_one_that_says_no_does() {
    let mut desk = up();
    desk.is(&[
        (1, Send(1, peer(1)), &[Parked(1), Query(peer(1))]),
        (2, Path(peer(1), Ok(path(9))), &[Sent(1, Lid(9))]),
        (3, port(PortEvent::SmChange, view()), &[]),
        (4, Send(2, peer(1)), &[Sent(2, Lid(9)), Query(peer(1))]),
        (5, Path(peer(1), Err(SaFailure::TimedOut)), &[]),
        (6, Send(3, peer(1)), &[Sent(3, Lid(9))]),
        (1005, Send(4, peer(1)), &[Sent(4, Lid(9)), Query(peer(1))]),
        (1006, Path(peer(1), Err(NO)), &[]),
        (1007, Send(5, peer(1)), &[Lost(5, Unreachable)]),
    ]);
}

#[test]
fn a_path_is_renewed_by_age_and_forgotten_when_idle() {
    let mut desk = Desk::up(Profile {
        paths: 1,
        timers: Timers {
            path_refresh: Duration::from_secs(60),
            ..Timers::DEFAULT
        },
        ..Profile::DEFAULT
    });
    desk.is(&[
        (0, Send(1, peer(1)), &[Parked(1), Query(peer(1))]),
        (0, Path(peer(1), Ok(path(9))), &[Sent(1, Lid(9))]),
        (59_000, Send(2, peer(1)), &[Sent(2, Lid(9))]),
        (60_000, Send(3, peer(1)), &[Sent(3, Lid(9)), Query(peer(1))]),
        (60_001, Path(peer(1), Ok(path(9))), &[]),
        (179_999, Nothing, &[]),
        (180_000, Nothing, &[]),
        (180_001, Send(4, peer(1)), &[Parked(4), Query(peer(1))]),
        (180_002, Send(5, peer(2)), &[Lost(5, PathsFull)]), // the only place is being asked for
        (180_003, Path(peer(1), Ok(path(9))), &[Sent(4, Lid(9))]),
        (180_004, Send(6, peer(2)), &[Parked(6), Query(peer(2))]), // takes the place of peer 1
        (180_005, Path(peer(2), Ok(path(8))), &[Sent(6, Lid(8))]),
    ]);
}

#[test]
fn a_suspected_peer_is_asked_for_before_it_is_sent_to() {
    let mut desk = up();
    desk.is(&[
        (1, Send(1, peer(1)), &[Parked(1), Query(peer(1))]),
        (2, Path(peer(1), Ok(path(9))), &[Sent(1, Lid(9))]),
        (3, It(Event::Suspect(peer(1))), &[]),
        (4, Send(2, peer(1)), &[Parked(2), Query(peer(1))]),
    ]);
}

#[test]
fn a_path_through_routers_carries_a_grh_and_a_path_of_many_lids_its_bits() {
    let mut desk = Desk::up(Profile::DEFAULT);
    let wide = PortView {
        lid: Lid(8),
        lmc: 2,
        ..view()
    };
    desk.link.handle(Event::Port(wide), desk.now);
    desk.settle(&mut Vec::new());
    let to = LinkAddress {
        qpn: Qpn::new(7),
        gid: peer(1),
        ..LinkAddress::default()
    };
    assert_eq!(desk.link.send(&to, FrameId(1), desk.now), Verdict::Parked);
    desk.settle(&mut Vec::new());
    let far = PathAnswer {
        slid: Lid(11),
        hop_limit: 64,
        flow_label: FlowLabel::new(0x12345),
        traffic_class: 3,
        ..path(9)
    };
    desk.link
        .handle(Event::Path(desk.tickets[&peer(1)], Ok(far)), desk.now);
    let Action::Send { route, .. } = desk.link.poll(desk.now) else {
        panic!("it waits no more");
    };
    assert_eq!(route.attr.src_path_bits, 3);
    let grh = route.attr.grh.unwrap();
    assert_eq!(
        (grh.dgid, grh.hop_limit, grh.flow_label, grh.traffic_class),
        (peer(1), 64, 0x12345, 3)
    );
    assert_eq!((route.qpn, route.q_key), (Qpn::new(7), Q));
    assert!(usize::from(route.slot) < desk.link.routes());
}
