//! Whatever the topology, and whatever happens: the subnet comes up, and nothing that comes by the wire does harm.

mod fabric;

use core_ib::wire::mad::{Attribute, JoinState, Mad, McMemberRecord, Method, SaHeader};
use core_ib::{Gid, Lid, PKey, QKey, Qpn};
use fabric::{Fabric, checks};
use ib_sm::{Config, Profile, Role};
use platform_sim::fabric::Topology;
use platform_sim::fabric::topology::{NodeKind, NodeSpec, PortRef};
use proptest::prelude::*;
use std::collections::HashMap;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

/// Switches with random cables between them, and hosts of one or two ports anywhere.
#[derive(Clone, Debug)]
struct Shape {
    switches: usize,
    cables: Vec<(usize, usize)>,
    hosts: Vec<(usize, Option<usize>)>,
}

fn shape() -> impl Strategy<Value = Shape> {
    (1..9_usize, 2..12_usize).prop_flat_map(|(switches, hosts)| {
        let cables = proptest::collection::vec((0..switches, 0..switches), 0..2 * switches);
        let second = proptest::option::weighted(0.2, 0..switches);
        let hosts = proptest::collection::vec((0..switches, second), hosts);
        (Just(switches), cables, hosts).prop_map(|(switches, cables, hosts)| Shape {
            switches,
            cables,
            hosts,
        })
    })
}

fn build(shape: &Shape) -> Topology {
    let mut topology = Topology::default();
    for number in 0..shape.switches {
        let guid = core_ib::Guid(0x2000 + number as u64 * 16);
        topology.nodes.push(NodeSpec::new(
            NodeKind::Switch,
            format!("s{number}"),
            guid,
            60,
        ));
    }
    let mut next = vec![1_u8; shape.switches];
    let mut port = |switch: usize| {
        next[switch] += 1;
        PortRef::new(switch, next[switch] - 1)
    };
    for &(a, b) in &shape.cables {
        let (a, b) = (port(a), port(b));
        topology.connect(a, b);
    }
    for (number, &(first, second)) in shape.hosts.iter().enumerate() {
        let guid = core_ib::Guid(0x1000 + number as u64 * 16);
        let ports = 1 + u8::from(second.is_some());
        topology.nodes.push(NodeSpec::new(
            NodeKind::Ca,
            format!("h{number}"),
            guid,
            ports,
        ));
        let node = topology.nodes.len() - 1;
        topology.connect(port(first), PortRef::new(node, 1));
        if let Some(second) = second {
            topology.connect(port(second), PortRef::new(node, 2));
        }
    }
    topology
}

#[derive(Clone, Debug)]
enum Mischief {
    Pull(prop::sample::Index),
    Plug(prop::sample::Index),
    Off(prop::sample::Index),
    On(prop::sample::Index),
    Wait(u16),
}

fn mischief() -> impl Strategy<Value = Mischief> {
    prop_oneof![
        any::<prop::sample::Index>().prop_map(Mischief::Pull),
        any::<prop::sample::Index>().prop_map(Mischief::Plug),
        any::<prop::sample::Index>().prop_map(Mischief::Off),
        any::<prop::sample::Index>().prop_map(Mischief::On),
        (0..400_u16).prop_map(Mischief::Wait),
    ]
}

fn config() -> Config<'static> {
    Config {
        sweep_interval: 2 * SECOND,
        poll_interval: SECOND,
        ..Config::default()
    }
}

fn start(shape: &Shape, lmc: u8) -> Fabric {
    let mut fabric = Fabric::new(build(shape));
    let profile = Profile {
        switch_ports: 60,
        ports: 800,
        ..Profile::for_hosts(64)
    };
    let profile = Profile {
        lids: 512,
        ..profile
    };
    let node = fabric.hosts()[0];
    fabric.seat(node, 1, &profile, Config { lmc, ..config() });
    fabric
}

fn settles(fabric: &mut Fabric) -> Result<(), TestCaseError> {
    let from = fabric.seats[0].node;
    let up = fabric.run_until(90 * SECOND, |fabric| {
        checks::subnet_is_up(fabric, from).is_ok()
    });
    let why = checks::subnet_is_up(fabric, from);
    prop_assert!(
        up,
        "{:?} {:?}",
        why,
        fabric.seats[0]
            .reports
            .iter()
            .rev()
            .take(20)
            .collect::<Vec<_>>()
    );
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_subnet_comes_up(shape in shape(), lmc in 0..3_u8) {
        let mut fabric = start(&shape, lmc);
        settles(&mut fabric)?;
        prop_assert_eq!(fabric.seats[0].sm.role(), Role::Master);
    }

    #[test]
    fn a_subnet_heals_whatever_happened_and_everybody_keeps_his_lid(
        shape in shape(),
        steps in proptest::collection::vec(mischief(), 1..12),
        loss in prop_oneof![2 => Just(0_u32), 1 => 0..4000_u32],
    ) {
        let mut fabric = start(&shape, 0);
        settles(&mut fabric)?;
        let mut lids = HashMap::new();
        fabric.loss = loss;
        let all: Vec<_> = fabric.topology.cables.iter().map(|cable| cable.ends).collect();
        for step in steps {
            for node in 0..fabric.nodes.len() {
                if fabric.lid(node).is_unicast() {
                    lids.insert(node, fabric.lid(node));
                }
            }
            match step {
                Mischief::Pull(which) => {
                    let [a, _] = *which.get(&all);
                    fabric.unplug(a);
                }
                Mischief::Plug(which) => {
                    let [a, b] = *which.get(&all);
                    if !fabric.cables.contains_key(&a) {
                        fabric.plug(a, b);
                    }
                }
                // The manager's own host stays on.
                Mischief::Off(which) => {
                    let node = which.index(fabric.nodes.len());
                    if node != fabric.seats[0].node && fabric.alive[node] {
                        fabric.power_off(node);
                    }
                }
                Mischief::On(which) => {
                    let node = which.index(fabric.nodes.len());
                    if !fabric.alive[node] {
                        fabric.power_on(node);
                    }
                }
                Mischief::Wait(millis) => fabric.run_for(Duration::from_millis(millis.into())),
            }
        }
        fabric.run_for(SECOND);
        fabric.loss = 0;
        for node in 0..fabric.nodes.len() {
            if !fabric.alive[node] {
                fabric.power_on(node);
            }
        }
        for [a, b] in all {
            if !fabric.cables.contains_key(&a) && a != b {
                fabric.plug(a, b);
            }
        }
        fabric.run_for(SECOND);
        settles(&mut fabric)?;
        for (node, lid) in lids {
            prop_assert_eq!(fabric.lid(node), lid, "node {}", node);
        }
    }

    #[test]
    fn every_member_of_a_group_hears_every_sender_once(
        shape in shape(),
        joins in proptest::collection::vec((any::<prop::sample::Index>(), 0..3_u8, 1..8_u8, any::<bool>()), 1..24),
        cut in proptest::option::of(any::<prop::sample::Index>()),
    ) {
        let mut fabric = start(&shape, 0);
        settles(&mut fabric)?;
        let mut hosts = fabric.hosts();
        hosts.retain(|&host| in_service(&fabric, host));
        let mut members: HashMap<(usize, u8), JoinState> = HashMap::new();
        let mut mlids = HashMap::new();
        for (tid, (host, low, state, leave)) in joins.into_iter().enumerate() {
            let node = *host.get(&hosts);
            let state = JoinState::from_bits_retain(state);
            let was = members.get(&(node, low)).copied().unwrap_or_default();
            let (method, state) = if leave { (Method::DELETE, was) } else { (Method::SET, state) };
            let answer = fabric.ask_and_wait(node, member(&fabric, tid, method, node, low, state));
            let answer = answer.expect("an answer");
            if answer.header().status.0 != 0 {
                continue;
            }
            let record: McMemberRecord = answer.get().unwrap();
            mlids.insert(low, record.mlid);
            members.insert((node, low), if leave { was - state } else { was | state });
            bury(&mut members);
        }
        if let Some(cut) = cut {
            let cables: Vec<_> = fabric.topology.cables.iter().map(|cable| cable.ends).collect();
            let [a, b] = *cut.get(&cables);
            // Only between switches, so that nobody leaves the groups.
            if [a, b].iter().all(|end| fabric.nodes[end.node].switch.is_some()) {
                fabric.unplug(a);
                fabric.run_for(SECOND);
                settles(&mut fabric)?;
            }
        }
        fabric.run_for(SECOND / 10);
        members.retain(|&(node, _), _| in_service(&fabric, node));
        bury(&mut members);
        for (&(sender, low), state) in &members {
            if state.is_empty() {
                continue;
            }
            let heard = checks::multicast(&fabric, sender, mlids[&low]);
            let receives = JoinState::FULL_MEMBER | JoinState::NON_MEMBER;
            let mut expected: Vec<_> = members.iter()
                .filter(|&(&(node, group), state)| {
                    group == low && node != sender && state.intersects(receives)
                })
                .map(|(&(node, _), _)| (node, 1))
                .collect();
            let mut heard: Vec<_> = heard.into_iter().collect();
            expected.sort_unstable();
            heard.sort_unstable();
            prop_assert_eq!(heard, expected, "group {} from node {}", low, sender);
        }
    }

    #[test]
    fn no_packet_does_harm(
        class in prop_oneof![Just(0x01_u8), Just(0x81), Just(0x03), any::<u8>()],
        method in prop_oneof![
            Just(1_u8), Just(2), Just(5), Just(6), Just(0x12), Just(0x14), Just(0x15), Just(0x81), Just(0x86), any::<u8>()
        ],
        attribute in prop_oneof![0..0x40_u16, Just(0xf3), any::<u16>()],
        tid in prop_oneof![0..0x2000_u32, any::<u32>()],
        mut bytes in proptest::collection::vec(any::<u8>(), 256),
        small_mask: bool,
        plain: bool,
    ) {
        let mut fabric = start(&Shape { switches: 2, cables: vec![(0, 1)], hosts: vec![(0, None), (1, None), (1, Some(0))] }, 0);
        settles(&mut fabric)?;
        let host = fabric.hosts()[0];
        bytes[..4].copy_from_slice(&[1, class, if class == 3 { 2 } else { 1 }, method]);
        bytes[8..16].copy_from_slice(&(0x100_0000_0000 | u64::from(tid)).to_be_bytes());
        bytes[16..18].copy_from_slice(&attribute.to_be_bytes());
        if plain && class == 3 {
            bytes[24..36].fill(0); // no RMPP
        }
        if small_mask {
            bytes[48..54].fill(0);
        }
        let mad = Mad(bytes.try_into().unwrap());
        let asker = fabric.lid(fabric.hosts()[1]);
        for slid in [asker, Lid(0x77), Lid(0)] {
            fabric.deliver(host, mad, slid, Qpn::GSI);
            fabric.wake(0);
            fabric.run_for(SECOND / 10);
        }
        fabric.sweep_now(0);
        fabric.run_for(SECOND);
        settles(&mut fabric)?;
    }
}

/// Groups that nobody keeps alive are gone, and their other members with them.
fn bury(members: &mut HashMap<(usize, u8), JoinState>) {
    let keeps = JoinState::FULL_MEMBER | JoinState::SEND_ONLY_FULL_MEMBER;
    let alive: Vec<u8> = members
        .iter()
        .filter(|(_, state)| state.intersects(keeps))
        .map(|(&(_, group), _)| group)
        .collect();
    members.retain(|(_, group), _| alive.contains(group));
}

/// Port 1 of a host hangs on the manager's subnet; that port 2 does is another matter.
fn in_service(fabric: &Fabric, host: usize) -> bool {
    let reached = checks::reachable(fabric, fabric.seats[0].node);
    let leaf = fabric.peer(PortRef::new(host, 1));
    leaf.is_some_and(|leaf| reached.contains(&leaf.node))
}

fn member(
    fabric: &Fabric,
    tid: usize,
    method: Method,
    node: usize,
    low: u8,
    state: JoinState,
) -> Mad {
    use McMemberRecord as M;
    let mut mgid = [0; 16];
    (mgid[0], mgid[1], mgid[2], mgid[15]) = (0xff, 0x12, 0x77, low);
    let record = M {
        mgid: Gid(mgid),
        port_gid: Gid::unicast(Gid::DEFAULT_PREFIX, fabric.guid(node)),
        join_state: state,
        q_key: QKey(0x0b1b),
        p_key: PKey(0xffff),
        ..M::default()
    };
    let mask = M::MGID
        | M::PORT_GID
        | M::JOIN_STATE
        | M::Q_KEY
        | M::P_KEY
        | M::TCLASS
        | M::SL
        | M::FLOW_LABEL;
    let mut header = SaHeader::request(method, M::ID, mask);
    header.header.tid = 0x5_0000_0000 + tid as u64;
    let mut mad = Mad::ZERO;
    mad.set_front(&header).unwrap();
    mad.put(&record).unwrap();
    mad
}
