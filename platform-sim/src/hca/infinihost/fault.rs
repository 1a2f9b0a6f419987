//! Failures on demand: a firmware command that goes wrong, for tests of what a driver makes of it; and what the HCA
//! holds, to see that it made nothing worse.

use super::{InfiniHost, System};
use core::fmt;
use hca_abi::infinihost::cmd::{CmdStatus, Opcode};

/// What becomes of the command that is made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandFault {
    /// It is refused with this status and changes nothing.
    Refused(CmdStatus),
    /// It changes nothing and never ends: a polled one keeps the HCR, of one by event none comes.
    Silent,
    /// It is carried out, and its end is told to nobody.
    Unannounced,
}

/// How many commands came, and which of them goes wrong.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CommandFaults {
    seen: u64,
    fails: Option<(u64, CommandFault)>,
    hit: Option<Opcode>,
}

impl CommandFaults {
    /// Another command came; what is to become of it?
    pub fn next(&mut self, opcode: Opcode) -> Option<CommandFault> {
        self.seen += 1;
        let (_, fault) = self.fails.take_if(|(at, _)| *at == self.seen)?;
        self.hit = Some(opcode);
        Some(fault)
    }
}

/// What an HCA holds of its driver's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holdings {
    /// Firmware is enabled: SYS_EN or RUN_FW without its undoing.
    pub enabled: bool,
    /// INIT_HCA without CLOSE_HCA.
    pub running: bool,
    /// Event queues.
    pub eqs: usize,
    /// Completion queues.
    pub cqs: usize,
    /// Shared receive queues.
    pub srqs: usize,
    /// Queue pairs beyond RESET.
    pub qps: usize,
    /// Memory keys handed over.
    pub keys: usize,
}

impl fmt::Display for Holdings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            eqs,
            cqs,
            srqs,
            qps,
            keys,
            ..
        } = self;
        write!(
            f,
            "{eqs} EQs, {cqs} CQs, {srqs} SRQs, {qps} QPs, {keys} keys"
        )
    }
}

impl InfiniHost {
    /// The `n`-th command from now on goes wrong (1 is the next); 0 takes that back.
    pub fn fail_command(&mut self, n: u64, fault: CommandFault) {
        let seen = self.faults.seen;
        self.faults.fails = n.checked_sub(1).map(|more| (seen + more + 1, fault));
        self.faults.hit = None;
    }

    /// The command that went wrong since [`InfiniHost::fail_command`] was called last.
    pub fn failed_command(&self) -> Option<Opcode> {
        self.faults.hit
    }

    /// Commands that came so far.
    pub fn commands(&self) -> u64 {
        self.faults.seen
    }

    /// What it still held when it was last closed or reset while it ran: of a driver that ends in good order, nothing.
    pub fn left(&self) -> Holdings {
        self.left
    }

    /// Pages of 4096 bytes that its driver has lent it (M-mode): firmware area, ICM, auxiliary memory.
    pub fn lent_pages(&self) -> u64 {
        let icm = self.chip.memory.icm();
        icm.map_or(0, |icm| {
            icm.mapped_pages() + icm.aux.pages() + icm.firmware.pages()
        })
    }

    /// What it holds of its driver's.
    pub fn holdings(&self) -> Holdings {
        Holdings {
            enabled: !matches!(self.system, System::PowerOn),
            running: matches!(self.system, System::Running(_)),
            eqs: self.events.count(),
            cqs: self.cqs.count(),
            srqs: self.srqs.count(),
            qps: self.qps.count(),
            keys: self.chip.keys.count(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_that_is_to_go_wrong_does_and_no_other() {
        let mut faults = CommandFaults {
            fails: Some((2, CommandFault::Silent)),
            ..CommandFaults::default()
        };
        let fates: Vec<_> = (0..4).map(|_| faults.next(Opcode::NOP)).collect();
        assert_eq!(fates, [None, Some(CommandFault::Silent), None, None]);
        assert_eq!((faults.seen, faults.hit), (4, Some(Opcode::NOP)));
    }
}
