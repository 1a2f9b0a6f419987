//! Which packets came over a connection, and which path they had to take. protocols 2.2, 2.3.1.

use super::*;
use crate::fabric::BadKey;
use core_ib::wire::packet::{Extended, FlowLabel};
use core_ib::{Gid, Guid, PKey};

/// A port that talks to itself: LIDs 8 to 11, GID entries 0 and 3.
fn verdict(sent: &Connection, expected: &Connection) -> Result<(), DropReason> {
    let mut node = node();
    let port = node.port(1).unwrap();
    let operation = Operation::SEND_ONLY;
    let headers = sent.headers(port, operation, Psn::new(1), Extended::default());
    let mut out = [0; MAX_PACKET];
    let bytes = headers.unwrap().write(&[], &mut out).unwrap().to_vec();
    let incoming = accept(&mut node, 1, &bytes, &mut Vec::new()).unwrap();
    expected.accepts(node.port(1).unwrap(), &incoming)
}

fn global(sgid_index: usize, dgid: Guid) -> Option<GlobalRoute> {
    Some(GlobalRoute {
        dgid: Gid::unicast(Gid::DEFAULT_PREFIX, dgid),
        sgid_index,
        flow_label: FlowLabel::new(0),
        hop_limit: 1,
        traffic_class: 0,
    })
}

#[test]
fn a_packet_is_of_the_connection_if_everything_fits() {
    let good = connection(Service::Rc);
    let grh = |grh| Connection {
        path: AddressVector { grh, ..good.path },
        ..good
    };
    let with = |change: fn(&mut Connection)| {
        let mut changed = good;
        change(&mut changed);
        changed
    };
    let path_bits = with(|one| one.path.path_bits = 2);
    let from_10 = with(|one| one.path.dlid = Lid(10));
    let uc = with(|one| one.service = Service::Uc);
    // From GID 3 (0x99) to GID 0 (0x11), and the way back.
    let there = grh(global(3, Guid(0x11)));
    let back = grh(global(0, Guid(0x99)));
    assert_eq!(verdict(&good, &good), Ok(()));
    assert_eq!(verdict(&path_bits, &from_10), Ok(()));
    assert_eq!(verdict(&there, &back), Ok(()));
    let elsewhere = |lid| Err(DropReason::Path(Lid(lid)));
    assert_eq!(verdict(&path_bits, &good), elsewhere(10));
    assert_eq!(verdict(&good, &from_10), elsewhere(8));
    assert_eq!(
        verdict(&there, &good),
        elsewhere(8),
        "a GRH that is not expected"
    );
    assert_eq!(verdict(&good, &back), elsewhere(8), "no GRH");
    assert_eq!(
        verdict(&there, &grh(global(0, Guid(0x98)))),
        elsewhere(8),
        "another SGID"
    );
    assert_eq!(
        verdict(&there, &grh(global(3, Guid(0x99)))),
        elsewhere(8),
        "another DGID"
    );
    assert_eq!(verdict(&uc, &good), Err(DropReason::Opcode(0x24)));
}

#[test]
fn two_limited_members_are_a_violation_and_an_empty_entry_sends_nothing() {
    let good = connection(Service::Rc);
    let limited = Connection {
        p_key_index: 2,
        ..good
    };
    let Err(DropReason::Key(violation)) = verdict(&limited, &limited) else {
        panic!("accepted");
    };
    assert_eq!(violation.key, BadKey::P(PKey(0x0002)));
    assert_eq!((violation.slid, violation.dest_qp), (Lid(8), limited.qpn));
    let empty = Connection {
        p_key_index: 5,
        ..good
    };
    let node = node();
    let port = node.port(1).unwrap();
    let headers = empty.headers(port, Operation::SEND_ONLY, Psn::new(1), Extended::default());
    assert_eq!(headers, Err(SendError::Discard(Discard::NoPKey(5))));
    assert!(matches!(verdict(&good, &empty), Err(DropReason::Key(_))));
}

#[test]
fn a_packet_shows_and_moves_the_state_of_migration() {
    use {Migration as M, PathChoice as P};
    let rows = [
        (M::Migrated, true, P::Primary, M::Migrated),
        (M::Migrated, false, P::Primary, M::Migrated),
        (M::Rearm, true, P::Primary, M::Rearm),
        (M::Rearm, false, P::Primary, M::Armed),
        (M::Armed, false, P::Primary, M::Armed),
        (M::Armed, true, P::Alternate, M::Migrated),
    ];
    for (state, mig_req, path, next) in rows {
        assert_eq!(
            state.on_packet(mig_req),
            (path, next),
            "{state:?} {mig_req}"
        );
    }
    let node = node();
    let port = node.port(1).unwrap();
    for migration in [M::Migrated, M::Rearm, M::Armed] {
        let one = Connection {
            migration,
            ..connection(Service::Rc)
        };
        let headers = one.headers(port, Operation::SEND_ONLY, Psn::new(1), Extended::default());
        assert_eq!(headers.unwrap().bth.mig_req, migration == M::Migrated);
    }
}
