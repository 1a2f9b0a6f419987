//! The address space that an M-mode HCA keeps its tables in (ICM), and the host pages that software put behind it.
//! infinihost 3.10, 6.2, 6.6.
//!
//! It is a map from pages to pages, kept as ranges, since software gives blocks of any power of two. The two areas
//! that firmware alone uses are lists of blocks: nothing is ever read there, but a driver may not free them either.

use super::memory::MemoryFault;
use hca_abi::infinihost::cmd::CmdStatus;
use hca_abi::infinihost::vpm::VpmEntry;
use std::collections::BTreeMap;

/// Log2 of the bytes of a page, on both sides.
const PAGE_SHIFT: u32 = 12;
/// Log2 of the bytes of the whole space.
const LOG_MAX: u32 = 38;
/// Bytes of the whole space. infinihost 10.2.
pub const MAX: u64 = 1 << LOG_MAX;
/// Pages that the firmware asks for. infinihost 10.2.
pub const FIRMWARE_PAGES: u16 = 256;
/// Pages of auxiliary memory that it asks for, whatever the size.
pub const AUX_PAGES: u64 = 64;
/// Blocks that one map remembers; no driver needs a hundredth.
const MAX_BLOCKS: usize = 1 << 16;

/// Contiguous pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Block {
    pages: u64,
    /// First page of the host's.
    host: u64,
}

impl Block {
    /// What an entry of a mailbox describes. A block is aligned to its size on the bus.
    fn of(entry: &VpmEntry) -> Result<Self, CmdStatus> {
        let log = u32::from(entry.log_pages());
        if log > LOG_MAX - PAGE_SHIFT {
            return Err(CmdStatus::BAD_PARAM);
        }
        let (pages, host) = (1 << log, entry.bus_address() >> PAGE_SHIFT);
        if host % pages != 0 {
            return Err(CmdStatus::BAD_PARAM);
        }
        Ok(Self { pages, host })
    }

    fn touches(&self, at: u64, len: u64) -> bool {
        let last = at.saturating_add(len.saturating_sub(1)) >> PAGE_SHIFT;
        self.host <= last && at >> PAGE_SHIFT < self.host.saturating_add(self.pages)
    }
}

/// Pages for the firmware's own use, in the order in which they came.
#[derive(Clone, Debug, Default)]
pub struct Area {
    blocks: Vec<Block>,
}

impl Area {
    /// Appends blocks; on error none of them.
    pub fn map(&mut self, entries: &[VpmEntry]) -> Result<(), CmdStatus> {
        let blocks = entries.iter().map(Block::of);
        let mut blocks = blocks.collect::<Result<Vec<_>, _>>()?;
        if self.blocks.len() + blocks.len() > MAX_BLOCKS {
            return Err(CmdStatus::EXCEED_LIM);
        }
        self.blocks.append(&mut blocks);
        Ok(())
    }

    /// Pages so far.
    pub fn pages(&self) -> u64 {
        self.blocks
            .iter()
            .fold(0, |sum, block| sum.saturating_add(block.pages))
    }

    /// Is any of `len` bytes at bus address `at` among them?
    pub fn reaches(&self, at: u64, len: u64) -> bool {
        self.blocks.iter().any(|block| block.touches(at, len))
    }
}

/// The map.
#[derive(Clone, Debug, Default)]
pub struct Icm {
    /// By first page.
    blocks: BTreeMap<u64, Block>,
    /// Where the firmware's code and data would be.
    pub firmware: Area,
    /// What the firmware wants besides.
    pub aux: Area,
}

impl Icm {
    /// Puts host pages behind the space; what was there before is replaced. On error nothing is changed.
    pub fn map(&mut self, entries: &[VpmEntry]) -> Result<(), CmdStatus> {
        let new = entries.iter().map(|entry| {
            let (start, block) = (entry.virtual_address() >> PAGE_SHIFT, Block::of(entry)?);
            if start.saturating_add(block.pages) > MAX >> PAGE_SHIFT {
                return Err(CmdStatus::BAD_PARAM);
            }
            Ok((start, block))
        });
        let new = new.collect::<Result<Vec<_>, _>>()?;
        if self.blocks.len() + 2 * new.len() > MAX_BLOCKS {
            return Err(CmdStatus::EXCEED_LIM);
        }
        for (start, block) in new {
            self.unmap(start << PAGE_SHIFT, block.pages);
            self.blocks.insert(start, block);
        }
        Ok(())
    }

    /// Takes back whatever is mapped of `pages` pages at `at`; holes are as good as taken back.
    pub fn unmap(&mut self, at: u64, pages: u64) {
        let start = at >> PAGE_SHIFT;
        let end = start.saturating_add(pages);
        self.split(start);
        self.split(end);
        let inside = self.blocks.range(start..end.max(start));
        let inside: Vec<u64> = inside.map(|(&page, _)| page).collect();
        inside.iter().for_each(|page| {
            self.blocks.remove(page);
        });
    }

    /// Makes a block that reaches over `page` two.
    fn split(&mut self, page: u64) {
        let Some((&start, block)) = self.blocks.range_mut(..page).next_back() else {
            return;
        };
        let before = page - start;
        if before < block.pages {
            let behind = Block {
                pages: block.pages - before,
                host: block.host + before,
            };
            block.pages = before;
            self.blocks.insert(page, behind);
        }
    }

    /// Where byte `at` lies on the bus, and how many bytes from there are contiguous.
    pub fn translate(&self, at: u64) -> Option<(u64, u64)> {
        let page = at >> PAGE_SHIFT;
        let (&start, block) = self.blocks.range(..=page).next_back()?;
        let offset = at - (start << PAGE_SHIFT);
        let rest = (block.pages << PAGE_SHIFT).checked_sub(offset)?;
        (rest != 0).then_some(((block.host << PAGE_SHIFT).wrapping_add(offset), rest))
    }

    /// A contiguous piece of an access: its bus address, and how many of `len` bytes it has.
    pub fn piece(&self, at: u64, len: usize) -> Result<(u64, usize), MemoryFault> {
        let (address, rest) = self.translate(at).ok_or(MemoryFault::NotBacked { at })?;
        Ok((address, len.min(usize::try_from(rest).unwrap_or(len))))
    }

    /// Are all of `len` bytes at `at` mapped?
    pub fn is_mapped(&self, at: u64, len: u64) -> bool {
        let (mut at, mut left) = (at, len);
        while left != 0 {
            let Some((_, rest)) = self.translate(at) else {
                return false;
            };
            left = left.saturating_sub(rest);
            at = at.saturating_add(rest);
        }
        true
    }

    /// Pages that are mapped, the two areas not counted.
    pub fn mapped_pages(&self) -> u64 {
        let pages = self.blocks.values().map(|block| block.pages);
        pages.fold(0, u64::saturating_add)
    }

    /// What of `len` bytes at bus address `at` software has not taken back, by name.
    pub fn reaches(&self, at: u64, len: u64) -> Option<&'static str> {
        if self.firmware.reaches(at, len) {
            return Some("the firmware area");
        }
        if self.aux.reaches(at, len) {
            return Some("the auxiliary area");
        }
        let mut blocks = self.blocks.values();
        let mapped = blocks.any(|block| block.touches(at, len));
        mapped.then_some("ICM")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_published_blocks_are_where_they_say() {
        // infinihost 13.3
        let mut icm = Icm::default();
        let chunk = VpmEntry::new(0x2400_0000, 0x1234_0000, 6);
        assert_eq!(icm.map(&[chunk]), Ok(()));
        icm.map(&[VpmEntry::new(0x4_3000, 0x7f00_1000, 0)]).unwrap();
        assert_eq!(icm.translate(0x2400_0010), Some((0x1234_0010, 0x3_fff0)));
        assert_eq!(icm.translate(0x4_3ffc), Some((0x7f00_1ffc, 4)));
        assert_eq!(icm.translate(0x4_4000), None);
        assert_eq!(icm.translate(0x2404_0000), None);
        assert!(icm.is_mapped(0x2400_0000, 0x4_0000));
        assert!(!icm.is_mapped(0x2400_0000, 0x4_0001));
    }

    #[test]
    fn a_block_that_is_crooked_or_beyond_the_space_changes_nothing() {
        let mut icm = Icm::default();
        let good = VpmEntry::new(0, 0x1000, 0);
        for bad in [
            VpmEntry::new(0, 0x1000, 1),
            VpmEntry::new(MAX, 0, 0),
            VpmEntry::new(MAX - 0x1000, 0, 1),
            VpmEntry::new(0, 0, 63),
        ] {
            assert_eq!(icm.map(&[good, bad]), Err(CmdStatus::BAD_PARAM));
            assert_eq!(icm.translate(0), None);
        }
    }

    #[test]
    fn areas_count_their_pages_and_name_what_can_be_reached() {
        let mut icm = Icm::default();
        icm.firmware.map(&[VpmEntry::new(0, 0x10_0000, 8)]).unwrap();
        icm.aux.map(&[VpmEntry::new(0, 0x20_0000, 6)]).unwrap();
        icm.map(&[VpmEntry::new(0x5000, 0x30_0000, 0)]).unwrap();
        assert_eq!((icm.firmware.pages(), icm.aux.pages()), (256, 64));
        assert_eq!(icm.reaches(0x1f_ffff, 1), Some("the firmware area"));
        assert_eq!(icm.reaches(0x1f_ffff, 2), Some("the firmware area"));
        assert_eq!(icm.reaches(0x20_0000, 1), Some("the auxiliary area"));
        assert_eq!(icm.reaches(0x30_0fff, 1), Some("ICM"));
        assert_eq!(icm.reaches(0x30_1000, 0x1000), None);
    }

    proptest! {
        /// Against a map of single pages.
        #[test]
        fn any_sequence_of_maps_and_unmaps_is_that_of_single_pages(
            steps in prop::collection::vec((any::<bool>(), 0..40_u64, 0..40_u64, 0..4_u8), 0..40),
        ) {
            let mut icm = Icm::default();
            let mut pages = BTreeMap::new();
            for (map, at, host, log) in steps {
                if map {
                    let host = host >> log << log;
                    icm.map(&[VpmEntry::new(at << 12, host << 12, log)]).unwrap();
                    (0..1 << log).for_each(|page| { pages.insert(at + page, host + page); });
                } else {
                    icm.unmap(at << 12, host);
                    pages.retain(|page, _| !(at..at + host).contains(page));
                }
                for page in 0..60 {
                    let found = icm.translate(page << 12).map(|(bus, _)| bus >> 12);
                    prop_assert_eq!(found, pages.get(&page).copied(), "page {}", page);
                }
            }
        }
    }
}
