//! Memberships in groups, and what a port goes through.

use super::*;

#[test]
fn two_users_share_one_membership_and_the_last_one_leaves() {
    let mut world = World::new();
    let full = JoinState::FULL_MEMBER;
    world
        .sa
        .join(1, user(0), &member(1, full), JOIN_MASK)
        .unwrap();
    world.run(10);
    world
        .sa
        .join(2, user(1), &member(1, full), JOIN_MASK)
        .unwrap();
    world.run(10);
    let set = (Method::SET, AttributeId::MC_MEMBER_RECORD);
    assert_eq!(
        world.asked(),
        [set],
        "the second is served from what is known"
    );
    let answers = world.answers();
    assert!(matches!(
        answers[..],
        [(1, Ok(SaAnswer::Joined(a))), (2, Ok(SaAnswer::Joined(b)))]
            if a == b && a.mlid == Lid(0xc001)
    ));
    world.sa.leave(3, user(0), mgid(1), full).unwrap();
    world.run(10);
    assert_eq!(
        (world.answers(), world.asked()),
        (vec![(3, Ok(SaAnswer::Left))], vec![])
    );
    assert!(world.sa.group(mgid(1)).is_some());
    world.sa.leave(4, user(1), mgid(1), full).unwrap();
    world.run(10);
    let delete = (Method::DELETE, AttributeId::MC_MEMBER_RECORD);
    assert_eq!(
        (world.answers(), world.asked()),
        (vec![(4, Ok(SaAnswer::Left))], vec![delete])
    );
    assert_eq!((world.bits(1), world.sa.group(mgid(1))), (0, None));
    let (mgid, error) = (mgid(1), world.sa.leave(5, user(1), mgid(1), full));
    assert_eq!(error, Err(SaError::NotMember { mgid }));
}

#[test]
fn the_port_has_the_bits_that_somebody_wants_and_no_others() {
    let mut world = World::new();
    let (full, send) = (JoinState::FULL_MEMBER, JoinState::SEND_ONLY_NON_MEMBER);
    world
        .sa
        .join(1, user(0), &member(1, full), JOIN_MASK)
        .unwrap();
    world
        .sa
        .join(2, user(1), &member(1, send), JOIN_MASK)
        .unwrap();
    world.run(10);
    assert_eq!(world.asked().len(), 1, "asked for together");
    assert_eq!(world.bits(1), 5);
    world.sa.leave(3, user(0), mgid(1), full | send).unwrap();
    world.run(10);
    assert_eq!(world.bits(1), 4);
    world.sa.leave(4, user(1), mgid(1), send).unwrap();
    world.run(10);
    assert_eq!(world.bits(1), 0);
}

#[test]
fn a_group_that_the_sa_names_is_known_by_its_name() {
    let mut world = World::new();
    let mut record = member(0, JoinState::FULL_MEMBER);
    record.mgid = Gid::NONE;
    world.sa.join(1, user(0), &record, JOIN_MASK).unwrap();
    world.run(10);
    assert!(matches!(world.answers()[..], [(1, Ok(SaAnswer::Joined(r)))] if r.mgid == mgid(0xaa)));
    let full = JoinState::FULL_MEMBER;
    world.sa.leave(2, user(0), mgid(0xaa), full).unwrap();
    world.run(10);
    assert_eq!(world.bits(0xaa), 0);
}

#[test]
fn a_refused_join_ends_those_who_waited_for_it_and_nobody_else() {
    let mut world = World::new();
    let (full, send) = (JoinState::FULL_MEMBER, JoinState::SEND_ONLY_NON_MEMBER);
    world
        .sa
        .join(1, user(0), &member(1, full), JOIN_MASK)
        .unwrap();
    world.run(10);
    world.peer.mood = Mood::Says(MadStatus::SA_REQUEST_INVALID);
    world
        .sa
        .join(2, user(1), &member(1, send), JOIN_MASK)
        .unwrap();
    world.run(10);
    let status = MadStatus::SA_REQUEST_INVALID;
    let answers = world.answers();
    assert!(matches!(answers[0], (1, Ok(SaAnswer::Joined(_)))));
    assert_eq!(answers[1..], [(2, Err(SaError::Refused { status }))]);
    assert_eq!(world.news, []);
    assert!(world.sa.group(mgid(1)).is_some());
}

#[test]
fn when_the_sm_asks_to_reregister_groups_are_joined_again_and_users_are_told() {
    let mut world = World::new();
    let full = JoinState::FULL_MEMBER;
    world
        .sa
        .join(1, user(2), &member(1, full), JOIN_MASK)
        .unwrap();
    world.run(10);
    world.answers();
    world.peer.members.clear();
    world.sa.reregister();
    assert_eq!(world.sa.group(mgid(1)), None);
    // The user hears of the event too, and joins by himself: one request for both.
    world
        .sa
        .join(2, user(2), &member(1, full), JOIN_MASK)
        .unwrap();
    world.asked();
    world.run(10);
    assert_eq!((world.asked().len(), world.bits(1)), (1, 1));
    assert!(matches!(
        world.answers()[..],
        [(2, Ok(SaAnswer::Joined(_)))]
    ));
    assert!(matches!(
        world.news[..],
        [SaNext::Regrouped { users, result: Ok(record), .. }]
            if users.contains(user(2)) && record.mlid == Lid(0xc002)
    ));
    // And one that cannot be had again is lost.
    world.news.clear();
    world.peer.mood = Mood::Says(MadStatus::SA_DENIED);
    world.sa.reregister();
    world.run(10);
    let status = MadStatus::SA_DENIED;
    assert!(matches!(
        world.news[..],
        [SaNext::Regrouped { users, result: Err(SaError::Refused { status: s }), .. }]
            if users.contains(user(2)) && s == status
    ));
    let left = world.sa.leave(3, user(2), mgid(1), full);
    assert!(matches!(left, Err(SaError::NotMember { .. })));
}

#[test]
fn a_port_that_goes_down_ends_queries_and_comes_back_with_its_groups() {
    let mut world = World::new();
    let (path, mask) = path_query();
    let full = JoinState::FULL_MEMBER;
    world
        .sa
        .join(1, user(0), &member(1, full), JOIN_MASK)
        .unwrap();
    world.run(10);
    world.answers();
    world.sa.get(2, &path, mask, ms(10)).unwrap();
    world
        .sa
        .join(3, user(0), &member(2, full), JOIN_MASK)
        .unwrap();
    let down = SaPort {
        active: false,
        ..PORT
    };
    world.sa.port_changed(&down, ms(10));
    world.sa.leave(4, user(0), mgid(1), full).unwrap();
    world
        .sa
        .join(5, user(0), &member(1, full), JOIN_MASK)
        .unwrap_err();
    world.run(1000);
    let error = Err(SaError::NoSubnetManager);
    let left = (4, Ok(SaAnswer::Left));
    assert_eq!(world.answers(), [(2, error), (3, error), left]);
    // Of a second group it is still a member when it comes back, with another LID.
    world.sa.port_changed(&PORT, ms(1010));
    world
        .sa
        .join(6, user(0), &member(3, full), JOIN_MASK)
        .unwrap();
    world.run(10);
    world.peer.members.clear();
    world.sa.port_changed(&down, ms(1020));
    world.run(10);
    let lid = Lid(6);
    world.sa.port_changed(&SaPort { lid, ..PORT }, ms(1030));
    world.run(10);
    assert_eq!(world.bits(3), 1);
}

#[test]
fn who_leaves_at_once_hears_that_he_joined_before_he_hears_that_he_left() {
    let mut world = World::new();
    let full = JoinState::FULL_MEMBER;
    world
        .sa
        .join(1, user(1), &member(1, full), JOIN_MASK)
        .unwrap();
    world.run(10);
    world.answers();
    // The leave gets the place before that of the join.
    let path = PathRecord::default();
    let query = world.sa.get(2, &path, ComponentMask::NONE, ms(10)).unwrap();
    world
        .sa
        .join(3, user(0), &member(1, full), JOIN_MASK)
        .unwrap();
    world.sa.cancel(query);
    let cancelled = world.sa.poll(ms(10));
    assert!(matches!(cancelled, SaNext::Done { cookie: 2, .. }));
    world.sa.leave(4, user(0), mgid(1), full).unwrap();
    let cookies = [(); 2].map(|()| match world.sa.poll(ms(10)) {
        SaNext::Done { cookie, .. } => cookie,
        _ => 0,
    });
    assert_eq!(cookies, [3, 4]);
}
