//! What is said is heeded: each value of a message, and by whom it is said.

use super::{SERVICE, TestCm, accept, arrives, cm, connect, connected, drain, ms, path, the_one};
use crate::*;
use core_ib::verbs::{QpAttrMask, QpHandle};
use core_ib::wire::mad::{
    AttributeId, CmApr, CmDreq, CmMra, CmRej, CmReq, CmRtu, CmSubject, CommId, Failover, MtuCode,
    RejReason, TimeCode,
};
use core_ib::{Instant, Lid, Qpn};
use std::vec::Vec;

const ACTIVE_QP: QpHandle = QpHandle::new(1, 2, 3);

/// 0 asks for `with`; the REQ has come to 1, whose user knows of it.
fn asked(with: &Connect<'_>) -> ([TestCm; 2], [ConnId; 2], CmReq) {
    let [mut a, mut b] = [cm(0, 0), cm(1, 0)];
    b.listen(&Listen::to(SERVICE, 0)).unwrap();
    let active = a.connect(with, ms(0)).unwrap();
    let mad = the_one(drain(&mut a, ms(0)).0, AttributeId::CM_REQ);
    b.handle(&arrives(mad, 0), ms(0));
    let (_, news) = drain(&mut b, ms(0));
    let [Event::Request { conn, req, .. }] = news[..] else {
        panic!("{news:?}");
    };
    ([a, b], [active, conn], req)
}

fn two_paths() -> Connect<'static> {
    Connect {
        alternate: Some(Path {
            remote_lid: Lid(0x21),
            ..path(0)
        }),
        responder_resources: 4,
        initiator_depth: 9,
        ..connect(0, 0x40, Some(ACTIVE_QP))
    }
}

#[test]
fn a_request_says_what_its_user_wants() {
    let (.., req) = asked(&two_paths());
    assert_eq!((req.responder_resources, req.initiator_depth), (4, 9));
    assert_eq!(
        (req.alternate.remote_lid, req.primary.remote_lid),
        (Lid(0x21), Lid(11))
    );
}

#[test]
fn a_request_of_an_mtu_that_is_none_is_rejected() {
    let (.., req) = asked(&connect(0, 0x40, None));
    let mut b = cm(1, 0);
    b.listen(&Listen::to(SERVICE, 0)).unwrap();
    let req = CmReq {
        mtu: MtuCode(0),
        ..req
    };
    b.handle(&arrives(mad_of(1, &req), 0), ms(0));
    let (sent, news) = drain(&mut b, ms(0));
    let Some(Message::Rej(rej)) = Message::read(&sent[0]) else {
        panic!("{sent:?}");
    };
    assert_eq!((rej.reason, news), (RejReason::INVALID_MTU, Vec::new()));
}

#[test]
fn the_lesser_of_both_is_served_and_an_alternate_path_that_is_not_taken_is_not_loaded() {
    let ([mut a, mut b], [active, passive], _) = asked(&two_paths());
    let with = Accept {
        responder_resources: 20,
        initiator_depth: 2,
        ack_delay: TimeCode(14),
        ..accept(0x50, None)
    };
    b.accept(passive, &with, ms(0)).unwrap();
    let rep = the_one(drain(&mut b, ms(0)).0, AttributeId::CM_REP);
    let Some(Message::Rep(said)) = Message::read(&rep) else {
        panic!("{rep:?}");
    };
    assert_eq!((said.responder_resources, said.initiator_depth), (9, 2));
    assert_eq!(said.failover, Failover::UNSUPPORTED);
    let said = core_ib::wire::mad::CmRep {
        responder_resources: 3, // fewer than were asked for
        ..said
    };
    a.handle(&arrives(mad_of(rep.header().tid, &said), 1), ms(0));
    let (rtr, mask) = a.rtr(active).unwrap();
    assert!(!mask.contains(QpAttrMask::ALT_PATH));
    let (rts, _) = a.rts(active).unwrap();
    assert_eq!((rts.max_rd_atomic, rtr.max_dest_rd_atomic), (3, 2));
    // The HCA of the peer takes 67 ms: its delay, and the way beside.
    assert_eq!(rts.timeout, 14);
}

#[test]
fn messages_of_another_peer_or_qp_change_nothing() {
    let ([mut a, mut b], [active, passive]) = connected();
    let (ours, theirs) = (passive.comm_id(), active.comm_id());
    let other = CommId(0x1234);
    let from = |local_id| CmRej {
        local_id,
        remote_id: ours,
        ..CmRej::default()
    };
    b.handle(&arrives(mad_of(9, &from(other)), 0), ms(1));
    let dreq = CmDreq {
        local_id: theirs,
        remote_id: ours,
        remote_qpn: Qpn::new(0x51),
        ..CmDreq::default()
    };
    b.handle(&arrives(mad_of(9, &dreq), 0), ms(1));
    let with = LoadPath {
        path: path(0),
        pkey_index: 0,
        ack_delay: TimeCode(0),
        remote_timeout: TimeCode(11),
        private: &[],
    };
    a.load_path(active, &with, ms(1)).unwrap();
    let lap = the_one(drain(&mut a, ms(1)).0, AttributeId::CM_LAP);
    let Some(Message::Lap(said)) = Message::read(&lap) else {
        panic!("{lap:?}");
    };
    let said = core_ib::wire::mad::CmLap {
        remote_qpn: Qpn::new(0x51),
        ..said
    };
    b.handle(&arrives(mad_of(9, &said), 0), ms(1));
    let apr = CmApr {
        local_id: ours,
        remote_id: theirs,
        ..CmApr::default()
    };
    a.handle(&arrives(mad_of(lap.header().tid ^ 1, &apr), 1), ms(1)); // of another offer
    assert_eq!([drain(&mut a, ms(1)).1, drain(&mut b, ms(1)).1], [[], []]);
    assert_eq!(b.state(passive), Some(State::Established));
    assert_eq!([&a, &b].map(|cm| cm.statistics().strays), [1, 3]);
}

#[test]
fn an_rtu_of_another_peer_establishes_nothing() {
    let ([_, mut b], [_, passive], req) = asked(&connect(0, 0x40, None));
    b.accept(passive, &accept(0x50, None), ms(0)).unwrap();
    drain(&mut b, ms(0));
    let rtu = |local_id| CmRtu {
        local_id,
        remote_id: passive.comm_id(),
        private: [0; 224],
    };
    b.handle(&arrives(mad_of(1, &rtu(CommId(0x1234))), 0), ms(0));
    assert_eq!(b.state(passive), Some(State::RepSent));
    b.handle(&arrives(mad_of(1, &rtu(req.local_id)), 0), ms(0));
    assert_eq!(b.state(passive), Some(State::Established));
}

#[test]
fn one_whose_qp_is_called_stale_lets_it_rest() {
    let mut a = cm(0, 0);
    let active = a.connect(&connect(0, 0x40, None), ms(0)).unwrap();
    drain(&mut a, ms(0));
    let rej = CmRej {
        remote_id: active.comm_id(),
        reason: RejReason::STALE_CONNECTION,
        ..CmRej::default()
    };
    a.handle(&arrives(mad_of(1, &rej), 1), ms(0));
    drain(&mut a, ms(0));
    assert_eq!(a.state(active), Some(State::Timewait));
}

#[test]
fn a_rejection_says_what_it_rejects_and_all_that_its_user_adds() {
    let ([mut a, mut b], [active, passive], _) = asked(&connect(0, 0x40, None));
    b.accept(passive, &accept(0x50, None), ms(0)).unwrap();
    let rep = the_one(drain(&mut b, ms(0)).0, AttributeId::CM_REP);
    a.handle(&arrives(rep, 1), ms(0));
    drain(&mut a, ms(0));
    let why = RejReason::CONSUMER;
    a.reject(active, why, &[7; 5], b"no", ms(0)).unwrap();
    let rej = the_one(drain(&mut a, ms(0)).0, AttributeId::CM_REJ);
    let Some(Message::Rej(rej)) = Message::read(&rej) else {
        panic!("{rej:?}");
    };
    assert_eq!((rej.subject, rej.ari_len), (CmSubject::REP, 5));
    assert_eq!(
        (&rej.ari[..6], &rej.private[..3]),
        (&[7, 7, 7, 7, 7, 0][..], &b"no\0"[..])
    );
}

fn wait_of(cm: &mut TestCm, now: Instant) -> Instant {
    match cm.poll(now) {
        CmNext::WaitUntil(at) => at,
        other => panic!("{other:?}"),
    }
}

#[test]
fn who_asks_for_time_gets_it_once() {
    let ([mut a, mut b], [active, passive], _) = asked(&connect(0, 0x40, None));
    b.delay(passive, TimeCode(16), &[]).unwrap();
    let mra = the_one(drain(&mut b, ms(0)).0, AttributeId::CM_MRA);
    let Some(Message::Mra(CmMra {
        service_timeout, ..
    })) = Message::read(&mra)
    else {
        panic!("{mra:?}");
    };
    assert_eq!(service_timeout, TimeCode(16));
    a.handle(&arrives(mra, 1), ms(0));
    assert_eq!(a.state(active), Some(State::MraReqRcvd));
    // 268.4 ms, and twice 1.05 ms on the way.
    let until = wait_of(&mut a, ms(0));
    assert_eq!(until, Instant((4096 << 16) + (4096 << 9)));
    the_one(drain(&mut a, until).0, AttributeId::CM_REQ);
    assert_eq!(a.state(active), Some(State::ReqSent));
    assert_eq!(
        wait_of(&mut a, until),
        Instant(until.0 + (4096 << 11) + (4096 << 9))
    );
}
