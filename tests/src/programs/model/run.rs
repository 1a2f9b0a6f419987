//! Work is done: which queue goes on, what its requests may use, completions, errors and what follows from them. verbs 5,
//! 6.1, 6.3, 7.4, 7.6, 7.9, 8.

use super::post::Work;
use super::state::{Armed, Completion, Memory, Qp, Receive, Request};
use super::{ARENA, Affiliated, Model, Open};
use core::ops::Range;
use core_ib::verbs::{Access, QpEvent, QpState, QpType, SrqEvent, WcOpcode, WcStatus};

/// What a key stands for.
pub(super) enum Region {
    /// Domain, range, rights.
    Known(usize, usize, usize, Access),
    /// Nothing.
    None,
    /// Nobody says.
    Unsaid,
}

/// A queue pair: side and place.
pub(super) type Where = (usize, usize);

/// What the earlier requests of a run have touched, by which a later one could be told to be early.
#[derive(Default)]
pub(super) struct Touched {
    /// Read by what answers late, and not yet fenced: at the peer.
    pub(super) late_sources: Vec<(usize, Range<usize>)>,
    /// Written by it, locally.
    pub(super) late_targets: Vec<(usize, Range<usize>)>,
    /// Written by messages.
    pub(super) written: Vec<(usize, Range<usize>)>,
}

pub(super) fn overlap(a: &[(usize, Range<usize>)], b: &[(usize, Range<usize>)]) -> bool {
    let meet = |(side, x): &(usize, Range<usize>), (other, y): &(usize, Range<usize>)| {
        side == other && x.start < y.end && y.start < x.end
    };
    a.iter().any(|x| b.iter().any(|y| meet(x, y)))
}

impl Model {
    /// Does all that can be done.
    pub(super) fn run(&mut self) -> Result<(), Open> {
        let places = || (0..2).flat_map(|side| (0..4).map(move |place| (side, place)));
        let mut ready: Vec<Where> = places().filter(|&at| self.can_send(at)).collect();
        let woken = ready
            .iter()
            .filter(|&&at| self.qp(at).is_some_and(|qp| qp.waits))
            .count();
        if ready.len() > 1 && woken < ready.len() || self.share(&ready) {
            return Err(Open("two queues at once"));
        }
        while !ready.is_empty() {
            while let Some(at) = ready.pop() {
                let mut touched = Touched::default();
                while self.can_send(at) {
                    self.send_one(at, &mut touched)?;
                }
            }
            // Who waited for one that has failed by now.
            ready = places().filter(|&at| self.can_send(at)).collect();
            if self.share(&ready) {
                return Err(Open("two queues at once"));
            }
        }
        for at in places() {
            self.flush(at);
        }
        for half in &self.sides {
            let over = half.cqs.live().any(|(_, cq)| cq.len() > cq.size as usize);
            if over {
                return Err(Open("a CQ overruns"));
            }
        }
        Ok(())
    }

    pub(super) fn qp(&self, (side, place): Where) -> Option<&Qp> {
        self.sides[side].qps.get(place)
    }

    pub(super) fn qp_mut(&mut self, (side, place): Where) -> &mut Qp {
        self.sides[side].qps.get_mut(place).expect("live")
    }

    /// Do queues that are to run now want something from one SRQ? Then it is chance who gets it.
    pub(super) fn share(&self, ready: &[Where]) -> bool {
        let mut wanted: Vec<_> = ready.iter().filter_map(|&at| self.peer(at)).collect();
        let count = wanted.len();
        wanted.retain(|&(side, place)| self.qp((side, place)).is_some_and(|qp| qp.srq.is_some()));
        count > 1 && wanted.len() > 1
    }

    /// The connected peer, if it hears what this QP says.
    pub(super) fn peer(&self, at: Where) -> Option<Where> {
        let qp = self.qp(at)?;
        let (side, place, id, _) = qp.peer?;
        let peer = self.sides[side].qps.get(place)?;
        let same = qp.service == QpType::Uc || peer.epoch == qp.epoch;
        (peer.id == id && peer.hears() && same).then_some((side, place))
    }

    pub(super) fn can_send(&self, at: Where) -> bool {
        let Some(qp) = self.qp(at) else { return false };
        let goes = match qp.state {
            QpState::Rts => true,
            QpState::Sqd => qp.drains.is_some(),
            _ => false,
        };
        if !goes || qp.sq.is_empty() {
            return false;
        }
        // Who waits goes on when there is a receive, or nobody to wait for.
        !qp.waits || self.peer(at).is_none_or(|peer| self.has_receive(peer))
    }

    pub(super) fn has_receive(&self, at: Where) -> bool {
        self.qp(at).is_some_and(|qp| match qp.srq {
            Some(srq) => self.sides[at.0]
                .srqs
                .get(srq)
                .is_some_and(|srq| !srq.posted.is_empty()),
            None => !qp.rq.is_empty(),
        })
    }

    pub(super) fn take_receive(&mut self, at: Where) -> Option<Receive> {
        let Some(srq) = self.qp(at)?.srq else {
            return self.qp_mut(at).rq.pop_front();
        };
        let shared = self.sides[at.0].srqs.get_mut(srq)?;
        let receive = shared.posted.pop_front()?;
        if shared.limit > 0 && (shared.posted.len() as u32) < shared.limit {
            shared.limit = 0;
            self.expect(at.0, Affiliated::Srq(srq, SrqEvent::LimitReached), true);
        }
        Some(receive)
    }

    /// What the HCA of `side` takes a local key for.
    pub(super) fn local(&self, side: usize, key: u32) -> Region {
        let half = &self.sides[side];
        if let Some((_, mr)) = half.mrs.live().find(|(_, mr)| mr.keys.0 == key) {
            return Region::Known(mr.pd, mr.lo, mr.hi, mr.access);
        }
        self.fast(side, key, false)
    }

    pub(super) fn fast(&self, side: usize, key: u32, remote: bool) -> Region {
        let which = |keys: (u32, u32)| if remote { keys.1 } else { keys.0 };
        for (_, fmr) in self.sides[side].fmrs.live() {
            if let Some((lo, hi, keys)) = fmr.mapped
                && which(keys) == key
            {
                return Region::Known(fmr.pd, lo, hi, fmr.access);
            }
            if fmr.old.iter().any(|&keys| which(keys) == key) {
                return Region::Unsaid;
            }
        }
        Region::None
    }

    /// What it takes a remote key for.
    pub(super) fn lent(&self, side: usize, key: u32) -> Region {
        let half = &self.sides[side];
        if let Some((_, mr)) = half.mrs.live().find(|(_, mr)| mr.keys.1 == key) {
            return Region::Known(mr.pd, mr.lo, mr.hi, mr.access);
        }
        if let Some((_, mw)) = half.mws.live().find(|(_, mw)| mw.rkey == key) {
            return match mw.bound {
                _ if mw.spoilt => Region::Unsaid,
                Some((_, lo, hi, access)) => Region::Known(mw.pd, lo, hi, access),
                None => Region::None,
            };
        }
        self.fast(side, key, true)
    }

    /// May a request of domain `pd` use these pieces? verbs 7.4.
    pub(super) fn may_use(
        &self,
        side: usize,
        pd: usize,
        pieces: &[Memory],
        write: bool,
    ) -> Result<bool, Open> {
        for &(key, at, len) in pieces.iter().filter(|piece| piece.2 > 0) {
            match self.local(side, key) {
                Region::Unsaid => return Err(Open("a key of an earlier mapping")),
                Region::Known(domain, lo, hi, access)
                    if domain == pd
                        && at >= lo
                        && at + len <= hi
                        && (!write || access.contains(Access::LOCAL_WRITE)) => {}
                _ => return Ok(false),
            }
        }
        Ok(true)
    }

    pub(super) fn may_reach(
        &self,
        side: usize,
        pd: usize,
        key: u32,
        at: usize,
        len: usize,
        right: Access,
    ) -> Result<bool, Open> {
        match self.lent(side, key) {
            Region::Unsaid => Err(Open("a key of which nobody says")),
            Region::None => Ok(false),
            Region::Known(domain, lo, hi, access) => {
                Ok(domain == pd && at >= lo && at + len <= hi && access.contains(right))
            }
        }
    }

    pub(super) fn gather(&self, side: usize, pieces: &[Memory]) -> Vec<u8> {
        let mut data = Vec::new();
        for &(_, at, len) in pieces {
            data.extend_from_slice(self.sides[side].arena.get(at..at + len).unwrap_or(&[]));
        }
        data
    }

    /// The first `len` bytes of a list, piece by piece.
    pub(super) fn front(pieces: &[Memory], mut len: usize) -> Vec<Memory> {
        let mut front = Vec::new();
        for &(key, at, most) in pieces {
            let take = most.min(len);
            len -= take;
            if take > 0 {
                front.push((key, at, take));
            }
        }
        front
    }

    /// What is left of a list without its first `skip` bytes.
    pub(super) fn behind(pieces: &[Memory], mut skip: usize) -> Vec<Memory> {
        let mut rest = Vec::new();
        for &(key, at, len) in pieces {
            let gone = len.min(skip);
            skip -= gone;
            if len > gone {
                rest.push((key, at + gone, len - gone));
            }
        }
        rest
    }

    pub(super) fn scatter(&mut self, side: usize, pieces: &[Memory], data: &[u8]) {
        let mut rest = data;
        for (_, at, len) in Self::front(pieces, data.len()) {
            let (now, later) = rest.split_at(len);
            self.sides[side].arena[at..at + len].copy_from_slice(now);
            rest = later;
        }
    }

    /// Nobody says what is in these pieces now.
    pub(super) fn unsay(&mut self, side: usize, pieces: &[Memory]) {
        for &(_, at, len) in pieces {
            let (from, to) = (at.min(ARENA), (at + len).min(ARENA));
            self.unknown.push((side, from..to));
        }
    }

    pub(super) fn ranges(side: usize, pieces: &[Memory]) -> Vec<(usize, Range<usize>)> {
        let full = pieces.iter().filter(|piece| piece.2 > 0);
        full.map(|&(_, at, len)| (side, at..at + len)).collect()
    }

    // Completions.

    pub(super) fn complete(
        &mut self,
        at: Where,
        recv: bool,
        solicited: bool,
        completion: Completion,
    ) {
        let qp = self.qp(at).expect("live");
        let (id, cq) = (qp.id, qp.cqs[usize::from(recv)]);
        let counts = solicited
            || completion
                .status
                .iter()
                .any(|status| super::is_error(*status));
        let Some(cq) = self.sides[at.0].cqs.get_mut(cq) else {
            return;
        };
        cq.waiting
            .entry((id, recv))
            .or_default()
            .push_back(completion);
        let fires = match cq.armed {
            Armed::No => false,
            Armed::Solicited => counts,
            Armed::Any => true,
        };
        if fires {
            cq.armed = Armed::No;
            cq.fired = Some(true);
        }
    }

    pub(super) fn sent(&mut self, at: Where, request: &Request, status: Vec<WcStatus>, len: usize) {
        let success = status == [WcStatus::Success];
        if success && !request.signaled {
            return;
        }
        let (opcode, byte_len) = match request.verb {
            Work::Send { .. } | Work::Datagram { .. } => (WcOpcode::Send, None),
            Work::Write { .. } => (WcOpcode::RdmaWrite, None),
            Work::Read { .. } => (WcOpcode::RdmaRead, Some(len as u32)),
            Work::Swap { .. } => (WcOpcode::CompareSwap, Some(8)),
            Work::Add { .. } => (WcOpcode::FetchAdd, Some(8)),
            Work::Bind { .. } => (WcOpcode::BindMw, None),
        };
        let completion = Completion {
            wr_id: request.wr_id,
            status,
            qpn: self.qp(at).map_or(0, |qp| qp.qpn),
            opcode,
            byte_len,
            imm: None,
            from: None,
            grh: None,
            position: request.position,
            srq: None,
        };
        self.complete(at, false, false, completion);
    }

    pub(super) fn received(
        &mut self,
        at: Where,
        receive: &Receive,
        status: WcStatus,
    ) -> Completion {
        Completion {
            wr_id: receive.wr_id,
            status: vec![status],
            qpn: self.qp(at).map_or(0, |qp| qp.qpn),
            opcode: WcOpcode::Recv,
            byte_len: None,
            imm: None,
            from: None,
            grh: None,
            position: receive.position,
            srq: receive.srq,
        }
    }

    /// Everything in a queue pair in error is flushed. verbs 3.2, 3.9.
    pub(super) fn flush(&mut self, at: Where) {
        let Some(qp) = self.qp(at) else { return };
        let (sends, receives) = match qp.state {
            QpState::Error => (true, true),
            QpState::Sqe => (true, false),
            _ => return,
        };
        while let Some(request) = self.qp_mut(at).sq.pop_front().filter(|_| sends) {
            if let Work::Bind { mw, .. } = request.verb
                && let Some(mw) = self.sides[at.0].mws.get_mut(mw)
            {
                mw.spoilt = true;
            }
            self.sent(at, &request, vec![WcStatus::Flushed], 0);
        }
        self.qp_mut(at).waits = false;
        while receives && let Some(receive) = self.qp_mut(at).rq.pop_front() {
            let flushed = self.received(at, &receive, WcStatus::Flushed);
            self.complete(at, true, false, flushed);
        }
    }

    // Errors.

    /// The oldest request fails: RC to ERR, else SQE. verbs 6.1.
    pub(super) fn fail(&mut self, at: Where, status: Vec<WcStatus>) {
        let qp = self.qp_mut(at);
        (qp.waits, qp.drains) = (false, None);
        let Some(request) = qp.sq.pop_front() else {
            return;
        };
        let rc = qp.service == QpType::Rc;
        self.sent(at, &request, status, 0);
        if rc {
            self.entered_error(at.0, at.1);
            self.flush(at);
        } else {
            self.qp_mut(at).state = QpState::Sqe;
        }
    }

    /// The responder refuses, and goes to ERR. verbs 6.3.
    pub(super) fn refuse(&mut self, at: Where, events: Vec<QpEvent>, must: bool) {
        self.expect(at.0, Affiliated::Qp(at.1, events), must);
        self.entered_error(at.0, at.1);
        self.flush(at);
    }

    /// The first packet of a connection has come. One that was dropped may have counted as that.
    pub(super) fn established(&mut self, at: Where) {
        if self
            .qp(at)
            .is_some_and(|qp| qp.state == QpState::Rtr && qp.is_connected())
        {
            self.expect(
                at.0,
                Affiliated::Qp(at.1, vec![QpEvent::CommunicationEstablished]),
                false,
            );
        }
    }

    // The send queue.

    pub(super) fn send_one(&mut self, at: Where, touched: &mut Touched) -> Result<(), Open> {
        let qp = self.qp(at).expect("live");
        let (pd, service, datagrams) = (qp.pd, qp.service, qp.is_datagram());
        let request = qp.sq.front().expect("not empty").clone();
        let reads = matches!(
            request.verb,
            Work::Read { .. } | Work::Swap { .. } | Work::Add { .. }
        );
        let good = request.inline.is_some() || self.may_use(at.0, pd, &request.pieces, reads)?;
        let length: usize = request.pieces.iter().map(|piece| piece.2).sum();
        if let Work::Bind { .. } = request.verb {
            return self.bind(at, &request);
        }
        if request.fence && service == QpType::Rc {
            *touched = Touched::default();
        }
        let pieces = Self::ranges(at.0, &request.pieces);
        if !reads {
            let stale =
                overlap(&pieces, &touched.late_targets) || overlap(&pieces, &touched.written);
            if request.inline.is_none() && stale {
                return Err(Open("sent before it is written, or after"));
            }
            if !good {
                let few = length <= 2048 || datagrams;
                if !few {
                    return Err(Open("some packets may have left"));
                }
                if datagrams && length > 2048 {
                    return Err(Open("too long, and not to be read"));
                }
                self.fail(at, vec![WcStatus::LocalProtection]);
                return Ok(());
            }
        }
        match request.verb {
            Work::Datagram { .. } => self.datagram(at, &request, touched),
            _ if service == QpType::Uc => self.unreliable(at, &request, touched),
            _ => self.reliable(at, &request, good, length, touched),
        }
    }

    /// A request is done.
    pub(super) fn done(&mut self, at: Where, request: &Request, len: usize) {
        let qp = self.qp_mut(at);
        qp.sq.pop_front();
        qp.waits = false;
        let drained = qp.drains.take();
        self.sent(at, request, vec![WcStatus::Success], len);
        if drained == Some(true) {
            self.expect(at.0, Affiliated::Qp(at.1, vec![QpEvent::SqDrained]), true);
        }
    }

    pub(super) fn data(&self, side: usize, request: &Request) -> Vec<u8> {
        match &request.inline {
            Some(data) => data.clone(),
            None => self.gather(side, &request.pieces),
        }
    }

    /// verbs 7.9, type 1.
    pub(super) fn bind(&mut self, at: Where, request: &Request) -> Result<(), Open> {
        let Work::Bind {
            mw,
            mr,
            lo,
            len,
            access,
        } = request.verb
        else {
            return Err(Open("no bind"));
        };
        let half = &self.sides[at.0];
        let (Some(window), Some(region)) = (half.mws.get(mw), half.mrs.get(mr)) else {
            return Err(Open("a bind of what went meanwhile"));
        };
        let writes = access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        let pd = self.qp(at).expect("live").pd;
        let sound = window.pd == region.pd
            && pd == region.pd
            && (len == 0
                || region.access.contains(Access::MW_BIND)
                    && (!writes || region.access.contains(Access::LOCAL_WRITE))
                    && lo >= region.lo
                    && lo + len <= region.hi);
        let bound = (len > 0).then_some((region.id, lo, lo + len, access));
        let window = self.sides[at.0].mws.get_mut(mw).expect("live");
        if len == 0 && !sound {
            return Err(Open("an unbind across domains"));
        }
        if sound {
            (window.bound, window.spoilt) = (bound, false);
            self.done(at, request, 0);
        } else {
            window.spoilt = true;
            self.fail(at, vec![WcStatus::MwBind]);
        }
        Ok(())
    }
}
