//! Posting against the end of the HCA: what is taken is flushed, what is not is refused. `health`, `cq::poll`.

extern crate std;
use super::hcas::{BOTH, TINY, explore_hca};
use crate::health::End;
use crate::qp::tests::{SEND, wr};
use core_ib::verbs::{PostCause, RecvWr, WcStatus};
use loom::thread;
use std::vec::Vec;

#[test]
fn loom_a_request_at_the_end_is_refused_or_flushed_once_and_nobody_rings_after_that() {
    for (mode, make) in BOTH {
        let name = std::format!("posts against the end, {mode}-mode");
        explore_hca(&name, make, &TINY, Some(2), |rig| {
            loom::explore();
            let poster = {
                let rig = rig.clone();
                thread::spawn(move || {
                    let recv = RecvWr {
                        wr_id: 7,
                        sges: &[],
                    };
                    let posts = [(5, rig.send(&[wr(5, SEND, &[])])), (7, rig.recv(&[recv]))];
                    let taken = posts.iter().filter(|(_, result)| match result {
                        Ok(()) => true,
                        Err(error) => {
                            assert_eq!(error.cause, PostCause::DeviceFailed);
                            false
                        }
                    });
                    taken.map(|(wr_id, _)| *wr_id).collect::<Vec<u64>>()
                })
            };
            let end = {
                let rig = rig.clone();
                thread::spawn(move || rig.hca.core_for_tests().fail(End::Failed))
            };
            let mut flushed = rig.poll();
            end.join().unwrap();
            flushed.extend(rig.poll());
            // The end was seen, and all queues were looked at: nobody rings from here on.
            let doorbells = rig.machine.firmware().doorbells.len();
            let taken = poster.join().unwrap();
            loom::stop_exploring();
            assert_eq!(rig.machine.firmware().doorbells.len(), doorbells);
            assert_eq!(rig.poll(), [], "one that comes late");
            let ids: Vec<u64> = flushed.iter().map(|wc| wc.wr_id).collect();
            assert_eq!(ids, taken);
            assert!(flushed.iter().all(|wc| wc.status == WcStatus::Flushed));
            assert!(
                rig.hca.core_for_tests().take_cq_event(rig.cq),
                "the CQ fires"
            );
        });
    }
}
