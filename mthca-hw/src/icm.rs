//! Host memory that a mem-free HCA is lent: for its firmware, for the firmware's own use, and behind its tables (ICM).
//! infinihost 3.10, 6.2, 6.6.
//!
//! Tables are in an address space of the HCA's own, behind which pages come in chunks, the first time that an entry of
//! a chunk is needed; they stay until the HCA is closed. What is behind a chunk is constant from then on, so that
//! the driver writes translations and fast regions there without a lock. A chunk whose mapping was refused keeps its
//! memory and is mapped by who needs it next.

use crate::cmd::CmdError;
use crate::cmd::table::{MapBlocks, UnmapIcm};
use crate::let_go::Released;
use crate::limits::Limits;
use crate::once::Once;
use crate::open::OpenCause;
use crate::plan::{MCG_ENTRY, MTT_ENTRY, Plan, RDB_ENTRY};
use crate::sync::AtomicBool;
use core::sync::atomic::Ordering;
use core_ib::platform::{DmaBuf, Gate, Platform, PlatformError, Table};
use core_ib::verbs::VerbsError;
use hca_abi::infinihost::cmd::Opcode;
use hca_abi::infinihost::vpm::VpmEntry;

/// Puts pages behind ICM.
pub(crate) type MapIcm = MapBlocks<{ Opcode::MAP_ICM.0 }>;
/// Gives the firmware its area.
pub(crate) type MapFa = MapBlocks<{ Opcode::MAP_FA.0 }>;
/// Gives the firmware what it wants besides.
pub(crate) type MapIcmAux = MapBlocks<{ Opcode::MAP_ICM_AUX.0 }>;

/// Bytes of a page, on both sides.
pub(crate) const PAGE: u64 = 4096;
/// Bytes of a chunk: what is asked of the machine in one piece. A smaller table is one chunk.
const CHUNK: u64 = 64 << 10;

/// Why memory could not be lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LendError {
    /// The machine has none.
    Platform(PlatformError),
    /// The HCA did not take it.
    Command(CmdError),
}

impl From<PlatformError> for LendError {
    fn from(error: PlatformError) -> Self {
        Self::Platform(error)
    }
}

impl From<CmdError> for LendError {
    fn from(error: CmdError) -> Self {
        Self::Command(error)
    }
}

impl From<LendError> for VerbsError {
    fn from(error: LendError) -> Self {
        match error {
            LendError::Platform(error) => error.into(),
            LendError::Command(error) => error.into(),
        }
    }
}

impl From<LendError> for OpenCause {
    fn from(error: LendError) -> Self {
        match error {
            LendError::Platform(error) => error.into(),
            LendError::Command(error) => error.into(),
        }
    }
}

/// The blocks, each aligned to its size on both sides, that `len` bytes (whole pages) at bus address `bus` are for `at`.
fn blocks(at: u64, bus: u64, len: u64) -> impl Iterator<Item = VpmEntry> {
    let mut done = 0;
    core::iter::from_fn(move || {
        let left = (len / PAGE).checked_sub(done).filter(|&left| left != 0)?;
        let (virt, host) = (at / PAGE + done, bus / PAGE + done);
        let log = (virt | host).trailing_zeros().min(left.ilog2());
        done += 1 << log;
        Some(VpmEntry::new(virt * PAGE, host * PAGE, log as u8))
    })
}

/// Memory in one piece of `len` bytes, a power of two or less: aligned to its size, so that it is one block, where the
/// machine can do that.
fn piece<P: Platform>(machine: &P, len: u64) -> Result<DmaBuf<'_, P>, PlatformError> {
    let len = len as usize;
    DmaBuf::new(machine, len, len.next_power_of_two())
        .or_else(|_| DmaBuf::new(machine, len, PAGE as usize))
}

/// Gives blocks to the HCA, by as many commands as that takes.
fn give<const OPCODE: u16, E>(
    mut blocks: impl Iterator<Item = VpmEntry>,
    mut run: impl FnMut(&MapBlocks<OPCODE>) -> Result<(), E>,
) -> Result<(), E> {
    loop {
        let mut command = MapBlocks::new();
        while command.has_room() {
            let Some(block) = blocks.next() else { break };
            command.push(block);
        }
        if command.is_empty() {
            return Ok(());
        }
        run(&command)?;
    }
}

/// Puts `len` bytes (whole pages) at bus address `bus` behind ICM address `at`.
pub(crate) fn map<E>(
    at: u64,
    bus: u64,
    len: u64,
    run: impl FnMut(&MapIcm) -> Result<(), E>,
) -> Result<(), E> {
    give(blocks(at, bus, len), run)
}

/// Memory for the firmware, which says how much it wants and never what is in it.
pub(crate) struct Area<'p, P: Platform> {
    pieces: Table<'p, Option<DmaBuf<'p, P>>, P>,
}

impl<'p, P: Platform> Area<'p, P> {
    /// So many pages. Tells the HCA nothing. Set-up only.
    pub fn new(machine: &'p P, pages: u32) -> Result<Self, PlatformError> {
        let bytes = u64::from(pages) * PAGE;
        let count = bytes.div_ceil(CHUNK);
        let mut pieces = Table::new(machine, count as usize, |_| None)?;
        let mut failed = None;
        for (index, place) in (0..).zip(pieces.iter_mut()) {
            match piece(machine, (bytes - index * CHUNK).min(CHUNK)) {
                Ok(memory) => *place = Some(memory),
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        let area = Self { pieces };
        match failed {
            None => Ok(area),
            Some(error) => {
                area.free(&Released::never_told());
                Err(error)
            }
        }
    }

    /// Gives it to the HCA, in order. On error some may be given.
    pub fn map<const OPCODE: u16, E>(
        &self,
        run: impl FnMut(&MapBlocks<OPCODE>) -> Result<(), E>,
    ) -> Result<(), E> {
        // There is no address on the HCA's side, so that nothing is crooked there.
        let all = self.pieces.iter().flatten().flat_map(|memory| {
            let (bus, len) = (memory.addr().get(), memory.len() as u64);
            blocks(0, bus, len)
                .map(|block| VpmEntry::new(0, block.bus_address(), block.log_pages()))
        });
        give(all, run)
    }

    /// Gives it back to the machine.
    pub fn free(mut self, released: &Released) {
        for memory in self.pieces.iter_mut().filter_map(Option::take) {
            released.free(memory);
        }
    }
}

/// A table in ICM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// QP contexts.
    Qpc,
    /// Extended QP contexts.
    Eqpc,
    /// Responder resources, by QP.
    Rdb,
    /// CQ contexts.
    Cqc,
    /// SRQ contexts.
    Srqc,
    /// EQ contexts.
    Eqc,
    /// Memory protection.
    Mpt,
    /// Memory translation.
    Mtt,
    /// Multicast groups.
    Mcg,
}

const KINDS: usize = 9;

struct Chunk<'p, P: Platform> {
    memory: Once<DmaBuf<'p, P>>,
    mapped: AtomicBool,
}

struct IcmTable<'p, P: Platform> {
    base: u64,
    entry: u64,
    /// Logarithm of the bytes of a chunk.
    chunk_shift: u8,
    chunks: Table<'p, Chunk<'p, P>, P>,
}

impl<'p, P: Platform> IcmTable<'p, P> {
    fn new(machine: &'p P, base: u64, entry: u64, count: u64) -> Result<Self, PlatformError> {
        let bytes = entry.saturating_mul(count).max(PAGE);
        let chunk_shift = bytes.min(CHUNK).ilog2() as u8;
        let count = bytes.div_ceil(1 << chunk_shift);
        let chunks = Table::new(machine, count as usize, |_| Chunk {
            memory: Once::new(),
            mapped: AtomicBool::new(false),
        })?;
        Ok(Self {
            base,
            entry,
            chunk_shift,
            chunks,
        })
    }

    /// Bytes of a chunk.
    const fn chunk(&self) -> u64 {
        1 << (self.chunk_shift & 63)
    }

    /// What is behind byte `at` of the table, and where in it.
    #[inline]
    fn memory(&self, at: u64) -> Option<(&DmaBuf<'p, P>, usize)> {
        let chunk = self.chunks.get((at >> (self.chunk_shift & 63)) as usize)?;
        Some((chunk.memory.get()?, (at & (self.chunk() - 1)) as usize))
    }

    /// The chunks of `count` entries from `first` on, and the number of the first.
    fn chunks_of(&self, first: u32, count: u32) -> (u64, &[Chunk<'p, P>]) {
        let start = u64::from(first) * self.entry;
        let end = start + u64::from(count) * self.entry;
        let (from, to) = (start / self.chunk(), end.div_ceil(self.chunk()));
        let chunks = self.chunks.get(from as usize..to as usize);
        (from, chunks.unwrap_or_default())
    }
}

/// All tables in ICM.
pub(crate) struct Icm<'p, P: Platform> {
    machine: &'p P,
    tables: [IcmTable<'p, P>; KINDS],
    /// Who maps.
    gate: Gate<(), P::RawGate>,
}

impl<'p, P: Platform> Icm<'p, P> {
    /// Those of `plan`, with nothing behind them. Set-up only.
    pub fn new(machine: &'p P, plan: &Plan, limits: &Limits) -> Result<Self, PlatformError> {
        let (at, entry) = (&plan.tables, &limits.entries);
        let qps = 1 << plan.qp.log_size;
        let srqs = if plan.srq.count == 0 {
            0
        } else {
            1 << plan.srq.log_size
        };
        let table = |base, entry, count| IcmTable::new(machine, base, entry, count);
        let tables = [
            table(at.qpc, entry.qpc, qps)?,
            table(at.eqpc, entry.eqpc, qps)?,
            table(at.rdb, RDB_ENTRY << plan.log_rdb_per_qp, qps)?,
            table(at.cqc, entry.cqc, 1 << plan.cq.log_size)?,
            table(at.srqc, entry.srqc, srqs)?,
            table(at.eqc, entry.eqc, 1 << plan.eq.log_size)?,
            table(at.mpt, entry.mpt, 1 << plan.mpt.log_size)?,
            table(at.mtt, crate::plan::SEGMENT, plan.segments.into())?,
            table(at.mcg, MCG_ENTRY, 1 << plan.log_mcg)?,
        ];
        let gate = machine.gate("ICM", ());
        Ok(Self {
            machine,
            tables,
            gate,
        })
    }

    fn table(&self, kind: Kind) -> Option<&IcmTable<'p, P>> {
        self.tables.get(kind as usize)
    }

    /// Sees to it that there are pages behind `count` entries from `first` on. Control context; may block.
    pub fn back(
        &self,
        kind: Kind,
        first: u32,
        count: u32,
        run: &dyn Fn(&MapIcm) -> Result<(), CmdError>,
    ) -> Result<(), LendError> {
        let Some(table) = self.table(kind) else {
            return Ok(());
        };
        let (from, chunks) = table.chunks_of(first, count);
        let is_mapped = |chunk: &Chunk<'p, P>| chunk.mapped.load(Ordering::Acquire);
        if chunks.iter().all(is_mapped) {
            return Ok(());
        }
        self.gate.with(|()| {
            for (index, chunk) in (from..).zip(chunks).filter(|(_, chunk)| !is_mapped(chunk)) {
                if chunk.memory.get().is_none() {
                    let memory = piece(self.machine, table.chunk())?;
                    // Inside the gate nobody else sets it.
                    if let Err(memory) = chunk.memory.set(memory) {
                        Released::never_told().free(memory);
                    }
                }
                let Some(memory) = chunk.memory.get() else {
                    continue;
                };
                let at = table.base.wrapping_add(index.wrapping_mul(table.chunk()));
                map(at, memory.addr().get(), table.chunk(), run)?;
                chunk.mapped.store(true, Ordering::Release);
            }
            Ok(())
        })
    }

    /// What is behind the whole of a table. Set-up only.
    pub fn back_all(
        &self,
        kind: Kind,
        run: &dyn Fn(&MapIcm) -> Result<(), CmdError>,
    ) -> Result<(), LendError> {
        let table = self.table(kind);
        let entries = table.map_or(0, |table| {
            (table.chunks.len() as u64).saturating_mul(table.chunk()) / table.entry.max(1)
        });
        self.back(kind, 0, entries as u32, run)
    }

    /// The memory in which entry `index` lies, and where: if there is any behind it. Any context; never blocks.
    #[inline]
    pub fn entry(&self, kind: Kind, index: u32) -> Option<(&DmaBuf<'p, P>, usize)> {
        let table = self.table(kind)?;
        table.memory(u64::from(index).wrapping_mul(table.entry))
    }

    /// The memory in which translation `index` lies, counted from the first of the table, and where.
    #[inline]
    pub fn translation(&self, index: u64) -> Option<(&DmaBuf<'p, P>, usize)> {
        let table = self.table(Kind::Mtt)?;
        table.memory(index.wrapping_mul(MTT_ENTRY))
    }

    /// Takes all pages back from the HCA, the tables that it needs longest last. `run` says whether it let go.
    pub fn unmap_all(&self, run: &dyn Fn(&UnmapIcm)) {
        for table in self.tables.iter().rev() {
            for (index, chunk) in (0..).zip(table.chunks.iter()) {
                if chunk.mapped.swap(false, Ordering::AcqRel) {
                    run(&UnmapIcm {
                        address: table.base.wrapping_add(table.chunk().wrapping_mul(index)),
                        pages: (table.chunk() / PAGE) as u32,
                    });
                }
            }
        }
    }

    /// Gives the memory back to the machine.
    pub fn free(mut self, released: &Released) {
        for table in &mut self.tables {
            for chunk in table.chunks.iter_mut() {
                if let Some(memory) = chunk.memory.take() {
                    released.free(memory);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    #[test]
    fn there_is_a_table_for_each_kind() {
        assert_eq!(Kind::Mcg as usize + 1, KINDS);
    }

    #[test]
    fn an_aligned_chunk_is_one_block_and_a_crooked_one_several() {
        let all = |at, bus, len| {
            blocks(at, bus, len)
                .map(|b| b.log_pages())
                .collect::<Vec<_>>()
        };
        assert_eq!(all(0x2400_0000, 0x1234_0000, 0x1_0000), [4]);
        assert_eq!(all(0x2400_1000, 0x1234_1000, 0x4000), [0, 1, 0]);
        assert_eq!(all(0x2400_0000, 0x1234_1000, 0x4000), [0; 4]);
        assert!(all(0, 0, 0).is_empty());
    }

    proptest! {
        #[test]
        fn blocks_cover_their_pages_once_in_order_and_are_aligned(at in 0..512_u64, bus in 0..512_u64, pages in 0..300_u64) {
            let mut next = 0;
            for block in blocks(at * PAGE, bus * PAGE, pages * PAGE) {
                let len = PAGE << block.log_pages();
                prop_assert_eq!(block.virtual_address(), (at + next) * PAGE);
                prop_assert_eq!(block.bus_address(), (bus + next) * PAGE);
                prop_assert!(block.virtual_address() % len == 0 && block.bus_address() % len == 0);
                next += len / PAGE;
            }
            prop_assert_eq!(next, pages);
        }

        #[test]
        fn no_command_has_more_blocks_than_fit_and_none_is_empty(at in 0..9_u64, bus in 0..9_u64, pages in 0..900_u64) {
            let mut count = 0;
            let result: Result<(), ()> = map(at * PAGE, bus * PAGE, pages * PAGE, |command: &MapIcm| {
                use crate::cmd::Command;
                let blocks = command.input_modifier() as usize;
                assert!((1..=crate::cmd::table::BLOCKS).contains(&blocks));
                count += command.input()[..blocks].iter().map(|b| 1_u64 << b.log_pages()).sum::<u64>();
                Ok(())
            });
            prop_assert_eq!(result, Ok(()));
            prop_assert_eq!(count, pages);
        }
    }
}
