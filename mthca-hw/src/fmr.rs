//! Fast memory regions: regions that are mapped and unmapped by stores to the HCA's tables, without a command.
//! verbs 7.1, infinihost 4.11.
//!
//! The entry of such a region is the HCA's from `alloc_fmr` on; while it is being rewritten its status byte says that
//! software has it. Each mapping has the next key of the entry, so that what was learnt of an earlier one is worthless:
//! no key comes again between two unmaps. What the HCA may have cached of old keys goes with SYNC_TPT, once for a batch.
//! All of it needs tables that the driver can reach: in attached memory that BAR 4 shows, or in host memory.

use crate::cmd::table::{Hw2SwMptEntry, SyncTpt};
use crate::extents::Extent;
use crate::icm::Kind;
use crate::inner::Inner;
use crate::mr::{MAX_SHIFT, MIN_SHIFT, allow};
use crate::plan::{MPT_ENTRY, Plan};
use core_ib::platform::{Caching, DmaAddr, DmaBuf, Lock, Platform, PlatformError, Registers};
use core_ib::verbs::{Access, FmrHandle, FmrInit, Object, PdHandle, VerbsError, kind};
use core_ib::{LKey, RKey};
use hca_abi::infinihost::mpt::{Mpt, MptStatus, at};
use hca_abi::infinihost::pci::BAR_DDR;
use zerocopy::IntoBytes;

/// One region: its handle. What there is to know is in its place.
#[derive(Debug)]
pub(crate) struct Fmr {
    /// Place of its PD.
    pd: u32,
}

impl Object for Fmr {
    type Kind = kind::Fmr;
    const NAME: &'static str = "FMR";
    const PROFILE: &'static str = "fmrs";
}

const STALE: VerbsError = VerbsError::InvalidHandle { object: Fmr::NAME };
const NOT_NOW: VerbsError = VerbsError::InvalidState { object: Fmr::NAME };

/// Where a region is known.
pub(crate) struct FmrPlace<P: Platform> {
    mapping: Lock<Mapping, P::RawLock>,
}

impl<P: Platform> FmrPlace<P> {
    /// An empty place. Set-up only.
    pub fn new(machine: &P) -> Self {
        let mapping = machine.lock("FMR", false, Mapping::default());
        Self { mapping }
    }
}

/// How a region is mapped.
#[derive(Clone, Copy, Debug, Default)]
struct Mapping {
    /// Its translations; `None` without a region.
    room: Option<Extent>,
    /// First dword of its entry, but for the status.
    rights: u32,
    remote: bool,
    page_shift: u8,
    max_pages: u32,
    max_maps: u32,
    /// Mappings since the last unmap.
    maps: u32,
    /// An unmap is under way.
    ending: bool,
}

/// The entries of fast regions, as BAR 4 shows them; in M-mode they are in host memory, and there is nothing here.
pub(crate) struct FmrEntries<R> {
    window: Option<R>,
}

impl<R: Registers> FmrEntries<R> {
    /// Those that `plan` lays out. `ddr` is the address of attached memory, if BAR 4 shows it. Set-up only.
    pub fn new<P: Platform<Registers = R>>(
        machine: &P,
        plan: &Plan,
        ddr: Option<u64>,
    ) -> Result<Self, PlatformError> {
        let count = plan.mpt.end.saturating_sub(plan.mpt.fmrs);
        let window = match ddr {
            Some(ddr) if count != 0 => {
                let first = u64::from(plan.mpt.fmrs).saturating_mul(MPT_ENTRY);
                let start = plan.tables.mpt.wrapping_sub(ddr).saturating_add(first);
                let len = u64::from(count).saturating_mul(MPT_ENTRY) as usize;
                Some(machine.map(BAR_DDR, start, len, Caching::Uncached)?)
            }
            _ => None,
        };
        Ok(Self { window })
    }
}

const NO_FMR: VerbsError = VerbsError::Unsupported {
    feature: "fast memory regions",
};

/// One of them.
enum Entry<'a, 'p, P: Platform> {
    /// In attached memory: stores arrive in program order, ahead of any doorbell that follows.
    Attached(&'a P::Registers, usize),
    /// In host memory: what the HCA sees first is ordered by barriers.
    Lent(&'a DmaBuf<'p, P>, usize),
}

impl<P: Platform> Entry<'_, '_, P> {
    /// Says whose the entry is, behind all that was stored before and ahead of all that follows.
    fn set_owner(&self, rights: u32, owner: MptStatus) {
        let dword = rights | u32::from(owner.0) << 28;
        match *self {
            Self::Attached(window, start) => window.write_be32(start, dword),
            Self::Lent(memory, start) => {
                memory.machine().dma_wmb();
                // It lies in the table: an entry in all of it.
                let _ = memory.write_be32(start, dword);
                memory.machine().dma_wmb();
            }
        }
    }

    fn set_extent(&self, start: u64, length: u64) {
        for (offset, value) in [(at::START, start), (at::LENGTH, length)] {
            match *self {
                Self::Attached(window, entry) => window.write_be64(entry + offset, value),
                Self::Lent(memory, entry) => {
                    let _ = memory.write(entry + offset, &value.to_be_bytes());
                }
            }
        }
    }

    fn set_key(&self, form: u32) {
        for offset in [at::KEY, at::LKEY] {
            match *self {
                Self::Attached(window, entry) => window.write_be32(entry + offset, form),
                Self::Lent(memory, entry) => {
                    let _ = memory.write_be32(entry + offset, form);
                }
            }
        }
    }
}

impl<'p, P: Platform> Inner<'p, P> {
    /// Fast regions can be made.
    pub(crate) fn has_fmrs(&self) -> bool {
        let reached = self.fmr_entries.window.is_some() || self.icm.is_some();
        reached && self.profile.fmrs > 0
    }

    /// Mappings that one region can have before a key comes again.
    const fn most_maps(&self) -> u32 {
        self.keys.fast_lives()
    }

    /// The entry of the fast region in place `index`.
    fn fmr_entry(&self, index: u32) -> Result<Entry<'_, 'p, P>, VerbsError> {
        if let Some(icm) = &self.icm {
            let index = self.plan.mpt.fmrs.wrapping_add(index);
            let (memory, at) = icm.entry(Kind::Mpt, index).ok_or(NO_FMR)?;
            return Ok(Entry::Lent(memory, at));
        }
        let window = self.fmr_entries.window.as_ref().ok_or(NO_FMR)?;
        Ok(Entry::Attached(window, index as usize * MPT_ENTRY as usize))
    }

    fn mapping(&self, index: u32) -> Result<&Lock<Mapping, P::RawLock>, VerbsError> {
        let place = self.fmr_places.get(index as usize);
        place.map(|place| &place.mapping).ok_or(STALE)
    }

    fn check_fmr(&self, init: &FmrInit) -> Result<(), VerbsError> {
        if !self.has_fmrs() {
            return Err(NO_FMR);
        }
        let invalid = |field, found: u32, allowed: u32| {
            Err(VerbsError::InvalidAttr {
                field,
                found: found.into(),
                allowed: allowed.into(),
            })
        };
        self.check_access(init.access)?;
        if init.access.contains(Access::MW_BIND) {
            return Err(VerbsError::Unsupported {
                feature: "windows on fast memory regions",
            });
        }
        if !(MIN_SHIFT..=MAX_SHIFT).contains(&init.page_shift) {
            return invalid("page shift", init.page_shift.into(), MAX_SHIFT.into());
        }
        if init.max_pages == 0 {
            return invalid("max_pages", 0, self.profile.mtt_pages);
        }
        if init.max_maps == 0 || init.max_maps > self.most_maps() {
            return invalid("max_maps", init.max_maps, self.most_maps());
        }
        Ok(())
    }

    pub(crate) fn alloc_fmr(&self, pd: PdHandle, init: &FmrInit) -> Result<FmrHandle, VerbsError> {
        self.cmd.health().check()?;
        self.check_fmr(init)?;
        let home = self.enter_pd(pd)?;
        let made = self.fmr_gate.with(|()| {
            let vacant = self.fmrs.reserve()?;
            let place = self.mapping(vacant.index())?;
            let room = self.take_mtts(init.max_pages.into())?;
            let mut entry = Mpt::ZERO;
            allow(&mut entry, init.access);
            entry
                .set_pd(home.number)
                .set_page_size(init.page_shift.saturating_sub(MIN_SHIFT))
                .set_mtt_address(self.mtt.address(room));
            let index = self.plan.mpt.fmrs.wrapping_add(vacant.index());
            let form = self.next_fast_form(index);
            if let Err(error) = self.begin_region_as(index, form, entry) {
                self.mtt.give(room);
                return Err(error);
            }
            place.with(|mapping| {
                *mapping = Mapping {
                    room: Some(room),
                    rights: first_dword(&entry),
                    remote: init.access.intersects(Access::REMOTE),
                    page_shift: init.page_shift,
                    max_pages: init.max_pages,
                    max_maps: init.max_maps,
                    maps: 0,
                    ending: false,
                };
            });
            Ok(vacant.fill(Fmr { pd: home.index }))
        });
        if made.is_err() {
            self.leave_pd(home.index);
        }
        made
    }

    /// Thread or soft interrupt; never blocks. The five steps of infinihost 4.11.
    pub(crate) fn map_fmr(
        &self,
        fmr: FmrHandle,
        pages: &[DmaAddr],
        iova: u64,
    ) -> Result<(LKey, RKey), VerbsError> {
        self.cmd.health().check()?;
        let _held = self.fmrs.get(fmr)?;
        let entry = self.fmr_entry(fmr.index())?;
        self.mapping(fmr.index())?.with(|mapping| {
            let room = mapping.room.ok_or(STALE)?;
            let length = mapping.check(pages, iova)?;
            let form = self.next_fast_form(self.plan.mpt.fmrs.wrapping_add(fmr.index()));
            let key = self.keys.key(form);
            entry.set_owner(mapping.rights, MptStatus::SOFTWARE);
            let addresses = pages.iter().map(|page| page.get());
            self.mtt.store(self.icm.as_ref(), room, addresses);
            entry.set_key(form);
            entry.set_extent(iova, length);
            entry.set_owner(mapping.rights, MptStatus::HARDWARE);
            mapping.maps = mapping.maps.saturating_add(1);
            // Without remote rights the number is refused whatever it is: verbs 7.3.
            let rkey = if mapping.remote { key } else { 0 };
            Ok((LKey(key), RKey(rkey)))
        })
    }

    /// All of them or, if one handle is stale, none.
    pub(crate) fn unmap_fmrs(&self, fmrs: &[FmrHandle]) -> Result<(), VerbsError> {
        self.fmr_gate.with(|()| {
            for &fmr in fmrs {
                self.fmrs.get(fmr)?;
            }
            let mut mapped = false;
            for fmr in fmrs {
                let entry = self.fmr_entry(fmr.index())?;
                mapped |= self.mapping(fmr.index())?.with(|mapping| {
                    if mapping.maps != 0 {
                        mapping.ending = true;
                        entry.set_owner(mapping.rights, MptStatus::SOFTWARE);
                    }
                    mapping.ending
                });
            }
            if mapped {
                self.sync_tpt()?;
            }
            for fmr in fmrs {
                self.mapping(fmr.index())?.with(|mapping| {
                    if mapping.ending {
                        (mapping.maps, mapping.ending) = (0, false);
                    }
                });
            }
            Ok(())
        })
    }

    /// Nothing that the HCA knew of the translations is used afterwards.
    fn sync_tpt(&self) -> Result<(), VerbsError> {
        match self.command(&SyncTpt {}) {
            Ok(_) => Ok(()),
            Err(error) if error.status().is_some() => Err(error.into()),
            Err(_) if self.released_by_reset().is_some() => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// The entry is made again what `alloc_fmr` handed over, valid and empty, and then taken back.
    pub(crate) fn dealloc_fmr(&self, fmr: FmrHandle) -> Result<(), VerbsError> {
        self.fmr_gate.with(|()| {
            self.fmrs.get(fmr)?;
            let entry = self.fmr_entry(fmr.index())?;
            let place = self.mapping(fmr.index())?;
            place.with(|mapping| {
                if mapping.maps != 0 {
                    let (object, holders) = (Fmr::NAME, 1);
                    return Err(VerbsError::Busy { object, holders });
                }
                mapping.ending = true; // no map from here on
                entry.set_extent(0, 0);
                entry.set_owner(mapping.rights, MptStatus::HARDWARE);
                Ok(())
            })?;
            let index = self.plan.mpt.fmrs.wrapping_add(fmr.index());
            match self.command(&Hw2SwMptEntry { index }) {
                Ok(_) => {}
                Err(error) if error.status().is_some() => {
                    place.with(|mapping| mapping.ending = false);
                    return Err(error.into());
                }
                Err(_) if self.released_by_reset().is_some() => {}
                Err(error) => return Err(error.into()),
            }
            let region = self.fmrs.remove(fmr)?;
            if let Some(room) = place.with(core::mem::take).room {
                self.mtt.give(room);
            }
            self.leave_pd(region.pd);
            Ok(())
        })
    }

    /// For the end of everything: whatever it is mapped to.
    pub(crate) fn end_fmr(&self, fmr: FmrHandle) {
        let _ = self.unmap_fmrs(&[fmr]);
        let _ = self.dealloc_fmr(fmr);
    }
}

impl Mapping {
    /// May these pages be mapped at `iova`? How many bytes they are.
    fn check(&self, pages: &[DmaAddr], iova: u64) -> Result<u64, VerbsError> {
        let invalid = |field, found, allowed| {
            Err(VerbsError::InvalidAttr {
                field,
                found,
                allowed,
            })
        };
        if self.ending || self.maps >= self.max_maps {
            return Err(NOT_NOW);
        }
        let count = pages.len() as u64;
        if count == 0 || count > u64::from(self.max_pages) {
            return invalid("pages", count, self.max_pages.into());
        }
        let mask = (1_u64 << self.page_shift) - 1;
        if iova & mask != 0 {
            return invalid("iova", iova, !mask);
        }
        if let Some(page) = pages.iter().find(|page| page.get() & mask != 0) {
            return invalid("page address", page.get(), !mask);
        }
        let length = count.checked_shl(self.page_shift.into()).unwrap_or(0);
        if length >> self.page_shift != count || iova.checked_add(length - 1).is_none() {
            return invalid("pages", count, (u64::MAX - iova) >> self.page_shift);
        }
        Ok(length)
    }
}

/// Rights and the rest of an entry's first dword, as SW2HW_MPT brought it, without the status.
fn first_dword(entry: &Mpt) -> u32 {
    let mut entry = *entry;
    entry
        .set_status(MptStatus::HARDWARE)
        .set_mio(true)
        .set_region(true);
    let dword = entry.as_bytes().first_chunk::<4>();
    dword.map_or(0, |dword| u32::from_be_bytes(*dword))
}

#[cfg(test)]
mod tests;
