//! Runs a program on two HCAs and on the model, and compares call by call and completion by completion.

use super::super::conformance::Declared;
use super::super::conformance::Side;
use super::super::conformance::tools::{Buffer, QKEY, bring_up_pair};
use super::call::{Address, Call, Name, Piece, Program, QKeyOf, Remote, Send, Verb};
use super::lines;
use super::model::{
    ARENA, Affiliated, Armed, BASE, Completion, Error, Model, Open, Want, immediate, inline,
    is_error, operands,
};
use super::objects::{Objects, address, group, handle};
use core::fmt::Debug;
use core::time::Duration;
use core_ib::platform::{DmaBuf, Platform};
use core_ib::verbs::{
    AsyncEvent, CompletionQueue, CqInit, FmrInit, Imm, MrInit, MwKind, Owner, PostError, QpCaps,
    QpInit, QueuePair, RecvWr, RemoteAddr, SendFlags, SendOp, SendWr, Sge, SharedReceiveQueue,
    Signaling, SrqInit, Verbs, VerbsError, WcFlags, WorkCompletion,
};
use core_ib::{LKey, QKey, Qpn, RKey};
use std::collections::BTreeMap;

/// Longer than anything takes that a program sets going: retries at timeouts of a millisecond, twice.
const SETTLE: Duration = Duration::from_millis(16);

/// A key that nobody has.
const WILD: u32 = 0xdead_be00;

/// Where device and model part.
pub type Disagreement = String;

/// What programs have done.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Calls made, and compared.
    pub calls: u64,
    /// Of those, answered with an error.
    pub refused: u64,
    /// Requests of lists that were posted.
    pub posted: u64,
    /// Completions compared.
    pub completions: u64,
    /// By status.
    pub statuses: BTreeMap<String, u64>,
    /// Asynchronous events.
    pub events: u64,
    /// Calls left out, since the page leaves open what comes of them: by reason.
    pub open: BTreeMap<&'static str, u64>,
    /// Calls by kind.
    pub kinds: BTreeMap<String, u64>,
}

impl Tally {
    /// Adds another.
    pub fn add(&mut self, other: &Self) {
        self.calls += other.calls;
        self.refused += other.refused;
        self.posted += other.posted;
        self.completions += other.completions;
        self.events += other.events;
        for (status, count) in &other.statuses {
            *self.statuses.entry(status.clone()).or_default() += count;
        }
        for (why, count) in &other.open {
            *self.open.entry(why).or_default() += count;
        }
        for (kind, count) in &other.kinds {
            *self.kinds.entry(kind.clone()).or_default() += count;
        }
    }
}

/// Two HCAs on a cable, freshly opened.
pub struct Pair<'a, P, D> {
    /// The HCAs.
    pub hcas: [&'a D; 2],
    /// The machines that they are in.
    pub machines: [&'a P; 2],
    /// What they can, and chose.
    pub declared: &'a Declared,
}

struct Run<'a, P: Platform, D> {
    pair: &'a Pair<'a, P, D>,
    model: Model,
    objects: [Objects; 2],
    arenas: [DmaBuf<'a, P>; 2],
    tally: Tally,
}

/// Runs `program`, ends all that it left, and says what it did, or where the two part. Blocks.
pub fn run<P: Platform, D: Verbs>(
    pair: &Pair<'_, P, D>,
    program: &Program,
) -> Result<Tally, Disagreement> {
    let both = [0, 1];
    bring_up_pair(both.map(|side| (pair.hcas[side], pair.machines[side])));
    pair.machines[0].sleep(SETTLE);
    for hca in pair.hcas {
        while hca.next_async_event().is_some() {}
    }
    let limits = pair.hcas[0].query_device();
    let mut run = Run {
        pair,
        model: Model::new(pair.declared, limits),
        objects: Default::default(),
        arenas: both.map(|side| DmaBuf::new(pair.machines[side], ARENA, 4096).unwrap()),
        tally: Tally::default(),
    };
    for line in lines::prologue().iter().chain(program) {
        for (side, call) in lines::calls_of(line, &run.model) {
            run.call(side, &call)?;
        }
    }
    for side in Side::BOTH {
        for (side, call) in lines::look_at_all(side, &run.model) {
            run.call(side, &call)?;
        }
    }
    for end in [lines::end_of_queues, lines::end_of_the_rest] {
        for side in Side::BOTH {
            for call in end(side, &run.model) {
                run.call(side, &call)?;
            }
        }
    }
    Ok(run.tally)
}

impl<'a, P: Platform, D: Verbs> Run<'a, P, D> {
    fn call(&mut self, side: Side, call: &Call) -> Result<(), Disagreement> {
        if let Call::Modify { qp, .. } = call {
            // So that the driver knows of a move that the HCA made by itself: verbs 3.3.
            let query = Call::Query { qp: *qp };
            self.one(side, &query)?;
        }
        self.one(side, call)
    }

    fn one(&mut self, side: Side, call: &Call) -> Result<(), Disagreement> {
        let mut next = self.model.clone();
        let want = match next.call(side, call) {
            Ok(want) => want,
            Err(Open(why)) => {
                *self.tally.open.entry(why).or_default() += 1;
                return Ok(());
            }
        };
        let before = core::mem::replace(&mut self.model, next);
        let done = self.carry_out(&before, side.index(), call, &want);
        let done = done.and_then(|()| self.look(call));
        done.map_err(|what| format!("{side:?}: {call:?}\n  wanted {want:?}\n  {what}"))?;
        self.tally.calls += 1;
        self.tally.refused += u64::from(matches!(want, Want::Fails(_) | Want::Stops(..)));
        let kind = format!("{call:?}");
        let kind = kind
            .split([' ', '{'])
            .next()
            .unwrap_or_default()
            .to_string();
        *self.tally.kinds.entry(kind).or_default() += 1;
        Ok(())
    }

    /// What is seen without a call: memory, events, firings.
    fn look(&mut self, call: &Call) -> Result<(), Disagreement> {
        let quiet = matches!(
            call,
            Call::Poll { .. } | Call::Query { .. } | Call::QueryPort { .. }
        );
        if matches!(call, Call::PostRecv { .. }) {
            self.pair.machines[0].sleep(SETTLE.max(self.pair.declared.late_flush));
        } else if !quiet {
            self.pair.machines[0].sleep(SETTLE);
        }
        self.look_at_memory()?;
        self.look_at_events()?;
        for side in 0..2 {
            for place in 0..4 {
                let Some(cq) = self.model.sides[side].cqs.get_mut(place) else {
                    continue;
                };
                let handle = self.objects[side].cqs[place].expect("live");
                let fired = self.pair.hcas[side].take_cq_event(handle);
                match cq.fired {
                    Some(expected) if expected != fired => {
                        return Err(format!(
                            "CQ {place} of side {side}: fired {fired}, {expected} expected"
                        ));
                    }
                    None if fired => cq.armed = Armed::No,
                    _ => {}
                }
                cq.fired = Some(false);
            }
        }
        Ok(())
    }

    fn look_at_memory(&mut self) -> Result<(), Disagreement> {
        let unknown = core::mem::take(&mut self.model.unknown);
        let mut actual = vec![0; ARENA];
        for side in 0..2 {
            self.arenas[side]
                .copy_out(0, &mut actual)
                .expect("the arena");
            let model = &mut self.model.sides[side].arena;
            for (_, range) in unknown.iter().filter(|(of, _)| *of == side) {
                model[range.clone()].copy_from_slice(&actual[range.clone()]);
            }
            if *model != actual {
                let at = model
                    .iter()
                    .zip(&actual)
                    .position(|(a, b)| a != b)
                    .unwrap_or(0);
                let (is, should) = (actual[at], model[at]);
                return Err(format!(
                    "memory of side {side} at {at:#x}: {is:#04x}, {should:#04x} expected"
                ));
            }
        }
        Ok(())
    }

    fn look_at_events(&mut self) -> Result<(), Disagreement> {
        let mut seen = Vec::new();
        for side in 0..2 {
            while let Some(event) = self.pair.hcas[side].next_async_event() {
                seen.push((side, event));
            }
        }
        self.tally.events += seen.len() as u64;
        let expected = core::mem::take(&mut self.model.events);
        let matches = |expected: &super::model::Expected, &(side, event): &(usize, AsyncEvent)| {
            let objects = &self.objects[expected.side];
            expected.side == side
                && match (&expected.what, event) {
                    (Affiliated::Qp(place, kinds), AsyncEvent::Qp(qp, kind)) => {
                        objects.qps[*place] == Some(qp) && kinds.contains(&kind)
                    }
                    (Affiliated::Srq(place, kind), AsyncEvent::Srq(srq, is)) => {
                        objects.srqs[*place] == Some(srq) && *kind == is
                    }
                    _ => false,
                }
        };
        if let Some(event) = seen
            .iter()
            .find(|event| !expected.iter().any(|known| matches(known, event)))
        {
            return Err(format!("unexpected {event:?}; expected {expected:?}"));
        }
        let missing = expected
            .iter()
            .find(|known| known.must && !seen.iter().any(|event| matches(known, event)));
        match missing {
            Some(missing) => Err(format!("missing {missing:?}; came {seen:?}")),
            None => Ok(()),
        }
    }

    fn answer<T: Debug>(
        want: &Want,
        answer: Result<T, VerbsError>,
    ) -> Result<Option<T>, Disagreement> {
        match (want, answer) {
            (Want::Fails(kinds), Err(error)) if kinds.contains(&Error::from(error)) => Ok(None),
            (Want::Fails(_), answer) => Err(format!("answered {answer:?}")),
            (_, Ok(answer)) => Ok(Some(answer)),
            (_, Err(error)) => Err(format!("answered {error:?}")),
        }
    }

    fn posted(
        &mut self,
        want: &Want,
        count: usize,
        answer: Result<(), PostError>,
    ) -> Result<(), Disagreement> {
        let right = match (want, answer) {
            (Want::Posted, Ok(())) => Some(count),
            (Want::Stops(index, causes), Err(error)) => {
                (error.index == *index && causes.contains(&error.cause)).then_some(*index)
            }
            _ => None,
        };
        let posted = right.ok_or_else(|| format!("answered {answer:?}"))?;
        self.tally.posted += posted as u64;
        self.model.wr_id += count as u64;
        Ok(())
    }

    fn sge(model: &Model, side: usize, piece: &Piece) -> Sge {
        // None where the call is refused before anybody looks at its keys.
        let key = model.key(side, piece.key, false).unwrap_or(WILD);
        Sge {
            addr: BASE + u64::from(piece.at),
            length: u32::from(piece.len),
            lkey: LKey(key),
        }
    }

    fn carry_out(
        &mut self,
        before: &Model,
        side: usize,
        call: &Call,
        want: &Want,
    ) -> Result<(), Disagreement> {
        let hca = self.pair.hcas[side];
        let objects = &self.objects;
        match call {
            Call::AllocPd { pd } => {
                let pd_handle = Self::answer(want, hca.alloc_pd())?;
                self.objects[side].pds[usize::from(*pd)] = pd_handle;
            }
            Call::DeallocPd { pd } => {
                Self::answer(
                    want,
                    hca.dealloc_pd(handle(objects, side, *pd, |all| &all.pds)),
                )?;
            }
            Call::CreateCq { cq, cqe, vector } => {
                let (cqe, vector, owner) = (*cqe, *vector, Owner::Kernel);
                let made = Self::answer(want, hca.create_cq(&CqInit { cqe, vector, owner }))?;
                if let Some(made) = made {
                    let place = usize::from(*cq);
                    self.objects[side].cqs[place] = Some(made.handle);
                    self.grown(side, place, cqe, made.size)?;
                }
            }
            Call::ResizeCq { cq, cqe } => {
                let name = *cq;
                let cq = handle(objects, side, name, |all| &all.cqs);
                if let Some(size) = Self::answer(want, hca.resize_cq(cq, *cqe))? {
                    self.grown(side, usize::from(name.0), *cqe, size)?;
                }
            }
            Call::DestroyCq { cq } => {
                Self::answer(
                    want,
                    hca.destroy_cq(handle(objects, side, *cq, |all| &all.cqs)),
                )?;
            }
            Call::Arm { cq, kind } => {
                let cq = handle(objects, side, *cq, |all| &all.cqs);
                Self::answer(want, hca.cq(cq).and_then(|cq| cq.req_notify(*kind)))?;
            }
            Call::Poll { cq, room } => {
                let place = *cq;
                let cq = handle(objects, side, *cq, |all| &all.cqs);
                let mut into = vec![WorkCompletion::EMPTY; usize::from(*room)];
                let got = Self::answer(want, hca.cq(cq).and_then(|cq| cq.poll(&mut into)))?;
                if let Some(got) = got {
                    self.polled(side, usize::from(place.0), want, &into[..got])?;
                }
            }
            Call::CreateSrq { srq, pd, wrs, sges } => {
                let pd = handle(objects, side, *pd, |all| &all.pds);
                let (max_wr, max_sge, owner) = (*wrs, *sges, Owner::Kernel);
                let made = hca.create_srq(&SrqInit {
                    pd,
                    max_wr,
                    max_sge,
                    owner,
                });
                if let Some(made) = Self::answer(want, made)? {
                    let place = usize::from(*srq);
                    self.objects[side].srqs[place] = Some(made.handle);
                    let attr = hca
                        .query_srq(made.handle)
                        .map_err(|error| error.to_string())?;
                    if made.size < *wrs || attr.max_sge < *sges || attr.limit != 0 {
                        return Err(format!("{made:?}, {attr:?}"));
                    }
                    let srq = self.model.sides[side].srqs.get_mut(place).expect("made");
                    (srq.size, srq.sges) = (made.size, attr.max_sge);
                }
            }
            Call::ArmSrq { srq, limit } => {
                Self::answer(
                    want,
                    hca.arm_srq(handle(objects, side, *srq, |all| &all.srqs), *limit),
                )?;
            }
            Call::QuerySrq { srq } => {
                let srq = handle(objects, side, *srq, |all| &all.srqs);
                let attr = Self::answer(want, hca.query_srq(srq))?;
                if let (Some(attr), Want::Limit(limit)) = (attr, want)
                    && attr.limit != *limit
                {
                    return Err(format!("answered {attr:?}"));
                }
            }
            Call::DestroySrq { srq } => {
                Self::answer(
                    want,
                    hca.destroy_srq(handle(objects, side, *srq, |all| &all.srqs)),
                )?;
            }
            Call::PostSrq { srq, wrs } => {
                let srq = handle(objects, side, *srq, |all| &all.srqs);
                let sges = Self::receives(before, side, wrs);
                let list = Self::recv_list(before.wr_id, &sges);
                let held = match (want, hca.srq(srq)) {
                    (Want::Fails(_), held) => return Self::answer(want, held.map(drop)).map(drop),
                    (_, held) => held.map_err(|error| error.to_string())?,
                };
                let answer = held.post_recv(&list);
                drop(held);
                self.posted(want, list.len(), answer)?;
            }
            Call::CreateQp { .. } => self.create_qp(side, call, want)?,
            Call::Modify { qp, to, twist } => {
                let place = usize::from(qp.0 % super::call::PLACES);
                let (attr, mask) = before.attributes(side, place, *to, *twist);
                let qp = handle(objects, side, *qp, |all| &all.qps);
                Self::answer(want, hca.modify_qp(qp, &attr, mask))?;
            }
            Call::Query { qp } => {
                let qp = handle(objects, side, *qp, |all| &all.qps);
                let attr = Self::answer(want, hca.query_qp(qp))?;
                if let (Some(attr), Want::State(state)) = (attr, want)
                    && (attr.state != *state || attr.sq_draining)
                {
                    return Err(format!(
                        "state {:?}, draining {}",
                        attr.state, attr.sq_draining
                    ));
                }
            }
            Call::DestroyQp { qp } => {
                Self::answer(
                    want,
                    hca.destroy_qp(handle(objects, side, *qp, |all| &all.qps)),
                )?;
            }
            Call::PostRecv { qp, wrs } => {
                let qp = handle(objects, side, *qp, |all| &all.qps);
                let sges = Self::receives(before, side, wrs);
                let list = Self::recv_list(before.wr_id, &sges);
                let held = match (want, hca.qp(qp)) {
                    (Want::Fails(_), held) => return Self::answer(want, held.map(drop)).map(drop),
                    (_, held) => held.map_err(|error| error.to_string())?,
                };
                let answer = held.post_recv(&list);
                drop(held);
                self.posted(want, list.len(), answer)?;
            }
            Call::PostSend { qp, wrs } => self.post_send(before, side, *qp, wrs, want)?,
            Call::RegMr { .. } | Call::ReregMr { .. } | Call::DeregMr { .. } => {
                self.region(side, call, want)?
            }
            Call::AllocMw { mw, pd } => {
                let pd = handle(objects, side, *pd, |all| &all.pds);
                if let Some((window, rkey)) = Self::answer(want, hca.alloc_mw(pd, MwKind::Type1))? {
                    let place = usize::from(*mw);
                    self.objects[side].mws[place] = Some(window);
                    self.window(side, place, rkey);
                }
            }
            Call::DeallocMw { mw } => {
                Self::answer(
                    want,
                    hca.dealloc_mw(handle(objects, side, *mw, |all| &all.mws)),
                )?;
            }
            Call::AllocFmr { .. }
            | Call::MapFmr { .. }
            | Call::UnmapFmrs { .. }
            | Call::DeallocFmr { .. } => {
                self.fmr(side, call, want)?;
            }
            Call::CreateAh { ah, pd, to } => {
                let pd = handle(objects, side, *pd, |all| &all.pds);
                let made = Self::answer(want, hca.create_ah(pd, &address(side, *to)))?;
                if made.is_some() {
                    self.objects[side].ahs[usize::from(*ah)] = made;
                }
            }
            Call::ModifyAh { ah, to } => {
                let ah = handle(objects, side, *ah, |all| &all.ahs);
                Self::answer(want, hca.modify_ah(ah, &address(side, *to)))?;
            }
            Call::QueryAh { ah } => {
                let place = usize::from(ah.0 % super::call::PLACES);
                let ah = handle(objects, side, *ah, |all| &all.ahs);
                if let Some(attr) = Self::answer(want, hca.query_ah(ah))? {
                    let to = self.model.sides[side].ahs.get(place).map(|ah| ah.to);
                    let given = address(side, to.unwrap_or(Address::NoLid));
                    if attr != given {
                        return Err(format!("answered {attr:?}, {given:?} was given"));
                    }
                }
            }
            Call::DestroyAh { ah } => {
                Self::answer(
                    want,
                    hca.destroy_ah(handle(objects, side, *ah, |all| &all.ahs)),
                )?;
            }
            Call::Attach { qp, group: which } => {
                let (mgid, mlid) = group(*which);
                let qp = handle(objects, side, *qp, |all| &all.qps);
                Self::answer(want, hca.attach_mcast(qp, mgid, mlid))?;
            }
            Call::Detach { qp, group: which } => {
                let (mgid, mlid) = group(*which);
                let qp = handle(objects, side, *qp, |all| &all.qps);
                Self::answer(want, hca.detach_mcast(qp, mgid, mlid))?;
            }
            Call::QueryPort { port } => {
                Self::answer(want, hca.query_port(*port))?;
            }
            Call::QueryGid { port, index } => {
                Self::answer(want, hca.query_gid(*port, *index))?;
            }
            Call::QueryPkey { port, index } => {
                Self::answer(want, hca.query_pkey(*port, *index))?;
            }
            Call::Fill { at, len, seed } => {
                let bytes =
                    vec![*seed; usize::from(*len).min(ARENA.saturating_sub(usize::from(*at)))];
                self.arenas[side]
                    .copy_in(usize::from(*at), &bytes)
                    .expect("the arena");
            }
        }
        Ok(())
    }

    fn grown(
        &mut self,
        side: usize,
        place: usize,
        asked: u32,
        size: u32,
    ) -> Result<(), Disagreement> {
        if size < asked {
            return Err(format!("{size} entries"));
        }
        self.model.sides[side]
            .cqs
            .get_mut(place)
            .expect("live")
            .size = size;
        Ok(())
    }

    fn receives(model: &Model, side: usize, wrs: &[Vec<Piece>]) -> Vec<Vec<Sge>> {
        let sges = |pieces: &Vec<Piece>| {
            pieces
                .iter()
                .map(|piece| Self::sge(model, side, piece))
                .collect()
        };
        wrs.iter().map(sges).collect()
    }

    fn recv_list(first: u64, sges: &[Vec<Sge>]) -> Vec<RecvWr<'_>> {
        let wr = |(wr_id, sges)| RecvWr { wr_id, sges };
        (first..)
            .zip(sges.iter().map(Vec::as_slice))
            .map(wr)
            .collect()
    }

    fn create_qp(&mut self, side: usize, call: &Call, want: &Want) -> Result<(), Disagreement> {
        let Call::CreateQp {
            qp,
            pd,
            service,
            cqs,
            srq,
            wrs,
            sges,
            inline,
            all,
        } = *call
        else {
            return Err("no creation".into());
        };
        let objects = &self.objects;
        let init = QpInit {
            qp_type: service,
            port: 1,
            send_cq: handle(objects, side, cqs[0], |all| &all.cqs),
            recv_cq: handle(objects, side, cqs[1], |all| &all.cqs),
            srq: srq.map(|srq| handle(objects, side, srq, |all| &all.srqs)),
            caps: QpCaps {
                max_send_wr: wrs,
                max_recv_wr: wrs,
                max_send_sge: sges,
                max_recv_sge: sges,
                max_inline: inline,
            },
            signaling: if all {
                Signaling::All
            } else {
                Signaling::PerRequest
            },
            owner: Owner::Kernel,
        };
        let pd = handle(objects, side, pd, |all| &all.pds);
        let Some(info) = Self::answer(want, self.pair.hcas[side].create_qp(pd, &init))? else {
            return Ok(());
        };
        let caps = info.caps;
        let sends =
            caps.max_send_wr >= wrs && caps.max_send_sge >= sges && caps.max_inline >= inline;
        let recvs = match srq {
            Some(_) => caps.max_recv_wr == 0,
            None => caps.max_recv_wr >= wrs && caps.max_recv_sge >= sges,
        };
        if !sends || !recvs {
            return Err(format!("{caps:?}"));
        }
        let place = usize::from(qp);
        self.objects[side].qps[place] = Some(info.handle);
        let qp = self.model.sides[side].qps.get_mut(place).expect("made");
        (qp.qpn, qp.caps) = (info.qpn.get(), caps);
        Ok(())
    }

    fn remote(model: &Model, owner: usize, remote: &Remote) -> RemoteAddr {
        let key = model
            .key(owner, remote.key, true)
            .expect("the model has looked");
        RemoteAddr {
            addr: BASE + u64::from(remote.at),
            rkey: RKey(key),
        }
    }

    fn op(&self, model: &Model, side: usize, place: usize, wr: &Send, wr_id: u64) -> SendOp {
        let there = model.there(side, place);
        let imm = |yes: bool| yes.then(|| Imm(immediate(wr_id)));
        match wr.verb {
            Verb::Send { imm: yes } => SendOp::Send { imm: imm(yes) },
            Verb::Write { remote, imm: yes } => SendOp::RdmaWrite {
                remote: Self::remote(model, there, &remote),
                imm: imm(yes),
            },
            Verb::Read { remote } => SendOp::RdmaRead {
                remote: Self::remote(model, there, &remote),
            },
            Verb::Swap { remote, right } => {
                let (compare, swap) = operands(wr_id, model.word(there, remote.at.into()), right);
                SendOp::CompareSwap {
                    remote: Self::remote(model, there, &remote),
                    compare,
                    swap,
                }
            }
            Verb::Add { remote } => {
                let (_, add) = operands(wr_id, 0, true);
                SendOp::FetchAdd {
                    remote: Self::remote(model, there, &remote),
                    add,
                }
            }
            Verb::Datagram {
                ah,
                to,
                qkey,
                imm: yes,
            } => {
                let leads =
                    (ah.0 < super::call::PLACES).then(|| model.sides[side].ahs.get(ah.0.into()));
                let leads = leads.flatten().map_or(Address::Nowhere, |ah| ah.to);
                SendOp::Datagram {
                    ah: handle(&self.objects, side, ah, |all| &all.ahs),
                    remote_qpn: Qpn::new(model.number(side, leads, to)),
                    remote_qkey: match qkey {
                        QKeyOf::Right => QKEY,
                        QKeyOf::Wrong => QKey(QKEY.0 ^ 1),
                        QKeyOf::Own => QKey(0x8000_0000),
                    },
                    imm: imm(yes),
                    pkey_index: 0,
                }
            }
            Verb::Bind {
                mw,
                mr,
                at,
                len,
                access,
            } => SendOp::BindMw {
                mw: handle(&self.objects, side, mw, |all| &all.mws),
                mr: handle(&self.objects, side, mr, |all| &all.mrs),
                addr: BASE + u64::from(at),
                length: u64::from(len),
                access,
            },
            Verb::Invalidate { remote } => SendOp::SendInvalidate {
                rkey: RKey(model.key(there, remote, true).unwrap_or(0)),
            },
            Verb::LocalInvalidate { key } => SendOp::LocalInvalidate {
                rkey: RKey(model.key(side, key, true).unwrap_or(0)),
            },
        }
    }

    fn post_send(
        &mut self,
        before: &Model,
        side: usize,
        qp: Name,
        wrs: &[Send],
        want: &Want,
    ) -> Result<(), Disagreement> {
        let place = usize::from(qp.0 % super::call::PLACES);
        let qp = handle(&self.objects, side, qp, |all| &all.qps);
        let held = match (want, self.pair.hcas[side].qp(qp)) {
            (Want::Fails(_), held) => return Self::answer(want, held.map(drop)).map(drop),
            (_, held) => held.map_err(|error| error.to_string())?,
        };
        let wr_ids = before.wr_id..;
        let sges = |wr: &Send| -> Vec<Sge> {
            wr.pieces
                .iter()
                .map(|piece| Self::sge(before, side, piece))
                .collect()
        };
        let parts: Vec<(Vec<Sge>, Vec<u8>)> = wr_ids
            .clone()
            .zip(wrs)
            .map(|(wr_id, wr)| {
                (
                    sges(wr),
                    wr.inline.map_or(Vec::new(), |len| inline(wr_id, len)),
                )
            })
            .collect();
        let flag = |yes, flag| if yes { flag } else { SendFlags::empty() };
        let list: Vec<SendWr<'_>> = wr_ids
            .zip(wrs)
            .zip(&parts)
            .map(|((wr_id, wr), (sges, inline))| SendWr {
                wr_id,
                op: self.op(before, side, place, wr, wr_id),
                sges: if wr.inline.is_some() { &[] } else { sges },
                inline,
                flags: flag(wr.signaled, SendFlags::SIGNALED)
                    | flag(wr.solicited, SendFlags::SOLICITED)
                    | flag(wr.fence, SendFlags::FENCE)
                    | flag(wr.inline.is_some(), SendFlags::INLINE),
            })
            .collect();
        let answer = held.post_send(&list);
        drop(held);
        self.posted(want, list.len(), answer)?;
        for wr in wrs {
            let Verb::Bind { mw, .. } = wr.verb else {
                continue;
            };
            let window = mw.0 < super::call::PLACES && self.model.sides[side].mws.has(mw);
            if window {
                let place = usize::from(mw.0);
                let handle = self.objects[side].mws[place].expect("live");
                let rkey = self.pair.hcas[side]
                    .mw_rkey(handle)
                    .map_err(|error| error.to_string())?;
                self.window(side, place, rkey);
            }
        }
        Ok(())
    }

    fn window(&mut self, side: usize, place: usize, rkey: RKey) {
        let half = &mut self.model.sides[side];
        half.mw_keys[place] = Some(rkey.0);
        half.mws.get_mut(place).expect("live").rkey = rkey.0;
    }

    fn region(&mut self, side: usize, call: &Call, want: &Want) -> Result<(), Disagreement> {
        let hca = self.pair.hcas[side];
        let objects = &self.objects;
        let (place, answer) = match *call {
            Call::RegMr {
                mr,
                pd,
                at,
                len,
                access,
            } => {
                let (first, last) = (
                    usize::from(at) / 4096,
                    (usize::from(at) + usize::from(len).max(1) - 1) / 4096,
                );
                let all = Buffer::pages(&self.arenas[side]);
                let init = MrInit {
                    iova: BASE + u64::from(at),
                    length: u64::from(len),
                    pages: &all[first..=last],
                    page_shift: 12,
                    access,
                };
                let pd = handle(objects, side, pd, |all| &all.pds);
                // SAFETY: DMA memory that is dropped is leaked, so that it outlives every region. Access is volatile.
                (mr, unsafe { hca.reg_mr(pd, &init) })
            }
            Call::ReregMr { mr, pd, access } => {
                let pd = pd.map(|pd| handle(objects, side, pd, |all| &all.pds));
                let region = handle(objects, side, mr, |all| &all.mrs);
                // SAFETY: as above.
                (mr.0, unsafe { hca.rereg_mr(region, pd, None, access) })
            }
            Call::DeregMr { mr } => {
                let region = handle(objects, side, mr, |all| &all.mrs);
                return Self::answer(want, hca.dereg_mr(region)).map(drop);
            }
            _ => return Err("no call of a region".into()),
        };
        if let Some(mr) = Self::answer(want, answer)? {
            let place = usize::from(place);
            self.objects[side].mrs[place] = Some(mr.handle);
            let keys = (mr.lkey.0, mr.rkey.0);
            let half = &mut self.model.sides[side];
            half.mr_keys[place] = Some(keys);
            half.mrs.get_mut(place).expect("live").keys = keys;
        }
        Ok(())
    }

    fn fmr(&mut self, side: usize, call: &Call, want: &Want) -> Result<(), Disagreement> {
        let hca = self.pair.hcas[side];
        let objects = &self.objects;
        match call {
            Call::AllocFmr {
                fmr,
                pd,
                pages,
                maps,
                access,
            } => {
                let init = FmrInit {
                    max_pages: *pages,
                    max_maps: *maps,
                    page_shift: 12,
                    access: *access,
                };
                let pd = handle(objects, side, *pd, |all| &all.pds);
                let made = Self::answer(want, hca.alloc_fmr(pd, &init))?;
                if made.is_some() {
                    self.objects[side].fmrs[usize::from(*fmr)] = made;
                }
            }
            Call::MapFmr {
                fmr,
                first,
                pages,
                aligned,
            } => {
                let all = Buffer::pages(&self.arenas[side]);
                let (first, count) = (usize::from(*first), usize::from(*pages));
                let iova = BASE + first as u64 * 4096 + if *aligned { 0 } else { 8 };
                let region = handle(objects, side, *fmr, |all| &all.fmrs);
                // SAFETY: as for a region.
                let mapped = unsafe { hca.map_fmr(region, &all[first..first + count], iova) };
                if let Some((lkey, rkey)) = Self::answer(want, mapped)? {
                    let place = usize::from(fmr.0);
                    let keys = (lkey.0, rkey.0);
                    let half = &mut self.model.sides[side];
                    half.fmr_keys[place] = Some(keys);
                    let fmr = half.fmrs.get_mut(place).expect("live");
                    if fmr.old.contains(&keys) {
                        return Err(format!("the key {keys:?} comes twice"));
                    }
                    if let Some(mapped) = &mut fmr.mapped {
                        mapped.2 = keys;
                    }
                }
            }
            Call::UnmapFmrs { fmrs } => {
                let all: Vec<_> = fmrs
                    .iter()
                    .map(|fmr| handle(objects, side, *fmr, |all| &all.fmrs))
                    .collect();
                Self::answer(want, hca.unmap_fmrs(&all))?;
            }
            Call::DeallocFmr { fmr } => {
                Self::answer(
                    want,
                    hca.dealloc_fmr(handle(objects, side, *fmr, |all| &all.fmrs)),
                )?;
            }
            _ => return Err("no call of an FMR".into()),
        }
        Ok(())
    }

    /// Completions, each the next of its queue. What they retire is free again: verbs 4.5.
    fn polled(
        &mut self,
        side: usize,
        place: usize,
        want: &Want,
        got: &[WorkCompletion],
    ) -> Result<(), Disagreement> {
        let Want::Polls(count) = *want else {
            return Err(format!("polled {got:?}"));
        };
        if got.len() != count {
            return Err(format!("polled {got:?}"));
        }
        for wc in got {
            let half = &mut self.model.sides[side];
            let cq = half.cqs.get_mut(place).expect("live");
            let next =
                |(queue, waiting): (&(u32, bool), &std::collections::VecDeque<Completion>)| {
                    (waiting.front().map(|front| front.wr_id) == Some(wc.wr_id)).then_some(*queue)
                };
            let Some(queue) = cq.waiting.iter().find_map(next) else {
                return Err(format!(
                    "{wc:?} is the next of no queue; waiting: {:?}",
                    cq.waiting
                ));
            };
            let expected = cq
                .waiting
                .get_mut(&queue)
                .and_then(|waiting| waiting.pop_front())
                .expect("the front");
            same(wc, &expected)?;
            if let Some(srq) = expected.srq.and_then(|srq| half.srqs.get_mut(srq)) {
                srq.used = srq.used.saturating_sub(1);
            }
            for qp in 0..4 {
                let Some(qp) = half.qps.get_mut(qp).filter(|qp| qp.id == queue.0) else {
                    continue;
                };
                match queue.1 {
                    false => qp.retired = expected.position + 1,
                    true => qp.recv_retired = expected.position + 1,
                }
            }
            self.tally.completions += 1;
            *self
                .tally
                .statuses
                .entry(format!("{:?}", wc.status))
                .or_default() += 1;
        }
        Ok(())
    }
}

/// Is the completion as it should be, as far as verbs 5.3 says something of a field?
fn same(wc: &WorkCompletion, expected: &Completion) -> Result<(), Disagreement> {
    let mut wrong = Vec::new();
    let mut check = |right: bool, what| {
        if !right {
            wrong.push(what);
        }
    };
    check(expected.status.contains(&wc.status), "status");
    check(wc.qpn.get() == expected.qpn, "QP");
    if !is_error(wc.status) {
        check(wc.opcode == expected.opcode, "opcode");
        check(
            expected.byte_len.is_none_or(|len| len == wc.byte_len),
            "byte length",
        );
        if let Some(imm) = expected.imm {
            let told = wc.flags.contains(WcFlags::IMM).then_some(wc.imm.0);
            check(told == imm, "immediate");
            check(!wc.flags.contains(WcFlags::INVALIDATED), "invalidated");
        }
        if let Some((qpn, side)) = expected.from {
            check(wc.src_qp.get() == qpn, "source QP");
            let lid = super::super::conformance::tools::lid(Side::BOTH[side]);
            check(wc.slid == lid, "source LID");
        }
        if let Some(grh) = expected.grh {
            check(wc.flags.contains(WcFlags::GRH) == grh, "GRH");
        }
    }
    if wrong.is_empty() {
        return Ok(());
    }
    Err(format!("{wrong:?} of {wc:?}; expected {expected:?}"))
}
