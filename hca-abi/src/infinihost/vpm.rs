//! Entries of MAP_FA, MAP_ICM and MAP_ICM_AUX: pages that back memory of the HCA. M-mode. infinihost 3.10.

layout! {
    /// One block.
    pub struct VpmEntry[16] {
        /// MAP_ICM: where in ICM; zero for the others.
        virtual_address / set_virtual_address: u64 = in_place(0x00, 63, 12);
        /// Bus address, aligned to the block's size.
        bus_address / set_bus_address: u64 = in_place(0x08, 63, 12);
        /// Logarithm of the block's size in 4 KB pages.
        log_pages / set_log_pages: u8 = bits(0x0c, 5, 0);
    }
}

impl VpmEntry {
    /// A block.
    pub const fn new(virtual_address: u64, bus_address: u64, log_pages: u8) -> Self {
        let mut entry = Self::ZERO;
        entry
            .set_virtual_address(virtual_address)
            .set_bus_address(bus_address)
            .set_log_pages(log_pages);
        entry
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::each_field_stands_where_its_row_says;
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    #[test]
    fn the_published_entries() {
        // infinihost 13.3
        let block = VpmEntry::new(0x2400_0000, 0x1234_0000, 6);
        let expected = [0, 0, 0, 0, 0x24, 0, 0, 0, 0, 0, 0, 0, 0x12, 0x34, 0, 6];
        assert_eq!(block.as_bytes(), expected);
        let page = VpmEntry::new(0x43000, 0x7f00_1000, 0);
        let expected = [0, 0, 0, 0, 0, 4, 0x30, 0, 0, 0, 0, 0, 0x7f, 0, 0x10, 0];
        assert_eq!(page.as_bytes(), expected);
    }

    proptest! {
        #[test]
        fn every_field_stands_alone(bytes: [u8; 16]) {
            each_field_stands_where_its_row_says::<VpmEntry>(&bytes, &[]);
        }
    }
}
