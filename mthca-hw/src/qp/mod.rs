//! Queue pairs. verbs 3 and 4, infinihost 4.6, 4.7, 5.
//!
//! * `create`: creating them; `control`: modifying, querying and ending them;
//! * `context`: what the HCA is told of them;
//! * `attr`: which values it may be told;
//! * `place`, `send`, `recv`: posting and what completions find;
//! * `room`, `straight`, `general`, `wqe`: writing the WQEs of sends, and the parts of all.

mod attr;
mod bind;
pub(crate) mod context;
mod control;
mod create;
mod general;
mod place;
mod recv;
mod room;
pub(crate) mod send;
mod straight;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod wqe;

pub(crate) use control::Qp;
pub(crate) use place::{HalfView, QpPlace, Queue};

use crate::inner::Inner;
use core_ib::Qpn;
use core_ib::platform::Platform;
use core_ib::verbs::{
    Held, Object, PostError, QpHandle, QpType, QueuePair, RecvWr, SendWr, VerbsError,
};
use recv::RecvQueue;
use send::SendQueue;

/// A resolved QP.
pub struct QpRef<'a, 'p, P: Platform> {
    core: &'a Inner<'p, P>,
    place: &'a QpPlace<'p, P>,
    held: Held<'a, Qp>,
    handle: QpHandle,
    way: Way,
}

/// How requests are posted: chosen once for each QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// UD, in T-mode.
    Datagrams,
    /// UD, in M-mode.
    MDatagrams,
    /// RC and UC, in T-mode.
    Connected,
    /// RC and UC, in M-mode.
    MConnected,
    /// SMI and GSI.
    Special,
}

impl<'p, P: Platform> Inner<'p, P> {
    pub(crate) fn qp(&self, handle: QpHandle) -> Result<QpRef<'_, 'p, P>, VerbsError> {
        let held = self.qps.get(handle)?;
        crate::user::refuse_user(Qp::NAME, held.user)?;
        let place = self.qp_places.get(handle.index() as usize);
        Ok(QpRef {
            core: self,
            place: place.ok_or(VerbsError::InvalidHandle { object: Qp::NAME })?,
            way: match (held.service, self.chip.is_mem_free()) {
                (QpType::Ud, false) => Way::Datagrams,
                (QpType::Ud, true) => Way::MDatagrams,
                (QpType::Rc | QpType::Uc, false) => Way::Connected,
                (QpType::Rc | QpType::Uc, true) => Way::MConnected,
                (QpType::Smi | QpType::Gsi, _) => Way::Special,
            },
            held,
            handle,
        })
    }

    /// The QP whose number in the HCA, tag included, is `qpn`. Any context.
    #[inline]
    pub(crate) fn qp_by_number(&self, qpn: u32) -> Option<(u32, &QpPlace<'p, P>)> {
        let mut index = self.plan.qp.index(qpn);
        if index >= self.plan.qp.count {
            index = self.special_by_number(qpn)?;
        }
        let place = self.qp_places.get(index as usize)?;
        (place.number() == qpn).then_some((index, place))
    }

    fn special_by_number(&self, qpn: u32) -> Option<u32> {
        let which = qpn.wrapping_sub(self.plan.special_qps);
        let place = self.special.get(which as usize)?;
        Some(place.load(core::sync::atomic::Ordering::Acquire))
    }
}

impl<P: Platform> QueuePair for QpRef<'_, '_, P> {
    #[inline]
    fn post_send(&self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        let (core, place) = (self.core, self.place);
        if let [wr] = wrs {
            return match self.way {
                Way::Datagrams => SendQueue::post_datagram::<false>(core, place, wr),
                Way::MDatagrams => SendQueue::post_datagram::<true>(core, place, wr),
                Way::Connected => SendQueue::post_one::<false>(core, place, wr),
                Way::MConnected => SendQueue::post_one::<true>(core, place, wr),
                Way::Special => SendQueue::post_special(core, place, wrs),
            };
        }
        match self.way {
            Way::Datagrams => SendQueue::post_datagrams::<false>(core, place, wrs),
            Way::MDatagrams => SendQueue::post_datagrams::<true>(core, place, wrs),
            Way::Connected => SendQueue::post_connected::<false>(core, place, wrs),
            Way::MConnected => SendQueue::post_connected::<true>(core, place, wrs),
            Way::Special => SendQueue::post_special(core, place, wrs),
        }
    }

    #[inline]
    fn post_recv(&self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        let (core, place) = (self.core, self.place);
        match (core.chip.is_mem_free(), wrs) {
            (false, [wr]) => RecvQueue::post_one::<false>(core, place, wr),
            (true, [wr]) => RecvQueue::post_one::<true>(core, place, wr),
            (false, _) => RecvQueue::post::<false>(core, place, wrs),
            (true, _) => RecvQueue::post::<true>(core, place, wrs),
        }
    }

    fn qpn(&self) -> Qpn {
        self.held.wire
    }

    fn handle(&self) -> QpHandle {
        self.handle
    }
}
