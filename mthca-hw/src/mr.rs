//! Memory regions: MPT entries, of consumers and of the driver itself. verbs 7, infinihost 4.9, 4.10.
//!
//! The HCA reaches no memory but through a valid entry. So an entry is the last thing that is told to the HCA and the
//! first that is taken back, and the answer to HW2SW_MPT is what memory is freed on.

use crate::cmd::table::{Hw2SwMptEntry, Sw2HwMptEntry};
use crate::extents::Extent;
use crate::icm::Kind;
use crate::inner::Inner;
use crate::let_go::Released;
use core::sync::atomic::{AtomicU64, Ordering};
use core_ib::platform::{DmaBuf, Gate, Platform};
use core_ib::verbs::{Access, Mr as Keys, MrHandle, MrInit, Object, PdHandle, VerbsError, kind};
use core_ib::{LKey, RKey};
use hca_abi::infinihost::cmd::CmdStatus;
use hca_abi::infinihost::dev_lim::features;
use hca_abi::infinihost::mpt::{Mpt, MptStatus};

/// Logarithm of the smallest page.
pub(crate) const MIN_SHIFT: u8 = 12;
/// Logarithm of the largest page: five bits in the entry.
pub(crate) const MAX_SHIFT: u8 = MIN_SHIFT + 31;

/// A consumer's region: its handle, and its key for the data path. What else there is to know is in its place.
#[derive(Debug)]
pub(crate) struct Mr {
    /// The key; above it 1 while the HCA knows the region.
    key: AtomicU64,
}

impl Mr {
    const KNOWN: u64 = 1 << 32;

    const fn known_by(key: u32) -> Self {
        Self {
            key: AtomicU64::new(Self::KNOWN | key as u64),
        }
    }

    fn publish(&self, key: Option<u32>) {
        let word = key.map_or(0, |key| Self::KNOWN | u64::from(key));
        self.key.store(word, Ordering::Release);
    }

    /// Its key, while the HCA knows it. Any context.
    pub fn key(&self) -> Option<u32> {
        let word = self.key.load(Ordering::Acquire);
        (word & Self::KNOWN != 0).then_some(word as u32)
    }
}

impl Object for Mr {
    type Kind = kind::Mr;
    const NAME: &'static str = "MR";
    const PROFILE: &'static str = "mrs";
}

/// Where a consumer's region is known.
pub(crate) struct MrPlace<P: Platform> {
    pub gate: Gate<Region, P::RawGate>,
}

impl<P: Platform> MrPlace<P> {
    /// An empty place. Set-up only.
    pub fn new(machine: &P) -> Self {
        let gate = machine.gate("MR", Region::default());
        Self { gate }
    }
}

/// One region.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Region {
    /// Place of its PD.
    pd: u32,
    /// Number of its PD.
    pd_number: u32,
    access: Access,
    iova: u64,
    length: u64,
    page_shift: u8,
    /// Its translations.
    room: Option<Extent>,
    key: u32,
    /// The HCA knows it.
    valid: bool,
}

/// The region over a queue's memory: addresses count from 0.
#[derive(Debug)]
pub(crate) struct Ring {
    mpt: u32,
    /// Its key.
    pub key: u32,
    room: Extent,
}

/// Sets the rights of an entry. Local read is always granted.
pub(crate) fn allow(entry: &mut Mpt, access: Access) {
    entry
        .set_local_read(true)
        .set_local_write(access.contains(Access::LOCAL_WRITE))
        .set_remote_read(access.contains(Access::REMOTE_READ))
        .set_remote_write(access.contains(Access::REMOTE_WRITE))
        .set_remote_atomic(access.contains(Access::REMOTE_ATOMIC))
        .set_bind(access.contains(Access::MW_BIND));
}

/// An entry without translations, over bus addresses.
pub(crate) fn physical(pd: u32, access: Access, start: u64, length: u64) -> Mpt {
    let mut entry = Mpt::ZERO;
    entry.set_physical(true).set_pd(pd);
    entry.set_start(start).set_length(length);
    allow(&mut entry, access);
    entry
}

/// The largest pages that pieces at these addresses, of these lengths, are made of; the last piece may end anywhere.
fn page_shift(pieces: &[(u64, u64)]) -> u8 {
    let last = pieces.len().saturating_sub(1);
    let mut bits = 0;
    let mut longest = 1;
    for (index, &(address, len)) in pieces.iter().enumerate() {
        bits |= address;
        if index != last {
            bits |= len;
        }
        longest = longest.max(len);
    }
    let aligned = bits.trailing_zeros().min(u32::from(MAX_SHIFT)) as u8;
    let enough = (u64::BITS - longest.saturating_sub(1).leading_zeros()) as u8;
    aligned.min(enough).max(MIN_SHIFT)
}

/// Addresses of the pages of these pieces.
fn pages(pieces: &[(u64, u64)], shift: u8) -> impl Iterator<Item = u64> + '_ {
    pieces.iter().flat_map(move |&(address, len)| {
        let count = len.div_ceil(1 << shift);
        (0..count).map(move |index| address.wrapping_add(index << shift))
    })
}

impl<P: Platform> Inner<'_, P> {
    /// The next life number of MPT entry `index`. Any context; never blocks.
    fn next_life(&self, index: u32) -> u32 {
        let place = index.wrapping_sub(self.plan.mpt.first) as usize;
        let tag = self.mpt_tags.get(place);
        tag.map_or(0, |tag| tag.fetch_add(1, Ordering::Relaxed))
    }

    /// The next form of the key of MPT entry `index`, so that no key comes back soon. Any context; never blocks.
    pub fn next_form(&self, index: u32) -> u32 {
        self.keys.form(index, self.next_life(index))
    }

    /// The same of a fast region.
    pub fn next_fast_form(&self, index: u32) -> u32 {
        self.keys.fast_form(index, self.next_life(index))
    }

    /// Makes MPT entry `index` valid and returns its key. On error the HCA knows nothing of it, or has ended.
    pub fn begin_region(&self, index: u32, entry: Mpt) -> Result<u32, VerbsError> {
        self.begin_region_as(index, self.next_form(index), entry)
    }

    /// The same, with this form of its key.
    pub fn begin_region_as(
        &self,
        index: u32,
        form: u32,
        mut entry: Mpt,
    ) -> Result<u32, VerbsError> {
        entry
            .set_status(MptStatus::SOFTWARE)
            .set_mio(true)
            .set_region(true)
            .set_key(form);
        self.give_entry(index, &entry)?;
        Ok(self.keys.key(form))
    }

    /// Gives an MPT entry to the HCA.
    pub fn give_entry(&self, index: u32, entry: &Mpt) -> Result<(), VerbsError> {
        self.back(Kind::Mpt, index, 1)?;
        self.command(&Sw2HwMptEntry { index, entry })?;
        Ok(())
    }

    /// Makes it invalid again.
    pub fn end_region(&self, index: u32) -> Option<Released> {
        self.take_back(&Hw2SwMptEntry { index })
    }

    /// The proof about memory whose telling the HCA came to nothing: refused, or the HCA ended over it.
    pub fn untold(&self) -> Option<Released> {
        if self.cmd.health().is_alive() {
            Some(Released::never_told())
        } else {
            self.released_by_reset()
        }
    }

    /// A region over `memory`, one piece behind the other, each counted with `bytes` of it (whole pages but for the
    /// last), at MPT entry `mpt`. On error the memory is the caller's, see [`untold`](Self::untold).
    pub fn begin_ring(
        &self,
        mpt: u32,
        pd: u32,
        access: Access,
        memory: [Option<(&DmaBuf<'_, P>, u64)>; 2],
    ) -> Result<Ring, VerbsError> {
        let mut pieces = [(0, 0); 2];
        let mut count = 0;
        for ((buf, bytes), piece) in memory.into_iter().flatten().zip(&mut pieces) {
            *piece = (buf.addr().get(), bytes);
            count += 1;
        }
        let pieces = pieces.get(..count).unwrap_or(&[]);
        let shift = page_shift(pieces);
        let room = self.take_mtts(pages(pieces, shift).count() as u64)?;
        let length = pieces.iter().map(|&(_, len)| len).sum();
        let mut entry = Mpt::ZERO;
        allow(&mut entry, access);
        entry
            .set_pd(pd)
            .set_length(length)
            .set_page_size(shift.saturating_sub(MIN_SHIFT))
            .set_mtt_address(self.mtt.address(room));
        let result = self
            .write_mtts(room, pages(pieces, shift))
            .map_err(VerbsError::from)
            .and_then(|()| self.begin_region(mpt, entry));
        match result {
            Ok(key) => Ok(Ring { mpt, key, room }),
            Err(error) => {
                self.announce_end();
                self.mtt.give(room);
                Err(error)
            }
        }
    }

    /// Ends it: the proof that its memory is free.
    pub fn end_ring(&self, ring: Ring) -> Option<Released> {
        let released = self.end_region(ring.mpt);
        self.mtt.give(ring.room);
        released
    }

    /// The HCA has atomics.
    pub(crate) fn has_atomics(&self) -> bool {
        self.limits.can(features::ATOMICS)
    }

    pub(crate) fn check_access(&self, access: Access) -> Result<(), VerbsError> {
        let unsupported = |feature| Err(VerbsError::Unsupported { feature });
        let bits = u64::from(access.bits());
        let invalid = VerbsError::InvalidAttr {
            field: "access",
            found: bits,
            allowed: u64::from(Access::all().bits()),
        };
        if !Access::all().contains(access) || !access.is_consistent() {
            return Err(invalid);
        }
        if access.contains(Access::REMOTE_ATOMIC) && !self.has_atomics() {
            return unsupported("remote atomics");
        }
        if access.contains(Access::MW_BIND) && !self.has_windows() {
            return unsupported("memory windows");
        }
        if access.contains(Access::ZERO_BASED) {
            return unsupported("zero-based regions");
        }
        Ok(())
    }

    /// Stores the translations of `init` in room of their own.
    fn translate(&self, init: &MrInit<'_>) -> Result<Extent, VerbsError> {
        check_pages(init)?;
        let room = self.take_mtts(init.pages.len() as u64)?;
        let addresses = init.pages.iter().map(|page| page.get());
        let written = self.write_mtts(room, addresses);
        written.map(|()| room).map_err(|error| {
            self.announce_end();
            self.mtt.give(room);
            error.into()
        })
    }

    /// Tells the HCA of `region`.
    fn validate(&self, index: u32, region: &mut Region) -> Result<Keys2, VerbsError> {
        let mut entry = Mpt::ZERO;
        allow(&mut entry, region.access);
        entry
            .set_pd(region.pd_number)
            .set_start(region.iova)
            .set_length(region.length)
            .set_page_size(region.page_shift.saturating_sub(MIN_SHIFT));
        if let Some(room) = region.room {
            entry.set_mtt_address(self.mtt.address(room));
        }
        region.key = self.begin_region(self.plan.mpt.mrs.wrapping_add(index), entry)?;
        region.valid = true;
        Ok(Keys2(region.key))
    }

    pub(crate) fn reg_mr(&self, pd: PdHandle, init: &MrInit<'_>) -> Result<Keys, VerbsError> {
        let home = self.enter_pd(pd)?;
        let result = self.reg_mr_in(home.index, home.number, init);
        if result.is_err() {
            self.leave_pd(home.index);
        }
        result
    }

    fn reg_mr_in(&self, pd: u32, pd_number: u32, init: &MrInit<'_>) -> Result<Keys, VerbsError> {
        self.cmd.health().check()?;
        self.check_access(init.access)?;
        let vacant = self.mrs.reserve()?;
        let index = vacant.index();
        let place = self.mr_places.get(index as usize);
        let place = place.ok_or(VerbsError::InvalidHandle { object: Mr::NAME })?;
        place.gate.with(|region| {
            let room = self.translate(init)?;
            *region = Region {
                pd,
                pd_number,
                access: init.access,
                iova: init.iova,
                length: init.length,
                page_shift: init.page_shift,
                room: Some(room),
                key: 0,
                valid: false,
            };
            match self.validate(index, region) {
                Ok(keys) => {
                    let mr = vacant.fill(Mr::known_by(keys.0));
                    Ok(keys.of(mr, region.access))
                }
                Err(error) => {
                    self.mtt.give(room);
                    *region = Region::default();
                    Err(error)
                }
            }
        })
    }

    /// Number of the PD of the consumer's region with this key.
    pub(crate) fn pd_of_key(&self, key: u32) -> Result<u32, VerbsError> {
        let index = self.keys.index(key).wrapping_sub(self.plan.mpt.mrs);
        let unknown = VerbsError::InvalidHandle { object: Mr::NAME };
        let place = self.mr_places.get(index as usize).ok_or(unknown)?;
        place.gate.with(|region| {
            let found = region.valid && region.key == key;
            found.then_some(region.pd_number).ok_or(unknown)
        })
    }

    /// Runs `f` on the region of `mr`, while no other call is at it.
    fn with_mr<T>(
        &self,
        mr: MrHandle,
        f: impl FnOnce(&mut Region) -> Result<T, VerbsError>,
    ) -> Result<T, VerbsError> {
        let stale = VerbsError::InvalidHandle { object: Mr::NAME };
        let place = self.mr_places.get(mr.index() as usize).ok_or(stale)?;
        place.gate.with(|region| {
            self.mrs.get(mr).map(drop)?;
            f(region)
        })
    }

    /// Takes the region of `mr` back, if the HCA knows it.
    fn invalidate(&self, mr: MrHandle, region: &mut Region) -> Result<(), VerbsError> {
        if !region.valid {
            return Ok(());
        }
        let index = self.plan.mpt.mrs.wrapping_add(mr.index());
        match self.command(&Hw2SwMptEntry { index }) {
            Ok(_) => {}
            Err(error) => match error.status() {
                Some(CmdStatus::REG_BOUND | CmdStatus::RESOURCE_BUSY) => {
                    let (object, holders) = (Mr::NAME, 1);
                    return Err(VerbsError::Busy { object, holders });
                }
                Some(_) => return Err(error.into()),
                // The memory is the caller's again when this returns, so that the HCA must have let go of it.
                None if self.released_by_reset().is_some() => {}
                None => return Err(error.into()),
            },
        }
        region.valid = false;
        self.mrs.get(mr)?.publish(None);
        Ok(())
    }

    pub(crate) fn rereg_mr(
        &self,
        mr: MrHandle,
        pd: Option<PdHandle>,
        init: Option<&MrInit<'_>>,
        access: Option<Access>,
    ) -> Result<Keys, VerbsError> {
        self.cmd.health().check()?;
        if pd.is_none() && init.is_none() && access.is_none() {
            return Err(VerbsError::InvalidAttr {
                field: "what to re-register",
                found: 0,
                allowed: 1,
            });
        }
        let access = access.or(init.map(|init| init.access));
        access.map_or(Ok(()), |access| self.check_access(access))?;
        init.map_or(Ok(()), check_pages)?;
        let mut home = pd.map(|pd| self.enter_pd(pd)).transpose()?;
        let result = self.with_mr(mr, |region| {
            if init.is_none() && region.room.is_none() {
                // An earlier call gave its pages up and got no others: verbs 7.7.
                return Err(VerbsError::InvalidState { object: Mr::NAME });
            }
            self.invalidate(mr, region)?;
            if let Some(home) = home.take() {
                self.leave_pd(core::mem::replace(&mut region.pd, home.index));
                region.pd_number = home.number;
            }
            if let Some(init) = init {
                if let Some(old) = region.room.take() {
                    self.mtt.give(old);
                }
                // From here on an error leaves a region that is good for deregistering or for new pages (verbs 7.7).
                region.room = Some(self.translate(init)?);
                region.iova = init.iova;
                region.length = init.length;
                region.page_shift = init.page_shift;
            }
            region.access = access.unwrap_or(region.access);
            let keys = self.validate(mr.index(), region)?;
            self.mrs.get(mr)?.publish(Some(keys.0));
            Ok(keys.of(mr, region.access))
        });
        if let Some(home) = home {
            self.leave_pd(home.index); // the region never got there
        }
        result
    }

    pub(crate) fn dereg_mr(&self, mr: MrHandle) -> Result<(), VerbsError> {
        self.with_mr(mr, |region| {
            self.invalidate(mr, region)?;
            self.mrs.remove(mr)?;
            let region = core::mem::take(region);
            if let Some(room) = region.room {
                self.mtt.give(room);
            }
            self.leave_pd(region.pd);
            Ok(())
        })
    }
}

/// The one key of a region, which is both keys.
struct Keys2(u32);

impl Keys2 {
    fn of(&self, handle: MrHandle, access: Access) -> Keys {
        let remote = access.intersects(Access::REMOTE);
        Keys {
            handle,
            lkey: LKey(self.0),
            // Without remote rights the number is refused whatever it is: verbs 7.3.
            rkey: RKey(if remote { self.0 } else { 0 }),
        }
    }
}

/// Do the pages make the region? verbs 7.2.
fn check_pages(init: &MrInit<'_>) -> Result<(), VerbsError> {
    let invalid = |field, found, allowed| {
        Err(VerbsError::InvalidAttr {
            field,
            found,
            allowed,
        })
    };
    let shift = init.page_shift;
    if !(MIN_SHIFT..=MAX_SHIFT).contains(&shift) {
        return invalid("page shift", u64::from(shift), u64::from(MAX_SHIFT));
    }
    if init.length == 0 || init.iova.checked_add(init.length - 1).is_none() {
        return invalid("length", init.length, u64::MAX - init.iova);
    }
    let mask = (1_u64 << shift) - 1;
    let offset = init.iova & mask;
    let last_page = (offset.wrapping_add(init.length - 1)) >> shift;
    let needed = if offset.checked_add(init.length - 1).is_some() {
        last_page + 1
    } else {
        return invalid("length", init.length, u64::MAX - offset);
    };
    let given = init.pages.len() as u64;
    if given != needed {
        return invalid("pages", given, needed);
    }
    match init.pages.iter().find(|page| page.get() & mask != 0) {
        Some(page) => invalid("page address", page.get(), !mask),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use core_ib::platform::DmaAddr;
    use proptest::prelude::*;
    use std::vec::Vec;

    #[test]
    fn a_ring_in_one_piece_has_one_page_if_its_address_allows() {
        assert_eq!(page_shift(&[(0x10000, 0x10000)]), 16);
        assert_eq!(page_shift(&[(0x11000, 0x10000)]), 12);
        assert_eq!(page_shift(&[(0x10000, 0x10000), (0x40000, 0x3000)]), 16);
        assert_eq!(page_shift(&[(0x10000, 0x1000), (0x40000, 0x8000)]), 12);
        assert_eq!(page_shift(&[(0x10000, 32)]), 12);
    }

    proptest! {
        #[test]
        fn pages_cover_the_pieces_in_order(
            a in 1..64_u64, b in 1..64_u64, at in 0..64_u64, alone: bool,
        ) {
            let first = (at << 12, a << 12);
            let second = (1 << 30 | at << 12, b << 12);
            let both = [first, second];
            let pieces = if alone { &both[..1] } else { &both[..] };
            let shift = page_shift(pieces);
            let all: Vec<u64> = pages(pieces, shift).collect();
            let total: u64 = pieces.iter().map(|piece| piece.1).sum();
            for byte in [0, 1, total / 2, total - 1] {
                let found = all[(byte >> shift) as usize] + (byte & ((1 << shift) - 1));
                let expected = if byte < first.1 { first.0 + byte } else { second.0 + byte - first.1 };
                prop_assert_eq!(found, expected);
            }
            prop_assert!(all.iter().all(|page| page & ((1 << shift) - 1) == 0));
        }

        #[test]
        fn pages_are_as_many_as_the_region_touches(
            iova in prop_oneof![0..0x3000_u64, any::<u64>()], length in prop_oneof![0..0x9000_u64, any::<u64>()],
            count in 0..12_usize,
        ) {
            let pages: Vec<DmaAddr> = (0..count as u64).map(|page| DmaAddr::new(page << 12)).collect();
            let access = Access::empty();
            let init = MrInit { iova, length, pages: &pages, page_shift: 12, access };
            let last = u128::from(iova) + u128::from(length).saturating_sub(1);
            let touched = (last >> 12) - u128::from(iova >> 12) + 1;
            let legal = length != 0 && last <= u128::from(u64::MAX) && touched == count as u128;
            prop_assert_eq!(check_pages(&init).is_ok(), legal);
        }
    }
}
