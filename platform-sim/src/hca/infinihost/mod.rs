//! The InfiniHost family (MT23108 "Tavor", MT25208 "Arbel", MT25204 "Sinai"), a model of an HCA as its drivers see it. The rules are those of
//! `docs/reference/infinihost.md`, cited as "infinihost" and the section.
//!
//! [`InfiniHost`] is the PCI function. It decodes accesses and hands them to its objects, one a file: the command block
//! (`hcr`) and what commands do (`cmd`), doorbell pages (`uar`), queues of events (`eq`), memory keys (`mpt`).
//! Contexts are kept here and not in the tables, as hardware may; translations, protection entries and multicast
//! groups are in the tables (`memory`: attached, or host pages behind the HCA's own address space, `icm`) and read there
//! at each use. What differs by chip is in `variant`.
//!
//! Nothing blocks, nothing recurses, and each call does a bounded amount of work: what remains waits for a timer.

mod bind;
mod catas;
mod checksum;
mod chip;
mod cmd;
mod config;
mod connected;
mod cq;
mod ddr;
mod eq;
mod fault;
mod flush;
mod hcr;
mod icm;
mod mad;
mod mcg;
mod memory;
mod mpt;
mod params;
mod port;
mod qp;
mod queue;
mod receive;
mod record;
mod regs;
mod remote;
mod reset;
mod send;
mod srq;
mod supply;
mod transition;
mod uar;
mod ud;
mod variant;
mod work;
mod wqe;

pub use config::{Config, FirmwareVersion};
pub use fault::{CommandFault, Holdings};
pub use variant::Variant;

use crate::machine::{Bus, Ledger, LinkParameters, PciFunction, TimerId};
use catas::Catas;
use chip::Chip;
use core::time::Duration;
use core_ib::Instant;
use core_ib::platform::DmaAddr;
use core_ib::wire::packet::MAX_PACKET;
use cq::Cqs;
use ddr::Ddr;
use eq::{Events, Rung};
use fault::CommandFaults;
use hca_abi::infinihost::doorbell::EqCommand;
use hca_abi::infinihost::eqe::{Eqe, EventType, LocalSyndrome};
use hca_abi::infinihost::{pci, regs as bar0};
use hcr::{Command, Hcr, Stored};
use memory::Memory;
use mpt::KeyTable;
use params::Params;
use port::Ports;
use qp::Qps;
use queue::Added;
use record::Records;
use regs::Register;
use srq::Srqs;
use std::collections::VecDeque;
use uar::{Doorbell, Effect, Uar};
use variant::Mode;
use work::WorkList;

#[cfg(test)]
mod tests;

/// The model's own timers.
mod timers {
    use super::TimerId;

    /// A command is due.
    pub const COMMAND: TimerId = TimerId(0);
    /// Work was left over.
    pub const WORK: TimerId = TimerId(1);
    /// A trap is due.
    pub const TRAP: TimerId = TimerId(2);
    /// M-mode: queues in error may have been given more.
    pub const WATCH: TimerId = TimerId(3);

    const CONNECTION: u64 = 1 << 32;

    /// The clock of a connection.
    pub const fn connection(qpn: u32) -> TimerId {
        TimerId(CONNECTION | qpn as u64)
    }

    /// Whose clock that is.
    pub const fn qpn(id: TimerId) -> Option<u32> {
        if id.0 & CONNECTION == 0 {
            return None;
        }
        Some(id.0 as u32)
    }
}

/// How far bring-up has come. infinihost 3.6.
enum System {
    /// After a reset or SYS_DIS.
    PowerOn,
    /// After SYS_EN or CLOSE_HCA.
    Enabled,
    /// After INIT_HCA.
    Running(Box<Params>),
}

/// One HCA.
pub struct InfiniHost {
    config: Config,
    chip: Chip,
    system: System,
    hcr: Hcr,
    /// Commands that are being executed, in the order of their completion.
    delayed: VecDeque<(Instant, Command)>,
    uar: Uar,
    events: Events,
    cqs: Cqs,
    srqs: Srqs,
    qps: Qps,
    ports: Ports,
    work: WorkList,
    /// How long until queues in error are looked at again.
    watch: Duration,
    faults: CommandFaults,
    /// What was held when it last stopped running.
    left: Holdings,
    /// Room for the packet that is being made.
    scratch: Vec<u8>,
    /// Configuration space does not answer before this: a reset is under way.
    silent_until: Instant,
}

impl InfiniHost {
    /// A card as it comes out of its box.
    ///
    /// # Panics
    ///
    /// If the configuration is not one that a card can have: as many ports as the chip has, and in T-mode a power of two of at least 8 MB attached.
    pub fn new(config: Config) -> Self {
        config.check();
        Self {
            chip: Chip {
                pci: config.pci(),
                memory: Memory::new(config.variant.mode(), config.ddr_len),
                keys: KeyTable::default(),
                records: Records::default(),
                catas: Catas::default(),
                ledger: Ledger::new(),
            },
            system: System::PowerOn,
            hcr: Hcr::default(),
            delayed: VecDeque::new(),
            uar: Uar::new(config.variant.mode(), 12),
            events: Events::default(),
            cqs: Cqs::default(),
            srqs: Srqs::default(),
            qps: Qps::default(),
            ports: Ports::new(&config),
            work: WorkList::new(),
            watch: Duration::ZERO,
            faults: CommandFaults::default(),
            left: Holdings::default(),
            scratch: vec![0; MAX_PACKET],
            silent_until: Instant(0),
            config,
        }
    }

    /// The attached memory, for tests and debuggers; offsets count from its start.
    pub fn attached_memory(&mut self) -> &mut Ddr {
        &mut self.chip.memory.ddr
    }

    /// Breaks the HCA: the error buffer says so from now on, and doorbells and packets go nowhere. A reset mends it.
    pub fn break_down(&mut self, kind: bar0::CatasKind) {
        self.chip.catas.raise(kind);
    }

    fn mode(&self) -> Mode {
        self.config.variant.mode()
    }

    fn params(&self) -> Option<&Params> {
        match &self.system {
            System::Running(params) => Some(params),
            _ => None,
        }
    }

    /// A load of an aligned dword of BAR 0.
    fn read_register(&mut self, offset: u64) -> u32 {
        match Register::at(self.mode(), offset) {
            Some(Register::Hcr(index)) => self.hcr.read(index),
            Some(Register::Ecr(half)) => self.events.cause(half),
            Some(Register::Catas(index)) => self.chip.catas.read(index),
            Some(
                Register::ClearEcr(_)
                | Register::ClearInt(_)
                | Register::EqArm(_)
                | Register::EqSetCi(_)
                | Register::Reset,
            ) => 0,
            None => {
                self.chip
                    .ledger
                    .count(format!("load of BAR 0 {offset:#07x}"));
                0
            }
        }
    }

    /// A store to one.
    fn write_register(&mut self, bus: &mut dyn Bus, offset: u64, value: u32) {
        match Register::at(self.mode(), offset) {
            Some(Register::Hcr(index)) => match self.hcr.write(index, value) {
                Stored::Latched => {}
                Stored::Posted(command) => {
                    self.posted(bus, command);
                    self.run(bus);
                }
                Stored::Busy => bus.report(format_args!(
                    "store to dword {index} of the HCR while the HCA owns it"
                )),
            },
            Some(Register::ClearEcr(half)) => self.events.clear_cause(half, value),
            Some(Register::ClearInt(half)) => {
                self.events.clear_pins(&mut self.chip, bus, half, value);
            }
            Some(Register::EqArm(half)) => self.events.arm(&mut self.chip, bus, half, value),
            Some(Register::EqSetCi(eqn)) => {
                let rung = self.events.set_counter(&mut self.chip, bus, eqn, value);
                if rung == Rung::Overrun {
                    bus.report(format_args!("EQ {eqn} consumes more than there is"));
                }
            }
            Some(Register::Reset) if value == bar0::RESET_VALUE => self.software_reset(bus),
            Some(Register::Reset | Register::Ecr(_) | Register::Catas(_)) | None => {
                self.chip
                    .ledger
                    .count(format!("store to BAR 0 {offset:#07x}"));
            }
        }
    }

    /// A doorbell through a page that its queue does not belong to is dropped, and told. infinihost 2.7, 4.3.
    fn wrong_page(&mut self, bus: &mut dyn Bus, page: u32, doorbell: Doorbell) {
        bus.report(format_args!(
            "UAR page {page} does not belong to the queue of {doorbell:?}"
        ));
        let mut eqe = Eqe::ZERO;
        eqe.set_event_type(EventType::LOCAL_CATASTROPHIC)
            .set_syndrome(LocalSyndrome::BAD_UAR_PAGE.0);
        self.events.post(&mut self.chip, bus, &eqe);
    }

    /// A store to BAR 2.
    fn ring(&mut self, bus: &mut dyn Bus, offset: u64, data: &[u8]) {
        if self.params().is_none() || self.chip.catas.is_raised() {
            return self.chip.ledger.count("doorbell without INIT_HCA");
        }
        let (page, effect) = self.uar.write(offset, data);
        let doorbell = match effect {
            Ok(Effect::Rung(doorbell)) => doorbell,
            Ok(Effect::FirstHalf) => return,
            Ok(Effect::Unmodelled) => {
                return self
                    .chip
                    .ledger
                    .count(format!("UAR page offset {:#05x}", offset & 0xfff));
            }
            Err(error) => return bus.report(format_args!("UAR page {page}: {error}")),
        };
        let rung = match doorbell {
            Doorbell::Eq(doorbell) if doorbell.command == EqCommand::DISARM_CQ => {
                self.cqs.disarm(doorbell.parameter & 0xff_ffff)
            }
            Doorbell::Eq(doorbell) => self.events.ring(&mut self.chip, bus, page, doorbell),
            Doorbell::Cq(doorbell) => {
                let (chip, events) = (&mut self.chip, &mut self.events);
                self.cqs.ring(chip, events, bus, page, doorbell)
            }
            Doorbell::Arm(doorbell) => {
                let (chip, events) = (&mut self.chip, &mut self.events);
                self.cqs.arm(chip, events, bus, page, doorbell)
            }
            Doorbell::Send(doorbell) => self.ring_send(bus, page, &Added::Chain(doorbell)),
            Doorbell::SendM(doorbell) => self.ring_send(bus, page, &Added::Counted(doorbell)),
            Doorbell::Receive(doorbell) => self.ring_receive(bus, page, &doorbell),
        };
        match rung {
            Rung::Done => {}
            Rung::State => {}
            Rung::Unmodelled => self.chip.ledger.count(format!("doorbell {doorbell:?}")),
            Rung::NoSuchQueue => self.chip.ledger.count(match doorbell {
                Doorbell::Send(_) | Doorbell::SendM(_) => "send doorbell of no QP",
                Doorbell::Receive(_) => "receive doorbell of no QP or SRQ",
                Doorbell::Cq(_) | Doorbell::Arm(_) => "doorbell of no CQ",
                Doorbell::Eq(_) => "doorbell of no EQ",
            }),
            Rung::WrongPage => self.wrong_page(bus, page, doorbell),
            Rung::Overrun => bus.report(format_args!("{doorbell:?} consumes more than there is")),
            Rung::Full => bus.report(format_args!("{doorbell:?} is one too many")),
        }
    }
}

impl PciFunction for InfiniHost {
    fn name(&self) -> &str {
        self.config.variant.name()
    }

    fn config_read(&mut self, bus: &mut dyn Bus, offset: u16, data: &mut [u8]) {
        if bus.now() < self.silent_until {
            return data.fill(0xff);
        }
        self.chip.pci.config_read(offset, data);
    }

    fn config_write(&mut self, bus: &mut dyn Bus, offset: u16, data: &[u8]) {
        if bus.now() < self.silent_until {
            return;
        }
        self.chip.pci.config_write(bus, offset, data);
        self.chip.memory.bus_master = self.chip.pci.config.bus_master();
    }

    fn bar_len(&self, bar: u8) -> Option<u64> {
        self.chip.pci.config.bar_len(bar)
    }

    fn mmio_read(&mut self, bus: &mut dyn Bus, bar: u8, offset: u64, data: &mut [u8]) {
        if bus.now() < self.silent_until || !self.chip.pci.config.memory_enabled() {
            return data.fill(0xff);
        }
        if self.chip.pci.mmio_read(bar, offset, data) {
            return;
        }
        match bar {
            pci::BAR_DCS if offset.is_multiple_of(4) && matches!(data.len(), 4 | 8) => {
                let (dwords, _) = data.as_chunks_mut::<4>();
                for (at, dword) in (offset..).step_by(4).zip(dwords) {
                    *dword = self.read_register(at).to_be_bytes();
                }
            }
            pci::BAR_DCS => {
                let width = data.len();
                bus.report(format_args!("load of {width} bytes at BAR 0 {offset:#07x}"));
                data.fill(0xff);
            }
            pci::BAR_DDR if !matches!(self.system, System::PowerOn) => {
                if self.chip.memory.ddr.read(offset, data).is_err() {
                    data.fill(0xff);
                }
            }
            pci::BAR_UAR => {
                self.chip.ledger.count("load from a UAR page");
                data.fill(0);
            }
            _ => {
                self.chip
                    .ledger
                    .count(format!("load from BAR {bar} before SYS_EN"));
                data.fill(0xff);
            }
        }
    }

    fn mmio_write(&mut self, bus: &mut dyn Bus, bar: u8, offset: u64, data: &[u8]) {
        if bus.now() < self.silent_until || !self.chip.pci.config.memory_enabled() {
            return;
        }
        if self.chip.pci.mmio_write(bus, bar, offset, data) {
            return;
        }
        match bar {
            pci::BAR_DCS if offset.is_multiple_of(4) && matches!(data.len(), 4 | 8) => {
                let (dwords, _) = data.as_chunks::<4>();
                for (at, dword) in (offset..).step_by(4).zip(dwords) {
                    self.write_register(bus, at, u32::from_be_bytes(*dword));
                }
            }
            pci::BAR_DCS => {
                let width = data.len();
                bus.report(format_args!(
                    "store of {width} bytes at BAR 0 {offset:#07x}"
                ));
            }
            pci::BAR_UAR => {
                self.ring(bus, offset, data);
                self.run(bus);
            }
            pci::BAR_DDR if !matches!(self.system, System::PowerOn) => {
                if self.chip.memory.ddr.write(offset, data).is_err() {
                    bus.report(format_args!("store beyond BAR 4 at {offset:#x}"));
                }
            }
            _ => self
                .chip
                .ledger
                .count(format!("store to BAR {bar} before SYS_EN")),
        }
    }

    fn ports(&self) -> u8 {
        self.config.ports
    }

    fn receive(&mut self, bus: &mut dyn Bus, port: u8, packet: &[u8]) {
        if self.params().is_none() || self.chip.catas.is_raised() {
            return;
        }
        self.arrived(bus, port, packet);
        self.run(bus);
    }

    fn link_changed(&mut self, bus: &mut dyn Bus, port: u8, up: Option<LinkParameters>) {
        self.link(bus, port, up);
        self.run(bus);
    }

    fn send_room(&mut self, bus: &mut dyn Bus, port: u8, vl: u8) {
        self.room(port, vl);
        self.run(bus);
    }

    fn timer(&mut self, bus: &mut dyn Bus, id: TimerId) {
        match id {
            timers::COMMAND => self.commands_due(bus),
            timers::TRAP => self.trap_due(bus),
            timers::WATCH => self.watch_due(bus),
            _ => {
                if let Some(qpn) = timers::qpn(id) {
                    self.connection_timer(bus, qpn);
                }
            }
        }
        self.run(bus);
    }

    fn reset(&mut self, bus: &mut dyn Bus) {
        self.bus_reset(bus);
    }

    fn reaches(&self, bus: &mut dyn Bus, at: DmaAddr, len: u64) -> Option<String> {
        let (chip, at) = (&self.chip, at.get());
        if let Some(eqn) = self.events.reaches(chip, bus, at, len) {
            return Some(format!("EQ {eqn}"));
        }
        if let Some(cqn) = self.cqs.reaches(chip, bus, at, len) {
            return Some(format!("CQ {cqn:#x}"));
        }
        if let Some(opcode) = self.mailbox_of(at, len) {
            return Some(format!("a mailbox of {opcode:?}"));
        }
        if let Some(area) = chip.memory.icm().and_then(|icm| icm.reaches(at, len)) {
            return Some(area.into());
        }
        let index = chip.keys.region_of(&chip.memory, bus, at, len)?;
        Some(format!("MPT entry {index:#x}"))
    }

    fn ledger(&self) -> &Ledger {
        &self.chip.ledger
    }
}
