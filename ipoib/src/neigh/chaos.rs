//! Any sequence of events whatever: no packet to the wrong address, none lost uncounted, and in the end all are found.

use super::*;
use crate::profile::Profile;
use crate::room::Heap;
use core::time::Duration;
use core_ib::Guid;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use std::collections::BTreeMap;
use std::vec;
use std::vec::Vec;

const PEERS: u8 = 5;

#[derive(Clone, Copy, Debug)]
enum Op {
    /// The host sends to a peer; IPv6?
    Send(u8, bool),
    Wait(u32),
    /// A question of ours is answered, the n-th that is outstanding; or it was lost.
    Answer(u8),
    Lose(u8),
    /// A peer asks for us.
    Asks(u8, bool),
    /// A peer has another link-layer address and says so.
    Moves(u8),
    Link(bool),
    /// Anything, as a message.
    Noise(u8, u64),
}

fn op() -> impl Strategy<Value = Op> {
    let peer = 0..PEERS;
    prop_oneof![
        20 => (peer.clone(), any::<bool>()).prop_map(|(peer, six)| Op::Send(peer, six)),
        10 => prop_oneof![0..3000_u32, 0..700_000_u32].prop_map(Op::Wait),
        20 => any::<u8>().prop_map(Op::Answer),
        5 => any::<u8>().prop_map(Op::Lose),
        5 => (peer.clone(), any::<bool>()).prop_map(|(peer, six)| Op::Asks(peer, six)),
        5 => peer.prop_map(Op::Moves),
        2 => any::<bool>().prop_map(Op::Link),
        3 => (any::<u8>(), any::<u64>()).prop_map(|(len, seed)| Op::Noise(len, seed)),
    ]
}

fn ip(peer: u8, six: bool) -> IpAddr {
    if six {
        Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 10 + u16::from(peer)).into()
    } else {
        Ipv4Addr::new(10, 0, 0, 10 + peer).into()
    }
}

fn packet(to: IpAddr) -> Vec<u8> {
    let mut bytes = match to {
        IpAddr::V4(_) => vec![0x45, 0, 0, 20, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1],
        IpAddr::V6(_) => {
            let mut bytes = vec![0x60, 0, 0, 0, 0, 0, 17, 64];
            bytes.extend(Ipv6Addr::LOCALHOST.octets());
            bytes
        }
    };
    match to {
        IpAddr::V4(to) => bytes.extend(to.octets()),
        IpAddr::V6(to) => bytes.extend(to.octets()),
    }
    bytes
}

struct World {
    neigh: Neigh<Heap>,
    now: Instant,
    up: bool,
    /// How often each peer has moved.
    moves: [u32; PEERS as usize],
    /// Whom we asked for.
    questions: Vec<IpAddr>,
    /// Frames that wait, and for whom.
    parked: BTreeMap<u16, IpAddr>,
    next_frame: u16,
    sent: Vec<IpAddr>,
}

impl World {
    fn new() -> Self {
        let profile = Profile {
            neighbours: 4, // fewer than addresses
            parked_for_neighbours: 6,
            ..Profile::DEFAULT
        };
        let mut neigh = Neigh::new(&Heap, PKey::DEFAULT, &profile).unwrap();
        neigh
            .add_address(Ipv4Addr::new(10, 0, 0, 1).into(), 24)
            .unwrap();
        neigh.add_address("fe80::1".parse().unwrap(), 64).unwrap();
        Self {
            neigh,
            now: Instant(0),
            up: false,
            moves: [0; PEERS as usize],
            questions: Vec::new(),
            parked: BTreeMap::new(),
            next_frame: 0,
            sent: Vec::new(),
        }
    }

    fn own() -> LinkAddress {
        LinkAddress {
            qpn: Qpn::new(0x48),
            gid: Gid::unicast(Gid::DEFAULT_PREFIX, Guid(1)),
            ..LinkAddress::default()
        }
    }

    /// Where the peer with this address is now.
    fn home(&self, ip: IpAddr) -> LinkAddress {
        let last = match ip {
            IpAddr::V4(ip) => ip.octets()[3],
            IpAddr::V6(ip) => ip.octets()[15],
        };
        let peer = u32::from(last) - 10;
        let moves = self.moves[peer as usize];
        LinkAddress {
            qpn: Qpn::new(0x1000 + peer * 256 + moves),
            gid: Gid::unicast(Gid::DEFAULT_PREFIX, Guid(0x100 + u64::from(peer))),
            ..LinkAddress::default()
        }
    }

    fn hear(&mut self, message: Message) {
        let mut bytes = vec![0; message.len()];
        assert!(message.write(&mut bytes));
        let arrival = Arrival::Host;
        self.neigh
            .receive(arrival, message.ether_type(), &bytes, self.now);
    }

    /// The owner of `ip` says where it is: as an answer to us, or to all.
    fn says(&mut self, ip: IpAddr, answer: bool) {
        let address = self.home(ip);
        let message = match ip {
            IpAddr::V4(ip) => Message::Arp(Arp {
                operation: if answer {
                    ArpOperation::REPLY
                } else {
                    ArpOperation::REQUEST
                },
                sender: address,
                sender_ip: ip,
                target: LinkAddress::default(),
                target_ip: if answer {
                    Ipv4Addr::new(10, 0, 0, 1)
                } else {
                    ip
                },
            }),
            IpAddr::V6(ip) => Message::Nd(NdMessage {
                source: ip,
                destination: if answer {
                    Ipv6Addr::LOCALHOST
                } else {
                    ALL_NODES
                },
                kind: NdKind::Advertisement {
                    router: false,
                    solicited: answer,
                    overrides: true,
                },
                target: ip,
                address: Some(address),
            }),
        };
        self.hear(message);
    }

    fn asks(&mut self, ip: IpAddr) {
        let address = self.home(ip);
        let message = match ip {
            IpAddr::V4(ip) => Message::Arp(Arp {
                operation: ArpOperation::REQUEST,
                sender: address,
                sender_ip: ip,
                target: LinkAddress::default(),
                target_ip: Ipv4Addr::new(10, 0, 0, 1),
            }),
            IpAddr::V6(ip) => {
                let target: Ipv6Addr = "fe80::1".parse().unwrap();
                Message::Nd(NdMessage {
                    source: ip,
                    destination: solicited_node(target),
                    kind: NdKind::Solicitation,
                    target,
                    address: Some(address),
                })
            }
        };
        self.hear(message);
    }

    fn apply(&mut self, op: Op) -> Result<(), TestCaseError> {
        match op {
            Op::Send(peer, six) => self.send(ip(peer, six))?,
            Op::Wait(ms) => self.now = self.now.after(Duration::from_millis(ms.into())),
            Op::Answer(which) => {
                if let Some(ip) = self.question(which) {
                    self.says(ip, true);
                }
            }
            Op::Lose(which) => drop(self.question(which)),
            Op::Asks(peer, six) => self.asks(ip(peer, six)),
            Op::Moves(peer) => {
                self.moves[usize::from(peer)] += 1;
                for six in [false, true] {
                    self.says(ip(peer, six), false);
                }
            }
            Op::Link(up) => {
                self.up = up;
                self.neigh.link_changed(up, Self::own(), self.now);
            }
            Op::Noise(len, seed) => {
                let mut dice = seed;
                let bytes: Vec<u8> = core::iter::repeat_with(|| {
                    dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (dice >> 56) as u8
                })
                .take(len.into())
                .collect();
                for kind in [EtherType::ARP, EtherType::IPV4, EtherType::IPV6] {
                    self.neigh
                        .receive(Arrival::Broadcast, kind, &bytes, self.now);
                }
                let verdict = self.neigh.send(&bytes, FrameId(u16::MAX), self.now);
                prop_assert!(verdict != NextHop::Parked, "noise waits for somebody");
            }
        }
        self.settle()
    }

    fn question(&mut self, which: u8) -> Option<IpAddr> {
        let at = usize::from(which).checked_rem(self.questions.len())?;
        Some(self.questions.remove(at))
    }

    fn send(&mut self, to: IpAddr) -> Result<(), TestCaseError> {
        let frame = self.next_frame;
        self.next_frame += 1;
        match self.neigh.send(&packet(to), FrameId(frame), self.now) {
            NextHop::To(address) => self.goes(to, address),
            NextHop::Parked => {
                self.parked.insert(frame, to);
                prop_assert!(self.parked.len() <= 6, "no more wait than the profile says");
                Ok(())
            }
            NextHop::Drop => Ok(()),
        }
    }

    fn goes(&mut self, to: IpAddr, address: LinkAddress) -> Result<(), TestCaseError> {
        prop_assert!(self.up, "a packet leaves while the link is down");
        prop_assert_eq!(address, self.home(to), "a packet to where its owner is not");
        self.sent.push(to);
        Ok(())
    }

    fn settle(&mut self) -> Result<(), TestCaseError> {
        for _ in 0..200 {
            match self.neigh.poll(self.now) {
                NeighAction::WaitUntil(_) => return Ok(()),
                NeighAction::Say { message, .. } => match message {
                    Message::Arp(Arp {
                        operation: ArpOperation::REQUEST,
                        sender_ip,
                        target_ip,
                        ..
                    }) if sender_ip != target_ip => self.questions.push(target_ip.into()),
                    Message::Nd(NdMessage {
                        source,
                        kind: NdKind::Solicitation,
                        target,
                        ..
                    }) if !source.is_unspecified() => self.questions.push(target.into()),
                    _ => {}
                },
                NeighAction::Release { frame, to } => {
                    let meant = self.parked.remove(&frame.0);
                    let meant = meant.ok_or(TestCaseError::fail("a frame that does not wait"))?;
                    self.goes(meant, to)?;
                }
                NeighAction::Drop { frame } => {
                    let waited = self.parked.remove(&frame.0).is_some();
                    prop_assert!(waited, "a frame that does not wait");
                }
                NeighAction::Listen { .. } | NeighAction::Ignore { .. } => {}
                NeighAction::Suspect(gid) => {
                    let known = (0..PEERS).any(|peer| self.home(ip(peer, false)).gid == gid);
                    prop_assert!(known, "a port that is nobody's");
                }
            }
        }
        Err(TestCaseError::fail("it never comes to rest"))
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn whatever_is_heard_no_packet_goes_where_its_owner_is_not(
        ops in prop::collection::vec(op(), 0..150),
    ) {
        let mut world = World::new();
        world.apply(Op::Link(true))?;
        for op in ops {
            world.apply(op)?;
        }
        world.apply(Op::Link(true))?;
        world.questions.clear();
        // 5 s of delay, 3 probes, 3 questions to all, and 1 s in which a neighbour that answered nothing is not asked for.
        for _ in 0..15 {
            world.apply(Op::Wait(1000))?;
        }
        prop_assert!(world.parked.is_empty(), "a packet waits for ever");
        for peer in 0..PEERS {
            for six in [false, true] {
                world.sent.clear();
                world.apply(Op::Send(peer, six))?;
                while !world.questions.is_empty() {
                    world.apply(Op::Answer(0))?;
                }
                prop_assert_eq!(&world.sent, &[ip(peer, six)]);
            }
        }
    }
}
