//! What the HCA reaches by bus address: host memory through the [`Bus`], and the memory attached to it; and where its
//! tables are: in attached memory (T-mode), or in host pages behind its own address space (M-mode).
//!
//! An address inside the window of the attached memory never leaves the HCA (infinihost 4.10). Everything else is the
//! host's, and nothing goes there unless software made the function a bus master.

use super::ddr::Ddr;
use super::icm::Icm;
use super::variant::Mode;
use crate::machine::{Bus, DmaFault};
use core::fmt;
use core_ib::platform::DmaAddr;

/// A physical access that did not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemoryFault {
    /// The host refused.
    Dma(DmaFault),
    /// Software has not made the function a bus master.
    NotMaster {
        /// First byte asked for.
        at: u64,
    },
    /// A table of the HCA lies, or the access ends, outside of the attached memory.
    OutsideAttached {
        /// First byte asked for.
        at: u64,
        /// Bytes asked for.
        len: usize,
    },
    /// No host page is behind the HCA's own address space there.
    NotBacked {
        /// The byte that has none.
        at: u64,
    },
}

impl fmt::Display for MemoryFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Dma(fault) => fault.fmt(f),
            Self::NotMaster { at } => write!(f, "{at:#x} asked for while not bus master"),
            Self::OutsideAttached { at, len } => {
                write!(f, "{len} bytes at {at:#x} are not in the attached memory")
            }
            Self::NotBacked { at } => write!(f, "no page is mapped at ICM address {at:#x}"),
        }
    }
}

impl core::error::Error for MemoryFault {}

/// Where the HCA's own tables are.
pub enum Tables {
    /// At bus addresses within the attached memory.
    Attached,
    /// At addresses of a space of their own.
    Mapped(Icm),
}

/// Bus addresses to bytes.
pub struct Memory {
    /// The attached memory.
    pub ddr: Ddr,
    /// Where the HCA sees its first byte.
    base: u64,
    /// Copy of the command register's bit.
    pub bus_master: bool,
    tables: Tables,
}

impl Memory {
    /// With `len` bytes attached; where they lie is said by [`place`](Self::place).
    pub fn new(mode: Mode, len: u64) -> Self {
        Self {
            ddr: Ddr::new(len),
            base: 0,
            bus_master: false,
            tables: match mode {
                Mode::T => Tables::Attached,
                Mode::M => Tables::Mapped(Icm::default()),
            },
        }
    }

    /// What a power cycle does to it: nothing is mapped, nothing remembered.
    pub fn forget(&mut self) {
        self.ddr.forget();
        if let Tables::Mapped(icm) = &mut self.tables {
            *icm = Icm::default();
        }
    }

    /// The map of the HCA's own address space, in M-mode.
    pub fn icm(&self) -> Option<&Icm> {
        match &self.tables {
            Tables::Attached => None,
            Tables::Mapped(icm) => Some(icm),
        }
    }

    /// The same, to change it.
    pub fn icm_mut(&mut self) -> Option<&mut Icm> {
        match &mut self.tables {
            Tables::Attached => None,
            Tables::Mapped(icm) => Some(icm),
        }
    }

    /// From now on the attached memory starts at bus address `base`.
    pub fn place(&mut self, base: u64) {
        self.base = base;
    }

    /// First bus address of the attached memory.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// First bus address behind the attached memory.
    pub fn end(&self) -> u64 {
        self.base.saturating_add(self.ddr.len())
    }

    const fn outside(at: u64, len: usize) -> MemoryFault {
        MemoryFault::OutsideAttached { at, len }
    }

    /// Offset into the attached memory.
    fn attached(&self, at: u64) -> Option<u64> {
        let offset = at.checked_sub(self.base)?;
        (offset < self.ddr.len()).then_some(offset)
    }

    /// Reads bytes at a bus address.
    pub fn read(&self, bus: &mut dyn Bus, at: u64, data: &mut [u8]) -> Result<(), MemoryFault> {
        if let Some(offset) = self.attached(at) {
            let len = data.len();
            let outside = |_| MemoryFault::OutsideAttached { at, len };
            return self.ddr.read(offset, data).map_err(outside);
        }
        if !self.bus_master {
            return Err(MemoryFault::NotMaster { at });
        }
        bus.dma_read(DmaAddr::new(at), data)
            .map_err(MemoryFault::Dma)
    }

    /// Writes bytes at a bus address.
    pub fn write(&mut self, bus: &mut dyn Bus, at: u64, data: &[u8]) -> Result<(), MemoryFault> {
        if let Some(offset) = self.attached(at) {
            let len = data.len();
            let outside = |_| MemoryFault::OutsideAttached { at, len };
            return self.ddr.write(offset, data).map_err(outside);
        }
        self.host_write(bus, at, data)
    }

    fn host_write(&self, bus: &mut dyn Bus, at: u64, data: &[u8]) -> Result<(), MemoryFault> {
        if !self.bus_master {
            return Err(MemoryFault::NotMaster { at });
        }
        bus.dma_write(DmaAddr::new(at), data)
            .map_err(MemoryFault::Dma)
    }

    /// Reads an entry of a table of the HCA's own. After an error, part of `data` may have been read.
    pub fn table_read(
        &self,
        bus: &mut dyn Bus,
        mut at: u64,
        mut data: &mut [u8],
    ) -> Result<(), MemoryFault> {
        let Tables::Mapped(icm) = &self.tables else {
            let outside = Self::outside(at, data.len());
            let offset = self.attached(at).ok_or(outside)?;
            return self.ddr.read(offset, data).map_err(|_| outside);
        };
        while !data.is_empty() {
            let (address, len) = icm.piece(at, data.len())?;
            let (piece, rest) = data.split_at_mut(len);
            self.read(bus, address, piece)?;
            at = at.wrapping_add(len as u64);
            data = rest;
        }
        Ok(())
    }

    /// Writes an entry of such a table. After an error, part of it may have been written.
    pub fn table_write(
        &mut self,
        bus: &mut dyn Bus,
        mut at: u64,
        mut data: &[u8],
    ) -> Result<(), MemoryFault> {
        let Tables::Mapped(icm) = &self.tables else {
            let outside = Self::outside(at, data.len());
            let offset = self.attached(at).ok_or(outside)?;
            return self.ddr.write(offset, data).map_err(|_| outside);
        };
        while !data.is_empty() {
            let (address, len) = icm.piece(at, data.len())?;
            let (piece, rest) = data.split_at(len);
            self.host_write(bus, address, piece)?;
            at = at.wrapping_add(len as u64);
            data = rest;
        }
        Ok(())
    }

    /// Zeroes a table.
    pub fn table_clear(
        &mut self,
        bus: &mut dyn Bus,
        mut at: u64,
        len: u64,
    ) -> Result<(), MemoryFault> {
        const ZEROS: [u8; 4096] = [0; 4096];
        let mut left = usize::try_from(len).unwrap_or(usize::MAX);
        if let Tables::Attached = &self.tables {
            let outside = Self::outside(at, left);
            let offset = self.attached(at).ok_or(outside)?;
            return self.ddr.clear(offset, len).map_err(|_| outside);
        }
        while left != 0 {
            let piece = ZEROS.get(..left).unwrap_or(&ZEROS);
            self.table_write(bus, at, piece)?;
            at = at.wrapping_add(piece.len() as u64);
            left -= piece.len();
        }
        Ok(())
    }

    /// Is there memory for all of `len` bytes of a table at `at`?
    pub fn table_has(&self, at: u64, len: u64) -> bool {
        match &self.tables {
            Tables::Attached => {
                let end = self.attached(at).and_then(|offset| offset.checked_add(len));
                end.is_some_and(|end| end <= self.ddr.len())
            }
            Tables::Mapped(icm) => icm.is_mapped(at, len),
        }
    }
}
