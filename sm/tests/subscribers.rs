//! Who subscribed hears of what happens.

mod fabric;

use core_ib::Qpn;
use core_ib::wire::mad::{
    ComponentMask, InformInfo, InformInfoRecord, MadStatus, Method, Notice, SaNotice, TrapDetails,
    TrapNumber,
};
use fabric::Fabric;
use fabric::ask::{FULL, SECOND, all, ask, gid, join, leave, mgid, up};
use ib_sm::Config;
use platform_sim::fabric::topology::build;
use std::collections::HashSet;

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
