//! The rings on an HCA that is late, is reset under them, or lies.

use super::event::{FrameId, Outcome, Route, Wish};
use super::rings::Rings;
use super::{Control, Done};
use crate::Profile;
use crate::fake::{Fabric, Hca, HcaState, Machine};
use core_ib::platform::Placed;
use core_ib::verbs::{AhAttr, WcFlags, WcOpcode, WcStatus, WorkCompletion};
use core_ib::{Gid, Guid, Lid, PKey, QKey, Qpn};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::vec;
use std::vec::Vec;

const FRAMES: u16 = 4;

fn fabric() -> Fabric {
    let fabric = Fabric::default();
    fabric.with(|state| {
        state.hcas.push(HcaState {
            lid: Lid(1),
            gid: Gid::unicast(Gid::DEFAULT_PREFIX, Guid(1)),
            active: true,
            pkeys: vec![PKey::DEFAULT],
            ..HcaState::default()
        });
    });
    fabric
}

fn profile() -> Profile {
    Profile {
        send_frames: FRAMES,
        recv_frames: FRAMES,
        ..Profile::DEFAULT
    }
}

fn open<'a>(
    hca: &'a Hca<'a>,
    machine: &'a Machine,
) -> Placed<'a, Rings<'a, Hca<'a>, Machine>, Machine> {
    let mut rings = Rings::open(hca, machine, 2048, 8, &profile()).unwrap();
    start(&mut rings);
    rings
}

fn start(rings: &mut Rings<'_, Hca<'_>, Machine>) {
    let wish = Wish::Start {
        pkey_index: 0,
        q_key: QKey(7),
    };
    let Done { result, .. } = Control::new(rings.device(), rings.qp(), 1).carry_out(wish);
    assert_eq!(result, Ok(Outcome::Restarted));
    rings.restart();
}

/// To ourselves, over a route that differs with `dlid`.
fn route(rings: &Rings<'_, Hca<'_>, Machine>, slot: u16, dlid: u16) -> Route {
    Route {
        slot,
        attr: AhAttr {
            port: 1,
            dlid: Lid(dlid),
            ..AhAttr::default()
        },
        qpn: rings.qpn(),
        q_key: QKey(7),
    }
}

/// Sends a frame of `len` bytes `fill`, if there is one.
fn send(rings: &mut Rings<'_, Hca<'_>, Machine>, len: usize, fill: u8, dlid: u16) -> bool {
    let Some(frame) = rings.take() else {
        return false;
    };
    rings.bytes(frame).unwrap()[..len].fill(fill);
    let route = route(rings, 0, dlid);
    rings.post(frame, len, false, &route);
    rings.flush();
    true
}

/// How many frames are free; they are free afterwards too.
fn free(rings: &mut Rings<'_, Hca<'_>, Machine>) -> usize {
    let frames: Vec<FrameId> = core::iter::from_fn(|| rings.take()).collect();
    let distinct: BTreeSet<FrameId> = frames.iter().copied().collect();
    assert_eq!(distinct.len(), frames.len(), "a frame is free twice");
    frames.iter().for_each(|frame| rings.release(*frame));
    frames.len()
}

fn next(rings: &mut Rings<'_, Hca<'_>, Machine>) -> Option<Vec<u8>> {
    let received = rings.receive(&mut false)?;
    let bytes = rings.received(&received).to_vec();
    rings.recycle(&received);
    Some(bytes)
}

#[test]
fn a_frame_comes_as_it_went_and_its_place_is_free_again() {
    let (fabric, machine) = (fabric(), Machine::default());
    let hca = Hca {
        fabric: &fabric,
        place: 0,
    };
    let mut rings = open(&hca, &machine);
    for round in 0..20_u8 {
        assert!(send(&mut rings, 100 + usize::from(round), round, 1));
        fabric.run(&[&machine], |_| false);
        assert!(!rings.reap());
        assert_eq!(
            next(&mut rings),
            Some(vec![round; 100 + usize::from(round)])
        );
        assert_eq!(next(&mut rings), None);
    }
    let stats = rings.statistics();
    assert_eq!((stats.sent, stats.sent_bytes), (20, 20 * 100 + 190));
    assert_eq!(free(&mut rings), 4);
    Placed::into_inner(rings).close().unwrap();
    assert_eq!(machine.out(), (0, 0));
}

#[test]
fn a_frame_that_the_hca_has_is_not_to_be_touched() {
    let (fabric, machine) = (fabric(), Machine::default());
    let hca = Hca {
        fabric: &fabric,
        place: 0,
    };
    let mut rings = open(&hca, &machine);
    let frame = rings.take().unwrap();
    let route = route(&rings, 0, 1);
    rings.post(frame, 10, false, &route);
    assert!(rings.bytes(frame).is_none());
    rings.release(frame); // no
    rings.post(frame, 10, false, &route); // no
    rings.flush();
    assert_eq!(rings.statistics().refused_posts, 1);
    assert_eq!(free(&mut rings), 3);
    fabric.run(&[&machine], |_| false);
    assert!(!rings.reap());
    assert_eq!(free(&mut rings), 4);
}

#[test]
fn frames_that_a_reset_swallowed_are_free_again() {
    let (fabric, machine) = (fabric(), Machine::default());
    let hca = Hca {
        fabric: &fabric,
        place: 0,
    };
    let mut rings = open(&hca, &machine);
    for _ in 0..3 {
        assert!(send(&mut rings, 10, 1, 1));
    }
    rings.suspend();
    start(&mut rings);
    assert_eq!(rings.statistics().lost_in_reset, 3);
    assert_eq!(free(&mut rings), 4);
    assert!(send(&mut rings, 10, 9, 1));
    fabric.run(&[&machine], |_| false);
    assert_eq!(next(&mut rings), Some(vec![9; 10]));
}

#[test]
fn a_completion_of_before_the_reset_does_not_free_what_was_posted_since() {
    let (fabric, machine) = (fabric(), Machine::default());
    let hca = Hca {
        fabric: &fabric,
        place: 0,
    };
    let mut rings = open(&hca, &machine);
    assert!(send(&mut rings, 10, 1, 1));
    let late = hca.with(|hca| {
        hca.qps
            .values()
            .find_map(|qp| Some(qp.sends.front()?.wr_id))
    });
    rings.suspend();
    start(&mut rings);
    assert!(send(&mut rings, 10, 2, 1));
    let [send_cq, _] = rings.cqs();
    hca.with(|hca| {
        let completion = WorkCompletion {
            wr_id: late.unwrap(),
            ..WorkCompletion::EMPTY
        };
        hca.cqs
            .get_mut(&send_cq.index())
            .unwrap()
            .0
            .push_back(completion);
    });
    assert!(!rings.reap());
    assert_eq!(rings.statistics().stray_completions, 1);
    assert_eq!(free(&mut rings), 3);
}

#[test]
fn nothing_is_posted_to_a_qp_that_is_being_started() {
    let (fabric, machine) = (fabric(), Machine::default());
    let hca = Hca {
        fabric: &fabric,
        place: 0,
    };
    let mut rings = open(&hca, &machine);
    assert!(send(&mut rings, 10, 1, 1));
    fabric.run(&[&machine], |_| false);
    rings.suspend();
    let posted = || {
        hca.with(|hca| {
            hca.qps
                .values()
                .map(|qp| (qp.sends.len(), qp.recvs.len()))
                .next()
        })
    };
    let before = posted();
    assert_eq!(next(&mut rings), Some(vec![1; 10])); // what came is taken
    assert_eq!(next(&mut rings), None);
    assert!(send(&mut rings, 10, 2, 1));
    assert_eq!(posted(), before);
    assert_eq!(rings.statistics().refused_posts, 1);
    rings.resume();
    assert_eq!(posted(), Some((0, 4)));
}

#[test]
fn an_address_handle_lives_as_long_as_a_send_uses_it_and_no_longer() {
    let (fabric, machine) = (fabric(), Machine::default());
    let hca = Hca {
        fabric: &fabric,
        place: 0,
    };
    let mut rings = open(&hca, &machine);
    let handles = || hca.with(|hca| hca.ahs.len());
    for dlid in [1, 2, 3] {
        assert!(send(&mut rings, 10, 1, dlid)); // the path changes each time
    }
    assert_eq!(handles(), 3);
    fabric.run(&[&machine], |_| false);
    assert!(!rings.reap());
    assert!(send(&mut rings, 10, 1, 4));
    assert_eq!(handles(), 1);
    assert!(send(&mut rings, 10, 1, 4));
    assert_eq!(handles(), 1);
    assert_eq!(fabric.with(|state| state.violations.len()), 0);
}

#[test]
fn an_hca_short_of_address_handles_gets_back_those_that_rest() {
    let (fabric, machine) = (fabric(), Machine::default());
    let hca = Hca {
        fabric: &fabric,
        place: 0,
    };
    let mut rings = open(&hca, &machine);
    let mut send_by = |slot| {
        let frame = rings.take().unwrap();
        let route = route(&rings, slot, 1);
        rings.post(frame, 10, false, &route);
        rings.flush();
        rings.statistics().no_address_handle
    };
    assert_eq!(send_by(0), 0);
    hca.with(|hca| hca.budget = Some(0));
    assert_eq!(send_by(1), 1, "the only one is in use");
    hca.with(|hca| hca.budget = None);
    fabric.run(&[&machine], |_| false);
    assert!(!rings.reap());
    // The fake refuses once, whatever is given back meanwhile.
    hca.with(|hca| hca.budget = Some(0));
    let frame = rings.take().unwrap();
    let route = route(&rings, 1, 1);
    rings.post(frame, 10, false, &route);
    assert_eq!(
        hca.with(|hca| hca.ahs.len()),
        0,
        "the one that rests was given back"
    );
    assert_eq!(free(&mut rings), 4);
}

fn lie() -> impl Strategy<Value = (bool, WorkCompletion)> {
    let epoch = prop_oneof![3 => Just(1_u64), 1 => any::<u32>().prop_map(u64::from)];
    let frame = prop_oneof![3 => 0..u64::from(FRAMES) + 1, 1 => any::<u32>().prop_map(u64::from)];
    let status = prop_oneof![
        3 => Just(WcStatus::Success),
        1 => Just(WcStatus::Flushed),
        1 => Just(WcStatus::LocalLength),
    ];
    let len = prop_oneof![0..2200_u32, any::<u32>()];
    (any::<bool>(), epoch, frame, status, len, any::<bool>()).prop_map(
        |(send, epoch, frame, status, byte_len, grh)| {
            let completion = WorkCompletion {
                wr_id: epoch << 32 | frame,
                status,
                opcode: if send { WcOpcode::Send } else { WcOpcode::Recv },
                flags: if grh { WcFlags::GRH } else { WcFlags::empty() },
                byte_len,
                src_qp: Qpn::new(3),
                ..WorkCompletion::EMPTY
            };
            (send, completion)
        },
    )
}

proptest! {
    #[test]
    fn no_completion_that_an_hca_can_write_frees_a_frame_twice_or_shows_too_much(
        lies in prop::collection::vec(lie(), 0..60), posted in 0..=usize::from(FRAMES),
    ) {
        let (fabric, machine) = (fabric(), Machine::default());
        let hca = Hca { fabric: &fabric, place: 0 };
        let mut rings = open(&hca, &machine);
        for _ in 0..posted {
            prop_assert!(send(&mut rings, 10, 1, 1));
        }
        let [send_cq, recv_cq] = rings.cqs();
        hca.with(|hca| {
            for (send, completion) in &lies {
                let cq = if *send { send_cq } else { recv_cq };
                hca.cqs.get_mut(&cq.index()).unwrap().0.push_back(*completion);
            }
        });
        let _ = rings.reap();
        let mut shown = 0;
        for _ in 0..100 {
            if let Some(bytes) = next(&mut rings) {
                prop_assert!(bytes.len() <= 2088);
                shown += 1;
            }
        }
        let stats = rings.statistics();
        let sends = lies.iter().filter(|(send, _)| *send).count();
        let freed = free(&mut rings) + posted - usize::from(FRAMES);
        prop_assert!(freed <= posted.min(sends));
        // Each is noted once: as a frame, as an error, as nonsense, or as a stray; a flush says nothing of its own.
        let noted = stats.sent + stats.send_errors + stats.stray_completions + shown + stats.malformed
            + stats.receive_errors;
        let unread = hca.with(|hca| hca.cqs.values().map(|(queue, _)| queue.len()).sum::<usize>());
        let flushes = lies.iter().filter(|(send, lie)| !send && lie.status == WcStatus::Flushed).count();
        prop_assert!(noted as usize + unread <= lies.len());
        prop_assert!(noted as usize + unread + flushes >= lies.len());
        // And it still works.
        hca.with(|hca| hca.cqs.values_mut().for_each(|(queue, _)| queue.clear()));
        rings.suspend();
        start(&mut rings);
        prop_assert_eq!(free(&mut rings), usize::from(FRAMES));
        prop_assert!(send(&mut rings, 10, 5, 1));
        fabric.run(&[&machine], |_| false);
        prop_assert_eq!(next(&mut rings), Some(vec![5; 10]));
    }
}
