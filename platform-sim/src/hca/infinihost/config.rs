//! What one HCA of the family is to be, and the PCI function that this makes of it. infinihost 1, 10.2.

use super::variant::{Mode, Slot, Variant};
use crate::machine::{ConfigSpace, Identity, Msix, PciCore};
use core::time::Duration;
use core_ib::Guid;
use hca_abi::infinihost::{pci, regs};

/// Bytes of BAR 2: 2048 UAR pages of 4 KB.
pub const UAR_LEN: u64 = 8 << 20;
/// Log2 of [`UAR_LEN`] in MB, as QUERY_DEV_LIM reports it.
pub const LOG_UAR_MB: u8 = 3;
/// MSI-X table in BAR 0.
const MSIX_TABLE: u32 = 0x8_2000;
/// MSI-X pending bits in BAR 0.
const MSIX_PENDING: u32 = 0x8_2200;
/// Messages.
const MSIX_COUNT: u16 = 32;
/// Bytes at the top of DDR that are the firmware's.
pub const FIRMWARE_AREA: u64 = 4 << 20;

/// PCI Express capability behind its header: version 1, an endpoint; payloads of up to 128 bytes; x8 at 2.5 GT/s, and
/// so trained.
const EXPRESS: [u8; 18] = [
    1, 0, 0, 0, 0, 0, 0x10, 0x28, 0, 0, 0x81, 0, 0, 0, 0, 0, 0x81, 0x10,
];
/// Device Control and Link Control can be written.
const EXPRESS_WRITABLE: [u8; 18] = [
    0, 0, 0, 0, 0, 0, 0xff, 0x7f, 0, 0, 0, 0, 0, 0, 0xcb, 0x01, 0, 0,
];

/// Firmware version, as `major.minor.sub_minor`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirmwareVersion {
    /// The 3 of 3.5.0.
    pub major: u16,
    /// The 5.
    pub minor: u16,
    /// The 0.
    pub sub_minor: u16,
}

impl FirmwareVersion {
    pub(super) const fn new(major: u16, minor: u16, sub_minor: u16) -> Self {
        Self {
            major,
            minor,
            sub_minor,
        }
    }
}

/// One HCA of the family.
#[derive(Clone, Debug)]
pub struct Config {
    /// Chip and firmware.
    pub variant: Variant,
    /// Ports, 1 or 2.
    pub ports: u8,
    /// Of the node.
    pub node_guid: Guid,
    /// Of port 1 and port 2.
    pub port_guids: [Guid; 2],
    /// Of the system.
    pub system_image_guid: Guid,
    /// NodeDescription, at most 64 bytes.
    pub node_description: String,
    /// Bytes of attached memory, a power of two of at least 8 MB; 0 in M-mode. Linux with its default profile needs
    /// 128 MB.
    pub ddr_len: u64,
    /// The host cannot reach the attached memory: there is no BAR 4.
    pub hidden_ddr: bool,
    /// There are MSI-X messages, not the pin alone.
    pub msix: bool,
    /// What QUERY_FW says.
    pub firmware: FirmwareVersion,
    /// What QUERY_ADAPTER says, at most 16 bytes.
    pub board_id: String,
    /// From the store that posts a command to its completion. 0: within the store.
    pub command_time: Duration,
    /// From the store that resets to an answer of configuration space, which is all ones meanwhile. 0: at once.
    pub reset_time: Duration,
    /// M-mode: checksums of datagrams are offered, as late firmware does. At first so but for the Sinai with the older device
    /// number, which stands for the others.
    pub checksums: bool,
}

impl Config {
    /// An MT23108 with two ports, 128 MB of visible memory and MSI-X, whose other GUIDs follow `node_guid`: ports, then
    /// system image.
    pub fn new(node_guid: Guid) -> Self {
        Self::of(Variant::Tavor, node_guid)
    }

    /// The same of another chip, with the ports that it can have, and attached memory only where it needs some.
    pub fn of(variant: Variant, node_guid: Guid) -> Self {
        let plus = |count: u64| Guid(node_guid.0.wrapping_add(count));
        let facts = variant.facts();
        Self {
            variant,
            ports: facts.ports,
            node_guid,
            port_guids: [plus(1), plus(2)],
            system_image_guid: plus(3),
            node_description: facts.description.into(),
            ddr_len: match facts.mode {
                Mode::T => 128 << 20,
                Mode::M => 0,
            },
            hidden_ddr: false,
            msix: true,
            firmware: facts.firmware,
            board_id: facts.board_id.into(),
            command_time: Duration::ZERO,
            reset_time: Duration::ZERO,
            checksums: matches!(variant, Variant::Arbel | Variant::Sinai),
        }
    }

    /// # Panics
    ///
    /// If the configuration is not one that a card can have.
    pub(super) fn check(&self) {
        let facts = self.variant.facts();
        assert!(
            (1..=facts.ports).contains(&self.ports),
            "an {} has up to {} ports, not {}",
            facts.name,
            facts.ports,
            self.ports
        );
        assert!(
            facts.mode == Mode::M || !self.checksums,
            "an {} knows nothing of checksums",
            facts.name
        );
        let len = self.ddr_len;
        match facts.mode {
            Mode::T => assert!(
                len.is_power_of_two() && (8 << 20..=1 << 40).contains(&len),
                "{len} bytes of attached memory are not a power of two of at least 8 MB"
            ),
            Mode::M => assert_eq!(len, 0, "an {} has no attached memory", facts.name),
        }
    }

    /// Configuration space, BARs, capabilities.
    pub(super) fn pci(&self) -> PciCore {
        let facts = self.variant.facts();
        let mut config = ConfigSpace::new(Identity {
            vendor: pci::VENDOR_MELLANOX,
            device: facts.device.0,
            revision: facts.revision,
            class: pci::CLASS_CODE,
            subsystem_vendor: pci::VENDOR_MELLANOX,
            subsystem: facts.device.0,
            interrupt_pin: 1,
        });
        config.add_bar64(pci::BAR_DCS, regs::BAR0_LEN, false);
        config.add_bar64(pci::BAR_UAR, UAR_LEN, true);
        if !self.hidden_ddr && self.ddr_len != 0 {
            config.add_bar64(pci::BAR_DDR, self.ddr_len, true);
        }
        let msix = self
            .msix
            .then(|| Msix::new(&mut config, 0x40, MSIX_COUNT, 0, MSIX_TABLE, MSIX_PENDING));
        match facts.slot {
            // The command register's byte counts and outstanding splits are kept; status: 64 bits, 133 MHz.
            Slot::PciX => config.add_capability(
                0x70,
                pci::CAP_PCIX,
                &[0, 0, 0, 0, 3, 0],
                &[0x7f, 0, 0, 0, 0, 0],
            ),
            Slot::Express => {
                config.add_capability(0xa0, pci::CAP_PCIE, &EXPRESS, &EXPRESS_WRITABLE)
            }
        }
        PciCore::new(config, msix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_card_has_the_published_identity_and_bars() {
        let pci = Config::new(Guid(0x0002_c900_0000_0100)).pci();
        assert_eq!(pci.config.u32(0), 0x5a44_15b3);
        assert_eq!(pci.config.u32(8), 0x0c06_00a1);
        let lens = [0, 1, 2, 3, 4, 5].map(|bar| pci.config.bar_len(bar));
        assert_eq!(
            lens,
            [
                Some(1 << 20),
                None,
                Some(8 << 20),
                None,
                Some(128 << 20),
                None
            ]
        );
        assert_eq!(
            (pci.config.u16(0x40) & 0xff, pci.config.u16(0x70) & 0xff),
            (0x11, 7)
        );
        assert_eq!(
            (pci.config.u32(0x58), pci.config.u32(0x5c)),
            (0, 0),
            "the gateway"
        );
    }

    #[test]
    fn hidden_memory_has_no_bar_and_a_card_without_messages_no_capability() {
        let mut config = Config::new(Guid(0));
        (config.hidden_ddr, config.msix) = (true, false);
        let pci = config.pci();
        assert_eq!(pci.config.bar_len(4), None);
        assert_eq!(pci.config.u16(0x34) & 0xff, 0x70);
    }
}
