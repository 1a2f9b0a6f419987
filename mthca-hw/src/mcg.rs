//! Multicast groups: which QPs get a copy of a group's packets. verbs 9.2, infinihost 3.14, 4.12.
//!
//! The HCA keeps the table: hash buckets first, then as many entries to overflow to, chained. The driver changes it by
//! reading and writing entries, one call at a time, and remembers no more than which overflow entries are in use. What
//! it reads is the HCA's word: a chain is followed no further than there are entries, and only to where there are any.

use crate::cmd::table::{MgidHash, ReadMgm, WriteMgm};
use crate::inner::Inner;
use core_ib::platform::{Platform, PlatformError, Table};
use core_ib::verbs::{QpHandle, QpType, VerbsError};
use core_ib::{Gid, Lid};
use hca_abi::infinihost::mgm::{MEMBERS, Mgm};

/// The table, as far as the driver knows it.
pub(crate) struct Groups<'p, P: Platform> {
    buckets: u32,
    /// Which overflow entries are in use.
    used: Table<'p, bool, P>,
}

/// Where a group is, or would be.
enum Found {
    /// Here; the entry that leads to it, unless it is a bucket.
    Here(u32, Mgm, Option<u32>),
    /// Nowhere, and its bucket is empty.
    Empty(u32),
    /// Nowhere; this is the last entry of the chain.
    End(u32, Mgm),
}

impl<'p, P: Platform> Groups<'p, P> {
    /// A table of `1 << log_size` entries, half of them buckets. Set-up only.
    pub fn new(machine: &'p P, log_size: u8) -> Result<Self, PlatformError> {
        let buckets = 1 << log_size.saturating_sub(1);
        Ok(Self {
            buckets,
            used: Table::new(machine, buckets as usize, |_| false)?,
        })
    }

    /// Takes an overflow entry; its index.
    fn take(&mut self) -> Result<u32, VerbsError> {
        let limit = self.buckets;
        let full = VerbsError::NoResources {
            entry: "mcast_groups",
            limit,
        };
        let free = self.used.iter().position(|&used| !used).ok_or(full)?;
        *self.used.get_mut(free).ok_or(full)? = true;
        Ok(limit.wrapping_add(free as u32))
    }

    /// Entries to overflow to that no group has.
    pub fn room(&self) -> u32 {
        self.used.iter().filter(|&&used| !used).count() as u32
    }

    fn give(&mut self, index: u32) {
        let place = index.wrapping_sub(self.buckets) as usize;
        if let Some(used) = self.used.get_mut(place) {
            *used = false;
        }
    }

    /// An index from the HCA.
    fn check(&self, index: u32) -> Result<u32, VerbsError> {
        if index >= self.buckets && index < self.buckets * 2 {
            return Ok(index);
        }
        Err(corrupt(index))
    }
}

/// The table in the HCA is not one that this driver wrote.
const fn corrupt(index: u32) -> VerbsError {
    VerbsError::InvalidAttr {
        field: "multicast entry, from the HCA",
        found: index as u64,
        allowed: 0,
    }
}

fn members(entry: &Mgm) -> usize {
    (0..MEMBERS)
        .take_while(|&at| entry.member(at).is_some())
        .count()
}

fn place_of(entry: &Mgm, qpn: u32) -> Option<usize> {
    (0..members(entry)).find(|&at| entry.member(at) == Some(qpn))
}

impl<P: Platform> Inner<'_, P> {
    fn read_mgm(&self, index: u32) -> Result<Mgm, VerbsError> {
        Ok(self.command(&ReadMgm { index })?.0)
    }

    fn write_mgm(&self, index: u32, entry: &Mgm) -> Result<(), VerbsError> {
        self.command(&WriteMgm { index, entry })?;
        Ok(())
    }

    fn find_group(&self, groups: &Groups<'_, P>, mgid: &[u8; 16]) -> Result<Found, VerbsError> {
        let (_, hash) = self.command(&MgidHash { mgid })?;
        let bucket = hash as u32 & 0xffff;
        if bucket >= groups.buckets {
            return Err(corrupt(bucket));
        }
        let mut before = None;
        let mut index = bucket;
        for _ in 0..=groups.buckets {
            let entry = self.read_mgm(index)?;
            if entry.gid() == *mgid {
                return Ok(Found::Here(index, entry, before));
            }
            if entry.gid() == [0; 16] {
                let bare = index == bucket && entry.next() == 0;
                return if bare {
                    Ok(Found::Empty(bucket))
                } else {
                    Err(corrupt(index))
                };
            }
            if entry.next() == 0 {
                return Ok(Found::End(index, entry));
            }
            before = Some(index);
            index = groups.check(entry.next())?;
        }
        Err(corrupt(index))
    }

    fn check_group(&self, service: QpType, mgid: Gid, mlid: Lid) -> Result<(), VerbsError> {
        let invalid = |field, found, allowed| {
            Err(VerbsError::InvalidAttr {
                field,
                found,
                allowed,
            })
        };
        if service != QpType::Ud {
            return invalid("service of the QP", service as u64, QpType::Ud as u64);
        }
        if !mgid.is_multicast() {
            return invalid("multicast GID", mgid.prefix(), 0xff << 56);
        }
        if !mlid.is_multicast() {
            return invalid("multicast LID", u64::from(mlid.0), 0xfffe);
        }
        Ok(())
    }

    pub(crate) fn attach_mcast(
        &self,
        qp: QpHandle,
        mgid: Gid,
        mlid: Lid,
    ) -> Result<(), VerbsError> {
        self.with_qp(qp, |object, control| {
            self.cmd.health().check()?;
            self.check_group(object.service, mgid, mlid)?;
            let qpn = object.number;
            let new = self
                .groups
                .with(|groups| self.add_member(groups, mgid, qpn))?;
            control.attachments = control.attachments.saturating_add(u32::from(new));
            Ok(())
        })
    }

    /// Says whether it was no member before.
    fn add_member(
        &self,
        groups: &mut Groups<'_, P>,
        mgid: Gid,
        qpn: u32,
    ) -> Result<bool, VerbsError> {
        let alone = || {
            let mut entry = Mgm::ZERO;
            entry.set_gid(mgid.0).set_member(0, Some(qpn));
            entry
        };
        match self.find_group(groups, &mgid.0)? {
            Found::Here(index, mut entry, _) => {
                if place_of(&entry, qpn).is_some() {
                    return Ok(false);
                }
                let count = members(&entry);
                if count == MEMBERS {
                    return Err(VerbsError::NoResources {
                        entry: "QPs of one multicast group",
                        limit: MEMBERS as u32,
                    });
                }
                entry.set_member(count, Some(qpn));
                self.write_mgm(index, &entry)?;
            }
            Found::Empty(bucket) => self.write_mgm(bucket, &alone())?,
            Found::End(last, mut entry) => {
                let index = groups.take()?;
                entry.set_next(index);
                // The new entry first: a chain never leads to one that is not written.
                let written = self.write_mgm(index, &alone());
                let linked = written.and_then(|()| self.write_mgm(last, &entry));
                if let Err(error) = linked {
                    groups.give(index);
                    return Err(error);
                }
            }
        }
        Ok(true)
    }

    pub(crate) fn detach_mcast(
        &self,
        qp: QpHandle,
        mgid: Gid,
        mlid: Lid,
    ) -> Result<(), VerbsError> {
        self.with_qp(qp, |object, control| {
            self.check_group(object.service, mgid, mlid)?;
            let none = VerbsError::InvalidAttr {
                field: "multicast attachment",
                found: mgid.guid().0,
                allowed: 0,
            };
            if control.attachments == 0 {
                return Err(none);
            }
            if self.cmd.health().is_alive() {
                let qpn = object.number;
                let was = self
                    .groups
                    .with(|groups| self.remove_member(groups, mgid, qpn))?;
                if !was {
                    return Err(none);
                }
            }
            control.attachments = control.attachments.saturating_sub(1);
            Ok(())
        })
    }

    /// Says whether it was a member.
    fn remove_member(
        &self,
        groups: &mut Groups<'_, P>,
        mgid: Gid,
        qpn: u32,
    ) -> Result<bool, VerbsError> {
        let Found::Here(index, mut entry, before) = self.find_group(groups, &mgid.0)? else {
            return Ok(false);
        };
        let Some(place) = place_of(&entry, qpn) else {
            return Ok(false);
        };
        let last = members(&entry).saturating_sub(1);
        entry.set_member(place, entry.member(last));
        entry.set_member(last, None);
        if last > 0 {
            self.write_mgm(index, &entry)?;
            return Ok(true);
        }
        match (before, entry.next()) {
            (Some(before), next) => {
                let mut leading = self.read_mgm(before)?;
                leading.set_next(next);
                self.write_mgm(before, &leading)?;
                groups.give(index);
            }
            (None, 0) => self.write_mgm(index, &Mgm::ZERO)?,
            (None, next) => {
                let next = groups.check(next)?;
                let moved_up = self.read_mgm(next)?;
                self.write_mgm(index, &moved_up)?;
                groups.give(next);
            }
        }
        Ok(true)
    }
}
