//! Calls that make, look at and end objects. verbs 1, 2, 5.1, 7, 8, 9.

use super::super::call::{Address, Call, Group, Name, PLACES};
use super::state::{Ah, Armed, Cq, Fmr, Half, Migration, Mr, Mw, Pd, Qp, Srq, Table};
use super::{ARENA, Error, Model, Open, Want};
use core_ib::verbs::{Access, NotifyKind, QpCaps, QpState, QpType, WcStatus};
use std::collections::{BTreeMap, VecDeque};

/// Faults found so far.
#[derive(Default)]
struct Faults(Vec<Error>);

impl Faults {
    fn when(&mut self, wrong: bool, error: Error) -> &mut Self {
        if wrong {
            self.0.push(error);
        }
        self
    }

    fn any(self) -> Option<Want> {
        (!self.0.is_empty()).then_some(Want::Fails(self.0))
    }
}

fn fails(error: Error) -> Want {
    Want::Fails(vec![error])
}

const TAKEN: Open = Open("the place is taken");

impl Model {
    /// The place that a name means on `side`; `None` if there is no such object (any more). Open if there never was one.
    pub(super) fn find<T>(
        &self,
        side: usize,
        name: Name,
        table: fn(&Half) -> &Table<T>,
    ) -> Result<Option<usize>, Open> {
        let place = usize::from(name.0 % PLACES);
        let owner = if name.0 < PLACES { side } else { 1 - side };
        if !table(&self.sides[owner]).place(place).used {
            return Err(Open("nothing was ever there"));
        }
        Ok((owner == side && table(&self.sides[side]).get(place).is_some()).then_some(place))
    }

    fn free_place<T>(
        &self,
        side: usize,
        place: u8,
        table: fn(&Half) -> &Table<T>,
    ) -> Result<usize, Open> {
        let place = usize::from(place);
        match table(&self.sides[side]).get(place) {
            Some(_) => Err(TAKEN),
            None => Ok(place),
        }
    }

    /// Does a queue anywhere wait for its peer? What is under way then may have looked at a key already, or not.
    pub(super) fn nobody_waits(&self) -> Result<(), Open> {
        let waits = self
            .sides
            .iter()
            .any(|half| half.qps.live().any(|(_, qp)| qp.waits));
        if waits {
            Err(Open("a request is under way"))
        } else {
            Ok(())
        }
    }

    pub(super) fn control(&mut self, side: usize, call: &Call) -> Result<Want, Open> {
        match call {
            Call::AllocPd { pd } => {
                let place = self.free_place(side, *pd, |half| &half.pds)?;
                self.sides[side].pds.put(place, Pd);
                Ok(Want::Done)
            }
            Call::DeallocPd { pd } => self.dealloc_pd(side, *pd),
            Call::CreateCq { .. }
            | Call::ResizeCq { .. }
            | Call::DestroyCq { .. }
            | Call::Arm { .. }
            | Call::Poll { .. } => self.cq_call(side, call),
            Call::CreateSrq { .. }
            | Call::ArmSrq { .. }
            | Call::QuerySrq { .. }
            | Call::DestroySrq { .. } => self.srq_call(side, call),
            Call::CreateQp { .. } => self.create_qp(side, call),
            Call::Query { qp } => Ok(match self.find(side, *qp, |half| &half.qps)? {
                None => fails(Error::Handle),
                Some(place) => {
                    let qp = self.sides[side].qps.get(place).expect("live");
                    let goes = matches!(qp.state, QpState::Rts | QpState::Sqd);
                    let paths = (qp.path, qp.alternate, qp.migration);
                    let paths = (goes && qp.is_connected()).then_some(paths);
                    Want::State(qp.state, qp.drains.is_some(), paths)
                }
            }),
            Call::DestroyQp { qp } => self.destroy_qp(side, *qp),
            Call::CreateAh { .. }
            | Call::ModifyAh { .. }
            | Call::QueryAh { .. }
            | Call::DestroyAh { .. } => self.ah_call(side, call),
            Call::Attach { qp, group } => self.attach(side, *qp, *group, true),
            Call::Detach { qp, group } => self.attach(side, *qp, *group, false),
            Call::QueryPort { port } => Ok(self.port(*port).unwrap_or(Want::Done)),
            Call::QueryGid { port, index } | Call::QueryPkey { port, index } => {
                // The executor asks for the length of the tables: verbs 2.2.
                let beyond = *index == u16::MAX;
                let wrong = self.port(*port);
                Ok(wrong.unwrap_or(if beyond {
                    fails(Error::Attr)
                } else {
                    Want::Done
                }))
            }
            Call::Lose { path } => {
                // Who waits asks again and again.
                self.nobody_waits()?;
                self.lost = *path;
                Ok(Want::Done)
            }
            Call::Fill { at, len, seed } => {
                self.nobody_waits()?;
                let (at, len) = (usize::from(*at), usize::from(*len));
                let held = self.sides[side].qps.live().any(|(_, qp)| !qp.sq.is_empty());
                if held {
                    return Err(Open("memory of a request that waits"));
                }
                for byte in self.sides[side].arena.iter_mut().skip(at).take(len) {
                    *byte = *seed;
                }
                Ok(Want::Done)
            }
            _ => self.memory_call(side, call),
        }
    }

    fn port(&self, port: u8) -> Option<Want> {
        (port == 0 || port > self.limits.port_count).then(|| fails(Error::Port))
    }

    fn dealloc_pd(&mut self, side: usize, pd: Name) -> Result<Want, Open> {
        let Some(place) = self.find(side, pd, |half| &half.pds)? else {
            return Ok(fails(Error::Handle));
        };
        let half = &mut self.sides[side];
        let busy = half.qps.live().any(|(_, qp)| qp.pd == place)
            || half.srqs.live().any(|(_, srq)| srq.pd == place)
            || half.mrs.live().any(|(_, mr)| mr.pd == place)
            || half.mws.live().any(|(_, mw)| mw.pd == place)
            || half.fmrs.live().any(|(_, fmr)| fmr.pd == place)
            || half.ahs.live().any(|(_, ah)| ah.pd == place);
        if busy {
            return Ok(fails(Error::Busy));
        }
        half.pds.take(place);
        Ok(Want::Done)
    }

    fn cq_call(&mut self, side: usize, call: &Call) -> Result<Want, Open> {
        let limits = self.limits;
        if let Call::CreateCq { cq, cqe, vector } = *call {
            let place = self.free_place(side, cq, |half| &half.cqs)?;
            let mut faults = Faults::default();
            faults
                .when(cqe == 0 || cqe > limits.max_cqe, Error::Attr)
                .when(vector >= limits.completion_vectors, Error::Attr);
            let waiting = BTreeMap::new();
            let (armed, fired) = (Armed::No, Some(false));
            return Ok(faults.any().unwrap_or_else(|| {
                self.sides[side].cqs.put(
                    place,
                    Cq {
                        size: cqe,
                        waiting,
                        armed,
                        fired,
                    },
                );
                Want::Done
            }));
        }
        let (Call::ResizeCq { cq, .. }
        | Call::DestroyCq { cq }
        | Call::Arm { cq, .. }
        | Call::Poll { cq, .. }) = *call
        else {
            return Err(Open("no call of a CQ"));
        };
        let Some(place) = self.find(side, cq, |half| &half.cqs)? else {
            let mut faults = Faults::default();
            if let Call::ResizeCq { cqe, .. } = *call {
                faults.when(cqe == 0 || cqe > limits.max_cqe, Error::Attr);
            }
            faults.when(true, Error::Handle);
            return Ok(faults.any().expect("one"));
        };
        let half = &mut self.sides[side];
        let in_use = half.qps.live().any(|(_, qp)| qp.cqs.contains(&place));
        let cq = half.cqs.get_mut(place).expect("live");
        Ok(match *call {
            Call::ResizeCq { cqe, .. } => {
                let mut faults = Faults::default();
                // In T-mode one entry of a flush stands for several completions.
                let mut waiting = cq.waiting.values().flatten();
                if (cqe as usize) < cq.len()
                    && waiting.any(|one| one.status.contains(&WcStatus::Flushed))
                {
                    return Err(Open("a resize for which there may be room"));
                }
                faults
                    .when(cqe == 0 || cqe > limits.max_cqe, Error::Attr)
                    .when((cqe as usize) < cq.len(), Error::Attr);
                faults.any().unwrap_or_else(|| {
                    cq.size = cqe;
                    Want::Done
                })
            }
            Call::DestroyCq { .. } if in_use => fails(Error::Busy),
            Call::DestroyCq { .. } => {
                half.cqs.take(place);
                Want::Done
            }
            Call::Arm { kind, .. } => {
                cq.armed = match (cq.armed, kind) {
                    (Armed::Any, _) | (_, NotifyKind::Any) => Armed::Any,
                    _ => Armed::Solicited,
                };
                if !cq.is_empty() && cq.fired == Some(false) {
                    cq.fired = None; // allowed, counted as this arm's call
                }
                Want::Done
            }
            Call::Poll { room, .. } => Want::Polls(cq.len().min(usize::from(room))),
            _ => return Err(Open("no call of a CQ")),
        })
    }

    fn srq_call(&mut self, side: usize, call: &Call) -> Result<Want, Open> {
        let limits = self.limits;
        if let Call::CreateSrq { srq, pd, wrs, sges } = *call {
            let place = self.free_place(side, srq, |half| &half.srqs)?;
            let pd = self.find(side, pd, |half| &half.pds)?;
            let mut faults = Faults::default();
            faults
                .when(pd.is_none(), Error::Handle)
                .when(wrs == 0 || wrs > limits.max_srq_wr, Error::Attr)
                .when(sges > limits.max_srq_sge, Error::Attr);
            return Ok(faults.any().unwrap_or_else(|| {
                let srq = Srq {
                    pd: pd.unwrap_or(0),
                    size: wrs,
                    sges,
                    limit: 0,
                    posted: VecDeque::new(),
                    used: 0,
                };
                self.sides[side].srqs.put(place, srq);
                Want::Done
            }));
        }
        let (Call::ArmSrq { srq, .. } | Call::QuerySrq { srq } | Call::DestroySrq { srq }) = *call
        else {
            return Err(Open("no call of an SRQ"));
        };
        let Some(place) = self.find(side, srq, |half| &half.srqs)? else {
            return Ok(fails(Error::Handle));
        };
        let half = &mut self.sides[side];
        let in_use = half.qps.live().any(|(_, qp)| qp.srq == Some(place));
        let srq = half.srqs.get_mut(place).expect("live");
        Ok(match *call {
            Call::ArmSrq { limit, .. } if limit > srq.size => fails(Error::Attr),
            Call::ArmSrq { limit, .. } if limit as usize > srq.posted.len() => {
                return Err(Open("armed above what is posted"));
            }
            Call::ArmSrq { limit, .. } => {
                srq.limit = limit;
                Want::Done
            }
            Call::QuerySrq { .. } => Want::Limit(srq.limit),
            _ if in_use => fails(Error::Busy),
            _ => {
                half.srqs.take(place);
                Want::Done
            }
        })
    }

    fn create_qp(&mut self, side: usize, call: &Call) -> Result<Want, Open> {
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
            return Err(Open("no creation"));
        };
        let limits = self.limits;
        let place = self.free_place(side, qp, |half| &half.qps)?;
        let pd = self.find(side, pd, |half| &half.pds)?;
        let [send, recv] = cqs;
        let send = self.find(side, send, |half| &half.cqs)?;
        let recv = self.find(side, recv, |half| &half.cqs)?;
        let shared = match srq {
            Some(srq) => Some(self.find(side, srq, |half| &half.srqs)?),
            None => None,
        };
        let mut faults = Faults::default();
        let special = service == QpType::Gsi;
        if special && srq.is_some() {
            return Err(Open("a special QP with an SRQ"));
        }
        let taken = |(_, qp): (usize, &Qp)| special && qp.service == service;
        faults
            .when(
                pd.is_none() || send.is_none() || recv.is_none(),
                Error::Handle,
            )
            .when(self.sides[side].qps.live().any(taken), Error::Busy)
            .when(special && inline > 0, Error::Attr)
            .when(shared == Some(None), Error::Handle)
            .when(
                shared.is_some() && service == QpType::Uc,
                Error::Unsupported,
            )
            .when(
                wrs > limits.max_qp_wr || sges > limits.max_sge || inline > limits.max_inline,
                Error::Attr,
            );
        if let Some(want) = faults.any() {
            return Ok(want);
        }
        let id = self.id();
        let qp = Qp {
            id,
            service,
            pd: pd.unwrap_or(0),
            cqs: [send.unwrap_or(0), recv.unwrap_or(0)],
            srq: shared.flatten(),
            caps: QpCaps::default(), // learned
            all,
            qpn: 0,
            state: QpState::Reset,
            life: 0,
            access: Access::empty(),
            rnr_retry: 0,
            reads: 0,
            serves: 0,
            peer: None,
            epoch: 0,
            sq: VecDeque::new(),
            posted: 0,
            retired: 0,
            rq: VecDeque::new(),
            recv_posted: 0,
            recv_retired: 0,
            waits: false,
            moved_early: false,
            drains: None,
            groups: Vec::new(),
            path: super::PRIMARY,
            alternate: None,
            migration: Migration::Migrated,
        };
        self.sides[side].qps.put(place, qp);
        Ok(Want::Done)
    }

    fn destroy_qp(&mut self, side: usize, qp: Name) -> Result<Want, Open> {
        let Some(place) = self.find(side, qp, |half| &half.qps)? else {
            return Ok(fails(Error::Handle));
        };
        let qp = self.sides[side].qps.get(place).expect("live");
        if !qp.groups.is_empty() {
            return Ok(fails(Error::Busy));
        }
        self.purge(side, place);
        self.sides[side].qps.take(place);
        Ok(Want::Done)
    }

    /// Completions of a QP that is reset or ended are never seen; what they held of an SRQ is free again. verbs 1.3, 3.10.
    pub(super) fn purge(&mut self, side: usize, place: usize) {
        let half = &mut self.sides[side];
        let Some(qp) = half.qps.get(place) else {
            return;
        };
        let (id, cqs) = (qp.id, qp.cqs);
        for cq in cqs {
            let Some(cq) = half.cqs.get_mut(cq) else {
                continue;
            };
            for recv in [false, true] {
                let gone = cq.waiting.remove(&(id, recv)).unwrap_or_default();
                for srq in gone.iter().filter_map(|completion| completion.srq) {
                    if let Some(srq) = half.srqs.get_mut(srq) {
                        srq.used = srq.used.saturating_sub(1);
                    }
                }
            }
        }
    }

    fn memory_call(&mut self, side: usize, call: &Call) -> Result<Want, Open> {
        match *call {
            Call::RegMr {
                mr,
                pd,
                at,
                len,
                access,
            } => {
                let place = self.free_place(side, mr, |half| &half.mrs)?;
                let pd = self.find(side, pd, |half| &half.pds)?;
                let (lo, hi) = (usize::from(at), usize::from(at) + usize::from(len));
                if hi > ARENA {
                    return Err(Open("beyond the memory there is"));
                }
                let mut faults = Faults::default();
                faults
                    .when(pd.is_none(), Error::Handle)
                    .when(len == 0 || !access.is_consistent(), Error::Attr);
                if let Some(want) = faults.any() {
                    return Ok(want);
                }
                let id = self.id();
                let (pd, keys) = (pd.unwrap_or(0), (0, 0));
                self.sides[side].mrs.put(
                    place,
                    Mr {
                        id,
                        pd,
                        lo,
                        hi,
                        access,
                        keys,
                    },
                );
                Ok(Want::Done)
            }
            Call::ReregMr { mr, pd, access } => {
                self.nobody_waits()?;
                let found = self.find(side, mr, |half| &half.mrs)?;
                let anew = match pd {
                    Some(pd) => Some(self.find(side, pd, |half| &half.pds)?),
                    None => None,
                };
                let bound = found.is_some_and(|place| self.is_bound(side, place));
                let mut faults = Faults::default();
                faults
                    .when(found.is_none() || anew == Some(None), Error::Handle)
                    .when(bound, Error::Busy)
                    .when(pd.is_none() && access.is_none(), Error::Attr)
                    .when(
                        access.is_some_and(|access| !access.is_consistent()),
                        Error::Attr,
                    );
                if let Some(want) = faults.any() {
                    return Ok(want);
                }
                let place = found.expect("no fault");
                let mr = self.sides[side].mrs.get_mut(place).expect("live");
                mr.access = access.unwrap_or(mr.access);
                mr.pd = anew.flatten().unwrap_or(mr.pd);
                Ok(Want::Done)
            }
            Call::DeregMr { mr } => {
                self.nobody_waits()?;
                Ok(match self.find(side, mr, |half| &half.mrs)? {
                    None => fails(Error::Handle),
                    Some(place) if self.is_bound(side, place) => fails(Error::Busy),
                    Some(place) => {
                        self.sides[side].mrs.take(place);
                        Want::Done
                    }
                })
            }
            Call::AllocMw { mw, pd } => {
                let place = self.free_place(side, mw, |half| &half.mws)?;
                let Some(pd) = self.find(side, pd, |half| &half.pds)? else {
                    return Ok(fails(Error::Handle));
                };
                let (rkey, bound, spoilt) = (0, None, false);
                self.sides[side].mws.put(
                    place,
                    Mw {
                        pd,
                        rkey,
                        bound,
                        spoilt,
                    },
                );
                Ok(Want::Done)
            }
            Call::DeallocMw { mw } => {
                self.nobody_waits()?;
                let Some(place) = self.find(side, mw, |half| &half.mws)? else {
                    return Ok(fails(Error::Handle));
                };
                self.sides[side].mws.take(place);
                Ok(Want::Done)
            }
            _ => self.fmr_call(side, call),
        }
    }

    fn is_bound(&self, side: usize, mr: usize) -> bool {
        let half = &self.sides[side];
        let id = half.mrs.get(mr).map(|mr| mr.id);
        let mut windows = half.mws.live().filter_map(|(_, mw)| mw.bound);
        windows.any(|(region, ..)| Some(region) == id)
    }

    fn fmr_call(&mut self, side: usize, call: &Call) -> Result<Want, Open> {
        match call {
            Call::AllocFmr {
                fmr,
                pd,
                pages,
                maps,
                access,
            } => {
                let place = self.free_place(side, *fmr, |half| &half.fmrs)?;
                let pd = self.find(side, *pd, |half| &half.pds)?;
                let mut faults = Faults::default();
                faults.when(pd.is_none(), Error::Handle).when(
                    *pages == 0 || *maps == 0 || !access.is_consistent(),
                    Error::Attr,
                );
                if let Some(want) = faults.any() {
                    return Ok(want);
                }
                let fmr = Fmr {
                    pd: pd.unwrap_or(0),
                    pages: *pages,
                    maps: *maps,
                    used: 0,
                    access: *access,
                    mapped: None,
                    old: Vec::new(),
                };
                self.sides[side].fmrs.put(place, fmr);
                Ok(Want::Done)
            }
            Call::MapFmr {
                fmr,
                first,
                pages,
                aligned,
            } => {
                self.nobody_waits()?;
                let Some(place) = self.find(side, *fmr, |half| &half.fmrs)? else {
                    return Ok(fails(Error::Handle));
                };
                let (lo, hi) = (
                    usize::from(*first) * 4096,
                    (usize::from(*first) + usize::from(*pages)) * 4096,
                );
                if hi > ARENA {
                    return Err(Open("beyond the memory there is"));
                }
                let fmr = self.sides[side].fmrs.get_mut(place).expect("live");
                let mut faults = Faults::default();
                faults
                    .when(
                        u32::from(*pages) > fmr.pages || *pages == 0 || !aligned,
                        Error::Attr,
                    )
                    .when(fmr.used >= fmr.maps, Error::State)
                    // `Device::map_fmr` spells it so.
                    .when(fmr.used >= fmr.maps, Error::Resources);
                if let Some(want) = faults.any() {
                    return Ok(want);
                }
                fmr.used += 1;
                if let Some((_, _, keys)) = fmr.mapped.replace((lo, hi, (0, 0))) {
                    fmr.old.push(keys);
                }
                Ok(Want::Done)
            }
            Call::UnmapFmrs { fmrs } => {
                self.nobody_waits()?;
                let mut places = Vec::new();
                for fmr in fmrs {
                    places.push(self.find(side, *fmr, |half| &half.fmrs)?);
                }
                if places.contains(&None) {
                    return Ok(fails(Error::Handle));
                }
                for place in places.into_iter().flatten() {
                    let fmr = self.sides[side].fmrs.get_mut(place).expect("live");
                    (fmr.mapped, fmr.used) = (None, 0);
                    fmr.old.clear();
                }
                Ok(Want::Done)
            }
            Call::DeallocFmr { fmr } => Ok(match self.find(side, *fmr, |half| &half.fmrs)? {
                None => fails(Error::Handle),
                Some(place)
                    if self.sides[side]
                        .fmrs
                        .get(place)
                        .is_some_and(|fmr| fmr.mapped.is_some()) =>
                {
                    fails(Error::Busy)
                }
                Some(place) => {
                    self.sides[side].fmrs.take(place);
                    Want::Done
                }
            }),
            _ => Err(Open("no such call")),
        }
    }

    fn ah_call(&mut self, side: usize, call: &Call) -> Result<Want, Open> {
        let wrong = |to: Address| match to {
            Address::BadPort => Some(Error::Port),
            Address::BadGid | Address::Bare | Address::NoLid => Some(Error::Attr),
            Address::Group(Group::Unicast | Group::UnicastLid) => None,
            _ => None,
        };
        match *call {
            Call::CreateAh { ah, pd, to } => {
                let place = self.free_place(side, ah, |half| &half.ahs)?;
                let pd = self.find(side, pd, |half| &half.pds)?;
                let mut faults = Faults::default();
                faults.when(pd.is_none(), Error::Handle);
                faults.0.extend(wrong(to));
                Ok(faults.any().unwrap_or_else(|| {
                    self.sides[side].ahs.put(
                        place,
                        Ah {
                            pd: pd.unwrap_or(0),
                            to,
                        },
                    );
                    Want::Done
                }))
            }
            Call::ModifyAh { ah, to } => Ok(match self.find(side, ah, |half| &half.ahs)? {
                None => {
                    let mut faults = vec![Error::Handle];
                    faults.extend(wrong(to));
                    Want::Fails(faults)
                }
                Some(_) if wrong(to).is_some() => fails(wrong(to).expect("some")),
                Some(place) => {
                    self.sides[side].ahs.get_mut(place).expect("live").to = to;
                    Want::Done
                }
            }),
            Call::QueryAh { ah } => Ok(match self.find(side, ah, |half| &half.ahs)? {
                None => fails(Error::Handle),
                Some(_) => Want::Done,
            }),
            Call::DestroyAh { ah } => {
                let Some(place) = self.find(side, ah, |half| &half.ahs)? else {
                    return Ok(fails(Error::Handle));
                };
                let half = &mut self.sides[side];
                if half
                    .qps
                    .live()
                    .any(|(_, qp)| !qp.is_connected() && !qp.sq.is_empty())
                {
                    return Err(Open("a datagram that waits may need it"));
                }
                half.ahs.take(place);
                Ok(Want::Done)
            }
            _ => Err(Open("no call of an AH")),
        }
    }

    fn attach(&mut self, side: usize, qp: Name, group: Group, yes: bool) -> Result<Want, Open> {
        let Some(place) = self.find(side, qp, |half| &half.qps)? else {
            return Ok(fails(Error::Handle));
        };
        let qp = self.sides[side].qps.get_mut(place).expect("live");
        let known = qp.groups.iter().position(|known| *known == group);
        let no_group = matches!(group, Group::Unicast | Group::UnicastLid);
        Ok(match (yes, known) {
            (true, _) if qp.service != QpType::Ud || no_group => fails(Error::Attr),
            (true, None) => {
                qp.groups.push(group);
                Want::Done
            }
            (true, Some(_)) => Want::Done,
            (false, Some(known)) => {
                qp.groups.remove(known);
                Want::Done
            }
            (false, None) => fails(Error::Attr),
        })
    }
}
