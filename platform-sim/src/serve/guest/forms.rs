//! What a driver would say: addresses, numbers, and the mailbox of each command. T-mode; infinihost 3, 4, 6.

use core_ib::wire::mad::{AttributeId, Mad, Method, Smp};
use hca_abi::infinihost::cmd::Opcode;
use hca_abi::infinihost::cq::CqContext;
use hca_abi::infinihost::eq::{EqContext, EqState};
use hca_abi::infinihost::init_hca::InitHca;
use hca_abi::infinihost::mad_ifc::MadIfcInput;
use hca_abi::infinihost::mgm::Mgm;
use hca_abi::infinihost::mpt::{Mpt, MptStatus};
use hca_abi::infinihost::mtt::{Mtt, WriteMttHeader};
use hca_abi::infinihost::port::{InitIb, SetIb};
use hca_abi::infinihost::qp::{QpContext, QpMailbox, ServiceType};
use hca_abi::infinihost::resize_cq::ResizeCq;
use hca_abi::infinihost::srq::{SrqContext, SrqState};
use zerocopy::IntoBytes;

/// Bus address of BAR 0.
pub const BAR0: u64 = 0xe000_0000;
/// Of BAR 2.
pub const BAR2: u64 = 0xe100_0000;
/// Of BAR 4, the attached memory.
pub const BAR4: u64 = 0xf000_0000;
/// Input mailbox.
pub const IN: u64 = 0x1000;
/// Output mailbox.
pub const OUT: u64 = 0x2000;
/// An address vector to port 1, and one to port 2 behind it.
pub const AVS: u64 = 0x3000;
/// Headers of a MAD to QP0, and of one to QP1: [`HEADER`] bytes.
pub const HEADERS: [u64; 2] = [0x3800, 0x3880];
/// LRH, BTH and DETH.
pub const HEADER: u32 = 28;
/// What is sent.
pub const DATA: u64 = 0x4000;
/// What is received into.
pub const BUFFER: u64 = 0x6000;
/// Four pages of a region with translations.
pub const PAGES: u64 = 0x8000;
/// Where they start for those who use its key.
pub const PAGES_VA: u64 = 0x70_0000;
/// WQEs of the SRQ.
pub const SRQ_AT: u64 = 0x3_0000;

/// Key of all memory.
pub const ALL: u32 = 0x10;
/// Key of the region with translations.
pub const REGION: u32 = 0x11;
/// Key of a window.
pub const WINDOW: u32 = 0x12;
/// Domain of everything.
pub const PD: u32 = 0x77;
/// UAR page of everything.
pub const UAR: u32 = 2;
/// Q_Key of every QP that has one.
pub const Q_KEY: u32 = 0x1234;
/// Log2 of the entries of each EQ and CQ.
pub const LOG_RING: u8 = 4;
/// The SRQ.
pub const SRQ: u32 = 0x14;
/// Numbers of the CQs.
pub const CQS: [u32; 2] = [0x20, 0x21];
/// Of the EQs: completions, what is asynchronous, commands.
pub const EQS: [u8; 3] = [1, 2, 3];
/// LIDs of the two ports.
pub const LIDS: [u16; 2] = [0x15, 0x16];

/// A QP of the guest.
#[derive(Clone, Copy, Debug)]
pub struct Qp {
    pub qpn: u32,
    pub service: ServiceType,
    pub port: u8,
    pub peer: u32,
    pub has_srq: bool,
}

const fn qp(qpn: u32, service: ServiceType, port: u8, peer: u32, has_srq: bool) -> Qp {
    Qp {
        qpn,
        service,
        port,
        peer,
        has_srq,
    }
}

/// All of them. Each is connected to its neighbour, on the other port.
pub const QPS: [Qp; 8] = [
    qp(0x30, ServiceType::UD, 1, 0x31, false),
    qp(0x31, ServiceType::UD, 2, 0x30, false),
    qp(0x32, ServiceType::RC, 1, 0x33, false),
    qp(0x33, ServiceType::RC, 2, 0x32, true),
    qp(0x34, ServiceType::UC, 1, 0x35, false),
    qp(0x35, ServiceType::UC, 2, 0x34, false),
    qp(0x10, ServiceType::MLX, 1, 0, false),
    qp(0x12, ServiceType::MLX, 1, 0, false),
];

/// One of several, whatever the number.
pub fn pick<T: Copy>(of: &[T], which: u8) -> T {
    of.iter()
        .copied()
        .cycle()
        .nth(usize::from(which))
        .expect("not empty")
}

/// Where the entries of an EQ are.
pub const fn eq_at(eqn: u32) -> u64 {
    0x1_0000 + (eqn as u64 & 7) * 0x1000
}

/// Where those of a CQ are.
pub const fn cq_at(cqn: u32) -> u64 {
    0x2_0000 + (cqn as u64 & 7) * 0x1000
}

/// A command as it is posted, but for the addresses of its mailboxes.
#[derive(Clone, Debug)]
pub struct Form {
    pub opcode: Opcode,
    pub modifier: u8,
    pub object: u32,
    /// Written to [`IN`] if there is any; else this is the immediate.
    pub mailbox: Vec<u8>,
    pub immediate: u64,
}

/// Tables one megabyte apart, at the front of attached memory.
fn tables() -> InitHca {
    let mut init = InitHca::ZERO;
    let mb = |count: u64| BAR4 + (count << 20);
    init.set_ud_av_port_check(true)
        .set_qpc_base(mb(0))
        .set_log_qps(8)
        .set_eqpc_base(mb(1))
        .set_cqc_base(mb(2))
        .set_log_cqs(8)
        .set_srqc_base(mb(3))
        .set_log_srqs(8)
        .set_eqc_base(mb(4))
        .set_log_eqs(5)
        .set_rdb_base(mb(8))
        .set_mc_base(mb(5))
        .set_log_mc_entry_size(8)
        .set_mc_hash_size(64)
        .set_log_mc_table_size(7)
        .set_mpt_base(mb(6))
        .set_log_mpts(8)
        .set_mtt_base(mb(7));
    init
}

fn key(which: u8) -> (u32, Mpt) {
    let mut entry = Mpt::ZERO;
    let key = pick(&[ALL, REGION, WINDOW], which);
    entry
        .set_status(MptStatus::SOFTWARE)
        .set_key(key)
        .set_pd(PD)
        .set_local_read(true)
        .set_local_write(true)
        .set_remote_read(true)
        .set_remote_write(true)
        .set_remote_atomic(true)
        .set_bind(true)
        .set_region(key != WINDOW);
    if key == REGION {
        entry
            .set_start(PAGES_VA)
            .set_length(4 * 4096)
            .set_mtt_address(BAR4 + (7 << 20) + 64);
    } else {
        entry.set_physical(true).set_length(Mpt::NO_LIMIT);
    }
    (key, entry)
}

/// Context of a QP at any transition.
fn context(qp: &Qp) -> QpContext {
    let mut context = QpContext::ZERO;
    let mut path = context.primary_path();
    let other = LIDS[usize::from(qp.port == 1)];
    path.set_port(qp.port)
        .set_dlid(other)
        .set_ack_timeout(10)
        .set_rnr_retry(3);
    context
        .set_service(qp.service)
        .set_mtu(3)
        .set_msg_max(20)
        .set_uar_page(UAR)
        .set_remote_qpn(qp.peer)
        .set_primary_path(path)
        .set_alternate_path(path)
        .set_pd(PD)
        .set_wqe_lkey(ALL)
        .set_all_signaled(true)
        .set_receive_signaled(true)
        .set_send_cqn(CQS[0])
        .set_receive_cqn(CQS[1])
        .set_retry_count(3)
        .set_sra_max(2)
        .set_sre(true)
        .set_swe(true)
        .set_sae(true)
        .set_rra_max(2)
        .set_rre(true)
        .set_rwe(true)
        .set_rae(true)
        .set_ra_buff_index((qp.qpn & 7) << 7)
        .set_min_rnr_timer(2)
        .set_q_key(if qp.qpn == 0x12 { 0x8001_0000 } else { Q_KEY })
        .set_has_srq(qp.has_srq)
        .set_srqn(SRQ);
    context
}

/// An agent is asked for, or told, an attribute.
fn smp(which: u8) -> Mad {
    let attributes = [
        0x10, 0x11, 0x12, 0x14, 0x15, 0x16, 0x17, 0x18, 0x19, 0x1b, 0x20, 2, 1,
    ];
    let attribute = AttributeId(pick(&attributes, which));
    let method = if which & 0x80 == 0 {
        Method::GET
    } else {
        Method::SET
    };
    Mad(Smp::lid_routed(method, attribute, u32::from(which >> 5 & 3)).to_bytes())
}

fn group(which: u8) -> Mgm {
    let mut group = Mgm::ZERO;
    group
        .set_gid([0xff; 16])
        .set_member(0, Some(QPS[0].qpn))
        .set_member(1, Some(QPS[1].qpn))
        .set_next(u32::from(which >> 2 & 1) * 70);
    group
}

impl Form {
    /// The command as a driver would give it, about object `which` of its kind.
    pub fn of(opcode: Opcode, which: u8) -> Self {
        let mut form = Self {
            opcode,
            modifier: 0,
            object: 0,
            mailbox: Vec::new(),
            immediate: IN,
        };
        let qp = pick(&QPS, which);
        let eqn = pick(&EQS, which);
        let cqn = pick(&CQS, which);
        let port = 1 + (which & 1);
        match opcode {
            Opcode::INIT_HCA => form.mailbox = tables().as_bytes().into(),
            Opcode::SW2HW_MPT | Opcode::MODIFY_MPT | Opcode::HW2SW_MPT | Opcode::QUERY_MPT => {
                let (key, entry) = key(which);
                (form.object, form.mailbox) = (key, entry.as_bytes().into());
            }
            Opcode::WRITE_MTT | Opcode::READ_MTT => {
                let mut head = WriteMttHeader::ZERO;
                head.set_address(BAR4 + (7 << 20) + 64);
                let pages: Vec<_> = (0..4).map(|page| Mtt::page(PAGES + page * 4096)).collect();
                form.mailbox = [head.as_bytes(), pages.as_slice().as_bytes()].concat();
                form.object = 4;
            }
            Opcode::MAP_EQ => {
                form.object = u32::from(which >> 7) << 31 | u32::from(eqn);
                form.immediate = pick(&[0x1f_43fe, 0x400, 0], which >> 2);
            }
            Opcode::SW2HW_EQ | Opcode::HW2SW_EQ | Opcode::QUERY_EQ => {
                let mut context = EqContext::ZERO;
                let intr = if which & 0x40 == 0 {
                    0x80 + eqn - 1
                } else {
                    31
                };
                context
                    .set_translate(true)
                    .set_state(EqState::ARMED)
                    .set_start_address(eq_at(eqn.into()))
                    .set_log_size(LOG_RING)
                    .set_uar_page(UAR)
                    .set_pd(PD)
                    .set_lkey(ALL)
                    .set_intr(intr);
                (form.object, form.mailbox) = (eqn.into(), context.as_bytes().into());
            }
            Opcode::SW2HW_CQ | Opcode::HW2SW_CQ | Opcode::QUERY_CQ => {
                let mut context = CqContext::ZERO;
                context
                    .set_translate(true)
                    .set_start_address(cq_at(cqn))
                    .set_log_size(LOG_RING)
                    .set_uar_page(UAR)
                    .set_error_eqn(EQS[1])
                    .set_completion_eqn(EQS[0])
                    .set_pd(PD)
                    .set_lkey(ALL)
                    .set_cqn(cqn);
                (form.object, form.mailbox) = (cqn, context.as_bytes().into());
            }
            Opcode::RESIZE_CQ => {
                let mut resize = ResizeCq::ZERO;
                let log_size = pick(&[LOG_RING, LOG_RING - 1, LOG_RING + 2, 1], which >> 1);
                resize
                    .set_start_address(cq_at(cqn + 2))
                    .set_log_size(log_size)
                    .set_lkey(ALL);
                (form.object, form.mailbox) = (cqn, resize.as_bytes().into());
            }
            Opcode::SW2HW_SRQ | Opcode::HW2SW_SRQ | Opcode::QUERY_SRQ => {
                let mut context = SrqContext::ZERO;
                context
                    .set_state(SrqState::SOFTWARE)
                    .set_wqe_size(4)
                    .set_pd(PD)
                    .set_lkey(ALL)
                    .set_uar_page(UAR);
                (form.object, form.mailbox) = (SRQ, context.as_bytes().into());
            }
            Opcode::ARM_SRQ => (form.object, form.immediate) = (SRQ, 3),
            Opcode::INIT_IB => {
                let mut init = InitIb::ZERO;
                init.set_mtu(4)
                    .set_port_width(3)
                    .set_vls(4)
                    .set_max_gids(32)
                    .set_max_pkeys(64);
                (form.object, form.mailbox) = (port.into(), init.as_bytes().into());
            }
            Opcode::SET_IB => {
                (form.object, form.mailbox) = (port.into(), SetIb::ZERO.as_bytes().into());
            }
            Opcode::CLOSE_IB => form.object = port.into(),
            Opcode::CONF_SPECIAL_QP => {
                form.modifier = which & 3;
                form.object = pick(&[0x10, 0x12, 0x14], which);
            }
            Opcode::MAD_IFC => {
                form.modifier = 3;
                form.object = u32::from(1 + (which >> 4 & 1));
                form.mailbox = MadIfcInput::local(smp(which).0).as_bytes().into();
            }
            Opcode::WRITE_MGM | Opcode::READ_MGM | Opcode::MGID_HASH => {
                form.object = pick(&[0, 70, 63, 127], which);
                form.mailbox = match opcode {
                    Opcode::MGID_HASH => vec![0xff; 16],
                    _ => group(which).as_bytes().into(),
                };
            }
            Opcode::RTS2SQD_QPEE => form.object = u32::from(which >> 7) << 31 | qp.qpn,
            Opcode::RST2INIT_QPEE
            | Opcode::INIT2INIT_QPEE
            | Opcode::INIT2RTR_QPEE
            | Opcode::RTR2RTS_QPEE
            | Opcode::RTS2RTS_QPEE
            | Opcode::SQERR2RTS_QPEE
            | Opcode::TO_ERR_QPEE
            | Opcode::SQD2RTS_QPEE
            | Opcode::ERR2RST_QPEE
            | Opcode::QUERY_QPEE
            | Opcode::SQD2SQD_QPEE
            | Opcode::SUSPEND_QPEE
            | Opcode::UNSUSPEND_QPEE => {
                form.object = qp.qpn;
                form.mailbox = QpMailbox::new(0, context(&qp)).as_bytes().into();
            }
            _ => {}
        }
        form
    }
}
