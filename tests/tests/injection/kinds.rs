//! An object of each kind: how it is made, in several steps if it takes them, and how it ends. What is made undoes its
//! own steps when one fails, by the calls that any consumer has.

use super::bench::Bench;
use core_ib::platform::DmaAddr;
use core_ib::verbs::{
    Access, AhAttr, AhHandle, CompletionQueue, CqHandle, CqInit, Device, FmrHandle, FmrInit,
    MrHandle, MrInit, MwHandle, MwKind, NotifyKind, Owner, PdHandle, QpAttr, QpAttrMask as M,
    QpCaps, QpHandle, QpInit, QpState, QpType, Signaling, SrqHandle, SrqInit, UserBuffer,
    UserHandle, Verbs, VerbsError,
};
use core_ib::{Gid, Lid, Mtu, Psn, QKey, Qpn};
use openib_tests::conformance::tools::steps::way;

/// What was made.
#[derive(Debug)]
pub enum Made {
    Pd(PdHandle),
    Ah(AhHandle),
    Cq(CqHandle),
    Srq(SrqHandle),
    Qp(QpHandle),
    QpOnSrq(QpHandle, SrqHandle),
    Member(QpHandle),
    Mr(MrHandle),
    Mw(MwHandle),
    Fmr(FmrHandle),
    User(UserHandle),
    UserCq(UserHandle, MrHandle, CqHandle),
}

/// A kind of object.
pub struct Kind {
    pub name: &'static str,
    pub make: fn(&Bench<'_>) -> Result<Made, VerbsError>,
    pub end: fn(&Bench<'_>, Made) -> Result<(), VerbsError>,
}

macro_rules! kinds {
    ($($name:literal: $make:expr),* $(,)?) => { &[$(Kind { name: $name, make: $make, end }),*] };
}

pub const KINDS: &[Kind] = kinds! {
    "PD": |bench| bench.hca().alloc_pd().map(Made::Pd),
    "PD with its whole-memory region": whole_memory,
    "AH": ah,
    "CQ": |bench| cq(bench, Owner::Kernel).map(Made::Cq),
    "CQ, armed and resized": resized_cq,
    "SRQ, with its limit set": srq,
    "RC QP in RTS": |bench| qp(bench, QpType::Rc, None).map(Made::Qp),
    "UC QP in RTS": |bench| qp(bench, QpType::Uc, None).map(Made::Qp),
    "UD QP in RTS": |bench| qp(bench, QpType::Ud, None).map(Made::Qp),
    "SMI QP in RTS": |bench| qp(bench, QpType::Smi, None).map(Made::Qp),
    "GSI QP in RTS": |bench| qp(bench, QpType::Gsi, None).map(Made::Qp),
    "RC QP with an SRQ": qp_on_srq,
    "QP of a multicast group": member,
    "MR": |bench| mr(bench).map(Made::Mr),
    "MR, registered anew": reregistered,
    "MW": |bench| Ok(Made::Mw(bench.hca().alloc_mw(bench.pd, MwKind::Type1)?.0)),
    "FMR, mapped": fmr,
    "user context": |bench| bench.hca().alloc_user().map(Made::User),
    "CQ of a user": user_cq,
};

fn end(bench: &Bench<'_>, made: Made) -> Result<(), VerbsError> {
    let hca = bench.hca();
    match made {
        Made::Pd(pd) => hca.dealloc_pd(pd),
        Made::Ah(ah) => hca.destroy_ah(ah),
        Made::Cq(cq) => hca.destroy_cq(cq),
        Made::Srq(srq) => hca.destroy_srq(srq),
        Made::Qp(qp) => hca.destroy_qp(qp),
        Made::QpOnSrq(qp, srq) => {
            let first = hca.destroy_qp(qp);
            hca.destroy_srq(srq).and(first)
        }
        Made::Member(qp) => {
            let first = hca.detach_mcast(qp, MGID, MLID);
            hca.destroy_qp(qp).and(first)
        }
        Made::Mr(mr) => hca.dereg_mr(mr),
        Made::Mw(mw) => hca.dealloc_mw(mw),
        Made::Fmr(fmr) => {
            let first = hca.unmap_fmrs(&[fmr]);
            hca.dealloc_fmr(fmr).and(first)
        }
        Made::User(user) => hca.dealloc_user(user),
        Made::UserCq(user, mr, cq) => {
            let first = hca.destroy_cq(cq);
            let second = hca.dereg_mr(mr);
            hca.dealloc_user(user).and(second).and(first)
        }
    }
}

/// Ends what was made so far if what comes next fails.
fn or_end<T>(
    bench: &Bench<'_>,
    made: impl FnOnce() -> Made,
    next: Result<T, VerbsError>,
) -> Result<T, VerbsError> {
    if next.is_err() {
        // On a dead HCA as on a live one.
        end(bench, made()).unwrap();
    }
    next
}

const MGID: Gid = openib_tests::conformance::tools::MGID;
const MLID: Lid = openib_tests::conformance::tools::MLID;

fn whole_memory(bench: &Bench<'_>) -> Result<Made, VerbsError> {
    let pd = bench.hca().alloc_pd()?;
    or_end(bench, || Made::Pd(pd), bench.hca().whole_memory_key(pd))?;
    Ok(Made::Pd(pd))
}

fn address() -> AhAttr {
    AhAttr {
        port: 1,
        dlid: Lid(1),
        ..AhAttr::default()
    }
}

fn ah(bench: &Bench<'_>) -> Result<Made, VerbsError> {
    bench.hca().create_ah(bench.pd, &address()).map(Made::Ah)
}

fn cq(bench: &Bench<'_>, owner: Owner) -> Result<CqHandle, VerbsError> {
    let init = CqInit {
        cqe: 31,
        vector: 0,
        owner,
    };
    Ok(bench.hca().create_cq(&init)?.handle)
}

fn resized_cq(bench: &Bench<'_>) -> Result<Made, VerbsError> {
    let hca = bench.hca();
    let cq = cq(bench, Owner::Kernel)?;
    let armed = hca.cq(cq).and_then(|held| held.req_notify(NotifyKind::Any));
    or_end(bench, || Made::Cq(cq), armed)?;
    or_end(bench, || Made::Cq(cq), hca.resize_cq(cq, 100))?;
    Ok(Made::Cq(cq))
}

fn shared(bench: &Bench<'_>) -> Result<SrqHandle, VerbsError> {
    let init = SrqInit {
        pd: bench.pd,
        max_wr: 15,
        max_sge: 2,
        owner: Owner::Kernel,
    };
    Ok(bench.hca().create_srq(&init)?.handle)
}

fn srq(bench: &Bench<'_>) -> Result<Made, VerbsError> {
    let srq = shared(bench)?;
    or_end(bench, || Made::Srq(srq), bench.hca().arm_srq(srq, 3))?;
    or_end(bench, || Made::Srq(srq), bench.hca().query_srq(srq))?;
    Ok(Made::Srq(srq))
}

fn qp(bench: &Bench<'_>, service: QpType, srq: Option<SrqHandle>) -> Result<QpHandle, VerbsError> {
    let hca = bench.hca();
    let init = QpInit {
        qp_type: service,
        port: 1,
        send_cq: bench.cq,
        recv_cq: bench.cq,
        srq,
        caps: QpCaps {
            max_send_wr: 4,
            max_recv_wr: 4,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
        },
        signaling: Signaling::All,
        owner: Owner::Kernel,
    };
    let qp = hca.create_qp(bench.pd, &init)?.handle;
    for (state, mask) in way(service, QpState::Rts) {
        let attr = QpAttr {
            state,
            port: 1,
            qkey: QKey(0x8001_0000),
            path: address(),
            path_mtu: Mtu::Mtu1024,
            timeout: 14,
            max_rd_atomic: 1,
            max_dest_rd_atomic: 4,
            sq_psn: Psn::new(1),
            dest_qpn: Qpn::new(5),
            ..QpAttr::EMPTY
        };
        let done = hca.modify_qp(qp, &attr, mask | M::STATE);
        or_end(bench, || Made::Qp(qp), done)?;
    }
    or_end(bench, || Made::Qp(qp), hca.query_qp(qp))?;
    Ok(qp)
}

fn qp_on_srq(bench: &Bench<'_>) -> Result<Made, VerbsError> {
    let srq = shared(bench)?;
    let qp = or_end(bench, || Made::Srq(srq), qp(bench, QpType::Rc, Some(srq)))?;
    Ok(Made::QpOnSrq(qp, srq))
}

fn member(bench: &Bench<'_>) -> Result<Made, VerbsError> {
    let qp = qp(bench, QpType::Ud, None)?;
    let attached = bench.hca().attach_mcast(qp, MGID, MLID);
    or_end(bench, || Made::Qp(qp), attached)?;
    Ok(Made::Member(qp))
}

fn pages(bench: &Bench<'_>) -> [DmaAddr; 2] {
    [bench.memory.addr(), bench.memory.addr().plus(4096)]
}

fn mr(bench: &Bench<'_>) -> Result<MrHandle, VerbsError> {
    let init = MrInit {
        iova: 0x10_0000,
        length: 8192,
        pages: &pages(bench),
        page_shift: 12,
        access: Access::LOCAL_WRITE,
    };
    // SAFETY: the memory is given back behind the region, and nobody looks at it.
    Ok(unsafe { bench.hca().reg_mr(bench.pd, &init) }?.handle)
}

fn reregistered(bench: &Bench<'_>) -> Result<Made, VerbsError> {
    let mr = mr(bench)?;
    let access = Some(Access::LOCAL_WRITE | Access::REMOTE_READ);
    // SAFETY: as above.
    let anew = unsafe { bench.hca().rereg_mr(mr, None, None, access) };
    or_end(bench, || Made::Mr(mr), anew)?;
    Ok(Made::Mr(mr))
}

fn fmr(bench: &Bench<'_>) -> Result<Made, VerbsError> {
    let init = FmrInit {
        max_pages: 2,
        max_maps: 4,
        page_shift: 12,
        access: Access::LOCAL_WRITE,
    };
    let fmr = bench.hca().alloc_fmr(bench.pd, &init)?;
    // SAFETY: as above.
    let mapped = unsafe { bench.hca().map_fmr(fmr, &pages(bench), 0x20_0000) };
    or_end(bench, || Made::Fmr(fmr), mapped)?;
    Ok(Made::Fmr(fmr))
}

fn user_cq(bench: &Bench<'_>) -> Result<Made, VerbsError> {
    let hca = bench.hca();
    let user = hca.alloc_user()?;
    let init = MrInit {
        iova: 0,
        length: 4096,
        pages: &[bench.memory.addr()],
        page_shift: 12,
        access: Access::LOCAL_WRITE,
    };
    // SAFETY: as above.
    let mr = unsafe { hca.reg_mr(bench.pd, &init) };
    let mr = or_end(bench, || Made::User(user), mr)?;
    let owner = Owner::User(UserBuffer {
        context: user,
        lkey: mr.lkey,
        doorbell_pages: [DmaAddr::new(0); 2],
        doorbell_indices: [0; 2],
    });
    match cq(bench, owner) {
        Ok(cq) => Ok(Made::UserCq(user, mr.handle, cq)),
        Err(error) => {
            hca.dereg_mr(mr.handle).unwrap();
            hca.dealloc_user(user).unwrap();
            Err(error)
        }
    }
}
