//! Completion queues: verbs 5.

use super::tools::{QUIET, Station, is_invalid_attr, is_unsupported, qp_init, send_wr};
use super::{Features, Rig, Side};
use core_ib::LKey;
use core_ib::platform::Platform as _;
use core_ib::verbs::{
    AsyncEvent, CompletionQueue, CqHandle, Device, NotifyKind, QpEvent, QpInfo, QpInit, QpState,
    QpType, SendFlags, SendOp, SendWr, Sge, Verbs, WcStatus, WorkCompletion,
};

/// A sender on A and a receiver on B, each with CQs of its own for sends and receives.
struct Flow<'r, R: Rig> {
    a: Station<'r, R>,
    b: Station<'r, R>,
    sender: QpInfo,
    receiver: QpInfo,
    send_cq: CqHandle,
    recv_cq: CqHandle,
    op: SendOp,
}

impl<'r, R: Rig> Flow<'r, R> {
    fn new(rig: &'r R) -> Self {
        let [a, b] = Station::pair(rig);
        let send_cq = a.another_cq(64);
        let recv_cq = b.another_cq(64);
        let mut init = qp_init(QpType::Ud, a.cq);
        (init.caps.max_send_wr, init.caps.max_recv_wr) = (32, 32);
        let sender = a.ready(&QpInit { send_cq, ..init });
        let receiver = b.ready(&QpInit {
            send_cq: b.cq,
            recv_cq,
            ..init
        });
        let op = a.to(&receiver);
        Self {
            a,
            b,
            sender,
            receiver,
            send_cq,
            recv_cq,
            op,
        }
    }

    /// Sends one message and waits until it has arrived, without polling the receiver's CQ.
    fn message(&self, wr_id: u64, flags: SendFlags) {
        let sge = self.b.buffer.sge(wr_id % 64 * 512, 512);
        self.b.receive(self.receiver.handle, wr_id, &[sge]);
        self.send(wr_id, flags);
        self.a.machine().sleep(QUIET);
    }

    /// Sends one message and takes its send completion.
    fn send(&self, wr_id: u64, flags: SendFlags) {
        let sges = [self.a.buffer.sge(0, 64)];
        let wr = SendWr {
            flags: flags | SendFlags::SIGNALED,
            ..send_wr(wr_id, self.op, &sges)
        };
        self.a.post_send(self.sender.handle, &[wr]).unwrap();
        let wc = self.a.completions_of(self.send_cq, 1)[0];
        assert_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::Success));
    }
}

fn ids(completions: &[WorkCompletion]) -> Vec<u64> {
    completions.iter().map(|wc| wc.wr_id).collect()
}

const PLAIN: SendFlags = SendFlags::empty();

/// verbs 5.2, T089.
pub fn a_poll_gives_what_there_is_up_to_what_there_is_room_for<R: Rig>(rig: &R) {
    let flow = Flow::new(rig);
    assert_eq!(flow.b.poll(flow.recv_cq, 4), []);
    for id in 0..5 {
        flow.message(id, PLAIN);
    }
    assert_eq!(flow.b.poll(flow.recv_cq, 0), []);
    assert_eq!(ids(&flow.b.poll(flow.recv_cq, 1)), [0]);
    assert_eq!(ids(&flow.b.poll(flow.recv_cq, 16)), [1, 2, 3, 4]);
    assert_eq!(flow.b.poll(flow.recv_cq, 4), []);
}

/// verbs 5.2, T090.
pub fn four_queues_on_one_cq_lose_nothing_and_each_keeps_its_order<R: Rig>(rig: &R) {
    let [a, _b] = Station::pair(rig);
    let cq = a.another_cq(64);
    let qps = [(); 2].map(|()| a.ready(&qp_init(QpType::Ud, cq)));
    let ah = a.ah(Side::A);
    for id in 0..6 {
        for (qp, peer) in [(0, 1), (1, 0)] {
            let sge = [a.buffer.sge(0, 256)];
            a.receive(qps[peer].handle, 100 + id, &sge);
            let sge = [a.buffer.sge(4096, 64)];
            a.send(qps[qp].handle, id, a.datagram(ah, &qps[peer]), &sge);
        }
    }
    let all = a.completions_of(cq, 24);
    for qp in qps {
        let of = all.iter().filter(|wc| wc.qpn == qp.qpn);
        let (receives, sends): (Vec<u64>, Vec<u64>) =
            of.map(|wc| wc.wr_id).partition(|id| *id >= 100);
        assert_eq!(sends, [0, 1, 2, 3, 4, 5]);
        assert_eq!(receives, [100, 101, 102, 103, 104, 105]);
    }
    assert!(all.iter().all(|wc| wc.status == WcStatus::Success));
    a.machine().sleep(QUIET);
    assert_eq!(a.poll(cq, 8), []);
}

/// verbs 5.2, T091.
pub fn two_pollers_share_the_completions_and_neither_sees_one_twice<R: Rig>(rig: &R) {
    let flow = Flow::new(rig);
    for round in 0..4 {
        for id in 0..16 {
            flow.message(round * 16 + id, PLAIN);
        }
        let found = [(); 2].map(|()| std::sync::Mutex::new(Vec::new()));
        let poll = |at: usize| {
            let cq = flow.b.hca().cq(flow.recv_cq).unwrap();
            let mut one = [WorkCompletion::EMPTY];
            while cq.poll(&mut one).unwrap() == 1 {
                found[at].lock().unwrap().push(one[0].wr_id);
            }
        };
        rig.together(&|| poll(0), &|| poll(1));
        let found = found.map(|ids| ids.into_inner().unwrap());
        assert!(found.iter().all(|ids| ids.is_sorted()), "{found:?}");
        let mut all = found.concat();
        all.sort_unstable();
        let expected: Vec<u64> = (round * 16..round * 16 + 16).collect();
        assert_eq!(all, expected);
    }
}

/// verbs 5.4, T092, T098.
pub fn an_armed_cq_fires_once_and_is_then_silent_until_armed_again<R: Rig>(rig: &R) {
    let flow = Flow::new(rig);
    let (b, cq) = (&flow.b, flow.recv_cq);
    flow.message(0, PLAIN);
    b.does_not_fire(cq);
    assert_eq!(ids(&b.poll(cq, 4)), [0]);
    for id in 1..4 {
        b.arm(cq, NotifyKind::Any);
        assert_eq!(b.poll(cq, 4), []);
        b.does_not_fire(cq);
        let wakes = rig.wakes(Side::B);
        flow.message(id * 2, PLAIN);
        assert!(b.fires(cq), "armed for message {id}");
        assert!(rig.wakes(Side::B) > wakes, "the owner is woken");
        assert_eq!(ids(&b.poll(cq, 1)), [id * 2], "pollable when it fires");
        flow.message(id * 2 + 1, PLAIN);
        b.does_not_fire(cq);
        assert_eq!(ids(&b.poll(cq, 4)), [id * 2 + 1]);
    }
}

/// verbs 5.4, T093.
pub fn a_cq_armed_for_solicited_messages_waits_for_one<R: Rig>(rig: &R) {
    let flow = Flow::new(rig);
    let (b, cq) = (&flow.b, flow.recv_cq);
    b.arm(cq, NotifyKind::Solicited);
    flow.message(0, PLAIN);
    flow.message(1, PLAIN);
    b.does_not_fire(cq);
    flow.message(2, SendFlags::SOLICITED);
    assert!(b.fires(cq));
    flow.message(3, SendFlags::SOLICITED);
    b.does_not_fire(cq);
    assert_eq!(ids(&b.poll(cq, 8)), [0, 1, 2, 3]);
}

/// verbs 5.4, T094.
pub fn a_cq_armed_for_solicited_messages_fires_for_an_error<R: Rig>(rig: &R) {
    let flow = Flow::new(rig);
    let (a, cq) = (&flow.a, flow.send_cq);
    a.arm(cq, NotifyKind::Solicited);
    flow.send(0, PLAIN);
    a.does_not_fire(cq);
    let bad = Sge {
        lkey: LKey(!a.buffer.lkey().0),
        ..a.buffer.sge(0, 8)
    };
    a.send(flow.sender.handle, 1, flow.op, &[bad]);
    assert!(a.fires(cq));
    let wc = a.completions_of(cq, 1)[0];
    assert_eq!((wc.wr_id, wc.status), (1, WcStatus::LocalProtection));
}

/// verbs 5.4, T095.
pub fn to_arm_for_less_is_no_downgrade<R: Rig>(rig: &R) {
    let flow = Flow::new(rig);
    flow.b.arm(flow.recv_cq, NotifyKind::Any);
    flow.b.arm(flow.recv_cq, NotifyKind::Solicited);
    flow.message(0, PLAIN);
    assert!(flow.b.fires(flow.recv_cq));
    flow.message(1, SendFlags::SOLICITED);
    flow.b.does_not_fire(flow.recv_cq);
}

/// verbs 5.4, T096.
pub fn to_arm_for_more_is_an_upgrade<R: Rig>(rig: &R) {
    let flow = Flow::new(rig);
    flow.b.arm(flow.recv_cq, NotifyKind::Solicited);
    flow.b.arm(flow.recv_cq, NotifyKind::Any);
    flow.message(0, PLAIN);
    assert!(flow.b.fires(flow.recv_cq));
}

/// verbs 5.4, T097, T099: arm, poll until empty, wait. Nobody ever waits with a completion in the CQ.
pub fn who_arms_and_then_polls_until_empty_never_misses_a_completion<R: Rig>(rig: &R) {
    let flow = Flow::new(rig);
    let (a, b) = (&flow.a, &flow.b);
    let (cq, total, depth) = (flow.recv_cq, 600_u64, 24);
    let post = |id: u64| {
        let sge = b.buffer.sge(id % depth * 512, 512);
        b.receive(flow.receiver.handle, id, &[sge]);
    };
    let arrived = core::sync::atomic::AtomicU64::new(0);
    let consume = || {
        let mut next = 0;
        while next < total {
            b.arm(cq, NotifyKind::Any);
            let mut got = 0;
            loop {
                let completions = b.poll(cq, 3);
                if completions.is_empty() {
                    break;
                }
                for wc in completions {
                    assert_eq!((wc.wr_id, wc.status), (next, WcStatus::Success));
                    next += 1;
                    got += 1;
                    if next - 1 + depth < total {
                        post(next - 1 + depth);
                    }
                }
            }
            arrived.store(next, core::sync::atomic::Ordering::Release);
            if got == 0 {
                assert!(b.fires(cq), "asleep at {next} of {total}");
            }
        }
    };
    let produce = || {
        for id in 0..total {
            // A datagram without a receive is lost: verbs 6.4.
            let room = super::tools::wait_for(a.machine(), super::tools::PATIENCE, || {
                arrived.load(core::sync::atomic::Ordering::Acquire) + depth / 2 > id
            });
            assert!(room, "the consumer stands still before {id}");
            flow.send(id, PLAIN);
        }
    };
    (0..depth).for_each(post);
    rig.together(&consume, &produce);
}

/// verbs 5.1, T100.
pub fn a_cq_grows_with_completions_in_it_and_loses_none<R: Rig>(rig: &R) {
    let flow = Flow::new(rig);
    let (b, cq) = (&flow.b, flow.recv_cq);
    for id in 0..10 {
        flow.message(id, PLAIN);
    }
    let answer = b.hca().resize_cq(cq, 200);
    if !rig.declared().has(Features::CQ_RESIZE) {
        is_unsupported(answer);
        assert_eq!(b.poll(cq, 16).len(), 10);
        return;
    }
    assert!(answer.unwrap() >= 200);
    for id in 10..14 {
        flow.message(id, PLAIN);
    }
    let expected: Vec<u64> = (0..14).collect();
    assert_eq!(ids(&b.poll(cq, 32)), expected);
    for id in 0..100 {
        flow.message(id, PLAIN);
        assert_eq!(ids(&b.poll(cq, 2)), [id]);
    }
}

/// verbs 5.1, T100.
pub fn a_cq_does_not_shrink_below_what_is_in_it<R: Rig>(rig: &R) {
    let flow = Flow::new(rig);
    let (b, cq) = (&flow.b, flow.recv_cq);
    for id in 0..10 {
        flow.message(id, PLAIN);
    }
    let answer = b.hca().resize_cq(cq, 5);
    if !rig.declared().has(Features::CQ_RESIZE) {
        return is_unsupported(answer);
    }
    is_invalid_attr(answer);
    // A ring for 9 may have room for all of them: that is not what was asked for.
    is_invalid_attr(b.hca().resize_cq(cq, 9));
    is_invalid_attr(b.hca().resize_cq(cq, 0));
    let most = b.hca().query_device().max_cqe;
    is_invalid_attr(b.hca().resize_cq(cq, most + 1));
    let expected: Vec<u64> = (0..10).collect();
    assert_eq!(ids(&b.poll(cq, 32)), expected, "content is kept");
    assert!(b.hca().resize_cq(cq, 16).unwrap() >= 16);
    flow.message(20, PLAIN);
    assert_eq!(ids(&b.poll(cq, 32)), [20]);
}

/// verbs 5.1: the arm is kept.
pub fn a_cq_that_is_resized_while_armed_fires_for_what_comes<R: Rig>(rig: &R) {
    let flow = Flow::new(rig);
    let (b, cq) = (&flow.b, flow.recv_cq);
    if !rig.declared().has(Features::CQ_RESIZE) {
        return is_unsupported(b.hca().resize_cq(cq, 100));
    }
    b.arm(cq, NotifyKind::Any);
    b.hca().resize_cq(cq, 100).unwrap();
    flow.message(0, PLAIN);
    assert!(b.fires(cq));
    assert_eq!(ids(&b.poll(cq, 2)), [0]);
}

/// verbs 5.5, 10.2, T101.
pub fn a_cq_that_overruns_says_so_and_keeps_what_it_has<R: Rig>(rig: &R) {
    rig.offends();
    let [a, b] = Station::pair(rig);
    let created = a.hca().create_cq(&core_ib::verbs::CqInit {
        cqe: 4,
        vector: 0,
        owner: core_ib::verbs::Owner::Kernel,
    });
    let (cq, peer) = (created.unwrap(), b.ud());
    let mut init = qp_init(QpType::Ud, cq.handle);
    init.caps.max_send_wr = cq.size + 8;
    let qp = a.ready(&init);
    let op = a.to(&peer);
    for id in 0..u64::from(cq.size) + 8 {
        a.send(qp.handle, id, op, &[]);
    }
    let events = a.events();
    let times = |wanted: &dyn Fn(&AsyncEvent) -> bool| events.iter().filter(|e| wanted(e)).count();
    let of_cq = times(&|event| matches!(event, AsyncEvent::Cq(handle, _) if *handle == cq.handle));
    assert_eq!(of_cq, 1, "{events:?}");
    let fatal = AsyncEvent::Qp(qp.handle, QpEvent::Fatal);
    assert_eq!(times(&|event| *event == fatal), 1, "{events:?}");
    let kept = a.poll(cq.handle, cq.size as usize + 8);
    assert!(
        kept.len() >= cq.size as usize,
        "{} of {}",
        kept.len(),
        cq.size
    );
    let right = (0..)
        .zip(&kept)
        .all(|(id, wc)| (wc.wr_id, wc.qpn) == (id, qp.qpn));
    assert!(right, "{kept:?}");
    assert_eq!(a.state(qp.handle), QpState::Error);
    a.hca().destroy_qp(qp.handle).unwrap();
    a.hca().destroy_cq(cq.handle).unwrap();
}

/// verbs 5.3, T102.
pub fn an_error_completion_says_which_request_of_which_qp<R: Rig>(rig: &R) {
    let flow = Flow::new(rig);
    let bad = Sge {
        lkey: LKey(!flow.a.buffer.lkey().0),
        ..flow.a.buffer.sge(0, 8)
    };
    let id = 0x0123_4567_89ab_cdef;
    flow.a.send(flow.sender.handle, id, flow.op, &[bad]);
    let wc = flow.a.completions_of(flow.send_cq, 1)[0];
    let told = (wc.wr_id, wc.status, wc.qpn);
    assert_eq!(told, (id, WcStatus::LocalProtection, flow.sender.qpn));
}

/// verbs 5.4: the owner is woken and nobody is called; without an arm, nothing.
pub fn completions_of_a_cq_that_is_not_armed_wake_nobody<R: Rig>(rig: &R) {
    let flow = Flow::new(rig);
    let wakes = rig.wakes(Side::B);
    for id in 0..4 {
        flow.message(id, PLAIN);
    }
    assert_eq!(rig.wakes(Side::B), wakes);
    flow.b.does_not_fire(flow.recv_cq);
}
