//! The administrator's answers, over the fabric.

mod fabric;

use core_ib::wire::mad::{
    ClassPortInfo, ComponentMask, GuidInfoRecord, InformInfoRecord, LinearForwardingTableRecord,
    LinkRecord, MadStatus, Method, MtuCode, MulticastForwardingTableRecord, NodeRecord, NodeType,
    PKeyTableRecord, PathRecord, PortInfoRecord, Records, SaHeader, Selector, ServiceRecord,
    SlToVlMappingTableRecord, SmInfoRecord, SmKey, SwitchInfoRecord,
};
use core_ib::{Gid, Guid, Lid, PKey, Qpn, Rate, Sl};
use fabric::Fabric;
use fabric::ask::{SECOND, all, ask, gid, path_query, request, table, tree, up};
use ib_sm::Config;
use platform_sim::fabric::topology::build;
use std::collections::HashSet;

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
