//! A whole HCA in a model: opened and closed before and after what is gone through, as small as it can be.

extern crate std;
use crate::fake::Machine;
use crate::qp::tests::Rig;
use crate::{AvPlace, Hca, Interrupts, Profile};
use core::mem::ManuallyDrop;
use core::sync::atomic::{AtomicU64, Ordering};
use core_ib::platform::NoWake;
use core_ib::verbs::{QpCaps, QpType};
use std::boxed::Box;
use std::sync::Arc;

/// Few of everything, so that a schedule takes little time.
pub(super) const TINY: Profile = Profile {
    qps: 2,
    cqs: 2,
    srqs: 1,
    mrs: 1,
    fmrs: 2,
    pds: 1,
    ahs: 1,
    mtt_pages: 128,
    work_requests: 16,
    mcast_groups: 1,
    event_entries: 8,
    commands: 1,
    address_vectors: AvPlace::HostMemory,
    interrupts: Interrupts::None,
    ..Profile::SMALL
};

/// Machines of both modes.
pub(super) const BOTH: [(&str, fn() -> Machine); 2] = [("T", Machine::new), ("M", Machine::sinai)];

/// Runs `f` on a machine of its own in every schedule, of `preemptions` at most, from where it calls [`loom::explore`] to
/// [`loom::stop_exploring`]. All that it makes is gone when it returns.
pub(super) fn explore_on(
    name: &str,
    make: fn() -> Machine,
    preemptions: Option<usize>,
    f: impl Fn(&'static Machine) + Sync + Send + 'static,
) {
    let schedules = Arc::new(AtomicU64::new(0));
    let count = schedules.clone();
    let mut model = loom::model::Builder::new();
    model.preemption_bound = preemptions;
    model.expect_explicit_explore = true;
    model.max_branches = 1_000_000;
    model.check(move || {
        count.fetch_add(1, Ordering::Relaxed);
        let machine = Box::into_raw(Box::new(make()));
        // SAFETY: it lives until `f` has returned, which leaves nothing behind that refers to it.
        f(unsafe { &*machine });
        // SAFETY: from a box, and nobody refers to it any more.
        let machine = unsafe { Box::from_raw(machine) };
        assert_eq!(machine.pieces_out(), 0);
    });
    super::tell(name, schedules.load(Ordering::Relaxed), preemptions);
}

/// Of a QP as small as it can be.
pub(super) const CAPS: QpCaps = QpCaps {
    max_send_wr: 1,
    max_recv_wr: 1,
    max_send_sge: 1,
    max_recv_sge: 1,
    max_inline: 0,
};

/// The same with an HCA, an RC QP, and a CQ. `f` begins to be gone through, stops that, and leaves nobody behind.
pub(super) fn explore_hca(
    name: &str,
    make: fn() -> Machine,
    profile: &'static Profile,
    preemptions: Option<usize>,
    f: impl Fn(&Shared) + Sync + Send + 'static,
) {
    explore_on(name, make, preemptions, move |machine| {
        let hca = Hca::open(machine, &NoWake, profile).unwrap();
        let rig = Rig::on(machine, hca, QpType::Rc, CAPS);
        // When a model fails there is no closing, which would be gone through as well.
        let rig = ManuallyDrop::new(Arc::new(rig));
        f(&rig);
        let Ok(rig) = Arc::try_unwrap(ManuallyDrop::into_inner(rig)) else {
            panic!("somebody has the HCA still");
        };
        drop(rig.hca);
    });
}

/// An HCA that threads share.
pub(super) type Shared = Arc<Rig<'static>>;
