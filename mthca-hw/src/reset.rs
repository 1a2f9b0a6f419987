//! Reset of the HCA, after which it has let go of all memory. infinihost 1.5.
//!
//! The reset wipes the function's configuration space; what the machine had set up there (addresses, bus mastering) is
//! saved before and written back after. A bridge above a Tavor is the machine's own: who puts one there saves it.

use core::fmt;
use core::time::Duration;
use core_ib::platform::{Platform, Registers};
use hca_abi::infinihost::pci::{CAP_PCIE, CAP_PCIX, GATEWAY_ADDRESS, GATEWAY_DATA};
use hca_abi::infinihost::regs;

/// How long the HCA is left alone after the reset.
const QUIET: Duration = Duration::from_secs(1);
/// Then it is looked at this often ...
const LOOKS: u32 = 100;
/// ... this far apart.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Dwords of the configuration header.
const HEADER: u16 = 16;
/// Offset of the header's command register, which is written back last.
const COMMAND: u16 = 0x04;
/// Offset of the pointer to the first capability.
const CAPABILITIES: u16 = 0x34;
/// The status register's bit, as one of the command dword, that says that there are capabilities.
const HAS_CAPABILITIES: u32 = 1 << 20;
/// Device control within a PCI Express capability (lower half; the upper is status).
const PCIE_DEVICE_CONTROL: u16 = 0x08;
/// Link control, likewise.
const PCIE_LINK_CONTROL: u16 = 0x10;

/// The HCA did not come back from a reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotBack;

impl fmt::Display for NotBack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the HCA did not come back from its reset: power-cycle it")
    }
}

impl core::error::Error for NotBack {}

/// What of the configuration space has to survive.
struct Saved {
    header: [u32; HEADER as usize],
    /// Offset and value of dwords beyond the header.
    beyond: [Option<(u16, u32)>; 3],
}

fn save<P: Platform>(machine: &P) -> Saved {
    let mut header = [0; HEADER as usize];
    for (offset, dword) in (0..).step_by(4).zip(&mut header) {
        *dword = machine.config_read32(offset);
    }
    let keep = |at: u16| {
        let gateway = at == GATEWAY_ADDRESS || at == GATEWAY_DATA;
        (!gateway).then(|| (at, machine.config_read32(at)))
    };
    let [pcix, pcie] = [CAP_PCIX, CAP_PCIE].map(|id| capability(machine, &header, id));
    // The upper half of a PCI-X capability's first dword is its command register. The upper half of the PCI Express
    // dwords is status, which ones would clear.
    let control = |(at, dword)| (at, dword & 0xffff);
    let beyond = [
        pcix.and_then(keep),
        pcie.and_then(|at| keep(at + PCIE_DEVICE_CONTROL))
            .map(control),
        pcie.and_then(|at| keep(at + PCIE_LINK_CONTROL))
            .map(control),
    ];
    Saved { header, beyond }
}

/// Offset of capability `id`. The chain is the device's: it is followed for so long and no longer.
fn capability<P: Platform>(machine: &P, header: &[u32], id: u8) -> Option<u16> {
    let dword = |offset: u16| header.get(usize::from(offset / 4)).copied();
    if dword(COMMAND)? & HAS_CAPABILITIES == 0 {
        return None;
    }
    let mut at = dword(CAPABILITIES)? as u16 & 0xfc;
    for _ in 0..48 {
        if at < HEADER * 4 {
            return None;
        }
        let found = machine.config_read32(at);
        if found as u8 == id {
            return Some(at);
        }
        at = (found >> 8) as u16 & 0xfc;
    }
    None
}

fn restore<P: Platform>(machine: &P, saved: &Saved) {
    for (at, value) in saved.beyond.into_iter().flatten() {
        machine.config_write32(at, value);
    }
    let dwords = (0_u16..).step_by(4).zip(saved.header);
    for (at, value) in dwords.clone().filter(|&(at, _)| at != COMMAND) {
        machine.config_write32(at, value);
    }
    for (at, value) in dwords.filter(|&(at, _)| at == COMMAND) {
        machine.config_write32(at, value & 0xffff);
    }
}

/// Resets the HCA behind `dcs` (BAR 0). When this returns without an error the HCA has stopped all DMA: it is as after
/// power-on, or it is not on the bus at all. Control context; blocks for a second, for eleven at most.
pub fn reset<P: Platform>(machine: &P, dcs: &P::Registers) -> Result<(), NotBack> {
    if machine.config_read32(0) == u32::MAX {
        return Ok(()); // not there: nobody to do DMA
    }
    let saved = save(machine);
    dcs.write_be32(regs::RESET, regs::RESET_VALUE);
    machine.sleep(QUIET);
    for _ in 0..LOOKS {
        if machine.config_read32(0) != u32::MAX {
            restore(machine, &saved);
            return Ok(());
        }
        machine.sleep(LOOK_EVERY);
    }
    Err(NotBack)
}
