//! Any sequence of events whatever, against what must never happen and what must happen in the end.

use super::tests::{B, group, path, peer, record, view};
use super::*;
use crate::profile::Profile;
use crate::room::Heap;
use core::time::Duration;
use core_ib::verbs::{PortEvent, VerbsError};
use core_ib::wire::ipoib::LinkAddress;
use core_ib::{Gid, Instant, Lid, PKey, Qpn};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use std::collections::{BTreeMap, BTreeSet};
use std::vec;
use std::vec::Vec;

#[derive(Clone, Copy, Debug)]
enum Op {
    Send(u8),
    Wait(u32),
    /// The `n`th outstanding request is answered well.
    Answer(u8),
    /// Or not.
    Fail(u8, SaFailure),
    /// Or twice.
    Repeat(u8),
    Done,
    DoneBadly,
    PortDown,
    PortUp,
    /// Every LID of the subnet changes.
    LidChange,
    Reregister,
    SmChange,
    Pkey(Option<u16>),
    Gid(u8),
    Trouble,
    Listen(u8),
    Ignore(u8),
    Admin(bool),
    Suspect(u8),
}

fn op() -> impl Strategy<Value = Op> {
    let failure = prop_oneof![
        Just(SaFailure::TimedOut),
        Just(SaFailure::Refused { status: 0x0300 }),
        Just(SaFailure::BadAnswer),
        Just(SaFailure::NotSent),
    ];
    prop_oneof![
        20 => (0..8_u8).prop_map(Op::Send),
        10 => prop_oneof![0..2000_u32, 0..400_000_u32].prop_map(Op::Wait),
        30 => any::<u8>().prop_map(Op::Answer),
        4 => (any::<u8>(), failure).prop_map(|(which, failure)| Op::Fail(which, failure)),
        2 => any::<u8>().prop_map(Op::Repeat),
        20 => Just(Op::Done),
        2 => Just(Op::DoneBadly),
        1 => Just(Op::PortDown),
        2 => Just(Op::PortUp),
        2 => Just(Op::LidChange),
        2 => Just(Op::Reregister),
        2 => Just(Op::SmChange),
        1 => prop_oneof![Just(None), (0..3_u16).prop_map(Some)].prop_map(Op::Pkey),
        1 => (0..2_u8).prop_map(Op::Gid),
        2 => Just(Op::Trouble),
        3 => (0..4_u8).prop_map(Op::Listen),
        3 => (0..4_u8).prop_map(Op::Ignore),
        1 => any::<bool>().prop_map(Op::Admin),
        1 => (0..4_u8).prop_map(Op::Suspect),
    ]
}

#[derive(Clone, Copy, Debug)]
enum Request {
    Path(Ticket, PathQuery),
    Join(Ticket, JoinRequest),
    Leave(Ticket),
}

/// The subnet as it is, and the link that must keep up with it.
struct World {
    link: Link<Heap>,
    now: Instant,
    view: PortView,
    /// Goes up with every change of LIDs; LIDs of different epochs differ.
    epoch: u16,
    /// Outstanding, each with the epoch in which it was asked.
    requests: Vec<(u16, Request)>,
    wish: Option<Wish>,
    /// Frames that wait, and for whom they are.
    parked: BTreeMap<u16, Gid>,
    next_frame: u16,
    /// MLIDs that the SA gave.
    mlids: BTreeMap<Gid, BTreeSet<u16>>,
    sent: BTreeSet<Gid>,
}

fn destination(which: u8) -> Gid {
    match which {
        0 => B,
        1..4 => group(which),
        _ => peer(which.into()),
    }
}

impl World {
    fn new() -> Self {
        let profile = Profile {
            paths: 3, // fewer than peers
            groups: 4,
            parked: 8,
            ..Profile::DEFAULT
        };
        Self {
            link: Link::new(&Heap, 1, PKey::DEFAULT, Qpn::new(0x48), &profile).unwrap(),
            now: Instant(0),
            view: view(),
            epoch: 0,
            requests: Vec::new(),
            wish: None,
            parked: BTreeMap::new(),
            next_frame: 0,
            mlids: BTreeMap::new(),
            sent: BTreeSet::new(),
        }
    }

    fn lid(epoch: u16, gid: Gid) -> u16 {
        0x100 + epoch * 16 + (gid.guid().0 & 15) as u16
    }

    fn well(&mut self, epoch: u16, request: Request) -> Event {
        match request {
            Request::Path(ticket, query) => {
                Event::Path(ticket, Ok(path(Self::lid(epoch, query.dgid))))
            }
            Request::Join(ticket, request) => {
                let [.., last] = request.mgid.0;
                let mlid = 0xc000 | (epoch & 0xff) << 4 | u16::from(last & 15);
                self.mlids.entry(request.mgid).or_default().insert(mlid);
                Event::Joined(ticket, Ok(record(request.mgid, mlid, request.join_state)))
            }
            Request::Leave(ticket) => Event::Left(ticket, Ok(())),
        }
    }

    fn badly(request: Request, failure: SaFailure) -> Event {
        match request {
            Request::Path(ticket, _) | Request::Join(ticket, _) | Request::Leave(ticket)
                if failure == SaFailure::TimedOut =>
            {
                Event::SaFailed(ticket, failure)
            }
            Request::Path(ticket, _) => Event::Path(ticket, Err(failure)),
            Request::Join(ticket, _) => Event::Joined(ticket, Err(failure)),
            Request::Leave(ticket) => Event::Left(ticket, Err(failure)),
        }
    }

    fn take(&mut self, which: u8) -> Option<(u16, Request)> {
        let at = usize::from(which).checked_rem(self.requests.len())?;
        Some(self.requests.remove(at))
    }

    fn port(&mut self, event: PortEvent) {
        self.link
            .handle(Event::PortChanged(event, self.view), self.now);
    }

    fn apply(&mut self, op: Op) -> Result<(), TestCaseError> {
        match op {
            Op::Send(which) => self.send(destination(which))?,
            Op::Wait(ms) => self.now = self.now.after(Duration::from_millis(ms.into())),
            Op::Answer(which) => {
                if let Some((epoch, request)) = self.take(which) {
                    let event = self.well(epoch, request);
                    self.link.handle(event, self.now);
                }
            }
            Op::Fail(which, failure) => {
                if let Some((_, request)) = self.take(which) {
                    self.link.handle(Self::badly(request, failure), self.now);
                }
            }
            Op::Repeat(which) => {
                if let Some((epoch, request)) = self.take(which) {
                    let event = self.well(epoch, request);
                    self.link.handle(event, self.now);
                    self.link.handle(event, self.now);
                }
            }
            Op::Done => self.done(true),
            Op::DoneBadly => self.done(false),
            Op::PortDown => {
                self.view.active = false;
                self.port(PortEvent::Error);
            }
            Op::PortUp => {
                self.view.active = true;
                self.port(PortEvent::Active);
            }
            Op::LidChange => {
                self.epoch += 1;
                self.view.lid = Lid(Self::lid(self.epoch, self.view.gid));
                self.port(PortEvent::LidChange);
            }
            Op::Reregister => self.port(PortEvent::ClientReregister),
            Op::SmChange => self.port(PortEvent::SmChange),
            Op::Pkey(index) => {
                self.view.pkey_index = index;
                self.port(PortEvent::PkeyChange);
            }
            Op::Gid(which) => {
                self.view.gid = peer(100 + u64::from(which));
                self.port(PortEvent::GidChange);
            }
            Op::Trouble => self.link.handle(Event::QpTrouble, self.now),
            Op::Listen(which) => drop(self.link.listen(destination(which), self.now)),
            Op::Ignore(which) => self.link.ignore(destination(which), self.now),
            Op::Admin(up) => self.link.handle(Event::Admin { up }, self.now),
            Op::Suspect(which) => {
                let gid = peer(u64::from(which) + 4);
                self.link.handle(Event::Suspect(gid), self.now);
            }
        }
        self.settle()
    }

    fn done(&mut self, well: bool) {
        let Some(wish) = self.wish.take() else { return };
        let outcome = match wish {
            Wish::Start { .. } => Outcome::Restarted,
            Wish::Mend { .. } if self.epoch & 1 == 0 => Outcome::Restarted,
            _ => Outcome::Kept,
        };
        let refused = VerbsError::CommandFailed {
            opcode: 1,
            status: 2,
        };
        let result = if well { Ok(outcome) } else { Err(refused) };
        let done = super::Done { wish, result };
        self.link.handle(Event::Done(done), self.now);
    }

    fn send(&mut self, gid: Gid) -> Result<(), TestCaseError> {
        let frame = self.next_frame;
        self.next_frame += 1;
        let to = LinkAddress {
            qpn: if gid.is_multicast() {
                Qpn::MULTICAST
            } else {
                Qpn::new(gid.guid().0 as u32)
            },
            gid,
            ..LinkAddress::default()
        };
        match self.link.send(&to, FrameId(frame), self.now) {
            Verdict::Send(route) => self.goes(&route, gid),
            Verdict::Parked => {
                self.parked.insert(frame, gid);
                prop_assert!(self.parked.len() <= 8, "no more wait than the profile says");
                Ok(())
            }
            Verdict::Drop(_) => Ok(()),
        }
    }

    /// A frame is sent: to whom it is meant for, or to nobody.
    fn goes(&mut self, route: &Route, meant: Gid) -> Result<(), TestCaseError> {
        prop_assert!(
            self.link.state().is_up(),
            "a frame leaves an interface that is down"
        );
        prop_assert!(usize::from(route.slot) < self.link.routes());
        let dlid = route.attr.dlid.0;
        let gid = match route.attr.grh {
            Some(grh) => {
                prop_assert_eq!(route.qpn, Qpn::MULTICAST);
                prop_assert!(self.mlids[&grh.dgid].contains(&dlid));
                grh.dgid
            }
            None => {
                let gid = peer(u64::from(route.qpn.get()) - 0x1000);
                prop_assert_eq!(dlid, Self::lid(self.epoch, gid), "a LID of somebody else");
                gid
            }
        };
        prop_assert_eq!(gid, meant, "a frame for somebody else");
        self.sent.insert(gid);
        Ok(())
    }

    fn settle(&mut self) -> Result<(), TestCaseError> {
        for _ in 0..200 {
            match self.link.poll(self.now) {
                Action::WaitUntil(_) => return Ok(()),
                Action::Changed(_) => {}
                Action::QuerySa(ticket, query) => {
                    self.requests
                        .push((self.epoch, Request::Path(ticket, query)));
                }
                Action::Join(ticket, request) => {
                    self.requests
                        .push((self.epoch, Request::Join(ticket, request)));
                }
                Action::Leave(ticket, _) => {
                    self.requests.push((self.epoch, Request::Leave(ticket)));
                }
                Action::Wish(wish) => {
                    prop_assert_eq!(self.wish.replace(wish), None, "one wish at a time");
                }
                Action::Send { frame, route } => {
                    let meant = self.parked.remove(&frame.0);
                    let meant = meant.ok_or(TestCaseError::fail("a frame that does not wait"))?;
                    self.goes(&route, meant)?;
                }
                Action::Drop { frame, .. } => {
                    let waited = self.parked.remove(&frame.0).is_some();
                    prop_assert!(waited, "a frame that does not wait");
                }
            }
        }
        Err(TestCaseError::fail("it never comes to rest"))
    }

    /// All is well from now on: everything is answered at once.
    fn calm(&mut self, seconds: u32) -> Result<(), TestCaseError> {
        for _ in 0..seconds {
            for _ in 0..20 {
                self.apply(Op::Done)?;
                while !self.requests.is_empty() {
                    self.apply(Op::Answer(0))?;
                }
            }
            self.apply(Op::Wait(1000))?;
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn whatever_happens_no_frame_goes_astray_and_the_interface_comes_back(
        ops in prop::collection::vec(op(), 0..150), start_up: bool,
    ) {
        let mut world = World::new();
        world.link.handle(Event::Port(world.view), world.now);
        world.settle()?;
        if start_up {
            world.calm(2)?;
            prop_assert!(world.link.state().is_up());
        }
        for op in ops {
            world.apply(op)?;
        }
        world.view.pkey_index = Some(0);
        world.apply(Op::PortUp)?;
        world.apply(Op::Admin(true))?;
        world.calm(40)?;
        prop_assert!(world.link.state().is_up(), "{:?}", world.link.state());
        prop_assert!(world.parked.is_empty(), "a frame waits for ever");
        world.sent.clear();
        for which in [0, 4, 5, 6, 7] {
            world.apply(Op::Send(which))?;
            world.calm(1)?;
            prop_assert!(world.sent.contains(&destination(which)), "{which} cannot be reached");
        }
    }
}
