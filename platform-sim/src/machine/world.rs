//! A world: machines, what they are plugged into, and the contexts that run on them, under one clock.

use super::clock::Waker;
use super::context::{Body, ContextId, Fiber, Progress};
use super::engine::{Engine, Next, State, Waiting};
use super::host::{Guest, Host, HostId};
use super::interrupt::Interrupts;
use super::platform::{SimPlatform, Task, task_body};
use super::shared::Shared;
use super::trace::Listener;
use super::{
    Bus, Config, LinkControl, Mode, PciFunction, Report, ReportKind, Statistics, Wire, WireEnd,
};
use core::fmt;
use core::panic::AssertUnwindSafe;
use core::time::Duration;
use core_ib::Instant;
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Why a run came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// What it ran for is so.
    Done,
    /// The clock reached the limit.
    Limit,
    /// Nothing will ever happen again, unless from outside.
    Idle,
}

/// A task will not end, or not in time. Its `Display` says what every context waits for.
#[derive(Debug)]
pub struct Stuck {
    /// What was waited for.
    pub task: String,
    /// [`Outcome::Idle`] is a deadlock; [`Outcome::Limit`] took too long; [`Outcome::Done`]: it was switched off, or
    /// panicked.
    pub outcome: Outcome,
    waits: String,
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { task, waits, .. } = self;
        let what = match self.outcome {
            Outcome::Done => "ended without a result",
            Outcome::Limit => "took too long",
            Outcome::Idle => "waits for what will never happen: nothing is due any more",
        };
        write!(f, "\"{task}\" {what}{waits}")
    }
}

impl std::error::Error for Stuck {}

/// See the module.
///
/// ```
/// use core::time::Duration;
/// use core_ib::platform::{Caching, Platform, Registers};
/// use platform_sim::machine::{Exerciser, Nowhere, World};
///
/// let mut world = World::new(1, Nowhere);
/// let host = world.add_host("host-a", Box::new(Exerciser::new()), &[]);
/// let task = world.spawn(host, "driver", |machine| {
///     let registers = machine.map(0, 0, 64, Caching::Uncached)?;
///     registers.write_be32(0, 7);
///     machine.sleep(Duration::from_secs(3600));
///     Ok::<u32, core_ib::platform::PlatformError>(registers.read_be32(0))
/// });
/// assert_eq!(world.run_for(Duration::from_secs(1)), platform_sim::machine::Outcome::Limit);
/// let patient = Duration::from_secs(7200);
/// assert_eq!(world.finish_within(task, patient).unwrap(), Ok(7));
/// ```
///
/// A world that has run, or whose devices were used, stays on its thread; until then it can be sent anywhere. What
/// any context may call of a completion, any thread may.
pub struct World {
    shared: Arc<Shared>,
    fibers: BTreeMap<ContextId, Fiber>,
    on_wake: Vec<Box<dyn FnMut() + Send>>,
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("World");
        debug.field("now", &self.now());
        debug.finish_non_exhaustive()
    }
}

impl World {
    /// A world in virtual time with this seed, and all else by default.
    pub fn new(seed: u64, wire: impl Wire) -> Self {
        let config = Config {
            seed,
            ..Config::default()
        };
        Self::with(config, wire)
    }

    /// A world of this kind.
    ///
    /// # Panics
    ///
    /// In real time, if the operating system has no more files.
    pub fn with(config: Config, wire: impl Wire) -> Self {
        static WORLDS: AtomicU64 = AtomicU64::new(0);
        let number = WORLDS.fetch_add(1, Ordering::Relaxed);
        let waker = Waker::new(config.mode).unwrap_or_else(|error| {
            panic!("the system cannot wait for files: {error}");
        });
        let engine = Engine::new(config, Box::new(wire));
        Self {
            shared: Arc::new(Shared::new(number, engine, waker)),
            fibers: BTreeMap::new(),
            on_wake: Vec::new(),
        }
    }

    /// A machine called `name` with `function` in it, whose ports are plugged in at `ends`, port 1 first. The
    /// function is reset, its BARs placed, memory and bus mastering on.
    pub fn add_host(
        &mut self,
        name: &str,
        function: Box<dyn PciFunction>,
        ends: &[WireEnd],
    ) -> HostId {
        let id = self.add(name, function, None, ends);
        self.shared.with(|engine| engine.enumerate(id));
        self.start_idle(id);
        id
    }

    /// Starts the contexts that take interrupts.
    fn start_idle(&mut self, id: HostId) {
        // Two, so that handlers of two vectors run beside each other.
        for number in 0..2 {
            let shared = self.shared.clone();
            let body = Body::new(Box::new(move || shared.idle()));
            let name = format!("idle {number}");
            self.shared.with(|engine| {
                let context = engine.spawn(id, name, true, body);
                if let Some(host) = engine.host_mut(id) {
                    host.idle.push(context);
                }
            });
        }
    }

    /// A machine of another world, which reaches `function` by way of [`World::remote`].
    pub fn add_guest(
        &mut self,
        name: &str,
        function: Box<dyn PciFunction>,
        guest: Box<dyn Guest>,
        ends: &[WireEnd],
    ) -> HostId {
        self.add(name, function, Some(guest), ends)
    }

    fn add(
        &mut self,
        name: &str,
        function: Box<dyn PciFunction>,
        guest: Option<Box<dyn Guest>>,
        ends: &[WireEnd],
    ) -> HostId {
        self.shared.with(|engine| {
            let id = HostId(engine.hosts.len() as u32);
            let seed = engine.config.seed;
            let host = Host::new(name, id, seed, function, guest, ends);
            engine.hosts.push(host);
            for (port, end) in (1..).zip(ends) {
                let before = engine.ends.insert(*end, (id, port));
                assert!(before.is_none(), "{end:?} is plugged in twice");
            }
            engine.refresh();
            engine.with_function(id, |function, bus| function.reset(bus));
            id
        })
    }

    /// The machine as a driver sees it.
    pub fn platform(&self, host: HostId) -> SimPlatform {
        let name = self.shared.with(|engine| {
            let host = engine.host(host);
            host.map_or(String::new(), |host| host.name.clone())
        });
        SimPlatform {
            shared: self.shared.clone(),
            host,
            name: name.into(),
        }
    }

    /// A context that runs `f` on a processor of `host`.
    pub fn spawn<T: Send + 'static>(
        &mut self,
        host: HostId,
        name: impl Into<String>,
        f: impl FnOnce(&SimPlatform) -> T + Send + 'static,
    ) -> Task<T> {
        let platform = self.platform(host);
        let (mut task, body) = task_body(platform, f);
        let name = name.into();
        task.id = self.shared.with(|engine| {
            engine.refresh();
            engine.spawn(host, name, false, Body::new(Box::new(body)))
        });
        task
    }

    /// Runs until the clock reaches `until`.
    pub fn run_until(&mut self, until: Instant) -> Outcome {
        self.run(until, |_| false)
    }

    /// Runs for `wait`.
    pub fn run_for(&mut self, wait: Duration) -> Outcome {
        let until = self.now().after(wait);
        self.run_until(until)
    }

    /// Runs until nothing is due any more, or for `at_most`.
    pub fn run_until_idle(&mut self, at_most: Duration) -> Outcome {
        let until = self.now().after(at_most);
        self.run_inner(until, true, |_| false)
    }

    /// Runs as long as `on` says so (asked before each thing that is done), or for `at_most`.
    pub fn run_while(&mut self, at_most: Duration, mut on: impl FnMut() -> bool) -> Outcome {
        let until = self.now().after(at_most);
        self.run(until, |_| !on())
    }

    /// Runs until `task` has ended, and gives what it gave.
    pub fn finish<T>(&mut self, task: Task<T>) -> Result<T, Stuck> {
        let patience = self.shared.with(|engine| engine.config.patience);
        self.finish_within(task, patience)
    }

    /// Runs until `task` has ended, or for `at_most`.
    pub fn finish_within<T>(&mut self, task: Task<T>, at_most: Duration) -> Result<T, Stuck> {
        let (id, until) = (task.id, self.now().after(at_most));
        let outcome = self.run_inner(until, true, |engine| {
            let state = engine.context(id).map(|context| context.state);
            matches!(state, Some(State::Finished | State::Dead) | None)
        });
        let result = if outcome == Outcome::Done {
            task.take()
        } else {
            None
        };
        result.ok_or_else(|| self.stuck(id, outcome))
    }

    fn stuck(&self, id: ContextId, outcome: Outcome) -> Stuck {
        self.shared.with(|engine| Stuck {
            task: engine
                .context(id)
                .map_or(String::new(), |context| context.name.clone()),
            outcome,
            waits: engine.describe_waits(),
        })
    }

    fn run(&mut self, until: Instant, done: impl FnMut(&Engine) -> bool) -> Outcome {
        self.run_inner(until, false, done)
    }

    /// Runs. `idle_ends`: come back when nothing is due, rather than at `until`.
    fn run_inner(
        &mut self,
        until: Instant,
        idle_ends: bool,
        mut done: impl FnMut(&Engine) -> bool,
    ) -> Outcome {
        self.shared.stay_home();
        let real = self.shared.with(|engine| {
            engine.horizon = until;
            engine.config.mode == Mode::RealTime
        });
        loop {
            let (over, next, earliest) = self.shared.with(|engine| {
                let over = done(engine);
                if over {
                    return (true, Next::Nothing, Instant(0));
                }
                engine.refresh();
                let limit = if real { engine.now.min(until) } else { until };
                let next = engine.run_next(limit);
                let earliest = engine.earliest();
                let passes = earliest != Instant::NEVER || !idle_ends;
                if next == Next::Nothing && !real && passes && until != Instant::NEVER {
                    engine.now = until;
                }
                (false, next, earliest)
            });
            if over {
                return Outcome::Done;
            }
            match next {
                Next::Resume(id) => self.resume(id),
                Next::Done => {}
                Next::Nothing if !real => {
                    return match earliest {
                        Instant::NEVER => Outcome::Idle,
                        _ => Outcome::Limit,
                    };
                }
                Next::Nothing => {
                    if self.now() >= until {
                        return Outcome::Limit;
                    }
                    self.look_outside(Some(earliest.min(until)));
                    continue;
                }
            }
            if real && self.shared.with(|engine| engine.looks_outside()) {
                self.look_outside(None);
            }
        }
    }

    /// Real time: sleeps until `until` (`None`: not at all), or until something comes from outside.
    fn look_outside(&mut self, until: Option<Instant>) {
        let wait = match until {
            None => Some(Duration::ZERO),
            Some(Instant::NEVER) => None,
            Some(until) => Some(until.since(self.now())),
        };
        if wait != Some(Duration::ZERO) {
            self.shared.with(|engine| engine.statistics.sleeps += 1);
        }
        let ready = self.shared.waker.sleep(wait).unwrap_or_else(|error| {
            panic!("the system cannot wait for files: {error}");
        });
        self.shared.with(|engine| {
            engine.refresh();
            engine.looked = engine.now;
            for id in ready {
                let context = engine.context(id);
                if context.is_some_and(|context| context.state == State::Waiting(Waiting::File)) {
                    engine.wake(id);
                }
            }
        });
        if self.shared.waker.take_woken() {
            self.on_wake.iter_mut().for_each(|source| source());
        }
    }

    /// Makes fibers of new contexts, and forgets those that were switched off.
    fn adopt(&mut self) {
        let (newborn, stack) = self.shared.with(|engine| {
            let newborn = core::mem::take(&mut engine.newborn);
            (newborn, engine.config.stack)
        });
        for (id, body) in newborn {
            let fiber = Fiber::new(stack, body).unwrap_or_else(|error| {
                panic!("no memory for the stack of a context: {error}");
            });
            self.fibers.insert(id, fiber);
        }
    }

    fn resume(&mut self, id: ContextId) {
        if !self.fibers.contains_key(&id) {
            self.adopt();
        }
        let Some(fiber) = self.fibers.get_mut(&id) else {
            return;
        };
        let world = self.shared.world;
        let progress = std::panic::catch_unwind(AssertUnwindSafe(|| fiber.resume(world, id)));
        if let Ok(Progress::Suspended) = progress {
            return;
        }
        let used = fiber.stack_used();
        self.fibers.remove(&id);
        if let Err(panic) = progress {
            let whose = self.shared.with(|engine| {
                let context = engine.context(id)?;
                let host = engine.host(context.host)?;
                Some(format!("{}, \"{}\"", host.name, context.name))
            });
            eprintln!("the panic was in a context: {}", whose.unwrap_or_default());
            self.shared.with(|engine| {
                if let Some(context) = engine.context_mut(id) {
                    context.state = State::Dead;
                }
            });
            std::panic::resume_unwind(panic);
        }
        self.shared.with(|engine| engine.finished(id, used));
    }

    /// The clock.
    pub fn now(&self) -> Instant {
        self.shared.with(|engine| {
            engine.refresh();
            engine.now
        })
    }

    /// A number that two runs share if they did the same things at the same times.
    pub fn fingerprint(&self) -> u64 {
        self.shared.with(|engine| engine.trace.hash())
    }

    /// What was done so far.
    pub fn statistics(&self) -> Statistics {
        let mut statistics = self.shared.with(|engine| engine.statistics);
        let used = self.fibers.values().map(Fiber::stack_used).max();
        statistics.stack_used = statistics.stack_used.max(used.unwrap_or(0));
        statistics
    }

    /// Offences so far, which are forgotten.
    pub fn take_reports(&mut self) -> Vec<Report> {
        self.shared
            .with(|engine| core::mem::take(&mut engine.reports))
    }

    /// Reports what has not been given back on `host`: DMA memory, mappings, memory for tables. For the end of a
    /// test, when a driver is closed. (At the end of a world it only goes to the log.)
    pub fn check_leaks(&mut self, host: HostId) {
        self.shared.with(|engine| {
            if let Some(what) = engine.leaks(host) {
                engine.report(host, ReportKind::Leak, format_args!("{what}"));
            }
        });
    }

    /// Lets `listener` read what functions say of themselves.
    pub fn listen(&mut self, listener: Listener) {
        self.shared
            .with(|engine| engine.trace.listener = Some(listener));
    }

    /// What ends this world's sleep, from any thread.
    pub fn waker(&self) -> Waker {
        self.shared.waker.clone()
    }

    /// `source` is called on this thread whenever a [`Waker`] was used. It may fire completions, which contexts wait
    /// for.
    pub fn on_wake(&mut self, source: impl FnMut() + Send + 'static) {
        self.on_wake.push(Box::new(source));
    }

    /// Lets `f` at the wire, if it is a `W`: to break a link, to look at counters.
    pub fn with_wire<W: Wire, R>(&mut self, f: impl FnOnce(&mut W, Instant) -> R) -> Option<R> {
        self.shared.with(|engine| {
            engine.refresh();
            let now = engine.now;
            let wire: &mut dyn Any = &mut *engine.wire;
            let result = f(wire.downcast_mut()?, now);
            engine.wire_changed();
            Some(result)
        })
    }

    /// Lets `f` at the function of `host`, whatever it is; `None` if it is gone.
    pub fn with_function<R>(
        &mut self,
        host: HostId,
        f: impl FnOnce(&mut dyn PciFunction, &mut dyn Bus) -> R,
    ) -> Option<R> {
        self.shared.stay_home();
        self.shared.with(|engine| {
            engine.refresh();
            engine.with_function(host, f)
        })
    }

    /// Lets `f` at the function of `host`, if it is an `F`.
    pub fn with_model<F: PciFunction, R>(
        &mut self,
        host: HostId,
        f: impl FnOnce(&mut F, &mut dyn Bus) -> R,
    ) -> Option<R> {
        let result = self.with_function(host, |function, bus| {
            let function: &mut dyn Any = function;
            function.downcast_mut().map(|model| f(model, bus))
        });
        result.flatten()
    }

    /// A way to the function of a guest's host, from any thread.
    ///
    /// # Panics
    ///
    /// If `host` is a machine of this world: only its own contexts may use its function.
    pub fn remote(&self, host: HostId) -> Remote {
        let guest = self.shared.with(|engine| {
            let host = engine.host(host);
            host.is_some_and(Host::is_guest)
        });
        assert!(guest, "only guests are reached from other threads");
        Remote {
            shared: self.shared.clone(),
            host,
        }
    }

    /// Gives `host` at most `messages` MSI-X messages from now on; with 0 it has the pin alone.
    pub fn limit_messages(&mut self, host: HostId, messages: u16) {
        self.shared.with(|engine| {
            if let Some(host) = engine.host_mut(host) {
                host.message_limit = messages;
            }
        });
    }

    /// Takes the function out of the running machine: from now on it reads as all ones.
    pub fn remove_function(&mut self, host: HostId) -> Option<Box<dyn PciFunction>> {
        self.shared.with(|engine| engine.remove_function(host))
    }

    /// Puts a function in, as [`World::add_host`] did.
    pub fn insert_function(&mut self, host: HostId, function: Box<dyn PciFunction>) {
        self.shared.stay_home();
        self.shared.with(|engine| {
            let Some(machine) = engine.host_mut(host) else {
                return;
            };
            machine.function = Some(function);
            machine.present = true;
            let guest = machine.is_guest();
            engine.with_function(host, |function, bus| function.reset(bus));
            if !guest {
                engine.enumerate(host);
            }
        });
    }

    /// Switches a machine off: its contexts stop where they are, its function is gone. Nothing of what ran on it ever
    /// runs again; [`World::power_on`] gives back an empty machine.
    pub fn power_off(&mut self, host: HostId) {
        let dead = self.shared.with(|engine| {
            engine.remove_function(host);
            if let Some(machine) = engine.host_mut(host) {
                machine.powered = false;
                machine.interrupts = Interrupts::new();
            }
            let contexts = engine.contexts.iter_mut().enumerate();
            let here = contexts.filter(|(_, context)| context.host == host);
            let running = here.filter(|(_, context)| context.state != State::Finished);
            let dead: Vec<ContextId> = running
                .map(|(index, context)| {
                    context.state = State::Dead;
                    ContextId(index as u32)
                })
                .collect();
            dead
        });
        for id in dead {
            self.fibers.remove(&id);
        }
    }

    /// Switches a machine on that was switched off, with `function` in it: its memory is empty, nothing is bound,
    /// nothing runs. Its ports are where they were. A machine that is on, or a guest, is switched off first.
    pub fn power_on(&mut self, host: HostId, function: Box<dyn PciFunction>) {
        self.power_off(host);
        let guest = self.shared.with(|engine| {
            let machine = engine.host_mut(host)?;
            machine.boot();
            Some(machine.is_guest())
        });
        self.insert_function(host, function);
        if guest == Some(false) {
            self.start_idle(host);
        }
    }
}

impl Engine {
    /// What has not been given back on `host`.
    fn leaks(&self, host: HostId) -> Option<String> {
        let machine = self.host(host)?;
        let memory = machine.memory.outstanding();
        let memory = memory.map(|(number, len, mapped)| {
            let kind = if mapped { "mapping" } else { "DMA memory" };
            format!("{kind} #{number} ({len} bytes)")
        });
        let tables = machine.tables.values();
        let tables = tables.map(|layout| format!("a table of {} bytes", layout.size()));
        let all: Vec<String> = memory.chain(tables).collect();
        (!all.is_empty()).then(|| format!("never given back: {}", all.join(", ")))
    }

    /// Logs leaks of machines on which everything has come to its end.
    fn log_leaks(&self) {
        for (index, machine) in (0..).zip(&self.hosts) {
            let id = HostId(index);
            let mut here = self.contexts.iter().filter(|context| context.host == id);
            let ended = here.all(|context| context.idle || context.state == State::Finished);
            if let Some(leaks) = self.leaks(id).filter(|_| ended && machine.powered) {
                log::warn!("{}: {leaks}", machine.name);
            }
        }
    }

    fn remove_function(&mut self, id: HostId) -> Option<Box<dyn PciFunction>> {
        let now = self.now;
        let host = self.host_mut(id)?;
        let function = host.function.take();
        host.present = false;
        host.timers.clear();
        host.interrupts.set_line(false);
        for end in host.plugs.clone() {
            self.wire.set_link(end, LinkControl::Disabled, now);
        }
        self.wire_changed();
        function
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        // Idle contexts are ours to end; then the memory of their machines goes with the last platform.
        let idle: Vec<ContextId> = self.shared.with(|engine| {
            engine.log_leaks();
            engine.stopping = true;
            let hosts = engine.hosts.iter();
            let idle: Vec<ContextId> = hosts.flat_map(|host| host.idle.iter().copied()).collect();
            // Those that wait, and those that an interrupt was about to wake, or that gave way while they handled one.
            let ends = |id: &ContextId| {
                engine.context(*id).is_some_and(|context| {
                    matches!(
                        context.state,
                        State::Waiting(Waiting::Interrupts) | State::Scheduled
                    )
                })
            };
            idle.into_iter().filter(ends).collect()
        });
        for id in idle {
            let ended = self.fibers.get_mut(&id).is_none_or(|fiber| {
                fiber.is_home() && fiber.resume(self.shared.world, id) == Progress::Finished
            });
            if ended {
                self.fibers.remove(&id);
            }
        }
        // Contexts that have not ended keep their platform, and so all of this, for ever.
        let parts = self.shared.with(|engine| {
            engine.horizon = Instant(0);
            let mut functions = Vec::new();
            for host in &mut engine.hosts {
                host.present = false;
                functions.extend(host.function.take());
                host.memory.forget_contents();
            }
            let nothing: Box<dyn Wire> = Box::new(super::wire::Nowhere);
            let wire = core::mem::replace(&mut engine.wire, nothing);
            (functions, wire, core::mem::take(&mut engine.newborn))
        });
        drop(parts);
    }
}

/// The function of a guest's host, from any thread.
#[derive(Clone)]
pub struct Remote {
    shared: Arc<Shared>,
    host: HostId,
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Remote").field(&self.host).finish()
    }
}

impl Remote {
    /// Lets `f` at the function, at the present instant; `None` if it is gone. Waits for whatever the world does at
    /// the moment, which is never long. What is due on the wire and by timers is done on this thread, so that a packet
    /// does not wait until another one has woken up; contexts run on their own.
    pub fn with_function<R>(
        &self,
        f: impl FnOnce(&mut dyn PciFunction, &mut dyn Bus) -> R,
    ) -> Option<R> {
        let (result, sooner) = self.shared.with(|engine| {
            engine.refresh();
            let before = engine.earliest();
            engine.do_what_is_due();
            let result = engine.aside(|engine| engine.with_function(self.host, f));
            engine.refresh();
            engine.do_what_is_due();
            (result, engine.earliest() < before)
        });
        // The world sleeps until something that is not later than `before`; what is later needs no waking.
        if sooner {
            self.shared.waker.wake();
        }
        result
    }
}
