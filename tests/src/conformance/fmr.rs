//! Fast memory regions of the old kind, as datagrams show them: verbs 7.1, 7.10.

use super::memory::Probe;
use super::tools::{is_busy, is_invalid_attr, is_invalid_handle, is_unsupported};
use super::{Features, Rig, Side};
use core_ib::LKey;
use core_ib::platform::{DmaAddr, DmaBuf};
use core_ib::verbs::{Access, Device, FmrHandle, FmrInit, Sge, VerbsError, WcStatus};
use std::sync::Mutex;

const INIT: FmrInit = FmrInit {
    max_pages: 4,
    max_maps: 3,
    page_shift: 12,
    access: Access::LOCAL_WRITE,
};

/// A probe, and four pages of A that say which they are; none is ever given back.
struct Desk<'r, R: Rig> {
    probe: Probe<'r, R>,
    memory: DmaBuf<'r, R::Machine>,
}

impl<'r, R: Rig> Desk<'r, R> {
    /// `None`, proven, if there are no fast regions.
    fn new(rig: &'r R) -> Option<Self> {
        let probe = Probe::new(rig);
        if !rig.declared().has(Features::FMR) {
            is_unsupported(probe.a.hca().alloc_fmr(probe.a.pd, &INIT));
            return None;
        }
        let memory = DmaBuf::new(rig.machine(Side::A), 4 << 12, 4096).unwrap();
        for page in 0..4_usize {
            memory.fill(page << 12, 4096, page as u8 + 1).unwrap();
        }
        Some(Self { probe, memory })
    }

    fn alloc(&self) -> FmrHandle {
        let a = &self.probe.a;
        a.hca().alloc_fmr(a.pd, &INIT).unwrap()
    }

    fn page(&self, number: u64) -> DmaAddr {
        self.memory.addr().plus(number << 12)
    }

    fn map(&self, fmr: FmrHandle, pages: &[u64], iova: u64) -> Result<LKey, VerbsError> {
        let pages: Vec<DmaAddr> = pages.iter().map(|page| self.page(*page)).collect();
        // SAFETY: the memory is never given back.
        let keys = unsafe { self.probe.a.hca().map_fmr(fmr, &pages, iova) };
        keys.map(|(lkey, _)| lkey)
    }

    /// What the HCA finds there, or how it fails.
    fn gather(&self, lkey: LKey, addr: u64, length: u32) -> Result<Vec<u8>, WcStatus> {
        let sge = Sge { addr, length, lkey };
        match self.probe.gather(&[sge]) {
            WcStatus::Success => Ok(self.probe.arrived(length as usize)),
            status => Err(status),
        }
    }
}

const REFUSED: Result<Vec<u8>, WcStatus> = Err(WcStatus::LocalProtection);

/// verbs 7.10: pages in any order, one behind the other, and nothing before or behind.
pub fn a_mapped_region_has_its_pages_in_order_and_ends_where_they_end<R: Rig>(rig: &R) {
    let Some(desk) = Desk::new(rig) else { return };
    let fmr = desk.alloc();
    let iova = 0x7_0000_0000;
    let key = desk.map(fmr, &[2, 0, 3], iova).unwrap();
    for (page, byte) in [(0, 3), (1, 1), (2, 4)] {
        let found = desk.gather(key, iova + (page << 12), 4);
        assert_eq!(found, Ok(vec![byte; 4]));
    }
    assert_eq!(desk.gather(key, iova + 4094, 4), Ok(vec![3, 3, 1, 1]));
    assert_eq!(desk.gather(key, iova - 1, 4), REFUSED);
    assert_eq!(desk.gather(key, iova + (3 << 12) - 3, 4), REFUSED);
}

/// verbs 7.10: each mapping has a key of its own; so many, then an unmap is due; the next keys are new again.
pub fn a_region_is_mapped_so_often_and_then_unmapped<R: Rig>(rig: &R) {
    let Some(desk) = Desk::new(rig) else { return };
    let (hca, fmr) = (desk.probe.a.hca(), desk.alloc());
    let mut keys = Vec::new();
    for _ in 0..3 {
        for page in 0..3 {
            let key = desk.map(fmr, &[page], 0x1000).unwrap();
            assert!(!keys.contains(&key), "{key:?} came before");
            keys.push(key);
            let expected = Ok(vec![page as u8 + 1; 8]);
            assert_eq!(desk.gather(key, 0x1000, 8), expected);
        }
        let more = desk.map(fmr, &[0], 0x1000);
        let state = matches!(more, Err(VerbsError::InvalidState { .. }));
        assert!(state, "{more:?}");
        assert_eq!(hca.unmap_fmrs(&[fmr]), Ok(()));
        let last = keys.last().copied().unwrap();
        assert_eq!(desk.gather(last, 0x1000, 8), REFUSED);
    }
}

/// verbs 7.10: a batch.
pub fn a_batch_that_is_unmapped_leaves_no_key_behind_and_others_alone<R: Rig>(rig: &R) {
    let Some(desk) = Desk::new(rig) else { return };
    let hca = desk.probe.a.hca();
    let all = [0, 1, 2].map(|page| {
        let fmr = desk.alloc();
        (fmr, page, desk.map(fmr, &[page], 0x4000).unwrap())
    });
    let [(one, _, _), (two, _, _), (kept, page, key)] = all;
    is_busy(hca.dealloc_fmr(one));
    assert_eq!(hca.unmap_fmrs(&[one, two]), Ok(()));
    for (_, _, gone) in &all[..2] {
        assert_eq!(desk.gather(*gone, 0x4000, 4), REFUSED);
    }
    assert_eq!(desk.gather(key, 0x4000, 4), Ok(vec![page as u8 + 1; 4]));
    assert_eq!(hca.dealloc_fmr(one), Ok(()));
    is_invalid_handle(hca.dealloc_fmr(one));
    is_invalid_handle(hca.unmap_fmrs(&[kept, one]));
    assert_eq!(desk.gather(key, 0x4000, 4), Ok(vec![page as u8 + 1; 4]));
    assert_eq!(hca.unmap_fmrs(&[]), Ok(()), "none at all");
    assert_eq!(hca.unmap_fmrs(&[two]), Ok(()), "twice");
}

/// verbs 7.10: what cannot be mapped leaves the mapping of before.
pub fn pages_that_do_not_fit_are_refused_and_the_old_mapping_stays<R: Rig>(rig: &R) {
    let Some(desk) = Desk::new(rig) else { return };
    let (hca, fmr) = (desk.probe.a.hca(), desk.alloc());
    let key = desk.map(fmr, &[1], 0x4000).unwrap();
    is_invalid_attr(desk.map(fmr, &[], 0x4000));
    is_invalid_attr(desk.map(fmr, &[0, 1, 2, 3, 0], 0x4000));
    is_invalid_attr(desk.map(fmr, &[0], 0x4008));
    is_invalid_attr(desk.map(fmr, &[0, 1], 0_u64.wrapping_sub(4096)));
    let crooked = [desk.page(0).plus(8)];
    // SAFETY: the memory is never given back.
    is_invalid_attr(unsafe { hca.map_fmr(fmr, &crooked, 0x4000) });
    assert_eq!(desk.gather(key, 0x4000, 4), Ok(vec![2; 4]));
    for init in [
        FmrInit {
            max_pages: 0,
            ..INIT
        },
        FmrInit {
            max_maps: 0,
            ..INIT
        },
        FmrInit {
            max_maps: u32::MAX,
            ..INIT
        },
        FmrInit {
            page_shift: 4,
            ..INIT
        },
        FmrInit {
            access: Access::REMOTE_WRITE,
            ..INIT
        },
    ] {
        is_invalid_attr(hca.alloc_fmr(desk.probe.a.pd, &init));
    }
}

/// verbs 1.2, 7.10: a fast region is in its PD.
pub fn a_pd_with_a_fast_region_in_it_is_busy_until_that_is_gone<R: Rig>(rig: &R) {
    let hca = rig.hca(Side::A);
    let pd = hca.alloc_pd().unwrap();
    let made = hca.alloc_fmr(pd, &INIT);
    if !rig.declared().has(Features::FMR) {
        is_unsupported(made);
    } else {
        is_busy(hca.dealloc_pd(pd));
        assert_eq!(hca.dealloc_fmr(made.unwrap()), Ok(()));
    }
    assert_eq!(hca.dealloc_pd(pd), Ok(()));
}

/// verbs 1.5, 7.10: contexts that map, and one that unmaps meanwhile: no key comes twice, and none outlives the last
/// unmap.
pub fn contexts_that_map_at_once_share_no_key_and_an_unmap_leaves_none<R: Rig>(rig: &R) {
    let Some(desk) = Desk::new(rig) else { return };
    let a = &desk.probe.a;
    let often = FmrInit {
        max_maps: 250, // no chip has fewer keys: infinihost 4.11
        ..INIT
    };
    let hca = a.hca();
    let fmrs = [(); 2].map(|()| hca.alloc_fmr(a.pd, &often).unwrap());
    let keys = Mutex::new(Vec::new());
    let map = |round: u64| {
        let fmr = fmrs[(round & 1) as usize];
        match desk.map(fmr, &[round & 3], 0x4000) {
            Ok(key) => keys.lock().unwrap().push(key),
            // Its unmap is under way.
            Err(VerbsError::InvalidState { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    };
    rig.together(&|| (0..60).for_each(map), &|| {
        for round in 0..60 {
            map(round);
            if round % 16 == 15 {
                assert_eq!(hca.unmap_fmrs(&fmrs), Ok(()));
            }
        }
    });
    assert_eq!(hca.unmap_fmrs(&fmrs), Ok(()));
    let mut keys = keys.into_inner().unwrap();
    assert!(keys.len() > 60, "{}", keys.len());
    for key in &keys[keys.len() - 4..] {
        assert_eq!(desk.gather(*key, 0x4000, 8), REFUSED);
    }
    keys.sort_unstable_by_key(|key| key.0);
    let twice = keys.windows(2).find(|pair| pair[0] == pair[1]);
    assert_eq!(twice, None);
}
