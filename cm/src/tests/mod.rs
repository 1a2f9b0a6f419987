//! Two communication managers and what is between them.

mod chance;
mod heed;
mod more;
mod rest;
mod table;

use crate::*;
use core::time::Duration;
use core_ib::verbs::QpHandle;
use core_ib::wire::mad::{AttributeId, Mad, RejReason, ServiceId, TimeCode};
use core_ib::{Gid, Guid, Instant, Lid, Mtu, Psn, Qpn};
use ib_mad::{AgentId, Outgoing, Received, SpecialQp};
use std::vec::Vec;

pub(crate) type TestCm = Cm<ArrayStore<8, 2, 4>>;

pub(crate) const SERVICE: ServiceId = ServiceId(0x1000_0000_0000_0048);

pub(crate) fn ms(at: u64) -> Instant {
    Instant(at * 1_000_000)
}

/// One host: 0 or 1, or further incarnations of them.
pub(crate) fn cm(side: usize, life: u32) -> TestCm {
    let guid = Guid(0x100 + side as u64);
    let seed = 0x7000_0000 + 0x0101_0101 * side as u32 + 0x1357 * life;
    Cm::new(AgentId::new(7), guid, seed, ArrayStore::new())
}

pub(crate) fn path(side: usize) -> Path {
    let lid = |side| Lid(10 + side as u16);
    let gid = |side| Gid::unicast(Gid::DEFAULT_PREFIX, Guid(0x200 + side as u64));
    Path {
        port: 1,
        local_lid: lid(side),
        remote_lid: lid(1 - side),
        local_gid: gid(side),
        remote_gid: gid(1 - side),
        life_time: TimeCode(8), // 1 ms
        ..Path::default()
    }
}

pub(crate) fn connect(side: usize, qpn: u32, qp: Option<QpHandle>) -> Connect<'static> {
    Connect {
        qp,
        qpn: Qpn::new(qpn),
        psn: Psn::new(0x1111),
        remote_timeout: TimeCode(11), // 8 ms
        local_timeout: TimeCode(11),
        max_retries: 5,
        ack_delay: TimeCode(0),
        private: b"private",
        ..Connect::new(SERVICE, path(side), Mtu::Mtu2048)
    }
}

pub(crate) fn accept(qpn: u32, qp: Option<QpHandle>) -> Accept<'static> {
    let local = Local {
        port: 1,
        ..Local::default()
    };
    Accept {
        ack_delay: TimeCode(0),
        ..Accept::new(qp, Qpn::new(qpn), Psn::new(0x2222), local)
    }
}

/// The MAD as the host at the other end gets it.
pub(crate) fn arrives(mad: Mad, from: usize) -> Received {
    let mut received = Received::looped_back(SpecialQp::Gsi, mad);
    received.wc.slid = Lid(10 + from as u16);
    received
}

/// All that is due at `now`: messages and news. Wishes are granted.
pub(crate) fn drain(cm: &mut TestCm, now: Instant) -> (Vec<Mad>, Vec<Event>) {
    let (mut sent, mut news) = (Vec::new(), Vec::new());
    for _ in 0..1000 {
        match cm.poll(now) {
            CmNext::Send(Outgoing { mad, .. }) => sent.push(mad),
            CmNext::Event(event) => news.push(event),
            CmNext::Wish(wish) => cm.granted(&wish.granted(Ok(())), now),
            CmNext::WaitUntil(at) => {
                assert!(at > now, "due {at:?} at {now:?}");
                return (sent, news);
            }
        }
    }
    panic!("does not come to an end: {sent:?}");
}

pub(crate) fn kinds(mads: &[Mad]) -> Vec<AttributeId> {
    mads.iter().map(|mad| mad.header().attribute).collect()
}

pub(crate) fn the_one(mads: Vec<Mad>, kind: AttributeId) -> Mad {
    assert_eq!(kinds(&mads), [kind]);
    mads[0]
}

/// A connection from 0 to 1, established.
pub(crate) fn connected() -> ([TestCm; 2], [ConnId; 2]) {
    let mut cms = [cm(0, 0), cm(1, 0)];
    cms[1].listen(&Listen::to(SERVICE, 77)).unwrap();
    let now = ms(0);
    let [a, b] = &mut cms;
    let active = a.connect(&connect(0, 0x40, None), now).unwrap();
    let req = the_one(drain(a, now).0, AttributeId::CM_REQ);
    b.handle(&arrives(req, 0), now);
    let (_, news) = drain(b, now);
    let [
        Event::Request {
            conn: passive,
            cookie: 77,
            ..
        },
    ] = news[..]
    else {
        panic!("{news:?}");
    };
    b.accept(passive, &accept(0x50, None), now).unwrap();
    let rep = the_one(drain(b, now).0, AttributeId::CM_REP);
    a.handle(&arrives(rep, 1), now);
    assert!(matches!(drain(a, now).1[..], [Event::Reply { .. }]));
    a.ready(active, b"go").unwrap();
    let (sent, news) = drain(a, now);
    assert!(matches!(news[..], [Event::Established { .. }]));
    b.handle(&arrives(the_one(sent, AttributeId::CM_RTU), 0), now);
    assert!(matches!(drain(b, now).1[..], [Event::Established { .. }]));
    (cms, [active, passive])
}

#[test]
fn a_connection_is_made_and_ended_and_nothing_is_left() {
    let ([mut a, mut b], [active, passive]) = connected();
    let now = ms(5);
    a.disconnect(active, b"bye", now).unwrap();
    let dreq = the_one(drain(&mut a, now).0, AttributeId::CM_DREQ);
    b.handle(&arrives(dreq, 0), now);
    assert!(matches!(
        drain(&mut b, now).1[..],
        [Event::Disconnecting { .. }]
    ));
    b.release(passive, &[], now).unwrap();
    let drep = the_one(drain(&mut b, now).0, AttributeId::CM_DREP);
    a.handle(&arrives(drep, 1), now);
    assert!(matches!(
        drain(&mut a, now).1[..],
        [Event::Disconnected { .. }]
    ));
    assert_eq!([&a, &b].map(|cm| cm.connections()), [1, 1]);
    let later = ms(100);
    for cm in [&mut a, &mut b] {
        assert!(matches!(drain(cm, later).1[..], [Event::Gone { .. }]));
        assert_eq!(cm.connections(), 0);
    }
}

#[test]
fn who_asks_for_what_nobody_serves_is_rejected_with_reason_8() {
    let (mut a, mut b) = (cm(0, 0), cm(1, 0));
    let conn = a.connect(&connect(0, 0x40, None), ms(0)).unwrap();
    let req = the_one(drain(&mut a, ms(0)).0, AttributeId::CM_REQ);
    b.handle(&arrives(req, 0), ms(0));
    let rej = the_one(drain(&mut b, ms(0)).0, AttributeId::CM_REJ);
    a.handle(&arrives(rej, 1), ms(1));
    let (sent, news) = drain(&mut a, ms(1));
    assert!(sent.is_empty());
    let [Event::Rejected { rej, .. }, Event::Gone { conn: gone, .. }] = news[..] else {
        panic!("{news:?}");
    };
    assert_eq!((rej.reason, gone), (RejReason::INVALID_SERVICE_ID, conn));
    assert_eq!(a.connections() + b.connections(), 0);
}

#[test]
fn who_is_not_answered_repeats_himself_and_gives_up_with_his_guid() {
    let mut a = cm(0, 0);
    a.connect(&connect(0, 0x40, None), ms(0)).unwrap();
    let mut reqs = drain(&mut a, ms(0)).0;
    let mut now = ms(0);
    for _ in 0..20 {
        let CmNext::WaitUntil(at) = a.poll(now) else {
            panic!("something is due");
        };
        // 8.4 ms to answer, and twice 1.05 ms on the way.
        assert_eq!(
            at.since(now),
            Duration::from_nanos((4096 << 11) + (4096 << 9))
        );
        now = at;
        let (sent, news) = drain(&mut a, now);
        if news.is_empty() {
            reqs.extend(sent);
            continue;
        }
        let rej = the_one(sent, AttributeId::CM_REJ).0;
        assert_eq!(rej[24 + 8..][..4], [0x80, 16, 0, 4]); // no message; 8 bytes of ARI; timeout
        assert_eq!(rej[24 + 12..][..8], 0x100_u64.to_be_bytes());
        let timed_out = Failure::TimedOut;
        assert!(
            matches!(news[..], [Event::Failed { why, .. }, Event::Gone { .. }] if why == timed_out)
        );
        assert_eq!(reqs.len(), 6, "once, and five times more");
        assert!(
            reqs.iter().all(|req| req == &reqs[0]),
            "same contents and TID"
        );
        return;
    }
    panic!("never gives up");
}
