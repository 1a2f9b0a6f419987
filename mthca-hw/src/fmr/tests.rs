//! Fast regions on the fake: the stores of infinihost 4.11 by address, the keys, and the commands, or their absence.

extern crate std;

use crate::fake::{Machine, Reply};
use crate::{Hca, Profile};
use core_ib::platform::{DmaAddr, NoWake};
use core_ib::verbs::{Access, AsyncEvent, Device, FmrHandle, FmrInit, PdHandle, VerbsError};
use core_ib::{LKey, RKey};
use hca_abi::infinihost::cmd::{CmdStatus, Opcode};
use hca_abi::infinihost::init_hca::InitHca;
use hca_abi::infinihost::mpt::Mpt;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::vec::Vec;
use zerocopy::FromBytes;

const PROFILE: Profile = Profile {
    fmrs: 2,
    ..Profile::SMALL
};
const INIT: FmrInit = FmrInit {
    max_pages: 3,
    max_maps: 2,
    page_shift: 12,
    access: Access::LOCAL_WRITE.union(Access::REMOTE_WRITE),
};
const PAGES: [DmaAddr; 2] = [DmaAddr::new(0x7000), DmaAddr::new(0x1_0000_3000)];
/// Entries of the MPT.
const MPTS: u32 = 128;

struct Rig<'m> {
    machine: &'m Machine,
    hca: Hca<'m, Machine>,
    pd: PdHandle,
}

impl<'m> Rig<'m> {
    fn new(machine: &'m Machine) -> Self {
        let hca = Hca::open(machine, &NoWake, &PROFILE).unwrap();
        let pd = hca.alloc_pd().unwrap();
        Self { machine, hca, pd }
    }

    fn alloc(&self) -> FmrHandle {
        self.hca.alloc_fmr(self.pd, &INIT).unwrap()
    }

    fn map(&self, fmr: FmrHandle, pages: &[DmaAddr], iova: u64) -> Result<u32, VerbsError> {
        // SAFETY: the fake HCA reaches no memory by key.
        let keys = unsafe { self.hca.map_fmr(fmr, pages, iova) };
        keys.map(|(lkey, _)| lkey.0)
    }

    fn input<T: FromBytes>(&self, opcode: Opcode) -> T {
        let firmware = self.machine.firmware();
        let mut seen = firmware.seen.iter().rev();
        let last = seen.find(|seen| seen.opcode == opcode).unwrap();
        T::read_from_bytes(&last.input).unwrap()
    }

    /// How often this command was seen.
    fn count(&self, opcode: Opcode) -> usize {
        let firmware = self.machine.firmware();
        let seen = firmware.seen.iter();
        seen.filter(|seen| seen.opcode == opcode).count()
    }

    fn commands(&self) -> usize {
        self.machine.firmware().seen.len()
    }

    /// The entry of `key` as it lies in attached memory, in 64-bit words.
    fn entry(&self, key: u32) -> Vec<u64> {
        let base = self.input::<InitHca>(Opcode::INIT_HCA).mpt_base();
        let at = base + u64::from(key % MPTS) * 64;
        let firmware = self.machine.firmware();
        (0..8)
            .map(|word| firmware.attached(at + word * 8))
            .collect()
    }
}

#[test]
fn a_region_is_handed_over_empty_and_mapped_by_the_stores_of_the_reference() {
    let machine = Machine::new();
    let rig = Rig::new(&machine);
    let fmr = rig.alloc();
    let given: Mpt = rig.input(Opcode::SW2HW_MPT);
    assert_eq!((given.start(), given.length()), (0, 0));
    let commands = rig.commands();
    let key = rig.map(fmr, &PAGES, 0x9_8000).unwrap();
    assert_eq!(rig.commands(), commands, "no command");
    assert_eq!(key, given.key() + MPTS, "another generation");
    let firmware = machine.firmware();
    let mtts = [0, 8].map(|at| firmware.attached(given.mtt_address() + at));
    drop(firmware);
    assert_eq!(mtts, [0x7001, 0x1_0000_3001], "page address and present");
    let entry = rig.entry(key);
    // 0x00: the HCA's, MIO, remote write, local write, local read, region.
    assert_eq!(entry[0] >> 32, 0x0002_2d00);
    assert_eq!(entry[1] >> 32, u64::from(key), "0x08");
    assert_eq!(entry[2..4], [0x9_8000, 0x2000], "0x10, 0x18");
    assert_eq!(entry[4] >> 32, u64::from(key), "0x20");
}

#[test]
fn each_mapping_has_another_key_until_so_many_that_an_unmap_is_due() {
    let machine = Machine::new();
    let rig = Rig::new(&machine);
    let fmr = rig.alloc();
    let mut keys = BTreeSet::new();
    for _ in 0..3 {
        for _ in 0..2 {
            assert!(keys.insert(rig.map(fmr, &PAGES, 0).unwrap()));
        }
        let due = VerbsError::InvalidState { object: "FMR" };
        assert_eq!(rig.map(fmr, &PAGES, 0), Err(due));
        assert_eq!(rig.hca.unmap_fmrs(&[fmr]), Ok(()));
        let last = *keys.last().unwrap();
        assert_eq!(rig.entry(last)[0] >> 60, 0xf, "software's");
    }
    assert!(
        keys.iter()
            .all(|key| key % MPTS == keys.first().unwrap() % MPTS)
    );
}

#[test]
fn a_batch_is_unmapped_with_one_command_and_nothing_mapped_with_none() {
    let machine = Machine::new();
    let rig = Rig::new(&machine);
    let both = [rig.alloc(), rig.alloc()];
    assert_eq!(rig.hca.unmap_fmrs(&both), Ok(()));
    assert_eq!(rig.count(Opcode::SYNC_TPT), 0);
    for fmr in both {
        rig.map(fmr, &PAGES, 0).unwrap();
    }
    assert_eq!(rig.hca.unmap_fmrs(&both), Ok(()));
    assert_eq!(rig.count(Opcode::SYNC_TPT), 1);
}

#[test]
fn a_batch_with_a_stale_handle_is_left_alone() {
    let machine = Machine::new();
    let rig = Rig::new(&machine);
    let (one, gone) = (rig.alloc(), rig.alloc());
    rig.hca.dealloc_fmr(gone).unwrap();
    let key = rig.map(one, &PAGES, 0).unwrap();
    let stale = VerbsError::InvalidHandle { object: "FMR" };
    assert_eq!(rig.hca.unmap_fmrs(&[one, gone]), Err(stale));
    assert_eq!(rig.entry(key)[0] >> 60, 0, "still the HCA's");
    assert_eq!(rig.map(gone, &PAGES, 0), Err(stale));
    assert_eq!(rig.hca.dealloc_fmr(gone), Err(stale));
}

#[test]
fn a_region_that_is_mapped_is_busy_and_one_that_goes_is_empty_and_valid_before() {
    let machine = Machine::new();
    let rig = Rig::new(&machine);
    let fmr = rig.alloc();
    let key = rig.map(fmr, &PAGES, 0x9_8000).unwrap();
    let busy = VerbsError::Busy {
        object: "FMR",
        holders: 1,
    };
    assert_eq!(rig.hca.dealloc_fmr(fmr), Err(busy));
    rig.hca.unmap_fmrs(&[fmr]).unwrap();
    assert_eq!(rig.hca.dealloc_fmr(fmr), Ok(()));
    let entry = rig.entry(key);
    assert_eq!(entry[0] >> 60, 0, "what HW2SW_MPT took back was valid");
    assert_eq!(entry[2..4], [0, 0]);
    let again = rig.alloc();
    let other = rig.map(again, &PAGES, 0).unwrap();
    assert!(other % MPTS != key % MPTS || other > key, "no old key");
    rig.hca.unmap_fmrs(&[again]).unwrap();
    rig.hca.dealloc_fmr(again).unwrap();
    assert_eq!(rig.hca.dealloc_pd(rig.pd), Ok(()));
}

#[test]
fn a_region_whose_unmap_was_refused_is_not_mapped_until_it_succeeds() {
    let machine = Machine::new();
    let rig = Rig::new(&machine);
    let fmr = rig.alloc();
    rig.map(fmr, &PAGES, 0).unwrap();
    machine.reply(Opcode::SYNC_TPT, [Reply::Status(CmdStatus::RESOURCE_BUSY)]);
    assert!(matches!(
        rig.hca.unmap_fmrs(&[fmr]),
        Err(VerbsError::CommandFailed { .. })
    ));
    let not_now = VerbsError::InvalidState { object: "FMR" };
    assert_eq!(rig.map(fmr, &PAGES, 0), Err(not_now));
    assert_eq!(rig.hca.unmap_fmrs(&[fmr]), Ok(()));
    assert!(rig.map(fmr, &PAGES, 0).is_ok());
}

#[test]
fn an_hca_that_dies_over_an_unmap_is_reset_and_the_memory_is_free() {
    let machine = Machine::new();
    let rig = Rig::new(&machine);
    let fmr = rig.alloc();
    rig.map(fmr, &PAGES, 0).unwrap();
    let resets = machine.firmware().resets;
    machine.reply(Opcode::SYNC_TPT, [Reply::Silence]);
    assert_eq!(rig.hca.unmap_fmrs(&[fmr]), Ok(()));
    assert_eq!(machine.firmware().resets, resets + 1);
    assert_eq!(rig.hca.next_async_event(), Some(AsyncEvent::DeviceFatal));
    assert_eq!(rig.map(fmr, &PAGES, 0), Err(VerbsError::DeviceFailed));
    assert_eq!(rig.hca.dealloc_fmr(fmr), Ok(()));
}

#[test]
fn what_no_region_can_be_made_with_is_refused_by_name() {
    let machine = Machine::new();
    let rig = Rig::new(&machine);
    let field = |init: FmrInit| match rig.hca.alloc_fmr(rig.pd, &init) {
        Err(VerbsError::InvalidAttr { field, .. }) => field,
        Err(VerbsError::Unsupported { feature }) => feature,
        Err(VerbsError::NoResources { entry, .. }) => entry,
        other => panic!("{other:?}"),
    };
    let most = (1 << 25) - 1; // 2^32 keys for 2^7 entries
    for (init, expected) in [
        (
            FmrInit {
                max_pages: 0,
                ..INIT
            },
            "max_pages",
        ),
        (
            FmrInit {
                max_maps: 0,
                ..INIT
            },
            "max_maps",
        ),
        (
            FmrInit {
                max_maps: most + 1,
                ..INIT
            },
            "max_maps",
        ),
        (
            FmrInit {
                page_shift: 11,
                ..INIT
            },
            "page shift",
        ),
        (
            FmrInit {
                max_pages: u32::MAX,
                ..INIT
            },
            "mtt_pages",
        ),
        (
            FmrInit {
                access: Access::REMOTE_WRITE,
                ..INIT
            },
            "access",
        ),
        (
            FmrInit {
                access: Access::ZERO_BASED,
                ..INIT
            },
            "zero-based regions",
        ),
    ] {
        assert_eq!(field(init), expected);
    }
    let widest = FmrInit {
        max_maps: most,
        ..INIT
    };
    assert!(rig.hca.alloc_fmr(rig.pd, &widest).is_ok());
    rig.alloc();
    assert_eq!(field(INIT), "fmrs");
}

#[test]
fn without_remote_rights_there_is_no_rkey() {
    let machine = Machine::new();
    let rig = Rig::new(&machine);
    let local = FmrInit {
        access: Access::LOCAL_WRITE,
        ..INIT
    };
    for (init, remote) in [(INIT, true), (local, false)] {
        let fmr = rig.hca.alloc_fmr(rig.pd, &init).unwrap();
        // SAFETY: the fake HCA reaches no memory by key.
        let (LKey(lkey), RKey(rkey)) = unsafe { rig.hca.map_fmr(fmr, &PAGES, 0) }.unwrap();
        assert_eq!(rkey, if remote { lkey } else { 0 });
    }
}

#[test]
fn a_profile_without_fast_regions_has_none() {
    let machine = Machine::new();
    let hca = crate::tests::open(&machine);
    let pd = hca.alloc_pd().unwrap();
    let refused = hca.alloc_fmr(pd, &INIT);
    assert!(matches!(refused, Err(VerbsError::Unsupported { .. })));
    assert_eq!(hca.query_device().max_fmr, 0);
}

proptest! {
    #[test]
    fn pages_and_addresses_that_make_no_region_leave_it_as_it_was(
        count in 0..5_usize, iova in prop_oneof![(0..4_u64).prop_map(|page| page << 12), Just(!0xfff), any::<u64>()],
        spoilt in prop::option::of((0..5_usize, 1..4096_u64)),
    ) {
        let machine = Machine::new();
        let rig = Rig::new(&machine);
        let fmr = rig.alloc();
        let before = rig.map(fmr, &PAGES, 0).unwrap();
        let entry = rig.entry(before);
        let mut pages: Vec<DmaAddr> = (0..count as u64).map(|page| DmaAddr::new(page << 12)).collect();
        let mut bad = false;
        if let Some((which, by)) = spoilt && let Some(page) = pages.get_mut(which) {
            *page = page.plus(by);
            bad = true;
        }
        let end = u128::from(iova) + (count as u128) * 4096;
        let good = !bad && (1..=3).contains(&count) && iova % 4096 == 0 && end <= 1 << 64;
        let mapped = rig.map(fmr, &pages, iova);
        prop_assert_eq!(mapped.is_ok(), good);
        if !good {
            prop_assert_eq!(rig.entry(before), entry);
        }
    }
}
