//! Whole fabrics: brought up by a little subnet manager of the test's own, loaded, broken and captured.

use super::topology::PortRef;
use super::topology::build::{FatTree, back_to_back, fat_tree, line, ring, star};
use super::*;
use crate::machine::{Delivery, LinkControl, LinkParameters, LinkSpeed, LinkWidth, Wire, WireEnd};
use core::time::Duration;
use core_ib::wire::mad::{
    Attribute, AttributeId, LinearForwardingTable, Mad, MadHeader, MadStatus, Method, MgmtClass,
    MtuCode, MulticastForwardingTable, NodeInfo, NodeType, Notice, PortCounters, PortInfo,
    PortPhysState, PortState as State, Smp, SwitchInfo, TimeCode, TrapNumber, VlCode,
};
use core_ib::wire::packet::{
    Bth, Deth, Extended, FlowLabel, Grh, Headers, Lnh, Lrh, MAX_PACKET, Opcode, Packet, PktLen, Vl,
    check_vcrc,
};
use core_ib::{Gid, Instant, Lid, Mtu, PKey, Psn, QKey, Qpn, Sl};
use proptest::prelude::*;
use std::collections::{BTreeSet, VecDeque};

/// What every outside port wants.
const POLLING: LinkControl = LinkControl::Polling {
    widths: LinkWidth(3),
    speeds: LinkSpeed::SDR,
};

/// A fabric whose hosts are played by the test.
struct Bench {
    fabric: Fabric,
    now: Instant,
    /// Packets that came, by end.
    came: VecDeque<(WireEnd, Vec<u8>)>,
    links: Vec<(WireEnd, bool)>,
    rooms: Vec<(WireEnd, u8)>,
    tid: u64,
}

impl Bench {
    fn new(topology: &Topology, options: Options) -> Self {
        Self::of(topology, options, |_| true)
    }

    /// A fabric of which the test plays only some hosts.
    fn of(topology: &Topology, options: Options, outside: impl Fn(usize) -> bool) -> Self {
        let fabric = Fabric::new(topology, options, |index, _| outside(index));
        let mut bench = Self {
            fabric,
            now: Instant(0),
            came: VecDeque::new(),
            links: Vec::new(),
            rooms: Vec::new(),
            tid: 0,
        };
        for end in 0..bench.fabric.end_count() {
            let end = WireEnd(end as u32);
            bench.fabric.set_link(end, POLLING, Instant(0));
        }
        bench.run_for(Duration::from_micros(200));
        bench
    }

    fn run_for(&mut self, time: Duration) {
        let until = self.now.after(time);
        while let Some(at) = self.fabric.next_event().filter(|at| *at <= until) {
            self.now = at;
            while let Some(delivery) = self.fabric.poll(at) {
                match delivery {
                    Delivery::Packet { end, packet } => self.came.push_back((end, packet)),
                    Delivery::Link { end, up } => self.links.push((end, up.is_some())),
                    Delivery::Room { end, vl } => self.rooms.push((end, vl)),
                }
            }
        }
        self.now = until;
    }

    fn send(&mut self, end: u32, packet: &[u8]) -> bool {
        self.fabric.send(WireEnd(end), packet, self.now).is_ok()
    }

    /// Payloads that came to an end.
    fn payloads(&mut self, end: u32) -> Vec<Vec<u8>> {
        let packets = self.came.drain(..).filter(|(to, _)| to.0 == end);
        let payload = |packet: &Vec<u8>| {
            let packet = Packet::read_checked(packet).unwrap();
            packet.transport().unwrap().payload.to_vec()
        };
        packets.map(|(_, packet)| payload(&packet)).collect()
    }

    /// Sends an SMP from end 0 and gives back the answer, if one comes.
    fn ask(&mut self, mut smp: Smp) -> Option<Smp> {
        self.tid += 1;
        smp.header.tid = self.tid;
        if smp.is_directed() {
            // The sender's own interface.
            let host = Smi {
                is_switch: false,
                ports: 1,
            };
            assert_eq!(host.originate(&mut smp), Ok(Turn::Out { port: 1 }));
        }
        self.send(0, &smp_packet(&smp));
        self.run_for(Duration::from_micros(100));
        let came = self.came.iter().position(|(end, packet)| {
            let smp = smp_of(packet);
            end.0 == 0 && smp.is_some_and(|smp| smp.header.tid == self.tid)
        })?;
        let (_, packet) = self.came.remove(came)?;
        let answer = smp_of(&packet)?;
        assert_eq!(answer.header.method, Method::GET_RESP);
        Some(answer)
    }

    fn get<A: Attribute>(&mut self, path: &[u8], modifier: u32) -> A {
        let smp = Smp::directed(Method::GET, A::ID, modifier, path).unwrap();
        self.ask(smp).unwrap().get().unwrap()
    }

    fn set<A: Attribute>(&mut self, path: &[u8], modifier: u32, value: &A) -> MadStatus {
        let mut smp = Smp::directed(Method::SET, A::ID, modifier, path).unwrap();
        smp.put(value).unwrap();
        let status = self.ask(smp).unwrap().header.status;
        MadStatus(status.0 & !MadStatus::DIRECTION)
    }

    fn set_port(&mut self, path: &[u8], port: u8, change: impl FnOnce(&mut PortInfo)) -> MadStatus {
        let mut info: PortInfo = self.get(path, port.into());
        (info.state, info.phys_state) = (State::NO_CHANGE, PortPhysState::NO_CHANGE);
        change(&mut info);
        self.set(path, port.into(), &info)
    }

    /// Makes the one switch behind end 0 forward: LID 1 + *n* behind its port *n*, itself LID 1.
    fn bring_up_star(&mut self) {
        let switch: NodeInfo = self.get(&[1], 0);
        assert_eq!(switch.node_type, NodeType::SWITCH);
        self.bring_up_switch(&[1], Lid(1), switch.num_ports, |port| Some(port + 1));
    }

    /// Brings up all ports of a switch; `lid_of` says which LID is behind a port.
    fn bring_up_switch(
        &mut self,
        path: &[u8],
        lid: Lid,
        ports: u8,
        lid_of: impl Fn(u8) -> Option<u8>,
    ) {
        let status = self.set_port(path, 0, |info| {
            (info.lid, info.master_sm_lid) = (lid, Lid(2));
        });
        assert_eq!(status, MadStatus::OK);
        let mut table = LinearForwardingTable { ports: [0xff; 64] };
        table.ports[usize::from(lid.0)] = 0;
        for port in 1..=ports {
            if let Some(lid) = lid_of(port) {
                table.ports[usize::from(lid)] = port;
            }
        }
        assert_eq!(self.set(path, 0, &table), MadStatus::OK);
        let mut info: SwitchInfo = self.get(path, 0);
        info.linear_fdb_top = Lid(63);
        assert_eq!(self.set(path, 0, &info), MadStatus::OK);
        for port in 1..=ports {
            for state in [State::ARMED, State::ACTIVE] {
                let set = self.set_port(path, port, |info| {
                    info.state = state;
                    info.neighbor_mtu = MtuCode::from(Mtu::Mtu2048);
                });
                assert_eq!(set, MadStatus::OK, "port {port}");
            }
        }
    }
}

fn lrh(vl: u8, dlid: Lid, slid: Lid) -> Lrh {
    Lrh {
        vl: Vl::new(vl),
        sl: Sl::new(0),
        lnh: Lnh::Local,
        dlid,
        pkt_len: PktLen::default(),
        slid,
    }
}

fn written(headers: &Headers, payload: &[u8]) -> Vec<u8> {
    let mut room = [0; MAX_PACKET];
    headers.write(payload, &mut room).unwrap().to_vec()
}

fn datagram(lrh: Lrh, grh: Option<Grh>, dest_qp: Qpn, q_key: QKey, payload: &[u8]) -> Vec<u8> {
    let src_qp = if lrh.vl.is_management() {
        Qpn::SMI
    } else {
        Qpn::GSI
    };
    let headers = Headers {
        lrh,
        grh,
        bth: Bth::new(Opcode::UD_SEND_ONLY, PKey::DEFAULT, dest_qp, Psn::new(0)),
        extended: Extended::datagram(Deth { q_key, src_qp }),
    };
    written(&headers, payload)
}

fn smp_packet(smp: &Smp) -> Vec<u8> {
    let (dlid, slid) = if smp.is_directed() {
        (Lid::PERMISSIVE, Lid::PERMISSIVE)
    } else {
        (Lid(1), Lid(2))
    };
    datagram(
        lrh(15, dlid, slid),
        None,
        Qpn::SMI,
        QKey(0),
        &smp.to_bytes(),
    )
}

fn smp_of(packet: &[u8]) -> Option<Smp> {
    let packet = Packet::read_checked(packet).ok()?;
    let transport = packet.transport()?;
    let payload: &[u8; 256] = transport.payload.try_into().ok()?;
    (transport.bth.dest_qp == Qpn::SMI).then(|| Smp::from_bytes(payload))
}

/// Data from the host behind port `from` of a star to that behind `to`, whose LIDs are one more.
fn data(from: u8, to: u8, payload: &[u8]) -> Vec<u8> {
    let lrh = lrh(0, Lid(u16::from(to) + 1), Lid(u16::from(from) + 1));
    datagram(lrh, None, Qpn::new(0x48), QKey(1), payload)
}

fn star_of(hosts: u8) -> Bench {
    let mut bench = Bench::new(&star(hosts), Options::default());
    bench.bring_up_star();
    bench
}

#[test]
fn two_ports_train_to_what_both_can_do_and_packets_take_their_time() {
    let mut bench = Bench::new(&back_to_back(), Options::default());
    assert_eq!(bench.links, [(WireEnd(0), true), (WireEnd(1), true)]);
    let port = bench.fabric.port(WireEnd(0)).unwrap();
    assert_eq!(bench.fabric.link(port), Some(LinkParameters::X4_SDR));
    let packet = data(1, 2, &[0; 62]);
    let start = bench.now;
    assert!(bench.send(0, &packet) && bench.send(0, &packet));
    let first = start.0 + packet.len() as u64 + 25;
    assert_eq!(
        bench.fabric.next_event().map(|at| at.0),
        Some(start.0 + packet.len() as u64)
    );
    bench.run_for(Duration::from_nanos(first - start.0 - 1));
    assert_eq!(bench.came.len(), 0);
    bench.run_for(Duration::from_nanos(1));
    assert_eq!(bench.came.len(), 1, "8 Gbit/s and 25 ns");
    bench.run_for(Duration::from_nanos(packet.len() as u64));
    assert_eq!(bench.came.len(), 2, "the second right behind the first");
}

#[test]
fn the_node_behind_each_port_of_a_switch_is_found_by_its_path() {
    // One host of the test, two of the fabric's own, which answer for themselves.
    let topology = star(3);
    let mut bench = Bench::of(&topology, Options::default(), |index| index == 1);
    let info: NodeInfo = bench.get(&[1], 0);
    assert_eq!(
        (info.node_type, info.num_ports, info.local_port_num),
        (NodeType::SWITCH, 3, 1)
    );
    for port in [2, 3] {
        let info: NodeInfo = bench.get(&[1, port], 0);
        let spec = &topology.nodes[usize::from(port)];
        assert_eq!((info.node_type, info.node_guid), (NodeType::CA, spec.guid));
        assert_eq!(info.port_guid, spec.port_guid(1));
        let port_info: PortInfo = bench.get(&[1, port], 0);
        assert_eq!(port_info.state, State::INIT);
    }
    // A path that leads nowhere has no answer.
    let smp = Smp::directed(Method::GET, AttributeId::NODE_INFO, 0, &[1, 4]).unwrap();
    assert_eq!(bench.ask(smp), None);
}

#[test]
fn a_route_over_several_switches_and_back() {
    let mut bench = Bench::new(&line(4, 1), Options::default());
    // Port 1 leads to the host, 2 back, 3 on.
    let path: Vec<u8> = vec![1, 3, 3, 3];
    let far: NodeInfo = bench.get(&path, 0);
    assert_eq!((far.node_type, far.local_port_num), (NodeType::SWITCH, 2));
    let own: NodeInfo = bench.get(&path[..1], 0);
    assert_ne!(own.node_guid, far.node_guid);
}

#[test]
fn data_goes_where_the_table_says_and_only_when_the_ports_are_active() {
    let mut bench = Bench::new(&star(3), Options::default());
    bench.send(0, &data(1, 3, b"early"));
    bench.run_for(Duration::from_micros(10));
    assert!(bench.came.is_empty(), "nobody has set the ports up");
    bench.bring_up_star();
    bench.send(0, &data(1, 3, b"hello"));
    bench.send(2, &data(3, 2, b"there"));
    bench.send(1, &data(2, 9, b"nobody"));
    bench.run_for(Duration::from_micros(10));
    let mut came: Vec<(u32, Vec<u8>)> = Vec::new();
    for (end, packet) in bench.came.drain(..) {
        check_vcrc(&packet).unwrap();
        let packet = Packet::read_checked(&packet).unwrap();
        came.push((end.0, packet.transport().unwrap().payload.to_vec()));
    }
    came.sort();
    assert_eq!(came, [(1, b"there".to_vec()), (2, b"hello".to_vec())]);
    let counts = &bench.fabric.node(0).unwrap().port(2).unwrap().counts;
    assert_eq!(counts.rcv_switch_relay_errors.total(), 1, "LID 10");
    assert_eq!((counts.xmit_pkts.total(), counts.rcv_pkts.total()), (1, 1));
}

#[test]
fn a_group_reaches_all_its_members_but_the_sender() {
    let mut bench = star_of(4);
    let mut groups = MulticastForwardingTable::default();
    groups.masks[0] = 0b10110;
    assert_eq!(bench.set(&[1], 0, &groups), MadStatus::OK);
    let mgid = Gid([0xff; 16]);
    let grh = Grh {
        traffic_class: 0,
        flow_label: FlowLabel::new(0),
        pay_len: 0,
        nxt_hdr: 0,
        hop_limit: 0,
        sgid: Gid::NONE,
        dgid: mgid,
    };
    let lrh = lrh(0, Lid(0xc000), Lid(2));
    let packet = datagram(lrh, Some(grh), Qpn::MULTICAST, QKey(1), b"all");
    bench.send(0, &packet);
    bench.run_for(Duration::from_micros(10));
    let mut ends: Vec<u32> = bench.came.iter().map(|(end, _)| end.0).collect();
    ends.sort_unstable();
    assert_eq!(ends, [1, 3], "ports 2 and 4; port 1 sent it");
    assert!(bench.came.iter().all(|(_, came)| *came == packet));
    assert_eq!(bench.fabric.held(0), 0);
}

#[test]
fn a_switch_answers_at_its_lid_too_and_counts_for_the_performance_manager() {
    let mut bench = star_of(2);
    let smp = Smp::lid_routed(Method::GET, AttributeId::NODE_INFO, 0);
    let info: NodeInfo = bench.ask(smp).unwrap().get().unwrap();
    assert_eq!(info.num_ports, 2);
    bench.send(0, &data(1, 2, &[0; 100]));
    bench.run_for(Duration::from_micros(10));
    bench.came.clear();
    let mut mad = Mad::ZERO;
    mad.set_header(&MadHeader {
        base_version: 1,
        class: MgmtClass::PERF,
        class_version: 1,
        method: Method::GET,
        attribute: AttributeId::PORT_COUNTERS,
        tid: 9,
        ..MadHeader::default()
    });
    let select = PortCounters {
        port_select: 2,
        ..PortCounters::default()
    };
    mad.put(&select).unwrap();
    let to_switch = lrh(0, Lid(1), Lid(2));
    bench.send(0, &datagram(to_switch, None, Qpn::GSI, QKey::GSI, &mad.0));
    bench.run_for(Duration::from_micros(10));
    let answer = bench.payloads(0).remove(0);
    let answer = Mad(answer.try_into().unwrap());
    assert_eq!(answer.header().method, Method::GET_RESP);
    let counters: PortCounters = answer.get().unwrap();
    assert_eq!(
        (counters.xmit_pkts, counters.xmit_data),
        (1, (8 + 12 + 8 + 100 + 4) / 4)
    );
    // Another class has nobody to answer, and says so; a wrong Q_Key is a violation.
    let mut header = mad.header();
    header.class = MgmtClass::BM;
    mad.set_header(&header);
    bench.send(0, &datagram(to_switch, None, Qpn::GSI, QKey::GSI, &mad.0));
    bench.send(0, &datagram(to_switch, None, Qpn::GSI, QKey(7), &mad.0));
    bench.run_for(Duration::from_micros(10));
    let answers = bench.payloads(0);
    let status = |mad: &Vec<u8>| Mad::from_prefix(mad).unwrap().header().status;
    let refused: Vec<_> = answers.iter().map(status).collect();
    assert!(
        refused.contains(&MadStatus::UNSUPPORTED_METHOD_ATTRIBUTE),
        "{refused:?}"
    );
    let port0 = bench.fabric.node(0).unwrap().port(0).unwrap();
    assert_eq!(port0.info.q_key_violations, 1);
}

#[test]
fn a_link_that_flaps_is_down_then_up_and_the_manager_hears_of_it() {
    let mut bench = star_of(3);
    // The trap about the links that came up before the switch had a LID; it may have been sent before there was a way.
    let repress = |bench: &mut Bench| {
        bench.run_for(Duration::from_millis(1100));
        let traps: Vec<Smp> = bench
            .came
            .drain(..)
            .filter_map(|(_, p)| smp_of(&p))
            .collect();
        for trap in &traps {
            let repress = trap.reply(MadStatus::OK).unwrap();
            bench.send(0, &smp_packet(&repress));
        }
        bench.run_for(Duration::from_millis(1));
        traps.len()
    };
    while repress(&mut bench) > 0 {}
    let mut info: SwitchInfo = bench.get(&[1], 0);
    bench.set(&[1], 0, &info); // clears the change bit
    bench.links.clear();
    let port = PortRef::new(0, 3);
    bench
        .fabric
        .plug(port, false, bench.now.after(Duration::from_micros(5)));
    bench
        .fabric
        .plug(port, true, bench.now.after(Duration::from_micros(50)));
    bench.run_for(Duration::from_micros(20));
    assert_eq!(bench.links, [(WireEnd(2), false)]);
    assert_eq!(bench.fabric.link(port), None);
    let (end, packet) = bench.came.pop_front().unwrap();
    let trap = smp_of(&packet).unwrap();
    let notice: Notice = trap.get().unwrap();
    assert_eq!((end.0, trap.header.method), (0, Method::TRAP));
    assert_eq!(
        (notice.number, notice.issuer_lid),
        (TrapNumber::LINK_STATE_CHANGE, Lid(1))
    );
    info = bench.get(&[1], 0);
    assert!(info.port_state_change);
    let down: PortInfo = bench.get(&[1], 3);
    assert_eq!(down.state, State::DOWN);
    bench.run_for(Duration::from_micros(200));
    let again: PortInfo = bench.get(&[1], 3);
    assert_eq!(
        (again.state, again.phys_state),
        (State::INIT, PortPhysState::LINK_UP)
    );
    assert_eq!(bench.links.last(), Some(&(WireEnd(2), true)));
    let counts = &bench.fabric.node(0).unwrap().port(3).unwrap().counts;
    assert_eq!(counts.link_downed.total(), 1);
}

#[test]
fn a_port_set_down_over_its_own_link_still_answers_and_trains_anew() {
    let mut bench = star_of(2);
    bench.links.clear();
    let status = bench.set_port(&[1], 1, |info| info.state = State::DOWN);
    assert_eq!(status, MadStatus::OK);
    bench.run_for(Duration::from_micros(300));
    assert_eq!(bench.links, [(WireEnd(0), false), (WireEnd(0), true)]);
    let info: PortInfo = bench.get(&[1], 1);
    assert_eq!(info.state, State::INIT);
    let status = bench.set_port(&[1], 2, |info| info.phys_state = PortPhysState::DISABLED);
    assert_eq!(status, MadStatus::OK);
    bench.run_for(Duration::from_millis(1));
    let info: PortInfo = bench.get(&[1], 2);
    assert_eq!(
        (info.state, info.phys_state),
        (State::DOWN, PortPhysState::DISABLED)
    );
    assert_eq!(bench.fabric.link(PortRef::new(0, 2)), None);
}

#[test]
fn a_link_trains_to_the_width_that_is_enabled() {
    let mut bench = star_of(2);
    bench.set_port(&[1], 2, |info| {
        info.link_width_enabled = core_ib::wire::mad::LinkWidth::X1;
        info.state = State::DOWN;
    });
    bench.run_for(Duration::from_millis(1));
    let link = bench.fabric.link(PortRef::new(0, 2)).unwrap();
    assert_eq!((link.width, link.mbit()), (LinkWidth::X1, 2000));
    let info: PortInfo = bench.get(&[1], 2);
    assert_eq!(info.link_width_active, core_ib::wire::mad::LinkWidth::X1);
}

#[test]
fn what_is_on_the_way_when_a_link_goes_down_is_lost_and_nothing_leaks() {
    let mut bench = star_of(2);
    for _ in 0..10 {
        bench.send(0, &data(1, 2, &[1; 1000]));
    }
    let port = PortRef::new(0, 2);
    bench
        .fabric
        .plug(port, false, bench.now.after(Duration::from_micros(5)));
    bench.run_for(Duration::from_millis(1));
    let came = bench.payloads(1).len();
    assert!((1..10).contains(&came), "{came}");
    assert_eq!(bench.fabric.held(0), 0);
    let full = Options::default().buffer_blocks;
    let host = bench.fabric.port(WireEnd(0)).unwrap();
    assert_eq!(bench.fabric.credits(host).unwrap(), [full; 15]);
}

#[test]
fn a_full_queue_refuses_and_tells_when_there_is_room() {
    let mut bench = star_of(2);
    let packet = data(1, 2, &[0; 2000]);
    let sent = (0..100).take_while(|_| bench.send(0, &packet)).count();
    let depth = Options::default().queue_depth;
    assert_eq!(sent, depth + 1, "one is on the line");
    assert!(!bench.send(0, &packet));
    bench.run_for(Duration::from_micros(100));
    assert_eq!(bench.rooms, [(WireEnd(0), 0)]);
    assert_eq!(bench.payloads(1).len(), sent);
}

#[test]
fn management_packets_beyond_the_places_are_dropped_and_counted() {
    let options = Options {
        vl15_slots: 3,
        agent_time: Duration::from_millis(1),
        ..Options::default()
    };
    let mut bench = Bench::new(&star(2), options);
    for tid in 0..10 {
        let mut smp = Smp::directed(Method::GET, AttributeId::NODE_INFO, 0, &[1]).unwrap();
        smp.header.hop_pointer = 1;
        smp.header.tid = tid;
        bench.send(0, &smp_packet(&smp));
    }
    bench.run_for(Duration::from_millis(20));
    assert_eq!(bench.came.len(), 3);
    let counts = &bench.fabric.node(0).unwrap().port(1).unwrap().counts;
    assert_eq!(counts.vl15_dropped.total(), 7);
}

/// Two switches; the link to the second host is four times slower than the others.
fn bottleneck(hoq: u8) -> Bench {
    let mut topology = line(2, 1);
    // Cables: host 1, host 2, between the switches.
    topology.cables[1].width = Some(LinkWidth::X1);
    let options = Options {
        buffer_blocks: 70,
        queue_depth: 1000,
        ..Options::default()
    };
    let mut bench = Bench::new(&topology, options);
    // LIDs: switch 1, host 2, switch 3, host 4. Port 1 host, 2 back, 3 on.
    bench.bring_up_ports(&[1], Lid(1), &[(2, 1), (3, 3), (4, 3)], &[1, 3], hoq);
    bench.bring_up_ports(&[1, 3], Lid(3), &[(1, 2), (2, 2), (4, 1)], &[1, 2], hoq);
    bench
}

impl Bench {
    fn bring_up_ports(&mut self, path: &[u8], lid: Lid, ways: &[(u8, u8)], up: &[u8], hoq: u8) {
        let status = self.set_port(path, 0, |info| info.lid = lid);
        assert_eq!(status, MadStatus::OK);
        let mut table = LinearForwardingTable { ports: [0xff; 64] };
        for (lid, port) in ways {
            table.ports[usize::from(*lid)] = *port;
        }
        self.set(path, 0, &table);
        let mut info: SwitchInfo = self.get(path, 0);
        info.linear_fdb_top = Lid(63);
        self.set(path, 0, &info);
        for &port in up {
            for state in [State::ARMED, State::ACTIVE] {
                let set = self.set_port(path, port, |info| {
                    info.state = state;
                    info.neighbor_mtu = MtuCode::from(Mtu::Mtu2048);
                    info.hoq_life = TimeCode(hoq);
                });
                assert_eq!(set, MadStatus::OK, "port {port}");
            }
        }
    }
}

fn from_2_to_4(payload: &[u8]) -> Vec<u8> {
    datagram(
        lrh(0, Lid(4), Lid(2)),
        None,
        Qpn::new(0x48),
        QKey(1),
        payload,
    )
}

#[test]
fn a_slow_link_holds_the_others_back_and_loses_nothing() {
    let mut bench = bottleneck(20);
    for _ in 0..100 {
        assert!(bench.send(0, &from_2_to_4(&[3; 2000])));
    }
    bench.run_for(Duration::from_millis(2));
    assert_eq!(bench.payloads(1).len(), 100);
    let counts = |node: usize, port| bench.fabric.node(node).unwrap().port(port).unwrap().counts;
    let last = bench.fabric.node(2).unwrap();
    assert_eq!(last.port(1).unwrap().counts.xmit_discards.total(), 0);
    assert!(
        counts(0, 3).xmit_wait.total() > 100_000,
        "nanoseconds without credit"
    );
}

#[test]
fn a_head_that_waits_too_long_is_dropped_and_a_lane_that_drops_too_often_stalls() {
    let mut bench = bottleneck(0); // 4.096 us; a packet takes 8 us on the slow link
    for _ in 0..100 {
        bench.send(0, &from_2_to_4(&[3; 2000]));
    }
    bench.run_for(Duration::from_millis(2));
    let came = bench.payloads(1).len() as u64;
    let dropped = |bench: &Bench| {
        let switches = [0, 2].map(|node| bench.fabric.node(node).unwrap());
        let ports = switches
            .iter()
            .flat_map(|node| [1, 2, 3].map(|p| node.port(p).unwrap()));
        ports
            .map(|port| port.counts.xmit_discards.total())
            .sum::<u64>()
    };
    assert!(came > 0 && dropped(&bench) > 0);
    assert_eq!(came + dropped(&bench), 100, "all accounted for");
    let held = [0, 2].map(|node| bench.fabric.held(node));
    assert_eq!(held, [0, 0]);
    // With a stall count, more go at once.
    let before = dropped(&bench);
    bench.set_port(&[1], 3, |info| info.vl_stall_count = 1);
    for _ in 0..100 {
        bench.send(0, &from_2_to_4(&[3; 2000]));
    }
    bench.run_for(Duration::from_millis(2));
    assert!(dropped(&bench) - before > before);
}

/// Nodes and cables that a sweep from the first outside port finds: GUIDs, and pairs of (GUID, port), the lesser first.
type Found = (BTreeSet<u64>, BTreeSet<[(u64, u8); 2]>);

fn sweep(bench: &mut Bench) -> Found {
    let mut nodes = BTreeSet::new();
    let mut cables = BTreeSet::new();
    // Paths to look at, and the switch port that each leaves by last.
    let mut paths = VecDeque::from([(vec![1_u8], None)]);
    while let Some((path, by)) = paths.pop_front() {
        let info: NodeInfo = bench.get(&path, 0);
        let guid = info.node_guid.0;
        if let Some(near) = by {
            let mut ends = [near, (guid, info.local_port_num)];
            ends.sort_unstable();
            cables.insert(ends);
        }
        if !nodes.insert(guid) || info.node_type != NodeType::SWITCH {
            continue;
        }
        for port in 1..=info.num_ports {
            let port_info: PortInfo = bench.get(&path, port.into());
            if port_info.state != State::DOWN && port != info.local_port_num {
                let further = path.iter().copied().chain([port]).collect();
                paths.push_back((further, Some((guid, port))));
            }
        }
    }
    (nodes, cables)
}

#[test]
fn a_sweep_finds_every_node_and_every_cable_of_any_topology() {
    let shape = |radix, levels, parts| FatTree {
        radix,
        levels,
        parts,
    };
    let topologies = [
        star(4),
        line(3, 2),
        ring(5, 1),
        fat_tree(shape(4, 3, 4)).unwrap(),
        fat_tree(shape(6, 2, 6)).unwrap(),
    ];
    for topology in topologies {
        let first = topology.of_kind(topology::NodeKind::Ca).next().unwrap();
        let mut bench = Bench::of(&topology, Options::default(), |index| index == first);
        let (nodes, cables) = sweep(&mut bench);
        // The sweep begins behind its own port.
        let all: BTreeSet<u64> = topology.nodes.iter().map(|node| node.guid.0).collect();
        let own = topology.nodes[first].guid.0;
        let missing: Vec<_> = all.difference(&nodes).collect();
        assert_eq!(missing, [&own]);
        let expected = topology.cables.iter().map(|cable| {
            let mut ends = cable
                .ends
                .map(|end| (topology.nodes[end.node].guid.0, end.port));
            ends.sort_unstable();
            ends
        });
        let expected: BTreeSet<_> = expected
            .filter(|ends| ends.iter().all(|(guid, _)| *guid != own))
            .collect();
        assert_eq!(cables, expected);
    }
}

/// Traffic of a seed over a star with faults: what came, what was sent, the capture.
fn storm(seed: u64, faults: Faults, packets: usize) -> (Vec<Vec<u8>>, usize, Vec<u8>, Bench) {
    let options = Options {
        seed,
        queue_depth: 10_000,
        ..Options::default()
    };
    let mut bench = Bench::new(&star(4), options);
    bench.bring_up_star();
    bench.came.clear();
    let memory = Memory::default();
    let capture = Capture::new(memory.clone()).unwrap();
    bench.fabric.tap_all(&capture);
    let handle = FaultHandle::new(faults);
    for node in 0..5 {
        for port in 1..=4 {
            bench.fabric.make_faulty(PortRef::new(node, port), &handle);
        }
    }
    let mut dice = crate::machine::SplitMix64::named(seed, "traffic");
    for number in 0..packets {
        let from = dice.below(4) as u8;
        let to = dice.below(4) as u8;
        let len = dice.below(2000) as usize;
        let mut payload = vec![number as u8; len];
        payload.extend_from_slice(&(number as u32).to_be_bytes());
        if from != to {
            bench.send(from.into(), &data(from + 1, to + 1, &payload));
        }
        bench.run_for(Duration::from_nanos(dice.below(1500)));
    }
    bench.run_for(Duration::from_millis(5));
    let mut good = Vec::new();
    let mut bad = 0;
    for (_, packet) in bench.came.drain(..) {
        match Packet::read_checked(&packet) {
            Ok(packet) => good.push(packet.transport().unwrap().payload.to_vec()),
            Err(_) => bad += 1,
        }
    }
    (good, bad, memory.bytes(), bench)
}

/// All buffers are empty and all credits are back.
fn is_at_rest(bench: &Bench) {
    assert_eq!(bench.fabric.held(0), 0);
    let full = Options::default().buffer_blocks;
    for node in 0..5 {
        for port in 1..=4 {
            if let Some(credits) = bench.fabric.credits(PortRef::new(node, port)) {
                assert_eq!(credits, [full; 15], "node {node} port {port}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn whatever_goes_wrong_nothing_is_corrupted_silently_and_all_credits_come_back(
        seed: u64, drop in 0..300_000_u32, corrupt in 0..300_000_u32,
        delay in 0..300_000_u32, duplicate in 0..300_000_u32,
    ) {
        let delay_max = Duration::from_micros(20);
        let faults = Faults { drop, corrupt, delay, delay_max, duplicate };
        let (good, _, _, bench) = storm(seed, faults, 200);
        for payload in good {
            let (body, number) = payload.split_at(payload.len() - 4);
            prop_assert!(body.iter().all(|byte| *byte == number[3]), "silently");
        }
        is_at_rest(&bench);
    }

    #[test]
    fn no_bytes_whatever_that_a_host_sends_upset_the_fabric(
        packets in prop::collection::vec(
            (
                0..4_u32,
                any::<bool>(),
                prop::collection::vec((0..320_usize, any::<u8>()), 0..4),
                prop_oneof![3 => Just(0_usize), 1 => 0..300_usize],
                prop_oneof![Just(None), (0..6_u8).prop_map(Some)],
            ),
            1..40,
        ),
    ) {
        let mut bench = star_of(4);
        for (end, is_smp, damage, cut, hop) in packets {
            let mut smp = Smp::directed(Method::SET, AttributeId::PORT_INFO, 0, &[1, 2]).unwrap();
            smp.header.hop_pointer = 1;
            let mut bytes = if is_smp { smp_packet(&smp) } else { data(1, 3, &[7; 280]) };
            let len = bytes.len();
            for (at, value) in damage {
                bytes[at % len] = value;
            }
            if let (true, Some(hop)) = (is_smp, hop) {
                bytes[0x1c + 6] = hop;
            }
            let _ = core_ib::wire::packet::seal(&mut bytes);
            bytes.truncate(len.saturating_sub(cut));
            bench.send(end, &bytes);
            bench.run_for(Duration::from_nanos(700));
        }
        bench.run_for(Duration::from_millis(2));
        prop_assert_eq!(bench.fabric.held(0), 0);
    }

    #[test]
    fn the_same_seed_gives_the_same_capture_byte_for_byte(seed: u64) {
        let faults = Faults {
            drop: 100_000,
            corrupt: 100_000,
            delay: 100_000,
            delay_max: Duration::from_micros(3),
            duplicate: 100_000,
        };
        let (first, _, capture, _) = storm(seed, faults, 60);
        let (second, _, again, _) = storm(seed, faults, 60);
        prop_assert_eq!(first, second);
        prop_assert!(capture == again, "captures differ");
        let (_, _, other, _) = storm(seed ^ 1, faults, 60);
        prop_assert!(capture != other, "the seed has no part in it");
    }
}

#[test]
fn without_faults_everything_comes() {
    let (good, bad, capture, bench) = storm(3, Faults::default(), 300);
    let sent = bench
        .fabric
        .node(0)
        .unwrap()
        .port(1)
        .unwrap()
        .counts
        .rcv_pkts
        .total();
    assert!(sent > 0);
    let all: u64 = (1..=4)
        .map(|port| {
            bench
                .fabric
                .node(0)
                .unwrap()
                .port(port)
                .unwrap()
                .counts
                .rcv_pkts
                .total()
        })
        .sum();
    assert_eq!((good.len() as u64, bad), (all, 0));
    assert!(capture.len() as u64 > all * 2 * 60);
    is_at_rest(&bench);
}

#[test]
fn a_vl_that_the_switch_chooses_is_in_the_packet_that_comes_out() {
    let mut bench = star_of(2);
    let table = core_ib::wire::mad::SlToVlMappingTable::new([1; 16]);
    assert_eq!(bench.set(&[1], 0x0102, &table), MadStatus::OK);
    let status = bench.set_port(&[1], 2, |info| info.operational_vls = VlCode(2));
    assert_eq!(status, MadStatus::OK);
    bench.send(0, &data(1, 2, b"lane"));
    bench.run_for(Duration::from_micros(10));
    let (_, packet) = bench.came.pop_front().unwrap();
    let read = Packet::read_checked(&packet).unwrap();
    assert_eq!(read.lrh.vl, Vl::new(1));
}
