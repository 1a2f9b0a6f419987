//! Two contexts that need the same chunk of a table of a mem-free HCA, for which there is no memory yet. `icm`.

extern crate std;
use super::hcas::{TINY, explore_on};
use crate::chip::{Chip, Mode};
use crate::cmd::{Cause, CmdError};
use crate::fake::Machine;
use crate::icm::{Icm, Kind, LendError};
use crate::let_go::Released;
use crate::limits::Limits;
use crate::plan::Plan;
use core::sync::atomic::Ordering;
use hca_abi::infinihost::cmd::{CmdStatus, Opcode};
use loom::sync::atomic::AtomicU32;
use loom::thread;
use std::sync::Arc;
use std::vec::Vec;

const REFUSED: CmdError = CmdError {
    command: "MAP_ICM",
    opcode: Opcode::MAP_ICM.0,
    cause: Cause::Refused(CmdStatus::RESOURCE_BUSY),
    immediate: 0,
};

/// Two that need QP 0, of whose commands the first `refused` are refused: what they were told.
fn both(machine: &'static Machine, refused: u32) -> Vec<bool> {
    let chip = Chip {
        mode: Mode::M,
        ..Chip::default()
    };
    let plan = Plan::new(&chip, &TINY, &Limits::MEM_FREE).unwrap();
    let icm = Arc::new(Icm::new(machine, &plan, &Limits::MEM_FREE).unwrap());
    let before = machine.pieces_out();
    // What the HCA was told, as who did it knows: nothing else makes it visible.
    let asked = Arc::new(AtomicU32::new(0));
    let need = {
        let (icm, asked) = (icm.clone(), asked.clone());
        move || {
            let run = |_: &_| match asked.fetch_add(1, Ordering::Relaxed) {
                number if number < refused => Err(REFUSED),
                _ => Ok(()),
            };
            match icm.back(Kind::Qpc, 0, 1, &run) {
                Ok(()) => {
                    assert_eq!(asked.load(Ordering::Relaxed), refused + 1, "not mapped yet");
                    assert!(icm.entry(Kind::Qpc, 0).is_some());
                    true
                }
                Err(error) => {
                    assert_eq!(error, LendError::Command(REFUSED));
                    false
                }
            }
        }
    };
    loom::explore();
    let other = thread::spawn(need.clone());
    let mut told = std::vec![need()];
    told.push(other.join().unwrap());
    loom::stop_exploring();
    let asked_before = asked.load(Ordering::Relaxed);
    assert!(need(), "what was refused is tried again");
    if told.contains(&true) {
        assert_eq!(asked.load(Ordering::Relaxed), asked_before, "mapped twice");
    }
    assert_eq!(machine.pieces_out(), before + 1, "a chunk has one memory");
    drop(need);
    let icm = Arc::try_unwrap(icm).map_err(drop).unwrap();
    icm.free(&Released::never_told());
    told
}

#[test]
fn loom_two_that_need_a_chunk_map_it_once_and_both_have_it() {
    let name = "two that need a chunk";
    explore_on(name, Machine::sinai, None, |machine| {
        assert_eq!(both(machine, 0), [true, true]);
    });
}

#[test]
fn loom_who_needs_a_chunk_next_maps_it_if_the_one_before_was_refused() {
    let name = "two that need a chunk, the first refused";
    explore_on(name, Machine::sinai, None, |machine| {
        let told = both(machine, 1);
        assert_eq!(told.iter().filter(|told| **told).count(), 1, "{told:?}");
    });
}
