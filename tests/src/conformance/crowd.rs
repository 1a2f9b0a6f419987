//! Users of one pair of HCAs who make, use and end objects of every kind for as long as they are let: several of these
//! beside each other, and beside the interrupts. verbs 1.5.

use super::churn::{
    MESSAGES, Memory, ROOM, begin, by_way_of_err, end, exchange, memory_of, pattern,
    with_all_outstanding,
};
use super::tools::{Link, qp_init};
use super::{Rig, Side};
use core_ib::verbs::{
    Access, CqInit, Device, FmrInit, NotifyKind, Owner, QpInit, QpType, RecvWr, SendOp, Sge,
    SharedReceiveQueue, SrqInit, Verbs, WcStatus,
};

/// What a user did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Lives of a connection and what belonged to it.
    pub lives: u64,
    /// Objects that were made and ended.
    pub objects: u64,
    /// Completions that were due, and came.
    pub completions: u64,
}

/// In front of a datagram that is received.
const GRH: u32 = 40;
/// Mappings of a fast region before it is unmapped.
const MAPS: u64 = 3;

/// One user, whose number decides what it does, for as long as `goes_on`. Ports are active.
pub fn live<R: Rig>(rig: &R, who: u64, goes_on: &dyn Fn() -> bool) -> Tally {
    let mut memory: Memory<'_, R::Machine> = memory_of(rig);
    let mut tally = Tally::default();
    while goes_on() {
        let number = tally.lives;
        let seed = who * 37 + number;
        let service = if (who + number).is_multiple_of(2) {
            QpType::Rc
        } else {
            QpType::Uc
        };
        let link = begin(rig, service, memory);
        tally.objects += 9;
        exchange(&link, seed % 1000);
        tally.completions += 2 * MESSAGES + if service == QpType::Rc { 2 } else { 1 };
        if who.is_multiple_of(2) {
            mapped(&link, seed, &mut tally);
        } else {
            datagrams(&link, seed, &mut tally);
        }
        match number % 3 {
            0 => with_all_outstanding(&link),
            1 => {
                by_way_of_err(&link);
                tally.completions += 11;
            }
            _ => {}
        }
        memory = end(link);
        tally.lives += 1;
    }
    tally
}

/// What A sends lies in a fast region, which is mapped anew each time.
fn mapped<R: Rig>(link: &Link<'_, R>, seed: u64, tally: &mut Tally) {
    let (a, b) = (&link.a, &link.b);
    let init = FmrInit {
        max_pages: 2,
        max_maps: MAPS as u32,
        page_shift: 12,
        access: Access::LOCAL_WRITE,
    };
    let fmr = a.hca().alloc_fmr(a.pd, &init).unwrap();
    for n in 0..2 * MAPS {
        let offset = (n % 8) << 12;
        let data = pattern(seed + n, 4096);
        a.buffer.put(offset as usize, &data);
        let page = a.buffer.memory.addr().plus(offset);
        // SAFETY: the memory outlives the region, which is unmapped before it is put to another use.
        let (lkey, _) = unsafe { a.hca().map_fmr(fmr, &[page], 0x9000) }.unwrap();
        b.receive(link.qb.handle, n, &[b.buffer.sge(0, ROOM as u32)]);
        let sge = Sge {
            addr: 0x9000,
            length: 4096,
            lkey,
        };
        a.send(link.qa.handle, n, SendOp::Send { imm: None }, &[sge]);
        a.success(n);
        assert_eq!(b.success(n).byte_len, 4096);
        assert!(b.buffer.bytes(0, 4096) == data, "map {n} of {seed}");
        if n % MAPS == MAPS - 1 {
            a.hca().unmap_fmrs(&[fmr]).unwrap();
        }
        tally.completions += 2;
    }
    a.hca().dealloc_fmr(fmr).unwrap();
    tally.objects += 1;
}

/// Datagrams from A to two QPs of B with one SRQ, whose completions are waited for by an event.
fn datagrams<R: Rig>(link: &Link<'_, R>, seed: u64, tally: &mut Tally) {
    let (a, b) = (&link.a, &link.b);
    let srq_init = SrqInit {
        pd: b.pd,
        max_wr: 7,
        max_sge: 1,
        owner: Owner::Kernel,
    };
    let srq = b.hca().create_srq(&srq_init).unwrap().handle;
    let cq_init = CqInit {
        cqe: 16,
        vector: 0,
        owner: Owner::Kernel,
    };
    let cq = b.hca().create_cq(&cq_init).unwrap().handle;
    let sender = a.ud();
    let small = |mut init: QpInit| {
        (init.caps.max_send_wr, init.caps.max_recv_wr) = (4, 4);
        init
    };
    let receivers = [0, 1].map(|_| {
        b.ready(&small(QpInit {
            recv_cq: cq,
            srq: Some(srq),
            ..qp_init(QpType::Ud, b.cq)
        }))
    });
    let ah = a.ah(Side::B);
    for round in 0..3 {
        for n in 0..4 {
            let sges = [b.buffer.sge(n * 4096, 2048)];
            let wr = RecvWr {
                wr_id: n,
                sges: &sges,
            };
            b.hca().srq(srq).unwrap().post_recv(&[wr]).unwrap();
        }
        b.arm(cq, NotifyKind::Any);
        for n in 0..4 {
            let data = pattern(seed + n, 1024);
            a.buffer.put((n * 4096) as usize, &data);
            let to = a.datagram(ah, &receivers[(n % 2) as usize]);
            a.send(sender.handle, n, to, &[a.buffer.sge(n * 4096, 1024)]);
        }
        for n in 0..4 {
            a.success(n);
        }
        assert!(b.fires(cq), "armed, and four came");
        let mut came = Vec::new();
        for wc in b.completions_of(cq, 4) {
            assert_eq!((wc.status, wc.byte_len), (WcStatus::Success, 1024 + GRH));
            came.push(wc.wr_id);
        }
        came.sort_unstable();
        assert_eq!(came, [0, 1, 2, 3], "round {round} of {seed}");
        tally.completions += 8;
    }
    a.hca().destroy_qp(sender.handle).unwrap();
    a.hca().destroy_ah(ah).unwrap();
    for receiver in receivers {
        b.hca().destroy_qp(receiver.handle).unwrap();
    }
    b.hca().destroy_cq(cq).unwrap();
    b.hca().destroy_srq(srq).unwrap();
    tally.objects += 6;
}
