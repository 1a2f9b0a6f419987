//! What comes of requests and completions does not depend on how many a call has, and which way they go.

use super::*;
use crate::chip::Mode;
use hca_abi::infinihost::doorbell::ReceiveDoorbell;
use hca_abi::infinihost::regs::uar;
use hca_abi::infinihost::srq::MSrqContext;
use std::vec;

/// Bytes of a WQE of these queues.
const WQE: u32 = 64;
/// Requests of the SRQ.
const REQUESTS: usize = 7;

/// One thing that is done to an SRQ.
#[derive(Clone, Debug)]
enum Step {
    /// A call, with so many entries for each request: one goes straight.
    Post(Vec<usize>),
    /// The HCA says that it has used the WQE in this place, which may be none that it has.
    Complete(u32),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        proptest::collection::vec(prop_oneof![3 => Just(1_usize), 1 => 2..4_usize], 0..6)
            .prop_map(Step::Post),
        (0..10_u32).prop_map(Step::Complete),
    ]
}

/// An SRQ, and what there must be in it.
struct Srq<'r, 'm> {
    rig: &'r Rig<'m>,
    lkey: u32,
    /// M: where the HCA goes on.
    next: u32,
    /// The requests outstanding.
    outstanding: Vec<u64>,
    posted: u64,
}

impl Srq<'_, '_> {
    fn words(&self, at: u32) -> Vec<u32> {
        let firmware = self.rig.machine.firmware();
        let bytes = firmware.read(self.lkey, u64::from(at), WQE as usize);
        let words = bytes.as_chunks::<4>().0.iter();
        words.map(|word| u32::from_be_bytes(*word)).collect()
    }

    /// What the request in the WQE is called: so its first entry says.
    fn request(&self, at: u32) -> u64 {
        u64::from(self.words(at)[7])
    }

    /// The WQEs that the HCA is told of, in its order.
    fn told(&mut self, mode: Mode, accepted: usize) -> Vec<u32> {
        let doorbells = self.rig.doorbells();
        let (mut at, count) = match mode {
            Mode::M => {
                assert_eq!(doorbells, []);
                (self.next, accepted)
            }
            Mode::T if accepted == 0 => {
                assert_eq!(doorbells, []);
                (0, 0)
            }
            Mode::T => {
                let &[(offset, doorbell)] = doorbells.as_slice() else {
                    panic!("{doorbells:x?}")
                };
                assert_eq!(offset, uar::RECEIVE);
                let doorbell = ReceiveDoorbell::decode(doorbell);
                assert_eq!(doorbell.nds, 0);
                (doorbell.nda, usize::from(doorbell.count))
            }
        };
        let mut all = Vec::new();
        for _ in 0..count {
            all.push(at);
            at = self.words(at)[0] & !0x3f;
        }
        self.next = at;
        all
    }
}

fn of_an_srq(mode: Mode, steps: &[Step]) {
    let machine = match mode {
        Mode::T => Machine::new(),
        Mode::M => Machine::sinai(),
    };
    let rig = Rig::new(&machine, QpType::Ud);
    let srq_init = SrqInit {
        pd: rig.pd,
        max_wr: REQUESTS as u32,
        max_sge: 3,
        owner: Owner::Kernel,
    };
    let srq = rig.hca.create_srq(&srq_init).unwrap();
    let qp_init = QpInit {
        srq: Some(srq.handle),
        ..init(QpType::Ud, rig.cq, CAPS)
    };
    let qp = rig.hca.create_qp(rig.pd, &qp_init).unwrap();
    rig.to_rts(qp.handle, QpType::Ud);
    rig.doorbells();
    let lkey = match mode {
        Mode::T => rig.input::<SrqContext>(Opcode::SW2HW_SRQ).lkey(),
        Mode::M => rig.input::<MSrqContext>(Opcode::SW2HW_SRQ).lkey(),
    };
    let mut model = Srq {
        rig: &rig,
        lkey,
        next: 0,
        outstanding: Vec::new(),
        posted: 0,
    };
    let queue = rig.hca.srq(srq.handle).unwrap();
    for step in steps {
        match step {
            Step::Post(sizes) => post(&mut model, &queue, mode, sizes),
            Step::Complete(place) => {
                let at = place * WQE;
                let request = model.request(at % 512);
                rig.complete(good(qp.qpn.get(), false, at, 0x64));
                let polled: Vec<u64> = rig.poll().iter().map(|wc| wc.wr_id).collect();
                let outstanding = &mut model.outstanding;
                if let [one] = polled.as_slice() {
                    assert!(*place <= 7);
                    assert_eq!(*one, request);
                    assert!(outstanding.contains(one), "{one} was not outstanding");
                    outstanding.retain(|request| request != one);
                } else {
                    assert_eq!(polled, []);
                    assert!(*place > 7 || !outstanding.contains(&request));
                }
            }
        }
    }
}

fn post(model: &mut Srq<'_, '_>, queue: &impl SharedReceiveQueue, mode: Mode, sizes: &[usize]) {
    let first = model.posted + 1;
    let entries: Vec<Vec<Sge>> = (first..)
        .zip(sizes)
        .map(|(request, size)| vec![sge(request, 100); *size])
        .collect();
    let requests: Vec<RecvWr<'_>> = (first..)
        .zip(&entries)
        .map(|(wr_id, sges)| RecvWr { wr_id, sges })
        .collect();
    model.rig.doorbells();
    let accepted = match queue.post_recv(&requests) {
        Ok(()) => sizes.len(),
        Err(error) => {
            assert_eq!(error.cause, PostCause::QueueFull);
            error.index
        }
    };
    let room = REQUESTS - model.outstanding.len();
    assert_eq!(accepted, sizes.len().min(room));
    model.posted += sizes.len() as u64;
    let expected: Vec<u64> = (first..).take(accepted).collect();
    let told = model.told(mode, accepted);
    let named: Vec<u64> = told.iter().map(|at| model.request(*at)).collect();
    assert_eq!(named, expected, "linked in order");
    for (at, size) in told.iter().zip(sizes) {
        let words = model.words(*at);
        assert_eq!(words[2..4], [0, 0]);
        for entry in 0..*size {
            assert_eq!(words[4 + 4 * entry..6 + 4 * entry], [100, 0x77]);
        }
        if *size < 3 {
            let end = 4 + 4 * size;
            assert_eq!(words[end..end + 4], [0, 0x100, 0, 0], "the end of the list");
        }
    }
    model.outstanding.extend(expected);
}

/// What a device writes, and what becomes of it if so many are asked for at a time.
fn polled(
    entries: &[(bool, bool, u32, u8)],
    sizes: &[usize],
) -> (Vec<WorkCompletion>, StrayCounts) {
    let machine = Machine::new();
    let rig = Rig::new(&machine, QpType::Rc);
    let other_init = init(QpType::Ud, rig.cq, CAPS);
    let other = rig.hca.create_qp(rig.pd, &other_init).unwrap();
    rig.to_rts(other.handle, QpType::Ud);
    let list: Vec<SendWr<'_>> = (0..7).map(|id| wr(100 + id, SEND, &[])).collect();
    let receive = |from| -> Vec<RecvWr<'_>> {
        (from..from + 7)
            .map(|wr_id| RecvWr { wr_id, sges: &[] })
            .collect()
    };
    rig.send(&list).unwrap();
    rig.recv(&receive(200)).unwrap();
    let other_qp = rig.hca.qp(other.handle).unwrap();
    other_qp.post_recv(&receive(300)).unwrap();
    for &(first, send, index, kind) in entries {
        let number = if first { FIRST_QP } else { other.qpn.get() };
        let address = if send { 0x1000 } else { 0 } + index * 64;
        rig.complete(match kind {
            0 => bad(number, send, address, Syndrome::FLUSHED, 2),
            _ => good(
                number,
                send,
                address,
                if send { 0x0a } else { 0x04 + kind % 2 },
            ),
        });
    }
    let cq = rig.hca.cq(rig.cq).unwrap();
    let mut all = Vec::new();
    for size in sizes.iter().cycle().take(40) {
        let mut some = vec![WorkCompletion::EMPTY; *size];
        let count = cq.poll(&mut some).unwrap();
        all.extend_from_slice(&some[..count]);
    }
    drop((cq, other_qp));
    (all, rig.strays())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn an_srq_gives_each_request_back_once_however_it_was_posted(steps in proptest::collection::vec(step(), 1..40)) {
        of_an_srq(Mode::T, &steps);
        of_an_srq(Mode::M, &steps);
    }

    #[test]
    fn completions_are_the_same_however_many_are_asked_for(
        entries in proptest::collection::vec((any::<bool>(), any::<bool>(), 0..8_u32, 0..6_u8), 1..15),
        sizes in proptest::collection::vec(1..6_usize, 1..5),
    ) {
        prop_assert_eq!(polled(&entries, &sizes), polled(&entries, &[1]));
    }
}
