//! Memory protection table entry, and memory keys. infinihost 4.9, 4.10.

number_set! {
    /// Who owns an entry.
    pub struct MptStatus(u8) {
        /// The HCA: valid.
        HARDWARE = 0x0;
        /// Free.
        FREE = 0x3;
        /// Software: invalid.
        SOFTWARE = 0xf;
    }
}

layout! {
    /// One region or window.
    pub struct Mpt[64] {
        /// Owner.
        status / set_status: MptStatus = bits(0x00, 31, 28);
        /// Memory I/O; Linux sets it always, no known effect.
        mio / set_mio: bool = bits(0x00, 17, 17);
        /// Windows may be bound.
        bind / set_bind: bool = bits(0x00, 15, 15);
        /// Remote atomics.
        remote_atomic / set_remote_atomic: bool = bits(0x00, 14, 14);
        /// Remote write.
        remote_write / set_remote_write: bool = bits(0x00, 13, 13);
        /// Remote read.
        remote_read / set_remote_read: bool = bits(0x00, 12, 12);
        /// Local write.
        local_write / set_local_write: bool = bits(0x00, 11, 11);
        /// Local read.
        local_read / set_local_read: bool = bits(0x00, 10, 10);
        /// Addresses are bus addresses; no translation.
        physical / set_physical: bool = bits(0x00, 9, 9);
        /// A region and not a window.
        region / set_region: bool = bits(0x00, 8, 8);
        /// T: version.
        version / set_version: u8 = bits(0x00, 3, 0);
        /// M: QP of a type 2 window.
        window_qpn / set_window_qpn: u32 = bits(0x04, 31, 8);
        /// M: the window is of type 2.
        window_type2 / set_window_type2: bool = bits(0x04, 7, 7);
        /// Pages are 4 KB * 2^n.
        page_size / set_page_size: u8 = bits(0x04, 4, 0);
        /// Memory key in index form.
        key / set_key: u32 = bits(0x08, 31, 0);
        /// M: remote access may be enabled.
        remote_enable / set_remote_enable: bool = bits(0x0c, 28, 28);
        /// M: fast registration.
        fast_register / set_fast_register: bool = bits(0x0c, 27, 27);
        /// M: addresses count from 0.
        zero_based / set_zero_based: bool = bits(0x0c, 26, 26);
        /// M: may be invalidated.
        invalidate / set_invalidate: bool = bits(0x0c, 25, 25);
        /// Protection domain.
        pd / set_pd: u32 = bits(0x0c, 23, 0);
        /// First virtual address.
        start / set_start: u64 = quad(0x10);
        /// Bytes; all ones: no limit.
        length / set_length: u64 = quad(0x18);
        /// Key of the region that a window is bound to. FMR: the key again.
        lkey / set_lkey: u32 = bits(0x20, 31, 0);
        /// Windows bound.
        window_count / set_window_count: u32 = bits(0x24, 31, 0);
        /// T: windows that may be bound.
        window_limit / set_window_limit: u32 = bits(0x28, 31, 0);
        /// Address of the first translation.
        mtt_address / set_mtt_address: u64 = quad(0x2c);
        /// M, fast registration: number of translations.
        mtt_count / set_mtt_count: u32 = bits(0x34, 31, 0);
    }
}

/// Offsets of what a fast region's owner stores with its own hands. infinihost 4.11.
pub mod at {
    /// Key in index form.
    pub const KEY: usize = 0x08;
    /// First virtual address, 64 bits.
    pub const START: usize = 0x10;
    /// Bytes, 64 bits.
    pub const LENGTH: usize = 0x18;
    /// The key again.
    pub const LKEY: usize = 0x20;
}

impl Mpt {
    /// `length` of a region without bounds.
    pub const NO_LIMIT: u64 = u64::MAX;
}

/// The key of the entry with this index form, M-mode; in T-mode it is the index itself.
#[inline]
pub const fn m_key_of_index(index: u32) -> u32 {
    index.rotate_left(8)
}

/// The reverse of [`m_key_of_index`].
#[inline]
pub const fn m_index_of_key(key: u32) -> u32 {
    key.rotate_right(8)
}

/// What Sinai's key optimisation makes of an index: bit 23 copies bit 3, bits 31:24 are cleared.
pub const fn sinai_index(index: u32) -> u32 {
    index & 0x007f_ffff | (index & 8) << 20
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::each_field_stands_where_its_row_says;
    use proptest::prelude::*;
    use zerocopy::{FromBytes, IntoBytes};

    #[test]
    fn the_published_keys() {
        // infinihost 13.1
        for (index, key) in [
            (0x123, 0x12300),
            (0x0100_0123, 0x12301),
            (1, 0x100),
            (0x7700_0010, 0x1077),
        ] {
            assert_eq!(m_key_of_index(index), key);
            assert_eq!(m_index_of_key(key), index);
        }
        assert_eq!(sinai_index(8), 0x0080_0008);
        assert_eq!(m_key_of_index(sinai_index(8)), 0x8000_0800);
    }

    fn first_dword(mpt: &Mpt) -> [u8; 4] {
        *mpt.as_bytes().first_chunk().unwrap()
    }

    #[test]
    fn the_published_access_words() {
        // infinihost 13.6
        let mut mpt = Mpt::ZERO;
        mpt.set_status(MptStatus::SOFTWARE)
            .set_mio(true)
            .set_region(true)
            .set_local_read(true);
        assert_eq!(first_dword(&mpt), [0xf0, 0x02, 0x05, 0x00]);
        mpt.set_local_write(true);
        assert_eq!(first_dword(&mpt), [0xf0, 0x02, 0x0d, 0x00]);
        mpt.set_physical(true);
        assert_eq!(first_dword(&mpt), [0xf0, 0x02, 0x0f, 0x00]);
        mpt.set_status(MptStatus::HARDWARE).set_mio(false);
        mpt.set_remote_read(true)
            .set_remote_write(true)
            .set_remote_atomic(true);
        assert_eq!(first_dword(&mpt), [0x00, 0x00, 0x7f, 0x00]);
    }

    #[test]
    fn what_a_remapped_fmr_writes() {
        // infinihost 4.11, stated by offset: byte 0 the status, 0x08 and 0x20 the key, 0x10 start, 0x18 length.
        let mut bytes = [0; 64];
        bytes[0] = 0xf0;
        bytes[0x08..0x0c].copy_from_slice(&[1, 2, 3, 4]);
        bytes[0x20..0x24].copy_from_slice(&[1, 2, 3, 4]);
        bytes[0x13] = 9;
        bytes[0x1e] = 0x10;
        let mpt = Mpt::read_from_bytes(&bytes).unwrap();
        assert_eq!(mpt.status(), MptStatus::SOFTWARE);
        assert_eq!((mpt.key(), mpt.lkey()), (0x0102_0304, 0x0102_0304));
        assert_eq!((mpt.start(), mpt.length()), (0x9_0000_0000, 0x1000));
    }

    #[test]
    fn the_address_of_the_translations_is_not_aligned() {
        let mut mpt = Mpt::ZERO;
        mpt.set_mtt_address(0x0102_0304_0506_0708);
        assert_eq!(mpt.as_bytes()[0x2c..0x34], [1, 2, 3, 4, 5, 6, 7, 8]);
    }

    proptest! {
        #[test]
        fn every_field_stands_alone(bytes: [u8; 64]) {
            each_field_stands_where_its_row_says::<Mpt>(&bytes, &[]);
        }
    }
}
