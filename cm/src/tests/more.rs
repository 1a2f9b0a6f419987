//! What the table does not say: attributes of QPs, other paths, services of datagrams, limits.

use super::{SERVICE, accept, arrives, cm, connect, connected, drain, kinds, ms, path, the_one};
use crate::*;
use core_ib::verbs::{
    PathMigration, QpAttrMask, QpHandle, QpState, QpType, VerbsError, check_modify,
};
use core_ib::wire::mad::{AprStatus, AttributeId, RejReason, ServiceId, SidrStatus, TimeCode};
use core_ib::{Lid, Mtu, PKey, Psn, QKey, Qpn};

#[test]
fn the_attributes_of_both_ends_are_legal_and_fit_each_other() {
    let ([a, b], [active, passive]) = connected();
    let ends = [(&a, active, 0x50, Lid(11)), (&b, passive, 0x40, Lid(10))];
    for (cm, conn, peer, dlid) in ends {
        let (rtr, mask) = cm.rtr(conn).unwrap();
        assert_eq!(
            check_modify(QpType::Rc, QpState::Init, &rtr, mask),
            Ok(QpState::Rtr)
        );
        assert_eq!(
            (rtr.dest_qpn, rtr.path.dlid, rtr.path.grh),
            (Qpn::new(peer), dlid, None)
        );
        assert_eq!((rtr.path_mtu, rtr.max_dest_rd_atomic), (Mtu::Mtu2048, 1));
        let (rts, mask) = cm.rts(conn).unwrap();
        assert_eq!(
            check_modify(QpType::Rc, QpState::Rtr, &rts, mask),
            Ok(QpState::Rts)
        );
        // Packets live for 1 ms: twice that, and nothing for the HCA.
        assert_eq!(
            (
                rts.timeout,
                rts.retry_count,
                rts.rnr_retry,
                rts.max_rd_atomic
            ),
            (9, 7, 7, 1)
        );
    }
    let psns = |cm: &super::TestCm, conn| {
        (
            cm.rtr(conn).unwrap().0.rq_psn,
            cm.rts(conn).unwrap().0.sq_psn,
        )
    };
    assert_eq!(psns(&a, active), (Psn::new(0x1111), Psn::new(0x2222)));
    assert_eq!(psns(&b, passive), (Psn::new(0x2222), Psn::new(0x1111)));
}

/// A connection to 1 that was accepted, with a QP of its own on that side.
fn accepted() -> (super::TestCm, ConnId) {
    let (mut a, mut b) = (cm(0, 0), cm(1, 0));
    b.listen(&Listen::to(SERVICE, 0)).unwrap();
    a.connect(&connect(0, 0x40, None), ms(0)).unwrap();
    let req = the_one(drain(&mut a, ms(0)).0, AttributeId::CM_REQ);
    b.handle(&arrives(req, 0), ms(0));
    let (_, news) = drain(&mut b, ms(0));
    let [Event::Request { conn, .. }] = news[..] else {
        panic!("{news:?}");
    };
    let qp = Some(QpHandle::new(1, 2, 3));
    b.accept(conn, &accept(0x50, qp), ms(0)).unwrap();
    (b, conn)
}

fn wish(cm: &mut super::TestCm) -> Wish {
    match cm.poll(ms(0)) {
        CmNext::Wish(wish) => wish,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_reply_goes_out_when_the_qp_receives_and_data_is_as_good_as_an_rtu() {
    let (mut b, conn) = accepted();
    let to_rtr = wish(&mut b);
    assert_eq!(to_rtr.attr.state, QpState::Rtr);
    assert!(
        matches!(b.poll(ms(0)), CmNext::WaitUntil(_)),
        "nothing before it is granted"
    );
    b.granted(&to_rtr.granted(Ok(())), ms(0));
    b.granted(&to_rtr.granted(Ok(())), ms(0)); // once
    assert!(matches!(b.poll(ms(0)), CmNext::Send(_)));
    assert_eq!(b.of_qp(to_rtr.qp), Some(conn));
    b.communication_established(conn);
    assert_eq!(b.state(conn), Some(State::Established));
    let to_rts = wish(&mut b);
    assert_eq!(to_rts.attr.state, QpState::Rts);
    b.granted(&to_rts.granted(Ok(())), ms(0));
    assert!(matches!(
        drain(&mut b, ms(0)).1[..],
        [Event::Established { .. }]
    ));
}

#[test]
fn a_qp_that_does_not_take_its_attributes_ends_the_connection_and_the_peer_is_told() {
    let (mut b, conn) = accepted();
    let to_rtr = wish(&mut b);
    b.granted(&to_rtr.granted(Err(VerbsError::DeviceFailed)), ms(0));
    let (sent, news) = drain(&mut b, ms(0));
    let Some(Message::Rej(rej)) = Message::read(&sent[0]) else {
        panic!("{sent:?}");
    };
    assert_eq!(rej.reason, RejReason::NO_RESOURCES);
    let why = Failure::Qp(VerbsError::DeviceFailed);
    assert!(
        matches!(news[..], [Event::Failed { why: found, .. }, Event::Gone { conn: gone, .. }] if found == why && gone == conn)
    );
}

#[test]
fn another_path_is_offered_taken_and_armed_on_both_sides() {
    let ([mut a, mut b], [active, passive]) = connected();
    let with = LoadPath {
        path: path(0),
        pkey_index: 0,
        ack_delay: TimeCode(0),
        remote_timeout: TimeCode(11),
        private: &[],
    };
    a.load_path(active, &with, ms(1)).unwrap();
    let lap = the_one(drain(&mut a, ms(1)).0, AttributeId::CM_LAP);
    b.handle(&arrives(lap, 0), ms(1));
    assert!(matches!(
        drain(&mut b, ms(1)).1[..],
        [Event::PathRequested { .. }]
    ));
    b.answer_path(
        passive,
        Ok(Local {
            port: 2,
            ..Local::default()
        }),
    )
    .unwrap();
    let apr = the_one(drain(&mut b, ms(1)).0, AttributeId::CM_APR);
    // The LAP again: the same answer.
    b.handle(&arrives(lap, 0), ms(2));
    assert_eq!(the_one(drain(&mut b, ms(2)).0, AttributeId::CM_APR), apr);
    a.handle(&arrives(apr, 1), ms(3));
    let (_, news) = drain(&mut a, ms(3));
    let [Event::PathAnswered { apr, .. }] = news[..] else {
        panic!("{news:?}");
    };
    assert_eq!(apr.status, AprStatus::OK);
    for (cm, conn, port) in [(&a, active, 1), (&b, passive, 2)] {
        let (attr, mask) = cm.find(conn.comm_id()).unwrap().facts.rearm();
        assert_eq!(
            check_modify(QpType::Rc, QpState::Rts, &attr, mask),
            Ok(QpState::Rts)
        );
        assert!(mask.contains(QpAttrMask::ALT_PATH | QpAttrMask::PATH_MIG_STATE));
        assert_eq!(
            (attr.alt_path.port, attr.path_migration),
            (port, PathMigration::Rearm)
        );
    }
    // Only who connected may offer one.
    let state = State::Established;
    assert_eq!(
        b.load_path(passive, &with, ms(4)),
        Err(CmError::WrongState { state })
    );
}

fn resolve(service_id: ServiceId) -> Resolve<'static> {
    Resolve {
        cookie: 5,
        service_id,
        p_key: PKey::DEFAULT,
        pkey_index: 0,
        path: path(0),
        timeout: TimeCode(11),
        max_retries: 2,
        private: b"?",
    }
}

#[test]
fn a_service_of_datagrams_is_resolved_refused_or_not_there() {
    let (mut a, mut b) = (cm(0, 0), cm(1, 0));
    b.listen(&Listen::to(SERVICE, 9)).unwrap();
    a.resolve(&resolve(SERVICE), ms(0)).unwrap();
    let req = the_one(drain(&mut a, ms(0)).0, AttributeId::CM_SIDR_REQ);
    b.handle(&arrives(req, 0), ms(0));
    b.handle(&arrives(req, 0), ms(0)); // twice on the way, once for the service
    let (_, news) = drain(&mut b, ms(0));
    let [
        Event::ServiceRequest {
            sidr, cookie: 9, ..
        },
    ] = news[..]
    else {
        panic!("{news:?}");
    };
    let served = Served {
        qpn: Qpn::new(0x77),
        q_key: QKey::RDMA_CM,
        private: b"!",
    };
    b.serve(sidr, &served).unwrap();
    assert!(b.serve(sidr, &served).is_err(), "once");
    let rep = the_one(drain(&mut b, ms(0)).0, AttributeId::CM_SIDR_REP);
    a.handle(&arrives(rep, 1), ms(1));
    let (_, news) = drain(&mut a, ms(1));
    let [Event::Resolved { rep, cookie: 5, .. }] = news[..] else {
        panic!("{news:?}");
    };
    assert_eq!(
        (rep.status, rep.qpn, rep.q_key),
        (SidrStatus::OK, Qpn::new(0x77), QKey::RDMA_CM)
    );
    assert_eq!((rep.service_id, rep.private[0]), (SERVICE, b'!'));

    a.resolve(&resolve(ServiceId(1)), ms(2)).unwrap();
    let req = the_one(drain(&mut a, ms(2)).0, AttributeId::CM_SIDR_REQ);
    b.handle(&arrives(req, 0), ms(2));
    let rep = the_one(drain(&mut b, ms(2)).0, AttributeId::CM_SIDR_REP);
    a.handle(&arrives(rep, 1), ms(2));
    let (_, news) = drain(&mut a, ms(2));
    assert!(
        matches!(news[..], [Event::Resolved { rep, .. }] if rep.status == SidrStatus::UNSUPPORTED)
    );

    a.resolve(&resolve(ServiceId(2)), ms(3)).unwrap();
    let (mut now, mut sent) = (ms(3), 0);
    for _ in 0..20 {
        let (mads, news) = drain(&mut a, now);
        sent += mads.len();
        if !news.is_empty() {
            assert!(matches!(news[..], [Event::Unresolved { cookie: 5, .. }]));
            break;
        }
        let CmNext::WaitUntil(at) = a.poll(now) else {
            panic!("something is due");
        };
        now = at;
    }
    assert_eq!(sent, 3);
}

#[test]
fn what_there_is_no_room_for_is_refused_by_name() {
    let mut a = cm(0, 0);
    for qpn in 0..8 {
        a.connect(&connect(0, 0x40 + qpn, None), ms(0)).unwrap();
    }
    let (entry, limit) = ("connections", 8);
    let full = Err(CmError::Full { entry, limit });
    assert_eq!(a.connect(&connect(0, 0x60, None), ms(0)), full);
    let (entry, limit) = ("listeners", 2);
    a.listen(&Listen::to(ServiceId(1), 0)).unwrap();
    let second = a.listen(&Listen::to(ServiceId(2), 0)).unwrap();
    assert_eq!(
        a.listen(&Listen::to(ServiceId(3), 0)),
        Err(CmError::Full { entry, limit })
    );
    assert_eq!(
        a.listen(&Listen::to(ServiceId(2), 0)),
        Err(CmError::Taken { by: second })
    );
    let long = Connect {
        private: &[0; 93],
        ..connect(0, 0x61, None)
    };
    let (len, limit) = (93, 92);
    assert_eq!(
        a.connect(&long, ms(0)),
        Err(CmError::PrivateTooLong { len, limit })
    );
}

#[test]
fn a_listener_has_no_more_requests_than_its_backlog() {
    let (mut a, mut b) = (cm(0, 0), cm(1, 0));
    let listen = Listen {
        backlog: 1,
        ..Listen::to(SERVICE, 0)
    };
    let listener = b.listen(&listen).unwrap();
    for qpn in [0x40, 0x41] {
        a.connect(&connect(0, qpn, None), ms(0)).unwrap();
    }
    for req in drain(&mut a, ms(0)).0 {
        b.handle(&arrives(req, 0), ms(0));
    }
    let (sent, news) = drain(&mut b, ms(0));
    let rej = the_one(sent, AttributeId::CM_REJ);
    assert_eq!(rej.0[24 + 10..][..2], [0, 3], "no resources");
    assert!(matches!(news[..], [Event::Request { .. }]));
    // Who no longer listens rejects who waits.
    b.unlisten(listener, ms(1)).unwrap();
    assert_eq!(kinds(&drain(&mut b, ms(1)).0), [AttributeId::CM_REJ]);
    assert_eq!(b.connections(), 0);
}
