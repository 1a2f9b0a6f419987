//! Configuration space of a PCI function: the standard header, BARs that can be sized, a chain of capabilities.
//! Owned by the function; every bit knows whether software may write it.

/// Bytes of a PCI Express configuration space; conventional PCI has the first 256.
const SIZE: usize = 4096;
/// Offset of the command register.
pub(super) const COMMAND: u16 = 0x04;
/// Offset of BAR 0.
pub(super) const BAR0: u16 = 0x10;
/// Offset of the first capability's offset.
pub(super) const CAPABILITIES: u16 = 0x34;

/// Command register: BARs answer.
pub(super) const MEMORY: u16 = 1 << 1;
/// Command register: DMA and messages go out.
pub(super) const MASTER: u16 = 1 << 2;
/// Command register: the pin stays released.
const PIN_DISABLED: u16 = 1 << 10;
/// Command register: MEMORY, MASTER, parity response, SERR, PIN_DISABLED are what software may set.
const COMMAND_WRITABLE: u16 = MEMORY | MASTER | 1 << 6 | 1 << 8 | PIN_DISABLED;

/// Who the function says it is.
#[derive(Clone, Copy, Debug)]
pub struct Identity {
    /// Vendor ID.
    pub vendor: u16,
    /// Device ID.
    pub device: u16,
    /// Revision ID.
    pub revision: u8,
    /// Base class, sub-class, interface in 24 bits: `0x0c0600` is InfiniBand.
    pub class: u32,
    /// Subsystem vendor ID.
    pub subsystem_vendor: u16,
    /// Subsystem ID.
    pub subsystem: u16,
    /// INTA is 1; 0 for no pin.
    pub interrupt_pin: u8,
}

/// The bytes of configuration space, and which bits of them software may write.
#[derive(Clone, Debug)]
pub struct ConfigSpace {
    bytes: Box<[u8; SIZE]>,
    writable: Box<[u8; SIZE]>,
    at_reset: Box<[u8; SIZE]>,
    bars: [Option<u64>; 6],
    /// Where the offset of the next capability goes.
    chain_end: u16,
}

impl ConfigSpace {
    /// A type 0 header without BARs and capabilities.
    pub fn new(identity: Identity) -> Self {
        let mut space = Self {
            bytes: Box::new([0; SIZE]),
            writable: Box::new([0; SIZE]),
            at_reset: Box::new([0; SIZE]),
            bars: [None; 6],
            chain_end: CAPABILITIES,
        };
        space.define(0x00, &identity.vendor.to_le_bytes(), &[0, 0]);
        space.define(0x02, &identity.device.to_le_bytes(), &[0, 0]);
        space.define(COMMAND, &[0, 0], &COMMAND_WRITABLE.to_le_bytes());
        let [interface, sub_class, base_class, _] = identity.class.to_le_bytes();
        let class = [identity.revision, interface, sub_class, base_class];
        space.define(0x08, &class, &[0; 4]);
        // Cache line size and latency timer: kept for software that reads them back.
        space.define(0x0c, &[0, 0], &[0xff, 0xff]);
        space.define(0x2c, &identity.subsystem_vendor.to_le_bytes(), &[0, 0]);
        space.define(0x2e, &identity.subsystem.to_le_bytes(), &[0, 0]);
        space.define(0x3c, &[0xff, identity.interrupt_pin], &[0xff, 0]);
        space
    }

    /// Gives the function a 64-bit memory BAR of `len` bytes at `bar` and `bar + 1`. For makers of models.
    ///
    /// # Panics
    ///
    /// If `bar` is not 0, 2 or 4, or `len` not a power of two of at least 16.
    pub fn add_bar64(&mut self, bar: u8, len: u64, prefetchable: bool) {
        assert!(
            bar < 6 && bar.is_multiple_of(2),
            "a 64-bit BAR starts at 0, 2 or 4"
        );
        assert!(
            len.is_power_of_two() && len >= 16,
            "the size of a BAR is a power of two"
        );
        let kind = 0x4 | if prefetchable { 0x8 } else { 0 };
        let low = BAR0 + 4 * u16::from(bar);
        self.define(low, &u64::to_le_bytes(kind), &(!(len - 1)).to_le_bytes());
        if let Some(slot) = self.bars.get_mut(usize::from(bar)) {
            *slot = Some(len);
        }
    }

    /// Adds a capability at `at` (a multiple of 4 from 0x40 on, not the last thing in the first 256 bytes): `id`, the
    /// link to the next, then `body`, of which the bits in `writable` can be written. For makers of models.
    ///
    /// # Panics
    ///
    /// If it does not fit there, or `body` and `writable` differ in length.
    pub fn add_capability(&mut self, at: u8, id: u8, body: &[u8], writable: &[u8]) {
        let start = u16::from(at);
        assert!(
            at >= 0x40 && at.is_multiple_of(4) && usize::from(at) + 2 + body.len() <= 256,
            "capability {id:#x} does not fit at {at:#x}"
        );
        self.define(start, &[id, 0], &[0, 0]);
        self.define(start + 2, body, writable);
        let link = self.chain_end;
        self.define(link, &[at], &[0]);
        self.chain_end = start + 1;
        // Status register: there is a list of capabilities.
        self.define(0x06, &[0x10], &[0]);
    }

    /// Puts bytes anywhere, with the bits of each that software may write; also their state after reset.
    ///
    /// # Panics
    ///
    /// If `value` and `writable` differ in length, or reach outside.
    pub fn define(&mut self, at: u16, value: &[u8], writable: &[u8]) {
        let range = usize::from(at)..usize::from(at) + value.len();
        self.bytes[range.clone()].copy_from_slice(value);
        self.at_reset[range.clone()].copy_from_slice(value);
        self.writable[range].copy_from_slice(writable);
    }

    /// Loads; outside it is all ones.
    pub fn read(&self, at: u16, data: &mut [u8]) {
        let range = usize::from(at)..usize::from(at) + data.len();
        match self.bytes.get(range) {
            Some(bytes) => data.copy_from_slice(bytes),
            None => data.fill(0xff),
        }
    }

    /// Stores the bits that software may write; the rest is lost.
    pub fn write(&mut self, at: u16, data: &[u8]) {
        let at = usize::from(at);
        let bytes = self.bytes.iter_mut().skip(at);
        let writable = self.writable.iter().skip(at);
        for ((byte, &mask), &new) in bytes.zip(writable).zip(data) {
            *byte = *byte & !mask | new & mask;
        }
    }

    /// The function's own store, into any bit.
    pub fn set_u8(&mut self, at: u16, value: u8) {
        if let Some(byte) = self.bytes.get_mut(usize::from(at)) {
            *byte = value;
        }
    }

    /// A 16-bit word, as a number.
    pub fn u16(&self, at: u16) -> u16 {
        let mut bytes = [0; 2];
        self.read(at, &mut bytes);
        u16::from_le_bytes(bytes)
    }

    /// A 32-bit word, as a number.
    pub fn u32(&self, at: u16) -> u32 {
        let mut bytes = [0; 4];
        self.read(at, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    /// Software lets the BARs answer.
    pub fn memory_enabled(&self) -> bool {
        self.u16(COMMAND) & MEMORY != 0
    }

    /// Software lets the function do DMA and send messages.
    pub fn bus_master(&self) -> bool {
        self.u16(COMMAND) & MASTER != 0
    }

    /// Software forbids the pin.
    pub fn pin_disabled(&self) -> bool {
        self.u16(COMMAND) & PIN_DISABLED != 0
    }

    /// Bytes of BAR `bar`.
    pub fn bar_len(&self, bar: u8) -> Option<u64> {
        *self.bars.get(usize::from(bar))?
    }

    /// Bus address that software gave to BAR `bar`; 0 if none yet.
    pub fn bar_address(&self, bar: u8) -> Option<u64> {
        self.bar_len(bar)?;
        let at = BAR0 + 4 * u16::from(bar);
        Some(u64::from(self.u32(at + 4)) << 32 | u64::from(self.u32(at) & !0xf))
    }

    /// Everything as it was defined.
    pub fn reset(&mut self) {
        self.bytes.copy_from_slice(&*self.at_reset);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space() -> ConfigSpace {
        let mut space = ConfigSpace::new(Identity {
            vendor: 0x15b3,
            device: 0x5a44,
            revision: 0xa1,
            class: 0x0c_06_00,
            subsystem_vendor: 0x15b3,
            subsystem: 0x5a44,
            interrupt_pin: 1,
        });
        space.add_bar64(0, 1 << 20, false);
        space.add_bar64(2, 8 << 20, true);
        space.add_capability(0x50, 0x03, &[0; 6], &[0, 0, 0xff, 0, 0, 0]);
        space.add_capability(0x70, 0x07, &[1, 2], &[0xf0, 0]);
        space
    }

    #[test]
    fn the_header_reads_as_the_bytes_of_the_pci_specification() {
        let space = space();
        let mut head = [0; 16];
        space.read(0, &mut head);
        assert_eq!(
            head,
            [
                0xb3, 0x15, 0x44, 0x5a, 0, 0, 0x10, 0, 0xa1, 0, 0x06, 0x0c, 0, 0, 0, 0
            ]
        );
        assert_eq!(space.u32(0x2c), 0x5a44_15b3);
        assert_eq!(space.u16(0x3c), 0x01ff);
    }

    #[test]
    fn a_bar_that_is_written_with_ones_reads_back_as_its_size() {
        let mut space = space();
        space.write(0x18, &[0xff; 8]);
        assert_eq!(space.u32(0x18), 0xff80_000c);
        assert_eq!(space.u32(0x1c), 0xffff_ffff);
        space.write(0x18, &0xf_e080_0000_u64.to_le_bytes());
        assert_eq!(space.bar_address(2), Some(0xf_e080_0000));
        assert_eq!(space.bar_address(3), None);
    }

    #[test]
    fn capabilities_form_a_chain_in_the_order_they_were_added() {
        let mut space = space();
        assert_eq!(space.u16(CAPABILITIES) & 0xff, 0x50);
        assert_eq!(space.u16(0x50), 0x7003);
        assert_eq!(space.u32(0x70), 0x0201_0007);
        space.write(0x70, &[0xff; 4]);
        assert_eq!(space.u32(0x70), 0x02f1_0007);
    }

    #[test]
    fn reset_brings_back_the_defined_bytes_and_only_writable_bits_change() {
        let mut space = space();
        space.write(0, &[0; 4]);
        space.write(COMMAND, &[0xff; 4]);
        assert_eq!(space.u32(0), 0x5a44_15b3);
        assert_eq!(space.u32(COMMAND), 0x0010_0546);
        assert!(space.bus_master() && space.memory_enabled() && space.pin_disabled());
        space.reset();
        assert!(!space.bus_master());
        space.write(4094, &[1; 4]);
        let mut outside = [0; 4];
        space.read(4094, &mut outside);
        assert_eq!(outside, [0xff; 4]);
    }
}
