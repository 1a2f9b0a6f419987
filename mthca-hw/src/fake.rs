//! A machine for unit tests: one context, memory that counts, and firmware that does as it is told.
//!
//! Every command succeeds, is remembered, and gives plausible answers; a test says which one is refused, or stays
//! silent. The device model with the behaviour of the hardware is in `platform-sim`; here a test plays the HCA.

extern crate std;

use crate::sync::AtomicBool;
use core::alloc::Layout;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use core_ib::platform::{
    Caching, Completion, Direction, DmaAddr, Handled, Handler, Platform, PlatformError, RawDma,
    Registers, Result, Vectors,
};
#[cfg(not(loom))]
use core_ib::platform::{RawGate, RawLock, Saved};
use core_ib::wire::mad::{
    AttributeId, GuidInfo, Mad, MadStatus, MtuCode, NodeInfo, PKeyTable, PortInfo, PortState,
};
use core_ib::{Guid, Instant, PKey};
use hca_abi::infinihost::cmd::{CmdStatus, Opcode};
use hca_abi::infinihost::dev_lim::DevLim;
use hca_abi::infinihost::doorbell::EqCommand;
use hca_abi::infinihost::eq::{EqContext, EqState};
use hca_abi::infinihost::eqe::{Eqe, EventType};
use hca_abi::infinihost::fw::{AdapterInfo, DdrInfo, FwInfo};
use hca_abi::infinihost::mpt::Mpt;
use hca_abi::infinihost::qp::{QpContext, QpMailbox};
use hca_abi::infinihost::regs;
use hca_abi::infinihost::vpm::VpmEntry;
use std::alloc::{alloc_zeroed, dealloc};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::vec::Vec;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// First byte of attached memory.
pub const DDR: u64 = 0x8000_0000;
/// Where a mem-free HCA has its registers of events, in BAR 0.
const CLR_INT: u64 = 0xf_00d8;
const EQ_ARM: u64 = 0xf_0200;
const EQ_SET_CI: u64 = 0xf_0400;
/// Pages that its firmware wants: its area, and auxiliary memory. The latter is no whole number of chunks.
const FIRMWARE_PAGES: u16 = 256;
const AUX_PAGES: u64 = 37;
/// Bytes of it.
const DDR_LEN: u64 = 128 << 20;
/// The GUID of the node.
pub const GUID: Guid = Guid(0x0002_c900_0000_0100);

/// What becomes of a command.
#[derive(Clone, Copy, Debug)]
pub enum Reply {
    /// It ends with this status.
    Status(CmdStatus),
    /// It never ends.
    Silence,
}

/// A command that was seen.
#[derive(Clone, Debug)]
pub struct Seen {
    pub opcode: Opcode,
    pub token: u16,
    pub input: Vec<u8>,
}

struct EqState2 {
    context: EqContext,
    producer: u32,
    /// How far the driver says that it has read, as it says it.
    consumer: u32,
    armed: bool,
}

/// The firmware, and the registers behind which it sits.
#[derive(Default)]
pub struct Firmware {
    hcr: [u32; 7],
    /// Answers to come, by opcode; without one, all is well.
    pub replies: BTreeMap<u16, VecDeque<Reply>>,
    /// The command of this number (from 0) gets this reply.
    pub nth: Option<(usize, Reply)>,
    pub seen: Vec<Seen>,
    /// Doorbells: offset in the page, and value.
    pub doorbells: Vec<(usize, u64)>,
    /// Attached memory, as far as it was written.
    ddr: BTreeMap<u64, u64>,
    mpts: BTreeMap<u32, Mpt>,
    eqs: BTreeMap<u8, EqState2>,
    command_eq: Option<u8>,
    /// Interrupts on their way: message, or the pin.
    pending: VecDeque<u16>,
    ecr: u32,
    pub error_buffer: u32,
    /// It is mem-free.
    mem_free: bool,
    /// It says that it offloads checksums.
    pub checksums: bool,
    /// It says that a WQE has no bytes.
    pub no_wqes: bool,
    /// Words of attached memory, and what was there at each SYNC_TPT.
    pub watched: [u64; 2],
    pub synced: Vec<[u64; 2]>,
    /// What QUERY_QP says.
    pub qp: QpContext,
    /// Pages behind ICM, by page; and how many the firmware has: its area, and auxiliary memory.
    icm: BTreeMap<u64, u64>,
    lent: [u64; 2],
    /// Interrupts do not arrive.
    pub deaf: bool,
    /// All ones from everywhere.
    pub gone: bool,
    pub resets: u32,
    /// SYS_EN, INIT_HCA and what is handed over, less what was taken back.
    pub debts: i32,
}

#[derive(Default)]
struct Memory {
    /// By address: how far it is behind its allocation, and that.
    out: BTreeMap<usize, (usize, Layout)>,
    /// Allocations that still succeed.
    left: Option<usize>,
}

struct Shared {
    firmware: Mutex<Firmware>,
    memory: Mutex<Memory>,
    clock: AtomicU64,
    handlers: Mutex<[Option<Bound>; 32]>,
    messages: u16,
    id: u32,
    /// Where all accesses to the HCA have their turns, if a model wants to see them.
    #[cfg(loom)]
    bus: Option<loom::sync::atomic::AtomicU32>,
}

#[derive(Clone, Copy)]
struct Bound(NonNull<dyn Handler>);
// SAFETY: a `Handler` is `Sync`; who bound it keeps it until it is unbound.
unsafe impl Send for Bound {}

/// The machine. Says on its end if memory was not given back.
pub struct Machine(Arc<Shared>);

impl Machine {
    /// With messages.
    pub fn new() -> Self {
        Self::with(32, 0x5a44_15b3)
    }

    /// For what needs no HCA.
    pub fn idle() -> Self {
        Self::new()
    }

    /// A Sinai, which is mem-free.
    pub fn sinai() -> Self {
        Self::with(32, 0x6274_15b3)
    }

    /// With this many messages and this identity.
    pub fn with(messages: u16, id: u32) -> Self {
        let firmware = Firmware {
            mem_free: [0x6282, 0x6274, 0x5e8c].contains(&(id >> 16)),
            ..Firmware::default()
        };
        Self(Arc::new(Shared {
            firmware: Mutex::new(firmware),
            memory: Mutex::default(),
            clock: AtomicU64::new(0),
            handlers: Mutex::new([None; 32]),
            messages,
            id,
            #[cfg(loom)]
            bus: None,
        }))
    }

    /// The same, whose bus the model sees.
    #[cfg(loom)]
    pub fn on_a_bus(mut self) -> Self {
        let shared = Arc::get_mut(&mut self.0).unwrap();
        shared.bus = Some(loom::sync::atomic::AtomicU32::new(0));
        self
    }

    /// An access of the HCA's to memory.
    #[cfg(loom)]
    pub fn access(&self) {
        self.0.access();
    }

    pub fn firmware(&self) -> MutexGuard<'_, Firmware> {
        self.0.firmware.lock().unwrap()
    }

    /// The next commands of this kind get these replies.
    pub fn reply(&self, opcode: Opcode, replies: impl IntoIterator<Item = Reply>) {
        let mut firmware = self.firmware();
        firmware
            .replies
            .entry(opcode.0)
            .or_default()
            .extend(replies);
    }

    /// So many allocations succeed, then none.
    pub fn allow_allocations(&self, left: Option<usize>) {
        self.0.memory.lock().unwrap().left = left;
    }

    /// Pieces of memory that are out.
    pub fn pieces_out(&self) -> usize {
        self.0.memory.lock().unwrap().out.len()
    }

    /// Are handlers bound?
    pub fn bound(&self) -> usize {
        self.0.handlers.lock().unwrap().iter().flatten().count()
    }

    /// Runs the handlers of interrupts on their way.
    pub fn deliver(&self) -> bool {
        self.0.deliver()
    }

    /// Writes an event, as the HCA would.
    pub fn event(&self, eqn: u8, eqe: Eqe) {
        #[cfg(loom)]
        self.access();
        self.firmware().event(eqn, eqe);
    }
}

impl Shared {
    /// Somebody uses the bus: that alone orders nothing else, which barriers do.
    #[cfg(loom)]
    fn access(&self) {
        if let Some(bus) = &self.bus {
            bus.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn deliver(&self) -> bool {
        let mut any = false;
        loop {
            let vector = self.firmware.lock().unwrap().pending.pop_front();
            let Some(vector) = vector else { return any };
            let bound = self.handlers.lock().unwrap()[usize::from(vector)];
            if let Some(Bound(handler)) = bound {
                // SAFETY: valid until unbound, which the one context that there is does not do here.
                let _: Handled = unsafe { handler.as_ref() }.handle();
                any = true;
            }
        }
    }

    fn allocate(&self, layout: Layout) -> Option<NonNull<u8>> {
        // A model is to go the same way each time, and the pages of a region are as large as its address allows: under
        // loom none is better aligned than was asked for.
        let behind = if cfg!(loom) { layout.align() } else { 0 };
        let size = layout.size() + behind;
        let layout = Layout::from_size_align(size, layout.align() + behind).ok()?;
        let mut memory = self.memory.lock().unwrap();
        if let Some(left) = &mut memory.left {
            *left = left.checked_sub(1)?;
        }
        // SAFETY: nobody asks for nothing.
        let first = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        // SAFETY: the allocation is longer by this.
        let at = unsafe { first.add(behind) };
        memory.out.insert(at.as_ptr().addr(), (behind, layout));
        Some(at)
    }

    fn free(&self, at: NonNull<u8>) {
        let out = self.memory.lock().unwrap().out.remove(&at.as_ptr().addr());
        let (behind, layout) = out.expect("memory that is out");
        // SAFETY: so far behind what was allocated with this layout, and out until now.
        unsafe { dealloc(at.sub(behind).as_ptr(), layout) };
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        for (at, (behind, layout)) in &self.memory.get_mut().unwrap().out {
            // SAFETY: still out, with this layout. Leaked on purpose by a test, which has looked at it.
            unsafe { dealloc((*at - *behind) as *mut u8, *layout) };
        }
    }
}

/// Bytes of the input and output mailboxes.
fn mailboxes(opcode: Opcode, mem_free: bool) -> (usize, usize) {
    let srq = if mem_free { 48 } else { 32 };
    match opcode {
        Opcode::ENABLE_LAM => (0, 256),
        Opcode::MAP_FA | Opcode::MAP_ICM_AUX | Opcode::MAP_ICM => (256, 0),
        Opcode::QUERY_FW | Opcode::QUERY_DDR | Opcode::QUERY_DEV_LIM | Opcode::QUERY_ADAPTER => {
            (0, 256)
        }
        Opcode::INIT_HCA => (512, 0),
        Opcode::MAD_IFC => (512, 256),
        Opcode::SW2HW_MPT | Opcode::SW2HW_EQ | Opcode::SW2HW_CQ => (64, 0),
        Opcode::HW2SW_EQ | Opcode::HW2SW_CQ => (0, 64),
        Opcode::RST2INIT_QPEE
        | Opcode::INIT2RTR_QPEE
        | Opcode::RTR2RTS_QPEE
        | Opcode::RTS2RTS_QPEE
        | Opcode::SQERR2RTS_QPEE
        | Opcode::INIT2INIT_QPEE => (264, 0),
        Opcode::QUERY_QPEE => (0, 264),
        Opcode::RESIZE_CQ => (64, 0),
        Opcode::SW2HW_SRQ => (srq, 0),
        Opcode::HW2SW_SRQ | Opcode::QUERY_SRQ => (0, srq),
        _ => (0, 0),
    }
}

fn load(at: u64, len: usize) -> Vec<u8> {
    // SAFETY: bus addresses are pointers here, and the driver lends what it names.
    unsafe { core::slice::from_raw_parts(at as *const u8, len) }.to_vec()
}

fn store(at: u64, bytes: &[u8]) {
    // SAFETY: as for `load`.
    unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, bytes.len()) };
}

impl Firmware {
    fn control(&mut self, value: u32) {
        self.hcr[6] = value;
        let opcode = Opcode((value & 0xfff) as u16);
        let param = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
        let (in_len, out_len) = mailboxes(opcode, self.mem_free);
        let in_param = param(self.hcr[0], self.hcr[1]);
        let out_param = param(self.hcr[3], self.hcr[4]);
        let token = (self.hcr[5] >> 16) as u16;
        let modifier = self.hcr[2];
        let input = if in_len > 0 {
            load(in_param, in_len)
        } else {
            Vec::new()
        };
        let number = self.seen.len();
        self.seen.push(Seen {
            opcode,
            token,
            input: input.clone(),
        });
        let scripted = self
            .replies
            .get_mut(&opcode.0)
            .and_then(VecDeque::pop_front);
        let reply = match self.nth {
            Some((nth, reply)) if nth == number => Some(reply),
            _ => scripted,
        };
        let event = value & (1 << 22) != 0;
        let status = match reply {
            Some(Reply::Silence) if event => {
                self.hcr[6] = 0; // accepted
                return;
            }
            Some(Reply::Silence) => return,
            Some(Reply::Status(status)) => status,
            None if opcode == Opcode::ENABLE_LAM => CmdStatus::LAM_NOT_PRE,
            None => CmdStatus::OK,
        };
        let mut output = std::vec![0; out_len];
        let mut immediate = 0;
        if status == CmdStatus::OK {
            immediate = self.execute(opcode, modifier, in_param, &input, &mut output);
            if out_len > 0 {
                store(out_param, &output);
            }
        }
        if event {
            self.hcr[6] = 0;
            self.complete(token, status, immediate);
        } else {
            self.hcr[3] = (immediate >> 32) as u32;
            self.hcr[4] = immediate as u32;
            self.hcr[6] = u32::from(status.0) << 24 | u32::from(opcode.0);
        }
    }

    /// Writes the event that ends a command.
    pub fn complete(&mut self, token: u16, status: CmdStatus, immediate: u64) {
        let Some(eqn) = self.command_eq else { return };
        let mut eqe = Eqe::ZERO;
        eqe.set_event_type(EventType::COMMAND)
            .set_token(token)
            .set_syndrome(status.0)
            .set_out_param(immediate);
        self.event(eqn, eqe);
    }

    fn execute(
        &mut self,
        opcode: Opcode,
        modifier: u32,
        in_param: u64,
        input: &[u8],
        output: &mut [u8],
    ) -> u64 {
        match opcode {
            Opcode::SYS_EN | Opcode::INIT_HCA => self.debts += 1,
            Opcode::SYS_DIS | Opcode::CLOSE_HCA => self.debts -= 1,
            Opcode::SYNC_TPT if self.watched[0] != 0 => {
                self.synced.push(self.watched.map(|at| self.attached(at)));
            }
            Opcode::QUERY_QPEE => put(output, &QpMailbox::new(0, self.qp)),
            Opcode::QUERY_FW => put(output, &firmware_info(self.mem_free)),
            Opcode::QUERY_DDR => put(output, &ddr_info()),
            Opcode::QUERY_DEV_LIM => put(output, &self.dev_lim()),
            Opcode::MAP_FA => self.lend(0, modifier, input),
            Opcode::MAP_ICM_AUX => self.lend(1, modifier, input),
            Opcode::UNMAP_FA => self.give_back(0),
            Opcode::UNMAP_ICM_AUX => self.give_back(1),
            Opcode::RUN_FW => assert_eq!(self.lent[0], u64::from(FIRMWARE_PAGES)),
            Opcode::SET_ICM_SIZE => return AUX_PAGES,
            Opcode::MAP_ICM => {
                for block in blocks(modifier, input) {
                    for page in 0..1 << block.log_pages() {
                        let at = block.virtual_address() / 4096 + page;
                        let host = block.bus_address() + page * 4096;
                        assert!(self.icm.insert(at, host).is_none(), "mapped twice");
                        self.debts += 1;
                    }
                }
            }
            Opcode::UNMAP_ICM => {
                for page in 0..u64::from(modifier) {
                    let was = self.icm.remove(&(in_param / 4096 + page));
                    self.debts -= i32::from(was.is_some());
                }
            }
            Opcode::QUERY_ADAPTER => {
                let mut adapter = AdapterInfo::ZERO;
                adapter.set_inta_pin(31).set_revision_id(0xa1);
                put(output, &adapter);
            }
            Opcode::MAD_IFC => answer(input, output),
            Opcode::SW2HW_MPT => {
                self.debts += 1;
                let entry = Mpt::read_from_bytes(input).unwrap();
                assert!(self.mpts.insert(modifier, entry).is_none());
            }
            Opcode::HW2SW_MPT => {
                self.debts -= 1;
                assert!(self.mpts.remove(&modifier).is_some());
            }
            Opcode::SW2HW_EQ => {
                self.debts += 1;
                let context = EqContext::read_from_bytes(input).unwrap();
                let armed = [EqState::ARMED, EqState::M_ARMED].contains(&context.state());
                let eq = EqState2 {
                    context,
                    producer: 0,
                    consumer: 0,
                    armed,
                };
                assert!(self.eqs.insert(modifier as u8, eq).is_none());
            }
            Opcode::HW2SW_EQ => {
                self.debts -= 1;
                assert!(self.eqs.remove(&(modifier as u8)).is_some());
            }
            Opcode::MAP_EQ => {
                let on = modifier >> 31 == 0;
                self.debts += if on { 1 } else { -1 };
                if in_param & EventType::COMMAND.mask() != 0 {
                    self.command_eq = on.then_some(modifier as u8);
                }
            }
            Opcode::CONF_SPECIAL_QP if modifier != 0 => self.debts += 1,
            Opcode::CONF_SPECIAL_QP => self.debts -= 1,
            Opcode::SW2HW_CQ | Opcode::SW2HW_SRQ | Opcode::RST2INIT_QPEE => self.debts += 1,
            Opcode::HW2SW_CQ | Opcode::HW2SW_SRQ | Opcode::ERR2RST_QPEE => self.debts -= 1,
            _ => {}
        }
        0
    }

    fn lend(&mut self, area: usize, count: u32, input: &[u8]) {
        for block in blocks(count, input) {
            assert_eq!(block.virtual_address(), 0);
            self.lent[area] += 1 << block.log_pages();
            self.debts += 1 << block.log_pages();
        }
    }

    fn give_back(&mut self, area: usize) {
        self.debts -= core::mem::take(&mut self.lent[area]) as i32;
    }

    /// What page is behind this address of ICM.
    pub fn page(&self, address: u64) -> Option<u64> {
        self.icm.get(&(address / 4096)).copied()
    }

    /// The 64-bit number at this address of ICM, and whether anything is behind it.
    fn icm(&self, address: u64) -> Option<u64> {
        let host = self.icm.get(&(address / 4096))? + address % 4096;
        Some(u64::from_be_bytes(load(host, 8).try_into().unwrap()))
    }

    /// Where byte `offset` of the region with this key is.
    fn translate(&self, lkey: u32, offset: u64) -> Option<u64> {
        let form = if self.mem_free {
            lkey.rotate_right(8)
        } else {
            lkey
        };
        let entry = self.mpts.values().find(|entry| entry.key() == form)?;
        let shift = 12 + u32::from(entry.page_size());
        let mtt = entry.mtt_address() + (offset >> shift) * 8;
        let page = if self.mem_free {
            self.icm(mtt)? & !0xfff
        } else {
            *self.ddr.get(&(mtt - DDR))? & !0xfff
        };
        Some(page + (offset & ((1 << shift) - 1)))
    }

    /// Writes to a region, as the HCA would.
    pub fn write(&self, lkey: u32, offset: u64, bytes: &[u8]) {
        let at = self.translate(lkey, offset).expect("a valid region");
        store(at, bytes);
    }

    /// Reads from a region.
    pub fn read(&self, lkey: u32, offset: u64, len: usize) -> Vec<u8> {
        load(self.translate(lkey, offset).expect("a valid region"), len)
    }

    /// The 64-bit word at this address of attached memory.
    pub fn attached(&self, address: u64) -> u64 {
        self.ddr.get(&(address - DDR)).copied().unwrap_or(0)
    }

    fn event(&mut self, eqn: u8, mut eqe: Eqe) {
        eqe.set_owned_by_hw(false);
        let Some(eq) = self.eqs.get_mut(&eqn) else {
            return;
        };
        let mask = (1 << eq.context.log_size()) - 1;
        let (lkey, offset) = (eq.context.lkey(), (eq.producer & mask) * 32);
        eq.producer += 1;
        let fires = core::mem::take(&mut eq.armed);
        let intr = eq.context.intr();
        self.write(lkey, offset.into(), eqe.as_bytes());
        if fires && !self.deaf {
            self.fire(eqn, intr);
        }
    }

    fn fire(&mut self, eqn: u8, intr: u8) {
        if intr >= EqContext::MSIX {
            self.pending.push_back((intr - EqContext::MSIX).into());
        } else {
            self.ecr |= 1 << eqn;
            self.pending.push_back(0);
        }
    }

    fn doorbell(&mut self, offset: usize, value: u64) {
        self.doorbells.push((offset, value));
        let eqn = (value >> 32) as u8 & 63;
        if offset == regs::uar::EQ {
            match EqCommand((value >> 56) as u8) {
                EqCommand::SET_INDEX => self.set_index(eqn, value as u32),
                EqCommand::ARM => self.arm(eqn),
                _ => {}
            }
        }
    }

    fn set_index(&mut self, eqn: u8, consumer: u32) {
        if let Some(eq) = self.eqs.get_mut(&eqn) {
            eq.consumer = consumer;
        }
    }

    /// An event that is there already interrupts at once. infinihost 4.2.
    fn arm(&mut self, eqn: u8) {
        let Some(eq) = self.eqs.get_mut(&eqn) else {
            return;
        };
        let mask = (1 << eq.context.log_size()) - 1;
        eq.armed = (eq.producer ^ eq.consumer) & mask == 0;
        let (armed, intr) = (eq.armed, eq.context.intr());
        if !armed && !self.deaf {
            self.fire(eqn, intr);
        }
    }

    fn dev_lim(&self) -> DevLim {
        let longest_wqe = if self.no_wqes { 0 } else { 1008 };
        dev_lim(self.mem_free, self.checksums, longest_wqe)
    }

    fn power_on(&mut self) {
        let kept = core::mem::take(self);
        *self = Self {
            replies: kept.replies,
            nth: kept.nth,
            seen: kept.seen,
            mem_free: kept.mem_free,
            resets: kept.resets + 1,
            deaf: kept.deaf,
            checksums: kept.checksums,
            no_wqes: kept.no_wqes,
            qp: kept.qp,
            ..Self::default()
        };
    }
}

fn put<T: IntoBytes + Immutable>(output: &mut [u8], value: &T) {
    output.copy_from_slice(value.as_bytes());
}

/// The blocks that a mailbox lists.
fn blocks(count: u32, input: &[u8]) -> Vec<VpmEntry> {
    let (entries, _) = input.as_chunks::<16>();
    let listed = entries.iter().take(count as usize);
    let read = |entry: &[u8; 16]| VpmEntry::read_from_bytes(entry).unwrap();
    listed.map(read).collect()
}

fn firmware_info(mem_free: bool) -> FwInfo {
    let mut fw = FwInfo::ZERO;
    if mem_free {
        // As bus addresses, wherever BAR 0 is.
        let bar = 0xfe80_0000;
        fw.set_major(1)
            .set_minor(2)
            .set_log_max_commands(4)
            .set_fw_pages(FIRMWARE_PAGES)
            .set_clr_int(bar + CLR_INT)
            .set_eq_arm(bar + EQ_ARM)
            .set_eq_set_ci(bar + EQ_SET_CI)
            .set_error_buffer(bar + 0xf_0800)
            .set_error_buffer_dwords(16);
        return fw;
    }
    fw.set_major(3)
        .set_minor(5)
        .set_log_max_commands(4)
        .set_fw_start(DDR + DDR_LEN - (4 << 20))
        .set_fw_end(DDR + DDR_LEN - 1)
        .set_error_buffer(0xf_0800)
        .set_error_buffer_dwords(16);
    fw
}

fn ddr_info() -> DdrInfo {
    let mut ddr = DdrInfo::ZERO;
    ddr.set_start(DDR).set_end(DDR + DDR_LEN - 1);
    ddr
}

/// As infinihost 10.2 recommends.
fn dev_lim(mem_free: bool, checksums: bool, longest_wqe: u16) -> DevLim {
    let mut dev = DevLim::ZERO;
    if mem_free {
        dev.set_max_sg_rq(60)
            .set_max_descriptor_rq(longest_wqe)
            .set_mtt_size(8)
            .set_mpt_size(64)
            .set_max_icm(1 << 38);
    }
    dev.set_log_max_srq_size(16)
        .set_log_max_qp_size(16)
        .set_log_reserved_qps(4)
        .set_log_max_qps(24)
        .set_log_reserved_srqs(4)
        .set_log_max_srqs(13)
        .set_log_max_cq_size(17)
        .set_log_reserved_cqs(4)
        .set_log_max_cqs(24)
        .set_log_max_mpts(24)
        .set_log_max_eqs(6)
        .set_log_reserved_mtts(4)
        .set_log_reserved_mrws(4)
        .set_log_max_mtts(24)
        .set_log_max_avs(20)
        .set_log_max_ra_requester(7)
        .set_log_max_ra_responder(4)
        .set_ack_delay(15)
        .set_max_mtu(4)
        .set_port_width(3)
        .set_max_vls(4)
        .set_ports(2)
        .set_log_max_gids(5)
        .set_static_rates(0xf)
        .set_log_max_pkeys(6)
        .set_features(0x0037_0347 | u32::from(checksums) << 7)
        .set_reserved_uars(1)
        .set_log_uar_megabytes(3)
        .set_log_page_size(12)
        .set_max_sg(60)
        .set_max_descriptor(longest_wqe)
        .set_log_max_qps_per_group(8)
        .set_log_max_groups(13)
        .set_reserved_pds(4)
        .set_log_max_pds(24)
        .set_qpc_size(256)
        .set_eqpc_size(32)
        .set_eqc_size(64)
        .set_cqc_size(64)
        .set_srqc_size(32)
        .set_uar_scratch_size(32);
    dev
}

/// The subnet management agent: one port, active, without anything special.
fn answer(input: &[u8], output: &mut [u8]) {
    let mut mad = Mad::from_prefix(input).copied().unwrap();
    let header = mad.header();
    let reply = header.reply(MadStatus::OK).unwrap();
    match header.attribute {
        AttributeId::NODE_INFO => mad.put(&NodeInfo {
            node_guid: GUID,
            num_ports: 2,
            ..NodeInfo::default()
        }),
        AttributeId::PORT_INFO => mad.put(&PortInfo {
            gid_prefix: core_ib::Gid::DEFAULT_PREFIX,
            lid: core_ib::Lid(7),
            state: PortState::ACTIVE,
            mtu_cap: MtuCode(4),
            neighbor_mtu: MtuCode(4),
            ..PortInfo::default()
        }),
        AttributeId::GUID_INFO if header.modifier == 0 => {
            let mut guids = [Guid(0); 8];
            (guids[0], guids[3]) = (Guid(GUID.0 + 1), Guid(GUID.0 + 3));
            mad.put(&GuidInfo { guids })
        }
        AttributeId::P_KEY_TABLE if header.modifier == 0 => {
            let mut keys = [PKey(0); 32];
            keys[0] = PKey::DEFAULT;
            mad.put(&PKeyTable { keys })
        }
        _ => Ok(()),
    }
    .unwrap();
    mad.set_header(&reply);
    output.copy_from_slice(&mad.0);
}

/// A piece of a BAR.
pub struct FakeRegisters {
    shared: Arc<Shared>,
    bar: u8,
    at: u64,
    len: usize,
}

impl FakeRegisters {
    fn inside(&self, offset: usize, width: usize) -> Option<(MutexGuard<'_, Firmware>, u64)> {
        assert!(offset.is_multiple_of(width) && offset + width <= self.len);
        #[cfg(loom)]
        self.shared.access();
        let firmware = self.shared.firmware.lock().unwrap();
        (!firmware.gone).then_some((firmware, self.at + offset as u64))
    }
}

// SAFETY: no memory is touched.
unsafe impl Registers for FakeRegisters {
    fn caching(&self) -> Caching {
        Caching::Uncached
    }

    fn read_be32(&self, offset: usize) -> u32 {
        let Some((mut firmware, at)) = self.inside(offset, 4) else {
            return u32::MAX;
        };
        match at as usize {
            at @ regs::HCR..=regs::HCR_CONTROL => firmware.hcr[(at - regs::HCR) / 4],
            regs::ECR_LOW => firmware.ecr,
            0xf_0800 => core::mem::take(&mut firmware.error_buffer),
            _ => 0,
        }
    }

    fn write_be32(&self, offset: usize, value: u32) {
        let Some((mut firmware, at)) = self.inside(offset, 4) else {
            return;
        };
        if self.bar == 4 {
            let word = firmware.ddr.entry(at & !7).or_default();
            let shift = if at & 4 == 0 { 32 } else { 0 };
            *word = *word & !(0xffff_ffff << shift) | u64::from(value) << shift;
            return;
        }
        match at as usize {
            regs::HCR_CONTROL => firmware.control(value),
            at @ regs::HCR..regs::HCR_CONTROL => firmware.hcr[(at - regs::HCR) / 4] = value,
            at if firmware.mem_free && at as u64 == EQ_ARM + 4 => {
                for eqn in (0..32).filter(|eqn| value >> eqn & 1 != 0) {
                    firmware.arm(eqn);
                }
            }
            at if firmware.mem_free && (EQ_SET_CI..EQ_SET_CI + 0x100).contains(&(at as u64)) => {
                let eqn = (at as u64 - EQ_SET_CI) / regs::EQ_SET_CI_STRIDE as u64;
                firmware.set_index(eqn as u8, value);
            }
            regs::CLR_ECR_LOW => firmware.ecr &= !value,
            regs::RESET => firmware.power_on(),
            _ => {}
        }
    }

    fn read_be64(&self, _: usize) -> u64 {
        u64::MAX
    }

    fn write_be64(&self, offset: usize, value: u64) {
        let Some((mut firmware, at)) = self.inside(offset, 8) else {
            return;
        };
        if self.bar == 2 {
            firmware.doorbell(offset, value);
        } else {
            firmware.ddr.insert(at, value);
        }
    }
}

/// Something to wait on: waiting runs the handlers.
pub struct FakeCompletion {
    shared: Arc<Shared>,
    fired: AtomicBool,
}

impl Completion for FakeCompletion {
    fn fire(&self) {
        self.fired.store(true, Ordering::Release);
    }

    fn wait_until(&self, deadline: Instant) -> bool {
        self.shared.deliver();
        if !self.fired.load(Ordering::Acquire) {
            self.shared.clock.fetch_max(deadline.0, Ordering::Relaxed);
        }
        self.fired.swap(false, Ordering::Acquire)
    }
}

/// One context: taking it twice is a defect.
#[cfg(not(loom))]
#[derive(Default)]
pub struct FakeLock(AtomicBool);

#[cfg(loom)]
pub use crate::interleavings::LoomLock as FakeLock;

// SAFETY: a second `acquire` panics.
#[cfg(not(loom))]
unsafe impl RawLock for FakeLock {
    fn acquire(&self) -> Saved {
        assert!(!self.0.swap(true, Ordering::Acquire), "taken twice");
        Saved(0)
    }
    unsafe fn release(&self, _: Saved) {
        self.0.store(false, Ordering::Release);
    }
}

// SAFETY: likewise.
#[cfg(not(loom))]
unsafe impl RawGate for FakeLock {
    fn enter(&self) {
        self.acquire();
    }
    unsafe fn leave(&self) {
        self.0.store(false, Ordering::Release);
    }
}

// SAFETY: memory comes from the allocator, zeroed, aligned, and to one taker; its address is its bus address. There is
// one context, so that no handler runs while one is unbound.
unsafe impl Platform for Machine {
    type Registers = FakeRegisters;
    type Completion = FakeCompletion;
    type RawLock = FakeLock;
    type RawGate = FakeLock;

    fn name(&self) -> &str {
        "fake"
    }
    fn bar_len(&self, bar: u8) -> Option<u64> {
        match bar {
            0 => Some(1 << 20),
            2 => Some(8 << 20),
            4 if !self.firmware().mem_free => Some(DDR_LEN),
            _ => None,
        }
    }
    fn map(&self, bar: u8, at: u64, len: usize, _: Caching) -> Result<FakeRegisters> {
        let outside = PlatformError::OutsideBar { bar, at, len };
        if at + len as u64 > self.bar_len(bar).ok_or(outside)? {
            return Err(outside);
        }
        let shared = self.0.clone();
        Ok(FakeRegisters {
            shared,
            bar,
            at,
            len,
        })
    }
    fn config_read32(&self, offset: u16) -> u32 {
        match offset {
            _ if self.firmware().gone => u32::MAX,
            0 => self.0.id,
            _ => 0,
        }
    }
    fn config_write32(&self, _: u16, _: u32) {}

    fn dma_alloc(&self, len: usize, align: usize) -> Result<RawDma> {
        let none = PlatformError::NoDmaMemory { len };
        let size = len.next_multiple_of(4096);
        let layout = Layout::from_size_align(size, align.max(4096)).map_err(|_| none)?;
        let memory = self.0.allocate(layout).ok_or(none)?;
        let bus = DmaAddr::new(memory.as_ptr().addr() as u64);
        Ok(RawDma { memory, bus, len })
    }
    unsafe fn dma_free(&self, memory: RawDma) {
        self.0.free(memory.memory);
    }
    unsafe fn dma_map(&self, memory: NonNull<u8>, _: usize, _: Direction) -> Result<DmaAddr> {
        Ok(DmaAddr::new(memory.as_ptr().addr() as u64))
    }
    unsafe fn dma_unmap(&self, _: DmaAddr, _: usize, _: Direction) {}
    fn dma_sync(&self, _: DmaAddr, _: usize, _: Direction, _: bool) {}
    fn dma_wmb(&self) {
        #[cfg(loom)]
        loom::sync::atomic::fence(Ordering::Release);
    }
    fn dma_rmb(&self) {
        #[cfg(loom)]
        loom::sync::atomic::fence(Ordering::Acquire);
    }

    fn table_alloc(&self, layout: Layout) -> Result<NonNull<u8>> {
        let len = layout.size();
        let none = PlatformError::NoTableMemory { len };
        self.0.allocate(layout).ok_or(none)
    }
    unsafe fn table_free(&self, memory: NonNull<u8>, _: Layout) {
        self.0.free(memory);
    }

    fn now(&self) -> Instant {
        Instant(self.0.clock.load(Ordering::Relaxed))
    }
    fn sleep(&self, wait: Duration) {
        let nanos = wait.as_nanos() as u64;
        self.0.clock.fetch_add(nanos, Ordering::Relaxed);
        self.0.deliver();
    }
    fn completion(&self) -> Result<FakeCompletion> {
        let fired = AtomicBool::new(false);
        let shared = self.0.clone();
        Ok(FakeCompletion { shared, fired })
    }
    fn raw_lock(&self, _: &'static str, _: bool) -> FakeLock {
        FakeLock::default()
    }
    fn raw_gate(&self, _: &'static str) -> FakeLock {
        FakeLock::default()
    }

    fn alloc_vectors(&self, want: u16) -> Result<Vectors> {
        let count = want.min(self.0.messages);
        Ok(if count == 0 {
            Vectors::Intx
        } else {
            Vectors::Msix { count }
        })
    }
    fn free_vectors(&self) {
        assert_eq!(self.bound(), 0, "vectors given back while bound");
    }
    unsafe fn bind_interrupt(&self, vector: u16, handler: NonNull<dyn Handler>) -> Result<()> {
        let mut handlers = self.0.handlers.lock().unwrap();
        let slot = handlers.get_mut(usize::from(vector));
        match slot.filter(|slot| slot.is_none()) {
            Some(slot) => {
                *slot = Some(Bound(handler));
                Ok(())
            }
            None => Err(PlatformError::NoVector { vector }),
        }
    }
    fn unbind_interrupt(&self, vector: u16) {
        if let Some(slot) = self.0.handlers.lock().unwrap().get_mut(usize::from(vector)) {
            *slot = None;
        }
    }
}
