//! Runs a program on two HCAs and on the model, and compares call by call and completion by completion.

use super::super::conformance::Declared;
use super::super::conformance::Side;
use super::super::conformance::tools::bring_up_pair;
use super::call::{Call, Program};
use super::lines;
use super::model::{ARENA, Affiliated, Armed, Completion, Error, Model, Open, Want, is_error};
use super::objects::Objects;
use core::fmt::Debug;
use core::time::Duration;
use core_ib::platform::{DmaBuf, Platform};
use core_ib::verbs::{AsyncEvent, PostError, Verbs, VerbsError, WcFlags, WorkCompletion};
use std::collections::BTreeMap;

/// Longer than anything takes that a program sets going: retries at timeouts of a millisecond, twice.
const SETTLE: Duration = Duration::from_millis(16);

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
    /// Asynchronous events, by kind.
    pub events: BTreeMap<String, u64>,
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
        for (status, count) in &other.statuses {
            *self.statuses.entry(status.clone()).or_default() += count;
        }
        for (event, count) in &other.events {
            *self.events.entry(event.clone()).or_default() += count;
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
    /// From now on the cable loses data packets of this service level.
    pub lose: &'a (dyn Fn(Option<u8>) + Sync),
}

pub(super) struct Run<'a, P: Platform, D> {
    pub(super) pair: &'a Pair<'a, P, D>,
    pub(super) model: Model,
    pub(super) objects: [Objects; 2],
    pub(super) arenas: [DmaBuf<'a, P>; 2],
    pub(super) tally: Tally,
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
        if let Call::PostSend { qp, .. } = call
            && self.model.was_moved_early(side, *qp)
        {
            // In RTR it would refuse sends, and it has not been told.
            self.one(side, &Call::Query { qp: *qp })?;
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
        for (_, event) in &seen {
            let kind = match event {
                AsyncEvent::Qp(_, kind) => format!("{kind:?}"),
                AsyncEvent::Srq(_, kind) => format!("{kind:?}"),
                other => format!("{other:?}"),
            };
            *self.tally.events.entry(kind).or_default() += 1;
        }
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

    pub(super) fn answer<T: Debug>(
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

    pub(super) fn posted(
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

    /// Completions, each the next of its queue. What they retire is free again: verbs 4.5.
    pub(super) fn polled(
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
