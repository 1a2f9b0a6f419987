//! The platform contract, kept by a machine made of software, which checks what silicon would not.

use super::context::{Body, ContextId};
use super::engine::{State, Waiting};
use super::host::Fallible;
use super::interrupt::{Delivery, HandlerRef};
use super::locks::LockKind;
use super::shared::Shared;
use super::sync::{SimCompletion, SimGate, SimLock};
use super::{Bus, HostId, Mode, PciFunction, ReportKind};
use core::alloc::Layout;
use core::fmt;
use core::ptr::NonNull;
use core::time::Duration;
use core_ib::Instant;
use core_ib::platform::{
    Caching, Direction, DmaAddr, Handler, Platform, PlatformError, RawDma, Registers, Result,
    Vectors,
};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError};

/// A machine with one HCA in it, as a driver sees it. A copy is the same machine.
///
/// What may block does so only in a context of the world ([`World::spawn`](super::World::spawn)). All else works
/// outside, too, on the world's thread, for a test that sets something up; completions can be fired from any.
#[derive(Clone)]
pub struct SimPlatform {
    pub(super) shared: Arc<Shared>,
    pub(super) host: HostId,
    pub(super) name: Arc<str>,
}

impl fmt::Debug for SimPlatform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SimPlatform").field(&self.name).finish()
    }
}

/// MSI-X capability.
const MSIX: u8 = 0x11;
/// Message control: in use.
const MSIX_ENABLE: u16 = 1 << 15;

/// Where a function's MSI-X is.
#[derive(Clone, Copy)]
struct MsixPlace {
    capability: u16,
    count: u16,
    bar: u8,
    table: u64,
}

impl SimPlatform {
    /// Which machine of its world.
    pub fn host(&self) -> HostId {
        self.host
    }

    /// Another context of this host, which runs `f` beside all others. Ends when `f` does.
    pub fn spawn<T: Send + 'static>(
        &self,
        name: impl Into<String>,
        f: impl FnOnce(&SimPlatform) -> T + Send + 'static,
    ) -> Task<T> {
        let (task, body) = task_body(self.clone(), f);
        self.spawn_body(name.into(), task, Body::new(Box::new(body)))
    }

    fn spawn_body<T>(&self, name: String, mut task: Task<T>, body: Body) -> Task<T> {
        task.id = self
            .shared
            .with(|engine| engine.spawn(self.host, name, false, body));
        self.shared.nudge();
        task
    }

    /// Lets `f` start contexts that borrow from the caller; returns when all of them have ended. Blocks.
    pub fn scope<'env, R>(&self, f: impl FnOnce(&Scope<'_, 'env>) -> R) -> R {
        let scope = Scope {
            platform: self,
            started: Mutex::new(Vec::new()),
            _env: core::marker::PhantomData,
        };
        let result = f(&scope);
        // Should this or `f` unwind, dropping `scope` stops its contexts for good.
        let started = scope.lock().clone();
        for task in started {
            self.wait_for(task);
        }
        result
    }

    /// Waits until `task` has ended; gives `None` if it never will. Blocks.
    pub fn join<T>(&self, task: Task<T>) -> Option<T> {
        self.wait_for(task.id);
        task.take()
    }

    fn wait_for(&self, task: ContextId) {
        loop {
            let mut waits = false;
            self.shared
                .block(Waiting::Task(task), Instant::NEVER, |engine, me| {
                    waits = engine.join(task, me);
                    !waits
                });
            if !waits {
                return;
            }
        }
    }

    /// Runs `f` as a soft interrupt would: what may block in it is an offence. Any context.
    pub fn soft_interrupt<R>(&self, f: impl FnOnce() -> R) -> R {
        let Some(me) = self.shared.me() else {
            return f();
        };
        let count = |by: i32| {
            self.shared.with(|engine| {
                if let Some(context) = engine.context_mut(me) {
                    context.soft = context.soft.saturating_add_signed(by);
                }
            });
        };
        count(1);
        let result = f();
        count(-1);
        result
    }

    /// Waits until `file` can be read, or written, or the clock reaches `deadline`; says whether it can. For real
    /// time alone: in virtual time there is an error of kind `Unsupported`. Control context; blocks.
    pub fn wait_file(
        &self,
        file: BorrowedFd<'_>,
        write: bool,
        deadline: Instant,
    ) -> std::io::Result<bool> {
        let Some(me) = self.shared.me() else {
            return Err(std::io::ErrorKind::WouldBlock.into());
        };
        self.shared
            .with(|engine| engine.may_block(me, "waits for a file"));
        let watch = self.shared.waker.watch(file, write, me)?;
        let _watch = watch.ok_or(std::io::ErrorKind::Unsupported)?;
        self.shared.block(Waiting::File, deadline, |_, _| false);
        Ok(self.shared.with(|engine| {
            engine.refresh();
            engine.now < deadline
        }))
    }

    /// The `n`-th call from now on of `what` fails (1 is the next); 0 takes that back.
    pub fn fail(&self, what: Fallible, n: u64) {
        self.shared.with(|engine| {
            if let Some(host) = engine.host_mut(self.host) {
                let ration = host.rations.entry(what).or_default();
                ration.fails = n.checked_sub(1).map(|more| ration.asked + more + 1);
            }
        });
    }

    /// How often `what` was called, refusals included.
    pub fn calls(&self, what: Fallible) -> u64 {
        self.shared.with(|engine| {
            let host = engine.host(self.host);
            let ration = host.and_then(|host| host.rations.get(&what));
            ration.map_or(0, |ration| ration.asked)
        })
    }

    /// Bytes of DMA memory and of tables that are out.
    pub fn memory_in_use(&self) -> (u64, u64) {
        self.shared.with(|engine| {
            let Some(host) = engine.host(self.host) else {
                return (0, 0);
            };
            let tables = host.tables.values().map(|layout| layout.size() as u64);
            (host.memory.allocated(), tables.sum())
        })
    }

    /// Interrupt vectors that are bound.
    pub fn interrupts_bound(&self) -> usize {
        self.shared.with(|engine| {
            let host = engine.host(self.host);
            host.map_or(0, |host| host.interrupts.bound())
        })
    }

    /// Runs `f` on the function of this machine, if it is an `F`: behind the back of whoever drives it. For tests, in a
    /// context or outside; `f` must not come back to this platform.
    pub fn with_model<F: PciFunction, R>(
        &self,
        f: impl FnOnce(&mut F, &mut dyn Bus) -> R,
    ) -> Option<R> {
        self.shared.with(|engine| {
            let found = engine.with_function(self.host, |function, bus| {
                let function: &mut dyn core::any::Any = function;
                function.downcast_mut().map(|function| f(function, bus))
            });
            found.flatten()
        })
    }

    fn refuses(&self, what: Fallible) -> bool {
        self.shared.with(|engine| {
            let host = engine.host_mut(self.host);
            host.is_none_or(|host| host.refuses(what))
        })
    }

    /// What follows may block.
    fn may_block(&self, what: &str) {
        if let Some(me) = self.shared.me() {
            self.shared.with(|engine| engine.may_block(me, what));
        }
    }

    fn report(&self, kind: ReportKind, what: fmt::Arguments<'_>) {
        self.shared
            .with(|engine| engine.report(self.host, kind, what));
    }

    fn msix(&self) -> Option<MsixPlace> {
        self.shared.with(|engine| {
            let capability = engine.find_capability(self.host, MSIX)?;
            let control = (engine.config_u32(self.host, capability) >> 16) as u16;
            let table = engine.config_u32(self.host, capability + 4);
            Some(MsixPlace {
                capability,
                count: (control & 0x7ff) + 1,
                bar: (table & 7) as u8,
                table: u64::from(table & !7),
            })
        })
    }

    /// Turns messages on or off.
    fn enable_messages(&self, msix: MsixPlace, on: bool) {
        let control = if on { MSIX_ENABLE } else { 0 };
        self.shared.with(|engine| {
            engine.config_write(self.host, msix.capability + 2, &control.to_le_bytes());
        });
    }

    /// Masks or unmasks a message in the function's table; it has happened when this returns.
    fn mask_message(&self, vector: u16, masked: bool) {
        let Some(msix) = self.msix() else {
            return;
        };
        self.shared.with(|engine| {
            let at = msix.table + u64::from(vector) * 16 + 12;
            engine.mmio_write(self.host, msix.bar, at, &u32::from(masked).to_le_bytes());
            engine.mmio_read(self.host, msix.bar, at, &mut [0; 4]);
        });
    }
}

// SAFETY: `HostMemory` gives every allocation pages of its own, zeroed by the system, aligned in both address spaces
// (its tests), and reaches them until they are freed; what the device cannot reach any more is unmapped only then.
// `table_alloc` is the system allocator's `alloc_zeroed`. `unbind_interrupt` returns when `Interrupts` says that no
// context runs the handler.
unsafe impl Platform for SimPlatform {
    type Registers = SimRegisters;
    type Completion = SimCompletion;
    type RawLock = SimLock;
    type RawGate = SimGate;

    fn name(&self) -> &str {
        &self.name
    }

    fn bar_len(&self, bar: u8) -> Option<u64> {
        self.shared.with(|engine| {
            engine
                .with_function(self.host, |function, _| function.bar_len(bar))
                .flatten()
        })
    }

    fn map(&self, bar: u8, at: u64, len: usize, _: Caching) -> Result<SimRegisters> {
        self.may_block("maps registers");
        let outside = PlatformError::OutsideBar { bar, at, len };
        let size = self.bar_len(bar).ok_or(outside)?;
        if at > size || len as u64 > size - at || self.refuses(Fallible::Map) {
            return Err(outside);
        }
        Ok(SimRegisters {
            platform: self.clone(),
            bar,
            at,
            len,
        })
    }

    fn config_read32(&self, offset: u16) -> u32 {
        if !offset.is_multiple_of(4) || offset >= 4096 {
            let what = format_args!("configuration space is read at {offset:#x}");
            self.report(ReportKind::Register, what);
            return !0;
        }
        self.shared
            .access(|engine| engine.config_u32(self.host, offset))
    }

    fn config_write32(&self, offset: u16, value: u32) {
        if !offset.is_multiple_of(4) || offset >= 4096 {
            let what = format_args!("configuration space is written at {offset:#x}");
            return self.report(ReportKind::Register, what);
        }
        self.shared.access(|engine| {
            engine.config_write(self.host, offset, &value.to_le_bytes());
        });
    }

    fn dma_alloc(&self, len: usize, align: usize) -> Result<RawDma> {
        self.may_block("allocates DMA memory");
        let none = PlatformError::NoDmaMemory { len };
        if self.refuses(Fallible::DmaAlloc) {
            return Err(none);
        }
        self.shared.with(|engine| {
            let host = engine.host_mut(self.host).ok_or(none)?;
            host.memory.alloc(len, align).ok_or(none)
        })
    }

    unsafe fn dma_free(&self, memory: RawDma) {
        self.shared.with(|engine| {
            let (at, len) = (memory.bus, memory.len as u64);
            let reached =
                engine.with_function(self.host, |function, bus| function.reaches(bus, at, len));
            if let Some(object) = reached.flatten() {
                let what = format_args!(
                    "{len} bytes at {at} are given back while {object} can reach them"
                );
                engine.report(self.host, ReportKind::FreedWhileReachable, what);
            }
            let freed = engine
                .host_mut(self.host)
                .map(|host| host.memory.free(memory));
            if let Some(Err(error)) = freed {
                let what = format_args!("dma_free of {error}");
                engine.report(self.host, ReportKind::BadFree, what);
            }
        });
    }

    unsafe fn dma_map(&self, memory: NonNull<u8>, len: usize, way: Direction) -> Result<DmaAddr> {
        let none = PlatformError::NotMappable { len };
        if self.refuses(Fallible::DmaMap) {
            return Err(none);
        }
        self.shared.with(|engine| {
            let host = engine.host_mut(self.host).ok_or(none)?;
            host.memory.map(memory, len, way).ok_or(none)
        })
    }

    unsafe fn dma_unmap(&self, at: DmaAddr, len: usize, way: Direction) {
        self.shared.with(|engine| {
            let reached = engine.with_function(self.host, |function, bus| {
                function.reaches(bus, at, len as u64)
            });
            if let Some(object) = reached.flatten() {
                let what =
                    format_args!("{len} bytes at {at} are unmapped while {object} can reach them");
                engine.report(self.host, ReportKind::FreedWhileReachable, what);
            }
            let host = engine.host_mut(self.host);
            if let Some(Err(error)) = host.map(|host| host.memory.unmap(at, len, way)) {
                let what = format_args!("dma_unmap of {error}");
                engine.report(self.host, ReportKind::BadFree, what);
            }
        });
    }

    fn dma_sync(&self, at: DmaAddr, len: usize, way: Direction, _: bool) {
        self.shared.access(|engine| {
            let host = engine.host(self.host);
            if !host.is_some_and(|host| host.memory.is_mapped(at, len, way)) {
                let what =
                    format_args!("dma_sync of {len} bytes at {at}, which are not mapped {way:?}");
                engine.report(self.host, ReportKind::BadFree, what);
            }
        });
    }

    fn dma_wmb(&self) {
        self.shared.point();
    }

    fn dma_rmb(&self) {
        self.shared.point();
    }

    fn table_alloc(&self, layout: Layout) -> Result<NonNull<u8>> {
        self.may_block("allocates memory for tables");
        let none = PlatformError::NoTableMemory { len: layout.size() };
        if self.refuses(Fallible::TableAlloc) {
            return Err(none);
        }
        if layout.size() == 0 {
            return NonNull::new(core::ptr::without_provenance_mut(layout.align())).ok_or(none);
        }
        // SAFETY: the size is not zero.
        let memory = unsafe { std::alloc::alloc_zeroed(layout) };
        let memory = NonNull::new(memory).ok_or(none)?;
        self.shared.with(|engine| {
            if let Some(host) = engine.host_mut(self.host) {
                host.tables.insert(memory.addr().get(), layout);
            }
        });
        Ok(memory)
    }

    unsafe fn table_free(&self, memory: NonNull<u8>, layout: Layout) {
        if layout.size() == 0 {
            return;
        }
        let ours = self.shared.with(|engine| {
            let tables = engine.host_mut(self.host).map(|host| &mut host.tables);
            let out = tables.and_then(|tables| tables.remove(&memory.addr().get()));
            if out != Some(layout) {
                let what =
                    format_args!("table_free of {layout:?}, but {out:?} was given out there");
                engine.report(self.host, ReportKind::BadFree, what);
            }
            out == Some(layout)
        });
        if ours {
            // SAFETY: it came from `alloc_zeroed` with this layout (it was in the list), and nothing refers to it
            // any more (the caller's promise).
            unsafe { std::alloc::dealloc(memory.as_ptr(), layout) };
        }
    }

    fn now(&self) -> Instant {
        self.shared.access(|engine| {
            engine.refresh();
            engine.now
        })
    }

    fn sleep(&self, wait: Duration) {
        self.may_block("sleeps");
        let deadline = self.shared.with(|engine| {
            engine.refresh();
            engine.now.after(wait)
        });
        let mut over = false;
        while !over {
            self.shared.block(Waiting::Sleep, deadline, |engine, _| {
                engine.refresh();
                over = deadline <= engine.now;
                over
            });
        }
    }

    fn completion(&self) -> Result<SimCompletion> {
        if self.refuses(Fallible::Completion) {
            return Err(PlatformError::Exhausted {
                what: "completions",
            });
        }
        Ok(SimCompletion::new(self))
    }

    fn raw_lock(&self, name: &'static str, taken_by_interrupt: bool) -> SimLock {
        let kind = if taken_by_interrupt {
            LockKind::Masking
        } else {
            LockKind::Plain
        };
        SimLock::new(self, name, kind)
    }

    fn raw_gate(&self, name: &'static str) -> SimGate {
        SimGate::new(self, name)
    }

    fn alloc_vectors(&self, want: u16) -> Result<Vectors> {
        self.may_block("allocates interrupt vectors");
        if self.refuses(Fallible::AllocVectors) {
            return Err(PlatformError::Exhausted {
                what: "interrupt vectors",
            });
        }
        let limit = self.shared.with(|engine| {
            let host = engine.host(self.host);
            host.map_or(0, |host| host.message_limit)
        });
        let msix = self.msix();
        let count = msix.map_or(0, |msix| msix.count.min(want).min(limit));
        let (delivery, vectors) = match count {
            0 => (Delivery::Pin, 1),
            _ => (Delivery::Messages, count),
        };
        let free = self.shared.with(|engine| {
            let host = engine.host_mut(self.host);
            host.is_some_and(|host| host.interrupts.set_up(delivery, vectors))
        });
        if !free {
            let what = format_args!("vectors are allocated while some are bound");
            self.report(ReportKind::Interrupt, what);
            return Err(PlatformError::Exhausted {
                what: "interrupt vectors",
            });
        }
        if let Some(msix) = msix {
            self.program_messages(msix, count);
            self.enable_messages(msix, count > 0);
        }
        Ok(match count {
            0 => Vectors::Intx,
            _ => Vectors::Msix { count },
        })
    }

    fn free_vectors(&self) {
        self.may_block("frees interrupt vectors");
        let done = self.shared.with(|engine| {
            let host = engine.host_mut(self.host);
            host.is_none_or(|host| host.interrupts.set_up(Delivery::Pin, 1))
        });
        if !done {
            let what = format_args!("vectors are given back while some are bound");
            return self.report(ReportKind::Interrupt, what);
        }
        if let Some(msix) = self.msix() {
            self.enable_messages(msix, false);
        }
    }

    unsafe fn bind_interrupt(&self, vector: u16, handler: NonNull<dyn Handler>) -> Result<()> {
        let none = PlatformError::NoVector { vector };
        if self.refuses(Fallible::BindInterrupt) {
            return Err(none);
        }
        // SAFETY: the caller keeps it valid until `unbind_interrupt` has returned, which waits for those who run it.
        let handler = unsafe { HandlerRef::new(handler) };
        let delivery = self.shared.with(|engine| {
            let host = engine.host_mut(self.host).ok_or(none)?;
            if !host.interrupts.bind(vector, handler) {
                return Err(none);
            }
            let delivery = host.interrupts.delivery;
            engine.interrupt_arrived(self.host);
            Ok(delivery)
        })?;
        if delivery == Delivery::Messages {
            self.mask_message(vector, false);
        }
        Ok(())
    }

    fn unbind_interrupt(&self, vector: u16) {
        self.may_block("unbinds an interrupt");
        let delivery = self.shared.with(|engine| {
            let host = engine.host(self.host);
            host.map_or(Delivery::Pin, |host| host.interrupts.delivery)
        });
        if delivery == Delivery::Messages {
            self.mask_message(vector, true);
        }
        loop {
            let me = self.shared.me();
            let running = self.shared.with(|engine| {
                let host = engine.host_mut(self.host);
                host.and_then(|host| host.interrupts.unbind(vector, None))
            });
            let Some(running) = running else {
                return;
            };
            assert!(
                me != Some(running),
                "vector {vector} of {} is unbound by its own handler, for which that would wait",
                self.name
            );
            self.shared
                .block(Waiting::Unbind(vector), Instant::NEVER, |engine, me| {
                    let host = engine.host_mut(self.host);
                    let running = host.and_then(|host| host.interrupts.unbind(vector, Some(me)));
                    running.is_none()
                });
        }
    }
}

impl SimPlatform {
    fn program_messages(&self, msix: MsixPlace, count: u16) {
        self.shared.with(|engine| {
            let address = engine
                .host(self.host)
                .map_or(0, |host| host.message_address);
            for vector in 0..count {
                let at = msix.table + u64::from(vector) * 16;
                let masked = 1_u32;
                let entry = [
                    (0, address as u32),
                    (4, (address >> 32) as u32),
                    (8, u32::from(vector)),
                    (12, masked),
                ];
                for (offset, word) in entry {
                    engine.mmio_write(self.host, msix.bar, at + offset, &word.to_le_bytes());
                }
            }
            engine.deliver_posted(self.host, None);
        });
    }

    /// Which clock.
    pub fn mode(&self) -> Mode {
        self.shared.with(|engine| engine.config.mode)
    }
}

/// A context that will have run to its end, and what it gave.
#[derive(Debug)]
pub struct Task<T> {
    pub(super) id: ContextId,
    slot: Arc<Mutex<Option<T>>>,
}

impl<T> Task<T> {
    pub(super) fn take(self) -> Option<T> {
        let mut slot = self.slot.lock().unwrap_or_else(PoisonError::into_inner);
        slot.take()
    }
}

/// A task not yet spawned, and what it is to run.
pub(super) fn task_body<'a, T: Send + 'a>(
    platform: SimPlatform,
    f: impl FnOnce(&SimPlatform) -> T + Send + 'a,
) -> (Task<T>, impl FnOnce() + Send + 'a) {
    let slot = Arc::new(Mutex::new(None));
    let task = Task {
        id: ContextId(u32::MAX),
        slot: slot.clone(),
    };
    let body = move || {
        let result = f(&platform);
        *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
    };
    (task, body)
}

/// Starts contexts that borrow from who made it; see [`SimPlatform::scope`].
pub struct Scope<'scope, 'env> {
    platform: &'scope SimPlatform,
    started: Mutex<Vec<ContextId>>,
    _env: core::marker::PhantomData<&'env mut &'env ()>,
}

impl fmt::Debug for Scope<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Scope").field(&self.platform.name).finish()
    }
}

impl<'env> Scope<'_, 'env> {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<ContextId>> {
        self.started.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Another context of this host, which runs `f` beside all others and ends before the scope does.
    pub fn spawn<T: Send + 'env>(
        &self,
        name: impl Into<String>,
        f: impl FnOnce(&SimPlatform) -> T + Send + 'env,
    ) -> Task<T> {
        let (task, body) = task_body(self.platform.clone(), f);
        // SAFETY: what `body` borrows lives for `'env`, which is longer than the call of `scope` during which this
        // runs. `scope` returns when `body` has run to its end; if it unwinds instead, `Drop` below takes care that
        // the context never runs again. If its host is switched off, this context does not run again either, and
        // its stack stays.
        let body = unsafe { Body::borrowing(Box::new(body)) };
        let task = self.platform.spawn_body(name.into(), task, body);
        self.lock().push(task.id);
        task
    }
}

impl Drop for Scope<'_, '_> {
    fn drop(&mut self) {
        let started = core::mem::take(&mut *self.lock());
        self.platform.shared.with(|engine| {
            for id in started {
                if let Some(context) = engine.context_mut(id)
                    && context.state != State::Finished
                {
                    context.state = State::Dead;
                }
            }
        });
    }
}

/// A mapped piece of a BAR.
#[derive(Debug)]
pub struct SimRegisters {
    platform: SimPlatform,
    bar: u8,
    at: u64,
    len: usize,
}

impl SimRegisters {
    /// Is a `width`-byte access at `offset` right? Says so if not.
    fn check(&self, offset: usize, width: usize, verb: &str) -> bool {
        let inside = offset <= self.len && width <= self.len - offset;
        if inside && offset.is_multiple_of(width) {
            return true;
        }
        let why = if inside { "misaligned" } else { "outside" };
        let Self { bar, at, len, .. } = *self;
        let what = format_args!(
            "{why}: {width} bytes {verb} at {offset:#x} of a mapping of {len:#x} bytes at BAR {bar} + {at:#x}"
        );
        self.platform.report(ReportKind::Register, what);
        false
    }

    fn load<const N: usize>(&self, offset: usize) -> [u8; N] {
        if !self.check(offset, N, "loaded") {
            return [0xff; N];
        }
        let SimPlatform { shared, host, .. } = &self.platform;
        let at = self.at + offset as u64;
        let me = shared.me();
        shared.access(|engine| {
            let mut bytes = [0; N];
            engine.load(*host, self.bar, at, &mut bytes);
            let value = bytes
                .iter()
                .fold(0, |all, byte| all << 8 | u64::from(*byte));
            engine.note_spin(*host, me, self.bar, at, value);
            bytes
        })
    }

    fn store(&self, offset: usize, bytes: &[u8]) {
        if !self.check(offset, bytes.len(), "stored") {
            return;
        }
        let SimPlatform { shared, host, .. } = &self.platform;
        let at = self.at + offset as u64;
        shared.access(|engine| {
            engine.store(*host, self.bar, at, bytes);
        });
    }
}

// SAFETY: an access that is outside of the mapping is reported and goes nowhere; all others go to the function, which
// is safe code.
unsafe impl Registers for SimRegisters {
    fn caching(&self) -> Caching {
        Caching::Uncached
    }

    fn read_be32(&self, offset: usize) -> u32 {
        u32::from_be_bytes(self.load(offset))
    }

    fn write_be32(&self, offset: usize, value: u32) {
        self.store(offset, &value.to_be_bytes());
    }

    fn read_be64(&self, offset: usize) -> u64 {
        u64::from_be_bytes(self.load(offset))
    }

    fn write_be64(&self, offset: usize, value: u64) {
        self.store(offset, &value.to_be_bytes());
    }
}
