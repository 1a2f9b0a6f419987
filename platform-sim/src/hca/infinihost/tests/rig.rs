//! A machine with one card in it and no driver: host memory, what came out of the card, and the accesses that a driver
//! makes.

use super::super::ddr::Ddr;
use super::super::{Config, InfiniHost};
use crate::machine::{
    Bus, DmaFault, LinkControl, LinkParameters, Message, PciFunction, SendQueueFull, TimerId,
};
use core_ib::platform::DmaAddr;
use core_ib::{Guid, Instant};
use hca_abi::infinihost::cmd::{CmdStatus, Opcode};
use hca_abi::infinihost::doorbell::{EqCommand, EqDoorbell};
use hca_abi::infinihost::eq::{EqContext, EqState};
use hca_abi::infinihost::eqe::Eqe;
use hca_abi::infinihost::init_hca::InitHca;
use hca_abi::infinihost::mpt::{Mpt, MptStatus};
use hca_abi::infinihost::regs;
use std::collections::BTreeMap;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Bus address of BAR 0.
pub const BAR0: u64 = 0xe000_0000;
/// Bus address of BAR 2.
pub const BAR2: u64 = 0xe100_0000;
/// Bus address of BAR 4.
pub const BAR4: u64 = 0xf000_0000;
/// Host memory ends here; it starts at 0.
pub const HOST_END: u64 = 64 << 20;
/// Input mailbox.
pub const IN: u64 = 0x1000;
/// Output mailbox.
pub const OUT: u64 = 0x2000;

/// Everything outside of the card.
pub struct FakeBus {
    pub now: Instant,
    pub memory: Ddr,
    pub messages: Vec<Message>,
    pub pin: bool,
    pub sent: Vec<(u8, Vec<u8>)>,
    /// Lanes of which nothing is taken.
    pub full: bool,
    pub links: Vec<(u8, LinkControl)>,
    pub timers: BTreeMap<TimerId, Instant>,
    pub reports: Vec<String>,
    /// DMA accesses so far.
    pub accesses: usize,
}

impl Bus for FakeBus {
    fn now(&self) -> Instant {
        self.now
    }
    fn dma_read(&mut self, at: DmaAddr, data: &mut [u8]) -> Result<(), DmaFault> {
        self.accesses += 1;
        let len = data.len();
        let fault = DmaFault::NotMapped { at, len };
        self.memory.read(at.get(), data).map_err(|_| fault)
    }
    fn dma_write(&mut self, at: DmaAddr, data: &[u8]) -> Result<(), DmaFault> {
        self.accesses += 1;
        let len = data.len();
        let fault = DmaFault::NotMapped { at, len };
        self.memory.write(at.get(), data).map_err(|_| fault)
    }
    fn set_intx(&mut self, asserted: bool) {
        self.pin = asserted;
    }
    fn message(&mut self, message: Message) {
        self.messages.push(message);
    }
    fn send(&mut self, port: u8, packet: &[u8]) -> Result<(), SendQueueFull> {
        if self.full {
            return Err(SendQueueFull);
        }
        self.sent.push((port, packet.to_vec()));
        Ok(())
    }
    fn set_link(&mut self, port: u8, control: LinkControl) {
        self.links.push((port, control));
    }
    fn set_timer(&mut self, id: TimerId, at: Instant) {
        self.timers.insert(id, at);
    }
    fn cancel_timer(&mut self, id: TimerId) {
        self.timers.remove(&id);
    }
    fn report(&mut self, what: core::fmt::Arguments<'_>) {
        self.reports.push(what.to_string());
    }
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    pub status: CmdStatus,
    pub immediate: u64,
}

/// Card and machine.
pub struct Rig {
    pub hca: InfiniHost,
    pub bus: FakeBus,
}

impl Rig {
    pub fn new(config: Config) -> Self {
        let mut rig = Self {
            hca: InfiniHost::new(config),
            bus: FakeBus {
                now: Instant(1_000),
                memory: Ddr::new(HOST_END),
                messages: Vec::new(),
                pin: false,
                sent: Vec::new(),
                full: false,
                links: Vec::new(),
                timers: BTreeMap::new(),
                reports: Vec::new(),
                accesses: 0,
            },
        };
        rig.configure();
        rig
    }

    /// An ordinary card, whose node GUID ends with `number`.
    pub fn card(number: u64) -> Self {
        Self::new(Config::new(Guid(0x0002_c900_0000_0000 | number << 4)))
    }

    /// Gives the BARs their addresses, and makes the card bus master.
    pub fn configure(&mut self) {
        for (at, address) in [(0x10, BAR0), (0x18, BAR2), (0x20, BAR4)] {
            self.config_write(at, &address.to_le_bytes());
        }
        self.config_write(0x04, &[0x06, 0]);
    }

    pub fn config_write(&mut self, at: u16, data: &[u8]) {
        for (at, piece) in (at..).step_by(4).zip(data.chunks(4)) {
            self.hca.config_write(&mut self.bus, at, piece);
        }
    }

    pub fn config_read32(&mut self, at: u16) -> u32 {
        let mut data = [0; 4];
        self.hca.config_read(&mut self.bus, at, &mut data);
        u32::from_le_bytes(data)
    }

    pub fn write32(&mut self, bar: u8, at: u64, value: u32) {
        self.hca
            .mmio_write(&mut self.bus, bar, at, &value.to_be_bytes());
    }

    pub fn read32(&mut self, bar: u8, at: u64) -> u32 {
        let mut data = [0; 4];
        self.hca.mmio_read(&mut self.bus, bar, at, &mut data);
        u32::from_be_bytes(data)
    }

    /// Rings a doorbell of UAR page `page`.
    pub fn ring(&mut self, page: u64, register: usize, value: u64) {
        let at = page * 4096 + register as u64;
        self.hca
            .mmio_write(&mut self.bus, 2, at, &value.to_be_bytes());
    }

    pub fn store<T: IntoBytes + Immutable + ?Sized>(&mut self, at: u64, value: &T) {
        self.bus.memory.write(at, value.as_bytes()).unwrap();
    }

    /// Stores into attached memory, as the host does through BAR 4.
    pub fn store_attached<T: IntoBytes + Immutable + ?Sized>(&mut self, at: u64, value: &T) {
        for (at, byte) in (at - BAR4..).zip(value.as_bytes()) {
            self.hca.mmio_write(&mut self.bus, 4, at, &[*byte]);
        }
    }

    pub fn load<T: FromBytes + IntoBytes>(&self, at: u64) -> T {
        let mut value = T::new_zeroed();
        self.bus.memory.read(at, value.as_mut_bytes()).unwrap();
        value
    }

    /// Lets timers run until none is set for the next millisecond.
    pub fn settle(&mut self) {
        self.settle_for(1_000_000);
    }

    /// Lets so many nanoseconds pass.
    pub fn settle_for(&mut self, nanoseconds: u64) {
        let end = Instant(self.bus.now.0 + nanoseconds);
        while let Some((&id, &at)) = self.bus.timers.iter().min_by_key(|(_, at)| **at)
            && at <= end
        {
            self.bus.timers.remove(&id);
            self.bus.now = if at > self.bus.now { at } else { self.bus.now };
            self.hca.timer(&mut self.bus, id);
        }
    }

    /// Writes the command block, last dword last.
    pub fn post(
        &mut self,
        opcode: Opcode,
        modifier: u8,
        object: u32,
        in_param: u64,
        event: Option<u16>,
    ) {
        let control = if event.is_some() {
            0x00c0_0000
        } else {
            0x0080_0000
        };
        let token = u32::from(event.unwrap_or(0xffff)) << 16;
        let dwords = [
            (in_param >> 32) as u32,
            in_param as u32,
            object,
            (OUT >> 32) as u32,
            OUT as u32,
            token,
            control | u32::from(modifier) << 12 | u32::from(opcode.0),
        ];
        for (at, dword) in (regs::HCR as u64..).step_by(4).zip(dwords) {
            self.write32(0, at, dword);
        }
    }

    /// A polled command.
    pub fn command(&mut self, opcode: Opcode, modifier: u8, object: u32, in_param: u64) -> Ended {
        self.post(opcode, modifier, object, in_param, None);
        self.settle();
        let control = self.read32(0, regs::HCR_CONTROL as u64);
        assert_eq!(control & 0x0080_0000, 0, "{opcode:?} does not end");
        let high = u64::from(self.read32(0, regs::HCR_OUT_PARAM_HIGH as u64));
        let low = u64::from(self.read32(0, regs::HCR_OUT_PARAM_LOW as u64));
        Ended {
            status: CmdStatus((control >> 24) as u8),
            immediate: high << 32 | low,
        }
    }

    /// One without input.
    pub fn plain(&mut self, opcode: Opcode, object: u32) -> CmdStatus {
        self.command(opcode, 0, object, 0).status
    }

    /// One with an input mailbox.
    pub fn give<T: IntoBytes + Immutable>(
        &mut self,
        opcode: Opcode,
        modifier: u8,
        object: u32,
        input: &T,
    ) -> CmdStatus {
        self.store(IN, input);
        self.command(opcode, modifier, object, IN).status
    }

    /// One with an output mailbox.
    pub fn ask<T: FromBytes + IntoBytes>(&mut self, opcode: Opcode, object: u32) -> T {
        let status = self.plain(opcode, object);
        assert_eq!(status, CmdStatus::OK, "{opcode:?}");
        self.load(OUT)
    }

    /// The cable of `port` is plugged into something that trains, or is pulled.
    pub fn link(&mut self, port: u8, up: bool) {
        let up = up.then_some(LinkParameters::X4_SDR);
        self.hca.link_changed(&mut self.bus, port, up);
    }
}

/// Key of all memory, host's and attached.
pub const ALL: u32 = 0x10;
/// The domain that everything belongs to.
pub const PD: u32 = 0x77;
/// UAR page of everything.
pub const UAR: u32 = 2;
/// EQ of completions: 2^4 entries at this host address, message 0.
pub const EQ_COMPLETION: (u8, u64) = (1, 0x1_0000);
/// EQ of asynchronous events, message 1.
pub const EQ_ASYNC: (u8, u64) = (2, 0x1_1000);
/// EQ of commands, message 2.
pub const EQ_COMMAND: (u8, u64) = (3, 0x1_2000);
/// Log2 of the size of an EQ.
pub const LOG_EQ: u8 = 4;

/// Tables one megabyte apart.
pub fn tables() -> InitHca {
    let mut init = InitHca::ZERO;
    let mb = |count: u64| BAR4 + (count << 20);
    init.set_ud_av_port_check(true)
        .set_qpc_base(mb(0))
        .set_log_qps(10)
        .set_eqpc_base(mb(1))
        .set_cqc_base(mb(2))
        .set_log_cqs(10)
        .set_srqc_base(mb(3))
        .set_log_srqs(10)
        .set_eqc_base(mb(4))
        .set_log_eqs(5)
        .set_mc_base(mb(5))
        .set_log_mc_entry_size(8)
        .set_mc_hash_size(64)
        .set_log_mc_table_size(7)
        .set_mpt_base(mb(6))
        .set_log_mpts(10)
        .set_mtt_base(mb(7));
    init
}

/// A region of all addresses.
pub fn all_memory() -> Mpt {
    let mut entry = Mpt::ZERO;
    entry
        .set_status(MptStatus::SOFTWARE)
        .set_local_read(true)
        .set_local_write(true)
        .set_physical(true)
        .set_region(true)
        .set_key(ALL)
        .set_pd(PD)
        .set_length(Mpt::NO_LIMIT);
    entry
}

/// An EQ with its ring at `at`.
pub fn eq_context(at: u64, intr: u8) -> EqContext {
    let mut context = EqContext::ZERO;
    context
        .set_translate(true)
        .set_state(EqState::ARMED)
        .set_start_address(at)
        .set_log_size(LOG_EQ)
        .set_uar_page(UAR)
        .set_pd(PD)
        .set_lkey(ALL)
        .set_intr(intr);
    context
}

impl Rig {
    /// SYS_EN, INIT_HCA.
    pub fn init(&mut self) {
        assert_eq!(self.plain(Opcode::SYS_EN, 0), CmdStatus::OK);
        assert_eq!(self.give(Opcode::INIT_HCA, 0, 0, &tables()), CmdStatus::OK);
    }

    /// All entries of a ring of 32-byte entries belong to the HCA.
    pub fn fresh_ring(&mut self, at: u64, entries: u64) {
        for entry in 0..entries {
            self.store(at + entry * 32 + 31, &0x80_u8);
        }
    }

    pub fn create_eq(&mut self, (eqn, at): (u8, u64), intr: u8) {
        self.fresh_ring(at, 1 << LOG_EQ);
        let context = eq_context(at, intr);
        assert_eq!(
            self.give(Opcode::SW2HW_EQ, 0, eqn.into(), &context),
            CmdStatus::OK
        );
    }

    pub fn map_eq(&mut self, eqn: u8, mask: u64) {
        let ended = self.command(Opcode::MAP_EQ, 0, eqn.into(), mask);
        assert_eq!(ended.status, CmdStatus::OK);
    }

    /// All that Linux does before its first event, with interrupts by message or by pin.
    pub fn start(&mut self, by_message: bool) {
        self.init();
        assert_eq!(
            self.give(Opcode::SW2HW_MPT, 0, ALL, &all_memory()),
            CmdStatus::OK
        );
        if by_message {
            self.enable_messages();
        }
        for (eq, vector) in [EQ_COMPLETION, EQ_ASYNC, EQ_COMMAND].into_iter().zip(0..) {
            let intr = if by_message { 0x80 + vector } else { 31 };
            self.create_eq(eq, intr);
        }
        self.map_eq(EQ_ASYNC.0, 0x1f_43fe);
        self.map_eq(EQ_COMMAND.0, 0x400);
        for (eqn, _) in [EQ_COMPLETION, EQ_ASYNC, EQ_COMMAND] {
            self.arm_eq(eqn);
        }
    }

    /// MSI-X on; message n stores n to 0xfee0_0000.
    pub fn enable_messages(&mut self) {
        self.config_write(0x40, &0x8000_0000_u32.to_le_bytes());
        for vector in 0..3_u64 {
            let at = 0x8_2000 + vector * 16;
            let entry = [0xfee0_0000, 0, vector as u32, 0];
            for (at, dword) in (at..).step_by(4).zip(entry) {
                self.hca
                    .mmio_write(&mut self.bus, 0, at, &dword.to_le_bytes());
            }
        }
    }

    pub fn ring_eq(&mut self, command: EqCommand, eqn: u8, parameter: u32) {
        let doorbell = EqDoorbell {
            command,
            eqn,
            parameter,
        };
        self.ring(UAR.into(), regs::uar::EQ, doorbell.encode());
    }

    pub fn arm_eq(&mut self, eqn: u8) {
        self.ring_eq(EqCommand::ARM, eqn, 0);
    }

    /// Entry `index` of an EQ, if it belongs to software.
    pub fn eqe(&self, (_, at): (u8, u64), index: u64) -> Option<Eqe> {
        let eqe: Eqe = self.load(at + index % (1 << LOG_EQ) * 32);
        (!eqe.owned_by_hw()).then_some(eqe)
    }

    /// Consumes all events of an EQ, from `index` on, and tells the card; the EQ is not armed.
    pub fn take_events(&mut self, eq: (u8, u64), index: &mut u64) -> Vec<Eqe> {
        let mut events = Vec::new();
        while let Some(eqe) = self.eqe(eq, *index) {
            events.push(eqe);
            self.store(eq.1 + *index % (1 << LOG_EQ) * 32 + 31, &0x80_u8);
            *index += 1;
        }
        self.ring_eq(
            EqCommand::SET_INDEX,
            eq.0,
            *index as u32 & ((1 << LOG_EQ) - 1),
        );
        events
    }

    /// Data of the messages that came, in their order.
    pub fn messages(&mut self) -> Vec<u32> {
        let messages = core::mem::take(&mut self.bus.messages);
        messages.iter().map(|message| message.data).collect()
    }
}
