//! What firmware commands do, one file a family. infinihost 3.
//!
//! A command is looked at in this order: does the firmware know it, is the HCA alive, does the state of the system allow
//! it, are its parameters sound. Nothing is changed by one that is refused.

mod cq;
mod eq;
mod icm;
mod mcg;
mod memory;
mod port;
mod qp;
mod srq;
mod system;

pub use system::{LOG_GIDS, LOG_PKEYS, LOG_RESERVED_MTTS};

use super::fault::CommandFault;
use super::hcr::{Answer, Command};
use super::variant::Mode;
use super::{InfiniHost, System, timers};
use crate::machine::Bus;
use hca_abi::infinihost::cmd::{CmdStatus, Opcode};
use hca_abi::infinihost::eqe::{Eqe, EventType};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A result without an immediate, one with, or a refusal.
type Done = Result<Option<u64>, CmdStatus>;
/// What carries out a command.
type Handler = fn(&mut InfiniHost, &mut dyn Bus, &Command) -> Done;

/// Log2 of the commands that may be outstanding.
pub const LOG_MAX_COMMANDS: u8 = 4;

/// Every command that the firmware knows. Any other is a bad opcode.
fn handler(mode: Mode, opcode: Opcode) -> Option<Handler> {
    let own = match mode {
        Mode::T => of_attached_memory(opcode),
        Mode::M => of_lent_memory(opcode),
    };
    own.or_else(|| common(opcode))
}

/// What T-mode firmware knows alone.
fn of_attached_memory(opcode: Opcode) -> Option<Handler> {
    Some(match opcode {
        Opcode::SYS_EN => InfiniHost::sys_en,
        Opcode::SYS_DIS => InfiniHost::sys_dis,
        Opcode::QUERY_DDR => InfiniHost::query_ddr,
        _ => return None,
    })
}

/// What M-mode firmware knows alone.
fn of_lent_memory(opcode: Opcode) -> Option<Handler> {
    Some(match opcode {
        Opcode::MAP_FA => InfiniHost::map_fa,
        Opcode::UNMAP_FA => InfiniHost::unmap_fa,
        Opcode::RUN_FW => InfiniHost::run_fw,
        Opcode::ENABLE_LAM => InfiniHost::enable_lam,
        Opcode::DISABLE_LAM | Opcode::SYS_DIS => InfiniHost::disable_lam,
        Opcode::SET_ICM_SIZE => InfiniHost::set_icm_size,
        Opcode::MAP_ICM_AUX => InfiniHost::map_icm_aux,
        Opcode::UNMAP_ICM_AUX => InfiniHost::unmap_icm_aux,
        Opcode::MAP_ICM => InfiniHost::map_icm,
        Opcode::UNMAP_ICM => InfiniHost::unmap_icm,
        _ => return None,
    })
}

fn common(opcode: Opcode) -> Option<Handler> {
    Some(match opcode {
        Opcode::QUERY_DEV_LIM => InfiniHost::query_dev_lim,
        Opcode::QUERY_FW => InfiniHost::query_fw,
        Opcode::QUERY_ADAPTER => InfiniHost::query_adapter,
        Opcode::INIT_HCA => InfiniHost::init_hca,
        Opcode::CLOSE_HCA => InfiniHost::close_hca,
        Opcode::QUERY_HCA => InfiniHost::query_hca,
        Opcode::NOP => |_, _, _| Ok(None),
        Opcode::SW2HW_MPT => InfiniHost::sw2hw_mpt,
        Opcode::QUERY_MPT => InfiniHost::query_mpt,
        Opcode::HW2SW_MPT => InfiniHost::hw2sw_mpt,
        Opcode::READ_MTT => InfiniHost::read_mtt,
        Opcode::WRITE_MTT => InfiniHost::write_mtt,
        Opcode::SYNC_TPT => |_, _, _| Ok(None), // nothing is cached
        Opcode::MAP_EQ => InfiniHost::map_eq,
        Opcode::SW2HW_EQ => InfiniHost::sw2hw_eq,
        Opcode::HW2SW_EQ => InfiniHost::hw2sw_eq,
        Opcode::QUERY_EQ => InfiniHost::query_eq,
        Opcode::SW2HW_CQ => InfiniHost::sw2hw_cq,
        Opcode::HW2SW_CQ => InfiniHost::hw2sw_cq,
        Opcode::QUERY_CQ => InfiniHost::query_cq,
        Opcode::RESIZE_CQ => InfiniHost::resize_cq,
        Opcode::SW2HW_SRQ => InfiniHost::sw2hw_srq,
        Opcode::HW2SW_SRQ => InfiniHost::hw2sw_srq,
        Opcode::QUERY_SRQ => InfiniHost::query_srq,
        Opcode::ARM_SRQ => InfiniHost::arm_srq,
        Opcode::RST2INIT_QPEE
        | Opcode::INIT2INIT_QPEE
        | Opcode::INIT2RTR_QPEE
        | Opcode::RTR2RTS_QPEE
        | Opcode::RTS2RTS_QPEE
        | Opcode::SQERR2RTS_QPEE
        | Opcode::SQD2RTS_QPEE
        | Opcode::SQD2SQD_QPEE => InfiniHost::modify_qp,
        Opcode::TO_ERR_QPEE => InfiniHost::qp_to_error,
        Opcode::RTS2SQD_QPEE => InfiniHost::drain_qp,
        Opcode::ERR2RST_QPEE => InfiniHost::reset_qp,
        Opcode::QUERY_QPEE => InfiniHost::query_qp,
        Opcode::INIT_IB => InfiniHost::init_ib,
        Opcode::CLOSE_IB => InfiniHost::close_ib,
        Opcode::SET_IB => InfiniHost::set_ib,
        Opcode::CONF_SPECIAL_QP => InfiniHost::conf_special_qp,
        Opcode::MAD_IFC => InfiniHost::mad_ifc,
        Opcode::READ_MGM => InfiniHost::read_mgm,
        Opcode::WRITE_MGM => InfiniHost::write_mgm,
        Opcode::MGID_HASH => InfiniHost::mgid_hash,
        _ => return None,
    })
}

/// What may be asked after power-on, and what once firmware runs. infinihost 3.6.
type States = [&'static [Opcode]; 2];

const STATES_T: States = [
    &[Opcode::SYS_EN, Opcode::QUERY_FW],
    &[
        Opcode::QUERY_FW,
        Opcode::QUERY_DDR,
        Opcode::QUERY_DEV_LIM,
        Opcode::QUERY_ADAPTER,
        Opcode::INIT_HCA,
        Opcode::SYS_DIS,
    ],
];

const STATES_M: States = [
    &[
        Opcode::QUERY_FW,
        Opcode::ENABLE_LAM,
        Opcode::DISABLE_LAM,
        Opcode::SYS_DIS,
        Opcode::MAP_FA,
        Opcode::RUN_FW,
        Opcode::UNMAP_FA,
    ],
    &[
        Opcode::QUERY_FW,
        Opcode::ENABLE_LAM,
        Opcode::DISABLE_LAM,
        Opcode::SYS_DIS,
        Opcode::MAP_FA,
        Opcode::RUN_FW,
        Opcode::UNMAP_FA,
        Opcode::QUERY_DEV_LIM,
        Opcode::QUERY_ADAPTER,
        Opcode::SET_ICM_SIZE,
        Opcode::MAP_ICM_AUX,
        Opcode::UNMAP_ICM_AUX,
        Opcode::MAP_ICM,
        Opcode::UNMAP_ICM,
        Opcode::INIT_HCA,
    ],
];

impl InfiniHost {
    /// Does the state of the system allow it? infinihost 3.6.
    fn is_allowed(&self, opcode: Opcode) -> bool {
        let [power_on, enabled] = match self.mode() {
            Mode::T => STATES_T,
            Mode::M => STATES_M,
        };
        match self.system {
            System::PowerOn => power_on.contains(&opcode),
            System::Enabled => enabled.contains(&opcode),
            System::Running(_) => !matches!(
                opcode,
                Opcode::SYS_EN
                    | Opcode::RUN_FW
                    | Opcode::MAP_FA
                    | Opcode::INIT_HCA
                    | Opcode::SET_ICM_SIZE
            ),
        }
    }

    /// A command came in: it is carried out now or, if the card takes its time, when that is over.
    pub(super) fn posted(&mut self, bus: &mut dyn Bus, command: Command) {
        if self.config.command_time.is_zero() {
            return self.carry_out(bus, &command);
        }
        let due = bus.now().after(self.config.command_time);
        self.delayed.push_back((due, command));
        if self.delayed.len() >= 1 << LOG_MAX_COMMANDS {
            self.hcr.hold();
        }
        if self.delayed.len() == 1 {
            bus.set_timer(timers::COMMAND, due);
        }
    }

    /// The timer of commands.
    pub(super) fn commands_due(&mut self, bus: &mut dyn Bus) {
        let now = bus.now();
        while let Some(&(due, command)) = self.delayed.front() {
            if due > now {
                return bus.set_timer(timers::COMMAND, due);
            }
            self.delayed.pop_front();
            self.hcr.release();
            self.carry_out(bus, &command);
        }
    }

    /// The command under way whose mailbox, of a page at most, touches `len` bytes at bus address `at`.
    pub(super) fn mailbox_of(&self, at: u64, len: u64) -> Option<Opcode> {
        let touches =
            |&start: &u64| start < at.saturating_add(len) && at < start.saturating_add(4096);
        let mut commands = self.delayed.iter().map(|(_, command)| command);
        let found =
            commands.find(|command| [command.in_param, command.out_param].iter().any(touches));
        found.map(|command| command.opcode)
    }

    fn carry_out(&mut self, bus: &mut dyn Bus, command: &Command) {
        let fault = self.faults.next(command.opcode);
        let done = match fault {
            Some(CommandFault::Silent) => return,
            Some(CommandFault::Refused(status)) => Err(status),
            Some(CommandFault::Unannounced) | None => self.execute(bus, command),
        };
        let answer = match done {
            Ok(immediate) => Answer {
                status: CmdStatus::OK,
                immediate,
            },
            Err(status) => Answer::status(status),
        };
        if bus.tracing() {
            bus.trace(format_args!(
                "{:?} {:#x}: {:?}",
                command.opcode, command.input_modifier, answer.status
            ));
        }
        if fault.is_some_and(|fault| fault == CommandFault::Unannounced) {
            return;
        }
        if !command.event {
            return self.hcr.complete(answer);
        }
        let mut eqe = Eqe::ZERO;
        eqe.set_event_type(EventType::COMMAND)
            .set_token(command.token)
            .set_syndrome(answer.status.0)
            .set_out_param(answer.immediate.unwrap_or(0));
        self.events.post(&mut self.chip, bus, &eqe);
    }

    fn execute(&mut self, bus: &mut dyn Bus, command: &Command) -> Done {
        let opcode = command.opcode;
        let Some(handler) = handler(self.mode(), opcode) else {
            self.chip.ledger.count(format!("command {opcode:?}"));
            return Err(CmdStatus::BAD_OP);
        };
        if self.chip.catas.is_raised() {
            return Err(CmdStatus::INTERNAL_ERR);
        }
        if !self.is_allowed(opcode) {
            return Err(CmdStatus::BAD_SYS_STATE);
        }
        handler(self, bus, command)
    }

    /// Reads the front of the input mailbox.
    fn input<T: FromBytes + IntoBytes>(
        &self,
        bus: &mut dyn Bus,
        command: &Command,
    ) -> Result<T, CmdStatus> {
        let mut input = T::new_zeroed();
        let read = self
            .chip
            .memory
            .read(bus, command.in_param, input.as_mut_bytes());
        if let Err(fault) = read {
            bus.report(format_args!("{:?}: input mailbox: {fault}", command.opcode));
            return Err(CmdStatus::BAD_PARAM);
        }
        Ok(input)
    }

    /// Writes the front of the output mailbox, at most 512 bytes. infinihost 1.6.
    fn output<T: IntoBytes + Immutable + ?Sized>(
        &mut self,
        bus: &mut dyn Bus,
        command: &Command,
        output: &T,
    ) -> Done {
        let written = self
            .chip
            .memory
            .write(bus, command.out_param, output.as_bytes());
        match written {
            Ok(()) => Ok(None),
            Err(fault) => {
                bus.report(format_args!(
                    "{:?}: output mailbox: {fault}",
                    command.opcode
                ));
                Err(CmdStatus::BAD_PARAM)
            }
        }
    }

    /// There is memory for context `index`, of `len` bytes, of the table at `base`: in M-mode software has to lend it
    /// before it hands the context over, and firmware that finds none fails. Contexts are kept in the model, so
    /// nothing is written there.
    fn backed(&self, bus: &mut dyn Bus, base: u64, index: u32, len: u64) -> Result<(), CmdStatus> {
        let at = base.wrapping_add(u64::from(index) * len);
        if self.chip.memory.table_has(at, len) {
            return Ok(());
        }
        bus.report(format_args!(
            "no page is mapped at ICM address {at:#x}, where context {index:#x} is"
        ));
        Err(CmdStatus::INTERNAL_ERR)
    }

    /// An index among `count` things, of which the first `reserved` are the firmware's.
    fn object(index: u32, count: u32, reserved: u32) -> Result<u32, CmdStatus> {
        match index {
            _ if index >= count => Err(CmdStatus::BAD_INDEX),
            _ if index < reserved => Err(CmdStatus::BAD_RESOURCE),
            _ => Ok(index),
        }
    }
}
