//! Hosts with whole interfaces on fake HCAs, a wire and an SA between them: what the halves do together.

mod checksums;

use crate::fake::{Fabric, FakeQpState, Hca, HcaState, Machine, Packet, Sa};
use crate::link::{Control, Event, LinkState, PortView, Step, Wish};
use crate::neigh::IpInterface;
use crate::{NetInterface, Profile, SendError};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::time::Duration;
use core_ib::verbs::{AhAttr, PortEvent};
use core_ib::wire::ipoib::{Scope, broadcast_gid, ipv4_multicast_gid};
use core_ib::{Gid, Guid, Instant, Lid, Mtu, PKey, QKey, Qpn};
use proptest::prelude::*;
use std::vec;
use std::vec::Vec;

/// One interface, and what it received.
struct Host<'w> {
    interface: IpInterface<'w, Hca<'w>, Machine>,
    control: Control<'w, Hca<'w>>,
    hca: &'w Hca<'w>,
    p_key: PKey,
    inbox: Vec<Vec<u8>>,
    /// What its HCA said of each packet that came since somebody looked.
    verdicts: Vec<bool>,
    wake: Instant,
}

/// Everything.
struct World<'w> {
    fabric: &'w Fabric,
    machines: &'w [Machine],
    sa: Sa,
    hosts: Vec<Host<'w>>,
    now: Instant,
    /// Answers on their way: of the SA, and of whoever carries out wishes.
    answers: Vec<(Instant, usize, Event)>,
    /// Wishes that will be carried out.
    wishes: Vec<(Instant, usize, Wish)>,
    /// Wishes take their time, and other things happen meanwhile.
    slow: bool,
    /// Of 256 packets so many are lost.
    loss: u8,
    dice: u64,
}

const DELAY: Duration = Duration::from_millis(1);

fn v4(host: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, host).into()
}

fn v6(host: u16) -> IpAddr {
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, host).into()
}

fn packet(from: IpAddr, to: IpAddr, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let len = (20 + payload.len()) as u16;
            bytes.extend([0x45, 0]);
            bytes.extend(len.to_be_bytes());
            bytes.extend([0, 0, 0, 0, 64, 17, 0, 0]);
            bytes.extend(from.octets());
            bytes.extend(to.octets());
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            bytes.extend([0x60, 0, 0, 0]);
            bytes.extend((payload.len() as u16).to_be_bytes());
            bytes.extend([17, 64]);
            bytes.extend(from.octets());
            bytes.extend(to.octets());
        }
        _ => panic!("one version"),
    }
    bytes.extend(payload);
    bytes
}

/// Ports of a fabric: LID 0x11, 0x12 …
fn ports(fabric: &Fabric, count: usize) {
    fabric.with(|state| {
        for place in 0..count {
            state.hcas.push(HcaState {
                lid: Lid(0x11 + place as u16),
                gid: Gid::unicast(Gid::DEFAULT_PREFIX, Guid(0x1000 + place as u64)),
                active: true,
                pkeys: vec![PKey::DEFAULT, PKey(0x8001)],
                ..HcaState::default()
            });
        }
    });
}

fn hcas(fabric: &Fabric, count: usize) -> Vec<Hca<'_>> {
    ports(fabric, count);
    (0..count).map(|place| Hca { fabric, place }).collect()
}

fn machines(count: usize) -> Vec<Machine> {
    (0..count).map(|_| Machine::default()).collect()
}

/// 0 to 255.
fn roll(dice: &mut u64) -> u8 {
    *dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
    (*dice >> 56) as u8
}

impl<'w> World<'w> {
    fn new(fabric: &'w Fabric, machines: &'w [Machine]) -> Self {
        let mut sa = Sa::default();
        for p_key in [PKey::DEFAULT, PKey(0x8001)] {
            sa.create_broadcast(broadcast_gid(p_key, Scope::LINK_LOCAL), p_key);
        }
        Self {
            fabric,
            machines,
            sa,
            hosts: Vec::new(),
            now: Instant(0),
            answers: Vec::new(),
            wishes: Vec::new(),
            slow: false,
            loss: 0,
            dice: 1,
        }
    }

    fn view(&self, host: usize) -> PortView {
        let host = &self.hosts[host];
        host.hca.with(|hca| PortView {
            active: hca.active,
            lid: hca.lid,
            lmc: 0,
            mtu: Some(Mtu::Mtu2048),
            gid: hca.gid,
            pkey_index: hca
                .pkeys
                .iter()
                .position(|key| key.base() == host.p_key.base())
                .map(|at| at as u16),
        })
    }

    /// Another host, or another interface of one. Its addresses are 10.0.0.`n` and fd00::`n`, `n` from 1.
    fn open(&mut self, hca: &'w Hca<'w>, p_key: PKey, profile: &Profile) -> usize {
        let machine = &self.machines[hca.place];
        let mut interface = IpInterface::open(hca, machine, 1, p_key, profile).unwrap();
        let number = self.hosts.len() + 1;
        interface.add_address(v4(number as u8), 24).unwrap();
        interface.add_address(v6(number as u16), 64).unwrap();
        self.hosts.push(Host {
            control: interface.control(),
            interface,
            hca,
            p_key,
            inbox: Vec::new(),
            verdicts: Vec::new(),
            wake: Instant(0),
        });
        let view = self.view(number - 1);
        self.hosts[number - 1]
            .interface
            .handle(Event::Port(view), self.now);
        number - 1
    }

    fn port_event(&mut self, place: usize, event: PortEvent) {
        for host in 0..self.hosts.len() {
            if self.hosts[host].hca.place == place {
                let view = self.view(host);
                self.hosts[host]
                    .interface
                    .handle(Event::PortChanged(event, view), self.now);
            }
        }
    }

    /// 0 to 3 ms.
    fn delay(&mut self) -> Duration {
        Duration::from_millis(u64::from(roll(&mut self.dice) & 3))
    }

    /// Carries out the wishes that are due; the answers come later.
    fn carry_out(&mut self, now: Instant) {
        let (due, later): (Vec<_>, _) = self.wishes.drain(..).partition(|(at, ..)| *at <= now);
        self.wishes = later;
        for (_, host, wish) in due {
            let done = self.hosts[host].control.carry_out(wish);
            let when = now.after(self.delay());
            self.answers.push((when, host, Event::Done(done)));
        }
    }

    /// Everything that is due now; says whether there was anything.
    fn round(&mut self) -> bool {
        let now = self.now;
        let mut busy = false;
        for index in 0..self.hosts.len() {
            loop {
                let host = &mut self.hosts[index];
                match host.interface.poll(now) {
                    Step::WaitUntil(until) => {
                        host.wake = until;
                        break;
                    }
                    Step::Wish(wish) if self.slow => {
                        let when = now.after(self.delay());
                        self.wishes.push((when, index, wish));
                        self.carry_out(now);
                    }
                    Step::Wish(wish) => {
                        let done = host.control.carry_out(wish);
                        host.interface.handle(Event::Done(done), now);
                    }
                    Step::Changed(_) => {}
                    question => {
                        let event = self
                            .sa
                            .answer(self.fabric, host.hca.place, question)
                            .unwrap();
                        self.answers.push((now.after(DELAY), index, event));
                    }
                }
                busy = true;
            }
        }
        self.carry_out(now);
        let (due, later): (Vec<_>, _) = self.answers.drain(..).partition(|(at, ..)| *at <= now);
        self.answers = later;
        for (_, host, event) in due {
            self.hosts[host].interface.handle(event, now);
            busy = true;
        }
        let machines: Vec<&Machine> = self.machines.iter().collect();
        let (loss, dice) = (self.loss, &mut self.dice);
        let before = self.fabric.with(|state| state.delivered);
        self.fabric
            .run(&machines, |_: &Packet| roll(dice) > 255 - loss);
        busy |= self.fabric.with(|state| state.delivered) != before;
        for host in &mut self.hosts {
            let (inbox, verdicts) = (&mut host.inbox, &mut host.verdicts);
            while host.interface.receive_judged(now, &mut |packet, verified| {
                inbox.push(packet.to_vec());
                verdicts.push(verified);
            }) {
                busy = true;
            }
        }
        busy
    }

    fn settle(&mut self) {
        for _ in 0..1000 {
            if !self.round() {
                let violations = self.fabric.with(|state| state.violations.clone());
                assert_eq!(violations, Vec::<std::string::String>::new());
                return;
            }
        }
        panic!("it never comes to rest");
    }

    /// Lets time pass.
    fn run(&mut self, time: Duration) {
        let end = self.now.after(time);
        loop {
            self.settle();
            let wakes = self.hosts.iter().map(|host| host.wake);
            let answers = self.answers.iter().map(|(at, ..)| *at);
            let wishes = self.wishes.iter().map(|(at, ..)| *at);
            let next = wakes
                .chain(answers)
                .chain(wishes)
                .min()
                .unwrap_or(Instant::NEVER);
            assert!(next > self.now, "polled again at once, for nothing");
            if next > end {
                self.now = end;
                return;
            }
            self.now = next;
        }
    }

    fn send(&mut self, from: usize, packet: &[u8]) -> Result<(), SendError> {
        self.hosts[from].interface.send(packet, self.now)
    }

    fn inbox(&mut self, host: usize) -> Vec<Vec<u8>> {
        core::mem::take(&mut self.hosts[host].inbox)
    }

    fn is_up(&self, host: usize) -> bool {
        self.hosts[host].interface.state().is_up()
    }

    /// Does a packet arrive, as it is, once, and nowhere else?
    fn reaches(&mut self, from: usize, to: usize, bytes: &[u8]) -> bool {
        for host in &mut self.hosts {
            host.inbox.clear();
        }
        let taken = self.send(from, bytes).is_ok();
        self.run(Duration::from_secs(1));
        let got: Vec<usize> = self.hosts.iter().map(|host| host.inbox.len()).collect();
        let mut expected = vec![0; got.len()];
        expected[to] = 1;
        taken && got == expected && self.hosts[to].inbox == [bytes]
    }

    fn close_all(self) {
        for host in self.hosts {
            host.interface.close().unwrap();
        }
        for machine in self.machines {
            assert_eq!(machine.out(), (0, 0), "memory is left");
        }
        self.fabric.with(|state| {
            for hca in &state.hcas {
                assert_eq!(hca.left(), 0, "objects are left: {hca:?}");
            }
        });
    }
}

/// `count` hosts in the default partition, up.
fn world<'w>(
    fabric: &'w Fabric,
    machines: &'w [Machine],
    hcas: &'w [Hca<'w>],
    profile: &Profile,
) -> World<'w> {
    let mut world = World::new(fabric, machines);
    for hca in hcas {
        world.open(hca, PKey::DEFAULT, profile);
    }
    world.run(Duration::from_secs(5));
    for host in 0..hcas.len() {
        assert_eq!(
            world.hosts[host].interface.state(),
            LinkState::Up { mtu: 2044 }
        );
    }
    world
}

macro_rules! world {
    ($world:ident, $count:literal) => {
        world!($world, $count, Profile::DEFAULT);
    };
    ($world:ident, $count:literal, $profile:expr) => {
        let fabric = Fabric::default();
        let machines = machines($count);
        let hcas = hcas(&fabric, $count);
        let mut $world = world(&fabric, &machines, &hcas, &$profile);
    };
}

#[test]
fn a_packet_of_either_version_reaches_the_host_that_has_its_address_and_nobody_else() {
    world!(world, 3);
    let full = vec![0x5a; 2044 - 40];
    assert!(world.reaches(0, 1, &packet(v4(1), v4(2), b"ping")));
    assert!(world.reaches(1, 0, &packet(v4(2), v4(1), b"pong")));
    assert!(world.reaches(0, 2, &packet(v6(1), v6(3), &full)));
    assert!(world.reaches(2, 0, &packet(v6(3), v6(1), b"")));
    let long = packet(v6(1), v6(3), &vec![0; 2044 - 39]);
    let error = SendError::TooLong {
        len: 2045,
        mtu: 2044,
    };
    assert_eq!(world.send(0, &long), Err(error));
    world.close_all();
}

#[test]
fn broadcast_reaches_everybody_but_its_sender() {
    world!(world, 3);
    for to in [Ipv4Addr::BROADCAST, Ipv4Addr::new(10, 0, 0, 255)] {
        let bytes = packet(v4(1), to.into(), b"all");
        world.send(0, &bytes).unwrap();
        world.run(Duration::from_millis(10));
        assert_eq!(world.inbox(0), Vec::<Vec<u8>>::new());
        assert_eq!(world.inbox(1), core::slice::from_ref(&bytes));
        assert_eq!(world.inbox(2), [bytes]);
    }
    let own = world.hosts[0].interface.statistics().rings.own_copies;
    assert!(own >= 2, "its own copies were dropped: {own}");
}

#[test]
fn a_group_reaches_those_whose_ip_stack_joined_it_until_it_leaves() {
    world!(world, 3);
    let group: IpAddr = Ipv4Addr::new(239, 1, 2, 3).into();
    let mgid = ipv4_multicast_gid(
        Ipv4Addr::new(239, 1, 2, 3),
        PKey::DEFAULT,
        Scope::LINK_LOCAL,
    );
    let mut report = packet(v4(2), group, &[0x16, 0, 0, 0, 239, 1, 2, 3]);
    report[9] = 2;
    world.send(1, &report).unwrap();
    world.run(Duration::from_millis(10));
    assert!(world.sa.is_full_member(mgid, 1));
    let bytes = packet(v4(1), group, b"to the group");
    assert!(world.reaches(0, 1, &bytes));
    assert!(!world.sa.is_full_member(mgid, 0), "the sender only sends");
    let mut leave = packet(
        v4(2),
        Ipv4Addr::new(224, 0, 0, 2).into(),
        &[0x17, 0, 0, 0, 239, 1, 2, 3],
    );
    leave[9] = 2;
    world.send(1, &leave).unwrap();
    world.run(Duration::from_millis(10));
    assert!(!world.sa.is_full_member(mgid, 1));
    assert!(!world.reaches(0, 1, &bytes));
    world.hosts[2].interface.join_group(group).unwrap(); // by name
    world.run(Duration::from_millis(10));
    assert!(world.reaches(0, 2, &bytes));
    world.close_all();
}

#[test]
fn two_partitions_of_one_port_hear_nothing_of_each_other() {
    let fabric = Fabric::default();
    let machines = machines(2);
    let hcas = hcas(&fabric, 2);
    let mut world = World::new(&fabric, &machines);
    for (place, p_key) in [(0, 0xffff), (0, 0x8001), (1, 0xffff), (1, 0x0001)] {
        world.open(&hcas[place], PKey(p_key), &Profile::DEFAULT);
    }
    world.run(Duration::from_secs(5));
    assert!((0..4).all(|host| world.is_up(host)));
    assert!(world.reaches(0, 2, &packet(v4(1), v4(3), b"in the default partition")));
    assert!(world.reaches(1, 3, &packet(v4(2), v4(4), b"in the other")));
    assert!(!world.reaches(0, 3, &packet(v4(1), v4(4), b"across")));
    world.close_all();
}

#[test]
fn hosts_find_each_other_though_every_fourth_packet_is_lost() {
    world!(world, 2);
    world.loss = 64;
    let mut arrived = 0;
    for n in 0..100_u8 {
        let _ = world.send(0, &packet(v4(1), v4(2), &[n]));
        let _ = world.send(1, &packet(v6(2), v6(1), &[n]));
        world.run(Duration::from_secs(2));
        arrived += world.inbox(0).len() + world.inbox(1).len();
    }
    assert!(arrived > 100, "{arrived} of 200");
    assert!(world.is_up(0) && world.is_up(1));
}

#[test]
fn a_host_that_comes_back_with_another_qp_is_found_at_once() {
    world!(world, 2);
    assert!(world.reaches(0, 1, &packet(v4(1), v4(2), b"before")));
    assert!(world.reaches(0, 1, &packet(v6(1), v6(2), b"before")));
    let gone = world.hosts.pop().unwrap();
    let (hca, old) = (gone.hca, gone.interface.link_address());
    gone.interface.close().unwrap();
    world.run(Duration::from_secs(1));
    world.open(hca, PKey::DEFAULT, &Profile::DEFAULT);
    world.run(Duration::from_secs(3));
    assert_ne!(world.hosts[1].interface.link_address(), old);
    assert!(world.reaches(0, 1, &packet(v4(1), v4(2), b"after")));
    assert!(world.reaches(0, 1, &packet(v6(1), v6(2), b"after")));
}

#[test]
fn a_peer_that_is_gone_is_given_up_and_found_again() {
    world!(world, 2);
    let bytes = packet(v4(1), v4(2), b"anybody?");
    assert!(world.reaches(0, 1, &bytes));
    world.fabric.with(|state| state.hcas[1].active = false);
    world.run(Duration::from_secs(40)); // reachable runs out
    for _ in 0..20 {
        let _ = world.send(0, &bytes);
        world.run(Duration::from_secs(1));
    }
    let stats = world.hosts[0].interface.statistics();
    assert!(stats.neighbours.unreachable > 0, "{stats:?}");
    world.fabric.with(|state| state.hcas[1].active = true);
    world.run(Duration::from_secs(5));
    let _ = world.send(0, &bytes);
    world.run(Duration::from_secs(5));
    assert!(world.reaches(0, 1, &bytes));
}

#[test]
fn peers_whose_lids_change_are_reached_at_the_new_ones_after_a_reregistration() {
    world!(world, 2);
    assert!(world.reaches(0, 1, &packet(v4(1), v4(2), b"before")));
    // The SM exchanges the LIDs of both ports, of all things, and gives the groups other ones.
    world.fabric.with(|state| {
        state.hcas[0].lid = Lid(0x12);
        state.hcas[1].lid = Lid(0x11);
    });
    world.sa.forget(world.fabric);
    for place in 0..2 {
        world.port_event(place, PortEvent::LidChange);
        world.port_event(place, PortEvent::ClientReregister);
    }
    assert!(
        world.is_up(0) && world.is_up(1),
        "no interface is lost by that"
    );
    assert!(world.reaches(0, 1, &packet(v4(1), v4(2), b"after")));
    assert!(world.reaches(1, 0, &packet(v4(2), v4(1), b"after")));
    let all = packet(v4(1), Ipv4Addr::BROADCAST.into(), b"all");
    assert!(world.reaches(0, 1, &all));
}

#[test]
fn a_stopped_send_queue_and_a_broken_qp_are_mended_under_a_running_interface() {
    world!(world, 2);
    let bytes = packet(v4(1), v4(2), b"x");
    assert!(world.reaches(0, 1, &bytes));
    for (round, state) in [FakeQpState::Sqe, FakeQpState::Error]
        .into_iter()
        .enumerate()
    {
        world
            .fabric
            .with(|fabric| fabric.hcas[0].breaks = Some((1, state)));
        for _ in 0..6 {
            let _ = world.send(0, &bytes);
        }
        world.run(Duration::from_secs(1));
        assert!(world.is_up(0));
        assert!(world.reaches(0, 1, &bytes), "after {state:?}");
        assert!(
            world.reaches(1, 0, &packet(v4(2), v4(1), b"y")),
            "after {state:?}"
        );
        let link = world.hosts[0].interface.statistics().link;
        assert!(link.repairs > round as u64);
    }
    world.close_all();
}

#[test]
fn a_frame_too_long_for_the_buffers_breaks_the_qp_for_a_moment_only() {
    world!(world, 2);
    assert!(world.reaches(1, 0, &packet(v4(2), v4(1), b"x")));
    let machines: Vec<&Machine> = world.machines.iter().collect();
    let stray = Packet {
        from: 1, // it does not keep to the MTU of the link
        slid: Lid(0x12),
        sgid: Gid::NONE,
        p_key: PKey::DEFAULT,
        src_qp: Qpn::new(1234),
        attr: AhAttr {
            dlid: Lid(0x11),
            ..AhAttr::default()
        },
        qpn: world.hosts[0].interface.link_address().qpn,
        q_key: QKey(0x0b1b),
        flags: core_ib::verbs::SendFlags::empty(),
        payload: vec![0; 4096],
    };
    world.fabric.inject(&machines, &stray);
    world.run(Duration::from_secs(1));
    assert_eq!(
        world.hosts[0].interface.statistics().rings.receive_errors,
        1
    );
    assert!(world.reaches(1, 0, &packet(v4(2), v4(1), b"y")));
}

#[test]
fn no_packet_is_taken_while_all_frames_are_in_use_and_all_come_back() {
    world!(
        world,
        2,
        Profile {
            send_frames: 4,
            ..Profile::DEFAULT
        }
    );
    let bytes = packet(v4(1), v4(2), b"x");
    assert!(world.reaches(0, 1, &bytes));
    world.inbox(1);
    let taken = (0..10).filter(|_| world.send(0, &bytes).is_ok()).count();
    assert_eq!(taken, 4);
    assert_eq!(world.send(0, &bytes), Err(SendError::NoFrame));
    world.run(Duration::from_millis(1));
    assert_eq!(world.inbox(1).len(), 4);
    assert!(world.reaches(0, 1, &bytes));
}

#[test]
fn an_address_that_somebody_has_is_not_taken_by_a_second_host() {
    world!(world, 2);
    let taken = v6(1);
    world.hosts[1].interface.add_address(taken, 64).unwrap();
    world.run(Duration::from_secs(3));
    assert_eq!(world.hosts[1].interface.take_conflict(), Some(taken));
    assert_eq!(world.hosts[1].interface.take_conflict(), None);
    assert!(world.reaches(1, 0, &packet(v6(2), v6(1), b"who has it")));
}

#[test]
fn what_fails_while_opening_leaves_nothing_behind() {
    let fabric = Fabric::default();
    let machines = machines(1);
    let hcas = hcas(&fabric, 1);
    let open = || IpInterface::open(&hcas[0], &machines[0], 1, PKey::DEFAULT, &Profile::DEFAULT);
    let mut failures = 0;
    for budget in 0..100 {
        fabric.with(|state| state.hcas[0].budget = Some(budget));
        let failed = open().map(IpInterface::close).is_err();
        failures += u32::from(failed);
        fabric.with(|state| state.hcas[0].budget = None);
        machines[0].budget(Some(budget));
        let failed = open().map(IpInterface::close).is_err();
        failures += u32::from(failed);
        machines[0].budget(None);
        assert_eq!(machines[0].out(), (0, 0), "after step {budget}");
        fabric.with(|state| assert_eq!(state.hcas[0].left(), 0, "after step {budget}"));
    }
    assert!(failures > 10, "{failures} steps failed");
}

#[test]
fn an_interface_taken_down_leaves_its_groups_and_ends_without_a_trace() {
    world!(world, 1);
    let broadcast = broadcast_gid(PKey::DEFAULT, Scope::LINK_LOCAL);
    assert!(world.sa.is_full_member(broadcast, 0));
    let now = world.now;
    world.hosts[0]
        .interface
        .handle(Event::Admin { up: false }, now);
    world.run(Duration::from_secs(1));
    assert!(!world.sa.is_full_member(broadcast, 0));
    let idle = LinkState::Down(crate::link::DownCause::Admin { idle: true });
    assert_eq!(world.hosts[0].interface.state(), idle);
    world.close_all();
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Send(usize, usize, bool, u16),
    Wait(u16),
    Loss(u8),
    Break(usize, u8, bool),
    Exchange(usize, usize),
    Bounce(usize),
    Reregister,
    Restart(usize),
    /// The P_Key table of a port is turned round.
    Turn(usize),
}

fn op() -> impl Strategy<Value = Op> {
    let host = 0..3_usize;
    prop_oneof![
        30 => (host.clone(), host.clone(), any::<bool>(), 0..1500_u16)
            .prop_map(|(from, to, six, len)| Op::Send(from, to, six, len)),
        10 => (0..5000_u16).prop_map(Op::Wait),
        1 => prop_oneof![Just(0), any::<u8>()].prop_map(Op::Loss),
        2 => (host.clone(), 0..4_u8, any::<bool>()).prop_map(|(host, after, error)| Op::Break(host, after, error)),
        1 => (host.clone(), host.clone()).prop_map(|(one, other)| Op::Exchange(one, other)),
        1 => host.clone().prop_map(Op::Bounce),
        1 => Just(Op::Reregister),
        1 => host.clone().prop_map(Op::Restart),
        2 => host.prop_map(Op::Turn),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn no_packet_arrives_changed_or_twice_or_at_the_wrong_host(ops in prop::collection::vec(op(), 0..60)) {
        let fabric = Fabric::default();
        let machines = machines(3);
        let hcas = hcas(&fabric, 3);
        let small = Profile {
            send_frames: 8,
            recv_frames: 8,
            parked: 4,
            ..Profile::DEFAULT
        };
        let mut world = world(&fabric, &machines, &hcas, &small);
        let address = |host: usize, six| if six { v6(host as u16 + 1) } else { v4(host as u8 + 1) };
        world.slow = true;
        let mut sent: Vec<Vec<Vec<u8>>> = vec![Vec::new(); 3];
        for (number, op) in ops.into_iter().enumerate() {
            match op {
                Op::Send(from, to, six, len) if from != to => {
                    let mut payload = vec![number as u8; len.into()];
                    payload.extend((number as u32).to_be_bytes());
                    let bytes = packet(address(from, six), address(to, six), &payload);
                    if world.send(from, &bytes).is_ok() {
                        sent[to].push(bytes);
                    }
                }
                Op::Send(..) => {}
                Op::Wait(ms) => world.run(Duration::from_millis(ms.into())),
                Op::Loss(loss) => world.loss = loss,
                Op::Break(host, after, error) => {
                    let state = if error { FakeQpState::Error } else { FakeQpState::Sqe };
                    fabric.with(|fabric| fabric.hcas[host].breaks = Some((after.into(), state)));
                }
                Op::Exchange(one, other) => {
                    // What was sent before is on nobody's way any more.
                    world.settle();
                    fabric.with(|state| {
                        let (first, second) = (state.hcas[one].lid, state.hcas[other].lid);
                        state.hcas[one].lid = second;
                        state.hcas[other].lid = first;
                    });
                    for place in 0..3 {
                        world.port_event(place, PortEvent::LidChange);
                    }
                }
                Op::Bounce(host) => {
                    fabric.with(|state| state.hcas[host].active = false);
                    world.port_event(host, PortEvent::Error);
                    world.settle();
                    fabric.with(|state| state.hcas[host].active = true);
                    world.port_event(host, PortEvent::Active);
                }
                Op::Reregister => {
                    world.settle();
                    world.sa.forget(&fabric);
                    for place in 0..3 {
                        world.port_event(place, PortEvent::ClientReregister);
                    }
                }
                Op::Turn(host) => {
                    fabric.with(|state| state.hcas[host].pkeys.reverse());
                    world.port_event(host, PortEvent::PkeyChange);
                }
                Op::Restart(host) => {
                    let now = world.now;
                    world.hosts[host].interface.handle(Event::QpTrouble, now);
                }
            }
            world.settle();
            for (host, due) in sent.iter_mut().enumerate() {
                for bytes in world.inbox(host) {
                    let at = due.iter().position(|one| *one == bytes);
                    prop_assert!(at.is_some(), "host {host} got what is not its own, or twice");
                    due.remove(at.unwrap_or(0));
                }
            }
        }
        world.loss = 0;
        fabric.with(|state| state.hcas.iter_mut().for_each(|hca| hca.breaks = None));
        world.run(Duration::from_secs(100));
        for (from, to) in [(0, 1), (1, 2), (2, 0)] {
            prop_assert!(world.is_up(from));
            for six in [false, true] {
                let bytes = packet(address(from, six), address(to, six), b"in the end");
                // The first may find a neighbour that is doubted still.
                let _ = world.send(from, &bytes);
                world.run(Duration::from_secs(20));
                prop_assert!(world.reaches(from, to, &bytes), "{from} to {to}, v6: {six}");
            }
        }
        world.close_all();
    }
}
