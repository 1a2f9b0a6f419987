//! The command channel: the command register block (HCR), the commands in flight, their mailboxes. infinihost 3.1, 3.2.
//!
//! Before the command EQ works, a command holds the HCR until it is done and polls it. Afterwards it holds the HCR for
//! the moment of posting, and the EQE finds its slot by the token; several are in flight. A slot owns one pair of
//! mailboxes. When a command gets no answer within the limit the HCA is dead: no slot is used again, so that what the
//! firmware may still write to stays lent until the reset.

use super::{Cause, CmdError, Command};
use crate::health::{End, Health};
use crate::let_go::Released;
use crate::sync::{AtomicBool, AtomicU32};
use core::sync::atomic::Ordering;
use core::time::Duration;
use core_ib::platform::{
    Completion, DmaBuf, Gate, Lock, OutOfBounds, Platform, PlatformError, Registers, Table,
};
use hca_abi::infinihost::cmd::{CmdStatus, Opcode, TimeoutClass};
use hca_abi::infinihost::regs::{self, HcrControl};

/// Bytes of one mailbox.
const MAILBOX: usize = 4096;
/// Commands in flight at most: bits of a word.
const MAX_SLOTS: usize = 32;
/// How long the HCR may stay busy before a command can be posted behind an accepted one. infinihost 3.2.
const ACCEPT: Duration = Duration::from_secs(10);
/// How often a sleeper looks whether the HCA is still there.
const LOOK_AROUND: Duration = Duration::from_secs(1);
/// Longest pause between two looks at the HCR.
const LONGEST_PAUSE: Duration = Duration::from_millis(5);
/// The first pause is this part of the command's nominal limit.
const FIRST_PAUSE: u32 = 100;

/// What is written to the HCR.
#[derive(Clone, Copy, Debug)]
struct Request {
    opcode: Opcode,
    class: TimeoutClass,
    opcode_modifier: u8,
    input_modifier: u32,
    in_param: u64,
    out_param: u64,
}

/// What comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Answer {
    status: CmdStatus,
    immediate: u64,
}

/// What an interrupt handler shares with the context that waits.
#[derive(Debug)]
struct Pending {
    token: u16,
    awaited: bool,
    answer: Option<Answer>,
}

/// One command in flight.
struct Slot<P: Platform> {
    pending: Lock<Pending, P::RawLock>,
    done: P::Completion,
}

/// The way to the firmware.
pub struct Channel<'p, P: Platform> {
    machine: &'p P,
    /// BAR 0.
    dcs: P::Registers,
    health: Health,
    limit: Duration,
    by_events: AtomicBool,
    hcr: Gate<(), P::RawGate>,
    /// Bit n: slot n is free.
    free: AtomicU32,
    /// Who looks for a free slot.
    queue: Gate<(), P::RawGate>,
    freed: P::Completion,
    slots: Table<'p, Slot<P>, P>,
    /// Of each slot an input mailbox, then an output mailbox.
    boxes: DmaBuf<'p, P>,
    /// Completions that nobody waited for.
    strays: AtomicU32,
}

impl<'p, P: Platform> Channel<'p, P> {
    /// A channel through `dcs` (BAR 0) with at most `slots` (1 to 32) commands in flight, each of which may take
    /// `limit`. Tells the HCA nothing. Set-up only.
    pub fn new(
        machine: &'p P,
        dcs: P::Registers,
        slots: usize,
        limit: Duration,
    ) -> Result<Self, PlatformError> {
        let count = slots.clamp(1, MAX_SLOTS);
        let freed = machine.completion()?;
        let slots = Table::try_new(machine, count, |index| {
            let pending = Pending {
                token: index as u16,
                awaited: false,
                answer: None,
            };
            Ok::<_, PlatformError>(Slot {
                pending: machine.lock("command slot", true, pending),
                done: machine.completion()?,
            })
        })?;
        // Last, since nothing that fails may come after it.
        let boxes = DmaBuf::new(machine, count * 2 * MAILBOX, MAILBOX)?;
        Ok(Self {
            machine,
            dcs,
            health: Health::new(),
            limit,
            by_events: AtomicBool::new(false),
            hcr: machine.gate("HCR", ()),
            free: AtomicU32::new(u32::MAX >> (MAX_SLOTS - count)),
            queue: machine.gate("command slots", ()),
            freed,
            slots,
            boxes,
            strays: AtomicU32::new(0),
        })
    }

    /// BAR 0.
    pub const fn dcs(&self) -> &P::Registers {
        &self.dcs
    }

    /// The latch.
    pub const fn health(&self) -> &Health {
        &self.health
    }

    /// Completions that nobody waited for: late, repeated or made up.
    pub fn strays(&self) -> u32 {
        self.strays.load(Ordering::Relaxed)
    }

    /// The HCA takes at most `count` commands at a time. While no command is in flight.
    pub fn limit_in_flight(&self, count: u32) {
        let count = count.clamp(1, MAX_SLOTS as u32);
        let allowed = u32::MAX >> (MAX_SLOTS as u32 - count);
        self.free.fetch_and(allowed, Ordering::AcqRel);
    }

    /// From here on commands complete by events, or by polling again. While no command is in flight.
    pub fn complete_by_events(&self, yes: bool) {
        self.by_events.store(yes, Ordering::Release);
    }

    /// Ends the HCA's life for this driver and wakes every waiter. Any context.
    pub fn fail(&self, end: End) {
        self.health.latch(end);
        self.slots.iter().for_each(|slot| slot.done.fire());
        self.freed.fire();
    }

    /// Gives the mailboxes back. The proof: no command is in flight in a healthy HCA, or it was reset.
    pub fn free(self, released: &Released) {
        released.free(self.boxes);
    }

    /// Runs `command`; returns the output mailbox and the immediate result. Control context; blocks up to the
    /// profile's limit. `look` is called now and then while waiting, for what a lost interrupt did not tell.
    pub fn execute<C: Command>(
        &self,
        command: &C,
        look: &dyn Fn(),
    ) -> Result<(C::Output, u64), CmdError> {
        self.run(command, self.limit, Some(End::Failed), look)
    }

    /// Runs a command without mailboxes whose lateness is not the HCA's death: the interrupt test.
    pub fn attempt<C: Command<Input = (), Output = ()>>(
        &self,
        command: &C,
        limit: Duration,
    ) -> Result<(), CmdError> {
        self.run(command, limit, None, &|| ()).map(drop)
    }

    fn run<C: Command>(
        &self,
        command: &C,
        limit: Duration,
        overdue: Option<End>,
        look: &dyn Fn(),
    ) -> Result<(C::Output, u64), CmdError> {
        let fail = |cause| CmdError::of::<C>(cause, 0);
        let slot = self.enter().map_err(fail)?;
        let result = self.run_in(slot, command, limit, overdue, look);
        if self.health.is_alive() {
            self.leave(slot);
        }
        result
    }

    fn run_in<C: Command>(
        &self,
        index: usize,
        command: &C,
        limit: Duration,
        overdue: Option<End>,
        look: &dyn Fn(),
    ) -> Result<(C::Output, u64), CmdError> {
        let fail = |cause| CmdError::of::<C>(cause, 0);
        let slot = self.slots.get(index).ok_or(fail(Cause::Mailbox))?;
        let small = |_: OutOfBounds| fail(Cause::Mailbox);
        let request = self.request(index, command).map_err(small)?;
        let answer = if self.by_events.load(Ordering::Acquire) {
            self.await_event(index, slot, &request, limit, overdue, look)
        } else {
            self.poll(&request, limit)
        };
        let answer = answer.map_err(fail)?;
        if answer.status != CmdStatus::OK {
            let refused = Cause::Refused(answer.status);
            return Err(CmdError::of::<C>(refused, answer.immediate));
        }
        self.machine.dma_rmb();
        let output = self.boxes.read(input_offset(index) + MAILBOX);
        let output = output.map_err(small)?;
        Ok((output, answer.immediate))
    }

    /// Fills the input mailbox and says what to write to the HCR.
    fn request<C: Command>(&self, slot: usize, command: &C) -> Result<Request, OutOfBounds> {
        let offset = input_offset(slot);
        let bus = self.boxes.addr().plus(offset as u64);
        let (len, size) = (size_of::<C::Input>().max(size_of::<C::Output>()), MAILBOX);
        if len > size {
            return Err(OutOfBounds { offset, len, size });
        }
        let in_param = if size_of::<C::Input>() == 0 {
            command.immediate()
        } else {
            self.boxes.write(offset, command.input())?;
            bus.get()
        };
        let out_param = if size_of::<C::Output>() == 0 {
            0
        } else {
            // Nothing of an earlier command shines through where the firmware writes less than the layout.
            self.boxes
                .fill(offset + MAILBOX, size_of::<C::Output>(), 0)?;
            bus.plus(MAILBOX as u64).get()
        };
        Ok(Request {
            opcode: C::OPCODE,
            class: C::CLASS,
            opcode_modifier: command.opcode_modifier(),
            input_modifier: command.input_modifier(),
            in_param,
            out_param,
        })
    }

    fn cause_of_death(&self) -> Option<Cause> {
        self.health.end().map(|end| match end {
            End::Failed => Cause::Dead,
            End::Gone => Cause::Gone,
        })
    }

    /// Waits for a free slot and takes it.
    fn enter(&self) -> Result<usize, Cause> {
        self.queue.with(|()| {
            loop {
                if let Some(cause) = self.cause_of_death() {
                    return Err(cause);
                }
                let free = self.free.load(Ordering::Acquire);
                let bit = free & free.wrapping_neg();
                if bit != 0 {
                    self.free.fetch_and(!bit, Ordering::AcqRel);
                    return Ok(bit.trailing_zeros() as usize);
                }
                self.freed.wait_until(self.machine.now().after(LOOK_AROUND));
            }
        })
    }

    fn leave(&self, slot: usize) {
        self.free.fetch_or(1 << slot, Ordering::AcqRel);
        self.freed.fire();
    }

    /// Reads the last dword of the HCR. All ones is a device that is gone.
    fn control(&self) -> Result<HcrControl, Cause> {
        let dword = self.dcs.read_be32(regs::HCR_CONTROL);
        if dword == u32::MAX {
            self.fail(End::Gone);
            return Err(Cause::Gone);
        }
        Ok(HcrControl::decode(dword))
    }

    /// Waits until the HCR belongs to software. Inside the `hcr` gate.
    fn wait_for_hcr(&self, class: TimeoutClass, limit: Duration) -> Result<HcrControl, Cause> {
        let deadline = self.machine.now().after(limit);
        let nominal = Duration::from_millis(class.milliseconds().into());
        let mut pause = (nominal / FIRST_PAUSE).min(LONGEST_PAUSE);
        loop {
            let control = self.control()?;
            if !control.go {
                return Ok(control);
            }
            if let Some(cause) = self.cause_of_death() {
                return Err(cause);
            }
            if self.machine.now() >= deadline {
                self.fail(End::Failed);
                return Err(Cause::TimedOut);
            }
            self.machine.sleep(pause);
            pause = pause.saturating_mul(2).min(LONGEST_PAUSE);
        }
    }

    /// Writes the HCR, the dword that hands it over last. Inside the `hcr` gate, and the HCR is ours.
    fn post(&self, request: &Request, token: u16, event: bool) {
        let [in_high, in_low] = halves(request.in_param);
        let [out_high, out_low] = halves(request.out_param);
        let control = HcrControl::post(request.opcode, request.opcode_modifier, event);
        self.machine.dma_wmb();
        let dcs = &self.dcs;
        dcs.write_be32(regs::HCR_IN_PARAM_HIGH, in_high);
        dcs.write_be32(regs::HCR_IN_PARAM_LOW, in_low);
        dcs.write_be32(regs::HCR_INPUT_MODIFIER, request.input_modifier);
        dcs.write_be32(regs::HCR_OUT_PARAM_HIGH, out_high);
        dcs.write_be32(regs::HCR_OUT_PARAM_LOW, out_low);
        dcs.write_be32(regs::HCR_TOKEN, regs::token_dword(token));
        dcs.write_be32(regs::HCR_CONTROL, control.encode());
    }

    fn poll(&self, request: &Request, limit: Duration) -> Result<Answer, Cause> {
        self.hcr.with(|()| {
            self.wait_for_hcr(TimeoutClass::A, ACCEPT)?;
            self.post(request, POLLED, false);
            let done = self.wait_for_hcr(request.class, limit)?;
            let high = self.dcs.read_be32(regs::HCR_OUT_PARAM_HIGH);
            let low = self.dcs.read_be32(regs::HCR_OUT_PARAM_LOW);
            Ok(Answer {
                status: done.status,
                immediate: u64::from(high) << 32 | u64::from(low),
            })
        })
    }

    fn await_event(
        &self,
        index: usize,
        slot: &Slot<P>,
        request: &Request,
        limit: Duration,
        overdue: Option<End>,
        look: &dyn Fn(),
    ) -> Result<Answer, Cause> {
        let step = self.slots.len().next_power_of_two() as u16;
        let token = slot.pending.with(|pending| {
            pending.token = pending.token.wrapping_add(step);
            pending.awaited = true;
            pending.answer = None;
            pending.token
        });
        debug_assert_eq!(usize::from(token & step.wrapping_sub(1)), index);
        self.hcr.with(|()| {
            self.wait_for_hcr(TimeoutClass::A, ACCEPT)?;
            self.post(request, token, true);
            Ok(())
        })?;
        let deadline = self.machine.now().after(limit);
        loop {
            let until = deadline.min(self.machine.now().after(LOOK_AROUND));
            let fired = slot.done.wait_until(until);
            if let Some(answer) = slot.pending.with(|pending| pending.answer.take()) {
                return Ok(answer);
            }
            if let Some(cause) = self.cause_of_death() {
                return Err(cause);
            }
            if !fired {
                self.control()?;
                look();
                if let Some(answer) = slot.pending.with(|pending| pending.answer.take()) {
                    return Ok(answer);
                }
            }
            if self.machine.now() >= deadline {
                // Once it is not awaited any more an answer is a stray: one that came until now is the answer.
                let last = slot.pending.with(|pending| {
                    pending.awaited = false;
                    pending.answer.take()
                });
                if let Some(answer) = last {
                    return Ok(answer);
                }
                if let Some(end) = overdue {
                    self.fail(end);
                }
                return Err(Cause::TimedOut);
            }
        }
    }

    /// Notes a command completion event. Interrupt context. One that nobody waits for is counted.
    pub fn complete(&self, token: u16, status: CmdStatus, immediate: u64) {
        let mask = self.slots.len().next_power_of_two().wrapping_sub(1);
        let slot = self.slots.get(usize::from(token) & mask);
        let answer = Answer { status, immediate };
        let taken = slot.is_some_and(|slot| {
            slot.pending.with(|pending| {
                let ours = pending.awaited && pending.token == token;
                if ours {
                    pending.awaited = false;
                    pending.answer = Some(answer);
                }
                ours
            })
        });
        match slot {
            Some(slot) if taken => slot.done.fire(),
            _ => {
                self.strays.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// Token of a command whose completion is polled for.
const POLLED: u16 = 0xffff;

const fn halves(value: u64) -> [u32; 2] {
    [(value >> 32) as u32, value as u32]
}

/// Where the input mailbox of a slot begins; the output mailbox follows it.
const fn input_offset(slot: usize) -> usize {
    slot * 2 * MAILBOX
}
