//! The client against an SA that fits into a page, over a wire that may lose and delay, in virtual milliseconds.

use super::*;
use crate::addr::Received;
use crate::rmpp::{RmppError, RmppSender, SenderNext};
use crate::transaction::{NoAnswer, Patience};
use core_ib::verbs::WorkCompletion;
use core_ib::wire::mad::{
    AttributeId, ComponentMask, InformInfo, MadStatus, Method, MgmtClass, NodeRecord, PathRecord,
    ServiceRecord,
};
use core_ib::{Guid, PKey};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::vec;
use std::vec::Vec;

const fn ms(millis: u64) -> Instant {
    Instant(millis * 1_000_000)
}

const AGENT: AgentId = AgentId::new(0x21);

const PORT: SaPort = SaPort {
    active: true,
    lid: Lid(5),
    sm_lid: Lid(1),
    sm_sl: Sl::new(0),
    pkey_index: 0,
};

fn config() -> SaConfig {
    SaConfig {
        query: Patience::new(100, 3),
        change: Patience::new(300, 3),
        window: 4,
    }
}

fn gid(low: u64) -> Gid {
    Gid::unicast(Gid::DEFAULT_PREFIX, Guid(low))
}

fn mgid(low: u8) -> Gid {
    Gid([
        0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, low,
    ])
}

fn user(user: u8) -> GroupUser {
    GroupUser::new(user).unwrap()
}

fn member(group: u8, join_state: JoinState) -> McMemberRecord {
    McMemberRecord {
        mgid: mgid(group),
        port_gid: gid(0x11),
        join_state,
        ..McMemberRecord::default()
    }
}

const JOIN_MASK: ComponentMask = McMemberRecord::MGID
    .or(McMemberRecord::PORT_GID)
    .or(McMemberRecord::JOIN_STATE);

/// What the SA does with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mood {
    Answers,
    Says(MadStatus),
    Silent,
}

/// An SA that knows one port.
struct FakeSa {
    mood: Mood,
    lid: Lid,
    /// Bits of the port by group.
    members: BTreeMap<Gid, u8>,
    mlids: u16,
    asked: Vec<(Method, AttributeId)>,
    table: Vec<u8>,
    stride: u16,
    sending: Option<(RmppSender, u64)>,
}

impl FakeSa {
    fn handle(&mut self, mad: &Mad, now: u64) -> Option<Mad> {
        let head = mad.front::<SaHeader>().unwrap();
        let header = head.header;
        assert_eq!(
            (header.class, header.class_version),
            (MgmtClass::SUBN_ADM, 2)
        );
        if head.rmpp.is_active() {
            if let Some((sender, tid)) = &mut self.sending
                && *tid == header.tid
            {
                sender.handle(mad, ms(now));
            }
            return None;
        }
        if header.method.is_response() {
            self.asked.push((header.method, header.attribute));
            return None;
        }
        self.asked.push((header.method, header.attribute));
        let mut answer = *mad;
        let status = match self.mood {
            Mood::Silent => return None,
            Mood::Says(status) => status,
            Mood::Answers => MadStatus::OK,
        };
        answer.set_header(&header.reply(status).unwrap());
        if status != MadStatus::OK {
            return Some(answer);
        }
        match (header.method, header.attribute) {
            (Method::GET_TABLE, _) => {
                if self
                    .sending
                    .as_ref()
                    .is_none_or(|(_, tid)| *tid != header.tid)
                {
                    let mut head = answer.front::<SaHeader>().unwrap();
                    head.attribute_offset = self.stride;
                    answer.set_front(&head).unwrap();
                    let patience = Patience::new(50, 10);
                    let sender = RmppSender::new(&answer, self.table.len(), patience, ms(now));
                    self.sending = Some((sender.unwrap(), header.tid));
                }
                return None;
            }
            (Method::SET, AttributeId::MC_MEMBER_RECORD) => {
                let mut record = answer.get::<McMemberRecord>().unwrap();
                if record.mgid.is_none() {
                    record.mgid = mgid(0xaa);
                }
                let bits = self.members.entry(record.mgid).or_default();
                *bits |= record.join_state.bits();
                record.join_state = JoinState::from_bits_retain(*bits);
                self.mlids += 1;
                record.mlid = Lid(0xc000 + self.mlids);
                answer.put(&record).unwrap();
            }
            (Method::DELETE, AttributeId::MC_MEMBER_RECORD) => {
                let record = answer.get::<McMemberRecord>().unwrap();
                let bits = self.members.entry(record.mgid).or_default();
                *bits &= !record.join_state.bits();
            }
            (Method::GET, AttributeId::PATH_RECORD) => {
                let mut path = answer.get::<PathRecord>().unwrap();
                path.dlid = Lid(path.dgid.0[15].into());
                answer.put(&path).unwrap();
            }
            _ => {}
        }
        Some(answer)
    }

    fn poll(&mut self, now: u64) -> Option<Mad> {
        let (sender, _) = self.sending.as_mut()?;
        match sender.poll(ms(now)) {
            SenderNext::Segment { number, bytes } => {
                Some(sender.segment(number, &self.table[bytes]))
            }
            SenderNext::Control(mad) => Some(mad),
            SenderNext::Done(_) | SenderNext::WaitUntil(_) => None,
        }
    }
}

type Client = Sa<6, 4, 3, 1000>;

struct World {
    sa: Client,
    peer: FakeSa,
    now: u64,
    /// When, to the client?, what.
    wire: Vec<(u64, bool, Mad)>,
    /// Every how manieth packet gets lost; 0: none.
    loses: u32,
    count: u32,
    sent: Vec<Outgoing>,
    done: Vec<(u64, Result<SaAnswer, SaError>)>,
    tables: Vec<Vec<u8>>,
    news: Vec<SaNext>,
}

impl World {
    fn new() -> Self {
        let mut sa = Client::new(AGENT, config());
        sa.port_changed(&PORT, ms(0));
        Self {
            sa,
            peer: FakeSa {
                mood: Mood::Answers,
                lid: PORT.sm_lid,
                members: BTreeMap::new(),
                mlids: 0,
                asked: vec![],
                table: vec![],
                stride: 0,
                sending: None,
            },
            now: 0,
            wire: vec![],
            loses: 0,
            count: 0,
            sent: vec![],
            done: vec![],
            tables: vec![],
            news: vec![],
        }
    }

    fn received(&self, mad: Mad) -> Received {
        let mut received = Received::looped_back(crate::SpecialQp::Gsi, mad);
        received.wc = WorkCompletion {
            slid: self.peer.lid,
            ..received.wc
        };
        received
    }

    fn put(&mut self, to_client: bool, mad: Mad) {
        self.count += 1;
        if self.loses == 0 || !self.count.is_multiple_of(self.loses) {
            self.wire.push((self.now + 2, to_client, mad));
        }
    }

    fn millisecond(&mut self) {
        let now = self.now;
        let (due, later) = self.wire.drain(..).partition(|(at, ..)| *at <= now);
        self.wire = later;
        let due: Vec<_> = due;
        for (_, to_client, mad) in due {
            if to_client {
                let received = self.received(mad);
                self.sa.handle(&received, ms(now));
            } else if let Some(answer) = self.peer.handle(&mad, now) {
                self.put(true, answer);
            }
        }
        while let Some(mad) = self.peer.poll(now) {
            self.put(true, mad);
        }
        for round in 0.. {
            assert!(round < 1000, "polls without end");
            match self.sa.poll(ms(now)) {
                SaNext::Send(outgoing) => {
                    self.sent.push(outgoing);
                    self.put(false, outgoing.mad);
                }
                SaNext::Done { cookie, result, .. } => {
                    if result == Ok(SaAnswer::Table) {
                        self.tables.push(self.sa.table().0.to_vec());
                    }
                    self.done.push((cookie, result));
                }
                SaNext::WaitUntil(at) => {
                    assert!(at > ms(now), "asks to be polled in the past");
                    break;
                }
                news => self.news.push(news),
            }
        }
        self.now += 1;
    }

    fn run(&mut self, millis: u64) {
        for _ in 0..millis {
            self.millisecond();
        }
    }

    /// The answers so far, without what was asked before.
    fn answers(&mut self) -> Vec<(u64, Result<SaAnswer, SaError>)> {
        core::mem::take(&mut self.done)
    }

    fn bits(&self, group: u8) -> u8 {
        self.peer.members.get(&mgid(group)).copied().unwrap_or(0)
    }

    fn asked(&mut self) -> Vec<(Method, AttributeId)> {
        core::mem::take(&mut self.peer.asked)
    }
}

fn path_query() -> (PathRecord, ComponentMask) {
    let path = PathRecord {
        dgid: gid(0x22),
        sgid: gid(0x11),
        numb_path: 1,
        p_key: PKey::DEFAULT,
        ..PathRecord::default()
    };
    let mask = PathRecord::DGID | PathRecord::SGID | PathRecord::NUMB_PATH;
    (path, mask | PathRecord::TCLASS | PathRecord::P_KEY)
}

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

/// Something that a user or the subnet does.
#[derive(Clone, Copy, Debug)]
enum Deed {
    Join(u8, u8, u8),
    Leave(u8, u8, u8),
    Reregister,
    Lid(u16),
    Down,
    Wait(u64),
}

fn deed() -> impl Strategy<Value = Deed> {
    let bits = prop_oneof![Just(1_u8), Just(4), Just(8), Just(5)];
    prop_oneof![
        6 => (0..3_u8, 0..3_u8, bits.clone()).prop_map(|(u, g, b)| Deed::Join(u, g, b)),
        4 => (0..3_u8, 0..3_u8, bits).prop_map(|(u, g, b)| Deed::Leave(u, g, b)),
        1 => Just(Deed::Reregister),
        1 => (5..8_u16).prop_map(Deed::Lid),
        1 => Just(Deed::Down),
        6 => (1..60_u64).prop_map(Deed::Wait),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn whatever_users_do_the_sa_has_in_the_end_what_they_were_promised(
        deeds in proptest::collection::vec(deed(), 1..40),
        loses in prop_oneof![Just(0_u32), 2..7_u32],
    ) {
        let mut world = World::new();
        world.loses = loses;
        let mut promised: BTreeMap<(u8, u8), u8> = BTreeMap::new();
        let mut asked: BTreeMap<u64, (u8, u8, u8)> = BTreeMap::new();
        let mut finished = 0;
        let mut cookie = 0;
        let keep_book = |world: &mut World, promised: &mut BTreeMap<(u8, u8), u8>, asked: &BTreeMap<u64, (u8, u8, u8)>| {
            let mut done = 0;
            for (cookie, result) in world.answers() {
                done += 1;
                if let (Some((u, g, bits)), Ok(SaAnswer::Joined(record))) = (asked.get(&cookie), result) {
                    assert!(record.join_state.bits() & bits == *bits);
                    *promised.entry((*u, *g)).or_default() |= bits;
                }
            }
            for news in core::mem::take(&mut world.news) {
                if let SaNext::Regrouped { mgid, users, result: Err(_) } = news {
                    promised.retain(|(u, g), _| mgid != super::tests::mgid(*g) || !users.contains(user(*u)));
                }
            }
            done
        };
        for deed in deeds {
            let now = ms(world.now);
            match deed {
                Deed::Join(u, g, bits) => {
                    let record = member(g, JoinState::from_bits_retain(bits));
                    cookie += 1;
                    if world.sa.join(cookie, user(u), &record, JOIN_MASK).is_ok() {
                        asked.insert(cookie, (u, g, bits));
                    }
                }
                Deed::Leave(u, g, bits) => {
                    cookie += 1;
                    let bits = JoinState::from_bits_retain(bits);
                    if world.sa.leave(cookie, user(u), mgid(g), bits).is_ok() {
                        asked.insert(cookie, (u, g, 0));
                        *promised.entry((u, g)).or_default() &= !bits.bits();
                    }
                }
                Deed::Reregister => {
                    world.peer.members.clear();
                    world.sa.reregister();
                }
                Deed::Lid(lid) => {
                    world.peer.members.clear();
                    world.wire.clear();
                    let lid = Lid(lid);
                    let port = SaPort { lid, ..PORT };
                    world.sa.reregister();
                    world.sa.port_changed(&port, now);
                }
                Deed::Down => {
                    world.peer.members.clear();
                    world.wire.clear();
                    world.sa.port_changed(&SaPort { active: false, ..PORT }, now);
                    world.millisecond();
                    finished += keep_book(&mut world, &mut promised, &asked);
                    world.sa.port_changed(&PORT, ms(world.now));
                }
                Deed::Wait(millis) => {
                    world.run(millis);
                }
            }
            finished += keep_book(&mut world, &mut promised, &asked);
        }
        world.loses = 0;
        world.run(3000);
        finished += keep_book(&mut world, &mut promised, &asked);
        prop_assert_eq!(finished, asked.len(), "each request ends, and once");
        for g in 0..3 {
            let all = (0..3).filter_map(|u| promised.get(&(u, g)));
            let all = all.fold(0, |all, bits| all | bits);
            prop_assert_eq!(world.bits(g), all, "group {}", g);
        }
    }

    #[test]
    fn nothing_that_an_sa_can_send_upsets_the_client(
        mads in proptest::collection::vec(
            (any::<[u8; 16]>(), 0..8_u32, prop_oneof![Just(0x81_u8), Just(0x92), Just(0x06), any::<u8>()],
             0..5_u8, 0..8_u8, 0..4_u32, prop_oneof![0..260_u32, any::<u32>()], any::<u16>()),
            1..40
        ),
    ) {
        let mut world = World::new();
        world.peer.mood = Mood::Silent;
        let (path, mask) = path_query();
        world.sa.get(1, &path, mask, ms(0)).unwrap();
        world.sa.get_table(2, &path, mask).unwrap();
        world.sa.join(3, user(0), &member(1, JoinState::FULL_MEMBER), JOIN_MASK).unwrap();
        world.run(2);
        for (junk, serial, method, kind, flags, segment, length, offset) in mads {
            let mut mad = Mad::ZERO;
            mad.0[..16].copy_from_slice(&junk);
            mad.0[..4].copy_from_slice(&[1, 3, 2, method]);
            mad.0[4..6].copy_from_slice(&[0, 0]);
            mad.0[8..16].copy_from_slice(&AGENT.tid(serial).to_be_bytes());
            mad.0[24..28].copy_from_slice(&[1, kind, flags, 0]);
            mad.0[28..32].copy_from_slice(&segment.to_be_bytes());
            mad.0[32..36].copy_from_slice(&length.to_be_bytes());
            mad.0[44..46].copy_from_slice(&offset.to_be_bytes());
            let received = world.received(mad);
            let now = ms(world.now);
            world.sa.handle(&received, now);
            world.millisecond();
        }
        world.run(45_000);
        let mut ended: Vec<_> = world.answers().iter().map(|(cookie, _)| *cookie).collect();
        ended.sort_unstable();
        prop_assert_eq!(ended, [1, 2, 3], "each request ends, and once");
    }
}
