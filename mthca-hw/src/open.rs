//! Opening an HCA, step by step, and closing it. infinihost 9.1, 9.2, 9.4.
//!
//! There is a table of steps for each mode; the table is the order. What a step makes is kept in [`Opening`] until the [`Inner`] takes it over, and comes
//! back there when the HCA closes. Two things decide whether memory may be given back: CLOSE_HCA, or a reset.

use crate::av::AvPool;
use crate::bring_up::{BringUpError, Step, bring_up, take_down};
use crate::catas::ErrorBuffer;
use crate::chip::{Chip, Mode, Unknown};
use crate::cmd::table::{
    CloseHca, CloseIb, ConfSpecialQp, InitHca, QueryAdapter, QueryDdr, QueryDevLim, QueryFw,
    SysDis, SysEn,
};
use crate::cmd::{Channel, CmdError, Command};
use crate::cq::CqPlace;
use crate::eq::{Eq, MAX_EQS, Which};
use crate::event::{Marks, Strays, Tenants};
use crate::extents::order_of;
use crate::fmr::{FmrEntries, FmrPlace};
use crate::inner::{Inner, NOBODY, Node, slab};
use crate::isr::Isr;
use crate::keys::Keys;
use crate::lend::Lent;
use crate::let_go::Released;
use crate::limits::{Limits, LimitsError};
use crate::mcg::Groups;
use crate::mr::{MrPlace, Ring};
use crate::mtt::MttTable;
use crate::plan::{Plan, SPARE_EVENTS};
use crate::port::Port;
use crate::profile::{AvPlace, Interrupts, Profile, ProfileError};
use crate::qp::QpPlace;
use crate::records::Records;
use crate::reset::{self, NotBack};
use crate::srq::SrqPlace;
use crate::uar::Uar;
use crate::user::UserPages;
use core::fmt;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32};
use core_ib::Guid;
use core_ib::platform::{Caching, Placed, Platform, PlatformError, Room, Table, Vectors, Wake};
use core_ib::verbs::VerbsError;
use core_ib::wire::mad::NodeInfo;
use hca_abi::infinihost::cmd::{CmdStatus, DimmFault, SpecialQp};
use hca_abi::infinihost::dev_lim::DevLim;
use hca_abi::infinihost::init_hca;
use hca_abi::infinihost::pci::{BAR_DCS, BAR_DDR, BAR_UAR};
use hca_abi::infinihost::regs::BAR0_LEN;

/// Why a step failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OpenCause {
    /// The slot is empty: its configuration space reads as all ones.
    Gone,
    /// The PCI function is not an InfiniHost.
    NotAnInfiniHost {
        /// Its vendor.
        vendor: u16,
        /// Its device number.
        device: u16,
    },
    /// A BAR is missing or has the wrong size.
    Bar {
        /// Which.
        bar: u8,
        /// Its size; 0 if it is missing.
        found: u64,
        /// The size that it must have.
        needed: u64,
    },
    /// The machine refused.
    Platform(PlatformError),
    /// A command failed.
    Command(CmdError),
    /// The attached memory failed.
    Dimm(DimmFault),
    /// The HCA's answers make no sense.
    Limits(LimitsError),
    /// The profile does not fit the HCA.
    Profile(ProfileError),
    /// The HCA did not come back from its reset.
    NotBack(NotBack),
    /// Neither messages nor the pin interrupt.
    NoInterrupt,
    /// A query of a port failed.
    Query(VerbsError),
}

impl From<Unknown> for OpenCause {
    fn from(unknown: Unknown) -> Self {
        match unknown {
            Unknown::Nobody => Self::Gone,
            Unknown::Other { vendor, device } => Self::NotAnInfiniHost { vendor, device },
        }
    }
}

macro_rules! causes {
    ($($variant:ident($ty:ty)),*) => {
        $(impl From<$ty> for OpenCause {
            fn from(cause: $ty) -> Self {
                Self::$variant(cause)
            }
        })*
    };
}
causes!(
    Platform(PlatformError),
    Command(CmdError),
    Limits(LimitsError),
    Profile(ProfileError),
    NotBack(NotBack),
    Query(VerbsError)
);

impl fmt::Display for OpenCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone => f.write_str("nothing answers: the HCA is gone, or its slot is empty"),
            Self::NotAnInfiniHost { vendor, device } => {
                write!(f, "{vendor:04x}:{device:04x} is not an InfiniHost")
            }
            Self::Bar { bar, found, needed } => {
                write!(f, "BAR {bar} has {found} bytes instead of {needed}")
            }
            Self::Platform(cause) => cause.fmt(f),
            Self::Command(cause) => cause.fmt(f),
            Self::Dimm(fault) => write!(f, "attached memory failed, socket {}", fault.socket),
            Self::Limits(cause) => cause.fmt(f),
            Self::Profile(cause) => cause.fmt(f),
            Self::NotBack(cause) => cause.fmt(f),
            Self::NoInterrupt => f.write_str(
                "no interrupt arrives, neither message nor pin: check the slot, or open without interrupts",
            ),
            Self::Query(cause) => cause.fmt(f),
        }
    }
}

impl core::error::Error for OpenCause {}

/// A step of opening failed; the HCA is as it was found.
pub type OpenError = BringUpError<OpenCause>;

/// An HCA on its way up or down.
pub(crate) struct Opening<'p, P: Platform> {
    pub machine: &'p P,
    pub chip: Chip,
    wake: &'p dyn Wake,
    pub profile: Profile,
    /// BAR 0, before the channel has it.
    dcs: Option<P::Registers>,
    /// Before the core has it, and after.
    cmd: Option<Channel<'p, P>>,
    pub limits: Limits,
    pub plan: Plan,
    node: Node,
    pub lent: Lent<'p, P>,
    /// Before the core has them, and after.
    eqs: Option<Table<'p, Option<Eq<'p, P>>, P>>,
    av: Option<AvPool<'p, P>>,
    pub core: Option<Placed<'p, Inner<'p, P>, P>>,
    pub isrs: Option<Table<'p, Isr<'p, P>, P>>,
    /// How interrupts come in this attempt.
    pub attempt: Interrupts,
    pub vectors: Option<Vectors>,
    pub eq_rings: [Option<Ring>; MAX_EQS],
    /// Some once it was reset after its end: whether it came back.
    after_reset: Option<bool>,
}

type Result<T = ()> = core::result::Result<T, OpenCause>;

impl<'p, P: Platform> Opening<'p, P> {
    /// The order of opening in T-mode; closing is it backwards.
    const T_STEPS: [Step<Self, OpenCause>; 17] = [
        Step::new("PCI function", Self::map, Self::unmap),
        Step::new("mailboxes", Self::begin_commands, Self::end_commands),
        Step::new("reset", Self::reset, Self::leave_reset),
        Step::new("SYS_EN", Self::enable, Self::disable),
        Step::new("QUERY_FW", Self::query_fw, Self::nothing),
        Step::new("QUERY_DDR", Self::query_ddr, Self::nothing),
        Step::new("QUERY_DEV_LIM", Self::query_limits, Self::nothing),
        Step::new("profile", Self::make_plan, Self::nothing),
        Step::new("memory", Self::lend_memory, Self::return_memory),
        Step::new("INIT_HCA", Self::init, Self::close),
        Step::new("QUERY_ADAPTER", Self::query_adapter, Self::nothing),
        Step::new(
            "special QPs",
            Self::name_special_qps,
            Self::release_special_qps,
        ),
        Step::new("ports", Self::no_port_yet, Self::close_ports),
        Step::new("NodeInfo", Self::query_node, Self::nothing),
        Step::new("tables", Self::make_core, Self::take_core_apart),
        Step::new("events", Self::begin_events, Self::end_events),
        Step::new("port tables", Self::read_port_tables, Self::nothing),
    ];

    /// The same in M-mode.
    const M_STEPS: [Step<Self, OpenCause>; 23] = [
        Step::new("PCI function", Self::map, Self::unmap),
        Step::new("mailboxes", Self::begin_commands, Self::end_commands),
        Step::new("reset", Self::reset, Self::leave_reset),
        Step::new("QUERY_FW", Self::query_m_fw, Self::nothing),
        Step::new("ENABLE_LAM", Self::enable_lam, Self::disable_lam),
        Step::new(
            "firmware area",
            Self::make_firmware_area,
            Self::free_firmware_area,
        ),
        Step::new("MAP_FA", Self::map_firmware_area, Self::unmap_firmware_area),
        Step::new("RUN_FW", Self::run_firmware, Self::nothing),
        Step::new("QUERY_DEV_LIM", Self::query_m_limits, Self::nothing),
        Step::new("profile", Self::make_plan, Self::nothing),
        Step::new(
            "SET_ICM_SIZE",
            Self::make_auxiliary_area,
            Self::free_auxiliary_area,
        ),
        Step::new(
            "MAP_ICM_AUX",
            Self::map_auxiliary_area,
            Self::unmap_auxiliary_area,
        ),
        Step::new("ICM", Self::make_tables, Self::free_tables),
        Step::new("MAP_ICM", Self::map_tables, Self::unmap_tables),
        Step::new("memory", Self::lend_memory, Self::return_memory),
        Step::new("INIT_HCA", Self::init, Self::close),
        Step::new("QUERY_ADAPTER", Self::query_adapter, Self::nothing),
        Step::new(
            "special QPs",
            Self::name_special_qps,
            Self::release_special_qps,
        ),
        Step::new("ports", Self::no_port_yet, Self::close_ports),
        Step::new("NodeInfo", Self::query_node, Self::nothing),
        Step::new("tables", Self::make_core, Self::take_core_apart),
        Step::new("events", Self::begin_events, Self::end_events),
        Step::new("port tables", Self::read_port_tables, Self::nothing),
    ];

    /// Brings the HCA up. After an error it is as it was found.
    pub fn bring_up(&mut self) -> core::result::Result<(), OpenError> {
        match self.chip.mode {
            Mode::T => bring_up(self, &Self::T_STEPS),
            Mode::M => bring_up(self, &Self::M_STEPS),
        }
    }

    /// The way back from a whole [`bring_up`](Self::bring_up).
    pub fn take_down(&mut self) {
        match self.chip.mode {
            Mode::T => take_down(self, &Self::T_STEPS),
            Mode::M => take_down(self, &Self::M_STEPS),
        }
    }

    pub fn new(machine: &'p P, chip: Chip, wake: &'p dyn Wake, profile: &Profile) -> Self {
        Self {
            machine,
            chip,
            wake,
            profile: *profile,
            dcs: None,
            cmd: None,
            limits: Limits::default(),
            plan: Plan::default(),
            node: Node::default(),
            lent: Lent::NONE,
            eqs: None,
            av: None,
            core: None,
            isrs: None,
            attempt: profile.interrupts,
            vectors: None,
            eq_rings: [const { None }; MAX_EQS],
            after_reset: None,
        }
    }

    /// The channel, wherever it is.
    pub fn cmd(&self) -> Option<&Channel<'p, P>> {
        match &self.core {
            Some(core) => Some(&core.cmd),
            None => self.cmd.as_ref(),
        }
    }

    pub fn command<C: Command>(&self, command: &C) -> Result<(C::Output, u64)> {
        match self.cmd() {
            Some(cmd) => Ok(cmd.execute(command, &|| ())?),
            None => Err(OpenCause::Query(VerbsError::DeviceGone)), // no step uses commands before there is a channel
        }
    }

    /// Runs a command whose failure on the way down changes nothing: the reset is the last resort.
    pub fn try_command<C: Command>(&self, command: &C) {
        if let Err(cause) = self.command(command) {
            log::warn!("{}: closing: {cause}", self.machine.name());
        }
    }

    pub fn is_alive(&self) -> bool {
        self.cmd().is_none_or(|cmd| cmd.health().is_alive())
    }

    /// The proof that the HCA uses no memory of ours, once it was closed; of one that has ended, by a reset.
    pub fn let_go(&mut self) -> Option<Released> {
        if self.is_alive() {
            return Some(Released::by::<CloseHca>(PhantomData));
        }
        let back = match self.after_reset {
            Some(back) => back,
            None => self.cmd().is_some_and(|cmd| {
                reset::reset(self.machine, cmd.dcs())
                    .inspect_err(|error| log::error!("{}: {error}", self.machine.name()))
                    .is_ok()
            }),
        };
        self.after_reset = Some(back);
        back.then(Released::by_reset)
    }

    fn nothing(&mut self) {}

    fn map(&mut self) -> Result {
        let found = self.machine.bar_len(BAR_DCS).unwrap_or(0);
        if found != BAR0_LEN {
            return Err(OpenCause::Bar {
                bar: BAR_DCS,
                found,
                needed: BAR0_LEN,
            });
        }
        let whole = BAR0_LEN as usize;
        self.dcs = Some(self.machine.map(BAR_DCS, 0, whole, Caching::Uncached)?);
        Ok(())
    }

    fn unmap(&mut self) {
        self.dcs = None;
    }

    fn begin_commands(&mut self) -> Result {
        let gone = OpenCause::Query(VerbsError::DeviceGone);
        let dcs = self.dcs.take().ok_or(gone)?;
        let (slots, limit) = (self.profile.commands, self.profile.command_limit);
        self.cmd = Some(Channel::new(self.machine, dcs, slots.into(), limit)?);
        Ok(())
    }

    fn end_commands(&mut self) {
        let released = self.let_go();
        // Every command of a living HCA was answered before anybody went on: it writes to no mailbox.
        if let (Some(cmd), Some(released)) = (self.cmd.take(), released) {
            cmd.free(&released);
        }
    }

    fn reset(&mut self) -> Result {
        match self.cmd() {
            Some(cmd) => Ok(reset::reset(self.machine, cmd.dcs())?),
            None => Ok(()),
        }
    }

    fn leave_reset(&mut self) {
        // One that has ended is left as after power-on; a living one is so after SYS_DIS.
        self.let_go();
    }

    fn enable(&mut self) -> Result {
        match self.command(&SysEn {}) {
            Err(OpenCause::Command(error)) if error.status() == Some(CmdStatus::DDR_MEM_ERR) => {
                Err(OpenCause::Dimm(DimmFault::decode(error.immediate as u32)))
            }
            other => other.map(drop),
        }
    }

    fn disable(&mut self) {
        self.try_command(&SysDis {});
    }

    fn query_fw(&mut self) -> Result {
        let (fw, _) = self.command(&QueryFw {})?;
        self.limits.note_firmware(&fw)?;
        self.limit_commands();
        Ok(())
    }

    pub fn limit_commands(&self) {
        if let Some(cmd) = self.cmd() {
            cmd.limit_in_flight(self.limits.commands);
        }
    }

    fn query_ddr(&mut self) -> Result {
        let (ddr, _) = self.command(&QueryDdr {})?;
        let bar = self.machine.bar_len(BAR_DDR);
        Ok(self.limits.note_ddr(&ddr, bar)?)
    }

    fn query_limits(&mut self) -> Result {
        self.note_limits().map(drop)
    }

    /// Takes note of what both modes say.
    pub fn note_limits(&mut self) -> Result<DevLim> {
        let (dev, _) = self.command(&QueryDevLim {})?;
        let bar = self.machine.bar_len(BAR_UAR).unwrap_or(0);
        self.limits.note_device(&dev, bar)?;
        Ok(dev)
    }

    fn make_plan(&mut self) -> Result {
        self.plan = Plan::new(&self.chip, &self.profile, &self.limits)?;
        Ok(())
    }

    /// Event rings and address vectors: what the HCA reaches for as long as it is open.
    fn lend_memory(&mut self) -> Result {
        let events = self.profile.event_entries.max(2);
        // Each CQ has one event outstanding at most.
        let completions = self.plan.cq.count.saturating_add(SPARE_EVENTS);
        let all = Which::all(self.profile.completion_vectors);
        let mut made = Table::new(self.machine, self.plan.eq.count as usize, |_| None)?;
        let mut failed = None;
        for ((place, which), eqn) in made.iter_mut().zip(all).zip(self.plan.eq.first..) {
            let log_size = order_of(match which {
                Which::Completion(_) => completions,
                Which::Async | Which::Command => events,
            });
            match Eq::new(self.machine, eqn as u8, log_size) {
                Ok(eq) => *place = Some(eq),
                Err(error) => failed = Some(error),
            }
        }
        let ddr = self.limits.ddr_start;
        let attached = self.profile.address_vectors == AvPlace::AttachedMemory;
        let av = match failed {
            Some(error) => Err(error),
            None if self.chip.is_mem_free() => AvPool::private(self.machine, &self.plan),
            None if attached && self.limits.ddr_visible => {
                AvPool::attached(self.machine, &self.plan, ddr)
            }
            None => AvPool::host(self.machine, &self.plan),
        };
        match av {
            Ok(av) => {
                self.av = Some(av);
                self.eqs = Some(made);
                Ok(())
            }
            Err(error) => {
                let untold = Released::never_told();
                for eq in made.iter_mut().filter_map(Option::take) {
                    eq.free(&untold);
                }
                Err(error.into())
            }
        }
    }

    fn return_memory(&mut self) {
        let Some(released) = self.let_go() else {
            return;
        };
        if let Some(av) = self.av.take() {
            av.free(&released);
        }
        if let Some(mut eqs) = self.eqs.take() {
            for eq in eqs.iter_mut().filter_map(Option::take) {
                eq.free(&released);
            }
        }
    }

    fn init(&mut self) -> Result {
        let (plan, at) = (&self.plan, &self.plan.tables);
        let mut tables = init_hca::InitHca::ZERO;
        if self.chip.is_mem_free() {
            let [eec, eeec] = at.eec;
            let keys = Keys::new(&self.chip, plan.mpt.log_size);
            let checksums = self.limits.has_checksums(&self.chip);
            tables
                .set_checksum(checksums)
                .set_send_pseudo_header(checksums)
                .set_receive_pseudo_header(checksums)
                .set_sinai_key_optimisation(keys.is_sinai())
                .set_eec_base(eec)
                .set_eeec_base(eeec)
                .set_log_uarc_pages(plan.log_uarc_pages)
                .set_log_uars(order_of(self.limits.uar_pages))
                .set_uarc_base(at.uarc);
        }
        tables
            .set_big_endian_host(cfg!(target_endian = "big"))
            .set_ud_av_port_check(true)
            .set_qpc_base(at.qpc)
            .set_log_qps(plan.qp.log_size)
            .set_srqc_base(at.srqc)
            .set_log_srqs(if self.limits.has_srq {
                plan.srq.log_size
            } else {
                0
            })
            .set_cqc_base(at.cqc)
            .set_log_cqs(plan.cq.log_size)
            .set_eqpc_base(at.eqpc)
            .set_eqc_base(at.eqc)
            .set_log_eqs(plan.eq.log_size)
            .set_rdb_base(at.rdb)
            .set_mc_base(at.mcg)
            .set_log_mc_entry_size(crate::plan::MCG_ENTRY.trailing_zeros() as u16)
            .set_mc_hash_size(1 << plan.log_mcg.saturating_sub(1))
            .set_log_mc_table_size(plan.log_mcg)
            .set_mpt_base(at.mpt)
            .set_log_mpts(plan.mpt.log_size)
            .set_mtt_base(at.mtt)
            .set_uar_scratch_base(at.uar_scratch);
        self.command(&InitHca { tables: &tables })?;
        Ok(())
    }

    fn close(&mut self) {
        if let Err(cause) = self.command(&CloseHca {}) {
            log::warn!("{}: {cause}", self.machine.name());
            if let Some(cmd) = self.cmd() {
                // What it did not confirm it may still do.
                cmd.fail(crate::health::End::Failed);
            }
        }
    }

    fn query_adapter(&mut self) -> Result {
        let (adapter, _) = self.command(&QueryAdapter {})?;
        self.limits.note_adapter(&adapter);
        Ok(())
    }

    fn name_special_qps(&mut self) -> Result {
        let smi = self.plan.special_qps;
        let (kind, qpn) = (SpecialQp::Smi, smi);
        self.command(&ConfSpecialQp { kind, qpn })?;
        let (kind, qpn) = (SpecialQp::Gsi, smi + 2);
        if let Err(cause) = self.command(&ConfSpecialQp { kind, qpn }) {
            let (kind, qpn) = (SpecialQp::Smi, 0);
            self.try_command(&ConfSpecialQp { kind, qpn });
            return Err(cause);
        }
        Ok(())
    }

    fn release_special_qps(&mut self) {
        for kind in [SpecialQp::Smi, SpecialQp::Gsi] {
            self.try_command(&ConfSpecialQp { kind, qpn: 0 });
        }
    }

    fn no_port_yet(&mut self) -> Result {
        Ok(())
    }

    fn close_ports(&mut self) {
        for port in 1..=self.limits.ports {
            self.try_command(&CloseIb { port });
        }
    }

    fn query_node(&mut self) -> Result {
        let Some(cmd) = self.cmd() else { return Ok(()) };
        let info: NodeInfo = crate::mad::sma_get(cmd, 1, 0)?;
        self.node = Node {
            guid: info.node_guid,
            system_image: info.sys_image_guid,
            vendor: info.vendor_id,
            part: info.device_id.into(),
            revision: if self.chip.is_mem_free() {
                info.revision
            } else {
                self.limits.revision
            },
        };
        Ok(())
    }

    /// All that can fail comes first: what is lent to the HCA is moved only when nothing can.
    fn make_core(&mut self) -> Result {
        let (machine, plan, limits) = (self.machine, self.plan, self.limits);
        let profile = self.profile;
        let device = device_number(self.node.guid);
        let ddr = limits.ddr_visible.then_some(limits.ddr_start);
        let uar = Uar::map(machine, plan.uar)?;
        let mtt = MttTable::new(machine, &plan, ddr)?;
        let tags = plan.mpt.count() as usize;
        let mpt_tags = Table::new(machine, tags, |_| AtomicU32::new(0))?;
        let records = Records::new(machine, profile.work_requests)?;
        let pds = slab(machine, profile.pds, device)?;
        let ahs = slab(machine, profile.ahs, device)?;
        let cqs = slab(machine, profile.cqs, device)?;
        let qps = slab(machine, profile.qps, device)?;
        let srqs = slab(machine, profile.srqs, device)?;
        let mrs = slab(machine, profile.mrs, device)?;
        let contexts = slab(machine, profile.users, device)?;
        let user_pages = UserPages::new(machine, &self.chip, &plan, &profile)?;
        let mws = slab(machine, profile.mws, device)?;
        let fmrs = slab(machine, profile.fmrs, device)?;
        let fmr_places = Table::new(machine, profile.fmrs as usize, |_| FmrPlace::new(machine))?;
        let fmr_entries = FmrEntries::new(machine, &plan, ddr)?;
        let cq_places = Table::new(machine, profile.cqs as usize, |_| CqPlace::new(machine))?;
        let qp_places = Table::new(machine, profile.qps as usize, |_| QpPlace::new(machine))?;
        let srq_places = Table::new(machine, profile.srqs as usize, |_| SrqPlace::new(machine))?;
        let mr_places = Table::new(machine, profile.mrs as usize, |_| MrPlace::new(machine))?;
        let groups = Groups::new(machine, plan.log_mcg)?;
        let ports = [
            Port::new(machine, limits.gids, limits.pkeys)?,
            Port::new(machine, limits.gids, limits.pkeys)?,
        ];
        let cq_marks = Marks::new(machine, profile.cqs as usize)?;
        let qp_marks = Marks::new(machine, profile.qps as usize)?;
        let srq_marks = Marks::new(machine, profile.srqs as usize)?;
        let room = Room::new(machine)?;
        let (wake, node) = (self.wake, self.node);
        let missing = OpenCause::Query(VerbsError::DeviceGone); // earlier steps made them
        let cmd = self.cmd.take().ok_or(missing)?;
        let eqs = self.eqs.take().ok_or(missing)?;
        let av = self.av.take().ok_or(missing)?;
        if self.lent.bells.is_some() {
            cmd.health().arms_by_records();
        }
        self.core = Some(room.put(Inner {
            machine,
            chip: self.chip,
            keys: Keys::new(&self.chip, plan.mpt.log_size),
            wake,
            device,
            profile,
            limits,
            plan,
            node,
            icm: self.lent.icm.take(),
            bells: self.lent.bells.take(),
            cmd,
            uar,
            eqs,
            messages: AtomicU16::new(1),
            interrupts: AtomicBool::new(false),
            mtt,
            mpt_tags,
            av,
            records,
            pds,
            pd_gate: machine.gate("PDs", ()),
            ahs,
            cqs,
            cq_places,
            qps,
            qp_places,
            special: [const { AtomicU32::new(NOBODY) }; 4],
            srqs,
            srq_places,
            mrs,
            mr_places,
            contexts,
            user_pages: machine.gate("pages of user contexts", user_pages),
            mws,
            mw_gate: machine.gate("MWs", ()),
            fmrs,
            fmr_places,
            fmr_entries,
            fmr_gate: machine.gate("FMRs", ()),
            groups: machine.gate("multicast groups", groups),
            ports,
            description: machine.gate("node description", None),
            cq_marks,
            qp_marks,
            srq_marks,
            srq_tenants: Tenants::new(),
            strays: Strays::default(),
            ended: AtomicU8::new(0),
            announced: AtomicBool::new(false),
            errors: ErrorBuffer::new(&limits),
            after_reset: machine.gate("reset", None),
        }));
        Ok(())
    }

    fn take_core_apart(&mut self) {
        let Some(core) = self.core.take() else { return };
        let core = Placed::into_inner(core);
        self.after_reset = core.after_reset.into_inner();
        self.cmd = Some(core.cmd);
        self.lent.icm = core.icm;
        self.lent.bells = core.bells;
        self.eqs = Some(core.eqs);
        self.av = Some(core.av);
    }

    /// Tries what the profile asks for; messages that do not arrive are replaced by the pin. infinihost 3.2.
    fn begin_events(&mut self) -> Result {
        self.attempt = self.profile.interrupts;
        loop {
            match bring_up(self, &Self::EVENTS) {
                Ok(()) => return Ok(()),
                Err(error) if error.cause == OpenCause::NoInterrupt => match self.attempt {
                    Interrupts::Messages => self.attempt = Interrupts::Pin,
                    _ => return Err(error.cause),
                },
                Err(error) => return Err(error.cause),
            }
        }
    }

    fn end_events(&mut self) {
        take_down(self, &Self::EVENTS);
    }

    fn read_port_tables(&mut self) -> Result {
        let Some(core) = &self.core else {
            return Ok(());
        };
        for port in 1..=self.limits.ports {
            core.refresh_gids(port)?;
            core.refresh_pkeys(port)?;
        }
        Ok(())
    }
}

/// A number by which a process tells its HCAs apart: their GUIDs differ.
const fn device_number(guid: Guid) -> u32 {
    ((guid.0 ^ guid.0 >> 32) as u32).wrapping_mul(0x9e37_79b1)
}
