//! Shared receive queues, over datagrams: verbs 8. Where there are none, each case proves that.

use super::tools::{
    Buffer, GRH, ON_ITS_WAY, QUIET, Station, is_invalid_attr, is_invalid_handle, is_unsupported,
    qp_init,
};
use super::{Features, Rig, Side};
use core_ib::LKey;
use core_ib::platform::Platform as _;
use core_ib::verbs::{
    Access, AhHandle, AsyncEvent, CqHandle, Device, Owner, PdHandle, PostCause, PostError,
    QpAttrMask, QpEvent, QpInfo, QpInit, QpState, QpType, RecvWr, Sge, SharedReceiveQueue,
    SrqEvent, SrqHandle, SrqInit, Verbs, WcStatus,
};

const SIZE: u32 = 16;

fn init(pd: PdHandle) -> SrqInit {
    SrqInit {
        pd,
        max_wr: SIZE,
        max_sge: 2,
        owner: Owner::Kernel,
    }
}

/// An SRQ of B with two QPs, each with a receive CQ of its own, and a sender on A.
struct Shared<'r, R: Rig> {
    a: Station<'r, R>,
    b: Station<'r, R>,
    sender: QpInfo,
    srq: SrqHandle,
    size: u32,
    qps: [QpInfo; 2],
    cqs: [CqHandle; 2],
    ah: AhHandle,
}

impl<'r, R: Rig> Shared<'r, R> {
    /// `None`, proven, if there are no SRQs.
    fn new(rig: &'r R) -> Option<Self> {
        let [a, b] = Station::pair(rig);
        let created = b.hca().create_srq(&init(b.pd));
        if !rig.declared().has(Features::SRQ) {
            is_unsupported(created);
            return None;
        }
        let created = created.unwrap();
        let cqs = [b.another_cq(32), b.another_cq(32)];
        let qps = cqs.map(|recv_cq| {
            b.ready(&QpInit {
                recv_cq,
                srq: Some(created.handle),
                ..qp_init(QpType::Ud, b.cq)
            })
        });
        let (sender, ah) = (a.ud(), a.ah(Side::B));
        Some(Self {
            a,
            b,
            sender,
            srq: created.handle,
            size: created.size,
            qps,
            cqs,
            ah,
        })
    }

    fn post(&self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        let posted = self.b.hca().srq(self.srq).unwrap().post_recv(wrs);
        self.b.machine().sleep(ON_ITS_WAY);
        posted
    }

    /// Posts one request for each of `ids`, at a place of its own.
    fn receives(&self, ids: core::ops::Range<u64>) {
        for wr_id in ids {
            let sges = [self.b.buffer.sge(wr_id % 32 * 1024, 512)];
            self.post(&[RecvWr { wr_id, sges: &sges }]).unwrap();
        }
    }

    /// Sends one message to a QP, and waits until it is there or lost.
    fn message(&self, to: usize) {
        let op = self.a.datagram(self.ah, &self.qps[to]);
        let sges = [self.a.buffer.sge(0, 8)];
        self.a.send(self.sender.handle, 1, op, &sges);
        self.a.success(1);
        self.a.machine().sleep(QUIET);
    }

    /// What a QP has received: identifiers and statuses.
    fn received(&self, by: usize) -> Vec<(u64, WcStatus)> {
        let completions = self.b.poll(self.cqs[by], 32);
        let right = completions.iter().all(|wc| wc.qpn == self.qps[by].qpn);
        assert!(right, "{completions:?} are not of {}", self.qps[by].qpn);
        completions.iter().map(|wc| (wc.wr_id, wc.status)).collect()
    }

    fn is_srq(&self, event: SrqEvent) -> AsyncEvent {
        AsyncEvent::Srq(self.srq, event)
    }
}

fn good<const N: usize>(ids: [u64; N]) -> Vec<(u64, WcStatus)> {
    ids.map(|id| (id, WcStatus::Success)).to_vec()
}

/// verbs 8.4, T134.
pub fn two_qps_take_from_one_srq_and_each_completes_on_its_own_cq<R: Rig>(rig: &R) {
    let Some(shared) = Shared::new(rig) else {
        return;
    };
    shared.receives(0..6);
    for to in [0, 1, 1, 0, 1, 0] {
        shared.message(to);
    }
    assert_eq!(shared.received(0), good([0, 3, 5]));
    assert_eq!(shared.received(1), good([1, 2, 4]));
    assert_eq!(shared.b.events(), []);
}

/// verbs 4.1, T135.
pub fn a_qp_with_an_srq_takes_no_receives_of_its_own<R: Rig>(rig: &R) {
    let Some(shared) = Shared::new(rig) else {
        return;
    };
    let sges = [shared.b.buffer.sge(0, 512)];
    let wr = RecvWr {
        wr_id: 9,
        sges: &sges,
    };
    let refused = Err(PostError {
        index: 0,
        cause: PostCause::InvalidState,
    });
    assert_eq!(shared.b.post_recv(shared.qps[0].handle, &[wr]), refused);
    shared.message(0);
    assert_eq!(shared.received(0), []);
}

/// verbs 4.1, 4.6, 8.1.
pub fn an_srq_that_is_full_names_the_request_that_did_not_fit<R: Rig>(rig: &R) {
    let Some(shared) = Shared::new(rig) else {
        return;
    };
    let sges = [shared.b.buffer.sge(0, 512)];
    let ids = 0..=u64::from(shared.size);
    let wrs: Vec<_> = ids.map(|wr_id| RecvWr { wr_id, sges: &sges }).collect();
    let full = Err(PostError {
        index: shared.size as usize,
        cause: PostCause::QueueFull,
    });
    assert_eq!(shared.post(&wrs), full);
    let many = vec![sges[0]; 64];
    let wr = RecvWr {
        wr_id: 0,
        sges: &many,
    };
    shared.message(1);
    assert_eq!(
        shared.received(1),
        good([0]),
        "polled, so that there is room"
    );
    let too_many = Err(PostError {
        index: 0,
        cause: PostCause::TooManySge,
    });
    assert_eq!(shared.post(&[wr]), too_many);
    assert_eq!(shared.post(&[]), Ok(()));
    shared.receives(100..101);
}

/// verbs 4.5, 8.4: entries come back in the order in which they are polled, whoever took them.
pub fn the_entries_of_an_srq_can_be_used_for_ever<R: Rig>(rig: &R) {
    let Some(shared) = Shared::new(rig) else {
        return;
    };
    shared.receives(0..u64::from(shared.size));
    for round in 0..3 * u64::from(shared.size) {
        let to = (round % 3 != 0) as usize;
        shared.message(to);
        assert_eq!(shared.received(to), good([round]));
        shared.receives(round + u64::from(shared.size)..round + u64::from(shared.size) + 1);
    }
}

/// verbs 8.2, 10.2, T136.
pub fn the_limit_is_told_once_and_then_disarmed<R: Rig>(rig: &R) {
    let Some(shared) = Shared::new(rig) else {
        return;
    };
    shared.receives(0..10);
    shared.b.hca().arm_srq(shared.srq, 7).unwrap();
    let limit = || shared.b.hca().query_srq(shared.srq).unwrap().limit;
    assert_eq!(limit(), 7);
    for _ in 0..3 {
        shared.message(0);
    }
    assert_eq!(shared.b.events(), [], "seven are left");
    shared.message(0);
    assert_eq!(shared.b.events(), [shared.is_srq(SrqEvent::LimitReached)]);
    assert_eq!(limit(), 0);
    for _ in 0..3 {
        shared.message(0);
    }
    assert_eq!(shared.b.events(), [], "not armed");
    assert_eq!(shared.received(0), good([0, 1, 2, 3, 4, 5, 6]));
    shared.b.hca().arm_srq(shared.srq, 3).unwrap();
    shared.message(1);
    assert_eq!(
        shared.b.events(),
        [shared.is_srq(SrqEvent::LimitReached)],
        "armed anew"
    );
}

/// verbs 8.2.
pub fn a_limit_of_0_disarms<R: Rig>(rig: &R) {
    let Some(shared) = Shared::new(rig) else {
        return;
    };
    shared.receives(0..3);
    shared.b.hca().arm_srq(shared.srq, 3).unwrap();
    shared.b.hca().arm_srq(shared.srq, 0).unwrap();
    assert_eq!(shared.b.hca().query_srq(shared.srq).unwrap().limit, 0);
    shared.message(0);
    assert_eq!(shared.b.events(), []);
}

/// verbs 8.2, T137.
pub fn a_limit_above_the_size_is_refused_and_one_above_what_is_posted_is_told<R: Rig>(rig: &R) {
    let Some(shared) = Shared::new(rig) else {
        return;
    };
    let hca = shared.b.hca();
    is_invalid_attr(hca.arm_srq(shared.srq, shared.size + 1));
    shared.receives(0..3);
    hca.arm_srq(shared.srq, shared.size).unwrap();
    // At once, or at the next consumption.
    let mut events = shared.b.events();
    shared.message(0);
    events.extend(shared.b.events());
    assert_eq!(events, [shared.is_srq(SrqEvent::LimitReached)]);
}

/// verbs 8.5, 10.2, T138.
pub fn the_last_wqe_is_told_for_a_qp_in_err_and_the_other_goes_on<R: Rig>(rig: &R) {
    let Some(shared) = Shared::new(rig) else {
        return;
    };
    shared.receives(0..4);
    let to_err = |qp: &QpInfo| {
        let none = QpAttrMask::empty();
        shared
            .b
            .modify(qp.handle, QpState::Error, none, |_| ())
            .unwrap();
    };
    let last = |qp: &QpInfo| AsyncEvent::Qp(qp.handle, QpEvent::LastWqeReached);
    shared.message(0);
    to_err(&shared.qps[0]);
    assert_eq!(
        shared.b.events(),
        [last(&shared.qps[0])],
        "it had taken one"
    );
    let taken = shared.received(0);
    assert_eq!(taken.first(), Some(&(0, WcStatus::Success)));
    shared.message(1);
    let rest = shared.received(1);
    assert_eq!(rest.len(), 1, "the rest is there for the other");
    let never = shared.b.ready(&QpInit {
        srq: Some(shared.srq),
        ..qp_init(QpType::Ud, shared.b.cq)
    });
    to_err(&never);
    assert_eq!(shared.b.events(), [last(&never)], "it had taken none");
    shared.message(1);
    assert_eq!(shared.received(1).len(), 1);
}

/// verbs 8.5: no event on the way to RESET.
pub fn a_qp_that_is_reset_or_has_no_srq_tells_of_no_last_wqe<R: Rig>(rig: &R) {
    let Some(shared) = Shared::new(rig) else {
        return;
    };
    let none = QpAttrMask::empty();
    shared.receives(0..2);
    shared
        .b
        .modify(shared.qps[0].handle, QpState::Reset, none, |_| ())
        .unwrap();
    assert_eq!(shared.b.events(), []);
    let alone = shared.b.ud();
    shared
        .b
        .modify(alone.handle, QpState::Error, none, |_| ())
        .unwrap();
    assert_eq!(shared.b.events(), []);
    shared.message(1);
    assert_eq!(shared.received(1), good([0]), "nothing was lost");
}

/// verbs 8.4: an empty SRQ drops datagrams, without an event.
pub fn a_datagram_for_an_empty_srq_is_dropped<R: Rig>(rig: &R) {
    let Some(shared) = Shared::new(rig) else {
        return;
    };
    shared.message(0);
    shared.message(1);
    assert_eq!(shared.b.events(), []);
    shared.receives(5..6);
    shared.b.machine().sleep(QUIET);
    assert_eq!((shared.received(0), shared.received(1)), (vec![], vec![]));
    shared.message(1);
    assert_eq!(shared.received(1), good([5]));
}

/// verbs 8.4: with no QP, or with QPs in any state.
pub fn an_srq_takes_requests_whatever_its_qps_do<R: Rig>(rig: &R) {
    let Some(shared) = Shared::new(rig) else {
        return;
    };
    for qp in shared.qps {
        shared.b.hca().destroy_qp(qp.handle).unwrap();
    }
    shared.receives(0..2);
    let recv_cq = shared.cqs[0];
    let qp = shared.b.create(&QpInit {
        recv_cq,
        srq: Some(shared.srq),
        ..qp_init(QpType::Ud, shared.b.cq)
    });
    shared.receives(2..4);
    shared.b.bring_to(QpType::Ud, qp.handle, QpState::Rtr);
    let shared = Shared {
        qps: [qp, qp],
        ..shared
    };
    for _ in 0..4 {
        shared.message(0);
    }
    assert_eq!(shared.received(0), good([0, 1, 2, 3]));
}

/// verbs 1.2, 8.5.
pub fn a_qp_that_is_destroyed_leaves_the_rest_of_the_srq_in_order<R: Rig>(rig: &R) {
    let Some(shared) = Shared::new(rig) else {
        return;
    };
    shared.receives(0..6);
    shared.message(0);
    shared.message(0);
    shared.message(1);
    shared.b.hca().destroy_qp(shared.qps[0].handle).unwrap();
    assert_eq!(shared.b.poll(shared.cqs[0], 8), [], "purged");
    for _ in 0..3 {
        shared.message(1);
    }
    assert_eq!(shared.received(1), good([2, 3, 4, 5]));
    // The two that the purge took are free again.
    let sges = [shared.b.buffer.sge(0, 512)];
    let wrs: Vec<_> = (0..u64::from(shared.size))
        .map(|wr_id| RecvWr { wr_id, sges: &sges })
        .collect();
    assert_eq!(shared.post(&wrs), Ok(()));
}

/// verbs 1.2: what is posted and not consumed goes without a completion.
pub fn an_srq_with_requests_in_it_is_destroyed<R: Rig>(rig: &R) {
    let Some(shared) = Shared::new(rig) else {
        return;
    };
    shared.receives(0..4);
    for qp in shared.qps {
        shared.b.hca().destroy_qp(qp.handle).unwrap();
    }
    assert_eq!(shared.b.hca().destroy_srq(shared.srq), Ok(()));
    for cq in shared.cqs {
        assert_eq!(shared.b.poll(cq, 4), []);
        assert_eq!(shared.b.hca().destroy_cq(cq), Ok(()));
    }
    is_invalid_handle(shared.b.hca().query_srq(shared.srq));
    is_invalid_handle(shared.b.hca().arm_srq(shared.srq, 1));
}

/// verbs 3.1, 7.4: receive buffers are checked against the SRQ's PD.
pub fn the_buffers_of_an_srq_belong_to_its_pd_and_not_to_that_of_the_qp<R: Rig>(rig: &R) {
    let [a, b] = Station::pair(rig);
    let pd = b.hca().alloc_pd().unwrap();
    let created = b.hca().create_srq(&init(pd));
    if !rig.declared().has(Features::SRQ) {
        return is_unsupported(created);
    }
    let srq = created.unwrap().handle;
    let init = QpInit {
        srq: Some(srq),
        ..qp_init(QpType::Ud, b.cq)
    };
    let theirs = Buffer::new(b.machine(), b.hca(), pd, 4096, Access::LOCAL_WRITE);
    for (sge, status) in [
        (theirs.sge(0, 512), WcStatus::Success),
        (b.buffer.sge(0, 512), WcStatus::LocalProtection),
    ] {
        let (qp, sender) = (b.ready(&init), a.ud());
        let sges = [sge];
        let wr = RecvWr {
            wr_id: 1,
            sges: &sges,
        };
        b.hca().srq(srq).unwrap().post_recv(&[wr]).unwrap();
        b.machine().sleep(ON_ITS_WAY);
        a.send(sender.handle, 2, a.to(&qp), &[a.buffer.sge(0, 100)]);
        a.success(2);
        let wc = b.completion();
        assert_eq!((wc.wr_id, wc.status), (1, status));
    }
}

/// verbs 8.4, 9.3: a scatter list of an SRQ request is filled as any other.
pub fn a_list_of_an_srq_request_is_filled_in_order<R: Rig>(rig: &R) {
    let Some(shared) = Shared::new(rig) else {
        return;
    };
    let (a, b) = (&shared.a, &shared.b);
    let sges = [b.buffer.sge(0, GRH), b.buffer.sge(2048, 512)];
    shared
        .post(&[RecvWr {
            wr_id: 1,
            sges: &sges,
        }])
        .unwrap();
    a.buffer.put(0, b"split at the GRH");
    a.send(
        shared.sender.handle,
        2,
        a.to(&shared.qps[0]),
        &[a.buffer.sge(0, 16)],
    );
    a.success(2);
    let wc = b.completions_of(shared.cqs[0], 1)[0];
    assert_eq!((wc.status, wc.byte_len), (WcStatus::Success, 16 + GRH));
    assert_eq!(b.buffer.bytes(2048, 16), b"split at the GRH");
    let bad = [Sge {
        lkey: LKey(!b.buffer.lkey().0),
        ..b.buffer.sge(0, 512)
    }];
    shared
        .post(&[RecvWr {
            wr_id: 3,
            sges: &bad,
        }])
        .unwrap();
    shared.message(0);
    let told = shared.received(0);
    assert_eq!(told, [(3, WcStatus::LocalProtection)]);
    assert_eq!(b.state(shared.qps[0].handle), QpState::Error);
}

/// verbs 8.3, T140.
pub fn an_srq_is_resized_with_what_is_in_it_or_not_at_all<R: Rig>(rig: &R) {
    let Some(shared) = Shared::new(rig) else {
        return;
    };
    shared.receives(0..10);
    let hca = shared.b.hca();
    let answer = hca.resize_srq(shared.srq, 64);
    if !rig.declared().has(Features::SRQ_RESIZE) {
        is_unsupported(answer);
        assert_eq!(hca.query_srq(shared.srq).unwrap().max_wr, shared.size);
    } else {
        assert!(answer.unwrap() >= 64);
        is_invalid_attr(hca.resize_srq(shared.srq, 9));
        assert!(hca.resize_srq(shared.srq, 10).unwrap() >= 10);
        hca.arm_srq(shared.srq, 10).unwrap();
        is_invalid_attr(hca.resize_srq(shared.srq, 9));
    }
    for _ in 0..10 {
        shared.message(0);
    }
    assert_eq!(shared.received(0), good([0, 1, 2, 3, 4, 5, 6, 7, 8, 9]));
}
