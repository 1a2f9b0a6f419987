//! Two hosts with a network between that loses, repeats and overtakes, in virtual time, and users that do as they like.

use super::{SERVICE, TestCm, accept, arrives, cm, connect};
use crate::*;
use core::time::Duration;
use core_ib::Instant;
use core_ib::verbs::{QpHandle, VerbsError};
use core_ib::wire::mad::{Mad, RejReason, TimeCode};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::vec::Vec;

/// A generator that gives the same numbers for the same seed (splitmix64).
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.roll() % limit
    }

    fn hits(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

#[derive(Clone, Copy, Debug)]
struct Habits {
    /// Of 100 messages.
    lost: u64,
    twice: u64,
    /// Milliseconds that a message may take at most.
    late: u64,
    /// Of 100 answers of users.
    rejects: u64,
    delays: u64,
    wish_fails: u64,
    /// QPs of the CM's own, or of the user's.
    wishes: bool,
}

/// What is to happen at some instant.
enum Due {
    Arrives(usize, Mad),
    Granted(usize, Granted),
    Acts(usize, ConnId, Act),
}

#[derive(Clone, Copy)]
enum Act {
    Answer,
    Ready,
    Leave,
    Release,
}

/// What a user has heard of a connection.
#[derive(Clone, Copy, Debug, Default)]
struct Heard {
    established: bool,
    ended: bool,
    gone: bool,
    said_no: bool,
}

struct World {
    cms: [TestCm; 2],
    heard: [BTreeMap<ConnId, Heard>; 2],
    now: Instant,
    due: BTreeMap<(Instant, u64), Due>,
    order: u64,
    dice: Dice,
    habits: Habits,
    qpn: u32,
    turns: u64,
    /// Nobody leaves by himself before this.
    stay: Instant,
}

impl World {
    fn new(seed: u64, habits: Habits) -> Self {
        let mut cms = [cm(0, 0), cm(1, 0)];
        for cm in &mut cms {
            cm.listen(&Listen::to(SERVICE, 0)).unwrap();
        }
        Self {
            cms,
            heard: [BTreeMap::new(), BTreeMap::new()],
            now: Instant(1),
            due: BTreeMap::new(),
            order: 0,
            dice: Dice(seed),
            habits,
            qpn: 0x40,
            turns: 0,
            stay: Instant(3_000_000_000),
        }
    }

    fn plan(&mut self, after: Duration, due: Due) {
        self.order += 1;
        self.due.insert((self.now.after(after), self.order), due);
    }

    fn some_ms(&mut self, limit: u64) -> Duration {
        Duration::from_micros(self.dice.below(limit * 1000 + 1))
    }

    fn qp(&mut self) -> (u32, Option<QpHandle>) {
        self.qpn += 1;
        let handle = QpHandle::new(1, self.qpn, 1);
        (self.qpn, self.habits.wishes.then_some(handle))
    }

    fn connect(&mut self, side: usize) {
        let (qpn, qp) = self.qp();
        let with = connect(side, qpn, qp);
        if let Ok(conn) = self.cms[side].connect(&with, self.now) {
            self.heard[side].insert(conn, Heard::default());
        }
    }

    fn send(&mut self, side: usize, mad: Mad) {
        let copies = 1 + u64::from(self.dice.hits(self.habits.twice));
        for _ in 0..copies {
            if !self.dice.hits(self.habits.lost) {
                let late = self.some_ms(self.habits.late);
                self.plan(late, Due::Arrives(1 - side, mad));
            }
        }
    }

    fn news(&mut self, side: usize, event: Event) {
        let (conn, act) = match event {
            Event::Request { conn, .. } => (conn, Some(Act::Answer)),
            Event::Reply { conn, .. } => (conn, Some(Act::Ready)),
            Event::Established { conn, .. } => (conn, Some(Act::Leave)),
            Event::Disconnecting { conn, .. } => (conn, Some(Act::Release)),
            Event::Rejected { conn, .. }
            | Event::Failed { conn, .. }
            | Event::Disconnected { conn, .. }
            | Event::Gone { conn, .. } => (conn, None),
            other => panic!("nobody asked for {other:?}"),
        };
        let heard = self.heard[side].entry(conn).or_default();
        assert!(!heard.gone, "news after the end: {event:?}");
        match event {
            Event::Established { .. } => {
                assert!(!heard.established && !heard.ended, "{event:?}");
                heard.established = true;
            }
            Event::Rejected { .. } | Event::Failed { .. } | Event::Disconnected { .. } => {
                assert!(!heard.ended, "ends twice: {event:?}");
                heard.ended = true;
            }
            Event::Disconnecting { .. } => heard.ended = true,
            Event::Gone { .. } => {
                assert!(heard.ended || heard.said_no, "without a word");
                heard.gone = true;
            }
            _ => {}
        }
        let Some(act) = act else {
            return;
        };
        let mut wait = self.some_ms(5);
        if matches!(act, Act::Leave) {
            wait += self.stay.since(self.now);
        }
        self.plan(wait, Due::Acts(side, conn, act));
    }

    fn act(&mut self, side: usize, conn: ConnId, act: Act) {
        let says_no = self.dice.hits(self.habits.rejects);
        let delays = self.dice.hits(self.habits.delays);
        let (qpn, qp) = self.qp();
        let now = self.now;
        let cm = &mut self.cms[side];
        match act {
            Act::Answer | Act::Ready if says_no => {
                if cm
                    .reject(conn, RejReason::CONSUMER, &[], b"no", now)
                    .is_ok()
                {
                    self.heard[side].get_mut(&conn).unwrap().said_no = true;
                }
            }
            Act::Answer | Act::Ready if delays => {
                if cm.delay(conn, TimeCode(13), &[]).is_ok() {
                    let wait = self.some_ms(30);
                    self.plan(wait, Due::Acts(side, conn, act));
                }
            }
            // Errors: it has ended meanwhile.
            Act::Answer => drop(cm.accept(conn, &accept(qpn, qp), now)),
            Act::Ready => drop(cm.ready(conn, &[])),
            Act::Leave => drop(cm.disconnect(conn, &[], now)),
            Act::Release => drop(cm.release(conn, &[], now)),
        }
    }

    /// Runs until `until`, or until nothing is planned any more.
    fn run(&mut self, until: Instant) {
        loop {
            let mut wake = Instant::NEVER;
            for side in 0..2 {
                loop {
                    self.turns += 1;
                    assert!(self.turns < 200_000, "does not come to an end");
                    match self.cms[side].poll(self.now) {
                        CmNext::Send(outgoing) => self.send(side, outgoing.mad),
                        CmNext::Event(event) => self.news(side, event),
                        CmNext::Wish(wish) => {
                            let result = match self.dice.hits(self.habits.wish_fails) {
                                true => Err(VerbsError::DeviceFailed),
                                false => Ok(()),
                            };
                            let wait = self.some_ms(3);
                            self.plan(wait, Due::Granted(side, wish.granted(result)));
                        }
                        CmNext::WaitUntil(at) => {
                            assert!(at > self.now);
                            wake = wake.min(at);
                            break;
                        }
                    }
                }
            }
            let next = self.due.keys().next().map_or(Instant::NEVER, |(at, _)| *at);
            let next = next.min(wake);
            if next > until {
                return;
            }
            self.now = next;
            while let Some(entry) = self.due.first_entry()
                && entry.key().0 <= self.now
            {
                match entry.remove() {
                    Due::Arrives(side, mad) => {
                        self.cms[side].handle(&arrives(mad, 1 - side), self.now);
                    }
                    Due::Granted(side, granted) => self.cms[side].granted(&granted, self.now),
                    Due::Acts(side, conn, act) => self.act(side, conn, act),
                }
            }
        }
    }

    /// Those that stand on a side, by both names.
    fn standing(&self, side: usize) -> Vec<ConnId> {
        let names = self.heard[side].keys().copied();
        names
            .filter(|conn| self.cms[side].state(*conn) == Some(State::Established))
            .collect()
    }

    /// Both ends of a connection have what the other has. What stands on one side and not on the other has been told to be
    /// over there: who has said yes last cannot know whether he was heard.
    fn check_agreement(&self) {
        for side in 0..2 {
            for name in self.standing(side) {
                let ours = self.cms[side].find(name.comm_id()).unwrap();
                let theirs = self.cms[1 - side].find(ours.remote_id);
                let Some(theirs) = theirs.filter(|theirs| theirs.state == State::Established)
                else {
                    let heard = self.heard[1 - side].get(&ConnId(ours.remote_id));
                    let heard = heard.copied().unwrap_or_default();
                    assert!(
                        heard.ended || heard.said_no,
                        "{name:?} of {side}: {heard:?}"
                    );
                    continue;
                };
                assert_eq!(theirs.remote_id, ours.id);
                assert_eq!((theirs.qpn, ours.qpn), (ours.remote_qpn, theirs.remote_qpn));
                let (rtr, rts) = (ours.facts.rtr().0, ours.facts.rts().0);
                let (their_rtr, their_rts) = (theirs.facts.rtr().0, theirs.facts.rts().0);
                assert_eq!(
                    (rtr.rq_psn, rts.sq_psn),
                    (their_rts.sq_psn, their_rtr.rq_psn)
                );
                assert_eq!(
                    (rtr.path_mtu, rtr.dest_qpn),
                    (their_rtr.path_mtu, theirs.qpn)
                );
                assert!(rts.max_rd_atomic <= their_rtr.max_dest_rd_atomic);
                assert_eq!(rtr.path.dlid, core_ib::Lid(10 + 1 - side as u16));
            }
        }
    }
}

fn habits() -> impl Strategy<Value = Habits> {
    let lost = prop_oneof![Just(0), 0..30_u64, 30..80_u64];
    (
        lost,
        0..40_u64,
        0..20_u64,
        0..30_u64,
        0..50_u64,
        prop_oneof![3 => Just(0), 1 => 0..30_u64],
        any::<bool>(),
    )
        .prop_map(
            |(lost, twice, late, rejects, delays, wish_fails, wishes)| Habits {
                lost,
                twice,
                late,
                rejects,
                delays,
                wish_fails,
                wishes,
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn both_agree_or_have_been_told_and_nothing_is_left(
        seed: u64, habits in habits(), asks in proptest::collection::vec((0..2_usize, 0..40_u64), 1..5),
    ) {
        let mut world = World::new(seed, habits);
        for (side, wait) in asks {
            let until = world.now.after(Duration::from_millis(wait));
            world.run(until);
            world.now = until;
            world.connect(side);
        }
        let stay = world.stay;
        world.run(Instant(stay.0 - 1));
        world.check_agreement();
        let calm = habits.lost == 0 && habits.rejects == 0 && habits.wish_fails == 0 && habits.late < 10;
        if calm && habits.delays == 0 {
            let all = world.heard[0].len();
            prop_assert_eq!((world.standing(0).len(), world.standing(1).len()), (all, all));
        }
        world.now = world.now.max(stay);
        world.run(Instant(60_000_000_000));
        for side in 0..2 {
            prop_assert_eq!(world.cms[side].connections(), 0, "left on {}: {:?}", side, world.heard[side]);
            prop_assert!(world.heard[side].values().all(|heard| heard.gone), "{:?}", world.heard[side]);
        }
    }

    #[test]
    fn no_messages_whatever_they_are_make_it_panic(
        messages in proptest::collection::vec(
            (any::<u8>(), any::<u8>(), proptest::collection::vec(any::<u8>(), 256)), 0..24
        ),
    ) {
        let mut bytes = Vec::new();
        for (how, what, mad) in messages {
            bytes.extend([how, what]);
            bytes.extend(mad);
        }
        read_untrusted(&bytes);
    }
}
