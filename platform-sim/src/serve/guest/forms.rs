//! What a driver would say: addresses, numbers, and the mailbox of each command. infinihost 3, 4, 6.

use core_ib::wire::mad::{AttributeId, Mad, Method, Smp};
use hca_abi::infinihost::av::AddressVector;
use hca_abi::infinihost::cmd::Opcode;
use hca_abi::infinihost::cq::CqContext;
use hca_abi::infinihost::eq::{EqContext, EqState};
use hca_abi::infinihost::init_hca::InitHca;
use hca_abi::infinihost::mad_ifc::MadIfcInput;
use hca_abi::infinihost::mgm::Mgm;
use hca_abi::infinihost::mpt::{Mpt, MptStatus, m_key_of_index};
use hca_abi::infinihost::mtt::{Mtt, WriteMttHeader};
use hca_abi::infinihost::port::{InitIb, SetIb};
use hca_abi::infinihost::qp::{QpContext, QpMailbox, ServiceType};
use hca_abi::infinihost::resize_cq::ResizeCq;
use hca_abi::infinihost::srq::{MSrqContext, SrqContext, SrqState};
use hca_abi::infinihost::vpm::VpmEntry;
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

/// Pages lent to the firmware, to its auxiliary area, and to tables. M-mode.
const FIRMWARE: u64 = 0x30_0000;
const AUX: u64 = 0x1c_0000;
const ICM: u64 = 0x20_0000;
/// Bytes of the address space of tables that have pages.
const ICM_LEN: u64 = 0x9_0000;
/// From one table to the next.
const TABLE: u64 = 0x1_0000;

/// MPT entry of all memory.
pub const ALL: u32 = 0x10;
/// That of the region with translations.
pub const REGION: u32 = 0x11;
/// That of a window.
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

/// Bytes from one WQE to the next.
pub const STRIDE: u64 = 256;
/// WQEs of one queue.
pub const WQES: u64 = 8;

/// First byte of a QP's receive queue; the send queue follows.
pub fn queue_at(qpn: u32) -> u64 {
    let index = QPS.iter().position(|qp| qp.qpn == qpn).unwrap_or(0);
    0x4_0000 + index as u64 * 2 * WQES * STRIDE
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

/// What a driver has found out about the card.
#[derive(Clone, Copy, Debug)]
pub struct Card {
    /// M-mode: it has no memory of its own.
    pub memfree: bool,
    /// 1 or 2.
    pub ports: u8,
}

/// A doorbell record by what it is for, in the context of [`UAR`].
#[derive(Clone, Copy, Debug)]
pub enum Record {
    SetCi(u32),
    Arm(u32),
    Sq(u32),
    Rq(u32),
    Srq,
}

impl Record {
    /// Its place there.
    pub const fn index(self) -> u32 {
        match self {
            Self::Sq(qpn) => qpn & 0x7f,
            Self::Rq(qpn) => 0x80 + (qpn & 0x7f),
            Self::SetCi(cqn) => 0x100 + (cqn & 0x7f),
            Self::Arm(cqn) => 0x180 + (cqn & 0x3f),
            Self::Srq => 0x1f0,
        }
    }

    /// Where in host memory it is.
    pub const fn at(self) -> u64 {
        ICM + 8 * TABLE + UAR as u64 * 4096 + self.index() as u64 * 8
    }
}

impl Card {
    /// The key of an MPT entry.
    pub const fn key(self, index: u32) -> u32 {
        if self.memfree {
            m_key_of_index(index)
        } else {
            index
        }
    }

    /// Address of a table, by its number in the order of [`tables`](Self::tables).
    pub const fn table(self, number: u64) -> u64 {
        let base = if self.memfree { 0 } else { BAR4 };
        base + number * TABLE
    }

    /// QP `which`, as far as there are ports.
    pub fn qp(self, which: u8) -> Qp {
        let qp = pick(&QPS, which);
        let port = qp.port.min(self.ports);
        Qp { port, ..qp }
    }

    /// Where the address vector of a QP's peer is. T-mode.
    pub fn av_at(self, qp: &Qp) -> u64 {
        AVS + u64::from(qp.port & 1) * 32
    }

    /// It, without a GRH.
    pub fn av(self, qp: &Qp) -> AddressVector {
        let mut av = AddressVector::ZERO;
        av.set_port(qp.port)
            .set_pd(PD)
            .set_dlid(self.lid_of_peer(qp))
            .set_message_size(3)
            .set_dgid_last(AddressVector::NO_GRH);
        av
    }

    /// LID of the port that the peer of a QP is at.
    pub fn lid_of_peer(self, qp: &Qp) -> u16 {
        let other = QPS.iter().find(|other| other.qpn == qp.peer);
        let port = other.map_or(1, |other| other.port.min(self.ports));
        pick(&LIDS, port - 1)
    }

    /// Tables one behind the other.
    fn tables(self) -> InitHca {
        let mut init = InitHca::ZERO;
        init.set_ud_av_port_check(true)
            .set_qpc_base(self.table(0))
            .set_log_qps(8)
            .set_eqpc_base(self.table(1))
            .set_cqc_base(self.table(2))
            .set_log_cqs(8)
            .set_srqc_base(self.table(3))
            .set_log_srqs(8)
            .set_eqc_base(self.table(4))
            .set_log_eqs(5)
            .set_mc_base(self.table(5))
            .set_log_mc_entry_size(8)
            .set_mc_hash_size(64)
            .set_log_mc_table_size(7)
            .set_mpt_base(self.table(6))
            .set_log_mpts(8)
            .set_mtt_base(self.table(7));
        if self.memfree {
            init.set_uarc_base(self.table(8)).set_log_uars(2);
        } else {
            init.set_rdb_base(self.table(8));
        }
        init
    }

    /// Translations of the region, behind those that are reserved.
    const fn mtts(self) -> u64 {
        self.table(7) + 0x400
    }

    /// Pages that a command lends.
    fn lent(self, opcode: Opcode) -> Vec<VpmEntry> {
        match opcode {
            Opcode::MAP_FA => vec![VpmEntry::new(0, FIRMWARE, 8)],
            Opcode::MAP_ICM_AUX => vec![VpmEntry::new(0, AUX, 6)],
            _ => {
                let blocks = (0..ICM_LEN).step_by(TABLE as usize);
                blocks.map(|at| VpmEntry::new(at, ICM + at, 4)).collect()
            }
        }
    }

    fn protection(self, which: u8) -> (u32, Mpt) {
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
                .set_mtt_address(self.mtts());
        } else {
            entry.set_physical(true).set_length(Mpt::NO_LIMIT);
        }
        (key, entry)
    }

    /// Context of a QP at any transition.
    fn context(self, qp: &Qp) -> QpContext {
        let mut context = QpContext::ZERO;
        let mut path = context.primary_path();
        path.set_port(qp.port)
            .set_dlid(self.lid_of_peer(qp))
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
            .set_wqe_lkey(self.key(ALL))
            .set_all_signaled(true)
            .set_receive_signaled(true)
            .set_send_cqn(CQS[0])
            .set_receive_cqn(CQS[1])
            .set_retry_count(3)
            .set_flight_limit(4)
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
        if self.memfree {
            let (log, stride) = (
                WQES.trailing_zeros() as u8,
                STRIDE.trailing_zeros() as u8 - 4,
            );
            context
                .set_log_rq_size(log)
                .set_log_rq_stride(stride)
                .set_log_sq_size(log)
                .set_log_sq_stride(stride)
                .set_rq_address(queue_at(qp.qpn) as u32)
                .set_sq_address((queue_at(qp.qpn) + WQES * STRIDE) as u32)
                .set_rq_record(Record::Rq(qp.qpn).index())
                .set_sq_record(Record::Sq(qp.qpn).index());
        }
        context
    }
}

impl Card {
    fn srq(self) -> Vec<u8> {
        if self.memfree {
            let mut context = MSrqContext::ZERO;
            context
                .set_state(SrqState::SOFTWARE)
                .set_log_size(WQES.trailing_zeros() as u8)
                .set_srqn(SRQ)
                .set_lkey(self.key(ALL))
                .set_record(Record::Srq.index())
                .set_log_stride(STRIDE.trailing_zeros() as u8 - 4)
                .set_uar_page(UAR)
                .set_wqe_address(SRQ_AT)
                .set_pd(PD);
            return context.as_bytes().into();
        }
        let mut context = SrqContext::ZERO;
        context
            .set_state(SrqState::SOFTWARE)
            .set_wqe_size(4)
            .set_pd(PD)
            .set_lkey(ALL)
            .set_uar_page(UAR);
        context.as_bytes().into()
    }
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

impl Card {
    /// A command as a driver would give it, about object `which` of its kind.
    pub fn form(self, opcode: Opcode, which: u8) -> Form {
        let mut form = Form {
            opcode,
            modifier: 0,
            object: 0,
            mailbox: Vec::new(),
            immediate: IN,
        };
        let qp = self.qp(which);
        let eqn = pick(&EQS, which);
        let cqn = pick(&CQS, which);
        let port = 1 + (which & 1);
        let key = self.key(ALL);
        match opcode {
            Opcode::INIT_HCA => form.mailbox = self.tables().as_bytes().into(),
            Opcode::MAP_FA | Opcode::MAP_ICM_AUX | Opcode::MAP_ICM => {
                let lent = self.lent(opcode);
                (form.object, form.mailbox) = (lent.len() as u32, lent.as_bytes().into());
            }
            Opcode::SET_ICM_SIZE => form.immediate = ICM_LEN,
            Opcode::UNMAP_ICM => {
                form.immediate = self.table(u64::from(which & 15));
                form.object = 16;
            }
            Opcode::SW2HW_MPT | Opcode::MODIFY_MPT | Opcode::HW2SW_MPT | Opcode::QUERY_MPT => {
                let (key, entry) = self.protection(which);
                (form.object, form.mailbox) = (key, entry.as_bytes().into());
            }
            Opcode::WRITE_MTT | Opcode::READ_MTT => {
                let mut head = WriteMttHeader::ZERO;
                head.set_address(self.mtts());
                let pages: Vec<_> = (0..4).map(|page| Mtt::page(PAGES + page * 4096)).collect();
                form.mailbox = [head.as_bytes(), pages.as_slice().as_bytes()].concat();
                form.object = 4;
                if opcode == Opcode::READ_MTT {
                    form.immediate = self.mtts();
                }
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
                    .set_start_address(eq_at(eqn.into()))
                    .set_log_size(LOG_RING)
                    .set_lkey(key)
                    .set_intr(intr);
                if self.memfree {
                    context.set_state(EqState::M_ARMED).set_m_pd(PD);
                } else {
                    context
                        .set_state(EqState::ARMED)
                        .set_uar_page(UAR)
                        .set_pd(PD);
                }
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
                    .set_lkey(key)
                    .set_cqn(cqn);
                if self.memfree {
                    context
                        .set_set_ci_record(Record::SetCi(cqn).index())
                        .set_arm_record(Record::Arm(cqn).index());
                }
                (form.object, form.mailbox) = (cqn, context.as_bytes().into());
            }
            Opcode::RESIZE_CQ => {
                let mut resize = ResizeCq::ZERO;
                let log_size = pick(&[LOG_RING, LOG_RING - 1, LOG_RING + 2, 1], which >> 1);
                resize
                    .set_start_address(cq_at(cqn + 2))
                    .set_log_size(log_size)
                    .set_lkey(key);
                (form.object, form.mailbox) = (cqn, resize.as_bytes().into());
            }
            Opcode::SW2HW_SRQ | Opcode::HW2SW_SRQ | Opcode::QUERY_SRQ => {
                form.mailbox = self.srq();
                form.object = SRQ;
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
                form.mailbox = QpMailbox::new(0, self.context(&qp)).as_bytes().into();
            }
            _ => {}
        }
        form
    }
}
