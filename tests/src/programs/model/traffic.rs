//! Messages and remote accesses, one request at a time. verbs 4.7, 4.8, 6, 7.4, 9.2, 9.3.

use super::super::super::conformance::{Hears, TooLong};
use super::super::call::Address;
use super::post::Work;
use super::run::{Region, Touched, Where, overlap};
use super::state::{Completion, Memory, Request};
use super::{Affiliated, Model, Open, PRIMARY};
use core_ib::verbs::{Access, QpEvent, QpState, WcOpcode, WcStatus};

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

/// What comes in.
struct Message<'a> {
    data: &'a [u8],
    imm: Option<[u8; 4]>,
    solicited: bool,
    /// Of a datagram.
    from: Option<(u32, usize)>,
    grh: bool,
}

impl Model {
    // Datagrams.

    pub(super) fn datagram(
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
        for &side in sides {
            if !self.passes(PRIMARY, at.0, side) {
                continue;
            }
            for place in 0..4 {
                let Some(qp) = self.qp((side, place)) else {
                    continue;
                };
                let meant = match to {
                    Address::Group(group) => qp.groups.contains(&group),
                    _ => qp.qpn == qpn,
                };
                if !meant || !qp.is_datagram() || qkey != qp.qkey() || !qp.hears() {
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
    pub(super) fn unreliable(
        &mut self,
        at: Where,
        request: &Request,
        touched: &mut Touched,
    ) -> Result<(), Open> {
        let data = self.data(at.0, request);
        self.done(at, request, 0);
        let Some(peer) = self.peer(at) else {
            let meant = self.qp(at).and_then(|qp| qp.peer);
            return meant.map_or(Ok(()), |(side, place, ..)| self.strays((side, place)));
        };
        if !self.carried(at, peer, false)? {
            return Ok(());
        }
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

    pub(super) fn reliable(
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
                self.strays((side, place))?;
            }
            self.tries_the_other_path(at);
            self.fail(at, vec![WcStatus::RetryExceeded]);
            return Ok(());
        };
        if !self.carried(at, peer, true)? {
            if !good {
                return Err(Open("nobody there, and nothing to read into"));
            }
            self.fail(at, vec![WcStatus::RetryExceeded]);
            return Ok(());
        }
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
    pub(super) fn next_pieces(&self, at: Where) -> Vec<Memory> {
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
