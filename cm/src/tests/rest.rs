//! Paths that were offered, connections that are stale, and the end of a QP.

use super::{SERVICE, TestCm, accept, arrives, cm, connect, connected, drain, ms, path, the_one};
use crate::*;
use core_ib::verbs::{QpAttrMask, QpHandle, QpState, QpType, VerbsError};
use core_ib::wire::mad::{
    AprStatus, AttributeId, CmDreq, CmSidrReq, CommId, Mad, RejReason, TimeCode,
};
use core_ib::{Lid, Qpn};
use std::vec::Vec;

/// An established connection of which both ends have QPs of ours; 1 has been offered a path.
fn offered() -> ([TestCm; 2], [ConnId; 2], Mad) {
    let [mut a, mut b] = [cm(0, 0), cm(1, 0)];
    b.listen(&Listen::to(SERVICE, 0)).unwrap();
    let qp = |index| Some(QpHandle::new(index, 2, 3));
    let active = a.connect(&connect(0, 0x40, qp(1)), ms(0)).unwrap();
    let req = the_one(drain(&mut a, ms(0)).0, AttributeId::CM_REQ);
    b.handle(&arrives(req, 0), ms(0));
    let (_, news) = drain(&mut b, ms(0));
    let [Event::Request { conn: passive, .. }] = news[..] else {
        panic!("{news:?}");
    };
    b.accept(passive, &accept(0x50, qp(2)), ms(0)).unwrap();
    a.handle(&arrives(drain(&mut b, ms(0)).0[0], 1), ms(0));
    drain(&mut a, ms(0));
    a.ready(active, &[]).unwrap();
    b.handle(&arrives(drain(&mut a, ms(0)).0[0], 0), ms(0));
    drain(&mut b, ms(0));
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
    drain(&mut b, ms(1));
    ([a, b], [active, passive], lap)
}

fn apr_of(mads: &[Mad]) -> AprStatus {
    match mads {
        [mad] => mad.get::<core_ib::wire::mad::CmApr>().unwrap().status,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_path_that_the_qp_does_not_take_is_refused_and_one_that_was_refused_is_not_loaded() {
    let ([mut a, mut b], [active, passive], _) = offered();
    let local = Local {
        port: 1,
        ..Local::default()
    };
    b.answer_path(passive, Ok(local)).unwrap();
    let CmNext::Wish(wish) = b.poll(ms(1)) else {
        panic!("no wish");
    };
    assert_eq!(wish.attr.alt_timeout, 9); // twice 1 ms
    b.granted(&wish.granted(Err(VerbsError::DeviceFailed)), ms(1));
    let sent = drain(&mut b, ms(1)).0;
    assert_eq!(apr_of(&sent), AprStatus::REJECTED);
    a.handle(&arrives(sent[0], 1), ms(1));
    assert!(
        matches!(a.poll(ms(1)), CmNext::Event(Event::PathAnswered { conn, .. }) if conn == active)
    );
}

#[test]
fn a_path_for_which_nobody_answers_is_forgotten() {
    let ([mut a, _], [active, _], _) = offered();
    let mut news = Vec::new();
    for at in 1..200 {
        news.extend(drain(&mut a, ms(at)).1);
    }
    let why = Failure::TimedOut;
    assert!(matches!(news[..], [Event::PathFailed { why: found, .. }] if found == why));
    let (_, mask) = a.rtr(active).unwrap();
    assert!(!mask.contains(QpAttrMask::ALT_PATH));
}

#[test]
fn the_qp_of_a_connection_that_ended_is_put_into_err() {
    let ([mut a, _], [active, _], _) = offered();
    a.disconnect(active, &[], ms(2)).unwrap();
    let mut states = Vec::new();
    for at in 2..200 {
        loop {
            match a.poll(ms(at)) {
                CmNext::Wish(wish) => {
                    states.push(wish.attr.state);
                    a.granted(&wish.granted(Ok(())), ms(at));
                }
                CmNext::WaitUntil(_) => break,
                _ => {}
            }
        }
    }
    assert_eq!((states, a.connections()), (Vec::from([QpState::Error]), 0));
}

#[test]
fn a_drep_has_the_transaction_of_its_dreq() {
    let ([_, mut b], [active, passive]) = connected();
    let dreq = CmDreq {
        local_id: active.comm_id(),
        remote_id: passive.comm_id(),
        remote_qpn: Qpn::new(0x50),
        ..CmDreq::default()
    };
    b.handle(&arrives(mad_of(0x77, &dreq), 0), ms(1));
    drain(&mut b, ms(1));
    b.release(passive, &[], ms(1)).unwrap();
    let drep = the_one(drain(&mut b, ms(1)).0, AttributeId::CM_DREP);
    assert_eq!(drep.header().tid, 0x77);
}

fn rejection(mads: &[Mad]) -> Option<RejReason> {
    mads.iter().find_map(|mad| match Message::read(mad) {
        Some(Message::Rej(rej)) => Some(rej.reason),
        _ => None,
    })
}

#[test]
fn a_qp_that_is_in_a_connection_gets_into_no_other() {
    let ([mut a, mut b], _) = connected();
    // The peer has started anew, and takes the same QP.
    let mut anew = cm(0, 1);
    anew.connect(&connect(0, 0x40, None), ms(1)).unwrap();
    let req = the_one(drain(&mut anew, ms(1)).0, AttributeId::CM_REQ);
    b.handle(&arrives(req, 0), ms(1));
    let (sent, news) = drain(&mut b, ms(1));
    assert_eq!(rejection(&sent), Some(RejReason::STALE_CONNECTION));
    let stale = Failure::Stale;
    assert!(matches!(news[..], [Event::Failed { why, .. }] if why == stale));
    // The other end answers with the QP that is in the first connection.
    let mut c = cm(1, 1);
    c.listen(&Listen::to(SERVICE, 0)).unwrap();
    a.connect(&connect(0, 0x41, None), ms(1)).unwrap();
    let req = the_one(drain(&mut a, ms(1)).0, AttributeId::CM_REQ);
    c.handle(&arrives(req, 0), ms(1));
    let (_, news) = drain(&mut c, ms(1));
    let [Event::Request { conn, .. }] = news[..] else {
        panic!("{news:?}");
    };
    c.accept(conn, &accept(0x50, None), ms(1)).unwrap();
    let rep = the_one(drain(&mut c, ms(1)).0, AttributeId::CM_REP);
    a.handle(&arrives(rep, 1), ms(1));
    let (sent, _) = drain(&mut a, ms(1));
    assert_eq!(rejection(&sent), Some(RejReason::STALE_CONNECTION));
}

#[test]
fn two_peers_may_call_their_connections_the_same() {
    let ([_, mut b], [active, _]) = connected();
    let mut other = cm(0, 2);
    other.connect(&connect(0, 0x44, None), ms(1)).unwrap();
    let mad = the_one(drain(&mut other, ms(1)).0, AttributeId::CM_REQ);
    let Some(Message::Req(req)) = Message::read(&mad) else {
        panic!("{mad:?}");
    };
    let req = core_ib::wire::mad::CmReq {
        local_id: active.comm_id(),
        ca_guid: core_ib::Guid(0x555),
        ..req
    };
    b.handle(&arrives(mad_of(3, &req), 0), ms(1));
    let (sent, news) = drain(&mut b, ms(1));
    assert!(sent.is_empty() && matches!(news[..], [Event::Request { .. }]));
}

#[test]
fn two_peers_may_call_their_requests_of_services_the_same() {
    let mut b = cm(1, 0);
    b.listen(&Listen::to(SERVICE, 0)).unwrap();
    let req = CmSidrReq {
        request_id: CommId(5),
        service_id: SERVICE,
        ..CmSidrReq::default()
    };
    for lid in [20, 21, 21] {
        let mut received = arrives(mad_of(lid.into(), &req), 0);
        received.wc.slid = Lid(lid);
        b.handle(&received, ms(0));
    }
    let (_, news) = drain(&mut b, ms(0));
    assert_eq!((news.len(), b.statistics().duplicates), (2, 1));
}

#[test]
fn the_attributes_of_a_uc_connection_are_legal() {
    let mut a = cm(0, 0);
    let with = Connect {
        service: QpType::Uc,
        ..connect(0, 0x40, None)
    };
    let conn = a.connect(&with, ms(0)).unwrap();
    let check = core_ib::verbs::check_modify;
    let (rtr, mask) = a.rtr(conn).unwrap();
    let to_rtr = check(QpType::Uc, QpState::Init, &rtr, mask);
    let (rts, mask) = a.rts(conn).unwrap();
    let to_rts = check(QpType::Uc, QpState::Rtr, &rts, mask);
    assert_eq!((to_rtr, to_rts), (Ok(QpState::Rtr), Ok(QpState::Rts)));
}
