//! Lending memory to an HCA of the M-mode: the steps of opening that a Tavor does not have, and their undoing.
//! infinihost 3.10, 9.2.
//!
//! Memory is made by one step and told of by the next, so that what goes wrong between the two needs no proof. What the
//! HCA does not confirm that it gave back it may still use: then it has failed, and the reset at the bottom is the proof.

use crate::bells::Bells;
use crate::cmd::table::{EnableLam, RunFw, SetIcmSize, SysDis, UnmapFa, UnmapIcm, UnmapIcmAux};
use crate::cmd::{CmdError, Command};
use crate::health::End;
use crate::icm::{Area, Icm, Kind, MapFa, MapIcm, MapIcmAux, PAGE};
use crate::limits::Limits;
use crate::open::{OpenCause, Opening};
use core_ib::platform::Platform;
use core_ib::verbs::VerbsError;
use hca_abi::infinihost::cmd::CmdStatus;

type Result<T = ()> = core::result::Result<T, OpenCause>;

/// What is lent before there is a core, and after.
pub(crate) struct Lent<'p, P: Platform> {
    /// Attached memory was there, and was turned on.
    attached: bool,
    firmware: Option<Area<'p, P>>,
    auxiliary: Option<Area<'p, P>>,
    /// Before the core has it, and after.
    pub icm: Option<Icm<'p, P>>,
    /// Likewise.
    pub bells: Option<Bells<'p, P>>,
}

impl<P: Platform> Lent<'_, P> {
    /// Nothing.
    pub const NONE: Self = Self {
        attached: false,
        firmware: None,
        auxiliary: None,
        icm: None,
        bells: None,
    };
}

const MISSING: OpenCause = OpenCause::Query(VerbsError::DeviceGone); // earlier steps made it

impl<'p, P: Platform> Opening<'p, P> {
    /// A command by which the HCA gives memory back.
    fn take_back<C: Command>(&self, command: &C) {
        if let Err(cause) = self.command(command) {
            log::warn!("{}: {cause}", self.machine.name());
            if let Some(cmd) = self.cmd() {
                cmd.fail(End::Failed);
            }
        }
    }

    fn execute<C: Command>(&self, command: &C) -> core::result::Result<(), CmdError> {
        match self.cmd() {
            Some(cmd) => cmd.execute(command, &|| ()).map(drop),
            None => Ok(()), // no step uses commands before there is a channel
        }
    }

    pub(crate) fn query_m_fw(&mut self) -> Result {
        let (fw, _) = self.command(&crate::cmd::table::QueryFw {})?;
        self.limits.note_m_firmware(&fw)?;
        self.limit_commands();
        Ok(())
    }

    /// An HCA of this mode may have memory attached all the same; nothing is put there.
    pub(crate) fn enable_lam(&mut self) -> Result {
        match self.command(&EnableLam {}) {
            Ok(_) => {
                self.lent.attached = true;
                Ok(())
            }
            Err(OpenCause::Command(error)) if error.status() == Some(CmdStatus::LAM_NOT_PRE) => {
                Ok(())
            }
            Err(cause) => Err(cause),
        }
    }

    pub(crate) fn disable_lam(&mut self) {
        if core::mem::take(&mut self.lent.attached) {
            self.try_command(&SysDis {});
        }
    }

    pub(crate) fn make_firmware_area(&mut self) -> Result {
        let pages = u32::from(self.limits.firmware_pages);
        self.lent.firmware = Some(Area::new(self.machine, pages)?);
        Ok(())
    }

    pub(crate) fn free_firmware_area(&mut self) {
        let released = self.let_go();
        if let (Some(area), Some(released)) = (self.lent.firmware.take(), released) {
            area.free(&released);
        }
    }

    pub(crate) fn map_firmware_area(&mut self) -> Result {
        let area = self.lent.firmware.as_ref().ok_or(MISSING)?;
        let mapped = area.map(|command: &MapFa| self.execute(command));
        self.or_give_back(mapped, Self::unmap_firmware_area)
    }

    pub(crate) fn unmap_firmware_area(&mut self) {
        self.take_back(&UnmapFa {});
    }

    /// After an error some of it may have been mapped.
    fn or_give_back(
        &mut self,
        mapped: core::result::Result<(), CmdError>,
        unmap: fn(&mut Self),
    ) -> Result {
        if mapped.is_err() && self.is_alive() {
            unmap(self);
        }
        Ok(mapped?)
    }

    pub(crate) fn run_firmware(&mut self) -> Result {
        self.command(&RunFw {})?;
        Ok(())
    }

    pub(crate) fn query_m_limits(&mut self) -> Result {
        let dev = self.note_limits()?;
        Ok(self.limits.note_m_device(&dev, self.chip.sinai)?)
    }

    pub(crate) fn make_auxiliary_area(&mut self) -> Result {
        let bytes = self.plan.icm;
        let ((), pages) = self.command(&SetIcmSize { bytes })?;
        let pages = Limits::check_auxiliary(pages)?;
        self.lent.auxiliary = Some(Area::new(self.machine, pages)?);
        Ok(())
    }

    pub(crate) fn free_auxiliary_area(&mut self) {
        let released = self.let_go();
        if let (Some(area), Some(released)) = (self.lent.auxiliary.take(), released) {
            area.free(&released);
        }
    }

    pub(crate) fn map_auxiliary_area(&mut self) -> Result {
        let area = self.lent.auxiliary.as_ref().ok_or(MISSING)?;
        let mapped = area.map(|command: &MapIcmAux| self.execute(command));
        self.or_give_back(mapped, Self::unmap_auxiliary_area)
    }

    pub(crate) fn unmap_auxiliary_area(&mut self) {
        self.take_back(&UnmapIcmAux {});
    }

    /// The tables, with nothing behind them, and the driver's own doorbell records.
    pub(crate) fn make_tables(&mut self) -> Result {
        let bells = Bells::new(self.machine, &self.plan, &self.profile)?;
        match Icm::new(self.machine, &self.plan, &self.limits) {
            Ok(icm) => {
                self.lent.icm = Some(icm);
                self.lent.bells = Some(bells);
                Ok(())
            }
            Err(error) => {
                bells.free(&crate::let_go::Released::never_told());
                Err(error.into())
            }
        }
    }

    pub(crate) fn free_tables(&mut self) {
        let Some(released) = self.let_go() else {
            return;
        };
        if let Some(icm) = self.lent.icm.take() {
            icm.free(&released);
        }
        if let Some(bells) = self.lent.bells.take() {
            bells.free(&released);
        }
    }

    /// What has to be there from the start: the firmware's own entries, the event queues, the groups, the records.
    /// infinihost 6.4, 6.6.
    pub(crate) fn map_tables(&mut self) -> Result {
        let run = |command: &MapIcm| self.execute(command);
        let icm = self.lent.icm.as_ref().ok_or(MISSING)?;
        let bells = self.lent.bells.as_ref().ok_or(MISSING)?;
        let (plan, limits) = (&self.plan, &self.limits);
        let back = || {
            icm.back_all(Kind::Eqc, &run)?;
            for (kind, reserved) in [
                (Kind::Mtt, plan.first_segment),
                (Kind::Mpt, plan.mpt.first),
                (Kind::Qpc, limits.reserved_qps),
                (Kind::Eqpc, limits.reserved_qps),
                (Kind::Rdb, limits.reserved_qps),
                (Kind::Cqc, plan.cq.first),
                (
                    Kind::Srqc,
                    if plan.srq.count == 0 {
                        0
                    } else {
                        plan.srq.first
                    },
                ),
            ] {
                icm.back(kind, 0, reserved, &run)?;
            }
            icm.back_all(Kind::Mcg, &run)?;
            bells.map(plan, &run)
        };
        let mapped = back();
        if mapped.is_err() && self.is_alive() {
            self.unmap_tables();
        }
        Ok(mapped?)
    }

    pub(crate) fn unmap_tables(&mut self) {
        if let Some(bells) = &self.lent.bells {
            for (address, _, len) in bells.pieces(&self.plan) {
                let pages = (len / PAGE) as u32;
                self.take_back(&UnmapIcm { address, pages });
            }
        }
        if let Some(icm) = &self.lent.icm {
            icm.unmap_all(&|command| self.take_back(command));
        }
    }
}
