//! Multicast groups: joining, creating, leaving, and who hears whom.

mod fabric;

use core_ib::wire::FlowLabel;
use core_ib::wire::mad::{
    ComponentMask, JoinState, MadStatus, McMemberRecord, Method, MtuCode, PathRecord, Records,
    SaHeader, Selector, SmKey,
};
use core_ib::{Gid, Guid, Lid, Mtu, PKey, QKey, Rate, Sl};
use fabric::Fabric;
use fabric::ask::{
    FULL, SECOND, all, ask, broadcast, gid, group, join, leave, mgid, path_query, request, table,
    tree, up,
};
use fabric::checks;
use ib_sm::{Broadcast, Config, Membership, Partition};
use platform_sim::fabric::topology::build;
use platform_sim::machine::{LinkParameters, LinkSpeed, LinkWidth};
use std::collections::HashSet;
use std::time::Duration;

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
fn whoever_is_told_that_it_has_joined_is_heard_and_hears_from_that_instant() {
    for topology in [tree(), build::ring(3, 2), build::line(4, 1)] {
        let mut fabric = up(topology, Config::default());
        let hosts = fabric.hosts();
        for (before, &host) in hosts.iter().enumerate() {
            let state = if before % 3 == 2 {
                JoinState::SEND_ONLY_NON_MEMBER
            } else {
                FULL
            };
            let mlid = join(&mut fabric, host, broadcast(), state).unwrap().mlid;
            let receivers = (0..before).filter(|at| at % 3 != 2);
            let receivers: HashSet<usize> = receivers.map(|at| hosts[at]).collect();
            let heard: HashSet<usize> =
                checks::multicast(&fabric, host, mlid).into_keys().collect();
            assert_eq!(
                heard, receivers,
                "host {before}, at the instant of its answer"
            );
            // Asked again nothing changes, and the answer comes all the same.
            assert!(join(&mut fabric, host, broadcast(), state).is_ok());
        }
    }
}

#[test]
fn a_host_on_a_single_lane_is_in_the_broadcast_group_that_it_was_there_to_see_made() {
    let mut fabric = Fabric::managed(build::star(4), Config::default());
    let hosts = fabric.hosts();
    let narrow = |fabric: &mut Fabric, host: usize| {
        let link = LinkParameters {
            width: LinkWidth::X1,
            speed: LinkSpeed::SDR,
        };
        fabric.nodes[host].link_changed(1, Some(link), &mut Vec::new());
    };
    narrow(&mut fabric, hosts[2]);
    assert!(fabric.run_until(20 * SECOND, |fabric| fabric.seats[0].sm.is_serving()));
    fabric.run_for(SECOND / 10);
    for &host in &hosts {
        let group = join(&mut fabric, host, broadcast(), FULL).unwrap();
        assert_eq!(group.rate, Rate::GBPS_2_5);
    }
    // A group of four lanes that is there already is not slowed by one who comes later.
    let mut fabric = up(build::star(4), Config::default());
    assert_eq!(
        join(&mut fabric, hosts[1], broadcast(), FULL).unwrap().rate,
        Rate::GBPS_10
    );
    narrow(&mut fabric, hosts[2]);
    fabric.sweep_now(0);
    fabric.run_for(SECOND);
    assert_eq!(
        join(&mut fabric, hosts[2], broadcast(), FULL),
        Err(MadStatus::SA_REQUEST_INVALID)
    );
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
fn a_sweep_that_begins_while_groups_are_written_loses_none_of_them() {
    let mut fabric = up(tree(), Config::default());
    let hosts = fabric.hosts();
    let mlid = join(&mut fabric, hosts[1], mgid(1), FULL).unwrap().mlid;
    fabric.run_for(SECOND / 10);
    let (record, mask) = group(&fabric, hosts[14], mgid(1), FULL);
    fabric.ask(hosts[14], request(7, Method::SET, &record, mask));
    fabric.run_for(Duration::from_micros(1500)); // the administrator knows, the switches do not
    fabric.loss = 0x10000;
    fabric.run_for(Duration::from_micros(1500)); // now they were told, but did not hear it
    fabric.loss = 0;
    fabric.sweep_now(0);
    fabric.run_for(SECOND / 10);
    let heard = checks::multicast(&fabric, hosts[1], mlid);
    assert_eq!(heard.get(&hosts[14]), Some(&1));
}
