//! Posting, polling and arming: nanoseconds and instructions for each request, by the conventions of the C figures
//! (`docs/performance.md`): queues of 256, one scatter entry, all requests signalled, locks real, memory in place of
//! registers; instructions from the first of the verb's function to its return.

mod queues;

use super::plain::Plain;
use super::table::{Cell, Row};
use core_ib::platform::{DmaBuf, LetGo, NoWake};
use core_ib::verbs::{
    Access, AhAttr, AhHandle, CqInit, Device, MrInit, Owner, PdHandle, QpAttr, QpAttrMask as M,
    QpCaps, QpHandle, QpInit, QpState, QpType, SendOp, Sge, Signaling, SrqInit, Verbs,
};
use core_ib::{Guid, LKey, Lid, Mtu, QKey, Qpn};
use hca_abi::infinihost::cqe::Cqe;
use mthca_hw::{Hca, Interrupts, Profile};
use platform_sim::hca::infinihost::{Config, InfiniHost, Variant};
use platform_sim::machine::{Cable, LinkParameters, SimPlatform, WireEnd, World};
use queues::{Bench, Queues};
use std::time::Duration;

/// Requests of a queue, less the one that is never used.
const DEPTH: u32 = 255;
/// Entries of a CQ.
const CQ_ENTRIES: u32 = 256;
/// Bytes of one.
const CQ_ENTRY: usize = size_of::<Cqe>();
/// Bytes of a send request as the driver lays it out for these queues: a datagram, or so much inline data.
const SEND_WQE: usize = 128;
/// Of a receive request.
const RECV_WQE: usize = 64;
/// Inline data of a request of a connected QP.
const INLINE: u32 = 64;

type Machine<'s> = Plain<'s>;

/// Instructions of a C provider for the same (rdma-core 65, libmthca, gcc -O2; recorded once): in T-mode, in M-mode.
const C_FIGURES: [(&str, [u32; 2]); 24] = [
    ("UD send 64 B, 1 a call", [195, 200]),
    // The C figures of several sends a call are of RC, which takes 7 (6) less than UD for one.
    ("UD send 64 B, 8 a call", [123 + 7, 121 + 6]),
    ("UD send 64 B, 32 a call", [116 + 7, 114 + 6]),
    ("RC send 64 B, 1 a call", [188, 194]),
    ("RC send 64 B, 8 a call", [123, 121]),
    ("RC send 64 B, 32 a call", [116, 114]),
    ("RC send inline 64 B", [229, 232]),
    ("RDMA write 4 KiB", [198, 204]),
    ("RDMA write inline 16 B", [238, 241]),
    ("RDMA read 4 KiB", [195, 201]),
    ("compare and swap", [211, 217]),
    ("post_recv, 1 a call", [123, 108]),
    ("post_recv, 8 a call", [71, 67]),
    ("post_recv, 32 a call", [65, 63]),
    ("post_srq_recv, 1 a call", [112, 95]),
    ("post_srq_recv, 8 a call", [62, 54]),
    ("post_srq_recv, 32 a call", [57, 50]),
    ("poll_cq, one send", [164, 158]),
    ("poll_cq, one receive", [194, 188]),
    ("poll_cq, 16 sends", [77, 77]),
    ("poll_cq, 16 receives", [107, 107]),
    ("poll_cq, one error", [202, 159]),
    ("poll_cq, nothing there", [55, 55]),
    ("req_notify_cq", [14, 34]),
];

/// What was measured of one kind of call.
struct Figure {
    name: String,
    /// Requests or completions of a call.
    per_call: u32,
    ns: Option<f64>,
    instructions: Option<u64>,
}

impl Figure {
    /// Time, instructions, C's, ratio; `mode` is the column of the C figures.
    fn cells(&self, mode: usize) -> [Cell; 4] {
        let requests = f64::from(self.per_call.max(1));
        let mine = self.instructions.map(|count| count as f64 / requests);
        let c = C_FIGURES.iter().find(|(name, _)| *name == self.name);
        let c = c.and_then(|(_, counts)| counts.get(mode).copied());
        let c = c.map(f64::from);
        let or_dash = |value: Option<f64>| value.map_or(Cell::None, Cell::Count);
        let time = self.ns.map(|ns| format!("{:.1} ns", ns / requests));
        [
            time.map_or(Cell::None, Cell::Text),
            or_dash(mine),
            or_dash(c),
            mine.zip(c)
                .map_or(Cell::None, |(mine, c)| Cell::Ratio(mine / c)),
        ]
    }
}

/// The rows of the data path: T-mode, then M-mode.
pub fn run() -> Result<Vec<Row>, String> {
    let in_t = run_on(Variant::Tavor)?;
    let in_m = run_on(Variant::Arbel)?;
    let rows = in_t.into_iter().zip(in_m).map(|(t, m)| {
        let cells = t.cells(0).into_iter().chain(m.cells(1)).collect();
        Row {
            name: t.name,
            cells,
        }
    });
    Ok(rows.collect())
}

fn run_on(variant: Variant) -> Result<Vec<Figure>, String> {
    let cable = Cable::new(LinkParameters::X4_SDR, Duration::from_nanos(50));
    let config = platform_sim::machine::Config {
        seed: 1,
        stack: 1 << 20,
        stack_budget: None,
        ..platform_sim::machine::Config::default()
    };
    let mut world = World::with(config, cable);
    let config = Config::of(variant, Guid(0x0002_c900_0000_0100));
    let hca = Box::new(InfiniHost::new(config));
    let host = world.add_host("host", hca, &[WireEnd(0), WireEnd(1)]);
    let task = world.spawn(host, "driver", measure);
    world.finish(task).map_err(|stuck| stuck.to_string())?
}

fn text(error: impl core::fmt::Display) -> String {
    error.to_string()
}

fn measure(sim: &SimPlatform) -> Result<Vec<Figure>, String> {
    let machine = Plain::new(sim);
    let profile = Profile {
        interrupts: Interrupts::None,
        ..Profile::SERVER
    };
    let hca = Hca::open(&machine, &NoWake, &profile).map_err(text)?;
    let figures = with_hca(&machine, &hca)?;
    hca.close().map_err(|(_, error)| error.to_string())?;
    Ok(figures)
}

/// Makes what all queues need, measures, and takes it down.
fn with_hca<'m>(
    machine: &'m Machine<'_>,
    hca: &Hca<'m, Machine<'_>>,
) -> Result<Vec<Figure>, String> {
    let pd = hca.alloc_pd().map_err(text)?;
    let memory = DmaBuf::new(machine, 4096, 4096).map_err(text)?;
    let mr_init = MrInit {
        iova: 0,
        length: 4096,
        pages: &[memory.addr()],
        page_shift: 12,
        access: Access::LOCAL_WRITE,
    };
    // SAFETY: the memory is given back behind the region; nobody reads it.
    let mr = unsafe { hca.reg_mr(pd, &mr_init) }.map_err(text)?;
    let to = AhAttr {
        port: 1,
        dlid: Lid(2),
        ..AhAttr::default()
    };
    let ah = hca.create_ah(pd, &to).map_err(text)?;
    let mut figures = with_qp(machine, hca, (pd, ah, mr.lkey), QpType::Ud)?;
    figures.extend(with_qp(machine, hca, (pd, ah, mr.lkey), QpType::Rc)?);
    hca.destroy_ah(ah).map_err(text)?;
    hca.dereg_mr(mr.handle).map_err(text)?;
    hca.dealloc_pd(pd).map_err(text)?;
    // SAFETY: the region over it is gone.
    memory.free(unsafe { LetGo::claim() });
    Ok(figures)
}

/// Makes a QP with its CQ and an SRQ beside, measures, and takes them down.
fn with_qp<'m>(
    machine: &'m Machine<'_>,
    hca: &Hca<'m, Machine<'_>>,
    (pd, ah, lkey): (PdHandle, AhHandle, LKey),
    service: QpType,
) -> Result<Vec<Figure>, String> {
    let owner = Owner::Kernel;
    let cq_init = CqInit {
        cqe: CQ_ENTRIES - 1,
        vector: 0,
        owner,
    };
    let before = machine.dma_count();
    let cq = hca.create_cq(&cq_init).map_err(text)?.handle;
    let rc = service == QpType::Rc;
    let init = QpInit {
        qp_type: service,
        port: 1,
        send_cq: cq,
        recv_cq: cq,
        srq: None,
        caps: QpCaps {
            max_send_wr: DEPTH,
            max_recv_wr: DEPTH,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: if rc { INLINE } else { 0 },
        },
        signaling: Signaling::All,
        owner,
    };
    let qp = hca.create_qp(pd, &init).map_err(text)?.handle;
    let pieces = machine.dma_since(before);
    let piece = |entry: usize| {
        let len = entry * (DEPTH as usize + 1);
        let found = pieces.iter().find(|piece| piece.len == len).copied();
        found.ok_or_else(|| format!("no queue has {len} bytes"))
    };
    let memory = [piece(CQ_ENTRY)?, piece(SEND_WQE)?, piece(RECV_WQE)?];
    to_rts(hca, qp, rc)?;
    let srq_init = SrqInit {
        pd,
        max_wr: DEPTH,
        max_sge: 1,
        owner,
    };
    let srq = hca.create_srq(&srq_init).map_err(text)?.handle;
    let figures = {
        let queues = Queues {
            qp: hca.qp(qp).map_err(text)?,
            cq: hca.cq(cq).map_err(text)?,
            srq: hca.srq(srq).map_err(text)?,
        };
        let sge = Sge {
            addr: 0,
            length: 64,
            lkey,
        };
        let op = match rc {
            true => SendOp::Send { imm: None },
            false => SendOp::Datagram {
                ah,
                remote_qpn: Qpn::new(0x404),
                remote_qkey: QKey(0x1234),
                imm: None,
                pkey_index: 0,
            },
        };
        let mut bench = Bench::new(machine, queues, memory, op, sge)?;
        if rc {
            bench.connected()?
        } else {
            bench.datagrams()?
        }
    };
    hca.destroy_srq(srq).map_err(text)?;
    hca.destroy_qp(qp).map_err(text)?;
    hca.destroy_cq(cq).map_err(text)?;
    Ok(figures)
}

/// To RTS; a connected one to a peer that there is not.
fn to_rts(hca: &impl Verbs, qp: QpHandle, rc: bool) -> Result<(), String> {
    let path = AhAttr {
        port: 1,
        dlid: Lid(2),
        ..AhAttr::default()
    };
    let attr = QpAttr {
        port: 1,
        qkey: QKey(0x1234),
        path,
        path_mtu: Mtu::Mtu2048,
        dest_qpn: Qpn::new(0x404),
        max_dest_rd_atomic: 4,
        max_rd_atomic: 4,
        ..QpAttr::EMPTY
    };
    let to_rtr =
        M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
    let to_rts = M::SQ_PSN | M::TIMEOUT | M::RETRY_COUNT | M::RNR_RETRY | M::MAX_RD_ATOMIC;
    let masks = if rc {
        [M::PKEY_INDEX | M::PORT | M::ACCESS, to_rtr, to_rts]
    } else {
        [M::PKEY_INDEX | M::PORT | M::QKEY, M::empty(), M::SQ_PSN]
    };
    for (state, mask) in [QpState::Init, QpState::Rtr, QpState::Rts]
        .into_iter()
        .zip(masks)
    {
        let attr = QpAttr { state, ..attr };
        hca.modify_qp(qp, &attr, mask | M::STATE).map_err(text)?;
    }
    Ok(())
}
