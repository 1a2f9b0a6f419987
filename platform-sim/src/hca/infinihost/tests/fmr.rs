//! Fast memory regions: entries that software rewrites in the attached memory, through BAR 4 and without a command.
//! The stores are those of infinihost 4.11, by offset and not through the layouts.

use super::super::remote::{Remote, RemoteOp};
use super::memfree::{self, behind};
use super::*;
use crate::hca::infinihost::Variant;
use crate::machine::PciFunction;
use hca_abi::infinihost::cmd::{CmdStatus, Opcode};
use hca_abi::infinihost::mpt::Mpt;

const INDEX: u32 = 0x20;
const PAGES: [u64; 2] = [0x31_0000, 0x34_0000];
/// Entries of the protection table of [`tables`].
const MPTS: u32 = 1 << 10;

/// An empty region, with room for translations.
fn fast_region() -> Mpt {
    let mut entry = all_memory();
    entry
        .set_physical(false)
        .set_key(INDEX)
        .set_length(0)
        .set_remote_read(true)
        .set_remote_write(true)
        .set_mtt_address(tables().mtt_base() + 16 * 64);
    entry
}

struct Fmr {
    /// Of its protection entry, on the bus.
    mpt: u64,
    /// Of its first translation.
    mtt: u64,
    key: u32,
}

impl Fmr {
    /// What alloc does: an empty region by SW2HW_MPT.
    fn alloc(rig: &mut Rig) -> Self {
        let entry = fast_region();
        assert_eq!(rig.give(Opcode::SW2HW_MPT, 0, INDEX, &entry), CmdStatus::OK);
        let mpt = tables().mpt_base() + u64::from(INDEX) * 64;
        Self {
            mpt,
            mtt: entry.mtt_address(),
            key: INDEX,
        }
    }

    fn store64(rig: &mut Rig, at: u64, value: u64) {
        let bytes = value.to_be_bytes();
        rig.hca.mmio_write(&mut rig.bus, 4, at - BAR4, &bytes);
    }

    fn set_status(&self, rig: &mut Rig, status: u8) {
        rig.hca
            .mmio_write(&mut rig.bus, 4, self.mpt - BAR4, &[status]);
    }

    /// Steps map 1 to map 3.
    fn prepare(&mut self, rig: &mut Rig, pages: &[u64], iova: u64) {
        self.set_status(rig, 0xf0);
        for (at, page) in (self.mtt..).step_by(8).zip(pages) {
            Self::store64(rig, at, page | 1);
        }
        self.key = self.key.wrapping_add(MPTS);
        for at in [0x08, 0x20] {
            rig.write32(4, self.mpt + at - BAR4, self.key);
        }
        Self::store64(rig, self.mpt + 0x10, iova);
        Self::store64(rig, self.mpt + 0x18, pages.len() as u64 * 4096);
    }

    fn map(&mut self, rig: &mut Rig, pages: &[u64], iova: u64) -> u32 {
        self.prepare(rig, pages, iova);
        self.set_status(rig, 0x00);
        self.key
    }
}

fn rig() -> Rig {
    let mut rig = Rig::card(1);
    rig.start(true);
    for (page, text) in PAGES.into_iter().zip([b"one_", b"two_"]) {
        rig.store(page + 8, text);
    }
    rig
}

fn read(rig: &mut Rig, rkey: u32, at: u64) -> Option<[u8; 4]> {
    let who = Remote {
        rkey,
        pd: PD,
        qpn: 0x30,
        read: true,
        write: true,
        atomic: true,
    };
    let mut data = [0; 4];
    let (chip, bus) = (&rig.hca.chip, &mut rig.bus);
    let read = chip.remote_read(bus, &who, at, &mut data);
    read.ok().map(|()| data)
}

#[test]
fn a_map_counts_at_the_next_access_and_makes_the_key_of_before_worthless() {
    let mut rig = rig();
    let mut fmr = Fmr::alloc(&mut rig);
    assert_eq!(read(&mut rig, INDEX, 0), None, "not mapped yet");
    let first = fmr.map(&mut rig, &PAGES, 0x5_0000);
    assert_eq!(first, 0x420);
    assert_eq!(read(&mut rig, first, 0x5_0008), Some(*b"one_"));
    assert_eq!(read(&mut rig, first, 0x5_1008), Some(*b"two_"));
    assert_eq!(read(&mut rig, first, 0x5_1ffd), None, "beyond");
    assert_eq!(read(&mut rig, INDEX, 0x5_0008), None);
    let second = fmr.map(&mut rig, &PAGES[1..], 0x9_0000);
    assert_eq!(read(&mut rig, second, 0x9_0008), Some(*b"two_"));
    assert_eq!(read(&mut rig, second, 0x9_1008), None, "one page now");
    for at in [0x5_0008, 0x9_0008] {
        assert_eq!(read(&mut rig, first, at), None, "{at:#x}");
    }
}

#[test]
fn while_an_entry_is_being_written_no_key_works() {
    let mut rig = rig();
    let mut fmr = Fmr::alloc(&mut rig);
    let first = fmr.map(&mut rig, &PAGES, 0x5_0000);
    fmr.prepare(&mut rig, &PAGES, 0x5_0000);
    for key in [first, fmr.key] {
        assert_eq!(read(&mut rig, key, 0x5_0008), None);
    }
    fmr.set_status(&mut rig, 0);
    assert_eq!(read(&mut rig, fmr.key, 0x5_0008), Some(*b"one_"));
}

#[test]
fn what_is_unmapped_is_gone_and_a_key_comes_again_only_after_all_generations() {
    let mut rig = rig();
    let mut fmr = Fmr::alloc(&mut rig);
    let key = fmr.map(&mut rig, &PAGES, 0x5_0000);
    fmr.set_status(&mut rig, 0xf0);
    assert_eq!(rig.plain(Opcode::SYNC_TPT, 0), CmdStatus::OK);
    assert_eq!(read(&mut rig, key, 0x5_0008), None);
    fmr.key = INDEX; // as some kernels do after the batch
    assert_eq!(
        fmr.map(&mut rig, &PAGES, 0x7_0000),
        key,
        "and so it is good again"
    );
    assert_eq!(read(&mut rig, key, 0x7_0008), Some(*b"one_"));
    fmr.key = key.wrapping_sub(MPTS << 1);
    let last = fmr.map(&mut rig, &PAGES, 0x5_0000);
    assert_eq!(last, INDEX, "2^22 maps later");
}

#[test]
fn an_entry_that_was_given_back_is_not_revived_by_stores() {
    let mut rig = rig();
    let mut fmr = Fmr::alloc(&mut rig);
    fmr.map(&mut rig, &PAGES, 0x5_0000);
    assert_eq!(rig.plain(Opcode::HW2SW_MPT, INDEX), CmdStatus::OK);
    let key = fmr.map(&mut rig, &PAGES, 0x5_0000);
    assert_eq!(read(&mut rig, key, 0x5_0008), None);
}

#[test]
fn an_entry_that_was_unmapped_can_be_handed_over_anew() {
    // Linux frees a fast region without HW2SW_MPT.
    let mut rig = rig();
    let mut fmr = Fmr::alloc(&mut rig);
    fmr.map(&mut rig, &PAGES, 0x5_0000);
    let again = |rig: &mut Rig| rig.give(Opcode::SW2HW_MPT, 0, INDEX, &fast_region());
    assert_eq!(again(&mut rig), CmdStatus::BAD_RES_STATE);
    fmr.set_status(&mut rig, 0xf0);
    assert_eq!(again(&mut rig), CmdStatus::OK);
    assert_eq!(again(&mut rig), CmdStatus::BAD_RES_STATE);
}

#[test]
fn an_fmr_that_is_remapped_under_traffic_is_refused_between_two_packets() {
    let mut rig = rig();
    let mut fmr = Fmr::alloc(&mut rig);
    let key = fmr.map(&mut rig, &PAGES, 0x5_0000);
    let who = Remote {
        rkey: key,
        pd: PD,
        qpn: 0x30,
        read: true,
        write: true,
        atomic: true,
    };
    let chip = &mut rig.hca.chip;
    let whole = chip.remote_check(&mut rig.bus, &who, RemoteOp::Write, 0x5_0000, 0x2000);
    assert_eq!(whole, Ok(()));
    let write = |rig: &mut Rig, at, data: &[u8]| {
        let chip = &mut rig.hca.chip;
        chip.remote_write(&mut rig.bus, &who, at, data).is_ok()
    };
    assert!(write(&mut rig, 0x5_0008, b"new_"));
    fmr.map(&mut rig, &PAGES, 0x5_0000);
    assert!(!write(&mut rig, 0x5_1008, b"new_"));
    assert_eq!(rig.load::<[u8; 4]>(PAGES[0] + 8), *b"new_");
    assert_eq!(rig.load::<[u8; 4]>(PAGES[1] + 8), *b"two_");
    let entry: Mpt = rig.ask(Opcode::QUERY_MPT, INDEX);
    assert_eq!((entry.key(), entry.lkey()), (fmr.key, fmr.key));
}

/// M-mode: the tables lie in host pages, and keys are the index form rotated. On Sinai the generation counts from bit 24.
#[test]
fn in_m_mode_the_stores_go_to_lent_pages_and_the_key_is_rotated() {
    for (variant, increment) in [
        (Variant::Arbel, MPTS),
        (Variant::Sinai, 0x0100_0000),
        (Variant::SinaiOld, 0x0100_0000),
    ] {
        let mut rig = Rig::memfree(variant);
        rig.m_start(true);
        for (page, text) in PAGES.into_iter().zip([b"one_", b"two_"]) {
            rig.store(page + 8, text);
        }
        let offset = 16 * 8; // behind the reserved translations
        let mut entry = fast_region();
        entry.set_mtt_address(memfree::MTTS + offset);
        assert_eq!(rig.give(Opcode::SW2HW_MPT, 0, INDEX, &entry), CmdStatus::OK);
        let mpt = behind(memfree::MPTS) + u64::from(INDEX) * 64;
        let mut index_form = INDEX;
        let mut keys = Vec::new();
        for (pages, text) in [(PAGES, b"one_"), ([PAGES[1], PAGES[0]], b"two_")] {
            rig.store(mpt, &0xf0_u8);
            for (at, page) in (behind(memfree::MTTS) + offset..).step_by(8).zip(pages) {
                rig.store(at, &(page | 1).to_be_bytes());
            }
            index_form += increment;
            for at in [0x08, 0x20] {
                rig.store(mpt + at, &index_form.to_be_bytes());
            }
            rig.store(mpt + 0x10, &0x5_0000_u64.to_be_bytes());
            rig.store(mpt + 0x18, &0x2000_u64.to_be_bytes());
            let key = index_form.rotate_left(8);
            assert_eq!(read(&mut rig, key, 0x5_0008), None, "{variant:?}");
            rig.store(mpt, &0x00_u8);
            assert_eq!(read(&mut rig, key, 0x5_0008), Some(*text), "{variant:?}");
            assert_eq!(read(&mut rig, index_form, 0x5_0008), None, "not rotated");
            for old in keys.iter().copied() {
                assert_eq!(read(&mut rig, old, 0x5_0008), None, "{variant:?}");
            }
            keys.push(key);
        }
        rig.store(mpt, &0xf0_u8);
        assert_eq!(rig.plain(Opcode::SYNC_TPT, 0), CmdStatus::OK);
        assert_eq!(read(&mut rig, keys[1], 0x5_0008), None);
    }
}
