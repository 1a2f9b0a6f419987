//! The state of a world and its rules: what is due, who runs, what time it is.
//!
//! All of it is behind one mutex (`Shared`), which nobody holds while driver code runs. Time is virtual or
//! the wall's; the rules are the same. In virtual time every context has a processor of its own: the points at which
//! driver code meets the machine (register accesses, locks, barriers, the clock) each cost it a little time, and it
//! runs on until something else is due earlier.

use super::clock::Clock;
use super::context::{Body, ContextId};
use super::host::Host;
use super::interrupt::HandlerRef;
use super::locks::{LockId, Locks};
use super::timeline::{Due, Timeline};
use super::trace::Trace;
use super::{
    Config, Delivery, HostId, Mode, OnReport, PciFunction, Report, ReportKind, SplitMix64,
    Statistics, TimerId, Wire, WireEnd,
};
use core::fmt;
use core::time::Duration;
use core_ib::Instant;
use core_ib::platform::Handled;
use std::collections::BTreeMap;

/// What a context waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waiting {
    Lock(LockId),
    Completion,
    Sleep,
    Unbind(u16),
    Interrupts,
    Task(ContextId),
    File,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Scheduled,
    Running,
    Waiting(Waiting),
    Finished,
    /// Its host was switched off.
    Dead,
}

/// A processor context, but for its stack.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) name: String,
    pub(super) host: HostId,
    pub(super) state: State,
    /// Counts how often it was scheduled, so that what was due for an earlier wait is not taken for this one.
    pub(super) ticket: u64,
    /// Locks held, without gates.
    pub(super) locks: Vec<LockId>,
    /// Gates entered.
    pub(super) gates: Vec<LockId>,
    /// Masking locks held or waited for.
    pub(super) masked: u32,
    pub(super) in_interrupt: bool,
    /// Soft interrupts within each other.
    pub(super) soft: u32,
    /// Takes interrupts while nothing else runs.
    pub(super) idle: bool,
    since: Instant,
    deadline: Instant,
    joiners: Vec<ContextId>,
}

/// What happens at a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Go on.
    Go,
    /// Go on after handling an interrupt.
    Strike,
    /// Give way, then go on.
    GiveWay,
}

/// What [`Engine::run_next`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// This context is to be resumed.
    Resume(ContextId),
    /// Something else was done.
    Done,
    /// Nothing is due.
    Nothing,
}

/// A completion.
#[derive(Debug, Default)]
pub(super) struct CompletionState {
    pub(super) fired: bool,
    pub(super) waiter: Option<ContextId>,
}

/// See the module.
pub(super) struct Engine {
    pub(super) config: Config,
    pub(super) clock: Clock,
    pub(super) now: Instant,
    /// Contexts do not run beyond this.
    pub(super) horizon: Instant,
    pub(super) timeline: Timeline,
    pub(super) dice: SplitMix64,
    pub(super) contexts: Vec<Context>,
    pub(super) newborn: Vec<(ContextId, Body)>,
    pub(super) hosts: Vec<Host>,
    pub(super) wire: Box<dyn Wire>,
    next_wire: Instant,
    pub(super) ends: BTreeMap<WireEnd, (HostId, u8)>,
    pub(super) locks: Locks,
    pub(super) completions: Vec<CompletionState>,
    pub(super) free_completions: Vec<usize>,
    pub(super) reports: Vec<Report>,
    pub(super) raised: Option<String>,
    pub(super) statistics: Statistics,
    pub(super) trace: Trace,
    /// When files and wakers were last looked at. Real time.
    pub(super) looked: Instant,
    /// Points since the wall clock was read.
    points: u32,
    /// Things done since time last moved.
    at_once: u32,
    /// What runs is not the context that is `Running`.
    inline: bool,
    pub(super) stopping: bool,
}

/// So many things at one instant are a loop.
const AT_ONCE: u32 = 10_000_000;
/// So many things are done for another thread before it may go on.
const AT_A_TIME: u32 = 64;
/// In real time, the clock is read, and others may run, once in so many points.
const POINTS: u32 = 32;
/// In real time, so much passes at most from one look at files and wakers to the next.
const LOOK: Duration = Duration::from_micros(500);

impl Engine {
    pub(super) fn new(config: Config, wire: Box<dyn Wire>) -> Self {
        let seed = config.seed;
        let ties = match config.mode {
            Mode::Virtual => Some(SplitMix64::named(seed, "ties")),
            Mode::RealTime => None,
        };
        Self {
            clock: Clock::new(config.mode),
            config,
            now: Instant(0),
            horizon: Instant(0),
            timeline: Timeline::new(ties),
            dice: SplitMix64::named(seed, "processors"),
            contexts: Vec::new(),
            newborn: Vec::new(),
            hosts: Vec::new(),
            wire,
            next_wire: Instant::NEVER,
            ends: BTreeMap::new(),
            locks: Locks::default(),
            completions: Vec::new(),
            free_completions: Vec::new(),
            reports: Vec::new(),
            raised: None,
            statistics: Statistics::default(),
            trace: Trace::new(),
            looked: Instant(0),
            points: 0,
            at_once: 0,
            inline: false,
            stopping: false,
        }
    }

    /// Below `limit`, in virtual time; zero in real time.
    fn chance(&mut self, limit: Duration) -> Duration {
        if self.config.mode == Mode::RealTime {
            return Duration::ZERO;
        }
        Duration::from_nanos(self.dice.below(limit.as_nanos() as u64 + 1))
    }

    /// When something is due.
    pub(super) fn earliest(&self) -> Instant {
        self.timeline.first().min(self.next_wire)
    }

    fn set_now(&mut self, at: Instant) {
        if at > self.now {
            self.now = at;
            self.at_once = 0;
        } else {
            self.at_once += 1;
            assert!(
                self.at_once < AT_ONCE,
                "{AT_ONCE} things happened at {:?}: something loops without taking time",
                self.now
            );
        }
    }

    /// Reads the wall clock, in real time.
    pub(super) fn refresh(&mut self) {
        if let Some(now) = self.clock.read()
            && now > self.now
        {
            self.set_now(now);
        }
    }

    /// Real time: is it time to look at files and wakers, however busy the world is?
    pub(super) fn looks_outside(&self) -> bool {
        self.now.since(self.looked) > LOOK
    }

    /// A point of context `me`.
    pub(super) fn step(&mut self, me: ContextId) -> Step {
        if self.stopping {
            return Step::Go; // what is still under way comes to its end
        }
        let state = self.context(me).map(|context| context.state);
        if state != Some(State::Running) {
            return Step::GiveWay; // switched off under its own feet
        }
        let at = match self.config.mode {
            Mode::Virtual => {
                let mean = self.config.step.as_nanos() as u64;
                let mut cost = mean / 2 + self.dice.below(mean + 1);
                if self.dice.hits(self.config.stalls) {
                    cost += self.dice.below(self.config.stall.as_nanos() as u64);
                }
                Instant(self.now.0 + cost)
            }
            Mode::RealTime => {
                self.points += 1;
                if self.points < POINTS {
                    return self.strike(me);
                }
                self.points = 0;
                self.refresh();
                if self.looks_outside() {
                    self.schedule(me, self.now);
                    return Step::GiveWay;
                }
                self.now
            }
        };
        // What is not a context is done here and now, and costs no switch.
        self.inline = true;
        while self.earliest() <= at && !self.context_is_next() && at <= self.horizon {
            self.run_next(at);
        }
        self.inline = false;
        if self.earliest() <= at || at > self.horizon {
            self.schedule(me, at);
            return Step::GiveWay;
        }
        self.set_now(at);
        self.strike(me)
    }

    /// Does what is due now, up to the first context that is: that is for its own thread. A bounded amount of it.
    pub(super) fn do_what_is_due(&mut self) {
        let until = self.now.min(self.horizon);
        self.aside(|engine| {
            for _ in 0..AT_A_TIME {
                if engine.earliest() > until || engine.context_is_next() {
                    break;
                }
                engine.run_next(until);
            }
        });
    }

    /// Does what no context of this world does.
    pub(super) fn aside<R>(&mut self, f: impl FnOnce(&mut Self) -> R) -> R {
        let inline = core::mem::replace(&mut self.inline, true);
        let result = f(self);
        self.inline = inline;
        result
    }

    fn context_is_next(&self) -> bool {
        self.timeline.first_is_context() && self.timeline.first() <= self.next_wire
    }

    /// Does an interrupt strike `me` now?
    pub(super) fn strike(&mut self, me: ContextId) -> Step {
        let Some(context) = self.contexts.get(me.0 as usize) else {
            return Step::Go;
        };
        if context.masked > 0 || context.in_interrupt || context.idle {
            return Step::Go;
        }
        let host = context.host;
        let due = self
            .host(host)
            .is_some_and(|host| host.interrupts.due() > 0);
        // In real time the idle context takes it, unless this one never lets it run.
        if due && (self.config.mode == Mode::RealTime || self.dice.below(4) == 0) {
            Step::Strike
        } else {
            Step::Go
        }
    }

    /// Starts a handler on top of `me`.
    pub(super) fn begin_interrupt(&mut self, me: ContextId) -> Option<(u16, HandlerRef)> {
        if self.stopping {
            return None;
        }
        let context = self.contexts.get(me.0 as usize)?;
        let (id, idle) = (context.host, context.idle);
        let due = self.host(id)?.interrupts.due();
        let choice = self.dice.below(due as u64) as usize;
        let started = self.host_mut(id)?.interrupts.begin(choice, me)?;
        self.context_mut(me)?.in_interrupt = true;
        self.statistics.interrupts += 1;
        self.statistics.strikes += u64::from(!idle);
        self.trace.note(b'i', self.now, id.0, u64::from(started.0));
        Some(started)
    }

    /// A handler has returned.
    pub(super) fn end_interrupt(&mut self, me: ContextId, vector: u16, handled: Handled) {
        let Some(context) = self.context_mut(me) else {
            return;
        };
        context.in_interrupt = false;
        let id = context.host;
        let Some(host) = self.host_mut(id) else {
            return;
        };
        let (waiters, nobody) = host.interrupts.end(vector, handled);
        for waiter in waiters {
            self.wake(waiter);
        }
        if nobody {
            let what = format_args!("the pin is asserted and nobody wants it; it is switched off");
            self.report(id, ReportKind::Interrupt, what);
        }
        self.interrupt_arrived(id);
    }

    /// Something may be due on a host: its idle context will look, if it is idle.
    pub(super) fn interrupt_arrived(&mut self, id: HostId) {
        let Some(host) = self.host(id) else {
            return;
        };
        if host.interrupts.due() == 0 {
            return;
        }
        let idle = host.idle.iter().copied();
        let free = idle.clone().find(|id| {
            let context = self.contexts.get(id.0 as usize);
            context.is_some_and(|context| context.state == State::Waiting(Waiting::Interrupts))
        });
        if let Some(free) = free {
            let latency = self.chance(self.config.interrupt_latency);
            let at = self.now.after(latency);
            self.schedule(free, at);
        }
    }

    pub(super) fn host(&self, id: HostId) -> Option<&Host> {
        self.hosts.get(id.0 as usize)
    }

    pub(super) fn host_mut(&mut self, id: HostId) -> Option<&mut Host> {
        self.hosts.get_mut(id.0 as usize)
    }

    pub(super) fn context(&self, id: ContextId) -> Option<&Context> {
        self.contexts.get(id.0 as usize)
    }

    pub(super) fn context_mut(&mut self, id: ContextId) -> Option<&mut Context> {
        self.contexts.get_mut(id.0 as usize)
    }

    /// `id` goes on at `at`, whatever it waits for.
    pub(super) fn schedule(&mut self, id: ContextId, at: Instant) {
        if let Some(context) = self.contexts.get_mut(id.0 as usize)
            && !matches!(context.state, State::Finished | State::Dead)
        {
            context.ticket += 1;
            context.state = State::Scheduled;
            let ticket = context.ticket;
            self.timeline.push(at, Due::Context { id, ticket });
        }
    }

    /// `id` waits for `what`, at most until `deadline`.
    pub(super) fn wait(&mut self, id: ContextId, what: Waiting, deadline: Instant) {
        let now = self.now;
        if let Some(context) = self.contexts.get_mut(id.0 as usize)
            && !matches!(context.state, State::Finished | State::Dead)
        {
            context.ticket += 1;
            context.state = State::Waiting(what);
            context.since = now;
            context.deadline = deadline;
            let ticket = context.ticket;
            if deadline != Instant::NEVER {
                self.timeline.push(deadline, Due::Context { id, ticket });
            }
        }
    }

    /// What `id` waits for has happened.
    pub(super) fn wake(&mut self, id: ContextId) {
        let context = self.contexts.get(id.0 as usize);
        if context.is_some_and(|context| matches!(context.state, State::Waiting(_))) {
            let latency = self.chance(self.config.step * 2);
            let at = self.now.after(latency);
            self.schedule(id, at);
        }
    }

    /// A new context, which starts as soon as may be.
    pub(super) fn spawn(
        &mut self,
        host: HostId,
        name: String,
        idle: bool,
        body: Body,
    ) -> ContextId {
        let id = ContextId(self.contexts.len() as u32);
        let dead = self.host(host).is_none_or(|host| !host.powered);
        self.contexts.push(Context {
            name,
            host,
            state: if dead { State::Dead } else { State::Scheduled },
            ticket: 0,
            locks: Vec::new(),
            gates: Vec::new(),
            masked: 0,
            in_interrupt: false,
            soft: 0,
            idle,
            since: self.now,
            deadline: Instant::NEVER,
            joiners: Vec::new(),
        });
        if !dead {
            self.newborn.push((id, body));
            let at = self.now;
            self.schedule(id, at);
        }
        id
    }

    /// `id` has run to its end.
    pub(super) fn finished(&mut self, id: ContextId, stack_used: usize) {
        self.statistics.stack_used = self.statistics.stack_used.max(stack_used);
        let budget = self.config.stack_budget;
        let Some(context) = self.context_mut(id) else {
            return;
        };
        context.state = State::Finished;
        let host = context.host;
        let name = context.name.clone();
        let held: Vec<LockId> = context
            .locks
            .drain(..)
            .chain(context.gates.drain(..))
            .collect();
        for joiner in core::mem::take(&mut context.joiners) {
            self.wake(joiner);
        }
        for lock in held {
            let title = self.locks.title(lock);
            let what = format_args!("context \"{name}\" ended with {title} held");
            self.report(host, ReportKind::NotHeld, what);
        }
        if let Some(budget) = budget
            && stack_used > budget
        {
            let what = format_args!(
                "context \"{name}\" used {stack_used} bytes of stack; its budget is {budget}"
            );
            self.report(host, ReportKind::Stack, what);
        }
    }

    /// `me` wants to be woken when `task` is done; false if it is, or never will be.
    pub(super) fn join(&mut self, task: ContextId, me: ContextId) -> bool {
        match self.context_mut(task) {
            Some(context) if !matches!(context.state, State::Finished | State::Dead) => {
                context.joiners.push(me);
                true
            }
            _ => false,
        }
    }

    /// Does the first thing that is due at or before `limit`, unless it is to resume a context.
    pub(super) fn run_next(&mut self, limit: Instant) -> Next {
        let first = self.timeline.first();
        if self.next_wire < first || (self.next_wire == first && first != Instant::NEVER) {
            if self.next_wire > limit {
                return Next::Nothing;
            }
            self.set_now(self.next_wire);
            if let Some(delivery) = self.wire.poll(self.now) {
                self.deliver(delivery);
            }
            self.wire_changed();
            return Next::Done;
        }
        if first > limit {
            return Next::Nothing;
        }
        let Some((at, due)) = self.timeline.pop() else {
            return Next::Nothing;
        };
        match due {
            Due::Context { id, ticket } => {
                let Some(context) = self.contexts.get_mut(id.0 as usize) else {
                    return Next::Done;
                };
                let expected = matches!(context.state, State::Scheduled | State::Waiting(_));
                if context.ticket != ticket || !expected {
                    return Next::Done;
                }
                context.state = State::Running;
                let host = context.host.0;
                self.set_now(at);
                self.trace.note(b'c', self.now, host, u64::from(id.0));
                self.statistics.switches += 1;
                return Next::Resume(id);
            }
            Due::Timer { host, id, ticket } => {
                let Some(machine) = self.hosts.get_mut(host.0 as usize) else {
                    return Next::Done;
                };
                if machine.timers.get(&id) != Some(&ticket) {
                    return Next::Done;
                }
                machine.timers.remove(&id);
                self.set_now(at);
                self.statistics.timers += 1;
                self.trace.note(b't', self.now, host.0, id.0);
                self.with_function(host, |function, bus| function.timer(bus, id));
            }
            Due::Posted { host } => {
                self.set_now(at);
                self.deliver_posted(host, Some(at));
            }
        }
        Next::Done
    }

    /// The wire was used: ask again when something happens on it.
    pub(super) fn wire_changed(&mut self) {
        self.next_wire = self.wire.next_event().unwrap_or(Instant::NEVER);
    }

    fn deliver(&mut self, delivery: Delivery) {
        let (Delivery::Packet { end, .. }
        | Delivery::Link { end, .. }
        | Delivery::Room { end, .. }) = delivery;
        let Some(&(host, port)) = self.ends.get(&end) else {
            return;
        };
        match delivery {
            Delivery::Packet { packet, .. } => {
                self.statistics.packets_received += 1;
                self.trace.note(b'r', self.now, host.0, u64::from(port));
                self.trace.bytes(&packet);
                self.with_function(host, |function, bus| function.receive(bus, port, &packet));
                self.wire.recycle(packet);
            }
            Delivery::Link { up, .. } => {
                self.trace
                    .note(b'l', self.now, host.0, u64::from(up.is_some()));
                self.with_function(host, |function, bus| function.link_changed(bus, port, up));
            }
            Delivery::Room { vl, .. } => {
                self.with_function(host, |function, bus| function.send_room(bus, port, vl));
            }
        }
    }

    /// Lets `f` at the function of a host; `None` if it is gone.
    pub(super) fn with_function<R>(
        &mut self,
        id: HostId,
        f: impl FnOnce(&mut dyn PciFunction, &mut dyn super::Bus) -> R,
    ) -> Option<R> {
        let mut function = self.host_mut(id)?.function.take()?;
        let mut bus = super::host::HostBus { engine: self, id };
        let result = f(&mut *function, &mut bus);
        if let Some(host) = self.host_mut(id)
            && host.present
        {
            host.function = Some(function);
        }
        Some(result)
    }

    /// Sets a timer of a host's function.
    pub(super) fn set_timer(&mut self, host: HostId, id: TimerId, at: Instant) {
        let at = if at < self.now { self.now } else { at };
        let Some(machine) = self.hosts.get_mut(host.0 as usize) else {
            return;
        };
        machine.tickets += 1;
        let ticket = machine.tickets;
        machine.timers.insert(id, ticket);
        if at != Instant::NEVER {
            self.timeline.push(at, Due::Timer { host, id, ticket });
        }
    }

    /// Notes an offence. With [`OnReport::Panic`], [`Shared::settle`] panics with it.
    pub(super) fn report(&mut self, host: HostId, kind: ReportKind, what: fmt::Arguments<'_>) {
        let running = self.contexts.iter();
        let mut running = running.filter(|context| context.state == State::Running && !self.inline);
        let report = Report {
            at: self.now,
            host: self
                .host(host)
                .map_or(String::new(), |host| host.name.clone()),
            context: running.next().map(|context| context.name.clone()),
            kind,
            text: what.to_string(),
        };
        log::warn!("{report}");
        if self.config.on_report == OnReport::Panic && self.raised.is_none() {
            self.raised = Some(report.to_string());
        }
        self.reports.push(report);
    }

    /// Context `me` does what may block. Tells if it must not, and says so.
    pub(super) fn may_block(&mut self, me: ContextId, what: &str) -> bool {
        let Some(context) = self.contexts.get(me.0 as usize) else {
            return false;
        };
        let host = context.host;
        if context.in_interrupt || context.soft > 0 {
            let kind = if context.in_interrupt { "an" } else { "a soft" };
            let what = format_args!("{kind} interrupt handler {what}");
            self.report(host, ReportKind::WaitInInterrupt, what);
            return false;
        }
        if let Some(&lock) = context.locks.last() {
            let title = self.locks.title(lock);
            let what = format_args!("{what} with {title} held");
            self.report(host, ReportKind::LockAcrossWait, what);
        }
        true
    }

    /// What every context that has not ended waits for, for people.
    pub(super) fn describe_waits(&self) -> String {
        let mut text = String::new();
        for context in &self.contexts {
            let waits = match context.state {
                State::Finished => continue,
                State::Dead => String::from("its host was switched off"),
                State::Scheduled => String::from("ready to run"),
                State::Running => String::from("runs"),
                State::Waiting(Waiting::Interrupts) => continue,
                State::Waiting(what) => self.describe_wait(context, what),
            };
            let host = self.host(context.host).map_or("", |host| &host.name);
            text += &format!("\n  {host}, \"{}\": {waits}", context.name);
        }
        text
    }

    fn describe_wait(&self, context: &Context, what: Waiting) -> String {
        let what = match what {
            Waiting::Lock(id) => match self.locks.get(id) {
                Some(lock) => {
                    let holder = match lock.holder {
                        Some(super::locks::Holder::Context(id)) => {
                            let holder = self.contexts.get(id.0 as usize);
                            holder.map_or(String::new(), |holder| {
                                format!(", held by \"{}\"", holder.name)
                            })
                        }
                        Some(super::locks::Holder::Outside) => {
                            String::from(", held outside of all contexts")
                        }
                        None => String::new(),
                    };
                    format!("waits for {}{holder}", lock.title())
                }
                None => String::from("waits for a lock that is gone"),
            },
            Waiting::Completion => String::from("waits for a completion"),
            Waiting::Sleep => String::from("sleeps"),
            Waiting::Unbind(vector) => format!("waits for the handler of vector {vector}"),
            Waiting::Interrupts => String::from("waits for interrupts"),
            Waiting::Task(id) => {
                let task = self.contexts.get(id.0 as usize);
                let name = task.map_or("", |task| &task.name);
                format!("waits for \"{name}\" to end")
            }
            Waiting::File => String::from("waits for a file"),
        };
        let since = self.now.since(context.since);
        let until = if context.deadline == Instant::NEVER {
            String::from("no deadline")
        } else {
            format!("until {:?}", Duration::from_nanos(context.deadline.0))
        };
        format!("{what} (for {since:?}, {until})")
    }
}
