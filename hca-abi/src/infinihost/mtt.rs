//! Memory translation table entry. infinihost 4.10.

layout! {
    /// One page.
    pub struct Mtt[8] {
        /// Bus address of the page.
        page_address / set_page_address: u64 = in_place(0x00, 63, 12);
        /// Cleared: an access is a fault.
        present / set_present: bool = bits(0x04, 0, 0);
    }
}

/// Bytes of a translation segment by default: 8 entries.
pub const DEFAULT_SEGMENT: u64 = 64;

impl Mtt {
    /// A page that is there.
    #[inline]
    pub const fn page(address: u64) -> Self {
        let mut entry = Self::ZERO;
        entry.set_page_address(address).set_present(true);
        entry
    }

    /// As the 64-bit number that a direct store to the table takes.
    #[inline]
    pub const fn to_bits(self) -> u64 {
        self.page_address() | self.present() as u64
    }
}

layout! {
    /// Head of WRITE_MTT's input mailbox; the entries follow. infinihost 3.12.
    pub struct WriteMttHeader[16] {
        /// Address of the first entry, absolute.
        address / set_address: u64 = quad(0x00);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    #[test]
    fn a_page_is_its_address_and_the_present_bit() {
        let entry = Mtt::page(0x1_2345_6000);
        assert_eq!(entry.as_bytes(), [0, 0, 0, 1, 0x23, 0x45, 0x60, 0x01]);
        assert_eq!(entry.to_bits(), 0x1_2345_6001);
        assert!(!Mtt::ZERO.present());
    }

    #[test]
    fn bits_below_the_page_are_no_address() {
        assert_eq!(Mtt::page(0xfff).page_address(), 0);
    }
}
