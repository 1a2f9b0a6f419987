//! Reliable connections: everything arrives once and in order, whatever the channel does.

use super::*;
use proptest::prelude::*;

/// What one request does, to be made concrete by its place in the list.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Send(usize),
    SendImm(usize),
    Write(usize),
    WriteImm(usize),
    Read(u32),
    Add(u64),
}

fn kind() -> impl Strategy<Value = Kind> {
    let len = || prop_oneof![Just(0_usize), 1..3_usize, 250..260_usize, 256..1300_usize];
    prop_oneof![
        len().prop_map(Kind::Send),
        len().prop_map(Kind::SendImm),
        len().prop_map(Kind::Write),
        len().prop_map(Kind::WriteImm),
        len().prop_map(|len| Kind::Read(len as u32)),
        (1..1000_u64).prop_map(Kind::Add),
    ]
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + seed * 31) as u8).collect()
}

/// Writes go to places of their own above 4096, reads come from below, the counter is the last word.
fn concrete(at: usize, kind: Kind, fence: bool) -> Job {
    let marked = imm(at as u8);
    let mut job = match kind {
        Kind::Send(len) => send(&pattern(len, at)),
        Kind::SendImm(len) => {
            let op = RequestOp::Send {
                imm: marked,
                solicited: true,
            };
            job(op, pattern(len, at))
        }
        Kind::Write(len) => write(4096, &pattern(len, at)),
        Kind::WriteImm(len) => {
            let op = RequestOp::Write {
                va: 4096,
                r_key: KEY,
                imm: marked,
                solicited: true,
            };
            job(op, pattern(len, at))
        }
        Kind::Read(len) => read_job(100, len),
        Kind::Add(add) => atomic(8184, AtomicOp::FetchAdd { add }),
    };
    job.fence = fence;
    job
}

fn fate(byte: u8) -> Fate {
    match byte % 10 {
        0..=1 => Fate::Lost,
        2 => Fate::Twice,
        _ => Fate::Arrives,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn every_request_is_carried_out_once_and_in_order(
        kinds in prop::collection::vec((kind(), any::<bool>()), 1..20),
        fates in prop::collection::vec(any::<u8>(), 0..200),
        first in prop_oneof![Just(0xff_fffa_u32), Just(0x7f_fffe), any::<u32>()],
        depth in 1..4_usize, shared: bool, late in 0..3_usize,
    ) {
        let mut limits = (requester_limits(), responder_limits());
        (limits.0.max_rd_atomic, limits.1.max_rd_atomic) = (depth, depth);
        let jobs: Vec<Job> = kinds.iter().enumerate()
            .map(|(at, &(kind, fence))| concrete(at, kind, fence)).collect();
        let mut pair = Pair::new(Psn::new(first), limits, jobs.clone());
        pair.owner.memory[..4096].copy_from_slice(&pattern(4096, 99));
        pair.owner.shared = shared;
        let needed = jobs.iter().filter(|job| job.request.needs_credit()).count();
        // Some come late: those requests are refused for a while.
        pair.owner.posted = vec![2048; needed.saturating_sub(late)].into();
        let mut fates = fates.into_iter();
        // As many losses as there are retries: what is tried once more than that has met none of them at last.
        let mut losses = limits.0.retry_count;
        pair.fate = Box::new(move |_| match fates.next().map_or(Fate::Arrives, fate) {
            Fate::Lost if losses == 0 => Fate::Arrives,
            Fate::Lost => {
                losses -= 1;
                Fate::Lost
            }
            other => other,
        });
        for _ in 0..40 {
            pair.request();
            pair.reply();
            pair.deliver();
        }
        pair.owner.posted.extend(vec![2048; late.min(needed)]);
        pair.run();
        prop_assert_eq!(pair.requester.failure(), None);
        let all: Vec<usize> = (0..jobs.len()).collect();
        prop_assert_eq!(&pair.completed, &all);
        let mut sum = 0_u64;
        let mut received = pair.owner.received.iter();
        for (at, (job, before)) in pair.jobs.iter().zip(&jobs).enumerate() {
            match (job.request.op, kinds[at].0) {
                (RequestOp::Send { imm, solicited }, _) => {
                    let (buffer, receipt) = received.next().unwrap();
                    prop_assert_eq!(&buffer[..receipt.len as usize], &before.data[..]);
                    prop_assert_eq!((receipt.imm, receipt.solicited), (imm, solicited));
                }
                (RequestOp::Write { imm: Some(imm), .. }, _) => {
                    let (_, receipt) = received.next().unwrap();
                    prop_assert_eq!((receipt.imm, receipt.len), (Some(imm), job.request.len));
                }
                (RequestOp::Read { .. }, Kind::Read(len)) => {
                    let there = &pair.owner.memory[100..100 + len as usize];
                    prop_assert_eq!(&job.data[..], there);
                }
                (RequestOp::Atomic { .. }, Kind::Add(add)) => {
                    prop_assert_eq!(&job.data[..], &sum.to_be_bytes());
                    sum += add;
                }
                _ => {}
            }
        }
        prop_assert!(received.next().is_none());
        let mut writes = jobs.iter().filter(|job| matches!(job.request.op, RequestOp::Write { .. }));
        if let Some(job) = writes.rfind(|job| !job.data.is_empty()) {
            prop_assert_eq!(&pair.owner.memory[4096..4096 + job.data.len()], &job.data[..]);
        }
        prop_assert!(pair.requester.is_idle() && pair.refusal.is_none());
        prop_assert_eq!(pair.responder.expected_psn(), pair.requester.next_psn());
        prop_assert_eq!(pair.responder.msn().get() as usize, jobs.len());
    }
}

#[test]
fn the_packets_of_a_message_are_those_of_the_table() {
    let limits = (requester_limits(), responder_limits());
    let data = vec![1; 600];
    let with = |op| job(op, data.clone());
    let jobs = vec![
        send(&data),
        with(RequestOp::Send {
            imm: imm(1),
            solicited: false,
        }),
        write(0, &data),
        with(RequestOp::Write {
            va: 0,
            r_key: KEY,
            imm: imm(2),
            solicited: false,
        }),
        read_job(0, 600),
        send(&[]),
        write(0, &[1]),
    ];
    let mut pair = Pair::new(Psn::new(0xff_fffe), limits, jobs);
    pair.owner.posted = vec![1024; 8].into();
    pair.owner.shared = true;
    pair.run();
    let sent: Vec<(u8, u32)> = pair
        .log
        .iter()
        .map(|&(op, psn)| (op.0, psn.get()))
        .collect();
    let expected = [
        (0x00, 0xff_fffe),
        (0x01, 0xff_ffff),
        (0x02, 0),
        (0x00, 1),
        (0x01, 2),
        (0x03, 3),
        (0x06, 4),
        (0x07, 5),
        (0x08, 6),
        (0x06, 7),
        (0x07, 8),
        (0x09, 9),
        (0x0c, 10),
        (0x04, 13),
        (0x0a, 14),
    ];
    assert_eq!(sent, expected, "the READ takes the PSNs 10 to 12");
}

#[test]
fn a_lost_packet_is_asked_for_once_and_all_behind_it_is_sent_again() {
    let mut limits = (requester_limits(), responder_limits());
    limits.0.ignore_credits = true;
    let mut pair = Pair::new(Psn::new(5), limits, vec![send(&[7; 256 * 6])]);
    pair.owner.posted = vec![2048].into();
    pair.owner.shared = true;
    let mut lost = false;
    let naks = std::rc::Rc::new(core::cell::Cell::new(0));
    let counted = naks.clone();
    pair.fate = Box::new(move |packet| {
        let is_nak = packet
            .extended
            .aeth
            .is_some_and(|aeth| aeth.syndrome.0 == 0x60);
        counted.set(counted.get() + u32::from(is_nak));
        if packet.bth.psn == Psn::new(7) && !core::mem::replace(&mut lost, true) {
            return Fate::Lost;
        }
        Fate::Arrives
    });
    // All go out before the first arrives.
    while pair.request() {}
    pair.run();
    assert_eq!((pair.completed.len(), naks.get()), (1, 1));
    let psns: Vec<u32> = pair.log.iter().map(|(_, psn)| psn.get()).collect();
    assert_eq!(psns, [5, 6, 7, 8, 9, 10, 7, 8, 9, 10]);
    assert!(pair.now.0 < 100_000, "no time-out was needed");
}

#[test]
fn the_rest_of_a_read_is_asked_for_when_a_part_is_lost() {
    let limits = (requester_limits(), responder_limits());
    let mut pair = Pair::new(Psn::new(5), limits, vec![read_job(0, 256 * 4)]);
    pair.owner.memory[..1024].copy_from_slice(&pattern(1024, 3));
    let mut lost = false;
    pair.fate = Box::new(move |packet| {
        let is_second = packet.bth.opcode.is_response() && packet.bth.psn == Psn::new(6);
        if is_second && !core::mem::replace(&mut lost, true) {
            return Fate::Lost;
        }
        Fate::Arrives
    });
    pair.run();
    assert_eq!(pair.jobs[0].data, pattern(1024, 3));
    let again = (Operation::READ_REQUEST, Psn::new(6));
    assert_eq!(pair.log, [(Operation::READ_REQUEST, Psn::new(5)), again]);
}
