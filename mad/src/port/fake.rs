//! A machine and an HCA for tests: verbs in memory, and a wire that is a list.

use core::alloc::Layout;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use core::time::Duration;
use core_ib::platform::{
    Caching, Completion, Direction, DmaAddr, Handler, Platform, PlatformError, RawDma, RawGate,
    RawLock, Registers, Result as PlatformResult, Saved, Vectors,
};
use core_ib::verbs::*;
use core_ib::wire::mad::{Mad, MadStatus, Method};
use core_ib::{Gid, Guid, Instant, LKey, Lid, PKey, QKey, Qpn, RKey};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::vec::Vec;

/// A piece of DMA memory that is given out: its bus address, where it is, how long.
type Piece = (u64, usize, usize);

/// Nothing but memory; bus addresses are no pointers.
#[derive(Debug, Default)]
pub(super) struct FakeMachine {
    pieces: Mutex<Vec<Piece>>,
    next: Mutex<u64>,
    tables: AtomicUsize,
    /// The table of this number, counted from now on, is refused; 0 for none.
    refuse_table: AtomicUsize,
}

impl FakeMachine {
    /// Pieces that are given out.
    pub(super) fn pieces(&self) -> usize {
        self.pieces.lock().unwrap().len()
    }

    /// Tables that are given out.
    pub(super) fn tables(&self) -> usize {
        self.tables.load(Ordering::Relaxed)
    }

    /// Refuses table number `number` from now on.
    pub(super) fn refuse_table(&self, number: usize) {
        self.refuse_table.store(number, Ordering::Relaxed);
    }

    fn locate(&self, bus: u64, len: usize) -> *mut u8 {
        let pieces = self.pieces.lock().unwrap();
        let holds = |(at, _, size): &&Piece| *at <= bus && bus + len as u64 <= at + *size as u64;
        let (at, pointer, _) = pieces.iter().find(holds).expect("DMA outside any memory");
        (*pointer as *mut u8).wrapping_add((bus - at) as usize)
    }

    fn read(&self, bus: u64, len: usize) -> Vec<u8> {
        let from = self.locate(bus, len);
        // SAFETY: `locate` found `len` bytes there that are given out; tests have one thread.
        unsafe { core::slice::from_raw_parts(from, len) }.to_vec()
    }

    fn write(&self, bus: u64, bytes: &[u8]) {
        let to = self.locate(bus, bytes.len());
        // SAFETY: `locate` found that many bytes there that are given out; nothing refers to them.
        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }
}

pub(super) struct NoRegisters;

// SAFETY: touches nothing.
unsafe impl Registers for NoRegisters {
    fn caching(&self) -> Caching {
        Caching::Uncached
    }
    fn read_be32(&self, _: usize) -> u32 {
        u32::MAX
    }
    fn write_be32(&self, _: usize, _: u32) {}
    fn read_be64(&self, _: usize) -> u64 {
        u64::MAX
    }
    fn write_be64(&self, _: usize, _: u64) {}
}

impl Completion for NoRegisters {
    fn fire(&self) {}
    fn wait_until(&self, _: Instant) -> bool {
        false
    }
}

pub(super) struct FakeLock(AtomicBool);

// SAFETY: the flag lets one in at a time.
unsafe impl RawLock for FakeLock {
    fn acquire(&self) -> Saved {
        while self.0.swap(true, Ordering::Acquire) {
            std::thread::yield_now();
        }
        Saved(0)
    }
    unsafe fn release(&self, _: Saved) {
        self.0.store(false, Ordering::Release);
    }
}

// SAFETY: the flag lets one in at a time.
unsafe impl RawGate for FakeLock {
    fn enter(&self) {
        self.acquire();
    }
    unsafe fn leave(&self) {
        self.0.store(false, Ordering::Release);
    }
}

const NOTHING: PlatformError = PlatformError::Exhausted { what: "anything" };

// SAFETY: memory comes from the allocator, zeroed and aligned, and is known to nobody else; no interrupt is bound.
unsafe impl Platform for FakeMachine {
    type Registers = NoRegisters;
    type Completion = NoRegisters;
    type RawLock = FakeLock;
    type RawGate = FakeLock;

    fn name(&self) -> &str {
        "fake"
    }
    fn bar_len(&self, _: u8) -> Option<u64> {
        None
    }
    fn map(&self, _: u8, _: u64, _: usize, _: Caching) -> PlatformResult<NoRegisters> {
        Err(NOTHING)
    }
    fn config_read32(&self, _: u16) -> u32 {
        u32::MAX
    }
    fn config_write32(&self, _: u16, _: u32) {}
    fn dma_alloc(&self, len: usize, align: usize) -> PlatformResult<RawDma> {
        let align = align.max(4096);
        let error = PlatformError::NoDmaMemory { len };
        let layout = Layout::from_size_align(len, align).map_err(|_| error)?;
        // SAFETY: the caller asks for some bytes.
        let memory = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) }).ok_or(error)?;
        let mut next = self.next.lock().unwrap();
        let bus = (*next + 0x10_0000).next_multiple_of(align as u64);
        *next = bus + len as u64;
        let mut pieces = self.pieces.lock().unwrap();
        pieces.push((bus, memory.as_ptr() as usize, len));
        let bus = DmaAddr::new(bus);
        Ok(RawDma { memory, bus, len })
    }
    unsafe fn dma_free(&self, memory: RawDma) {
        // The bytes themselves leak: a late access shall meet no stranger.
        let mut pieces = self.pieces.lock().unwrap();
        pieces.retain(|(bus, ..)| *bus != memory.bus.get());
    }
    unsafe fn dma_map(&self, _: NonNull<u8>, len: usize, _: Direction) -> PlatformResult<DmaAddr> {
        Err(PlatformError::NotMappable { len })
    }
    unsafe fn dma_unmap(&self, _: DmaAddr, _: usize, _: Direction) {}
    fn dma_sync(&self, _: DmaAddr, _: usize, _: Direction, _: bool) {}
    fn dma_wmb(&self) {}
    fn dma_rmb(&self) {}
    fn table_alloc(&self, layout: Layout) -> PlatformResult<NonNull<u8>> {
        let len = layout.size();
        let error = PlatformError::NoTableMemory { len };
        if self.refuse_table.fetch_sub(1, Ordering::Relaxed) == 1 {
            return Err(error);
        }
        // SAFETY: nobody asks for a table of nothing.
        let memory = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) }).ok_or(error)?;
        self.tables.fetch_add(1, Ordering::Relaxed);
        Ok(memory)
    }
    unsafe fn table_free(&self, memory: NonNull<u8>, layout: Layout) {
        self.tables.fetch_sub(1, Ordering::Relaxed);
        // SAFETY: came from `table_alloc` with this layout.
        unsafe { std::alloc::dealloc(memory.as_ptr(), layout) };
    }
    fn now(&self) -> Instant {
        Instant(0)
    }
    fn sleep(&self, _: Duration) {}
    fn completion(&self) -> PlatformResult<NoRegisters> {
        Err(NOTHING)
    }
    fn raw_lock(&self, _: &'static str, _: bool) -> FakeLock {
        FakeLock(AtomicBool::new(false))
    }
    fn raw_gate(&self, _: &'static str) -> FakeLock {
        FakeLock(AtomicBool::new(false))
    }
    fn alloc_vectors(&self, _: u16) -> PlatformResult<Vectors> {
        Err(NOTHING)
    }
    fn free_vectors(&self) {}
    unsafe fn bind_interrupt(&self, vector: u16, _: NonNull<dyn Handler>) -> PlatformResult<()> {
        Err(PlatformError::NoVector { vector })
    }
    fn unbind_interrupt(&self, _: u16) {}
}

/// What left a QP.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct OnTheWire {
    pub(super) qp: QpType,
    pub(super) ah: AhAttr,
    pub(super) qpn: Qpn,
    pub(super) qkey: QKey,
    pub(super) pkey_index: u16,
    pub(super) mad: Mad,
}

#[derive(Debug)]
struct FakeQp {
    init: QpInit,
    pub(super) state: QpState,
    recvs: VecDeque<(u64, Sge)>,
    qkey: QKey,
    holders: u32,
}

#[derive(Debug, Default)]
struct State {
    last: u32,
    pds: BTreeSet<u32>,
    cqs: BTreeMap<u32, (VecDeque<WorkCompletion>, u32)>,
    qps: BTreeMap<u32, FakeQp>,
    mrs: BTreeMap<u32, (u64, u64)>,
    ahs: BTreeMap<u32, AhAttr>,
    wire: Vec<OnTheWire>,
    /// How the next sends end; those after well.
    fates: VecDeque<WcStatus>,
    /// Sends wait to complete.
    held: VecDeque<(u32, WorkCompletion)>,
    hold: bool,
    /// Control calls until one fails.
    fails_after: Option<u32>,
    firmware: bool,
    /// It has reported what never was, so that its owner may be mistaken, too.
    lied: bool,
}

impl State {
    fn number(&mut self) -> u32 {
        self.last += 1;
        self.last
    }

    /// A control call: may be the one that fails.
    fn call(&mut self) -> Result<(), VerbsError> {
        match &mut self.fails_after {
            Some(0) => Err(VerbsError::DeviceFailed),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn complete(&mut self, cq: u32, wc: WorkCompletion) {
        if self.hold {
            self.held.push_back((cq, wc));
        } else if let Some((entries, _)) = self.cqs.get_mut(&cq) {
            entries.push_back(wc);
        }
    }
}

/// Verbs over a list. One thread.
#[derive(Debug)]
pub(super) struct FakeHca<'m> {
    machine: &'m FakeMachine,
    state: Mutex<State>,
}

fn handle<K>(index: u32) -> Handle<K> {
    Handle::new(1, index, 0)
}

fn unknown<T>(object: &'static str) -> Result<T, VerbsError> {
    Err(VerbsError::InvalidHandle { object })
}

fn unsupported<T>() -> Result<T, VerbsError> {
    let feature = "in a fake";
    Err(VerbsError::Unsupported { feature })
}

impl<'m> FakeHca<'m> {
    /// With agents in its firmware, or without.
    pub(super) fn new(machine: &'m FakeMachine, firmware: bool) -> Self {
        let state = State {
            firmware,
            ..State::default()
        };
        Self {
            machine,
            state: Mutex::new(state),
        }
    }

    fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        f(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Of the control calls from now on, `count` succeed; none after, until `None`.
    pub(super) fn fails_after(&self, count: Option<u32>) {
        self.with(|state| state.fails_after = count);
    }

    /// PDs, CQs, QPs, regions, address handles.
    pub(super) fn objects(&self) -> [usize; 5] {
        self.with(|s| {
            [
                s.pds.len(),
                s.cqs.len(),
                s.qps.len(),
                s.mrs.len(),
                s.ahs.len(),
            ]
        })
    }

    /// What was sent since the last call.
    pub(super) fn wire(&self) -> Vec<OnTheWire> {
        self.with(|state| core::mem::take(&mut state.wire))
    }

    pub(super) fn next_sends_end(&self, fates: &[WcStatus]) {
        self.with(|state| state.fates.extend(fates));
    }

    /// Sends complete when let go.
    pub(super) fn hold(&self, hold: bool) {
        self.with(|state| {
            state.hold = hold;
            while let Some((cq, wc)) = state.held.pop_front() {
                state.complete(cq, wc);
                if hold {
                    break;
                }
            }
        });
    }

    /// State of the QP of a type, and how many receives are posted.
    pub(super) fn qp(&self, kind: QpType) -> (QpState, usize, QKey) {
        self.with(|state| {
            let mut qps = state.qps.values();
            let qp = qps.find(|qp| qp.init.qp_type == kind).unwrap();
            (qp.state, qp.recvs.len(), qp.qkey)
        })
    }

    pub(super) fn inits(&self) -> Vec<QpInit> {
        self.with(|state| state.qps.values().map(|qp| qp.init).collect())
    }

    /// A datagram arrives, as `wc` says, `first` being the 40 bytes before it. `false`: nothing was posted for it.
    pub(super) fn arrives(
        &self,
        kind: QpType,
        wc: &WorkCompletion,
        first: &Grh40,
        mad: &Mad,
    ) -> bool {
        self.with(|state| {
            let mut qps = state.qps.values_mut();
            let qp = qps.find(|qp| qp.init.qp_type == kind).unwrap();
            let Some((wr_id, sge)) = qp.recvs.pop_front() else {
                return false;
            };
            if wc.status == WcStatus::Success {
                self.machine.write(sge.addr, first);
                self.machine.write(sge.addr + 40, &mad.0);
            } else {
                qp.state = QpState::Error;
            }
            let cq = qp.init.recv_cq.index();
            let wc = WorkCompletion {
                wr_id,
                opcode: WcOpcode::Recv,
                qpn: qpn(kind),
                ..*wc
            };
            state.cqs.get_mut(&cq).unwrap().0.push_back(wc);
            true
        })
    }

    /// A completion of nothing.
    pub(super) fn invents(&self, wc: &WorkCompletion) {
        self.with(|state| {
            state.lied = true;
            let (_, (entries, _)) = state.cqs.iter_mut().next().unwrap();
            entries.push_back(*wc);
        });
    }

    fn send(&self, index: u32, wr: &SendWr<'_>) -> Result<(), PostCause> {
        self.with(|state| {
            let qp = state.qps.get_mut(&index).ok_or(PostCause::DeviceFailed)?;
            let flushed = matches!(qp.state, QpState::Sqe | QpState::Error);
            if qp.state != QpState::Rts && !flushed {
                return Err(PostCause::InvalidState);
            }
            let (kind, cq) = (qp.init.qp_type, qp.init.send_cq.index());
            let SendOp::Datagram {
                ah,
                remote_qpn,
                remote_qkey,
                pkey_index,
                ..
            } = wr.op
            else {
                return Err(PostCause::InvalidOpcode);
            };
            let ah = *state.ahs.get(&ah.index()).ok_or(PostCause::InvalidHandle)?;
            let [sge] = wr.sges else {
                return Err(PostCause::TooManySge);
            };
            let status = if flushed {
                WcStatus::Flushed
            } else {
                state.fates.pop_front().unwrap_or(WcStatus::Success)
            };
            if status == WcStatus::Success {
                let (iova, length) = state.mrs[&sge.lkey.0];
                assert!(iova <= sge.addr && sge.addr + u64::from(sge.length) <= iova + length);
                let bytes = self.machine.read(sge.addr, sge.length as usize);
                state.wire.push(OnTheWire {
                    qp: kind,
                    ah,
                    qpn: remote_qpn,
                    qkey: remote_qkey,
                    pkey_index,
                    mad: Mad(bytes.try_into().expect("256 bytes")),
                });
            } else if !flushed && let Some(qp) = state.qps.get_mut(&index) {
                qp.state = QpState::Sqe;
            }
            let wc = WorkCompletion {
                wr_id: wr.wr_id,
                status,
                opcode: WcOpcode::Send,
                qpn: qpn(kind),
                ..WorkCompletion::EMPTY
            };
            state.complete(cq, wc);
            Ok(())
        })
    }
}

impl Device for FakeHca<'_> {
    fn name(&self) -> &str {
        "fake"
    }
    fn query_device(&self) -> DeviceAttr {
        let firmware = self.with(|state| state.firmware);
        let mut caps = DeviceCaps::empty();
        caps.set(DeviceCaps::FIRMWARE_MADS, firmware);
        DeviceAttr {
            node_guid: Guid(1),
            sys_image_guid: Guid(1),
            fw_version: [0; 3],
            vendor_id: 0,
            vendor_part_id: 0,
            hw_version: 0,
            port_count: 2,
            caps,
            max_qp: 4,
            max_qp_wr: 1024,
            max_sge: 1,
            max_inline: 0,
            max_cq: 2,
            max_cqe: 4096,
            max_srq: 0,
            max_srq_wr: 0,
            max_srq_sge: 0,
            max_mr: 2,
            max_mr_size: 1 << 30,
            page_sizes: !0xfff,
            max_pd: 2,
            max_ah: 1024,
            max_mw: 0,
            max_fmr: 0,
            max_dest_rd_atomic: 0,
            max_rd_atomic: 0,
            max_mcast_groups: 0,
            max_mcast_qp_attach: 0,
            local_ca_ack_delay: 0,
            completion_vectors: 1,
        }
    }
    fn query_port(&self, _: u8) -> Result<PortAttr, VerbsError> {
        unsupported()
    }
    fn query_gid(&self, _: u8, _: u16) -> Result<Gid, VerbsError> {
        unsupported()
    }
    fn query_pkey(&self, _: u8, _: u16) -> Result<PKey, VerbsError> {
        unsupported()
    }
    fn modify_device(&self, _: &DeviceModify<'_>) -> Result<(), VerbsError> {
        unsupported()
    }
    fn modify_port(&self, _: u8, _: &PortModify) -> Result<(), VerbsError> {
        unsupported()
    }
    fn alloc_user(&self) -> Result<UserHandle, VerbsError> {
        unsupported()
    }
    fn user_doorbell_page(&self, _: UserHandle) -> Result<u64, VerbsError> {
        unsupported()
    }
    fn dealloc_user(&self, _: UserHandle) -> Result<(), VerbsError> {
        unsupported()
    }
    fn alloc_pd(&self) -> Result<PdHandle, VerbsError> {
        self.with(|state| {
            state.call()?;
            let index = state.number();
            state.pds.insert(index);
            Ok(handle(index))
        })
    }
    fn dealloc_pd(&self, pd: PdHandle) -> Result<(), VerbsError> {
        self.with(|state| {
            let inside = state.qps.len() + state.mrs.len() + state.ahs.len();
            if inside > 0 {
                let (object, holders) = ("PD", inside as u32);
                return Err(VerbsError::Busy { object, holders });
            }
            let known = state.pds.remove(&pd.index());
            if known { Ok(()) } else { unknown("PD") }
        })
    }
    fn whole_memory_key(&self, _: PdHandle) -> Result<WholeMemoryKey, VerbsError> {
        unsupported()
    }
    fn create_ah(&self, pd: PdHandle, attr: &AhAttr) -> Result<AhHandle, VerbsError> {
        self.with(|state| {
            assert!(state.pds.contains(&pd.index()));
            if attr.dlid == Lid::NONE {
                let (field, found, allowed) = ("DLID", 0, 0xffff);
                return Err(VerbsError::InvalidAttr {
                    field,
                    found,
                    allowed,
                });
            }
            let index = state.number();
            state.ahs.insert(index, *attr);
            Ok(handle(index))
        })
    }
    fn query_ah(&self, _: AhHandle) -> Result<AhAttr, VerbsError> {
        unsupported()
    }
    fn modify_ah(&self, _: AhHandle, _: &AhAttr) -> Result<(), VerbsError> {
        unsupported()
    }
    fn destroy_ah(&self, ah: AhHandle) -> Result<(), VerbsError> {
        self.with(|state| match state.ahs.remove(&ah.index()) {
            Some(_) => Ok(()),
            None => unknown("AH"),
        })
    }
    fn create_cq(&self, init: &CqInit) -> Result<Created<CqHandle>, VerbsError> {
        self.with(|state| {
            state.call()?;
            let index = state.number();
            state.cqs.insert(index, (VecDeque::new(), 0));
            let (handle, size) = (handle(index), init.cqe);
            Ok(Created { handle, size })
        })
    }
    fn resize_cq(&self, _: CqHandle, _: u32) -> Result<u32, VerbsError> {
        unsupported()
    }
    fn destroy_cq(&self, cq: CqHandle) -> Result<(), VerbsError> {
        self.with(|state| {
            let users = state.qps.len() as u32;
            let holders = users
                + state
                    .cqs
                    .get(&cq.index())
                    .map_or(0, |(_, holders)| *holders);
            if holders > 0 {
                let object = "CQ";
                return Err(VerbsError::Busy { object, holders });
            }
            match state.cqs.remove(&cq.index()) {
                Some(_) => Ok(()),
                None => unknown("CQ"),
            }
        })
    }
    fn create_qp(&self, _: PdHandle, init: &QpInit) -> Result<QpInfo, VerbsError> {
        self.with(|state| {
            state.call()?;
            let index = state.number();
            let qp = FakeQp {
                init: *init,
                state: QpState::Reset,
                recvs: VecDeque::new(),
                qkey: QKey(0),
                holders: 0,
            };
            state.qps.insert(index, qp);
            Ok(QpInfo {
                handle: handle(index),
                qpn: qpn(init.qp_type),
                caps: init.caps,
            })
        })
    }
    fn modify_qp(&self, qp: QpHandle, attr: &QpAttr, mask: QpAttrMask) -> Result<(), VerbsError> {
        self.with(|state| {
            state.call()?;
            let Some(qp) = state.qps.get_mut(&qp.index()) else {
                return unknown("QP");
            };
            if mask.contains(QpAttrMask::CUR_STATE) && attr.cur_state != qp.state {
                let (opcode, status) = (0x1c, 0x09);
                return Err(VerbsError::CommandFailed { opcode, status });
            }
            qp.state = check_modify(qp.init.qp_type, qp.state, attr, mask)?;
            if mask.contains(QpAttrMask::QKEY) {
                qp.qkey = attr.qkey;
            }
            if qp.state == QpState::Reset {
                qp.recvs.clear();
                let (number, cq) = (qpn(qp.init.qp_type), qp.init.recv_cq.index());
                if let Some((entries, _)) = state.cqs.get_mut(&cq) {
                    entries.retain(|wc| wc.qpn != number);
                }
            }
            Ok(())
        })
    }
    fn query_qp(&self, _: QpHandle) -> Result<QpAttr, VerbsError> {
        unsupported()
    }
    fn destroy_qp(&self, qp: QpHandle) -> Result<(), VerbsError> {
        self.with(|state| {
            let holders = state.qps.get(&qp.index()).map_or(0, |qp| qp.holders);
            if holders > 0 {
                let object = "QP";
                return Err(VerbsError::Busy { object, holders });
            }
            match state.qps.remove(&qp.index()) {
                Some(_) => Ok(()),
                None => unknown("QP"),
            }
        })
    }
    fn create_srq(&self, _: &SrqInit) -> Result<Created<SrqHandle>, VerbsError> {
        unsupported()
    }
    fn arm_srq(&self, _: SrqHandle, _: u32) -> Result<(), VerbsError> {
        unsupported()
    }
    fn resize_srq(&self, _: SrqHandle, _: u32) -> Result<u32, VerbsError> {
        unsupported()
    }
    fn query_srq(&self, _: SrqHandle) -> Result<SrqAttr, VerbsError> {
        unsupported()
    }
    fn destroy_srq(&self, _: SrqHandle) -> Result<(), VerbsError> {
        unsupported()
    }
    unsafe fn reg_mr(&self, _: PdHandle, init: &MrInit<'_>) -> Result<Mr, VerbsError> {
        self.with(|state| {
            state.call()?;
            let page = 1_u64 << init.page_shift;
            assert_eq!(init.pages.len() as u64 * page, init.length);
            for (number, at) in init.pages.iter().enumerate() {
                assert_eq!(at.get(), init.iova + number as u64 * page, "one piece");
                assert_eq!(at.get() % page, 0);
            }
            let index = state.number();
            state.mrs.insert(index, (init.iova, init.length));
            let (lkey, rkey) = (LKey(index), RKey(index));
            let handle = handle(index);
            Ok(Mr { handle, lkey, rkey })
        })
    }
    unsafe fn rereg_mr(
        &self,
        _: MrHandle,
        _: Option<PdHandle>,
        _: Option<&MrInit<'_>>,
        _: Option<Access>,
    ) -> Result<Mr, VerbsError> {
        unsupported()
    }
    fn dereg_mr(&self, mr: MrHandle) -> Result<(), VerbsError> {
        self.with(|state| match state.mrs.remove(&mr.index()) {
            Some(_) => Ok(()),
            None => unknown("MR"),
        })
    }
    fn alloc_mw(&self, _: PdHandle, _: MwKind) -> Result<(MwHandle, RKey), VerbsError> {
        unsupported()
    }
    fn dealloc_mw(&self, _: MwHandle) -> Result<(), VerbsError> {
        unsupported()
    }
    fn alloc_fmr(&self, _: PdHandle, _: &FmrInit) -> Result<FmrHandle, VerbsError> {
        unsupported()
    }
    unsafe fn map_fmr(
        &self,
        _: FmrHandle,
        _: &[DmaAddr],
        _: u64,
    ) -> Result<(LKey, RKey), VerbsError> {
        unsupported()
    }
    fn unmap_fmrs(&self, _: &[FmrHandle]) -> Result<(), VerbsError> {
        unsupported()
    }
    fn dealloc_fmr(&self, _: FmrHandle) -> Result<(), VerbsError> {
        unsupported()
    }
    fn attach_mcast(&self, _: QpHandle, _: Gid, _: Lid) -> Result<(), VerbsError> {
        unsupported()
    }
    fn detach_mcast(&self, _: QpHandle, _: Gid, _: Lid) -> Result<(), VerbsError> {
        unsupported()
    }
    /// Answers what is asked, with 0xAB as the first byte of data; takes note of a TrapRepress; rejects an M_Key.
    fn process_mad(
        &self,
        port: u8,
        _: MadFlags,
        source: Option<&MadSource>,
        request: &Mad256,
        response: &mut Mad256,
    ) -> Result<MadOutcome, VerbsError> {
        self.with(State::call)?;
        assert!(source.is_some() && (1..=2).contains(&port));
        if request[24..32] != [0; 8] {
            return Ok(MadOutcome::Rejected);
        }
        let mut mad = Mad(*request);
        let header = mad.header();
        if header.method == Method::TRAP_REPRESS {
            return Ok(MadOutcome::Consumed);
        }
        mad.set_header(&header.reply(MadStatus::OK).expect("a Get or a Set"));
        mad.data_mut()[0] = 0xab;
        *response = mad.0;
        Ok(MadOutcome::Reply)
    }
    fn next_async_event(&self) -> Option<AsyncEvent> {
        None
    }
    fn take_cq_event(&self, _: CqHandle) -> bool {
        false
    }
    fn poll_events(&self) {}
    fn check(&self) -> Result<(), VerbsError> {
        Ok(())
    }
}

fn qpn(kind: QpType) -> Qpn {
    if kind == QpType::Smi {
        Qpn::SMI
    } else {
        Qpn::GSI
    }
}

impl<'m> Verbs for FakeHca<'m> {
    type Cq<'a>
        = CqRef<'a, 'm>
    where
        Self: 'a;
    type Qp<'a>
        = QpRef<'a, 'm>
    where
        Self: 'a;
    type Srq<'a>
        = NoSrq
    where
        Self: 'a;

    fn cq(&self, cq: CqHandle) -> Result<CqRef<'_, 'm>, VerbsError> {
        self.with(|state| {
            state.call()?;
            match state.cqs.get_mut(&cq.index()) {
                Some((_, holders)) => {
                    *holders += 1;
                    Ok(())
                }
                None => unknown("CQ"),
            }
        })?;
        Ok(CqRef { hca: self, cq })
    }
    fn qp(&self, qp: QpHandle) -> Result<QpRef<'_, 'm>, VerbsError> {
        self.with(|state| {
            state.call()?;
            match state.qps.get_mut(&qp.index()) {
                Some(qp) => {
                    qp.holders += 1;
                    Ok(())
                }
                None => unknown("QP"),
            }
        })?;
        Ok(QpRef { hca: self, qp })
    }
    fn srq(&self, _: SrqHandle) -> Result<NoSrq, VerbsError> {
        unsupported()
    }
}

#[derive(Debug)]
pub(super) struct CqRef<'a, 'm> {
    hca: &'a FakeHca<'m>,
    cq: CqHandle,
}

impl Drop for CqRef<'_, '_> {
    fn drop(&mut self) {
        self.hca.with(|state| {
            if let Some((_, holders)) = state.cqs.get_mut(&self.cq.index()) {
                *holders -= 1;
            }
        });
    }
}

impl CompletionQueue for CqRef<'_, '_> {
    fn poll(&self, into: &mut [WorkCompletion]) -> Result<usize, VerbsError> {
        self.hca.with(|state| {
            let Some((entries, _)) = state.cqs.get_mut(&self.cq.index()) else {
                return unknown("CQ");
            };
            let mut count = 0;
            for place in into {
                let Some(wc) = entries.pop_front() else { break };
                *place = wc;
                count += 1;
            }
            Ok(count)
        })
    }
    fn req_notify(&self, _: NotifyKind) -> Result<(), VerbsError> {
        Ok(())
    }
    fn handle(&self) -> CqHandle {
        self.cq
    }
}

#[derive(Debug)]
pub(super) struct QpRef<'a, 'm> {
    hca: &'a FakeHca<'m>,
    qp: QpHandle,
}

impl Drop for QpRef<'_, '_> {
    fn drop(&mut self) {
        self.hca.with(|state| {
            if let Some(qp) = state.qps.get_mut(&self.qp.index()) {
                qp.holders -= 1;
            }
        });
    }
}

impl QueuePair for QpRef<'_, '_> {
    fn post_send(&self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        for (index, wr) in wrs.iter().enumerate() {
            let sent = self.hca.send(self.qp.index(), wr);
            sent.map_err(|cause| PostError { index, cause })?;
        }
        Ok(())
    }
    fn post_recv(&self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        self.hca.with(|state| {
            let refused = |index, cause| Err(PostError { index, cause });
            let Some(qp) = state.qps.get_mut(&self.qp.index()) else {
                return refused(0, PostCause::DeviceFailed);
            };
            for (index, wr) in wrs.iter().enumerate() {
                if qp.state == QpState::Reset {
                    return refused(index, PostCause::InvalidState);
                }
                if qp.recvs.len() >= qp.init.caps.max_recv_wr as usize {
                    return refused(index, PostCause::QueueFull);
                }
                let [sge] = wr.sges else {
                    return refused(index, PostCause::TooManySge);
                };
                assert_eq!(sge.length, 296);
                let (iova, length) = state.mrs[&sge.lkey.0];
                assert!(iova <= sge.addr && sge.addr + 296 <= iova + length);
                let other = |(_, other): &(u64, Sge)| other.addr == sge.addr;
                assert!(state.lied || !qp.recvs.iter().any(other), "posted twice");
                qp.recvs.push_back((wr.wr_id, *sge));
            }
            Ok(())
        })
    }
    fn qpn(&self) -> Qpn {
        self.hca
            .with(|state| qpn(state.qps[&self.qp.index()].init.qp_type))
    }
    fn handle(&self) -> QpHandle {
        self.qp
    }
}

pub(super) struct NoSrq;

impl SharedReceiveQueue for NoSrq {
    fn post_recv(&self, _: &[RecvWr<'_>]) -> Result<(), PostError> {
        let (index, cause) = (0, PostCause::InvalidState);
        Err(PostError { index, cause })
    }
    fn handle(&self) -> SrqHandle {
        handle(0)
    }
}
