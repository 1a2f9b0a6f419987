//! What every PCI function has, in one piece for models to embed: configuration space, the pin, and MSI-X.

use super::{Bus, ConfigSpace, Msix};

/// Configuration space, pin and messages of one function, which keep each other's rules: no pin while it is
/// disabled or messages are in use, the status register's interrupt bit, pending messages sent when masks fall.
#[derive(Clone, Debug)]
pub struct PciCore {
    /// Configuration space.
    pub config: ConfigSpace,
    msix: Option<Msix>,
    pin_wanted: bool,
}

impl PciCore {
    /// From a configuration space in which `msix` has its capability.
    pub const fn new(config: ConfigSpace, msix: Option<Msix>) -> Self {
        Self {
            config,
            msix,
            pin_wanted: false,
        }
    }

    /// As [`PciFunction::config_read`](super::PciFunction::config_read).
    pub fn config_read(&self, offset: u16, data: &mut [u8]) {
        self.config.read(offset, data);
    }

    /// As [`PciFunction::config_write`](super::PciFunction::config_write).
    pub fn config_write(&mut self, bus: &mut dyn Bus, offset: u16, data: &[u8]) {
        self.config.write(offset, data);
        if let Some(msix) = &mut self.msix {
            msix.config_written(&self.config, bus);
        }
        self.drive_pin(bus);
    }

    /// Loads from a BAR if the MSI-X structures lie there; false if not.
    pub fn mmio_read(&self, bar: u8, offset: u64, data: &mut [u8]) -> bool {
        match &self.msix {
            Some(msix) if msix.covers(bar, offset) => {
                msix.mmio_read(offset, data);
                true
            }
            _ => false,
        }
    }

    /// Stores to a BAR if the MSI-X structures lie there; false if not.
    pub fn mmio_write(&mut self, bus: &mut dyn Bus, bar: u8, offset: u64, data: &[u8]) -> bool {
        match &mut self.msix {
            Some(msix) if msix.covers(bar, offset) => {
                msix.mmio_write(&self.config, bus, offset, data);
                true
            }
            _ => false,
        }
    }

    /// Software uses messages, and not the pin.
    pub fn messages_enabled(&self) -> bool {
        let msix = self.msix.as_ref();
        msix.is_some_and(|msix| msix.enabled(&self.config))
    }

    /// Raises message `vector`. False if there is none, or messages are not in use.
    pub fn raise_message(&mut self, bus: &mut dyn Bus, vector: u16) -> bool {
        match &mut self.msix {
            Some(msix) => msix.raise(&self.config, bus, vector),
            None => false,
        }
    }

    /// Wants the pin asserted or not.
    pub fn set_pin(&mut self, bus: &mut dyn Bus, asserted: bool) {
        self.pin_wanted = asserted;
        self.drive_pin(bus);
    }

    fn drive_pin(&mut self, bus: &mut dyn Bus) {
        // Status register, bit 3: what the function wants, whether or not it may.
        let status = self.config.u16(0x06) as u8 & !8 | if self.pin_wanted { 8 } else { 0 };
        self.config.set_u8(0x06, status);
        bus.set_intx(self.pin_wanted && !self.config.pin_disabled() && !self.messages_enabled());
    }

    /// As [`PciFunction::reset`](super::PciFunction::reset).
    pub fn reset(&mut self, bus: &mut dyn Bus) {
        self.config.reset();
        if let Some(msix) = &mut self.msix {
            msix.reset();
        }
        self.set_pin(bus, false);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{DmaFault, Identity, LinkControl, Message, SendQueueFull, TimerId};
    use super::*;
    use core_ib::Instant;
    use core_ib::platform::DmaAddr;

    /// Writes down what comes out of the function.
    #[derive(Default)]
    struct Seen {
        messages: Vec<(u64, u32)>,
        pin: bool,
    }

    impl Bus for Seen {
        fn now(&self) -> Instant {
            Instant(0)
        }
        fn dma_read(&mut self, at: DmaAddr, data: &mut [u8]) -> Result<(), DmaFault> {
            let len = data.len();
            Err(DmaFault::NotMapped { at, len })
        }
        fn dma_write(&mut self, at: DmaAddr, data: &[u8]) -> Result<(), DmaFault> {
            let len = data.len();
            Err(DmaFault::NotMapped { at, len })
        }
        fn set_intx(&mut self, asserted: bool) {
            self.pin = asserted;
        }
        fn message(&mut self, message: Message) {
            self.messages.push((message.address, message.data));
        }
        fn send(&mut self, _: u8, _: &[u8]) -> Result<(), SendQueueFull> {
            Ok(())
        }
        fn set_link(&mut self, _: u8, _: LinkControl) {}
        fn set_timer(&mut self, _: TimerId, _: Instant) {}
        fn cancel_timer(&mut self, _: TimerId) {}
        fn report(&mut self, what: core::fmt::Arguments<'_>) {
            panic!("{what}");
        }
    }

    const TABLE: u64 = 0x8_2000;
    const PENDING: u64 = 0x8_2200;

    fn function() -> PciCore {
        let mut config = ConfigSpace::new(Identity {
            vendor: 0x15b3,
            device: 0x5a44,
            revision: 0,
            class: 0x0c_06_00,
            subsystem_vendor: 0,
            subsystem: 0,
            interrupt_pin: 1,
        });
        config.add_bar64(0, 1 << 20, false);
        let msix = Msix::new(&mut config, 0x40, 32, 0, TABLE as u32, PENDING as u32);
        PciCore::new(config, Some(msix))
    }

    fn read32(function: &PciCore, offset: u64) -> u32 {
        let mut bytes = [0; 4];
        assert!(function.mmio_read(0, offset, &mut bytes));
        u32::from_le_bytes(bytes)
    }

    #[test]
    fn a_masked_message_waits_in_its_pending_bit_until_the_last_mask_falls() {
        let mut function = function();
        let mut seen = Seen::default();
        let bus = &mut seen;
        function.config_write(bus, 0x04, &6_u16.to_le_bytes());
        assert!(!function.raise_message(bus, 2), "not enabled");
        function.config_write(bus, 0x42, &0xc000_u16.to_le_bytes());
        function.mmio_write(bus, 0, TABLE + 32, &0xfee0_1000_u64.to_le_bytes());
        function.mmio_write(bus, 0, TABLE + 40, &77_u32.to_le_bytes());
        assert!(function.raise_message(bus, 2));
        assert_eq!(read32(&function, PENDING), 1 << 2);
        function.mmio_write(bus, 0, TABLE + 44, &0_u32.to_le_bytes());
        assert_eq!(read32(&function, PENDING), 1 << 2, "function mask is on");
        function.config_write(bus, 0x42, &0x8000_u16.to_le_bytes());
        assert_eq!(read32(&function, PENDING), 0);
        assert!(function.raise_message(bus, 2));
        assert!(
            !function.raise_message(bus, 32),
            "there are only 32 messages"
        );
        assert_eq!(seen.messages, [(0xfee0_1000, 77); 2]);
    }

    #[test]
    fn the_pin_is_released_while_disabled_or_while_messages_are_in_use() {
        let mut function = function();
        let mut seen = Seen::default();
        function.set_pin(&mut seen, true);
        assert!(seen.pin);
        assert_eq!(function.config.u16(0x06) & 8, 8);
        function.config_write(&mut seen, 0x04, &0x400_u16.to_le_bytes());
        assert!(!seen.pin);
        function.config_write(&mut seen, 0x04, &[0, 0]);
        assert!(seen.pin);
        function.config_write(&mut seen, 0x42, &0x8000_u16.to_le_bytes());
        assert!(!seen.pin && function.messages_enabled());
        function.reset(&mut seen);
        assert!(!seen.pin && !function.messages_enabled());
        assert_eq!(function.config.u16(0x06) & 8, 0);
    }

    #[test]
    fn the_capability_says_where_table_and_pending_bits_are() {
        let function = function();
        assert_eq!(function.config.u32(0x40), 0x001f_0011);
        assert_eq!(function.config.u32(0x44), TABLE as u32);
        assert_eq!(function.config.u32(0x48), PENDING as u32);
        assert_eq!(read32(&function, TABLE + 12), 1, "masked after reset");
        let mut outside = [0; 4];
        assert!(!function.mmio_read(0, PENDING + 8, &mut outside));
        assert!(!function.mmio_read(2, TABLE, &mut outside));
    }
}
