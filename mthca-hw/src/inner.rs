//! Everything about one open HCA, in one place that does not move: what the verbs and the interrupt handlers share.
//!
//! Constants are plain fields. What the data path and interrupt handlers change is atomic or under a lock of its own;
//! what the control path changes is behind the gate of the object concerned. Objects live in slabs (their handles) and
//! beside them in *places*, one for each index, which are there as long as the HCA is open: so a number that comes from
//! the HCA can be looked up without holding anything.

use crate::av::{Ah, AvPool};
use crate::bells::Bells;
use crate::catas::ErrorBuffer;
use crate::chip::{Chip, Mode};
use crate::cmd::{Cause, Channel, CmdError, Command, TakesBack};
use crate::cq::{Cq, CqPlace};
use crate::eq::{Eq, EqPort, Which};
use crate::event::{Marks, StrayCounts, Strays, Tenants};
use crate::fmr::{Fmr, FmrEntries, FmrPlace};
use crate::health::End;
use crate::icm::{Icm, Kind};
use crate::isr::Arm;
use crate::keys::Keys;
use crate::let_go::Released;
use crate::limits::Limits;
use crate::mcg::Groups;
use crate::mr::{Mr, MrPlace};
use crate::mtt::MttTable;
use crate::mw::Mw;
use crate::pd::Pd;
use crate::plan::Plan;
use crate::port::Port;
use crate::profile::Profile;
use crate::qp::{Qp, QpPlace};
use crate::records::Records;
use crate::reset;
use crate::srq::{Srq, SrqPlace};
use crate::uar::Uar;
use crate::user::{User, UserPages};
use core::marker::PhantomData;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, Ordering};
use core_ib::Guid;
use core_ib::platform::{Gate, Platform, PlatformError, Table, Wake};
use core_ib::verbs::{Object, Slab, Slot, VerbsError};

/// A slab in table memory.
pub(crate) type Objects<'p, T, P> = Slab<Table<'p, Slot<T>, P>, <P as Platform>::RawLock>;

/// What NodeInfo says, which does not change.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Node {
    pub guid: Guid,
    pub system_image: Guid,
    pub vendor: u32,
    pub part: u32,
    pub revision: u32,
}

/// The end of the HCA, as an event that is yet to be taken.
pub(crate) const FATAL: u8 = 1;
pub(crate) const GONE: u8 = 2;

/// See the module.
pub(crate) struct Inner<'p, P: Platform> {
    pub machine: &'p P,
    pub chip: Chip,
    pub keys: Keys,
    pub wake: &'p dyn Wake,
    /// By which handles tell this HCA from others.
    pub device: u32,
    pub profile: Profile,
    pub limits: Limits,
    pub plan: Plan,
    pub node: Node,
    /// M: what is behind the tables.
    pub icm: Option<Icm<'p, P>>,
    /// M: the driver's own doorbell records.
    pub bells: Option<Bells<'p, P>>,
    pub cmd: Channel<'p, P>,
    pub uar: Uar<P::Registers>,
    /// By [`Which::index`].
    pub eqs: Table<'p, Option<Eq<'p, P>>, P>,
    /// Interrupt messages that there are; 1 with the pin.
    pub messages: AtomicU16,
    /// Handlers are bound, and EQs are armed.
    pub interrupts: AtomicBool,
    pub mtt: MttTable<'p, P>,
    /// Life number of each MPT entry of ours, so that no key comes back soon.
    pub mpt_tags: Table<'p, AtomicU32, P>,
    pub av: AvPool<'p, P>,
    pub records: Records<'p, P>,
    pub pds: Objects<'p, Pd, P>,
    pub pd_gate: Gate<(), P::RawGate>,
    pub ahs: Objects<'p, Ah, P>,
    pub cqs: Objects<'p, Cq, P>,
    pub cq_places: Table<'p, CqPlace<'p, P>, P>,
    pub qps: Objects<'p, Qp, P>,
    pub qp_places: Table<'p, QpPlace<'p, P>, P>,
    /// SMI of port 1, of port 2, GSI of port 1, of port 2: which QP it is, or [`NOBODY`].
    pub special: [AtomicU32; 4],
    pub srqs: Objects<'p, Srq, P>,
    pub srq_places: Table<'p, SrqPlace<'p, P>, P>,
    pub mrs: Objects<'p, Mr, P>,
    pub mr_places: Table<'p, MrPlace<P>, P>,
    pub mws: Objects<'p, Mw, P>,
    pub mw_gate: Gate<(), P::RawGate>,
    pub fmrs: Objects<'p, Fmr, P>,
    pub fmr_places: Table<'p, FmrPlace<P>, P>,
    pub fmr_entries: FmrEntries<P::Registers>,
    pub fmr_gate: Gate<(), P::RawGate>,
    pub contexts: Objects<'p, User, P>,
    pub user_pages: Gate<UserPages<'p, P>, P::RawGate>,
    pub groups: Gate<Groups<'p, P>, P::RawGate>,
    pub ports: [Port<'p, P>; 2],
    /// The node description that the owner set.
    pub description: Gate<Option<[u8; 64]>, P::RawGate>,
    pub cq_marks: Marks<'p, P>,
    pub qp_marks: Marks<'p, P>,
    pub srq_marks: Marks<'p, P>,
    /// Of the places of SRQs, whose numbers carry no tag.
    pub srq_tenants: Tenants,
    pub strays: Strays,
    /// [`FATAL`], [`GONE`].
    pub ended: AtomicU8,
    pub announced: AtomicBool,
    pub errors: ErrorBuffer,
    /// Some once the HCA was reset after its end: whether it came back, so that all memory is ours.
    pub after_reset: Gate<Option<bool>, P::RawGate>,
}

/// No object.
/// What no object has of the pools that the profile made: [`Hca::left`](crate::Hca::left).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    /// Translations of pages, in the whole groups that they are taken in.
    pub mtt_pages: u32,
    /// Places for work requests.
    pub work_requests: u32,
    /// Entries of multicast groups beside those that are found at once.
    pub mcast_entries: u32,
}

pub(crate) const NOBODY: u32 = u32::MAX;

/// A slab of `count` places.
pub(crate) fn slab<'p, T: Object, P: Platform>(
    machine: &'p P,
    count: u32,
    device: u32,
) -> Result<Objects<'p, T, P>, PlatformError> {
    let slots = Table::new(machine, count as usize, |_| Slot::new())?;
    Ok(Slab::new(slots, machine.raw_lock(T::NAME, false), device))
}

impl<P: Platform> Inner<'_, P> {
    /// Runs a command. Control context; blocks.
    pub fn command<C: Command>(&self, command: &C) -> Result<(C::Output, u64), CmdError> {
        let result = self.cmd.execute(command, &|| self.look());
        if let Err(error) = &result
            && !matches!(error.cause, Cause::Refused(_) | Cause::Mailbox)
        {
            self.announce_end();
        }
        result
    }

    /// M: sees to it that there are pages behind entry `index` of a table; in T-mode there always are. Control context;
    /// may block.
    pub fn back(&self, kind: Kind, index: u32, count: u32) -> Result<(), VerbsError> {
        let Some(icm) = &self.icm else { return Ok(()) };
        let run = |command: &crate::icm::MapIcm| self.command(command).map(drop);
        Ok(icm.back(kind, index, count, &run)?)
    }

    /// Runs a command that takes an object back, and proves it. An HCA that does not give back what it was lent has
    /// failed: only a reset makes sure then. `None` if even that does not help: the memory is lost. Control context;
    /// blocks.
    pub fn take_back<C: TakesBack>(&self, command: &C) -> Option<Released> {
        match self.command(command) {
            Ok(_) => Some(Released::by::<C>(PhantomData)),
            Err(error) => {
                if error.status().is_some() {
                    log::error!(
                        "{}: {error}: the HCA keeps what it was lent",
                        self.machine.name()
                    );
                    self.fail(End::Failed);
                }
                self.released_by_reset()
            }
        }
    }

    /// Resets an HCA that has ended, once. Control context; blocks.
    pub fn released_by_reset(&self) -> Option<Released> {
        let back = self.after_reset.with(|done| {
            *done.get_or_insert_with(|| {
                let result = reset::reset(self.machine, self.cmd.dcs());
                if let Err(error) = result {
                    log::error!("{}: {error}", self.machine.name());
                }
                result.is_ok()
            })
        });
        back.then(Released::by_reset)
    }

    /// Ends the HCA's life for this driver and tells everybody. Any context.
    pub fn fail(&self, end: End) {
        self.cmd.fail(end);
        self.announce_end();
    }

    /// Tells everybody of an end that was latched. Once; any context.
    pub fn announce_end(&self) {
        let Some(end) = self.cmd.health().end() else {
            return;
        };
        if self.announced.swap(true, Ordering::AcqRel) {
            return;
        }
        log::error!("{}: the HCA has ended: {end:?}", self.machine.name());
        let event = match end {
            End::Failed => FATAL,
            End::Gone => GONE,
        };
        self.ended.fetch_or(event, Ordering::AcqRel);
        // What is outstanding completes by software: verbs 13.2.
        self.cq_places.iter().for_each(CqPlace::fire);
        self.wake.wake();
    }

    /// What a lost interrupt would have told. Called while waiting for a command.
    pub fn look(&self) {
        for which in self.all_eqs() {
            self.drain(which, Arm::IfAny);
        }
    }

    /// All EQs.
    pub fn all_eqs(&self) -> impl Iterator<Item = Which> {
        Which::all(self.profile.completion_vectors)
    }

    /// The message that announces the events of an EQ: its own, or that of the first where there are too few.
    pub fn message_of(&self, which: Which) -> u16 {
        let index = which.index() as u16;
        if index < self.messages.load(Ordering::Relaxed) {
            index
        } else {
            0
        }
    }

    /// Where EQs are told of.
    pub fn eq_port(&self) -> EqPort<'_, P::Registers> {
        match self.chip.mode {
            Mode::T => EqPort::Page(&self.uar),
            Mode::M => EqPort::Registers(self.cmd.dcs(), self.limits.registers),
        }
    }

    /// The EQ.
    pub fn eq(&self, which: Which) -> Option<&Eq<'_, P>> {
        self.eqs.get(which.index())?.as_ref()
    }

    /// See [`Hca::left`](crate::Hca::left).
    pub fn left(&self) -> Left {
        Left {
            mtt_pages: self.mtt.room(),
            work_requests: self.records.room(),
            mcast_entries: self.groups.with(|groups| groups.room()),
        }
    }

    /// See [`Hca::strays`](crate::Hca::strays).
    pub fn stray_counts(&self) -> StrayCounts {
        StrayCounts {
            command: self.cmd.strays(),
            ..self.strays.counts()
        }
    }
}
