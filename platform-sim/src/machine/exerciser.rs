//! A PCI function that is no HCA: it does DMA, raises interrupts and carries packets when told to. It is what the
//! machine itself is tested with, and the smallest example of a [`PciFunction`].
//!
//! BAR 0, 4 KiB, big-endian as HCAs are:
//!
//! | offset | bytes | what |
//! | --- | --- | --- |
//! | 0x000 | 64 | memory |
//! | 0x040 | 8 | bus address to copy from |
//! | 0x048 | 8 | bus address to copy to |
//! | 0x050 | 4 | a store of *n* copies *n* bytes, up to 4096 |
//! | 0x054 | 4 | a store of *n* raises message *n*, or asserts the pin |
//! | 0x058 | 4 | a store releases the pin; a load says whether it was asserted |
//! | 0x05c | 4 | nanoseconds by which raising is late |
//! | 0x060 | 4 | a store of *n* sends the *n* bytes at the address to copy from, as a packet on port 1 |
//! | 0x064 | 4 | packets received; the last lies in BAR 0 at 0x400 |
//! | 0x068 | 4 | reads so far of this register |
//! | 0x06c | 4 | 1 while the link is up |
//! | 0x070 | 4 | status of the last DMA: 0 is good |
//! | 0x800 | 64 | MSI-X table, 4 messages; pending bits at 0xc00 |

use super::{
    Bus, ConfigSpace, Identity, Ledger, LinkControl, LinkParameters, LinkSpeed, LinkWidth, Msix,
    PciCore, PciFunction, TimerId,
};
use core_ib::platform::DmaAddr;
use std::collections::VecDeque;

/// Bytes of BAR 0.
const LEN: usize = 4096;
const FROM: usize = 0x40;
const TO: usize = 0x48;
const COPY: usize = 0x50;
const RAISE: usize = 0x54;
const PIN: usize = 0x58;
const LATE: usize = 0x5c;
const SEND: usize = 0x60;
const RECEIVED: usize = 0x64;
const COUNTER: usize = 0x68;
const LINK: usize = 0x6c;
const STATUS: usize = 0x70;
const PACKET: usize = 0x400;

/// See the module.
#[derive(Debug)]
pub struct Exerciser {
    pci: PciCore,
    memory: Box<[u8; LEN]>,
    /// Raises that wait for their timers.
    late: VecDeque<u32>,
    ledger: Ledger,
    /// The addresses to copy from and to are taken for ones it holds on to.
    holds_on: bool,
}

impl Exerciser {
    /// With four messages and a pin.
    pub fn new() -> Self {
        let mut config = ConfigSpace::new(Identity {
            vendor: 0x1b36,
            device: 0x0005,
            revision: 1,
            class: 0x0000_ff00,
            subsystem_vendor: 0,
            subsystem: 0,
            interrupt_pin: 1,
        });
        config.add_bar64(0, LEN as u64, false);
        let msix = Msix::new(&mut config, 0x40, 4, 0, 0x800, 0xc00);
        Self {
            pci: PciCore::new(config, Some(msix)),
            memory: Box::new([0; LEN]),
            late: VecDeque::new(),
            ledger: Ledger::new(),
            holds_on: false,
        }
    }

    /// One that says of itself that it can still reach the addresses it was last given.
    pub fn holding_on() -> Self {
        Self {
            holds_on: true,
            ..Self::new()
        }
    }

    fn word(&self, at: usize) -> u32 {
        let bytes = self.memory.get(at..).and_then(<[u8]>::first_chunk);
        bytes.map_or(0, |bytes| u32::from_be_bytes(*bytes))
    }

    fn double(&self, at: usize) -> u64 {
        u64::from(self.word(at)) << 32 | u64::from(self.word(at + 4))
    }

    fn set_word(&mut self, at: usize, value: u32) {
        let bytes = self.memory.get_mut(at..).and_then(<[u8]>::first_chunk_mut);
        if let Some(bytes) = bytes {
            *bytes = value.to_be_bytes();
        }
    }

    fn copy(&mut self, bus: &mut dyn Bus, len: u32) {
        let mut bytes = vec![0; (len as usize).min(4096)];
        let from = DmaAddr::new(self.double(FROM));
        let to = DmaAddr::new(self.double(TO));
        let done = if self.pci.config.bus_master() {
            bus.dma_read(from, &mut bytes)
                .and_then(|()| bus.dma_write(to, &bytes))
                .is_ok()
        } else {
            false
        };
        self.set_word(STATUS, u32::from(!done));
    }

    fn raise(&mut self, bus: &mut dyn Bus, vector: u32) {
        if self.pci.messages_enabled() {
            self.pci.raise_message(bus, vector as u16);
        } else {
            self.set_word(PIN, 1);
            self.pci.set_pin(bus, true);
        }
    }

    fn send(&mut self, bus: &mut dyn Bus, len: u32) {
        let mut packet = vec![0; (len as usize).min(4096)];
        let from = DmaAddr::new(self.double(FROM));
        let read = bus.dma_read(from, &mut packet);
        let sent = read.is_ok() && bus.send(1, &packet).is_ok();
        self.set_word(STATUS, u32::from(!sent));
    }

    fn stored(&mut self, bus: &mut dyn Bus, at: usize) {
        let value = self.word(at);
        match at {
            COPY => self.copy(bus, value),
            RAISE if self.word(LATE) == 0 => self.raise(bus, value),
            RAISE => {
                let wait = core::time::Duration::from_nanos(u64::from(self.word(LATE)));
                self.late.push_back(value);
                bus.set_timer(TimerId(0), bus.now().after(wait));
            }
            PIN => {
                self.set_word(PIN, 0);
                self.pci.set_pin(bus, false);
            }
            SEND => self.send(bus, value),
            _ => {}
        }
    }
}

impl Default for Exerciser {
    fn default() -> Self {
        Self::new()
    }
}

impl PciFunction for Exerciser {
    fn name(&self) -> &str {
        "exerciser"
    }

    fn config_read(&mut self, _: &mut dyn Bus, offset: u16, data: &mut [u8]) {
        self.pci.config_read(offset, data);
    }

    fn config_write(&mut self, bus: &mut dyn Bus, offset: u16, data: &[u8]) {
        self.pci.config_write(bus, offset, data);
    }

    fn bar_len(&self, bar: u8) -> Option<u64> {
        self.pci.config.bar_len(bar)
    }

    fn mmio_read(&mut self, _: &mut dyn Bus, bar: u8, offset: u64, data: &mut [u8]) {
        if self.pci.mmio_read(bar, offset, data) {
            return;
        }
        if offset == COUNTER as u64 {
            self.set_word(COUNTER, self.word(COUNTER).wrapping_add(1));
        }
        let start = offset as usize;
        match self.memory.get(start..start.saturating_add(data.len())) {
            Some(bytes) if bar == 0 => data.copy_from_slice(bytes),
            _ => data.fill(0xff),
        }
    }

    fn mmio_write(&mut self, bus: &mut dyn Bus, bar: u8, offset: u64, data: &[u8]) {
        if self.pci.mmio_write(bus, bar, offset, data) {
            return;
        }
        let start = offset as usize;
        let place = self.memory.get_mut(start..start.saturating_add(data.len()));
        let Some(place) = place.filter(|_| bar == 0) else {
            return self.ledger.count("a store outside of BAR 0");
        };
        place.copy_from_slice(data);
        self.stored(bus, start);
    }

    fn ports(&self) -> u8 {
        1
    }

    fn receive(&mut self, bus: &mut dyn Bus, _: u8, packet: &[u8]) {
        self.set_word(RECEIVED, self.word(RECEIVED).wrapping_add(1));
        let place = self.memory.iter_mut().skip(PACKET).take(1024);
        for (place, byte) in place.zip(packet) {
            *place = *byte;
        }
        self.raise(bus, 0);
    }

    fn link_changed(&mut self, _: &mut dyn Bus, _: u8, up: Option<LinkParameters>) {
        self.set_word(LINK, u32::from(up.is_some()));
    }

    fn send_room(&mut self, _: &mut dyn Bus, _: u8, _: u8) {
        self.set_word(STATUS, 0);
    }

    fn timer(&mut self, bus: &mut dyn Bus, _: TimerId) {
        while let Some(vector) = self.late.pop_front() {
            self.raise(bus, vector);
        }
    }

    fn reset(&mut self, bus: &mut dyn Bus) {
        self.pci.reset(bus);
        self.memory.fill(0);
        self.late.clear();
        let (widths, speeds) = (LinkWidth(3), LinkSpeed(1));
        bus.set_link(1, LinkControl::Polling { widths, speeds });
    }

    fn reaches(&self, _bus: &mut dyn Bus, at: DmaAddr, len: u64) -> Option<String> {
        let held = [(FROM, "copy from"), (TO, "copy to")];
        let reached = held
            .iter()
            .find(|(register, _)| self.double(*register).wrapping_sub(at.get()) < len);
        let (_, register) = reached.filter(|_| self.holds_on)?;
        Some(format!("register \"{register}\""))
    }

    fn ledger(&self) -> &Ledger {
        &self.ledger
    }
}
