//! Every message in every state: protocols 5.10, 5.10.1, as one table.

use super::{SERVICE, TestCm, accept, arrives, cm, connect, drain, ms, path};
use crate::*;
use core_ib::wire::mad::{
    CmApr, CmDrep, CmDreq, CmLap, CmMra, CmRej, CmRep, CmReq, CmRtu, CmSubject, CommId, Mad,
    RejReason, TimeCode,
};
use core_ib::{Guid, Psn, Qpn};
use std::format;
use std::string::String;
use std::vec::Vec;

/// The peer's name of the connection, its QP, its HCA.
const PEER: CommId = CommId(0x99);
const PEER_QPN: Qpn = Qpn::new(0x50);
const PEER_GUID: Guid = Guid(0x101);
/// Of the peer's exchange.
const TID: u64 = 0x3_0000_0099;

#[derive(Clone, Copy, Debug, PartialEq)]
enum At {
    ReqSent,
    MraReqRcvd,
    RepRcvd,
    MraRepSent,
    ActiveEstablished,
    LapSent,
    ReqRcvd,
    MraReqSent,
    RepSent,
    MraRepRcvd,
    PassiveEstablished,
    LapRcvd,
    DreqSent,
    DreqRcvd,
    Timewait,
}

#[derive(Clone, Copy, Debug)]
enum Say {
    Req,
    Rep,
    Rtu,
    MraReq,
    MraRep,
    MraLap,
    Rej,
    Dreq,
    Drep,
    Lap,
    Apr,
}

const SAYS: [Say; 11] = [
    Say::Req,
    Say::Rep,
    Say::Rtu,
    Say::MraReq,
    Say::MraRep,
    Say::MraLap,
    Say::Rej,
    Say::Dreq,
    Say::Drep,
    Say::Lap,
    Say::Apr,
];

fn say(what: Say, ours: CommId, qpn: Qpn, lap_tid: u64) -> Mad {
    let (local_id, remote_id) = (PEER, ours);
    let mra = |subject| {
        let service_timeout = TimeCode(12);
        mad_of(
            TID,
            &CmMra {
                local_id,
                remote_id,
                subject,
                service_timeout,
                private: [0; 222],
            },
        )
    };
    match what {
        Say::Req => mad_of(
            TID,
            &CmReq {
                local_id,
                service_id: SERVICE,
                ca_guid: PEER_GUID,
                qpn: PEER_QPN,
                remote_timeout: TimeCode(11),
                local_timeout: TimeCode(11),
                max_cm_retries: 3,
                mtu: core_ib::Mtu::Mtu1024.into(),
                primary: path(1).to_wire(TimeCode(9)),
                ..CmReq::default()
            },
        ),
        Say::Rep => mad_of(
            TID,
            &CmRep {
                local_id,
                remote_id,
                qpn: PEER_QPN,
                psn: Psn::new(5),
                ca_guid: PEER_GUID,
                ..CmRep::default()
            },
        ),
        Say::Rtu => mad_of(
            TID,
            &CmRtu {
                local_id,
                remote_id,
                private: [0; 224],
            },
        ),
        Say::MraReq => mra(CmSubject::REQ),
        Say::MraRep => mra(CmSubject::REP),
        Say::MraLap => mra(CmSubject::OTHER),
        Say::Rej => mad_of(
            TID,
            &CmRej {
                local_id,
                remote_id,
                reason: RejReason::CONSUMER,
                ..CmRej::default()
            },
        ),
        Say::Dreq => mad_of(
            TID + 1,
            &CmDreq {
                local_id,
                remote_id,
                remote_qpn: qpn,
                private: [0; 220],
            },
        ),
        Say::Drep => mad_of(
            TID,
            &CmDrep {
                local_id,
                remote_id,
                private: [0; 224],
            },
        ),
        Say::Lap => mad_of(
            TID + 2,
            &CmLap {
                local_id,
                remote_id,
                remote_qpn: qpn,
                ..CmLap::default()
            },
        ),
        Say::Apr => mad_of(
            lap_tid,
            &CmApr {
                local_id,
                remote_id,
                ..CmApr::default()
            },
        ),
    }
}

/// A connection at that point, our name of it, our QP, and the transaction of our LAP.
fn at(point: At) -> (TestCm, ConnId, Qpn, u64) {
    use At::*;
    let mut cm = cm(0, 0);
    let now = ms(0);
    let active = matches!(
        point,
        ReqSent | MraReqRcvd | RepRcvd | MraRepSent | ActiveEstablished | LapSent
    );
    let mut lap_tid = 0;
    if active {
        let conn = cm.connect(&connect(0, 0x40, None), now).unwrap();
        let qpn = Qpn::new(0x40);
        drain(&mut cm, now);
        let hear = |cm: &mut TestCm, what| {
            cm.handle(&arrives(say(what, conn.comm_id(), qpn, 0), 1), now);
            drain(cm, now);
        };
        match point {
            ReqSent => {}
            MraReqRcvd => hear(&mut cm, Say::MraReq),
            _ => hear(&mut cm, Say::Rep),
        }
        if point == MraRepSent {
            cm.delay(conn, TimeCode(12), &[]).unwrap();
        }
        if matches!(point, ActiveEstablished | LapSent) {
            cm.ready(conn, &[]).unwrap();
        }
        drain(&mut cm, now);
        if point == LapSent {
            let with = LoadPath {
                path: path(0),
                pkey_index: 0,
                ack_delay: TimeCode(0),
                remote_timeout: TimeCode(11),
                private: &[],
            };
            cm.load_path(conn, &with, now).unwrap();
            lap_tid = drain(&mut cm, now).0[0].header().tid;
        }
        return (cm, conn, qpn, lap_tid);
    }
    let qpn = Qpn::new(0x41);
    cm.listen(&Listen::to(SERVICE, 0)).unwrap();
    cm.handle(&arrives(say(Say::Req, CommId(0), qpn, 0), 1), now);
    let (_, news) = drain(&mut cm, now);
    let [Event::Request { conn, .. }] = news[..] else {
        panic!("{news:?}");
    };
    let hear = |cm: &mut TestCm, what| {
        cm.handle(&arrives(say(what, conn.comm_id(), qpn, 0), 1), now);
        drain(cm, now);
    };
    match point {
        ReqRcvd => return (cm, conn, qpn, 0),
        MraReqSent => {
            cm.delay(conn, TimeCode(12), &[]).unwrap();
            drain(&mut cm, now);
            return (cm, conn, qpn, 0);
        }
        _ => cm.accept(conn, &accept(0x41, None), now).unwrap(),
    }
    drain(&mut cm, now);
    match point {
        RepSent => {}
        MraRepRcvd => hear(&mut cm, Say::MraRep),
        _ => hear(&mut cm, Say::Rtu),
    }
    match point {
        LapRcvd => hear(&mut cm, Say::Lap),
        DreqSent => cm.disconnect(conn, &[], now).unwrap(),
        DreqRcvd | Timewait => hear(&mut cm, Say::Dreq),
        _ => {}
    }
    if point == Timewait {
        cm.release(conn, &[], now).unwrap();
    }
    drain(&mut cm, now);
    (cm, conn, qpn, 0)
}

/// What becomes of it: the state, what is sent, what the user hears.
fn becomes(point: At, what: Say) -> String {
    let (mut cm, conn, qpn, lap_tid) = at(point);
    cm.handle(&arrives(say(what, conn.comm_id(), qpn, lap_tid), 1), ms(1));
    let (sent, news) = drain(&mut cm, ms(1));
    let state = match cm.state(conn) {
        Some(state) => format!("{state:?}"),
        None => "-".into(),
    };
    let sent: Vec<_> = sent
        .iter()
        .map(|mad| match Message::read(mad) {
            Some(Message::Rej(rej)) => format!("REJ{}", rej.reason.0),
            Some(message) => {
                let debug = format!("{message:?}");
                debug.split('(').next().unwrap().to_uppercase()
            }
            None => "?".into(),
        })
        .collect();
    let news: Vec<_> = news
        .iter()
        .map(|event| {
            let debug = format!("{event:?}");
            format!("!{}", debug.split(' ').next().unwrap())
        })
        .collect();
    [&[state][..], &sent, &news].concat().join(" ")
}

#[test]
fn every_message_does_in_every_state_what_the_reference_says() {
    let mut wrong = String::new();
    for (point, row) in TABLE {
        for (what, expected) in SAYS.into_iter().zip(row) {
            let found = becomes(point, what);
            if found != expected {
                wrong += &format!("{point:?} + {what:?}: {found}, not {expected}\n");
            }
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

/// A row a state; in each, what becomes of REQ, REP, RTU, MRA of REQ, of REP, of LAP, REJ, DREQ, DREP, LAP, APR.
const TABLE: [(At, [&str; 11]); 15] = {
    use At::*;
    [
        (
            ReqSent,
            [
                "ReqSent REJ8",
                "RepRcvd !Reply",
                "ReqSent",
                "MraReqRcvd",
                "ReqSent",
                "ReqSent",
                "- !Rejected !Gone",
                "ReqSent DREP",
                "ReqSent",
                "ReqSent APR",
                "ReqSent",
            ],
        ),
        (
            MraReqRcvd,
            [
                "MraReqRcvd REJ8",
                "RepRcvd !Reply",
                "MraReqRcvd",
                "MraReqRcvd",
                "MraReqRcvd",
                "MraReqRcvd",
                "- !Rejected !Gone",
                "MraReqRcvd DREP",
                "MraReqRcvd",
                "MraReqRcvd APR",
                "MraReqRcvd",
            ],
        ),
        (
            RepRcvd,
            [
                "RepRcvd REJ10",
                "RepRcvd",
                "RepRcvd",
                "RepRcvd",
                "RepRcvd",
                "RepRcvd",
                "Timewait !Rejected",
                "RepRcvd",
                "RepRcvd",
                "RepRcvd",
                "RepRcvd",
            ],
        ),
        (
            MraRepSent,
            [
                "MraRepSent REJ10",
                "MraRepSent MRA",
                "MraRepSent",
                "MraRepSent",
                "MraRepSent",
                "MraRepSent",
                "Timewait !Rejected",
                "MraRepSent",
                "MraRepSent",
                "MraRepSent",
                "MraRepSent",
            ],
        ),
        (
            ActiveEstablished,
            [
                "DreqSent REJ10 DREQ !Failed",
                "Established RTU",
                "Established",
                "Established",
                "Established",
                "Established",
                "Timewait !Rejected",
                "DreqRcvd !Disconnecting",
                "Established",
                "Established",
                "Established",
            ],
        ),
        (
            LapSent,
            [
                "DreqSent REJ10 DREQ !Failed",
                "Established RTU",
                "Established",
                "Established",
                "Established",
                "Established",
                "Timewait !Rejected",
                "DreqRcvd !Disconnecting",
                "Established",
                "Established",
                "Established !PathAnswered",
            ],
        ),
        (
            ReqRcvd,
            [
                "ReqRcvd",
                "ReqRcvd REJ6",
                "ReqRcvd",
                "ReqRcvd",
                "ReqRcvd",
                "ReqRcvd",
                "- !Rejected !Gone",
                "ReqRcvd",
                "ReqRcvd",
                "ReqRcvd",
                "ReqRcvd",
            ],
        ),
        (
            MraReqSent,
            [
                "MraReqSent MRA",
                "MraReqSent REJ6",
                "MraReqSent",
                "MraReqSent",
                "MraReqSent",
                "MraReqSent",
                "- !Rejected !Gone",
                "MraReqSent",
                "MraReqSent",
                "MraReqSent",
                "MraReqSent",
            ],
        ),
        (
            RepSent,
            [
                "RepSent REP",
                "RepSent REJ6",
                "Established !Established",
                "RepSent",
                "MraRepRcvd",
                "RepSent",
                "Timewait !Rejected",
                "DreqRcvd !Disconnecting",
                "RepSent",
                "RepSent",
                "RepSent",
            ],
        ),
        (
            MraRepRcvd,
            [
                "MraRepRcvd REP",
                "MraRepRcvd REJ6",
                "Established !Established",
                "MraRepRcvd",
                "MraRepRcvd",
                "MraRepRcvd",
                "Timewait !Rejected",
                "DreqRcvd !Disconnecting",
                "MraRepRcvd",
                "MraRepRcvd",
                "MraRepRcvd",
            ],
        ),
        (
            PassiveEstablished,
            [
                "Established",
                "Established REJ6",
                "Established",
                "Established",
                "Established",
                "Established",
                "Timewait !Rejected",
                "DreqRcvd !Disconnecting",
                "Established",
                "Established !PathRequested",
                "Established",
            ],
        ),
        (
            LapRcvd,
            [
                "Established",
                "Established REJ6",
                "Established",
                "Established",
                "Established",
                "Established",
                "Timewait !Rejected",
                "DreqRcvd !Disconnecting",
                "Established",
                "Established",
                "Established",
            ],
        ),
        (
            DreqSent,
            [
                "DreqSent",
                "DreqSent REJ6",
                "DreqSent",
                "DreqSent",
                "DreqSent",
                "DreqSent",
                "Timewait !Disconnected",
                "Timewait DREP !Disconnected",
                "Timewait !Disconnected",
                "DreqSent",
                "DreqSent",
            ],
        ),
        (
            DreqRcvd,
            [
                "DreqRcvd",
                "DreqRcvd REJ6",
                "DreqRcvd",
                "DreqRcvd",
                "DreqRcvd",
                "DreqRcvd",
                "DreqRcvd",
                "DreqRcvd",
                "DreqRcvd",
                "DreqRcvd",
                "DreqRcvd",
            ],
        ),
        (
            Timewait,
            [
                "Timewait REJ10",
                "Timewait REJ6",
                "Timewait",
                "Timewait",
                "Timewait",
                "Timewait",
                "Timewait",
                "Timewait DREP",
                "Timewait",
                "Timewait",
                "Timewait",
            ],
        ),
    ]
};
