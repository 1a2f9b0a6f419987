//! Service records: who offers what, for as long as its lease lasts. protocols 4.9.

use super::query::{Enough, Query, Source};
use super::transfer::Kind;
use super::{Answer, RecordBytes, Request};
use crate::manager::Manager;
use core::time::Duration;
use core_ib::wire::mad::{MadStatus, Record, ServiceRecord};
use core_ib::{Gid, Instant, PKey};

/// A service that registered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Service {
    /// `None` of a free row.
    record: Option<ServiceRecord>,
    /// When the lease runs out.
    until: Instant,
}

impl Service {
    pub(crate) const FREE: Self = Self {
        record: None,
        until: Instant::NEVER,
    };
}

impl Manager<'_> {
    fn find_service(&self, record: &ServiceRecord) -> Option<usize> {
        self.services
            .iter()
            .position(|row| row.record.is_some_and(|known| known.is_same_as(record)))
    }

    /// Set: creates, or modifies with the right key.
    pub(super) fn set_service(&mut self, request: &Request<'_>) -> Result<Answer, MadStatus> {
        let mut record: ServiceRecord = request.record()?;
        let key = ServiceRecord::ID | ServiceRecord::GID;
        if !request.has(key) {
            return Err(MadStatus::SA_INSUFFICIENT_COMPONENTS);
        }
        let asker = request.asker()?;
        let guid = self
            .ports
            .get(asker)
            .map(|row| row.guid)
            .ok_or(MadStatus::SA_INVALID_GID)?;
        let port = self
            .port_of_gid(record.gid)
            .ok_or(MadStatus::SA_INVALID_GID)?;
        if !request.has(ServiceRecord::P_KEY) {
            record.p_key = PKey::DEFAULT;
        }
        let host = self
            .ports
            .get(port)
            .map(|row| row.guid)
            .ok_or(MadStatus::SA_INVALID_GID)?;
        if self.config.p_key_in(guid, record.p_key).is_none()
            || self.config.p_key_in(host, record.p_key).is_none()
        {
            return Err(MadStatus::SA_REQUEST_INVALID);
        }
        if !request.has(ServiceRecord::LEASE) {
            record.lease = ServiceRecord::FOREVER;
        }
        let known = self.find_service(&record);
        if let Some(known) = known.and_then(|at| self.services.get(at)?.record)
            && known.key != record.key
        {
            return Err(MadStatus::SA_REQUEST_INVALID);
        }
        let free = known.or_else(|| self.services.iter().position(|row| row.record.is_none()));
        let until = match record.lease {
            ServiceRecord::FOREVER => Instant::NEVER,
            seconds => self.now.after(Duration::from_secs(seconds.into())),
        };
        let Some(row) = free.and_then(|at| self.services.get_mut(at)) else {
            self.no_room("services", self.services.len());
            return Err(MadStatus::SA_NO_RESOURCES);
        };
        *row = Service {
            record: Some(record),
            until,
        };
        self.st.lease_at = self.st.lease_at.min(until);
        Ok(Answer::One(RecordBytes::of(&record)))
    }

    /// Delete: with the right key.
    pub(super) fn delete_service(&mut self, request: &Request<'_>) -> Result<Answer, MadStatus> {
        let mut record: ServiceRecord = request.record()?;
        if !request.has(ServiceRecord::P_KEY) {
            record.p_key = PKey::DEFAULT;
        }
        let at = self.find_service(&record).ok_or(MadStatus::SA_NO_RECORDS)?;
        let row = self.services.get_mut(at).ok_or(MadStatus::SA_NO_RECORDS)?;
        let known = row.record.ok_or(MadStatus::SA_NO_RECORDS)?;
        if known.key != record.key && !request.trusted {
            return Err(MadStatus::SA_REQUEST_INVALID);
        }
        *row = Service::FREE;
        Ok(Answer::One(RecordBytes::of(&known)))
    }

    /// Drops services whose lease ran out. Says whether it was time.
    pub(crate) fn expire_services(&mut self) -> bool {
        if self.now < self.st.lease_at {
            return false;
        }
        let now = self.now;
        let mut next = Instant::NEVER;
        for row in self.services.iter_mut().filter(|row| row.record.is_some()) {
            if row.until <= now {
                *row = Service::FREE;
            } else {
                next = next.min(row.until);
            }
        }
        self.st.lease_at = next;
        true
    }

    /// A new master knows no services.
    pub(crate) fn forget_services(&mut self) {
        self.services.fill(Service::FREE);
        self.st.lease_at = Instant::NEVER;
    }
}

impl Source for ServiceRecord {
    fn numbers(
        manager: &Manager<'_>,
        query: &Query<'_, Self>,
        each: &mut dyn FnMut(u32) -> Enough,
    ) {
        let asker = query.request.from.and_then(|port| manager.ports.get(port));
        for (number, row) in manager.services.iter().enumerate() {
            let Some(record) = row.record else { continue };
            // Who is not in the partition does not see it.
            let sees = query.request.trusted
                || asker.is_some_and(|asker| {
                    manager.config.p_key_in(asker.guid, record.p_key).is_some()
                });
            if sees && each(number as u32) == Enough(true) {
                return;
            }
        }
    }

    fn make(manager: &Manager<'_>, what: &Kind, number: u32) -> Option<Self> {
        let row = manager.services.get(number as usize)?;
        let mut record = row.record?;
        if !what.trusted {
            record.key = [0; 16];
        }
        if record.lease != Self::FOREVER {
            // What is left of it.
            record.lease = u32::try_from(row.until.since(manager.now).as_secs()).unwrap_or(0);
        }
        Some(record)
    }

    fn is_wanted(&self, query: &Query<'_, Self>) -> bool {
        let mut record = query.record;
        record.lease = self.lease;
        if query.has(Self::GID) && record.gid == Gid::NONE {
            return false;
        }
        self.matches(&record, query.mask)
    }
}
