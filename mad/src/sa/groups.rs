//! Multicast groups in which the port is a member on behalf of several users. protocols 4.6.
//!
//! The SA knows one membership of the port in a group; here it is divided among up to eight users, each with the
//! membership bits that it wants. The port is joined with all bits that somebody wants, and leaves with those that
//! nobody wants any more. Requests for one group are made one at a time.

use super::query::{GroupUser, GroupUsers, SaError, request};
use crate::transaction::Transaction;
use core_ib::Gid;
use core_ib::wire::mad::{ComponentMask, JoinState, Mad, McMemberRecord, Method};

/// A Set or a Delete on its way to the SA.
#[derive(Clone, Copy, Debug)]
pub(super) struct Op {
    /// Lower half of its transaction id.
    pub(super) serial: u32,
    pub(super) transaction: Transaction,
    pub(super) step: Step,
}

/// What is to be done for a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Set with these bits.
    Join(JoinState),
    /// Delete with these bits.
    Leave(JoinState),
}

/// What became of memberships that had been lost.
#[derive(Clone, Copy, Debug)]
pub(super) struct News {
    pub(super) users: GroupUsers,
    pub(super) result: Result<McMemberRecord, SaError>,
}

/// One group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group {
    /// Names it; of a group that the SA is to name, none until it has.
    pub(super) mgid: Gid,
    /// What the last join asked for: to ask again with.
    ask: McMemberRecord,
    mask: ComponentMask,
    /// Bits by user.
    wants: [JoinState; GroupUser::COUNT],
    /// Bits that the SA has of this port.
    joined: JoinState,
    /// The SA's last answer, if it counts.
    pub(super) record: Option<McMemberRecord>,
    pub(super) op: Option<Op>,
    /// The membership was lost, and the users are to be told what becomes of it.
    lost: bool,
    /// That, to be reported.
    pub(super) news: Option<News>,
}

impl Group {
    pub(super) const fn new(ask: McMemberRecord, mask: ComponentMask) -> Self {
        Self {
            mgid: ask.mgid,
            ask,
            mask,
            wants: [JoinState::empty(); GroupUser::COUNT],
            joined: JoinState::empty(),
            record: None,
            op: None,
            lost: false,
            news: None,
        }
    }

    /// Asks like this from now on.
    pub(super) fn ask_like(&mut self, ask: &McMemberRecord, mask: ComponentMask) {
        (self.ask, self.mask) = (*ask, mask);
    }

    /// Bits that somebody wants who has them.
    fn wanted(&self) -> JoinState {
        let all = self.wants.iter();
        all.fold(JoinState::empty(), |all, bits| all | *bits)
    }

    /// Who is in it.
    pub(super) fn users(&self) -> GroupUsers {
        let bits = self.wants.iter().rev();
        GroupUsers(bits.fold(0, |users, bits| users << 1 | u8::from(!bits.is_empty())))
    }

    pub(super) fn wants(&self, user: GroupUser) -> JoinState {
        self.wants.get(user.index()).copied().unwrap_or_default()
    }

    /// The bits of a user who was told that he has joined.
    pub(super) fn give(&mut self, user: GroupUser, bits: JoinState) {
        if let Some(wants) = self.wants.get_mut(user.index()) {
            *wants |= bits;
        }
    }

    /// A user does not want these bits any more.
    pub(super) fn take(&mut self, user: GroupUser, bits: JoinState) {
        if let Some(wants) = self.wants.get_mut(user.index()) {
            *wants &= !bits;
        }
    }

    /// Has the SA all of `bits`?
    pub(super) fn has(&self, bits: JoinState) -> bool {
        self.record.is_some() && self.joined.contains(bits)
    }

    /// The SA has forgotten us. What was under way is void.
    pub(super) fn lose(&mut self) {
        self.joined = JoinState::empty();
        self.record = None;
        self.op = None;
        self.lost = !self.wanted().is_empty();
    }

    /// What to ask the SA now, if `pending` is what those want who wait to be joined.
    pub(super) fn step(&self, pending: JoinState) -> Option<Step> {
        if self.op.is_some() {
            return None;
        }
        let all = self.wanted() | pending;
        if !self.joined.contains(all) {
            return Some(Step::Join(all));
        }
        let useless = self.joined & !all;
        (!useless.is_empty()).then_some(Step::Leave(useless))
    }

    /// Nobody is in it, the SA does not think so either, and there is nothing to tell.
    pub(super) fn is_over(&self) -> bool {
        let empty = self.joined.is_empty() && self.wanted().is_empty();
        empty && self.op.is_none() && self.news.is_none()
    }

    /// The step under way is over: the SA has done it, or has not. A leave that failed counts as done: at worst the
    /// port stays a member until the SA notices. Gives the step back.
    pub(super) fn finished(&mut self, result: Result<McMemberRecord, SaError>) -> Option<Step> {
        let step = self.op.take()?.step;
        match (step, result) {
            (Step::Join(bits), Ok(record)) => {
                self.joined |= bits;
                self.mgid = record.mgid;
                self.ask.mgid = record.mgid;
                self.record = Some(record);
                if self.lost {
                    let users = self.users();
                    self.news = Some(News { users, result });
                }
                self.lost = false;
            }
            (Step::Join(_), Err(_)) => {
                let users = self.evict();
                if !users.is_empty() {
                    self.news = Some(News { users, result });
                }
                self.lost = false;
            }
            (Step::Leave(bits), _) => {
                self.joined &= !bits;
                if self.joined.is_empty() {
                    self.record = None;
                }
            }
        }
        Some(step)
    }

    /// Takes from everybody what the SA does not have. Says from whom.
    fn evict(&mut self) -> GroupUsers {
        let mut users = 0;
        for (index, wants) in self.wants.iter_mut().enumerate() {
            if !self.joined.contains(*wants) {
                *wants = JoinState::empty();
                users |= 1 << index;
            }
        }
        GroupUsers(users)
    }

    /// Has the SA none of `bits` that nobody wants?
    pub(super) fn is_rid_of(&self, bits: JoinState) -> bool {
        !(self.joined & !self.wanted()).intersects(bits)
    }

    /// What a step sends.
    pub(super) fn mad(&self, step: Step) -> Result<Mad, SaError> {
        let (record, mask) = self.request(step);
        let method = match step {
            Step::Join(_) => Method::SET,
            Step::Leave(_) => Method::DELETE,
        };
        request(method, &record, mask)
    }

    fn request(&self, step: Step) -> (McMemberRecord, ComponentMask) {
        match step {
            Step::Join(join_state) => {
                let record = McMemberRecord {
                    join_state,
                    ..self.ask
                };
                (record, self.mask)
            }
            Step::Leave(join_state) => {
                let record = McMemberRecord {
                    mgid: self.mgid,
                    port_gid: self.ask.port_gid,
                    join_state,
                    ..McMemberRecord::default()
                };
                let mask = McMemberRecord::MGID.or(McMemberRecord::PORT_GID);
                (record, mask.or(McMemberRecord::JOIN_STATE))
            }
        }
    }
}
