//! User contexts on the fake: what the HCA is told of their queues, and what stays the user's.

extern crate std;

use crate::fake::Machine;
use crate::{Hca, Profile};
use core_ib::platform::{DmaAddr, NoWake};
use core_ib::verbs::{
    Access, CqHandle, CqInit, Device, Mr, MrInit, Owner, PdHandle, QpAttr, QpAttrMask as M, QpCaps,
    QpInit, QpState, QpType, Signaling, SrqInit, UserBuffer, UserHandle, Verbs, VerbsError,
};
use core_ib::{LKey, QKey};
use hca_abi::infinihost::cmd::Opcode;
use hca_abi::infinihost::cq::CqContext;
use hca_abi::infinihost::eqe::{Eqe, EventType, LocalSyndrome};
use hca_abi::infinihost::qp::QpMailbox;
use hca_abi::infinihost::resize_cq::ResizeCq;
use hca_abi::infinihost::srq::SrqContext;
use zerocopy::FromBytes;

const PROFILE: Profile = Profile {
    users: 2,
    ..Profile::SMALL
};
/// The kernel's page; the users' follow.
const KERNEL: u32 = 2;

struct Rig<'m> {
    machine: &'m Machine,
    hca: Hca<'m, Machine>,
    pd: PdHandle,
    user: UserHandle,
}

impl<'m> Rig<'m> {
    fn new(machine: &'m Machine) -> Self {
        let hca = Hca::open(machine, &NoWake, &PROFILE).unwrap();
        let pd = hca.alloc_pd().unwrap();
        let user = hca.alloc_user().unwrap();
        Self {
            machine,
            hca,
            pd,
            user,
        }
    }

    /// A page of the user's, its addresses counted from 0.
    fn memory(&self) -> Mr {
        let pages = [DmaAddr::new(0x10_0000)];
        let init = MrInit {
            iova: 0,
            length: 0x1000,
            pages: &pages,
            page_shift: 12,
            access: Access::LOCAL_WRITE,
        };
        // SAFETY: the fake HCA reaches no memory by key.
        unsafe { self.hca.reg_mr(self.pd, &init) }.unwrap()
    }

    fn owner(&self, lkey: LKey) -> Owner {
        Owner::User(UserBuffer {
            context: self.user,
            lkey,
            doorbell_pages: [DmaAddr::new(0); 2],
            doorbell_indices: [0; 2],
        })
    }

    fn cq(&self, owner: Owner) -> Result<CqHandle, VerbsError> {
        let init = CqInit {
            cqe: 20,
            vector: 0,
            owner,
        };
        self.hca.create_cq(&init).map(|made| {
            assert_eq!(made.size, 31);
            made.handle
        })
    }

    fn qp_init(&self, cq: CqHandle, owner: Owner) -> QpInit {
        QpInit {
            qp_type: QpType::Ud,
            port: 1,
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            caps: QpCaps {
                max_send_wr: 5,
                max_recv_wr: 6,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline: 0,
            },
            signaling: Signaling::All,
            owner,
        }
    }

    fn input<T: FromBytes>(&self, opcode: Opcode) -> T {
        let firmware = self.machine.firmware();
        let mut seen = firmware.seen.iter().rev();
        let last = seen.find(|seen| seen.opcode == opcode).unwrap();
        T::read_from_bytes(&last.input).unwrap()
    }
}

#[test]
fn a_queue_of_a_user_has_the_users_page_and_memory_and_none_of_ours() {
    let machine = Machine::new();
    let rig = Rig::new(&machine);
    let (ring, queues) = (rig.memory(), rig.memory());
    let pieces = machine.pieces_out();
    let cq = rig.cq(rig.owner(ring.lkey)).unwrap();
    let context: CqContext = rig.input(Opcode::SW2HW_CQ);
    let page = KERNEL + 1;
    assert_eq!((context.uar_page(), context.lkey()), (page, ring.lkey.0));
    assert_eq!(context.log_size(), 5);
    let pd = context.pd();
    let init = rig.qp_init(cq, rig.owner(queues.lkey));
    let made = rig.hca.create_qp(rig.pd, &init).unwrap();
    assert_eq!((made.caps.max_send_wr, made.caps.max_recv_wr), (5, 6));
    let attr = QpAttr {
        state: QpState::Init,
        port: 1,
        qkey: QKey(7),
        ..QpAttr::EMPTY
    };
    let mask = M::STATE | M::PKEY_INDEX | M::PORT | M::QKEY;
    rig.hca.modify_qp(made.handle, &attr, mask).unwrap();
    let context = rig.input::<QpMailbox>(Opcode::RST2INIT_QPEE).context;
    assert_eq!(
        (context.uar_page(), context.wqe_lkey()),
        (page, queues.lkey.0)
    );
    assert_eq!(context.pd(), pd, "the CQ's ring is in the PD of its region");
    let init = SrqInit {
        pd: rig.pd,
        max_wr: 9,
        max_sge: 3,
        owner: rig.owner(queues.lkey),
    };
    let srq = rig.hca.create_srq(&init).unwrap();
    assert_eq!(srq.size, 9);
    let context: SrqContext = rig.input(Opcode::SW2HW_SRQ);
    assert_eq!((context.uar_page(), context.lkey()), (page, queues.lkey.0));
    assert_eq!((context.wqe_size(), context.pd()), (4, pd));
    assert_eq!(machine.pieces_out(), pieces, "no memory was taken");
    rig.hca.destroy_qp(made.handle).unwrap();
    rig.hca.destroy_srq(srq.handle).unwrap();
    rig.hca.destroy_cq(cq).unwrap();
    assert_eq!(rig.hca.dealloc_user(rig.user), Ok(()));
}

#[test]
fn a_context_is_busy_while_a_queue_uses_its_page_and_its_page_is_its_own() {
    let machine = Machine::new();
    let rig = Rig::new(&machine);
    let other = rig.hca.alloc_user().unwrap();
    let pages = [rig.user, other].map(|user| rig.hca.user_doorbell_page(user).unwrap());
    assert_eq!(pages[1] - pages[0], 4096);
    assert_eq!(pages[0] % (8 << 20), 4096 * u64::from(KERNEL + 1));
    let full = VerbsError::NoResources {
        entry: "users",
        limit: 2,
    };
    assert_eq!(rig.hca.alloc_user(), Err(full));
    let ring = rig.memory();
    let cq = rig.cq(rig.owner(ring.lkey)).unwrap();
    let busy = VerbsError::Busy {
        object: "user context",
        holders: 1,
    };
    assert_eq!(rig.hca.dealloc_user(rig.user), Err(busy));
    assert_eq!(rig.hca.dealloc_user(other), Ok(()));
    rig.hca.destroy_cq(cq).unwrap();
    assert_eq!(rig.hca.dealloc_user(rig.user), Ok(()));
    let stale = VerbsError::InvalidHandle {
        object: "user context",
    };
    assert_eq!(rig.hca.user_doorbell_page(rig.user), Err(stale));
    assert_eq!(rig.cq(rig.owner(ring.lkey)), Err(stale));
}

/// In M-mode.
#[test]
fn the_doorbell_records_of_a_user_lie_in_its_own_pages_until_its_context_ends() {
    let machine = Machine::sinai();
    let rig = Rig::new(&machine);
    let plan = *rig.hca.plan();
    let context = plan.uarc_of(KERNEL + 1);
    let last = (512 << plan.log_uarc_pages) - 1;
    let owner = |pages: [u64; 2], doorbell_indices| {
        Owner::User(UserBuffer {
            context: rig.user,
            lkey: rig.memory().lkey,
            doorbell_pages: pages.map(DmaAddr::new),
            doorbell_indices,
        })
    };
    let mapped = |machine: &Machine| {
        let firmware = machine.firmware();
        [context, context + (u64::from(last) / 512) * 4096].map(|at| firmware.page(at))
    };
    assert_eq!(mapped(&machine), [None; 2]);
    let pages = [0x20_0000, 0x30_0000];
    let cq = rig.cq(owner(pages, [3, last])).unwrap();
    assert_eq!(mapped(&machine), pages.map(Some));
    let told: CqContext = rig.input(Opcode::SW2HW_CQ);
    assert_eq!((told.arm_record(), told.set_ci_record()), (3, last));
    let mut init = rig.qp_init(cq, owner(pages, [7, last - 5]));
    (init.caps.max_send_wr, init.caps.max_recv_wr) = (5, 6);
    let made = rig.hca.create_qp(rig.pd, &init).unwrap();
    assert_eq!((made.caps.max_send_wr, made.caps.max_recv_wr), (8, 8));
    let attr = QpAttr {
        port: 1,
        ..QpAttr::EMPTY
    };
    let attr = QpAttr {
        state: QpState::Init,
        qkey: QKey(7),
        ..attr
    };
    let mask = M::STATE | M::PKEY_INDEX | M::PORT | M::QKEY;
    rig.hca.modify_qp(made.handle, &attr, mask).unwrap();
    let told: QpMailbox = rig.input(Opcode::RST2INIT_QPEE);
    let told = told.context;
    assert_eq!((told.sq_record(), told.rq_record()), (7, last - 5));
    assert_eq!((told.log_sq_size(), told.log_rq_size()), (3, 3));
    // Receives have 64 bytes each; behind the eight of them come sends, of 128.
    assert_eq!((told.rq_address(), told.sq_address()), (0, 512));
    assert_eq!((told.log_rq_stride(), told.log_sq_stride()), (2, 3));

    // The same place in another page, no page, and a place beyond the context.
    for (pages, indices) in [
        ([0x40_0000, 0x30_0000], [4, last]),
        ([0x20_0001, 0x30_0000], [1000, last]),
        (pages, [last + 1, last]),
    ] {
        let refused = rig.cq(owner(pages, indices));
        assert!(matches!(refused, Err(VerbsError::InvalidAttr { .. })));
    }
    rig.hca.destroy_qp(made.handle).unwrap();
    rig.hca.destroy_cq(cq).unwrap();
    assert_eq!(mapped(&machine), pages.map(Some), "another queue may come");
    rig.hca.dealloc_user(rig.user).unwrap();
    assert_eq!(mapped(&machine), [None; 2]);
}

#[test]
fn nobody_posts_or_polls_for_a_user_and_owners_do_not_mix() {
    let machine = Machine::new();
    let rig = Rig::new(&machine);
    let lkey = rig.memory().lkey;
    let (theirs, ours) = (
        rig.cq(rig.owner(lkey)).unwrap(),
        rig.cq(Owner::Kernel).unwrap(),
    );
    let state = |object| VerbsError::InvalidState { object };
    assert_eq!(rig.hca.cq(theirs).err(), Some(state("CQ")));
    assert!(rig.hca.cq(ours).is_ok());
    assert_eq!(rig.hca.resize_cq(theirs, 40), Err(state("CQ")));
    let new = rig.memory().lkey;
    assert_eq!(rig.hca.resize_user_cq(ours, 40, new), Err(state("CQ")));
    assert_eq!(rig.hca.resize_user_cq(theirs, 40, new), Ok(63));
    let told: ResizeCq = rig.input(Opcode::RESIZE_CQ);
    assert_eq!((told.log_size(), told.lkey()), (6, new.0));
    let foreign = rig.hca.resize_user_cq(theirs, 40, LKey(lkey.0 ^ 1));
    assert!(matches!(foreign, Err(VerbsError::InvalidHandle { .. })));
    for (cq, owner) in [(ours, rig.owner(lkey)), (theirs, Owner::Kernel)] {
        let refused = rig.hca.create_qp(rig.pd, &rig.qp_init(cq, owner));
        assert!(
            matches!(refused, Err(VerbsError::InvalidAttr { .. })),
            "{refused:?}"
        );
    }
    let qp = rig
        .hca
        .create_qp(rig.pd, &rig.qp_init(theirs, rig.owner(lkey)));
    let qp = qp.unwrap().handle;
    assert_eq!(rig.hca.qp(qp).err(), Some(state("QP")));
    let init = SrqInit {
        pd: rig.pd,
        max_wr: 9,
        max_sge: 3,
        owner: rig.owner(lkey),
    };
    let srq = rig.hca.create_srq(&init).unwrap().handle;
    assert_eq!(rig.hca.srq(srq).err(), Some(state("SRQ")));
    let mut mixed = rig.qp_init(ours, Owner::Kernel);
    mixed.srq = Some(srq);
    let refused = rig.hca.create_qp(rig.pd, &mixed);
    assert!(matches!(refused, Err(VerbsError::InvalidAttr { .. })));
}

#[test]
fn a_user_has_no_special_qp_and_no_privileged_qkey() {
    let machine = Machine::new();
    let rig = Rig::new(&machine);
    let lkey = rig.memory().lkey;
    let cq = rig.cq(rig.owner(lkey)).unwrap();
    let mut init = rig.qp_init(cq, rig.owner(lkey));
    init.qp_type = QpType::Gsi;
    let refused = rig.hca.create_qp(rig.pd, &init);
    assert!(matches!(refused, Err(VerbsError::NotPermitted { .. })));
    init.qp_type = QpType::Ud;
    let qp = rig.hca.create_qp(rig.pd, &init).unwrap().handle;
    let mut attr = QpAttr {
        state: QpState::Init,
        port: 1,
        qkey: QKey::GSI,
        ..QpAttr::EMPTY
    };
    let mask = M::STATE | M::PKEY_INDEX | M::PORT | M::QKEY;
    let refused = rig.hca.modify_qp(qp, &attr, mask);
    assert!(matches!(refused, Err(VerbsError::NotPermitted { .. })));
    attr.qkey = QKey(0x7fff_ffff);
    assert_eq!(rig.hca.modify_qp(qp, &attr, mask), Ok(()));
}

#[test]
fn a_cq_over_memory_that_is_not_registered_is_refused_and_holds_nothing() {
    let machine = Machine::new();
    let rig = Rig::new(&machine);
    let gone = rig.memory();
    rig.hca.dereg_mr(gone.handle).unwrap();
    for lkey in [gone.lkey, LKey(0), LKey(u32::MAX)] {
        let stale = VerbsError::InvalidHandle { object: "MR" };
        assert_eq!(rig.cq(rig.owner(lkey)), Err(stale));
    }
    assert_eq!(rig.hca.dealloc_user(rig.user), Ok(()));
}

#[test]
fn a_doorbell_through_a_foreign_page_is_counted_and_no_end_of_the_hca() {
    let machine = Machine::new();
    let rig = Rig::new(&machine);
    let event = |syndrome: LocalSyndrome| {
        let mut eqe = Eqe::ZERO;
        eqe.set_event_type(EventType::LOCAL_CATASTROPHIC)
            .set_syndrome(syndrome.0);
        machine.event(2, eqe);
        machine.deliver();
        rig.hca.check()
    };
    assert_eq!(event(LocalSyndrome::BAD_UAR_PAGE), Ok(()));
    assert_eq!(rig.hca.strays().doorbell, 1);
    assert_eq!(event(LocalSyndrome::PARITY), Err(VerbsError::DeviceFailed));
}

#[test]
fn everything_of_a_user_ends_with_the_hca() {
    let machine = Machine::new();
    let rig = Rig::new(&machine);
    let lkey = rig.memory().lkey;
    let cq = rig.cq(rig.owner(lkey)).unwrap();
    rig.hca
        .create_qp(rig.pd, &rig.qp_init(cq, rig.owner(lkey)))
        .unwrap();
    drop(rig);
    assert_eq!((machine.pieces_out(), machine.firmware().debts), (0, 0));
}

#[test]
fn a_profile_without_users_has_none() {
    let machine = Machine::new();
    let hca = crate::tests::open(&machine);
    let refused = hca.alloc_user();
    assert!(matches!(refused, Err(VerbsError::Unsupported { .. })));
}
