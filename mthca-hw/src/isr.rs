//! Interrupts: the handlers, and what an event does to the object that it names. infinihost 4.3, 7.
//!
//! The HCA is not believed: a number that fits nothing alive is counted and forgotten, as is an event that nobody
//! knows. A handler sets flags and wakes; it never calls a consumer.

use crate::cq::CqPlace;
use crate::eq::{Eq, Which};
use crate::event::{Strays, Tenants};
use crate::health::End;
use crate::inner::Inner;
use core::ptr::NonNull;
use core::sync::atomic::Ordering;
use core_ib::platform::{Handled, Handler, Platform, PlatformError, Registers};
use core_ib::verbs::{PortEvent, QpEvent, SrqEvent};
use hca_abi::infinihost::cmd::CmdStatus;
use hca_abi::infinihost::doorbell::EqCommand;
use hca_abi::infinihost::eqe::{Eqe, EventType, LocalSyndrome, PortChange};
use hca_abi::infinihost::regs;

/// What an interrupt vector calls.
pub(crate) struct Isr<'p, P: Platform> {
    core: NonNull<Inner<'p, P>>,
    /// Number of the message; none for the pin, which is all EQs'.
    message: Option<u16>,
}

// SAFETY: an `Isr` is a shared reference to a `Inner`, which is `Sync`, and a constant.
unsafe impl<P: Platform> Send for Isr<'_, P> {}
// SAFETY: likewise.
unsafe impl<P: Platform> Sync for Isr<'_, P> {}

impl<'p, P: Platform> Isr<'p, P> {
    /// For `core`, which does not move.
    pub fn new(core: NonNull<Inner<'p, P>>, message: Option<u16>) -> Self {
        Self { core, message }
    }

    /// From now on `vector` calls this.
    ///
    /// # Safety
    ///
    /// This and the core stay where they are until the vector is unbound.
    pub unsafe fn bind(&self, machine: &P, vector: u16) -> Result<(), PlatformError> {
        let handler: &(dyn Handler + '_) = self;
        let handler = NonNull::from(handler);
        // SAFETY: only the lifetime is forgotten; that it is long enough is the caller's promise.
        let handler: NonNull<dyn Handler> = unsafe { core::mem::transmute(handler) };
        // SAFETY: the caller's promise.
        unsafe { machine.bind_interrupt(vector, handler) }
    }
}

/// When to arm an EQ after draining it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arm {
    /// An interrupt came: it is not armed.
    Always,
    /// A look without an interrupt: it is still armed if nothing was there.
    IfAny,
}

impl<P: Platform> Handler for Isr<'_, P> {
    fn handle(&self) -> Handled {
        // SAFETY: whoever bound this promised that the core is there until it is unbound, and shared from then on.
        let core = unsafe { self.core.as_ref() };
        match self.message {
            Some(message) => {
                for which in core.all_eqs() {
                    if core.message_of(which) == message {
                        core.drain(which, Arm::Always);
                    }
                }
                Handled::Yes
            }
            None if core.chip.is_mem_free() => core.handle_m_pin(),
            None => core.handle_pin(),
        }
    }
}

impl<'p, P: Platform> Inner<'p, P> {
    /// Releases the pin. infinihost 2.4.
    fn clear_pin(&self, register: usize) {
        let pin = u32::from(self.limits.inta_pin);
        let half = if pin < 32 { 4 } else { 0 };
        let dcs = self.cmd.dcs();
        dcs.write_be32(register.wrapping_add(half), 1 << (pin % 32));
    }

    /// The pin in M-mode: nothing says whose EQs fired, so all are looked at. infinihost 7.2.
    fn handle_m_pin(&self) -> Handled {
        self.clear_pin(self.limits.registers.clr_int);
        let mut any = false;
        for which in self.all_eqs() {
            any |= self.drain(which, Arm::Always);
        }
        if any { Handled::Yes } else { Handled::No }
    }

    /// The pin: whose EQs fired is in a register. infinihost 2.3, 2.4, 7.2.
    fn handle_pin(&self) -> Handled {
        let dcs = self.cmd.dcs();
        self.clear_pin(regs::CLR_INT);
        let fired = dcs.read_be32(regs::ECR_LOW);
        match fired {
            0 => return Handled::No,
            u32::MAX => {
                self.fail(End::Gone);
                return Handled::No;
            }
            _ => dcs.write_be32(regs::CLR_ECR_LOW, fired),
        }
        for which in self.all_eqs() {
            let eqn = self.eq(which).map_or(32, |eq| u32::from(eq.eqn));
            if fired.checked_shr(eqn).is_some_and(|bits| bits & 1 != 0) {
                self.drain(which, Arm::Always);
            }
        }
        Handled::Yes
    }

    /// Takes what there is in an EQ, no more than it holds at once, and asks for an interrupt with the next event, which
    /// comes at once for one that was left. Says whether there was any. Interrupt context.
    pub fn drain(&self, which: Which, arm: Arm) -> bool {
        let Some(eq) = self.eq(which) else {
            return false;
        };
        let port = self.eq_port();
        let mut any = false;
        for _ in 0..eq.entries() {
            let Some((eqe, newest)) = eq.next(&port, &self.srq_tenants) else {
                break;
            };
            self.dispatch(eq, &eqe, newest);
            any = true;
        }
        match arm {
            Arm::Always => eq.finish(&port, true),
            Arm::IfAny if any => {
                eq.finish(&port, self.interrupts.load(Ordering::Acquire));
            }
            Arm::IfAny => {}
        }
        if any && which != Which::Command {
            self.wake.wake();
        }
        any
    }

    /// Notes what `eqe` says. Interrupt context.
    fn dispatch(&self, eq: &Eq<'_, P>, eqe: &Eqe, newest: u32) {
        match eqe.event_type() {
            EventType::COMPLETION => self.note_completion(eq, eqe.number()),
            EventType::COMMAND => {
                let status = CmdStatus(eqe.syndrome());
                self.cmd.complete(eqe.token(), status, eqe.out_param());
            }
            EventType::PATH_MIGRATED => self.note_qp(eqe, QpEvent::PathMigrated),
            EventType::COMM_ESTABLISHED => self.note_qp(eqe, QpEvent::CommunicationEstablished),
            EventType::SQ_DRAINED => self.note_qp(eqe, QpEvent::SqDrained),
            EventType::WQ_CATASTROPHIC => self.note_qp(eqe, QpEvent::Fatal),
            EventType::PATH_MIGRATION_FAILED => self.note_qp(eqe, QpEvent::PathMigrationFailed),
            EventType::WQ_INVALID_REQUEST => self.note_qp(eqe, QpEvent::RequestError),
            EventType::WQ_ACCESS_VIOLATION => self.note_qp(eqe, QpEvent::AccessError),
            EventType::LAST_WQE_REACHED => self.note_qp(eqe, QpEvent::LastWqeReached),
            EventType::CQ_ERROR => self.note_cq_error(eqe.number(), eqe.syndrome()),
            EventType::SRQ_CATASTROPHIC => self.note_srq(eqe.number(), newest, SrqEvent::Error),
            EventType::SRQ_LIMIT => self.note_srq(eqe.number(), newest, SrqEvent::LimitReached),
            EventType::PORT_CHANGE => self.note_port(eqe.port(), PortChange(eqe.sub_type())),
            EventType::LOCAL_CATASTROPHIC
                if LocalSyndrome(eqe.syndrome()) == LocalSyndrome::BAD_UAR_PAGE =>
            {
                // The doorbell was dropped, and no more is wrong: a user can do that whenever it likes.
                Strays::count(&self.strays.doorbell);
            }
            EventType::LOCAL_CATASTROPHIC => {
                log::error!("{}: local catastrophic error", self.machine.name());
                self.fail(End::Failed);
            }
            EventType::EQ_OVERFLOW => {
                // Events are lost for good.
                log::error!("{}: an event queue overflowed", self.machine.name());
                self.fail(End::Failed);
            }
            EventType::ECC_DETECT => {
                log::warn!("{}: ECC error in attached memory", self.machine.name());
            }
            _ => Strays::count(&self.strays.event_type),
        }
    }

    /// The CQ whose number, tag included, is `cqn`.
    fn cq_by_number(&self, cqn: u32) -> Option<(u32, &CqPlace<'p, P>)> {
        let index = self.plan.cq.index(cqn);
        let place = self.cq_places.get(index as usize)?;
        (place.number() == cqn).then_some((index, place))
    }

    fn note_completion(&self, eq: &Eq<'_, P>, cqn: u32) {
        match self.cq_by_number(cqn) {
            Some((_, place)) => {
                // First: who arms between the two is told anyway, and arms again. infinihost 4.5.4.
                if self.chip.is_mem_free() {
                    place.next_sequence(cqn);
                } else {
                    self.uar.ring_eq(eq.eqn, EqCommand::DISARM_CQ, cqn);
                }
                place.fire();
            }
            None => Strays::count(&self.strays.cqn),
        }
    }

    fn note_cq_error(&self, cqn: u32, syndrome: u8) {
        match self.cq_by_number(cqn) {
            Some((index, place)) => {
                place.note_error(cqn, syndrome);
                self.cq_marks.set(index);
            }
            None => Strays::count(&self.strays.cqn),
        }
    }

    fn note_qp(&self, eqe: &Eqe, event: QpEvent) {
        match self.qp_by_number(eqe.number()) {
            Some((index, place)) => {
                place.events.push(eqe.number(), event);
                self.qp_marks.set(index);
            }
            None => Strays::count(&self.strays.qpn),
        }
    }

    fn note_srq(&self, srqn: u32, newest: u32, event: SrqEvent) {
        let index = self.plan.srq.index(srqn);
        let place = self.srq_places.get(index as usize);
        let known = place.and_then(|place| Some((place, place.tenant()?)));
        match known.filter(|&(_, tenant)| Tenants::had(newest, tenant)) {
            Some((place, tenant)) => {
                place.events.push(tenant, event);
                self.srq_marks.set(index);
            }
            None => Strays::count(&self.strays.srqn),
        }
    }

    fn note_port(&self, port: u8, change: PortChange) {
        let event = match change {
            PortChange::ACTIVE => PortEvent::Active,
            PortChange::DOWN => PortEvent::Error,
            _ => return Strays::count(&self.strays.event_type),
        };
        if self.check_port(port).is_ok() {
            self.port_event(port, event);
        } else {
            Strays::count(&self.strays.port);
        }
    }

    /// See [`Device::poll_events`](core_ib::verbs::Device::poll_events).
    pub fn poll_events(&self) {
        for which in self.all_eqs() {
            self.drain(which, Arm::IfAny);
        }
        self.look_for_errors();
    }
}
