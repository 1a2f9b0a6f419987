//! Completion queues: creating, resizing and ending them. verbs 5, infinihost 4.4, 4.5.
//!
//! A CQ lives in a slab (its handle) and in a place of the same index. The place is there as long as the HCA is open,
//! and holds the ring under the lock that polling takes, the number by which events find it, and the flags that they
//! set.

mod arm;
mod entry;
mod poll;
mod ring;

use crate::bells::Bell;
use crate::chip::Mode;
use crate::cmd::table::{Hw2SwCq, ResizeCq, Sw2HwCq};
use crate::eq::Which;
use crate::health::{End, Health};
use crate::icm::Kind;
use crate::inner::Inner;
use crate::mr::Ring;
use crate::sync::{AtomicBool, AtomicU32, AtomicU64};
use crate::user::Lent;
use crate::users::Users;
use core::sync::atomic::Ordering;
use core_ib::LKey;
use core_ib::platform::{Gate, Lock, Platform};
use core_ib::verbs::{Access, CqHandle, CqInit, Created, Object, VerbsError, kind};
use hca_abi::infinihost::cmd::CmdStatus;
use hca_abi::infinihost::cq::{CqContext, CqState};
use hca_abi::infinihost::doorbell::{MArm, MArming, MCqDoorbell, RecordType};
use hca_abi::infinihost::resize_cq;

pub use arm::CqRef;
pub(crate) use ring::{CqQueue, Entries};

/// A CQ: its handle, and its number.
#[derive(Debug)]
pub(crate) struct Cq {
    /// Number, 24 bits, a tag included.
    pub number: u32,
    /// Place of the user context that it belongs to.
    pub user: Option<u32>,
}

impl Object for Cq {
    type Kind = kind::Cq;
    const NAME: &'static str = "CQ";
    const PROFILE: &'static str = "cqs";
}

/// What a CQ is besides its queue: behind the gate of its place.
#[derive(Debug, Default)]
pub(crate) struct CqControl {
    ring: Option<Ring>,
    /// Which of its two MPT entries the ring has.
    second: bool,
    lent: Option<Lent>,
}

/// Number of a place without a CQ.
const NONE: u32 = u32::MAX;
/// Fired, in `ready`.
const FIRED: u64 = 1;

/// Where a CQ is known.
pub(crate) struct CqPlace<'p, P: Platform> {
    gate: Gate<CqControl, P::RawGate>,
    pub queue: Lock<CqQueue<'p, P>, P::RawLock>,
    number: AtomicU32,
    /// Upper half: life number of the CQ. [`FIRED`]: an event waits to be taken.
    ready: AtomicU64,
    /// A bit and the syndrome, until the event is taken. Upper half: the number of the CQ that they are of.
    error: AtomicU64,
    /// It was armed for any completion, and has not fired since.
    pub armed_any: AtomicBool,
    /// M: what arming it for any completion says ([`MArming`]), with the sequence number by which the HCA tells it from
    /// one that has fired.
    arming: AtomicU64,
    pub users: Users,
}

impl<'p, P: Platform> CqPlace<'p, P> {
    /// An empty place. Set-up only.
    pub fn new(machine: &'p P) -> Self {
        Self {
            gate: machine.gate("CQ", CqControl::default()),
            queue: machine.lock("CQ", false, CqQueue::default()),
            number: AtomicU32::new(NONE),
            ready: AtomicU64::new(0),
            error: AtomicU64::new((NONE as u64) << 32),
            armed_any: AtomicBool::new(false),
            arming: AtomicU64::new(0),
            users: Users::closed(),
        }
    }

    /// Number of the CQ, if there is one. Any context.
    pub fn number(&self) -> u32 {
        self.number.load(Ordering::Acquire)
    }

    /// M: an event of CQ `number` was delivered, so that its next arming is a new one. Of a CQ that has taken its place
    /// since, nothing changes. Any context.
    pub fn next_sequence(&self, number: u32) {
        let next = |arming| {
            let arming = MArming(arming);
            (arming.cqn() == number).then_some(arming.next().0)
        };
        let bumped = self
            .arming
            .try_update(Ordering::AcqRel, Ordering::Acquire, next);
        // A CQ of another number: its own arming stays.
        let _ = bumped;
    }

    /// M: the next arming, for any completion. Any context.
    #[inline]
    pub fn arming(&self) -> MArming {
        MArming(self.arming.load(Ordering::Acquire))
    }

    /// From here on events find the CQ, whose number and life number these are.
    pub fn publish(&self, number: u32, generation: u32, health: &Health) {
        self.error.swap(u64::from(number) << 32, Ordering::AcqRel);
        self.armed_any.store(false, Ordering::Relaxed);
        let first = MCqDoorbell {
            sequence: 1, // infinihost 4.5.4
            arm: MArm::ANY,
            cqn: number,
            counter: 0,
        };
        self.arming.store(first.arming().0, Ordering::Relaxed);
        // Not a store: if the firing of an end that is announced at the same time comes before it, and so is lost, that
        // end is seen below.
        self.ready
            .swap(u64::from(generation) << 32, Ordering::AcqRel);
        self.users.open();
        self.number.store(number, Ordering::Release);
        if !health.is_alive() {
            self.fire();
        }
    }

    /// From here on they do not. Nobody takes a firing of what is gone: verbs 10.1.
    fn withdraw(&self, generation: u32) {
        self.number.store(NONE, Ordering::Release);
        self.error.swap(u64::from(NONE) << 32, Ordering::AcqRel);
        let next = u64::from(generation.wrapping_add(1)) << 32;
        self.ready.store(next, Ordering::Release);
    }

    /// It has fired. Any context.
    pub fn fire(&self) {
        self.armed_any.store(false, Ordering::Relaxed);
        self.ready.fetch_or(FIRED, Ordering::AcqRel);
    }

    /// Takes the firing of the CQ in its life number `generation`. Any context.
    pub(crate) fn take_fired(&self, generation: u32) -> bool {
        let quiet = u64::from(generation) << 32;
        self.ready
            .compare_exchange(quiet | FIRED, quiet, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// CQ `number` failed, if it is still there. Any context.
    pub fn note_error(&self, number: u32, syndrome: u8) {
        let noted = u64::from(number) << 32 | 0x100 | u64::from(syndrome);
        let note = |word: u64| (word >> 32 == u64::from(number)).then_some(noted);
        // Of a CQ that has taken its place since, nothing changes.
        let _ = self
            .error
            .try_update(Ordering::AcqRel, Ordering::Acquire, note);
    }

    /// Takes the failure, and says which CQ's it is. Any context.
    pub fn take_error(&self) -> Option<(u32, u8)> {
        let quiet = |word: u64| (word as u32 != 0).then_some(word >> 32 << 32);
        let taken = self
            .error
            .try_update(Ordering::AcqRel, Ordering::Acquire, quiet);
        taken.ok().map(|word| ((word >> 32) as u32, word as u8))
    }
}

const STALE: VerbsError = VerbsError::InvalidHandle { object: Cq::NAME };

impl<'p, P: Platform> Inner<'p, P> {
    /// The logarithm of the ring for `cqe` entries: one more tells a full ring from an empty one.
    fn cq_log_size(&self, cqe: u32) -> Result<u8, VerbsError> {
        let allowed = self.limits.max_cqe;
        if cqe == 0 || cqe > allowed {
            return Err(VerbsError::InvalidAttr {
                field: "CQ entries",
                found: u64::from(cqe),
                allowed: u64::from(allowed),
            });
        }
        Ok(crate::extents::order_of(cqe.saturating_add(1)))
    }

    /// The driver's own PD, which all CQs and EQs are in.
    pub fn own_pd(&self) -> u32 {
        self.plan.pd.first
    }

    /// `1 << log_size` entries that the HCA can write, at one of the two MPT entries of CQ `index`.
    fn begin_cq_ring(
        &self,
        index: u32,
        second: bool,
        log_size: u8,
    ) -> Result<(Entries<'p, P>, Ring), VerbsError> {
        let first = self.plan.mpt.cqs.wrapping_add(index.wrapping_mul(2));
        let mpt = first.wrapping_add(u32::from(second));
        let entries = Entries::new(self.machine, log_size)?;
        let memory = Some((entries.memory(), entries.bytes()));
        let ring = self.begin_ring(mpt, self.own_pd(), Access::LOCAL_WRITE, [memory, None]);
        match ring {
            Ok(ring) => Ok((entries, ring)),
            Err(error) => {
                if let Some(released) = self.untold() {
                    entries.free(&released);
                }
                Err(error)
            }
        }
    }

    fn end_cq_ring(&self, ring: Option<Ring>, entries: Option<Entries<'p, P>>) {
        let released = ring.and_then(|ring| self.end_ring(ring));
        if let (Some(released), Some(entries)) = (released, entries) {
            entries.free(&released);
        }
    }

    pub(crate) fn create_cq(&self, init: &CqInit) -> Result<Created<CqHandle>, VerbsError> {
        self.cmd.health().check()?;
        let log_size = self.cq_log_size(init.cqe)?;
        let vectors = self.profile.completion_vectors;
        if init.vector >= vectors {
            return Err(VerbsError::InvalidAttr {
                field: "completion vector",
                found: u64::from(init.vector),
                allowed: u64::from(vectors) - 1,
            });
        }
        let lent = self.enter_user(&init.owner)?;
        let made = match lent {
            Some(lent) => self.create_user_cq(lent, log_size, init),
            None => self.create_kernel_cq(log_size, init.vector),
        };
        if made.is_err() {
            self.leave_user(lent);
        }
        made
    }

    /// The ring is the user's, in the PD of its region, and so is the page that rings.
    fn create_user_cq(
        &self,
        lent: Lent,
        log_size: u8,
        init: &CqInit,
    ) -> Result<Created<CqHandle>, VerbsError> {
        let pd = self.pd_of_key(lent.lkey)?;
        let bells = self.user_bells(&lent, &init.owner, [true, true])?;
        let vacant = self.cqs.reserve()?;
        let (index, generation) = (vacant.index(), vacant.generation());
        let place = self.cq_places.get(index as usize).ok_or(STALE)?;
        place.gate.with(|control| {
            let number = self.plan.cq.number(index, generation);
            let mut context = self.cq_context(number, log_size, lent.lkey, bells);
            context
                .set_completion_eqn(self.eqn(Which::Completion(init.vector)))
                .set_pd(pd)
                .set_uar_page(lent.page);
            self.back(Kind::Cqc, self.plan.cq.entry(number), 1)?;
            self.command(&Sw2HwCq {
                cqn: number,
                context: &context,
            })?;
            *control = CqControl {
                lent: Some(lent),
                ..CqControl::default()
            };
            place.publish(number, generation, self.cmd.health());
            let user = Some(lent.context);
            let handle = vacant.fill(Cq { number, user });
            let size = (1_u32 << log_size).wrapping_sub(1);
            Ok(Created { handle, size })
        })
    }

    fn create_kernel_cq(&self, log_size: u8, vector: u16) -> Result<Created<CqHandle>, VerbsError> {
        let vacant = self.cqs.reserve()?;
        let (index, generation) = (vacant.index(), vacant.generation());
        let place = self.cq_places.get(index as usize).ok_or(STALE)?;
        place.gate.with(|control| {
            let number = self.plan.cq.number(index, generation);
            self.back(Kind::Cqc, self.plan.cq.entry(number), 1)?;
            let (entries, ring) = self.begin_cq_ring(index, false, log_size)?;
            let bells = self.begin_cq_bells(index, number);
            let mut context = self.cq_context(number, log_size, ring.key, bells);
            context.set_completion_eqn(self.eqn(Which::Completion(vector)));
            let told = self.command(&Sw2HwCq {
                cqn: number,
                context: &context,
            });
            if let Err(error) = told {
                self.end_cq_bells(index);
                self.end_cq_ring(Some(ring), Some(entries));
                return Err(error.into());
            }
            let size = entries.capacity();
            let runs_free = self.chip.is_mem_free();
            let bells = self.bells.as_ref();
            let bell = bells.map_or(Bell::default(), |bells| bells.consumer(index));
            place
                .queue
                .with(|queue| queue.begin(index, bell, entries, runs_free));
            *control = CqControl {
                ring: Some(ring),
                ..CqControl::default()
            };
            place.publish(number, generation, self.cmd.health());
            let user = None;
            let handle = vacant.fill(Cq { number, user });
            Ok(Created { handle, size })
        })
    }

    fn eqn(&self, which: Which) -> u8 {
        self.eq(which).map_or(0, |eq| eq.eqn)
    }

    /// Indices of the doorbell records of the driver's CQ in place `index`: of arming, of the consumer index.
    fn begin_cq_bells(&self, index: u32, number: u32) -> [u32; 2] {
        let Some(bells) = &self.bells else {
            return [0; 2];
        };
        let (arm, consumer) = (bells.arm(index), bells.consumer(index));
        bells.begin(arm, RecordType::CQ_ARM, number);
        bells.begin(consumer, RecordType::CQ_SET_CI, number);
        [arm.index, consumer.index]
    }

    fn end_cq_bells(&self, index: u32) {
        if let Some(bells) = &self.bells {
            bells.end(bells.arm(index));
            bells.end(bells.consumer(index));
        }
    }

    fn cq_context(
        &self,
        number: u32,
        log_size: u8,
        lkey: u32,
        [arm, consumer]: [u32; 2],
    ) -> CqContext {
        let mut context = CqContext::ZERO;
        match self.chip.mode {
            Mode::T => context
                .set_translate(true)
                .set_error_eqn(self.eqn(Which::Async)),
            Mode::M => context.set_arm_record(arm).set_set_ci_record(consumer),
        };
        context
            .set_state(CqState::DISARMED)
            .set_log_size(log_size)
            .set_uar_page(self.uar.index)
            .set_pd(self.own_pd())
            .set_lkey(lkey)
            .set_cqn(number);
        context
    }

    pub(crate) fn destroy_cq(&self, cq: CqHandle) -> Result<(), VerbsError> {
        let place = self.cq_places.get(cq.index() as usize).ok_or(STALE)?;
        place.gate.with(|control| {
            let number = self.cqs.get(cq)?.number;
            let object = Cq::NAME;
            let busy = |holders| VerbsError::Busy { object, holders };
            place.users.close().map_err(busy)?;
            if let Err(error) = self.cqs.remove(cq) {
                place.users.open();
                return Err(error);
            }
            // Without the ring's region the HCA cannot write, whatever it made of this.
            self.take_back(&Hw2SwCq { cqn: number });
            place.withdraw(cq.generation());
            let entries = place.queue.with(CqQueue::end);
            if control.lent.is_none() {
                self.end_cq_bells(cq.index());
            }
            self.end_cq_ring(control.ring.take(), entries);
            self.leave_user(control.lent.take());
            Ok(())
        })
    }

    pub(crate) fn resize_cq(&self, cq: CqHandle, cqe: u32) -> Result<u32, VerbsError> {
        self.cmd.health().check()?;
        let log_size = self.cq_log_size(cqe)?;
        let place = self.cq_places.get(cq.index() as usize).ok_or(STALE)?;
        place.gate.with(|control| {
            let number = self.cqs.get(cq)?.number;
            if control.lent.is_some() {
                // The ring is the user's to make: `resize_user_cq`.
                return Err(VerbsError::InvalidState { object: Cq::NAME });
            }
            let (old_size, waiting) = place.queue.with(|queue| queue.fill());
            let size = (1_u32 << log_size).wrapping_sub(1);
            let too_small = VerbsError::InvalidAttr {
                field: "CQ entries, for those that are waiting",
                found: u64::from(cqe),
                allowed: u64::from(waiting),
            };
            if waiting > cqe {
                return Err(too_small); // though the ring might hold them: verbs 5.1
            }
            if size == old_size {
                return Ok(size);
            }
            let (entries, ring) = self.begin_cq_ring(cq.index(), !control.second, log_size)?;
            let mut settings = resize_cq::ResizeCq::ZERO;
            settings.set_log_size(log_size).set_lkey(ring.key);
            // From here on a poller that finds the old ring empty looks into the new one.
            place.queue.with(|queue| queue.prepare(entries));
            let told = self.command(&ResizeCq {
                cqn: number,
                ring: &settings,
            });
            if let Err(error) = told {
                let (entries, switched) = place.queue.with(CqQueue::give_up);
                if switched {
                    // The HCA wrote to a ring that it had refused: it has both.
                    self.fail(End::Failed);
                }
                self.end_cq_ring(Some(ring), entries);
                return Err(match error.status() {
                    Some(CmdStatus::BAD_SIZE) => too_small,
                    _ => error.into(),
                });
            }
            let old = place.queue.with(CqQueue::switch);
            control.second = !control.second;
            let old_ring = control.ring.replace(ring);
            self.end_cq_ring(old_ring, old);
            Ok(size)
        })
    }

    /// The user made the ring, and copies what it has not polled.
    pub(crate) fn resize_user_cq(
        &self,
        cq: CqHandle,
        cqe: u32,
        lkey: LKey,
    ) -> Result<u32, VerbsError> {
        self.cmd.health().check()?;
        let log_size = self.cq_log_size(cqe)?;
        let LKey(lkey) = lkey;
        let place = self.cq_places.get(cq.index() as usize).ok_or(STALE)?;
        place.gate.with(|control| {
            let cqn = self.cqs.get(cq)?.number;
            let Some(lent) = &mut control.lent else {
                return Err(VerbsError::InvalidState { object: Cq::NAME });
            };
            let (pd, there) = (self.pd_of_key(lkey)?, self.pd_of_key(lent.lkey)?);
            if pd != there {
                return Err(VerbsError::InvalidAttr {
                    field: "PD of the ring",
                    found: pd.into(),
                    allowed: there.into(),
                });
            }
            let mut settings = resize_cq::ResizeCq::ZERO;
            settings.set_log_size(log_size).set_lkey(lkey);
            let ring = &settings;
            if let Err(error) = self.command(&ResizeCq { cqn, ring }) {
                return Err(match error.status() {
                    Some(CmdStatus::BAD_SIZE) => VerbsError::InvalidAttr {
                        field: "CQ entries, for those that are waiting",
                        found: cqe.into(),
                        allowed: 0,
                    },
                    _ => error.into(),
                });
            }
            lent.lkey = lkey;
            Ok((1_u32 << log_size).wrapping_sub(1))
        })
    }

    /// The CQ gets one more QP; its number. Ends with [`leave_cq`](Self::leave_cq).
    pub(crate) fn enter_cq(&self, cq: CqHandle) -> Result<u32, VerbsError> {
        let number = self.cqs.get(cq)?.number;
        let place = self.cq_places.get(cq.index() as usize).ok_or(STALE)?;
        if place.users.enter() {
            Ok(number)
        } else {
            Err(STALE)
        }
    }

    /// One less.
    pub(crate) fn leave_cq(&self, index: u32) {
        if let Some(place) = self.cq_places.get(index as usize) {
            place.users.leave();
        }
    }

    pub(crate) fn take_cq_event(&self, cq: CqHandle) -> bool {
        let place = self.cq_places.get(cq.index() as usize);
        cq.device() == self.device && place.is_some_and(|place| place.take_fired(cq.generation()))
    }

    /// Takes the completions of the QP with hardware number `qpn` out of CQ `index`. verbs 1.3, 3.10.
    pub(crate) fn purge_cq(&self, index: u32, qpn: u32) {
        if let Some(place) = self.cq_places.get(index as usize) {
            let number = place.number();
            place.queue.with(|queue| queue.purge(self, number, qpn));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Machine;

    #[test]
    fn a_failure_of_who_was_there_before_is_not_the_next_ones() {
        let machine = Machine::idle();
        let (place, health) = (CqPlace::new(&machine), Health::new());
        place.publish(0x10, 0, &health);
        place.note_error(0x10, 1);
        assert_eq!(place.take_error(), Some((0x10, 1)));
        assert_eq!(place.take_error(), None);
        place.note_error(0x10, 2);
        place.withdraw(0);
        place.note_error(0x10, 3);
        place.publish(0x110, 1, &health);
        place.note_error(0x10, 4); // a handler that looked before
        assert_eq!(place.take_error(), None);
        place.note_error(0x110, 5);
        assert_eq!(place.take_error(), Some((0x110, 5)));
    }
}
