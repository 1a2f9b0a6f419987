//! Tables of moments: what the neighbour half hears, and what it then says.

use super::nd::solicited_node;
use super::*;
use crate::profile::Profile;
use crate::room::Heap;
use core::time::Duration;
use core_ib::Guid;
use std::vec;
use std::vec::Vec;

/// Link-layer address of host `n`.
const fn link(n: u32) -> LinkAddress {
    LinkAddress {
        rc: false,
        uc: false,
        qpn: Qpn::new(0x400 + n),
        gid: Gid::unicast(Gid::DEFAULT_PREFIX, Guid(0x1000 + n as u64)),
    }
}

const fn v4(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, n)
}

const fn v6(n: u16) -> Ipv6Addr {
    Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, n)
}

/// What happens.
#[derive(Clone, Copy, Debug)]
enum On {
    Nothing,
    /// The host sends to this address.
    Send(u16, IpAddr),
    /// ARP from host `n`: operation, its link-layer address, its and the target's IP address.
    Heard(ArpOperation, LinkAddress, Ipv4Addr, Ipv4Addr),
    /// Neighbour discovery.
    Nd(NdMessage),
    Link(bool, LinkAddress),
}

/// What is then said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Saw {
    To(u16, LinkAddress),
    Parked(u16),
    Lost(u16),
    /// Everybody is asked for this address.
    AskAll(IpAddr),
    /// The one at this link-layer address is asked whether it still has it.
    AskOnly(IpAddr, LinkAddress),
    /// Everybody is told that this address is ours.
    Claim(IpAddr),
    /// Is anybody there who has this address of ours?
    Doubt(Ipv6Addr),
    /// This link-layer address gets the answer to its question for this address of ours.
    Answer(IpAddr, LinkAddress),
    Listen(IpAddr),
    Ignore(Gid),
    Suspect(Gid),
}

use On::{Heard, Nothing, Send};
use Saw::*;

type Row<'r> = (u64, On, &'r [Saw]);

const REQUEST: ArpOperation = ArpOperation::REQUEST;
const REPLY: ArpOperation = ArpOperation::REPLY;
const ALL_NODES_IP: IpAddr = IpAddr::V6(ALL_NODES);

fn all() -> LinkAddress {
    LinkAddress::multicast(broadcast_gid(PKey::DEFAULT, Scope::LINK_LOCAL))
}

struct Desk {
    neigh: Neigh<Heap>,
    now: Instant,
}

fn packet(to: IpAddr) -> Vec<u8> {
    match to {
        IpAddr::V4(to) => {
            let mut bytes = vec![0x45, 0, 0, 20, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1];
            bytes.extend(to.octets());
            bytes
        }
        IpAddr::V6(to) => {
            let mut bytes = vec![0x60, 0, 0, 0, 0, 0, 17, 64];
            bytes.extend(v6(1).octets());
            bytes.extend(to.octets());
            bytes
        }
    }
}

impl Desk {
    /// 10.0.0.1/24 and fe80::1 at host 1, link down.
    fn new(profile: Profile) -> Self {
        let mut neigh = Neigh::new(&Heap, PKey::DEFAULT, &profile).unwrap();
        neigh.add_address(v4(1).into(), 24).unwrap();
        neigh.add_address(v6(1).into(), 64).unwrap();
        Self {
            neigh,
            now: Instant(0),
        }
    }

    /// The same with the link up and everything said, at 10 s.
    fn up(profile: Profile) -> Self {
        let mut desk = Self::new(profile);
        desk.neigh.link_changed(true, link(1), desk.now);
        for second in 0..=10 {
            desk.now = Instant(second * 1_000_000_000);
            desk.settle(&mut Vec::new());
        }
        desk
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
        match on {
            Nothing => {}
            Send(frame, to) => {
                saw.push(
                    match self.neigh.send(&packet(to), FrameId(frame), self.now) {
                        NextHop::To(to) => To(frame, to),
                        NextHop::Parked => Parked(frame),
                        NextHop::Drop => Lost(frame),
                    },
                );
            }
            Heard(operation, sender, sender_ip, target_ip) => {
                let arp = Arp {
                    operation,
                    sender,
                    sender_ip,
                    target: LinkAddress::default(),
                    target_ip,
                };
                let mut bytes = [0; Arp::LEN];
                arp.write(&mut bytes).unwrap();
                let arrival = if operation == REPLY {
                    Arrival::Host
                } else {
                    Arrival::Broadcast
                };
                assert!(
                    !self
                        .neigh
                        .receive(arrival, EtherType::ARP, &bytes, self.now)
                );
            }
            On::Nd(message) => {
                let mut bytes = vec![0; message.len()];
                message.write(&mut bytes).unwrap();
                let deliver = self
                    .neigh
                    .receive(Arrival::Host, EtherType::IPV6, &bytes, self.now);
                assert!(!deliver);
            }
            On::Link(up, link) => self.neigh.link_changed(up, link, self.now),
        }
    }

    fn settle(&mut self, saw: &mut Vec<Saw>) -> Instant {
        for _ in 0..100 {
            saw.push(match self.neigh.poll(self.now) {
                NeighAction::WaitUntil(until) => return until,
                NeighAction::Say { to, message } => self.said(to, message),
                NeighAction::Release { frame, to } => To(frame.0, to),
                NeighAction::Drop { frame } => Lost(frame.0),
                NeighAction::Listen { group, mgid } => {
                    assert_eq!(self.neigh.mgid(group), mgid);
                    Listen(group)
                }
                NeighAction::Ignore { mgid } => Ignore(mgid),
                NeighAction::Suspect(gid) => Suspect(gid),
            });
        }
        panic!("it never comes to rest: {saw:?}");
    }

    /// What a message amounts to, its details checked.
    fn said(&self, to: LinkAddress, message: Message) -> Saw {
        let mut bytes = vec![0; message.len()];
        assert!(message.write(&mut bytes));
        let own = self.neigh.link;
        match message {
            Message::Arp(arp) => {
                assert_eq!(arp.sender, own);
                let (sender, target) = (arp.sender_ip.into(), arp.target_ip.into());
                match (arp.operation, to) {
                    (REQUEST, to) if to == all() && sender == target => Claim(sender),
                    (REQUEST, to) if to == all() => AskAll(target),
                    (REQUEST, to) => AskOnly(target, to),
                    _ => {
                        assert_eq!(arp.target, to);
                        Answer(sender, to)
                    }
                }
            }
            Message::Nd(nd) => {
                let group = LinkAddress::multicast(self.neigh.mgid(nd.destination.into()));
                let multicast = nd.destination.is_multicast();
                assert!(multicast == to.gid.is_multicast() && (!multicast || to == group));
                match nd.kind {
                    NdKind::Solicitation if nd.source.is_unspecified() => {
                        assert_eq!(nd.address, None);
                        Doubt(nd.target)
                    }
                    NdKind::Solicitation => {
                        assert_eq!(nd.address, Some(own));
                        let target = nd.target.into();
                        if multicast {
                            AskAll(target)
                        } else {
                            AskOnly(target, to)
                        }
                    }
                    NdKind::Advertisement { solicited, .. } => {
                        assert_eq!(nd.address, Some(own));
                        let target = nd.target.into();
                        if solicited {
                            Answer(target, to)
                        } else {
                            Claim(target)
                        }
                    }
                }
            }
        }
    }
}

fn up() -> Desk {
    // Few, so that the table of a test is short.
    Desk::up(Profile {
        parked_per_neighbour: 3,
        ..Profile::DEFAULT
    })
}

fn solicitation(source: Ipv6Addr, target: Ipv6Addr, address: Option<LinkAddress>) -> On {
    On::Nd(NdMessage {
        source,
        destination: solicited_node(target),
        kind: NdKind::Solicitation,
        target,
        address,
    })
}

fn advertisement(target: Ipv6Addr, address: LinkAddress, solicited: bool, overrides: bool) -> On {
    On::Nd(NdMessage {
        source: target,
        destination: if solicited { v6(1) } else { ALL_NODES },
        kind: NdKind::Advertisement {
            router: false,
            solicited,
            overrides,
        },
        target,
        address: Some(address),
    })
}

#[test]
fn a_link_that_comes_up_is_told_who_we_are_but_not_before_we_know_that_nobody_else_is() {
    let (four, six) = (v4(1).into(), v6(1).into());
    let mut desk = Desk::new(Profile::DEFAULT);
    desk.is(&[
        (
            0,
            Nothing,
            &[
                Listen(ALL_SYSTEMS.into()),
                Listen(ALL_NODES_IP),
                Listen(solicited_node(v6(1)).into()),
            ],
        ),
        (1, Send(1, v4(2).into()), &[Lost(1)]),
        (2, On::Link(true, link(1)), &[Claim(four), Doubt(v6(1))]),
        (3, solicitation(v6(2), v6(1), Some(link(2))), &[]), // not ours yet
        (1001, Nothing, &[]),
        (1002, Nothing, &[Claim(four), Claim(six)]),
        (
            1003,
            solicitation(v6(2), v6(1), Some(link(2))),
            &[Answer(six, link(2))],
        ),
        (2002, Nothing, &[Claim(six)]),
        (9000, Nothing, &[]),
        // Another QP: all are to know.
        (9001, On::Link(true, link(7)), &[Claim(four), Doubt(v6(1))]),
    ]);
}

#[test]
fn without_duplicate_address_detection_an_address_is_ours_at_once() {
    let mut desk = Desk::new(Profile {
        duplicate_address_detection: false,
        ..Profile::DEFAULT
    });
    desk.settle(&mut Vec::new());
    desk.is(&[(
        0,
        On::Link(true, link(1)),
        &[Claim(v4(1).into()), Claim(v6(1).into())],
    )]);
}

#[test]
fn an_address_that_is_claimed_while_we_ask_is_not_ours() {
    for claim in [
        advertisement(v6(1), link(2), false, true),
        solicitation(Ipv6Addr::UNSPECIFIED, v6(1), None), // it wants it too
    ] {
        let mut desk = Desk::new(Profile::DEFAULT);
        desk.settle(&mut Vec::new());
        desk.is(&[
            (
                0,
                On::Link(true, link(1)),
                &[Claim(v4(1).into()), Doubt(v6(1))],
            ),
            (1, claim, &[]),
            (1000, Nothing, &[Claim(v4(1).into())]),
            (5000, solicitation(v6(2), v6(1), Some(link(2))), &[]),
        ]);
        assert_eq!(desk.neigh.take_conflict(), Some(v6(1).into()));
        assert_eq!(desk.neigh.take_conflict(), None);
    }
}

#[test]
fn an_address_in_use_is_defended() {
    let mut desk = up();
    let claim = LinkAddress::multicast(desk.neigh.mgid(ALL_NODES_IP));
    assert!(claim.gid.is_multicast());
    desk.is(&[
        (
            10_001,
            solicitation(Ipv6Addr::UNSPECIFIED, v6(1), None),
            &[Claim(v6(1).into())],
        ),
        (10_002, advertisement(v6(1), link(2), false, true), &[]),
        (10_003, Heard(REQUEST, link(2), v4(1), v4(1)), &[]),
    ]);
    assert_eq!(desk.neigh.statistics().conflicts, 2);
    assert_eq!(desk.neigh.take_conflict(), None);
}

#[test]
fn packets_wait_for_a_neighbour_in_order_and_the_fourth_is_dropped() {
    let two = v4(2).into();
    let mut desk = up();
    desk.is(&[
        (10_001, Send(1, two), &[Parked(1), AskAll(two)]),
        (10_002, Send(2, two), &[Parked(2)]),
        (10_003, Send(3, two), &[Parked(3)]),
        (10_004, Send(4, two), &[Lost(4)]),
        (
            10_005,
            Heard(REPLY, link(2), v4(2), v4(1)),
            &[To(1, link(2)), To(2, link(2)), To(3, link(2))],
        ),
        (10_006, Send(5, two), &[To(5, link(2))]),
    ]);
}

#[test]
fn a_packet_does_not_overtake_those_that_wait() {
    let two = v4(2).into();
    let mut desk = up();
    desk.is(&[(10_001, Send(1, two), &[Parked(1), AskAll(two)])]);
    let mut saw = Vec::new();
    desk.happens(Heard(REPLY, link(2), v4(2), v4(1)), &mut saw);
    desk.happens(Send(2, two), &mut saw); // before anybody polled
    desk.settle(&mut saw);
    assert_eq!(saw, [Parked(2), To(1, link(2)), To(2, link(2))]);
}

#[test]
fn a_neighbour_that_is_silent_is_asked_for_three_times_and_given_up() {
    let six = v6(2).into();
    let mut desk = up();
    desk.is(&[
        (10_000, Send(1, six), &[Parked(1), AskAll(six)]),
        (11_000, Nothing, &[AskAll(six)]),
        (12_000, Nothing, &[AskAll(six)]),
        (13_000, Nothing, &[Lost(1)]),
        (13_500, Send(2, six), &[Lost(2)]),
        (14_000, Send(3, six), &[Parked(3), AskAll(six)]),
        (
            14_100,
            advertisement(v6(2), link(2), true, true),
            &[To(3, link(2))],
        ),
    ]);
}

#[test]
fn a_neighbour_in_use_is_probed_when_doubted_and_its_path_suspected_if_that_is_in_vain() {
    let (two, six) = (IpAddr::from(v4(2)), IpAddr::from(v6(2)));
    for ip in [two, six] {
        let answer = match ip {
            IpAddr::V4(ip) => Heard(REPLY, link(2), ip, v4(1)),
            IpAddr::V6(ip) => advertisement(ip, link(2), true, true),
        };
        let mut desk = up();
        desk.is(&[
            (10_000, Send(1, ip), &[Parked(1), AskAll(ip)]),
            (10_001, answer, &[To(1, link(2))]),
            (40_000, Send(2, ip), &[To(2, link(2))]), // reachable
            (40_001, Send(3, ip), &[To(3, link(2))]), // stale
            (45_000, Nothing, &[]),
            (45_001, Nothing, &[AskOnly(ip, link(2))]),
            (45_002, answer, &[]),
            (75_002, Send(4, ip), &[To(4, link(2))]),
            (80_002, Nothing, &[AskOnly(ip, link(2))]),
            (81_002, Nothing, &[AskOnly(ip, link(2))]),
            (82_002, Send(5, ip), &[To(5, link(2)), AskOnly(ip, link(2))]),
            (83_002, Nothing, &[Suspect(link(2).gid), AskAll(ip)]),
            (83_003, Send(6, ip), &[Parked(6)]),
            (83_004, answer, &[To(6, link(2))]),
        ]);
    }
}

#[test]
fn who_asks_for_us_is_answered_and_remembered() {
    let two = v4(2).into();
    let mut desk = up();
    desk.is(&[
        (
            10_000,
            Heard(REQUEST, link(2), v4(2), v4(1)),
            &[Answer(v4(1).into(), link(2))],
        ),
        (10_001, Send(1, two), &[To(1, link(2))]), // stale, but known
        (10_002, Heard(REQUEST, link(3), v4(3), v4(9)), &[]),
        (
            10_003,
            Send(2, v4(3).into()),
            &[Parked(2), AskAll(v4(3).into())],
        ),
        (
            10_004,
            solicitation(v6(2), v6(1), Some(link(2))),
            &[Answer(v6(1).into(), link(2))],
        ),
        (10_005, Send(3, v6(2).into()), &[To(3, link(2))]),
        // One that is only looking (RFC 5227) is answered, but has no address to remember.
        (
            10_006,
            Heard(REQUEST, link(4), Ipv4Addr::UNSPECIFIED, v4(1)),
            &[Answer(v4(1).into(), link(4))],
        ),
        (10_007, solicitation(v6(5), v6(1), None), &[]), // where is it?
    ]);
    assert_eq!(desk.neigh.statistics().bad_messages, 1);
}

#[test]
fn a_neighbour_with_another_address_is_sent_to_there_from_then_on() {
    let (two, six) = (v4(2).into(), v6(2).into());
    let mut desk = up();
    desk.is(&[
        (10_000, Send(1, two), &[Parked(1), AskAll(two)]),
        (
            10_001,
            Heard(REPLY, link(2), v4(2), v4(1)),
            &[To(1, link(2))],
        ),
        (10_002, Heard(REQUEST, link(22), v4(2), v4(2)), &[]), // it announces itself
        (10_003, Send(2, two), &[To(2, link(22))]),
        (10_004, Send(3, six), &[Parked(3), AskAll(six)]),
        (
            10_005,
            advertisement(v6(2), link(2), true, false),
            &[To(3, link(2))],
        ),
        (10_006, advertisement(v6(2), link(9), false, false), &[]), // a proxy, perhaps
        (10_007, Send(4, six), &[To(4, link(2))]),
        (10_008, advertisement(v6(2), link(22), false, true), &[]),
        (10_009, Send(5, six), &[To(5, link(22))]),
    ]);
}

#[test]
fn nobody_is_remembered_at_an_address_that_no_peer_can_have() {
    let mut desk = up();
    let group = LinkAddress::multicast(link(2).gid);
    let to_group = LinkAddress {
        gid: all().gid,
        ..link(2)
    };
    let nowhere = LinkAddress {
        gid: Gid::NONE,
        ..link(2)
    };
    let manager = LinkAddress {
        qpn: Qpn::GSI,
        ..link(2)
    };
    for (count, address) in [group, to_group, nowhere, manager].into_iter().enumerate() {
        desk.is(&[
            (10_000, Heard(REQUEST, address, v4(2), v4(1)), &[]),
            (10_000, solicitation(v6(2), v6(1), Some(address)), &[]),
        ]);
        assert_eq!(desk.neigh.statistics().bad_messages, 2 * (count as u64 + 1));
    }
    desk.is(&[
        (
            10_001,
            Heard(REQUEST, link(2), v4(255), v4(1)),
            &[Answer(v4(1).into(), link(2))],
        ),
        (
            10_002,
            Heard(REQUEST, link(2), Ipv4Addr::BROADCAST, v4(1)),
            &[],
        ),
        (10_003, Heard(ArpOperation(8), link(2), v4(2), v4(1)), &[]),
    ]);
}

#[test]
fn a_packet_goes_to_the_link_to_the_gateway_or_nowhere() {
    let far = IpAddr::from([192, 0, 2, 1]);
    let far_six = "2001:db8::1".parse().unwrap();
    let mut desk = up();
    desk.is(&[
        (10_000, Send(1, far), &[Lost(1)]),
        (10_000, Send(2, far_six), &[Lost(2)]),
    ]);
    assert_eq!(desk.neigh.statistics().no_route, 2);
    desk.neigh.set_gateway(v4(254).into());
    desk.neigh.set_gateway(v6(254).into());
    let multicast = |group: IpAddr| LinkAddress::multicast(desk.neigh.mgid(group));
    let (group, group_six) = ([239, 1, 2, 3].into(), "ff05::2".parse().unwrap());
    let (to_group, to_group_six) = (multicast(group), multicast(group_six));
    desk.is(&[
        (10_001, Send(3, far), &[Parked(3), AskAll(v4(254).into())]),
        (
            10_002,
            Send(4, far_six),
            &[Parked(4), AskAll(v6(254).into())],
        ),
        (10_003, Send(5, group), &[To(5, to_group)]),
        (10_004, Send(6, group_six), &[To(6, to_group_six)]),
        (10_005, Send(7, Ipv4Addr::BROADCAST.into()), &[To(7, all())]),
        (10_006, Send(8, v4(255).into()), &[To(8, all())]),
        (10_007, Send(9, v4(1).into()), &[Lost(9)]), // ourselves
        (10_008, Send(10, Ipv4Addr::LOCALHOST.into()), &[Lost(10)]),
        (10_009, Send(11, Ipv6Addr::UNSPECIFIED.into()), &[Lost(11)]),
    ]);
    assert_eq!(desk.neigh.statistics().bad_destination, 3);
    for malformed in [&[][..], &[0x45], &[0x00; 40], &packet(v4(2).into())[..19]] {
        assert_eq!(
            desk.neigh.send(malformed, FrameId(1), desk.now),
            NextHop::Drop
        );
    }
    assert_eq!(desk.neigh.statistics().malformed, 4);
}

#[test]
fn a_link_that_goes_down_takes_what_waits_along_and_nobody_is_sure_of_anybody_after() {
    let (two, three) = (v4(2).into(), v4(3).into());
    let mut desk = Desk::up(Profile {
        duplicate_address_detection: false,
        ..Profile::DEFAULT
    });
    desk.is(&[
        (10_000, Send(1, two), &[Parked(1), AskAll(two)]),
        (
            10_001,
            Heard(REPLY, link(2), v4(2), v4(1)),
            &[To(1, link(2))],
        ),
        (10_002, Send(2, three), &[Parked(2), AskAll(three)]),
        (10_003, On::Link(false, link(1)), &[Lost(2)]),
        (
            20_000,
            On::Link(true, link(1)),
            &[Claim(v4(1).into()), Claim(v6(1).into())],
        ),
        (20_001, Send(3, two), &[To(3, link(2))]),
        (20_002, Send(4, three), &[Parked(4), AskAll(three)]),
        (
            20_003,
            Heard(REPLY, link(3), v4(3), v4(1)),
            &[To(4, link(3))],
        ),
        (21_000, Nothing, &[Claim(v4(1).into()), Claim(v6(1).into())]),
        (25_001, Nothing, &[AskOnly(two, link(2))]), // within seconds, not within the rest of 30
    ]);
}

#[test]
fn the_neighbour_not_used_for_longest_makes_room_and_none_that_is_waited_for() {
    let mut desk = Desk::up(Profile {
        neighbours: 2,
        ..Profile::DEFAULT
    });
    let ip = |n| IpAddr::from(v4(n));
    desk.is(&[
        (10_000, Send(1, ip(2)), &[Parked(1), AskAll(ip(2))]),
        (10_001, Send(2, ip(3)), &[Parked(2), AskAll(ip(3))]),
        (10_002, Send(3, ip(4)), &[Lost(3)]),
        (
            10_003,
            Heard(REPLY, link(2), v4(2), v4(1)),
            &[To(1, link(2))],
        ),
        (
            10_004,
            Heard(REPLY, link(3), v4(3), v4(1)),
            &[To(2, link(3))],
        ),
        (10_005, Send(4, ip(2)), &[To(4, link(2))]),
        (10_006, Send(5, ip(4)), &[Parked(5), AskAll(ip(4))]), // in place of 3
        (10_007, Send(6, ip(2)), &[To(6, link(2))]),
        (10_008, Send(7, ip(3)), &[Parked(7), AskAll(ip(3))]), // in place of 2
    ]);
    assert_eq!(desk.neigh.statistics().neighbours_full, 1);
}

#[test]
fn a_neighbour_that_nobody_uses_is_forgotten() {
    let two = v4(2).into();
    let mut desk = up();
    desk.is(&[
        (10_000, Send(1, two), &[Parked(1), AskAll(two)]),
        (
            10_001,
            Heard(REPLY, link(2), v4(2), v4(1)),
            &[To(1, link(2))],
        ),
        (610_000, Nothing, &[]),
        (610_001, Send(2, two), &[Parked(2), AskAll(two)]),
    ]);
}

#[test]
fn groups_are_joined_once_however_often_they_are_named() {
    let group = IpAddr::from([239, 1, 2, 3]);
    let mut desk = up();
    let mut report = packet(group);
    report[3] = 28;
    report[9] = 2;
    report.extend([0x16, 0, 0, 0, 239, 1, 2, 3]);
    let say = |desk: &mut Desk, kind: u8| {
        report[20] = kind;
        let to = desk.neigh.send(&report, FrameId(1), desk.now);
        assert_eq!(
            to,
            NextHop::To(LinkAddress::multicast(desk.neigh.mgid(group)))
        );
    };
    let mut say = say;
    say(&mut desk, 0x16);
    desk.is(&[(10_000, Nothing, &[Listen(group)])]);
    say(&mut desk, 0x16);
    desk.neigh.join(group).unwrap();
    desk.is(&[(10_001, Nothing, &[])]);
    say(&mut desk, 0x17);
    desk.is(&[(10_002, Nothing, &[])]); // joined by name still
    desk.neigh.leave(group);
    let mgid = desk.neigh.mgid(group);
    desk.is(&[(10_003, Nothing, &[Ignore(mgid)])]);
    let host = v4(2).into();
    assert_eq!(
        desk.neigh.join(host),
        Err(GroupError::NotMulticast { address: host })
    );
}

#[test]
fn a_group_that_the_link_has_no_room_for_is_tried_again() {
    let group = IpAddr::from([239, 1, 2, 3]);
    let mut desk = up();
    desk.neigh.join(group).unwrap();
    desk.is(&[(10_000, Nothing, &[Listen(group)])]);
    desk.neigh.listen_failed(group, desk.now);
    desk.is(&[(25_999, Nothing, &[]), (26_000, Nothing, &[Listen(group)])]);
}

#[test]
fn an_address_without_room_for_its_groups_is_not_half_added() {
    let mut neigh = Neigh::new(
        &Heap,
        PKey::DEFAULT,
        &Profile {
            memberships: 1,
            ..Profile::DEFAULT
        },
    )
    .unwrap();
    let error = neigh.add_address(v6(1).into(), 64).unwrap_err();
    assert!(matches!(
        error,
        AddressError::Groups(GroupError::NoRoom {
            entry: "memberships",
            limit: 1
        })
    ));
    assert_eq!(neigh.addresses().count(), 0);
    assert!(
        matches!(neigh.poll(Instant(0)), NeighAction::WaitUntil(_)),
        "no group is left"
    );
    neigh.add_address(v4(1).into(), 24).unwrap();
    for n in 2..=ADDRESSES as u8 {
        neigh.add_address(v4(n).into(), 24).unwrap();
    }
    assert_eq!(
        neigh.add_address(v4(100).into(), 24),
        Err(AddressError::NoRoom)
    );
    neigh.remove_address(v4(2).into());
    assert_eq!(neigh.add_address(v4(100).into(), 24), Ok(()));
    let bad = Ipv4Addr::BROADCAST.into();
    assert_eq!(
        neigh.add_address(bad, 24),
        Err(AddressError::NotUnicast { address: bad })
    );
}

#[test]
fn a_prefix_has_no_more_bits_than_its_address() {
    let mut neigh = Neigh::new(&Heap, PKey::DEFAULT, &Profile::DEFAULT).unwrap();
    let six = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 9).into();
    for (address, most) in [(v4(9).into(), 32), (six, 128)] {
        for prefix_len in [most + 1, u8::MAX] {
            let refused = AddressError::Prefix {
                address,
                prefix_len,
            };
            assert_eq!(neigh.add_address(address, prefix_len), Err(refused));
        }
        assert_eq!(neigh.add_address(address, most), Ok(()));
        assert!(
            neigh.add_address(address, most + 1).is_err(),
            "nor the second time"
        );
    }
}

#[test]
fn what_is_not_for_us_is_the_ip_stacks() {
    let mut desk = up();
    let mut receive = |ether_type, bytes: &[u8]| {
        desk.neigh
            .receive(Arrival::Host, ether_type, bytes, Instant(0))
    };
    assert!(receive(EtherType::IPV4, &packet(v4(1).into())));
    assert!(receive(EtherType::IPV6, &packet(v6(1).into())));
    assert!(!receive(EtherType::IPV6, &packet(v4(1).into())));
    assert!(!receive(EtherType::IPV4, &[]));
    assert!(!receive(EtherType::RARP, &packet(v4(1).into())));
    assert!(!receive(EtherType::ARP, &[0; 20]));
    let stats = desk.neigh.statistics();
    assert_eq!(
        (stats.malformed, stats.unknown_protocol, stats.bad_messages),
        (2, 1, 1)
    );
}

#[test]
fn a_flood_of_questions_is_answered_as_far_as_there_is_room_and_counted() {
    let mut desk = up();
    for n in 2..12 {
        let question = Heard(REQUEST, link(n), v4(n as u8), v4(1));
        desk.happens(question, &mut Vec::new());
    }
    let mut saw = Vec::new();
    desk.settle(&mut saw);
    assert_eq!(saw.len(), REPLIES);
    assert_eq!(desk.neigh.statistics().replies_full, 2);
}

#[test]
fn the_earliest_of_all_deadlines_is_waited_for() {
    let mut desk = up();
    let idle = desk.settle(&mut Vec::new());
    assert_eq!(idle, Instant::NEVER);
    desk.happens(Send(1, v4(2).into()), &mut Vec::new());
    let asked = desk.settle(&mut Vec::new());
    assert_eq!(asked, desk.now.after(Duration::from_secs(1)));
}

#[test]
fn the_groups_of_a_partition_name_it_in_both_versions() {
    let neigh = Neigh::new(&Heap, PKey(0x8123), &Profile::DEFAULT).unwrap();
    let four = core::net::Ipv4Addr::new(224, 0, 0, 1).into();
    let six = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1).into();
    for group in [four, six] {
        let mgid = neigh.mgid(group);
        assert_eq!(mgid.0[4..6], [0x81, 0x23], "{mgid}");
    }
}
