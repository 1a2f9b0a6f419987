//! Which chip of the family it is, and which of the two interfaces its firmware speaks. infinihost 1.1.
//!
//! Decided once, from the PCI identity, before the HCA is touched. What differs by interface is in the file of the
//! object concerned; what all of that is chosen by is here.

use core_ib::platform::Platform;
use hca_abi::infinihost::pci::{DeviceId, VENDOR_MELLANOX, VENDOR_TOPSPIN};

/// The interface that the firmware speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Tavor's: tables in memory of the HCA's own, queues fed by doorbells.
    #[default]
    T,
    /// Mem-free: tables in host memory lent to the HCA, queues fed by records in host memory.
    M,
}

/// A chip with its firmware.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Chip {
    /// As its maker calls it.
    pub name: &'static str,
    /// What it speaks.
    pub mode: Mode,
    /// It is a Sinai: keys of a certain form are quicker (infinihost 4.10), and old firmware means other static rates.
    pub sinai: bool,
}

/// Why a PCI function is not driven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unknown {
    /// The slot is empty.
    Nobody,
    /// It is something else.
    Other {
        /// PCI vendor.
        vendor: u16,
        /// PCI device number.
        device: u16,
    },
}

impl Chip {
    const fn of(device: DeviceId) -> Option<Self> {
        let (name, mode, sinai) = match device {
            DeviceId::TAVOR => ("MT23108", Mode::T, false),
            DeviceId::ARBEL_COMPAT => ("MT25208 (MT23108 compatible)", Mode::T, false),
            DeviceId::ARBEL => ("MT25208", Mode::M, false),
            DeviceId::SINAI | DeviceId::SINAI_OLD => ("MT25204", Mode::M, true),
            _ => return None,
        };
        Some(Self { name, mode, sinai })
    }

    /// The chip in the slot. Control context.
    pub(crate) fn identify<P: Platform>(machine: &P) -> Result<Self, Unknown> {
        let id = machine.config_read32(0);
        if id == u32::MAX {
            return Err(Unknown::Nobody);
        }
        let (vendor, device) = (id as u16, (id >> 16) as u16);
        let ours = vendor == VENDOR_MELLANOX || vendor == VENDOR_TOPSPIN;
        let chip = Self::of(DeviceId(device)).filter(|_| ours);
        chip.ok_or(Unknown::Other { vendor, device })
    }

    /// Its tables and records lie in host memory.
    #[inline]
    pub const fn is_mem_free(&self) -> bool {
        matches!(self.mode, Mode::M)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_of_the_reference_has_its_interface() {
        // infinihost 1.1
        let mode = |device| Chip::of(DeviceId(device)).map(|chip| (chip.mode, chip.sinai));
        assert_eq!(mode(0x5a44), Some((Mode::T, false)));
        assert_eq!(mode(0x6278), Some((Mode::T, false)));
        assert_eq!(mode(0x6282), Some((Mode::M, false)));
        assert_eq!(mode(0x6274), Some((Mode::M, true)));
        assert_eq!(mode(0x5e8c), Some((Mode::M, true)));
        assert_eq!(mode(0x5a46), None, "the bridge");
    }
}
