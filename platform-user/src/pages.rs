//! Memory for DMA, from the system: huge pages, or ordinary ones.

use crate::Error;
use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::MemfdFlags;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Bytes of a huge page.
pub(crate) const HUGE: usize = 2 << 20;

/// See the module. All of it is there from the beginning on, zeroed.
pub(crate) struct Pages {
    map: MmapRaw,
    /// Bytes of the map before the first that is used.
    skipped: usize,
    len: usize,
    /// What keeps the pages if the map goes first, as it does when the process is killed.
    _file: File,
}

impl Pages {
    /// `len` bytes, rounded up to whole huge pages, at a multiple of a huge page.
    pub fn new(len: usize, huge: bool) -> Result<Self, Error> {
        let refused = |error: std::io::Error| match huge {
            true => Error::NoHugePages { len, error },
            false => Error::System {
                what: "memory for DMA",
                error,
            },
        };
        let too_long = || refused(std::io::ErrorKind::OutOfMemory.into());
        let len = len
            .max(1)
            .checked_next_multiple_of(HUGE)
            .ok_or_else(too_long)?;
        let (kind, all) = match huge {
            true => (MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB, len),
            // Those need not begin where a huge page does.
            false => (
                MemfdFlags::empty(),
                len.checked_add(HUGE).ok_or_else(too_long)?,
            ),
        };
        let file = rustix::fs::memfd_create("openib", kind | MemfdFlags::CLOEXEC);
        let file = File::from(file.map_err(|error| refused(error.into()))?);
        file.set_len(all as u64).map_err(refused)?;
        let map = MmapOptions::new()
            .len(all)
            .populate()
            .map_raw(&file)
            .map_err(refused)?;
        let skipped = map.as_mut_ptr().addr().wrapping_neg() % HUGE;
        Ok(Self {
            map,
            skipped,
            len,
            _file: file,
        })
    }

    /// The first byte.
    pub fn start(&self) -> *mut u8 {
        self.map.as_mut_ptr().wrapping_add(self.skipped)
    }

    /// Bytes.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Where the memory bus sees each huge page, in their order.
    pub fn physical(&self) -> Result<Vec<u64>, Error> {
        let path = "/proc/self/pagemap";
        let told = |error| Error::File {
            path: path.into(),
            error,
        };
        let file = File::open(path).map_err(told)?;
        let first = self.start().addr();
        let mut all = Vec::new();
        for at in (first..first + self.len).step_by(HUGE) {
            let mut word = [0; 8];
            let offset = (at / crate::arena::PAGE) as u64 * 8;
            file.read_exact_at(&mut word, offset).map_err(told)?;
            all.push(frame(u64::from_ne_bytes(word)).ok_or(Error::NoAddresses)?);
        }
        Ok(all)
    }
}

/// The address in a word of a pagemap: 55 bits of page number if the page is there, 0 to whoever may not know.
fn frame(word: u64) -> Option<u64> {
    let number = word & ((1 << 55) - 1);
    (word >> 63 == 1 && number != 0).then(|| number * crate::arena::PAGE as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_pages_begin_where_a_huge_page_would_and_are_zeroed() {
        let pages = Pages::new(1, false).unwrap();
        assert_eq!(pages.start().addr() % HUGE, 0);
        assert_eq!(pages.len(), HUGE);
        for at in [0, 1, HUGE - 1] {
            // SAFETY: within the pages, of which nobody else knows.
            assert_eq!(unsafe { pages.start().add(at).read_volatile() }, 0);
        }
    }

    #[test]
    fn a_page_that_is_not_there_or_that_the_system_hides_has_no_address() {
        assert_eq!(frame(1 << 63 | 1 << 61 | 0x1_2345), Some(0x1234_5000));
        assert_eq!(frame(0x1_2345), None);
        assert_eq!(frame(1 << 63), None);
    }
}
