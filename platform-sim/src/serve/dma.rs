//! Memory of a client that the device may reach: the regions that the client mapped, and nothing else.
//!
//! A region comes with a file. Where the file is sealed against shrinking (what QEMU's `memory-backend-memfd` makes),
//! its pages are mapped and reached directly; any other file could be cut short under our hands, and is read and
//! written by system calls, which fail and do not kill. A region without a file is known by address only: the device
//! is refused there, since asking the client over the socket would wait for a client that waits for us.

use super::Refusal;
use crate::machine::DmaFault;
use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use core_ib::platform::DmaAddr;
use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::SealFlags;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

/// Smallest unit of a mapping.
const PAGE: u64 = 4096;
/// Most regions at a time; the server says so when it introduces itself.
pub(super) const MAX_REGIONS: usize = 65_535;

/// How a region is reached.
enum Backing {
    Mapped(MmapRaw),
    File { file: File, offset: u64 },
    Nothing,
}

/// What a client mapped in one message.
struct Region {
    start: u64,
    len: u64,
    read: bool,
    write: bool,
    backing: Backing,
}

impl Region {
    /// The last byte. There is one: regions are never empty and never wrap.
    fn last(&self) -> u64 {
        self.start.wrapping_add(self.len).wrapping_sub(1)
    }
}

/// Which way an access goes. Data of a read is written here.
enum Access<'a> {
    Read(&'a mut [u8]),
    Write(&'a [u8]),
}

/// All regions of one client, by address.
#[derive(Default)]
pub(super) struct ClientMemory {
    regions: Vec<Region>,
    /// The region that the last access was in.
    last: usize,
}

impl fmt::Debug for ClientMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let regions = self.regions.iter().map(|region| (region.start, region.len));
        f.debug_list().entries(regions).finish()
    }
}

impl ClientMemory {
    /// Takes note of a region, and of the file behind it if there is one.
    pub(super) fn map(
        &mut self,
        file: Option<OwnedFd>,
        offset: u64,
        range: (u64, u64),
        (read, write): (bool, bool),
    ) -> Result<(), Refusal> {
        let (start, len) = range;
        let wrong = Refusal::Memory {
            address: start,
            len,
        };
        let last = len.checked_sub(1).and_then(|len| start.checked_add(len));
        let last = last.ok_or(wrong)?;
        if !(start | len).is_multiple_of(PAGE) {
            return Err(wrong);
        }
        let place = self.regions.partition_point(|region| region.start < start);
        let after = self.regions.get(place);
        let before = place
            .checked_sub(1)
            .and_then(|place| self.regions.get(place));
        if after.is_some_and(|region| region.start <= last)
            || before.is_some_and(|region| region.last() >= start)
        {
            return Err(Refusal::Mapped { address: start });
        }
        if self.regions.len() >= MAX_REGIONS {
            return Err(Refusal::TooManyRegions);
        }
        let backing = match file {
            None => Backing::Nothing,
            Some(file) => back(file, offset, len, write, wrong)?,
        };
        let region = Region {
            start,
            len,
            read,
            write,
            backing,
        };
        self.regions.insert(place, region);
        self.last = 0;
        Ok(())
    }

    /// Forgets the regions in this range, which cuts none: a guest's IOMMU takes back many pages, or none, at a time. The device
    /// does not reach them any more when this returns.
    pub(super) fn unmap(&mut self, start: u64, len: u64) -> Result<(), Refusal> {
        let refused = Refusal::NotMapped { address: start };
        let last = len.checked_sub(1).and_then(|more| start.checked_add(more));
        let last = last.ok_or(refused)?;
        let first = self.regions.partition_point(|region| region.start < start);
        let end = self.regions.partition_point(|region| region.start <= last);
        let before = |place: usize| place.checked_sub(1).and_then(|it| self.regions.get(it));
        if before(first).is_some_and(|region| region.last() >= start)
            || before(end).is_some_and(|region| region.last() > last)
        {
            return Err(refused);
        }
        self.regions.drain(first..end);
        self.last = 0;
        Ok(())
    }

    /// Forgets all.
    pub(super) fn clear(&mut self) {
        self.regions.clear();
        self.last = 0;
    }

    /// How many regions there are.
    pub(super) fn len(&self) -> usize {
        self.regions.len()
    }

    /// As [`Bus::dma_read`](crate::machine::Bus::dma_read).
    pub(super) fn read(&mut self, at: DmaAddr, data: &mut [u8]) -> Result<(), DmaFault> {
        let first = self.check(at, data.len(), |region| region.read)?;
        self.access(first, at.get(), Access::Read(data))
    }

    /// As [`Bus::dma_write`](crate::machine::Bus::dma_write).
    pub(super) fn write(&mut self, at: DmaAddr, data: &[u8]) -> Result<(), DmaFault> {
        let first = self.check(at, data.len(), |region| region.write)?;
        self.access(first, at.get(), Access::Write(data))
    }

    /// Index of the region in which `at` lies.
    fn find(&mut self, at: u64) -> Option<usize> {
        let hit = self.regions.get(self.last);
        if hit.is_some_and(|region| at.wrapping_sub(region.start) < region.len) {
            return Some(self.last);
        }
        let place = self.regions.partition_point(|region| region.start <= at);
        let place = place.checked_sub(1)?;
        let region = self.regions.get(place)?;
        if at > region.last() {
            return None;
        }
        self.last = place;
        Some(place)
    }

    /// That all `len` bytes are in regions that touch and may be accessed so; gives the first.
    fn check(
        &mut self,
        at: DmaAddr,
        len: usize,
        allowed: impl Fn(&Region) -> bool,
    ) -> Result<usize, DmaFault> {
        let outside = DmaFault::NotMapped { at, len };
        let start = at.get();
        let first = self.find(start).ok_or(outside)?;
        let last = match (len as u64).checked_sub(1) {
            None => return Ok(first),
            Some(more) => start.checked_add(more).ok_or(outside)?,
        };
        let mut next = start;
        for region in self.regions.iter().skip(first) {
            if region.start > next || matches!(region.backing, Backing::Nothing) {
                return Err(outside);
            }
            if !allowed(region) {
                return Err(DmaFault::Direction { at, len });
            }
            if region.last() >= last {
                return Ok(first);
            }
            next = region.last().wrapping_add(1);
        }
        Err(outside)
    }

    /// Does what `check` has allowed, from region `first` on.
    fn access(&self, first: usize, at: u64, access: Access<'_>) -> Result<(), DmaFault> {
        let (mut next, mut access) = (at, access);
        for region in self.regions.iter().skip(first) {
            let inside = next.wrapping_sub(region.start);
            let room = region.len.saturating_sub(inside);
            let room = usize::try_from(room).unwrap_or(usize::MAX);
            let (here, rest) = match access {
                Access::Read(data) => {
                    let here = room.min(data.len());
                    let (here, rest) = data.split_at_mut_checked(here).unwrap_or_default();
                    (Access::Read(here), Access::Read(rest))
                }
                Access::Write(data) => {
                    let here = room.min(data.len());
                    let (here, rest) = data.split_at_checked(here).unwrap_or_default();
                    (Access::Write(here), Access::Write(rest))
                }
            };
            region.access(inside, here)?;
            let done = match &rest {
                Access::Read(rest) => rest.is_empty(),
                Access::Write(rest) => rest.is_empty(),
            };
            if done {
                return Ok(());
            }
            next = region.last().wrapping_add(1);
            access = rest;
        }
        Ok(())
    }
}

impl Region {
    /// Copies between the region, `inside` bytes from its start, and `access`, which does not reach beyond its end.
    fn access(&self, inside: u64, access: Access<'_>) -> Result<(), DmaFault> {
        let at = DmaAddr::new(self.start.wrapping_add(inside));
        let (len, result) = match (&self.backing, access) {
            (Backing::Mapped(pages), Access::Read(data)) => {
                let len = data.len();
                let words = Words::of(pages, inside, len);
                (len, words.map(|words| words.read(data)))
            }
            (Backing::Mapped(pages), Access::Write(data)) => {
                let len = data.len();
                let words = Words::of(pages, inside, len);
                (len, words.map(|words| words.write(data)))
            }
            (Backing::File { file, offset }, Access::Read(data)) => {
                let read = file.read_exact_at(data, offset.wrapping_add(inside));
                (data.len(), read.ok())
            }
            (Backing::File { file, offset }, Access::Write(data)) => {
                let written = file.write_all_at(data, offset.wrapping_add(inside));
                (data.len(), written.ok())
            }
            (Backing::Nothing, Access::Read(data)) => (data.len(), None),
            (Backing::Nothing, Access::Write(data)) => (data.len(), None),
        };
        result.ok_or(DmaFault::NotMapped { at, len })
    }
}

/// Finds out how `len` bytes of `file` can be reached.
fn back(
    file: OwnedFd,
    offset: u64,
    len: u64,
    write: bool,
    wrong: Refusal,
) -> Result<Backing, Refusal> {
    let errno = |error: std::io::Error| Refusal::Map {
        errno: error.raw_os_error().unwrap_or(0),
    };
    let sealed = rustix::fs::fcntl_get_seals(&file);
    let sealed = sealed.is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
    let file = File::from(file);
    let metadata = file.metadata().map_err(errno)?;
    let end = offset.checked_add(len).ok_or(wrong)?;
    if !metadata.is_file() || end > metadata.len() || !offset.is_multiple_of(PAGE) {
        return Err(wrong);
    }
    if !sealed {
        return Ok(Backing::File { file, offset });
    }
    let len = usize::try_from(len).map_err(|_| wrong)?;
    let mut options = MmapOptions::new();
    options.offset(offset).len(len);
    let pages = if write {
        options.map_raw(&file)
    } else {
        options.map_raw_read_only(&file)
    };
    pages.map(Backing::Mapped).map_err(errno)
}

/// Bytes of a mapping that others write while we read: reached by atomic loads and stores, as wide as alignment
/// allows, so that no naturally aligned word of 4 bytes is torn.
struct Words<'a> {
    at: NonNull<u8>,
    len: usize,
    /// Keeps the pages.
    _pages: &'a MmapRaw,
}

impl<'a> Words<'a> {
    fn of(pages: &'a MmapRaw, inside: u64, len: usize) -> Option<Self> {
        let inside = usize::try_from(inside).ok()?;
        let end = inside.checked_add(len)?;
        if end > pages.len() {
            return None;
        }
        // SAFETY: `inside` is at most the length of the mapping, checked above.
        let at = unsafe { pages.as_mut_ptr().add(inside) };
        Some(Self {
            at: NonNull::new(at)?,
            len,
            _pages: pages,
        })
    }

    /// How many of `len` bytes lie before the first word of 8 bytes, in whole such words, and behind the last.
    fn split(&self) -> (usize, usize) {
        let head = self.at.align_offset(8).min(self.len);
        (head, (self.len - head) & !7)
    }

    /// A word of the mapping, `offset` bytes in. `T` is an atomic integer.
    ///
    /// # Safety
    ///
    /// All of it lies within `len`, and it is aligned for `T`.
    unsafe fn word<T>(&self, offset: usize) -> &T {
        // SAFETY: the pages are mapped as long as `self` borrows them, the caller keeps to the length and alignment,
        // and any bytes are a valid atomic integer. Other processes change them; we do only by atomic stores.
        unsafe { self.at.add(offset).cast().as_ref() }
    }

    /// Copies out; `data` is as long as this is.
    fn read(&self, data: &mut [u8]) {
        let (head, body) = self.split();
        let Some((head, rest)) = data.split_at_mut_checked(head) else {
            return;
        };
        let Some((body, tail)) = rest.split_at_mut_checked(body) else {
            return;
        };
        let (front, middle) = (head.len(), body.len());
        self.read_edge(0, head);
        let (words, _) = body.as_chunks_mut::<8>();
        for (offset, bytes) in (front..).step_by(8).zip(words) {
            // SAFETY: `front` reaches the first address aligned to 8, and `split` counts whole words within `len`.
            let word = unsafe { self.word::<AtomicU64>(offset) };
            *bytes = word.load(Ordering::Relaxed).to_ne_bytes();
        }
        self.read_edge(front + middle, tail);
        core::sync::atomic::fence(Ordering::Acquire);
    }

    /// Copies fewer than 8 bytes out.
    fn read_edge(&self, start: usize, data: &mut [u8]) {
        let (mut offset, mut data) = (start, data);
        while !data.is_empty() {
            let aligned = (self.at.as_ptr() as usize)
                .wrapping_add(offset)
                .is_multiple_of(4);
            let step = match data.first_chunk_mut::<4>() {
                Some(bytes) if aligned => {
                    // SAFETY: aligned, and `data` lies within `len` from `start` on.
                    let word = unsafe { self.word::<AtomicU32>(offset) };
                    *bytes = word.load(Ordering::Relaxed).to_ne_bytes();
                    4
                }
                _ => {
                    if let Some(byte) = data.first_mut() {
                        // SAFETY: `data` lies within `len` from `start` on.
                        *byte = unsafe { self.word::<AtomicU8>(offset) }.load(Ordering::Relaxed);
                    }
                    1
                }
            };
            offset += step;
            data = data.get_mut(step..).unwrap_or(&mut []);
        }
    }

    /// Copies in; `data` is as long as this is.
    fn write(&self, data: &[u8]) {
        let (head, body) = self.split();
        let Some((head, rest)) = data.split_at_checked(head) else {
            return;
        };
        let Some((body, tail)) = rest.split_at_checked(body) else {
            return;
        };
        self.write_edge(0, head);
        let (words, _) = body.as_chunks::<8>();
        for (offset, bytes) in (head.len()..).step_by(8).zip(words) {
            // SAFETY: as in `read`.
            let word = unsafe { self.word::<AtomicU64>(offset) };
            // Released, so that no later word, the owner bit of an entry say, is seen before it.
            word.store(u64::from_ne_bytes(*bytes), Ordering::Release);
        }
        self.write_edge(head.len() + body.len(), tail);
    }

    /// Copies fewer than 8 bytes in.
    fn write_edge(&self, start: usize, data: &[u8]) {
        let (mut offset, mut data) = (start, data);
        while let Some(&byte) = data.first() {
            let aligned = (self.at.as_ptr() as usize)
                .wrapping_add(offset)
                .is_multiple_of(4);
            let step = match data.first_chunk::<4>() {
                Some(bytes) if aligned => {
                    // SAFETY: aligned, and `data` lies within `len` from `start` on.
                    let word = unsafe { self.word::<AtomicU32>(offset) };
                    word.store(u32::from_ne_bytes(*bytes), Ordering::Release);
                    4
                }
                _ => {
                    // SAFETY: `data` lies within `len` from `start` on.
                    let place = unsafe { self.word::<AtomicU8>(offset) };
                    place.store(byte, Ordering::Release);
                    1
                }
            };
            offset += step;
            data = data.get(step..).unwrap_or(&[]);
        }
    }
}
