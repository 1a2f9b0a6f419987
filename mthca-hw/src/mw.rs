//! Memory windows of type 1: MPT entries that a request binds to a piece of a region. verbs 7.9, infinihost 4.9, 5.6.
//!
//! The driver chooses the keys: each bind takes the next of the window's entry, when it is posted. Whether it comes to
//! pass the HCA says in the completion. Windows of type 2 there are none: they are in the manual of the M-mode alone,
//! and no firmware is known to have them.

use crate::cmd::table::Hw2SwMptEntry;
use crate::inner::Inner;
use core::sync::atomic::{AtomicU32, Ordering};
use core_ib::RKey;
use core_ib::platform::Platform;
use core_ib::verbs::{
    Access, MrHandle, MwHandle, MwKind, Object, PdHandle, PostCause, VerbsError, kind,
};
use hca_abi::infinihost::dev_lim::features;
use hca_abi::infinihost::mpt::{Mpt, MptStatus};
use hca_abi::infinihost::wqe::BindSegment;

/// One window.
#[derive(Debug)]
pub(crate) struct Mw {
    /// Place of its PD.
    pd: u32,
    /// Key that it has, or that the bind posted last gives it.
    key: AtomicU32,
}

impl Object for Mw {
    type Kind = kind::Mw;
    const NAME: &'static str = "MW";
    const PROFILE: &'static str = "mws";
}

/// What a bind asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bind {
    pub mw: MwHandle,
    pub mr: MrHandle,
    pub addr: u64,
    /// 0 unbinds.
    pub length: u64,
    pub access: Access,
}

impl<P: Platform> Inner<'_, P> {
    /// Windows can be made.
    pub(crate) fn has_windows(&self) -> bool {
        self.limits.can(features::MEMORY_WINDOWS) && self.profile.mws > 0
    }

    const fn window_mpt(&self, index: u32) -> u32 {
        self.plan.mpt.mws.wrapping_add(index)
    }

    pub(crate) fn alloc_mw(
        &self,
        pd: PdHandle,
        kind: MwKind,
    ) -> Result<(MwHandle, RKey), VerbsError> {
        self.cmd.health().check()?;
        let unsupported = |feature| Err(VerbsError::Unsupported { feature });
        match kind {
            MwKind::Type1 if self.has_windows() => {}
            MwKind::Type1 => return unsupported("memory windows"),
            MwKind::Type2 => return unsupported("memory windows of type 2"),
        }
        let home = self.enter_pd(pd)?;
        let made = self.mw_gate.with(|()| {
            let vacant = self.mws.reserve()?;
            let index = self.window_mpt(vacant.index());
            let form = self.next_form(index);
            let mut entry = Mpt::ZERO;
            entry
                .set_status(MptStatus::SOFTWARE)
                .set_mio(true)
                .set_key(form)
                .set_pd(home.number);
            self.give_entry(index, &entry)?;
            let key = self.keys.key(form);
            let (pd, now) = (home.index, AtomicU32::new(key));
            let mw = vacant.fill(Mw { pd, key: now });
            Ok((mw, RKey(key)))
        });
        if made.is_err() {
            self.leave_pd(home.index);
        }
        made
    }

    pub(crate) fn dealloc_mw(&self, mw: MwHandle) -> Result<(), VerbsError> {
        self.mw_gate.with(|()| {
            self.mws.get(mw).map(drop)?;
            let index = self.window_mpt(mw.index());
            match self.command(&Hw2SwMptEntry { index }) {
                Ok(_) => {}
                Err(error) if error.status().is_some() => return Err(error.into()),
                // Through a window the HCA reaches memory; it must have let go of it when this returns.
                Err(_) if self.released_by_reset().is_some() => {}
                Err(error) => return Err(error.into()),
            }
            let window = self.mws.remove(mw)?;
            self.leave_pd(window.pd);
            Ok(())
        })
    }

    pub(crate) fn mw_rkey(&self, mw: MwHandle) -> Result<RKey, VerbsError> {
        let window = self.mws.get(mw)?;
        Ok(RKey(window.key.load(Ordering::Acquire)))
    }

    /// The segment of a bind, with the next key of the window. Data path; never blocks. What window, region and QP may
    /// do with each other the HCA decides.
    pub(crate) fn bind_segment(&self, bind: &Bind) -> Result<BindSegment, PostCause> {
        let stale = |_| PostCause::InvalidHandle;
        let rights = Access::REMOTE;
        let too_much = !rights.contains(bind.access);
        if too_much || bind.access.contains(Access::REMOTE_ATOMIC) && !self.has_atomics() {
            return Err(PostCause::InvalidAttr);
        }
        let window = self.mws.get(bind.mw).map_err(stale)?;
        let mut segment = BindSegment::ZERO;
        if bind.length != 0 {
            let region = self.mrs.get(bind.mr).map_err(stale)?;
            let lkey = region.key().ok_or(PostCause::InvalidHandle)?;
            segment
                .set_lkey(lkey)
                .set_start(bind.addr)
                .set_length(bind.length)
                .set_remote_read(bind.access.contains(Access::REMOTE_READ))
                .set_remote_write(bind.access.contains(Access::REMOTE_WRITE))
                .set_remote_atomic(bind.access.contains(Access::REMOTE_ATOMIC));
        }
        let form = self.next_form(self.window_mpt(bind.mw.index()));
        let key = self.keys.key(form);
        window.key.store(key, Ordering::Release);
        segment.set_rkey(key);
        Ok(segment)
    }
}

#[cfg(test)]
mod tests;
