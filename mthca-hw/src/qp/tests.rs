//! WQEs and doorbells byte by byte, and what completions make of them: good, bad, and made up.

extern crate std;

mod lists;

use crate::fake::{Machine, Reply};
use crate::tests::open;
use crate::{Hca, Interrupts, Profile, StrayCounts};
use core::sync::atomic::{AtomicU32, Ordering};
use core_ib::platform::NoWake;
use core_ib::verbs::{
    AhAttr, AhHandle, AsyncEvent, CompletionQueue, CqHandle, CqInit, Device, DeviceCaps,
    GlobalRoute, Imm, NotifyKind, Owner, PdHandle, PostCause, PostError, QpAttr, QpAttrMask as M,
    QpCaps, QpEvent, QpHandle, QpInit, QpState, QpType, QueuePair, RecvWr, SendFlags, SendOp,
    SendWr, Sge, SharedReceiveQueue, Signaling, SrqInit, Verbs, VerbsError, WcFlags, WcOpcode,
    WcStatus, WorkCompletion,
};
use core_ib::{Gid, LKey, Lid, PKey, Psn, QKey, Qpn, RKey, Sl};
use hca_abi::infinihost::cmd::{CmdStatus, Opcode};
use hca_abi::infinihost::cq::CqContext;
use hca_abi::infinihost::cqe::{Cqe, ErrorCqe, Syndrome};
use hca_abi::infinihost::doorbell::{EqCommand, EqDoorbell};
use hca_abi::infinihost::eqe::{Eqe, EventType};
use hca_abi::infinihost::init_hca::InitHca;
use hca_abi::infinihost::qp::{QpContext, QpMailbox, QpState as HwState, ServiceType, opt};
use hca_abi::infinihost::srq::SrqContext;
use proptest::prelude::*;
use std::vec::Vec;
use zerocopy::{FromBytes, IntoBytes};

/// The number of the first ordinary QP, after 16 reserved ones and the special ones.
pub(crate) const FIRST_QP: u32 = 0x14;

/// An HCA with a CQ and a QP that is ready to send.
pub(crate) struct Rig<'m> {
    pub(crate) machine: &'m Machine,
    pub(crate) hca: Hca<'m, Machine>,
    pub(crate) pd: PdHandle,
    pub(crate) cq: CqHandle,
    pub(crate) qp: QpHandle,
    produced: AtomicU32,
}

const CAPS: QpCaps = QpCaps {
    max_send_wr: 7,
    max_recv_wr: 7,
    max_send_sge: 2,
    max_recv_sge: 2,
    max_inline: 0,
};

pub(crate) fn init(service: QpType, cq: CqHandle, caps: QpCaps) -> QpInit {
    QpInit {
        qp_type: service,
        port: 1,
        send_cq: cq,
        recv_cq: cq,
        srq: None,
        caps,
        signaling: Signaling::PerRequest,
        owner: Owner::Kernel,
    }
}

pub(crate) fn path() -> AhAttr {
    AhAttr {
        port: 1,
        dlid: Lid(9),
        ..AhAttr::default()
    }
}

impl<'m> Rig<'m> {
    fn new(machine: &'m Machine, service: QpType) -> Self {
        Self::with(machine, service, CAPS)
    }

    fn with(machine: &'m Machine, service: QpType, caps: QpCaps) -> Self {
        Self::on(machine, open(machine), service, caps)
    }

    pub(crate) fn on(
        machine: &'m Machine,
        hca: Hca<'m, Machine>,
        service: QpType,
        caps: QpCaps,
    ) -> Self {
        let pd = hca.alloc_pd().unwrap();
        let cq_init = CqInit {
            cqe: 15,
            vector: 0,
            owner: Owner::Kernel,
        };
        let cq = hca.create_cq(&cq_init).unwrap().handle;
        let qp = hca.create_qp(pd, &init(service, cq, caps)).unwrap().handle;
        let rig = Self {
            machine,
            hca,
            pd,
            cq,
            qp,
            produced: AtomicU32::new(0),
        };
        rig.to_rts(rig.qp, service);
        rig.machine.firmware().doorbells.clear();
        rig
    }

    pub(crate) fn to_rts(&self, qp: QpHandle, service: QpType) {
        let attr = QpAttr {
            port: 1,
            qkey: QKey(0x1234),
            path: path(),
            path_mtu: core_ib::Mtu::Mtu2048,
            dest_qpn: Qpn::new(0x99),
            max_dest_rd_atomic: 4,
            max_rd_atomic: 4,
            rq_psn: Psn::new(5),
            sq_psn: Psn::new(6),
            ..QpAttr::EMPTY
        };
        let [init, rtr, rts] = match service {
            QpType::Rc => [
                M::PKEY_INDEX | M::PORT | M::ACCESS,
                M::AV
                    | M::PATH_MTU
                    | M::DEST_QPN
                    | M::RQ_PSN
                    | M::MAX_DEST_RD_ATOMIC
                    | M::MIN_RNR_TIMER,
                M::SQ_PSN | M::TIMEOUT | M::RETRY_COUNT | M::RNR_RETRY | M::MAX_RD_ATOMIC,
            ],
            QpType::Ud => [M::PKEY_INDEX | M::PORT | M::QKEY, M::empty(), M::SQ_PSN],
            _ => [M::PKEY_INDEX | M::QKEY, M::empty(), M::SQ_PSN],
        };
        for (state, mask) in [
            (QpState::Init, init),
            (QpState::Rtr, rtr),
            (QpState::Rts, rts),
        ] {
            let attr = QpAttr { state, ..attr };
            self.hca.modify_qp(qp, &attr, mask | M::STATE).unwrap();
        }
    }

    fn ah(&self) -> AhHandle {
        self.hca.create_ah(self.pd, &path()).unwrap()
    }

    /// What the last command of this kind brought.
    pub(crate) fn input<T: FromBytes>(&self, opcode: Opcode) -> T {
        let firmware = self.machine.firmware();
        let seen = firmware
            .seen
            .iter()
            .rev()
            .find(|seen| seen.opcode == opcode);
        T::read_from_bytes(&seen.unwrap().input).unwrap()
    }

    fn context(&self) -> QpContext {
        self.input::<QpMailbox>(Opcode::RST2INIT_QPEE).context
    }

    pub(crate) fn send(&self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        self.hca.qp(self.qp).unwrap().post_send(wrs)
    }

    pub(crate) fn recv(&self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        self.hca.qp(self.qp).unwrap().post_recv(wrs)
    }

    /// `len` bytes at `offset` of the QP's queues, as dwords.
    fn queue(&self, offset: u64, len: usize) -> Vec<u32> {
        let lkey = self.context().wqe_lkey();
        let bytes = self.machine.firmware().read(lkey, offset, len);
        let words = bytes.as_chunks::<4>().0.iter();
        words.map(|word| u32::from_be_bytes(*word)).collect()
    }

    pub(crate) fn doorbells(&self) -> Vec<(usize, u64)> {
        core::mem::take(&mut self.machine.firmware().doorbells)
    }

    /// The HCA writes a completion.
    pub(crate) fn complete(&self, mut cqe: Cqe) {
        cqe.set_owned_by_hw(false);
        let context: CqContext = self.input(Opcode::SW2HW_CQ);
        let mask = (1 << context.log_size()) - 1;
        let offset = u64::from(self.produced.load(Ordering::Relaxed) & mask) * 32;
        let firmware = self.machine.firmware();
        firmware.write(context.lkey(), offset, cqe.as_bytes());
        drop(firmware);
        self.produced.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn poll(&self) -> Vec<WorkCompletion> {
        let mut all = Vec::new();
        let cq = self.hca.cq(self.cq).unwrap();
        let mut some = [WorkCompletion::EMPTY; 3];
        loop {
            let count = cq.poll(&mut some).unwrap();
            all.extend_from_slice(&some[..count]);
            if count < some.len() {
                return all;
            }
        }
    }

    pub(crate) fn strays(&self) -> StrayCounts {
        self.hca.strays()
    }
}

pub(crate) fn sge(addr: u64, length: u32) -> Sge {
    Sge {
        addr,
        length,
        lkey: LKey(0x77),
    }
}

pub(crate) fn wr<'a>(wr_id: u64, op: SendOp, sges: &'a [Sge]) -> SendWr<'a> {
    SendWr {
        wr_id,
        op,
        sges,
        inline: &[],
        flags: SendFlags::SIGNALED,
    }
}

pub(crate) const SEND: SendOp = SendOp::Send { imm: None };

fn datagram(ah: AhHandle) -> SendOp {
    SendOp::Datagram {
        ah,
        remote_qpn: Qpn::new(0xabcdef),
        remote_qkey: QKey(0x1111_2222),
        imm: Some(Imm([1, 2, 3, 4])),
        pkey_index: 0,
    }
}

#[test]
fn a_send_of_two_pieces_is_three_units_and_rings_as_published() {
    let machine = Machine::new();
    let rig = Rig::new(&machine, QpType::Rc);
    let sges = [sge(0x1000, 10), sge(0x2_0000_0000, 20)];
    rig.send(&[wr(1, SEND, &sges)]).unwrap();
    rig.send(&[wr(2, SEND, &sges)]).unwrap();
    // The queue begins behind a page of receives; the WQEs are 64 bytes. infinihost 13.2: opcode 0x0a, 3 units.
    let doorbell = |nda: u64| (0x10, (nda | 0x0a) << 32 | u64::from(FIRST_QP << 8 | 3));
    assert_eq!(rig.doorbells(), [doorbell(0x1000), doorbell(0x1040)]);
    let first = [
        0x104a, 0x83, 0b1001, 0, // next: the second WQE, behind a doorbell; C, always one
        10, 0x77, 0, 0x1000, 20, 0x77, 2, 0,
    ];
    assert_eq!(rig.queue(0x1000, 48), first);
    assert_eq!(rig.queue(0x1040, 8), [0, 0], "nothing follows the second");
}

#[test]
fn a_list_is_one_doorbell_and_hangs_together() {
    let machine = Machine::new();
    let rig = Rig::new(&machine, QpType::Rc);
    let sges = [sge(0x1000, 10)];
    let fenced = SendWr {
        flags: SendFlags::FENCE | SendFlags::SOLICITED,
        ..wr(2, SEND, &sges)
    };
    rig.send(&[wr(1, SEND, &sges), fenced, wr(3, SEND, &[])])
        .unwrap();
    assert_eq!(
        rig.doorbells(),
        [(0x10, 0x100a << 32 | u64::from(FIRST_QP << 8 | 2))]
    );
    // The last of the ring leads to the first, behind the doorbell; the others follow without.
    assert_eq!(rig.queue(0x1000 + 7 * 64, 8), [0x100a, 0x82]);
    assert_eq!(rig.queue(0x1000, 8), [0x104a, 0x42], "fenced");
    assert_eq!(
        rig.queue(0x1040, 12),
        [0x108a, 0x01, 0b0011],
        "solicited, not signaled"
    );
}

#[test]
fn a_request_of_several_entries_is_fenced_as_one_of_one_is() {
    let machine = Machine::new();
    let rig = Rig::new(&machine, QpType::Rc);
    let sges = [sge(0x1000, 10), sge(0x2000, 20)];
    let fenced = SendWr {
        flags: SendFlags::FENCE,
        ..wr(2, SEND, &sges)
    };
    rig.send(&[wr(1, SEND, &sges[..1]), fenced]).unwrap();
    assert_eq!(rig.queue(0x1000, 8), [0x104a, 0x43], "fenced");
}

#[test]
fn a_datagram_names_its_address_vector_and_the_vector_is_as_published() {
    let machine = Machine::new();
    let rig = Rig::new(&machine, QpType::Ud);
    let route = GlobalRoute {
        dgid: Gid([0x11; 16]),
        hop_limit: 5,
        flow_label: 0xabcde,
        traffic_class: 0x12,
        sgid_index: 3,
    };
    let attr = AhAttr {
        port: 2,
        dlid: Lid(0x0123),
        sl: Sl::new(4),
        src_path_bits: 3,
        static_rate: core_ib::Rate::GBPS_10,
        grh: Some(route),
    };
    let ah = rig.hca.create_ah(rig.pd, &attr).unwrap();
    assert_eq!(rig.hca.query_ah(ah), Ok(attr));
    rig.send(&[wr(1, datagram(ah), &[sge(0x5000, 64)])])
        .unwrap();
    let core = rig.hca.core_for_tests();
    let address = core.av.address(ah.index());
    assert_eq!(address, core.plan.tables.av);
    // WQEs of 128 bytes: 16 + 48 + 2 * 16, rounded up.
    let wqe = rig.queue(0x1000, 80);
    let lkey = wqe[5];
    let expected = [
        0,
        0,
        0b1001,
        0x0102_0304, // immediate in wire order
        0,
        lkey,
        0,
        address as u32,
        0,
        0,
        0,
        0,
        0x00ab_cdef,
        0x1111_2222,
        0,
        0,
        64,
        0x77,
        0,
        0x5000,
    ];
    assert_eq!(wqe, expected);
    let doorbell = 0x100b << 32 | u64::from(FIRST_QP << 8 | 5);
    assert_eq!(rig.doorbells(), [(0x10, doorbell)]);
    let vector: Vec<u32> = (0..4)
        .flat_map(|word| {
            let value = machine.firmware().attached(address + word * 8);
            [(value >> 32) as u32, value as u32]
        })
        .collect();
    let pd = 0x0200_0000 | core.pds.get(rig.pd).unwrap().number;
    let expected = [
        pd,
        0x0083_0123, // GRH, path bits
        0x0023_3205, // GID 3 of port 2 is 35; 2048 bytes, 4X SDR, 5 hops
        0x412a_bcde,
        0x1111_1111,
        0x1111_1111,
        0x1111_1111,
        0x1111_1111,
    ];
    assert_eq!(vector, expected);
}

#[test]
fn inline_data_is_copied_into_whole_units() {
    let machine = Machine::new();
    let caps = QpCaps {
        max_inline: 20,
        ..CAPS
    };
    let rig = Rig::with(&machine, QpType::Rc, caps);
    let mut data = *b"twenty bytes of data";
    fn request(inline: &[u8]) -> SendWr<'_> {
        SendWr {
            inline,
            flags: SendFlags::INLINE,
            ..wr(1, SEND, &[])
        }
    }
    rig.send(&[request(&data)]).unwrap();
    data.fill(0);
    let units = 3; // 16, and 4 + 20 rounded up
    assert_eq!(rig.doorbells()[0].1 & 63, units);
    let wqe = rig.queue(0x1000, 48);
    assert_eq!(wqe[4], 0x8000_0014);
    assert_eq!(
        wqe[5..10],
        [
            0x7477_656e,
            0x7479_2062,
            0x7974_6573,
            0x206f_6620,
            0x6461_7461
        ]
    );
    let long = [0; 600];
    let error = rig.send(&[request(&long)]).unwrap_err();
    assert_eq!(error.cause, PostCause::InlineTooLong);
}

#[test]
fn reads_writes_and_atomics_have_the_segments_of_the_reference() {
    let machine = Machine::new();
    let rig = Rig::new(&machine, QpType::Rc);
    let remote = core_ib::verbs::RemoteAddr {
        addr: 0x1_0000_0008,
        rkey: RKey(0x88),
    };
    let one = [sge(0x5000, 8)];
    let write = SendOp::RdmaWrite {
        remote,
        imm: Some(Imm([9, 8, 7, 6])),
    };
    let swap = SendOp::CompareSwap {
        remote,
        compare: 3,
        swap: 4,
    };
    let read = SendOp::RdmaRead { remote };
    let add = SendOp::FetchAdd { remote, add: 5 };
    rig.send(&[
        wr(1, write, &one),
        wr(2, read, &one),
        wr(3, swap, &one),
        wr(4, add, &one),
    ])
    .unwrap();
    let remote_dwords = [1, 8, 0x88, 0];
    let at = |index: u64| rig.queue(0x1000 + index * 64, 64);
    assert_eq!(at(0)[3..8], [0x0908_0706, 1, 8, 0x88, 0]);
    assert_eq!(at(0)[0], 0x1050, "the read follows");
    assert_eq!(at(1)[4..12], [1, 8, 0x88, 0, 8, 0x77, 0, 0x5000]);
    assert_eq!(at(2)[4..8], remote_dwords);
    assert_eq!(at(2)[8..16], [0, 4, 0, 3, 8, 0x77, 0, 0x5000]);
    assert_eq!(at(3)[8..12], [0, 5, 0, 0]);
    assert_eq!(
        (at(1)[0], at(2)[0]),
        (0x1091, 0x10d2),
        "then swap and add, each by its opcode"
    );
    assert_eq!(
        (at(0)[1], at(1)[1], at(2)[1]),
        (3, 4, 4),
        "units of what follows"
    );
}

#[test]
fn receives_are_linked_by_length_and_rung_by_256() {
    let machine = Machine::new();
    let caps = QpCaps {
        max_recv_wr: 511,
        ..CAPS
    };
    let rig = Rig::with(&machine, QpType::Ud, caps);
    let sges = [sge(0x5000, 40), sge(0x6000, 256)];
    let wrs: Vec<RecvWr<'_>> = (0..300)
        .map(|wr_id| RecvWr {
            wr_id,
            sges: &sges[..1 + (wr_id % 2) as usize],
        })
        .collect();
    rig.recv(&wrs).unwrap();
    let qp = u64::from(FIRST_QP << 8);
    // 256 is written as 0; the 257th WQE is at 256 * 64. infinihost 13.2
    let expected = [
        (0x18, 0x0000_0002_u64 << 32 | qp),
        (0x18, 0x0000_4002_u64 << 32 | qp | 44),
    ];
    assert_eq!(rig.doorbells(), expected);
    // Next by the ring, with its length: 2 units, 3 units.
    assert_eq!(rig.queue(0, 8), [0x41, 0x83]);
    assert_eq!(rig.queue(64, 8), [0x81, 0x82]);
    assert_eq!(
        rig.queue(299 * 64, 8),
        [300 * 64 + 1, 0x80],
        "the last says of none"
    );
    assert_eq!(rig.queue(511 * 64, 4), [1], "the ring closes");
    assert_eq!(
        rig.queue(64 + 16, 32),
        [40, 0x77, 0, 0x5000, 256, 0x77, 0, 0x6000]
    );
}

#[test]
fn what_may_not_be_posted_is_refused_and_named() {
    let machine = Machine::new();
    let rig = Rig::new(&machine, QpType::Ud);
    let ah = rig.ah();
    let three = [sge(0, 1), sge(0, 1), sge(0, 1)];
    let good = wr(1, datagram(ah), &three[..1]);
    let max = rig.hca.query_device().max_sge as usize + 1;
    let many: Vec<Sge> = core::iter::repeat_n(sge(0, 1), max).collect();
    let refused = |wrs: &[SendWr<'_>]| rig.send(wrs).unwrap_err();
    let at = |index, cause| PostError { index, cause };
    assert_eq!(
        refused(&[good, wr(2, datagram(ah), &many), good]),
        at(1, PostCause::TooManySge)
    );
    assert_eq!(
        refused(&[wr(2, SEND, &[])]),
        at(0, PostCause::InvalidOpcode)
    );
    let read = SendOp::RdmaRead {
        remote: core_ib::verbs::RemoteAddr::default(),
    };
    assert_eq!(
        refused(&[wr(2, read, &[])]),
        at(0, PostCause::InvalidOpcode)
    );
    let gone = rig.ah();
    rig.hca.destroy_ah(gone).unwrap();
    assert_eq!(
        refused(&[wr(2, datagram(gone), &[])]),
        at(0, PostCause::InvalidHandle)
    );
    // Seven fit: one was posted ahead of the second of the first list.
    let list = [good; 7];
    assert_eq!(refused(&list), at(6, PostCause::QueueFull));
    assert_eq!(rig.send(&[]), Ok(()));
    let other_pd = rig.hca.alloc_pd().unwrap();
    let foreign = rig.hca.create_ah(other_pd, &path()).unwrap();
    assert_eq!(
        refused(&[wr(2, datagram(foreign), &[])]).cause,
        PostCause::QueueFull
    );
}

#[test]
fn posting_follows_the_state() {
    let machine = Machine::new();
    let rig = Rig::new(&machine, QpType::Ud);
    let to = |state| {
        let attr = QpAttr {
            state,
            ..QpAttr::EMPTY
        };
        rig.hca.modify_qp(rig.qp, &attr, M::STATE).unwrap();
    };
    let op = datagram(rig.ah());
    let send = || rig.send(&[wr(1, op, &[])]).map_err(|error| error.cause);
    let recv = || {
        let wr = RecvWr {
            wr_id: 1,
            sges: &[],
        };
        rig.recv(&[wr]).map_err(|error| error.cause)
    };
    let wrong = Err(PostCause::InvalidState);
    assert_eq!((send(), recv()), (Ok(()), Ok(())));
    to(QpState::Error);
    assert_eq!((send(), recv()), (Ok(()), Ok(())));
    to(QpState::Reset);
    assert_eq!((send(), recv()), (wrong, wrong));
    let attr = QpAttr {
        state: QpState::Init,
        port: 1,
        ..QpAttr::EMPTY
    };
    let mask = M::STATE | M::PORT | M::PKEY_INDEX | M::QKEY;
    rig.hca.modify_qp(rig.qp, &attr, mask).unwrap();
    assert_eq!((send(), recv()), (wrong, Ok(())));
}

#[test]
fn the_context_of_a_connected_qp_is_as_published() {
    let machine = Machine::new();
    let rig = Rig::new(&machine, QpType::Rc);
    let context = rig.context();
    let dwords: Vec<u32> = context
        .as_bytes()
        .as_chunks::<4>()
        .0
        .iter()
        .map(|word| u32::from_be_bytes(*word))
        .collect();
    assert_eq!(
        dwords[0], 0x1000_1900,
        "infinihost 13.6: RC to INIT, migrated"
    );
    assert_eq!(dwords[0x10 / 4], FIRST_QP);
    let rts: QpMailbox = rig.input(Opcode::RTR2RTS_QPEE);
    let params = u32::from_be_bytes(*rts.context.as_bytes()[0x70..].first_chunk().unwrap());
    // infinihost 13.6, with retry 0, two bits of depth, reads and atomics, and not all signaled.
    assert_eq!(params, 0xa940_e000);
    let rtr: QpMailbox = rig.input(Opcode::INIT2RTR_QPEE);
    assert_eq!(rtr.context.service(), ServiceType::RC);
    assert_eq!((rtr.context.mtu(), rtr.context.msg_max()), (4, 31));
    assert_eq!(rtr.context.primary_path().dlid(), 9);
    assert_eq!(rtr.context.remote_qpn(), 0x99);
    let access = opt::RRE | opt::RAE | opt::RWE;
    assert_eq!(rtr.opt_param_mask() & access, access);
}

// Completions.

pub(crate) fn good(qpn: u32, send: bool, wqe: u32, opcode: u8) -> Cqe {
    let mut cqe = Cqe::ZERO;
    cqe.set_qpn(qpn)
        .set_is_send(send)
        .set_wqe_address(wqe)
        .set_opcode(opcode);
    cqe
}

fn bad(qpn: u32, send: bool, wqe: u32, syndrome: Syndrome, doorbells: u16) -> Cqe {
    let mut cqe = ErrorCqe::ZERO;
    cqe.set_qpn(qpn)
        .set_syndrome(syndrome)
        .set_vendor_error(0x5a)
        .set_doorbell_count(doorbells)
        .set_wqe_address(wqe)
        .set_opcode(if send {
            Cqe::ERROR_SEND
        } else {
            Cqe::ERROR_RECEIVE
        });
    *cqe.as_cqe()
}

fn ids(completions: &[WorkCompletion]) -> Vec<(u64, WcStatus)> {
    completions.iter().map(|wc| (wc.wr_id, wc.status)).collect()
}

#[test]
fn a_datagram_that_came_brings_what_verbs_5_3_promises() {
    let machine = Machine::new();
    let rig = Rig::new(&machine, QpType::Ud);
    rig.recv(&[RecvWr {
        wr_id: 42,
        sges: &[],
    }])
    .unwrap();
    let mut cqe = good(FIRST_QP, false, 0, 0x65);
    cqe.set_remote_qpn(0x123)
        .set_sl(3)
        .set_grh(true)
        .set_path_bits(1)
        .set_slid(0x17)
        .set_immediate(0x0102_0304)
        .set_byte_count(296);
    rig.complete(cqe);
    rig.doorbells();
    let wc = rig.poll()[0];
    let expected = WorkCompletion {
        wr_id: 42,
        status: WcStatus::Success,
        opcode: WcOpcode::Recv,
        flags: WcFlags::GRH | WcFlags::IMM,
        sl: Sl::new(3),
        dlid_path_bits: 1,
        byte_len: 296,
        qpn: Qpn::new(FIRST_QP),
        src_qp: Qpn::new(0x123),
        slid: Lid(0x17),
        imm: Imm([1, 2, 3, 4]),
        ..WorkCompletion::EMPTY
    };
    assert_eq!(wc, expected);
    // infinihost 13.2: consumer index of CQ 16 up by one.
    assert_eq!(rig.doorbells(), [(0x20, 0x0100_0010_0000_0000)]);
}

/// Both generations, with firmware that says it offloads checksums, and without; whether they are to be used.
fn with_checksums() -> impl Iterator<Item = (Machine, bool)> {
    let kinds = [(true, true), (true, false), (false, true), (false, false)];
    kinds.into_iter().map(|(mem_free, says)| {
        let machine = if mem_free {
            Machine::sinai()
        } else {
            Machine::new()
        };
        machine.firmware().checksums = says;
        (machine, mem_free && says)
    })
}

#[test]
fn checksums_are_offered_and_enabled_if_a_mem_free_hca_says_so() {
    for (machine, does) in with_checksums() {
        let rig = Rig::new(&machine, QpType::Ud);
        let caps = rig.hca.query_device().caps;
        assert_eq!(caps.contains(DeviceCaps::IP_CHECKSUM), does);
        let tables: InitHca = rig.input(Opcode::INIT_HCA);
        assert_eq!(tables.as_bytes()[0x17] & 0x38, u8::from(does) * 0x38);
    }
}

#[test]
fn the_checksums_asked_for_are_bits_of_a_datagram_in_m_mode_and_of_nothing_else() {
    let all = SendFlags::IP_CHECKSUM | SendFlags::L4_CHECKSUM;
    let asked = [
        (SendFlags::empty(), 0),
        (SendFlags::IP_CHECKSUM, 0x10),
        (SendFlags::L4_CHECKSUM, 0x20),
        (all, 0x30),
        (all | SendFlags::SOLICITED, 0x32),
    ];
    let (one, two) = (&[sge(0x5000, 64)][..], &[sge(0x5000, 64), sge(0x6000, 64)]);
    for ((flags, bits), sges) in asked
        .into_iter()
        .flat_map(|asked| [(asked, one), (asked, two)])
    {
        let machine = Machine::sinai();
        machine.firmware().checksums = true;
        let rig = Rig::new(&machine, QpType::Ud);
        let mut request = wr(1, datagram(rig.ah()), sges);
        request.flags |= flags;
        rig.send(&[request]).unwrap();
        assert_eq!(rig.queue(0x1000, 16)[2], 0b1001 | bits, "{flags:?}");
    }
    for (make, service, sges) in [
        (Machine::new as fn() -> Machine, QpType::Ud, one),
        (Machine::new, QpType::Ud, two),
        (Machine::new, QpType::Rc, one),
        (Machine::sinai, QpType::Rc, one),
        (Machine::sinai, QpType::Rc, two),
    ] {
        let machine = make();
        machine.firmware().checksums = true;
        let rig = Rig::new(&machine, service);
        let op = match service {
            QpType::Ud => datagram(rig.ah()),
            _ => SEND,
        };
        let mut request = wr(1, op, sges);
        request.flags |= all;
        rig.send(&[request]).unwrap();
        assert_eq!(rig.queue(0x1000, 16)[2], 0b1001, "{service:?}");
    }
}

#[test]
fn a_datagram_that_was_verified_says_so_and_what_others_write_there_says_nothing() {
    for (machine, does) in with_checksums() {
        for (sum, ip_ok, right) in [
            (0xffff, true, true),
            (0xffff, false, false),
            (0xfeff, true, false),
        ] {
            let rig = Rig::new(&machine, QpType::Ud);
            rig.recv(
                &[RecvWr {
                    wr_id: 1,
                    sges: &[],
                }; 2],
            )
            .unwrap();
            for _ in 0..2 {
                let mut cqe = good(FIRST_QP, false, 0, 0x64);
                cqe.set_checksum(sum)
                    .set_ip_ok(ip_ok)
                    .set_byte_count(99)
                    .set_remote_qpn(0x12_3456);
                rig.complete(cqe);
            }
            let wc = rig.poll()[0];
            let flags = if does && right {
                WcFlags::CHECKSUM_OK
            } else {
                WcFlags::empty()
            };
            assert_eq!((wc.flags, wc.src_qp), (flags, Qpn::new(0x12_3456)));
        }
    }
}

#[test]
fn unsignaled_sends_are_retired_by_a_later_completion() {
    let machine = Machine::new();
    let rig = Rig::new(&machine, QpType::Rc);
    let list: Vec<SendWr<'_>> = (0..7).map(|id| wr(id, SEND, &[])).collect();
    rig.send(&list).unwrap();
    assert!(rig.send(&list[..1]).is_err());
    rig.complete(good(FIRST_QP, true, 0x1000 + 5 * 64, 0x0a));
    let polled = rig.poll();
    assert_eq!((polled[0].wr_id, polled[0].opcode), (5, WcOpcode::Send));
    assert_eq!(rig.send(&list).unwrap_err().index, 6, "six are free again");
}

#[test]
fn an_error_on_a_send_queue_stands_for_the_chain_up_to_the_doorbells_counted() {
    let machine = Machine::new();
    let rig = Rig::new(&machine, QpType::Rc);
    let list: Vec<SendWr<'_>> = (0..7).map(|id| wr(id, SEND, &[])).collect();
    rig.send(&list[..2]).unwrap();
    rig.send(&list[2..4]).unwrap();
    rig.send(&list[4..5]).unwrap();
    // The first failed while one doorbell waited: its own list and the next, but not the third.
    rig.complete(bad(FIRST_QP, true, 0x1000, Syndrome::REMOTE_ACCESS, 1));
    let flushed = WcStatus::Flushed;
    let polled = rig.poll();
    let first = (0, WcStatus::RemoteAccess);
    assert_eq!(
        ids(&polled),
        [first, (1, flushed), (2, flushed), (3, flushed)]
    );
    assert!(
        polled
            .iter()
            .all(|wc| wc.vendor_error == 0x5a && wc.qpn.get() == FIRST_QP)
    );
    // The third doorbell came after the error and has an entry of its own.
    rig.complete(bad(FIRST_QP, true, 0x1000 + 4 * 64, Syndrome::FLUSHED, 0));
    assert_eq!(ids(&rig.poll()), [(4, flushed)]);
    assert_eq!(rig.strays().cqe, 0);
}

#[test]
fn an_error_on_a_receive_queue_stands_for_as_many_as_are_counted() {
    let machine = Machine::new();
    let rig = Rig::new(&machine, QpType::Ud);
    let list: Vec<RecvWr<'_>> = (0..7).map(|wr_id| RecvWr { wr_id, sges: &[] }).collect();
    rig.recv(&list).unwrap();
    rig.complete(bad(FIRST_QP, false, 64, Syndrome::LOCAL_LENGTH, 3));
    let flushed = WcStatus::Flushed;
    let expected = [
        (1, WcStatus::LocalLength),
        (2, flushed),
        (3, flushed),
        (4, flushed),
    ];
    assert_eq!(ids(&rig.poll()), expected);
    // A count beyond what was posted ends where the requests do.
    rig.complete(bad(FIRST_QP, false, 5 * 64, Syndrome::FLUSHED, 0xffff));
    assert_eq!(ids(&rig.poll()), [(5, flushed), (6, flushed)]);
}

#[test]
fn every_syndrome_has_its_status_and_an_unknown_one_keeps_its_number() {
    let machine = Machine::new();
    let rig = Rig::new(&machine, QpType::Rc);
    for (syndrome, status) in [
        (0x01, WcStatus::LocalLength),
        (0x02, WcStatus::LocalQpOperation),
        (0x04, WcStatus::LocalProtection),
        (0x05, WcStatus::Flushed),
        (0x06, WcStatus::MwBind),
        (0x10, WcStatus::BadResponse),
        (0x11, WcStatus::LocalAccess),
        (0x12, WcStatus::RemoteInvalidRequest),
        (0x13, WcStatus::RemoteAccess),
        (0x14, WcStatus::RemoteOperation),
        (0x15, WcStatus::RetryExceeded),
        (0x16, WcStatus::RnrRetryExceeded),
        (0x77, WcStatus::General(0x77)),
    ] {
        rig.send(&[wr(7, SEND, &[])]).unwrap();
        let at = 0x1000 + (rig.produced.load(Ordering::Relaxed) % 8) * 64;
        rig.complete(bad(FIRST_QP, true, at, Syndrome(syndrome), 0));
        assert_eq!(ids(&rig.poll()), [(7, status)]);
    }
}

#[test]
fn completions_of_a_qp_that_is_gone_are_taken_out_and_those_of_others_stay() {
    let machine = Machine::new();
    let rig = Rig::new(&machine, QpType::Rc);
    let other = rig
        .hca
        .create_qp(rig.pd, &init(QpType::Rc, rig.cq, CAPS))
        .unwrap();
    rig.to_rts(other.handle, QpType::Rc);
    let list: Vec<SendWr<'_>> = (0..3).map(|id| wr(id, SEND, &[])).collect();
    rig.send(&list).unwrap();
    rig.hca.qp(other.handle).unwrap().post_send(&list).unwrap();
    for index in 0..3 {
        rig.complete(good(FIRST_QP, true, 0x1000 + index * 64, 0x0a));
        rig.complete(good(other.qpn.get(), true, 0x1000 + index * 64, 0x0a));
    }
    rig.hca.destroy_qp(rig.qp).unwrap();
    let polled = rig.poll();
    let of_other = |wc: &WorkCompletion| wc.qpn == other.qpn;
    assert_eq!((polled.len(), polled.iter().all(of_other)), (3, true));
    assert_eq!(
        polled.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(),
        [0, 1, 2]
    );
}

#[test]
fn a_reset_qp_starts_anew() {
    let machine = Machine::new();
    let rig = Rig::new(&machine, QpType::Rc);
    let list: Vec<SendWr<'_>> = (0..7).map(|id| wr(id, SEND, &[])).collect();
    rig.send(&list).unwrap();
    rig.complete(bad(FIRST_QP, true, 0x1000, Syndrome::RETRY_EXCEEDED, 9));
    let mut one = [WorkCompletion::EMPTY];
    assert_eq!(rig.hca.cq(rig.cq).unwrap().poll(&mut one), Ok(1)); // the rest of the chain is yet to come
    rig.complete(good(FIRST_QP, false, 0, 0));
    let attr = QpAttr {
        state: QpState::Reset,
        ..QpAttr::EMPTY
    };
    rig.hca.modify_qp(rig.qp, &attr, M::STATE).unwrap();
    assert_eq!(rig.poll(), []);
    rig.to_rts(rig.qp, QpType::Rc);
    assert_eq!(rig.send(&list), Ok(()));
}

#[test]
fn the_records_of_a_reset_qp_count_from_0() {
    let machine = Machine::sinai();
    let rig = Rig::new(&machine, QpType::Rc);
    let counters = || {
        let bells = rig.hca.core_for_tests().bells.as_ref().unwrap();
        let place = rig.qp.index();
        [bells.send(place), bells.receive(place)].map(|bell| bells.counter(bell))
    };
    let list: Vec<SendWr<'_>> = (0..3).map(|id| wr(id, SEND, &[])).collect();
    rig.send(&list).unwrap();
    let sges = [sge(0, 8)];
    let receives = [0, 1].map(|wr_id| RecvWr { wr_id, sges: &sges });
    rig.recv(&receives).unwrap();
    assert_eq!(counters(), [3, 2]);
    let attr = QpAttr {
        state: QpState::Reset,
        ..QpAttr::EMPTY
    };
    rig.hca.modify_qp(rig.qp, &attr, M::STATE).unwrap();
    assert_eq!(counters(), [0, 0]);
}

#[test]
fn an_armed_cq_rings_as_published_and_arming_for_less_does_not_take_back_more() {
    let machine = Machine::new();
    let rig = Rig::new(&machine, QpType::Ud);
    let cq = rig.hca.cq(rig.cq).unwrap();
    cq.req_notify(NotifyKind::Solicited).unwrap();
    cq.req_notify(NotifyKind::Any).unwrap();
    cq.req_notify(NotifyKind::Solicited).unwrap();
    let expected = [(0x20, 0x0300_0010_ffff_ffff), (0x20, 0x0200_0010_ffff_ffff)];
    assert_eq!(rig.doorbells(), expected);
}

#[test]
fn an_srq_takes_its_requests_in_any_order_and_gives_each_back_once() {
    let machine = Machine::new();
    let rig = Rig::new(&machine, QpType::Ud);
    let srq_init = SrqInit {
        pd: rig.pd,
        max_wr: 3,
        max_sge: 2,
        owner: Owner::Kernel,
    };
    let srq = rig.hca.create_srq(&srq_init).unwrap();
    assert_eq!(srq.size, 3);
    let qp_init = QpInit {
        srq: Some(srq.handle),
        ..init(QpType::Ud, rig.cq, CAPS)
    };
    let qp = rig.hca.create_qp(rig.pd, &qp_init).unwrap();
    rig.to_rts(qp.handle, QpType::Ud);
    rig.doorbells();
    let sges = [sge(0x5000, 100)];
    let list: Vec<RecvWr<'_>> = (10..14)
        .map(|wr_id| RecvWr { wr_id, sges: &sges })
        .collect();
    let queue = rig.hca.srq(srq.handle).unwrap();
    let full = queue.post_recv(&list).unwrap_err();
    assert_eq!((full.index, full.cause), (3, PostCause::QueueFull));
    // infinihost 13.2: SRQ 16, first WQE at 0, 3 WQEs; no size, which tells it from a QP's.
    assert_eq!(rig.doorbells(), [(0x18, 0x0000_1003)]);
    let lkey = rig.input::<SrqContext>(Opcode::SW2HW_SRQ).lkey();
    let wqe = machine.firmware().read(lkey, 64, 48);
    let dwords: Vec<u32> = wqe
        .as_chunks::<4>()
        .0
        .iter()
        .map(|w| u32::from_be_bytes(*w))
        .collect();
    let expected = [0x81, 0x80, 0, 0, 100, 0x77, 0, 0x5000, 0, 0x100, 0, 0];
    assert_eq!(dwords, expected, "linked, one entry, the end of the list");
    for wqe in [128, 0, 128, 192, 0x8000] {
        rig.complete(good(qp.qpn.get(), false, wqe, 0x64));
    }
    let polled = rig.poll();
    assert_eq!(
        polled.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(),
        [12, 10]
    );
    assert_eq!(rig.strays().cqe, 3, "twice the same, and two that are none");
    assert_eq!(
        queue.post_recv(&list).unwrap_err().index,
        2,
        "two are free again"
    );
    // One that is taken and not polled comes back when its QP goes: verbs 3.10.
    rig.complete(good(qp.qpn.get(), false, 64, 0x64));
    let busy = rig.hca.destroy_srq(srq.handle);
    assert!(matches!(busy, Err(VerbsError::Busy { object: "SRQ", .. })));
    rig.hca.destroy_qp(qp.handle).unwrap();
    assert_eq!(rig.poll(), []);
    assert_eq!(queue.post_recv(&list[..1]), Ok(()));
    drop(queue);
    assert_eq!(rig.hca.destroy_srq(srq.handle), Ok(()));
}

#[test]
fn a_gsi_packet_is_gathered_from_headers_payload_and_room_for_the_icrc() {
    let machine = Machine::new();
    let rig = Rig::new(&machine, QpType::Gsi);
    let op = SendOp::Datagram {
        ah: rig.ah(),
        remote_qpn: Qpn::GSI,
        remote_qkey: QKey::GSI,
        imm: None,
        pkey_index: 0,
    };
    rig.send(&[wr(5, op, &[sge(0x5000, 256)])]).unwrap();
    let gsi = 16 + 2;
    assert_eq!(
        rig.doorbells(),
        [(0x10, 0x100a << 32 | u64::from(gsi << 8 | 4_u32))]
    );
    let wqe = rig.queue(0x1000, 64);
    assert_eq!(
        wqe[2..4],
        [0b1000, 9 << 16],
        "C; the destination once more; bit 0 clear"
    );
    let [count, lkey, 0, at] = wqe[4..8] else {
        panic!("{wqe:x?}")
    };
    assert_eq!((count, lkey), (28, rig.context().wqe_lkey()));
    assert_eq!(wqe[8..], [256, 0x77, 0, 0x5000, 0x8000_0004, 0, 0, 0]);
    let headers = machine.firmware().read(lkey, at.into(), 28);
    assert_eq!(headers[..8], [0, 2, 0, 9, 0, 72, 0, 0]);
    assert_eq!(headers[8..12], [0x64, 0, 0xff, 0xff]);
    // An immediate in a receive of QP1 is the P_Key index, whatever the opcode says. infinihost 4.5.1
    rig.recv(&[RecvWr {
        wr_id: 6,
        sges: &[],
    }])
    .unwrap();
    let mut cqe = good(gsi, false, 0, 0x65);
    cqe.set_immediate(0x0003_0000).set_byte_count(296);
    rig.complete(cqe);
    let wc = rig.poll()[0];
    assert_eq!(
        (wc.pkey_index, wc.qpn, wc.flags),
        (3, Qpn::GSI, WcFlags::empty())
    );
    let second = rig.hca.create_qp(rig.pd, &init(QpType::Gsi, rig.cq, CAPS));
    assert!(matches!(
        second,
        Err(VerbsError::Busy { object: "GSI", .. })
    ));
    let _ = PKey::DEFAULT;
}

#[test]
fn the_qps_of_an_hca_whose_wqes_have_no_bytes_take_no_data() {
    for machine in [Machine::new(), Machine::sinai()] {
        machine.firmware().no_wqes = true;
        let hca = open(&machine);
        let pd = hca.alloc_pd().unwrap();
        let cq_init = CqInit {
            cqe: 15,
            vector: 0,
            owner: Owner::Kernel,
        };
        let cq = hca.create_cq(&cq_init).unwrap().handle;
        let caps = QpCaps {
            max_send_wr: 1,
            max_recv_wr: 1,
            ..QpCaps::default()
        };
        let caps = hca.create_qp(pd, &init(QpType::Rc, cq, caps)).unwrap().caps;
        assert_eq!(
            (caps.max_send_sge, caps.max_recv_sge, caps.max_inline),
            (0, 0, 0)
        );
    }
}

/// Its number carries no tag: the next one has the same.
#[test]
fn what_happened_to_a_special_qp_is_not_told_of_the_next_one() {
    let polled = Profile {
        interrupts: Interrupts::None,
        ..Profile::SMALL
    };
    for (service, at) in [(QpType::Smi, 0), (QpType::Gsi, 2)] {
        let machine = Machine::new();
        let hca = Hca::open(&machine, &NoWake, &polled).unwrap();
        let rig = Rig::on(&machine, hca, service, CAPS);
        let mut eqe = Eqe::ZERO;
        eqe.set_event_type(EventType::WQ_CATASTROPHIC)
            .set_number(rig.hca.plan().special_qps + at);
        machine.event(2, eqe); // and nobody has looked yet
        rig.hca.destroy_qp(rig.qp).unwrap();
        let next = rig
            .hca
            .create_qp(rig.pd, &init(service, rig.cq, CAPS))
            .unwrap();
        rig.hca.poll_events();
        assert_eq!(rig.hca.next_async_event(), None);
        machine.event(2, eqe);
        rig.hca.poll_events();
        let told = AsyncEvent::Qp(next.handle, QpEvent::Fatal);
        assert_eq!(rig.hca.next_async_event(), Some(told));
    }
}

#[test]
fn a_queue_that_drains_is_not_told_as_drained() {
    let machine = Machine::new();
    let rig = Rig::new(&machine, QpType::Rc);
    for (state, draining) in [(HwState::SQ_DRAINING, true), (HwState::SQD, false)] {
        let mut context = rig.context();
        context.set_state(state);
        machine.firmware().qp = context;
        let attr = rig.hca.query_qp(rig.qp).unwrap();
        assert_eq!((attr.state, attr.sq_draining), (QpState::Sqd, draining));
    }
}

#[test]
fn in_t_mode_a_cq_whose_event_has_come_is_disarmed() {
    let machine = Machine::new();
    let rig = Rig::new(&machine, QpType::Rc);
    let cqn = rig.input::<CqContext>(Opcode::SW2HW_CQ).cqn();
    let mut eqe = Eqe::ZERO;
    eqe.set_event_type(EventType::COMPLETION).set_number(cqn);
    machine.event(1, eqe);
    while machine.deliver() {}
    assert!(rig.hca.take_cq_event(rig.cq));
    let disarm = EqDoorbell {
        command: EqCommand::DISARM_CQ,
        eqn: 1,
        parameter: cqn,
    };
    let rung = rig.doorbells();
    assert!(
        rung.iter().any(|(_, value)| *value == disarm.encode()),
        "{rung:x?}"
    );
}

#[test]
fn a_dead_hca_flushes_by_software_in_order_and_takes_no_more() {
    let machine = Machine::new();
    let rig = Rig::new(&machine, QpType::Rc);
    let list: Vec<SendWr<'_>> = (0..4).map(|id| wr(id, SEND, &[])).collect();
    rig.send(&list).unwrap();
    rig.recv(&[RecvWr {
        wr_id: 9,
        sges: &[],
    }])
    .unwrap();
    rig.complete(good(FIRST_QP, true, 0x1000, 0x0a));
    assert!(!rig.hca.take_cq_event(rig.cq));
    machine.reply(Opcode::QUERY_QPEE, [Reply::Silence]);
    assert_eq!(rig.hca.query_qp(rig.qp), Err(VerbsError::DeviceFailed));
    assert!(rig.hca.take_cq_event(rig.cq), "the CQ has fired");
    let flushed = WcStatus::Flushed;
    let expected = [
        (0, WcStatus::Success),
        (1, flushed),
        (2, flushed),
        (3, flushed),
        (9, flushed),
    ];
    assert_eq!(ids(&rig.poll()), expected);
    assert_eq!(rig.poll(), []);
    // A completion that the HCA writes after that would be one too many.
    rig.complete(good(FIRST_QP, true, 0x1040, 0x0a));
    assert_eq!(rig.poll(), []);
    assert_eq!(
        rig.send(&list[..1]).unwrap_err().cause,
        PostCause::DeviceFailed
    );
    let attr = QpAttr {
        state: QpState::Error,
        ..QpAttr::EMPTY
    };
    assert_eq!(rig.hca.modify_qp(rig.qp, &attr, M::STATE), Ok(()));
    assert_eq!(rig.hca.destroy_qp(rig.qp), Ok(()));
    assert_eq!(rig.hca.destroy_cq(rig.cq), Ok(()));
    assert_eq!(rig.hca.dealloc_pd(rig.pd), Ok(()));
    rig.hca.close().unwrap();
    assert_eq!(machine.pieces_out(), 0);
}

#[test]
fn an_hca_that_does_not_give_a_queue_back_has_failed() {
    let machine = Machine::new();
    let rig = Rig::new(&machine, QpType::Ud);
    let refused = Reply::Status(CmdStatus::BAD_RES_STATE);
    machine.reply(Opcode::ERR2RST_QPEE, [refused]);
    assert_eq!(rig.hca.destroy_qp(rig.qp), Ok(()));
    assert_eq!(rig.hca.check(), Err(VerbsError::DeviceFailed));
    assert_eq!(machine.firmware().resets, 2);
    drop(rig);
    assert_eq!(machine.pieces_out(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn no_completion_that_a_device_can_write_completes_what_was_not_posted(
        entries in proptest::collection::vec(
            (any::<[u8; 32]>(), 0..4_u8, any::<bool>(), 0..10_u32, any::<u8>()), 1..14),
        sends in 0..8_usize, receives in 0..8_usize,
    ) {
        let machine = Machine::new();
        let rig = Rig::new(&machine, QpType::Rc);
        let list: Vec<SendWr<'_>> = (0..7).map(|id| wr(100 + id, SEND, &[])).collect();
        let receive: Vec<RecvWr<'_>> = (0..7).map(|id| RecvWr { wr_id: 200 + id, sges: &[] }).collect();
        rig.send(&list[..sends.min(7)]).unwrap();
        rig.recv(&receive[..receives.min(7)]).unwrap();
        for (mut bytes, aim, send, index, opcode) in entries {
            let base = if send { 0x1000 } else { 0 };
            if aim > 0 {
                bytes[..4].copy_from_slice(&FIRST_QP.to_be_bytes());
            }
            if aim > 1 {
                bytes[0x18..0x1c].copy_from_slice(&u32::to_be_bytes(base + index * 64));
            }
            bytes[0x1c] = if opcode & 3 == 0 { 0xfe | u8::from(send) } else { opcode };
            bytes[0x1d] = if send { 0x80 } else { 0 };
            rig.complete(Cqe::read_from_bytes(&bytes).unwrap());
        }
        let polled = rig.poll();
        for (base, count) in [(100, sends.min(7)), (200, receives.min(7))] {
            let of_queue: Vec<u64> = polled.iter().map(|wc| wc.wr_id)
                .filter(|id| (base..base + 100).contains(id)).collect();
            prop_assert!(of_queue.len() <= count);
            prop_assert!(of_queue.is_sorted_by(|a, b| a < b), "in order, none twice: {of_queue:?}");
            prop_assert!(of_queue.iter().all(|id| *id < base + count as u64));
        }
        prop_assert!(polled.iter().all(|wc| wc.wr_id >= 100 && wc.wr_id < 207));
    }
}
