//! Input of RESIZE_CQ. infinihost 3.12, 4.5.5.

layout! {
    /// The new ring.
    pub struct ResizeCq[64] {
        /// Its first byte.
        start_address / set_start_address: u64 = quad(0x04);
        /// Logarithm of its entries.
        log_size / set_log_size: u8 = bits(0x0c, 28, 24);
        /// Its key.
        lkey / set_lkey: u32 = bits(0x1c, 31, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    #[test]
    fn the_ring_byte_by_byte() {
        let mut resize = ResizeCq::ZERO;
        resize
            .set_start_address(0x0102_0304_0506_0708)
            .set_log_size(8)
            .set_lkey(0x1122_3344);
        let mut expected = [0; 64];
        expected[4..12].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
        expected[0x0c] = 8;
        expected[0x1c..0x20].copy_from_slice(&[0x11, 0x22, 0x33, 0x44]);
        assert_eq!(resize.as_bytes(), expected);
    }
}
