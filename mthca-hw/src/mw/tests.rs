//! Windows on the fake: entries and bind requests byte by byte, and what is refused.

extern crate std;

use crate::fake::{Machine, Reply};
use crate::{Hca, Profile};
use core_ib::platform::{DmaAddr, NoWake};
use core_ib::verbs::{
    Access, CqInit, Device, Mr, MrInit, MwHandle, MwKind, Owner, PdHandle, PostCause, QpAttr,
    QpAttrMask as M, QpCaps, QpInit, QpState, QpType, QueuePair, SendFlags, SendOp, SendWr,
    Signaling, Verbs, VerbsError,
};
use core_ib::{Lid, RKey};
use hca_abi::infinihost::cmd::{CmdStatus, Opcode};
use hca_abi::infinihost::qp::QpMailbox;
use std::vec::Vec;
use zerocopy::FromBytes;

const WINDOWS: Profile = Profile {
    mws: 2,
    ..Profile::SMALL
};

fn open(machine: &Machine) -> (Hca<'_, Machine>, PdHandle) {
    let hca = Hca::open(machine, &NoWake, &WINDOWS).unwrap();
    let pd = hca.alloc_pd().unwrap();
    (hca, pd)
}

fn register(hca: &Hca<'_, Machine>, pd: PdHandle) -> Mr {
    let pages = [DmaAddr::new(0x10_0000)];
    let init = MrInit {
        iova: 0x5000,
        length: 0x1000,
        pages: &pages,
        page_shift: 12,
        access: Access::LOCAL_WRITE | Access::MW_BIND,
    };
    // SAFETY: the fake HCA reaches no memory by key.
    unsafe { hca.reg_mr(pd, &init) }.unwrap()
}

/// The mailbox that the last command of this kind brought.
fn input(machine: &Machine, opcode: Opcode) -> Vec<u8> {
    let firmware = machine.firmware();
    let mut seen = firmware.seen.iter().rev();
    let last = seen.find(|seen| seen.opcode == opcode);
    last.unwrap().input.clone()
}

/// A QP of `service`, in RTS.
fn connected(hca: &Hca<'_, Machine>, pd: PdHandle, service: QpType) -> core_ib::verbs::QpHandle {
    let cq = CqInit {
        cqe: 15,
        vector: 0,
        owner: Owner::Kernel,
    };
    let cq = hca.create_cq(&cq).unwrap().handle;
    let init = QpInit {
        qp_type: service,
        port: 1,
        send_cq: cq,
        recv_cq: cq,
        srq: None,
        caps: QpCaps {
            max_send_wr: 3,
            max_send_sge: 1,
            ..QpCaps::default()
        },
        signaling: Signaling::All,
        owner: Owner::Kernel,
    };
    let qp = hca.create_qp(pd, &init).unwrap().handle;
    let mut attr = QpAttr {
        port: 1,
        ..QpAttr::EMPTY
    };
    (attr.path.port, attr.path.dlid) = (1, Lid(9));
    attr.path_mtu = core_ib::Mtu::Mtu2048;
    let rtr = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
    let (more_rtr, more_rts) = match service {
        QpType::Rc => (
            M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER,
            M::TIMEOUT | M::RETRY_COUNT | M::RNR_RETRY | M::MAX_RD_ATOMIC,
        ),
        _ => (M::empty(), M::empty()),
    };
    for (state, mask) in [
        (QpState::Init, M::PKEY_INDEX | M::PORT | M::ACCESS),
        (QpState::Rtr, rtr | more_rtr),
        (QpState::Rts, M::SQ_PSN | more_rts),
    ] {
        attr.state = state;
        hca.modify_qp(qp, &attr, mask | M::STATE).unwrap();
    }
    qp
}

fn bind(mw: MwHandle, mr: &Mr, length: u64, access: Access) -> SendWr<'static> {
    SendWr {
        wr_id: 1,
        op: SendOp::BindMw {
            mw,
            mr: mr.handle,
            addr: 0x5008,
            length,
            access,
        },
        sges: &[],
        inline: &[],
        flags: SendFlags::empty(),
    }
}

#[test]
fn a_window_is_an_entry_without_rights_whose_key_is_its_own() {
    let machine = Machine::new();
    let (hca, pd) = open(&machine);
    let (one, key) = hca.alloc_mw(pd, MwKind::Type1).unwrap();
    let entry = input(&machine, Opcode::SW2HW_MPT);
    assert_eq!(entry[..4], [0xf0, 0x02, 0, 0], "a window, no rights");
    assert_eq!(entry[0x08..0x0c], key.0.to_be_bytes());
    assert_eq!(entry[0x10..], [0; 0x30], "not bound");
    assert_eq!(hca.mw_rkey(one), Ok(key));
    let (_two, other) = hca.alloc_mw(pd, MwKind::Type1).unwrap();
    assert_eq!(other.0, key.0 + 1, "the entry behind");
    let full = VerbsError::NoResources {
        entry: "mws",
        limit: 2,
    };
    assert_eq!(hca.alloc_mw(pd, MwKind::Type1), Err(full));
    assert_eq!(hca.dealloc_mw(one), Ok(()));
    let stale = VerbsError::InvalidHandle { object: "MW" };
    assert_eq!(hca.dealloc_mw(one), Err(stale));
    let (_, again) = hca.alloc_mw(pd, MwKind::Type1).unwrap();
    assert_ne!(again, key, "the same entry, another key");
}

#[test]
fn windows_of_type_2_and_windows_of_a_profile_without_are_unsupported() {
    let machine = Machine::new();
    let (hca, pd) = open(&machine);
    let refused = |answer| matches!(answer, Err(VerbsError::Unsupported { .. }));
    assert!(refused(hca.alloc_mw(pd, MwKind::Type2)));
    assert_eq!(hca.query_device().max_mw, 2);
    drop(hca);
    let hca = crate::tests::open(&machine);
    let pd = hca.alloc_pd().unwrap();
    assert!(refused(hca.alloc_mw(pd, MwKind::Type1)));
    assert_eq!(hca.query_device().max_mw, 0);
}

#[test]
fn a_bind_has_the_segment_of_the_reference_and_the_next_key_of_its_window() {
    for service in [QpType::Rc, QpType::Uc] {
        let machine = Machine::new();
        let (hca, pd) = open(&machine);
        let mr = register(&hca, pd);
        let (mw, key) = hca.alloc_mw(pd, MwKind::Type1).unwrap();
        let qp = connected(&hca, pd, service);
        machine.firmware().doorbells.clear();
        let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
        let wrs = [
            bind(mw, &mr, 0x20, access),
            bind(mw, &mr, 0, Access::empty()),
        ];
        hca.qp(qp).unwrap().post_send(&wrs).unwrap();
        let lkey = {
            let mailbox = input(&machine, Opcode::RST2INIT_QPEE);
            QpMailbox::read_from_bytes(&mailbox)
                .unwrap()
                .context
                .wqe_lkey()
        };
        let log = 7; // 128 entries hold the plan
        let next = key.0 + (1 << log);
        let wqe = machine.firmware().read(lkey, 0, 48);
        // infinihost 5.6: rights, type, new key, key of the region, start, length.
        assert_eq!(wqe[16..24], [0x60, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(wqe[24..28], next.to_be_bytes());
        assert_eq!(wqe[28..32], mr.lkey.0.to_be_bytes());
        assert_eq!(wqe[32..40], 0x5008_u64.to_be_bytes());
        assert_eq!(wqe[40..48], 0x20_u64.to_be_bytes());
        let doorbell = machine.firmware().doorbells[0].1;
        assert_eq!(doorbell >> 32 & 0x1f, 0x18, "the opcode");
        assert_eq!(doorbell & 0x3f, 3, "units");
        let unbind = machine.firmware().read(lkey, 64, 48);
        let last = next + (1 << log);
        assert_eq!(unbind[24..28], last.to_be_bytes());
        assert_eq!(unbind[28..], [0; 20], "no region, no length");
        assert_eq!(hca.mw_rkey(mw), Ok(RKey(last)));
    }
}

#[test]
fn what_no_bind_can_ask_for_is_refused_at_posting_and_takes_no_key() {
    let machine = Machine::new();
    let (hca, pd) = open(&machine);
    let mr = register(&hca, pd);
    let gone = register(&hca, pd);
    hca.dereg_mr(gone.handle).unwrap();
    let (mw, key) = hca.alloc_mw(pd, MwKind::Type1).unwrap();
    let (old, _) = hca.alloc_mw(pd, MwKind::Type1).unwrap();
    hca.dealloc_mw(old).unwrap();
    let qp = connected(&hca, pd, QpType::Rc);
    let read = Access::REMOTE_READ;
    let inline = SendWr {
        flags: SendFlags::INLINE,
        ..bind(mw, &mr, 8, read)
    };
    for (wr, expected) in [
        (bind(old, &mr, 8, read), PostCause::InvalidHandle),
        (bind(mw, &gone, 8, read), PostCause::InvalidHandle),
        (
            bind(mw, &mr, 8, Access::LOCAL_WRITE),
            PostCause::InvalidAttr,
        ),
        (bind(mw, &mr, 8, Access::MW_BIND), PostCause::InvalidAttr),
        (inline, PostCause::InlineTooLong),
    ] {
        let refused = hca.qp(qp).unwrap().post_send(&[wr]).unwrap_err();
        assert_eq!(refused.cause, expected);
    }
    assert_eq!(hca.mw_rkey(mw), Ok(key));
}

#[test]
fn a_region_with_windows_is_busy_and_goes_on() {
    let machine = Machine::new();
    let (hca, pd) = open(&machine);
    let mr = register(&hca, pd);
    let bound = Reply::Status(CmdStatus::REG_BOUND);
    machine.reply(Opcode::HW2SW_MPT, [bound]);
    let busy = VerbsError::Busy {
        object: "MR",
        holders: 1,
    };
    assert_eq!(hca.dereg_mr(mr.handle), Err(busy));
    assert_eq!(hca.dereg_mr(mr.handle), Ok(()));
}

#[test]
fn a_window_that_the_hca_does_not_give_back_stays() {
    let machine = Machine::new();
    let (hca, pd) = open(&machine);
    let (mw, key) = hca.alloc_mw(pd, MwKind::Type1).unwrap();
    let refusal = Reply::Status(CmdStatus::BAD_RES_STATE);
    machine.reply(Opcode::HW2SW_MPT, [refusal]);
    assert!(matches!(
        hca.dealloc_mw(mw),
        Err(VerbsError::CommandFailed { .. })
    ));
    assert_eq!(hca.mw_rkey(mw), Ok(key));
    assert_eq!(hca.dealloc_mw(mw), Ok(()));
    assert_eq!(hca.dealloc_pd(pd), Ok(()), "nothing is left in it");
}
