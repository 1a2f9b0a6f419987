//! Unreliable connections: what arrives is whole, and what is lost costs its message.

use super::*;
use proptest::prelude::*;

/// Sends `jobs` over a channel that loses the packets whose numbers `lost` says, and gives what was received.
fn run(first: Psn, jobs: &[Job], lost: &dyn Fn(usize) -> bool, owner: &mut Owner) -> Vec<usize> {
    let node = node();
    let mut requester = UcRequester::new(first, MTU);
    let mut responder = UcResponder::new(first, MTU, responder_limits().access);
    let (mut completed, mut number) = (Vec::new(), 0);
    for (at, job) in jobs.iter().enumerate() {
        requester.begin(job.request, at);
        while let Some(transmit) = requester.transmit() {
            let packet = transmit.packet;
            let start = packet.offset as usize;
            let payload = &job.data[start..start + packet.len as usize];
            let flags = (packet.extended, transmit.ack_req, packet.solicited);
            let bytes = make(
                &node,
                Service::Uc,
                packet.operation,
                transmit.psn,
                flags,
                payload,
            );
            requester.sent(&transmit);
            if !lost(number) {
                responder.receive(&read(&bytes), owner).unwrap();
            }
            number += 1;
        }
        completed.push(requester.pop_completed().unwrap().1);
    }
    completed
}

proptest! {
    #[test]
    fn a_message_arrives_whole_or_not_at_all(
        lens in prop::collection::vec(prop_oneof![Just(0_usize), 1..900_usize], 1..20),
        lost in prop::collection::vec(any::<bool>(), 60), first: u32,
    ) {
        let jobs: Vec<Job> = lens.iter().enumerate()
            .map(|(at, &len)| send(&vec![at as u8 + 1; len])).collect();
        let mut owner = Owner { posted: vec![1024; 20].into(), ..Owner::default() };
        let is_lost = |number: usize| lost.get(number).copied().unwrap_or(false) && number.is_multiple_of(3);
        let completed = run(Psn::new(first), &jobs, &is_lost, &mut owner);
        prop_assert_eq!(completed, (0..jobs.len()).collect::<Vec<_>>());
        let mut number = 0;
        let mut whole = Vec::new();
        for job in &jobs {
            let count = packets(job.request.len, MTU) as usize;
            if (number..number + count).all(|number| !is_lost(number)) {
                whole.push(job.data.clone());
            }
            number += count;
        }
        let received: Vec<Vec<u8>> = owner.received.iter()
            .map(|(buffer, receipt)| buffer[..receipt.len as usize].to_vec()).collect();
        prop_assert_eq!(received, whole);
    }
}

#[test]
fn a_request_in_hand_is_kept_for_the_next_message() {
    let mut owner = Owner {
        posted: vec![1024].into(),
        ..Owner::default()
    };
    let jobs = [send(&[1; 700]), send(&[2; 10])];
    run(
        Psn::new(0xff_ffff),
        &jobs,
        &|number| number == 1,
        &mut owner,
    );
    let (buffer, receipt) = &owner.received[0];
    assert_eq!((&buffer[..10], receipt.len), ([2; 10].as_slice(), 10));
    assert_eq!(owner.received.len(), 1);
}

#[test]
fn a_write_that_is_not_allowed_is_silent() {
    let mut owner = Owner {
        memory: vec![0; 1000],
        posted: vec![0].into(),
        ..Owner::default()
    };
    let mut beyond = write(900, &[9; 300]);
    let mut wrong = write(0, &[9; 300]);
    if let RequestOp::Write { r_key, imm, .. } = &mut wrong.request.op {
        (*r_key, *imm) = (RKey(1), super::imm(1));
    }
    if let RequestOp::Write { imm, .. } = &mut beyond.request.op {
        *imm = super::imm(1);
    }
    let jobs = [beyond, wrong, write(8, &[3; 300])];
    run(Psn::new(1), &jobs, &|_| false, &mut owner);
    assert_eq!(&owner.memory[..8], [0; 8]);
    assert_eq!(&owner.memory[8..308], [3; 300]);
    assert_eq!(&owner.memory[308..], [0; 692]);
    assert!(owner.received.is_empty());
}
