//! One machine: a PCI function, the memory and interrupts around it, and the bus between them.

use super::context::ContextId;
use super::engine::Engine;
use super::interrupt::Interrupts;
use super::memory::{HostMemory, MemoryError};
use super::{
    Bus, DmaFault, LinkControl, Message, PciFunction, ReportKind, SendQueueFull, SplitMix64,
    TimerId, WireEnd,
};
use core::alloc::Layout;
use core::fmt;
use core_ib::Instant;
use core_ib::platform::DmaAddr;
use std::collections::{BTreeMap, VecDeque};

/// Which machine of a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostId(pub(super) u32);

/// A machine that is not of this world (a virtual machine, say): what the function reaches there.
pub trait Guest: Send {
    /// As [`Bus::dma_read`].
    fn dma_read(&mut self, at: DmaAddr, data: &mut [u8]) -> Result<(), DmaFault>;
    /// As [`Bus::dma_write`].
    fn dma_write(&mut self, at: DmaAddr, data: &[u8]) -> Result<(), DmaFault>;
    /// As [`Bus::set_intx`].
    fn set_intx(&mut self, asserted: bool);
    /// As [`Bus::message`].
    fn message(&mut self, message: Message);
}

/// What can be made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fallible {
    /// [`Platform::dma_alloc`](core_ib::platform::Platform::dma_alloc).
    DmaAlloc,
    /// [`Platform::dma_map`](core_ib::platform::Platform::dma_map).
    DmaMap,
    /// [`Platform::table_alloc`](core_ib::platform::Platform::table_alloc).
    TableAlloc,
    /// [`Platform::completion`](core_ib::platform::Platform::completion).
    Completion,
    /// [`Platform::map`](core_ib::platform::Platform::map).
    Map,
    /// [`Platform::alloc_vectors`](core_ib::platform::Platform::alloc_vectors).
    AllocVectors,
    /// [`Platform::bind_interrupt`](core_ib::platform::Platform::bind_interrupt).
    BindInterrupt,
}

/// How often something was asked for, and which time it is to fail.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ration {
    pub(super) asked: u64,
    pub(super) fails: Option<u64>,
}

/// A store on its way to the device.
#[derive(Clone, Copy, Debug)]
struct Posted {
    at: Instant,
    bar: u8,
    offset: u64,
    len: usize,
    bytes: [u8; 8],
}

/// The same register, read over and over.
#[derive(Clone, Copy, Debug, Default)]
struct Spin {
    context: Option<ContextId>,
    bar: u8,
    offset: u64,
    value: u64,
    times: u32,
    since: Instant,
}

/// See the module.
pub(super) struct Host {
    pub(super) name: String,
    /// Out while it is called, and when it is gone.
    pub(super) function: Option<Box<dyn PciFunction>>,
    /// The function has not been taken out of the machine.
    pub(super) present: bool,
    /// The machine has power.
    pub(super) powered: bool,
    guest: Option<Box<dyn Guest>>,
    /// Where each port is plugged in.
    pub(super) plugs: Vec<WireEnd>,
    pub(super) memory: HostMemory,
    pub(super) interrupts: Interrupts,
    /// Most messages that a driver gets.
    pub(super) message_limit: u16,
    /// Address of its messages.
    pub(super) message_address: u64,
    pub(super) timers: BTreeMap<TimerId, u64>,
    pub(super) tickets: u64,
    posted: VecDeque<Posted>,
    /// Memory for tables that is out.
    pub(super) tables: BTreeMap<usize, Layout>,
    pub(super) rations: BTreeMap<Fallible, Ration>,
    /// Contexts that take interrupts while others do not.
    pub(super) idle: Vec<ContextId>,
    spin: Spin,
    dice: SplitMix64,
}

impl Host {
    pub(super) fn new(
        name: &str,
        id: HostId,
        seed: u64,
        function: Box<dyn PciFunction>,
        guest: Option<Box<dyn Guest>>,
        plugs: &[WireEnd],
    ) -> Self {
        let mut dice = SplitMix64::named(seed, name);
        let memory = HostMemory::new(SplitMix64::new(dice.next_u64() ^ u64::from(id.0)));
        Self {
            name: name.into(),
            function: Some(function),
            present: true,
            powered: true,
            guest,
            plugs: plugs.into(),
            memory,
            interrupts: Interrupts::new(),
            message_limit: u16::MAX,
            message_address: 0xfee0_0000 | dice.below(0x100) << 12,
            timers: BTreeMap::new(),
            tickets: 0,
            posted: VecDeque::new(),
            tables: BTreeMap::new(),
            rations: BTreeMap::new(),
            idle: Vec::new(),
            spin: Spin::default(),
            dice,
        }
    }

    /// Power comes back: nothing is left of what was before.
    pub(super) fn boot(&mut self) {
        let seed = self.dice.next_u64();
        self.memory = HostMemory::new(SplitMix64::new(seed));
        self.interrupts = Interrupts::new();
        self.timers.clear();
        self.posted.clear();
        self.tables.clear();
        self.rations.clear();
        self.idle.clear();
        self.spin = Spin::default();
        self.powered = true;
    }

    /// Is the machine itself of another world?
    pub(super) fn is_guest(&self) -> bool {
        self.guest.is_some()
    }

    /// Is this the call that is to fail?
    pub(super) fn refuses(&mut self, what: Fallible) -> bool {
        let ration = self.rations.entry(what).or_default();
        ration.asked += 1;
        ration.fails == Some(ration.asked)
    }
}

impl Engine {
    /// Loads from configuration space; all ones if the function is gone.
    pub(super) fn config_read(&mut self, id: HostId, offset: u16, data: &mut [u8]) {
        self.deliver_posted(id, None);
        data.fill(0xff);
        let here = &mut *data;
        self.with_function(id, |function, bus| function.config_read(bus, offset, here));
        self.trace.note(b'C', self.now, id.0, u64::from(offset));
        self.trace.bytes(data);
    }

    /// Stores to it.
    pub(super) fn config_write(&mut self, id: HostId, offset: u16, data: &[u8]) {
        self.deliver_posted(id, None);
        self.trace.note(b'D', self.now, id.0, u64::from(offset));
        self.trace.bytes(data);
        self.with_function(id, |function, bus| function.config_write(bus, offset, data));
    }

    /// A 32-bit word of configuration space.
    pub(super) fn config_u32(&mut self, id: HostId, offset: u16) -> u32 {
        let mut bytes = [0; 4];
        self.config_read(id, offset, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    /// Loads from a BAR, behind all stores that are on their way; all ones if the function is gone.
    pub(super) fn mmio_read(&mut self, id: HostId, bar: u8, offset: u64, data: &mut [u8]) {
        self.deliver_posted(id, None);
        self.statistics.register_reads += 1;
        data.fill(0xff);
        let here = &mut *data;
        self.with_function(id, |function, bus| {
            function.mmio_read(bus, bar, offset, here);
        });
        self.trace
            .note(b'R', self.now, id.0, u64::from(bar) << 40 | offset);
        self.trace.bytes(data);
    }

    /// Stores to a BAR; some time later, it arrives.
    pub(super) fn mmio_write(&mut self, id: HostId, bar: u8, offset: u64, data: &[u8]) {
        self.statistics.register_writes += 1;
        self.trace
            .note(b'W', self.now, id.0, u64::from(bar) << 40 | offset);
        self.trace.bytes(data);
        let longest = match self.config.mode {
            super::Mode::Virtual => self.config.posting.as_nanos() as u64,
            super::Mode::RealTime => 0,
        };
        let now = self.now;
        let mut bytes = [0; 8];
        let Some(host) = self.host_mut(id) else {
            return;
        };
        if longest > 0
            && let Some(copy) = bytes.get_mut(..data.len())
        {
            copy.copy_from_slice(data);
            let delay = host.dice.below(longest + 1);
            let last = host.posted.back().map_or(now, |last| last.at);
            let at = Instant((now.0 + delay).max(last.0));
            if at > now || !host.posted.is_empty() {
                let len = data.len();
                host.posted.push_back(Posted {
                    at,
                    bar,
                    offset,
                    len,
                    bytes,
                });
                let due = super::timeline::Due::Posted { host: id };
                self.timeline.push(at, due);
                return;
            }
        }
        self.with_function(id, |function, bus| {
            function.mmio_write(bus, bar, offset, data);
        });
    }

    /// Stores that are on their way arrive: all, or those due by `until`.
    pub(super) fn deliver_posted(&mut self, id: HostId, until: Option<Instant>) {
        loop {
            let Some(host) = self.host_mut(id) else {
                return;
            };
            let due = |store: &mut Posted| until.is_none_or(|until| store.at <= until);
            let Some(store) = host.posted.pop_front_if(due) else {
                return;
            };
            let Posted {
                bar,
                offset,
                len,
                bytes,
                ..
            } = store;
            if let Some(data) = bytes.get(..len) {
                self.with_function(id, |function, bus| {
                    function.mmio_write(bus, bar, offset, data);
                });
            }
        }
    }

    /// Loads as the machine's processors do.
    pub(super) fn load(&mut self, id: HostId, bar: u8, offset: u64, data: &mut [u8]) {
        let width = if self.config.narrow { 4 } else { 8 };
        for (at, part) in (offset..).step_by(width).zip(data.chunks_mut(width)) {
            self.mmio_read(id, bar, at, part);
        }
    }

    /// Stores as the machine's processors do.
    pub(super) fn store(&mut self, id: HostId, bar: u8, offset: u64, data: &[u8]) {
        let width = if self.config.narrow { 4 } else { 8 };
        for (at, part) in (offset..).step_by(width).zip(data.chunks(width)) {
            self.mmio_write(id, bar, at, part);
        }
    }

    /// Notes a load by `context`, and says so if it spins on a register that never changes.
    pub(super) fn note_spin(
        &mut self,
        id: HostId,
        context: Option<ContextId>,
        bar: u8,
        offset: u64,
        value: u64,
    ) {
        let (now, limit) = (self.now, self.config.spin_limit);
        let Some(host) = self.host_mut(id) else {
            return;
        };
        let spin = &mut host.spin;
        let same =
            (spin.context, spin.bar, spin.offset, spin.value) == (context, bar, offset, value);
        if !same {
            let (times, since) = (0, now);
            *spin = Spin {
                context,
                bar,
                offset,
                value,
                times,
                since,
            };
            return;
        }
        spin.times = spin.times.saturating_add(1);
        if spin.times == limit {
            let since = now.since(spin.since);
            let what = format_args!(
                "BAR {bar} offset {offset:#x} was read {limit} times in {since:?} and is always {value:#x}"
            );
            self.report(id, ReportKind::Spin, what);
        }
    }

    /// What firmware and operating system do before a driver gets the function: sizes the BARs, gives each an
    /// address, turns on memory and bus mastering.
    pub(super) fn enumerate(&mut self, id: HostId) {
        let mut next = 0xc0_0000_0000_u64;
        let mut bar = 0;
        while bar < 6 {
            let at = 0x10 + 4 * u16::from(bar);
            let len = self
                .with_function(id, |function, _| function.bar_len(bar))
                .flatten();
            self.config_write(id, at, &[0xff; 4]);
            let low = self.config_u32(id, at);
            let wide = low & 6 == 4;
            let mut mask = u64::from(low & !0xf) | 0xffff_ffff << 32;
            if wide {
                self.config_write(id, at + 4, &[0xff; 4]);
                mask = u64::from(low & !0xf) | u64::from(self.config_u32(id, at + 4)) << 32;
            }
            let sized = if low == 0 {
                None
            } else {
                Some((!mask).wrapping_add(1))
            };
            if sized != len {
                let what = format_args!(
                    "BAR {bar} is sized to {sized:x?} bytes by its register, but has {len:x?}"
                );
                self.report(id, ReportKind::Device, what);
            }
            if let Some(len) = sized {
                next = next.checked_next_multiple_of(len.max(4096)).unwrap_or(0);
                self.config_write(id, at, &(next as u32).to_le_bytes());
                if wide {
                    self.config_write(id, at + 4, &((next >> 32) as u32).to_le_bytes());
                }
                next = next.wrapping_add(len);
            }
            bar += if wide { 2 } else { 1 };
        }
        let on = super::config::MEMORY | super::config::MASTER;
        self.config_write(id, super::config::COMMAND, &on.to_le_bytes());
    }

    /// Offset of the capability `wanted`.
    pub(super) fn find_capability(&mut self, id: HostId, wanted: u8) -> Option<u16> {
        let mut byte = [0];
        self.config_read(id, super::config::CAPABILITIES, &mut byte);
        // No list is longer than what fits into the space; a loop ends, too.
        for _ in 0..48 {
            let at = u16::from(byte[0] & !3);
            if at < 0x40 {
                return None;
            }
            let head = self.config_u32(id, at);
            if head as u8 == wanted {
                return Some(at);
            }
            byte = [(head >> 8) as u8];
        }
        None
    }

    fn dma_error(&mut self, id: HostId, error: MemoryError, verb: &str) -> DmaFault {
        let (kind, fault) = match error {
            MemoryError::Freed { at, len, .. } => (
                ReportKind::DmaAfterFree,
                DmaFault::NotMapped {
                    at,
                    len: len as usize,
                },
            ),
            MemoryError::Direction { at, len, .. } => (
                ReportKind::DmaDirection,
                DmaFault::Direction {
                    at,
                    len: len as usize,
                },
            ),
            MemoryError::Nowhere { at, len }
            | MemoryError::PastEnd { at, len, .. }
            | MemoryError::OtherShape { at, len, .. } => (
                ReportKind::DmaOutside,
                DmaFault::NotMapped {
                    at,
                    len: len as usize,
                },
            ),
        };
        self.report(id, kind, format_args!("the device {verb} {error}"));
        fault
    }
}

/// The bus of one host, for the length of one call of its function.
pub(super) struct HostBus<'a> {
    pub(super) engine: &'a mut Engine,
    pub(super) id: HostId,
}

impl HostBus<'_> {
    fn host(&mut self) -> Option<&mut Host> {
        self.engine.host_mut(self.id)
    }

    fn end(&mut self, port: u8) -> Option<WireEnd> {
        let index = usize::from(port).checked_sub(1)?;
        self.host()?.plugs.get(index).copied()
    }
}

impl Bus for HostBus<'_> {
    fn now(&self) -> Instant {
        self.engine.now
    }

    fn dma_read(&mut self, at: DmaAddr, data: &mut [u8]) -> Result<(), DmaFault> {
        let id = self.id;
        let host = self.host().ok_or(DmaFault::Gone)?;
        if let Some(guest) = &mut host.guest {
            return guest.dma_read(at, data);
        }
        match host.memory.read(at, data) {
            Ok(()) => Ok(()),
            Err(error) => Err(self.engine.dma_error(id, error, "reads")),
        }
    }

    fn dma_write(&mut self, at: DmaAddr, data: &[u8]) -> Result<(), DmaFault> {
        let id = self.id;
        let host = self.host().ok_or(DmaFault::Gone)?;
        if let Some(guest) = &mut host.guest {
            return guest.dma_write(at, data);
        }
        match host.memory.write(at, data) {
            Ok(()) => Ok(()),
            Err(error) => Err(self.engine.dma_error(id, error, "writes")),
        }
    }

    fn set_intx(&mut self, asserted: bool) {
        let id = self.id;
        let Some(host) = self.host() else {
            return;
        };
        if let Some(guest) = &mut host.guest {
            return guest.set_intx(asserted);
        }
        host.interrupts.set_line(asserted);
        if asserted {
            self.engine.interrupt_arrived(id);
        }
    }

    fn message(&mut self, message: Message) {
        let id = self.id;
        let Some(host) = self.host() else {
            return;
        };
        if let Some(guest) = &mut host.guest {
            return guest.message(message);
        }
        let ours = message.address == host.message_address;
        let vector = u16::try_from(message.data);
        if ours && vector.is_ok_and(|vector| host.interrupts.message(vector)) {
            return self.engine.interrupt_arrived(id);
        }
        let Message { address, data } = message;
        let what = format_args!("message {data:#x} to {address:#x}, where nothing is bound");
        self.engine.report(id, ReportKind::Interrupt, what);
    }

    fn send(&mut self, port: u8, packet: &[u8]) -> Result<(), SendQueueFull> {
        let (id, now) = (self.id, self.engine.now);
        let Some(end) = self.end(port) else {
            return Ok(());
        };
        self.engine.wire.send(end, packet, now)?;
        self.engine.statistics.packets_sent += 1;
        self.engine.trace.note(b's', now, id.0, u64::from(port));
        self.engine.trace.bytes(packet);
        self.engine.wire_changed();
        Ok(())
    }

    fn set_link(&mut self, port: u8, control: LinkControl) {
        let now = self.engine.now;
        if let Some(end) = self.end(port) {
            self.engine.wire.set_link(end, control, now);
            self.engine.wire_changed();
        }
    }

    fn set_timer(&mut self, id: TimerId, at: Instant) {
        self.engine.set_timer(self.id, id, at);
    }

    fn cancel_timer(&mut self, id: TimerId) {
        if let Some(host) = self.host() {
            host.timers.remove(&id);
        }
    }

    fn tracing(&self) -> bool {
        self.engine.trace.listener.is_some()
    }

    fn trace(&mut self, what: fmt::Arguments<'_>) {
        let now = self.engine.now;
        if let Some(mut listener) = self.engine.trace.listener.take() {
            let name = self.host().map_or("", |host| &host.name);
            listener(now, name, what);
            self.engine.trace.listener = Some(listener);
        }
    }

    fn report(&mut self, what: fmt::Arguments<'_>) {
        self.engine.report(self.id, ReportKind::Device, what);
    }
}
