//! Tables of moments: what happens to a link, and what it then wants.

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
    Desk::up(Profile::DEFAULT)
}

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

#[test]
fn only_own_copies_from_a_group_are_own() {
    let desk = up();
    let classify = |slid, qpn, gid| desk.link.classify(Lid(slid), Qpn::new(qpn), gid);
    assert_eq!(classify(5, 0x48, Some(B)), Arrival::Own);
    assert_eq!(classify(5, 0x48, Some(group(1))), Arrival::Own);
    assert_eq!(classify(5, 0x49, Some(B)), Arrival::Broadcast); // another interface of this port
    assert_eq!(classify(6, 0x48, Some(group(1))), Arrival::Multicast);
    assert_eq!(classify(5, 0x48, None), Arrival::Host); // to ourselves
    assert_eq!(classify(5, 0x48, Some(peer(0))), Arrival::Host);
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
