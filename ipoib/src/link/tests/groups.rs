//! Groups: joined, attached, left.

use super::*;
use core_ib::wire::Grh;

#[test]
fn a_listener_joins_and_attaches_and_its_end_detaches_and_leaves() {
    let mut desk = up();
    desk.is(&[
        (1, Listen(group(1)), &[Join(group(1), FULL, params())]),
        (2, Listen(group(1)), &[]), // twice
        (
            3,
            Joined(group(1), Ok(record(group(1), 0xc001, FULL))),
            &[attach(group(1), 0xc001)],
        ),
        (4, Done(KEPT), &[]),
        (5, Ignore(group(1)), &[]), // still once
        (6, Ignore(group(1)), &[detach(group(1), 0xc001)]),
        (7, Done(KEPT), &[Leave(group(1), FULL)]),
        (8, Left(group(1)), &[]),
    ]);
    assert_eq!(desk.link.groups().count(), 1, "the broadcast group alone");
}

#[test]
fn a_failure_alone_finds_the_request_that_failed() {
    let mut desk = up();
    let failed = |desk: &Desk, gid| {
        let ticket = desk.tickets[&gid];
        It(Event::SaFailed(ticket, SaFailure::TimedOut))
    };
    desk.is(&[(1, Listen(group(1)), &[Join(group(1), FULL, params())])]);
    desk.is(&[(2, failed(&desk, group(1)), &[])]);
    desk.is(&[(1002, Nothing, &[Join(group(1), FULL, params())])]);
    let joined = Ok(record(group(1), 0xc001, FULL));
    desk.is(&[
        (1003, Joined(group(1), joined), &[attach(group(1), 0xc001)]),
        (1004, Done(KEPT), &[]),
        (1005, Ignore(group(1)), &[detach(group(1), 0xc001)]),
        (1006, Done(KEPT), &[Leave(group(1), FULL)]),
    ]);
    desk.is(&[(1007, failed(&desk, group(1)), &[])]);
    assert_eq!(desk.link.groups().count(), 1);
    desk.is(&[(1008, Send(1, peer(1)), &[Parked(1), Query(peer(1))])]);
    desk.is(&[(1009, failed(&desk, peer(1)), &[])]);
    desk.is(&[(2009, Nothing, &[Query(peer(1))])]);
    desk.is(&[(2010, failed(&desk, peer(1)), &[Lost(1, Unreachable)])]);
    assert_eq!(desk.link.statistics().sa_failures, 4);
    desk.is(&[(2011, failed(&desk, peer(1)), &[])]); // twice
    assert_eq!(desk.link.statistics().stale_answers, 1);
}

#[test]
fn who_listens_again_while_it_leaves_joins_after_that() {
    let mut desk = up();
    desk.is(&[
        (1, Listen(group(1)), &[Join(group(1), FULL, params())]),
        (2, Ignore(group(1)), &[]), // the answer is waited for
        (
            3,
            Joined(group(1), Ok(record(group(1), 0xc001, FULL))),
            &[Leave(group(1), FULL)],
        ),
        (4, Listen(group(1)), &[]),
        (5, Left(group(1)), &[Join(group(1), FULL, params())]),
    ]);
}

#[test]
fn the_broadcast_group_is_not_to_be_ignored() {
    let mut desk = up();
    desk.is(&[
        (1, Ignore(B), &[]),
        (2, Ignore(B), &[]),
        (3, Send(1, B), &[Sent(1, Lid(0xc000))]),
    ]);
}

#[test]
fn a_group_that_is_only_sent_to_is_joined_for_that_and_left_when_idle() {
    let mut desk = up();
    desk.is(&[
        (
            0,
            Send(1, group(1)),
            &[Parked(1), Join(group(1), SENDS, params())],
        ),
        (
            1,
            Joined(group(1), Ok(record(group(1), 0xc001, SENDS))),
            &[Sent(1, Lid(0xc001))],
        ),
        (2, Send(2, group(1)), &[Sent(2, Lid(0xc001))]),
        (300_001, Nothing, &[]),
        (300_002, Nothing, &[Leave(group(1), SENDS)]),
        (300_003, Send(3, group(1)), &[Parked(3)]),
        (300_004, Left(group(1)), &[Join(group(1), SENDS, params())]),
    ]);
}

#[test]
fn a_sender_that_listens_becomes_a_full_member() {
    let both = FULL | SENDS;
    let mut desk = up();
    desk.is(&[
        (
            1,
            Send(1, group(1)),
            &[Parked(1), Join(group(1), SENDS, params())],
        ),
        (
            2,
            Joined(group(1), Ok(record(group(1), 0xc001, SENDS))),
            &[Sent(1, Lid(0xc001))],
        ),
        (3, Listen(group(1)), &[Join(group(1), FULL, params())]),
        (4, Send(2, group(1)), &[Sent(2, Lid(0xc001))]), // meanwhile
        (
            5,
            Joined(group(1), Ok(record(group(1), 0xc001, both))),
            &[attach(group(1), 0xc001)],
        ),
        (6, Done(KEPT), &[]),
    ]);
}

#[test]
fn an_sa_that_knows_no_send_only_full_members_is_asked_for_less() {
    let less = JoinState::SEND_ONLY_NON_MEMBER;
    let mut desk = up();
    desk.is(&[
        (
            1,
            Send(1, group(1)),
            &[Parked(1), Join(group(1), SENDS, params())],
        ),
        (
            2,
            Joined(group(1), Err(NO)),
            &[Join(group(1), less, params())],
        ),
        (
            3,
            Joined(group(1), Ok(record(group(1), 0xc001, less))),
            &[Sent(1, Lid(0xc001))],
        ),
    ]);
}

#[test]
fn a_send_only_join_is_retried_once_and_the_next_frame_starts_over() {
    let out = Err(SaFailure::TimedOut);
    let join = Join(group(1), SENDS, params());
    let mut desk = up();
    desk.is(&[
        (0, Send(1, group(1)), &[Parked(1), join]),
        (1, Joined(group(1), out), &[]),
        (1001, Nothing, &[join]),
        (1002, Joined(group(1), out), &[Lost(1, Unreachable)]),
        (1003, Send(2, group(1)), &[Lost(2, Unreachable)]),
        (50_000, Nothing, &[]), // nobody asks
        (50_001, Send(3, group(1)), &[Parked(3), join]),
    ]);
}

#[test]
fn listeners_find_room_that_senders_may_not_take() {
    let mut desk = Desk::up(Profile {
        groups: 4,
        sa_outstanding: 100,
        ..Profile::DEFAULT
    });
    let join = |n| Join(group(n), SENDS, params());
    desk.is(&[
        (1, Send(1, group(1)), &[Parked(1), join(1)]),
        (1, Send(2, group(2)), &[Parked(2), join(2)]),
        (1, Send(3, group(3)), &[Lost(3, GroupsFull)]),
        (1, Listen(group(4)), &[Join(group(4), FULL, params())]),
    ]);
    let full = crate::GroupError::NoRoom {
        entry: "groups",
        limit: 4,
    };
    assert_eq!(desk.link.listen(group(5), desk.now), Err(full));
}

#[test]
fn addresses_that_are_none_of_this_link_are_refused() {
    let mut desk = up();
    let other_partition = broadcast_gid(PKey(0x8001), Scope::LINK_LOCAL);
    let other_scope = broadcast_gid(PKey::DEFAULT, Scope::GLOBAL);
    let mut not_ip = B;
    not_ip.0[2] = 0xa0;
    desk.is(&[
        (1, Send(1, other_partition), &[Lost(1, BadAddress)]),
        (1, Send(2, other_scope), &[Lost(2, BadAddress)]),
        (1, Send(3, not_ip), &[Lost(3, BadAddress)]),
        (1, Send(4, Gid::NONE), &[Lost(4, BadAddress)]),
    ]);
    let error = crate::GroupError::NotOfThisLink { mgid: not_ip };
    assert_eq!(desk.link.listen(not_ip, desk.now), Err(error));
}

#[test]
fn a_group_that_cannot_be_attached_does_not_hold_up_others() {
    let mut desk = up();
    let full = VerbsError::NoResources {
        entry: "groups",
        limit: 8,
    };
    desk.is(&[
        (0, Listen(group(1)), &[Join(group(1), FULL, params())]),
        (0, Listen(group(2)), &[Join(group(2), FULL, params())]),
        (
            1,
            Joined(group(1), Ok(record(group(1), 0xc001, FULL))),
            &[attach(group(1), 0xc001)],
        ),
        (2, Joined(group(2), Ok(record(group(2), 0xc002, FULL))), &[]),
        (3, Done(Err(full)), &[attach(group(2), 0xc002)]),
        (4, Done(KEPT), &[]),
        (16_003, Nothing, &[attach(group(1), 0xc001)]),
    ]);
}

#[test]
fn only_own_copies_from_a_group_are_own() {
    let desk = up();
    let to = |sgid, dgid| Grh {
        traffic_class: 0,
        flow_label: FlowLabel::new(0),
        pay_len: 0,
        nxt_hdr: Grh::IBA,
        hop_limit: 0,
        sgid,
        dgid,
    };
    let classify = |slid, qpn, grh: Grh| desk.link.classify(Lid(slid), Qpn::new(qpn), Some(&grh));
    assert_eq!(classify(5, 0x48, to(peer(0), B)), Arrival::Own);
    assert_eq!(classify(5, 0x48, to(peer(0), group(1))), Arrival::Own);
    assert_eq!(classify(4, 0x48, to(peer(0), B)), Arrival::Own); // sent before our LID changed
    assert_eq!(classify(5, 0x48, to(peer(7), B)), Arrival::Own); // by another GID of our port
    assert_eq!(classify(5, 0x49, to(peer(0), B)), Arrival::Broadcast); // another interface of this port
    assert_eq!(classify(6, 0x48, to(peer(1), group(1))), Arrival::Multicast);
    assert_eq!(classify(5, 0x48, to(peer(0), peer(0))), Arrival::Host); // to ourselves
    assert_eq!(
        desk.link.classify(Lid(5), Qpn::new(0x48), None),
        Arrival::Host
    );
}

#[test]
fn a_place_that_is_forgotten_leaves_no_frame_to_its_next_tenant() {
    let mut desk = Desk::up(Profile {
        groups: 3,
        ..Profile::DEFAULT
    });
    desk.is(&[
        (0, Listen(group(1)), &[Join(group(1), FULL, params())]),
        (1, Joined(group(1), Err(SaFailure::NotSent)), &[]),
        (2, Send(1, group(1)), &[Parked(1)]),
        (3, Ignore(group(1)), &[Join(group(1), SENDS, params())]), // the frame still wants to go
        (4, Joined(group(1), Err(SaFailure::NotSent)), &[]),
    ]);
    let both = FULL | SENDS;
    desk.is(&[
        (301_000, Nothing, &[Leave(group(1), both)]), // idle; what was asked for may be so
        (301_001, Left(group(1)), &[Lost(1, Unreachable)]),
        (301_002, Listen(group(2)), &[Join(group(2), FULL, params())]),
    ]);
}

#[test]
fn a_group_of_another_partition_is_none_of_ours() {
    let mut desk = up();
    let mut other = record(group(1), 0xc001, FULL);
    other.p_key = core_ib::PKey(0x8001);
    desk.is(&[
        (1, Listen(group(1)), &[Join(group(1), FULL, params())]),
        (2, Joined(group(1), Ok(other)), &[]),
    ]);
    assert_eq!(desk.link.statistics().bad_answers, 1);
}
