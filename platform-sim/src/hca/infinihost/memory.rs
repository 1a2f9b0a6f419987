//! What the HCA reaches by bus address: host memory through the [`Bus`], and the memory attached to it.
//!
//! An address inside the window of the attached memory never leaves the HCA (infinihost 4.10). Everything else is the
//! host's, and nothing goes there unless software made the function a bus master.

use super::ddr::Ddr;
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
}

impl fmt::Display for MemoryFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Dma(fault) => fault.fmt(f),
            Self::NotMaster { at } => write!(f, "{at:#x} asked for while not bus master"),
            Self::OutsideAttached { at, len } => {
                write!(f, "{len} bytes at {at:#x} are not in the attached memory")
            }
        }
    }
}

impl core::error::Error for MemoryFault {}

/// Bus addresses to bytes.
pub struct Memory {
    /// The attached memory.
    pub ddr: Ddr,
    /// Where the HCA sees its first byte.
    base: u64,
    /// Copy of the command register's bit.
    pub bus_master: bool,
}

impl Memory {
    /// With `len` bytes attached; where they lie is said by [`place`](Self::place).
    pub fn new(len: u64) -> Self {
        Self {
            ddr: Ddr::new(len),
            base: 0,
            bus_master: false,
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
        if !self.bus_master {
            return Err(MemoryFault::NotMaster { at });
        }
        bus.dma_write(DmaAddr::new(at), data)
            .map_err(MemoryFault::Dma)
    }

    /// Reads an entry of a table of the HCA's own, which lies in the attached memory (T-mode).
    pub fn table_read(
        &self,
        _bus: &mut dyn Bus,
        at: u64,
        data: &mut [u8],
    ) -> Result<(), MemoryFault> {
        let len = data.len();
        let outside = MemoryFault::OutsideAttached { at, len };
        let offset = self.attached(at).ok_or(outside)?;
        self.ddr.read(offset, data).map_err(|_| outside)
    }

    /// Writes an entry of such a table.
    pub fn table_write(
        &mut self,
        _bus: &mut dyn Bus,
        at: u64,
        data: &[u8],
    ) -> Result<(), MemoryFault> {
        let len = data.len();
        let outside = MemoryFault::OutsideAttached { at, len };
        let offset = self.attached(at).ok_or(outside)?;
        self.ddr.write(offset, data).map_err(|_| outside)
    }

    /// Zeroes a table.
    pub fn table_clear(
        &mut self,
        _bus: &mut dyn Bus,
        at: u64,
        len: u64,
    ) -> Result<(), MemoryFault> {
        let outside = MemoryFault::OutsideAttached {
            at,
            len: len as usize,
        };
        let offset = self.attached(at).ok_or(outside)?;
        self.ddr.clear(offset, len).map_err(|_| outside)
    }
}
