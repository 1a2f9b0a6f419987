//! The free list of an SRQ: who posts takes from it, who polls gives back. `srq`.

extern crate std;
use super::hcas::{BOTH, Shared, TINY, explore_hca};
use crate::qp::tests::sge;
use core_ib::verbs::{Device, Owner, PostCause, RecvWr, SharedReceiveQueue, SrqInit, Verbs};
use loom::thread;
use std::collections::BTreeSet;
use std::vec::Vec;

#[test]
fn loom_a_request_of_an_srq_is_given_once_and_none_is_lost() {
    for (mode, make) in BOTH {
        let name = std::format!("free list of an SRQ, {mode}-mode");
        explore_hca(&name, make, &TINY, Some(2), |rig| {
            let srq_init = SrqInit {
                pd: rig.pd,
                max_wr: 3,
                max_sge: 1,
                owner: Owner::Kernel,
            };
            let srq = rig.hca.create_srq(&srq_init).unwrap().handle;
            let sges = [sge(0x5000, 100)];
            let post = |rig: &Shared, wr_id| {
                let wr = RecvWr { wr_id, sges: &sges };
                let queue = rig.hca.srq(srq).unwrap();
                queue.post_recv(&[wr]).map_err(|error| error.cause)
            };
            for wr_id in 0..3 {
                post(rig, wr_id).unwrap();
            }
            assert_eq!(post(rig, 9), Err(PostCause::QueueFull));
            loom::explore();
            // WQE 1 was said to be complete twice, by an HCA that errs: on two CQs.
            let pollers: Vec<_> = [&[0, 1][..], &[1]]
                .into_iter()
                .map(|wqes| {
                    let rig = rig.clone();
                    thread::spawn(move || {
                        let core = rig.hca.core_for_tests();
                        let complete = |wqe: &u32| core.complete_srq(0, wqe * 64);
                        wqes.iter().filter_map(complete).collect::<Vec<_>>()
                    })
                })
                .collect();
            let mut posted: Vec<u64> = (0..3).collect();
            for wr_id in 3..5 {
                match post(rig, wr_id) {
                    Ok(()) => posted.push(wr_id),
                    Err(cause) => assert_eq!(cause, PostCause::QueueFull),
                }
            }
            let mut given = Vec::new();
            for poller in pollers {
                given.extend(poller.join().unwrap());
            }
            loom::stop_exploring();
            given.extend(
                (0..4).filter_map(|wqe| rig.hca.core_for_tests().complete_srq(0, wqe * 64)),
            );
            let one_each: BTreeSet<u64> = given.iter().copied().collect();
            assert_eq!(one_each.len(), given.len(), "given twice: {given:?}");
            assert!(one_each.iter().eq(&posted), "lost: {given:?} of {posted:?}");
            for wr_id in 10..13 {
                post(rig, wr_id).unwrap();
            }
            assert_eq!(post(rig, 13), Err(PostCause::QueueFull), "a WQE more");
        });
    }
}
