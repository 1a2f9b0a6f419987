//! A device that lies: the model of an InfiniHost with two ports behind a wrapper that changes, drops and repeats what
//! the device says.

mod stack;
mod user;

pub use user::{drive_untrusted, live, live_as_host};

use core::fmt;
use core_ib::platform::DmaAddr;
use core_ib::{Guid, Instant};
use hca_abi::infinihost::regs;
use platform_sim::hca::infinihost::{Config, InfiniHost, Variant};
use platform_sim::machine::{
    Bus, DmaFault, Ledger, LinkControl, LinkParameters, Message, PciFunction, SendQueueFull,
    SplitMix64, TimerId,
};
use std::collections::VecDeque;

/// How often it lies about what, in parts of a million.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lies {
    /// Entries of queues (CQEs, EQEs): changed, lost, or old places written anew.
    pub entries: u32,
    /// All else that it writes: answers of commands, what arrives.
    pub answers: u32,
    /// What it reads: contexts, descriptors, data.
    pub reads: u32,
    /// Loads from registers.
    pub registers: u32,
    /// Commands that never end.
    pub silence: u32,
    /// Interrupts that come again and again, or do not go away.
    pub storm: u32,
    /// After so many loads and stores it is not there any more.
    pub gone_after: Option<u64>,
    /// With a command that does not end it does not come back from a reset either.
    pub never_back: bool,
}

/// Where lies come from.
enum Dice {
    /// Chance.
    Seed(SplitMix64),
    /// Whoever wrote these bytes: how many chances are left out (two bytes), and what is said instead.
    Bytes { rest: VecDeque<u8>, left_out: u32 },
}

impl Dice {
    fn byte(rest: &mut VecDeque<u8>) -> u8 {
        rest.pop_front().unwrap_or(0)
    }

    fn next_u64(&mut self) -> u64 {
        match self {
            Self::Seed(dice) => dice.next_u64(),
            Self::Bytes { rest, .. } => u64::from_le_bytes([0; 8].map(|_: u8| Self::byte(rest))),
        }
    }

    fn pick(&mut self, limit: usize) -> usize {
        match self {
            Self::Seed(dice) => dice.below(limit.max(1) as u64) as usize,
            Self::Bytes { rest, .. } => {
                let [low, high] = [0; 2].map(|_: u8| Self::byte(rest));
                usize::from(u16::from_le_bytes([low, high])) % limit.max(1)
            }
        }
    }

    fn hits(&mut self, parts: u32) -> bool {
        match self {
            Self::Seed(dice) => dice.hits(parts),
            Self::Bytes { rest, left_out } => {
                if parts == 0 || rest.is_empty() {
                    return false;
                }
                if *left_out > 0 {
                    *left_out -= 1;
                    return false;
                }
                let [low, high] = [0; 2].map(|_: u8| Self::byte(rest));
                *left_out = u16::from_le_bytes([low, high]).into();
                true
            }
        }
    }
}

/// What a liar remembers.
struct Mind {
    lies: Lies,
    dice: Dice,
    /// Lies so far.
    told: u64,
    /// Where it wrote entries.
    places: VecDeque<DmaAddr>,
    /// Loads and stores until the first lie.
    honest_for: u64,
}

impl Mind {
    fn lies(&mut self, parts: u32) -> bool {
        let lies = self.honest_for == 0 && self.dice.hits(parts);
        self.told += u64::from(lies);
        lies
    }

    fn pick(&mut self, limit: usize) -> usize {
        self.dice.pick(limit)
    }

    /// Changes bytes: where an entry keeps its numbers, its owner or its kind, or anywhere.
    fn spoil(&mut self, data: &mut [u8]) {
        let word = self.dice.next_u64();
        let at = match self.pick(4) {
            0 => data.len().saturating_sub(1),
            1 => self.pick(8),
            _ => self.pick(data.len()),
        };
        match self.pick(8) {
            0 => data.fill(0xff),
            1 => data.fill(0),
            2 => data.fill_with(|| self.dice.next_u64() as u8),
            3 => (at..at + 4).zip(word.to_be_bytes()).for_each(|(at, byte)| {
                if let Some(place) = data.get_mut(at) {
                    *place = byte;
                }
            }),
            4 | 5 => {
                if let Some(byte) = data.get_mut(at) {
                    *byte ^= 1 << (word & 7);
                }
            }
            _ => {
                if let Some(byte) = data.get_mut(at) {
                    *byte = word as u8;
                }
            }
        }
    }
}

/// The device. Nothing keeps its numbers within bounds; what it writes goes where the honest one would write.
pub struct Liar {
    inner: InfiniHost,
    mind: Mind,
    accesses: u64,
    stuck: bool,
    /// It does not come back.
    lost: bool,
}

impl Liar {
    /// One whose lies are left to chance; so is which of the two modes it speaks.
    pub fn new(lies: Lies, seed: u64) -> Self {
        let variant = [Variant::Tavor, Variant::Arbel][(seed / 3 % 2) as usize];
        Self::of(variant, lies, seed)
    }

    /// One of this variant.
    pub fn of(variant: Variant, lies: Lies, seed: u64) -> Self {
        let mut dice = SplitMix64::new(seed);
        // Opening alone takes some hundreds.
        let honest_for = dice.below(1500);
        Self::with_mind(variant, lies, Dice::Seed(dice), honest_for)
    }

    /// One whose lies are written down: the number of accesses before the first one, and then the lies.
    pub fn by_the_book(variant: Variant, lies: Lies, bytes: &[u8]) -> Self {
        let (head, rest) = bytes.split_at_checked(2).unwrap_or_default();
        let honest_for = head
            .iter()
            .rev()
            .fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        let (rest, left_out) = (rest.iter().copied().collect(), 0);
        Self::with_mind(variant, lies, Dice::Bytes { rest, left_out }, honest_for)
    }

    fn with_mind(variant: Variant, lies: Lies, dice: Dice, honest_for: u64) -> Self {
        let mind = Mind {
            lies,
            dice,
            told: 0,
            places: VecDeque::new(),
            honest_for,
        };
        Self {
            inner: InfiniHost::new(Config::of(variant, Guid(0x0002_c900_0000_0100))),
            mind,
            accesses: 0,
            stuck: false,
            lost: false,
        }
    }

    /// Lies so far.
    pub fn told(&self) -> u64 {
        self.mind.told
    }

    fn gone(&self) -> bool {
        let after = self.mind.lies.gone_after;
        after.is_some_and(|after| self.accesses >= after)
    }

    /// Lets the honest device do something with a bus that lies.
    fn with<R: Default>(
        &mut self,
        bus: &mut dyn Bus,
        f: impl FnOnce(&mut InfiniHost, &mut dyn Bus) -> R,
    ) -> R {
        if self.gone() {
            return R::default();
        }
        let mind = &mut self.mind;
        f(&mut self.inner, &mut LyingBus { bus, mind })
    }

    fn access(&mut self) {
        self.accesses += 1;
        self.mind.honest_for = self.mind.honest_for.saturating_sub(1);
    }
}

impl PciFunction for Liar {
    fn name(&self) -> &str {
        "a liar"
    }
    fn config_read(&mut self, bus: &mut dyn Bus, offset: u16, data: &mut [u8]) {
        self.access();
        if self.gone() || self.lost {
            return data.fill(0xff);
        }
        self.inner.config_read(bus, offset, data);
        if self.mind.lies(self.mind.lies.registers) {
            self.mind.spoil(data);
        }
    }
    fn config_write(&mut self, bus: &mut dyn Bus, offset: u16, data: &[u8]) {
        self.with(bus, |hca, bus| hca.config_write(bus, offset, data));
    }
    fn bar_len(&self, bar: u8) -> Option<u64> {
        self.inner.bar_len(bar)
    }
    fn mmio_read(&mut self, bus: &mut dyn Bus, bar: u8, offset: u64, data: &mut [u8]) {
        self.access();
        if self.gone() {
            return data.fill(0xff);
        }
        self.with(bus, |hca, bus| hca.mmio_read(bus, bar, offset, data));
        if self.mind.lies(self.mind.lies.registers) {
            self.mind.spoil(data);
        }
        let control = bar == 0 && offset == regs::HCR_CONTROL as u64;
        if control
            && self.stuck
            && let Some(byte) = data.get_mut(1)
        {
            *byte |= 0x80; // the GO bit
        }
    }
    fn mmio_write(&mut self, bus: &mut dyn Bus, bar: u8, offset: u64, data: &[u8]) {
        self.access();
        if (bar, offset) == (0, regs::RESET as u64) {
            self.lost |= self.stuck && self.mind.lies.never_back;
            self.stuck = self.lost;
            if self.lost {
                return;
            }
        }
        if (bar, offset) == (0, regs::HCR_CONTROL as u64) && self.mind.lies(self.mind.lies.silence)
        {
            self.stuck = true;
            return;
        }
        self.with(bus, |hca, bus| hca.mmio_write(bus, bar, offset, data));
    }
    fn ports(&self) -> u8 {
        self.inner.ports()
    }
    fn receive(&mut self, bus: &mut dyn Bus, port: u8, packet: &[u8]) {
        self.with(bus, |hca, bus| hca.receive(bus, port, packet));
    }
    fn link_changed(&mut self, bus: &mut dyn Bus, port: u8, up: Option<LinkParameters>) {
        self.with(bus, |hca, bus| hca.link_changed(bus, port, up));
    }
    fn send_room(&mut self, bus: &mut dyn Bus, port: u8, vl: u8) {
        self.with(bus, |hca, bus| hca.send_room(bus, port, vl));
    }
    fn timer(&mut self, bus: &mut dyn Bus, id: TimerId) {
        self.with(bus, |hca, bus| hca.timer(bus, id));
    }
    fn reset(&mut self, bus: &mut dyn Bus) {
        self.with(bus, |hca, bus| hca.reset(bus));
    }
    fn reaches(&self, bus: &mut dyn Bus, at: DmaAddr, len: u64) -> Option<String> {
        if self.gone() {
            None
        } else {
            self.inner.reaches(bus, at, len)
        }
    }
    fn ledger(&self) -> &Ledger {
        self.inner.ledger()
    }
}

/// The machine's bus, with the lies on their way.
struct LyingBus<'a> {
    bus: &'a mut dyn Bus,
    mind: &'a mut Mind,
}

impl Bus for LyingBus<'_> {
    fn now(&self) -> Instant {
        self.bus.now()
    }
    fn dma_read(&mut self, at: DmaAddr, data: &mut [u8]) -> Result<(), DmaFault> {
        let result = self.bus.dma_read(at, data);
        if self.mind.lies(self.mind.lies.reads) {
            self.mind.spoil(data);
        }
        result
    }
    fn dma_write(&mut self, at: DmaAddr, data: &[u8]) -> Result<(), DmaFault> {
        // An entry comes as 28 bytes and the 4 that say whose it is.
        let (body, owner) = (data.len() == 28, data.len() == 4);
        let parts = if body || owner {
            self.mind.lies.entries
        } else {
            self.mind.lies.answers
        };
        let lie = self.mind.lies(parts);
        let mut copy = data.to_vec();
        if lie {
            self.mind.spoil(&mut copy);
        }
        let place = self.mind.pick(self.mind.places.len());
        let old = self.mind.places.get(place).copied().filter(|_| lie);
        if body {
            self.mind.places.push_back(at);
        }
        if self.mind.places.len() > 64 {
            self.mind.places.pop_front();
        }
        match (self.mind.pick(4), old) {
            // Lost.
            (0, Some(_)) if body || owner => Ok(()),
            // Once where it belongs, and once where another was.
            (1 | 2, Some(old)) if body => {
                copy.extend([0; 4]);
                self.bus.dma_write(old, &copy)?;
                self.bus.dma_write(at, data)
            }
            _ => self.bus.dma_write(at, &copy),
        }
    }
    fn set_intx(&mut self, asserted: bool) {
        let asserted = asserted || self.mind.lies(self.mind.lies.storm);
        self.bus.set_intx(asserted);
    }
    fn message(&mut self, message: Message) {
        let times = if self.mind.lies(self.mind.lies.storm) {
            100
        } else {
            1
        };
        (0..times).for_each(|_| self.bus.message(message));
    }
    fn send(&mut self, port: u8, packet: &[u8]) -> Result<(), SendQueueFull> {
        self.bus.send(port, packet)
    }
    fn set_link(&mut self, port: u8, control: LinkControl) {
        self.bus.set_link(port, control);
    }
    fn set_timer(&mut self, id: TimerId, at: Instant) {
        self.bus.set_timer(id, at);
    }
    fn cancel_timer(&mut self, id: TimerId) {
        self.bus.cancel_timer(id);
    }
    fn report(&mut self, what: fmt::Arguments<'_>) {
        self.bus.report(what);
    }
}
