//! Posting: the checks of verbs 4.1 to 4.3, and what is queued.

use super::super::super::conformance::Refusal;
use super::super::super::conformance::tools::QKEY;
use super::super::call::{Address, Name, Piece, QKeyOf, Remote, Send, Verb};
use super::modify::NOBODY;
use super::state::{Memory, Qp, Receive, Request};
use super::{Error, Model, Open, Want};
use core_ib::QKey;
use core_ib::verbs::{Access, PostCause, QpState, QpType};

/// What a request does, in numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Work {
    Send {
        imm: bool,
    },
    Write {
        rkey: u32,
        at: usize,
        imm: bool,
    },
    Read {
        rkey: u32,
        at: usize,
    },
    Swap {
        rkey: u32,
        at: usize,
        compare: u64,
        swap: u64,
    },
    Add {
        rkey: u32,
        at: usize,
        add: u64,
    },
    Datagram {
        to: Address,
        qpn: u32,
        qkey: QKey,
        imm: bool,
    },
    Bind {
        mw: usize,
        mr: usize,
        lo: usize,
        len: usize,
        access: Access,
    },
}

/// The four bytes that a request carries if it carries any.
pub fn immediate(wr_id: u64) -> [u8; 4] {
    (wr_id as u32 ^ 0xa5a5_0000).to_be_bytes()
}

/// Inline data of a request.
pub fn inline(wr_id: u64, len: u16) -> Vec<u8> {
    (0..len)
        .map(|at| (wr_id as u8).wrapping_mul(31).wrapping_add(at as u8))
        .collect()
}

/// Operands of the atomic of a request: what is compared, and what is stored or added.
pub fn operands(wr_id: u64, there: u64, right: bool) -> (u64, u64) {
    let compare = if right { there } else { there ^ wr_id };
    (compare, wr_id.wrapping_mul(0x0101_0101_0101_0101))
}

/// What verbs leaves open of the GSI's requests, or the driver to refuse in a way of its own: 3.11, 4.2.
fn special(wr: &Send) -> Result<(), Open> {
    let length: usize = wr.pieces.iter().map(|piece| usize::from(piece.len)).sum();
    let imm = matches!(wr.verb, Verb::Datagram { imm: true, .. });
    match (imm, wr.inline, length) {
        (true, ..) => Err(Open("immediate data by the GSI")),
        (_, Some(0), _) => Err(Open("nothing inline")),
        (_, None, 256) => Ok(()),
        (_, None, _) => Err(Open("no MAD")),
        _ => Ok(()),
    }
}

impl Model {
    fn pieces(&self, side: usize, pieces: &[Piece]) -> Result<Vec<Memory>, Open> {
        pieces
            .iter()
            .map(|piece| {
                let key = self
                    .key(side, piece.key, false)
                    .ok_or(Open("no such key was made"))?;
                Ok((key, usize::from(piece.at), usize::from(piece.len)))
            })
            .collect()
    }

    fn all_were_made(&self, side: usize, wrs: &[Vec<Piece>]) -> Result<(), Open> {
        wrs.iter()
            .try_for_each(|pieces| self.pieces(side, pieces).map(drop))
    }

    /// Is there a number or a handle, stale ones included, for all that a request names?
    fn names_exist(&self, side: usize, place: usize, wr: &Send) -> Result<(), Open> {
        let there = self.there(side, place);
        self.pieces(side, &wr.pieces)?;
        match wr.verb {
            Verb::Send { .. } => {}
            Verb::Write { remote, .. }
            | Verb::Read { remote }
            | Verb::Swap { remote, .. }
            | Verb::Add { remote } => {
                self.remote(there, &remote)?;
            }
            Verb::Datagram { ah, .. } => {
                self.find(side, ah, |half| &half.ahs)?;
            }
            Verb::Bind { mw, mr, .. } => {
                self.find(side, mw, |half| &half.mws)?;
                self.find(side, mr, |half| &half.mrs)?;
            }
            Verb::Invalidate { remote: key } | Verb::LocalInvalidate { key } => {
                self.key(side, key, true)
                    .ok_or(Open("no such key was made"))?;
            }
        }
        Ok(())
    }

    /// Key and place in the memory of the peer of a QP.
    fn remote(&self, owner: usize, remote: &Remote) -> Result<(u32, usize), Open> {
        let key = self
            .key(owner, remote.key, true)
            .ok_or(Open("no such key was made"))?;
        Ok((key, usize::from(remote.at)))
    }

    /// The eight bytes at an offset of the arena of `side`, in host order; zero beyond it.
    pub fn word(&self, side: usize, at: usize) -> u64 {
        let bytes = self.sides[side].arena.get(at..at + 8);
        bytes.map_or(0, |bytes| {
            u64::from_ne_bytes(bytes.try_into().expect("eight"))
        })
    }

    /// Where the memory of the peer of that QP is.
    pub fn there(&self, side: usize, place: usize) -> usize {
        if place < 2 { 1 - side } else { side }
    }

    pub(super) fn post_recv(
        &mut self,
        side: usize,
        qp: Name,
        wrs: &[Vec<Piece>],
    ) -> Result<Want, Open> {
        let Some(place) = self.find(side, qp, |half| &half.qps)? else {
            return Ok(Want::Fails(vec![Error::Handle]));
        };
        self.all_were_made(side, wrs)?;
        for (index, pieces) in wrs.iter().enumerate() {
            let wr_id = self.wr_id + index as u64;
            let pieces = self.pieces(side, pieces)?;
            let qp = self.sides[side].qps.get_mut(place).expect("live");
            let mut causes = Vec::new();
            let mut when = |wrong, cause| {
                if wrong {
                    causes.push(cause);
                }
            };
            when(
                qp.state == QpState::Reset || qp.srq.is_some(),
                PostCause::InvalidState,
            );
            // A queue of size 0 has no free entry either.
            let used = qp.recv_posted.wrapping_sub(qp.recv_retired);
            when(used >= qp.caps.max_recv_wr, PostCause::QueueFull);
            when(
                pieces.len() as u32 > qp.caps.max_recv_sge,
                PostCause::TooManySge,
            );
            if !causes.is_empty() {
                return Ok(Want::Stops(index, causes));
            }
            let (position, srq) = (qp.recv_posted, None);
            qp.recv_posted += 1;
            qp.rq.push_back(Receive {
                wr_id,
                pieces,
                position,
                srq,
            });
        }
        Ok(Want::Posted)
    }

    pub(super) fn post_srq(
        &mut self,
        side: usize,
        srq: Name,
        wrs: &[Vec<Piece>],
    ) -> Result<Want, Open> {
        let Some(place) = self.find(side, srq, |half| &half.srqs)? else {
            return Ok(Want::Fails(vec![Error::Handle]));
        };
        self.all_were_made(side, wrs)?;
        for (index, pieces) in wrs.iter().enumerate() {
            let wr_id = self.wr_id + index as u64;
            let pieces = self.pieces(side, pieces)?;
            let srq = self.sides[side].srqs.get_mut(place).expect("live");
            let mut causes = Vec::new();
            if srq.used >= srq.size {
                causes.push(PostCause::QueueFull);
            }
            if pieces.len() as u32 > srq.sges {
                causes.push(PostCause::TooManySge);
            }
            if !causes.is_empty() {
                return Ok(Want::Stops(index, causes));
            }
            srq.used += 1;
            let (position, srq_place) = (0, Some(place));
            srq.posted.push_back(Receive {
                wr_id,
                pieces,
                position,
                srq: srq_place,
            });
        }
        Ok(Want::Posted)
    }

    pub(super) fn post_send(&mut self, side: usize, qp: Name, wrs: &[Send]) -> Result<Want, Open> {
        let Some(place) = self.find(side, qp, |half| &half.qps)? else {
            return Ok(Want::Fails(vec![Error::Handle]));
        };
        for wr in wrs {
            // What is not posted is named all the same.
            self.names_exist(side, place, wr)?;
        }
        for (index, wr) in wrs.iter().enumerate() {
            let wr_id = self.wr_id + index as u64;
            let pieces = self.pieces(side, &wr.pieces)?;
            let qp = self.sides[side].qps.get(place).expect("live").clone();
            let mut causes = self.causes(side, &qp, wr)?;
            let used = qp.posted.wrapping_sub(qp.retired);
            if used >= qp.caps.max_send_wr {
                causes.push(PostCause::QueueFull);
            }
            if !causes.is_empty() {
                return Ok(Want::Stops(index, causes));
            }
            let work = self.work(side, place, &qp, wr, wr_id)?;
            if matches!(work, Work::Bind { .. }) && (qp.state != QpState::Rts || !qp.sq.is_empty())
            {
                return Err(Open("a key that a bind may give"));
            }
            let request = Request {
                wr_id,
                verb: work,
                pieces,
                inline: wr.inline.map(|len| inline(wr_id, len)),
                signaled: wr.signaled || qp.all,
                solicited: wr.solicited,
                fence: wr.fence,
                position: qp.posted,
            };
            let qp = self.sides[side].qps.get_mut(place).expect("live");
            qp.posted += 1;
            qp.sq.push_back(request);
        }
        Ok(Want::Posted)
    }

    /// What is wrong with a request: verbs 4.1. A free entry apart.
    fn causes(&self, side: usize, qp: &Qp, wr: &Send) -> Result<Vec<PostCause>, Open> {
        let mut causes = Vec::new();
        let mut when = |wrong, cause| {
            if wrong {
                causes.push(cause);
            }
        };
        let open = matches!(
            qp.state,
            QpState::Rts | QpState::Sqd | QpState::Sqe | QpState::Error
        );
        when(!open, PostCause::InvalidState);
        let sges = if wr.inline.is_some() {
            0
        } else {
            wr.pieces.len()
        };
        when(sges as u32 > qp.caps.max_send_sge, PostCause::TooManySge);
        let legal = match wr.verb {
            Verb::Send { .. } => qp.is_connected(),
            Verb::Write { .. } => qp.is_connected(),
            Verb::Read { .. } | Verb::Swap { .. } | Verb::Add { .. } => qp.service == QpType::Rc,
            Verb::Bind { .. } => qp.is_connected(),
            Verb::Datagram { .. } => qp.is_datagram(),
            // Neither HCA has windows of type 2 nor fast registration: verbs 4.2.
            Verb::Invalidate { .. } | Verb::LocalInvalidate { .. } => false,
        };
        when(!legal, PostCause::InvalidOpcode);
        let carries = matches!(
            wr.verb,
            Verb::Send { .. } | Verb::Write { .. } | Verb::Datagram { .. }
        );
        if qp.service == QpType::Gsi {
            special(wr)?;
        }
        let too_long = wr
            .inline
            .is_some_and(|len| u32::from(len) > qp.caps.max_inline);
        when(
            wr.inline.is_some() && !carries || too_long,
            PostCause::InlineTooLong,
        );
        if let Verb::Swap { remote, .. } | Verb::Add { remote } = wr.verb {
            let local: usize = wr.pieces.iter().map(|piece| usize::from(piece.len)).sum();
            when(remote.at % 8 != 0 || local < 8, PostCause::InvalidAttr);
            // Where the HCA allows more: verbs 7.6.
            if wr.pieces.len() > 1 && local >= 8 {
                return Err(Open("an atomic that is answered in pieces"));
            }
        }
        let reads = matches!(
            wr.verb,
            Verb::Read { .. } | Verb::Swap { .. } | Verb::Add { .. }
        );
        when(reads && qp.reads == 0, PostCause::InvalidState);
        match wr.verb {
            Verb::Datagram { ah, .. } => {
                let found = self.find(side, ah, |half| &half.ahs)?;
                let own = found.and_then(|place| self.sides[side].ahs.get(place));
                when(own.is_none(), PostCause::InvalidHandle);
                let elsewhere = own.is_some_and(|ah| ah.pd != qp.pd);
                if elsewhere && self.declared.ah_of_another_pd != Refusal::AtPost {
                    return Err(Open("an address of another domain"));
                }
                when(elsewhere, PostCause::InvalidHandle);
            }
            Verb::Bind {
                mw,
                mr,
                access,
                len,
                ..
            } => {
                let window = self.find(side, mw, |half| &half.mws)?;
                let region = self.find(side, mr, |half| &half.mrs)?;
                if region.is_none() && len == 0 {
                    return Err(Open("an unbind that names no region"));
                }
                when(
                    window.is_none() || region.is_none(),
                    PostCause::InvalidHandle,
                );
                if !Access::REMOTE.contains(access) {
                    return Err(Open("local rights of a window: refused at once or later"));
                }
            }
            _ => {}
        }
        Ok(causes)
    }

    fn work(
        &self,
        side: usize,
        place: usize,
        qp: &Qp,
        wr: &Send,
        wr_id: u64,
    ) -> Result<Work, Open> {
        let there = self.there(side, place);
        Ok(match wr.verb {
            Verb::Send { imm } => Work::Send { imm },
            Verb::Write { remote, imm } => {
                let (rkey, at) = self.remote(there, &remote)?;
                Work::Write { rkey, at, imm }
            }
            Verb::Read { remote } => {
                let (rkey, at) = self.remote(there, &remote)?;
                Work::Read { rkey, at }
            }
            Verb::Swap { remote, right } => {
                let (rkey, at) = self.remote(there, &remote)?;
                let (compare, swap) = operands(wr_id, self.word(there, at), right);
                Work::Swap {
                    rkey,
                    at,
                    compare,
                    swap,
                }
            }
            Verb::Add { remote } => {
                let (rkey, at) = self.remote(there, &remote)?;
                let (_, add) = operands(wr_id, 0, true);
                Work::Add { rkey, at, add }
            }
            Verb::Datagram { ah, to, qkey, imm } => {
                let ah = self.find(side, ah, |half| &half.ahs)?;
                let to_where = ah
                    .and_then(|ah| self.sides[side].ahs.get(ah))
                    .map(|ah| ah.to);
                let to_where = to_where.ok_or(Open("no address"))?;
                let qpn = self.number(side, to_where, to);
                let qkey = self.key_of_datagram(side, to_where, to, qkey);
                let own = qkey.0 & QKey::CONTROLLED != 0;
                if own && qp.state != QpState::Rts {
                    return Err(Open("a Q_Key that may be another then"));
                }
                let qkey = if own { qp.qkey() } else { qkey };
                Work::Datagram {
                    to: to_where,
                    qpn,
                    qkey,
                    imm,
                }
            }
            Verb::Bind {
                mw,
                mr,
                at,
                len,
                access,
            } => {
                let mw = self
                    .find(side, mw, |half| &half.mws)?
                    .ok_or(Open("no window"))?;
                let mr = self
                    .find(side, mr, |half| &half.mrs)?
                    .ok_or(Open("no region"))?;
                Work::Bind {
                    mw,
                    mr,
                    lo: at.into(),
                    len: len.into(),
                    access,
                }
            }
            Verb::Invalidate { .. } | Verb::LocalInvalidate { .. } => {
                return Err(Open("never legal here"));
            }
        })
    }

    /// Number of the QP that a datagram is for.
    /// The Q_Key that a datagram names. With bit 31 set it is the sender's own that goes: verbs 3.5.
    pub fn key_of_datagram(&self, side: usize, to: Address, place: u8, which: QKeyOf) -> QKey {
        let there = match to {
            Address::Here => Some(side),
            Address::There => Some(1 - side),
            _ => None,
        };
        let place = usize::from(place) % usize::from(super::super::call::PLACES);
        let target = there.and_then(|side| self.sides[side].qps.get(place));
        match which {
            QKeyOf::Right => target.map_or(QKEY, Qp::qkey),
            QKeyOf::Wrong => QKey(QKEY.0 ^ 1),
            QKeyOf::Own => QKey(QKey::CONTROLLED),
        }
    }

    pub fn number(&self, side: usize, to: Address, place: u8) -> u32 {
        let side = match to {
            Address::Here => side,
            Address::There => 1 - side,
            Address::Group(_) => return 0xff_ffff,
            _ => return NOBODY,
        };
        let place = usize::from(place) % usize::from(super::super::call::PLACES);
        self.sides[side].qps.get(place).map_or(NOBODY, |qp| qp.qpn)
    }
}
