//! Work queue entries: fetched through the queue's key, taken apart into segments, gathered from and scattered to.
//! infinihost 5.2 to 5.6.

use super::chip::Chip;
use super::mpt::{AccessError, Key};
use crate::machine::Bus;
use hca_abi::infinihost::cqe::Syndrome;
use hca_abi::infinihost::wqe::{
    DataSegment, END_OF_LIST_LKEY, MAX_UNITS, NextSegment, UNIT, WqeOpcode,
};
use zerocopy::FromBytes;

/// Most bytes of an entry.
const MAX_LEN: usize = MAX_UNITS as usize * UNIT;

/// Where an entry is and, for sends, what it is to do: all of this is told by a doorbell, or by the entry before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Low 32 bits of its address.
    pub nda: u32,
    /// Its size in units of 16 bytes.
    pub nds: u8,
    /// What it does.
    pub opcode: WqeOpcode,
    /// Not before all earlier reads and atomics are done.
    pub fence: bool,
}

impl Position {
    /// Of a receive.
    pub const fn receive(nda: u32, nds: u8) -> Self {
        Self {
            nda,
            nds,
            opcode: WqeOpcode::NOP,
            fence: false,
        }
    }
}

/// An entry, copied out of memory once: what its owner does to it meanwhile changes nothing.
pub struct Wqe {
    bytes: [u8; MAX_LEN],
    len: usize,
    /// Where it was.
    pub at: Position,
}

/// One entry of a list of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'w> {
    /// In memory.
    Pointer {
        /// L_Key.
        lkey: u32,
        /// First byte.
        address: u64,
        /// Bytes, never 0.
        len: usize,
    },
    /// In the entry itself.
    Inline(&'w [u8]),
}

impl Wqe {
    /// Reads the entry at `at`; `base_high` are the upper 32 bits of its address.
    pub fn fetch(
        chip: &Chip,
        bus: &mut dyn Bus,
        key: Key,
        base_high: u32,
        at: Position,
    ) -> Result<Self, AccessError> {
        let mut wqe = Self {
            bytes: [0; MAX_LEN],
            len: usize::from(at.nds) * UNIT,
            at,
        };
        let address = u64::from(base_high) << 32 | u64::from(at.nda);
        let bytes = wqe.bytes.get_mut(..wqe.len).unwrap_or_default();
        chip.read(bus, key, address, bytes)?;
        Ok(wqe)
    }

    fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    /// The segment at `offset`; `None` if the entry ends before.
    pub fn segment<T: FromBytes>(&self, offset: usize) -> Option<T> {
        let rest = self.bytes().get(offset..)?;
        T::read_from_prefix(rest).ok().map(|(segment, _)| segment)
    }

    /// The first 16 bytes; zeros if the entry is shorter than that.
    pub fn next(&self) -> NextSegment {
        self.segment(0).unwrap_or(NextSegment::ZERO)
    }

    /// The list of data from `offset` to the end of the entry. `Err` for inline data that reaches beyond.
    pub fn pieces(&self, offset: usize) -> Pieces<'_> {
        Pieces {
            rest: self.bytes().get(offset..).unwrap_or_default(),
        }
    }

    /// Gathers the list at `offset` to the end of `out`. More than `max` bytes is a local length error.
    pub fn gather(
        &self,
        chip: &Chip,
        bus: &mut dyn Bus,
        pd: u32,
        offset: usize,
        max: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), Syndrome> {
        let mut room = max;
        for piece in self.pieces(offset) {
            let start = out.len();
            let len = match piece? {
                Piece::Pointer { len, .. } => len,
                Piece::Inline(data) => data.len(),
            };
            room = room.checked_sub(len).ok_or(Syndrome::LOCAL_LENGTH)?;
            match piece? {
                Piece::Inline(data) => out.extend_from_slice(data),
                Piece::Pointer { lkey, address, .. } => {
                    out.resize(start + len, 0);
                    let place = out.get_mut(start..).unwrap_or_default();
                    let read = chip.read(bus, Key { key: lkey, pd }, address, place);
                    read.map_err(|error| protection(bus, &error))?;
                }
            }
        }
        Ok(())
    }

    /// Fills `out` from the list at `offset`, `skip` bytes in. A list that ends before is a local length error.
    pub fn gather_part(
        &self,
        chip: &Chip,
        bus: &mut dyn Bus,
        pd: u32,
        offset: usize,
        mut skip: u64,
        mut out: &mut [u8],
    ) -> Result<(), Syndrome> {
        for piece in self.pieces(offset) {
            if out.is_empty() {
                break;
            }
            let piece = piece?;
            let len = match piece {
                Piece::Pointer { len, .. } => len,
                Piece::Inline(data) => data.len(),
            };
            let skipped = skip.min(len as u64);
            skip -= skipped;
            let skipped = skipped as usize; // at most `len`
            let (part, rest) = out.split_at_mut(out.len().min(len - skipped));
            out = rest;
            match piece {
                _ if part.is_empty() => {}
                Piece::Inline(data) => {
                    if let Some(from) = data.get(skipped..skipped + part.len()) {
                        part.copy_from_slice(from);
                    }
                }
                Piece::Pointer { lkey, address, .. } => {
                    let at = address.wrapping_add(skipped as u64);
                    let read = chip.read(bus, Key { key: lkey, pd }, at, part);
                    read.map_err(|error| protection(bus, &error))?;
                }
            }
        }
        if out.is_empty() {
            Ok(())
        } else {
            Err(Syndrome::LOCAL_LENGTH)
        }
    }

    /// Scatters `skip` bytes that are left alone, then `data`, over the list at `offset`.
    pub fn scatter(
        &self,
        chip: &mut Chip,
        bus: &mut dyn Bus,
        pd: u32,
        (offset, mut skip): (usize, usize),
        mut data: &[u8],
    ) -> Result<(), Syndrome> {
        let lens = self.pieces(offset).map(|piece| match piece {
            Ok(Piece::Pointer { len, .. }) => Ok(len as u64),
            Ok(Piece::Inline(_)) | Err(_) => Err(Syndrome::LOCAL_QP_OPERATION),
        });
        let room: u64 = lens.sum::<Result<u64, Syndrome>>()?;
        if room < (skip + data.len()) as u64 {
            return Err(Syndrome::LOCAL_LENGTH);
        }
        for piece in self.pieces(offset) {
            let Piece::Pointer { lkey, address, len } = piece? else {
                return Err(Syndrome::LOCAL_QP_OPERATION);
            };
            let skipped = skip.min(len);
            skip -= skipped;
            let (part, rest) = data.split_at(data.len().min(len - skipped));
            data = rest;
            if !part.is_empty() {
                let at = address.wrapping_add(skipped as u64);
                let written = chip.write(bus, Key { key: lkey, pd }, at, part);
                written.map_err(|error| protection(bus, &error))?;
            }
        }
        Ok(())
    }
}

/// An access that a list asked for was refused: into the machine's trace, and the syndrome that it makes.
fn protection(bus: &mut dyn Bus, error: &AccessError) -> Syndrome {
    if bus.tracing() {
        bus.trace(format_args!("data of a WQE: {error}"));
    }
    Syndrome::LOCAL_PROTECTION
}

/// Iterator over a list of data. Ends at the sentinel key, leaves out entries of no bytes. infinihost 5.5.
pub struct Pieces<'w> {
    rest: &'w [u8],
}

impl<'w> Iterator for Pieces<'w> {
    type Item = Result<Piece<'w>, Syndrome>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let (segment, rest) = DataSegment::read_from_prefix(self.rest).ok()?;
            if segment.inline() {
                let len = segment.byte_count() as usize;
                let whole = (4 + len).next_multiple_of(UNIT);
                let data = self.rest.get(4..4 + len);
                self.rest = self.rest.get(whole..).unwrap_or_default();
                return Some(data.map(Piece::Inline).ok_or(Syndrome::LOCAL_QP_OPERATION));
            }
            self.rest = rest;
            if segment.lkey() == END_OF_LIST_LKEY {
                return None;
            }
            let len = segment.byte_count() as usize;
            if len != 0 {
                let (lkey, address) = (segment.lkey(), segment.address());
                return Some(Ok(Piece::Pointer { lkey, address, len }));
            }
        }
    }
}
