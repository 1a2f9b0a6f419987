//! Tables of moments: what happens to a link, and what it then wants.

mod groups;
mod life;
mod paths;

use super::*;
use crate::profile::{Profile, Timers};
use crate::room::Heap;
use core::time::Duration;
use core_ib::platform::PlatformError;
use core_ib::verbs::{PortEvent, VerbsError};
use core_ib::wire::FlowLabel;
use core_ib::wire::ipoib::{LinkAddress, Scope, broadcast_gid, ipv4_multicast_gid};
use core_ib::wire::mad::JoinState;
use core_ib::{Gid, Guid, Instant, Lid, Mtu, PKey, QKey, Qpn, Rate, Sl};
use std::collections::BTreeMap;
use std::vec::Vec;

pub(super) const B: Gid = broadcast_gid(PKey::DEFAULT, Scope::LINK_LOCAL);
pub(super) const Q: QKey = QKey(0x0b1b);
const OWN: Qpn = Qpn::new(0x48);

/// IPv4 group 224.1.0.`n`.
pub(super) const fn group(n: u8) -> Gid {
    let address = core::net::Ipv4Addr::new(224, 1, 0, n);
    ipv4_multicast_gid(address, PKey::DEFAULT, Scope::LINK_LOCAL)
}

/// Port of peer `n`.
pub(super) const fn peer(n: u64) -> Gid {
    Gid::unicast(Gid::DEFAULT_PREFIX, Guid(0x1000 + n))
}

pub(super) fn view() -> PortView {
    PortView {
        active: true,
        lid: Lid(5),
        lmc: 0,
        mtu: Some(Mtu::Mtu2048),
        gid: peer(0),
        pkey_index: Some(0),
    }
}

pub(super) fn record(mgid: Gid, mlid: u16, join_state: JoinState) -> GroupAnswer {
    GroupAnswer {
        mgid,
        mlid: Lid(mlid),
        p_key: PKey::DEFAULT,
        join_state,
        params: GroupParams {
            q_key: Q,
            mtu: Mtu::Mtu2048,
            rate: Rate::GBPS_10,
            sl: Sl::new(0),
            traffic_class: 0,
            flow_label: FlowLabel::new(0),
            hop_limit: 0,
        },
    }
}

pub(super) fn path(dlid: u16) -> PathAnswer {
    PathAnswer {
        dlid: Lid(dlid),
        slid: Lid(5),
        sl: Sl::new(0),
        rate: Rate::GBPS_10,
        hop_limit: 0,
        flow_label: FlowLabel::new(0),
        traffic_class: 0,
    }
}

/// What happens.
#[derive(Clone, Copy, Debug)]
enum On {
    Nothing,
    It(Event),
    /// The SA answers the last join of this group.
    Joined(Gid, Result<GroupAnswer, SaFailure>),
    /// The SA answers the last leave.
    Left(Gid),
    /// The SA answers the last question for a path to this port.
    Path(Gid, Result<PathAnswer, SaFailure>),
    /// The last wish came true, or not.
    Done(Result<Outcome, VerbsError>),
    Send(u16, Gid),
    Listen(Gid),
    Ignore(Gid),
}

/// What the link then says, without tickets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Saw {
    State(LinkState),
    Join(Gid, JoinState, Option<GroupParams>),
    Leave(Gid, JoinState),
    Query(Gid),
    Wish(Wish),
    Sent(u16, Lid),
    Parked(u16),
    Lost(u16, DropCause),
}

use super::DownCause::*;
use DropCause::*;
use On::*;
use Saw::{Join, Leave, Lost, Parked, Query, Sent, State};

/// At this millisecond this happens, and then the link says that and no more.
type Row<'r> = (u64, On, &'r [Saw]);

const UP: Saw = State(LinkState::Up { mtu: 2044 });
const KEPT: Result<Outcome, VerbsError> = Ok(Outcome::Kept);
const RESTARTED: Result<Outcome, VerbsError> = Ok(Outcome::Restarted);
const NO: SaFailure = SaFailure::Refused { status: 0x0200 };
const FULL: JoinState = JoinState::FULL_MEMBER;
const SENDS: JoinState = JoinState::SEND_ONLY_FULL_MEMBER;

fn down(cause: DownCause) -> Saw {
    State(LinkState::Down(cause))
}

fn start(pkey_index: u16, q_key: QKey) -> Saw {
    Saw::Wish(Wish::Start { pkey_index, q_key })
}

fn attach(mgid: Gid, mlid: u16) -> Saw {
    let mlid = Lid(mlid);
    Saw::Wish(Wish::Attach { mgid, mlid })
}

fn detach(mgid: Gid, mlid: u16) -> Saw {
    let mlid = Lid(mlid);
    Saw::Wish(Wish::Detach { mgid, mlid })
}

fn port(event: PortEvent, view: PortView) -> On {
    It(Event::PortChanged(event, view))
}

fn params() -> Option<GroupParams> {
    Some(record(B, 0, FULL).params)
}

/// A link and what is needed to answer it.
struct Desk {
    link: Link<Heap>,
    tickets: BTreeMap<Gid, Ticket>,
    wish: Option<Wish>,
    now: Instant,
}

impl Desk {
    fn new(profile: Profile) -> Self {
        let link = Link::new(&Heap, 1, PKey(0x7fff), OWN, &profile).unwrap();
        Self {
            link,
            tickets: BTreeMap::new(),
            wish: None,
            now: Instant(0),
        }
    }

    fn is(&mut self, rows: &[Row<'_>]) {
        for (line, &(ms, on, expected)) in rows.iter().enumerate() {
            self.now = Instant(ms * 1_000_000);
            let mut saw = Vec::new();
            self.happens(on, &mut saw);
            let until = self.settle(&mut saw);
            assert_eq!(saw, expected, "row {line}, {ms} ms, {on:?}");
            assert!(
                until > self.now,
                "row {line}: polled again at once, for nothing"
            );
        }
    }

    fn happens(&mut self, on: On, saw: &mut Vec<Saw>) {
        let ticket = |gid| {
            self.tickets
                .get(&gid)
                .copied()
                .unwrap_or(Ticket::from_bits(0))
        };
        let event = match on {
            Nothing => return,
            It(event) => event,
            Joined(gid, answer) => Event::Joined(ticket(gid), answer),
            Left(gid) => Event::Left(ticket(gid), Ok(())),
            Path(gid, answer) => Event::Path(ticket(gid), answer),
            Done(result) => {
                let wish = self.wish.take().unwrap();
                Event::Done(super::Done { wish, result })
            }
            Send(frame, gid) => {
                let qpn = if gid.is_multicast() {
                    Qpn::MULTICAST
                } else {
                    Qpn::new(0x99)
                };
                let to = LinkAddress {
                    qpn,
                    gid,
                    ..LinkAddress::default()
                };
                match self.link.send(&to, FrameId(frame), self.now) {
                    Verdict::Send(route) => saw.push(Sent(frame, route.attr.dlid)),
                    Verdict::Parked => saw.push(Parked(frame)),
                    Verdict::Drop(cause) => saw.push(Lost(frame, cause)),
                }
                return;
            }
            Listen(gid) => return self.link.listen(gid, self.now).unwrap(),
            Ignore(gid) => return self.link.ignore(gid, self.now),
        };
        self.link.handle(event, self.now);
    }

    fn settle(&mut self, saw: &mut Vec<Saw>) -> Instant {
        for _ in 0..100 {
            saw.push(match self.link.poll(self.now) {
                Action::WaitUntil(until) => return until,
                Action::Changed(state) => State(state),
                Action::Join(ticket, request) => {
                    self.tickets.insert(request.mgid, ticket);
                    Join(request.mgid, request.join_state, request.create)
                }
                Action::Leave(ticket, request) => {
                    self.tickets.insert(request.mgid, ticket);
                    Leave(request.mgid, request.join_state)
                }
                Action::QuerySa(ticket, query) => {
                    self.tickets.insert(query.dgid, ticket);
                    Query(query.dgid)
                }
                Action::Wish(wish) => {
                    self.wish = Some(wish);
                    Saw::Wish(wish)
                }
                Action::Send { frame, route } => Sent(frame.0, route.attr.dlid),
                Action::Drop { frame, cause } => Lost(frame.0, cause),
            });
        }
        panic!("it never comes to rest: {saw:?}");
    }

    /// An interface that is up, at 0 ms.
    fn up(profile: Profile) -> Self {
        let mut desk = Self::new(profile);
        desk.is(&[
            (
                0,
                It(Event::Port(view())),
                &[down(Starting), start(0, QKey(0)), Join(B, FULL, None)],
            ),
            (0, Done(RESTARTED), &[down(Joining)]),
            (
                0,
                Joined(B, Ok(record(B, 0xc000, FULL))),
                &[Saw::Wish(Wish::SetQKey(Q))],
            ),
            (0, Done(KEPT), &[attach(B, 0xc000)]),
            (0, Done(KEPT), &[UP]),
        ]);
        desk
    }
}

fn up() -> Desk {
    // Few, so that the table of a test is short.
    Desk::up(Profile {
        parked_per_path: 3,
        ..Profile::DEFAULT
    })
}
