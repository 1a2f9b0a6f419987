//! Both ends of a transfer against each other, over a wire that loses, doubles and reorders; and each end against
//! peers that do what they must not.

use super::*;
use crate::transaction::Patience;
use core_ib::Instant;
use core_ib::wire::mad::{AttributeId, ComponentMask, Method, SaHeader};
use proptest::prelude::*;
use std::vec;
use std::vec::Vec;

const fn ms(millis: u64) -> Instant {
    Instant(millis * 1_000_000)
}

/// The MAD of which the segments are copies: an answer of the SA, or one of a vendor class.
fn template(vendor: bool) -> Mad {
    let records = SaHeader::request(
        Method::GET_TABLE_RESP,
        AttributeId::NODE_RECORD,
        ComponentMask(5),
    );
    let mut mad = Mad::ZERO;
    records.write(&mut mad.0).unwrap();
    mad.0[8..16].copy_from_slice(&0x0000_0007_0000_0009_u64.to_be_bytes());
    if vendor {
        mad.0[1] = 0x33;
        mad.0[37..40].copy_from_slice(&[0x00, 0x14, 0x05]);
    }
    mad
}

fn sender(template: &Mad, len: usize, retries: u8) -> RmppSender {
    RmppSender::new(template, len, Patience::new(100, retries), ms(0)).unwrap()
}

/// What the wire does to a packet: how long it takes (in ms), whether it arrives, whether once more and when.
#[derive(Clone, Copy, Debug)]
struct Fate {
    lost: bool,
    delay: u64,
    again: Option<u64>,
}

const SMOOTH: Fate = Fate {
    lost: false,
    delay: 1,
    again: None,
};

/// Packets under way: when they arrive, to which end.
struct Wire<'f> {
    fates: core::iter::Cycle<core::slice::Iter<'f, Fate>>,
    packets: Vec<(u64, bool, Mad)>,
}

impl Wire<'_> {
    fn send(&mut self, now: u64, to_receiver: bool, mad: Mad) {
        let fate = self.fates.next().unwrap();
        if !fate.lost {
            self.packets.push((now + fate.delay, to_receiver, mad));
        }
        if let Some(later) = fate.again {
            self.packets.push((now + later, to_receiver, mad));
        }
    }

    fn arrived(&mut self, now: u64) -> Option<(bool, Mad)> {
        let index = self.packets.iter().position(|&(at, ..)| at <= now)?;
        let (_, to_receiver, mad) = self.packets.swap_remove(index);
        Some((to_receiver, mad))
    }
}

/// How a transfer ended at both ends.
struct Outcome {
    sent: Result<(), RmppError>,
    received: Option<Result<usize, RmppError>>,
    buffer: Vec<u8>,
    segments_sent: u32,
    acks: u32,
}

/// Runs a transfer in virtual milliseconds until the sender is done and all is quiet.
fn transfer(message: &[u8], vendor: bool, window: u32, room: usize, fates: &[Fate]) -> Outcome {
    let mut sender = sender(&template(vendor), message.len(), 20);
    let mut receiver: Option<RmppReceiver> = None;
    let mut wire = Wire {
        fates: fates.iter().cycle(),
        packets: vec![],
    };
    let (mut sent, mut received) = (None, None);
    let mut buffer = vec![0xee; room];
    let (mut segments_sent, mut acks) = (0, 0);
    for now in 0..60_000 {
        while let Some((to_receiver, mad)) = wire.arrived(now) {
            if !to_receiver {
                assert!(is_control(&mad) && mad.0[3] == 0x12, "method toggled");
                sender.handle(&mad, ms(now));
                continue;
            }
            if receiver.is_none() && !is_control(&mad) {
                receiver = Some(RmppReceiver::new(&mad, window, ms(now)).unwrap());
            }
            if let Some(receiver) = &mut receiver {
                receiver.handle(&mad, &mut buffer, ms(now));
            }
        }
        loop {
            match sender.poll(ms(now)) {
                SenderNext::Segment { number, bytes } => {
                    segments_sent += 1;
                    wire.send(now, true, sender.segment(number, &message[bytes]));
                }
                SenderNext::Control(mad) => wire.send(now, true, mad),
                SenderNext::Done(result) => {
                    sent.get_or_insert(result);
                    break;
                }
                SenderNext::WaitUntil(at) => {
                    assert!(at > ms(now), "asks to be polled in the past");
                    break;
                }
            }
        }
        while let Some(end) = &mut receiver {
            match end.poll(ms(now)) {
                ReceiverNext::Control(mad) => {
                    acks += 1;
                    wire.send(now, false, mad);
                }
                ReceiverNext::Complete { len } => {
                    assert_eq!(received, None, "ended twice");
                    received = Some(Ok(len));
                }
                ReceiverNext::Failed(error) => {
                    assert_eq!(received, None, "ended twice");
                    received = Some(Err(error));
                }
                ReceiverNext::WaitUntil(_) | ReceiverNext::Over => break,
            }
        }
        if sent.is_some() && wire.packets.is_empty() {
            break;
        }
    }
    Outcome {
        sent: sent.expect("a sender ends"),
        received,
        buffer,
        segments_sent,
        acks,
    }
}

fn message(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

#[test]
fn a_table_of_three_node_records_is_two_segments_as_in_the_reference() {
    let data = message(336);
    let sender = sender(&template(false), data.len(), 3);
    assert_eq!(sender.segments(), 2);
    let (first, last) = (
        sender.segment(1, &data[..200]),
        sender.segment(2, &data[200..]),
    );
    // protocols 4.3.2: version, type, no time + flags, status, segment, payload length.
    assert_eq!(first.0[24..36], [1, 1, 0xfb, 0, 0, 0, 0, 1, 0, 0, 1, 120]); // 376
    assert_eq!(last.0[24..36], [1, 1, 0xfd, 0, 0, 0, 0, 2, 0, 0, 0, 156]);
    assert_eq!(first.0[56..], data[..200]);
    assert_eq!(
        (&last.0[56..192], &last.0[192..]),
        (&data[200..], &[0; 64][..])
    );
    assert_eq!(first.0[..24], template(false).0[..24]);
    assert_eq!(last.0[36..56], template(false).0[36..56]);
}

#[test]
fn one_path_record_is_one_segment_with_all_flags() {
    let sender = sender(&template(false), 64, 3);
    let mad = sender.segment(1, &[9; 64]);
    assert_eq!(mad.0[24..36], [1, 1, 0xff, 0, 0, 0, 0, 1, 0, 0, 0, 84]);
}

#[test]
fn only_the_first_segment_leaves_before_an_ack_and_the_window_holds() {
    let data = message(2000);
    let mut sender = sender(&template(false), data.len(), 3);
    let mut seen = vec![];
    let mut drain = |sender: &mut RmppSender| {
        while let SenderNext::Segment { number, .. } = sender.poll(ms(1)) {
            seen.push(number);
        }
        core::mem::take(&mut seen)
    };
    assert_eq!(drain(&mut sender), [1]);
    let ack = |segment: u32, window: u32| {
        let mut mad = template(false);
        mad.0[3] ^= 0x80;
        let header = RmppHeader {
            segment,
            length_or_window: window,
            ..control_header(RmppType::ACK, RmppStatus::NORMAL)
        };
        put(&mut mad, &header);
        mad
    };
    sender.handle(&ack(1, 4), ms(1));
    assert_eq!(drain(&mut sender), [2, 3, 4]);
    sender.handle(&ack(3, 4), ms(1));
    assert_eq!(drain(&mut sender), []);
    sender.handle(&ack(4, 40), ms(1));
    assert_eq!(drain(&mut sender), [5, 6, 7, 8, 9, 10]);
    // Lost from 7 on: after the timeout it begins there again.
    sender.handle(&ack(6, 40), ms(50));
    assert_eq!(sender.poll(ms(149)), SenderNext::WaitUntil(ms(150)));
    let again = sender.poll(ms(150));
    assert!(matches!(again, SenderNext::Segment { number: 7, .. }));
    sender.handle(&ack(10, 40), ms(151));
    assert_eq!(sender.poll(ms(151)), SenderNext::Done(Ok(())));
}

#[test]
fn the_answer_to_a_long_request_waits_until_the_peer_is_ready() {
    let mut request = template(false);
    request.0[3] = 0x12;
    let mut answer = sender(&template(false), 500, 3).awaiting_ready();
    assert!(matches!(answer.poll(ms(0)), SenderNext::WaitUntil(_)));
    let mut receiver = RmppReceiver::of_answer_to(&request, 8, ms(0)).unwrap();
    let ReceiverNext::Control(ready) = receiver.poll(ms(0)) else {
        panic!("says that it is ready");
    };
    assert_eq!(ready.0[3], 0x12);
    assert_eq!(ready.0[24..36], [1, 2, 0xf9, 0, 0, 0, 0, 0, 0, 0, 0, 8]);
    answer.handle(&ready, ms(1));
    for expected in 1..=3 {
        let next = answer.poll(ms(1));
        assert!(matches!(next, SenderNext::Segment { number, .. } if number == expected));
    }
}

#[test]
fn a_smooth_wire_needs_every_segment_once() {
    let data = message(200 * 100);
    let end = transfer(&data, false, 8, data.len(), &[SMOOTH]);
    assert_eq!((end.sent, end.received), (Ok(()), Some(Ok(data.len()))));
    assert_eq!(end.buffer, data);
    assert_eq!(end.segments_sent, 100);
    assert_eq!(end.acks, 14); // of segments 1, 9, 17 … 97, and the last
}

#[test]
fn a_buffer_that_is_too_small_stops_the_peer_at_the_first_segment() {
    let end = transfer(&message(1000), false, 8, 999, &[SMOOTH]);
    let status = RmppStatus::RESOURCES_EXHAUSTED;
    assert_eq!(end.sent, Err(RmppError::Stopped { status }));
    let (need, room) = (1000, 999);
    let error = RmppError::BufferTooSmall { need, room };
    assert_eq!(end.received, Some(Err(error)));
    assert_eq!(end.segments_sent, 1);
}

#[test]
fn a_peer_that_is_silent_is_given_up_after_all_retries() {
    let mut sender = sender(&template(false), 10, 2);
    let mut sent = 0;
    for now in (0..1000).step_by(50) {
        match sender.poll(ms(now)) {
            SenderNext::Segment { .. } => sent += 1,
            SenderNext::Control(mad) => {
                assert_eq!((mad.0[3], &mad.0[24..28]), (0x92, &[1, 4, 0xf9, 126][..]));
                assert_eq!(now, 300);
            }
            SenderNext::Done(result) => {
                let status = RmppStatus::TOO_MANY_RETRIES;
                assert_eq!(result, Err(RmppError::GaveUp { status }));
            }
            SenderNext::WaitUntil(_) => {}
        }
    }
    assert_eq!(sent, 3);
}

#[test]
fn a_message_that_takes_too_long_is_aborted() {
    let data = message(1000);
    let sender = sender(&template(false), data.len(), 3);
    let mad = sender.segment(1, &data[..200]);
    let mut receiver = RmppReceiver::new(&mad, 8, ms(0)).unwrap();
    let mut buffer = [0; 1000];
    receiver.handle(&mad, &mut buffer, ms(0));
    assert!(matches!(receiver.poll(ms(0)), ReceiverNext::Control(_)));
    assert_eq!(receiver.poll(ms(0)), ReceiverNext::WaitUntil(ms(40_000)));
    let ReceiverNext::Control(mad) = receiver.poll(ms(40_000)) else {
        panic!("aborts");
    };
    assert_eq!(mad.0[25..28], [4, 0xf9, 118]);
    let status = RmppStatus::TOTAL_TIME_TOO_LONG;
    let failed = ReceiverNext::Failed(RmppError::GaveUp { status });
    assert_eq!(receiver.poll(ms(40_000)), failed);
    assert_eq!(receiver.poll(ms(40_000)), ReceiverNext::Over);
}

#[test]
fn a_finished_receiver_acknowledges_again_for_a_while() {
    let sender = sender(&template(false), 64, 3);
    let mad = sender.segment(1, &[7; 64]);
    let mut receiver = RmppReceiver::new(&mad, 8, ms(0)).unwrap();
    let mut buffer = [0; 64];
    receiver.handle(&mad, &mut buffer, ms(0));
    assert!(matches!(receiver.poll(ms(0)), ReceiverNext::Control(_)));
    assert_eq!(receiver.poll(ms(0)), ReceiverNext::Complete { len: 64 });
    buffer = [0; 64]; // the owner has moved on
    receiver.handle(&mad, &mut buffer, ms(100));
    let again = receiver.poll(ms(100));
    assert!(matches!(again, ReceiverNext::Control(ack) if ack.0[31] == 1));
    assert_eq!(buffer, [0; 64]);
    assert_eq!(receiver.poll(ms(100)), ReceiverNext::WaitUntil(ms(10_000)));
    assert_eq!(receiver.poll(ms(10_000)), ReceiverNext::Over);
}

/// A first segment, then `change`d another: the status of the ABORT that it earns.
fn abort_earned_by(segment: u32, change: impl Fn(&mut RmppHeader)) -> u8 {
    let data = message(1000);
    let sender = sender(&template(false), data.len(), 3);
    let first = sender.segment(1, &data[..200]);
    let mut receiver = RmppReceiver::new(&first, 64, ms(0)).unwrap();
    let mut buffer = [0; 1000];
    receiver.handle(&first, &mut buffer, ms(0));
    receiver.poll(ms(0));
    let mut bad = sender.segment(segment, &data[..200]);
    let mut bad_header = header(&bad);
    change(&mut bad_header);
    put(&mut bad, &bad_header);
    receiver.handle(&bad, &mut buffer, ms(1));
    let ReceiverNext::Control(mad) = receiver.poll(ms(1)) else {
        return 0;
    };
    if mad.0[25] == RmppType::ABORT.0 {
        mad.0[27]
    } else {
        0
    }
}

#[test]
fn what_a_sender_must_not_do_is_answered_with_the_abort_of_the_table() {
    let earned = [
        abort_earned_by(2, |_| {}),
        abort_earned_by(2, |rmpp| rmpp.version = 2),
        abort_earned_by(2, |rmpp| rmpp.kind = RmppType(9)),
        abort_earned_by(2, |rmpp| rmpp.status = RmppStatus(3)),
        abort_earned_by(2, |rmpp| rmpp.flags |= RmppFlags::FIRST),
        abort_earned_by(2, |rmpp| rmpp.segment = 0),
        abort_earned_by(2, |rmpp| rmpp.flags |= RmppFlags::LAST), // of five
        abort_earned_by(2, |rmpp| {
            rmpp.flags |= RmppFlags::LAST; // likewise, and nothing else wrong
            rmpp.length_or_window = 220;
        }),
        abort_earned_by(5, |rmpp| rmpp.length_or_window = 221),
        abort_earned_by(5, |rmpp| rmpp.length_or_window = 19),
        abort_earned_by(5, |rmpp| rmpp.flags.remove(RmppFlags::LAST)),
        abort_earned_by(5, |_| {}),
    ];
    assert_eq!(
        earned,
        [0, 125, 121, 124, 120, 120, 119, 119, 119, 119, 119, 0]
    );
}

/// An ACK that a sender of ten segments, of which one went out, must not believe: the status of its ABORT.
fn abort_earned_by_ack(segment: u32, window: u32, status: u8, version: u8) -> u8 {
    let mut sender = sender(&template(false), 2000, 3);
    sender.poll(ms(0));
    let mut mad = template(false);
    let header = RmppHeader {
        version,
        segment,
        length_or_window: window,
        ..control_header(RmppType::ACK, RmppStatus(status))
    };
    put(&mut mad, &header);
    sender.handle(&mad, ms(1));
    match sender.poll(ms(1)) {
        SenderNext::Control(mad) if mad.0[25] == RmppType::ABORT.0 => mad.0[27],
        _ => 0,
    }
}

#[test]
fn what_a_receiver_must_not_acknowledge_is_answered_with_the_abort_of_the_table() {
    let earned = [
        abort_earned_by_ack(1, 64, 0, 1),
        abort_earned_by_ack(2, 64, 0, 1),
        abort_earned_by_ack(1, 0, 0, 1),
        abort_earned_by_ack(1, 64, 7, 1),
        abort_earned_by_ack(1, 64, 0, 0),
    ];
    assert_eq!(earned, [0, 123, 122, 124, 125]);
}

#[test]
fn a_segment_that_comes_before_another_is_told_at_once() {
    let data = message(1000);
    let sender = sender(&template(false), data.len(), 3);
    let segment = |number: u32| {
        let start = (number as usize - 1) * 200;
        sender.segment(number, &data[start..][..200])
    };
    let mut receiver = RmppReceiver::new(&segment(1), 4, ms(0)).unwrap();
    let mut buffer = [0; 1000];
    let mut acked_after = |number| {
        receiver.handle(&segment(number), &mut buffer, ms(0));
        match receiver.poll(ms(0)) {
            ReceiverNext::Control(ack) => Some(header(&ack).segment),
            _ => None,
        }
    };
    let acked = [1, 2, 4].map(&mut acked_after);
    assert_eq!(acked, [Some(1), None, Some(2)], "the third is missing");
}

#[test]
fn a_class_without_rmpp_is_refused() {
    let mut mad = template(false);
    mad.0[1] = 0x04;
    let class = MgmtClass(0x04);
    let error = Err(RmppError::NotRmpp { class });
    assert_eq!(RmppReceiver::new(&mad, 8, ms(0)).map(|_| ()), error);
    let sender = RmppSender::new(&mad, 1, Patience::QUERY, ms(0));
    assert_eq!(sender.map(|_| ()), error);
    assert!(!is_active(&Mad([0xff; 256])), "class 0xff");
}

fn fate(rough: bool) -> impl Strategy<Value = Fate> {
    let lost = if rough { 3 } else { 0 };
    (
        prop_oneof![10 - lost => Just(false), lost => Just(true)],
        prop_oneof![3 => Just(1_u64), 1 => 1..40_u64],
        prop_oneof![6 => Just(None), 1 => (1..300_u64).prop_map(Some)],
    )
        .prop_map(|(lost, delay, again)| Fate { lost, delay, again })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_message_arrives_whole_or_not_at_all_whatever_the_wire_does(
        len in prop_oneof![0..6_usize, 190..220_usize, 0..9000_usize],
        vendor: bool,
        window in 1..80_u32,
        fates in proptest::collection::vec(fate(true), 20..60),
    ) {
        let data = message(len);
        let end = transfer(&data, vendor, window, len, &fates);
        if end.sent.is_ok() {
            prop_assert_eq!(end.received, Some(Ok(len)), "what was acknowledged is there");
        }
        if let Some(Ok(got)) = end.received {
            prop_assert_eq!(got, len);
            prop_assert!(end.buffer == data);
        }
    }

    #[test]
    fn a_wire_that_only_doubles_and_reorders_loses_nothing(
        len in 0..9000_usize,
        vendor: bool,
        window in 1..80_u32,
        fates in proptest::collection::vec(fate(false), 20..60),
    ) {
        let data = message(len);
        let end = transfer(&data, vendor, window, len, &fates);
        prop_assert_eq!((end.sent, end.received), (Ok(()), Some(Ok(len))));
        prop_assert!(end.buffer == data);
    }

    #[test]
    fn no_mad_makes_an_end_write_past_its_buffer_or_never_end(
        segments in proptest::collection::vec(
            (0..5_u8, 0..8_u8, 0..4_u32, prop_oneof![0..260_u32, any::<u32>()]), 1..40
        ),
        room in 0..700_usize,
    ) {
        let mut buffer = vec![0; room];
        let first = sender(&template(false), 600, 3).segment(1, &[1; 200]);
        let mut receiver = RmppReceiver::new(&first, 64, ms(0)).unwrap();
        let mut end = None;
        for (now, (kind, flags, segment, length)) in segments.into_iter().enumerate() {
            let mut mad = first;
            let header = RmppHeader {
                flags: RmppFlags::from_bits_truncate(flags) | RmppFlags::ACTIVE,
                segment,
                length_or_window: length,
                ..control_header(RmppType(kind), RmppStatus::NORMAL)
            };
            put(&mut mad, &header);
            receiver.handle(&mad, &mut buffer, ms(now as u64));
            loop {
                match receiver.poll(ms(now as u64)) {
                    ReceiverNext::Complete { len } => {
                        prop_assert!(len <= room);
                        prop_assert_eq!(end.replace(()), None);
                    }
                    ReceiverNext::Failed(_) => prop_assert_eq!(end.replace(()), None),
                    ReceiverNext::Control(mad) => prop_assert!(is_control(&mad)),
                    ReceiverNext::WaitUntil(_) | ReceiverNext::Over => break,
                }
            }
        }
        while !matches!(receiver.poll(ms(60_000)), ReceiverNext::Over) {}
    }
}
