//! Connections that come and go while others are under load. verbs 1.5: contexts that make, use and end objects at once do
//! not hear of one another.

use super::tools::{Buffer, Link, Station, activate, qp_init};
use super::{Features, Rig, Side};
use core_ib::platform::DmaBuf;
use core_ib::verbs::{
    Access, CqInit, Device, Owner, QpAttrMask as M, QpState, QpType, SendOp, WcOpcode, WcStatus,
};

const SEND: SendOp = SendOp::Send { imm: None };

/// Messages of a life.
pub(super) const MESSAGES: u64 = 6;
/// Room for each.
pub(super) const ROOM: u64 = 8 << 10;
/// Bytes of each piece of memory.
const BYTES: usize = 64 << 10;

/// Memory of a user: of A, of B, and what B lends to A.
pub(super) type Memory<'m, P> = [DmaBuf<'m, P>; 3];

/// verbs 1.5: two users, each with connections of its own between the same two HCAs, one after the other. Every message
/// arrives whole, every request completes once or its QP is gone, and everything can be ended at any moment.
pub fn connections_come_and_go_beside_others<R: Rig>(rig: &R) {
    if !rig.declared().has(Features::RC) {
        return;
    }
    activate(rig);
    rig.together(&|| live(rig, 1, 8), &|| live(rig, 2, 8));
}

fn live<R: Rig>(rig: &R, who: u64, count: u64) {
    let mut memory = memory_of(rig);
    for number in 0..count {
        let link = begin(rig, QpType::Rc, memory);
        exchange(&link, who << 8 | number);
        match (number + who) % 4 {
            0 => with_all_outstanding(&link),
            1 => by_way_of_err(&link),
            2 => anew(&link, who << 8 | number),
            _ => {}
        }
        memory = end(link);
    }
}

/// Memory of a new user.
pub(super) fn memory_of<R: Rig>(rig: &R) -> Memory<'_, R::Machine> {
    [Side::A, Side::B, Side::B].map(|side| DmaBuf::new(rig.machine(side), BYTES, 4096).unwrap())
}

/// A connection, and all that it takes.
pub(super) fn begin<'r, R: Rig>(
    rig: &'r R,
    service: QpType,
    memory: Memory<'r, R::Machine>,
) -> Link<'r, R> {
    let [of_a, of_b, lent] = memory;
    let buffer = |side, pd, memory: DmaBuf<'r, R::Machine>, access| {
        let (iova, len) = (Buffer::<R::Machine>::IOVA, memory.len() as u64);
        let mr = Buffer::register(rig.hca(side), pd, &memory, iova, len, access).unwrap();
        Buffer { memory, mr, iova }
    };
    let station = |side, memory| {
        let init = CqInit {
            cqe: 64,
            vector: 0,
            owner: Owner::Kernel,
        };
        let pd = rig.hca(side).alloc_pd().unwrap();
        Station {
            rig,
            side,
            pd,
            cq: rig.hca(side).create_cq(&init).unwrap().handle,
            buffer: buffer(side, pd, memory, Access::LOCAL_WRITE),
        }
    };
    let (a, b) = (station(Side::A, of_a), station(Side::B, of_b));
    let qp = |station: &Station<'r, R>| {
        let mut init = qp_init(service, station.cq);
        (init.caps.max_send_wr, init.caps.max_recv_wr) = (16, 16);
        station.create(&init)
    };
    let mut rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    if service == QpType::Rc {
        rights |= Access::REMOTE_READ;
    }
    let link = Link {
        service,
        qa: qp(&a),
        qb: qp(&b),
        remote: buffer(Side::B, b.pd, lent, rights),
        a,
        b,
    };
    for side in Side::BOTH {
        link.bring_to(side, QpState::Rts, |_| ());
    }
    link
}

/// Everything goes, whatever is still under way.
pub(super) fn end<'r, R: Rig>(link: Link<'r, R>) -> Memory<'r, R::Machine> {
    let (hca_a, hca_b) = (link.a.hca(), link.b.hca());
    hca_a.destroy_qp(link.qa.handle).unwrap();
    hca_b.destroy_qp(link.qb.handle).unwrap();
    hca_b.dereg_mr(link.remote.mr.handle).unwrap();
    for station in [&link.a, &link.b] {
        station.hca().destroy_cq(station.cq).unwrap();
        station.hca().dereg_mr(station.buffer.mr.handle).unwrap();
        station.hca().dealloc_pd(station.pd).unwrap();
    }
    [
        link.a.buffer.memory,
        link.b.buffer.memory,
        link.remote.memory,
    ]
}

pub(super) fn pattern(seed: u64, len: u64) -> Vec<u8> {
    let byte = |at| ((at + seed * 7) % 251) as u8;
    (0..len).map(byte).collect()
}

/// Messages from A to B, what is written and what is read back: all of it is checked.
pub(super) fn exchange<R: Rig>(link: &Link<'_, R>, seed: u64) {
    let (a, b) = (&link.a, &link.b);
    let length = |n: u64| 1 + (seed * 31 + n * 997) % (ROOM - 1);
    for n in 0..MESSAGES {
        b.receive(link.qb.handle, n, &[b.buffer.sge(n * ROOM, ROOM as u32)]);
    }
    for n in 0..MESSAGES {
        a.buffer
            .put((n * ROOM) as usize, &pattern(seed + n, length(n)));
        let sges = [a.buffer.sge(n * ROOM, length(n) as u32)];
        a.send(link.qa.handle, n, SEND, &sges);
    }
    let (sent, received) = (
        a.completions(MESSAGES as usize),
        b.completions(MESSAGES as usize),
    );
    for (n, (sent, received)) in (0..).zip(sent.iter().zip(&received)) {
        assert_eq!((sent.wr_id, sent.status), (n, WcStatus::Success));
        assert_eq!((received.wr_id, received.status), (n, WcStatus::Success));
        assert_eq!(u64::from(received.byte_len), length(n));
        let came = b.buffer.bytes((n * ROOM) as usize, length(n) as usize);
        assert!(
            came == pattern(seed + n, length(n)),
            "message {n} of {seed}"
        );
    }
    let data = pattern(!seed & 0xff, ROOM);
    a.buffer.put(0, &data);
    let write = SendOp::RdmaWrite {
        remote: link.at(0),
        imm: None,
    };
    assert_eq!(
        link.carry_out(write, 0, ROOM as u32).status,
        WcStatus::Success
    );
    if link.service != QpType::Rc {
        return;
    }
    let read = SendOp::RdmaRead { remote: link.at(0) };
    let wc = link.carry_out(read, ROOM, ROOM as u32);
    assert_eq!(
        (wc.status, wc.opcode),
        (WcStatus::Success, WcOpcode::RdmaRead)
    );
    assert!(a.buffer.bytes(ROOM as usize, ROOM as usize) == data);
}

/// Requests of every kind, of which some have a receive and some wait for one.
pub(super) fn with_all_outstanding<R: Rig>(link: &Link<'_, R>) {
    for n in 0..3 {
        link.b
            .receive(link.qb.handle, n, &[link.b.buffer.sge(0, 4096)]);
    }
    for n in 0..8 {
        link.a
            .send(link.qa.handle, n, SEND, &[link.a.buffer.sge(0, 4096)]);
    }
}

/// Both ends stop in the midst of it: each request completes, once, in its order.
pub(super) fn by_way_of_err<R: Rig>(link: &Link<'_, R>) {
    with_all_outstanding(link);
    for side in Side::BOTH {
        let (station, qp) = (link.station(side), link.qp(side).handle);
        let done = station.modify(qp, QpState::Error, M::empty(), |_| ());
        assert_eq!(done, Ok(()), "{side:?}");
    }
    for (station, count) in [(&link.a, 8), (&link.b, 3)] {
        let ids: Vec<u64> = station
            .completions(count)
            .iter()
            .map(|wc| wc.wr_id)
            .collect();
        assert_eq!(ids, (0..count as u64).collect::<Vec<_>>());
        assert_eq!(station.poll(station.cq, 4), []);
    }
}

/// Both ends are reset with requests outstanding, and go on as new.
pub(super) fn anew<R: Rig>(link: &Link<'_, R>, seed: u64) {
    with_all_outstanding(link);
    for side in Side::BOTH {
        let (station, qp) = (link.station(side), link.qp(side).handle);
        let done = station.modify(qp, QpState::Reset, M::empty(), |_| ());
        assert_eq!(done, Ok(()), "{side:?}");
        assert_eq!(station.poll(station.cq, 8), [], "nothing of the old life");
    }
    for side in Side::BOTH {
        link.bring_to(side, QpState::Rts, |_| ());
    }
    exchange(link, seed + 100);
}
