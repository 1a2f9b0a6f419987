//! What users ask of the SA.

use super::groups::Group;
use super::kept::Kept;
use super::query::{GroupUser, Kind, Query, QueryId, SaError, request};
use super::{Sa, TableState, finish_where};
use crate::transaction::{NoAnswer, Patience, Transaction};
use core_ib::wire::mad::{
    Attribute, ClassPortInfo, ComponentMask, InformInfo, JoinState, McMemberRecord, Method,
    ServiceRecord,
};
use core_ib::{Gid, Instant, Qpn};

impl<const QUERIES: usize, const GROUPS: usize, const KEPT: usize, const TABLE: usize>
    Sa<QUERIES, GROUPS, KEPT, TABLE>
{
    /// Asks for the one record that has the components of `mask` in common with `record`.
    pub fn get<A: Attribute>(
        &mut self,
        cookie: u64,
        record: &A,
        mask: ComponentMask,
        now: Instant,
    ) -> Result<QueryId, SaError> {
        self.one(cookie, Method::GET, record, mask, self.config.query, now)
    }

    /// Asks for a change that is not to be kept: see [`register_service`](Self::register_service),
    /// [`subscribe`](Self::subscribe), [`join`](Self::join) for what is.
    pub fn set<A: Attribute>(
        &mut self,
        cookie: u64,
        record: &A,
        mask: ComponentMask,
        now: Instant,
    ) -> Result<QueryId, SaError> {
        self.one(cookie, Method::SET, record, mask, self.config.change, now)
    }

    /// Asks for a record to be deleted.
    pub fn delete<A: Attribute>(
        &mut self,
        cookie: u64,
        record: &A,
        mask: ComponentMask,
        now: Instant,
    ) -> Result<QueryId, SaError> {
        self.one(
            cookie,
            Method::DELETE,
            record,
            mask,
            self.config.change,
            now,
        )
    }

    /// Asks the SA what it can: [`ClassPortInfo`]. protocols 4.10.
    pub fn class_port_info(&mut self, cookie: u64, now: Instant) -> Result<QueryId, SaError> {
        self.get(cookie, &ClassPortInfo::default(), ComponentMask::NONE, now)
    }

    /// Asks for all records that have the components of `mask` in common with `record`. Tables are fetched one after
    /// another.
    pub fn get_table<A: Attribute>(
        &mut self,
        cookie: u64,
        record: &A,
        mask: ComponentMask,
    ) -> Result<QueryId, SaError> {
        self.stir();
        self.reachable()?;
        let mad = request(Method::GET_TABLE, record, mask)?;
        let transaction = None;
        self.insert(cookie, Kind::Table { mad, transaction })
    }

    fn one<A: Attribute>(
        &mut self,
        cookie: u64,
        method: Method,
        record: &A,
        mask: ComponentMask,
        patience: Patience,
        now: Instant,
    ) -> Result<QueryId, SaError> {
        self.stir();
        self.reachable()?;
        let mad = request(method, record, mask)?;
        let transaction = Transaction::new(patience, now);
        self.insert(cookie, Kind::One { mad, transaction })
    }

    fn reachable(&self) -> Result<(), SaError> {
        if self.port.is_usable() {
            Ok(())
        } else {
            Err(SaError::NoSubnetManager)
        }
    }

    fn insert(&mut self, cookie: u64, kind: Kind) -> Result<QueryId, SaError> {
        let id = QueryId(self.next_serial());
        let slot = self.queries.iter_mut().find(|slot| slot.is_none());
        let (entry, limit) = ("QUERIES", QUERIES);
        let slot = slot.ok_or(SaError::Full { entry, limit })?;
        *slot = Some(Query { id, cookie, kind });
        Ok(id)
    }

    /// A number that nothing under way has.
    pub(super) fn next_serial(&mut self) -> u32 {
        loop {
            self.serial = self.serial.wrapping_add(1);
            let serial = self.serial;
            let queries = self.queries.iter().flatten();
            let groups = self.groups.iter().flatten().filter_map(|group| group.op);
            let mut kept = self.kept.iter().flatten();
            let taken = queries.map(|query| query.id.0).any(|id| id == serial)
                || groups.map(|op| op.serial).any(|id| id == serial)
                || kept.any(|kept| kept.is_asked(serial));
            if !taken {
                return serial; // at the latest after as many rounds as there are places
            }
        }
    }

    /// Makes the port a member of a group on behalf of `user`, with the bits of `record.join_state`. `mask` has MGID,
    /// PortGID and JoinState and, if the group may be created, what a new one needs (protocols 4.6); MGID zero lets the
    /// SA name it. What the user has already is not asked for again. To be left as often as the user pleases: bits
    /// count once for each user.
    pub fn join(
        &mut self,
        cookie: u64,
        user: GroupUser,
        record: &McMemberRecord,
        mask: ComponentMask,
    ) -> Result<QueryId, SaError> {
        self.stir();
        self.reachable()?;
        let bits = record.join_state;
        if bits.is_empty() {
            return Err(SaError::NothingToJoin);
        }
        let named = |group: &Option<Group>| {
            let known = group
                .as_ref()
                .is_some_and(|known| known.mgid == record.mgid);
            known && !record.mgid.is_none()
        };
        let known = self.groups.iter().position(named);
        let place = known.or_else(|| self.groups.iter().position(Option::is_none));
        let (entry, limit) = ("GROUPS", GROUPS);
        let group = place.ok_or(SaError::Full { entry, limit })?;
        let id = self.insert(cookie, Kind::Join { group, user, bits })?;
        if let Some(slot) = self.groups.get_mut(group) {
            let entry = slot.get_or_insert(Group::new(*record, mask));
            if !entry.has(bits) {
                entry.ask_like(record, mask);
            }
        }
        Ok(id)
    }

    /// Ends the membership of `user` as far as `bits` go. The port leaves once nobody wants them any more.
    pub fn leave(
        &mut self,
        cookie: u64,
        user: GroupUser,
        mgid: Gid,
        bits: JoinState,
    ) -> Result<QueryId, SaError> {
        self.stir();
        let member = |group: &Option<Group>| {
            let known = group.as_ref().filter(|known| known.mgid == mgid);
            known.is_some_and(|known| known.wants(user).intersects(bits))
        };
        let place = self.groups.iter().position(member);
        let group = place.ok_or(SaError::NotMember { mgid })?;
        let id = self.insert(cookie, Kind::Leave { group, bits })?;
        if let Some(Some(entry)) = self.groups.get_mut(group) {
            entry.take(user, bits);
        }
        Ok(id)
    }

    /// The group as the SA described it last; `None` if the port is not a member at the moment.
    pub fn group(&self, mgid: Gid) -> Option<&McMemberRecord> {
        let mut groups = self.groups.iter().flatten();
        groups.find(|group| group.mgid == mgid)?.record.as_ref()
    }

    /// Registers a service, and keeps it registered: before its lease ends, and whenever the SA has forgotten it.
    pub fn register_service(
        &mut self,
        cookie: u64,
        service: &ServiceRecord,
        mask: ComponentMask,
    ) -> Result<QueryId, SaError> {
        self.stir();
        let mad = request(Method::SET, service, mask)?;
        self.keep(cookie, Kept::service(cookie, mad, service))
    }

    /// Ends a service: the record with the same ServiceID, GID and P_Key.
    pub fn withdraw_service(
        &mut self,
        cookie: u64,
        service: &ServiceRecord,
        now: Instant,
    ) -> Result<QueryId, SaError> {
        self.stir();
        let mask = ServiceRecord::ID
            .or(ServiceRecord::GID)
            .or(ServiceRecord::P_KEY);
        let id = self.delete(cookie, service, mask, now)?;
        self.unkeep(|kept| kept.is_service(service));
        Ok(id)
    }

    /// Subscribes to reports, and stays subscribed; they come out of [`poll`](Self::poll). `info.subscribe` and
    /// `info.qpn` are filled in.
    pub fn subscribe(&mut self, cookie: u64, info: &InformInfo) -> Result<QueryId, SaError> {
        self.stir();
        let info = InformInfo {
            subscribe: true,
            qpn: Qpn::GSI,
            ..*info
        };
        let mad = request(Method::SET, &info, ComponentMask::NONE)?;
        self.keep(cookie, Kept::subscription(cookie, mad, &info))
    }

    /// Ends a subscription.
    pub fn unsubscribe(
        &mut self,
        cookie: u64,
        info: &InformInfo,
        now: Instant,
    ) -> Result<QueryId, SaError> {
        self.stir();
        let info = InformInfo {
            subscribe: false,
            qpn: Qpn::GSI,
            ..*info
        };
        let id = self.set(cookie, &info, ComponentMask::NONE, now)?;
        self.unkeep(|kept| kept.is_subscription(&info));
        Ok(id)
    }

    fn keep(&mut self, cookie: u64, kept: Kept) -> Result<QueryId, SaError> {
        self.reachable()?;
        let same = |old: &Option<Kept>| old.as_ref().is_some_and(|old| old.is_same(&kept));
        let known = self.kept.iter().position(same);
        let place = known.or_else(|| self.kept.iter().position(Option::is_none));
        let (entry, limit) = ("KEPT", KEPT);
        let place = place.ok_or(SaError::Full { entry, limit })?;
        let id = self.insert(cookie, Kind::Keep { place })?;
        if let Some(slot) = self.kept.get_mut(place) {
            *slot = Some(kept);
        }
        Ok(id)
    }

    /// Forgets registrations; who still waits for one is told.
    fn unkeep(&mut self, is_meant: impl Fn(&Kept) -> bool) {
        let why = SaError::NoAnswer(NoAnswer::Cancelled);
        for (place, slot) in self.kept.iter_mut().enumerate() {
            if slot.as_ref().is_some_and(&is_meant) {
                *slot = None;
                finish_where(&mut self.queries, Err(why), |query| query.is_of_kept(place));
            }
        }
    }

    /// Takes a request back: it ends with [`NoAnswer::Cancelled`]. A join or a leave that is under way at the SA goes
    /// on there; what a cancelled join brought is left again. Says whether it was waiting.
    pub fn cancel(&mut self, query: QueryId) -> bool {
        self.stir();
        let mut queries = self.queries.iter_mut().flatten();
        let Some(found) = queries.find(|other| other.id == query) else {
            return false;
        };
        if matches!(found.kind, Kind::Over(_)) {
            return false;
        }
        if let Kind::Keep { place } = found.kind
            && let Some(slot) = self.kept.get_mut(place)
        {
            *slot = None;
        }
        found.kind = Kind::Over(Err(SaError::NoAnswer(NoAnswer::Cancelled)));
        if self
            .transfer
            .as_ref()
            .is_some_and(|transfer| transfer.serial == query.0)
            || self.table_state == TableState::Busy(query.0)
        {
            self.drop_transfer();
        }
        true
    }
}
