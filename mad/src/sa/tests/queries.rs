//! Queries, tables, services, subscriptions.

use super::*;

#[test]
fn a_path_query_has_the_bytes_of_the_reference_and_the_agents_transaction() {
    let mut world = World::new();
    let (path, mask) = path_query();
    world.sa.get(7, &path, mask, ms(0)).unwrap();
    world.run(10);
    let sent = world.sent[0];
    assert_eq!(sent.to, MadAddr::gsi(Lid(1), Sl::new(0), 0));
    let bytes = sent.mad.0;
    assert_eq!(bytes[..8], [1, 3, 2, 1, 0, 0, 0, 0]); // SubnAdm, version 2, Get
    assert_eq!(bytes[8..12], [0, 0, 0, 0x21]);
    assert_eq!(bytes[16..18], [0, 0x35]);
    assert_eq!(bytes[24..48], [0; 24], "RMPP and SM_Key");
    assert_eq!(bytes[48..56], [0, 0, 0, 0, 0, 0, 0x34, 0x0c]); // bits 2, 3, 10, 12, 13
    let answers = world.answers();
    let [(7, Ok(SaAnswer::Record(record)))] = answers[..] else {
        panic!("{answers:?}");
    };
    assert_eq!(record.attribute, AttributeId::PATH_RECORD);
    assert_eq!(record.read::<PathRecord>().unwrap().dlid, Lid(0x22));
    assert_eq!(world.sent.len(), 1);
}

#[test]
fn at_the_end_of_time_a_poll_ends_too() {
    let mut world = World::new();
    let (path, mask) = path_query();
    world.sa.get(1, &path, mask, ms(0)).unwrap();
    let waits = |next: &SaNext| matches!(next, SaNext::WaitUntil(_));
    let polls: Vec<_> = (0..20).map(|_| world.sa.poll(Instant::NEVER)).collect();
    assert!(polls.iter().any(waits), "{polls:?}");
    assert!(polls.last().is_some_and(waits), "and rests");
}

#[test]
fn a_busy_sa_is_asked_again_and_a_refusal_is_handed_on() {
    let mut world = World::new();
    let (path, mask) = path_query();
    world.peer.mood = Mood::Says(MadStatus::BUSY);
    world.sa.get(1, &path, mask, ms(0)).unwrap();
    world.run(150);
    assert_eq!((world.sent.len(), world.answers()), (2, vec![]));
    world.peer.mood = Mood::Says(MadStatus::SA_NO_RECORDS);
    world.run(100);
    let status = MadStatus::SA_NO_RECORDS;
    let refused = (1, Err(SaError::Refused { status }));
    assert_eq!(world.answers(), [refused]);
}

#[test]
fn a_silent_sa_is_given_up_after_all_tries() {
    let mut world = World::new();
    let (path, mask) = path_query();
    world.peer.mood = Mood::Silent;
    world.sa.get(1, &path, mask, ms(0)).unwrap();
    world.run(400);
    assert_eq!(world.answers(), []);
    world.run(10);
    let why = NoAnswer::TimedOut { tries: 4 };
    assert_eq!(world.answers(), [(1, Err(SaError::NoAnswer(why)))]);
    assert_eq!(world.sent.len(), 4);
}

#[test]
fn an_answer_from_somebody_else_does_not_count() {
    let mut world = World::new();
    let (path, mask) = path_query();
    world.peer.lid = Lid(9);
    world.sa.get(1, &path, mask, ms(0)).unwrap();
    world.run(50);
    assert_eq!(world.answers(), []);
}

#[test]
fn without_a_subnet_manager_nothing_is_asked() {
    let mut sa = Client::new(AGENT, config());
    let (path, mask) = path_query();
    let error = SaError::NoSubnetManager;
    assert_eq!(sa.get(1, &path, mask, ms(0)), Err(error));
    assert_eq!(sa.get_table(1, &path, mask), Err(error));
    let join = sa.join(1, user(0), &member(1, JoinState::FULL_MEMBER), JOIN_MASK);
    assert_eq!(join, Err(error));
    assert_eq!(sa.poll(ms(5)), SaNext::WaitUntil(Instant::NEVER));
}

#[test]
fn a_table_of_many_segments_arrives_and_the_next_one_waits_its_turn() {
    let mut world = World::new();
    let records: Vec<_> = (0..8_u8).map(|i| [i; 112]).collect();
    world.peer.table = records.concat();
    world.peer.stride = 14;
    let query = NodeRecord::default();
    for cookie in [1, 2] {
        let asked = world.sa.get_table(cookie, &query, ComponentMask::NONE);
        asked.unwrap();
    }
    world.run(3);
    assert_eq!(world.asked().len(), 1, "one table at a time");
    world.run(100);
    let table = Ok(SaAnswer::Table);
    assert_eq!(world.answers(), [(1, table), (2, table)]);
    assert_eq!(world.tables, [records.concat(), records.concat()]);
    assert_eq!(
        world.sa.records::<NodeRecord>().count(),
        0,
        "was polled since"
    );
}

#[test]
fn an_empty_table_is_a_table() {
    let mut world = World::new();
    let (path, mask) = path_query();
    world.sa.get_table(1, &path, mask).unwrap();
    world.run(20);
    assert_eq!(world.answers(), [(1, Ok(SaAnswer::Table))]);
    assert_eq!(world.tables, [vec![0_u8; 0]]);
}

#[test]
fn a_table_of_one_record_in_one_mad_is_as_long_as_its_record() {
    let mut world = World::new();
    let query = NodeRecord::default();
    world.sa.get_table(1, &query, ComponentMask::NONE).unwrap();
    world.run(1);
    let asked = world.sent[0].mad;
    let mut answer = asked;
    answer.0[3] = Method::GET_TABLE_RESP.0;
    answer.0[44..46].copy_from_slice(&14_u16.to_be_bytes()); // 112 bytes
    answer.0[56..].fill(7);
    let received = world.received(answer);
    world.sa.handle(&received, ms(1));
    let next = world.sa.poll(ms(1));
    let answer = Ok(SaAnswer::Table);
    assert!(
        matches!(next, SaNext::Done { cookie: 1, result, .. } if result == answer),
        "{next:?}"
    );
    assert_eq!(world.sa.records::<NodeRecord>().count(), 1);
}

#[test]
fn a_table_that_does_not_fit_is_an_error_that_says_how_long_it_is() {
    let mut world = World::new();
    world.peer.table = vec![1; 1120];
    world.peer.stride = 14;
    let query = NodeRecord::default();
    world.sa.get_table(1, &query, ComponentMask::NONE).unwrap();
    world.run(20);
    let (need, room) = (1120, 1000);
    let error = SaError::Table(RmppError::BufferTooSmall { need, room });
    assert_eq!(world.answers(), [(1, Err(error))]);
    world.peer.table = vec![1; 112];
    world.sa.get_table(2, &query, ComponentMask::NONE).unwrap();
    world.run(20);
    assert_eq!(world.answers(), [(2, Ok(SaAnswer::Table))]);
}

#[test]
fn an_ordinary_query_does_not_disturb_a_table() {
    let mut world = World::new();
    world.peer.table = vec![3; 896];
    world.peer.stride = 14;
    let (path, mask) = path_query();
    let query = NodeRecord::default();
    world.sa.get_table(1, &query, ComponentMask::NONE).unwrap();
    world.run(5); // the first segment is there
    world.sa.get(2, &path, mask, ms(5)).unwrap();
    world.run(50);
    assert_eq!(world.answers().len(), 2);
    assert_eq!(world.tables, [vec![3; 896]]);
}

#[test]
fn another_subnet_manager_gets_what_the_last_one_did_not_answer() {
    let mut world = World::new();
    let (path, mask) = path_query();
    world.peer.mood = Mood::Silent;
    world.sa.get(1, &path, mask, ms(0)).unwrap();
    world.run(250);
    world.peer.mood = Mood::Answers;
    world.peer.lid = Lid(2);
    let sm_lid = Lid(2);
    world.sa.port_changed(&SaPort { sm_lid, ..PORT }, ms(250));
    world.run(10);
    assert_eq!(world.sent.last().unwrap().to.lid, Lid(2));
    assert!(matches!(world.answers()[..], [(1, Ok(_))]));
}

fn report() -> Mad {
    let head = SaHeader::request(Method::REPORT, AttributeId::NOTICE, ComponentMask::NONE);
    let mut mad = Mad::ZERO;
    mad.set_front(&head).unwrap();
    mad.0[8..16].copy_from_slice(&[9; 8]);
    mad.0[56..60].copy_from_slice(&[0x83, 0, 0, 4]);
    mad.0[61] = 64;
    mad
}

#[test]
fn a_report_is_handed_on_and_acknowledged_once_there_is_room_for_it() {
    let mut world = World::new();
    let received = world.received(report());
    for _ in 0..REPORTS + 1 {
        world.sa.handle(&received, ms(0));
    }
    world.run(1);
    assert_eq!(world.news.len(), REPORTS);
    assert!(matches!(world.news[0], SaNext::Report(notice) if notice.notice.number.0 == 64));
    assert_eq!(world.sent.len(), REPORTS, "the last one comes again");
    let mut expected = report();
    expected.0[3] = Method::REPORT_RESP.0;
    assert_eq!(world.sent[0].mad, expected);
    assert_eq!(world.sent[0].to.lid, Lid(1));
}

#[test]
fn a_subscription_is_made_again_after_a_reregistration_and_ended_once() {
    let mut world = World::new();
    let info = InformInfo {
        gid: Gid::NONE,
        lid_range_begin: InformInfo::ALL_LIDS,
        is_generic: true,
        kind: InformInfo::ALL,
        number: 66,
        producer: 4,
        ..InformInfo::default()
    };
    world.sa.subscribe(1, &info).unwrap();
    world.run(10);
    assert!(matches!(
        world.answers()[..],
        [(1, Ok(SaAnswer::Record(_)))]
    ));
    let sent = world.sent[0].mad.get::<InformInfo>().unwrap();
    assert!(sent.subscribe && sent.qpn == core_ib::Qpn::GSI);
    world.sa.reregister();
    world.run(10);
    assert_eq!(world.asked().len(), 2);
    assert_eq!(world.answers(), [], "nobody waits for that");
    world.sa.unsubscribe(2, &info, ms(20)).unwrap();
    world.run(10);
    assert!(matches!(world.answers()[..], [(2, Ok(_))]));
    world.asked();
    world.sa.reregister();
    world.run(10);
    assert_eq!(world.asked(), []);
}

#[test]
fn a_service_is_renewed_before_its_lease_ends_and_its_loss_is_told() {
    let mut world = World::new();
    let service = ServiceRecord {
        id: 0x1234,
        gid: gid(0x11),
        p_key: PKey::DEFAULT,
        lease: 3,
        ..ServiceRecord::default()
    };
    let mask = ServiceRecord::ID | ServiceRecord::GID | ServiceRecord::P_KEY;
    world.sa.register_service(8, &service, mask).unwrap();
    world.run(10);
    assert!(matches!(world.answers()[..], [(8, Ok(_))]));
    world.run(1900);
    assert_eq!(world.asked().len(), 1);
    world.run(200);
    assert_eq!(world.asked().len(), 1, "after 2 s of 3");
    world.peer.mood = Mood::Says(MadStatus::SA_DENIED);
    world.run(2100);
    let status = MadStatus::SA_DENIED;
    let (cookie, error) = (8, SaError::Refused { status });
    assert_eq!(world.news, [SaNext::Unregistered { cookie, error }]);
    world.asked();
    world.run(5000);
    assert_eq!(world.asked(), []);
}

#[test]
fn what_is_taken_back_ends_at_once_and_frees_the_table() {
    let mut world = World::new();
    world.peer.mood = Mood::Silent;
    let query = NodeRecord::default();
    let first = world.sa.get_table(1, &query, ComponentMask::NONE).unwrap();
    world.sa.get_table(2, &query, ComponentMask::NONE).unwrap();
    world.run(20);
    assert!(world.sa.cancel(first));
    assert!(!world.sa.cancel(first));
    world.peer.mood = Mood::Answers;
    world.run(20);
    let cancelled = Err(SaError::NoAnswer(NoAnswer::Cancelled));
    assert_eq!(world.answers(), [(1, cancelled), (2, Ok(SaAnswer::Table))]);
}

#[test]
fn each_capacity_is_named_when_it_is_used_up() {
    let mut world = World::new();
    world.peer.mood = Mood::Silent;
    let (path, mask) = path_query();
    let full = JoinState::FULL_MEMBER;
    for group in 0..4 {
        world
            .sa
            .join(0, user(0), &member(group, full), JOIN_MASK)
            .unwrap();
    }
    let join = world.sa.join(0, user(0), &member(9, full), JOIN_MASK);
    let (entry, limit) = ("GROUPS", 4);
    assert_eq!(join, Err(SaError::Full { entry, limit }));
    for _ in 4..6 {
        world.sa.get(0, &path, mask, ms(0)).unwrap();
    }
    let (entry, limit) = ("QUERIES", 6);
    let full = Err(SaError::Full { entry, limit });
    assert_eq!(world.sa.get(0, &path, mask, ms(0)), full);
}
