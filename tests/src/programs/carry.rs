//! Each call of a program as calls of verbs.

use super::super::conformance::tools::Buffer;
use super::call::{Address, Call, Name, Piece, Remote, Send, Verb};
use super::exec::{Disagreement, Run};
use super::model::{ARENA, BASE, Migration, Model, Want, immediate, inline, operands};
use super::objects::{address, group, handle};
use core_ib::platform::Platform;
use core_ib::verbs::{
    CompletionQueue, CqInit, FmrInit, Imm, MrInit, MwKind, Owner, PathMigration, QpCaps, QpInit,
    QueuePair, RecvWr, RemoteAddr, SendFlags, SendOp, SendWr, Sge, SharedReceiveQueue, Signaling,
    SrqInit, Verbs, WorkCompletion,
};
use core_ib::{LKey, Qpn, RKey};

/// A key that nobody has.
const WILD: u32 = 0xdead_be00;

impl<P: Platform, D: Verbs> Run<'_, P, D> {
    pub(super) fn sge(model: &Model, side: usize, piece: &Piece) -> Sge {
        // None where the call is refused before anybody looks at its keys.
        let key = model.key(side, piece.key, false).unwrap_or(WILD);
        Sge {
            addr: BASE + u64::from(piece.at),
            length: u32::from(piece.len),
            lkey: LKey(key),
        }
    }

    pub(super) fn carry_out(
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
                if let (Some(attr), Want::State(_, _, paths)) = (attr, want) {
                    let found = paths.map(|(_, other, _)| {
                        let migration = match attr.path_migration {
                            PathMigration::Migrated => Migration::Migrated,
                            PathMigration::Rearm => Migration::Rearm,
                            PathMigration::Armed => Migration::Armed,
                        };
                        let alternate = other.map(|_| attr.alt_path.sl.get());
                        (attr.path.sl.get(), alternate, migration)
                    });
                    let found = Want::State(attr.state, attr.sq_draining, found);
                    if found != *want {
                        return Err(format!("{found:?}"));
                    }
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
            Call::Lose { path } => (self.pair.lose)(*path),
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

    pub(super) fn grown(
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

    pub(super) fn receives(model: &Model, side: usize, wrs: &[Vec<Piece>]) -> Vec<Vec<Sge>> {
        let sges = |pieces: &Vec<Piece>| {
            pieces
                .iter()
                .map(|piece| Self::sge(model, side, piece))
                .collect()
        };
        wrs.iter().map(sges).collect()
    }

    pub(super) fn recv_list(first: u64, sges: &[Vec<Sge>]) -> Vec<RecvWr<'_>> {
        let wr = |(wr_id, sges)| RecvWr { wr_id, sges };
        (first..)
            .zip(sges.iter().map(Vec::as_slice))
            .map(wr)
            .collect()
    }

    pub(super) fn create_qp(
        &mut self,
        side: usize,
        call: &Call,
        want: &Want,
    ) -> Result<(), Disagreement> {
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

    pub(super) fn remote(model: &Model, owner: usize, remote: &Remote) -> RemoteAddr {
        let key = model
            .key(owner, remote.key, true)
            .expect("the model has looked");
        RemoteAddr {
            addr: BASE + u64::from(remote.at),
            rkey: RKey(key),
        }
    }

    pub(super) fn op(
        &self,
        model: &Model,
        side: usize,
        place: usize,
        wr: &Send,
        wr_id: u64,
    ) -> SendOp {
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
                    remote_qkey: model.key_of_datagram(side, leads, to, qkey),
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

    pub(super) fn post_send(
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

    pub(super) fn window(&mut self, side: usize, place: usize, rkey: RKey) {
        let half = &mut self.model.sides[side];
        half.mw_keys[place] = Some(rkey.0);
        half.mws.get_mut(place).expect("live").rkey = rkey.0;
    }

    pub(super) fn region(
        &mut self,
        side: usize,
        call: &Call,
        want: &Want,
    ) -> Result<(), Disagreement> {
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

    pub(super) fn fmr(
        &mut self,
        side: usize,
        call: &Call,
        want: &Want,
    ) -> Result<(), Disagreement> {
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
                // Where nobody looks at them there may be fewer.
                let end = (first + count).min(all.len());
                // SAFETY: as for a region.
                let mapped = unsafe { hca.map_fmr(region, &all[first..end], iova) };
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
}
