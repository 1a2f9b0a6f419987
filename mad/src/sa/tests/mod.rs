//! The client against an SA that fits into a page, over a wire that may lose and delay, in virtual milliseconds.

mod chance;
mod members;
mod queries;

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
