//! Memory of a host that its device reaches.
//!
//! The program has pointers, the device has bus addresses, and neither can be computed from the other: bus addresses
//! start at a place of the host's own, and leave gaps. Memory is sparse (backed when touched), and given out by whole
//! pages. Addresses are not used twice, so that one that was given back is still known by name.

use super::SplitMix64;
use core::fmt;
use core::ptr::NonNull;
use core_ib::platform::{Direction, DmaAddr, RawDma};
use memmap2::{MmapOptions, MmapRaw};
use std::collections::{BTreeMap, VecDeque};

/// Bytes of a page.
const PAGE: u64 = 4096;
/// How many regions that were given back are remembered.
const HISTORY: usize = 4096;

/// Where a region lies for the program. The memory behind it outlives the region's time in the table.
#[derive(Clone, Copy, Debug)]
struct Place(NonNull<u8>);

// SAFETY: a place is an address; what may be done with it is argued where it is used.
unsafe impl Send for Place {}

#[derive(Debug)]
enum Kind {
    /// From `dma_alloc`; the pages are ours.
    Coherent { _pages: MmapRaw },
    /// From `dma_map`; the pages are the caller's.
    Streaming(Direction),
    /// Given back.
    Gone,
}

#[derive(Debug)]
struct Region {
    number: u64,
    len: u64,
    place: Place,
    kind: Kind,
}

/// Why an access, or a giving back, is not right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MemoryError {
    /// Nothing is or was there.
    Nowhere { at: DmaAddr, len: u64 },
    /// It starts in a region and ends outside.
    PastEnd {
        at: DmaAddr,
        len: u64,
        inside: Where,
    },
    /// The region was given back.
    Freed {
        at: DmaAddr,
        len: u64,
        inside: Where,
    },
    /// The region is mapped for the other direction.
    Direction {
        at: DmaAddr,
        len: u64,
        inside: Where,
    },
    /// What is given back is not what was given out.
    OtherShape {
        at: DmaAddr,
        len: u64,
        inside: Where,
    },
}

/// A place in a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Where {
    /// The host's count of regions, from 1.
    number: u64,
    /// Bytes from its start.
    offset: u64,
    /// Bytes of it.
    size: u64,
}

impl fmt::Display for Where {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            number,
            offset,
            size,
        } = self;
        write!(f, "offset {offset} of DMA memory #{number} ({size} bytes)")
    }
}

impl fmt::Display for MemoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nowhere { at, len } => {
                write!(f, "{len} bytes at {at}, where no memory is or was")
            }
            Self::PastEnd { at, len, inside } => {
                write!(f, "{len} bytes at {at}, beyond its end: {inside}")
            }
            Self::Freed { at, len, inside } => {
                write!(f, "{len} bytes at {at}, given back: {inside}")
            }
            Self::Direction { at, len, inside } => {
                write!(
                    f,
                    "{len} bytes at {at}, mapped for the other direction: {inside}"
                )
            }
            Self::OtherShape { at, len, inside } => {
                write!(
                    f,
                    "{len} bytes at {at}, given out in another shape: {inside}"
                )
            }
        }
    }
}

/// All DMA memory of one host.
#[derive(Debug)]
pub(super) struct HostMemory {
    regions: BTreeMap<u64, Region>,
    history: VecDeque<u64>,
    next: u64,
    count: u64,
    /// Bytes out, by `dma_alloc`.
    allocated: u64,
    dice: SplitMix64,
}

impl HostMemory {
    /// Empty; `dice` choose where it is.
    pub(super) fn new(mut dice: SplitMix64) -> Self {
        // Bits 40 to 47 tell hosts apart; below 2^48, as on real machines.
        let next = (dice.below(0xff) + 1) << 40 | dice.below(1 << 16) << 20;
        Self {
            regions: BTreeMap::new(),
            history: VecDeque::new(),
            next,
            count: 0,
            allocated: 0,
            dice,
        }
    }

    /// `len` zeroed bytes; `None` if the real machine has no more.
    pub(super) fn alloc(&mut self, len: usize, align: usize) -> Option<RawDma> {
        let align = align.next_power_of_two().max(PAGE as usize);
        let pages = len.max(1).checked_next_multiple_of(PAGE as usize)?;
        let slack = align - PAGE as usize;
        let mut options = MmapOptions::new();
        options.len(pages.checked_add(slack)?).no_reserve_swap();
        let pages = MmapRaw::from(options.map_anon().ok()?);
        let start = NonNull::new(pages.as_mut_ptr())?;
        let skip = start.as_ptr().align_offset(align);
        // SAFETY: the mapping starts at a page and is `align - PAGE` bytes longer than needed, so the first multiple
        // of `align` in it leaves `len` bytes.
        let memory = unsafe { start.add(skip) };
        let bus = self.place(len as u64, align as u64, 0)?;
        self.allocated += len as u64;
        self.insert(bus, len as u64, memory, Kind::Coherent { _pages: pages });
        let bus = DmaAddr::new(bus);
        Some(RawDma { memory, bus, len })
    }

    /// Takes back what `alloc` gave; the device can reach it no more.
    pub(super) fn free(&mut self, memory: RawDma) -> Result<(), MemoryError> {
        self.end(memory.bus, memory.len as u64, |region| {
            matches!(region.kind, Kind::Coherent { .. }) && region.place.0 == memory.memory
        })?;
        self.allocated -= memory.len as u64;
        Ok(())
    }

    /// Lets the device reach the caller's memory. The offset within a page stays what it is.
    pub(super) fn map(
        &mut self,
        memory: NonNull<u8>,
        len: usize,
        way: Direction,
    ) -> Option<DmaAddr> {
        let inside = memory.addr().get() as u64 % PAGE;
        let bus = self.place(len as u64, PAGE, inside)?;
        self.insert(bus, len as u64, memory, Kind::Streaming(way));
        Some(DmaAddr::new(bus))
    }

    /// Ends a mapping.
    pub(super) fn unmap(
        &mut self,
        at: DmaAddr,
        len: usize,
        way: Direction,
    ) -> Result<(), MemoryError> {
        self.end(
            at,
            len as u64,
            |region| matches!(region.kind, Kind::Streaming(mapped) if mapped == way),
        )
    }

    /// Is `at .. at + len` within one mapping of this direction?
    pub(super) fn is_mapped(&self, at: DmaAddr, len: usize, way: Direction) -> bool {
        let Some((start, region)) = self.regions.range(..=at.get()).next_back() else {
            return false;
        };
        let offset = at.get() - start;
        let fits = offset <= region.len && len as u64 <= region.len - offset;
        fits && matches!(region.kind, Kind::Streaming(mapped) if mapped == way)
    }

    fn place(&mut self, len: u64, align: u64, inside: u64) -> Option<u64> {
        let gap = PAGE * (1 + self.dice.below(7));
        let start = self.next.checked_add(gap)?;
        let bus = start.checked_next_multiple_of(align)?.checked_add(inside)?;
        self.next = bus.checked_add(len)?.checked_next_multiple_of(PAGE)?;
        Some(bus)
    }

    fn insert(&mut self, bus: u64, len: u64, memory: NonNull<u8>, kind: Kind) {
        self.count += 1;
        let number = self.count;
        let place = Place(memory);
        let region = Region {
            number,
            len,
            place,
            kind,
        };
        self.regions.insert(bus, region);
    }

    fn end(
        &mut self,
        at: DmaAddr,
        len: u64,
        right: impl FnOnce(&Region) -> bool,
    ) -> Result<(), MemoryError> {
        let Some(region) = self.regions.get_mut(&at.get()) else {
            return Err(self.find(at, len, 0).err().unwrap_or_else(|| {
                let inside = self.inside(at);
                MemoryError::OtherShape { at, len, inside }
            }));
        };
        let inside = Where {
            number: region.number,
            offset: 0,
            size: region.len,
        };
        if matches!(region.kind, Kind::Gone) {
            return Err(MemoryError::Freed { at, len, inside });
        }
        if region.len != len || !right(region) {
            return Err(MemoryError::OtherShape { at, len, inside });
        }
        region.kind = Kind::Gone;
        self.history.push_back(at.get());
        if self.history.len() > HISTORY
            && let Some(oldest) = self.history.pop_front()
        {
            self.regions.remove(&oldest);
        }
        Ok(())
    }

    fn inside(&self, at: DmaAddr) -> Where {
        match self.regions.range(..=at.get()).next_back() {
            Some((start, region)) => Where {
                number: region.number,
                offset: at.get() - start,
                size: region.len,
            },
            None => Where {
                number: 0,
                offset: 0,
                size: 0,
            },
        }
    }

    /// Where `len` bytes at `at` are. `want`: 0 any, 1 the device reads, 2 it writes.
    fn find(&self, at: DmaAddr, len: u64, want: u8) -> Result<NonNull<u8>, MemoryError> {
        let nowhere = MemoryError::Nowhere { at, len };
        let before = self.regions.range(..=at.get()).next_back();
        let (start, region) = before.ok_or(nowhere)?;
        let offset = at.get() - start;
        // An access just behind a region was meant for it; further off it was meant for nothing.
        if offset > region.len.saturating_add(PAGE) {
            return Err(nowhere);
        }
        let inside = Where {
            number: region.number,
            offset,
            size: region.len,
        };
        let allowed = match region.kind {
            Kind::Gone => return Err(MemoryError::Freed { at, len, inside }),
            Kind::Coherent { .. } | Kind::Streaming(Direction::Both) => 3,
            Kind::Streaming(Direction::ToDevice) => 1,
            Kind::Streaming(Direction::FromDevice) => 2,
        };
        if offset > region.len || len > region.len - offset {
            return Err(MemoryError::PastEnd { at, len, inside });
        }
        if want & !allowed != 0 {
            return Err(MemoryError::Direction { at, len, inside });
        }
        // SAFETY: `offset` is at most the region's length, and its memory is that long.
        Ok(unsafe { region.place.0.add(offset as usize) })
    }

    /// The device reads.
    pub(super) fn read(&self, at: DmaAddr, data: &mut [u8]) -> Result<(), MemoryError> {
        let from = self.find(at, data.len() as u64, 1)?;
        // SAFETY: `find` checked that `data.len()` bytes from there lie in one region that has not been given back:
        // our own pages, or memory that the caller of `dma_map` promised to keep until `dma_unmap`. Devices of this
        // world and its contexts run on one thread (`Shared::stay_home`), so nothing is written meanwhile, and `data`
        // is not part of it.
        unsafe {
            from.as_ptr()
                .copy_to_nonoverlapping(data.as_mut_ptr(), data.len())
        };
        Ok(())
    }

    /// The device writes.
    pub(super) fn write(&mut self, at: DmaAddr, data: &[u8]) -> Result<(), MemoryError> {
        let to = self.find(at, data.len() as u64, 2)?;
        // SAFETY: as for `read`; and no reference of the program covers memory that a device may write (contract of
        // `dma_alloc` and `dma_map`).
        unsafe {
            to.as_ptr()
                .copy_from_nonoverlapping(data.as_ptr(), data.len())
        };
        Ok(())
    }

    /// What has not been given back: number, bytes, and whether it is a mapping.
    pub(super) fn outstanding(&self) -> impl Iterator<Item = (u64, u64, bool)> {
        let live = self.regions.values();
        live.filter_map(|region| match region.kind {
            Kind::Gone => None,
            Kind::Coherent { .. } => Some((region.number, region.len, false)),
            Kind::Streaming(_) => Some((region.number, region.len, true)),
        })
    }

    /// Bytes given out by `alloc`.
    pub(super) const fn allocated(&self) -> u64 {
        self.allocated
    }

    /// Gives the machine below its pages back, though what was given out stays valid: it reads as zeroes. For a host
    /// that will not run again, but may have left pointers behind.
    pub(super) fn forget_contents(&mut self) {
        for region in self.regions.values() {
            if let Kind::Coherent { _pages } = &region.kind {
                // SAFETY: the mapping stays; only its contents change, as they do whenever a device writes, and
                // nobody has a reference to them.
                let _ = unsafe { _pages.unchecked_advise(memmap2::UncheckedAdvice::DontNeed) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(name: &str) -> HostMemory {
        HostMemory::new(SplitMix64::named(1, name))
    }

    #[test]
    fn the_device_and_the_program_see_the_same_bytes_at_other_addresses() {
        let mut memory = memory("host-a");
        let raw = memory.alloc(100, 1).unwrap();
        assert_ne!(raw.bus.get(), raw.memory.addr().get() as u64);
        memory.write(raw.bus.plus(96), &[1, 2, 3, 4]).unwrap();
        // SAFETY: 100 bytes.
        let last = unsafe { raw.memory.add(99).read() };
        assert_eq!(last, 4);
        let mut all = [9; 100];
        memory.read(raw.bus, &mut all).unwrap();
        assert_eq!((all[0], all[96]), (0, 1));
        memory.free(raw).unwrap();
        assert_eq!(memory.outstanding().count(), 0);
    }

    #[test]
    fn hosts_have_their_memory_at_different_places() {
        let at = |name| memory(name).alloc(1, 1).unwrap().bus;
        assert_ne!(at("host-a"), at("host-b"));
        assert_eq!(at("host-a"), at("host-a"));
    }

    #[test]
    fn an_alignment_holds_in_both_address_spaces() {
        let mut memory = memory("host-a");
        for align in [1, 64, 4096, 1 << 16, 1 << 21] {
            let raw = memory.alloc(5000, align).unwrap();
            assert_eq!(raw.bus.get() % align.max(4096) as u64, 0);
            assert_eq!(raw.memory.addr().get() % align.max(4096), 0);
        }
    }

    #[test]
    fn memory_that_nobody_touches_costs_nothing() {
        let mut memory = memory("host-a");
        let raw = memory.alloc(64 << 30, 4096);
        assert!(raw.is_some(), "64 GiB of address space");
    }

    #[test]
    fn an_access_that_is_not_right_names_region_and_offset() {
        let mut memory = memory("host-a");
        let _first = memory.alloc(4096, 1).unwrap();
        let raw = memory.alloc(8192, 1).unwrap();
        let mut four = [0; 4];
        let past = memory.read(raw.bus.plus(8190), &mut four).unwrap_err();
        assert_eq!(
            past.to_string(),
            format!(
                "4 bytes at {}, beyond its end: offset 8190 of DMA memory #2 (8192 bytes)",
                raw.bus.plus(8190)
            )
        );
        memory.free(raw).unwrap();
        let freed = memory.write(raw.bus.plus(64), &four).unwrap_err();
        assert!(matches!(freed, MemoryError::Freed { .. }), "{freed}");
        let twice = memory.free(raw).unwrap_err();
        assert!(matches!(twice, MemoryError::Freed { .. }), "{twice}");
        let null = memory.read(DmaAddr::new(0), &mut four).unwrap_err();
        let (at, len) = (DmaAddr::new(0), 4);
        assert_eq!(null, MemoryError::Nowhere { at, len });
    }

    #[test]
    fn a_mapping_has_a_direction_and_keeps_the_offset_in_its_page() {
        let mut memory = memory("host-a");
        let mut bytes = [7_u8; 64];
        let pointer = NonNull::from(&mut bytes).cast();
        let at = memory.map(pointer, 64, Direction::ToDevice).unwrap();
        assert_eq!(at.get() % 4096, pointer.addr().get() as u64 % 4096);
        let mut seen = [0; 2];
        memory.read(at.plus(62), &mut seen).unwrap();
        assert_eq!(seen, [7, 7]);
        let wrong = memory.write(at, &seen).unwrap_err();
        assert!(matches!(wrong, MemoryError::Direction { .. }), "{wrong}");
        assert!(memory.is_mapped(at, 64, Direction::ToDevice));
        assert!(!memory.is_mapped(at, 65, Direction::ToDevice));
        let other = memory.unmap(at, 32, Direction::ToDevice).unwrap_err();
        assert!(matches!(other, MemoryError::OtherShape { .. }), "{other}");
        memory.unmap(at, 64, Direction::ToDevice).unwrap();
    }
}
