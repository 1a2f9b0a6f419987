//! User contexts: doorbell pages of their own, through which their owners ring for queues that lie in their own memory.
//! verbs 1.1, infinihost 2.7, 11.
//!
//! A queue names the one page that may ring for it, and the HCA refuses any other. So what a user can do wrong hurts
//! nobody else: the driver only tells the HCA where the queues are, takes no part in posting or polling, and refuses
//! references for the data path to what is a user's.
//!
//! In M-mode the doorbell records are in pages of the user's, which the driver puts behind the context of the doorbell
//! page when the first queue names them, and takes back when the context ends. infinihost 11.2.

use crate::chip::Chip;
use crate::cmd::CmdError;
use crate::cmd::table::UnmapIcm;
use crate::icm;
use crate::inner::Inner;
use crate::plan::Plan;
use crate::profile::Profile;
use crate::uar::PAGE;
use crate::users::Users;
use core_ib::LKey;
use core_ib::platform::{Platform, PlatformError, Table};
use core_ib::verbs::{CqHandle, Object, Owner, QpInit, UserHandle, VerbsError, kind};

/// One context.
#[derive(Debug, Default)]
pub(crate) struct User {
    /// What uses its page.
    users: Users,
}

impl Object for User {
    type Kind = kind::User;
    const NAME: &'static str = "user context";
    const PROFILE: &'static str = "users";
}

/// What a queue of a user context stands on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lent {
    /// Place of the context.
    pub context: u32,
    /// Number of its doorbell page.
    pub page: u32,
    /// Key of the memory that the queue lies in.
    pub lkey: u32,
}

/// Doorbell records in a page.
const RECORDS: u32 = 512;

/// The pages of doorbell records that user contexts gave. M-mode.
pub(crate) struct UserPages<'p, P: Platform> {
    /// Pages of one context.
    each: u32,
    /// Of each context its pages, in order: the bus address of what is behind each.
    table: Table<'p, Option<u64>, P>,
}

impl<'p, P: Platform> UserPages<'p, P> {
    /// None given yet; there is room for those of all contexts. In T-mode there are none. Set-up only.
    pub fn new(
        machine: &'p P,
        chip: &Chip,
        plan: &Plan,
        profile: &Profile,
    ) -> Result<Self, PlatformError> {
        let each = 1 << plan.log_uarc_pages;
        let count = if chip.is_mem_free() {
            each as usize * profile.users as usize
        } else {
            0
        };
        let table = Table::new(machine, count, |_| None)?;
        Ok(Self { each, table })
    }

    fn of(&mut self, context: u32) -> &mut [Option<u64>] {
        let first = context as usize * self.each as usize;
        let pages = self.table.get_mut(first..first + self.each as usize);
        pages.unwrap_or_default()
    }
}

/// Offset of the address of the doorbell BAR in PCI configuration space: its low half, then its high half.
const BAR_ADDRESS: u16 = 0x18;
/// Bits of the low half that are no address.
const BAR_FLAGS: u64 = 0xf;

impl<P: Platform> Inner<'_, P> {
    pub(crate) fn alloc_user(&self) -> Result<UserHandle, VerbsError> {
        self.cmd.health().check()?;
        if self.profile.users == 0 {
            return Err(VerbsError::Unsupported {
                feature: "user contexts",
            });
        }
        Ok(self.contexts.reserve()?.fill(User::default()))
    }

    /// Number of the page of the context at `index`.
    const fn user_page(&self, index: u32) -> u32 {
        self.plan.uar.wrapping_add(1).wrapping_add(index)
    }

    pub(crate) fn user_doorbell_page(&self, user: UserHandle) -> Result<u64, VerbsError> {
        self.contexts.get(user).map(drop)?;
        let low = self.machine.config_read32(BAR_ADDRESS);
        let high = self.machine.config_read32(BAR_ADDRESS + 4);
        if (low, high) == (u32::MAX, u32::MAX) {
            return Err(VerbsError::DeviceGone);
        }
        let bar = (u64::from(high) << 32 | u64::from(low)) & !BAR_FLAGS;
        let at = u64::from(self.user_page(user.index())).wrapping_mul(PAGE as u64);
        Ok(bar.wrapping_add(at))
    }

    pub(crate) fn dealloc_user(&self, user: UserHandle) -> Result<(), VerbsError> {
        let held = self.contexts.get(user)?;
        let object = User::NAME;
        let busy = |holders| VerbsError::Busy { object, holders };
        held.users.close().map_err(busy)?;
        drop(held);
        if let Err(error) = self.give_user_pages(user.index()) {
            if let Ok(held) = self.contexts.get(user) {
                held.users.open();
            }
            return Err(error);
        }
        if let Err(error) = self.contexts.remove(user) {
            if let Ok(held) = self.contexts.get(user) {
                held.users.open();
            }
            return Err(error);
        }
        Ok(())
    }

    /// One more queue of `owner`, if that is a user. Ends with [`leave_user`](Self::leave_user).
    pub(crate) fn enter_user(&self, owner: &Owner) -> Result<Option<Lent>, VerbsError> {
        let Owner::User(buffer) = owner else {
            return Ok(None);
        };
        let LKey(lkey) = buffer.lkey;
        let held = self.contexts.get(buffer.context)?;
        if !held.users.enter() {
            return Err(VerbsError::InvalidHandle { object: User::NAME });
        }
        let context = buffer.context.index();
        Ok(Some(Lent {
            context,
            page: self.user_page(context),
            lkey,
        }))
    }

    /// M: sees to it that the HCA finds the doorbell records of a queue, of which `wanted` are there: that of group 1, that
    /// of group 2. Their places in the context. In T-mode there are none. Control context; may block.
    pub(crate) fn user_bells(
        &self,
        lent: &Lent,
        owner: &Owner,
        wanted: [bool; 2],
    ) -> Result<[u32; 2], VerbsError> {
        let Owner::User(buffer) = owner else {
            return Ok([0; 2]);
        };
        if self.chip.is_mem_free() {
            let pages = buffer.doorbell_pages.iter();
            let bells = pages.zip(buffer.doorbell_indices);
            for (_, (page, index)) in wanted.iter().zip(bells).filter(|(wanted, _)| **wanted) {
                self.map_user_page(lent, page.get(), index)?;
            }
        }
        Ok(buffer.doorbell_indices)
    }

    /// Puts a user's page behind its context, the first time; afterwards it has to be the same one.
    fn map_user_page(&self, lent: &Lent, page: u64, index: u32) -> Result<(), VerbsError> {
        let invalid = |field, found, allowed| {
            Err(VerbsError::InvalidAttr {
                field,
                found,
                allowed,
            })
        };
        self.user_pages.with(|pages| {
            let records = u64::from(pages.each) * u64::from(RECORDS);
            let number = index / RECORDS;
            let Some(known) = pages.of(lent.context).get_mut(number as usize) else {
                return invalid("doorbell record", index.into(), records - 1);
            };
            if !page.is_multiple_of(PAGE as u64) {
                return invalid("doorbell page", page, !(PAGE as u64 - 1));
            }
            match *known {
                Some(there) if there == page => Ok(()),
                Some(there) => invalid("doorbell page", page, there),
                None => {
                    let address = self.user_page_address(lent.page, number);
                    let mapped = icm::map(address, page, PAGE as u64, |command| {
                        self.command(command).map(drop)
                    });
                    // Without an answer it may have been taken.
                    let refused = |error: &CmdError| error.status().is_some();
                    if !mapped.as_ref().is_err_and(refused) {
                        *known = Some(page);
                    }
                    Ok(mapped?)
                }
            }
        })
    }

    fn user_page_address(&self, uar: u32, number: u32) -> u64 {
        let at = u64::from(number).wrapping_mul(PAGE as u64);
        self.plan.uarc_of(uar).wrapping_add(at)
    }

    /// M: takes the pages of a context back from the HCA, so that they are the user's alone.
    fn give_user_pages(&self, context: u32) -> Result<(), VerbsError> {
        let uar = self.user_page(context);
        self.user_pages.with(|pages| {
            for (number, page) in (0..).zip(pages.of(context)) {
                if page.is_none() {
                    continue;
                }
                let address = self.user_page_address(uar, number);
                match self.command(&UnmapIcm { address, pages: 1 }) {
                    Ok(_) => {}
                    Err(error) if error.status().is_some() => return Err(error.into()),
                    Err(_) if self.released_by_reset().is_some() => {}
                    Err(error) => return Err(error.into()),
                }
                *page = None;
            }
            Ok(())
        })
    }

    /// One less.
    pub(crate) fn leave_user(&self, lent: Option<Lent>) {
        let held = lent.and_then(|lent| self.contexts.at(lent.context));
        if let Some(held) = held {
            held.users.leave();
        }
    }

    /// A queue is of whom its CQs and its SRQ are: nobody else polls there.
    pub(crate) fn check_owner(&self, init: &QpInit, lent: Option<Lent>) -> Result<(), VerbsError> {
        let owner = lent.map(|lent| lent.context);
        let foreign = |field| {
            Err(VerbsError::InvalidAttr {
                field,
                found: owner.map_or(0, |context| u64::from(context) + 1),
                allowed: 0,
            })
        };
        let is_foreign = |cq: CqHandle| self.cqs.get(cq).map(|cq| cq.user != owner);
        if is_foreign(init.send_cq)? || is_foreign(init.recv_cq)? {
            return foreign("owner of a CQ");
        }
        match init.srq {
            Some(srq) if self.srqs.get(srq)?.user != owner => foreign("owner of the SRQ"),
            _ => Ok(()),
        }
    }
}

/// The data path of what is a user's is the user's.
pub(crate) fn refuse_user(object: &'static str, user: Option<u32>) -> Result<(), VerbsError> {
    match user {
        Some(_) => Err(VerbsError::InvalidState { object }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
