//! User contexts: doorbell pages of their own, through which their owners ring for queues that lie in their own memory.
//! verbs 1.1, infinihost 2.7, 11.
//!
//! A queue names the one page that may ring for it, and the HCA refuses any other. So what a user can do wrong hurts
//! nobody else: the driver only tells the HCA where the queues are, takes no part in posting or polling, and refuses
//! references for the data path to what is a user's.

use crate::inner::Inner;
use crate::uar::PAGE;
use crate::users::Users;
use core_ib::LKey;
use core_ib::platform::Platform;
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
