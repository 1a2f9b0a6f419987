//! Where everything goes: the numbers that this driver uses of each kind, and the tables in the HCA's attached memory or,
//! in M-mode, in its address space for lent memory (ICM). infinihost 6.1 to 6.4.
//!
//! Computed from the [`Profile`] and the [`Limits`] before the HCA is told anything; what does not fit is an error that
//! names the entry. The MPT is shared out once, by kind of object, so that a key says whose it is: EQs, then the two
//! internal regions of each PD, the rings of CQs (two each, for resizing), QPs and SRQs, then the consumers' regions, windows and fast regions.

use crate::chip::{Chip, Mode};
use crate::eq::MAX_VECTORS;
use crate::limits::Limits;
use crate::profile::{Profile, ProfileError};

/// A table that the HCA indexes by the low bits of an object's number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    /// The first number of ours.
    pub first: u32,
    /// How many are ours.
    pub count: u32,
    /// Logarithm of the table's size.
    pub log_size: u8,
    /// The table's size less one.
    mask: u32,
}

impl Numbers {
    const fn new(first: u32, count: u32) -> Self {
        let size = first.saturating_add(count);
        let log_size = crate::extents::order_of(size);
        Self {
            first,
            count,
            log_size,
            mask: (1_u32 << log_size).wrapping_sub(1),
        }
    }

    /// The number of object `index` in its life number `generation`: 24 bits, those above the table's size a tag.
    pub const fn number(&self, index: u32, generation: u32) -> u32 {
        let tag = if self.log_size < 24 {
            generation << self.log_size
        } else {
            0
        };
        (self.first.wrapping_add(index) | tag) & 0xff_ffff
    }

    /// Which entry of the table a number selects.
    pub const fn entry(&self, number: u32) -> u32 {
        number & self.mask
    }

    /// Which object of ours a number may name; the whole number is yet to be compared.
    #[inline]
    pub const fn index(&self, number: u32) -> u32 {
        self.entry(number).wrapping_sub(self.first)
    }
}

/// The MPT, by kind of owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MptPlan {
    /// The first entry of ours: that of EQ 0.
    pub first: u32,
    /// Of PD 0: the region of address vectors, one entry a PD.
    pub vectors: u32,
    /// Of PD 0: the whole-memory region.
    pub whole: u32,
    /// Of CQ 0: two entries a CQ.
    pub cqs: u32,
    /// Of QP 0.
    pub qps: u32,
    /// Of SRQ 0.
    pub srqs: u32,
    /// Of MR 0.
    pub mrs: u32,
    /// Of memory window 0.
    pub mws: u32,
    /// Of fast memory region 0.
    pub fmrs: u32,
    /// Beyond the last.
    pub end: u32,
    /// Logarithm of the table's size.
    pub log_size: u8,
}

/// Addresses of the tables in attached memory, or in ICM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tables {
    /// QP contexts.
    pub qpc: u64,
    /// Extended QP contexts.
    pub eqpc: u64,
    /// SRQ contexts; 0 without SRQs.
    pub srqc: u64,
    /// CQ contexts.
    pub cqc: u64,
    /// EQ contexts.
    pub eqc: u64,
    /// Responder resources.
    pub rdb: u64,
    /// Multicast groups.
    pub mcg: u64,
    /// Memory protection.
    pub mpt: u64,
    /// Memory translation.
    pub mtt: u64,
    /// One scratch entry a UAR page.
    pub uar_scratch: u64,
    /// T: address vectors.
    pub av: u64,
    /// M: EE contexts, of which nobody makes any, and their extension.
    pub eec: [u64; 2],
    /// M: contexts of UAR pages, in which doorbell records are.
    pub uarc: u64,
}

/// The plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Ordinary QPs.
    pub qp: Numbers,
    /// SMI of port 1; that of port 2, then both GSIs follow. infinihost 3.11.
    pub special_qps: u32,
    /// CQs.
    pub cq: Numbers,
    /// SRQs; their numbers carry no tag.
    pub srq: Numbers,
    /// EQs.
    pub eq: Numbers,
    /// PDs; the first is the driver's own.
    pub pd: Numbers,
    /// The MPT.
    pub mpt: MptPlan,
    /// First MTT segment of ours.
    pub first_segment: u32,
    /// MTT segments of the table.
    pub segments: u32,
    /// Logarithm of the entries of the multicast table; half of them are hash buckets.
    pub log_mcg: u8,
    /// The kernel's UAR page; those of user contexts follow.
    pub uar: u32,
    /// Logarithm of responder resources of one QP.
    pub log_rdb_per_qp: u8,
    /// Address vectors.
    pub avs: u32,
    /// M: logarithm of the pages of the context of a UAR page.
    pub log_uarc_pages: u8,
    /// M: bytes of ICM.
    pub icm: u64,
    /// Where it all lies.
    pub tables: Tables,
}

/// EQs that a dword of the registers knows: infinihost 2.3, 2.5.
const MOST_EQS: u32 = 32;
/// Entries of an EQ, at most: what models and published drivers go to.
const MOST_EVENTS: u32 = 1 << 17;
/// Room in the queue of a vector beside one event of each CQ: for those on their way. infinihost 4.1.
pub const SPARE_EVENTS: u32 = 0x80;
/// Bytes of an MPT entry, T-mode.
pub const MPT_ENTRY: u64 = 64;
/// Bytes of an MTT segment: 8 entries.
pub const SEGMENT: u64 = 64;
/// MTT entries of a segment.
pub const SEGMENT_PAGES: u32 = 8;
/// Bytes of a multicast entry, and their logarithm.
pub const MCG_ENTRY: u64 = 256;
/// Bytes of one responder resource.
pub const RDB_ENTRY: u64 = 32;
/// Bytes of one translation.
pub const MTT_ENTRY: u64 = SEGMENT / SEGMENT_PAGES as u64;
/// Bytes of a doorbell record.
const RECORD: u64 = 8;
/// Bytes of a page of ICM.
const PAGE: u64 = 4096;
/// Logarithm of the pages of a UAR page's context that user-space drivers count on: 256 KB. infinihost 11.2.
const LOG_UARC_PAGES: u8 = 6;
/// The same of the largest.
const LOG_MAX_UARC_PAGES: u8 = 15;
/// Bytes of an address vector.
pub const AV_ENTRY: u64 = 32;

fn at_most(entry: &'static str, wanted: u32, limit: u32) -> Result<u32, ProfileError> {
    if wanted > limit {
        return Err(ProfileError::TooMany {
            entry,
            wanted,
            limit,
        });
    }
    Ok(wanted)
}

fn some(entry: &'static str, wanted: u32, limit: u32) -> Result<u32, ProfileError> {
    if wanted == 0 {
        return Err(ProfileError::Zero { entry });
    }
    at_most(entry, wanted, limit)
}

/// What is left of a table of `1 << log_max` entries of which `first` are not ours.
const fn left(log_max: u8, first: u32) -> u32 {
    let size = 1_u32 << if log_max < 31 { log_max } else { 31 };
    size.saturating_sub(first)
}

/// Bytes of a table of `count` entries: a power of two.
const fn size(count: u32, entry: u64) -> u64 {
    let count = count.next_power_of_two() as u64;
    count.saturating_mul(entry.next_power_of_two())
}

/// Lays tables of these sizes, each 0 or a power of two, one behind the other from `start` on: the largest first, so
/// that each is aligned to its size; equal ones in the order given (infinihost 6.3). Where they are, and what is behind.
fn stack<const N: usize>(start: u64, sizes: [u64; N]) -> ([u64; N], u64) {
    let mut placed = [0; N];
    let mut next = start;
    for shift in (0..u64::BITS).rev() {
        for (&bytes, at) in sizes.iter().zip(&mut placed) {
            if bytes == 1 << shift {
                *at = next;
                next = next.saturating_add(bytes);
            }
        }
    }
    (placed, next)
}

impl Plan {
    /// Computes the plan.
    pub fn new(chip: &Chip, profile: &Profile, limits: &Limits) -> Result<Self, ProfileError> {
        let dev = limits;
        let special_qps = dev.reserved_qps.next_multiple_of(2);
        let first_qp = special_qps.saturating_add(4);
        let qps = some("qps", profile.qps, left(dev.log_max_qps, first_qp))?;
        // Each may have an event in the queue of its vector.
        let cqs = left(dev.log_max_cqs, dev.reserved_cqs).min(MOST_EVENTS - SPARE_EVENTS);
        let cqs = some("cqs", profile.cqs, cqs)?;
        let srqs = if dev.has_srq {
            left(dev.log_max_srqs, dev.reserved_srqs)
        } else {
            0
        };
        let srqs = at_most("srqs", profile.srqs, srqs)?;
        let pds = left(dev.log_max_pds, dev.reserved_pds).saturating_sub(1);
        let pds = some("pds", profile.pds, pds)?;
        let ahs = some("ahs", profile.ahs, left(dev.log_max_avs, 0))?;
        let mrs = some("mrs", profile.mrs, left(dev.log_max_mpts, 0))?;
        let mws = at_most("mws", profile.mws, left(dev.log_max_mpts, 0))?;
        let fmrs = at_most("fmrs", profile.fmrs, left(dev.log_max_mpts, 0))?;
        let pages = dev
            .uar_pages
            .saturating_sub(dev.reserved_uars.saturating_add(2));
        at_most("users", profile.users, pages)?;
        some("work_requests", profile.work_requests, 1 << 24)?;
        some("event_entries", profile.event_entries, MOST_EVENTS)?;
        some("commands", u32::from(profile.commands), 32)?;
        let depth_limit = left(dev.log_max_rd_atomic_dest, 0);
        let depth = some("responder_depth", profile.responder_depth, depth_limit)?;

        let free_eqs = MOST_EQS.saturating_sub(dev.reserved_eqs).saturating_sub(2);
        let vectors = some(
            "completion_vectors",
            profile.completion_vectors.into(),
            free_eqs.min(MAX_VECTORS.into()),
        )?;
        let eqs = vectors.saturating_add(2);
        let pd = Numbers::new(dev.reserved_pds, pds.saturating_add(1));
        let mpt = MptPlan::new(
            dev.reserved_mpts,
            [eqs, pd.count],
            [cqs, qps, srqs],
            [mrs, mws, fmrs],
        );
        at_most("mrs", mpt.end, left(dev.log_max_mpts, 0))?;
        let wanted_segments = profile.mtt_pages.div_ceil(SEGMENT_PAGES);
        let segments_limit = left(dev.log_max_mtt_segments, dev.reserved_segments);
        let limit = segments_limit.saturating_mul(SEGMENT_PAGES);
        some("mtt_pages", profile.mtt_pages, limit)?;
        let groups = some("mcast_groups", profile.mcast_groups, 1 << 15)?;
        let log_mcg = crate::extents::order_of(groups).saturating_add(1);
        at_most(
            "mcast_groups",
            1 << (log_mcg - 1),
            left(dev.log_max_mcgs, 0) / 2,
        )?;

        let mut plan = Self {
            qp: Numbers::new(first_qp, qps),
            special_qps,
            cq: Numbers::new(dev.reserved_cqs, cqs),
            srq: Numbers::new(dev.reserved_srqs, srqs),
            eq: Numbers::new(dev.reserved_eqs, eqs),
            pd,
            mpt,
            first_segment: dev.reserved_segments,
            segments: (dev.reserved_segments + wanted_segments).next_power_of_two(),
            log_mcg,
            uar: dev.reserved_uars + 1,
            log_rdb_per_qp: crate::extents::order_of(depth),
            avs: ahs,
            log_uarc_pages: 0,
            icm: 0,
            tables: Tables::default(),
        };
        let within = |name, log: u8, most: u8| at_most(name, 1 << log, 1 << most.min(24));
        within("qps", plan.qp.log_size, dev.log_max_qps)?;
        within("cqs", plan.cq.log_size, dev.log_max_cqs)?;
        match chip.mode {
            Mode::T => plan.place_attached(dev)?,
            Mode::M => {
                let [front, back] = plan.record_pages(profile);
                let pages = crate::extents::order_of(front.saturating_add(back));
                plan.log_uarc_pages = pages.max(LOG_UARC_PAGES);
                at_most("cqs", 1 << plan.log_uarc_pages, 1 << LOG_MAX_UARC_PAGES)?;
                plan.place_icm(dev)?;
            }
        }
        Ok(plan)
    }

    /// M: pages of the driver's own doorbell records, those of both groups.
    pub fn record_pages(&self, profile: &Profile) -> [u32; 2] {
        let pages = |records: u64| (records * RECORD).div_ceil(PAGE) as u32;
        let both = u64::from(profile.cqs) + u64::from(profile.qps);
        [pages(both), pages(both + u64::from(profile.srqs))]
    }

    /// Bytes of the tables that both modes have: QPC, SRQC, CQC, extended QPC, EQC, RDB, multicast, MPT, MTT, UAR
    /// scratch.
    fn sizes(&self, limits: &Limits) -> [u64; 10] {
        let of = |numbers: &Numbers, entry: u64| size(1 << numbers.log_size, entry);
        let entry = &limits.entries;
        // Those that the firmware keeps for itself are there in any case.
        let srqc = if limits.has_srq {
            of(&self.srq, entry.srqc)
        } else {
            0
        };
        let rdbs = RDB_ENTRY << self.log_rdb_per_qp;
        [
            of(&self.qp, entry.qpc),
            srqc,
            of(&self.cq, entry.cqc),
            of(&self.qp, entry.eqpc),
            of(&self.eq, entry.eqc),
            of(&self.qp, rdbs),
            size(1 << self.log_mcg, MCG_ENTRY),
            size(1 << self.mpt.log_size, entry.mpt),
            size(self.segments, SEGMENT),
            size(limits.uar_pages, entry.uar_scratch),
        ]
    }

    /// Takes the addresses of what [`sizes`](Self::sizes) gave.
    const fn take_places(&mut self, places: [u64; 10]) {
        let [qpc, srqc, cqc, eqpc, eqc, rdb, mcg, mpt, mtt, uar_scratch] = places;
        self.tables = Tables {
            qpc,
            eqpc,
            srqc,
            cqc,
            eqc,
            rdb,
            mcg,
            mpt,
            mtt,
            uar_scratch,
            av: 0,
            eec: [0; 2],
            uarc: 0,
        };
    }

    /// Lays the tables out from the start of attached memory up to the firmware.
    fn place_attached(&mut self, limits: &Limits) -> Result<(), ProfileError> {
        let sizes = self.sizes(limits);
        let mut all = [0; 11];
        let [common @ .., av] = &mut all;
        *common = sizes;
        *av = size(self.avs, AV_ENTRY);
        let (places, end) = stack(limits.ddr_start, all);
        let needed = end.saturating_sub(limits.ddr_start);
        let available = limits.firmware_start.saturating_sub(limits.ddr_start);
        if needed > available {
            return Err(ProfileError::DdrTooSmall { needed, available });
        }
        let [common @ .., av] = places;
        self.take_places(common);
        self.tables.av = av;
        Ok(())
    }

    /// Lays the tables out from address 0 of ICM, each in pages of its own.
    fn place_icm(&mut self, limits: &Limits) -> Result<(), ProfileError> {
        let sizes = self.sizes(limits);
        let mut all = [0; 13];
        let [common @ .., eec, eeec, uarc] = &mut all;
        *common = sizes;
        (*eec, *eeec) = (PAGE, PAGE);
        *uarc = size(limits.uar_pages, PAGE << self.log_uarc_pages);
        let (places, needed) = stack(0, all.map(|bytes| bytes.max(PAGE)));
        let available = limits.max_icm;
        if needed > available {
            return Err(ProfileError::IcmTooSmall { needed, available });
        }
        let [common @ .., eec, eeec, uarc] = places;
        self.take_places(common);
        self.tables.eec = [eec, eeec];
        self.tables.uarc = uarc;
        self.icm = needed;
        Ok(())
    }

    /// M: ICM address of the context of UAR page `page`.
    pub const fn uarc_of(&self, page: u32) -> u64 {
        let context = PAGE << self.log_uarc_pages;
        self.tables
            .uarc
            .wrapping_add((page as u64).wrapping_mul(context))
    }

    /// Address of the responder resources of QP `qpn`. infinihost 6.5.
    pub const fn rdb_of(&self, qpn: u32) -> u64 {
        let index = self.qp.entry(qpn);
        let entry = RDB_ENTRY << self.log_rdb_per_qp;
        self.tables
            .rdb
            .wrapping_add((index as u64).wrapping_mul(entry))
    }
}

impl MptPlan {
    fn new(
        first: u32,
        [eqs, pds]: [u32; 2],
        [cqs, qps, srqs]: [u32; 3],
        regions: [u32; 3],
    ) -> Self {
        let [mrs, mws, fmrs] = regions;
        let vectors = first.saturating_add(eqs);
        let whole = vectors.saturating_add(pds);
        let cq_rings = whole.saturating_add(pds);
        let qp_rings = cq_rings.saturating_add(cqs.saturating_mul(2));
        let srq_rings = qp_rings.saturating_add(qps);
        let first_mr = srq_rings.saturating_add(srqs);
        let first_mw = first_mr.saturating_add(mrs);
        let first_fmr = first_mw.saturating_add(mws);
        let end = first_fmr.saturating_add(fmrs);
        Self {
            first,
            vectors,
            whole,
            cqs: cq_rings,
            qps: qp_rings,
            srqs: srq_rings,
            mrs: first_mr,
            mws: first_mw,
            fmrs: first_fmr,
            end,
            log_size: crate::extents::order_of(end),
        }
    }

    /// Entries that are ours.
    pub const fn count(&self) -> u32 {
        self.end.saturating_sub(self.first)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    fn plan(profile: &Profile) -> Result<Plan, ProfileError> {
        Plan::new(&Chip::default(), profile, &Limits::EXAMPLE)
    }

    fn extents(plan: &Plan) -> Vec<(u64, u64)> {
        let tables = &plan.tables;
        let entries = &Limits::EXAMPLE.entries;
        let qps = 1 << plan.qp.log_size;
        let mut all = std::vec![
            (tables.qpc, qps * entries.qpc),
            (tables.eqpc, qps * entries.eqpc),
            (tables.srqc, entries.srqc << plan.srq.log_size),
            (tables.cqc, entries.cqc << plan.cq.log_size),
            (tables.eqc, entries.eqc << plan.eq.log_size),
            (tables.rdb, qps * 32 * 4),
            (tables.mcg, 256 << plan.log_mcg),
            (tables.mpt, 64 << plan.mpt.log_size),
            (tables.mtt, 64 * u64::from(plan.segments)),
            (tables.uar_scratch, 2048 * entries.uar_scratch),
            (tables.av, u64::from(plan.avs) * 32),
        ];
        all.sort_unstable();
        all
    }

    #[test]
    fn tables_are_aligned_to_their_size_and_lie_apart_below_the_firmware() {
        let without = Profile {
            srqs: 0,
            ..Profile::SMALL
        };
        for profile in [Profile::SERVER, Profile::SMALL, without] {
            let plan = plan(&profile).unwrap();
            let extents = extents(&plan);
            for (start, size) in &extents {
                assert_eq!((start - Limits::EXAMPLE.ddr_start) % size, 0);
            }
            for pair in extents.windows(2) {
                assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{pair:x?}");
            }
            let (last, size) = extents[extents.len() - 1];
            assert!(last + size <= Limits::EXAMPLE.firmware_start);
        }
    }

    #[test]
    fn the_special_qps_come_first_and_no_number_is_a_reserved_one() {
        let plan = plan(&Profile::SMALL).unwrap();
        assert_eq!((plan.special_qps, plan.qp.first), (16, 20));
        assert_eq!((plan.eq.first, plan.uar), (1, 2));
        assert!(plan.mpt.first == 16 && plan.first_segment == 16);
    }

    #[test]
    fn a_number_finds_its_object_whatever_its_tag() {
        let numbers = Numbers::new(20, 100);
        assert_eq!(numbers.log_size, 7);
        for generation in [0, 1, 77, u32::MAX] {
            let number = numbers.number(9, generation);
            assert!(number <= 0xff_ffff);
            assert_eq!(numbers.index(number), 9);
        }
        assert_ne!(numbers.number(9, 0), numbers.number(9, 1));
        assert!(
            numbers.index(3) >= numbers.count,
            "a reserved number is nobody's"
        );
    }

    #[test]
    fn what_the_hca_does_not_have_is_refused_by_name() {
        let many = Profile {
            qps: 1 << 25,
            ..Profile::SMALL
        };
        assert!(matches!(
            plan(&many),
            Err(ProfileError::TooMany { entry: "qps", .. })
        ));
        let none = Profile {
            cqs: 0,
            ..Profile::SMALL
        };
        assert_eq!(plan(&none), Err(ProfileError::Zero { entry: "cqs" }));
        let large = Profile {
            mtt_pages: 1 << 26,
            ..Profile::SMALL
        };
        assert!(matches!(
            plan(&large),
            Err(ProfileError::DdrTooSmall { .. })
        ));
    }
}
