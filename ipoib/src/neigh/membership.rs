//! Which multicast addresses the host wants to hear of, and whether the link was told.
//!
//! Several addresses may map to one group, so each is told for itself, and the link counts.

use crate::keyed::Keyed;
use crate::net::GroupError;
use crate::room::Room;
use core::net::IpAddr;
use core_ib::Instant;
use core_ib::platform::PlatformError;

struct Membership {
    /// How often somebody joined by name.
    joins: u16,
    /// The host's IP stack said so in its packets.
    snooped: bool,
    /// The link listens.
    told: bool,
    /// Not told before: it had no room.
    after: Instant,
}

/// See the module.
pub(super) struct Memberships<R: Room> {
    table: Keyed<R, IpAddr, Membership>,
}

impl<R: Room> Memberships<R> {
    pub(super) fn new(room: &R, capacity: u16) -> Result<Self, PlatformError> {
        Ok(Self {
            table: Keyed::new(room, capacity)?,
        })
    }

    fn entry(&mut self, group: IpAddr) -> Result<&mut Membership, GroupError> {
        let limit = self.table.capacity();
        let new = Membership {
            joins: 0,
            snooped: false,
            told: false,
            after: Instant(0),
        };
        let at = self.table.find(&group);
        let at = at.or_else(|| self.table.insert(group, new));
        at.and_then(|at| self.table.get_mut(at))
            .ok_or(GroupError::NoRoom {
                entry: "memberships",
                limit,
            })
    }

    pub(super) fn join(&mut self, group: IpAddr) -> Result<(), GroupError> {
        let entry = self.entry(group)?;
        entry.joins = entry.joins.saturating_add(1);
        Ok(())
    }

    pub(super) fn leave(&mut self, group: IpAddr) {
        if let Some(at) = self.table.find(&group)
            && let Some(entry) = self.table.get_mut(at)
        {
            entry.joins = entry.joins.saturating_sub(1);
        }
    }

    /// The host's IP stack joins or leaves.
    pub(super) fn snooped(&mut self, group: IpAddr, joins: bool) -> Result<(), GroupError> {
        if joins {
            self.entry(group)?.snooped = true;
        } else if let Some(at) = self.table.find(&group)
            && let Some(entry) = self.table.get_mut(at)
        {
            entry.snooped = false;
        }
        Ok(())
    }

    /// The link could not listen; it is asked again at `after`.
    pub(super) fn listen_failed(&mut self, group: IpAddr, after: Instant) {
        if let Some(at) = self.table.find(&group)
            && let Some(entry) = self.table.get_mut(at)
        {
            entry.told = false;
            entry.after = after;
        }
    }

    /// An address that the link is to listen to from now on (`true`) or no more.
    pub(super) fn serve(&mut self, now: Instant) -> Option<(IpAddr, bool)> {
        for at in (0..).take(self.table.capacity()) {
            let (Some(group), Some(entry)) = (self.table.key(at), self.table.get_mut(at)) else {
                continue;
            };
            match (entry.is_wanted(), entry.told) {
                (true, false) if entry.after <= now => {
                    entry.told = true;
                    return Some((group, true));
                }
                (false, told) => {
                    self.table.remove(at);
                    if told {
                        return Some((group, false));
                    }
                }
                _ => {}
            }
        }
        None
    }

    /// When the link is to be asked again.
    pub(super) fn next(&self) -> Instant {
        let waiting = self
            .table
            .iter()
            .filter(|(.., entry)| entry.is_wanted() && !entry.told);
        waiting.fold(Instant::NEVER, |next, (.., entry)| next.min(entry.after))
    }
}

impl Membership {
    const fn is_wanted(&self) -> bool {
        self.joins > 0 || self.snooped
    }
}
