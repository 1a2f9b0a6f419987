//! From the lines of a program to calls: what every program begins and ends with, and the lines that are several calls.

use super::super::conformance::Side;
use super::call::{
    Address, Call, Key, Line, Name, PLACES, Piece, QKeyOf, Remote, Send, Twist, Verb,
};
use super::model::{Half, Model, PRIMARY, Table};
use core_ib::verbs::{Access, QpState, QpType};

/// All that a region can allow.
pub const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE)
    .union(Access::MW_BIND);

/// What every program may count on: a domain, two CQs, an SRQ, a region of all rights over the first half of the memory
/// and one of none but the local one over the other, an address of each side.
pub fn prologue() -> Vec<Line> {
    let own = Name(0);
    let calls = [
        Call::AllocPd { pd: 0 },
        Call::CreateCq {
            cq: 0,
            cqe: 200,
            vector: 0,
        },
        Call::CreateCq {
            cq: 1,
            cqe: 100,
            vector: 0,
        },
        Call::CreateSrq {
            srq: 0,
            pd: own,
            wrs: 7,
            sges: 2,
        },
        Call::RegMr {
            mr: 0,
            pd: own,
            at: 0,
            len: 0x4000,
            access: ALL,
        },
        Call::RegMr {
            mr: 1,
            pd: own,
            at: 0x4000,
            len: 0x4000,
            access: Access::LOCAL_WRITE,
        },
        Call::CreateAh {
            ah: 0,
            pd: own,
            to: Address::There,
        },
        Call::CreateAh {
            ah: 1,
            pd: own,
            to: Address::Here,
        },
        Call::Fill {
            at: 0x100,
            len: 0x1000,
            seed: 0x5a,
        },
        Call::Fill {
            at: 0x4100,
            len: 0x800,
            seed: 0xc3,
        },
    ];
    let both = |side| calls.clone().map(|call| Line::Call(side, call));
    Side::BOTH.into_iter().flat_map(both).collect()
}

fn create(place: u8, service: QpType, srq: bool, all: bool) -> Call {
    Call::CreateQp {
        qp: place,
        pd: Name(0),
        service,
        cqs: [Name(0), Name(if place == 1 { 1 } else { 0 })],
        srq: (srq && service != QpType::Uc).then_some(Name(0)),
        wrs: 7,
        sges: 3,
        inline: if service == QpType::Gsi { 0 } else { 60 },
        all,
    }
}

const fn to(qp: u8, state: QpState) -> Call {
    Call::Modify {
        qp: Name(qp),
        to: Some(state),
        twist: Twist::None,
    }
}

/// Attributes that change in RTS.
const fn twisted(qp: u8, twist: Twist) -> Call {
    Call::Modify {
        qp: Name(qp),
        to: Some(QpState::Rts),
        twist,
    }
}

/// A message that needs no receive.
fn write(qp: u8) -> Call {
    let key = Key::Mr(Name(0));
    Call::PostSend {
        qp: Name(qp),
        wrs: vec![Send {
            verb: Verb::Write {
                remote: Remote { key, at: 0x200 },
                imm: false,
            },
            pieces: vec![Piece {
                key,
                at: 0x300,
                len: 8,
            }],
            inline: None,
            signaled: true,
            solicited: false,
            fence: false,
            stubborn: true,
        }],
    }
}

/// A QP and its partner.
fn ends(side: Side, qp: u8, model: &Model) -> [(Side, u8); 2] {
    let place = qp % PLACES;
    let (there, at) = model.partner_of(side.index(), usize::from(place));
    [(side, place), (Side::BOTH[there], at as u8)]
}

/// A few large receives.
fn receives(qp: u8, srq: bool) -> Call {
    let piece = |at: u16| {
        let (key, at, len) = (Key::Mr(Name(1)), 0x4000 + at * 0x800, 0x800);
        vec![Piece { key, at, len }]
    };
    let wrs = (0..4).map(piece).collect();
    match srq {
        true => Call::PostSrq { srq: Name(0), wrs },
        false => Call::PostRecv { qp: Name(qp), wrs },
    }
}

/// Aims a call that chance has made: a name that never was anything becomes one that was, a place that is taken another,
/// and a request one of the service of its QP.
fn fit(side: usize, call: &Call, model: &Model) -> Call {
    let half = &model.sides[side];
    let mut call = call.clone();
    match &mut call {
        Call::AllocPd { pd } => *pd = free(&half.pds, *pd),
        Call::CreateCq { cq, .. } => *cq = free(&half.cqs, *cq),
        Call::CreateSrq { srq, .. } => *srq = free(&half.srqs, *srq).min(1),
        Call::CreateQp { qp, .. } => *qp = free(&half.qps, *qp),
        Call::RegMr { mr, .. } => *mr = free(&half.mrs, *mr),
        Call::AllocMw { mw, .. } => *mw = free(&half.mws, *mw),
        Call::AllocFmr { fmr, .. } => *fmr = free(&half.fmrs, *fmr),
        Call::CreateAh { ah, .. } => *ah = free(&half.ahs, *ah),
        Call::DeallocMw { mw } => known(&half.mws, mw),
        Call::MapFmr { fmr, .. } | Call::DeallocFmr { fmr } => known(&half.fmrs, fmr),
        Call::UnmapFmrs { fmrs } => fmrs.iter_mut().for_each(|fmr| known(&half.fmrs, fmr)),
        Call::Modify { qp, .. }
        | Call::Query { qp }
        | Call::DestroyQp { qp }
        | Call::Attach { qp, .. }
        | Call::Detach { qp, .. } => known(&half.qps, qp),
        Call::PostRecv { qp, wrs } => {
            known(&half.qps, qp);
            wrs.iter_mut()
                .flatten()
                .for_each(|piece| known_key(half, &mut piece.key));
        }
        Call::PostSrq { wrs, .. } => {
            wrs.iter_mut()
                .flatten()
                .for_each(|piece| known_key(half, &mut piece.key));
        }
        Call::PostSend { qp, wrs } => {
            known(&half.qps, qp);
            let place = usize::from(qp.0 % PLACES);
            let there = &model.sides[model.there(side, place)];
            let service = half.qps.get(place).map(|qp| qp.service);
            for wr in wrs {
                wr.pieces
                    .iter_mut()
                    .for_each(|piece| known_key(half, &mut piece.key));
                fit_verb(wr, service.filter(|_| !wr.stubborn), half, there);
                if service == Some(QpType::Gsi) && !wr.stubborn {
                    fit_mad(wr);
                }
            }
        }
        _ => {}
    }
    call
}

/// A MAD has 256 bytes, and no immediate data.
fn fit_mad(wr: &mut Send) {
    let at = wr.pieces.first().map_or(0x200, |piece| piece.at % 0x3000);
    let key = Key::Mr(Name(0));
    wr.pieces = vec![Piece { key, at, len: 256 }];
    wr.inline = None;
    if let Verb::Datagram { imm, .. } = &mut wr.verb {
        *imm = false;
    }
}

fn fit_verb(wr: &mut Send, service: Option<QpType>, half: &Half, there: &Half) {
    let imm = wr.solicited;
    wr.verb = match (wr.verb, service) {
        (Verb::Datagram { imm, .. }, Some(QpType::Rc | QpType::Uc)) => Verb::Send { imm },
        (Verb::Datagram { .. }, _) => wr.verb,
        (_, Some(QpType::Ud | QpType::Gsi)) => {
            let to = wr
                .pieces
                .first()
                .map_or(0, |piece| piece.at as u8 / 8 % PLACES);
            Verb::Datagram {
                ah: Name(to % 2),
                to,
                qkey: QKeyOf::Right,
                imm,
            }
        }
        (
            Verb::Read { remote } | Verb::Add { remote } | Verb::Swap { remote, .. },
            Some(QpType::Uc),
        ) => Verb::Write { remote, imm },
        (verb, _) => verb,
    };
    match &mut wr.verb {
        Verb::Write { remote, .. }
        | Verb::Read { remote }
        | Verb::Swap { remote, .. }
        | Verb::Add { remote } => {
            known_key(there, &mut remote.key);
        }
        Verb::Bind { mw, mr, .. } => {
            known(&half.mws, mw);
            known(&half.mrs, mr);
        }
        Verb::Datagram { ah, .. } => known(&half.ahs, ah),
        Verb::Invalidate { remote } => known_key(there, remote),
        Verb::LocalInvalidate { key } => known_key(half, key),
        Verb::Send { .. } => {}
    }
}

/// That place, or the next that is free.
fn free<T>(table: &Table<T>, place: u8) -> u8 {
    let places = (place..PLACES).chain(0..place);
    let mut free = places.filter(|&place| table.get(place.into()).is_none());
    free.next().unwrap_or(place)
}

/// That name, or that of the next place where anything ever was.
fn known<T>(table: &Table<T>, name: &mut Name) {
    if name.0 < PLACES {
        let places = (name.0..PLACES).chain(0..name.0);
        let mut known = places.filter(|&place| table.place(place.into()).used);
        name.0 = known.next().unwrap_or(name.0);
    }
}

/// The same of a key; a region's if there is none.
fn known_key(half: &Half, key: &mut Key) {
    let made = match key {
        Key::Wild | Key::Mr(Name(PLACES..) | Name(0)) => true,
        Key::Mr(name) => half.mr_keys[usize::from(name.0)].is_some(),
        Key::Mw(name) => half
            .mw_keys
            .get(usize::from(name.0))
            .is_some_and(Option::is_some),
        Key::Fmr(name) => half
            .fmr_keys
            .get(usize::from(name.0))
            .is_some_and(Option::is_some),
    };
    if !made {
        *key = Key::Mr(Name(0));
    }
}

/// The calls that a line stands for, at this moment.
pub fn calls_of(line: &Line, model: &Model) -> Vec<(Side, Call)> {
    use QpState::{Error, Init, Reset, Rtr, Rts, Sqd, Sqe};
    match *line {
        Line::Call(side, ref call) => vec![(side, fit(side.index(), call, model))],
        Line::Connect {
            service,
            place,
            side,
            srq,
            all,
        } => {
            let place = place % 4;
            let ends = match place {
                0 | 1 => [(side, place), (side.peer(), place)],
                _ => [(side, 2), (side, 3)],
            };
            let mut calls = Vec::new();
            calls.extend(ends.map(|(side, place)| (side, create(place, service, srq, all))));
            for state in [Init, Rtr, Rts] {
                calls.extend(ends.map(|(side, place)| (side, to(place, state))));
            }
            calls.extend(
                ends.map(|(side, place)| (side, receives(place, srq && service != QpType::Uc))),
            );
            calls
        }
        Line::Datagrams {
            place,
            side,
            srq,
            special,
        } => {
            let (service, srq) = match special {
                true => (QpType::Gsi, false),
                false => (QpType::Ud, srq),
            };
            let mut calls = vec![(side, create(place % 4, service, srq, false))];
            calls.extend([Init, Rtr, Rts].map(|state| (side, to(place % 4, state))));
            calls.push((side, receives(place % 4, srq)));
            calls
        }
        Line::Bring { side, qp, to: goal } => {
            let known = model.sides[side.index()].qps.get(usize::from(qp % 4));
            let from = known.map_or(Reset, |qp| qp.state);
            let up = [Init, Rtr, Rts, Sqd];
            let at = |state| up.iter().position(|step| *step == state);
            let way: Vec<QpState> = match (from, goal) {
                (_, Reset | Error | Sqe) => vec![goal],
                (Sqd, Rts) => vec![Rts],
                _ => match (at(from), at(goal)) {
                    (Some(now), Some(then)) if now < then => up[now + 1..=then].to_vec(),
                    (_, Some(then)) if from == Reset => up[..=then].to_vec(),
                    (_, Some(then)) => [Reset]
                        .into_iter()
                        .chain(up[..=then].iter().copied())
                        .collect(),
                    _ => vec![goal],
                },
            };
            way.into_iter()
                .map(|state| (side, to(qp % 4, state)))
                .collect()
        }
        Line::Arm { side, qp } => {
            let ends = ends(side, qp, model);
            let load = |(side, qp)| (side, twisted(qp, Twist::Alternate { rearm: true }));
            let mut calls: Vec<_> = ends.into_iter().map(load).collect();
            calls.extend([0, 1, 0].map(|end| (ends[end].0, write(ends[end].1))));
            calls
        }
        Line::Move { side, qp, lost } => {
            let ends = ends(side, qp, model);
            let known = model.sides[side.index()].qps.get(usize::from(ends[0].1));
            let path = Some(known.map_or(PRIMARY, |qp| qp.path));
            let mut calls = vec![match lost {
                true => (side, Call::Lose { path }),
                false => (side, twisted(ends[0].1, Twist::Migrate)),
            }];
            calls.extend(ends.map(|(side, qp)| (side, write(qp))));
            if lost {
                calls.push((side, Call::Lose { path: None }));
            }
            calls
        }
        Line::Stop { side, qp, told } => {
            let [(_, place), (there, at)] = ends(side, qp, model);
            let peer = model.sides[there.index()].qps.get(at.into());
            let (free, srq) = peer.map_or((0, false), |peer| (peer.rq.len(), peer.srq.is_some()));
            let send = Send {
                verb: Verb::Send { imm: false },
                pieces: Vec::new(),
                inline: None,
                signaled: true,
                solicited: false,
                fence: false,
                stubborn: true,
            };
            let post = |count| Call::PostSend {
                qp: Name(place),
                wrs: vec![send.clone(); count],
            };
            let stop = Call::Modify {
                qp: Name(place),
                to: Some(Sqd),
                twist: if told { Twist::Drained } else { Twist::None },
            };
            let here = [
                post(free + 1),
                stop,
                post(2),
                to(place, Sqd),
                to(place, Rts),
            ];
            let mut calls: Vec<_> = here.into_iter().map(|call| (side, call)).collect();
            calls.push((there, receives(at, srq)));
            calls.push((side, to(place, Rts)));
            calls
        }
        Line::Drain { side, cq } => {
            let cq = Name(cq % 4);
            [255, 1]
                .map(|room| (side, Call::Poll { cq, room }))
                .to_vec()
        }
    }
}

/// Looks at everything that there is.
pub fn look_at_all(side: Side, model: &Model) -> Vec<(Side, Call)> {
    let half = &model.sides[side.index()];
    let name = |place: usize| Name(place as u8);
    let mut calls = Vec::new();
    calls.extend(half.qps.live().map(|(qp, _)| Call::Query { qp: name(qp) }));
    calls.extend(
        half.srqs
            .live()
            .map(|(srq, _)| Call::QuerySrq { srq: name(srq) }),
    );
    calls.extend(
        half.ahs
            .live()
            .map(|(ah, _)| Call::QueryAh { ah: name(ah) }),
    );
    calls.extend(half.cqs.live().map(|(cq, _)| Call::Poll {
        cq: name(cq),
        room: 255,
    }));
    calls.into_iter().map(|call| (side, call)).collect()
}

/// Ends the QPs.
pub fn end_of_queues(side: Side, model: &Model) -> Vec<Call> {
    let mut calls = Vec::new();
    for (place, qp) in model.sides[side.index()].qps.live() {
        let name = Name(place as u8);
        calls.extend(qp.groups.iter().map(|group| Call::Detach {
            qp: name,
            group: *group,
        }));
        calls.push(Call::DestroyQp { qp: name });
    }
    calls
}

/// Ends all else, in the order that always works: verbs 1.3. No QP is left.
pub fn end_of_the_rest(side: Side, model: &Model) -> Vec<Call> {
    let half = &model.sides[side.index()];
    let name = |place: usize| Name(place as u8);
    let mut calls = Vec::new();
    calls.extend(
        half.srqs
            .live()
            .map(|(srq, _)| Call::DestroySrq { srq: name(srq) }),
    );
    calls.extend(
        half.mws
            .live()
            .map(|(mw, _)| Call::DeallocMw { mw: name(mw) }),
    );
    let fmrs: Vec<Name> = half.fmrs.live().map(|(fmr, _)| name(fmr)).collect();
    if !fmrs.is_empty() {
        calls.push(Call::UnmapFmrs { fmrs: fmrs.clone() });
    }
    calls.extend(fmrs.into_iter().map(|fmr| Call::DeallocFmr { fmr }));
    calls.extend(
        half.mrs
            .live()
            .map(|(mr, _)| Call::DeregMr { mr: name(mr) }),
    );
    calls.extend(
        half.ahs
            .live()
            .map(|(ah, _)| Call::DestroyAh { ah: name(ah) }),
    );
    calls.extend(
        half.cqs
            .live()
            .map(|(cq, _)| Call::DestroyCq { cq: name(cq) }),
    );
    calls.extend(
        half.pds
            .live()
            .map(|(pd, _)| Call::DeallocPd { pd: name(pd) }),
    );
    calls
}
