//! PCI identity of the HCAs: device numbers, BARs, capabilities that drivers look for. infinihost 1.

/// Mellanox.
pub const VENDOR_MELLANOX: u16 = 0x15b3;
/// Topspin, whose boards carry the same device numbers.
pub const VENDOR_TOPSPIN: u16 = 0x1867;

number_set! {
    /// PCI device number, the same under both vendors. infinihost 1.1.
    pub struct DeviceId(u16) {
        /// MT23108, T-mode, PCI-X.
        TAVOR = 0x5a44;
        /// The PCI-X bridge inside an MT23108.
        TAVOR_BRIDGE = 0x5a46;
        /// MT25208 with firmware that is compatible to the MT23108, T-mode, PCI Express.
        ARBEL_COMPAT = 0x6278;
        /// MT25208 native ("MT25218"), M-mode, PCI Express.
        ARBEL = 0x6282;
        /// MT25204, M-mode, PCI Express.
        SINAI = 0x6274;
        /// MT25204 under its older number.
        SINAI_OLD = 0x5e8c;
    }
}

/// Base class "serial bus", sub-class "InfiniBand", interface 0.
pub const CLASS_CODE: u32 = 0x0c_06_00;

/// Device control and status: HCR, interrupts, reset. Exactly [`regs::BAR0_LEN`](super::regs::BAR0_LEN) long.
pub const BAR_DCS: u8 = 0;
/// UAR pages: doorbells.
pub const BAR_UAR: u8 = 2;
/// The window onto the memory attached to the HCA (DDR). May be absent.
pub const BAR_DDR: u8 = 4;

/// Capability number of PCI-X (infinihost 1.3).
pub const CAP_PCIX: u8 = 0x07;
/// Capability number of PCI Express.
pub const CAP_PCIE: u8 = 0x10;
/// Capability number of MSI-X.
pub const CAP_MSIX: u8 = 0x11;

/// A dword of configuration space that opens a gateway with side effects: neither saved nor restored around a reset.
pub const GATEWAY_ADDRESS: u16 = 0x58;
/// The other dword of the gateway.
pub const GATEWAY_DATA: u16 = 0x5c;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bridge_of_a_tavor_is_numbered_two_above_it() {
        assert_eq!(DeviceId::TAVOR_BRIDGE.0, DeviceId::TAVOR.0 + 2);
    }
}
