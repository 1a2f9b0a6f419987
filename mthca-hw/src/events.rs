//! Events, step by step: vectors, EQs, handlers, routing, arming, and the test that an interrupt arrives.
//! infinihost 3.2, 7, 9.1 (11 to 20).
//!
//! A table of its own, because it is tried twice where messages do not arrive. Commands are polled until the last step
//! but one.

use crate::bring_up::Step;
use crate::chip::Mode;
use crate::cmd::Cause;
use crate::cmd::table::{Hw2SwEq, MapEq, Nop, Sw2HwEq};
use crate::eq::Which;
use crate::inner::Inner;
use crate::isr::Isr;
use crate::mr::Ring;
use crate::open::{OpenCause, Opening};
use crate::profile::Interrupts;
use core::ptr::NonNull;
use core::sync::atomic::Ordering;
use core_ib::platform::{Placed, Platform, Table, Vectors};
use core_ib::verbs::{Access, VerbsError};
use hca_abi::infinihost::cmd::CmdStatus;
use hca_abi::infinihost::eq::{EqContext, EqState};

type Result<T = ()> = core::result::Result<T, OpenCause>;

/// Messages that there must be, or the pin is better: one for each kind of EQ. More are asked for: one an EQ.
const MESSAGES: u16 = 3;

impl<'p, P: Platform> Opening<'p, P> {
    /// See the module.
    pub(crate) const EVENTS: [Step<Self, OpenCause>; 7] = [
        Step {
            name: "interrupt vectors",
            apply: Self::take_vectors,
            undo: Self::give_vectors,
        },
        Step {
            name: "SW2HW_EQ",
            apply: Self::begin_eqs,
            undo: Self::end_eqs,
        },
        Step {
            name: "interrupt handlers",
            apply: Self::bind,
            undo: Self::unbind,
        },
        Step {
            name: "MAP_EQ",
            apply: Self::route,
            undo: Self::unroute,
        },
        Step {
            name: "arming",
            apply: Self::arm,
            undo: Self::disarm,
        },
        Step {
            name: "commands by events",
            apply: Self::use_events,
            undo: Self::use_polling,
        },
        Step {
            name: "NOP",
            apply: Self::test,
            undo: Self::nothing_to_undo,
        },
    ];

    fn placed(&self) -> Result<&Inner<'p, P>> {
        let missing = OpenCause::Query(VerbsError::DeviceGone);
        self.core.as_deref().ok_or(missing)
    }

    fn nothing_to_undo(&mut self) {}

    fn take_vectors(&mut self) -> Result {
        let wanted = match self.attempt {
            Interrupts::Messages => self.profile.completion_vectors.saturating_add(2),
            Interrupts::Pin => 0,
            Interrupts::None => return Ok(()),
        };
        let mut vectors = self.machine.alloc_vectors(wanted)?;
        if matches!(vectors, Vectors::Msix { count } if count < MESSAGES) {
            self.machine.free_vectors();
            vectors = self.machine.alloc_vectors(0)?;
        }
        if vectors == Vectors::Intx {
            self.attempt = Interrupts::Pin; // there is nothing else to try
        }
        let messages = match vectors {
            Vectors::Msix { count } => count,
            Vectors::Intx => 1,
        };
        self.placed()?.messages.store(messages, Ordering::Relaxed);
        self.vectors = Some(vectors);
        Ok(())
    }

    fn give_vectors(&mut self) {
        if self.vectors.take().is_some() {
            self.machine.free_vectors();
        }
    }

    fn begin_eqs(&mut self) -> Result {
        for which in Which::all(self.profile.completion_vectors) {
            match self.begin_eq(which) {
                Ok(ring) => {
                    if let Some(place) = self.eq_rings.get_mut(which.index()) {
                        *place = Some(ring);
                    }
                }
                Err(cause) => {
                    self.end_eqs();
                    return Err(cause);
                }
            }
        }
        Ok(())
    }

    fn begin_eq(&self, which: Which) -> Result<Ring> {
        let core = self.placed()?;
        let missing = OpenCause::Query(VerbsError::DeviceGone);
        let eq = core.eq(which).ok_or(missing)?;
        eq.begin();
        let bytes = u64::from(eq.entries()) * size_of::<hca_abi::infinihost::eqe::Eqe>() as u64;
        let mpt = core.plan.mpt.first.wrapping_add(which.index() as u32);
        let pieces = [Some((eq.ring(), bytes)), None];
        let ring = core.begin_ring(mpt, core.own_pd(), Access::LOCAL_WRITE, pieces)?;
        let mut context = EqContext::ZERO;
        context
            .set_owner(1)
            .set_translate(true)
            .set_log_size(eq.log_size())
            .set_intr(match self.vectors {
                Some(Vectors::Msix { .. }) => EqContext::MSIX + core.message_of(which) as u8,
                Some(Vectors::Intx) => core.limits.inta_pin,
                None if core.chip.is_mem_free() => 0, // it is never armed
                None => EqContext::NO_INTERRUPT,
            })
            .set_lkey(ring.key);
        let silent = self.attempt == Interrupts::None;
        match core.chip.mode {
            Mode::T => context
                .set_state(if silent {
                    EqState::FIRED
                } else {
                    EqState::ARMED
                })
                .set_uar_page(core.uar.index)
                .set_pd(core.own_pd()),
            Mode::M => context
                .set_state(if silent {
                    EqState::M_FIRED
                } else {
                    EqState::M_ARMED
                })
                .set_m_pd(core.own_pd()),
        };
        let eqn = eq.eqn;
        let context = &context;
        match core.command(&Sw2HwEq { eqn, context }) {
            Ok(_) => Ok(ring),
            Err(error) => {
                core.end_ring(ring);
                Err(error.into())
            }
        }
    }

    fn end_eqs(&mut self) {
        for which in Which::all(self.profile.completion_vectors) {
            let ring = self.eq_rings.get_mut(which.index());
            let Some(ring) = ring.and_then(Option::take) else {
                continue;
            };
            if let Some(core) = &self.core
                && let Some(eq) = core.eq(which)
            {
                if let Err(error) = core.command(&Hw2SwEq { eqn: eq.eqn }) {
                    log::warn!("{}: {error}", self.machine.name());
                }
                // Without its region the HCA writes no events, whatever it made of that.
                core.end_ring(ring);
            }
        }
    }

    fn bind(&mut self) -> Result {
        let Some(vectors) = self.vectors else {
            return Ok(());
        };
        let core: NonNull<Inner<'p, P>> = match &self.core {
            Some(core) => Placed::as_ptr(core),
            None => return Ok(()),
        };
        let count = match vectors {
            Vectors::Msix { count } => count,
            Vectors::Intx => 1,
        };
        let isrs = Table::new(self.machine, usize::from(count), |index| {
            let message = (vectors != Vectors::Intx).then_some(index as u16);
            Isr::new(core, message)
        })?;
        for (isr, vector) in isrs.iter().zip(0..) {
            // SAFETY: the table of handlers and the core stay where they are; `unbind` comes before either goes.
            if let Err(error) = unsafe { isr.bind(self.machine, vector) } {
                (0..vector).for_each(|vector| self.machine.unbind_interrupt(vector));
                return Err(error.into());
            }
        }
        self.isrs = Some(isrs);
        Ok(())
    }

    fn unbind(&mut self) {
        if let Some(isrs) = self.isrs.take() {
            (0..isrs.len() as u16).for_each(|vector| self.machine.unbind_interrupt(vector));
        }
    }

    fn routes(core: &Inner<'p, P>) -> [(Which, u64); 2] {
        let shared = if core.limits.has_srq {
            Which::SRQ_MASK
        } else {
            0
        };
        [
            (Which::Async, Which::Async.mask() | shared),
            (Which::Command, Which::Command.mask()),
        ]
    }

    fn route(&mut self) -> Result {
        let core = self.placed()?;
        for (routed, (which, mask)) in Self::routes(core).into_iter().enumerate() {
            let eqn = core.eq(which).map_or(0, |eq| eq.eqn);
            let unmap = false;
            if let Err(error) = core.command(&MapEq { eqn, mask, unmap }) {
                Self::end_routes(core, routed);
                return Err(error.into());
            }
        }
        Ok(())
    }

    fn unroute(&mut self) {
        if let Some(core) = &self.core {
            Self::end_routes(core, usize::MAX);
        }
    }

    /// Ends the first `count` routes.
    fn end_routes(core: &Inner<'p, P>, count: usize) {
        for (which, mask) in Self::routes(core).into_iter().take(count) {
            let eqn = core.eq(which).map_or(0, |eq| eq.eqn);
            let unmap = true;
            if let Err(error) = core.command(&MapEq { eqn, mask, unmap }) {
                log::warn!("{}: {error}", core.machine.name());
            }
        }
    }

    fn arm(&mut self) -> Result {
        let core = self.placed()?;
        if self.vectors.is_some() {
            core.interrupts.store(true, Ordering::Release);
            for which in core.all_eqs() {
                if let Some(eq) = core.eq(which) {
                    eq.finish(&core.eq_port(), true);
                }
            }
        }
        Ok(())
    }

    fn disarm(&mut self) {
        if let Some(core) = &self.core {
            core.interrupts.store(false, Ordering::Release);
        }
    }

    fn use_events(&mut self) -> Result {
        self.placed()?
            .cmd
            .complete_by_events(self.vectors.is_some());
        Ok(())
    }

    fn use_polling(&mut self) {
        if let Some(core) = &self.core {
            core.cmd.complete_by_events(false);
        }
    }

    /// The first command that completes by an event, and nothing but an interrupt will tell. infinihost 3.2.
    fn test(&mut self) -> Result {
        if self.vectors.is_none() {
            return Ok(());
        }
        let limit = self.profile.interrupt_test;
        match self.placed()?.cmd.attempt(&Nop {}, limit) {
            Ok(()) => Ok(()),
            Err(error) if error.cause == Cause::TimedOut => Err(OpenCause::NoInterrupt),
            Err(error) => match error.status() {
                Some(CmdStatus::RESOURCE_BUSY | CmdStatus::REG_BOUND) => {
                    Err(OpenCause::NoInterrupt)
                }
                _ => Err(error.into()),
            },
        }
    }
}
