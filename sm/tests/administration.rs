//! The administrator's answers, over the fabric.

mod fabric;

use core_ib::wire::FlowLabel;
use core_ib::wire::mad::{
    Attribute, ClassPortInfo, ComponentMask, GuidInfoRecord, InformInfo, InformInfoRecord,
    JoinState, LinearForwardingTableRecord, LinkRecord, Mad, MadStatus, McMemberRecord, Method,
    MtuCode, MulticastForwardingTableRecord, NodeRecord, NodeType, Notice, PKeyTableRecord,
    PathRecord, PortInfoRecord, Records, SaHeader, SaNotice, Selector, ServiceRecord,
    SlToVlMappingTableRecord, SmInfoRecord, SmKey, SwitchInfoRecord, TrapDetails, TrapNumber,
};
use core_ib::{Gid, Guid, Lid, Mtu, PKey, QKey, Qpn, Rate, Sl};
use fabric::{Fabric, checks};
use ib_sm::{Broadcast, Config, Membership, Partition};
use platform_sim::fabric::Topology;
use platform_sim::fabric::topology::build;
use std::collections::HashSet;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
const FULL: JoinState = JoinState::FULL_MEMBER;

fn up(topology: Topology, config: Config<'static>) -> Fabric {
    let mut fabric = Fabric::managed(topology, config);
    assert!(fabric.run_until(20 * SECOND, |fabric| fabric.seats[0].sm.is_serving()));
    fabric.run_for(SECOND / 10);
    fabric
}

fn tree() -> Topology {
    build::fat_tree(build::FatTree {
        radix: 8,
        levels: 2,
        parts: 4,
    })
    .unwrap()
}

fn gid(fabric: &Fabric, node: usize) -> Gid {
    Gid::unicast(Gid::DEFAULT_PREFIX, fabric.guid(node))
}

fn request<R: Attribute>(tid: u64, method: Method, record: &R, mask: ComponentMask) -> Mad {
    let mut header = SaHeader::request(method, R::ID, mask);
    header.header.tid = 0x5_0000_0000 + tid;
    let mut mad = Mad::ZERO;
    mad.set_front(&header).unwrap();
    mad.put(record).unwrap();
    mad
}

/// Asks from a host; the record in the answer, or its status.
fn ask<R: Attribute>(
    fabric: &mut Fabric,
    node: usize,
    method: Method,
    record: &R,
    mask: ComponentMask,
) -> Result<R, MadStatus> {
    let tid = fabric.now.0;
    let answer = fabric
        .ask_and_wait(node, request(tid, method, record, mask))
        .expect("an answer");
    let header: SaHeader = answer.front().unwrap();
    assert_eq!(header.header.attribute, R::ID);
    assert_eq!(Some(header.header.method), method.response());
    assert_eq!(header.sm_key, SmKey(0));
    if header.header.status != MadStatus::OK {
        return Err(header.header.status);
    }
    Ok(answer.get().unwrap())
}

fn table<R: Attribute>(
    fabric: &mut Fabric,
    node: usize,
    record: &R,
    mask: ComponentMask,
) -> Vec<R> {
    let tid = fabric.now.0;
    let mad = request(tid, Method::GET_TABLE, record, mask);
    let (first, data) = fabric.ask_table(node, mad).expect("a table");
    let header: SaHeader = first.front().unwrap();
    assert_eq!(header.header.method, Method::GET_TABLE_RESP);
    assert_eq!(
        data.len(),
        data.len() / (R::SIZE.div_ceil(8) * 8) * (R::SIZE.div_ceil(8) * 8)
    );
    Records::<R>::new(&data, header.attribute_offset).collect()
}

fn all<R: Attribute + Default>(fabric: &mut Fabric) -> Vec<R> {
    let node = fabric.hosts()[1];
    table(fabric, node, &R::default(), ComponentMask::NONE)
}

fn path_query(fabric: &Fabric, from: usize, to: usize) -> (PathRecord, ComponentMask) {
    let record = PathRecord {
        sgid: gid(fabric, from),
        dgid: gid(fabric, to),
        numb_path: 1,
        ..PathRecord::default()
    };
    (
        record,
        PathRecord::SGID | PathRecord::DGID | PathRecord::NUMB_PATH,
    )
}

#[test]
fn class_port_info_says_what_the_administrator_can() {
    let mut fabric = up(build::star(3), Config::default());
    let host = fabric.hosts()[1];
    let info = ask(
        &mut fabric,
        host,
        Method::GET,
        &ClassPortInfo::default(),
        ComponentMask::NONE,
    )
    .unwrap();
    assert_eq!((info.base_version, info.class_version), (1, 2));
    assert!(info.capability2 & ClassPortInfo::SA2_SEND_ONLY_FULL_MEMBER != 0);
    assert_eq!(info.trap_lid, fabric.lid(fabric.hosts()[0]));
}

#[test]
fn a_path_has_both_lids_and_what_the_weakest_link_can() {
    let mut fabric = up(tree(), Config::default());
    let hosts = fabric.hosts();
    let (from, to) = (hosts[2], hosts[13]);
    let (record, mask) = path_query(&fabric, from, to);
    let path = ask(&mut fabric, from, Method::GET, &record, mask).unwrap();
    assert_eq!((path.slid, path.dlid), (fabric.lid(from), fabric.lid(to)));
    assert_eq!((path.sgid, path.dgid), (record.sgid, record.dgid));
    assert_eq!(
        (path.mtu, path.mtu_selector),
        (MtuCode(4), Selector::Exactly)
    );
    assert_eq!(
        (path.rate, path.p_key, path.sl, path.hop_limit),
        (Rate::GBPS_10, PKey(0xffff), Sl::new(0), 0)
    );
    assert!(path.reversible);
    assert_eq!(path.packet_life_time.0, 18);
}

#[test]
fn a_path_that_is_to_be_better_than_there_is_does_not_exist() {
    let mut fabric = up(tree(), Config::default());
    let hosts = fabric.hosts();
    let (record, mask) = path_query(&fabric, hosts[2], hosts[13]);
    let with = |selector, mtu| {
        (
            PathRecord {
                mtu_selector: selector,
                mtu: MtuCode(mtu),
                ..record
            },
            mask | PathRecord::MTU_SELECTOR | PathRecord::MTU,
        )
    };
    for (selector, mtu, exists) in [
        (Selector::GreaterThan, 3, true),
        (Selector::GreaterThan, 4, false),
        (Selector::Exactly, 4, true),
        (Selector::LessThan, 4, false),
        (Selector::Best, 1, true),
    ] {
        let (record, mask) = with(selector, mtu);
        let answer = ask(&mut fabric, hosts[2], Method::GET, &record, mask);
        assert_eq!(answer.is_ok(), exists, "{selector:?} {mtu}");
        assert!(exists || answer == Err(MadStatus::SA_NO_RECORDS));
    }
    // Rates compare by speed: 5 Gbit/s (code 5) is less than 10 (code 3).
    let record = PathRecord {
        rate_selector: Selector::GreaterThan,
        rate: Rate::GBPS_5,
        ..record
    };
    let mask = mask | PathRecord::RATE_SELECTOR | PathRecord::RATE;
    assert!(ask(&mut fabric, hosts[2], Method::GET, &record, mask).is_ok());
}

#[test]
fn a_path_to_nobody_is_an_invalid_gid_and_one_in_a_foreign_partition_is_no_record() {
    let mut fabric = up(build::star(4), Config::default());
    let hosts = fabric.hosts();
    let (mut record, mask) = path_query(&fabric, hosts[1], hosts[2]);
    record.dgid = Gid::unicast(Gid::DEFAULT_PREFIX, Guid(0x99));
    assert_eq!(
        ask(&mut fabric, hosts[1], Method::GET, &record, mask),
        Err(MadStatus::SA_INVALID_GID)
    );
    let (mut record, mask) = path_query(&fabric, hosts[1], hosts[2]);
    record.p_key = PKey(0x8001);
    let mask = mask | PathRecord::P_KEY;
    assert_eq!(
        ask(&mut fabric, hosts[1], Method::GET, &record, mask),
        Err(MadStatus::SA_NO_RECORDS)
    );
}

#[test]
fn the_table_of_paths_from_a_host_names_every_end_port_once() {
    let mut fabric = up(tree(), Config::default());
    let host = fabric.hosts()[3];
    let record = PathRecord {
        slid: fabric.lid(host),
        ..PathRecord::default()
    };
    let paths = table(&mut fabric, host, &record, PathRecord::SLID);
    let lids: HashSet<_> = paths.iter().map(|path| path.dlid).collect();
    assert_eq!(paths.len(), fabric.nodes.len());
    assert_eq!(lids.len(), paths.len());
    assert!(paths.iter().all(|path| path.slid == fabric.lid(host)));
}

#[test]
fn with_an_lmc_a_pair_of_hosts_has_several_paths() {
    let mut fabric = up(
        tree(),
        Config {
            lmc: 2,
            ..Config::default()
        },
    );
    let hosts = fabric.hosts();
    let (record, _) = path_query(&fabric, hosts[1], hosts[9]);
    let paths = table(
        &mut fabric,
        hosts[1],
        &record,
        PathRecord::SGID | PathRecord::DGID,
    );
    let offsets: Vec<_> = paths
        .iter()
        .map(|path| (path.slid.0 & 3, path.dlid.0 & 3))
        .collect();
    assert_eq!(offsets, [(0, 0), (1, 1), (2, 2), (3, 3)]);
    let record = PathRecord {
        numb_path: 2,
        ..record
    };
    let mask = PathRecord::SGID | PathRecord::DGID | PathRecord::NUMB_PATH;
    assert_eq!(table(&mut fabric, hosts[1], &record, mask).len(), 2);
}

#[test]
fn the_tables_of_records_are_those_of_the_fabric() {
    let mut fabric = up(tree(), Config::default());
    let (hosts, switches) = (fabric.hosts(), fabric.switches());
    let nodes: Vec<NodeRecord> = all(&mut fabric);
    assert_eq!(nodes.len(), fabric.nodes.len());
    for record in &nodes {
        let node = (0..fabric.nodes.len())
            .find(|&node| fabric.lid(node) == record.lid)
            .unwrap();
        assert_eq!(record.info.node_guid, fabric.nodes[node].guid);
        assert_eq!(record.info.port_guid, fabric.guid(node));
        assert_eq!(record.description, fabric.nodes[node].description);
    }
    let ports: Vec<PortInfoRecord> = all(&mut fabric);
    let count: usize = switches
        .iter()
        .map(|&node| usize::from(fabric.nodes[node].port_count()) + 1)
        .sum();
    assert_eq!(ports.len(), count + hosts.len());
    for record in ports.iter().filter(|record| record.port_num == 1) {
        let node = (0..fabric.nodes.len())
            .find(|&node| fabric.lid(node) == record.lid)
            .unwrap();
        let info = fabric.nodes[node].port(1).unwrap().info;
        assert_eq!(
            (record.info.state, record.info.neighbor_mtu),
            (info.state, info.neighbor_mtu)
        );
    }
    let links: Vec<LinkRecord> = all(&mut fabric);
    assert_eq!(links.len(), fabric.cables.len());
    let infos: Vec<SwitchInfoRecord> = all(&mut fabric);
    assert_eq!(infos.len(), switches.len());
    let blocks: Vec<LinearForwardingTableRecord> = all(&mut fabric);
    assert_eq!(blocks.len(), switches.len(), "LIDs fit in one block");
    for record in &blocks {
        let node = switches
            .iter()
            .find(|&&node| fabric.lid(node) == record.lid)
            .unwrap();
        for lid in 1..64_u16 {
            let entry = Some(record.table.ports[usize::from(lid)]).filter(|&port| port != 0xff);
            assert_eq!(
                fabric.nodes[*node]
                    .switch
                    .as_ref()
                    .unwrap()
                    .unicast_port(Lid(lid)),
                entry
            );
        }
    }
    let guids: Vec<GuidInfoRecord> = all(&mut fabric);
    assert_eq!(guids.len(), fabric.nodes.len());
    let keys: Vec<PKeyTableRecord> = all(&mut fabric);
    assert_eq!(keys.len(), fabric.nodes.len() * 2, "64 keys each");
    let managers: Vec<SmInfoRecord> = all(&mut fabric);
    assert_eq!((managers.len(), managers[0].lid), (1, fabric.lid(hosts[0])));
    assert_eq!(
        all::<SlToVlMappingTableRecord>(&mut fabric),
        [],
        "they are not known"
    );
    assert_eq!(all::<InformInfoRecord>(&mut fabric), []);
    assert_eq!(
        all::<MulticastForwardingTableRecord>(&mut fabric).len(),
        switches.len()
    );
}

#[test]
fn a_query_finds_what_its_components_say_and_a_get_wants_just_one() {
    let mut fabric = up(tree(), Config::default());
    let host = fabric.hosts()[4];
    let mut record = NodeRecord {
        lid: fabric.lid(host),
        ..NodeRecord::default()
    };
    let found = ask(&mut fabric, host, Method::GET, &record, NodeRecord::LID).unwrap();
    assert_eq!(found.info.port_guid, fabric.guid(host));
    record.info.node_type = NodeType::SWITCH;
    let switches = fabric.switches().len();
    assert_eq!(
        table(&mut fabric, host, &record, NodeRecord::NODE_TYPE).len(),
        switches
    );
    let several = ask(
        &mut fabric,
        host,
        Method::GET,
        &record,
        NodeRecord::NODE_TYPE,
    );
    assert_eq!(several, Err(MadStatus::SA_TOO_MANY_RECORDS));
    let none = ask(
        &mut fabric,
        host,
        Method::GET,
        &record,
        NodeRecord::NODE_TYPE | NodeRecord::LID,
    );
    assert_eq!(none, Err(MadStatus::SA_NO_RECORDS));
    assert_eq!(
        table(
            &mut fabric,
            host,
            &record,
            NodeRecord::NODE_TYPE | NodeRecord::LID
        ),
        []
    );
}

#[test]
fn ports_are_found_by_capabilities_that_they_have_at_least() {
    let mut fabric = up(build::star(4), Config::default());
    let host = fabric.hosts()[2];
    let mut record = PortInfoRecord::default();
    record.info.capability = core_ib::wire::mad::Capability::SM;
    let mut mad = request(1, Method::GET_TABLE, &record, PortInfoRecord::CAPABILITY);
    mad.0[20] = 0x80; // bit 31 of the modifier
    let (first, data) = fabric.ask_table(host, mad).unwrap();
    let header: SaHeader = first.front().unwrap();
    let found: Vec<_> = Records::<PortInfoRecord>::new(&data, header.attribute_offset).collect();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].lid, fabric.lid(fabric.hosts()[0]));
}

#[test]
fn only_who_shows_the_key_sees_m_keys_and_members() {
    let config = Config {
        sm_key: SmKey(0x77),
        m_key: core_ib::wire::mad::MKey(0x1234),
        ..Config::default()
    };
    let mut fabric = up(build::star(4), config);
    let host = fabric.hosts()[2];
    let record = PortInfoRecord {
        lid: fabric.lid(host),
        ..PortInfoRecord::default()
    };
    let plain = request(1, Method::GET, &record, PortInfoRecord::LID);
    let mut trusted = plain;
    (trusted.0[15], trusted.0[43]) = (2, 0x77);
    let keys = [plain, trusted].map(|mad| {
        let answer = fabric.ask_and_wait(host, mad).unwrap();
        answer.get::<PortInfoRecord>().unwrap().info.m_key.0
    });
    assert_eq!(keys, [0, 0x1234]);
}

#[test]
fn what_is_not_served_is_refused_by_name() {
    let mut fabric = up(build::star(3), Config::default());
    let host = fabric.hosts()[1];
    let unsupported = MadStatus::UNSUPPORTED_METHOD_ATTRIBUTE;
    let node = NodeRecord::default();
    assert_eq!(
        ask(&mut fabric, host, Method::SET, &node, ComponentMask::NONE),
        Err(unsupported)
    );
    let mut mad = request(9, Method::GET, &node, ComponentMask::NONE);
    (mad.0[16], mad.0[17]) = (0x12, 0x34);
    assert_eq!(
        fabric.ask_and_wait(host, mad).unwrap().header().status,
        unsupported
    );
    let mut mad = request(10, Method::GET, &node, ComponentMask::NONE);
    mad.0[2] = 1;
    assert_eq!(
        fabric.ask_and_wait(host, mad).unwrap().header().status,
        MadStatus::BAD_VERSION
    );
}

#[test]
fn nobody_answers_before_the_subnet_is_up() {
    let mut fabric = Fabric::managed(build::star(3), Config::default());
    let host = fabric.hosts()[0];
    let mad = request(
        1,
        Method::GET,
        &ClassPortInfo::default(),
        ComponentMask::NONE,
    );
    fabric.deliver(host, mad, Lid(1), Qpn::GSI);
    fabric.wake(0);
    fabric.run_for(SECOND / 2);
    assert!(fabric.inbox.is_empty());
}

#[test]
fn a_long_table_arrives_although_packets_are_lost() {
    let mut fabric = up(tree(), Config::default());
    fabric.loss = 0x10000 / 15;
    let mut whole = 0;
    for tid in 0..8 {
        let node = fabric.hosts()[1];
        let mad = request(
            tid,
            Method::GET_TABLE,
            &PortInfoRecord::default(),
            ComponentMask::NONE,
        );
        // The request itself may be lost.
        if let Ok((first, data)) = fabric.ask_table(node, mad) {
            let header: SaHeader = first.front().unwrap();
            assert_eq!(
                Records::<PortInfoRecord>::new(&data, header.attribute_offset).count(),
                70
            );
            whole += 1;
        }
    }
    assert!(whole >= 5, "{whole} of 8");
}

#[test]
fn the_same_question_asked_twice_is_answered_once() {
    let mut fabric = up(tree(), Config::default());
    let node = fabric.hosts()[1];
    let mad = request(
        3,
        Method::GET_TABLE,
        &NodeRecord::default(),
        ComponentMask::NONE,
    );
    fabric.ask(node, mad);
    fabric.ask(node, mad);
    fabric.run_for(SECOND / 100);
    // One first segment; the second one waits for its acknowledgement.
    let first = fabric
        .inbox
        .iter()
        .filter(|(_, received)| received.mad.0[31] == 1)
        .count();
    assert_eq!(first, 1);
}

#[test]
fn who_asks_while_all_transfers_are_taken_is_told_to_come_again() {
    let mut fabric = up(build::star(16), Config::default());
    let mut busy = 0;
    for host in fabric.hosts() {
        let mad = request(
            7,
            Method::GET_TABLE,
            &NodeRecord::default(),
            ComponentMask::NONE,
        );
        fabric.ask(host, mad); // nobody acknowledges
    }
    fabric.run_for(SECOND / 100);
    for (_, received) in &fabric.inbox {
        busy += usize::from(received.header().status == MadStatus::BUSY);
    }
    assert_eq!(busy, 16 - 8);
    // The transfers are given up in time.
    fabric.run_for(60 * SECOND);
    assert_eq!(all::<NodeRecord>(&mut fabric).len(), 17);
}

fn group(
    fabric: &Fabric,
    node: usize,
    mgid: Gid,
    join_state: JoinState,
) -> (McMemberRecord, ComponentMask) {
    let record = McMemberRecord {
        mgid,
        port_gid: gid(fabric, node),
        join_state,
        q_key: QKey(0x0b1b),
        p_key: PKey(0xffff),
        flow_label: FlowLabel::new(0),
        ..McMemberRecord::default()
    };
    use McMemberRecord as M;
    let join = M::MGID | M::PORT_GID | M::JOIN_STATE;
    (
        record,
        join | M::Q_KEY | M::P_KEY | M::TCLASS | M::SL | M::FLOW_LABEL,
    )
}

fn mgid(low: u8) -> Gid {
    let mut mgid = Gid([0; 16]);
    (mgid.0[0], mgid.0[1], mgid.0[2], mgid.0[3], mgid.0[15]) = (0xff, 0x12, 0x12, 0x34, low);
    mgid
}

fn broadcast() -> Gid {
    Broadcast::DEFAULT.mgid(ib_sm::DEFAULT_BASE)
}

fn join(
    fabric: &mut Fabric,
    node: usize,
    mgid: Gid,
    state: JoinState,
) -> Result<McMemberRecord, MadStatus> {
    let (record, mask) = group(fabric, node, mgid, state);
    ask(fabric, node, Method::SET, &record, mask)
}

fn leave(
    fabric: &mut Fabric,
    node: usize,
    mgid: Gid,
    state: JoinState,
) -> Result<McMemberRecord, MadStatus> {
    let (record, _) = group(fabric, node, mgid, state);
    let mask = McMemberRecord::MGID | McMemberRecord::PORT_GID | McMemberRecord::JOIN_STATE;
    ask(fabric, node, Method::DELETE, &record, mask)
}

#[test]
fn the_broadcast_group_is_there_and_everybody_who_joins_hears_everybody() {
    let mut fabric = up(tree(), Config::default());
    let hosts = fabric.hosts();
    let mut mlid = Lid::NONE;
    for &host in &hosts {
        let (record, _) = group(&fabric, host, broadcast(), FULL);
        let mask = McMemberRecord::MGID | McMemberRecord::PORT_GID | McMemberRecord::JOIN_STATE;
        let answer = ask(&mut fabric, host, Method::SET, &record, mask).unwrap();
        assert_eq!(
            (answer.q_key, answer.mtu, answer.join_state),
            (QKey(0x0b1b), MtuCode(4), FULL)
        );
        mlid = answer.mlid;
    }
    assert!(mlid.is_multicast());
    fabric.run_for(SECOND / 10);
    for &host in &hosts {
        let heard = checks::multicast(&fabric, host, mlid);
        assert_eq!(heard.len(), hosts.len() - 1);
        assert!(heard.values().all(|&count| count == 1));
    }
}

#[test]
fn a_group_lives_as_long_as_a_full_member() {
    let mut fabric = up(build::star(5), Config::default());
    let hosts = fabric.hosts();
    let group_of = mgid(1);
    assert_eq!(
        join(&mut fabric, hosts[1], group_of, JoinState::NON_MEMBER),
        Err(MadStatus::SA_REQUEST_INVALID),
        "who does not keep it alive cannot create it"
    );
    let first = join(&mut fabric, hosts[1], group_of, FULL).unwrap();
    let second = join(&mut fabric, hosts[2], group_of, JoinState::NON_MEMBER).unwrap();
    assert_eq!(first.mlid, second.mlid);
    assert_eq!(
        leave(&mut fabric, hosts[2], group_of, FULL),
        Err(MadStatus::SA_REQUEST_INVALID),
        "a state that it does not have"
    );
    leave(&mut fabric, hosts[1], group_of, FULL).unwrap();
    let record = McMemberRecord {
        mgid: group_of,
        ..McMemberRecord::default()
    };
    let gone = ask(
        &mut fabric,
        hosts[3],
        Method::GET,
        &record,
        McMemberRecord::MGID,
    );
    assert_eq!(gone, Err(MadStatus::SA_NO_RECORDS));
    // The broadcast group stays.
    join(&mut fabric, hosts[1], broadcast(), FULL).unwrap();
    leave(&mut fabric, hosts[1], broadcast(), FULL).unwrap();
    let record = McMemberRecord {
        mgid: broadcast(),
        ..McMemberRecord::default()
    };
    assert!(
        ask(
            &mut fabric,
            hosts[3],
            Method::GET,
            &record,
            McMemberRecord::MGID
        )
        .is_ok()
    );
}

#[test]
fn who_joins_must_agree_with_the_group() {
    use McMemberRecord as M;
    let mut fabric = up(build::star(5), Config::default());
    let hosts = fabric.hosts();
    join(&mut fabric, hosts[1], mgid(1), FULL).unwrap();
    let (good, mask) = group(&fabric, hosts[2], mgid(1), FULL);
    for wrong in [
        M {
            q_key: QKey(1),
            ..good
        },
        M {
            p_key: PKey(0x8001),
            ..good
        },
        M { tclass: 1, ..good },
        M {
            sl: Sl::new(1),
            ..good
        },
        M {
            flow_label: FlowLabel::new(1),
            ..good
        },
    ] {
        let answer = ask(&mut fabric, hosts[2], Method::SET, &wrong, mask);
        assert_eq!(answer, Err(MadStatus::SA_REQUEST_INVALID), "{wrong:?}");
    }
    let mtu = M {
        mtu_selector: Selector::GreaterThan,
        mtu: MtuCode(4),
        ..good
    };
    let answer = ask(
        &mut fabric,
        hosts[2],
        Method::SET,
        &mtu,
        mask | M::MTU_SELECTOR | M::MTU,
    );
    assert_eq!(answer, Err(MadStatus::SA_REQUEST_INVALID));
    assert!(ask(&mut fabric, hosts[2], Method::SET, &good, mask).is_ok());
}

#[test]
fn what_a_new_group_needs_is_asked_for() {
    use McMemberRecord as M;
    let mut fabric = up(build::star(5), Config::default());
    let host = fabric.hosts()[1];
    let (record, _) = group(&fabric, host, mgid(1), FULL);
    let few = M::MGID | M::PORT_GID | M::JOIN_STATE;
    let answer = ask(&mut fabric, host, Method::SET, &record, few);
    assert_eq!(answer, Err(MadStatus::SA_INSUFFICIENT_COMPONENTS));
    let answer = ask(
        &mut fabric,
        host,
        Method::SET,
        &record,
        M::MGID | M::PORT_GID,
    );
    assert_eq!(answer, Err(MadStatus::SA_INSUFFICIENT_COMPONENTS));
    let nothing = join(&mut fabric, host, mgid(1), JoinState::empty());
    assert_eq!(nothing, Err(MadStatus::SA_REQUEST_INVALID));
    let unicast = join(
        &mut fabric,
        host,
        Gid::unicast(Gid::DEFAULT_PREFIX, Guid(5)),
        FULL,
    );
    assert_eq!(unicast, Err(MadStatus::SA_REQUEST_INVALID));
    let (mut foreign, mask) = group(&fabric, host, mgid(1), FULL);
    foreign.port_gid = gid(&fabric, fabric.hosts()[2]);
    let answer = ask(&mut fabric, host, Method::SET, &foreign, mask);
    assert_eq!(
        answer,
        Err(MadStatus::SA_REQUEST_INVALID),
        "for somebody else"
    );
    foreign.port_gid = Gid::unicast(Gid::DEFAULT_PREFIX, Guid(0x99));
    let answer = ask(&mut fabric, host, Method::SET, &foreign, mask);
    assert_eq!(answer, Err(MadStatus::SA_INVALID_GID));
}

#[test]
fn a_group_of_ip_must_be_like_the_broadcast_group() {
    let mut fabric = up(build::star(5), Config::default());
    let host = fabric.hosts()[1];
    let mut all_hosts = broadcast();
    all_hosts.0[12..].copy_from_slice(&[0, 0, 0, 1]);
    assert!(join(&mut fabric, host, all_hosts, FULL).is_ok());
    let mut other = all_hosts;
    other.0[15] = 2;
    let (mut record, mask) = group(&fabric, host, other, FULL);
    record.q_key = QKey(5);
    let answer = ask(&mut fabric, host, Method::SET, &record, mask);
    assert_eq!(answer, Err(MadStatus::SA_REQUEST_INVALID));
    other.0[1] = 0x15; // site-local scope has no broadcast group
    assert_eq!(
        join(&mut fabric, host, other, FULL),
        Err(MadStatus::SA_REQUEST_INVALID)
    );
}

#[test]
fn who_names_no_mgid_gets_one() {
    use McMemberRecord as M;
    let mut fabric = up(build::star(5), Config::default());
    let host = fabric.hosts()[1];
    let (mut record, mask) = group(&fabric, host, Gid::NONE, FULL);
    record.mtu_selector = Selector::LessThan;
    record.mtu = MtuCode::from(Mtu::Mtu1024);
    let mask = mask | M::MTU_SELECTOR | M::MTU;
    let one = ask(&mut fabric, host, Method::SET, &record, mask).unwrap();
    let two = ask(&mut fabric, host, Method::SET, &record, mask).unwrap();
    assert_eq!(one.mgid.0[..4], [0xff, 0x15, 0xa0, 0x1b]);
    assert!(one.mgid != two.mgid && one.mlid != two.mlid);
    assert_eq!(one.mtu, MtuCode::from(Mtu::Mtu512));
}

#[test]
fn a_port_that_only_sends_is_not_sent_to() {
    let mut fabric = up(tree(), Config::default());
    let hosts = fabric.hosts();
    let mlid = join(&mut fabric, hosts[1], mgid(3), FULL).unwrap().mlid;
    join(
        &mut fabric,
        hosts[14],
        mgid(3),
        JoinState::SEND_ONLY_NON_MEMBER,
    )
    .unwrap();
    join(
        &mut fabric,
        hosts[9],
        mgid(3),
        JoinState::SEND_ONLY_FULL_MEMBER,
    )
    .unwrap();
    fabric.run_for(SECOND / 10);
    for sender in [14, 9] {
        let heard = checks::multicast(&fabric, hosts[sender], mlid);
        assert_eq!(heard.into_iter().collect::<Vec<_>>(), [(hosts[1], 1)]);
    }
}

#[test]
fn members_that_vanish_are_members_no_more() {
    let mut fabric = up(tree(), Config::default());
    let hosts = fabric.hosts();
    let mlid = join(&mut fabric, hosts[1], mgid(3), FULL).unwrap().mlid;
    join(&mut fabric, hosts[14], mgid(3), FULL).unwrap();
    fabric.power_off(hosts[1]);
    fabric.run_for(SECOND);
    fabric.power_on(hosts[1]);
    fabric.run_for(SECOND);
    assert!(checks::multicast(&fabric, hosts[14], mlid).is_empty());
    fabric.power_off(hosts[14]);
    fabric.run_for(SECOND);
    let record = McMemberRecord {
        mgid: mgid(3),
        ..McMemberRecord::default()
    };
    let gone = ask(
        &mut fabric,
        hosts[3],
        Method::GET,
        &record,
        McMemberRecord::MGID,
    );
    assert_eq!(gone, Err(MadStatus::SA_NO_RECORDS));
}

#[test]
fn strangers_see_groups_and_members_see_themselves() {
    let mut fabric = up(
        build::star(5),
        Config {
            sm_key: SmKey(9),
            ..Config::default()
        },
    );
    let hosts = fabric.hosts();
    for host in [1, 2, 3] {
        join(&mut fabric, hosts[host], mgid(1), FULL).unwrap();
    }
    let groups: Vec<McMemberRecord> = all(&mut fabric);
    assert_eq!(groups.len(), 2, "the broadcast group and ours");
    assert!(
        groups
            .iter()
            .all(|record| record.port_gid == Gid::NONE && record.join_state.is_empty())
    );
    let own = McMemberRecord {
        port_gid: gid(&fabric, hosts[2]),
        ..McMemberRecord::default()
    };
    let own = table(&mut fabric, hosts[2], &own, McMemberRecord::PORT_GID);
    assert_eq!(own.len(), 1);
    assert_eq!((own[0].mgid, own[0].join_state), (mgid(1), FULL));
    let mut trusted = request(
        1,
        Method::GET_TABLE,
        &McMemberRecord::default(),
        ComponentMask::NONE,
    );
    trusted.0[43] = 9;
    let (first, data) = fabric.ask_table(hosts[2], trusted).unwrap();
    let header: SaHeader = first.front().unwrap();
    let members = Records::<McMemberRecord>::new(&data, header.attribute_offset);
    assert_eq!(members.filter(|record| record.mgid == mgid(1)).count(), 3);
}

#[test]
fn partitions_are_apart() {
    static MEMBERS: [(Guid, Membership); 2] = [
        (Guid(0x0014_0500_0010_0011), Membership::Full),
        (Guid(0x0014_0500_0010_0021), Membership::Limited),
    ];
    static PARTITIONS: [Partition<'static>; 1] = [Partition {
        base: 0x0011,
        others: None,
        members: &MEMBERS,
        ipoib: Some(Broadcast::DEFAULT),
    }];
    let mut fabric = up(
        build::star(5),
        Config {
            partitions: &PARTITIONS,
            ..Config::default()
        },
    );
    let hosts = fabric.hosts();
    let mgid = Broadcast::DEFAULT.mgid(0x0011);
    let mask = McMemberRecord::MGID | McMemberRecord::PORT_GID | McMemberRecord::JOIN_STATE;
    let states = [1, 2, 3].map(|host| {
        let (record, _) = group(&fabric, hosts[host], mgid, FULL);
        ask(&mut fabric, hosts[host], Method::SET, &record, mask)
    });
    assert_eq!(states[0].map(|record| record.p_key), Ok(PKey(0x8011)));
    assert!(states[1].is_ok());
    assert_eq!(states[2], Err(MadStatus::SA_REQUEST_INVALID));
    let mut path = |from: usize, to: usize| {
        let (mut record, mask) = path_query(&fabric, hosts[from], hosts[to]);
        record.p_key = PKey(0x0011);
        let path = ask(
            &mut fabric,
            hosts[from],
            Method::GET,
            &record,
            mask | PathRecord::P_KEY,
        );
        path.map(|path| path.p_key)
    };
    assert_eq!(path(1, 2), Ok(PKey(0x8011)));
    assert_eq!(path(1, 3), Err(MadStatus::SA_NO_RECORDS));
    assert_eq!(
        path(2, 2),
        Err(MadStatus::SA_NO_RECORDS),
        "two limited members do not meet"
    );
}

fn service(fabric: &Fabric, node: usize, lease: u32) -> ServiceRecord {
    let mut record = ServiceRecord {
        id: 0x1000_0000_0000_0001,
        gid: gid(fabric, node),
        p_key: PKey(0xffff),
        lease,
        key: [7; 16],
        ..ServiceRecord::default()
    };
    record.name[..4].copy_from_slice(b"echo");
    record.data8[2] = 9;
    record
}

#[test]
fn a_service_is_found_until_it_is_taken_out_or_its_lease_ends() {
    use ServiceRecord as S;
    let mut fabric = up(build::star(4), Config::default());
    let hosts = fabric.hosts();
    let every = S::ID | S::GID | S::P_KEY | S::LEASE | S::KEY | S::NAME;
    let record = service(&fabric, hosts[1], S::FOREVER);
    ask(&mut fabric, hosts[1], Method::SET, &record, every).unwrap();
    let found = ask(&mut fabric, hosts[2], Method::GET, &record, S::NAME).unwrap();
    assert_eq!(
        (found.gid, found.key, found.data8[2]),
        (record.gid, [0; 16], 9)
    );
    // Another key changes nothing.
    let thief = S {
        key: [8; 16],
        ..record
    };
    let answer = ask(&mut fabric, hosts[2], Method::SET, &thief, every);
    assert_eq!(answer, Err(MadStatus::SA_REQUEST_INVALID));
    let answer = ask(&mut fabric, hosts[2], Method::DELETE, &thief, every);
    assert_eq!(answer, Err(MadStatus::SA_REQUEST_INVALID));
    ask(&mut fabric, hosts[1], Method::DELETE, &record, every).unwrap();
    let gone = ask(&mut fabric, hosts[2], Method::GET, &record, S::NAME);
    assert_eq!(gone, Err(MadStatus::SA_NO_RECORDS));

    let record = service(&fabric, hosts[1], 5);
    ask(&mut fabric, hosts[1], Method::SET, &record, every).unwrap();
    fabric.run_for(2 * SECOND);
    let found = ask(&mut fabric, hosts[2], Method::GET, &record, S::ID).unwrap();
    assert!((2..=3).contains(&found.lease), "{} s are left", found.lease);
    fabric.run_for(4 * SECOND);
    let gone = ask(&mut fabric, hosts[2], Method::GET, &record, S::ID);
    assert_eq!(gone, Err(MadStatus::SA_NO_RECORDS));
}

fn inform(number: u16, subscribe: bool) -> InformInfo {
    InformInfo {
        lid_range_begin: InformInfo::ALL_LIDS,
        is_generic: true,
        subscribe,
        kind: InformInfo::ALL,
        number,
        qpn: Qpn::GSI,
        producer: InformInfo::ALL_PRODUCERS,
        ..InformInfo::default()
    }
}

/// The notices that a host got reports of, each once; it answers them.
fn reports(fabric: &mut Fabric, node: usize) -> Vec<Notice> {
    let mut notices = Vec::new();
    let mut known = HashSet::new();
    for _ in 0..50 {
        fabric.run_for(SECOND / 100);
        for (to, received) in core::mem::take(&mut fabric.inbox) {
            let header = received.header();
            if to != node || header.method != Method::REPORT {
                continue;
            }
            let mut answer = received.mad;
            answer.0[3] = Method::REPORT_RESP.0;
            fabric.ask(node, answer);
            if known.insert(header.tid) {
                notices.push(received.mad.get::<SaNotice>().unwrap().notice);
            }
        }
    }
    notices
}

#[test]
fn subscribers_hear_of_ports_that_come_and_go_and_of_groups() {
    let mut fabric = up(build::star(5), Config::default());
    let hosts = fabric.hosts();
    for number in [64, 65, 66, 67] {
        ask(
            &mut fabric,
            hosts[1],
            Method::SET,
            &inform(number, true),
            ComponentMask::NONE,
        )
        .unwrap();
    }
    assert_eq!(all::<InformInfoRecord>(&mut fabric).len(), 4);
    let about = gid(&fabric, hosts[3]);
    fabric.power_off(hosts[3]);
    let mut heard = reports(&mut fabric, hosts[1]);
    fabric.power_on(hosts[3]);
    heard.extend(reports(&mut fabric, hosts[1]));
    join(&mut fabric, hosts[2], mgid(1), FULL).unwrap();
    heard.extend(reports(&mut fabric, hosts[1]));
    leave(&mut fabric, hosts[2], mgid(1), FULL).unwrap();
    heard.extend(reports(&mut fabric, hosts[1]));
    let heard: Vec<_> = heard
        .iter()
        .map(|notice| match notice.trap() {
            Some(TrapDetails::Gid(trap)) => (notice.number, trap.gid, notice.issuer_lid),
            other => panic!("{other:?}"),
        })
        .collect();
    let lid = fabric.lid(hosts[0]);
    assert_eq!(
        heard,
        [
            (TrapNumber::GID_OUT_OF_SERVICE, about, lid),
            (TrapNumber::GID_IN_SERVICE, about, lid),
            (TrapNumber::GROUP_CREATED, mgid(1), lid),
            (TrapNumber::GROUP_DELETED, mgid(1), lid),
        ]
    );
}

#[test]
fn who_unsubscribes_or_never_subscribed_hears_nothing() {
    let mut fabric = up(build::star(5), Config::default());
    let hosts = fabric.hosts();
    ask(
        &mut fabric,
        hosts[1],
        Method::SET,
        &inform(InformInfo::ALL, true),
        ComponentMask::NONE,
    )
    .unwrap();
    ask(
        &mut fabric,
        hosts[1],
        Method::SET,
        &inform(InformInfo::ALL, false),
        ComponentMask::NONE,
    )
    .unwrap();
    ask(
        &mut fabric,
        hosts[2],
        Method::SET,
        &inform(66, true),
        ComponentMask::NONE,
    )
    .unwrap();
    let twice = ask(
        &mut fabric,
        hosts[1],
        Method::SET,
        &inform(InformInfo::ALL, false),
        ComponentMask::NONE,
    );
    assert_eq!(twice, Err(MadStatus::SA_REQUEST_INVALID));
    fabric.inbox.clear();
    fabric.power_off(hosts[4]);
    fabric.run_for(SECOND);
    let reports = fabric
        .inbox
        .iter()
        .filter(|(_, received)| received.header().method == Method::REPORT);
    assert_eq!(reports.count(), 0);
}

#[test]
fn a_report_is_repeated_until_it_is_answered_and_traps_are_forwarded() {
    let mut fabric = up(build::line(2, 3), Config::default());
    let (hosts, switch) = (fabric.hosts(), fabric.switches()[1]);
    ask(
        &mut fabric,
        hosts[1],
        Method::SET,
        &inform(129, true),
        ComponentMask::NONE,
    )
    .unwrap();
    fabric.inbox.clear();
    fabric.port_trap(switch, 129, 2);
    fabric.run_for(SECOND * 5 / 2);
    let reports: Vec<_> = fabric
        .inbox
        .iter()
        .filter(|(_, received)| received.header().method == Method::REPORT)
        .collect();
    assert_eq!(reports.len(), 3, "at once and after every second");
    let notice: SaNotice = reports[0].1.mad.get().unwrap();
    assert_eq!(notice.issuer_gid, gid(&fabric, switch));
    assert_eq!(notice.notice.issuer_lid, fabric.lid(switch));
    assert_eq!(notice.notice.number, TrapNumber(129));
    let tids: HashSet<_> = reports
        .iter()
        .map(|(_, received)| received.header().tid)
        .collect();
    assert_eq!(tids.len(), 1);
}

#[test]
fn a_subscriber_out_of_service_is_forgotten() {
    let mut fabric = up(build::star(5), Config::default());
    let hosts = fabric.hosts();
    ask(
        &mut fabric,
        hosts[2],
        Method::SET,
        &inform(64, true),
        ComponentMask::NONE,
    )
    .unwrap();
    assert_eq!(all::<InformInfoRecord>(&mut fabric).len(), 1);
    fabric.power_off(hosts[2]);
    fabric.run_for(SECOND);
    assert_eq!(all::<InformInfoRecord>(&mut fabric).len(), 0);
}

#[test]
fn groups_share_multicast_lids_when_there_are_more_groups_than_lids() {
    let topology = build::star(4);
    let mut fabric = Fabric::new(topology);
    let host = fabric.hosts()[0];
    let profile = ib_sm::Profile {
        mlids: 3,
        ..ib_sm::Profile::for_hosts(8)
    };
    fabric.seat(host, 1, &profile, Config::default());
    assert!(fabric.run_until(SECOND, |fabric| fabric.seats[0].sm.is_serving()));
    let hosts = fabric.hosts();
    let mlids: Vec<_> = (0..6)
        .map(|low| join(&mut fabric, hosts[1], mgid(low), FULL).unwrap().mlid)
        .collect();
    let distinct: HashSet<_> = mlids.iter().collect();
    assert_eq!(distinct.len(), 3);
    // Members of either group are reached by the one LID.
    join(&mut fabric, hosts[2], mgid(0), FULL).unwrap();
    fabric.run_for(SECOND / 10);
    let heard = checks::multicast(&fabric, hosts[3], mlids[0]);
    assert!(heard.contains_key(&hosts[1]) && heard.contains_key(&hosts[2]));
    leave(&mut fabric, hosts[2], mgid(0), FULL).unwrap();
}

#[test]
fn a_group_that_does_not_fit_is_refused_and_the_table_named() {
    let mut fabric = Fabric::new(build::star(4));
    let host = fabric.hosts()[0];
    let profile = ib_sm::Profile {
        groups: 2,
        members: 3,
        ..ib_sm::Profile::for_hosts(8)
    };
    fabric.seat(host, 1, &profile, Config::default());
    assert!(fabric.run_until(SECOND, |fabric| fabric.seats[0].sm.is_serving()));
    let hosts = fabric.hosts();
    join(&mut fabric, hosts[1], mgid(1), FULL).unwrap();
    assert_eq!(
        join(&mut fabric, hosts[1], mgid(2), FULL),
        Err(MadStatus::SA_NO_RESOURCES)
    );
    join(&mut fabric, hosts[2], mgid(1), FULL).unwrap();
    join(&mut fabric, hosts[3], mgid(1), FULL).unwrap();
    assert_eq!(
        join(&mut fabric, hosts[3], broadcast(), FULL),
        Err(MadStatus::SA_NO_RESOURCES)
    );
    let named = |name| {
        fabric.seats[0]
            .reports
            .iter()
            .any(|report| matches!(report, ib_sm::Report::NoRoom { entry, .. } if *entry == name))
    };
    assert!(named("groups") && named("members"));
}

#[test]
fn a_host_asks_the_manager_on_its_own_node() {
    let mut fabric = up(build::star(3), Config::default());
    let host = fabric.hosts()[0];
    let (record, mask) = path_query(&fabric, host, fabric.hosts()[2]);
    let path = ask(&mut fabric, host, Method::GET, &record, mask).unwrap();
    assert_eq!(path.dlid, fabric.lid(fabric.hosts()[2]));
    let to_itself = path_query(&fabric, host, host);
    let path = ask(&mut fabric, host, Method::GET, &to_itself.0, to_itself.1).unwrap();
    assert_eq!((path.slid, path.packet_life_time.0), (path.dlid, 0));
}
