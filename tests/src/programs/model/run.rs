//! Work is done: messages, remote accesses, completions, errors and what follows from them. verbs 4.7, 4.8, 5, 6, 7.4,
//! 7.6, 7.9, 8, 9.2, 9.3.

use super::super::super::conformance::{Hears, TooLong};
use super::super::call::{Address, QKeyOf};
use super::post::Work;
use super::state::{Armed, Completion, Memory, Qp, Receive, Request};
use super::{ARENA, Affiliated, Model, Open};
use core::ops::Range;
use core_ib::verbs::{Access, QpEvent, QpState, QpType, SrqEvent, WcOpcode, WcStatus};

/// What a key stands for.
enum Region {
    /// Domain, range, rights.
    Known(usize, usize, usize, Access),
    /// Nothing.
    None,
    /// Nobody says.
    Unsaid,
}

/// Bytes ahead of a datagram.
const GRH: usize = 40;

/// How a message ended at the receiver.
enum Heard {
    /// It is there.
    Yes,
    /// No receive, or nobody there who takes it: dropped.
    No,
    /// The receive was too short, or its memory not to be used.
    Failed(WcStatus),
}

/// A queue pair: side and place.
type Where = (usize, usize);

/// What the earlier requests of a run have touched, by which a later one could be told to be early.
#[derive(Default)]
struct Touched {
    /// Read by what answers late, and not yet fenced: at the peer.
    late_sources: Vec<(usize, Range<usize>)>,
    /// Written by it, locally.
    late_targets: Vec<(usize, Range<usize>)>,
    /// Written by messages.
    written: Vec<(usize, Range<usize>)>,
}

fn overlap(a: &[(usize, Range<usize>)], b: &[(usize, Range<usize>)]) -> bool {
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

    fn qp(&self, (side, place): Where) -> Option<&Qp> {
        self.sides[side].qps.get(place)
    }

    fn qp_mut(&mut self, (side, place): Where) -> &mut Qp {
        self.sides[side].qps.get_mut(place).expect("live")
    }

    /// Do queues that are to run now want something from one SRQ? Then it is chance who gets it.
    fn share(&self, ready: &[Where]) -> bool {
        let mut wanted: Vec<_> = ready.iter().filter_map(|&at| self.peer(at)).collect();
        let count = wanted.len();
        wanted.retain(|&(side, place)| self.qp((side, place)).is_some_and(|qp| qp.srq.is_some()));
        count > 1 && wanted.len() > 1
    }

    /// The connected peer, if it hears what this QP says.
    fn peer(&self, at: Where) -> Option<Where> {
        let qp = self.qp(at)?;
        let (side, place, id, _) = qp.peer?;
        let peer = self.sides[side].qps.get(place)?;
        let same = qp.service == QpType::Uc || peer.epoch == qp.epoch;
        (peer.id == id && peer.hears() && same).then_some((side, place))
    }

    fn can_send(&self, at: Where) -> bool {
        let Some(qp) = self.qp(at) else { return false };
        if qp.state != QpState::Rts || qp.sq.is_empty() {
            return false;
        }
        // Who waits goes on when there is a receive, or nobody to wait for.
        !qp.waits || self.peer(at).is_none_or(|peer| self.has_receive(peer))
    }

    fn has_receive(&self, at: Where) -> bool {
        self.qp(at).is_some_and(|qp| match qp.srq {
            Some(srq) => self.sides[at.0]
                .srqs
                .get(srq)
                .is_some_and(|srq| !srq.posted.is_empty()),
            None => !qp.rq.is_empty(),
        })
    }

    fn take_receive(&mut self, at: Where) -> Option<Receive> {
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
    fn local(&self, side: usize, key: u32) -> Region {
        let half = &self.sides[side];
        if let Some((_, mr)) = half.mrs.live().find(|(_, mr)| mr.keys.0 == key) {
            return Region::Known(mr.pd, mr.lo, mr.hi, mr.access);
        }
        self.fast(side, key, false)
    }

    fn fast(&self, side: usize, key: u32, remote: bool) -> Region {
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
    fn lent(&self, side: usize, key: u32) -> Region {
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
    fn may_use(
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

    fn may_reach(
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

    fn gather(&self, side: usize, pieces: &[Memory]) -> Vec<u8> {
        let mut data = Vec::new();
        for &(_, at, len) in pieces {
            data.extend_from_slice(self.sides[side].arena.get(at..at + len).unwrap_or(&[]));
        }
        data
    }

    /// The first `len` bytes of a list, piece by piece.
    fn front(pieces: &[Memory], mut len: usize) -> Vec<Memory> {
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
    fn behind(pieces: &[Memory], mut skip: usize) -> Vec<Memory> {
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

    fn scatter(&mut self, side: usize, pieces: &[Memory], data: &[u8]) {
        let mut rest = data;
        for (_, at, len) in Self::front(pieces, data.len()) {
            let (now, later) = rest.split_at(len);
            self.sides[side].arena[at..at + len].copy_from_slice(now);
            rest = later;
        }
    }

    /// Nobody says what is in these pieces now.
    fn unsay(&mut self, side: usize, pieces: &[Memory]) {
        for &(_, at, len) in pieces {
            let (from, to) = (at.min(ARENA), (at + len).min(ARENA));
            self.unknown.push((side, from..to));
        }
    }

    fn ranges(side: usize, pieces: &[Memory]) -> Vec<(usize, Range<usize>)> {
        let full = pieces.iter().filter(|piece| piece.2 > 0);
        full.map(|&(_, at, len)| (side, at..at + len)).collect()
    }

    // Completions.

    fn complete(&mut self, at: Where, recv: bool, solicited: bool, completion: Completion) {
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

    fn sent(&mut self, at: Where, request: &Request, status: Vec<WcStatus>, len: usize) {
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

    fn received(&mut self, at: Where, receive: &Receive, status: WcStatus) -> Completion {
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
    fn flush(&mut self, at: Where) {
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
    fn fail(&mut self, at: Where, status: Vec<WcStatus>) {
        let qp = self.qp_mut(at);
        qp.waits = false;
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
    fn refuse(&mut self, at: Where, events: Vec<QpEvent>, must: bool) {
        self.expect(at.0, Affiliated::Qp(at.1, events), must);
        self.entered_error(at.0, at.1);
        self.flush(at);
    }

    /// The first packet of a connection has come. One that was dropped may have counted as that.
    fn established(&mut self, at: Where) {
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

    fn send_one(&mut self, at: Where, touched: &mut Touched) -> Result<(), Open> {
        let qp = self.qp(at).expect("live");
        let (pd, service) = (qp.pd, qp.service);
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
                let few = length <= 2048 || service == QpType::Ud;
                if !few {
                    return Err(Open("some packets may have left"));
                }
                if service == QpType::Ud && length > 2048 {
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
    fn done(&mut self, at: Where, request: &Request, len: usize) {
        let qp = self.qp_mut(at);
        qp.sq.pop_front();
        qp.waits = false;
        self.sent(at, request, vec![WcStatus::Success], len);
    }

    fn data(&self, side: usize, request: &Request) -> Vec<u8> {
        match &request.inline {
            Some(data) => data.clone(),
            None => self.gather(side, &request.pieces),
        }
    }

    /// verbs 7.9, type 1.
    fn bind(&mut self, at: Where, request: &Request) -> Result<(), Open> {
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

    // Datagrams.

    fn datagram(
        &mut self,
        at: Where,
        request: &Request,
        touched: &mut Touched,
    ) -> Result<(), Open> {
        let Work::Datagram { to, qpn, qkey, imm } = request.verb else {
            return Err(Open("no datagram"));
        };
        let data = self.data(at.0, request);
        if data.len() > 2048 {
            if self.declared.datagram_too_long != TooLong::InCompletion {
                return Err(Open("longer than the MTU"));
            }
            self.fail(at, vec![WcStatus::LocalLength, WcStatus::LocalQpOperation]);
            return Ok(());
        }
        self.done(at, request, 0);
        let sides: &[usize] = match to {
            Address::Here => &[at.0],
            Address::There => &[1 - at.0],
            Address::Group(_) => &[0, 1],
            _ => &[],
        };
        let sender = self.qp(at).map_or(0, |qp| qp.qpn);
        if qkey == QKeyOf::Wrong {
            return Ok(());
        }
        for &side in sides {
            for place in 0..4 {
                let Some(qp) = self.qp((side, place)) else {
                    continue;
                };
                let meant = match to {
                    Address::Group(group) => qp.groups.contains(&group),
                    _ => qp.qpn == qpn,
                };
                if !meant || qp.service != QpType::Ud || !qp.hears() {
                    continue;
                }
                let message = Message {
                    data: &data,
                    imm: imm.then(|| super::post::immediate(request.wr_id)),
                    solicited: request.solicited,
                    from: Some((sender, at.0)),
                    grh: matches!(to, Address::Group(_)),
                };
                let target = Self::front(&self.next_pieces((side, place)), GRH + data.len());
                touched.written.extend(Self::ranges(side, &target));
                if let Heard::Failed(_) = self.hear((side, place), &message)? {
                    self.entered_error(side, place);
                    self.flush((side, place));
                }
            }
        }
        Ok(())
    }

    /// A message comes in. On `Failed` the receive has completed; what becomes of the QP is the caller's.
    fn hear(&mut self, at: Where, message: &Message<'_>) -> Result<Heard, Open> {
        if !self.has_receive(at) {
            return Ok(Heard::No);
        }
        let qp = self.qp(at).expect("live");
        let pd = match qp.srq {
            Some(srq) => self.sides[at.0].srqs.get(srq).map_or(0, |srq| srq.pd),
            None => qp.pd,
        };
        let Some(receive) = self.take_receive(at) else {
            return Ok(Heard::No);
        };
        let ahead = if message.from.is_some() { GRH } else { 0 };
        let all = ahead + message.data.len();
        let room: usize = receive.pieces.iter().map(|piece| piece.2).sum();
        let used = Self::front(&receive.pieces, all);
        let good = self.may_use(at.0, pd, &used, true)?;
        let payload = Self::behind(&used, ahead);
        if !good && ahead > 0 && self.may_use(at.0, pd, &payload, true)? {
            return Err(Open("are the 40 bytes looked at that nobody fills?"));
        }
        if room < all || !good {
            if room < all && !good {
                return Err(Open("too short, and not to be written"));
            }
            if good && self.declared.receive_too_short != Hears::Error {
                return Err(Open("too short for a message"));
            }
            let status = if good {
                WcStatus::LocalLength
            } else {
                WcStatus::LocalProtection
            };
            self.unsay_all(at.0, &receive.pieces);
            let failed = self.received(at, &receive, status);
            self.complete(at, true, false, failed);
            return Ok(Heard::Failed(status));
        }
        // 40 bytes that are the GRH's, or nobody's.
        let front = Self::front(&receive.pieces, ahead);
        let mut bytes = self.gather(at.0, &front);
        bytes.extend_from_slice(message.data);
        self.scatter(at.0, &receive.pieces, &bytes);
        self.unsay(at.0, &front);
        let completion = Completion {
            byte_len: Some(all as u32),
            imm: Some(message.imm),
            from: message.from,
            grh: message.from.map(|_| message.grh),
            ..self.received(at, &receive, WcStatus::Success)
        };
        self.complete(at, true, message.solicited, completion);
        Ok(Heard::Yes)
    }

    /// After an error anything may be in a receive's memory that the HCA may write.
    fn unsay_all(&mut self, side: usize, pieces: &[Memory]) {
        let own: Vec<Memory> = pieces
            .iter()
            .filter_map(|&(key, at, len)| match self.local(side, key) {
                Region::Known(_, lo, hi, _) => {
                    let (from, to) = (at.max(lo), (at + len).min(hi));
                    (from < to).then(|| (key, from, to - from))
                }
                _ => None,
            })
            .collect();
        self.unsay(side, &own);
    }

    // Connections.

    /// verbs 6.1, 6.4.
    fn unreliable(
        &mut self,
        at: Where,
        request: &Request,
        touched: &mut Touched,
    ) -> Result<(), Open> {
        let data = self.data(at.0, request);
        self.done(at, request, 0);
        let Some(peer) = self.peer(at) else {
            return Ok(());
        };
        let reads = match request.inline {
            Some(_) => Vec::new(),
            None => Self::ranges(at.0, &request.pieces),
        };
        let writes = match request.verb {
            Work::Write { at: offset, .. } => vec![(peer.0, offset..offset + data.len())],
            _ => Self::ranges(peer.0, &Self::front(&self.next_pieces(peer), data.len())),
        };
        // The first packets of a message may be there before the last is read.
        if overlap(&writes, &reads) {
            return Err(Open("written before it is read, or after"));
        }
        touched.written.extend(writes);
        match request.verb {
            Work::Send { imm } => {
                self.established(peer);
                let message = Message {
                    data: &data,
                    imm: imm.then(|| super::post::immediate(request.wr_id)),
                    solicited: request.solicited,
                    from: None,
                    grh: false,
                };
                if let Heard::Failed(_) = self.hear(peer, &message)? {
                    self.entered_error(peer.0, peer.1);
                    self.flush(peer);
                }
            }
            Work::Write {
                rkey,
                at: offset,
                imm,
            } => {
                let target = self.qp(peer).expect("live");
                let (pd, access) = (target.pd, target.access);
                let allowed = access.contains(Access::REMOTE_WRITE);
                let good = data.is_empty()
                    || self.may_reach(
                        peer.0,
                        pd,
                        rkey,
                        offset,
                        data.len(),
                        Access::REMOTE_WRITE,
                    )?;
                if !allowed || !good {
                    self.maybe_established(peer);
                    return Ok(());
                }
                self.established(peer);
                if imm && !self.has_receive(peer) {
                    // The message is dropped; what of it came before the last packet is written already.
                    self.unsay(peer.0, &[(0, offset, data.len())]);
                    return Ok(());
                }
                self.sides[peer.0].arena[offset..offset + data.len()].copy_from_slice(&data);
                if imm {
                    self.told(peer, request, data.len());
                }
            }
            _ => return Err(Open("not of this service")),
        }
        Ok(())
    }

    /// A WRITE with immediate takes a receive.
    fn told(&mut self, peer: Where, request: &Request, len: usize) {
        let Some(receive) = self.take_receive(peer) else {
            return;
        };
        let completion = Completion {
            opcode: WcOpcode::RecvRdmaWithImm,
            byte_len: Some(len as u32),
            imm: Some(Some(super::post::immediate(request.wr_id))),
            ..self.received(peer, &receive, WcStatus::Success)
        };
        self.complete(peer, true, request.solicited, completion);
    }

    /// A packet came that was refused: it may count as the first.
    fn maybe_established(&mut self, at: Where) {
        if self.qp(at).is_some_and(|qp| qp.state == QpState::Rtr) {
            self.expect(
                at.0,
                Affiliated::Qp(at.1, vec![QpEvent::CommunicationEstablished]),
                false,
            );
        }
    }

    fn reliable(
        &mut self,
        at: Where,
        request: &Request,
        good: bool,
        length: usize,
        touched: &mut Touched,
    ) -> Result<(), Open> {
        let Some(peer) = self.peer(at) else {
            if !good {
                return Err(Open("nobody there, and nothing to read into"));
            }
            if let Some((side, place, ..)) = self.qp(at).and_then(|qp| qp.peer) {
                // Of another connection: what comes is refused, and may count as the first all the same.
                self.maybe_established((side, place));
            }
            self.fail(at, vec![WcStatus::RetryExceeded]);
            return Ok(());
        };
        match request.verb {
            Work::Send { imm } => self.reliable_send(at, peer, request, imm, touched),
            Work::Write {
                rkey,
                at: offset,
                imm,
            } => self.reliable_write(at, peer, request, (rkey, offset, imm), touched),
            Work::Read { rkey, at: offset } => {
                self.reliable_read(at, peer, request, (rkey, offset, length), good, touched)
            }
            _ => self.atomic(at, peer, request, good, touched),
        }
    }

    /// No receive there: asked again, or not.
    fn not_ready(&mut self, at: Where) {
        let qp = self.qp_mut(at);
        if qp.rnr_retry == 7 {
            qp.waits = true;
        } else {
            self.fail(at, vec![WcStatus::RnrRetryExceeded]);
        }
    }

    fn reliable_send(
        &mut self,
        at: Where,
        peer: Where,
        request: &Request,
        imm: bool,
        touched: &mut Touched,
    ) -> Result<(), Open> {
        self.established(peer);
        if !self.has_receive(peer) {
            self.not_ready(at);
            return Ok(());
        }
        let data = self.data(at.0, request);
        let target = self.next_pieces(peer);
        let writes = Self::ranges(peer.0, &Self::front(&target, data.len()));
        let reads = Self::ranges(at.0, &request.pieces);
        if overlap(&writes, &touched.late_sources)
            || overlap(&writes, &reads) && request.inline.is_none()
        {
            return Err(Open("written before it is read, or after"));
        }
        touched.written.extend(writes);
        let message = Message {
            data: &data,
            imm: imm.then(|| super::post::immediate(request.wr_id)),
            solicited: request.solicited,
            from: None,
            grh: false,
        };
        match self.hear(peer, &message)? {
            Heard::Yes => self.done(at, request, 0),
            Heard::No => self.not_ready(at),
            Heard::Failed(status) => {
                self.entered_error(peer.0, peer.1);
                self.flush(peer);
                let status = match status {
                    WcStatus::LocalLength => WcStatus::RemoteInvalidRequest,
                    _ => WcStatus::RemoteOperation,
                };
                self.fail(at, vec![status]);
            }
        }
        Ok(())
    }

    /// The list that the next message goes into.
    fn next_pieces(&self, at: Where) -> Vec<Memory> {
        let Some(qp) = self.qp(at) else {
            return Vec::new();
        };
        let next = match qp.srq {
            Some(srq) => self.sides[at.0]
                .srqs
                .get(srq)
                .and_then(|srq| srq.posted.front()),
            None => qp.rq.front(),
        };
        next.map_or(Vec::new(), |receive| receive.pieces.clone())
    }

    /// Is the operation enabled, and may the key be used so? Refuses if not: verbs 6.3, 7.4.
    fn admitted(
        &mut self,
        at: Where,
        peer: Where,
        (rkey, offset, len): (u32, usize, usize),
        right: Access,
    ) -> Result<bool, Open> {
        let target = self.qp(peer).expect("live");
        let (pd, access) = (target.pd, target.access);
        if !access.contains(right) {
            self.maybe_established(peer);
            self.refuse(
                peer,
                vec![QpEvent::RequestError, QpEvent::AccessError],
                true,
            );
            self.fail(
                at,
                vec![WcStatus::RemoteInvalidRequest, WcStatus::RemoteAccess],
            );
            return Ok(false);
        }
        if len > 0 && !self.may_reach(peer.0, pd, rkey, offset, len, right)? {
            self.maybe_established(peer);
            let must = right != Access::REMOTE_READ;
            self.refuse(peer, vec![QpEvent::AccessError], must);
            self.fail(at, vec![WcStatus::RemoteAccess]);
            return Ok(false);
        }
        Ok(true)
    }

    fn reliable_write(
        &mut self,
        at: Where,
        peer: Where,
        request: &Request,
        (rkey, offset, imm): (u32, usize, bool),
        touched: &mut Touched,
    ) -> Result<(), Open> {
        let data = self.data(at.0, request);
        let writes = [(peer.0, offset..offset + data.len())];
        let reads = Self::ranges(at.0, &request.pieces);
        if overlap(&writes, &touched.late_sources) || overlap(&writes, &reads) {
            return Err(Open("written before it is read, or after"));
        }
        let target = self.qp(peer).expect("live");
        let refused = !target.access.contains(Access::REMOTE_WRITE)
            || !data.is_empty()
                && !self.may_reach(
                    peer.0,
                    target.pd,
                    rkey,
                    offset,
                    data.len(),
                    Access::REMOTE_WRITE,
                )?;
        if imm && refused {
            return Err(Open("refused, with a receive or without"));
        }
        if !self.admitted(at, peer, (rkey, offset, data.len()), Access::REMOTE_WRITE)? {
            return Ok(());
        }
        self.established(peer);
        if imm && !self.has_receive(peer) {
            self.unsay(peer.0, &[(0, offset, data.len())]);
            self.not_ready(at);
            return Ok(());
        }
        self.sides[peer.0].arena[offset..offset + data.len()].copy_from_slice(&data);
        touched.written.extend(writes);
        if imm {
            self.told(peer, request, data.len());
        }
        self.done(at, request, 0);
        Ok(())
    }

    fn reliable_read(
        &mut self,
        at: Where,
        peer: Where,
        request: &Request,
        (rkey, offset, len): (u32, usize, usize),
        good: bool,
        touched: &mut Touched,
    ) -> Result<(), Open> {
        let source = [(peer.0, offset..offset + len)];
        let target = Self::ranges(at.0, &request.pieces);
        if overlap(&source, &target) {
            return Err(Open("read into itself"));
        }
        self.serves(at, peer)?;
        if !good {
            return self.nowhere(at, peer, (rkey, offset, len), Access::REMOTE_READ);
        }
        if self.qp(peer).is_some_and(|qp| qp.serves == 0) {
            return self.not_served(at, peer);
        }
        if !self.admitted(at, peer, (rkey, offset, len), Access::REMOTE_READ)? {
            self.unsay(at.0, &request.pieces);
            return Ok(());
        }
        self.established(peer);
        let data = self.sides[peer.0]
            .arena
            .get(offset..offset + len)
            .unwrap_or(&[])
            .to_vec();
        self.scatter(at.0, &request.pieces, &data);
        touched.late_sources.extend(source);
        touched.late_targets.extend(target);
        self.done(at, request, len);
        Ok(())
    }

    /// The peer serves fewer reads than may be under way: it refuses one too many, or not (verbs, T085).
    fn serves(&self, at: Where, peer: Where) -> Result<(), Open> {
        let (own, peer) = (self.qp(at).expect("live"), self.qp(peer).expect("live"));
        if own.reads > peer.serves && peer.serves > 0 && own.sq.len() > 1 {
            return Err(Open("more reads than are served"));
        }
        Ok(())
    }

    fn not_served(&mut self, _: Where, _: Where) -> Result<(), Open> {
        Err(Open("a read that is not served: which refusal comes first"))
    }

    /// The answer has nowhere to go: LOC_PROT, unless the peer refuses anyway.
    fn nowhere(
        &mut self,
        at: Where,
        peer: Where,
        (rkey, offset, len): (u32, usize, usize),
        right: Access,
    ) -> Result<(), Open> {
        if self.qp(at).is_some_and(|qp| qp.sq.len() > 1) {
            // verbs 4.5: what completes flushed may have been delivered.
            return Err(Open("what follows a read may be there before its answer"));
        }
        let target = self.qp(peer).expect("live");
        let served = target.access.contains(right)
            && target.serves > 0
            && self.may_reach(peer.0, target.pd, rkey, offset, len, right)?;
        if !served {
            return Err(Open("refused by both"));
        }
        self.maybe_established(peer);
        if right == Access::REMOTE_ATOMIC {
            self.unsay(peer.0, &[(0, offset, len)]);
        }
        let pieces = self
            .qp(at)
            .and_then(|qp| qp.sq.front())
            .map_or(Vec::new(), |request| request.pieces.clone());
        self.unsay_all(at.0, &pieces);
        self.fail(at, vec![WcStatus::LocalProtection]);
        Ok(())
    }

    fn atomic(
        &mut self,
        at: Where,
        peer: Where,
        request: &Request,
        good: bool,
        touched: &mut Touched,
    ) -> Result<(), Open> {
        let (rkey, offset) = match request.verb {
            Work::Swap { rkey, at, .. } | Work::Add { rkey, at, .. } => (rkey, at),
            _ => return Err(Open("no atomic")),
        };
        let source = [(peer.0, offset..offset + 8)];
        let front = Self::front(&request.pieces, 8);
        let target = Self::ranges(at.0, &front);
        if overlap(&source, &target) || overlap(&source, &touched.written) {
            return Err(Open("an atomic on what is written meanwhile"));
        }
        self.serves(at, peer)?;
        if self.may_use(at.0, self.qp(at).expect("live").pd, &front, true)? != good {
            return Err(Open("is more than eight bytes of the list looked at?"));
        }
        if !good {
            return self.nowhere(at, peer, (rkey, offset, 8), Access::REMOTE_ATOMIC);
        }
        if self.qp(peer).is_some_and(|qp| qp.serves == 0) {
            return self.not_served(at, peer);
        }
        if !self.admitted(at, peer, (rkey, offset, 8), Access::REMOTE_ATOMIC)? {
            self.unsay(at.0, &front);
            return Ok(());
        }
        self.established(peer);
        let old = self.word(peer.0, offset);
        let new = match request.verb {
            Work::Swap { compare, swap, .. } if compare == old => swap,
            Work::Add { add, .. } => old.wrapping_add(add),
            _ => old,
        };
        self.sides[peer.0].arena[offset..offset + 8].copy_from_slice(&new.to_ne_bytes());
        self.scatter(at.0, &front, &old.to_ne_bytes());
        touched.late_sources.extend(source);
        touched.late_targets.extend(target);
        self.done(at, request, 8);
        Ok(())
    }
}

/// What comes in.
struct Message<'a> {
    data: &'a [u8],
    imm: Option<[u8; 4]>,
    solicited: bool,
    /// Of a datagram.
    from: Option<(u32, usize)>,
    grh: bool,
}
