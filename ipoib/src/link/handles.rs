//! Address handles, one for each route that is in use.
//!
//! A handle may not be destroyed before the sends that use it have completed (verbs 1.3), so one whose route changed
//! waits in retirement until as many sends have completed as were posted up to its last use: those of a UD QP complete
//! in order.

use crate::room::Room;
use core_ib::platform::PlatformError;
use core_ib::verbs::{AhAttr, AhHandle, Device, PdHandle, VerbsError};

/// A handle, and the number of the last send that uses it.
#[derive(Clone, Copy, Debug)]
struct Kept {
    attr: AhAttr,
    ah: AhHandle,
    last_use: u64,
}

/// See the module.
pub(super) struct Handles<R: Room> {
    routes: R::Of<Option<Kept>>,
    retired: R::Of<Option<Kept>>,
}

impl<R: Room> Handles<R> {
    /// For `routes` routes and `in_flight` sends.
    pub(super) fn new(room: &R, routes: usize, in_flight: u16) -> Result<Self, PlatformError> {
        Ok(Self {
            routes: room.table(routes, |_| None)?,
            // More cannot be in use, as each is by some send.
            retired: room.table(usize::from(in_flight), |_| None)?,
        })
    }

    /// The handle of route `slot`, if it leads to `attr`.
    pub(super) fn current(&self, slot: u16, attr: &AhAttr) -> Option<AhHandle> {
        let kept = (*self.routes.get(usize::from(slot))?)?;
        (kept.attr == *attr).then_some(kept.ah)
    }

    /// Makes a handle to `attr` for route `slot`, in place of the one there; `done` sends have completed. Never
    /// blocks. Not while a send is being made up that uses the old one.
    pub(super) fn renew<D: Device + ?Sized>(
        &mut self,
        device: &D,
        pd: PdHandle,
        slot: u16,
        attr: &AhAttr,
        done: u64,
    ) -> Result<AhHandle, VerbsError> {
        self.retire(device, slot, done)?;
        let ah = match device.create_ah(pd, attr) {
            Err(VerbsError::NoResources { .. }) => {
                self.destroy_idle(device, done);
                device.create_ah(pd, attr)?
            }
            result => result?,
        };
        match self.routes.get_mut(usize::from(slot)) {
            Some(place) => {
                *place = Some(Kept {
                    attr: *attr,
                    ah,
                    last_use: 0,
                });
                Ok(ah)
            }
            None => {
                device.destroy_ah(ah)?;
                Err(VerbsError::InvalidHandle { object: "route" })
            }
        }
    }

    /// Send number `number` (counted from 1) uses the handle of route `slot`.
    pub(super) fn used(&mut self, slot: u16, number: u64) {
        if let Some(Some(kept)) = self.routes.get_mut(usize::from(slot)) {
            kept.last_use = number;
        }
    }

    /// Puts the handle of `slot` into retirement, and ends those there that may go.
    fn retire<D: Device + ?Sized>(
        &mut self,
        device: &D,
        slot: u16,
        done: u64,
    ) -> Result<(), VerbsError> {
        for place in self.retired.iter_mut() {
            destroy_if_idle(device, place, done);
        }
        let Some(place) = self.routes.get_mut(usize::from(slot)) else {
            return Ok(());
        };
        destroy_if_idle(device, place, done);
        if place.is_none() {
            return Ok(());
        }
        match self.retired.iter_mut().find(|free| free.is_none()) {
            Some(free) => {
                *free = place.take();
                Ok(())
            }
            None => Err(VerbsError::NoResources {
                entry: "send_frames",
                limit: self.retired.len() as u32,
            }),
        }
    }

    fn destroy_idle<D: Device + ?Sized>(&mut self, device: &D, done: u64) {
        for place in self.routes.iter_mut().chain(self.retired.iter_mut()) {
            destroy_if_idle(device, place, done);
        }
    }

    /// Ends all. No send is outstanding: the QP is gone.
    pub(super) fn destroy_all<D: Device + ?Sized>(&mut self, device: &D) {
        self.destroy_idle(device, u64::MAX);
    }
}

/// A handle that cannot be destroyed does not exist (any more), so either way it is forgotten.
fn destroy_if_idle<D: Device + ?Sized>(device: &D, place: &mut Option<Kept>, done: u64) {
    if let Some(kept) = place
        && kept.last_use <= done
    {
        let _ = device.destroy_ah(kept.ah);
        *place = None;
    }
}
