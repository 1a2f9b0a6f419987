//! Memory keys: protection table, translation table, and the check of every access by key. infinihost 4.9, 4.10.
//!
//! Nothing is cached. An entry is stored to the table in attached memory as the command brought it, and read there at
//! each use, so that a driver may rewrite it in place (FMR, infinihost 4.11). What is kept here is only which entries were
//! ever handed over: the table's memory is not zeroed by anyone.

use super::memory::{Memory, MemoryFault};
use crate::machine::Bus;
use core::fmt;
use hca_abi::infinihost::mpt::{Mpt, MptStatus, m_index_of_key};
use hca_abi::infinihost::mtt::Mtt;
use std::collections::BTreeSet;
use zerocopy::{FromZeros, IntoBytes};

/// Bytes of an entry.
pub const MPT_LEN: u64 = 64;
/// Key that ends a scatter list, and never names memory. infinihost 4.10.
pub const SENTINEL: u32 = 0x100;

/// What an access wants to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right {
    /// Gather, fetch of a WQE or an address vector.
    LocalRead,
    /// Scatter, CQE, EQE.
    LocalWrite,
    /// RDMA read by a peer.
    RemoteRead,
    /// RDMA write by a peer.
    RemoteWrite,
    /// Atomic by a peer.
    RemoteAtomic,
}

impl Right {
    /// Does `entry` give it? Nobody works locally through a window.
    fn given_by(self, entry: &Mpt) -> bool {
        match self {
            Self::LocalRead => entry.local_read() && entry.region(),
            Self::LocalWrite => entry.local_write() && entry.region(),
            Self::RemoteRead => entry.remote_read(),
            Self::RemoteWrite => entry.remote_write(),
            Self::RemoteAtomic => entry.remote_atomic(),
        }
    }
}

/// A key and the protection domain of the queue that uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// L_Key or R_Key.
    pub key: u32,
    /// Domain of the QP, CQ, EQ or SRQ.
    pub pd: u32,
}

/// An access by key that did not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AccessError {
    /// There is no valid entry of this key.
    Key {
        /// The key used.
        key: u32,
    },
    /// The entry is of another protection domain.
    Domain {
        /// The key used.
        key: u32,
        /// Domain of the user.
        pd: u32,
        /// Domain of the entry.
        owner: u32,
    },
    /// The entry is a window of one QP, and another one used it. infinihost 4.9 (M-mode), verbs 7.4.
    Window {
        /// The key used.
        key: u32,
        /// Number of the user.
        qpn: u32,
        /// The QP that it was bound on.
        owner: u32,
    },
    /// Beyond the region or window.
    Bounds {
        /// The key used.
        key: u32,
        /// First byte.
        at: u64,
        /// Bytes.
        len: u64,
    },
    /// The region does not allow it.
    Right {
        /// The key used.
        key: u32,
        /// What was missing.
        right: Right,
    },
    /// A translation is not present.
    NotPresent {
        /// The key used.
        key: u32,
        /// The address it was to translate.
        at: u64,
    },
    /// Table or memory could not be reached.
    Memory(MemoryFault),
}

impl fmt::Display for AccessError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Key { key } => write!(f, "key {key:#x} names no region"),
            Self::Domain { key, pd, owner } => {
                write!(f, "key {key:#x} belongs to PD {owner:#x}, not {pd:#x}")
            }
            Self::Window { key, qpn, owner } => {
                write!(f, "window {key:#x} is of QP {owner:#x}, not {qpn:#x}")
            }
            Self::Bounds { key, at, len } => {
                write!(
                    f,
                    "{len} bytes at {at:#x} are beyond the region of key {key:#x}"
                )
            }
            Self::Right { key, right } => write!(f, "key {key:#x} does not allow {right:?}"),
            Self::NotPresent { key, at } => {
                write!(f, "key {key:#x} has no translation of {at:#x}")
            }
            Self::Memory(fault) => fault.fmt(f),
        }
    }
}

impl core::error::Error for AccessError {}

impl From<MemoryFault> for AccessError {
    fn from(fault: MemoryFault) -> Self {
        Self::Memory(fault)
    }
}

/// How a key says which entry is meant, and an entry where its translations are. infinihost 4.9, 4.10.
#[derive(Clone, Copy, Debug, Default)]
enum Form {
    /// T-mode: the key is the index, and addresses are absolute.
    #[default]
    Plain,
    /// M-mode: the index is the key rotated; addresses count from the base of the translation table or are absolute,
    /// which comes to the same if they are added bit by bit.
    Rotated {
        /// Of the translation table.
        mtt_base: u64,
    },
}

impl Form {
    /// The index of a key, generation and all.
    const fn index(self, key: u32) -> u32 {
        match self {
            Self::Plain => key,
            Self::Rotated { .. } => m_index_of_key(key),
        }
    }

    /// Where the translation that an entry calls `address` lies.
    const fn translation(self, address: u64) -> u64 {
        match self {
            Self::Plain => address,
            Self::Rotated { mtt_base } => mtt_base | address,
        }
    }
}

/// The tables, as INIT_HCA placed them.
#[derive(Clone, Debug, Default)]
pub struct KeyTable {
    form: Form,
    /// Of entry 0.
    pub mpt_base: u64,
    /// Entries, a power of two; 0 before INIT_HCA.
    pub mpts: u32,
    /// Handed over by SW2HW_MPT and not taken back.
    handed_over: BTreeSet<u32>,
}

/// A contiguous piece of an access: a bus address and how many bytes from there.
type Piece = (u64, usize);

impl KeyTable {
    /// Entries handed over.
    pub fn count(&self) -> usize {
        self.handed_over.len()
    }

    /// Of `mpts` entries at `mpt_base`, none handed over, in T-mode.
    pub fn new(mpt_base: u64, mpts: u32) -> Self {
        Self {
            form: Form::Plain,
            mpt_base,
            mpts,
            handed_over: BTreeSet::new(),
        }
    }

    /// The same in M-mode, with translations from `mtt_base` on.
    pub fn rotated(mpt_base: u64, mpts: u32, mtt_base: u64) -> Self {
        Self {
            form: Form::Rotated { mtt_base },
            ..Self::new(mpt_base, mpts)
        }
    }

    /// The entry that `key` selects, whatever its generation.
    pub fn index(&self, key: u32) -> u32 {
        self.index_form(key) & self.mpts.wrapping_sub(1)
    }

    /// What an entry calls `key`: the index with the generation in its upper bits.
    pub fn index_form(&self, key: u32) -> u32 {
        self.form.index(key)
    }

    fn place(&self, index: u32) -> u64 {
        self.mpt_base.wrapping_add(u64::from(index) * MPT_LEN)
    }

    /// Does entry `index` belong to the HCA, as far as commands went?
    pub fn is_handed_over(&self, index: u32) -> bool {
        self.handed_over.contains(&index)
    }

    /// Entry `index`, as it lies in the table.
    pub fn entry(
        &self,
        memory: &Memory,
        bus: &mut dyn Bus,
        index: u32,
    ) -> Result<Mpt, MemoryFault> {
        let mut entry = Mpt::new_zeroed();
        memory.table_read(bus, self.place(index), entry.as_mut_bytes())?;
        Ok(entry)
    }

    /// Stores `entry` as entry `index`, valid.
    pub fn hand_over(
        &mut self,
        memory: &mut Memory,
        bus: &mut dyn Bus,
        index: u32,
        mut entry: Mpt,
    ) -> Result<(), MemoryFault> {
        entry.set_status(MptStatus::HARDWARE);
        memory.table_write(bus, self.place(index), entry.as_bytes())?;
        self.handed_over.insert(index);
        Ok(())
    }

    /// Stores `entry` as entry `index`, which is the HCA's, as it is.
    pub fn replace(
        &self,
        memory: &mut Memory,
        bus: &mut dyn Bus,
        index: u32,
        entry: &Mpt,
    ) -> Result<(), MemoryFault> {
        memory.table_write(bus, self.place(index), entry.as_bytes())
    }

    /// Makes entry `index` invalid and gives it back. One that was not handed over is as good as taken back.
    pub fn take_back(
        &mut self,
        memory: &mut Memory,
        bus: &mut dyn Bus,
        index: u32,
    ) -> Result<Mpt, MemoryFault> {
        let mut entry = Mpt::new_zeroed();
        if self.handed_over.remove(&index) {
            entry = self.entry(memory, bus, index)?;
            entry.set_status(MptStatus::SOFTWARE);
            memory.table_write(bus, self.place(index), entry.as_bytes())?;
        }
        Ok(entry)
    }

    /// The entry of `key`, if there is a valid one. infinihost 4.9, step 1.
    pub fn valid(&self, memory: &Memory, bus: &mut dyn Bus, key: u32) -> Result<Mpt, AccessError> {
        let index = self.index(key);
        if key == SENTINEL || !self.is_handed_over(index) {
            return Err(AccessError::Key { key });
        }
        let entry = self.entry(memory, bus, index)?;
        if entry.status() != MptStatus::HARDWARE || entry.key() != self.form.index(key) {
            return Err(AccessError::Key { key });
        }
        Ok(entry)
    }

    /// The entry of `key`, if it lets the user at `len` bytes at `at`. infinihost 4.9, steps 1 to 4.
    pub fn check(
        &self,
        memory: &Memory,
        bus: &mut dyn Bus,
        Key { key, pd }: Key,
        right: Right,
        at: u64,
        len: u64,
    ) -> Result<Mpt, AccessError> {
        let entry = self.valid(memory, bus, key)?;
        if entry.pd() != pd {
            let owner = entry.pd();
            return Err(AccessError::Domain { key, pd, owner });
        }
        if !holds(&entry, at, len) {
            return Err(AccessError::Bounds { key, at, len });
        }
        if !right.given_by(&entry) {
            return Err(AccessError::Right { key, right });
        }
        Ok(entry)
    }

    /// Where the bytes from `at` on lie, up to the end of their page, at most `len`. infinihost 4.9, step 5.
    fn translate(
        &self,
        memory: &Memory,
        bus: &mut dyn Bus,
        entry: &Mpt,
        at: u64,
        len: usize,
    ) -> Result<Piece, AccessError> {
        if entry.physical() {
            return Ok((at, len));
        }
        let shift = 12 + u32::from(entry.page_size());
        let number = (at >> shift).wrapping_sub(entry.start() >> shift);
        let first = self.form.translation(entry.mtt_address());
        let place = first.wrapping_add(number.wrapping_mul(8));
        let mut mtt = Mtt::new_zeroed();
        memory.table_read(bus, place, mtt.as_mut_bytes())?;
        if !mtt.present() {
            let key = entry.key();
            return Err(AccessError::NotPresent { key, at });
        }
        let size = 1_u64 << shift;
        let within = at & (size - 1);
        let rest = usize::try_from(size - within).unwrap_or(usize::MAX);
        Ok(((mtt.page_address() & !(size - 1)) | within, len.min(rest)))
    }

    /// Does a ring of `ring_len` bytes at virtual address `start` touch any of `len` bytes at bus address `at`?
    pub fn ring_touches(
        &self,
        memory: &Memory,
        bus: &mut dyn Bus,
        key: Key,
        (start, ring_len): (u64, u64),
        at: u64,
        len: u64,
    ) -> bool {
        let Ok(entry) = self.check(memory, bus, key, Right::LocalWrite, start, ring_len) else {
            return false;
        };
        self.pieces(memory, bus, &entry, start, ring_len)
            .any(|piece| overlaps(piece, at, len))
    }

    /// A region through which any of `len` bytes at bus address `at` can be reached. Regions without translations
    /// reach everything and say nothing.
    pub fn region_of(&self, memory: &Memory, bus: &mut dyn Bus, at: u64, len: u64) -> Option<u32> {
        let touches = |index: &&u32| {
            let Ok(entry) = self.entry(memory, bus, **index) else {
                return false;
            };
            let valid =
                entry.status() == MptStatus::HARDWARE && entry.region() && !entry.physical();
            let mut pieces = self.pieces(memory, bus, &entry, entry.start(), entry.length());
            valid && pieces.any(|piece| overlaps(piece, at, len))
        };
        self.handed_over.iter().find(touches).copied()
    }

    /// Reads `data.len()` bytes at virtual address `at`. After an error, part of `data` may have been read.
    pub fn read(
        &self,
        memory: &Memory,
        bus: &mut dyn Bus,
        key: Key,
        at: u64,
        data: &mut [u8],
    ) -> Result<(), AccessError> {
        let entry = self.check(memory, bus, key, Right::LocalRead, at, data.len() as u64)?;
        self.fetch(memory, bus, &entry, at, data)
    }

    /// Writes `data` at virtual address `at`. After an error, part of it may have been written.
    pub fn write(
        &self,
        memory: &mut Memory,
        bus: &mut dyn Bus,
        key: Key,
        at: u64,
        data: &[u8],
    ) -> Result<(), AccessError> {
        let entry = self.check(memory, bus, key, Right::LocalWrite, at, data.len() as u64)?;
        self.store(memory, bus, &entry, at, data)
    }

    /// Reads through the translations of `region`, page by page; whether it may be is checked already.
    pub fn fetch(
        &self,
        memory: &Memory,
        bus: &mut dyn Bus,
        region: &Mpt,
        mut at: u64,
        mut data: &mut [u8],
    ) -> Result<(), AccessError> {
        while !data.is_empty() {
            let (address, len) = self.translate(memory, bus, region, at, data.len())?;
            let (piece, rest) = data.split_at_mut(len.min(data.len()));
            memory.read(bus, address, piece)?;
            at = at.wrapping_add(piece.len() as u64);
            data = rest;
        }
        Ok(())
    }

    /// Writes through them.
    pub fn store(
        &self,
        memory: &mut Memory,
        bus: &mut dyn Bus,
        region: &Mpt,
        mut at: u64,
        mut data: &[u8],
    ) -> Result<(), AccessError> {
        while !data.is_empty() {
            let (address, len) = self.translate(memory, bus, region, at, data.len())?;
            let (piece, rest) = data.split_at(len.min(data.len()));
            memory.write(bus, address, piece)?;
            at = at.wrapping_add(piece.len() as u64);
            data = rest;
        }
        Ok(())
    }

    /// The contiguous pieces of `len` bytes from `start` on, as far as they are translated, and not without end.
    fn pieces(
        &self,
        memory: &Memory,
        bus: &mut dyn Bus,
        entry: &Mpt,
        start: u64,
        len: u64,
    ) -> impl Iterator<Item = Piece> {
        const MOST: usize = 1 << 20;
        let mut at = start;
        let mut left = len;
        core::iter::from_fn(move || {
            let most = usize::try_from(left).unwrap_or(usize::MAX);
            let piece = self.translate(memory, bus, entry, at, most).ok();
            let (_, piece_len) = piece.filter(|_| left != 0)?;
            at = at.wrapping_add(piece_len as u64);
            left = left.saturating_sub(piece_len as u64);
            piece
        })
        .take(MOST)
    }
}

/// Are all of `len` bytes at `at` within `entry`? infinihost 4.9, step 3.
pub fn holds(entry: &Mpt, at: u64, len: u64) -> bool {
    let end = u128::from(entry.start()) + u128::from(entry.length());
    let unbounded = entry.length() == Mpt::NO_LIMIT;
    let last = u128::from(at) + u128::from(len);
    at >= entry.start() && last <= 1 << 64 && (unbounded || last <= end)
}

fn overlaps((start, piece_len): Piece, at: u64, len: u64) -> bool {
    let end = start.saturating_add(piece_len as u64);
    start < at.saturating_add(len) && at < end
}
