//! What a responder refuses, what it says, and what the requester makes of it. protocols 2.4, 2.5.1; verbs 6.

use super::*;
use core_ib::wire::packet::{Extended, NakCode, Reth, Syndrome};

/// One packet in its turn for a responder with a region of 8192 bytes and a receive request of 300; what it answers.
fn answer(owner: &mut Owner, operation: Operation, extended: Extended, payload: &[u8]) -> u8 {
    let node = node();
    let mut responder = RcResponder::new(Psn::new(9), responder_limits());
    let flags = (extended, true, false);
    let bytes = make(&node, Service::Rc, operation, Psn::new(9), flags, payload);
    let taken = responder.receive(&read(&bytes), owner);
    let reply = responder.next_reply(owner.credits()).unwrap();
    let syndrome = reply.extended.aeth.unwrap().syndrome;
    assert_eq!(reply.psn, Psn::new(9));
    assert_eq!(
        taken.err().map(|refusal| Syndrome::nak(refusal.nak())),
        match syndrome.0 >> 5 {
            3 => Some(syndrome),
            _ => None,
        }
    );
    syndrome.0
}

fn reth(va: u64, r_key: RKey, dma_len: u32) -> Extended {
    Extended {
        reth: Some(Reth { va, r_key, dma_len }),
        ..Extended::default()
    }
}

#[test]
fn a_packet_that_is_wrong_is_answered_as_the_table_says() {
    const ACK: u8 = 0x1f;
    let full = [1; 256];
    let none = Extended::default();
    let rows: [(Operation, Extended, &[u8], u8); 21] = [
        (Operation::SEND_MIDDLE, none, &full, 0x61),
        (Operation::SEND_LAST, none, &[1], 0x61),
        (Operation::WRITE_MIDDLE, none, &full, 0x61),
        (Operation::SEND_FIRST, none, &full[..255], 0x61),
        (Operation::SEND_FIRST, none, &full, ACK),
        (Operation::SEND_ONLY, none, &[1; 257], 0x61),
        (Operation::SEND_ONLY, none, &[], ACK),
        (Operation::WRITE_ONLY, reth(0, KEY, 5), &[1; 4], 0x61),
        (Operation::WRITE_ONLY, reth(0, KEY, 3), &[1; 4], 0x61),
        (Operation::WRITE_ONLY, reth(0, KEY, 4), &[1; 4], ACK),
        (Operation::WRITE_FIRST, reth(0, KEY, 256), &full, 0x61),
        (
            Operation::WRITE_FIRST,
            reth(0, KEY, (1 << 31) + 1),
            &full,
            0x61,
        ),
        (
            Operation::WRITE_FIRST,
            reth(8192 - 256, KEY, 257),
            &full,
            0x62,
        ),
        (Operation::WRITE_ONLY, reth(8192 - 3, KEY, 4), &[1; 4], 0x62),
        (Operation::WRITE_ONLY, reth(0, RKey(1), 4), &[1; 4], 0x62),
        (Operation::WRITE_ONLY, reth(0, RKey(1), 0), &[], ACK),
        (Operation::READ_REQUEST, reth(0, KEY, 8193), &[], 0x62),
        (Operation::READ_REQUEST, reth(0, RKey(1), 1), &[], 0x62),
        (Operation::READ_REQUEST, reth(0, RKey(1), 0), &[], ACK),
        (
            Operation::READ_REQUEST,
            reth(0, KEY, (1 << 31) + 1),
            &[],
            0x61,
        ),
        (Operation::READ_REQUEST, reth(0, KEY, 600), &[], ACK),
    ];
    for (row, (operation, extended, payload, expected)) in rows.into_iter().enumerate() {
        let mut owner = Owner {
            memory: vec![0; 8192],
            posted: vec![300].into(),
            shared: true,
            ..Owner::default()
        };
        let found = answer(&mut owner, operation, extended, payload);
        assert_eq!(found, expected, "row {row}: {operation:?}");
        if expected != ACK {
            assert_eq!(owner.memory, vec![0; 8192], "row {row}");
        }
    }
}

/// A pair whose one job ends as it ends.
fn ends(job: Job, change: impl FnOnce(&mut Pair)) -> (Option<Failure>, Option<Refusal>) {
    let limits = (requester_limits(), responder_limits());
    let mut pair = Pair::new(
        Psn::new(0xff_ffff),
        limits,
        vec![send(&[5; 10]), job, send(&[6])],
    );
    pair.owner.posted = vec![10, 300].into();
    change(&mut pair);
    pair.run();
    assert_eq!(
        pair.completed,
        [0],
        "the one before is complete, the one behind is not"
    );
    (pair.requester.failure(), pair.refusal)
}

#[test]
fn a_refusal_ends_the_request_that_it_is_about() {
    use {Failure as F, Refusal as R};
    let nothing = |_: &mut Pair| ();
    let beyond = |len| read_job(8192 - 4, len);
    let rows: [(_, fn(&mut Pair), _, _); 6] = [
        (
            send(&[1; 301]),
            nothing,
            F::RemoteInvalidRequest,
            R::ReceiveLength,
        ),
        (
            write(8190, &[1; 3]),
            nothing,
            F::RemoteAccess,
            R::RemoteAccess,
        ),
        (beyond(8), nothing, F::RemoteAccess, R::RemoteAccess),
        (
            atomic(4, AtomicOp::FetchAdd { add: 1 }),
            nothing,
            F::RemoteInvalidRequest,
            R::InvalidRequest,
        ),
        (
            atomic(8192, AtomicOp::FetchAdd { add: 1 }),
            nothing,
            F::RemoteAccess,
            R::RemoteAccess,
        ),
        (
            write(0, &[1; 3]),
            |pair| {
                let access = RemoteAccess {
                    write: false,
                    ..responder_limits().access
                };
                let limits = ResponderLimits {
                    access,
                    ..responder_limits()
                };
                pair.responder.set_limits(limits);
            },
            F::RemoteInvalidRequest,
            R::InvalidRequest,
        ),
    ];
    for (job, change, failure, refusal) in rows {
        let op = job.request.op;
        assert_eq!(ends(job, change), (Some(failure), Some(refusal)), "{op:?}");
    }
}

#[test]
fn memory_that_goes_while_a_read_is_answered_ends_it() {
    let limits = (requester_limits(), responder_limits());
    let mut pair = Pair::new(Psn::new(1), limits, vec![read_job(0, 1024)]);
    while pair.request() {}
    pair.deliver();
    pair.reply();
    pair.owner.memory.truncate(256);
    pair.run();
    assert_eq!(pair.requester.failure(), Some(Failure::RemoteAccess));
    assert_eq!(pair.jobs[0].data.len(), 256);
}

#[test]
fn silence_ends_a_request_after_all_retries() {
    let limits = (
        RequesterLimits {
            retry_count: 3,
            ..requester_limits()
        },
        responder_limits(),
    );
    let mut pair = Pair::new(Psn::new(1), limits, vec![send(&[1]), send(&[2])]);
    pair.fate = Box::new(|_| Fate::Lost);
    pair.run();
    assert_eq!(pair.requester.failure(), Some(Failure::RetryExceeded));
    let first = pair
        .log
        .iter()
        .filter(|(_, psn)| *psn == Psn::new(1))
        .count();
    assert_eq!(first, 4);
}

#[test]
fn a_peer_that_is_not_ready_is_borne_as_often_as_allowed() {
    for (rnr_retry, times) in [(0, 1), (2, 3)] {
        let limits = (
            RequesterLimits {
                rnr_retry,
                ..requester_limits()
            },
            responder_limits(),
        );
        let mut pair = Pair::new(Psn::new(1), limits, vec![send(&[1])]);
        pair.run();
        assert_eq!(pair.requester.failure(), Some(Failure::RnrRetryExceeded));
        assert_eq!(pair.log.len(), times);
    }
    let mut pair = Pair::new(
        Psn::new(1),
        (requester_limits(), responder_limits()),
        vec![send(&[1])],
    );
    for _ in 0..100 {
        pair.request();
        pair.reply();
        pair.deliver();
        if let Some(due) = pair.requester.deadline() {
            pair.now = due;
            pair.requester.expired(due);
        }
    }
    assert!(pair.log.len() > 7, "seven is for ever");
    assert_eq!(pair.requester.failure(), None);
}

#[test]
fn more_reads_than_there_is_room_for_are_refused() {
    let limits = (
        RequesterLimits {
            max_rd_atomic: 4,
            ..requester_limits()
        },
        ResponderLimits {
            max_rd_atomic: 1,
            ..responder_limits()
        },
    );
    let mut pair = Pair::new(
        Psn::new(1),
        limits,
        vec![read_job(0, 256), read_job(0, 256)],
    );
    while pair.request() {}
    pair.deliver();
    pair.deliver();
    pair.run();
    assert_eq!(
        (&pair.completed[..], pair.refusal),
        ([0].as_slice(), Some(Refusal::InvalidRequest))
    );
    assert_eq!(
        pair.requester.failure(),
        Some(Failure::RemoteInvalidRequest)
    );
}

#[test]
fn an_answer_that_makes_no_sense_ends_the_request_and_a_ghost_does_not() {
    let node = node();
    let acknowledge = |psn, syndrome| {
        let msn = core_ib::wire::packet::Msn::new(1);
        let aeth = Some(core_ib::wire::packet::Aeth { syndrome, msn });
        let extended = Extended {
            aeth,
            ..Extended::default()
        };
        let flags = (extended, false, false);
        let operation = Operation::ACKNOWLEDGE;
        make(&node, Service::Rc, operation, Psn::new(psn), flags, &[])
    };
    let limits = (requester_limits(), responder_limits());
    let rows = [
        (
            acknowledge(0, Syndrome::nak(NakCode::REMOTE_ACCESS_ERROR)),
            None,
        ),
        (
            acknowledge(2, Syndrome::nak(NakCode::REMOTE_ACCESS_ERROR)),
            None,
        ),
        (acknowledge(1, Syndrome(0x80)), Some(Failure::BadResponse)),
        (acknowledge(1, Syndrome(0x45)), Some(Failure::BadResponse)),
        (
            acknowledge(1, Syndrome::nak(NakCode::new(9))),
            Some(Failure::BadResponse),
        ),
        (
            acknowledge(1, Syndrome::nak(NakCode::REMOTE_OPERATIONAL_ERROR)),
            Some(Failure::RemoteOperation),
        ),
    ];
    for (bytes, expected) in rows {
        let mut pair = Pair::new(Psn::new(1), limits, vec![send(&[1])]);
        pair.request();
        pair.requester.receive(&read(&bytes), pair.now);
        assert_eq!(pair.requester.failure(), expected);
    }
}

#[test]
fn a_send_beyond_the_credits_shows_one_packet_and_waits() {
    let limits = (requester_limits(), responder_limits());
    let mut pair = Pair::new(Psn::new(1), limits, vec![send(&[1; 700]), send(&[2; 10])]);
    while pair.request() {}
    assert_eq!(pair.log, [(Operation::SEND_FIRST, Psn::new(1))]);
    pair.owner.posted = vec![1000, 1000].into();
    pair.deliver();
    pair.reply();
    pair.deliver();
    while pair.request() {}
    assert_eq!(pair.log.len(), 4, "two receive requests were told of");
}
