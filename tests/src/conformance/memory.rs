//! Memory regions, as far as datagrams show them, and what there is not: verbs 7.

use super::tools::{
    Buffer, GRH, Station, is_invalid_attr, is_invalid_handle, is_no_resources, is_unsupported,
};
use super::{Features, Rig, Side};
use core_ib::LKey;
use core_ib::platform::{DmaAddr, DmaBuf};
use core_ib::verbs::{
    Access, Device, FmrInit, Mr, MrInit, MwKind, PdHandle, QpAttrMask, QpInfo, QpState, Sge,
    VerbsError, WcStatus,
};

/// Registers `init`.
fn register<D: Device>(hca: &D, pd: PdHandle, init: &MrInit<'_>) -> Result<Mr, VerbsError> {
    // SAFETY: the cases that call this use DMA memory that is leaked, or pages that no request ever names.
    unsafe { hca.reg_mr(pd, init) }
}

/// Registers anew.
fn reregister<D: Device>(
    hca: &D,
    mr: &Mr,
    pd: Option<PdHandle>,
    init: Option<&MrInit<'_>>,
    access: Option<Access>,
) -> Result<Mr, VerbsError> {
    // SAFETY: as above.
    unsafe { hca.rereg_mr(mr.handle, pd, init, access) }
}

/// A UD QP of A that sends to one of B, which receives; tells whether memory can be gathered or filled.
pub(super) struct Probe<'r, R: Rig> {
    pub(super) a: Station<'r, R>,
    b: Station<'r, R>,
    b_qp: QpInfo,
}

impl<'r, R: Rig> Probe<'r, R> {
    pub(super) fn new(rig: &'r R) -> Self {
        let [a, b] = Station::pair(rig);
        let b_qp = b.ud();
        Self { a, b, b_qp }
    }

    /// How a send of `sges` by a QP of A in its station's PD ends.
    pub(super) fn gather(&self, sges: &[Sge]) -> WcStatus {
        let qp = self.a.ud();
        let into = self.b.buffer.sge(0, 4096);
        self.b.receive(self.b_qp.handle, 1, &[into]);
        self.a.send(qp.handle, 2, self.a.to(&self.b_qp), sges);
        let status = self.a.completion().status;
        if status == WcStatus::Success {
            self.b.success(1);
        }
        self.a.hca().destroy_qp(qp.handle).unwrap();
        status
    }

    /// What the last send brought.
    pub(super) fn arrived(&self, len: usize) -> Vec<u8> {
        self.b.buffer.bytes(GRH as usize, len)
    }

    /// How a receive of A into `sge`, all of which is filled with `byte`, ends.
    fn scatter(&self, sge: Sge, byte: u8) -> WcStatus {
        let qp = self.a.ud();
        let len = sge.length - GRH;
        self.b.buffer.memory.fill(0, len as usize, byte).unwrap();
        self.a.receive(qp.handle, 3, &[sge]);
        let from = self.b.buffer.sge(0, len);
        self.b.send(self.b_qp.handle, 4, self.b.to(&qp), &[from]);
        self.b.success(4);
        let status = self.a.completion().status;
        self.a.hca().destroy_qp(qp.handle).unwrap();
        status
    }
}

/// verbs 7.2, T119.
pub fn rights_and_ranges_that_may_not_be_are_refused<R: Rig>(rig: &R) {
    let (hca, machine) = (rig.hca(Side::A), rig.machine(Side::A));
    let pd = hca.alloc_pd().unwrap();
    let memory = DmaBuf::new(machine, 8192, 4096).unwrap();
    let pages = Buffer::<R::Machine>::pages(&memory);
    let good = MrInit {
        iova: 0x1000_0000,
        length: 8192,
        pages: &pages,
        page_shift: 12,
        access: Access::LOCAL_WRITE,
    };
    let with = |change: &dyn Fn(&mut MrInit<'_>)| {
        let mut init = good;
        change(&mut init);
        register(hca, pd, &init)
    };
    is_invalid_attr(with(&|init| init.access = Access::REMOTE_WRITE));
    is_invalid_attr(with(&|init| init.access = Access::REMOTE_ATOMIC));
    is_invalid_attr(with(&|init| init.access = Access::from_bits_retain(1 << 7)));
    is_invalid_attr(with(&|init| init.length = 0));
    is_invalid_attr(with(&|init| {
        (init.iova, init.length) = (u64::MAX - 4095, 8192)
    }));
    is_invalid_attr(with(&|init| init.length = 8193));
    is_invalid_attr(with(&|init| init.page_shift = 11));
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let mr = with(&|init| init.access = access).unwrap();
    hca.dereg_mr(mr.handle).unwrap();
    for (bit, feature) in [
        (Access::REMOTE_ATOMIC, Features::ATOMICS),
        (Access::ZERO_BASED, Features::ZERO_BASED),
        (Access::MW_BIND, Features::WINDOWS_1),
    ] {
        let answer = with(&|init| init.access |= bit);
        if rig.declared().has(feature) {
            hca.dereg_mr(answer.unwrap().handle).unwrap();
        } else {
            is_unsupported(answer);
        }
    }
    hca.dealloc_pd(pd).unwrap();
}

/// verbs 7.3, 7.4, T120: as far as local requests reach.
pub fn a_region_that_begins_and_ends_inside_pages_has_exactly_its_bytes<R: Rig>(rig: &R) {
    let probe = Probe::new(rig);
    let a = &probe.a;
    let memory = DmaBuf::new(a.machine(), 12 << 10, 4096).unwrap();
    let bytes: Vec<u8> = (0..12 << 10).map(|at| (at % 251) as u8).collect();
    memory.copy_in(0, &bytes).unwrap();
    let iova = Buffer::<R::Machine>::IOVA + 0x123;
    let length = (8 << 10) + 0x100;
    let mr = Buffer::register(a.hca(), a.pd, &memory, iova, length, Access::LOCAL_WRITE).unwrap();
    let sge = |from: i64, length| Sge {
        addr: iova.wrapping_add_signed(from),
        length,
        lkey: mr.lkey,
    };
    let end = length as i64;
    for (from, len) in [
        (0, 1),
        (0, 1000),
        (end - 1, 1),
        (end - 999, 999),
        (0xf00, 1500),
    ] {
        assert_eq!(
            probe.gather(&[sge(from, len)]),
            WcStatus::Success,
            "{from} {len}"
        );
        let at = 0x123 + from as usize;
        assert_eq!(probe.arrived(len as usize), bytes[at..at + len as usize]);
    }
    for (from, len) in [(-1, 1), (-1, 2), (end, 1), (end - 1, 2), (end + 4096, 1)] {
        let status = probe.gather(&[sge(from, len)]);
        assert_eq!(status, WcStatus::LocalProtection, "{from} {len}");
    }
}

/// verbs 7.1: any pages in any order.
pub fn pages_of_a_region_may_lie_in_any_order<R: Rig>(rig: &R) {
    let probe = Probe::new(rig);
    let a = &probe.a;
    let memory = DmaBuf::new(a.machine(), 16 << 10, 4096).unwrap();
    for page in 0..4_u8 {
        memory
            .fill(usize::from(page) << 12, 4096, page + 1)
            .unwrap();
    }
    let at = |page: u64| memory.addr().plus(page << 12);
    let pages = [at(2), at(0), at(3), at(0)];
    let init = MrInit {
        iova: 0,
        length: 16 << 10,
        pages: &pages,
        page_shift: 12,
        access: Access::empty(),
    };
    let mr = register(a.hca(), a.pd, &init).unwrap();
    let parts = [0x0ffe, 0x1ffe, 0x2ffe].map(|addr| Sge {
        addr,
        length: 4,
        lkey: mr.lkey,
    });
    assert_eq!(probe.gather(&parts), WcStatus::Success);
    assert_eq!(probe.arrived(12), [3, 3, 1, 1, 1, 1, 4, 4, 4, 4, 1, 1]);
}

/// verbs 2.1, 7.1: every page size that is announced, as far as the machine has memory for it.
pub fn pages_of_each_announced_size_translate<R: Rig>(rig: &R) {
    let probe = Probe::new(rig);
    let a = &probe.a;
    let sizes = a.hca().query_device().page_sizes;
    for page_shift in (12..=16).filter(|shift| sizes & 1 << shift != 0) {
        let size = 1_usize << page_shift;
        let memory = DmaBuf::new(a.machine(), 2 * size, size).unwrap();
        memory.fill(size - 8, 16, page_shift).unwrap();
        let pages = [memory.addr(), memory.addr().plus(size as u64)];
        let init = MrInit {
            iova: 0x4000_0000,
            length: 2 * size as u64,
            pages: &pages,
            page_shift,
            access: Access::empty(),
        };
        let mr = register(a.hca(), a.pd, &init).unwrap();
        let sge = Sge {
            addr: 0x4000_0000 + size as u64 - 8,
            length: 16,
            lkey: mr.lkey,
        };
        assert_eq!(probe.gather(&[sge]), WcStatus::Success);
        assert_eq!(probe.arrived(16), [page_shift; 16], "2^{page_shift}");
        a.hca().dereg_mr(mr.handle).unwrap();
    }
}

/// verbs 7.1: the whole-memory key takes bus addresses.
pub fn the_whole_memory_key_takes_bus_addresses<R: Rig>(rig: &R) {
    let probe = Probe::new(rig);
    let key = probe.a.hca().whole_memory_key(probe.a.pd).unwrap();
    // SAFETY: the memory is DMA memory of this machine, which is never given back.
    let lkey = unsafe { key.as_lkey() };
    let memory = &probe.a.buffer.memory;
    memory.copy_in(100, b"by bus address").unwrap();
    let sge = Sge {
        addr: memory.addr().get() + 100,
        length: 14,
        lkey,
    };
    assert_eq!(probe.gather(&[sge]), WcStatus::Success);
    assert_eq!(probe.arrived(14), b"by bus address");
    assert_eq!(
        probe.scatter(Sge { length: 300, ..sge }, 0x5a),
        WcStatus::Success
    );
    assert_eq!(probe.a.buffer.bytes(140, 260), [0x5a; 260]);
}

/// verbs 7.3, 7.5, T121: as far as local requests reach.
pub fn a_key_that_is_gone_never_works_again<R: Rig>(rig: &R) {
    let probe = Probe::new(rig);
    let a = &probe.a;
    let memory = DmaBuf::new(a.machine(), 4096, 4096).unwrap();
    let mut seen = std::collections::BTreeSet::new();
    let mut stale = None;
    for round in 0..1000 {
        let mr = Buffer::register(a.hca(), a.pd, &memory, 0, 4096, Access::empty()).unwrap();
        assert!(
            seen.insert(mr.lkey.0),
            "round {round}: {:#x} was used before",
            mr.lkey.0
        );
        if round % 250 == 0 {
            let sge = |lkey| Sge {
                addr: 0,
                length: 8,
                lkey,
            };
            assert_eq!(probe.gather(&[sge(mr.lkey)]), WcStatus::Success);
            if let Some(stale) = stale {
                assert_eq!(probe.gather(&[sge(stale)]), WcStatus::LocalProtection);
            }
            stale = Some(mr.lkey);
        }
        a.hca().dereg_mr(mr.handle).unwrap();
        is_invalid_handle(a.hca().dereg_mr(mr.handle));
    }
}

/// verbs 2.1: there are as many regions as are announced.
pub fn after_the_last_region_there_is_none_until_one_is_gone<R: Rig>(rig: &R) {
    let (hca, machine) = (rig.hca(Side::A), rig.machine(Side::A));
    let pd = hca.alloc_pd().unwrap();
    let memory = DmaBuf::new(machine, 4096, 4096).unwrap();
    let reg = || Buffer::register(hca, pd, &memory, 0, 4096, Access::empty());
    let most = hca.query_device().max_mr;
    let regions: Vec<Mr> = (0..most).map(|_| reg().unwrap()).collect();
    is_no_resources(reg());
    hca.dereg_mr(regions[0].handle).unwrap();
    reg().unwrap();
}

/// verbs 7.8, T123: over a datagram QP in SQD.
pub fn a_queued_send_whose_region_goes_first_ends_with_loc_prot<R: Rig>(rig: &R) {
    let [a, b] = Station::pair(rig);
    let (qp, peer) = (a.ud(), b.ud());
    let gone = Buffer::new(a.machine(), a.hca(), a.pd, 4096, Access::empty());
    let to_sqd = a.modify(qp.handle, QpState::Sqd, QpAttrMask::empty(), |_| ());
    assert_eq!(to_sqd, Ok(()));
    a.drain(qp.handle);
    a.send(qp.handle, 1, a.to(&peer), &[gone.sge(0, 8)]);
    a.hca().dereg_mr(gone.mr.handle).unwrap();
    let to_rts = a.modify(qp.handle, QpState::Rts, QpAttrMask::empty(), |_| ());
    assert_eq!(to_rts, Ok(()));
    let wc = a.completion();
    assert_eq!((wc.wr_id, wc.status), (1, WcStatus::LocalProtection));
}

/// verbs 7.7, T124.
pub fn a_region_registered_anew_has_the_new_properties_and_not_the_old<R: Rig>(rig: &R) {
    let probe = Probe::new(rig);
    let (a, hca) = (&probe.a, probe.a.hca());
    let memory = DmaBuf::new(a.machine(), 8192, 4096).unwrap();
    memory.fill(0, 4096, 1).unwrap();
    memory.fill(4096, 4096, 2).unwrap();
    let pages = Buffer::<R::Machine>::pages(&memory);
    let init = |page: usize| MrInit {
        iova: 0,
        length: 4096,
        pages: &pages[page..=page],
        page_shift: 12,
        access: Access::empty(),
    };
    let sge = |lkey: LKey, length| Sge {
        addr: 0,
        length,
        lkey,
    };
    let mut mr = register(hca, a.pd, &init(0)).unwrap();
    if !rig.declared().has(Features::REREGISTER) {
        return is_unsupported(reregister(hca, &mr, None, None, Some(Access::LOCAL_WRITE)));
    }
    assert_eq!(
        probe.scatter(sge(mr.lkey, 64), 7),
        WcStatus::LocalProtection
    );
    mr = reregister(hca, &mr, None, None, Some(Access::LOCAL_WRITE)).unwrap();
    assert_eq!(
        probe.scatter(sge(mr.lkey, 64), 7),
        WcStatus::Success,
        "access"
    );
    let other = hca.alloc_pd().unwrap();
    mr = reregister(hca, &mr, Some(other), None, None).unwrap();
    assert_eq!(
        probe.gather(&[sge(mr.lkey, 8)]),
        WcStatus::LocalProtection,
        "PD"
    );
    mr = reregister(hca, &mr, Some(a.pd), None, None).unwrap();
    hca.dealloc_pd(other).unwrap();
    mr = reregister(hca, &mr, None, Some(&init(1)), None).unwrap();
    assert_eq!(probe.gather(&[sge(mr.lkey, 8)]), WcStatus::Success);
    assert_eq!(probe.arrived(8), [2; 8], "translation");
    mr = reregister(hca, &mr, Some(a.pd), Some(&init(0)), Some(Access::empty())).unwrap();
    assert_eq!(
        probe.scatter(sge(mr.lkey, 64), 7),
        WcStatus::LocalProtection,
        "all"
    );
    assert_eq!(probe.gather(&[sge(mr.lkey, 64)]), WcStatus::Success);
    is_invalid_attr(reregister(hca, &mr, None, None, None));
    is_invalid_attr(reregister(hca, &mr, None, None, Some(Access::REMOTE_WRITE)));
    assert_eq!(
        probe.gather(&[sge(mr.lkey, 64)]),
        WcStatus::Success,
        "intact"
    );
    hca.dereg_mr(mr.handle).unwrap();
    is_invalid_handle(reregister(hca, &mr, None, None, Some(Access::empty())));
}

/// verbs 7.4: any right but local read is refused to who was not given it; what is not touched stays.
pub fn a_receive_writes_only_where_it_may<R: Rig>(rig: &R) {
    let probe = Probe::new(rig);
    let a = &probe.a;
    let writable = Buffer::new(a.machine(), a.hca(), a.pd, 4096, Access::LOCAL_WRITE);
    let constant = Buffer::new(a.machine(), a.hca(), a.pd, 4096, Access::REMOTE_READ);
    assert_eq!(probe.scatter(writable.sge(100, 300), 9), WcStatus::Success);
    assert_eq!(writable.bytes(140, 260), [9; 260]);
    assert_eq!(
        (writable.bytes(0, 100), writable.bytes(400, 600)),
        (vec![0; 100], vec![0; 600])
    );
    assert_eq!(
        probe.scatter(constant.sge(100, 300), 9),
        WcStatus::LocalProtection
    );
    assert_eq!(constant.bytes(0, 4096), [0; 4096]);
}

/// verbs 7.9, 14: where there are no windows.
pub fn windows_that_there_are_not_are_unsupported<R: Rig>(rig: &R) {
    let hca = rig.hca(Side::A);
    let pd = hca.alloc_pd().unwrap();
    for (kind, feature) in [
        (MwKind::Type1, Features::WINDOWS_1),
        (MwKind::Type2, Features::WINDOWS_2),
    ] {
        let answer = hca.alloc_mw(pd, kind);
        if rig.declared().has(feature) {
            hca.dealloc_mw(answer.unwrap().0).unwrap();
        } else {
            is_unsupported(answer);
        }
    }
}

/// verbs 7.1: the old fast regions; where there are, each mapping has a key of its own.
pub fn a_fast_region_is_mapped_anew_with_another_key_or_is_unsupported<R: Rig>(rig: &R) {
    let probe = Probe::new(rig);
    let (a, hca) = (&probe.a, probe.a.hca());
    let init = FmrInit {
        max_pages: 2,
        max_maps: 4,
        page_shift: 12,
        access: Access::LOCAL_WRITE,
    };
    let answer = hca.alloc_fmr(a.pd, &init);
    if !rig.declared().has(Features::FMR) {
        return is_unsupported(answer);
    }
    let fmr = answer.unwrap();
    let memory = DmaBuf::new(a.machine(), 8192, 4096).unwrap();
    let pages: [DmaAddr; 2] = [memory.addr(), memory.addr().plus(4096)];
    // SAFETY: the memory is never given back.
    let map = |iova| unsafe { hca.map_fmr(fmr, &pages, iova) }.unwrap();
    let (first, _) = map(0x1000);
    let (second, _) = map(0x1000);
    assert_ne!(first, second);
    let sge = |lkey| Sge {
        addr: 0x1000,
        length: 8,
        lkey,
    };
    assert_eq!(probe.gather(&[sge(second)]), WcStatus::Success);
    hca.unmap_fmrs(&[fmr]).unwrap();
    for lkey in [first, second] {
        assert_eq!(probe.gather(&[sge(lkey)]), WcStatus::LocalProtection);
    }
    hca.dealloc_fmr(fmr).unwrap();
}

/// verbs 7.4: the PD that counts is that of the QP.
pub fn a_region_serves_the_qps_of_its_pd_alone<R: Rig>(rig: &R) {
    let probe = Probe::new(rig);
    let a = &probe.a;
    let pd = a.hca().alloc_pd().unwrap();
    let here = Buffer::new(a.machine(), a.hca(), a.pd, 4096, Access::empty());
    let there = Buffer::new(a.machine(), a.hca(), pd, 4096, Access::empty());
    assert_eq!(probe.gather(&[here.sge(0, 8)]), WcStatus::Success);
    assert_eq!(probe.gather(&[there.sge(0, 8)]), WcStatus::LocalProtection);
    let mixed = [here.sge(0, 8), there.sge(0, 8)];
    assert_eq!(probe.gather(&mixed), WcStatus::LocalProtection);
}
