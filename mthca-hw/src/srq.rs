//! Shared receive queues. verbs 8, infinihost 4.8, 5.4.
//!
//! WQEs complete in any order, so there is a list of free ones. A poster takes from a list of its own, under the
//! queue's lock; pollers of any CQ give back to another, without a lock; when its own is empty the poster takes all of
//! the other. A WQE that is outstanding is marked so in its record, and is given back once, whatever the HCA says.
//!
//! In T-mode a WQE is linked to the one posted before. In M-mode it names its successor when it is posted itself, so that
//! one WQE is always kept to be the next; the first is WQE 0. infinihost 4.8.
//!
//! Posting is in `post`.

mod post;

use crate::bells::Bell;
use crate::chip::Mode;
use crate::cmd::table::{ArmSrq, Hw2SwSrq, QueryMSrq, QuerySrq, Sw2HwMSrq, Sw2HwSrq};
use crate::eq::Which;
use crate::event::Pending;
use crate::extents::{Extent, order_of};
use crate::icm::Kind;
use crate::inner::{Inner, NOBODY};
use crate::isr::Arm;
use crate::mr::Ring;
use crate::records::Records;
use crate::sync::AtomicU32;
use crate::user::Lent;
use crate::users::Users;
use core::sync::atomic::Ordering;
use core_ib::platform::{DmaBuf, DmaRing, Gate, Lock, Platform};
use core_ib::verbs::{
    Access, Created, Held, Object, SrqAttr, SrqHandle, SrqInit, VerbsError, kind,
};
use hca_abi::infinihost::cqe::Cqe;
use hca_abi::infinihost::doorbell::RecordType;
use hca_abi::infinihost::srq::{MSrqContext, SrqContext, SrqState};
use hca_abi::infinihost::wqe::UNIT;
use post::SrqQueue;

/// Bytes of the longest WQE: a power of two whose count of units has six bits.
const MAX_STRIDE: u32 = 512;
/// Bytes of a segment.
const SEGMENT: u32 = UNIT as u32;
/// No WQE.
const NIL: u32 = u32::MAX;
/// The WQE is outstanding.
const IN_USE: u32 = u32::MAX - 1;

/// An SRQ: its handle.
#[derive(Debug)]
pub(crate) struct Srq {
    /// Number in the HCA.
    pub number: u32,
    /// Place of the user context that it belongs to.
    pub user: Option<u32>,
}

impl Object for Srq {
    type Kind = kind::Srq;
    const NAME: &'static str = "SRQ";
    const PROFILE: &'static str = "srqs";
}

/// Behind the gate of its place.
#[derive(Debug, Default)]
struct SrqControl {
    ring: Option<Ring>,
    records: Option<Extent>,
    lent: Option<Lent>,
    pd: u32,
    max_wr: u32,
    max_sge: u32,
}

/// What the HCA is told of an SRQ.
struct Told {
    /// Number of its PD.
    pd: u32,
    stride: u32,
    log_count: u8,
    lkey: u32,
    page: u32,
    /// M: index of its doorbell record.
    record: u32,
}

/// Where an SRQ is known.
pub(crate) struct SrqPlace<'p, P: Platform> {
    gate: Gate<SrqControl, P::RawGate>,
    queue: Lock<SrqQueue<'p, P>, P::RawLock>,
    /// Which SRQ of all that there ever were, or [`NOBODY`].
    tenant: AtomicU32,
    /// First of the WQEs that pollers gave back.
    freed: AtomicU32,
    /// First place among the records.
    records: AtomicU32,
    /// WQEs less one.
    mask: AtomicU32,
    /// Logarithm of the distance of two WQEs.
    shift: AtomicU32,
    users: Users,
    /// What happened and nobody has taken.
    pub events: Pending,
}

impl<'p, P: Platform> SrqPlace<'p, P> {
    /// An empty place. Set-up only.
    pub fn new(machine: &'p P) -> Self {
        Self {
            gate: machine.gate("SRQ", SrqControl::default()),
            queue: machine.lock("SRQ", false, SrqQueue::default()),
            tenant: AtomicU32::new(NOBODY),
            freed: AtomicU32::new(NIL),
            records: AtomicU32::new(0),
            mask: AtomicU32::new(0),
            shift: AtomicU32::new(0),
            users: Users::closed(),
            events: Pending::closed(),
        }
    }

    /// Which SRQ is here? Any context.
    pub fn tenant(&self) -> Option<u32> {
        let tenant = self.tenant.load(Ordering::Acquire);
        (tenant != NOBODY).then_some(tenant)
    }

    /// A poller gives a WQE back; what its poster called it. `None` if it is not outstanding.
    pub fn give_back(&self, address: u32, records: &Records<'_, P>) -> Option<u64> {
        let shift = self.shift.load(Ordering::Relaxed) & 31;
        let index = address >> shift;
        if index > self.mask.load(Ordering::Relaxed) || index << shift != address {
            return None;
        }
        let first = self.records.load(Ordering::Relaxed);
        let record = records.get(first.wrapping_add(index))?;
        record
            .link
            .compare_exchange(IN_USE, NIL, Ordering::AcqRel, Ordering::Relaxed)
            .ok()?;
        let wr_id = record.wr_id.load(Ordering::Relaxed);
        let mut head = self.freed.load(Ordering::Relaxed);
        loop {
            record.link.store(head, Ordering::Relaxed);
            let pushed =
                self.freed
                    .compare_exchange_weak(head, index, Ordering::Release, Ordering::Relaxed);
            match pushed {
                Ok(_) => return Some(wr_id),
                Err(now) => head = now,
            }
        }
    }
}

const STALE: VerbsError = VerbsError::InvalidHandle { object: Srq::NAME };

impl<'p, P: Platform> Inner<'p, P> {
    /// Retires a WQE of the SRQ in place `index`; what its poster called it.
    pub(crate) fn complete_srq(&self, index: u32, wqe_address: u32) -> Option<u64> {
        let place = self.srq_places.get(index as usize)?;
        place.give_back(wqe_address, &self.records)
    }

    /// A completion is taken out of its CQ unread: a WQE of an SRQ goes back to the free ones. verbs 3.10.
    pub(crate) fn discard(&self, qpn: u32, cqe: &Cqe) {
        let send = if cqe.is_error() {
            cqe.opcode() & 1 != 0
        } else {
            cqe.is_send()
        };
        if let Some((_, place)) = self.qp_by_number(qpn)
            && !send
        {
            self.complete_srq(place.srq(), cqe.wqe_address());
        }
    }

    /// Entries of one request of an SRQ at most.
    pub(crate) fn max_srq_sge(&self) -> u32 {
        (MAX_STRIDE / SEGMENT - 1).min(self.limits.max_sge)
    }

    fn check_srq(&self, init: &SrqInit) -> Result<(), VerbsError> {
        if !self.limits.has_srq || self.plan.srq.count == 0 {
            return Err(VerbsError::Unsupported { feature: "SRQs" });
        }
        let invalid = |field, found: u32, allowed: u32| {
            Err(VerbsError::InvalidAttr {
                field,
                found: found.into(),
                allowed: allowed.into(),
            })
        };
        let most = self.max_srq_wr();
        if init.max_wr == 0 || init.max_wr > most {
            return invalid("max_wr of the SRQ", init.max_wr, most);
        }
        if init.max_sge > self.max_srq_sge() {
            return invalid("max_sge of the SRQ", init.max_sge, self.max_srq_sge());
        }
        Ok(())
    }

    pub(crate) fn create_srq(&self, init: &SrqInit) -> Result<Created<SrqHandle>, VerbsError> {
        self.cmd.health().check()?;
        self.check_srq(init)?;
        let vacant = self.srqs.reserve()?;
        let index = vacant.index();
        let place = self.srq_places.get(index as usize).ok_or(STALE)?;
        place.gate.with(|control| {
            let lent = self.enter_user(&init.owner)?;
            let home = match self.enter_pd(init.pd) {
                Ok(home) => home,
                Err(error) => {
                    self.leave_user(lent);
                    return Err(error);
                }
            };
            let number = self.plan.srq.first.wrapping_add(index);
            let pd = (home.index, home.number);
            let begun = match lent {
                Some(lent) => self.begin_user_srq(control, init, pd, number, lent),
                None => self.begin_srq(place, control, init, pd, (index, number)),
            };
            if let Err(error) = begun {
                self.leave_pd(home.index);
                self.leave_user(lent);
                return Err(error);
            }
            let tenant = self.srq_tenants.enter();
            place.events.open(tenant);
            place.users.open();
            place.tenant.store(tenant, Ordering::Release);
            Ok(Created {
                handle: vacant.fill(Srq {
                    number,
                    user: lent.map(|lent| lent.context),
                }),
                size: control.max_wr,
            })
        })
    }

    /// Entries of a WQE with this many of data, as a stride.
    fn srq_stride(max_sge: u32) -> u32 {
        ((max_sge + 1) * SEGMENT).next_power_of_two().max(64)
    }

    /// Gives an SRQ to the HCA.
    fn tell_srq(&self, srqn: u32, told: &Told) -> Result<(), VerbsError> {
        self.back(Kind::Srqc, self.plan.srq.entry(srqn), 1)?;
        match self.chip.mode {
            Mode::T => {
                let mut context = SrqContext::ZERO;
                context
                    .set_wqe_size((told.stride / SEGMENT) as u8)
                    .set_state(SrqState::SOFTWARE)
                    .set_pd(told.pd)
                    .set_lkey(told.lkey)
                    .set_uar_page(told.page);
                let context = &context;
                self.command(&Sw2HwSrq { srqn, context })?;
            }
            Mode::M => {
                let mut context = MSrqContext::ZERO;
                context
                    .set_log_size(told.log_count)
                    .set_srqn(srqn)
                    .set_lkey(told.lkey)
                    .set_record(told.record)
                    .set_log_stride((told.stride.trailing_zeros() as u8).saturating_sub(4))
                    .set_uar_page(told.page)
                    .set_pd(told.pd);
                let context = &context;
                self.command(&Sw2HwMSrq { srqn, context })?;
            }
        }
        Ok(())
    }

    /// The queue is the user's, and so is the page that rings.
    fn begin_user_srq(
        &self,
        control: &mut SrqControl,
        init: &SrqInit,
        (pd, pd_number): (u32, u32),
        number: u32,
        lent: Lent,
    ) -> Result<(), VerbsError> {
        let stride = Self::srq_stride(init.max_sge);
        let [_, record] = self.user_bells(&lent, &init.owner, [false, true])?;
        let told = Told {
            pd: pd_number,
            stride,
            log_count: order_of(init.max_wr.saturating_add(1)),
            lkey: lent.lkey,
            page: lent.page,
            record,
        };
        self.tell_srq(number, &told)?;
        *control = SrqControl {
            lent: Some(lent),
            pd,
            max_wr: init.max_wr,
            max_sge: stride / SEGMENT - 1,
            ..SrqControl::default()
        };
        Ok(())
    }

    fn begin_srq(
        &self,
        place: &SrqPlace<'p, P>,
        control: &mut SrqControl,
        init: &SrqInit,
        (pd, pd_number): (u32, u32),
        (index, number): (u32, u32),
    ) -> Result<(), VerbsError> {
        let log_count = order_of(init.max_wr.saturating_add(1));
        let count = 1_u32 << log_count;
        let stride = Self::srq_stride(init.max_sge);
        let shift = stride.trailing_zeros();
        let records = self.records.take(count)?;
        let len = (count as usize) << shift;
        let memory = match DmaBuf::new(self.machine, len, 4096) {
            Ok(memory) => memory,
            Err(error) => {
                self.records.give(records);
                return Err(error.into());
            }
        };
        let mpt = self.plan.mpt.srqs.wrapping_add(index);
        let pieces = [Some((&memory, len as u64)), None];
        let ring = match self.begin_ring(mpt, pd_number, Access::empty(), pieces) {
            Ok(ring) => ring,
            Err(error) => {
                if let Some(released) = self.untold() {
                    released.free(memory);
                }
                self.records.give(records);
                return Err(error);
            }
        };
        let bell = self.bells.as_ref().map_or(Bell::default(), |bells| {
            let bell = bells.srq(index);
            bells.begin(bell, RecordType::SRQ, number);
            bell
        });
        let told = Told {
            pd: pd_number,
            stride,
            log_count,
            lkey: ring.key,
            page: self.uar.index,
            record: bell.index,
        };
        if let Err(error) = self.tell_srq(number, &told) {
            if let Some(released) = self.end_ring(ring) {
                released.free(memory);
            }
            self.records.give(records);
            return Err(error);
        }
        let max_sge = stride / SEGMENT - 1;
        // In M-mode the one that is never used is another one each time.
        let usable = if self.chip.is_mem_free() {
            count
        } else {
            count.wrapping_sub(1)
        };
        self.chain_free(records, usable);
        place.freed.store(NIL, Ordering::Relaxed);
        place.records.store(records.first, Ordering::Relaxed);
        place.mask.store(count.wrapping_sub(1), Ordering::Relaxed);
        place.shift.store(shift, Ordering::Relaxed);
        place.queue.with(|queue| {
            *queue = SrqQueue {
                // The memory has this size.
                memory: DmaRing::over(memory, count.wrapping_sub(1), shift as u8).ok(),
                free: 0,
                last: count.wrapping_sub(1),
                posted: 0,
                bell,
                max_sge,
                number,
            };
        });
        *control = SrqControl {
            ring: Some(ring),
            records: Some(records),
            pd,
            lent: None,
            max_wr: count.wrapping_sub(1),
            max_sge,
        };
        Ok(())
    }

    /// Puts the first `usable` WQEs into one list.
    fn chain_free(&self, records: Extent, usable: u32) {
        for index in 0..usable {
            if let Some(record) = self.records.get(records.first.wrapping_add(index)) {
                let following = index.wrapping_add(1);
                let link = if following < usable { following } else { NIL };
                record.link.store(link, Ordering::Relaxed);
            }
        }
    }

    /// Runs `f` on the SRQ, while no other control call is at it.
    fn with_srq<T>(
        &self,
        srq: SrqHandle,
        f: impl FnOnce(u32, &mut SrqControl) -> Result<T, VerbsError>,
    ) -> Result<T, VerbsError> {
        let place = self.srq_places.get(srq.index() as usize).ok_or(STALE)?;
        place.gate.with(|control| {
            let number = self.srqs.get(srq)?.number;
            f(number, control)
        })
    }

    pub(crate) fn destroy_srq(&self, srq: SrqHandle) -> Result<(), VerbsError> {
        let place = self.srq_places.get(srq.index() as usize).ok_or(STALE)?;
        self.with_srq(srq, |number, control| {
            let object = Srq::NAME;
            let busy = |holders| VerbsError::Busy { object, holders };
            place.users.close().map_err(busy)?;
            if let Err(error) = self.srqs.remove(srq) {
                place.users.open();
                return Err(error);
            }
            self.take_back(&Hw2SwSrq { srqn: number });
            // Its number carries no tag: what is still in the queue of events must not meet the next owner, and what a
            // handler has in hand is older than that one.
            self.drain(Which::Async, Arm::IfAny);
            place.tenant.store(NOBODY, Ordering::Release);
            place.events.close();
            let queue = place.queue.with(core::mem::take);
            let control = core::mem::take(control);
            let released = control.ring.and_then(|ring| self.end_ring(ring));
            if let (Some(released), Some(memory)) = (released, queue.memory) {
                released.free(memory.into_memory());
            }
            if let Some(records) = control.records {
                if let Some(bells) = &self.bells {
                    bells.end(queue.bell);
                }
                self.records.give(records);
            }
            self.leave_pd(control.pd);
            self.leave_user(control.lent);
            Ok(())
        })
    }

    pub(crate) fn arm_srq(&self, srq: SrqHandle, limit: u32) -> Result<(), VerbsError> {
        self.cmd.health().check()?;
        self.with_srq(srq, |srqn, control| {
            if limit > control.max_wr {
                return Err(VerbsError::InvalidAttr {
                    field: "limit of the SRQ",
                    found: limit.into(),
                    allowed: control.max_wr.into(),
                });
            }
            let limit = limit as u16; // an SRQ has fewer than 2^16 requests
            self.command(&ArmSrq { srqn, limit })?;
            Ok(())
        })
    }

    pub(crate) fn query_srq(&self, srq: SrqHandle) -> Result<SrqAttr, VerbsError> {
        self.cmd.health().check()?;
        self.with_srq(srq, |srqn, control| {
            let (state, limit) = match self.chip.mode {
                Mode::T => {
                    let (context, _) = self.command(&QuerySrq { srqn })?;
                    (context.state(), context.limit())
                }
                Mode::M => {
                    let (context, _) = self.command(&QueryMSrq { srqn })?;
                    (context.state(), context.limit())
                }
            };
            if state == SrqState::ERROR {
                return Err(VerbsError::InvalidState { object: Srq::NAME });
            }
            Ok(SrqAttr {
                max_wr: control.max_wr,
                max_sge: control.max_sge,
                limit: limit.into(),
            })
        })
    }

    /// The SRQ gets one more QP. Ends with [`leave_srq`](Self::leave_srq).
    pub(crate) fn enter_srq(&self, srq: SrqHandle) -> Result<(), VerbsError> {
        self.srqs.get(srq).map(drop)?;
        let place = self.srq_places.get(srq.index() as usize).ok_or(STALE)?;
        if place.users.enter() {
            Ok(())
        } else {
            Err(STALE)
        }
    }

    /// One less.
    pub(crate) fn leave_srq(&self, index: u32) {
        if let Some(place) = self.srq_places.get(index as usize) {
            place.users.leave();
        }
    }

    pub(crate) fn srq(&self, handle: SrqHandle) -> Result<SrqRef<'_, 'p, P>, VerbsError> {
        let held = self.srqs.get(handle)?;
        crate::user::refuse_user(Srq::NAME, held.user)?;
        let place = self.srq_places.get(handle.index() as usize);
        Ok(SrqRef {
            core: self,
            place: place.ok_or(STALE)?,
            _held: held,
            handle,
        })
    }
}

/// A resolved SRQ.
pub struct SrqRef<'a, 'p, P: Platform> {
    core: &'a Inner<'p, P>,
    place: &'a SrqPlace<'p, P>,
    _held: Held<'a, Srq>,
    handle: SrqHandle,
}
