//! A fast region that one context maps and another unmaps. `fmr`.

extern crate std;
use super::hcas::{TINY, explore_hca};
use crate::fake::Machine;
use crate::plan::MPT_ENTRY;
use core_ib::platform::DmaAddr;
use core_ib::verbs::{Access, Device, FmrInit, VerbsError};
use hca_abi::infinihost::mpt::MptStatus;
use loom::thread;
use std::collections::BTreeSet;
use std::vec::Vec;

const INIT: FmrInit = FmrInit {
    max_pages: 1,
    max_maps: 3,
    page_shift: 12,
    access: Access::LOCAL_WRITE,
};

#[test]
fn loom_no_mapping_outlives_an_unmap_unknown_to_the_hca_and_no_key_comes_twice() {
    explore_hca(
        "mapping against unmapping",
        || Machine::new().on_a_bus(),
        &TINY,
        Some(2),
        |rig| {
            let core = rig.hca.core_for_tests();
            let fmrs = [0, 1].map(|_| rig.hca.alloc_fmr(rig.pd, &INIT).unwrap());
            let entry = |index: u32| {
                let index = u64::from(core.plan.mpt.fmrs + index);
                core.plan.tables.mpt + index * MPT_ENTRY
            };
            let software = |dword: u64| dword >> 60 == u64::from(MptStatus::SOFTWARE.0);
            // The first is mapped, the other not yet.
            let first = core.map_fmr(fmrs[0], &[DmaAddr::new(0x1000)], 0).unwrap();
            rig.machine.firmware().watched = [0, 1].map(entry);
            loom::explore();
            let mapper = {
                let rig = rig.clone();
                thread::spawn(move || {
                    let maps = fmrs.map(|fmr| {
                        let core = rig.hca.core_for_tests();
                        core.map_fmr(fmr, &[DmaAddr::new(0x2000)], 0)
                    });
                    for map in &maps {
                        let refused = VerbsError::InvalidState { object: "FMR" };
                        assert!(map.as_ref().is_ok_and(|_| true) || *map == Err(refused));
                    }
                    maps.map(Result::ok)
                })
            };
            rig.hca.unmap_fmrs(&fmrs).unwrap();
            let maps = mapper.join().unwrap();
            loom::stop_exploring();
            let mut keys: Vec<_> = maps.iter().flatten().map(|(lkey, _)| lkey.0).collect();
            keys.push(first.0.0);
            assert_eq!(keys.iter().collect::<BTreeSet<_>>().len(), keys.len());
            let synced = core::mem::take(&mut rig.machine.firmware().synced);
            assert_eq!(synced.len(), 1, "one command for the batch");
            assert!(software(synced[0][0]), "the HCA may learn of it anew");
            for (index, fmr) in (0..).zip(fmrs) {
                let valid = !software(rig.machine.firmware().attached(entry(index)));
                let mapped = maps[index as usize].is_some();
                // What is valid was mapped behind the unmap; and that is known, so that it is not ended as it is.
                match rig.hca.dealloc_fmr(fmr) {
                    Ok(()) => assert!(
                        !(valid && mapped),
                        "region {index} is valid, and nobody knows"
                    ),
                    Err(error) => {
                        assert!(matches!(error, VerbsError::Busy { .. }) && valid && mapped);
                        rig.hca.unmap_fmrs(&[fmr]).unwrap();
                        rig.hca.dealloc_fmr(fmr).unwrap();
                    }
                }
            }
        },
    );
}
